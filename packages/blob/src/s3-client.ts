/**
 * Signed requests to an S3 server, path-style, asked again while that may help. Everything that the store sends may be sent twice: an
 * object is put whole, a part has its number, a delete is idempotent.
 */
import { AwsV4Signer } from 'aws4fetch';
import { PlatformError } from '@dsec/contract';
import { Backoff, type Clock, Deadline, type Random, throwIfAborted } from '@dsec/kit';
import { sha256 } from './digest.ts';
import { type S3Failure, s3Failure } from './s3-error.ts';
import { unavailable } from './store-error.ts';

export interface S3ClientOptions {
  /** `http://host:port` or `https://host`. */
  readonly endpoint: string;
  readonly bucket: string;
  /** Default `us-east-1`. */
  readonly region?: string;
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly clock: Clock;
  readonly random: Random;
  /** For `details.store`; default the bucket's name. */
  readonly name?: string;
  /** Most calls for one request, the first included. Default 5. */
  readonly attempts?: number;
  /** No new call begins after this much time. Default 60,000. */
  readonly budgetMs?: number;
  /** Longest silence of the server. Default 30,000. */
  readonly idleMs?: number;
  /** Default the global one. */
  readonly fetch?: typeof globalThis.fetch;
}

export interface S3Request {
  readonly method: 'GET' | 'HEAD' | 'PUT' | 'POST' | 'DELETE';
  /** Empty: the bucket itself. */
  readonly key: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Uint8Array<ArrayBuffer>;
  /** Statuses beside 2xx that are answers, not failures. */
  readonly expected?: readonly number[];
  readonly signal?: AbortSignal | undefined;
}

/** An answer whose body is being read; dispose it when it is not read to its end. */
export interface S3Response extends AsyncDisposable {
  readonly status: number;
  readonly headers: Headers;
  /** @throws PlatformError `blob_unavailable` when it breaks off */
  body(): AsyncIterable<Uint8Array>;
}

const BACKOFF = { baseMs: 200, maxMs: 10_000 };
/** Longest answer that is not an object. */
const MAX_TEXT_BYTES = 8 * 1024 * 1024;

export class S3Client {
  readonly name: string;
  readonly clock: Clock;
  readonly #options: S3ClientOptions;
  readonly #fetch: typeof globalThis.fetch;
  readonly #idleMs: number;
  /** Signing keys, one a day. */
  #keys = new Map<string, ArrayBuffer>();

  constructor(options: S3ClientOptions) {
    this.name = options.name ?? options.bucket;
    this.clock = options.clock;
    this.#options = options;
    this.#fetch = options.fetch ?? globalThis.fetch;
    this.#idleMs = options.idleMs ?? 30_000;
  }

