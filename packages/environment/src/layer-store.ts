import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { layerDigest } from './layer-digest.ts';
import { CHUNKS_FILE, DATA_FILE, RECORD_FILE, ROOTFS_FILE } from './layer-files.ts';
import { isLayerRecord, type LayerRecord } from './layer-record.ts';

const HEX = /^[0-9a-f]{64}$/;

/** @returns undefined when there is no whole layer of that digest */
export const readLayerRecord = async (layersDirectory: string, digest: string): Promise<LayerRecord | undefined> => {
  const directory = layerDirectory(layersDirectory, digest);
  try {
    const record: unknown = JSON.parse(await readFile(join(directory, RECORD_FILE), 'utf8'));
    if (!isLayerRecord(record) || record.digest !== digest) return undefined;
    return (await isWhole(directory, record)) ? record : undefined;
  } catch (error) {
    if (error instanceof SyntaxError || isMissing(error)) return undefined;
    throw error;
  }
};

/** Every whole layer of the directory. */
export const listLayers = async (layersDirectory: string): Promise<LayerRecord[]> => {
  const records: LayerRecord[] = [];
  for (const name of await namesIn(layersDirectory)) {
    const record = HEX.test(name) ? await readLayerRecord(layersDirectory, `sha256:${name}`) : undefined;
    if (record !== undefined) records.push(record);
  }
  return records;
};

/** The path of the layer's EROFS image, whether or not it is there. */
export const layerImagePath = (layersDirectory: string, digest: string): string =>
  join(layerDirectory(layersDirectory, digest), ROOTFS_FILE);

/** The path of the layer's data, which are there only when its record says that they are not empty. */
export const layerDataPath = (layersDirectory: string, digest: string): string =>
  join(layerDirectory(layersDirectory, digest), DATA_FILE);

/** Whether all data of a layer that the node has are on this disk; of others some are, which only layerd tells apart. */
export const hasAllData = async (layersDirectory: string, digest: string): Promise<boolean> => {
  try {
    await stat(join(layerDirectory(layersDirectory, digest), CHUNKS_FILE));
    return false;
  } catch (error) {
    if (isMissing(error)) return true;
    throw error;
  }
};

/** Data that are still to be fetched have their whole length, too. */
const isWhole = async (directory: string, { digest, metadata, data }: LayerRecord): Promise<boolean> => {
  if (layerDigest(hexOf(metadata.digest), hexOf(data.digest)) !== digest) return false;
  if ((await stat(join(directory, ROOTFS_FILE))).size !== metadata.sizeBytes) return false;
  return data.sizeBytes === 0 || (await stat(join(directory, DATA_FILE))).size === data.sizeBytes;
};

const hexOf = (digest: string): string => digest.replace(/^sha256:/, '');

const layerDirectory = (layersDirectory: string, digest: string): string => {
  const hex = hexOf(digest);
  if (!HEX.test(hex)) {
    throw new PlatformError('invalid_argument', 'A layer digest is sha256: and 64 hex digits', {
      details: { field: 'digest' },
    });
  }
  return join(layersDirectory, hex);
};

const namesIn = async (directory: string): Promise<string[]> => {
  try {
    return await readdir(directory);
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
};

const isMissing = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === 'ENOENT';
