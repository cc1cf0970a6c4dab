/** Layers that nobody needs go; what somebody needs stays or comes back, wherever a removal is killed. */
import { mkdir, mkdtemp, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { Process, SystemClock, SystemRandom } from '@dsec/kit';
import { waitFor } from '@dsec/testkit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { LayerHolds } from './layer-holds.ts';
import { layerBytes, layersOnDisk, removeLayers, restoreLayers, type LayerRemovalOptions } from './layer-removal.ts';

const clock = new SystemClock();
const random = new SystemRandom();
const WAIT_MS = 20_000;

let base = '';
let layersDirectory = '';
beforeEach(async () => {
  base = await mkdtemp(join(tmpdir(), 'dsec-removal-'));
  layersDirectory = join(base, 'layers');
  await mkdir(layersDirectory);
});
afterEach(() => rm(base, { recursive: true }));

const hex = (number: number): string => number.toString(16).padStart(64, '0');
const layer = (number: number): string => `sha256:${hex(number)}`;
const FILES = ['layer.json', 'rootfs.erofs', 'data'];

async function made(...numbers: readonly number[]): Promise<readonly string[]> {
  for (const number of numbers) {
    await mkdir(join(layersDirectory, hex(number)));
    for (const name of FILES) await writeFile(join(layersDirectory, hex(number), name), `${name} ${number}`);
  }
  return numbers.map(layer);
}

const options = (release: LayerRemovalOptions['release']): LayerRemovalOptions => ({
  layersDirectory,
  holdsDirectory: join(base, 'holds'),
  random,
  release,
});
const all = (layers: readonly string[]): Promise<ReadonlySet<string>> => Promise.resolve(new Set(layers));
const names = async (): Promise<readonly string[]> => (await readdir(layersDirectory)).toSorted();
const isWhole = async (number: number): Promise<boolean> =>
  (await readdir(join(layersDirectory, hex(number)))).length === FILES.length;

describe('a removal', () => {
  it('takes what nobody needs, says what it took, and leaves the rest', async () => {
    const layers = await made(1, 2, 3);
    const bytes = await layerBytes(layersDirectory, layer(2));
    expect(bytes).toBeGreaterThan(0);
    const removed = await removeLayers(
      options((asked) => all(asked.filter((each) => each !== layer(1)))),
      [...layers, layer(9)],
    );
    expect(removed).toEqual([
      { layer: layer(2), bytes },
      { layer: layer(3), bytes },
    ]);
    expect(await names()).toEqual([hex(1)]);
    expect(await layersOnDisk(layersDirectory)).toEqual([layer(1)]);
  });

  it('leaves what a build holds, and asks nobody about it', async () => {
    const layers = await made(1, 2);
    await using holds = await LayerHolds.open({ directory: join(base, 'holds'), random, clock });
    await holds.hold(layer(1));
    const asked: (readonly string[])[] = [];
    await removeLayers(
      options((some) => {
        asked.push(some);
        return all(some);
      }),
      layers,
    );
    expect(asked).toEqual([[layer(2)], [layer(2)]]);
    expect(await names()).toEqual([hex(1)]);
  });

  it('puts back what somebody began to need while it was taken away, whole', async () => {
    const layers = await made(1, 2);
    let turn = 0;
    const removed = await removeLayers(
      options(async (asked) => {
        if (turn++ === 0) return all(asked);
        // Nobody can find them now.
        expect(await layersOnDisk(layersDirectory)).toEqual([]);
        return all([layer(2)]);
      }),
      layers,
    );
    expect(removed.map((each) => each.layer)).toEqual([layer(2)]);
    expect(await names()).toEqual([hex(1)]);
    expect(await isWhole(1)).toBe(true);
  });

  it('keeps what was made again in the place of what it had taken', async () => {
    const layers = await made(1);
    let turn = 0;
    await removeLayers(
      options(async () => {
        if (turn++ === 0) return new Set([layer(1)]);
        await made(1);
        await writeFile(join(layersDirectory, hex(1), 'layer.json'), 'new');
        return new Set();
      }),
      layers,
    );
    expect(await names()).toEqual([hex(1)]);
    expect(await readFile(join(layersDirectory, hex(1), 'layer.json'), 'utf8')).toBe('new');
  });

  it.each([1, 2])('changes nothing when nobody can say who needs what (question %i)', async (failing) => {
    const layers = await made(1, 2);
    let turn = 0;
    const removing = removeLayers(
      options((asked) => {
        if (++turn === failing) throw new PlatformError('unavailable', 'the node does not answer');
        return all(asked);
      }),
      layers,
    );
    await expect(removing).rejects.toMatchObject({ code: 'unavailable' });
    expect(await names()).toEqual([hex(1), hex(2)]);
    for (const number of [1, 2]) expect(await isWhole(number)).toBe(true);
  });

  it('has two at once take each layer once', async () => {
    const layers = await made(...Array.from({ length: 150 }, (_, number) => number));
    const removed = await Promise.all([removeLayers(options(all), layers), removeLayers(options(all), layers)]);
    const taken = removed.flat().map((each) => each.layer);
    expect(taken.toSorted()).toEqual(layers);
    expect(await names()).toEqual([]);
  });

  it('takes what stands in the place of a layer and is none', async () => {
    await mkdir(join(layersDirectory, hex(1)));
    await writeFile(join(layersDirectory, hex(2)), 'a file');
    await removeLayers(options(all), await layersOnDisk(layersDirectory));
    expect(await names()).toEqual([]);
  });
});

describe('a removal whose process is killed', () => {
  it('has put nothing away for good that somebody may need: the next puts it back', async () => {
    await made(1, 2);
    const aside = join(layersDirectory, '.aside-build-4194999-1-gone');
    await mkdir(aside);
    for (const number of [1, 2]) await rename(join(layersDirectory, hex(number)), join(aside, hex(number)));
    await made(2);
    // As several builds that begin.
    await Promise.all(Array.from({ length: 8 }, () => restoreLayers(layersDirectory)));
    expect(await names()).toEqual([hex(1), hex(2)]);
    for (const number of [1, 2]) expect(await isWhole(number)).toBe(true);
  });

  it('leaves whole layers or none, at whatever moment it was killed', { timeout: 60_000 }, async () => {
    let gone = 0;
    for (let round = 0; round < 6; round++) {
      const numbers = Array.from({ length: 300 }, (_, number) => round * 1000 + number);
      await made(...numbers);
      const child = await Process.start(
        [process.execPath, join(import.meta.dirname, 'removal-child.fixture.ts'), layersDirectory, join(base, 'holds')],
        { clock, env: { NODE_NO_WARNINGS: '1' }, stdout: 'ignore' },
      );
      // Another moment each round: from the first layer on.
      await waitFor(
        clock,
        'some layers are gone',
        async () => (await layersOnDisk(layersDirectory)).length <= 300 - 1 - round * 40,
        WAIT_MS,
      );
      child.signal('SIGKILL');
      await child.exited;
      for (const name of await layersOnDisk(layersDirectory)) {
        expect(await readdir(join(layersDirectory, name.slice('sha256:'.length)))).toHaveLength(FILES.length);
      }
      // Whatever comes next: it asks, and is told that all that is left is needed.
      await removeLayers(
        options(() => all([])),
        await layersOnDisk(layersDirectory),
      );
      const left = await layersOnDisk(layersDirectory);
      expect(await names()).toEqual(left.map((name) => name.slice('sha256:'.length)));
      for (const name of left) {
        for (const file of FILES) {
          expect((await stat(join(layersDirectory, name.slice('sha256:'.length), file))).isFile()).toBe(true);
        }
      }
      gone += 300 - left.length;
      await removeLayers(options(all), left);
      expect(await names()).toEqual([]);
      expect(await readdir(join(base, 'holds'))).toEqual([]);
    }
    expect(gone).toBeGreaterThan(0);
  });
});
