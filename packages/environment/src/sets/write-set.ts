import { createHash } from 'node:crypto';
import { mkdir, open, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { bufferSource, ImageReader, ImageWriter } from '@dsec/erofs';
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

export interface SetDirectories {
  /** Those of the node. */
  readonly setsDirectory: string;
  /** Where one is made that is not among them: `<draftsDirectory>/<hex>/`, not durable. */
  readonly draftsDirectory: string;
  readonly layersDirectory: string;
}

export interface EnsuredSet {
  readonly record: SetRecord;
  /** Whether it was made now. */
  readonly isNew: boolean;
}

/**
 * Makes the set of these layers, unless it is there and whole. One writer at a time may work in a directory.
 *
 * @param layers topmost first
 * @param options.isForced make it anew whatever is there
 * @throws PlatformError `environment_broken` with the `layer` that is missing or cannot be merged; `disk_full`
 */
export const ensureSet = async (
  directories: SetDirectories,
  layers: readonly string[],
  options: { readonly isForced?: boolean } = {},
): Promise<EnsuredSet> => {
  const digest = setDigest(layers);
  const target = setDirectory(directories.setsDirectory, digest);
  if (options.isForced !== true) {
    const present = await readWholeSet(target, digest);
    if (present !== undefined) return { record: present, isNew: false };
  }
  const draft = setDirectory(directories.draftsDirectory, digest);
  try {
    return { record: await writeSet(directories.layersDirectory, layers, draft), isNew: true };
  } catch (error) {
    await rm(draft, { recursive: true, force: true });
    throw describe(error);
  }
};

const writeSet = async (layersDirectory: string, layers: readonly string[], draft: string): Promise<SetRecord> => {
  const images = await readLayers(layersDirectory, layers);
  const { root, devices } = await mergeTrees(images);
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft);
  const path = join(draft, SET_IMAGE_FILE);
  const sizeBytes = await writeImage(path, (file) => new ImageWriter(fileOutput(file), { devices }).finish(root));
  const record = newSetRecord(layers, { digest: `sha256:${await fileSha256(path)}`, sizeBytes });
  await writeFile(join(draft, SET_RECORD_FILE), `${JSON.stringify(record, null, 2)}\n`);
  return record;
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
  await using file = await open(path, 'wx');
  return (await write(file)).sizeBytes;
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
