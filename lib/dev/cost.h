/*
 * cost.h: what a kernel has to move and to compute, whatever device carries it out: the bytes of its
 * operands, each once (twice where it is read and written), and the floating-point operations of
 * products and attention, a multiply-add as two. So a measured time becomes a share of what the
 * machine can do. Vectors and scalars beside matrices do not count.
 */
#ifndef ZT_DEV_COST_H
#define ZT_DEV_COST_H

#include "dev/dev.h"

struct zt_cost {
    double bytes, flops;
};

static inline double zt_cost_of(struct zt_ref r, double n_elems)
{
    return r.ptr ? n_elems * (double)zt_dtype_bytes(r.dtype) : 0;
}

static inline struct zt_cost zt_cost_embed_fwd(const struct zt_embed_fwd *a)
{
    const double n = (double)a->rows * (double)a->cols;
    return (struct zt_cost){zt_cost_of(a->wte, n) + zt_cost_of(a->wpe, n) + zt_cost_of(a->out, n),
                            0};
}

/* The rows added to; all are written where nothing is accumulated. */
static inline double zt_cost_scatter(struct zt_ref dst, int64_t rows, int64_t limit, int64_t cols,
                                     bool accumulate)
{
    const int64_t touched = ZT_MIN(rows, limit);
    return zt_cost_of(dst, (double)(accumulate ? 2 * touched : limit) * (double)cols);
}

static inline struct zt_cost zt_cost_embed_bwd(const struct zt_embed_bwd *a)
{
    const double read = zt_cost_of(a->dout, (double)a->rows * (double)a->cols);
    return (struct zt_cost){
        read * (a->dwpe.ptr ? 2 : 1) +
            zt_cost_scatter(a->dwte, a->rows, a->vocab, a->cols, a->accumulate_wte) +
            zt_cost_scatter(a->dwpe, a->rows, a->max_positions, a->cols, a->accumulate_wpe),
        0};
}

static inline struct zt_cost zt_cost_norm_fwd(const struct zt_norm_fwd *a)
{
    const double n = (double)a->rows * (double)a->cols;
    return (struct zt_cost){zt_cost_of(a->x, n) + zt_cost_of(a->y, n), 0};
}

static inline struct zt_cost zt_cost_norm_bwd(const struct zt_norm_bwd *a)
{
    const double n = (double)a->rows * (double)a->cols;
    return (struct zt_cost){zt_cost_of(a->dy, n) + zt_cost_of(a->x, n) +
                                zt_cost_of(a->dresidual, n) + zt_cost_of(a->dx, n),
                            0};
}

static inline struct zt_cost zt_cost_matmul(const struct zt_matmul *a)
{
    const double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    return (struct zt_cost){zt_cost_of(a->a, m * k) + zt_cost_of(a->b, k * n) +
                                zt_cost_of(a->c, (a->accumulate ? 2 : 1) * m * n) +
                                zt_cost_of(a->aux, m * n) + zt_cost_of(a->residual, m * n),
                            2 * m * n * k};
}

static inline struct zt_cost zt_cost_col_sum(const struct zt_col_sum *a)
{
    return (struct zt_cost){zt_cost_of(a->x, (double)a->rows * (double)a->cols), 0};
}

/* FLOPs of the causal pairs alone; documents in a row have fewer than counted. */
static inline struct zt_cost zt_cost_attention(const struct zt_attention *a, bool backward)
{
    const double q = (double)a->batch * (double)a->q_len * a->n_head * a->head_dim;
    const double kv = (double)a->batch * (double)a->k_len * a->n_kv_head * a->head_dim;
    const double seen = (double)a->q_offset + ((double)a->q_len + 1) / 2; /* keys of a query */
    const int passes = backward ? 2 : 1;
    struct zt_cost c = {zt_cost_of(a->q, q * passes) + zt_cost_of(a->out, q) +
                            zt_cost_of(a->k, kv * passes) + zt_cost_of(a->v, kv * passes),
                        (backward ? 10 : 4) * q * seen};
    if (backward)
        c.bytes += zt_cost_of(a->dout, q);
    return c;
}

static inline struct zt_cost zt_cost_attention_fwd(const struct zt_attention *a)
{
    return zt_cost_attention(a, false);
}

static inline struct zt_cost zt_cost_attention_bwd(const struct zt_attention *a)
{
    return zt_cost_attention(a, true);
}

static inline struct zt_cost zt_cost_drop_add(const struct zt_drop_add *a)
{
    const double n = (double)a->rows * (double)a->cols;
    return (struct zt_cost){
        zt_cost_of(a->x, n) + zt_cost_of(a->residual, n) + zt_cost_of(a->out, n), 0};
}

static inline struct zt_cost zt_cost_cross_entropy(const struct zt_cross_entropy *a)
{
    const struct zt_ref grad = a->grad.ptr ? a->grad : a->logits;
    double bytes = zt_cost_of(a->logits, (double)a->rows * (double)a->vocab);
    if (a->write_grad)
        bytes += zt_cost_of(grad, (double)a->rows * (double)a->ld);
    return (struct zt_cost){bytes, 0};
}

static inline struct zt_cost zt_cost_update(const struct zt_update *a)
{
    double n = 0;
    for (int i = 0; i < a->n_ranges; i++)
        n += (double)(a->ranges[i].end - a->ranges[i].begin);
    const double state = (a->v ? 4 : 2) * sizeof(float);
    const double weights = a->master.ptr
                               ? 2 * sizeof(float) + (double)zt_dtype_bytes(a->param.dtype)
                               : 2 * sizeof(float);
    return (struct zt_cost){n * (state + weights) + zt_cost_of(a->grad, n), 0};
}

static inline struct zt_cost zt_cost_sum_sq(const struct zt_sum_sq *a)
{
    return (struct zt_cost){zt_cost_of(a->x, (double)a->n), 2 * (double)a->n};
}

static inline struct zt_cost zt_cost_cast(const struct zt_cast *a)
{
    return (struct zt_cost){zt_cost_of(a->src, (double)a->n) +
                                zt_cost_of(a->dst, (a->accumulate ? 2 : 1) * (double)a->n),
                            0};
}

static inline struct zt_cost zt_cost_rope(const struct zt_rope *a)
{
    const double row = 2 * (double)a->rows * a->head_dim;
    return (struct zt_cost){
        zt_cost_of(a->q, row * a->n_head) + zt_cost_of(a->k, row * a->n_kv_head), 0};
}

static inline struct zt_cost zt_cost_swiglu_fwd(const struct zt_swiglu_fwd *a)
{
    const double n = (double)a->n;
    return (struct zt_cost){zt_cost_of(a->gate, n) + zt_cost_of(a->up, n) + zt_cost_of(a->out, n),
                            0};
}

static inline struct zt_cost zt_cost_swiglu_bwd(const struct zt_swiglu_bwd *a)
{
    const double n = (double)a->n;
    return (struct zt_cost){zt_cost_of(a->dout, n) + zt_cost_of(a->gate, n) + zt_cost_of(a->up, n) +
                                zt_cost_of(a->dgate, n) + zt_cost_of(a->dup, n),
                            0};
}

static inline struct zt_cost zt_cost_copy(const struct zt_copy *a)
{
    return (struct zt_cost){2 * (double)a->bytes, 0};
}

#endif
