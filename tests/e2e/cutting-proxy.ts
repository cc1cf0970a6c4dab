import { SystemNetwork, type Connection, type Listener } from '@dsec/kit';
import { clock } from './wait-for.ts';

const network = new SystemNetwork();
const UPGRADE = '\r\nupgrade: ';

export interface CuttingProxyOptions {
  /** A connection over which nothing comes from the server for so long is cut, as idle proxies do. */
  readonly silenceMs?: number;
  /** It speaks only HTTP: a request for another protocol gets no. @default false */
  readonly isPlain?: boolean;
}

interface Pair {
  readonly client: Connection;
  readonly server: Connection;
}

/** Stands between a client and the server, and is everything that can go wrong on the way. */
export class CuttingProxy implements AsyncDisposable {
  readonly #pairs = new Set<Pair>();
  readonly #silenceMs: number | undefined;
  readonly #isPlain: boolean;
  #listener: Listener | undefined;
  #cutAfterBytes: number | undefined;
  #isHeld = false;
  /** Connections that were cut for their silence. */
  silenced = 0;
  /** Bytes that came from the server. */
  fromServer = 0;

  private constructor(options: CuttingProxyOptions) {
    this.#silenceMs = options.silenceMs;
    this.#isPlain = options.isPlain ?? false;
  }

  static async start(endpoint: string, options: CuttingProxyOptions = {}): Promise<CuttingProxy> {
    const target = new URL(endpoint);
    const proxy = new CuttingProxy(options);
    proxy.#listener = await network.listenTcp('127.0.0.1', 0, (client) => {
      proxy.#join(client, target).catch(() => client.destroy());
    });
    return proxy;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${this.#listener?.port ?? 0}`;
  }

  get connections(): number {
    return this.#pairs.size;
  }

  /** Breaks every connection now; new ones go through. */
  cut(): void {
    for (const { client, server } of this.#pairs) {
      client.destroy();
      server.destroy();
    }
    this.#pairs.clear();
  }

  /** The next `bytes` that the server sends over one connection are passed on; then that connection is cut. Once. */
  cutAfter(bytes: number): void {
    this.#cutAfterBytes = bytes;
  }

  /** From now on nothing of what the server sends is read: a client that has stopped reading. */
  hold(): void {
    this.#isHeld = true;
    for (const { server } of this.#pairs) server.pause();
  }

  async #join(client: Connection, target: URL): Promise<void> {
    const server = await network.connectTcp(target.hostname, Number(target.port));
    const pair = { client, server };
    this.#pairs.add(pair);
    const end = (): void => {
      this.#pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    client.once('close', end);
    server.once('close', () => client.end());
    let timer = this.#watchSilence(end);
    client.on('data', (chunk: Buffer) => {
      if (this.#isPlain && chunk.includes(UPGRADE)) {
        client.end('HTTP/1.1 501 Not Implemented\r\ncontent-length: 0\r\n\r\n');
        return;
      }
      if (!server.write(chunk)) {
        client.pause();
        server.once('drain', () => client.resume());
      }
    });
    client.once('end', () => server.end());
    server.on('data', (chunk: Buffer) => {
      timer?.cancel();
      timer = this.#watchSilence(end);
      this.fromServer += chunk.length;
      const left = this.#cutAfterBytes;
      if (left !== undefined) {
        if (chunk.length >= left) {
          this.#cutAfterBytes = undefined;
          client.write(chunk.subarray(0, left), () => end());
          return;
        }
        this.#cutAfterBytes = left - chunk.length;
      }
      if (!client.write(chunk)) {
        server.pause();
        client.once('drain', () => {
          if (!this.#isHeld) server.resume();
        });
      }
    });
    client.once('close', () => timer?.cancel());
    if (this.#isHeld) server.pause();
  }

  #watchSilence(end: () => void): { cancel(): void } | undefined {
    if (this.#silenceMs === undefined) return undefined;
    return clock.setTimer(this.#silenceMs, () => {
      this.silenced += 1;
      end();
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await this.#listener?.close();
  }
}
