/** The way to egressd: one connection, made when it is needed and again when it was lost. */
import { PlatformError } from '@dsec/contract';
import type { Clock, Network } from '@dsec/kit';
import { EgressClient, WireClient, type EgressPin, type EgressPolicy } from '@dsec/native-link';
import type { Pin, PinSink } from './pin-sink.ts';
import type { CompiledPolicy } from './policy/compile.ts';
import type { SandboxAddresses } from './sandbox-network.ts';
import type { KernelPolicy, PolicySink } from './sandboxes.ts';

/** A policy of thousands of rules is written into the kernel in milliseconds; beyond this something hangs. */
const CALL_MS = 5000;

export interface EgressLinkOptions {
  readonly network: Network;
  readonly clock: Clock;
  /** Path of egressd's socket. */
  readonly socket: string;
  /** A connection that was there is lost: the egressd that comes next knows less than this one. */
  readonly onLost: () => void;
}

export class EgressLink implements PinSink, PolicySink, AsyncDisposable {
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

  async open(sandbox: string): Promise<SandboxAddresses> {
    const client = await this.#client();
    const { address4, address6 } = await client.uplinkOpen(sandbox, { timeoutMs: CALL_MS });
    return { address4, address6: address6 ?? undefined };
  }

  async set(sandbox: string, { compiled, pins }: KernelPolicy): Promise<number> {
    const client = await this.#client();
    const { generation } = await client.policySet(sandbox, policyOf(compiled, pins), { timeoutMs: CALL_MS });
    return generation;
  }

  async close(sandbox: string): Promise<void> {
    const client = await this.#client();
    await client.uplinkClose(sandbox, { timeoutMs: CALL_MS });
  }

  async list(): Promise<readonly string[]> {
    const client = await this.#client();
    return (await client.uplinkList({ timeoutMs: CALL_MS })).map(({ id }) => id);
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
      return WireClient.connect(connection, {
        role: 'resolver',
        clock,
        onClose: () => {
          this.#wire = undefined;
          if (!this.#isClosed) this.#options.onLost();
        },
      });
    } catch (error) {
      this.#wire = undefined;
      throw error;
    }
  }
}

const pinOf = ({ address, name, ttlMs, ranges }: Pin): EgressPin => ({ address, name, ttlMs, ranges });

const policyOf = ({ flags, rules, names }: CompiledPolicy, pins: readonly Pin[]): EgressPolicy => ({
  flags,
  rules,
  pins: pins.map(pinOf),
  names,
});
