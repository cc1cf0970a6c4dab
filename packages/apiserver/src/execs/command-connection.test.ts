import { PlatformError, type AuditPage, type AuditRecord, type ExecStatus } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import { WireClient, type WireStream } from '@dsec/native-link';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ADMIN_KEY, exitedStatus, Fixture } from '../apiserver.fixture.ts';

let fixture: Fixture;
let clients: WireClient[];
beforeEach(async () => {
  fixture = await Fixture.start();
  clients = [];
});
afterEach(async () => {
  await Promise.all(clients.map((client) => client.close()));
  await fixture[Symbol.asyncDispose]();
});

const statusOf = (execId: unknown): ExecStatus => exitedStatus(String(execId));

/** A request to change the protocol; its answer when that is no. */
function upgrade(
  key: string = ADMIN_KEY,
  protocol = 'dsec-wire',
): Promise<{ readonly socket: Duplex } | { readonly status: number | undefined; readonly code: string }> {
  const outgoing = httpRequest({
    host: '127.0.0.1',
    port: fixture.port,
    path: '/v1/wire',
    agent: false,
    headers: { authorization: `Bearer ${key}`, connection: 'upgrade', upgrade: protocol },
  });
  outgoing.end();
  return new Promise((resolve, reject) => {
    outgoing.once('error', reject);
    outgoing.once('upgrade', (_response, socket: Duplex, head: Buffer) => {
      if (head.length > 0) socket.unshift(head);
      resolve({ socket });
    });
    outgoing.once('response', (response: IncomingMessage) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('end', () =>
        resolve({ status: response.statusCode, code: (JSON.parse(text) as { error: { code: string } }).error.code }),
      );
    });
  });
}

async function connect(key?: string): Promise<WireClient> {
  const answer = await upgrade(key);
  if (!('socket' in answer)) throw new Error(`refused: ${answer.code}`);
  const client = WireClient.connect(answer.socket, { role: 'client', clock: new SystemClock() });
  clients.push(client);
  await client.greeted({ timeoutMs: 5000 });
  return client;
}

const start = (client: WireClient, exec: object = { argv: ['true'] }, idempotencyKey = 'k1'): WireStream =>
  client.open('exec.start', { sandboxId: fixture.sandboxId, idempotencyKey, exec });

const errorOf = (stream: WireStream): Promise<unknown> => stream.result.catch((error: unknown) => error);

test('a command says on it what it says to the edge', async () => {
  fixture.edge.on('exec.start', async ({ execId }, stream) => {
    await stream.message({ started: { execId, pid: 7 } });
    await stream.write(Buffer.from('out'), 1);
    await stream.write(Buffer.from('err'), 2);
    await stream.message({ gap: { channel: 1, from: 3, to: 9 } });
    return statusOf(execId);
  });
  const stream = start(await connect(), { argv: ['echo', 'a b'], cwd: '/tmp', timeoutMs: 5, stdin: 'open' });
  const items: unknown[] = [];
  for await (const item of stream) {
    items.push(item.type === 'data' ? [item.channel, item.bytes.toString()] : item.type === 'message' && item.value);
  }
  const { execId } = fixture.edge.last('exec.start') ?? {};
  expect(items).toEqual([
    { started: { execId, pid: 7 } },
    [1, 'out'],
    [2, 'err'],
    { gap: { channel: 1, from: 3, to: 9 } },
  ]);
  expect(await stream.result).toEqual(statusOf(execId));
  expect(fixture.edge.last('exec.start')).toEqual({
    sandboxId: fixture.sandboxId,
    execId,
    fingerprint: expect.any(String) as string,
    argv: ['echo', 'a b'],
    env: {},
    cwd: '/tmp',
    timeoutMs: 5,
    stdin: 'open',
  });
});

test('the same idempotency key names the same command here and on the route', async () => {
  fixture.edge.on('exec.start', async ({ execId }, stream) => {
    await stream.message({ started: { execId, pid: 7 } });
    return statusOf(execId);
  });
  const stream = start(await connect(), { argv: ['true'] }, 'one');
  await stream.result;
  const first = fixture.edge.last('exec.start');
  await fixture.ask('POST', `/sandboxes/${fixture.sandboxId}/execs`, {
    json: { argv: ['true'] },
    headers: { 'idempotency-key': 'one' },
  });
  expect(fixture.edge.last('exec.start')).toEqual(first);
  await start(clients[0] as WireClient, { argv: ['true'] }, 'two').result;
  expect(fixture.edge.last('exec.start')?.execId).not.toBe(first?.execId);
});

test.for([
  ['a wrong key', 'dsec_wrong_key_of_somebody', 'dsec-wire', 401, 'unauthenticated'],
  ['another protocol', ADMIN_KEY, 'websocket', 400, 'invalid_argument'],
] as const)('is not opened with %s', async ([, key, protocol, status, code]) => {
  expect(await upgrade(key, protocol)).toEqual({ status, code });
});

test('is not opened with a key that may only read', async () => {
  const { key } = await fixture.services.keys.create({ name: 'reader', project: 'p', readOnly: true });
  expect(await upgrade(key)).toEqual({ status: 403, code: 'permission_denied' });
});

