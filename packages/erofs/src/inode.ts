import {
  EXTENDED_INODE_SIZE,
  INODE_VERSION_EXTENDED,
  NULL_BLOCK,
  S_IFBLK,
  S_IFCHR,
  S_IFDIR,
  S_IFIFO,
  S_IFLNK,
  S_IFMT,
  S_IFREG,
  S_IFSOCK,
} from './format.ts';
import type { FsNode, Metadata } from './tree.ts';

/** What an inode says about its data: the layout, and the 32-bit union that the layout (or the device number) uses. */
export interface InodeBody {
  readonly layout: number;
  readonly union: number;
  readonly sizeBytes: number;
  /** Follows inode and attributes, from the next multiple of 8. */
  readonly index?: Buffer;
}

/** The type bits of st_mode, and the type code that directory entries carry. */
const typeCodes: Record<FsNode['kind'], { readonly mode: number; readonly dirent: number }> = {
  file: { mode: S_IFREG, dirent: 1 },
  directory: { mode: S_IFDIR, dirent: 2 },
  'char-device': { mode: S_IFCHR, dirent: 3 },
  'block-device': { mode: S_IFBLK, dirent: 4 },
  fifo: { mode: S_IFIFO, dirent: 5 },
  socket: { mode: S_IFSOCK, dirent: 6 },
  symlink: { mode: S_IFLNK, dirent: 7 },
};

export const direntType = (kind: FsNode['kind']): number => typeCodes[kind].dirent;

export const kindOfMode = (mode: number): FsNode['kind'] | undefined => {
  for (const kind of Object.keys(typeCodes) as FsNode['kind'][]) {
    // the keys of this literal
    if (typeCodes[kind].mode === (mode & S_IFMT)) return kind;
  }
  return undefined;
};

/** Linux's `new_encode_dev`: 12 bits of major, 20 bits of minor. */
export const encodeDevice = (major: number, minor: number): number =>
  ((minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)) >>> 0;

export const decodeDevice = (device: number): { readonly major: number; readonly minor: number } => ({
  major: (device >>> 8) & 0xfff,
  minor: (device & 0xff) | ((device >>> 12) & 0xfff00),
});

export const NO_DATA: InodeBody = { layout: 0, union: NULL_BLOCK, sizeBytes: 0 };

/**
 * Encodes the 64-byte form of an inode. It is used for every inode: only it has 32-bit owners and a modification time of its own.
 *
 * @param ino the number that 32-bit programs see
 */
export const encodeInode = (
  kind: FsNode['kind'],
  metadata: Metadata,
  body: InodeBody,
  numbers: { readonly ino: number; readonly nlink: number; readonly xattrCount: number },
): Buffer => {
  // Out of the pool that Node has for small buffers: there are as many as files.
  const inode = Buffer.allocUnsafe(EXTENDED_INODE_SIZE).fill(0);
  inode.writeUInt16LE(INODE_VERSION_EXTENDED | (body.layout << 1), 0);
  inode.writeUInt16LE(numbers.xattrCount, 2);
  inode.writeUInt16LE(typeCodes[kind].mode | (metadata.mode & 0o7777), 4);
  inode.writeBigUInt64LE(BigInt(body.sizeBytes), 8);
  inode.writeUInt32LE(body.union, 16);
  inode.writeUInt32LE(numbers.ino, 20);
  inode.writeUInt32LE(metadata.uid, 24);
  inode.writeUInt32LE(metadata.gid, 28);
  inode.writeBigInt64LE(BigInt(metadata.mtime.seconds), 32);
  inode.writeUInt32LE(metadata.mtime.nanoseconds, 40);
  inode.writeUInt32LE(numbers.nlink, 44);
  return inode;
};
