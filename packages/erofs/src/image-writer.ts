import { createHash } from 'node:crypto';
import { PlatformError } from '@dsec/contract';
import { ChunkLayout } from './chunk-layout.ts';
import type { WrittenData } from './data-device.ts';
import { type DataLayout, FlatLayout } from './data-layout.ts';
import { PlacedLayout } from './placed-layout.ts';
import { type DirectoryEntry, encodeDirectoryBlock } from './directory-block.ts';
import {
  BLOCK_SIZE,
  INODE_SLOT_SIZE,
  LAYOUT_FLAT_INLINE,
  LAYOUT_FLAT_PLAIN,
  MAX_BLOCKS,
  XATTR_HEADER_SIZE,
} from './format.ts';
import type { ImageOutput } from './image-output.ts';
import { ImageStream } from './image-stream.ts';
import { direntType, encodeDevice, encodeInode, type InodeBody, NO_DATA } from './inode.ts';
import { embeddedBytes, indexOffset, type InodePlan, type MetadataPlan, planMetadata } from './metadata-plan.ts';
import { encodeDeviceTable, encodeFirstBlock, fitsInFirstBlock, type ImageDevice } from './superblock.ts';
import type { DirectoryNode, FileData } from './tree.ts';
import { xattrCount } from './xattr.ts';

export interface ImageOptions {
  /** Larger images, or data, are refused before they are written. @default 1 TiB */
  readonly maxSizeBytes?: number;
  /** Where the bytes of regular files go, in chunks. @default into the image itself */
  readonly data?: ImageOutput;
  /** The devices that the bytes of regular files lie on already; nothing is stored, and the data of every file is placed. */
  readonly devices?: readonly ImageDevice[];
}

export interface WrittenImage {
  readonly sizeBytes: number;
  readonly inodes: number;
  /** Only of an image whose data are apart. */
  readonly data?: WrittenData;
}

const DEFAULT_MAX_SIZE_BYTES = 2 ** 40;

/**
 * Writes an EROFS image in one pass and without root: first the bytes of the regular files as they come ({@link ImageWriter.store}), then,
 * when the whole tree is known, directories and inodes, and the superblock last, so that an unfinished image cannot be mounted.
 *
 *     | superblock | files, in order of arrival | directory blocks | inodes, with short directories and links inside |
 *
 * With an output of their own for the data, the files are not in the image, which then names that output as its one further device (unless
 * all files are empty). An image over devices that are there already has only metadata.
 *
 * Equal input gives equal bytes: the build time is 0 and the UUID comes from the content.
 *
 * @example
 * const writer = new ImageWriter(output);
 * const data = await writer.store(5, chunks);
 * root.children.set(ByteString.fromText('hello'), { kind: 'file', metadata, data });
 * await writer.finish(root);
 */
export class ImageWriter {
  readonly #output: ImageOutput;
  readonly #stream: ImageStream;
  readonly #layout: DataLayout;

