import { PlatformError } from '@dsec/contract';
import type { Cancellation } from './cancellation.ts';
import type { Transport, TransportRequest, TransportResponse } from './transport.ts';

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** A transport over `fetch`: that of the browser, or one that the caller injects. */
export function fetchTransport(fetchUrl: Fetch): Transport {
  return {
    send: async ({ method, url, headers, body, cancellation }: TransportRequest): Promise<TransportResponse> => {
      const isStream = typeof body === 'object' && !(body instanceof Uint8Array);
      const init: RequestInit & { duplex?: 'half' } = { method, headers: { ...headers } };
      if (body !== undefined) init.body = isStream ? streamOf(body) : body;
      if (isStream) init.duplex = 'half';
      if (cancellation !== undefined) init.signal = cancellation.toAbortSignal();
      let response: Response;
      try {
        response = await fetchUrl(url, init);
      } catch (error) {
        cancellation?.throwIfCancelled();
        throw unreachable(url, error);
      }
      return new FetchResponse(response, url, cancellation);
    },
    close: () => Promise.resolve(),
  };
}

class FetchResponse implements TransportResponse {
  readonly status: number;
  readonly #response: Response;
  readonly #url: string;
  readonly #cancellation: Cancellation | undefined;

  constructor(response: Response, url: string, cancellation: Cancellation | undefined) {
    this.status = response.status;
    this.#response = response;
    this.#url = url;
    this.#cancellation = cancellation;
  }

  header(name: string): string | undefined {
    return this.#response.headers.get(name) ?? undefined;
  }

  async text(maxBytes: number): Promise<string> {
    const decoder = new TextDecoder();
    let size = 0;
    let text = '';
    for await (const chunk of this.#read()) {
      size += chunk.length;
      if (size > maxBytes)
        throw new PlatformError('protocol_error', `the answer of ${this.#url} is larger than ${maxBytes} bytes`);
      text += decoder.decode(chunk, { stream: true });
    }
    return text + decoder.decode();
  }

  get body(): AsyncIterable<Uint8Array<ArrayBuffer>> {
    return this.#read();
  }

  async pump(take: (chunk: Uint8Array<ArrayBuffer>) => Promise<void> | undefined): Promise<void> {
    for await (const chunk of this.#read()) await take(chunk);
  }

  cancel(): void {
    // A body that is being read is locked and ends with its reader; one that failed has nothing to give up.
    if (this.#response.body?.locked === false) this.#response.body.cancel().catch(() => undefined);
  }

  async *#read(): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    const reader = this.#response.body?.getReader();
    if (reader === undefined) return;
    let isWhole = false;
    try {
      for (;;) {
        const next = await reader.read();
        if (next.done) break;
        yield next.value;
      }
      isWhole = true;
    } catch (error) {
      this.#cancellation?.throwIfCancelled();
      throw new PlatformError('connection_lost', `the answer of ${this.#url} broke off`, { cause: error });
    } finally {
      if (!isWhole) reader.cancel().catch(() => undefined);
    }
  }
}

/** `fetch` says only that it failed. Where it tells that nothing was sent (Node), that is passed on; else the worse is assumed. */
function unreachable(url: string, error: unknown): PlatformError {
  const { origin } = new URL(url);
  const cause: unknown = error instanceof Error ? error.cause : undefined;
  const code: unknown = typeof cause === 'object' && cause !== null && 'code' in cause ? cause.code : undefined;
  if (code === 'ECONNREFUSED' || code === 'ENOTFOUND' || code === 'EAI_AGAIN') {
    return new PlatformError('server_unreachable', `no server answers at ${origin}`, {
      details: { endpoint: origin },
      cause: error,
    });
  }
  return new PlatformError('connection_lost', `the connection to ${origin} broke`, { cause: error });
}

function streamOf(source: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const iterator = source[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const next = await iterator.next();
      if (next.done === true) controller.close();
      else controller.enqueue(next.value);
    },
    async cancel() {
      await iterator.return?.();
    },
  });
}
