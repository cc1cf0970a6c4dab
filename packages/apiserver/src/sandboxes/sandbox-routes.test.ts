import { PlatformError } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture, image, newSandboxId, sandboxInfo } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
  await fixture.services.environments.put({ name: 'debian', image });
});
afterEach(() => fixture[Symbol.asyncDispose]());

describe('POST /sandboxes', () => {
  test('asks the edge with the image of the environment and who asks, and answers 201', async () => {
    const info = sandboxInfo(fixture.sandboxId);
    fixture.edge.on('sandbox.create', () => Promise.resolve(info));
    const request = { environment: 'debian', memoryMib: 64, env: { A: 'é "$x" \n' }, metadata: { __proto__x: 'y' } };
    const answer = await fixture.ask('POST', '/sandboxes', { json: request });
    expect(answer.status).toBe(201);
    expect(answer.json()).toEqual(info);
    expect(fixture.edge.last('sandbox.create')).toEqual({
      principal: { keyId: 'admin', project: 'default' },
      request,
      image,
    });
  });

  test('passes the idempotency key on with a fingerprint that depends on the request only', async () => {
    fixture.edge.on('sandbox.create', () => Promise.resolve(sandboxInfo(fixture.sandboxId)));
    const ask = async (json: object): Promise<unknown> => {
      await fixture.ask('POST', '/sandboxes', { json, headers: { 'idempotency-key': 'key-1' } });
      return fixture.edge.last('sandbox.create')?.idempotency;
    };
    const first = await ask({ environment: 'debian', pids: 10 });
    expect(first).toMatchObject({ key: 'key-1', fingerprint: expect.stringMatching(/^[0-9a-f]{64}$/) as string });
    expect(await ask({ pids: 10, environment: 'debian' })).toEqual(first);
    expect(await ask({ environment: 'debian', pids: 11 })).not.toEqual(first);
  });

  test.each([
    ['no environment', {}, 'environment'],
    ['a limit of 0', { environment: 'debian', memoryMib: 0 }, 'memoryMib'],
    ['a negative limit', { environment: 'debian', cpuMillis: -1 }, 'cpuMillis'],
    ['an absurd limit', { environment: 'debian', diskMib: 1e15 }, 'diskMib'],
    ['a number as text', { environment: 'debian', pids: '10' }, 'pids'],
    ['an unknown field', { environment: 'debian', memoryMb: 10 }, 'memoryMb'],
    ['shell characters in an env key', { environment: 'debian', env: { 'A;rm -rf /': '1' } }, 'env.A;rm -rf /'],
    ['NUL in an env value', { environment: 'debian', env: { A: 'a\0' } }, 'env.A'],
    ['null', null, ''],
    ['an array', [], ''],
  ])('refuses %s and names the field', async (_name, json, field) => {
    const answer = await fixture.ask('POST', '/sandboxes', { json });
    expect(answer.status).toBe(400);
    expect(answer.error).toMatchObject({ code: 'invalid_argument', details: { field }, retryable: false });
    expect(fixture.edge.calls).toEqual([]);
  });

  test('says that an environment does not exist', async () => {
    const answer = await fixture.ask('POST', '/sandboxes', { json: { environment: 'nope' } });
    expect(answer.status).toBe(404);
    expect(answer.error).toMatchObject({ code: 'environment_not_found', details: { environment: 'nope' } });
  });

  test.each([['x'.repeat(257)], ['']])('refuses a bad idempotency key', async (key) => {
    const answer = await fixture.ask('POST', '/sandboxes', {
      json: { environment: 'debian' },
      headers: { 'idempotency-key': key },
    });
    expect(answer.error).toMatchObject({ code: 'invalid_argument', details: { field: 'Idempotency-Key' } });
  });

  test('passes on what the edge refuses, with status and details', async () => {
    fixture.edge.on('sandbox.create', () =>
      Promise.reject(
        new PlatformError('no_capacity', 'full', {
          details: { resource: 'memory', limit: 1, current: 1, requested: 2 },
        }),
      ),
    );
    const answer = await fixture.ask('POST', '/sandboxes', { json: { environment: 'debian' } });
    expect(answer.status).toBe(507);
    expect(answer.error).toMatchObject({
      code: 'no_capacity',
      retryable: true,
      details: { resource: 'memory', requested: 2 },
    });
  });

  test('drops the create at the edge when its client goes away', async () => {
    let isDropped = false;
    fixture.edge.on('sandbox.create', (_params, stream) => {
      stream.signal.addEventListener('abort', () => (isDropped = true));
    });
    const controller = new AbortController();
    const asking = fixture
      .ask('POST', '/sandboxes', { json: { environment: 'debian' }, signal: controller.signal })
      .catch(() => undefined);
    await expect.poll(() => fixture.edge.calls.length).toBe(1);
    controller.abort();
    await asking;
    await expect.poll(() => isDropped).toBe(true);
  });

  test('drops the create of a client that went away while the edge was waited for', async () => {
    let isDropped = false;
    fixture.edge.on('sandbox.create', (_params, stream) => {
      if (stream.signal.aborted) isDropped = true;
      else stream.signal.addEventListener('abort', () => (isDropped = true));
    });
    await fixture.edge.stop();
    await expect.poll(() => fixture.services.edge.isConnected).toBe(false);
    const controller = new AbortController();
    const asking = fixture
      .ask('POST', '/sandboxes', { json: { environment: 'debian' }, signal: controller.signal })
      .catch(() => undefined);
    // What is answered after it has been read after it.
    await fixture.ask('GET', '/environments');
    controller.abort();
    await asking;
    await fixture.ask('GET', '/environments');
    await fixture.edge.start();
    await expect.poll(() => fixture.edge.last('sandbox.create')).toBeDefined();
    await expect.poll(() => isDropped).toBe(true);
  });

  test('calls an answer of the edge that has another form a protocol error', async () => {
    fixture.edge.on('sandbox.create', () => Promise.resolve({ sandboxId: 'x' }));
    const answer = await fixture.ask('POST', '/sandboxes', { json: { environment: 'debian' } });
    expect(answer.status).toBe(502);
    expect(answer.error).toMatchObject({ code: 'protocol_error', infrastructure: true });
  });
});

