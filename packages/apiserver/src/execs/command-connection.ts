/**
 * Commands of one client over one connection, which has changed from HTTP to the wire protocol (docs/wire.md, "Clients"). A command is a stream:
 * what it says passes from the edge to the client as it is, so that a small one costs a fraction of an HTTP exchange.
 */
import { Socket } from 'node:net';
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { COMMAND_CONNECTION_PATH, COMMAND_CONNECTION_UPGRADE, CommandStartSchema, PlatformError } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import {
  relay,
  serve,
  type JsonObject,
  type RelayOutcome,
  type WireServerStream,
  type WireStream,
} from '@dsec/native-link';
import { operationOf } from '../audit/operations.ts';
import { noteSubject, principalOf, type Audited, type AuditedRequest } from '../audit/request-audit.ts';
import { logRequest } from '../http/access-log.ts';
import { authenticate, KEY_HEADER } from '../http/authentication.ts';
import { asPlatformError, rawErrorResponse } from '../http/error-reply.ts';
import { newRequestId } from '../http/request-id.ts';
import type { PortOutcome } from '../ports/port-proxy.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { execIdentity, execStart } from './exec-request.ts';

export const COMMAND_CONNECTION_ROUTE = `/v1${COMMAND_CONNECTION_PATH}`;
/** That of the route that does the same for one command: the logs name both so. */
const operation = operationOf('POST', '/v1/sandboxes/:id/execs');
const METHOD = 'exec.start';
/** Silence after which the system asks whether the client is still there. */
const PROBE_MS = 60_000;
const SWITCHED = `HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: ${COMMAND_CONNECTION_UPGRADE}\r\n\r\n`;
const parser = compileSchema(CommandStartSchema);

/** Answers a request to change the protocol, and then its commands. Resolves when the connection is over. */
export async function serveCommands(
  services: Services,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  requestId: string,
): Promise<PortOutcome> {
  const { headers } = request;
  let keyId: string | undefined;
  try {
    ({ keyId } = authenticate(services.keys, request, 'write'));
    if (headers.upgrade?.toLowerCase() !== COMMAND_CONNECTION_UPGRADE) {
      throw new PlatformError('invalid_argument', `this route changes to ${COMMAND_CONNECTION_UPGRADE} only`, {
        details: { field: 'Upgrade' },
      });
    }
  } catch (thrown) {
    const error = asPlatformError(thrown);
    if (socket.writable) socket.end(rawErrorResponse(error, requestId, 'Failed'));
    return { status: error.status, error, keyId };
  }
  if (socket instanceof Socket) {
    socket.setTimeout(0);
    // A client that vanished says nothing, and would be waited for without end.
    socket.setKeepAlive(true, PROBE_MS);
  }
  if (head.length > 0) socket.unshift(head);
  socket.write(SWITCHED);
  const connection = serve(
    socket,
    (method, params, stream) => {
      if (method !== METHOD)
        throw new PlatformError('unknown_method', 'clients have no such method', { details: { method } });
      start(services, request, params, stream);
    },
    {
      role: 'apiserver',
      clock: services.clock,
      onFault: (fault, method) => services.logger.error('command.fault', { method, error: fault }),
    },
  );
  await connection.closed;
  return { status: 101, keyId };
}

/** Starts one command, and joins it with its client. Takes the stream over: it is answered here, whatever happens. */
function start(services: Services, request: IncomingMessage, params: JsonObject, near: WireServerStream): void {
  const call = new Call(services, request, params, near);
  try {
    // Each time, since a key may have been revoked.
    const principal = authenticate(services.keys, call.asked, 'write');
    const { sandboxId: id, idempotencyKey, exec } = parser.parse(params);
    const sandboxId = sandboxIdOf(services, id);
    if (exec.detach !== undefined || exec.stdinBase64 !== undefined) {
      throw new PlatformError('invalid_argument', 'a command over a connection of many has no `detach` and no input', {
        details: { field: 'exec' },
      });
    }
    const identity = execIdentity(services, principal, sandboxId, idempotencyKey, exec);
    call.note(sandboxId, identity.execId, exec.sessionId);
    const far = services.edge.open(METHOD, execStart(exec, identity).params);
    if (far instanceof Promise) {
      far.then(
        (opened) => call.join(opened),
        (error: unknown) => call.refuse(error),
      );
    } else {
      call.join(far);
    }
  } catch (error) {
    call.refuse(error);
  }
}

/** One command, until its lines in the logs. */
class Call {
  /** As the route would have it of a request of its own. */
  readonly asked: AuditedRequest;
  readonly #services: Services;
  readonly #near: WireServerStream;
  readonly #exec: unknown;
  readonly #requestId: string;
  readonly #audited: Audited;
  #sandboxId: string | undefined;

  constructor(services: Services, request: IncomingMessage, params: JsonObject, near: WireServerStream) {
    const { authorization, [KEY_HEADER]: key } = request.headers;
    const { idempotencyKey, exec } = params;
    this.asked = {
      headers: {
        authorization,
        [KEY_HEADER]: key,
        ...(typeof idempotencyKey === 'string' ? { 'idempotency-key': idempotencyKey } : {}),
      },
      socket: request.socket,
    };
    this.#services = services;
    this.#near = near;
    this.#exec = exec;
    this.#requestId = newRequestId(services.random);
    this.#audited = services.audit.begin(operation, this.asked, this.#requestId, {});
  }

  note(sandboxId: string, execId: string, sessionId: string | undefined): void {
    this.#sandboxId = sandboxId;
    noteSubject(this.asked, { sandboxId, execId, ...(sessionId === undefined ? {} : { sessionId }) });
  }

  join(far: WireStream): void {
    void relay(this.#near, far, { onClose: (outcome) => this.#over(outcome) });
  }

  refuse(thrown: unknown): void {
    const error = asPlatformError(thrown);
    this.#log(error, false);
    this.#near.fail(error);
  }

  #over(outcome: RelayOutcome): void {
    if (outcome.end === 'lost') {
      this.#log(outcome.error, false);
    } else if (outcome.end === 'closed' && outcome.code !== undefined) {
      this.#log(PlatformError.fromWire({ code: outcome.code, message: 'as the edge said', details: {} }), false);
    } else {
      this.#log(undefined, outcome.end === 'reset');
    }
  }

  #log(error: PlatformError | undefined, isBroken: boolean): void {
    const { audit, clock, logger } = this.#services;
    const status = error?.status ?? 200;
    audit.end(this.#audited, { status, error, isBroken, body: this.#exec });
    logRequest(logger, {
      requestId: this.#requestId,
      method: operation.method,
      route: operation.route,
      status,
      durationMs: clock.monotonicMs() - this.#audited.startedMs,
      keyId: principalOf(this.asked)?.keyId,
      sandboxId: this.#sandboxId,
      error,
    });
  }
}
