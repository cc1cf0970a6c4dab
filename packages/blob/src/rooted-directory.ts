/**
 * Files below one directory, reached without following a symbolic link below it, whoever else writes there: each part of a path is opened
 * from the directory before it, by its name under `/proc/self/fd` (Node has no openat), and a link is refused by O_NOFOLLOW.
 */
import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, rmdir } from 'node:fs/promises';
import { errno } from './store-error.ts';

const { O_DIRECTORY, O_NOFOLLOW, O_RDONLY } = constants;
const DIRECTORY_MODE = 0o755;

/** The path of a name in an open directory. */
export const inside = (directory: FileHandle, name: string): string => `/proc/self/fd/${directory.fd}/${name}`;

/** Opens the directory of these parts below `root`; undefined when it is not there. */
export async function openDirectory(root: string, parts: readonly string[]): Promise<FileHandle | undefined> {
  let directory = await open(root, O_RDONLY | O_DIRECTORY);
  for (const part of parts) {
    const next = await openStep(directory, part);
    if (next === undefined) return undefined;
    directory = next;
  }
  return directory;
}

/** As `openDirectory`, making what is not there, durably. */
export async function makeDirectory(root: string, parts: readonly string[]): Promise<FileHandle> {
  let directory = await open(root, O_RDONLY | O_DIRECTORY);
  for (const part of parts) {
    try {
      await mkdir(inside(directory, part), DIRECTORY_MODE);
      await directory.sync();
    } catch (error) {
      if (errno(error) !== 'EEXIST') {
        await directory.close();
        throw error;
      }
    }
    const next = await openStep(directory, part);
    // Empty, and removed in this moment.
    if (next === undefined) throw Object.assign(new Error(`${part} is gone again`), { code: 'ENOENT' });
    directory = next;
  }
  return directory;
}

/** Removes a directory below `root` if it is empty. */
export async function removeEmptyDirectory(root: string, parts: readonly string[]): Promise<void> {
  await using parent = await openDirectory(root, parts.slice(0, -1));
  const name = parts.at(-1);
  if (parent === undefined || name === undefined) return;
  await rmdir(inside(parent, name)).catch((error: unknown) => {
    if (!['ENOTEMPTY', 'EEXIST', 'ENOENT', 'EBUSY'].includes(errno(error) ?? '')) throw error;
  });
}

/** Goes one directory down and closes the one above; undefined when there is none of that name. */
async function openStep(directory: FileHandle, name: string): Promise<FileHandle | undefined> {
  try {
    return await open(inside(directory, name), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  } catch (error) {
    if (errno(error) === 'ENOENT') return undefined;
    throw error;
  } finally {
    await directory.close();
  }
}
