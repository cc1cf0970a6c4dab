// flow: both ends of what `bench egress` measures, small enough that the network is what takes the time.
//
//   flow serve ADDRESS              outside: a name server on UDP 53 that gives every A of every name ADDRESS, an echo on TCP 7, and on TCP 443 a sink
//                                   that answers the first bytes with one, counts what comes, and tells the count at the end
//   flow stream HOST NAME MS        inside: one stream to the sink for so long; {"bytes", "ms", "connectMs"}, until the sink has told its count
//   flow connect HOST NAME N        connections to the sink, each until its first answer; [ms]
//   flow resolve HOST PREFIX N      questions for PREFIX0.good.test, PREFIX1.good.test, ...; [ms]
//   flow watch HOST                 an open echo and new connections until both are cut; {"lastMs", "refusedMs"} since the epoch
//
// A stream begins with a TLS client hello for NAME: who checks names reads it, the sink counts it like all else.
//
// Build: cc -O2 -static -pthread -o flow flow.c
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ECHO = 7, NAMES = 53, SINK = 443, CHUNK = 256 * 1024, MAX_N = 10000, PATIENCE_MS = 2000, SHORT_MS = 10 };

static double ms_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static double now_ms(void) { return ms_of(CLOCK_MONOTONIC); }

static void pause_us(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

static void die(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in at(const char *host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) die("address");
    return a;
}

static void no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static struct timeval timeval_of(int ms) { return (struct timeval){ms / 1000, ms % 1000 * 1000}; }

// -1 when it was refused, or nobody answered: EINPROGRESS.
static int try_connect(const char *host, int port, int patience_ms) {
    struct sockaddr_in a = at(host, port);
    struct timeval patience = timeval_of(patience_ms);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    // The one for sending is for connecting, too.
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    no_delay(fd);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static void send_all(int fd, const void *bytes, size_t n) {
    for (const char *p = bytes; n > 0;) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0) die("send");
        p += sent;
        n -= sent;
    }
}

// ---- outside

static void *echo(void *arg) {
    int fd = (intptr_t)arg;
    char bytes[4096];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        if (send(fd, bytes, n, MSG_NOSIGNAL) != n) break;
    close(fd);
    return NULL;
}

static void *sink(void *arg) {
    int fd = (intptr_t)arg;
    char *bytes = malloc(CHUNK);
    unsigned long long total = 0;
    for (ssize_t n; bytes && (n = recv(fd, bytes, CHUNK, 0)) > 0; total += n)
        if (total == 0 && send(fd, "k", 1, MSG_NOSIGNAL) != 1) break;
    dprintf(fd, "%llu\n", total);
    free(bytes);
    close(fd);
    return NULL;
}

static int listener(int type, int port) {
    struct sockaddr_in a = at("0.0.0.0", port);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0) die("bind");
    if (type == SOCK_STREAM && listen(fd, 1024) < 0) die("listen");
    return fd;
}

static void accept_one(int from, void *(*work)(void *)) {
    int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC);
    pthread_t thread;
    if (fd < 0) return;
    no_delay(fd);
    if (pthread_create(&thread, NULL, work, (void *)(intptr_t)fd) == 0) pthread_detach(thread);
    else close(fd);
}

// RFC 1035 4.1: the question again, and for type A the one address. The answer leaves from where it was asked.
static void answer_name(int fd, struct in_addr address) {
    uint8_t q[512 + 16], control[256];
    struct sockaddr_in from;
    struct iovec io = {q, 512};
    struct msghdr m = {&from, sizeof from, &io, 1, control, sizeof control, 0};
    ssize_t n = recvmsg(fd, &m, 0);
    size_t end = 12;
    if (n < 17) return;
    while (end < (size_t)n && q[end] != 0) end += q[end] + 1;
    end += 5;
    if (end > (size_t)n) return;
    int is_a = q[end - 4] == 0 && q[end - 3] == 1;
    memcpy(q + 2, (uint8_t[]){0x85, 0x80, 0, 1, 0, is_a, 0, 0, 0, 0}, 10);
    if (is_a) {
        memcpy(q + end, (uint8_t[]){0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0x2c, 0, 4}, 12);
        memcpy(q + end + 12, &address, 4);
        end += 16;
    }
    io.iov_len = end;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        struct in_pktinfo *info = (struct in_pktinfo *)CMSG_DATA(c);
        info->ipi_spec_dst = info->ipi_addr;
        info->ipi_ifindex = 0;
    }
    sendmsg(fd, &m, 0);
}

