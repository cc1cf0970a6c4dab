import { PlatformError } from '@dsec/contract';
import { ByteString } from './byte-string.ts';
import { type DirectoryPacking, packNames } from './directory-block.ts';
import {
  alignUp,
  BLOCK_SIZE,
  CHUNK_INDEX_SIZE,
  EXTENDED_INODE_SIZE,
  INODE_SLOT_SIZE,
  MAX_NAME_BYTES,
  MAX_SYMLINK_BYTES,
} from './format.ts';
import type { DirectoryNode, FileData, FsNode, Metadata } from './tree.ts';
import { encodeXattrs } from './xattr.ts';

/** The root is the first inode, because the superblock has 16 bits for its nid; nid 0 stays unused, for no file has inode number 0. */
const FIRST_INODE_OFFSET = 2 * INODE_SLOT_SIZE;

const DOT = ByteString.fromText('.');
const DOT_DOT = ByteString.fromText('..');

/** One inode and where it goes. Offsets count from the start of the inode area. */
export interface InodePlan {
  readonly node: FsNode;
  readonly ino: number;
  nlink: number;
  readonly offset: number;
  readonly xattrs: Buffer;
  /** Bytes that follow inode and attributes in the same block: a symbolic link's target, the end of a directory, a small file. */
  readonly inlineBytes: number;
  /** Bytes that follow from the next multiple of 8: where a file's data are, if the inode has no room to say it. */
  readonly indexBytes: number;
  /** Directories, and links and files that do not fit there: whole blocks before the inode area, counted from its data area's start. */
  readonly firstBlock: number;
  readonly blocks: number;
  readonly directory?: PlannedDirectory;
}

interface PlannedDirectory {
  readonly packing: DirectoryPacking;
  /** Sorted, with `.` and `..`. */
  readonly names: readonly ByteString[];
  readonly parent: InodePlan | undefined;
}

export interface MetadataPlan {
  /** In the order of their offsets; the root is first. */
  readonly inodes: readonly InodePlan[];
  readonly byNode: ReadonlyMap<FsNode, InodePlan>;
  /** Blocks that directories and long links fill before the inode area. */
  readonly blocks: number;
  /** Bytes of the inode area. */
  readonly sizeBytes: number;
}

/**
 * Gives every inode its place: breadth first, so that the inodes of one directory lie together, and by sorted names, so that equal trees
 * give equal images.
 *
 * @param indexBytes how long the index is that a file's inode needs behind it
 * @throws PlatformError `invalid_argument` for a tree that no file system can hold: bad names, a directory under two names
 */
export const planMetadata = (root: DirectoryNode, indexBytes: (data: FileData) => number): MetadataPlan => {
  const inodes: InodePlan[] = [];
  const byNode = new Map<FsNode, InodePlan>();
  let nextOffset = FIRST_INODE_OFFSET;
  let nextBlock = 0;

  const add = (node: FsNode, parent: InodePlan | undefined): InodePlan => {
    checkMetadata(node.metadata);
    const xattrs = encodeXattrs(node.metadata.xattrs);
    const directory = node.kind === 'directory' ? planDirectory(node, parent) : undefined;
    const dataBytes = directory?.packing.sizeBytes ?? embeddedBytes(node)?.length ?? 0;
    const tail = dataBytes % BLOCK_SIZE;
    const fits = tail > 0 && EXTENDED_INODE_SIZE + (xattrs.length % BLOCK_SIZE) + tail <= BLOCK_SIZE;
    const inlineBytes = fits ? tail : 0;
    const blocks = Math.ceil((dataBytes - inlineBytes) / BLOCK_SIZE);
    const offset = placeInode(nextOffset, xattrs.length, inlineBytes);
    const plan: InodePlan = {
      node,
      ino: inodes.length + 1,
      nlink: node.kind === 'directory' ? 2 : 1,
      offset,
      xattrs,
      inlineBytes,
      indexBytes: node.kind === 'file' ? indexBytes(node.data) : 0,
      firstBlock: nextBlock,
      blocks,
      ...(directory === undefined ? {} : { directory }),
    };
    nextOffset = offset + alignUp(indexOffset(plan) + plan.indexBytes, INODE_SLOT_SIZE);
    nextBlock += blocks;
    inodes.push(plan);
    byNode.set(node, plan);
    return plan;
  };

  add(root, undefined);
  for (const plan of inodes) {
    // `inodes` grows while it is walked: that is the breadth-first queue.
    if (plan.node.kind !== 'directory') continue;
    for (const name of plan.directory?.names ?? []) {
      const child = plan.node.children.get(name);
      if (child === undefined) continue; // . and ..
      const known = byNode.get(child);
      if (child.kind === 'directory') {
        if (known !== undefined) throw badTree('A directory stands under two names', name);
        plan.nlink++;
        add(child, plan);
      } else if (known === undefined) {
        add(child, plan);
      } else {
        known.nlink++;
      }
    }
  }
  return { inodes, byNode, blocks: nextBlock, sizeBytes: nextOffset };
};

