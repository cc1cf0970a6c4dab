/** Root inside a sandbox against the processes of the platform, its programs and its room. */
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { sha256Of, BytePattern } from '../e2e/byte-pattern.ts';
import { failureOf } from '../e2e/failure-of.ts';
import { aetherPid } from '../e2e/host-side.ts';
import { processFacts } from '../e2e/process-facts.ts';
import { useServer } from '../e2e/started-server.ts';
import { timed, waitFor } from '../e2e/wait-for.ts';
import { attack, expectUnharmed, notRefused, onX64Only } from './attack.ts';
import { expectTold } from './told.ts';

const server = useServer();
onX64Only();
const MIB = 1024 * 1024;

let neighbour: Sandbox;

beforeAll(async () => {
  neighbour = await server().sandbox();
});

afterAll(() => neighbour.stop());

/** Everything that one process may try on another, as functions of its pid. */
const ON_A_PROCESS = `
class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
def on(pid, label):
    buffer = ctypes.create_string_buffer(64)
    local, remote = Vec(ctypes.addressof(buffer), 64), Vec(0x400000, 64)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for name, request in [('attach', 16), ('seize', 0x4206)]:
        attempt(label + name, lambda: checked(libc.ptrace(request, pid, None, None)))
    attempt(label + 'process_vm_readv', lambda: call(310, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    attempt(label + 'process_vm_writev', lambda: call(311, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    attempt(label + 'kcmp', lambda: call(312, pid, os.getpid(), 0, 0, 0))
    attempt(label + 'robust list', lambda: call(274, pid, ctypes.byref(local), ctypes.byref(remote)))
    attempt(label + 'core scheduling', lambda: checked(libc.prctl(62, 2, pid, 0, 0)))
    for number in [0, 3, 4, 5]:
        attempt(label + 'descriptor %d' % number, lambda: call(438, os.pidfd_open(pid), number, 0))
    attempt(label + 'advice on memory', lambda: call(440, os.pidfd_open(pid), ctypes.byref(remote), 1, 21, 0))
    for name in ['environ', 'mem', 'maps', 'smaps', 'auxv', 'stack', 'syscall', 'pagemap', 'io', 'exe', 'cwd', 'root', 'fd', 'fdinfo', 'map_files',
      'ns/net', 'ns/mnt', 'personality', 'timers', 'task/%d/mem' % pid, 'task/%d/environ' % pid]:
        path = '/proc/%d/%s' % (pid, name)
        def look():
            if os.path.islink(path): os.readlink(path)
            elif os.path.isdir(path): os.listdir(path)
            else: read(path)
        attempt(label + name, look)
    for name in ['mem', 'oom_score_adj', 'oom_adj', 'comm', 'clear_refs', 'coredump_filter', 'setgroups', 'uid_map', 'timerslack_ns', 'autogroup', 'sched']:
        attempt(label + 'write ' + name, lambda: write('/proc/%d/%s' % (pid, name), b'0'))
SIGNALS = [signal.SIGSTOP, signal.SIGTSTP, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGCONT, 34, 64]
def signals(pid, label):
    for number in SIGNALS:
        attempt(label + 'signal %d' % number, lambda: os.kill(pid, number))
        attempt(label + 'signal %d by pidfd' % number, lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number))
        attempt(label + 'signal %d to a thread' % number, lambda: call(234, pid, pid, number))
    def by_descriptor():
        one, other = socket.socketpair()
        fcntl.fcntl(one, 10, signal.SIGSTOP); fcntl.fcntl(one, fcntl.F_SETOWN, pid)
        fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); other.send(b'x'); time.sleep(0.05)
    try: by_descriptor()
    except OSError: pass
`;

test('the first process and each of its threads can be neither traced, read, signalled, slowed nor limited', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `${ON_A_PROCESS}
threads = sorted(int(name) for name in os.listdir('/proc/1/task'))
for tid in threads:
    label = 'thread %d ' % threads.index(tid)
    on(tid, label)
    for name, action in {
      'limits': lambda: call(302, tid, 7, struct.pack('QQ', 8, 8), 0), 'cores': lambda: os.sched_setaffinity(tid, [0]),
      'scheduling': lambda: os.sched_setscheduler(tid, 5, os.sched_param(0)), 'priority': lambda: os.setpriority(0, tid, 19),
      'disk priority': lambda: call(251, 1, tid, 3 << 13), 'attributes of scheduling': lambda: call(314, tid, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0),
    }.items(): attempt(label + name, action)
for name, action in {'priority of the user': lambda: os.setpriority(2, 0, 19), 'disk priority of the user': lambda: call(251, 3, 0, 3 << 13),
  'priority of the group': lambda: os.setpriority(1, 1, 19)}.items(): attempt(name, action)
signals(1, '')
for tid in threads:
    for number in SIGNALS: attempt('signal %d to thread %d' % (number, threads.index(tid)), lambda: call(234, 1, tid, number))
attempt('threads', lambda: len(threads))
`,
  );
  expect(outcomes.get('threads')).toBe('DONE 2');
  // The kernel takes signals for the first process of a namespace, and drops those that would end or stop it.
  const isSignal = (line: string): boolean => line.startsWith('signal ');
  expect(notRefused(outcomes).filter((line) => !isSignal(line) && line !== 'threads: DONE 2')).toEqual([]);
  await expectTold(sandbox, 'call', ['prlimit64 1', 'sched_setaffinity 1', 'sched_setscheduler 1', /^setpriority /]);
  await expectUnharmed(sandbox, neighbour);
});

