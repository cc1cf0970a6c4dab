/** One stream of a connection, at either end. */
import { PlatformError } from '@dsec/contract';
import { abortError, type Timer } from '@dsec/kit';
import {
  costOf,
  encodeClose,
  encodeFailure,
  encodeMessage,
  FrameType,
  INITIAL_WINDOW,
  parseClose,
  parseObject,
  protocolError,
} from '@dsec/wire';

import { StreamSender } from './sender.ts';
import type { StreamHost, StreamOptions, StreamTap, WireItem, WireServerStream, WireStream } from './stream-api.ts';

/** Credit that was taken is granted again once it adds up to this. */
const GRANT_AT = INITIAL_WINDOW / 2;
/** A waiting payload is at least this fraction of the memory that it keeps alive. */
const RETAIN_FRACTION = 4;

interface Received {
  readonly type: number;
  readonly channel: number;
  readonly bytes: Buffer;
}

interface Waiter {
  readonly resolve: (result: IteratorResult<WireItem, undefined>) => void;
  readonly reject: (error: PlatformError) => void;
}

export type Outcome = { readonly ok: unknown } | { readonly error: PlatformError };

const DONE = Promise.resolve();
const EMPTY = Buffer.alloc(0);
const END: Received = { type: FrameType.end, channel: 0, bytes: EMPTY };
const ANSWERED = new PlatformError('cancelled', 'The stream was answered.');
const CLOSED: Outcome = { ok: undefined };
const ignore = (): void => undefined;

export class Stream implements WireStream, WireServerStream {
  readonly id: number;
  readonly method: string;
  readonly #host: StreamHost;
  readonly #sender: StreamSender;
  /** What the other side may still send. */
  #window = INITIAL_WINDOW;
  /** What was taken and is not granted again yet. */
  #taken = 0;
  /** No payload was sent or taken by a consumer: both directions have the credit they began with. */
  #isFresh = true;
  #received: Received[] = [];
  #next = 0;
  #waiter: Waiter | undefined;
  #isEnded = false;
  #isEndReceived = false;
  #outcome: Outcome | undefined;
  #result: PromiseWithResolvers<unknown> | undefined;
  #controller: AbortController | undefined;
  #tap: StreamTap | undefined;
  #release: (() => void) | undefined;

  constructor(host: StreamHost, id: number, method: string) {
    this.#host = host;
    this.id = id;
    this.method = method;
    this.#sender = new StreamSender(host, id);
  }

  get isOver(): boolean {
    return this.#outcome !== undefined;
  }

  get isServer(): boolean {
    return this.#host.isServer;
  }

