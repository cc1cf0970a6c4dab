import { SystemClock } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { coveringLayers, type CountedTasks } from './covering-layers.ts';

const SHARES = [0, 0.1, 0.5, 0.7, 0.9, 1] as const;

const instances = fc
  .record({
    sizes: fc.array(fc.integer({ min: 0, max: 1000 }), { minLength: 1, maxLength: 12 }),
    groups: fc.array(
      fc.record({
        tasks: fc.integer({ min: 0, max: 100 }),
        layers: fc.array(fc.nat({ max: 11 }), { minLength: 1, maxLength: 6 }),
      }),
      { maxLength: 12 },
    ),
    share: fc.constantFrom(...SHARES),
  })
  .map(({ sizes, groups, share }) => ({
    bytesOf: new Map(sizes.map((bytes, index) => [`l${index}`, bytes])),
    counted: groups.map(({ tasks, layers }, index) => ({
      key: `e${index}`,
      tasks,
      layers: layers.map((layer) => `l${layer % sizes.length}`),
    })),
    share,
  }));

const tasksOf = (counted: readonly CountedTasks[]): number => counted.reduce((sum, { tasks }) => sum + tasks, 0);
const covered = (counted: readonly CountedTasks[], layers: ReadonlySet<string>): number =>
  tasksOf(counted.filter((group) => group.layers.every((layer) => layers.has(layer))));
const bytesIn = (layers: Iterable<string>, bytesOf: ReadonlyMap<string, number>): number =>
  [...layers].reduce((sum, layer) => sum + (bytesOf.get(layer) ?? Number.NaN), 0);

/** Environments by their count until the share is covered. */
function naive(counted: readonly CountedTasks[], share: number): ReadonlySet<string> {
  const layers = new Set<string>();
  for (const group of counted.toSorted((a, b) => b.tasks - a.tasks || (a.key < b.key ? -1 : 1))) {
    if (covered(counted, layers) >= share * tasksOf(counted)) break;
    for (const layer of group.layers) layers.add(layer);
  }
  return layers;
}

describe('the layers that cover a share of the tasks', () => {
  test('cover it, count each layer once, and are never larger than by count alone', () => {
    fc.assert(
      fc.property(instances, ({ counted, bytesOf, share }) => {
        const found = coveringLayers(counted, bytesOf, share);
        const layers = new Set(found.layers);
        expect(layers.size).toBe(found.layers.length);
        expect(found.isReached).toBe(true);
        expect(found.totalTasks).toBe(tasksOf(counted));
        expect(found.coveredTasks).toBe(covered(counted, layers));
        expect(found.coveredTasks).toBeGreaterThanOrEqual(share * found.totalTasks);
        expect(found.bytes).toBe(bytesIn(layers, bytesOf));
        expect(found.bytes).toBeLessThanOrEqual(bytesIn(naive(counted, share), bytesOf));
      }),
      { numRuns: 500 },
    );
  });

  test('have none that could be left out with all that stands on it alone', () => {
    fc.assert(
      fc.property(instances, ({ counted, bytesOf, share }) => {
        const { layers, totalTasks } = coveringLayers(counted, bytesOf, share);
        const used = new Set(
          counted
            .filter((group) => group.layers.every((layer) => layers.includes(layer)))
            .flatMap((group) => group.layers),
        );
        expect(layers.filter((layer) => !used.has(layer))).toEqual([]);
        if (share === 0 || totalTasks === 0) expect(layers).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });

  test('are the same whatever the order of what was counted', () => {
    fc.assert(
      fc.property(
        instances.chain((instance) =>
          fc.tuple(
            fc.constant(instance),
            fc.shuffledSubarray(instance.counted, { minLength: instance.counted.length }),
          ),
        ),
        ([{ counted, bytesOf, share }, shuffled]) => {
          const reversed = new Map([...bytesOf].toReversed());
          expect(coveringLayers(shuffled, reversed, share)).toEqual(coveringLayers(counted, bytesOf, share));
        },
      ),
      { numRuns: 300 },
    );
  });

  test('are the cheap ones that many tasks share, not the large one with the most', () => {
    const bytesOf = new Map([
      ['base', 100],
      ['large', 10_000],
      ['a', 5],
      ['b', 5],
      ['c', 5],
    ]);
    const counted = [
      { key: 'large', tasks: 40, layers: ['large', 'base'] },
      ...['a', 'b', 'c'].map((key) => ({ key, tasks: 30, layers: [key, 'base'] })),
    ];
    expect(coveringLayers(counted, bytesOf, 0.6)).toEqual({
      layers: ['a', 'b', 'base', 'c'],
      bytes: 115,
      coveredTasks: 90,
      totalTasks: 130,
      isReached: true,
    });
    expect(coveringLayers(counted, bytesOf, 1).bytes).toBe(10_115);
  });

  test('cannot be reached when the size of a layer is unknown', () => {
    const counted = [
      { key: 'a', tasks: 1, layers: ['a'] },
      { key: 'b', tasks: 3, layers: ['a', 'unknown'] },
    ];
    expect(coveringLayers(counted, new Map([['a', 7]]), 0.7)).toEqual({
      layers: ['a'],
      bytes: 7,
      coveredTasks: 1,
      totalTasks: 4,
      isReached: false,
    });
    expect(coveringLayers([], new Map(), 1)).toMatchObject({ layers: [], totalTasks: 0, isReached: true });
  });

  test.each([-0.1, 1.1, Number.NaN])('are refused for a share of %d', (share) => {
    expect(() => coveringLayers([], new Map(), share)).toThrow('0 to 1');
  });

  test('are found for a hundred thousand environments on shared bases in seconds', () => {
    const bytesOf = new Map<string, number>();
    const counted: CountedTasks[] = [];
    for (let index = 0; index < 100_000; index++) {
      const [base, workspace] = [`base${index % 1000}`, `w${index}`];
      bytesOf.set(base, 1_000_000 + (index % 1000));
      bytesOf.set(workspace, 1000 + (index % 77));
      counted.push({ key: workspace, tasks: 1 + (index % 97), layers: [workspace, base] });
    }
    const clock = new SystemClock();
    const startedMs = clock.monotonicMs();
    const found = coveringLayers(counted, bytesOf, 0.7);
    expect(clock.monotonicMs() - startedMs).toBeLessThan(20_000);
    expect(found.coveredTasks / found.totalTasks).toBeCloseTo(0.7, 3);
  }, 60_000);
});
