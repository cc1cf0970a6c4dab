/** An answer that is written piece by piece: its head goes with its first piece, and a client that reads slowly holds the writer back. */
import type { ServerResponse } from 'node:http';
import { KEEPALIVE_MS, PlatformError } from '@dsec/contract';
import type { Clock, Timer } from '@dsec/kit';
import type { FastifyReply } from 'fastify';

/** Bodies up to this are copied beside their head. */
const JOINED_BYTES = 4096;

export type ResponseHeaders = Readonly<Record<string, string>>;

/** Takes a reply over from the framework. */
export class ResponseStream implements Disposable {
  readonly #response: ServerResponse;
  readonly #clock: Clock;
  readonly #status: number;
  readonly #headers: ResponseHeaders;
  #keepalive: Timer | undefined;
  #wroteAtMs = 0;

  constructor(reply: FastifyReply, clock: Clock, status: number, headers: ResponseHeaders) {
    reply.hijack();
    this.#response = reply.raw;
    this.#clock = clock;
    this.#status = status;
    this.#headers = headers;
  }

  /** The client is gone. */
  get isClosed(): boolean {
    return this.#response.closed || this.#response.destroyed;
  }

  /** The client has not taken what was written. */
  get needsDrain(): boolean {
    return this.#response.writableNeedDrain;
  }

  /** Sends the head now. */
  start(): void {
    this.#writeHead();
    this.#response.flushHeaders();
  }

  /** Sends `piece` whenever nothing else was sent for `KEEPALIVE_MS`. */
  keepAlive(piece: Uint8Array | string): void {
    this.#wroteAtMs = this.#clock.monotonicMs();
    const arm = (waitMs: number): void => {
      this.#keepalive = this.#clock.setTimer(waitMs, () => {
        const silentMs = this.#clock.monotonicMs() - this.#wroteAtMs;
        if (silentMs < KEEPALIVE_MS) {
          arm(KEEPALIVE_MS - silentMs);
          return;
        }
        // One that does not read gets no more to read.
        if (!this.#response.writableNeedDrain) void this.write(piece)?.catch(() => undefined);
        arm(KEEPALIVE_MS);
      });
    };
    arm(KEEPALIVE_MS);
  }

  /** Writes; a promise says when to go on. Rejects with `cancelled` when the client is gone. */
  write(...pieces: readonly (Uint8Array | string)[]): Promise<void> | undefined {
    if (this.isClosed) return Promise.reject(clientGone());
    this.#writeHead();
    this.#wroteAtMs = this.#clock.monotonicMs();
    // The framework below joins what is written within one tick into one system call.
    let hasRoom = true;
    for (const piece of pieces) hasRoom = this.#response.write(piece);
    return hasRoom ? undefined : this.drained();
  }

  /** Resolves when the client has taken enough of what was written. */
  async drained(): Promise<void> {
    const response = this.#response;
    if (!response.writableNeedDrain || this.isClosed) return;
    await new Promise<void>((resolve, reject) => {
      const onDrain = (): void => {
        response.removeListener('close', onClose);
        resolve();
      };
      const onClose = (): void => {
        response.removeListener('drain', onDrain);
        reject(clientGone());
      };
      response.once('drain', onDrain);
      response.once('close', onClose);
    });
  }

  /** Ends the answer well. */
  end(piece?: Uint8Array | string): void {
    this[Symbol.dispose]();
    if (this.isClosed) return;
    const length = this.#response.headersSent ? undefined : piece === undefined ? 0 : Buffer.byteLength(piece);
    this.#writeHead(length);
    // As text, a small body goes out in one write with the head; as bytes it is a second buffer, and another kind of write.
    if (length !== undefined && length <= JOINED_BYTES && piece instanceof Buffer)
      this.#response.end(piece.toString('latin1'), 'latin1');
    else this.#response.end(piece);
  }

  /** Breaks the connection, so that the client sees that the answer is not whole. */
  break(): void {
    this[Symbol.dispose]();
    this.#response.destroy();
  }

  [Symbol.dispose](): void {
    this.#keepalive?.cancel();
    this.#keepalive = undefined;
  }

  #writeHead(length?: number): void {
    if (this.#response.headersSent) return;
    const headers = length === undefined ? this.#headers : { ...this.#headers, 'content-length': length };
    this.#response.writeHead(this.#status, headers);
  }
}

const clientGone = (): PlatformError => new PlatformError('cancelled', 'the client is gone');
