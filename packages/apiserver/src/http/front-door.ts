/**
 * The HTTP server: requests to ports of sandboxes and changes of protocol go their own way, everything else to the routes. Whatever arrives that is
 * no HTTP is answered, too, in the form of every failure.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { operationOf, portOperation, type Operation } from '../audit/operations.ts';
import { portAddressOf, type PortAddress } from '../ports/port-address.ts';
import { COMMAND_CONNECTION_ROUTE, serveCommands } from '../execs/command-connection.ts';
import { proxyRequest, proxyUpgrade, type PortOutcome } from '../ports/port-proxy.ts';
import type { Services } from '../services.ts';
import { logRequest } from './access-log.ts';
import { rawErrorResponse } from './error-reply.ts';
import { newRequestId, requestIdOf } from './request-id.ts';
import { EXEC_SOCKET_ROUTE, followBySocket, newSocketServer } from './upgrade-router.ts';

/** Longer than the idle time of common load balancers, so that the one who reuses a connection is never the loser of a race. */
const KEEP_ALIVE_MS = 90_000;
const HEADERS_MS = 60_000;
/** Time that a client whose request is no HTTP has to take the answer. */
const LINGER_MS = 500;
const PORT_ROUTE = '/v1/sandboxes/:id/ports/:port/*';
const socketOperation = operationOf('GET', EXEC_SOCKET_ROUTE);
const connectionOperation = operationOf('GET', COMMAND_CONNECTION_ROUTE);

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

export interface FrontDoor {
  readonly server: Server;
  /** Answers what is no HTTP. */
  refuse(cause: NodeJS.ErrnoException, socket: Duplex): void;
  /** Breaks the connections that have left HTTP, which the server no longer knows. */
  destroyUpgraded(): void;
}

export function createFrontDoor(services: Services, routes: Handler): FrontDoor {
  const { clock, logger, random, audit } = services;
  const upgraded = new Set<Duplex>();
  const sockets = newSocketServer();
  const server = createServer(
    {
      keepAliveTimeout: KEEP_ALIVE_MS,
      headersTimeout: HEADERS_MS,
      // An upload may take as long as it takes.
      requestTimeout: 0,
      noDelay: true,
    },
    (request, response) => {
      const address = portAddressOf(request);
      if (address === undefined) {
        routes(request, response);
        return;
      }
      const requestId = requestIdOf(request, random);
      const log = logOf(request, address, requestId);
      void proxyRequest(services, { request, address, requestId }, response).then(log);
    },
  );

  const logOf = (
    request: IncomingMessage,
    asked: PortAddress | Operation,
    requestId: string,
  ): ((outcome: PortOutcome) => void) => {
    const startedMs = clock.monotonicMs();
    const isOfPort = 'port' in asked;
    const operation = isOfPort ? portOperation(request.method ?? '', PORT_ROUTE) : asked;
    const { route } = operation;
    const sandboxId = isOfPort ? asked.sandboxId : undefined;
    const params = isOfPort ? { id: asked.sandboxId, port: String(asked.port) } : {};
    const audited = audit.begin(operation, request, requestId, params);
    return ({ status, error, keyId }) => {
      audit.end(audited, { status, error });
      const durationMs = clock.monotonicMs() - startedMs;
      logRequest(logger, {
        requestId,
        method: request.method ?? '',
        route,
        status,
        durationMs,
        keyId,
        sandboxId,
        error,
      });
    };
  };

  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    upgraded.add(socket);
    socket.once('close', () => upgraded.delete(socket));
    // Whoever works with it sees its close.
    socket.on('error', () => undefined);
    const requestId = requestIdOf(request, random);
    const address = portAddressOf(request);
    if (address !== undefined) {
      const log = logOf(request, address, requestId);
      void proxyUpgrade(services, { request, address, requestId }, socket, head).then(log);
    } else if (request.url === COMMAND_CONNECTION_ROUTE) {
      const log = logOf(request, connectionOperation, requestId);
      void serveCommands(services, request, socket, head, requestId).then(log);
    } else {
      const log = logOf(request, socketOperation, requestId);
      void followBySocket(services, sockets, request, socket, head, requestId).then(log);
    }
  });
  server.on('connect', (request: IncomingMessage, socket: Duplex) => {
    socket.on('error', () => undefined);
    const error = new PlatformError('method_not_allowed', 'this server is no forward proxy');
    socket.end(rawErrorResponse(error, requestIdOf(request, random), 'Method Not Allowed'));
  });
  return {
    server,
    refuse: (cause, socket) => refuse(services, cause, socket),
    destroyUpgraded: () => {
      for (const socket of upgraded) socket.destroy();
    },
  };
}

function refuse({ random, clock }: Services, cause: NodeJS.ErrnoException, socket: Duplex): void {
  // What comes after the fault is a fault, too; the answer to the first stands.
  if (socket.writableEnded) return;
  if (cause.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const error =
    cause.code === 'HPE_HEADER_OVERFLOW'
      ? new PlatformError('request_too_large', 'the headers of the request are larger than they may be')
      : new PlatformError('invalid_argument', 'this is not a well-formed HTTP request');
  socket.end(rawErrorResponse(error, newRequestId(random), 'Bad Request'));
  // A connection that is closed with something unread is reset, and the answer lost: the client may close it first.
  socket.resume();
  const timer = clock.setTimer(LINGER_MS, () => socket.destroy());
  socket.once('close', () => timer.cancel());
}
