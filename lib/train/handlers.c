#include "train/engine.h"

#include "base/clock.h"
#include "dev/queue.h"
#include "optim/groups.h"

/* One op under submission: shorthand for the handlers. */
struct ctx {
    struct zt_engine *e;
    const struct zt_program *prog;
    const struct zt_op *op;
    const struct zt_dev_ops *dev;
    const struct zt_coll_ops *coll;
    struct zt_stream *s;
};

static void *arg(const struct ctx *c, enum zt_role role, int nth)
{
    return zt_engine_operand(c->e, c->prog, c->op, role, nth);
}

static const struct zt_buf *buf_of(const struct ctx *c, const struct zt_access *a)
{
    return &c->e->plan->bufs[a->buf];
}

static struct zt_ref ref(const struct ctx *c, enum zt_role role, int nth)
{
    const struct zt_access *a = zt_op_operand(c->prog, c->op, role, nth);
    struct zt_ref r = {NULL, ZT_F32};
    if (a) {
        r.ptr = (unsigned char *)zt_engine_buf(c->e, a->buf) + a->begin;
        r.dtype = buf_of(c, a)->dtype;
    }
    return r;
}

/* The buffer of an operand from its start, whatever range of it the op names first. */
static struct zt_ref whole(const struct ctx *c, enum zt_role role)
{
    const struct zt_access *a = zt_op_operand(c->prog, c->op, role, 0);
    struct zt_ref r = {NULL, ZT_F32};
    if (a) {
        r.ptr = zt_engine_buf(c->e, a->buf);
        r.dtype = buf_of(c, a)->dtype;
    }
    return r;
}

static unsigned char *elem(struct zt_ref r, int64_t i)
{
    return (unsigned char *)r.ptr + (size_t)i * zt_dtype_bytes(r.dtype);
}

static const struct zt_unit *unit_of(const struct ctx *c)
{
    return &c->e->plan->units[c->op->unit];
}

/* ---- batches ---- */

struct load_task {
    const struct zt_feed *feed;
    int64_t batch;
    int32_t *hbatch;
};

static int load_batch_task(void *p, struct zt_err *err)
{
    const struct load_task *t = p;
    return zt_feed_fill(t->feed, t->batch, t->hbatch, err);
}

struct prompt_task {
    int32_t *hbatch;
    int64_t seq_len;
    const int32_t *tokens;
};

/* A prompt is one row; nothing is learnt from it. */
static int load_prompt_task(void *p, struct zt_err *err)
{
    const struct prompt_task *t = p;
    (void)err;
    for (int64_t i = 0; i < t->seq_len; i++) {
        t->hbatch[i] = t->tokens[i];
        t->hbatch[t->seq_len + i] = -100;
        t->hbatch[2 * t->seq_len + i] = (int32_t)i;
        t->hbatch[3 * t->seq_len + i] = 0;
    }
    return 0;
}

static void op_load_batch(const struct ctx *c)
{
    struct zt_engine *e = c->e;
    if (c->prog->kind == ZT_PROG_GENERATE) {
        struct prompt_task t = {arg(c, ZT_R_HBATCH, 0), e->plan->cfg.seq_len, e->prompt};
        c->dev->host_call(c->s, load_prompt_task, &t, sizeof t);
        return;
    }
    struct load_task t = {c->prog->kind == ZT_PROG_EVAL ? e->feed_eval : e->feed_train,
                          e->next_batch, arg(c, ZT_R_HBATCH, 0)};
    c->dev->host_call(c->s, load_batch_task, &t, sizeof t);
}

static void op_copy_batch(const struct ctx *c)
{
    const struct zt_access *src = zt_op_operand(c->prog, c->op, ZT_R_HBATCH, 0);
    struct zt_copy a = {arg(c, ZT_R_BATCH, 0), arg(c, ZT_R_HBATCH, 0), src->end - src->begin};
    c->dev->copy(c->s, &a);
}

static int64_t plane_elems(const struct ctx *c)
{
    const struct zt_plan_config *cfg = &c->e->plan->cfg;
    switch (c->prog->kind) {
    case ZT_PROG_EVAL:
        return cfg->eval_micro_batch * cfg->seq_len;
    case ZT_PROG_GENERATE:
        return cfg->seq_len;
    default:
        return cfg->micro_batch * cfg->seq_len;
    }
}

static int n_micro_batches(const struct ctx *c)
{
    bool train = c->prog->kind == ZT_PROG_TRAIN || c->prog->kind == ZT_PROG_INIT;
    return train ? c->e->plan->cfg.accum : 1;
}

