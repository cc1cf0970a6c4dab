/** The sandboxes of the node by id and by address. A change of policy is in force in the kernel before it is here, and pins that still hold go with it. */
import { PlatformError, type NetworkPolicyRequest, type Prefix } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import { MAX_SANDBOXES } from './dns/bounds.ts';
import type { Pin } from './pin-sink.ts';
import { mayAnswer } from './policy/answer-filter.ts';
import type { CompiledPolicy } from './policy/compile.ts';
import { CompiledPolicies } from './policy/compiled-policies.ts';
import { parseAddresses, SandboxNetwork, type SandboxAddresses } from './sandbox-network.ts';

/** What of a policy is written into the kernel at once. */
export interface KernelPolicy {
  readonly compiled: CompiledPolicy;
  /** Open already under the policy before, and still allowed. */
  readonly pins: readonly Pin[];
}

/** A policy that is in force: under which generation, and for which addresses. */
export interface PolicySet extends SandboxAddresses {
  readonly generation: number;
}

export interface SetOptions {
  /** How long a sandbox may still take to come that is being made. @default 0 */
  readonly waitMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** The way to the kernel: it makes devices, and puts policies and pins in force. */
export interface PolicySink {
  /** Replaces the policy of a sandbox; one without a device gets it, with the policy from its first packet on. @throws PlatformError `sandbox_not_found` */
  set(sandbox: string, policy: KernelPolicy, options: SetOptions): Promise<PolicySet>;
  /** Takes the device away; that of a sandbox that is over may go later. Idempotent. */
  close(sandbox: string, isOver: boolean): Promise<void>;
  /** The sandboxes that have a device. */
  list(): Promise<readonly string[]>;
}

export interface SandboxesOptions {
  readonly sink: PolicySink;
  readonly clock: Clock;
  /** Names of the mirror services that the operator has defined. */
  readonly services: ReadonlySet<string>;
  readonly nodeNetworks: readonly Prefix[];
}

export class Sandboxes {
  readonly #options: SandboxesOptions;
  readonly #compiled: CompiledPolicies;
  readonly #byId = new Map<string, SandboxNetwork>();
  readonly #byAddress = new Map<string, SandboxNetwork>();
  /** What is done to one sandbox is done one after the other. */
  readonly #busy = new Map<string, Promise<unknown>>();

  constructor(options: SandboxesOptions) {
    this.#options = options;
    this.#compiled = new CompiledPolicies(options.services);
  }

  get size(): number {
    return this.#byId.size;
  }

  /** Whose packets come from there: the kernel lets none through from an address that is not the sandbox's own. */
  at(address: string): SandboxNetwork | undefined {
    return this.#byAddress.get(address);
  }

  /**
   * Puts a policy in force: when this resolves it holds in the kernel and for names. When it fails the one before holds.
   * @throws PlatformError as `completeNetworkPolicy` and `compilePolicy`; `sandbox_not_found`, `too_many_requests`; what the sink throws
   */
  set(id: string, policy: NetworkPolicyRequest, options: SetOptions = {}): Promise<SandboxNetwork> {
    return this.#inTurn(id, () => this.#set(id, policy, options));
  }

  /** Takes the device of a sandbox away and forgets it. Unknown is no error. */
  remove(id: string, isOver = false): Promise<void> {
    return this.#inTurn(id, async () => {
      await this.#options.sink.close(id, isOver);
      this.#forget(this.#byId.get(id));
    });
  }

  /** The sandboxes that have a device, whether their policy is here or not. */
  list(): Promise<readonly string[]> {
    return this.#options.sink.list();
  }

  async #set(id: string, policy: NetworkPolicyRequest, options: SetOptions): Promise<SandboxNetwork> {
    const { sink, nodeNetworks } = this.#options;
    const { compiled, table } = this.#compiled.of(policy);
    const next = { compiled, table, filter: { opened: compiled.opened, nodeNetworks } };
    const before = this.#byId.get(id);
    if (before === undefined && this.#byId.size >= MAX_SANDBOXES) throw tooMany();
    using _lock = await before?.lock.acquire();
    const carried = before?.pins.carried((name, address) =>
      mayAnswer(address, next.filter) ? table.match(name)?.ports : undefined,
    );
    const { generation, ...addresses } = await sink.set(id, { compiled, pins: carried?.pins ?? [] }, options);
    const known = this.#known(id, parseAddresses(addresses));
    known.inForce = { ...next, generation };
    // One with other addresses is another device, of which nothing was asked yet.
    if (carried !== undefined && known === before) known.pins = carried.next;
    return known;
  }

  /** Whoever had these addresses before has them no more: who gives them out knows. */
  #known(id: string, addresses: SandboxAddresses): SandboxNetwork {
    const known = this.#byId.get(id);
    const all = addressesOf(addresses);
    if (known !== undefined && all.every((address) => this.#byAddress.get(address) === known)) return known;
    this.#forget(known);
    for (const address of all) this.#forget(this.#byAddress.get(address));
    if (this.#byId.size >= MAX_SANDBOXES) throw tooMany();
    const sandbox = new SandboxNetwork(id, addresses, this.#options.clock);
    this.#byId.set(id, sandbox);
    for (const address of all) this.#byAddress.set(address, sandbox);
    return sandbox;
  }

  #forget(sandbox: SandboxNetwork | undefined): void {
    if (sandbox === undefined) return;
    if (this.#byId.get(sandbox.id) === sandbox) this.#byId.delete(sandbox.id);
    for (const address of addressesOf(sandbox.addresses)) {
      if (this.#byAddress.get(address) === sandbox) this.#byAddress.delete(address);
    }
  }

  async #inTurn<T>(id: string, work: () => Promise<T>): Promise<T> {
    const before = this.#busy.get(id) ?? Promise.resolve();
    const done = before.then(work);
    const settled = done.catch(() => undefined);
    this.#busy.set(id, settled);
    try {
      return await done;
    } finally {
      if (this.#busy.get(id) === settled) this.#busy.delete(id);
    }
  }
}

const tooMany = (): PlatformError =>
  new PlatformError('too_many_requests', `a resolver knows at most ${MAX_SANDBOXES} sandboxes`);

const addressesOf = ({ address4, address6 }: SandboxAddresses): readonly string[] =>
  [address4, address6].filter((address) => address !== undefined);
