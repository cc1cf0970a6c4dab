/** A network in memory that passes the suite of every `NetworkControl`; faults are scripted. */
import type {
  Act,
  CallOptions,
  NetworkControl,
  NetworkObserver,
  NetworkOffer,
  OpenOptions,
  Uplink,
} from '@dsec/backends';
import { covers, destinationOf, parsePrefix, PlatformError, portRangesOf, type NetworkPolicy } from '@dsec/contract';

/** What a test wants to go wrong; each may wait and may throw. */
export interface NetworkScript {
  open?: (sandboxId: string) => Promise<void>;
  /** After the device is there, before it has its policy. */
  opened?: (sandboxId: string) => Promise<void>;
  /** Before the policy is taken. */
  change?: (sandboxId: string, policy: NetworkPolicy) => Promise<void>;
  /** After it is in force, before that is answered. */
  changed?: (sandboxId: string) => Promise<void>;
  close?: (sandboxId: string) => Promise<void>;
}

interface Opened {
  readonly uplink: Uplink;
  policy: NetworkPolicy;
}

export class NetworkDouble implements NetworkControl {
  /** By sandbox. */
  readonly uplinks = new Map<string, Opened>();
  readonly calls: string[] = [];
  readonly script: NetworkScript = {};
  readonly #isLive: (sandboxId: string) => boolean;
  readonly #services: readonly string[];
  #observer: NetworkObserver | undefined;
  #isAway = false;
  #addresses = 1;

  constructor(options: { readonly isLive: (sandboxId: string) => boolean; readonly services?: readonly string[] }) {
    this.#isLive = options.isLive;
    this.#services = options.services ?? ['npm', 'pypi'];
  }

  get offer(): NetworkOffer {
    return { isOffered: true, services: this.#services, resolver: '198.18.0.1' };
  }

  start(observer: NetworkObserver): void {
    this.#observer = observer;
    observer.onReady();
  }

  /** From now on nothing answers. */
  goAway(): void {
    this.#isAway = true;
  }

  /** It answers again, having kept what it had. */
  comeBack(): void {
    this.#isAway = false;
    this.#observer?.onReady();
  }

  /** Something was refused to a sandbox. */
  tell(act: Act): void {
    this.#observer?.onAct(act);
  }

  async open(sandboxId: string, policy: NetworkPolicy, options: OpenOptions = {}): Promise<Uplink> {
    await this.#begin(`open ${sandboxId}`, options);
    await this.script.open?.(sandboxId);
    if (options.waitMs !== undefined) await this.#arrival(sandboxId, options.signal);
    if (!this.#isLive(sandboxId)) throw notFound(sandboxId);
    this.#check(policy);
    const opened = this.uplinks.get(sandboxId) ?? { uplink: this.#newUplink(), policy: CLOSED };
    this.uplinks.set(sandboxId, opened);
    await this.script.opened?.(sandboxId);
    opened.policy = policy;
    return opened.uplink;
  }

  async change(sandboxId: string, policy: NetworkPolicy, options: CallOptions = {}): Promise<void> {
    await this.#begin(`change ${sandboxId}`, options);
    await this.script.change?.(sandboxId, policy);
    const opened = this.uplinks.get(sandboxId);
    if (opened === undefined) throw notFound(sandboxId);
    this.#check(policy);
    opened.policy = policy;
    await this.script.changed?.(sandboxId);
  }

  async close(sandboxId: string, options: CallOptions = {}): Promise<void> {
    await this.#begin(`close ${sandboxId}`, options);
    await this.script.close?.(sandboxId);
    this.uplinks.delete(sandboxId);
  }

  async list(options: CallOptions = {}): Promise<readonly string[]> {
    await this.#begin('list', options);
    return [...this.uplinks.keys()];
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#observer = undefined;
    return Promise.resolve();
  }

  /** Whether a TCP connection would be let through. */
  reaches(sandboxId: string, address: string, port: number): boolean {
    const policy = this.uplinks.get(sandboxId)?.policy;
    const parsed = parsePrefix(address);
    if (policy === undefined || !parsed.ok) return false;
    const matching = policy.rules.filter((rule) => {
      const destination = destinationOf(rule);
      return (
        destination.kind === 'addresses' &&
        covers(destination.prefix, parsed.prefix) &&
        (rule.protocol ?? 'tcp') === 'tcp' &&
        portRangesOf(rule).some(([low, high]) => low <= port && port <= high)
      );
    });
    if (matching.some(({ action }) => action === 'deny')) return false;
    return matching.length > 0 || policy.default === 'allow';
  }

  /** Resolves when the sandbox is there, or its caller waits no more. */
  async #arrival(sandboxId: string, signal: AbortSignal | undefined): Promise<void> {
    while (!this.#isLive(sandboxId)) {
      if (signal?.aborted === true) throw new PlatformError('cancelled', 'the caller cancelled');
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  async #begin(call: string, { signal }: CallOptions): Promise<void> {
    this.calls.push(call);
    if (signal?.aborted === true) throw new PlatformError('cancelled', 'the caller cancelled');
    if (this.#isAway) throw new PlatformError('unavailable', 'the network is away');
    await Promise.resolve();
  }

  #check({ services }: NetworkPolicy): void {
    for (const [service, isOpen] of Object.entries(services)) {
      if (!isOpen || this.#services.includes(service)) continue;
      throw new PlatformError('service_unknown', `there is no service ${service}`, { details: { service } });
    }
  }

  #newUplink(): Uplink {
    this.#addresses++;
    return {
      address4: `198.18.0.${this.#addresses}`,
      address6: `fd00:d5ec::${this.#addresses}`,
      resolver: '198.18.0.1',
    };
  }
}

const CLOSED: NetworkPolicy = { default: 'deny', rules: [], services: {}, ipLiterals: true };

const notFound = (sandboxId: string): PlatformError =>
  new PlatformError('sandbox_not_found', `the node has no sandbox ${sandboxId}`, { details: { sandboxId } });
