import type { Timing } from '../platform/timing.ts';

/**
 * Notices that a connection has gone silent for longer than its keepalives allow. Only waiting counts: while the consumer
 * is busy with what came, nothing is asked of the connection.
 */
export class StallGuard implements Disposable {
  readonly #timing: Timing;
  readonly #limitMs: number;
  readonly #onStall: () => void;
  #waitingSinceMs: number | undefined;
  #cancelTimer: () => void;

  constructor(timing: Timing, limitMs: number, onStall: () => void) {
    this.#timing = timing;
    this.#limitMs = limitMs;
    this.#onStall = onStall;
    this.#cancelTimer = timing.timer(limitMs, () => this.#check());
  }

  /** The consumer waits for the next bytes. */
  waiting(): void {
    this.#waitingSinceMs = this.#timing.monotonicMs();
  }

  /** They are here. */
  arrived(): void {
    this.#waitingSinceMs = undefined;
  }

  #check(): void {
    const waitedMs = this.#waitingSinceMs === undefined ? 0 : this.#timing.monotonicMs() - this.#waitingSinceMs;
    if (waitedMs >= this.#limitMs) {
      this.#onStall();
      return;
    }
    this.#cancelTimer = this.#timing.timer(this.#limitMs - waitedMs, () => this.#check());
  }

  [Symbol.dispose](): void {
    this.#cancelTimer();
  }
}
