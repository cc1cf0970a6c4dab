/** The numbers of `docs/layers.md`, and what a digest of a layer is made of. */
import { createHash, hash } from 'node:crypto';
import { PlatformError, type ErrorDetails } from '@dsec/contract';
import { type Digest, parseDigest } from './digest.ts';

/** Plain bytes of every chunk but the last. */
export const CHUNK_BYTES = 262_144;
/** `data` is whole blocks. */
export const BLOCK_BYTES = 4096;
/** Most bytes of a pack. */
export const MAX_PACK_BYTES = 64 * 1024 * 1024;
/** Most chunks of a layer (256 GiB of data): a chunk map is held in memory. */
export const MAX_LAYER_CHUNKS = 1024 * 1024;
/** Most bytes of `rootfs.erofs`. */
export const MAX_METADATA_BYTES = 4 * 1024 * 1024 * 1024;
/** Most bytes of `layer.json`. */
export const MAX_RECORD_BYTES = 1024 * 1024;

/** Chunks that `data` of this size has. */
export const chunkCount = (dataBytes: number): number => Math.ceil(dataBytes / CHUNK_BYTES);

/** Plain bytes of a chunk: the last one ends with the data. */
export const chunkBytes = (dataBytes: number, index: number): number =>
  Math.min(CHUNK_BYTES, dataBytes - index * CHUNK_BYTES);

/** The digest of a layer: of its metadata file and of the digests of its chunks, one behind the other. */
export function layerDigest(metadata: Digest, chunkDigests: Uint8Array): Digest {
  const data = createHash('sha256').update(chunkDigests).digest('hex');
  return parseDigest(hash('sha256', `dsec-layer 2\n${metadata}\n${data}\n`));
}

/** What is said of content that is not what it is named after. */
export interface Suspect {
  readonly layer: string;
  /** Of the object or chunk that is wrong; of the layer itself when its map is. */
  readonly digest: string;
}

/** `layer_corrupt`, naming layer and digest. */
export function corrupt(suspect: Suspect, reason: string, cause?: unknown): PlatformError {
  const details: ErrorDetails = { layer: suspect.layer, digest: suspect.digest, reason };
  return new PlatformError('layer_corrupt', `layer ${suspect.layer}: ${suspect.digest}: ${reason}`, { details, cause });
}
