/** The environments of an installation: a name for layers that the node has, and how the processes of the image run. */
import {
  entrypointModes,
  EnvironmentImageSchema,
  environmentKinds,
  limits,
  PlatformError,
  type EntrypointMode,
  type Environment,
  type EnvironmentImage,
  type EnvironmentKind,
  type EnvironmentPut,
} from '@dsec/contract';
import { compileSchema, type Clock, type Scope } from '@dsec/kit';
import { StoreView, type Store } from '@dsec/store';
import { Type, type Static } from 'typebox';

const PREFIX = 'environments/';
/** Most environments of an installation. */
const MAX_ENVIRONMENTS = 100_000;

const RecordSchema = Type.Object(
  {
    version: Type.Literal(1),
    name: Type.String(),
    description: Type.String(),
    /** Absent: a base. */
    kind: Type.Optional(Type.Union(environmentKinds.map((kind) => Type.Literal(kind)))),
    /** Absent: ignore. */
    entrypoint: Type.Optional(Type.Union(entrypointModes.map((mode) => Type.Literal(mode)))),
    createdAtMs: Type.Integer(),
    image: EnvironmentImageSchema,
  },
  { additionalProperties: false },
);
/** The unions of literals lose their names in the derived type. */
type EnvironmentRecord = Omit<Static<typeof RecordSchema>, 'kind' | 'entrypoint'> & {
  readonly kind?: EnvironmentKind;
  readonly entrypoint?: EntrypointMode;
};
const parser = compileSchema(RecordSchema);

export interface EnvironmentsOptions {
  readonly store: Store;
  readonly clock: Clock;
  readonly scope: Scope;
}

export interface EnvironmentQuery {
  readonly prefix?: string;
  readonly kind?: EnvironmentKind;
  /** Of the page before. */
  readonly cursor?: string;
  readonly limit?: number;
}

export interface EnvironmentPage {
  readonly environments: readonly Environment[];
  /** Null: there are no more. */
  readonly cursor: string | null;
}

/** Made when they are asked for, and kept until something changes. */
interface Derived {
  /** Until a name comes or goes. */
  sortedNames: readonly string[] | undefined;
  /** How many environments have a layer. */
  havingLayer: ReadonlyMap<string, number> | undefined;
}

const compare = (left: string, right: string): number => (left < right ? -1 : left > right ? 1 : 0);

