import { PlatformError } from '@dsec/contract';

/** @param offset the byte of the image that is wrong */
export const corrupt = (message: string, offset: number): PlatformError =>
  new PlatformError('image_corrupt', message, { details: { offset } });

export const unsupported = (reason: string, offset: number): PlatformError =>
  new PlatformError('image_unsupported', 'The EROFS image uses a form that this reader does not know', {
    details: { reason, offset },
  });
