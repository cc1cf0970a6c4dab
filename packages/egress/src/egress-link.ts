/** The way to egressd: one connection, made when it is needed and again when it was lost. */
import { PlatformError } from '@dsec/contract';
import type { Clock, Logger, Network } from '@dsec/kit';
import {
  EgressClient,
  WireClient,
  type CausingProcess,
  type Denial,
  type EgressPin,
  type EgressPolicy,
  type GateRefusal,
} from '@dsec/native-link';
import { EVENTS_PAUSE_MS } from './dns/bounds.ts';
import type { Asker, Owners } from './events.ts';
import type { Pin, PinSink } from './pin-sink.ts';
import type { CompiledPolicy } from './policy/compile.ts';
import type { RefusedConnect } from './refusal.ts';
import type { KernelPolicy, PolicySet, PolicySink, SetOptions } from './sandboxes.ts';

/** A policy of thousands of rules is written into the kernel in milliseconds; beyond this something hangs. */
const CALL_MS = 5000;
/** What nobody waits for but an event. */
const OWNER_MS = 2000;

export interface EgressLinkOptions {
  readonly network: Network;
  readonly clock: Clock;
  /** Path of egressd's socket. */
  readonly socket: string;
  /** A connection that was there is lost: the egressd that comes next knows less than this one. */
  readonly onLost: () => void;
  /** It was refused by the kernel or the gate. */
  readonly onRefused: (refused: RefusedConnect, by: Causing) => void;
  /** So many events were not told. */
  readonly onMissed: (count: number) => void;
  readonly logger: Logger;
}

interface Causing {
  /** How many it stands for. */
  readonly count: number;
  readonly process: CausingProcess | undefined;
}

export class EgressLink implements PinSink, PolicySink, Owners, AsyncDisposable {
  readonly #options: EgressLinkOptions;
  #wire: Promise<WireClient> | undefined;
  #isClosed = false;

  constructor(options: EgressLinkOptions) {
    this.#options = options;
  }

  async add(sandbox: string, generation: number, pins: readonly Pin[]): Promise<void> {
    const client = await this.#client();
    await client.pinsAdd(sandbox, generation, pins.map(pinOf), { timeoutMs: CALL_MS });
  }

  async set(sandbox: string, { compiled, pins }: KernelPolicy, { waitMs = 0, signal }: SetOptions): Promise<PolicySet> {
    const client = await this.#client();
    const options = { open: { waitMs }, timeoutMs: CALL_MS + waitMs, signal };
    const { generation, address4, address6 } = await client.policySet(sandbox, policyOf(compiled, pins), options);
    return { generation, address4, address6: address6 ?? undefined };
  }

  async close(sandbox: string, isOver: boolean): Promise<void> {
    const client = await this.#client();
    await client.uplinkClose(sandbox, { isOver, timeoutMs: CALL_MS });
  }

  async list(): Promise<readonly string[]> {
    const client = await this.#client();
    return (await client.uplinkList({ timeoutMs: CALL_MS })).map(({ id }) => id);
  }

  /** Asks only where there is a connection: without one there is no egressd that could know. */
  async owner(sandbox: string, asker: Asker): Promise<CausingProcess | undefined> {
    const wire = await this.#wire;
    return wire === undefined ? undefined : await new EgressClient(wire).owner(sandbox, asker, { timeoutMs: OWNER_MS });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    const wire = await this.#wire?.catch(() => undefined);
    await wire?.close();
  }

  async #client(): Promise<EgressClient> {
    if (this.#isClosed) throw new PlatformError('cancelled', 'the resolver is shutting down');
    this.#wire ??= this.#connect();
    return new EgressClient(await this.#wire);
  }

  async #connect(): Promise<WireClient> {
    const { network, clock, socket } = this.#options;
    try {
      const connection = await network.connectUnix(socket);
      const wire = WireClient.connect(connection, {
        role: 'resolver',
        clock,
        onClose: () => {
          this.#wire = undefined;
          if (!this.#isClosed) this.#options.onLost();
        },
      });
      this.#follow(wire).catch((error: unknown) => this.#options.logger.error('resolver.fault', { error }));
      return wire;
    } catch (error) {
      this.#wire = undefined;
      throw error;
    }
  }

  /** Hears what egressd and the gate refuse, as long as the connection lives. */
  async #follow(wire: WireClient): Promise<void> {
    const { clock, logger, onRefused, onMissed } = this.#options;
    let isOver = false;
    const closed = wire.closed.then(() => {
      isOver = true;
    });
    const isDone = (): boolean => isOver || this.#isClosed;
    while (!isDone()) {
      try {
        for await (const { denied, refused, lost } of new EgressClient(wire).events()) {
          if (lost !== undefined) onMissed(lost);
          if (denied !== undefined) onRefused(deniedOf(denied), { count: denied.count, process: denied.process });
          if (refused !== undefined) {
            onRefused(refusedOf(refused), { count: refused.missed + 1, process: refused.process });
          }
        }
      } catch (error) {
        if (isDone() || (PlatformError.is(error) && error.code === 'connection_lost')) return;
        logger.warn('egress.events', { outcome: 'failed', error });
      }
      // What was not understood would not be at once either.
      await Promise.race([closed, clock.sleep(EVENTS_PAUSE_MS)]);
    }
  }
}

const deniedOf = ({ id, reason, protocol, address, port }: Denial): RefusedConnect => ({
  id,
  kind: 'connect',
  reason,
  ...(protocol === null ? {} : { protocol }),
  ...(address === null ? {} : { address }),
  ...(protocol === 'tcp' || protocol === 'udp' ? { port } : {}),
});

const refusedOf = ({ id, reason, name, address, port }: GateRefusal): RefusedConnect => ({
  id,
  kind: 'connect',
  reason,
  protocol: 'tcp',
  address,
  port,
  ...(name === undefined ? {} : { name }),
});

const pinOf = ({ address, name, ttlMs, ranges }: Pin): EgressPin => ({ address, name, ttlMs, ranges });

const policyOf = ({ flags, rules, names }: CompiledPolicy, pins: readonly Pin[]): EgressPolicy => ({
  flags,
  rules,
  pins: pins.map(pinOf),
  names,
});
