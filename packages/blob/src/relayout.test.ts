import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManualClock } from '@dsec/kit';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ChunkMap } from './chunk-map.ts';
import { chunkRanges } from './chunk-ranges.ts';
import { collect } from './collection.ts';
import { type Digest, sha256Name } from './digest.ts';
import { Killed, layerFiles, MortalStore } from './layer-files.fixture.ts';
import { CHUNK_BYTES } from './layer-format.ts';
import { openLayer, readChunk } from './layer-reader.ts';
import { LayerUploader } from './layer-uploader.ts';
import { MemoryStore } from './memory-store.fixture.ts';
import { relayout, type TracedLayer } from './relayout.ts';

const DAY_MS = 86_400_000;
const SUPERSEDED_MS = 7 * DAY_MS;

let base: string;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-relayout-'));
});
afterAll(() => rm(base, { recursive: true }));

/** A layer as a node has it that fetched it once. */
interface Node {
  readonly layer: Digest;
  readonly map: ChunkMap;
  readonly data: Buffer;
  readonly metadata: Digest;
}

class World {
  readonly clock = new ManualClock();
  readonly memory = new MemoryStore(this.clock);
  readonly store = new MortalStore(this.memory);

  async upload(chunks: readonly number[]): Promise<Node> {
    const files = await layerFiles(base, `layer-${chunks.join('_')}`, chunks);
    const uploader = new LayerUploader({ store: this.memory, clock: this.clock, packBytes: 3 * CHUNK_BYTES });
    const { layer, map } = await uploader.upload({ ...files, record: Buffer.from('{}') });
    return { layer, map, data: files.data, metadata: sha256Name(files.metadata) };
  }

  /** Whether every chunk comes right, by a map that a node has or by that of the store. */
  async isWhole(node: Node, map?: ChunkMap): Promise<boolean> {
    const used = map ?? (await openLayer(this.memory, node.layer)).map;
    if (used.layerDigest(node.metadata) !== node.layer) return false;
    for (let index = 0; index < used.chunks; index++) {
      const chunk = await readChunk(this.memory, { layer: node.layer, map: used }, index);
      if (!chunk.equals(node.data.subarray(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES))) return false;
    }
    return true;
  }

  relayout(layers: readonly TracedLayer[], packBytes?: number): ReturnType<typeof relayout> {
    return relayout({ store: this.store, layers, ...(packBytes === undefined ? {} : { packBytes }) });
  }

  collect(keepLayers: Iterable<Digest>): ReturnType<typeof collect> {
    return collect(this.memory, { keepLayers, graceMs: DAY_MS, supersededMs: SUPERSEDED_MS, clock: this.clock });
  }

  packs(): readonly string[] {
    return [...this.memory.objects.keys()].filter((key) => key.startsWith('packs/'));
  }
}

const MANY = Array.from({ length: 40 }, (_, index) => index - 20);
/** All over the layer, one twice, and the hole. */
const TRACE = [37, 2, 11, 30, 5, 20, 2, 23, 0, 17];

const FEW = [-1, 2, -3, 4, -5, 6, 7];
const FEW_TRACE = [4, 0, 2, 6];

