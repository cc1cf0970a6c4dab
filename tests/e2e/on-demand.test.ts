/** Two nodes and a blob store: one builds and uploads, the other has nothing and runs it. */
import { Process, run } from '@dsec/kit';
import type { EnvironmentImage, Sandbox } from '@dsec/libdsec';
import { lacking, TestServer } from '@dsec/testkit';
import { copyFile, cp, mkdtemp, readdir, readFile, rename, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { aetherPid } from './host-side.ts';
import {
  codeOf,
  putWorkspace,
  SMALL_NODE as SMALL,
  storeDirectory,
  storeEnvironment,
  sumOf,
} from './stored-workspace.ts';
import { clock, waitFor } from './wait-for.ts';

const ROOT = join(import.meta.dirname, '../..');
const START_MS = 300_000;
const END_MS = 180_000;
const READERS = 50;
/** Processes of one layerd. */
const FAMILY = 3;
/** How long a read waits for the store in this suite. */
const STORE_WAIT_MS = 1000;
/** Most of them far from each other. */
const FILES = Array.from({ length: 12 }, (_, n) => `f${n}`);
const HASTY = { variables: { DSEC_LAYERD_STORE_WAIT_MS: String(STORE_WAIT_MS) } };
const S3_SERVER = join(ROOT, 'packages/blob/src/s3-server-process.fixture.ts');

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');
/** What an S3 server says of itself. */
interface S3Place {
  readonly endpoint: string;
  readonly bucket: string;
  readonly account: { readonly accessKeyId: string; readonly secretAccessKey: string };
}

let store = '';
let builder: TestServer;
let node: TestServer;

if (lack !== undefined) {
  process.stderr.write(`skipped: ${lack}\n`);
  beforeEach((context) => context.skip(lack));
} else {
  beforeAll(async () => {
    store = await storeDirectory();
    builder = await TestServer.start({ ...SMALL, blob: store });
    node = await TestServer.start({ ...SMALL, ...HASTY, blob: store });
    await storeEnvironment(builder);
    await node.cli(['env', 'fetch', 'e2e']);
  }, START_MS);
  afterAll(async () => {
    await builder?.[Symbol.asyncDispose]();
    await node?.[Symbol.asyncDispose]();
    await rm(store, { recursive: true, force: true });
  }, END_MS);
}

const layersOf = async (server: TestServer): Promise<readonly string[]> => readdir(join(server.data, 'layers'));
const hexOf = (image: EnvironmentImage): string => (image.layers[0] ?? '').replace('sha256:', '');

/** A workspace that the first node has put into the store, registered on the second. */
async function stored(name: string, files: readonly string[]): Promise<EnvironmentImage> {
  const image = await putWorkspace(builder, name, files);
  await builder.cli(['env', 'upload', name]);
  await node.cli(['env', 'fetch', name]);
  return image;
}

const sandboxOn = (name?: string): Promise<Sandbox> =>
  node.client.runContainer({
    containerImage: 'e2e',
    memoryLimitMb: 256,
    ...(name === undefined ? {} : { workspace: name }),
  });

/** Reads a file of a workspace; undefined when the kernel said EIO. Anything but the right bytes fails. */
async function read(sandbox: Sandbox, workspaceName: string, file: string): Promise<boolean> {
  const { stdout, stderr } = await sandbox.runShell(`sha256sum /w/${file}`);
  if (/Input\/output error/.test(stderr)) return false;
  expect(stdout.split(' ')[0], `${file}: ${stderr}`).toBe(sumOf(workspaceName, file));
  return true;
}

/** SIGKILL to every process of the layerd of the second node. */
async function killLayerd(): Promise<number> {
  let killed = 0;
  for (const pid of await readdir('/proc')) {
    const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    const [program = '', command = '', , data] = line.split('\0');
    if (!/(?:^|\/)layerd$/.test(program) || !['serve', 'hold', 'work'].includes(command) || data !== node.data)
      continue;
    process.kill(Number(pid), 'SIGKILL');
    killed++;
  }
  return killed;
}

describe('a node without the layers of an environment', () => {
  test('runs it: concurrent creates fetch once, and only what is read comes', async () => {
    const image = await stored('lazy', FILES);
    expect(await layersOf(node)).not.toContain(hexOf(image));
    const sandboxes = await Promise.all(Array.from({ length: 8 }, () => sandboxOn('lazy')));
    for (const sandbox of sandboxes) expect(await read(sandbox, 'lazy', 'f3')).toBe(true);
    const fetched = (await readFile(join(node.data, 'log/edge.log'), 'utf8'))
      .split('\n')
      .filter((line) => line.includes('"event":"layer.fetch"') && line.includes(hexOf(image)));
    expect(fetched).toHaveLength(1);
    const data = await stat(join(node.data, 'layers', hexOf(image), 'data'));
    expect(data.blocks * 512).toBeLessThan(data.size / 2);
    expect(await readdir(join(node.data, 'state/edge/layers'))).toEqual([]);
    // Also what it stands on came from the store.
    const { image: base } = await node.client.environments.get('e2e');
    const lower = await stat(join(node.data, 'layers', hexOf(base), 'data'));
    expect(lower.blocks * 512).toBeLessThan(lower.size / 4);
    const command = 'sha256sum /bin/sh /usr/bin/env; id -u';
    await using local = await builder.client.runContainer({ containerImage: 'e2e' });
    const expected = (await local.runShell(command)).stdout;
    for (const sandbox of sandboxes) expect((await sandbox.runShell(command)).stdout).toBe(expected);
    for (const sandbox of sandboxes) await sandbox.stop();
    expect((await node.cli(['env', 'stored'])).stdout.toString()).toMatch(/^e2e +base /m);
  }, 120_000);

  test('reads the right bytes, or EIO, when all of layerd is killed under 50 cold readers', async () => {
    const files = Array.from({ length: READERS }, (_, n) => `f${n}`);
    await stored('storm', files);
    await using sandbox = await sandboxOn('storm');
    let isOver = false;
    const reading = Promise.all(files.map((file) => read(sandbox, 'storm', file))).finally(() => {
      isOver = true;
    });
    let kills = 0;
    while (!isOver && kills < 4 * FAMILY) {
      kills += await killLayerd();
      await Promise.race([reading.catch(() => undefined), waitForLayerd()]);
    }
    const whole = (await reading).filter(Boolean).length;
    expect(kills).toBeGreaterThan(2);
    expect(whole).toBeGreaterThan(0);
    // Errors do not last.
    for (const file of files) await waitFor(file, () => read(sandbox, 'storm', file));
  }, 240_000);

  test('goes on filling after a restart of each daemon', async () => {
    const files = ['one', 'layerd', 'launcher', 'edge', 'all'];
    await stored('restarts', files);
    await using sandbox = await sandboxOn('restarts');
    expect(await read(sandbox, 'restarts', 'one')).toBe(true);
    for (const daemon of ['layerd', 'launcher', 'edge'] as const) {
      await node.killDaemon(daemon);
      expect(await read(sandbox, 'restarts', daemon), daemon).toBe(true);
      await using fresh = await sandboxOn('restarts');
      expect(await read(fresh, 'restarts', daemon), daemon).toBe(true);
    }
    await killLayerd();
    expect(await read(sandbox, 'restarts', 'all')).toBe(true);
  }, 120_000);

  test.each(['SIGTERM', 'SIGKILL'] as const)(
    'goes on filling after the server has got %s, and when the next one has begun',
    async (signal) => {
      const name = `after-${signal.toLowerCase()}`;
      await stored(name, ['a', 'b', 'c']);
      const sandbox = await sandboxOn(name);
      expect(await read(sandbox, name, 'a')).toBe(true);
      const pid = await aetherPid(node, sandbox.sandboxId);
      await node.client.close();
      await end(node, signal);
      // As a program in it that reads when nobody can ask it.
      const inside = ['nsenter', '-t', String(pid), '-m', '-r', '/usr/bin/sha256sum', '/w/b'] as const;
      expect((await run(inside, { clock })).stdout.toString().split(' ')[0]).toBe(sumOf(name, 'b'));
      // It knows which store to use.
      node = await TestServer.start({ ...SMALL, ...HASTY, data: node.data });
      const adopted = await node.client.getSandbox(sandbox.sandboxId);
      expect(await read(adopted, name, 'c')).toBe(true);
      await adopted.stop();
    },
    120_000,
  );
});

test('a bucket of an S3 server serves as a directory does', async () => {
  await using server = await Process.start([process.execPath, S3_SERVER, join(ROOT, 'tests/vectors'), 'elsewhere/'], {
    clock,
    stdin: 'pipe',
    stdout: 'pipe',
    stderr: 'tail',
  });
  const lines = createInterface({ input: server.stdout })[Symbol.asyncIterator]();
  const said = async <T>(): Promise<T> => JSON.parse(String((await lines.next()).value)) as T;
  const { endpoint, bucket, account } = await said<S3Place>();
  const { accessKeyId, secretAccessKey } = account;
  const variables = {
    DSEC_BLOB_ENDPOINT: endpoint,
    DSEC_BLOB_ACCESS_KEY_ID: accessKeyId,
    DSEC_BLOB_SECRET_ACCESS_KEY: secretAccessKey,
  };
  await using third = await TestServer.start({ ...SMALL, blob: `s3://${bucket}/team`, variables });
  const base = await builder.client.environments.get('e2e');
  const image = await putWorkspace(third, 'bucket', ['a', 'b']);
  await third.cli(['env', 'upload', 'bucket']);
  server.stdin.write('requests\n');
  const puts = (await said<readonly string[]>()).filter((request) => request.startsWith('PUT '));
  expect(puts.length).toBeGreaterThan(4);
  for (const put of puts) expect(put).toMatch(/^PUT \/[^/]+\/team\//);
  // As if another node had built the workspace.
  await third.client.environments.put('e2e', base.image, {});
  await copyLayer(builder, third, hexOf(base.image));
  await rm(join(third.data, 'layers', hexOf(image)), { recursive: true });
  const sandbox = await third.client.runContainer({ containerImage: 'e2e', workspace: 'bucket' });
  expect(await read(sandbox, 'bucket', 'a')).toBe(true);
  expect(await layersOf(third)).toContain(hexOf(image));
  await sandbox.stop();
  // Neither account nor endpoint is seen by whoever looks at processes.
  for (const line of await commandLines(third.data)) {
    expect(line).not.toContain(secretAccessKey);
    expect(line).not.toContain(accessKeyId);
  }
}, 120_000);

describe('what goes wrong', () => {
  /** Takes the store away for a while. */
  async function without(work: () => Promise<void>): Promise<void> {
    await rename(store, `${store}.away`);
    try {
      await work();
    } finally {
      await rename(`${store}.away`, store);
    }
  }

  test('is told when the store is away at a create, which works when it is back', async () => {
    const image = await stored('away', ['a']);
    const layer = `sha256:${hexOf(image)}`;
    await without(async () => {
      const failure = await failureOf(sandboxOn('away'));
      expect(failure).toMatchObject({ code: 'blob_unavailable', details: { layer }, infrastructure: true });
    });
    expect(await layersOf(node)).not.toContain(hexOf(image));
    await using sandbox = await sandboxOn('away');
    expect(await read(sandbox, 'away', 'a')).toBe(true);
  }, 60_000);

  test('is EIO when the store is away in the middle of a read, and heals', async () => {
    await stored('middle', FILES);
    await using sandbox = await sandboxOn('middle');
    expect(await read(sandbox, 'middle', 'f0')).toBe(true);
    // A pack that is open outlives its name.
    await node.killDaemon('layerd');
    await killLayerd();
    await waitForLayerd();
    const packs = join(store, 'packs');
    await rename(packs, `${packs}.away`);
    try {
      expect(await read(sandbox, 'middle', 'f9')).toBe(false);
    } finally {
      await rename(`${packs}.away`, packs);
    }
    await waitFor('the read', () => read(sandbox, 'middle', 'f9'));
  }, 60_000);

  test('names layer and digest of what is damaged, and leaves nothing of it', async () => {
    const image = await stored('damaged', ['a']);
    const hex = hexOf(image);
    const layer = `sha256:${hex}`;
    const at = (name: string): string => join(store, 'layers', hex, name);
    const damages: readonly (readonly [string, (path: string) => Promise<void>, object])[] = [
      ['metadata', (path) => truncate(path, 100), { code: 'layer_corrupt', details: { layer } }],
      ['metadata', (path) => writeFile(path, 'no frame'), { code: 'layer_corrupt', details: { layer } }],
      ['metadata', (path) => rm(path), { code: 'layer_corrupt', details: { layer } }],
      ['chunks', (path) => truncate(path, 31), { code: 'layer_corrupt', details: { layer } }],
      ['chunks', (path) => flip(path, 70), { code: 'layer_corrupt', details: { layer } }],
      ['layer.json', (path) => rm(path), { code: 'layer_not_found', details: { layer } }],
    ];
    for (const [name, damage, failure] of damages) {
      await copyFile(at(name), join(store, 'kept'));
      await damage(at(name));
      expect(await failureOf(sandboxOn('damaged')), name).toMatchObject(failure);
      expect(await layersOf(node), name).not.toContain(hex);
      await copyFile(join(store, 'kept'), at(name));
    }
    await using sandbox = await sandboxOn('damaged');
    expect(await read(sandbox, 'damaged', 'a')).toBe(true);
  }, 120_000);

  test('is EIO for a damaged chunk', async () => {
    const image = await stored('chunk', ['a']);
    const packs = await packsOf(hexOf(image));
    for (const pack of packs) await flip(pack, 1000);
    await using sandbox = await sandboxOn('chunk');
    expect(await read(sandbox, 'chunk', 'a')).toBe(false);
  }, 60_000);

  test('is refused before anything is registered', async () => {
    expect(await codeOf(node, ['env', 'fetch', 'no-such'])).toBe('environment_not_found');
    expect(await codeOf(node, ['env', 'fetch', 'e2e', '--version', 'x'])).toBe('environment_not_found');
    expect(await codeOf(node, ['env', 'fetch', 'e2e', '--blob', '/no/such/store'])).toBe('blob_unavailable');
    expect(await codeOf(node, ['env', 'fetch', 'e2e', '--blob', 's3://bucket'])).toBe('config_invalid');
    expect(await codeOf(node, ['env', 'fetch', 'e2e', '--blob', 'http://host/bucket'])).toBe('config_invalid');
    const image = await putWorkspace(builder, 'half', ['a']);
    await builder.cli(['env', 'upload', 'half']);
    await rm(join(store, 'layers', hexOf(image), 'layer.json'));
    expect(await codeOf(node, ['env', 'fetch', 'half'])).toBe('layer_not_found');
    expect((await failureOf(node.client.environments.get('half'))).code).toBe('environment_not_found');
  }, 120_000);
});

describe('a store that cannot be used', () => {
  test('is refused when a server is to begin with it', async () => {
    const closed = await mkdtemp(join(tmpdir(), 'dsec-t-closed-'));
    try {
      const beginning = (blob: string): Promise<unknown> => TestServer.start({ ...SMALL, blob });
      await expect(beginning('/no/such/store')).rejects.toThrow(/blob_unavailable/);
      await expect(beginning('s3://layers')).rejects.toThrow(/endpoint of the S3 server is not given.*config_invalid/);
      await expect(beginning(closed)).rejects.toThrow(/may not read.*config_invalid/);
    } finally {
      await rm(closed, { recursive: true });
    }
  }, 60_000);

  test('is full: the upload says so and leaves no environment', async () => {
    const full = await mkdtemp(join(tmpdir(), 'dsec-t-full-'));
    await run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'none', full], { clock });
    try {
      await putWorkspace(builder, 'much', ['a', 'b', 'c']);
      expect(await codeOf(builder, ['env', 'upload', 'much', '--blob', full])).toBe('blob_full');
      expect((await builder.cli(['env', 'stored', '--blob', full, '--json'])).stdout.toString().trim()).toBe('[]');
    } finally {
      await run(['umount', full], { clock });
      await rm(full, { recursive: true });
    }
  }, 60_000);
});

