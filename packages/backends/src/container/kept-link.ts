/**
 * A connection to a daemon of the node that is made again whenever it is lost. While the daemon is away a request waits a little, since a restart takes
 * about a second; what was sent when the connection breaks ends with `connection_lost`.
 */
import { PlatformError } from '@dsec/contract';
import { Backoff, orAborted, withDeadline, type Clock, type Logger, type Network, type Random } from '@dsec/kit';
import { WireClient } from '@dsec/native-link';

/** How long a request waits for a daemon that is away. */
const PATIENCE_MS = 5000;
const RECONNECT = { baseMs: 10, maxMs: 500 } as const;

export interface KeptLinkOptions<Client> {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly socket: string;
  /** For errors and logs. */
  readonly name: string;
  /**
   * Serves one connection, and resolves or rejects when that is lost; it calls `up` when the daemon has answered.
   */
  readonly serve: (wire: WireClient, up: (client: Client) => void, call: GreetingOptions) => Promise<void>;
}

/** Bounds of the first question on a connection. */
interface GreetingOptions {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

export class KeptLink<Client> implements AsyncDisposable {
  readonly #options: KeptLinkOptions<Client>;
  readonly #controller = new AbortController();
  #client: Client | undefined;
  #wire: WireClient | undefined;
  #running: Promise<void> | undefined;
  /** Settles when a connection comes up. */
  #up = Promise.withResolvers<undefined>();

  constructor(options: KeptLinkOptions<Client>) {
    this.#options = options;
  }

  /** Connects in the background, again and again. */
  start(): void {
    this.#running ??= this.#keepConnected(this.#controller.signal);
  }

  /**
   * The daemon, at once when it is connected.
   * @throws PlatformError `unavailable` when it stays away
   */
  async client(signal?: AbortSignal): Promise<Client> {
    return this.#client ?? (await this.#connected(signal));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#controller.abort();
    await this.#wire?.close();
    await this.#running;
  }

  async #connected(signal: AbortSignal | undefined): Promise<Client> {
    const { clock, name } = this.#options;
    try {
      await withDeadline({ clock, what: `connecting to the ${name}`, timeoutMs: PATIENCE_MS, signal }, (deadline) =>
        orAborted(this.#up.promise, deadline),
      );
    } catch (cause) {
      if (!PlatformError.is(cause) || cause.code !== 'timeout') throw cause;
      throw new PlatformError('unavailable', `the ${name} does not answer`, { cause });
    }
    if (this.#client === undefined) throw new PlatformError('unavailable', `the ${name} does not answer`);
    return this.#client;
  }

  async #keepConnected(signal: AbortSignal): Promise<void> {
    const { clock, random, logger, name } = this.#options;
    const backoff = new Backoff(RECONNECT, random);
    let isKnownLost = false;
    while (!signal.aborted) {
      try {
        await this.#serve(signal, () => {
          isKnownLost = false;
          backoff.reset();
        });
      } catch (error) {
        // Said once for each loss: while it restarts this fails several times.
        if (!isKnownLost && !signal.aborted) logger.warn(`${name}.connection`, { outcome: 'lost', error });
        isKnownLost = true;
      }
      await clock.sleep(backoff.nextMs(), { signal }).catch(() => undefined);
    }
  }

  /** Holds one connection until it is lost. */
  async #serve(signal: AbortSignal, onUp: () => void): Promise<void> {
    const { network, clock, logger, socket, name, serve } = this.#options;
    const wire = WireClient.connect(await network.connectUnix(socket, { signal }), { role: 'edge', clock });
    this.#wire = wire;
    let mine: Client | undefined;
    const up = (client: Client): void => {
      mine = client;
      this.#client = client;
      this.#up.resolve(undefined);
      logger.info(`${name}.connection`, { outcome: 'ok' });
      onUp();
    };
    try {
      await serve(wire, up, { signal, timeoutMs: PATIENCE_MS });
    } finally {
      if (mine !== undefined && this.#client === mine) {
        this.#client = undefined;
        this.#up = Promise.withResolvers<undefined>();
      }
      await wire.close();
    }
  }
}
