import { ByteString, MAX_NAME_BYTES } from '@dsec/erofs';

/** PATH_MAX: no program could name a longer one. */
const MAX_PATH_BYTES = 4096;

export type PathFault = 'path_absolute' | 'path_dot_dot' | 'path_nul' | 'path_too_long' | 'name_too_long';

/**
 * Splits the path of an archive entry into its names. `.` and empty names are dropped; what could lead out of the tree is refused, not
 * repaired.
 *
 * @returns the names (none: the root), or what is wrong
 */
export const parseEntryPath = (path: ByteString): readonly ByteString[] | PathFault => {
  if (path.startsWith('/')) return 'path_absolute';
  if (path.includes('\0')) return 'path_nul';
  if (path.length > MAX_PATH_BYTES) return 'path_too_long';
  const names = ByteString.split(path, '/').filter((name) => name !== '' && name !== '.');
  if (names.some((name) => name === '..')) return 'path_dot_dot';
  if (names.some((name) => name.length > MAX_NAME_BYTES)) return 'name_too_long';
  return names;
};
