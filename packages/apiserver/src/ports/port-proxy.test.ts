import { connect, createServer as createTcpServer, type Socket } from 'node:net';
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
  type Server,
} from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { ManualClock } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import WebSocket, { WebSocketServer } from 'ws';
import { ADMIN_KEY, Fixture, newSandboxId } from '../apiserver.fixture.ts';

let fixture: Fixture;
let clock: ManualClock;
const cleanups: (() => Promise<unknown> | void)[] = [];
beforeEach(async () => {
  clock = new ManualClock();
  fixture = await Fixture.start({ clock });
});
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
  await fixture[Symbol.asyncDispose]();
});

/** Connects `port.connect` of the edge with a TCP port of this machine, as aether does inside. */
function servePort(port: number): void {
  fixture.edge.on('port.connect', async (_params, stream) => {
    const socket = connect({ host: '127.0.0.1', port, allowHalfOpen: true });
    stream.signal.addEventListener('abort', () => socket.destroy());
    try {
      await new Promise((resolve, reject) => socket.once('connect', resolve).once('error', reject));
    } catch (cause) {
      throw new PlatformError('port_closed', 'nothing listens', { details: { port }, cause });
    }
    const inward = (async () => {
      for await (const item of stream) {
        if (item.type === 'data') socket.write(item.bytes);
        else socket.end();
      }
    })().catch(() => undefined);
    try {
      for await (const chunk of socket as AsyncIterable<Buffer>) await stream.write(chunk);
      stream.end();
      await inward;
    } catch {
      // Either side may break off.
    }
    return {};
  });
}

/** A service inside; returns its port. */
async function service(listener: RequestListener): Promise<Server> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanups.push(
    () =>
      new Promise((resolve) => {
        server.close(resolve);
        server.closeAllConnections();
      }),
  );
  servePort((server.address() as AddressInfo).port);
  return server;
}

/** A service that answers with these bytes, whatever it is asked. */
async function rawService(answer: string, encoding: BufferEncoding = 'utf8'): Promise<void> {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('data', () => socket.end(answer, encoding));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanups.push(
    () =>
      new Promise((resolve) => {
        server.close(resolve);
        for (const socket of sockets) socket.destroy();
      }),
  );
  servePort((server.address() as AddressInfo).port);
}

const base = (port = 8080): string => `/sandboxes/${fixture.sandboxId}/ports/${port}`;

interface Seen {
  readonly method: string | undefined;
  readonly url: string | undefined;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: string;
}

/** A service that tells what it saw. */
const mirror: RequestListener = (request: IncomingMessage, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    response.setHeader('x-service', 'yes');
    response.setHeader('set-cookie', ['a=1', 'b=2']);
    response.statusCode = 418;
    response.end(
      JSON.stringify({
        method: request.method,
        url: request.url,
        headers: request.headers,
        body: Buffer.concat(chunks).toString(),
      } satisfies Seen),
    );
  });
};

