import { ManualClock } from '@dsec/kit';
import { describe, expect, test } from 'vitest';
import {
  EVENT_BURST,
  EVENT_WINDOW_MS,
  EVENTS_PER_SECOND,
  MAX_ASKED_OWNERS,
  MAX_NAMES_PER_WILDCARD,
  MAX_WAITING_EVENTS,
  MAX_WILDCARD_NAMES,
} from './dns/bounds.ts';
import { EventBudget, Events, type Asker, type Owners } from './events.ts';
import type { Refusal, RefusalEvent } from './refusal.ts';
import { WildcardNames } from './wildcard-names.ts';

const refusal: Refusal = { id: 's1', kind: 'name', name: 'evil.test', type: 1, reason: 'name' };
const asker: Asker = { protocol: 'udp', address: '198.18.0.3', port: 4000 };
const process = { pid: 7, ancestors: [1], session: 7, uid: 0, comm: 'curl', argv: ['curl'] };
const nobody: Owners = { owner: () => Promise.resolve(undefined) };

/** What is told, in its order. */
function listen(events: Events): { readonly told: RefusalEvent[]; end: () => Promise<void> } {
  const told: RefusalEvent[] = [];
  const subscription = events.subscribe();
  const reading = (async () => {
    for await (const event of subscription) told.push(event);
  })();
  return {
    told,
    end: () => {
      subscription[Symbol.dispose]();
      return reading;
    },
  };
}

describe('events', () => {
  test('are told within a budget, and the next one counts those that were missed', async () => {
    const clock = new ManualClock();
    const events = new Events(clock, nobody);
    const budget = new EventBudget(clock);
    const { told, end } = listen(events);
    const many = EVENT_BURST + 7;
    for (let index = 0; index < many; index++) events.refuse({ ...refusal, name: `${index}.test` }, budget, asker);
    await clock.advance(1000 / EVENTS_PER_SECOND);
    events.refuse(refusal, budget, asker);
    await clock.advance(0);
    expect(told).toHaveLength(EVENT_BURST + 1);
    expect(told.map(({ count }) => count)).toEqual([...new Array<number>(EVENT_BURST).fill(1), 8]);
    expect(events.refused).toBe(many + 1);
    await end();
  });

  test('that are alike are one at once, and one at the end of the window', async () => {
    const clock = new ManualClock();
    const events = new Events(clock, { owner: () => Promise.resolve(process) });
    const { told, end } = listen(events);
    const budget = new EventBudget(clock);
    for (let index = 0; index < 20; index++) events.refuse(refusal, budget, asker);
    events.refuse({ ...refusal, type: 28 }, budget, asker);
    const denied = {
      id: 's1',
      kind: 'connect',
      address: '192.0.2.1',
      port: 22,
      protocol: 'tcp',
      reason: 'rule',
    } as const;
    events.connectRefused(denied, 3, process);
    events.connectRefused(denied, 4, process);
    events.connectRefused(denied, 1, { ...process, pid: 8 });
    await clock.advance(EVENT_WINDOW_MS - 1);
    const short = () => told.map(({ kind, count, process: by }) => [kind, count, by?.pid]);
    const first = [
      ['connect', 3, 7],
      ['connect', 1, 8],
      ['name', 1, 7],
      ['name', 1, 7],
    ];
    expect(short()).toEqual(first);
    await clock.advance(1);
    expect(short()).toEqual([...first, ['connect', 4, 7], ['name', 19, 7]]);
    expect(told.at(-1)).toMatchObject({ id: 's1', name: 'evil.test', type: 1, reason: 'name', process });
    expect(clock.pendingTimers).toBe(0);
    expect(events.refused).toBe(29);
    await end();
  });

  test('of a sandbox that floods cost no question for who it was while nobody listens, and few when somebody does', async () => {
    const clock = new ManualClock();
    let asked = 0;
    const never = Promise.withResolvers<undefined>();
    const events = new Events(clock, { owner: () => ((asked += 1), never.promise) });
    const flood = () => {
      for (let sandbox = 0; sandbox < 10; sandbox++) {
        const budget = new EventBudget(clock);
        for (let index = 0; index < 10_000; index++) events.refuse({ ...refusal, id: `s${sandbox}` }, budget, asker);
      }
    };
    flood();
    expect([asked, clock.pendingTimers]).toEqual([0, 0]);
    const { told, end } = listen(events);
    flood();
    await clock.advance(0);
    expect(asked).toBe(MAX_ASKED_OWNERS);
    // Without their processes they are told at once.
    expect(told).toHaveLength(8);
    never.resolve(undefined);
    await clock.advance(EVENT_WINDOW_MS);
    expect(told.reduce((sum, { count }) => sum + count, 0)).toBe(10 * EVENT_BURST);
    expect(clock.pendingTimers).toBe(0);
    await end();
  });

  test('that nobody takes are bounded and counted', async () => {
    const clock = new ManualClock();
    const events = new Events(clock, nobody);
    using subscription = events.subscribe();
    const denied = { id: 's1', kind: 'connect', reason: 'rule' } as const;
    for (let port = 0; port < MAX_WAITING_EVENTS + 5; port++) events.connectRefused({ ...denied, port }, 1, undefined);
    events.lose(2);
    expect(subscription.takeLost()).toBe(7);
    expect(subscription.takeLost()).toBe(0);
  });
});

test('names below wildcards are bounded for each and for all', () => {
  const names = new WildcardNames();
  let admitted = 0;
  for (let wildcard = 0; wildcard < 10; wildcard++) {
    for (let name = 0; name < MAX_NAMES_PER_WILDCARD + 1; name++) {
      if (names.admit(`*.w${wildcard}.test`, `${name}.w${wildcard}.test`)) admitted += 1;
    }
    expect(names.admit(`*.w${wildcard}.test`, `0.w${wildcard}.test`)).toBe(
      admitted > wildcard * MAX_NAMES_PER_WILDCARD,
    );
  }
  expect(admitted).toBe(MAX_WILDCARD_NAMES);
});
