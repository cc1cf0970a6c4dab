/**
 * Compares the journal with the node, whenever the launcher is connected anew and now and then: live sandboxes that are known are
 * adopted, those that the node lost have failed, and what nobody knows is destroyed. A create under way is never touched: it is known
 * before the launcher hears of it, and what was asked of the node before it was known is not held against it.
 */
import type { Backend, PresentSandbox } from '@dsec/backends';
import { Backoff, Semaphore, type Clock, type Logger, type Random } from '@dsec/kit';
import { Latch } from './latch.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { Sandbox } from './sandbox.ts';

/** Sandboxes that are adopted or destroyed at the same time. */
const CONCURRENCY = 32;
const MAX_SANDBOXES = 131_072;
const LIST_TIMEOUT_MS = 30_000;
const DESTROY_TIMEOUT_MS = 30_000;
const RETRY = { baseMs: 100, maxMs: 5000 } as const;

export interface ReconcilerOptions {
  readonly backend: Backend;
  readonly lifecycle: Lifecycle;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly intervalMs: number;
  /** The node was restarted since the journal was last written. */
  readonly isRebooted: boolean;
}

export class Reconciler {
  readonly #options: ReconcilerOptions;
  readonly #work = new Semaphore({ permits: CONCURRENCY, maxWaiting: MAX_SANDBOXES });
  /** Open when the node was compared with the journal for the first time. */
  readonly settled = new Latch();
  #wake = Promise.withResolvers<undefined>();

  constructor(options: ReconcilerOptions) {
    this.#options = options;
  }

  /** The launcher is connected: look now. */
  wake(): void {
    this.#wake.resolve(undefined);
  }

  /** Runs until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { random, logger, intervalMs } = this.#options;
    const backoff = new Backoff(RETRY, random);
    let waitMs = Number.POSITIVE_INFINITY;
    while (!signal.aborted) {
      await this.#nap(waitMs, signal);
      if (signal.aborted) return;
      try {
        await this.reconcile();
        backoff.reset();
        waitMs = intervalMs;
      } catch (error) {
        waitMs = backoff.nextMs();
        logger.warn('node.reconcile', { outcome: 'failed', error });
      }
    }
  }

  /** One comparison. Idempotent. */
  async reconcile(): Promise<void> {
    const { backend, lifecycle, logger } = this.#options;
    const { registry } = lifecycle.parts;
    const expected = [...registry.unfinished()].filter((sandbox) => sandbox.making === undefined);
    const listed = await backend.list({ timeoutMs: LIST_TIMEOUT_MS });
    const counts = { adopted: 0, lost: 0, strays: 0 };
    const present = new Set<string>();
    const work: Promise<void>[] = [];
    for (const found of listed) {
      present.add(found.sandboxId);
      const sandbox = registry.get(found.sandboxId);
      if (sandbox === undefined || sandbox.isOver) {
        counts.strays++;
        work.push(this.#destroyStray(found.sandboxId));
      } else if (sandbox.making === undefined) {
        const adoption = this.#compare(sandbox, found);
        if (adoption === undefined) continue;
        work.push(adoption);
        counts.adopted++;
      }
    }
    for (const sandbox of expected) {
      if (present.has(sandbox.sandboxId) || sandbox.isOver) continue;
      if (sandbox.isLive) counts.lost++;
      lifecycle.apply(sandbox, { type: 'lost', rebooted: this.#options.isRebooted && !this.settled.isOpen });
    }
    if (!this.settled.isOpen || counts.adopted + counts.lost + counts.strays > 0) {
      logger.info('node.reconcile', { outcome: 'ok', listed: listed.length, ...counts });
    }
    this.settled.open();
    await Promise.all(work);
  }

  /** A sandbox that is known and that the node has. */
  #compare(sandbox: Sandbox, found: PresentSandbox): Promise<void> | undefined {
    const { lifecycle } = this.#options;
    if (!sandbox.isLive) {
      lifecycle.apply(sandbox, { type: 'adopted' });
      return undefined;
    }
    if (!found.isLive) {
      lifecycle.exited(sandbox, found.exit ?? { oomKills: 0 });
      return undefined;
    }
    if (sandbox.channel !== undefined || sandbox.recovery !== undefined) return undefined;
    // It lives, whatever its channel will say; requests wait for that.
    lifecycle.apply(sandbox, { type: 'adopted' });
    const adoption = this.#adopt(sandbox);
    sandbox.recovery = adoption.finally(() => {
      sandbox.recovery = undefined;
    });
    return adoption;
  }

  /** Never rejects. */
  async #adopt(sandbox: Sandbox): Promise<void> {
    const { lifecycle, logger } = this.#options;
    const { lifetime } = sandbox;
    // Until its commands are known it must not seem idle.
    lifetime?.enter();
    try {
      await this.#work.run(() => lifecycle.channels.adopt(sandbox));
    } catch (error) {
      logger.warn('sandbox.adopt', { sandboxId: sandbox.sandboxId, outcome: 'failed', error });
      lifecycle.apply(sandbox, {
        type: 'channel_lost',
        detail: 'The edge could not reach aether when it came back.',
      });
    } finally {
      lifetime?.leave();
    }
  }

  /** Never rejects: what is left is found again. */
  async #destroyStray(sandboxId: string): Promise<void> {
    const { backend, logger } = this.#options;
    try {
      await this.#work.run(() => backend.destroy(sandboxId, { timeoutMs: DESTROY_TIMEOUT_MS }));
      logger.info('sandbox.stray', { sandboxId, outcome: 'destroyed' });
    } catch (error) {
      logger.warn('sandbox.stray', { sandboxId, outcome: 'failed', error });
    }
  }

  /** Waits for the time, a wake-up or the signal. */
  async #nap(ms: number, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    const onAbort = (): void => this.wake();
    signal.addEventListener('abort', onAbort, { once: true });
    const timer = ms === Number.POSITIVE_INFINITY ? undefined : clock.setTimer(ms, () => this.wake());
    await this.#wake.promise;
    this.#wake = Promise.withResolvers<undefined>();
    timer?.cancel();
    signal.removeEventListener('abort', onAbort);
  }
}
