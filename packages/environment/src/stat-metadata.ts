import type { BigIntStats } from 'node:fs';
import { defaultMetadata, type Metadata } from '@dsec/erofs';

const MODE_BITS = 0o7777n;
const NANOSECONDS = 1_000_000_000n;

/** What a file of this machine has in a layer: its own permissions and time, and root as its owner. */
export const statMetadata = ({ mode, mtimeNs }: BigIntStats): Metadata => {
  const seconds = mtimeNs / NANOSECONDS - (mtimeNs % NANOSECONDS < 0n ? 1n : 0n);
  const mtime = { seconds: Number(seconds), nanoseconds: Number(mtimeNs - seconds * NANOSECONDS) };
  return { ...defaultMetadata(Number(mode & MODE_BITS)), mtime };
};
