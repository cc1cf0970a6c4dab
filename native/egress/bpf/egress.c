/*
 * What passes the device of a sandbox, decided at the host's end of it: `from_sandbox` for what the sandbox sends, `to_sandbox` for what it is sent.
 * A packet that may pass is marked, and the host's packet filter lets nothing else through: without these programs an uplink is closed.
 */
#include "address.h"
#include "origins.h"
#include "packet.h"

#define PORT_DNS 53
#define PORT_QUIC 443

/* Denials of one sandbox that are told, and answered with a refusal, in a second. The rest is counted. */
#define MAX_TOLD 16
#define MAX_REFUSED 256
/* A second, roughly: 2^30 ns. */
#define SECOND_BITS 30

#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP6_UNREACHABLE 1
#define ICMP6_PARAMETER_PROBLEM 4
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129

#define ENTRY_BITS 160

/* TC_ACT_OK and TC_ACT_SHOT, and the same of tcx. */
#define PASS 0
#define DROP 2

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct node);
	MAP_NUMBER(pinning, 1);
} node SEC(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
	MAP_NUMBER(max_entries, MAX_UPLINKS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct uplink);
	MAP_NUMBER(pinning, 1);
} uplinks SEC(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
	MAP_NUMBER(max_entries, MAX_UPLINKS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct counters);
	MAP_NUMBER(pinning, 1);
} counters SEC(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_LPM_TRIE);
	MAP_NUMBER(map_flags, BPF_F_NO_PREALLOC);
	MAP_NUMBER(max_entries, 262144);
	MAP_TYPE(key, struct rule_key);
	MAP_TYPE(value, struct rule);
	MAP_NUMBER(pinning, 1);
} rules SEC(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(map_flags, BPF_F_NO_PREALLOC);
	MAP_NUMBER(max_entries, 262144);
	MAP_TYPE(key, struct pin_key);
	MAP_TYPE(value, struct pin);
	MAP_NUMBER(pinning, 1);
} pins SEC(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	MAP_NUMBER(max_entries, 1048576);
	MAP_NUMBER(pinning, 1);
} denials SEC(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_NUMBER(max_entries, 16384);
	MAP_TYPE(key, struct flow_key);
	MAP_TYPE(value, struct flow);
	MAP_NUMBER(pinning, 1);
} flows SEC(".maps");

/* All that a decision is about. */
struct view {
	struct packet packet;
	const struct node *node;
	const struct uplink *uplink;
	struct counters *counters;
	__u32 slot;
	__u32 generation;
	__u32 ruleset;
	__u32 flags;
};

INLINE int find(struct __sk_buff *skb, struct view *view)
{
	__u32 zero = 0;

	view->node = bpf_map_lookup_elem(&node, &zero);
	if (!view->node)
		return -1;
	view->slot = skb->ifindex - view->node->first_index;
	view->uplink = bpf_map_lookup_elem(&uplinks, &view->slot);
	view->counters = bpf_map_lookup_elem(&counters, &view->slot);
	if (!view->uplink || !view->counters)
		return -1;
	__u64 policy = *(const volatile __u64 *)&view->uplink->policy;
	view->generation = policy >> 32;
	view->ruleset = policy >> 8 & 0xffffff;
	view->flags = policy & 0xff;
	return 0;
}

/* Whether there is one more within the budget of this second. Two processors at once may give a few more. */
INLINE int is_within_budget(__u32 *second, __u32 *count, __u32 most)
{
	__u32 now = bpf_ktime_get_boot_ns() >> SECOND_BITS;

	if (*second != now) {
		*second = now;
		*count = 0;
	}
	return *count < most && __sync_fetch_and_add(count, 1) < most;
}

/* Who has made the socket that a packet comes from; nothing is known of what the kernel sends by itself. The socket stays with a packet from one end of the device to
 * the other. */
INLINE const struct origin *origin_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	return sk ? bpf_sk_storage_get(&origins, sk, 0, 0) : 0;
}

INLINE void tell(struct __sk_buff *skb, const struct view *view, int reason)
{
	struct counters *counters = view->counters;

	if (!is_within_budget(&counters->told_second, &counters->told, MAX_TOLD)) {
		__sync_fetch_and_add(&counters->untold, 1);
		return;
	}
	struct denial *denial = bpf_ringbuf_reserve(&denials, sizeof(*denial), 0);
	if (!denial) {
		__sync_fetch_and_add(&counters->untold, 1);
		return;
	}
	denial->slot = view->slot;
	denial->generation = view->generation;
	__builtin_memcpy(denial->address, view->packet.target, sizeof(denial->address));
	denial->count = 1 + (__u32)__sync_lock_test_and_set(&counters->untold, 0);
	denial->port = view->packet.target_port;
	denial->protocol = view->packet.protocol;
	denial->reason = reason;
	const struct origin *origin = origin_of(skb);
	if (origin)
		__builtin_memcpy(&denial->origin, origin, sizeof(*origin));
	else
		denial->origin.net_cookie = 0;
	bpf_ringbuf_submit(denial, 0);
}

