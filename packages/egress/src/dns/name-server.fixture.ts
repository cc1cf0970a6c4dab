/** A name server on loopback that answers as a test says, over UDP and TCP, and keeps what it was asked. */
import { SystemNetwork, type Connection, type DatagramSocket, type Listener, type Peer } from '@dsec/kit';
import { decode, encode, type Answer, type DecodedPacket, type Packet } from 'dns-packet';

export type Script = (
  query: DecodedPacket,
  transport: 'udp' | 'tcp',
) => Packet | Buffer | readonly (Packet | Buffer)[] | undefined;

export interface AskedQuestion {
  readonly name: string;
  readonly type: string;
  readonly transport: 'udp' | 'tcp';
  readonly port: number;
  readonly id: number;
}

export class NameServer implements AsyncDisposable {
  readonly asked: AskedQuestion[] = [];
  script: Script;
  #udp: DatagramSocket | undefined;
  #tcp: Listener | undefined;

  private constructor(script: Script) {
    this.script = script;
  }

  static async start(script: Script): Promise<NameServer> {
    const server = new NameServer(script);
    const network = new SystemNetwork();
    server.#tcp = await network.listenTcp('127.0.0.1', 0, (connection, from) => server.#accept(connection, from));
    server.#udp = await network.bindUdp('127.0.0.1', server.#tcp.port, (bytes, from) => {
      for (const reply of server.#replies(bytes, 'udp', from.port)) server.#udp?.send(reply, from);
    });
    return server;
  }

  get peer(): Peer {
    return { address: '127.0.0.1', port: this.#tcp?.port ?? 0 };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#udp?.close();
    await this.#tcp?.close();
  }

  #accept(connection: Connection, from: Peer | undefined): void {
    let have: Buffer = Buffer.alloc(0);
    connection.on('data', (chunk: Buffer) => {
      have = Buffer.concat([have, chunk]);
      if (have.length < 2 || have.length < 2 + have.readUInt16BE(0)) return;
      for (const reply of this.#replies(have.subarray(2), 'tcp', from?.port ?? 0)) {
        const length = Buffer.alloc(2);
        length.writeUInt16BE(reply.length);
        connection.write(Buffer.concat([length, reply]));
      }
    });
  }

  #replies(bytes: Buffer, transport: 'udp' | 'tcp', port: number): readonly Buffer[] {
    const query = decode(bytes);
    const [question] = query.questions ?? [];
    this.asked.push({ name: question?.name ?? '', type: question?.type ?? '', transport, port, id: query.id ?? 0 });
    const replies = this.script(query, transport);
    const list =
      replies === undefined
        ? []
        : Array.isArray(replies)
          ? (replies as readonly (Packet | Buffer)[])
          : [replies as Packet | Buffer];
    return list.map((reply) => (Buffer.isBuffer(reply) ? reply : encode(reply)));
  }
}

/** An answer to a query. */
export const answering = (query: DecodedPacket, answers: readonly Answer[], flags = 0): Packet => ({
  type: 'response',
  id: query.id ?? 0,
  flags: 0x0180 | flags,
  questions: query.questions ?? [],
  answers: [...answers],
});

/** A zone: name → addresses (of either type) or `alias:NAME`. What it does not have does not exist. */
export const zone =
  (records: Readonly<Record<string, readonly string[]>>, ttl = 60): Script =>
  (query) => {
    const [question] = query.questions ?? [];
    let name = question?.name.toLowerCase() ?? '';
    const answers: Answer[] = [];
    for (;;) {
      const values = records[name];
      if (values === undefined) return answering(query, answers, answers.length === 0 ? 3 : 0);
      const alias = values.find((value) => value.startsWith('alias:'))?.slice(6);
      if (alias !== undefined) {
        answers.push({ type: 'CNAME', name: answers.length === 0 ? (question?.name ?? '') : name, data: alias, ttl });
        name = alias;
        continue;
      }
      for (const data of values) {
        const type = data.includes(':') ? 'AAAA' : 'A';
        if (type === question?.type)
          answers.push({ type, name: answers.length === 0 ? question.name : name, data, ttl });
      }
      return answering(query, answers);
    }
  };
