/** What the routes of an apiserver write to its audit log. */
import { request as httpRequest } from 'node:http';
import type { AuditPage, AuditRecord } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ADMIN_KEY, Fixture, image, newSandboxId, sandboxInfo } from '../apiserver.fixture.ts';
import { describeApi } from '../openapi.ts';
import { isDecided } from './operations.ts';
import { verifyAudit } from './verify-audit.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

/** Records of requests, the oldest first, without those of the log itself. */
async function records(query = ''): Promise<readonly AuditRecord[]> {
  const page = (await fixture.ask('GET', `/audit?limit=1000${query}`)).json<AuditPage>();
  return page.records.filter(({ operation }) => !operation.startsWith('audit.')).toReversed();
}
const status = (execId: string) => ({
  execId,
  state: 'exited',
  pid: 2,
  pty: false,
  startedAtMs: 1,
  durationMs: 1,
  exitCode: 0,
  timedOut: false,
  oomKilled: false,
  stdoutBytes: 0,
  stderrBytes: 0,
  stdoutDropped: 0,
  stderrDropped: 0,
});
const runs = (): void =>
  fixture.edge.on('exec.start', async ({ execId }, stream) => {
    await stream.message({ started: { execId, pid: 2 } });
    return status(String(execId));
  });

test('somebody has decided of every route of the API what it is in the audit log', async () => {
  const { paths } = (await describeApi()) as { readonly paths: Readonly<Record<string, object>> };
  const undecided = Object.entries(paths).flatMap(([path, operations]) =>
    Object.keys(operations)
      .filter((method) => method !== 'x-any-method')
      .map((method) => [method.toUpperCase(), path.replaceAll(/\{([^}]+)\}/g, ':$1')] as const)
      .filter(([method, route]) => !isDecided(method, route))
      .map((route) => route.join(' ')),
  );
  expect(undecided, 'add them to operations.ts').toEqual([]);
});

describe('a command', () => {
  const secret = 'hunter2-the-password';
  const path = (): string => `/sandboxes/${fixture.sandboxId}/execs`;

  test('is one record: who, from where, on what, and what came of it, without its arguments and its key', async () => {
    runs();
    const json = { argv: ['/bin/login', secret], env: { TOKEN: secret }, stdinBase64: btoa(secret) };
    await fixture.ask('POST', path(), { json, headers: { 'x-request-id': 'req-1', 'idempotency-key': 'again' } });
    await fixture.ask('POST', path(), { json, headers: { 'idempotency-key': 'again' } });
    await fixture.ask('POST', path(), { json: { shell: `echo ${secret}` } });
    const [first, second, third, ...others] = await records();
    expect(others).toEqual([]);
    expect(first).toMatchObject({
      operation: 'exec.start',
      outcome: 'ok',
      status: 200,
      requestId: 'req-1',
      method: 'POST',
      route: '/v1/sandboxes/:id/execs',
      credential: 'key',
      keyId: 'admin',
      keyName: 'admin',
      project: 'default',
      remote: '127.0.0.1',
      sandboxId: fixture.sandboxId,
      detail: { argv0: '/bin/login', args: 1 },
    });
    expect([first?.replay, second?.replay, third?.replay]).toEqual([undefined, true, undefined]);
    expect(second?.execId).toBe(first?.execId);
    expect(second?.detail).toEqual(first?.detail);
    expect(third?.detail).toEqual({ shell: true, commandDigest: expect.stringMatching(/^[\w-]{22}$/) as string });
    const text = JSON.stringify(await records());
    for (const hidden of [secret, ADMIN_KEY]) expect(text).not.toContain(hidden);
  });

  test('whose client goes before the answer is a record, too', async () => {
    const begun = Promise.withResolvers<undefined>();
    fixture.edge.on('exec.start', async ({ execId }, stream) => {
      await stream.message({ started: { execId, pid: 2 } });
      begun.resolve(undefined);
      await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
    });
    const outgoing = httpRequest({
      host: '127.0.0.1',
      port: fixture.port,
      method: 'POST',
      path: `/v1${path()}`,
      headers: { authorization: `Bearer ${ADMIN_KEY}`, 'content-type': 'application/json' },
    });
    outgoing.on('error', () => undefined);
    outgoing.end(JSON.stringify({ argv: ['sleep', '1000'] }));
    await begun.promise;
    outgoing.destroy();
    await expect
      .poll(async () => (await records()).map(({ operation, outcome }) => [operation, outcome]))
      .toEqual([['exec.start', 'cancelled']]);
  });

  test('that takes long is a record before its end, and another after it', { timeout: 20_000 }, async () => {
    const end = Promise.withResolvers<undefined>();
    fixture.edge.on('exec.start', async ({ execId }, stream) => {
      await stream.message({ started: { execId, pid: 2 } });
      await end.promise;
      return status(String(execId));
    });
    const answer = fixture.ask('POST', path(), { json: { argv: ['sleep', '3'] } });
    await expect
      .poll(async () => (await records()).map(({ outcome }) => outcome), { timeout: 8000 })
      .toEqual(['begun']);
    end.resolve(undefined);
    await answer;
    const [begun, ended] = await records();
    expect(ended).toMatchObject({ outcome: 'ok', begunSeq: begun?.seq, execId: begun?.execId });
  });
});

