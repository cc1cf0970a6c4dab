/**
 * What layers are kept in: whole objects under names, as a mounted file system and as S3 both can hold them. An object is there whole or
 * not at all, and a name is never the directory of another name.
 */
import { PlatformError } from '@dsec/contract';

export interface ObjectInfo {
  readonly key: string;
  readonly sizeBytes: number;
  /** When it was last put, by the clock of the store. */
  readonly modifiedMs: number;
}

export interface ObjectPage {
  /** Sorted by key, byte by byte. */
  readonly objects: readonly ObjectInfo[];
  /** Of the next page; undefined after the last. */
  readonly cursor: string | undefined;
}

/** Bytes at hand, or a stream that is read once. */
export type ObjectBody = Uint8Array | AsyncIterable<Uint8Array>;

/** An object that is being read. Dispose it when it is not read to its end. */
export interface ObjectStream extends AsyncIterable<Uint8Array>, AsyncDisposable {}

export interface StoreOptions {
  readonly signal?: AbortSignal | undefined;
}

export interface PutOptions extends StoreOptions {
  /** For a name that says what the content is: an object of that name and size is left as it is, and nothing is sent. Default false. */
  readonly ifAbsent?: boolean;
}

export interface ReadOptions extends StoreOptions {
  /** Part of the object; what lies behind its end is left out. `length` is at least 1. */
  readonly range?: { readonly offset: number; readonly length: number } | undefined;
}

export interface ListOptions extends StoreOptions {
  /** Default and most: `MAX_LIST`. */
  readonly limit?: number;
  /** What the page before returned. */
  readonly cursor?: string | undefined;
}

/** Most objects in one page of a listing. */
export const MAX_LIST = 1000;

/**
 * A blob store. Everything throws `blob_unavailable` (with `details.store` and `details.reason`) when the store does not do its part,
 * `blob_full` when it has no room, `invalid_argument` for a key that is none, and `cancelled` when the signal aborts.
 */
export interface ObjectStore {
  /** For `details.store`. */
  readonly name: string;
  /** Puts an object in the place of what was there. `present`: nothing had to be sent. */
  put(key: string, body: ObjectBody, options?: PutOptions): Promise<'written' | 'present'>;
  /** Undefined: there is no such object. */
  get(key: string, options?: ReadOptions): Promise<ObjectStream | undefined>;
  head(key: string, options?: StoreOptions): Promise<ObjectInfo | undefined>;
  /** Objects whose key begins with `prefix`. */
  list(prefix: string, options?: ListOptions): Promise<ObjectPage>;
  /** Idempotent. */
  delete(key: string, options?: StoreOptions): Promise<void>;
  /** Removes what puts have left behind that were killed before this moment, by the clock of the store; says how many. */
  removeUnfinished(beforeMs: number, options?: StoreOptions): Promise<number>;
}

/** Longest key. */
export const MAX_KEY_CHARS = 512;
/** Most parts of a key. */
const MAX_KEY_PARTS = 8;

const PART = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;

export function isKey(key: string): boolean {
  const parts = key.split('/');
  return key.length <= MAX_KEY_CHARS && parts.length <= MAX_KEY_PARTS && parts.every((part) => PART.test(part));
}

/** @throws PlatformError `invalid_argument` */
export function checkKey(key: string): void {
  if (!isKey(key))
    throw new PlatformError('invalid_argument', 'not a key of a blob store', { details: { field: 'key' } });
}

/** A prefix is the beginning of a key, or nothing. @throws PlatformError `invalid_argument` */
export function checkPrefix(prefix: string): void {
  if (prefix !== '' && !isKey(`${prefix}0`)) {
    throw new PlatformError('invalid_argument', 'not a prefix of keys of a blob store', {
      details: { field: 'prefix' },
    });
  }
}

/** @throws PlatformError `invalid_argument` */
export function checkRange(range: ReadOptions['range']): void {
  if (range === undefined) return;
  const isValid = Number.isSafeInteger(range.offset + range.length) && range.offset >= 0 && range.length >= 1;
  if (!isValid) throw new PlatformError('invalid_argument', 'not a range of bytes', { details: { field: 'range' } });
}

export interface ReadObjectOptions extends ReadOptions {
  /** Reading ends one byte behind this, so that the caller sees that there is more. */
  readonly maxBytes: number;
}

/** A whole object, or a range of it, in memory; undefined: there is none. */
export async function readObject(
  store: ObjectStore,
  key: string,
  options: ReadObjectOptions,
): Promise<Buffer | undefined> {
  await using stream = await store.get(key, options);
  if (stream === undefined) return undefined;
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of stream) {
    parts.push(part);
    length += part.length;
    if (length > options.maxBytes) break;
  }
  return Buffer.concat(parts, Math.min(length, options.maxBytes + 1));
}

/** All objects under a prefix, page by page. */
export async function* listAll(
  store: ObjectStore,
  prefix: string,
  options: StoreOptions = {},
): AsyncGenerator<ObjectInfo> {
  let cursor: string | undefined;
  do {
    const page: ObjectPage = await store.list(prefix, { ...options, cursor });
    yield* page.objects;
    cursor = page.cursor;
  } while (cursor !== undefined);
}
