#include "plan/emit.h"

/*
 * UPDATE of every unit at the end of a step: on the device, or with optimizer offload on the host; and the
 * ways between where state lives and where UPDATE finds it.
 */

/*
 * The elements that UPDATE works on: the whole unit, its own slice, or a buffer of just the slice.
 */
static void state_slice(struct zt_emit *e, enum zt_role role, int mode, int buf)
{
    const struct zt_buf *b = &e->p->bufs[buf];
    const struct zt_unit *unit = &e->p->units[b->unit];
    const bool full_buf = b->used == (size_t)unit->padded_elems * zt_dtype_bytes(b->dtype);
    if (full_buf && !e->rows.state_full)
        zt_emit_own_slice(e, role, mode, buf);
    else
        zt_emit_whole(e, role, mode, buf);
}

static void read_reduced(struct zt_emit *e, int u)
{
    const int buf = e->units[u].final;
    state_slice(e, e->p->bufs[buf].cat == ZT_CAT_GRAD ? ZT_R_GRAD : ZT_R_GSHARD, ZT_READ, buf);
}

void zt_emit_evict_grad(struct zt_emit *e, int u)
{
    struct zt_unit_state *s = &e->units[u];
    const char *name = zt_arena_printf(&e->p->arena, "host grad %s", e->p->units[u].name);
    s->hgrad = zt_emit_unit_buf(e, u, e->rows.state_full,
                                (struct zt_buf){.name = name,
                                                .cat = ZT_CAT_STAGING,
                                                .arena = ZT_AR_HOST,
                                                .dtype = e->p->bufs[s->final].dtype,
                                                .mb = -1});
    struct zt_op *op = zt_emit_op(e, ZT_OP_EVICT, ZT_ST_COPY_OUT, u, -1, -1);
    op->dtype = e->p->bufs[s->hgrad].dtype;
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[s->hgrad].used;
    read_reduced(e, u);
    zt_emit_whole(e, ZT_R_HGRAD, ZT_WRITE, s->hgrad);
}

static void update_operands(struct zt_emit *e, const struct zt_host_copy *s, int param,
                            enum zt_role role)
{
    const int rw = ZT_READ | ZT_WRITE;
    zt_emit_whole(e, ZT_R_M, rw, s->m);
    if (s->v >= 0)
        zt_emit_whole(e, ZT_R_V, rw, s->v);
    if (s->master >= 0)
        zt_emit_whole(e, ZT_R_MASTER, rw, s->master);
    state_slice(e, role, s->master >= 0 ? ZT_WRITE : rw, param);
}

/* Bytes that UPDATE moves: gradient in; states and fp32 weight in and out; 16-bit parameter out. */
static double update_bytes(const struct zt_emit *e, int u)
{
    const struct zt_unit *unit = &e->p->units[u];
    const struct zt_unit_state *s = &e->units[u];
    const double n = (double)(e->rows.state_full ? unit->padded_elems : unit->slice_elems);
    const double grad = (double)zt_dtype_bytes(e->p->bufs[s->final].dtype);
    const double param = s->master >= 0 ? (double)zt_dtype_bytes(e->p->cfg.dtype) : 0;
    const double states = s->v >= 0 ? 2 : 1;
    return n * ((states + 1) * 2 * sizeof(float) + grad + param);
}

/* New values of parameters that do not live here. */
static int new_param(struct zt_emit *e, int u, const char *where, enum zt_arena_id arena)
{
    const char *name = zt_arena_printf(&e->p->arena, "%s param %s", where, e->p->units[u].name);
    return zt_emit_unit_buf(e, u, e->rows.state_full,
                            (struct zt_buf){.name = name,
                                            .cat = ZT_CAT_STAGING,
                                            .arena = arena,
                                            .dtype = e->p->cfg.dtype,
                                            .mb = -1});
}

