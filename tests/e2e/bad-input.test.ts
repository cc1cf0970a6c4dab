/** Requests that are wrong in every way: each is refused with a typed error of the right status, and leaves nothing behind. */
import { limits, MAX_EDGE_NUMBER } from '@dsec/contract';
import { afterEach, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { rawExec, rawJson, rawRequest } from './raw-http.ts';
import { refusal } from './refusal.ts';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';

const server = useServer();

afterEach(async () => {
  expect(await server().client.sandboxes().toArray()).toEqual([]);
});

test('an unknown environment is refused by name', async () => {
  for (const containerImage of ['no-such', 'no/such:latest', 'A']) {
    const error = await failureOf(server().client.runContainer({ containerImage }));
    expect([error.code, error.status]).toEqual(['environment_not_found', 404]);
    expect(error.message).toContain(containerImage);
  }
  for (const environment of ['', '../x', '-x', 'x'.repeat(300), 'a b', 7, null]) {
    expect(await refusal(rawJson(server(), '/sandboxes', { environment }))).toBe('invalid_argument');
  }
});

test('limits of zero, negative, absurd and not even numbers are refused by field', async () => {
  const { environment } = server();
  for (const field of ['memoryMib', 'cpuMillis', 'diskMib', 'pids'] as const) {
    for (const value of [
      0,
      -1,
      -(2 ** 53),
      1.5,
      limits[field].maximum + 1,
      2 ** 53,
      1e300,
      '1024',
      null,
      true,
      [1024],
      {},
    ]) {
      const answers = [
        rawJson(server(), '/sandboxes', { environment, [field]: value }),
        rawJson(server(), '/sandboxes/bulk', { count: 2, template: { environment, [field]: value } }),
      ];
      for (const answer of answers) {
        const text = await (await answer).clone().text();
        expect(await refusal(answer)).toBe('invalid_argument');
        expect(text).toContain(field);
      }
    }
  }
  for (const count of [0, -1, 1.5, limits.bulk + 1, 2 ** 31 - 1, '3', null]) {
    expect(await refusal(rawJson(server(), '/sandboxes/bulk', { count, template: { environment } }))).toBe(
      'invalid_argument',
    );
  }
});

test('a bulk create that can make nothing says so for the whole, or for each, and leaves nothing', async () => {
  const all = async (args: Parameters<ReturnType<typeof server>['client']['runContainers']>[0]): Promise<string[]> => {
    const codes: string[] = [];
    for await (const outcome of server().client.runContainers(args, { count: 3 })) {
      if ('error' in outcome) codes.push(outcome.error.code);
      else throw new Error(`${outcome.sandbox.sandboxId} was made`);
    }
    return codes;
  };
  expect((await failureOf(all({ containerImage: 'no-such' }))).code).toBe('environment_not_found');
  const containerImage = server().environment;
  expect(await all({ containerImage, memoryLimitMb: limits.memoryMib.maximum })).toEqual(
    Array.from({ length: 3 }, () => 'no_capacity'),
  );
});

test('a create that takes too long for its caller, or that its caller gives up, leaves nothing', async () => {
  const launcher = await server().pid('launcher');
  process.kill(launcher, 'SIGSTOP');
  try {
    const abort = new AbortController();
    const late = failureOf(server().sandbox({ metadata: { late: 'yes' } }, { timeoutMs: 300 }));
    const given = failureOf(server().sandbox({ metadata: { late: 'yes' } }, { signal: abort.signal }));
    expect((await late).code).toBe('timeout');
    abort.abort();
    expect((await given).code).toBe('cancelled');
  } finally {
    process.kill(launcher, 'SIGCONT');
  }
  await waitFor('both to be gone', async () => (await server().client.sandboxes().toArray()).length === 0);
  const ended = await server()
    .client.sandboxes({ metadata: { late: 'yes' }, states: ['stopped', 'failed'] })
    .toArray();
  // One that never reached the edge has no record either.
  expect(ended.filter(({ cause }) => cause?.kind !== 'cancelled' || cause.infrastructure)).toEqual([]);
});

test('a policy on a node without a network, and backends that it has not, are refused', async () => {
  const { environment } = server();
  const error = await failureOf(server().sandbox({ networkRules: { npm: false, pypi: true } }));
  expect(error.code).toBe('network_unavailable');
  expect(error.details.reason).toMatch(/network/);
  for (const backend of ['microvm', 'fullvm', 'fncall'])
    expect(['backend_unsupported', 'invalid_argument']).toContain(
      await refusal(rawJson(server(), '/sandboxes', { environment, backend })),
    );
  for (const hostname of ['', '-x', 'a b', 'x'.repeat(300), 'a/../b', 'a\nb'])
    expect(await refusal(rawJson(server(), '/sandboxes', { environment, hostname }))).toBe('invalid_argument');
  for (const workdir of ['', 'a\0b', `/${'x'.repeat(5000)}`])
    expect(await refusal(rawJson(server(), '/sandboxes', { environment, workdir }))).toBe('invalid_argument');
  for (const user of ['', 'a b', '$(id)', 'root:', '-1'])
    expect(await refusal(rawJson(server(), '/sandboxes', { environment, user }))).toBe('invalid_argument');
});

test('more than the node has is refused with what is asked, what there is and what is taken', async () => {
  const error = await failureOf(server().sandbox({ memoryLimitMb: limits.memoryMib.maximum }));
  expect([error.code, error.status]).toEqual(['no_capacity', 507]);
  expect(error.details.requested).toBe(limits.memoryMib.maximum);
  expect(error.details.resource).toMatch(/memory/i);
  expect(Object.keys(error.details)).toEqual(expect.arrayContaining(['limit', 'current']));
});

test('metadata of ten megabytes, of too many entries and of odd keys is refused', async () => {
  const { environment } = server();
  const big = Object.fromEntries(Array.from({ length: 10_000 }, (_, index) => [`key${index}`, 'x'.repeat(1000)]));
  expect(await refusal(rawJson(server(), '/sandboxes', { environment, metadata: big }))).toBe('request_too_large');
  const many = Object.fromEntries(
    Array.from({ length: limits.metadataEntries + 1 }, (_, index) => [`key${index}`, 'x']),
  );
  for (const metadata of [
    many,
    { k: 'x'.repeat(limits.metadataValueChars + 1) },
    { '': 'x' },
    { 'a\nb': 'x' },
    { k: 1 },
    { k: null },
    { k: {} },
    [],
    'x',
    null,
  ]) {
    expect(await refusal(rawJson(server(), '/sandboxes', { environment, metadata }))).toBe('invalid_argument');
  }
});

test('metadata and variables of names that JavaScript knows are only names', async () => {
  const body = `{"environment":"${server().environment}","metadata":{"__proto__":"a","constructor":"b","toString":"c"},"env":{"__proto__":"d","constructor":"e"}}`;
  const answer = await rawRequest(server(), '/sandboxes', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  });
  const made = (await answer.json()) as { readonly sandboxId?: string; readonly metadata?: object };
  if (answer.status === 400) return;
  const sandbox = await server().client.getSandbox(String(made.sandboxId));
  expect(Object.entries(sandbox.initialInfo.metadata).toSorted(([a], [b]) => (a < b ? -1 : 1))).toEqual([
    ['__proto__', 'a'],
    ['constructor', 'b'],
    ['toString', 'c'],
  ]);
  expect((await sandbox.exec(['printenv', 'constructor', '__proto__'])).stdout).toBe('e\nd\n');
  await sandbox.stop();
});

