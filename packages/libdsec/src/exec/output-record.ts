/** Chunks from this size on are kept as they are; smaller ones are put together, so that tiny writes cost no object each. */
const WHOLE_CHUNK_BYTES = 16_384;
const BLOCK_BYTES = 65_536;

/**
 * What is kept of one output stream: its first quarter and its newest three quarters of `limitBytes`, as the sandbox's own
 * record does. What fell out between is counted.
 */
export class OutputRecord {
  readonly #headLimit: number;
  readonly #tailLimit: number;
  readonly #head = new Blocks();
  readonly #tail = new Blocks();
  #totalBytes = 0;

  constructor(limitBytes: number) {
    this.#headLimit = Math.floor(limitBytes / 4);
    this.#tailLimit = limitBytes - this.#headLimit;
  }

  append(chunk: Uint8Array<ArrayBuffer>): void {
    this.#totalBytes += chunk.length;
    const taken = Math.min(this.#headLimit - this.#head.bytes, chunk.length);
    if (taken > 0) this.#head.append(chunk.subarray(0, taken));
    if (taken < chunk.length) {
      this.#tail.append(chunk.subarray(taken));
      this.#tail.dropFront(this.#tail.bytes - this.#tailLimit);
    }
  }

  /** The stream went on by `bytes` that were not received. */
  skip(bytes: number): void {
    this.#totalBytes += bytes;
  }

  /** Bytes of the whole stream that are not in `bytes()`. */
  get droppedBytes(): number {
    return this.#totalBytes - this.#head.bytes - this.#tail.bytes;
  }

  bytes(): Uint8Array<ArrayBuffer> {
    const whole = new Uint8Array(this.#head.bytes + this.#tail.bytes);
    this.#tail.copyTo(whole, this.#head.copyTo(whole, 0));
    return whole;
  }
}

/** A queue of bytes in blocks. */
class Blocks {
  readonly #blocks: Uint8Array<ArrayBuffer>[] = [];
  /** Index of the first block that is still held. */
  #first = 0;
  /** Space behind the last block, when that is one of ours. */
  #open: Uint8Array<ArrayBuffer> | undefined;
  #openUsed = 0;
  bytes = 0;

  append(chunk: Uint8Array<ArrayBuffer>): void {
    this.bytes += chunk.length;
    let rest = chunk;
    if (this.#open !== undefined) {
      const taken = Math.min(this.#open.length - this.#openUsed, rest.length);
      this.#open.set(rest.subarray(0, taken), this.#openUsed);
      this.#growLast(taken);
      rest = rest.subarray(taken);
    }
    if (rest.length === 0) return;
    if (rest.length >= WHOLE_CHUNK_BYTES || this.#blocks.length === 0) {
      this.#open = undefined;
      this.#blocks.push(rest);
      return;
    }
    this.#open = new Uint8Array(BLOCK_BYTES);
    this.#open.set(rest);
    this.#openUsed = rest.length;
    this.#blocks.push(this.#open.subarray(0, rest.length));
  }

  dropFront(bytes: number): void {
    let left = bytes;
    while (left > 0) {
      const block = this.#blocks[this.#first];
      if (block === undefined) break;
      if (block.length > left) {
        this.#blocks[this.#first] = block.subarray(left);
        this.bytes -= left;
        break;
      }
      left -= block.length;
      this.bytes -= block.length;
      this.#first += 1;
    }
    // Taken out in bulk: removing the first entry of an array one by one is quadratic.
    if (this.#first > 256 || this.#first === this.#blocks.length) {
      this.#blocks.splice(0, this.#first);
      this.#first = 0;
      if (this.#blocks.length === 0) this.#open = undefined;
    }
  }

  copyTo(target: Uint8Array, start: number): number {
    let at = start;
    for (const block of this.#blocks.slice(this.#first)) {
      target.set(block, at);
      at += block.length;
    }
    return at;
  }

  #growLast(by: number): void {
    const last = this.#blocks.length - 1;
    const block = this.#blocks[last];
    if (block === undefined || this.#open === undefined) return;
    this.#blocks[last] = new Uint8Array(this.#open.buffer, block.byteOffset, block.length + by);
    this.#openUsed += by;
  }
}
