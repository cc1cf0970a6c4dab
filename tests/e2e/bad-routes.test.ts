/** Every route of the API description, with ids and keys that are not good for it. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { MAX_EDGE_NUMBER } from '@dsec/contract';
import { afterEach, expect, test } from 'vitest';
import { rawRequest } from './raw-http.ts';
import { refusal } from './refusal.ts';
import { useServer } from './started-server.ts';

const server = useServer();

const SPEC_FILE = join(import.meta.dirname, '../../spec/openapi.json');
const spec = JSON.parse(await readFile(SPEC_FILE, 'utf8')) as {
  readonly paths: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
};

const wantsBody = (operation: unknown): boolean =>
  typeof operation === 'object' && operation !== null && 'requestBody' in operation;

/** A body that is good for the route, by method and what comes after the id. */
const bodies: Readonly<Record<string, unknown>> = {
  'patch ': { ttlSeconds: 5 },
  'post /execs': { argv: ['true'] },
  'post /execs/{eid}/resize': { rows: 24, cols: 80 },
  'post /execs/{eid}/signal': { signal: 9 },
  'post /files/change': { path: '/tmp/x', mode: 0o644 },
  'post /files/mkdir': { path: '/tmp/x' },
  'post /files/move': { from: '/tmp/x', to: '/tmp/y' },
  'post /files/sign': { operation: 'read', path: '/tmp/x', expiresInSeconds: 60 },
  'post /files/symlink': { path: '/tmp/x', target: '/y' },
  'post /phase': { phase: null },
  'post /pack': { name: 'packed', kind: 'toolkit' },
  'post /ports/{port}/token': {},
  'post /sessions': {},
  'put /policy': {},
};
const types: Readonly<Record<string, string>> = {
  'put /files': 'application/octet-stream',
  'put /files/tree': 'application/x-tar',
  'put /execs/{eid}/stdin': 'application/octet-stream',
};

interface Route {
  readonly name: string;
  readonly method: string;
  /** With `{id}` where the sandbox is named. */
  readonly path: string;
  readonly init: RequestInit;
}

/** A route with a JSON body, or with bytes of a type. */
function route(method: string, path: string, body?: unknown, type?: string): Route {
  const json = { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } };
  const bytes = { body: new Uint8Array(1024), headers: { 'content-type': type ?? '' } };
  return {
    name: `${method} ${path}`,
    method,
    path,
    init: { method, ...(body === undefined ? {} : json), ...(type === undefined ? {} : bytes) },
  };
}

const SANDBOX = '/v1/sandboxes/{id}';

/** Every route of one sandbox but that of terminals, which takes only WebSockets. */
const ofSandbox: readonly Route[] = Object.entries(spec.paths)
  .filter(([path]) => path.startsWith(SANDBOX) && !path.endsWith('/pty'))
  .flatMap(([path, methods]) =>
    Object.keys(methods).map((name): Route => {
      const rest = path.slice(SANDBOX.length);
      const method = name === 'x-any-method' ? 'post' : name;
      const body = bodies[`${method} ${rest}`];
      const type = types[`${method} ${rest}`];
      const query = rest.startsWith('/files') && body === undefined ? '?path=/tmp/x' : '';
      const filled = rest
        .replace('{eid}', 'e1')
        .replace('{sid}', 's1')
        .replace('{port}', '8000')
        .replace('{path}', 'x');
      return {
        ...route(method.toUpperCase(), `/sandboxes/{id}${filled}${query}`, body, type),
        name: `${method} ${rest}`,
      };
    }),
  );

async function ask(asked: Route, id: string, authorization?: string): Promise<string> {
  const headers = new Headers(asked.init.headers);
  if (authorization !== undefined) headers.set('authorization', authorization);
  return refusal(rawRequest(server(), asked.path.replace('{id}', id), { ...asked.init, headers }));
}

afterEach(async () => {
  expect(await server().client.sandboxes().toArray()).toEqual([]);
});

test('there is a good body for each route that wants one', () => {
  expect(ofSandbox.length).toBeGreaterThan(25);
  const names = new Set(ofSandbox.map(({ name }) => name));
  const given = [...Object.keys(bodies), ...Object.keys(types)];
  expect(given.filter((name) => !names.has(name))).toEqual([]);
  const wanting = Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => path.startsWith(SANDBOX) && wantsBody(operation))
      .map(([method]) => `${method} ${path.slice(SANDBOX.length)}`),
  );
  expect(wanting.filter((name) => !given.includes(name))).toEqual([]);
});

