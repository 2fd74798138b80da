#include "plan/emit.h"

/*
 * FORWARD, RECOMPUTE and BACKWARD of one segment, with the buffers they make: the residual stream
 * x, saved activations, their gradients dx, full gradients, scratch; and x on its way to the host and back.
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
                               .inner = zt_arena_alloc(&e->scratch, n, sizeof(int)),
                               .hx = zt_arena_alloc(&e->scratch, n, sizeof(int)),
                               .dx = zt_arena_alloc(&e->scratch, n, sizeof(int))};
}

static int buf_in(struct zt_emit *e, enum zt_arena_id arena, const char *what,
                  const struct zt_step *s, int segment, enum zt_cat cat, size_t bytes)
{
    const char *name = zt_arena_printf(&e->p->arena, "%s %s mb%d", what,
                                       e->p->model->segments[segment].name, s->mb);
    return zt_emit_buf(e, (struct zt_buf){.name = name,
                                          .cat = cat,
                                          .arena = arena,
                                          .used = bytes,
                                          .dtype = e->p->cfg.dtype,
                                          .unit = -1,
                                          .mb = s->mb});
}

static int segment_buf(struct zt_emit *e, const char *what, const struct zt_step *s, int segment,
                       enum zt_cat cat, size_t bytes)
{
    return buf_in(e, ZT_AR_DEVICE, what, s, segment, cat, bytes);
}

static bool is_head(const struct zt_emit *e, int segment)
{
    return e->p->model->segments[segment].kind == ZT_SEG_HEAD;
}

/* Blocks lie between the first and the last segment; runs begin at the first with a backward. */
struct zt_block_run zt_block_run(const struct zt_emit *e, int segment)
{
    const struct zt_plan_config *cfg = &e->p->cfg;
    const int first = ZT_MAX(1, e->lowest), last = e->p->model->n_segments - 2;
    if (cfg->recompute == ZT_RECOMPUTE_NONE || segment < first || segment > last)
        return (struct zt_block_run){0, -1};
    const int n = cfg->recompute == ZT_RECOMPUTE_EVERY ? cfg->recompute_every : 1;
    const int begin = first + (segment - first) / n * n;
    return (struct zt_block_run){begin, ZT_MIN(begin + n - 1, last)};
}

static bool is_recomputed(struct zt_block_run run)
{
    return run.first <= run.last;
}

/* Does the run's input wait on the host? That of the last run is needed again first, and stays. */
static bool on_host(const struct zt_emit *e, struct zt_block_run run)
{
    return e->p->cfg.cpu_checkpointing && is_recomputed(run) &&
           run.last < e->p->model->n_segments - 2;
}

