#include "plan/emit.h"

#include "base/size.h"

/*
 * The prefetch window of stage 3: bytes gathered and not yet released stay within a budget. A copy
 * is kept until its unit is needed again when everything gathered in between fits beside it; copies
 * are issued in the order of first use, as early as the budget allows. One step that needs more
 * than the budget by itself is gathered right before it.
 */

struct window {
    struct zt_emit *e;
    struct zt_step *steps;
    size_t budget;
    int *seen, stamp; /* (n_units) last stamp: distinct units of a stretch of steps */
};

static size_t gather_bytes(const struct zt_emit *e, int u)
{
    return (size_t)e->p->units[u].padded_elems * zt_dtype_bytes(e->p->cfg.dtype);
}

static size_t window_budget(const struct zt_emit *e)
{
    enum { DEFAULT_BYTES = 200 * 1000 * 1000 };
    size_t top[3] = {0, 0, 0};
    if (e->p->cfg.prefetch_bytes > 0)
        return e->p->cfg.prefetch_bytes;
    for (int u = 0; u < e->p->n_units; u++) {
        size_t b = gather_bytes(e, u);
        for (int i = 0; i < 3; i++) {
            if (b > top[i]) {
                const size_t t = top[i];
                top[i] = b;
                b = t;
            }
        }
    }
    return ZT_MAX(top[0] + top[1] + top[2], (size_t)DEFAULT_BYTES);
}

/* Units whose weights the step reads. */
static struct zt_seg_units step_units(const struct zt_emit *e, const struct zt_step *s)
{
    const bool needed =
        s->pass != ZT_PASS_BACKWARD || e->p->model->segments[s->segment].weights_in_backward;
    return needed ? e->seg[s->segment] : (struct zt_seg_units){0, NULL};
}

/* Does unit u, last used at step i, fit beside all that steps i+1 .. j-1 gather? */
static bool fits_between(struct window *w, int u, int i, int j)
{
    size_t bytes = gather_bytes(w->e, u);
    w->seen[u] = ++w->stamp;
    for (int t = i + 1; t < j && bytes <= w->budget; t++) {
        const struct zt_seg_units units = step_units(w->e, &w->steps[t]);
        for (int k = 0; k < units.n; k++) {
            if (w->seen[units.units[k]] != w->stamp)
                bytes += gather_bytes(w->e, units.units[k]);
            w->seen[units.units[k]] = w->stamp;
        }
    }
    return bytes <= w->budget || j == i + 1;
}

/* One copy per unit and stretch of use; fills steps[].uses. */
static void choose_copies(struct window *w, int n_steps, struct zt_gathers *out)
{
    struct zt_emit *e = w->e;
    int *current = zt_arena_alloc(&e->scratch, (size_t)e->p->n_units, sizeof *current); /* + 1 */
    size_t cap = 0;
    for (int j = 0; j < n_steps; j++) {
        const struct zt_seg_units units = step_units(e, &w->steps[j]);
        int *uses = zt_arena_alloc(&e->scratch, (size_t)units.n, sizeof *uses);
        for (int k = 0; k < units.n; k++) {
            const int u = units.units[k];
            if (!current[u] || !fits_between(w, u, out->gathers[current[u] - 1].last, j)) {
                ZT_GROW(out->gathers, out->n + 1, cap);
                out->gathers[out->n] = (struct zt_gather){.unit = u, .first = j, .buf = -1};
                current[u] = ++out->n;
            }
            uses[k] = current[u] - 1;
            out->gathers[uses[k]].last = j;
        }
        w->steps[j].n_uses = units.n;
        w->steps[j].uses = uses;
    }
}

/* The earliest step at which everything then alive is within the budget. */
static void choose_issue(struct window *w, int n_steps, struct zt_gathers *out)
{
    size_t *expire = zt_arena_alloc(&w->e->scratch, (size_t)n_steps, sizeof *expire);
    size_t alive = 0;
    int at = 0;
    for (int i = 0; i < out->n; i++) {
        struct zt_gather *g = &out->gathers[i];
        alive += gather_bytes(w->e, g->unit);
        expire[g->last] += gather_bytes(w->e, g->unit);
        while (at < g->first && alive > w->budget)
            alive -= expire[at++];
        g->issue = at;
    }
}

