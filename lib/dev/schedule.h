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

/*
 * The rate of update `it`; finite and never negative.
 *
 * CONSTANT and COSINE warm up by lr * (it + 1) / (warmup + 1); COSINE then goes by min + (lr - min)
 * / 2 * (1 + cos(pi * (it - warmup) / (total - warmup))), min_lr from total on (karpathy/nanoGPT,
 * train.py, get_lr). Never 0 in the first step, no jump at the joint.
 */
double zt_schedule_lr(const struct zt_schedule *s, int64_t it);

/* Does the schedule move beta1? Then its value in update `it`, in [0, 1). */
bool zt_schedule_moves_beta1(const struct zt_schedule *s);
double zt_schedule_beta1(const struct zt_schedule *s, int64_t it);

/*
 * The update at which ONE_CYCLE's decay_mom_rate would bring beta1 to 1 or beyond, INT64_MAX if
 * never. The recipe is refused if it trains that long; zt_schedule_beta1() stays below 1.
 */
int64_t zt_schedule_beta1_end(const struct zt_schedule *s);

#endif
