/**
 * Mark and sweep over the layers and packs of a blob store. It may run beside uploads and be killed at any moment.
 *
 * - C1 what a kept layer needs, or one of which any object is young, is kept; if that cannot be told, nothing is removed;
 * - C2 nothing young is removed; a pack is as young as it or its index, whichever is younger;
 * - C3 a layer's record goes before its other objects, so that no layer is there in part;
 * - C4 a pack's index goes before the pack, so that no index names what is not there; both are looked at again in between, since an upload
 *   that relies on the pack puts its index anew (U1 of the uploader) and looks for both before its layer is there (U2);
 * - C5 a chunk map that another has taken the place of (`relayout`) is kept for a while, and what it names with it.
 */
import { PlatformError } from '@dsec/contract';
import { type Clock, throwIfAborted } from '@dsec/kit';
import { ChunkMap, MAX_CHUNK_MAP_BYTES } from './chunk-map.ts';
import type { Digest } from './digest.ts';
import {
  chunkMapKey,
  digestOfKey,
  indexKey,
  INDEXES,
  isSupersededMapKey,
  LAYERS,
  metadataKey,
  packKey,
  PACKS,
  recordKey,
} from './layer-keys.ts';
import { corrupt } from './layer-format.ts';
import { listAll, type ObjectInfo, type ObjectStore, readObject } from './object-store.ts';
import { inParallel } from './parallel.ts';

export interface CollectOptions {
  /** Every layer that a live sandbox, an environment or a snapshot needs. */
  readonly keepLayers: Iterable<Digest>;
  /** Longer than any upload takes, and than the clocks of nodes and store differ. */
  readonly graceMs: number;
  readonly clock: Clock;
  readonly signal?: AbortSignal | undefined;
  /** How long a chunk map that another has taken the place of goes on to count, for nodes that have it. Default 30 days. */
  readonly supersededMs?: number;
  /** Most packs, and most layers, that a store may have: they are held in memory. Default one million. */
  readonly maxObjects?: number;
}

export interface Collected {
  readonly removedLayers: number;
  readonly removedPacks: number;
  /** Of the objects that were removed. */
  readonly freedBytes: number;
  readonly keptLayers: number;
  readonly keptPacks: number;
}

const DEFAULT_SUPERSEDED_MS = 30 * 86_400_000;
const DEFAULT_MAX_OBJECTS = 1_000_000;
/** Chunk maps that are read at once: each may be tens of megabytes. */
const PARALLEL_MAPS = 4;

/** What belongs to one digest. */
interface Found {
  youngestMs: number;
  readonly objects: ObjectInfo[];
}

/**
 * @throws PlatformError `layer_corrupt` when the chunk map of a layer that is to be kept cannot be read, `quota_exceeded` when there is more
 * than `maxObjects`, `blob_unavailable`, `cancelled`
 */
export async function collect(store: ObjectStore, options: CollectOptions): Promise<Collected> {
  return await new Collection(store, options).run();
}

class Collection {
  readonly #store: ObjectStore;
  readonly #options: CollectOptions;
  readonly #oldMs: number;
  #freedBytes = 0;

  constructor(store: ObjectStore, options: CollectOptions) {
    this.#store = store;
    this.#options = options;
    this.#oldMs = options.clock.now() - options.graceMs;
  }

