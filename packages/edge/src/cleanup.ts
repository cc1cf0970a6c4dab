/**
 * Removes ended sandboxes from the node and goes on until nothing is left. Idempotent at every step: the launcher is asked to destroy, and
 * asked again, until it says that there is nothing.
 */
import type { Backend } from '@dsec/backends';
import { Backoff, Semaphore, type Clock, type Logger, type Random, type Timer } from '@dsec/kit';
import type { Uplinks } from './policy/uplinks.ts';
import type { Sandbox } from './sandbox.ts';

/** Destroys at the same time. */
const CONCURRENCY = 16;
/** All that can wait: every sandbox of a node. */
const MAX_WAITING = 131_072;
/** A destroy that takes longer is asked for again; the launcher does the work once. */
const DESTROY_TIMEOUT_MS = 30_000;
/** A journal that does not write holds up the removal for this long: a full disk is emptied by removals. */
const RECORD_WAIT_MS = 1000;
const RETRY = { baseMs: 50, maxMs: 5000 } as const;

interface Work {
  readonly backoff: Backoff;
  isRunning: boolean;
  timer: Timer | undefined;
  attempts: number;
}

export interface CleanupOptions {
  readonly backend: Backend;
  readonly uplinks: Uplinks;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  /** Nothing is left. */
  readonly onDone: (sandbox: Sandbox) => void;
  readonly onFailed: (sandbox: Sandbox) => void;
}

export class Cleanup implements Disposable {
  readonly #options: CleanupOptions;
  readonly #work = new Map<Sandbox, Work>();
  readonly #semaphore = new Semaphore({ permits: CONCURRENCY, maxWaiting: MAX_WAITING });
  readonly #controller = new AbortController();

  constructor(options: CleanupOptions) {
    this.#options = options;
  }

  /** Sandboxes whose remains are being removed. */
  get size(): number {
    return this.#work.size;
  }

  /** Begins, or tries again at once when it waits for its next attempt. */
  begin(sandbox: Sandbox): void {
    let work = this.#work.get(sandbox);
    if (work === undefined) {
      work = { backoff: new Backoff(RETRY, this.#options.random), isRunning: false, timer: undefined, attempts: 0 };
      this.#work.set(sandbox, work);
    }
    if (work.isRunning) return;
    work.timer?.cancel();
    work.timer = undefined;
    work.isRunning = true;
    void this.#run(sandbox, work);
  }

  /** Tries again after a pause. */
  retry(sandbox: Sandbox): void {
    const work = this.#work.get(sandbox);
    if (work === undefined || this.#controller.signal.aborted) return;
    work.timer = this.#options.clock.setTimer(work.backoff.nextMs(), () => this.begin(sandbox));
  }

  [Symbol.dispose](): void {
    this.#controller.abort();
    for (const work of this.#work.values()) work.timer?.cancel();
    this.#work.clear();
  }

  /**
   * Resolves when the cause of the end is durable, or is not for too long. Removed before that, a sandbox that was stopped would seem lost
   * to an edge that starts anew.
   */
  async #recorded(sandbox: Sandbox): Promise<void> {
    if (sandbox.endRecorded.isOpen) return;
    const late = Promise.withResolvers<undefined>();
    const timer = this.#options.clock.setTimer(RECORD_WAIT_MS, () => late.resolve(undefined));
    await Promise.race([sandbox.endRecorded.opened, late.promise]);
    timer.cancel();
  }

  /** Never rejects. */
  async #run(sandbox: Sandbox, work: Work): Promise<void> {
    const { backend, uplinks, logger, onDone, onFailed } = this.#options;
    const { signal } = this.#controller;
    const { sandboxId } = sandbox;
    try {
      // Half of a sandbox must not be made behind the back of its destruction.
      await sandbox.making;
      await this.#recorded(sandbox);
      await this.#semaphore.run(async () => {
        const [destroyed, closed] = await Promise.allSettled([
          backend.destroy(sandboxId, { signal, timeoutMs: DESTROY_TIMEOUT_MS }),
          uplinks.close(sandbox, signal),
        ]);
        if (destroyed.status === 'rejected') throw destroyed.reason;
        if (closed.status === 'rejected') throw closed.reason;
      }, signal);
    } catch (error) {
      work.isRunning = false;
      work.attempts++;
      if (signal.aborted) return;
      logger.warn('sandbox.cleanup', { sandboxId, outcome: 'incomplete', attempts: work.attempts, error });
      onFailed(sandbox);
      return;
    }
    work.isRunning = false;
    this.#work.delete(sandbox);
    onDone(sandbox);
  }
}
