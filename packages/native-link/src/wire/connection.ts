/** What both ends of a connection have in common: HELLO, the dispatch of frames to streams, PING, and the end. */
import type { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { orAborted, withDeadline, type Clock } from '@dsec/kit';
import { encodeHello, FrameDecoder, type FrameSink, FrameType, parseHello, protocolError } from '@dsec/wire';

import { Output } from './output.ts';
import type { Stream } from './stream.ts';
import type { StreamHost, StreamOptions, WaitingSender } from './stream-api.ts';

/** A PING is answered only while less than this waits to be written. */
const FLOOD_LIMIT = 16 * 1024 * 1024;
/** How long `close` waits for what was sent to be taken. */
const CLOSE_MS = 1_000;

export interface WireConnectionOptions {
  /** What HELLO calls this program: `apiserver`, `edge`, ... */
  readonly role: string;
  readonly clock: Clock;
  /** Called once when the connection is over, after its streams have ended. */
  readonly onClose?: (error: PlatformError) => void;
}

const ignore = (): void => undefined;

const CLOSED_HERE = 'The connection was closed.';

export abstract class WireConnection implements StreamHost, FrameSink, AsyncDisposable {
  readonly output: Output;
  readonly clock: Clock;
  abstract readonly isServer: boolean;
  protected readonly streams = new Map<number, Stream>();
  /** The greatest stream id that was opened. */
  protected lastStream = 0;
  protected readonly socket: Duplex;
  readonly #options: WireConnectionOptions;
  readonly #decoder = new FrameDecoder(this);
  readonly #waiting: WaitingSender[] = [];
  readonly #closed = Promise.withResolvers<void>();
  #peerRole: string | undefined;
  /** Settles for those who wait for the HELLO of the other side. */
  #greeting: PromiseWithResolvers<void> | undefined;
  #error: PlatformError | undefined;

  constructor(socket: Duplex, options: WireConnectionOptions) {
    this.socket = socket;
    this.clock = options.clock;
    this.#options = options;
    this.output = new Output(socket, () => this.onRoom());
    const hello = encodeHello(options.role);
    this.output.frame(FrameType.hello, 0, 0, hello, 0, hello.length);
    socket.on('data', (chunk: Buffer) => this.#onData(chunk));
    socket.on('error', (cause) => this.fail(new PlatformError('connection_lost', 'The connection broke.', { cause })));
    socket.on('end', () => this.fail(new PlatformError('connection_lost', 'The other side closed the connection.')));
    socket.on('close', () => {
      this.fail(new PlatformError('connection_lost', 'The connection broke.'));
      this.#closed.resolve();
    });
  }

  /** What the other side calls itself, once its HELLO is here. */
  get peerRole(): string | undefined {
    return this.#peerRole;
  }

  /**
   * Resolves when the other side has said HELLO: it serves this connection, and speaks the protocol.
   * @throws PlatformError why the connection ended before that; `timeout`, `cancelled`
   */
  async greeted(options: StreamOptions = {}): Promise<void> {
    if (this.#peerRole !== undefined) return;
    if (this.#error !== undefined) throw this.#error;
    if (this.#greeting === undefined) {
      this.#greeting = Promise.withResolvers<void>();
      // Who waited may have given up.
      this.#greeting.promise.catch(ignore);
    }
    const { promise } = this.#greeting;
    await withDeadline({ ...options, clock: this.clock, what: 'waiting for HELLO' }, (signal) =>
      orAborted(promise, signal),
    );
  }

  /** Why the connection is over; undefined while it is not. */
  get error(): PlatformError | undefined {
    return this.#error;
  }

  get isClosed(): boolean {
    return this.#error !== undefined;
  }

  get liveStreams(): number {
    return this.streams.size;
  }

  /** Resolves when the socket is closed. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  /** Ends the connection: live streams end with `connection_lost`, what was sent is written if the other side takes it in time. Idempotent. */
  async close(): Promise<void> {
    if (this.#error === undefined) {
      this.output.flush();
      this.#end(new PlatformError('connection_lost', CLOSED_HERE));
      this.socket.end();
      const timer = this.clock.setTimer(CLOSE_MS, () => this.socket.destroy());
      this.socket.once('finish', () => this.socket.destroy());
      await this.#closed.promise;
      timer.cancel();
    }
    await this.#closed.promise;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Ends the connection at once. */
  fail(error: PlatformError): void {
    if (this.#error === undefined) this.#end(error);
    this.socket.destroy();
  }

  forget(streamId: number): void {
    this.streams.delete(streamId);
  }

  waitForRoom(sender: WaitingSender): void {
    if (sender.isWaiting) return;
    sender.isWaiting = true;
    this.#waiting.push(sender);
  }

  frame(type: number, channel: number, id: number, chunk: Buffer, start: number, end: number): void {
    if (this.#error !== undefined) return;
    if (this.#peerRole === undefined) {
      if (type !== FrameType.hello) throw protocolError('hello_missing');
      this.#peerRole = parseHello(chunk, start, end);
      this.#greeting?.resolve();
      return;
    }
    switch (type) {
      case FrameType.hello:
        throw protocolError('hello_twice');
      case FrameType.ping:
        if (this.output.backlog > FLOOD_LIMIT) throw protocolError('flood');
        this.output.frame(FrameType.pong, 0, 0, chunk, start, end);
        return;
      case FrameType.pong:
        // Nothing waits for one: that it was read is what counts.
        return;
      case FrameType.open:
        this.onOpen(id, chunk, start, end);
        return;
      case FrameType.reset:
        if (!this.isServer) throw protocolError('wrong_side');
        break;
      case FrameType.close:
        if (this.isServer) throw protocolError('wrong_side');
        break;
    }
    const stream = this.streams.get(id);
    if (stream === undefined) {
      if (id > this.lastStream) throw protocolError('stream_unknown');
      return;
    }
    switch (type) {
      case FrameType.data:
      case FrameType.message:
        stream.onPayload(type, channel, chunk, start, end);
        return;
      case FrameType.end:
        stream.onEnd();
        return;
      case FrameType.window:
        stream.onWindow(chunk.readUInt32LE(start));
        return;
      case FrameType.close:
        stream.onClose(chunk, start, end);
        return;
      case FrameType.reset:
        stream.onBroken(new PlatformError('cancelled', 'The client has lost interest.'));
        return;
    }
  }

  protected abstract onOpen(id: number, chunk: Buffer, start: number, end: number): void;

  protected onRoom(): void {
    while (this.output.hasRoom) {
      const sender = this.#waiting.shift();
      if (sender === undefined) return;
      sender.isWaiting = false;
      sender.pump();
    }
  }

  protected onData(): void {
    // A server may hold back its client here.
  }

  #onData(chunk: Buffer): void {
    try {
      this.#decoder.push(chunk);
    } catch (cause) {
      this.fail(
        PlatformError.is(cause) ? cause : new PlatformError('internal', 'A frame could not be handled.', { cause }),
      );
      return;
    }
    this.onData();
  }

  #end(error: PlatformError): void {
    this.#error = error;
    this.output.close();
    this.#waiting.length = 0;
    this.#greeting?.reject(error);
    const streams = [...this.streams.values()];
    this.streams.clear();
    for (const stream of streams) stream.onBroken(error);
    this.#options.onClose?.(error);
  }
}
