import { expect, test } from 'vitest';
import { SeededRandom, SystemRandom } from './random.ts';

test('SeededRandom repeats its sequence for the same seed only', () => {
  const draw = (seed: number): string => new SeededRandom(seed).bytes(100).toString('hex');
  expect(draw(1)).toBe(draw(1));
  expect(draw(1)).not.toBe(draw(2));
});

test.each([
  ['SystemRandom', new SystemRandom()],
  ['SeededRandom', new SeededRandom(7)],
])('%s spreads evenly', (_name, random) => {
  const counts = new Array<number>(10).fill(0);
  for (let i = 0; i < 20_000; i++) {
    const value = random.integer(10);
    counts[value] = (counts[value] ?? Number.NaN) + 1;
  }
  for (const count of counts) expect(Math.abs(count - 2000)).toBeLessThan(300);
  const characters = new Set(random.base36(5000));
  expect(characters.size).toBe(36);
  expect(random.base36(48)).toMatch(/^[0-9a-z]{48}$/);
  expect(random.bytes(5000)).toHaveLength(5000);
  expect(random.bytes(0)).toHaveLength(0);
});

test('SystemRandom never hands out the same bytes twice', () => {
  const random = new SystemRandom();
  const seen = new Set(Array.from({ length: 5000 }, () => random.bytes(16).toString('hex')));
  expect(seen.size).toBe(5000);
});
