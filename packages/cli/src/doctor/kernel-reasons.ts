/** Why the launcher needs what it tries, and how it is got. Keys are the names that `launcher doctor` prints. */
export const kernelReasons: Readonly<Record<string, { readonly why: string; readonly fix: string }>> = {
  kernel: {
    why: 'older kernels lack mount calls that a create uses',
    fix: 'use a newer kernel (Debian: linux-image-amd64 from backports)',
  },
  clone3: {
    why: 'a sandbox begins in all of its namespaces and its cgroup at once',
    fix: 'in a container, allow clone3 in its seccomp profile',
  },
  pidfd: {
    why: 'processes are named by descriptors, which a reused pid cannot deceive',
    fix: 'use a newer kernel',
  },
  'user-namespaces': {
    why: 'root inside a sandbox is nobody outside',
    fix: 'sysctl -w user.max_user_namespaces=65536 (and kernel.unprivileged_userns_clone=1 where it exists); a chroot never has them',
  },
  'network-namespaces': {
    why: 'each sandbox has a network of its own, closed until a rule opens it',
    fix: 'use a kernel with CONFIG_NET_NS',
  },
  cgroups: {
    why: 'memory, processes and CPU of each sandbox are limited',
    fix: 'mount cgroup v2 with the controllers memory, pids and cpu (systemd does), or cgroup v1',
  },
  'erofs-file': {
    why: 'layers are EROFS images that are mounted straight from files',
    fix: 'use a kernel with CONFIG_EROFS_FS and CONFIG_EROFS_FS_BACKED_BY_FILE (6.12 or newer); try `modprobe erofs`',
  },
  'idmapped-mounts': {
    why: 'one shared layer shows as owned by the users of each sandbox',
    fix: 'use a newer kernel',
  },
  'overlay-lowerdir-fd': {
    why: 'the writable layer lies over layers that have no path',
    fix: 'use a newer kernel with CONFIG_OVERLAY_FS; try `modprobe overlay`',
  },
  'btrfs-simple-quota': {
    why: 'without it no sandbox has a quota of its own for what it writes',
    fix: 'use a kernel with CONFIG_BTRFS_FS (6.7 or newer); try `modprobe btrfs`',
  },
  seccomp: { why: 'system calls that no sandbox needs are closed', fix: 'use a kernel with CONFIG_SECCOMP_FILTER' },
  landlock: {
    why: 'even root inside cannot trace, signal or read PID 1 of the sandbox',
    fix: 'use a kernel with CONFIG_SECURITY_LANDLOCK, and `landlock` in its lsm= list',
  },
  apparmor: {
    why: 'a second lock beside Landlock on /proc, /sys, signals and traces; without it the others hold',
    fix: 'use a kernel with CONFIG_SECURITY_APPARMOR, `apparmor` in its lsm= list and the package apparmor',
  },
  'io-weight': {
    why: 'the disk serves sandboxes in equal parts, whatever one of them asks for',
    fix: 'boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), and choose its scheduler: echo bfq >/sys/block/DISK/queue/scheduler',
  },
  'host-limits': {
    why: 'open files, asynchronous I/O and terminals are counted for the whole host: one sandbox could use them up for all',
    fix: 'sysctl -w fs.file-max=9223372036854775807 fs.aio-max-nr=1073741824 kernel.pty.max=1048576',
  },
  'fanotify-pre-content': {
    why: 'layers from a blob store (`dsec up --blob`) are filled where they are read',
    fix: 'use a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS (6.14 or newer)',
  },
  kvm: {
    why: 'virtual machines run at full speed (not used yet)',
    fix: 'use a machine with virtualisation; try `modprobe kvm`',
  },
};
