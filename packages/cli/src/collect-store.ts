/** Removes from a blob store what nobody needs any more. */
import { collect, StoredEnvironments, type ObjectStore } from '@dsec/blob';
import { limits } from '@dsec/contract';
import type { DSecClient } from '@dsec/libdsec';
import type { Context } from './context.ts';
import { digestOf, layersOnDemand } from './layers.ts';
import type { DataDirectory } from './server/data-directory.ts';
import type { Progress } from './terminal/progress.ts';

export interface CollectStoreOptions {
  readonly store: ObjectStore;
  readonly data: DataDirectory;
  /** Versions of each name that stay however old they are; undefined: all. */
  readonly versions: number | undefined;
  /** What is younger stays, and so does a version that a newer one took the place of later than this ago. */
  readonly graceMs: number;
}

export interface CollectedStore {
  readonly removedVersions: number;
  readonly removedLayers: number;
  readonly removedPacks: number;
  readonly freedBytes: number;
  readonly keptLayers: number;
  readonly keptPacks: number;
}

/**
 * Kept are the layers of all environments that the store has in some version, of those that this server names, and those that this machine loads on
 * demand, on which its sandboxes stand. Other machines have theirs by the names of the store, so that none of theirs goes before its version does.
 * @throws PlatformError `environment_broken` and `layer_corrupt` when it cannot be told what is needed (then nothing is removed), `blob_unavailable`
 */
export async function collectStore(
  context: Context,
  client: DSecClient,
  options: CollectStoreOptions,
  progress: Progress,
): Promise<CollectedStore> {
  const { store, data, versions, graceMs } = options;
  const { clock, interrupted: signal } = context;
  const stored = new StoredEnvironments(store, clock);
  progress.step('looking for what is needed');
  // Before any version goes: one that is damaged stops all.
  await stored.layers({ signal });
  const removedVersions = versions === undefined ? 0 : await stored.expire(versions, clock.now() - graceMs, { signal });
  const needed = new Set(await stored.layers({ signal }));
  for await (const { image } of client.environments.list({ pageSize: limits.pageSize.maximum, signal })) {
    for (const layer of image.layers) needed.add(layer);
  }
  for (const layer of await layersOnDemand(data)) needed.add(layer);
  progress.step('removing what is not');
  const keepLayers = [...needed].map(digestOf);
  return { removedVersions, ...(await collect(store, { keepLayers, graceMs, clock, signal })) };
}
