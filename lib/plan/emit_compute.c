#include "plan/emit.h"

/*
 * FORWARD, RECOMPUTE and BACKWARD of one segment, with the buffers they make: the residual stream
 * x, saved activations, their gradients dx, full gradients, scratch.
 */

struct zt_compute zt_compute_new(struct zt_emit *e, const struct zt_batch_bufs *batch, bool train)
{
    const size_t n = (size_t)e->p->model->n_segments;
    return (struct zt_compute){.batch = batch,
                               .loss = -1,
                               .logits = -1,
                               .count = -1,
                               .train = train,
                               .x = zt_arena_alloc(&e->scratch, n, sizeof(int)),
                               .act = zt_arena_alloc(&e->scratch, n, sizeof(int)),
                               .dx = zt_arena_alloc(&e->scratch, n, sizeof(int))};
}

static int segment_buf(struct zt_emit *e, const char *what, const struct zt_step *s, int segment,
                       enum zt_cat cat, size_t bytes)
{
    const char *name = zt_arena_printf(&e->p->arena, "%s %s mb%d", what,
                                       e->p->model->segments[segment].name, s->mb);
    return zt_emit_buf(e, (struct zt_buf){.name = name,
                                          .cat = cat,
                                          .arena = ZT_AR_DEVICE,
                                          .used = bytes,
                                          .dtype = e->p->cfg.dtype,
                                          .unit = -1,
                                          .mb = s->mb});
}

static bool is_head(const struct zt_emit *e, int segment)
{
    return e->p->model->segments[segment].kind == ZT_SEG_HEAD;
}

static bool recomputed(const struct zt_emit *e, const struct zt_step *s)
{
    return e->p->cfg.recompute == ZT_RECOMPUTE_BLOCK &&
           e->p->model->segments[s->segment].kind == ZT_SEG_BLOCK;
}

/* Weights, batch, and for dropout the step block: what every pass of a segment reads. */
static void read_weights(struct zt_emit *e, const struct zt_compute *c, const struct zt_step *s,
                         const struct zt_gathers *g)
{
    const struct zt_segment *seg = &e->p->model->segments[s->segment];
    const struct zt_seg_units *units = &e->seg[s->segment];
    for (int k = 0; k < units->n && (!s->backward || seg->weights_in_backward); k++) {
        const int buf =
            e->rows.params_full ? e->units[units->units[k]].param : g->gathers[s->uses[k]].buf;
        zt_emit_whole(e, ZT_R_PARAM, ZT_READ, buf);
    }
    const size_t begin = (size_t)s->mb * c->batch->mb_bytes;
    zt_emit_access(e, ZT_R_BATCH, ZT_READ, c->batch->dev, begin, begin + c->batch->mb_bytes);
    if (s->segment > 0)
        zt_emit_whole(e, ZT_R_X_IN, ZT_READ, c->x[s->segment - 1]);
    if (c->train && seg->drops)
        zt_emit_whole(e, ZT_R_STEP, ZT_READ, e->step);
}

/* The head's part in the loss: count and step block in, the micro-batch's loss sum out. */
static void loss_operands(struct zt_emit *e, const struct zt_compute *c, const struct zt_step *s,
                          bool write_loss)
{
    if (!is_head(e, s->segment) || c->loss < 0)
        return;
    zt_emit_access(e, ZT_R_COUNT, ZT_READ, c->count, c->count_begin,
                   c->count_begin + sizeof(struct zt_count));
    zt_emit_whole(e, ZT_R_STEP, ZT_READ, e->step);
    const size_t begin = c->loss_begin + (size_t)s->mb * sizeof(double);
    if (write_loss)
        zt_emit_access(e, ZT_R_LOSS, ZT_WRITE, c->loss, begin, begin + sizeof(double));
}

static void write_scratch(struct zt_emit *e, const struct zt_step *s, size_t bytes)
{
    if (bytes > 0)
        zt_emit_whole(e, ZT_R_TMP, ZT_WRITE,
                      segment_buf(e, "tmp", s, s->segment, ZT_CAT_WORKSPACE, bytes));
}

