/** The network of containers: the resolver of the node has their devices made, their policies put into the kernel, and answers their names. */
import { PlatformError, type NetworkPolicy } from '@dsec/contract';
import type { Clock, Logger, Network, Random } from '@dsec/kit';
import { ResolverClient, type StreamOptions } from '@dsec/native-link';
import type {
  CloseOptions,
  NetworkControl,
  NetworkObserver,
  NetworkOffer,
  OpenOptions,
  Uplink,
} from '../network-control.ts';
import { actOfRefused, followActs } from './act-streams.ts';
import { KeptLink } from './kept-link.ts';

export interface ResolverNetworkOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  /** Where the resolver listens. */
  readonly socket: string;
}

/** What one connection to the resolver knows of it. */
interface Known {
  readonly client: ResolverClient;
  readonly address4: string;
}

export class ResolverNetwork implements NetworkControl {
  readonly #link: KeptLink<Known>;
  /** A change of a sandbox without an uplink must not give it one. */
  readonly #opened = new Set<string>();
  #services: readonly string[] | undefined;
  #resolver: string | undefined;
  #observer: NetworkObserver | undefined;

  constructor(options: ResolverNetworkOptions) {
    this.#link = new KeptLink<Known>({
      ...options,
      name: 'resolver',
      serve: async (wire, up, call) => {
        const client = new ResolverClient(wire);
        const events = client.events();
        // Its answer shows that the resolver has seen the subscription before.
        const { address4, services } = await client.info(call);
        this.#services = services;
        this.#resolver = address4;
        up({ client, address4 });
        const observer = this.#observer;
        observer?.onReady();
        if (observer !== undefined) {
          const { logger } = options;
          void followActs({ stream: events, actOf: actOfRefused, observer, logger, name: 'resolver' });
        }
        await wire.closed;
        throw new PlatformError('connection_lost', 'the connection to the resolver broke');
      },
    });
  }

  get offer(): NetworkOffer {
    return { isOffered: true, services: this.#services, resolver: this.#resolver };
  }

  start(observer: NetworkObserver): void {
    this.#observer ??= observer;
    this.#link.start();
  }

  async open(sandboxId: string, policy: NetworkPolicy, options: OpenOptions = {}): Promise<Uplink> {
    const { client, address4: resolver } = await this.#link.client(options.signal);
    const { address4, address6 } = await client.policySet(sandboxId, onlyOpen(policy), options);
    this.#opened.add(sandboxId);
    return { address4, address6: address6 ?? undefined, resolver };
  }

  async change(sandboxId: string, policy: NetworkPolicy, options: StreamOptions = {}): Promise<void> {
    if (!this.#opened.has(sandboxId)) {
      throw new PlatformError('sandbox_not_found', `sandbox ${sandboxId} has no uplink`, { details: { sandboxId } });
    }
    const { client } = await this.#link.client(options.signal);
    await client.policySet(sandboxId, onlyOpen(policy), options);
  }

  async close(sandboxId: string, options: CloseOptions = {}): Promise<void> {
    const { client } = await this.#link.client(options.signal);
    await client.policyRemove(sandboxId, options);
    this.#opened.delete(sandboxId);
  }

  async list(options: StreamOptions = {}): Promise<readonly string[]> {
    const { client } = await this.#link.client(options.signal);
    return await client.policyList(options);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#link[Symbol.asyncDispose]();
  }
}

/** A service that is closed need not be one that the node has. */
const onlyOpen = (policy: NetworkPolicy): NetworkPolicy => ({
  ...policy,
  services: Object.fromEntries(Object.entries(policy.services).filter(([, isOpen]) => isOpen)),
});