INLINE void count_denial(const struct view *view, __u32 reason)
{
	if (reason < REASONS)
		__sync_fetch_and_add(&view->counters->denied[reason], 1);
}

/* The sandbox hears nothing of it. */
INLINE int discard(struct __sk_buff *skb, const struct view *view, int reason)
{
	count_denial(view, reason);
	/* Kernels announce their own groups without being asked. */
	if (reason != REASON_MULTICAST && reason != REASON_CLOSED)
		tell(skb, view, reason);
	return DROP;
}

/* The host's packet filter answers, so that programs hear it at once. */
INLINE int refuse(struct __sk_buff *skb, const struct view *view, int reason)
{
	count_denial(view, reason);
	tell(skb, view, reason);
	if (!is_within_budget(&view->counters->refused_second, &view->counters->refused, MAX_REFUSED))
		return DROP;
	skb->mark = view->node->mark | MARK_REFUSED;
	return PASS;
}

/* Whom the resolver, a service or the gate may ask for: once for each question, and for each connection. */
INLINE void note_flow(struct __sk_buff *skb, const struct view *view)
{
	const struct packet *packet = &view->packet;
	const struct origin *origin = origin_of(skb);
	struct flow flow;

	if (!origin)
		return;
	struct flow_key key = {
		.slot = view->slot,
		.place = packet->source_port % FLOW_PLACES,
		.protocol = packet->protocol,
		.is_ipv6 = packet->is_ipv6,
	};
	flow.port = packet->source_port;
	__builtin_memcpy(&flow.origin, origin, sizeof(*origin));
	bpf_map_update_elem(&flows, &key, &flow, BPF_ANY);
}

