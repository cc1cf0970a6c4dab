/** A bound on how much happens at once; those who wait are served in their order. */
import { PlatformError } from '@dsec/contract';
import { abortError } from './abort.ts';

export interface SemaphoreOptions {
  readonly permits: number;
  /** Most callers that may wait; the next is refused with `too_many_requests`. */
  readonly maxWaiting: number;
}

interface Waiter {
  readonly admit: () => void;
}

/** At most `permits` holders at once. */
export class Semaphore {
  readonly #maxWaiting: number;
  readonly #waiting: Waiter[] = [];
  #free: number;

  constructor(options: SemaphoreOptions) {
    this.#free = options.permits;
    this.#maxWaiting = options.maxWaiting;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  get free(): number {
    return this.#free;
  }

  /**
   * Waits for a permit; dispose the result to give it back.
   * @throws PlatformError `too_many_requests` when too many wait, `cancelled` or `timeout` when the signal aborts
   */
  async acquire(signal?: AbortSignal): Promise<Disposable> {
    if (signal?.aborted === true) throw abortError(signal);
    if (this.#free > 0) {
      this.#free--;
      return this.#permit();
    }
    if (this.#waiting.length >= this.#maxWaiting)
      throw new PlatformError('too_many_requests', 'too many callers wait already');
    await new Promise<void>((resolve, reject) => {
      const onAbort = (): void => {
        const index = this.#waiting.indexOf(waiter);
        if (index >= 0) this.#waiting.splice(index, 1);
        if (signal !== undefined) reject(abortError(signal));
      };
      const waiter: Waiter = {
        admit: () => {
          signal?.removeEventListener('abort', onAbort);
          resolve();
        },
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiting.push(waiter);
    });
    return this.#permit();
  }

  /** Runs `operation` while holding a permit. */
  async run<T>(operation: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    using _permit = await this.acquire(signal);
    return await operation();
  }

  #permit(): Disposable {
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        // The permit passes on directly, so that a newcomer cannot overtake those who wait.
        const next = this.#waiting.shift();
        if (next === undefined) this.#free++;
        else next.admit();
      },
    };
  }
}
