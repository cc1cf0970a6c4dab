import { mkdir, mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Process, run, SystemClock, SystemRandom } from '@dsec/kit';
import { waitFor } from '@dsec/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parseDigest } from './digest.ts';
import { DirectoryStore } from './directory-store.ts';
import { layerFiles } from './layer-files.fixture.ts';
import { openLayer, readChunk } from './layer-reader.ts';
import { listAll } from './object-store.ts';

let base: string;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-kill-'));
});
afterAll(() => rm(base, { recursive: true }));

const clock = new SystemClock();
const program = join(import.meta.dirname, 'layer-upload.fixture.ts');

test('an uploader that is killed with SIGKILL leaves whole objects only, and the next one goes on behind them', async () => {
  const root = join(base, 'store');
  await mkdir(root);
  const chunks = Array.from({ length: 120 }, (_, index) => -1 - index);
  const files = await layerFiles(base, 'killed', chunks);
  const store = new DirectoryStore({ root, random: new SystemRandom() });
  const argv = [process.execPath, program, root, files.metadataPath, files.dataPath ?? ''] as const;
  /** Inode numbers tell an object from one that was written anew under the same name. */
  const packs = async (): Promise<ReadonlyMap<string, number>> => {
    const found = new Map<string, number>();
    for await (const { key } of listAll(store, 'packs/')) found.set(key, (await stat(join(root, key))).ino);
    return found;
  };
  const wholePacks = 30;
  let before: ReadonlyMap<string, number> = new Map();
  for (const reached of [2, 6]) {
    await using uploader = await Process.start(argv, { clock, stdin: 'ignore' });
    await waitFor(clock, `${reached} packs`, async () => (await packs()).size >= reached);
    uploader.signal('SIGKILL');
    await uploader.exited;
    const after = await packs();
    expect(after.size).toBeLessThan(wholePacks);
    for (const [key, inode] of before) expect(after.get(key)).toBe(inode);
    before = after;
    expect((await store.list('layers/')).objects.map(({ key }) => key)).not.toContainEqual(
      expect.stringMatching(/layer\.json$/),
    );
  }
  const { stdout } = await run(argv, { clock, timeoutMs: 20_000 });
  const after = await packs();
  expect(after.size).toBe(wholePacks);
  for (const [key, inode] of before) expect(after.get(key)).toBe(inode);
  const layer = await openLayer(store, parseDigest(stdout.toString()));
  const read: Buffer[] = [];
  for (let index = 0; index < layer.map.chunks; index++) read.push(await readChunk(store, layer, index));
  expect(Buffer.concat(read).equals(files.data)).toBe(true);
  // What the killed ones were writing is removed by a collection.
  await store.removeUnfinished(Number.POSITIVE_INFINITY);
  expect(await readdir(join(root, '.unfinished'))).toEqual([]);
});
