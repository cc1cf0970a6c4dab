/** Root inside, with what it writes on ext4 and on XFS: extents of files are not exchanged under anybody, and the filesystem that all sandboxes of a node share stays whole. */
import { run } from '@dsec/kit';
import { lacking, TestServer } from '@dsec/testkit';
import { mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { CACHE, ENVIRONMENT_FILE } from '../e2e/started-server.ts';
import { clock } from '../e2e/wait-for.ts';
import { attack, expectUnharmed, onX64Only } from './attack.ts';
import { expectNothingTold, expectTold } from './told.ts';

onX64Only();

const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } as const;
const tool = async (...argv: readonly [string, ...string[]]): Promise<string> =>
  (await run(argv, { clock, env, timeoutMs: 60_000 })).stdout.toString();
const DISK_BYTES = 1024 ** 3;
const BUILD_MS = 300_000;

/** What an answer key would be: somebody else's, and only he may read it. */
const PROTECTED = 'the answers\n'.repeat(1000);
const OWN = 'my own file\n'.repeat(1000);

const EXCHANGES = `
own = os.open('/tmp/own', os.O_RDWR)
protected = os.open('/srv/protected', os.O_RDWR if os.getuid() == 0 else os.O_PATH)
top = os.open('/', os.O_RDONLY)
swapext = struct.pack('QQ', 0, 0) + struct.pack('qqqqi', own, protected, 0, 12000, 0) + bytes(1024)
for name, fd, number, argument in [
  ('XFS_IOC_SWAPEXT', own, 0xC0C0586D, swapext), ('XFS_IOC_EXCHANGE_RANGE', own, 0x40285881, struct.pack('iiQQQQ', protected, 0, 0, 0, 4096, 0)),
  ('XFS_IOC_START_COMMIT', own, 0x80585882, bytes(88)), ('XFS_IOC_COMMIT_RANGE', own, 0x40585883, struct.pack('iiQQQQ', protected, 0, 0, 0, 4096, 0) + bytes(48)),
  ('XFS_IOC_FSBULKSTAT_SINGLE', top, 0xC0205866, bytes(32)), ('XFS_IOC_OPEN_BY_HANDLE', top, 0xC0385872, bytes(56)), ('XFS_IOC_PATH_TO_HANDLE', top, 0xC0385869, bytes(56)),
  ('XFS_IOC_ALLOCSP', own, 0x40305824, bytes(48)), ('XFS_IOC_FREESP', own, 0x4030580B, bytes(48)), ('XFS_IOC_UNRESVSP64', own, 0x4030582B, bytes(48)), ('XFS_IOC_GOINGDOWN', top, 0x8004587D, bytes(4)),
  ('XFS_IOC_FREEZE', top, 0xC0045877, bytes(4)), ('XFS_IOC_SCRUB_METADATA', top, 0xC040583C, bytes(64)), ('XFS_IOC_FSGROWFSDATA', top, 0x4010586E, bytes(16)), ('XFS_IOC_ERROR_INJECTION', top, 0x40085874, bytes(8)),
  ('EXT4_IOC_MOVE_EXT', own, 0xC028660F, struct.pack('IIQQQQ', 0, protected, 0, 0, 1, 0)), ('EXT4_IOC_SWAP_BOOT', own, 0x6611, b''), ('EXT4_IOC_SHUTDOWN', top, 0x8004587D, bytes(4)), ('EXT4_IOC_RESIZE_FS', top, 0x40086610, bytes(8)),
  ('EXT4_IOC_CHECKPOINT', top, 0x4004662B, bytes(4)), ('EXT4_IOC_MIGRATE', own, 0x6609, b''), ('EXT4_IOC_GROUP_ADD', top, 0x40286608, bytes(40)), ('EXT4_IOC_SETFSUUID', top, 0x4008662C, bytes(24)), ('EXT4_IOC_CLEAR_ES_CACHE', own, 0x6628, b''),
  ('FIDEDUPERANGE', own, 0xC0189436, struct.pack('QQHHI', 0, 4096, 1, 0, 0) + struct.pack('qQQiI', protected, 0, 0, 0, 0)), ('FITRIM', top, 0xC0185879, struct.pack('QQQ', 0, 1 << 40, 0)), ('FIBMAP', own, 1, bytes(4)),
]: attempt(name, lambda: call(16, fd, number, ctypes.create_string_buffer(argument, 8192)))
`;

