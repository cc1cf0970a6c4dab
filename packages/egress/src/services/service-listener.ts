/** Serves the mirror services to sandboxes: who asks is known by its address, what it wants by `Host`, and whether it may by its policy. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { PlatformError } from '@dsec/contract';
import { Scope, type Clock, type Connection, type Listener, type Logger, type Network, type Peer } from '@dsec/kit';
import type { Events } from '../events.ts';
import type { SandboxNetwork } from '../sandbox-network.ts';
import type { Sandboxes } from '../sandboxes.ts';
import {
  CROWDED_CONNECTIONS,
  HEAD_MS,
  IDLE_MS,
  MAX_CONNECTIONS,
  MAX_CONNECTIONS_CROWDED,
  MAX_CONNECTIONS_EACH,
  MAX_HEADER_BYTES,
  MAX_REQUESTS_EACH,
  MAX_TOLD_CHARS,
} from './bounds.ts';
import type { Handling } from './protocol.ts';
import { parseTarget, type RequestTarget } from './request-target.ts';
import { requestHeaders, responseHeaders } from './forwarded-headers.ts';
import { HeadDeadline } from './head-deadline.ts';
import type { Service } from './service.ts';
import { openService, type OpenService } from './open-service.ts';

export interface ServiceParts {
  readonly sandboxes: Sandboxes;
  readonly events: Events;
  readonly services: readonly Service[];
  /** Services are called `NAME.ZONE`. */
  readonly zone: string;
}

interface Serving extends Omit<ServiceParts, 'services'> {
  readonly services: ReadonlyMap<string, OpenService>;
}

/** Bound before the process gives up root, and deaf until `serve`. */
export class ServiceListener implements AsyncDisposable {
  readonly #scope: Scope;
  readonly #logger: Logger;
  readonly #server: Server;
  readonly #clock: Clock;
  /** Who is at the other end of a connection, and how long it may keep still. */
  readonly #peers = new WeakMap<object, { readonly from: Peer; readonly deadline: HeadDeadline }>();
  readonly #perPeer = new Map<string, number>();
  /** Requests under way: a connection may carry several at once, one behind the other. */
  readonly #requests = new Map<string, number>();
  #connections = 0;
  #serving: Serving | undefined;
  #listener: Listener | undefined;