static void serve(const char *address) {
    struct in_addr given = at(address, 0).sin_addr;
    int names = listener(SOCK_DGRAM, NAMES), one = 1;
    setsockopt(names, IPPROTO_IP, IP_PKTINFO, &one, sizeof one);
    struct pollfd all[] = {
        {listener(SOCK_STREAM, ECHO), POLLIN, 0}, {listener(SOCK_STREAM, SINK), POLLIN, 0}, {names, POLLIN, 0}, {0, POLLIN, 0}};
    puts("ready");
    fflush(stdout);
    while (poll(all, 4, -1) > 0) {
        char byte;
        if (all[0].revents) accept_one(all[0].fd, echo);
        if (all[1].revents) accept_one(all[1].fd, sink);
        if (all[2].revents) answer_name(names, given);
        // Who started it has gone.
        if (all[3].revents && read(0, &byte, 1) <= 0) return;
    }
}

// ---- inside

static uint8_t *put(uint8_t *p, size_t value, int width) {
    for (int i = width - 1; i >= 0; i--) *p++ = value >> (8 * i);
    return p;
}

// RFC 8446 4.1.2, with nothing but a name (RFC 6066 3).
static size_t hello_for(const char *name, uint8_t *hello) {
    size_t n = strlen(name), extensions = n + 9, body = 2 + 32 + 1 + 4 + 2 + 2 + extensions;
    uint8_t *p = put(hello, 0x160301, 3);
    p = put(p, body + 4, 2);
    p = put(p, 1, 1);
    p = put(p, body, 3);
    p = put(p, 0x0303, 2);
    memset(p, 7, 32);
    p = put(p + 32, 0, 1);
    p = put(p, 0x21301, 4);
    p = put(p, 0x100, 2);
    p = put(p, extensions, 2);
    p = put(p, 0, 2);
    p = put(p, n + 5, 2);
    p = put(p, n + 3, 2);
    p = put(p, 0, 1);
    p = put(p, n, 2);
    memcpy(p, name, n);
    return p + n - hello;
}

// Connected, with the first answer of the sink.
static int greet(const char *host, const char *name) {
    uint8_t hello[512];
    char byte;
    int fd = try_connect(host, SINK, PATIENCE_MS);
    if (fd < 0) die("connect");
    send_all(fd, hello, hello_for(name, hello));
    if (recv(fd, &byte, 1, 0) != 1) die("greeting");
    return fd;
}

static void stream(const char *host, const char *name, double for_ms) {
    char *bytes = calloc(1, CHUNK), told[32] = {0};
    unsigned long long sent = 0;
    double begun = now_ms();
    int fd = greet(host, name);
    double greeted = now_ms();
    for (; now_ms() - greeted < for_ms; sent += CHUNK) send_all(fd, bytes, CHUNK);
    shutdown(fd, SHUT_WR);
    for (size_t at = 0; at < sizeof told - 1 && !strchr(told, '\n');) {
        ssize_t n = recv(fd, told + at, sizeof told - 1 - at, 0);
        if (n <= 0) die("count");
        at += n;
    }
    if (strtoull(told, NULL, 10) < sent) die("bytes are missing");
    printf("{\"bytes\":%llu,\"ms\":%.3f,\"connectMs\":%.3f}\n", sent, now_ms() - greeted, greeted - begun);
}

static void print_each(const double *ms, int n) {
    for (int i = 0; i < n; i++) printf("%s%.4f", i ? "," : "[", ms[i]);
    puts("]");
}

