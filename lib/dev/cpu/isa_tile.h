/*
 * isa_tile.h: products of small fp32 tiles that stay in the caches, by a register-blocked loop:
 *
 *     C (TILE_M, TILE_N) = A (TILE_M, k) B (k, TILE_N)   or   C += A B
 *
 * Whoever calls goes through larger ones tile by tile; they are padded, so there are no edges. A is
 * addressed by strides (a_row, a_col), one of which is 1, so it may be a transposed tile. Rows of B are
 * b_row apart: a row-major matrix, or panels of TILE_N columns side by side.
 */
#ifndef ZT_DEV_CPU_ISA_TILE_H
#define ZT_DEV_CPU_ISA_TILE_H

#include "dev/cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
enum { VEC = 16, TILE_M = 8 };
typedef __m512 vec;
#elif defined(__AVX2__)
enum { VEC = 8, TILE_M = 4 };
typedef __m256 vec;
#elif defined(__aarch64__)
enum { VEC = 4, TILE_M = 8 };
typedef float32x4_t vec;
#else
enum { VEC = 4, TILE_M = 4 };
typedef float vec __attribute__((vector_size(16)));
#endif
enum { TILE_N = 2 * VEC };

static inline vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

/* a * b + c */
static inline vec vec_fma(float a, vec b, vec c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c);
#elif defined(__aarch64__)
    return vfmaq_n_f32(c, b, a);
#else
    return a * b + c;
#endif
}

/* Inlined with the unit stride known. */
static inline __attribute__((always_inline)) void tile_block(int64_t k, const float *a,
                                                             int64_t a_row, int64_t a_col,
                                                             const float *b, int64_t b_row,
                                                             float *c, int64_t ldc, bool add)
{
    vec sum[TILE_M][2];
    for (int i = 0; i < TILE_M; i++) {
        sum[i][0] = add ? vec_load(c + i * ldc) : (vec){0};
        sum[i][1] = add ? vec_load(c + i * ldc + VEC) : (vec){0};
    }
    for (int64_t p = 0; p < k; p++) {
        vec b0 = vec_load(b + p * b_row), b1 = vec_load(b + p * b_row + VEC);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_M; i++) {
            float x = a[i * a_row + p * a_col];
            sum[i][0] = vec_fma(x, b0, sum[i][0]);
            sum[i][1] = vec_fma(x, b1, sum[i][1]);
        }
    }
    for (int i = 0; i < TILE_M; i++) {
        vec_store(c + i * ldc, sum[i][0]);
        vec_store(c + i * ldc + VEC, sum[i][1]);
    }
}

#endif
