#include "base/size.h"
#include "dev/cpu/layout.h"

/* cuBLAS asks for 32 MiB on compute capability 9.0 and less before (cuBLAS, cublasSetWorkspace). */
static const size_t cuda_matmul_bytes = (size_t)32 << 20;

/* Row blocks of the CUDA reductions: two for each multiprocessor of the largest device (132). */
enum { CUDA_SUM_BLOCKS = 264 };

static bool is_16bit(enum zt_dtype t)
{
    return zt_dtype_bytes(t) == 2;
}

/* How many of n slices, each of slice_elems floats, fit a block. */
static int64_t slices_of_block(int64_t n, int64_t slice_elems)
{
    int64_t fit = ZT_MM_BLOCK_BYTES / 4 / ZT_MAX(slice_elems, 1);
    return ZT_MIN(n, ZT_MAX(fit, (int64_t)ZT_MM_MIN_BLOCK));
}

/*
 * Bytes of a block of at most n slices: no more than all of them, a full block, or the least number
 * of slices. Written so that it grows with n and slice_elems even where slices_of_block() shrinks.
 */
static size_t block_bytes(int64_t n, int64_t slice_elems)
{
    size_t all = (size_t)n * (size_t)slice_elems * 4;
    size_t least = (size_t)ZT_MM_MIN_BLOCK * (size_t)slice_elems * 4;
    return zt_align_size(ZT_MIN(all, ZT_MAX((size_t)ZT_MM_BLOCK_BYTES, least)), 64);
}

void zt_mm_layout(const struct zt_matmul *s, struct zt_mm_layout *out)
{
    bool a16 = is_16bit(s->a.dtype), b16 = is_16bit(s->b.dtype), c16 = is_16bit(s->c.dtype);
    out->block_n = b16 ? slices_of_block(s->n, s->k) : s->n;
    out->block_m = a16 ? slices_of_block(s->m, s->k) : s->m;
    if (c16)
        out->block_m = ZT_MIN(out->block_m, slices_of_block(s->m, out->block_n));
    out->a_bytes = a16 ? block_bytes(s->m, s->k) : 0;
    out->b_bytes = b16 ? block_bytes(s->n, s->k) : 0;
    out->c_bytes = c16 ? block_bytes(s->m, s->n) : 0;
}

int64_t zt_mm_sum_rows(const struct zt_matmul *s)
{
    return slices_of_block(s->m, s->n);
}

size_t zt_ws_matmul(enum zt_dev_kind kind, const struct zt_matmul *shape, int n_threads)
{
    size_t bytes = cuda_matmul_bytes, sum = 0;
    if (kind == ZT_DEV_CPU) {
        struct zt_mm_layout l;
        zt_mm_layout(shape, &l);
        bytes = l.a_bytes + l.b_bytes + l.c_bytes;
    }
    if (shape->bias_grad_of != ZT_BIAS_GRAD_NONE) /* comes after the product, in its memory */
        sum = zt_ws_col_sum(kind, shape->k,
                            shape->bias_grad_of == ZT_BIAS_GRAD_A ? shape->m : shape->n, n_threads);
    return ZT_MAX(bytes, sum);
}

/* CUDA: for each token and position its rows (cuda/embed.cu): two numbers each, and one a row. */
size_t zt_ws_embed_bwd(enum zt_dev_kind kind, int64_t rows, int64_t vocab, int64_t max_positions)
{
    if (kind == ZT_DEV_CPU)
        return 0;
    return ((size_t)rows + 2 * (size_t)ZT_MAX(vocab, max_positions)) * sizeof(int32_t);
}

static size_t sum_bytes(enum zt_dev_kind kind, int64_t rows, int64_t cols)
{
    int64_t blocks =
        kind == ZT_DEV_CUDA ? ZT_MIN(rows, (int64_t)CUDA_SUM_BLOCKS) : zt_sum_blocks(rows);
    return (size_t)blocks * (size_t)cols * sizeof(float);
}

/* Partial sums of dgamma and of dbeta. */
size_t zt_ws_norm_bwd(enum zt_dev_kind kind, int64_t rows, int64_t cols, int n_threads)
{
    (void)n_threads;
    return 2 * sum_bytes(kind, rows, cols);
}

size_t zt_ws_col_sum(enum zt_dev_kind kind, int64_t rows, int64_t cols, int n_threads)
{
    (void)n_threads;
    return sum_bytes(kind, rows, cols);
}

static size_t take(size_t *at, int64_t floats)
{
    size_t here = *at;
    *at += zt_align_size((size_t)floats, 16);
    return here;
}

void zt_att_layout(const struct zt_attention *s, bool backward, struct zt_att_layout *l)
{
    int64_t dim = zt_align_i64(s->head_dim, ZT_ATT_PAD);
    int64_t keys = backward ? ZT_ATT_K : zt_align_i64(s->k_len, ZT_ATT_K);
    int64_t queries = zt_align_i64(s->q_len, ZT_ATT_Q) * (s->n_head / s->n_kv_head);
    size_t at = 0;
    memset(l, 0, sizeof *l);
    l->dim = dim;
    l->kt = take(&at, keys * dim);
    l->vt = take(&at, keys * dim);
    l->q = take(&at, ZT_ATT_Q * dim);
    l->out = take(&at, ZT_ATT_Q * dim);
    l->s = take(&at, ZT_ATT_Q * ZT_ATT_K);
    l->row_a = take(&at, backward ? queries : ZT_ATT_Q);
    if (!backward) {
        l->row_b = take(&at, ZT_ATT_Q);
    } else {
        l->k = take(&at, keys * dim);
        l->ds = take(&at, ZT_ATT_Q * ZT_ATT_K);
        l->dk = take(&at, keys * dim);
        l->dv = take(&at, keys * dim);
        l->dq = take(&at, queries * dim);
    }
    l->total = at;
}

/* CPU: tiles of each thread. CUDA: backward, the row sums of dout * out (cuda/attention_bwd.cuh). */
size_t zt_ws_attention(enum zt_dev_kind kind, const struct zt_attention *shape, bool backward,
                       int n_threads)
{
    if (kind == ZT_DEV_CUDA) {
        size_t rows = (size_t)shape->batch * (size_t)shape->q_len * (size_t)shape->n_head;
        return backward ? rows * sizeof(float) : 0;
    }
    struct zt_att_layout l;
    zt_att_layout(shape, backward, &l);
    return (size_t)n_threads * l.total * sizeof(float);
}
