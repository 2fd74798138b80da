#include "dev/cpu/isa.h"

#include "dev/cpu/isa_dropout.h"
#include "dev/cpu/isa_exp.h"
#include "dev/cpu/isa_tile.h"
#include "dev/cpu/layout.h"

/*
 * FlashAttention (Dao et al. 2022) on tiles of ZT_ATT_Q queries by ZT_ATT_K keys. One thread does
 * one head at a time (backward: one key/value head with its query heads, so that sums over the
 * group have a fixed order). Tiles are fp32, padded with zeros; rows are l.dim apart.
 */
enum { QT = ZT_ATT_Q, KT = ZT_ATT_K };

/* One head of one sequence. */
struct head {
    const struct zt_attention *a;
    const struct zt_att_layout *l;
    const int32_t *seg_start; /* of the sequence; may be NULL */
    int64_t q_row, kv_row;    /* first row of the sequence in q/out/dq and in k/v */
    int64_t q_col, kv_col;    /* first column of the head */
    int64_t index;            /* of the query head */
    struct zt_drop_key drop;  /* of the sequence; unset where nothing is dropped */
    float *lse;
    float *ws;
};

/* Keys [lo, hi) that query i sees. */
struct span {
    int64_t lo, hi;
};

static struct span visible(const struct head *h, int64_t i)
{
    int64_t pos = h->a->q_offset + i;
    return (struct span){h->seg_start ? h->seg_start[pos] : 0, pos + 1};
}

/* Keys that any of the queries [q0, q0 + n) sees. */
static struct span visible_to_tile(const struct head *h, int64_t q0, int64_t n)
{
    struct span all = visible(h, q0);
    for (int64_t i = 1; i < n; i++) {
        struct span s = visible(h, q0 + i);
        all.lo = ZT_MIN(all.lo, s.lo);
        all.hi = ZT_MAX(all.hi, s.hi);
    }
    all.lo = ZT_MAX(all.lo, (int64_t)0);
    return all;
}

/* The span as columns of the key tile at k0 that has n columns. */
static struct span in_tile(struct span s, int64_t k0, int64_t n)
{
    int64_t lo = ZT_MIN(ZT_MAX(s.lo - k0, (int64_t)0), n);
    return (struct span){lo, ZT_MIN(ZT_MAX(s.hi - k0, lo), n)};
}

/* ---- tiles in and out ---- */

/* Rows [r0, r0 + n) of a head to a plain tile, times scale; rows up to `padded` are zero. */
static void load_tile(struct zt_ref m, int64_t ld, int64_t r0, int64_t n, int64_t padded,
                      int64_t col, const struct head *h, float scale, float *restrict dst)
{
    int64_t dim = h->l->dim, head_dim = h->a->head_dim;
    float buf[CHUNK];
    for (int64_t i = 0; i < n; i++) {
        float *restrict row = dst + i * dim;
        const float *src = read_row(m, (r0 + i) * ld + col, head_dim, buf);
#pragma omp simd
        for (int64_t c = 0; c < head_dim; c++)
            row[c] = src[c] * scale;
        for (int64_t c = head_dim; c < dim; c++)
            row[c] = 0;
    }
    memset(dst + n * dim, 0, (size_t)((padded - n) * dim) * sizeof *dst);
}

/* dst = rows of src, each times scale, to rows [r0, r0 + n) of a head. */
static void store_tile(const float *src, int64_t n, float scale, const struct head *h,
                       struct zt_ref m, int64_t ld, int64_t r0, int64_t col)
{
    const int64_t head_dim = h->a->head_dim;
    float buf[CHUNK];
    for (int64_t i = 0; i < n; i++, src += h->l->dim) {
        float *restrict row = row_to_write(m, (r0 + i) * ld + col, buf);
#pragma omp simd
        for (int64_t c = 0; c < head_dim; c++)
            row[c] = src[c] * scale;
        write_row(m, (r0 + i) * ld + col, head_dim, row);
    }
}

