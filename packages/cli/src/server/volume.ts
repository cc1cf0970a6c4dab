import { lstat, realpath } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';
import { mountPoints, run, type Clock } from '@dsec/kit';
import { freeBytes, isErrno, type DataDirectory } from './data-directory.ts';
import type { Installation } from './installation.ts';

const MIN_VOLUME_BYTES = 1024 ** 3;
const MAX_DEFAULT_VOLUME_BYTES = 256 * 1024 ** 3;
/** Of what is free on the disk, when no size is given: the file is sparse, and the rest of the disk must not run full. */
const DEFAULT_SHARE = 0.8;

export interface VolumeOptions {
  /** A directory to use instead of a file of our own: quotas hold when it is on btrfs. */
  readonly path: string | undefined;
  readonly sizeBytes: number | undefined;
}

/** Makes and mounts the data volume, when it is not mounted already. */
export async function prepareVolume(
  parts: Installation,
  data: DataDirectory,
  options: VolumeOptions,
  clock: Clock,
): Promise<void> {
  if (options.path !== undefined) {
    await bindVolume(data, options.path, clock);
    return;
  }
  const free = await freeBytes(data.path);
  const sizeBytes =
    options.sizeBytes ??
    Math.max(MIN_VOLUME_BYTES, Math.min(MAX_DEFAULT_VOLUME_BYTES, Math.floor(free * DEFAULT_SHARE)));
  const size = String(Math.floor(sizeBytes));
  await run([parts.launcher, 'prepare', '--data', data.path, '--size', size], {
    clock,
    env: programEnv,
    timeoutMs: 120_000,
    errorCode: 'host_unsuitable',
  });
}

/** Unmounts the volume and removes what is left of sandboxes. */
export async function releaseVolume(parts: Installation, data: DataDirectory, clock: Clock): Promise<void> {
  await run([parts.launcher, 'teardown', '--data', data.path], {
    clock,
    env: programEnv,
    timeoutMs: 300_000,
    errorCode: 'cleanup_incomplete',
  });
  if (await isMounted(data.volume))
    await run(['umount', data.volume], { clock, env: programEnv, errorCode: 'cleanup_incomplete' });
}

/** What programs of the system get as their environment. */
export const programEnv = {
  PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  LC_ALL: 'C.UTF-8',
} as const;

async function bindVolume(data: DataDirectory, path: string, clock: Clock): Promise<void> {
  const info = await lstat(path).catch((error: unknown) => {
    if (!isErrno(error, 'ENOENT')) throw error;
    return undefined;
  });
  if (info?.isDirectory() !== true) {
    throw new PlatformError('config_invalid', `the volume ${path} is no directory`, { details: { field: '--volume' } });
  }
  if (await isMounted(data.volume)) return;
  await run(['mkdir', '-p', '-m', '0700', data.volume], { clock, env: programEnv, errorCode: 'host_unsuitable' });
  await run(['mount', '--bind', path, data.volume], { clock, env: programEnv, errorCode: 'host_unsuitable' });
}

async function isMounted(path: string): Promise<boolean> {
  const real = await realpath(path).catch(() => path);
  return (await mountPoints()).includes(real);
}
