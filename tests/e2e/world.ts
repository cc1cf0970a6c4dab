/** The internet of a suite: a network namespace behind a veth, with documentation addresses (RFC 5737, RFC 3849) that the host reaches, and servers in it that tell what came. */
import { Process, run } from '@dsec/kit';
import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer, type Server } from 'node:net';
import { createInterface } from 'node:readline';
import { clock, waitFor } from './wait-for.ts';

const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } as const;
const START_MS = 30_000;
/** All have the same addresses: one suite of the machine after the other. */
const TURN_MS = 600_000;
const TURN = '\0dsec-test-world';

/** The host's end, and the name server that the resolver asks. One block of the three for documentation: machines that build reach real mirrors by the others. */
export const HOST4 = '198.51.100.1';
const ROUTER4 = '198.51.100.2';
export const NAME_SERVER = '198.51.100.153';
/** Where allowed names are, and where nothing is allowed. */
export const GOOD = '198.51.100.137';
export const OTHER = '198.51.100.138';
export const EVIL = '198.51.100.166';
export const GOOD6 = '2001:db8:2::7';
const ADDRESSES4 = [NAME_SERVER, GOOD, OTHER, EVIL];
const ADDRESSES = [...ADDRESSES4, GOOD6];

export interface Asked {
  readonly name: string;
  readonly type: string;
}
export interface Came {
  readonly address: string;
  readonly port: number;
  readonly serverName?: string;
}

export class World implements AsyncDisposable {
  /** Names that were asked for. */
  readonly asked: Asked[] = [];
  /** Connections that came. */
  readonly connections: Came[] = [];
  /** Datagrams that came, by port. */
  readonly datagrams: number[] = [];
  readonly #name: string;
  readonly #directory: string;
  readonly #turn: Server;
  #servers: Process | undefined;

  private constructor(name: string, directory: string, turn: Server) {
    this.#name = name;
    this.#directory = directory;
    this.#turn = turn;
  }

  /** @param zone name, or `*.name`, → addresses */
  static async start(zone: Readonly<Record<string, readonly string[]>>): Promise<World> {
    const turn = await waitFor('the world of another suite to end', takeTurn, TURN_MS);
    const world = new World(`world${process.pid}`, await mkdtemp(join(tmpdir(), 'dsec-world-')), turn);
    try {
      await world.#connect();
      await world.#serve(zone);
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

  /** The largest packet that the way to the world takes. */
  async setMtu(mtu: number): Promise<void> {
    await tool('ip', 'link', 'set', this.#name, 'mtu', String(mtu));
    await tool('ip', '-n', this.#name, 'link', 'set', 'eth0', 'mtu', String(mtu));
  }

  forget(): void {
    for (const list of [this.asked, this.connections, this.datagrams]) list.length = 0;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#servers?.stop();
    // Its end of the veth goes with it.
    await tool('ip', 'netns', 'delete', this.#name).catch(() => undefined);
    await tool('ip', 'link', 'delete', this.#name).catch(() => undefined);
    await rm(this.#directory, { recursive: true });
    await new Promise((resolve) => this.#turn.close(resolve));
  }

  async #connect(): Promise<void> {
    const name = this.#name;
    const inside = (...args: string[]) => tool('ip', '-n', name, ...args);
    await tool('ip', 'netns', 'add', name);
    await tool('ip', 'link', 'add', name, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
    await inside('link', 'set', 'lo', 'up');
    await inside('address', 'add', `${ROUTER4}/30`, 'dev', 'eth0');
    await inside('address', 'add', '2001:db8:1::2/64', 'dev', 'eth0', 'nodad');
    for (const address of ADDRESSES) await inside('address', 'add', address, 'dev', 'lo');
    await inside('link', 'set', 'eth0', 'up');
    await tool('ip', 'address', 'add', `${HOST4}/30`, 'dev', name);
    await tool('ip', 'address', 'add', '2001:db8:1::1/64', 'dev', name, 'nodad');
    await tool('ip', 'link', 'set', name, 'up');
    await tool('ip', 'route', 'add', '198.51.100.128/25', 'via', ROUTER4);
    await tool('ip', 'route', 'add', '2001:db8:2::/64', 'via', '2001:db8:1::2');
  }

  async #serve(zone: Readonly<Record<string, readonly string[]>>): Promise<void> {
    const at = (name: string) => join(this.#directory, name);
    // The resolver is not root.
    await chmod(this.#directory, 0o711);
    await writeFile(this.resolvConf, `nameserver ${NAME_SERVER}\n`);
    const subject = ['-subj', '/CN=world.test', '-days', '2', '-nodes'];
    const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
    await tool('openssl', 'req', '-x509', ...curve, ...subject, '-keyout', at('key.pem'), '-out', at('cert.pem'));
    const [key, cert] = [await readFile(at('key.pem'), 'utf8'), await readFile(at('cert.pem'), 'utf8')];
    await writeFile(at('config.json'), JSON.stringify({ zone, addresses: ADDRESSES4, key, cert }));
    const program = [process.execPath, '--disable-warning=ExperimentalWarning'];
    const main = join(import.meta.dirname, 'world-servers.ts');
    const argv = ['ip', 'netns', 'exec', this.#name, ...program, main, at('config.json')] as const;
    const servers = await Process.start(argv, { clock, env, stdout: 'pipe' });
    this.#servers = servers;
    let isReady = false;
    createInterface({ input: servers.stdout }).on('line', (line) => {
      const event = JSON.parse(line) as {
        readonly ready?: true;
        readonly asked?: Asked;
        readonly connection?: Came;
        readonly datagram?: { readonly port: number };
      };
      if (event.ready === true) isReady = true;
      if (event.asked !== undefined) this.asked.push(event.asked);
      if (event.datagram !== undefined) this.datagrams.push(event.datagram.port);
      const { connection } = event;
      if (connection !== undefined) {
        this.connections.push({ ...connection, address: connection.address.replace('::ffff:', '') });
      }
    });
    await waitFor(
      'the servers of the world',
      () => {
        if (!servers.isRunning) throw new Error(`the servers of the world ended: ${servers.stderrTail}`);
        return isReady;
      },
      START_MS,
    );
  }
}

const tool = (program: string, ...args: readonly string[]) =>
  run([program, ...args], { clock, env, timeoutMs: START_MS });

/** An abstract socket has one owner, and none when that process is gone, however it ended. */
const takeTurn = (): Promise<Server | undefined> =>
  new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(undefined));
    server.listen(TURN, () => resolve(server));
  });
