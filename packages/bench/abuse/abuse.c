/*
 * A program that takes all it can get of one kind, for `bench abuse`: `abuse KIND [ARGUMENT...]`. Says "ready" when it is at full speed, and goes on until it is
 * killed. Failures are what it is after, so most are not looked at.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (1 << 20)
#define PAGE 4096
#define FILES_EACH 4096

static char block[BLOCK];

static void ready(void) {
  static const char word[] = "ready\n";
  if (write(1, word, sizeof word - 1) < 0) _exit(1);
}

/* So many processes do the same; the first of them is this one, which says that all are there. */
static int split(int count) {
  int number = 0;
  for (int i = 1; i < count; i++)
    if (fork() == 0) {
      number = i;
      break;
    }
  if (number == 0) ready();
  return number;
}

static void spin(void) {
  split(16);
  for (volatile unsigned long turns = 0;; turns++) {
  }
}

/* Processes that each make more, of which some end: the limit is reached, and is reached again all the time. */
static void forks(void) {
  signal(SIGCHLD, SIG_IGN);
  unsigned seed = 1;
  for (int is_full = 0;;) {
    pid_t pid = fork();
    if (pid == 0) {
      is_full = 1;
      seed = (unsigned)getpid();
      if (rand_r(&seed) % 4 == 0) _exit(0);
    } else if (pid < 0 && !is_full) {
      is_full = 1;
      ready();
    }
  }
}

/* A working set larger than the memory: anonymous pages fill most of it, and a file larger than all of it is read at random places. */
static void memory(size_t limit) {
  /* Within the quota of the disk, which is twice the memory. */
  size_t length = limit + limit / 2;
  int fd = open("/abuse-file", O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (size_t at = 0; at < length; at += BLOCK)
    if (write(fd, block, BLOCK) < 0) _exit(2);
  size_t held = limit / 2;
  char *own = mmap(NULL, held, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (size_t at = 0; at < held; at += PAGE) own[at] = 1;
  volatile char *file = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  unsigned seed = (unsigned)split(8) + 1;
  for (;;) file[(size_t)rand_r(&seed) % (length / PAGE) * PAGE] += 1;
}

/* Writes as fast as it goes; when there is no more room, begins anew. */
static void file(void) {
  char name[32];
  snprintf(name, sizeof name, "/abuse-%d", split(4));
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (;;)
    if (write(fd, block, BLOCK) < 0 && (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)) _exit(2);
}

static void tiny(void) {
  char name[64];
  int number = split(4);
  snprintf(name, sizeof name, "/abuse-%d", number);
  mkdir(name, 0700);
  if (chdir(name) < 0) _exit(2);
  for (unsigned turn = 0;; turn++) {
    for (int i = 0; i < FILES_EACH; i++) {
      snprintf(name, sizeof name, "%u-%d", turn, i);
      int fd = open(name, O_WRONLY | O_CREAT, 0600);
      if (fd < 0 || write(fd, block, 64) < 0) {
        close(fd);
        for (unsigned old = 0; old <= turn; old++)
          for (int j = 0; j < FILES_EACH; j++) {
            snprintf(name, sizeof name, "%u-%d", old, j);
            if (unlink(name) < 0) break;
          }
        turn = 0;
        break;
      }
      close(fd);
    }
  }
}

static void syncs(void) {
  char name[32];
  int number = split(4);
  snprintf(name, sizeof name, "/abuse-%d", number);
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (ftruncate(fd, BLOCK) < 0) _exit(2);
  char *mapped = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  for (unsigned turn = 0;; turn++) {
    if (pwrite(fd, block, PAGE, (off_t)(turn % 256) * PAGE) < 0) _exit(2);
    mapped[turn % BLOCK] += 1;
    switch (number) {
    case 0: sync(); break;
    case 1: fsync(fd); break;
    case 2: msync(mapped, BLOCK, MS_SYNC); break;
    default: syncfs(fd);
    }
  }
}

/* Pipes and sockets that are filled and thrown away. */
static void pipes(void) {
  split(8);
  for (;;) {
    int held[64][4];
    for (int i = 0; i < 64; i++) {
      if (pipe2(held[i], O_NONBLOCK) < 0) held[i][0] = held[i][1] = -1;
      fcntl(held[i][1], F_SETPIPE_SZ, BLOCK);
      if (write(held[i][1], block, BLOCK) < 0) errno = 0;
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, held[i] + 2) < 0) held[i][2] = held[i][3] = -1;
      if (write(held[i][2], block, BLOCK) < 0) errno = 0;
    }
    for (int i = 0; i < 64; i++)
      for (int j = 0; j < 4; j++) close(held[i][j]);
  }
}

