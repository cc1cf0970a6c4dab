import { ManualClock } from '@dsec/kit';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { zstdCompressSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { collect } from './collection.ts';
import type { Digest } from './digest.ts';
import { LayerCopier } from './layer-copier.ts';
import { layerFiles, MortalStore } from './layer-files.fixture.ts';
import { CHUNK_BYTES } from './layer-format.ts';
import { openLayer, readChunk } from './layer-reader.ts';
import { putTrace, readTrace } from './layer-trace.ts';
import { LayerUploader } from './layer-uploader.ts';
import { MemoryStore } from './memory-store.fixture.ts';
import { relayout } from './relayout.ts';

const LAYERS = [
  [1, 2, 3, -4],
  [3, -4, 5, 0, 6, 7],
  [0, 0],
] as const;

let base = '';
let clock: ManualClock;
let from: MemoryStore;
let to: MemoryStore;
let mortal: MortalStore;
let layers: readonly Digest[];
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-copy-'));
});
afterAll(() => rm(base, { recursive: true }));
beforeEach(async () => {
  clock = new ManualClock();
  [from, to] = [new MemoryStore(clock), new MemoryStore(clock)];
  mortal = new MortalStore(to);
  const uploader = new LayerUploader({ store: from, clock, packBytes: 2 * CHUNK_BYTES });
  const uploaded: Digest[] = [];
  for (const chunks of LAYERS) {
    const files = await layerFiles(base, `layer-${chunks.join('_')}`, chunks);
    uploaded.push((await uploader.upload({ ...files, record: Buffer.from('{}') })).layer);
  }
  layers = uploaded;
});

const [first, second] = [(): Digest => layers[0] as Digest, (): Digest => layers[1] as Digest];
const copier = (): LayerCopier => new LayerCopier({ from, to: mortal });

/** Reads every chunk there: each is checked against its digest. */
async function isWhole(layer: Digest): Promise<boolean> {
  const stored = await openLayer(to, layer);
  for (let index = 0; index < stored.map.chunks; index++) await readChunk(to, stored, index);
  return to.objects.get(`layers/${layer}/metadata`)?.bytes.equals(metadataOf(layer)) === true;
}
const metadataOf = (layer: Digest): Buffer => from.objects.get(`layers/${layer}/metadata`)?.bytes ?? Buffer.alloc(0);
const sizeOf = (store: MemoryStore, prefix: string): number =>
  [...store.objects].reduce((sum, [key, { bytes }]) => (key.startsWith(prefix) ? sum + bytes.length : sum), 0);

test('brings layers over whole, what they share once, and nothing the second time', async () => {
  const copies = [];
  for (const layer of layers) copies.push(await copier().copy(layer));
  expect(copies.map(({ isNew }) => isNew)).toEqual([true, true, true]);
  expect(copies.reduce((sum, { sentBytes }) => sum + sentBytes, 0)).toBe(sizeOf(to, 'packs/'));
  expect(sizeOf(to, 'packs/')).toBe(sizeOf(from, 'packs/'));
  for (const layer of layers) expect(await isWhole(layer)).toBe(true);
  const written = mortal.written.length;
  for (const layer of layers) {
    expect(await copier().copy(layer)).toEqual({ layer, isNew: false, sentBytes: 0 });
  }
  expect(mortal.written).toHaveLength(written);
});

test('goes on where it was killed, at whatever change, and no layer is there in part', async () => {
  for (let changes = 0; ; changes++) {
    to = new MemoryStore(clock);
    mortal = new MortalStore(to);
    mortal.changesLeft = changes;
    const outcome = await copier()
      .copy(second())
      .catch(() => undefined);
    mortal = new MortalStore(to);
    if (outcome !== undefined) break;
    if (to.objects.has(`layers/${second()}/layer.json`)) expect(await isWhole(second())).toBe(true);
    const there = sizeOf(to, 'packs/');
    const { sentBytes } = await copier().copy(second());
    expect(there + sentBytes).toBe(sizeOf(to, 'packs/'));
    expect(await isWhole(second())).toBe(true);
  }
});

