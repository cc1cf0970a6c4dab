/** Every failure has the form of the contract, whatever the request was. */
import { connect } from 'node:net';
import { Readable } from 'node:stream';
import { errorTable, type ErrorBody } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ADMIN_KEY, Fixture, image, type Ask } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

/** Sends raw bytes and returns the raw answer. */
function raw(text: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(fixture.port, '127.0.0.1', () => socket.write(text));
    let answer = '';
    socket.on('data', (chunk) => (answer += chunk.toString()));
    socket.on('error', reject);
    socket.on('close', () => resolve(answer));
  });
}

const json = 'application/json';
const large = JSON.stringify({ environment: 'a', metadata: { a: 'x'.repeat(10_000_000) } });
const cases: readonly (readonly [string, string, string, Ask, number, string])[] = [
  ['an unknown route', 'GET', '/nope', {}, 404, 'not_found'],
  ['an unknown route outside /v1', 'GET', '!/', {}, 404, 'not_found'],
  ['an unknown route without a key', 'GET', '/nope', { key: null }, 404, 'not_found'],
  ['another method of a route', 'PUT', '/sandboxes', {}, 405, 'method_not_allowed'],
  ['an unusual method', 'PROPFIND', '/sandboxes', {}, 404, 'not_found'],
  ['OPTIONS', 'OPTIONS', '/sandboxes', {}, 405, 'method_not_allowed'],
  ['no key', 'GET', '/sandboxes', { key: null }, 401, 'unauthenticated'],
  ['an unknown key', 'GET', '/sandboxes', { key: 'dsec_nope' }, 401, 'unauthenticated'],
  [
    'another scheme of authorization',
    'GET',
    '/sandboxes',
    { key: null, headers: { authorization: 'Basic eDp5' } },
    401,
    'unauthenticated',
  ],
  [
    'a body of another type',
    'POST',
    '/sandboxes',
    { body: 'a=b', headers: { 'content-type': 'text/plain' } },
    415,
    'unsupported_media_type',
  ],
  [
    'a body of a malformed type',
    'POST',
    '/sandboxes',
    { body: 'a=b', headers: { 'content-type': ';;;' } },
    415,
    'unsupported_media_type',
  ],
  ['a body without a type', 'POST', '/sandboxes', { body: '{}' }, 415, 'unsupported_media_type'],
  ['bad JSON', 'POST', '/sandboxes', { body: '{"a":', headers: { 'content-type': json } }, 400, 'invalid_argument'],
  [
    'JSON that is not UTF-8',
    'POST',
    '/sandboxes',
    { body: Buffer.from([0x22, 0xff, 0x22]), headers: { 'content-type': json } },
    400,
    'invalid_argument',
  ],
  [
    'a body of 10 MB',
    'POST',
    '/sandboxes',
    { body: large, headers: { 'content-type': json } },
    413,
    'request_too_large',
  ],
  [
    'a body of 10 MB of unknown length',
    'POST',
    '/sandboxes',
    { body: Readable.from([large]), headers: { 'content-type': json } },
    413,
    'request_too_large',
  ],
  ['a bad escape in the path', 'GET', '/sandboxes/%E0%A4%A', {}, 400, 'invalid_argument'],
  ['a part of the path that is too long', 'GET', `/environments/${'a'.repeat(2000)}`, {}, 400, 'invalid_argument'],
  ['a name that is none', 'GET', '/environments/..%2f..%2fetc', {}, 400, 'invalid_argument'],
  ['an unknown parameter', 'GET', '/sandboxes?a=b', {}, 400, 'invalid_argument'],
];

