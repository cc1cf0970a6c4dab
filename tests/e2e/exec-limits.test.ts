/** A command that takes all it can get. */
import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { PlatformError, type Exec } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { timed, waitFor } from './wait-for.ts';

const server = useServer();

const PIDS = 64;
/** What a sandbox has above its limit, for aether to start commands in. */
const RESERVED_PIDS = 16;

test('X29 a fork bomb fills its own sandbox and nothing else, and can be killed', { timeout: 90_000 }, async () => {
  await using sandbox = await server().sandbox({ pidsLimit: PIDS, memoryLimitMb: 512 });
  await using neighbour = await server().sandbox();
  const bomb = sandbox.runShell(':(){ :|:& };: ; while :; do (:) & done', { timeoutMs: 60_000 });
  await waitFor('the sandbox to be full', async () => (await sandbox.usage()).pids >= PIDS - 4);
  const { value, tookMs } = await timed(() => neighbour.exec(['echo', 'hi']));
  expect(value.stdout).toBe('hi\n');
  expect(tookMs).toBeLessThan(5000);
  expect((await sandbox.usage()).pids).toBeLessThanOrEqual(PIDS + RESERVED_PIDS);
  // A command either runs in what is reserved, or says why not.
  const meanwhile = await outcomeOf(sandbox.exec(['true'], { timeoutMs: 10_000 }));
  expect(['exit 0', 'pids_exhausted']).toContain(meanwhile);
  expect((await sandbox.info()).state).toBe('running');
  await bomb.kill();
  await bomb;
  await sandbox.exec(['true']).then(
    () => undefined,
    () => undefined,
  );
  await waitFor('the next command to run', async () => (await outcomeOf(sandbox.exec(['true']))) === 'exit 0', 20_000);
});

test('X29 a full sandbox refuses a command with a typed error, and stops as any other', {
  timeout: 60_000,
}, async () => {
  const sandbox = await server().sandbox({ pidsLimit: 32 });
  const holder = sandbox.runShell('while :; do sleep 1000 & done 2>/dev/null');
  await waitFor('the sandbox to be full', async () => (await sandbox.usage()).pids >= 30);
  const outcome = await outcomeOf(sandbox.exec(['true'], { timeoutMs: 10_000 }));
  expect(['exit 0', 'pids_exhausted']).toContain(outcome);
  // Files need no new process.
  expect((await sandbox.files.write('/tmp/x', 'x')).sizeBytes).toBe(1);
  const { tookMs } = await timed(() => sandbox.stop());
  expect(tookMs).toBeLessThan(10_000);
  expect(['sandbox_ended', 'sandbox_failed', 'connection_lost']).toContain((await failureOf(holder)).code);
});

test('X30 of two commands only the one that takes too much memory is killed, and says so', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox({ memoryLimitMb: 128 });
  const other = sandbox.runShell('while :; do echo tick; sleep 0.1; done');
  await other.started();
  const hogs: readonly (() => Exec)[] = [
    () => sandbox.exec(['python3', '-c', 'x = bytearray(400 << 20); print(len(x))']),
    () => sandbox.exec(['tail', '/dev/zero']),
    () => sandbox.runShell('python3 -c "x = bytearray(400 << 20)"'),
  ];
  for (const hog of hogs) {
    const result = await hog();
    expect(result.isOomKilled).toBe(true);
    expect(result.exitCode).toBe(137);
    const { state, cause } = await sandbox.info();
    expect([state, cause]).toEqual(['running', null]);
  }
  expect((await sandbox.usage()).oomKills).toBeGreaterThanOrEqual(hogs.length);
  const { execId } = await other.started();
  const before = (await sandbox.execStatus(execId)).stdoutBytes;
  await waitFor('the other to go on', async () => (await sandbox.execStatus(execId)).stdoutBytes > before);
  const well = await sandbox.exec(['true']);
  expect([well.exitCode, well.isOomKilled]).toEqual([0, false]);
  await other.kill();
});

test('X30 a call in a session and a terminal that take too much memory say so too', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox({ memoryLimitMb: 128 });
  await using session = await sandbox.session();
  const called = await session.run('tail /dev/zero');
  expect([called.exitCode, called.isOomKilled]).toEqual([137, true]);
  const next = await session.run('echo ok');
  expect([next.stdout, next.isOomKilled]).toEqual(['ok\n', false]);
  const shown = await (await sandbox.pty({ argv: ['tail', '/dev/zero'] })).exited();
  expect([shown.exitCode, shown.isOomKilled]).toEqual([137, true]);
  const { execId } = await sandbox.execDetached(['tail', '/dev/zero']);
  const left = await sandbox.attach(execId);
  expect([left.exitCode, left.isOomKilled]).toEqual([137, true]);
  expect((await sandbox.info()).state).toBe('running');
});

test('X30 memory filled by files in memory ends writers, not the sandbox', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox({ memoryLimitMb: 96 });
  const result = await sandbox.runShell('head -c 400M /dev/zero > /dev/shm/x; echo "rc $?"');
  expect(result.stdout).not.toContain('rc 0');
  await sandbox.runShell('rm -f /dev/shm/x');
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  expect((await sandbox.info()).state).toBe('running');
});

