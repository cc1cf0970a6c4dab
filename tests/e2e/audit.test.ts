/** The audit log of a real server: what is in it, what stands out in it, and that it stays whole. */
import { randomBytes } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { join } from 'node:path';
import { PlatformError, type AuditRecord } from '@dsec/libdsec';
import { verifyAudit } from '@dsec/apiserver';
import { SystemNetwork } from '@dsec/kit';
import { WireClient } from '@dsec/native-link';
import { afterEach, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { rawRequest } from './raw-http.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

/** Small, so that it is followed by others while the suite runs. */
const FILE_BYTES = 65_536;
const server = useServer({ variables: { DSEC_APISERVER_AUDIT_FILE_BYTES: String(FILE_BYTES) } });

const spec = JSON.parse(await readFile(join(import.meta.dirname, '../../spec/openapi.json'), 'utf8')) as {
  readonly paths: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
};
/** Lists and states of the platform; everything else leaves a record. */
const NOT_AUDITED: ReadonlySet<string> = new Set([
  'GET /v1/health',
  'GET /v1/compositions',
  'GET /v1/environments',
  'GET /v1/environments/{name}',
  'GET /v1/environments/{name}/usage',
  'GET /v1/keys',
  'GET /v1/sandboxes',
  'GET /v1/sandboxes/{id}',
  'GET /v1/sandboxes/{id}/execs',
  'GET /v1/sandboxes/{id}/execs/{eid}',
  'GET /v1/sandboxes/{id}/policy',
  'GET /v1/sandboxes/{id}/sessions',
  'GET /v1/sandboxes/{id}/usage',
]);

afterEach(async () => {
  await server().client.stopSandboxes({ metadata: {} });
});

const directory = (): string => join(server().data, 'state/api/audit');
const records = async (filter: Parameters<ReturnType<typeof server>['client']['audit']>[0] = {}) =>
  (
    await server()
      .client.audit({ pageSize: 1000, ...filter })
      .toArray()
  ).toReversed();
const verify = async () => {
  const { exitCode, stdout } = await server().cli(['audit', 'verify']);
  return { exitCode, out: stdout.toString() };
};

/** Sends a request and looks no further than the head of its answer. */
function knock(method: string, path: string, headers: Readonly<Record<string, string>>, body?: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const asked = httpRequest(`${server().endpoint}${path}`, { method, headers, agent: false });
    const over = (): void => void asked.destroy();
    asked.once('response', over);
    asked.once('upgrade', over);
    asked.once('error', reject);
    asked.once('close', resolve);
    asked.end(body);
  });
}

test('every route of the API that does something, or gives out what is in a sandbox, leaves one record', async () => {
  const id = await server().idOfEdge(0);
  const sent = new Map<string, string>();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const name of Object.keys(methods)) {
      const method = name === 'x-any-method' ? 'POST' : name.toUpperCase();
      const requestId = randomBytes(8).toString('hex');
      const filled = path
        .replace('{id}', id)
        .replace('{eid}', 'e1')
        .replace('{sid}', 's1')
        .replace('{port}', '8000')
        .replace('{path}', 'x')
        .replace('{name}', 'none')
        .replace('{keyId}', 'knone');
      const isSocket = path.endsWith('/pty');
      const headers = {
        authorization: `Bearer ${server().apiKey}`,
        'x-request-id': requestId,
        ...(method === 'GET' ? {} : { 'content-type': 'application/json' }),
        ...(isSocket ? { connection: 'Upgrade', upgrade: 'websocket' } : {}),
      };
      sent.set(requestId, `${method} ${path}`);
      await knock(method, filled, headers, method === 'GET' ? undefined : '{}');
    }
  }
  expect(sent.size).toBeGreaterThan(45);
  const wanted = [...sent].filter(([, route]) => !NOT_AUDITED.has(route));
  const found = await waitFor('the records', async () => {
    const all = (await records()).filter(({ requestId }) => requestId !== undefined && sent.has(requestId));
    return all.length >= wanted.length && all;
  });
  const routes = (of: readonly (string | undefined)[]): readonly string[] =>
    of.map((requestId) => sent.get(requestId ?? '') ?? '').toSorted();
  expect(routes(found.map(({ requestId }) => requestId))).toEqual(routes(wanted.map(([requestId]) => requestId)));
  for (const { keyId, operation, remote } of found)
    expect([keyId, remote, operation]).toEqual(['admin', '127.0.0.1', expect.not.stringContaining(' ')]);
});

