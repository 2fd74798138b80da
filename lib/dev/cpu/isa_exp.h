/*
 * isa_exp.h: exponentials, and the two passes over a row that softmax is made of.
 */
#ifndef ZT_DEV_CPU_ISA_EXP_H
#define ZT_DEV_CPU_ISA_EXP_H

#include "dev/cpu/isa.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

/*
 * e^x, within 2 ulp; 0 below -104, inf above 88.73, NaN for NaN. x = n ln 2 + f, |f| <= ln 2 / 2; e^f
 * by the polynomial of Cephes' expf; 2^n in two factors, so that n = 128 and subnormal results work.
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

#if defined(__AVX512F__)

/* The same in half the instructions: scalef multiplies by 2^n over the whole range. */
static inline __m512 exp_v16(__m512 x)
{
    x = _mm512_min_ps(_mm512_set1_ps(89.0f), x); /* the second operand, when one is NaN */
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    f = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), f);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, f), f, f), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* 1 / (1 + e^-x) and e^-x, of -x; above 80 it counts as 80. A division takes as long as all of the rest. */
static inline __m512 logistic_v16(__m512 minus_x, __m512 *e)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    *e = exp_v16(_mm512_min_ps(_mm512_set1_ps(80.0f), minus_x));
    __m512 d = _mm512_add_ps(one, *e), r = _mm512_rcp14_ps(d);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(d, r, one), r, r); /* Newton's step: 14 bits to 28 */
}

static inline __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

#endif

/* y[i] = e^(x[i] - shift); returns their sum. y may be x. */
static inline float exp_row(const float *x, float *y, int64_t n, float shift)
{
#if defined(__AVX512F__)
    __m512 sum = _mm512_setzero_ps(), by = _mm512_set1_ps(shift);
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        __m512 e = exp_v16(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), by));
        _mm512_mask_storeu_ps(y + i, m, e);
        sum = _mm512_mask_add_ps(sum, m, sum, e);
    }
    return _mm512_reduce_add_ps(sum);
#else
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        y[i] = exp_f32(x[i] - shift);
        sum += y[i];
    }
    return sum;
#endif
}

/* The largest of init and x[0..n); NaN is passed over. By lanes: compilers do not reorder maxima. */
static inline float max_row(const float *x, int64_t n, float init)
{
#if defined(__AVX512F__)
    __m512 max = _mm512_set1_ps(init);
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        max = _mm512_mask_max_ps(max, m, _mm512_maskz_loadu_ps(m, x + i), max);
    }
    return _mm512_reduce_max_ps(max);
#else
    enum { LANES = 16 };
    float lane[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = init;
    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; i < n; i++, l++)
        lane[l] = x[i] > lane[l] ? x[i] : lane[l];
    for (int l = 0; l < LANES; l++)
        init = lane[l] > init ? lane[l] : init;
    return init;
#endif
}

#endif
