import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { newDirectory } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { testPlace, type TestPlace } from './build.fixture.ts';
import { buildLayer } from './build-layer.ts';
import { NO_CONFIG } from './layer-stack.ts';
import { MadeLayers } from './made-layers.ts';

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
