/** The index of a pack: which chunks it holds, so that they are not sent again (`docs/layers.md`). */
import { PlatformError } from '@dsec/contract';
import type { ChunkLocation } from './chunk-map.ts';
import { DIGEST_BYTES, type Digest, digestName } from './digest.ts';
import { CHUNK_BYTES, MAX_PACK_BYTES } from './layer-format.ts';

const MAGIC = Buffer.from('DSECPIDX');
const VERSION = 1;
const HEADER_BYTES = 16;
const ENTRY_BYTES = 48;

/** Most chunks of a pack: a block is the least that a chunk has, and it may be compressed to a few bytes. */
const MAX_PACK_CHUNKS = 65_536;

/** Longest index. */
export const MAX_PACK_INDEX_BYTES = HEADER_BYTES + MAX_PACK_CHUNKS * ENTRY_BYTES;

/** @throws PlatformError `internal` when there are more entries than an index may have */
export function encodePackIndex(entries: readonly Omit<ChunkLocation, 'pack'>[]): Buffer {
  if (entries.length > MAX_PACK_CHUNKS) throw new PlatformError('internal', 'a pack has too many chunks');
  const sorted = entries.toSorted((a, b) => (a.digest < b.digest ? -1 : 1));
  const bytes = Buffer.alloc(HEADER_BYTES + sorted.length * ENTRY_BYTES);
  MAGIC.copy(bytes);
  bytes.writeUInt32LE(VERSION, 8);
  bytes.writeUInt32LE(sorted.length, 12);
  for (const [index, entry] of sorted.entries()) {
    const at = HEADER_BYTES + index * ENTRY_BYTES;
    bytes.write(entry.digest, at, 'hex');
    bytes.writeBigUInt64LE(BigInt(entry.offset), at + 32);
    bytes.writeUInt32LE(entry.storedBytes, at + 40);
    bytes.writeUInt32LE(entry.plainBytes, at + 44);
  }
  return bytes;
}

/** What a pack holds, sorted by digest; undefined when these bytes are no index: such a pack is as good as none. */
export function decodePackIndex(bytes: Buffer, pack: Digest): readonly ChunkLocation[] | undefined {
  if (bytes.length < HEADER_BYTES || !bytes.subarray(0, 8).equals(MAGIC)) return undefined;
  const count = bytes.readUInt32LE(12);
  if (bytes.readUInt32LE(8) !== VERSION || count > MAX_PACK_CHUNKS) return undefined;
  if (bytes.length !== HEADER_BYTES + count * ENTRY_BYTES) return undefined;
  const entries: ChunkLocation[] = [];
  for (let at = HEADER_BYTES; at < bytes.length; at += ENTRY_BYTES) {
    const digest = digestName(bytes.subarray(at, at + DIGEST_BYTES));
    const offset = Number(bytes.readBigUInt64LE(at + 32));
    const storedBytes = bytes.readUInt32LE(at + 40);
    const plainBytes = bytes.readUInt32LE(at + 44);
    const before = entries.at(-1);
    const isOrdered = before === undefined || before.digest < digest;
    const isSized = storedBytes > 0 && storedBytes <= plainBytes && plainBytes <= CHUNK_BYTES;
    if (!isOrdered || !isSized || offset + storedBytes > MAX_PACK_BYTES) return undefined;
    entries.push({ digest, pack, offset, storedBytes, plainBytes });
  }
  return entries;
}
