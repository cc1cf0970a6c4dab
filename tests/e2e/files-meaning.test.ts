/** Names, owners, errors and links of files. */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { Files } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';

const server = useServer();

const names = [
  '🤣.txt',
  'a b.txt',
  'a\nb',
  '-rf',
  'q\'"$x',
  'n'.repeat(255),
  'é decomposed: e\u0301',
  '日本語',
  '%2e%2e%2f',
  '?a=b&c#d',
  'back\\slash',
  ' ',
  '...',
  '\u0001\u007f',
  '\u200b',
  '+plus',
  'semi;colon',
  '*',
];

test.for(names)('F03 a file of the name %j is written, listed, read, moved and removed', async (name) => {
  await using sandbox = await server().sandbox();
  const { files } = sandbox;
  const path = `/tmp/d/${name}`;
  const entry = await files.write(path, name);
  expect([entry.name, entry.path]).toEqual([name, path]);
  expect((await files.list('/tmp/d')).entries.map((listed) => [listed.name, listed.nameBase64])).toEqual([
    [name, undefined],
  ]);
  expect(await files.readText(path)).toBe(name);
  expect((await files.stat(path)).sizeBytes).toBe(Buffer.byteLength(name));
  await files.move(path, '/tmp/moved');
  await files.move('/tmp/moved', path);
  expect(await files.exists(path)).toBe(true);
  await files.mkdir(`/tmp/e/${name}/${name}`);
  await files.symlink(`/tmp/e/${name}/link`, path);
  expect(await files.readText(`/tmp/e/${name}/link`)).toBe(name);
  await files.remove(`/tmp/e/${name}`, { recursive: true });
  await files.remove(path);
  expect((await files.list('/tmp/d')).entries).toEqual([]);
});

test('F03 names that are not UTF-8 are listed with their bytes, and harm nothing', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(String.raw`mkdir /tmp/d; touch "$(printf '/tmp/d/\xff\xfe')" /tmp/d/plain`);
  const { entries } = await sandbox.files.list('/tmp/d');
  const odd = entries.find(({ name }) => name.includes('\ufffd'));
  expect(Buffer.from(odd?.nameBase64 ?? '', 'base64')).toEqual(Buffer.of(0xff, 0xfe));
  expect(entries).toHaveLength(2);
});

test('F03 a directory with names that are not UTF-8 comes out, and where two of them would become one none is lost in silence', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(String.raw`mkdir /tmp/d; cd /tmp/d; echo odd > "$(printf '\xff')"; echo even > plain`);
  const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
  try {
    await sandbox.files.downloadDirectory('/tmp/d', join(local, 'd'));
    expect((await readdir(join(local, 'd'))).toSorted()).toEqual(['plain', '\ufffd']);
    expect(await readFile(join(local, 'd/\ufffd'), 'utf8')).toBe('odd\n');
    await sandbox.runShell(String.raw`cd /tmp/d; echo other > "$(printf '\xfe')"`);
    const error = await failureOf(sandbox.files.downloadDirectory('/tmp/d', join(local, 'e')));
    expect([error.code, error.details['path']]).toEqual(['file_error', '\ufffd']);
  } finally {
    await rm(local, { recursive: true });
  }
});

test('F03 a name too long, a path too long and one with NUL are typed errors', async () => {
  await using sandbox = await server().sandbox();
  for (const path of [`/tmp/${'n'.repeat(256)}`, `/tmp/${'d/'.repeat(3000)}f`, '/tmp/a\0b', '']) {
    const error = await failureOf(sandbox.files.write(path, 'x'));
    expect([400, 422]).toContain(error.status);
  }
});

test('F06 a file and the parents that were made for it belong to who asked, with the mode that was asked for', async () => {
  await using sandbox = await server().sandbox();
  const { files } = sandbox;
  await files.write('/home/user/a/b/c.txt', 'x', { user: 'user', mode: 0o640 });
  for (const path of ['/home/user/a', '/home/user/a/b', '/home/user/a/b/c.txt']) {
    expect(await files.stat(path)).toMatchObject({ uid: 1000, gid: 1000 });
  }
  expect((await files.stat('/home/user/a/b/c.txt')).mode).toBe(0o640);
  expect((await files.stat('/home/user/a')).mode).toBe(0o755);
  await files.mkdir('/home/user/m/n', { user: '1000:1000', mode: 0o700 });
  expect(await files.stat('/home/user/m/n')).toMatchObject({ uid: 1000, gid: 1000, mode: 0o700 });
  expect((await files.stat('/home/user/m')).uid).toBe(1000);
  await files.symlink('/home/user/l', 'a/b/c.txt', { user: 'user' });
  expect(await files.stat('/home/user/l', { followLinks: false })).toMatchObject({
    uid: 1000,
    kind: 'symlink',
    target: 'a/b/c.txt',
  });
  expect(
    (await sandbox.exec(['rm', '-rf', '/home/user/a', '/home/user/m', '/home/user/l'], { user: 'user' })).exitCode,
  ).toBe(0);
  await files.write('/srv/x/y', 'x');
  expect(await files.stat('/srv/x')).toMatchObject({ uid: 0, gid: 0, mode: 0o755 });
  expect((await files.stat('/srv/x/y')).mode).toBe(0o644);
});

