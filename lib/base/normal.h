/*
 * normal.h: the builds of zt_rng_normal(): isa_normal.c is compiled once per instruction set, and all
 * of them give the same bits.
 */
#ifndef ZT_BASE_NORMAL_H
#define ZT_BASE_NORMAL_H

#include "base/isa.h"
#include "base/rng.h"

typedef void zt_normal_fn(uint64_t seed, enum zt_rng_purpose purpose, uint64_t tensor,
                          int64_t begin, int64_t n, float *out);

zt_normal_fn *zt_normal_build(enum zt_isa isa);

#endif
