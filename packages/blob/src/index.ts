export { type ChunkEntry, type ChunkLocation, ChunkMap, MAX_CHUNK_MAP_BYTES } from './chunk-map.ts';
export { type ChunkRange, chunkRanges } from './chunk-ranges.ts';
export { collect, type Collected, type CollectOptions } from './collection.ts';
export { coveringLayers, type CountedTasks, type Covering } from './covering-layers.ts';
export { type Digest, isDigest, parseDigest } from './digest.ts';
export { DirectoryStore, type DirectoryStoreOptions } from './directory-store.ts';
export { CHUNK_BYTES, layerDigest, MAX_LAYER_CHUNKS, MAX_PACK_BYTES, MAX_RECORD_BYTES } from './layer-format.ts';
export { type CopiedLayer, LayerCopier, type LayerCopierOptions } from './layer-copier.ts';
export type { LayerFiles } from './layer-source.ts';
export { LayerPacker, type LayerPackerOptions, type WrittenPack } from './layer-packer.ts';
export { fetchLayer, type FetchLayerOptions, openLayer, readChunk, type StoredLayer } from './layer-reader.ts';
export { MAX_TRACE_CHUNKS, putTrace, readTrace } from './layer-trace.ts';
export { LayerUploader, type LayerUpload, type LayerUploaderOptions, type UploadedLayer } from './layer-uploader.ts';
export {
  listAll,
  type ListOptions,
  MAX_KEY_CHARS,
  MAX_LIST,
  type ObjectBody,
  type ObjectInfo,
  type ObjectPage,
  type ObjectStore,
  type ObjectStream,
  type PutOptions,
  readObject,
  type ReadObjectOptions,
  type ReadOptions,
  type StoreOptions,
} from './object-store.ts';
export {
  MAX_TRACED_CHUNKS,
  type Relaid,
  type RelaidLayer,
  relayout,
  type RelayoutOptions,
  type TracedLayer,
} from './relayout.ts';
export { S3Store, type S3StoreOptions } from './s3-store.ts';
export { type BlobSettings, checkStore, openStore, parseBlobSettings, storeDirectory } from './store-settings.ts';
export { type StoredEnvironment, StoredEnvironments } from './stored-environments.ts';
