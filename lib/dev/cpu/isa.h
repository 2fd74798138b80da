/*
 * isa.h: for isa_*.c, which are compiled once per instruction set (-DZT_ISA=v4): names, and the
 * small functions that all kernels are made of. Loops are plain C that the compiler vectorises.
 *
 * Fused multiply-adds: nothing is contracted behind our back (-ffp-contract=off). fma_f32() fuses
 * where the instruction exists and may not elsewhere: kernels differ between instruction sets by
 * rounding. Where the bits matter (dev/adamw.h) fmaf() is used, which always fuses.
 */
#ifndef ZT_DEV_CPU_ISA_H
#define ZT_DEV_CPU_ISA_H

#include <math.h>

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

/*
 * A loop whose iterations the team shares; `work` elements in all, too few run alone. Compiles to a
 * plain loop without OpenMP.
 */
enum { MIN_PARALLEL_ELEMS = 16384 };
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL_FOR(n_threads, work)                                                              \
    PRAGMA(omp parallel for num_threads(n_threads) schedule(static)                                \
               if ((work) >= MIN_PARALLEL_ELEMS))
#define SIMD PRAGMA(omp simd)
#define SIMD_SUM(var) PRAGMA(omp simd reduction(+ : var))
#define SIMD_MAX(var) PRAGMA(omp simd reduction(max : var))

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

/*
 * e^x, within 2 ulp; 0 below -104, inf above 88.73, NaN for NaN. x = n ln 2 + f, |f| <= ln 2 / 2;
 * e^f by the polynomial of Cephes' expf; 2^n in two factors, so that n = 128 and subnormal results
 * work.
 */
static inline float exp_f32(float x)
{
    const float round_to_int =
        12582912.0f; /* 1.5 * 2^23: adding it leaves the integer in the bits */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float t = fma_f32(x, 1.44269504f, round_to_int);
    int32_t n = (int32_t)(zt_f32_bits(t) - 0x4b400000u);
    float nf = t - round_to_int;
    float f = fma_f32(nf, -0.693359375f, x);
    f = fma_f32(nf, 2.12194440e-4f, f);
    float p = 1.9875691500e-4f;
    p = fma_f32(p, f, 1.3981999507e-3f);
    p = fma_f32(p, f, 8.3334519073e-3f);
    p = fma_f32(p, f, 4.1665795894e-2f);
    p = fma_f32(p, f, 1.6666665459e-1f);
    p = fma_f32(p, f, 5.0000001201e-1f);
    p = fma_f32(p * f, f, f) + 1.0f;
    int32_t half = n >> 1;
    float a = zt_bits_f32((uint32_t)(half + 127) << 23);
    float b = zt_bits_f32((uint32_t)(n - half + 127) << 23);
    return p * a * b;
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
        SIMD for (int64_t i = 0; i < n; i++) dst[i] = zt_bf16_to_f32(h[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            dst[i] = zt_f16_to_f32(h[i]);
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
        SIMD for (int64_t i = 0; i < n; i++) h[i] = zt_f32_to_bf16(src[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            h[i] = zt_f32_to_f16(src[i]);
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
