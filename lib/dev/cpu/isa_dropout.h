/*
 * isa_dropout.h: dropout masks (dev/dropout.h) of a row, two groups of columns at a time: sixteen
 * blocks of Philox, a lane each.
 */
#ifndef ZT_DEV_CPU_ISA_DROPOUT_H
#define ZT_DEV_CPU_ISA_DROPOUT_H

#include "dev/cpu/isa.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { DROP_COLS = 2 * ZT_DROP_GROUP, DROP_LANES = 2 * ZT_DROP_BLOCKS };

/* The words of blocks [block, block + DROP_LANES) of a row. */
#if defined(__AVX512F__)

/*
 * Written out, since gcc makes the products of vpmullq, three times the work of the two vpmuludq that
 * they need: of the even lanes and of the odd ones.
 */
static inline void drop_product(__m512i x, uint32_t factor, __m512i *high, __m512i *low)
{
    const __m512i f = _mm512_set1_epi64(factor);
    const __m512i even = _mm512_mul_epu32(x, f);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), f);
    *low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CCAA);
    *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}

static inline void drop_words(const struct zt_drop_key *key, uint32_t head, uint32_t row,
                              uint32_t block, uint32_t word[4][DROP_LANES])
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    uint32_t k0 = (uint32_t)key->key, k1 = (uint32_t)(key->key >> 32);
    __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32((int)block), lane);
    __m512i c1 = _mm512_set1_epi32((int)row), c2 = _mm512_set1_epi32((int)head);
    __m512i c3 = _mm512_set1_epi32((int)key->tweak);
    for (int i = 0; i < ZT_PHILOX_ROUNDS; i++) {
        __m512i high0, low0, high2, low2;
        drop_product(c0, ZT_PHILOX_M0, &high0, &low0);
        drop_product(c2, ZT_PHILOX_M1, &high2, &low2);
        c0 = _mm512_xor_si512(_mm512_xor_si512(high2, c1), _mm512_set1_epi32((int)k0));
        c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), _mm512_set1_epi32((int)k1));
        c1 = low2;
        c3 = low0;
        k0 += ZT_PHILOX_W0;
        k1 += ZT_PHILOX_W1;
    }
    _mm512_storeu_si512(word[0], c0);
    _mm512_storeu_si512(word[1], c1);
    _mm512_storeu_si512(word[2], c2);
    _mm512_storeu_si512(word[3], c3);
}

#else

static inline void drop_words(const struct zt_drop_key *key, uint32_t head, uint32_t row,
                              uint32_t block, uint32_t word[4][DROP_LANES])
{
#pragma omp simd
    for (int i = 0; i < DROP_LANES; i++) {
        const struct zt_philox_block b = zt_drop_block(key, head, row, block + (uint32_t)i);
        word[0][i] = b.v[0];
        word[1][i] = b.v[1];
        word[2][i] = b.v[2];
        word[3][i] = b.v[3];
    }
}

#endif

/* The factors, 0 or drop->scale, of columns [first, first + DROP_COLS); first is a multiple of DROP_COLS. */
static inline void drop_factors(const struct zt_drop_key *key, uint32_t head, uint32_t row,
                                int64_t first, const struct zt_dropout *drop, float *restrict out)
{
    const uint32_t threshold = drop->threshold;
    const float scale = drop->scale;
    uint32_t word[4][DROP_LANES];
    drop_words(key, head, row, (uint32_t)(first / ZT_DROP_GROUP * ZT_DROP_BLOCKS), word);
    for (int group = 0; group < 2; group++)
        for (int w = 0; w < 4; w++) {
            const uint32_t *n = word[w] + group * ZT_DROP_BLOCKS;
            float *to = out + group * ZT_DROP_GROUP + w * 2 * ZT_DROP_BLOCKS;
#pragma omp simd
            for (int j = 0; j < ZT_DROP_BLOCKS; j++) {
                to[j] = (n[j] & 0xffffu) < threshold ? 0 : scale;
                to[ZT_DROP_BLOCKS + j] = n[j] >> 16 < threshold ? 0 : scale;
            }
        }
}

#endif