/* A plain tile of KT rows, transposed, in panels of TILE_N columns (head_dim rows each). */
static void transpose_panels(const float *restrict src, const struct head *h, float *restrict dst)
{
    int64_t dim = h->l->dim, head_dim = h->a->head_dim;
    for (int64_t j = 0; j < KT; j += TILE_N) {
        for (int64_t c = 0; c < head_dim; c++)
            for (int64_t i = 0; i < TILE_N; i++)
                dst[c * TILE_N + i] = src[(j + i) * dim + c];
        dst += head_dim * TILE_N;
    }
}

/* ---- dropout ---- */

_Static_assert((int)KT == (int)DROP_COLS, "a row of a tile is one call of drop_factors()");

/* The factors, 0 or drop.scale, of query i against the key tile at k0. */
static void tile_factors(const struct head *h, int64_t i, int64_t k0, float *restrict keep)
{
    drop_factors(&h->drop, (uint32_t)h->index, (uint32_t)(h->a->q_offset + i), k0, &h->a->drop,
                 keep);
}

/* One row of e^(s - max): what is dropped counts in the sum, but brings no value. */
static void drop_row(const struct head *h, int64_t i, int64_t k0, struct span in, float *restrict s)
{
    float keep[KT];
    if (!h->a->drop.threshold || in.hi == in.lo)
        return;
    tile_factors(h, i, k0, keep);
#pragma omp simd
    for (int64_t j = in.lo; j < in.hi; j++)
        s[j] *= keep[j];
}

/* ---- products of tiles, without what nobody sees ---- */

/* Keys [0, hi[b]) of a tile are all that any of the queries of block b, TILE_M rows, sees; ascending. */
struct seen {
    int64_t rows, cols; /* of the tile, padded */
    int64_t hi[QT / TILE_M];
};

static struct seen seen_by(const struct head *h, int64_t q0, int64_t n, int64_t k0, int64_t cols)
{
    struct seen seen = {zt_align_i64(n, TILE_M), cols, {0}};
    for (int64_t b = 0; b * TILE_M < n; b++) {
        int64_t last = ZT_MIN((b + 1) * TILE_M, n) - 1;
        seen.hi[b] = in_tile(visible(h, q0 + last), k0, cols).hi;
    }
    return seen;
}

/* s (rows, cols) = q (rows, k) times kt, in panels; tiles that nobody sees stay as they are. */
static void product_of_keys(const struct seen *seen, int64_t k, const float *q, int64_t ldq,
                            const float *kt, float *s)
{
    for (int64_t j = 0; j < seen->cols; j += TILE_N)
        for (int64_t i = 0; i < seen->rows; i += TILE_M)
            if (j < seen->hi[i / TILE_M])
                tile_block(k, q + i * ldq, ldq, 1, kt + j * k, TILE_N, s + i * KT + j, KT, false);
}

/* out (rows, dim) += s (rows, cols) v (cols, dim): s is zero where nobody sees. */
static void add_by_query(const struct seen *seen, int64_t dim, const float *s, const float *v,
                         float *out)
{
    for (int64_t j = 0; j < dim; j += TILE_N)
        for (int64_t i = 0; i < seen->rows; i += TILE_M)
            tile_block(seen->hi[i / TILE_M], s + i * KT, KT, 1, v + j, dim, out + i * dim + j, dim,
                       true);
}

/* out (cols, dim) += s^T (cols, rows) x (rows, dim) */
static void add_by_key(const struct seen *seen, int64_t dim, const float *s, const float *x,
                       float *out)
{
    for (int64_t i = 0, from = 0; i < seen->cols; i += TILE_M) {
        while (from < seen->rows && seen->hi[from / TILE_M] <= i)
            from += TILE_M;
        for (int64_t j = 0; j < dim; j += TILE_N)
            tile_block(seen->rows - from, s + from * KT + i, 1, KT, x + from * dim + j, dim,
                       out + i * dim + j, dim, true);
    }
}

/* ---- forward ---- */

/* A row of n scores or gradients: zero outside the span. */
static void clear_outside(float *row, int64_t n, struct span in)
{
    memset(row, 0, (size_t)in.lo * sizeof *row);
    memset(row + in.hi, 0, (size_t)(n - in.hi) * sizeof *row);
}

/*
 * Online softmax (Milakov and Gimelshein 2018) of the span of one row of n scores: turns them into
 * e^(s - max), zero outside the span, and rescales the sums so far when the maximum grows.
 */
