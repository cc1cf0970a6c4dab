/** What the edge asks of the resolver, over the wire protocol. */
import { completeNetworkPolicy, NetworkPolicySchema, PlatformError, type NetworkPolicyRequest } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import type { JsonObject, WireServerStream } from '@dsec/native-link';
import { Type } from 'typebox';
import type { Events } from './events.ts';
import type { Sandboxes } from './sandboxes.ts';

const closed = { additionalProperties: false } as const;
const sandbox = Type.String({ pattern: '^[a-z0-9]{1,24}$' });

/** Params of each method. `ResolverClient` of native-link is the other end. */
const params = {
  /** ok {address4, address6, generation}: the sandbox has its device, and the policy is in force. Idempotent; the one before stays when it fails. */
  'policy.set': compileSchema(Type.Object({ sandbox, policy: NetworkPolicySchema }, closed)),
  /** ok {}: its device is gone. Unknown is no error. */
  'policy.remove': compileSchema(Type.Object({ sandbox }, closed)),
  /** ok {sandboxes: [id]}: those that have a device. */
  'policy.list': compileSchema(Type.Object({}, closed)),
  /** MESSAGE {event: RefusalEvent, lost?} ...; `lost` were not told before it. Ends by RESET. */
  events: compileSchema(Type.Object({}, closed)),
  /** ok {address4, services, sandboxes, cachedNames, refused} */
  'resolver.info': compileSchema(Type.Object({}, closed)),
} as const;

export interface ResolverServerParts {
  readonly sandboxes: Sandboxes;
  readonly events: Events;
  readonly cachedNames: () => number;
  /** Where sandboxes find it. */
  readonly address4: string;
  /** Names of the mirror services. */
  readonly services: readonly string[];
}

export class ResolverServer {
  readonly #parts: ResolverServerParts;

  constructor(parts: ResolverServerParts) {
    this.#parts = parts;
  }

  /** Answers one stream. */
  async handle(method: string, values: JsonObject, stream: WireServerStream): Promise<unknown> {
    switch (method) {
      case 'policy.set':
        return await this.#set(values);
      case 'policy.remove':
        await this.#parts.sandboxes.remove(params[method].parse(values).sandbox);
        return {};
      case 'policy.list':
        params[method].parse(values);
        return { sandboxes: await this.#parts.sandboxes.list() };
      case 'events':
        params[method].parse(values);
        return await this.#events(stream);
      case 'resolver.info': {
        params[method].parse(values);
        const { sandboxes, events, cachedNames, address4, services } = this.#parts;
        const counts = { sandboxes: sandboxes.size, cachedNames: cachedNames(), refused: events.refused };
        return { address4, services, ...counts };
      }
      default:
        throw new PlatformError('unknown_method', 'a resolver has no such method', { details: { method } });
    }
  }

  async #set(values: JsonObject): Promise<object> {
    const { sandbox: id, policy: asked } = params['policy.set'].parse(values);
    // The schema has checked it; its derived type has lost the names of literals.
    const policy = completeNetworkPolicy(asked as NetworkPolicyRequest, { field: 'network' });
    const { addresses, inForce } = await this.#parts.sandboxes.set(id, policy);
    return {
      address4: addresses.address4 ?? null,
      address6: addresses.address6 ?? null,
      generation: inForce?.generation ?? 0,
    };
  }

  async #events(stream: WireServerStream): Promise<object> {
    using subscription = this.#parts.events.subscribe();
    const onAbort = (): void => subscription[Symbol.dispose]();
    stream.signal.addEventListener('abort', onAbort, { once: true });
    if (stream.signal.aborted) onAbort();
    for await (const event of subscription) {
      const lost = subscription.takeLost();
      await stream.message(lost > 0 ? { event, lost } : { event });
    }
    return {};
  }
}
