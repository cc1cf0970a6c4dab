import { ByteString, type ImageReader, type Inode, type Metadata } from '@dsec/erofs';
import { isOpaque, isWhiteout, withoutMarks } from './overlay-marks.ts';

/** Something in the layers below. */
export type LowerNode =
  | { readonly kind: 'directory'; readonly metadata: Metadata }
  | {
      readonly kind: 'file';
      readonly metadata: Metadata;
      readonly sizeBytes: number;
      readonly bytes: () => AsyncIterable<Uint8Array>;
    }
  | { readonly kind: 'symlink'; readonly metadata: Metadata; readonly target: ByteString }
  | {
      readonly kind: 'char-device' | 'block-device' | 'fifo' | 'socket';
      readonly metadata: Metadata;
      readonly major: number;
      readonly minor: number;
    };

/** The layers below one that is being made, as one tree. */
export interface LowerTree {
  /**
   * What has this path; no link is followed, neither at its end nor on the way.
   *
   * @param path none: the root
   */
  lookup(path: readonly ByteString[]): Promise<LowerNode | undefined>;
  /**
   * What lies in a directory, in no order.
   *
   * @param path as of `lookup`; what is no directory has nothing in it
   */
  entries(path: readonly ByteString[]): AsyncIterable<LowerEntry>;
}

export interface LowerEntry {
  readonly name: ByteString;
  readonly node: LowerNode;
}

/** For a layer that will stand above others of which nothing is known when it is made. */
export const unknownLower: LowerTree = {
  lookup: () => Promise.resolve(undefined),
  entries: async function* () {
    // none that is known
  },
};

/** A directory of one of the images. */
interface Part {
  readonly image: ImageReader;
  readonly inode: Inode;
}

/** Layers as overlayfs shows them, one above the other. */
export class StackedImages implements LowerTree {
  /** Topmost first. */
  readonly #images: readonly ImageReader[];

  /** @param images lowest first */
  constructor(images: readonly ImageReader[]) {
    this.#images = images.toReversed();
  }

  async lookup(path: readonly ByteString[]): Promise<LowerNode | undefined> {
    const [top] = await this.#parts(path);
    return top === undefined ? undefined : lowerNode(top);
  }

  async *entries(path: readonly ByteString[]): AsyncGenerator<LowerEntry> {
    const seen = new Set<ByteString>();
    for (const { image, inode: directory } of await this.#parts(path)) {
      if (directory.kind !== 'directory') return;
      for await (const { name, nid } of image.entries(directory)) {
        if (seen.has(name)) continue;
        seen.add(name);
        const inode = await image.inode(nid);
        if (!isHidden(inode)) yield { name, node: await lowerNode({ image, inode }) };
      }
    }
  }

  /** What has the path, topmost first: several directories, one other thing, or nothing. */
  async #parts(path: readonly ByteString[]): Promise<Part[]> {
    let parts = await this.#roots();
    for (const name of path) {
      if (parts[0]?.inode.kind !== 'directory') return [];
      parts = await below(parts, name);
    }
    return parts;
  }

  #roots(): Promise<Part[]> {
    return Promise.all(this.#images.map(async (image) => ({ image, inode: await image.root() })));
  }
}

/** What the directories have under a name: several directories, one other thing, or nothing. */
const below = async (directories: readonly Part[], name: ByteString): Promise<Part[]> => {
  const found: Part[] = [];
  for (const { image, inode: directory } of directories) {
    const inode = await image.child(directory, name);
    if (inode === undefined) continue;
    if (isHidden(inode)) break;
    if (inode.kind !== 'directory') return found.length === 0 ? [{ image, inode }] : found;
    found.push({ image, inode });
    if (isOpaque(inode.metadata)) break;
  }
  return found;
};

const isHidden = (inode: Inode): boolean => isWhiteout({ kind: inode.kind, ...inode.device });

const lowerNode = async ({ image, inode }: Part): Promise<LowerNode> => {
  const { kind } = inode;
  const metadata = withoutMarks(inode.metadata);
  switch (kind) {
    case 'directory':
      return { kind, metadata };
    case 'file':
      return { kind, metadata, sizeBytes: inode.sizeBytes, bytes: () => image.read(inode) };
    case 'symlink':
      return { kind, metadata, target: await image.readLink(inode) };
    case 'char-device':
    case 'block-device':
    case 'fifo':
    case 'socket':
      return { kind, metadata, ...inode.device };
  }
};
