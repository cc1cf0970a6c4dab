import {
  ByteString,
  defaultMetadata,
  type DirectoryNode,
  type FileData,
  type FsNode,
  MAX_SYMLINK_BYTES,
  newDirectory,
} from '@dsec/erofs';
import { EntryMetadata } from './entry-metadata.ts';
import { parseEntryPath } from './entry-path.ts';
import { refusal } from './entry-refusal.ts';
import type { LowerNode, LowerTree } from './lower-tree.ts';
import { isOpaque, isWhiteout, markDirectories, newWhiteout } from './overlay-marks.ts';
import { type TarEntry, TarReader } from './tar/tar-reader.ts';

/** Keeps the bytes of one regular file; what it returns goes into the tree. */
export type StoreFile = (sizeBytes: number, bytes: AsyncIterable<Uint8Array>) => Promise<FileData>;

export interface LayerOptions {
  /** What errors call the layer: its digest. */
  readonly name: string;
  readonly store: StoreFile;
  /**
   * How entries say what they hide: as layers of images do (`.wh.` names), as overlayfs does (a device 0:0, and an attribute of opaque directories),
   * or not at all. @default 'image'
   */
  readonly whiteouts?: 'image' | 'overlay' | 'none';
  /** What to do with device files; images practically never need them. @default 'refuse' */
  readonly devices?: 'refuse' | 'drop';
  /** Entries for which this is false are left out, with what is below them. */
  readonly keep?: (path: readonly ByteString[], entry: TarEntry) => boolean;
}

/** Entries, and directories that only their paths name. Memory for the tree is about half a kilobyte each. */
const MAX_ENTRIES = 4_000_000;

const WHITEOUT_PREFIX = '.wh.';
const OPAQUE_MARKER = '.wh..wh..opq';
/** Bookkeeping of an old union file system; it describes no file. */
const BOOKKEEPING_PREFIX = '.wh..wh.';

/** True for an entry in the words of overlayfs that hides a name. */
export const isWhiteoutEntry = (entry: TarEntry): boolean =>
  entry.type === 'char-device' && entry.major === 0 && entry.minor === 0;

/** A directory of the tree that something is put into. */
interface Place {
  readonly directory: DirectoryNode;
  /** Nothing of the layers below the tree can show here. */
  readonly isSealed: boolean;
}

const DIRECTORY_MODE = 0o755;

/**
 * A file system tree built from layers, lowest first. All paths are resolved in the tree alone and no symbolic link is ever followed, so no
 * entry can reach anything else.
 *
 * Where an entry's path leads through something that is no directory: if a lower layer made it, a directory takes its place (as a union
 * mount of the layers would show it); if the same layer made it, the layer is refused.
 *
 * A tree that stands on nothing is a whole file system: whiteouts remove what they name, and are gone. A tree `above` others becomes one
 * layer over them: it keeps, in the form of overlayfs, each whiteout that may hide something of theirs. Overlaid, it shows what all layers
 * would show in one tree.
 */
export class LayerTree {
  readonly root: DirectoryNode = newDirectory();
  readonly #metadata = new EntryMetadata();
  /** What the layer that is being applied has put where: all else is of lower layers. */
  #touched = new Map<DirectoryNode, Set<ByteString>>();
  /** Directories that nothing is merged into from below the tree. */
  readonly #opaque = new Set<DirectoryNode>();
  readonly #whiteout = newWhiteout();
  readonly #lower: LowerTree | undefined;
  #isRootKnown: boolean;
  readonly #maxEntries: number;
  #entries = 0;

  /**
   * @param options.above what the tree stands on. @default nothing
   * @param options.maxEntries of all layers together, with the directories that only paths name. @default 4,000,000
   */
  constructor(options: { readonly above?: LowerTree; readonly maxEntries?: number } = {}) {
    this.#lower = options.above;
    this.#maxEntries = options.maxEntries ?? MAX_ENTRIES;
    this.#isRootKnown = options.above === undefined;
    if (options.above === undefined) this.#opaque.add(this.root);
  }

  /**
   * Applies one uncompressed layer.
   *
   * @throws PlatformError `image_corrupt`, `image_unsupported` or, for entries that no honest layer has, `archive_unsafe`; always with
   * `details` layer, offset and reason
   */
  async apply(tar: AsyncIterable<Uint8Array>, options: LayerOptions): Promise<void> {
    await this.applyEntries(new TarReader(tar, options.name).entries(), options);
  }