test('F06 without a user files belong to the user of the sandbox', async () => {
  await using sandbox = await server().sandbox({ initUser: 'user' });
  await sandbox.files.write('/home/user/p/f', 'x');
  expect(await sandbox.files.stat('/home/user/p')).toMatchObject({ uid: 1000 });
  expect((await failureOf(sandbox.files.write('/etc/x', 'x'))).code).toBe('file_permission');
});

test('F06 modes and owners are changed by who may', async () => {
  await using sandbox = await server().sandbox();
  const { files } = sandbox;
  await files.write('/home/user/f', 'x', { user: 'user' });
  expect((await files.chmod('/home/user/f', 0o4711, { user: 'user' })).mode).toBe(0o4711);
  expect((await failureOf(files.chown('/home/user/f', 'root', { user: 'user' }))).code).toBe('file_permission');
  expect(await files.chown('/home/user/f', 'root:user')).toMatchObject({ uid: 0, gid: 1000 });
  expect((await failureOf(files.chmod('/home/user/f', 0o777, { user: 'user' }))).code).toBe('file_permission');
  expect((await failureOf(files.chown('/home/user/f', 'nouser'))).code).toBe('user_not_found');
});

const faults: readonly (readonly [string, string, number, (files: Files) => PromiseLike<unknown>])[] = [
  ['reading what is missing', 'file_not_found', 404, (files) => files.read('/no/such')],
  ['reading a directory', 'is_directory', 400, (files) => files.read('/etc')],
  ['reading a device', 'not_regular_file', 400, (files) => files.read('/dev/zero')],
  ['reading a pipe that nobody writes to', 'not_regular_file', 400, (files) => files.read('/tmp/fifo')],
  ['reading through a file', 'not_directory', 400, (files) => files.read('/etc/passwd/x')],
  ['reading a file of root as a user', 'file_permission', 403, (files) => files.read('/tmp/private', { user: 'user' })],
  [
    'reading below a directory of root as a user',
    'file_permission',
    403,
    (files) => files.read('/tmp/closed/f', { user: 'user' }),
  ],
  ['reading a link to itself', 'file_error', 422, (files) => files.read('/tmp/loop')],
  ['writing onto a directory', 'is_directory', 400, (files) => files.write('/etc', 'x')],
  ['writing below a file', 'not_directory', 400, (files) => files.write('/etc/passwd/x', 'x')],
  [
    'writing into a directory of root as a user',
    'file_permission',
    403,
    (files) => files.write('/etc/x', 'x', { user: 'user' }),
  ],
  ['writing where everything is read-only', 'file_permission', 403, (files) => files.write('/sys/kernel/x', 'x')],
  ['making a directory where everything is read-only', 'file_permission', 403, (files) => files.mkdir('/sys/kernel/x')],
  ['writing onto a pipe', 'not_regular_file', 400, (files) => files.write('/tmp/fifo', 'x')],
  ['listing what is missing', 'file_not_found', 404, (files) => files.list('/no/such')],
  ['listing a file', 'not_directory', 400, (files) => files.list('/etc/passwd')],
  [
    'listing a directory of root as a user',
    'file_permission',
    403,
    (files) => files.list('/tmp/closed', { user: 'user' }),
  ],
  ['making a directory where a file is', 'file_exists', 409, (files) => files.mkdir('/etc/passwd')],
  ['removing what is missing', 'file_not_found', 404, (files) => files.remove('/no/such')],
  ['removing a full directory', 'directory_not_empty', 409, (files) => files.remove('/etc')],
  ['moving onto something', 'file_exists', 409, (files) => files.move('/tmp/private', '/etc/passwd')],
  ['moving what is missing', 'file_not_found', 404, (files) => files.move('/no/such', '/tmp/x')],
  ['linking where something is', 'file_exists', 409, (files) => files.symlink('/etc/passwd', '/x')],
  ['changing the mode of what is missing', 'file_not_found', 404, (files) => files.chmod('/no/such', 0o644)],
  ['watching what is missing', 'file_not_found', 404, (files) => files.watch('/no/such')],
  [
    'a directory out of what is missing',
    'file_not_found',
    404,
    (files) => files.downloadDirectory('/no/such', '/tmp/dsec-e2e-never'),
  ],
  [
    'anything as a user that is not there',
    'user_not_found',
    422,
    (files) => files.read('/etc/passwd', { user: 'nouser' }),
  ],
];

test('F08 each fault of a file operation has its own code and status, and names the path', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(
    'umask 077; echo s > /tmp/private; mkdir /tmp/closed; echo s > /tmp/closed/f; mkfifo /tmp/fifo; ln -s loop /tmp/loop',
  );
  const seen: (readonly [string, string, number])[] = [];
  for (const [what, , , attempt] of faults) {
    const error = await failureOf(attempt(sandbox.files));
    seen.push([what, error.code, error.status]);
    expect(error.infrastructure).toBe(false);
  }
  expect(seen).toEqual(faults.map(([what, code, status]) => [what, code, status]));
  expect((await failureOf(sandbox.files.read('/no/such'))).details['path']).toBe('/no/such');
  expect((await sandbox.files.readText('/etc/passwd')).length).toBeGreaterThan(0);
});

test('F08 the files of a sandbox that has ended are gone, and it says so', async () => {
  const sandbox = await server().sandbox();
  await sandbox.stop();
  expect((await failureOf(sandbox.files.read('/etc/passwd'))).code).toBe('sandbox_ended');
});
