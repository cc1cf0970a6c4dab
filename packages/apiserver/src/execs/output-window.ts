/** What an answer in one piece keeps of a stream: its first quarter and its newest rest, as the ring of the sandbox does. */
import { isUtf8 } from 'node:buffer';
import type { MemoryShare } from '../http/memory-budget.ts';

/** Kept of every stream, however little memory there is. */
const LEAST_BYTES = 65_536;
const LEAST_BLOCK = 256;
const GREATEST_BLOCK = 262_144;

export class OutputWindow {
  readonly #share: MemoryShare;
  readonly #head = new Blocks();
  readonly #tail = new Blocks();
  readonly #headLimit: number;
  #tailLimit: number;
  #granted = LEAST_BYTES;
  #skipped = 0;

  /** When `share` has no more, less than `limitBytes` is kept; what is not is counted. */
  constructor(limitBytes: number, share: MemoryShare) {
    this.#share = share;
    this.#headLimit = Math.floor(limitBytes / 4);
    this.#tailLimit = limitBytes - this.#headLimit;
  }

  add(bytes: Buffer): void {
    this.#grow(bytes.length);
    const room = Math.max(0, Math.min(this.#headLimit - this.#head.bytes, this.#granted - this.#head.bytes));
    this.#head.append(bytes.subarray(0, room));
    if (bytes.length <= room) return;
    this.#tail.append(bytes.subarray(room));
    // Cut only when twice as much is held, so that each byte is copied about once.
    if (this.#tail.bytes > 2 * this.#tailLimit) this.#cut();
  }

  /** Bytes that were not received. */
  skip(count: number): void {
    this.#skipped += count;
  }

  /** What is kept, and how many bytes of the stream are not. */
  finish(): { readonly bytes: Buffer; readonly dropped: number } {
    this.#cut();
    return { bytes: Buffer.concat([...this.#head.parts(), ...this.#tail.parts()]), dropped: this.#skipped };
  }

  /** Asks for what `count` more bytes need, up to the limits; where there is none, the tail stays as long as it is. */
  #grow(count: number): void {
    const held = this.#head.bytes + this.#tail.bytes;
    const wanted = Math.min(held + count, this.#headLimit + 2 * this.#tailLimit);
    if (wanted <= this.#granted) return;
    if (this.#share.take(wanted - this.#granted)) this.#granted = wanted;
    else this.#tailLimit = Math.min(this.#tailLimit, Math.max(this.#granted - this.#head.bytes, LEAST_BYTES / 2));
  }

  #cut(): void {
    if (this.#tail.bytes <= this.#tailLimit) return;
    this.#skipped += this.#tail.bytes - this.#tailLimit;
    this.#tail.keepLast(this.#tailLimit);
  }
}

/** Bytes in a few blocks of their own: pieces as they come may be a byte each, and hold on to what they were cut from. */
class Blocks {
  #blocks: Buffer[] = [];
  /** Of the last block. */
  #used = 0;
  bytes = 0;

  append(bytes: Buffer): void {
    for (let from = 0; from < bytes.length; ) {
      let block = this.#blocks.at(-1);
      if (block === undefined || this.#used === block.length) {
        const size = Math.min(GREATEST_BLOCK, Math.max(LEAST_BLOCK, this.bytes, bytes.length - from));
        block = Buffer.allocUnsafeSlow(size);
        this.#blocks.push(block);
        this.#used = 0;
      }
      const taken = bytes.copy(block, this.#used, from);
      this.#used += taken;
      from += taken;
    }
    this.bytes += bytes.length;
  }

  parts(): Buffer[] {
    const last = this.#blocks.length - 1;
    return this.#blocks.map((block, index) => (index === last ? block.subarray(0, this.#used) : block));
  }

  keepLast(count: number): void {
    const kept = Buffer.allocUnsafeSlow(count);
    const whole = this.parts();
    let at = count;
    for (let index = whole.length - 1; index >= 0 && at > 0; index--) {
      const part = whole[index] ?? Buffer.alloc(0);
      const taken = Math.min(at, part.length);
      at -= taken;
      part.copy(kept, at, part.length - taken);
    }
    this.#blocks = [kept];
    this.#used = count;
    this.bytes = count;
  }
}

/** Of more than this, text is given only when it is exact and about as long as the bytes. */
const LARGE_BYTES = 1_048_576;
const BLANK = 0x20;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** Text of bytes, and the bytes beside it when the text does not stand for them exactly; of much output of that kind the bytes alone. */
export function textOf(bytes: Buffer): { readonly text: string; readonly base64: string | undefined } {
  const isExact = isUtf8(bytes);
  if (bytes.length > LARGE_BYTES && (!isExact || isMuchEscaped(bytes)))
    return { text: '', base64: bytes.toString('base64') };
  return { text: bytes.toString('utf8'), base64: isExact ? undefined : bytes.toString('base64') };
}

/** JSON writes six characters for one of these. */
function isMuchEscaped(bytes: Buffer): boolean {
  let escaped = 0;
  for (const byte of bytes) if (byte < BLANK || byte === QUOTE || byte === BACKSLASH) escaped++;
  return escaped > bytes.length / 8;
}
