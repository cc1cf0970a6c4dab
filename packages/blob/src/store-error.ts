/** What a failure of a mounted file system or of S3 means to those who use the store. */
import { PlatformError } from '@dsec/contract';

const FULL = new Set(['ENOSPC', 'EDQUOT']);

export const errno = (error: unknown): string | undefined =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;

/** `reason` is a word for programs: an errno, or what S3 said. */
export function unavailable(store: string, reason: string, cause?: unknown): PlatformError {
  return new PlatformError('blob_unavailable', `blob store ${store} does not do its part`, {
    details: { store, reason },
    cause,
  });
}

export function full(store: string, reason: string, cause?: unknown): PlatformError {
  return new PlatformError('blob_full', `blob store ${store} has no room`, { details: { store, reason }, cause });
}

/** The error of a file operation inside the store; what the kernel did not say (the source of a put failed) stays as it is. */
export function fileError(store: string, error: unknown): unknown {
  const reason = errno(error);
  if (PlatformError.is(error) || reason === undefined) return error;
  return FULL.has(reason) ? full(store, reason, error) : unavailable(store, reason, error);
}
