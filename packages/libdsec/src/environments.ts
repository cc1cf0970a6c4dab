import {
  EnvironmentSchema,
  EnvironmentUsageSchema,
  ReleasedLayersSchema,
  type EntrypointMode,
  type Environment,
  type EnvironmentImage,
  type EnvironmentKind,
  type EnvironmentUsage,
  type ReleasedLayers,
} from '@dsec/contract';
import { listCompositions, type CompositionFilter, type CompositionList } from './composition-list.ts';
import { listEnvironments, type EnvironmentFilter, type EnvironmentList } from './environment-list.ts';
import { idSegment, type Api } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { parserOf } from './http/schema.ts';

const parseEnvironment = parserOf<typeof EnvironmentSchema, Environment>(EnvironmentSchema, 'environment');

const parseUsage = parserOf<typeof EnvironmentUsageSchema, EnvironmentUsage>(
  EnvironmentUsageSchema,
  'usage of an environment',
);

const parseReleased = parserOf<typeof ReleasedLayersSchema, ReleasedLayers>(ReleasedLayersSchema, 'released layers');

/** What sandboxes can start from. */
export class Environments {
  readonly #api: Api;

  /** @internal Use `client.environments`. */
  constructor(api: Api) {
    this.#api = api;
  }

  /** By name. Nothing is asked before it is iterated over. */
  list(filter: EnvironmentFilter = {}): EnvironmentList {
    return listEnvironments(this.#api, filter);
  }

  /** @throws PlatformError `environment_not_found` */
  async get(name: string, options: CallOptions = {}): Promise<Environment> {
    return this.#api.json(
      { method: 'GET', path: this.#path(name), what: `asking for environment ${name}`, repeatable: 'always' },
      parseEnvironment,
      options,
    );
  }

  /**
   * Who stands on it now, and how much of its layers is on the node and was ever read there.
   * @throws PlatformError `environment_not_found`
   */
  async usage(name: string, options: CallOptions = {}): Promise<EnvironmentUsage> {
    const what = `asking who uses environment ${name}`;
    return this.#api.json(
      { method: 'GET', path: `${this.#path(name)}/usage`, what, repeatable: 'always' },
      parseUsage,
      options,
    );
  }

  /** How many sandboxes were begun on which base, workspace and toolkits together. Nothing is asked before it is iterated over. */
  compositions(filter: CompositionFilter = {}): CompositionList {
    return listCompositions(this.#api, filter);
  }

  /** Names an image whose layers the node or its blob store has; a name that is taken is given to the new image at once and whole. */
  async put(
    name: string,
    image: EnvironmentImage,
    options: CallOptions & {
      readonly description?: string;
      /** What it is for. @default 'base' */
      readonly kind?: EnvironmentKind;
      /**
       * Whether ENTRYPOINT and CMD of the image run in every sandbox from its beginning: as the exec `entrypoint`, with the variables, user and
       * directory of the sandbox. While it runs the sandbox is busy. @default 'ignore'
       */
      readonly entrypoint?: EntrypointMode;
    } = {},
  ): Promise<Environment> {
    const { description, kind, entrypoint, ...call } = options;
    const json = {
      name,
      image,
      ...(kind === undefined ? {} : { kind }),
      ...(entrypoint === undefined ? {} : { entrypoint }),
      ...(description === undefined ? {} : { description }),
    };
    return this.#api.json(
      { method: 'PUT', path: this.#path(name), what: `registering environment ${name}`, json, repeatable: 'always' },
      parseEnvironment,
      call,
    );
  }

  /**
   * Has the node let go of layers that no environment names and nothing stands on, so that root can remove their files. May be asked again.
   *
   * @param layers digests, at most 1,024
   * @param options.dryRun only say what would be let go
   */
  async releaseLayers(
    layers: readonly string[],
    options: CallOptions & { readonly dryRun?: boolean } = {},
  ): Promise<ReleasedLayers> {
    const { dryRun = false, ...call } = options;
    const json = { layers, dryRun };
    return this.#api.json(
      { method: 'POST', path: '/layers/release', what: 'letting go of layers', json, repeatable: 'always' },
      parseReleased,
      call,
    );
  }

  /** Takes the name away. Sandboxes that run from it go on. @throws PlatformError `environment_not_found` */
  async remove(name: string, options: CallOptions = {}): Promise<void> {
    await this.#api.done(
      { method: 'DELETE', path: this.#path(name), what: `removing environment ${name}`, repeatable: 'unsent' },
      options,
    );
  }

  #path(name: string): string {
    return `/environments/${idSegment(name, 'name')}`;
  }
}
