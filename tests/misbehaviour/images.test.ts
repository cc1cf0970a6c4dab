/** Images, archives and writable layers that were made to lead out of a sandbox, or to lie to whoever reads them. */
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { importImage, type BuildContext } from '@dsec/environment';
import { SystemRandom } from '@dsec/kit';
import { PlatformError, type Sandbox } from '@dsec/libdsec';
import { imageArchive } from '../e2e/image-archive.ts';
import { rawRequest } from '../e2e/raw-http.ts';
import { refusal } from '../e2e/refusal.ts';
import { useServer } from '../e2e/started-server.ts';
import { tarOf, type TarEntry } from '../e2e/tar-archive.ts';
import { clock } from '../e2e/wait-for.ts';
import { expectUnharmed } from './attack.ts';

const server = useServer();

const SECRET = 'a secret of the host';
let neighbour: Sandbox;
/** What an image of programs is made of. */
let programs: readonly TarEntry[];
let directory = '';
let outside = '';

const layers = async (): Promise<readonly string[]> => (await readdir(join(server().data, 'layers'))).toSorted();

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-crafted-'));
  outside = join(directory, 'outside');
  await mkdir(outside);
  await writeFile(join(outside, 'secret'), SECRET);
  neighbour = await server().sandbox();
  const busybox = await neighbour.files.read('/usr/bin/busybox');
  programs = [
    { name: 'bin/', type: '5', mode: 0o755 },
    { name: 'bin/busybox', content: busybox, mode: 0o755 },
    { name: 'bin/sh', type: '2', target: 'busybox' },
    { name: 'srv/', type: '5', mode: 0o755 },
  ];
});

afterAll(async () => {
  expect(await readdir(outside)).toEqual(['secret']);
  expect(await readFile(join(outside, 'secret'), 'utf8')).toBe(SECRET);
  await expectUnharmed(neighbour);
  await neighbour.stop();
  await rm(directory, { recursive: true });
});

/** Attributes of the entry behind it, as tar has them (pax). */
function attributes(values: Readonly<Record<string, string>>): TarEntry {
  const records = Object.entries(values).map(([key, value]) => {
    const rest = ` ${key}=${value}\n`;
    const length = [1, 2, 3, 4, 5, 6]
      .map((digits) => rest.length + digits)
      .find((total, index) => String(total).length === index + 1);
    return `${length}${rest}`;
  });
  return { name: 'attributes', type: 'x', content: records.join('') };
}
const xattrs = (values: Readonly<Record<string, string>>): TarEntry =>
  attributes(Object.fromEntries(Object.entries(values).map(([name, value]) => [`SCHILY.xattr.${name}`, value])));

/** Makes an environment of an archive, as `dsec env build` does; the code of the error when that fails. */
async function build(name: string, archive: Buffer, mergeUpToBytes?: number): Promise<string> {
  const path = join(directory, `${name}.tar`);
  await writeFile(path, archive);
  const context: BuildContext = {
    layersDirectory: join(server().data, 'layers'),
    clock,
    random: new SystemRandom(),
  };
  try {
    await server().client.environments.put(name, await importImage(context, { path, mergeUpToBytes }));
    return 'built';
  } catch (error) {
    return codeOf(error);
  }
}

const codeOf = (error: unknown): string => (PlatformError.is(error) ? error.code : String(error));

const sandboxOf = (containerImage: string): Promise<Sandbox> =>
  server().client.runContainer({ containerImage, memoryLimitMb: 64 });
const shell = async (sandbox: Sandbox, script: string): Promise<string> => {
  const { stdout, stderr } = await sandbox.exec(['/bin/busybox', 'sh', '-c', script], { user: '0', cwd: '/' });
  return stdout + stderr;
};

const file: TarEntry = { name: 'srv/file', content: 'x' };
const up = '../'.repeat(12);

