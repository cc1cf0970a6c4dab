/**
 * Brings layers from one blob store into another: packs as they are, then their indexes, then the layer's objects, its record last. What is
 * there is not sent again, so that one that was killed goes on where it was; nothing is ever removed. A layer that the other store has keeps
 * the chunk map and the trace that it has there.
 *
 * A collection may run in the other store at the same time; U1 and U2 of the uploader hold here as well: the index of every pack is put anew,
 * and all packs are looked for again before the layer's record is written.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createZstdDecompress } from 'node:zlib';
import { PlatformError } from '@dsec/contract';
import { throwIfAborted } from '@dsec/kit';
import { decodeChunk } from './chunk-codec.ts';
import type { ChunkLocation, ChunkMap } from './chunk-map.ts';
import { chunksByPack } from './chunks-by-pack.ts';
import { type Digest, parseDigest, sha256Name } from './digest.ts';
import { corrupt, MAX_METADATA_BYTES, MAX_PACK_BYTES } from './layer-format.ts';
import { indexKey, metadataKey, packKey, recordKey } from './layer-keys.ts';
import { findChunkMap, openLayer, type StoredLayer } from './layer-reader.ts';
import { putTrace, readTrace } from './layer-trace.ts';
import { type ObjectStore, readObject, type StoreOptions } from './object-store.ts';
import { decodePackIndex, MAX_PACK_INDEX_BYTES } from './pack-index.ts';
import { inParallel } from './parallel.ts';
import { replaceMap } from './replace-map.ts';
import { errno, unavailable } from './store-error.ts';

/** Packs that are copied at once: each is in memory. */
const PARALLEL_PACKS = 3;
/** Packs that are looked for at once. */
const PARALLEL_CHECKS = 8;

export interface LayerCopierOptions {
  readonly from: ObjectStore;
  readonly to: ObjectStore;
}

export interface CopiedLayer {
  readonly layer: Digest;
  /** False: it was there already. */
  readonly isNew: boolean;
  /** Bytes of packs that were sent. */
  readonly sentBytes: number;
}

export class LayerCopier {
  readonly #from: ObjectStore;
  readonly #to: ObjectStore;

  constructor({ from, to }: LayerCopierOptions) {
    this.#from = from;
    this.#to = to;
  }

  /**
   * Idempotent. Every error names the layer; of what is damaged, the digest too, and nothing damaged is written.
   * @throws PlatformError `layer_not_found`, `layer_corrupt`, `blob_unavailable` and `blob_full` (naming the store), `cancelled`
   */
  async copy(layer: Digest, options: StoreOptions = {}): Promise<CopiedLayer> {
    try {
      return await this.#copy(layer, options);
    } catch (error) {
      throw naming(layer, error);
    }
  }

