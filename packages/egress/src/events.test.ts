import { ManualClock } from '@dsec/kit';
import { describe, expect, test } from 'vitest';
import {
  EVENT_BURST,
  EVENTS_PER_SECOND,
  MAX_NAMES_PER_WILDCARD,
  MAX_WAITING_EVENTS,
  MAX_WILDCARD_NAMES,
} from './dns/bounds.ts';
import { EventBudget, Events, type Refusal, type RefusalEvent } from './events.ts';
import { WildcardNames } from './wildcard-names.ts';

const refusal: Refusal = { sandbox: 's1', name: 'evil.test', type: 1, reason: 'name' };

describe('events', () => {
  test('are told within a budget, and the next one says how many were missed', async () => {
    const clock = new ManualClock();
    const events = new Events(clock);
    const budget = new EventBudget(clock);
    const told: RefusalEvent[] = [];
    const subscription = events.subscribe();
    const reading = (async () => {
      for await (const event of subscription) told.push(event);
    })();
    for (let index = 0; index < EVENT_BURST + 7; index++) events.refuse(refusal, budget);
    await clock.advance(1000 / EVENTS_PER_SECOND);
    events.refuse(refusal, budget);
    await clock.advance(0);
    expect(told).toHaveLength(EVENT_BURST + 1);
    expect(told.map(({ missed }) => missed)).toEqual([...new Array<number>(EVENT_BURST).fill(0), 7]);
    expect(events.refused).toBe(EVENT_BURST + 8);
    subscription[Symbol.dispose]();
    await reading;
  });

  test('that nobody takes are bounded and counted', () => {
    const clock = new ManualClock();
    const events = new Events(clock);
    using subscription = events.subscribe();
    for (let index = 0; index < MAX_WAITING_EVENTS + 5; index++) events.refuse(refusal, new EventBudget(clock));
    expect(subscription.takeLost()).toBe(5);
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
