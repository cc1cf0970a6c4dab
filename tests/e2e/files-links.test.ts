/** Links of a hostile sandbox, signed links, and watches. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PlatformError, type Watch } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { aetherPid } from './host-side.ts';
import { processFacts } from './process-facts.ts';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';

const server = useServer();

const SECRET = 'a secret of the host';
let outside = '';
beforeAll(async () => {
  outside = await mkdtemp(join(tmpdir(), 'dsec-e2e-outside-'));
  await writeFile(join(outside, 'secret'), SECRET);
});
afterAll(() => rm(outside, { recursive: true }));

/** Nobody has written beside the secret or changed it. */
async function expectUntouched(): Promise<void> {
  expect(await readdir(outside)).toEqual(['secret']);
  expect(await readFile(join(outside, 'secret'), 'utf8')).toBe(SECRET);
}

test('F04 symlinks lead to the files of the sandbox and never to those of the host', async () => {
  await using sandbox = await server().sandbox();
  const { files } = sandbox;
  const up = '../'.repeat(30);
  await sandbox.runShell(
    `mkdir -p /w && cd /w && ln -s /etc/hostname x && ln -s /outside d && ln -s /no/where z && ln -s ${up}${outside}/secret up && ln -s ${outside} o && ln -s /proc/1/root r && ln -s /proc/self/root s && ln -s /proc/1/cwd c`,
  );
  expect(await files.readText('/w/x')).toBe((await sandbox.exec(['cat', '/etc/hostname'])).stdout);
  await sandbox.exec(['mkdir', '/outside']);
  await files.write('/w/d/new/f', 'inside');
  expect((await sandbox.exec(['cat', '/outside/new/f'])).stdout).toBe('inside');
  const ways = [
    '/w/up',
    '/w/o/secret',
    ...['/w/r', '/w/s', '/w/c', '', '/proc/1/root', '/proc/1/cwd'].map((root) => `${root}${outside}/secret`),
  ];
  for (const path of ways) {
    expect(['file_not_found', 'file_permission', 'file_error']).toContain((await failureOf(files.read(path))).code);
  }
  for (const path of ways) {
    await attempt(files.write(path, 'overwritten'));
    await attempt(files.remove(path));
    await attempt(files.list(join(path, '..')));
  }
  await attempt(files.write('/w/z', 'through a link to nowhere'));
  await attempt(files.write('/w/o/planted', 'x'));
  await attempt(files.mkdir('/w/o/planted'));
  await attempt(files.move('/etc/hostname', '/w/o/planted'));
  await attempt(files.symlink('/w/o/planted', '/x'));
  await expectUntouched();
});

test('F04 directories that turn into links while they are walked lead nowhere else', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  const { files } = sandbox;
  const racer = sandbox.exec([
    'python3',
    '-c',
    `
import ctypes, os
os.makedirs('/w/a')
open('/w/a/secret', 'w').write('inside')
os.symlink('${'../'.repeat(30)}${outside}', '/w/link')
open('/w/ready', 'w').close()
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b'/w/a', -100, b'/w/link', 2)`,
  ]);
  await waitFor('the race', () => files.exists('/w/ready'));
  const seen = new Set<string>();
  for (let round = 0; round < 300; round += 1) {
    seen.add(await files.readText('/w/a/secret').catch(codeOf));
    await attempt(files.write(`/w/a/planted${round}`, 'x'));
    await attempt(files.remove(`/w/a/planted${round}`));
  }
  await racer.kill();
  expect(seen).not.toContain(SECRET);
  expect(seen).toContain('inside');
  await expectUntouched();
});

test('F04 a directory that is copied out and in keeps to its places although it is full of links', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(
    `mkdir -p /w/t && cd /w/t && ln -s ${outside} o && ln -s / root && ln -s .. up && echo x > f && ln f hard`,
  );
  const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
  try {
    await sandbox.files.downloadDirectory('/w/t', join(local, 't'));
    expect((await readdir(join(local, 't'))).toSorted()).toEqual(['f', 'hard', 'o', 'root', 'up']);
    await sandbox.files.uploadDirectory(join(local, 't'), '/w/again');
    // What is there already may lead elsewhere: it is not followed.
    await sandbox.runShell(`mkdir /w/trap && ln -s ${outside} /w/trap/f && ln -s /etc /w/trap/o`);
    await attempt(sandbox.files.uploadDirectory(join(local, 't'), '/w/trap'));
    expect(await readdir(local)).toEqual(['t']);
  } finally {
    await rm(local, { recursive: true });
  }
  await expectUntouched();
});

