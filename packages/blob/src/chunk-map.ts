/**
 * The chunk map: where each chunk of a layer's `data` comes from (`docs/layers.md`).
 *
 * Decoding is strict, since a map comes from a store that others write to:
 * - M1 sizes and counts agree with each other and with the length of the map, and nothing follows the last entry;
 * - M2 a hole names neither pack nor bytes; every other chunk lies inside a pack of the map;
 * - M3 a chunk is never stored longer than it is, and no two different chunks share bytes of a pack;
 * - M4 every pack is named once and used.
 */
import { DIGEST_BYTES, type Digest, digestName } from './digest.ts';
import {
  BLOCK_BYTES,
  CHUNK_BYTES,
  chunkBytes,
  chunkCount,
  corrupt,
  layerDigest,
  MAX_LAYER_CHUNKS,
  MAX_PACK_BYTES,
} from './layer-format.ts';

const MAGIC = Buffer.from('DSECCHNK');
const VERSION = 1;
const HEADER_BYTES = 32;
const ENTRY_BYTES = 48;

/** Longest chunk map. */
export const MAX_CHUNK_MAP_BYTES = HEADER_BYTES + MAX_LAYER_CHUNKS * (DIGEST_BYTES + ENTRY_BYTES);

/** A chunk in a pack. */
export interface ChunkLocation {
  readonly digest: Digest;
  readonly pack: Digest;
  /** Of the stored bytes in the pack. */
  readonly offset: number;
  /** Equal to `plainBytes`: stored as it is; less: one zstd frame. */
  readonly storedBytes: number;
  readonly plainBytes: number;
}

/** What `encode` takes: undefined is a hole. */
export type ChunkEntry = Omit<ChunkLocation, 'plainBytes'> | undefined;

const ZERO_DIGEST = Buffer.alloc(DIGEST_BYTES);

/** A checked chunk map; the entries stay encoded, since a layer may have a million of them. */
export class ChunkMap {
  readonly dataBytes: number;
  readonly chunks: number;
  readonly packs: readonly Digest[];
  /** As it is stored. */
  readonly bytes: Buffer;
  readonly #entriesAt: number;

  private constructor(bytes: Buffer, dataBytes: number, packs: readonly Digest[]) {
    this.bytes = bytes;
    this.dataBytes = dataBytes;
    this.chunks = chunkCount(dataBytes);
    this.packs = packs;
    this.#entriesAt = HEADER_BYTES + packs.length * DIGEST_BYTES;
  }

  /** @throws PlatformError `layer_corrupt` */
  static decode(bytes: Buffer, layer: string): ChunkMap {
    const fail = (reason: string): never => {
      throw corrupt({ layer, digest: layer }, `chunk map: ${reason}`);
    };
    if (bytes.length < HEADER_BYTES) fail('shorter than its header');
    if (!bytes.subarray(0, 8).equals(MAGIC)) fail('not a chunk map');
    const version = bytes.readUInt32LE(8);
    if (version !== VERSION) fail(`version ${version} is unknown`);
    if (bytes.readUInt32LE(12) !== CHUNK_BYTES) fail('chunk size is unknown');
    const dataBytes = Number(bytes.readBigUInt64LE(16));
    const chunks = bytes.readUInt32LE(24);
    const packCount = bytes.readUInt32LE(28);
    if (dataBytes % BLOCK_BYTES !== 0) fail('data are not whole blocks');
    if (chunks > MAX_LAYER_CHUNKS || chunks !== chunkCount(dataBytes)) fail('number of chunks is wrong');
    if (packCount > chunks) fail('more packs than chunks');
    if (bytes.length !== HEADER_BYTES + packCount * DIGEST_BYTES + chunks * ENTRY_BYTES) fail('length is wrong');
    const packs: Digest[] = [];
    for (let pack = 0; pack < packCount; pack++) {
      const at = HEADER_BYTES + pack * DIGEST_BYTES;
      packs.push(digestName(bytes.subarray(at, at + DIGEST_BYTES)));
    }
    if (new Set(packs).size !== packs.length) fail('a pack is named twice');
    const map = new ChunkMap(bytes, dataBytes, packs);
    map.#check(fail);
    return map;
  }

