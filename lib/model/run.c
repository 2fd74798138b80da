#include "model/model_internal.h"

#include "base/size.h"

/* ---- kernels ---- */

/* Where a kernel's workspace lies in tmp; `need` is what it asked for. */
static void *workspace(struct zt_run *r, size_t need, size_t *ws_bytes)
{
    *ws_bytes = need;
    if (r->dry) {
        r->ws_bytes = ZT_MAX(r->ws_bytes, need);
        return NULL;
    }
    ZT_ASSERT_CMP(r->scratch + need, <=, r->c->tmp_bytes);
    return need ? (char *)r->c->tmp + r->scratch : NULL;
}

void zt_run_matmul(struct zt_run *r, struct zt_matmul a)
{
    const struct zt_shape *s = r->c->shape;
    a.ws = workspace(r, zt_ws_matmul(s->dev_kind, &a, s->n_threads), &a.ws_bytes);
    r->flops += 2 * (double)a.m * (double)a.n * (double)a.k;
    if (!r->dry)
        r->c->dev->ops->matmul(r->c->stream, &a);
}

void zt_run_embed_bwd(struct zt_run *r, struct zt_embed_bwd a)
{
    const struct zt_shape *s = r->c->shape;
    a.ws =
        workspace(r, zt_ws_embed_bwd(s->dev_kind, a.rows, a.vocab, a.max_positions), &a.ws_bytes);
    if (!r->dry)
        r->c->dev->ops->embed_bwd(r->c->stream, &a);
}

/* One product of all heads: 2 head_dim for each of the T (T + 1) / 2 causal pairs. */
static double attention_product_flops(const struct zt_attention *a)
{
    const double t = (double)a->q_len;
    return (double)a->batch * a->n_head * a->head_dim * t * (t + 1);
}

void zt_run_attention_fwd(struct zt_run *r, struct zt_attention a)
{
    const struct zt_shape *s = r->c->shape;
    a.ws = workspace(r, zt_ws_attention(s->dev_kind, &a, false, s->n_threads), &a.ws_bytes);
    r->flops += 2 * attention_product_flops(&a);
    if (!r->dry)
        r->c->dev->ops->attention_fwd(r->c->stream, &a);
}

void zt_run_attention_bwd(struct zt_run *r, struct zt_attention a)
{
    const struct zt_shape *s = r->c->shape;
    a.ws = workspace(r, zt_ws_attention(s->dev_kind, &a, true, s->n_threads), &a.ws_bytes);
    r->flops += 5 * attention_product_flops(&a);
    if (!r->dry)
        r->c->dev->ops->attention_bwd(r->c->stream, &a);
}

struct zt_dropout zt_run_dropout(const struct zt_run *r, double p, enum zt_drop_site site)
{
    const int layer = ZT_MAX(r->m->segments[r->c->segment].layer, 0);
    struct zt_dropout d = {
        .site = (uint32_t)site + (uint32_t)(layer * ZT_DROP_PER_LAYER),
        .first = r->c->first_sample,
        .sb = r->c->sb,
    };
    zt_dropout_set_p(&d, r->c->dropout ? p : 0);
    return d;
}

void zt_run_drop_add(struct zt_run *r, const struct zt_dropout *drop, int64_t cols, struct zt_ref x,
                     struct zt_ref residual, struct zt_ref out)
{
    const struct zt_shape *s = r->c->shape;
    const struct zt_drop_add a = {
        .rows = s->batch * s->seq_len,
        .cols = cols,
        .seq_len = s->seq_len,
        .drop = *drop,
        .x = x,
        .residual = residual,
        .out = out,
    };
    if (!r->dry)
        r->c->dev->ops->drop_add(r->c->stream, &a);
}

/* ---- segments ---- */

static const struct {
    void (*forward)(struct zt_run *r);
    void (*backward)(struct zt_run *r);
} ends[] = {
    [ZT_SEG_EMBED] = {zt_embed_forward, zt_embed_backward},
    [ZT_SEG_HEAD] = {zt_head_forward, zt_head_backward},
};

static void run_forward(struct zt_run *r)
{
    const enum zt_segment_kind kind = r->m->segments[r->c->segment].kind;
    (kind == ZT_SEG_BLOCK ? r->m->block->forward : ends[kind].forward)(r);
}

