/** COPY and ADD: what is chosen of a context or stage, and the layer that it becomes. */
import { createHash } from 'node:crypto';
import { PlatformError } from '@dsec/contract';
import {
  ByteString,
  defaultMetadata,
  type DirectoryNode,
  type FsNode,
  type ImageWriter,
  type Metadata,
  newDirectory,
} from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import { decompress } from '../decompress.ts';
import { LayerTree } from '../layer-tree.ts';
import type { LowerNode, LowerTree } from '../lower-tree.ts';
import { ownerOf, type Owner } from './accounts.ts';
import { contextChanged, CopyFault } from './copy-fault.ts';
import type { Dockerignore } from './dockerignore.ts';
import type { FoundNode, SourceTree } from './source-tree.ts';
import { UpperTree } from './upper-tree.ts';

/** Something to be copied: a directory with what is chosen of it, or anything else. */
export type Chosen = ChosenDirectory | Exclude<LowerNode, { readonly kind: 'directory' }>;

type ChosenFile = Extract<Chosen, { readonly kind: 'file' }>;

interface ChosenDirectory {
  readonly kind: 'directory';
  readonly metadata: Metadata;
  /** In the order of names. */
  readonly children: ReadonlyMap<ByteString, Chosen>;
}

export interface ChosenSource {
  /** Its own name: what it is called in a directory that it is copied into. */
  readonly name: ByteString;
  readonly node: Chosen;
}

export interface CopyPlan {
  readonly sources: readonly ChosenSource[];
  /** Of the files among the sources, as {@link digestOf} found them. */
  readonly digests: FileDigests;
  /** Absolute; with a slash at its end where it is a directory whatever is there. */
  readonly destination: string;
  /** `user:group` of the stage; absent: what the source says. */
  readonly owner: string | undefined;
  /** Permission bits of files and directories. */
  readonly mode: number | undefined;
  /** Unpack archives, as ADD does. */
  readonly unpacks: boolean;
  readonly signal?: AbortSignal | undefined;
}

const MAX_ENTRIES = 4_000_000;

/** Counts what one instruction copies, whatever the number of its sources: links may lead to one large directory again and again. */
export class CopyCount {
  readonly #limit: number;
  #entries = 0;

  constructor(limit = MAX_ENTRIES) {
    this.#limit = limit;
  }

  /** @throws CopyFault */
  add(): void {
    this.#entries++;
    if (this.#entries > this.#limit)
      throw new CopyFault('too_many_entries', `there are more than ${this.#limit} files and directories to copy`);
  }
}

/** Reads what is below something that was found, without what the context leaves out; undefined when that is all of it. */
export const choose = async (
  tree: SourceTree,
  { path, node }: FoundNode,
  ignore: Dockerignore,
  count: CopyCount,
): Promise<Chosen | undefined> => {
  const visit = async (at: readonly ByteString[], here: LowerNode): Promise<Chosen | undefined> => {
    count.add();
    const isIgnored = ignore.isIgnored(at.map(ByteString.toText));
    if (here.kind !== 'directory') return isIgnored ? undefined : here;
    if (isIgnored && !ignore.hasExceptions) return undefined;
    const found: { readonly name: ByteString; readonly node: LowerNode }[] = [];
    for await (const entry of tree.entries(at)) found.push(entry);
    found.sort((left, right) => ByteString.compare(left.name, right.name));
    const children = new Map<ByteString, Chosen>();
    for (const entry of found) {
      const child = await visit([...at, entry.name], entry.node);
      if (child !== undefined) children.set(entry.name, child);
    }
    return isIgnored && children.size === 0 ? undefined : { kind: 'directory', metadata: here.metadata, children };
  };
  return await visit(path, node);
};

/** Files that are read at the same time to know their digests. */
const FILES_AT_ONCE = 16;

/** SHA-256 in hex of the bytes of files. */
type FileDigests = ReadonlyMap<Chosen, string>;

/** A name for what the sources are: their names, kinds, modes, owners and bytes, but not their times; and the digests of the files among them. */
export const digestOf = async (
  sources: readonly ChosenSource[],
  signal?: AbortSignal,
): Promise<{ readonly content: string; readonly digests: FileDigests }> => {
  const digests = await fileDigests(sources, signal);
  const hash = createHash('sha256');
  const update = (name: ByteString, node: Chosen): void => {
    const { kind, metadata } = node;
    const { mode, uid, gid, xattrs } = metadata;
    const attributes = [...xattrs].map(([key, value]) => [key, Buffer.from(value).toString('hex')]);
    hash.update(`${JSON.stringify([name, kind, mode, uid, gid, attributes, contentOf(node, digests)])}\n`);
    if (kind === 'directory') for (const [child, below] of node.children) update(child, below);
  };
  for (const { name, node } of sources) update(name, node);
  return { content: hash.digest('hex'), digests };
};

const contentOf = (node: Chosen, digests: FileDigests): string | number => {
  if (node.kind === 'file') return digests.get(node) ?? '';
  if (node.kind === 'directory') return node.children.size;
  return node.kind === 'symlink' ? node.target : 0;
};

const fileDigests = async (sources: readonly ChosenSource[], signal: AbortSignal | undefined): Promise<FileDigests> => {
  const digests = new Map<Chosen, string>();
  const files = filesIn(sources.map(({ node }) => node));
  const work = async (): Promise<void> => {
    for (const file of files) {
      throwIfAborted(signal);
      const hash = createHash('sha256');
      for await (const part of file.bytes()) hash.update(part);
      digests.set(file, hash.digest('hex'));
    }
  };
  // All of them take from one iterator, and all end before the first failure is told.
  const ends = await Promise.allSettled(Array.from({ length: FILES_AT_ONCE }, work));
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
  return digests;
};

function* filesIn(nodes: Iterable<Chosen>): Generator<ChosenFile> {
  for (const node of nodes) {
    if (node.kind === 'file') yield node;
    else if (node.kind === 'directory') yield* filesIn(node.children.values());
  }
}

/** The bytes of a file, held against what they were when the step got its name: else the name would stand for others ever after. */
async function* unchanged(file: ChosenFile, digests: FileDigests): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  for await (const part of file.bytes()) {
    hash.update(part);
    yield part;
  }
  if (hash.digest('hex') !== digests.get(file)) throw contextChanged();
}

