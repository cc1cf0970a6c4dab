/* The helpers of the kernel that the programs call (bpf-helpers(7)), by their numbers, and what maps are declared with. */
#pragma once

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

#define MAP_NUMBER(name, value) int(*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) =
	(void *)BPF_FUNC_skb_load_bytes;
static __u64 (*const bpf_ktime_get_boot_ns)(void) = (void *)BPF_FUNC_ktime_get_boot_ns;
static void *(*const bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_reserve;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) =
	(void *)BPF_FUNC_sk_storage_get;
static struct bpf_sock *(*const bpf_sk_fullsock)(struct bpf_sock *sk) = (void *)BPF_FUNC_sk_fullsock;
static __u64 (*const bpf_get_netns_cookie)(void *context) = (void *)BPF_FUNC_get_netns_cookie;
static void *(*const bpf_get_current_task)(void) = (void *)BPF_FUNC_get_current_task;
static __u64 (*const bpf_get_current_uid_gid)(void) = (void *)BPF_FUNC_get_current_uid_gid;
static long (*const bpf_probe_read_kernel)(void *to, __u32 size, const void *from) =
	(void *)BPF_FUNC_probe_read_kernel;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define net16(x) __builtin_bswap16(x)
#define net32(x) __builtin_bswap32(x)
#else
#define net16(x) (x)
#define net32(x) (x)
#endif
