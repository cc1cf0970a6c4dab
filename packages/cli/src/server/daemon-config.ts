import { realpath } from 'node:fs/promises';
import { storeDirectory, type BlobSettings } from '@dsec/blob';
import { PlatformError } from '@dsec/contract';
import { writeDurably, type Argv, type Network } from '@dsec/kit';
import type { EgressInfo } from '@dsec/native-link';
import { APISERVER_USER, EDGE_USER, PACKER_USER, RESOLVER_USER, type DataDirectory } from './data-directory.ts';
import type { Installation } from './installation.ts';
import { hasAddress, type NodeNetwork } from './sandbox-network.ts';

/** Where the API listens. */
export interface ListenAddress {
  readonly host: string;
  readonly port: number;
}

export interface DaemonSettings {
  readonly data: DataDirectory;
  readonly listen: ListenAddress;
  readonly adminKeySha256: string;
  /** Of what the apiserver proves itself to the edge with. */
  readonly apiserverKeySha256: string;
  /** Most sandboxes at once. @default what launcher and edge take */
  readonly maxSandboxes: number | undefined;
  /** Sandboxes made ahead of any create. @default what the launcher takes */
  readonly poolBlanks: number | undefined;
  /** Where layers come from that are not on the node; undefined: nowhere. */
  readonly blob: BlobSettings | undefined;
  /** Where the behaviour of sandboxes is posted to; undefined: nowhere. */
  readonly webhookFile: string | undefined;
}

/** Names of the variables that configure a daemon. The launcher takes none. */
const DAEMON_VARIABLE = /^DSEC_(?:EDGE|APISERVER|PACKER|LAYERD|RESOLVER)_/;

/** Those of the variables that are handed on to the daemons. */
export function daemonVariables(variables: Readonly<Record<string, string | undefined>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(variables).filter(
      (entry): entry is [string, string] => DAEMON_VARIABLE.test(entry[0]) && entry[1] !== undefined,
    ),
  );
}

export async function launcherArgv(parts: Installation, settings: DaemonSettings): Promise<Argv> {
  const { data, maxSandboxes, poolBlanks } = settings;
  return [
    parts.launcher,
    'serve',
    '--data',
    data.path,
    '--aether',
    await realpath(parts.aether),
    '--edge-uid',
    String(EDGE_USER.uid),
    '--edge-gid',
    String(EDGE_USER.gid),
    ...(maxSandboxes === undefined ? [] : ['--max-sandboxes', String(maxSandboxes)]),
    ...(poolBlanks === undefined ? [] : ['--pool-blanks', String(poolBlanks)]),
  ];
}

/** Variables that set options of layerd. */
const LAYERD_PREFIX = 'DSEC_LAYERD_';
const LAYERD_OPTIONS = [
  'cache-bytes',
  'free-low-bytes',
  'free-high-bytes',
  'store-wait-ms',
  'peers',
  'peer-listen',
  'peer-tls',
  'peer-wait-ms',
] as const;

/**
 * What fills the data of layers that come from the blob store; its account is in its environment.
 * @throws PlatformError `config_invalid` for a variable that is none of its options
 */
export function layerdArgv(
  parts: Installation,
  { data, variables }: { readonly data: DataDirectory; readonly variables: Readonly<Record<string, string>> },
  blob: BlobSettings,
): Argv {
  const options = Object.entries(variables).filter(([name]) => name.startsWith(LAYERD_PREFIX));
  const directory = storeDirectory(blob);
  return [
    parts.layerd,
    'serve',
    '--data',
    data.path,
    '--blob',
    directory === undefined ? blob.url : `file://${directory}`,
    '--edge-uid',
    String(EDGE_USER.uid),
    '--edge-gid',
    String(EDGE_USER.gid),
    ...options.flatMap(([name, value]) => [layerdOption(name), value]),
  ];
}

function layerdOption(variable: string): string {
  const name = variable.slice(LAYERD_PREFIX.length).toLowerCase().replaceAll('_', '-');
  const option = LAYERD_OPTIONS.find((known) => known === name);
  if (option !== undefined) return `--${option}`;
  throw new PlatformError('config_invalid', `${variable} is no option of layerd`, { details: { field: variable } });
}

export function publisherArgv(parts: Installation, { data }: DaemonSettings): Argv {
  return [
    parts.publisher,
    'serve',
    '--data',
    data.path,
    '--edge-uid',
    String(EDGE_USER.uid),
    '--packer-uid',
    String(PACKER_USER.uid),
  ];
}

export function egressdArgv(parts: Installation, { data }: DaemonSettings, cidr: string): Argv {
  return [
    parts.egressd,
    'serve',
    '--data',
    data.path,
    '--network',
    cidr,
    '--resolver-uid',
    String(RESOLVER_USER.uid),
    '--resolver-gid',
    String(RESOLVER_USER.gid),
    '--gate',
    parts.gate,
  ];
}

