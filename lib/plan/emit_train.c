#include "plan/emit.h"

/*
 * The train step:
 *
 *     per micro-batch: forward, backward, REDUCE of each unit after its last backward use
 *     boundary:        NORM, VOTE, RESULT, the next batch, UPDATE of every unit, STEP
 *
 * The next batch is loaded and counted before the UPDATEs, or its copies would queue behind all of
 * their fetches. UPDATEs go in forward order, so that the next step can start behind the first.
 */

/* The type-converted copy of a gradient that REDUCE sends. */
static void emit_cast(struct zt_emit *e, int u, int mb)
{
    struct zt_unit_state *s = &e->units[u];
    const char *name = zt_arena_printf(&e->p->arena, "cast %s mb%d", e->p->units[u].name, mb);
    s->cast = zt_emit_unit_buf(e, u, true,
                               (struct zt_buf){.name = name,
                                               .cat = ZT_CAT_REDUCE,
                                               .arena = e->peer_arena,
                                               .dtype = s->types.travel,
                                               .mb = mb});
    struct zt_op *op = zt_emit_op(e, ZT_OP_CAST, ZT_ST_COMPUTE, u, -1, mb);
    op->dtype = s->types.travel;
    op->cost_kind = ZT_COST_HBM;
    op->cost = (double)(e->p->bufs[s->grad].used + e->p->bufs[s->cast].used);
    zt_emit_whole(e, ZT_R_GRAD, ZT_READ, s->grad);
    zt_emit_whole(e, ZT_R_CAST, ZT_WRITE, s->cast);
}

/* Where the reduced slice is kept when it does not stay in the full gradient. */
static void make_gshard(struct zt_emit *e, int u)
{
    struct zt_unit_state *s = &e->units[u];
    const char *name = zt_arena_printf(&e->p->arena, "gshard %s", e->p->units[u].name);
    s->reduced = zt_emit_unit_buf(
        e, u, false,
        (struct zt_buf){.name = name,
                        .cat = ZT_CAT_GRAD_SHARD,
                        .arena = e->rows.gather_grads ? e->peer_arena : ZT_AR_DEVICE,
                        .dtype = s->types.reduced,
                        .mb = -1});
}

static void reduce_operands(struct zt_emit *e, int u, int mb)
{
    struct zt_unit_state *s = &e->units[u];
    if (e->p->n_shards == 1) {
        zt_emit_whole(e, ZT_R_GRAD, ZT_READ, s->grad);
        s->reduced = s->grad;
        return;
    }
    if (s->types.in_place) {
        if (s->types.cast) {
            zt_emit_whole(e, ZT_R_CAST, ZT_READ, s->cast);
            zt_emit_own_slice(e, ZT_R_GRAD, ZT_WRITE, s->grad);
        } else {
            zt_emit_own_slice(e, ZT_R_GRAD, ZT_READ | ZT_WRITE, s->grad);
            zt_emit_other_slices(e, ZT_R_GRAD, ZT_READ, s->grad);
        }
        s->reduced = s->grad;
        return;
    }
    zt_emit_whole(e, s->types.cast ? ZT_R_CAST : ZT_R_GRAD, ZT_READ,
                  s->types.cast ? s->cast : s->grad);
    const bool accumulates = !e->rows.grads_full && e->p->cfg.accum > 1;
    if (accumulates) {
        const char *name = zt_arena_printf(&e->p->arena, "stage %s mb%d", e->p->units[u].name, mb);
        zt_emit_whole(e, ZT_R_STAGE, ZT_WRITE,
                      zt_emit_unit_buf(e, u, false,
                                       (struct zt_buf){.name = name,
                                                       .cat = ZT_CAT_REDUCE,
                                                       .arena = ZT_AR_DEVICE,
                                                       .dtype = s->types.travel,
                                                       .mb = mb}));
    }
    const bool first = s->reduced < 0;
    if (first)
        make_gshard(e, u);
    zt_emit_whole(e, ZT_R_GSHARD, first ? ZT_WRITE : ZT_READ | ZT_WRITE, s->reduced);
}

