/** Containers: made by the launcher, reached through the aether that is their first process. */
import { join } from 'node:path';
import type { ObjectStore } from '@dsec/blob';
import { PlatformError, type Usage } from '@dsec/contract';
import type { Clock, Logger, Network, Random } from '@dsec/kit';
import { LayerSets, type HeldSet, type SetMerger } from '@dsec/environment';
import {
  DaemonLink,
  LayerdClient,
  PublisherClient,
  type CreatedSandbox,
  type SandboxCreateParams,
} from '@dsec/native-link';
import type {
  Backend,
  BackendObserver,
  CallOptions,
  Channel,
  ChannelOptions,
  LayerState,
  MadeSandbox,
  NodeDisk,
  PresentSandbox,
  SandboxChanges,
  SandboxSpec,
  SetOnNode,
} from '../backend.ts';
import type { NetworkControl } from '../network-control.ts';
import { AetherChannel } from './aether-channel.ts';
import { ContainerChanges } from './container-changes.ts';
import { exitOf, LauncherLink } from './launcher-link.ts';
import { LayerSupply } from './layer-supply.ts';
import { warmUp } from './warm-up.ts';

const BYTES_PER_MIB = 1024 * 1024;
/** Blanks that stand on a set end before it is let go. */
const FORGET_MS = 30_000;

export interface ContainerBackendOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly launcherSocket: string;
  /** Directory of the sockets to aether. */
  readonly sandboxSockets: string;
  /** Where layers come from that are not on the node. @default all that are asked for are there */
  readonly layers?: LayerPlaces | undefined;
  /** Where the publisher keeps sets of layers. */
  readonly setsDirectory: string;
  /** Where the merger leaves them for the publisher; everything in it is thrown away at the start. */
  readonly setDraftsDirectory: string;
  readonly merger: SetMerger;
  readonly publisherSocket: string;
  /** What gives its sandboxes a network. */
  readonly sandboxNetwork: NetworkControl;
}

export interface LayerPlaces {
  /** The layers of the node. */
  readonly directory: string;
  /** The edge's own; everything in it is thrown away at the start. */
  readonly fetchDirectory: string;
  readonly layerdSocket: string;
  /** Undefined: what is not on the node cannot be had. */
  readonly store: ObjectStore | undefined;
}

export class ContainerBackend implements Backend {
  readonly kind = 'container';
  readonly network: NetworkControl;
  readonly #options: ContainerBackendOptions;
  readonly #launcher: LauncherLink;
  readonly #sets: LayerSets;
  readonly #layers: LayerSupply | undefined;

