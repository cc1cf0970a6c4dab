import type { ByteString } from './byte-string.ts';
import { type ByteSource, PagedSource } from './byte-source.ts';
import {
  alignUp,
  BLOCK_BITS,
  BLOCK_SIZE,
  CHUNK_ADDRESS_SIZE,
  CHUNK_FORMAT_BITS,
  CHUNK_FORMAT_INDEXES,
  CHUNK_INDEX_SIZE,
  COMPACT_INODE_SIZE,
  EXTENDED_INODE_SIZE,
  INODE_FORMAT_BITS,
  INODE_SLOT_SIZE,
  INODE_VERSION_EXTENDED,
  LAYOUT_CHUNK_BASED,
  LAYOUT_FLAT_INLINE,
  LAYOUT_FLAT_PLAIN,
  MAX_BLOCKS,
  MAX_XATTR_BODY_BYTES,
  NULL_BLOCK,
  XATTR_ENTRY_SIZE,
  XATTR_HEADER_SIZE,
} from './format.ts';
import { corrupt, unsupported } from './image-error.ts';
import { decodeDevice, kindOfMode } from './inode.ts';
import type { Superblock } from './superblock.ts';
import type { FsNode, Metadata } from './tree.ts';
import { decodeXattrEntry, xattrBodyBytes, xattrEntryBytes } from './xattr.ts';

/** An inode as the image has it. */
export interface Inode {
  readonly nid: number;
  readonly kind: FsNode['kind'];
  readonly metadata: Metadata;
  readonly nlink: number;
  readonly sizeBytes: number;
  readonly device: { readonly major: number; readonly minor: number };
  readonly extent: Extent;
}

export type Extent = FlatExtent | ChunkExtent;

/** Where the bytes of a flat inode are: whole blocks, then (inline layout) what is left of them behind the inode. */
interface FlatExtent {
  readonly kind: 'flat';
  readonly startBlock: number;
  readonly blockBytes: number;
  readonly inlineOffset: number;
}

/** Where it stands, for each chunk of a regular file, where the chunk is. */
export interface ChunkExtent {
  readonly kind: 'chunks';
  readonly chunkBytes: number;
  readonly indexOffset: number;
  readonly entryBytes: typeof CHUNK_INDEX_SIZE | typeof CHUNK_ADDRESS_SIZE;
}

export interface ChunkPlace {
  /** 0 is the image itself. */
  readonly device: number;
  readonly startBlock: number;
}

/** Block addresses are 32 bits wide, so no file is longer. */
const MAX_FILE_BYTES = MAX_BLOCKS * BLOCK_SIZE;

interface InodeData {
  readonly at: number;
  readonly kind: FsNode['kind'];
  readonly union: number;
  readonly sizeBytes: number;
  readonly inlineOffset: number;
}

/** Reads inodes one at a time, each field checked against the image before it is used. */
export class InodeReader {
  readonly source: ByteSource;
  readonly #superblock: Superblock;

  constructor(source: ByteSource, superblock: Superblock) {
    this.source = source.isInMemory === true ? source : new PagedSource(source);
    this.#superblock = superblock;
  }

  async read(nid: number): Promise<Inode> {
    const at = this.#superblock.metaBlock * BLOCK_SIZE + nid * INODE_SLOT_SIZE;
    // One read for both forms; behind the last inode there may be less.
    const room = Math.min(EXTENDED_INODE_SIZE, this.source.sizeBytes - at);
    const head = await this.bytes(at, Math.max(COMPACT_INODE_SIZE, room));
    const format = head.readUInt16LE(0);
    if ((format & ~INODE_FORMAT_BITS) !== 0) throw unsupported('inode_format', at);
    const extended = (format & 1) === INODE_VERSION_EXTENDED;
    const inodeBytes = extended ? EXTENDED_INODE_SIZE : COMPACT_INODE_SIZE;
    const raw = extended && head.length < EXTENDED_INODE_SIZE ? await this.bytes(at, EXTENDED_INODE_SIZE) : head;
    const mode = raw.readUInt16LE(4);
    const kind = kindOfMode(mode);
    if (kind === undefined) throw corrupt('An inode has no known type', at + 4);
    const size = extended ? raw.readBigUInt64LE(8) : BigInt(raw.readUInt32LE(8));
    if (size > BigInt(MAX_FILE_BYTES)) throw corrupt('An inode has an impossible size', at + 8);
    const union = raw.readUInt32LE(16);
    const xattrBytes = xattrBodyBytes(raw.readUInt16LE(2));
    const sizeBytes = Number(size);
    const hasData = kind === 'file' || kind === 'directory' || kind === 'symlink';
    const owner = extended
      ? {
          uid: raw.readUInt32LE(24),
          gid: raw.readUInt32LE(28),
          seconds: Number(raw.readBigInt64LE(32)),
          nanoseconds: raw.readUInt32LE(40),
          nlink: raw.readUInt32LE(44),
        }
      : {
          uid: raw.readUInt16LE(24),
          gid: raw.readUInt16LE(26),
          seconds: this.#superblock.buildTime,
          nanoseconds: this.#superblock.buildTimeNanoseconds,
          nlink: raw.readUInt16LE(6),
        };
    return {
      nid,
      kind,
      metadata: {
        mode: mode & 0o7777,
        uid: owner.uid,
        gid: owner.gid,
        mtime: { seconds: owner.seconds, nanoseconds: owner.nanoseconds },
        xattrs: await this.#xattrs(at + inodeBytes, xattrBytes),
      },
      nlink: owner.nlink,
      sizeBytes: hasData ? sizeBytes : 0,
      device: kind === 'char-device' || kind === 'block-device' ? decodeDevice(union) : { major: 0, minor: 0 },
      extent: hasData
        ? this.#extent(format >> 1, { at, kind, union, sizeBytes, inlineOffset: at + inodeBytes + xattrBytes })
        : { kind: 'flat', startBlock: 0, blockBytes: 0, inlineOffset: 0 },
    };
  }

