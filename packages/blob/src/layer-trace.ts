/**
 * What is read of a layer, as the store keeps it for other nodes: `layers/<hex>/trace`, in the form that layerd keeps on a node
 * (`docs/layers.md`). It is a hint: one that is not there, or damaged, is an empty one.
 */
import type { ChunkMap } from './chunk-map.ts';
import type { Digest } from './digest.ts';
import { traceKey } from './layer-keys.ts';
import { type ObjectStore, readObject, type StoreOptions } from './object-store.ts';

/** Chunks that one trace names. */
export const MAX_TRACE_CHUNKS = 65_536;
const MAGIC = Buffer.from('DSECTRAC', 'latin1');
const VERSION = 1;
const HEADER_BYTES = 16;
const WORD_BYTES = 4;

/** @throws PlatformError `blob_unavailable`, `blob_full` */
export async function putTrace(
  store: ObjectStore,
  layer: Digest,
  traced: { readonly map: ChunkMap; readonly trace: readonly number[] },
  options: StoreOptions = {},
): Promise<void> {
  const { map, trace } = traced;
  const chunks = [...new Set(trace)].filter((chunk) => chunk < map.chunks).slice(0, MAX_TRACE_CHUNKS);
  const bytes = Buffer.alloc(HEADER_BYTES + chunks.length * WORD_BYTES);
  MAGIC.copy(bytes);
  bytes.writeUInt32LE(VERSION, 8);
  bytes.writeUInt32LE(map.chunks, 12);
  chunks.forEach((chunk, index) => bytes.writeUInt32LE(chunk, HEADER_BYTES + index * WORD_BYTES));
  await store.put(traceKey(layer), bytes, options);
}

/** Indexes of chunks in the order of their first touch, each once. @throws PlatformError `blob_unavailable` */
export async function readTrace(
  store: ObjectStore,
  layer: Digest,
  map: ChunkMap,
  options: StoreOptions = {},
): Promise<readonly number[]> {
  const maxBytes = HEADER_BYTES + MAX_TRACE_CHUNKS * WORD_BYTES;
  const bytes = await readObject(store, traceKey(layer), { ...options, maxBytes });
  return bytes === undefined || bytes.length > maxBytes ? [] : decodeTrace(bytes, map.chunks);
}

/** @internal For tests. */
export function decodeTrace(bytes: Buffer, layerChunks: number): readonly number[] {
  const isOurs =
    bytes.length >= HEADER_BYTES &&
    bytes.subarray(0, MAGIC.length).equals(MAGIC) &&
    bytes.readUInt32LE(8) === VERSION &&
    bytes.readUInt32LE(12) === layerChunks;
  if (!isOurs) return [];
  const chunks = new Set<number>();
  for (let at = HEADER_BYTES; at + WORD_BYTES <= bytes.length; at += WORD_BYTES) {
    const chunk = bytes.readUInt32LE(at);
    if (chunk < layerChunks) chunks.add(chunk);
  }
  return [...chunks];
}
