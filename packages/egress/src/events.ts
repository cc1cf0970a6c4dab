/** What was refused to sandboxes, told to whoever listens, within a budget for each sandbox. */
import { BoundedQueue, type Clock } from '@dsec/kit';
import { EVENT_BURST, EVENTS_PER_SECOND, MAX_WAITING_EVENTS } from './dns/bounds.ts';
import { TokenBucket } from './dns/token-bucket.ts';

export type RefusalReason =
  /** No rule allows the name. */
  | 'name'
  /** The name is allowed, but not records of this type. */
  | 'type'
  /** More questions than the sandbox may ask. */
  | 'rate'
  /** More different names below a wildcard than there may be. */
  | 'wildcard'
  /** The answer pointed where the sandbox may not go, such as to a private network. */
  | 'address'
  /** More addresses than may be open at once. */
  | 'pins'
  /** No well-formed question. */
  | 'malformed'
  /** A service refused a request, such as for a version that is too new. */
  | 'service';

export interface Refusal {
  readonly sandbox: string;
  /** The name that was asked for, or what of a service. */
  readonly name: string;
  /** The type of the record as its number; absent where there is none. */
  readonly type?: number;
  readonly reason: RefusalReason;
}

export interface RefusalEvent extends Refusal {
  readonly atMs: number;
  /** Refusals of this sandbox since its last event that were more than its budget. */
  readonly missed: number;
}

/** The budget of one sandbox. */
export class EventBudget {
  readonly #bucket: TokenBucket;
  #missed = 0;

  constructor(clock: Clock) {
    this.#bucket = new TokenBucket({ clock, perSecond: EVENTS_PER_SECOND, burst: EVENT_BURST });
  }

  /** How many were missed before this one; undefined when this one is missed too. */
  spend(): number | undefined {
    if (!this.#bucket.take()) {
      this.#missed += 1;
      return undefined;
    }
    const missed = this.#missed;
    this.#missed = 0;
    return missed;
  }
}

export interface Subscription extends Disposable, AsyncIterable<RefusalEvent> {
  /** Events that did not fit since this was asked last: the listener was slow. */
  takeLost(): number;
}

export class Events {
  readonly #clock: Clock;
  readonly #listeners = new Set<{ readonly queue: BoundedQueue<RefusalEvent>; lost: number }>();
  #refused = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** All refusals since the beginning, told or not. */
  get refused(): number {
    return this.#refused;
  }

  refuse(refusal: Refusal, budget: EventBudget): void {
    this.#refused += 1;
    const missed = budget.spend();
    if (missed === undefined) return;
    const event = { ...refusal, atMs: this.#clock.now(), missed };
    for (const listener of this.#listeners) if (!listener.queue.tryPush(event)) listener.lost += 1;
  }

  /** From now on. */
  subscribe(): Subscription {
    const listener = { queue: new BoundedQueue<RefusalEvent>(MAX_WAITING_EVENTS), lost: 0 };
    this.#listeners.add(listener);
    return {
      [Symbol.asyncIterator]: () => listener.queue[Symbol.asyncIterator](),
      takeLost: () => {
        const { lost } = listener;
        listener.lost = 0;
        return lost;
      },
      [Symbol.dispose]: () => {
        this.#listeners.delete(listener);
        listener.queue.close();
      },
    };
  }
}
