import { PlatformError, type EntrypointMode, type Environment } from '@dsec/contract';
import { buildDockerfile, type BuildContext } from '@dsec/environment';
import type { DSecClient } from '@dsec/libdsec';
import { basename, dirname, join, resolve } from 'node:path';
import { BuildPlatform, type BuildSandbox } from './build-platform.ts';
import { say, type Context } from './context.ts';
import { environmentName } from './environment-name.ts';
import { MAX_PARSED_BYTES, readInput, readInputIfThere, statInput, statInputIfThere } from './input-file.ts';
import type { RegistryOptions } from './registry-options.ts';
import { printable } from './table.ts';
import type { Progress } from './terminal/progress.ts';

export interface DockerfileRequest extends RegistryOptions {
  readonly place: DockerfilePlace;
  /** @default that of the context directory */
  readonly name?: string | undefined;
  readonly target?: string | undefined;
  readonly buildArgs?: Readonly<Record<string, string>> | undefined;
  /** Whether what the image says is to run does. @default 'ignore' */
  readonly entrypoint?: EntrypointMode | undefined;
  /** Take steps that were made before. @default true */
  readonly reuse?: boolean | undefined;
  readonly sandbox: BuildSandbox;
}

/** A Dockerfile, and the directory that it copies from. */
export interface DockerfilePlace {
  readonly file: string;
  readonly directory: string;
}

const DOCKERFILE = /^(?:.*\.)?(?:dockerfile|containerfile)(?:\..*)?$/i;
const DOCKERIGNORE = '.dockerignore';
const MAX_IGNORE_BYTES = 1024 * 1024;

/**
 * The Dockerfile that is meant: `-f`, with the path as its context; or the path itself, with what it lies in; or that of the path's directory.
 *
 * @returns undefined when the path is no such thing
 */
export async function findDockerfile(
  path: string | undefined,
  file: string | undefined,
): Promise<DockerfilePlace | undefined> {
  if (file !== undefined) return { file, directory: path ?? '.' };
  if (path === undefined) return undefined;
  const info = await statInputIfThere(path);
  if (info?.isFile() === true && DOCKERFILE.test(basename(path))) return { file: path, directory: dirname(path) };
  if (info?.isDirectory() !== true) return undefined;
  for (const name of ['Dockerfile', 'Containerfile']) {
    const inside = join(path, name);
    if ((await statInputIfThere(inside))?.isFile() === true) return { file: inside, directory: path };
  }
  return undefined;
}

/** Builds a Dockerfile with sandboxes of the server, into its layers, and names the result there when all of it is done. */
export async function buildDockerfileEnvironment(
  context: Context,
  client: DSecClient,
  build: BuildContext,
  request: DockerfileRequest,
  progress: Progress,
): Promise<Environment> {
  const { place, target, buildArgs, reuse, sandbox, authFile, insecure, mirrors, entrypoint = 'ignore' } = request;
  const text = await readInput(place.file, { what: 'Dockerfile', maxBytes: MAX_PARSED_BYTES });
  // Before the work, which may take long.
  const name = environmentName(request.name ?? basename(resolve(place.directory)));
  const onLine = (line: string): void => progress.detail(printable(line));
  const platform = new BuildPlatform({ context, client, build, sandbox, onLine, authFile, insecure, mirrors });
  await platform.removeStale();
  const { image, warnings } = await buildDockerfile(build, platform, {
    text,
    name,
    directory: await contextDirectory(place.directory),
    dockerignore: await ignoreText(place),
    target,
    buildArgs,
    reuse,
    onStep: ({ step, steps, text: shown, outcome }) => {
      if (outcome === 'begun') progress.step(`[${step}/${steps}] ${printable(shown)}`);
      else if (outcome === 'reused') progress.detail('as before');
    },
  });
  for (const { line, instruction, message } of warnings) {
    say(context, `warning: line ${line}, ${printable(instruction)}: ${printable(message)}`);
  }
  progress.step(`registering ${name}`);
  return client.environments.put(name, image, { kind: 'base', entrypoint });
}

async function contextDirectory(path: string): Promise<string> {
  if ((await statInput(path, 'directory')).isDirectory()) return path;
  throw new PlatformError('not_directory', `the context ${path} is no directory`, { details: { path } });
}

/** One that is beside the Dockerfile and has its name counts for that one alone. */
async function ignoreText({ file, directory }: DockerfilePlace): Promise<string | undefined> {
  for (const path of [`${file}${DOCKERIGNORE}`, join(directory, DOCKERIGNORE)]) {
    const text = await readInputIfThere(path, { what: DOCKERIGNORE, maxBytes: MAX_IGNORE_BYTES });
    if (text !== undefined) return text;
  }
  return undefined;
}
