/** Calls to layerd. They are rare, so each has a connection of its own; one that layerd's restart breaks is made again. */
import { PlatformError } from '@dsec/contract';
import { retry, withDeadline, type Clock, type Network, type Random } from '@dsec/kit';
import { LayerdClient, WireClient, type StreamOptions } from '@dsec/native-link';

/** Longest a call waits for a layerd that is away or busy; checking the metadata of a large layer takes seconds. */
const PATIENCE_MS = 30_000;
const RETRY = { baseMs: 20, maxMs: 500, attempts: 1000, budgetMs: PATIENCE_MS } as const;

export interface LayerdLinkOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly socket: string;
}

export class LayerdLink {
  readonly #options: LayerdLinkOptions;

  constructor(options: LayerdLinkOptions) {
    this.#options = options;
  }

  /**
   * All methods of layerd may be asked again.
   * @throws PlatformError `unavailable` when it stays away, and what layerd answers
   */
  async call<T>(ask: (layerd: LayerdClient, options: StreamOptions) => Promise<T>, signal: AbortSignal): Promise<T> {
    const { clock } = this.#options;
    try {
      return await withDeadline({ clock, what: 'asking layerd', timeoutMs: PATIENCE_MS, signal }, (deadline) =>
        retry({ ...RETRY, ...this.#options, signal: deadline, isRetryable: isAway }, () =>
          this.#callOnce(ask, deadline),
        ),
      );
    } catch (cause) {
      if (!isAway(cause) && !(PlatformError.is(cause) && cause.code === 'timeout')) throw cause;
      throw new PlatformError('unavailable', 'layerd does not answer', { cause });
    }
  }

  async #callOnce<T>(
    ask: (layerd: LayerdClient, options: StreamOptions) => Promise<T>,
    signal: AbortSignal,
  ): Promise<T> {
    const { network, clock, socket } = this.#options;
    await using wire = WireClient.connect(await network.connectUnix(socket, { signal }), { role: 'edge', clock });
    return await ask(new LayerdClient(wire), { signal });
  }
}

const isAway = (error: unknown): boolean =>
  PlatformError.is(error) && ['unavailable', 'connection_lost'].includes(error.code);