INLINE int send(struct __sk_buff *skb, const struct view *view, __u32 mark)
{
	skb->mark = view->node->mark | mark;
	if (mark != MARK_ALLOWED && (view->packet.protocol == PROTOCOL_UDP ||
				     (view->packet.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN))
		note_flow(skb, view);
	__sync_fetch_and_add(&view->counters->sent_packets, 1);
	__sync_fetch_and_add(&view->counters->sent_bytes, skb->len);
	return PASS;
}

INLINE int receive(struct __sk_buff *skb, const struct view *view)
{
	__sync_fetch_and_add(&view->counters->received_packets, 1);
	__sync_fetch_and_add(&view->counters->received_bytes, skb->len);
	return PASS;
}

/* 1: allowed, 0: denied, -1: no rule says anything. */
INLINE int by_rule(const struct view *view, const __u32 *address, __u16 port)
{
	struct rule_key key = {
		.prefix_bits = ENTRY_BITS,
		.ruleset = view->ruleset | (view->packet.is_ipv6 ? OF_IPV6 : 0),
	};

	if (!view->ruleset)
		return -1;
	__builtin_memcpy(key.address, address, sizeof(key.address));
	const struct rule *rule = bpf_map_lookup_elem(&rules, &key);
	if (!rule)
		return -1;
#pragma unroll
	for (int i = 0; i < MAX_RANGES; i++) {
		if (i >= rule->count)
			return -1;
		const struct range *range = &rule->ranges[i];
		if (range->protocol == view->packet.protocol &&
		    (range->protocol == PROTOCOL_ICMP || (range->low <= port && port <= range->high)))
			return range->allow;
	}
	return -1;
}

INLINE int is_pinned(const struct view *view, const __u32 *address, __u16 port)
{
	struct pin_key key = {.generation = view->generation};
	int is_pinned = 0;

	__builtin_memcpy(key.address, address, sizeof(key.address));
	const struct pin *pin = bpf_map_lookup_elem(&pins, &key);
	if (!pin)
		return 0;
	__u64 now = bpf_ktime_get_boot_ns();
#pragma unroll
	for (int i = 0; i < MAX_PIN_RANGES; i++) {
		const struct pin_range *range = &pin->ranges[i];
		is_pinned |= range->protocol == view->packet.protocol && now < range->expires_at &&
			     range->low <= port && port <= range->high;
	}
	/* The memory of an entry that was removed may be another's by now. */
	return is_pinned && *(const volatile __u32 *)&pin->generation == view->generation;
}

INLINE int is_service(const struct view *view, __u16 port)
{
	const struct packet *packet = &view->packet;

	if (view->flags & FLAG_RESOLVER && port == PORT_DNS &&
	    (packet->protocol == PROTOCOL_UDP || packet->protocol == PROTOCOL_TCP))
		return 1;
	return view->flags & FLAG_SERVICES && packet->protocol == PROTOCOL_TCP && view->node->service_low <= port &&
	       port <= view->node->service_high;
}

/* What public mode opens where no rule has decided. */
INLINE int is_open(const struct view *view, const __u32 *address)
{
	return view->flags & FLAG_PUBLIC && view->packet.protocol != PROTOCOL_ICMP &&
	       is_public(address, view->packet.is_ipv6);
}

/* No rule has decided. */
INLINE int send_by_name(struct __sk_buff *skb, const struct view *view)
{
	const struct packet *packet = &view->packet;

	if (!(view->flags & FLAG_NAMES))
		return refuse(skb, view, REASON_DEFAULT);
	switch (packet->protocol) {
	case PROTOCOL_TCP:
		/* Only the gate's sockets can take what is no beginning, whatever it is part of. */
		if ((packet->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN ||
		    is_pinned(view, packet->target, packet->target_port))
			return send(skb, view, MARK_TO_GATE);
		break;
	case PROTOCOL_UDP:
		/* QUIC hides the name. */
		if (packet->target_port == PORT_QUIC)
			return refuse(skb, view, REASON_QUIC);
		if (is_pinned(view, packet->target, packet->target_port))
			return send(skb, view, MARK_ALLOWED);
		break;
	}
	return refuse(skb, view, REASON_DEFAULT);
}

SEC("classifier")
int from_sandbox(struct __sk_buff *skb)
{
	struct view view = {};
	struct packet *packet = &view.packet;

	if (find(skb, &view))
		return DROP;
	if (!view.generation)
		return discard(skb, &view, REASON_CLOSED);
	int reason = read_packet(skb, packet);
	if (reason >= 0)
		return discard(skb, &view, reason);
	if (packet->fragment != WHOLE)
		return discard(skb, &view, REASON_FRAGMENT);
	if (!is_own(view.uplink, packet->source, packet->is_ipv6))
		return discard(skb, &view, REASON_SOURCE);
	if (is_gateway(view.node, packet->target, packet->is_ipv6))
		return is_service(&view, packet->target_port) ? send(skb, &view, MARK_LOCAL)
							      : refuse(skb, &view, REASON_HOST);
	if (is_never(view.node, packet->target, packet->is_ipv6))
		return refuse(skb, &view, REASON_NEVER);
	if (packet->protocol == PROTOCOL_ICMP && packet->icmp_type != (packet->is_ipv6 ? ICMP6_ECHO : ICMP_ECHO))
		return discard(skb, &view, REASON_PROTOCOL);
	int verdict = by_rule(&view, packet->target, packet->target_port);
	if (verdict >= 0)
		return verdict ? send(skb, &view, MARK_ALLOWED) : refuse(skb, &view, REASON_RULE);
	if (is_open(&view, packet->target))
		return send(skb, &view, MARK_ALLOWED);
	return send_by_name(skb, &view);
}

/* What the packet filter has found to belong to a flow, or has answered itself. */
INLINE int is_error(const struct packet *packet)
{
	if (packet->protocol == PROTOCOL_TCP)
		return packet->tcp_flags & TCP_RST && !packet->has_payload;
	if (packet->protocol != PROTOCOL_ICMP)
		return 0;
	if (packet->is_ipv6)
		return packet->icmp_type >= ICMP6_UNREACHABLE && packet->icmp_type <= ICMP6_PARAMETER_PROBLEM;
	return packet->icmp_type == ICMP_UNREACHABLE || packet->icmp_type == ICMP_TIME_EXCEEDED;
}

SEC("classifier")
int to_sandbox(struct __sk_buff *skb)
{
	struct view view = {};
	struct packet *packet = &view.packet;

	if (find(skb, &view) || !view.generation)
		return DROP;
	if (read_packet(skb, packet) >= 0 || !is_own(view.uplink, packet->target, packet->is_ipv6))
		goto denied;
	/* Without its first fragment a packet is never whole. */
	if (packet->fragment == LATER || is_error(packet))
		return receive(skb, &view);
	if (skb->mark == (view.node->mark | MARK_FROM_GATE) && packet->protocol == PROTOCOL_TCP &&
	    view.flags & FLAG_NAMES)
		return receive(skb, &view);
	if (is_gateway(view.node, packet->source, packet->is_ipv6)) {
		if (is_service(&view, packet->source_port))
			return receive(skb, &view);
		goto denied;
	}
	if (packet->protocol == PROTOCOL_ICMP &&
	    packet->icmp_type != (packet->is_ipv6 ? ICMP6_ECHO_REPLY : ICMP_ECHO_REPLY))
		goto denied;
	if (is_never(view.node, packet->source, packet->is_ipv6))
		goto denied;
	int verdict = by_rule(&view, packet->source, packet->source_port);
	if (verdict > 0 || (verdict < 0 && is_open(&view, packet->source)) ||
	    (verdict < 0 && view.flags & FLAG_NAMES && packet->protocol == PROTOCOL_UDP &&
	     packet->source_port != PORT_QUIC && is_pinned(&view, packet->source, packet->source_port)))
		return receive(skb, &view);
denied:
	count_denial(&view, REASON_INBOUND);
	return DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
