/** Finds the command and session that a process of a sandbox belongs to, by asking its aether only when what is known does not say. */
import type { ActingProcess } from '@dsec/backends';
import { PlatformError } from '@dsec/contract';
import { Semaphore, type Clock, type Logger } from '@dsec/kit';
import type { Sandbox } from '../sandbox.ts';
import { ownerOf, type KnownCommands, type Owner } from './attribution.ts';
import { KNOWN_FOR_MS, LOOKUP_TIMEOUT_MS, LOOKUPS, MAX_KNOWN_SANDBOXES } from './bounds.ts';
import type { RecentCommands } from './recent-commands.ts';

/** Every sandbox of a node may wait for its turn. */
const MAX_WAITING = 131_072;

export interface CommandFinderOptions {
  readonly commands: RecentCommands;
  readonly clock: Clock;
  readonly logger: Logger;
}

export class CommandFinder {
  readonly #options: CommandFinderOptions;
  /** What was heard last, oldest first: what a program has done may be told when its sandbox has ended. */
  readonly #known = new Map<string, KnownCommands>();
  readonly #lookups = new Semaphore({ permits: LOOKUPS, maxWaiting: MAX_WAITING });

  constructor(options: CommandFinderOptions) {
    this.#options = options;
  }

  /** One after the other for each sandbox; `isHurried`: by what is known already. Never rejects. */
  async find(sandbox: Sandbox, process: ActingProcess, atMs: number, isHurried: boolean): Promise<Owner> {
    const known = this.#known.get(sandbox.sandboxId);
    const owner = known === undefined ? {} : this.#ownerIn(known, sandbox, process, atMs);
    if (isHurried || (known !== undefined && this.#isCertain(owner, known, atMs))) return owner;
    const asked = await this.#ask(sandbox);
    return asked === undefined ? owner : this.#ownerIn(asked, sandbox, process, atMs);
  }

  #ownerIn(known: KnownCommands, { sandboxId }: Sandbox, process: ActingProcess, atMs: number): Owner {
    return ownerOf(process, atMs, known, (execId) => this.#options.commands.orderOf(sandboxId, execId));
  }

  /** A session soon has another command, of the same process; a command of its own has its process for itself. */
  #isCertain({ execId, sessionId }: Owner, { askedAtMs }: KnownCommands, atMs: number): boolean {
    if (askedAtMs >= atMs) return true;
    return execId !== undefined && sessionId === undefined && this.#options.clock.now() - askedAtMs <= KNOWN_FOR_MS;
  }

  #remember(sandboxId: string, known: KnownCommands): void {
    this.#known.delete(sandboxId);
    this.#known.set(sandboxId, known);
    if (this.#known.size <= MAX_KNOWN_SANDBOXES) return;
    const [oldest] = this.#known.keys();
    if (oldest !== undefined) this.#known.delete(oldest);
  }

  /** Undefined when it does not say. */
  async #ask(sandbox: Sandbox): Promise<KnownCommands | undefined> {
    const { clock, logger } = this.#options;
    using _turn = await this.#lookups.acquire();
    const { channel, sandboxId } = sandbox;
    if (channel === undefined) return undefined;
    const askedAtMs = clock.now();
    try {
      const [execs, sessions] = await Promise.all([
        channel.execs({ timeoutMs: LOOKUP_TIMEOUT_MS }),
        channel.sessions({ timeoutMs: LOOKUP_TIMEOUT_MS }),
      ]);
      const known = { askedAtMs, execs, sessions };
      this.#remember(sandboxId, known);
      return known;
    } catch (error) {
      if (!PlatformError.is(error)) throw error;
      logger.debug('behaviour.commands', { sandboxId, outcome: error.code });
      return undefined;
    }
  }
}