static void emit_reduce(struct zt_emit *e, int u, int mb)
{
    const struct zt_unit *unit = &e->p->units[u];
    struct zt_unit_state *s = &e->units[u];
    const bool last = mb == e->p->cfg.accum - 1;
    if (s->types.cast)
        emit_cast(e, u, mb);
    struct zt_op *op = zt_emit_op(e, ZT_OP_REDUCE, ZT_ST_COMM, u, -1, mb);
    op->first_use = e->rows.grads_full || mb == 0;
    op->last_use = last;
    if (e->p->n_shards > 1) {
        const size_t elem = zt_dtype_bytes(s->types.travel);
        zt_emit_collective(e, op, unit->shard_group, s->types.travel, unit->slice_elems,
                           (double)unit->padded_elems * (double)elem);
    } else {
        op->dtype = s->types.full;
        op->cost_kind = ZT_COST_HBM;
        op->cost = (double)e->p->bufs[s->grad].used;
    }
    reduce_operands(e, u, mb);
    if (last) {
        const size_t begin = (size_t)unit->partial * sizeof(struct zt_norm_partial);
        zt_emit_access(e, ZT_R_PARTIAL, ZT_WRITE, e->record, begin,
                       begin + sizeof(struct zt_norm_partial));
    }
}

/* Stage 0: every rank gets the whole reduced gradient. */
static void gather_grad(struct zt_emit *e, int u, int mb)
{
    const struct zt_unit *unit = &e->p->units[u];
    struct zt_unit_state *s = &e->units[u];
    s->final = s->reduced;
    if (!e->rows.gather_grads)
        return;
    if (!s->types.in_place) {
        const char *name = zt_arena_printf(&e->p->arena, "grad %s", unit->name);
        s->final = zt_emit_unit_buf(e, u, true,
                                    (struct zt_buf){.name = name,
                                                    .cat = ZT_CAT_GRAD,
                                                    .arena = ZT_AR_DEVICE,
                                                    .dtype = s->types.reduced,
                                                    .mb = -1});
    }
    struct zt_op *op = zt_emit_op(e, ZT_OP_ALLGATHER, ZT_ST_COMM, u, -1, mb);
    zt_emit_collective(e, op, unit->shard_group, s->types.reduced, unit->slice_elems,
                       (double)e->p->bufs[s->final].used);
    if (s->types.in_place) {
        zt_emit_own_slice(e, ZT_R_GRAD, ZT_READ, s->final);
        zt_emit_other_slices(e, ZT_R_GRAD, ZT_WRITE, s->final);
    } else {
        zt_emit_whole(e, ZT_R_GSHARD, ZT_READ, s->reduced);
        zt_emit_whole(e, ZT_R_GRAD, ZT_WRITE, s->final);
    }
}

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

/* Optimizer offload: the reduced slice goes to the host. */
static void evict_grad(struct zt_emit *e, int u)
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

/* After the backward pass of a segment: units for which it was the last use in this micro-batch. */
static void reduce_units(struct zt_emit *e, int segment, int mb)
{
    const bool last = mb == e->p->cfg.accum - 1;
    if (e->rows.grads_full && !last)
        return;
    for (int k = 0; k < e->seg[segment].n; k++) {
        const int u = e->seg[segment].units[k];
        if (e->p->model->params[e->p->units[u].first_param].home_segment != segment ||
            e->p->units[u].frozen)
            continue;
        emit_reduce(e, u, mb);
        if (!e->rows.grads_full)
            e->units[u].grad = -1; /* the next micro-batch starts a new one */
        if (last) {
            gather_grad(e, u, mb);
            if (e->state_arena == ZT_AR_HOST)
                evict_grad(e, u);
        }
    }
}

