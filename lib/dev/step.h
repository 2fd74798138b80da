/*
 * step.h: the values that change from step to step.
 *
 * They live in device memory, are written by ops of the plan and read by kernels; they are never
 * kernel arguments. So a step's rows are the same bytes every time, and all ranks take the same
 * decision from the same numbers. Plain C structs, shared with CUDA: fixed-width fields only.
 *
 *   op      writes                                         reads
 *   COUNT   zt_count: tokens of the batch, all ranks       targets
 *   NORM    zt_step_block: loss, grad_norm, grad_scale,    zt_count, norm partials, loss sums
 *           bad_unit, bad_rank
 *   VOTE    zt_vote, zt_step_block: apply, overflow        zt_step_block
 *   UPDATE  (parameters)                                   zt_step_block
 *   STEP    zt_step_block: step, first_sample, adam_t, lr, zt_step_block, zt_vote
 *           bias, scale
 */
#ifndef ZT_DEV_STEP_H
#define ZT_DEV_STEP_H

#include "dev/loss_scale.h"
#include "dev/schedule.h"

/* What happens when the gradient norm is not finite. */
enum zt_nonfinite_rule { ZT_NONFINITE_ERROR, ZT_NONFINITE_SKIP };

struct zt_step_block {
    int64_t step;             /* 0-based, batches consumed */
    int64_t adam_t;           /* t of AdamW in this step: updates applied so far + 1 */
    int64_t skipped;          /* steps whose update was not applied */
    int64_t tokens;           /* unmasked targets of the global batch of this step */
    double loss;              /* mean over those tokens; 0 when there are none */
    double grad_norm;         /* global L2 norm, unscaled, before clipping */
    double grad_norm_clipped; /* min(grad_norm, max_norm) up to the 1e-6 of the clip rule */
    float grad_scale;         /* what UPDATE multiplies gradients by: clip factor / loss_scale */
    float loss_scale;         /* 1 unless fp16 */
    float lr, beta1, beta2, eps;
    float bias1, bias2; /* 1 / (1 - beta^t) */
    float max_norm;     /* 0: no clipping */
    int32_t apply;      /* 1: UPDATE runs in this step */
    int32_t overflow;   /* 1: a gradient or the loss is not finite, on any rank */
    int32_t bad_unit;   /* first partial, in backward order, that is not; -1: none */
    int32_t bad_rank;   /* the same of ranks with such a loss, by their place in NORM */
    int32_t nonfinite_rule;
    uint64_t seed;
    int64_t first_sample; /* place of the batch's first sequence in the training order */
    int64_t step_samples; /* sequences of a global batch */
    struct zt_loss_scaler scaler;
    struct zt_schedule schedule;
};

/*
 * lr, beta1 where the schedule moves it, bias1 and bias2 from schedule, betas and adam_t. The
 * schedule counts updates, not batches: a skipped step advances neither Adam's t nor the rate. Call
 * it once after filling in a block.
 */
static inline ZT_HOST_DEVICE void zt_step_refresh(struct zt_step_block *sb)
{
    double t = (double)sb->adam_t;
    sb->lr = (float)zt_schedule_lr(&sb->schedule, sb->adam_t - 1);
    if (zt_schedule_moves_beta1(&sb->schedule))
        sb->beta1 = (float)zt_schedule_beta1(&sb->schedule, sb->adam_t - 1);
    sb->bias1 = (float)(1 / (1 - pow((double)sb->beta1, t)));
    sb->bias2 = (float)(1 / (1 - pow((double)sb->beta2, t)));
}

/*
 * What the op STEP does: the next loss scale; step + 1 and first_sample + step_samples, whether
 * applied or not; adam_t + 1 if applied, else skipped + 1; then refresh.
 */
static inline ZT_HOST_DEVICE void zt_step_next(struct zt_step_block *sb)
{
    sb->loss_scale = zt_loss_scale_next(&sb->scaler, sb->loss_scale, sb->step, sb->overflow != 0);
    sb->step++;
    sb->first_sample += sb->step_samples;
    if (sb->apply)
        sb->adam_t++;
    else
        sb->skipped++;
    zt_step_refresh(sb);
}

struct zt_count {
    int64_t tokens;
    float inv_tokens; /* 1 / tokens, 0 when there are none: an all-masked batch changes nothing */
    float reserved;
};

/* Combined over all ranks by MAX; every rank then does the same. */
struct zt_vote {
    int32_t nonfinite;
    int32_t stop;
    int32_t save;   /* a checkpoint after this step */
    int32_t saving; /* enum zt_saving of the rank that is furthest from the end of its part */
};

/* How far a rank is with its part of a checkpoint. */
enum zt_saving { ZT_SAVING_DONE, ZT_SAVING_FAILED, ZT_SAVING_WRITES };

/* What a rank asks for; the host writes it, VOTE sends it. */
struct zt_vote_request {
    int32_t stop;
    int32_t save;
    int32_t saving;
};

/* One norm partial: sum of squares of one rank's slice of one unit. */
struct zt_norm_partial {
    double sum_sq;
};

/*
 * What NORM gathers from each rank: n_units zt_norm_partial, then a loss sum (double) for each of
 * its micro-batches.
 */
static inline size_t zt_norm_record_bytes(int n_units, int n_losses)
{
    return ((size_t)n_units + (size_t)n_losses) * sizeof(double);
}

#endif
