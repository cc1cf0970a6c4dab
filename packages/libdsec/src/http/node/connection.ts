import { PlatformError } from '@dsec/contract';
import type { Socket } from 'node:net';
import type { Timing } from '../../platform/timing.ts';
import type { Cancellation } from '../cancellation.ts';
import type { TransportRequest } from '../transport.ts';
import { openSocket } from './open-socket.ts';
import type { Origin } from './origin.ts';
import { ResponseReader, type ResponseHead, type ResponseSink } from './response-reader.ts';
import { NodeResponse, type BodySource } from './node-response.ts';

/** A server closes a connection that is idle for the time that it names; one this close to it is not used any more. */
const IDLE_MARGIN_MS = 1000;

/** Nothing of a request can have reached the server after one of these. */
const UNREACHED = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOENT']);

export interface ConnectionOwner {
  /** It can carry another request. */
  onIdle(connection: Connection): void;
  /** It is over. Called once. */
  onClosed(connection: Connection): void;
}

/** What is under way on a connection. */
interface Exchange {
  readonly request: TransportRequest;
  readonly resolve: (response: NodeResponse) => void;
  readonly reject: (error: unknown) => void;
  readonly stopListening: (() => void) | undefined;
  response: NodeResponse | undefined;
  isSent: boolean;
  isKept: boolean;
}

/** One connection to a server: one request after another. */
export class Connection implements ResponseSink, BodySource {
  readonly #origin: Origin;
  readonly #timing: Timing;
  readonly #owner: ConnectionOwner;
  readonly #socket: Socket;
  readonly #reader = new ResponseReader(this);
  #exchange: Exchange | undefined;
  #failure: unknown;
  #isPaused = false;
  #isClosed = false;
  /** How long the server leaves it open idle, as it said in its first answer. */
  #idleMs: number | undefined;
  #idleSinceMs = 0;

  constructor(origin: Origin, timing: Timing, owner: ConnectionOwner) {
    this.#origin = origin;
    this.#timing = timing;
    this.#owner = owner;
    this.#socket = openSocket(origin, (bytes) => this.#onData(bytes));
    this.#socket.on('error', (error: Error) => (this.#failure ??= error));
    this.#socket.on('end', () => this.#onEnd());
    this.#socket.on('close', () => this.#onClose());
  }

  /** Whether an idle connection can be used again. */
  get isFresh(): boolean {
    return (
      !this.#isClosed && this.#socket.writable && this.#timing.monotonicMs() - this.#idleSinceMs < (this.#idleMs ?? 0)
    );
  }

  /** Resolves when the head of the answer is here. Only for a connection that is idle. */
  send(request: TransportRequest): Promise<NodeResponse> {
    return new Promise((resolve, reject) => {
      const { cancellation, body } = request;
      const exchange: Exchange = {
        request,
        resolve,
        reject,
        stopListening: cancellation?.onCancel(() => this.destroy(cancellation.reason)),
        response: undefined,
        isSent: true,
        isKept: false,
      };
      this.#exchange = exchange;
      // A request that was cancelled before has closed the connection, which tells of it.
      if (this.#isClosed || this.#failure !== undefined) return;
      this.#socket.ref();
      this.#reader.expect();
      const head = this.#headOf(request);
      if (body === undefined) this.#socket.write(head, 'latin1');
      else if (typeof body === 'string') this.#socket.write(head + body, 'utf8');
      else if (body instanceof Uint8Array) this.#writeBoth(head, body);
      else void this.#sendStream(exchange, head, body);
    });
  }

  destroy(reason: unknown): void {
    this.#failure ??= reason;
    this.#socket.destroy();
  }

  /** Lets the process end although the connection is kept. */
  rest(): void {
    this.#socket.unref();
  }

  pause(): void {
    this.#isPaused = true;
    this.#socket.pause();
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#socket.resume();
  }

  onHead(head: ResponseHead): void {
    const exchange = this.#exchange;
    if (exchange === undefined) return;
    const { url, cancellation } = exchange.request;
    exchange.isKept = head.isKept;
    this.#idleMs ??= idleMsOf(head.header('keep-alive')) - IDLE_MARGIN_MS;
    exchange.response = new NodeResponse(head, url, this, cancellation);
    exchange.resolve(exchange.response);
  }

  onBody(bytes: Buffer): void {
    this.#exchange?.response?.onBody(Buffer.from(bytes));
  }

  onEnd(): void {
    const exchange = this.#exchange;
    if (exchange === undefined) return;
    this.#exchange = undefined;
    exchange.stopListening?.();
    exchange.response?.onEnd();
    // What the server did not wait for would be the beginning of the next request.
    if (exchange.isKept && exchange.isSent) {
      this.resume();
      this.#idleSinceMs = this.#timing.monotonicMs();
      this.#owner.onIdle(this);
    } else {
      this.#socket.destroy();
    }
  }

  #onData(bytes: Buffer): void {
    try {
      this.#reader.push(bytes);
    } catch (error) {
      this.destroy(error);
    }
  }

