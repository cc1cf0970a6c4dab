/**
 * A blob store in a directory: a mounted 3FS, CephFS or NFS, or a local disk. A put writes a temporary file, syncs it, renames it and
 * syncs the directory, so that after a crash of the node or of the server the object is there whole or not at all.
 */
import { constants } from 'node:fs';
import { type FileHandle, lstat, open, readdir, rename, unlink } from 'node:fs/promises';
import { type Random, throwIfAborted } from '@dsec/kit';
import { fileError, errno } from './store-error.ts';
import { inside, makeDirectory, openDirectory, removeEmptyDirectory } from './rooted-directory.ts';
import {
  checkKey,
  checkPrefix,
  checkRange,
  isKey,
  type ListOptions,
  MAX_LIST,
  type ObjectBody,
  type ObjectInfo,
  type ObjectPage,
  type ObjectStore,
  type ObjectStream,
  type PutOptions,
  type ReadOptions,
  type StoreOptions,
} from './object-store.ts';

export interface DirectoryStoreOptions {
  /** The directory; must exist. It may itself be a link. */
  readonly root: string;
  /** For names of temporary files. */
  readonly random: Random;
  /** For `details.store`; default `directory`, since an error shows no path of the host. */
  readonly name?: string;
}

/** Not a key: no part of a key begins with a dot. */
const TEMPORARY = '.unfinished';
const FILE_MODE = 0o644;
/** How often a directory may vanish before an object is in it. */
const MAX_MOVES = 10;
const READ_BYTES = 1024 * 1024;
const { O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;

export class DirectoryStore implements ObjectStore {
  readonly name: string;
  readonly #root: string;
  readonly #random: Random;

  constructor(options: DirectoryStoreOptions) {
    this.name = options.name ?? 'directory';
    this.#root = options.root;
    this.#random = options.random;
  }

  async put(key: string, body: ObjectBody, options: PutOptions = {}): Promise<'written' | 'present'> {
    checkKey(key);
    if (options.ifAbsent === true) {
      const there = await this.head(key, options);
      if (there !== undefined && (!(body instanceof Uint8Array) || there.sizeBytes === body.length)) return 'present';
    }
    return await this.#typed(async () => {
      await using unfinished = await makeDirectory(this.#root, [TEMPORARY]);
      const temporary = inside(unfinished, this.#random.base36(24));
      try {
        await writeSynced(temporary, body, options.signal);
        await this.#moveTo(key, temporary);
      } catch (error) {
        await unlink(temporary).catch(() => undefined);
        throw error;
      }
      return 'written' as const;
    });
  }

  async get(key: string, options: ReadOptions = {}): Promise<ObjectStream | undefined> {
    checkKey(key);
    checkRange(options.range);
    throwIfAborted(options.signal);
    const file = await this.#typed(() => this.#open(key));
    return file === undefined ? undefined : new FileStream(file, options, (error) => fileError(this.name, error));
  }

  async head(key: string, options: StoreOptions = {}): Promise<ObjectInfo | undefined> {
    checkKey(key);
    throwIfAborted(options.signal);
    return await this.#typed(async () => {
      const { parts, last } = split(key);
      await using directory = await openDirectory(this.#root, parts);
      return directory === undefined ? undefined : await info(directory, last, key);
    });
  }

  async list(prefix: string, options: ListOptions = {}): Promise<ObjectPage> {
    checkPrefix(prefix);
    const limit = Math.min(options.limit ?? MAX_LIST, MAX_LIST);
    const after = options.cursor ?? '';
    return await this.#typed(async () => {
      const objects: ObjectInfo[] = [];
      // One more than the page, so that the last page has no cursor.
      for await (const object of this.#walk([], prefix, after, options.signal)) {
        objects.push(object);
        if (objects.length > limit) break;
      }
      const page = objects.slice(0, limit);
      return { objects: page, cursor: objects.length > limit ? page.at(-1)?.key : undefined };
    });
  }

  async delete(key: string, options: StoreOptions = {}): Promise<void> {
    checkKey(key);
    throwIfAborted(options.signal);
    await this.#typed(async () => {
      const { parts, last } = split(key);
      await using directory = await openDirectory(this.#root, parts);
      if (directory === undefined) return;
      await unlink(inside(directory, last)).catch((error: unknown) => {
        if (errno(error) !== 'ENOENT') throw error;
      });
      await directory.sync();
      // The directories of layers would pile up; those at the top stay.
      if (parts.length > 1) await removeEmptyDirectory(this.#root, parts);
    });
  }

  async removeUnfinished(beforeMs: number, options: StoreOptions = {}): Promise<number> {
    return await this.#typed(async () => {
      await using directory = await openDirectory(this.#root, [TEMPORARY]);
      if (directory === undefined) return 0;
      let removed = 0;
      for (const name of await readdir(inside(directory, ''))) {
        throwIfAborted(options.signal);
        const file = await info(directory, name, name);
        if (file === undefined || file.modifiedMs >= beforeMs) continue;
        await unlink(inside(directory, name));
        removed++;
      }
      return removed;
    });
  }

  async #moveTo(key: string, temporary: string): Promise<void> {
    const { parts, last } = split(key);
    for (let attempt = 1; ; attempt++) {
      try {
        await using directory = await makeDirectory(this.#root, parts);
        await rename(temporary, inside(directory, last));
        await directory.sync();
        return;
      } catch (error) {
        // The last object of the directory was deleted in this moment, and the directory with it.
        if (errno(error) !== 'ENOENT' || attempt === MAX_MOVES) throw error;
      }
    }
  }

  async #open(key: string): Promise<FileHandle | undefined> {
    const { parts, last } = split(key);
    await using directory = await openDirectory(this.#root, parts);
    if (directory === undefined) return undefined;
    try {
      // A pipe in the place of an object must not hold up who reads it.
      return await open(inside(directory, last), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    } catch (error) {
      if (errno(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** In the order of the keys: a directory sorts as its name and a slash, since that is what its keys begin with. */
  async *#walk(
    parts: readonly string[],
    prefix: string,
    after: string,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<ObjectInfo> {
    await using directory = await openDirectory(this.#root, parts);
    if (directory === undefined) return;
    const base = parts.map((part) => `${part}/`).join('');
    const entries = await readdir(inside(directory, ''), { withFileTypes: true });
    const names = entries
      .filter((entry) => entry.isDirectory() || entry.isFile())
      .map((entry) => (entry.isDirectory() ? `${entry.name}/` : entry.name))
      .filter((name) => isKey(`${base}${name.replace(/\/$/, '')}`))
      .sort((a, b) => (a < b ? -1 : 1));
    for (const name of names) {
      throwIfAborted(signal);
      const key = base + name;
      if (name.endsWith('/')) {
        const mayMatch = key.startsWith(prefix) || prefix.startsWith(key);
        const mayFollow = key > after || after.startsWith(key);
        if (mayMatch && mayFollow) yield* this.#walk([...parts, name.slice(0, -1)], prefix, after, signal);
      } else if (key > after && key.startsWith(prefix)) {
        const object = await info(directory, name, key);
        if (object !== undefined) yield object;
      }
    }
  }

  async #typed<T>(operation: () => Promise<T>): Promise<T> {
    try {
      return await operation();
    } catch (error) {
      throw fileError(this.name, error);
    }
  }
}

function split(key: string): { readonly parts: readonly string[]; readonly last: string } {
  const parts = key.split('/');
  return { parts: parts.slice(0, -1), last: parts.at(-1) ?? '' };
}

/** Of a regular file; undefined when there is none. */
async function info(directory: FileHandle, name: string, key: string): Promise<ObjectInfo | undefined> {
  try {
    const status = await lstat(inside(directory, name));
    if (!status.isFile()) return undefined;
    return { key, sizeBytes: status.size, modifiedMs: status.mtimeMs };
  } catch (error) {
    if (errno(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function writeSynced(path: string, body: ObjectBody, signal: AbortSignal | undefined): Promise<void> {
  await using file = await open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, FILE_MODE);
  const parts = body instanceof Uint8Array ? [body] : body;
  for await (const part of parts) {
    throwIfAborted(signal);
    await file.writeFile(part);
  }
  throwIfAborted(signal);
  await file.sync();
}

/** An open file, read piece by piece. */
class FileStream implements ObjectStream {
  readonly #file: FileHandle;
  readonly #options: ReadOptions;
  readonly #typed: (error: unknown) => unknown;

  constructor(file: FileHandle, options: ReadOptions, typed: (error: unknown) => unknown) {
    this.#file = file;
    this.#options = options;
    this.#typed = typed;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    const { range, signal } = this.#options;
    let offset = range?.offset ?? 0;
    const endsAt = range === undefined ? Number.POSITIVE_INFINITY : offset + range.length;
    try {
      while (offset < endsAt) {
        throwIfAborted(signal);
        const wanted = Buffer.allocUnsafe(Math.min(READ_BYTES, endsAt - offset));
        const { bytesRead } = await this.#file.read(wanted, 0, wanted.length, offset);
        if (bytesRead === 0) return;
        offset += bytesRead;
        yield wanted.subarray(0, bytesRead);
      }
    } catch (error) {
      throw this.#typed(error);
    } finally {
      await this.#file.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}
