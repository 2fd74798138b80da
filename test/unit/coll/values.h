/*
 * values.h: what ranks give to collectives in tests, and what must come out: sums in the order of the
 * ranks, in fp32 or the type's own, rounded once.
 */
#ifndef ZT_TEST_COLL_VALUES_H
#define ZT_TEST_COLL_VALUES_H

#include "coll/coll.h"

/* Element i of rank r, the same in every process; rounding and order show in sums of these. */
static inline float value(int rank, int64_t i)
{
    uint32_t h = ((uint32_t)rank * 2654435761u + (uint32_t)i) * 2246822519u;
    h = (h ^ h >> 15) * 3266489917u;
    float x = (float)(int32_t)(h ^ h >> 16) * (1.0f / 2147483648.0f);
    return i % 7 ? x : x * 300.0f;
}

static inline void put(void *p, int64_t at, enum zt_dtype t, int rank, int64_t i)
{
    float x = value(rank, i);
    if (t == ZT_F32)
        ((float *)p)[at] = x;
    else if (t == ZT_BF16)
        ((uint16_t *)p)[at] = zt_f32_to_bf16(x);
    else if (t == ZT_F16)
        ((uint16_t *)p)[at] = zt_f32_to_f16(x);
    else if (t == ZT_I32)
        ((int32_t *)p)[at] = (int32_t)(x * 1e5f);
    else if (t == ZT_I64)
        ((int64_t *)p)[at] = (int64_t)(x * 1e15f);
    else
        ((double *)p)[at] = (double)x * 1.000000001;
}

static inline void fill(void *p, enum zt_dtype t, int rank, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        put(p, i, t, rank, from + i);
}

static inline float as_f32(const void *p, enum zt_dtype t)
{
    uint16_t h;
    float f;
    if (t == ZT_F32)
        return memcpy(&f, p, 4), f;
    memcpy(&h, p, 2);
    return t == ZT_BF16 ? zt_bf16_to_f32(h) : zt_f16_to_f32(h);
}

/* Element i of the sum or maximum over the group of `rank`, as bytes in `out`. */
static inline void want_reduced(const struct zt_mesh *mesh, int rank, zt_axes group,
                                enum zt_dtype t, enum zt_dtype to, enum zt_redop op, int64_t i,
                                void *out)
{
    float f = 0;
    int32_t n32 = 0;
    int64_t n64 = 0;
    double d = 0;
    for (int j = 0; j < zt_group_size(mesh, group); j++) {
        int64_t word;
        put(&word, 0, t, zt_group_member(mesh, group, rank, j), i);
        if (t == ZT_F64) {
            double x;
            memcpy(&x, &word, 8);
            d = j == 0 ? x : op == ZT_MAX ? ZT_MAX(d, x) : d + x;
        } else if (t == ZT_I64) {
            n64 = j == 0 ? word : op == ZT_MAX ? ZT_MAX(n64, word) : n64 + word;
        } else if (t == ZT_I32) {
            int32_t x;
            memcpy(&x, &word, 4);
            n32 = j == 0 ? x : op == ZT_MAX ? ZT_MAX(n32, x) : n32 + x;
        } else {
            float x = as_f32(&word, t);
            f = j == 0 ? x : op == ZT_MAX ? ZT_MAX(f, x) : f + x;
        }
    }
    uint16_t h = to == ZT_BF16 ? zt_f32_to_bf16(f) : zt_f32_to_f16(f);
    const void *from = to == ZT_F64   ? (void *)&d
                       : to == ZT_I64 ? (void *)&n64
                       : to == ZT_I32 ? (void *)&n32
                       : to == ZT_F32 ? (void *)&f
                                      : (void *)&h;
    memcpy(out, from, zt_dtype_bytes(to));
}

/* Of many elements, those at the ends and some between are looked at. */
static inline int64_t next(int64_t i, int64_t n)
{
    return i > 300 && i < n - 300 ? i + 61 : i + 1;
}

/* First wrong element of a reduction's range [from, from + n) in p, or -1. */
static inline int64_t wrong_reduced(const struct zt_mesh *mesh, int rank, zt_axes group,
                                    const void *p, enum zt_dtype t, enum zt_dtype to,
                                    enum zt_redop op, int64_t from, int64_t n)
{
    size_t bytes = zt_dtype_bytes(to);
    for (int64_t i = 0; i < n; i = next(i, n)) {
        char want[8];
        want_reduced(mesh, rank, group, t, to, op, from + i, want);
        if (memcmp((const char *)p + (size_t)i * bytes, want, bytes))
            return i;
    }
    return -1;
}

static inline int64_t wrong_copied(const void *p, enum zt_dtype t, int rank, int64_t from,
                                   int64_t n)
{
    size_t bytes = zt_dtype_bytes(t);
    for (int64_t i = 0; i < n; i = next(i, n)) {
        char want[8];
        put(want, 0, t, rank, from + i);
        if (memcmp((const char *)p + (size_t)i * bytes, want, bytes))
            return i;
    }
    return -1;
}

#endif
