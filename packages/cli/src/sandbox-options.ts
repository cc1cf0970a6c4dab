import type { ContainerRunArgs } from '@dsec/libdsec';
import {
  PlatformError,
  profileNames,
  type NetworkRule,
  type PolicyRequest,
  type PolicyUpdate,
  type ProfileName,
} from '@dsec/contract';
import { Option, type Command } from 'commander';
import { decimal, integer, list, pairs, rules, seconds, sizeMib } from './arguments.ts';
import { allowedDestinations, policyFile } from './policy-file.ts';

/** Options of what a sandbox may use, as commander hands them over. */
export interface BoundOptions {
  readonly memory?: number;
  readonly cpus?: number;
  readonly disk?: number;
  readonly pids?: number;
}

/** Options of what a sandbox may reach and do, as commander hands them over. */
export interface PolicyOptions {
  readonly network?: Readonly<Record<string, boolean>>;
  readonly policy?: PolicyUpdate;
  readonly allow?: readonly NetworkRule[];
  readonly profile?: ProfileName;
}

/** Options of what a sandbox is made of, as commander hands them over. */
export interface SandboxOptions extends BoundOptions, PolicyOptions {
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
  return withPolicy(command)
    .option('--backend <kind>', 'how it is isolated', 'container')
    .option('--workspace <name>', 'files of one task, above the environment')
    .option('--toolkit <name>', 'tools above everything else; may be given often', list)
    .option('-m, --memory <size>', 'memory limit: 512M, 4G; a bare number is MiB (default: 1024)', sizeMib)
    .option('--cpus <n>', 'CPU limit in cores (default: 1)', decimal)
    .option('--disk <size>', 'quota of what it writes (default: 10G)', sizeMib)
    .option('--pids <n>', 'most processes and threads (default: 1024)', integer)
    .option(
      '--ttl <time>',
      'stopped this long after its creation: 90s, 5m, 2h, 1d; a bare number is seconds (default: 1d)',
      seconds,
    )
    .option('--idle <time>', 'stopped after this long without activity (default: 30m)', seconds)
    .option('-u, --user <user>', 'who commands run as (default: that of the environment)')
    .option('-e, --env <key=value>', 'environment variable; may be given often', pairs)
    .option('-w, --workdir <path>', 'working directory (default: that of the environment)')
    .option('--hostname <name>', 'host name (default: the id)')
    .option('--metadata <key=value>', 'label to find it by; may be given often', pairs);
}

export function withPolicy(command: Command): Command {
  return command
    .option('--network <service=on|off>', 'opens or closes a mirror service; may be given often', rules)
    .option('--policy <file>', 'what it may reach and do, as JSON; `-` is stdin (see `dsec policy --help`)', policyFile)
    .option('--allow <host[:port]>', 'lets it reach an address, CIDR or name; may be given often', allowedDestinations)
    .addOption(new Option('--profile <name>', 'what its processes may do').choices(profileNames));
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
    ...policyArgs(options),
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
export function boundArgs({ memory, cpus, disk, pids }: BoundOptions): Omit<ContainerRunArgs, 'containerImage'> {
  return {
    ...(memory === undefined ? {} : { memoryLimitMb: memory }),
    ...(cpus === undefined ? {} : { cpuCoresLimit: cpus }),
    ...(disk === undefined ? {} : { diskLimitMb: disk }),
    ...(pids === undefined ? {} : { pidsLimit: pids }),
  };
}

/** What the options say beside a policy is added to it, and must not say something else. */
export function policyArgs({
  policy,
  allow,
  profile,
  network,
}: PolicyOptions): Pick<ContainerRunArgs, 'policy' | 'networkRules'> {
  if (policy === undefined && allow === undefined && profile === undefined) {
    return network === undefined ? {} : { networkRules: network };
  }
  const { version: _version, ...given } = policy ?? {};
  if (profile !== undefined && given.profile !== undefined && given.profile !== profile) {
    throw new PlatformError('invalid_argument', 'the file of --policy names another profile than --profile', {
      details: { field: 'profile', reason: `is ${given.profile} in the file` },
    });
  }
  const base = given.network ?? {};
  const whole: PolicyRequest = {
    ...given,
    ...(profile === undefined ? {} : { profile }),
    network: {
      ...base,
      ...(allow === undefined ? {} : { rules: [...(base.rules ?? []), ...allow] }),
      ...(network === undefined ? {} : { services: { ...base.services, ...network } }),
    },
  };
  return { policy: whole };
}
