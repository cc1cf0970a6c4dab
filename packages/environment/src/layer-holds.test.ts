import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SystemClock, SystemRandom } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { heldLayers, LayerHolds, withTurn } from './layer-holds.ts';

const clock = new SystemClock();
const random = new SystemRandom();
const layer = (digit: string): string => `sha256:${digit.repeat(64)}`;

let directory = '';
beforeEach(async () => {
  directory = join(await mkdtemp(join(tmpdir(), 'dsec-holds-')), 'holds');
});
afterEach(() => rm(join(directory, '..'), { recursive: true }));

const opened = (signal?: AbortSignal): Promise<LayerHolds> => LayerHolds.open({ directory, random, clock, signal });

/** Whether it is still pending when everything else has had its turn. */
async function isPending(promise: Promise<unknown>): Promise<boolean> {
  const nothing = Symbol('nothing');
  return (await Promise.race([promise, clock.sleep(60).then(() => nothing)])) === nothing;
}

describe('a hold', () => {
  it('is seen until its build ends, and that of each build for itself', async () => {
    {
      await using first = await opened();
      await using second = await opened();
      await Promise.all([first.hold(layer('a')), first.hold(layer('a')), first.hold(layer('b'))]);
      await second.hold(layer('a'));
      expect(await heldLayers(directory)).toEqual(new Set([layer('a'), layer('b')]));
      await first[Symbol.asyncDispose]();
      expect(await heldLayers(directory)).toEqual(new Set([layer('a')]));
    }
    expect(await heldLayers(directory)).toEqual(new Set());
    expect(await readdir(directory)).toEqual([]);
  });

  it('counts no more when its process is gone, and is removed', async () => {
    const path = join(directory, 'build-4194999-1-gone');
    await mkdir(path, { recursive: true });
    await writeFile(join(path, 'a'.repeat(64)), '');
    await mkdir(join(directory, 'turn-build-4194999-1-gone'));
    await using holds = await opened();
    // A turn of a killed process is waited for by nobody.
    await holds.hold(layer('b'));
    expect(await heldLayers(directory)).toEqual(new Set([layer('b')]));
    expect(await readdir(directory)).toHaveLength(1);
  });

  it('is of a digest', async () => {
    await using holds = await opened();
    await expect(holds.hold('../../etc')).rejects.toMatchObject({ code: 'invalid_argument' });
  });
});

describe('a turn', () => {
  it('sees what was held before it, and what is held during it waits until it ends', async () => {
    await using holds = await opened();
    await holds.hold(layer('a'));
    let late: Promise<void> | undefined;
    await withTurn({ directory, random }, async (held) => {
      expect(held).toEqual(new Set([layer('a')]));
      late = holds.hold(layer('b'));
      expect(await isPending(late)).toBe(true);
    });
    await late;
    await withTurn({ directory, random }, (held) => {
      expect(held).toEqual(new Set([layer('a'), layer('b')]));
      return Promise.resolve();
    });
  });

  it('ends when it fails, and who waits for it may give up', async () => {
    const controller = new AbortController();
    await using holds = await opened(controller.signal);
    await expect(
      withTurn({ directory, random }, async () => {
        const late = holds.hold(layer('a'));
        late.catch(() => undefined);
        expect(await isPending(late)).toBe(true);
        controller.abort();
        await expect(late).rejects.toMatchObject({ code: 'cancelled' });
        throw new Error('no');
      }),
    ).rejects.toThrow('no');
    await using other = await opened();
    await other.hold(layer('a'));
  });
});
