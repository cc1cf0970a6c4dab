/** Files that are large, many, or written by many at once. */
import { createHash, randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, mkdtemp, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run } from '@dsec/kit';
import { expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { BytePattern, sha256Of } from './byte-pattern.ts';
import { failureOf } from './failure-of.ts';
import { GrowthWatch, MAX_GROWTH_BYTES } from './growth-watch.ts';
import { fileAppears } from './in-sandbox.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

test('F01 500 MB go in and out unaltered, through daemons that do not grow', { timeout: 180_000 }, async () => {
  await using sandbox = await server().sandbox({ diskLimitMb: 2048 });
  await using growth = await GrowthWatch.start(server(), sandbox);
  const pattern = new BytePattern(500_000_000);
  const expected = await pattern.sha256();
  const entry = await sandbox.files.write('/root/big', pattern.chunks());
  expect(entry.sizeBytes).toBe(pattern.sizeBytes);
  expect((await sandbox.exec(['sha256sum', '/root/big'])).stdout.slice(0, 64)).toBe(expected);
  expect(await sha256Of(await sandbox.files.readStream('/root/big'))).toBe(expected);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
});

test('F01 a directory of 300 MB goes in and out unaltered, through daemons that do not grow', {
  timeout: 120_000,
}, async () => {
  const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
  try {
    await mkdir(join(local, 'from'));
    const pattern = new BytePattern(100_000_000);
    for (const name of ['a', 'b', 'c']) await writeFile(join(local, 'from', name), pattern.chunks());
    await using sandbox = await server().sandbox({ diskLimitMb: 2048 });
    await using growth = await GrowthWatch.start(server(), sandbox);
    await sandbox.files.uploadDirectory(join(local, 'from'), '/root/tree');
    await sandbox.files.downloadDirectory('/root/tree', join(local, 'to'));
    const expected = await pattern.sha256();
    for (const name of ['a', 'b', 'c'])
      expect(await sha256Of(createReadStream(join(local, 'to', name)))).toBe(expected);
    expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
  } finally {
    await rm(local, { recursive: true });
  }
});

test('F01 an upload beyond the quota is a typed error and leaves nothing, not even a part', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox({ diskLimitMb: 64 });
  const error = await failureOf(sandbox.files.write('/root/big', new BytePattern(300_000_000).chunks()));
  expect(error.code).toBe('disk_full');
  expect(error.status).toBe(507);
  expect(
    (await sandbox.files.list('/root')).entries.filter(
      ({ sizeBytes, kind }) => kind === 'file' && sizeBytes > 1_000_000,
    ),
  ).toEqual([]);
  // A directory meets it in the middle of one of its files.
  const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
  try {
    await writeFile(join(local, 'big'), new BytePattern(100_000_000).chunks());
    const whole = await failureOf(sandbox.files.uploadDirectory(local, '/root/tree'));
    expect([whole.code, whole.status]).toEqual(['disk_full', 507]);
    await sandbox.runShell('rm -rf /root/tree');
  } finally {
    await rm(local, { recursive: true });
  }
  const pattern = new BytePattern(20_000_000);
  await sandbox.files.write('/root/fits', pattern.chunks());
  expect(await sha256Of(await sandbox.files.readStream('/root/fits'))).toBe(await pattern.sha256());
});

test('F01 parts of a file are read by offset and length, and appended to', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.files.write('/tmp/f', '0123456789');
  expect(await sandbox.files.readText('/tmp/f', { offset: 3, length: 4 })).toBe('3456');
  expect(await sandbox.files.readText('/tmp/f', { offset: 8 })).toBe('89');
  expect(await sandbox.files.readText('/tmp/f', { offset: 50 })).toBe('');
  await sandbox.files.write('/tmp/f', 'ab', { append: true });
  expect(await sandbox.files.readText('/tmp/f')).toBe('0123456789ab');
  const writer = sandbox.files.writeStream('/tmp/g').getWriter();
  for (const part of ['one ', 'two ', 'three']) await writer.write(new TextEncoder().encode(part));
  expect(await sandbox.files.exists('/tmp/g')).toBe(false);
  await writer.close();
  expect(await sandbox.files.readText('/tmp/g')).toBe('one two three');
});

test('F01 an upload that its client breaks off leaves the old file and no part of the new', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.files.write('/tmp/d/f', 'old');
  const abort = new AbortController();
  async function* broken(): AsyncGenerator<Uint8Array> {
    for (let index = 0; ; index += 1) {
      if (index === 40) abort.abort();
      yield await Promise.resolve(randomBytes(100_000));
    }
  }
  expect((await failureOf(sandbox.files.write('/tmp/d/f', broken(), { signal: abort.signal }))).code).toBe('cancelled');
  await sandbox.files.write('/tmp/d/after', 'x');
  expect(await sandbox.files.readText('/tmp/d/f')).toBe('old');
  await waitFor('the part to be gone', async () => (await fileNames(sandbox, '/tmp/d')).join() === 'after,f');
});