describe('a request to a port', () => {
  test('reaches the service as it was sent, without the key', async () => {
    await service(mirror);
    const answer = await fixture.ask('PUT', `${base()}/a%20b/../c?x=1&y=%2F`, {
      body: Buffer.from('hello'),
      headers: { 'x-custom': 'é', accept: 'text/html', connection: 'x-hop', 'x-hop': 'gone' },
    });
    expect(answer.status).toBe(418);
    expect(answer.headers).toMatchObject({ 'x-service': 'yes', 'set-cookie': ['a=1', 'b=2'] });
    const { method, url, headers, body } = answer.json<Seen>();
    expect([method, url, body]).toEqual(['PUT', '/a%20b/../c?x=1&y=%2F', 'hello']);
    expect(headers).toMatchObject({
      'x-custom': 'é',
      accept: 'text/html',
      host: `127.0.0.1:${fixture.port}`,
      'content-length': '5',
    });
    expect(headers).not.toHaveProperty('authorization');
    expect(headers).not.toHaveProperty('x-hop');
    expect(fixture.edge.last('port.connect')).toEqual({ sandboxId: fixture.sandboxId, port: 8080 });
  });

  test.each([
    ['', '/'],
    ['/', '/'],
    ['?a=1', '/?a=1'],
    ['/token/x', '/token/x'],
    ['//x', '//x'],
  ])('with the path %j asks for %j', async (path, url) => {
    await service(mirror);
    expect((await fixture.ask('GET', `${base()}${path}`)).json<Seen>().url).toBe(url);
  });

  test.each(['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS', 'PROPFIND'])('may use %s', async (method) => {
    let seen: string | undefined;
    await service((request, response) => {
      seen = request.method;
      response.end('x');
    });
    const answer = await fixture.ask(method, `${base()}/`);
    expect([answer.status, answer.text, seen]).toEqual([200, method === 'HEAD' ? '' : 'x', method]);
  });

  test('may come by its Host, and then keeps that', async () => {
    await service(mirror);
    const host = `8080-${fixture.sandboxId}.example.org`;
    const answer = await fixture.ask('GET', '!/v1/keys?x=1', { headers: { host } });
    expect(answer.json<Seen>()).toMatchObject({ url: '/v1/keys?x=1', headers: { host } });
    expect(fixture.edge.last('port.connect')).toEqual({ sandboxId: fixture.sandboxId, port: 8080 });
  });

  test('streams both ways, an event stream event by event', async () => {
    const release = Promise.withResolvers<undefined>();
    await service((request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.flushHeaders();
      request.on('data', (chunk: Buffer) => response.write(`data: ${chunk.toString()}\n\n`));
      void release.promise.then(() => response.end());
    });
    const body = new Readable({ read: () => undefined });
    let text = '';
    const ended = new Promise<void>((resolve, reject) => {
      const outgoing = httpRequest(
        {
          host: '127.0.0.1',
          port: fixture.port,
          path: `/v1${base()}/`,
          method: 'POST',
          headers: { authorization: `Bearer ${ADMIN_KEY}` },
        },
        (response) => {
          response.on('data', (chunk: Buffer) => (text += chunk.toString()));
          response.on('end', resolve);
        },
      );
      outgoing.on('error', reject);
      body.pipe(outgoing);
    });
    body.push('1');
    await expect.poll(() => text).toBe('data: 1\n\n');
    body.push('2');
    await expect.poll(() => text).toBe('data: 1\n\ndata: 2\n\n');
    body.push(null);
    release.resolve(undefined);
    await ended;
  });

  test('carries large bodies whole', async () => {
    await service((request, response) => void request.pipe(response));
    const bytes = Buffer.alloc(20_000_000, 'abcdefg');
    const answer = await fixture.ask('POST', `${base()}/`, { body: bytes });
    expect(answer.body.equals(bytes)).toBe(true);
  });

  test('ends inside when its client goes away', async () => {
    let isClosed = false;
    await service((request) => {
      request.socket.on('close', () => (isClosed = true));
    });
    const controller = new AbortController();
    const asking = fixture.ask('GET', `${base()}/`, { signal: controller.signal }).catch(() => undefined);
    await expect.poll(() => fixture.edge.calls.length).toBe(1);
    controller.abort();
    await asking;
    await expect.poll(() => isClosed).toBe(true);
  });

  test('says clearly that nothing listens', async () => {
    fixture.edge.on('port.connect', () =>
      Promise.reject(new PlatformError('port_closed', 'nothing listens', { details: { port: 8080 } })),
    );
    const answer = await fixture.ask('POST', `${base()}/`, { body: Buffer.alloc(1_000_000) });
    expect([answer.status, answer.error.code, answer.error.retryable]).toEqual([502, 'port_closed', true]);
    expect(answer.headers['x-request-id']).toBe(answer.error.requestId);
  });

  test.each([
    ['no HTTP', 'SSH-2.0-OpenSSH_9.2\r\n'],
    ['nothing', ''],
    ['a cut head', 'HTTP/1.1 200 OK\r\nx: y'],
    ['two lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n'],
    [
      'a change of protocol that nobody asked for',
      'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nxxxx',
    ],
    [
      'a long row of informational answers',
      `${'HTTP/1.1 103 Early Hints\r\n\r\n'.repeat(1000)}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n`,
    ],
    ['a head that is too large', `HTTP/1.1 200 OK\r\nx: ${'y'.repeat(100_000)}\r\n\r\n`],
  ])('is 502 when the service answers with %s', async (_name, bytes) => {
    await rawService(bytes);
    const answer = await fixture.ask('GET', `${base()}/`);
    expect([answer.status, answer.error.code, answer.error.infrastructure]).toEqual([502, 'port_not_http', false]);
  });

  test('breaks off when the service does in the middle of its answer', async () => {
    await rawService('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc');
    await expect(fixture.ask('GET', `${base()}/`)).rejects.toMatchObject({ code: 'ECONNRESET' });
  });

  test.each([
    ['0', 400, 'invalid_argument'],
    ['65536', 400, 'invalid_argument'],
    ['99999', 400, 'invalid_argument'],
    ['http', 404, 'not_found'],
  ])('to port %s is refused', async (port, status, code) => {
    const answer = await fixture.ask('GET', `/sandboxes/${fixture.sandboxId}/ports/${port}/`);
    expect([answer.status, answer.error.code]).toEqual([status, code]);
  });

  test('to a forged id is refused', async () => {
    const answer = await fixture.ask('GET', '/sandboxes/s0000000000000000aaaa/ports/80/');
    expect(answer.error.code).toBe('invalid_id');
  });
});

