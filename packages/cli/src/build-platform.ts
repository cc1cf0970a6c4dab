import { PlatformError, type EnvironmentImage } from '@dsec/contract';
import {
  AuthFile,
  buildMark,
  isStaleMark,
  NO_CONFIG,
  packChanges,
  pullImage,
  type BuildContext,
  type DockerfilePlatform,
  type RunStep,
} from '@dsec/environment';
import type { ContainerRunArgs, DSecClient, Exec, Sandbox } from '@dsec/libdsec';
import type { Context } from './context.ts';
import type { RegistryOptions } from './registry-options.ts';
import { size } from './table.ts';

/** What the sandboxes of a build are made of. */
export type BuildSandbox = Omit<ContainerRunArgs, 'containerImage' | 'env' | 'initUser' | 'workdir'>;

export interface BuildPlatformOptions extends RegistryOptions {
  readonly context: Context;
  readonly client: DSecClient;
  readonly build: BuildContext;
  readonly sandbox: BuildSandbox;
  /** A line of what a command writes, or of how far a pull is. */
  readonly onLine: (line: string) => void;
}

/** Names of environments that stand on layers of a build under way begin with this. */
const PREFIX = 'dsec-build/';
/** Sandboxes of a build are labelled with the name that they stand on. */
const LABEL = 'dsec-build';
/** Compilers and package managers need more than the default of a sandbox. */
const DEFAULT_MEMORY_MB = 2048;
const LAST_LINES = 40;
const MAX_TAIL_CHARS = 8192;
/** What a client holds of a command's output besides the lines that it shows. */
const HELD_OUTPUT_BYTES = 65_536;
/** A command that could not begin is a failed step, as one that ended with an error is. */
const STEP_FAULTS: readonly string[] = [
  'command_not_found',
  'command_not_executable',
  'cwd_not_found',
  'user_not_found',
  'argv_too_long',
  'pids_exhausted',
];

/** Runs the steps of a Dockerfile in sandboxes of a server on this machine. */
export class BuildPlatform implements DockerfilePlatform {
  readonly #options: BuildPlatformOptions;
  readonly #images = new Map<string, Promise<EnvironmentImage>>();

  constructor(options: BuildPlatformOptions) {
    this.#options = options;
  }

  /** An environment of the server; what it has not, is an image of a registry. */
  image(reference: string): Promise<EnvironmentImage> {
    const known = this.#images.get(reference);
    if (known !== undefined) return known;
    const image = this.#find(reference);
    this.#images.set(reference, image);
    return image;
  }

  async run(step: RunStep): Promise<string | undefined> {
    const { client, context, sandbox: args, build } = this.#options;
    const name = PREFIX + (await buildMark(context.random));
    await client.environments.put(name, step.image, { description: 'layers of a build under way' });
    const run = async (): Promise<string | undefined> => {
      await using sandbox = await client.runContainer(
        { memoryLimitMb: DEFAULT_MEMORY_MB, ...args, containerImage: name, metadata: { [LABEL]: name } },
        { signal: context.interrupted },
      );
      await this.#command(sandbox, step);
      return await packed(build, sandbox, step);
    };
    const layer = await run().catch(async (error: unknown) => {
      // Why the step failed is what counts; a name that stays is taken away by the next build.
      await client.environments.remove(name).catch(() => undefined);
      throw error;
    });
    await client.environments.remove(name);
    return layer;
  }

  /** Takes away what builds have left that were killed: their sandboxes, and the names of their layers. */
  async removeStale(): Promise<void> {
    const { client } = this.#options;
    for await (const { name } of client.environments.list()) {
      if (!name.startsWith(PREFIX) || !(await isStaleMark(name.slice(PREFIX.length)))) continue;
      await client.stopSandboxes({ metadata: { [LABEL]: name } });
      await client.environments.remove(name).catch(ignoreGone);
    }
  }

  async #find(reference: string): Promise<EnvironmentImage> {
    const { client, context, build, authFile, insecure = [], mirrors = {}, onLine } = this.#options;
    const environment = await client.environments.get(reference).catch(ignoreUnknown);
    if (environment !== undefined) {
      if (environment.kind === 'base') {
        // Its name may be taken away before the build has one.
        for (const layer of environment.image.layers) await build.holds?.hold(layer);
        return environment.image;
      }
      throw new PlatformError(
        'invalid_argument',
        `${reference} is a ${environment.kind}: only a base can be built on`,
        {
          details: { field: 'FROM', environment: reference, kind: environment.kind },
        },
      );
    }
    const auth = await AuthFile.find({ path: authFile, variables: context.variables });
    return await pullImage(build, {
      reference,
      auth,
      insecure,
      mirrors,
      onLayer: ({ imageDoneBytes, imageTotalBytes }) => onLine(`${size(imageDoneBytes)} of ${size(imageTotalBytes)}`),
    });
  }

  async #command(sandbox: Sandbox, step: RunStep): Promise<void> {
    const { context, onLine } = this.#options;
    const tail: string[] = [];
    const failed = (
      how: string,
      details: Readonly<Record<string, string | number>>,
      cause?: unknown,
    ): PlatformError => {
      const { line, instruction, text } = step;
      const output = tail.join('\n').slice(-MAX_TAIL_CHARS);
      return new PlatformError('build_failed', `line ${line}, ${instruction}: the command ${how}`, {
        details: { line, instruction, step: text, ...details, output },
        cause,
      });
    };
    try {
      if (step.script !== undefined) {
        await sandbox.files.write(step.script.path, step.script.content, { user: 'root', mode: 0o644 });
      }
      const exec: Exec = sandbox.exec(step.argv, {
        env: step.env,
        maxOutputBytes: HELD_OUTPUT_BYTES,
        signal: context.interrupted,
      });
      for await (const { line } of exec.lines()) {
        tail.push(line);
        if (tail.length > LAST_LINES) tail.shift();
        onLine(line);
      }
      const { exitCode, isOomKilled } = await exec;
      if (isOomKilled) throw failed('had not enough memory', { exitCode, reason: 'oom' });
      if (exitCode !== 0) throw failed(`ended with exit code ${exitCode}`, { exitCode });
    } catch (error) {
      if (!PlatformError.is(error) || !STEP_FAULTS.includes(error.code)) throw error;
      throw failed('could not be run', { reason: error.code }, error);
    }
  }
}

/** A layer of what the command has changed, if anything. */
const packed = async (build: BuildContext, sandbox: Sandbox, step: RunStep): Promise<string | undefined> => {
  try {
    const { layers } = await packChanges(build, {
      changes: await sandbox.changes({ signal: build.signal }),
      name: step.text,
      config: NO_CONFIG,
      architecture: step.image.architecture,
      onScanned: ({ hasChanges }) => {
        if (!hasChanges) throw new NothingChanged();
      },
    });
    return layers[0];
  } catch (error) {
    if (error instanceof NothingChanged) return undefined;
    throw error;
  }
};

/** Ends the making of a layer that would be empty. */
class NothingChanged extends Error {
  override readonly name = 'NothingChanged';
}

/** A name with an `@` is none of an environment, and refused as such. */
const ignoreUnknown = (error: unknown): undefined => {
  if (PlatformError.is(error) && (error.code === 'environment_not_found' || error.code === 'invalid_argument'))
    return undefined;
  throw error;
};

const ignoreGone = (error: unknown): void => {
  if (!PlatformError.is(error) || error.code !== 'environment_not_found') throw error;
};
