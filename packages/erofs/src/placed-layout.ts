import { PlatformError } from '@dsec/contract';
import type { DataLayout, LayoutEnd } from './data-layout.ts';
import {
  CHUNK_FORMAT_INDEXES,
  FEATURE_INCOMPAT_CHUNKED_FILE,
  FEATURE_INCOMPAT_DEVICE_TABLE,
  LAYOUT_CHUNK_BASED,
} from './format.ts';
import { type InodeBody, NO_DATA } from './inode.ts';
import type { ImageDevice } from './superblock.ts';
import type { FileData } from './tree.ts';

/** Files that lie on devices which other images have filled: the image only says where. */
export class PlacedLayout implements DataLayout {
  readonly #devices: readonly ImageDevice[];

  constructor(devices: readonly ImageDevice[]) {
    this.#devices = devices;
  }

  store(): Promise<FileData> {
    return Promise.reject(new PlatformError('internal', 'An image over devices that are there stores no files'));
  }

  describe({ sizeBytes, placed }: FileData): InodeBody {
    if (sizeBytes === 0) return NO_DATA;
    if (placed?.kind !== 'chunks') throw new PlatformError('internal', 'A file lies on none of the devices');
    const { chunkBits, index } = placed;
    return { layout: LAYOUT_CHUNK_BASED, union: CHUNK_FORMAT_INDEXES | chunkBits, sizeBytes, index };
  }

  end(): Promise<LayoutEnd> {
    if (this.#devices.length === 0) return Promise.resolve({ featureIncompat: 0 });
    return Promise.resolve({
      featureIncompat: FEATURE_INCOMPAT_CHUNKED_FILE | FEATURE_INCOMPAT_DEVICE_TABLE,
      devices: this.#devices,
    });
  }
}