/** Ends the server, and waits until none of its daemons answers but layerd. */
async function end(server: TestServer, signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
  const file = join(server.data, 'run/server.json');
  const { pid, pids } = JSON.parse(await readFile(file, 'utf8')) as {
    readonly pid: number;
    readonly pids: Readonly<Record<string, number>>;
  };
  if (signal === 'SIGKILL') process.kill(pid, signal);
  await server.stopDaemons();
  await waitFor('the end of all', async () => {
    const left = await Promise.all(
      Object.values(pids).map((daemon) => readFile(`/proc/${daemon}/cmdline`, 'utf8').catch(() => '')),
    );
    return left.every((line) => line === '');
  });
  // One that was killed has left it, and the next is known by it.
  await rm(file, { force: true });
}

async function copyLayer(from: TestServer, to: TestServer, hex: string): Promise<void> {
  await cp(join(from.data, 'layers', hex), join(to.data, 'layers', hex), { recursive: true });
}

/** Of the processes of a server. */
async function commandLines(data: string): Promise<readonly string[]> {
  const lines: string[] = [];
  for (const pid of await readdir('/proc')) {
    const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (line.includes(data)) lines.push(line);
  }
  expect(lines.length).toBeGreaterThan(4);
  return lines;
}

async function isUp(): Promise<boolean> {
  const { pids } = JSON.parse(await readFile(join(node.data, 'run/server.json'), 'utf8')) as {
    readonly pids: Readonly<Record<string, number>>;
  };
  return (await readFile(`/proc/${pids['layerd']}/comm`, 'utf8').catch(() => '')).startsWith('layerd');
}

const waitForLayerd = (): Promise<true> => waitFor('layerd', async () => (await isUp()) || undefined);

async function packsOf(hex: string): Promise<readonly string[]> {
  const map = await readFile(join(store, 'layers', hex, 'chunks'));
  const count = map.readUInt32LE(28);
  return Array.from({ length: count }, (_, index) => {
    const pack = map.toString('hex', 32 + index * 32, 64 + index * 32);
    return join(store, 'packs', pack.slice(0, 2), pack);
  });
}

/** Changes one byte in place, by a new file: what is open stays as it is. */
async function flip(path: string, at: number): Promise<void> {
  const bytes = await readFile(path);
  bytes[at] = (bytes[at] ?? 0) ^ 0xff;
  await writeFile(`${path}.new`, bytes);
  await rename(`${path}.new`, path);
}