static void emit_decision(struct zt_emit *e)
{
    const struct zt_plan *p = e->p;
    const size_t record = zt_norm_record_bytes(p->n_partials, p->cfg.accum);
    const size_t ranks = (size_t)zt_group_size(&p->cfg.mesh, ZT_GROUP_DATA);
    const int all = zt_emit_buf(e, (struct zt_buf){.name = "all norm records",
                                                   .cat = ZT_CAT_CONTROL,
                                                   .arena = ZT_AR_DEVICE,
                                                   .used = ranks * record,
                                                   .dtype = ZT_F64,
                                                   .unit = -1,
                                                   .mb = -1});
    struct zt_op *op = zt_emit_op(e, ZT_OP_NORM, ZT_ST_COMM, -1, -1, -1);
    zt_emit_collective(e, op, ZT_GROUP_DATA, ZT_F64, (int64_t)(record / sizeof(double)),
                       (double)(ranks * record));
    zt_emit_whole(e, ZT_R_PARTIAL, ZT_READ, e->record);
    zt_emit_whole(e, ZT_R_COUNT, ZT_READ, e->count);
    zt_emit_whole(e, ZT_R_PARTIALS_ALL, ZT_WRITE, all);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ | ZT_WRITE, e->step);

    op = zt_emit_op(e, ZT_OP_VOTE, ZT_ST_COMM, -1, -1, -1);
    zt_emit_collective(e, op, ZT_GROUP_WORLD, ZT_I32, sizeof(struct zt_vote) / sizeof(int32_t),
                       2 * sizeof(struct zt_vote));
    zt_emit_whole(e, ZT_R_REQUEST, ZT_WRITE, e->request);
    zt_emit_whole(e, ZT_R_VOTE, ZT_WRITE, e->vote);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ | ZT_WRITE, e->step);

    op = zt_emit_op(e, ZT_OP_RESULT, ZT_ST_COPY_OUT, -1, -1, -1);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = sizeof(struct zt_step_result);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ, e->step);
    zt_emit_whole(e, ZT_R_VOTE, ZT_READ, e->vote);
    zt_emit_whole(e, ZT_R_RESULT, ZT_WRITE, e->result);
}

