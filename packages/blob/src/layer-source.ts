/** A layer's files on the node, as what is uploaded from: its chunks with their digests, and its metadata as one zstd frame. */
import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import { pipeline } from 'node:stream';
import { createZstdCompress } from 'node:zlib';
import { PlatformError } from '@dsec/contract';
import { throwIfAborted } from '@dsec/kit';
import { DIGEST_BYTES, type Digest, parseDigest, sha256 } from './digest.ts';
import {
  BLOCK_BYTES,
  CHUNK_BYTES,
  chunkBytes,
  chunkCount,
  corrupt,
  layerDigest,
  MAX_LAYER_CHUNKS,
  MAX_METADATA_BYTES,
} from './layer-format.ts';

export interface LayerFiles {
  /** `rootfs.erofs`. */
  readonly metadataPath: string;
  /** `data`; left out when the layer has none. */
  readonly dataPath?: string | undefined;
}

const READ_BYTES = 1024 * 1024;
const ZEROS = Buffer.alloc(CHUNK_BYTES);

const invalid = (field: string, message: string): PlatformError =>
  new PlatformError('invalid_argument', message, { details: { field } });

/** Open files whose digests have been taken; the files must not change until it is closed. */
export class LayerSource implements AsyncDisposable {
  readonly layer: Digest;
  readonly dataBytes: number;
  readonly chunks: number;
  readonly #metadata: FileHandle;
  readonly #metadataDigest: Digest;
  readonly #data: FileHandle | undefined;
  readonly #digests: Buffer;

  private constructor(
    files: { readonly metadata: FileHandle; readonly data: FileHandle | undefined },
    facts: { readonly metadataDigest: Digest; readonly dataBytes: number; readonly digests: Buffer },
  ) {
    this.#metadata = files.metadata;
    this.#data = files.data;
    this.#metadataDigest = facts.metadataDigest;
    this.#digests = facts.digests;
    this.dataBytes = facts.dataBytes;
    this.chunks = chunkCount(facts.dataBytes);
    this.layer = layerDigest(facts.metadataDigest, facts.digests);
  }

  /** Reads both files through. @throws PlatformError `invalid_argument` when they are too large or not whole blocks */
  static async open(files: LayerFiles, signal?: AbortSignal): Promise<LayerSource> {
    await using opened = new AsyncDisposableStack();
    const metadata = opened.use(await open(files.metadataPath, 'r'));
    const data = files.dataPath === undefined ? undefined : opened.use(await open(files.dataPath, 'r'));
    if ((await metadata.stat()).size > MAX_METADATA_BYTES) throw invalid('metadataPath', 'the metadata are too large');
    const dataBytes = data === undefined ? 0 : (await data.stat()).size;
    if (dataBytes % BLOCK_BYTES !== 0) throw invalid('dataPath', 'the data are not whole blocks');
    if (chunkCount(dataBytes) > MAX_LAYER_CHUNKS) throw invalid('dataPath', 'the layer has too many chunks');
    const hash = createHash('sha256');
    for await (const part of bytesOf(metadata)) {
      throwIfAborted(signal);
      hash.update(part);
    }
    const digests = Buffer.alloc(chunkCount(dataBytes) * DIGEST_BYTES);
    for (let index = 0; data !== undefined && index < chunkCount(dataBytes); index++) {
      throwIfAborted(signal);
      const chunk = await readFully(data, index * CHUNK_BYTES, chunkBytes(dataBytes, index));
      if (!isZero(chunk)) sha256(chunk).copy(digests, index * DIGEST_BYTES);
    }
    const source = new LayerSource(
      { metadata, data },
      { metadataDigest: parseDigest(hash.digest('hex')), dataBytes, digests },
    );
    opened.move();
    return source;
  }

  /** Digest of a chunk; undefined for a hole. */
  digestAt(index: number): Buffer | undefined {
    const digest = this.#digests.subarray(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES);
    return digest.equals(ZEROS.subarray(0, DIGEST_BYTES)) ? undefined : digest;
  }

  /** A chunk. @throws PlatformError `layer_corrupt` when it is not what it was: nothing wrong gets into a store */
  async read(index: number): Promise<Buffer> {
    const digest = this.digestAt(index);
    if (this.#data === undefined || digest === undefined) throw new PlatformError('internal', 'a hole is not read');
    const chunk = await readFully(this.#data, index * CHUNK_BYTES, chunkBytes(this.dataBytes, index));
    if (!sha256(chunk).equals(digest)) throw this.#changed(digest.toString('hex'));
    return chunk;
  }

  /** The metadata as one zstd frame. */
  async *metadata(): AsyncGenerator<Buffer> {
    const frame = createZstdCompress();
    // What goes wrong in the source destroys the frame with the same error.
    pipeline(this.#checkedMetadata(), frame, () => undefined);
    for await (const part of frame) yield part as Buffer;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#metadata.close();
    await this.#data?.close();
  }

  async *#checkedMetadata(): AsyncGenerator<Buffer> {
    const hash = createHash('sha256');
    for await (const part of bytesOf(this.#metadata)) {
      hash.update(part);
      yield part;
    }
    if (hash.digest('hex') !== this.#metadataDigest) throw this.#changed(this.#metadataDigest);
  }

  #changed(digest: string): PlatformError {
    return corrupt({ layer: this.layer, digest }, 'changed while it was uploaded');
  }
}

const isZero = (chunk: Buffer): boolean => chunk.equals(ZEROS.subarray(0, chunk.length));

async function* bytesOf(file: FileHandle): AsyncGenerator<Buffer> {
  for (let at = 0; ; ) {
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(READ_BYTES), 0, READ_BYTES, at);
    if (bytesRead === 0) return;
    at += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

/** Fewer bytes only where the file ends. */
async function readFully(file: FileHandle, at: number, length: number): Promise<Buffer> {
  const buffer = Buffer.allocUnsafe(length);
  let filled = 0;
  while (filled < length) {
    const { bytesRead } = await file.read(buffer, filled, length - filled, at + filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return buffer.subarray(0, filled);
}
