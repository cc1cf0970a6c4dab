import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManualClock } from '@dsec/kit';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { collect } from './collection.ts';
import { type Digest, sha256Name } from './digest.ts';
import { layerFiles, MortalStore } from './layer-files.fixture.ts';
import { CHUNK_BYTES } from './layer-format.ts';
import { openLayer, readChunk } from './layer-reader.ts';
import { LayerUploader } from './layer-uploader.ts';
import { MemoryStore } from './memory-store.fixture.ts';

const DAY_MS = 86_400_000;

let base: string;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-collect-'));
});
afterAll(() => rm(base, { recursive: true }));

/** A store with its clock; the files of layers are made once for all. */
class World {
  readonly clock = new ManualClock();
  readonly memory = new MemoryStore(this.clock);
  readonly store = new MortalStore(this.memory);
  #uploader = this.#newUploader();

  async upload(chunks: readonly number[]): Promise<Digest> {
    const files = await layerFiles(base, `layer-${chunks.join('_')}`, chunks);
    return (await this.#uploader.upload({ ...files, record: Buffer.from('{}') })).layer;
  }

  /** As after a kill. */
  restart(): void {
    this.store.changesLeft = Number.POSITIVE_INFINITY;
    this.#uploader = this.#newUploader();
  }

  collect(keepLayers: Iterable<Digest>, graceMs = DAY_MS): ReturnType<typeof collect> {
    return collect(this.store, { keepLayers, graceMs, clock: this.clock });
  }

  /** Reads every chunk: each is checked against its digest. */
  async isWhole(layer: Digest): Promise<boolean> {
    const stored = await openLayer(this.memory, layer);
    for (let index = 0; index < stored.map.chunks; index++) await readChunk(this.memory, stored, index);
    return this.memory.objects.has(`layers/${layer}/metadata`);
  }

  keys(prefix: string): readonly string[] {
    return [...this.memory.objects.keys()].filter((key) => key.startsWith(prefix));
  }

  #newUploader(): LayerUploader {
    return new LayerUploader({ store: this.store, clock: this.clock, packBytes: 2 * CHUNK_BYTES });
  }
}

