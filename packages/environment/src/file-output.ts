import type { FileHandle } from 'node:fs/promises';
import type { ImageOutput } from '@dsec/erofs';

/** @param file stays the caller's to close */
export const fileOutput = (file: FileHandle): ImageOutput => ({
  write: async (bytes, position) => {
    for (let done = 0; done < bytes.length; ) {
      const { bytesWritten } = await file.write(bytes, done, bytes.length - done, position + done);
      done += bytesWritten;
    }
  },
  truncate: (sizeBytes) => file.truncate(sizeBytes),
});
