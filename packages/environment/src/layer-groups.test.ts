import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { groupLayers, MAX_IMAGE_LAYERS } from './layer-groups.ts';

const ends = async (sizes: readonly number[], mergeUpToBytes: number, known: readonly string[] = []) => {
  const groups = await groupLayers({
    sizes,
    mergeUpToBytes,
    isKnown: ({ start, end }) => Promise.resolve(known.includes(`${start}-${end}`)),
  });
  return groups.map(({ end }) => end);
};

describe('layers of an image', () => {
  it.each([
    ['nothing', [], 100, [], []],
    ['one', [7], 0, [], [1]],
    ['all within the bound', [10, 20, 30], 60, [], [3]],
    ['as many as the bound allows', [10, 20, 30, 40], 59, [], [2, 3, 4]],
    ['one that is larger than the bound', [10, 500, 10, 10], 60, [], [1, 2, 4]],
    ['each by itself', [10, 20, 30], 0, [], [1, 2, 3]],
    ['empty layers with the one below', [10, 0, 0, 10], 10, [], [3, 4]],
    ['a base that is known', [10, 20, 30], 100, ['0-2'], [2, 3]],
    ['the largest that is known', [10, 20, 30, 5], 100, ['0-1', '0-3', '3-4'], [3, 4]],
    ['a known one only within the bound', [10, 20, 30], 30, ['0-3'], [2, 3]],
    ['what is known above what is known', [1, 1, 1, 1], 100, ['0-1', '1-3'], [1, 3, 4]],
  ] as [string, number[], number, string[], number[]][])('%s', async (_, sizes, bound, known, expected) => {
    expect(await ends(sizes, bound, known)).toEqual(expected);
  });

  it('are in no more groups than there may be, also where each of more is known by itself', async () => {
    const sizes = new Array<number>(MAX_IMAGE_LAYERS + 8).fill(1);
    const known = sizes.slice(0, MAX_IMAGE_LAYERS).map((_, index) => `${index}-${index + 1}`);
    const kept = sizes.slice(1, MAX_IMAGE_LAYERS).map((_, index) => index + 1);
    expect(await ends(sizes, 0, known)).toEqual([...kept, sizes.length]);
  });

  it('are all in a group, in their order, and never in more groups than there may be', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.oneof(fc.nat(10), fc.nat(2 ** 31)), { maxLength: 200 }),
        fc.oneof(fc.constant(0), fc.nat(2 ** 32)),
        async (sizes, bound) => {
          const found = await ends(sizes, bound);
          expect(found.length).toBeLessThanOrEqual(MAX_IMAGE_LAYERS);
          expect(found.at(-1) ?? 0).toBe(sizes.length);
          expect(found).toEqual([...new Set(found)].sort((left, right) => left - right));
        },
      ),
    );
  });
});