test('F09 a directory keeps symlinks, modes, empty directories and dot files on its way in and out', async () => {
  const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
  try {
    const from = join(local, 'from');
    await mkdir(join(from, 'empty', 'deep'), { recursive: true });
    await mkdir(join(from, 'closed'), { mode: 0o750 });
    await writeFile(join(from, '.hidden'), 'dot');
    await writeFile(join(from, 'run.sh'), '#!/bin/sh\necho ran\n', { mode: 0o755 });
    await writeFile(join(from, 'closed', 'secret'), 's', { mode: 0o600 });
    await writeFile(join(from, 'nothing'), '');
    await writeFile(join(from, 'ü 🤣 \n x'), 'odd name');
    await writeFile(join(from, 'l'.repeat(255)), 'long name');
    await writeFile(join(from, 'big'), randomBytes(3_000_000));
    await symlink('run.sh', join(from, 'to-run'));
    await symlink('/no/where', join(from, 'dangling'));
    await symlink('..', join(from, 'empty', 'up'));
    await using sandbox = await server().sandbox();
    await sandbox.files.uploadDirectory(from, '/srv/tree', { user: 'root' });
    const to = join(local, 'to');
    await sandbox.files.downloadDirectory('/srv/tree', to);
    const find = ['find', '.', '-mindepth', '1', '-printf', String.raw`%P %y %m %l %s\0`] as const;
    const listing = async (cwd: string): Promise<readonly string[]> =>
      withoutDirectorySizes((await run([...find], { clock, cwd, env: { PATH: '/usr/bin:/bin' } })).stdout.toString());
    expect(await listing(to)).toEqual(await listing(from));
    expect(
      (
        await run(['diff', '-r', '--no-dereference', from, to], { clock, env: { PATH: '/usr/bin:/bin' } })
      ).stdout.toString(),
    ).toBe('');
    expect(await readlink(join(to, 'dangling'))).toBe('/no/where');
    const inside = await sandbox.exec([...find], { cwd: '/srv/tree' });
    expect(withoutDirectorySizes(inside.stdout)).toEqual(await listing(from));
    expect((await sandbox.exec(['./to-run'], { cwd: '/srv/tree' })).stdout).toBe('ran\n');
  } finally {
    await rm(local, { recursive: true });
  }
});

test('F09 what a user uploads belongs to that user', async () => {
  const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
  try {
    await mkdir(join(local, 'a'));
    await writeFile(join(local, 'a', 'f'), 'x');
    await using sandbox = await server().sandbox();
    await sandbox.files.uploadDirectory(local, '/home/user/tree', { user: 'user' });
    expect((await sandbox.exec(['find', '/home/user/tree', '!', '-user', '1000'])).stdout).toBe('');
    expect((await sandbox.exec(['rm', '-rf', '/home/user/tree'], { user: 'user' })).exitCode).toBe(0);
  } finally {
    await rm(local, { recursive: true });
  }
});

test('F11 overwriting keeps owner and mode, whoever writes', async () => {
  await using sandbox = await server().sandbox();
  const { files } = sandbox;
  await files.write('/home/user/f', 'old', { user: 'user', mode: 0o600 });
  await files.write('/home/user/f', 'new', { user: 'root' });
  expect(await files.stat('/home/user/f')).toMatchObject({ uid: 1000, gid: 1000, mode: 0o600, sizeBytes: 3 });
  expect(await files.readText('/home/user/f', { user: 'user' })).toBe('new');
  await files.write('/home/user/f', 'again', { user: 'user', mode: 0o644 });
  expect(await files.stat('/home/user/f')).toMatchObject({ uid: 1000, mode: 0o600 });
  await sandbox.runShell('chmod 4755 /home/user/f; chown root:user /home/user/f; chmod 664 /home/user/f');
  await files.write('/home/user/f', 'third', { user: 'root' });
  expect(await files.stat('/home/user/f')).toMatchObject({ uid: 0, gid: 1000, mode: 0o664 });
});

test('F11 readers of a file that is overwritten see the old or the new, never a part', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  const size = 400_000;
  await sandbox.files.write('/tmp/f', 'a'.repeat(size));
  const reader = sandbox.exec([
    'python3',
    '-c',
    `
import os
seen = 0
while not os.path.exists('/tmp/stop'):
    text = open('/tmp/f').read()
    assert len(text) == ${size} and text == text[0] * ${size}, len(text)
    seen += 1
print(seen)`,
  ]);
  for (let index = 0; index < 60; index += 1)
    await sandbox.files.write('/tmp/f', (index % 2 === 0 ? 'b' : 'a').repeat(size));
  await sandbox.files.write('/tmp/stop', '');
  const result = await reader;
  expect(result.stderr).toBe('');
  expect(Number(result.stdout)).toBeGreaterThan(10);
});

test('F15 of fifty uploads to one path at once one is there, whole', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  const blobs = Array.from({ length: 50 }, () => randomBytes(1_000_000));
  const entries = await Promise.all(blobs.map((blob) => sandbox.files.write('/tmp/d/blob', blob)));
  for (const { sizeBytes } of entries) expect(sizeBytes).toBe(1_000_000);
  const found = sha256(await sandbox.files.read('/tmp/d/blob'));
  expect(blobs.filter((blob) => sha256(blob) === found)).toHaveLength(1);
  expect(await fileNames(sandbox, '/tmp/d')).toEqual(['blob']);
});

test('F15 uploads to many paths at once, which make the same parents, all arrive', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  const blobs = Array.from({ length: 50 }, () => randomBytes(20_000));
  await Promise.all(blobs.map((blob, index) => sandbox.files.write(`/tmp/a/b/c/${index % 5}/${index}`, blob)));
  const read = await Promise.all(blobs.map((_, index) => sandbox.files.read(`/tmp/a/b/c/${index % 5}/${index}`)));
  expect(read.map(sha256)).toEqual(blobs.map(sha256));
  await fileAppears(sandbox, '/tmp/a/b/c/0/0');
});

async function fileNames(sandbox: Sandbox, path: string): Promise<readonly string[]> {
  return (await sandbox.files.list(path)).entries.map(({ name }) => name).toSorted();
}

/** Entries of a `find`, sorted; the size of a directory is the file system's own business. */
function withoutDirectorySizes(found: string): readonly string[] {
  return found
    .split('\0')
    .map((entry) => entry.replace(/ d (\d+) {2}\d+$/, ' d $1'))
    .toSorted();
}
