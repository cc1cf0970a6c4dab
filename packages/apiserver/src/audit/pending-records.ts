/**
 * Records that wait for the disk, as bytes: as strings they would live through collections of the heap again and again, which costs a process that serves many requests more than all
 * else about them. They are chained when they are taken: hashes one behind the other cost a fraction of as many that each follow other work.
 */
import { hashLine, type ChainHead, type EncodedFields } from './audit-line.ts';

const FIRST_BYTES = 64 * 1024;
/** UTF-8 has at most so many bytes for a character of a string. */
const MAX_CHAR_BYTES = 3;
/** What a line has around its fields: `{"seq":N,"prev":"…","atMs":N,` and `}` with a line feed. */
const FRAME_BYTES = 128;

export class PendingRecords {
  readonly #maxBytes: number;
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
  #used = 0;
  /** Of each: where its fields end. */
  #ends: number[] = [];
  #atMs: number[] = [];

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get isEmpty(): boolean {
    return this.#ends.length === 0;
  }

  /** Whether there is room for one more. */
  get hasRoom(): boolean {
    return this.#used < this.#maxBytes;
  }

  add(atMs: number, fields: EncodedFields): void {
    const needed = this.#used + fields.length * MAX_CHAR_BYTES;
    if (needed > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.#bytes.length));
      this.#bytes.copy(larger, 0, 0, this.#used);
      this.#bytes = larger;
    }
    this.#used += this.#bytes.write(fields, this.#used, 'utf8');
    this.#ends.push(this.#used);
    this.#atMs.push(atMs);
  }

  /** All of them as lines behind `head`, and the head behind them. */
  take(head: ChainHead): { readonly lines: Buffer; readonly head: ChainHead } {
    const lines = Buffer.allocUnsafeSlow(this.#used + this.#ends.length * FRAME_BYTES);
    let { seq, hash: prev } = head;
    let [at, from] = [0, 0];
    for (const [index, end] of this.#ends.entries()) {
      const begin = at;
      seq++;
      at += lines.write(`{"seq":${seq},"prev":"${prev}","atMs":${this.#atMs[index] ?? 0},`, at, 'latin1');
      at += this.#bytes.copy(lines, at, from, end);
      at += lines.write('}', at, 'latin1');
      prev = hashLine(lines.subarray(begin, at));
      at += lines.write('\n', at, 'latin1');
      from = end;
    }
    if (this.#bytes.length > FIRST_BYTES) this.#bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
    this.#used = 0;
    this.#ends = [];
    this.#atMs = [];
    return { lines: lines.subarray(0, at), head: { seq, hash: prev } };
  }
}
