/** Root inside a sandbox against the kernel that all sandboxes share. */
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { useServer } from '../e2e/started-server.ts';
import { timed } from '../e2e/wait-for.ts';
import { attack, expectUnharmed, notRefused, onX64Only } from './attack.ts';
import { expectNothingTold, expectTold } from './told.ts';

const server = useServer();
onX64Only();

/** Settings of the host that attacks aim at. */
const AIMS = ['core_pattern', 'modprobe', 'hotplug', 'sysrq', 'panic', 'randomize_va_space', 'kptr_restrict'] as const;

let neighbour: Sandbox;
let before: readonly (string | undefined)[];

const aims = (): Promise<readonly (string | undefined)[]> =>
  Promise.all(AIMS.map((name) => readFile(`/proc/sys/kernel/${name}`, 'utf8').catch(() => undefined)));

beforeAll(async () => {
  neighbour = await server().sandbox();
  before = await aims();
});

afterAll(async () => {
  expect(await aims()).toEqual(before);
  await expectNothingTold(neighbour);
  await neighbour.stop();
});

test('calls that reach into the kernel or the machine are refused, those that are new or unknown do not exist', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
page = ctypes.create_string_buffer(4096)
refused = {'bpf': 321, 'perf_event_open': 298, 'userfaultfd': 323, 'add_key': 248, 'request_key': 249,
  'open_by_handle_at': 304, 'init_module': 175, 'finit_module': 313, 'delete_module': 176, 'kexec_file_load': 320,
  'reboot': 169, 'swapon': 167, 'swapoff': 168, 'acct': 163, 'quotactl': 179, 'quotactl_fd': 443, 'settimeofday': 164,
  'clock_settime': 227, 'clock_adjtime': 305, 'adjtimex': 159, 'vhangup': 153, 'syslog': 103, 'move_pages': 279,
  'migrate_pages': 256, 'fanotify_init': 300, 'lookup_dcookie': 212, 'iopl': 172, 'ioperm': 173, 'modify_ldt': 154,
  'uselib': 134, 'ustat': 136, 'sysfs': 139}
absent = {'io_uring_setup': 425, 'io_uring_enter': 426, 'io_uring_register': 427, 'kexec_load': 246, 'tuxcall': 184,
  'next': 470, 'far': 1000, 'x32 read': 0x40000000}
for name, number in (refused | absent).items():
    attempt(name, lambda: call(number, page, page, 0, 0, 0, 0))
`,
  );
  expect(notRefused(outcomes)).toEqual([]);
  for (const [name, outcome] of outcomes) {
    if (/^(io_uring_|kexec_load|tuxcall|next|far|x32)/.test(name)) expect([name, outcome]).toEqual([name, 'ENOSYS']);
    else expect([name, outcome]).toEqual([name, 'EPERM']);
  }
  await expectTold(sandbox, 'call', [
    ...['bpf', 'perf_event_open', 'userfaultfd', 'add_key', 'open_by_handle_at', 'init_module', 'kexec_file_load'],
    'reboot',
  ]);
  await expectUnharmed(sandbox, neighbour);
});

test('sockets of other families than programs talk, and keyrings, are not to be had', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
page = ctypes.create_string_buffer(4096)
attempt('keyring of the user', lambda: call(250, 0, -4, 0))
attempt('describe a key', lambda: call(250, 6, -5, page, 4096))
attempt('name a keyring', lambda: call(250, 11, -5, page, 4096))
for name, family, kind, protocol in [('packets', 17, 3, 3), ('vsock', 40, 1, 0), ('crypto', 38, 5, 0), ('tipc', 30, 1, 0),
  ('bluetooth', 31, 3, 1), ('can', 29, 3, 1), ('xdp', 44, 3, 0), ('rds', 21, 5, 0), ('key', 15, 3, 2),
  ('netfilter', 16, 3, 12), ('xfrm', 16, 3, 6), ('generic netlink', 16, 3, 16), ('raw', 2, 3, 1), ('raw v6', 10, 3, 58)]:
    attempt('socket: ' + name, lambda: socket.socket(family, kind, protocol).close())
`,
  );
  expect(notRefused(outcomes)).toEqual([]);
  for (const [name, outcome] of outcomes) {
    if (!name.startsWith('socket')) expect([name, outcome]).toEqual([name, 'EPERM']);
  }
  await expectTold(sandbox, 'call', ['socket AF_PACKET', 'socket AF_VSOCK', 'socket NETLINK_NETFILTER', /^keyctl /]);
  await expectUnharmed(sandbox, neighbour);
});

