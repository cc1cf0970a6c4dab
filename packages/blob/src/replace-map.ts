/**
 * Another chunk map takes the place of that of a layer. It may be killed at any moment, and run beside collections and readers:
 * - R2 a map is kept under a name of its own before another takes its place, and with it, for a while, every pack that it names: nodes that
 *   have it go on reading (`supersededMs` of collections);
 * - R3 before that, the indexes of packs that only the old map names are put anew, so that a collection that has not seen the old map under
 *   its new name takes none of them.
 */
import type { ChunkMap } from './chunk-map.ts';
import { type Digest, sha256Name } from './digest.ts';
import { chunkMapKey, indexKey, supersededMapKey } from './layer-keys.ts';
import { type ObjectStore, readObject } from './object-store.ts';
import { MAX_PACK_INDEX_BYTES } from './pack-index.ts';
import { inParallel } from './parallel.ts';

/** Indexes that are put at once. */
const PARALLEL_PUTS = 8;

export interface MapReplacement {
  readonly layer: Digest;
  /** What the store has; undefined: nothing that is good for anything. */
  readonly before: ChunkMap | undefined;
  /** Its packs and their indexes are there. */
  readonly next: ChunkMap;
}

/** Writes nothing when both are the same. @throws PlatformError `blob_unavailable`, `blob_full`, `cancelled` */
export async function replaceMap(
  store: ObjectStore,
  { layer, before, next }: MapReplacement,
  signal: AbortSignal | undefined,
): Promise<void> {
  if (before !== undefined) {
    if (next.bytes.equals(before.bytes)) return;
    const named = new Set(next.packs);
    const left = before.packs.filter((pack) => !named.has(pack));
    await inParallel(left, PARALLEL_PUTS, async (pack) => {
      const index = await readObject(store, indexKey(pack), { signal, maxBytes: MAX_PACK_INDEX_BYTES });
      if (index !== undefined) await store.put(indexKey(pack), index, { signal });
    });
    await store.put(supersededMapKey(layer, sha256Name(before.bytes)), before.bytes, { signal });
  }
  await store.put(chunkMapKey(layer), next.bytes, { signal });
}
