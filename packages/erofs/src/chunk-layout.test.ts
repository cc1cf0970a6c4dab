import { createHash } from 'node:crypto';
import { PlatformError } from '@dsec/contract';
import { MemoryOutput } from '@dsec/testkit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ChunkedImage, chunkedImageOf, inChunks } from './image.fixture.ts';
import {
  ByteString,
  CHUNK_DIGEST_BYTES,
  DATA_CHUNK_BYTES,
  defaultMetadata,
  type FileData,
  ImageReader,
  ImageWriter,
  newDirectory,
} from './index.ts';
import { bufferSource } from './byte-source.ts';

const BLOCK = 4096;
const CHUNK = DATA_CHUNK_BYTES;
const BLOCKS_PER_CHUNK = CHUNK / BLOCK;

/** Names files after their places in the list. */
const layerOf = async (
  files: readonly Buffer[],
  partBytes?: number,
): Promise<ChunkedImage & { readonly stored: readonly FileData[] }> => {
  const stored: FileData[] = [];
  const image = await chunkedImageOf(async (store) => {
    const root = newDirectory();
    for (const [index, content] of files.entries()) {
      const data = await store(content);
      stored.push(data);
      const name = ByteString.fromText(`${index}`);
      root.children.set(name, { kind: 'file', metadata: defaultMetadata(0o644), data });
    }
    return root;
  }, partBytes);
  return { ...image, stored };
};

const digestsOf = (data: Buffer): string[] => {
  const digests: string[] = [];
  for (let at = 0; at < data.length; at += CHUNK) {
    const chunk = data.subarray(at, at + CHUNK);
    digests.push(chunk.every((byte) => byte === 0) ? '0'.repeat(64) : createHash('sha256').update(chunk).digest('hex'));
  }
  return digests;
};

const writtenDigests = ({ written }: ChunkedImage): string[] =>
  Array.from({ length: written.chunkDigests.length / CHUNK_DIGEST_BYTES }, (_, index) =>
    written.chunkDigests.toString('hex', index * CHUNK_DIGEST_BYTES, (index + 1) * CHUNK_DIGEST_BYTES),
  );

const startOf = (data: FileData | undefined): number => (data?.startBlock ?? Number.NaN) * BLOCK;

const randomized = (sizeBytes: number, seed: number): Buffer => {
  const bytes = Buffer.alloc(sizeBytes);
  let state = seed + 1;
  for (let at = 0; at + 4 <= sizeBytes; at += 4) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes.writeUInt32LE(state, at);
  }
  return bytes;
};

