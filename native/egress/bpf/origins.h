/* Where the programs of `origins.c` leave what they know of a socket, for those of `egress.c`. It is kept with the socket and goes with it. */
#pragma once

#include "kernel.h"
#include "layout.h"

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_SK_STORAGE);
	MAP_NUMBER(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct origin);
	MAP_NUMBER(pinning, 1);
} origins SEC(".maps");