  #onEnd(): void {
    if (this.#exchange === undefined || this.#reader.close()) this.#socket.destroy();
    else this.destroy(new PlatformError('connection_lost', 'the server closed the connection'));
  }

  #onClose(): void {
    this.#isClosed = true;
    this.#owner.onClosed(this);
    const exchange = this.#exchange;
    if (exchange === undefined) return;
    this.#exchange = undefined;
    exchange.stopListening?.();
    const { request, response } = exchange;
    const error = failureOf(request, this.#origin, this.#failure);
    if (response === undefined) exchange.reject(error);
    else response.onFailure(error);
  }

  #headOf({ method, url, headers, body }: TransportRequest): string {
    const at = url.indexOf('/', this.#origin.url.length);
    let head = `${method} ${at === -1 ? '/' : url.slice(at)} HTTP/1.1\r\nhost: ${this.#origin.host}\r\n`;
    for (const name in headers) head += `${name}: ${headers[name]}\r\n`;
    if (typeof body === 'string') head += `content-length: ${Buffer.byteLength(body)}\r\n`;
    else if (body instanceof Uint8Array) head += `content-length: ${body.length}\r\n`;
    else if (body !== undefined) head += 'transfer-encoding: chunked\r\n';
    else if (method !== 'GET') head += 'content-length: 0\r\n';
    return `${head}\r\n`;
  }

  #writeBoth(head: string, body: Uint8Array): void {
    this.#socket.cork();
    this.#socket.write(head, 'latin1');
    this.#socket.write(body);
    this.#socket.uncork();
  }

  async #sendStream(exchange: Exchange, head: string, body: AsyncIterable<Uint8Array>): Promise<void> {
    const socket = this.#socket;
    exchange.isSent = false;
    socket.write(head, 'latin1');
    try {
      for await (const piece of body) {
        // An answer may come before all is sent: then nobody wants the rest. A socket that is broken tells so only later, and a source that never
        // waits would not let it.
        if (this.#exchange !== exchange || socket.destroyed) return;
        // A chunk of no bytes would be the end.
        if (piece.length === 0) continue;
        socket.cork();
        socket.write(`${piece.length.toString(16)}\r\n`, 'latin1');
        socket.write(piece);
        const hasRoom = socket.write('\r\n', 'latin1');
        socket.uncork();
        if (!hasRoom) await drained(socket);
      }
      if (this.#exchange !== exchange || socket.destroyed) return;
      exchange.isSent = true;
      socket.write('0\r\n\r\n', 'latin1');
    } catch (error) {
      if (this.#exchange === exchange) this.destroy(error);
    }
  }
}

/** Resolves when more may be written, or never will be. */
function drained(socket: Socket): Promise<void> {
  if (!socket.writableNeedDrain || socket.destroyed) return Promise.resolve();
  return new Promise((resolve) => {
    const onEither = (): void => {
      socket.removeListener('drain', onEither);
      socket.removeListener('close', onEither);
      resolve();
    };
    socket.once('drain', onEither);
    socket.once('close', onEither);
  });
}

/** What `Keep-Alive: timeout=SECONDS` says. */
function idleMsOf(header: string | undefined): number {
  const seconds = header === undefined ? undefined : /timeout=(\d{1,9})/.exec(header)?.[1];
  return seconds === undefined ? Infinity : Number(seconds) * 1000;
}

function failureOf(request: TransportRequest, origin: Origin, cause: unknown): Error {
  const { cancellation, method, url } = request;
  if (isCancelled(cancellation)) return cancellation.reason as Error;
  if (PlatformError.is(cause) && cause.code !== 'connection_lost') return cause;
  const code = typeof cause === 'object' && cause !== null && 'code' in cause ? cause.code : undefined;
  if (typeof code === 'string' && UNREACHED.has(code)) {
    return new PlatformError('server_unreachable', `no server answers at ${origin.url}`, {
      details: { endpoint: origin.url },
      cause,
    });
  }
  const path = url.slice(origin.url.length).replace(/\?.*$/s, '');
  return new PlatformError('connection_lost', `the connection to ${origin.url} broke during ${method} ${path}`, {
    cause,
  });
}

const isCancelled = (cancellation: Cancellation | undefined): cancellation is Cancellation =>
  cancellation?.isCancelled === true;
