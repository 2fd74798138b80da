#include "plan/emit.h"

#include "base/size.h"

/*
 * The stage table (DESIGN 1): Rajbhandari et al., ZeRO, SC 2020. Everything that differs between
 * the stages follows from these five columns.
 *
 *                          params grads  state  gather gather
 *                          full   full   full   grads  params
 */
static const struct zt_stage_rows stage_table[4] = {
    /* 0: data parallel */ {true, true, true, true, false},
    /* 1: + states */ {true, true, false, false, true},
    /* 2: + gradients */ {true, false, false, false, true},
    /* 3: + parameters */ {false, false, false, false, false},
};

/* One rank holds everything whatever the stage, and nothing travels. */
static const struct zt_stage_rows alone = {true, true, true, false, false};

enum { MAX_PASSES = 1 << 18 /* of segments in a step */ };

static size_t buf_align(enum zt_arena_id arena)
{
    return arena == ZT_AR_DISK ? ZT_DISK_BUF_ALIGN : ZT_BUF_ALIGN;
}

int zt_emit_buf(struct zt_emit *e, struct zt_buf b)
{
    struct zt_plan *p = e->p;
    b.program = e->prog ? (int)e->prog->kind : -1;
    b.first = b.last = -1;
    b.bytes = zt_align_size(b.used, buf_align(b.arena));
    ZT_ASSERT(b.used > 0);
    ZT_GROW(p->bufs, p->n_bufs + 1, p->bufs_cap);
    p->bufs[p->n_bufs] = b;
    return p->n_bufs++;
}

int zt_emit_unit_buf(struct zt_emit *e, int u, bool full, struct zt_buf b)
{
    const struct zt_unit *unit = &e->p->units[u];
    const size_t elem = zt_dtype_bytes(b.dtype);
    const int64_t real = full ? unit->n_elems : e->units[u].slice_real;
    b.unit = u;
    b.used = (size_t)(full ? unit->padded_elems : unit->slice_elems) * elem;
    b.padding = zt_align_size(b.used, buf_align(b.arena)) - (size_t)real * elem;
    return zt_emit_buf(e, b);
}

struct zt_op *zt_emit_op(struct zt_emit *e, enum zt_op_kind kind, enum zt_stream_id stream,
                         int unit, int segment, int mb)
{
    struct zt_program *g = e->prog;
    if (stream == ZT_ST_COMM && !e->p->cfg.overlap_comm)
        stream = ZT_ST_COMPUTE;
    ZT_GROW(g->ops, g->n_ops + 1, g->ops_cap);
    struct zt_op *op = &g->ops[g->n_ops++];
    *op = (struct zt_op){.kind = kind,
                         .stream = stream,
                         .predicate = ZT_ALWAYS,
                         .unit = unit,
                         .segment = segment,
                         .mb = mb,
                         .dtype = e->p->cfg.dtype,
                         .first_access = g->n_accesses};
    return op;
}

void zt_emit_access(struct zt_emit *e, enum zt_role role, int mode, int buf, size_t begin,
                    size_t end)
{
    struct zt_program *g = e->prog;
    struct zt_buf *b = &e->p->bufs[buf];
    ZT_ASSERT(begin < end && end <= b->used);
    ZT_GROW(g->accesses, g->n_accesses + 1, g->accesses_cap);
    g->accesses[g->n_accesses++] = (struct zt_access){
        .buf = buf, .mode = (uint8_t)mode, .role = (uint8_t)role, .begin = begin, .end = end};
    g->ops[g->n_ops - 1].n_accesses++;
    if (b->program >= 0) {
        ZT_ASSERT_CMP(b->program, ==, g->kind);
        b->first = b->first < 0 ? g->n_ops - 1 : b->first;
        b->last = g->n_ops - 1;
    }
}

void zt_emit_whole(struct zt_emit *e, enum zt_role role, int mode, int buf)
{
    zt_emit_access(e, role, mode, buf, 0, e->p->bufs[buf].used);
}

