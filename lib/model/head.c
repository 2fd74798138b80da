/*
 * The first and the last segment: embedding, and final norm + output product + cross-entropy.
 *
 * The logits of a batch are far larger than anything else (rows x vocabulary), so they exist for a
 * chunk of rows at a time: product, softmax and gradients of one chunk, then the next. Their
 * leading dimension is the vocabulary padded to a multiple of 64; the padding is never in the loss.
 */
#include "model/model_internal.h"

#include "base/size.h"

/* Positions in the embedding's parameters. WPE is absent where positions are rotary. */
enum { WTE, WPE };

enum { VOCAB_ALIGN = 64 };

/*
 * The most that the logits of a chunk may take. Each chunk reads the whole output matrix twice and adds
 * to its whole fp32 gradient, which on a GPU is bytes and little else: at GPT-2 124M, 32 x 1024 tokens,
 * 98 chunks of 32 MiB would read and write it for 30 GB. On a CPU's core the three products of 128 rows
 * run at 133 GFLOP/s, of 256 at 142, of 1024 at 150.
 */
static int64_t logits_bytes(enum zt_dev_kind kind)
{
    return (int64_t)(kind == ZT_DEV_CPU ? 64 : 256) << 20;
}

void zt_embed_forward(struct zt_run *r)
{
    const struct zt_seg_call *c = r->c;
    if (r->dry)
        return;
    struct zt_embed_fwd a = {
        .rows = c->shape->batch * c->shape->seq_len,
        .cols = r->m->cfg.n_embd,
        .tokens = c->batch.tokens,
        .positions = c->batch.positions,
        .wte = c->weights[WTE],
        .wpe = c->weights[WPE],
        .out = {c->x_out, c->shape->dtype},
    };
    c->dev->ops->embed_fwd(c->stream, &a);
    const struct zt_dropout drop = zt_run_dropout(r, r->m->cfg.embd_pdrop, ZT_DROP_EMBED);
    if (drop.threshold)
        zt_run_drop_add(r, &drop, a.cols, a.out, (struct zt_ref){0}, a.out);
}

void zt_embed_backward(struct zt_run *r)
{
    const struct zt_seg_call *c = r->c;
    const int64_t rows = c->shape->batch * c->shape->seq_len, cols = r->m->cfg.n_embd;
    const struct zt_dropout drop = zt_run_dropout(r, r->m->cfg.embd_pdrop, ZT_DROP_EMBED);
    struct zt_ref dout = zt_ref_at(c->dx_out, 0, c->shape->dtype);
    if (drop.threshold) {
        struct zt_layout l = {0};
        const struct zt_ref kept =
            zt_ref_at(c->tmp, zt_layout_add(&l, rows * cols, dout.dtype), dout.dtype);
        r->scratch = l.bytes;
        zt_run_drop_add(r, &drop, cols, dout, (struct zt_ref){0}, kept);
        dout = kept;
    }
    struct zt_embed_bwd a = {
        .rows = rows,
        .cols = cols,
        .vocab = r->m->cfg.vocab_size,
        .max_positions = r->m->cfg.n_positions,
        .tokens = c->batch.tokens,
        .positions = c->batch.positions,
        .dout = dout,
        .dwte = c->grads[WTE],
        .dwpe = c->grads[WPE],
        .accumulate_wte = c->accumulate[WTE],
        .accumulate_wpe = c->accumulate[WPE],
    };
    zt_run_embed_bwd(r, a);
}

struct head {
    int64_t rows, cols, vocab;
    int64_t chunk;                        /* rows whose logits exist at once */
    struct zt_linear linear, linear_grad; /* y is the logits; their gradient */
    int norm_bias;                        /* position in the segment's parameters; -1: RMSNorm */
    struct zt_ref x;                      /* (rows, C) */
    struct zt_ref y;                      /* (chunk, C): final norm's output */
    struct zt_ref logits;                 /* (chunk, vocab padded) */
    struct zt_ref dlogits;    /* the same rows, in the training type, at their beginnings */
    struct zt_ref mean, rstd; /* (rows) */
    float *losses;            /* (chunk) */
};

/* Rows of a chunk: as many as keep the logits within `bytes`, all chunks nearly equal. */
static int64_t chunk_rows(int64_t rows, int64_t row_bytes, int64_t bytes)
{
    const int64_t most = ZT_MAX(bytes / row_bytes, 1);
    return zt_ceil_div_i64(rows, zt_ceil_div_i64(rows, most));
}

static void lay_out_head(struct zt_run *r, struct head *h)
{
    const struct zt_shape *s = r->c->shape;
    const struct zt_model_config *cfg = &r->m->cfg;
    /* The CPU's products give fp32, to any type; elsewhere C has the operands' type. */
    const enum zt_dtype logits_dtype = s->dev_kind == ZT_DEV_CPU ? ZT_F32 : s->dtype;
    const int64_t ld = zt_align_i64(cfg->vocab_size, VOCAB_ALIGN);
    /* The segment's parameters: the norm's weight, its bias if it has one, the output matrix. */
    const int head_weight = r->m->segments[r->c->segment].n_params - 1;
    struct zt_layout l = {0};

    h->rows = s->batch * s->seq_len;
    h->cols = cfg->n_embd;
    h->vocab = cfg->vocab_size;
    h->chunk =
        chunk_rows(h->rows, ld * (int64_t)zt_dtype_bytes(logits_dtype), logits_bytes(s->dev_kind));
    h->linear = (struct zt_linear){h->cols, h->vocab, ld, true, head_weight, -1};
    h->norm_bias = head_weight == 2 ? 1 : -1;
    h->x = zt_ref_at(r->c->x_in, 0, s->dtype);
    h->y = zt_ref_at(r->c->tmp, zt_layout_add(&l, ZT_MAX(h->chunk, s->batch) * h->cols, s->dtype),
                     s->dtype);
    h->logits = zt_ref_at(r->c->tmp, zt_layout_add(&l, h->chunk * ld, logits_dtype), logits_dtype);
    h->dlogits = zt_ref_at(h->logits.ptr, 0, s->dtype);
    h->linear_grad = h->linear;
    h->linear_grad.ldy =
        ld * (int64_t)zt_dtype_bytes(logits_dtype) / (int64_t)zt_dtype_bytes(s->dtype);
    h->mean = zt_ref_at(r->c->tmp, zt_layout_add(&l, h->rows, ZT_F32), ZT_F32);
    h->rstd = zt_ref_at(r->c->tmp, zt_layout_add(&l, h->rows, ZT_F32), ZT_F32);
    h->losses = zt_ref_at(r->c->tmp, zt_layout_add(&l, h->chunk, ZT_F32), ZT_F32).ptr;
    r->scratch = l.bytes;
}

