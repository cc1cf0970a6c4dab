/**
 * The layer of the golden vectors: two whole chunks that compress, a hole, a chunk that does not compress, the first chunk again, and a
 * short last chunk; in two packs. `vector.json` says what must come out, and which files beside it must be refused.
 */
import { SeededRandom } from '@dsec/kit';
import { zstdCompressSync } from 'node:zlib';
import { encodeChunk } from './chunk-codec.ts';
import { type ChunkEntry, type ChunkLocation, ChunkMap } from './chunk-map.ts';
import { type Digest, sha256, sha256Name } from './digest.ts';
import { BLOCK_BYTES, CHUNK_BYTES, layerDigest } from './layer-format.ts';
import { encodePackIndex } from './pack-index.ts';

export const VECTORS_DIRECTORY = 'tests/vectors/layers';

const text = (line: string, bytes: number): Buffer => Buffer.alloc(bytes, `${line}\n`);

/** Plain chunks of the vector; undefined is a hole. */
export function plainChunks(): readonly (Buffer | undefined)[] {
  const first = text('the first chunk', CHUNK_BYTES);
  return [
    first,
    text('the second chunk', CHUNK_BYTES),
    undefined,
    new SeededRandom(1).bytes(CHUNK_BYTES),
    first,
    text('the last chunk', 3 * BLOCK_BYTES),
  ];
}

/** Files of the vector, by name. */
export async function layerVector(): Promise<ReadonlyMap<string, Buffer>> {
  const plain = plainChunks();
  const packs = [await pack([plain[0], plain[3]]), await pack([plain[1], plain[5]])];
  const known = new Map(packs.flatMap(({ locations }) => locations).map((location) => [location.digest, location]));
  const digests = plain.map((chunk) => (chunk === undefined ? Buffer.alloc(32) : sha256(chunk)));
  const entries: ChunkEntry[] = digests.map((digest) => known.get(digest.toString('hex') as Digest));
  const dataBytes = 5 * CHUNK_BYTES + 3 * BLOCK_BYTES;
  const metadata = text('stands for rootfs.erofs', 2 * BLOCK_BYTES);
  const layer = layerDigest(sha256Name(metadata), Buffer.concat(digests));
  const map = ChunkMap.encode(dataBytes, entries, layer);
  const data = Buffer.concat(plain.map((chunk) => chunk ?? Buffer.alloc(CHUNK_BYTES)));
  const files = new Map<string, Buffer>([
    ['chunks.bin', map.bytes],
    ['metadata.bin', zstdCompressSync(metadata)],
    ...packs.flatMap(({ bytes, index }, number): [string, Buffer][] => [
      [`pack-${number}.bin`, bytes],
      [`index-${number}.bin`, index],
    ]),
  ]);
  const refused = brokenMaps(map.bytes);
  for (const [name, bytes] of refused) files.set(name, bytes);
  const vector = {
    layer,
    metadataDigest: sha256Name(metadata),
    metadataBytes: metadata.length,
    dataDigest: sha256Name(data),
    dataBytes,
    packs: packs.map(({ id }, number) => ({ id, pack: `pack-${number}.bin`, index: `index-${number}.bin` })),
    chunks: plain.map((chunk, index) =>
      chunk === undefined ? { hole: true } : { ...known.get((digests[index] ?? chunk).toString('hex') as Digest) },
    ),
    refused: [...refused.keys()],
  };
  files.set('vector.json', Buffer.from(`${JSON.stringify(vector, undefined, 2)}\n`));
  return files;
}

async function pack(chunks: readonly (Buffer | undefined)[]): Promise<{
  readonly id: Digest;
  readonly bytes: Buffer;
  readonly index: Buffer;
  readonly locations: readonly ChunkLocation[];
}> {
  const parts: Buffer[] = [];
  const placed: Omit<ChunkLocation, 'pack'>[] = [];
  let offset = 0;
  for (const chunk of chunks) {
    if (chunk === undefined) continue;
    const stored = await encodeChunk(chunk);
    placed.push({ digest: sha256Name(chunk), offset, storedBytes: stored.length, plainBytes: chunk.length });
    parts.push(stored);
    offset += stored.length;
  }
  const bytes = Buffer.concat(parts);
  const id = sha256Name(bytes);
  return { id, bytes, index: encodePackIndex(placed), locations: placed.map((entry) => ({ ...entry, pack: id })) };
}

/** Chunk maps that no reader may take, each wrong in one thing. */
function brokenMaps(good: Buffer): ReadonlyMap<string, Buffer> {
  const entriesAt = 32 + 2 * 32;
  const entryAt = (index: number): number => entriesAt + index * 48;
  const changed = (change: (bytes: Buffer) => void): Buffer => {
    const bytes = Buffer.from(good);
    change(bytes);
    return bytes;
  };
  return new Map([
    ['refused-magic.bin', changed((bytes) => void bytes.writeUInt8(0x64, 0))],
    ['refused-version.bin', changed((bytes) => void bytes.writeUInt32LE(2, 8))],
    ['refused-chunk-size.bin', changed((bytes) => void bytes.writeUInt32LE(65_536, 12))],
    ['refused-data-bytes.bin', changed((bytes) => void bytes.writeBigUInt64LE(7n * BigInt(CHUNK_BYTES), 16))],
    ['refused-data-not-blocks.bin', changed((bytes) => void bytes.writeBigUInt64LE(5n * BigInt(CHUNK_BYTES) + 1n, 16))],
    ['refused-chunk-count.bin', changed((bytes) => void bytes.writeUInt32LE(0xffffffff, 24))],
    ['refused-pack-count.bin', changed((bytes) => void bytes.writeUInt32LE(0xffffffff, 28))],
    ['refused-truncated.bin', good.subarray(0, good.length - 1)],
    ['refused-trailing.bin', Buffer.concat([good, Buffer.alloc(1)])],
    ['refused-empty.bin', Buffer.alloc(0)],
    ['refused-pack-twice.bin', changed((bytes) => void bytes.copy(bytes, 64, 32, 64))],
    ['refused-pack-index.bin', changed((bytes) => void bytes.writeUInt32LE(2, entryAt(0) + 32))],
    ['refused-behind-pack.bin', changed((bytes) => void bytes.writeBigUInt64LE(0xffff_ffff_ffffn, entryAt(1) + 36))],
    ['refused-stored-zero.bin', changed((bytes) => void bytes.writeUInt32LE(0, entryAt(1) + 44))],
    ['refused-stored-long.bin', changed((bytes) => void bytes.writeUInt32LE(CHUNK_BYTES + 1, entryAt(3) + 44))],
    ['refused-hole-with-bytes.bin', changed((bytes) => void bytes.writeUInt32LE(1, entryAt(2) + 44))],
    ['refused-overlap.bin', changed((bytes) => void bytes.writeBigUInt64LE(1n, entryAt(3) + 36))],
  ]);
}
