import type { DSecClient, Environment } from '@dsec/libdsec';
import {
  entrypointModes,
  environmentKinds,
  limits,
  PlatformError,
  type EntrypointMode,
  type EnvironmentKind,
} from '@dsec/contract';
import { Option, type Command } from 'commander';
import { noted } from '../audit-note.ts';
import { decimal, integer, pairs, seconds, sizeBytes, sizeMib, withConnection } from '../arguments.ts';
import { connect, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import type { RegistryOptions } from '../registry-options.ts';
import { boundArgs, policyArgs, withPolicy, type BoundOptions, type PolicyOptions } from '../sandbox-options.ts';
import { requireRoot } from '../server/installation.ts';
import { eligibleVerbs } from './env-eligible.ts';
import { exportVerb } from './env-export.ts';
import { pruneVerbs } from './env-prune.ts';
import { storeVerbs } from './env-stored.ts';
import { usageVerb } from './env-usage.ts';
import { duration, size, table } from '../table.ts';
import { startProgress, type Progress } from '../terminal/progress.ts';

interface BuildOptions extends ConnectionOptions, RegistryOptions, BoundOptions, PolicyOptions {
  readonly name?: string;
  readonly file?: string;
  readonly target?: string;
  readonly buildArg?: Readonly<Record<string, string>>;
  readonly cache: boolean;
  readonly reference?: string;
  readonly mergeUpTo?: number;
  readonly entrypoint?: EntrypointMode;
  readonly reuse?: string;
  readonly json?: boolean;
}

interface PullOptions extends ConnectionOptions, RegistryOptions {
  readonly name?: string;
  readonly platform?: string;
  readonly mirror?: Readonly<Record<string, readonly string[]>>;
  readonly mergeUpTo?: number;
  readonly entrypoint?: EntrypointMode;
  readonly timeout?: number;
  readonly json?: boolean;
}

interface PushOptions extends RegistryOptions {
  readonly image?: string;
}

interface ListOptions extends ConnectionOptions {
  readonly kind?: EnvironmentKind;
  readonly json?: boolean;
}

const MERGE_HELP =
  'make one layer of consecutive layers of the image up to this size; 0 keeps each apart (default: 3G)';

export function environmentVerb(program: Command, context: Context): void {
  const env = program
    .command('env')
    .description('environments, what sandboxes start from: build, pull, push, ls, show, rm, prune');
  buildVerb(env, context);
  withRegistry(
    withConnection(
      env
        .command('pull <image>')
        .description('make one from an image of a registry (`python:3.12`), on the machine of the server (as root)'),
    ),
  )
    .option('--name <name>', 'its name (default: that of the image)')
    .option('--platform <platform>', 'linux/amd64 or another (default: that of this machine)')
    .option('--mirror <registry=host>', 'ask this one first for images of that registry (again for more)', mirrors)
    .option('--merge-up-to <size>', MERGE_HELP, sizeBytes)
    .addOption(entrypointOption())
    .option('--timeout <time>', 'longest time for the download (default: 1h)', seconds)
    .option('--json', 'print all about it')
    .action(async (image: string, options: PullOptions) => {
      requireRoot('env pull');
      const progress = startProgress(context);
      const { pullEnvironment } = await import('../pull-environment.ts');
      await using client = await connect(context, options);
      const { name, platform, timeout, insecure, authFile, mirror, mergeUpTo, entrypoint } = options;
      const startedMs = context.clock.monotonicMs();
      let environment: Environment;
      try {
        const request = {
          image,
          name,
          platform,
          timeoutS: timeout,
          insecure,
          authFile,
          mirrors: mirror,
          mergeUpToBytes: mergeUpTo,
          entrypoint,
        };
        const data = dataDirectoryOf(context, options);
        environment = await noted(context, client, 'env.pull', {
          facts: { detail: { image: image.slice(0, limits.auditTextChars) } },
          run: () => pullEnvironment(context, client, data, request, progress),
          factsOf: (pulled) => ({ environment: pulled.name }),
        });
      } catch (error) {
        progress.failed('the pull failed');
        throw error;
      }
      progress.done(
        `environment ${environment.name}: ${size(environment.image.sizeBytes)} in ${duration(context.clock.monotonicMs() - startedMs)}`,
      );
      if (options.json === true) printJson(context, environment);
      else print(context, environment.name);
    });
  withRegistry(env.command('push <layout> <image>').description('put an image of an OCI layout into a registry'))
    .option('--image <name>', 'which image of the layout, when it has several')
    .action(async (layout: string, image: string, options: PushOptions) => {
      const progress = startProgress(context);
      const { pushLayout } = await import('../push-layout.ts');
      const { image: which, authFile, insecure } = options;
      try {
        const pushed = await pushLayout(context, { layout, image, which, authFile, insecure }, progress);
        progress.done(`${image} is pushed; ${pushed.uploadedBlobs} blobs were not there`);
        print(context, pushed.digest);
      } catch (error) {
        progress.failed('the push failed');
        throw error;
      }
    });
  pruneVerbs(env, context);
  exportVerb(env, context);
  storeVerbs(env, context);
  usageVerb(env, context);
  eligibleVerbs(env, context);
  withConnection(env.command('ls [prefix]').description('list them, or those whose names begin with the prefix'))
    .addOption(new Option('--kind <kind>', 'only those that are for this').choices(environmentKinds))
    .option('--json', 'print all about them')
    .action(async (prefix: string | undefined, options: ListOptions) => {
      await using client = await connect(context, options);
      const { kind } = options;
      const environments = await client.environments
        .list({ prefix, kind, pageSize: limits.pageSize.maximum })
        .toArray();
      if (options.json === true) printJson(context, environments);
      else
        print(
          context,
          table(
            ['NAME', 'KIND', 'SIZE', 'LAYERS', 'USER', 'MADE', 'DESCRIPTION'],
            environments.map((environment) => row(environment, context.clock.now())),
          ),
        );
    });
  withConnection(env.command('show <name>').description('print all about one as JSON')).action(
    async (name: string, options: ConnectionOptions) => {
      await using client = await connect(context, options);
      printJson(context, await client.environments.get(name));
    },
  );
}

const entrypointOption = (): Option =>
  new Option(
    '--entrypoint <mode>',
    'run: ENTRYPOINT and CMD run in every sandbox from its beginning, as the command `entrypoint`; while they run the sandbox is busy',
  )
    .choices(entrypointModes)
    .default('ignore');

function buildVerb(env: Command, context: Context): void {
  const command = env
    .command('build [path]')
    .description(
      'build one, on the machine of the server (as root), from a Dockerfile (its path, or that of its directory), a recipe (YAML), an OCI layout, or an archive of `docker save`',
    );
  withPolicy(withRegistry(withConnection(command)))
    .option('-t, --name <name>', 'its name (default: that of the recipe, the file, or the directory of the Dockerfile)')
    .option('-f, --file <dockerfile>', 'the Dockerfile; the path is then the directory to copy from (default: .)')
    .option('--target <stage>', 'the stage of the Dockerfile to end with (default: the last)')
    .option(
      '--build-arg <name=value>',
      'value for an ARG of the Dockerfile, or its name alone for that of the environment variable; may be given often',
      (text: string, earlier?: Readonly<Record<string, string>>) => buildArgument(text, context.variables, earlier),
    )
    .option('--no-cache', 'run all steps of the Dockerfile, also those that ran before on the same things')
    .option('-m, --memory <size>', 'memory of the sandboxes that steps run in (default: 2G)', sizeMib)
    .option('--cpus <n>', 'their CPU limit in cores (default: 1)', decimal)
    .option('--disk <size>', 'quota of what a step writes (default: 10G)', sizeMib)
    .option('--pids <n>', 'most processes and threads of a step (default: 1024)', integer)
    .option('--reference <name>', 'which image of the archive, when it has several')
    .option('--merge-up-to <size>', MERGE_HELP, sizeBytes)
    .addOption(entrypointOption())
    .option('--json', 'print all about it')
    .addOption(
      new Option('--reuse <dir>', 'take it from, and keep it in, a directory of built environments').hideHelp(),
    )
    .action(async (path: string | undefined, options: BuildOptions) => {
      requireRoot('env build');
      const progress = startProgress(context);
      await using client = await connect(context, options);
      const startedMs = context.clock.monotonicMs();
      let environment: Environment;
      try {
        environment = await noted(context, client, 'env.build', {
          run: () => build(context, client, { path, options }, progress),
          factsOf: (built) => ({ environment: built.name }),
        });
      } catch (error) {
        progress.failed('the build failed');
        throw error;
      }
      progress.done(
        `environment ${environment.name}: ${size(environment.image.sizeBytes)} in ${duration(context.clock.monotonicMs() - startedMs)}`,
      );
      if (options.json === true) printJson(context, environment);
      else print(context, environment.name);
    });
}

/** As with docker: a name alone takes the value that the variable has here, if it has one. */
function buildArgument(
  text: string,
  variables: Readonly<Record<string, string | undefined>>,
  earlier: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  if (text.includes('=')) return pairs(text, earlier);
  const value = variables[text];
  return value === undefined ? earlier : { ...earlier, [text]: value };
}

async function build(
  context: Context,
  client: DSecClient,
  { path, options }: { readonly path: string | undefined; readonly options: BuildOptions },
  progress: Progress,
): Promise<Environment> {
  // They load what reads and writes images, which no other verb needs.
  const { buildEnvironment, layerBuild } = await import('../build-environment.ts');
  const { buildDockerfileEnvironment, findDockerfile } = await import('../build-dockerfile.ts');
  const { openHolds } = await import('../prune-layers.ts');
  const { name, target, buildArg, cache, reference, reuse, mergeUpTo } = options;
  const { entrypoint } = options;
  const data = dataDirectoryOf(context, options);
  const place = await findDockerfile(path, options.file);
  if (place === undefined) {
    if (path === undefined) {
      throw new PlatformError('invalid_argument', 'say what to build: a path, or -f and a Dockerfile', {
        details: { field: 'path' },
      });
    }
    const request = { file: path, name, reference, cache: reuse, mergeUpToBytes: mergeUpTo, entrypoint };
    return await buildEnvironment(context, client, data, request, progress);
  }
  const { authFile, insecure } = options;
  const sandbox = { ...boundArgs(options), ...policyArgs(options) };
  const request = { place, name, target, buildArgs: buildArg, reuse: cache, sandbox, authFile, insecure, entrypoint };
  await using holds = await openHolds(context, data);
  const made = layerBuild(context, { data, holds }, progress);
  return await buildDockerfileEnvironment(context, client, made, request, progress);
}

/** Options that every verb has that speaks to a registry. */
function withRegistry(command: Command): Command {
  return command
    .option('--auth-file <file>', 'accounts, as `docker login` writes them (default: those of docker)')
    .option(
      '--insecure <host>',
      'speak plain HTTP to this registry (again for more)',
      (text, all?: readonly string[]) => [...(all ?? []), text],
    );
}

/** Collects `REGISTRY=HOST` in the order given. */
function mirrors(
  text: string,
  earlier: Readonly<Record<string, readonly string[]>> = {},
): Readonly<Record<string, readonly string[]>> {
  const [registry = '', mirror = ''] = Object.entries(pairs(text))[0] ?? [];
  return { ...earlier, [registry]: [...(earlier[registry] ?? []), mirror] };
}

function row({ name, kind, image, createdAtMs, description }: Environment, nowMs: number): readonly string[] {
  return [
    name,
    kind,
    size(image.sizeBytes),
    String(image.layers.length),
    image.config.user,
    `${duration(nowMs - createdAtMs)} ago`,
    description,
  ];
}
