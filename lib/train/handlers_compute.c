/* FORWARD, RECOMPUTE and BACKWARD of a segment: operands by role -> the model. */
#include "train/handlers.h"

/* The access of a role whose buffer belongs to a unit. */
static const struct zt_access *of_unit(const struct zt_op_ctx *c, enum zt_role role, int unit)
{
    const struct zt_access *a;
    for (int nth = 0; (a = zt_op_operand(c->prog, c->op, role, nth)); nth++)
        if (zt_op_buf(c, a)->unit == unit)
            return a;
    return NULL;
}

static struct zt_ref param_ref(const struct zt_op_ctx *c, const struct zt_access *a, int param)
{
    const struct zt_plan *p = c->e->plan;
    const struct zt_unit *u = &p->units[p->unit_of_param[param]];
    struct zt_ref r = {zt_engine_at(c->e, a), zt_op_buf(c, a)->dtype};
    r.ptr = zt_elem_at(r, u->param_off[param - u->first_param]);
    return r;
}

static bool seg_has_param(const struct zt_segment *seg, int param)
{
    for (int i = 0; i < seg->n_params; i++)
        if (seg->params[i] == param)
            return true;
    return false;
}

static void zero_elems(const struct zt_op_ctx *c, struct zt_ref base, int64_t begin, int64_t end)
{
    if (end > begin)
        c->dev->zero(c->s, &(struct zt_zero){zt_elem_at(base, begin),
                                             (size_t)(end - begin) * zt_dtype_bytes(base.dtype)});
}

/*
 * A fresh gradient buffer is overwritten by the segment's tensors; what lies between them
 * (padding, and tensors that another segment adds to later) has to be zero.
 */
static void zero_rest(const struct zt_op_ctx *c, const struct zt_segment *seg, int unit,
                      const struct zt_access *a)
{
    const struct zt_plan *p = c->e->plan;
    const struct zt_unit *u = &p->units[unit];
    struct zt_ref base = {zt_engine_at(c->e, a), zt_op_buf(c, a)->dtype};
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

static void bind_params(const struct zt_op_ctx *c, const struct zt_segment *seg,
                        struct zt_seg_call *call)
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

static void bind_batch(const struct zt_op_ctx *c, struct zt_seg_call *call)
{
    const int32_t *b = zt_op_arg(c, ZT_R_BATCH, 0);
    if (!b)
        return;
    int64_t plane = zt_op_plane_elems(c); /* the operand is this micro-batch's four planes */
    call->batch = (struct zt_batch){b, b + plane, b + 2 * plane, b + 3 * plane};
}

void zt_do_segment(const struct zt_op_ctx *c)
{
    const struct zt_plan *p = c->e->plan;
    const struct zt_op *op = c->op;
    const struct zt_segment *seg = &p->model->segments[op->segment];
    bool train = c->prog->kind == ZT_PROG_TRAIN;
    const struct zt_shape shape =
        zt_plan_shape(&p->cfg, zt_op_plane_elems(c) / p->cfg.seq_len, train);
    struct zt_seg_call call = {.dev = c->e->dev,
                               .stream = c->s,
                               .shape = &shape,
                               .segment = op->segment,
                               .sb = zt_op_arg(c, ZT_R_STEP, 0),
                               .count = zt_op_arg(c, ZT_R_COUNT, 0),
                               .dropout = train,
                               .first_sample = train ? zt_feed_first(c->e->feed_train, op->mb) : 0,
                               .x_in = zt_op_arg(c, ZT_R_X_IN, 0),
                               .x_out = zt_op_arg(c, ZT_R_X_OUT, 0),
                               .act = zt_op_arg(c, ZT_R_ACT, 0),
                               .act_inner = zt_op_arg(c, ZT_R_INNER, 0),
                               .tmp = zt_op_arg(c, ZT_R_TMP, 0),
                               .dx_out = zt_op_arg(c, ZT_R_DX_OUT, 0),
                               .dx_in = zt_op_arg(c, ZT_R_DX_IN, 0),
                               .loss_sum = zt_op_arg(c, ZT_R_LOSS, 0),
                               .last_logits = zt_op_arg(c, ZT_R_LOGITS, 0),
                               .logits_at = c->e->logits_at};
    const struct zt_access *tmp = zt_op_operand(c->prog, op, ZT_R_TMP, 0);
    call.tmp_bytes = tmp ? tmp->end - tmp->begin : 0;
    if (op->kind == ZT_OP_RECOMPUTE)
        call.part = call.act_inner ? ZT_FWD_INNER : call.x_out ? ZT_FWD_ALL : ZT_FWD_ACT;
    bind_batch(c, &call);
    bind_params(c, seg, &call);
    if (op->kind == ZT_OP_BACKWARD)
        p->model->ops->backward(p->model, &call);
    else
        p->model->ops->forward(p->model, &call);
}
