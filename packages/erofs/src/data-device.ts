import { createHash, type Hash } from 'node:crypto';
import { alignUp, BLOCK_SIZE } from './format.ts';
import { type ImageOutput, writeWithHoles } from './image-output.ts';

/** Data are cut, named by their digests and fetched in pieces of this size. */
export const DATA_CHUNK_BYTES = 256 * 1024;
export const CHUNK_DIGEST_BYTES = 32;

/** The name of a chunk of zeros, which is stored nowhere. */
const HOLE_DIGEST = Buffer.alloc(CHUNK_DIGEST_BYTES);
const zeros = Buffer.alloc(DATA_CHUNK_BYTES);

export interface WrittenData {
  /** Whole blocks. */
  readonly sizeBytes: number;
  /** SHA-256 of each chunk, one behind the other; all zeros for a chunk of zeros. */
  readonly chunkDigests: Buffer;
  /** SHA-256 of `chunkDigests`. */
  readonly digest: Buffer;
}

/** How far the data have come; what comes later can be taken back. */
export interface DataMark {
  readonly chunks: number;
  readonly last: LastChunk;
}

/** The last chunk is only as long as the data go on, but that it is the last shows at the end. */
interface LastChunk {
  readonly sizeBytes: number;
  readonly digest: Buffer;
}

/** The second output of an image: chunks, each written once and in whole, in any order, their digests computed on the way. */
export class DataDevice {
  readonly #output: ImageOutput;
  #digests = Buffer.alloc(1024 * CHUNK_DIGEST_BYTES);
  #chunks = 0;
  #last: LastChunk = { sizeBytes: 0, digest: HOLE_DIGEST };

  constructor(output: ImageOutput) {
    this.#output = output;
  }

  /** How many chunks have a place. */
  get chunks(): number {
    return this.#chunks;
  }

  /** Gives the next chunk its place; each place is {@link put} to before the end. */
  allocate(): number {
    if ((this.#chunks + 1) * CHUNK_DIGEST_BYTES > this.#digests.length) {
      this.#digests = Buffer.concat([this.#digests, Buffer.alloc(this.#digests.length)]);
    }
    return this.#chunks++;
  }

  /** @param bytes at most a chunk; the rest of it is zeros */
  async put(index: number, bytes: Buffer): Promise<void> {
    const sizeBytes = alignUp(bytes.length, BLOCK_SIZE);
    const isHole = bytes.equals(zeros.subarray(0, bytes.length));
    const hash = isHole ? undefined : createHash('sha256').update(bytes);
    const short = sizeBytes < DATA_CHUNK_BYTES ? digestPadded(hash?.copy(), sizeBytes - bytes.length) : undefined;
    const whole = digestPadded(hash, DATA_CHUNK_BYTES - bytes.length);
    this.#digests.set(whole, index * CHUNK_DIGEST_BYTES);
    if (index === this.#chunks - 1) this.#last = { sizeBytes, digest: short ?? whole };
    if (!isHole) await writeWithHoles(this.#output, bytes, index * DATA_CHUNK_BYTES);
  }

  /** The digests of the chunks from `index` on. */
  digestsFrom(index: number): Buffer {
    return this.#digests.subarray(index * CHUNK_DIGEST_BYTES, this.#chunks * CHUNK_DIGEST_BYTES);
  }

  /** @returns what {@link rewind} goes back to */
  mark(): DataMark {
    return { chunks: this.#chunks, last: this.#last };
  }

  /** Takes back all chunks since `mark`; between the two no other chunk may be put. */
  async rewind(mark: DataMark): Promise<void> {
    this.#chunks = mark.chunks;
    this.#last = mark.last;
    // What comes in their place leaves out its zeros, so nothing of them may stay.
    await this.#output.truncate(mark.chunks * DATA_CHUNK_BYTES);
  }

  async end(): Promise<WrittenData> {
    const { sizeBytes: lastBytes, digest: lastDigest } = this.#last;
    if (this.#chunks > 0) this.#digests.set(lastDigest, (this.#chunks - 1) * CHUNK_DIGEST_BYTES);
    const chunkDigests = this.digestsFrom(0);
    const sizeBytes = this.#chunks === 0 ? 0 : (this.#chunks - 1) * DATA_CHUNK_BYTES + lastBytes;
    await this.#output.truncate(sizeBytes);
    return { sizeBytes, chunkDigests, digest: createHash('sha256').update(chunkDigests).digest() };
  }
}

const digestPadded = (hash: Hash | undefined, zeroBytes: number): Buffer =>
  hash?.update(zeros.subarray(0, zeroBytes)).digest() ?? HOLE_DIGEST;