/* User namespaces with network namespaces of their own, where the sandbox may have them. */
static void namespaces(void) {
  split(8);
  for (;;) {
    pid_t pid = fork();
    if (pid == 0) _exit(unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID) < 0);
    if (pid > 0) waitpid(pid, NULL, 0);
  }
}

static void programs(char *self) {
  split(8);
  for (;;) {
    pid_t pid = vfork();
    if (pid == 0) {
      execl(self, self, "nothing", (char *)NULL);
      _exit(1);
    }
    if (pid > 0) waitpid(pid, NULL, 0);
  }
}

static struct sockaddr_in address(const char *host, int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  inet_pton(AF_INET, host, &to.sin_addr);
  return to;
}

/* To an address that is allowed, and to others. */
static void connects(const char *host, int port) {
  int number = split(8);
  struct sockaddr_in to = address(number % 2 == 0 ? host : "192.0.2.77", port);
  for (;;) {
    int held[64];
    for (int i = 0; i < 64; i++) {
      held[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      if (connect(held[i], (struct sockaddr *)&to, sizeof to) < 0) errno = 0;
    }
    struct pollfd first = {.fd = held[0], .events = POLLOUT};
    poll(&first, 1, 5);
    for (int i = 0; i < 64; i++) close(held[i]);
  }
}

/* Questions for names that nobody has asked for. */
static void names(const char *host) {
  unsigned number = (unsigned)split(4);
  struct sockaddr_in to = address(host, 53);
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) _exit(2);
  for (unsigned turn = 0;; turn++) {
    unsigned char question[64] = {0, 0, 1, 0, 0, 1};
    memcpy(question, &turn, 2);
    char label[16];
    int length = snprintf(label, sizeof label, "q%ux%u", number, turn);
    size_t at = 12;
    question[at++] = (unsigned char)length;
    memcpy(question + at, label, (size_t)length);
    at += (size_t)length;
    static const unsigned char rest[] = "\4good\4test\0\0\1\0\1";
    memcpy(question + at, rest, sizeof rest - 1);
    if (send(fd, question, at + sizeof rest - 1, 0) < 0) errno = 0;
    char answer[512];
    while (recv(fd, answer, sizeof answer, 0) > 0) {
    }
  }
}

/* Calls that every sandbox is refused. */
static void denied(void) {
  split(8);
  for (;;) {
    syscall(SYS_bpf, 0, NULL, 0);
    syscall(SYS_add_key, "user", "x", "x", 1, -1);
    syscall(SYS_swapon, "/", 0);
    syscall(SYS_perf_event_open, NULL, 0, 0, 0, 0);
  }
}

int main(int count, char **words) {
  const char *kind = count > 1 ? words[1] : "";
  const char *argument = count > 2 ? words[2] : "";
  memset(block, 'y', sizeof block);
  if (strcmp(kind, "nothing") == 0) return 0;
  if (strcmp(kind, "spin") == 0) spin();
  if (strcmp(kind, "forks") == 0) forks();
  if (strcmp(kind, "programs") == 0) programs(words[0]);
  if (strcmp(kind, "memory") == 0) memory(strtoull(argument, NULL, 10));
  if (strcmp(kind, "file") == 0) file();
  if (strcmp(kind, "tiny") == 0) tiny();
  if (strcmp(kind, "syncs") == 0) syncs();
  if (strcmp(kind, "pipes") == 0) pipes();
  if (strcmp(kind, "namespaces") == 0) namespaces();
  if (strcmp(kind, "connects") == 0) connects(argument, 80);
  if (strcmp(kind, "names") == 0) names(argument);
  if (strcmp(kind, "denied") == 0) denied();
  fprintf(stderr, "abuse: there is no kind \"%s\"\n", kind);
  return 2;
}
