/**
 * Brings a layer from its files into a blob store: packs, then their indexes, then the layer's objects, its record last.
 *
 * Chunks that are in the store are not sent. A collection may run at the same time and be about to remove a pack that no layer needs yet:
 * - U1 before a pack of others is relied on, its index is put anew unless it is young, which makes the pack young;
 * - U2 after all packs are written and before the record, every pack that the layer relies on is looked for again; one that is gone is
 *   written anew;
 * - U3 the map of a layer that is in the store is written only when it names what is gone, and when none has come since it was read.
 */
import { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import { type ChunkEntry, ChunkMap } from './chunk-map.ts';
import type { ChunkPlace } from './chunk-table.ts';
import { chunksByPack } from './chunks-by-pack.ts';
import { type Digest, digestName } from './digest.ts';
import { KnownChunks } from './known-chunks.ts';
import { chunkBytes, MAX_RECORD_BYTES } from './layer-format.ts';
import { indexKey, metadataKey, packKey, recordKey } from './layer-keys.ts';
import { LayerPacker, type LayerPackerOptions } from './layer-packer.ts';
import { findChunkMap } from './layer-reader.ts';
import { type LayerFiles, LayerSource } from './layer-source.ts';
import { readObject } from './object-store.ts';
import { decodePackIndex, MAX_PACK_INDEX_BYTES } from './pack-index.ts';
import { inParallel } from './parallel.ts';
import { replaceMap } from './replace-map.ts';
import { unavailable } from './store-error.ts';

export interface LayerUploaderOptions extends LayerPackerOptions {
  readonly clock: Clock;
  /** How young a pack or layer must be to be left as it is; well below the grace period of collections. Default one hour. */
  readonly youngMs?: number;
  /** Most chunks of the store that are kept in mind (some 70 bytes each); what is beyond them is sent again. Default four million (1 TiB). */
  readonly maxKnownChunks?: number;
}

export interface LayerUpload extends LayerFiles {
  /** `layer.json`; the caller may make it from the digest. At most 1 MiB. */
  readonly record: Uint8Array | ((layer: Digest) => Uint8Array);
  readonly signal?: AbortSignal | undefined;
  /** Plain bytes of `data` that are in the store, of all that are not holes. */
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void;
}

export interface UploadedLayer {
  readonly layer: Digest;
  readonly map: ChunkMap;
  /** Of `data`, holes left out. */
  readonly bytes: number;
  /** Plain bytes of chunks that the store did not have. */
  readonly newBytes: number;
  /** Bytes of packs and indexes that were sent. */
  readonly sentBytes: number;
  /** Share of `bytes` that was in the store, or more than once in the layer: 0 to 1. */
  readonly dedupeShare: number;
}

const HOUR_MS = 3_600_000;
const DEFAULT_KNOWN_CHUNKS = 4 * 1024 * 1024;
/** Packs that are looked for at once. */
const PARALLEL_CHECKS = 8;
/** How often packs may be gone again before the upload gives up; how often the map may be another before this one is put. */
const MAX_ROUNDS = 3;

/** Uploads into one store; keeps in mind what the store has from one upload to the next. */
export class LayerUploader {
  readonly #options: LayerUploaderOptions;
  readonly #packer: LayerPacker;
  readonly #known: KnownChunks;

  constructor(options: LayerUploaderOptions) {
    this.#options = options;
    this.#packer = new LayerPacker(options);
    this.#known = new KnownChunks(options.store, options.maxKnownChunks ?? DEFAULT_KNOWN_CHUNKS);
  }

  /**
   * Idempotent; one that was killed goes on where it was.
   * @throws PlatformError `blob_unavailable`, `blob_full`, `invalid_argument` (files or record), `layer_corrupt` (files that change), `cancelled`
   */
  async upload(upload: LayerUpload): Promise<UploadedLayer> {
    const { store } = this.#options;
    const { signal } = upload;
    await using source = await LayerSource.open(upload, signal);
    const { layer } = source;
    const record = typeof upload.record === 'function' ? upload.record(layer) : upload.record;
    if (record.length > MAX_RECORD_BYTES) {
      throw new PlatformError('invalid_argument', 'the record of the layer is too large', {
        details: { field: 'record' },
      });
    }
    const { map, ...sent } = await this.#sendData(source, upload);
    await store.put(recordKey(layer), record, { signal });
    let bytes = 0;
    for (let index = 0; index < source.chunks; index++) {
      if (source.digestAt(index) !== undefined) bytes += chunkBytes(source.dataBytes, index);
    }
    const dedupeShare = bytes === 0 ? 0 : 1 - sent.newBytes / bytes;
    return { layer, map, bytes, newBytes: sent.newBytes, sentBytes: sent.sentBytes, dedupeShare };
  }

  /**
   * All but the record. The map of the store stays wherever it is good; one that came meanwhile, as from a layout, is looked at again (U3), so that
   * this puts no older one in its place.
   */
  async #sendData(
    source: LayerSource,
    upload: LayerUpload,
  ): Promise<Omit<Sent, 'placed'> & { readonly map: ChunkMap }> {
    const { store } = this.#options;
    const { layer } = source;
    const { signal } = upload;
    const firstOf = uniqueChunks(source);
    let [newBytes, sentBytes] = [0, 0];
    let before = await findChunkMap(store, layer, { signal });
    for (let round = 1; ; round++) {
      const sent = await this.#sendChunks({ source, firstOf, before }, upload);
      newBytes += sent.newBytes;
      sentBytes += sent.sentBytes;
      const map = ChunkMap.encode(source.dataBytes, entriesOf(source, sent.placed), layer);
      if (round === 1) await store.put(metadataKey(layer), source.metadata(), { signal });
      const now = await findChunkMap(store, layer, { signal });
      if (isSameMap(now, before) || round === MAX_ROUNDS) {
        await replaceMap(store, { layer, before: now, next: map }, signal);
        return { newBytes, sentBytes, map };
      }
      before = now;
    }
  }

  /** Until every chunk is in a pack that is there. */
  async #sendChunks({ source, firstOf, before }: Sending, upload: LayerUpload): Promise<Sent> {
    const { signal } = upload;
    const placed = await this.#placesThere(before, firstOf, signal);
    const sentOnce = new Set<number>();
    let sentBytes = 0;
    const indexes = [...firstOf.values()];
    const sizeOf = (index: number): number => chunkBytes(source.dataBytes, index);
    const totalBytes = indexes.reduce((sum, index) => sum + sizeOf(index), 0);
    await this.#known.refresh({ signal });
    for (let round = 0; round < MAX_ROUNDS; round++) {
      this.#place(source, firstOf, placed);
      displace(placed, await this.#keepYoung(packsOf(placed), signal));
      const missing = indexes.filter((index) => !placed.has(nameOf(source, index)));
      for (const index of missing) sentOnce.add(index);
      let leftBytes = missing.reduce((sum, index) => sum + sizeOf(index), 0);
      upload.onProgress?.(totalBytes - leftBytes, totalBytes);
      await this.#packer.write(source, missing, {
        signal,
        onPack: ({ pack, chunks, sentBytes: packSentBytes }) => {
          this.#known.add(pack, chunks, this.#options.clock.now());
          // Beside what is known, which has a bound.
          for (const chunk of chunks) placed.set(chunk.digest, { ...chunk, pack });
          sentBytes += packSentBytes;
          leftBytes -= chunks.reduce((sum, { plainBytes }) => sum + plainBytes, 0);
          upload.onProgress?.(totalBytes - leftBytes, totalBytes);
        },
      });
      const gone = await this.#gone(packsOf(placed), signal);
      if (gone.size === 0) {
        const newBytes = [...sentOnce].reduce((sum, index) => sum + sizeOf(index), 0);
        return { newBytes, sentBytes, placed };
      }
      displace(placed, gone);
    }
    throw unavailable(this.#options.store.name, 'packs_vanish');
  }

  /** Where chunks lie by the map that the store has of the layer: so one that was laid out anew (`relayout`) stays as it is. */
  async #placesThere(
    map: ChunkMap | undefined,
    wanted: ReadonlyMap<string, number>,
    signal: AbortSignal | undefined,
  ): Promise<Map<string, ChunkPlace>> {
    const { store } = this.#options;
    const placed = new Map<string, ChunkPlace>();
    if (map === undefined) return placed;
    await inParallel(chunksByPack(map), PARALLEL_CHECKS, async ([pack, chunks]) => {
      const bytes = await readObject(store, indexKey(pack), { signal, maxBytes: MAX_PACK_INDEX_BYTES });
      const entries = bytes === undefined ? undefined : decodePackIndex(bytes, pack);
      const places = new Map(entries?.map((entry) => [entry.digest, entry]));
      for (const { digest, offset, storedBytes } of chunks) {
        const place = places.get(digest);
        const isThere = place?.offset === offset && place.storedBytes === storedBytes;
        if (isThere && wanted.has(digest)) placed.set(digest, { pack, offset, storedBytes });
      }
    });
    return placed;
  }

  /** Says where known chunks are, as far as that is not said. */
  #place(source: LayerSource, firstOf: ReadonlyMap<string, number>, placed: Map<string, ChunkPlace>): void {
    for (const [name, index] of firstOf) {
      const digest = source.digestAt(index);
      const place = digest === undefined || placed.has(name) ? undefined : this.#known.find(digest);
      if (place !== undefined) placed.set(name, place);
    }
  }

  /** U1. A pack that is gone, or has no index any more, is forgotten; returns these. */
  async #keepYoung(packs: ReadonlySet<Digest>, signal: AbortSignal | undefined): Promise<ReadonlySet<Digest>> {
    const { store, clock } = this.#options;
    const oldMs = clock.now() - (this.#options.youngMs ?? HOUR_MS);
    const gone = new Set<Digest>();
    const old = [...packs].filter((pack) => this.#known.indexedMs(pack) < oldMs);
    await inParallel(old, PARALLEL_CHECKS, async (pack) => {
      const bytes = await readObject(store, indexKey(pack), { signal, maxBytes: MAX_PACK_INDEX_BYTES });
      const chunks = bytes === undefined ? undefined : decodePackIndex(bytes, pack);
      const there = await store.head(packKey(pack), { signal });
      if (bytes === undefined || chunks === undefined || there === undefined) {
        gone.add(pack);
        this.#known.forget(pack);
        return;
      }
      await store.put(indexKey(pack), bytes, { signal });
      this.#known.add(pack, chunks, clock.now());
    });
    return gone;
  }

  /** U2. */
  async #gone(packs: ReadonlySet<Digest>, signal: AbortSignal | undefined): Promise<ReadonlySet<Digest>> {
    const { store } = this.#options;
    const gone = new Set<Digest>();
    await inParallel(packs, PARALLEL_CHECKS, async (pack) => {
      const isThere =
        (await store.head(packKey(pack), { signal })) !== undefined &&
        (await store.head(indexKey(pack), { signal })) !== undefined;
      if (isThere) return;
      gone.add(pack);
      this.#known.forget(pack);
    });
    return gone;
  }
}

