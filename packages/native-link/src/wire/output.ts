/** The bytes that wait to be written: what is sent within one tick becomes one write. */
import type { Duplex } from 'node:stream';

import { FrameType, HEADER_LENGTH, writeHeader } from '@dsec/wire';

/** Streams may send while less than this waits for the end of the tick, and while the socket takes it. */
const OUTPUT_LIMIT = 256 * 1024;
/** Payloads up to this are copied beside their header; larger ones are passed to the socket as they are. */
const SMALL = 4 * 1024;
const LEAST_SCRATCH = 256;
const GREATEST_SCRATCH = 16 * 1024;

export class Output {
  readonly #socket: Duplex;
  /** Called when there is room again. */
  readonly #onRoom: () => void;
  #chunks: Buffer[] = [];
  /** Memory for headers and small payloads of this tick: `[#from, #at)` is not in `#chunks` yet. */
  #scratch: Buffer | undefined;
  #from = 0;
  #at = 0;
  #scratchSize = LEAST_SCRATCH;
  #pending = 0;
  #isScheduled = false;
  #isBlocked = false;
  #isClosed = false;

  constructor(socket: Duplex, onRoom: () => void) {
    this.#socket = socket;
    this.#onRoom = onRoom;
    socket.on('drain', () => {
      this.#isBlocked = false;
      this.#onRoom();
    });
  }

  /** The socket does not take more at the moment. */
  get isBlocked(): boolean {
    return this.#isBlocked;
  }

  get hasRoom(): boolean {
    return !this.#isBlocked && this.#pending < OUTPUT_LIMIT && !this.#isClosed;
  }

  /** Bytes that were sent and that the socket has not taken. */
  get backlog(): number {
    return this.#pending + this.#socket.writableLength;
  }

  /** A frame whose payload is `chunk[start..end)`; the caller must not change these bytes any more. */
  frame(type: number, channel: number, stream: number, chunk: Buffer, start: number, end: number): void {
    const length = end - start;
    if (length <= SMALL) {
      const at = this.#reserve(HEADER_LENGTH + length);
      writeHeader(this.#memory, at, type, channel, stream, length);
      if (length > 0) chunk.copy(this.#memory, at + HEADER_LENGTH, start, end);
    } else {
      const at = this.#reserve(HEADER_LENGTH);
      writeHeader(this.#memory, at, type, channel, stream, length);
      this.#seal();
      this.#chunks.push(start === 0 && end === chunk.length ? chunk : chunk.subarray(start, end));
      this.#pending += length;
    }
    this.#schedule();
  }

  empty(type: number, stream: number): void {
    const at = this.#reserve(HEADER_LENGTH);
    writeHeader(this.#memory, at, type, 0, stream, 0);
    this.#schedule();
  }

  window(stream: number, grant: number): void {
    const at = this.#reserve(HEADER_LENGTH + 4);
    writeHeader(this.#memory, at, FrameType.window, 0, stream, 4);
    this.#memory.writeUInt32LE(grant, at + HEADER_LENGTH);
    this.#schedule();
  }

  /** Gives what waits to the socket now. */
  flush(): void {
    this.#seal();
    // The next tick is likely to send as much: in one piece it costs one write.
    this.#scratchSize = Math.min(GREATEST_SCRATCH, Math.max(LEAST_SCRATCH, this.#pending));
    this.#scratch = undefined;
    this.#from = 0;
    this.#at = 0;
    const chunks = this.#chunks;
    const only = chunks[0];
    if (only === undefined || this.#isClosed) return;
    this.#chunks = [];
    this.#pending = 0;
    const socket = this.#socket;
    let hasRoom = false;
    if (chunks.length === 1) {
      hasRoom = socket.write(only);
    } else {
      socket.cork();
      for (const chunk of chunks) hasRoom = socket.write(chunk);
      socket.uncork();
    }
    if (hasRoom) this.#onRoom();
    else this.#isBlocked = true;
  }

  /** Nothing more is written. */
  close(): void {
    this.#isClosed = true;
    this.#chunks = [];
    this.#scratch = undefined;
    this.#from = 0;
    this.#at = 0;
    this.#pending = 0;
  }

  /** Only valid after `#reserve`. */
  get #memory(): Buffer {
    return (this.#scratch ??= Buffer.allocUnsafe(this.#scratchSize));
  }

  #reserve(length: number): number {
    if (this.#at + length > this.#memory.length) {
      this.#seal();
      this.#scratchSize = Math.min(GREATEST_SCRATCH, this.#scratchSize * 2);
      this.#scratch = Buffer.allocUnsafe(Math.max(length, this.#scratchSize));
      this.#from = 0;
      this.#at = 0;
    }
    const at = this.#at;
    this.#at += length;
    this.#pending += length;
    return at;
  }

  #seal(): void {
    if (this.#scratch !== undefined && this.#at > this.#from) {
      this.#chunks.push(this.#scratch.subarray(this.#from, this.#at));
      this.#from = this.#at;
    }
  }

  #schedule(): void {
    if (this.#pending >= OUTPUT_LIMIT) {
      this.flush();
      return;
    }
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    process.nextTick(flushTick, this);
  }

  /** @internal */
  tick(): void {
    this.#isScheduled = false;
    this.flush();
  }
}

/** One function for all, so that a tick allocates no closure. */
const flushTick = (output: Output): void => output.tick();
