import type { EntrypointMode, Environment, EnvironmentImage, EnvironmentKind } from '@dsec/contract';
import {
  buildRecipe,
  importImage,
  parseRecipe,
  readsFiles,
  recipeDirectory,
  type BuildContext,
  type LayerHolds,
} from '@dsec/environment';
import type { DSecClient } from '@dsec/libdsec';
import { basename } from 'node:path';
import type { Context } from './context.ts';
import { EnvironmentCache } from './environment-cache.ts';
import { environmentName } from './environment-name.ts';
import { MAX_PARSED_BYTES, readInput, statInput } from './input-file.ts';
import { openHolds } from './prune-layers.ts';
import type { DataDirectory } from './server/data-directory.ts';
import { size } from './table.ts';
import type { Progress } from './terminal/progress.ts';

export interface BuildRequest {
  /** A recipe (`.yaml`, `.yml`), or an image: an OCI layout directory, or an archive of one or of `docker save`. */
  readonly file: string;
  /** @default that of the recipe; the file name of an image */
  readonly name?: string | undefined;
  /** Which image of the archive. */
  readonly reference?: string | undefined;
  /** Consecutive layers of an image become one up to this size. */
  readonly mergeUpToBytes?: number | undefined;
  /** Whether what the image says is to run does. @default 'ignore' */
  readonly entrypoint?: EntrypointMode | undefined;
  /** Directory of built environments to take it from and keep it in. */
  readonly cache?: string | undefined;
}

/** Variables that a build hands to apt, such as a proxy. */
const BUILD_VARIABLES = ['http_proxy', 'https_proxy', 'no_proxy', 'HTTP_PROXY', 'HTTPS_PROXY', 'NO_PROXY'] as const;

/** Builds on this machine, into the layers of its server, and names the result there. */
export async function buildEnvironment(
  context: Context,
  client: DSecClient,
  data: DataDirectory,
  request: BuildRequest,
  progress: Progress,
): Promise<Environment> {
  const info = await statInput(request.file, 'file');
  await using holds = await openHolds(context, data);
  const build = layerBuild(context, { data, holds }, progress);
  progress.step(`building ${basename(request.file)}`);
  const isRecipe = !info.isDirectory() && /\.ya?ml$/.test(request.file);
  const { name, image, description, kind } = isRecipe
    ? await fromRecipe(context, build, request)
    : await fromImage(build, request);
  progress.step(`registering ${name}`);
  const { entrypoint = 'ignore' } = request;
  return await client.environments.put(name, image, {
    kind,
    entrypoint,
    ...(description === undefined ? {} : { description }),
  });
}

/** How layers are built into those of a server on this machine. */
export function layerBuild(
  context: Context,
  { data, holds }: { readonly data: DataDirectory; readonly holds: LayerHolds },
  progress: Progress,
): BuildContext {
  return {
    layersDirectory: data.layers,
    notesDirectory: data.notes,
    holds,
    clock: context.clock,
    random: context.random,
    signal: context.interrupted,
    onProgress: ({ step, doneBytes, totalBytes }) =>
      progress.detail(
        doneBytes === undefined
          ? step
          : `${step} ${size(doneBytes)}${totalBytes === undefined ? '' : ` of ${size(totalBytes)}`}`,
      ),
  };
}

interface Built {
  readonly name: string;
  readonly image: EnvironmentImage;
  readonly description: string | undefined;
  readonly kind: EnvironmentKind;
}

async function fromRecipe(context: Context, build: BuildContext, request: BuildRequest): Promise<Built> {
  const text = await readInput(request.file, { what: 'recipe', maxBytes: MAX_PARSED_BYTES });
  const recipe = parseRecipe(text);
  const name = environmentName(request.name ?? recipe.name);
  // Files that the recipe reads are not part of its text, which is what names a cached build.
  const cache = request.cache === undefined || readsFiles(recipe) ? undefined : new EnvironmentCache(request.cache);
  let image = await cache?.take(text, build);
  if (image === undefined) {
    const env = Object.fromEntries(
      BUILD_VARIABLES.flatMap((key) => (context.variables[key] === undefined ? [] : [[key, context.variables[key]]])),
    );
    image = await buildRecipe(build, { recipe, directory: recipeDirectory(request.file), env });
    await cache?.keep(text, image, build.layersDirectory);
  }
  return { name, image, description: recipe.description, kind: recipe.kind ?? 'base' };
}

async function fromImage(build: BuildContext, request: BuildRequest): Promise<Built> {
  const name = environmentName(request.name ?? basename(request.file).replace(/\.(tar|tgz|tar\.gz|tar\.zst|oci)$/, ''));
  const image = await importImage(build, {
    path: request.file,
    reference: request.reference,
    mergeUpToBytes: request.mergeUpToBytes,
  });
  return { name, image, description: undefined, kind: 'base' };
}
