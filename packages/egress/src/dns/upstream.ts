/**
 * Asks the servers of the node. Who forges an answer has to guess the id, the port (a new socket for each try, which hears its server alone) and the
 * case of the letters; who is seen guessing meets TCP.
 */
import { PlatformError } from '@dsec/contract';
import { abortError, Semaphore, type Clock, type Network, type Peer, type Random } from '@dsec/kit';
import {
  MAX_ALIASES,
  MAX_MISFITS,
  MAX_UPSTREAM_QUERIES,
  MAX_UPSTREAM_WAITING,
  TCP_TRY_MS,
  UDP_TRY_MS,
  UPSTREAM_ROUNDS,
} from './bounds.ts';
import { parseAnswer, writeQuestion, type AddressType, type ParsedAnswer, type Question } from './message.ts';
import type { NameServers } from './name-servers.ts';

export type Resolved =
  | { readonly kind: 'noName' }
  /** None: the name exists and has no address of this type. */
  | { readonly kind: 'addresses'; readonly addresses: readonly string[]; readonly ttlS: number };

/** Resolves names; an interface, so that what is built on it can be tested without servers. */
export interface Resolution {
  /**
   * `name` is lower case, without a final dot. Without a signal it takes as long as it takes.
   * @throws PlatformError `unavailable` when no server has an answer, `too_many_requests`, `cancelled`, `timeout`
   */
  resolve(name: string, type: AddressType, signal?: AbortSignal): Promise<Resolved>;
}

export interface UpstreamOptions {
  readonly servers: NameServers;
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
}

type Outcome = ParsedAnswer | { readonly kind: 'silent' };

export class Upstream implements Resolution {
  readonly #options: UpstreamOptions;
  readonly #permits = new Semaphore({ permits: MAX_UPSTREAM_QUERIES, maxWaiting: MAX_UPSTREAM_WAITING });

  constructor(options: UpstreamOptions) {
    this.#options = options;
  }

  async resolve(name: string, type: AddressType, signal = new AbortController().signal): Promise<Resolved> {
    using _permit = await this.#permits.acquire(signal);
    let current = name;
    let ttlS = Number.POSITIVE_INFINITY;
    for (let aliases = 0; aliases <= MAX_ALIASES; aliases++) {
      const answer = await this.#ask(current, type, signal);
      if (answer.kind !== 'addresses') return answer;
      ttlS = Math.min(ttlS, answer.ttlS);
      if (answer.alias === undefined) return { kind: 'addresses', addresses: answer.addresses, ttlS };
      current = answer.alias;
    }
    throw new PlatformError('unavailable', `${name} has more than ${MAX_ALIASES} aliases`);
  }

  async #ask(
    name: string,
    type: AddressType,
    signal: AbortSignal,
  ): Promise<Extract<ParsedAnswer, { kind: 'noName' | 'addresses' }>> {
    const servers = await this.#options.servers.list();
    for (let round = 0; round < UPSTREAM_ROUNDS; round++) {
      for (const server of servers) {
        let outcome = await this.#overUdp(server, name, type, signal);
        if (outcome.kind === 'truncated' || outcome.kind === 'misfit' || outcome.kind === 'recased') {
          outcome = await this.#overTcp(server, name, type, signal);
        }
        if (outcome.kind === 'noName' || outcome.kind === 'addresses') return outcome;
      }
    }
    throw new PlatformError('unavailable', 'no name server of the node has an answer', {
      details: { servers: servers.length },
    });
  }

  async #overUdp(server: Peer, name: string, type: AddressType, signal: AbortSignal): Promise<Outcome> {
    const { clock, network } = this.#options;
    const question = this.#question(mixCase(name, this.#options.random), type);
    const { promise, resolve } = Promise.withResolvers<Outcome>();
    let misfits = 0;
    const onDatagram = (bytes: Buffer): void => {
      const answer = parseAnswer(bytes, question, { isCaseKept: true });
      if (answer.kind !== 'misfit') resolve(answer);
      else if (++misfits >= MAX_MISFITS) resolve(answer);
    };
    const local = server.address.includes(':') ? '::' : '0.0.0.0';
    const peered = { peer: server, onError: () => resolve({ kind: 'silent' }) };
    try {
      await using socket = await network.bindUdp(local, 0, onDatagram, peered);
      const timer = clock.setTimer(UDP_TRY_MS, () => resolve({ kind: 'silent' }));
      const onAbort = (): void => resolve({ kind: 'silent' });
      signal.addEventListener('abort', onAbort, { once: true });
      socket.send(writeQuestion(question));
      const outcome = await promise;
      timer.cancel();
      signal.removeEventListener('abort', onAbort);
      if (signal.aborted) throw abortError(signal);
      return outcome;
    } catch (error) {
      if (PlatformError.is(error)) throw error;
      // No socket to be had, or no way to this server: another may have one.
      return { kind: 'silent' };
    }
  }

  async #overTcp(server: Peer, name: string, type: AddressType, signal: AbortSignal): Promise<Outcome> {
    const { clock, network } = this.#options;
    const question = this.#question(name, type);
    const controller = new AbortController();
    const stop = (): void => controller.abort();
    const timer = clock.setTimer(TCP_TRY_MS, stop);
    signal.addEventListener('abort', stop, { once: true });
    try {
      const connection = await network.connectTcp(server.address, server.port, { signal: controller.signal });
      controller.signal.addEventListener('abort', () => connection.destroy(), { once: true });
      if (controller.signal.aborted) connection.destroy();
      try {
        const message = writeQuestion(question);
        const length = Buffer.alloc(2);
        length.writeUInt16BE(message.length);
        connection.write(Buffer.concat([length, message]));
        const bytes = await firstMessage(connection);
        if (bytes === undefined) return { kind: 'silent' };
        const answer = parseAnswer(bytes, question, { isCaseKept: false });
        return answer;
      } finally {
        connection.destroy();
      }
    } catch {
      if (signal.aborted) throw abortError(signal);
      return { kind: 'silent' };
    } finally {
      timer.cancel();
      signal.removeEventListener('abort', stop);
    }
  }

  #question(name: string, type: AddressType): Question {
    return { id: this.#options.random.integer(0x1_0000), name, type };
  }
}

/** The first message with its length before it (RFC 1035 4.2.2); undefined when the stream ends before it does. */
async function firstMessage(stream: AsyncIterable<Buffer>): Promise<Buffer | undefined> {
  let have: Buffer = Buffer.alloc(0);
  for await (const chunk of stream) {
    have = Buffer.concat([have, chunk]);
    if (have.length >= 2 && have.length >= 2 + have.readUInt16BE(0)) return have.subarray(2, 2 + have.readUInt16BE(0));
  }
  return undefined;
}

/** Letters of either case at random: servers give the question back as it was (draft-vixie-dnsext-dns0x20). */
function mixCase(name: string, random: Random): string {
  const bits = random.bytes(name.length);
  return Array.from(name, (letter, index) => ((bits[index] ?? 0) & 1 ? letter.toUpperCase() : letter)).join('');
}
