/**
 * Keeps the network of every sandbox as its record says: opened when its policy first allows something, changed with it, closed at its end, and given
 * again to a network that was away. What of a sandbox is in flight is told one after the other; what failed on its way is told again until it holds.
 */
import type { Channel, NetworkControl, NetworkOffer } from '@dsec/backends';
import { allowsAnything, networkInForce, PlatformError, type NetworkPolicy } from '@dsec/contract';
import { Backoff, Semaphore, type Clock, type Logger, type Random } from '@dsec/kit';
import type { Registry } from '../registry.ts';
import type { Sandbox, UplinkState } from '../sandbox.ts';

/** How long the network may take for one sandbox. */
const APPLY_TIMEOUT_MS = 5000;
const LIST_TIMEOUT_MS = 10_000;
/** Changes of one sandbox that may wait for the one under way. */
const MAX_WAITING = 16;
/** Sandboxes that are told at the same time when the network comes back. */
const CONCURRENCY = 16;
const MAX_SANDBOXES = 131_072;
const RETRY = { baseMs: 50, maxMs: 5000 } as const;

/** Errors after which nobody knows whether it happened. */
const UNCLEAR = ['timeout', 'connection_lost', 'unavailable', 'cancelled', 'internal', 'protocol_error'];

const unanswered = (error: unknown): unknown =>
  PlatformError.is(error) && ['timeout', 'connection_lost', 'cancelled'].includes(error.code)
    ? new PlatformError('unavailable', 'the network of the node does not answer', { cause: error })
    : error;

/** The uplink of a sandbox that is being made. */
export interface OpeningUplink {
  /** What the sandbox is to be made with; undefined where the node has not said it yet: then `opened` sees to it. */
  readonly resolver: string | undefined;
  /** Resolves when the policy is in force and programs find the resolver. @throws PlatformError as {@link Uplinks.apply} */
  opened(channel: Channel): Promise<void>;
  /** The sandbox does not come. What there may be of its uplink is closed at its end. */
  giveUp(): void;
}

export interface UplinksOptions {
  readonly network: NetworkControl;
  readonly registry: Registry;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
}

export class Uplinks {
  readonly #options: UplinksOptions;
  readonly #locks = new WeakMap<Sandbox, Semaphore>();
  readonly #work = new Semaphore({ permits: CONCURRENCY, maxWaiting: MAX_SANDBOXES });
  /** Those whose network may not be what their record says. */
  readonly #doubted = new Set<Sandbox>();
  #isAllDoubted = false;
  #wake = Promise.withResolvers<undefined>();

  constructor(options: UplinksOptions) {
    this.#options = options;
  }

  get offer(): NetworkOffer {
    return this.#options.network.offer;
  }

  /** What may be there of a sandbox that an edge before this one made. */
  stateAtStart(sandbox: Sandbox): UplinkState {
    return this.offer.isOffered || allowsAnything(networkInForce(sandbox.record.policy)) ? 'unknown' : 'none';
  }

  /** The only holder may change the network of this sandbox. @throws PlatformError `too_many_requests`, `cancelled` */
  async lock(sandbox: Sandbox, signal?: AbortSignal): Promise<Disposable> {
    let lock = this.#locks.get(sandbox);
    if (lock === undefined) {
      lock = new Semaphore({ permits: 1, maxWaiting: MAX_WAITING });
      this.#locks.set(sandbox, lock);
    }
    return await lock.acquire(signal);
  }

  /**
   * Puts a policy in force; the caller holds the lock, or is the create. When it fails for want of an answer, the policy of the record is put in force
   * again in the background.
   * @throws PlatformError `network_unavailable`, `service_unknown`, `invalid_argument`, `no_capacity`, `unavailable`
   */
  async apply(sandbox: Sandbox, policy: NetworkPolicy, channel = sandbox.channel): Promise<void> {
    try {
      await this.#apply(sandbox, policy, channel);
    } catch (error) {
      if (sandbox.uplink === 'unknown' || !PlatformError.is(error) || UNCLEAR.includes(error.code)) this.doubt(sandbox);
      throw unanswered(error);
    }
  }

