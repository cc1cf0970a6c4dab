/** Requests to the one server of a service. */
import { PlatformError } from '@dsec/contract';
import { Semaphore } from '@dsec/kit';
import { Pool, type Dispatcher } from 'undici';
import {
  CONNECT_MS,
  IDLE_MS,
  MAX_DOCUMENT_BYTES,
  MAX_DOCUMENTS,
  MAX_DOCUMENTS_WAITING,
  MAX_UPSTREAM_CONNECTIONS,
} from './bounds.ts';

export interface Document {
  readonly status: number;
  /** Without parameters, lower case. */
  readonly type: string;
  readonly text: string;
}

export interface ForwardRequest {
  readonly method: string;
  /** Below the path of the upstream, with its query. */
  readonly target: string;
  readonly headers: Readonly<Record<string, string | string[]>>;
  readonly body: Dispatcher.DispatchOptions['body'];
  readonly signal: AbortSignal;
}

export class UpstreamClient implements AsyncDisposable {
  readonly #base: URL;
  readonly #pool: Pool;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #documents = new Semaphore({ permits: MAX_DOCUMENTS, maxWaiting: MAX_DOCUMENTS_WAITING });

  /** `headers` are those of the operator; they win over all others. */
  constructor(upstream: string, headers: Readonly<Record<string, string>>) {
    this.#base = new URL(upstream);
    this.#headers = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
    this.#pool = new Pool(this.#base.origin, {
      connections: MAX_UPSTREAM_CONNECTIONS,
      headersTimeout: IDLE_MS,
      bodyTimeout: IDLE_MS,
      connect: { timeout: CONNECT_MS },
    });
  }

  get hasHeaders(): boolean {
    return Object.keys(this.#headers).length > 0;
  }

  /** @throws PlatformError `unavailable` when the upstream does not answer */
  async forward(request: ForwardRequest): Promise<Dispatcher.ResponseData> {
    const { method, target, headers, body, signal } = request;
    try {
      return await this.#pool.request({
        method,
        path: this.#path(target),
        headers: { ...headers, ...this.#headers },
        body: body ?? null,
        signal,
      });
    } catch (cause) {
      throw new PlatformError('unavailable', 'the server behind the service does not answer', { cause });
    }
  }

  /**
   * Reads a whole page.
   * @throws PlatformError `unavailable`, also for one that is larger than its bound; `too_many_requests`
   */
  async read(target: string, accept: string, signal: AbortSignal): Promise<Document> {
    using _permit = await this.#documents.acquire(signal);
    const headers = { accept, 'accept-encoding': 'identity', 'user-agent': 'dsec-mirror' };
    const {
      statusCode,
      headers: answered,
      body,
    } = await this.forward({ method: 'GET', target, headers, body: null, signal });
    const chunks: Buffer[] = [];
    let length = 0;
    try {
      for await (const chunk of body as AsyncIterable<Buffer>) {
        length += chunk.length;
        if (length > MAX_DOCUMENT_BYTES) throw new PlatformError('unavailable', 'a page of the service is too large');
        chunks.push(chunk);
      }
    } catch (cause) {
      if (PlatformError.is(cause)) throw cause;
      throw new PlatformError('unavailable', 'the server behind the service broke off', { cause });
    }
    const type = String(answered['content-type'] ?? '').split(';')[0] ?? '';
    return { status: statusCode, type: type.trim().toLowerCase(), text: Buffer.concat(chunks).toString('utf8') };
  }

  /** The target that a URL of the upstream stands for; undefined for a URL elsewhere. */
  targetOf(url: URL): string | undefined {
    if (url.origin !== this.#base.origin) return undefined;
    const root = this.#root();
    if (!url.pathname.startsWith(`${root}/`)) return undefined;
    return `${url.pathname.slice(root.length)}${url.search}`;
  }

  /** The URL of a target, to resolve relative links by. */
  urlOf(target: string): URL {
    return new URL(`${this.#base.origin}${this.#path(target)}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool.destroy();
  }

  #path(target: string): string {
    return `${this.#root()}${target}`;
  }

  #root(): string {
    return this.#base.pathname.replace(/\/+$/, '');
  }
}
