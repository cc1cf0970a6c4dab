import { DatabaseSync } from 'node:sqlite';
import { expect, test } from 'vitest';
import { compositionKey, CompositionCounts, type CountedComposition } from './composition-counts.ts';

const names = (environment: string, toolkits: readonly string[] = []): string =>
  compositionKey({ environment, workspace: null, toolkits });

function all(counts: CompositionCounts, limit: number): readonly CountedComposition[] {
  const found: CountedComposition[] = [];
  let after: number | undefined = 0;
  while (after !== undefined) {
    const page = counts.page({ after, limit });
    found.push(...page.compositions);
    after = page.cursor;
  }
  return found;
}

test('forgets what was used longest ago when there are too many, and never what is being counted', () => {
  using database = new DatabaseSync(':memory:');
  const counts = new CompositionCounts(database, 100);
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
  const again = new CompositionCounts(database, 100);
  again.raise(names('new'), 3, 2000);
  expect(all(again, 1000).find(({ environment }) => environment === 'new')?.sandboxes).toBe(3);
  expect(all(again, 1000).length).toBeLessThanOrEqual(100);
});

test('counts right after a transaction that came to nothing', () => {
  using database = new DatabaseSync(':memory:');
  const counts = new CompositionCounts(database, 10);
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
  expect(counts.page({ after: 0, limit: 1000 }).compositions.length).toBeLessThan(200);
  expect(all(counts, 1000).map(({ environment }) => environment)).toEqual(
    Array.from({ length: 200 }, (_, n) => `e${n}`),
  );
});