  /**
   * Begins to give a sandbox its uplink while the node makes it; undefined when its policy allows nothing. Whoever called it waits for `opened` once the
   * sandbox is there, or gives it up.
   */
  begin(sandbox: Sandbox, policy: NetworkPolicy, waitMs: number): OpeningUplink | undefined {
    if (!allowsAnything(policy)) return undefined;
    const { network } = this.#options;
    const waiting = new AbortController();
    const { signal } = waiting;
    // Until it has worked, the device may be there without the policy, and has to be looked for.
    sandbox.uplink = 'unknown';
    const options = { waitMs, timeoutMs: waitMs + APPLY_TIMEOUT_MS, signal };
    const opening = network.open(sandbox.sandboxId, policy, options);
    // It may fail before anybody waits for it.
    opening.catch(() => undefined);
    const { offer } = this;
    const resolver = offer.isOffered ? offer.resolver : undefined;
    return {
      resolver,
      opened: async (channel) => {
        sandbox.isResolverNamed = resolver !== undefined;
        const late = this.#options.clock.setTimer(APPLY_TIMEOUT_MS, () => waiting.abort());
        try {
          const uplink = await opening;
          sandbox.uplink = 'open';
          await this.#nameResolver(sandbox, uplink.resolver, channel);
        } catch (error) {
          throw unanswered(error);
        } finally {
          late.cancel();
        }
      },
      giveUp: () => waiting.abort(),
    };
  }

  /** The policy of the record is put in force again, until that has worked. */
  doubt(sandbox: Sandbox): void {
    if (sandbox.uplink === 'none') return;
    sandbox.uplink = 'unknown';
    this.#doubted.add(sandbox);
    this.#wake.resolve(undefined);
  }

  /** The network is there anew: every sandbox is told again. */
  doubtAll(): void {
    this.#isAllDoubted = true;
    this.#wake.resolve(undefined);
  }

  /** Its sandbox is over. @throws PlatformError when the network does not answer */
  async close(sandbox: Sandbox, signal: AbortSignal): Promise<void> {
    if (sandbox.uplink === 'none') return;
    using _lock = await this.lock(sandbox, signal);
    this.#doubted.delete(sandbox);
    const { network, logger } = this.#options;
    try {
      await network.close(sandbox.sandboxId, { signal, timeoutMs: APPLY_TIMEOUT_MS, isOver: true });
    } catch (error) {
      // Without daemons there is nobody who could: its device went with its namespace.
      if (!PlatformError.is(error) || error.code !== 'network_unavailable') throw error;
      logger.warn('network.close', { sandboxId: sandbox.sandboxId, outcome: error.code });
    }
    sandbox.uplink = 'none';
  }

