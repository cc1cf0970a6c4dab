/**
 * Looking for a way out, or for answers. What public check-lists of container escapes look for, each as the tool does it, by root inside: deepce, amicontained, CDK, botb and the container part of linpeas. A check
 * tells what it has found; a good answer is that there is nothing, or the error of the kernel. Then what is told of those who touch what no honest run does.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { useServer } from '../e2e/started-server.ts';
import { waitFor } from '../e2e/wait-for.ts';
import { attack, expectUnharmed, onX64Only } from './attack.ts';
import { NESTED } from './nested.ts';
import { expectNothingTold, expectTold } from './told.ts';

const server = useServer();
onX64Only();

let neighbour: Sandbox;
beforeAll(async () => {
  neighbour = await server().sandbox();
});
afterAll(async () => {
  await expectUnharmed(neighbour);
  await expectNothingTold(neighbour);
  await neighbour.stop();
});

interface Check {
  /** Who looks for it, in one word each. */
  readonly by: readonly ('deepce' | 'amicontained' | 'cdk' | 'botb' | 'linpeas')[];
  readonly what: string;
  /** An expression of Python: what is found. */
  readonly find: string;
  /** @default `DONE []`: it looks, and finds nothing */
  readonly answer?: string | RegExp;
}

const REFUSED = /^(EPERM|EACCES|ENOENT|ENOSYS|EROFS|EINVAL|ENODEV|EAFNOSUPPORT|ENXIO|ENOTTY|EIO)$/;

