/*
 * size.h: arithmetic on sizes that come from outside. Every product or sum of sizes that a recipe,
 * a file or a peer can influence goes through these; they return false on overflow.
 */
#ifndef ZT_BASE_SIZE_H
#define ZT_BASE_SIZE_H

#include "base/compat.h"

static inline ZT_MUST_CHECK bool zt_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline ZT_MUST_CHECK bool zt_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline ZT_MUST_CHECK bool zt_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline ZT_MUST_CHECK bool zt_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Transparent huge pages of x86-64, and of aarch64 with 4 KiB pages. */
enum { ZT_HUGE_PAGE_BYTES = 2 << 20 };

/* Round `n` up to a multiple of `align` (a power of two or not; > 0). The caller bounds n. */
static inline size_t zt_align_size(size_t n, size_t align)
{
    return (n + align - 1) / align * align;
}

static inline int64_t zt_align_i64(int64_t n, int64_t align)
{
    return (n + align - 1) / align * align;
}

static inline int64_t zt_ceil_div_i64(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
