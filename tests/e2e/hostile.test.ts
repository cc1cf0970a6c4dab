/** Root inside a sandbox against the platform. */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { PlatformError } from '@dsec/libdsec';
import { aetherPid, statusField } from './host-side.ts';
import { useServer } from './started-server.ts';
import { timed, waitFor } from './wait-for.ts';

const server = useServer();

test('root inside can neither read, trace, signal nor kill aether', async () => {
  await using sandbox = await server().sandbox();
  const script = `
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try:
        action()
        print(name, 'DONE')
    except OSError as error:
        print(name, 'refused')
def ptrace(request):
    if libc.ptrace(request, 1, None, None) != 0:
        raise OSError(ctypes.get_errno(), 'ptrace')
def vm_read():
    buffer = ctypes.create_string_buffer(8)
    class Vec(ctypes.Structure):
        _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
    local = Vec(ctypes.addressof(buffer), 8); remote = Vec(0x400000, 8)
    if libc.process_vm_readv(1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), 'process_vm_readv')
for name in ['environ', 'mem', 'maps', 'auxv', 'stack', 'syscall', 'pagemap', 'io', 'exe', 'cwd', 'root', 'fd', 'fdinfo', 'map_files', 'ns/net', 'task/1/mem', 'task/1/environ', 'personality', 'clear_refs', 'timers']:
    path = '/proc/1/' + name
    def look(path=path):
        if os.path.islink(path): os.readlink(path)
        elif os.path.isdir(path): os.listdir(path)
        else:
            with open(path, 'rb') as file: file.read(16)
    attempt(name, look)
for name in ['mem', 'oom_score_adj', 'comm', 'setgroups', 'uid_map', 'clear_refs', 'coredump_filter']:
    def write(name=name):
        with open('/proc/1/' + name, 'wb') as file: file.write(b'0')
    attempt('write ' + name, write)
attempt('attach', lambda: ptrace(16))
attempt('seize', lambda: ptrace(0x4206))
attempt('vm_read', vm_read)
for number in [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGHUP, signal.SIGUSR1]:
    attempt('signal %d' % number, lambda: os.kill(1, number))
def pidfd():
    fd = os.pidfd_open(1)
    if libc.syscall(438, fd, 3, 0) < 0:
        raise OSError(ctypes.get_errno(), 'pidfd_getfd')
attempt('pidfd_getfd', pidfd)
def namespace():
    fd = os.open('/proc/1/ns/mnt', os.O_RDONLY)
    if libc.setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), 'setns')
attempt('setns', namespace)
`;
  const result = await sandbox.exec(['python3', '-c', script]);
  expect(result.stderr).toBe('');
  const done = result.stdout.split('\n').filter((line) => line.endsWith('DONE'));
  // A signal that the kernel drops on its way to the first process of a namespace is no harm either: see below.
  expect(done.filter((line) => !line.startsWith('signal '))).toEqual([]);
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  expect((await sandbox.exec(['kill', '-9', '-1'])).exitCode).not.toBe(255);
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  expect((await sandbox.info()).state).toBe('running');
});

