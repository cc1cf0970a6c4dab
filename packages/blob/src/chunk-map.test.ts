import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { zstdDecompressSync } from 'node:zlib';
import { PlatformError } from '@dsec/contract';
import { envVariable } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodeChunk, encodeChunk } from './chunk-codec.ts';
import { type ChunkLocation, ChunkMap } from './chunk-map.ts';
import { parseDigest, sha256Name } from './digest.ts';
import { CHUNK_BYTES } from './layer-format.ts';
import { layerVector, plainChunks, VECTORS_DIRECTORY } from './layer-vector.ts';
import { decodePackIndex, encodePackIndex } from './pack-index.ts';

interface Vector {
  readonly layer: string;
  readonly metadataDigest: string;
  readonly dataBytes: number;
  readonly packs: readonly { readonly id: string; readonly pack: string; readonly index: string }[];
  readonly chunks: readonly (ChunkLocation | { readonly hole: true })[];
  readonly refused: readonly string[];
}

const file = (name: string): Buffer => readFileSync(join(VECTORS_DIRECTORY, name));
const vector = JSON.parse(file('vector.json').toString()) as Vector;
const fuzzMs = Number(envVariable('DSEC_FUZZ_SECONDS') ?? 1) * 1000;
const fuzzing = { numRuns: 1_000_000, interruptAfterTimeLimit: fuzzMs, markInterruptAsFailure: false };

const failureOf = (operation: () => unknown): PlatformError | undefined => {
  try {
    operation();
    return undefined;
  } catch (error) {
    if (PlatformError.is(error)) return error;
    throw error;
  }
};

describe('golden vectors', () => {
  test('are read: chunk map, indexes, packs, metadata', async () => {
    const map = ChunkMap.decode(file('chunks.bin'), vector.layer);
    expect(map.dataBytes).toBe(vector.dataBytes);
    expect(map.packs).toEqual(vector.packs.map(({ id }) => id));
    const packs = new Map(vector.packs.map(({ id, pack }) => [id, file(pack)]));
    for (const [id, bytes] of packs) expect(sha256Name(bytes)).toBe(id);
    for (const [index, expected] of vector.chunks.entries()) {
      const found = map.at(index);
      if (found === undefined) {
        expect(expected).toEqual({ hole: true });
        continue;
      }
      expect(found).toEqual(expected);
      const stored = packs.get(found.pack)?.subarray(found.offset, found.offset + found.storedBytes);
      const plain = await decodeChunk(stored ?? Buffer.alloc(0), found, vector.layer);
      expect(plain.equals(plainChunks()[index] ?? Buffer.alloc(0))).toBe(true);
    }
    const metadata = parseDigest(vector.metadataDigest);
    expect(sha256Name(zstdDecompressSync(file('metadata.bin')))).toBe(metadata);
    expect(map.layerDigest(metadata)).toBe(vector.layer);
    for (const { id, index } of vector.packs) {
      const entries = decodePackIndex(file(index), parseDigest(id)) ?? [];
      const stored = vector.chunks.filter((chunk) => 'pack' in chunk && chunk.pack === id);
      expect(entries).toHaveLength(2);
      for (const entry of entries) expect(stored).toContainEqual(entry);
      expect(encodePackIndex(entries).equals(file(index))).toBe(true);
    }
  });

  test('are what would be written now, whatever zstd makes of the chunks', async () => {
    const { chunks, layer, refused } = JSON.parse(String((await layerVector()).get('vector.json'))) as Vector;
    expect(layer).toBe(vector.layer);
    expect(refused).toEqual(vector.refused);
    expect(chunks.map((chunk) => 'digest' in chunk && chunk.digest)).toEqual(
      vector.chunks.map((chunk) => 'digest' in chunk && chunk.digest),
    );
    const map = ChunkMap.decode(file('chunks.bin'), layer);
    const entries = Array.from({ length: map.chunks }, (_, index) => map.at(index));
    expect(ChunkMap.encode(map.dataBytes, entries, layer).bytes.equals(file('chunks.bin'))).toBe(true);
  });

  test.for(vector.refused)('%s is refused', (name) => {
    expect(failureOf(() => ChunkMap.decode(file(name), vector.layer))).toMatchObject({
      code: 'layer_corrupt',
      details: { layer: vector.layer, digest: vector.layer },
    });
  });
});

