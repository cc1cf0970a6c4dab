// Looks at a sandbox from inside: `probe WHAT [ARGUMENTS]` prints one finding on each line.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <linux/if.h>
#include <netinet/in.h>
#include <unistd.h>

static void outcome(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "ok");
}

static int cat(const char *path) {
    char buffer[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { outcome(path, -1); return 1; }
    for (long got; (got = read(fd, buffer, sizeof buffer)) > 0;) fwrite(buffer, 1, got, stdout);
    close(fd);
    return 0;
}

static int is_number(const char *name) {
    return *name >= '0' && *name <= '9';
}

// Prints every file below a directory that can be opened for writing, links and processes left out.
static void writable_below(const char *path, int is_top) {
    DIR *directory = opendir(path);
    if (!directory) return;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        char name[PATH_MAX];
        struct stat found;
        if (entry->d_name[0] == '.' && (!entry->d_name[1] || (entry->d_name[1] == '.' && !entry->d_name[2]))) continue;
        if (is_top && is_number(entry->d_name)) continue;
        if (snprintf(name, sizeof name, "%s/%s", path, entry->d_name) >= (int)sizeof name || lstat(name, &found)) continue;
        if (S_ISDIR(found.st_mode)) {
            writable_below(name, 0);
        } else if (S_ISREG(found.st_mode)) {
            int fd = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
            if (fd >= 0) { printf("%s\n", name); close(fd); }
        }
    }
    closedir(directory);
}

