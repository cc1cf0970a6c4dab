/** Ends that are not asked for: what makes each of them happen, and what is said of it. */
import type { CauseKind } from '@dsec/contract';
import type { Sandbox } from '@dsec/libdsec';
import { expectNoLeak, takeHostSnapshot, TestServer } from '@dsec/testkit';
import { randomUUID } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { aetherPid } from './host-side.ts';
import { refusal } from './refusal.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const ENVIRONMENT_FILE = join(import.meta.dirname, 'environment.yaml');
const CACHE = join(import.meta.dirname, '../../.cache/environments');
/** The journal of the edge, in the data directory. */
const JOURNAL = 'state/edge/journal.db';
const MIB = 1024 * 1024;

interface Expected {
  readonly kind: CauseKind;
  readonly infrastructure: boolean;
}

/** Waits for a failure, and sees that everything that shows the sandbox afterwards says the same of it. */
async function expectFailed(sandbox: Sandbox, expected: Expected): Promise<void> {
  const info = await waitFor('its failure', async () => {
    const now = await sandbox.info();
    return now.state === 'failed' && now;
  });
  expect(info.cause).toMatchObject(expected);
  expect(info.cause?.detail).toMatch(/^[A-Z].*\.$/);
  expect(info.endedAtMs).toBeGreaterThanOrEqual(info.createdAtMs);
  const details = { sandboxId: sandbox.sandboxId, cause: expected.kind, infrastructure: expected.infrastructure };
  for (const later of [
    () => sandbox.exec(['true']),
    () => sandbox.runShell('true'),
    () => sandbox.files.readText('/etc/hostname'),
    () => sandbox.files.write('/tmp/x', 'x'),
    () => sandbox.usage(),
    () => sandbox.session(),
    () => sandbox.pty({ argv: ['sh'] }),
    () => sandbox.execs(),
    () => sandbox.setTtl(60),
  ]) {
    const failure = await failureOf(later());
    expect([failure.code, failure.status]).toEqual(['sandbox_failed', 410]);
    expect(failure.infrastructure).toBe(expected.infrastructure);
    expect(failure.details).toMatchObject(details);
  }
  expect(await refusal(sandbox.ports.fetch(8000))).toBe('sandbox_failed');
  // To stop it is no error, and no other end.
  const stopped = await sandbox.stop();
  expect([stopped.state, stopped.cause]).toEqual(['failed', info.cause]);
}

/** Memory that outlives the process that filled it, and that no kill in the sandbox gives back. */
const FILL_MEMORY = `
import ctypes
SIZE = 1 << 18
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
while True:
    libc.memset(libc.shmat(libc.shmget(0, SIZE, 0o1600), None, 0), 1, SIZE)
`;
/** The program lies in memory too: pages of a file on disk would be dropped and read again, for ever. */
const PROGRAM = '/dev/shm/busybox';

async function writeAndEnd(sandbox: Sandbox): Promise<void> {
  const { execId } = await sandbox.execDetached([PROGRAM, 'head', '-c', '8388608', '/dev/zero'], { timeoutMs: 5000 });
  await waitFor('the command to have ended', async () => {
    if ((await sandbox.info()).state === 'failed') return true;
    return (await sandbox.execStatus(execId)).state === 'exited';
  });
}

test('X30 a sandbox whose memory is full of what no kill gives back ends for oom, and says that it was its own doing', {
  timeout: 60_000,
}, async () => {
  await using neighbour = await server().sandbox();
  const sandbox = await server().sandbox({ memoryLimitMb: 64 });
  await sandbox.runShell(`cp /bin/busybox ${PROGRAM}`);
  await sandbox.files.write('/root/fill.py', FILL_MEMORY);
  expect((await sandbox.exec(['python3', '/root/fill.py'])).isOomKilled).toBe(true);
  // The programs went first, and the sandbox lives.
  expect((await sandbox.info()).state).toBe('running');
  await waitFor(
    'its end',
    async () => {
      // What a command writes is kept by the first process, for whoever asks later.
      await Promise.allSettled([writeAndEnd(sandbox)]);
      return (await sandbox.info()).state === 'failed';
    },
    40_000,
  );
  await expectFailed(sandbox, { kind: 'oom', infrastructure: false });
  await server().expectNothingOf(sandbox.sandboxId);
  expect((await neighbour.exec(['echo', 'hi'])).stdout).toBe('hi\n');
});

test('I10: a sandbox whose first process dies on a disk that its programs have filled ends for disk', async () => {
  const sandbox = await server().sandbox({ diskLimitMb: 64 });
  const filled = await sandbox.runShell('head -c 200M /dev/urandom >/root/fill; sync');
  expect(filled.stderr).toMatch(/Disk quota|No space left/);
  expect((await sandbox.usage()).diskBytes).toBeGreaterThan(63 * MIB);
  // A full disk by itself ends nothing.
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  const running = sandbox.exec(['sleep', '999']);
  await running.started();
  process.kill(await aetherPid(server(), sandbox.sandboxId), 'SIGKILL');
  expect((await failureOf(running)).details['cause']).toBe('disk');
  await expectFailed(sandbox, { kind: 'disk', infrastructure: false });
  await server().expectNothingOf(sandbox.sandboxId);
});

