/** Where an edge has its layers from, out of its configuration. */
import { readFile } from 'node:fs/promises';
import type { LayerPlaces } from '@dsec/backends';
import { openStore, parseBlobSettings, type ObjectStore } from '@dsec/blob';
import { PlatformError } from '@dsec/contract';
import type { Clock, Random } from '@dsec/kit';
import type { EdgeConfig } from './config.ts';

/**
 * Undefined when nothing is said of layers: all are there. The store need not answer now: an edge starts, and serves what the node has, without it.
 * @throws PlatformError `config_invalid`
 */
export async function layerPlaces(
  config: EdgeConfig['layers'],
  parts: { readonly clock: Clock; readonly random: Random },
): Promise<LayerPlaces | undefined> {
  if (config === undefined) return undefined;
  const { blobFile, ...places } = config;
  return { ...places, store: blobFile === undefined ? undefined : await storeOf(blobFile, parts) };
}

async function storeOf(
  blobFile: string,
  parts: { readonly clock: Clock; readonly random: Random },
): Promise<ObjectStore> {
  let value: unknown;
  try {
    value = JSON.parse(await readFile(blobFile, 'utf8'));
  } catch (cause) {
    throw new PlatformError('config_invalid', 'the file of the blob store cannot be read', {
      details: { field: 'layers.blobFile' },
      cause,
    });
  }
  return openStore(parseBlobSettings(value), parts);
}
