#include "plan/emit.h"

/*
 * What lives as long as the run: parameters, optimizer state, batch and control blocks; and the
 * INIT program, which fills them.
 */

static const char *unit_name(struct zt_emit *e, const char *what, int u)
{
    return zt_arena_printf(&e->p->arena, "%s %s", what, e->p->units[u].name);
}

static void unit_state(struct zt_emit *e, int u)
{
    const enum zt_dtype dtype = e->p->cfg.dtype;
    const bool full = e->rows.state_full;
    struct zt_unit_state *s = &e->units[u];
    const bool peers_read = !e->rows.params_full || e->rows.gather_params;
    s->param = zt_emit_unit_buf(e, u, e->rows.params_full,
                                (struct zt_buf){.name = unit_name(e, "param", u),
                                                .cat = ZT_CAT_PARAM,
                                                .arena = e->params_on_host ? e->param_arena
                                                         : peers_read      ? e->peer_arena
                                                                           : ZT_AR_DEVICE,
                                                .dtype = dtype,
                                                .mb = -1});
    /* fp32 parameters are their own master where they live beside the rest of it. */
    s->master = s->m = s->v = -1;
    s->copy = (struct zt_host_copy){-1, -1, -1, -1};
    if (e->p->units[u].frozen)
        return;
    if (dtype != ZT_F32 || e->state_arena != e->param_arena)
        s->master = zt_emit_unit_buf(e, u, full,
                                     (struct zt_buf){.name = unit_name(e, "master", u),
                                                     .cat = ZT_CAT_MASTER,
                                                     .arena = e->state_arena,
                                                     .dtype = ZT_F32,
                                                     .mb = -1});
    s->m = zt_emit_unit_buf(e, u, full,
                            (struct zt_buf){.name = unit_name(e, "m", u),
                                            .cat = ZT_CAT_OPT_M,
                                            .arena = e->state_arena,
                                            .dtype = ZT_F32,
                                            .mb = -1});
    if (zt_optimizer_has_v(e->p->cfg.optimizer))
        s->v = zt_emit_unit_buf(e, u, full,
                                (struct zt_buf){.name = unit_name(e, "v", u),
                                                .cat = ZT_CAT_OPT_V,
                                                .arena = e->state_arena,
                                                .dtype = ZT_F32,
                                                .mb = -1});
}

static int control(struct zt_emit *e, const char *name, enum zt_arena_id arena, size_t bytes)
{
    return zt_emit_buf(e, (struct zt_buf){.name = name,
                                          .cat = ZT_CAT_CONTROL,
                                          .arena = arena,
                                          .used = bytes,
                                          .dtype = ZT_I32,
                                          .unit = -1,
                                          .mb = -1});
}

/*
 * Host and device copy of a program's batch. Persistent, small as they are: as a transient, the
 * next run's batch would arrive as early as it likes, and seem to need room beside all that lives
 * then.
 */
static struct zt_batch_bufs batch_bufs(struct zt_emit *e, const char *name, int64_t sequences,
                                       int accum)
{
    enum { FIELDS = sizeof(struct zt_batch) / sizeof(const int32_t *) };
    struct zt_batch_bufs b;
    b.mb_bytes = FIELDS * sizeof(int32_t) * (size_t)sequences * (size_t)e->p->cfg.seq_len;
    struct zt_buf buf = {.name = zt_arena_printf(&e->p->arena, "host %s", name),
                         .cat = ZT_CAT_BATCH,
                         .arena = ZT_AR_HOST,
                         .used = (size_t)accum * b.mb_bytes,
                         .dtype = ZT_I32,
                         .unit = -1,
                         .mb = -1};
    b.host = zt_emit_buf(e, buf);
    buf.name = name;
    buf.arena = ZT_AR_DEVICE;
    b.dev = zt_emit_buf(e, buf);
    return b;
}

