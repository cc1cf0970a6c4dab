import { DatabaseSync } from 'node:sqlite';
import { describe, expect, test } from 'vitest';
import { compositionKey, CompositionCounts, type CountedComposition } from './composition-counts.ts';

const names = (environment: string, toolkits: readonly string[] = []): string =>
  compositionKey({ environment, workspace: null, toolkits });

function all(counts: CompositionCounts, limit: number, nowMs = 0): readonly CountedComposition[] {
  const found: CountedComposition[] = [];
  let after: number | undefined = 0;
  while (after !== undefined) {
    const page = counts.page({ after, limit, nowMs });
    found.push(...page.compositions);
    after = page.cursor;
  }
  return found;
}

test('forgets what was used longest ago when there are too many, and never what is being counted', () => {
  using database = new DatabaseSync(':memory:');
  const counts = new CompositionCounts(database, { max: 100 });
  for (let number = 0; number < 1000; number++) {
    counts.raise(names(`e${number}`), 1, number);
    counts.raise(names('often'), 1, number);
  }
  const found = all(counts, 7);
  expect(found.length).toBeLessThanOrEqual(100);
  expect(found.length).toBeGreaterThan(90);
  expect(found.find(({ environment }) => environment === 'often')?.sandboxes).toBe(1000);
  expect(found.map(({ environment }) => environment)).toContain('e999');
  // Opened anew, it goes on from what is there.
  const again = new CompositionCounts(database, { max: 100 });
  again.raise(names('new'), 3, 2000);
  expect(all(again, 1000).find(({ environment }) => environment === 'new')?.sandboxes).toBe(3);
  expect(all(again, 1000).length).toBeLessThanOrEqual(100);
});

test('counts right after a transaction that came to nothing', () => {
  using database = new DatabaseSync(':memory:');
  const counts = new CompositionCounts(database, { max: 10 });
  database.exec('BEGIN');
  for (let number = 0; number < 10; number++) counts.raise(names(`gone${number}`), 1, number);
  database.exec('ROLLBACK');
  counts.rolledBack();
  for (let number = 0; number < 10; number++) counts.raise(names(`e${number}`), 1, number);
  expect(all(counts, 3)).toHaveLength(10);
});

test('ends a page before it is too long for an answer', () => {
  using database = new DatabaseSync(':memory:');
  const counts = new CompositionCounts(database);
  const toolkits = Array.from({ length: 32 }, (_, number) => `${number}`.padEnd(255, 'x'));
  for (let number = 0; number < 200; number++) counts.raise(names(`e${number}`, toolkits), 1, number);
  expect(counts.page({ after: 0, limit: 1000, nowMs: 0 }).compositions.length).toBeLessThan(200);
  expect(all(counts, 1000).map(({ environment }) => environment)).toEqual(
    Array.from({ length: 200 }, (_, n) => `e${n}`),
  );
});

describe('with age', () => {
  const HALF_LIFE_MS = 1000;
  const recent = (counts: CompositionCounts, nowMs: number): readonly (readonly [string, number])[] =>
    all(counts, 100, nowMs).map(({ environment, recentSandboxes }) => [environment, recentSandboxes]);

  test('a sandbox counts half as much after each half-life, and what is used now comes before what was used more', () => {
    using database = new DatabaseSync(':memory:');
    const counts = new CompositionCounts(database, { halfLifeMs: HALF_LIFE_MS });
    const startMs = 1_700_000_000_000;
    counts.raise(names('once'), 64, startMs);
    counts.raise(names('now'), 2, startMs + 500);
    expect(recent(counts, startMs)).toEqual([
      ['once', 64],
      ['now', 2],
    ]);
    expect(recent(counts, startMs + 3000)[0]).toEqual(['once', 8]);
    counts.raise(names('now'), 10, startMs + 4500);
    expect(recent(counts, startMs + 4500)).toEqual([
      ['once', 2.828],
      ['now', 10.125],
    ]);
    // All that were begun stay counted.
    expect(all(counts, 100, startMs + 4500).map(({ sandboxes }) => sandboxes)).toEqual([64, 12]);
    expect(recent(counts, startMs + 1e9)).toEqual([
      ['once', 0],
      ['now', 0],
    ]);
  });

  test('a constant use has a bound, however often it was asked for', () => {
    using database = new DatabaseSync(':memory:');
    const counts = new CompositionCounts(database, { halfLifeMs: HALF_LIFE_MS });
    for (let atMs = 0; atMs < 50 * HALF_LIFE_MS; atMs += 100) {
      counts.raise(names('e'), 1, atMs);
      if (atMs % 700 === 0) counts.page({ after: 0, limit: 1, nowMs: atMs + 50 });
    }
    const [[, weight] = ['', 0]] = recent(counts, 50 * HALF_LIFE_MS);
    expect(weight).toBeCloseTo(10 / Math.LN2, 0);
  });

  test('a clock that was set back ages nothing and makes nothing heavier', () => {
    using database = new DatabaseSync(':memory:');
    const counts = new CompositionCounts(database, { halfLifeMs: HALF_LIFE_MS });
    counts.raise(names('e'), 4, 10_000);
    counts.raise(names('e'), 1, 2000);
    expect(recent(counts, 0)).toEqual([['e', 5]]);
    expect(recent(counts, 11_000)).toEqual([['e', 2.5]]);
  });

  test('a table of before is taken over, and another half-life counts from then on', () => {
    using database = new DatabaseSync(':memory:');
    database.exec(`
      CREATE TABLE composition (
        id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE, sandboxes INTEGER NOT NULL, lastMs INTEGER NOT NULL
      );
    `);
    database.prepare('INSERT INTO composition (names, sandboxes, lastMs) VALUES (?, 8, 1000)').run(names('e'));
    expect(recent(new CompositionCounts(database, { halfLifeMs: HALF_LIFE_MS }), 2000)).toEqual([['e', 4]]);
    const slower = new CompositionCounts(database, { halfLifeMs: 2 * HALF_LIFE_MS });
    slower.raise(names('e'), 1, 3000);
    expect(recent(slower, 3000)).toEqual([['e', 5]]);
  });
});
