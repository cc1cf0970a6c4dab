import { type FileHandle, open } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';
import { type ByteSource, fileSource, ImageReader } from '@dsec/erofs';
import { hasAllData, layerDataPath, layerImagePath, readLayerRecord } from './layer-store.ts';
import { type LowerTree, StackedImages } from './lower-tree.ts';

/** Layers of this node as one tree, for as long as they are held open. */
export interface OpenLayers extends AsyncDisposable {
  readonly tree: LowerTree;
  /** Each for itself, lowest first. */
  readonly images: readonly ImageReader[];
}

/**
 * Opens layers to look into them. Of one whose data are fetched as sandboxes read them, everything but the bytes of files can be read: what is
 * not fetched yet would read as zeros.
 *
 * @param layers digests, topmost first
 * @throws PlatformError `layer_not_found`, `image_corrupt`
 */
export const openLayers = async (layersDirectory: string, layers: readonly string[]): Promise<OpenLayers> => {
  await using files = new AsyncDisposableStack();
  const opened = async (path: string): Promise<FileHandle> => files.use(await open(path, 'r'));
  const images: ImageReader[] = [];
  for (const digest of layers.toReversed()) {
    const record = await readLayerRecord(layersDirectory, digest);
    if (record === undefined) {
      throw new PlatformError('layer_not_found', 'The node lacks a layer of the environment', {
        details: { layer: digest },
      });
    }
    const metadata = await fileSource(await opened(layerImagePath(layersDirectory, digest)));
    const { sizeBytes } = record.data;
    const isHere = sizeBytes === 0 || (await hasAllData(layersDirectory, digest));
    const data = !isHere
      ? elsewhere(digest, sizeBytes)
      : sizeBytes === 0
        ? undefined
        : await fileSource(await opened(layerDataPath(layersDirectory, digest)));
    images.push(await ImageReader.open(metadata, data === undefined ? {} : { data }));
  }
  const held = files.move();
  return { tree: new StackedImages(images), images, [Symbol.asyncDispose]: () => held.disposeAsync() };
};

const elsewhere = (digest: string, sizeBytes: number): ByteSource => ({
  sizeBytes,
  read: () =>
    Promise.reject(
      new PlatformError(
        'layer_not_found',
        'The node has not all data of a layer, which is fetched as sandboxes read it',
        {
          details: { layer: digest },
        },
      ),
    ),
});
