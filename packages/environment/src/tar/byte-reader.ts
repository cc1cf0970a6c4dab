/** Cuts a stream of chunks into exact pieces and counts where it is. */
export class ByteReader {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #pending: Buffer = Buffer.alloc(0);
  #offset = 0;
  #isAtEnd = false;

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** Bytes handed out so far. */
  get offset(): number {
    return this.#offset;
  }

  /** The next `count` bytes; fewer only when the stream ends. */
  async read(count: number): Promise<Buffer> {
    if (this.#pending.length >= count) return this.#cut(count);
    const parts: Buffer[] = [];
    let missing = count;
    while (missing > 0) {
      if (this.#pending.length === 0 && !(await this.#pull())) break;
      const part = this.#cut(Math.min(missing, this.#pending.length));
      parts.push(part);
      missing -= part.length;
    }
    return Buffer.concat(parts);
  }

  /** The next `count` bytes in pieces as they come; fewer only when the stream ends. */
  async *take(count: number): AsyncGenerator<Buffer> {
    for (let missing = count; missing > 0; ) {
      if (this.#pending.length === 0 && !(await this.#pull())) return;
      const part = this.#cut(Math.min(missing, this.#pending.length));
      missing -= part.length;
      yield part;
    }
  }

  /** Passes over `count` bytes. @returns how many there were */
  async skip(count: number): Promise<number> {
    const before = this.#offset;
    while (this.#offset - before < count) {
      if (this.#pending.length === 0 && !(await this.#pull())) break;
      this.#cut(Math.min(count - (this.#offset - before), this.#pending.length));
    }
    return this.#offset - before;
  }

  /** Lets go of the stream. */
  async close(): Promise<void> {
    this.#isAtEnd = true;
    this.#pending = Buffer.alloc(0);
    await this.#chunks.return?.();
  }

  #cut(count: number): Buffer {
    const part = this.#pending.subarray(0, count);
    this.#pending = this.#pending.subarray(count);
    this.#offset += count;
    return part;
  }

  async #pull(): Promise<boolean> {
    while (!this.#isAtEnd) {
      const next = await this.#chunks.next();
      if (next.done === true) {
        this.#isAtEnd = true;
      } else if (next.value.length > 0) {
        this.#pending = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
        return true;
      }
    }
    return false;
  }
}
