/**
 * The newest events of all sandboxes, and those who listen to them. A listener is a place in the ring: one that is slow costs nothing, and what falls out
 * before it was taken is counted for each that wanted it.
 */
import { PlatformError, type BehaviourEvent, type BehaviourKind, type BehaviourLine } from '@dsec/contract';
import { MAX_KEPT_EVENTS, MAX_LISTENERS, MAX_PROJECT_LISTENERS } from './bounds.ts';

/** What somebody wants to hear; absent: all. */
export interface EventFilter {
  readonly project?: string | undefined;
  readonly sandboxId?: string | undefined;
  readonly kinds?: readonly BehaviourKind[] | undefined;
}

interface Kept {
  readonly project: string;
  readonly event: BehaviourEvent;
}

export interface Listener extends Disposable {
  /** The next line; undefined: nothing more for now. */
  take(): BehaviourLine | undefined;
  /** Resolves when there may be more. Rejects when the signal aborts. */
  more(signal: AbortSignal): Promise<void>;
}

interface Place {
  readonly filter: EventFilter;
  /** The sequence of what comes next. */
  next: number;
  /** Null: nobody knows how many. */
  lost: number | null;
}

const RADIX = 36;

export class EventRing {
  readonly #epoch: string;
  readonly #limit: number;
  /** A ring once it is full: event `n` is at `n % limit`. */
  readonly #kept: Kept[] = [];
  readonly #places = new Set<Place>();
  /** The sequence of the oldest that is kept, and of the next. */
  #first = 0;
  #next = 0;
  #wake = Promise.withResolvers<undefined>();

  /** @param epochMs tells the events of this edge from those before its restart */
  constructor(epochMs: number, limit = MAX_KEPT_EVENTS) {
    this.#epoch = epochMs.toString(RADIX);
    this.#limit = limit;
  }

  get listeners(): number {
    return this.#places.size;
  }

  add(project: string, event: Omit<BehaviourEvent, 'cursor'>): void {
    if (this.#next - this.#first === this.#limit) this.#evict();
    this.#kept[this.#next % this.#limit] = { project, event: { cursor: this.#cursorOf(this.#next), ...event } };
    this.#next++;
    this.#wakeAll();
  }

  /** So many never came here, of whatever sandbox. */
  noteLost(count: number): void {
    for (const place of this.#places) place.lost = sum(place.lost, count);
    this.#wakeAll();
  }

  /**
   * Begins after an event, with what comes from now on (`now`), or with all that is kept.
   * @throws PlatformError `too_many_requests`
   */
  listen(filter: EventFilter, after?: string): Listener {
    this.#admit(filter);
    const place: Place = { filter, ...this.#placeAfter(after) };
    this.#places.add(place);
    let isNew = true;
    return {
      take: () => {
        if (isNew) {
          isNew = false;
          return { at: this.#cursorOf(place.next - 1) };
        }
        return this.#take(place);
      },
      more: (signal) => this.#more(place, signal),
      [Symbol.dispose]: () => void this.#places.delete(place),
    };
  }

  #take(place: Place): BehaviourLine | undefined {
    if (place.lost !== 0) {
      const { lost } = place;
      place.lost = 0;
      return { lost };
    }
    for (; place.next < this.#next; place.next++) {
      const kept = this.#kept[place.next % this.#limit];
      if (kept === undefined || !isWanted(kept, place.filter)) continue;
      place.next++;
      return { event: kept.event };
    }
    return undefined;
  }

  async #more(place: Place, signal: AbortSignal): Promise<void> {
    if (place.next < this.#next || place.lost !== 0) return;
    const { promise } = this.#wake;
    signal.throwIfAborted();
    const aborted = Promise.withResolvers<undefined>();
    const onAbort = (): void => aborted.reject(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      await Promise.race([promise, aborted.promise]);
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  #admit({ project }: EventFilter): void {
    const ofProject = [...this.#places].filter(({ filter }) => filter.project === project).length;
    if (this.#places.size < MAX_LISTENERS && ofProject < MAX_PROJECT_LISTENERS) return;
    throw new PlatformError('too_many_requests', 'too many streams of events are open', {
      details: { limit: ofProject < MAX_PROJECT_LISTENERS ? MAX_LISTENERS : MAX_PROJECT_LISTENERS },
    });
  }

  #placeAfter(after: string | undefined): Pick<Place, 'next' | 'lost'> {
    if (after === undefined) return { next: this.#first, lost: 0 };
    if (after === 'now') return { next: this.#next, lost: 0 };
    const [epoch, text = ''] = after.split('-');
    const next = Number.parseInt(text, RADIX);
    // Of an edge before this one, whose events are gone; of none; or so old that nobody knows which of those that fell out were wanted.
    if (epoch !== this.#epoch || !(this.#first <= next && next <= this.#next)) return { next: this.#first, lost: null };
    return { next, lost: 0 };
  }

  #evict(): void {
    const kept = this.#kept[this.#first % this.#limit];
    for (const place of this.#places) {
      if (place.next > this.#first) continue;
      place.next = this.#first + 1;
      if (kept !== undefined && isWanted(kept, place.filter)) place.lost = sum(place.lost, 1);
    }
    this.#first++;
  }

  #wakeAll(): void {
    this.#wake.resolve(undefined);
    this.#wake = Promise.withResolvers();
  }

  /** It says which event comes next, so that there is one before the first too. */
  #cursorOf(sequence: number): string {
    return `${this.#epoch}-${(sequence + 1).toString(RADIX)}`;
  }
}

const sum = (lost: number | null, count: number): number | null => (lost === null ? null : lost + count);

const isWanted = ({ project, event }: Kept, filter: EventFilter): boolean =>
  (filter.project === undefined || filter.project === project) &&
  (filter.sandboxId === undefined || filter.sandboxId === event.sandboxId) &&
  (filter.kinds === undefined || filter.kinds.includes(event.kind));