static void softmax_row(float *restrict s, int64_t n, struct span in, float *max, float *sum,
                        float *restrict out, int64_t dim)
{
    float new_max = max_row(s + in.lo, in.hi - in.lo, *max);
    if (new_max > *max) {
        float keep = exp_f32(*max - new_max);
        *sum *= keep;
#pragma omp simd
        for (int64_t c = 0; c < dim; c++)
            out[c] *= keep;
        *max = new_max;
    }
    *sum += exp_row(s + in.lo, s + in.lo, in.hi - in.lo, new_max);
    clear_outside(s, n, in);
}

/* Queries [q0, q0 + n). Keys and values lie in the workspace already. */
static void forward_tile(const struct head *h, int64_t q0, int64_t n)
{
    const struct zt_attention *a = h->a;
    const struct zt_att_layout *l = h->l;
    float *q = h->ws + l->q, *out = h->ws + l->out, *s = h->ws + l->s;
    float *max = h->ws + l->row_a, *sum = h->ws + l->row_b;
    int64_t rows = zt_align_i64(n, TILE_M);
    load_tile(a->q, a->ldq, h->q_row + q0, n, rows, h->q_col, h, a->scale, q);
    memset(out, 0, (size_t)(rows * l->dim) * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    struct span all = visible_to_tile(h, q0, n);
    for (int64_t k0 = all.lo / KT * KT; k0 < all.hi; k0 += KT) {
        int64_t cols = zt_align_i64(ZT_MIN(all.hi - k0, (int64_t)KT), TILE_N);
        struct seen seen = seen_by(h, q0, n, k0, cols);
        product_of_keys(&seen, a->head_dim, q, l->dim, h->ws + l->kt + k0 * a->head_dim, s);
        for (int64_t i = 0; i < n; i++) {
            struct span in = in_tile(visible(h, q0 + i), k0, cols);
            softmax_row(s + i * KT, cols, in, &max[i], &sum[i], out + i * l->dim, l->dim);
            drop_row(h, q0 + i, k0, in, s + i * KT);
        }
        add_by_query(&seen, l->dim, s, h->ws + l->vt + k0 * l->dim, out);
    }
    for (int64_t i = 0; i < n; i++) {
        store_tile(out + i * l->dim, 1, sum[i] > 0 ? 1 / sum[i] : 0, h, a->out, a->ldo,
                   h->q_row + q0 + i, h->q_col);
        h->lse[q0 + i] = max[i] + logf(sum[i]);
    }
}

static void forward_head(const struct head *h)
{
    const struct zt_attention *a = h->a;
    const struct zt_att_layout *l = h->l;
    int64_t k_end = a->q_offset + a->q_len; /* later keys are seen by nobody */
    for (int64_t k0 = 0; k0 < k_end; k0 += KT) {
        int64_t n = ZT_MIN(k_end - k0, (int64_t)KT);
        float *plain_k = h->ws + l->vt + k0 * l->dim; /* V's place, until it is loaded */
        load_tile(a->k, a->ldkv, h->kv_row + k0, n, KT, h->kv_col, h, 1, plain_k);
        transpose_panels(plain_k, h, h->ws + l->kt + k0 * a->head_dim);
        load_tile(a->v, a->ldkv, h->kv_row + k0, n, KT, h->kv_col, h, 1, plain_k);
    }
    for (int64_t q0 = 0; q0 < a->q_len; q0 += QT)
        forward_tile(h, q0, ZT_MIN(a->q_len - q0, (int64_t)QT));
}

/* ---- backward ---- */

/* Query head `g` of the group, with kv columns as they are. */
static struct head query_head(const struct head *kv, int g)
{
    const struct zt_attention *a = kv->a;
    struct head h = *kv;
    h.q_col += (int64_t)g * a->head_dim;
    h.index += g;
    h.lse += (int64_t)g * a->q_len;
    return h;
}

static int64_t padded_queries(const struct zt_attention *a)
{
    return zt_align_i64(a->q_len, QT);
}

/* delta[i] = dout[i] . out[i], which is the sum over keys of p * dp. */
static void row_deltas(const struct head *h, float *delta)
{
    const struct zt_attention *a = h->a;
    float out_buf[CHUNK], dout_buf[CHUNK];
    for (int64_t i = 0; i < a->q_len; i++) {
        int64_t at = (h->q_row + i) * a->ldo + h->q_col;
        const float *out = read_row(a->out, at, a->head_dim, out_buf);
        const float *dout = read_row(a->dout, at, a->head_dim, dout_buf);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < a->head_dim; c++)
            sum += out[c] * dout[c];
        delta[i] = sum;
    }
}