  private constructor(clock: Clock, logger: Logger) {
    this.#clock = clock;
    this.#logger = logger;
    this.#scope = new Scope({ clock });
    this.#server = createServer({ maxHeaderSize: MAX_HEADER_BYTES }, (request, response) => {
      this.#counted(request, response).catch((error: unknown) => this.#fail(response, error));
    });
    this.#server.setTimeout(IDLE_MS);
    this.#server.on('clientError', (_error, socket) => socket.destroy());
  }

  /** @throws what the kernel says: EADDRINUSE, EADDRNOTAVAIL, EACCES */
  static async bind(
    at: { readonly address: string; readonly port: number },
    options: { readonly network: Network; readonly clock: Clock; readonly logger: Logger },
  ): Promise<ServiceListener> {
    const own = new ServiceListener(options.clock, options.logger);
    const onConnection = (connection: Connection, from?: Peer): void => own.#accept(connection, from);
    const listener = await options.network.listenTcp(at.address, at.port, onConnection);
    own.#listener = own.#scope.own('services', listener);
    return own;
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  serve({ sandboxes, events, services, zone }: ServiceParts): void {
    const open = new Map(
      services.map((service) => [service.name, this.#scope.own(service.name, openService(service))]),
    );
    this.#serving = { sandboxes, events, zone, services: open };
  }

  close(): Promise<void> {
    return this.#scope.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #accept(connection: Connection, from: Peer | undefined): void {
    const address = from?.address ?? '';
    const own = this.#perPeer.get(address) ?? 0;
    const most = this.#connections >= CROWDED_CONNECTIONS ? MAX_CONNECTIONS_CROWDED : MAX_CONNECTIONS_EACH;
    const isFull = this.#connections >= MAX_CONNECTIONS || own >= most;
    if (this.#serving === undefined || from === undefined || isFull) {
      connection.destroy();
      return;
    }
    this.#connections += 1;
    this.#perPeer.set(address, own + 1);
    const deadline = new HeadDeadline(this.#clock, HEAD_MS, () => connection.destroy());
    this.#peers.set(connection, { from, deadline });
    connection.once('close', () => {
      deadline.close();
      this.#connections -= 1;
      const left = (this.#perPeer.get(address) ?? 1) - 1;
      if (left === 0) this.#perPeer.delete(address);
      else this.#perPeer.set(address, left);
    });
    this.#server.emit('connection', connection);
  }

  async #counted(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const peer = this.#peers.get(request.socket);
    peer?.deadline.begin();
    response.once('close', () => peer?.deadline.end());
    const from = peer?.from ?? NOBODY;
    const { address } = from;
    const own = (this.#requests.get(address) ?? 0) + 1;
    if (own > MAX_REQUESTS_EACH) return answer(response, 429, 'too many requests at once');
    this.#requests.set(address, own);
    try {
      await this.#onRequest(from, request, response);
    } finally {
      const left = (this.#requests.get(address) ?? 1) - 1;
      if (left === 0) this.#requests.delete(address);
      else this.#requests.set(address, left);
    }
  }

  async #onRequest(from: Peer, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const serving = this.#serving;
    const sandbox = serving?.sandboxes.at(from.address);
    if (serving === undefined || sandbox === undefined)
      return answer(response, 503, 'this sandbox is not known here yet');
    const name = serviceOf(request.headers.host, serving.zone);
    const service = name === undefined ? undefined : serving.services.get(name);
    const isOpen = name !== undefined && sandbox.inForce?.compiled.services.includes(name) === true;
    if (service === undefined || !isOpen) {
      this.#refused(serving, sandbox, { request, from });
      return answer(response, 403, 'the policy of this sandbox opens no such service');
    }
    const target = parseTarget(request.url);
    if (target === undefined) return answer(response, 400, 'the path is not well-formed');
    const controller = new AbortController();
    response.once('close', () => controller.abort(new PlatformError('cancelled', 'the client has gone')));
    const handling = await service.protocol.handle({
      method: request.method ?? '',
      target,
      accept: request.headers.accept ?? '',
      origin: `http://${request.headers.host ?? ''}`,
      signal: controller.signal,
    });
    if (handling.kind === 'refuse' && handling.status === 403) this.#refused(serving, sandbox, { request, from });
    await this.#carryOut({ handling, service, request, response, target, signal: controller.signal });
  }

  async #carryOut(work: Work): Promise<void> {
    const { handling, response, request } = work;
    switch (handling.kind) {
      case 'refuse':
        return answer(response, handling.status, handling.reason);
      case 'document':
        response.writeHead(handling.status, {
          'content-type': handling.type,
          'content-length': Buffer.byteLength(handling.text),
        });
        response.end(request.method === 'HEAD' ? undefined : handling.text);
        return;
      case 'forward':
        return await this.#forward(work, handling);
    }
  }

  async #forward(
    { service, request, response, signal }: Work,
    { target, where }: Extract<Handling, { kind: 'forward' }>,
  ): Promise<void> {
    const client = where === 'files' ? service.files : service.upstream;
    if (client === undefined) throw new PlatformError('internal', 'a service without files forwards to them');
    const hasBody =
      request.headers['content-length'] !== undefined || request.headers['transfer-encoding'] !== undefined;
    const { statusCode, headers, body } = await client.forward({
      method: request.method ?? 'GET',
      target,
      headers: requestHeaders(request),
      body: hasBody ? request : null,
      signal,
    });
    const origin = `http://${request.headers.host ?? ''}`;
    const kept = responseHeaders(headers, { client, origin, target });
    if (kept === undefined) {
      body.destroy();
      return answer(response, 502, 'the server behind the service points to another server');
    }
    response.writeHead(statusCode, kept);
    await pipeline(body, response);
  }

  #refused({ events }: Serving, sandbox: SandboxNetwork, { request, from }: Asked): void {
    const name = `${request.headers.host ?? ''}${request.url ?? ''}`.slice(0, MAX_TOLD_CHARS);
    const refusal = { id: sandbox.id, kind: 'service', name, reason: 'service' } as const;
    events.refuse(refusal, sandbox.events, { protocol: 'tcp', ...from });
  }

  #fail(response: ServerResponse, error: unknown): void {
    // A client that goes breaks its own pipeline.
    if (response.destroyed || response.headersSent) {
      response.destroy();
      return;
    }
    if (PlatformError.is(error) && error.code !== 'internal') {
      this.#logger.debug('service.failed', { outcome: error.code, error });
      answer(response, 502, error.message);
      return;
    }
    this.#logger.error('service.fault', { error });
    answer(response, 500, 'a fault of the platform');
  }
}

interface Asked {
  readonly request: IncomingMessage;
  readonly from: Peer;
}

/** Of a connection that was not taken here. */
const NOBODY: Peer = { address: '', port: 0 };

interface Work {
  readonly handling: Handling;
  readonly service: OpenService;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly target: RequestTarget;
  readonly signal: AbortSignal;
}

/** The service that a `Host` header names, with or without a port. */
function serviceOf(host: string | undefined, zone: string): string | undefined {
  const name = host
    ?.toLowerCase()
    .replace(/:[0-9]{1,5}$/, '')
    .replace(/\.$/, '');
  return name?.endsWith(`.${zone}`) === true ? name.slice(0, -zone.length - 1) : undefined;
}

function answer(response: ServerResponse, status: number, text: string): void {
  // What of the request has not been read would have to be, before the next one on this connection.
  response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', connection: 'close' });
  response.end(`${text}\n`);
}