test('a key that is revoked starts no more commands on a connection that it has opened', async () => {
  const { key, info } = await fixture.services.keys.create({ name: 'writer', project: 'p', readOnly: false });
  fixture.edge.on('exec.start', ({ execId }) => Promise.resolve(statusOf(execId)));
  const client = await connect(key);
  expect(await start(client).result).toMatchObject({ exitCode: 0 });
  await fixture.services.keys.revoke('p', info.keyId);
  expect(await errorOf(start(client))).toMatchObject({ code: 'unauthenticated' });
});

test.for([
  ['an unknown member', { argv: ['true'], more: 1 }, 'exec'],
  ['no command', {}, 'argv'],
  ['a detached command', { argv: ['true'], detach: true }, 'exec'],
  ['input', { argv: ['true'], stdinBase64: 'YQ==' }, 'exec'],
] as const)('%s is refused, and the next command is not', async ([, exec, field]) => {
  fixture.edge.on('exec.start', ({ execId }) => Promise.resolve(statusOf(execId)));
  const client = await connect();
  const error = await errorOf(start(client, exec));
  expect(error).toMatchObject({ code: 'invalid_argument' });
  expect(PlatformError.is(error) && String(error.details.field)).toContain(field);
  expect(await start(client).result).toMatchObject({ exitCode: 0 });
});

test('forged and mistyped ids, and other methods, are refused', async () => {
  const client = await connect();
  const stream = (sandboxId: string): WireStream =>
    client.open('exec.start', { sandboxId, idempotencyKey: 'k', exec: { argv: ['true'] } });
  expect(await errorOf(stream('../x'))).toMatchObject({ code: 'invalid_id' });
  const forged = `${fixture.sandboxId.slice(0, -1)}${fixture.sandboxId.endsWith('a') ? 'b' : 'a'}`;
  expect(await errorOf(stream(forged))).toMatchObject({ code: 'invalid_id' });
  for (const method of ['sandbox.stop', 'exec.attach', 'edge.info', ''])
    expect(await errorOf(client.open(method, {}))).toMatchObject({ code: 'unknown_method' });
  expect(fixture.edge.calls).toEqual([]);
});

test('an error of the edge is the error of the command, and has its line in the log', async () => {
  fixture.edge.on('exec.start', () => {
    throw new PlatformError('command_not_found', 'there is none', { details: { program: 'x' } });
  });
  expect(await errorOf(start(await connect()))).toMatchObject({
    code: 'command_not_found',
    details: { program: 'x' },
  });
  await expect
    .poll(() => fixture.logger.records.find(({ fields }) => fields.route === '/v1/sandboxes/:id/execs')?.fields)
    .toMatchObject({ outcome: 'command_not_found', sandboxId: fixture.sandboxId, keyId: 'admin' });
});

test('each command has its record in the audit log, as on the route; a refused one, too', async () => {
  fixture.edge.on('exec.start', ({ execId }) => Promise.resolve(statusOf(execId)));
  const client = await connect();
  await start(client, { argv: ['curl', 'secret'] }, 'one').result;
  const { execId } = fixture.edge.last('exec.start') ?? {};
  await errorOf(start(client, { argv: ['true'], more: 1 }, 'two'));
  const page = async (): Promise<readonly AuditRecord[]> =>
    (await fixture.ask('GET', '/audit?operation=exec.start')).json<AuditPage>().records;
  await expect.poll(async () => (await page()).length).toBe(2);
  const [refused, done] = await page();
  expect(done).toMatchObject({
    operation: 'exec.start',
    outcome: 'ok',
    keyId: 'admin',
    remote: '127.0.0.1',
    sandboxId: fixture.sandboxId,
    execId,
    detail: { argv0: 'curl', args: 1 },
  });
  expect(JSON.stringify(done)).not.toContain('secret');
  expect(refused).toMatchObject({ operation: 'exec.start', outcome: 'invalid_argument', keyId: 'admin' });
});

test('who loses interest, or goes, leaves the stream of the edge', async () => {
  const gone: AbortSignal[] = [];
  fixture.edge.on('exec.start', async ({ execId }, stream) => {
    gone.push(stream.signal);
    await stream.message({ started: { execId, pid: 7 } });
    await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
  });
  const client = await connect();
  const [one, other] = [start(client, undefined, 'a'), start(client, undefined, 'b')];
  await Promise.all([one.next(), other.next()]);
  one.reset();
  await vi.waitFor(() => expect(gone.filter(({ aborted }) => aborted)).toHaveLength(1));
  await client.close();
  await vi.waitFor(() => expect(gone.every(({ aborted }) => aborted)).toBe(true));
});

test('a reader that takes nothing holds its command back, and no other', async () => {
  let written = 0;
  fixture.edge.on('exec.start', async ({ execId, argv }, stream) => {
    await stream.message({ started: { execId, pid: 7 } });
    while ((argv as readonly string[])[0] === 'yes' && written < 20_000_000) {
      await stream.write(Buffer.alloc(50_000, 0x61), 1);
      written += 50_000;
    }
    return statusOf(execId);
  });
  const client = await connect();
  const slow = start(client, { argv: ['yes'] }, 'slow');
  await slow.next();
  await expect.poll(() => written).toBeGreaterThan(200_000);
  for (let i = 0; i < 20; i += 1)
    expect(await start(client, { argv: ['true'] }, `quick ${i}`.replace(' ', '')).result).toMatchObject({
      exitCode: 0,
    });
  expect(written).toBeLessThan(2_000_000);
  let read = 0;
  for await (const item of slow) if (item.type === 'data') read += item.bytes.length;
  expect(read).toBe(20_000_000);
});
