import { readdir, readFile, realpath, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { mountPoints, type Random } from '@dsec/kit';

/** `build-<pid>-<when that process started>-<random>`: the name alone says whether the build still runs. */
const MARK = /^build-([0-9]+)-([0-9]+)-[a-z0-9]+$/;

/** A name for what is only there while a build of this process runs. */
export const buildMark = async (random: Random): Promise<string> => {
  const { pid } = process;
  return `build-${pid}-${(await startTime(pid)) ?? '0'}-${random.base36(8)}`;
};

/** Whether the process that made a {@link buildMark} is gone; false for any other name. */
export const isStaleMark = async (name: string): Promise<boolean> => {
  const [, pid, started] = MARK.exec(name) ?? [];
  return pid !== undefined && (await startTime(Number(pid))) !== started;
};

export const draftName = async (random: Random): Promise<string> => `.${await buildMark(random)}`;

/** Removes what builds that were killed have left. */
export const removeStaleDrafts = async (layersDirectory: string): Promise<void> => {
  for (const name of await readdir(layersDirectory)) {
    if (!name.startsWith('.') || !(await isStaleMark(name.slice(1)))) continue;
    const draft = join(layersDirectory, name);
    // One with something mounted in it is still in use by somebody; a later build tries again.
    if (await hasMounts(draft)) continue;
    await removeTree(draft);
  }
};

/**
 * Removes a draft, but never what is mounted in it: that could be any part of this machine.
 *
 * @throws PlatformError `cleanup_incomplete` when something is mounted there
 */
export const removeDraft = async (draft: string): Promise<void> => {
  if (await hasMounts(draft)) {
    throw new PlatformError('cleanup_incomplete', 'Something is mounted in the directory of a build', {
      details: { left: basename(draft) },
    });
  }
  await removeTree(draft);
};

/** The processes of a build that was ended may take a moment to be gone, and write until then. */
const REMOVE_RETRIES = 10;
const REMOVE_RETRY_MS = 50;

const removeTree = (path: string): Promise<void> =>
  rm(path, { recursive: true, force: true, maxRetries: REMOVE_RETRIES, retryDelay: REMOVE_RETRY_MS });

const hasMounts = async (directory: string): Promise<boolean> => {
  const below = `${await realpath(directory).catch(() => directory)}/`;
  return (await mountPoints()).some((point) => point.startsWith(below));
};

/** When a process started, in clock ticks since the boot (proc(5), stat field 22): tells it from a later one with its pid. */
const startTime = async (pid: number): Promise<string | undefined> => {
  const stat = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => undefined);
  // The second field is the program's name, which may hold spaces and parentheses.
  return stat?.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
};
