import { type EnvironmentImage, limits, PlatformError } from '@dsec/contract';
import { type DirectoryNode, newDirectory } from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import type { BuildContext } from '../build-context.ts';
import { buildLayer, type LayerDraft } from '../build-layer.ts';
import { hostArchitecture } from '../host-architecture.ts';
import { imageOf, NO_CONFIG } from '../layer-stack.ts';
import { MadeLayers } from '../made-layers.ts';
import { DEFAULT_PATH } from '../oci/environment-config.ts';
import { openLayers } from '../open-layers.ts';
import { completeRoot, completeUpperRoot, completeWorkdir, hasWorkdir } from '../root-skeleton.ts';
import { BuildArgs } from './build-args.ts';
import {
  type CopyInstruction,
  contextOrigin,
  copyFault,
  type CopyOrigin,
  layersOrigin,
  parseMode,
  sourcesOf,
} from './copy-sources.ts';
import { copyTree, digestOf } from './copy-step.ts';
import { type DockerfilePlace, invalidDockerfile } from './dockerfile-error.ts';
import { type DockerfileInstruction, type DockerfileWarning, parseDockerfile } from './parse-dockerfile.ts';
import { runCommand, type RunScript } from './run-command.ts';
import type { EscapeCharacter } from './shell-word.ts';
import { StageState } from './stage-state.ts';
import {
  copySource,
  earlierStage,
  type Stage,
  type StageInstruction,
  type Stages,
  stagesOf,
  targetOf,
} from './stages.ts';

/** A command of a RUN, and what it is run on. */
export interface RunStep extends DockerfilePlace {
  /** As it stands in the Dockerfile. */
  readonly text: string;
  /** The layers of the stage so far; user and working directory of the command are those of its configuration. */
  readonly image: EnvironmentImage;
  readonly argv: readonly string[];
  /** A file that the command is to find, which is no part of the layer. */
  readonly script: RunScript | undefined;
  /** All variables of the command. */
  readonly env: Readonly<Record<string, string>>;
}

/** What a build needs from the platform that it runs on. */
export interface DockerfilePlatform {
  /** The environment or image that a name in FROM or `COPY --from` stands for. @throws PlatformError when there is none */
  image(reference: string): Promise<EnvironmentImage>;
  /**
   * Runs a command in a sandbox, and makes a layer of what it has changed.
   *
   * @returns the digest of the layer; undefined when nothing has changed
   * @throws PlatformError `build_failed` when the command does not exit with 0
   */
  run(step: RunStep): Promise<string | undefined>;
}

/** A step that begins, or ends. */
export interface StepEvent extends DockerfilePlace {
  /** From 1. */
  readonly step: number;
  readonly steps: number;
  readonly text: string;
  readonly outcome: 'begun' | 'reused' | 'made';
}

export interface DockerfileBuild {
  /** The Dockerfile itself. */
  readonly text: string;
  /** What the records of the layers say that they were made from. */
  readonly name: string;
  /** The directory that COPY and ADD take files from. @default there is none */
  readonly directory?: string | undefined;
  /** The text of `.dockerignore`. @default nothing is left out */
  readonly dockerignore?: string | undefined;
  /** A stage, by name or number. @default the last */
  readonly target?: string | undefined;
  readonly buildArgs?: Readonly<Record<string, string>> | undefined;
  /** Take what was made before of the same things. @default true */
  readonly reuse?: boolean | undefined;
  readonly onStep?: ((event: StepEvent) => void) | undefined;
}

export interface BuiltDockerfile {
  readonly image: EnvironmentImage;
  readonly warnings: readonly DockerfileWarning[];
}

/**
 * Builds a Dockerfile into an environment of several layers: those of what it stands on, and one for each step that changes files. A step that
 * was made before of the same things is not made again. Nothing has a name until all of it is there.
 *
 * @throws PlatformError `dockerfile_invalid` (`details` line, instruction, reason), `build_failed` (of a command: `details` line, instruction,
 * exitCode, output), `image_architecture`, `disk_full`, `cancelled`, and what `platform` throws
 */
export const buildDockerfile = async (
  context: BuildContext,
  platform: DockerfilePlatform,
  build: DockerfileBuild,
): Promise<BuiltDockerfile> => {
  const dockerfile = parseDockerfile(build.text);
  const stages = stagesOf(dockerfile);
  const target = targetOf(stages, build.target);
  const builder = new DockerfileBuilder({ context, platform, build, stages, escape: dockerfile.escape });
  const image = await builder.make(target);
  return { image, warnings: [...dockerfile.warnings, ...builder.warnings] };
};

interface BuilderParts {
  readonly context: BuildContext;
  readonly platform: DockerfilePlatform;
  readonly build: DockerfileBuild;
  readonly stages: Stages;
  readonly escape: EscapeCharacter;
}

/** What is said of a stage while it is built. */
interface StageBuild {
  readonly stage: Stage;
  readonly state: StageState;
  /** Topmost first. */
  layers: string[];
}

class DockerfileBuilder {
  readonly warnings: DockerfileWarning[] = [];
  readonly #parts: BuilderParts;
  readonly #made: MadeLayers | undefined;
  readonly #args: BuildArgs;
  readonly #finished = new Map<Stage, EnvironmentImage>();
  #steps = 0;
  #step = 0;