describe('access to a port', () => {
  const tokenOf = async (port = 8080, json?: object): Promise<string> => {
    const answer = await fixture.ask('POST', `${base(port)}/token`, json === undefined ? {} : { json });
    expect(answer.status).toBe(200);
    return answer.json<{ token: string }>().token;
  };

  test('needs a key or a token', async () => {
    await service(mirror);
    const answer = await fixture.ask('GET', `${base()}/`, { key: null });
    expect([answer.status, answer.error.code]).toEqual([401, 'unauthenticated']);
    expect((await fixture.ask('GET', `${base()}/`, { key: 'dsec_nope' })).error.code).toBe('unauthenticated');
    expect(fixture.edge.calls).toEqual([]);
  });

  test('by a token leaves the Authorization of the service alone, and the token outside', async () => {
    await service(mirror);
    const token = await tokenOf();
    const byHeader = await fixture.ask('GET', `${base()}/x?a=1`, {
      key: null,
      headers: { 'x-dsec-port-token': token, authorization: 'Basic abc' },
    });
    expect(byHeader.json<Seen>()).toMatchObject({ url: '/x?a=1', headers: { authorization: 'Basic abc' } });
    const byQuery = await fixture.ask('GET', `${base()}/x?a=1&dsec_token=${token}&b=%2f+`, { key: null });
    expect(byQuery.json<Seen>().url).toBe('/x?a=1&b=%2f+');
    expect((await fixture.ask('GET', `${base()}/?dsec_token=${token}`, { key: null })).json<Seen>().url).toBe('/');
    expect(byHeader.text + byQuery.text).not.toContain(token);
  });

  test('never passes a key of ours on, wherever it stands', async () => {
    await service(mirror);
    const token = await tokenOf();
    for (const ask of [
      { headers: { 'x-dsec-port-token': token } },
      { headers: { 'x-api-key': ADMIN_KEY, authorization: 'Bearer other' }, key: null },
      { headers: { 'x-api-key': ADMIN_KEY, authorization: `Bearer ${ADMIN_KEY}` }, key: null },
      { headers: { 'x-api-key': ADMIN_KEY, Authorization: ['Basic abc', `bearer ${ADMIN_KEY}`] }, key: null },
      { headers: { 'x-dsec-port-token': token, 'x-api-key': ADMIN_KEY } },
    ]) {
      const answer = await fixture.ask('GET', `${base()}/`, ask);
      expect(answer.status).toBe(418);
      expect(answer.text).not.toContain(ADMIN_KEY);
      expect(answer.text).not.toContain(token);
    }
  });

  test('by a token is for that port of that sandbox only, until it expires', async () => {
    await service(mirror);
    const token = await tokenOf(8080, { expiresInSeconds: 10 });
    const ask = async (path: string): Promise<number> =>
      (await fixture.ask('GET', path, { key: null, headers: { 'x-dsec-port-token': token } })).status;
    expect(await ask(`${base(8080)}/`)).toBe(418);
    expect(await ask(`${base(8081)}/`)).toBe(401);
    expect(await ask(`/sandboxes/${newSandboxId()}/ports/8080/`)).toBe(401);
    expect(await ask('/sandboxes')).toBe(401);
    await clock.advance(10_000);
    expect(await ask(`${base(8080)}/`)).toBe(401);
    for (const altered of ['', 'x', token.replace(/^./, 'z'), `${token}x`]) {
      expect((await fixture.ask('GET', `${base()}/?dsec_token=${altered}`, { key: null })).error.code).toBe(
        'unauthenticated',
      );
    }
    expect((await fixture.ask('POST', `${base(0)}/token`)).error.code).toBe('invalid_argument');
    expect((await fixture.ask('POST', `${base()}/token`, { json: { expiresInSeconds: 0 } })).error.code).toBe(
      'invalid_argument',
    );
  });
});

