import type { Fetch } from '../http/fetch-transport.ts';
import type { Transport } from '../http/transport.ts';
import type { Timing } from './timing.ts';

/** A server that is on this machine. */
export interface LocalSocket {
  readonly endpoint: string;
  readonly socketPath: string;
}

/**
 * What differs between Node and browsers. `#platform` in package.json names the file that each of them loads, so that a bundle
 * for a browser holds nothing of Node.
 */
export interface Platform {
  /** Where requests go when the caller injects no `fetch`. */
  transport(timing: Timing, local?: LocalSocket): Transport;
  /** For requests that are not of the API: those to the ports of a sandbox. */
  readonly fetch: Fetch;
  /** An environment variable; undefined where there are none. */
  variable(name: string): string | undefined;
  /** A tar of a local directory. */
  packDirectory(path: string): Promise<AsyncIterable<Uint8Array>>;
  /** Unpacks a tar, which may be hostile, below a local directory. */
  unpackDirectory(tar: AsyncIterable<Uint8Array<ArrayBuffer>>, path: string): Promise<void>;
}
