import { PlatformError } from '@dsec/contract';
import {
  type ByteString,
  type DirectoryNode,
  type FsNode,
  type ImageDevice,
  type ImageReader,
  type Inode,
  newDirectory,
} from '@dsec/erofs';
import { hasForeignMarks, isOpaque, isWhiteout, withoutMarks } from '../overlay-marks.ts';

/** As in a tree that is built from archives: memory is about half a kilobyte an entry. */
const MAX_ENTRIES = 4_000_000;
/** As deep as a path of 4095 bytes can go. */
const MAX_DEPTH = 2048;
/** What the layers together may have of file contents among their metadata, which are copied. */
const MAX_EMBEDDED_BYTES = 16 * 1024 * 1024;

/** What all attributes may have together; images may share theirs. */
const MAX_XATTR_BYTES = 256 * 1024 * 1024;
const CHUNK_INDEX_BYTES = 8;

/** The metadata of one layer. */
export interface LayerImage {
  /** What errors call it. */
  readonly digest: string;
  readonly image: ImageReader;
  /** Bytes of the metadata. */
  readonly sizeBytes: number;
}

export interface MergedTree {
  readonly root: DirectoryNode;
  /** The data of the layers that have any, topmost first. */
  readonly devices: readonly ImageDevice[];
}

/** A directory of one layer. */
interface Part {
  readonly layer: Layer;
  readonly inode: Inode;
}

/** What of a name has been found so far, from the top. */
interface Found {
  /** Several directories, or one other thing, or nothing. */
  readonly parts: Part[];
  /** Nothing below shows. */
  isClosed: boolean;
  /** The layer that had the name last. */
  layer: Layer;
}

interface Layer extends LayerImage {
  readonly devicesBefore: number;
  /** What is no directory, by nid: a second name is a hard link. */
  readonly nodes: Map<number, FsNode>;
  readonly directories: Set<number>;
  /** Of all directories, indexes and links that were read. */
  readBytes: number;
}

/**
 * The tree that overlayfs would show of layers, as one: whiteouts and opaque directories applied, of a directory the metadata of the topmost
 * layer that has it, hard links inside of a layer kept. Files stay where they are, on the devices of their layers: no data are read.
 *
 * @param images topmost first; not trusted
 * @throws PlatformError `image_corrupt` or `image_unsupported`, with the `layer` in its details
 */
export const mergeTrees = (images: readonly LayerImage[]): Promise<MergedTree> => new Merge(images).run();

class Merge {
  readonly #layers: readonly Layer[];
  readonly #devices: readonly ImageDevice[];
  #reading: Layer | undefined;
  #entries = 0;
  #embeddedBytes = 0;
  #xattrBytes = 0;