const CHECKS: readonly Check[] = [
  // Sockets and programs of engines.
  {
    by: ['deepce', 'cdk', 'botb', 'linpeas'],
    what: 'sockets of container engines and orchestrators',
    find: `there('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/containerd/containerd.sock.ttrpc', '/var/run/crio/crio.sock', '/run/crio/crio.sock', '/run/podman/podman.sock', '/var/run/cri-dockerd.sock', '/run/k3s/containerd/containerd.sock', '/var/run/dockershim.sock', '/run/buildkit/buildkitd.sock', '/run/snapd.socket', '/run/systemd/private', '/run/dbus/system_bus_socket', '/run/dsec', '/var/lib/dsec')`,
  },
  { by: ['botb', 'cdk'], what: 'any unix socket with a name', find: 'named_sockets()' },
  {
    by: ['cdk'],
    what: 'abstract sockets of a shim (CVE-2020-15257)',
    find: `[line for line in open('/proc/net/unix') if '@' in line]`,
  },
  {
    by: ['cdk', 'botb'],
    what: 'APIs of engines and orchestrators on ports',
    find: `[port for port in (2375, 2376, 2379, 4243, 6443, 8001, 8080, 8443, 9000, 10250, 10255, 10256, 15000, 49983) if connects('127.0.0.1', port)]`,
  },
  {
    by: ['deepce', 'linpeas'],
    what: 'programs of engines',
    find: `[name for name in ('docker', 'lxc', 'lxd', 'rkt', 'kubectl', 'podman', 'runc', 'ctr', 'crictl', 'nerdctl', 'containerd-shim') if shutil.which(name)]`,
  },
  {
    by: ['deepce'],
    what: 'a group of an engine',
    find: `[line for line in open('/etc/group') if re.match('(docker|lxd|libvirt|kvm):', line)]`,
  },
  // What a privileged container shows.
  {
    by: ['deepce', 'linpeas', 'cdk'],
    what: 'devices that are more than a container needs',
    find: `sorted(set(os.listdir('/dev')) - {'console', 'core', 'fd', 'full', 'mqueue', 'null', 'ptmx', 'pts', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'tty', 'urandom', 'zero'})`,
  },
  {
    by: ['deepce'],
    what: 'a new network device (privileged)',
    find: `said('ip', 'link', 'add', 'dummy0', 'type', 'dummy')`,
    answer: /Operation not permitted/,
  },
  {
    by: ['linpeas', 'cdk'],
    what: 'disks',
    find: `[name for name in (os.listdir('/sys/block') if os.path.exists('/sys/block') else []) if mountable(name)]`,
  },
  {
    by: ['cdk'],
    what: 'disks, by nodes of their own',
    find: `[(major, minor) for major in (7, 8, 9, 65, 202, 252, 253, 254, 259) for minor in (0, 1, 2) if node(stat.S_IFBLK, major, minor)]`,
  },
  {
    by: ['linpeas', 'cdk'],
    what: 'memory and log of the kernel, by nodes of their own',
    find: `[(major, minor) for major, minor in ((1, 1), (1, 2), (1, 4), (1, 11), (10, 200), (10, 229), (10, 232), (10, 237)) if node(stat.S_IFCHR, major, minor)]`,
  },
  {
    by: ['amicontained', 'linpeas', 'cdk'],
    what: 'filter of system calls',
    find: `[line.split()[1] for line in open('/proc/self/status') if line.startswith('Seccomp:')][0]`,
    answer: 'DONE 2',
  },
  {
    by: ['amicontained'],
    what: 'own namespace of users, with ids that are nobody outside',
    find: `[int(part) for part in open('/proc/self/uid_map').read().split()][::2] + [int(open('/proc/self/uid_map').read().split()[1]) >= 65536]`,
    answer: 'DONE [0, 65536, True]',
  },
  {
    by: ['amicontained', 'linpeas'],
    what: 'processes of others',
    find: `[pid for pid in os.listdir('/proc') if pid.isdigit() and os.path.exists('/proc/%s/comm' % pid) and open('/proc/%s/comm' % pid).read().strip() in ('systemd', 'init', 'kthreadd', 'dockerd', 'containerd', 'kubelet', 'sshd', 'node', 'launcher')]`,
  },
  {
    by: ['cdk', 'linpeas'],
    what: 'namespaces that are those of PID 1',
    find: `[kind for kind in os.listdir('/proc/self/ns') if readable_link('/proc/1/ns/' + kind)]`,
  },
  {
    by: ['deepce', 'cdk', 'linpeas'],
    what: 'mounts with a path of the host',
    find: `[line.split()[4] for line in open('/proc/self/mountinfo') if re.search('dsec|volume|layers|/var/lib|/home/|/tmp', line.split()[3] + line.split()[4] + line.split(' - ')[1])]`,
  },
  {
    by: ['cdk'],
    what: 'a filesystem of the host for groups (lxcfs)',
    find: `[line for line in open('/proc/self/mountinfo') if 'lxcfs' in line] + there('/var/lib/lxcfs')`,
  },
  // Ways of writing to the host.
  {
    by: ['linpeas', 'cdk', 'deepce'],
    what: 'release_agent 1: a group mounted',
    find: `[kind for kind in groups() if mounts(b'cgroup', kind)]`,
  },
  {
    by: ['linpeas'],
    what: 'release_agent 2: one that can be written',
    find: `[path for path in found('/sys/fs/cgroup', 'release_agent') if writable(path)]`,
  },
  {
    by: ['linpeas', 'cdk'],
    what: 'release_agent 3: by a nested namespace',
    find: `in_nested('[kind for kind in groups() if mounts(b"cgroup", kind) and any(writable("/tmp/checked/" + name) for name in ("release_agent", "notify_on_release", "tasks", "cgroup.procs", "devices.allow", "memory.limit_in_bytes"))]')`,
    answer: 'DONE []',
  },
  {
    by: ['cdk'],
    what: 'rewriting the devices of the group',
    find: `[path for path in found('/sys/fs/cgroup', 'devices.allow') if writable(path)]`,
  },
  {
    by: ['linpeas', 'cdk'],
    what: 'handlers and settings of the kernel',
    find: `[path for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/kernel/hotplug', '/proc/sys/fs/binfmt_misc/register', '/proc/sys/fs/binfmt_misc/status', '/proc/sys/vm/panic_on_oom', '/proc/sys/vm/overcommit_memory', '/proc/sys/kernel/panic', '/proc/sys/kernel/panic_on_oops', '/proc/sysrq-trigger', '/sys/kernel/uevent_helper', '/sys/kernel/vmcoreinfo', '/sys/fs/cgroup/cgroup.procs', '/proc/sys/kernel/yama/ptrace_scope', '/proc/sys/kernel/unprivileged_bpf_disabled', '/sys/kernel/security/apparmor/.load', '/sys/kernel/mm/transparent_hugepage/enabled', '/sys/kernel/mm/ksm/run', '/sys/power/state', '/sys/kernel/debug', '/sys/kernel/tracing', '/sys/firmware/efi/efivars', '/sys/firmware/efi/vars', '/sys/class/thermal/thermal_zone0/mode', '/sys/kernel/kexec_crash_loaded', '/sys/module/kernel/parameters/panic') if writable(path)]`,
  },
  {
    by: ['linpeas'],
    what: 'memory and tables of the kernel',
    find: `[path for path in ('/proc/kcore', '/proc/kmem', '/proc/mem', '/proc/kmsg', '/proc/kpagecount', '/proc/kpageflags', '/proc/kpagecgroup', '/proc/sched_debug', '/proc/timer_list', '/proc/slabinfo', '/proc/vmallocinfo', '/proc/pagetypeinfo', '/proc/latency_stats', '/dev/mem', '/dev/kmem', '/dev/port', '/dev/kmsg', '/sys/kernel/debug/kprobes/list', '/sys/kernel/vmcoreinfo/x', '/boot/vmlinuz', '/boot/System.map') if readable(path)]`,
  },
  {
    by: ['linpeas'],
    what: 'addresses of the kernel',
    find: `[line for line in open('/proc/kallsyms') if int(line.split()[0], 16)][:3] if readable('/proc/kallsyms') else []`,
  },
  {
    by: ['cdk'],
    what: 'mount of /proc, /sys, a disk, an overlay',
    find: `[kind for kind in (b'proc', b'sysfs', b'tmpfs', b'overlay', b'ext4', b'debugfs', b'bpf', b'fuse') if mounts(kind, None)]`,
  },
  {
    by: ['cdk'],
    what: 'CAP_DAC_READ_SEARCH (shocker)',
    find: `call(304, os.open('/etc/hosts', os.O_RDONLY), ctypes.create_string_buffer(struct.pack('IiII', 8, 1, 2, 0)), 0)`,
    answer: 'EPERM',
  },
  {
    by: ['cdk', 'deepce'],
    what: 'CAP_SYS_PTRACE: PID 1 can be traced',
    find: `checked(libc.ptrace(16, 1, None, None))`,
    answer: 'EPERM',
  },
  {
    by: ['cdk'],
    what: 'CAP_SYS_MODULE, CAP_SYS_BOOT, CAP_SYS_RAWIO, CAP_SYSLOG, CAP_SYS_TIME',
    find: `[number for number in (175, 313, 176, 246, 320, 169, 172, 173, 103, 227) if not refused(number)]`,
  },
  {
    by: ['cdk', 'amicontained'],
    what: 'CAP_BPF, CAP_PERFMON, io_uring, userfaultfd',
    find: `[number for number in (321, 298, 425, 323) if not refused(number)]`,
  },
  {
    by: ['cdk'],
    what: 'CAP_NET_ADMIN, CAP_NET_RAW over the network that it has',
    find: `[kind for kind in ((17, 3, 3), (2, 3, 1), (10, 3, 58)) if opens(*kind)]`,
  },
  {
    by: ['amicontained', 'deepce', 'linpeas'],
    what: 'capabilities that a setting of the scheduler or a limit needs',
    find: `[bit for bit in (23, 24) if capability('CapBnd') >> bit & 1]`,
  },
  {
    by: ['botb'],
    what: 'keys in keyrings',
    find: `[line for line in keys('/proc/keys').splitlines() if not line.endswith(': empty')] + [line for line in keys('/proc/key-users').splitlines() if not line.startswith('    0:')]`,
  },
  {
    by: ['botb'],
    what: 'keys by number',
    find: `[serial for serial in range(1, 100) if not refused(250, 6, serial, 0, 0)]`,
  },
  {
    by: ['cdk'],
    what: 'runc by /proc/self/exe (CVE-2019-5736)',
    find: `[pid for pid in os.listdir('/proc') if pid.isdigit() and readable_link('/proc/%s/exe' % pid) and writable('/proc/%s/exe' % pid) and not os.readlink('/proc/%s/exe' % pid).startswith('/usr/bin/python')]`,
  },
  { by: ['cdk'], what: 'descriptors of who started it (CVE-2024-21626)', find: `inherited` },
  {
    by: ['cdk'],
    what: 'routes to loopback (CVE-2020-8558)',
    find: `[name for name in os.listdir('/proc/sys/net/ipv4/conf') if open('/proc/sys/net/ipv4/conf/%s/route_localnet' % name).read().strip() != '0']`,
  },
  // Secrets.
  {
    by: ['cdk', 'botb', 'linpeas'],
    what: 'accounts of orchestrators and clouds',
    find: `there('/var/run/secrets', '/run/secrets', '/var/run/secrets/kubernetes.io/serviceaccount/token', '/etc/kubernetes', '/root/.kube/config', '/root/.docker/config.json', '/root/.aws', '/root/.ssh/id_rsa', '/etc/shadow-', '/.dockerenv', '/run/.containerenv', '/var/lib/kubelet', '/etc/cni')`,
  },
  {
    by: ['deepce', 'cdk', 'botb'],
    what: 'variables that are secrets',
    find: `[name for name in os.environ if re.search('(?i)pass|secret|token|key|dsec|kube|aws|credential', name)]`,
  },
  {
    by: ['botb', 'cdk', 'linpeas'],
    what: 'metadata of clouds',
    find: `[host for host in ('169.254.169.254', '100.100.100.200', '168.63.129.16', '169.254.170.2', '192.0.0.192') if connects(host, 80)]`,
  },
  {
    by: ['deepce', 'botb'],
    what: 'passwords of nobody (CVE-2019-5021)',
    find: `[line for line in open('/etc/shadow') if line.split(':')[1] == '']`,
  },
  {
    by: ['deepce'],
    what: 'others in the network',
    find: `[line for line in open('/proc/net/arp').readlines()[1:]] + [name for name in os.listdir('/sys/class/net') if name != 'lo']`,
  },
  {
    by: ['cdk', 'linpeas'],
    what: 'layout of memory that is not random',
    find: `open('/proc/sys/kernel/randomize_va_space').read().strip()`,
    answer: 'DONE 2',
  },
];

