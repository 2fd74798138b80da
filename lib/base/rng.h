/*
 * rng.h: random numbers that depend only on what they are for.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a pure
 * function of a 64-bit key and a 128-bit counter. The key is (seed, purpose), the counter whatever
 * names the number: (tensor, element), (sample, layer, element), (step, position). So no result
 * depends on the number of ranks, on recomputation or on resuming. Nothing here has state.
 */
#ifndef ZT_BASE_RNG_H
#define ZT_BASE_RNG_H

#include "base/compat.h"

enum zt_rng_purpose {
    ZT_RNG_INIT = 1,    /* parameter initialisation: (tensor, element) */
    ZT_RNG_SHUFFLE = 2, /* order of the samples: (epoch, round) */
    ZT_RNG_DROPOUT = 3, /* (site, sample), then as dev/dropout.h says */
    ZT_RNG_SAMPLE = 4,  /* text generation: (step, position) */
};

struct zt_philox_block {
    uint32_t v[4];
};

/* Philox4x32's multipliers, and what its key grows by. */
#define ZT_PHILOX_M0 0xD2511F53u
#define ZT_PHILOX_M1 0xCD9E8D57u
#define ZT_PHILOX_W0 0x9E3779B9u
#define ZT_PHILOX_W1 0xBB67AE85u
enum { ZT_PHILOX_ROUNDS = 10 };

#define ZT_PHILOX_ROUND(a, b, c, d, k0, k1)                                                        \
    do {                                                                                           \
        uint64_t x_ = (uint64_t)ZT_PHILOX_M0 * (a), y_ = (uint64_t)ZT_PHILOX_M1 * (c);             \
        (a) = (uint32_t)(y_ >> 32) ^ (b) ^ (k0);                                                   \
        (b) = (uint32_t)y_;                                                                        \
        (c) = (uint32_t)(x_ >> 32) ^ (d) ^ (k1);                                                   \
        (d) = (uint32_t)x_;                                                                        \
        (k0) += ZT_PHILOX_W0;                                                                      \
        (k1) += ZT_PHILOX_W1;                                                                      \
    } while (0)

/* The function itself; ten rounds in a row, so that compilers make vectors of a loop around it. */
static inline ZT_HOST_DEVICE struct zt_philox_block
zt_philox_words(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    struct zt_philox_block out;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    ZT_PHILOX_ROUND(c0, c1, c2, c3, k0, k1);
    out.v[0] = c0;
    out.v[1] = c1;
    out.v[2] = c2;
    out.v[3] = c3;
    return out;
}

static inline ZT_HOST_DEVICE uint64_t zt_rng_key(uint64_t seed, enum zt_rng_purpose purpose)
{
    return seed ^ ((uint64_t)purpose * 0x9E3779B97F4A7C15u);
}

static inline ZT_HOST_DEVICE struct zt_philox_block
zt_philox(uint64_t seed, enum zt_rng_purpose purpose, uint64_t hi, uint64_t lo)
{
    return zt_philox_words(zt_rng_key(seed, purpose), (uint32_t)lo, (uint32_t)(lo >> 32),
                           (uint32_t)hi, (uint32_t)(hi >> 32));
}

/* Uniform in (0, 1), from one 32-bit word; never 0 or 1. */
static inline double zt_uniform(uint32_t word)
{
    return ((double)word + 0.5) * (1.0 / 4294967296.0);
}

/*
 * Standard normal numbers for elements [begin, begin + n) of tensor `tensor`: element i is number i % 4
 * of the block at (hi tensor, lo i / 4), whatever the range asked for. The same bits on every CPU
 * (isa_normal.c, by Box and Muller's transform).
 */
void zt_rng_normal(uint64_t seed, enum zt_rng_purpose purpose, uint64_t tensor, int64_t begin,
                   int64_t n, float *out);

/*
 * Keyed permutation of [0, n): where `index` of epoch `epoch` goes. A bijection for every key (a
 * Feistel network over the next power of four, walked until it falls inside).
 */
int64_t zt_permute(uint64_t seed, uint64_t epoch, int64_t n, int64_t index);

#endif
