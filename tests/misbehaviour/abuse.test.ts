/** Root inside a sandbox takes all that it can get of what the kernel counts, for the host, for a user or for nobody: there is a bound, and a neighbour has its own. */
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { useServer } from '../e2e/started-server.ts';
import { waitFor } from '../e2e/wait-for.ts';
import { attack, expectUnharmed, onX64Only, PRELUDE } from './attack.ts';

const server = useServer();
onX64Only();
const MIB = 1024 * 1024;

let neighbour: Sandbox;

beforeAll(async () => {
  neighbour = await server().sandbox();
});

afterAll(() => neighbour.stop());

/** `flood` takes one thing after another until there is an error, and says how often it went well. */
const FLOOD = `
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
def flood(name, action, most):
    for count in range(most):
        try: held.append(action(count))
        except OSError as error: return print('%s\\t%s %d' % (name, errno.errorcode[error.errno], count), flush=True)
    print('%s\\tDONE %d' % (name, most), flush=True)
def checked_fd(fd):
    if fd < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd
`;

/** Runs a script of floods that then waits, has a look at the neighbour meanwhile, and gives what the floods said. */
async function held(
  sandbox: Sandbox,
  script: string,
  meanwhile: () => Promise<void>,
): Promise<ReadonlyMap<string, string>> {
  let said = '';
  const decoder = new TextDecoder();
  const exec = sandbox.exec([
    'python3',
    '-c',
    `${PRELUDE}${FLOOD}${script}\nprint('held', flush=True)\nsignal.pause()`,
  ]);
  const listening = (async () => {
    for await (const event of exec) if (event.kind !== 'gap') said += decoder.decode(event.data, { stream: true });
  })();
  await waitFor('the floods to be over', () => /^held$|Error/m.test(said), 60_000);
  expect(said).not.toMatch(/Error/);
  await meanwhile();
  await exec.kill();
  await listening;
  return new Map(
    said.split('\n').flatMap((line) => (line.includes('\t') ? [line.split('\t') as [string, string]] : [])),
  );
}

const countOf = (outcome: string | undefined): number => Number(outcome?.split(' ').at(-1));

test('open files are bounded by the memory of the sandbox, not by what the host has for all', {
  timeout: 60_000,
}, async () => {
  const totalKib = Number(/^MemTotal:\s*(\d+)/m.exec(await readFile('/proc/meminfo', 'utf8'))?.[1]);
  // An open file takes more than 160 bytes, which are counted for the sandbox.
  expect(Number(await readFile('/proc/sys/fs/file-max', 'utf8'))).toBeGreaterThanOrEqual(
    (totalKib * 1024) / 160 - 1024,
  );
  await using sandbox = await server().sandbox({ memoryLimitMb: 40, pidsLimit: 64 });
  const flood = `
import os, signal
for _ in range(12):
    if os.fork() == 0:
        try:
            while True: os.open('/dev/null', os.O_RDONLY)
        except OSError: signal.pause()
print(os.wait()[1], flush=True)
os.killpg(0, signal.SIGKILL)
`;
  const { stdout } = await sandbox.exec(['python3', '-c', flood], { timeoutMs: 50_000 });
  expect(stdout).toBe('9\n');
  expect((await sandbox.usage()).oomKills).toBeGreaterThan(0);
  await expectUnharmed(sandbox, neighbour);
});

test('terminals and requests of asynchronous I/O of one sandbox leave the neighbour its own', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await held(
    sandbox,
    `
flood('terminals', lambda n: os.openpty(), 4200)
def contexts(n):
    context = ctypes.c_ulong(0)
    return call(206, 8000, ctypes.byref(context))
flood('contexts', contexts, 12)
`,
    async () => {
      expect((await (await neighbour.pty({ argv: ['tty'] })).exited()).stdout).toContain('/dev/pts/');
      const own = await attack(
        neighbour,
        `attempt('context', lambda: call(206, 100, ctypes.byref(ctypes.c_ulong(0))))`,
      );
      expect(own.get('context')).toMatch(/^DONE/);
      await expectUnharmed(neighbour);
    },
  );
  // More than the kernel gives to all sandboxes of a host by itself (4,096 and 65,536): that they are not the bound is what is shown.
  expect(outcomes.get('terminals')).toBe('DONE 4200');
  expect(countOf(outcomes.get('contexts'))).toBeGreaterThan(8);
  await expectUnharmed(sandbox);
});

