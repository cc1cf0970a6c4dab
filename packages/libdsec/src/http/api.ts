import { COMMAND_CONNECTION_PATH, PlatformError, type CommandStart } from '@dsec/contract';
import type { Timing } from '../platform/timing.ts';
import { Deadline, type CallOptions } from './deadline.ts';
import { isReplayable } from './byte-source.ts';
import type { Cancellation } from './cancellation.ts';
import { errorOf, parseJson } from './error-body.ts';
import { isRepeatable, Retries, type Repeatable, type RetryOptions } from './retry.ts';
import type { Parse } from './schema.ts';
import type { CommandSink, RunningCommand, Transport, TransportRequest, TransportResponse } from './transport.ts';

/** A call that names no time of its own is given up after this long: a dead server must not hold its callers for ever. */
const DEFAULT_TIMEOUT_MS = 60_000;
/** Largest JSON answer that is read. */
const MAX_JSON_BYTES = 64 * 1024 * 1024;

export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

/** One request to the API. `path` begins after `/v1`; its variable parts are already escaped (see `segment`). */
export interface ApiRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly path: string;
  /** Names the call in errors: "reading /etc/passwd of sandbox s000". */
  readonly what: string;
  readonly query?: Query | undefined;
  readonly headers?: Readonly<Record<string, string>>;
  /** A JSON body. */
  readonly json?: unknown;
  /** A body of bytes; a stream can be sent only once. */
  readonly bytes?: string | Uint8Array<ArrayBuffer> | AsyncIterable<Uint8Array>;
  readonly repeatable: Repeatable;
}

export interface ApiOptions {
  /** Without a slash at the end. */
  readonly endpoint: string;
  readonly apiKey: string;
  readonly transport: Transport;
  readonly timing: Timing;
  readonly retry: Required<RetryOptions>;
}

/** A part of a path that may hold anything. */
export const segment = (text: string): string => encodeURIComponent(text);

/** The API over a transport: authorisation, errors as PlatformError, deadlines, and the only retries of the platform. */
export class Api {
  readonly endpoint: string;
  readonly timing: Timing;
  readonly retry: Required<RetryOptions>;
  readonly #apiKey: string;
  readonly #transport: Transport;
  readonly #commandUrl: string;
  #hasAnswered = false;

  constructor(options: ApiOptions) {
    this.endpoint = options.endpoint;
    this.timing = options.timing;
    this.retry = options.retry;
    this.#apiKey = options.apiKey;
    this.#transport = options.transport;
    this.#commandUrl = this.url(COMMAND_CONNECTION_PATH);
  }

  /** Whether this server ever answered: then one that refuses connections is restarting; else the address is wrong. */
  get hasAnswered(): boolean {
    return this.#hasAnswered;
  }

  get authorization(): { readonly authorization: string } {
    return { authorization: `Bearer ${this.#apiKey}` };
  }

  url(path: string, query?: Query): string {
    let separator = '?';
    let url = `${this.endpoint}/v1${path}`;
    for (const [key, value] of Object.entries(query ?? {})) {
      if (value === undefined) continue;
      url += `${separator}${encodeURIComponent(key)}=${encodeURIComponent(value)}`;
      separator = '&';
    }
    return url;
  }

  /** A call whose answer is JSON. */
  async json<T>(
    request: ApiRequest,
    parse: Parse<T>,
    options: CallOptions = {},
    defaultTimeoutMs = DEFAULT_TIMEOUT_MS,
  ): Promise<T> {
    return this.call(
      request,
      options,
      async (response) => parse(parseJson(await response.text(MAX_JSON_BYTES))),
      defaultTimeoutMs,
    );
  }

  /** A call whose answer says no more than that it worked. */
  async done(request: ApiRequest, options: CallOptions = {}, defaultTimeoutMs = DEFAULT_TIMEOUT_MS): Promise<void> {
    await this.call(request, options, (response) => response.text(MAX_JSON_BYTES), defaultTimeoutMs);
  }

  /** Sends, reads the answer by `read`, and repeats both as the request allows. */
  async call<T>(
    request: ApiRequest,
    options: CallOptions,
    read: (response: TransportResponse) => Promise<T>,
    defaultTimeoutMs = DEFAULT_TIMEOUT_MS,
  ): Promise<T> {
    using deadline = new Deadline(this.timing, request.what, options, defaultTimeoutMs);
    const repeatable = request.bytes === undefined || isReplayable(request.bytes) ? request.repeatable : 'never';
    let retries: Retries | undefined;
    for (;;) {
      try {
        return await read(await this.send(request, deadline));
      } catch (error) {
        if (!this.#mayRepeat(error, repeatable)) throw error;
        retries ??= new Retries(this.timing, this.retry);
        if (!(await retries.next(deadline))) throw error;
      }
    }
  }

  /** One try: an answer of success, or the error that it stands for. */
  async send(request: ApiRequest, cancellation: Cancellation): Promise<TransportResponse> {
    const response = await this.#transport.send(this.#transportRequest(request, cancellation));
    this.#hasAnswered = true;
    if (response.status >= 200 && response.status < 300) return response;
    throw await errorOf(response, request.what);
  }

  /** Starts a command over the connection of many, where there is one; undefined: ask by `send`. */
  startCommand(command: CommandStart, sink: CommandSink): RunningCommand | undefined {
    const { authorization } = this.authorization;
    return this.#transport.startCommand?.({ ...command, url: this.#commandUrl, authorization }, sink);
  }

  /** Whether to try again after `error`. */
  #mayRepeat(error: unknown, repeatable: Repeatable): boolean {
    if (!isRepeatable(error, repeatable)) return false;
    return error.code !== 'server_unreachable' || this.#hasAnswered;
  }

  #transportRequest(request: ApiRequest, cancellation: Cancellation): TransportRequest {
    const headers: Record<string, string> = { authorization: `Bearer ${this.#apiKey}`, ...request.headers };
    let body: TransportRequest['body'] = request.bytes;
    if (request.json !== undefined) {
      headers['content-type'] = 'application/json';
      body = JSON.stringify(request.json);
    } else if (body !== undefined) {
      headers['content-type'] ??= 'application/octet-stream';
    }
    return { method: request.method, url: this.url(request.path, request.query), headers, body, cancellation };
  }

  async close(): Promise<void> {
    await this.#transport.close();
  }
}

/** Fails for an empty id before it becomes part of a path, where it would name another route. */
export function idSegment(id: string, field: string): string {
  if (id === '') throw new PlatformError('invalid_argument', `${field} is empty`, { details: { field } });
  return segment(id);
}