test('a million variables, a key with shell characters and a value of a megabyte are refused', async () => {
  const { environment } = server();
  const million = Object.fromEntries(Array.from({ length: 200_000 }, (_, index) => [`K${index}`, '']));
  expect(['invalid_argument', 'request_too_large']).toContain(
    await refusal(rawJson(server(), '/sandboxes', { environment, env: million })),
  );
  for (const env of [{ 'A;touch /tmp/pwn': 'x' }, { A: 'x'.repeat(1_000_000) }, { A: 7 }, { A: null }, [], 'A=B']) {
    expect(await refusal(rawJson(server(), '/sandboxes', { environment, env }))).toBe('invalid_argument');
  }
});

test('a body that is no JSON, of another type, with unknown fields or too large is refused', async () => {
  const { environment } = server();
  const json = { 'content-type': 'application/json' };
  const post = (
    body: string | Uint8Array<ArrayBuffer>,
    headers: Readonly<Record<string, string>> = json,
  ): Promise<Response> => rawRequest(server(), '/sandboxes', { method: 'POST', headers, body });
  for (const body of [
    '{',
    '{"environment":',
    'null',
    '[]',
    '"x"',
    '7',
    '',
    '{"environment":"x",}',
    '\u0000',
    `${'['.repeat(100_000)}`,
  ]) {
    expect(await refusal(post(body))).toBe('invalid_argument');
  }
  expect(await refusal(post(Uint8Array.of(0x7b, 0xff, 0xfe, 0x7d)))).toBe('invalid_argument');
  for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data', 'application/xml']) {
    expect(await refusal(post(JSON.stringify({ environment }), { 'content-type': type }))).toBe(
      'unsupported_media_type',
    );
  }
  expect(await refusal(post(JSON.stringify({ environment, surprise: 1 })))).toBe('invalid_argument');
  expect(await refusal(post(JSON.stringify({ environment, memoryMB: 100 })))).toBe('invalid_argument');
  expect(await refusal(post(`{"environment":"${'x'.repeat(limits.bodyBytes)}"}`))).toBe('request_too_large');
});

