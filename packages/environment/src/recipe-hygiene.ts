import { ByteString, defaultMetadata, type DirectoryNode, newDirectory } from '@dsec/erofs';
import type { LayerOptions } from './layer-tree.ts';
import type { Recipe } from './recipe.ts';
import { emptyFile } from './root-skeleton.ts';

/**
 * What a freshly made root file system holds of the machine and the moment it was made on, and what nothing reads again: caches, logs,
 * identities, package sources and the proxies of this host.
 */
const dropped: readonly RegExp[] = [
  /^(?:dev|run|tmp|var\/tmp)\/./,
  /^etc\/(?:machine-id|(?:passwd|shadow|group|gshadow|subuid|subgid)-|ssh\/ssh_host_.*)$/,
  /^etc\/apt\/(?:apt\.conf|apt\.conf\.d\/99mmdebstrap|auth\.conf|auth\.conf\.d\/.*)$/,
  /^etc\/dpkg\/dpkg\.cfg\.d\/99mmdebstrap$/,
  /^root\/\.(?:bash_history|wget-hsts|cache\/.*)$/,
  /^var\/cache\/(?:ldconfig\/aux-cache|debconf\/.*-old|apt\/.*\.bin)$/,
  /^var\/lib\/(?:dbus\/machine-id|systemd\/random-seed|dpkg\/.*-old)$/,
];
/** Here only files go: the directories belong to packages. */
const droppedFiles: readonly RegExp[] = [/^var\/(?:log|cache\/apt|lib\/apt\/lists)\/./];
const aptSources = /^etc\/apt\/(?:sources\.list|sources\.list\.d\/.*)$/;

/** Which entries of the archive that mmdebstrap writes go into the image. What the recipe itself put somewhere stays. */
export const keptEntries = (recipe: Recipe): NonNullable<LayerOptions['keep']> => {
  const own = new Set((recipe.files ?? []).map(({ path }) => ByteString.fromText(path.replace(/^\/+/, ''))));
  return (names, entry) => {
    const path = ByteString.join(...names);
    if (own.has(path)) return true;
    if (dropped.some((pattern) => pattern.test(path))) return false;
    if (entry.type !== 'directory' && droppedFiles.some((pattern) => pattern.test(path))) return false;
    return recipe.aptSources === 'host' || !aptSources.test(path);
  };
};

/** Puts back as empty files what programs expect to find. */
export const completeRecipeRoot = (root: DirectoryNode): void => {
  const etc = directoryAt(root, 'etc');
  etc.children.set(ByteString.fromText('machine-id'), emptyFile(0o444));
  const apt = etc.children.get(ByteString.fromText('apt'));
  const sources = ByteString.fromText('sources.list');
  if (apt?.kind === 'directory' && !apt.children.has(sources)) apt.children.set(sources, emptyFile(0o644));
};

const directoryAt = (root: DirectoryNode, name: string): DirectoryNode => {
  const key = ByteString.fromText(name);
  const child = root.children.get(key);
  if (child?.kind === 'directory') return child;
  const made = newDirectory(defaultMetadata(0o755));
  root.children.set(key, made);
  return made;
};
