import { ManualClock } from '@dsec/kit';
import { expect, test } from 'vitest';
import { HeadDeadline } from './head-deadline.ts';

test('a connection ends when no request comes, and not while one is answered', async () => {
  const clock = new ManualClock();
  let ended = 0;
  const deadline = new HeadDeadline(clock, 1000, () => void ended++);
  await clock.advance(999);
  deadline.begin();
  deadline.begin();
  await clock.advance(10_000);
  deadline.end();
  await clock.advance(10_000);
  expect([ended, clock.pendingTimers]).toEqual([0, 0]);
  deadline.end();
  await clock.advance(999);
  expect(ended).toBe(0);
  await clock.advance(1);
  expect(ended).toBe(1);
  deadline.begin();
  deadline.close();
  deadline.end();
  expect(clock.pendingTimers).toBe(0);
});
