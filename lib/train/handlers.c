#include "train/handlers.h"

#include "dev/queue.h"

void *zt_op_arg(const struct zt_op_ctx *c, enum zt_role role, int nth)
{
    return zt_engine_operand(c->e, c->prog, c->op, role, nth);
}

const struct zt_buf *zt_op_buf(const struct zt_op_ctx *c, const struct zt_access *a)
{
    return &c->e->plan->bufs[a->buf];
}

struct zt_ref zt_op_ref(const struct zt_op_ctx *c, enum zt_role role, int nth)
{
    const struct zt_access *a = zt_op_operand(c->prog, c->op, role, nth);
    struct zt_ref r = {NULL, ZT_F32};
    if (a) {
        r.ptr = zt_engine_at(c->e, a);
        r.dtype = zt_op_buf(c, a)->dtype;
    }
    return r;
}

struct zt_ref zt_op_whole(const struct zt_op_ctx *c, enum zt_role role)
{
    const struct zt_access *a = zt_op_operand(c->prog, c->op, role, 0);
    struct zt_ref r = {NULL, ZT_F32};
    if (a) {
        r.ptr = zt_engine_buf(c->e, a->buf);
        r.dtype = zt_op_buf(c, a)->dtype;
    }
    return r;
}

unsigned char *zt_elem_at(struct zt_ref r, int64_t i)
{
    return (unsigned char *)r.ptr + (size_t)i * zt_dtype_bytes(r.dtype);
}

const struct zt_unit *zt_op_unit(const struct zt_op_ctx *c)
{
    return &c->e->plan->units[c->op->unit];
}

int64_t zt_op_plane_elems(const struct zt_op_ctx *c)
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

/* ---- the table ---- */

static void (*const handlers[ZT_N_OP_KINDS])(const struct zt_op_ctx *) = {
    [ZT_OP_LOAD_BATCH] = zt_do_load_batch,
    [ZT_OP_COPY_BATCH] = zt_do_copy_batch,
    [ZT_OP_COUNT] = zt_do_count,
    [ZT_OP_GATHER] = zt_do_gather,
    [ZT_OP_RELEASE] = zt_do_release,
    [ZT_OP_FORWARD] = zt_do_segment,
    [ZT_OP_RECOMPUTE] = zt_do_segment,
    [ZT_OP_BACKWARD] = zt_do_segment,
    [ZT_OP_CAST] = zt_do_cast,
    [ZT_OP_REDUCE] = zt_do_reduce,
    [ZT_OP_ALLGATHER] = zt_do_allgather,
    [ZT_OP_NORM] = zt_do_norm,
    [ZT_OP_VOTE] = zt_do_vote,
    [ZT_OP_UPDATE] = zt_do_update,
    [ZT_OP_STEP] = zt_do_step,
    [ZT_OP_RESULT] = zt_do_result,
    [ZT_OP_FETCH] = zt_do_fetch,
    [ZT_OP_EVICT] = zt_do_move,
    [ZT_OP_READ] = zt_do_disk,
    [ZT_OP_WRITE] = zt_do_disk,
    [ZT_OP_LOAD_UNIT] = zt_do_load_unit,
    [ZT_OP_SAVE_UNIT] = zt_do_move,
};

void zt_engine_submit(struct zt_engine *e, const struct zt_program *prog, const struct zt_op *op)
{
    struct zt_stream *s = e->streams[op->stream];
    struct zt_op_ctx c = {e, prog, op, s->dev->ops, s};
    ZT_ASSERT(handlers[op->kind]);
    handlers[op->kind](&c);
}
