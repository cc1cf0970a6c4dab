/**
 * Those who were let in by nothing: written down one by one within a rate, and counted beyond it, so that nobody who has no key can fill the log or have
 * the apiserver work for it.
 */
import type { Clock, Timer } from '@dsec/kit';
import type { AuditFields } from './audit-line.ts';

/** Refusals that are written at once, and how many more in a second. */
const BURST = 64;
const PER_SECOND = 1;
/** How long refusals are counted before the count is written. */
const COUNT_MS = 60_000;
/** Addresses that a count names. */
const MAX_REMOTES = 8;

export class Refusals implements Disposable {
  readonly #clock: Clock;
  readonly #append: (fields: AuditFields) => void;
  #tokens = BURST;
  #filledMs: number;
  #counted = 0;
  readonly #codes = new Map<string, number>();
  readonly #remotes = new Set<string>();
  #timer: Timer | undefined;

  constructor(clock: Clock, append: (fields: AuditFields) => void) {
    this.#clock = clock;
    this.#append = append;
    this.#filledMs = clock.monotonicMs();
  }

  /** Whether this one is to be written; otherwise it is counted. */
  admit(code: string, remote: string): boolean {
    const nowMs = this.#clock.monotonicMs();
    this.#tokens = Math.min(BURST, this.#tokens + ((nowMs - this.#filledMs) / 1000) * PER_SECOND);
    this.#filledMs = nowMs;
    if (this.#tokens >= 1) {
      this.#tokens--;
      return true;
    }
    this.#counted++;
    // Codes are a closed list.
    this.#codes.set(code, (this.#codes.get(code) ?? 0) + 1);
    if (this.#remotes.size < MAX_REMOTES) this.#remotes.add(remote);
    this.#timer ??= this.#clock.setTimer(COUNT_MS, () => this[Symbol.dispose]());
    return false;
  }

  /** Writes the count. Idempotent. */
  [Symbol.dispose](): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    if (this.#counted === 0) return;
    const [code = '', ...others] = [...this.#codes.keys()];
    this.#append({
      operation: 'refused.more',
      outcome: others.length === 0 ? code : 'several',
      remote: this.#remotes.size === 1 ? [...this.#remotes].join('') : 'several',
      detail: { requests: this.#counted, remotes: [...this.#remotes].join(' ').slice(0, 256) },
    });
    this.#counted = 0;
    this.#codes.clear();
    this.#remotes.clear();
  }
}
