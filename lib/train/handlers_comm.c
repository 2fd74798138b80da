/* What ranks exchange: parameters, gradients, the decision at the end of a step. */
#include "train/handlers.h"

#include "optim/groups.h"

/* ---- parameters and gradients between ranks ---- */

void zt_do_gather(const struct zt_op_ctx *c)
{
    zt_all_gather(c->e->coll, c->s, c->op->group, zt_op_arg(c, ZT_R_SHARD, 0),
                  zt_op_arg(c, ZT_R_PARAM, 0), c->op->count, c->op->dtype);
}

/* What the ranks hold whole, from their slices; in place unless the slice is a buffer of its own. */
void zt_do_allgather(const struct zt_op_ctx *c)
{
    const struct zt_access *own = &c->prog->accesses[c->op->first_access];
    const struct zt_access *last = own + c->op->n_accesses - 1;
    zt_all_gather(c->e->coll, c->s, c->op->group, zt_engine_at(c->e, own),
                  zt_engine_buf(c->e, last->buf), c->op->count, c->op->dtype);
}

void zt_do_release(const struct zt_op_ctx *c)
{
    (void)c; /* a mark in the list: the gathered bytes are free from here on */
}

void zt_do_cast(const struct zt_op_ctx *c)
{
    struct zt_cast a = {zt_op_unit(c)->padded_elems, zt_op_whole(c, ZT_R_GRAD),
                        zt_op_ref(c, ZT_R_CAST, 0), false};
    c->dev->cast(c->s, &a);
}

/* The norm partial of a unit's reduced slice: frozen tensors do not count. */
static void sum_squares(const struct zt_op_ctx *c, struct zt_ref slice)
{
    const struct zt_span *spans = c->e->spans[c->op->unit];
    const int n = c->e->n_spans[c->op->unit];
    struct zt_sum_sq a = {0, slice, zt_op_arg(c, ZT_R_PARTIAL, 0), false};
    if (n == 0)
        c->dev->sum_sq(c->s, &a);
    for (int i = 0; i < n; i++) {
        a.n = spans[i].end - spans[i].begin;
        a.x.ptr = zt_elem_at(slice, spans[i].begin);
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
void zt_do_reduce(const struct zt_op_ctx *c)
{
    const struct zt_op *op = c->op;
    struct zt_ref send = zt_op_ref(c, ZT_R_CAST, 0), stage = zt_op_ref(c, ZT_R_STAGE, 0);
    struct zt_ref slice = zt_op_ref(c, ZT_R_GSHARD, 0);
    if (!slice.ptr)
        slice = zt_op_ref(c, ZT_R_GRAD, 0); /* own slice comes first */
    if (!send.ptr)
        send = zt_op_whole(c, ZT_R_GRAD);
    if (op->group) {
        struct zt_ref recv = stage.ptr ? stage : slice;
        zt_reduce_scatter(c->e->coll, c->s, op->group, send.ptr, send.dtype, recv.ptr, recv.dtype,
                          op->count);
    }
    if (stage.ptr) {
        const struct zt_access *a = zt_op_operand(c->prog, op, ZT_R_GSHARD, 0);
        struct zt_cast add = {op->count, stage, slice, (a->mode & ZT_READ) != 0};
        c->dev->cast(c->s, &add);
    }
    if (op->last_use)
        sum_squares(c, slice);
}

/* ---- the decision ---- */

void zt_do_norm(const struct zt_op_ctx *c)
{
    const struct zt_plan *p = c->e->plan;
    bool train = c->prog->kind == ZT_PROG_TRAIN;
    const void *mine = zt_op_arg(c, train ? ZT_R_PARTIAL : ZT_R_LOSS, 0);
    void *all = zt_op_arg(c, ZT_R_PARTIALS_ALL, 0);
    zt_all_gather(c->e->coll, c->s, c->op->group, mine, all, c->op->count, c->op->dtype);
    if (!train)
        return; /* evaluation: the host adds the records up */
    struct zt_norm_finish a = {.n_ranks = zt_group_size(&p->cfg.mesh, c->op->group),
                               .n_units = p->n_partials,
                               .n_losses = p->cfg.accum,
                               .record_bytes = (size_t)c->op->count * zt_dtype_bytes(c->op->dtype),
                               .records = all,
                               .count = zt_op_arg(c, ZT_R_COUNT, 0),
                               .sb = zt_op_arg(c, ZT_R_STEP, 0)};
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

void zt_do_vote(const struct zt_op_ctx *c)
{
    struct request_task r = {c->e->request, zt_op_arg(c, ZT_R_REQUEST, 0)};
    struct zt_vote *vote = zt_op_arg(c, ZT_R_VOTE, 0);
    struct zt_step_block *sb = zt_op_arg(c, ZT_R_STEP, 0);
    c->dev->host_call(c->s, write_request, &r, sizeof r);
    c->dev->vote_begin(c->s, &(struct zt_vote_begin){sb, r.where, vote});
    zt_all_reduce(c->e->coll, c->s, c->op->group, vote, vote, sizeof *vote / 4, ZT_I32, ZT_MAX);
    c->dev->vote_finish(c->s, &(struct zt_vote_finish){vote, sb});
}
