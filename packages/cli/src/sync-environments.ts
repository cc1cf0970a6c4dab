/** Brings environments from one blob store into another: their layers, then their names. */
import { collect, LayerCopier, readObject, StoredEnvironments, type ObjectStore } from '@dsec/blob';
import { PlatformError } from '@dsec/contract';
import type { Environment } from '@dsec/libdsec';
import type { Context } from './context.ts';
import { digestOf } from './layers.ts';
import { size } from './table.ts';
import type { Progress } from './terminal/progress.ts';

/** What is written here and looked for there, to see whether two stores are one. */
const PROBE_KEY = 'same-store-probe';
const PROBE_CHARS = 32;

export interface SyncOptions {
  readonly from: ObjectStore;
  readonly to: ObjectStore;
  readonly environments: readonly Environment[];
  /** `sha256:` digests; those of the environments are among them. */
  readonly layers: readonly string[];
  /** Remove from `to` what is not among these, but for objects that are younger than this. Default: remove nothing. */
  readonly prune?: { readonly graceMs: number } | undefined;
}

export interface Synced {
  readonly environments: number;
  readonly layers: number;
  /** Layers that were not there. */
  readonly newLayers: number;
  readonly sentBytes: number;
  readonly pruned: {
    readonly names: number;
    readonly layers: number;
    readonly packs: number;
    readonly bytes: number;
  } | null;
}

/**
 * Idempotent; one that was interrupted goes on where it was. A name is written when all of its layers are there.
 * @throws PlatformError `invalid_argument` when all of a store would be pruned, or the first store itself; `layer_not_found` and `layer_corrupt` (of the first store), `blob_unavailable`, `blob_full`; each names the layer
 */
export async function syncEnvironments(context: Context, options: SyncOptions, progress: Progress): Promise<Synced> {
  const { from, to, environments, layers, prune } = options;
  const signal = context.interrupted;
  if (prune !== undefined) await checkPrune(context, options);
  const copier = new LayerCopier({ from, to });
  const digests = layers.map(digestOf);
  let [newLayers, sentBytes] = [0, 0];
  for (const [index, layer] of digests.entries()) {
    progress.step(`copying layer ${index + 1} of ${digests.length}`);
    const copied = await copier.copy(layer, { signal });
    if (copied.isNew) newLayers += 1;
    sentBytes += copied.sentBytes;
    progress.detail(`${size(sentBytes)} sent`);
  }
  const stored = new StoredEnvironments(to, context.clock);
  progress.step('naming the environments');
  for (const { name, kind, entrypoint, description, image } of environments) {
    await stored.put({ name, image, kind, entrypoint, ...(description === '' ? {} : { description }) }, { signal });
  }
  const synced = { environments: environments.length, layers: layers.length, newLayers, sentBytes };
  if (prune === undefined) return { ...synced, pruned: null };
  progress.step('removing what is not among them');
  const names = new Set(environments.map(({ name }) => name));
  const kept = new Set(layers);
  const removedNames = await stored.retain(
    ({ name, image }) => names.has(name) && image.layers.every((layer) => kept.has(layer)),
    { signal },
  );
  const { removedLayers, removedPacks, freedBytes } = await collect(to, {
    keepLayers: digests,
    graceMs: prune.graceMs,
    clock: context.clock,
    signal,
  });
  return {
    ...synced,
    pruned: { names: removedNames, layers: removedLayers, packs: removedPacks, bytes: freedBytes },
  };
}

/** What is pruned by mistake is lost: neither the only copy nor everything may go. */
async function checkPrune(context: Context, { from, to, environments }: SyncOptions): Promise<void> {
  const refused = (reason: string): PlatformError =>
    new PlatformError('invalid_argument', `nothing is pruned: ${reason}`, { details: { field: '--prune', reason } });
  if (environments.length === 0) throw refused('there is no environment to keep');
  const signal = context.interrupted;
  const mark = Buffer.from(context.random.base36(PROBE_CHARS));
  await to.put(PROBE_KEY, mark, { signal });
  let seen: Buffer | undefined;
  try {
    seen = await readObject(from, PROBE_KEY, { signal, maxBytes: PROBE_CHARS });
  } finally {
    // Also when the other store is away or the user has given up.
    await to.delete(PROBE_KEY);
  }
  if (seen?.equals(mark) === true) throw refused('both stores are the same');
}