test.for([
  [
    'a way through a link of its own',
    [
      { name: 'd', type: '2', target: '/tmp' },
      { name: 'd/planted', content: 'x' },
    ],
    'archive_unsafe',
  ],
  [
    'a hard link through a link',
    [
      { name: 'd', type: '2', target: '/etc' },
      { name: 'l', type: '1', target: 'd/passwd' },
    ],
    'archive_unsafe',
  ],
  ['a hard link to an absolute path', [{ name: 'l', type: '1', target: '/etc/shadow' }], 'archive_unsafe'],
  [
    'a long name of GNU that leads out',
    [{ name: '././@LongLink', type: 'L', content: `${up}tmp/planted\0` }, file],
    'archive_unsafe',
  ],
  [
    'a long link of GNU that leads out',
    [
      { name: '././@LongLink', type: 'K', content: `${up}etc/shadow\0` },
      { name: 'l', type: '1' },
    ],
    'archive_unsafe',
  ],
  ['a name in attributes that leads out', [attributes({ path: `${up}tmp/planted` }), file], 'archive_unsafe'],
  [
    'a hard link in attributes that leads out',
    [attributes({ linkpath: `${up}etc/shadow` }), { name: 'l', type: '1', target: 'srv' }],
    'archive_unsafe',
  ],
  ['a name with NUL in attributes', [attributes({ path: 'srv/a\0b' }), file], 'archive_unsafe'],
  ['a character device', [{ name: 'null', type: '3' }], 'archive_unsafe'],
  ['a whiteout of ..', [{ name: 'srv/.wh...' }], 'archive_unsafe'],
  ['a whiteout of nothing', [{ name: 'srv/.wh.' }], 'archive_unsafe'],
  ['a whiteout that leads out', [{ name: `${up}.wh.etc` }], 'archive_unsafe'],
  [
    'more bytes than a disk has',
    [attributes({ 'GNU.sparse.major': '1', 'GNU.sparse.realsize': '9223372036854775807' }), file],
    'image_unsupported',
  ],
  ['an attribute without an end', [xattrs({ 'user.a': 'v'.repeat(80_000) }), file], 'image_unsupported'],
] as const)('an image with %s is refused by its name, and leaves nothing', async ([, entries, code]) => {
  const before = await layers();
  expect(await build('refused', imageArchive([...programs, ...entries]))).toBe(code);
  expect(await layers()).toEqual(before);
  expect(await readdir('/tmp')).not.toContain('planted');
});

test('marks of overlayfs in an image steer no mount: nothing is redirected, hidden, opaque or half there', async () => {
  const marks = {
    'trusted.overlay.redirect': '/srv',
    'trusted.overlay.opaque': 'y',
    'trusted.overlay.metacopy': '',
    'trusted.overlay.origin': 'x'.repeat(30),
    'user.overlay.redirect': '/srv',
    'user.overlay.opaque': 'y',
    'user.overlay.whiteout': 'y',
    'user.kept': 'yes',
  };
  const above: readonly TarEntry[] = [
    xattrs(marks),
    { name: 'stolen/', type: '5', mode: 0o755 },
    xattrs({ ...marks, 'trusted.overlay.redirect': '/srv/secret' }),
    { name: 'stolen/secret', content: 'of the layer above' },
    xattrs(marks),
    { name: 'bin/', type: '5', mode: 0o755 },
    // Names that mean something elsewhere, and nothing here.
    { name: 'srv/.wh..wh.aufs', content: 'x' },
    { name: 'srv/.wh..wh..opq/', type: '5' },
  ];
  const below: readonly TarEntry[] = [...programs, { name: 'srv/secret', content: 'of the layer below', mode: 0o600 }];
  for (const mergeUpToBytes of [0, 2 ** 30]) {
    expect(await build('marked', imageArchive(below, { above: [above] }), mergeUpToBytes)).toBe('built');
    await using sandbox = await sandboxOf('marked');
    expect(await shell(sandbox, 'ls /stolen; cat /stolen/secret; echo; ls /bin | head -1; ls -a /srv')).toMatch(
      /^secret\nof the layer above\nbusybox\n\.\n\.\.\n/,
    );
  }
});