describe('a WebSocket to a port', () => {
  async function echoService(): Promise<{ readonly requests: IncomingMessage[] }> {
    const requests: IncomingMessage[] = [];
    const server = await service((_request, response) => {
      response.statusCode = 403;
      response.end('plain');
    });
    const sockets = new WebSocketServer({ server, path: '/ws' });
    sockets.on('connection', (socket, request) => {
      requests.push(request);
      socket.on('message', (data, isBinary) => socket.send(data, { binary: isBinary }));
    });
    cleanups.push(() => {
      for (const client of sockets.clients) client.terminate();
    });
    return { requests };
  }

  const open = (path: string, headers: Record<string, string>): WebSocket =>
    new WebSocket(`ws://127.0.0.1:${fixture.port}${path}`, { headers });
  const authorization = { authorization: `Bearer ${ADMIN_KEY}` };

  test('carries messages both ways and sees the same Host as a plain request', async () => {
    const { requests } = await echoService();
    const socket = open(`/v1${base()}/ws?x=1`, authorization);
    const messages: string[] = [];
    socket.on('message', (data: Buffer, isBinary) => messages.push(`${isBinary ? 'binary' : 'text'} ${data.length}`));
    await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject));
    socket.send('hello');
    socket.send(Buffer.alloc(3_000_000));
    await expect.poll(() => messages, { timeout: 5000 }).toEqual(['text 5', 'binary 3000000']);
    expect(requests[0]?.url).toBe('/ws?x=1');
    expect(requests[0]?.headers.host).toBe(`127.0.0.1:${fixture.port}`);
    expect(requests[0]?.headers).not.toHaveProperty('authorization');
    const closed = new Promise((resolve) => socket.once('close', resolve));
    socket.close();
    await closed;
  });

  test('gets the head of the answer byte for byte', async () => {
    await rawService(
      'HTTP/1.1 101 Changed\r\nconnection: upgrade\r\nupgrade: other\r\nx-name: caf\xe9\r\n\r\n',
      'latin1',
    );
    const head = await new Promise<string>((resolve, reject) => {
      const chunks: Buffer[] = [];
      const socket = connect(fixture.port, '127.0.0.1', () => {
        socket.write(
          `GET /v1${base()}/ HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${ADMIN_KEY}\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n`,
        );
      });
      socket.on('data', (chunk) => chunks.push(chunk));
      socket.on('error', reject);
      socket.on('close', () => resolve(Buffer.concat(chunks).toString('latin1')));
    });
    expect(head).toMatch(/^HTTP\/1\.1 101 Changed\r\n/);
    expect(head).toContain('\r\nx-name: caf\xe9\r\n');
  });

  test('may come by its Host and with a token', async () => {
    const { requests } = await echoService();
    const { token } = (await fixture.ask('POST', `${base()}/token`)).json<{ token: string }>();
    const socket = open(`/ws?dsec_token=${token}`, { host: `8080-${fixture.sandboxId}.example.org` });
    await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject));
    expect(requests[0]?.url).toBe('/ws');
    socket.terminate();
  });

  const refusal = (socket: WebSocket): Promise<readonly [number | undefined, string]> =>
    new Promise((resolve) => {
      socket.on('error', () => undefined);
      socket.once('unexpected-response', (_request, response: IncomingMessage) => {
        let text = '';
        response.on('data', (chunk: Buffer) => (text += chunk.toString()));
        response.on('end', () => resolve([response.statusCode, text]));
      });
    });

  test('is refused without a key, and where nothing listens', async () => {
    await echoService();
    const [status, text] = await refusal(open(`/v1${base()}/ws`, {}));
    expect([status, (JSON.parse(text) as { error: { code: string } }).error.code]).toEqual([401, 'unauthenticated']);
    fixture.edge.on('port.connect', () => Promise.reject(new PlatformError('port_closed', 'no')));
    expect((await refusal(open(`/v1${base()}/ws`, authorization)))[0]).toBe(502);
  });

  test('that the service refuses ends the connection after that answer', async () => {
    await echoService();
    const answer = await new Promise<string>((resolve, reject) => {
      let text = '';
      const socket = connect(fixture.port, '127.0.0.1', () => {
        socket.write(
          `GET /v1${base()}/other HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${ADMIN_KEY}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n`,
        );
      });
      socket.on('data', (chunk) => (text += chunk.toString()));
      socket.on('error', reject);
      socket.on('close', () => resolve(text));
    });
    expect(answer).toMatch(/^HTTP\/1.1 \d{3} /);
    expect(answer).toMatch(/^connection: close$/im);
    expect(answer).not.toContain('smuggled');
  });
});
