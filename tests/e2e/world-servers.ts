/**
 * The servers of a world (`world.ts`): `world-servers.ts CONFIG`, run in its network namespace. A name server for one zone, HTTP on 80, TLS on 443 and 8443, a server that speaks first on 22, echoes of TCP on 7 and of
 * UDP on 443 and 9999. Each thing that happens is a line of JSON on stdout; it ends when its stdin does.
 */
import { createSocket } from 'node:dgram';
import { readFileSync } from 'node:fs';
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import { createServer as createTcpServer, type Socket } from 'node:net';
import { TLSSocket } from 'node:tls';

interface Config {
  /** Name, or `*.name`, → addresses. What is not here does not exist. */
  readonly zone: Readonly<Record<string, readonly string[]>>;
  /** Of IPv4. */
  readonly addresses: readonly string[];
  readonly key: string;
  readonly cert: string;
}

const config = JSON.parse(readFileSync(process.argv[2] ?? '', 'utf8')) as Config;
const tell = (event: object): boolean => process.stdout.write(`${JSON.stringify(event)}\n`);
const HEADER_BYTES = 12;
const TTL_S = 60;
const TYPES = new Map([
  [1, 'A'],
  [28, 'AAAA'],
]);

function addressesOf(name: string): readonly string[] | undefined {
  const wild = Object.keys(config.zone).find((key) => key.startsWith('*.') && name.endsWith(key.slice(1)));
  return config.zone[name] ?? (wild === undefined ? undefined : config.zone[wild]);
}

/** What is answered (RFC 1035 4.1): the one question, and the addresses of its type. */
function answerTo(query: Buffer): Buffer {
  let at = HEADER_BYTES;
  const labels: string[] = [];
  for (let length = query[at] ?? 0; length > 0; length = query[at] ?? 0) {
    labels.push(query.toString('latin1', at + 1, at + 1 + length));
    at += 1 + length;
  }
  const question = query.subarray(HEADER_BYTES, at + 5);
  const type = query.readUInt16BE(at + 1);
  const name = labels.join('.').toLowerCase();
  const known = addressesOf(name);
  tell({ asked: { name, type: TYPES.get(type) ?? String(type) } });
  const fitting = (known ?? []).filter((address) => address.includes(':') === (type === 28) && TYPES.has(type));
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt16BE(query.readUInt16BE(0), 0);
  header.writeUInt16BE(known === undefined ? 0x8583 : 0x8580, 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(fitting.length, 6);
  return Buffer.concat([header, question, ...fitting.map((address) => recordOf(type, bytesOf(address)))]);
}

function recordOf(type: number, data: Buffer): Buffer {
  const record = Buffer.alloc(HEADER_BYTES);
  // The name of the question.
  record.writeUInt16BE(0xc000 | HEADER_BYTES, 0);
  record.writeUInt16BE(type, 2);
  record.writeUInt16BE(1, 4);
  record.writeUInt32BE(TTL_S, 6);
  record.writeUInt16BE(data.length, 10);
  return Buffer.concat([record, data]);
}

function bytesOf(address: string): Buffer {
  if (!address.includes(':')) return Buffer.from(address.split('.').map(Number));
  const [head = '', tail = ''] = address.split('::');
  const words = (text: string): number[] =>
    text === '' ? [] : text.split(':').map((word) => Number.parseInt(word, 16));
  const [before, after] = [words(head), words(tail)];
  const all = [...before, ...Array.from({ length: 8 - before.length - after.length }, () => 0), ...after];
  return Buffer.from(all.flatMap((word) => [word >> 8, word & 255]));
}

function serve(request: IncomingMessage, response: ServerResponse): void {
  let bodyBytes = 0;
  request.on('data', (chunk: Buffer) => (bodyBytes += chunk.length));
  request.on('end', () => {
    const { socket, headers, url } = request;
    const { host, authorization } = headers;
    const seen = { host, authorization, path: url, at: socket.localAddress, from: socket.remoteAddress, bodyBytes };
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(seen));
  });
}

function accepted(socket: Socket): void {
  const serverName = socket instanceof TLSSocket ? socket.servername : undefined;
  tell({ connection: { address: socket.localAddress, port: socket.localPort, serverName } });
  socket.on('error', () => undefined);
}

function echo(socket: Socket): void {
  accepted(socket);
  socket.pipe(socket);
}

/** As SSH begins (RFC 4253 4.2): the server says who it is, without having heard anything; here it then says what it was told. */
function greet(socket: Socket): void {
  accepted(socket);
  socket.write('SSH-2.0-world\r\n');
  socket.once('data', (chunk: Buffer) => socket.end(chunk));
}

const listening: Promise<void>[] = [];
const listen = (server: ReturnType<typeof createTcpServer>, port: number, event = 'connection'): void => {
  server.on(event, accepted);
  listening.push(new Promise((resolve) => server.listen({ host: '::', port }, resolve)));
};
const tls = { key: config.key, cert: config.cert, keepAliveTimeout: 60_000 };
listen(createHttpServer({ keepAliveTimeout: 60_000 }, serve), 80);
for (const port of [443, 8443]) {
  const server = createHttpsServer(tls, serve);
  server.on('tlsClientError', () => undefined);
  listen(server, port);
}
listening.push(new Promise((resolve) => createTcpServer(echo).listen({ host: '::', port: 7 }, resolve)));
listening.push(new Promise((resolve) => createTcpServer(greet).listen({ host: '::', port: 22 }, resolve)));
const answerTcp = (socket: Socket): void => {
  socket.on('error', () => undefined);
  socket.once('data', (chunk: Buffer) => {
    const answer = answerTo(chunk.subarray(2));
    const length = Buffer.alloc(2);
    length.writeUInt16BE(answer.length);
    socket.end(Buffer.concat([length, answer]));
  });
};
listening.push(new Promise((resolve) => createTcpServer(answerTcp).listen({ host: '0.0.0.0', port: 53 }, resolve)));
for (const [port, reply] of [
  [53, answerTo],
  [443, (bytes: Buffer) => bytes],
  [9999, (bytes: Buffer) => bytes],
] as const) {
  // One for each address: answers have to come from where was asked.
  for (const address of config.addresses) {
    const socket = createSocket('udp4');
    socket.on('message', (bytes, from) => {
      if (port !== 53) tell({ datagram: { port, bytes: bytes.length } });
      socket.send(reply(bytes), from.port, from.address);
    });
    listening.push(new Promise((resolve) => socket.bind(port, address, resolve)));
  }
}
await Promise.all(listening);
tell({ ready: true });
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