test('what an image has is inside: roots that are links, programs with the ids of the host, and names of every kind', async () => {
  const entries: readonly TarEntry[] = [
    ...programs,
    { name: 'bin/elevated', content: '#!/bin/sh\nid -u', mode: 0o6755 },
    { name: 'proc', type: '2', target: '/' },
    { name: 'sys', type: '2', target: up },
    { name: 'dev', type: '2', target: `${up}${outside.slice(1)}` },
    { name: 'tmp', type: '2', target: outside },
    { name: 'etc/', type: '5', mode: 0o755 },
    ...['hostname', 'hosts', 'resolv.conf', 'passwd'].map((name) => ({
      name: `etc/${name}`,
      type: '2',
      target: `${outside}/secret`,
    })),
    { name: 'root', type: '2', target: outside },
    { name: 'pipe', type: '6' },
    { name: '\u001b[2J', content: 'x' },
    { name: '-rf', content: 'x' },
    ...[1, 2, 3].map((version) => ({ name: 'srv/twice', content: `version ${version}` })),
  ];
  const archive = imageArchive(entries, { config: { User: '', WorkingDir: '/proc/self/cwd' } });
  expect(await build('of-links', archive)).toBe('built');
  await using sandbox = await sandboxOf('of-links');
  expect(
    await shell(
      sandbox,
      'cat /srv/twice; echo; cat /etc/hosts /etc/passwd; busybox ls /outside /tmp; busybox ls -ld /proc/1/root',
    ),
  ).not.toContain(SECRET);
  expect(
    (await sandbox.exec(['/bin/busybox', 'stat', '-c', '%u %a', '/bin/elevated'], { user: '0', cwd: '/' })).stdout,
  ).toBe('0 6755\n');
  await sandbox.files.write('/tmp/planted', 'x').catch((error: unknown) => expect(PlatformError.is(error)).toBe(true));
});

/** The answer of a create, and of a command in it, in one word each. */
async function answersOf(config: Readonly<Record<string, unknown>>): Promise<readonly string[]> {
  const built = await build('absurd', imageArchive(programs, { config }));
  if (built !== 'built') return [built];
  const made = await sandboxOf('absurd').catch((error: unknown) => error);
  if (!(made instanceof Error)) {
    await using sandbox = made as Sandbox;
    const ended = await sandbox
      .exec(['/bin/busybox', 'sh', '-c', 'pwd; busybox id -u; exit 7'], { timeoutMs: 10_000 })
      .then(({ exitCode: code, stdout }) => `${code} ${stdout.trim().split('\n').join(' ')}`, codeOf);
    return ['made', ended];
  }
  return [codeOf(made)];
}

const INSIDE = /^(7 \/.* \d+|cwd_not_found|user_not_found|command_not_found|command_not_executable|invalid_argument)$/;

