import { constants } from 'node:fs';
import { copyFile, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { type EnvironmentConfig, type EnvironmentImage, PlatformError } from '@dsec/contract';
import { abortError, type Exit } from '@dsec/kit';
import type { ImageWriter } from '@dsec/erofs';
import { type AptSources, type AptSourcesOptions, hostAptSources } from './apt-sources.ts';
import type { BuildContext } from './build-context.ts';
import { buildLayer } from './build-layer.ts';
import { BuildOutput } from './build-output.ts';
import { hostArchitecture } from './host-architecture.ts';
import { LayerTree } from './layer-tree.ts';
import { startMmdebstrap } from './mmdebstrap.ts';
import { DEFAULT_PATH } from './oci/environment-config.ts';
import type { Recipe, RecipeFile } from './recipe.ts';
import { filesOfRecipe } from './recipe-files.ts';
import { recipeHooks } from './recipe-hooks.ts';
import { completeRecipeRoot, keptEntries } from './recipe-hygiene.ts';
import { findSource } from './recipe-source.ts';
import { completeRoot, completeWorkdir } from './root-skeleton.ts';

export interface RecipeBuild {
  readonly recipe: Recipe;
  /** Where the recipe stands: `source` of its files is relative to it, and may not lead out of it. */
  readonly directory: string;
  /** Variables that mmdebstrap and apt see, such as a proxy. They do not get into the image. */
  readonly env?: Readonly<Record<string, string>>;
  readonly aptSources?: AptSourcesOptions;
  /** @default 'mmdebstrap' */
  readonly mmdebstrap?: string;
}

/**
 * Builds what a recipe describes into one layer: a root file system, with mmdebstrap and the apt sources of this machine, or the files of a
 * workspace or toolkit. Recipes are trusted: their commands run as root in a chroot.
 *
 * @throws PlatformError `recipe_invalid` (a source file), `host_unsuitable` (no mmdebstrap, no sources), `build_failed` with the last output
 * in `details.output`, `disk_full`, `cancelled`
 */
export const buildRecipe = (context: BuildContext, build: RecipeBuild): Promise<EnvironmentImage> =>
  buildLayer(context, async ({ writer, scratch }) => {
    const { recipe } = build;
    if (recipe.kind === 'workspace' || recipe.kind === 'toolkit') return await filesOfRecipe(context, build, writer);
    const sources = await hostAptSources(recipe.suite ?? 'host', recipe.components, build.aptSources);
    const copies: string[] = [];
    for (const [index, file] of (recipe.files ?? []).entries()) {
      copies.push(await prepareFile(file, { index, directory: build.directory, scratch }));
    }
    const hooks = recipeHooks(recipe, copies);
    const tree = await bootstrap(context, build, { sources, hooks, scratch, writer });
    completeRecipeRoot(tree.root);
    const config = recipeConfig(recipe);
    completeRoot(tree.root);
    await completeWorkdir(tree.root, config.workdir);
    return {
      root: tree.root,
      config,
      architecture: hostArchitecture(),
      source: { kind: 'recipe', name: recipe.name },
    };
  });

const recipeConfig = (recipe: Recipe): EnvironmentConfig => ({
  env: { PATH: DEFAULT_PATH, ...recipe.env },
  user: recipe.user ?? 'root',
  workdir: recipe.workdir ?? '/',
  entrypoint: [],
  cmd: [],
  labels: {},
});

interface Bootstrap {
  readonly sources: AptSources;
  readonly hooks: readonly string[];
  readonly scratch: string;
  readonly writer: ImageWriter;
}

const bootstrap = async (context: BuildContext, build: RecipeBuild, parts: Bootstrap): Promise<LayerTree> => {
  const { recipe } = build;
  const { signal } = context;
  const argv = [
    `--variant=${recipe.variant ?? 'minbase'}`,
    '--format=tar',
    '--aptopt=Acquire::Languages "none"',
    // A build that is interrupted is thrown away: nothing needs to be on the disk before its end.
    '--dpkgopt=force-unsafe-io',
    ...((recipe.packages ?? []).length > 0 ? [`--include=${(recipe.packages ?? []).join(',')}`] : []),
    ...parts.hooks.map((hook) => `--customize-hook=${hook}`),
    parts.sources.suite,
    '-',
    '-',
  ];
  await using child = await startMmdebstrap(argv, {
    program: build.mmdebstrap ?? 'mmdebstrap',
    clock: context.clock,
    scratch: parts.scratch,
    env: build.env ?? {},
  });
  const output = new BuildOutput(child.stderr, (step) => context.onProgress?.({ step }));
  const onAbort = (): void => void child.stop();
  signal?.addEventListener('abort', onAbort, { once: true });
  try {
    if (signal?.aborted === true) onAbort();
    child.stdin.end(parts.sources.text);
    const tree = new LayerTree();
    let failure: Error | undefined;
    try {
      await tree.apply(child.stdout, {
        name: recipe.name,
        store: (sizeBytes, bytes) => parts.writer.store(sizeBytes, bytes),
        whiteouts: 'none',
        devices: 'drop',
        keep: keptEntries(recipe),
      });
    } catch (error) {
      failure = error instanceof Error ? error : new PlatformError('internal', 'no error was thrown', { cause: error });
    }
    // A program that nobody reads from any more would never end.
    if (failure !== undefined) child.stdout.destroy();
    const exit = await child.exited;
    await output.ended;
    if (signal?.aborted === true) throw abortError(signal);
    // An archive that ends early is what a failed program leaves: its own words say more.
    const isOwnFault = failure === undefined || (PlatformError.is(failure) && failure.code === 'image_corrupt');
    if (isOwnFault && exit.exitCode !== 0) throw buildFailure(recipe.name, exit, output.tail);
    if (failure !== undefined) throw failure;
    if (tree.root.children.size === 0) throw buildFailure(recipe.name, exit, output.tail);
    return tree;
  } finally {
    signal?.removeEventListener('abort', onAbort);
  }
};

const buildFailure = (name: string, exit: Exit, output: string): PlatformError => {
  if (/No space left on device|not enough free space/i.test(output)) {
    return new PlatformError('disk_full', `The disk became full while ${name} was built`, { details: { output } });
  }
  const how = exit.exitCode === undefined ? `was ended by ${exit.signal ?? 'a signal'}` : `exit code ${exit.exitCode}`;
  return new PlatformError('build_failed', `The build of ${name} failed (mmdebstrap: ${how})`, {
    details: { output, exitCode: exit.exitCode ?? null },
  });
};

/** Copies or writes one file of the recipe to where the hooks read it. */
const prepareFile = async (
  file: RecipeFile,
  place: { readonly index: number; readonly directory: string; readonly scratch: string },
): Promise<string> => {
  const target = join(place.scratch, `file-${place.index}`);
  if (file.source === undefined) {
    await writeFile(target, file.content ?? '', { flag: 'wx' });
    return target;
  }
  const source = await findSource(place.directory, file.source, { field: `files.${place.index}.source`, kind: 'file' });
  await copyFile(source, target, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
  return target;
};

/** The directory that `source` of a recipe file is relative to. */
export const recipeDirectory = (recipePath: string): string => dirname(resolve(recipePath));
