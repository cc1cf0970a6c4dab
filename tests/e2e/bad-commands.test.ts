/** Commands and archives that are wrong in every way: each is refused with a typed error, and nothing of it is done. */
import { limits } from '@dsec/contract';
import { expect, test } from 'vitest';
import { rawExec, rawJson, rawRequest } from './raw-http.ts';
import { refusal } from './refusal.ts';
import { useServer } from './started-server.ts';
import { tarOf, type TarEntry } from './tar-archive.ts';

const server = useServer();

test('commands that say too much, too little or nonsense are refused, and none of them runs', async () => {
  await using sandbox = await server().sandbox();
  const bodies: readonly object[] = [
    {},
    { argv: ['true'], shell: 'true' },
    { argv: [] },
    { argv: [''] },
    { argv: 'true' },
    { argv: [7] },
    { argv: ['true', 'a\0b'] },
    { argv: Array.from({ length: limits.argvEntries + 1 }, () => 'x') },
    { shell: 7 },
    { shell: 'a\0b' },
    { argv: ['true'], env: { 'A B': 'x' } },
    { argv: ['true'], cwd: '' },
    { argv: ['true'], cwd: 'a\0b' },
    { argv: ['true'], user: '' },
    { argv: ['true'], user: 'a b' },
    { argv: ['true'], user: '$(id)' },
    { argv: ['true'], user: 'root:' },
    { argv: ['true'], user: '-1' },
    { argv: ['true'], stdin: 'maybe' },
    { argv: ['true'], stdinBase64: 'no base64!' },
    { argv: ['true'], stdin: 'open', stdinBase64: 'eA==' },
    { argv: ['true'], pty: { rows: 0, cols: 80 } },
    { argv: ['true'], pty: { rows: 24 } },
    { argv: ['true'], pty: { rows: 24, cols: 100_000 } },
    { argv: ['true'], timeoutMs: 0 },
    { argv: ['true'], outputLimitBytes: 1 },
    { argv: ['true'], outputLimitBytes: 1e12 },
    { argv: ['true'], tag: 'x'.repeat(257) },
    { argv: ['true'], surprise: true },
    { argv: ['true'], login: true },
    { argv: ['true'], sessionId: 'x' },
    { shell: 'true', sessionId: '../x' },
  ];
  const seen: (readonly [string, string])[] = [];
  for (const body of bodies)
    seen.push([JSON.stringify(body).slice(0, 80), await refusal(rawExec(server(), sandbox.sandboxId, body))]);
  const sensible = ['invalid_argument', 'command_not_found', 'user_not_found', 'session_not_found'];
  expect(seen.filter(([, code]) => !sensible.includes(code))).toEqual([]);
  expect(seen.filter(([, code]) => code !== 'invalid_argument').length).toBeLessThanOrEqual(3);
  expect(await refusal(rawExec(server(), sandbox.sandboxId, { shell: 'true', sessionId: 'nosuch' }))).toBe(
    'session_not_found',
  );
  expect(
    await refusal(rawExec(server(), sandbox.sandboxId, { argv: ['true'] }, { 'idempotency-key': 'x'.repeat(300) })),
  ).toBe('invalid_argument');
  for (const signal of [0, -1, 65, 1e9, '9', null]) {
    expect(await refusal(rawJson(server(), `/sandboxes/${sandbox.sandboxId}/execs/nosuch/signal`, { signal }))).toBe(
      'invalid_argument',
    );
  }
  expect(await sandbox.execs()).toEqual([]);
});

const hostile: readonly (readonly [string, TarEntry, string])[] = [
  ['a name with ..', { name: '../escaped', content: 'x' }, 'archive_unsafe'],
  ['a name with .. in the middle', { name: 'a/../../escaped', content: 'x' }, 'archive_unsafe'],
  ['an absolute name', { name: '/escaped', content: 'x' }, 'archive_unsafe'],
  ['a block device', { name: 'disk', type: '4' }, 'archive_unsafe'],
  ['a character device', { name: 'mem', type: '3' }, 'archive_unsafe'],
  ['a hard link out of it', { name: 'l', type: '1', target: '../../etc/shadow' }, 'archive_unsafe'],
  ['a hard link to an absolute name', { name: 'l', type: '1', target: '/etc/shadow' }, 'archive_unsafe'],
];

test.for(hostile)(
  'an uploaded tar with %s is refused with the entry named, and nothing outside is touched',
  async ([, entry, code]) => {
    await using sandbox = await server().sandbox();
    const upload = (entries: readonly TarEntry[]): Promise<Response> =>
      rawRequest(server(), `/sandboxes/${sandbox.sandboxId}/files/tree?path=/srv/in`, {
        method: 'PUT',
        headers: { 'content-type': 'application/x-tar' },
        body: Uint8Array.from(tarOf(entries)),
      });
    const answer = await upload([{ name: 'first', content: '1' }, entry, { name: 'last', content: '2' }]);
    expect(await answer.clone().text()).toContain(entry.name);
    expect(await refusal(answer)).toBe(code);
    for (const path of ['/escaped', '/srv/escaped', '/srv/in/disk', '/srv/in/mem', '/srv/in/l', '/srv/in/last']) {
      expect(await sandbox.files.exists(path)).toBe(false);
    }
    // Through a link that the tar itself makes.
    const through = await upload([
      { name: 'out', type: '2', target: '/' },
      { name: 'out/escaped', content: 'x' },
    ]);
    expect(through.status).toBeGreaterThanOrEqual(400);
    expect(await sandbox.files.exists('/escaped')).toBe(false);
  },
);

test('an uploaded tar that is damaged or cut short is refused', async () => {
  await using sandbox = await server().sandbox();
  const whole = tarOf([{ name: 'f', content: 'x'.repeat(5000) }]);
  const damaged = Buffer.from(whole);
  damaged[100] = 0xff;
  for (const body of [whole.subarray(0, 2000), damaged, Buffer.alloc(5000, 0x41)]) {
    const answer = await rawRequest(server(), `/sandboxes/${sandbox.sandboxId}/files/tree?path=/srv/in`, {
      method: 'PUT',
      headers: { 'content-type': 'application/x-tar' },
      body: Uint8Array.from(body),
    });
    expect(await refusal(answer)).toBe('archive_invalid');
  }
});