  /** Runs until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, random, logger } = this.#options;
    const backoff = new Backoff(RETRY, random);
    const onAbort = (): void => this.#wake.resolve(undefined);
    signal.addEventListener('abort', onAbort, { once: true });
    while (!signal.aborted) {
      await this.#wake.promise;
      this.#wake = Promise.withResolvers<undefined>();
      if (signal.aborted) break;
      try {
        await this.settle(signal);
        backoff.reset();
      } catch (error) {
        logger.warn('network.settle', { outcome: 'failed', doubted: this.#doubted.size, error });
        await clock.sleep(backoff.nextMs(), { signal }).catch(() => undefined);
        this.#wake.resolve(undefined);
      }
    }
    signal.removeEventListener('abort', onAbort);
  }

  /** Tells the network of all that is doubted. Idempotent. @throws PlatformError when some of it did not work */
  async settle(signal?: AbortSignal): Promise<void> {
    if (this.#isAllDoubted) await this.#compare(signal);
    const failures: unknown[] = [];
    const all = [...this.#doubted].map((sandbox) =>
      this.#work
        .run(() => this.#repair(sandbox, signal), signal)
        .catch((error: unknown) => {
          failures.push(error);
        }),
    );
    await Promise.all(all);
    if (failures.length > 0) throw failures[0];
  }

  async #apply(
    sandbox: Sandbox,
    policy: NetworkPolicy,
    channel: Channel | undefined,
    signal?: AbortSignal,
  ): Promise<void> {
    const { network } = this.#options;
    const { sandboxId } = sandbox;
    const options = { timeoutMs: APPLY_TIMEOUT_MS, signal };
    const isOpening = allowsAnything(policy);
    switch (sandbox.uplink) {
      case 'open':
        return await network.change(sandboxId, policy, options);
      case 'none':
        if (!isOpening) return;
        break;
      case 'unknown':
        if (isOpening) break;
        await network.close(sandboxId, options);
        sandbox.uplink = 'none';
        return;
    }
    // Until it has worked, the device may be there without the policy, and has to be looked for.
    sandbox.uplink = 'unknown';
    const uplink = await network.open(sandboxId, policy, options);
    sandbox.uplink = 'open';
    await this.#nameResolver(sandbox, uplink.resolver, channel);
  }

  /** Programs inside find the resolver where they look for it. Who has broken that file has harmed himself: the policy holds all the same. */
  async #nameResolver(sandbox: Sandbox, resolver: string | undefined, channel: Channel | undefined): Promise<void> {
    if (sandbox.isResolverNamed || resolver === undefined) return;
    try {
      if (channel === undefined) throw new PlatformError('sandbox_not_ready', 'its channel is being replaced');
      const text = `# The resolver of this node: the names that the network policy allows.\nnameserver ${resolver}\n`;
      await channel.writeFile('/etc/resolv.conf', Buffer.from(text), { timeoutMs: APPLY_TIMEOUT_MS });
      sandbox.isResolverNamed = true;
    } catch (error) {
      this.#options.logger.warn('network.resolver', { sandboxId: sandbox.sandboxId, outcome: 'failed', error });
    }
  }

  /** Which sandboxes have to be told, and which uplinks belong to nobody. */
  async #compare(signal: AbortSignal | undefined): Promise<void> {
    const { network, registry, logger } = this.#options;
    this.#isAllDoubted = false;
    try {
      const listed = new Set(await network.list({ timeoutMs: LIST_TIMEOUT_MS, signal }));
      for (const sandbox of registry.unfinished()) {
        const isListed = listed.delete(sandbox.sandboxId);
        // A create under way tells the network itself; what has ended is closed by its cleanup.
        if (sandbox.making !== undefined || !sandbox.isLive) continue;
        if (isListed || sandbox.uplink === 'open' || allowsAnything(networkInForce(sandbox.record.policy))) {
          sandbox.uplink = 'unknown';
          this.#doubted.add(sandbox);
        } else sandbox.uplink = 'none';
      }
      for (const sandboxId of listed) {
        await network.close(sandboxId, { timeoutMs: APPLY_TIMEOUT_MS, signal });
        logger.info('network.stray', { sandboxId, outcome: 'closed' });
      }
    } catch (error) {
      this.#isAllDoubted = true;
      throw error;
    }
  }

  async #repair(sandbox: Sandbox, signal: AbortSignal | undefined): Promise<void> {
    using _lock = await this.lock(sandbox, signal);
    // It may have ended, or have been told by somebody else, while this waited.
    if (!this.#doubted.has(sandbox)) return;
    try {
      if (sandbox.isLive) await this.#apply(sandbox, networkInForce(sandbox.record.policy), sandbox.channel, signal);
    } catch (error) {
      if (!PlatformError.is(error) || UNCLEAR.includes(error.code)) throw error;
      // Asked again it would say the same. What the kernel has of it stays in force.
      this.#options.logger.error('network.refused', { sandboxId: sandbox.sandboxId, outcome: error.code, error });
    }
    this.#doubted.delete(sandbox);
  }
}
