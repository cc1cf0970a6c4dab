/** The methods of egressd (docs/decisions/0008-egress.md), which puts into the kernel what a sandbox may reach; what comes back is checked. */
import { PlatformError } from '@dsec/contract';
import { type Static, Type } from 'typebox';

import { type Answer, answer, closed } from './answer.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions, WireStream } from './wire/stream-api.ts';

const MAX_UPLINKS = 65_536;
/** Kinds of denial that are counted apart. */
const MAX_REASONS = 64;
/** The longest text of an IPv6 address (RFC 4291 2.2), and with it of any. */
const MAX_ADDRESS_CHARS = 45;

const count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const sandboxId = Type.String({ pattern: '^[a-z0-9]{1,24}$' });
const address = Type.String({ minLength: 2, maxLength: MAX_ADDRESS_CHARS });
/** IFNAMSIZ. */
const interfaceName = Type.String({ minLength: 1, maxLength: 15 });
const word = Type.String({ minLength: 1, maxLength: 64 });

const port = Type.Integer({ minimum: 0, maximum: 65_535 });
const network = Type.String({ maxLength: MAX_ADDRESS_CHARS + 4 });

/** Not closed: a node tells people more of itself. */
const EgressInfoSchema = Type.Object({
  version: Type.String({ maxLength: 64 }),
  /** The blocks that sandboxes have their addresses of, as CIDRs. */
  network4: network,
  network6: network,
  /** The gateway, where the resolver listens. */
  address4: address,
  address6: address,
  dnsPort: port,
  /** Ports of the gateway that are open to sandboxes whose policy has services; both ends included. */
  servicePorts: Type.Tuple([port, port]),
  mtu: count,
  /** Sandboxes with an uplink, and how many there may be. */
  sandboxes: count,
  maxSandboxes: count,
});
export type EgressInfo = Static<typeof EgressInfoSchema>;

const UplinkSchema = closed({
  interface: interfaceName,
  address4: address,
  /** Null on a host without IPv6. */
  address6: Type.Union([address, Type.Null()]),
  generation: count,
});
/** The end of a sandbox's device on the host, the addresses of the sandbox, and the generation of its policy: 0 is closed. */
export type Uplink = Static<typeof UplinkSchema>;

const ListedUplinkSchema = closed({ id: sandboxId, ...UplinkSchema.properties });
export type ListedUplink = Static<typeof ListedUplinkSchema>;

const PolicySetSchema = closed({
  generation: count,
  /** How long the change took in the kernel. */
  micros: count,
});
export type PolicySet = Static<typeof PolicySetSchema>;

const CountersSchema = Type.Object({
  sentPackets: count,
  sentBytes: count,
  receivedPackets: count,
  receivedBytes: count,
  /** Packets by the reason for which they were dropped. */
  denied: Type.Record(word, count, { maxProperties: MAX_REASONS }),
});
export type EgressCounters = Static<typeof CountersSchema>;

const DenialSchema = Type.Object({
  denied: Type.Object({
    id: sandboxId,
    reason: word,
    protocol: Type.Optional(Type.Union([word, count])),
    address: Type.Optional(address),
    port: Type.Optional(port),
    /** So many alike. */
    count,
  }),
});
/** Packets that were denied. */
export type Denial = Static<typeof DenialSchema>['denied'];

const info = answer(EgressInfoSchema);
const uplink = answer(UplinkSchema);
const uplinks = answer(closed({ uplinks: Type.Array(ListedUplinkSchema, { maxItems: MAX_UPLINKS }) }));
const policySet = answer(PolicySetSchema);
const counters = answer(CountersSchema);
const denial = answer(DenialSchema);
const pinned = answer(closed({ pins: count }));
const none = answer(closed({}));

/** Both ends included; the first that matches decides. */
export type EgressRange = readonly [protocol: 'tcp' | 'udp' | 'icmp', low: number, high: number, allow: boolean];