  /** Reads inside the image, or says that the image ends too early. */
  async bytes(offset: number, length: number): Promise<Buffer> {
    if (!Number.isSafeInteger(offset) || offset + length > this.source.sizeBytes) {
      throw corrupt('The image points behind its end', Math.min(offset, Number.MAX_SAFE_INTEGER));
    }
    return this.source.read(offset, length);
  }

  /** Where a chunk of a file is. @returns undefined for a hole */
  async chunk(extent: ChunkExtent, index: number): Promise<ChunkPlace | undefined> {
    const at = extent.indexOffset + index * extent.entryBytes;
    const entry = await this.bytes(at, extent.entryBytes);
    const startBlock = entry.readUInt32LE(extent.entryBytes - 4);
    if (startBlock === NULL_BLOCK) return undefined;
    // The kernel masks what the number of devices does not need.
    const device = extent.entryBytes === CHUNK_INDEX_SIZE ? entry.readUInt16LE(2) : 0;
    if (device > this.#superblock.extraDevices) throw corrupt('A chunk lies on a device that there is not', at);
    return { device, startBlock };
  }

  #extent(layout: number, data: InodeData): Extent {
    const { at, union, sizeBytes, inlineOffset } = data;
    if (layout === LAYOUT_CHUNK_BASED && data.kind === 'file') return this.#chunks(data);
    if (layout !== LAYOUT_FLAT_PLAIN && layout !== LAYOUT_FLAT_INLINE) throw unsupported('data_layout', at);
    const inlineBytes = layout === LAYOUT_FLAT_INLINE ? sizeBytes % BLOCK_SIZE : 0;
    const blockBytes = sizeBytes - inlineBytes;
    if (blockBytes > 0 && union * BLOCK_SIZE + blockBytes > this.source.sizeBytes) {
      throw corrupt('The data of an inode lie behind the end of the image', at + 16);
    }
    if (inlineBytes > 0) {
      if (
        (inlineOffset % BLOCK_SIZE) + inlineBytes > BLOCK_SIZE ||
        inlineOffset + inlineBytes > this.source.sizeBytes
      ) {
        throw corrupt('The inline data of an inode cross a block', at);
      }
    }
    return { kind: 'flat', startBlock: union, blockBytes, inlineOffset };
  }

  #chunks({ at, union, sizeBytes, inlineOffset }: InodeData): ChunkExtent {
    const format = union & 0xffff;
    if ((format & ~(CHUNK_FORMAT_BITS | CHUNK_FORMAT_INDEXES)) !== 0) throw unsupported('chunk_format', at + 16);
    const entryBytes = (format & CHUNK_FORMAT_INDEXES) === 0 ? CHUNK_ADDRESS_SIZE : CHUNK_INDEX_SIZE;
    const chunkBytes = 2 ** (BLOCK_BITS + (format & CHUNK_FORMAT_BITS));
    const indexOffset = alignUp(inlineOffset, entryBytes);
    if (indexOffset + Math.ceil(sizeBytes / chunkBytes) * entryBytes > this.source.sizeBytes) {
      throw corrupt('The index of an inode lies behind the end of the image', at);
    }
    return { kind: 'chunks', chunkBytes, indexOffset, entryBytes };
  }

  async #xattrs(at: number, bodyBytes: number): Promise<Metadata['xattrs']> {
    const xattrs = new Map<ByteString, Uint8Array>();
    if (bodyBytes === 0) return xattrs;
    if (bodyBytes > MAX_XATTR_BODY_BYTES) throw corrupt('The extended attributes of an inode are too long', at);
    const body = await this.bytes(at, bodyBytes);
    const sharedCount = bodyBytes < XATTR_HEADER_SIZE ? 0 : body.readUInt8(4);
    let offset = XATTR_HEADER_SIZE + sharedCount * 4;
    if (offset > bodyBytes) throw corrupt('The extended attributes of an inode end too early', at);
    let sharedBytes = 0;
    for (let index = 0; index < sharedCount; index++) {
      const shared = this.#superblock.xattrBlock * BLOCK_SIZE + body.readUInt32LE(XATTR_HEADER_SIZE + index * 4) * 4;
      const entryBytes = xattrEntryBytes(await this.bytes(shared, XATTR_ENTRY_SIZE));
      sharedBytes += entryBytes;
      if (sharedBytes > MAX_XATTR_BODY_BYTES) throw corrupt('The extended attributes of an inode are too long', at);
      this.#keep(xattrs, await this.bytes(shared, entryBytes), 0, shared);
    }
    while (offset < bodyBytes) offset += this.#keep(xattrs, body, offset, at + offset);
    return xattrs;
  }

  #keep(xattrs: Map<ByteString, Uint8Array>, body: Buffer, offset: number, position: number): number {
    const entry = decodeXattrEntry(body, offset);
    if (entry === undefined) throw corrupt('An extended attribute ends too early', position);
    if (entry.name !== undefined) xattrs.set(entry.name, Uint8Array.from(entry.value));
    return entry.sizeBytes;
  }
}
