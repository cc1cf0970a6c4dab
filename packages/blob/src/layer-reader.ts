/** Layers as they lie in a blob store: metadata and chunk map checked and brought to the node, data read chunk by chunk. */
import { createHash, type Hash } from 'node:crypto';
import { mkdir, open, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { pipeline } from 'node:stream';
import { createZstdDecompress } from 'node:zlib';
import { PlatformError } from '@dsec/contract';
import { type Random, syncDirectory, throwIfAborted } from '@dsec/kit';
import { decodeChunk } from './chunk-codec.ts';
import { type ChunkLocation, ChunkMap, MAX_CHUNK_MAP_BYTES } from './chunk-map.ts';
import { type Digest, parseDigest } from './digest.ts';
import { CHUNK_BYTES, corrupt, MAX_METADATA_BYTES, MAX_RECORD_BYTES } from './layer-format.ts';
import { chunkMapKey, metadataKey, packKey, recordKey } from './layer-keys.ts';
import { type ObjectStore, readObject, type StoreOptions } from './object-store.ts';
import { errno } from './store-error.ts';

/** What the store says about a layer; the map is of its form, but only with the metadata is it known to be the layer's. */
export interface StoredLayer {
  readonly layer: Digest;
  readonly record: Buffer;
  readonly map: ChunkMap;
}

/** @throws PlatformError `layer_not_found`, `layer_corrupt`, `blob_unavailable` */
export async function openLayer(store: ObjectStore, layer: Digest, options: StoreOptions = {}): Promise<StoredLayer> {
  const record = await readObject(store, recordKey(layer), { ...options, maxBytes: MAX_RECORD_BYTES });
  if (record === undefined) throw notFound(layer);
  if (record.length > MAX_RECORD_BYTES) throw corrupt({ layer, digest: layer }, 'the record is too large');
  return { layer, record, map: await readChunkMap(store, layer, options) };
}

/** The chunk map that a store has of a layer, if it is good for anything. @throws PlatformError `blob_unavailable` */
export async function findChunkMap(
  store: ObjectStore,
  layer: Digest,
  options: StoreOptions = {},
): Promise<ChunkMap | undefined> {
  try {
    return await readChunkMap(store, layer, options);
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'layer_corrupt') return undefined;
    throw error;
  }
}

/** @throws PlatformError `layer_corrupt` when it is not there either */
async function readChunkMap(store: ObjectStore, layer: Digest, options: StoreOptions): Promise<ChunkMap> {
  const bytes = await readObject(store, chunkMapKey(layer), { ...options, maxBytes: MAX_CHUNK_MAP_BYTES });
  if (bytes === undefined) throw corrupt({ layer, digest: layer }, 'the chunk map is not there');
  return ChunkMap.decode(bytes, layer);
}

/**
 * One chunk of a layer's data, checked; a hole is zeros.
 * @throws PlatformError `layer_corrupt` (naming the chunk, or its pack when that is not there), `blob_unavailable`
 */
export async function readChunk(
  store: ObjectStore,
  from: Pick<StoredLayer, 'layer' | 'map'>,
  index: number,
  options: StoreOptions = {},
): Promise<Buffer> {
  const { layer, map } = from;
  if (!Number.isInteger(index) || index < 0 || index >= map.chunks) {
    throw new PlatformError('invalid_argument', `layer ${layer} has no chunk ${index}`, {
      details: { field: 'index' },
    });
  }
  const location = map.at(index);
  if (location === undefined) return Buffer.alloc(Math.min(CHUNK_BYTES, map.dataBytes - index * CHUNK_BYTES));
  return await decodeChunk(await readStored(store, layer, location, options), location, layer);
}

/** The stored bytes of a chunk, unchecked. @throws PlatformError `layer_corrupt` when its pack is not there, `blob_unavailable` */
export async function readStored(
  store: ObjectStore,
  layer: Digest,
  location: ChunkLocation,
  options: StoreOptions,
): Promise<Buffer> {
  const { pack, offset, storedBytes } = location;
  const range = { offset, length: storedBytes };
  const stored = await readObject(store, packKey(pack), { ...options, range, maxBytes: storedBytes });
  if (stored === undefined) throw corrupt({ layer, digest: pack }, 'the pack is not there');
  return stored;
}