/* The final norm from row `row` on; each row's statistics have a place of their own. */
static struct zt_norm head_norm(const struct head *h, int64_t row)
{
    return (struct zt_norm){
        .w = 0,
        .b = h->norm_bias,
        .cols = h->cols,
        .x = zt_ref_from(h->x, row * h->cols),
        .mean = zt_ref_from(h->mean, row).ptr,
        .rstd = zt_ref_from(h->rstd, row).ptr,
    };
}

/* Logits of rows [row, row + n), then their losses and, with write_grad, gradients in their place. */
static void head_chunk(struct zt_run *r, const struct head *h, int64_t row, int64_t n,
                       bool write_grad)
{
    const struct zt_seg_call *c = r->c;
    const struct zt_norm norm = head_norm(h, row);
    zt_norm_forward(r, &norm, n, h->y);
    zt_run_matmul(r, zt_linear_fwd(r, &h->linear, n, h->y, h->logits));
    if (r->dry)
        return;
    struct zt_cross_entropy a = {
        .rows = n,
        .vocab = h->vocab,
        .ld = h->linear.ldy,
        .targets = c->batch.targets + row,
        .sb = c->sb,
        .count = c->count,
        .logits = h->logits,
        .losses = h->losses,
        .loss_sum = c->loss_sum,
        .first = row == 0,
        .write_grad = write_grad,
        .grad = h->dlogits,
        .ld_grad = h->linear_grad.ldy,
    };
    c->dev->ops->cross_entropy(c->stream, &a);
}

static void forward_chunk(struct zt_run *r, const struct head *h, int64_t row, int64_t n)
{
    head_chunk(r, h, row, n, false);
}

/*
 * All chunks in turn. For a dry run the second, which adds to what the first began, stands for all up to
 * the last: they are as long, and there may be millions.
 */
static void each_chunk(struct zt_run *r, const struct head *h,
                       void (*chunk)(struct zt_run *r, const struct head *h, int64_t row,
                                     int64_t n))
{
    int64_t alike;
    for (int64_t row = 0; row < h->rows; row += alike * h->chunk) {
        const double before = r->flops;
        chunk(r, h, row, ZT_MIN(h->chunk, h->rows - row));
        alike = r->dry && row > 0 ? ZT_MAX((h->rows - row - 1) / h->chunk, 1) : 1;
        r->flops += (double)(alike - 1) * (r->flops - before);
    }
}

/* Generation: the logits of one position of each sequence, exactly `vocab` wide, in fp32. */
static void last_logits(struct zt_run *r, const struct head *h)
{
    const struct zt_shape *s = r->c->shape;
    for (int64_t b = 0; b < s->batch; b++) {
        const struct zt_norm norm = head_norm(h, b * s->seq_len + r->c->logits_at);
        zt_norm_forward(r, &norm, 1, zt_ref_from(h->y, b * h->cols));
    }
    struct zt_linear l = h->linear;
    l.ldy = h->vocab;
    struct zt_ref out = {r->c->last_logits, ZT_F32};
    zt_run_matmul(r, zt_linear_fwd(r, &l, s->batch, h->y, out));
}

void zt_head_forward(struct zt_run *r)
{
    struct head h;
    lay_out_head(r, &h);
    if (r->dry || r->c->last_logits)
        last_logits(r, &h);
    if (!r->dry && !r->c->loss_sum)
        return;
    r->flops = 0; /* a dry run has room for both, but counts the loss alone */
    each_chunk(r, &h, forward_chunk);
}

/* Logits, then d(output matrix) and the chunk's part of d(norm's output). */
static void backward_chunk(struct zt_run *r, const struct head *h, int64_t row, int64_t n)
{
    const struct zt_ref dx = zt_ref_at(r->c->dx_in, 0, r->c->shape->dtype);
    head_chunk(r, h, row, n, true);
    zt_linear_grads(r, &h->linear_grad, n, h->y, h->dlogits, row > 0);
    zt_run_matmul(r,
                  zt_linear_bwd(r, &h->linear_grad, n, h->dlogits, zt_ref_from(dx, row * h->cols)));
}

/*
 * d(norm's output) of all rows is collected in dx_in, so that the norm's own gradients are summed
 * once over all rows.
 */
void zt_head_backward(struct zt_run *r)
{
    struct head h;
    lay_out_head(r, &h);
    each_chunk(r, &h, backward_chunk);
    const struct zt_ref dx = zt_ref_at(r->c->dx_in, 0, r->c->shape->dtype);
    const struct zt_norm norm = head_norm(&h, 0);
    zt_norm_backward(r, &norm, h.rows, dx, (struct zt_ref){0}, dx);
}
