/*
 * times.h: what recorded times of ops say. Internal to lib/train.
 */
#ifndef ZT_TRAIN_TIMES_H
#define ZT_TRAIN_TIMES_H

#include "metrics/metrics.h"
#include "train/engine.h"

/*
 * Where the time of one run of TRAIN went, from `begin_ns` to the end of its last op on the compute
 * stream, which is returned: so that consecutive runs take over from each other without a gap.
 * `before`: times of the run before it, whose tail may reach into this one; NULL: there is none, and
 * `begin_ns` is where the run's first op begins.
 */
int64_t zt_times_breakdown(const struct zt_program *prog, const struct zt_op_time *before,
                           const struct zt_op_time *times, int64_t begin_ns,
                           struct zt_breakdown *out);

/* Sum of several steps, and their mean. */
void zt_breakdown_add(struct zt_breakdown *sum, const struct zt_breakdown *b);
void zt_breakdown_scale(struct zt_breakdown *b, double factor);

/* What a profile is of. */
struct zt_profile_of {
    const struct zt_plan *plan;
    const struct zt_op_time *times; /* of a TRAIN run */
    int64_t step;                   /* 1-based */
    double peak_flops;              /* of this rank; 0: not known */
    enum zt_dtype peak_dtype;       /* of the matrix products that it was measured with */
    bool detailed;                  /* by segment too */
};

/*
 * For a person: parameters, FLOPs, time and achieved rate of a step, by kind of op and by segment. FLOPs
 * are those of the plan's rows.
 */
void zt_times_profile(const struct zt_profile_of *of, struct zt_str *out);

#endif
