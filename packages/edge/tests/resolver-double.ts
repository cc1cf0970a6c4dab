/** A resolver over a real socket, with the uplinks of a node behind it that outlive it. */
import { completeNetworkPolicy, PlatformError, type NetworkPolicy, type NetworkPolicyRequest } from '@dsec/contract';
import { SystemClock, SystemNetwork, type Connection, type Listener } from '@dsec/kit';
import { serve, type JsonObject } from '@dsec/native-link';
import type { NetworkDouble } from './network-double.ts';

export class ResolverDouble implements AsyncDisposable {
  /** Of each request. */
  readonly asked: { readonly method: string; readonly params: JsonObject }[] = [];
  readonly #socket: string;
  readonly #node: NetworkDouble;
  readonly #connections = new Set<Connection>();
  #listener: Listener | undefined;

  constructor(socket: string, node: NetworkDouble) {
    this.#socket = socket;
    this.#node = node;
  }

  async start(): Promise<this> {
    this.#listener = await new SystemNetwork().listenUnix(this.#socket, (connection) => {
      this.#connections.add(connection);
      connection.once('close', () => this.#connections.delete(connection));
      serve(connection, (method, params, stream) => this.#answer(method, params, stream.signal), {
        role: 'resolver',
        clock: new SystemClock(),
        onFault: (fault) => {
          throw fault;
        },
      });
    });
    return this;
  }

  /** As after kill -9. */
  async stop(): Promise<void> {
    await this.#listener?.close();
    for (const connection of this.#connections) connection.destroy();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #answer(method: string, params: JsonObject, signal: AbortSignal): Promise<unknown> {
    this.asked.push({ method, params });
    const id = String(params.sandbox);
    switch (method) {
      case 'resolver.info': {
        const { offer } = this.#node;
        return {
          address4: '198.18.0.1',
          services: offer.isOffered ? offer.services : [],
          sandboxes: this.#node.uplinks.size,
        };
      }
      case 'policy.set': {
        const { address4, address6 } = await this.#node.open(id, policyIn(params), {
          waitMs: typeof params.waitMs === 'number' ? params.waitMs : undefined,
          signal,
        });
        return { address4, address6: address6 ?? null, generation: 1 };
      }
      case 'policy.remove':
        await this.#node.close(id);
        return {};
      case 'policy.list':
        return { sandboxes: await this.#node.list() };
      default:
        throw new PlatformError('unknown_method', `the double has no ${method}`);
    }
  }
}

/** The resolver completes it again, and knows every service that is named. */
const policyIn = ({ policy }: JsonObject): NetworkPolicy =>
  completeNetworkPolicy(policy as NetworkPolicyRequest, { field: 'network' });
