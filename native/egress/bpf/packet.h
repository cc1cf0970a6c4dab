/* Reads the headers of a packet. Nothing in it is believed: every length is checked against the one that the kernel knows. */
#pragma once

#include "kernel.h"
#include "layout.h"

#define ETHERNET 14
#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define FRAGMENT_HEADER 8
#define TCP_HEADER 20
#define UDP_HEADER 8
#define ICMP_HEADER 8

#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_ICMP6 58

#define TYPE_IPV4 0x0800
#define TYPE_IPV6 0x86dd

#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum fragment { WHOLE, FIRST, LATER };

struct packet {
	/* Network order; IPv4 in its mapped form. */
	__u32 source[4];
	__u32 target[4];
	/* Host order. */
	__u16 source_port;
	__u16 target_port;
	/* PROTOCOL_ICMP for both kinds of ICMP. */
	__u8 protocol;
	__u8 is_ipv6;
	__u8 fragment;
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 has_payload;
};

INLINE int read_transport(struct __sk_buff *skb, struct packet *packet, __u32 offset, __u32 length)
{
	__u8 header[TCP_HEADER];

	switch (packet->protocol) {
	case PROTOCOL_TCP:
		if (length < TCP_HEADER || bpf_skb_load_bytes(skb, offset, header, TCP_HEADER))
			return REASON_HEADER;
		__u32 tcp_length = (header[12] >> 4) * 4;
		if (tcp_length < TCP_HEADER || tcp_length > length)
			return REASON_HEADER;
		packet->tcp_flags = header[13];
		packet->has_payload = length > tcp_length;
		break;
	case PROTOCOL_UDP:
		if (length < UDP_HEADER || bpf_skb_load_bytes(skb, offset, header, UDP_HEADER))
			return REASON_HEADER;
		__u32 udp_length = header[4] << 8 | header[5];
		if (udp_length < UDP_HEADER || (udp_length > length && packet->fragment == WHOLE))
			return REASON_HEADER;
		break;
	case PROTOCOL_ICMP:
		if (length < ICMP_HEADER || bpf_skb_load_bytes(skb, offset, header, ICMP_HEADER))
			return REASON_HEADER;
		packet->icmp_type = header[0];
		return -1;
	default:
		return REASON_PROTOCOL;
	}
	packet->source_port = header[0] << 8 | header[1];
	packet->target_port = header[2] << 8 | header[3];
	return -1;
}

INLINE int read_ipv4(struct __sk_buff *skb, struct packet *packet)
{
	__u8 header[IPV4_HEADER];

	if (bpf_skb_load_bytes(skb, ETHERNET, header, IPV4_HEADER))
		return REASON_HEADER;
	/* Options could name another way than the address does. */
	if (header[0] != 0x45)
		return REASON_HEADER;
	__u32 length = header[2] << 8 | header[3];
	if (length < IPV4_HEADER || length > skb->len - ETHERNET)
		return REASON_HEADER;
	__u32 fragment = header[6] << 8 | header[7];
	if (fragment & 0x8000)
		return REASON_HEADER;
	packet->fragment = fragment & 0x1fff ? LATER : fragment & 0x2000 ? FIRST : WHOLE;
	packet->source[2] = packet->target[2] = net32(0xffff);
	__builtin_memcpy(&packet->source[3], header + 12, 4);
	__builtin_memcpy(&packet->target[3], header + 16, 4);
	__u32 target = net32(packet->target[3]);
	if (target >> 28 == 0xe || target == 0xffffffff)
		return REASON_MULTICAST;
	if (packet->fragment == LATER)
		return -1;
	packet->protocol = header[9];
	return read_transport(skb, packet, ETHERNET + IPV4_HEADER, length - IPV4_HEADER);
}

INLINE int read_ipv6(struct __sk_buff *skb, struct packet *packet)
{
	__u8 header[IPV6_HEADER], fragment[FRAGMENT_HEADER];

	if (bpf_skb_load_bytes(skb, ETHERNET, header, IPV6_HEADER))
		return REASON_HEADER;
	__u32 length = header[4] << 8 | header[5];
	if (header[0] >> 4 != 6 || length > skb->len - ETHERNET - IPV6_HEADER)
		return REASON_HEADER;
	packet->is_ipv6 = 1;
	__builtin_memcpy(packet->source, header + 8, 16);
	__builtin_memcpy(packet->target, header + 24, 16);
	if (header[24] == 0xff)
		return REASON_MULTICAST;
	__u8 next = header[6];
	__u32 offset = ETHERNET + IPV6_HEADER;
	if (next == PROTOCOL_FRAGMENT) {
		if (length < FRAGMENT_HEADER || bpf_skb_load_bytes(skb, offset, fragment, FRAGMENT_HEADER))
			return REASON_HEADER;
		packet->fragment = fragment[2] || fragment[3] & 0xf8 ? LATER : FIRST;
		next = fragment[0];
		offset += FRAGMENT_HEADER;
		length -= FRAGMENT_HEADER;
		if (packet->fragment == LATER)
			return -1;
	}
	/* Hop-by-hop, routing, destination options: they could name another way, or hide what follows. */
	if (next == 0 || next == 43 || next == 60 || next == PROTOCOL_FRAGMENT)
		return REASON_HEADER;
	if (next == PROTOCOL_ICMP)
		return REASON_PROTOCOL;
	packet->protocol = next == PROTOCOL_ICMP6 ? PROTOCOL_ICMP : next;
	return read_transport(skb, packet, offset, length);
}

/* Fills `packet`, which is all zero; -1, or why the packet cannot pass. */
INLINE int read_packet(struct __sk_buff *skb, struct packet *packet)
{
	if (skb->vlan_present || skb->len < ETHERNET)
		return REASON_NOT_IP;
	switch (net16(skb->protocol)) {
	case TYPE_IPV4:
		return read_ipv4(skb, packet);
	case TYPE_IPV6:
		return read_ipv6(skb, packet);
	default:
		return REASON_NOT_IP;
	}
}
