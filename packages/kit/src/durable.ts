/** Files that are either the old or the new ones after a crash, never half. */
import { open, rename, unlink } from 'node:fs/promises';
import { dirname } from 'node:path';

export interface DurableOptions {
  /** Default 0600. */
  readonly mode?: number;
  readonly owner?: { readonly uid: number; readonly gid: number };
}

const DEFAULT_MODE = 0o600;

/** By path, the last write that is under way. */
const underWay = new Map<string, Promise<void>>();

/**
 * Writes a file so that after a crash either the old or the new content is there: temporary file, fsync, rename, fsync of the directory.
 * Writers of one path in this process take turns: what the last of them asked for stays.
 */
export async function writeDurably(
  path: string,
  data: string | Uint8Array,
  options: DurableOptions = {},
): Promise<void> {
  const write = (): Promise<void> => replace(path, data, options);
  const turn = underWay.get(path)?.then(write, write) ?? write();
  underWay.set(path, turn);
  try {
    await turn;
  } finally {
    if (underWay.get(path) === turn) underWay.delete(path);
  }
}

async function replace(path: string, data: string | Uint8Array, options: DurableOptions): Promise<void> {
  const temporary = `${path}.tmp.${process.pid}`;
  const mode = options.mode ?? DEFAULT_MODE;
  try {
    const file = await open(temporary, 'w', mode);
    try {
      await file.writeFile(data);
      // The mode of open is cut by the umask.
      await file.chmod(mode);
      if (options.owner !== undefined) await file.chown(options.owner.uid, options.owner.gid);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await unlink(temporary).catch(() => undefined);
    throw error;
  }
  await syncDirectory(dirname(path));
}

/** Makes the names in a directory durable. */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