static void list(const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    if (!directory) { outcome(path, -1); return; }
    while ((entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) printf("%s\n", entry->d_name);
    closedir(directory);
}

static void show(const char *path) {
    struct stat found;
    if (lstat(path, &found)) { outcome(path, -1); return; }
    printf("%s %o %d %d %u:%u\n", path, found.st_mode, found.st_uid, found.st_gid, major(found.st_rdev), minor(found.st_rdev));
}

static void refused(void) {
    outcome("mount tmpfs", mount("x", "/tmp", "tmpfs", 0, 0));
    outcome("mount proc", mount("x", "/tmp", "proc", 0, 0));
    outcome("bind", mount("/", "/tmp", 0, MS_BIND, 0));
    outcome("remount /dev", mount(0, "/dev", 0, MS_REMOUNT | MS_BIND, 0));
    outcome("umount /proc", umount2("/proc", MNT_DETACH));
    outcome("pivot_root", syscall(SYS_pivot_root, "/", "/tmp"));
    outcome("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    outcome("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    outcome("mknod", mknod("/tmp/device", S_IFCHR | 0666, makedev(1, 3)));
    outcome("sethostname", sethostname("x", 1));
    outcome("setns pid 1", ({ int fd = open("/proc/1/ns/mnt", O_RDONLY); fd < 0 ? -1 : setns(fd, 0); }));
    outcome("ptrace 1", ptrace(PTRACE_ATTACH, 1, 0, 0));
    outcome("limits of 1", prlimit(1, RLIMIT_NOFILE, &(struct rlimit){64, 64}, 0));
    outcome("scheduling of 1", sched_setscheduler(1, SCHED_IDLE, &(struct sched_param){0}));
    outcome("priority of 1", setpriority(PRIO_PROCESS, 1, 19));
    outcome("priority of all", setpriority(PRIO_USER, 0, 19));
    outcome("disk priority of 1", syscall(SYS_ioprio_set, 1, 1, 3 << 13));
    outcome("disk priority of all", syscall(SYS_ioprio_set, 3, 0, 3 << 13));
    outcome("timers of 1", ({ int fd = open("/proc/1/timerslack_ns", O_WRONLY); fd < 0 ? -1 : write(fd, "1000000000000", 13); }));
    outcome("limits of 2", prlimit(2, RLIMIT_NOFILE, &(struct rlimit){64, 64}, 0));
    outcome("a call that is not known", syscall(999));
    outcome("environ of 1", open("/proc/1/environ", O_RDONLY));
    outcome("memory of 1", open("/proc/1/mem", O_RDONLY));
    outcome("descriptors of 1", opendir("/proc/1/fd") ? 0 : -1);
    outcome("program of 1", readlink("/proc/1/exe", (char[8]){0}, 8));
    outcome("raw socket", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    outcome("packet socket", socket(AF_PACKET, SOCK_RAW, 0));
    outcome("hypervisor socket", socket(AF_VSOCK, SOCK_STREAM, 0));
    outcome("crypto socket", socket(AF_ALG, SOCK_SEQPACKET, 0));
    outcome("packet filters", socket(AF_NETLINK, SOCK_RAW, 12));
    outcome("io_uring", syscall(SYS_io_uring_setup, 8, (char[256]){0}));
    outcome("keys", syscall(SYS_add_key, "user", "x", "y", 1, -3));
    outcome("keyring of the user", syscall(SYS_keyctl, 0, -4, 0));
    outcome("counters", syscall(SYS_perf_event_open, (char[128]){0}, 0, -1, -1, 0));
    outcome("faults", syscall(SYS_userfaultfd, 0));
    outcome("reboot", syscall(SYS_reboot, 0xfee1dead, 672274793, 0x89abcdef, 0));
    outcome("module", syscall(SYS_init_module, "", 0, ""));
    outcome("bpf", syscall(SYS_bpf, 0, (char[128]){0}, 128));
    outcome("handle", ({ struct file_handle *h = calloc(1, sizeof *h + 128); h->handle_bytes = 8; h->handle_type = 1; syscall(SYS_open_by_handle_at, AT_FDCWD, h, 0); }));
    outcome("settime", ({ struct timespec t = {0, 0}; syscall(SYS_clock_settime, 0, &t); }));
    outcome("lift namespaces limit", open("/proc/sys/user/max_user_namespaces", O_WRONLY));
    outcome("priority", setpriority(PRIO_PROCESS, 0, -1));
    outcome("image device", open("/image-device", O_RDONLY));
    outcome("chown beyond range", chown("/tmp", 70000, 70000));
    outcome("new device address", ({ int s = socket(AF_INET, SOCK_DGRAM, 0); struct ifreq r = {0}; strcpy(r.ifr_name, "lo"); r.ifr_flags = 0; ioctl(s, SIOCSIFFLAGS, &r); }));
}

// What must work.
static void allowed(void) {
    int port = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(80), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    outcome("port 80", bind(port, (struct sockaddr *)&address, sizeof address));
    outcome("ping socket", socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    outcome("terminal", ({ int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY); int no = 0; fd < 0 ? -1 : ioctl(fd, TIOCSPTLCK, &no); }));
    outcome("slave", open("/dev/pts/0", O_RDWR | O_NOCTTY));
    outcome("null", open("/dev/null", O_RDWR));
    outcome("shared memory", open("/dev/shm/x", O_CREAT | O_RDWR, 0600));
    outcome("root", open("/file", O_CREAT | O_RDWR, 0600));
    outcome("tmp", open("/tmp/file", O_CREAT | O_RDWR, 0600));
    outcome("own user", setresuid(1000, 1000, 1000));
    outcome("tmp as user", open("/tmp/user", O_CREAT | O_RDWR, 0600));
    outcome("not root's", open("/denied", O_CREAT | O_RDWR, 0600));
    outcome("user namespace", unshare(CLONE_NEWUSER));
}

static void request(const char *what, int fd, unsigned long number) {
    char buffer[4096] = {0};
    outcome(what, ioctl(fd, number, buffer));
}

// What may be asked of descriptors, and what may not.
static void requests(void) {
    int root = open("/", O_RDONLY | O_DIRECTORY), file = open("/requested", O_CREAT | O_RDWR, 0600);
    int copy = open("/copied", O_CREAT | O_RDWR, 0600), terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY), ends[2];
    if (pipe(ends) || write(ends[1], "x", 1) != 1 || write(file, "content", 7) != 7) outcome("prepared", -1);
    request("may bytes to read", ends[0], FIONREAD);
    request("may size of a terminal", terminal, TIOCGWINSZ);
    request("may number of a terminal", terminal, 0x80045430);
    request("may flags of a file", file, 0x80086601);
    request("may addresses", socket(AF_INET, SOCK_DGRAM, 0), SIOCGIFCONF);
    outcome("may close on exec", ioctl(file, FIOCLEX));
    outcome("may clone", ioctl(copy, 0x40049409, file));
    // In the high half of the argument the kernel sees nothing.
    request("type into a terminal", terminal, 0x5412);
    request("type into a terminal, said otherwise", terminal, 0xdeadbeef00005412);
    request("line discipline", terminal, 0x5423);
    request("console", terminal, 0x541D);
    request("freeze", root, 0xC0045877);
    request("trim", root, 0xC0185879);
    request("exchange extents of xfs", file, 0xC0C0586D);
    request("exchange ranges of xfs", file, 0x40285881);
    request("move extents of ext4", file, 0xC028660F);
    request("swap the boot loader of ext4", file, 0x6611);
    request("share extents", file, 0xC0189436);
    request("snapshot of btrfs", root, 0x50009401);
    request("search in btrfs", root, 0xD0009411);
    request("devices of btrfs", root, 0xD000941E);
    request("blocks of a file", file, 1);
    request("read the partitions again", file, 0x125F);
    request("free loop device", file, 0x4C82);
}

static long user_by_clone3(void) {
    struct { unsigned long long flags, rest[10]; } arguments = {.flags = CLONE_NEWUSER, .rest = {0, 0, 0, SIGCHLD}};
    long pid = syscall(SYS_clone3, &arguments, 64);
    if (pid == 0) _exit(0);
    return pid;
}

static long user_by_clone(void) {
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return pid;
}

static void users(void) {
    outcome("clone3", user_by_clone3());
    outcome("clone", user_by_clone());
    outcome("fork", ({ pid_t pid = fork(); if (pid == 0) _exit(0); pid; }));
    outcome("unshare", unshare(CLONE_NEWUSER));
}

static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) outcome(path, -1);
    close(fd);
}

