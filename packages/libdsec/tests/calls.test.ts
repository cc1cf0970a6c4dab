import { expect, test } from 'vitest';
import { DSecClient, type ClientOptions } from '../src/index.ts';
import { sandboxInfo, ScriptedServer } from './scripted-server.ts';

const quick = { budgetMs: 3000, firstDelayMs: 1, maxDelayMs: 20 };
const clientOf = (server: ScriptedServer, options: ClientOptions = {}): DSecClient =>
  new DSecClient({ endpoint: server.endpoint, apiKey: 'key', retry: quick, ...options });

test('a create is repeated under one idempotency key until the server is back', async () => {
  await using server = await ScriptedServer.start((exchange, index) => {
    if (index === 0) exchange.fail(503, 'unavailable');
    else if (index === 1) exchange.response.socket?.destroy();
    else if (index === 2) exchange.response.writeHead(502).end('<html>Bad Gateway</html>');
    else exchange.answer(sandboxInfo, 201);
  });
  const sandbox = await clientOf(server).runContainer({ containerImage: 'debian', cpuCoresLimit: 0.5 });
  expect(sandbox.sandboxId).toBe('s0001');
  expect(server.exchanges).toHaveLength(4);
  expect(new Set(server.exchanges.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
  expect(server.exchanges[0]?.json).toEqual({ environment: 'debian', backend: 'container', cpuMillis: 500 });
});

test('what would not be the same when done twice is not repeated after it may have been done', async () => {
  await using server = await ScriptedServer.start((exchange, index) => {
    if (index === 0) exchange.answer(sandboxInfo);
    else exchange.response.socket?.destroy();
  });
  const { files } = await clientOf(server).getSandbox('s0001');
  const calls = [
    () => files.move('/a', '/b'),
    () => files.write('/log', 'line\n', { append: true }),
    () => files.remove('/a'),
    () => files.symlink('/a', '/b'),
  ];
  for (const [index, call] of calls.entries()) {
    await expect(call()).rejects.toMatchObject({ code: 'connection_lost' });
    expect(server.exchanges).toHaveLength(index + 2);
  }
});

test('what is read or written whole is repeated, but not from a stream that can be read once', async () => {
  const entry = { name: 'f', path: '/f', kind: 'file', sizeBytes: 1, mode: 0o644, uid: 0, gid: 0, mtimeMs: 1 };
  let failures = 0;
  await using server = await ScriptedServer.start((exchange, index) => {
    if (index === 0) exchange.answer(sandboxInfo);
    else if (failures-- > 0) exchange.response.socket?.destroy();
    else if (exchange.method === 'PUT') exchange.answer(entry);
    else exchange.response.end('content');
  });
  const { files } = await clientOf(server).getSandbox('s0001');
  failures = 1;
  expect(await files.readText('/f')).toBe('content');
  failures = 1;
  expect(await files.write('/f', 'x')).toEqual(entry);
  failures = 1;
  const once = (async function* () {
    yield Buffer.from('x');
  })();
  await expect(files.write('/f', once)).rejects.toMatchObject({ code: 'connection_lost' });
});

test('a server that never answered is reported at once; one that restarts is waited for', async () => {
  const server = await ScriptedServer.start((exchange) =>
    exchange.answer(exchange.path === '/v1/health' ? { version: '1' } : { sandboxes: [], cursor: null }),
  );
  await using _ = server;
  const client = clientOf(server);
  await server.stop();
  await expect(client.open()).rejects.toMatchObject({ code: 'server_unreachable' });
  await server.listen();
  await client.open();
  await server.stop();
  const waiting = client.open();
  await server.listen();
  await waiting;
});

test('the time of a call includes its repetitions, and aborting it ends it in flight', async () => {
  await using server = await ScriptedServer.start((exchange, index) => {
    if (index === 0) exchange.fail(503, 'unavailable');
  });
  const client = clientOf(server);
  await expect(client.getSandbox('s0001', { timeoutMs: 80 })).rejects.toMatchObject({
    code: 'timeout',
    details: { timeoutMs: 80 },
  });
  const controller = new AbortController();
  const waiting = client.getSandbox('s0001', { signal: controller.signal });
  const before = server.exchanges.length;
  await expect.poll(() => server.exchanges.length).toBeGreaterThan(before);
  controller.abort();
  await expect(waiting).rejects.toMatchObject({ code: 'cancelled' });
  await expect(client.getSandbox('s0001', { timeoutMs: 0 })).rejects.toMatchObject({ code: 'invalid_argument' });
});

test('a bulk create that breaks off goes on under the same key, and no sandbox is told twice', async () => {
  const item = (index: number) => `${JSON.stringify({ index, sandbox: { ...sandboxInfo, sandboxId: `s${index}` } })}\n`;
  await using server = await ScriptedServer.start((exchange, index) => {
    exchange.response.writeHead(200);
    if (index === 0) {
      exchange.response.write(item(1) + item(0).slice(0, 20));
      exchange.cut();
      return;
    }
    const failed = { index: 2, error: { code: 'no_capacity', message: 'full', details: { resource: 'pids' } } };
    exchange.response.end(`${item(1)}{"keepalive":true}\n${item(0)}${JSON.stringify(failed)}\n`);
  });
  const outcomes = await Array.fromAsync(clientOf(server).runContainers({ containerImage: 'debian' }, { count: 3 }));
  expect(outcomes.map((outcome) => ('error' in outcome ? outcome.error.code : outcome.sandbox.sandboxId))).toEqual([
    's1',
    's0',
    'no_capacity',
  ]);
  expect(new Set(server.exchanges.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
});

test('a list goes through its pages, with labels of any characters', async () => {
  await using server = await ScriptedServer.start((exchange) => {
    const page = Number(exchange.query.get('cursor') ?? 0);
    const sandboxes = [{ ...sandboxInfo, sandboxId: `s${page}` }];
    exchange.answer({ sandboxes, cursor: page < 2 ? String(page + 1) : null });
  });
  const list = clientOf(server).sandboxes({ metadata: { 'a=b&c': '%/ü' }, states: ['running', 'failed'] });
  expect((await list.toArray()).map(({ sandboxId }) => sandboxId)).toEqual(['s0', 's1', 's2']);
  expect(server.exchanges[1]?.query.get('metadata.a=b&c')).toBe('%/ü');
  expect(server.exchanges[1]?.query.get('states')).toBe('running,failed');
});

test('an argument, endpoint or key that cannot be right is refused before anything is sent', async () => {
  await using server = await ScriptedServer.start((exchange) => exchange.answer({}));
  const client = clientOf(server);
  const args = { containerImage: 'debian', memoryLimitMib: 5 };
  await expect(client.runContainer(args)).rejects.toMatchObject({
    code: 'invalid_argument',
    details: { field: 'memoryLimitMib' },
  });
  await expect(client.getSandbox('')).rejects.toMatchObject({ code: 'invalid_argument' });
  expect(() => new DSecClient({ endpoint: 'localhost:1', apiKey: 'k' })).toThrow(/no http/);
  expect(() => new DSecClient({ apiKey: 'two\nlines' })).toThrow(expect.objectContaining({ code: 'unauthenticated' }));
  expect(server.exchanges).toHaveLength(0);
});

test('the end of an `await using` block stops the sandbox, unless it is kept or gone already', async () => {
  await using server = await ScriptedServer.start((exchange) => {
    if (exchange.method === 'DELETE') exchange.fail(404, 'sandbox_not_found');
    else exchange.answer(sandboxInfo);
  });
  const client = clientOf(server);
  {
    await using _stopped = await client.getSandbox('s0001');
    await using kept = await client.getSandbox('s0001');
    kept.keep();
  }
  expect(server.exchanges.map(({ method }) => method)).toEqual(['GET', 'GET', 'DELETE']);
});

test('an injected fetch carries everything, streams too', async () => {
  await using server = await ScriptedServer.start((exchange, index) => {
    if (index === 0) exchange.answer(sandboxInfo);
    else exchange.response.end(exchange.body);
  });
  let calls = 0;
  const client = clientOf(server, {
    fetch: (url, init) => {
      calls += 1;
      return fetch(url, init);
    },
  });
  const sandbox = await client.getSandbox('s0001');
  const answer = await sandbox.ports.fetch(8080, '/echo', { method: 'POST', body: 'ping' });
  expect(await answer.text()).toBe('ping');
  expect(server.exchanges[1]?.path).toBe('/v1/sandboxes/s0001/ports/8080/echo');
  const stream = await sandbox.files.readStream('/f');
  expect(await new Response(stream).text()).toBe('');
  expect(calls).toBe(3);
});
