/** A part of a blob store as a store of its own: everything lies below one prefix. */
import type {
  ListOptions,
  ObjectBody,
  ObjectInfo,
  ObjectPage,
  ObjectStore,
  ObjectStream,
  PutOptions,
  ReadOptions,
  StoreOptions,
} from './object-store.ts';

export class PrefixStore implements ObjectStore {
  readonly name: string;
  readonly #store: ObjectStore;
  readonly #prefix: string;

  /** `prefix` ends with a slash. */
  constructor(store: ObjectStore, prefix: string) {
    this.name = store.name;
    this.#store = store;
    this.#prefix = prefix;
  }

  put(key: string, body: ObjectBody, options?: PutOptions): Promise<'written' | 'present'> {
    return this.#store.put(this.#prefix + key, body, options);
  }

  get(key: string, options?: ReadOptions): Promise<ObjectStream | undefined> {
    return this.#store.get(this.#prefix + key, options);
  }

  async head(key: string, options?: StoreOptions): Promise<ObjectInfo | undefined> {
    const info = await this.#store.head(this.#prefix + key, options);
    return info === undefined ? undefined : { ...info, key };
  }

  async list(prefix: string, options: ListOptions = {}): Promise<ObjectPage> {
    const { cursor } = options;
    const page = await this.#store.list(this.#prefix + prefix, {
      ...options,
      cursor: cursor === undefined ? undefined : this.#prefix + cursor,
    });
    return {
      objects: page.objects.map((object) => ({ ...object, key: object.key.slice(this.#prefix.length) })),
      cursor: page.cursor?.slice(this.#prefix.length),
    };
  }

  delete(key: string, options?: StoreOptions): Promise<void> {
    return this.#store.delete(this.#prefix + key, options);
  }

  /** Of the whole store: what is unfinished has no place yet. */
  removeUnfinished(beforeMs: number, options?: StoreOptions): Promise<number> {
    return this.#store.removeUnfinished(beforeMs, options);
  }
}
