/**
 * Calls to a daemon of the node that is asked rarely, so that each call has a connection of its own; one that the daemon's restart breaks is made again.
 */
import { PlatformError } from '@dsec/contract';
import { retry, withDeadline, type Clock, type Network, type Random } from '@dsec/kit';
import { WireClient } from './wire/client.ts';
import type { StreamOptions } from './wire/stream-api.ts';

/** Checking the metadata of a large layer takes seconds. */
const PATIENCE_MS = 30_000;
const RETRY = { baseMs: 20, maxMs: 500, attempts: 100_000 } as const;

export interface DaemonLinkOptions<Client> {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly socket: string;
  /** For errors. */
  readonly name: string;
  /** What this side calls itself. */
  readonly role: string;
  readonly client: (wire: WireClient) => Client;
  /** Longest that a call waits for a daemon that is away or busy. @default 30 seconds */
  readonly patienceMs?: number;
}

export class DaemonLink<Client> {
  readonly #options: DaemonLinkOptions<Client>;

  constructor(options: DaemonLinkOptions<Client>) {
    this.#options = options;
  }

  /**
   * Asks again until there is an answer: what is asked must bear that.
   * @throws PlatformError `unavailable` when the daemon stays away, and what it answers
   */
  async call<T>(ask: (client: Client, options: StreamOptions) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const { clock, name, patienceMs: timeoutMs = PATIENCE_MS } = this.#options;
    try {
      return await withDeadline({ clock, what: `asking the ${name}`, timeoutMs, signal }, (deadline) =>
        retry({ ...RETRY, ...this.#options, budgetMs: timeoutMs, signal: deadline, isRetryable: isAway }, () =>
          this.#callOnce(ask, deadline),
        ),
      );
    } catch (cause) {
      if (!isAway(cause) && !(PlatformError.is(cause) && cause.code === 'timeout')) throw cause;
      throw new PlatformError('unavailable', `the ${name} does not answer`, { cause });
    }
  }

  async #callOnce<T>(ask: (client: Client, options: StreamOptions) => Promise<T>, signal: AbortSignal): Promise<T> {
    const { network, clock, socket, role, client } = this.#options;
    await using wire = WireClient.connect(await network.connectUnix(socket, { signal }), { role, clock });
    return await ask(client(wire), { signal });
  }
}

const isAway = (error: unknown): boolean =>
  PlatformError.is(error) && ['unavailable', 'connection_lost'].includes(error.code);