/* Bytes of this rank's slice in a full buffer of a unit. */
static void own_range(const struct zt_emit *e, int buf, size_t *begin, size_t *end)
{
    const struct zt_buf *b = &e->p->bufs[buf];
    const size_t slice = (size_t)e->p->units[b->unit].slice_elems * zt_dtype_bytes(b->dtype);
    *begin = (size_t)e->p->shard_rank * slice;
    *end = *begin + slice;
}

void zt_emit_own_slice(struct zt_emit *e, enum zt_role role, int mode, int buf)
{
    size_t begin, end;
    own_range(e, buf, &begin, &end);
    zt_emit_access(e, role, mode, buf, begin, end);
}

void zt_emit_other_slices(struct zt_emit *e, enum zt_role role, int mode, int buf)
{
    const size_t used = e->p->bufs[buf].used;
    size_t begin, end;
    own_range(e, buf, &begin, &end);
    if (begin > 0)
        zt_emit_access(e, role, mode, buf, 0, begin);
    if (end < used)
        zt_emit_access(e, role, mode, buf, end, used);
}

void zt_emit_collective(struct zt_emit *e, struct zt_op *op, zt_axes group, enum zt_dtype dtype,
                        int64_t count, double bytes)
{
    const double n = zt_group_size(&e->p->cfg.mesh, group);
    op->group = group;
    op->dtype = dtype;
    op->count = count;
    op->cost_kind = ZT_COST_NET;
    op->cost = bytes;
    op->bytes_sent = bytes * (n - 1) / n;
}

void zt_emit_begin(struct zt_emit *e, enum zt_program_kind kind, int64_t batch, bool train)
{
    const struct zt_model *m = e->p->model;
    const struct zt_shape shape = zt_plan_shape(&e->p->cfg, batch, train);
    e->prog = &e->p->programs[kind];
    e->prog->kind = kind;
    e->prog->repeats = kind == ZT_PROG_TRAIN || kind == ZT_PROG_EVAL || kind == ZT_PROG_GENERATE;
    for (int s = 0; s < m->n_segments; s++) {
        e->sizes[s] = (struct zt_segment_size){0};
        m->ops->size(m, s, &shape, &e->sizes[s]);
    }
}

static struct zt_seg_units segment_units(struct zt_emit *e, int s)
{
    const struct zt_segment *seg = &e->p->model->segments[s];
    int *units = zt_arena_alloc(&e->scratch, (size_t)seg->n_params, sizeof *units);
    int n = 0;
    for (int i = 0; i < seg->n_params; i++) {
        const int u = e->p->unit_of_param[seg->params[i]];
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen |= units[k] == u;
        if (!seen)
            units[n++] = u;
    }
    return (struct zt_seg_units){n, units};
}

/* Elements of this rank's slice that belong to a parameter. */
static int64_t slice_real(const struct zt_plan *p, const struct zt_unit *u)
{
    const int64_t lo = p->shard_rank * u->slice_elems, hi = lo + u->slice_elems;
    int64_t n = 0;
    for (int i = 0; i < u->n_params; i++) {
        const int64_t begin = ZT_MAX(lo, u->param_off[i]);
        const int64_t end =
            ZT_MIN(hi, u->param_off[i] + p->model->params[u->first_param + i].n_elems);
        n += ZT_MAX(end - begin, 0);
    }
    return n;
}

/*
 * Gradients add up in fp32 when more than one micro-batch or segment contributes, and are reduced
 * in the type that travels. The reduced slice is never narrower than what travelled (DESIGN 2).
 */
static struct zt_grad_types grad_types(const struct zt_emit *e, const struct zt_unit *u)
{
    const struct zt_plan_config *cfg = &e->p->cfg;
    const bool wide = cfg->dtype == ZT_F32 || u->grad_fp32;
    struct zt_grad_types t;
    t.full = wide || (cfg->accum > 1 && e->rows.grads_full) ? ZT_F32 : cfg->dtype;
    t.travel = cfg->comm_dtype < 0 || e->p->n_shards == 1 ? t.full : (enum zt_dtype)cfg->comm_dtype;
    t.cast = t.travel != t.full;
    t.reduced = wide || cfg->accum > 1 || t.travel != cfg->dtype ? ZT_F32 : cfg->dtype;
    t.in_place = e->rows.grads_full && t.reduced == t.full;
    return t;
}