test('what changes who may do what is on the disk before it is answered', async () => {
  await fixture.services.environments.put({ name: 'e', image });
  fixture.edge.on('policy.phase', () => Promise.reject(new Error('no')));
  const policy = { profile: 'default', phase: null, version: 7, changedAtMs: 1 };
  const network = { default: 'deny', rules: [], services: {}, ipLiterals: true };
  fixture.edge.on('policy.set', () => Promise.resolve({ ...policy, network }));
  const made = (await fixture.ask('POST', '/keys', { json: { name: 'mine' } })).json<{ info: { keyId: string } }>();
  const seen = async (): Promise<string | undefined> => {
    const { head, problems } = await verifyAudit(fixture.services.audit.log.directory);
    expect(problems).toEqual([]);
    return String(head.seq);
  };
  const afterKey = await seen();
  await fixture.ask('DELETE', `/keys/${made.info.keyId}`);
  const afterRevoke = await seen();
  const set = await fixture.ask('PUT', `/sandboxes/${fixture.sandboxId}/policy`, { json: {} });
  const afterPolicy = await seen();
  expect(set.status).toBe(200);
  // Each was there when its answer was: nobody has waited for the timer.
  expect([Number(afterRevoke) - Number(afterKey), Number(afterPolicy) - Number(afterRevoke)]).toEqual([1, 1]);
  expect(await records()).toMatchObject([
    { operation: 'key.create', status: 201, subjectKeyId: made.info.keyId, detail: { name: 'mine', readOnly: false } },
    { operation: 'key.revoke', subjectKeyId: made.info.keyId },
    { operation: 'policy.set', detail: { version: 7 } },
  ]);
});

