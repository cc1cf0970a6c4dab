/** The methods of egressd (docs/decisions/0008-egress.md), which puts into the kernel what a sandbox may reach; what comes back is checked. */
import { type Static, Type } from 'typebox';

import { type Answer, answer, closed } from './answer.ts';
import { type CausingProcess, ProcessSchema } from './behaviour-answers.ts';
import { MessageStream } from './message-stream.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions } from './wire/stream-api.ts';

const MAX_UPLINKS = 65_536;
/** Kinds of denial that are counted apart. */
const MAX_REASONS = 64;
/** The longest text of an IPv6 address (RFC 4291 2.2), and with it of any. */
const MAX_ADDRESS_CHARS = 45;
/** RFC 1035 2.3.4. */
const MAX_NAME_CHARS = 255;

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
  interface: interfaceName,
  address4: address,
  address6: Type.Union([address, Type.Null()]),
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

const process = Type.Optional(ProcessSchema);

const EgressEventSchema = closed({
  denied: Type.Optional(
    closed({
      id: sandboxId,
      reason: word,
      /** Null where the packet could not be read so far. */
      protocol: Type.Union([word, Type.Null()]),
      address: Type.Union([address, Type.Null()]),
      port,
      /** Denials of the sandbox that it stands for, alike or not. */
      count,
      process,
    }),
  ),
  refused: Type.Optional(
    closed({
      id: sandboxId,
      reason: word,
      name: Type.Optional(Type.String({ maxLength: MAX_NAME_CHARS })),
      address,
      port,
      from: Type.Optional(port),
      /** Refusals of the sandbox before this one that were not told. */
      missed: count,
      process,
    }),
  ),
  /** Events before this one that were not read in time. */
  lost: Type.Optional(count),
});
/** Packets that egressd has denied, or a connection that the gate has refused. */
export type EgressEvent = Static<typeof EgressEventSchema>;
export type Denial = NonNullable<EgressEvent['denied']>;
export type GateRefusal = NonNullable<EgressEvent['refused']>;

/** The end of a socket of a sandbox. */
export interface EgressAsker {
  readonly protocol: 'udp' | 'tcp';
  readonly address: string;
  readonly port: number;
}

const info = answer(EgressInfoSchema);
const uplink = answer(UplinkSchema);
const uplinks = answer(closed({ uplinks: Type.Array(ListedUplinkSchema, { maxItems: MAX_UPLINKS }) }));
const policySet = answer(PolicySetSchema);
const counters = answer(CountersSchema);
const event = answer(EgressEventSchema);
const owner = answer(closed({ process }));
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

  /** Resolves when nothing of it is left; one that is not there is no error. `isOver`: when nothing passes it any more, and the device goes later. */
  async uplinkClose(id: string, { isOver, ...options }: StreamOptions & { isOver?: boolean } = {}): Promise<void> {
    await this.#call('uplink.close', { id, ...(isOver === true ? { isOver } : {}) }, none, options);
  }

  async uplinkList(options?: StreamOptions): Promise<readonly ListedUplink[]> {
    return (await this.#call('uplink.list', {}, uplinks, options)).uplinks;
  }

  /**
   * Replaces the whole policy of a sandbox at once, for open flows too. `open`: one without an uplink gets it, with this policy from its first packet on; one that is
   * not there yet may come for `waitMs`.
   * @throws PlatformError `invalid_argument`, `sandbox_not_found`
   */
  policySet(
    id: string,
    policy: EgressPolicy,
    { open, ...options }: StreamOptions & { open?: { readonly waitMs: number } } = {},
  ): Promise<PolicySet> {
    return this.#call('policy.set', { id, ...(open === undefined ? {} : { open }), ...policy }, policySet, options);
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

  /** The process behind a socket that has asked the resolver, a service or the gate something; undefined when nobody knows. */
  async owner(id: string, asker: EgressAsker, options?: StreamOptions): Promise<CausingProcess | undefined> {
    const { address: from, port: fromPort, protocol } = asker;
    return (await this.#call('owner', { id, address: from, port: fromPort, protocol }, owner, options)).process;
  }

  /** What was denied, as it happens, within a budget for each sandbox, until it is reset. */
  events(options?: StreamOptions): MessageStream<EgressEvent> {
    return new MessageStream(this.#wire.open('events', {}, options), event);
  }

  async #call<T>(method: string, params: object, check: Answer<T>, options?: StreamOptions): Promise<T> {
    return check(await this.#wire.call(method, params, options), method);
  }
}
