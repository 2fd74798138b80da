/*
 * dropout.h: which elements dropout (Srivastava et al. 2014) zeroes. The only definition in the
 * project: CPU and CUDA include it.
 *
 * A mask is a pure function of (seed, sample, site, head, row, column), so none is ever stored:
 * backward and recomputation make it again, and the number of ranks, the cut into micro-batches,
 * threads and restarts change nothing.
 *   sample  place of the sequence in the training order: 0 is the run's first
 *   site    which of the model's dropouts
 *   head    in attention the query head, elsewhere 0
 *   row     in attention the query's position in the sequence, elsewhere the token's
 *   column  in attention the key's position, elsewhere the channel
 *
 * Layout, exactly:
 *   1. zt_philox(seed, ZT_RNG_DROPOUT, hi = site, lo = sample) = {k0, k1, tweak, unused} names a mask.
 *   2. Columns come in groups of 64, a group in 8 blocks. Block j of group g is Philox with the key
 *      k1:k0 of the counter {8 g + j, row, head, tweak}, first word first. Its four words are eight
 *      16-bit numbers, the low half of each word first; number m is that of column 64 g + 8 m + j.
 *   3. An element is dropped where its number is below `threshold`; others are multiplied by `scale`.
 * So lanes of a SIMD unit that do one block each make runs of neighbouring columns, and so does a thread
 * of a tensor-core tile, which holds columns j and j + 1 of every eight.
 */
#ifndef ZT_DEV_DROPOUT_H
#define ZT_DEV_DROPOUT_H

#include "base/rng.h"
#include "dev/step.h"

enum { ZT_DROP_BITS = 16, ZT_DROP_GROUP = 64, ZT_DROP_BLOCKS = 8 };

/* One dropout of one micro-batch, as kernels get it. threshold 0: none, the rest is not read. */
struct zt_dropout {
    uint32_t threshold; /* p in units of 2^-16 */
    float scale;        /* 1 / (1 - p), of the p that threshold stands for */
    uint32_t site;
    int64_t first;                  /* the micro-batch's first sequence, from the step's first */
    const struct zt_step_block *sb; /* seed, first_sample */
};

/* p in [0, 1) to the nearest 2^-16; any p above 0 drops something, none drops all. */
static inline void zt_dropout_set_p(struct zt_dropout *d, double p)
{
    uint32_t t = (uint32_t)(p * (1 << ZT_DROP_BITS) + 0.5);
    const uint32_t most = (1u << ZT_DROP_BITS) - 1;
    d->threshold = p > 0 && t == 0 ? 1u : ZT_MIN(t, most);
    d->scale = (float)(1 << ZT_DROP_BITS) / (float)((1u << ZT_DROP_BITS) - d->threshold);
}

/* What names the mask of one sequence. */
struct zt_drop_key {
    uint64_t key;
    uint32_t tweak;
};

/* Of sequence `index` of the micro-batch. */
static inline ZT_HOST_DEVICE struct zt_drop_key zt_drop_key(const struct zt_dropout *d,
                                                            int64_t index)
{
    struct zt_philox_block b = zt_philox(d->sb->seed, ZT_RNG_DROPOUT, d->site,
                                         (uint64_t)(d->sb->first_sample + d->first + index));
    struct zt_drop_key k;
    k.key = (uint64_t)b.v[1] << 32 | b.v[0];
    k.tweak = b.v[2];
    return k;
}

/* Block `block` = 8 g + j: the numbers of columns 64 g + 8 m + j, two to a word. */
static inline ZT_HOST_DEVICE struct zt_philox_block
zt_drop_block(const struct zt_drop_key *k, uint32_t head, uint32_t row, uint32_t block)
{
    return zt_philox_words(k->key, block, row, head, k->tweak);
}

/* Number m, 0 to 7, of a block. */
static inline ZT_HOST_DEVICE uint32_t zt_drop_number(const struct zt_philox_block *b, int m)
{
    return b->v[m / 2] >> (m % 2 * 16) & 0xffffu;
}

#endif
