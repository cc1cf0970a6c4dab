import { EnvironmentNameSchema, PlatformError, type EntrypointMode, type Environment } from '@dsec/contract';
import { buildDockerfile, type BuildContext } from '@dsec/environment';
import { compileSchema } from '@dsec/kit';
import type { DSecClient } from '@dsec/libdsec';
import { readFile, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { BuildPlatform, type BuildSandbox } from './build-platform.ts';
import { say, type Context } from './context.ts';
import type { RegistryOptions } from './registry-options.ts';
import { isErrno } from './server/data-directory.ts';
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
const names = compileSchema(EnvironmentNameSchema);
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
  const info = await stat(path).catch(ignoreMissing);
  if (info?.isFile() === true && DOCKERFILE.test(basename(path))) return { file: path, directory: dirname(path) };
  if (info?.isDirectory() !== true) return undefined;
  for (const name of ['Dockerfile', 'Containerfile']) {
    const inside = join(path, name);
    if ((await stat(inside).catch(ignoreMissing))?.isFile() === true) return { file: inside, directory: path };
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
  const text = await readText(place.file);
  // Before the work, which may take long.
  const name = names.parse(request.name ?? basename(resolve(place.directory)), { what: 'the name of the environment' });
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

async function readText(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    throw notFound('Dockerfile', path, error);
  }
}

async function contextDirectory(path: string): Promise<string> {
  const info = await stat(path).catch((error: unknown) => {
    throw notFound('directory', path, error);
  });
  if (info.isDirectory()) return path;
  throw new PlatformError('not_directory', `the context ${path} is no directory`, { details: { path } });
}

/** One that is beside the Dockerfile and has its name counts for that one alone. */
async function ignoreText({ file, directory }: DockerfilePlace): Promise<string | undefined> {
  for (const path of [`${file}${DOCKERIGNORE}`, join(directory, DOCKERIGNORE)]) {
    const info = await stat(path).catch(ignoreMissing);
    if (info === undefined) continue;
    if (info.size <= MAX_IGNORE_BYTES) return await readFile(path, 'utf8');
    throw new PlatformError('invalid_argument', `${path} is longer than ${MAX_IGNORE_BYTES} bytes`, {
      details: { field: DOCKERIGNORE, limit: MAX_IGNORE_BYTES },
    });
  }
  return undefined;
}

const notFound = (what: string, path: string, cause: unknown): PlatformError =>
  new PlatformError('file_not_found', `there is no ${what} ${path}`, { details: { path }, cause });

function ignoreMissing(error: unknown): undefined {
  if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return undefined;
  throw error;
}