/* tokens over all micro-batches of this rank, then over all ranks. */
static void op_count(const struct ctx *c)
{
    struct zt_count *count = arg(c, ZT_R_COUNT, 0);
    const int32_t *batch = arg(c, ZT_R_BATCH, 0);
    int64_t plane = plane_elems(c);
    for (int m = 0; m < n_micro_batches(c); m++) {
        struct zt_count_targets a = {plane, batch + (4 * m + 1) * plane, count, m > 0};
        c->dev->count_targets(c->s, &a);
    }
    if (c->op->group)
        c->coll->all_reduce(c->e->coll, c->s, c->op->group, &count->tokens, &count->tokens, 1,
                            ZT_I64, ZT_SUM);
    c->dev->count_finish(c->s, &(struct zt_count_finish){count});
}

/* ---- parameters and gradients between ranks ---- */

static void op_gather(const struct ctx *c)
{
    c->coll->all_gather(c->e->coll, c->s, c->op->group, arg(c, ZT_R_SHARD, 0),
                        arg(c, ZT_R_PARAM, 0), c->op->count, c->op->dtype);
}

/*
 * Parameters (stages 1, 2) or gradients (stage 0); in place unless the slice is a buffer of its
 * own.
 */
static void op_allgather(const struct ctx *c)
{
    bool params = zt_op_operand(c->prog, c->op, ZT_R_PARAM, 0) != NULL;
    enum zt_role role = params ? ZT_R_PARAM : ZT_R_GRAD;
    const void *send = arg(c, ZT_R_GSHARD, 0);
    if (!send)
        send = arg(c, role, 0); /* own slice comes first */
    c->coll->all_gather(c->e->coll, c->s, c->op->group, send, whole(c, role).ptr, c->op->count,
                        c->op->dtype);
}

static void op_release(const struct ctx *c)
{
    (void)c; /* a mark in the list: the gathered bytes are free from here on */
}

static void op_cast(const struct ctx *c)
{
    struct zt_cast a = {unit_of(c)->padded_elems, whole(c, ZT_R_GRAD), ref(c, ZT_R_CAST, 0), false};
    c->dev->cast(c->s, &a);
}

/* The norm partial of a unit's reduced slice: frozen tensors do not count. */
static void sum_squares(const struct ctx *c, struct zt_ref slice)
{
    const struct zt_span *spans = c->e->spans[c->op->unit];
    const int n = c->e->n_spans[c->op->unit];
    struct zt_sum_sq a = {0, slice, arg(c, ZT_R_PARTIAL, 0), false};
    if (n == 0)
        c->dev->sum_sq(c->s, &a);
    for (int i = 0; i < n; i++) {
        a.n = spans[i].end - spans[i].begin;
        a.x.ptr = elem(slice, spans[i].begin);
        a.accumulate = i > 0;
        c->dev->sum_sq(c->s, &a);
    }
}

/*
 * Reduce-scatter to this rank's slice: into the shard; in place where the slice lies in the
 * gradient itself (stages 0 and 1); or, when micro-batches add up in fp32, into a staging slice
 * that is added to the shard. The norm partial of the finished slice is an epilogue here, on the
 * same stream.
 */
static void op_reduce(const struct ctx *c)
{
    const struct zt_op *op = c->op;
    struct zt_ref send = ref(c, ZT_R_CAST, 0), stage = ref(c, ZT_R_STAGE, 0);
    struct zt_ref slice = ref(c, ZT_R_GSHARD, 0);
    if (!slice.ptr)
        slice = ref(c, ZT_R_GRAD, 0); /* own slice comes first */
    if (!send.ptr)
        send = whole(c, ZT_R_GRAD);
    if (op->group) {
        struct zt_ref recv = stage.ptr ? stage : slice;
        c->coll->reduce_scatter(c->e->coll, c->s, op->group, send.ptr, send.dtype, recv.ptr,
                                recv.dtype, op->count);
    }
    if (stage.ptr) {
        const struct zt_access *a = zt_op_operand(c->prog, op, ZT_R_GSHARD, 0);
        struct zt_cast add = {op->count, stage, slice, (a->mode & ZT_READ) != 0};
        c->dev->cast(c->s, &add);
    }
    if (op->last_use)
        sum_squares(c, slice);
}

/* ---- the end of a step ---- */