static void run_backward(struct zt_run *r)
{
    const enum zt_segment_kind kind = r->m->segments[r->c->segment].kind;
    (kind == ZT_SEG_BLOCK ? r->m->block->backward : ends[kind].backward)(r);
}

/* The scratch and FLOPs of both passes, by dry runs. */
static void size_passes(const struct zt_model *m, int segment, const struct zt_shape *shape,
                        struct zt_segment_size *out)
{
    struct zt_seg_call c = {.shape = shape, .segment = segment, .dropout = shape->train};
    for (int i = 0; i < ZT_MAX_SEG_PARAMS; i++)
        c.weights[i].dtype = shape->dtype;

    double *const flops[] = {[ZT_FWD_ALL] = &out->fwd_flops,
                             [ZT_FWD_ACT] = &out->act_flops,
                             [ZT_FWD_INNER] = &out->inner_flops};
    const bool parts = shape->train && m->segments[segment].kind == ZT_SEG_BLOCK;
    for (int part = 0; part <= (parts ? ZT_FWD_INNER : ZT_FWD_ALL); part++) {
        struct zt_run fwd = {.m = m, .c = &c, .dry = true};
        c.part = (enum zt_forward_part)part;
        run_forward(&fwd);
        out->fwd_tmp = ZT_MAX(out->fwd_tmp, fwd.scratch + fwd.ws_bytes);
        *flops[part] = fwd.flops;
    }
    if (!shape->train)
        return;

    /* The plan decides what type each gradient has and whether it accumulates. */
    for (int choice = 0; choice < 4; choice++) {
        for (int i = 0; i < ZT_MAX_SEG_PARAMS; i++) {
            c.grads[i].dtype = choice & 1 ? ZT_F32 : shape->dtype;
            c.accumulate[i] = choice & 2;
        }
        struct zt_run bwd = {.m = m, .c = &c, .dry = true};
        run_backward(&bwd);
        out->bwd_tmp = ZT_MAX(out->bwd_tmp, bwd.scratch + bwd.ws_bytes);
        out->bwd_flops = bwd.flops;
    }
}

static void segment_size(const struct zt_model *m, int segment, const struct zt_shape *shape,
                         struct zt_segment_size *out)
{
    const enum zt_segment_kind kind = m->segments[segment].kind;
    const int64_t rows = shape->batch * shape->seq_len;
    ZT_ASSERT_CMP(rows, <=, INT32_MAX);
    *out = (struct zt_segment_size){0};
    size_passes(m, segment, shape, out);
    if (kind != ZT_SEG_HEAD)
        out->x_out = (size_t)(rows * m->cfg.n_embd) * zt_dtype_bytes(shape->dtype);
    if (kind != ZT_SEG_BLOCK || !shape->train)
        return;
    struct zt_layout kept, inner;
    m->block->act_layout(m, shape, &kept, &inner);
    out->act_kept = kept.bytes;
    out->act = kept.bytes + inner.bytes;
    out->kept_gaps = kept.gaps;
    out->inner_gaps = inner.gaps;
}

static void segment_forward(const struct zt_model *m, const struct zt_seg_call *c)
{
    struct zt_run r = {.m = m, .c = c};
    run_forward(&r);
}

static void segment_backward(const struct zt_model *m, const struct zt_seg_call *c)
{
    struct zt_run r = {.m = m, .c = c};
    run_backward(&r);
}

const struct zt_model_ops zt_segment_ops = {
    .size = segment_size,
    .forward = segment_forward,
    .backward = segment_backward,
};

/* ---- parts ---- */

size_t zt_layout_add(struct zt_layout *l, int64_t n_elems, enum zt_dtype dtype)
{
    size_t bytes, offset = l->bytes;
    bool fits = zt_mul_size((size_t)n_elems, zt_dtype_bytes(dtype), &bytes) &&
                zt_add_size(offset, bytes, &bytes) && bytes <= SIZE_MAX / 2;
    ZT_ASSERT(fits);
    l->bytes = zt_align_size(bytes, 256);
    if (l->bytes > bytes) {
        ZT_ASSERT_CMP(l->gaps.n, <, ZT_MAX_GAPS);
        l->gaps.at[l->gaps.n++] = (struct zt_extent){bytes, l->bytes};
    }
    return offset;
}