void zt_gathers_plan(struct zt_emit *e, struct zt_step *steps, int n_steps, struct zt_gathers *out)
{
    *out = (struct zt_gathers){0};
    if (e->rows.params_full)
        return;
    struct window w = {.e = e, .steps = steps, .budget = window_budget(e)};
    w.seen = zt_arena_alloc(&e->scratch, (size_t)e->p->n_units, sizeof *w.seen);
    choose_copies(&w, n_steps, out);
    choose_issue(&w, n_steps, out);
}

void zt_gathers_release(struct zt_gathers *g)
{
    free(g->gathers);
    *g = (struct zt_gathers){0};
}

/* Bytes of this rank's slice from the host to `to`; from the disk by way of the host. */
static void emit_fetch(struct zt_emit *e, int u, int mb, enum zt_role role, int to)
{
    int from = e->units[u].param;
    if (e->param_arena == ZT_AR_DISK)
        from = zt_emit_read_param(
            e, u, zt_arena_printf(&e->p->arena, "host %s", e->p->bufs[to].name), mb);
    struct zt_op *op = zt_emit_op(e, ZT_OP_FETCH, ZT_ST_COPY_IN, u, -1, mb);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[to].used;
    zt_emit_whole(e, ZT_R_HPARAM, ZT_READ, from);
    zt_emit_whole(e, role, ZT_WRITE, to);
}

/* Parameters on the host: the slice as peers read it, fetched right before it is gathered. */
static int emit_shard(struct zt_emit *e, int u, const char *gather, int mb)
{
    const int buf = zt_emit_unit_buf(
        e, u, false,
        (struct zt_buf){.name = zt_arena_printf(&e->p->arena, "shard of %s", gather),
                        .cat = ZT_CAT_GATHER,
                        .arena = e->peer_arena,
                        .dtype = e->p->cfg.dtype,
                        .mb = mb});
    emit_fetch(e, u, mb, ZT_R_SHARD, buf);
    return buf;
}

static void emit_gather(struct zt_emit *e, const struct zt_step *s, struct zt_gather *g)
{
    const struct zt_unit *unit = &e->p->units[g->unit];
    const enum zt_dtype dtype = e->p->cfg.dtype;
    const char *name = zt_arena_printf(&e->p->arena, "gather %s mb%d%s", unit->name, s->mb,
                                       s->pass == ZT_PASS_FORWARD ? "" : " backward");
    g->buf = zt_emit_unit_buf(e, g->unit, true,
                              (struct zt_buf){.name = name,
                                              .cat = ZT_CAT_GATHER,
                                              .arena = ZT_AR_DEVICE,
                                              .dtype = dtype,
                                              .mb = s->mb});
    if (e->params_on_host && e->p->n_shards == 1) {
        emit_fetch(e, g->unit, s->mb, ZT_R_PARAM, g->buf);
        return;
    }
    const int shard =
        e->params_on_host ? emit_shard(e, g->unit, name, s->mb) : e->units[g->unit].param;
    struct zt_op *op = zt_emit_op(e, ZT_OP_GATHER, ZT_ST_COMM, g->unit, -1, s->mb);
    zt_emit_collective(e, op, unit->shard_group, dtype, unit->slice_elems,
                       (double)gather_bytes(e, g->unit));
    zt_emit_whole(e, ZT_R_SHARD, ZT_READ, shard);
    zt_emit_whole(e, ZT_R_PARAM, ZT_WRITE, g->buf);
}

void zt_emit_gathers(struct zt_emit *e, const struct zt_step *steps, int step, struct zt_gathers *g)
{
    for (; g->next < g->n && g->gathers[g->next].issue <= step; g->next++)
        emit_gather(e, &steps[g->gathers[g->next].first], &g->gathers[g->next]);
}

void zt_emit_releases(struct zt_emit *e, const struct zt_step *s, int step,
                      const struct zt_gathers *g)
{
    for (int k = 0; k < s->n_uses; k++) {
        const struct zt_gather *c = &g->gathers[s->uses[k]];
        if (c->last != step)
            continue;
        zt_emit_op(e, ZT_OP_RELEASE, ZT_ST_COMPUTE, c->unit, -1, s->mb);
        zt_emit_whole(e, ZT_R_PARAM, ZT_READ, c->buf);
    }
}
