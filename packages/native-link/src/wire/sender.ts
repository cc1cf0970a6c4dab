/** The sending half of a stream: what is sent waits for credit of the other side and for room in the output, in order. */
import { PlatformError } from '@dsec/contract';
import { costOf, FrameType, INITIAL_WINDOW, MAX_DATA, MAX_WINDOW, MIN_COST, protocolError } from '@dsec/wire';

import type { StreamHost, WaitingSender } from './stream-api.ts';

/** Sends of one stream that may wait; a caller that awaits them has one. */
const MAX_WAITING_SENDS = 64;

interface Send {
  readonly type: number;
  readonly channel: number;
  readonly bytes: Buffer;
  sent: number;
  resolve: () => void;
  reject: (error: PlatformError) => void;
}

const DONE = Promise.resolve();
const EMPTY = Buffer.alloc(0);
const ignore = (): void => undefined;

export class StreamSender implements WaitingSender {
  isWaiting = false;
  readonly #host: StreamHost;
  readonly #streamId: number;
  /** What may still be sent. */
  #credit = INITIAL_WINDOW;
  readonly #sends: Send[] = [];

  constructor(host: StreamHost, streamId: number) {
    this.#host = host;
    this.#streamId = streamId;
  }

  /** Sends DATA or MESSAGE; resolves when all of it has credit and room. */
  send(type: number, channel: number, bytes: Buffer): Promise<void> {
    const send: Send = { type, channel, bytes, sent: 0, resolve: ignore, reject: ignore };
    if (this.#sends.length === 0 && this.#sendSome(send)) return DONE;
    if (this.#sends.length >= MAX_WAITING_SENDS) {
      return Promise.reject(new PlatformError('internal', 'Too many writes to one stream wait.'));
    }
    return new Promise((resolve, reject) => {
      send.resolve = resolve;
      send.reject = reject;
      this.#sends.push(send);
    });
  }

  /** Sends END behind what waits. */
  end(): void {
    if (this.#sends.length === 0) this.#host.output.empty(FrameType.end, this.#streamId);
    else this.#sends.push({ type: FrameType.end, channel: 0, bytes: EMPTY, sent: 0, resolve: ignore, reject: ignore });
  }

  /** The other side lets this one send more. */
  granted(grant: number): void {
    if (this.#credit + grant > MAX_WINDOW) throw protocolError('credit_overflow');
    this.#credit += grant;
    if (this.#sends.length > 0) this.pump();
  }

  /** Sends a frame whose cost is known to be within the credit. */
  forward(type: number, channel: number, chunk: Buffer, start: number, end: number): void {
    this.#credit -= costOf(end - start);
    this.#host.output.frame(type, channel, this.#streamId, chunk, start, end);
  }

  /** Sends what waits, as far as credit and room go. */
  pump(): void {
    for (let send = this.#sends[0]; send !== undefined; send = this.#sends[0]) {
      if (!this.#sendSome(send)) return;
      this.#sends.shift();
      send.resolve();
    }
  }

  /** The stream is over: what waits is not sent. */
  refuse(reason: () => PlatformError): void {
    if (this.#sends.length === 0) return;
    const error = reason();
    for (const send of this.#sends.splice(0)) send.reject(error);
  }

  /** True when all of it was sent. */
  #sendSome(send: Send): boolean {
    const { output } = this.#host;
    const { type, bytes } = send;
    if (type === FrameType.end) {
      output.empty(FrameType.end, this.#streamId);
      return true;
    }
    while (send.sent < bytes.length) {
      const left = bytes.length - send.sent;
      const length = type === FrameType.data ? Math.min(left, MAX_DATA, Math.max(this.#credit, MIN_COST)) : left;
      // A grant calls `pump`.
      if (costOf(length) > this.#credit) return false;
      if (!output.hasRoom) {
        this.#host.waitForRoom(this);
        return false;
      }
      this.forward(type, send.channel, bytes, send.sent, send.sent + length);
      send.sent += length;
    }
    return true;
  }
}