/* Weights, batch, and for dropout the step block: what every pass of a segment reads. */
static void read_weights(struct zt_emit *e, const struct zt_compute *c, const struct zt_step *s,
                         const struct zt_gathers *g)
{
    const struct zt_segment *seg = &e->p->model->segments[s->segment];
    const struct zt_seg_units *units = &e->seg[s->segment];
    const bool weights = s->pass != ZT_PASS_BACKWARD || seg->weights_in_backward;
    for (int k = 0; k < units->n && weights; k++) {
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

/* One copy of the input of a run, x of the segment before it, to the host or back. */
static struct zt_op *copy_input(struct zt_emit *e, enum zt_op_kind kind, enum zt_stream_id stream,
                                const struct zt_step *s, struct zt_block_run run)
{
    struct zt_op *op = zt_emit_op(e, kind, stream, -1, run.first - 1, s->mb);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->sizes[run.first - 1].x_out;
    return op;
}

static void evict_input(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                        struct zt_block_run run)
{
    const int x = run.first - 1;
    copy_input(e, ZT_OP_EVICT, ZT_ST_COPY_OUT, s, run);
    c->hx[x] = buf_in(e, ZT_AR_HOST, "host x", s, x, ZT_CAT_ACT, e->sizes[x].x_out);
    zt_emit_whole(e, ZT_R_X_IN, ZT_READ, c->x[x]);
    zt_emit_whole(e, ZT_R_HX, ZT_WRITE, c->hx[x]);
}

static void fetch_input(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                        struct zt_block_run run)
{
    const int x = run.first - 1;
    copy_input(e, ZT_OP_FETCH, ZT_ST_COPY_IN, s, run);
    c->x[x] = segment_buf(e, "x back", s, x, ZT_CAT_ACT, e->sizes[x].x_out);
    zt_emit_whole(e, ZT_R_HX, ZT_READ, c->hx[x]);
    zt_emit_whole(e, ZT_R_X_IN, ZT_WRITE, c->x[x]);
}

/* A buffer of act's kept part, of its inner one, or of both. */
static int act_buf(struct zt_emit *e, const char *what, const struct zt_step *s, enum zt_cat cat,
                   bool kept, bool inner)
{
    const struct zt_segment_size *size = &e->sizes[s->segment];
    const struct zt_gaps *a = &size->kept_gaps, *b = &size->inner_gaps;
    const size_t start = kept ? size->act_kept : 0; /* of the inner part */
    const size_t bytes = start + (inner ? size->act - size->act_kept : 0);
    const int n = (kept ? a->n : 0) + (inner ? b->n : 0);
    const int buf = segment_buf(e, what, s, s->segment, cat, bytes);
    struct zt_extent *gaps = zt_arena_alloc(&e->p->arena, (size_t)n + 1, sizeof *gaps);
    int at = 0;
    for (int i = 0; kept && i < a->n; i++)
        gaps[at++] = a->at[i];
    for (int i = 0; inner && i < b->n; i++)
        gaps[at++] = (struct zt_extent){start + b->at[i].begin, start + b->at[i].end};
    e->p->bufs[buf].gaps = gaps;
    e->p->bufs[buf].n_gaps = n;
    return buf;
}

/*
 * Activations that nobody reads later, or that are made again, are scratch of this row; so is the inner
 * part of those that selective recomputation keeps.
 */
static void write_act(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s, bool again)
{
    const int seg = s->segment;
    const struct zt_segment_size *size = &e->sizes[seg];
    const bool selective = again && e->p->cfg.recompute == ZT_RECOMPUTE_SELECTIVE;
    const bool keep = selective || (c->train && seg >= e->lowest && !again);
    if (size->act == 0)
        return;
    c->act[seg] = act_buf(e, "act", s, keep ? ZT_CAT_ACT : ZT_CAT_WORKSPACE, true, !selective);
    zt_emit_whole(e, ZT_R_ACT, ZT_WRITE, c->act[seg]);
    if (selective)
        zt_emit_whole(e, ZT_R_INNER, ZT_WRITE,
                      act_buf(e, "inner", s, ZT_CAT_WORKSPACE, false, true));
}

static void emit_forward(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                         const struct zt_gathers *g)
{
    const int seg = s->segment;
    const struct zt_segment_size *size = &e->sizes[seg];
    const struct zt_block_run run = zt_block_run(e, seg);
    struct zt_op *op = zt_emit_op(e, ZT_OP_FORWARD, ZT_ST_COMPUTE, -1, seg, s->mb);
    op->cost_kind = ZT_COST_FLOP;
    op->cost = size->fwd_flops;
    read_weights(e, c, s, g);
    if (seg < e->p->model->n_segments - 1) {
        c->x[seg] = segment_buf(e, "x", s, seg, ZT_CAT_ACT, size->x_out);
        zt_emit_whole(e, ZT_R_X_OUT, ZT_WRITE, c->x[seg]);
    }
    write_act(e, c, s, c->train && is_recomputed(run));
    write_scratch(e, s, size->fwd_tmp);
    loss_operands(e, c, s, true);
    if (is_head(e, seg) && c->logits >= 0)
        zt_emit_whole(e, ZT_R_LOGITS, ZT_WRITE, c->logits);
    if (c->train && on_host(e, run) && seg == run.first)
        evict_input(e, c, s, run);
}

/* The part of forward that a row of recomputation repeats. */
static double again_flops(const struct zt_emit *e, const struct zt_step *s)
{
    const struct zt_segment_size *size = &e->sizes[s->segment];
    if (e->p->cfg.recompute == ZT_RECOMPUTE_SELECTIVE)
        return size->inner_flops;
    return s->segment < zt_block_run(e, s->segment).last ? size->fwd_flops : size->act_flops;
}

static void emit_recompute(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                           const struct zt_gathers *g)
{
    const int seg = s->segment;
    const struct zt_segment_size *size = &e->sizes[seg];
    const struct zt_block_run run = zt_block_run(e, seg), before = zt_block_run(e, run.first - 1);
    if (seg == run.first && on_host(e, before))
        fetch_input(e, c, s, before); /* ahead of its use by the time of this run */
    struct zt_op *op = zt_emit_op(e, ZT_OP_RECOMPUTE, ZT_ST_COMPUTE, -1, seg, s->mb);
    op->cost_kind = ZT_COST_FLOP;
    op->cost = again_flops(e, s);
    read_weights(e, c, s, g);
    if (e->p->cfg.recompute == ZT_RECOMPUTE_SELECTIVE) {
        zt_emit_whole(e, ZT_R_ACT, ZT_READ, c->act[seg]);
        c->inner[seg] = act_buf(e, "inner again", s, ZT_CAT_ACT, false, true);
        zt_emit_whole(e, ZT_R_INNER, ZT_WRITE, c->inner[seg]);
    } else {
        if (seg < run.last) {
            c->x[seg] = segment_buf(e, "x again", s, seg, ZT_CAT_ACT, size->x_out);
            zt_emit_whole(e, ZT_R_X_OUT, ZT_WRITE, c->x[seg]);
        }
        c->act[seg] = act_buf(e, "act again", s, ZT_CAT_ACT, true, true);
        zt_emit_whole(e, ZT_R_ACT, ZT_WRITE, c->act[seg]);
    }
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

static void emit_backward(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
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
    if (is_recomputed(zt_block_run(e, seg)) && e->p->cfg.recompute == ZT_RECOMPUTE_SELECTIVE)
        zt_emit_whole(e, ZT_R_INNER, ZT_READ | ZT_WRITE, c->inner[seg]);
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

void zt_emit_pass(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                  const struct zt_gathers *g)
{
    static void (*const passes[ZT_N_PASSES])(struct zt_emit *, struct zt_compute *,
                                             const struct zt_step *, const struct zt_gathers *) = {
        [ZT_PASS_FORWARD] = emit_forward,
        [ZT_PASS_RECOMPUTE] = emit_recompute,
        [ZT_PASS_BACKWARD] = emit_backward,
    };
    passes[s->pass](e, c, s, g);
}
