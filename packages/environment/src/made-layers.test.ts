import { mkdir, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { newDirectory } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { testPlace, type TestPlace } from './build.fixture.ts';
import { buildLayer } from './build-layer.ts';
import { NO_CONFIG } from './layer-stack.ts';
import { MadeLayers, removeStaleNotes } from './made-layers.ts';

const emptyLayer = async ({ context }: TestPlace): Promise<string> => {
  const { layers } = await buildLayer(context, () =>
    Promise.resolve({
      root: newDirectory(),
      config: NO_CONFIG,
      architecture: 'amd64',
      source: { kind: 'image', name: '' },
    }),
  );
  return layers[0] ?? '';
};

const notesIn = ({ path, context }: TestPlace) => {
  const directory = join(path, 'notes');
  return { directory, made: new MadeLayers({ ...context, directory }) };
};

describe('what was made from what', () => {
  it('is remembered, also that nothing had changed', async () => {
    await using place = await testPlace();
    const { made } = notesIn(place);
    const layer = await emptyLayer(place);
    const [some, none, other] = [MadeLayers.key('a', 1), MadeLayers.key('a', 2), MadeLayers.key('a', '1')];
    expect(await made.find(some)).toBeUndefined();
    await made.note(some, layer);
    await made.note(none, undefined);
    expect(await made.find(some)).toEqual({ layer });
    expect(await made.find(none)).toEqual({ layer: undefined });
    expect(await made.find(other)).toBeUndefined();
  });

  it('is forgotten with its layer', async () => {
    await using place = await testPlace();
    const { made, directory } = notesIn(place);
    const layer = await emptyLayer(place);
    const key = MadeLayers.key('a');
    await made.note(key, layer);
    await rm(join(place.context.layersDirectory, layer.slice('sha256:'.length)), { recursive: true });
    expect(await made.find(key)).toBeUndefined();
    expect(await readdir(directory)).toEqual([]);
  });

  it('is held before it is looked for', async () => {
    await using place = await testPlace();
    const { made, directory } = notesIn(place);
    const layer = await emptyLayer(place);
    await made.note('a'.repeat(64), layer);
    const held: string[] = [];
    const holding = new MadeLayers({
      ...place.context,
      directory,
      holds: {
        hold: async (digest) => {
          held.push(digest);
          await rm(join(place.context.layersDirectory, digest.slice('sha256:'.length)), { recursive: true });
        },
      },
    });
    expect(await holding.find('a'.repeat(64))).toBeUndefined();
    expect(held).toEqual([layer]);
  });

  it('is thrown away when it is of no use any more', async () => {
    await using place = await testPlace();
    const { made, directory } = notesIn(place);
    const [there, gone] = [`sha256:${'1'.repeat(64)}`, `sha256:${'2'.repeat(64)}`];
    const key = (digit: string): string => digit.repeat(64);
    await made.note(key('a'), there);
    await made.note(key('b'), gone);
    await made.note(key('c'), undefined);
    await made.note(key('d'), undefined);
    await utimes(join(directory, key('d')), 1, 1);
    await writeFile(join(directory, key('e')), 'no note');
    const stale = { isThere: (layer: string) => layer === there, unusedSinceMs: 1_000_000 };
    const counted = await removeStaleNotes(directory, { ...stale, isDryRun: true });
    expect(counted.notes).toBe(3);
    expect(counted.bytes).toBeGreaterThan(0);
    expect(await readdir(directory)).toHaveLength(5);
    expect(await removeStaleNotes(directory, { ...stale, isDryRun: false })).toEqual(counted);
    expect((await readdir(directory)).toSorted()).toEqual([key('a'), key('c')]);
    const nowhere = join(directory, 'none');
    expect(await removeStaleNotes(nowhere, { ...stale, isDryRun: false })).toEqual({ notes: 0, bytes: 0 });
  });

  it.each([
    ['no JSON', '{"version":'],
    ['nothing', ''],
    ['another version', '{"version":2,"layer":null}'],
    ['no digest', '{"version":1,"layer":"sha256:../../x"}'],
  ])('is not taken from a note of %s', async (_, text) => {
    await using place = await testPlace();
    const { made, directory } = notesIn(place);
    await mkdir(directory);
    await writeFile(join(directory, MadeLayers.key('a')), text);
    expect(await made.find(MadeLayers.key('a'))).toBeUndefined();
  });
});