describe('who is refused', () => {
  test('is in the log: with the key that was not enough, or with the address alone', async () => {
    const { key, info } = await fixture.services.keys.create({ project: 'default', name: 'reader', readOnly: true });
    await fixture.ask('POST', '/sandboxes', { key, json: {} });
    await fixture.ask('GET', '/sandboxes', { key: 'dsec_wrong_secret' });
    await fixture.ask('GET', `/sandboxes/${fixture.sandboxId}/files?path=/a&expires=1&sig=x`, { key: null });
    await fixture.ask('GET', `/sandboxes/${fixture.sandboxId}/ports/80/`, { key: null });
    const found = await records();
    expect(found).toMatchObject([
      { operation: 'sandbox.create', outcome: 'permission_denied', keyId: info.keyId, keyName: 'reader' },
      { operation: 'GET /v1/sandboxes', outcome: 'unauthenticated', remote: '127.0.0.1' },
      { operation: 'file.read', outcome: 'link_invalid', sandboxId: fixture.sandboxId, detail: { path: '/a' } },
      { operation: 'port.connect', outcome: 'unauthenticated', status: 401, sandboxId: fixture.sandboxId },
    ]);
    expect(JSON.stringify(found)).not.toContain('wrong_secret');
  });

  test('cannot fill the log: beyond a rate they are counted', async () => {
    for (let round = 0; round < 12; round++) {
      await Promise.all(
        Array.from({ length: 20 }, () => fixture.ask('POST', '/sandboxes', { key: 'dsec_wrong', json: {} })),
      );
    }
    // Nor can who asks badly and says nothing of himself.
    await Promise.all(
      Array.from({ length: 60 }, () => fixture.ask('GET', `/sandboxes/${newSandboxId()}/files?bad=1`, { key: null })),
    );
    const before = await records();
    expect(before.length).toBeGreaterThanOrEqual(64);
    expect(before.length).toBeLessThan(100);
    fixture.services.audit[Symbol.dispose]();
    const more = (await records()).find(({ operation }) => operation === 'refused.more');
    expect(Number(more?.detail?.['requests']) + before.length).toBe(12 * 20 + 60);
  });
});

test('lists and states are not in the log; reading the log is', async () => {
  for (const path of ['/health', '/environments', '/keys', '/audit']) await fixture.ask('GET', path);
  const page = (await fixture.ask('GET', '/audit')).json<AuditPage>();
  expect(page.records.map(({ operation }) => operation)).toEqual(['audit.read', 'audit.open']);
});

test('a sandbox is found by its id, with who made it, whichever way it was made', async () => {
  await fixture.services.environments.put({ name: 'e', image });
  const [one, two, three] = [newSandboxId(), newSandboxId(), newSandboxId()];
  fixture.edge.on('sandbox.create', () => Promise.resolve(sandboxInfo(one)));
  fixture.edge.on('sandbox.createMany', async (_params, stream) => {
    await stream.message({ index: 0, sandbox: sandboxInfo(two) });
    await stream.message({ index: 1, sandbox: sandboxInfo(three) });
    await stream.message({ index: 2, error: { code: 'no_capacity', message: 'm', details: {} } });
    return { created: 2, failed: 1 };
  });
  await fixture.ask('POST', '/sandboxes', { json: { environment: 'e' } });
  await fixture.ask('POST', '/sandboxes/bulk', { json: { count: 3, template: { environment: 'e' } } });
  expect(await records(`&sandbox=${one}`)).toMatchObject([{ operation: 'sandbox.create', environment: 'e' }]);
  expect(await records(`&sandbox=${three}`)).toMatchObject([
    { operation: 'sandbox.createMany', sandboxIds: [two, three], detail: { failed: 1 }, environment: 'e' },
  ]);
  expect(await records('&operation=sandbox.create')).toHaveLength(1);
  expect(await records('&principal=admin')).toHaveLength(2);
  expect(await records(`&sinceMs=${new SystemClock().now() + 60_000}`)).toEqual([]);
});

test('only the admin key reads the log, or writes what the CLI did', async () => {
  const { key } = await fixture.services.keys.create({
    project: 'default',
    name: 'b',
    readOnly: false,
    builder: true,
  });
  const note = { verb: 'env.build', outcome: 'ok', environment: 'e', detail: { user: 'root' } };
  expect((await fixture.ask('GET', '/audit', { key })).status).toBe(403);
  expect((await fixture.ask('POST', '/audit', { key, json: note })).status).toBe(403);
  expect((await fixture.ask('POST', '/audit', { json: note })).status).toBe(204);
  for (const bad of [{}, { ...note, verb: 'x' }, { ...note, detail: { a: 'x'.repeat(300) } }, { ...note, more: 1 }])
    expect((await fixture.ask('POST', '/audit', { json: bad })).status).toBe(400);
  expect((await records('&operation=cli.env.build')).at(0)).toMatchObject({
    operation: 'cli.env.build',
    environment: 'e',
    detail: { user: 'root', outcome: 'ok' },
  });
});
