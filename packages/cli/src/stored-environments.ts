/** Environments between this machine and a blob store. */
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import {
  LayerUploader,
  openLayer,
  StoredEnvironments,
  type Digest,
  type ObjectStore,
  type StoredEnvironment,
} from '@dsec/blob';
import { PlatformError, type Environment } from '@dsec/contract';
import { layerDataPath, layerImagePath, readLayerRecord } from '@dsec/environment';
import type { DSecClient } from '@dsec/libdsec';
import type { Context } from './context.ts';
import { digestOf, isOnDemand } from './layers.ts';
import { openHolds } from './prune-layers.ts';
import { blobSettingsOf, openCheckedStore, readBlobSettings } from './server/blob-settings.ts';
import type { DataDirectory } from './server/data-directory.ts';
import { size } from './table.ts';
import type { Progress } from './terminal/progress.ts';

/** The store of `--blob`, or that of the server. @throws PlatformError `config_invalid`, `blob_unavailable` */
export async function blobStoreOf(
  context: Context,
  data: DataDirectory,
  url: string | undefined,
): Promise<ObjectStore> {
  const settings = url === undefined ? await readBlobSettings(data) : await blobSettingsOf(url, context.variables);
  if (settings === undefined) {
    throw new PlatformError('config_invalid', 'no blob store is known: give --blob, or start the server with it', {
      details: { field: '--blob' },
    });
  }
  return openCheckedStore(settings, { ...context, signal: context.interrupted });
}

export interface UploadedEnvironment extends StoredEnvironment {
  /** Of the layers, and of what of them the store did not have. */
  readonly bytes: number;
  readonly newBytes: number;
}

/** Puts the layers of an environment into a store, then its name. @throws PlatformError `blob_unavailable`, `blob_full`, `environment_broken` */
export async function uploadEnvironment(
  context: Context,
  from: { readonly environment: Environment; readonly data: DataDirectory; readonly store: ObjectStore },
  progress: Progress,
): Promise<UploadedEnvironment> {
  const { environment, data, store } = from;
  const { createdAtMs: _here, ...named } = environment;
  const { name, image } = named;
  const uploader = new LayerUploader({ store, clock: context.clock });
  const count = image.layers.length;
  await using holds = await openHolds(context, data);
  for (const layer of image.layers) await holds.hold(layer);
  let [bytes, newBytes] = [0, 0];
  for (const [index, layer] of image.layers.toReversed().entries()) {
    progress.step(`uploading ${name}: layer ${index + 1} of ${count}`);
    const done = await uploadLayer(context, { layer, data, store, uploader }, progress);
    bytes += done.bytes;
    newBytes += done.newBytes;
  }
  const stored = await new StoredEnvironments(store, context.clock).put(named, { signal: context.interrupted });
  return { ...stored, bytes, newBytes };
}

interface LayerSource {
  readonly layer: string;
  readonly data: DataDirectory;
  readonly store: ObjectStore;
  readonly uploader: LayerUploader;
}

async function uploadLayer(
  context: Context,
  { layer, data, store, uploader }: LayerSource,
  progress: Progress,
): Promise<{ readonly bytes: number; readonly newBytes: number }> {
  const digest = digestOf(layer);
  const signal = context.interrupted;
  // What came from a store is not whole here.
  if (await isOnDemand(data, digest)) {
    const { map } = await openLayer(store, digest, { signal });
    return { bytes: map.dataBytes, newBytes: 0 };
  }
  const record = await readLayerRecord(data.layers, layer);
  if (record === undefined) {
    throw new PlatformError('environment_broken', `layer ${layer} is not on this machine`, { details: { layer } });
  }
  const recordBytes = await readFile(join(data.layers, digest, 'layer.json'));
  const { bytes, newBytes } = await uploader.upload({
    metadataPath: layerImagePath(data.layers, layer),
    dataPath: record.data.sizeBytes === 0 ? undefined : layerDataPath(data.layers, layer),
    record: (found: Digest) => {
      if (found === digest) return recordBytes;
      throw new PlatformError('layer_corrupt', `the files of layer ${layer} are those of another`, {
        details: { layer, digest: found },
      });
    },
    signal,
    onProgress: (done, total) => progress.detail(`${size(done)} of ${size(total)}`),
  });
  return { bytes: bytes + (await stat(layerImagePath(data.layers, layer))).size, newBytes };
}

/**
 * Registers what a store has under a name, or had in a version; nothing of its layers is brought here before somebody runs it.
 * @throws PlatformError `environment_not_found`, `layer_not_found`, `layer_corrupt`, `environment_broken`, `blob_unavailable`
 */
export async function fetchEnvironment(
  context: Context,
  client: DSecClient,
  from: { readonly name: string; readonly version?: string | undefined; readonly store: ObjectStore },
): Promise<Environment> {
  const { name, version, store } = from;
  const signal = context.interrupted;
  const { environment } = await new StoredEnvironments(store, context.clock).get(name, { version, signal });
  for (const layer of environment.image.layers) await openLayer(store, digestOf(layer), { signal });
  const { name: _name, image, ...options } = environment;
  return client.environments.put(name, image, options);
}
