import { ByteString, defaultMetadata, type DirectoryNode, type FsNode, type Metadata, newDirectory } from '@dsec/erofs';

/**
 * What a directory tree says to overlayfs about the layers below it (Documentation/filesystems/overlayfs.rst, "whiteouts and opaque
 * directories"). No entry of an archive becomes such a mark: devices are refused, and attributes of this namespace left out.
 */
const MARK_PREFIX = 'trusted.overlay.';
const OPAQUE = ByteString.fromText(`${MARK_PREFIX}opaque`);
const OPAQUE_VALUE = Buffer.from('y');
/**
 * "Copied up from somewhere": of all that the kernel does with it, what matters here is that it looks for whiteouts in a directory that has
 * it also where nothing of the layers below is merged into it. Else they would be listed there as names without files.
 */
const ORIGIN = ByteString.fromText(`${MARK_PREFIX}origin`);
const ORIGIN_UNKNOWN = Buffer.alloc(0);

/** A device with number 0/0 says that there is nothing of its name, whatever lower layers have. */
export const newWhiteout = (): FsNode => ({
  kind: 'char-device',
  metadata: defaultMetadata(0),
  major: 0,
  minor: 0,
});

/** True for a node of a tree, or an inode of an image, that is a whiteout. */
export const isWhiteout = (node: {
  readonly kind: FsNode['kind'];
  readonly major?: number;
  readonly minor?: number;
}): boolean => node.kind === 'char-device' && node.major === 0 && node.minor === 0;

/** True when a directory hides what lower layers have in its place. */
export const isOpaque = (metadata: Metadata): boolean => {
  const value = metadata.xattrs.get(OPAQUE);
  return value !== undefined && OPAQUE_VALUE.equals(value);
};

/** A directory of which only what is put into it here shows. */
export const newOpaqueDirectory = (mode: number): DirectoryNode =>
  newDirectory(withMark(defaultMetadata(mode), OPAQUE, OPAQUE_VALUE));

export const withoutMarks = (metadata: Metadata): Metadata =>
  metadata.xattrs.size === 0
    ? metadata
    : { ...metadata, xattrs: new Map([...metadata.xattrs].filter(([name]) => !name.startsWith(MARK_PREFIX))) };

/**
 * Gives the directories of a finished tree their marks. What lies in an opaque directory needs none, for nothing is merged there; the root
 * of a layer cannot have any, for overlayfs merges roots whatever they say.
 *
 * @param opaque the directories that hide what is below them
 */
export const markDirectories = (root: DirectoryNode, opaque: ReadonlySet<DirectoryNode>): void => {
  if (!opaque.has(root)) for (const child of root.children.values()) mark(child, opaque);
};

const mark = (node: FsNode, opaque: ReadonlySet<DirectoryNode>): void => {
  if (node.kind !== 'directory') return;
  if (opaque.has(node)) {
    node.metadata = withMark(node.metadata, OPAQUE, OPAQUE_VALUE);
    return;
  }
  let hasWhiteouts = false;
  for (const child of node.children.values()) {
    hasWhiteouts ||= isWhiteout(child);
    mark(child, opaque);
  }
  if (hasWhiteouts) node.metadata = withMark(node.metadata, ORIGIN, ORIGIN_UNKNOWN);
};

const withMark = (metadata: Metadata, name: ByteString, value: Uint8Array): Metadata => ({
  ...metadata,
  xattrs: new Map(metadata.xattrs).set(name, value),
});

/** True when a node says something to overlayfs that layers never say here: what it would show cannot be told without it. */
export const hasForeignMarks = (metadata: Metadata): boolean => {
  for (const [name, value] of metadata.xattrs) {
    if (!name.startsWith(MARK_PREFIX) || name === ORIGIN) continue;
    if (name !== OPAQUE || !OPAQUE_VALUE.equals(value)) return true;
  }
  return false;
};