  constructor(parts: BuilderParts) {
    this.#parts = parts;
    const { layersDirectory, notesDirectory: directory, clock, holds } = parts.context;
    this.#made = directory === undefined ? undefined : new MadeLayers({ directory, layersDirectory, clock, holds });
    this.#args = new BuildArgs(parts.stages, parts.escape, parts.build.buildArgs ?? {});
  }

  async make(target: Stage): Promise<EnvironmentImage> {
    const needed = this.#needed(target);
    this.#steps = needed.reduce((sum, { instructions }) => sum + 1 + instructions.length, 0);
    this.warnings.push(...this.#args.unasked(needed));
    for (const stage of needed) this.#finished.set(stage, await this.#stage(stage));
    const image = this.#finished.get(target);
    if (image === undefined) throw new PlatformError('internal', 'the last stage of a build was not built');
    return image;
  }

  /** The stages that the target is made of, and itself, in their order. */
  #needed(target: Stage): Stage[] {
    const { stages } = this.#parts;
    const needed = new Set<Stage>();
    const need = (stage: Stage): void => {
      if (needed.has(stage)) return;
      needed.add(stage);
      const base = earlierStage(stages, this.#fromImage(stage), stage.index);
      if (base !== undefined) need(base);
      for (const instruction of stage.instructions) {
        if (instruction.kind !== 'copy' || instruction.from === undefined) continue;
        const source = copySource(stages, instruction.from, stage.index);
        if (source !== undefined) need(source);
      }
    };
    need(target);
    return [...needed].sort((left, right) => left.index - right.index);
  }

  #fromImage({ from }: Stage): string {
    return this.#args.expand(from, from.image);
  }

  async #stage(stage: Stage): Promise<EnvironmentImage> {
    const { from } = stage;
    const end = this.#begin(from);
    const base = await this.#base(stage);
    end('reused');
    const { layers, config, architecture } = base;
    const { escape } = this.#parts;
    const state = new StageState({ config, escape, values: this.#args.values, globals: this.#args.globals });
    const current: StageBuild = { stage, state, layers: [...layers] };
    for (const instruction of stage.instructions) {
      throwIfAborted(this.#parts.context.signal);
      const done = this.#begin(instruction);
      done(await this.#carryOut(current, instruction));
    }
    return await this.#image(current, architecture);
  }

  #image({ layers, state }: StageBuild, architecture: string): Promise<EnvironmentImage> {
    return imageOf(this.#parts.context.layersDirectory, { layers, config: state.config, architecture });
  }

  #begin({ line, instruction, text }: DockerfileInstruction): (outcome: 'reused' | 'made') => void {
    const step = ++this.#step;
    const { onStep } = this.#parts.build;
    const event = { line, instruction, text, step, steps: this.#steps };
    onStep?.({ ...event, outcome: 'begun' });
    return (outcome) => onStep?.({ ...event, outcome });
  }

  async #base(stage: Stage): Promise<EnvironmentImage> {
    const { stages, platform } = this.#parts;
    const name = this.#fromImage(stage);
    const architecture = hostArchitecture();
    if (stage.from.platform !== undefined) {
      const wanted = this.#args.expand(stage.from, stage.from.platform);
      if (wanted !== architecture && wanted !== `linux/${architecture}`) {
        throw new PlatformError(
          'image_architecture',
          `line ${stage.from.line}, FROM: steps run here, on linux/${architecture}`,
          {
            details: { line: stage.from.line, found: [wanted], wanted: `linux/${architecture}` },
          },
        );
      }
    }
    const earlier = earlierStage(stages, name, stage.index);
    const built = earlier === undefined ? undefined : this.#finished.get(earlier);
    if (built !== undefined) return built;
    if (name.toLowerCase() === 'scratch') return await this.#scratch(architecture);
    const image = await platform.image(name);
    if (image.architecture !== architecture) {
      throw new PlatformError(
        'image_architecture',
        `line ${stage.from.line}, FROM: ${name} is not for linux/${architecture}`,
        {
          details: { line: stage.from.line, found: [`linux/${image.architecture}`], wanted: `linux/${architecture}` },
        },
      );
    }
    return image;
  }

  /** What a sandbox is mounted on, and nothing else. */
  async #scratch(architecture: string): Promise<EnvironmentImage> {
    const config = { ...NO_CONFIG, env: { PATH: DEFAULT_PATH }, user: 'root', workdir: '/' };
    const key = MadeLayers.key('scratch', 1, architecture);
    const known = await this.#made?.find(key);
    const made =
      known?.layer ??
      (await this.#build(async () => {
        const root = newDirectory();
        completeRoot(root);
        return root;
      }));
    if (known === undefined) await this.#made?.note(key, made);
    return await imageOf(this.#parts.context.layersDirectory, { layers: [made], config, architecture });
  }

