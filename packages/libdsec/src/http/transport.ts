import type { CommandStart } from '@dsec/contract';
import type { Cancellation } from './cancellation.ts';

/**
 * One HTTP exchange, the only thing that the SDK asks of its surroundings. Two implementations: `node:http` with kept
 * connections (a third of the latency of `fetch` for a small request), and `fetch`, for browsers and for whoever injects one.
 */
export interface TransportRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array<ArrayBuffer> | AsyncIterable<Uint8Array> | undefined;
  readonly cancellation?: Cancellation | undefined;
}

export interface TransportResponse {
  readonly status: number;
  header(name: string): string | undefined;
  /** The whole body as UTF-8; rejects when it is larger than `maxBytes`. */
  text(maxBytes: number): Promise<string>;
  /**
   * The body as it arrives; what is not taken holds the sender back. Leaving the loop early ends the connection.
   * A body that breaks off throws `connection_lost`.
   */
  readonly body: AsyncIterable<Uint8Array<ArrayBuffer>>;
  /**
   * Hands over the body chunk by chunk, waiting where `take` returns a promise; resolves at its end. The quick way: it makes
   * no iterator.
   */
  pump(take: (chunk: Uint8Array<ArrayBuffer>) => Promise<void> | undefined): Promise<void>;
  /** Gives the body up. */
  cancel(): void;
}

export interface Transport {
  /**
   * Resolves when the head of the answer is here, whatever its status.
   * @throws PlatformError `server_unreachable`: nothing was sent; `connection_lost`: it may have been done; the reason of
   * the cancellation when that comes first
   */
  send(request: TransportRequest): Promise<TransportResponse>;
  /**
   * Starts a command over the connection that carries many, where there is one that takes it now; undefined: ask by `send`. What becomes of it is
   * told to `sink`, never before this returns.
   */
  startCommand?(request: CommandRequest, sink: CommandSink): RunningCommand | undefined;
  /** Closes connections that are kept for reuse. */
  close(): Promise<void>;
}

/** A command, as it is asked for over a connection of many. */
export interface CommandRequest extends CommandStart {
  /** Where the connection is asked for. */
  readonly url: string;
  readonly authorization: string;
}

/** Takes what a command says. What it throws ends the command's stream, and is told to `onFailure`. */
export interface CommandSink {
  onData(channel: number, bytes: Uint8Array<ArrayBuffer>): void;
  onMessage(message: Readonly<Record<string, unknown>>): void;
  /** Resolves when more may come; undefined: at once. */
  ready(): Promise<void> | undefined;
  /** The command's stream has ended, with this. Nothing comes after it or `onFailure`. */
  onEnd(result: unknown): void;
  onFailure(error: unknown): void;
}

export interface RunningCommand {
  /** Loses interest; the command goes on. Nothing more is told. */
  reset(): void;
}
