/** The servers that the node itself asks: those of its resolv.conf, read again when it has changed and somebody asks. */
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import type { Clock, Peer } from '@dsec/kit';
import { MAX_SERVERS, SERVERS_CHECK_MS } from './bounds.ts';

const DNS_PORT = 53;

export interface NameServers {
  /** In the order in which they are asked; none when the node has none. */
  list(): Promise<readonly Peer[]>;
}

/** The `nameserver` lines (resolv.conf(5)). */
export function parseResolvConf(text: string): readonly Peer[] {
  const servers: Peer[] = [];
  for (const line of text.split('\n')) {
    const address = /^nameserver[ \t]+(\S+)/.exec(line)?.[1];
    // A link-local server carries its interface behind `%`, which the kernel takes as it is.
    if (address !== undefined && isIP(address) !== 0) servers.push({ address, port: DNS_PORT });
  }
  return servers.slice(0, MAX_SERVERS);
}

export class ResolvConf implements NameServers {
  readonly #path: string;
  readonly #clock: Clock;
  #servers: readonly Peer[] = [];
  #readMs = Number.NEGATIVE_INFINITY;
  #reading: Promise<void> | undefined;

  constructor(path: string, clock: Clock) {
    this.#path = path;
    this.#clock = clock;
  }

  async list(): Promise<readonly Peer[]> {
    if (this.#clock.monotonicMs() - this.#readMs >= SERVERS_CHECK_MS) {
      this.#reading ??= this.#read();
      await this.#reading;
    }
    return this.#servers;
  }

  async #read(): Promise<void> {
    try {
      this.#servers = parseResolvConf(await readFile(this.#path, 'utf8'));
    } catch {
      // A file that is being replaced: the servers from before are better than none.
    }
    this.#readMs = this.#clock.monotonicMs();
    this.#reading = undefined;
  }
}
