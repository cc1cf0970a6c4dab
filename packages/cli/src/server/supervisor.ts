import { DSecClient } from '@dsec/libdsec';
import { PlatformError } from '@dsec/contract';
import type { Argv, Clock, Logger, Network, Random } from '@dsec/kit';
import type { BlobSettings } from '@dsec/blob';
import {
  accountVariables,
  checkEdgeMayRead,
  keepBlobSettings,
  openCheckedStore,
  readBlobSettings,
} from './blob-settings.ts';
import { closeLayers } from './close-layers.ts';
import { holdControl } from './control.ts';
import { Daemon } from './daemon.ts';
import {
  apiserverArgv,
  chosenPort,
  edgeArgv,
  egressdArgv,
  endpointOf,
  launcherArgv,
  packerArgv,
  publisherArgv,
  layerdArgv,
  resolverArgv,
  type DaemonSettings,
  type ListenAddress,
} from './daemon-config.ts';
import { prepareDataDirectory, readAdminKey, type DataDirectory } from './data-directory.ts';
import { checkBuilt, type Installation } from './installation.ts';
import { listening, waitUntil } from './readiness.ts';
import {
  askEgressd,
  checkPacketFilter,
  clearNetwork,
  clearOtherNetwork,
  clearUnusedNetwork,
  lackOf,
  type NetworkChoice,
  type NodeNetwork,
} from './sandbox-network.ts';
import { removeServerFile, writeServerFile } from './server-file.ts';
import { keepServices } from './services-file.ts';
import { keepWebhook } from './webhook-file.ts';
import { prepareVolume, programEnv, type VolumeOptions } from './volume.ts';

export interface ServerOptions {
  readonly data: DataDirectory;
  /** Port 0 takes a free one. */
  readonly listen: ListenAddress;
  readonly volume: VolumeOptions;
  /** Most sandboxes at once. @default what launcher and edge take */
  readonly maxSandboxes: number | undefined;
  /** Sandboxes made ahead of any create. @default what the launcher takes */
  readonly poolBlanks: number | undefined;
  /** The blob store to use from now on. @default the one that was named before on this data directory, if any */
  readonly blob: BlobSettings | undefined;
  /** What sandboxes reach others by. */
  readonly network: NetworkChoice;
  /** File of the mirror services from now on. @default those that were named before on this data directory, if any */
  readonly servicesFile: string | undefined;
  /** File of the webhook from now on. @default the one that was named before on this data directory, if any */
  readonly webhookFile: string | undefined;
  /** Variables that configure the daemons: DSEC_EDGE_..., DSEC_APISERVER_..., DSEC_PACKER_..., DSEC_LAYERD_..., DSEC_RESOLVER_.... */
  readonly variables: Readonly<Record<string, string>>;
}

export interface SupervisorParts {
  readonly installation: Installation;
  readonly clock: Clock;
  readonly random: Random;
  readonly network: Network;
  readonly logger: Logger;
  /** Told what is being done. */
  readonly onStep: (step: string) => void;
}

type IsReady = (signal: AbortSignal) => Promise<void>;
/** Starts a daemon that ends with `owner`. */
type Start = (owner: AsyncDisposableStack, name: string, argv: Argv, isReady: IsReady) => Promise<void>;

/**
 * A server on one machine: prepares the data directory, starts the daemons in the order of their dependence, and starts
 * again whichever dies. It speaks to nobody itself. Closing it ends the daemons in the reverse order and leaves the sandboxes
 * running.
 */
export class Supervisor implements AsyncDisposable {
  readonly endpoint: string;
  /** Aborted when `dsec down` asks for the end. */
  readonly stopAsked: AbortSignal;
  /** Why sandboxes get no network although nobody has asked for none, if they do not. */
  readonly networkLack: string | undefined;
  readonly #resources: AsyncDisposableStack;

  private constructor(parts: {
    readonly endpoint: string;
    readonly stopAsked: AbortSignal;
    readonly networkLack: string | undefined;
    readonly resources: AsyncDisposableStack;
  }) {
    this.endpoint = parts.endpoint;
    this.stopAsked = parts.stopAsked;
    this.networkLack = parts.networkLack;
    this.#resources = parts.resources;
  }

