/*
 * isa.h: the instruction sets that every isa_*.c is compiled for, the least first. A build is chosen by
 * what the CPU has, never by timing.
 */
#ifndef ZT_BASE_ISA_H
#define ZT_BASE_ISA_H

#include "base/compat.h"

#if defined(__x86_64__)
enum zt_isa { ZT_ISA_V2, ZT_ISA_V3, ZT_ISA_V4, ZT_N_ISAS };
/* X(suffix of the names of this build, as -DZT_ISA gives it) */
#define ZT_ISAS(X) X(v2) X(v3) X(v4)
#else
enum zt_isa { ZT_ISA_BASE, ZT_N_ISAS };
#define ZT_ISAS(X) X(base)
#endif

const char *zt_isa_what(enum zt_isa isa); /* "AVX-512" */
bool zt_isa_supported(enum zt_isa isa);   /* by this CPU */

/* The best that this CPU has; the least where it has none. */
enum zt_isa zt_isa_best(void);

#endif