function entriesOf(source: LayerSource, placed: ReadonlyMap<string, ChunkPlace>): readonly ChunkEntry[] {
  return Array.from({ length: source.chunks }, (_, index) => {
    const digest = source.digestAt(index);
    const place = placed.get(nameOf(source, index));
    if (digest === undefined) return undefined;
    if (place === undefined) throw new PlatformError('internal', `chunk ${index} has no place`);
    return { ...place, digest: digestName(digest) };
  });
}

const packsOf = (placed: ReadonlyMap<string, ChunkPlace>): ReadonlySet<Digest> =>
  new Set([...placed.values()].map(({ pack }) => pack));

function displace(placed: Map<string, ChunkPlace>, gone: ReadonlySet<Digest>): void {
  for (const [name, { pack }] of placed) if (gone.has(pack)) placed.delete(name);
}

/** What is sent of a layer. */
interface Sending {
  readonly source: LayerSource;
  readonly firstOf: ReadonlyMap<string, number>;
  /** The map that the store has. */
  readonly before: ChunkMap | undefined;
}

interface Sent {
  readonly newBytes: number;
  readonly sentBytes: number;
  /** Every chunk, by the name of its digest. */
  readonly placed: ReadonlyMap<string, ChunkPlace>;
}

const isSameMap = (left: ChunkMap | undefined, right: ChunkMap | undefined): boolean =>
  left === undefined || right === undefined ? left === right : left.bytes.equals(right.bytes);

const nameOf = (source: LayerSource, index: number): string => source.digestAt(index)?.toString('hex') ?? '';

/** Each different chunk, with the first place where it stands; holes are none. */
function uniqueChunks(source: LayerSource): ReadonlyMap<string, number> {
  const firstOf = new Map<string, number>();
  for (let index = 0; index < source.chunks; index++) {
    const name = nameOf(source, index);
    if (name !== '' && !firstOf.has(name)) firstOf.set(name, index);
  }
  return firstOf;
}