test('routes, methods and queries that there are none of are refused', async () => {
  expect(await refusal(rawRequest(server(), '/nothing'))).toBe('not_found');
  expect(await refusal(rawRequest(server(), '/sandboxes/x/nothing'))).toBe('not_found');
  expect(await refusal(rawRequest(server(), '/sandboxes', { method: 'PUT', body: '{}' }))).toBe('method_not_allowed');
  expect(await refusal(rawRequest(server(), '/sandboxes', { method: 'DELETE' }))).toBe('method_not_allowed');
  for (const query of [
    'surprise=1',
    'limit=0',
    'limit=-1',
    'limit=1e3',
    'limit=1001',
    'limit=',
    'limit=1&limit=2',
    'states=asleep',
    'cursor=%00',
    '%ff=1',
    'a=%zz',
  ]) {
    expect(await refusal(rawRequest(server(), `/sandboxes?${query}`))).toBe('invalid_argument');
  }
  const answer = await fetch(`${server().endpoint}/`, { headers: { authorization: `Bearer ${server().apiKey}` } });
  expect(await refusal(answer)).toBe('not_found');
});

test('ids that are forged, mistyped, of another edge or of nothing are refused on every route', async () => {
  const sandbox = await server().sandbox();
  const { sandboxId } = sandbox;
  await sandbox.stop();
  const flipped = sandboxId.slice(0, -1) + (sandboxId.endsWith('0') ? '1' : '0');
  const otherEdge = await server().idOfEdge(MAX_EDGE_NUMBER);
  const neverMade = await server().idOfEdge(0);
  const expected = [
    [flipped, ['invalid_id']],
    [sandboxId.toUpperCase(), ['invalid_id', 'invalid_argument']],
    ['s', ['invalid_id']],
    ['x'.repeat(200), ['invalid_id', 'invalid_argument', 'not_found']],
    ['..%2f..%2fetc', ['invalid_id', 'invalid_argument']],
    ['%00', ['invalid_id', 'invalid_argument']],
    [otherEdge, ['edge_unknown']],
    [neverMade, ['sandbox_not_found']],
  ] as const;
  for (const [id, codes] of expected) {
    const answers = [
      rawRequest(server(), `/sandboxes/${id}`),
      rawRequest(server(), `/sandboxes/${id}`, { method: 'DELETE' }),
      rawRequest(server(), `/sandboxes/${id}/usage`),
      rawRequest(server(), `/sandboxes/${id}/execs`),
      rawRequest(server(), `/sandboxes/${id}/files?path=/etc/passwd`),
      rawExec(server(), id, { argv: ['true'] }),
      rawJson(server(), `/sandboxes/${id}`, { ttlSeconds: 5 }, { method: 'PATCH' }),
    ];
    for (const answer of answers) expect(codes).toContain(await refusal(answer));
  }
  expect(await refusal(rawExec(server(), sandboxId, { argv: ['true'] }))).toBe('sandbox_ended');
});

test('keys that are missing, wrong, revoked or too weak are refused', async () => {
  const { key, info } = await server().client.keys.create('to be revoked');
  const reading = await server().client.keys.create('reader', { readOnly: true });
  const client = server().connect({ apiKey: key });
  await client.open();
  await server().client.keys.revoke(info.keyId);
  expect((await failureOf(client.sandboxes().toArray())).code).toBe('unauthenticated');
  for (const authorization of [
    '',
    'Bearer',
    'Bearer wrong',
    'Basic dXNlcjpwYXNz',
    `Bearer ${key}`,
    `Bearer ${server().apiKey}x`,
    `Bearer ${server().apiKey.slice(0, -1)}`,
    `Bearer ${'x'.repeat(5000)}`,
  ]) {
    expect(await refusal(rawRequest(server(), '/sandboxes', { headers: { authorization } }))).toBe('unauthenticated');
    expect(
      await refusal(
        rawJson(server(), '/sandboxes', { environment: server().environment }, { headers: { authorization } }),
      ),
    ).toBe('unauthenticated');
  }
  const reader = server().connect({ apiKey: reading.key });
  await reader.sandboxes().toArray();
  expect((await failureOf(reader.runContainer({ containerImage: server().environment }))).code).toBe(
    'permission_denied',
  );
  expect((await failureOf(reader.keys.create('more'))).code).toBe('permission_denied');
  expect(JSON.stringify(await server().client.keys.list())).not.toContain(key);
});