/**
 * Makes the tree of a layer that has the sources where the plan says.
 *
 * @param lower what the layer stands on
 * @throws PlaceFault, OwnerFault, CopyFault, `build_failed` for a file that is not what it was, and `archive_unsafe` or `image_corrupt` for an archive
 */
export const copyTree = async (lower: LowerTree, plan: CopyPlan, writer: ImageWriter): Promise<DirectoryNode> => {
  const owner = plan.owner === undefined ? undefined : await ownerOf(lower, plan.owner);
  const made = owner ?? { uid: 0, gid: 0 };
  const upper = await UpperTree.above(lower);
  const store = new NodeStore(writer, { owner, mode: plan.mode, digests: plan.digests, signal: plan.signal });
  const wanted = ByteString.split(ByteString.fromText(plan.destination), '/').filter((name) => name !== '');
  const isDirectory = plan.destination.endsWith('/') || plan.sources.length > 1;
  for (const { name, node } of plan.sources) {
    const target = await upper.place(wanted);
    const archive = plan.unpacks && node.kind === 'file' ? await unpacked(name, node, plan.digests, writer) : undefined;
    if (archive !== undefined) await upper.merge(target.path, archive, made);
    else if (node.kind === 'directory') await upper.merge(target.path, await store.directory(node), made);
    else {
      const isInside = isDirectory || target.present === 'directory';
      await upper.put(isInside ? [...target.path, name] : target.path, await store.node(node), made);
    }
  }
  return upper.root;
};

interface NodeChange extends Pick<CopyPlan, 'mode' | 'digests' | 'signal'> {
  readonly owner: Owner | undefined;
}

/** Puts the bytes of files into the layer. */
class NodeStore {
  readonly #writer: ImageWriter;
  readonly #change: NodeChange;

  constructor(writer: ImageWriter, change: NodeChange) {
    this.#writer = writer;
    this.#change = change;
  }

  async node(node: Chosen): Promise<FsNode> {
    throwIfAborted(this.#change.signal);
    const metadata = this.#changed(node);
    switch (node.kind) {
      case 'directory':
        return await this.directory(node);
      case 'file':
        return {
          kind: 'file',
          metadata,
          data: await this.#writer.store(node.sizeBytes, unchanged(node, this.#change.digests)),
        };
      case 'symlink':
        return { kind: 'symlink', metadata, target: node.target };
      default:
        return { kind: node.kind, metadata, major: node.major, minor: node.minor };
    }
  }

  async directory(from: ChosenDirectory): Promise<DirectoryNode> {
    const directory = newDirectory(this.#changed(from));
    for (const [name, child] of from.children) directory.children.set(name, await this.node(child));
    return directory;
  }

  #changed({ kind, metadata }: Chosen): Metadata {
    const { owner, mode } = this.#change;
    return { ...metadata, ...owner, ...(mode === undefined || kind === 'symlink' ? {} : { mode }) };
  }
}

/** Node.js reads neither of these forms; to copy such an archive as it is would not be what ADD says. */
const UNREAD_ARCHIVE = /\.(?:tar\.(?:xz|bz2|lzma|Z)|txz|tbz2?|tlz)$/i;
const TAR_MAGIC_AT = 257;
const TAR_MAGIC = 'ustar';

/** What is in an archive; undefined when the file is none. */
const unpacked = async (
  name: ByteString,
  file: ChosenFile,
  digests: FileDigests,
  writer: ImageWriter,
): Promise<DirectoryNode | undefined> => {
  if (UNREAD_ARCHIVE.test(name)) {
    throw new CopyFault(
      'archive_compression',
      `${ByteString.toText(name)} is unpacked only when it is compressed with gzip or zstd`,
    );
  }
  if (!(await isArchive(file))) return undefined;
  const tree = new LayerTree();
  await tree.apply(decompress(unchanged(file, digests), 'archive'), {
    name: 'archive',
    store: (sizeBytes, bytes) => writer.store(sizeBytes, bytes),
    whiteouts: 'none',
  });
  return tree.root;
};

const isArchive = async (file: ChosenFile): Promise<boolean> => {
  let head: Buffer = Buffer.alloc(0);
  try {
    for await (const part of decompress(file.bytes(), 'archive')) {
      head = Buffer.concat([head, part]);
      if (head.length >= TAR_MAGIC_AT + TAR_MAGIC.length) break;
    }
  } catch (error) {
    // What only begins like compressed data is a file like any other.
    if (PlatformError.is(error) && error.code === 'image_corrupt') return false;
    throw error;
  }
  return head.toString('latin1', TAR_MAGIC_AT, TAR_MAGIC_AT + TAR_MAGIC.length) === TAR_MAGIC;
};

/** A document of the Dockerfile as a file to copy. */
export const documentFile = (content: string): Chosen => {
  const bytes = Buffer.from(content);
  return { kind: 'file', metadata: defaultMetadata(0o644), sizeBytes: bytes.length, bytes: () => once(bytes) };
};

async function* once(bytes: Buffer): AsyncGenerator<Uint8Array> {
  if (bytes.length > 0) yield await Promise.resolve(bytes);
}
