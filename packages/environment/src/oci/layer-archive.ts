import { PlatformError } from '@dsec/contract';
import { ByteString, type ImageReader, type Inode } from '@dsec/erofs';
import { isOpaque, isWhiteout, withoutMarks } from '../overlay-marks.ts';
import { TAR_END, tarHead, tarPadding } from '../tar/tar-writer.ts';

const WHITEOUT_PREFIX = ByteString.fromText('.wh.');
const OPAQUE_MARKER = ByteString.fromText('.wh..wh..opq');
const EPOCH = { seconds: 0, nanoseconds: 0 };

/** Where a path was first seen, by inode, for files of several names. */
type Links = Map<number, ByteString>;

/**
 * A layer as images have it (OCI image specification 1.1, "Image Layer Filesystem Changeset"): one uncompressed tar archive, in which whiteouts are
 * empty files of the name `.wh.NAME` and an opaque directory has one that is called `.wh..wh..opq`. Sockets, which tar does not know, are left out.
 *
 * @param name what errors call the layer
 * @throws PlatformError `image_unsupported` for a layer with a file whose own name begins with `.wh.`
 */
export async function* layerArchive(image: ImageReader, name: string): AsyncGenerator<Buffer> {
  const links: Links = new Map();
  for await (const { path, inode } of image.walk()) {
    if (isWhiteout({ kind: inode.kind, ...inode.device })) {
      yield marker(hiding(path));
      continue;
    }
    if (nameOf(path).startsWith(WHITEOUT_PREFIX)) {
      throw new PlatformError('image_unsupported', 'The layer has a file whose name would hide another in an image', {
        details: { layer: name, offset: 0, reason: 'whiteout_name', path: ByteString.toText(path).slice(0, 512) },
      });
    }
    yield* entry(image, path, inode, links);
    if (inode.kind === 'directory' && isOpaque(inode.metadata)) yield marker(inside(path, OPAQUE_MARKER));
  }
  yield TAR_END;
}

async function* entry(image: ImageReader, path: ByteString, inode: Inode, links: Links): AsyncGenerator<Buffer> {
  const { kind, sizeBytes, device } = inode;
  const head = { ...withoutMarks(inode.metadata), path };
  if (kind === 'socket') return;
  if (kind !== 'directory' && inode.nlink > 1) {
    const first = links.get(inode.nid);
    if (first !== undefined) {
      yield tarHead({ ...head, xattrs: new Map(), type: 'hard-link', linkPath: first });
      return;
    }
    links.set(inode.nid, path);
  }
  switch (kind) {
    case 'file':
      yield tarHead({ ...head, type: kind, sizeBytes });
      yield* image.read(inode);
      yield tarPadding(sizeBytes);
      return;
    case 'symlink':
      yield tarHead({ ...head, type: kind, linkPath: await image.readLink(inode) });
      return;
    default:
      yield tarHead({ ...head, type: kind, ...device });
  }
}

const nameOf = (path: ByteString): ByteString => ByteString.slice(path, path.lastIndexOf('/') + 1);

const inside = (directory: ByteString, name: ByteString): ByteString =>
  directory === '' ? name : ByteString.join(directory, name);

const hiding = (path: ByteString): ByteString => {
  const at = path.lastIndexOf('/');
  const hidden = ByteString.fromBytes(
    Buffer.concat([ByteString.toBytes(WHITEOUT_PREFIX), ByteString.toBytes(nameOf(path))]),
  );
  return at === -1 ? hidden : ByteString.join(ByteString.slice(path, 0, at), hidden);
};

const marker = (path: ByteString): Buffer =>
  tarHead({ type: 'file', path, mode: 0o644, uid: 0, gid: 0, mtime: EPOCH, sizeBytes: 0 });