  /** As {@link apply}, of entries that somebody else reads. */
  async applyEntries(entries: AsyncIterable<TarEntry>, options: LayerOptions): Promise<void> {
    this.#touched = new Map();
    if (!this.#isRootKnown) {
      this.root.metadata = (await this.#lower?.lookup([]))?.metadata ?? this.root.metadata;
      this.#isRootKnown = true;
    }
    for await (const entry of entries) {
      this.#count(entry, options);
      await this.#applyEntry(entry, options);
    }
  }

  #count(entry: TarEntry, options: LayerOptions): void {
    this.#entries++;
    if (this.#entries > this.#maxEntries) throw refusal('image_unsupported', entry, options.name, 'too_many_entries');
  }

  /** Names of attributes that were left out, with how often. */
  get droppedXattrs(): ReadonlyMap<string, number> {
    return this.#metadata.droppedXattrs;
  }

  /** To be called when all layers are applied. @returns the root, with what overlayfs needs to know of its directories */
  finish(): DirectoryNode {
    markDirectories(this.root, this.#opaque);
    return this.root;
  }

  async #applyEntry(entry: TarEntry, options: LayerOptions): Promise<void> {
    const path = parseEntryPath(entry.path);
    if (typeof path === 'string') throw refusal('archive_unsafe', entry, options.name, path);
    if (options.keep?.(path, entry) === false) return;
    const name = path.at(-1);
    if (name === undefined) {
      if (entry.type !== 'directory') throw refusal('image_corrupt', entry, options.name, 'root_not_directory');
      this.root.metadata = this.#metadata.of(entry, options.name);
      return;
    }
    const place = await this.#parent(path, entry, options);
    const { whiteouts = 'image' } = options;
    if (whiteouts === 'image' && name.startsWith(WHITEOUT_PREFIX)) {
      await this.#whiteOut(place, name, entry, options);
      return;
    }
    const parent = place.directory;
    if (whiteouts === 'overlay' && isWhiteoutEntry(entry)) {
      this.#hide(place, name);
      this.#touch(parent, name);
      return;
    }
    const existing = parent.children.get(name);
    if (entry.type === 'directory' && existing?.kind === 'directory') {
      existing.metadata = this.#metadata.of(entry, options.name);
      if (whiteouts === 'overlay' && isOpaque(entry)) this.#opaque.add(existing);
      this.#touch(parent, name);
      return;
    }
    const node = await this.#node(entry, options);
    if (node === undefined) return;
    if (whiteouts === 'overlay' && node.kind === 'directory' && isOpaque(entry)) this.#opaque.add(node);
    // What the directory replaces hid what lower layers have there, and that stays hidden.
    if (node.kind === 'directory' && existing !== undefined) this.#opaque.add(node);
    parent.children.set(name, node);
    this.#touch(parent, name);
  }

  /** The node that an entry describes; undefined for one that is dropped. */
  async #node(entry: TarEntry, options: LayerOptions): Promise<FsNode | undefined> {
    switch (entry.type) {
      case 'directory':
        return newDirectory(this.#metadata.of(entry, options.name));
      case 'file':
        return {
          kind: 'file',
          metadata: this.#metadata.of(entry, options.name),
          data: await options.store(entry.sizeBytes, entry.data),
        };
      case 'symlink': {
        const { linkPath } = entry;
        if (linkPath === '' || linkPath.length > MAX_SYMLINK_BYTES || linkPath.includes('\0')) {
          throw refusal('image_corrupt', entry, options.name, 'symlink_target');
        }
        return { kind: 'symlink', metadata: this.#metadata.of(entry, options.name), target: linkPath };
      }
      case 'hard-link':
        return this.#linked(entry, options);
      case 'fifo':
        return { kind: 'fifo', metadata: this.#metadata.of(entry, options.name), major: 0, minor: 0 };
      case 'char-device':
      case 'block-device':
        if (options.devices === 'drop') return undefined;
        throw refusal('archive_unsafe', entry, options.name, 'device');
    }
  }

  async #linked(entry: TarEntry, options: LayerOptions): Promise<FsNode> {
    const path = parseEntryPath(entry.linkPath);
    if (typeof path === 'string') throw refusal('archive_unsafe', entry, options.name, `link_${path}`);
    const node = await this.#linkTarget(path, entry, options);
    if (node === undefined || isWhiteout(node))
      throw refusal('image_corrupt', entry, options.name, 'link_target_missing');
    if (node.kind === 'directory') throw refusal('image_corrupt', entry, options.name, 'link_to_directory');
    return node;
  }

  async #linkTarget(path: readonly ByteString[], entry: TarEntry, options: LayerOptions): Promise<FsNode | undefined> {
    let node: FsNode = this.root;
    let isSealed = false;
    for (const [depth, name] of path.entries()) {
      if (node.kind === 'symlink') throw refusal('archive_unsafe', entry, options.name, 'link_through_symlink');
      if (node.kind !== 'directory') return undefined;
      isSealed ||= this.#opaque.has(node);
      const child = node.children.get(name);
      if (child === undefined) return isSealed ? undefined : this.#copyUp(path, depth, entry, options);
      node = child;
    }
    return node;
  }

  /**
   * Copies a file of the layers below to its own place in the tree, so that it can get a second name, as link(2) does on overlayfs.
   *
   * @param depth how many names of the path are directories of the tree
   */
  async #copyUp(
    path: readonly ByteString[],
    depth: number,
    entry: TarEntry,
    options: LayerOptions,
  ): Promise<FsNode | undefined> {
    let found: LowerNode | undefined;
    for (let length = depth + 1; length <= path.length; length++) {
      if (found?.kind === 'symlink') throw refusal('archive_unsafe', entry, options.name, 'link_through_symlink');
      found = await this.#lower?.lookup(path.slice(0, length));
      if (found === undefined) return undefined;
    }
    const name = path.at(-1);
    if (found === undefined || name === undefined) return undefined;
    if (found.kind === 'directory') return newDirectory(found.metadata);
    const node: FsNode =
      found.kind === 'file'
        ? { kind: 'file', metadata: found.metadata, data: await options.store(found.sizeBytes, found.bytes()) }
        : found;
    const { directory } = await this.#parent(path, entry, options);
    directory.children.set(name, node);
    return node;
  }