test('who did what to a sandbox is told by dsec audit and the SDK, without a word of what was done', async () => {
  const { key, info } = await server().client.keys.create('agent 7');
  const secret = 'correct-horse-battery';
  const agent = server().connect({ apiKey: key });
  const sandbox = await agent.runContainer({ containerImage: server().environment, memoryLimitMb: 64 });
  const { sandboxId } = sandbox;
  expect((await sandbox.exec(['printf', '%s', secret], { env: { TOKEN: secret } })).stdout).toBe(secret);
  await sandbox.files.write('/tmp/a', secret);
  expect(await sandbox.files.readText('/tmp/a')).toBe(secret);
  await sandbox.policy.phase(null);
  await failureOf((await server().connect({ apiKey: key }).getSandbox(sandboxId)).exec(['/none']));
  await sandbox.stop();
  const found = await waitFor('the records', async () => {
    const all = await records({ sandboxId });
    return all.some(({ operation }) => operation === 'sandbox.stop') && all;
  });
  expect(found.map(({ operation, outcome }) => `${operation} ${outcome}`)).toEqual([
    'sandbox.create ok',
    'exec.start ok',
    'file.write ok',
    'file.read ok',
    'policy.phase ok',
    'exec.start command_not_found',
    'sandbox.stop ok',
  ]);
  for (const record of found) expect(record).toMatchObject({ keyId: info.keyId, keyName: 'agent 7', sandboxId });
  expect(found[1]?.detail).toMatchObject({ argv0: 'printf', args: 2 });
  expect(found[2]?.detail).toEqual({ path: '/tmp/a' });
  expect((await records({ principal: info.keyId })).length).toBe(found.length);
  const files = await Promise.all(
    (await readdir(directory())).map((name) => readFile(join(directory(), name), 'utf8')),
  );
  for (const hidden of [secret, key, server().apiKey]) expect(files.join('')).not.toContain(hidden);
  const shown = (await server().cli(['audit', '--sandbox', sandboxId, '--since', '1h'])).stdout.toString();
  expect(shown).toMatch(new RegExp(`agent 7 \\(${info.keyId}\\) +127.0.0.1 +exec.start +${sandboxId} \\w+ printf +ok`));
  const lines = (await server().cli(['audit', '--key', info.keyId, '-n', '3', '--json'])).stdout.toString().trimEnd();
  expect(lines.split('\n').map((line) => (JSON.parse(line) as AuditRecord).operation)).toEqual([
    'sandbox.stop',
    'exec.start',
    'policy.phase',
  ]);
  // Of a key that was taken back, nothing but the refusal.
  await server().client.keys.revoke(info.keyId);
  expect((await failureOf(agent.getSandbox(sandboxId))).code).toBe('unauthenticated');
  expect((await rawRequest({ endpoint: server().endpoint, apiKey: key }, '/audit')).status).toBe(401);
  const refused = await waitFor('the refusals', async () => {
    const all = (await records()).filter(({ outcome }) => outcome === 'unauthenticated');
    return all.length >= 2 && all;
  });
  expect(refused.map(({ keyId, remote }) => [keyId, remote])).toEqual([
    [undefined, '127.0.0.1'],
    [undefined, '127.0.0.1'],
  ]);
});

