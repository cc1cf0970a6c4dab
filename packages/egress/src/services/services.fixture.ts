/** Mirror services as a sandbox sees them, over a real server behind them. */
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { zone } from '../dns/name-server.fixture.ts';
import { LOCAL, startFixture, type ResolverFixture } from '../resolver.fixture.ts';
import { parseServices, type Service } from './service.ts';

export interface Answer {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly text: string;
}
export type Handler = (request: IncomingMessage, response: ServerResponse) => void;

export class Upstream implements AsyncDisposable {
  readonly asked: { readonly method: string; readonly url: string; readonly headers: IncomingMessage['headers'] }[] =
    [];
  /** By path; what is not there is not found. */
  readonly pages = new Map<string, Handler>();
  readonly #server = createServer((asked, response) => {
    this.asked.push({ method: asked.method ?? '', url: asked.url ?? '', headers: asked.headers });
    const handler = this.pages.get(asked.url ?? '');
    if (handler !== undefined) return handler(asked, response);
    response.writeHead(404).end('nothing here');
  });

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    return this;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  page(path: string, type: string, body: string): void {
    this.pages.set(path, (_asked, response) => void response.writeHead(200, { 'content-type': type }).end(body));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

export interface Asking {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
  readonly host?: string;
}

/** A resolver whose services are called by their kind and are all open to `LOCAL`, and two servers to put behind them. */
export class ServicesFixture implements AsyncDisposable {
  readonly upstream: Upstream;
  readonly files: Upstream;
  #resolver: ResolverFixture | undefined;

  private constructor(upstream: Upstream, files: Upstream) {
    this.upstream = upstream;
    this.files = files;
  }

  static async create(): Promise<ServicesFixture> {
    return new ServicesFixture(await new Upstream().start(), await new Upstream().start());
  }

  get resolver(): ResolverFixture {
    if (this.#resolver === undefined) throw new Error('no services yet');
    return this.#resolver;
  }

  /** Takes the place of the resolver before. */
  async start(...services: readonly Omit<Service, 'name'>[]): Promise<void> {
    await this.#resolver?.[Symbol.asyncDispose]();
    const named = services.map((service) => ({ name: service.kind, ...service }));
    this.#resolver = await startFixture({ script: zone({}), services: parseServices(named) });
    await this.#resolver.allow(LOCAL, { services: Object.fromEntries(named.map(({ name }) => [name, true])) });
  }

  /** As it is written: no client's own normalization of the path. */
  ask(service: string, path: string, asking: Asking = {}): Promise<Answer> {
    const port = this.resolver.servicePort;
    return new Promise((resolve, reject) => {
      const headers = { host: asking.host ?? `${service}.mirror.internal`, ...asking.headers };
      const method = asking.method ?? 'GET';
      const sent = request({ host: '127.0.0.1', port, path, method, headers, agent: false }, (response) => {
        let text = '';
        response.on('data', (chunk: Buffer) => {
          text += chunk.toString();
        });
        response.once('end', () => resolve({ status: response.statusCode ?? 0, headers: response.headers, text }));
        response.once('error', reject);
      });
      sent.once('error', reject);
      sent.end(asking.body);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#resolver?.[Symbol.asyncDispose]();
    await this.upstream[Symbol.asyncDispose]();
    await this.files[Symbol.asyncDispose]();
  }
}
