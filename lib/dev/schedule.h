/*
 * schedule.h: the learning rate, and Adam's beta1, of each update.
 *
 * A schedule is a pure function of the number of updates applied so far (`it`, 0 for the first). A
 * skipped step advances nothing. Part of the step block: fixed-width fields only, shared with CUDA.
 *
 * CONSTANT and COSINE are ours (nanoGPT's rule). The others are DeepSpeed's, by its names and
 * parameters, value for value (deepspeed/runtime/lr_schedules.py, version 0.19), which includes how
 * it counts: its scheduler is first stepped after the first update. So a warm-up has its lowest
 * rate in updates 0 *and* 1, and its highest in update warmup_steps + 1 (by the logarithm one
 * earlier); WARMUP_COSINE's update 0 has rate 0, whatever its lowest ratio is.
 */
#ifndef ZT_DEV_SCHEDULE_H
#define ZT_DEV_SCHEDULE_H

#include <math.h>

#include "base/compat.h"

enum zt_schedule_kind {
    ZT_SCHED_CONSTANT,      /* lr, after a linear warm-up if warmup_steps > 0 */
    ZT_SCHED_COSINE,        /* to min_lr in update total_steps */
    ZT_SCHED_WARMUP,        /* WarmupLR: start_lr to lr, then lr */
    ZT_SCHED_WARMUP_DECAY,  /* WarmupDecayLR: then linearly back to start_lr */
    ZT_SCHED_WARMUP_COSINE, /* WarmupCosineLR: then by a cosine to min_lr */
    ZT_SCHED_RANGE_TEST,    /* LRRangeTest: up from start_lr without end */
    ZT_SCHED_ONE_CYCLE,     /* OneCycle: min_lr to lr and back, then decay; beta1 the other way */
};

/* Sizes are in updates. */
struct zt_range_test {
    int64_t size; /* in which the rate rises by start_lr * rate; at least 1 */
    double rate;
    int32_t staircase; /* at whole sizes only */
    int32_t reserved;
};

struct zt_one_cycle {
    int64_t first_size, second_size;     /* of the rising and the falling half; at least 1 */
    int64_t first_stairs, second_stairs; /* 0: continuous */
    int64_t decay_size;                  /* 0: no decay after the cycle */
    double decay_lr_rate, decay_mom_rate;
    double min_mom, max_mom;
    int32_t cycle_momentum;
    int32_t reserved;
};

struct zt_schedule {
    int32_t kind;
    int32_t log_warmup;   /* DeepSpeed's warm-ups: by the logarithm; else linear */
    int64_t warmup_steps; /* at least 2 where it is DeepSpeed's */
    int64_t total_steps;  /* COSINE, WARMUP_DECAY, WARMUP_COSINE */
    double lr;            /* the highest rate */
    double start_lr;      /* where DeepSpeed's warm-ups and RANGE_TEST begin */
    double min_lr;        /* where COSINE, WARMUP_COSINE and ONE_CYCLE end */
    struct zt_range_test range;
    struct zt_one_cycle cycle;
};

/* The largest beta1 that leaves 1 - beta1 something in fp32. */
#define ZT_MOST_BETA1 (1 - 1.0 / (1 << 20))

/* ---- ours ---- */

static inline ZT_HOST_DEVICE double zt_sched_constant(const struct zt_schedule *s, int64_t it)
{
    if (it < s->warmup_steps)
        return s->lr * (double)(it + 1) / (double)(s->warmup_steps + 1);
    return s->lr;
}