test('F12 a recursive watch tells of each of ten thousand files in new directories, or says that it missed some', {
  timeout: 90_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.exec(['mkdir', '/w']);
  await sandbox.runShell('ln -s /w /w/self; ln -s /no/where /w/broken');
  await using watch = await sandbox.files.watch('/w', { recursive: true });
  const making = sandbox.runShell(
    'for d in $(seq 100); do mkdir -p /w/$d/x; for f in $(seq 100); do : > /w/$d/x/$f; done; done; : > /w/end',
  );
  const created = new Set<string>();
  let overflowed = false;
  for await (const event of watch) {
    if (event.kind === 'overflow') overflowed = true;
    else if (event.kind === 'create') created.add(event.path);
    if (event.kind !== 'overflow' && event.path === '/w/end') break;
    if (overflowed && created.has('/w/end')) break;
  }
  expect((await making).exitCode).toBe(0);
  const missing = Array.from(
    { length: 10_000 },
    (_, index) => `/w/${Math.floor(index / 100) + 1}/x/${(index % 100) + 1}`,
  ).filter((path) => !created.has(path));
  if (!overflowed) expect(missing).toEqual([]);
  expect([...created].filter((path) => path.startsWith('/w/self/'))).toEqual([]);
});

test('F12 a watch tells of every kind of change', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.exec(['mkdir', '/w']);
  await using watch = await sandbox.files.watch('/w');
  await sandbox.runShell('cd /w; echo a > f; echo b >> f; chmod 600 f; mv f g; rm g; mkdir d; rmdir d; : > end');
  const kinds = new Set(await eventsUntil(watch, '/w/end'));
  for (const kind of [
    'create /w/f',
    'modify /w/f',
    'attrib /w/f',
    'move /w/f',
    'remove /w/g',
    'create /w/d',
    'remove /w/d',
  ]) {
    expect([...kinds]).toContain(kind);
  }
});

test('F12 a watch that was cancelled is begun anew at once, and leaves nothing behind', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell('mkdir -p /w/$(seq -s / 20)');
  const round = async (index: number): Promise<void> => {
    await using watch = await sandbox.files.watch('/w', { recursive: true });
    await sandbox.files.write(`/w/f${index}`, '');
    await eventsUntil(watch, `/w/f${index}`);
  };
  await round(0);
  const before = await Promise.all((await server().daemons()).map((pid) => processFacts(pid)));
  const aether = await aetherPid(server(), sandbox.sandboxId);
  const held = await processFacts(aether);
  for (let index = 1; index <= 60; index += 1) await round(index);
  await waitFor('descriptors as before', async () => {
    const after = await Promise.all((await server().daemons()).map((pid) => processFacts(pid)));
    return after.every(({ openFiles }, index) => openFiles <= (before[index]?.openFiles ?? 0) + 4);
  });
  await waitFor('watches of aether as before', async () => (await processFacts(aether)).openFiles <= held.openFiles);
});

test('F12 a watch of a directory that is removed, or of a sandbox that ends, ends', async () => {
  const sandbox = await server().sandbox();
  await sandbox.exec(['mkdir', '/w']);
  await using watch = await sandbox.files.watch('/w');
  const failure = failureOf(
    (async () => {
      for await (const event of watch) void event;
    })(),
  );
  await sandbox.stop();
  expect(['sandbox_ended', 'sandbox_failed']).toContain((await failure).code);
});