/*
 * From scores s and dp = dout v^T of one row of a key tile: p in s, ds = p * (dp - delta) in ds. With
 * factors both p and dp are those of what is kept, but for the p that ds is a multiple of.
 */
static void softmax_grad_row(float *restrict s, float *restrict ds, struct span in, float lse,
                             float delta, const float *restrict keep)
{
    exp_row(s + in.lo, s + in.lo, in.hi - in.lo, lse);
    if (keep) {
#pragma omp simd
        for (int64_t j = in.lo; j < in.hi; j++) {
            ds[j] = s[j] * (ds[j] * keep[j] - delta);
            s[j] *= keep[j];
        }
    } else {
#pragma omp simd
        for (int64_t j = in.lo; j < in.hi; j++)
            ds[j] = s[j] * (ds[j] - delta);
    }
    clear_outside(s, KT, in);
    clear_outside(ds, KT, in);
}

/*
 * Queries [q0, q0 + n) against the key tile at k0, up to the last column that any of them sees: what
 * lies behind would add products with zero.
 */
static void backward_tile(const struct head *h, int64_t q0, int64_t n, int64_t k0, float *dq,
                          const float *delta)
{
    const struct zt_attention *a = h->a;
    const struct zt_att_layout *l = h->l;
    float *q = h->ws + l->q, *dout = h->ws + l->out, *s = h->ws + l->s, *ds = h->ws + l->ds;
    int64_t rows = zt_align_i64(n, TILE_M);
    struct span all = visible_to_tile(h, q0, n);
    if (all.lo >= k0 + KT || all.hi <= k0)
        return;
    int64_t cols = zt_align_i64(ZT_MIN(all.hi - k0, (int64_t)KT), TILE_N);
    load_tile(a->q, a->ldq, h->q_row + q0, n, rows, h->q_col, h, a->scale, q);
    load_tile(a->dout, a->ldo, h->q_row + q0, n, rows, h->q_col, h, 1, dout);
    struct seen seen = seen_by(h, q0, n, k0, cols);
    product_of_keys(&seen, a->head_dim, q, l->dim, h->ws + l->kt, s);
    product_of_keys(&seen, a->head_dim, dout, l->dim, h->ws + l->vt, ds);
    for (int64_t i = 0; i < n; i++) {
        float keep[KT];
        struct span in = in_tile(visible(h, q0 + i), k0, KT);
        bool drops = a->drop.threshold && in.hi > in.lo;
        if (drops)
            tile_factors(h, q0 + i, k0, keep);
        softmax_grad_row(s + i * KT, ds + i * KT, in, h->lse[q0 + i], delta[q0 + i],
                         drops ? keep : NULL);
    }
    memset(s + n * KT, 0, (size_t)((rows - n) * KT) * sizeof *s);
    memset(ds + n * KT, 0, (size_t)((rows - n) * KT) * sizeof *ds);
    add_by_key(&seen, l->dim, s, dout, h->ws + l->dv);
    add_by_key(&seen, l->dim, ds, q, h->ws + l->dk);
    add_by_query(&seen, l->dim, ds, h->ws + l->k, dq + q0 * l->dim);
}