describe('collect', () => {
  test('removes what is old and not needed, and nothing else', async () => {
    const world = new World();
    const kept = await world.upload([1, 2, 3, 4]);
    const dropped = await world.upload([3, 4, 5, 6, 7]);
    await world.clock.advance(2 * DAY_MS);
    const young = await world.upload([6, 8]);
    const packs = world.keys('packs/').length;
    const collected = await world.collect([kept]);
    expect(collected).toMatchObject({ removedLayers: 1, keptLayers: 2, removedPacks: 1, keptPacks: packs - 1 });
    expect(collected.freedBytes).toBeGreaterThan(0);
    expect(await world.isWhole(kept)).toBe(true);
    expect(await world.isWhole(young)).toBe(true);
    await expect(openLayer(world.memory, dropped)).rejects.toMatchObject({ code: 'layer_not_found' });
    expect(world.keys(`layers/${dropped}`)).toEqual([]);
    expect(
      world
        .keys('indexes/')
        .map((key) => key.slice(8))
        .toSorted(),
    ).toEqual(
      world
        .keys('packs/')
        .map((key) => key.slice(9))
        .toSorted(),
    );
    expect(await world.collect([kept])).toMatchObject({ removedLayers: 0, removedPacks: 0, freedBytes: 0 });
  });

  test('removes nothing that is young', async () => {
    const world = new World();
    await world.upload([1, 2, 3]);
    await world.clock.advance(DAY_MS);
    expect(await world.collect([])).toMatchObject({ removedLayers: 0, removedPacks: 0 });
    await world.clock.advance(1);
    expect(await world.collect([])).toMatchObject({ removedLayers: 1, removedPacks: 2 });
    expect(world.memory.objects.size).toBe(0);
  });

  test('keeps the old packs of a young layer, though nobody names it yet', async () => {
    const world = new World();
    await world.upload([1, 2]);
    // Too soon for the uploader to make the pack young again.
    await world.clock.advance(3_000_000);
    const young = await world.upload([1, 2, 3]);
    await world.clock.advance(DAY_MS - 1_000_000);
    expect(await world.collect([])).toMatchObject({ removedLayers: 1, keptLayers: 1 });
    expect(await world.isWhole(young)).toBe(true);
  });

  test('removes nothing when it cannot tell what a layer needs', async () => {
    const world = new World();
    const kept = await world.upload([1, 2]);
    await world.upload([3]);
    await world.clock.advance(2 * DAY_MS);
    const map = `layers/${kept}/chunks`;
    const good = world.memory.objects.get(map)?.bytes ?? Buffer.alloc(0);
    const before = world.memory.objects.size;
    const old = { modifiedMs: 0 };
    world.memory.objects.set(map, { ...old, bytes: good.subarray(1) });
    await expect(world.collect([kept])).rejects.toMatchObject({ code: 'layer_corrupt', details: { layer: kept } });
    await world.memory.delete(map);
    await expect(world.collect([kept])).rejects.toMatchObject({ code: 'layer_corrupt' });
    expect(world.memory.objects.size).toBe(before - 1);
    world.memory.objects.set(map, { ...old, bytes: good });
    expect(await world.collect([kept])).toMatchObject({ removedLayers: 1, removedPacks: 1 });
    expect(await world.isWhole(kept)).toBe(true);
  });

  test('keeps a pack that an upload has come to rely on after the packs were listed', async () => {
    const world = new World();
    await world.upload([1, 2, 3, 4]);
    await world.clock.advance(2 * DAY_MS);
    // Before the first removal, which is of the layer's record.
    let relying: Digest | undefined;
    let isUploading = false;
    world.store.onChange = async () => {
      if (isUploading) return;
      isUploading = true;
      relying = await world.upload([2, 3, 9]);
    };
    await world.collect([]);
    expect(relying).toBeDefined();
    expect(await world.isWhole(relying ?? sha256Name(Buffer.alloc(0)))).toBe(true);
  });

  test('leaves a pack that becomes young while it is removed', async () => {
    const world = new World();
    await world.upload([1, 2]);
    await world.clock.advance(2 * DAY_MS);
    const [pack = ''] = world.keys('packs/');
    // Its index is about to go.
    world.store.onChange = async (key) => {
      const object = world.memory.objects.get(pack);
      if (key.startsWith('indexes/') && object !== undefined) await world.memory.put(pack, object.bytes);
    };
    expect(await world.collect([])).toMatchObject({ removedLayers: 1, removedPacks: 0 });
    expect(world.keys('')).toEqual([pack]);
    await world.clock.advance(2 * DAY_MS);
    expect(await world.collect([])).toMatchObject({ removedPacks: 1 });
    expect(world.keys('')).toEqual([]);
  });

  test('knows no layer of the node that the store does not have, and leaves strange objects alone', async () => {
    const world = new World();
    for (const key of ['packs/x', 'layers/y/z', 'other/things']) await world.memory.put(key, Buffer.from(key));
    await world.clock.advance(2 * DAY_MS);
    const absent = sha256Name(Buffer.from('only on the node'));
    expect(await world.collect([absent])).toMatchObject({ removedLayers: 0, removedPacks: 0 });
    expect(world.memory.objects.size).toBe(3);
  });

  test('refuses a store with more than it can hold in memory', async () => {
    const world = new World();
    await world.upload([1, 2, 3, 4, 5, 6]);
    const options = { keepLayers: [], graceMs: 0, clock: world.clock, maxObjects: 2 };
    await expect(collect(world.store, options)).rejects.toMatchObject({ code: 'quota_exceeded' });
  });

  test('never takes what is needed or young, wherever uploads and collections are killed', async () => {
    const chunk = fc.nat(9);
    const step = fc.oneof(
      fc.record({ upload: fc.array(chunk, { minLength: 1, maxLength: 5 }), dies: fc.option(fc.nat(12)) }),
      fc.record({ drop: fc.nat(5) }),
      fc.record({ waitHours: fc.integer({ min: 1, max: 30 }) }),
      fc.record({ dies: fc.option(fc.nat(12)) }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 16 }), async (steps) => {
        const world = new World();
        const kept = new Set<Digest>();
        const attempt = async (dies: number | null, operation: () => Promise<void>): Promise<void> => {
          world.store.changesLeft = dies ?? Number.POSITIVE_INFINITY;
          await operation().catch((error: unknown) => {
            if (!(error instanceof Error) || error.message !== 'killed') throw error;
          });
          world.restart();
        };
        for (const taken of steps) {
          if ('upload' in taken) {
            await attempt(taken.dies, async () => void kept.add(await world.upload(taken.upload)));
          } else if ('drop' in taken) {
            const layer = [...kept][taken.drop];
            if (layer !== undefined) kept.delete(layer);
          } else if ('waitHours' in taken) {
            await world.clock.advance(taken.waitHours * 3_600_000);
          } else {
            const young = [...world.memory.objects].filter(
              ([, { modifiedMs }]) => modifiedMs >= world.clock.now() - DAY_MS,
            );
            await attempt(taken.dies, async () => void (await world.collect(kept)));
            for (const [key] of young) expect(world.memory.objects.has(key)).toBe(true);
          }
          for (const layer of kept) expect(await world.isWhole(layer)).toBe(true);
        }
        // In the end nothing stays but what is kept.
        await world.clock.advance(2 * DAY_MS);
        await world.collect(kept);
        for (const layer of kept) expect(await world.isWhole(layer)).toBe(true);
        const needed = new Set<string>();
        for (const layer of kept) for (const pack of (await openLayer(world.memory, layer)).map.packs) needed.add(pack);
        expect(new Set(world.keys('packs/').map((key) => key.slice(9)))).toEqual(needed);
        expect(new Set(world.keys('indexes/').map((key) => key.slice(8)))).toEqual(needed);
        expect(world.keys('layers/')).toHaveLength(3 * kept.size);
      }),
      { numRuns: 40 },
    );
  });
});
