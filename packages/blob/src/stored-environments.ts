/**
 * Environments in a blob store (`docs/layers.md`): what a name stands for, so that another installation can have it. Each upload is a version of
 * its own; the newest is what the name means. A version is written after the layers that it names.
 */
import { type EnvironmentPut, EnvironmentPutSchema, PlatformError } from '@dsec/contract';
import { type Clock, compileSchema } from '@dsec/kit';
import { Type } from 'typebox';
import { sha256 } from './digest.ts';
import { listAll, type ObjectStore, readObject, type StoreOptions } from './object-store.ts';

const PREFIX = 'environments/';
/** Longest document. */
const MAX_DOCUMENT_BYTES = 1024 * 1024;
/** Most versions of a name, and most names, that a listing looks at. */
const MAX_LISTED = 100_000;
const FORMAT_VERSION = 1;
/** Milliseconds since 1970 in 14 digits, so that names sort by time, and the beginning of the digest of the document. */
const VERSION = /^([0-9]{14})-([0-9a-f]{16})$/;
const TIME_DIGITS = 14;
const DIGEST_DIGITS = 16;

const DocumentSchema = Type.Object(
  { version: Type.Literal(FORMAT_VERSION), environment: EnvironmentPutSchema },
  { additionalProperties: false },
);
const parser = compileSchema(DocumentSchema);

export interface StoredEnvironment {
  readonly environment: EnvironmentPut;
  /** Names this upload of it. */
  readonly version: string;
  readonly uploadedAtMs: number;
}

export class StoredEnvironments {
  readonly #store: ObjectStore;
  readonly #clock: Clock;

  constructor(store: ObjectStore, clock: Clock) {
    this.#store = store;
    this.#clock = clock;
  }