/** A filesystem in a file, mounted. One that has found itself damaged would take no more writes of anybody. */
async function volumeOf(kind: string, directory: string): Promise<AsyncDisposable & { readonly path: string }> {
  const [image, path] = [join(directory, 'disk'), join(directory, 'volume')];
  await writeFile(image, '');
  await truncate(image, DISK_BYTES);
  await mkdir(path);
  await tool(`mkfs.${kind}`, '-q', image);
  await tool('mount', '-o', 'loop', image, path);
  return {
    path,
    [Symbol.asyncDispose]: async () => {
      await tool('umount', path);
    },
  };
}

/** The file of a writable layer, as the host has it. */
async function onHost(volume: string, name: string): Promise<string> {
  const found = (await readdir(volume, { recursive: true })).find((path) => path.endsWith(`/${name}`));
  if (found === undefined) throw new Error(`no writable layer has ${name}`);
  return join(volume, found);
}

test.for(['ext4', 'xfs'] as const)('on %s', { timeout: 180_000 }, async (kind, context) => {
  const lack = lacking('root', 'erofs', 'overlay', 'cgroup', ...(kind === 'xfs' ? (['xfs'] as const) : []));
  if (lack !== undefined) {
    process.stderr.write(`skipped: ${lack}\n`);
    context.skip(lack);
  }
  const directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-disk-'));
  try {
    await using volume = await volumeOf(kind, directory);
    await using server = await TestServer.start({
      environments: [],
      poolBlanks: 1,
      maxSandboxes: 64,
      volume: volume.path,
    });
    await server.cli(['env', 'build', ENVIRONMENT_FILE, '--reuse', CACHE], { timeoutMs: BUILD_MS });
    const made = (): Promise<Sandbox> => server.client.runContainer({ containerImage: 'e2e', memoryLimitMb: 256 });
    await using sandbox = await made();
    await using neighbour = await made();
    await sandbox.files.write('/srv/protected', PROTECTED, { mode: 0o400 });
    await sandbox.files.write('/tmp/own', OWN, { user: 'user' });
    for (const as of ['root', 'user']) {
      const outcomes = await attack(sandbox, `${as === 'user' ? 'os.setgid(1000); os.setuid(1000)' : ''}${EXCHANGES}`);
      expect([as, [...new Set(outcomes.values())]]).toEqual([as, ['ENOTTY']]);
    }
    expect([await sandbox.files.readText('/srv/protected'), await sandbox.files.readText('/tmp/own')]).toEqual([
      PROTECTED,
      OWN,
    ]);
    await expectTold(
      sandbox,
      'call',
      ['XFS_IOC_SWAPEXT', 'XFS_IOC_EXCHANGE_RANGE', 'XFS_IOC_GOINGDOWN', 'EXT4_IOC_SWAP_BOOT', 'FITRIM'].map(
        (request) => `ioctl ${request}`,
      ),
    );
    await expectUnharmed(sandbox, neighbour);
    await expectNothingTold(neighbour);
    if (kind === 'xfs') await exchangedByTheHost(volume.path);
  } finally {
    await rm(directory, { recursive: true });
  }
});

/** The kernel of this machine does it, for who may ask: the same request on files of the same filesystem. */
async function exchangedByTheHost(volume: string): Promise<void> {
  const [one, other] = [await onHost(volume, 'own'), await onHost(volume, 'protected')];
  await tool('xfs_io', '-c', `swapext ${other}`, one);
  expect([await readFile(one, 'utf8'), await readFile(other, 'utf8')]).toEqual([PROTECTED, OWN]);
}
