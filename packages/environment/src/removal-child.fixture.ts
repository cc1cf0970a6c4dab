/** Removes all layers in a process of its own, so that it can be killed: `removal-child.fixture.ts LAYERS HOLDS`. */
import { SystemRandom } from '@dsec/kit';
import { layersOnDisk, removeLayers } from './layer-removal.ts';

const [layersDirectory = '', holdsDirectory = ''] = process.argv.slice(2);
await removeLayers(
  {
    layersDirectory,
    holdsDirectory,
    random: new SystemRandom(),
    release: (layers) => Promise.resolve(new Set(layers)),
  },
  await layersOnDisk(layersDirectory),
);