test.for([
  ['nothing at all', 'exec sleep 999'],
  ['all the processes that it may have', 'while :; do sleep 999 & done 2>/dev/null'],
] as const)(
  'a sandbox whose first process is killed from outside under %s ends for runtime, the fault of the platform',
  async ([, script]) => {
    const sandbox = await server().sandbox({ pidsLimit: 32 });
    const running = sandbox.runShell(script);
    await running.started();
    if (script.startsWith('while')) await waitFor('it to be full', async () => (await sandbox.usage()).pids >= 32);
    process.kill(await aetherPid(server(), sandbox.sandboxId), 'SIGKILL');
    expect((await failureOf(running)).details).toMatchObject({ cause: 'runtime', infrastructure: true });
    await expectFailed(sandbox, { kind: 'runtime', infrastructure: true });
    await server().expectNothingOf(sandbox.sandboxId);
  },
);

test('no program of a sandbox can end its first process, whatever it sends to it or asks of the kernel', async () => {
  await using sandbox = await server().sandbox({ initUser: 'root' });
  const attempts = ['for s in $(seq 1 64); do kill -$s 1; done', 'busybox poweroff -f', 'busybox reboot -f'];
  for (const attempt of attempts) await sandbox.runShell(attempt);
  const info = await sandbox.info();
  expect([info.state, info.cause]).toEqual(['running', null]);
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
});

test('a create whose record cannot be written ends for internal, the fault of the platform, and the next one is made', {
  timeout: 30_000,
}, async () => {
  await using before = await server().sandbox();
  const metadata = { end: 'internal' };
  {
    // As a backup does that holds on to the file.
    using journal = new DatabaseSync(join(server().data, JOURNAL));
    journal.exec('BEGIN IMMEDIATE');
    const failure = await failureOf(server().sandbox({ metadata }));
    expect([failure.code, failure.infrastructure]).toEqual(['create_failed', true]);
  }
  expect((await before.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  const [failed, ...others] = await waitFor('its end', async () => {
    const found = await server()
      .client.sandboxes({ metadata, states: ['failed'] })
      .toArray();
    return found.length > 0 && found;
  });
  expect(others).toEqual([]);
  const sandbox = await server().client.getSandbox(failed?.sandboxId ?? '');
  await expectFailed(sandbox, { kind: 'internal', infrastructure: true });
  await server().expectNothingOf(sandbox.sandboxId);
  await using after = await server().sandbox({ metadata });
  expect((await after.exec(['echo', 'hi'])).stdout).toBe('hi\n');
});

test('L20 what lived when the node went down has ended for node_lost when the server is back, and nothing of it is left', {
  timeout: 180_000,
}, async () => {
  const containerImage = server().environment;
  const options = { environments: [], volumeSize: '8G', poolBlanks: 8 };
  const before = await TestServer.start(options);
  const { data } = before;
  let isDown = false;
  try {
    await before.cli(['env', 'build', ENVIRONMENT_FILE, '--reuse', CACHE]);
    await (await before.client.runContainer({ containerImage })).stop();
    await before.poolFull();
    const clean = await takeHostSnapshot(before);
    const sandbox = await before.client.runContainer({ containerImage });
    await sandbox.execDetached(['sleep', '999']);
    const pid = await aetherPid(before, sandbox.sandboxId);
    await before.client.close();
    await before.stopDaemons();
    isDown = true;
    process.kill(pid, 'SIGKILL');
    await dateFromAnotherBoot(data, sandbox.sandboxId);
    await using after = await TestServer.start({ ...options, data });
    await expectFailed(await after.client.getSandbox(sandbox.sandboxId), { kind: 'node_lost', infrastructure: true });
    const next = await after.client.runContainer({ containerImage });
    expect((await next.exec(['echo', 'hi'])).stdout).toBe('hi\n');
    await next.stop();
    await expectNoLeak(clock, after, clean);
  } finally {
    if (!isDown) await before[Symbol.asyncDispose]();
  }
});

/** What a boot changes for who comes after it: the node has another id than the one that was written down. */
async function dateFromAnotherBoot(data: string, sandboxId: string): Promise<void> {
  const boot = randomUUID();
  using journal = new DatabaseSync(join(data, JOURNAL));
  journal.prepare("UPDATE meta SET value = ? WHERE name = 'bootId'").run(boot);
  const path = join(data, 'run/launcher', `${sandboxId}.json`);
  const record = JSON.parse(await readFile(path, 'utf8')) as Readonly<Record<string, unknown>>;
  await writeFile(path, JSON.stringify({ ...record, boot }));
}
