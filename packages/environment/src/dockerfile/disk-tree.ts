import { constants, type BigIntStats } from 'node:fs';
import { lstat, open, opendir, readlink } from 'node:fs/promises';
import { ByteString } from '@dsec/erofs';
import { contextChanged } from './copy-fault.ts';
import type { LowerEntry, LowerNode } from '../lower-tree.ts';
import { statMetadata } from '../stat-metadata.ts';
import { SourceTree } from './source-tree.ts';

const READ_BYTES = 1024 * 1024;

/**
 * A directory of this machine as a tree to copy from. No link is followed by the kernel: what a path means is decided by {@link SourceTree}, in
 * which links cannot lead out of the directory. Owners are root, as they are of what a build copies from its context.
 */
export class DiskTree extends SourceTree {
  readonly #directory: Buffer;

  /** @param directory an absolute path without links in it */
  constructor(directory: string) {
    super();
    this.#directory = Buffer.from(directory);
  }

  async lookup(path: readonly ByteString[]): Promise<LowerNode | undefined> {
    const place = this.#place(path);
    try {
      return await nodeOf(place, await lstat(place, { bigint: true }));
    } catch (error) {
      if (isAbsent(error)) return undefined;
      throw error;
    }
  }

  async *entries(path: readonly ByteString[]): AsyncGenerator<LowerEntry> {
    if ((await this.lookup(path))?.kind !== 'directory') return;
    const place = this.#place(path);
    for await (const { name: raw } of await opendir(place, { encoding: 'buffer' as BufferEncoding })) {
      const name = ByteString.fromBytes(raw as unknown as Buffer);
      const node = await this.lookup([...path, name]);
      if (node !== undefined) yield { name, node };
    }
  }

  #place(path: readonly ByteString[]): Buffer {
    const names = path.map((name) => ByteString.toBytes(ByteString.join(SLASH, name)));
    return Buffer.concat(path.length > 0 && this.#directory.equals(ROOT) ? names : [this.#directory, ...names]);
  }
}

/** Joined before a name it makes a slash. */
const SLASH = ByteString.fromText('');
const ROOT = Buffer.from('/');

const nodeOf = async (place: Buffer, info: BigIntStats): Promise<LowerNode | undefined> => {
  const metadata = statMetadata(info);
  if (info.isDirectory()) return { kind: 'directory', metadata };
  if (info.isSymbolicLink()) {
    return { kind: 'symlink', metadata, target: ByteString.fromBytes(await readlink(place, { encoding: 'buffer' })) };
  }
  if (info.isFile()) {
    const sizeBytes = Number(info.size);
    return { kind: 'file', metadata, sizeBytes, bytes: () => bytesOf(place, sizeBytes) };
  }
  if (info.isFIFO()) return { kind: 'fifo', metadata, major: 0, minor: 0 };
  // Sockets and devices of the machine are nothing to copy.
  return undefined;
};

async function* bytesOf(place: Buffer, sizeBytes: number): AsyncGenerator<Uint8Array> {
  // It may have become a link since it was looked at.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(place, flags).catch((cause: unknown) => {
    throw isAbsent(cause) || isLink(cause) ? contextChanged(cause) : cause;
  });
  try {
    // So may a directory above it: the kernel says where the file is that was opened.
    const opened = await readlink(`/proc/self/fd/${file.fd}`, { encoding: 'buffer' });
    if (!opened.equals(place)) throw contextChanged();
    for (let done = 0; done < sizeBytes; ) {
      const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(Math.min(READ_BYTES, sizeBytes - done)));
      if (bytesRead === 0) throw contextChanged();
      yield buffer.subarray(0, bytesRead);
      done += bytesRead;
    }
  } finally {
    await file.close();
  }
}

const isLink = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === 'ELOOP';

const isAbsent = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENOTDIR');
