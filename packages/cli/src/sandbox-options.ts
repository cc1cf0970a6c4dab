import type { ContainerRunArgs } from '@dsec/libdsec';
import { PlatformError } from '@dsec/contract';
import type { Command } from 'commander';
import { decimal, integer, list, pairs, rules, seconds, sizeMib } from './arguments.ts';

/** Options of what a sandbox may use, as commander hands them over. */
export interface BoundOptions {
  readonly memory?: number;
  readonly cpus?: number;
  readonly disk?: number;
  readonly pids?: number;
  readonly network?: Readonly<Record<string, boolean>>;
}

/** Options of what a sandbox is made of, as commander hands them over. */
export interface SandboxOptions extends BoundOptions {
  readonly backend: string;
  readonly workspace?: string;
  readonly toolkit?: readonly string[];
  readonly ttl?: number;
  readonly idle?: number;
  readonly user?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly workdir?: string;
  readonly hostname?: string;
  readonly metadata?: Readonly<Record<string, string>>;
}

export function withSandbox(command: Command): Command {
  return command
    .option('--backend <kind>', 'how it is isolated', 'container')
    .option('--workspace <name>', 'files of one task, above the environment')
    .option('--toolkit <name>', 'tools above everything else; may be given often', list)
    .option('-m, --memory <size>', 'memory limit: 512M, 4G; a bare number is MiB (default: 1024)', sizeMib)
    .option('--cpus <n>', 'CPU limit in cores (default: 1)', decimal)
    .option('--disk <size>', 'quota of what it writes (default: 10G)', sizeMib)
    .option('--pids <n>', 'most processes and threads (default: 1024)', integer)
    .option('--ttl <time>', 'stopped this long after its creation: 90s, 5m, 2h, 1d (default: 1d)', seconds)
    .option('--idle <time>', 'stopped after this long without activity (default: 30m)', seconds)
    .option('-u, --user <user>', 'who commands run as (default: that of the environment)')
    .option('-e, --env <key=value>', 'environment variable; may be given often', pairs)
    .option('-w, --workdir <path>', 'working directory (default: that of the environment)')
    .option('--hostname <name>', 'host name (default: the id)')
    .option('--network <service=on|off>', 'opens or closes a mirror service; may be given often', rules)
    .option('--metadata <key=value>', 'label to find it by; may be given often', pairs);
}

export function sandboxArgs(environment: string, options: SandboxOptions): ContainerRunArgs {
  if (options.backend !== 'container') {
    throw new PlatformError('backend_unsupported', `this node does not offer the backend ${options.backend}`, {
      details: { supported: ['container'] },
    });
  }
  const { workspace, toolkit, ttl, idle, user, env, workdir, hostname, metadata } = options;
  return {
    containerImage: environment,
    ...boundArgs(options),
    ...(workspace === undefined ? {} : { workspace }),
    ...(toolkit === undefined ? {} : { toolkits: toolkit }),
    ...(ttl === undefined ? {} : { ttl }),
    ...(idle === undefined ? {} : { ttlRunningStop: idle }),
    ...(user === undefined ? {} : { initUser: user }),
    ...(env === undefined ? {} : { env }),
    ...(workdir === undefined ? {} : { workdir }),
    ...(hostname === undefined ? {} : { hostname }),
    ...(metadata === undefined ? {} : { metadata }),
  };
}

/** As `ContainerRunArgs` has them. */
export function boundArgs({
  memory,
  cpus,
  disk,
  pids,
  network,
}: BoundOptions): Omit<ContainerRunArgs, 'containerImage'> {
  return {
    ...(memory === undefined ? {} : { memoryLimitMb: memory }),
    ...(cpus === undefined ? {} : { cpuCoresLimit: cpus }),
    ...(disk === undefined ? {} : { diskLimitMb: disk }),
    ...(pids === undefined ? {} : { pidsLimit: pids }),
    ...(network === undefined ? {} : { networkRules: network }),
  };
}
