import { type EnvironmentConfig, type EnvironmentImage, PlatformError } from '@dsec/contract';
import { readLayerRecord } from './layer-store.ts';

/** Of a layer that is not the top of anything. */
export const NO_CONFIG: EnvironmentConfig = { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} };

/**
 * An image of layers that are there.
 *
 * @param image layers topmost first
 * @throws PlatformError `layer_not_found`
 */
export const imageOf = async (
  layersDirectory: string,
  image: Omit<EnvironmentImage, 'sizeBytes'>,
): Promise<EnvironmentImage> => {
  let sizeBytes = 0;
  for (const digest of image.layers) {
    const record = await readLayerRecord(layersDirectory, digest);
    if (record === undefined) {
      throw new PlatformError('layer_not_found', 'The node lacks a layer of the environment', {
        details: { layer: digest },
      });
    }
    sizeBytes += record.sizeBytes;
  }
  return { ...image, sizeBytes };
};