struct zt_matmul zt_linear_fwd(const struct zt_run *r, const struct zt_linear *l, int64_t rows,
                               struct zt_ref x, struct zt_ref y)
{
    return (struct zt_matmul){
        .m = rows,
        .n = l->n_out,
        .k = l->n_in,
        .lda = l->n_in,
        .ldb = l->out_in ? l->n_in : l->n_out,
        .ldc = l->ldy,
        .trans_b = l->out_in,
        .a = x,
        .b = r->c->weights[l->w],
        .bias = l->b < 0 ? (struct zt_ref){0} : r->c->weights[l->b],
        .c = y,
    };
}

struct zt_matmul zt_linear_bwd(const struct zt_run *r, const struct zt_linear *l, int64_t rows,
                               struct zt_ref dy, struct zt_ref dx)
{
    return (struct zt_matmul){
        .m = rows,
        .n = l->n_in,
        .k = l->n_out,
        .lda = l->ldy,
        .ldb = l->out_in ? l->n_in : l->n_out,
        .ldc = l->n_in,
        .trans_b = !l->out_in,
        .a = dy,
        .b = r->c->weights[l->w],
        .c = dx,
    };
}

void zt_linear_grads(struct zt_run *r, const struct zt_linear *l, int64_t rows, struct zt_ref x,
                     struct zt_ref dy, bool accumulate)
{
    if (!r->dry && !r->c->grads[l->w].ptr)
        return; /* frozen */
    struct zt_matmul dw = {
        .m = l->out_in ? l->n_out : l->n_in,
        .n = l->out_in ? l->n_in : l->n_out,
        .k = rows,
        .lda = l->out_in ? l->ldy : l->n_in,
        .ldb = l->out_in ? l->n_in : l->ldy,
        .ldc = l->out_in ? l->n_in : l->n_out,
        .trans_a = true,
        .accumulate = accumulate || r->c->accumulate[l->w],
        .a = l->out_in ? dy : x,
        .b = l->out_in ? x : dy,
        .c = r->c->grads[l->w],
    };
    if (l->b >= 0) { /* of the same unit, so it accumulates as the weight does */
        ZT_ASSERT_CMP(r->c->accumulate[l->b], ==, r->c->accumulate[l->w]);
        dw.bias_grad_of = l->out_in ? ZT_BIAS_GRAD_A : ZT_BIAS_GRAD_B;
        dw.bias_grad = r->c->grads[l->b];
    }
    zt_run_matmul(r, dw);
}

static struct zt_ref norm_bias(const struct zt_norm *n, const struct zt_ref *refs)
{
    return n->b < 0 ? (struct zt_ref){0} : refs[n->b];
}

void zt_norm_forward(struct zt_run *r, const struct zt_norm *n, int64_t rows, struct zt_ref y)
{
    if (r->dry)
        return;
    struct zt_norm_fwd a = {
        .rows = rows,
        .cols = n->cols,
        .eps = r->m->cfg.norm_eps,
        .rms = n->b < 0,
        .x = n->x,
        .gamma = r->c->weights[n->w],
        .beta = norm_bias(n, r->c->weights),
        .y = y,
        .mean = n->mean,
        .rstd = n->rstd,
    };
    r->c->dev->ops->norm_fwd(r->c->stream, &a);
}

void zt_norm_backward(struct zt_run *r, const struct zt_norm *n, int64_t rows, struct zt_ref dy,
                      struct zt_ref dresidual, struct zt_ref dx)
{
    const struct zt_shape *s = r->c->shape;
    if (n->b >= 0)
        ZT_ASSERT_CMP(r->c->accumulate[n->w], ==, r->c->accumulate[n->b]);
    struct zt_norm_bwd a = {
        .rows = rows,
        .cols = n->cols,
        .rms = n->b < 0,
        .dy = dy,
        .x = n->x,
        .mean = n->mean,
        .rstd = n->rstd,
        .gamma = r->c->weights[n->w],
        .dresidual = dresidual,
        .dx = dx,
        .dgamma = r->c->grads[n->w],
        .dbeta = norm_bias(n, r->c->grads),
        .accumulate = r->c->accumulate[n->w],
    };
    a.ws = workspace(r, zt_ws_norm_bwd(s->dev_kind, rows, a.cols, s->n_threads), &a.ws_bytes);
    if (!r->dry)
        r->c->dev->ops->norm_bwd(r->c->stream, &a);
}
