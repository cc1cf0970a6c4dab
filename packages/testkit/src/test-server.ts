import { PlatformError } from '@dsec/contract';
import { Process, run, SystemClock, SystemNetwork, type Clock, type RunResult } from '@dsec/kit';
import { DSecClient, type ClientOptions } from '@dsec/libdsec';
import { LauncherClient, WireClient } from '@dsec/native-link';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { leftOfNetwork, nodeNetworkOf } from './node-network.ts';
import { waitFor } from './wait-for.ts';

const ROOT = join(import.meta.dirname, '../../..');
const CLI = join(ROOT, 'packages/cli/src/main.ts');
const NODE_FLAGS = ['--disable-warning=ExperimentalWarning'];
const START_MS = 60_000;
const STOP_MS = 120_000;
/** A first build of an environment downloads packages. */
const BUILD_MS = 900_000;
/** The launcher's own. */
const DEFAULT_POOL_BLANKS = 64;
/** Of the pool: the rest stays without a root filesystem, for environments that nobody has foreseen. */
const FURNISHED_PART = 0.75;
/** Each set of layers but one may have one less than its part, which is rounded down. */
const ROUNDED_OFF = 7;
const POOL_MS = 300_000;
/** What `dsec up` takes by itself, here demanded. */
const NETWORK = '198.18.0.0/15';
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

export type DaemonName = 'layerd' | 'publisher' | 'launcher' | 'packer' | 'egressd' | 'resolver' | 'edge' | 'apiserver';

export interface TestServerOptions {
  /** A data directory that a server has left; it then belongs to this one. @default a fresh one */
  readonly data?: string;
  /** Size of its volume. @default '64G', sparse */
  readonly volumeSize?: string;
  /** A directory for what sandboxes write, instead of a volume of its own. @default none */
  readonly volume?: string;
  /** Servers of one host share its uids, and each takes those of so many sandboxes. @default 1024 */
  readonly maxSandboxes?: number;
  /** Sandboxes made ahead of any create. @default that of `dsec up` */
  readonly poolBlanks?: number;
  /** Blob store to get layers from. @default none */
  readonly blob?: string;
  /** Its sandboxes may have a network; a host that cannot is an error. @default false */
  readonly network?: boolean;
  /** File of the mirror services. @default none */
  readonly services?: string;
  /** File of the webhook. @default none */
  readonly webhook?: string;
  /** Its own client goes by the unix socket, as that of `dsec` on the same machine. @default false: by TCP */
  readonly isLocal?: boolean;
  /** Variables that configure the daemons, such as DSEC_EDGE_SANDBOXES. */
  readonly variables?: Readonly<Record<string, string>>;
  /** Recipes to build, or take from the cache, before it is handed over. @default ['debian'] */
  readonly environments?: readonly string[];
}

/**
 * A whole real server: `dsec up` on a data directory of its own, a free port, and an environment. Disposing it is `dsec down`, which
 * must leave nothing.
 */
export class TestServer implements AsyncDisposable {
  readonly clock: Clock;
  readonly data: string;
  readonly endpoint: string;
  readonly adminKey: string;
  /** With the admin key. */
  readonly client: DSecClient;
  readonly #supervisor: Process;
  readonly #poolBlanks: number;
  #isOver = false;

  private constructor(parts: {
    readonly clock: Clock;
    readonly data: string;
    readonly endpoint: string;
    readonly adminKey: string;
    readonly supervisor: Process;
    readonly poolBlanks: number;
    readonly isLocal: boolean;
  }) {
    this.clock = parts.clock;
    this.data = parts.data;
    this.endpoint = parts.endpoint;
    this.adminKey = parts.adminKey;
    this.#supervisor = parts.supervisor;
    this.#poolBlanks = parts.poolBlanks;
    this.client = this.connect(parts.isLocal ? { socketPath: join(this.data, 'run/api/api.sock') } : {});
  }

  static async start(options: TestServerOptions = {}): Promise<TestServer> {
    const clock = new SystemClock();
    // Short: the path of a unix socket has at most 107 bytes.
    const data = options.data ?? (await mkdtemp(join(tmpdir(), 'dsec-t-')));
    const { volumeSize = '64G', maxSandboxes = 1024, variables = {}, environments = ['debian'] } = options;
    const { poolBlanks = DEFAULT_POOL_BLANKS, isLocal = false } = options;
    const limits = {
      '--volume-size': volumeSize,
      '--max-sandboxes': maxSandboxes,
      '--pool-blanks': poolBlanks,
      '--network': options.network === true ? NETWORK : 'none',
    };
    const limitArgs = Object.entries(limits).flatMap(([option, value]) => [option, String(value)]);
    if (options.volume !== undefined) limitArgs.push('--volume', options.volume);
    if (options.blob !== undefined) limitArgs.push('--blob', options.blob);
    if (options.webhook !== undefined) limitArgs.push('--webhook', options.webhook);
    if (options.services !== undefined) limitArgs.push('--services', options.services);
    const argv = cliArgv('up', '--data', data, '--listen', '127.0.0.1:0', ...limitArgs);
    const supervisor = await Process.start(argv, {
      clock,
      env: { PATH, ...variables },
      stdin: 'ignore',
      stdout: 'ignore',
      stderr: 'tail',
      killAfterMs: STOP_MS,
    });
    try {
      const { endpoint } = await waitFor(
        clock,
        'the test server is up',
        async () => {
          if (!supervisor.isRunning) return { endpoint: '' };
          return readServerFile(data);
        },
        START_MS,
      );
      if (endpoint === '')
        throw new PlatformError('internal', `the test server did not start: ${supervisor.stderrTail}`);
      const adminKey = (await readFile(join(data, 'keys/admin.key'), 'utf8')).trim();
      const server = new TestServer({ clock, data, endpoint, adminKey, supervisor, poolBlanks, isLocal });
      for (const name of environments) {
        await server.cli(
          ['env', 'build', join(ROOT, `environments/${name}.yaml`), '--reuse', join(ROOT, '.cache/environments')],
          { timeoutMs: BUILD_MS },
        );
      }
      return server;
    } catch (error) {
      await supervisor.stop();
      await takeDown(clock, data).catch((left: unknown) => {
        throw new AggregateError([error, left], 'the test server did not start, and could not be removed');
      });
      throw error;
    }
  }

