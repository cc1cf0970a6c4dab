/** A whole resolver on loopback, with an egressd that keeps what it is told. Sandboxes are addresses of 127.0.0.0/8. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { completeNetworkPolicy, PlatformError, type NetworkPolicyRequest } from '@dsec/contract';
import { MemoryLogger, SystemClock, SystemNetwork, SystemRandom, type Clock } from '@dsec/kit';
import {
  ResolverClient,
  serve,
  WireClient,
  type CausingProcess,
  type EgressEvent,
  type EgressPin,
  type EgressPolicy,
  type WireServer,
  type WireServerStream,
} from '@dsec/native-link';
import { decode, encode, type DecodedPacket, type Packet } from 'dns-packet';
import type { ResolverConfig } from './config.ts';
import { NameServer, type Script } from './dns/name-server.fixture.ts';
import type { Asker } from './events.ts';
import { bindSockets, startResolver } from './resolver.ts';
import type { Service } from './services/service.ts';

const network = new SystemNetwork();

/** The sandbox whose address is that of every ordinary connection on this machine. */
export const LOCAL = 'local';

export interface ToldPolicy extends EgressPolicy {
  readonly id: string;
}
export interface ToldPins {
  readonly id: string;
  readonly generation: number;
  readonly pins: readonly EgressPin[];
}

/** egressd by its protocol: it checks generations, and enforces nothing. */
export class EgressdDouble implements AsyncDisposable {
  readonly uplinks = new Map<string, { readonly address4: string; readonly address6: string; generation: number }>();
  readonly policies: ToldPolicy[] = [];
  readonly pins: ToldPins[] = [];
  /** Who is behind a socket. */
  ownerOf: (asker: Asker) => CausingProcess | undefined = () => undefined;
  /** Whoever hears what is denied. */
  readonly listeners = new Set<WireServerStream>();
  /** Called before a method is answered; what it throws is the answer. */
  onCall: (method: string) => Promise<void> = () => Promise.resolve();
  readonly #connections = new Set<WireServer>();
  #close: () => Promise<void> = () => Promise.resolve();
  #generation = 0;

  static async listen(path: string, clock: Clock): Promise<EgressdDouble> {
    const own = new EgressdDouble();
    const listener = await network.listenUnix(path, (connection) => {
      const wire = serve(connection, (method, params, events) => own.#answer(method, params, events), {
        role: 'egressd',
        clock,
        onFault: () => undefined,
        onClose: () => own.#connections.delete(wire),
      });
      own.#connections.add(wire);
    });
    own.#close = () => listener.close();
    return own;
  }

  /** Ends every connection, as a restart does. */
  breakAll(): void {
    for (const wire of this.#connections) wire.fail(new PlatformError('connection_lost', 'broken by the test'));
  }

  /** Tells it to who listens. */
  async tell(event: EgressEvent): Promise<void> {
    for (const listener of this.listeners) await listener.message(event);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.breakAll();
    await this.#close();
  }

  async #answer(method: string, params: object, stream: WireServerStream): Promise<unknown> {
    await this.onCall(method);
    const { id } = params as { readonly id: string };
    const uplink = this.uplinks.get(id);
    switch (method) {
      case 'uplink.list':
        return { uplinks: [...this.uplinks].map(([of, listed]) => ({ id: of, interface: 'dsec0.2', ...listed })) };
      case 'uplink.close':
        this.uplinks.delete(id);
        return {};
      case 'policy.set': {
        if (id === 'gone') throw new PlatformError('sandbox_not_found', 'no such sandbox');
        // Connections without a local address come from 127.0.0.1.
        const slot = id === LOCAL ? 1 : this.uplinks.size + 2;
        const opened = uplink ?? { address4: `127.0.0.${slot}`, address6: `fd00::${slot}`, generation: 0 };
        this.uplinks.set(id, opened);
        this.policies.push(params as ToldPolicy);
        this.#generation += 1;
        opened.generation = this.#generation;
        return { interface: `dsec0.${slot}`, ...opened, micros: 1 };
      }
      case 'pins.add': {
        const told = params as ToldPins;
        if (uplink !== undefined && uplink.generation !== told.generation) {
          throw new PlatformError('policy_stale', 'the policy has changed', {
            details: { version: uplink.generation },
          });
        }
        this.pins.push(told);
        return { pins: told.pins.length };
      }
      case 'owner': {
        const process = this.ownerOf(params as Asker);
        return process === undefined ? {} : { process };
      }
      case 'events': {
        this.listeners.add(stream);
        const { promise, resolve } = Promise.withResolvers<undefined>();
        stream.signal.addEventListener('abort', () => resolve(undefined), { once: true });
        await promise;
        this.listeners.delete(stream);
        return {};
      }
      default:
        throw new PlatformError('unknown_method', `no method ${method}`);
    }
  }
}