test('what the kernel counts by user is used up in one sandbox and whole in the next', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox({ memoryLimitMb: 512 });
  const floods = (most: number): string => `
flood('inotify', lambda n: checked_fd(libc.inotify_init()), ${most})
def timer(n): call(222, 1, 0, ctypes.byref(ctypes.c_int(0)))
flood('timers', timer, ${most === 1 ? 1 : 200_000})
def queue(n):
    return checked_fd(libc.mq_open(b'/abuse%d' % n, os.O_RDWR | os.O_CREAT, 0o600, struct.pack('8q', 0, 10, 8192, 0, 0, 0, 0, 0)))
flood('queues', queue, ${most})
def passing(n):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    socket.send_fds(one, [b'x'], [other.fileno()] * 200)
    return one, other
flood('passed', passing, ${most})
`;
  const outcomes = await held(sandbox, floods(4000), async () => {
    const own = await held(neighbour, floods(1), () => Promise.resolve());
    expect([...own.values()]).toEqual(['DONE 1', 'DONE 1', 'DONE 1', 'DONE 1']);
    await expectUnharmed(neighbour);
  });
  const errors = [...outcomes].map(([name, outcome]) => [name, outcome.split(' ')[0]]);
  expect(Object.fromEntries(errors)).toEqual({
    inotify: 'EMFILE',
    timers: 'EAGAIN',
    queues: 'EMFILE',
    passed: 'ETOOMANYREFS',
  });
  await expectUnharmed(sandbox);
});

test('files in memory are bounded in number before they fill the memory', async () => {
  await using sandbox = await server().sandbox({ memoryLimitMb: 128 });
  const outcomes = await attack(
    sandbox,
    `${FLOOD}
def empty(n): os.close(os.open('/dev/shm/%d' % n, os.O_WRONLY | os.O_CREAT))
flood('files', empty, 1000000)
`,
  );
  expect(outcomes.get('files')).toMatch(/^ENOSPC /);
  expect(countOf(outcomes.get('files'))).toBeLessThanOrEqual((128 * MIB) / 2 / 4096);
  expect((await sandbox.usage()).oomKills).toBe(0);
  await expectUnharmed(sandbox, neighbour);
});

test('floods of tiny files, names and attributes end at the quota, and the neighbour and new sandboxes have room', {
  timeout: 90_000,
}, async () => {
  const diskLimitMb = 16;
  const kinds: Readonly<Record<string, string>> = {
    files: `os.close(os.open(path, os.O_WRONLY | os.O_CREAT))`,
    names: `os.link('/root/one', path + 'x' * 200)`,
    attributes: `os.close(os.open(path, os.O_WRONLY | os.O_CREAT)); os.setxattr(path, 'user.x', b'x' * 3000)`,
  };
  await Promise.all(
    Object.entries(kinds).map(async ([kind, one]) => {
      await using sandbox = await server().sandbox({ diskLimitMb });
      const outcomes = await attack(
        sandbox,
        `${FLOOD}
# Most of the room is taken already: what is left is soon used up by what has no size.
with open('/root/one', 'w') as file: os.posix_fallocate(file.fileno(), 0, ${(diskLimitMb - 2) * MIB})
def one(n):
    if n % 2000 == 0: os.mkdir('/root/%d' % (n // 2000))
    path = '/root/%d/%d' % (n // 2000, n)
    ${one}
flood('${kind}', one, 1000000)
`,
      );
      expect(outcomes.get(kind)).toMatch(/^EDQUOT /);
      expect(countOf(outcomes.get(kind))).toBeGreaterThan(100);
      expect((await sandbox.usage()).diskBytes).toBeLessThanOrEqual((diskLimitMb + 1) * MIB);
      // Commands need no room.
      expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
    }),
  );
  await using another = await server().sandbox({ diskLimitMb });
  await expectUnharmed(another, neighbour);
});
