/** Which chunks the store has already, from the indexes of its packs, read once each and kept in memory up to a bound. */
import { ChunkTable, type ChunkPlace } from './chunk-table.ts';
import type { ChunkLocation } from './chunk-map.ts';
import type { Digest } from './digest.ts';
import { digestOfKey, indexKey, INDEXES } from './layer-keys.ts';
import { listAll, type ObjectStore, readObject, type StoreOptions } from './object-store.ts';
import { decodePackIndex, MAX_PACK_INDEX_BYTES } from './pack-index.ts';
import { inParallel } from './parallel.ts';

/** Indexes that are read at once. */
const PARALLEL_READS = 8;

export class KnownChunks {
  readonly #store: ObjectStore;
  readonly #table: ChunkTable;
  /** When the index of a pack was last put. */
  readonly #indexedMs = new Map<Digest, number>();

  constructor(store: ObjectStore, maxChunks: number) {
    this.#store = store;
    this.#table = new ChunkTable(maxChunks);
  }

  find(digest: Buffer): ChunkPlace | undefined {
    return this.#table.find(digest);
  }

  /** When the index of this pack was last put, as far as is known. */
  indexedMs(pack: Digest): number {
    return this.#indexedMs.get(pack) ?? 0;
  }

  add(pack: Digest, chunks: readonly Omit<ChunkLocation, 'pack'>[], indexedMs: number): void {
    if (this.#table.has(pack) || this.#table.add(pack, chunks)) this.#indexedMs.set(pack, indexedMs);
  }

  forget(pack: Digest): void {
    this.#table.forget(pack);
    this.#indexedMs.delete(pack);
  }

  /** Reads indexes that are new, and forgets packs whose index is gone. */
  async refresh(options: StoreOptions = {}): Promise<void> {
    const gone = new Set(this.#table.packs);
    await inParallel(listAll(this.#store, INDEXES, options), PARALLEL_READS, async ({ key, modifiedMs }) => {
      const pack = digestOfKey(key);
      if (pack === undefined) return;
      gone.delete(pack);
      if (this.#table.has(pack)) this.#indexedMs.set(pack, modifiedMs);
      else await this.#read(pack, modifiedMs, options);
    });
    for (const pack of gone) this.forget(pack);
  }

  async #read(pack: Digest, modifiedMs: number, options: StoreOptions): Promise<void> {
    const bytes = await readObject(this.#store, indexKey(pack), { ...options, maxBytes: MAX_PACK_INDEX_BYTES });
    const chunks = bytes === undefined ? undefined : decodePackIndex(bytes, pack);
    if (chunks !== undefined) this.add(pack, chunks, modifiedMs);
  }
}