describe('a failure', () => {
  test.each(cases)('for %s', async (_name, method, path, ask, status, code) => {
    const answer = await fixture.ask(method, path, ask);
    expect([answer.status, answer.error.code]).toEqual([status, code]);
    expect(answer.headers['content-type']).toBe('application/json; charset=utf-8');
    expect(answer.error.requestId).toMatch(/^[0-9a-z]{16}$/);
    expect(answer.headers['x-request-id']).toBe(answer.error.requestId);
    const { retryable, infrastructure, fix } = errorTable[answer.error.code as keyof typeof errorTable];
    expect(Object.keys(answer.json<object>())).toEqual(['error']);
    expect(answer.error).toMatchObject({
      retryable,
      infrastructure,
      fix,
      message: expect.stringMatching(/^.{1,500}$/) as string,
    });
    expect(answer.text).not.toMatch(/ {4}at |node_modules|\.ts:/);
  });

  test('tells the methods that a route has', async () => {
    const answer = await fixture.ask('PUT', '/sandboxes');
    expect(answer.headers.allow).toBe('GET, POST');
    expect(answer.error.details).toEqual({ allowed: ['GET', 'POST'] });
  });

  test('reaches a client that still sends its body', async () => {
    const size = 8_000_000;
    const socket = connect(fixture.port, '127.0.0.1');
    let answer = '';
    let failure: Error | undefined;
    socket.on('error', (error) => (failure = error));
    const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()));
    const answered = new Promise<void>((resolve) => {
      socket.on('data', (chunk) => {
        answer += chunk.toString();
        if (answer.endsWith('}}')) resolve();
      });
    });
    socket.write(`PUT /v1/nope HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: ${size}\r\n\r\n`);
    await answered;
    // All of it is still taken, and only then the connection closed.
    await new Promise((resolve) => socket.write(Buffer.alloc(size), resolve));
    await closed;
    expect(failure).toBeUndefined();
    expect(answer).toMatch(/^HTTP\/1\.1 404 .*"not_found"/s);
  });

  test('of the platform shows nothing of its cause, and the log shows it', async () => {
    fixture.edge.on('sandbox.list', () => Promise.resolve({ sandboxes: [], cursor: null }));
    const { edge } = fixture.services;
    Object.defineProperty(edge, 'open', {
      value: () => {
        throw new TypeError('secret internals');
      },
    });
    const answer = await fixture.ask('GET', '/sandboxes');
    expect([answer.status, answer.error.code]).toEqual([500, 'internal']);
    expect(answer.text).not.toContain('secret internals');
    expect(JSON.stringify(fixture.logger.records)).toContain('secret internals');
  });

  test.each([
    ['bytes that are no HTTP', 'hello\r\n\r\n', 'invalid_argument'],
    ['a TLS hello', '\x16\x03\x01\x02\x00\x01\x00', 'invalid_argument'],
    [
      'headers that are too large',
      `GET / HTTP/1.1\r\nhost: a\r\nx: ${'y'.repeat(100_000)}\r\n\r\n`,
      'request_too_large',
    ],
    [
      'both lengths, as in request smuggling',
      'POST /v1/keys HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
      'invalid_argument',
    ],
    ['CONNECT', 'CONNECT example.org:80 HTTP/1.1\r\nhost: example.org\r\n\r\n', 'method_not_allowed'],
    [
      'an upgrade of another route',
      'GET /v1/sandboxes HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n',
      'not_found',
    ],
  ])('for %s', async (_name, text, code) => {
    const answer = await raw(text);
    const [head = '', body = ''] = answer.split('\r\n\r\n');
    expect(JSON.parse(body)).toMatchObject({ error: { code } } satisfies { error: Partial<ErrorBody['error']> });
    expect(head).toMatch(new RegExp(`^HTTP/1.1 ${errorTable[code as keyof typeof errorTable].status} `));
    expect(head).toMatch(/^x-request-id: \S+$/m);
  });
});

describe('a request', () => {
  test('keeps the id that its client gave it, when that has a fit form', async () => {
    const given = await fixture.ask('GET', '/nope', { headers: { 'x-request-id': 'my-id.1' } });
    expect([given.headers['x-request-id'], given.error.requestId]).toEqual(['my-id.1', 'my-id.1']);
    const unfit = await fixture.ask('GET', '/nope', { headers: { 'x-request-id': 'my id' } });
    expect(unfit.headers['x-request-id']).toMatch(/^[0-9a-z]{16}$/);
  });

  test('is logged once, with its outcome and without its key', async () => {
    await fixture.services.environments.put({ name: 'a', image });
    await fixture.ask('GET', '/environments/a');
    await fixture.ask('GET', '/environments/b');
    await expect.poll(() => fixture.logger.records.filter(({ event }) => event === 'http.request')).toHaveLength(2);
    const [ok, failed] = fixture.logger.records
      .filter(({ event }) => event === 'http.request')
      .map(({ fields }) => fields);
    expect(ok).toMatchObject({
      method: 'GET',
      route: '/v1/environments/:name',
      status: 200,
      outcome: 'ok',
      keyId: 'admin',
    });
    expect(failed).toMatchObject({ status: 404, outcome: 'environment_not_found' });
    expect(JSON.stringify(fixture.logger.records)).not.toContain(ADMIN_KEY);
  });

  test('may carry its key as X-API-Key', async () => {
    expect((await fixture.ask('GET', '/environments', { key: null, headers: { 'x-api-key': ADMIN_KEY } })).status).toBe(
      200,
    );
  });

  test('of a key that may only read cannot change anything', async () => {
    const { key } = await fixture.services.keys.create({ project: 'default', name: 'r', readOnly: true });
    expect((await fixture.ask('GET', '/environments', { key })).status).toBe(200);
    for (const [method, path] of [
      ['POST', '/sandboxes'],
      ['POST', `/sandboxes/${fixture.sandboxId}/execs`],
      ['PUT', `/sandboxes/${fixture.sandboxId}/files?path=/a`],
      ['DELETE', `/sandboxes/${fixture.sandboxId}`],
      ['DELETE', '/environments/a'],
      ['GET', '/keys'],
      ['GET', `/sandboxes/${fixture.sandboxId}/ports/80/`],
    ] as const) {
      const answer = await fixture.ask(method, path, { key });
      expect([method, path, answer.status, answer.error.code]).toEqual([method, path, 403, 'permission_denied']);
    }
    expect(fixture.edge.calls).toEqual([]);
  });

  test('of a revoked key is refused at once', async () => {
    const { key, info } = await fixture.services.keys.create({ project: 'default', name: 'w', readOnly: false });
    expect((await fixture.ask('GET', '/environments', { key })).status).toBe(200);
    await fixture.services.keys.revoke('default', info.keyId);
    expect((await fixture.ask('GET', '/environments', { key })).error.code).toBe('unauthenticated');
  });

  test('with a refused body leaves its connection usable', async () => {
    const agent = new (await import('node:http')).Agent({ keepAlive: true, maxSockets: 1 });
    const refused = await fixture.ask('POST', '/sandboxes', {
      body: Buffer.alloc(6_000_000, 0x20),
      headers: { 'content-type': json },
      agent,
    });
    expect(refused.error.code).toBe('request_too_large');
    expect((await fixture.ask('GET', '/environments', { agent })).status).toBe(200);
    agent.destroy();
  });
});