static void op_norm(const struct ctx *c)
{
    const struct zt_plan *p = c->e->plan;
    bool train = c->prog->kind == ZT_PROG_TRAIN;
    const void *mine = arg(c, train ? ZT_R_PARTIAL : ZT_R_LOSS, 0);
    void *all = arg(c, ZT_R_PARTIALS_ALL, 0);
    c->coll->all_gather(c->e->coll, c->s, c->op->group, mine, all, c->op->count, c->op->dtype);
    if (!train)
        return; /* evaluation: the host adds the records up */
    struct zt_norm_finish a = {.n_ranks = zt_group_size(&p->cfg.mesh, c->op->group),
                               .n_units = p->n_partials,
                               .n_losses = p->cfg.accum,
                               .record_bytes = (size_t)c->op->count * zt_dtype_bytes(c->op->dtype),
                               .records = all,
                               .count = arg(c, ZT_R_COUNT, 0),
                               .sb = arg(c, ZT_R_STEP, 0)};
    c->dev->norm_finish(c->s, &a);
}

struct request_task {
    struct zt_vote_request request, *where;
};

static int write_request(void *p, struct zt_err *err)
{
    const struct request_task *t = p;
    (void)err;
    *t->where = t->request;
    return 0;
}

static void op_vote(const struct ctx *c)
{
    struct request_task r = {c->e->request, arg(c, ZT_R_REQUEST, 0)};
    struct zt_vote *vote = arg(c, ZT_R_VOTE, 0);
    struct zt_step_block *sb = arg(c, ZT_R_STEP, 0);
    c->dev->host_call(c->s, write_request, &r, sizeof r);
    c->dev->vote_begin(c->s, &(struct zt_vote_begin){sb, r.where, vote});
    c->coll->all_reduce(c->e->coll, c->s, c->op->group, vote, vote, sizeof *vote / 4, ZT_I32,
                        ZT_MAX);
    c->dev->vote_finish(c->s, &(struct zt_vote_finish){vote, sb});
}

/*
 * Elements of a new parameter buffer that belong to no range of UPDATE: padding and frozen tensors. They
 * are the master's, as INIT left it.
 */
static void fill_gaps(const struct ctx *c, const struct zt_update *a, int64_t n)
{
    int64_t from = 0;
    for (int i = 0; i <= a->n_ranges; i++) {
        const int64_t to = i < a->n_ranges ? a->ranges[i].begin : n;
        struct zt_ref src = {elem(a->master, from), ZT_F32};
        struct zt_ref dst = {elem(a->param, from), a->param.dtype};
        if (to > from)
            c->dev->cast(c->s, &(struct zt_cast){to - from, src, dst, false});
        from = i < a->n_ranges ? a->ranges[i].end : n;
    }
}

/* The first operand that the op has, of two roles. */
static struct zt_ref either(const struct ctx *c, enum zt_role first, enum zt_role second)
{
    struct zt_ref r = ref(c, first, 0);
    return r.ptr ? r : ref(c, second, 0);
}

/* The parameters that UPDATE writes: where they live, or a new buffer that is copied there. */
static const struct zt_access *updated(const struct ctx *c)
{
    static const enum zt_role roles[] = {ZT_R_SHARD, ZT_R_PARAM, ZT_R_HPARAM};
    const struct zt_access *a = NULL;
    for (size_t i = 0; i < ZT_ARRAY_LEN(roles) && !a; i++)
        a = zt_op_operand(c->prog, c->op, roles[i], 0);
    return a;
}

/*
 * On the device, or with offload on the host. What goes into a new buffer is complete: of a step that is
 * not applied, the parameters are copied back as they were.
 */
static void op_update(const struct ctx *c)
{
    const struct zt_access *out = updated(c);
    const bool fresh = buf_of(c, out)->program >= 0;
    const struct zt_ref grad = either(c, ZT_R_GSHARD, ZT_R_GRAD);
    struct zt_update a = {.optimizer = c->e->plan->cfg.optimizer,
                          .ranges = c->e->ranges[c->op->unit],
                          .n_ranges = c->e->n_ranges[c->op->unit],
                          .sb = arg(c, ZT_R_STEP, 0),
                          .grad = grad.ptr ? grad : ref(c, ZT_R_HGRAD, 0),
                          .m = arg(c, ZT_R_M, 0),
                          .v = arg(c, ZT_R_V, 0),
                          .master = ref(c, ZT_R_MASTER, 0),
                          .param = ref(c, (enum zt_role)out->role, 0),
                          .fresh = fresh};
    c->dev->update(c->s, &a);
    if (fresh)
        fill_gaps(c, &a, (int64_t)((out->end - out->begin) / zt_dtype_bytes(a.param.dtype)));
}

