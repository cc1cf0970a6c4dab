// Stands in for aether in the launcher's tests: descriptor 3 listens; each connection sends the arguments of a program, each ended by a zero byte,
// closes its half, and gets the program's output. A name that begins with '!' is done by the process itself.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[65536];
static char *arguments[256];

static int read_arguments(int connection) {
    int length = 0, count = 0, got;
    while (length < (int)sizeof buffer - 1 && (got = read(connection, buffer + length, sizeof buffer - 1 - length)) > 0)
        length += got;
    for (int at = 0; at < length && count < 255; at += strlen(buffer + at) + 1) arguments[count++] = buffer + at;
    arguments[count] = 0;
    return count;
}

// Numbers of this process's own descriptors, the directory's and the connection's left out.
static void list_descriptors(int connection) {
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory) && atoi(entry->d_name) != connection)
            dprintf(connection, "%s\n", entry->d_name);
    if (directory) closedir(directory);
}

// Ended children are waited for: so their time counts as this process's.
static void reap(int signal_number) {
    (void)signal_number;
    int saved = errno;
    while (waitpid(-1, 0, WNOHANG) > 0) continue;
    errno = saved;
}

int main(void) {
    signal(SIGCHLD, reap);
    for (;;) {
        struct pollfd ready = {3, POLLIN, 0};
        poll(&ready, 1, -1);
        int connection = accept4(3, 0, 0, SOCK_CLOEXEC);
        if (connection < 0) continue;
        if (read_arguments(connection) == 0) { close(connection); continue; }
        if (!strcmp(arguments[0], "!exit")) _exit(atoi(arguments[1]));
        // A signal that the first process sends to itself would be ignored; a fault is not.
        if (!strcmp(arguments[0], "!fault")) *(volatile int *)0 = 1;
        if (!strcmp(arguments[0], "!fds")) {
            list_descriptors(connection);
        } else if (fork() == 0) {
            dup2(connection, 1);
            dup2(connection, 2);
            execv(arguments[0], arguments);
            dprintf(1, "exec: %s\n", strerror(errno));
            _exit(127);
        }
        close(connection);
    }
}
