/** HTTP to a port inside a sandbox, plain and upgraded, streamed both ways. What answers is hostile: its answers are parsed, never passed on raw. */
import { request as httpRequest, type ClientRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { PlatformError } from '@dsec/contract';
import { answerEarly } from '../http/body.ts';
import { asPlatformError, errorBody, rawErrorResponse, REQUEST_ID_HEADER } from '../http/error-reply.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { admit, forwardedHeaders, type Admitted } from './port-access.ts';
import { requirePort, type PortAddress } from './port-address.ts';
import { WireDuplex } from './wire-duplex.ts';

/** Framing is made anew on each side. */
const FRAMING: ReadonlySet<string> = new Set(['transfer-encoding']);
/** Largest head of an answer from inside. */
const MAX_HEAD_BYTES = 65_536;
/** Most informational answers (1xx) before the one that counts: each is work for this process, and next to none for the service. */
const MAX_INFORMATIONAL = 64;

export interface PortRequest {
  readonly request: IncomingMessage;
  readonly address: PortAddress;
  readonly requestId: string;
}

/** What a request came to, for the log. */
export interface PortOutcome {
  readonly status: number;
  readonly error?: PlatformError;
  readonly keyId?: string | undefined;
}

const noAnswer = (cause: Error): PlatformError =>
  new PlatformError('port_not_http', 'the service on this port did not answer with HTTP', { cause });

/** Opens the port and asks. */
async function ask(
  services: Services,
  { request, address }: PortRequest,
  upgrade: string | undefined,
): Promise<{ outgoing: ClientRequest; admitted: Admitted }> {
  const admitted = admit(services, request, address);
  const stream = await services.edge.open('port.connect', {
    sandboxId: sandboxIdOf(services, address.sandboxId),
    port: requirePort(address.port),
  });
  const headers = [...admitted.headers];
  if (upgrade !== undefined) headers.push('Connection', 'Upgrade', 'Upgrade', upgrade);
  const outgoing = httpRequest({
    createConnection: () => new WireDuplex(stream),
    method: request.method ?? 'GET',
    path: admitted.target,
    headers,
    setHost: false,
    maxHeaderSize: MAX_HEAD_BYTES,
    insecureHTTPParser: false,
  });
  return { outgoing, admitted };
}

/** Answers a plain request. Resolves when it is over. */
export async function proxyRequest(
  services: Services,
  asked: PortRequest,
  response: ServerResponse,
): Promise<PortOutcome> {
  let keyId: string | undefined;
  try {
    const { outgoing, admitted } = await ask(services, asked, undefined);
    ({ keyId } = admitted);
    const onClose = (): void => void outgoing.destroy();
    if (response.closed) onClose();
    else response.once('close', onClose);
    const answer = await answerOf(outgoing, asked.request);
    writeHead(response, answer);
    // The head of an event stream goes out before its first event.
    response.flushHeaders();
    await pipeline(answer, response);
    return { status: response.statusCode, keyId };
  } catch (thrown) {
    const error = asPlatformError(thrown);
    if (response.headersSent) response.destroy();
    else sendError(services, asked, response, error);
    return { status: error.status, error, keyId };
  }
}

function writeHead(response: ServerResponse, answer: IncomingMessage): void {
  try {
    response.writeHead(answer.statusCode ?? 502, answer.statusMessage, [
      ...forwardedHeaders(answer.rawHeaders, FRAMING),
    ]);
  } catch (cause) {
    throw noAnswer(cause as Error);
  }
}

function sendError(
  services: Services,
  { request, requestId }: PortRequest,
  response: ServerResponse,
  error: PlatformError,
): void {
  const headers = { 'content-type': 'application/json; charset=utf-8', [REQUEST_ID_HEADER]: requestId };
  answerEarly(
    request,
    response,
    services.clock,
    { status: error.status, headers },
    JSON.stringify(errorBody(error, requestId)),
  );
}

/** Gives up on a service that sends informational answers instead of one. */
function boundInformational(outgoing: ClientRequest, reject: (error: PlatformError) => void): void {
  let count = 0;
  outgoing.on('information', () => {
    count++;
    if (count <= MAX_INFORMATIONAL) return;
    const error = noAnswer(new Error(`it sent more than ${MAX_INFORMATIONAL} informational answers`));
    reject(error);
    outgoing.destroy(error);
  });
}

/** Sends the body and waits for the head of the answer, whichever comes first. */
function answerOf(outgoing: ClientRequest, request: IncomingMessage): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    boundInformational(outgoing, reject);
    outgoing.once('response', resolve);
    outgoing.once('upgrade', (_answer, socket) => {
      socket.destroy();
      reject(noAnswer(new Error('it changed the protocol without being asked')));
    });
    outgoing.on('error', (error) => reject(PlatformError.is(error) ? error : noAnswer(error)));
    request.on('error', (error) => outgoing.destroy(error));
    request.pipe(outgoing);
  });
}