static void op_step(const struct ctx *c)
{
    c->dev->step_advance(c->s, &(struct zt_step_advance){arg(c, ZT_R_STEP, 0)});
}

struct result_task {
    const struct zt_step_result *result;
    struct zt_step_outcome *where;
};

static int take_result(void *p, struct zt_err *err)
{
    const struct result_task *t = p;
    (void)err;
    t->where->result = *t->result;
    t->where->done_ns = zt_now_ns();
    return 0;
}

/*
 * Device to host. TRAIN's is copied on into one of the engine's two slots, so that the host may
 * read it while the next step runs; the others are read after a drain.
 */
static void op_result(const struct ctx *c)
{
    struct zt_engine *e = c->e;
    unsigned char *dst = arg(c, ZT_R_RESULT, 0);
    if (c->prog->kind != ZT_PROG_TRAIN) {
        enum zt_role role = c->prog->kind == ZT_PROG_EVAL ? ZT_R_PARTIALS_ALL : ZT_R_LOGITS;
        const struct zt_access *a = zt_op_operand(c->prog, c->op, role, 0);
        c->dev->copy(c->s, &(struct zt_copy){dst, arg(c, role, 0), a->end - a->begin});
        return;
    }
    struct zt_step_result *result = (void *)dst;
    struct zt_copy sb = {&result->sb, arg(c, ZT_R_STEP, 0), sizeof result->sb};
    struct zt_copy vote = {&result->vote, arg(c, ZT_R_VOTE, 0), sizeof result->vote};
    struct result_task t = {result, &e->outcomes[e->n_train_runs & 1]};
    c->dev->copy(c->s, &sb);
    c->dev->copy(c->s, &vote);
    c->dev->host_call(c->s, take_result, &t, sizeof t);
    e->outcome_events[e->n_train_runs & 1] = c->dev->record(c->s);
}

/* ---- init: values on the host -> master, parameters, zeroed moments ---- */

struct fill_task {
    const struct zt_source *source;
    const struct zt_plan *plan;
    int unit;
    int64_t begin, n;
    float *out;
};

static int fill_unit_task(void *p, struct zt_err *err)
{
    const struct fill_task *t = p;
    (void)err;
    zt_source_fill(t->source, t->plan, t->unit, t->begin, t->n, t->out);
    return 0;
}

/* The staged range: the whole unit where this rank holds it whole, else its slice. */
static void staged_range(const struct ctx *c, const struct zt_access *staging, int64_t *begin,
                         int64_t *n)
{
    const struct zt_unit *u = unit_of(c);
    *n = (int64_t)((staging->end - staging->begin) / sizeof(float));
    *begin = *n == u->padded_elems ? 0 : c->e->plan->shard_rank * u->slice_elems;
}

/* Copy the part of the staged values that a destination of `n` elements holds. */
static void fetch_into(const struct ctx *c, const struct zt_access *dst, int64_t begin, int64_t n)
{
    const struct zt_buf *b = buf_of(c, dst);
    struct zt_ref to = {(unsigned char *)zt_engine_buf(c->e, dst->buf) + dst->begin, b->dtype};
    int64_t elems = (int64_t)((dst->end - dst->begin) / zt_dtype_bytes(b->dtype));
    int64_t first =
        elems == unit_of(c)->padded_elems ? 0 : c->e->plan->shard_rank * unit_of(c)->slice_elems;
    ZT_ASSERT_CMP(first, >=, begin);
    ZT_ASSERT_CMP(first + elems, <=, begin + n);
    struct zt_ref from = {(float *)arg(c, ZT_R_HPARAM, 0) + (first - begin), ZT_F32};
    c->dev->cast(c->s, &(struct zt_cast){elems, from, to, false});
}

/* The op's other operands get their first values from the staged ones; moments begin at zero. */
static void place_values(const struct ctx *c)
{
    const struct zt_access *staging = zt_op_operand(c->prog, c->op, ZT_R_HPARAM, 0);
    int64_t begin, n;
    staged_range(c, staging, &begin, &n);
    for (int i = 0; i < c->op->n_accesses; i++) {
        const struct zt_access *a = &c->prog->accesses[c->op->first_access + i];
        if (a->role == ZT_R_M || a->role == ZT_R_V)
            c->dev->zero(c->s,
                         &(struct zt_zero){(unsigned char *)zt_engine_buf(c->e, a->buf) + a->begin,
                                           a->end - a->begin});
        else if (a->role != ZT_R_HPARAM)
            fetch_into(c, a, begin, n);
    }
}

