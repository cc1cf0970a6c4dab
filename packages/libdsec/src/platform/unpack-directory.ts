import { PlatformError } from '@dsec/contract';
import { constants } from 'node:fs';
import { link, lstat, mkdir, open, symlink, unlink, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { extract, type Header } from 'tar-stream';
import { localFileError } from './local-file-error.ts';

/** Most bytes that one tar may unpack to. */
const MAX_UNPACKED_BYTES = 1024 ** 4;
const MAX_ENTRIES = 10_000_000;

/**
 * Unpacks a tar below a directory, which is made when it is not there. The tar is taken for hostile:
 *
 * I1. Nothing outside the directory is made, changed or followed: names with `..` are refused, and no part of a way to an
 *     entry may be a symlink, whoever made it.
 * I2. Symlinks are made as they are written, but never followed.
 * I3. Devices are refused; set-uid, set-gid and sticky bits and owners are dropped.
 * I4. Bytes of a name that are no UTF-8 become U+FFFD. Two entries that would become one are refused: none is lost.
 *
 * @throws PlatformError `archive_unsafe`, `archive_invalid`, `request_too_large`; `file_error` for what cannot be written here
 */
export async function unpackDirectory(
  tar: AsyncIterable<Uint8Array<ArrayBuffer>>,
  path: string,
  maxBytes: number = MAX_UNPACKED_BYTES,
): Promise<void> {
  await mkdir(path, { recursive: true });
  const source = Readable.from(tar);
  const archive = extract();
  const failure: { error?: Error } = {};
  // The tar's own failure (a broken connection) says more than that the unpacking was cut short.
  source.once('error', (error) => {
    failure.error = error;
    archive.destroy(error);
  });
  source.pipe(archive);
  let left = maxBytes;
  let entries = 0;
  const modes = new Map<string, number>();
  const replaced = new Set<string>();
  try {
    for await (const entry of archive) {
      entries += 1;
      left -= entry.header.size;
      if (left < 0 || entries > MAX_ENTRIES)
        throw new PlatformError('request_too_large', `the directory is larger than ${maxBytes} bytes`);
      refuseSecond(replaced, entry.header.name);
      await place(path, entry.header, entry as AsyncIterable<Buffer>, modes);
      entry.resume();
    }
    // Last, and the deepest first: a directory that may not be written to has been filled by now.
    for (const [directory, mode] of [...modes].toReversed()) await setMode(directory, mode);
  } catch (error) {
    if (failure.error !== undefined) throw failure.error;
    const cause = localFileError(error, path);
    throw PlatformError.is(cause)
      ? cause
      : new PlatformError('archive_invalid', 'the tar of the directory is damaged', { cause });
  } finally {
    source.destroy();
  }
}

function refuseSecond(replaced: Set<string>, name: string): void {
  if (!name.includes('\ufffd')) return;
  if (replaced.has(name)) {
    throw new PlatformError(
      'file_error',
      `two names of the directory differ only in bytes that are no UTF-8: ${name}`,
      {
        details: { path: name, errno: 'EILSEQ' },
      },
    );
  }
  replaced.add(name);
}

async function place(
  root: string,
  header: Header,
  content: AsyncIterable<Buffer>,
  modes: Map<string, number>,
): Promise<void> {
  const parts = partsOf(header.name);
  if (parts.length === 0) return;
  const parent = await directoryAt(root, parts.slice(0, -1), header.name);
  const path = join(parent, parts.at(-1) ?? '');
  const mode = (header.mode ?? 0o644) & 0o777;
  switch (header.type) {
    case 'directory':
      await directoryAt(root, parts, header.name);
      modes.set(path, mode);
      return;
    case 'file':
    case 'contiguous-file': {
      await removeOld(path);
      await using file = await open(
        path,
        constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW,
        0o600,
      );
      for await (const chunk of content) await writeAll(file, chunk);
      await file.chmod(mode);
      if (header.mtime !== undefined) await file.utimes(header.mtime, header.mtime);
      return;
    }
    case 'symlink':
      await removeOld(path);
      await symlink(header.linkname ?? '', path);
      return;
    case 'link': {
      const target = partsOf(header.linkname ?? '');
      const from = join(await directoryAt(root, target.slice(0, -1), header.name), target.at(-1) ?? '');
      if (!(await lstat(from)).isFile()) throw unsafe(header.name, 'is a hard link to something that is no file');
      await removeOld(path);
      await link(from, path);
      return;
    }
    case 'fifo':
    case 'character-device':
    case 'block-device':
      throw unsafe(header.name, 'is a device or pipe');
    default:
      throw new PlatformError('archive_invalid', `entry ${header.name} is of an unknown kind`, {
        details: { offset: 0 },
      });
  }
}

/** The parts of a name, which must stay below its root. */
function partsOf(name: string): readonly string[] {
  if (name.startsWith('/')) throw unsafe(name, 'has an absolute name');
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..') || name.includes('\0')) throw unsafe(name, 'leads out of the directory');
  return parts;
}

/** The directory of these parts, made where it is missing; every part is a real directory. */
async function directoryAt(root: string, parts: readonly string[], entry: string): Promise<string> {
  let path = root;
  for (const part of parts) {
    path = join(path, part);
    const info = await lstat(path).catch(() => undefined);
    if (info === undefined) await mkdir(path);
    else if (!info.isDirectory()) throw unsafe(entry, 'leads through something that is no directory');
  }
  return path;
}

async function removeOld(path: string): Promise<void> {
  const info = await lstat(path).catch(() => undefined);
  if (info !== undefined) await unlink(path);
}

async function setMode(path: string, mode: number): Promise<void> {
  await using directory = await open(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  await directory.chmod(mode);
}

async function writeAll(file: FileHandle, chunk: Buffer): Promise<void> {
  for (let at = 0; at < chunk.length; ) at += (await file.write(chunk, at)).bytesWritten;
}

function unsafe(entry: string, what: string): PlatformError {
  return new PlatformError('archive_unsafe', `entry ${entry} of the directory ${what}`, { details: { entry } });
}
