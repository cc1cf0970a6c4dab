import type { EnvironmentImage } from '@dsec/contract';
import { EnvironmentImageSchema } from '@dsec/contract';
import type { BuildContext } from '@dsec/environment';
import { compileSchema, writeDurably } from '@dsec/kit';
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { exists } from './server/data-directory.ts';

const IMAGE_FILE = 'image.json';
const parser = compileSchema(EnvironmentImageSchema);

/**
 * Built environments that a later server can have without building them again: for the quickstart and for tests, whose data
 * directories do not outlive them. An entry is named by the text of its recipe.
 */
export class EnvironmentCache {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
  }

  /** Puts what was built from this recipe among the layers. Undefined when there is nothing. */
  async take(
    recipe: string,
    { layersDirectory, holds }: Pick<BuildContext, 'layersDirectory' | 'holds'>,
  ): Promise<EnvironmentImage | undefined> {
    const entry = this.#entry(recipe);
    if (!(await exists(join(entry, IMAGE_FILE)))) return undefined;
    const image = parser.parse(JSON.parse(await readFile(join(entry, IMAGE_FILE), 'utf8')), {
      what: 'a cached environment',
    });
    for (const layer of image.layers) {
      await holds?.hold(layer);
      await copyLayer(join(entry, hexOf(layer)), layersDirectory, hexOf(layer));
    }
    return image;
  }

  /** Keeps what was built. */
  async keep(recipe: string, image: EnvironmentImage, layersDirectory: string): Promise<void> {
    const entry = this.#entry(recipe);
    await mkdir(entry, { recursive: true });
    for (const hex of image.layers.map(hexOf)) await copyLayer(join(layersDirectory, hex), entry, hex);
    // Last: an entry without it is none.
    await writeDurably(join(entry, IMAGE_FILE), `${JSON.stringify(image, null, 2)}\n`);
  }

  #entry(recipe: string): string {
    return join(this.#directory, createHash('sha256').update(recipe).digest('hex').slice(0, 32));
  }
}

const LAYER_MODE = 0o755;

const hexOf = (digest: string): string => digest.replace(/^sha256:/, '');

/** Copies a layer, sharing its blocks where the filesystem can, and gives it its name when it is whole. */
async function copyLayer(from: string, toDirectory: string, hex: string): Promise<void> {
  const target = join(toDirectory, hex);
  if (await exists(target)) return;
  await mkdir(toDirectory, { recursive: true });
  const partial = await mkdtemp(join(toDirectory, '.copy-'));
  try {
    for (const name of await readdir(from))
      await copyFile(join(from, name), join(partial, name), constants.COPYFILE_FICLONE);
    // Those who read layers are not root's.
    await chmod(partial, LAYER_MODE);
    await rename(partial, target);
  } catch (error) {
    await rm(partial, { recursive: true, force: true });
    throw error;
  }
}