  get result(): Promise<unknown> {
    if (this.#result === undefined) {
      this.#result = Promise.withResolvers();
      // Whoever iterates sees the error too, so the promise need not be looked at.
      this.#result.promise.catch(ignore);
      if (this.#outcome !== undefined) settle(this.#result, this.#outcome);
    }
    return this.#result.promise;
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#outcome !== undefined && 'error' in this.#outcome) this.#controller.abort(this.#outcome.error);
    }
    return this.#controller.signal;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<WireItem, undefined>> {
    this.#isFresh = false;
    const received = this.#shift();
    if (received !== undefined) {
      try {
        return Promise.resolve({ done: false, value: this.#take(received) });
      } catch (error) {
        return Promise.reject(this.#blame(error));
      }
    }
    if (this.#outcome !== undefined) {
      return 'error' in this.#outcome
        ? Promise.reject(this.#outcome.error)
        : Promise.resolve({ done: true, value: undefined });
    }
    if (this.#waiter !== undefined || this.#tap !== undefined) {
      return Promise.reject(new PlatformError('internal', `The stream of ${this.method} already has a consumer.`));
    }
    return new Promise((resolve, reject) => {
      this.#waiter = { resolve, reject };
    });
  }

  write(bytes: Uint8Array, channel = 0): Promise<void> {
    if (this.#isEnded || this.#outcome !== undefined) return this.#refuse();
    if (bytes.length === 0) return DONE;
    const buffer = Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    return this.#send(FrameType.data, channel, buffer);
  }

  message(value: object): Promise<void> {
    if (this.#outcome !== undefined) return this.#refuse();
    try {
      return this.#send(FrameType.message, 0, encodeMessage(value));
    } catch (error) {
      return Promise.reject(asPlatformError(error));
    }
  }

  end(): void {
    if (this.#isEnded || this.#outcome !== undefined) return;
    this.#isEnded = true;
    this.#sender.end();
  }

  reset(reason?: PlatformError): void {
    if (this.#outcome !== undefined || this.#host.isServer) return;
    this.#host.output.empty(FrameType.reset, this.id);
    this.#drop();
    const error = reason ?? new PlatformError('cancelled', `${this.method} was cancelled.`);
    this.#finish({ error });
    this.#tap?.broken(error);
  }

  close(result?: unknown): void {
    if (this.#outcome !== undefined || !this.#host.isServer) return;
    let payload: Buffer;
    try {
      payload = encodeClose(result);
    } catch (cause) {
      this.fail(new PlatformError('internal', `The result of ${this.method} cannot be sent.`, { cause }));
      return;
    }
    this.closeRaw(payload, 0, payload.length);
  }

  fail(error: PlatformError): void {
    if (this.#outcome !== undefined || !this.#host.isServer) return;
    const payload = encodeFailure(error);
    this.closeRaw(payload, 0, payload.length);
  }

  // What follows is for the connection and the relay, not for the owner of the stream.

  /** Ends the stream when the signal aborts or the time is over. */
  bound(options: StreamOptions): void {
    const { signal, timeoutMs } = options;
    if (signal === undefined && timeoutMs === undefined) return;
    let timer: Timer | undefined;
    const onAbort = (): void => {
      if (signal !== undefined) this.reset(abortError(signal));
    };
    if (timeoutMs !== undefined) {
      timer = this.#host.clock.setTimer(timeoutMs, () => {
        const message = `${this.method} did not answer within ${timeoutMs} ms.`;
        this.reset(new PlatformError('timeout', message, { details: { timeoutMs } }));
      });
    }
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#release = () => {
      timer?.cancel();
      signal?.removeEventListener('abort', onAbort);
    };
  }

  /** DATA or MESSAGE came in: `chunk[start..end)`. */
  onPayload(type: number, channel: number, chunk: Buffer, start: number, end: number): void {
    if (this.#isEndReceived && type === FrameType.data) throw protocolError('after_end');
    const cost = costOf(end - start);
    if (cost > this.#window) throw protocolError('credit_exceeded');
    this.#window -= cost;
    if (this.#tap !== undefined) this.#tap.payload(type, channel, chunk, start, end);
    else if (this.#waiter !== undefined) this.#deliver({ type, channel, bytes: chunk.subarray(start, end) });
    else this.#received.push({ type, channel, bytes: retain(chunk, start, end) });
  }

  onEnd(): void {
    if (this.#isEndReceived) throw protocolError('after_end');
    this.#isEndReceived = true;
    if (this.#tap !== undefined) this.#tap.end();
    else if (this.#waiter !== undefined) this.#deliver(END);
    else this.#received.push(END);
  }

  onWindow(grant: number): void {
    this.#sender.granted(grant);
    this.#tap?.window(grant);
  }

  onClose(chunk: Buffer, start: number, end: number): void {
    const tap = this.#tap;
    if (tap !== undefined) {
      this.#finish(CLOSED);
      tap.close(chunk, start, end);
      return;
    }
    try {
      this.#finish(parseClose(chunk, start, end));
    } catch (error) {
      // What a result says is the business of this stream only: the frames of the others are sound.
      this.#finish({ error: asPlatformError(error) });
    }
  }

  /** The client has reset the stream, or the connection is gone. */
  onBroken(error: PlatformError): void {
    if (this.#host.isServer) this.#drop();
    this.#finish({ error });
    this.#tap?.broken(error);
  }

  /** Gives everything that comes in to `tap` from now on, beginning with what waits to be taken. */
  attach(tap: StreamTap): void {
    if (!this.#isFresh || this.#tap !== undefined) {
      throw new PlatformError('internal', `The stream of ${this.method} is in use and cannot be relayed.`);
    }
    this.#isFresh = false;
    this.#tap = tap;
    for (let item = this.#shift(); item !== undefined; item = this.#shift()) {
      if (item.type === FrameType.end) tap.end();
      else tap.payload(item.type, item.channel, item.bytes, 0, item.bytes.length);
    }
  }

  /** Sends a frame that came in at another stream, which has kept the sender within the credit of this one. */
  forward(type: number, channel: number, chunk: Buffer, start: number, end: number): void {
    if (this.#outcome === undefined) this.#sender.forward(type, channel, chunk, start, end);
  }

  /** Lets the other side send `grant` more, but never more in all than at the start: what it sends waits in memory. */
  grant(grant: number): void {
    const granted = Math.min(grant, INITIAL_WINDOW - this.#window);
    if (granted <= 0 || this.#outcome !== undefined) return;
    this.#window += granted;
    this.#host.output.window(this.id, granted);
  }

  /** Ends a server stream with the payload of a CLOSE. */
  closeRaw(chunk: Buffer, start: number, end: number): void {
    if (this.#outcome !== undefined) return;
    this.#host.output.frame(FrameType.close, 0, this.id, chunk, start, end);
    this.#drop();
    this.#finish(CLOSED);
    this.#tap?.broken(ANSWERED);
  }

  /** How the stream ended, if it did. */
  get outcome(): Outcome | undefined {
    return this.#outcome;
  }

  #shift(): Received | undefined {
    const received = this.#received[this.#next];
    if (received === undefined) return undefined;
    this.#next += 1;
    if (this.#next === this.#received.length) this.#drop();
    return received;
  }

  #drop(): void {
    if (this.#received.length > 0) this.#received = [];
    this.#next = 0;
  }

  #take(received: Received): WireItem {
    if (received.type === FrameType.end) return { type: 'end' };
    const { bytes, channel } = received;
    this.#taken += costOf(bytes.length);
    if (this.#taken >= GRANT_AT) {
      const taken = this.#taken;
      this.#taken = 0;
      this.grant(taken);
    }
    if (received.type === FrameType.data) return { type: 'data', channel, bytes };
    return { type: 'message', value: parseObject(bytes, 0, bytes.length) };
  }

  #deliver(received: Received): void {
    const waiter = this.#waiter;
    this.#waiter = undefined;
    let value: WireItem;
    try {
      value = this.#take(received);
    } catch (error) {
      waiter?.reject(this.#blame(error));
      return;
    }
    waiter?.resolve({ done: false, value });
  }

  /**
   * A message does not parse. A client ends its stream, since whoever relayed it did not look into it; a server ends the
   * connection of a client that is at fault.
   */
  #blame(cause: unknown): PlatformError {
    const error = asPlatformError(cause);
    if (this.#host.isServer) this.#host.fail(error);
    else this.reset(error);
    return error;
  }

  #send(type: number, channel: number, bytes: Buffer): Promise<void> {
    this.#isFresh = false;
    if (this.#tap !== undefined) {
      return Promise.reject(new PlatformError('internal', `The stream of ${this.method} is being relayed.`));
    }
    return this.#sender.send(type, channel, bytes);
  }

  #refuse(): Promise<never> {
    const outcome = this.#outcome;
    if (outcome === undefined) {
      return Promise.reject(new PlatformError('internal', `${this.method}: a write after end.`));
    }
    return Promise.reject('error' in outcome ? outcome.error : this.#over());
  }

  #over(): PlatformError {
    return new PlatformError('cancelled', `The stream of ${this.method} is over.`);
  }

  #finish(outcome: Outcome): void {
    if (this.#outcome !== undefined) return;
    this.#outcome = outcome;
    this.#host.forget(this.id);
    this.#release?.();
    const error = 'error' in outcome ? outcome.error : undefined;
    this.#sender.refuse(() => error ?? this.#over());
    const waiter = this.#waiter;
    this.#waiter = undefined;
    if (error === undefined) waiter?.resolve({ done: true, value: undefined });
    else waiter?.reject(error);
    if (this.#result !== undefined) settle(this.#result, outcome);
    if (error !== undefined) this.#controller?.abort(error);
  }
}

const settle = (result: PromiseWithResolvers<unknown>, outcome: Outcome): void => {
  if ('error' in outcome) result.reject(outcome.error);
  else result.resolve(outcome.ok);
};

/** A payload that waits must not keep much more memory alive than it was paid for: a short one is copied out of its chunk. */
const retain = (chunk: Buffer, start: number, end: number): Buffer => {
  const length = end - start;
  if (length * RETAIN_FRACTION >= chunk.length) return chunk.subarray(start, end);
  const copy = Buffer.allocUnsafe(length);
  chunk.copy(copy, 0, start, end);
  return copy;
};

const asPlatformError = (error: unknown): PlatformError =>
  PlatformError.is(error) ? error : new PlatformError('internal', 'A frame could not be handled.', { cause: error });