static enum zt_arena_id home_of(enum zt_offload o)
{
    return o == ZT_OFFLOAD_NVME ? ZT_AR_DISK : o == ZT_OFFLOAD_CPU ? ZT_AR_HOST : ZT_AR_DEVICE;
}

static void emit_start(struct zt_emit *e, struct zt_plan *p)
{
    const struct zt_plan_config *cfg = &p->cfg;
    *e = (struct zt_emit){.p = p};
    e->rows = p->n_shards == 1 ? alone : stage_table[cfg->stage];
    e->state_arena = home_of(cfg->offload_optimizer);
    e->param_arena = home_of(cfg->offload_param);
    e->update_on_host = e->state_arena != ZT_AR_DEVICE;
    e->params_on_host = e->param_arena != ZT_AR_DEVICE;
    if (e->params_on_host) /* also where one rank's slice is the whole unit */
        e->rows.params_full = false;
    if (cfg->reduce_every_micro_batch && cfg->accum > 1 && p->n_shards > 1)
        e->rows.grads_full = false;
    e->peer_arena = cfg->shared_arena && p->world > 1 ? ZT_AR_SHARED : ZT_AR_DEVICE;
    const size_t n_segments = (size_t)p->model->n_segments;
    e->sizes = zt_arena_alloc(&e->scratch, n_segments, sizeof *e->sizes);
    e->seg = zt_arena_alloc(&e->scratch, n_segments, sizeof *e->seg);
    e->units = zt_arena_alloc(&e->scratch, (size_t)p->n_units, sizeof *e->units);
    for (int s = 0; s < p->model->n_segments; s++)
        e->seg[s] = segment_units(e, s);
    e->lowest = zt_model_lowest_trained(p->model);
    for (int u = 0; u < p->n_units; u++) {
        e->units[u] = (struct zt_unit_state){.types = grad_types(e, &p->units[u]),
                                             .slice_real = slice_real(p, &p->units[u]),
                                             .grad = -1,
                                             .cast = -1,
                                             .reduced = -1,
                                             .final = -1,
                                             .hgrad = -1,
                                             .snap_param = -1,
                                             .snap_m = -1,
                                             .snap_v = -1};
    }
}

int zt_plan_max_accum(const struct zt_model *model)
{
    return ZT_MIN(MAX_PASSES / model->n_segments, ZT_PLAN_MAX_ACCUM);
}

int zt_plan_emit(struct zt_plan *p, struct zt_err *err)
{
    const struct zt_plan_config *cfg = &p->cfg;
    if (cfg->accum > zt_plan_max_accum(p->model))
        return zt_err_set(
            err, ZT_EUNSUPPORTED,
            "gradient_accumulation_steps %d: a step of more than %d segment passes is "
            "not carried out; use larger micro-batches",
            cfg->accum, MAX_PASSES);
    struct zt_emit e;
    emit_start(&e, p);
    const bool snapshot = cfg->snapshot && cfg->offload_optimizer != ZT_OFFLOAD_NVME &&
                          cfg->offload_param != ZT_OFFLOAD_NVME;
    zt_emit_state(&e);
    if (snapshot)
        zt_emit_snapshot(&e);
    zt_emit_init(&e);
    zt_emit_train(&e);
    if (cfg->eval_micro_batch > 0)
        zt_emit_eval(&e);
    if (cfg->generate)
        zt_emit_generate(&e);
    if (snapshot)
        zt_emit_save(&e);
    if (cfg->loads)
        zt_emit_load(&e);
    zt_emit_agree(&e);
    zt_arena_release(&e.scratch);
    return 0;
}