test('a command has no descriptor, socket or path of the platform', async () => {
  await using sandbox = await server().sandbox();
  const plain = await sandbox.exec([
    'python3',
    '-c',
    "import os; print(sorted(os.listdir('/proc/self/fd'), key=int)[:-1]); print([os.readlink('/proc/self/fd/%d' % fd) for fd in range(3)])",
  ]);
  expect(plain.stdout).toMatch(/^\['0', '1', '2'\]$/m);
  expect(plain.stdout).toContain('/dev/null');
  const pty = await sandbox.pty({
    argv: ['python3', '-c', "import os; print(sorted(os.listdir('/proc/self/fd'), key=int)[:-1])"],
  });
  expect((await pty.exited()).stdout).toBe("['0', '1', '2']\r\n");
  await using session = await sandbox.session();
  const held = await session.run('for f in /proc/self/fd/*; do readlink $f; done; find / -xdev -type s 2>/dev/null');
  expect(held.stdout).not.toMatch(/socket:|aether|launcher|edge\.sock|\/run\/s\//);
  const mounts = await sandbox.exec(['cat', '/proc/self/mountinfo']);
  expect(mounts.stdout).not.toMatch(/dsec|volume|layers|\/tmp|\/var\/lib/);
  const unix = await sandbox.exec(['cat', '/proc/net/unix']);
  expect(
    unix.stdout
      .trim()
      .split('\n')
      .slice(1)
      .filter((line) => /(\/|@)\S+$/.test(line)),
  ).toEqual([]);
  const environment = await sandbox.exec(['env']);
  expect(environment.stdout).not.toMatch(/DSEC|SOCK|launcher|dsec_/i);
});

const replacements = [
  ['a program that lies', "printf '#!/bin/false\\n' > /tmp/liar; chmod 755 /tmp/liar"],
  ['nothing at all', 'rm -f /tmp/liar'],
] as const;

test.for(replacements)(
  'with shells, loader and tools of the image replaced by %s, files, static programs and stop go on and tell the truth',
  async ([, prepare]) => {
    const sandbox = await server().sandbox();
    await sandbox.runShell('mkdir -p /srv/d && echo truth > /srv/d/f && ln -s f /srv/d/l');
    // A static program that needs none of them.
    await sandbox.files.write('/srv/busybox', await sandbox.files.read('/usr/bin/busybox'), { mode: 0o755 });
    expect((await sandbox.exec(['/srv/busybox', 'echo', 'before'])).stdout).toBe('before\n');
    const destroy = `${prepare}
for path in /bin/bash /bin/sh /usr/bin/bash /usr/bin/sh /bin/ls /bin/cat /bin/tar /usr/bin/env /bin/mv /lib64/ld-linux-x86-64.so.2 /etc/passwd /etc/group /etc/ld.so.preload; do
  /srv/busybox rm -f "$path"; [ -e /tmp/liar ] && /srv/busybox cp /tmp/liar "$path"
done
exit 0`;
    await sandbox.exec(['/srv/busybox', 'sh', '-c', destroy]);
    expect(await sandbox.files.readText('/srv/d/f')).toBe('truth\n');
    await sandbox.files.write('/srv/d/g', 'written');
    expect((await sandbox.files.list('/srv/d')).entries.map(({ name, kind }) => `${kind} ${name}`).toSorted()).toEqual([
      'file f',
      'file g',
      'symlink l',
    ]);
    const local = await mkdtemp(join(tmpdir(), 'dsec-e2e-'));
    try {
      await sandbox.files.downloadDirectory('/srv/d', join(local, 'd'));
      expect((await readdir(join(local, 'd'))).toSorted()).toEqual(['f', 'g', 'l']);
      await sandbox.files.uploadDirectory(join(local, 'd'), '/srv/e');
    } finally {
      await rm(local, { recursive: true });
    }
    expect((await sandbox.exec(['/srv/busybox', 'cat', '/srv/e/g'])).stdout).toBe('written');
    expect((await sandbox.exec(['/srv/busybox', 'echo', 'after'])).stdout).toBe('after\n');
    const shell = await sandbox.runShell('echo never').then(
      (result) => result.exitCode,
      (error: unknown) => (PlatformError.is(error) ? error.code : 0),
    );
    expect(shell).not.toBe(0);
    expect((await sandbox.processes())[0]?.pid).toBe(1);
    expect((await sandbox.stop()).state).toBe('stopped');
    await server().expectNothingOf(sandbox.sandboxId);
  },
);

test('mounts, devices, modules, clocks and paths of the host are out of reach for root inside', async () => {
  await using sandbox = await server().sandbox();
  const refused = [
    'mount -t proc none /mnt && ls /mnt/1/root/../..',
    'mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda',
    'mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem',
    'mount --bind / /mnt && umount /mnt && mount -o remount,rw /sys',
    'echo 1 > /proc/sys/kernel/sysrq',
    'echo b > /proc/sysrq-trigger',
    'echo core > /proc/sys/kernel/core_pattern',
    'date -s 2001-01-01',
    'mount -t cgroup none /mnt',
    'mount -t cgroup2 none /mnt',
    'mount /dev/loop0 /mnt',
    'python3 -c "import ctypes; raise SystemExit(0 if ctypes.CDLL(None).syscall(246,0,0,0,0)==0 else 1)"',
    'python3 -c "import ctypes; raise SystemExit(0 if ctypes.CDLL(None).syscall(175,0,0,0)==0 else 1)"',
    'cat /proc/kcore | head -c 1 | grep -q .',
    'dmesg | grep -q .',
    'swapon /tmp/x',
    'chroot /proc/1/root true',
    'nsenter -t 1 -m true',
  ];
  const outcomes = await Promise.all(
    refused.map(async (script) => [script, (await sandbox.runShell(script)).exitCode === 0] as const),
  );
  expect(outcomes.filter(([, worked]) => worked)).toEqual([]);
  const disks = await sandbox.runShell('ls /dev; cat /proc/mounts');
  expect(disks.stdout).not.toMatch(/loop\d|sd[a-z]|vd[a-z]|kvm|\/var\/lib|volume\.img|\/tmp\/dsec/);
  expect((await sandbox.exec(['cat', '/proc/sys/kernel/core_pattern'])).exitCode).toBe(0);
});

test('root inside is nobody on the host, and no two sandboxes share ids', async () => {
  const sandboxes = await Promise.all([server().sandbox(), server().sandbox()]);
  const owners = await Promise.all(
    sandboxes.map(async (sandbox) => {
      expect((await sandbox.exec(['cat', '/proc/self/uid_map'])).stdout.trim()).toMatch(/^0\s+\d+\s+65536$/);
      const uids = await statusField(await aetherPid(server(), sandbox.sandboxId), 'Uid');
      return Number(uids?.split(/\s+/)[0]);
    }),
  );
  for (const uid of owners) expect(uid).toBeGreaterThanOrEqual(65_536);
  expect(Math.abs((owners[0] ?? 0) - (owners[1] ?? 0))).toBeGreaterThanOrEqual(65_536);
  for (const sandbox of sandboxes) {
    expect((await sandbox.exec(['stat', '-c', '%u:%g', '/etc/passwd', '/root'])).stdout).toBe('0:0\n0:0\n');
    await sandbox.stop();
  }
});

test('one sandbox sees neither processes, files, network nor shared memory of another', async () => {
  await using one = await server().sandbox();
  await using other = await server().sandbox();
  await one.runShell(
    'echo secret-of-one > /dev/shm/x; echo secret-of-one > /tmp/x; (exec -a secret-of-one sleep 1000) & ipcmk -M 4096 2>/dev/null; true',
  );
  const look = await other.runShell(
    'cat /dev/shm/* /tmp/* 2>/dev/null; cat /proc/[0-9]*/cmdline | tr "\\0" " "; ip addr 2>/dev/null; cat /proc/net/dev; cat /proc/sysvipc/shm; cat /proc/keys',
  );
  expect(look.stdout).not.toContain('secret-of-one');
  expect((await other.runShell('cat /proc/sysvipc/shm | wc -l')).stdout.trim()).toBe('1');
  expect((await other.runShell('grep -vc "lo:" /proc/net/dev')).stdout.trim()).toMatch(/^[23]$/);
});

test('a sandbox that fills its disk, its processes and its memory at once is still told of truthfully and stopped', {
  timeout: 90_000,
}, async () => {
  const sandbox = await server().sandbox({ diskLimitMb: 32, pidsLimit: 48, memoryLimitMb: 64 });
  const filling = sandbox.runShell(
    '(while :; do head -c 1M /dev/zero >> /root/fill; done) & (while :; do sleep 100 & done) & tail /dev/zero & wait; sleep 1000',
  );
  await waitFor('it to be full', async () => (await sandbox.usage()).pids >= 40, 20_000);
  expect((await sandbox.info()).state).toBe('running');
  expect((await sandbox.usage()).diskBytes).toBeLessThan(64 * 1024 * 1024);
  await using neighbour = await server().sandbox();
  expect((await neighbour.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  const { value, tookMs } = await timed(() => sandbox.stop());
  expect(value.state).toBe('stopped');
  expect(tookMs).toBeLessThan(15_000);
  await filling.then(undefined, () => undefined);
  await server().expectNothingOf(sandbox.sandboxId);
});