  constructor(options: ContainerBackendOptions) {
    this.#options = options;
    this.network = options.sandboxNetwork;
    this.#launcher = new LauncherLink({ ...options, socket: options.launcherSocket });
    const { layers } = options;
    const publisher = new DaemonLink({
      ...options,
      name: 'publisher',
      role: 'edge',
      socket: options.publisherSocket,
      client: (wire) => new PublisherClient(wire),
    });
    if (layers !== undefined) {
      this.#layers = new LayerSupply({
        ...options,
        ...layers,
        layersDirectory: layers.directory,
        layerd: new DaemonLink({
          ...options,
          name: 'layerd',
          role: 'edge',
          socket: layers.layerdSocket,
          client: (wire) => new LayerdClient(wire),
        }),
        publisher,
        forget: async (layer, signal) => (await this.#launcher.client(signal)).layerForget(layer, { signal }),
      });
    }
    this.#sets = new LayerSets({
      ...options,
      directory: options.setsDirectory,
      draftsDirectory: options.setDraftsDirectory,
      letGo: (set) => this.#letGo(set),
      publisher: {
        publish: (set) => publisher.call((client, call) => client.setPublish(set, call)),
        remove: (set) => publisher.call((client, call) => client.setRemove(set, call)),
      },
    });
  }

  async prepare(): Promise<void> {
    await this.#layers?.prepare();
    await this.#sets.open();
    await warmUp(this.#options.clock);
  }

  start(observer: BackendObserver): void {
    this.#launcher.start(observer);
  }

  provide(layers: readonly string[]): Promise<void> | undefined {
    const provided = this.#layers?.provide(layers);
    if (layers.length === 1 || (provided === undefined && this.#sets.has(layers))) return provided;
    return this.#provideSet(layers, provided);
  }

  async layerStates(layers: readonly string[], { signal }: CallOptions = {}): Promise<readonly LayerState[]> {
    return await this.#supply.states(layers, signal);
  }

  setsOn(layer: string): readonly SetOnNode[] {
    return this.#sets.on(layer);
  }

  async releaseLayer(layer: string, { signal }: CallOptions = {}): Promise<boolean> {
    return (await this.#supply.release(layer, signal)) && (await this.#sets.leave(layer));
  }

  async create(spec: SandboxSpec, options: ChannelOptions): Promise<MadeSandbox> {
    const params = {
      id: spec.sandboxId,
      layers: spec.layers,
      hostname: spec.hostname,
      ...(spec.nameserver === undefined ? {} : { nameserver: spec.nameserver }),
      memoryBytes: spec.memoryMib * BYTES_PER_MIB,
      cpuMillis: spec.cpuMillis,
      pids: spec.pids,
      diskBytes: spec.diskMib * BYTES_PER_MIB,
      // The launcher's own default is the profile of this name.
      ...(spec.profile === 'default' ? {} : { profile: spec.profile }),
      ...(spec.tripwires.length === 0 ? {} : { tripwires: spec.tripwires }),
    };
    const { socket, absentTripwires = [] } = await this.#make(params, options).catch((error: unknown) => {
      if (PlatformError.is(error) && error.details['layer'] !== undefined) this.#layers?.doubt(spec.layers);
      throw error;
    });
    return { channel: await AetherChannel.connect(this.#options, socket, options), absentTripwires };
  }

  connect(sandboxId: string, options: ChannelOptions): Promise<Channel> {
    return AetherChannel.connect(this.#options, join(this.#options.sandboxSockets, `${sandboxId}.sock`), options);
  }

  async destroy(sandboxId: string, options: CallOptions = {}): Promise<void> {
    await (await this.#launcher.client(options.signal)).sandboxDestroy(sandboxId, options);
  }

  async list(options: CallOptions = {}): Promise<readonly PresentSandbox[]> {
    const listed = await (await this.#launcher.client(options.signal)).sandboxList(options);
    return listed.map(({ id, state, exit }) => ({
      sandboxId: id,
      isLive: state === 'live',
      exit: exit === undefined ? undefined : exitOf(exit),
    }));
  }

  async usage(sandboxId: string, options: CallOptions = {}): Promise<Usage> {
    return await (await this.#launcher.client(options.signal)).sandboxUsage(sandboxId, options);
  }

  async changes(sandboxId: string, options: CallOptions = {}): Promise<SandboxChanges> {
    const launcher = await this.#launcher.client(options.signal);
    return await ContainerChanges.open(
      this.#options.network,
      await launcher.sandboxChanges(sandboxId, options),
      options,
    );
  }

  async disk(options: CallOptions = {}): Promise<NodeDisk> {
    const { diskTotalBytes, diskFreeBytes } = await (await this.#launcher.client(options.signal)).nodeInfo(options);
    return { totalMib: Math.floor(diskTotalBytes / BYTES_PER_MIB), freeMib: Math.floor(diskFreeBytes / BYTES_PER_MIB) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.network[Symbol.asyncDispose]();
    await this.#launcher[Symbol.asyncDispose]();
  }

  get #supply(): LayerSupply {
    if (this.#layers !== undefined) return this.#layers;
    throw new PlatformError('unavailable', 'this edge was not told where the layers of its node are');
  }

  /** A merge, too, holds up none that need nothing of it. */
  async #provideSet(layers: readonly string[], provided: Promise<void> | undefined): Promise<void> {
    await provided;
    using _set = await this.#sets.acquire(layers);
  }

  /** One layer is mounted as it is; more as a set, so that a create mounts the same for twenty as for one. */
  async #make(params: SandboxCreateParams, options: CallOptions): Promise<CreatedSandbox> {
    if (params.layers.length === 1) return await this.#ask(params, options);
    using set = await this.#sets.acquire(params.layers, options.signal);
    const withSet = { ...params, set: set.digest };
    try {
      return await this.#ask(withSet, options);
    } catch (error) {
      if (!isBroken(set, error)) throw error;
      await set.renew(options.signal);
      return await this.#ask(withSet, options);
    }
  }

  async #ask(params: SandboxCreateParams, { signal, timeoutMs }: CallOptions): Promise<CreatedSandbox> {
    return await (await this.#launcher.client(signal)).sandboxCreate(params, { signal, timeoutMs });
  }

  async #letGo(set: string): Promise<boolean> {
    try {
      await (await this.#launcher.client()).setForget(set, { timeoutMs: FORGET_MS });
      return true;
    } catch (error) {
      if (PlatformError.is(error) && error.code === 'layer_in_use') return false;
      throw error;
    }
  }
}

/** True when the set, and none of its layers, is what could not be mounted. */
const isBroken = (set: HeldSet, error: unknown): boolean =>
  PlatformError.is(error) && error.code === 'environment_broken' && error.details['set'] === set.digest;
