import type { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import { abortError, throwIfAborted } from '@dsec/kit';
import { networkFailure, unavailable } from './registry-failure.ts';

/** What a registry may use of the network. */
export interface HttpOptions {
  readonly clock: Clock;
  readonly fetch: typeof globalThis.fetch;
  /** Whether plain HTTP may be spoken to this host (with its port, if that is not the usual one). */
  readonly isPlainAllowed: (url: URL) => boolean;
  /** Longest wait for the head of an answer. @default 30,000 */
  readonly answerTimeoutMs?: number;
  /** Longest wait for the next bytes of a body. @default 60,000 */
  readonly silenceTimeoutMs?: number;
}

export interface HttpRequest {
  readonly method: 'GET' | 'HEAD' | 'POST' | 'PUT' | 'PATCH';
  readonly url: URL;
  readonly headers?: Readonly<Record<string, string>>;
  /** Only for the origin of `url`: no redirect to elsewhere sees it. */
  readonly authorization?: string | undefined;
  readonly body?: Uint8Array | string | undefined;
  readonly signal?: AbortSignal | undefined;
}

const DEFAULT_ANSWER_TIMEOUT_MS = 30_000;
const DEFAULT_SILENCE_TIMEOUT_MS = 60_000;
/** A request with a body may take so much longer to be answered: a chunk has to go up first. */
const UPLOAD_TIMEOUT_FACTOR = 10;
/** A registry redirects to its blob store, and that perhaps to another region. */
const MAX_REDIRECTS = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);

/**
 * One exchange with a registry, or with what it redirects to.
 *
 * @param registry named in errors
 * @throws PlatformError `registry_unavailable`, `cancelled`, and what `signal` carries
 */
export const exchange = async (registry: string, request: HttpRequest, options: HttpOptions): Promise<HttpAnswer> => {
  const isReading = request.method === 'GET' || request.method === 'HEAD';
  let { url } = request;
  let { authorization } = request;
  for (let redirects = 0; ; redirects++) {
    const answer = await HttpAnswer.of(registry, { ...request, url, authorization }, options);
    if (!REDIRECTS.has(answer.status)) return answer;
    await answer[Symbol.asyncDispose]();
    const next = redirectTarget(answer.header('location'), url);
    if (!isReading || next === undefined || redirects === MAX_REDIRECTS || !mayFollow(url, next, options)) {
      throw unavailable(registry, 'redirect');
    }
    // Once away, nothing is trusted to have led back.
    if (next.origin !== url.origin) authorization = undefined;
    url = next;
  }
};

const redirectTarget = (location: string | undefined, from: URL): URL | undefined => {
  if (location === undefined || !URL.canParse(location, from.href)) return undefined;
  return new URL(location, from.href);
};

const mayFollow = (from: URL, to: URL, options: HttpOptions): boolean =>
  to.username === '' &&
  to.password === '' &&
  (to.protocol === 'https:' || (to.protocol === 'http:' && from.protocol === 'http:' && options.isPlainAllowed(to)));

/** An answer, whose body nobody has read yet. Disposing it lets go of the rest. */
export class HttpAnswer implements AsyncDisposable {
  readonly status: number;
  /** Of the server that it is from, after redirects. */
  readonly origin: string;
  readonly #registry: string;
  readonly #response: Response;
  readonly #watchdog: Watchdog;

  private constructor(registry: string, origin: string, response: Response, watchdog: Watchdog) {
    this.status = response.status;
    this.origin = origin;
    this.#registry = registry;
    this.#response = response;
    this.#watchdog = watchdog;
  }

