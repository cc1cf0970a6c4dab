import { PlatformError } from '@dsec/contract';
import { Backoff, type Clock, type Random } from '@dsec/kit';
import { isTransient, retryAfterOf } from './registry-failure.ts';

const BASE_MS = 500;
const MAX_MS = 15_000;
/** A registry that wants more patience than this is given up: the error says when to come back. */
const MAX_RETRY_AFTER_MS = 60_000;

export interface RetryBudgetOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Most failures in a row, the last one included. */
  readonly attempts: number;
  readonly signal: AbortSignal | undefined;
}

/** Decides after each failure whether to wait and go on. The only place where what a registry refuses is tried again. */
export class RetryBudget {
  readonly #options: RetryBudgetOptions;
  readonly #backoff: Backoff;
  #failures = 0;

  constructor(options: RetryBudgetOptions) {
    this.#options = options;
    this.#backoff = new Backoff({ baseMs: BASE_MS, maxMs: MAX_MS }, options.random);
  }

  /** What came is worth as much as a success: failures are counted anew. */
  progressed(): void {
    this.#failures = 0;
    this.#backoff.reset();
  }

  /** Waits until the next attempt may begin: as long as the registry says (and a little more, not to come back all at once), else ever longer. */
  async afterFailure(error: unknown): Promise<void> {
    this.#failures++;
    if (!isTransient(error) || this.#failures >= this.#options.attempts) throw error;
    const backoffMs = this.#backoff.nextMs();
    const askedMs = PlatformError.is(error) ? retryAfterOf(error.details) : undefined;
    if (askedMs !== undefined && askedMs > MAX_RETRY_AFTER_MS) throw error;
    const waitMs = askedMs === undefined ? backoffMs : askedMs + this.#options.random.float() * BASE_MS;
    try {
      await this.#options.clock.sleep(waitMs, { signal: this.#options.signal });
    } catch (end) {
      // Whoever ran out of time waiting wants to know for what.
      if (!PlatformError.is(end)) throw end;
      throw new PlatformError(end.code, end.message, { details: end.details, cause: error });
    }
  }
}
