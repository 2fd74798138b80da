/*
 * groups.h: which optimizer settings hold for which elements of a unit's slice.
 *
 * Weight decay applies to the tensors whose spec says so (2 or more dimensions); padding between
 * and behind tensors belongs to no range, so it stays zero.
 */
#ifndef ZT_OPTIM_GROUPS_H
#define ZT_OPTIM_GROUPS_H

#include "plan/plan.h"

/*
 * Ranges of elements [begin, end) of the unit, relative to `begin`, in rising order, for struct
 * zt_update.ranges. They are in the arena. Returns their number; 0 (with *out not NULL) when the
 * slice is all padding or frozen. Touching ranges of the same setting are one.
 */
int zt_update_ranges(const struct zt_plan *p, int unit, int64_t begin, int64_t end,
                     double weight_decay, struct zt_arena *a, const struct zt_update_range **out);

#endif
