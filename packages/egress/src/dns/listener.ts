/** DNS over UDP and TCP (RFC 7766) for the sandboxes of the node. */
import {
  Scope,
  type Clock,
  type Connection,
  type DatagramSocket,
  type Listener,
  type Logger,
  type Network,
  type Peer,
} from '@dsec/kit';
import type { Sandboxes } from '../sandboxes.ts';
import {
  MAX_QUERY_BYTES,
  MAX_TCP_CONNECTIONS,
  MAX_TCP_CONNECTIONS_EACH,
  MAX_TCP_PIPELINED,
  RECEIVE_BYTES,
  TCP_IDLE_MS,
} from './bounds.ts';
import type { Responder } from './responder.ts';

export interface DnsParts {
  readonly sandboxes: Sandboxes;
  readonly responder: Responder;
}

/**
 * Bound before the process gives up root, since the port is below 1024, and deaf until `serve` says who answers.
 */
export class DnsListener implements AsyncDisposable {
  readonly #scope: Scope;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #perPeer = new Map<string, number>();
  #parts: DnsParts | undefined;
  #connections = 0;
  #socket: DatagramSocket | undefined;
  #listener: Listener | undefined;

  private constructor(clock: Clock, logger: Logger) {
    this.#clock = clock;
    this.#logger = logger;
    this.#scope = new Scope({ clock });
  }

  /**
   * Port 0 takes one that is free for both.
   * @throws what the kernel says: EADDRINUSE, EADDRNOTAVAIL, EACCES
   */
  static async bind(
    at: { readonly address: string; readonly port: number },
    options: { readonly network: Network; readonly clock: Clock; readonly logger: Logger },
  ): Promise<DnsListener> {
    const own = new DnsListener(options.clock, options.logger);
    try {
      const { network } = options;
      const tcp = await network.listenTcp(at.address, at.port, (connection, from) => own.#accept(connection, from));
      own.#listener = own.#scope.own('DNS over TCP', tcp);
      const udp = await network.bindUdp(at.address, tcp.port, (bytes, from) => own.#onDatagram(bytes, from), {
        receiveBytes: RECEIVE_BYTES,
      });
      own.#socket = own.#scope.own('DNS over UDP', udp);
      return own;
    } catch (error) {
      await own.#scope.close();
      throw error;
    }
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  serve(parts: DnsParts): void {
    this.#parts = parts;
  }

  close(): Promise<void> {
    return this.#scope.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #onDatagram(bytes: Buffer, from: Peer): void {
    const parts = this.#parts;
    if (parts === undefined) return;
    parts.responder.respond(bytes, { ...from, sandbox: parts.sandboxes.at(from.address), protocol: 'udp' }).then(
      (reply) => {
        if (reply !== undefined) this.#socket?.send(reply, from);
      },
      (error: unknown) => this.#logger.error('dns.fault', { error }),
    );
  }

  #accept(connection: Connection, from: Peer | undefined): void {
    const address = from?.address ?? '';
    const own = this.#perPeer.get(address) ?? 0;
    if (
      this.#parts === undefined ||
      from === undefined ||
      this.#connections >= MAX_TCP_CONNECTIONS ||
      own >= MAX_TCP_CONNECTIONS_EACH
    ) {
      connection.destroy();
      return;
    }
    this.#connections += 1;
    this.#perPeer.set(address, own + 1);
    connection.once('close', () => {
      this.#connections -= 1;
      const left = (this.#perPeer.get(address) ?? 1) - 1;
      if (left === 0) this.#perPeer.delete(address);
      else this.#perPeer.set(address, left);
    });
    this.#converse(connection, from, this.#parts).catch(() => connection.destroy());
  }

  /** Answers may come in another order than the questions (RFC 7766 6.2.1.1). A client that takes no answers is asked no more. */
  async #converse(connection: Connection, from: Peer, parts: DnsParts): Promise<void> {
    const idle = new IdleTimer(this.#clock, () => connection.destroy());
    const open = new Set<Promise<void>>();
    try {
      for await (const query of messagesOf(connection)) {
        idle.restart();
        const answering = this.#reply(connection, query, from, parts).finally(() => open.delete(answering));
        open.add(answering);
        if (open.size >= MAX_TCP_PIPELINED) await Promise.race(open);
        if (connection.writableNeedDrain)
          await new Promise((resolve) => connection.once('drain', resolve).once('close', resolve));
      }
      await Promise.all(open);
      connection.end();
    } finally {
      idle.cancel();
      connection.destroy();
    }
  }

  async #reply(connection: Connection, query: Buffer, from: Peer, parts: DnsParts): Promise<void> {
    const reply = await parts.responder.respond(query, {
      ...from,
      sandbox: parts.sandboxes.at(from.address),
      protocol: 'tcp',
    });
    // No answer: it asks too much, or speaks no DNS. It need not keep the connection.
    if (reply === undefined || connection.destroyed) {
      connection.destroy();
      return;
    }
    const length = Buffer.alloc(2);
    length.writeUInt16BE(reply.length);
    connection.write(Buffer.concat([length, reply]));
  }
}

/** Messages with their length before them; ends at one that is too long. */
async function* messagesOf(connection: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let have: Buffer = Buffer.alloc(0);
  for await (const chunk of connection) {
    have = have.length === 0 ? chunk : Buffer.concat([have, chunk]);
    for (let length = lengthOf(have); length !== undefined; length = lengthOf(have)) {
      if (length > MAX_QUERY_BYTES) return;
      if (have.length < 2 + length) break;
      yield have.subarray(2, 2 + length);
      have = have.subarray(2 + length);
    }
  }
}

const lengthOf = (bytes: Buffer): number | undefined => (bytes.length < 2 ? undefined : bytes.readUInt16BE(0));

class IdleTimer {
  readonly #clock: Clock;
  readonly #onIdle: () => void;
  #timer: { cancel(): void };

  constructor(clock: Clock, onIdle: () => void) {
    this.#clock = clock;
    this.#onIdle = onIdle;
    this.#timer = clock.setTimer(TCP_IDLE_MS, onIdle);
  }

  restart(): void {
    this.#timer.cancel();
    this.#timer = this.#clock.setTimer(TCP_IDLE_MS, this.#onIdle);
  }

  cancel(): void {
    this.#timer.cancel();
  }
}
