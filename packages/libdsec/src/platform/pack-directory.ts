import { PlatformError } from '@dsec/contract';
import { constants } from 'node:fs';
import { lstat, open, readdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { pack, type Header, type Pack } from 'tar-stream';
import { localFileError } from './local-file-error.ts';

type EntryHeader = Partial<Header> & Pick<Header, 'name'>;

/** The kind bits of a mode: they keep the packer from taking a mode of 0 for one that was not given, and are not written. */
const KIND_BITS = constants.S_IFREG;

/**
 * A tar of what is in a directory: files, directories (empty ones too) and symlinks, with permission bits and times. Owners are
 * left out: whoever unpacks it owns it. Sockets, pipes and devices have no content to copy and are left out.
 * @throws PlatformError `file_not_found`, `not_directory`; `file_error` (from its chunks) for what cannot be read, and for a name that is
 * not UTF-8
 */
export async function packDirectory(path: string): Promise<AsyncIterable<Uint8Array>> {
  const info = await lstat(path).catch((error: unknown) => {
    throw new PlatformError('file_not_found', `there is no local directory ${path}`, {
      details: { path },
      cause: error,
    });
  });
  if (!info.isDirectory()) throw new PlatformError('not_directory', `${path} is no directory`, { details: { path } });
  const archive = pack();
  fill(archive, path, '').then(
    () => archive.finalize(),
    (error: unknown) => archive.destroy(localFileError(error, path) as Error),
  );
  // Its chunks are the bytes of the tar.
  return archive as AsyncIterable<Uint8Array>;
}

async function fill(archive: Pack, root: string, below: string): Promise<void> {
  for (const name of (await readdir(join(root, below))).toSorted()) {
    const relative = below === '' ? name : `${below}/${name}`;
    const path = join(root, relative);
    const info = await lstat(path);
    const header = { name: relative, mode: (info.mode & 0o7777) | KIND_BITS, mtime: info.mtime };
    if (info.isDirectory()) {
      await add(archive, { ...header, name: `${relative}/`, type: 'directory' });
      await fill(archive, root, relative);
    } else if (info.isSymbolicLink()) {
      await add(archive, { ...header, type: 'symlink', linkname: await readlink(path) });
    } else if (info.isFile()) {
      await addFile(archive, { ...header, type: 'file' }, path);
    }
  }
}

function add(archive: Pack, header: EntryHeader): Promise<void> {
  return new Promise((resolve, reject) => {
    archive.entry(header, (error) => (error ? reject(error) : resolve()));
  });
}

async function addFile(archive: Pack, header: EntryHeader, path: string): Promise<void> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  const { size } = await file.stat();
  await new Promise<void>((resolve, reject) => {
    const entry = archive.entry({ ...header, size }, (error) => (error ? reject(error) : resolve()));
    if (size === 0) {
      entry.end(undefined);
      return;
    }
    // Exactly as many bytes as the header says: a file that grows meanwhile is cut, one that shrinks is an error.
    const content = file.createReadStream({ autoClose: false, start: 0, end: size - 1 });
    content.once('error', reject);
    content.pipe(entry);
  });
}