  /**
   * Makes this what the name means. What the newest version says already is not written again, unless it is damaged. All layers must be in the store.
   * @throws PlatformError `blob_unavailable`, `blob_full`, `invalid_argument` when it is too large
   */
  async put(environment: EnvironmentPut, options: StoreOptions = {}): Promise<StoredEnvironment> {
    const document = Buffer.from(`${JSON.stringify({ version: FORMAT_VERSION, environment }, null, 2)}\n`);
    if (document.length > MAX_DOCUMENT_BYTES) {
      throw new PlatformError('invalid_argument', `environment ${environment.name} has too long a configuration`, {
        details: { field: 'environment', environment: environment.name, limit: MAX_DOCUMENT_BYTES },
      });
    }
    const digest = digestOf(document);
    const [newest] = await this.versions(environment.name, options);
    if (newest !== undefined && VERSION.exec(newest)?.[2] === digest) {
      const key = keyOf(environment.name, newest);
      if ((await this.#readWhole(key, options)) === undefined) await this.#store.put(key, document, options);
      return { environment, version: newest, uploadedAtMs: timeOf(newest) };
    }
    // Newer than what it replaces, whatever the clock of that uploader said.
    const uploadedAtMs = Math.max(this.#clock.now(), newest === undefined ? 0 : timeOf(newest) + 1);
    const version = `${String(uploadedAtMs).padStart(TIME_DIGITS, '0')}-${digest}`;
    await this.#store.put(keyOf(environment.name, version), document, options);
    return { environment, version, uploadedAtMs };
  }

  /** Newest first. @throws PlatformError `blob_unavailable` */
  async versions(name: string, options: StoreOptions = {}): Promise<readonly string[]> {
    const versions: string[] = [];
    for await (const { key } of listAll(this.#store, `${PREFIX}${folderOf(name)}/`, options)) {
      const version = key.split('/').at(-1) ?? '';
      if (VERSION.test(version)) versions.push(version);
      if (versions.length > MAX_LISTED) throw tooMany();
    }
    return versions.toReversed();
  }

  /**
   * What a name means, or meant in a version.
   * @throws PlatformError `environment_not_found`, `environment_broken` when it is damaged, `blob_unavailable`
   */
  async get(
    name: string,
    options: StoreOptions & { readonly version?: string | undefined } = {},
  ): Promise<StoredEnvironment> {
    const version = options.version ?? (await this.versions(name, options))[0];
    const found =
      version === undefined || !VERSION.test(version) ? undefined : await this.#read(keyOf(name, version), options);
    if (found === undefined) throw notFound(name, options.version);
    if (found.environment.name !== name) throw damaged(name);
    return found;
  }

  /**
   * The newest version of each, by name.
   * @param options.onDamaged told of each that is damaged, which is then left out. Default: the first one is thrown
   * @throws PlatformError `environment_broken`, `blob_unavailable`
   */
  async list(
    options: StoreOptions & { readonly onDamaged?: ((error: PlatformError) => void) | undefined } = {},
  ): Promise<readonly StoredEnvironment[]> {
    const newest = new Map<string, string>();
    for await (const { key } of listAll(this.#store, PREFIX, options)) {
      const [, folder = '', version = ''] = key.split('/');
      // Sorted: a later one is newer.
      if (VERSION.test(version)) newest.set(folder, key);
      if (newest.size > MAX_LISTED) throw tooMany();
    }
    const all: StoredEnvironment[] = [];
    for (const key of newest.values()) {
      const found = await this.#readWhole(key, options, options.onDamaged ?? rethrow);
      if (found !== undefined) all.push(found);
    }
    return all.toSorted((left, right) => (left.environment.name < right.environment.name ? -1 : 1));
  }

  /**
   * Removes every version but those that are to be kept; damaged ones, too. Says how many went.
   * @throws PlatformError `blob_unavailable`
   */
  async retain(isKept: (environment: EnvironmentPut) => boolean, options: StoreOptions = {}): Promise<number> {
    let removed = 0;
    for await (const { key } of listAll(this.#store, PREFIX, options)) {
      const found = await this.#readWhole(key, options);
      if (found !== undefined && isKept(found.environment)) continue;
      await this.#store.delete(key, options);
      removed += 1;
    }
    return removed;
  }

  /** The layers of every version of every name. @throws PlatformError `environment_broken` when one is damaged, `blob_unavailable` */
  async layers(options: StoreOptions = {}): Promise<ReadonlySet<string>> {
    const layers = new Set<string>();
    for await (const { key } of listAll(this.#store, PREFIX, options)) {
      const found = await this.#read(key, options);
      for (const layer of found?.environment.image.layers ?? []) layers.add(layer);
      if (layers.size > MAX_LISTED) throw tooMany();
    }
    return layers;
  }

  /**
   * Removes versions that a newer one took the place of before `supersededMs` (ms since 1970), but for the newest `keep` of each name. Says how many went.
   * @throws PlatformError `blob_unavailable`
   */
  async expire(keep: number, supersededMs: number, options: StoreOptions = {}): Promise<number> {
    const keysOf = new Map<string, string[]>();
    for await (const { key } of listAll(this.#store, PREFIX, options)) {
      const [, folder = '', version = ''] = key.split('/');
      if (!VERSION.test(version)) continue;
      const keys = keysOf.get(folder);
      if (keys === undefined) keysOf.set(folder, [key]);
      else keys.push(key);
      if (keysOf.size > MAX_LISTED) throw tooMany();
    }
    let removed = 0;
    for (const keys of keysOf.values()) {
      // Sorted: the next one took its place.
      for (const [index, key] of keys.slice(0, -Math.max(1, keep)).entries()) {
        if (timeOf(keys[index + 1]?.split('/').at(-1) ?? '') >= supersededMs) continue;
        await this.#store.delete(key, options);
        removed += 1;
      }
    }
    return removed;
  }

  /** Undefined also for one that is damaged. */
  async #readWhole(
    key: string,
    options: StoreOptions,
    onDamaged?: (error: PlatformError) => void,
  ): Promise<StoredEnvironment | undefined> {
    try {
      return await this.#read(key, options);
    } catch (error) {
      if (!PlatformError.is(error) || error.code !== 'environment_broken') throw error;
      onDamaged?.(error);
      return undefined;
    }
  }

  async #read(key: string, options: StoreOptions): Promise<StoredEnvironment | undefined> {
    const { signal } = options;
    const bytes = await readObject(this.#store, key, { signal, maxBytes: MAX_DOCUMENT_BYTES });
    if (bytes === undefined) return undefined;
    const version = key.split('/').at(-1) ?? '';
    if (digestOf(bytes) !== VERSION.exec(version)?.[2]) throw damaged(key);
    const { environment } = parser.parse(parsedJson(bytes, key), {
      what: `the stored environment ${key}`,
      code: 'environment_broken',
    });
    return { environment: environment as EnvironmentPut, version, uploadedAtMs: timeOf(version) };
  }
}

/** Names may have slashes and colons, and be long: a name that is safe in every store is that of their digest. */
const folderOf = (name: string): string => sha256(Buffer.from(name)).toString('hex');
const keyOf = (name: string, version: string): string => `${PREFIX}${folderOf(name)}/${version}`;
const timeOf = (version: string): number => Number(VERSION.exec(version)?.[1]);
const digestOf = (document: Uint8Array): string => sha256(document).toString('hex').slice(0, DIGEST_DIGITS);

const rethrow = (error: PlatformError): never => {
  throw error;
};

function parsedJson(bytes: Buffer, key: string): unknown {
  try {
    return JSON.parse(bytes.toString());
  } catch (cause) {
    throw damaged(key, cause);
  }
}

const damaged = (what: string, cause?: unknown): PlatformError =>
  new PlatformError('environment_broken', `the stored environment ${what} is damaged`, {
    details: { environment: what },
    cause,
  });

const notFound = (name: string, version: string | undefined): PlatformError =>
  new PlatformError('environment_not_found', `the blob store has no environment ${name}`, {
    details: { environment: name, ...(version === undefined ? {} : { version }) },
  });

const tooMany = (): PlatformError =>
  new PlatformError('quota_exceeded', 'the blob store has too many environments to list', {
    details: { resource: 'environments', limit: MAX_LISTED },
  });