test('what a nested user namespace gives root does not reach further', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
CLONE = {'user': 0x10000000, 'mount': 0x20000, 'net': 0x40000000, 'pid': 0x20000000, 'cgroup': 0x02000000, 'uts': 0x04000000, 'ipc': 0x08000000}
checked(libc.unshare(sum(CLONE.values())))
write('/proc/self/setgroups', b'deny'); write('/proc/self/uid_map', b'0 0 1'); write('/proc/self/gid_map', b'0 0 1')
if os.fork() == 0:
    page = ctypes.create_string_buffer(4096)
    def mount(kind, at, options=None, flags=0): checked(libc.mount(b'x', at, kind, flags, options))
    attempt('bpf', lambda: call(321, 0, page, 128))
    attempt('perf', lambda: call(298, page, 0, -1, -1, 0))
    attempt('netfilter', lambda: socket.socket(16, 3, 12))
    attempt('packets', lambda: socket.socket(17, 3, 3))
    os.makedirs('/tmp/m', exist_ok=True)
    for kind in [b'ext4', b'xfs', b'btrfs', b'erofs', b'squashfs', b'vfat', b'iso9660', b'debugfs', b'tracefs', b'securityfs', b'bpf', b'pstore',
      b'configfs', b'efivarfs', b'nfs', b'9p', b'cifs', b'ramdisk', b'hugetlbfs']:
        attempt('mount ' + kind.decode(), lambda: mount(kind, b'/tmp/m'))
    attempt('release agent', lambda: (mount(b'cgroup', b'/tmp/m', b'rdma'), write('/tmp/m/release_agent', b'/tmp/x')))
    attempt('release agent of v2', lambda: (mount(b'cgroup2', b'/tmp/m'), write('/tmp/m/cgroup.procs', b'0')))
    attempt('lay /proc bare', lambda: checked(libc.umount2(b'/proc', 2)))
    attempt('lay /sys bare', lambda: checked(libc.umount2(b'/sys', 2)))
    attempt('/sys for writing', lambda: checked(libc.mount(None, b'/sys', None, 32 | 4096, None)))
    attempt('/dev for writing', lambda: checked(libc.mount(None, b'/dev', None, 32 | 4096, None)))
    attempt('cgroups for writing', lambda: checked(libc.mount(None, b'/sys/fs/cgroup', None, 32 | 4096, None)))
    attempt('a device', lambda: os.mknod('/tmp/device', 0o666 | stat.S_IFBLK, os.makedev(7, 0)))
    # Its own /proc, and from there the settings of the machine.
    mount(b'proc', b'/tmp/m')
    for name in ['kernel/core_pattern', 'kernel/modprobe', 'kernel/sysrq', 'vm/drop_caches', 'vm/overcommit_memory', 'fs/suid_dumpable', 'kernel/panic']:
        attempt('setting ' + name, lambda: write('/tmp/m/sys/' + name))
    attempt('sysrq', lambda: write('/tmp/m/sysrq-trigger', b'h'))
    attempt('core', lambda: read('/tmp/m/kcore'))
    sys.stdout.flush(); os._exit(0)
os.wait()
`,
  );
  expect(notRefused(outcomes)).toEqual([]);
  await expectUnharmed(sandbox, neighbour);
});

test('requests that administer filesystems, devices or other terminals are unknown, on files, images and terminals', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
open('/root/a', 'w').write('a' * 8192); open('/root/b', 'w').write('b' * 8192); os.truncate('/root/image', 0) if os.path.exists('/root/image') else None
image = os.open('/root/image', os.O_RDWR | os.O_CREAT); os.truncate(image, 64 << 20)
a, b, top = os.open('/root/a', os.O_RDWR), os.open('/root/b', os.O_RDWR), os.open('/', os.O_RDONLY)
master, slave = os.openpty()
def request(fd, number, argument):
    return lambda: call(16, fd, number, argument)
swapext = struct.pack('QQ', 0, 0) + struct.pack('qqqqi', a, b, 0, 8192, 0) + bytes(1024)
for name, fd, number, argument in [
  ('XFS_IOC_SWAPEXT', a, 0xC0C0586D, swapext), ('XFS_IOC_EXCHANGE_RANGE', a, 0x40285881, struct.pack('iiQQQQ', b, 0, 0, 0, 4096, 0)),
  ('XFS_IOC_GOINGDOWN', top, 0x8004587D, bytes(4)), ('EXT4_IOC_MOVE_EXT', a, 0xC028660F, struct.pack('IIQQQQ', 0, b, 0, 0, 1, 0)),
  ('EXT4_IOC_SWAP_BOOT', a, 0x6611, b''), ('EXT4_IOC_SHUTDOWN', top, 0x8004587D, bytes(4)), ('EXT4_IOC_RESIZE_FS', top, 0x40086610, bytes(8)),
  ('FIDEDUPERANGE', a, 0xC0189436, struct.pack('QQHHI', 0, 4096, 1, 0, 0) + struct.pack('qQQiI', b, 0, 0, 0, 0)),
  ('BTRFS_IOC_SNAP_CREATE_V2', top, 0x50009417, bytes(4096)), ('BTRFS_IOC_SUBVOL_CREATE', top, 0x5000940E, bytes(4096)),
  ('BTRFS_IOC_SNAP_DESTROY', top, 0x5000940F, bytes(4096)), ('BTRFS_IOC_TREE_SEARCH', top, 0xD0009411, bytes(4096)),
  ('BTRFS_IOC_DEV_INFO', top, 0xD000941E, bytes(4096)), ('BTRFS_IOC_QGROUP_LIMIT', top, 0x8030942B, bytes(48)),
  ('BTRFS_IOC_QUOTA_CTL', top, 0xC0109428, bytes(16)), ('BTRFS_IOC_BALANCE', top, 0x5000940C, bytes(4096)),
  ('FIFREEZE', top, 0xC0045877, bytes(4)), ('FITHAW', top, 0xC0045878, bytes(4)), ('FITRIM', top, 0xC0185879, struct.pack('QQQ', 0, 1 << 40, 0)),
  ('FIBMAP', a, 1, bytes(4)), ('LOOP_SET_FD', image, 0x4C00, b''), ('LOOP_CTL_GET_FREE', image, 0x4C82, b''),
  ('BLKRRPART', image, 0x125F, b''), ('BLKDISCARD', image, 0x1277, bytes(16)), ('BLKROSET', image, 0x125D, bytes(4)),
  ('TIOCSTI', slave, 0x5412, b'x'), ('TIOCLINUX', slave, 0x541C, bytes([2])), ('TIOCCONS', master, 0x541D, b''),
  ('TIOCSETD', slave, 0x5423, struct.pack('i', 21)), ('TIOCVHANGUP', slave, 0x5437, b''), ('KDSETMODE', slave, 0x4B3A, b''),
  ('VT_ACTIVATE', slave, 0x5606, b''), ('SG_IO', image, 0x2285, bytes(88)), ('FS_IOC_ENABLE_VERITY', a, 0x40806685, bytes(128)),
]:
    attempt(name, request(fd, number, ctypes.create_string_buffer(argument, 8192)))
`,
  );
  expect([...new Set(outcomes.values())]).toEqual(['ENOTTY']);
  await expectTold(
    sandbox,
    'call',
    ['XFS_IOC_SWAPEXT', 'XFS_IOC_EXCHANGE_RANGE', 'EXT4_IOC_SWAP_BOOT', 'FIFREEZE', 'TIOCSTI', 'TIOCLINUX'].map(
      (request) => `ioctl ${request}`,
    ),
  );
  expect((await sandbox.exec(['cmp', '-s', '/root/a', '/root/b'])).exitCode).toBe(1);
  await expectUnharmed(sandbox, neighbour);
});

