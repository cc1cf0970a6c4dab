/**
 * Lays layers out anew: the chunks that an environment reads when it starts come first and in their order, one behind the other in packs of
 * their own, so that a start is a few long reads. The layers stay what they are, since where a chunk lies is no part of a layer's digest;
 * stored bytes are moved as they are.
 *
 * It may be killed at any moment, and run beside collections and readers:
 * - R1 packs and their indexes are there before a map names them;
 * - R2, R3 what nodes have of the map before stays good for a while (`replace-map.ts`).
 */
import { PlatformError } from '@dsec/contract';
import { throwIfAborted } from '@dsec/kit';
import { chunkRanges } from './chunk-ranges.ts';
import { decodeChunk } from './chunk-codec.ts';
import { type ChunkLocation, ChunkMap } from './chunk-map.ts';
import { type Digest, sha256Name } from './digest.ts';
import { MAX_PACK_BYTES } from './layer-format.ts';
import { indexKey, packKey } from './layer-keys.ts';
import { openLayer, readStored } from './layer-reader.ts';
import type { ObjectStore, StoreOptions } from './object-store.ts';
import { encodePackIndex } from './pack-index.ts';
import { inParallel } from './parallel.ts';
import { replaceMap } from './replace-map.ts';

/** Most chunks of all traces together: 64 GiB. */
export const MAX_TRACED_CHUNKS = 262_144;
/** Chunks that are read at once. */
const PARALLEL_READS = 8;

/** A layer and what is read of it, in this order. */
export interface TracedLayer {
  readonly layer: Digest;
  /** Indexes of chunks; what stands there twice counts once. */
  readonly trace: readonly number[];
}

export interface RelayoutOptions extends StoreOptions {
  readonly store: ObjectStore;
  /** The layers of one environment, in the order in which a start reads them. */
  readonly layers: readonly TracedLayer[];
  /** Most bytes of a new pack. Default and most: 64 MiB. */
  readonly packBytes?: number;
  /** Stored bytes that lie in their new place, of all that are traced. */
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void;
}

export interface RelaidLayer {
  readonly layer: Digest;
  readonly map: ChunkMap;
  /** Ranged reads that bring the traced chunks by the map of before, and by this one. */
  readonly readsBefore: number;
  readonly reads: number;
}

export interface Relaid {
  readonly layers: readonly RelaidLayer[];
  /** The new packs, in the order in which they are read. */
  readonly packs: readonly Digest[];
  /** Stored bytes in them. */
  readonly bytes: number;
}

/** A chunk that moves, and whose it is. */
interface Moving {
  readonly layer: Digest;
  readonly from: ChunkLocation;
}

type Place = Pick<ChunkLocation, 'digest' | 'pack' | 'offset' | 'storedBytes'>;

/**
 * Idempotent: the same traces make the same packs and maps, so one that was killed is run again.
 * @throws PlatformError `invalid_argument` (a trace that names chunks that the layer does not have), `layer_not_found`, `layer_corrupt`,
 * `blob_unavailable`, `blob_full`, `cancelled`
 */
export async function relayout(options: RelayoutOptions): Promise<Relaid> {
  const { store, signal } = options;
  const stored: { readonly map: ChunkMap; readonly layer: Digest; readonly trace: readonly number[] }[] = [];
  for (const { layer, trace } of options.layers) {
    const { map } = await openLayer(store, layer, { signal });
    stored.push({ layer, map, trace });
  }
  const moving = movingChunks(stored);
  const placed = new Map<Digest, Place>();
  const packs: Digest[] = [];
  const totalBytes = moving.reduce((sum, { from }) => sum + from.storedBytes, 0);
  let doneBytes = 0;
  for (const group of packGroups(moving, Math.min(options.packBytes ?? MAX_PACK_BYTES, MAX_PACK_BYTES))) {
    const places = await writePack(store, group, signal);
    for (const place of places) {
      placed.set(place.digest, place);
      doneBytes += place.storedBytes;
    }
    packs.push(...new Set(places.map(({ pack }) => pack)));
    options.onProgress?.(doneBytes, totalBytes);
  }
  const layers: RelaidLayer[] = [];
  for (const { layer, map, trace } of stored) {
    const next = movedMap(map, placed, layer);
    await replaceMap(store, { layer, before: map, next }, signal);
    const readsBefore = chunkRanges(map, trace).length;
    layers.push({ layer, map: next, readsBefore, reads: chunkRanges(next, trace).length });
  }
  return { layers, packs, bytes: totalBytes };
}

/** Each traced chunk once, in the order in which it is first read. */
function movingChunks(
  stored: readonly { readonly map: ChunkMap; readonly layer: Digest; readonly trace: readonly number[] }[],
): readonly Moving[] {
  const moving = new Map<Digest, Moving>();
  for (const { layer, map, trace } of stored) {
    for (const index of trace) {
      if (!Number.isInteger(index) || index < 0 || index >= map.chunks) {
        throw invalid(`layer ${layer} has no chunk ${index}`);
      }
      const from = map.at(index);
      if (from !== undefined && !moving.has(from.digest)) moving.set(from.digest, { layer, from });
    }
  }
  if (moving.size > MAX_TRACED_CHUNKS) throw invalid(`the traces name more than ${MAX_TRACED_CHUNKS} chunks`);
  return [...moving.values()];
}

/** Which chunks share a pack: as many as it holds. */
function packGroups(moving: readonly Moving[], packBytes: number): readonly (readonly Moving[])[] {
  const groups: Moving[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const chunk of moving) {
    bytes += chunk.from.storedBytes;
    const last = groups.at(-1);
    if (last !== undefined && bytes <= packBytes) last.push(chunk);
    else {
      groups.push([chunk]);
      bytes = chunk.from.storedBytes;
    }
  }
  return groups;
}

/** R1. Nothing wrong gets into a new pack: each chunk is checked on its way. */
async function writePack(
  store: ObjectStore,
  group: readonly Moving[],
  signal: AbortSignal | undefined,
): Promise<readonly Place[]> {
  const parts: Buffer[] = [];
  await inParallel(group.entries(), PARALLEL_READS, async ([at, { layer, from }]) => {
    throwIfAborted(signal);
    const bytes = await readStored(store, layer, from, { signal });
    await decodeChunk(bytes, from, layer);
    parts[at] = bytes;
  });
  const bytes = Buffer.concat(parts);
  const pack = sha256Name(bytes);
  let offset = 0;
  const entries = group.map(({ from }) => {
    const { digest, storedBytes, plainBytes } = from;
    const entry = { digest, offset, storedBytes, plainBytes };
    offset += storedBytes;
    return entry;
  });
  await store.put(packKey(pack), bytes, { ifAbsent: true, signal });
  // Always, also over one that is there: it makes a pack young that a collection may be about to remove.
  await store.put(indexKey(pack), encodePackIndex(entries), { signal });
  return entries.map(({ digest, offset: at, storedBytes }) => ({ digest, pack, offset: at, storedBytes }));
}

function movedMap(map: ChunkMap, placed: ReadonlyMap<Digest, Place>, layer: Digest): ChunkMap {
  const entries = Array.from({ length: map.chunks }, (_, index) => {
    const at = map.at(index);
    return at === undefined ? undefined : (placed.get(at.digest) ?? at);
  });
  return ChunkMap.encode(map.dataBytes, entries, layer);
}

const invalid = (message: string): PlatformError =>
  new PlatformError('invalid_argument', message, { details: { field: 'trace' } });
