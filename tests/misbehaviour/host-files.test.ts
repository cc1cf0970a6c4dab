/** Root inside exchanges a directory for a link, over and over, under everything that the platform does with its files: nothing of the host is read, written or removed, and what is told is true. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PlatformError, type Exec, type Sandbox } from '@dsec/libdsec';
import { fileAppears } from '../e2e/in-sandbox.ts';
import { useServer } from '../e2e/started-server.ts';
import { expectUnharmed } from './attack.ts';

const server = useServer();

const SECRET = 'a secret of the host';
const ROUNDS = 40;
/** Where links of the sandbox lead: by its path, and up through every root that there could be. */
let outside = '';
let local = '';
let sandbox: Sandbox;
let neighbour: Sandbox;
let racer: Exec;

beforeAll(async () => {
  outside = await mkdtemp(join(tmpdir(), 'dsec-e2e-outside-'));
  local = await mkdtemp(join(tmpdir(), 'dsec-e2e-local-'));
  await writeFile(join(outside, 'secret'), SECRET);
  [sandbox, neighbour] = await Promise.all([server().sandbox({ diskLimitMb: 256 }), server().sandbox()]);
  racer = sandbox.exec([
    'python3',
    '-c',
    `
import ctypes, os
# The same names below the link as in the directory, so that whoever is led away finds what he looks for.
for top in ['/w/a', '/w/deep/a', '/w/deep/a/b/c']: os.makedirs(top, exist_ok=True)
for path in ['/w/a/secret', '/w/deep/a/secret', '/w/deep/a/b/c/secret']: open(path, 'w').write('inside')
os.symlink('${'../'.repeat(30)}${outside.slice(1)}', '/w/link')
os.symlink('/proc/1/root${outside}', '/w/deep/link')
os.symlink('/proc/1/root', '/w/first'); os.symlink('/proc/1/cwd', '/w/cwd'); os.symlink('/proc/1/fd', '/w/fd')
open('/w/ready', 'w').close()
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b'/w/a', -100, b'/w/link', 2)
    libc.renameat2(-100, b'/w/deep/a', -100, b'/w/deep/link', 2)`,
  ]);
  await fileAppears(sandbox, '/w/ready');
});

afterAll(async () => {
  await racer.kill();
  await racer;
  expect(await readdir(outside)).toEqual(['secret']);
  expect(await readFile(join(outside, 'secret'), 'utf8')).toBe(SECRET);
  await expectUnharmed(sandbox, neighbour);
  await Promise.all([sandbox.stop(), neighbour.stop()]);
  for (const path of [outside, local]) await rm(path, { recursive: true });
});

/** What came of it: text, or the code of a typed error. */
async function told(work: Promise<unknown>): Promise<string> {
  return work.then(
    (value) => (typeof value === 'string' ? value : JSON.stringify(value ?? 'done')),
    (error: unknown) => {
      if (!PlatformError.is(error) || error.code === 'internal') throw error;
      return error.code;
    },
  );
}

const DIRECTORIES = ['/w/a', '/w/deep/a', '/w/deep/a/b/c'];

test('F04 files, attributes and lists that are asked for meanwhile are those of the sandbox', {
  timeout: 60_000,
}, async () => {
  const { files } = sandbox;
  const seen = new Set<string>();
  for (let round = 0; round < ROUNDS; round++) {
    for (const top of DIRECTORIES) {
      const answers = await Promise.all([
        told(files.readText(`${top}/secret`)),
        told(files.stat(`${top}/secret`).then(({ sizeBytes }) => `${sizeBytes}`)),
        told(files.list(top).then(({ entries }) => entries.map(({ name }) => name).join())),
        told(files.list(top, { depth: 4 }).then(({ entries }) => entries.map(({ path }) => path).join())),
        told(files.exists(`${top}/secret`)),
        told(files.readText(`/w/first${outside}/secret`)),
        told(files.readText(`/w/cwd/${'../'.repeat(8)}${outside}/secret`)),
        told(files.list('/w/fd')),
      ]);
      for (const answer of answers) seen.add(answer);
    }
  }
  expect(seen).toContain('inside');
  expect([...seen].filter((answer) => answer.includes(SECRET) || answer === String(SECRET.length))).toEqual([]);
});

test('F04 what is written, made, moved, linked, owned and removed meanwhile is of the sandbox', {
  timeout: 60_000,
}, async () => {
  const { files } = sandbox;
  for (let round = 0; round < ROUNDS; round++) {
    for (const top of DIRECTORIES) {
      await Promise.all([
        told(files.write(`${top}/planted${round}`, 'x')),
        told(files.write(`${top}/made/on/the/way${round}`, 'x')),
        told(files.mkdir(`${top}/directory${round}`)),
        told(files.symlink('/etc/passwd', `${top}/link${round}`)),
        told(files.move('/w/ready', `${top}/ready`)),
        told(files.chmod(`${top}/secret`, 0o777)),
        told(files.chown(`${top}/secret`, '0:0')),
        told(files.remove(`${top}/planted${round}`)),
        told(files.remove(`${top}/made`, { recursive: true })),
      ]);
    }
  }
  expect(await readdir(outside)).toEqual(['secret']);
});

test('F04 directories that are copied out, copied in and watched meanwhile are of the sandbox, and land where they were asked to', {
  timeout: 90_000,
}, async () => {
  const { files } = sandbox;
  const watches = await Promise.all(['/w', '/w/deep'].map((path) => files.watch(path, { recursive: true })));
  for (let round = 0; round < 4; round++) {
    const target = join(local, `${round}`);
    await told(files.downloadDirectory(round % 2 === 0 ? '/w' : '/w/deep', target));
    await told(files.uploadDirectory(join(local, '0'), round % 2 === 0 ? '/w/a' : '/w/deep/a'));
  }
  const command = await server().cli(['cp', `${sandbox.sandboxId}:/w/deep`, join(local, 'by-command')]);
  expect([0, 1]).toContain(command.exitCode);
  for (const watch of watches) await watch[Symbol.asyncDispose]();
  expect((await readdir(local)).every((name) => /^(\d|by-command)$/.test(name))).toBe(true);
  const found = await textsBelow(local);
  expect(found).toContain('inside');
  expect(found).not.toContain(SECRET);
});

/** The contents of all files, no link followed. */
async function textsBelow(directory: string): Promise<readonly string[]> {
  const entries = await readdir(directory, { withFileTypes: true, recursive: true });
  return Promise.all(
    entries.filter((entry) => entry.isFile()).map((entry) => readFile(join(entry.parentPath, entry.name), 'utf8')),
  );
}

test('F04 a layer that is packed meanwhile has files of the sandbox', { timeout: 90_000 }, async () => {
  const packed = await server().cli([
    'pack',
    sandbox.sandboxId,
    '--as',
    'raced',
    '--kind',
    'environment',
    '--path',
    '/w',
  ]);
  expect(packed.exitCode, packed.stderrTail).toBe(0);
  await using again = await server().client.runContainer({ containerImage: 'raced', memoryLimitMb: 64 });
  const { stdout } = await again.runShell(
    'cat /w/a/secret /w/deep/a/secret /w/link/secret /w/deep/link/secret 2>/dev/null; find /w -type f | xargs cat',
  );
  expect(stdout).toContain('inside');
  expect(stdout).not.toContain(SECRET);
});