void zt_emit_forward(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                     const struct zt_gathers *g)
{
    const int seg = s->segment;
    const struct zt_segment_size *size = &e->sizes[seg];
    /* Activations that nobody reads later, or that are made again, are scratch of this row. */
    const bool keep = c->train && !recomputed(e, s) && seg >= e->lowest;
    struct zt_op *op = zt_emit_op(e, ZT_OP_FORWARD, ZT_ST_COMPUTE, -1, seg, s->mb);
    op->cost_kind = ZT_COST_FLOP;
    op->cost = size->fwd_flops;
    read_weights(e, c, s, g);
    if (seg < e->p->model->n_segments - 1) {
        c->x[seg] = segment_buf(e, "x", s, seg, ZT_CAT_ACT, size->x_out);
        zt_emit_whole(e, ZT_R_X_OUT, ZT_WRITE, c->x[seg]);
    }
    if (size->act > 0) {
        c->act[seg] =
            segment_buf(e, "act", s, seg, keep ? ZT_CAT_ACT : ZT_CAT_WORKSPACE, size->act);
        zt_emit_whole(e, ZT_R_ACT, ZT_WRITE, c->act[seg]);
    }
    write_scratch(e, s, size->fwd_tmp);
    loss_operands(e, c, s, true);
    if (is_head(e, seg) && c->logits >= 0)
        zt_emit_whole(e, ZT_R_LOGITS, ZT_WRITE, c->logits);
}

void zt_emit_recompute(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                       const struct zt_gathers *g)
{
    const int seg = s->segment;
    const struct zt_segment_size *size = &e->sizes[seg];
    if (!recomputed(e, s) || size->act == 0)
        return;
    struct zt_op *op = zt_emit_op(e, ZT_OP_RECOMPUTE, ZT_ST_COMPUTE, -1, seg, s->mb);
    op->cost_kind = ZT_COST_FLOP;
    op->cost = size->fwd_flops;
    read_weights(e, c, s, g);
    c->act[seg] = segment_buf(e, "act again", s, seg, ZT_CAT_ACT, size->act);
    zt_emit_whole(e, ZT_R_ACT, ZT_WRITE, c->act[seg]);
    write_scratch(e, s, size->fwd_tmp);
}

/* Full gradients of the segment's units; returns whether all of them are overwritten. */
static bool write_grads(struct zt_emit *e, const struct zt_step *s)
{
    const struct zt_seg_units *units = &e->seg[s->segment];
    bool all_fresh = true;
    for (int k = 0; k < units->n; k++) {
        const int u = units->units[k];
        struct zt_unit_state *st = &e->units[u];
        if (e->p->units[u].frozen)
            continue;
        const bool fresh = st->grad < 0;
        if (fresh) {
            const bool sent = e->p->n_shards > 1 && !st->types.cast;
            const bool gathered = e->rows.gather_grads && st->types.in_place;
            const char *name =
                zt_arena_printf(&e->p->arena, "grad %s mb%d", e->p->units[u].name, s->mb);
            st->grad = zt_emit_unit_buf(
                e, u, true,
                (struct zt_buf){.name = name,
                                .cat = ZT_CAT_GRAD,
                                .arena = sent || gathered ? e->peer_arena : ZT_AR_DEVICE,
                                .dtype = st->types.full,
                                .mb = s->mb});
        }
        /* The whole buffer, also where the segment has tensors for a part of it only. */
        zt_emit_whole(e, ZT_R_GRAD, fresh ? ZT_WRITE : ZT_READ | ZT_WRITE, st->grad);
        all_fresh &= fresh;
    }
    return all_fresh;
}

void zt_emit_backward(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                      const struct zt_gathers *g)
{
    const int seg = s->segment;
    const struct zt_segment_size *size = &e->sizes[seg];
    const bool fused = e->p->model->segments[seg].fused_backward;
    struct zt_op *op = zt_emit_op(e, ZT_OP_BACKWARD, ZT_ST_COMPUTE, -1, seg, s->mb);
    const int index = e->prog->n_ops - 1;
    op->cost_kind = ZT_COST_FLOP;
    op->cost = size->bwd_flops;
    read_weights(e, c, s, g);
    if (size->act > 0 && !fused)
        zt_emit_whole(e, ZT_R_ACT, ZT_READ | ZT_WRITE, c->act[seg]); /* read, then scratch */
    if (seg < e->p->model->n_segments - 1)
        zt_emit_whole(e, ZT_R_DX_OUT, ZT_READ, c->dx[seg]);
    e->prog->ops[index].first_use = write_grads(e, s);
    if (seg > 0) {
        c->dx[seg - 1] = segment_buf(e, "dx", s, seg - 1, ZT_CAT_ACT, e->sizes[seg - 1].x_out);
        zt_emit_whole(e, ZT_R_DX_IN, ZT_WRITE, c->dx[seg - 1]);
    }
    write_scratch(e, s, size->bwd_tmp);
    loss_operands(e, c, s, fused);
}
