import { SandboxIds } from '@dsec/contract';
import { SystemRandom } from '@dsec/kit';
import type { ClientOptions, ContainerRunArgs, DSecClient, RunOptions, Sandbox } from '@dsec/libdsec';
import {
  expectNoLeak,
  lacking,
  takeHostSnapshot,
  TestServer,
  type DaemonName,
  type HostSnapshot,
  type Requirement,
  type TestServerOptions,
} from '@dsec/testkit';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect } from 'vitest';
import { clock, waitFor } from './wait-for.ts';

const ROOT = join(import.meta.dirname, '../..');
export const ENVIRONMENT_FILE = join(import.meta.dirname, 'environment.yaml');
/** Where it is kept when it was built once. */
export const CACHE = join(ROOT, '.cache/environments');
const START_MS = 900_000;
const END_MS = 180_000;
/** Blank sandboxes that the launcher keeps: a few, because most suites make few. */
const POOL_BLANKS = 32;
/** Its other pools are full when nothing has changed for this long. */
const STEADY_MS = 1000;

/** The default quota of a sandbox is more than the volume of a test: hundreds must fit, which write little. */
const MANY_DISKS = { DSEC_EDGE_DISK_OVERCOMMIT: '1000' };

/** The server of one suite. */
export class Server {
  readonly environment = 'e2e';
  readonly #server: TestServer;
  readonly #before: HostSnapshot;
  readonly #clients: DSecClient[] = [];

  private constructor(server: TestServer, before: HostSnapshot) {
    this.#server = server;
    this.#before = before;
  }

  static async start(options: TestServerOptions): Promise<Server> {
    const variables = { ...MANY_DISKS, ...options.variables };
    const server = await TestServer.start({
      environments: [],
      volumeSize: '8G',
      poolBlanks: POOL_BLANKS,
      ...options,
      variables,
    });
    try {
      await server.cli(['env', 'build', ENVIRONMENT_FILE, '--reuse', CACHE], {
        timeoutMs: START_MS,
      });
      return new Server(server, await steadySnapshot(server));
    } catch (error) {
      await server[Symbol.asyncDispose]();
      throw error;
    }
  }

  get client(): DSecClient {
    return this.#server.client;
  }

  get endpoint(): string {
    return this.#server.endpoint;
  }

  get apiKey(): string {
    return this.#server.adminKey;
  }

  /** The data directory. */
  get data(): string {
    return this.#server.data;
  }

  /** Another client, which is closed at the end of the suite. */
  connect(options: ClientOptions = {}): DSecClient {
    const client = this.#server.connect(options);
    this.#clients.push(client);
    return client;
  }

  /** A sandbox of the suites' environment. */
  sandbox(args: Omit<ContainerRunArgs, 'containerImage'> = {}, options: RunOptions = {}): Promise<Sandbox> {
    return this.client.runContainer({ containerImage: this.environment, memoryLimitMb: 256, ...args }, options);
  }

  pid(name: DaemonName): Promise<number> {
    return this.#server.pid(name);
  }

  daemons(): Promise<readonly number[]> {
    return Promise.all((['launcher', 'edge', 'apiserver'] as const).map((name) => this.pid(name)));
  }

  /** Sends SIGKILL; resolves when another one is at work. */
  async kill(name: DaemonName): Promise<void> {
    await this.#server.killDaemon(name);
  }

  /** Runs a verb of `dsec`, whatever its exit code. */
  cli(args: readonly string[]): ReturnType<TestServer['cli']> {
    return this.#server.cli(args, { okExitCodes: Array.from({ length: 256 }, (_, code) => code) });
  }

  /** An id as this installation makes them, of a sandbox that was never made. */
  async idOfEdge(edge: number): Promise<string> {
    const ids = new SandboxIds(await readFile(join(this.data, 'keys/id.key')));
    return ids.create(edge, new SystemRandom().bytes(8));
  }

  /** Resolves when the host has nothing of a sandbox that has ended. */
  async expectNothingOf(sandboxId: string): Promise<void> {
    await waitFor(`nothing of ${sandboxId}`, async () => {
      const names = await Promise.all(['run/s', 'run/launcher'].map((path) => readdir(join(this.data, path))));
      const mounts = await readFile('/proc/self/mountinfo', 'utf8');
      return !names.flat().some((name) => name.startsWith(sandboxId)) && !mounts.includes(sandboxId);
    });
  }

  /** Resolves when the host has no more than before the first sandbox. */
  expectNoLeftovers(): Promise<void> {
    return expectNoLeak(clock, this.#server, this.#before);
  }

  /** Stops what is left, and fails when something of it stays. */
  async end(): Promise<void> {
    try {
      const live = await this.client.sandboxes().toArray();
      await this.client.stopSandboxes({ sandboxIds: live.map(({ sandboxId }) => sandboxId) });
      await this.expectNoLeftovers();
    } finally {
      for (const client of this.#clients) await client.close();
      await this.#server[Symbol.asyncDispose]();
    }
  }
}

/** One server for all tests of a file, with a check at the end that they left nothing. */
export function useServer(
  options: TestServerOptions | (() => Promise<TestServerOptions>) = {},
  more: readonly Requirement[] = [],
): () => Server {
  const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup', ...more);
  if (lack !== undefined) {
    process.stderr.write(`skipped: ${lack}\n`);
    beforeEach((context) => context.skip(lack));
    return () => expect.unreachable(lack);
  }
  let server: Server | undefined;
  beforeAll(async () => {
    server = await Server.start(typeof options === 'function' ? await options() : options);
  }, START_MS);
  afterAll(() => server?.end(), END_MS);
  return () => {
    if (server === undefined) throw new Error('the server is not started yet');
    return server;
  };
}

/** What is there when the launcher has filled its pools. */
async function steadySnapshot(server: TestServer): Promise<HostSnapshot> {
  let last = '';
  let sinceMs = clock.monotonicMs();
  return waitFor(
    'the pools of the launcher to be full',
    async () => {
      const now = await takeHostSnapshot(server);
      const counts = Object.values(now).map((found) => found.length);
      if (JSON.stringify(counts) !== last) {
        last = JSON.stringify(counts);
        sinceMs = clock.monotonicMs();
      }
      return now.uppers.length >= POOL_BLANKS && clock.monotonicMs() - sinceMs > STEADY_MS && now;
    },
    60_000,
  );
}
