import { ManualClock } from '@dsec/kit';
import { expect, test } from 'vitest';
import { NeededByPacks } from './needed-by-packs.ts';

test('a pack needs what its sandbox stands on while it runs, and what it made until that has a name', async () => {
  const clock = new ManualClock();
  const needed = new NeededByPacks(clock);
  {
    using _first = needed.running(['base']);
    using _second = needed.running(['base', 'workspace']);
    expect([needed.isPacking, needed.has('base'), needed.has('workspace'), needed.has('new')]).toEqual([
      true,
      true,
      true,
      false,
    ]);
    needed.answered(['new', 'base']);
  }
  expect([needed.isPacking, needed.has('new'), needed.has('base'), needed.has('workspace')]).toEqual([
    false,
    true,
    true,
    false,
  ]);
  await clock.advance(3_600_000);
  expect(needed.has('new')).toBe(false);
});

test('keeps the newest answers in mind', () => {
  const needed = new NeededByPacks(new ManualClock());
  for (let number = 0; number < 1000; number++) needed.answered([`layer ${number}`]);
  expect(needed.has('layer 999')).toBe(true);
  expect(needed.has('layer 1')).toBe(false);
});
