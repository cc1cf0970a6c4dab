/** What was refused to sandboxes, told to whoever listens, with the process that caused it: within a budget for each sandbox, and what is alike as one. */
import { BoundedQueue, type Clock } from '@dsec/kit';
import type { CausingProcess } from '@dsec/native-link';
import { EVENT_BURST, EVENTS_PER_SECOND, MAX_ASKED_OWNERS, MAX_WAITING_EVENTS } from './dns/bounds.ts';
import { TokenBucket } from './dns/token-bucket.ts';
import { GatheredEvents } from './gathered-events.ts';
import type { Refusal, RefusalEvent, RefusedConnect } from './refusal.ts';

/** The end of a socket from which a sandbox has asked something. */
export interface Asker {
  readonly protocol: 'udp' | 'tcp';
  readonly address: string;
  readonly port: number;
}

/** Knows which process is behind a socket. */
export interface Owners {
  /** Undefined when nobody knows. */
  owner(sandbox: string, asker: Asker): Promise<CausingProcess | undefined>;
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
  /** Events that did not come here since this was asked last: the listener was slow, or the resolver. */
  takeLost(): number;
}

export class Events implements Disposable {
  readonly #clock: Clock;
  readonly #owners: Owners;
  readonly #gathered: GatheredEvents;
  readonly #listeners = new Set<{ readonly queue: BoundedQueue<RefusalEvent>; lost: number }>();
  #refused = 0;
  #asked = 0;

  constructor(clock: Clock, owners: Owners) {
    this.#clock = clock;
    this.#owners = owners;
    this.#gathered = new GatheredEvents(clock, (event) => this.#tell(event));
  }

  /** All refusals since the beginning, told or not. */
  get refused(): number {
    return this.#refused;
  }

  /** Of what was refused here. It is told when its process is known. */
  refuse(refusal: Refusal, budget: EventBudget, asker: Asker): void {
    this.#refused += 1;
    const missed = budget.spend();
    if (missed === undefined || this.#listeners.size === 0) return;
    const event = { ...refusal, atMs: this.#clock.now(), count: missed + 1 };
    if (this.#asked >= MAX_ASKED_OWNERS) {
      this.#gathered.add(event);
      return;
    }
    this.#asked += 1;
    const tell = (process?: CausingProcess): void => {
      this.#asked -= 1;
      this.#gathered.add(process === undefined ? event : { ...event, process });
    };
    // An egressd that is away knows nobody.
    this.#owners.owner(refusal.id, asker).then(tell, () => tell());
  }

  /** Of what was refused elsewhere, within budgets there; `count` is what it stands for. */
  connectRefused(refused: RefusedConnect, count: number, process: CausingProcess | undefined): void {
    this.#refused += count;
    if (this.#listeners.size === 0) return;
    const event = { ...refused, atMs: this.#clock.now(), count };
    this.#gathered.add(process === undefined ? event : { ...event, process });
  }

  /** So many events never came here. */
  lose(count: number): void {
    for (const listener of this.#listeners) listener.lost += count;
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

  [Symbol.dispose](): void {
    this.#gathered[Symbol.dispose]();
  }

  #tell(event: RefusalEvent): void {
    for (const listener of this.#listeners) if (!listener.queue.tryPush(event)) listener.lost += 1;
  }
}
