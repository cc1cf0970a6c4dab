/* What the programs and egressd both know: the values of the maps. src/layout.rs says the same. */
#pragma once

#include <linux/types.h>

/* Uplinks of a node; the slot of one is its index of the device less `first_index`. */
#define MAX_UPLINKS 4094
#define MAX_RANGES 16
#define MAX_PIN_RANGES 4

/* Flags of a policy. */
#define FLAG_RESOLVER 1
#define FLAG_SERVICES 2
#define FLAG_NAMES 4
#define FLAG_PUBLIC 8

/* Marks: `node.mark` and one of these. */
#define MARK_ALLOWED 1
#define MARK_TO_GATE 2
#define MARK_LOCAL 3
#define MARK_REFUSED 4
#define MARK_FROM_GATE 5

enum reason {
	REASON_CLOSED,
	REASON_NOT_IP,
	REASON_HEADER,
	REASON_FRAGMENT,
	REASON_MULTICAST,
	REASON_SOURCE,
	REASON_PROTOCOL,
	REASON_HOST,
	REASON_NEVER,
	REASON_RULE,
	REASON_QUIC,
	REASON_DEFAULT,
	REASON_INBOUND,
	REASONS,
};

/* The one entry of `node`. Addresses are in network order. */
struct node {
	__u32 first_index;
	__u32 mark;
	__u32 gateway4;
	__u32 network4;
	__u32 mask4;
	__u32 gateway6[4];
	__u32 network6[4];
	__u32 mask6[4];
	__u16 service_low;
	__u16 service_high;
};

/* `policy` is 0 while the uplink is closed; else generation << 32 | set of rules << 8 | flags. egressd stores it as one word, so that a program sees one
 * policy or the other. The rest changes only while no device has the slot. */
struct uplink {
	__u64 policy;
	__u32 address4;
	__u32 address6[4];
	__u32 unused;
	__u64 net_inode;
	char id[24];
};

struct counters {
	__u64 sent_packets;
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
	__u64 denied[REASONS];
	/* Denials since the last that was told. */
	__u64 untold;
	__u32 told_second;
	__u32 told;
	__u32 refused_second;
	__u32 refused;
};

/* Ports are in host order, both ends included. */
struct range {
	__u16 low;
	__u16 high;
	__u8 protocol;
	__u8 allow;
};

/* Keeps the families apart: else a short prefix of IPv6, such as all of it, would cover IPv4 in its mapped form. */
#define OF_IPV6 (1u << 31)

/* An address of IPv4 stands in its mapped form. */
struct rule_key {
	__u32 prefix_bits;
	/* With OF_IPV6. */
	__u32 ruleset;
	__u32 address[4];
};

struct rule {
	__u16 count;
	struct range ranges[MAX_RANGES];
};

struct pin_key {
	__u32 generation;
	__u32 address[4];
};

/* `expires_at` is in nanoseconds of CLOCK_BOOTTIME; 0 is a range that is not there. */
struct pin_range {
	__u64 expires_at;
	__u16 low;
	__u16 high;
	__u8 protocol;
	__u8 unused[3];
};

struct pin {
	__u32 generation;
	__u32 unused;
	struct pin_range ranges[MAX_PIN_RANGES];
};

#define MAX_ANCESTORS 32
/* TASK_COMM_LEN */
#define COMM_BYTES 16

/* Which process has made a socket, or has connected it since. Processes have the numbers that the sandbox knows them by. */
struct origin {
	/* CLOCK_BOOTTIME. */
	__u64 noted_at;
	/* Of the socket's network namespace (SO_NETNS_COOKIE); 0 is nobody's origin. */
	__u64 net_cookie;
	/* Its number where the sandbox was made. */
	__u32 outer_pid;
	__u32 pid;
	__u32 session;
	/* As the host knows it. */
	__u32 user;
	__u32 ancestor_count;
	/* Its number for the kernel itself. */
	__u32 process;
	/* Nearest first. */
	__u32 ancestors[MAX_ANCESTORS];
	char comm[COMM_BYTES];
};

/* By the cookie of a sandbox's network namespace. */
struct space {
	__u32 slot;
	/* Inode of the pid namespace in which its processes have their numbers. */
	__u32 pid_inode;
	/* What the host calls its user 0. */
	__u32 first_user;
	__u32 unused;
};

/* A socket of a sandbox that has asked the resolver, a service or the gate something. One sandbox has as many places as FLOW_PLACES for each protocol and family,
 * so that it cannot take those of others; the port tells who is in one. */
#define FLOW_PLACES 256

struct flow_key {
	__u32 slot;
	__u16 place;
	__u8 protocol;
	__u8 is_ipv6;
};

struct flow {
	__u64 port;
	struct origin origin;
};

struct denial {
	__u32 slot;
	__u32 generation;
	__u32 address[4];
	__u32 count;
	__u16 port;
	__u8 protocol;
	__u8 reason;
	struct origin origin;
};
