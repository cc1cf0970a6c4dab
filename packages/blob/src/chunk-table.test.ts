import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ChunkTable } from './chunk-table.ts';
import { sha256, sha256Name } from './digest.ts';

const digest = (number: number): Buffer => sha256(Buffer.from(String(number)));
const pack = (number: number) => sha256Name(Buffer.from(`pack ${number}`));
const chunk = (number: number) => ({
  digest: sha256Name(Buffer.from(String(number))),
  offset: number,
  storedBytes: number + 1,
});

test('finds what packs hold, however many, and nothing of packs that are forgotten', () => {
  const table = new ChunkTable(100_000);
  for (let number = 0; number < 50; number++) {
    expect(
      table.add(
        pack(number),
        Array.from({ length: 1000 }, (_, index) => chunk(number * 1000 + index)),
      ),
    ).toBe(true);
  }
  for (const number of [0, 999, 25_500, 49_999]) {
    const place = { pack: pack(Math.floor(number / 1000)), offset: number, storedBytes: number + 1 };
    expect(table.find(digest(number))).toEqual(place);
  }
  expect(table.find(digest(50_000))).toBeUndefined();
  table.forget(pack(25));
  expect(table.find(digest(25_500))).toBeUndefined();
  expect(table.add(pack(60), [chunk(25_500)])).toBe(true);
  expect(table.find(digest(25_500))).toMatchObject({ pack: pack(60) });
  expect(table.has(pack(25))).toBe(false);
});

test('refuses packs beyond its bound', () => {
  const table = new ChunkTable(3);
  expect(table.add(pack(1), [chunk(1), chunk(2)])).toBe(true);
  expect(table.add(pack(2), [chunk(3), chunk(4)])).toBe(false);
  expect(table.find(digest(3))).toBeUndefined();
  expect(table.has(pack(2))).toBe(false);
});

test('makes room of what is forgotten', () => {
  const table = new ChunkTable(1000);
  for (let round = 0; round < 50; round++) {
    const chunks = Array.from({ length: 900 }, (_, index) => chunk(round * 1000 + index));
    expect(table.add(pack(round), chunks)).toBe(true);
    expect(table.find(digest(round * 1000 + 899))).toMatchObject({ pack: pack(round) });
    expect(table.find(digest((round - 1) * 1000))).toBeUndefined();
    table.forget(pack(round));
  }
});

test('does what a plain map does, whatever is added and forgotten', () => {
  const step = fc.oneof(
    fc.record({ pack: fc.nat(5), chunks: fc.uniqueArray(fc.nat(30), { maxLength: 8 }) }),
    fc.record({ forget: fc.nat(5) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
      const table = new ChunkTable(100);
      const model = new Map<number, number>();
      const live = new Set<number>();
      for (const taken of steps) {
        if ('forget' in taken) {
          table.forget(pack(taken.forget));
          live.delete(taken.forget);
        } else if (!live.has(taken.pack)) {
          table.add(pack(taken.pack), taken.chunks.map(chunk));
          live.add(taken.pack);
          for (const number of taken.chunks) {
            if (!live.has(model.get(number) ?? -1) || model.get(number) === taken.pack) model.set(number, taken.pack);
          }
        }
        for (const number of [...model.keys()]) {
          if (!live.has(model.get(number) ?? -1)) model.delete(number);
        }
        for (let number = 0; number <= 30; number++) {
          const place = table.find(digest(number));
          const expected = model.get(number);
          expect(place?.pack).toBe(expected === undefined ? undefined : pack(expected));
        }
      }
    }),
    { numRuns: 200 },
  );
});