test('settings of an image that make no sense are refused, or mean something inside; nothing hangs, and nothing breaks', {
  timeout: 120_000,
}, async () => {
  const absurd: readonly (readonly [string, Readonly<Record<string, unknown>>])[] = [
    ['a directory above all', { WorkingDir: '../../../..' }],
    ['a directory that is a descriptor (CVE-2024-21626)', { WorkingDir: '/proc/self/fd/8' }],
    ['a directory of PID 1', { WorkingDir: '/proc/1/root' }],
    ['a directory with lines', { WorkingDir: '/a\nb\n' }],
    ['a directory with NUL', { WorkingDir: '/a\0b' }],
    ['a directory without end', { WorkingDir: `/${'d'.repeat(300)}` }],
    ['a relative directory', { WorkingDir: 'srv/../srv' }],
    ['a directory of 5000 bytes', { WorkingDir: '/d'.repeat(2500) }],
    ['a user that is a path', { User: '../../etc/passwd' }],
    ['a user with lines', { User: 'root\nroot:x:0:0' }],
    ['a user with NUL', { User: 'a\0b' }],
    ['a number that is nobody', { User: '4294967295' }],
    ['a number beyond all', { User: '99999999999999999999' }],
    ['a user below all', { User: '-1:-1' }],
    ['three parts', { User: '0:0:0' }],
    ['variables that no shell can hold', { Env: ['=x', 'A', 'A B=c', 'PATH=/bin', 'X\n=y', '\0=\0', 'N=a\0b'] }],
    [
      'variables for loaders and shells',
      { Env: ['PATH=/bin', 'LD_PRELOAD=/srv/x.so', 'BASH_ENV=/srv/x', 'ENV=/srv/x', 'GCONV_PATH=.'] },
    ],
    ['variables without end', { Env: ['PATH=/bin', `V=${'v'.repeat(300_000)}`] }],
    ['variables without number', { Env: ['PATH=/bin', ...Array.from({ length: 20_000 }, (_, n) => `V${n}=${n}`)] }],
    ['commands that are none', { Entrypoint: ['\0', ''], Cmd: ['', '\n', '\0'] }],
    ['a command of a megabyte', { Cmd: ['c'.repeat(1_000_000)] }],
    ['ports that are none', { ExposedPorts: { '99999999/tcp': {}, '../22': {}, '0': {}, '-1/udp': {} } }],
    ['labels that look like others', { Labels: { __proto__: 'x', constructor: 'y', 'a\0b': 'c', '': '' } }],
    ['values of another kind', { Env: 'PATH=/bin', User: 0, WorkingDir: ['/'] }],
  ];
  const answers: (readonly [string, ...string[]])[] = [];
  for (const [name, config] of absurd) answers.push([name, ...(await answersOf(config))]);
  const wrong = answers.filter(([, first, then]) =>
    first === 'made'
      ? !INSIDE.test(then ?? '')
      : !/^(image_corrupt|image_unsupported|invalid_argument|environment_invalid|cwd_not_found|user_not_found|too_large|request_too_large)$/.test(
          first ?? '',
        ),
  );
  expect(wrong).toEqual([]);
});

test('a Dockerfile, what it copies and what it unpacks, lead to nothing of the host', {
  timeout: 120_000,
}, async () => {
  const context = join(directory, 'context');
  await mkdir(context);
  await symlink(outside, join(context, 'linked'));
  await writeFile(join(context, 'file'), 'of the context');
  await writeFile(join(context, 'up.tar'), tarOf([{ name: `${up}tmp/planted`, content: 'x' }]));
  const from = async (lines: readonly string[]) => {
    await writeFile(join(context, 'Dockerfile'), ['FROM e2e', ...lines].join('\n'));
    const { exitCode, stderrTail } = await server().cli(['env', 'build', context, '--name', 'from-file']);
    return { exitCode, said: stderrTail };
  };
  for (const [line, code] of [
    ['COPY linked/secret /x', 'source_missing'],
    ['ADD up.tar /', 'archive_unsafe'],
  ] as const) {
    const { exitCode, said } = await from([line]);
    expect([line, exitCode, said]).toEqual([line, 1, expect.stringContaining(code)]);
    expect(said).not.toContain(SECRET);
  }
  // Links that a step leaves lead to files of the environment.
  const built = await from([
    `RUN mkdir -p /away && ln -s ${outside} /d && ln -s ${up}${outside.slice(1)} /e && ln -s /away /f`,
    'COPY file /d/planted',
    'COPY file /e/planted',
    'COPY file /f/copied',
  ]);
  expect(built).toMatchObject({ exitCode: 0 });
  await using sandbox = await sandboxOf('from-file');
  const { stdout } = await sandbox.runShell(`cat ${outside}/planted /away/copied; ls ${outside}`);
  expect(stdout).toBe('of the contextof the contextplanted\n');
});