test('a process of the platform that works on a large file cannot be stopped, ended, traced or read: the file comes whole', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox({ diskLimitMb: 512 });
  const pattern = new BytePattern(100_000_000);
  await sandbox.files.write('/root/big', pattern.chunks());
  const stream = await sandbox.files.readStream('/root/big');
  // Nobody reads yet, so its worker waits, and is there to be attacked.
  const outcomes = await attack(
    sandbox,
    `${ON_A_PROCESS}
def workers(): return [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and int(pid) > 1 and read('/proc/%s/comm' % pid) == b'aether\\n']
for _ in range(500):
    if workers(): break
    time.sleep(0.01)
attempt('workers', lambda: len(workers()))
for pid in workers():
    on(pid, 'worker ')
    signals(pid, 'worker ')
`,
  );
  expect(outcomes.get('workers')).toBe('DONE 1');
  expect(notRefused(new Map([...outcomes].filter(([name]) => name !== 'workers')))).toEqual([]);
  // Also by all that can be named at once, which leaves nobody but the caller.
  for (const signal of [19, 9]) {
    const sent = await sandbox.exec(['python3', '-c', `import os; os.kill(-1, ${signal})`]);
    expect(sent.exitCode).toBe(0);
  }
  expect(await sha256Of(stream)).toBe(await pattern.sha256());
  await expectUnharmed(sandbox, neighbour);
});

test('programs of one sandbox can signal and trace each other, whoever started them', async () => {
  await using sandbox = await server().sandbox();
  await using session = await sandbox.session();
  const target = sandbox.exec(
    ['python3', '-c', 'import time; secret = "of-the-program"; print(1, flush=True); time.sleep(1000)'],
    {
      env: { MARK: 'of-the-target' },
    },
  );
  await target.started();
  const find = 'pgrep -f of-the-program | head -1';
  await waitFor('the target', async () => (await session.run(find)).stdout.trim() !== '');
  const outcomes = await attack(
    sandbox,
    `
pid = int(subprocess.run(['sh', '-c', ${JSON.stringify(find)}], capture_output=True, text=True).stdout)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
attempt('environ', lambda: b'of-the-target' in read('/proc/%d/environ' % pid, 65536))
attempt('attach', lambda: checked(libc.ptrace(16, pid, None, None)))
attempt('wait', lambda: os.WIFSTOPPED(os.waitpid(pid, 0)[1]))
attempt('detach', lambda: checked(libc.ptrace(17, pid, None, None)))
attempt('stop', lambda: os.kill(pid, signal.SIGSTOP))
attempt('go on', lambda: os.kill(pid, signal.SIGCONT))
`,
  );
  expect(Object.fromEntries(outcomes)).toEqual({
    environ: 'DONE True',
    attach: 'DONE',
    wait: 'DONE True',
    detach: 'DONE',
    stop: 'DONE',
    'go on': 'DONE',
  });
  expect((await session.run(`kill -TERM $(${find})`)).exitCode).toBe(0);
  expect((await target).signal).toBe(15);
});

test('setuid programs go on working in the domain', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(
    'cp /usr/bin/busybox /root/id && cp /usr/bin/busybox /usr/local/bin/suid && chmod 4755 /usr/local/bin/suid',
  );
  const result = await sandbox.exec(
    ['python3', '-c', "import os; os.execv('/proc/self/exe', ['python3', '-c', 'print(1)'])"],
    {
      user: 'user',
    },
  );
  expect(result.stdout).toBe('1\n');
  expect((await sandbox.exec(['su', 'user', '-c', 'su --version >/dev/null; id -u'])).stdout).toBe('1000\n');
  const status = await sandbox.exec(['grep', 'NoNewPrivs', '/proc/self/status'], { user: 'user' });
  expect(status.stdout).toBe('NoNewPrivs:\t0\n');
});