describe('data in chunks', () => {
  it('are what was stored, with the digest of every chunk, whatever the files', { timeout: 60_000 }, async () => {
    const size = fc.oneof(
      fc.constantFrom(0, 1, BLOCK, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK - BLOCK),
      fc.integer({ min: 0, max: 40_000 }),
      fc.integer({ min: 0, max: 3 * CHUNK }),
    );
    // Few seeds, so that equal files come up; 255 is a file of zeros, and half of each file may be zeros.
    const file = fc.tuple(size, fc.constantFrom(0, 1, 2, 255), fc.boolean()).map(([sizeBytes, seed, isHalfEmpty]) => {
      const bytes = seed === 255 ? Buffer.alloc(sizeBytes) : randomized(sizeBytes, seed);
      return isHalfEmpty ? bytes.fill(0, 0, Math.floor(sizeBytes / 2)) : bytes;
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(file, { maxLength: 12 }),
        fc.integer({ min: 500, max: 100_000 }),
        async (files, part) => {
          const layer = await layerOf(files, part);
          expect(layer.data.length).toBe(layer.written.sizeBytes);
          expect(layer.data.length % BLOCK).toBe(0);
          expect(writtenDigests(layer)).toEqual(digestsOf(layer.data));
          expect(layer.written.digest).toEqual(createHash('sha256').update(layer.written.chunkDigests).digest());
          for (const [index, data] of layer.stored.entries()) {
            const content = files[index] ?? Buffer.alloc(0);
            if (content.length === 0) continue;
            const start = startOf(data);
            expect(layer.data.subarray(start, start + content.length).equals(content)).toBe(true);
            if (content.length >= CHUNK) expect(start % CHUNK).toBe(0);
            else expect(Math.floor(start / CHUNK)).toBe(Math.floor((start + content.length - 1) / CHUNK));
            const first = files.findIndex((other) => other.equals(content));
            expect(data).toBe(layer.stored[first]);
          }
          const again = await layerOf(files, 77_777);
          expect(again.image.equals(layer.image) && again.data.equals(layer.data)).toBe(true);
        },
      ),
      { numRuns: 60 },
    );
  });

  it('hold a large file as the same chunks in every layer', async () => {
    const large = randomized(2 * CHUNK + 5000, 1);
    const one = await layerOf([randomized(70_000, 2), large, randomized(9, 3), randomized(CHUNK, 4)]);
    const other = await layerOf([randomized(CHUNK + 1, 5), randomized(CHUNK - 1, 6), large, randomized(90_000, 7)]);
    const chunksOf = (layer: Awaited<ReturnType<typeof layerOf>>, index: number): string[] => {
      const first = startOf(layer.stored[index]) / CHUNK;
      return writtenDigests(layer).slice(first, first + 3);
    };
    expect(chunksOf(one, 1)).toHaveLength(3);
    expect(chunksOf(one, 1)).toEqual(chunksOf(other, 2));
  });

  it('go on filling a chunk of small files when large ones have come between', async () => {
    const { stored, data } = await layerOf([
      randomized(5000, 1),
      randomized(2 * CHUNK, 2),
      randomized(6000, 3),
      randomized(CHUNK - BLOCK, 4),
      randomized(100, 5),
    ]);
    expect(stored.map(({ startBlock }) => startBlock)).toEqual([0, BLOCKS_PER_CHUNK, 2, 3 * BLOCKS_PER_CHUNK, 4]);
    expect(data.length).toBe(4 * CHUNK - BLOCK);
  });

  it('leave nothing of an equal file behind where zeros follow', async () => {
    const large = randomized(2 * CHUNK, 1);
    const zerosInside = Buffer.concat([randomized(BLOCK, 2), Buffer.alloc(2 * CHUNK), randomized(1, 3)]);
    const { data, stored } = await layerOf([large, large, zerosInside]);
    const start = startOf(stored[2]);
    expect(data.subarray(start, start + zerosInside.length).equals(zerosInside)).toBe(true);
  });

  it('name their digest as the device of the image, and change its UUID', async () => {
    const one = await layerOf([randomized(5000, 1)]);
    const other = await layerOf([randomized(5000, 2)]);
    const { devices } = await ImageReader.open(bufferSource(one.image));
    expect(devices).toEqual([{ tag: one.written.digest.toString('hex'), blocks: 2 }]);
    expect(one.image.subarray(1072, 1088).equals(other.image.subarray(1072, 1088))).toBe(false);
  });

  it('are no device at all when every file is empty', async () => {
    const layer = await layerOf([Buffer.alloc(0)]);
    expect(layer.data.length).toBe(0);
    expect(layer.written.digest.toString('hex')).toBe(createHash('sha256').digest('hex'));
    const { superblock, devices } = await ImageReader.open(bufferSource(layer.image));
    expect([superblock.featureIncompat, devices]).toEqual([0, []]);
  });

  it('take less room than files of zeros say', async () => {
    const output = new MemoryOutput();
    let writtenBytes = 0;
    const data = {
      write: (bytes: Uint8Array, position: number) => {
        writtenBytes += bytes.length;
        return output.write(bytes, position);
      },
      truncate: (sizeBytes: number) => output.truncate(sizeBytes),
    };
    const writer = new ImageWriter(new MemoryOutput(), { data });
    await writer.store(10 * CHUNK, inChunks(Buffer.alloc(10 * CHUNK)));
    expect(writtenBytes).toBe(0);
  });

  it('are refused beyond their bound, and when they are not as long as was said', async () => {
    const store = async (sizeBytes: number, content: Buffer): Promise<string | undefined> => {
      const writer = new ImageWriter(new MemoryOutput(), { data: new MemoryOutput(), maxSizeBytes: 3 * CHUNK });
      await writer.store(CHUNK, inChunks(randomized(CHUNK, 1)));
      return writer.store(sizeBytes, inChunks(content)).then(
        () => undefined,
        (error: unknown) => (PlatformError.is(error) ? error.code : undefined),
      );
    };
    expect(await store(2 * CHUNK, randomized(2 * CHUNK, 2))).toBeUndefined();
    expect(await store(2 * CHUNK + 1, randomized(2 * CHUNK + 1, 2))).toBe('image_unsupported');
    for (const sizeBytes of [10, CHUNK + 10]) {
      expect(await store(sizeBytes, randomized(sizeBytes - 1, 2))).toBe('internal');
      expect(await store(sizeBytes, randomized(sizeBytes + 5000, 2))).toBe('internal');
    }
    expect(await store(0, Buffer.alloc(1))).toBe('internal');
  });
});
