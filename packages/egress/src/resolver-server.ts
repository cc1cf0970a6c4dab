/** What the edge asks of the resolver, over the wire protocol. */
import { NetworkPolicySchema, PlatformError, type NetworkPolicyRequest } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import type { JsonObject, WireServerStream } from '@dsec/native-link';
import { Type } from 'typebox';
import type { Events } from './events.ts';
import type { Sandboxes } from './sandboxes.ts';

const closed = { additionalProperties: false } as const;
/** How long a sandbox may take to come that is being made. */
const waitMs = Type.Integer({ minimum: 0, maximum: 120_000 });
const sandbox = Type.String({ pattern: '^[a-z0-9]{1,24}$' });

/** Params of each method. `ResolverClient` of native-link is the other end. */
const params = {
  /** ok {address4, address6, generation}: the sandbox has its device, and the policy is in force. Idempotent; the one before stays when it fails. */
  'policy.set': compileSchema(
    Type.Object({ sandbox, policy: NetworkPolicySchema, waitMs: Type.Optional(waitMs) }, closed),
  ),
  /** ok {}: its device is gone. Unknown is no error. */
  'policy.remove': compileSchema(Type.Object({ sandbox, isOver: Type.Optional(Type.Boolean()) }, closed)),
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
        return await this.#set(values, stream.signal);
      case 'policy.remove': {
        const { sandbox: id, isOver } = params[method].parse(values);
        await this.#parts.sandboxes.remove(id, isOver);
        return {};
      }
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

  async #set(values: JsonObject, signal: AbortSignal): Promise<object> {
    const { sandbox: id, policy, waitMs: wait } = params['policy.set'].parse(values);
    const { addresses, inForce } = await this.#parts.sandboxes.set(
      id,
      // The schema has checked it; its derived type has lost the names of literals.
      policy as NetworkPolicyRequest,
      // Only who waits for one that may never come can be asked to wait no more: else nobody knew what holds.
      { waitMs: wait, ...(wait === undefined ? {} : { signal }) },
    );
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
