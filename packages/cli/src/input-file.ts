/** Files that a user names, which may lie in a tree of somebody else's making. */
import { constants, type Stats } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';

/** Of what has a parser with a bound of its own, which is below this and says more. */
export const MAX_PARSED_BYTES = 8 * 1024 * 1024;

export interface InputFile {
  /** For messages: "Dockerfile". */
  readonly what: string;
  readonly maxBytes: number;
}

/**
 * What is at a path, links followed.
 * @throws PlatformError `file_not_found`, also for a path that the kernel refuses, as a link to itself and a name that is too long are
 */
export async function statInput(path: string, what: string): Promise<Stats> {
  try {
    return await stat(path);
  } catch (cause) {
    throw notFound(path, what, cause);
  }
}

/** Like {@link statInput}; undefined when nothing is there. */
export async function statInputIfThere(path: string): Promise<Stats | undefined> {
  return await statInput(path, 'file').catch(undefinedIfMissing);
}

/**
 * The text of a regular file. A device or pipe is refused before it is read, for it may never end, and before its opening can wait for a writer.
 * @throws PlatformError `file_not_found`, `is_directory`, `not_regular_file`, `invalid_argument` when it is too long
 */
export async function readInput(path: string, { what, maxBytes }: InputFile): Promise<string> {
  const opened = open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  await using file = await opened.catch((cause: unknown) => {
    throw notFound(path, what, cause);
  });
  const info = await file.stat();
  if (info.isDirectory()) throw new PlatformError('is_directory', `${path} is a directory`, { details: { path } });
  if (!info.isFile()) throw new PlatformError('not_regular_file', `${path} is no regular file`, { details: { path } });
  // It may grow while it is read: not its size but one byte more than allowed tells.
  const bytes = Buffer.alloc(maxBytes + 1);
  let length = 0;
  while (length < bytes.length) {
    const { bytesRead } = await file.read(bytes, length, bytes.length - length, length);
    if (bytesRead === 0) return bytes.toString('utf8', 0, length);
    length += bytesRead;
  }
  throw new PlatformError('invalid_argument', `${path} is longer than ${maxBytes} bytes`, {
    details: { field: what, limit: maxBytes },
  });
}

/** Like {@link readInput}; undefined when nothing is there. */
export async function readInputIfThere(path: string, file: InputFile): Promise<string | undefined> {
  return await readInput(path, file).catch(undefinedIfMissing);
}

const notFound = (path: string, what: string, cause: unknown): PlatformError =>
  new PlatformError('file_not_found', `there is no ${what} ${path}`, { details: { path }, cause });

const MISSING: ReadonlySet<unknown> = new Set(['ENOENT', 'ENOTDIR']);

function undefinedIfMissing(error: unknown): undefined {
  const { cause } = PlatformError.is(error) ? error : {};
  if (cause instanceof Error && 'code' in cause && MISSING.has(cause.code)) return undefined;
  throw error;
}