test('what usual programs ask of descriptors is answered', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
import array, pty, termios, tty
master, slave = os.openpty()
open('/root/from', 'w').write('shared'); from_, to = os.open('/root/from', os.O_RDWR), os.open('/root/to', os.O_RDWR | os.O_CREAT)
reader, writer = os.pipe(); os.write(writer, b'12345')
attempt('FIONREAD', lambda: struct.unpack('i', fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0])
attempt('raw mode', lambda: tty.setraw(slave) and None)
attempt('window', lambda: fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', 3, 4, 0, 0)) and None)
attempt('name', lambda: os.ttyname(slave).startswith('/dev/pts/'))
attempt('packet mode', lambda: fcntl.ioctl(master, termios.TIOCPKT, struct.pack('i', 0)) and None)
attempt('attributes', lambda: fcntl.ioctl(from_, 0x80086601, bytes(8)) and None)
attempt('clone', lambda: (fcntl.ioctl(to, 0x40049409, from_), open('/root/to').read())[1])
attempt('interfaces', lambda: [name for _, name in socket.if_nameindex()][0])
attempt('address', lambda: socket.inet_ntoa(fcntl.ioctl(socket.socket(), 0x8915, struct.pack('256s', b'lo'))[20:24]))
attempt('non-blocking', lambda: fcntl.ioctl(reader, termios.FIONBIO, struct.pack('i', 1)) and None)
attempt('session', lambda: pty.spawn(['true']))
`,
  );
  expect(Object.fromEntries(outcomes)).toEqual({
    FIONREAD: 'DONE 5',
    'raw mode': 'DONE',
    window: 'DONE',
    name: 'DONE True',
    'packet mode': 'DONE',
    attributes: 'DONE',
    clone: 'DONE shared',
    interfaces: 'DONE lo',
    address: 'DONE 127.0.0.1',
    'non-blocking': 'DONE',
    session: 'DONE 0',
  });
});

test('mounts, roots and handles lead nowhere', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
os.makedirs('/tmp/m', exist_ok=True)
for name, arguments in {'tmpfs': (b'x', b'/tmp/m', b'tmpfs', 0, None), 'bind': (b'/', b'/tmp/m', None, 4096, None), 'proc': (b'x', b'/tmp/m', b'proc', 0, None),
  'overlay': (b'x', b'/tmp/m', b'overlay', 0, b'lowerdir=/'), 'remount root': (None, b'/', None, 32, None), 'move': (b'/proc', b'/tmp/m', None, 8192, None),
  'propagate': (None, b'/', None, 16384 | (1 << 20), None), '/sys for writing': (None, b'/sys', None, 32 | 4096, None)}.items():
    attempt('mount ' + name, lambda: checked(libc.mount(*arguments)))
attempt('umount', lambda: checked(libc.umount2(b'/proc', 2)))
attempt('pivot_root', lambda: call(155, b'/', b'/tmp/m'))
attempt('fsopen', lambda: call(430, b'tmpfs', 0))
attempt('open_tree', lambda: call(428, -100, b'/', 1))
attempt('fspick', lambda: call(433, -100, b'/', 0))
for path in ['root/etc/shadow', 'cwd', 'exe', 'fd/3', 'task/1/root']:
    attempt('/proc/1/' + path, lambda: os.stat('/proc/1/' + path) and None)
attempt('the program of PID 1', lambda: write('/proc/1/exe', b'#!'))
for kind in ['mnt', 'pid', 'net', 'user', 'cgroup', 'ipc', 'uts', 'time']:
    attempt('namespace of PID 1: ' + kind, lambda: call(308, os.open('/proc/1/ns/' + kind, os.O_RDONLY), 0))
attempt('namespaces by pidfd', lambda: call(308, os.pidfd_open(1), 0x20000))
for name, kind, major, minor in [('sda', stat.S_IFBLK, 8, 0), ('loop', stat.S_IFBLK, 7, 0), ('mem', stat.S_IFCHR, 1, 1), ('kmsg', stat.S_IFCHR, 1, 11), ('fuse', stat.S_IFCHR, 10, 229), ('kvm', stat.S_IFCHR, 10, 232)]:
    attempt('device ' + name, lambda: os.mknod('/tmp/' + name, 0o666 | kind, os.makedev(major, minor)))
`,
  );
  expect(notRefused(outcomes)).toEqual([]);
  const climbed = await attack(
    sandbox,
    `
os.makedirs('/tmp/jail', exist_ok=True); here = os.open('/', os.O_RDONLY)
os.chroot('/tmp/jail'); os.fchdir(here)
for _ in range(64): os.chdir('..')
os.chroot('.')
attempt('climbed', lambda: sorted(os.listdir('/'))[:3])
attempt('the host', lambda: os.stat('/proc/1/root'))
attempt('hosts', lambda: open('/etc/hostname').read().strip())
`,
  );
  expect(climbed.get('the host')).toBe('EACCES');
  expect(climbed.get('hosts')).toBe(`DONE ${(await sandbox.exec(['hostname'])).stdout.trim()}`);
  await expectUnharmed(sandbox, neighbour);
});