/** Where the names begin that have the prefix and come behind the cursor. */
function firstAfter(names: readonly string[], prefix: string, cursor: string | undefined): number {
  const isBefore = (name: string): boolean => name < prefix || (cursor !== undefined && name <= cursor);
  let [low, high] = [0, names.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(names[middle] ?? '')) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Names, looks up and forgets environments. */
export class Environments {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #view: StoreView<EnvironmentRecord>;
  readonly #derived: Derived;

  private constructor(options: EnvironmentsOptions, view: StoreView<EnvironmentRecord>, derived: Derived) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#view = view;
    this.#derived = derived;
  }

  static async open(options: EnvironmentsOptions): Promise<Environments> {
    const derived: Derived = { sortedNames: undefined, havingLayer: undefined };
    const view = await StoreView.open<EnvironmentRecord>({
      store: options.store,
      prefix: PREFIX,
      scope: options.scope,
      onChange: (current, previous) => {
        if (current === undefined || previous === undefined) derived.sortedNames = undefined;
        derived.havingLayer = undefined;
      },
      parse: (value) =>
        parser.parse(JSON.parse(value), { what: 'a stored environment', code: 'internal' }) as EnvironmentRecord,
    });
    return new Environments(options, view, derived);
  }

  /** @throws PlatformError `environment_not_found` */
  get(name: string): Environment {
    const record = this.#view.get(name);
    if (record === undefined) throw notFound(name);
    return environmentOf(record);
  }

  /** @returns undefined for a name that nobody has given */
  find(name: string): Environment | undefined {
    const record = this.#view.get(name);
    return record === undefined ? undefined : environmentOf(record);
  }

  /** How many environments have this layer. */
  countHaving(layer: string): number {
    return (this.#derived.havingLayer ??= layerCounts(this.#view.records())).get(layer) ?? 0;
  }

  /** The next `limit` by name, behind `cursor`. */
  page({ prefix = '', kind, cursor, limit = limits.pageSize.default }: EnvironmentQuery): EnvironmentPage {
    const names = (this.#derived.sortedNames ??= [...this.#view.records()].map(({ name }) => name).toSorted(compare));
    const environments: Environment[] = [];
    let at = firstAfter(names, prefix, cursor);
    for (; at < names.length && environments.length < limit; at += 1) {
      const name = names[at] ?? '';
      if (!name.startsWith(prefix)) return { environments, cursor: null };
      const environment = this.find(name);
      if (environment !== undefined && (kind === undefined || environment.kind === kind))
        environments.push(environment);
    }
    const isMore = at < names.length && names[at]?.startsWith(prefix) === true;
    return { environments, cursor: isMore ? (environments.at(-1)?.name ?? null) : null };
  }

  /**
   * Names an image; a name that is taken is given to the new image.
   * @throws PlatformError `invalid_argument` for an entrypoint to run of an image that has none; `quota_exceeded`
   */
  async put({ name, image, kind, entrypoint = 'ignore', description }: EnvironmentPut): Promise<Environment> {
    checkEntrypoint(entrypoint, image, kind ?? 'base');
    if (this.#view.get(name) === undefined && this.#view.size >= MAX_ENVIRONMENTS) {
      throw new PlatformError('quota_exceeded', 'there are as many environments as there may be', {
        details: { resource: 'environments', limit: MAX_ENVIRONMENTS, current: this.#view.size },
      });
    }
    const record: EnvironmentRecord = {
      version: 1,
      name,
      description: description ?? '',
      kind: kind ?? 'base',
      entrypoint,
      createdAtMs: this.#clock.now(),
      image,
    };
    const result = await this.#store.put(PREFIX + name, JSON.stringify(record));
    if (!result.ok) throw new PlatformError('internal', 'the store refused an unconditional write');
    this.#view.observe(name, result.revision, record);
    return environmentOf(record);
  }

  /**
   * Takes the name away; sandboxes that run from it go on.
   * @throws PlatformError `environment_not_found`
   */
  async remove(name: string): Promise<void> {
    if (this.#view.get(name) === undefined) throw notFound(name);
    const result = await this.#store.delete(PREFIX + name);
    if (result.ok) this.#view.observe(name, result.revision, undefined);
  }
}

function layerCounts(records: Iterable<EnvironmentRecord>): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  for (const { image } of records) {
    for (const layer of new Set(image.layers)) counts.set(layer, (counts.get(layer) ?? 0) + 1);
  }
  return counts;
}

const checkEntrypoint = (mode: EntrypointMode, { config }: EnvironmentImage, kind: EnvironmentKind): void => {
  if (mode === 'ignore') return;
  const reason =
    kind !== 'base'
      ? `a ${kind} has no entrypoint: that of the base counts`
      : config.entrypoint.length + config.cmd.length === 0
        ? 'the image has neither ENTRYPOINT nor CMD'
        : undefined;
  if (reason === undefined) return;
  throw new PlatformError('invalid_argument', `there is nothing to run: ${reason}`, {
    details: { field: 'entrypoint', reason },
  });
};

const environmentOf = ({
  name,
  kind,
  entrypoint,
  description,
  createdAtMs,
  image,
}: EnvironmentRecord): Environment => ({
  name,
  kind: kind ?? 'base',
  entrypoint: entrypoint ?? 'ignore',
  description,
  createdAtMs,
  image,
});

const notFound = (name: string): PlatformError =>
  new PlatformError('environment_not_found', `there is no environment ${name.slice(0, 255)}`, {
    details: { environment: name.slice(0, 255) },
  });
