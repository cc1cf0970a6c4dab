/** All records under one prefix, in memory, kept by a watch: for what is read far more often than written. */
import type { Scope } from '@dsec/kit';
import type { Entry, Store } from './store.ts';

export interface StoreViewOptions<T> {
  readonly store: Store;
  readonly prefix: string;
  /** Owns the watch. */
  readonly scope: Scope;
  /** Makes the record of a stored value. */
  readonly parse: (value: string) => T;
  /** Called for each change of a record: what it is now, and what it was. */
  readonly onChange?: (current: T | undefined, previous: T | undefined) => void;
}

interface Held<T> {
  readonly revision: number;
  /** Undefined: it was deleted here, and the news of older writes may still come. */
  readonly record: T | undefined;
}

/** Records by the part of their key behind the prefix. */
export class StoreView<T> {
  readonly #options: StoreViewOptions<T>;
  readonly #held = new Map<string, Held<T>>();
  #size = 0;

  private constructor(options: StoreViewOptions<T>) {
    this.#options = options;
  }

  /** Reads everything and goes on watching until the scope closes. */
  static async open<T>(options: StoreViewOptions<T>): Promise<StoreView<T>> {
    const view = new StoreView(options);
    const revision = await view.#load();
    options.scope.run(`watch of ${options.prefix}`, (signal) => view.#follow(revision, signal));
    return view;
  }

  get size(): number {
    return this.#size;
  }

  get(name: string): T | undefined {
    return this.#held.get(name)?.record;
  }

  *records(): Generator<T, void, undefined> {
    for (const { record } of this.#held.values()) if (record !== undefined) yield record;
  }

  /** Takes over a write of this process at once, before the watch brings it. */
  observe(name: string, revision: number, record: T | undefined): void {
    const held = this.#held.get(name);
    // A write made here may be known before older ones come in by the watch.
    if (held !== undefined && held.revision >= revision) return;
    this.#held.set(name, { revision, record });
    this.#changed(record, held?.record);
  }

  #changed(current: T | undefined, previous: T | undefined): void {
    this.#size += Number(current !== undefined) - Number(previous !== undefined);
    this.#options.onChange?.(current, previous);
  }

  #observeEntry({ key, value, modRevision }: Entry): void {
    const { prefix, parse } = this.#options;
    this.observe(key.slice(prefix.length), modRevision, parse(value));
  }

  async #load(): Promise<number> {
    const { store, prefix } = this.#options;
    const present = new Set<string>();
    let cursor: string | undefined;
    let revision: number | undefined;
    do {
      const page = await store.range(prefix, { cursor });
      // What changes between two pages is later than the first page, and so comes again with the watch.
      revision ??= page.revision;
      for (const entry of page.entries) {
        present.add(entry.key.slice(prefix.length));
        this.#observeEntry(entry);
      }
      cursor = page.cursor;
    } while (cursor !== undefined);
    for (const [name, held] of this.#held) {
      if (present.has(name) || held.revision > revision) continue;
      this.#held.delete(name);
      this.#changed(undefined, held.record);
    }
    return revision;
  }

  async #follow(loaded: number, signal: AbortSignal): Promise<void> {
    const { store, prefix } = this.#options;
    let from = loaded + 1;
    while (!signal.aborted) {
      for await (const batch of store.watch(prefix, { fromRevision: from, signal })) {
        if (batch.kind === 'compacted') break;
        for (const event of batch.events) {
          if (event.kind === 'put') {
            this.#observeEntry(event.entry);
            continue;
          }
          const name = event.key.slice(prefix.length);
          this.observe(name, event.revision, undefined);
          // Nothing older can come any more.
          if (this.#held.get(name)?.revision === event.revision) this.#held.delete(name);
        }
      }
      if (!signal.aborted) from = (await this.#load()) + 1;
    }
  }
}
