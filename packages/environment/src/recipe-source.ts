import { realpath, stat } from 'node:fs/promises';
import { resolve, sep } from 'node:path';
import { PlatformError } from '@dsec/contract';

const MAX_FILE_BYTES = 1024 * 1024 * 1024;

/**
 * The real path of what a recipe names beside itself.
 *
 * @throws PlatformError `recipe_invalid` when it is not there, is of another kind, or lies outside of the recipe's directory
 */
export const findSource = async (
  directory: string,
  source: string,
  wanted: { readonly field: string; readonly kind: 'file' | 'directory' },
): Promise<string> => {
  const { field, kind } = wanted;
  const wrong = (reason: string, cause?: unknown): PlatformError =>
    new PlatformError('recipe_invalid', `the recipe: ${field} ${reason}`, { details: { field, reason }, cause });
  const base = await realpath(directory);
  const path = await realpath(resolve(base, source)).catch((cause: unknown) => {
    throw wrong('does not exist', cause);
  });
  const isInside = path.startsWith(base.endsWith(sep) ? base : base + sep);
  if (!isInside && !(kind === 'directory' && path === base)) throw wrong('leads out of the directory of the recipe');
  const info = await stat(path);
  if (kind === 'directory') {
    if (!info.isDirectory()) throw wrong('is no directory');
  } else {
    if (!info.isFile()) throw wrong('is no regular file');
    if (info.size > MAX_FILE_BYTES) throw wrong(`is larger than ${MAX_FILE_BYTES} bytes`);
  }
  return path;
};