export interface EgressPin {
  readonly address: string;
  /** By which the address was allowed; the gate lets connections to it through under this name. */
  readonly name: string;
  readonly ttlMs: number;
  /** At most four. */
  readonly ranges: readonly EgressRange[];
}

export interface EgressPolicy {
  readonly flags: {
    readonly resolver: boolean;
    readonly services: boolean;
    readonly names: boolean;
    readonly public: boolean;
  };
  /** For a lookup by longest prefix: an entry inherits nothing. At most 16 ranges each. */
  readonly rules: readonly { readonly cidr: string; readonly ranges: readonly EgressRange[] }[];
  /** Open from the first moment: what was resolved under the policy before, and still holds. */
  readonly pins: readonly EgressPin[];
  /** For the gate: names or `*.name`, with their TCP ports, both ends included. */
  readonly names: readonly {
    readonly pattern: string;
    readonly ports: readonly EgressRange[];
    /** The address alone decides, whatever a connection carries: for protocols in which the server speaks first. */
    readonly anyProtocol?: boolean;
  }[];
}

/** Denials as they happen, within a budget for each sandbox, until it is reset. */
export class EgressEvents implements AsyncIterableIterator<Denial, undefined> {
  readonly #stream: WireStream;

  constructor(stream: WireStream) {
    this.#stream = stream;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Denial, undefined>> {
    const { done, value } = await this.#stream.next();
    if (done === true) return { done: true, value: undefined };
    try {
      if (value.type !== 'message') throw new PlatformError('protocol_error', 'The events of egressd are messages.');
      return { done: false, value: denial(value.value, this.#stream.method).denied };
    } catch (error) {
      if (PlatformError.is(error)) this.#stream.reset(error);
      throw error;
    }
  }

  /** Idempotent. */
  reset(): void {
    this.#stream.reset();
  }
}

export class EgressClient {
  readonly #wire: WireClient;

  constructor(wire: WireClient) {
    this.#wire = wire;
  }

  nodeInfo(options?: StreamOptions): Promise<EgressInfo> {
    return this.#call('node.info', {}, info, options);
  }

  /** Gives a sandbox a device, closed until a policy is set. Idempotent. @throws PlatformError `sandbox_not_found` */
  uplinkOpen(id: string, options?: StreamOptions): Promise<Uplink> {
    return this.#call('uplink.open', { id }, uplink, options);
  }

  /** Resolves when nothing of it is left; one that is not there is no error. */
  async uplinkClose(id: string, options?: StreamOptions): Promise<void> {
    await this.#call('uplink.close', { id }, none, options);
  }

  async uplinkList(options?: StreamOptions): Promise<readonly ListedUplink[]> {
    return (await this.#call('uplink.list', {}, uplinks, options)).uplinks;
  }

  /** Replaces the whole policy of a sandbox at once, for open flows too. @throws PlatformError `invalid_argument`, `sandbox_not_found` */
  policySet(id: string, policy: EgressPolicy, options?: StreamOptions): Promise<PolicySet> {
    return this.#call('policy.set', { id, ...policy }, policySet, options);
  }

  /**
   * Opens addresses under the policy of this generation; of one that is open the later end counts, and the ranges that came last. Tells how many pins
   * there are.
   * @throws PlatformError `policy_stale` when another is in force by now
   */
  async pinsAdd(id: string, generation: number, pins: readonly EgressPin[], options?: StreamOptions): Promise<number> {
    return (await this.#call('pins.add', { id, generation, pins }, pinned, options)).pins;
  }

  counters(id: string, options?: StreamOptions): Promise<EgressCounters> {
    return this.#call('counters', { id }, counters, options);
  }

  events(options?: StreamOptions): EgressEvents {
    return new EgressEvents(this.#wire.open('events', {}, options));
  }

  async #call<T>(method: string, params: object, check: Answer<T>, options?: StreamOptions): Promise<T> {
    return check(await this.#wire.call(method, params, options), method);
  }
}
