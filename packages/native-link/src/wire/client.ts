/** The end of a connection that opens streams. */
import type { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { abortError } from '@dsec/kit';
import { encodeOpen, FrameType, MAX_STREAM_ID, MAX_STREAMS, protocolError } from '@dsec/wire';

import { WireConnection, type WireConnectionOptions } from './connection.ts';
import { Stream } from './stream.ts';
import type { StreamOptions, WireStream } from './stream-api.ts';

export interface WireClientOptions extends WireConnectionOptions {
  /** Streams that may be live; default `MAX_STREAMS`. The server has a limit of its own. */
  readonly maxStreams?: number;
}

/** New streams are refused while more than this waits to be written. */
const OPEN_BACKLOG_LIMIT = 16 * 1024 * 1024;

export class WireClient extends WireConnection {
  readonly isServer = false;
  readonly #maxStreams: number;

  /** Speaks the protocol over a socket that is connected or connecting; owns it from now on. */
  static connect(socket: Duplex, options: WireClientOptions): WireClient {
    return new WireClient(socket, options);
  }

  private constructor(socket: Duplex, options: WireClientOptions) {
    super(socket, options);
    this.#maxStreams = options.maxStreams ?? MAX_STREAMS;
  }

  /**
   * Opens a stream. `timeoutMs` and the signal bound its whole life.
   * @throws PlatformError `connection_lost`, `too_many_streams`, `request_too_large`, `cancelled`
   */
  open(method: string, params: object, options: StreamOptions = {}): WireStream {
    const { signal } = options;
    if (signal?.aborted === true) throw abortError(signal);
    if (this.error !== undefined) {
      throw new PlatformError('connection_lost', 'The connection to the other process is gone.', { cause: this.error });
    }
    if (this.streams.size >= this.#maxStreams || this.output.backlog > OPEN_BACKLOG_LIMIT) {
      throw new PlatformError('too_many_streams', 'The connection has its greatest number of open streams.', {
        details: { limit: this.#maxStreams },
      });
    }
    if (this.lastStream === MAX_STREAM_ID) {
      throw new PlatformError('connection_lost', 'The connection has used up its stream ids.');
    }
    const payload = encodeOpen(method, params);
    const id = ++this.lastStream;
    const stream = new Stream(this, id, method);
    this.streams.set(id, stream);
    this.output.frame(FrameType.open, 0, id, payload, 0, payload.length);
    stream.bound(options);
    return stream;
  }

  /** A unary call. Rejects with the error of the server, or as `open` throws; `timeout` when the time is over. */
  call(method: string, params: object, options: StreamOptions = {}): Promise<unknown> {
    try {
      return this.open(method, params, options).result;
    } catch (error) {
      return Promise.reject(error as PlatformError);
    }
  }

  protected override onOpen(): void {
    throw protocolError('wrong_side');
  }
}