static void connect_each(const char *host, const char *name, int n, double *ms) {
    for (int i = 0; i < n; i++) {
        double begun = now_ms();
        int fd = greet(host, name);
        ms[i] = now_ms() - begun;
        close(fd);
        // Below the rate at which a sandbox may begin connections.
        pause_us(4000);
    }
    print_each(ms, n);
}

static void resolve_each(const char *host, const char *prefix, int n, double *ms) {
    struct sockaddr_in a = at(host, NAMES);
    struct timeval patience = timeval_of(PATIENCE_MS);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) die("connect");
    for (int i = 0; i < n; i++) {
        uint8_t q[512], got[512];
        char label[64];
        int length = snprintf(label, sizeof label, "%s%d", prefix, i);
        uint8_t *p = put(q, i, 2);
        p = put(p, 0x0100, 2);
        p = put(p, 1, 2);
        p = put(put(p, 0, 4), 0, 2);
        p = put(p, length, 1);
        memcpy(p, label, length);
        memcpy(p + length, "\4good\4test\0\0\1\0\1", 15);
        double begun = now_ms();
        if (send(fd, q, p + length + 15 - q, 0) < 0) die("send");
        ssize_t size = recv(fd, got, sizeof got, 0);
        ms[i] = now_ms() - begun;
        if (size < 12 || (got[3] & 15) != 0 || got[7] != 1) {
            fprintf(stderr, "%s: answer of %zd bytes, code %d, %d records\n", label, size, got[3] & 15, got[7]);
            exit(1);
        }
        pause_us(2000);
    }
    print_each(ms, n);
}

struct watched {
    const char *host;
    double cut_ms;
};

// When a new connection was refused first. One that is under way at the cut hears nothing, and would try again only after a second: it is given up, and the next
// one tells. Where there is no refusal at all, the time of giving up is what counts.
static void *watch_new(void *arg) {
    struct watched *watched = arg;
    for (int unanswered = 0; unanswered < PATIENCE_MS / SHORT_MS;) {
        int fd = try_connect(watched->host, ECHO, SHORT_MS);
        if (fd < 0 && errno != EINPROGRESS) break;
        unanswered = fd < 0 ? unanswered + 1 : 0;
        if (fd < 0) continue;
        close(fd);
        pause_us(3000);
    }
    watched->cut_ms = ms_of(CLOCK_REALTIME);
    return NULL;
}

static void watch(const char *host) {
    struct watched watched = {host, 0};
    pthread_t thread;
    char byte = 'b';
    int is_begun = 0, fd = try_connect(host, ECHO, PATIENCE_MS);
    double last = 0;
    if (fd < 0) die("connect");
    while (send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && recv(fd, &byte, 1, 0) == 1) {
        last = ms_of(CLOCK_REALTIME);
        if (!is_begun) {
            if (pthread_create(&thread, NULL, watch_new, &watched) != 0) die("thread");
            puts("begun");
            fflush(stdout);
            is_begun = 1;
        }
        pause_us(500);
    }
    if (!is_begun) die("echo");
    pthread_join(thread, NULL);
    printf("{\"lastMs\":%.3f,\"refusedMs\":%.3f}\n", last, watched.cut_ms);
}

int main(int argc, char **argv) {
    const char *kind = argc > 2 ? argv[1] : "";
    signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(kind, "serve") == 0) {
        serve(argv[2]);
        return 0;
    }
    if (argc == 3 && strcmp(kind, "watch") == 0) {
        watch(argv[2]);
        return 0;
    }
    int n = argc == 5 ? atoi(argv[4]) : 0;
    if (n > 0 && n <= MAX_N) {
        static double ms[MAX_N];
        if (strcmp(kind, "stream") == 0) stream(argv[2], argv[3], n);
        else if (strcmp(kind, "connect") == 0) connect_each(argv[2], argv[3], n, ms);
        else if (strcmp(kind, "resolve") == 0) resolve_each(argv[2], argv[3], n, ms);
        else return 2;
        return 0;
    }
    fprintf(stderr, "usage: see the head of flow.c\n");
    return 2;
}