  async run(): Promise<Collected> {
    // Packs before layers: a pack whose layer comes in between is young, or was put anew (U1) and is looked at again (C4).
    const packs = await this.#find([PACKS, INDEXES]);
    const layers = await this.#find([LAYERS]);
    const keep = new Set(this.#options.keepLayers);
    for (const [layer, { youngestMs }] of layers) if (!this.#isOld(youngestMs)) keep.add(layer);
    const needed = await this.#mark(keep, layers);
    let removedLayers = 0;
    for (const [layer, found] of oldestFirst(layers)) {
      if (!keep.has(layer) && (await this.#removeLayer(layer, found))) removedLayers++;
    }
    let removedPacks = 0;
    for (const [pack, found] of oldestFirst(packs)) {
      if (!needed.has(pack) && this.#isOld(found.youngestMs) && (await this.#removePack(pack, found))) removedPacks++;
    }
    await this.#store.removeUnfinished(this.#oldMs, { signal: this.#options.signal });
    return {
      removedLayers,
      removedPacks,
      freedBytes: this.#freedBytes,
      keptLayers: layers.size - removedLayers,
      keptPacks: packs.size - removedPacks,
    };
  }

  #isOld(modifiedMs: number): boolean {
    return modifiedMs < this.#oldMs;
  }

  async #find(prefixes: readonly string[]): Promise<ReadonlyMap<Digest, Found>> {
    const maxObjects = this.#options.maxObjects ?? DEFAULT_MAX_OBJECTS;
    const found = new Map<Digest, Found>();
    for (const prefix of prefixes) {
      for await (const object of listAll(this.#store, prefix, { signal: this.#options.signal })) {
        const digest = digestOfKey(object.key);
        if (digest === undefined) continue;
        const entry = found.get(digest) ?? { youngestMs: 0, objects: [] };
        entry.youngestMs = Math.max(entry.youngestMs, object.modifiedMs);
        entry.objects.push(object);
        found.set(digest, entry);
        if (found.size > maxObjects) {
          throw new PlatformError('quota_exceeded', `blob store ${this.#store.name} has too many objects to collect`, {
            details: { resource: 'objects', limit: maxObjects, current: found.size },
          });
        }
      }
    }
    return found;
  }

  /** C1: the packs that these layers need. */
  async #mark(keep: ReadonlySet<Digest>, layers: ReadonlyMap<Digest, Found>): Promise<ReadonlySet<Digest>> {
    const needed = new Set<Digest>();
    const { signal } = this.#options;
    const stored = [...keep].filter((layer) => layers.has(layer));
    await inParallel(stored, PARALLEL_MAPS, async (layer) => {
      const bytes = await readObject(this.#store, chunkMapKey(layer), { signal, maxBytes: MAX_CHUNK_MAP_BYTES });
      if (bytes === undefined) {
        const hasRecord = layers.get(layer)?.objects.some(({ key }) => key === recordKey(layer)) === true;
        if (hasRecord) throw corrupt({ layer, digest: layer }, 'the chunk map is not there');
        // Its map is still to come: until then its packs are young, or put anew.
        return;
      }
      for (const pack of ChunkMap.decode(bytes, layer).packs) needed.add(pack);
      for (const pack of await this.#supersededPacks(layer, layers.get(layer)?.objects ?? [])) needed.add(pack);
    });
    return needed;
  }

  /** C5: of a layer that is kept. */
  async #supersededPacks(layer: Digest, objects: readonly ObjectInfo[]): Promise<readonly Digest[]> {
    const { clock, supersededMs = DEFAULT_SUPERSEDED_MS, graceMs, signal } = this.#options;
    const oldMs = clock.now() - Math.max(supersededMs, graceMs);
    const packs: Digest[] = [];
    for (const { key, modifiedMs } of objects) {
      if (!isSupersededMapKey(key)) continue;
      if (modifiedMs < oldMs) {
        await this.#remove(key);
        continue;
      }
      const bytes = await readObject(this.#store, key, { signal, maxBytes: MAX_CHUNK_MAP_BYTES });
      if (bytes !== undefined) packs.push(...ChunkMap.decode(bytes, layer).packs);
    }
    return packs;
  }

  /** C3. */
  async #removeLayer(layer: Digest, found: Found): Promise<boolean> {
    const keys = [recordKey(layer), chunkMapKey(layer), metadataKey(layer)];
    if (!(await this.#areOld(keys))) return false;
    const others = found.objects.map(({ key }) => key).filter((key) => !keys.includes(key));
    for (const key of [...keys, ...others]) {
      if (!(await this.#remove(key))) return false;
    }
    return true;
  }

  /** C4. */
  async #removePack(pack: Digest, found: Found): Promise<boolean> {
    const others = found.objects.map(({ key }) => key).filter((key) => key !== indexKey(pack) && key !== packKey(pack));
    if (!(await this.#areOld([packKey(pack), indexKey(pack)])) || !(await this.#remove(indexKey(pack)))) return false;
    if ((await this.#store.head(indexKey(pack), { signal: this.#options.signal })) !== undefined) return false;
    for (const key of [packKey(pack), ...others]) {
      if (!(await this.#remove(key))) return false;
    }
    return true;
  }

  async #areOld(keys: readonly string[]): Promise<boolean> {
    for (const key of keys) {
      const object = await this.#store.head(key, { signal: this.#options.signal });
      if (object !== undefined && !this.#isOld(object.modifiedMs)) return false;
    }
    return true;
  }

  /** C2: false when it has become young in the meantime. */
  async #remove(key: string): Promise<boolean> {
    const { signal } = this.#options;
    throwIfAborted(signal);
    const object = await this.#store.head(key, { signal });
    if (object === undefined) return true;
    if (!this.#isOld(object.modifiedMs)) return false;
    await this.#store.delete(key, { signal });
    this.#freedBytes += object.sizeBytes;
    return true;
  }
}

const oldestFirst = (found: ReadonlyMap<Digest, Found>): readonly (readonly [Digest, Found])[] =>
  [...found].sort(([, a], [, b]) => a.youngestMs - b.youngestMs);
