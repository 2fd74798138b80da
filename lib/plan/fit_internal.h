/* fit_internal.h: the table of what may be given up; inside lib/plan only. */
#ifndef ZT_PLAN_FIT_INTERNAL_H
#define ZT_PLAN_FIT_INTERNAL_H

#include "plan/fit.h"

struct zt_fit_option {
    enum zt_fit_dim dim;
    int value;          /* of the configuration */
    int every;          /* ZT_RECOMPUTE_EVERY: blocks in a run */
    const char *name;   /* in tables */
    const char *set[2]; /* the recipe's keys and values; the second may be NULL */
};

/* Rows of a dimension stand together, the cheapest first; the micro-batch has none. */
extern const struct zt_fit_option zt_fit_options[];
extern const int zt_n_fit_options;

/* The row that the configuration stands on, or NULL. */
const struct zt_fit_option *zt_fit_option_of(const struct zt_plan_config *cfg, enum zt_fit_dim dim);

/* Plan the choice's configuration: fills in its sizes and time. */
int zt_fit_size(const struct zt_model *model, const struct zt_fit_limits *limits,
                struct zt_fit_choice *c, struct zt_err *err) ZT_MUST_CHECK;

#endif