const TOOLS = `
import re, shutil
inherited = [fd for fd in range(3, 1024) if os.path.lexists('/proc/self/fd/%d' % fd)]
def there(*paths): return [path for path in paths if os.path.lexists(path)]
def named_sockets():
    # Names in /dev/pts and of the check itself are none.
    return [line.split()[-1] for line in open('/proc/net/unix').readlines()[1:] if line.split()[-1][0] in '/@']
def connects(host, port):
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex((host, port)) == 0 and probe.getsockname() != probe.getpeername()
def said(*argv): return subprocess.run(argv, capture_output=True, text=True).stderr.strip()
def writable(path):
    try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)); return True
    except OSError: return False
def readable(path):
    try:
        with open(path, 'rb') as file: return len(file.read(16)) > 0
    except OSError: return False
def readable_link(path):
    try: os.readlink(path); return True
    except OSError: return False
def node(kind, major, minor):
    try: os.mknod('/tmp/node', 0o600 | kind, os.makedev(major, minor)); os.unlink('/tmp/node'); return True
    except OSError: return False
def mounts(kind, options):
    os.makedirs('/tmp/checked', exist_ok=True)
    return libc.mount(b'x', b'/tmp/checked', kind, 0, options.encode() if options else None) == 0
def mountable(name): return libc.mount(b'/dev/' + name.encode(), b'/tmp', b'ext4', 0, None) == 0
def groups(): return [line.split()[0] for line in open('/proc/cgroups').readlines()[1:]]
def found(top, name): return [os.path.join(at, name) for at, _, files in os.walk(top) if name in files]
def refused(number, *arguments):
    try: call(number, *(arguments or (0, 0, 0, 0, 0))); return False
    except OSError: return True
def opens(*kind):
    try: socket.socket(*kind).close(); return True
    except OSError: return False
def capability(name): return [int(line.split()[1], 16) for line in open('/proc/self/status') if line.startswith(name)][0]
def keys(path):
    try: return open(path).read()
    except OSError: return ''
def in_nested(expression):
    reader, writer = os.pipe()
    def action(): os.write(writer, repr(eval(expression)).encode())
    nested(action); os.close(writer)
    return eval(os.read(reader, 65536) or '[]')
`;

