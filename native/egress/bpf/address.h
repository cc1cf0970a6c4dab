/* Which addresses are what, whatever a policy says. Words are in host order. */
#pragma once

#include "kernel.h"
#include "layout.h"

INLINE int is_same(const __u32 *a, const __u32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

INLINE int is_within(const __u32 *address, const __u32 *network, const __u32 *mask)
{
	return (address[0] & mask[0]) == network[0] && (address[1] & mask[1]) == network[1] &&
	       (address[2] & mask[2]) == network[2] && (address[3] & mask[3]) == network[3];
}

INLINE int is_gateway(const struct node *node, const __u32 *address, int is_ipv6)
{
	return is_ipv6 ? is_same(address, node->gateway6) : address[3] == node->gateway4;
}

INLINE int is_own(const struct uplink *uplink, const __u32 *address, int is_ipv6)
{
	return is_ipv6 ? is_same(address, uplink->address6) : address[3] == uplink->address4;
}

/* The host itself, link-local, metadata services, the node's network, and IPv6 that carries an address of IPv4. */
INLINE int is_never4(const struct node *node, __u32 raw)
{
	__u32 a = net32(raw);

	return a >> 24 == 0 || a >> 24 == 127 || a >> 16 == 0xa9fe /* 169.254.0.0/16 */ ||
	       a >> 28 == 0xe || a == 0xffffffff ||
	       a == 0xa83f8110 /* 168.63.129.16: Azure */ || a == 0x646464c8 /* 100.100.100.200: Alibaba */ ||
	       a == 0xc00000c0 /* 192.0.0.192: Oracle */ || (raw & node->mask4) == node->network4;
}

INLINE int is_never6(const struct node *node, const __u32 *raw)
{
	__u32 a = net32(raw[0]);

	if (raw[0] == 0 && raw[1] == 0 && (raw[2] == 0 || raw[2] == net32(0xffff)))
		return 1; /* ::/96, ::ffff:0:0/96 */
	return a == 0x0064ff9b /* 64:ff9b::/32 */ || a >> 16 == 0x2002 || a == 0x20010000 /* Teredo */ ||
	       a >> 22 == 0xfe80 >> 6 || a >> 24 == 0xff ||
	       a == 0xfd000ec2 /* fd00:ec2::/32: AWS */ || a == 0xfd2000ce /* fd20:ce::/32: Google */ ||
	       a == 0xfd0000c1 /* fd00:c1::/32: Oracle */ || is_within(raw, node->network6, node->mask6);
}

INLINE int is_never(const struct node *node, const __u32 *address, int is_ipv6)
{
	return is_ipv6 ? is_never6(node, address) : is_never4(node, address[3]);
}

/* The public internet: what is open without a rule in public mode. */
INLINE int is_public(const __u32 *address, int is_ipv6)
{
	if (is_ipv6)
		return net32(address[0]) >> 29 == 1; /* 2000::/3 */
	__u32 a = net32(address[3]);
	return !(a >> 24 == 10 || a >> 22 == 0x64400000 >> 22 /* 100.64.0.0/10 */ || a >> 20 == 0xac1 /* 172.16.0.0/12 */ ||
		 a >> 8 == 0xc00000 /* 192.0.0.0/24 */ || a >> 16 == 0xc0a8 /* 192.168.0.0/16 */ ||
		 a >> 17 == 0xc6120000 >> 17 /* 198.18.0.0/15 */ || a >> 28 == 0xf);
}