void zt_emit_state(struct zt_emit *e)
{
    const struct zt_plan *p = e->p;
    e->prog = NULL;
    for (int u = 0; u < p->n_units; u++)
        unit_state(e, u);
    e->train_batch = batch_bufs(e, "batch", p->cfg.micro_batch, p->cfg.accum);
    e->step = control(e, "step block", ZT_AR_DEVICE, sizeof(struct zt_step_block));
    e->count = control(e, "count", e->peer_arena, sizeof(struct zt_count));
    e->vote = control(e, "vote", e->peer_arena, sizeof(struct zt_vote));
    e->record =
        control(e, "norm record", e->peer_arena, zt_norm_record_bytes(p->n_partials, p->cfg.accum));
    e->request = control(e, "vote request", ZT_AR_HOST, sizeof(struct zt_vote_request));
    e->result = control(e, "step result", ZT_AR_HOST, sizeof(struct zt_step_result));
    if (p->cfg.eval_micro_batch > 0) {
        e->eval_batch = batch_bufs(e, "eval batch", p->cfg.eval_micro_batch, 1);
        const size_t ranks = (size_t)zt_group_size(&p->cfg.mesh, ZT_GROUP_DATA);
        e->eval_record = control(e, "eval record", e->peer_arena, sizeof(struct zt_eval_record));
        e->eval_result =
            control(e, "eval result", ZT_AR_HOST, ranks * sizeof(struct zt_eval_record));
    }
    if (p->cfg.generate) {
        e->sample_batch = batch_bufs(e, "sample batch", 1, 1);
        e->logits_result = control(e, "logits result", ZT_AR_HOST,
                                   (size_t)p->model->cfg.vocab_size * sizeof(float));
    }
}

void zt_emit_load_batch(struct zt_emit *e, const struct zt_batch_bufs *b)
{
    const double bytes = (double)e->p->bufs[b->host].used;
    struct zt_op *op = zt_emit_op(e, ZT_OP_LOAD_BATCH, ZT_ST_HOST, -1, -1, -1);
    op->cost_kind = ZT_COST_HOST;
    op->cost = bytes;
    zt_emit_whole(e, ZT_R_HBATCH, ZT_WRITE, b->host);
    op = zt_emit_op(e, ZT_OP_COPY_BATCH, ZT_ST_COPY_IN, -1, -1, -1);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = bytes;
    zt_emit_whole(e, ZT_R_HBATCH, ZT_READ, b->host);
    zt_emit_whole(e, ZT_R_BATCH, ZT_WRITE, b->dev);
}

void zt_emit_count(struct zt_emit *e)
{
    struct zt_op *op = zt_emit_op(e, ZT_OP_COUNT, ZT_ST_COMM, -1, -1, -1);
    /* An all-reduce is a reduce-scatter and an all-gather: the ring moves the bytes twice. */
    zt_emit_collective(e, op, ZT_GROUP_DATA, ZT_I64, 1, 2 * sizeof(int64_t));
    zt_emit_whole(e, ZT_R_BATCH, ZT_READ, e->train_batch.dev);
    zt_emit_whole(e, ZT_R_COUNT, ZT_WRITE, e->count);
}

/* ---- INIT ---- */

void zt_emit_first(struct zt_emit *e, enum zt_role role, int home, int copy)
{
    if (home >= 0 && e->p->bufs[home].arena == ZT_AR_DISK)
        zt_emit_access(e, role, ZT_WRITE, copy, 0, e->p->bufs[home].used);
    else if (home >= 0)
        zt_emit_whole(e, role, ZT_WRITE, home);
}

static void first_state(struct zt_emit *e, const struct zt_unit_state *s,
                        const struct zt_host_copy *copies)
{
    zt_emit_first(e, ZT_R_MASTER, s->master, copies->master);
    zt_emit_first(e, ZT_R_M, s->m, copies->m);
    zt_emit_first(e, ZT_R_V, s->v, copies->v);
}

/*
 * Values of one unit: fp32 on the host, then parameters, master and zeroed moments; what lives on the
 * host or the disk never passes through the device.
 */
