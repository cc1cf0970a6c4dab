/** Time, injected everywhere, so that the whole control plane can run on a clock that a test steps. */
import { abortError } from './abort.ts';

/** A pending call that can be taken back. */
export interface Timer {
  /** Idempotent; does nothing once the timer has fired. */
  cancel(): void;
}

export interface SleepOptions {
  readonly signal?: AbortSignal | undefined;
}

/** The only source of time. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Milliseconds since some fixed moment; never goes back. Durations are differences of it. */
  monotonicMs(): number;
  /** Calls `fn` once, `ms` from now. */
  setTimer(ms: number, fn: () => void): Timer;
  /**
   * Resolves `ms` from now.
   * @throws PlatformError `cancelled` (or the PlatformError that the signal carries) when the signal aborts first
   */
  sleep(ms: number, options?: SleepOptions): Promise<void>;
}

/** Beyond this Node's timers fire at once. */
const MAX_NATIVE_TIMER_MS = 2 ** 31 - 1;

abstract class BaseClock implements Clock {
  abstract now(): number;
  abstract monotonicMs(): number;
  abstract setTimer(ms: number, fn: () => void): Timer;

  sleep(ms: number, options: SleepOptions = {}): Promise<void> {
    const { signal } = options;
    if (signal?.aborted === true) return Promise.reject(abortError(signal));
    return new Promise((resolve, reject) => {
      const onAbort = (): void => {
        timer.cancel();
        if (signal !== undefined) reject(abortError(signal));
      };
      const timer = this.setTimer(ms, () => {
        signal?.removeEventListener('abort', onAbort);
        resolve();
      });
      signal?.addEventListener('abort', onAbort, { once: true });
    });
  }
}

/** The time of the machine. */
export class SystemClock extends BaseClock {
  now(): number {
    return Date.now();
  }

  monotonicMs(): number {
    return performance.now();
  }

  setTimer(ms: number, fn: () => void): Timer {
    const dueMs = this.monotonicMs() + ms;
    let handle: NodeJS.Timeout;
    const arm = (waitMs: number): void => {
      const capped = Math.min(Math.max(waitMs, 0), MAX_NATIVE_TIMER_MS);
      handle = setTimeout(() => {
        const leftMs = dueMs - this.monotonicMs();
        if (capped === MAX_NATIVE_TIMER_MS && leftMs > 0) arm(leftMs);
        else fn();
      }, capped);
    };
    arm(ms);
    return { cancel: () => clearTimeout(handle) };
  }
}

interface ManualTimer {
  readonly dueMs: number;
  readonly order: number;
  readonly fn: () => void;
}

/** A clock that moves only when it is told to. */
export class ManualClock extends BaseClock {
  #elapsedMs = 0;
  #order = 0;
  readonly #startMs: number;
  readonly #timers = new Set<ManualTimer>();

  constructor(startMs = 1_700_000_000_000) {
    super();
    this.#startMs = startMs;
  }

  now(): number {
    return this.#startMs + this.#elapsedMs;
  }

  monotonicMs(): number {
    return this.#elapsedMs;
  }

  setTimer(ms: number, fn: () => void): Timer {
    const timer: ManualTimer = { dueMs: this.#elapsedMs + Math.max(ms, 0), order: this.#order++, fn };
    this.#timers.add(timer);
    return { cancel: () => void this.#timers.delete(timer) };
  }

  /** Timers that have neither fired nor been cancelled. */
  get pendingTimers(): number {
    return this.#timers.size;
  }

  /** When the next timer is due, in milliseconds from now; undefined without one. */
  get nextTimerMs(): number | undefined {
    const next = this.#next(Number.POSITIVE_INFINITY);
    return next === undefined ? undefined : next.dueMs - this.#elapsedMs;
  }

  /** Moves time on by `ms`, firing each due timer at its own moment and letting what it woke run before the next. */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#elapsedMs + ms;
    await settle();
    for (let timer = this.#next(untilMs); timer !== undefined; timer = this.#next(untilMs)) {
      this.#elapsedMs = Math.max(this.#elapsedMs, timer.dueMs);
      this.#timers.delete(timer);
      timer.fn();
      await settle();
    }
    this.#elapsedMs = untilMs;
    await settle();
  }

  #next(untilMs: number): ManualTimer | undefined {
    let best: ManualTimer | undefined;
    for (const timer of this.#timers) {
      if (timer.dueMs > untilMs) continue;
      if (best === undefined || timer.dueMs < best.dueMs || (timer.dueMs === best.dueMs && timer.order < best.order)) {
        best = timer;
      }
    }
    return best;
  }
}

/** One turn of the event loop: every promise that was ready has run. */
const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