static inline ZT_HOST_DEVICE double zt_sched_cosine(const struct zt_schedule *s, int64_t it)
{
    if (it <= s->warmup_steps) /* also when the warm-up is all there is: 0 / 0 below */
        return zt_sched_constant(s, it);
    if (it >= s->total_steps)
        return s->min_lr;
    double done = (double)(it - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
    return s->min_lr + (s->lr - s->min_lr) / 2 * (1 + cos(M_PI * done));
}

/* ---- DeepSpeed's ---- */

/* How far the warm-up is after `done` steps of the scheduler, 0 to 1; done < warmup_steps. */
static inline ZT_HOST_DEVICE double zt_sched_warmed_up(const struct zt_schedule *s, int64_t done)
{
    if (s->log_warmup)
        return log((double)(done + 1)) / log((double)s->warmup_steps);
    return (double)done / (double)s->warmup_steps;
}

/*
 * What is left of the rate above the lowest once the warm-up is over. The scheduler has been stepped
 * `done` times beyond its first; decay begins one update earlier for the cosine.
 */
static inline ZT_HOST_DEVICE double zt_sched_left_over(const struct zt_schedule *s, int64_t done)
{
    double span = (double)ZT_MAX(s->total_steps - s->warmup_steps, (int64_t)1);
    if (s->kind == ZT_SCHED_WARMUP_DECAY)
        return fmax(0.0, (double)(s->total_steps - done) / span);
    if (s->kind == ZT_SCHED_WARMUP_COSINE)
        return (1 + cos(M_PI * fmin(1.0, (double)(done - s->warmup_steps + 1) / span))) / 2;
    return 1;
}

static inline ZT_HOST_DEVICE double zt_sched_warmup(const struct zt_schedule *s, int64_t it)
{
    if (it == 0)
        return s->kind == ZT_SCHED_WARMUP_COSINE ? 0 : s->start_lr;
    int64_t done = it - 1; /* the scheduler's own count, which begins behind the first update */
    if (done < s->warmup_steps)
        return s->start_lr + (s->lr - s->start_lr) * zt_sched_warmed_up(s, done);
    double low = s->kind == ZT_SCHED_WARMUP_COSINE ? s->min_lr : s->start_lr;
    return low + (s->lr - low) * zt_sched_left_over(s, done);
}

static inline ZT_HOST_DEVICE double zt_sched_range_test(const struct zt_schedule *s, int64_t it)
{
    const struct zt_range_test *r = &s->range;
    double rises = (double)it / (double)r->size;
    return s->start_lr * (1 + r->rate * (r->staircase ? floor(rises) : rises));
}

/* 0 at the ends of the cycle, 1 at its top. */
static inline ZT_HOST_DEVICE double zt_sched_height(const struct zt_one_cycle *c, int64_t it)
{
    int64_t at = it % (c->first_size + c->second_size);
    bool rising = at <= c->first_size;
    int64_t done = rising ? at : c->first_size + c->second_size - at;
    int64_t size = rising ? c->first_size : c->second_size;
    int64_t stairs = rising ? c->first_stairs : c->second_stairs;
    if (stairs > 0) /* a quotient of whole numbers rounds up to a stair only if it is one */
        return floor((double)done * (double)stairs / (double)size) / (double)stairs;
    return (double)done / (double)size;
}

/* Intervals of decay behind the cycle; negative inside it. */
static inline ZT_HOST_DEVICE double zt_sched_decayed(const struct zt_one_cycle *c, int64_t it)
{
    int64_t after = it - (c->first_size + c->second_size);
    if (after <= 0)
        return -1;
    return c->decay_size > 0 ? (double)after / (double)c->decay_size : 0;
}

static inline ZT_HOST_DEVICE double zt_sched_one_cycle(const struct zt_schedule *s, int64_t it)
{
    double intervals = zt_sched_decayed(&s->cycle, it);
    if (intervals >= 0)
        return s->min_lr / (1 + s->cycle.decay_lr_rate * intervals);
    return s->min_lr + (s->lr - s->min_lr) * zt_sched_height(&s->cycle, it);
}

/*
 * The rate of update `it`; finite and never negative.
 *
 * CONSTANT and COSINE warm up by lr * (it + 1) / (warmup + 1); COSINE then goes by min + (lr - min)
 * / 2 * (1 + cos(pi * (it - warmup) / (total - warmup))), min_lr from total on (karpathy/nanoGPT,
 * train.py, get_lr). Never 0 in the first step, no jump at the joint.
 */
static inline ZT_HOST_DEVICE double zt_schedule_lr(const struct zt_schedule *s, int64_t it)
{
    switch ((enum zt_schedule_kind)s->kind) {
    case ZT_SCHED_CONSTANT:
        return zt_sched_constant(s, it);
    case ZT_SCHED_COSINE:
        return zt_sched_cosine(s, it);
    case ZT_SCHED_WARMUP:
    case ZT_SCHED_WARMUP_DECAY:
    case ZT_SCHED_WARMUP_COSINE:
        return zt_sched_warmup(s, it);
    case ZT_SCHED_RANGE_TEST:
        return zt_sched_range_test(s, it);
    case ZT_SCHED_ONE_CYCLE:
        break;
    }
    return zt_sched_one_cycle(s, it);
}

/* Does the schedule move beta1? Then its value in update `it`, in [0, 1). */
static inline ZT_HOST_DEVICE bool zt_schedule_moves_beta1(const struct zt_schedule *s)
{
    return s->kind == ZT_SCHED_ONE_CYCLE && s->cycle.cycle_momentum;
}

static inline ZT_HOST_DEVICE double zt_schedule_beta1(const struct zt_schedule *s, int64_t it)
{
    const struct zt_one_cycle *c = &s->cycle;
    if (it == 0) /* DeepSpeed's first update has the lowest, not the highest as update 1 has */
        return c->min_mom;
    double intervals = zt_sched_decayed(c, it);
    double mom = intervals >= 0 ? c->max_mom * (1 + c->decay_mom_rate * intervals)
                                : c->max_mom - (c->max_mom - c->min_mom) * zt_sched_height(c, it);
    return fmin(mom, ZT_MOST_BETA1);
}

/*
 * The update at which ONE_CYCLE's decay_mom_rate would bring beta1 to 1 or beyond, INT64_MAX if
 * never. The recipe is refused if it trains that long; zt_schedule_beta1() stays below 1.
 */
int64_t zt_schedule_beta1_end(const struct zt_schedule *s);

#endif