describe('relayout', () => {
  test('makes one read of what an environment reads at its start', async () => {
    const world = new World();
    const one = await world.upload(MANY);
    const other = await world.upload([1, 2, 3, 104, 105, 106, 107, 108]);
    const traced = [
      { layer: one.layer, trace: TRACE },
      { layer: other.layer, trace: [6, 2, 4] },
    ];
    expect(chunkRanges(one.map, TRACE).length).toBeGreaterThan(6);
    const progress: number[] = [];
    const relaid = await relayout({ store: world.store, layers: traced, onProgress: (done) => progress.push(done) });
    expect(relaid.layers.map(({ reads }) => reads)).toEqual([1, 2]);
    expect(relaid.layers[0]?.readsBefore).toBe(chunkRanges(one.map, TRACE).length);
    expect(relaid.packs).toHaveLength(1);
    expect(progress).toEqual([relaid.bytes]);
    const [range] = chunkRanges((await openLayer(world.memory, one.layer)).map, TRACE);
    expect(range).toMatchObject({ pack: relaid.packs[0], offset: 0, chunks: [37, 2, 11, 30, 5, 23, 0, 17] });
    for (const node of [one, other]) {
      expect(await world.isWhole(node)).toBe(true);
      expect(await world.isWhole(node, node.map)).toBe(true);
    }
    expect(world.packs()).toContain(`packs/${relaid.packs[0]?.slice(0, 2)}/${relaid.packs[0]}`);
  });

  test('outlasts another upload of the layer, which mends what is gone of it', async () => {
    const world = new World();
    const node = await world.upload(MANY);
    const { packs, layers } = await world.relayout([{ layer: node.layer, trace: TRACE }]);
    const [relaid] = layers;
    await world.upload(MANY);
    const { map } = await openLayer(world.memory, node.layer);
    expect(map.bytes.equals(relaid?.map.bytes ?? Buffer.alloc(0))).toBe(true);
    const [pack = ''] = packs;
    await world.memory.delete(`packs/${pack.slice(0, 2)}/${pack}`);
    await world.upload(MANY);
    expect(await world.isWhole(node)).toBe(true);
    // What nodes have of the map that was mended stays under its own name.
    const superseded = `layers/${node.layer}/chunks-${sha256Name(map.bytes)}`;
    expect(world.memory.objects.has(superseded)).toBe(true);
  });

  test.each([
    ['that sends nothing', false],
    ['that mends the layer', true],
  ])('outlasts an upload %s and began before it', async (_, isDamaged) => {
    const world = new World();
    const node = await world.upload(MANY);
    const before = world.packs();
    if (isDamaged) {
      // One that the trace needs nothing of: the layout can be made without it.
      const traced = new Set(TRACE.map((chunk) => node.map.at(chunk)?.pack));
      const spare = node.map.packs.find((pack) => !traced.has(pack)) ?? '';
      expect(before).toContain(`packs/${spare.slice(0, 2)}/${spare}`);
      await world.memory.delete(`packs/${spare.slice(0, 2)}/${spare}`);
    }
    const store = new MortalStore(world.memory);
    let relaid: ChunkMap | undefined;
    store.onChange = async (key) => {
      if (relaid !== undefined || !key.endsWith('/metadata')) return;
      relaid = (await world.relayout([{ layer: node.layer, trace: TRACE }])).layers[0]?.map;
    };
    const uploader = new LayerUploader({ store, clock: world.clock, packBytes: 3 * CHUNK_BYTES });
    const files = await layerFiles(base, `layer-${MANY.join('_')}`, MANY);
    const uploaded = await uploader.upload({ ...files, record: Buffer.from('{}') });
    const { map } = await openLayer(world.memory, node.layer);
    expect(relaid).toBeDefined();
    expect(chunkRanges(map, TRACE)).toHaveLength(1);
    expect(map.bytes.equals(uploaded.map.bytes)).toBe(true);
    if (!isDamaged) expect(map.bytes.equals(relaid?.bytes ?? Buffer.alloc(0))).toBe(true);
    expect(await world.isWhole(node)).toBe(true);
  });

  test('fills packs up to their bound, in the order of the trace', async () => {
    const world = new World();
    const node = await world.upload(Array.from({ length: 12 }, (_, index) => -1 - index));
    const trace = [9, 1, 7, 3, 5, 0];
    const relaid = await world.relayout([{ layer: node.layer, trace }], 4 * CHUNK_BYTES);
    expect(relaid.packs).toHaveLength(2);
    const { map } = await openLayer(world.memory, node.layer);
    expect(trace.map((index) => map.at(index)?.pack)).toEqual(
      [0, 0, 0, 0, 1, 1].map((pack) => relaid.packs[pack] ?? ''),
    );
    expect(await world.isWhole(node)).toBe(true);
  });

  test('changes nothing when it is done again', async () => {
    const world = new World();
    const node = await world.upload(MANY);
    const first = await world.relayout([{ layer: node.layer, trace: TRACE }]);
    const written = world.store.written.length;
    const again = await world.relayout([{ layer: node.layer, trace: TRACE }]);
    expect(again.packs).toEqual(first.packs);
    expect(again.layers[0]).toMatchObject({ reads: 1, readsBefore: 1 });
    expect(world.store.written.slice(written).filter((key) => !key.startsWith('indexes/'))).toEqual([]);
  });

  test('keeps every map good that a node may have, wherever it is killed', async () => {
    for (let changes = 1; ; changes++) {
      const world = new World();
      const node = await world.upload(FEW);
      world.store.changesLeft = changes;
      const outcome = await world.relayout([{ layer: node.layer, trace: FEW_TRACE }], 2 * CHUNK_BYTES).then(
        () => 'done',
        (error: unknown) => error,
      );
      expect(await world.isWhole(node)).toBe(true);
      expect(await world.isWhole(node, node.map)).toBe(true);
      world.store.changesLeft = Number.POSITIVE_INFINITY;
      const { layers } = await world.relayout([{ layer: node.layer, trace: FEW_TRACE }], 2 * CHUNK_BYTES);
      expect(layers[0]?.reads).toBeLessThan(chunkRanges(node.map, FEW_TRACE).length);
      expect(await world.isWhole(node)).toBe(true);
      if (outcome === 'done') return;
      expect(outcome).toBeInstanceOf(Killed);
    }
  });

  test('leaves to collections what only the old map names, after a while', async () => {
    const world = new World();
    const node = await world.upload([1, 2, 3, 4, 5, 6, 7, 8, 9]);
    const trace = [1, 0, 2, 8, 6, 7];
    await world.clock.advance(2 * DAY_MS);
    await world.relayout([{ layer: node.layer, trace }]);
    await world.clock.advance(2 * DAY_MS);
    expect(await world.collect([node.layer])).toMatchObject({ removedPacks: 0 });
    expect(await world.isWhole(node, node.map)).toBe(true);
    await world.clock.advance(SUPERSEDED_MS);
    expect(await world.collect([node.layer])).toMatchObject({ removedPacks: 2, removedLayers: 0 });
    expect(await world.isWhole(node)).toBe(true);
    await expect(world.isWhole(node, node.map)).rejects.toMatchObject({ code: 'layer_corrupt' });
    await world.clock.advance(2 * DAY_MS);
    expect(await world.collect([])).toMatchObject({ removedLayers: 1, keptPacks: 0, keptLayers: 0 });
    expect([...world.memory.objects.keys()]).toEqual([]);
  });

  test('runs beside collections', async () => {
    const world = new World();
    const node = await world.upload(MANY);
    await world.clock.advance(2 * DAY_MS);
    let collections = 0;
    world.store.onChange = async () => {
      collections++;
      await world.collect([node.layer]);
    };
    await world.relayout([{ layer: node.layer, trace: TRACE }], 2 * CHUNK_BYTES);
    await world.collect([node.layer]);
    expect(collections).toBeGreaterThan(5);
    expect(await world.isWhole(node)).toBe(true);
    expect(await world.isWhole(node, node.map)).toBe(true);
  });

  test('refuses traces of other layers and bytes that are wrong', async () => {
    const world = new World();
    const node = await world.upload(MANY);
    for (const trace of [[40], [-1], [0.5], [Number.NaN]]) {
      await expect(world.relayout([{ layer: node.layer, trace }])).rejects.toMatchObject({ code: 'invalid_argument' });
    }
    await expect(world.relayout([{ layer: sha256Name(Buffer.from('no')), trace: [0] }])).rejects.toMatchObject({
      code: 'layer_not_found',
    });
    const at = node.map.at(11);
    const key = `packs/${at?.pack.slice(0, 2)}/${at?.pack}`;
    world.memory.objects.get(key)?.bytes.fill(7, at?.offset, (at?.offset ?? 0) + 10);
    await expect(world.relayout([{ layer: node.layer, trace: TRACE }])).rejects.toMatchObject({
      code: 'layer_corrupt',
      details: { layer: node.layer, digest: at?.digest },
    });
    expect((await openLayer(world.memory, node.layer)).map.bytes.equals(node.map.bytes)).toBe(true);
  });

  test('keeps all bytes whatever the traces are (fuzz)', async () => {
    const trace = fc.array(fc.integer({ min: 0, max: 11 }), { maxLength: 20 });
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: -4, max: 4 }), { minLength: 12, maxLength: 12 }),
        trace,
        trace,
        async (chunks, first, second) => {
          const world = new World();
          const node = await world.upload(chunks);
          for (const order of [first, second]) {
            const { layers } = await world.relayout([{ layer: node.layer, trace: order }]);
            expect(layers[0]?.reads).toBeLessThanOrEqual(1);
            expect(await world.isWhole(node)).toBe(true);
          }
          expect(await world.isWhole(node, node.map)).toBe(true);
        },
      ),
      { numRuns: 15 },
    );
  });
});
