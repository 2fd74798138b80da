#include "plan/emit.h"
#include "plan/passes.h"

/*
 * The train step:
 *
 *     per micro-batch: forward, backward, REDUCE of each unit after its last backward use
 *     boundary:        NORM, VOTE, RESULT, the next batch, UPDATE of every unit, STEP
 *
 * The next batch is loaded and counted before the UPDATEs, or its copies would queue behind all of
 * their fetches. UPDATEs (emit_update.c) go in forward order, so that the next step can start behind the
 * first.
 */

/*
 * A fold (fold.c) lists the first micro-batch, which differs from the next in what is prefetched, two
 * periods, and the last; one more in front where accumulation is odd. If the periods are not alike, all are
 * listed. A period is of two micro-batches, so that what is still being reduced of one does not lie where the
 * next needs it: with one, steps bound by the network take up to a tenth longer. MAX_LISTED: not worth folding.
 */
enum { PERIOD = 2, MIN_LISTED = 2 + 2 * PERIOD, MAX_LISTED = 8 };

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
            if (e->update_on_host)
                zt_emit_evict_grad(e, u);
        }
    }
}

void zt_emit_vote(struct zt_emit *e)
{
    struct zt_op *op = zt_emit_op(e, ZT_OP_VOTE, ZT_ST_COMM, -1, -1, -1);
    zt_emit_collective(e, op, ZT_GROUP_WORLD, ZT_I32, sizeof(struct zt_vote) / sizeof(int32_t),
                       2 * sizeof(struct zt_vote));
    zt_emit_whole(e, ZT_R_REQUEST, ZT_WRITE, e->request);
    zt_emit_whole(e, ZT_R_VOTE, ZT_WRITE, e->vote);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ | ZT_WRITE, e->step);
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

    zt_emit_vote(e);
    op = zt_emit_op(e, ZT_OP_RESULT, ZT_ST_COPY_OUT, -1, -1, -1);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = sizeof(struct zt_step_result);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ, e->step);
    zt_emit_whole(e, ZT_R_VOTE, ZT_READ, e->vote);
    zt_emit_whole(e, ZT_R_RESULT, ZT_WRITE, e->result);
}

/*
 * Forward then backward of every micro-batch, each run of blocks made again before its backward; returns
 * the number of steps. Backward stops where nothing below is trained. Of a folded program all micro-batches
 * between the last two listed are left out.
 */
static int list_steps(const struct zt_emit *e, struct zt_step *steps)
{
    const struct zt_model *m = e->p->model;
    int n = 0;
    for (int i = 0; i < e->n_listed; i++) {
        const int mb = i < e->n_listed - 1 ? i : e->p->cfg.accum - 1;
        for (int s = 0; s < m->n_segments; s++)
            if (!m->segments[s].fused_backward)
                steps[n++] = (struct zt_step){.segment = s, .mb = mb};
        for (int s = m->n_segments - 1; s >= e->lowest; s--) {
            const struct zt_block_run run = zt_block_run(e, s);
            for (int t = run.first; t <= run.last && s == run.last; t++)
                steps[n++] = (struct zt_step){.segment = t, .mb = mb, .pass = ZT_PASS_RECOMPUTE};
            steps[n++] = (struct zt_step){.segment = s, .mb = mb, .pass = ZT_PASS_BACKWARD};
        }
    }
    return n;
}

/* Rows of all steps; where the last micro-batch listed begins, a period before and two: begin[]. */
static void emit_steps(struct zt_emit *e, struct zt_step *steps, int begin[3])
{
    const struct zt_plan *p = e->p;
    const int n_steps = list_steps(e, steps);
    int left = e->n_listed - 1; /* micro-batches behind this one */
    struct zt_gathers gathers;
    zt_gathers_plan(e, steps, n_steps, &gathers);
    struct zt_compute c = zt_compute_new(e, &e->train_batch, true);
    c.count = e->count;
    c.loss = e->record;
    c.loss_begin = (size_t)p->n_partials * sizeof(struct zt_norm_partial);
    for (int j = 0; j < n_steps; j++) {
        const struct zt_step *s = &steps[j];
        if (j > 0 && s->mb != steps[j - 1].mb && --left % PERIOD == 0) {
            begin[0] = begin[1];
            begin[1] = begin[2];
            begin[2] = e->prog->n_ops;
        }
        zt_emit_gathers(e, steps, j, &gathers);
        zt_emit_pass(e, &c, s, &gathers);
        zt_emit_releases(e, s, j, &gathers);
        if (s->pass == ZT_PASS_BACKWARD)
            reduce_units(e, s->segment, s->mb);
    }
    zt_gathers_release(&gathers);
}

/* About as much as so many passes take, so that the lists are not moved as they grow. */
static void make_room(struct zt_emit *e, size_t n_passes)
{
    enum { BUFS = 4, OPS = 4, ACCESSES = 16 }; /* of a pass */
    ZT_GROW(e->p->bufs, (size_t)e->p->n_bufs + BUFS * n_passes, e->p->bufs_cap);
    ZT_GROW(e->prog->ops, OPS * n_passes, e->prog->ops_cap);
    ZT_GROW(e->prog->accesses, ACCESSES * n_passes, e->prog->accesses_cap);
}

/* The program with the first `n_listed` - 1 micro-batches and the last; false: the others are not like them. */
static bool emit_listed(struct zt_emit *e, int n_listed)
{
    struct zt_plan *p = e->p;
    const size_t n_passes = ZT_N_PASSES * (size_t)p->model->n_segments * (size_t)n_listed;
    int begin[3] = {0};
    e->n_listed = n_listed;
    zt_emit_begin(e, ZT_PROG_TRAIN, p->cfg.micro_batch, true);
    make_room(e, n_passes);
    emit_steps(e, zt_arena_alloc(&e->scratch, n_passes, sizeof(struct zt_step)), begin);
    emit_decision(e);
    zt_emit_load_batch(e, &e->train_batch);
    zt_emit_count(e);
    zt_emit_updates(e);
    zt_emit_op(e, ZT_OP_STEP, ZT_ST_COMPUTE, -1, -1, -1);
    zt_emit_whole(e, ZT_R_STEP, ZT_READ | ZT_WRITE, e->step);
    return n_listed == p->cfg.accum ||
           zt_fold(p, begin, PERIOD, (p->cfg.accum - n_listed) / PERIOD);
}

/* Begin again: nothing of the program is written. */
static void drop_rows(struct zt_emit *e, int n_bufs, const struct zt_unit_state *units)
{
    e->prog->n_ops = e->prog->n_accesses = 0;
    e->p->n_bufs = n_bufs;
    memcpy(e->units, units, (size_t)e->p->n_units * sizeof *units);
}

void zt_emit_train(struct zt_emit *e)
{
    const int n_bufs = e->p->n_bufs, accum = e->p->cfg.accum;
    const size_t n_units = (size_t)e->p->n_units;
    struct zt_unit_state *units = zt_arena_alloc(&e->scratch, n_units, sizeof *units);
    memcpy(units, e->units, n_units * sizeof *units);
    if (accum > MAX_LISTED) {
        if (emit_listed(e, MIN_LISTED + accum % PERIOD))
            return;
        drop_rows(e, n_bufs, units);
    }
    emit_listed(e, accum);
}
