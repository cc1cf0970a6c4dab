import { Readable } from 'node:stream';
import { pipeline } from 'node:stream';
import { createGunzip, createZstdDecompress } from 'node:zlib';
import { PlatformError } from '@dsec/contract';

export type Compression = 'none' | 'gzip' | 'zstd';

const GZIP_MAGIC = [0x1f, 0x8b];
const ZSTD_MAGIC = [0x28, 0xb5, 0x2f, 0xfd];
/** Frames that a zstd stream may begin with and that hold no data. */
const ZSTD_SKIPPABLE = [0x2a, 0x4d, 0x18];
const MAGIC_BYTES = 4;

/** Tells the compression by the first bytes, whatever a media type claims. */
export const detectCompression = (head: Uint8Array): Compression => {
  const startsWith = (magic: readonly number[], at = 0): boolean => magic.every((byte, i) => head[at + i] === byte);
  if (startsWith(GZIP_MAGIC)) return 'gzip';
  if (startsWith(ZSTD_MAGIC)) return 'zstd';
  if (((head[0] ?? 0) & 0xf0) === 0x50 && startsWith(ZSTD_SKIPPABLE, 1)) return 'zstd';
  return 'none';
};

/**
 * Passes a stream on uncompressed.
 *
 * @param layer named in errors
 * @throws PlatformError `image_corrupt` when the compressed data are damaged or end early; `details.offset` counts uncompressed bytes
 */
export async function* decompress(source: AsyncIterable<Uint8Array>, layer: string): AsyncGenerator<Uint8Array> {
  const iterator = source[Symbol.asyncIterator]();
  const head: Uint8Array[] = [];
  let headBytes = 0;
  while (headBytes < MAGIC_BYTES) {
    const next = await iterator.next();
    if (next.done === true) break;
    head.push(next.value);
    headBytes += next.value.length;
  }
  const compression = detectCompression(Buffer.concat(head));
  const whole = rejoin(head, iterator);
  if (compression === 'none') {
    yield* whole;
    return;
  }
  const decoder = compression === 'gzip' ? createGunzip() : createZstdDecompress();
  const input = Readable.from(whole, { objectMode: false });
  let offset = 0;
  try {
    // The callback only keeps the failure from being thrown a second time: the loop below sees it.
    for await (const chunk of pipeline(input, decoder, () => undefined) as AsyncIterable<Buffer>) {
      yield chunk;
      offset += chunk.length;
    }
  } catch (error) {
    if (!isCompressionError(error)) throw error;
    throw new PlatformError('image_corrupt', 'The compressed data are damaged or end early', {
      details: { layer, offset, reason: compression },
      cause: error,
    });
  } finally {
    input.destroy();
    decoder.destroy();
  }
}

async function* rejoin(head: readonly Uint8Array[], rest: AsyncIterator<Uint8Array>): AsyncGenerator<Uint8Array> {
  try {
    yield* head;
    for (;;) {
      const next = await rest.next();
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    await rest.return?.();
  }
}

/** Node's zlib gives its errors codes that begin with Z_ or ZSTD_. */
const isCompressionError = (error: unknown): boolean =>
  error instanceof Error &&
  'code' in error &&
  typeof error.code === 'string' &&
  /^(Z_|ZSTD_|ERR_ZLIB)/i.test(error.code);
