/*
 * Which process of a sandbox is behind a socket, noted when it makes or connects the socket and before it sends by one that is not connected. The programs are
 * attached to all cgroups, and look no further where the socket is in no sandbox's network. They decide nothing: every call goes on.
 */
#include "kernel.h"
#include "layout.h"
#include "origins.h"

#define GO_ON 1
/* For so many ns who has made or used a socket is not looked up again when it uses it again. */
#define FRESH 100000000

/* Pid namespaces below each other: MAX_PID_NS_LEVEL of the kernel. */
#define MAX_LEVELS 32
/* PIDTYPE_SID */
#define SESSION 3

/* Of the kernel what is read here; where it really lies is filled in when the program is loaded. */
#define OF_KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} OF_KERNEL;

struct pid_namespace {
	struct ns_common ns;
} OF_KERNEL;

struct upid {
	int nr;
	struct pid_namespace *ns;
} OF_KERNEL;

struct pid {
	unsigned int level;
	struct upid numbers[];
} OF_KERNEL;

struct signal_struct {
	struct pid *pids[4];
} OF_KERNEL;

struct task_struct {
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
	char comm[COMM_BYTES];
} OF_KERNEL;

#define READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), __builtin_preserve_access_index(&(from)))

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(map_flags, BPF_F_NO_PREALLOC);
	MAP_NUMBER(max_entries, MAX_UPLINKS);
	MAP_TYPE(key, __u64);
	MAP_TYPE(value, struct space);
	MAP_NUMBER(pinning, 1);
} spaces SEC(".maps");

INLINE int number_at(const struct pid *pid, __u32 level)
{
	int number = 0;

	READ(number, pid->numbers[level & (MAX_LEVELS - 1)].nr);
	return number;
}

/* At which level of pid namespaces the sandbox is; 0 when the process is not in it. */
INLINE __u32 level_within(const struct pid *pid, __u32 inode)
{
	__u32 deepest = 0;

	READ(deepest, pid->level);
	for (__u32 level = 1; level < MAX_LEVELS && level <= deepest; level++) {
		struct pid_namespace *space = 0;
		__u32 found = 0;

		READ(space, pid->numbers[level].ns);
		READ(found, space->ns.inum);
		if (found == inode)
			return level;
	}
	return 0;
}

INLINE void note_ancestors(struct origin *origin, const struct task_struct *task, __u32 level)
{
	__u32 count = 0;

	for (int i = 0; i < MAX_ANCESTORS; i++) {
		struct task_struct *parent = 0;
		struct pid *pid = 0;
		__u32 deepest = 0;

		READ(parent, task->real_parent);
		READ(task, parent->group_leader);
		READ(pid, task->thread_pid);
		READ(deepest, pid->level);
		/* What is above is the host's. */
		if (!pid || deepest < level)
			break;
		origin->ancestors[i] = number_at(pid, level);
		count = i + 1;
	}
	origin->ancestor_count = count;
}

INLINE void note(struct origin *origin, __u64 net_cookie, __u32 pid_inode)
{
	__u64 now = bpf_ktime_get_boot_ns();
	struct task_struct *task = bpf_get_current_task();
	__u32 process = 0;

	READ(process, task->tgid);
	if (origin->net_cookie && origin->process == process && now - origin->noted_at < FRESH)
		return;
	struct signal_struct *signal = 0;
	struct pid *pid = 0, *session = 0;

	READ(task, task->group_leader);
	READ(pid, task->thread_pid);
	__u32 level = level_within(pid, pid_inode);
	if (!level) {
		origin->net_cookie = 0;
		return;
	}
	READ(signal, task->signal);
	READ(session, signal->pids[SESSION]);
	origin->noted_at = now;
	origin->process = process;
	origin->outer_pid = number_at(pid, level - 1);
	origin->pid = number_at(pid, level);
	origin->session = number_at(session, level);
	origin->user = bpf_get_current_uid_gid();
	READ(origin->comm, task->comm);
	note_ancestors(origin, task, level);
	origin->net_cookie = net_cookie;
}

INLINE int note_socket(void *socket, __u64 net_cookie)
{
	const struct space *space = bpf_map_lookup_elem(&spaces, &net_cookie);

	if (!space)
		return GO_ON;
	struct origin *origin = bpf_sk_storage_get(&origins, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (origin)
		note(origin, net_cookie, space->pid_inode);
	return GO_ON;
}

SEC("cgroup/sock_create")
int socket_created(struct bpf_sock *context)
{
	return note_socket(context, bpf_get_netns_cookie(context));
}

INLINE int note_address(struct bpf_sock_addr *context)
{
	if (!context->sk)
		return GO_ON;
	return note_socket(context->sk, bpf_get_netns_cookie(context));
}

SEC("cgroup/connect4")
int socket_connects4(struct bpf_sock_addr *context)
{
	return note_address(context);
}

SEC("cgroup/connect6")
int socket_connects6(struct bpf_sock_addr *context)
{
	return note_address(context);
}

SEC("cgroup/sendmsg4")
int socket_sends4(struct bpf_sock_addr *context)
{
	return note_address(context);
}

SEC("cgroup/sendmsg6")
int socket_sends6(struct bpf_sock_addr *context)
{
	return note_address(context);
}

char _license[] SEC("license") = "Dual BSD/GPL";
