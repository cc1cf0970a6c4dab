/** The connection to the launcher, with its events, and what it tells of the behaviour of sandboxes, subscribed to. */
import type { Clock, Logger, Network, Random } from '@dsec/kit';
import { LauncherClient, type ExitedSandbox } from '@dsec/native-link';
import type { BackendObserver, SandboxExit } from '../backend.ts';
import { actOfDenied, followActs } from './act-streams.ts';
import { KeptLink } from './kept-link.ts';

export interface LauncherLinkOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly socket: string;
}

export class LauncherLink implements AsyncDisposable {
  readonly #link: KeptLink<LauncherClient>;
  #observer: BackendObserver | undefined;

  constructor(options: LauncherLinkOptions) {
    this.#link = new KeptLink<LauncherClient>({
      ...options,
      name: 'launcher',
      serve: async (wire, up, call) => {
        const client = new LauncherClient(wire);
        const events = client.events();
        const behaviour = client.behaviour();
        // Its answer shows that the launcher speaks, and that it has seen the subscription before.
        await client.nodeInfo(call);
        up(client);
        const observer = this.#observer;
        observer?.onReady();
        if (observer !== undefined) {
          const { logger } = options;
          void followActs({ stream: behaviour, actOf: actOfDenied, observer, logger, name: 'launcher' });
        }
        for await (const exited of events) this.#observer?.onExited(exited.id, exitOf(exited));
      },
    });
  }

  /** Connects in the background, again and again. */
  start(observer: BackendObserver): void {
    this.#observer ??= observer;
    this.#link.start();
  }

  /**
   * The launcher, at once when it is connected.
   * @throws PlatformError `unavailable` when it stays away
   */
  client(signal?: AbortSignal): Promise<LauncherClient> {
    return this.#link.client(signal);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#link[Symbol.asyncDispose]();
  }
}

/** How a first process ended, as the launcher tells it. */
export const exitOf = (exit: Omit<ExitedSandbox, 'id' | 'oomKills'> & { readonly oomKills?: number }): SandboxExit => ({
  exitCode: exit.exitCode,
  signal: exit.signal,
  oomKills: exit.oomKills ?? 0,
});
