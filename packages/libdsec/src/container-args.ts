import { PlatformError, type CreateSandbox, type PolicyRequest } from '@dsec/contract';

/** What a container sandbox is made of. Only `containerImage` is needed. */
export interface ContainerRunArgs {
  /** Name of an environment; `dsec env ls` lists them. */
  readonly containerImage: string;
  /** Name of a workspace: the files of one task, above the environment. @default none */
  readonly workspace?: string;
  /** Names of toolkits, above everything else (32 at most); of two that have one file the later counts. @default none */
  readonly toolkits?: readonly string[];
  /**
   * Memory limit, MiB (16 to 1,048,576). Programs find it below /sys/fs/cgroup, as in any container; /proc/meminfo shows the node.
   * @default 1024
   */
  readonly memoryLimitMb?: number;
  /**
   * CPU limit, cores; 0.5 is half of one (0.01 to 1,024). Programs may run on no more cores than it takes, which `nproc` and whatever
   * asks for its affinity see; /proc/cpuinfo, /sys and what reads them, such as `os.cpu_count()` of Python, show the node.
   * @default 1
   */
  readonly cpuCoresLimit?: number;
  /** Quota of what the sandbox writes, MiB (16 to 16,777,216). @default 10_240 */
  readonly diskLimitMb?: number;
  /** Most processes and threads (8 to 1,000,000). @default 1024 */
  readonly pidsLimit?: number;
  /**
   * Idle timeout, seconds (1 to 604,800): the sandbox is stopped after so long without activity. A running command, an open
   * stream or pty is activity; asking for its state is not. @default 1800
   */
  readonly ttlRunningStop?: number;
  /** The sandbox is stopped this many seconds after its creation, whatever it does (1 to 604,800). @default 86_400 */
  readonly ttl?: number;
  /**
   * What it may reach from its first command on, and what its processes may do.
   * @default the profile `default`, and nothing is reachable
   */
  readonly policy?: PolicyRequest;
  /** Short for `policy.network.services`: mirror service → reachable. What is not named is closed. @default nothing is reachable */
  readonly networkRules?: Readonly<Record<string, boolean>>;
  /** Who commands and file operations run as when they name no user: a name, a uid, `uid:gid` or `name:group`. @default that of the environment */
  readonly initUser?: string;
  /** Added to the environment variables of the environment. */
  readonly env?: Readonly<Record<string, string>>;
  /** @default that of the environment */
  readonly workdir?: string;
  /** @default the id of the sandbox */
  readonly hostname?: string;
  /** Labels of your own (64 at most); lists are filtered by them. */
  readonly metadata?: Readonly<Record<string, string>>;
}

const CPU_MILLIS_PER_CORE = 1000;

/** The request that the arguments stand for. An argument that there is none of is refused, not dropped. */
export function createRequest(args: ContainerRunArgs): CreateSandbox {
  const {
    containerImage,
    workspace,
    toolkits,
    memoryLimitMb,
    cpuCoresLimit,
    diskLimitMb,
    pidsLimit,
    ttlRunningStop,
    ttl,
    policy,
    networkRules,
    initUser,
    env,
    workdir,
    hostname,
    metadata,
    ...unknown
  } = args;
  const [surplus] = Object.keys(unknown);
  if (surplus !== undefined)
    throw new PlatformError('invalid_argument', `there is no argument ${surplus}`, { details: { field: surplus } });
  return {
    environment: containerImage,
    backend: 'container',
    ...given('workspace', workspace),
    ...given('toolkits', toolkits === undefined ? undefined : [...toolkits]),
    ...given('memoryMib', memoryLimitMb),
    ...given('cpuMillis', cpuCoresLimit === undefined ? undefined : Math.round(cpuCoresLimit * CPU_MILLIS_PER_CORE)),
    ...given('diskMib', diskLimitMb),
    ...given('pids', pidsLimit),
    ...given('ttlRunningStopSeconds', ttlRunningStop),
    ...given('ttlSeconds', ttl),
    ...given('policy', policy),
    ...given('networkRules', networkRules),
    ...given('user', initUser),
    ...given('env', env),
    ...given('workdir', workdir),
    ...given('hostname', hostname),
    ...given('metadata', metadata),
  };
}

function given<K extends string, T>(key: K, value: T | undefined): { [P in K]?: T } {
  return value === undefined ? {} : ({ [key]: value } as { [P in K]: T });
}