test('X30 what runs in a sandbox goes before aether when memory runs out, whoever starts it', async () => {
  await using sandbox = await server().sandbox({ initUser: 'user' });
  // From its first instant on.
  const score = 'cat /proc/$$/oom_score_adj';
  const aether = Number((await sandbox.exec(['cat', '/proc/1/oom_score_adj'])).stdout);
  await using session = await sandbox.session();
  const pty = await sandbox.pty({ argv: ['sh', '-c', score] });
  const scores = [
    (await sandbox.runShell(score)).stdout,
    (await sandbox.runShell(score, { user: 'root' })).stdout,
    (await session.run(score)).stdout,
    (await pty.exited()).stdout,
  ].map(Number);
  for (const command of scores) expect(command).toBeGreaterThan(aether);
});

/** What tells of processors, a line each. */
const PROCESSORS = [
  'nproc',
  'getconf _NPROCESSORS_ONLN',
  'grep -c ^processor /proc/cpuinfo',
  "python3 -c 'import os; print(len(os.sched_getaffinity(0)))'",
  // From 3.13 on; before that programs ask for the affinity, as it does.
  'python3 -c \'import os; print(getattr(os, "process_cpu_count", lambda: len(os.sched_getaffinity(0)))())\'',
  "python3 -c 'import os; print(os.cpu_count())'",
];

test.for([0.5, 1, 2])(
  'X32 with %f cores what asks for its own share sees that, and the rest sees the node',
  async (cores) => {
    await using sandbox = await server().sandbox({ cpuCoresLimit: cores });
    const node = (await readFile('/proc/cpuinfo', 'utf8')).match(/^processor/gm)?.length ?? 0;
    const own = Math.min(Math.ceil(cores), node);
    const { stdout } = await sandbox.runShell(PROCESSORS.join('\n'));
    expect(stdout.trim().split('\n').map(Number)).toEqual([own, node, node, own, own, node]);
    const v1 = 'cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us';
    const quota = await sandbox.runShell(`{ cat /sys/fs/cgroup/cpu.max || ${v1}; } 2>/dev/null`);
    const [limit, period] = quota.stdout.trim().split(/\s+/);
    // All cores of the node are no limit.
    if (cores < node) expect(Number(limit) / Number(period)).toBe(cores);
    else expect(['max', '-1']).toContain(limit);
  },
);

test('X32 with half a core and with one a program gets as much time as that, whatever it starts', {
  timeout: 60_000,
}, async () => {
  for (const cores of [0.5, 1]) {
    await using sandbox = await server().sandbox({ cpuCoresLimit: cores });
    await sandbox.exec(['true']);
    const before = (await sandbox.usage()).cpuUsec;
    const { tookMs } = await timed(() =>
      sandbox.runShell('for i in 1 2 3; do timeout 2 sh -c "while :; do :; done" & done; wait'),
    );
    const used = ((await sandbox.usage()).cpuUsec - before) / 1000 / tookMs;
    expect(used).toBeLessThan(cores * 1.15);
  }
});

test('X32 memory and processes have their limits where containers have them; free and df tell of the node', async () => {
  const limits = { memoryLimitMb: 300, pidsLimit: 100, diskLimitMb: 700 };
  await using sandbox = await server().sandbox(limits);
  const number = async (script: string): Promise<number> => Number((await sandbox.runShell(script)).stdout);
  const ofGroup = (v1: string, v2: string): Promise<number> =>
    number(`cat /sys/fs/cgroup/${v1} /sys/fs/cgroup/${v2} 2>/dev/null`);
  const memoryMib = (await ofGroup('memory/memory.limit_in_bytes', 'memory.max')) / (1024 * 1024);
  expect(memoryMib).toBeGreaterThanOrEqual(limits.memoryLimitMb);
  expect(memoryMib).toBeLessThanOrEqual(limits.memoryLimitMb + 8);
  expect(await ofGroup('pids/pids.max', 'pids.max')).toBe(limits.pidsLimit + RESERVED_PIDS);
  // What is told of the disk is the volume; the quota is met when it is used up.
  expect(await number("df -m / | awk 'END { print $2 }'")).toBeGreaterThan(limits.diskLimitMb);
  const filled = await sandbox.runShell('head -c 800M /dev/zero >/root/fill; sync; du -m /root/fill');
  expect(Number.parseInt(filled.stdout, 10)).toBeLessThanOrEqual(limits.diskLimitMb);
  const totalKib = Number(/^MemTotal:\s*(\d+)/m.exec(await readFile('/proc/meminfo', 'utf8'))?.[1]);
  expect(await number("awk '/^MemTotal:/ { print $2 }' /proc/meminfo")).toBe(totalKib);
  expect(await number("free -k | awk '/^Mem:/ { print $2 }'")).toBe(totalKib);
});

async function outcomeOf(exec: Exec): Promise<string> {
  try {
    return `exit ${(await exec).exitCode}`;
  } catch (error) {
    return PlatformError.is(error) ? error.code : String(error);
  }
}