test('nothing that check-lists of escapes look for is there, in the profiles default and strict', {
  timeout: 120_000,
}, async () => {
  const script = `${NESTED}${TOOLS}${CHECKS.map(({ what, find }) => `attempt(${JSON.stringify(what)}, lambda: ${find})`).join('\n')}`;
  for (const profile of ['default', 'strict'] as const) {
    await using sandbox = await server().sandbox({ policy: { profile } });
    const outcomes = await attack(sandbox, script);
    const found = CHECKS.filter(({ what, answer = 'DONE []' }) => {
      const outcome = outcomes.get(what) ?? 'nothing was tried';
      if (REFUSED.test(outcome)) return false;
      return typeof answer === 'string' ? outcome !== answer : !answer.test(outcome);
    });
    await expectTold(sandbox, 'call', ['open_by_handle_at']);
    expect(found.map(({ by, what }) => [profile, by.join(' '), what, outcomes.get(what)])).toEqual([]);
  }
  expect(CHECKS.length).toBeGreaterThan(40);
});

const KEY = '/srv/answers/key';

test('a tripwire tells of whoever opens, lists or executes it, whatever it is called by then, and of nobody else', async () => {
  await using other = await server().sandbox({ policy: { tripwires: ['/etc/shadow'] } });
  await using sandbox = await server().sandbox({ policy: { tripwires: ['/etc/shadow', '/usr/share/doc', KEY] } });
  expect((await sandbox.behaviour()).absentTripwires).toEqual([KEY]);
  // What is near to it is no touch.
  await sandbox.exec(['sh', '-c', 'ls /etc; stat /etc/shadow; cat /etc/passwd; ls /usr/share']);
  await expectNothingTold(sandbox);
  const touches = [
    'cat /etc/shadow',
    'ls /usr/share/doc',
    'ln /etc/shadow /etc/other && cat /etc/other',
    'mv /etc/shadow /etc/renamed && cat /etc/renamed',
  ];
  const execs = new Set<string>();
  for (const touch of touches) {
    const exec = sandbox.exec(['sh', '-c', touch]);
    execs.add((await exec.started()).execId);
    expect((await exec).exitCode).toBe(0);
  }
  await expectTold(sandbox, 'tripwire', ['/etc/shadow', '/usr/share/doc'], { command: 'sh' });
  const told: string[] = [];
  await waitFor('an event of each command', async () => {
    told.length = 0;
    for await (const event of server().client.events({
      sandboxId: sandbox.sandboxId,
      kinds: ['tripwire'],
      follow: false,
    })) {
      expect([event.sandboxId, event.outcome]).toEqual([sandbox.sandboxId, 'seen']);
      told.push(event.execId ?? '');
    }
    return [...execs].every((execId) => told.includes(execId));
  });
  expect(told.filter((execId) => !execs.has(execId))).toEqual([]);
  await expectNothingTold(other);
  await expectUnharmed(sandbox, other);
});

test('what strict covers of the kernel is told when it is opened, with the command; a neighbour is not named', async () => {
  await using sandbox = await server().sandbox({ policy: { profile: 'strict' } });
  const outcomes = await attack(
    sandbox,
    `
for path in ['/proc/kallsyms', '/proc/keys', '/proc/timer_list', '/sys/firmware']:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
attempt('namespaces of users', lambda: checked(libc.unshare(0x10000000)))
`,
  );
  for (const [path, outcome] of outcomes)
    expect([path, outcome]).toEqual([path, expect.stringMatching(/^(DONE ?(\[\])?|E[A-Z]+)$/)]);
  await expectTold(sandbox, 'open', ['/proc/kallsyms', '/proc/keys']);
  await expectTold(sandbox, 'call', [/^unshare/]);
  await expectNothingTold(neighbour);
  await expectUnharmed(sandbox, neighbour);
});
