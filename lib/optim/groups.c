#include "optim/groups.h"

#include <fnmatch.h>
#include <math.h>

/* Hugging Face's prefix is optional in a pattern; the head has none. */
static bool fits(const struct zt_model *m, const struct zt_group *g,
                 const struct zt_param_spec *spec)
{
    char full[256];
    const char *prefix = m->cfg.type == ZT_MODEL_GPT2 ? "transformer." : "model.";
    if (fnmatch(g->match, spec->name, 0) == 0)
        return true;
    if (strncmp(spec->name, "lm_head.", 8) == 0)
        return false;
    snprintf(full, sizeof full, "%s%s", prefix, spec->name);
    return fnmatch(g->match, full, 0) == 0;
}

static void assign(struct zt_param_spec *spec, const struct zt_group *g, double weight_decay)
{
    spec->weight_decay = spec->decay ? (float)weight_decay : 0.0f;
    spec->lr_scale = 1;
    spec->trainable = true;
    if (!g)
        return;
    if (!isnan(g->weight_decay))
        spec->weight_decay = (float)g->weight_decay;
    spec->lr_scale = (float)g->lr_scale;
    spec->trainable = !g->frozen;
}

int zt_groups_assign(struct zt_model *m, double weight_decay, const struct zt_group *groups, int n,
                     struct zt_err *err)
{
    int trainable = 0;
    int *fitted = zt_xcalloc((size_t)n + 1, sizeof *fitted); /* parameters that a group fits ... */
    int *taken = zt_xcalloc((size_t)n + 1, sizeof *taken);   /* ... and those that are its own */
    for (int i = 0; i < m->n_params; i++) {
        const struct zt_group *mine = NULL;
        for (int k = n - 1; k >= 0; k--) {
            if (fits(m, &groups[k], &m->params[i])) {
                fitted[k]++;
                mine = &groups[k];
            }
        }
        if (mine)
            taken[mine - groups]++;
        assign(&m->params[i], mine, weight_decay);
        trainable += m->params[i].trainable;
    }
    int rc = 0;
    for (int k = 0; k < n && !rc; k++) {
        if (!fitted[k])
            rc = zt_err_set(err, ZT_EINPUT,
                            "optimizer.param_groups: \"%s\" fits no parameter of the model; they "
                            "are called %s to %s",
                            groups[k].match, m->params[0].name, m->params[m->n_params - 1].name);
        else if (!taken[k])
            rc = zt_err_set(err, ZT_EINPUT,
                            "optimizer.param_groups: all that \"%s\" fits belongs to groups before "
                            "it: the first that fits holds",
                            groups[k].match);
    }
    if (!rc && !trainable)
        rc = zt_err_set(err, ZT_EINPUT,
                        "optimizer.param_groups: every parameter is frozen; nothing is left to "
                        "train");
    free(fitted);
    free(taken);
    return rc;
}

static bool same_setting(const struct zt_update_range *a, const struct zt_update_range *b)
{
    return a->weight_decay == b->weight_decay && a->lr_scale == b->lr_scale;
}

int zt_update_ranges(const struct zt_plan *p, int unit, int64_t begin, int64_t end,
                     struct zt_arena *a, const struct zt_update_range **out)
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
        struct zt_update_range r = {lo - begin, hi - begin, spec->weight_decay, spec->lr_scale};
        struct zt_update_range *last = n ? &ranges[n - 1] : NULL;
        if (last && last->end == r.begin && same_setting(last, &r))
            last->end = r.end;
        else
            ranges[n++] = r;
    }
    *out = ranges;
    return n;
}

int zt_norm_spans(const struct zt_plan *p, int unit, int64_t begin, int64_t end, struct zt_arena *a,
                  const struct zt_span **out)
{
    const struct zt_unit *u = &p->units[unit];
    struct zt_span *spans = zt_arena_alloc(a, (size_t)u->n_params + 1, sizeof *spans);
    int n = 0;
    int64_t from = begin; /* of the span under way */
    for (int i = 0; i < u->n_params; i++) {
        const struct zt_param_spec *spec = &p->model->params[u->first_param + i];
        int64_t lo = ZT_MAX(u->param_off[i], begin);
        int64_t hi = ZT_MIN(u->param_off[i] + spec->n_elems, end);
        if (lo >= hi || spec->trainable)
            continue;
        if (from < lo)
            spans[n++] = (struct zt_span){from - begin, lo - begin};
        from = hi;
    }
    if (from < end)
        spans[n++] = (struct zt_span){from - begin, end - begin};
    *out = spans;
    return n;
}
