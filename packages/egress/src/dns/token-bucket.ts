/** A rate with a burst. Costs nothing while nobody asks. */
import type { Clock } from '@dsec/kit';

export interface TokenBucketOptions {
  readonly clock: Clock;
  readonly perSecond: number;
  readonly burst: number;
}

export class TokenBucket {
  readonly #options: TokenBucketOptions;
  #tokens: number;
  #atMs: number;

  constructor(options: TokenBucketOptions) {
    this.#options = options;
    this.#tokens = options.burst;
    this.#atMs = options.clock.monotonicMs();
  }

  /** False when the rate is used up. */
  take(): boolean {
    const { clock, perSecond, burst } = this.#options;
    const nowMs = clock.monotonicMs();
    this.#tokens = Math.min(burst, this.#tokens + ((nowMs - this.#atMs) / 1000) * perSecond);
    this.#atMs = nowMs;
    if (this.#tokens < 1) return false;
    this.#tokens -= 1;
    return true;
  }
}
