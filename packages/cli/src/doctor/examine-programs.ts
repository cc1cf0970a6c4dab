import { PlatformError } from '@dsec/contract';
import { run, type Argv } from '@dsec/kit';
import type { Context } from '../context.ts';
import { exists } from '../server/data-directory.ts';
import { programEnv } from '../server/volume.ts';
import type { Finding } from './finding.ts';

interface Program {
  readonly name: string;
  readonly argv: Argv;
  readonly isNeeded: boolean;
  readonly why: string;
  readonly fix: string;
}

const apt = (name: string): string => `apt-get install ${name} (make setup does)`;

const PROGRAMS: readonly Program[] = [
  {
    name: 'mkfs.btrfs',
    argv: ['mkfs.btrfs', '--version'],
    isNeeded: true,
    why: 'the data volume is a btrfs file: a quota for each sandbox',
    fix: apt('btrfs-progs'),
  },
  {
    name: 'mmdebstrap',
    argv: ['mmdebstrap', '--version'],
    isNeeded: true,
    why: '`dsec env build` makes root filesystems from recipes with it',
    fix: apt('mmdebstrap'),
  },
  {
    name: 'nftables',
    argv: ['nft', '--version'],
    isNeeded: false,
    why: 'the network of sandboxes has a table in the packet filter',
    fix: apt('nftables'),
  },
  {
    name: 'docker',
    argv: ['docker', 'version', '--format', '{{.Server.Version}}'],
    isNeeded: false,
    why: 'benchmarks compare with it when its engine runs',
    fix: 'see the documentation of Docker',
  },
  { name: 'crun', argv: ['crun', '--version'], isNeeded: false, why: 'benchmarks compare with it', fix: apt('crun') },
  { name: 'runc', argv: ['runc', '--version'], isNeeded: false, why: 'benchmarks compare with it', fix: apt('runc') },
];

/** Programs of dsec itself, and of the system. */
export async function examinePrograms(context: Context): Promise<readonly Finding[]> {
  const { launcher, aether, layerd, publisher, egressd, gate } = context.installation;
  const areBuilt = await Promise.all([launcher, aether, layerd, publisher, egressd, gate].map(exists));
  const isBuilt = areBuilt.every(Boolean);
  const own: Finding = {
    name: 'launcher, aether, layerd, publisher, egressd and gate',
    isPresent: isBuilt,
    isNeeded: true,
    detail: isBuilt ? 'built' : 'not built',
    why: 'they make sandboxes, are PID 1 in them, fill layers on demand, check what becomes a layer, and give sandboxes their network',
    fix: '`make setup` builds them; it needs Rust',
  };
  return [own, ...(await Promise.all(PROGRAMS.map((program) => examine(context, program))))];
}

async function examine(context: Context, { name, argv, isNeeded, why, fix }: Program): Promise<Finding> {
  try {
    const { stdout } = await run(argv, { clock: context.clock, env: programEnv, timeoutMs: 10_000 });
    const [detail = ''] = stdout.toString().trim().split('\n');
    return { name, isPresent: true, isNeeded, detail, why, fix };
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    const detail = error.code === 'command_not_found' ? 'not installed' : 'does not run';
    return { name, isPresent: false, isNeeded, detail, why, fix };
  }
}
