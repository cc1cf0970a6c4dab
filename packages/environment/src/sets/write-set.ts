import { createHash } from 'node:crypto';
import { mkdir, open, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { bufferSource, ImageReader, ImageWriter } from '@dsec/erofs';
import { type Random, syncDirectory, writeDurably } from '@dsec/kit';
import { draftName, removeDraft } from '../draft.ts';
import { fileOutput } from '../file-output.ts';
import { fileSha256 } from '../layer-digest.ts';
import { layerImagePath, readLayerRecord } from '../layer-store.ts';
import { type LayerImage, mergeTrees } from './merge-trees.ts';
import {
  isErrno,
  newSetRecord,
  readSetRecord,
  SET_IMAGE_FILE,
  SET_RECORD_FILE,
  setDigest,
  setDirectory,
  type SetRecord,
} from './set-record.ts';

/** All metadata of a set are in memory while it is made. */
const MAX_METADATA_BYTES = 512 * 1024 * 1024;
const FILE_MODE = 0o644;
const DIRECTORY_MODE = 0o755;

export interface SetDirectories {
  readonly setsDirectory: string;
  readonly layersDirectory: string;
}

/**
 * Makes the set of these layers, unless it is there and whole: durably, and all at once. One writer at a time may work in a directory.
 *
 * @param layers topmost first
 * @param options.isForced make it anew whatever is there
 * @throws PlatformError `environment_broken` with the `layer` that is missing or cannot be merged; `disk_full`
 */
export const ensureSet = async (
  directories: SetDirectories,
  layers: readonly string[],
  options: { readonly random: Random; readonly isForced?: boolean },
): Promise<SetRecord> => {
  const digest = setDigest(layers);
  const target = setDirectory(directories.setsDirectory, digest);
  if (options.isForced !== true) {
    const present = await readWholeSet(target, digest);
    if (present !== undefined) return present;
  }
  try {
    return await writeSet(directories, layers, options.random);
  } catch (error) {
    throw describe(error);
  }
};

const writeSet = async (
  { setsDirectory, layersDirectory }: SetDirectories,
  layers: readonly string[],
  random: Random,
): Promise<SetRecord> => {
  const images = await readLayers(layersDirectory, layers);
  const { root, devices } = await mergeTrees(images);
  const draft = join(setsDirectory, await draftName(random));
  try {
    const staged = join(draft, 'set');
    await mkdir(staged, { recursive: true, mode: DIRECTORY_MODE });
    const path = join(staged, SET_IMAGE_FILE);
    const sizeBytes = await writeImage(path, (file) => new ImageWriter(fileOutput(file), { devices }).finish(root));
    const record = newSetRecord(layers, { digest: `sha256:${await fileSha256(path)}`, sizeBytes });
    await writeDurably(join(staged, SET_RECORD_FILE), `${JSON.stringify(record, null, 2)}\n`, { mode: FILE_MODE });
    await replace(setDirectory(setsDirectory, record.digest), staged, join(draft, 'replaced'));
    await syncDirectory(setsDirectory);
    return record;
  } finally {
    await removeDraft(draft);
  }
};

const readWholeSet = async (target: string, digest: string): Promise<SetRecord | undefined> => {
  const record = await readSetRecord(target);
  if (record?.digest !== digest) return undefined;
  try {
    const hex = await fileSha256(join(target, SET_IMAGE_FILE));
    return `sha256:${hex}` === record.metadata.digest ? record : undefined;
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return undefined;
    throw error;
  }
};

/** The metadata of the layers, each checked against its digest. */
const readLayers = async (layersDirectory: string, layers: readonly string[]): Promise<LayerImage[]> => {
  const images: LayerImage[] = [];
  let totalBytes = 0;
  for (const digest of layers) {
    const record = await readLayerRecord(layersDirectory, digest).catch((error: unknown) => {
      if (!isErrno(error, 'EACCES')) throw error;
      throw broken(digest, 'may not be read by the edge', 'unreadable');
    });
    if (record === undefined) throw broken(digest, 'is missing on the node, or not whole', 'missing');
    totalBytes += record.metadata.sizeBytes;
    if (totalBytes > MAX_METADATA_BYTES)
      throw broken(digest, 'has too many metadata to be put together with others', 'size');
    const bytes = await readFile(layerImagePath(layersDirectory, digest));
    if (`sha256:${createHash('sha256').update(bytes).digest('hex')}` !== record.metadata.digest) {
      throw broken(digest, 'has other metadata than its digest says', 'digest');
    }
    images.push({ digest, image: await opened(digest, bytes), sizeBytes: bytes.length });
  }
  return images;
};

const opened = async (layer: string, bytes: Buffer): Promise<ImageReader> => {
  try {
    return await ImageReader.open(bufferSource(bytes));
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    throw new PlatformError(error.code, error.message, { details: { ...error.details, layer }, cause: error });
  }
};

const writeImage = async (
  path: string,
  write: (file: Awaited<ReturnType<typeof open>>) => Promise<{ readonly sizeBytes: number }>,
): Promise<number> => {
  await using file = await open(path, 'wx', FILE_MODE);
  const { sizeBytes } = await write(file);
  await file.chmod(FILE_MODE);
  await file.sync();
  return sizeBytes;
};

/** Puts a set into its place; what stood there was none. */
const replace = async (target: string, staged: string, replaced: string): Promise<void> => {
  await rename(target, replaced).catch((error: unknown) => {
    if (!isErrno(error, 'ENOENT')) throw error;
  });
  await rename(staged, target);
};

const broken = (layer: string, what: string, reason: string): PlatformError =>
  new PlatformError('environment_broken', `the layer ${layer} ${what}`, { details: { layer, reason } });

/** The last: an image may name what no file system can hold. */
const UNFIT: ReadonlySet<string> = new Set(['image_corrupt', 'image_unsupported', 'invalid_argument']);

const describe = (error: unknown): unknown => {
  if (PlatformError.is(error) && UNFIT.has(error.code)) {
    return new PlatformError('environment_broken', 'the layers of the environment cannot be put together', {
      details: error.details,
      cause: error,
    });
  }
  if (isErrno(error, 'ENOSPC') || isErrno(error, 'EDQUOT')) {
    return new PlatformError('disk_full', 'The disk that holds the sets of layers is full', { cause: error });
  }
  return error;
};
