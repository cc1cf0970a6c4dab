import { createHash } from 'node:crypto';
import { BLOCK_SIZE } from './format.ts';
import { type ImageOutput, writeWithHoles } from './image-output.ts';

const STAGING_BYTES = 1024 * 1024;
const zeros = Buffer.alloc(64 * 1024);

/**
 * The body of an image (all that follows its first block), written strictly in order. Small writes are gathered; the digest of the body is
 * computed on the way.
 */
export class ImageStream {
  readonly #output: ImageOutput;
  readonly #hash = createHash('sha256');
  readonly #staging = Buffer.alloc(STAGING_BYTES);
  #staged = 0;
  #flushed = BLOCK_SIZE;

  constructor(output: ImageOutput) {
    this.#output = output;
  }

  /** The position in the image of the next byte. */
  get position(): number {
    return this.#flushed + this.#staged;
  }

  async append(bytes: Uint8Array): Promise<void> {
    let from = 0;
    while (from < bytes.length) {
      const count = Math.min(bytes.length - from, STAGING_BYTES - this.#staged);
      this.#staging.set(bytes.subarray(from, from + count), this.#staged);
      this.#staged += count;
      from += count;
      if (this.#staged === STAGING_BYTES) await this.#flush();
    }
  }

  async appendZeros(count: number): Promise<void> {
    for (let left = count; left > 0; ) {
      const part = Math.min(left, zeros.length);
      await this.append(zeros.subarray(0, part));
      left -= part;
    }
  }

  /** Fills up with zeros to the next multiple of the block size. */
  async padToBlock(): Promise<void> {
    const over = this.position % BLOCK_SIZE;
    if (over !== 0) await this.appendZeros(BLOCK_SIZE - over);
  }

  /** Writes what is still gathered. @returns the SHA-256 of the body */
  async end(): Promise<Buffer> {
    await this.#flush();
    return this.#hash.digest();
  }

  async #flush(): Promise<void> {
    const bytes = this.#staging.subarray(0, this.#staged);
    this.#hash.update(bytes);
    await writeWithHoles(this.#output, bytes, this.#flushed);
    this.#flushed += this.#staged;
    this.#staged = 0;
  }
}
