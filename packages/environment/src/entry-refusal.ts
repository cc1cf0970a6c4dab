import { PlatformError } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import type { TarEntry } from './tar/tar-reader.ts';

/** @param layer what to call it: its digest */
export const refusal = (
  code: 'archive_unsafe' | 'image_corrupt' | 'image_unsupported',
  entry: TarEntry,
  layer: string,
  reason: string,
): PlatformError => {
  const message =
    code === 'archive_unsafe'
      ? 'The layer has an entry that no honest layer has'
      : code === 'image_corrupt'
        ? 'The layer has an entry that cannot be'
        : 'The layer is larger than is supported';
  return new PlatformError(code, message, {
    details: { layer, offset: entry.offset, reason, entry: ByteString.toText(entry.path).slice(0, 256) },
  });
};