export interface FetchLayerOptions extends StoreOptions {
  /** Where `rootfs.erofs`, `chunks` and `layer.json` come to be; its parent must exist. */
  readonly directory: string;
  /** For the name of the directory while it is filled, beside it. */
  readonly random: Random;
}

/**
 * Brings a layer to the node but for its data: the directory is there with everything in it, checked and durable, or not at all; one that
 * is there already stays. `data` is made by whoever fills it, since without that a reader would take its holes for zeros.
 * @throws PlatformError `layer_not_found`, `layer_corrupt`, `blob_unavailable`, `disk_full` (of the node), `cancelled`
 */
export async function fetchLayer(store: ObjectStore, layer: Digest, options: FetchLayerOptions): Promise<StoredLayer> {
  const stored = await openLayer(store, layer, options);
  const { directory, random } = options;
  const unfinished = join(dirname(directory), `.${basename(directory)}.${random.base36(12)}`);
  try {
    await mkdir(unfinished);
    const metadata = await fetchMetadata(store, layer, join(unfinished, 'rootfs.erofs'), options);
    const digest = stored.map.layerDigest(metadata);
    if (digest !== layer) throw corrupt({ layer, digest }, 'metadata and chunk map are those of another layer');
    await writeFile(join(unfinished, 'chunks'), stored.map.bytes, { flush: true });
    await writeFile(join(unfinished, 'layer.json'), stored.record, { flush: true });
    await syncDirectory(unfinished);
    await rename(unfinished, directory);
    await syncDirectory(dirname(directory));
  } catch (error) {
    await rm(unfinished, { recursive: true, force: true });
    // Somebody else was faster; what is there was checked too.
    if (['ENOTEMPTY', 'EEXIST'].includes(errno(error) ?? '')) return stored;
    throw localError(layer, error);
  }
  return stored;
}

/** Writes `rootfs.erofs`; returns its digest. */
async function fetchMetadata(store: ObjectStore, layer: Digest, path: string, options: StoreOptions): Promise<Digest> {
  await using frame = await store.get(metadataKey(layer), options);
  if (frame === undefined) throw corrupt({ layer, digest: layer }, 'the metadata are not there');
  const hash = createHash('sha256');
  await using file = await open(path, 'wx', 0o644);
  for await (const part of plainMetadata(frame, layer, hash)) {
    throwIfAborted(options.signal);
    await file.writeFile(part);
  }
  await file.sync();
  return parseDigest(hash.digest('hex'));
}

async function* plainMetadata(frame: AsyncIterable<Uint8Array>, layer: Digest, hash: Hash): AsyncGenerator<Buffer> {
  const plain = createZstdDecompress();
  pipeline(frame, plain, () => undefined);
  let length = 0;
  try {
    for await (const part of plain) {
      const bytes = part as Buffer;
      length += bytes.length;
      if (length > MAX_METADATA_BYTES) throw corrupt({ layer, digest: layer }, 'the metadata are too large');
      hash.update(bytes);
      yield bytes;
    }
  } catch (error) {
    if (PlatformError.is(error) || !/^Z(?:STD)?_/.test(errno(error) ?? '')) throw error;
    throw corrupt({ layer, digest: layer }, 'the metadata are not a zstd frame', error);
  }
}

const notFound = (layer: Digest): PlatformError =>
  new PlatformError('layer_not_found', `layer ${layer} is not in the blob store`, { details: { layer } });

/** What the node's own disk says. */
function localError(layer: Digest, error: unknown): unknown {
  const reason = errno(error);
  if (reason !== 'ENOSPC' && reason !== 'EDQUOT') return error;
  return new PlatformError('disk_full', `layer ${layer} does not fit on the node`, {
    details: { layer, errno: reason },
    cause: error,
  });
}
