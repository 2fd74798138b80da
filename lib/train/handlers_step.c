/* The end of a step: UPDATE, STEP, RESULT. */
#include "train/handlers.h"

#include "base/clock.h"

/*
 * Elements of a new parameter buffer that belong to no range of UPDATE: padding and frozen tensors. They
 * are the master's, as INIT left it.
 */
static void fill_gaps(const struct zt_op_ctx *c, const struct zt_update *a, int64_t n)
{
    int64_t from = 0;
    for (int i = 0; i <= a->n_ranges; i++) {
        const int64_t to = i < a->n_ranges ? a->ranges[i].begin : n;
        struct zt_ref src = {zt_elem_at(a->master, from), ZT_F32};
        struct zt_ref dst = {zt_elem_at(a->param, from), a->param.dtype};
        if (to > from)
            c->dev->cast(c->s, &(struct zt_cast){to - from, src, dst, false});
        from = i < a->n_ranges ? a->ranges[i].end : n;
    }
}

/* The first operand that the op has, of two roles. */
static struct zt_ref either(const struct zt_op_ctx *c, enum zt_role first, enum zt_role second)
{
    struct zt_ref r = zt_op_ref(c, first, 0);
    return r.ptr ? r : zt_op_ref(c, second, 0);
}

/* The parameters that UPDATE writes: where they live, or a new buffer that is copied there. */
static const struct zt_access *updated(const struct zt_op_ctx *c)
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
void zt_do_update(const struct zt_op_ctx *c)
{
    const struct zt_access *out = updated(c);
    const bool fresh = zt_op_buf(c, out)->program >= 0 && !(out->mode & ZT_READ);
    const struct zt_ref grad = either(c, ZT_R_GSHARD, ZT_R_GRAD);
    struct zt_update a = {.optimizer = c->e->plan->cfg.optimizer,
                          .ranges = c->e->ranges[c->op->unit],
                          .n_ranges = c->e->n_ranges[c->op->unit],
                          .sb = zt_op_arg(c, ZT_R_STEP, 0),
                          .grad = grad.ptr ? grad : zt_op_ref(c, ZT_R_HGRAD, 0),
                          .m = zt_op_arg(c, ZT_R_M, 0),
                          .v = zt_op_arg(c, ZT_R_V, 0),
                          .master = zt_op_ref(c, ZT_R_MASTER, 0),
                          .param = zt_op_ref(c, (enum zt_role)out->role, 0),
                          .fresh = fresh};
    c->dev->update(c->s, &a);
    if (fresh)
        fill_gaps(c, &a, (int64_t)((out->end - out->begin) / zt_dtype_bytes(a.param.dtype)));
}

void zt_do_step(const struct zt_op_ctx *c)
{
    c->dev->step_advance(c->s, &(struct zt_step_advance){zt_op_arg(c, ZT_R_STEP, 0)});
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
void zt_do_result(const struct zt_op_ctx *c)
{
    struct zt_engine *e = c->e;
    unsigned char *dst = zt_op_arg(c, ZT_R_RESULT, 0);
    if (c->prog->kind != ZT_PROG_TRAIN) {
        enum zt_role role = c->prog->kind == ZT_PROG_EVAL    ? ZT_R_PARTIALS_ALL
                            : c->prog->kind == ZT_PROG_AGREE ? ZT_R_VOTE
                                                             : ZT_R_LOGITS;
        const struct zt_access *a = zt_op_operand(c->prog, c->op, role, 0);
        c->dev->copy(c->s, &(struct zt_copy){dst, zt_op_arg(c, role, 0), a->end - a->begin});
        return;
    }
    struct zt_step_result *result = (void *)dst;
    struct zt_copy sb = {&result->sb, zt_op_arg(c, ZT_R_STEP, 0), sizeof result->sb};
    struct zt_copy vote = {&result->vote, zt_op_arg(c, ZT_R_VOTE, 0), sizeof result->vote};
    struct result_task t = {result, &e->outcomes[e->n_train_runs & 1]};
    c->dev->copy(c->s, &sb);
    c->dev->copy(c->s, &vote);
    c->dev->host_call(c->s, take_result, &t, sizeof t);
    e->outcome_events[e->n_train_runs & 1] = c->dev->record(c->s);
}