/** Where, counted from the inode, its index begins (or would): behind what else follows it. */
export const indexOffset = ({ xattrs, inlineBytes }: Pick<InodePlan, 'xattrs' | 'inlineBytes'>): number =>
  alignUp(EXTENDED_INODE_SIZE + xattrs.length + inlineBytes, CHUNK_INDEX_SIZE);

/** The first place at or after `offset` where the inode does not cross a block, and neither do its inline bytes: the kernel wants that. */
const placeInode = (offset: number, xattrBytes: number, inlineBytes: number): number => {
  const room = BLOCK_SIZE - (offset % BLOCK_SIZE);
  const inlineStart = (offset + EXTENDED_INODE_SIZE + xattrBytes) % BLOCK_SIZE;
  const crosses = room < EXTENDED_INODE_SIZE || (inlineBytes > 0 && inlineStart + inlineBytes > BLOCK_SIZE);
  return crosses ? alignUp(offset + 1, BLOCK_SIZE) : offset;
};

const planDirectory = (node: DirectoryNode, parent: InodePlan | undefined): PlannedDirectory => {
  const names = [...node.children.keys(), DOT, DOT_DOT].sort(ByteString.compare);
  for (const [index, name] of names.entries()) {
    if (name.length === 0 || name.length > MAX_NAME_BYTES) throw badTree('A name is empty or too long', name);
    if (name.includes('/') || name.includes('\0')) throw badTree('A name has a slash or a NUL', name);
    if (name === names[index + 1]) throw badTree('A name is . or ..', name);
  }
  return { packing: packNames(names), names, parent };
};

/** The bytes of a node that lie among the metadata, directories apart: the target of a link, and what a file has there. */
export const embeddedBytes = (node: FsNode): Buffer | undefined => {
  if (node.kind === 'file') return node.data.placed?.kind === 'embedded' ? node.data.placed.bytes : undefined;
  if (node.kind !== 'symlink') return undefined;
  const { target } = node;
  if (target.length === 0 || target.length > MAX_SYMLINK_BYTES || target.includes('\0')) {
    throw badTree('The target of a symbolic link is empty or too long, or has a NUL', target);
  }
  return ByteString.toBytes(target);
};

const MAX_ID = 0xffffffff;
const MAX_NANOSECONDS = 999_999_999;

const checkMetadata = ({ uid, gid, mtime }: Metadata): void => {
  const isWithin = (value: number, max: number): boolean => Number.isInteger(value) && value >= 0 && value <= max;
  const areFit = isWithin(uid, MAX_ID) && isWithin(gid, MAX_ID) && isWithin(mtime.nanoseconds, MAX_NANOSECONDS);
  if (!areFit || !Number.isSafeInteger(mtime.seconds)) {
    throw new PlatformError('invalid_argument', 'An owner or a time is out of its range', { details: { uid, gid } });
  }
};

const badTree = (message: string, name: ByteString): PlatformError =>
  new PlatformError('invalid_argument', message, { details: { name: ByteString.toText(name) } });
