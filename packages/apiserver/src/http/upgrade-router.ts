/** Requests to change the protocol: to a port of a sandbox, or to follow a command by WebSocket. */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { Type } from 'typebox';
import { WebSocketServer, type WebSocket } from 'ws';
import { noteSubject } from '../audit/request-audit.ts';
import { execStarted } from '../execs/exec-events.ts';
import { joinExecSocket } from '../execs/exec-socket.ts';
import type { PortOutcome } from '../ports/port-proxy.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { authenticate } from './authentication.ts';
import { asPlatformError, rawErrorResponse, REQUEST_ID_HEADER } from './error-reply.ts';
import { defineQuery } from './query.ts';

const MAX_MESSAGE_BYTES = 1024 * 1024;
const execPath = /^\/v1\/sandboxes\/([a-z0-9]{1,24})\/execs\/([a-z0-9]{1,32})\/pty(?:\?(.*))?$/;
const offset = Type.Optional(Type.Integer({ minimum: 0 }));
const parseQuery = defineQuery(
  Type.Object({ stdoutFrom: offset, stderrFrom: offset }, { additionalProperties: false }),
);

export const EXEC_SOCKET_ROUTE = '/v1/sandboxes/:id/execs/:eid/pty';

/** Follows a command by WebSocket. Resolves when the connection is over. */
export async function followBySocket(
  services: Services,
  server: WebSocketServer,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  requestId: string,
): Promise<PortOutcome> {
  let keyId: string | undefined;
  try {
    const [, id, execId, query] = execPath.exec(request.url ?? '') ?? [];
    if (id === undefined || execId === undefined)
      throw new PlatformError('not_found', 'there is no such route for a WebSocket');
    noteSubject(request, { sandboxId: id, execId });
    ({ keyId } = authenticate(services.keys, request, 'write'));
    const sandboxId = sandboxIdOf(services, id);
    if (request.headers.upgrade?.toLowerCase() !== 'websocket') {
      throw new PlatformError('invalid_argument', 'this route changes to the WebSocket protocol only', {
        details: { field: 'Upgrade' },
      });
    }
    const stream = await services.edge.open('exec.attach', { sandboxId, execId, ...parseQuery(query ?? '') });
    socket.once('close', () => stream.reset());
    const started = await execStarted(stream);
    const webSocket = await accept(server, request, socket, head);
    await joinExecSocket(services, webSocket, stream, { sandboxId, execId, started });
    return { status: 101, keyId };
  } catch (thrown) {
    const error = asPlatformError(thrown);
    if (socket.writable) socket.end(rawErrorResponse(error, requestId, 'Failed'));
    return { status: error.status, error, keyId };
  }
}

export function newSocketServer(): WebSocketServer {
  const server = new WebSocketServer({
    noServer: true,
    maxPayload: MAX_MESSAGE_BYTES,
    perMessageDeflate: false,
    clientTracking: false,
  });
  server.on('headers', (headers, request) => {
    const id = request.headers[REQUEST_ID_HEADER];
    if (typeof id === 'string') headers.push(`${REQUEST_ID_HEADER}: ${id}`);
  });
  return server;
}

function accept(server: WebSocketServer, request: IncomingMessage, socket: Duplex, head: Buffer): Promise<WebSocket> {
  return new Promise((resolve, reject) => {
    socket.once('close', () => reject(new PlatformError('cancelled', 'the client is gone')));
    server.handleUpgrade(request, socket, head, resolve);
  });
}
