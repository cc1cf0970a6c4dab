/** A chunk at rest: one zstd frame where that is shorter, else as it is. */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import type { ChunkLocation } from './chunk-map.ts';
import { sha256Name } from './digest.ts';
import { corrupt } from './layer-format.ts';

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

/** What zstd itself takes for a good middle of speed and size. */
const DEFAULT_ZSTD_LEVEL = 3;

export async function encodeChunk(plain: Buffer, level = DEFAULT_ZSTD_LEVEL): Promise<Buffer> {
  const frame = await compress(plain, {
    params: { [constants.ZSTD_c_compressionLevel]: level },
    pledgedSrcSize: plain.length,
  });
  return frame.length < plain.length ? frame : plain;
}

/** @throws PlatformError `layer_corrupt` unless the stored bytes are the chunk that the location names */
export async function decodeChunk(stored: Buffer, location: ChunkLocation, layer: string): Promise<Buffer> {
  const suspect = { layer, digest: location.digest };
  if (stored.length !== location.storedBytes) throw corrupt(suspect, 'the pack ends before the chunk does');
  let plain = stored;
  if (location.storedBytes !== location.plainBytes) {
    try {
      plain = await decompress(stored, { maxOutputLength: location.plainBytes });
    } catch (error) {
      throw corrupt(suspect, 'the chunk is not a zstd frame of its length', error);
    }
  }
  if (plain.length !== location.plainBytes) throw corrupt(suspect, 'the chunk has another length');
  if (sha256Name(plain) !== location.digest) throw corrupt(suspect, 'the chunk has another digest');
  return plain;
}