static void first_values(struct zt_emit *e, int u, const struct zt_first_bufs *f)
{
    const struct zt_unit *unit = &e->p->units[u];
    const struct zt_unit_state *s = &e->units[u];
    const bool full = e->rows.params_full;
    const size_t bytes =
        (size_t)(full ? unit->padded_elems : unit->slice_elems) * zt_dtype_bytes(ZT_F32);
    struct zt_op *op = zt_emit_op(e, ZT_OP_LOAD_UNIT, ZT_ST_HOST, u, -1, -1);
    op->dtype = ZT_F32;
    op->cost_kind = ZT_COST_HOST;
    op->cost = (double)bytes;
    zt_emit_access(e, ZT_R_HPARAM, ZT_WRITE, f->staging, 0, bytes);
    if (e->params_on_host)
        zt_emit_first(e, ZT_R_SHARD, s->param, f->copies.param);
    if (e->update_on_host)
        first_state(e, s, &f->copies);
    zt_emit_write_first(e, u, &f->copies);
    if (e->params_on_host && (e->update_on_host || unit->frozen))
        return;

    op = zt_emit_op(e, ZT_OP_FETCH, ZT_ST_COPY_IN, u, -1, -1);
    op->dtype = ZT_F32;
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)bytes;
    zt_emit_access(e, ZT_R_HPARAM, ZT_READ, f->staging, 0, bytes);
    if (!e->params_on_host)
        zt_emit_whole(e, full ? ZT_R_PARAM : ZT_R_SHARD, ZT_WRITE, s->param);
    if (!e->update_on_host)
        first_state(e, s, &f->copies);
}

/* Room for one unit after another. */
static int staging_buf(struct zt_emit *e, const char *name, bool full, enum zt_dtype dtype)
{
    int64_t most = 0;
    for (int u = 0; u < e->p->n_units; u++) {
        const struct zt_unit *unit = &e->p->units[u];
        most = ZT_MAX(most, full ? unit->padded_elems : unit->slice_elems);
    }
    return zt_emit_buf(e, (struct zt_buf){.name = name,
                                          .cat = ZT_CAT_STAGING,
                                          .arena = ZT_AR_HOST,
                                          .used = (size_t)most * zt_dtype_bytes(dtype),
                                          .dtype = dtype,
                                          .unit = -1,
                                          .mb = -1});
}

static struct zt_host_copy staging_bufs(struct zt_emit *e)
{
    struct zt_host_copy c = {-1, -1, -1, -1};
    const bool full = e->rows.state_full;
    if (e->param_arena == ZT_AR_DISK)
        c.param = staging_buf(e, "staging param", false, e->p->cfg.dtype);
    if (e->state_arena != ZT_AR_DISK)
        return c;
    c.m = staging_buf(e, "staging m", full, ZT_F32);
    if (zt_optimizer_has_v(e->p->cfg.optimizer))
        c.v = staging_buf(e, "staging v", full, ZT_F32);
    if (e->p->cfg.dtype != ZT_F32 || e->param_arena != ZT_AR_DISK)
        c.master = staging_buf(e, "staging master", full, ZT_F32);
    return c;
}

struct zt_first_bufs zt_emit_first_begin(struct zt_emit *e, enum zt_program_kind kind, bool full)
{
    zt_emit_begin(e, kind, e->p->cfg.micro_batch, true);
    const struct zt_first_bufs f = {.copies = staging_bufs(e),
                                    .staging = staging_buf(e, "staging", full, ZT_F32)};
    struct zt_op *op = zt_emit_op(e, ZT_OP_FETCH, ZT_ST_COPY_IN, -1, -1, -1);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = sizeof(struct zt_step_block);
    zt_emit_whole(e, ZT_R_STEP, ZT_WRITE, e->step);
    return f;
}

void zt_emit_first_end(struct zt_emit *e)
{
    zt_emit_load_batch(e, &e->train_batch);
    zt_emit_count(e);
}

void zt_emit_init(struct zt_emit *e)
{
    const struct zt_first_bufs f = zt_emit_first_begin(e, ZT_PROG_INIT, e->rows.params_full);
    for (int u = 0; u < e->p->n_units; u++)
        first_values(e, u, &f);
    zt_emit_first_end(e);
}