  /** The answer when its head is there. */
  async open(request: S3Request): Promise<S3Response> {
    return await this.attempting(request.signal, () => this.#send(request));
  }

  /** The whole answer, which must be small. */
  async text(
    request: S3Request,
  ): Promise<{ readonly status: number; readonly headers: Headers; readonly text: string }> {
    return await this.attempting(request.signal, async () => {
      await using response = await this.#send(request);
      return { status: response.status, headers: response.headers, text: await textOf(response) };
    });
  }

  /** Runs an operation again while it throws a transient failure, within attempts and budget, leaving the server alone as it asks. */
  async attempting<T>(signal: AbortSignal | undefined, operation: () => Promise<T>): Promise<T> {
    const { clock } = this;
    const backoff = new Backoff(BACKOFF, this.#options.random);
    const endsMs = clock.monotonicMs() + (this.#options.budgetMs ?? 60_000);
    for (let attempt = 1; ; attempt++) {
      throwIfAborted(signal);
      try {
        return await operation();
      } catch (error) {
        throwIfAborted(signal);
        if (!(error instanceof Failed)) throw error;
        const { failure } = error;
        const waitMs = Math.max(backoff.nextMs(), failure.retryAfterMs);
        const isOver = attempt >= (this.#options.attempts ?? 5) || clock.monotonicMs() + waitMs > endsMs;
        if (!failure.isTransient || isOver) throw failure.error;
        await clock.sleep(waitMs, { signal });
      }
    }
  }

  async #send(request: S3Request): Promise<S3Response> {
    const watch = new IdleWatch(this.clock, this.#idleMs, request.signal);
    try {
      const response = await this.#fetch(await this.#signed(request, watch.signal));
      const opened = new OpenResponse(response, watch, this.name);
      if (response.ok || request.expected?.includes(response.status) === true) return opened;
      await using failed = opened;
      const answer = {
        status: response.status,
        text: await textOf(failed),
        retryAfter: response.headers.get('retry-after'),
      };
      throw new Failed(s3Failure(this.name, answer, this.clock));
    } catch (error) {
      watch.stop();
      throw broken(this.name, error);
    }
  }

  async #signed(request: S3Request, signal: AbortSignal): Promise<Request> {
    const { endpoint, bucket, region, accessKeyId, secretAccessKey } = this.#options;
    const url = new URL(`${endpoint}/${bucket}${request.key === '' ? '' : `/${request.key}`}`);
    for (const [name, value] of Object.entries(request.query ?? {})) url.searchParams.set(name, value);
    const body = request.body ?? new Uint8Array();
    const headers = { ...request.headers, 'x-amz-content-sha256': sha256(body).toString('hex') };
    if (this.#keys.size > 1) this.#keys = new Map();
    const signed = await new AwsV4Signer({
      method: request.method,
      url: url.href,
      headers,
      accessKeyId,
      secretAccessKey,
      service: 's3',
      region: region ?? 'us-east-1',
      cache: this.#keys,
      datetime: new Date(this.clock.now()).toISOString().replaceAll(/[:-]|\.\d{3}/g, ''),
    }).sign();
    return new Request(signed.url, {
      method: signed.method,
      headers: signed.headers,
      // A redirect would be followed with the signature of another host.
      redirect: 'manual',
      signal,
      ...(request.body === undefined ? {} : { body: request.body }),
    });
  }
}

/** Carries a failure to `attempting`; does not leave this module as it is. */
class Failed extends Error {
  readonly failure: S3Failure;

  constructor(failure: S3Failure) {
    super(failure.error.message, { cause: failure.error });
    this.failure = failure;
  }
}

/** A connection that was refused or broke, or a server that fell silent. */
function broken(store: string, error: unknown): Error {
  if (error instanceof Failed || (PlatformError.is(error) && error.code !== 'timeout')) return error;
  const reason = PlatformError.is(error) ? 'timeout' : 'network';
  return new Failed({ error: unavailable(store, reason, error), isTransient: true, retryAfterMs: 0 });
}

/** A signal that aborts with the caller's, or when nothing has come for a while. */
class IdleWatch {
  readonly #controller = new AbortController();
  readonly #clock: Clock;
  readonly #idleMs: number;
  readonly #outer: AbortSignal | undefined;
  #deadline: Deadline | undefined;

  constructor(clock: Clock, idleMs: number, outer: AbortSignal | undefined) {
    this.#clock = clock;
    this.#idleMs = idleMs;
    this.#outer = outer;
    this.feed();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Something has come. */
  feed(): void {
    this.stop();
    const deadline = new Deadline({
      clock: this.#clock,
      what: 'an answer of the blob store',
      signal: this.#outer,
      timeoutMs: this.#idleMs,
    });
    const onAbort = (): void => this.#controller.abort(deadline.signal.reason);
    if (deadline.signal.aborted) onAbort();
    else deadline.signal.addEventListener('abort', onAbort, { once: true });
    this.#deadline = deadline;
  }

  stop(): void {
    this.#deadline?.[Symbol.dispose]();
    this.#deadline = undefined;
  }
}

class OpenResponse implements S3Response {
  readonly status: number;
  readonly headers: Headers;
  readonly #response: Response;
  readonly #watch: IdleWatch;
  readonly #store: string;

  constructor(response: Response, watch: IdleWatch, store: string) {
    this.status = response.status;
    this.headers = response.headers;
    this.#response = response;
    this.#watch = watch;
    this.#store = store;
  }

  async *body(): AsyncGenerator<Uint8Array> {
    try {
      for await (const part of this.#response.body ?? []) {
        // The silence of a slow reader is not the server's.
        this.#watch.stop();
        yield part;
        this.#watch.feed();
      }
    } catch (error) {
      throw broken(this.#store, error);
    } finally {
      this.#watch.stop();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#watch.stop();
    // A body that has been read, or broke, has nothing left to cancel.
    if (!this.#response.bodyUsed) await this.#response.body?.cancel().catch(() => undefined);
  }
}

/** The whole body of an answer that is no object. */
export async function textOf(response: S3Response): Promise<string> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of response.body()) {
    length += part.length;
    if (length > MAX_TEXT_BYTES) break;
    parts.push(part);
  }
  return Buffer.concat(parts).toString('utf8');
}
