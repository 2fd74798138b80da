/*
 * isa_dropout.h: dropout masks (dev/dropout.h) of a row, two groups of columns at a time: sixteen
 * blocks of Philox, a lane each.
 */
#ifndef ZT_DEV_CPU_ISA_DROPOUT_H
#define ZT_DEV_CPU_ISA_DROPOUT_H

#include "base/philox16.h"
#include "dev/cpu/isa.h"

enum { DROP_COLS = 2 * ZT_DROP_GROUP };
_Static_assert((int)ZT_PHILOX_LANES == 2 * (int)ZT_DROP_BLOCKS, "two groups of columns");

/* The factors, 0 or drop->scale, of columns [first, first + DROP_COLS); first is a multiple of DROP_COLS. */
static inline void drop_factors(const struct zt_drop_key *key, uint32_t head, uint32_t row,
                                int64_t first, const struct zt_dropout *drop, float *restrict out)
{
    const uint32_t threshold = drop->threshold;
    const float scale = drop->scale;
    uint32_t word[4][ZT_PHILOX_LANES];
    zt_philox16(key->key, (uint32_t)(first / ZT_DROP_GROUP * ZT_DROP_BLOCKS), row, head, key->tweak,
                word);
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