  async #copy(layer: Digest, { signal }: StoreOptions): Promise<CopiedLayer> {
    const stored = await openLayer(this.#from, layer, { signal });
    const before = await findChunkMap(this.#to, layer, { signal });
    if (before !== undefined && (await this.#isWhole(stored, before, signal))) {
      return { layer, isNew: false, sentBytes: 0 };
    }
    let sentBytes = 0;
    await inParallel(chunksByPack(stored.map), PARALLEL_PACKS, async ([pack, chunks]) => {
      const packBytes = await this.#copyPack({ layer, pack, chunks }, signal);
      sentBytes += packBytes;
    });
    if (!(await this.#hasPacks(stored.map, signal))) throw unavailable(this.#to.name, 'packs_vanish');
    await this.#copyMetadata(stored, signal);
    await replaceMap(this.#to, { layer, before, next: stored.map }, signal);
    const trace = await readTrace(this.#from, layer, stored.map, { signal });
    if (trace.length > 0) await putTrace(this.#to, layer, { map: stored.map, trace }, { signal });
    await this.#to.put(recordKey(layer), stored.record, { signal });
    return { layer, isNew: true, sentBytes };
  }

  async #isWhole({ layer, map }: StoredLayer, there: ChunkMap, signal: AbortSignal | undefined): Promise<boolean> {
    if (!isSameData(map, there)) return false;
    for (const key of [recordKey(layer), metadataKey(layer)]) {
      if ((await this.#to.head(key, { signal })) === undefined) return false;
    }
    return await this.#hasPacks(there, signal);
  }

  async #hasPacks({ packs }: ChunkMap, signal: AbortSignal | undefined): Promise<boolean> {
    let isMissing = false;
    await inParallel(packs, PARALLEL_CHECKS, async (pack) => {
      for (const key of [packKey(pack), indexKey(pack)]) {
        if (!isMissing && (await this.#to.head(key, { signal })) === undefined) isMissing = true;
      }
    });
    return !isMissing;
  }

  /** Returns the bytes that were sent. */
  async #copyPack({ layer, pack, chunks }: PackOfLayer, signal: AbortSignal | undefined): Promise<number> {
    throwIfAborted(signal);
    const index = await readObject(this.#from, indexKey(pack), { signal, maxBytes: MAX_PACK_INDEX_BYTES });
    const entries = index === undefined ? undefined : decodePackIndex(index, pack);
    if (index === undefined || entries === undefined) {
      throw corrupt({ layer, digest: pack }, 'the index of the pack is not there, or damaged');
    }
    const places = new Map(entries.map((entry) => [entry.digest, entry]));
    for (const chunk of chunks) {
      const place = places.get(chunk.digest);
      if (place === undefined || place.offset !== chunk.offset || place.storedBytes !== chunk.storedBytes) {
        throw corrupt({ layer, digest: chunk.digest }, 'the chunk map and the index of its pack differ');
      }
    }
    let sentBytes = 0;
    if ((await this.#to.head(packKey(pack), { signal })) === undefined) {
      const bytes = await this.#readPack({ layer, pack, chunks }, signal);
      await this.#to.put(packKey(pack), bytes, { ifAbsent: true, signal });
      sentBytes = bytes.length;
    }
    await this.#to.put(indexKey(pack), index, { signal });
    return sentBytes;
  }

  async #readPack({ layer, pack, chunks }: PackOfLayer, signal: AbortSignal | undefined): Promise<Buffer> {
    const bytes = await readObject(this.#from, packKey(pack), { signal, maxBytes: MAX_PACK_BYTES });
    if (bytes === undefined) throw corrupt({ layer, digest: pack }, 'the pack is not there');
    if (sha256Name(bytes) !== pack) throw corrupt({ layer, digest: pack }, 'the pack is not what it is named after');
    for (const chunk of chunks) {
      throwIfAborted(signal);
      await decodeChunk(bytes.subarray(chunk.offset, chunk.offset + chunk.storedBytes), chunk, layer);
    }
    return bytes;
  }

  async #copyMetadata(stored: StoredLayer, signal: AbortSignal | undefined): Promise<void> {
    await using frame = await this.#from.get(metadataKey(stored.layer), { signal });
    if (frame === undefined) throw corrupt({ layer: stored.layer, digest: stored.layer }, 'the metadata are not there');
    await this.#to.put(metadataKey(stored.layer), checkedFrame(frame, stored), { signal });
  }
}

interface PackOfLayer {
  readonly layer: Digest;
  readonly pack: Digest;
  /** What the layer has in it. */
  readonly chunks: readonly ChunkLocation[];
}

function isSameData(left: ChunkMap, right: ChunkMap): boolean {
  if (left.dataBytes !== right.dataBytes) return false;
  for (let index = 0; index < left.chunks; index++) {
    if (left.at(index)?.digest !== right.at(index)?.digest) return false;
  }
  return true;
}

/** The frame as it is; fails behind its last byte, so that it is never put, when metadata and chunk map are not the layer's. */
async function* checkedFrame(
  frame: AsyncIterable<Uint8Array>,
  { layer, map }: StoredLayer,
): AsyncGenerator<Uint8Array, void, undefined> {
  const suspect = { layer, digest: layer };
  const plain = createZstdDecompress();
  const hash = createHash('sha256');
  let length = 0;
  plain.on('data', (part: Buffer) => {
    length += part.length;
    hash.update(part);
    if (length > MAX_METADATA_BYTES) plain.destroy(corrupt(suspect, 'the metadata are too large'));
  });
  const ended = once(plain, 'end');
  // Looked at below, or not at all when the store fails first.
  ended.catch(() => undefined);
  try {
    for await (const part of frame) {
      if (!plain.write(part)) await Promise.race([once(plain, 'drain'), ended]);
      yield part;
    }
    plain.end();
    await ended;
  } catch (error) {
    if (!/^Z(?:STD)?_|^ERR_STREAM/.test(errno(error) ?? '')) throw error;
    throw corrupt(suspect, 'the metadata are not a zstd frame', error);
  } finally {
    plain.destroy();
  }
  const digest = map.layerDigest(parseDigest(hash.digest('hex')));
  if (digest !== layer) throw corrupt({ layer, digest }, 'metadata and chunk map are those of another layer');
}

/** Says which layer it is about; a store alone does not know. */
function naming(layer: Digest, error: unknown): unknown {
  if (!PlatformError.is(error) || error.details['layer'] !== undefined) return error;
  return new PlatformError(error.code, `layer ${layer}: ${error.message}`, {
    details: { ...error.details, layer },
    cause: error,
  });
}
