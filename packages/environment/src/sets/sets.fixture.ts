import { closeSync, existsSync, fstatSync, openSync, readSync } from 'node:fs';
import { type ByteSource, ImageReader } from '@dsec/erofs';
import type { BuildContext } from '../build-context.ts';
import { layerDataPath, layerImagePath } from '../layer-store.ts';

export interface OpenedLayers extends AsyncDisposable {
  /** In the order of the digests. */
  readonly images: readonly ImageReader[];
  /** Of the layers that have any. */
  readonly data: readonly ByteSource[];
  sourceOf(path: string): ByteSource;
}

/** Opens the images of layers, with their data. */
export const openedLayers = async (
  { layersDirectory }: BuildContext,
  digests: readonly string[],
): Promise<OpenedLayers> => {
  const files: number[] = [];
  const sourceOf = (path: string): ByteSource => {
    const file = openSync(path, 'r');
    files.push(file);
    return {
      sizeBytes: fstatSync(file).size,
      read: (offset, length) => {
        const bytes = Buffer.alloc(length);
        readSync(file, bytes, 0, length, offset);
        return Promise.resolve(bytes);
      },
    };
  };
  const images: ImageReader[] = [];
  const data: ByteSource[] = [];
  for (const digest of digests) {
    const path = layerDataPath(layersDirectory, digest);
    const own = existsSync(path) ? sourceOf(path) : undefined;
    if (own !== undefined) data.push(own);
    images.push(
      await ImageReader.open(sourceOf(layerImagePath(layersDirectory, digest)), own === undefined ? {} : { data: own }),
    );
  }
  return {
    images,
    data,
    sourceOf,
    [Symbol.asyncDispose]: () => {
      for (const file of files) closeSync(file);
      return Promise.resolve();
    },
  };
};
