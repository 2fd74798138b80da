/*
 * blend.h: which of several sources each position of the data order takes its sample from.
 *
 * The order repeats with a period in which every source has its exact number of turns; within it, a
 * source has had its share of any first i turns to within less than one (Megatron-LM's rule, the
 * largest deficit next, may be off by more with many sources). A turn of a source becomes due as
 * soon as its share passes what it has had, and must come before its share passes the next whole
 * number; of those that are due, the most urgent is next (Steiner and Yeomans, "Level schedules for
 * mixed-model, just-in-time processes", 1993; Baruah et al., "Proportionate progress", 1996).
 */
#ifndef ZT_DATA_BLEND_H
#define ZT_DATA_BLEND_H

#include "base/err.h"

/* Longest period: weights with up to four decimals are met exactly, others to 1/65536 of all. */
enum { ZT_BLEND_PERIOD = 65536 };

struct zt_blend_turn {
    uint16_t source;
    uint16_t nth; /* of this source in the period */
};

struct zt_blend {
    int n_sources;
    int32_t period;
    int32_t *counts;             /* (n_sources) turns in a period */
    struct zt_blend_turn *turns; /* (period) */
};

/* Weights in any unit, each above 0. ZT_EINPUT: one is too small beside the others. */
int zt_blend_init(struct zt_blend *b, const double *weights, int n_sources,
                  struct zt_err *err) ZT_MUST_CHECK;
void zt_blend_release(struct zt_blend *b);

/* Position `pos` >= 0 takes sample *source_pos of *source. */
void zt_blend_at(const struct zt_blend *b, int64_t pos, int *source, int64_t *source_pos);

#endif
