/**
 * What sandboxes of a benchmark talk to: a network namespace behind a veth of the host, with the servers of `network/flow.c` in it, and for one sandbox a second
 * way there, which no policy looks at. All addresses are of one block for documentation (RFC 5737).
 */
import { PlatformError } from '@dsec/contract';
import { Process, run, type Clock } from '@dsec/kit';
import { mkdtemp, chmod, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { compiled } from './c-program.ts';

const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } as const;
const TOOL_MS = 30_000;

const HOST = '198.51.100.1';
const ROUTER = '198.51.100.2';
const BEHIND = '198.51.100.128/25';
const NAME_SERVER = '198.51.100.153';
const PLAIN_HOST = '198.51.100.5';
const PLAIN_INSIDE = '198.51.100.6';

/** A network that rules may allow, and the server in it. */
export const ALLOWED_NETWORK = '198.51.100.128/29';
export const ALLOWED = '198.51.100.129';
/** Where every name below `good.test` is. */
export const NAMED = '198.51.100.137';
/** Where a second way goes. */
export const PLAIN = '198.51.100.145';

export class NetworkWorld implements AsyncDisposable {
  /** Both ends of what is measured, statically linked. */
  readonly program: string;
  readonly #clock: Clock;
  readonly #directory: string;
  /** Of the namespace, and of its device at the host. */
  readonly #name = `world${process.pid}`;
  #servers: Process | undefined;

  private constructor(clock: Clock, directory: string, program: string) {
    this.#clock = clock;
    this.#directory = directory;
    this.program = program;
  }

  /** @throws PlatformError `host_unsuitable` when the host cannot, or another world is there */
  static async start(clock: Clock): Promise<NetworkWorld> {
    const program = await compiled('network/flow.c', clock);
    const world = new NetworkWorld(clock, await mkdtemp(join(tmpdir(), 'dsec-bench-world-')), program);
    try {
      await world.#connect();
      await world.#serve();
      return world;
    } catch (error) {
      await world[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** For the resolver: it asks the name server of the world. */
  get resolvConf(): string {
    return join(this.#directory, 'resolv.conf');
  }

  /**
   * A second uplink of a sandbox, to `PLAIN` alone, made as the sandbox's own is, routed and masqueraded by the host in the same way; but without a program that
   * filters. Packets on it pass the chains of the server, too, which let all that is of no sandbox pass with their first rule.
   * @param pid a process in the sandbox
   */
  async plainUplink(pid: number, mtu: number): Promise<AsyncDisposable> {
    // A host that forwarded nothing before lets through what the devices of servers begin with, and this is no uplink of one.
    const name = `dsecp${process.pid}`;
    const inside = (...args: readonly string[]) => this.#tool('nsenter', `--net=/proc/${pid}/ns/net`, 'ip', ...args);
    const table = (text: string) => this.#tool('nft', `${text} ip ${name}`);
    await using undo = new AsyncDisposableStack();
    const veth = ['type', 'veth', 'peer', 'name', 'plain0', 'mtu', String(mtu), 'netns', String(pid)] as const;
    await this.#tool('ip', 'link', 'add', name, 'mtu', String(mtu), ...veth);
    undo.defer(async () => void (await this.#tool('ip', 'link', 'delete', name)));
    await this.#tool('ip', 'address', 'add', `${PLAIN_HOST}/30`, 'dev', name);
    await this.#tool('ip', 'link', 'set', name, 'up');
    await inside('address', 'add', `${PLAIN_INSIDE}/30`, 'dev', 'plain0');
    await inside('link', 'set', 'plain0', 'up');
    await inside('route', 'add', PLAIN, 'via', PLAIN_HOST, 'dev', 'plain0');
    await table('add table');
    undo.defer(async () => void (await table('delete table')));
    await this.#tool('nft', `add chain ip ${name} leave { type nat hook postrouting priority srcnat; }`);
    await this.#tool('nft', `add rule ip ${name} leave ip saddr ${PLAIN_INSIDE} masquerade`);
    return undo.move();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#servers?.stop();
    // Its end of the veth goes with it.
    await this.#tool('ip', 'netns', 'delete', this.#name).catch(() => undefined);
    await this.#tool('ip', 'link', 'delete', this.#name).catch(() => undefined);
    await rm(this.#directory, { recursive: true });
  }

  async #connect(): Promise<void> {
    const name = this.#name;
    const inside = (...args: readonly string[]) => this.#tool('ip', '-n', name, ...args);
    await this.#tool('ip', 'netns', 'add', name);
    await this.#tool('ip', 'link', 'add', name, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
    await inside('link', 'set', 'lo', 'up');
    await inside('address', 'add', `${ROUTER}/30`, 'dev', 'eth0');
    for (const address of [ALLOWED, NAMED, PLAIN, NAME_SERVER]) await inside('address', 'add', address, 'dev', 'lo');
    await inside('link', 'set', 'eth0', 'up');
    await this.#tool('ip', 'address', 'add', `${HOST}/30`, 'dev', name);
    await this.#tool('ip', 'link', 'set', name, 'up');
    await this.#tool('ip', 'route', 'add', BEHIND, 'via', ROUTER);
  }

  async #serve(): Promise<void> {
    // The resolver is not root.
    await chmod(this.#directory, 0o711);
    await writeFile(this.resolvConf, `nameserver ${NAME_SERVER}\n`);
    const argv = ['ip', 'netns', 'exec', this.#name, this.program, 'serve', NAMED] as const;
    const servers = await Process.start(argv, { clock: this.#clock, env, stdout: 'pipe' });
    this.#servers = servers;
    for await (const line of createInterface({ input: servers.stdout })) if (line === 'ready') return;
    throw new PlatformError('host_unsuitable', `the servers of the benchmark ended: ${servers.stderrTail}`);
  }

  #tool(program: string, ...args: readonly string[]) {
    const options = { clock: this.#clock, env, timeoutMs: TOOL_MS, errorCode: 'host_unsuitable' } as const;
    return run([program, ...args], options);
  }
}
