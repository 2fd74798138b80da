/* clock.h: monotonic time. */
#ifndef ZT_BASE_CLOCK_H
#define ZT_BASE_CLOCK_H

#include "base/compat.h"

#include <time.h>

static inline int64_t zt_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double zt_now_s(void)
{
    return (double)zt_now_ns() * 1e-9;
}

#endif
