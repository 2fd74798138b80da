#include "optim/groups.h"

int zt_update_ranges(const struct zt_plan *p, int unit, int64_t begin, int64_t end,
                     double weight_decay, struct zt_arena *a, const struct zt_update_range **out)
{
    ZT_ASSERT(unit >= 0 && unit < p->n_units);
    const struct zt_unit *u = &p->units[unit];
    ZT_ASSERT(begin >= 0 && begin <= end && end <= u->padded_elems);
    struct zt_update_range *ranges = zt_arena_alloc(a, (size_t)u->n_params, sizeof *ranges);
    int n = 0;
    for (int i = 0; i < u->n_params; i++) {
        const struct zt_param_spec *spec = &p->model->params[u->first_param + i];
        int64_t lo = ZT_MAX(u->param_off[i], begin);
        int64_t hi = ZT_MIN(u->param_off[i] + spec->n_elems, end);
        if (lo >= hi || !spec->trainable)
            continue;
        struct zt_update_range r = {lo - begin, hi - begin,
                                    spec->decay ? (float)weight_decay : 0.0f, 1.0f};
        struct zt_update_range *last = n ? &ranges[n - 1] : NULL;
        if (last && last->end == r.begin && last->weight_decay == r.weight_decay)
            last->end = r.end;
        else
            ranges[n++] = r;
    }
    *out = ranges;
    return n;
}
