/** Environments from image archives, sound and hostile. */
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { imageArchive } from './image-archive.ts';
import { useServer } from './started-server.ts';
import type { TarEntry } from './tar-archive.ts';

const server = useServer();

let directory = '';
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-images-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** Builds an environment from an archive; what the command says, and its exit code. */
async function build(
  name: string,
  archive: Buffer,
): Promise<{ readonly exitCode: number | undefined; readonly said: string }> {
  const path = join(directory, `${name}.tar`);
  await writeFile(path, archive);
  const { exitCode, stderrTail } = await server().cli(['env', 'build', path]);
  return { exitCode, said: stderrTail };
}

test('an image of docker save becomes an environment whose ENV, USER and WORKDIR hold', async () => {
  await using donor = await server().sandbox();
  const busybox = await donor.files.read('/usr/bin/busybox');
  const archive = imageArchive([
    { name: 'bin/', type: '5', mode: 0o755 },
    { name: 'bin/busybox', content: busybox, mode: 0o755 },
    { name: 'bin/sh', type: '2', target: 'busybox' },
    { name: 'srv/', type: '5', mode: 0o755 },
  ]);
  expect(await build('tiny', archive)).toMatchObject({ exitCode: 0 });
  await using sandbox = await server().client.runContainer({ containerImage: 'tiny', memoryLimitMb: 64 });
  const result = await sandbox.exec(['busybox', 'sh', '-c', 'busybox id -u; busybox pwd; echo $FROM_IMAGE']);
  expect(result.stdout).toBe('1234\n/srv\nyes\n');
  expect((await sandbox.runShell('echo by sh', { user: 'root' })).stdout).toBe('by sh\n');
  expect((await sandbox.runShell('echo by sh', { login: true })).stdout).toBe('by sh\n');
});

const file: TarEntry = { name: 'file', content: 'x'.repeat(3000) };
/** The layer by its name or digest, and where in it. */
const NAMES_PLACE = /(?:layer: .+|sha256:[0-9a-f]{64})[^]*offset: \d+/;
const hostile: readonly (readonly [string, Buffer, string, RegExp])[] = [
  [
    'a layer whose bytes were changed',
    imageArchive([file], {
      damage: (layer) => Buffer.from(layer.map((byte, index) => (index === 700 ? byte ^ 1 : byte))),
    }),
    'image_corrupt',
    NAMES_PLACE,
  ],
  [
    'a layer whose head is damaged',
    imageArchive([file], { damage: (layer) => Buffer.from(layer.map((byte, index) => (index === 5 ? 0xff : byte))) }),
    'image_corrupt',
    NAMES_PLACE,
  ],
  [
    'a layer that is cut short',
    imageArchive([file], { damage: (layer) => layer.subarray(0, 1700) }),
    'image_corrupt',
    NAMES_PLACE,
  ],
  ['a name with ..', imageArchive([file, { name: '../escaped', content: 'x' }]), 'archive_unsafe', /\.\.\/escaped/],
  ['a block device', imageArchive([file, { name: 'dev/sda', type: '4' }]), 'archive_unsafe', /dev\/sda/],
  [
    'a hard link out of it',
    imageArchive([file, { name: 'l', type: '1', target: '../../etc/shadow' }]),
    'archive_unsafe',
    /l|etc\/shadow/,
  ],
  ['another processor', imageArchive([file], { architecture: 's390x' }), 'image_architecture', /s390x/],
  ['no manifest', Buffer.alloc(10_240), 'image_', /./],
  ['noise', Buffer.alloc(10_240, 0x41), 'image_', /./],
];

test.for(hostile)(
  'an archive with %s is refused, says what and where, and leaves no layer',
  async ([, archive, code, says]) => {
    const layers = await readdir(join(server().data, 'layers'));
    const { exitCode, said } = await build('hostile', archive);
    expect(exitCode).toBe(1);
    expect(said).toContain(code);
    expect(said).toMatch(says);
    expect(said).not.toMatch(/\bat \S+ \(|node_modules/);
    expect(await readdir(join(server().data, 'layers'))).toEqual(layers);
    expect((await server().client.environments.list().toArray()).map(({ name }) => name)).not.toContain('hostile');
  },
);

test('an absolute name in a layer lands inside the image, or is refused', async () => {
  const { exitCode, said } = await build(
    'absolute',
    imageArchive([file, { name: '/tmp/dsec-e2e-escaped', content: 'x' }]),
  );
  if (exitCode !== 0) expect(said).toContain('archive_unsafe');
  expect(await readdir(tmpdir())).not.toContain('dsec-e2e-escaped');
});
