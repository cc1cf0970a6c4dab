/**
 * The on-disk numbers of EROFS (Linux `fs/erofs/erofs_fs.h`). All integers are little-endian.
 *
 * Positions of inodes are given as a nid: `metaBlock * 4096 + nid * 32` is the byte offset of the inode.
 */
export const BLOCK_BITS = 12;
export const BLOCK_SIZE = 1 << BLOCK_BITS;

export const SUPER_OFFSET = 1024;
export const SUPER_SIZE = 128;
export const SUPER_MAGIC = 0xe0f5e1e2;

export const FEATURE_COMPAT_SB_CHECKSUM = 0x1;
/** Extended inodes record the modification time (without it: the change time). */
export const FEATURE_COMPAT_MTIME = 0x2;
/** Says how lz4 data would be padded: harmless in an image that has no compressed file. */
export const FEATURE_INCOMPAT_ZERO_PADDING = 0x1;

/** Inodes may be chunk-based. */
export const FEATURE_INCOMPAT_CHUNKED_FILE = 0x4;
/** A table names further devices. */
export const FEATURE_INCOMPAT_DEVICE_TABLE = 0x8;

/** One entry of the device table: a tag of 64 bytes, the number of blocks, and what stays zero. */
export const DEVICE_SLOT_SIZE = 128;
export const DEVICE_TAG_SIZE = 64;
/** Their number has 16 bits, as has the device of a chunk, and 0 is the image itself. */
export const MAX_DEVICES = 0xffff;

export const INODE_SLOT_SIZE = 32;
export const COMPACT_INODE_SIZE = 32;
export const EXTENDED_INODE_SIZE = 64;
/** Bit 0 of i_format: 1 = extended inode. Bits 1-3: the data layout. */
export const INODE_VERSION_EXTENDED = 1;
export const INODE_FORMAT_BITS = 0x0f;

/** How the bytes of an inode are found (bits 1-3 of i_format). */
export const LAYOUT_FLAT_PLAIN = 0;
export const LAYOUT_FLAT_INLINE = 2;
export const LAYOUT_CHUNK_BASED = 4;

/** What a chunk-based inode says: log2 of the blocks in a chunk, and whether 8-byte indexes (with a device) follow or 4-byte addresses. */
export const CHUNK_FORMAT_BITS = 0x1f;
export const CHUNK_FORMAT_INDEXES = 0x20;
/** Bytes of one index: 2 that stay zero, the device (2), the first block (4). */
export const CHUNK_INDEX_SIZE = 8;
export const CHUNK_ADDRESS_SIZE = 4;

/** The block address that stands for "none". */
export const NULL_BLOCK = 0xffffffff;
/** Block addresses are 32 bits wide. */
export const MAX_BLOCKS = 0xffffffff;

export const DIRENT_SIZE = 12;
export const MAX_NAME_BYTES = 255;
/** PATH_MAX less its NUL: the kernel makes no longer symbolic link. */
export const MAX_SYMLINK_BYTES = 4095;

export const XATTR_HEADER_SIZE = 12;
export const XATTR_ENTRY_SIZE = 4;
export const MAX_XATTR_NAME_BYTES = 255;
export const MAX_XATTR_VALUE_BYTES = 0xffff;
/** The kernel lists at most 64 KiB of names and tools pass values of at most 64 KiB; one inode never needs more than this. */
export const MAX_XATTR_BODY_BYTES = 128 * 1024;

export const S_IFMT = 0o170000;
export const S_IFSOCK = 0o140000;
export const S_IFLNK = 0o120000;
export const S_IFREG = 0o100000;
export const S_IFBLK = 0o060000;
export const S_IFDIR = 0o040000;
export const S_IFCHR = 0o020000;
export const S_IFIFO = 0o010000;

export const alignUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;
