/** A blob store in memory on an injected clock, for suites that need thousands of them; it passes the suite of `ObjectStore`. */
import type { Clock } from '@dsec/kit';
import { throwIfAborted } from '@dsec/kit';
import {
  checkKey,
  checkPrefix,
  checkRange,
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

export class MemoryStore implements ObjectStore {
  readonly name = 'memory';
  readonly objects = new Map<string, { readonly bytes: Buffer; readonly modifiedMs: number }>();
  readonly #clock: Clock;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  async put(key: string, body: ObjectBody, options: PutOptions = {}): Promise<'written' | 'present'> {
    checkKey(key);
    throwIfAborted(options.signal);
    const there = this.objects.get(key);
    if (options.ifAbsent === true && there !== undefined) {
      if (!(body instanceof Uint8Array) || there.bytes.length === body.length) return 'present';
    }
    const parts: Uint8Array[] = [];
    for await (const part of body instanceof Uint8Array ? [body] : body) {
      throwIfAborted(options.signal);
      parts.push(part);
    }
    this.objects.set(key, { bytes: Buffer.concat(parts), modifiedMs: this.#clock.now() });
    return 'written';
  }

  async get(key: string, options: ReadOptions = {}): Promise<ObjectStream | undefined> {
    checkKey(key);
    checkRange(options.range);
    throwIfAborted(options.signal);
    const found = this.objects.get(key);
    if (found === undefined) return undefined;
    const { range } = options;
    const bytes = range === undefined ? found.bytes : found.bytes.subarray(range.offset, range.offset + range.length);
    return {
      async *[Symbol.asyncIterator]() {
        yield bytes;
      },
      [Symbol.asyncDispose]: () => Promise.resolve(),
    };
  }

  async head(key: string, options: StoreOptions = {}): Promise<ObjectInfo | undefined> {
    checkKey(key);
    throwIfAborted(options.signal);
    const found = this.objects.get(key);
    return found === undefined ? undefined : { key, sizeBytes: found.bytes.length, modifiedMs: found.modifiedMs };
  }

  async list(prefix: string, options: ListOptions = {}): Promise<ObjectPage> {
    checkPrefix(prefix);
    throwIfAborted(options.signal);
    const limit = Math.min(options.limit ?? MAX_LIST, MAX_LIST);
    const keys = [...this.objects.keys()]
      .filter((key) => key.startsWith(prefix) && key > (options.cursor ?? ''))
      .sort((a, b) => (a < b ? -1 : 1));
    const page: ObjectInfo[] = [];
    for (const key of keys.slice(0, limit)) {
      const object = await this.head(key);
      if (object !== undefined) page.push(object);
    }
    return { objects: page, cursor: keys.length > limit ? page.at(-1)?.key : undefined };
  }

  async delete(key: string, options: StoreOptions = {}): Promise<void> {
    checkKey(key);
    throwIfAborted(options.signal);
    this.objects.delete(key);
  }

  removeUnfinished(): Promise<number> {
    return Promise.resolve(0);
  }
}
