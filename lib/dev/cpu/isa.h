/*
 * isa.h: for isa_*.c, which are compiled once per instruction set (-DZT_ISA=v4): names, and the
 * small functions that all kernels are made of. Loops are plain C that the compiler vectorises.
 *
 * Fused multiply-adds: nothing is contracted behind our back (-ffp-contract=off). fma_f32() fuses
 * where the instruction exists and may not elsewhere: kernels differ between instruction sets by
 * rounding. Where the bits matter (dev/adam.h) fmaf() is used, which always fuses.
 */
#ifndef ZT_DEV_CPU_ISA_H
#define ZT_DEV_CPU_ISA_H

#include <math.h>

#include "base/half.h"
#include "dev/cpu/kernels.h"

#define ZT_ISA_JOIN2(a, b) a##_##b
#define ZT_ISA_JOIN(a, b) ZT_ISA_JOIN2(a, b)
#define ZT_ISA_TEXT2(a) #a
#define ZT_ISA_TEXT(a) ZT_ISA_TEXT2(a)

/* The kernel `name` of this instruction set: zt_cpu_name_v4. */
#define ZT_ISA_FN(name) ZT_ISA_JOIN(zt_cpu_##name, ZT_ISA)

#define ZT_ISA_PROTO(name, args)                                                                   \
    int ZT_ISA_FN(name)(const struct args *a, int n_threads, struct zt_err *err);
ZT_CPU_ISA_KERNELS(ZT_ISA_PROTO)
ZT_ISA_PROTO(matmul_native, zt_matmul)

/*
 * A loop whose iterations the team shares; `work` elements in all, too few run alone. Compiles to a
 * plain loop without OpenMP.
 */
enum { MIN_PARALLEL_ELEMS = 16384 };
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL_FOR(n_threads, work)                                                              \
    PRAGMA(omp parallel for num_threads(n_threads) schedule(static)                                \
               if ((work) >= MIN_PARALLEL_ELEMS))

/* Rows are worked on in pieces of this many elements, converted to fp32 on the stack. */
enum { CHUNK = 1024 };

static inline float fma_f32(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* ---- elements of any float type as fp32 ---- */

static inline void widen(enum zt_dtype t, const void *src, int64_t at, int64_t n,
                         float *restrict dst)
{
    if (t == ZT_F32) {
        memcpy(dst, (const float *)src + at, (size_t)n * sizeof *dst);
        return;
    }
    const uint16_t *h = (const uint16_t *)src + at;
    if (t == ZT_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dst[i] = zt_bf16_to_f32(h[i]);
    } else {
        zt_f16_widen(h, n, dst);
    }
}

static inline void narrow(enum zt_dtype t, const float *restrict src, int64_t n, void *dst,
                          int64_t at)
{
    if (t == ZT_F32) {
        memcpy((float *)dst + at, src, (size_t)n * sizeof *src);
        return;
    }
    uint16_t *h = (uint16_t *)dst + at;
    if (t == ZT_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            h[i] = zt_f32_to_bf16(src[i]);
    } else {
        zt_f16_narrow(src, n, h);
    }
}

/* n elements from `at` on, to read: the memory itself if it is fp32, else widened into buf. */
static inline const float *read_row(struct zt_ref r, int64_t at, int64_t n, float *buf)
{
    if (r.dtype == ZT_F32)
        return (const float *)r.ptr + at;
    widen(r.dtype, r.ptr, at, n, buf);
    return buf;
}

/* Where to put n elements from `at` on; then write_row() with the pointer returned here. */
static inline float *row_to_write(struct zt_ref r, int64_t at, float *buf)
{
    return r.dtype == ZT_F32 ? (float *)r.ptr + at : buf;
}

static inline void write_row(struct zt_ref r, int64_t at, int64_t n, const float *row)
{
    if (r.dtype != ZT_F32)
        narrow(r.dtype, row, n, r.ptr, at);
}

#endif