  constructor(output: ImageOutput, options: ImageOptions = {}) {
    this.#output = output;
    this.#stream = new ImageStream(output);
    const maxSizeBytes = options.maxSizeBytes ?? DEFAULT_MAX_SIZE_BYTES;
    this.#layout =
      options.devices !== undefined
        ? new PlacedLayout(options.devices)
        : options.data === undefined
          ? new FlatLayout(this.#stream, maxSizeBytes)
          : new ChunkLayout(options.data, maxSizeBytes);
  }

  /**
   * Stores the bytes of one regular file; the result goes into its node. One call at a time.
   *
   * @throws PlatformError `image_unsupported` when the image would grow beyond its bound
   */
  store(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): Promise<FileData> {
    return this.#layout.store(sizeBytes, bytes);
  }

  /**
   * Writes the metadata of the tree and the superblock.
   *
   * @throws PlatformError `invalid_argument` for a tree that EROFS cannot hold
   */
  async finish(root: DirectoryNode): Promise<WrittenImage> {
    const { featureIncompat, devices = [], data } = await this.#layout.end();
    const table = encodeDeviceTable(devices);
    const isTableApart = !fitsInFirstBlock(table);
    if (isTableApart) {
      await this.#stream.append(table);
      await this.#stream.padToBlock();
    }
    const plan = planMetadata(root, (file) => this.#indexBytes(file));
    const firstBlock = this.#stream.position / BLOCK_SIZE;
    const metaBlock = firstBlock + plan.blocks;
    for (const inode of plan.inodes) await this.#writeBlocks(plan, inode);
    const inodesStart = this.#stream.position;
    for (const inode of plan.inodes) {
      await this.#stream.appendZeros(inodesStart + inode.offset - this.#stream.position);
      const numbers = { ino: inode.ino, nlink: inode.nlink, xattrCount: xattrCount(inode.xattrs.length) };
      const body = this.#body(inode, firstBlock);
      await this.#stream.append(encodeInode(inode.node.kind, inode.node.metadata, body, numbers));
      await this.#stream.append(inode.xattrs);
      if (inode.inlineBytes > 0) await this.#stream.append(this.#tail(plan, inode));
      if (body.index !== undefined) {
        await this.#stream.appendZeros(inodesStart + inode.offset + indexOffset(inode) - this.#stream.position);
        await this.#stream.append(body.index);
      }
    }
    // fsck.erofs looks for the header of attributes behind every inode, also behind the last.
    await this.#stream.appendZeros(XATTR_HEADER_SIZE);
    await this.#stream.padToBlock();
    const sizeBytes = this.#stream.position;
    if (sizeBytes / BLOCK_SIZE > MAX_BLOCKS) {
      throw new PlatformError('image_unsupported', 'The image has more blocks than EROFS can count', {
        details: { reason: 'size', limit: MAX_BLOCKS * BLOCK_SIZE },
      });
    }
    const digest = await this.#stream.end();
    await this.#output.truncate(sizeBytes);
    const superblock = encodeFirstBlock(
      {
        featureIncompat,
        rootNid: nid(plan.inodes[0]),
        inodeCount: plan.inodes.length,
        blocks: sizeBytes / BLOCK_SIZE,
        metaBlock,
        uuid: contentUuid(data === undefined ? digest : bothOf(digest, data.digest)),
      },
      { table, isApart: isTableApart },
    );
    await this.#output.write(superblock, 0);
    return { sizeBytes, inodes: plan.inodes.length, ...(data === undefined ? {} : { data }) };
  }

  #indexBytes(file: FileData): number {
    return file.placed?.kind === 'embedded' ? 0 : (this.#layout.describe(file).index?.length ?? 0);
  }

  /** Where the inode's data are. Directories and links are always in the image itself, whatever the layout of files. */
  #body(inode: InodePlan, firstBlock: number): InodeBody {
    const { node } = inode;
    switch (node.kind) {
      case 'file':
        if (node.data.placed?.kind !== 'embedded') return this.#layout.describe(node.data);
        return inImage(inode, firstBlock, node.data.sizeBytes);
      case 'symlink':
        return inImage(inode, firstBlock, node.target.length);
      case 'directory':
        return inImage(inode, firstBlock, inode.directory?.packing.sizeBytes ?? 0);
      case 'char-device':
      case 'block-device':
        return { layout: LAYOUT_FLAT_PLAIN, union: encodeDevice(node.major, node.minor), sizeBytes: 0 };
      case 'fifo':
      case 'socket':
        return { layout: LAYOUT_FLAT_PLAIN, union: 0, sizeBytes: 0 };
    }
  }

  /** Writes the whole blocks of a directory (or of a link or a file that does not fit beside its inode). */
  async #writeBlocks(plan: MetadataPlan, inode: InodePlan): Promise<void> {
    for (let index = 0; index < inode.blocks; index++) {
      const embedded = embeddedBytes(inode.node)?.subarray(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE);
      await this.#stream.append(embedded ?? directoryBlock(plan, inode, index));
      await this.#stream.padToBlock();
    }
  }

  #tail(plan: MetadataPlan, inode: InodePlan): Buffer {
    return embeddedBytes(inode.node)?.subarray(inode.blocks * BLOCK_SIZE) ?? directoryBlock(plan, inode, inode.blocks);
  }
}

/** Of what is in the image itself: in whole blocks, and the rest, if it fits there, behind the inode. */
const inImage = (inode: InodePlan, firstBlock: number, sizeBytes: number): InodeBody => ({
  layout: inode.inlineBytes > 0 ? LAYOUT_FLAT_INLINE : LAYOUT_FLAT_PLAIN,
  union: inode.blocks === 0 ? NO_DATA.union : firstBlock + inode.firstBlock,
  sizeBytes,
});

const nid = (inode: InodePlan | undefined): number => (inode?.offset ?? 0) / INODE_SLOT_SIZE;

const directoryBlock = (plan: MetadataPlan, inode: InodePlan, index: number): Buffer => {
  const { node, directory } = inode;
  if (node.kind !== 'directory' || directory === undefined) {
    throw new PlatformError('internal', 'Only a directory has directory blocks');
  }
  const { starts } = directory.packing;
  const entries = directory.names.slice(starts[index], starts[index + 1]).map((name): DirectoryEntry => {
    const child = node.children.get(name);
    if (child === undefined) {
      // . and .. : the root is its own parent
      const target = name === '..' ? (directory.parent ?? inode) : inode;
      return { name, nid: nid(target), fileType: direntType('directory') };
    }
    return { name, nid: nid(plan.byNode.get(child)), fileType: direntType(child.kind) };
  });
  return encodeDirectoryBlock(entries);
};

const bothOf = (metadata: Uint8Array, data: Uint8Array): Buffer =>
  createHash('sha256').update(metadata).update(data).digest();

/** A UUID of version 8 (RFC 9562: made by a rule of one's own) from the first half of the digest. */
const contentUuid = (digest: Uint8Array): Uint8Array => {
  const uuid = Uint8Array.from(digest.subarray(0, 16));
  uuid[6] = ((uuid[6] ?? 0) & 0x0f) | 0x80;
  uuid[8] = ((uuid[8] ?? 0) & 0x3f) | 0x80;
  return uuid;
};