export interface ResolverFixtureOptions {
  readonly script: Script;
  readonly services?: readonly Service[];
  readonly config?: Partial<ResolverConfig>;
}

export interface ResolverFixture extends AsyncDisposable {
  readonly egressd: EgressdDouble;
  readonly upstream: NameServer;
  readonly edge: WireClient;
  /** The same connection, by its methods. */
  readonly client: ResolverClient;
  readonly logger: MemoryLogger;
  readonly dnsPort: number;
  readonly servicePort: number;
  /** Another connection of an edge. */
  connect(): Promise<WireClient>;
  /** Puts a policy in force; the sandbox's address. */
  allow(sandbox: string, policy: NetworkPolicyRequest): Promise<string>;
  /** Asks over UDP from an address of a sandbox; undefined when no answer comes in time. */
  ask(from: string, name: string, type: string, packet?: Partial<Packet>): Promise<DecodedPacket | undefined>;
}

/** Longer than anything takes that is answered. */
const SILENT_MS = 2000;

export async function startFixture(options: ResolverFixtureOptions): Promise<ResolverFixture> {
  const clock = new SystemClock();
  const logger = new MemoryLogger();
  const cleanup = new AsyncDisposableStack();
  const directory = await mkdtemp(join(tmpdir(), 'dsec-resolver-'));
  cleanup.defer(() => rm(directory, { recursive: true }));
  const upstream = cleanup.use(await NameServer.start(options.script));
  const egressd = cleanup.use(await EgressdDouble.listen(join(directory, 'egressd.sock'), clock));
  const config: ResolverConfig = {
    socket: join(directory, 'resolver.sock'),
    egressdSocket: join(directory, 'egressd.sock'),
    address4: '127.0.0.1',
    dnsPort: 0,
    servicePort: 0,
    serviceZone: 'mirror.internal',
    nodeNetworks: ['198.51.100.0/24'],
    resolvConf: '/nowhere',
    uid: 1,
    gid: 1,
    ...options.config,
  };
  const environment = { network, clock, random: new SystemRandom(), logger };
  const services = options.services ?? [];
  const sockets = await bindSockets(config, environment, services);
  const servers = { list: () => Promise.resolve([upstream.peer]) };
  cleanup.use(await startResolver({ ...environment, config, sockets, services, servers }));
  const connect = async (): Promise<WireClient> =>
    WireClient.connect(await network.connectUnix(config.socket), { role: 'edge', clock });
  const edge = cleanup.use(await connect());
  const client = new ResolverClient(edge);
  const dnsPort = sockets.dns[0]?.port ?? 0;
  return {
    egressd,
    upstream,
    edge,
    logger,
    dnsPort,
    servicePort: sockets.services[0]?.port ?? 0,
    client,
    connect,
    allow: async (sandbox, policy) => {
      const complete = completeNetworkPolicy(policy, { field: 'network' });
      return (await client.policySet(sandbox, complete)).address4;
    },
    ask: async (from, name, type, packet = {}) => {
      const { promise, resolve } = Promise.withResolvers<DecodedPacket | undefined>();
      const peer = { address: '127.0.0.1', port: dnsPort };
      await using socket = await network.bindUdp(from, 0, (bytes) => resolve(decode(bytes)), { peer });
      // The library knows types without a name by their numbers.
      const questions = [{ name, type: type as 'A' }];
      socket.send(encode({ type: 'query', id: 1, flags: 0x0100, questions, ...packet }));
      const timer = clock.setTimer(SILENT_MS, () => resolve(undefined));
      const answer = await promise;
      timer.cancel();
      return answer;
    },
    [Symbol.asyncDispose]: () => cleanup.disposeAsync(),
  };
}

export const addressesOf = (answer: DecodedPacket | undefined): readonly unknown[] =>
  (answer?.answers ?? []).map((record) => ('data' in record ? record.data : undefined));
export const rcodeOf = (answer: DecodedPacket | undefined): unknown =>
  (answer as { rcode?: unknown } | undefined)?.rcode;
