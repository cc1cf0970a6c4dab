/** Builds a recipe in a process of its own, so that it can be killed: `build-child.fixture.ts LAYERS MMDEBSTRAP`. */
import { SystemClock, SystemRandom } from '@dsec/kit';
import { buildRecipe, parseRecipe } from './index.ts';

const [layersDirectory = '', mmdebstrap = ''] = process.argv.slice(2);
await buildRecipe(
  { layersDirectory, clock: new SystemClock(), random: new SystemRandom() },
  { recipe: parseRecipe('name: killed'), directory: layersDirectory, mmdebstrap },
);
