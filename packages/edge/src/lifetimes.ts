/**
 * Time to live and idle timeout of every sandbox by one heap and one timer: an idle sandbox costs nothing while it waits, and an exec
 * costs two assignments.
 *
 * The deadline in the heap may be too early, never too late: activity only notes its moment, and a deadline that comes up too early is
 * put back where it belongs. A busy sandbox waits for its time to live alone. Inside, time is monotonic: a wall clock that is set anew
 * ends nobody.
 */
import type { Clock, Timer } from '@dsec/kit';
import { DeadlineHeap } from './deadline-heap.ts';

export interface LifetimeOptions {
  /** By the wall clock. */
  readonly ttlEndsAtMs: number;
  readonly idleMs: number;
  readonly onEnd: (reason: 'ttl' | 'idle') => void;
}

interface LifetimeParts {
  readonly clock: Clock;
  readonly heap: DeadlineHeap<Lifetime>;
  readonly rearm: () => void;
}

/** The lifetime of one sandbox. */
export class Lifetime {
  readonly onEnd: (reason: 'ttl' | 'idle') => void;
  readonly #parts: LifetimeParts;
  #ttlEndsMs: number;
  #idleMs: number;
  #lastActiveMs: number;
  /** The same moment by the wall clock, to be shown. */
  #lastActiveAtMs: number;
  #busy = 0;
  #isArmed = false;

  constructor(parts: LifetimeParts, options: LifetimeOptions) {
    this.#parts = parts;
    this.onEnd = options.onEnd;
    this.#idleMs = options.idleMs;
    this.#ttlEndsMs = options.ttlEndsAtMs - parts.clock.now() + parts.clock.monotonicMs();
    this.#lastActiveMs = parts.clock.monotonicMs();
    this.#lastActiveAtMs = parts.clock.now();
  }

  /** By the wall clock: when it ends if nothing happens; undefined while it is busy. */
  get idleEndsAtMs(): number | undefined {
    return this.#busy > 0 ? undefined : this.#lastActiveAtMs + this.#idleMs;
  }

  /** Something happened that is over already. */
  touch(): void {
    const { clock } = this.#parts;
    this.#lastActiveMs = clock.monotonicMs();
    this.#lastActiveAtMs = clock.now();
  }

  /** Something began that keeps it busy; each call needs its `leave`. */
  enter(): void {
    this.#busy++;
  }

  leave(): void {
    this.#busy--;
    this.touch();
    const placedMs = this.#parts.heap.deadlineOf(this);
    if (placedMs !== undefined && placedMs > this.#deadlineMs) this.#place();
  }

  /** The idle timeout begins to count; before, only the time to live may end it. */
  arm(): void {
    this.#isArmed = true;
    this.touch();
    this.#place();
  }

  /** Sets either anew; `ttlEndsAtMs` is by the wall clock. */
  change(to: { readonly ttlEndsAtMs: number; readonly idleMs: number }): void {
    const { clock } = this.#parts;
    this.#ttlEndsMs = to.ttlEndsAtMs - clock.now() + clock.monotonicMs();
    this.#idleMs = to.idleMs;
    this.#place();
  }

  cancel(): void {
    this.#parts.heap.delete(this);
  }

  /** Its place in the heap came up: ends it, or puts it back when the deadline has moved on. */
  comeUp(nowMs: number): void {
    if (this.#ttlEndsMs <= nowMs) this.onEnd('ttl');
    else if (this.#deadlineMs <= nowMs) this.onEnd('idle');
    else this.#place();
  }

  start(): this {
    this.#place();
    return this;
  }

  get #deadlineMs(): number {
    const isIdling = this.#isArmed && this.#busy === 0;
    return isIdling ? Math.min(this.#ttlEndsMs, this.#lastActiveMs + this.#idleMs) : this.#ttlEndsMs;
  }

  #place(): void {
    this.#parts.heap.set(this, this.#deadlineMs);
    this.#parts.rearm();
  }
}

/** All lifetimes of a node. */
export class Lifetimes implements Disposable {
  readonly #clock: Clock;
  readonly #heap = new DeadlineHeap<Lifetime>();
  #timer: Timer | undefined;
  #timerAtMs = Number.POSITIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get size(): number {
    return this.#heap.size;
  }

  /** A lifetime whose time to live counts from now on; its idle timeout counts from `arm`. */
  start(options: LifetimeOptions): Lifetime {
    return new Lifetime({ clock: this.#clock, heap: this.#heap, rearm: () => this.#rearm() }, options).start();
  }

  [Symbol.dispose](): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#timerAtMs = Number.NEGATIVE_INFINITY;
  }

  #rearm(): void {
    const nextMs = this.#heap.nextMs;
    // A timer that comes up too early finds nothing due and is set anew; only one that would be too late is replaced.
    if (nextMs === undefined || nextMs >= this.#timerAtMs) return;
    this.#timer?.cancel();
    this.#timerAtMs = nextMs;
    this.#timer = this.#clock.setTimer(nextMs - this.#clock.monotonicMs(), () => this.#fire());
  }

  #fire(): void {
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    const nowMs = this.#clock.monotonicMs();
    for (let due = this.#heap.takeDue(nowMs); due !== undefined; due = this.#heap.takeDue(nowMs)) due.comeUp(nowMs);
    this.#rearm();
  }
}