// Leaves its root by a chroot below its working directory, and goes up as far as it goes.
static void climb(void) {
    outcome("root", chdir("/"));
    mkdir("/jail", 0755);
    outcome("chroot", chroot("/jail"));
    for (int i = 0; i < 8; i++) if (chdir("..")) outcome("up", -1);
    list(".");
}

// What a sandbox inside the sandbox does, and then tries to get below its own root and below that of the sandbox.
static void nested(void) {
    outcome("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", "0 0 1");
    write_text("/proc/self/gid_map", "0 0 1");
    outcome("lay bare /dev", umount2("/dev", MNT_DETACH) == 0 ? -1 : 0);
    outcome("tmpfs", mount("t", "/tmp", "tmpfs", 0, 0));
    mkdir("/tmp/old", 0755);
    outcome("chdir", chdir("/tmp"));
    outcome("pivot_root", syscall(SYS_pivot_root, ".", "old"));
    outcome("let go", umount2("/old", MNT_DETACH));
    outcome("lay bare the root", umount2("/", MNT_DETACH) == 0 ? -1 : 0);
    climb();
}

static void fork_until_refused(void) {
    int made = 0;
    while (made < 10000) {
        pid_t pid = fork();
        if (pid < 0) break;
        if (pid == 0) { pause(); _exit(0); }
        made++;
    }
    printf("forks %d\n", made);
    fflush(stdout);
    signal(SIGTERM, SIG_IGN);
    kill(-1, SIGTERM);
}

static void fill(const char *path) {
    static char block[1 << 16];
    long total = 0, wrote;
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    while ((wrote = write(fd, block, sizeof block)) > 0 && total < 1L << 33) total += wrote;
    printf("wrote %ld\n", total);
    outcome("then", wrote);
}

