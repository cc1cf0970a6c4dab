import { PlatformError } from '@dsec/contract';
import { ByteString } from './byte-string.ts';
import type { ByteSource } from './byte-source.ts';
import { decodeDirectoryBlock, type DirectoryEntry } from './directory-block.ts';
import {
  BLOCK_BITS,
  BLOCK_SIZE,
  DEVICE_SLOT_SIZE,
  CHUNK_INDEX_SIZE,
  FEATURE_INCOMPAT_CHUNKED_FILE,
  FEATURE_INCOMPAT_DEVICE_TABLE,
  FEATURE_INCOMPAT_ZERO_PADDING,
  MAX_SYMLINK_BYTES,
  NULL_BLOCK,
  SUPER_OFFSET,
} from './format.ts';
import { corrupt, unsupported } from './image-error.ts';
import { type ChunkExtent, type Inode, InodeReader } from './inode-reader.ts';
import { EMPTY_FILE, type FileData } from './tree.ts';
import { decodeDeviceSlot, decodeFirstBlock, type ImageDevice, type Superblock } from './superblock.ts';

/** No real directory comes near: a million names of 250 bytes. */
const MAX_DIRECTORY_BYTES = 256 * 1024 * 1024;
/** As deep as a path of 4095 bytes can go. */
const MAX_DEPTH = 2048;
/** As in Linux. */
const MAX_LINKS_FOLLOWED = 40;
const READ_BYTES = 1024 * 1024;
const KNOWN_FEATURES = FEATURE_INCOMPAT_ZERO_PADDING | FEATURE_INCOMPAT_CHUNKED_FILE | FEATURE_INCOMPAT_DEVICE_TABLE;
const hole = Buffer.alloc(READ_BYTES);

export interface ReadOptions {
  /** The first device that the image names. Without its devices everything but the bytes of the files on them can be read. */
  readonly data?: ByteSource;
  /** All of the devices, for an image that names several. */
  readonly devices?: readonly ByteSource[];
}

/** What one walk has been through. */
interface Walked {
  readonly directories: Set<number>;
  bytes: number;
}

export interface ImageEntry {
  /** Without a leading slash; the root is the empty string. */
  readonly path: ByteString;
  readonly inode: Inode;
}

/**
 * Lists and reads an EROFS image without mounting it. The image is not trusted: every offset and length is checked, walks end even when
 * directories form a ring, and what is wrong comes as a PlatformError with the offset of it.
 *
 * Uncompressed images with 4 KiB blocks are read; others are refused as `image_unsupported`.
 *
 * @example
 * const image = await ImageReader.open(await fileSource(file));
 * for await (const { path, inode } of image.walk()) show(ByteString.toText(path), inode.sizeBytes);
 */
export class ImageReader {
  readonly superblock: Superblock;
  /** The further devices that the image names, in order. */
  readonly devices: readonly ImageDevice[];
  readonly #inodes: InodeReader;
  readonly #source: ByteSource;
  readonly #data: readonly ByteSource[];

  private constructor(source: ByteSource, superblock: Superblock, on: Devices) {
    this.#source = source;
    this.#data = on.data;
    this.devices = on.devices;
    this.superblock = superblock;
    this.#inodes = new InodeReader(source, superblock);
  }

  /** @throws PlatformError `image_corrupt` or `image_unsupported`, with `details.offset` */
  static async open(source: ByteSource, options: ReadOptions = {}): Promise<ImageReader> {
    const block = await source.read(0, Math.min(BLOCK_SIZE, source.sizeBytes));
    const superblock = decodeFirstBlock(block);
    if (superblock === 'truncated') throw corrupt('The image ends before its superblock does', source.sizeBytes);
    if (superblock === 'magic') throw corrupt('This is no EROFS image', SUPER_OFFSET);
    if (superblock === 'checksum') throw corrupt('The checksum of the superblock is wrong', SUPER_OFFSET + 4);
    if (superblock.blockBits !== BLOCK_BITS) throw unsupported('block_size', SUPER_OFFSET + 12);
    if ((superblock.featureIncompat & ~KNOWN_FEATURES) !== 0) {
      throw unsupported('features', SUPER_OFFSET + 80);
    }
    const devices = await devicesOf(source, superblock);
    const data = options.devices ?? (options.data === undefined ? [] : [options.data]);
    for (const [index, { blocks }] of devices.entries()) {
      const given = data[index];
      if (given !== undefined && given.sizeBytes < blocks * BLOCK_SIZE) {
        throw corrupt('The data are shorter than the image says', superblock.deviceTableOffset);
      }
    }
    return new ImageReader(source, superblock, { devices, data });
  }

  async root(): Promise<Inode> {
    const root = await this.#inodes.read(this.superblock.rootNid);
    if (root.kind !== 'directory') throw corrupt('The root of the image is no directory', SUPER_OFFSET + 14);
    return root;
  }

