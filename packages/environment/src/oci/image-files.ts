import { constants } from 'node:fs';
import { type FileHandle, lstat, open, stat } from 'node:fs/promises';
import { join, posix } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import { decompress, detectCompression } from '../decompress.ts';
import { TarReader } from '../tar/tar-reader.ts';

/** The named files of an image layout, wherever they are. */
export interface ImageFiles extends AsyncDisposable {
  /** @returns undefined when there is no such file */
  size(name: string): Promise<number | undefined>;
  /** The bytes of a file that exists. */
  read(name: string): AsyncIterable<Uint8Array>;
  /** Says, before the first layer is read, which layers will be: what has to be fetched is fetched for these only. */
  expectLayers?(names: readonly string[]): void;
}

/** Where a compressed archive is unpacked to. */
export interface UnpackedArchive {
  /** A file that is not there yet. */
  readonly path: string;
  /** Most that it may have: a few megabytes unpack to terabytes. */
  readonly maxBytes: number;
}

/** Files of one archive, its index included; a real one has a few dozen. */
const MAX_ARCHIVE_FILES = 100_000;
const MAX_SYMLINKS_FOLLOWED = 8;
const READ_BYTES = 1024 * 1024;

/**
 * Opens an OCI layout directory, or an archive of one or of `docker save` (plain, gzip or zstd).
 *
 * @param unpack says where the plain form of a compressed archive goes; it outlives the returned object
 * @throws PlatformError `invalid_argument` when there is nothing at the path, `image_corrupt` for a damaged archive, `image_unsupported` for one
 * that is too large
 */
export const openImageFiles = async (path: string, unpack: () => Promise<UnpackedArchive>): Promise<ImageFiles> => {
  const info = await stat(path).catch((cause: unknown) => {
    throw new PlatformError('invalid_argument', `There is no image at ${path}`, { details: { field: 'path' }, cause });
  });
  if (info.isDirectory()) return new DirectoryFiles(path);
  if (!info.isFile()) {
    throw new PlatformError('invalid_argument', `${path} is neither a directory nor a file`, {
      details: { field: 'path' },
    });
  }
  const file = await open(path, 'r');
  try {
    const head = Buffer.alloc(4);
    await file.read(head, 0, head.length, 0);
    if (detectCompression(head) === 'none') return await ArchiveFiles.index(file);
    const { path: plainPath, maxBytes } = await unpack();
    const plain = await open(plainPath, 'wx+', 0o600);
    try {
      let offset = 0;
      for await (const chunk of decompress(rangeOf(file, 0, info.size), 'archive')) {
        if (offset + chunk.length > maxBytes) throw tooLarge(offset, maxBytes);
        await plain.appendFile(chunk);
        offset += chunk.length;
      }
      await file.close();
      return await ArchiveFiles.index(plain);
    } catch (error) {
      await plain.close();
      throw error;
    }
  } catch (error) {
    await file.close().catch(() => undefined);
    throw error;
  }
};

class DirectoryFiles implements ImageFiles {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
  }

  async size(name: string): Promise<number | undefined> {
    if (!isPlainName(name)) return undefined;
    try {
      const info = await lstat(join(this.#directory, name));
      return info.isFile() ? info.size : undefined;
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  async *read(name: string): AsyncGenerator<Uint8Array> {
    // A link in the layout could lead to any file of the host.
    const file = await open(join(this.#directory, name), constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      yield* rangeOf(file, 0, (await file.stat()).size);
    } finally {
      await file.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}

interface ArchivedFile {
  readonly offset: number;
  readonly sizeBytes: number;
}

/** The files of an uncompressed tar archive, found by one pass over its headers. */
class ArchiveFiles implements ImageFiles {
  readonly #file: FileHandle;
  readonly #files: ReadonlyMap<string, ArchivedFile>;
  readonly #links: ReadonlyMap<string, string>;

  private constructor(file: FileHandle, files: ReadonlyMap<string, ArchivedFile>, links: ReadonlyMap<string, string>) {
    this.#file = file;
    this.#files = files;
    this.#links = links;
  }

  static async index(file: FileHandle): Promise<ArchiveFiles> {
    const { size } = await file.stat();
    const files = new Map<string, ArchivedFile>();
    const links = new Map<string, string>();
    for await (const entry of new TarReader(rangeOf(file, 0, size), 'archive').entries()) {
      if (files.size + links.size >= MAX_ARCHIVE_FILES) {
        throw new PlatformError('image_unsupported', 'The archive has too many files', {
          details: { layer: 'archive', offset: entry.offset, reason: 'too_many_entries' },
        });
      }
      const name = normalized(ByteString.toText(entry.path));
      // Older archives of `docker save` have equal layers once, and links to them.
      if (entry.type === 'symlink') links.set(name, resolved(name, ByteString.toText(entry.linkPath)));
      if (entry.type === 'hard-link') links.set(name, normalized(ByteString.toText(entry.linkPath)));
      if (entry.type !== 'file') continue;
      if (entry.dataOffset === undefined) {
        throw new PlatformError('image_unsupported', 'The archive has a sparse file', {
          details: { layer: 'archive', offset: entry.offset, reason: 'sparse_format' },
        });
      }
      files.set(name, { offset: entry.dataOffset, sizeBytes: entry.sizeBytes });
    }
    return new ArchiveFiles(file, files, links);
  }

  size(name: string): Promise<number | undefined> {
    return Promise.resolve(this.#find(name)?.sizeBytes);
  }

  read(name: string): AsyncIterable<Uint8Array> {
    const found = this.#find(name) ?? { offset: 0, sizeBytes: 0 };
    return rangeOf(this.#file, found.offset, found.sizeBytes);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }

  #find(name: string): ArchivedFile | undefined {
    let at = normalized(name);
    for (let followed = 0; followed < MAX_SYMLINKS_FOLLOWED; followed++) {
      const next = this.#links.get(at);
      if (next === undefined) return this.#files.get(at);
      at = next;
    }
    return undefined;
  }
}

const tooLarge = (offset: number, limit: number): PlatformError =>
  new PlatformError('image_unsupported', `The archive unpacks to more than ${limit} bytes`, {
    details: { layer: 'archive', offset, reason: 'archive_size', limit },
  });

async function* rangeOf(file: FileHandle, offset: number, sizeBytes: number): AsyncGenerator<Uint8Array> {
  for (let done = 0; done < sizeBytes; ) {
    const wanted = Math.min(READ_BYTES, sizeBytes - done);
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(wanted), 0, wanted, offset + done);
    if (bytesRead === 0) return; // a file that shrank: what reads it finds it too short
    yield buffer.subarray(0, bytesRead);
    done += bytesRead;
  }
}

/** Names in a layout are relative and have no `..`; anything else names no file of it. */
const isPlainName = (name: string): boolean =>
  name.split('/').every((part) => part !== '' && part !== '.' && part !== '..' && !part.includes('\0'));

const normalized = (name: string): string => posix.normalize(name).replace(/^(\.\/|\/)+/, '');

const resolved = (link: string, target: string): string => normalized(posix.join(posix.dirname(link), target));

const isMissing = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === 'ENOENT';
