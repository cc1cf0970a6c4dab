import {
  ByteString,
  defaultMetadata,
  type DirectoryNode,
  EMPTY_FILE,
  type FsNode,
  MAX_NAME_BYTES,
  newDirectory,
} from '@dsec/erofs';
import type { LowerNode, LowerTree } from './lower-tree.ts';
import { isOpaque, isWhiteout, newOpaqueDirectory } from './overlay-marks.ts';

/** Mount points that every sandbox needs, and their modes when an image does not have them. */
const directories: Readonly<Record<string, number>> = {
  dev: 0o755,
  etc: 0o755,
  proc: 0o555,
  run: 0o755,
  sys: 0o555,
  tmp: 0o1777,
};
/** Files that are each sandbox's own: in the image they are empty, whatever machine it was made on. */
const perSandboxFiles = ['hosts', 'hostname', 'resolv.conf'];

/**
 * Sees to it that a layer above a complete root file system leaves it complete.
 *
 * @param root the finished tree of the layer
 */
export const completeUpperRoot = (root: DirectoryNode): void => {
  for (const [name, mode] of Object.entries(directories)) {
    const key = ByteString.fromText(name);
    const child = root.children.get(key);
    if (child !== undefined && isWhiteout(child)) root.children.set(key, newOpaqueDirectory(mode));
  }
  addPerSandboxFiles(root);
};

/** Puts into a root file system what a sandbox is mounted on. What the image has instead of a directory stays as it is. */
export const completeRoot = (root: DirectoryNode): void => {
  for (const [name, mode] of Object.entries(directories)) {
    const key = ByteString.fromText(name);
    if (!root.children.has(key)) root.children.set(key, newDirectory(defaultMetadata(mode)));
  }
  addPerSandboxFiles(root);
};

const addPerSandboxFiles = (root: DirectoryNode): void => {
  const etc = root.children.get(ByteString.fromText('etc'));
  if (etc?.kind !== 'directory') return;
  for (const name of perSandboxFiles) etc.children.set(ByteString.fromText(name), emptyFile(0o644));
};

export const emptyFile = (mode: number): FsNode => ({
  kind: 'file',
  metadata: defaultMetadata(mode),
  data: EMPTY_FILE,
});

/** Whether there is something at the path of a working directory, so that nothing has to be made. */
export const hasWorkdir = async (tree: LowerTree, workdir: string): Promise<boolean> => {
  const names = workdirNames(workdir);
  for (let length = 1; length <= names.length; length++) {
    const found = await tree.lookup(names.slice(0, length));
    if (found === undefined) return false;
    // What is behind a link or a file is not for a layer to make.
    if (found.kind !== 'directory') return true;
  }
  return true;
};

/**
 * Makes the missing directories of a path, as container engines do for WORKDIR; stops where it would lead through anything else.
 *
 * @param root the finished tree of a layer
 * @param below what the layer stands on, if anything
 * @returns whether a directory was missing
 */
export const completeWorkdir = async (root: DirectoryNode, workdir: string, below?: LowerTree): Promise<boolean> => {
  const names = workdirNames(workdir);
  const path: { readonly name: ByteString; readonly node: DirectoryNode; readonly isPresent: boolean }[] = [];
  let directory: DirectoryNode | undefined = root;
  let isSealed = below === undefined;
  for (const [depth, name] of names.entries()) {
    const own: FsNode | undefined = directory?.children.get(name);
    if (own !== undefined && own.kind !== 'directory' && !isWhiteout(own)) return false;
    if (own?.kind === 'directory') {
      isSealed ||= isOpaque(own.metadata);
      path.push({ name, node: own, isPresent: true });
      directory = own;
      continue;
    }
    const lower: LowerNode | undefined =
      isSealed || own !== undefined ? undefined : await below?.lookup(names.slice(0, depth + 1));
    if (lower !== undefined && lower.kind !== 'directory') return false;
    // Where a whiteout was, nothing from below may show again.
    const node: DirectoryNode =
      own === undefined ? newDirectory(lower?.metadata ?? defaultMetadata(0o755)) : newOpaqueDirectory(0o755);
    path.push({ name, node, isPresent: lower !== undefined });
    isSealed ||= lower === undefined;
    directory = undefined;
  }
  if (path.every(({ isPresent }) => isPresent)) return false;
  let parent = root;
  for (const { name, node } of path) {
    parent.children.set(name, node);
    parent = node;
  }
  return true;
};

/** None for one that no layer can make. */
const workdirNames = (workdir: string): ByteString[] => {
  const names = ByteString.split(ByteString.fromText(workdir), '/').filter((name) => name !== '' && name !== '.');
  return names.some((name) => name === '..' || name.length > MAX_NAME_BYTES) ? [] : names;
};
