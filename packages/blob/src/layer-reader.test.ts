import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManualClock, run, SystemClock, SystemRandom } from '@dsec/kit';
import { lacking } from '@dsec/testkit';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { sha256Name } from './digest.ts';
import { layerFiles } from './layer-files.fixture.ts';
import { fetchLayer, openLayer, readChunk } from './layer-reader.ts';
import { LayerUploader, type UploadedLayer } from './layer-uploader.ts';
import { MemoryStore } from './memory-store.fixture.ts';

let base: string;
let count = 0;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-read-'));
});
afterAll(() => rm(base, { recursive: true }));

const random = new SystemRandom();
const clock = new ManualClock();

describe('a layer in a store', () => {
  let store: MemoryStore;
  let uploaded: UploadedLayer;
  let parent: string;
  beforeEach(async () => {
    store = new MemoryStore(clock);
    parent = join(base, String(count++));
    await mkdir(parent);
    const files = await layerFiles(base, 'read', [1, -2, 0, 3]);
    uploaded = await new LayerUploader({ store, clock }).upload({ ...files, record: Buffer.from('{}') });
  });
  const fetch = () => fetchLayer(store, uploaded.layer, { directory: join(parent, 'layer'), random });
  const object = (name: string): string => `layers/${uploaded.layer}/${name}`;
  const packKeys = (): readonly string[] => [...store.objects.keys()].filter((key) => key.startsWith('packs/'));
  const change = (key: string, bytes: (old: Buffer) => Buffer): void => {
    const old = store.objects.get(key)?.bytes ?? Buffer.alloc(0);
    store.objects.set(key, { bytes: bytes(Buffer.from(old)), modifiedMs: clock.now() });
  };
  const flipped = (at: number) => (bytes: Buffer) => {
    bytes.writeUInt8((bytes[at] ?? 0) ^ 1, at);
    return bytes;
  };
  const corrupt = (digest: unknown) => ({ code: 'layer_corrupt', details: { layer: uploaded.layer, digest } });

  test('is not there without its record', async () => {
    const missing = { code: 'layer_not_found', details: { layer: uploaded.layer } };
    await store.delete(object('layer.json'));
    await expect(openLayer(store, uploaded.layer)).rejects.toMatchObject(missing);
    await expect(fetch()).rejects.toMatchObject(missing);
    expect(await readdir(parent)).toEqual([]);
  });

  test('is fetched once, by however many', async () => {
    await Promise.all([fetch(), fetch(), fetch()]);
    await fetch();
    expect(await readdir(parent)).toEqual(['layer']);
    expect((await readdir(join(parent, 'layer'))).toSorted()).toEqual(['chunks', 'layer.json', 'rootfs.erofs']);
  });

  test.for([
    ['a bit of the metadata differs', 'metadata', flipped(20)],
    ['the metadata are cut', 'metadata', (bytes: Buffer) => bytes.subarray(0, -5)],
    ['the metadata are empty', 'metadata', () => Buffer.alloc(0)],
    ['a digest of the chunk map differs', 'chunks', flipped(32 + 32 + 3)],
    ['the chunk map is cut', 'chunks', (bytes: Buffer) => bytes.subarray(0, -1)],
    ['the chunk map is far too long', 'chunks', (bytes: Buffer) => Buffer.concat([bytes, Buffer.alloc(100)])],
    ['the record is too large', 'layer.json', () => Buffer.alloc(1024 * 1024 + 1)],
  ] as const)('is refused, and nothing of it stays on the node, when %s', async ([, name, damage]) => {
    change(object(name), damage);
    await expect(fetch()).rejects.toMatchObject(corrupt(expect.stringMatching(/^[0-9a-f]{64}$/)));
    expect(await readdir(parent)).toEqual([]);
  });

  test.for(['metadata', 'chunks'])('is refused without its %s', async (name) => {
    await store.delete(object(name));
    await expect(fetch()).rejects.toMatchObject(corrupt(uploaded.layer));
    expect(await readdir(parent)).toEqual([]);
  });

  test('names the chunk that is wrong, or the pack that is not there', async () => {
    const layer = await openLayer(store, uploaded.layer);
    const [key = ''] = packKeys();
    const location = layer.map.at(1);
    change(key, flipped((location?.offset ?? 0) + 1000));
    await expect(readChunk(store, layer, 1)).rejects.toMatchObject(corrupt(location?.digest));
    await readChunk(store, layer, 0);
    change(key, (bytes) => bytes.subarray(0, (layer.map.at(3)?.offset ?? 0) + 1));
    await expect(readChunk(store, layer, 3)).rejects.toMatchObject(corrupt(layer.map.at(3)?.digest));
    await store.delete(key);
    await expect(readChunk(store, layer, 0)).rejects.toMatchObject(corrupt(location?.pack));
    expect(await readChunk(store, layer, 2)).toEqual(Buffer.alloc(262_144));
  });

  test.for([-1, 4, 0.5, Number.NaN])('has no chunk %d', async (index) => {
    const layer = await openLayer(store, uploaded.layer);
    await expect(readChunk(store, layer, index)).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  test('is not confused with another one', async () => {
    const files = await layerFiles(base, 'other', [4]);
    const other = await new LayerUploader({ store, clock }).upload({ ...files, record: Buffer.from('{}') });
    change(object('metadata'), () => store.objects.get(`layers/${other.layer}/metadata`)?.bytes ?? Buffer.alloc(0));
    await expect(fetch()).rejects.toMatchObject({ code: 'layer_corrupt' });
    const unknown = sha256Name(Buffer.from('unknown'));
    const directory = join(parent, 'layer');
    await expect(fetchLayer(store, unknown, { directory, random })).rejects.toMatchObject({ code: 'layer_not_found' });
  });

  test('is not fetched when the caller does not want it any more', async () => {
    const directory = join(parent, 'layer');
    const failed = fetchLayer(store, uploaded.layer, { directory, random, signal: AbortSignal.abort() });
    await expect(failed).rejects.toMatchObject({ code: 'cancelled' });
  });

  const reason = lacking('root');
  test.skipIf(reason !== undefined)(`leaves nothing on a node whose disk is full${reason ?? ''}`, async () => {
    const system = new SystemClock();
    const timeoutMs = 10_000;
    await run(['/usr/bin/mount', '-t', 'tmpfs', '-o', 'size=64k', 'dsec-test', parent], { clock: system, timeoutMs });
    try {
      await writeFile(join(parent, 'filler'), Buffer.alloc(50_000));
      await expect(fetch()).rejects.toMatchObject({ code: 'disk_full', details: { layer: uploaded.layer } });
      expect(await readdir(parent)).toEqual(['filler']);
    } finally {
      await run(['/usr/bin/umount', parent], { clock: system, timeoutMs });
    }
  });
});
