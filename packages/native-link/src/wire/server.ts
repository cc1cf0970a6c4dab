/** The end of a connection that answers streams. */
import type { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { encodeFailure, FrameType, type JsonObject, MAX_STREAMS, parseOpen, protocolError } from '@dsec/wire';

import { WireConnection, type WireConnectionOptions } from './connection.ts';
import { Stream } from './stream.ts';
import type { WireServerStream } from './stream-api.ts';

/**
 * Answers a stream. A returned promise ends it: with its value, or with its error. Without one the handler has taken the stream over
 * and ends it itself.
 */
export type WireHandler = (method: string, params: JsonObject, stream: WireServerStream) => Promise<unknown> | void;

export interface WireServerOptions extends WireConnectionOptions {
  /** Streams that may be live; one more is answered with `too_many_streams`. Default `MAX_STREAMS`. */
  readonly maxStreams?: number;
  /** Told of what a handler threw that is no PlatformError; the client gets `internal`. */
  readonly onFault: (fault: unknown, method: string) => void;
}

/** A client that does not read its answers is not read either once this much waits. */
const PAUSE_AT = 1024 * 1024;

export class WireServer extends WireConnection {
  readonly isServer = true;
  readonly #handler: WireHandler;
  readonly #maxStreams: number;
  readonly #onFault: (fault: unknown, method: string) => void;

  constructor(socket: Duplex, handler: WireHandler, options: WireServerOptions) {
    super(socket, options);
    this.#handler = handler;
    this.#maxStreams = options.maxStreams ?? MAX_STREAMS;
    this.#onFault = options.onFault;
  }

  protected override onOpen(id: number, chunk: Buffer, start: number, end: number): void {
    if (id <= this.lastStream) throw protocolError('stream_order');
    const { method, params } = parseOpen(chunk, start, end);
    this.lastStream = id;
    if (this.streams.size >= this.#maxStreams) {
      const error = new PlatformError('too_many_streams', 'The connection has its greatest number of open streams.', {
        details: { limit: this.#maxStreams },
      });
      const payload = encodeFailure(error);
      this.output.frame(FrameType.close, 0, id, payload, 0, payload.length);
      return;
    }
    const stream = new Stream(this, id, method);
    this.streams.set(id, stream);
    let answer: Promise<unknown> | void;
    try {
      answer = this.#handler(method, params, stream);
    } catch (error) {
      this.#failed(stream, error);
      return;
    }
    answer?.then(
      (result) => stream.close(result),
      (error: unknown) => this.#failed(stream, error),
    );
  }

  /** Only a server waits for its client to read: if both ends did, both could wait for ever. */
  protected override onData(): void {
    if (this.output.isBlocked && this.output.backlog > PAUSE_AT) this.socket.pause();
  }

  protected override onRoom(): void {
    if (this.socket.isPaused()) this.socket.resume();
    super.onRoom();
  }

  #failed(stream: Stream, error: unknown): void {
    if (PlatformError.is(error)) {
      stream.fail(error);
      return;
    }
    this.#onFault(error, stream.method);
    stream.fail(new PlatformError('internal', `${stream.method} failed by a fault of the platform.`));
  }
}

/** Speaks the protocol over a socket that a client connected; owns it from now on. */
export const serve = (socket: Duplex, handler: WireHandler, options: WireServerOptions): WireServer =>
  new WireServer(socket, handler, options);
