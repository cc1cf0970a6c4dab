/** Builds a resolver out of its parts. */
import { parsePrefix, PlatformError, type Prefix } from '@dsec/contract';
import { Scope, type Clock, type Logger, type Network, type Random } from '@dsec/kit';
import { serve, type WireServer } from '@dsec/native-link';
import { chmod } from 'node:fs/promises';
import type { ResolverConfig } from './config.ts';
import { CachedResolution } from './dns/cached-resolution.ts';
import { DnsListener } from './dns/listener.ts';
import { ResolvConf, type NameServers } from './dns/name-servers.ts';
import { Responder } from './dns/responder.ts';
import { Upstream } from './dns/upstream.ts';
import { EgressLink } from './egress-link.ts';
import { Events } from './events.ts';
import { ResolverServer } from './resolver-server.ts';
import { Sandboxes } from './sandboxes.ts';
import { ServiceListener } from './services/service-listener.ts';
import type { Service } from './services/service.ts';

/** Its directory lets the edge in. */
const SOCKET_MODE = 0o660;
const MAX_CONNECTIONS = 64;

export interface ResolverEnvironment {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
}

/** The sockets that sandboxes reach: bound as root, for their ports, and deaf until {@link startResolver}. */
export interface ResolverSockets {
  readonly dns: readonly DnsListener[];
  readonly services: readonly ServiceListener[];
}

export async function bindSockets(
  config: ResolverConfig,
  environment: ResolverEnvironment,
  services: readonly Service[],
): Promise<ResolverSockets> {
  const addresses = [config.address4, ...(config.address6 === undefined ? [] : [config.address6])];
  const dns: DnsListener[] = [];
  const listeners: ServiceListener[] = [];
  try {
    for (const address of addresses) {
      dns.push(await DnsListener.bind({ address, port: config.dnsPort }, environment));
      if (services.length === 0) continue;
      listeners.push(await ServiceListener.bind({ address, port: config.servicePort }, environment));
    }
    return { dns, services: listeners };
  } catch (error) {
    for (const listener of [...dns, ...listeners]) await listener.close();
    throw error;
  }
}

export interface ResolverParts extends ResolverEnvironment {
  readonly config: ResolverConfig;
  readonly sockets: ResolverSockets;
  readonly services: readonly Service[];
  /** Default: those of the configured resolv.conf. */
  readonly servers?: NameServers;
}

/** Serves until it is closed; takes ownership of the sockets. */
export async function startResolver(parts: ResolverParts): Promise<AsyncDisposable> {
  const { config, sockets, clock, logger, network, random, services } = parts;
  const scope = new Scope({ clock });
  try {
    for (const listener of [...sockets.dns, ...sockets.services]) scope.own('a socket of sandboxes', listener);
    const connections = new Set<WireServer>();
    // An edge that has lost the connection tells all policies anew, also those whose names another egressd has not heard of.
    const askAgain = (): void => {
      for (const wire of connections) {
        wire.close().catch((error: unknown) => logger.error('resolver.fault', { outcome: 'internal', error }));
      }
    };
    const egressd = scope.own(
      'egressd',
      new EgressLink({
        network,
        clock,
        logger,
        socket: config.egressdSocket,
        onLost: () => askAgain(),
        onRefused: (refused, { count, process }) => events.connectRefused(refused, count, process),
        onMissed: (count) => events.lose(count),
      }),
    );
    const events = new Events(clock, egressd);
    scope.defer('events', () => events[Symbol.dispose]());
    const sandboxes = new Sandboxes({
      sink: egressd,
      clock,
      services: new Set(services.map(({ name }) => name)),
      nodeNetworks: config.nodeNetworks.map(prefixOf),
    });
    const servers = parts.servers ?? new ResolvConf(config.resolvConf, clock);
    const resolution = new CachedResolution(new Upstream({ servers, network, clock, random }), clock);
    const { address4, address6, serviceZone: zone } = config;
    const responder = new Responder({
      resolution,
      pinSink: egressd,
      events,
      clock,
      logger,
      services: { zone, address4, address6 },
    });
    const server = new ResolverServer({
      sandboxes,
      events,
      cachedNames: () => resolution.size,
      address4,
      services: services.map(({ name }) => name),
    });
    const listener = await network.listenUnix(config.socket, (connection) => {
      if (connections.size >= MAX_CONNECTIONS) {
        connection.destroy();
        return;
      }
      const wire = serve(connection, (method, params, stream) => server.handle(method, params, stream), {
        role: 'resolver',
        clock,
        onFault: (error, method) => logger.error('resolver.fault', { method, outcome: 'internal', error }),
        onClose: () => connections.delete(wire),
      });
      connections.add(wire);
    });
    scope.own('the socket of the edge', listener);
    scope.defer('connections of the edge', () =>
      Promise.all([...connections].map((wire) => wire.close())).then(() => undefined),
    );
    await chmod(config.socket, SOCKET_MODE);
    for (const dns of sockets.dns) dns.serve({ sandboxes, responder });
    for (const socket of sockets.services) socket.serve({ sandboxes, events, services, zone });
    return scope;
  } catch (error) {
    await scope.close();
    throw error;
  }
}

function prefixOf(cidr: string): Prefix {
  const parsed = parsePrefix(cidr);
  if (parsed.ok) return parsed.prefix;
  throw new PlatformError('config_invalid', `the configuration: nodeNetworks has ${cidr}, which ${parsed.reason}`, {
    details: { field: 'nodeNetworks' },
  });
}
