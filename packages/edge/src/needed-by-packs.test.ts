import { ManualClock } from '@dsec/kit';
import { expect, test } from 'vitest';
import { NeededByPacks } from './needed-by-packs.ts';

test('a pack needs what its sandbox stands on while it runs, and what it made until that has a name', async () => {
  const clock = new ManualClock();
  const needed = new NeededByPacks(clock);
  {
    using _first = needed.running(['base']);
    using _second = needed.running(['base', 'workspace']);
    expect(['base', 'workspace', 'new'].map((layer) => needed.has(layer))).toEqual([true, true, false]);
    needed.answered(['new', 'base']);
  }
  expect(['base', 'workspace', 'new'].map((layer) => needed.has(layer))).toEqual([true, false, true]);
  await clock.advance(3_600_000);
  expect(needed.has('new')).toBe(false);
});

test('keeps the newest answers in mind', () => {
  const needed = new NeededByPacks(new ManualClock());
  for (let number = 0; number < 1000; number++) needed.answered([`layer ${number}`]);
  expect(needed.has('layer 999')).toBe(true);
  expect(needed.has('layer 1')).toBe(false);
});

test('a pack that runs may find what packs have made, and what nobody can look at unless it was looked at before', () => {
  const needed = new NeededByPacks(new ManualClock());
  expect(needed.mayFind('seen', false)).toBe(false);
  {
    using _pack = needed.running([]);
    expect(needed.mayFind('seen', undefined)).toBe(false);
    expect(needed.mayFind('never seen', undefined)).toBe(true);
    expect(needed.mayFind('of a pack', true)).toBe(true);
    expect(needed.mayFind('of a pack', undefined)).toBe(true);
    for (let number = 0; number < 10_000; number++) needed.mayFind(`layer ${number}`, false);
    // Forgotten is as good as never seen.
    expect(needed.mayFind('seen', undefined)).toBe(true);
  }
  expect(needed.mayFind('of a pack', undefined)).toBe(false);
});
