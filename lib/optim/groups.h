/*
 * groups.h: which optimizer settings hold for which parameter, and for which elements of a unit's
 * slice.
 *
 * Settings are assigned once, to the model's specs, before it is planned. Without a group, weight
 * decay applies to the tensors whose spec says so (2 or more dimensions). Padding between and behind
 * tensors belongs to no range, so it stays zero.
 */
#ifndef ZT_OPTIM_GROUPS_H
#define ZT_OPTIM_GROUPS_H

#include "plan/plan.h"

/* What holds for the parameters that `match` fits and no group before it does. */
struct zt_group {
    /* Glob on Hugging Face's names, with or without "transformer." or "model.". */
    const char *match;
    double weight_decay; /* NAN: as without a group */
    double lr_scale;
    bool frozen; /* not trained, and not in the gradient norm */
};

/*
 * ZT_EINPUT: a group fits no parameter, or only such as an earlier one took; or nothing is left to
 * train.
 */
int zt_groups_assign(struct zt_model *m, double weight_decay, const struct zt_group *groups, int n,
                     struct zt_err *err) ZT_MUST_CHECK;

/*
 * Ranges of elements [begin, end) of the unit, relative to `begin`, in rising order, for struct
 * zt_update.ranges. They are in the arena. Returns their number; 0 (with *out not NULL) when the
 * slice is all padding or frozen. Touching ranges of the same setting are one.
 */
int zt_update_ranges(const struct zt_plan *p, int unit, int64_t begin, int64_t end,
                     struct zt_arena *a, const struct zt_update_range **out);

/*
 * Parts of elements [begin, end) of the unit that count in the gradient norm, relative to `begin`:
 * all of it, padding too, but for frozen tensors. Returns their number; 0 when there are none.
 */
struct zt_span {
    int64_t begin, end;
};

int zt_norm_spans(const struct zt_plan *p, int unit, int64_t begin, int64_t end, struct zt_arena *a,
                  const struct zt_span **out);

#endif