static void op_load_unit(const struct ctx *c)
{
    const struct zt_access *staging = zt_op_operand(c->prog, c->op, ZT_R_HPARAM, 0);
    struct fill_task t = {.source = c->e->source, .plan = c->e->plan, .unit = c->op->unit};
    staged_range(c, staging, &t.begin, &t.n);
    t.out = arg(c, ZT_R_HPARAM, 0);
    c->dev->host_call(c->s, fill_unit_task, &t, sizeof t);
    place_values(c);
}

/* EVICT, and FETCH of a step: the same elements in the same type on the other side. */
static void op_move(const struct ctx *c)
{
    const struct zt_access *a = &c->prog->accesses[c->op->first_access];
    ZT_ASSERT_CMP(c->op->n_accesses, ==, 2);
    ZT_ASSERT_CMP(a[0].end - a[0].begin, ==, a[1].end - a[1].begin);
    struct zt_copy copy = {(unsigned char *)zt_engine_buf(c->e, a[1].buf) + a[1].begin,
                           (unsigned char *)zt_engine_buf(c->e, a[0].buf) + a[0].begin,
                           a[0].end - a[0].begin};
    c->dev->copy(c->s, &copy);
}

static void op_fetch(const struct ctx *c)
{
    if (c->prog->kind != ZT_PROG_INIT) {
        op_move(c);
    } else if (c->op->unit < 0) {
        struct zt_copy a = {arg(c, ZT_R_STEP, 0), &c->e->initial, sizeof c->e->initial};
        c->dev->copy(c->s, &a);
    } else {
        place_values(c);
    }
}

/* ---- segments ---- */

/* The access of a role whose buffer belongs to a unit. */
static const struct zt_access *of_unit(const struct ctx *c, enum zt_role role, int unit)
{
    const struct zt_access *a;
    for (int nth = 0; (a = zt_op_operand(c->prog, c->op, role, nth)); nth++)
        if (buf_of(c, a)->unit == unit)
            return a;
    return NULL;
}

static struct zt_ref param_ref(const struct ctx *c, const struct zt_access *a, int param)
{
    const struct zt_plan *p = c->e->plan;
    const struct zt_unit *u = &p->units[p->unit_of_param[param]];
    struct zt_ref r = {(unsigned char *)zt_engine_buf(c->e, a->buf) + a->begin,
                       buf_of(c, a)->dtype};
    r.ptr = elem(r, u->param_off[param - u->first_param]);
    return r;
}

static bool seg_has_param(const struct zt_segment *seg, int param)
{
    for (int i = 0; i < seg->n_params; i++)
        if (seg->params[i] == param)
            return true;
    return false;
}

static void zero_elems(const struct ctx *c, struct zt_ref base, int64_t begin, int64_t end)
{
    if (end > begin)
        c->dev->zero(c->s, &(struct zt_zero){elem(base, begin),
                                             (size_t)(end - begin) * zt_dtype_bytes(base.dtype)});
}

/*
 * A fresh gradient buffer is overwritten by the segment's tensors; what lies between them
 * (padding, and tensors that another segment adds to later) has to be zero.
 */
static void zero_rest(const struct ctx *c, const struct zt_segment *seg, int unit,
                      const struct zt_access *a)
{
    const struct zt_plan *p = c->e->plan;
    const struct zt_unit *u = &p->units[unit];
    struct zt_ref base = {(unsigned char *)zt_engine_buf(c->e, a->buf) + a->begin,
                          buf_of(c, a)->dtype};
    int64_t from = 0;
    for (int i = 0; i < u->n_params; i++) {
        int param = u->first_param + i;
        if (!seg_has_param(seg, param))
            continue;
        zero_elems(c, base, from, u->param_off[i]);
        from = u->param_off[i] + p->model->params[param].n_elems;
    }
    zero_elems(c, base, from, u->padded_elems);
}

