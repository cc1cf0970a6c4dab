/** Removes from this machine layers that nobody needs, and what is kept for their sake. */
import { MAX_RELEASED_LAYERS } from '@dsec/contract';
import {
  heldLayers,
  layerBytes,
  LayerHolds,
  layersOnDisk,
  removeLayers,
  removeStaleNotes,
  type LayerOnDisk,
} from '@dsec/environment';
import type { DSecClient } from '@dsec/libdsec';
import type { Context } from './context.ts';
import type { DataDirectory } from './server/data-directory.ts';

/** A note that a step changed nothing has no layer that would take it along: it goes when no build has used it for so long. */
const NOTE_UNUSED_MS = 30 * 86_400_000;
/** Of letting go of a batch of layers: blanks that stand on them end first. */
const RELEASE_TIMEOUT_MS = 300_000;

export interface PruneRequest {
  /** Those to look at (`sha256:...`). @default all that this machine has */
  readonly layers?: readonly string[] | undefined;
  /** Only say what would go. @default false */
  readonly dryRun?: boolean | undefined;
}

export interface Pruned {
  readonly dryRun: boolean;
  /** What each took on the disk. */
  readonly layers: readonly LayerOnDisk[];
  readonly sets: readonly { readonly set: string; readonly bytes: number }[];
  readonly notes: number;
  /** Of all of them. */
  readonly bytes: number;
}

/**
 * Those stay that an environment names, that a sandbox stands on or is being made of, that a pack needs, and that a build holds.
 * @param client of the server of this data directory
 * @throws PlatformError `unavailable`, `cancelled`; what is gone by then is whole gone, and the rest is whole
 */
export async function pruneLayers(
  context: Context,
  client: DSecClient,
  { data, layers, dryRun = false }: PruneRequest & { readonly data: DataDirectory },
): Promise<Pruned> {
  const { random, interrupted: signal } = context;
  const sets = new Map<string, number>();
  const release = async (asked: readonly string[]): Promise<ReadonlySet<string>> => {
    const options = { dryRun, signal, timeoutMs: RELEASE_TIMEOUT_MS };
    const released = await client.environments.releaseLayers(asked, options);
    for (const { set, sizeBytes } of released.sets) sets.set(set, sizeBytes);
    return new Set(released.layers.filter(({ heldBy }) => heldBy === null).map(({ layer }) => layer));
  };
  // Before anybody is asked: what is made from here on is looked at by none.
  const present = await layersOnDisk(data.layers);
  const asked = layers === undefined ? present : present.filter((layer) => layers.includes(layer));
  const gone = dryRun
    ? await unneeded(data, asked, release)
    : await removeLayers({ layersDirectory: data.layers, holdsDirectory: data.holds, random, release, signal }, asked);
  const left = new Set(dryRun ? present : await layersOnDisk(data.layers));
  if (dryRun) for (const { layer } of gone) left.delete(layer);
  const notes = await removeStaleNotes(data.notes, {
    isThere: (layer) => left.has(layer),
    unusedSinceMs: context.clock.now() - NOTE_UNUSED_MS,
    isDryRun: dryRun,
  });
  const goneSets = [...sets].map(([set, bytes]) => ({ set, bytes }));
  const bytes = [...gone, ...goneSets].reduce((sum, each) => sum + each.bytes, notes.bytes);
  return { dryRun, layers: gone, sets: goneSets, notes: notes.notes, bytes };
}

/** Keeps layers that a build here relies on, until they have a name. */
export const openHolds = ({ clock, random, interrupted }: Context, data: DataDirectory): Promise<LayerHolds> =>
  LayerHolds.open({ directory: data.holds, clock, random, signal: interrupted });

async function unneeded(
  data: DataDirectory,
  layers: readonly string[],
  release: (layers: readonly string[]) => Promise<ReadonlySet<string>>,
): Promise<readonly LayerOnDisk[]> {
  const held = await heldLayers(data.holds);
  const asked = layers.filter((layer) => !held.has(layer));
  const free: LayerOnDisk[] = [];
  for (let at = 0; at < asked.length; at += MAX_RELEASED_LAYERS) {
    for (const layer of await release(asked.slice(at, at + MAX_RELEASED_LAYERS))) {
      free.push({ layer, bytes: await layerBytes(data.layers, layer) });
    }
  }
  return free;
}