test('F14 a signed link works without a key for what it was made for, until it expires, and for nothing else', async () => {
  await using sandbox = await server().sandbox();
  await using other = await server().sandbox();
  for (const box of [sandbox, other]) await box.files.write('/tmp/f', 'content');
  await sandbox.files.write('/tmp/g', 'other content');
  const { url, expiresAtMs } = await sandbox.files.signedUrl('/tmp/f', { expiresInSeconds: 60 });
  const answer = await fetch(url);
  expect([answer.status, await answer.text()]).toEqual([200, 'content']);
  expect(expiresAtMs).toBeGreaterThan(0);
  const forged = [
    url.replace('%2Ftmp%2Ff', '%2Ftmp%2Fg').replace('/tmp/f', '/tmp/g'),
    url.replace(sandbox.sandboxId, other.sandboxId),
    `${url}&user=root`,
    ...alteredParts(url),
  ].filter((altered) => altered !== url);
  expect(forged.length).toBeGreaterThan(4);
  for (const altered of forged) {
    const refused = await fetch(altered);
    expect([400, 401, 403]).toContain(refused.status);
    expect(await refused.text()).not.toContain('content');
  }
  for (const method of ['PUT', 'DELETE', 'POST']) {
    const refused = await fetch(url, { method, ...(method === 'DELETE' ? {} : { body: 'x' }) });
    expect([401, 403, 404, 405, 415]).toContain(refused.status);
  }
  expect(await sandbox.files.readText('/tmp/f')).toBe('content');
});

test('F14 a link to write writes only its file, as its user', async () => {
  await using sandbox = await server().sandbox();
  const { url } = await sandbox.files.signedUrl('/home/user/up', {
    operation: 'write',
    user: 'user',
    expiresInSeconds: 60,
  });
  expect(
    (await fetch(url, { method: 'PUT', body: 'uploaded', headers: { 'content-type': 'application/octet-stream' } }))
      .status,
  ).toBe(200);
  expect(await sandbox.files.readText('/home/user/up')).toBe('uploaded');
  expect((await sandbox.files.stat('/home/user/up')).uid).toBe(1000);
  expect([401, 403]).toContain((await fetch(url)).status);
  expect([400, 401, 403]).toContain(
    (
      await fetch(url.replace('user=user', 'user=root'), {
        method: 'PUT',
        body: 'x',
        headers: { 'content-type': 'application/octet-stream' },
      })
    ).status,
  );
});

test('F14 an expired link is refused, and says so', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.files.write('/tmp/f', 'content');
  const { url } = await sandbox.files.signedUrl('/tmp/f', { expiresInSeconds: 1 });
  const refused = await waitFor('its end', async () => {
    const answer = await fetch(url);
    const body = await answer.text();
    return answer.status !== 200 && { status: answer.status, body };
  });
  expect(refused.status).toBe(403);
  expect(refused.body).toContain('link_expired');
});

/** The link with each of its parameters altered in turn: changed by one character, cut short, left out. */
function alteredParts(url: string): readonly string[] {
  const parsed = new URL(url);
  return [...parsed.searchParams.keys()].flatMap((key) => {
    const value = parsed.searchParams.get(key) ?? '';
    const changed = [value.slice(0, -1) + (value.endsWith('0') ? '1' : '0'), value.slice(0, -1), `${value}0`].map(
      (next) => {
        const altered = new URL(url);
        altered.searchParams.set(key, next);
        return altered.href;
      },
    );
    const without = new URL(url);
    without.searchParams.delete(key);
    return [...changed, without.href];
  });
}

/** Kinds and paths of events, until one is of this path. */
async function eventsUntil(watch: Watch, path: string): Promise<readonly string[]> {
  const seen: string[] = [];
  for await (const event of watch) {
    if (event.kind === 'overflow') continue;
    seen.push(`${event.kind} ${event.path}`);
    if (event.path === path) return seen;
  }
  throw new Error(`the watch ended without ${path}`);
}

const codeOf = (error: unknown): string => (PlatformError.is(error) ? error.code : String(error));

/** Whatever comes of it, as long as it is typed. */
async function attempt(work: Promise<unknown>): Promise<void> {
  await work.catch((error: unknown) => {
    if (!PlatformError.is(error) || error.code === 'internal') throw error;
  });
}