  constructor(images: readonly LayerImage[]) {
    const devices: ImageDevice[] = [];
    this.#layers = images.map((each) => {
      const layer = {
        ...each,
        devicesBefore: devices.length,
        nodes: new Map(),
        directories: new Set<number>(),
        readBytes: 0,
      };
      devices.push(...each.image.devices);
      return layer;
    });
    this.#devices = devices;
  }

  async run(): Promise<MergedTree> {
    try {
      const roots: Part[] = [];
      for (const layer of this.#layers) {
        this.#reading = layer;
        if (layer.image.devices.length > 1) throw refusal('image_unsupported', 'devices');
        // Roots are merged whatever they say.
        roots.push({ layer, inode: this.#checked(await layer.image.root()) });
      }
      return { root: await this.#directory(roots, 0), devices: this.#devices };
    } catch (error) {
      if (!PlatformError.is(error) || this.#reading === undefined) throw error;
      const { digest } = this.#reading;
      throw new PlatformError(error.code, `The layer ${digest} cannot be put together with others`, {
        details: { ...error.details, layer: digest },
        cause: error,
      });
    }
  }

  /** @param parts the directories of one path, topmost first; at least one */
  async #directory(parts: readonly Part[], depth: number): Promise<DirectoryNode> {
    if (depth > MAX_DEPTH) throw refusal('image_corrupt', 'depth');
    const [top] = parts;
    const node = newDirectory(top === undefined ? undefined : withoutMarks(top.inode.metadata));
    const names = new Map<ByteString, Found>();
    for (const part of parts) await this.#collect(part, names);
    for (const [name, found] of names) {
      const [first] = found.parts;
      if (first === undefined) continue;
      const child =
        first.inode.kind === 'directory' ? await this.#directory(found.parts, depth + 1) : await this.#leaf(first);
      node.children.set(name, child);
    }
    return node;
  }

  async #collect({ layer, inode: directory }: Part, names: Map<ByteString, Found>): Promise<void> {
    this.#reading = layer;
    if (layer.directories.has(directory.nid)) throw refusal('image_corrupt', 'directory_twice');
    layer.directories.add(directory.nid);
    read(layer, directory.sizeBytes);
    for await (const { name, nid } of layer.image.entries(directory)) {
      this.#entries++;
      if (this.#entries > MAX_ENTRIES) throw refusal('image_unsupported', 'too_many_entries');
      const known = names.get(name);
      if (known?.layer === layer) throw refusal('image_corrupt', 'name_twice');
      const found = known ?? { parts: [], isClosed: false, layer };
      found.layer = layer;
      if (known === undefined) names.set(name, found);
      if (!found.isClosed) add(found, { layer, inode: this.#checked(await layer.image.inode(nid)) });
    }
  }

  async #leaf({ layer, inode }: Part): Promise<FsNode> {
    const known = layer.nodes.get(inode.nid);
    if (known !== undefined) return known;
    this.#reading = layer;
    const node = await this.#newLeaf(layer, inode);
    layer.nodes.set(inode.nid, node);
    return node;
  }

  async #newLeaf(layer: Layer, inode: Inode): Promise<FsNode> {
    const { image, devicesBefore } = layer;
    const { kind, extent } = inode;
    const metadata = withoutMarks(inode.metadata);
    switch (kind) {
      case 'directory':
        throw refusal('image_corrupt', 'directory');
      case 'file': {
        if (extent.kind === 'chunks') read(layer, Math.ceil(inode.sizeBytes / extent.chunkBytes) * CHUNK_INDEX_BYTES);
        const data = await image.placed(inode, devicesBefore, MAX_EMBEDDED_BYTES - this.#embeddedBytes);
        if (data.placed?.kind === 'embedded') this.#embeddedBytes += data.sizeBytes;
        return { kind, metadata, data };
      }
      case 'symlink':
        read(layer, inode.sizeBytes);
        return { kind, metadata, target: await image.readLink(inode) };
      case 'char-device':
      case 'block-device':
      case 'fifo':
      case 'socket':
        return { kind, metadata, ...inode.device };
    }
  }

  #checked(inode: Inode): Inode {
    if (hasForeignMarks(inode.metadata)) throw refusal('image_unsupported', 'overlay_mark');
    for (const [name, value] of inode.metadata.xattrs) this.#xattrBytes += name.length + value.length;
    if (this.#xattrBytes > MAX_XATTR_BYTES) throw refusal('image_unsupported', 'xattrs');
    return inode;
  }
}

const add = (found: Found, part: Part): void => {
  const { inode } = part;
  if (inode.kind === 'directory') {
    found.parts.push(part);
    found.isClosed = isOpaque(inode.metadata);
    return;
  }
  // Under a directory anything else does not show, and hides what is below it all the same.
  if (found.parts.length === 0 && !isWhiteout({ kind: inode.kind, ...inode.device })) found.parts.push(part);
  found.isClosed = true;
};

/** What lies apart in an honest image; what shares its bytes could make a small image without end. */
const read = (layer: Layer, bytes: number): void => {
  layer.readBytes += bytes;
  if (layer.readBytes > layer.sizeBytes) throw refusal('image_corrupt', 'overlap');
};

const refusal = (code: 'image_corrupt' | 'image_unsupported', reason: string): PlatformError =>
  new PlatformError(code, 'The metadata of a layer cannot be merged', { details: { reason } });
