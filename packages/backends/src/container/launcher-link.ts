/**
 * The connection to the launcher: made again whenever it is lost, with its events subscribed to. While the launcher is away a request waits a
 * little, since a restart takes about a second; what was sent when the connection breaks ends with `connection_lost`.
 */
import { PlatformError } from '@dsec/contract';
import { Backoff, withDeadline, orAborted, type Clock, type Logger, type Network, type Random } from '@dsec/kit';
import { LauncherClient, WireClient, type ExitedSandbox } from '@dsec/native-link';
import type { BackendObserver, SandboxExit } from '../backend.ts';

/** How long a request waits for a launcher that is away. */
const PATIENCE_MS = 5000;
const RECONNECT = { baseMs: 10, maxMs: 500 } as const;

export interface LauncherLinkOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly socket: string;
}

export class LauncherLink implements AsyncDisposable {
  readonly #options: LauncherLinkOptions;
  readonly #controller = new AbortController();
  #client: LauncherClient | undefined;
  #wire: WireClient | undefined;
  #running: Promise<void> | undefined;
  /** Settles when a connection comes up. */
  #up = Promise.withResolvers<undefined>();

  constructor(options: LauncherLinkOptions) {
    this.#options = options;
  }

  /** Connects in the background, again and again. */
  start(observer: BackendObserver): void {
    this.#running ??= this.#keepConnected(observer, this.#controller.signal);
  }

  /**
   * The launcher, at once when it is connected.
   * @throws PlatformError `unavailable` when it stays away
   */
  async client(signal?: AbortSignal): Promise<LauncherClient> {
    return this.#client ?? (await this.#connected(signal));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#controller.abort();
    await this.#wire?.close();
    await this.#running;
  }

  async #connected(signal: AbortSignal | undefined): Promise<LauncherClient> {
    const { clock } = this.#options;
    try {
      await withDeadline({ clock, what: 'connecting to the launcher', timeoutMs: PATIENCE_MS, signal }, (deadline) =>
        orAborted(this.#up.promise, deadline),
      );
    } catch (cause) {
      if (!PlatformError.is(cause) || cause.code !== 'timeout') throw cause;
      throw new PlatformError('unavailable', 'the launcher does not answer', { cause });
    }
    if (this.#client === undefined) throw new PlatformError('unavailable', 'the launcher does not answer');
    return this.#client;
  }

  async #keepConnected(observer: BackendObserver, signal: AbortSignal): Promise<void> {
    const { clock, random, logger } = this.#options;
    const backoff = new Backoff(RECONNECT, random);
    let isKnownLost = false;
    while (!signal.aborted) {
      try {
        await this.#serve(observer, signal, () => {
          isKnownLost = false;
          backoff.reset();
        });
      } catch (error) {
        // Said once for each loss: while it restarts this fails several times.
        if (!isKnownLost && !signal.aborted) logger.warn('launcher.connection', { outcome: 'lost', error });
        isKnownLost = true;
      }
      await clock.sleep(backoff.nextMs(), { signal }).catch(() => undefined);
    }
  }

  /** Holds one connection until it is lost. */
  async #serve(observer: BackendObserver, signal: AbortSignal, onUp: () => void): Promise<void> {
    const { network, clock, logger, socket } = this.#options;
    const wire = WireClient.connect(await network.connectUnix(socket, { signal }), { role: 'edge', clock });
    this.#wire = wire;
    const client = new LauncherClient(wire);
    try {
      const events = client.events();
      // Its answer shows that the launcher speaks, and that it has seen the subscription before.
      await client.nodeInfo({ signal, timeoutMs: PATIENCE_MS });
      this.#client = client;
      this.#up.resolve(undefined);
      logger.info('launcher.connection', { outcome: 'ok' });
      onUp();
      observer.onReady();
      for await (const exited of events) observer.onExited(exited.id, exitOf(exited));
    } finally {
      if (this.#client === client) {
        this.#client = undefined;
        this.#up = Promise.withResolvers<undefined>();
      }
      await wire.close();
    }
  }
}

/** How a first process ended, as the launcher tells it. */
export const exitOf = (exit: Omit<ExitedSandbox, 'id' | 'oomKills'> & { readonly oomKills?: number }): SandboxExit => ({
  exitCode: exit.exitCode,
  signal: exit.signal,
  oomKills: exit.oomKills ?? 0,
});
