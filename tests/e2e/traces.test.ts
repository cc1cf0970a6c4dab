/** What one node has read of an environment makes it quick on the next. */
import { lacking, TestServer } from '@dsec/testkit';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { SMALL_NODE, storeDirectory, storeEnvironment } from './stored-workspace.ts';
import { waitFor } from './wait-for.ts';

const START_MS = 300_000;
const FILES = 40;
const FILE_BYTES = 300_000;
/** Read in an order that is not that of the layer. */
const READ = ['f31', 'f2', 'f17'];
const READ_SCRIPT = `cat ${READ.map((name) => `/w/${name}`).join(' ')} | wc -c`;

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');
let directory = '';
let store = '';
const servers: TestServer[] = [];

if (lack !== undefined) {
  process.stderr.write(`skipped: ${lack}\n`);
  beforeEach((context) => context.skip(lack));
} else {
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'dsec-t-traces-'));
    store = await storeDirectory();
  });
  afterAll(async () => {
    for (const server of servers) await server[Symbol.asyncDispose]();
    await rm(directory, { recursive: true, force: true });
    await rm(store, { recursive: true, force: true });
  }, START_MS);
}

async function startNode(): Promise<TestServer> {
  const server = await TestServer.start({ ...SMALL_NODE, blob: store });
  servers.push(server);
  return server;
}

/** Files of random bytes, so that no two share a chunk. */
async function buildWorkspace(server: TestServer): Promise<void> {
  for (let index = 0; index < FILES; index += 1) await writeFile(join(directory, `f${index}`), randomBytes(FILE_BYTES));
  const recipe = ['name: ws', 'kind: workspace', 'trees: [{path: /w, source: .}]', ''].join('\n');
  await writeFile(join(directory, 'ws.yaml'), recipe);
  await server.cli(['env', 'build', join(directory, 'ws.yaml')]);
}

const presentBytes = async (server: TestServer): Promise<number> =>
  (await server.client.environments.usage('ws')).layers.reduce((sum, layer) => sum + layer.presentBytes, 0);

test(
  'kept in the store, a trace brings the chunks before they are read, in few reads',
  async () => {
    const builder = await startNode();
    await storeEnvironment(builder);
    await buildWorkspace(builder);
    await builder.cli(['env', 'upload', 'ws'], { timeoutMs: START_MS });

    const first = await startNode();
    for (const name of ['e2e', 'ws']) await first.cli(['env', 'fetch', name]);
    const args = { containerImage: 'e2e', workspace: 'ws', memoryLimitMb: 128 };
    {
      await using sandbox = await first.client.runContainer(args);
      expect((await sandbox.runShell(READ_SCRIPT)).stdout.trim()).toBe(String(READ.length * FILE_BYTES));
    }
    const read = await presentBytes(first);
    expect(read).toBeGreaterThanOrEqual(READ.length * FILE_BYTES);
    expect(read).toBeLessThan((FILES * FILE_BYTES) / 2);
    const relaid = await first.cli(['env', 'relayout', 'ws', '--json']);
    const { layers } = JSON.parse(relaid.stdout.toString()) as {
      layers: readonly { tracedChunks: number; readsBefore: number; reads: number }[];
    };
    expect(layers).toHaveLength(1);
    expect(layers[0]?.reads).toBe(1);
    expect(layers[0]?.readsBefore).toBeGreaterThan(1);

    const second = await startNode();
    for (const name of ['e2e', 'ws']) await second.cli(['env', 'fetch', name]);
    await using sandbox = await second.client.runContainer(args);
    // Nobody has read anything of it here.
    await waitFor('the traced chunks', async () => (await presentBytes(second)) >= read);
    const brought = await presentBytes(second);
    expect(brought).toBeLessThan((FILES * FILE_BYTES) / 2);
    expect((await sandbox.runShell(READ_SCRIPT)).stdout.trim()).toBe(String(READ.length * FILE_BYTES));
    // The reading had nothing to wait for.
    expect(await presentBytes(second)).toBe(brought);

    // A collection takes nothing of it, and all of what has lost its name.
    const collect = async (...args: string[]): Promise<Record<string, number>> => {
      const { stdout } = await builder.cli(['env', 'collect', '--json', ...args]);
      return JSON.parse(stdout.toString()) as Record<string, number>;
    };
    expect(await collect('--grace', '0s')).toMatchObject({ removedVersions: 0, removedLayers: 0 });
    await writeFile(join(directory, 'f0'), randomBytes(FILE_BYTES));
    await builder.cli(['env', 'build', join(directory, 'ws.yaml')]);
    await builder.cli(['env', 'upload', 'ws']);
    expect(await collect('--grace', '30d', '--versions', '1')).toMatchObject({ removedVersions: 0, removedLayers: 0 });
    expect(await collect('--grace', '0s', '--versions', '1')).toMatchObject({ removedVersions: 1, removedLayers: 1 });
    // The chunks that both versions have are still there for the new one.
    await second.cli(['env', 'fetch', 'ws']);
    await using renewed = await second.client.runContainer(args);
    expect((await renewed.runShell('cat /w/f* | wc -c')).stdout.trim()).toBe(String(FILES * FILE_BYTES));
  },
  START_MS,
);