  inode(nid: number): Promise<Inode> {
    return this.#inodes.read(nid);
  }

  /** The entries of a directory in stored order, without `.` and `..`. */
  async *entries(directory: Inode): AsyncGenerator<DirectoryEntry> {
    if (directory.sizeBytes > MAX_DIRECTORY_BYTES)
      throw corrupt('A directory is impossibly large', this.#at(directory));
    let at = 0;
    while (at < directory.sizeBytes) {
      const length = Math.min(BLOCK_SIZE, directory.sizeBytes - at);
      const position = this.#position(directory, at);
      const entries = decodeDirectoryBlock(await this.#inodes.bytes(position, length));
      if (typeof entries === 'number') throw corrupt('A directory block is damaged', position + entries);
      for (const entry of entries) {
        if (entry.name === '.' || entry.name === '..') continue;
        if (entry.name.length === 0 || entry.name.includes('/')) throw corrupt('A directory has a bad name', position);
        yield entry;
      }
      at += length;
    }
  }

  /** Every entry below `from` (or the root), parents before children. */
  async *walk(from?: Inode): AsyncGenerator<ImageEntry> {
    const root = from ?? (await this.root());
    yield { path: ByteString.fromText(''), inode: root };
    yield* this.#walkInto(root, [], { directories: new Set([root.nid]), bytes: 0 });
  }

  /**
   * Follows a path from the root, symbolic links included; links never lead out of the image.
   *
   * @param options.followLast whether a link at the end of the path is followed too. @default true
   * @returns undefined when there is nothing
   * @throws PlatformError `invalid_argument` for more than 40 links
   */
  async lookup(path: ByteString, options: { readonly followLast?: boolean } = {}): Promise<Inode | undefined> {
    const root = await this.root();
    const trail: Inode[] = [root];
    const todo = ByteString.split(path, '/').reverse();
    let links = 0;
    for (let name = todo.pop(); name !== undefined; name = todo.pop()) {
      const here = trail.at(-1) ?? root;
      if (name === '' || name === '.') continue;
      if (here.kind !== 'directory') return undefined;
      if (name === '..') {
        if (trail.length > 1) trail.pop();
        continue;
      }
      const child = await this.child(here, name);
      if (child === undefined) return undefined;
      const isLast = todo.every((rest) => rest === '' || rest === '.');
      if (child.kind === 'symlink' && !(isLast && options.followLast === false)) {
        links++;
        if (links > MAX_LINKS_FOLLOWED) throw new PlatformError('invalid_argument', 'The path has too many links');
        const target = await this.readLink(child);
        if (target.startsWith('/')) trail.length = 1;
        todo.push(...ByteString.split(target, '/').reverse());
        continue;
      }
      trail.push(child);
    }
    return trail.at(-1);
  }

  async readLink(link: Inode): Promise<ByteString> {
    if (link.kind !== 'symlink' || link.sizeBytes === 0 || link.sizeBytes > MAX_SYMLINK_BYTES) {
      throw corrupt('A symbolic link has an impossible length', this.#at(link));
    }
    return ByteString.fromBytes(await this.#inodes.bytes(this.#position(link, 0), link.sizeBytes));
  }

  /** @returns undefined when the directory has no such name */
  async child(directory: Inode, name: ByteString): Promise<Inode | undefined> {
    for await (const entry of this.entries(directory)) {
      if (entry.name === name) return this.#inodes.read(entry.nid);
    }
    return undefined;
  }

  /**
   * The bytes of a regular file, in parts of at most 1 MiB.
   *
   * @throws PlatformError `invalid_argument` when they are on a device that was not given
   */
  async *read(file: Inode): AsyncGenerator<Buffer> {
    if (file.kind !== 'file') throw new PlatformError('not_regular_file', 'Only regular files can be read');
    if (file.extent.kind === 'chunks') {
      yield* this.#readChunks(file, file.extent);
      return;
    }
    const { blockBytes, startBlock, inlineOffset } = file.extent;
    for (let at = 0; at < blockBytes; at += READ_BYTES) {
      yield await this.#source.read(startBlock * BLOCK_SIZE + at, Math.min(READ_BYTES, blockBytes - at));
    }
    if (file.sizeBytes > blockBytes) yield await this.#inodes.bytes(inlineOffset, file.sizeBytes - blockBytes);
  }

  /**
   * What another image says of a file that this one has, when the devices of this one are among those of the other. The bytes of the file are not
   * read, unless they lie in the image itself.
   *
   * @param devicesBefore how many devices the other image has before those of this one
   * @throws PlatformError `image_unsupported` for more than `maxEmbeddedBytes` in the image itself
   */
  async placed(file: Inode, devicesBefore: number, maxEmbeddedBytes: number): Promise<FileData> {
    const { sizeBytes, extent } = file;
    if (sizeBytes === 0) return EMPTY_FILE;
    if (extent.kind === 'flat') return this.#embedded(file, maxEmbeddedBytes);
    const chunks = Math.ceil(sizeBytes / extent.chunkBytes);
    const index = Buffer.allocUnsafe(chunks * CHUNK_INDEX_SIZE).fill(0);
    for (let chunk = 0; chunk < chunks; chunk++) {
      const place = await this.#inodes.chunk(extent, chunk);
      if (place?.device === 0) return this.#embedded(file, maxEmbeddedBytes);
      index.writeUInt16LE(place === undefined ? 0 : place.device + devicesBefore, chunk * CHUNK_INDEX_SIZE + 2);
      index.writeUInt32LE(place?.startBlock ?? NULL_BLOCK, chunk * CHUNK_INDEX_SIZE + 4);
    }
    const chunkBits = Math.log2(extent.chunkBytes / BLOCK_SIZE);
    return { sizeBytes, startBlock: 0, placed: { kind: 'chunks', chunkBits, index } };
  }

  async #embedded(file: Inode, maxBytes: number): Promise<FileData> {
    if (file.sizeBytes > maxBytes) throw unsupported('data_in_image', this.#at(file));
    const parts: Buffer[] = [];
    for await (const part of this.read(file)) parts.push(part);
    return { sizeBytes: file.sizeBytes, startBlock: 0, placed: { kind: 'embedded', bytes: Buffer.concat(parts) } };
  }

  async *#walkInto(directory: Inode, above: readonly ByteString[], seen: Walked): AsyncGenerator<ImageEntry> {
    if (above.length >= MAX_DEPTH) throw corrupt('Directories are nested too deep', this.#at(directory));
    seen.bytes += directory.sizeBytes;
    // Directories that share blocks could make a small image list without end.
    if (seen.bytes > this.#source.sizeBytes) throw corrupt('Directories overlap', this.#at(directory));
    for await (const entry of this.entries(directory)) {
      const inode = await this.#inodes.read(entry.nid);
      const path = [...above, entry.name];
      yield { path: ByteString.join(...path), inode };
      if (inode.kind !== 'directory') continue;
      if (seen.directories.has(inode.nid))
        throw corrupt('A directory contains itself or stands twice', this.#at(inode));
      seen.directories.add(inode.nid);
      yield* this.#walkInto(inode, path, seen);
    }
  }

  async *#readChunks(file: Inode, extent: ChunkExtent): AsyncGenerator<Buffer> {
    for (let start = 0; start < file.sizeBytes; start += extent.chunkBytes) {
      const length = Math.min(extent.chunkBytes, file.sizeBytes - start);
      const place = await this.#inodes.chunk(extent, start / extent.chunkBytes);
      const source = place === undefined ? undefined : this.#sourceOf(place.device);
      const from = (place?.startBlock ?? 0) * BLOCK_SIZE;
      if (source !== undefined && from + length > source.sizeBytes) {
        throw corrupt('The data of an inode lie behind the end of their device', this.#at(file));
      }
      for (let at = 0; at < length; at += READ_BYTES) {
        const count = Math.min(READ_BYTES, length - at);
        yield source === undefined ? hole.subarray(0, count) : await source.read(from + at, count);
      }
    }
  }

  #sourceOf(device: number): ByteSource {
    if (device === 0) return this.#source;
    const data = this.#data[device - 1];
    if (data === undefined) {
      throw new PlatformError('invalid_argument', 'The bytes of the files are on a device that was not given');
    }
    return data;
  }

  #position(inode: Inode, at: number): number {
    if (inode.extent.kind !== 'flat') throw unsupported('data_layout', this.#at(inode));
    const { blockBytes, startBlock, inlineOffset } = inode.extent;
    return at < blockBytes ? startBlock * BLOCK_SIZE + at : inlineOffset + at - blockBytes;
  }

  #at(inode: Inode): number {
    return this.superblock.metaBlock * BLOCK_SIZE + inode.nid * 32;
  }
}

/** What an image names, and as far as they were given the devices themselves. */
interface Devices {
  readonly devices: readonly ImageDevice[];
  readonly data: readonly ByteSource[];
}

const devicesOf = async (source: ByteSource, superblock: Superblock): Promise<ImageDevice[]> => {
  const { extraDevices, deviceTableOffset: at } = superblock;
  const tableBytes = extraDevices * DEVICE_SLOT_SIZE;
  if (at + tableBytes > source.sizeBytes) throw corrupt('The device table lies behind the end of the image', at);
  const table = await source.read(at, tableBytes);
  return Array.from({ length: extraDevices }, (_, index) => {
    const { mappedBlock, ...device } = decodeDeviceSlot(table.subarray(index * DEVICE_SLOT_SIZE));
    // Addresses without a device number could then mean either device.
    if (mappedBlock !== 0) throw unsupported('mapped_device', at + index * DEVICE_SLOT_SIZE);
    return device;
  });
};
