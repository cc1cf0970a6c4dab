/** What a stream is to its owner, to its connection, and to a relay. */
import type { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import type { JsonObject } from '@dsec/wire';

import type { Output } from './output.ts';

export type WireItem =
  | { readonly type: 'data'; readonly channel: number; readonly bytes: Buffer }
  | { readonly type: 'message'; readonly value: JsonObject }
  /** The other side sends no more data. */
  | { readonly type: 'end' };

/**
 * What both ends of a stream have. Iterating gives what the other side sends and, as it is taken, lets it send more; one consumer at a time.
 * The iteration ends when the stream does, and throws if that was by an error; leaving it early does not end the stream.
 */
export interface WireStreamBase extends AsyncIterableIterator<WireItem, undefined> {
  readonly id: number;
  readonly method: string;
  readonly isOver: boolean;
  /**
   * Sends bytes and resolves when all of them have credit and room; they must not be changed after that either.
   * @throws PlatformError the error that ended the stream, `cancelled` when it ended well
   */
  write(bytes: Uint8Array, channel?: number): Promise<void>;
  /** @throws PlatformError as `write`; `request_too_large` beyond 64 KiB */
  message(value: object): Promise<void>;
  /** No more data from this side. */
  end(): void;
}

/** A stream that this side opened. */
export interface WireStream extends WireStreamBase {
  /** The result; rejects with the error that ended the stream. What was sent before it waits to be iterated. */
  readonly result: Promise<unknown>;
  /** Loses interest: the other side drops the stream. Idempotent. */
  reset(reason?: PlatformError): void;
}

/** A stream that the other side opened. */
export interface WireServerStream extends WireStreamBase {
  /** Aborts when the client has lost interest or is gone. */
  readonly signal: AbortSignal;
  /** Ends the stream with a result. Does nothing when it is over. */
  close(result?: unknown): void;
  /** Ends the stream with an error. Does nothing when it is over. */
  fail(error: PlatformError): void;
}

/** Takes what comes in at a stream as it is, in place of a consumer. */
export interface StreamTap {
  payload(type: number, channel: number, chunk: Buffer, start: number, end: number): void;
  end(): void;
  window(grant: number): void;
  /** The payload of the CLOSE that ended the stream. */
  close(chunk: Buffer, start: number, end: number): void;
  /** The stream ended in another way: by a RESET, by its owner here, or with the connection. */
  broken(error: PlatformError): void;
}

/** Something that has more to send than there was room for. */
export interface WaitingSender {
  /** In the connection's queue of those that wait for room. */
  isWaiting: boolean;
  pump(): void;
}

/** What a stream needs of its connection. */
export interface StreamHost {
  readonly output: Output;
  readonly clock: Clock;
  readonly isServer: boolean;
  /** The stream is over. */
  forget(streamId: number): void;
  /** Calls `pump` when there is room. */
  waitForRoom(sender: WaitingSender): void;
  /** Ends the connection for a fault of the other side. */
  fail(error: PlatformError): void;
}

export interface StreamOptions {
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
}
