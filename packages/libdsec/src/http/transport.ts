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
  /** Closes connections that are kept for reuse. */
  close(): Promise<void>;
}
