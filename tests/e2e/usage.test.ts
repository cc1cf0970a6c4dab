/** Who uses what, which environments cover a share of the tasks, and a third node that runs them from a store of their own. */
import type { EnvironmentUsage } from '@dsec/libdsec';
import { lacking, TestServer } from '@dsec/testkit';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  codeOf as codeOn,
  FILE_BYTES,
  putWorkspace,
  SMALL_NODE,
  storeDirectory,
  storeEnvironment,
  sumOf,
} from './stored-workspace.ts';
import { waitFor } from './wait-for.ts';

const START_MS = 300_000;
const END_MS = 180_000;
const TEST_MS = 180_000;

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');
let store = '';
let cloud = '';
let node: TestServer;

if (lack !== undefined) {
  process.stderr.write(`skipped: ${lack}\n`);
  beforeEach((context) => context.skip(lack));
} else {
  beforeAll(async () => {
    [store, cloud] = [await storeDirectory(), await storeDirectory()];
    const options = { ...SMALL_NODE, blob: store };
    // Builds and uploads, and is not needed after that.
    await using builder = await TestServer.start(options);
    node = await TestServer.start(options);
    await storeEnvironment(builder);
    await node.cli(['env', 'fetch', 'e2e']);
    for (const name of ['often', 'seldom', 'never']) {
      await putWorkspace(builder, name, [`${name}.0`, `${name}.1`]);
      await builder.cli(['env', 'upload', name], { timeoutMs: START_MS });
      await node.cli(['env', 'fetch', name]);
    }
  }, START_MS);
  afterAll(async () => {
    await node?.[Symbol.asyncDispose]();
    for (const directory of [store, cloud]) await rm(directory, { recursive: true, force: true });
  }, END_MS);
}

const json = async <T>(...args: readonly string[]): Promise<T> =>
  JSON.parse((await node.cli([...args, '--json'], { timeoutMs: TEST_MS })).stdout.toString()) as T;
const codeOf = (...args: readonly string[]): Promise<string> => codeOn(node, args);
const usage = (name: string): Promise<EnvironmentUsage> => node.client.environments.usage(name);
const run = (workspaceName: string) =>
  node.client.runContainer({ containerImage: 'e2e', workspace: workspaceName, memoryLimitMb: 64 });

interface Eligible {
  readonly coveredTasks: number;
  readonly totalTasks: number;
  readonly bytes: number;
  readonly environments: readonly { readonly name: string; readonly tasks: number }[];
  readonly newLayers: number;
  readonly sentBytes: number;
  readonly pruned: { readonly names: number; readonly layers: number } | null;
}

describe('who uses what', () => {
  test(
    'nothing of an environment is here before it runs; then what was read, and who stands on it',
    async () => {
      const before = await usage('often');
      expect(before).toMatchObject({ name: 'often', sandboxes: 0 });
      expect(before.layers).toMatchObject([
        { dataBytes: null, presentBytes: 0, touchedBytes: null, touchedShare: null },
      ]);
      const sandboxes = await Promise.all([run('often'), run('often'), run('seldom')]);
      await sandboxes[0]?.runShell('cat /w/often.0');
      const [layer] = (await usage('often')).layers;
      expect(await usage('often')).toMatchObject({ sandboxes: 2, layers: [{ sandboxes: 2, otherEnvironments: 0 }] });
      expect(await usage('e2e')).toMatchObject({ sandboxes: 3, layers: [{ sandboxes: 3, otherEnvironments: 0 }] });
      expect(await usage('never')).toMatchObject({ sandboxes: 0, layers: [{ dataBytes: null, sandboxes: 0 }] });
      expect(layer?.dataBytes).toBeGreaterThanOrEqual(2 * FILE_BYTES);
      // One of two files was read: its chunks, and no others.
      expect(layer?.touchedBytes).toBeGreaterThanOrEqual(FILE_BYTES);
      expect(layer?.touchedShare).toBeCloseTo((layer?.touchedBytes ?? 0) / (layer?.dataBytes ?? 1), 5);
      expect(layer?.touchedShare).toBeLessThan(0.9);
      expect(layer?.presentBytes).toBeGreaterThanOrEqual(layer?.touchedBytes ?? Number.NaN);
      await node.client.environments.put('again', (await node.client.environments.get('often')).image, {
        kind: 'workspace',
      });
      expect((await usage('often')).layers[0]?.otherEnvironments).toBe(1);
      await node.client.environments.remove('again');
      const shown = (await node.cli(['env', 'usage'])).stdout.toString();
      expect(shown).toMatch(/^often +2 +1 /m);
      expect(shown).toMatch(/^never +0 +1 +- +0 B +-$/m);
      expect((await node.cli(['env', 'usage', 'often'])).stdout.toString()).toMatch(
        /^live sandboxes that run from it: 2\n/,
      );
      expect(await json('env', 'usage', 'often')).toEqual(await usage('often'));
      for (const sandbox of sandboxes) await sandbox.stop();
      expect(await usage('e2e')).toMatchObject({ sandboxes: 0, layers: [{ sandboxes: 0 }] });
      expect(await codeOf('env', 'usage', 'none')).toBe('environment_not_found');
    },
    TEST_MS,
  );

  test(
    'counts of what ran outlive the edge, killed as soon as a create was answered',
    async () => {
      const sandbox = await run('often');
      await node.killDaemon('edge');
      const counts = await waitFor('the edge', async () => {
        const found = new Map<string | null, number>();
        for await (const { workspace: name, sandboxes } of node.client.environments.compositions()) {
          found.set(name, sandboxes);
        }
        return found;
      });
      expect(Object.fromEntries(counts)).toEqual({ often: 3, seldom: 1 });
      await sandbox.stop();
    },
    TEST_MS,
  );
});

