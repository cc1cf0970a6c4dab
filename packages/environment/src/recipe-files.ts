import { createReadStream, type BigIntStats } from 'node:fs';
import { lstat, opendir, readlink } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';
import {
  ByteString,
  defaultMetadata,
  type DirectoryNode,
  EPOCH,
  type FsNode,
  type ImageWriter,
  type Metadata,
  newDirectory,
} from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import type { BuildContext } from './build-context.ts';
import type { LayerContent } from './build-layer.ts';
import { hostArchitecture } from './host-architecture.ts';
import type { Recipe, RecipeFile } from './recipe.ts';
import { findSource } from './recipe-source.ts';
import { completeUpperRoot } from './root-skeleton.ts';
import { statMetadata } from './stat-metadata.ts';

/** Files, directories and links of all trees together. */
const MAX_ENTRIES = 4_000_000;

/** A directory that a layer passes through shows in the sandbox with the layer's mode: these have one that matters. */
const directoryModes: Readonly<Record<string, number>> = { root: 0o700, tmp: 0o1777, 'var/tmp': 0o1777 };

/**
 * The files of a workspace or toolkit as one layer to stand above a base. They belong to root, but for those whose recipe names another
 * owner by number.
 *
 * @throws PlatformError `recipe_invalid` for a source that is not there, or an owner that is no number
 */
export const filesOfRecipe = async (
  context: BuildContext,
  { recipe, directory }: { readonly recipe: Recipe; readonly directory: string },
  writer: ImageWriter,
): Promise<LayerContent> => {
  const tree = new FilesTree(context, writer);
  for (const [index, { path, source }] of (recipe.trees ?? []).entries()) {
    const from = await findSource(directory, source, { field: `trees.${index}.source`, kind: 'directory' });
    context.onProgress?.({ step: `storing ${source}` });
    await tree.addTree(namesOf(path), Buffer.from(from));
  }
  for (const [index, file] of (recipe.files ?? []).entries()) {
    await tree.addFile(file, { index, directory });
  }
  completeUpperRoot(tree.root);
  const { env = {}, workdir = '' } = recipe;
  return {
    root: tree.root,
    config: { env, user: '', workdir, entrypoint: [], cmd: [], labels: {} },
    architecture: hostArchitecture(),
    source: { kind: 'recipe', name: recipe.name },
  };
};

const namesOf = (path: string): string[] => path.split('/').filter((name) => name !== '' && name !== '.');

class FilesTree {
  readonly root: DirectoryNode = newDirectory();
  readonly #context: BuildContext;
  readonly #writer: ImageWriter;
  #entries = 0;

  constructor(context: BuildContext, writer: ImageWriter) {
    this.#context = context;
    this.#writer = writer;
  }

  async addFile(file: RecipeFile, place: { readonly index: number; readonly directory: string }): Promise<void> {
    const field = `files.${place.index}`;
    const names = namesOf(file.path);
    const name = ByteString.fromText(names.pop() ?? '');
    const metadata = { ...defaultMetadata(Number.parseInt(file.mode ?? '0644', 8)), ...ownerOf(file, field) };
    const directory = this.#enter(names);
    if (file.source === undefined) {
      const bytes = Buffer.from(file.content ?? '');
      directory.children.set(name, {
        kind: 'file',
        metadata,
        data: await this.#writer.store(bytes.length, once(bytes)),
      });
      return;
    }
    const path = await findSource(place.directory, file.source, { field: `${field}.source`, kind: 'file' });
    directory.children.set(name, await this.#file(Buffer.from(path), await statOf(Buffer.from(path)), metadata));
  }

  /** A whole directory; what is neither file, directory nor link stays away. */
  async addTree(names: readonly string[], from: Buffer): Promise<void> {
    const target = this.#enter(names);
    if (target !== this.root) target.metadata = { ...statMetadata(await statOf(from)) };
    await this.#fill(target, from);
  }

  async #fill(target: DirectoryNode, from: Buffer): Promise<void> {
    const names: Buffer[] = [];
    for await (const { name } of await opendir(from, { encoding: 'buffer' as BufferEncoding }))
      names.push(name as unknown as Buffer);
    // In the order of bytes, so that equal directories make equal layers.
    for (const name of names.toSorted((left, right) => left.compare(right))) {
      throwIfAborted(this.#context.signal);
      this.#entries++;
      if (this.#entries > MAX_ENTRIES) throw tooMany();
      const path = Buffer.concat([from, Buffer.from('/'), name]);
      const node = await this.#node(path, await statOf(path), target.children.get(ByteString.fromBytes(name)));
      if (node !== undefined) target.children.set(ByteString.fromBytes(name), node);
    }
  }

  async #node(path: Buffer, info: BigIntStats, present: FsNode | undefined): Promise<FsNode | undefined> {
    const metadata = statMetadata(info);
    if (info.isDirectory()) {
      const directory = present?.kind === 'directory' ? present : newDirectory();
      directory.metadata = metadata;
      await this.#fill(directory, path);
      return directory;
    }
    if (info.isSymbolicLink()) {
      const target = ByteString.fromBytes(await readlink(path, { encoding: 'buffer' }));
      return { kind: 'symlink', metadata, target };
    }
    return info.isFile() ? await this.#file(path, info, metadata) : undefined;
  }

  async #file(path: Buffer, info: BigIntStats, metadata: Metadata): Promise<FsNode> {
    const size = Number(info.size);
    const bytes = size === 0 ? once(Buffer.alloc(0)) : createReadStream(path, { end: size - 1 });
    return { kind: 'file', metadata, data: await this.#writer.store(size, bytes as AsyncIterable<Uint8Array>) };
  }

  #enter(names: readonly string[]): DirectoryNode {
    let directory = this.root;
    for (const [depth, name] of names.entries()) {
      const key = ByteString.fromText(name);
      let child = directory.children.get(key);
      if (child?.kind !== 'directory') {
        child = newDirectory(defaultMetadata(directoryModes[names.slice(0, depth + 1).join('/')] ?? 0o755));
        directory.children.set(key, child);
      }
      directory = child;
    }
    return directory;
  }
}

const statOf = (path: Buffer): Promise<BigIntStats> => lstat(path, { bigint: true });

/** The layer does not know the accounts of the base that it will stand on. */
const ownerOf = ({ owner }: RecipeFile, field: string): Pick<Metadata, 'uid' | 'gid' | 'mtime'> => {
  if (owner === undefined || owner === 'root' || owner === 'root:root') return { uid: 0, gid: 0, mtime: EPOCH };
  const [, uid, gid = uid] = /^(\d{1,5})(?::(\d{1,5}))?$/.exec(owner) ?? [];
  if (uid === undefined || Number(uid) > 65_534 || Number(gid) > 65_534) {
    throw new PlatformError(
      'recipe_invalid',
      `the recipe: ${field}.owner must be given by number in a layer above a base`,
      {
        details: { field: `${field}.owner` },
      },
    );
  }
  return { uid: Number(uid), gid: Number(gid), mtime: EPOCH };
};

const tooMany = (): PlatformError =>
  new PlatformError('recipe_invalid', `the recipe: trees hold more than ${MAX_ENTRIES} entries`, {
    details: { field: 'trees', limit: MAX_ENTRIES },
  });

async function* once(bytes: Buffer): AsyncGenerator<Uint8Array> {
  if (bytes.length > 0) yield await Promise.resolve(bytes);
}

/** Whether a recipe's layer depends on files beside it. */
export const readsFiles = ({ files = [], trees = [] }: Recipe): boolean =>
  trees.length > 0 || files.some(({ source }) => source !== undefined);