describe('GET /sandboxes', () => {
  test('passes filter, states, cursor and limit on, special characters exact', async () => {
    const page = { sandboxes: [sandboxInfo(fixture.sandboxId)], cursor: 'next' };
    fixture.edge.on('sandbox.list', () => Promise.resolve(page));
    const metadata = { 'a=b&c': 'd+e %20 &=é\u{1f600}', plain: '', 'with.dot': '1' };
    const query = new URLSearchParams(
      Object.entries(metadata).map(([key, value]): [string, string] => [`metadata.${key}`, value]),
    );
    query.set('states', 'running,failed');
    query.set('cursor', 'c/1');
    query.set('limit', '7');
    const answer = await fixture.ask('GET', `/sandboxes?${query.toString()}`);
    expect(answer.status).toBe(200);
    expect(answer.json()).toEqual(page);
    expect(fixture.edge.last('sandbox.list')).toEqual({
      project: 'default',
      metadata,
      states: ['running', 'failed'],
      cursor: 'c/1',
      limit: 7,
    });
  });

  test('asks for everything without a query', async () => {
    fixture.edge.on('sandbox.list', () => Promise.resolve({ sandboxes: [], cursor: null }));
    expect((await fixture.ask('GET', '/sandboxes')).json()).toEqual({ sandboxes: [], cursor: null });
    expect(fixture.edge.last('sandbox.list')).toEqual({ project: 'default' });
  });

  test.each([
    'limit=0',
    'limit=1001',
    'limit=x',
    'states=dead',
    'unknown=1',
    'metadata.=x',
    'limit=1&limit=2',
    'metadata.a=%E9',
    'metadata.a=%',
  ])('refuses %s', async (query) => {
    const answer = await fixture.ask('GET', `/sandboxes?${query}`);
    expect(answer.status).toBe(400);
    expect(answer.error.code).toBe('invalid_argument');
  });
});

describe('one sandbox', () => {
  const stopped = (id: string): object =>
    sandboxInfo(id, { state: 'stopped', endedAtMs: 5, cause: { kind: 'stopped', infrastructure: false, detail: '' } });

  test.each([
    ['GET', '', 'sandbox.get', undefined],
    ['DELETE', '', 'sandbox.stop', undefined],
    ['PATCH', '', 'sandbox.patch', { ttlSeconds: 60, extendOnly: true }],
  ])('%s answers with the sandbox', async (method, path, called, json) => {
    fixture.edge.on(called, () => Promise.resolve(stopped(fixture.sandboxId)));
    const answer = await fixture.ask(
      method,
      `/sandboxes/${fixture.sandboxId}${path}`,
      json === undefined ? {} : { json },
    );
    expect(answer.status).toBe(200);
    expect(answer.json()).toEqual(stopped(fixture.sandboxId));
    expect(fixture.edge.last(called)).toEqual({
      sandboxId: fixture.sandboxId,
      ...(json === undefined ? {} : { patch: json }),
    });
  });

  test('shows usage and processes', async () => {
    const usage = { memoryBytes: 1, memoryPeakBytes: 2, cpuUsec: 3, pids: 4, diskBytes: 5, oomKills: 0 };
    const processes = [{ pid: 1, ppid: 0, uid: 0, command: 'x', startedAtMs: 1.5, rssBytes: 1 }];
    fixture.edge.on('sandbox.usage', () => Promise.resolve(usage));
    fixture.edge.on('processes', () => Promise.resolve({ processes }));
    expect((await fixture.ask('GET', `/sandboxes/${fixture.sandboxId}/usage`)).json()).toEqual(usage);
    expect((await fixture.ask('GET', `/sandboxes/${fixture.sandboxId}/processes`)).json()).toEqual({ processes });
  });

  test('refuses an empty patch', async () => {
    const answer = await fixture.ask('PATCH', `/sandboxes/${fixture.sandboxId}`, { json: {} });
    expect(answer.error.code).toBe('invalid_argument');
  });

  test('refuses mistyped, forged and foreign ids before the edge is asked', async () => {
    const altered = fixture.sandboxId.replace(/.$/, (last) => (last === 'a' ? 'b' : 'a'));
    for (const [id, status, code] of [
      ['nonsense', 400, 'invalid_id'],
      [altered, 400, 'invalid_id'],
      ['..%2f..%2fetc', 400, 'invalid_id'],
      [newSandboxId(6), 404, 'edge_unknown'],
    ] as const) {
      const answer = await fixture.ask('GET', `/sandboxes/${id}`);
      expect([id, answer.status, answer.error.code]).toEqual([id, status, code]);
    }
    expect(fixture.edge.calls).toEqual([]);
  });

  test('passes on why a sandbox has ended', async () => {
    fixture.edge.on('sandbox.usage', () =>
      Promise.reject(new PlatformError('sandbox_failed', 'it failed', { details: { cause: 'node_lost' } })),
    );
    const answer = await fixture.ask('GET', `/sandboxes/${fixture.sandboxId}/usage`);
    expect(answer.status).toBe(410);
    expect(answer.error).toMatchObject({
      code: 'sandbox_failed',
      infrastructure: true,
      details: { cause: 'node_lost' },
    });
  });
});