  /** The map of these chunks; packs are numbered in the order of their first use. */
  static encode(dataBytes: number, entries: readonly ChunkEntry[], layer: string): ChunkMap {
    const packs = new Map<Digest, number>();
    for (const entry of entries) if (entry !== undefined && !packs.has(entry.pack)) packs.set(entry.pack, packs.size);
    const bytes = Buffer.alloc(HEADER_BYTES + packs.size * DIGEST_BYTES + entries.length * ENTRY_BYTES);
    MAGIC.copy(bytes);
    bytes.writeUInt32LE(VERSION, 8);
    bytes.writeUInt32LE(CHUNK_BYTES, 12);
    bytes.writeBigUInt64LE(BigInt(dataBytes), 16);
    bytes.writeUInt32LE(entries.length, 24);
    bytes.writeUInt32LE(packs.size, 28);
    let at = HEADER_BYTES;
    for (const pack of packs.keys()) at += bytes.write(pack, at, 'hex');
    for (const entry of entries) {
      if (entry !== undefined) {
        bytes.write(entry.digest, at, 'hex');
        bytes.writeUInt32LE(packs.get(entry.pack) ?? 0, at + 32);
        bytes.writeBigUInt64LE(BigInt(entry.offset), at + 36);
        bytes.writeUInt32LE(entry.storedBytes, at + 44);
      }
      at += ENTRY_BYTES;
    }
    return ChunkMap.decode(bytes, layer);
  }

  /** Where a chunk is; undefined for a hole. `index` is below `chunks`. */
  at(index: number): ChunkLocation | undefined {
    const at = this.#entriesAt + index * ENTRY_BYTES;
    if (this.#isHole(at)) return undefined;
    const pack = this.packs[this.bytes.readUInt32LE(at + 32)];
    if (pack === undefined) return undefined;
    return {
      digest: digestName(this.bytes.subarray(at, at + DIGEST_BYTES)),
      pack,
      offset: Number(this.bytes.readBigUInt64LE(at + 36)),
      storedBytes: this.bytes.readUInt32LE(at + 44),
      plainBytes: chunkBytes(this.dataBytes, index),
    };
  }

  /** The digest of the layer that has this map and the metadata of this digest. */
  layerDigest(metadata: Digest): Digest {
    const digests = Buffer.alloc(this.chunks * DIGEST_BYTES);
    for (let index = 0; index < this.chunks; index++) {
      const at = this.#entriesAt + index * ENTRY_BYTES;
      this.bytes.copy(digests, index * DIGEST_BYTES, at, at + DIGEST_BYTES);
    }
    return layerDigest(metadata, digests);
  }

  #isHole(at: number): boolean {
    return this.bytes.subarray(at, at + DIGEST_BYTES).equals(ZERO_DIGEST);
  }

  #check(fail: (reason: string) => never): void {
    const stored: number[] = [];
    const isUsed = new Uint8Array(this.packs.length);
    for (let index = 0; index < this.chunks; index++) {
      const at = this.#entriesAt + index * ENTRY_BYTES;
      const pack = this.bytes.readUInt32LE(at + 32);
      const offset = this.bytes.readBigUInt64LE(at + 36);
      const storedBytes = this.bytes.readUInt32LE(at + 44);
      if (this.#isHole(at)) {
        if (pack !== 0 || offset !== 0n || storedBytes !== 0) fail(`hole ${index} names bytes`);
        continue;
      }
      if (pack >= this.packs.length) fail(`chunk ${index} is in no pack of the map`);
      if (storedBytes === 0 || storedBytes > chunkBytes(this.dataBytes, index)) {
        fail(`chunk ${index} is stored in a wrong length`);
      }
      if (offset + BigInt(storedBytes) > MAX_PACK_BYTES) fail(`chunk ${index} lies behind the end of its pack`);
      isUsed[pack] = 1;
      stored.push(at);
    }
    if (isUsed.includes(0)) fail('a pack is not used');
    this.#checkOverlaps(stored, fail);
  }

  #checkOverlaps(stored: number[], fail: (reason: string) => never): void {
    const { bytes } = this;
    const pack = (at: number): number => bytes.readUInt32LE(at + 32);
    const offset = (at: number): number => bytes.readUInt32LE(at + 36); // below 64 MiB by M2
    const length = (at: number): number => bytes.readUInt32LE(at + 44);
    stored.sort((a, b) => pack(a) - pack(b) || offset(a) - offset(b) || length(a) - length(b));
    for (const [index, at] of stored.entries()) {
      const before = stored[index - 1];
      if (before === undefined || pack(before) !== pack(at)) continue;
      if (offset(before) + length(before) <= offset(at)) continue;
      const isSame = bytes.compare(bytes, before, before + ENTRY_BYTES, at, at + ENTRY_BYTES) === 0;
      if (!isSame) fail('two chunks share bytes of a pack');
    }
  }
}
