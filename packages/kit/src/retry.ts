/** Backoff with jitter and a budget. Retries live in one layer only: the SDK for idempotent calls, and reconnecting. */
import { PlatformError } from '@dsec/contract';
import type { Clock } from './clock.ts';
import type { Random } from './random.ts';

export interface BackoffPolicy {
  /** Longest first wait. */
  readonly baseMs: number;
  /** Longest wait. */
  readonly maxMs: number;
}

/** Waits that double up to a bound, each drawn evenly from its upper half, so that many callers do not come back together. */
export class Backoff {
  readonly #policy: BackoffPolicy;
  readonly #random: Random;
  #attempt = 0;

  constructor(policy: BackoffPolicy, random: Random) {
    this.#policy = policy;
    this.#random = random;
  }

  /** The next wait. */
  nextMs(): number {
    const ceilingMs = Math.min(this.#policy.maxMs, this.#policy.baseMs * 2 ** Math.min(this.#attempt, 30));
    this.#attempt++;
    return ceilingMs / 2 + (this.#random.float() * ceilingMs) / 2;
  }

  /** Call when it worked. */
  reset(): void {
    this.#attempt = 0;
  }
}

export interface RetryOptions extends BackoffPolicy {
  readonly clock: Clock;
  readonly random: Random;
  /** Most calls, the first included. */
  readonly attempts: number;
  /** No new call begins after this much time. */
  readonly budgetMs: number;
  readonly signal?: AbortSignal | undefined;
  /** Default: a PlatformError that is retryable. */
  readonly isRetryable?: (error: unknown) => boolean;
}

/** Calls `operation` until it works, fails for good, or attempts or budget are used up; then its last error is thrown. */
export async function retry<T>(options: RetryOptions, operation: (attempt: number) => Promise<T>): Promise<T> {
  const { clock } = options;
  const isRetryable = options.isRetryable ?? ((error: unknown) => PlatformError.is(error) && error.retryable);
  const backoff = new Backoff(options, options.random);
  const endsMs = clock.monotonicMs() + options.budgetMs;
  for (let attempt = 1; ; attempt++) {
    try {
      return await operation(attempt);
    } catch (error) {
      const waitMs = backoff.nextMs();
      if (attempt >= options.attempts || clock.monotonicMs() + waitMs > endsMs || !isRetryable(error)) throw error;
      await clock.sleep(waitMs, { signal: options.signal });
    }
  }
}
