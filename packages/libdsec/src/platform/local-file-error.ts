import { PlatformError } from '@dsec/contract';

/** What the kernel says against a local file, as a typed error that names it; everything else as it is. */
export function localFileError(error: unknown, path: string): unknown {
  if (!(error instanceof Error) || !('errno' in error) || !('code' in error)) return error;
  const named = 'path' in error && typeof error.path === 'string' ? error.path : path;
  return new PlatformError('file_error', `the local file ${named} cannot be used: ${String(error.code)}`, {
    details: { path: named, errno: String(error.code) },
    cause: error,
  });
}