test('what is asked of the edge past the API stands out, with what it was', async () => {
  const sandbox = await server().sandbox();
  const { sandboxId } = sandbox;
  expect(await records({ operation: 'edge.stranger' })).toEqual([]);
  const socket = await new SystemNetwork().connectUnix(join(server().data, 'run/edge/edge.sock'));
  await using forger = WireClient.connect(socket, { role: 'apiserver', clock });
  // As whoever has come to the group of the apiserver, or to root, would: with a name that is not his.
  await failureOf(forger.call('edge.prove', { secret: 'x' }));
  const principal = { keyId: 'admin', project: 'default', isBuilder: true };
  await forger.call('policy.phase', { sandboxId, principal, request: { phase: null } });
  await forger.call('file.stat', { sandboxId, path: '/etc/passwd' });
  await forger.call('sandbox.stop', { sandboxId });
  const found = await waitFor('three strangers', async () => {
    const all = await records({ operation: 'edge.stranger', sandboxId });
    return all.length >= 3 && all;
  });
  expect(
    found.map(({ outcome, keyId, detail }) => [outcome, keyId, detail?.['method'], detail?.['claimedKeyId']]),
  ).toEqual([
    ['unproved', undefined, 'policy.phase', 'admin'],
    ['unproved', undefined, 'file.stat', undefined],
    ['unproved', undefined, 'sandbox.stop', undefined],
  ]);
  expect((await records({ operation: 'sandbox.stop', sandboxId })).length).toBe(0);
  expect((await server().cli(['audit', '--strangers'])).stdout.toString()).toContain(`${sandboxId} sandbox.stop`);
  const log = await readFile(join(server().data, 'log/edge.log'), 'utf8');
  expect(log.split('\n').filter((line) => line.includes('edge.stranger') && line.includes(sandboxId)).length).toBe(3);
});

test('a killed apiserver leaves the log whole: it goes on with a mark', { timeout: 60_000 }, async () => {
  const sandbox = await server().sandbox();
  const answered: string[] = [];
  let isOver = false;
  const work = (async (): Promise<void> => {
    while (!isOver) {
      try {
        answered.push((await sandbox.exec(['true'])).execId);
      } catch (error) {
        // Of a server that is killed.
        if (!PlatformError.is(error)) throw error;
      }
    }
  })();
  await waitFor('commands', () => answered.length > 100);
  const settled = [...answered];
  // Twice the time that a record may wait.
  await clock.sleep(400);
  await server().kill('apiserver');
  isOver = true;
  await work;
  const known = new Set((await records({ sandboxId: sandbox.sandboxId })).map(({ execId }) => execId));
  expect(settled.filter((execId) => !known.has(execId))).toEqual([]);
  const { problems, marks } = await verifyAudit(directory());
  expect([problems, marks.map(({ what }) => what)]).toEqual([[], [expect.stringContaining('was killed')]]);
  expect((await readdir(directory())).length).toBeGreaterThan(1);
});

test('what was changed in the log, or cut from it, is found', async () => {
  expect((await verify()).out).toMatch(/^whole: /);
  const [first = ''] = (await readdir(directory())).toSorted();
  const path = join(directory(), first);
  const text = await readFile(path, 'utf8');
  const changed = text.replace('"outcome":"ok"', '"outcome":"no"');
  expect(changed).not.toBe(text);
  await writeFile(path, changed);
  const tampered = await verify();
  expect([tampered.exitCode, tampered.out]).toEqual([
    1,
    expect.stringMatching(/is not chained[\s\S]*NOT WHOLE: 1 faults/),
  ]);
  await writeFile(path, text);
  const again = await verify();
  expect([again.exitCode, again.out]).toEqual([0, expect.stringContaining('it has what it had at record')]);
});

test('verbs that work as root on the machine of the server are in the log', async () => {
  const dsec = async (...args: readonly string[]): Promise<void> => {
    expect((await server().cli(args)).exitCode).toBe(0);
  };
  await dsec('env', 'prune');
  await dsec('key', 'create', 'of-the-cli');
  const operations = (await records()).filter(({ operation }) => /^(cli|key)\./.test(operation));
  const of = (name: string): AuditRecord | undefined => operations.findLast(({ operation }) => operation === name);
  expect(of('cli.up')?.detail).toMatchObject({ outcome: 'ok', user: 'root' });
  expect(of('cli.env.build')).toMatchObject({ environment: server().environment, keyId: 'admin', remote: 'unix' });
  expect(of('cli.env.prune')?.detail).toMatchObject({ dryRun: false });
  expect(of('key.create')).toMatchObject({ remote: 'unix', detail: { name: 'of-the-cli' } });
});
