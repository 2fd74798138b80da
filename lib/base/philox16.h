/*
 * philox16.h: sixteen blocks of Philox4x32-10 at a time, a lane each, in vectors of whatever width the
 * file that includes this is compiled for. The same words as zt_philox_words() gives.
 */
#ifndef ZT_BASE_PHILOX16_H
#define ZT_BASE_PHILOX16_H

#include "base/rng.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { ZT_PHILOX_LANES = 16 };

#if defined(__AVX512F__)

/*
 * Written out, since gcc makes the products of vpmullq, three times the work of the two vpmuludq that
 * they need: of the even lanes and of the odd ones.
 */
static inline void zt_philox16_product(__m512i x, uint32_t factor, __m512i *high, __m512i *low)
{
    const __m512i f = _mm512_set1_epi64(factor);
    const __m512i even = _mm512_mul_epu32(x, f);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), f);
    *low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CCAA);
    *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}

#endif

/* word[w][i] = word w of the block at counter (c0 + i, c1, c2, c3); c0 must not wrap around. */
static inline void zt_philox16(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                               uint32_t word[4][ZT_PHILOX_LANES])
{
#if defined(__AVX512F__)
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    __m512i v0 = _mm512_add_epi32(_mm512_set1_epi32((int)c0), lane);
    __m512i v1 = _mm512_set1_epi32((int)c1), v2 = _mm512_set1_epi32((int)c2);
    __m512i v3 = _mm512_set1_epi32((int)c3);
    for (int i = 0; i < ZT_PHILOX_ROUNDS; i++) {
        __m512i high0, low0, high2, low2;
        zt_philox16_product(v0, ZT_PHILOX_M0, &high0, &low0);
        zt_philox16_product(v2, ZT_PHILOX_M1, &high2, &low2);
        v0 = _mm512_xor_si512(_mm512_xor_si512(high2, v1), _mm512_set1_epi32((int)k0));
        v2 = _mm512_xor_si512(_mm512_xor_si512(high0, v3), _mm512_set1_epi32((int)k1));
        v1 = low2;
        v3 = low0;
        k0 += ZT_PHILOX_W0;
        k1 += ZT_PHILOX_W1;
    }
    _mm512_storeu_si512(word[0], v0);
    _mm512_storeu_si512(word[1], v1);
    _mm512_storeu_si512(word[2], v2);
    _mm512_storeu_si512(word[3], v3);
#else
#pragma omp simd
    for (int i = 0; i < ZT_PHILOX_LANES; i++) {
        const struct zt_philox_block b = zt_philox_words(key, c0 + (uint32_t)i, c1, c2, c3);
        word[0][i] = b.v[0];
        word[1][i] = b.v[1];
        word[2][i] = b.v[2];
        word[3][i] = b.v[3];
    }
#endif
}

#endif