static void bind_params(const struct ctx *c, const struct zt_segment *seg, struct zt_seg_call *call)
{
    const struct zt_plan *p = c->e->plan;
    int zeroed = -1;
    for (int i = 0; i < seg->n_params; i++) {
        int unit = p->unit_of_param[seg->params[i]];
        const struct zt_access *w = of_unit(c, ZT_R_PARAM, unit), *g = of_unit(c, ZT_R_GRAD, unit);
        if (w)
            call->weights[i] = param_ref(c, w, seg->params[i]);
        if (!g)
            continue;
        call->grads[i] = param_ref(c, g, seg->params[i]);
        call->accumulate[i] = (g->mode & ZT_READ) != 0;
        if (!call->accumulate[i] && unit != zeroed) {
            zero_rest(c, seg, unit, g);
            zeroed = unit;
        }
    }
}

static void bind_batch(const struct ctx *c, struct zt_seg_call *call)
{
    const int32_t *b = arg(c, ZT_R_BATCH, 0);
    if (!b)
        return;
    int64_t plane = plane_elems(c); /* the operand is this micro-batch's four planes */
    call->batch = (struct zt_batch){b, b + plane, b + 2 * plane, b + 3 * plane};
}

static void op_segment(const struct ctx *c)
{
    const struct zt_plan *p = c->e->plan;
    const struct zt_op *op = c->op;
    const struct zt_segment *seg = &p->model->segments[op->segment];
    bool train = c->prog->kind == ZT_PROG_TRAIN;
    struct zt_shape shape = {.batch = plane_elems(c) / p->cfg.seq_len,
                             .seq_len = p->cfg.seq_len,
                             .dtype = p->cfg.dtype,
                             .dev_kind = p->cfg.dev_kind,
                             .n_threads = p->cfg.n_threads,
                             .train = train};
    struct zt_seg_call call = {.dev = c->e->dev,
                               .stream = c->s,
                               .shape = &shape,
                               .segment = op->segment,
                               .sb = arg(c, ZT_R_STEP, 0),
                               .count = arg(c, ZT_R_COUNT, 0),
                               .dropout = train,
                               .first_sample = train ? zt_feed_first(c->e->feed_train, op->mb) : 0,
                               .x_in = arg(c, ZT_R_X_IN, 0),
                               .x_out = arg(c, ZT_R_X_OUT, 0),
                               .act = arg(c, ZT_R_ACT, 0),
                               .tmp = arg(c, ZT_R_TMP, 0),
                               .dx_out = arg(c, ZT_R_DX_OUT, 0),
                               .dx_in = arg(c, ZT_R_DX_IN, 0),
                               .loss_sum = arg(c, ZT_R_LOSS, 0),
                               .last_logits = arg(c, ZT_R_LOGITS, 0),
                               .logits_at = c->e->logits_at};
    const struct zt_access *tmp = zt_op_operand(c->prog, op, ZT_R_TMP, 0);
    call.tmp_bytes = tmp ? tmp->end - tmp->begin : 0;
    bind_batch(c, &call);
    bind_params(c, seg, &call);
    if (op->kind == ZT_OP_BACKWARD)
        p->model->ops->backward(p->model, &call);
    else
        p->model->ops->forward(p->model, &call);
}

/* ---- the table ---- */

static void (*const handlers[ZT_N_OP_KINDS])(const struct ctx *) = {
    [ZT_OP_LOAD_BATCH] = op_load_batch,
    [ZT_OP_COPY_BATCH] = op_copy_batch,
    [ZT_OP_COUNT] = op_count,
    [ZT_OP_GATHER] = op_gather,
    [ZT_OP_RELEASE] = op_release,
    [ZT_OP_FORWARD] = op_segment,
    [ZT_OP_RECOMPUTE] = op_segment,
    [ZT_OP_BACKWARD] = op_segment,
    [ZT_OP_CAST] = op_cast,
    [ZT_OP_REDUCE] = op_reduce,
    [ZT_OP_ALLGATHER] = op_allgather,
    [ZT_OP_NORM] = op_norm,
    [ZT_OP_VOTE] = op_vote,
    [ZT_OP_UPDATE] = op_update,
    [ZT_OP_STEP] = op_step,
    [ZT_OP_RESULT] = op_result,
    [ZT_OP_FETCH] = op_fetch,
    [ZT_OP_EVICT] = op_move,
    [ZT_OP_LOAD_UNIT] = op_load_unit,
};

void zt_engine_submit(struct zt_engine *e, const struct zt_program *prog, const struct zt_op *op)
{
    struct zt_stream *s = e->streams[op->stream];
    struct ctx c = {e, prog, op, s->dev->ops, e->coll->ops, s};
    ZT_ASSERT(handlers[op->kind]);
    handlers[op->kind](&c);
}
