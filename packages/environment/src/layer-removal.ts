/**
 * Takes layers from a node that nobody needs. Who knows that is asked twice: before a layer leaves its place and after it, when no create and no build
 * can find it any more; what was begun on it in between puts it back, whole.
 *
 * It may be killed at any moment. A layer is in its place, or aside and whole, from where the next build or removal puts it back, or a draft, which
 * the next one removes. Whatever is deleted has left its place durably before.
 */
import { lstat, mkdir, readdir, rename, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { syncDirectory, throwIfAborted, type Random } from '@dsec/kit';
import { buildMark, draftName, isStaleMark, removeDraft, removeStaleDrafts } from './draft.ts';
import { withTurn } from './layer-holds.ts';

const HEX = /^[0-9a-f]{64}$/;
const ASIDE = '.aside-';
/** What a file takes is counted in blocks of this size (stat(2)). */
const STAT_BLOCK_BYTES = 512;
/** Layers of one turn, for which builds wait. */
const BATCH = 64;

export interface LayerRemovalOptions {
  readonly layersDirectory: string;
  readonly holdsDirectory: string;
  readonly random: Random;
  /**
   * Says which of these layers no environment names and no sandbox or pack needs, and has the node let go of them; those whose files are gone
   * may be among them.
   */
  readonly release: (layers: readonly string[]) => Promise<ReadonlySet<string>>;
  readonly signal?: AbortSignal | undefined;
}

/** What a layer takes on the disk; less than its size when its data were never whole here. */
export interface LayerOnDisk {
  readonly layer: string;
  readonly bytes: number;
}

/** Every directory that stands in the place of a layer, whole or not. */
export const layersOnDisk = async (layersDirectory: string): Promise<string[]> => {
  const names = await readdir(layersDirectory);
  return names
    .filter((name) => HEX.test(name))
    .toSorted()
    .map((hex) => `sha256:${hex}`);
};

/** @returns 0 for one that is not there */
export const layerBytes = (layersDirectory: string, layer: string): Promise<number> =>
  bytesIn(join(layersDirectory, hexOf(layer)));

/**
 * Removes those of the layers that nobody needs. Builds may go on meanwhile.
 *
 * @returns those that are gone
 * @throws PlatformError `cancelled`, and what `release` throws; then nothing is half removed
 */
export const removeLayers = async (
  options: LayerRemovalOptions,
  layers: readonly string[],
): Promise<readonly LayerOnDisk[]> => {
  await restoreLayers(options.layersDirectory);
  await removeStaleDrafts(options.layersDirectory);
  const removed: LayerOnDisk[] = [];
  for (let at = 0; at < layers.length; at += BATCH) {
    throwIfAborted(options.signal);
    removed.push(...(await removeBatch(options, layers.slice(at, at + BATCH))));
  }
  return removed;
};

/** Puts back what a removal that was killed has taken aside. */
export const restoreLayers = async (layersDirectory: string): Promise<void> => {
  for (const name of await readdir(layersDirectory)) {
    if (name.startsWith(ASIDE) && (await isStaleMark(name.slice(ASIDE.length)))) {
      await putBack(layersDirectory, join(layersDirectory, name));
    }
  }
};

const removeBatch = async (options: LayerRemovalOptions, batch: readonly string[]): Promise<readonly LayerOnDisk[]> => {
  const { layersDirectory, holdsDirectory, random, release } = options;
  const draft = join(layersDirectory, await draftName(random));
  try {
    return await withTurn({ directory: holdsDirectory, random }, async (held) => {
      const asked = batch.filter((layer) => !held.has(layer));
      if (asked.length === 0) return [];
      const free = await release(asked);
      return await takeAway(options, { layers: asked.filter((layer) => free.has(layer)), draft });
    });
  } finally {
    await removeDraft(draft);
  }
};

/** Moves those of the layers into the draft that nobody needs even now that nobody can find them. */
const takeAway = async (
  { layersDirectory, random, release }: LayerRemovalOptions,
  { layers, draft }: { readonly layers: readonly string[]; readonly draft: string },
): Promise<readonly LayerOnDisk[]> => {
  const aside = join(layersDirectory, ASIDE + (await buildMark(random)));
  await mkdir(aside, { mode: 0o700 });
  try {
    const taken: string[] = [];
    for (const layer of layers) {
      const hex = hexOf(layer);
      if (await moves(join(layersDirectory, hex), join(aside, hex))) taken.push(layer);
    }
    if (taken.length === 0) return [];
    const free = await release(taken);
    await mkdir(draft, { mode: 0o700 });
    const removed: LayerOnDisk[] = [];
    for (const layer of taken.filter((each) => free.has(each))) {
      const path = join(aside, hexOf(layer));
      removed.push({ layer, bytes: await bytesIn(path) });
      await rename(path, join(draft, hexOf(layer)));
    }
    await syncDirectory(layersDirectory);
    return removed;
  } finally {
    await putBack(layersDirectory, aside);
  }
};

/** Several may do it at once, as two builds that begin. */
const putBack = async (layersDirectory: string, aside: string): Promise<void> => {
  try {
    for (const hex of await readdir(aside)) {
      const path = join(aside, hex);
      await moves(path, join(layersDirectory, hex)).catch(async (error: unknown) => {
        // It was made or fetched again meanwhile.
        if (!isErrno(error, 'ENOTEMPTY', 'EEXIST')) throw error;
        await rm(path, { recursive: true, force: true });
      });
    }
    await rmdir(aside);
  } catch (error) {
    if (!isErrno(error, 'ENOENT')) throw error;
  }
};

/** @returns false when there is nothing: somebody else was faster */
const moves = async (from: string, to: string): Promise<boolean> => {
  try {
    await rename(from, to);
    return true;
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return false;
    throw error;
  }
};

const bytesIn = async (directory: string): Promise<number> => {
  let bytes = 0;
  try {
    for (const name of await readdir(directory)) {
      bytes += (await lstat(join(directory, name))).blocks * STAT_BLOCK_BYTES;
    }
  } catch (error) {
    if (!isErrno(error, 'ENOENT', 'ENOTDIR')) throw error;
  }
  return bytes;
};

const hexOf = (layer: string): string => layer.replace(/^sha256:/, '');

const isErrno = (error: unknown, ...codes: readonly string[]): boolean =>
  error instanceof Error && 'code' in error && codes.includes(String(error.code));