test('an archive that is sent to a sandbox is refused by the name of what is wrong in it, and touches nothing outside', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(`mkdir /w && ln -s ${outside} /w/out && ln -s / /w/root`);
  const send = (entries: readonly TarEntry[]): Promise<Response> =>
    rawRequest(server(), `/sandboxes/${sandbox.sandboxId}/files/tree?path=/w`, {
      method: 'PUT',
      headers: { 'content-type': 'application/x-tar' },
      body: tarOf(entries),
    });
  const hostile: readonly (readonly TarEntry[])[] = [
    [{ name: `${up}tmp/planted`, content: 'x' }],
    [{ name: 'a/../../../tmp/planted', content: 'x' }],
    [{ name: '/tmp/planted', content: 'x' }],
    [
      { name: 'd', type: '2', target: outside },
      { name: 'd/planted', content: 'x' },
    ],
    [{ name: 'out/planted', content: 'x' }],
    [{ name: 'root/tmp/planted', content: 'x' }],
    [{ name: 'l', type: '1', target: `${up}etc/shadow` }],
    [{ name: 'l', type: '1', target: '/etc/shadow' }],
    [{ name: 'd', type: '4' }],
    [{ name: 'd', type: '3' }],
    [{ name: '././@LongLink', type: 'L', content: `${up}tmp/planted\0` }, file],
  ];
  for (const entries of hostile) {
    const answer = await send(entries);
    expect([entries[0]?.name, answer.ok]).toEqual([entries[0]?.name, false]);
    expect(['archive_unsafe', 'archive_invalid', 'file_error', 'not_directory', 'file_exists']).toContain(
      await refusal(answer),
    );
  }
  expect(await readdir('/tmp')).not.toContain('planted');
  expect((await sandbox.exec(['ls', '/tmp'])).stdout).toBe('');
  await expectUnharmed(sandbox, neighbour);
});

test('a writable layer that speaks the language of overlayfs and of images is packed as the files that it has', {
  timeout: 120_000,
}, async () => {
  const sandbox = await server().sandbox();
  const { stdout, stderr } = await sandbox.exec([
    'python3',
    '-c',
    `
import os, stat
os.makedirs('/srv/p/.wh..wh..opq'); os.chdir('/srv/p')
for name in ['.wh.passwd', '.wh.', '.wh..wh.x', 'a\\nb', '-rf', '\\x1b[2J']: open(name, 'w').write('of the sandbox')
open('/etc/.wh.passwd', 'w').close(); open('/.wh.usr', 'w').close()
os.symlink('${up}${outside.slice(1)}', 'out'); os.mkfifo('pipe')
told = []
for name, value in [('user.overlay.redirect', b'/etc'), ('user.overlay.opaque', b'y'), ('user.overlay.whiteout', b'y'), ('trusted.overlay.redirect', b'/etc'), ('trusted.overlay.opaque', b'y'), ('security.capability', b'x' * 20)]:
    try: os.setxattr('/srv/p', name, value)
    except OSError as error: told.append((name, error.errno))
for kind, device in [(stat.S_IFCHR, os.makedev(0, 0)), (stat.S_IFBLK, os.makedev(8, 0))]:
    try: os.mknod('device', 0o666 | kind, device); told.append(device)
    except OSError: pass
print([name for name, _ in told if name.startswith('trusted')] if all(isinstance(one, tuple) for one in told) else told)`,
  ]);
  expect([stdout, stderr]).toEqual(["['trusted.overlay.redirect', 'trusted.overlay.opaque']\n", '']);
  const packed = await server().cli(['pack', sandbox.sandboxId, '--kind', 'environment', '--as', 'packed']);
  expect([packed.exitCode, packed.stderrTail]).toEqual([0, expect.anything()]);
  await using again = await sandboxOf('packed');
  const seen = await again.runShell(
    'ls /usr/bin/python3 && grep -c root: /etc/passwd && ls -A /srv/p | wc -l && cat /srv/p/.wh.passwd',
  );
  expect(seen.stdout).toMatch(/^\/usr\/bin\/python3\n1\n\d+\nof the sandbox$/);
  await sandbox.stop();
  await expectUnharmed(neighbour);
});