  static async of(registry: string, request: HttpRequest, options: HttpOptions): Promise<HttpAnswer> {
    throwIfAborted(request.signal);
    const { answerTimeoutMs = DEFAULT_ANSWER_TIMEOUT_MS, silenceTimeoutMs = DEFAULT_SILENCE_TIMEOUT_MS } = options;
    const watchdog = new Watchdog(registry, options.clock, { signal: request.signal, silenceTimeoutMs });
    watchdog.arm(request.body === undefined ? answerTimeoutMs : answerTimeoutMs * UPLOAD_TIMEOUT_FACTOR);
    try {
      const response = await options.fetch(request.url.href, {
        method: request.method,
        headers: {
          // Digests and ranges are of the bytes as they are stored.
          'accept-encoding': 'identity',
          'user-agent': 'dsec',
          ...request.headers,
          ...(request.authorization === undefined ? {} : { authorization: request.authorization }),
        },
        redirect: 'manual',
        signal: watchdog.signal,
        ...(request.body === undefined ? {} : { body: request.body }),
      });
      watchdog.disarm();
      return new HttpAnswer(registry, request.url.origin, response, watchdog);
    } catch (error) {
      watchdog[Symbol.dispose]();
      throw failure(registry, error, watchdog.signal);
    }
  }

  header(name: string): string | undefined {
    return this.#response.headers.get(name) ?? undefined;
  }

  /** The body as it comes. Each part is waited for only so long. */
  async *chunks(): AsyncGenerator<Uint8Array> {
    const reader = this.#reader();
    if (reader === undefined) return;
    try {
      for (;;) {
        this.#watchdog.arm();
        const { done, value } = await reader.read();
        this.#watchdog.disarm();
        if (done) return;
        yield value;
      }
    } catch (error) {
      throw failure(this.#registry, error, this.#watchdog.signal);
    } finally {
      this.#watchdog.disarm();
      // Without it an abandoned body would go on filling its connection.
      await reader.cancel().catch(() => undefined);
    }
  }

  /** The whole body; all of it is waited for only as long as one part is. Undefined when it is larger than the bound. */
  async document(maxBytes: number): Promise<Buffer | undefined> {
    const parts: Uint8Array[] = [];
    let sizeBytes = 0;
    const reader = this.#reader();
    if (reader === undefined) return Buffer.alloc(0);
    this.#watchdog.arm();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return Buffer.concat(parts);
        sizeBytes += value.length;
        if (sizeBytes > maxBytes) return undefined;
        parts.push(value);
      }
    } catch (error) {
      throw failure(this.#registry, error, this.#watchdog.signal);
    } finally {
      this.#watchdog.disarm();
      await reader.cancel().catch(() => undefined);
    }
  }

  #reader(): ReadableStreamDefaultReader<Uint8Array> | undefined {
    return this.#response.body?.getReader() as ReadableStreamDefaultReader<Uint8Array> | undefined; // the declared type is of any
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { body } = this.#response;
    if (body !== null && !body.locked) await body.cancel().catch(() => undefined);
    this.#watchdog[Symbol.dispose]();
  }
}

const failure = (registry: string, error: unknown, signal: AbortSignal): PlatformError =>
  signal.aborted ? abortError(signal) : networkFailure(registry, error);

/** Ends an exchange when it is silent for too long, and when its caller says so. */
class Watchdog implements Disposable {
  readonly signal: AbortSignal;
  readonly #controller = new AbortController();
  readonly #registry: string;
  readonly #clock: Clock;
  readonly #silenceTimeoutMs: number;
  readonly #release: () => void;
  #disarm: (() => void) | undefined;

  constructor(
    registry: string,
    clock: Clock,
    options: { readonly signal: AbortSignal | undefined; readonly silenceTimeoutMs: number },
  ) {
    this.#registry = registry;
    this.#clock = clock;
    this.#silenceTimeoutMs = options.silenceTimeoutMs;
    this.signal = this.#controller.signal;
    const outer = options.signal;
    const onAbort = (): void => {
      if (outer !== undefined) this.#controller.abort(abortError(outer));
    };
    outer?.addEventListener('abort', onAbort, { once: true });
    this.#release = () => outer?.removeEventListener('abort', onAbort);
  }

  arm(timeoutMs = this.#silenceTimeoutMs): void {
    this.disarm();
    const timer = this.#clock.setTimer(timeoutMs, () => this.#controller.abort(unavailable(this.#registry, 'timeout')));
    this.#disarm = () => timer.cancel();
  }

  disarm(): void {
    this.#disarm?.();
    this.#disarm = undefined;
  }

  [Symbol.dispose](): void {
    this.disarm();
    this.#release();
  }
}
