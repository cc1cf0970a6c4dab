import { PlatformError, type ErrorCode } from '@dsec/contract';
import type { Timing } from '../platform/timing.ts';
import type { Cancellation } from './cancellation.ts';

/** How calls that are safe to repeat are repeated. */
export interface RetryOptions {
  /** Milliseconds for which one call goes on trying. Enough for a restart of the server. @default 30_000 */
  readonly budgetMs?: number;
  /** Greatest delay before the first repetition, milliseconds; each further one may be twice as long. @default 25 */
  readonly firstDelayMs?: number;
  /** Greatest delay between two tries, milliseconds. @default 2_000 */
  readonly maxDelayMs?: number;
}

export const defaultRetry: Required<RetryOptions> = { budgetMs: 30_000, firstDelayMs: 25, maxDelayMs: 2000 };

/**
 * What may be done again: `always`, when doing it twice is doing it once (by its nature or by an idempotency key);
 * `unsent`, only when the server cannot have begun with it; `never`, when what is sent can be read only once.
 */
export type Repeatable = 'always' | 'unsent' | 'never';

const UNSENT: ReadonlySet<ErrorCode> = new Set([
  'server_unreachable',
  'unavailable',
  'too_many_requests',
  'too_many_streams',
]);

/** Whether a call that failed with `error` may be tried again. */
export function isRepeatable(error: unknown, repeatable: Repeatable): error is PlatformError {
  if (!PlatformError.is(error) || repeatable === 'never') return false;
  return UNSENT.has(error.code) || (repeatable === 'always' && error.code === 'connection_lost');
}

/** The tries of one call: full jitter, exponential, within a budget of time. */
export class Retries {
  readonly #timing: Timing;
  readonly #options: Required<RetryOptions>;
  #startedMs: number;
  #tries = 0;

  constructor(timing: Timing, options: Required<RetryOptions>) {
    this.#timing = timing;
    this.#options = options;
    this.#startedMs = timing.monotonicMs();
  }

  /** Waits before the next try. False when the budget is spent; throws its reason when it is cancelled. */
  async next(cancellation: Cancellation): Promise<boolean> {
    const { budgetMs, firstDelayMs, maxDelayMs } = this.#options;
    const delayMs = this.#timing.random() * Math.min(maxDelayMs, firstDelayMs * 2 ** this.#tries);
    this.#tries += 1;
    if (this.#timing.monotonicMs() + delayMs - this.#startedMs > budgetMs) return false;
    await pause(this.#timing, delayMs, cancellation);
    cancellation.throwIfCancelled();
    return true;
  }

  /** Something went well: what comes now is a new failure, with the whole budget. */
  reset(): void {
    this.#tries = 0;
    this.#startedMs = this.#timing.monotonicMs();
  }
}

/** Waits `delayMs`, or until it is cancelled; never rejects. */
function pause(timing: Timing, delayMs: number, cancellation: Cancellation): Promise<void> {
  return new Promise((resolve) => {
    const stopTimer = timing.timer(delayMs, () => {
      stopListening();
      resolve();
    });
    const stopListening = cancellation.onCancel(() => {
      stopTimer();
      resolve();
    });
  });
}