test('no socket, descriptor, port or log of the platform is within reach', { timeout: 120_000 }, async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
import glob
frame = struct.pack('>I', 64) + b'{"method":"exec.start","params":{"execId":"forged","argv":["id"]}}'
attempt('descriptors', lambda: [fd for fd in range(3, 1024) if os.path.exists('/proc/self/fd/%d' % fd) and os.path.realpath('/proc/self/fd/%d' % fd) != '/proc/%d/fd' % os.getpid()])
def listening():
    found = []
    for port in range(1, 65536):
        with socket.socket() as probe:
            # A port that asks itself is no service.
            if probe.connect_ex(('127.0.0.1', port)) == 0 and probe.getsockname() != probe.getpeername(): found.append(port)
    return found
attempt('ports', listening)
attempt('unix sockets', lambda: [line.split()[-1] for line in open('/proc/net/unix').read().splitlines()[1:] if line.split()[-1][0] in '/@'])
def forge(fd):
    def action():
        os.write(fd, frame)
    return action
attempt('sockets in files', lambda: [path for path in glob.glob('/**', recursive=False) + glob.glob('/run/**', recursive=True) + glob.glob('/tmp/**', recursive=True) if stat.S_ISSOCK(os.lstat(path).st_mode)])
attempt('hypervisor', lambda: socket.socket(40, 1).connect((2, 1024)))
attempt('environments', lambda: [pid for pid in os.listdir('/proc') if pid.isdigit() and os.access('/proc/%s/environ' % pid, os.R_OK) and b'DSEC' in open('/proc/%s/environ' % pid, 'rb').read()])
attempt('programs of the platform', lambda: [p for p in ['/usr/bin/aether', '/aether', '/sbin/aether', '/launcher', '/var/lib/dsec', '/var/log/dsec', '/run/dsec'] if os.path.exists(p)])
`,
    90_000,
  );
  for (const name of [
    'descriptors',
    'ports',
    'unix sockets',
    'sockets in files',
    'environments',
    'programs of the platform',
  ])
    expect([name, outcomes.get(name)]).toEqual([name, 'DONE []']);
  expect(outcomes.get('hypervisor')).toBe('EAFNOSUPPORT');
  // What a command writes is output, whatever it looks like.
  const forged = '{"exited":{"exitCode":0}}\n\u0000\u0000\u0000\u0040{"method":"exec.start"}';
  const told = await sandbox.exec([
    'python3',
    '-c',
    `import sys; sys.stdout.write(${JSON.stringify(forged)}); sys.exit(9)`,
  ]);
  expect([told.stdout, told.exitCode]).toEqual([forged, 9]);
  await expectUnharmed(sandbox, neighbour);
});

test('with libc, loader, shells and all of PATH replaced, static programs, files, terminals and stop go on and tell the truth', {
  timeout: 60_000,
}, async () => {
  const sandbox = await server().sandbox();
  await sandbox.files.write('/srv/busybox', await sandbox.files.read('/usr/bin/busybox'), { mode: 0o755 });
  const replaced = await sandbox.exec([
    '/srv/busybox',
    'sh',
    '-c',
    `cd /srv; printf '#!/srv/busybox sh\\necho all is well; exit 0\\n' > liar; ./busybox chmod 755 liar
for name in true false id python3 ls cat sh bash env sudo; do for d in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
  ./busybox rm -f $d/$name; ./busybox cp liar $d/$name 2>/dev/null; done; done
for f in $(./busybox find / -xdev '(' -name 'ld-linux*' -o -name 'libc.so*' -o -name 'libpthread*' ')'); do ./busybox rm -f $f; echo broken > $f; done
echo /srv/evil.so > /etc/ld.so.preload; echo 'nameserver 1.2.3.4' > /etc/resolv.conf; echo 'root:x:0:0::/:/liar' > /etc/passwd; exit 7`,
  ]);
  expect(replaced.exitCode).toBe(7);
  // The liar is what was asked for by that name, and nothing else believes it.
  expect((await sandbox.exec(['false'])).stdout).toBe('all is well\n');
  expect((await sandbox.exec(['/srv/busybox', 'false'])).exitCode).toBe(1);
  expect((await sandbox.exec(['/srv/busybox', 'sh', '-c', 'kill -9 $$'])).signal).toBe(9);
  expect((await failureOf(sandbox.exec(['/usr/bin/find']))).code).toBe('command_not_executable');
  await sandbox.files.write('/srv/truth', 'truth');
  expect(await sandbox.files.readText('/srv/truth')).toBe('truth');
  expect((await sandbox.files.list('/srv')).entries.map(({ name }) => name).toSorted()).toEqual([
    'busybox',
    'liar',
    'truth',
  ]);
  const pty = await sandbox.pty({ argv: ['/srv/busybox', 'sh', '-c', 'stty size; exit 5'], rows: 7, cols: 9 });
  const ended = await pty.exited();
  expect([ended.stdout.includes('all is well') || ended.stdout.includes('7 9'), ended.exitCode]).toEqual([true, 5]);
  expect((await sandbox.processes()).some(({ pid }) => pid === 1)).toBe(true);
  expect((await sandbox.stop()).state).toBe('stopped');
  await server().expectNothingOf(sandbox.sandboxId);
  await expectUnharmed(neighbour);
});

test('output without end costs the platform nothing', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  const aether = await aetherPid(server(), sandbox.sandboxId);
  const before = await processFacts(aether);
  const loud = await Promise.all([
    sandbox.exec(['yes', 'x'.repeat(1000)], { timeoutMs: 3000, maxOutputBytes: 65_536, outputLimitBytes: 65_536 }),
    sandbox.exec(['sh', '-c', 'cat /dev/zero >&2'], {
      timeoutMs: 3000,
      maxOutputBytes: 65_536,
      outputLimitBytes: 65_536,
    }),
  ]);
  for (const result of loud) expect(result.isTimedOut).toBe(true);
  expect(loud[0].stdout.length).toBeLessThanOrEqual(65_536 + 1000);
  expect((await processFacts(aether)).rssBytes - before.rssBytes).toBeLessThan(8 * MIB);
  await expectUnharmed(sandbox, neighbour);
});

test.for([
  [
    'one file of a petabyte',
    'truncate -s 1P /root/hole; dd if=/dev/zero of=/root/hole bs=1M seek=1000000000 count=1; exec dd if=/dev/zero of=/root/hole bs=1M',
  ],
  [
    'files without number',
    "i=0; while :; do d=/root/d$i; mkdir $d || exit 1; python3 -c \"[open('$d/%d' % n, 'w').write('x') for n in range(2000)]\" || exit 1; i=$((i+1)); done",
  ],
  [
    'directories without end',
    "python3 -c \"import os\nos.chdir('/root')\nfor n in range(4000): os.mkdir('d'); os.chdir('d')\"",
  ],
] as const)(
  'a flood of %s stays in its sandbox, which is told of truthfully and stopped',
  { timeout: 90_000 },
  async ([, script]) => {
    const sandbox = await server().sandbox({ diskLimitMb: 64 });
    await sandbox.runShell(script, { timeoutMs: 20_000 });
    expect((await sandbox.usage()).diskBytes).toBeLessThan(96 * MIB);
    await expectUnharmed(neighbour);
    expect((await sandbox.exec(['/usr/bin/busybox', 'echo', 'on'])).stdout).toBe('on\n');
    const { tookMs } = await timed(() => sandbox.stop());
    expect(tookMs).toBeLessThan(20_000);
    await server().expectNothingOf(sandbox.sandboxId);
  },
);

test('processes without number fill their own sandbox: a neighbour goes on, and so does the platform', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox({ pidsLimit: 64 });
  const bomb = sandbox.exec(['python3', '-c', 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'], {
    timeoutMs: 8000,
  });
  await waitFor('the sandbox to be full', async () => (await sandbox.usage()).pids >= 60, 20_000);
  const { value, tookMs } = await timed(() => neighbour.exec(['echo', 'hi']));
  expect(value.stdout).toBe('hi\n');
  expect(tookMs).toBeLessThan(5000);
  expect((await bomb).isTimedOut).toBe(true);
  await expectUnharmed(sandbox, neighbour);
});

test('the daemons of the host are not where a sandbox looks', async () => {
  await using sandbox = await server().sandbox();
  const daemons = await server().daemons();
  const seen = await sandbox.exec(['sh', '-c', 'cat /proc/[0-9]*/comm; ls /proc | grep -c "^[0-9]"']);
  expect(seen.stdout).not.toMatch(/launcher|node|edge|layerd/);
  const outcomes = await attack(
    sandbox,
    `
for pid in ${JSON.stringify(daemons)}:
    attempt('signal %d' % pid, lambda: os.kill(pid, 9))
    attempt('directory of %d' % pid, lambda: os.listdir('/proc/%d' % pid))
`,
  );
  // A number may be one of the sandbox's own by chance, but none of these is.
  expect(notRefused(outcomes)).toEqual([]);
  for (const pid of daemons) expect((await readFile(`/proc/${pid}/comm`, 'utf8')).length).toBeGreaterThan(0);
});