static void eat_memory(void) {
    long total = 0;
    pid_t pid = fork();
    if (pid < 0) { outcome("fork", -1); return; }
    if (pid == 0) {
        for (;; total += 1 << 20) memset(mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 1 << 20);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("killed by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void inotify_instances(void) {
    int made = 0;
    while (made < 100000 && inotify_init1(IN_CLOEXEC) >= 0) made++;
    printf("instances %d\n", made);
    // Who holds them outlives this process, and holds nothing else.
    if (fork() == 0) { close(0); close(1); close(2); setsid(); for (;;) pause(); }
}

// What no honest program does, one after another, by its name.
static void try_one(const char *what) {
    if (!strcmp(what, "bpf")) outcome(what, syscall(SYS_bpf, 0, (char[128]){0}, 128));
    else if (!strcmp(what, "vsock")) outcome(what, socket(AF_VSOCK, SOCK_STREAM, 0));
    else if (!strcmp(what, "netfilter")) outcome(what, socket(AF_NETLINK, SOCK_RAW, 12));
    else if (!strcmp(what, "audit")) outcome(what, socket(AF_NETLINK, SOCK_RAW, 9));
    else if (!strcmp(what, "swap extents")) outcome(what, ioctl(0, 0xC0C0586D, 0));
    else if (!strcmp(what, "type")) outcome(what, ioctl(0, 0xdeadbeef00005412, 0));
    else if (!strcmp(what, "line discipline of a disk")) outcome(what, ioctl(0, 0x125F, 0));
    else if (!strcmp(what, "limits of 1")) outcome(what, prlimit(1, RLIMIT_NOFILE, &(struct rlimit){64, 64}, 0));
    else if (!strcmp(what, "keys")) outcome(what, syscall(SYS_keyctl, 11, 0, 0, 0, 0));
    else if (!strcmp(what, "user")) outcome(what, unshare(CLONE_NEWUSER));
    else if (!strcmp(what, "io_uring")) outcome(what, syscall(SYS_io_uring_setup, 8, (char[256]){0}));
    else if (!strcmp(what, "listener")) {
        struct { unsigned short code; unsigned char t, f; unsigned k; } program[] = {{6, 0, 0, 0x7fff0000}};
        struct { unsigned short length; void *program; } filter = {1, program};
        outcome(what, syscall(SYS_seccomp, 1, 8, &filter));
    }
}

// A filesystem whose root is a file: whoever reads it waits for ever.
static void serve_nothing(int device) {
    static char request[1 << 17];
    for (;;) {
        if (read(device, request, sizeof request) < 40) continue;
        unsigned opcode = ((unsigned *)request)[1];
        struct { unsigned length; int error; unsigned long long unique; char body[128]; } answer = {16, 0, *(unsigned long long *)(request + 8), {0}};
        unsigned *body = (unsigned *)answer.body;
        if (opcode == 26) { answer.length += 64; body[0] = 7; body[1] = 31; body[5] = 1 << 16; }              // INIT
        else if (opcode == 3) { answer.length += 104; body[0] = 3600; body[4] = 1; body[6] = 4096; body[19] = 0100644; body[20] = 1; }  // GETATTR
        else if (opcode == 14) answer.length += 16;                                                          // OPEN
        else if (opcode == 15) continue;                                                                     // READ
        else answer.error = -ENOSYS;
        if (write(device, &answer, answer.length) < 0) return;
    }
}

// Has its command line in such a file, and then does what is refused.
static void hide(char **arguments) {
    char options[128];
    outcome("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", "0 0 1");
    write_text("/proc/self/gid_map", "0 0 1");
    snprintf(options, sizeof options, "fd=%d,rootmode=100000,user_id=0,group_id=0", device);
    close(open("/hidden", O_CREAT | O_RDWR, 0600));
    outcome("mount", mount("x", "/hidden", "fuse", 0, options));
    if (fork() == 0) { close(1); close(2); serve_nothing(device); _exit(0); }
    int file = open("/hidden", O_RDONLY);
    // The kernel asks for its length.
    struct stat found;
    outcome("open", fstat(file, &found));
    char *page = (char *)((unsigned long)arguments[0] & ~4095UL);
    fflush(stdout);
    // On the same page as the arguments lies nothing that is used from here on.
    if (mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) != page) _exit(1);
    for (int i = 0; i < 8; i++) syscall(SYS_bpf, i, 0, 0);
    static const char done[] = "done\n";
    if (write(1, done, sizeof done - 1)) _exit(0);
}

// As fast as it goes, until it is killed: calls that are refused, or openings of a file.
static void flood(int processes, const char *path) {
    for (int i = 0; i < processes; i++)
        if (fork() == 0)
            for (;;)
                if (*path) close(open(path, O_RDONLY));
                else syscall(SYS_bpf, 0, 0, 0);
    puts("flooding");
    fflush(stdout);
    close(1); close(2);
    for (;;) pause();
}

// What programs do to each other.
static void peers(void) {
    pid_t child = fork();
    if (!child) for (;;) pause();
    outcome("signal", kill(child, 0));
    outcome("trace", ptrace(PTRACE_SEIZE, child, 0, 0));
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", child);
    int fd = open(path, O_RDONLY);
    outcome("read", fd);
    outcome("end", kill(child, SIGKILL));
    waitpid(child, 0, 0);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    const char *argument = count > 2 ? arguments[2] : "";
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    if (!strcmp(what, "cat")) cat(argument);
    else if (!strcmp(what, "list")) list(argument);
    else if (!strcmp(what, "show")) for (int i = 2; i < count; i++) show(arguments[i]);
    else if (!strcmp(what, "link")) { char to[256]; long n = readlink(argument, to, 255); if (n < 0) outcome(argument, n); else printf("%.*s\n", (int)n, to); }
    else if (!strcmp(what, "writable")) writable_below(argument, 1);
    else if (!strcmp(what, "refused")) refused();
    else if (!strcmp(what, "allowed")) allowed();
    else if (!strcmp(what, "requests")) requests();
    else if (!strcmp(what, "users")) users();
    else if (!strcmp(what, "climb")) climb();
    else if (!strcmp(what, "nested")) nested();
    else if (!strcmp(what, "forks")) fork_until_refused();
    else if (!strcmp(what, "fill")) fill(argument);
    else if (!strcmp(what, "eat")) eat_memory();
    else if (!strcmp(what, "inotify")) inotify_instances();
    else if (!strcmp(what, "cpus")) { cpu_set_t set; sched_getaffinity(0, sizeof set, &set); printf("%d\n", CPU_COUNT(&set)); }
    else if (!strcmp(what, "setuid")) { if (!setresuid(1000, 1000, 1000)) execl("/bin/setuid-probe", "probe", "user", (char *)0); }
    else if (!strcmp(what, "user")) printf("%d %d\n", getuid(), geteuid());
    else if (!strcmp(what, "device")) for (int i = 2; i < count; i++) { struct stat found; if (!lstat(arguments[i], &found)) printf("%lu\n", (unsigned long)found.st_dev); }
    else if (!strcmp(what, "try")) for (int i = 2; i < count; i++) try_one(arguments[i]);
    else if (!strcmp(what, "flood")) flood(atoi(argument), count > 3 ? arguments[3] : "");
    else if (!strcmp(what, "hide")) hide(arguments);
    else if (!strcmp(what, "rename")) outcome(what, rename(argument, arguments[3]));
    else if (!strcmp(what, "hard link")) outcome(what, link(argument, arguments[3]));
    else if (!strcmp(what, "symlink")) outcome(what, symlink(argument, arguments[3]));
    else if (!strcmp(what, "append")) { int fd = open(argument, O_WRONLY | O_APPEND); outcome(what, fd < 0 ? -1 : write(fd, "x", 1)); }
    else if (!strcmp(what, "signal")) outcome(what, kill(atoi(argument), atoi(arguments[3])));
    else if (!strcmp(what, "peers")) peers();
    else if (!strcmp(what, "stat")) { struct stat found; outcome(what, stat(argument, &found)); }
    // Runs the rest in a session of its own, as another user, below another process.
    else if (!strcmp(what, "below")) {
        if (fork() == 0) {
            setsid();
            if (fork() == 0) { if (!setresuid(1000, 1000, 1000)) execv("/bin/probe", arguments + 1); _exit(1); }
            wait(0);
            _exit(0);
        }
        wait(0);
    }
    else if (!strcmp(what, "late")) { sleep(1); puts("late"); }
    else if (!strcmp(what, "hostname")) { char name[65]; gethostname(name, 65); puts(name); }
    else if (!strcmp(what, "session")) { printf("%d %d\n", getsid(1), getpgid(1)); }
    else return 2;
    fflush(stdout);
    return 0;
}
