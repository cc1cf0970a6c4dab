import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ByteString } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { testPlace } from './build.fixture.ts';
import { importImage } from './image-import.ts';
import { layerImagePath } from './layer-store.ts';
import { ociLayout, saveLayout } from './oci/oci.fixture.ts';
import { openLayers } from './open-layers.ts';
import { tarOf } from './tar/tar.fixture.ts';

const FILE = [ByteString.fromText('file')];

describe('layers that are looked into', () => {
  it('give no bytes when some of their data may be elsewhere, which would read as zeros', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const path = await saveLayout(
      ociLayout({ layers: [tarOf({ name: 'file', content: 'x' })] }),
      join(place.path, 'l'),
    );
    const { layers } = await importImage(place.context, { path });
    const read = async () => {
      await using opened = await openLayers(layersDirectory, layers);
      const node = await opened.tree.lookup(FILE);
      if (node?.kind !== 'file') throw new Error('a file was expected');
      return Buffer.concat(await Array.fromAsync(node.bytes())).toString();
    };
    expect(await read()).toBe('x');
    await writeFile(join(dirname(layerImagePath(layersDirectory, layers[0] ?? '')), 'chunks'), '');
    await expect(read()).rejects.toMatchObject({ code: 'layer_not_found', details: { layer: layers[0] } });
  });

  it('are named when they are not there', async () => {
    await using place = await testPlace();
    const layer = `sha256:${'0'.repeat(64)}`;
    await expect(openLayers(place.context.layersDirectory, [layer])).rejects.toMatchObject({
      code: 'layer_not_found',
      details: { layer },
    });
  });
});
