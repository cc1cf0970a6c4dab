/** Takes layers and sets from whoever could still change them, before they are used. */
import type { Dirent } from 'node:fs';
import { lchown, lstat, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';

/** Layers stay what they are; only root changes them from now on. */
export async function takeLayers(directory: string): Promise<void> {
  if (await isRoots(directory)) return;
  for (const entry of await readdir(directory, { withFileTypes: true })) await take(directory, entry);
}

/** Sets are made again where they are needed. */
export async function dropSets(directory: string): Promise<void> {
  if (await isRoots(directory)) return;
  for (const name of await readdir(directory)) await rm(join(directory, name), { recursive: true, force: true });
}

/** A layer is a directory of files; a link is not followed. */
async function take(parent: string, entry: Dirent): Promise<void> {
  const path = join(parent, entry.name);
  const { uid } = await lstat(path);
  if (uid !== 0) await lchown(path, 0, 0);
  if (!entry.isDirectory()) return;
  for (const inner of await readdir(path, { withFileTypes: true })) await lchown(join(path, inner.name), 0, 0);
}

async function isRoots(directory: string): Promise<boolean> {
  const { uid, gid } = await lstat(directory);
  return uid === 0 && gid === 0;
}
