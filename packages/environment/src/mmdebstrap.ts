import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { isAbsolute, join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { type Clock, Process } from '@dsec/kit';

export interface MmdebstrapOptions {
  /** A name or an absolute path. */
  readonly program: string;
  readonly clock: Clock;
  /** As root its chroot is made here. */
  readonly scratch: string;
  /** Variables besides those that it always gets. */
  readonly env: Readonly<Record<string, string>>;
}

const HOST_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
/** Without root mmdebstrap cleans up by itself when it is told to end. */
const KILL_AFTER_MS = 30_000;

/**
 * Starts mmdebstrap so that nothing of it outlives this process, however that ends.
 *
 * As root it runs in mount and PID namespaces of its own that die with it (it mounts /proc, /sys and parts of /dev into its chroot, in the
 * caller's namespace), and its chroot lies in the scratch directory. Without root it makes such namespaces itself, and its chroot lies where
 * mapped users can reach it.
 *
 * @throws PlatformError `host_unsuitable` when it is not installed
 */
export const startMmdebstrap = async (args: readonly string[], options: MmdebstrapOptions): Promise<Process> => {
  const program = await findProgram(options.program);
  const isRoot = process.getuid?.() === 0;
  const wrapper = isRoot
    ? [
        '--pdeathsig',
        'KILL',
        'unshare',
        '--mount',
        '--propagation=private',
        '--pid',
        '--fork',
        '--kill-child',
        '--mount-proc',
      ]
    : ['--pdeathsig', 'TERM'];
  const mode = isRoot ? '--mode=root' : '--mode=auto';
  return await Process.start(['setpriv', ...wrapper, program, mode, ...args], {
    clock: options.clock,
    env: { PATH: HOST_PATH, LC_ALL: 'C.UTF-8', ...options.env, ...(isRoot ? { TMPDIR: options.scratch } : {}) },
    stdin: 'pipe',
    stdout: 'pipe',
    stderr: 'pipe',
    // unshare heeds no SIGTERM; its death ends all that it started.
    killAfterMs: isRoot ? 0 : KILL_AFTER_MS,
  });
};

const findProgram = async (program: string): Promise<string> => {
  const places = isAbsolute(program) ? [program] : HOST_PATH.split(':').map((directory) => join(directory, program));
  for (const place of places) {
    if (await isExecutable(place)) return place;
  }
  throw new PlatformError('host_unsuitable', `${program} is not installed; recipes are built with mmdebstrap`, {
    details: { missing: 'mmdebstrap' },
  });
};

const isExecutable = (path: string): Promise<boolean> =>
  access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
