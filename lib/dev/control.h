/*
 * control.h: the small decisions of a step, one definition for every device: the CPU's control.c and
 * cuda/control.cu call these from one thread. Doubles, in a fixed order and not contracted, so that
 * every device decides alike from the same numbers.
 */
#ifndef ZT_DEV_CONTROL_H
#define ZT_DEV_CONTROL_H

#include <math.h>

#include "dev/dev.h"

static inline ZT_HOST_DEVICE void zt_control_count_finish(const struct zt_count_finish *a)
{
    int64_t tokens = a->count->tokens;
    a->count->inv_tokens = tokens ? (float)(1.0 / (double)tokens) : 0.0f;
    a->count->reserved = 0;
}

/* Backward goes from the last unit to the first. `stride`: doubles of a record; partials are one each. */
static inline ZT_HOST_DEVICE int zt_control_bad_unit(const struct zt_norm_finish *a,
                                                     const double *records, size_t stride)
{
    for (int u = a->n_units - 1; u >= 0; u--)
        for (int r = 0; r < a->n_ranks; r++)
            if (!isfinite(records[(size_t)r * stride + (size_t)u]))
                return u;
    return -1;
}

static inline ZT_HOST_DEVICE int zt_control_bad_rank(const struct zt_norm_finish *a,
                                                     const double *records, size_t stride)
{
    for (int r = 0; r < a->n_ranks; r++)
        for (int i = 0; i < a->n_losses; i++)
            if (!isfinite(records[(size_t)r * stride + (size_t)a->n_units + (size_t)i]))
                return r;
    return -1;
}

/* `records` is a->records, or a copy of it in faster memory. */
static inline ZT_HOST_DEVICE void zt_control_norm_finish(const struct zt_norm_finish *a,
                                                         const double *records)
{
    struct zt_step_block *sb = a->sb;
    size_t stride = a->record_bytes / sizeof(double);
    double sum_sq = 0, loss = 0;
    for (int u = 0; u < a->n_units; u++)
        for (int r = 0; r < a->n_ranks; r++)
            sum_sq += records[(size_t)r * stride + (size_t)u];
    for (int r = 0; r < a->n_ranks; r++)
        for (int i = 0; i < a->n_losses; i++)
            loss += records[(size_t)r * stride + (size_t)a->n_units + (size_t)i];

    int64_t tokens = a->count->tokens;
    double norm = sqrt(sum_sq) / (double)sb->loss_scale, clip = 1;
    if (sb->max_norm > 0)
        clip = ZT_MIN(1.0, (double)sb->max_norm / (norm + 1e-6));
    bool finite = isfinite(norm);
    sb->loss = tokens ? loss / (double)tokens : 0;
    sb->tokens = tokens;
    sb->grad_norm = norm;
    sb->grad_norm_clipped = finite ? norm * clip : norm;
    sb->bad_unit = zt_control_bad_unit(a, records, stride);
    sb->bad_rank = zt_control_bad_rank(a, records, stride);
    sb->grad_scale = finite ? (float)(clip / (double)sb->loss_scale) : 0.0f;
}

static inline ZT_HOST_DEVICE void zt_control_vote_begin(const struct zt_vote_begin *a)
{
    a->vote->nonfinite = !isfinite(a->sb->grad_norm) || !isfinite(a->sb->loss);
    a->vote->stop = a->request->stop;
    a->vote->save = a->request->save;
    a->vote->saving = a->request->saving;
}

static inline ZT_HOST_DEVICE void zt_control_vote_finish(const struct zt_vote_finish *a)
{
    a->sb->overflow = a->vote->nonfinite;
    a->sb->apply = !a->vote->nonfinite && a->sb->tokens > 0;
}

#endif
