/** What an edge asks of the resolver of its node; what comes back is checked. */
import type { NetworkPolicy } from '@dsec/contract';
import { type Static, Type } from 'typebox';

import { type Answer, answer, closed } from './answer.ts';
import { type RefusedAct, refusedAct } from './behaviour-answers.ts';
import { MessageStream } from './message-stream.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions } from './wire/stream-api.ts';

const MAX_SANDBOXES = 65_536;
const MAX_SERVICES = 1024;

const sandboxId = Type.String({ pattern: '^[a-z0-9]{1,24}$' });
const address = Type.String({ minLength: 2, maxLength: 45 });
const count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

/** Not closed: a resolver tells people more of itself. */
const ResolverInfoSchema = Type.Object({
  /** Where sandboxes ask. */
  address4: address,
  /** Names of the mirror services that the operator has defined. */
  services: Type.Array(Type.String({ minLength: 1, maxLength: 64 }), { maxItems: MAX_SERVICES }),
});
export type ResolverInfo = Static<typeof ResolverInfoSchema>;

const PlacedSchema = closed({
  address4: address,
  address6: Type.Union([address, Type.Null()]),
  generation: count,
});
/** Where a sandbox stands on the node's network, and under which generation its policy holds. */
export type PlacedSandbox = Static<typeof PlacedSchema>;

const info = answer(ResolverInfoSchema);
const placed = answer(PlacedSchema);
const listed = answer(closed({ sandboxes: Type.Array(sandboxId, { maxItems: MAX_SANDBOXES }) }));
const none = answer(closed({}));

export class ResolverClient {
  readonly #wire: WireClient;

  constructor(wire: WireClient) {
    this.#wire = wire;
  }

  info(options?: StreamOptions): Promise<ResolverInfo> {
    return this.#call('resolver.info', {}, info, options);
  }

  /**
   * Gives a sandbox its uplink if it has none, and puts the policy in force, for open flows too; when it fails the one before stays in force. One that is being made
   * may come for `waitMs`.
   * @throws PlatformError `sandbox_not_found`, `service_unknown`, `invalid_argument`, `no_capacity`
   */
  policySet(
    sandbox: string,
    policy: NetworkPolicy,
    { waitMs, ...options }: StreamOptions & { readonly waitMs?: number | undefined } = {},
  ): Promise<PlacedSandbox> {
    const params = { sandbox, policy, ...(waitMs === undefined ? {} : { waitMs }) };
    return this.#call('policy.set', params, placed, options);
  }

  /**
   * Resolves when neither policy nor uplink is left, whoever made it; a sandbox without is no error. `isOver`: the device of a sandbox that is over may go
   * later, when nothing passes it any more.
   */
  async policyRemove(
    sandbox: string,
    { isOver, ...options }: StreamOptions & { readonly isOver?: boolean } = {},
  ): Promise<void> {
    await this.#call('policy.remove', { sandbox, ...(isOver === true ? { isOver } : {}) }, none, options);
  }

  /** Every sandbox of the node that has an uplink, whoever made it. */
  async policyList(options?: StreamOptions): Promise<readonly string[]> {
    return (await this.#call('policy.list', {}, listed, options)).sandboxes;
  }

  /** What was refused to sandboxes, as it happens. */
  events(options?: StreamOptions): MessageStream<RefusedAct> {
    return new MessageStream(this.#wire.open('events', {}, options), refusedAct);
  }

  async #call<T>(method: string, params: object, check: Answer<T>, options?: StreamOptions): Promise<T> {
    return check(await this.#wire.call(method, params, options), method);
  }
}