static void update_operands(struct zt_emit *e, int u, int param, enum zt_role role)
{
    const struct zt_unit_state *s = &e->units[u];
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

/* Parameters on the host, their state on the device: the new slice, and its way back. */
static void evict_param(struct zt_emit *e, int u, int shard)
{
    struct zt_op *op = zt_emit_op(e, ZT_OP_EVICT, ZT_ST_COPY_OUT, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[shard].used;
    zt_emit_whole(e, ZT_R_SHARD, ZT_READ, shard);
    zt_emit_whole(e, ZT_R_HPARAM, ZT_WRITE, e->units[u].param);
}

static void emit_update_device(struct zt_emit *e, int u)
{
    int param = e->units[u].param;
    if (e->params_on_host) {
        const char *name = zt_arena_printf(&e->p->arena, "new param %s", e->p->units[u].name);
        param = zt_emit_unit_buf(e, u, false,
                                 (struct zt_buf){.name = name,
                                                 .cat = ZT_CAT_STAGING,
                                                 .arena = ZT_AR_DEVICE,
                                                 .dtype = e->p->cfg.dtype,
                                                 .mb = -1});
    }
    struct zt_op *op = zt_emit_op(e, ZT_OP_UPDATE, ZT_ST_COMPUTE, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_HBM;
    op->cost = update_bytes(e, u);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ, e->step);
    read_reduced(e, u);
    update_operands(e, u, param, e->rows.params_full ? ZT_R_PARAM : ZT_R_SHARD);
    if (e->params_on_host)
        evict_param(e, u, param);
}

static void emit_update_host(struct zt_emit *e, int u)
{
    struct zt_unit_state *s = &e->units[u];
    int hparam = s->param;
    if (!e->params_on_host) {
        const char *name = zt_arena_printf(&e->p->arena, "host param %s", e->p->units[u].name);
        hparam = zt_emit_unit_buf(e, u, e->rows.state_full,
                                  (struct zt_buf){.name = name,
                                                  .cat = ZT_CAT_STAGING,
                                                  .arena = ZT_AR_HOST,
                                                  .dtype = e->p->cfg.dtype,
                                                  .mb = -1});
    }
    struct zt_op *op = zt_emit_op(e, ZT_OP_UPDATE, ZT_ST_HOST, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_HOST;
    op->cost = update_bytes(e, u);
    zt_emit_access(e, ZT_R_STEP, ZT_READ, e->result, 0, sizeof(struct zt_step_block));
    zt_emit_whole(e, ZT_R_HGRAD, ZT_READ, s->hgrad);
    update_operands(e, u, hparam, ZT_R_HPARAM);
    if (e->params_on_host)
        return;

    op = zt_emit_op(e, ZT_OP_FETCH, ZT_ST_COPY_IN, u, -1, -1);
    op->predicate = ZT_IF_APPLY;
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[hparam].used;
    zt_emit_whole(e, ZT_R_HPARAM, ZT_READ, hparam);
    state_slice(e, e->rows.params_full ? ZT_R_PARAM : ZT_R_SHARD, ZT_WRITE, s->param);
}

static void emit_update(struct zt_emit *e, int u)
{
    const struct zt_unit *unit = &e->p->units[u];
    if (unit->frozen)
        return;
    if (e->state_arena == ZT_AR_HOST)
        emit_update_host(e, u);
    else
        emit_update_device(e, u);
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
 * Forward then backward of every micro-batch; returns the number of steps. Backward stops where
 * nothing below is trained.
 */
static int list_steps(const struct zt_emit *e, struct zt_step *steps)
{
    const struct zt_model *m = e->p->model;
    int n = 0;
    for (int mb = 0; mb < e->p->cfg.accum; mb++) {
        for (int s = 0; s < m->n_segments; s++)
            if (!m->segments[s].fused_backward)
                steps[n++] = (struct zt_step){.segment = s, .mb = mb};
        for (int s = m->n_segments - 1; s >= e->lowest; s--)
            steps[n++] = (struct zt_step){.segment = s, .mb = mb, .backward = true};
    }
    return n;
}

void zt_emit_train(struct zt_emit *e)
{
    const struct zt_plan *p = e->p;
    zt_emit_begin(e, ZT_PROG_TRAIN, p->cfg.micro_batch, true);
    struct zt_step *steps = zt_arena_alloc(
        &e->scratch, 2 * (size_t)p->model->n_segments * (size_t)p->cfg.accum, sizeof *steps);
    const int n_steps = list_steps(e, steps);
    struct zt_gathers gathers;
    zt_gathers_plan(e, steps, n_steps, &gathers);
    struct zt_compute c = zt_compute_new(e, &e->train_batch, true);
    c.count = e->count;
    c.loss = e->record;
    c.loss_begin = (size_t)p->n_partials * sizeof(struct zt_norm_partial);
    for (int j = 0; j < n_steps; j++) {
        const struct zt_step *s = &steps[j];
        zt_emit_gathers(e, steps, j, &gathers);
        if (s->backward) {
            zt_emit_recompute(e, &c, s, &gathers);
            zt_emit_backward(e, &c, s, &gathers);
        } else {
            zt_emit_forward(e, &c, s, &gathers);
        }
        zt_emit_releases(e, s, j, &gathers);
        if (s->backward)
            reduce_units(e, s->segment, s->mb);
    }
    zt_gathers_release(&gathers);

    emit_decision(e);
    zt_emit_load_batch(e, &e->train_batch);
    zt_emit_count(e);
    for (int u = 0; u < p->n_units; u++)
        emit_update(e, u);
    zt_emit_op(e, ZT_OP_STEP, ZT_ST_COMPUTE, -1, -1, -1);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ | ZT_WRITE, e->step);
}
