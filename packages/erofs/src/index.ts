export { bufferSource, type ByteSource, fileSource } from './byte-source.ts';
export { ByteString } from './byte-string.ts';
export { CHUNK_DIGEST_BYTES, DATA_CHUNK_BYTES, type WrittenData } from './data-device.ts';
export type { DirectoryEntry } from './directory-block.ts';
export type { ImageOutput } from './image-output.ts';
export { type ImageEntry, ImageReader, type ReadOptions } from './image-reader.ts';
export { type ImageOptions, ImageWriter, type WrittenImage } from './image-writer.ts';
export type { Inode } from './inode-reader.ts';
export { MAX_NAME_BYTES, MAX_SYMLINK_BYTES, MAX_XATTR_VALUE_BYTES } from './format.ts';
export {
  defaultMetadata,
  type DirectoryNode,
  EMPTY_FILE,
  EPOCH,
  type FileData,
  type FileNode,
  type FsNode,
  type Metadata,
  newDirectory,
  type SpecialNode,
  type SymlinkNode,
  type Timestamp,
} from './tree.ts';
export type { ImageDevice } from './superblock.ts';
export { isStorableXattr } from './xattr.ts';