describe('many sandboxes', () => {
  const lines = (text: string): unknown[] =>
    text
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as unknown);

  test('come line by line as the edge tells them', async () => {
    const items = [
      { index: 1, sandbox: sandboxInfo(fixture.sandboxId) },
      { index: 0, error: { code: 'no_capacity', message: 'full', details: { resource: 'memory' } } },
    ];
    fixture.edge.on('sandbox.createMany', async (_params, stream) => {
      for (const item of items) await stream.message(item);
      return { created: 1, failed: 1 };
    });
    const template = { environment: 'debian' };
    const answer = await fixture.ask('POST', '/sandboxes/bulk', {
      json: { count: 2, template },
      headers: { 'idempotency-key': 'k' },
    });
    expect(answer.status).toBe(200);
    expect(answer.headers['content-type']).toBe('application/x-ndjson');
    expect(lines(answer.text)).toEqual(items);
    expect(fixture.edge.last('sandbox.createMany')).toMatchObject({
      count: 2,
      request: template,
      image,
      idempotency: { key: 'k' },
    });
  });

  test('an error before the first line has a status, a later one is the last line', async () => {
    fixture.edge.on('sandbox.createMany', () => Promise.reject(new PlatformError('idempotency_conflict', 'used')));
    const early = await fixture.ask('POST', '/sandboxes/bulk', {
      json: { count: 2, template: { environment: 'debian' } },
    });
    expect([early.status, early.error.code]).toEqual([409, 'idempotency_conflict']);
    fixture.edge.on('sandbox.createMany', async (_params, stream) => {
      await stream.message({ index: 0, sandbox: sandboxInfo(fixture.sandboxId) });
      throw new PlatformError('internal', 'broken');
    });
    const late = await fixture.ask('POST', '/sandboxes/bulk', {
      json: { count: 2, template: { environment: 'debian' } },
    });
    expect(lines(late.text)).toMatchObject([{ index: 0 }, { error: { code: 'internal', message: 'broken' } }]);
  });

  test('refuses a count out of range', async () => {
    for (const count of [0, 4097, 1.5]) {
      const answer = await fixture.ask('POST', '/sandboxes/bulk', {
        json: { count, template: { environment: 'debian' } },
      });
      expect(answer.error).toMatchObject({ code: 'invalid_argument', details: { field: 'count' } });
    }
  });

  test('stop by ids or by metadata, and not by both or neither', async () => {
    fixture.edge.on('sandbox.stopMany', async (_params, stream) => {
      await stream.message({ index: 0, sandbox: sandboxInfo(fixture.sandboxId, { state: 'stopped' }) });
      return { stopped: 1, failed: 0 };
    });
    const ids = await fixture.ask('POST', '/sandboxes/stop', { json: { sandboxIds: [fixture.sandboxId] } });
    expect(lines(ids.text)).toHaveLength(1);
    expect(fixture.edge.last('sandbox.stopMany')).toEqual({ project: 'default', sandboxIds: [fixture.sandboxId] });
    await fixture.ask('POST', '/sandboxes/stop', { json: { metadata: { job: '7' } } });
    expect(fixture.edge.last('sandbox.stopMany')).toEqual({ project: 'default', metadata: { job: '7' } });
    for (const json of [{}, { sandboxIds: [], metadata: {} }]) {
      expect((await fixture.ask('POST', '/sandboxes/stop', { json })).error.code).toBe('invalid_argument');
    }
  });
});
