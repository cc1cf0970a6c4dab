import { envVariable } from '@dsec/kit';
import { accessSync, constants, readFileSync } from 'node:fs';

/** What a suite may need of its machine. */
export type Requirement =
  | 'root'
  | 'btrfs'
  | 'erofs'
  | 'overlay'
  | 'cgroup'
  | 'egress'
  | 'crun'
  | 'runc'
  | 'docker'
  | 'xfs';

const PROGRAM_DIRECTORIES = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin'];

/**
 * Why a suite cannot run here; undefined when it can. `DSEC_REQUIRE=root,btrfs,...` makes each lack of these an error, so that
 * where everything must be there nothing is skipped in silence.
 */
export function lacking(...requirements: readonly Requirement[]): string | undefined {
  const missing = requirements.filter((requirement) => !isPresent(requirement));
  if (missing.length === 0) return undefined;
  const required = (envVariable('DSEC_REQUIRE') ?? '').split(',');
  const forbidden = missing.filter((requirement) => required.includes(requirement));
  if (forbidden.length > 0) throw new Error(`DSEC_REQUIRE names what this machine lacks: ${forbidden.join(', ')}`);
  return `this machine lacks: ${missing.join(', ')}`;
}

function isPresent(requirement: Requirement): boolean {
  switch (requirement) {
    case 'root':
      return process.getuid?.() === 0;
    case 'btrfs':
    case 'erofs':
    case 'overlay':
      return new RegExp(`\\t${requirement}$`, 'm').test(readFileSync('/proc/filesystems', 'utf8'));
    case 'cgroup':
      return canWrite('/sys/fs/cgroup/memory') || canWrite('/sys/fs/cgroup/cgroup.procs');
    case 'egress':
      return isProgram('nft') && /\tbpf$/m.test(readFileSync('/proc/filesystems', 'utf8'));
    case 'xfs':
      return isProgram('mkfs.xfs') && /\txfs$/m.test(readFileSync('/proc/filesystems', 'utf8'));
    case 'crun':
    case 'runc':
      return isProgram(requirement);
    case 'docker':
      return isProgram('docker') && canWrite('/var/run/docker.sock');
  }
}

const isProgram = (name: string): boolean =>
  PROGRAM_DIRECTORIES.some((directory) => can(`${directory}/${name}`, constants.X_OK));
const canWrite = (path: string): boolean => can(path, constants.W_OK);

function can(path: string, mode: number): boolean {
  try {
    accessSync(path, mode);
    return true;
  } catch {
    return false;
  }
}
