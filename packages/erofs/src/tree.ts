import type { ByteString } from './byte-string.ts';

/**
 * A file system tree in memory: what an image is made from. Only metadata are held; the bytes of regular files are already in the image
 * when their node is made. A hard link is one node under several names. Trees are built by their owner and read by the writer, so nodes are
 * mutable.
 */
export type FsNode = DirectoryNode | FileNode | SymlinkNode | SpecialNode;

export interface Timestamp {
  /** Whole seconds since 1970, negative before. */
  readonly seconds: number;
  /** 0 to 999,999,999, counted forward from `seconds`. */
  readonly nanoseconds: number;
}

export interface Metadata {
  /** The twelve permission bits: rwx for three, setuid, setgid, sticky. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtime: Timestamp;
  /** By full name (`security.capability`). */
  readonly xattrs: ReadonlyMap<ByteString, Uint8Array>;
}

export interface DirectoryNode {
  readonly kind: 'directory';
  metadata: Metadata;
  readonly children: Map<ByteString, FsNode>;
}

export interface FileNode {
  readonly kind: 'file';
  metadata: Metadata;
  readonly data: FileData;
}

export interface SymlinkNode {
  readonly kind: 'symlink';
  metadata: Metadata;
  readonly target: ByteString;
}

export interface SpecialNode {
  readonly kind: 'char-device' | 'block-device' | 'fifo' | 'socket';
  metadata: Metadata;
  /** 0 unless a device. */
  readonly major: number;
  readonly minor: number;
}

/** Where a file's bytes are: what the data layout that stored them returned. */
export interface FileData {
  readonly sizeBytes: number;
  /** The first of the consecutive 4 KiB blocks; unused when the file is empty, and when `placed` says where they are. */
  readonly startBlock: number;
  /** For a file that another image describes. */
  readonly placed?: PlacedData;
}

/** Bytes that lie on devices already, each chunk where its index says; or so few that they go among the metadata. */
type PlacedData =
  | {
      readonly kind: 'chunks';
      /** log2 of the blocks of a chunk. */
      readonly chunkBits: number;
      /** As it stands on disk: 8 bytes for each chunk. */
      readonly index: Buffer;
    }
  | { readonly kind: 'embedded'; readonly bytes: Buffer };

export const EMPTY_FILE: FileData = { sizeBytes: 0, startBlock: 0 };

export const EPOCH: Timestamp = { seconds: 0, nanoseconds: 0 };

const NO_XATTRS: ReadonlyMap<ByteString, Uint8Array> = new Map();

/** @returns metadata owned by root with the time 0, for what no source describes */
export const defaultMetadata = (mode: number): Metadata => ({ mode, uid: 0, gid: 0, mtime: EPOCH, xattrs: NO_XATTRS });

export const newDirectory = (metadata: Metadata = defaultMetadata(0o755)): DirectoryNode => ({
  kind: 'directory',
  metadata,
  children: new Map(),
});