/* Parameters on the host or the disk, their state on the device: the new slice, and its way back. */
static void evict_param(struct zt_emit *e, int u, int shard)
{
    struct zt_unit_state *s = &e->units[u];
    int to = s->param;
    if (e->param_arena == ZT_AR_DISK)
        to = s->copy.param = new_param(e, u, "host", ZT_AR_HOST);
    struct zt_op *op = zt_emit_op(e, ZT_OP_EVICT, ZT_ST_COPY_OUT, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[shard].used;
    zt_emit_whole(e, ZT_R_SHARD, ZT_READ, shard);
    zt_emit_whole(e, ZT_R_HPARAM, ZT_WRITE, to);
}

static void update_on_device(struct zt_emit *e, int u)
{
    const struct zt_unit_state *s = &e->units[u];
    const int param = e->params_on_host ? new_param(e, u, "new", ZT_AR_DEVICE) : s->param;
    struct zt_op *op = zt_emit_op(e, ZT_OP_UPDATE, ZT_ST_COMPUTE, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_HBM;
    op->cost = update_bytes(e, u);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ, e->step);
    read_reduced(e, u);
    update_operands(e, &s->copy, param, e->rows.params_full ? ZT_R_PARAM : ZT_R_SHARD);
    if (e->params_on_host)
        evict_param(e, u, param);
}

static void update_on_host(struct zt_emit *e, int u)
{
    struct zt_unit_state *s = &e->units[u];
    if (s->copy.param < 0)
        s->copy.param = new_param(e, u, "host", ZT_AR_HOST);
    struct zt_op *op = zt_emit_op(e, ZT_OP_UPDATE, ZT_ST_HOST, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_HOST;
    op->cost = update_bytes(e, u);
    zt_emit_access(e, ZT_R_STEP, ZT_READ, e->result, 0, sizeof(struct zt_step_block));
    zt_emit_whole(e, ZT_R_HGRAD, ZT_READ, s->hgrad);
    update_operands(e, &s->copy, s->copy.param, ZT_R_HPARAM);
    if (e->params_on_host)
        return;

    op = zt_emit_op(e, ZT_OP_FETCH, ZT_ST_COPY_IN, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[s->copy.param].used;
    zt_emit_whole(e, ZT_R_HPARAM, ZT_READ, s->copy.param);
    state_slice(e, e->rows.params_full ? ZT_R_PARAM : ZT_R_SHARD, ZT_WRITE, s->param);
}

static void update(struct zt_emit *e, int u)
{
    const struct zt_unit *unit = &e->p->units[u];
    if (e->update_on_host)
        update_on_host(e, u);
    else
        update_on_device(e, u);
    if (!e->rows.gather_params)
        return;
    struct zt_op *op = zt_emit_op(e, ZT_OP_ALLGATHER, ZT_ST_COMM, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    zt_emit_collective(e, op, unit->shard_group, e->p->cfg.dtype, unit->slice_elems,
                       (double)e->p->bufs[e->units[u].param].used);
    zt_emit_own_slice(e, ZT_R_PARAM, ZT_READ, e->units[u].param);
    zt_emit_other_slices(e, ZT_R_PARAM, ZT_WRITE, e->units[u].param);
}

/*
 * At most cfg.disk_buffers units have copies on the host: what fills one waits for the WRITE listed before
 * it (zt_windowed_waits). So state on a disk is read `ahead` units before its UPDATE, and written `behind`
 * units after it, where the next ones are updated meanwhile. Rows stand in the order in which they begin,
 * UPDATE before the READ that waits for a WRITE: lifetimes are intervals of the list.
 */
void zt_emit_updates(struct zt_emit *e)
{
    enum { DEFAULT_BUFFERS = 3 }; /* one is read, one updated, one written */
    const bool reads = e->state_arena == ZT_AR_DISK;
    const int buffers = e->p->cfg.disk_buffers ? e->p->cfg.disk_buffers : DEFAULT_BUFFERS;
    int *trained = zt_arena_alloc(&e->scratch, (size_t)e->p->n_units, sizeof *trained), n = 0;
    for (int u = 0; u < e->p->n_units; u++)
        if (!e->p->units[u].frozen)
            trained[n++] = u;
    const int ahead = reads ? (buffers + 1) / 2 : n;
    const int behind = reads ? buffers / 2 : e->param_arena == ZT_AR_DISK ? buffers - 1 : 0;
    for (int i = 0; i < ZT_MIN(ahead, n); i++)
        zt_emit_read_state(e, trained[i]);
    for (int i = 0; i < n + behind; i++) {
        if (i < n)
            update(e, trained[i]);
        if (i >= behind)
            zt_emit_write_state(e, trained[i - behind]);
        if (i + ahead < n)
            zt_emit_read_state(e, trained[i + ahead]);
    }
}