  async #carryOut(current: StageBuild, instruction: StageInstruction): Promise<'reused' | 'made'> {
    switch (instruction.kind) {
      case 'run':
        return await this.#run(current, instruction);
      case 'copy':
      case 'add':
        return await this.#copy(current, instruction);
      case 'workdir':
        current.state.apply(instruction);
        return await this.#workdir(current, instruction);
      default:
        current.state.apply(instruction);
        return 'reused';
    }
  }

  async #run(
    current: StageBuild,
    instruction: Extract<StageInstruction, { readonly kind: 'run' }>,
  ): Promise<'reused' | 'made'> {
    const { state, layers } = current;
    const { argv, script } = runCommand(instruction, state);
    const { variables, config } = state;
    const { user, workdir } = config;
    const key = MadeLayers.key('dockerfile-run', 1, { layers, argv, script, variables, user, workdir });
    return await this.#layer(current, instruction, key, async () => {
      const { line, instruction: keyword, text } = instruction;
      const image = await this.#image(current, hostArchitecture());
      const env = { ...state.proxies, ...variables };
      return await this.#parts.platform.run({ line, instruction: keyword, text, image, argv, script, env });
    });
  }

  async #workdir(current: StageBuild, place: DockerfilePlace): Promise<'reused' | 'made'> {
    const { layers, state } = current;
    const { workdir } = state.config;
    const key = MadeLayers.key('dockerfile-workdir', 1, { layers, workdir });
    return await this.#layer(current, place, key, async () => {
      await using below = await openLayers(this.#parts.context.layersDirectory, layers);
      if (await hasWorkdir(below.tree, workdir)) return undefined;
      return await this.#build(async () => {
        const root = newDirectory((await below.tree.lookup([]))?.metadata);
        await completeWorkdir(root, workdir, below.tree);
        return root;
      });
    });
  }

  async #copy(current: StageBuild, instruction: CopyInstruction): Promise<'reused' | 'made'> {
    const { state, layers } = current;
    const { context } = this.#parts;
    const expand = (word: string): string => state.expand(instruction, word);
    const destination = state.absolute(expand(instruction.destination));
    const owner = instruction.owner === undefined ? undefined : expand(instruction.owner);
    const mode = instruction.mode === undefined ? undefined : parseMode(instruction, expand(instruction.mode));
    const unpacks = instruction.kind === 'add';
    await using origin = await this.#origin(current, instruction);
    const sources = await sourcesOf(instruction, origin, state);
    if (sources.length > 1 && !destination.endsWith('/')) {
      throw invalidDockerfile(
        instruction,
        'destination',
        `${destination} has to end with / : it takes several sources`,
      );
    }
    const { content, digests } = await digestOf(sources, context.signal);
    const plan = { sources, digests, destination, owner, mode, unpacks, signal: context.signal };
    const key = MadeLayers.key('dockerfile-copy', 1, { layers, content, destination, owner, mode, unpacks });
    return await this.#layer(current, instruction, key, async () => {
      await using below = await openLayers(context.layersDirectory, layers);
      return await this.#build(async ({ writer }) => {
        try {
          return await copyTree(below.tree, plan, writer);
        } catch (error) {
          throw copyFault(instruction, error);
        }
      });
    });
  }

  /** Where COPY takes its sources from. */
  async #origin(current: StageBuild, instruction: CopyInstruction): Promise<CopyOrigin> {
    const { stages, platform, build, context } = this.#parts;
    const { from } = instruction;
    if (from === undefined) return await contextOrigin(build);
    const stage = copySource(stages, from, current.stage.index);
    const { layers } =
      (stage === undefined ? undefined : this.#finished.get(stage)) ??
      (await platform.image(this.#args.expand(instruction, from)));
    return await layersOrigin(context.layersDirectory, layers);
  }

  /** Takes the layer that was made of the same things, or makes it, and puts it on top of the stage. */
  async #layer(
    current: StageBuild,
    place: DockerfilePlace,
    key: string,
    make: () => Promise<string | undefined>,
  ): Promise<'reused' | 'made'> {
    const known = this.#parts.build.reuse === false ? undefined : await this.#made?.find(key);
    const layer = known === undefined ? await make() : known.layer;
    if (known === undefined) await this.#made?.note(key, layer);
    // overlayfs takes each layer once: of two that are equal the upper one says it all.
    if (layer !== undefined) current.layers = [layer, ...current.layers.filter((each) => each !== layer)];
    if (current.layers.length > limits.layers) {
      throw invalidDockerfile(
        place,
        'too_many_layers',
        `this is more than ${limits.layers} layers: join some steps into one`,
      );
    }
    return known === undefined ? 'made' : 'reused';
  }

  /** Makes a layer above others, or the lowest one. */
  async #build(fill: (draft: LayerDraft) => Promise<DirectoryNode>): Promise<string> {
    const { context, build } = this.#parts;
    const { layers } = await buildLayer(context, async (draft) => {
      const root = await fill(draft);
      completeUpperRoot(root);
      return {
        root,
        config: NO_CONFIG,
        architecture: hostArchitecture(),
        source: { kind: 'recipe', name: build.name.slice(0, 1024) },
      };
    });
    const [layer] = layers;
    if (layer === undefined) throw new PlatformError('internal', 'a layer was made that has no name');
    return layer;
  }
}
