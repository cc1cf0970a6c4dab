/** Events that are alike: the first is told at once, those that follow within a window as one at its end. */
import type { Clock, Timer } from '@dsec/kit';
import { EVENT_WINDOW_MS, MAX_EVENT_WINDOWS } from './dns/bounds.ts';
import type { RefusalEvent } from './refusal.ts';

interface Window {
  readonly endsAt: number;
  /** The last one of it, with all counts; absent while there was none but the first. */
  last: RefusalEvent | undefined;
}

export class GatheredEvents implements Disposable {
  readonly #clock: Clock;
  readonly #tell: (event: RefusalEvent) => void;
  /** In the order of their ends, since all are as long. */
  readonly #windows = new Map<string, Window>();
  #timer: Timer | undefined;

  constructor(clock: Clock, tell: (event: RefusalEvent) => void) {
    this.#clock = clock;
    this.#tell = tell;
  }

  add(event: RefusalEvent): void {
    const key = keyOf(event);
    const window = this.#windows.get(key);
    if (window !== undefined) {
      window.last = { ...event, count: event.count + (window.last?.count ?? 0) };
      return;
    }
    this.#tell(event);
    if (this.#windows.size >= MAX_EVENT_WINDOWS) return;
    this.#windows.set(key, { endsAt: this.#clock.monotonicMs() + EVENT_WINDOW_MS, last: undefined });
    this.#timer ??= this.#clock.setTimer(EVENT_WINDOW_MS, () => this.#end());
  }

  [Symbol.dispose](): void {
    this.#timer?.cancel();
    this.#windows.clear();
  }

  /** Tells of the windows that are over. */
  #end(): void {
    this.#timer = undefined;
    const now = this.#clock.monotonicMs();
    for (const [key, { endsAt, last }] of this.#windows) {
      if (endsAt > now) {
        this.#timer = this.#clock.setTimer(endsAt - now, () => this.#end());
        return;
      }
      this.#windows.delete(key);
      if (last !== undefined) this.#tell(last);
    }
  }
}

/** Alike are those that differ in when and how many alone. Of a process its number says which. */
const keyOf = ({ atMs: _atMs, count: _count, process, ...rest }: RefusalEvent): string =>
  JSON.stringify([rest, process?.pid]);