/** @param node what egressd says of the network @param servicesFile the mirror services, if any */
export async function resolverArgv(
  parts: Installation,
  { data }: DaemonSettings,
  node: EgressInfo,
  servicesFile: string | undefined,
): Promise<Argv> {
  const config = {
    socket: data.resolverSocket,
    egressdSocket: data.egressdSocket,
    address4: node.address4,
    ...(hasAddress(node.address6) ? { address6: node.address6 } : {}),
    dnsPort: node.dnsPort,
    servicePort: node.servicePorts[0],
    nodeNetworks: [node.network4, node.network6],
    ...(servicesFile === undefined ? {} : { servicesFile }),
    ...RESOLVER_USER,
  };
  return nodeArgv(parts.resolverMain, await writeConfig(data, 'resolver', config));
}

export async function edgeArgv(
  parts: Installation,
  { data, apiserverKeySha256, maxSandboxes, blob }: DaemonSettings,
  sandboxNetwork: NodeNetwork,
): Promise<Argv> {
  const config = {
    socket: data.edgeSocket,
    apiserverKeySha256,
    launcherSocket: data.launcherSocket,
    sandboxSockets: data.sandboxSockets,
    packerSocket: data.packerSocket,
    publisherSocket: data.publisherSocket,
    ...('lack' in sandboxNetwork
      ? { noNetworkReason: sandboxNetwork.lack }
      : { resolverSocket: sandboxNetwork.resolverSocket }),
    sets: { setsDirectory: data.sets, draftsDirectory: data.setDrafts, layersDirectory: data.layers },
    journal: data.journal,
    behaviourDirectory: data.behaviour,
    idKeyFile: data.idKey,
    layers: {
      directory: data.layers,
      fetchDirectory: data.fetchDirectory,
      layerdSocket: data.layerdSocket,
      ...(blob === undefined ? {} : { blobFile: data.blobFile }),
    },
    ...EDGE_USER,
    ...(maxSandboxes === undefined ? {} : { sandboxes: maxSandboxes }),
  };
  return nodeArgv(parts.edgeMain, await writeConfig(data, 'edge', config));
}

export async function packerArgv(parts: Installation, { data }: DaemonSettings): Promise<Argv> {
  const config = {
    socket: data.packerSocket,
    layersDirectory: data.layers,
    draftsDirectory: data.packDrafts,
    publisherSocket: data.publisherSocket,
    ...PACKER_USER,
  };
  return nodeArgv(parts.packerMain, await writeConfig(data, 'packer', config));
}

export async function apiserverArgv(parts: Installation, settings: DaemonSettings): Promise<Argv> {
  const { data, listen, adminKeySha256, webhookFile } = settings;
  const config = {
    ...listen,
    socket: data.apiSocket,
    edgeSocket: data.edgeSocket,
    store: data.store,
    idKeyFile: data.idKey,
    linkKeyFile: data.linkKey,
    ...(webhookFile === undefined ? {} : { webhookFile }),
    auditDirectory: data.auditDirectory,
    edgeKeyFile: data.edgeKey,
    adminKeySha256,
    ...APISERVER_USER,
  };
  return nodeArgv(parts.apiserverMain, await writeConfig(data, 'apiserver', config));
}

/** `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for loopback. @throws PlatformError `config_invalid` */
export function parseListen(text: string): ListenAddress {
  const match = /^(?:\[([0-9a-f:.]+)\]|([^:[\]]*)):(\d{1,5})$/i.exec(text);
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    throw new PlatformError('config_invalid', `--listen wants HOST:PORT, not ${text}`, {
      details: { field: '--listen' },
    });
  }
  const host = match[1] ?? match[2] ?? '';
  return { host: host === '' ? '127.0.0.1' : host, port };
}

/** A port that is free now, for port 0: it is chosen once, so that a restarted apiserver is found where the first was. */
export async function chosenPort(network: Network, { host, port }: ListenAddress): Promise<ListenAddress> {
  if (port !== 0) return { host, port };
  await using listener = await network.listenTcp(host, 0, (connection) => connection.destroy());
  return { host, port: listener.port };
}

/** How a client on this machine reaches it. */
export function endpointOf({ host, port }: ListenAddress): string {
  const reached = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  return `http://${reached.includes(':') ? `[${reached}]` : reached}:${port}`;
}

/**
 * How V8 runs a daemon. A small young generation (MiB): what streams through is freed by its collections, and with few of them the whole heap is
 * marked again and again for the sake of buffers outside of it. Early optimisation: by default a function is compiled well after some
 * thousand calls, which is hours of one agent's commands.
 */
const V8_FLAGS = [
  '--max-semi-space-size=2',
  '--invocation-count-for-feedback-allocation=2',
  '--invocation-count-for-maglev=50',
  '--invocation-count-for-turbofan=400',
  '--minimum-invocations-after-ic-update=100',
] as const;

function nodeArgv(main: string, configFile: string): Argv {
  return [process.execPath, '--disable-warning=ExperimentalWarning', ...V8_FLAGS, main, '--config', configFile];
}

async function writeConfig(
  data: DataDirectory,
  name: 'edge' | 'packer' | 'apiserver' | 'resolver',
  config: object,
): Promise<string> {
  const path = data.configFile(name);
  await writeDurably(path, `${JSON.stringify(config, null, 2)}\n`, { mode: 0o600 });
  return path;
}