test('GET /health needs no key and says whether the edge answers', async () => {
  await expect.poll(async () => (await fixture.ask('GET', '/health', { key: null })).status).toBe(200);
  expect((await fixture.ask('GET', '/health', { key: null })).json()).toMatchObject({
    status: 'ok',
    version: expect.any(String) as string,
  });
  await fixture.edge.stop();
  await expect.poll(async () => (await fixture.ask('GET', '/health', { key: null })).status).toBe(503);
});

describe('keys and environments', () => {
  test('are made, listed and taken away', async () => {
    const made = await fixture.ask('POST', '/keys', { json: { name: 'ci', readOnly: true } });
    expect(made.status).toBe(201);
    const { key, info } = made.json<{ key: string; info: { keyId: string } }>();
    expect((await fixture.ask('GET', '/environments', { key })).status).toBe(200);
    expect((await fixture.ask('GET', '/keys')).json()).toEqual({ keys: [info] });
    const revoked = await fixture.ask('DELETE', `/keys/${info.keyId}`);
    expect([revoked.status, revoked.json<{ revokedAtMs: number }>().revokedAtMs > 0]).toEqual([200, true]);
    expect((await fixture.ask('DELETE', '/keys/none')).error.code).toBe('key_not_found');
    expect((await fixture.ask('POST', '/keys', { json: { name: '\n' } })).error.code).toBe('invalid_argument');
  });

  test('are given names by builders alone: the key of an agent must not change what others stand on', async () => {
    const json = { name: 'e', image };
    const keyOf = async (options: object): Promise<string> =>
      (await fixture.ask('POST', '/keys', { json: { name: 'k', ...options } })).json<{ key: string }>().key;
    const [agent, builder] = [await keyOf({}), await keyOf({ builder: true })];
    const put = await fixture.ask('PUT', '/environments/e', { json, key: agent });
    expect([put.status, put.error.code]).toEqual([403, 'permission_denied']);
    expect((await fixture.ask('PUT', '/environments/e', { json, key: builder })).status).toBe(200);
    expect((await fixture.ask('DELETE', '/environments/e', { key: agent })).error.code).toBe('permission_denied');
    expect((await fixture.ask('DELETE', '/environments/e', { key: builder })).status).toBe(204);
  });

  test('names may have slashes', async () => {
    const name = 'registry.example/debian:12';
    const path = `/environments/${encodeURIComponent(name)}`;
    const put = await fixture.ask('PUT', path, { json: { name, image, description: 'd' } });
    expect([put.status, put.json()]).toEqual([200, expect.objectContaining({ name, image, description: 'd' })]);
    expect((await fixture.ask('GET', path)).json()).toEqual(put.json());
    expect((await fixture.ask('GET', '/environments')).json()).toEqual({ environments: [put.json()], cursor: null });
    expect((await fixture.ask('PUT', path, { json: { name: 'other', image } })).error.code).toBe('invalid_argument');
    expect(
      (await fixture.ask('PUT', path, { json: { name, image: { ...image, layers: ['sha256:x'] } } })).error.details
        .field,
    ).toBe('image.layers.0');
    expect((await fixture.ask('DELETE', path)).status).toBe(204);
    expect((await fixture.ask('DELETE', path)).error.code).toBe('environment_not_found');
  });
});