/* Keys [k0, k0 + n) against all queries of the group; writes their dk and dv. */
static void backward_keys(const struct head *kv, int64_t k0, int64_t n, int group)
{
    const struct zt_attention *a = kv->a;
    const struct zt_att_layout *l = kv->l;
    float *k = kv->ws + l->k, *dk = kv->ws + l->dk, *dv = kv->ws + l->dv;
    load_tile(a->v, a->ldkv, kv->kv_row + k0, n, KT, kv->kv_col, kv, 1, k);
    transpose_panels(k, kv, kv->ws + l->vt);
    load_tile(a->k, a->ldkv, kv->kv_row + k0, n, KT, kv->kv_col, kv, 1, k);
    transpose_panels(k, kv, kv->ws + l->kt);
    memset(dk, 0, (size_t)(KT * l->dim) * sizeof *dk);
    memset(dv, 0, (size_t)(KT * l->dim) * sizeof *dv);
    for (int g = 0; g < group; g++) {
        struct head h = query_head(kv, g);
        float *dq = kv->ws + l->dq + g * padded_queries(a) * l->dim;
        const float *delta = kv->ws + l->row_a + g * padded_queries(a);
        for (int64_t q0 = 0; q0 < a->q_len; q0 += QT)
            backward_tile(&h, q0, ZT_MIN(a->q_len - q0, (int64_t)QT), k0, dq, delta);
    }
    store_tile(dk, n, 1, kv, a->dk, a->ldkv, kv->kv_row + k0, kv->kv_col); /* q held the scale */
    store_tile(dv, n, 1, kv, a->dv, a->ldkv, kv->kv_row + k0, kv->kv_col);
}

static void backward_head(const struct head *kv)
{
    const struct zt_attention *a = kv->a;
    const struct zt_att_layout *l = kv->l;
    int group = a->n_head / a->n_kv_head;
    float *dq = kv->ws + l->dq;
    memset(dq, 0, (size_t)(group * padded_queries(a) * l->dim) * sizeof *dq);
    for (int g = 0; g < group; g++) {
        struct head h = query_head(kv, g);
        row_deltas(&h, kv->ws + l->row_a + g * padded_queries(a));
    }
    for (int64_t k0 = 0; k0 < a->k_len; k0 += KT)
        backward_keys(kv, k0, ZT_MIN(a->k_len - k0, (int64_t)KT), group);
    for (int g = 0; g < group; g++) {
        struct head h = query_head(kv, g);
        store_tile(dq + g * padded_queries(a) * l->dim, a->q_len, a->scale, &h, a->dq, a->ldq,
                   h.q_row, h.q_col);
    }
}

/* ---- all heads ---- */

/* The heads, given to the threads one by one; which thread gets which changes no result. */
static int for_heads(const struct zt_attention *a, bool backward, int n_threads,
                     void (*fn)(const struct head *))
{
    struct zt_att_layout l;
    zt_att_layout(a, backward, &l);
    ZT_ASSERT_CMP(a->ws_bytes, >=, zt_ws_attention(ZT_DEV_CPU, a, backward, n_threads));
    ZT_ASSERT_CMP(a->q_offset + a->q_len, <=, a->k_len);
    ZT_ASSERT_CMP(a->n_head % a->n_kv_head, ==, 0);
    ZT_ASSERT_CMP(a->head_dim, <=, CHUNK);
    int group = a->n_head / a->n_kv_head;
    int per_seq = backward ? a->n_kv_head : a->n_head;
    int64_t n_items = a->batch * per_seq, next = 0;
#pragma omp parallel for num_threads(n_threads) schedule(static, 1) if (n_items > 1)
    for (int t = 0; t < n_threads; t++) {
        for (;;) {
            int64_t item = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (item >= n_items)
                break;
            int64_t b = item / per_seq, q_head = item % per_seq * (backward ? group : 1);
            struct head h = {.a = a,
                             .l = &l,
                             .seg_start = a->seg_start ? a->seg_start + b * a->k_len : NULL,
                             .q_row = b * a->q_len,
                             .kv_row = b * a->k_len,
                             .q_col = q_head * a->head_dim,
                             .kv_col = q_head / group * a->head_dim,
                             .index = q_head,
                             .lse = a->lse + (b * a->n_head + q_head) * a->q_len,
                             .ws = (float *)a->ws + (size_t)t * l.total};
            if (a->drop.threshold)
                h.drop = zt_drop_key(&a->drop, b);
            fn(&h);
        }
    }
    return 0;
}

int ZT_ISA_FN(attention_fwd)(const struct zt_attention *a, int n_threads, struct zt_err *err)
{
    (void)err;
    return for_heads(a, false, n_threads, forward_head);
}

int ZT_ISA_FN(attention_bwd)(const struct zt_attention *a, int n_threads, struct zt_err *err)
{
    (void)err;
    return for_heads(a, true, n_threads, backward_head);
}