  async #parent(path: readonly ByteString[], entry: TarEntry, options: LayerOptions): Promise<Place> {
    let directory = this.root;
    let isSealed = this.#opaque.has(directory);
    for (const [depth, name] of path.slice(0, -1).entries()) {
      let child = directory.children.get(name);
      if (child?.kind !== 'directory') {
        if (child !== undefined && this.#isTouched(directory, name)) {
          throw child.kind === 'symlink'
            ? refusal('archive_unsafe', entry, options.name, 'path_through_symlink')
            : refusal('image_corrupt', entry, options.name, 'path_through_file');
        }
        this.#count(entry, options);
        child = await this.#makeDirectory({ directory, isSealed }, path.slice(0, depth + 1), child);
      }
      directory = child;
      isSealed ||= this.#opaque.has(directory);
    }
    return { directory, isSealed };
  }

  /**
   * Makes a directory that the layer does not have, but that something of it lies in. One of the layers below keeps what it is: the tree
   * only says it again, since overlayfs shows the topmost.
   */
  async #makeDirectory(
    { directory, isSealed }: Place,
    path: readonly ByteString[],
    replaced: FsNode | undefined,
  ): Promise<DirectoryNode> {
    const name = path.at(-1) ?? ByteString.fromText('');
    const lower = isSealed || replaced !== undefined ? undefined : await this.#lower?.lookup(path);
    const made = newDirectory(lower?.kind === 'directory' ? lower.metadata : defaultMetadata(DIRECTORY_MODE));
    if (replaced !== undefined) this.#opaque.add(made);
    directory.children.set(name, made);
    if (lower?.kind !== 'directory') this.#touch(directory, name);
    return made;
  }

  async #whiteOut(
    { directory: parent, isSealed }: Place,
    name: ByteString,
    entry: TarEntry,
    options: LayerOptions,
  ): Promise<void> {
    if (name === OPAQUE_MARKER) {
      this.#removeLower(parent);
      if (parent === this.root) await this.#hideLowerRoot();
      else this.#opaque.add(parent);
      return;
    }
    if (name.startsWith(BOOKKEEPING_PREFIX)) return;
    const hidden = ByteString.slice(name, WHITEOUT_PREFIX.length);
    if (hidden === '' || hidden === '.' || hidden === '..')
      throw refusal('archive_unsafe', entry, options.name, 'whiteout');
    if (this.#outlives(parent, hidden)) {
      const left = parent.children.get(hidden);
      if (left?.kind === 'directory') this.#opaque.add(left);
    } else {
      this.#hide({ directory: parent, isSealed }, hidden);
    }
  }

  /** Nothing has this name any more. */
  #hide({ directory, isSealed }: Place, name: ByteString): void {
    if (isSealed) directory.children.delete(name);
    else directory.children.set(name, this.#whiteout);
  }

  /** Overlayfs knows no opaque root: each name that there is below is hidden by itself. */
  async #hideLowerRoot(): Promise<void> {
    if (this.#lower === undefined) return;
    for await (const { name } of this.#lower.entries([])) {
      const node = this.root.children.get(name);
      if (node === undefined) this.root.children.set(name, this.#whiteout);
      else if (node.kind === 'directory') this.#opaque.add(node);
    }
  }

  /** Removes below a directory what lower layers put there. */
  #removeLower(directory: DirectoryNode): void {
    for (const name of directory.children.keys()) {
      if (!this.#outlives(directory, name)) directory.children.delete(name);
    }
  }

  /** True when something of this layer is left of the name after what came from lower ones has gone. */
  #outlives(directory: DirectoryNode, name: ByteString): boolean {
    const node = directory.children.get(name);
    if (node?.kind === 'directory') {
      this.#removeLower(node);
      if (node.children.size > 0 && !this.#isTouched(directory, name)) {
        // Only its name is this layer's, as if the whiteout had come first.
        node.metadata = defaultMetadata(DIRECTORY_MODE);
        this.#touch(directory, name);
      }
    }
    return this.#isTouched(directory, name);
  }

  #touch(directory: DirectoryNode, name: ByteString): void {
    const names = this.#touched.get(directory);
    if (names === undefined) this.#touched.set(directory, new Set([name]));
    else names.add(name);
  }

  #isTouched(directory: DirectoryNode, name: ByteString): boolean {
    return this.#touched.get(directory)?.has(name) === true;
  }
}