/** Answers a request to change the protocol. Resolves when the connection is over. */
export async function proxyUpgrade(
  services: Services,
  asked: PortRequest,
  socket: Duplex,
  head: Buffer,
): Promise<PortOutcome> {
  const { request, requestId } = asked;
  let keyId: string | undefined;
  try {
    const { outgoing, admitted } = await ask(services, asked, request.headers.upgrade ?? 'websocket');
    ({ keyId } = admitted);
    socket.once('close', () => outgoing.destroy());
    outgoing.end();
    const changed = await changeOf(outgoing);
    if (changed.inside === undefined) return { ...(await passAnswer(changed.answer, socket)), keyId };
    socket.write(
      headOf(changed.answer, ['Connection', 'Upgrade', 'Upgrade', changed.answer.headers.upgrade ?? 'websocket']),
      'latin1',
    );
    if (changed.head.length > 0) socket.write(changed.head);
    if (head.length > 0) changed.inside.write(head);
    await join(socket, changed.inside);
    return { status: 101, keyId };
  } catch (thrown) {
    const error = asPlatformError(thrown);
    if (socket.writable) socket.end(rawErrorResponse(error, requestId, 'Failed'));
    return { status: error.status, error, keyId };
  }
}

interface Change {
  readonly answer: IncomingMessage;
  /** Undefined: it refused and answered plainly. */
  readonly inside: Duplex | undefined;
  readonly head: Buffer;
}

function changeOf(outgoing: ClientRequest): Promise<Change> {
  return new Promise((resolve, reject) => {
    boundInformational(outgoing, reject);
    outgoing.once('upgrade', (answer, inside, head) => resolve({ answer, inside, head }));
    outgoing.once('response', (answer) => resolve({ answer, inside: undefined, head: Buffer.alloc(0) }));
    outgoing.on('error', (error) => reject(PlatformError.is(error) ? error : noAnswer(error)));
  });
}

/** To be written as latin1, as which Node reads the bytes of a head. */
function headOf(answer: IncomingMessage, connection: readonly string[]): string {
  const headers = [...forwardedHeaders(answer.rawHeaders, FRAMING), ...connection];
  const lines = [
    `HTTP/1.1 ${answer.statusCode ?? 502} ${(answer.statusMessage ?? '').replaceAll(/[^\t\x20-\x7e]/g, '')}`,
  ];
  for (let at = 0; at + 1 < headers.length; at += 2) lines.push(`${headers[at] ?? ''}: ${headers[at + 1] ?? ''}`);
  return `${lines.join('\r\n')}\r\n\r\n`;
}

/** A plain answer to a request to change the protocol ends the connection: what follows on it must never reach the service. */
async function passAnswer(answer: IncomingMessage, socket: Duplex): Promise<PortOutcome> {
  socket.write(headOf(answer, ['Connection', 'close']), 'latin1');
  await pipeline(answer, socket);
  return { status: answer.statusCode ?? 502 };
}

/** Passes bytes both ways until both sides have ended or one is gone. */
async function join(outside: Duplex, inside: Duplex): Promise<void> {
  try {
    await Promise.all([pipeline(outside, inside, { end: true }), pipeline(inside, outside, { end: true })]);
  } catch {
    // Either side may break off a connection at any time; that ends both.
  } finally {
    outside.destroy();
    inside.destroy();
  }
}