test('a forged id, one of another edge and one of nothing are refused on every route', async () => {
  const sandbox = await server().sandbox();
  const forged = sandbox.sandboxId.slice(0, -1) + (sandbox.sandboxId.endsWith('0') ? '1' : '0');
  const ids = [
    [forged, 'invalid_id'],
    ['s', 'invalid_id'],
    [await server().idOfEdge(MAX_EDGE_NUMBER), 'edge_unknown'],
    [await server().idOfEdge(0), 'sandbox_not_found'],
  ] as const;
  const seen: (readonly [string, string, string])[] = [];
  const expected: (readonly [string, string, string])[] = [];
  for (const each of ofSandbox) {
    for (const [id, code] of ids) {
      // Tokens and links are made without a look at the sandbox: they open nothing where there is none.
      if (code === 'sandbox_not_found' && /\/(token|sign)$/.test(each.name)) continue;
      expected.push([each.name, id, code]);
      seen.push([each.name, id, await ask(each, id)]);
    }
  }
  expect(seen).toEqual(expected);
  // Those of the sandbox that is there were touched by none of it.
  expect((await sandbox.info()).state).toBe('running');
  expect(await sandbox.execs()).toEqual([]);
  await sandbox.stop();
});

test('a sandbox that has ended says so on every route that needs it alive', async () => {
  const sandbox = await server().sandbox();
  await sandbox.stop();
  const seen: (readonly [string, string])[] = [];
  for (const each of ofSandbox) {
    // It and its report are still shown, it is stopped again without harm, and links to it are made that open nothing.
    if (/^(get|delete) $|^get \/behaviour$/.test(each.name) || /\/(token|sign)$/.test(each.name)) continue;
    seen.push([each.name, await ask(each, sandbox.sandboxId)]);
  }
  expect(seen.filter(([, code]) => code !== 'sandbox_ended')).toEqual([]);
});

test('without a key, with a wrong one and with a revoked one every route is closed, and with one for reading all that change', async () => {
  const sandbox = await server().sandbox();
  const revoked = await server().client.keys.create('revoked');
  const reading = await server().client.keys.create('reading', { readOnly: true });
  await server().client.keys.revoke(revoked.info.keyId);
  const { environment } = server();
  const others: readonly Route[] = [
    route('GET', '/sandboxes'),
    route('POST', '/sandboxes', { environment }),
    route('POST', '/sandboxes/bulk', { count: 1, template: { environment } }),
    route('POST', '/sandboxes/stop', { sandboxIds: [sandbox.sandboxId] }),
    route('GET', '/environments'),
    route('GET', `/environments/${environment}/usage`),
    route('GET', '/events'),
    route('GET', '/compositions'),
    route('DELETE', `/environments/${environment}`),
    route('GET', '/keys'),
    route('GET', '/audit'),
    route('POST', '/audit', { verb: 'up', outcome: 'ok' }),
    route('POST', '/keys', { name: 'x' }),
    route('DELETE', `/keys/${reading.info.keyId}`),
  ];
  const open: string[] = [];
  for (const closed of [...ofSandbox, ...others]) {
    for (const authorization of ['', 'Bearer wrong', `Bearer ${revoked.key}`]) {
      const code = await ask(closed, sandbox.sandboxId, authorization);
      if (code !== 'unauthenticated') open.push(`${closed.name} ${authorization.slice(0, 12)}: ${code}`);
    }
    if (closed.method === 'GET') continue;
    const code = await ask(closed, sandbox.sandboxId, `Bearer ${reading.key}`);
    if (code !== 'permission_denied') open.push(`${closed.name} for reading: ${code}`);
  }
  expect(open).toEqual([]);
  expect((await server().client.environments.list().toArray()).map(({ name }) => name)).toEqual([server().environment]);
  expect((await sandbox.info()).state).toBe('running');
  expect(await sandbox.files.exists('/tmp/x')).toBe(false);
  expect([await sandbox.execs(), await sandbox.sessions()]).toEqual([[], []]);
  await sandbox.stop();
});