  /** @throws PlatformError `already_running`, `host_unsuitable`, `config_invalid`, `blob_unavailable` of a store that is named now */
  static async start(options: ServerOptions, parts: SupervisorParts): Promise<Supervisor> {
    const { data } = options;
    const { installation, clock, network } = parts;
    await checkBuilt(installation.launcher, installation.aether, installation.layerd, installation.publisher);
    await using resources = new AsyncDisposableStack();
    parts.onStep(`preparing ${data.path}`);
    const { adminKeySha256, apiserverKeySha256 } = await prepareDataDirectory(data, parts.random);
    const stop = new AbortController();
    resources.use(await holdControl(network, data, () => stop.abort()));
    const blob = await useStore(options, parts);
    const servicesFile = await keepServices(data, options.servicesFile);
    const webhookFile = await keepWebhook(data, options.webhookFile);
    await prepareVolume(installation, data, options.volume, clock);
    const listen = await chosenPort(network, options.listen);
    const endpoint = endpointOf(listen);

    const pids: Record<string, number> = {};
    const startedAtMs = clock.now();
    const record = (): Promise<void> =>
      writeServerFile(data, { endpoint, socket: data.apiSocket, pid: process.pid, startedAtMs, pids });
    const startFor = async (
      owner: AsyncDisposableStack,
      name: string,
      argv: Argv,
      isReady: IsReady,
      account = {},
    ): Promise<void> => {
      parts.onStep(`starting the ${name}`);
      const onRestarted = async (pid: number): Promise<void> => {
        pids[name] = pid;
        await record();
      };
      const env = { ...programEnv, ...options.variables, ...account };
      const daemon = await Daemon.start({
        ...parts,
        name,
        argv,
        env,
        logFile: data.logFile(name),
        isReady,
        onRestarted,
      });
      owner.use(daemon);
      pids[name] = daemon.pid;
      owner.defer(() => {
        delete pids[name];
      });
    };
    const start = (name: string, argv: Argv, isReady: IsReady, account = {}): Promise<void> =>
      startFor(resources, name, argv, isReady, account);
    const { maxSandboxes, poolBlanks } = options;
    const settings = { data, listen, adminKeySha256, apiserverKeySha256, maxSandboxes, poolBlanks, blob, webhookFile };
    if (blob !== undefined) {
      const isReady: IsReady = (signal) => listening(clock, network, data.layerdSocket, signal);
      await start('layerd', layerdArgv(installation, options, blob), isReady, accountVariables(blob));
      // Without the launcher, which ends before it, only layers of live sandboxes are still mounted.
      resources.defer(() => closeLayers(data, clock, network).then(() => undefined));
    }
    await start('publisher', publisherArgv(installation, settings), (signal) =>
      listening(clock, network, data.publisherSocket, signal),
    );
    await start('launcher', await launcherArgv(installation, settings), (signal) =>
      listening(clock, network, data.launcherSocket, signal),
    );
    await start('packer', await packerArgv(installation, settings), (signal) =>
      listening(clock, network, data.packerSocket, signal),
    );
    const sandboxNetwork = await startNetwork({ options, parts, settings, servicesFile, resources, start: startFor });
    await start('edge', await edgeArgv(installation, settings, sandboxNetwork), (signal) =>
      listening(clock, network, data.edgeSocket, signal),
    );
    await start('apiserver', await apiserverArgv(installation, settings), (signal) =>
      answers(clock, data, endpoint, signal),
    );
    resources.defer(() => removeServerFile(data));
    await record();
    const isWanted = options.network.cidr !== undefined;
    return new Supervisor({
      endpoint,
      stopAsked: stop.signal,
      networkLack: isWanted && 'lack' in sandboxNetwork ? sandboxNetwork.lack : undefined,
      resources: resources.move(),
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#resources[Symbol.asyncDispose]();
  }
}

interface NetworkStart {
  readonly options: ServerOptions;
  readonly parts: SupervisorParts;
  readonly settings: DaemonSettings;
  readonly servicesFile: string | undefined;
  /** Of the server. */
  readonly resources: AsyncDisposableStack;
  readonly start: Start;
}

/**
 * Starts what gives sandboxes a network. A host that cannot has a server without, which refuses policies that need one with the reason.
 * @throws PlatformError `host_unsuitable` when a network was named
 */
async function startNetwork(work: NetworkStart): Promise<NodeNetwork> {
  const { data, network: choice } = work.options;
  const { installation, clock, network } = work.parts;
  const parts = { data, installation, clock, network };
  await clearOtherNetwork(parts, choice.cidr);
  if (choice.cidr === undefined)
    return { lack: 'the server was started with --network none: it runs no egress daemons' };
  await using daemons = new AsyncDisposableStack();
  daemons.defer(() => clearUnusedNetwork(parts));
  try {
    await checkBuilt(installation.egressd, installation.gate);
    await checkPacketFilter(clock);
    await work.start(daemons, 'egressd', egressdArgv(installation, work.settings, choice.cidr), (signal) =>
      listening(clock, network, data.egressdSocket, signal),
    );
    const argv = await resolverArgv(installation, work.settings, await askEgressd(parts), work.servicesFile);
    await work.start(daemons, 'resolver', argv, (signal) => listening(clock, network, data.resolverSocket, signal));
  } catch (error) {
    if (choice.isDemanded || !PlatformError.is(error) || error.code !== 'host_unsuitable') throw error;
    await daemons.disposeAsync();
    // What sandboxes from before have is closed rather than left to nobody.
    await clearNetwork(parts);
    return { lack: `this host cannot: ${lackOf(error)}` };
  }
  work.resources.use(daemons.move());
  return { resolverSocket: data.resolverSocket };
}

/** The store to use: one that is named must answer; one of before may be away, since the node also serves what it has. */
async function useStore({ data, blob }: ServerOptions, parts: SupervisorParts): Promise<BlobSettings | undefined> {
  const settings = blob ?? (await readBlobSettings(data));
  if (settings === undefined) return undefined;
  parts.onStep(`opening the blob store ${settings.url}`);
  try {
    await openCheckedStore(settings, parts);
    await checkEdgeMayRead(settings);
  } catch (error) {
    if (blob !== undefined) throw error;
    parts.logger.warn('blob.check', { url: settings.url, error });
  }
  if (blob !== undefined) await keepBlobSettings(data, blob);
  return settings;
}

/** Waits until the API answers, its edge too, and knows the key of this installation. */
async function answers(clock: Clock, data: DataDirectory, endpoint: string, signal: AbortSignal): Promise<void> {
  const apiKey = await readAdminKey(data);
  await using client = new DSecClient({
    endpoint,
    ...(apiKey === undefined ? {} : { apiKey }),
    retry: { budgetMs: 1 },
  });
  await waitUntil(clock, `the API did not answer at ${endpoint}`, signal, async () => {
    try {
      await client.open({ signal, timeoutMs: 5000 });
      return true;
    } catch (error) {
      if (PlatformError.is(error) && (error.retryable || error.code === 'timeout')) return undefined;
      throw error;
    }
  });
}
