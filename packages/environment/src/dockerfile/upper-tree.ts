import { ByteString, defaultMetadata, type DirectoryNode, type FsNode, type Metadata, newDirectory } from '@dsec/erofs';
import type { LowerNode, LowerTree } from '../lower-tree.ts';
import { follow } from './source-tree.ts';

/** Why something cannot be put where it was to go. */
export class PlaceFault extends Error {
  override readonly name = 'PlaceFault';
  readonly path: readonly ByteString[];

  constructor(path: readonly ByteString[], message: string) {
    super(message);
    this.path = path;
  }
}

/** The kind of what is at a path, as far as it matters to what is put there. */
type Present = LowerNode['kind'] | undefined;

const DIRECTORY_MODE = 0o755;
/** For so many names in one directory it is read once instead of being searched for each. */
const MANY_NAMES = 16;

/** A layer that is being filled with files, above others. It only adds: nothing of the layers below is hidden but by what has its name. */
export class UpperTree {
  readonly root: DirectoryNode;
  readonly #lower: LowerTree;
  /** Directories of the layers below that are known as a whole. */
  readonly #known = new Map<ByteString, ReadonlyMap<ByteString, LowerNode>>();

  private constructor(root: DirectoryNode, lower: LowerTree) {
    this.root = root;
    this.#lower = lower;
  }

  static async above(lower: LowerTree): Promise<UpperTree> {
    return new UpperTree(newDirectory((await lower.lookup([]))?.metadata), lower);
  }

  /**
   * Where a path leads in the file system that the layer is part of: links are followed, also at its end.
   *
   * @throws PlaceFault when something in the way is no directory
   */
  async place(
    path: readonly ByteString[],
  ): Promise<{ readonly path: readonly ByteString[]; readonly present: Present }> {
    const found = await follow({ lookup: (each) => this.#lookup(each) }, path);
    if (found === undefined) throw new PlaceFault(path, 'leads through something that is no directory');
    return { path: found.path, present: found.node?.kind };
  }

  /**
   * Makes what is missing of a directory's path.
   *
   * @param path without links, as `place` gives it
   * @param owner of the directories that are made
   */
  async directory(path: readonly ByteString[], owner: Pick<Metadata, 'uid' | 'gid'>): Promise<DirectoryNode> {
    let directory = this.root;
    for (const [depth, name] of path.entries()) {
      const own = directory.children.get(name);
      if (own?.kind === 'directory') {
        directory = own;
        continue;
      }
      const here = path.slice(0, depth + 1);
      const lower = own ?? (await this.#lookupLower(here));
      if (lower !== undefined && lower.kind !== 'directory') throw new PlaceFault(here, 'is no directory');
      const made = newDirectory(lower?.metadata ?? { ...defaultMetadata(DIRECTORY_MODE), ...owner });
      if (lower === undefined) this.#known.set(ByteString.join(...here), NOTHING);
      directory.children.set(name, made);
      directory = made;
    }
    return directory;
  }

  /**
   * Puts something at a path: a directory is merged into one that is there, anything else takes the place of what is no directory.
   *
   * @param path without links in all but its last name
   */
  async put(path: readonly ByteString[], node: FsNode, owner: Pick<Metadata, 'uid' | 'gid'>): Promise<void> {
    const name = path.at(-1);
    if (name === undefined) throw new PlaceFault(path, 'is the root directory');
    const present = (await this.#lookup(path))?.kind;
    if (node.kind !== 'directory') {
      if (present === 'directory') throw new PlaceFault(path, 'is a directory');
      const parent = await this.directory(path.slice(0, -1), owner);
      parent.children.set(name, node);
      return;
    }
    if (present !== undefined && present !== 'directory') throw new PlaceFault(path, 'is no directory');
    const directory = await this.directory(path, owner);
    directory.metadata = node.metadata;
    await this.merge(path, node, owner);
  }

  /** Puts all that is in a directory into one that is at a path, or is made there. */
  async merge(path: readonly ByteString[], from: DirectoryNode, owner: Pick<Metadata, 'uid' | 'gid'>): Promise<void> {
    await this.directory(path, owner);
    if (from.children.size >= MANY_NAMES) await this.#know(path);
    for (const [name, child] of from.children) await this.put([...path, name], child, owner);
  }

  async #lookup(path: readonly ByteString[]): Promise<LowerNode | undefined> {
    let own: FsNode | undefined = this.root;
    for (const name of path) {
      if (own !== undefined && own.kind !== 'directory') return undefined;
      own = own?.children.get(name);
      if (own === undefined) break;
    }
    return own === undefined ? await this.#lookupLower(path) : looked(own);
  }

  async #lookupLower(path: readonly ByteString[]): Promise<LowerNode | undefined> {
    const name = path.at(-1);
    const parent = name === undefined ? undefined : this.#known.get(ByteString.join(...path.slice(0, -1)));
    return parent === undefined || name === undefined ? await this.#lower.lookup(path) : parent.get(name);
  }

  async #know(path: readonly ByteString[]): Promise<void> {
    const key = ByteString.join(...path);
    if (this.#known.has(key)) return;
    const nodes = new Map<ByteString, LowerNode>();
    for await (const { name, node } of this.#lower.entries(path)) nodes.set(name, node);
    this.#known.set(key, nodes);
  }
}

const NOTHING: ReadonlyMap<ByteString, LowerNode> = new Map();

/** What of a node of the tree matters to a lookup; its bytes do not. */
const looked = (node: FsNode): LowerNode => {
  if (node.kind !== 'file') return node;
  return { kind: 'file', metadata: node.metadata, sizeBytes: node.data.sizeBytes, bytes: noBytes };
};

async function* noBytes(): AsyncGenerator<Uint8Array> {
  // a file of the layer that is being made is not read
}
