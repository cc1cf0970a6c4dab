import { mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { causeOf, type LayerHolder } from '@dsec/contract';
import { buildLayer, NO_CONFIG } from '@dsec/environment';
import { defaultMetadata, newDirectory } from '@dsec/erofs';
import { ManualClock, SystemClock, SystemRandom } from '@dsec/kit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { aRecord } from '../tests/records.ts';
import { releaseLayers, type LayerReleaseParts } from './layer-release.ts';
import { NeededByPacks } from './needed-by-packs.ts';
import { Registry } from './registry.ts';
import { Sandbox, stateOfRecord } from './sandbox.ts';

const layer = (digit: string): string => `sha256:${digit.repeat(64)}`;

class World implements LayerReleaseParts {
  readonly registry = new Registry();
  readonly lifecycle = { parts: { registry: this.registry } };
  readonly needed = new NeededByPacks(new ManualClock());
  readonly forgotten: string[] = [];
  readonly packs = { needed: this.needed, forget: (name: string) => void this.forgotten.push(name) };
  readonly released: string[] = [];
  readonly standing = new Set<string>();
  readonly layersDirectory: string;
  readonly backend = {
    setsOn: (name: string) => [{ set: layer('f'), sizeBytes: 7 }].filter(() => name !== layer('9')),
    releaseLayer: (name: string) => {
      this.released.push(name);
      return Promise.resolve(!this.standing.has(name));
    },
  };

  constructor(layersDirectory: string) {
    this.layersDirectory = layersDirectory;
  }

  add(id: string, layers: readonly string[], more: Parameters<typeof aRecord>[1] = {}): void {
    const record = aRecord(id, { layers: [...layers], ...more });
    this.registry.add(new Sandbox(record, stateOfRecord(record)));
  }

  async holders(layers: readonly string[], dryRun = false): Promise<readonly (LayerHolder | null)[]> {
    const { signal } = new AbortController();
    return (await releaseLayers(this, { layers, dryRun }, signal)).layers.map(({ heldBy }) => heldBy);
  }
}

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-release-'));
});
afterEach(() => rm(directory, { recursive: true }));

/** A layer of nothing, made by a pack or otherwise. */
async function made(kind: 'changes' | 'image', mode: number): Promise<string> {
  const context = { layersDirectory: directory, clock: new SystemClock(), random: new SystemRandom() };
  const { layers } = await buildLayer(context, () => {
    const root = newDirectory(defaultMetadata(mode));
    return Promise.resolve({ root, config: NO_CONFIG, architecture: 'amd64', source: { kind, name: '' } });
  });
  return layers[0] ?? '';
}

test('what sandboxes stand on stays, from before they are made until nothing of them is left', async () => {
  const world = new World(directory);
  world.add('sa', [layer('1'), layer('2')], { phase: 'creating' });
  world.add('sb', [layer('3')], { phase: 'running' });
  world.add('sc', [layer('4')], { phase: 'stopping', cause: causeOf('stopped', '') });
  world.add('sd', [layer('5')], { phase: 'stopped', cause: causeOf('stopped', ''), endedAtMs: 1 });
  const asked = ['1', '2', '3', '4', '5', '6'].map(layer);
  expect(await world.holders(asked)).toEqual(['sandbox', 'sandbox', 'sandbox', 'sandbox', null, null]);
  expect(world.released).toEqual([layer('5'), layer('6')]);
  // A repeat of a pack that made one of them must not name what is gone.
  expect(world.forgotten).toEqual([layer('5'), layer('6')]);
});

test('what a pack needs stays, and what one that runs may find made', async () => {
  const world = new World(directory);
  const [packed, pulled] = [await made('changes', 0o755), await made('image', 0o700)];
  expect(await world.holders([packed, pulled], true)).toEqual([null, null]);
  await rename(join(directory, pulled.slice('sha256:'.length)), join(directory, 'aside'));
  {
    using _pack = world.needed.running([layer('1')]);
    // Of those that are not there, one was seen before to be of no pack.
    expect(await world.holders([layer('1'), packed, pulled, layer('2')])).toEqual(['pack', 'pack', null, 'pack']);
    world.needed.answered([layer('2')]);
  }
  expect(await world.holders([layer('1'), packed, layer('2')])).toEqual([null, null, 'pack']);
});

test('says which sets go along, changes nothing in a dry run, and believes the backend', async () => {
  const world = new World(directory);
  const { signal } = new AbortController();
  const layers = [layer('1'), layer('2'), layer('9')];
  const free = layers.map((name) => ({ layer: name, heldBy: null }));
  const sets = [{ set: layer('f'), sizeBytes: 7 }];
  expect(await releaseLayers(world, { layers, dryRun: true }, signal)).toEqual({ layers: free, sets });
  expect([world.released, world.forgotten]).toEqual([[], []]);
  world.standing.add(layer('1'));
  world.standing.add(layer('2'));
  expect(await releaseLayers(world, { layers }, signal)).toEqual({
    layers: [
      { layer: layer('1'), heldBy: 'sandbox' },
      { layer: layer('2'), heldBy: 'sandbox' },
      { layer: layer('9'), heldBy: null },
    ],
    sets: [],
  });
  await expect(releaseLayers(world, { layers }, AbortSignal.abort())).rejects.toMatchObject({ code: 'cancelled' });
});
