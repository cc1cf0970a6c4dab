/** What a sandbox stands on: a base, at most one workspace, and toolkits, each named and versioned for itself (paper 1.6). */
import {
  limits,
  PlatformError,
  type CreateSandbox,
  type Environment,
  type EnvironmentConfig,
  type EnvironmentImage,
  type EnvironmentKind,
} from '@dsec/contract';
import type { Environments } from './environments.ts';

/**
 * The image of a create: the layers of its last toolkit are topmost, those of its base lowest. A workspace and toolkits add their variables to
 * those of the base; directories in their PATH that the base's lacks come first. The working directory is that of the workspace if it names
 * one; user, entrypoint and labels are the base's. Entrypoint and command are empty unless the base says that they are to run.
 *
 * @throws PlatformError `environment_not_found`; `invalid_argument` for a name of another kind, or for too many layers; `image_architecture`
 */
export function composeImage(environments: Environments, create: CreateSandbox): EnvironmentImage {
  const base = runnable(named(environments, create.environment, 'base', 'environment'));
  if (create.workspace === undefined && (create.toolkits ?? []).length === 0) return base;
  const above: Environment[] = [];
  if (create.workspace !== undefined) above.push(named(environments, create.workspace, 'workspace', 'workspace'));
  for (const toolkit of create.toolkits ?? []) above.push(named(environments, toolkit, 'toolkit', 'toolkits'));
  let { config, layers, sizeBytes } = base;
  for (const { name, kind, image } of above) {
    if (image.architecture !== base.architecture) {
      throw new PlatformError('image_architecture', `${kind} ${name} is not for ${base.architecture}`, {
        details: { environment: name, wanted: base.architecture, found: [image.architecture] },
      });
    }
    config = combine(config, image.config, kind);
    layers = [...image.layers, ...layers];
    sizeBytes += image.sizeBytes;
  }
  // overlayfs takes each layer once; what stands on top of itself adds nothing below.
  layers = [...new Set(layers)];
  if (layers.length > limits.layers) {
    throw new PlatformError('invalid_argument', `together they have ${layers.length} layers`, {
      details: { field: 'toolkits', limit: limits.layers, layers: layers.length },
    });
  }
  return { layers, config, architecture: base.architecture, sizeBytes };
}

/** The edge runs what an image names. */
function runnable({ image, entrypoint }: Environment): EnvironmentImage {
  return entrypoint === 'run' ? image : { ...image, config: { ...image.config, entrypoint: [], cmd: [] } };
}

function named(environments: Environments, name: string, kind: EnvironmentKind, field: string): Environment {
  const environment = environments.get(name);
  if (environment.kind === kind) return environment;
  throw new PlatformError('invalid_argument', `${name} is a ${environment.kind}, not a ${kind}`, {
    details: { field, environment: name, kind: environment.kind },
  });
}

function combine(below: EnvironmentConfig, above: EnvironmentConfig, kind: EnvironmentKind): EnvironmentConfig {
  const env = { ...below.env, ...above.env };
  const path = joinPaths(above.env.PATH, below.env.PATH);
  if (path !== undefined) env.PATH = path;
  const workdir = kind === 'workspace' && !['', '/'].includes(above.workdir) ? above.workdir : below.workdir;
  return { ...below, env, workdir };
}

/** The directories of `first` that `then` lacks, and all of `then`. */
function joinPaths(first: string | undefined, then: string | undefined): string | undefined {
  if (first === undefined || then === undefined) return first ?? then;
  const known = new Set(then.split(':'));
  return [...first.split(':').filter((directory) => !known.has(directory)), then].join(':');
}