describe('a second store', () => {
  test(
    'gets the environments that cover the share, and a node that has nothing else runs them',
    async () => {
      const found = await json<Eligible>('env', 'eligible', '--share', '0.7');
      expect(found).toMatchObject({ coveredTasks: 3, totalTasks: 4 });
      expect(found.environments.map(({ name, tasks }) => [name, tasks])).toEqual([
        ['e2e', 4],
        ['often', 3],
      ]);
      const touched = await json<Eligible>('env', 'eligible', '--weigh', 'touched');
      expect(touched.environments).toEqual(found.environments);
      const listed = (await node.cli(['env', 'eligible'])).stdout.toString();
      expect(listed).toMatch(/^often +workspace +3 +1 /m);
      expect(listed).toMatch(/^2 layers of .* cover 3 of 4 sandboxes \(75.0 %\)$/m);
      expect((await node.cli(['env', 'eligible', 'often'])).stdout.toString()).toBe('yes\n');
      expect((await node.cli(['env', 'eligible', 'never'])).stdout.toString()).toMatch(/^no: 1 of its layers/);
      expect((await node.cli(['env', 'eligible', 'seldom', '--share', '1'])).stdout.toString()).toBe('yes\n');
      const synced = await json<Eligible>('env', 'sync', '--to', cloud, '--share', '0.7');
      expect(synced).toMatchObject({ newLayers: 2, pruned: null });
      expect(synced.sentBytes).toBeGreaterThan(2 * FILE_BYTES);
      expect(await json('env', 'sync', '--to', cloud)).toMatchObject({ newLayers: 0, sentBytes: 0 });
      await using burst = await TestServer.start({ ...SMALL_NODE, blob: cloud });
      for (const name of ['e2e', 'often']) await burst.cli(['env', 'fetch', name]);
      const sandbox = await burst.client.runContainer({ containerImage: 'e2e', workspace: 'often', memoryLimitMb: 64 });
      const sums = await sandbox.runShell('sha256sum /w/*');
      for (const file of ['often.0', 'often.1']) expect(sums.stdout).toContain(sumOf('often', file));
      await sandbox.stop();
    },
    TEST_MS,
  );

  test(
    'names layer and digest of what is damaged, heals what was lost there, and is pruned only when told',
    async () => {
      const [pack = ''] = await readdir(join(cloud, 'indexes'));
      const at = (directory: string): string => join(directory, 'packs', pack.slice(0, 2), pack);
      const bytes = await readFile(at(store));
      await rm(at(cloud));
      await writeFile(
        at(store),
        bytes.map((byte, index) => (index === 9 ? byte ^ 1 : byte)),
      );
      expect(await codeOf('env', 'sync', '--to', cloud)).toBe('layer_corrupt');
      await writeFile(at(store), bytes);
      expect(await json('env', 'sync', '--to', cloud)).toMatchObject({ newLayers: 1, sentBytes: bytes.length });
      expect((await readFile(at(cloud))).equals(bytes)).toBe(true);
      // Counts have moved on: the other one is what most ran.
      for (let count = 0; count < 9; count++) await (await run('seldom')).stop();
      expect(await json('env', 'sync', '--to', cloud)).toMatchObject({ newLayers: 1, pruned: null });
      expect(await readdir(join(cloud, 'layers'))).toHaveLength(3);
      const pruned = await json<Eligible>('env', 'sync', '--to', cloud, '--prune', '--grace', '0');
      expect(pruned).toMatchObject({ newLayers: 0, pruned: { names: 1, layers: 1 } });
      expect(pruned.environments.map(({ name }) => name)).toEqual(['e2e', 'seldom']);
      expect(await codeOf('env', 'sync', '--to', store, '--prune')).toBe('invalid_argument');
      expect(await codeOf('env', 'sync', '--to', '/no/such/store')).toBe('blob_unavailable');
      expect(await codeOf('env', 'sync', '--to', cloud, '--share', '0', '--prune')).toBe('invalid_argument');
      await node.cli(['env', 'fetch', 'seldom', '--blob', cloud]);
      expect(await codeOf('env', 'fetch', 'often', '--blob', cloud)).toBe('environment_not_found');
    },
    TEST_MS,
  );
});