test('no setting and no handler of the kernel can be written, nor what it hides be read', async () => {
  await using sandbox = await server().sandbox();
  const outcomes = await attack(
    sandbox,
    `
for top in ['/proc/sys', '/sys']:
    written = []
    for directory, _, files in os.walk(top):
        for name in files:
            path = os.path.join(directory, name)
            if path.startswith('/proc/sys/net/') or path == '/proc/sys/kernel/ns_last_pid': continue
            try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)); written.append(path)
            except OSError: pass
    attempt('writable below ' + top, lambda: written)
attempt('next pid', lambda: write('/proc/sys/kernel/ns_last_pid', b'4000'))
for path in ['sysrq-trigger', 'kcore', 'kmsg', 'kpagecount', 'kpageflags', 'kpagecgroup', 'timer_list', 'vmallocinfo', 'slabinfo', 'pagetypeinfo',
  'sched_debug', 'latency_stats', 'kallsyms_all', 'sys/kernel/usermodehelper/bset', 'sys/kernel/cap_last_cap/x']:
    attempt('read ' + path, lambda: read('/proc/' + path))
attempt('sysrq', lambda: write('/proc/sysrq-trigger', b'b'))
attempt('helper of devices', lambda: write('/sys/kernel/uevent_helper', b'/tmp/x'))
attempt('formats', lambda: write('/proc/sys/fs/binfmt_misc/register', b':x:M::x::/tmp/x:'))
attempt('addresses', lambda: sum(int(line.split()[0], 16) for line in open('/proc/kallsyms')))
for path in ['debug', 'tracing', 'security']:
    attempt('/sys/kernel/' + path, lambda: os.listdir('/sys/kernel/' + path))
attempt('/sys/fs/bpf', lambda: os.listdir('/sys/fs/bpf'))
for path in ['/sys/firmware/acpi/tables/DSDT', '/sys/firmware/dmi/tables/DMI', '/sys/class/dmi/id/product_uuid', '/sys/kernel/vmcoreinfo_all']:
    attempt(path, lambda: read(path))
for path in ['/sys/fs/cgroup/memory/memory.limit_in_bytes', '/sys/fs/cgroup/pids/pids.max', '/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/pids.max', '/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/memory/release_agent']:
    attempt(path, lambda: write(path, b'-1'))
`,
  );
  const empty = new Set([
    'writable below /proc/sys',
    'writable below /sys',
    '/sys/kernel/debug',
    '/sys/kernel/tracing',
    '/sys/kernel/security',
    '/sys/fs/bpf',
  ]);
  const shown = [...outcomes].filter(([, outcome]) => outcome.startsWith('DONE'));
  expect(shown.filter(([name, outcome]) => !(empty.has(name) && outcome === 'DONE []'))).toEqual(
    outcomes.get('addresses') === 'DONE 0' ? [['addresses', 'DONE 0']] : [],
  );
  await expectUnharmed(sandbox, neighbour);
});

test('a recursive search of all there is, /proc and /sys with it, comes to an end and harms nobody', {
  timeout: 180_000,
}, async () => {
  await using sandbox = await server().sandbox();
  const { value, tookMs } = await timed(() =>
    sandbox.runShell(
      'grep -ra -D skip dsec-needle-that-is-nowhere-but-here / >/tmp/found 2>/tmp/refused; tail -c 300 /tmp/refused; wc -l </tmp/found',
      {
        timeoutMs: 150_000,
      },
    ),
  );
  expect(value.isTimedOut).toBe(false);
  expect(tookMs).toBeLessThan(150_000);
  await expectUnharmed(sandbox, neighbour);
});