describe('chunk maps', () => {
  test('of a layer without data are empty', () => {
    const map = ChunkMap.encode(0, [], vector.layer);
    expect(map.bytes).toHaveLength(32);
    expect([map.chunks, map.packs.length]).toEqual([0, 0]);
  });

  test('fuzz: any change is refused, or is a map that encodes to the same bytes', () => {
    const good = file('chunks.bin');
    const change = fc.record({ at: fc.nat(good.length - 1), value: fc.nat(255) });
    fc.assert(
      fc.property(fc.array(change, { maxLength: 4 }), fc.nat(good.length), (changes, length) => {
        const bytes = Buffer.from(length % 3 === 0 ? good.subarray(0, length) : good);
        for (const { at, value } of changes) if (at < bytes.length) bytes[at] = value;
        let map: ChunkMap;
        try {
          map = ChunkMap.decode(bytes, vector.layer);
        } catch (error) {
          expect(error).toMatchObject({ code: 'layer_corrupt' });
          return;
        }
        for (let index = 0; index < map.chunks; index++) {
          const chunk = map.at(index);
          if (chunk === undefined) continue;
          expect(map.packs).toContain(chunk.pack);
          expect(chunk.storedBytes).toBeLessThanOrEqual(chunk.plainBytes);
        }
      }),
      fuzzing,
    );
  });
});

describe('indexes', () => {
  test('fuzz: any change is no index, or one whose entries are sorted and lie in the pack', () => {
    const good = file('index-0.bin');
    const pack = sha256Name(good);
    const change = fc.record({ at: fc.nat(good.length - 1), value: fc.nat(255) });
    fc.assert(
      fc.property(fc.array(change, { maxLength: 4 }), fc.nat(good.length), (changes, length) => {
        const bytes = Buffer.from(length % 3 === 0 ? good.subarray(0, length) : good);
        for (const { at, value } of changes) if (at < bytes.length) bytes[at] = value;
        const entries = decodePackIndex(bytes, pack);
        if (entries !== undefined) expect(encodePackIndex(entries).equals(bytes)).toBe(true);
      }),
      fuzzing,
    );
  });
});

describe('chunks at rest', () => {
  const locationOf = (plain: Buffer, stored: Buffer): ChunkLocation => ({
    digest: sha256Name(plain),
    pack: sha256Name(stored),
    offset: 0,
    storedBytes: stored.length,
    plainBytes: plain.length,
  });

  test('come back, and are refused when anything about them is wrong', async () => {
    const plain = Buffer.alloc(CHUNK_BYTES, 'text ');
    const stored = await encodeChunk(plain);
    const location = locationOf(plain, stored);
    expect((await decodeChunk(stored, location, vector.layer)).equals(plain)).toBe(true);
    const longer = await encodeChunk(Buffer.concat([plain, plain]));
    for (const [bytes, claimed] of [
      [stored.subarray(1), location],
      [stored.subarray(0, -1), { ...location, storedBytes: stored.length - 1 }],
      [longer, { ...location, storedBytes: longer.length }],
      [await encodeChunk(Buffer.alloc(CHUNK_BYTES, 'other ')), location],
      [Buffer.alloc(stored.length), location],
      [Buffer.alloc(CHUNK_BYTES), { ...location, storedBytes: CHUNK_BYTES }],
    ] as const) {
      await expect(decodeChunk(bytes, { ...claimed, storedBytes: bytes.length }, vector.layer)).rejects.toMatchObject({
        code: 'layer_corrupt',
        details: { layer: vector.layer, digest: location.digest },
      });
    }
    await expect(decodeChunk(stored.subarray(1), location, vector.layer)).rejects.toMatchObject({
      code: 'layer_corrupt',
    });
  });
});
