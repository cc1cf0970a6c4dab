import { PlatformError } from '@dsec/contract';
import type { Timing } from '../platform/timing.ts';
import { Cancellation, onAbort } from './cancellation.ts';

/** What every call that waits takes. */
export interface CallOptions {
  /** Gives the call up; it then rejects with `cancelled`. */
  readonly signal?: AbortSignal | undefined;
  /**
   * Milliseconds that the whole call may take, its retries included; it then rejects with `timeout`.
   * Each method says its default.
   */
  readonly timeoutMs?: number | undefined;
}

/** The cancellation of one call: by the caller's signal, or because its time is up. */
export class Deadline extends Cancellation implements Disposable {
  readonly #stopListening: () => void;
  readonly #stopTimer: (() => void) | undefined;

  /** `what` names the call in the error: "stopping sandbox s000". Without a time there is none. */
  constructor(timing: Timing, what: string, options: CallOptions, defaultTimeoutMs?: number) {
    super();
    const { signal } = options;
    const timeoutMs = options.timeoutMs ?? defaultTimeoutMs;
    if (timeoutMs !== undefined && !(timeoutMs > 0)) {
      throw new PlatformError('invalid_argument', `timeoutMs must be greater than 0, not ${timeoutMs}`, {
        details: { field: 'timeoutMs' },
      });
    }
    this.#stopListening = onAbort(signal, () => this.cancel(cancelled(what, signal?.reason)));
    if (timeoutMs !== undefined && timeoutMs !== Infinity) {
      this.#stopTimer = timing.timer(timeoutMs, () => this.cancel(timedOut(what, timeoutMs)));
    }
  }

  [Symbol.dispose](): void {
    this.#stopTimer?.();
    this.#stopListening();
  }
}

export function cancelled(what: string, cause: unknown): PlatformError {
  return new PlatformError('cancelled', `${what} was cancelled by the caller`, { cause });
}

function timedOut(what: string, timeoutMs: number): PlatformError {
  return new PlatformError('timeout', `${what} did not end within ${timeoutMs} ms`, { details: { timeoutMs } });
}