  /** Another client, with its own connections. */
  connect(options: ClientOptions = {}): DSecClient {
    return new DSecClient({ endpoint: this.endpoint, apiKey: this.adminKey, ...options });
  }

  /** Runs a verb of `dsec` against this server. Its exit code is no error when it is among `okExitCodes`. */
  async cli(
    args: readonly string[],
    options: { readonly timeoutMs?: number; readonly okExitCodes?: readonly number[]; readonly stdin?: string } = {},
  ): Promise<RunResult> {
    const [verb = '', ...rest] = args;
    const env = { PATH, DSEC_DATA: this.data };
    return run(cliArgv(verb, ...rest), {
      clock: this.clock,
      env,
      timeoutMs: options.timeoutMs ?? START_MS,
      ...(options.okExitCodes === undefined ? {} : { okExitCodes: options.okExitCodes }),
      ...(options.stdin === undefined ? {} : { stdin: options.stdin }),
    });
  }

  /**
   * Waits until the pools are full for an environment that sandboxes were made of before: the state of a node some time after its last
   * create.
   */
  async poolFull(): Promise<void> {
    const socket = join(this.data, 'run/launcher.sock');
    await using wire = WireClient.connect(await new SystemNetwork().connectUnix(socket), {
      role: 'test',
      clock: this.clock,
    });
    const launcher = new LauncherClient(wire);
    const furnishedAtLeast = Math.floor(this.#poolBlanks * FURNISHED_PART) - ROUNDED_OFF;
    await waitFor(
      this.clock,
      'the pool of blank sandboxes is full',
      async () => {
        const { blanks, furnished = 0 } = await launcher.nodeInfo();
        return blanks >= this.#poolBlanks && furnished >= furnishedAtLeast;
      },
      POOL_MS,
    );
  }

  /** The process of a daemon, as it is now. */
  async pid(name: DaemonName): Promise<number> {
    const { pids } = await this.#serverFile();
    const pid = pids[name];
    if (pid === undefined) throw new PlatformError('internal', `the server file names no ${name}`);
    return pid;
  }

  /** Sends SIGKILL to a daemon and waits until the supervisor has another one that is ready. Returns the new pid. */
  async killDaemon(name: DaemonName): Promise<number> {
    const old = await this.pid(name);
    process.kill(old, 'SIGKILL');
    return waitFor(
      this.clock,
      `another ${name}`,
      async () => {
        const pid = await this.pid(name);
        return pid === old ? undefined : pid;
      },
      START_MS,
    );
  }

  /** Ends the supervisor and its daemons with SIGTERM; sandboxes go on, and `dsec up` on `data` adopts them. */
  async stopDaemons(): Promise<void> {
    await this.#supervisor.stop();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    await this.client.close();
    try {
      await takeDown(this.clock, this.data);
    } finally {
      await this.#supervisor.stop();
    }
  }

  async #serverFile(): Promise<ServerFile> {
    const file = await readServerFile(this.data);
    if (file === undefined) throw new PlatformError('internal', 'the test server has ended');
    return file;
  }
}

interface ServerFile {
  readonly endpoint: string;
  readonly pids: Readonly<Record<string, number>>;
}

async function readServerFile(data: string): Promise<ServerFile | undefined> {
  try {
    return JSON.parse(await readFile(join(data, 'run/server.json'), 'utf8')) as ServerFile;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw error;
  }
}

/** `dsec down`, then the directory itself. What cannot be removed is a leak, and an error. */
async function takeDown(clock: Clock, data: string): Promise<void> {
  const network = await nodeNetworkOf(data);
  await run(cliArgv('down', '--data', data), { clock, env: { PATH }, timeoutMs: STOP_MS });
  const left = network === undefined ? [] : await leftOfNetwork(network);
  if (left.length > 0) throw new PlatformError('cleanup_incomplete', 'a network is left', { details: { left } });
  await rm(data, { recursive: true });
}

function cliArgv(verb: string, ...args: readonly string[]): readonly [string, ...string[]] {
  return [process.execPath, ...NODE_FLAGS, CLI, verb, ...args];
}
