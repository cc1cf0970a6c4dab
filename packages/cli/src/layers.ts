/** Layers by the names that the API, the blob store and the disk of this machine have for them. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { isDigest, parseDigest, type Digest } from '@dsec/blob';
import { exists, isErrno, type DataDirectory } from './server/data-directory.ts';

/** What the blob store knows a layer of the API (`sha256:...`) by. @throws PlatformError `invalid_argument` when it is none */
export const digestOf = (layer: string): Digest => parseDigest(layer.replace(/^sha256:/, ''));

/** Whether a layer came from a blob store: its data are brought when they are read, and may not be whole here. */
export const isOnDemand = (data: DataDirectory, digest: Digest): Promise<boolean> =>
  exists(join(data.layers, digest, 'chunks'));

/** Those of this machine that came from a blob store, as the API names them. */
export async function layersOnDemand(data: DataDirectory): Promise<readonly string[]> {
  const found: string[] = [];
  for (const name of await namesIn(data.layers)) {
    if (isDigest(name) && (await isOnDemand(data, name))) found.push(`sha256:${name}`);
  }
  return found;
}

async function namesIn(directory: string): Promise<readonly string[]> {
  try {
    return await readdir(directory);
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return [];
    throw error;
  }
}