test('heals a layer whose pack, metadata or map have gone there, and leaves a layout that is good', async () => {
  await copier().copy(first());
  const pack = (await openLayer(to, first())).map.packs[0] ?? '';
  for (const gone of [
    `packs/${pack.slice(0, 2)}/${pack}`,
    `indexes/${pack}`,
    `layers/${first()}/metadata`,
    `layers/${first()}/chunks`,
    `layers/${first()}/layer.json`,
  ]) {
    to.objects.delete(gone);
    expect((await copier().copy(first())).isNew, gone).toBe(true);
    expect(await isWhole(first()), gone).toBe(true);
  }
  await to.put(`layers/${first()}/chunks`, Buffer.from('damaged'));
  expect((await copier().copy(first())).isNew).toBe(true);
  await relayout({ store: from, layers: [{ layer: first(), trace: [3, 1] }] });
  expect((await copier().copy(first())).isNew).toBe(false);
  // A fresh store gets the new layout, and what is read first.
  await putTrace(from, first(), { map: (await openLayer(from, first())).map, trace: [3, 1] });
  to = new MemoryStore(clock);
  mortal = new MortalStore(to);
  await copier().copy(first());
  expect((await openLayer(to, first())).map.bytes).toEqual((await openLayer(from, first())).map.bytes);
  expect(await readTrace(to, first(), (await openLayer(to, first())).map)).toEqual([3, 1]);
  expect(await isWhole(first())).toBe(true);
});

test('is not undone by a collection that runs at the same time', async () => {
  await copier().copy(first());
  await clock.advance(10_000);
  for (const key of [...to.objects.keys()]) if (key.startsWith('layers/')) to.objects.delete(key);
  let isCollected = false;
  mortal.onChange = async (key) => {
    if (isCollected || !key.startsWith('layers/')) return;
    isCollected = true;
    await collect(to, { keepLayers: [], graceMs: 5000, clock });
  };
  await copier().copy(first());
  expect(isCollected).toBe(true);
  expect(await isWhole(first())).toBe(true);
});

const packKeyOf = async (layer: Digest): Promise<string> => {
  const pack = (await openLayer(from, layer)).map.packs[0] ?? '';
  return `packs/${pack.slice(0, 2)}/${pack}`;
};
const put = (key: string, bytes: Buffer): Promise<unknown> => from.put(key, bytes);

test.each<readonly [string, () => Promise<unknown>, string]>([
  ['is not there', () => from.delete(`layers/${first()}/layer.json`), 'layer_not_found'],
  ['has no chunk map', () => from.delete(`layers/${first()}/chunks`), 'layer_corrupt'],
  ['has a damaged chunk map', () => put(`layers/${first()}/chunks`, Buffer.alloc(40)), 'layer_corrupt'],
  ['has no metadata', () => from.delete(`layers/${first()}/metadata`), 'layer_corrupt'],
  ['has metadata that are no frame', () => put(`layers/${first()}/metadata`, Buffer.alloc(99_999, 1)), 'layer_corrupt'],
  ['has cut metadata', () => put(`layers/${first()}/metadata`, metadataOf(first()).subarray(0, -4)), 'layer_corrupt'],
  [
    'has the metadata of another',
    () => put(`layers/${first()}/metadata`, zstdCompressSync(Buffer.from('another'))),
    'layer_corrupt',
  ],
  ['lacks a pack', async () => from.delete(await packKeyOf(first())), 'layer_corrupt'],
  ['has a damaged pack', async () => put(await packKeyOf(first()), Buffer.alloc(100)), 'layer_corrupt'],
  [
    'lacks the index of a pack',
    async () => from.delete(`indexes/${(await packKeyOf(first())).slice(9)}`),
    'layer_corrupt',
  ],
  [
    'has an index that is none',
    async () => put(`indexes/${(await packKeyOf(first())).slice(9)}`, Buffer.alloc(16)),
    'layer_corrupt',
  ],
])('refuses a layer that %s, names it, and writes no layer', async (_what, damage, code) => {
  await damage();
  const failure = await copier()
    .copy(first())
    .catch((error: unknown) => error);
  expect(failure).toMatchObject({ code, details: { layer: first() } });
  if (code === 'layer_corrupt') expect(failure).toMatchObject({ details: { digest: expect.any(String) as string } });
  expect([...to.objects.keys()].filter((key) => /layers\/.*\/(?:layer.json|metadata)/.test(key))).toEqual([]);
  // Others are copied all the same.
  expect((await copier().copy(layers[2] as Digest)).isNew).toBe(true);
});
