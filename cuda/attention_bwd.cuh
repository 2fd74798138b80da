/*
 * attention_bwd.cuh: attention backward for 16-bit elements, FlashAttention-2's algorithm in two
 * kernels so that every sum has one owner and a fixed order:
 *   dq     a tile of queries of one head goes through the keys:
 *          delta = rowsum(dO * O) (kept for the other kernel), S = Q K^T, P = e^(scale S - lse),
 *          dS = P * (dO V^T - delta), dQ = scale * sum of dS K
 *   dk, dv a tile of keys of one key/value head goes through the queries of its group, head by head:
 *          P^T and dS^T from S^T = K Q^T and V dO^T, dV = sum of P^T dO, dK = scale * sum of dS^T Q
 * What a warp multiplies next is in its own registers, so P and dS never go through shared memory.
 *
 * FLOPs for each (query, key) pair seen and head: dq 6 * head_dim, dk and dv 8 * head_dim (10 where
 * D is 256), of which 10 are useful. Bytes: dq reads q, k, v, out, dout, lse and writes dq, delta;
 * the other reads q, k, v, dout, lse, delta and writes dk, dv; what passes by comes from the L2.
 */
#ifndef ZT_CUDA_ATTENTION_BWD_CUH
#define ZT_CUDA_ATTENTION_BWD_CUH

#include "attention.h"

/* ---- dq ---- */

/* BN: keys of a tile; STEP: of them, how many at a time. */
template <class T_, int D_, int MT_, int WARPS_, int BN_, int STEP_> struct zt_att_dq_tiles {
    using T = T_;
    static constexpr int D = D_, MT = MT_, WARPS = WARPS_, BN = BN_, STEP = STEP_;
    static constexpr int THREADS = 32 * WARPS, BM = 16 * MT * WARPS, LD = D + 8;
    static constexpr int BLOCKS = D <= 128 ? 2 : 1;
    static constexpr size_t SMEM = (size_t)(2 * BM + 4 * BN) * LD * sizeof(T) + BM * sizeof(float);
};

/* delta of the block's rows, `n` of them there, to shared memory and to `keep`. dO has arrived. */
template <class C>
static __device__ __forceinline__ void zt_att_delta(const typename C::T *dout,
                                                    const typename C::T *out, int64_t ldo, int n,
                                                    int head_dim, float *delta, float *keep)
{
    constexpr int EACH = C::THREADS / C::BM; /* threads of a row */
    const int row = (int)threadIdx.x / EACH, part = (int)threadIdx.x % EACH;
    float sum = 0;
    if (row < n) {
        dout += row * C::LD;
        out += row * ldo;
#pragma unroll 4
        for (int c = part * 8; c < head_dim; c += EACH * 8) {
            const uint4 d = *(const uint4 *)(dout + c), o = *(const uint4 *)(out + c);
            const uint32_t dw[4] = {d.x, d.y, d.z, d.w}, ow[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 x = zt_unpack<typename C::T>(dw[i]),
                             y = zt_unpack<typename C::T>(ow[i]);
                sum += x.x * y.x + x.y * y.y;
            }
        }
    }
#pragma unroll
    for (int m = 1; m < EACH; m *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (part == 0) {
        delta[row] = sum;
        if (row < n)
            keep[row] = sum;
    }
}

/* What a lane keeps of its rows: 16 m + g + 8 h of the warp's, h = 0, 1. */
template <class C> struct zt_att_dq_rows {
    float dq[C::MT][C::D / 8][4];
    float lse[C::MT][2], delta[C::MT][2]; /* lse times log2 e */
};

template <class C>
static __device__ __forceinline__ void
zt_att_dq_begin(zt_att_dq_rows<C> &w, const zt_att_queries<typename C::T> &b,
                const struct zt_attention &a, const float *delta)
{
    zt_att_clear(w.dq);
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = b.warp_row + m * 16 + h * 8 + (int)threadIdx.x % 32 / 4;
            /* a row that is not there has probabilities 0 */
            w.lse[m][h] = row < b.n_rows ? a.lse[b.stat + row] * ZT_LOG2E : INFINITY;
            w.delta[m][h] = delta[row];
        }
}

/* From S and dP of STEP keys from k0 on: dS in place of dP. */
template <class C>
static __device__ __forceinline__ void
zt_att_dq_scores(const float (&s)[C::MT][C::STEP / 8][4], float (&dp)[C::MT][C::STEP / 8][4],
                 float c, const zt_att_dq_rows<C> &w, const zt_att_queries<typename C::T> &b,
                 int k0)
{
    const int lane = threadIdx.x % 32;
    const bool masked = !zt_att_sees_all(b, k0, C::STEP);
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int n = 0; n < C::STEP / 8; n++)
#pragma unroll
                for (int e = h * 2; e < h * 2 + 2; e++)
                    dp[m][n][e] =
                        zt_exp2(s[m][n][e] * c - w.lse[m][h]) * (dp[m][n][e] - w.delta[m][h]);
            if (!masked)
                continue;
            const int p = min(b.pos + m * 16 + h * 8 + lane / 4, b.last_pos);
            const int first = zt_att_first_key(b.seg, p);
#pragma unroll
            for (int n = 0; n < C::STEP / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = k0 + n * 8 + lane % 4 * 2 + e;
                    if (key > p || key < first)
                        dp[m][n][h * 2 + e] = 0;
                }
        }
}

/* STEP keys from k0 on, their rows at kt and vt. */
template <class C, bool DROP>
static __device__ __forceinline__ void
zt_att_dq_step(zt_att_dq_rows<C> &w, const zt_att_queries<typename C::T> &b,
               const struct zt_attention &a, const struct zt_drop_key &drop, const typename C::T *q,
               const typename C::T *dout, const typename C::T *kt, const typename C::T *vt, int k0)
{
    using T = typename C::T;
    float s[C::MT][C::STEP / 8][4], dp[C::MT][C::STEP / 8][4];
    zt_att_clear(s);
    zt_att_clear(dp);
    zt_att_product<T, C::D, C::MT, C::STEP>(s, q, kt);
    zt_att_product<T, C::D, C::MT, C::STEP>(dp, dout, vt);
    if (DROP)
        zt_att_drop<C::MT, C::STEP>(dp, drop, (uint32_t)b.head, b.pos, k0, a.drop.threshold,
                                    a.drop.scale);
    zt_att_dq_scores<C>(s, dp, a.scale * ZT_LOG2E, w, b, k0);
    zt_att_gather<T, C::D, C::MT, C::STEP>(w.dq, dp, kt);
}

template <class C, bool DROP>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) zt_att_dq_kernel(struct zt_attention a)
{
    using T = typename C::T;
    constexpr int STAGE = 2 * C::BN * C::LD;
    ZT_DYN_SHARED(T, smem); /* Q, dO, two stages of K and V, delta */
    const zt_att_queries<T> b = zt_att_queries_of<T, C::BM, 16 * C::MT>(a);
    T *dout = smem + C::BM * C::LD, *stage = dout + C::BM * C::LD, *q = smem + b.warp_row * C::LD;
    float *delta = (float *)(stage + 2 * STAGE);
    const int64_t out_at = b.row * a.ldo + b.col;
    struct zt_drop_key drop;
    if (DROP)
        drop = zt_drop_key(&a.drop, b.seq);
    int k0 = b.first_key / C::BN * C::BN;
    zt_att_load<T, C::D, C::BM, C::THREADS>(smem, (const T *)a.q.ptr + b.row * a.ldq + b.col, a.ldq,
                                            b.n_rows, a.head_dim);
    zt_att_load<T, C::D, C::BM, C::THREADS>(dout, (const T *)a.dout.ptr + out_at, a.ldo, b.n_rows,
                                            a.head_dim);
    zt_att_load_keys<T, C::D, C::BN, C::THREADS>(stage, b, a, k0);
    zt_cp_async_wait();
    __syncthreads();
    zt_att_delta<C>(dout, (const T *)a.out.ptr + out_at, a.ldo, b.n_rows, a.head_dim, delta,
                    (float *)a.ws + b.stat);
    __syncthreads();

    zt_att_dq_rows<C> w;
    zt_att_dq_begin<C>(w, b, a, delta);
#pragma unroll 1
    for (int buffer = 0; k0 <= b.last_pos; k0 += C::BN, buffer ^= 1) {
        const T *tile = stage + buffer * STAGE;
        zt_cp_async_wait();
        __syncthreads(); /* the tile is there, and nobody reads the other buffer any more */
        if (k0 + C::BN <= b.last_pos)
            zt_att_load_keys<T, C::D, C::BN, C::THREADS>(stage + (buffer ^ 1) * STAGE, b, a,
                                                         k0 + C::BN);
#pragma unroll 1
        for (int i = 0; i < C::BN && k0 + i <= b.warp_last; i += C::STEP)
            zt_att_dq_step<C, DROP>(w, b, a, drop, q, dout + b.warp_row * C::LD, tile + i * C::LD,
                                    tile + (C::BN + i) * C::LD, k0 + i);
    }
    zt_att_store<T, C::D, C::MT>(w.dq, a.scale, q,
                                 (T *)a.dq.ptr + (b.row + b.warp_row) * a.ldq + b.col, a.ldq,
                                 b.n_rows - b.warp_row, a.head_dim);
}

/* ---- dk, dv ---- */

/* BM: queries of a tile; STEP: of them, how many at a time. DK, DV: which of the two to make. */
template <class T_, int D_, int MT_, int WARPS_, int BM_, int STEP_, bool DK_, bool DV_>
struct zt_att_dkv_tiles {
    using T = T_;
    static constexpr int D = D_, MT = MT_, WARPS = WARPS_, BM = BM_, STEP = STEP_;
    static constexpr bool DK = DK_, DV = DV_;
    static constexpr int THREADS = 32 * WARPS, BN = 16 * MT * WARPS, LD = D + 8;
    static constexpr int BLOCKS = THREADS <= 128 && D <= 128 ? 2 : 1;
    static constexpr size_t SMEM =
        (size_t)(2 * BN + 4 * BM) * LD * sizeof(T) + 4 * BM * sizeof(float);
};

/*
 * How many tiles of queries from `tile` on see a key before `end`: seg_start does not fall, so it is
 * the first ones. All threads of the block call it.
 */
template <int BM, int THREADS>
static __device__ __forceinline__ int zt_att_tiles_seeing(const int32_t *seg, int offset, int tile,
                                                          int n_tiles, int end)
{
    int n = 0;
    if (!seg || tile >= n_tiles)
        return max(n_tiles - tile, 0);
    for (;;) {
        const int t = tile + n + (int)threadIdx.x;
        const int more = __syncthreads_count(t < n_tiles && seg[offset + t * BM] < end);
        n += more;
        if (more < THREADS)
            return n;
    }
}

/* Where dropout's numbers of a query head come from. */
struct zt_att_dropped {
    struct zt_drop_key key;
    uint32_t head, threshold;
    float scale;
};

/* Column e of a pair of queries, S^T and dP^T: P^T of what is kept, and dS^T. */
template <class C, bool DROP>
static __device__ __forceinline__ void
zt_att_dkv_column(float (&s)[C::MT][C::STEP / 8][4], float (&dp)[C::MT][C::STEP / 8][4], int n,
                  int e, float delta, int key, int pos, const struct zt_att_dropped &d)
{
    uint32_t w[C::MT];
    if (DROP)
        zt_att_numbers<16 * C::MT>(w, d.key, d.head, (uint32_t)pos,
                                   key + (int)threadIdx.x % 32 / 4);
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float &p = s[m][n][h * 2 + e], &g = dp[m][n][h * 2 + e];
            const bool dropped = DROP && (w[m] >> h * 16 & 0xffffu) < d.threshold;
            const float f = dropped ? 0 : DROP ? d.scale : 1;
            if (C::DK)
                g = p * (g * f - delta);
            p *= f;
        }
}

/* A block's tile of keys of one key/value head, and this warp's rows of it. */
struct zt_att_keys {
    const int32_t *seg;
    int64_t seq, at;        /* of the first key in k, v, dk and dv, elements */
    int head, group;        /* key/value head; query heads of it */
    int k0, n_keys;         /* keys that are there */
    int warp_row, warp_key; /* the warp's first */
    int offset, last_pos;   /* position of the first query and of the last */
};

template <class C>
static __device__ __forceinline__ struct zt_att_keys zt_att_keys_of(const struct zt_attention &a)
{
    struct zt_att_keys b;
    const struct zt_att_place at =
        zt_att_place_of(blockIdx.x, zt_ceil_div(a.k_len, C::BN), a.n_kv_head);
    b.seg = a.seg_start ? a.seg_start + at.seq * a.k_len : NULL;
    b.seq = at.seq;
    b.head = at.head;
    b.group = a.n_head / a.n_kv_head;
    b.k0 = at.tile * C::BN;
    b.n_keys = min((int)a.k_len - b.k0, C::BN);
    b.at = (at.seq * a.k_len + b.k0) * a.ldkv + (int64_t)at.head * a.head_dim;
    b.warp_row = (int)threadIdx.x / 32 * 16 * C::MT;
    b.warp_key = b.k0 + b.warp_row;
    b.offset = (int)a.q_offset;
    b.last_pos = b.offset + (int)a.q_len - 1;
    return b;
}

/*
 * From S^T of STEP queries, the first at position `pos`, and dP^T: P^T in s, dS^T in dp. lse and delta
 * are of these queries.
 */
template <class C, bool DROP>
static __device__ __forceinline__ void
zt_att_dkv_scores(float (&s)[C::MT][C::STEP / 8][4], float (&dp)[C::MT][C::STEP / 8][4], float c,
                  const float *lse, const float *delta, bool masked, const struct zt_att_keys &b,
                  int pos, const struct zt_att_dropped &d)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < C::STEP / 8; n++) {
        const int col = n * 8 + lane % 4 * 2;
        const float2 l = *(const float2 *)(lse + col), dl = *(const float2 *)(delta + col);
        const float ls[2] = {l.x * ZT_LOG2E, l.y * ZT_LOG2E}, ds[2] = {dl.x, dl.y};
#pragma unroll
        for (int m = 0; m < C::MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = zt_exp2(s[m][n][e] * c - ls[e % 2]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int p = pos + col + e;
            if (masked) {
                const int first = zt_att_first_key(b.seg, min(p, b.last_pos));
#pragma unroll
                for (int i = 0; i < 2 * C::MT; i++) {
                    const int key = b.warp_key + i * 8 + lane / 4;
                    if (key > p || key < first)
                        s[i / 2][n][i % 2 * 2 + e] = 0;
                }
            }
            zt_att_dkv_column<C, DROP>(s, dp, n, e, ds[e], b.warp_key, p, d);
        }
    }
}

/* Begin to copy a tile of queries of head `head` of the group: Q, dO; to `lse` lse, then delta. */
template <class C>
static __device__ __forceinline__ void
zt_att_load_queries(typename C::T *to, float *lse, const struct zt_att_keys &b,
                    const struct zt_attention &a, int head, int tile)
{
    using T = typename C::T;
    const int q0 = tile * C::BM, rows = (int)a.q_len - q0, i = threadIdx.x % C::BM;
    const int64_t q_head = (int64_t)b.head * b.group + head, row = b.seq * a.q_len + q0;
    const int64_t col = q_head * a.head_dim, stat = (b.seq * a.n_head + q_head) * a.q_len + q0;
    zt_att_load<T, C::D, C::BM, C::THREADS>(to, (const T *)a.q.ptr + row * a.ldq + col, a.ldq, rows,
                                            a.head_dim);
    zt_att_load<T, C::D, C::BM, C::THREADS>(
        to + C::BM * C::LD, (const T *)a.dout.ptr + row * a.ldo + col, a.ldo, rows, a.head_dim);
    static_assert(C::THREADS >= 2 * C::BM, "a thread for each number");
    if (threadIdx.x < C::BM)
        zt_cp_async_4(lse + i, a.lse + stat + i, i < rows);
    else if (threadIdx.x < 2 * C::BM)
        zt_cp_async_4(lse + C::BM + i, (const float *)a.ws + stat + i, i < rows);
}

/* Sums of the warp's keys; one that C does not make has no use, and no registers. */
template <class C> struct zt_att_dkv_rows {
    float dk[C::DK ? C::MT : 1][C::D / 8][4], dv[C::DV ? C::MT : 1][C::D / 8][4];
};

/* STEP queries, the first at position `pos`; their dO, and delta, stand BM behind their Q, and lse. */
template <class C, bool DROP>
static __device__ __forceinline__ void
zt_att_dkv_step(zt_att_dkv_rows<C> &w, const struct zt_att_keys &b, float scale,
                const struct zt_att_dropped &drop, const typename C::T *k, const typename C::T *q,
                const float *lse, int pos, int last_first)
{
    using T = typename C::T;
    const T *v = k + C::BN * C::LD, *dout = q + C::BM * C::LD;
    float s[C::MT][C::STEP / 8][4], dp[C::MT][C::STEP / 8][4];
    const bool masked = b.warp_key + 16 * C::MT - 1 > pos || b.warp_key < last_first;
    zt_att_clear(s);
    zt_att_clear(dp);
    zt_att_product<T, C::D, C::MT, C::STEP>(s, k, q);
    if (C::DK)
        zt_att_product<T, C::D, C::MT, C::STEP>(dp, v, dout);
    zt_att_dkv_scores<C, DROP>(s, dp, scale * ZT_LOG2E, lse, lse + C::BM, masked, b, pos, drop);
    if constexpr (C::DV)
        zt_att_gather<T, C::D, C::MT, C::STEP>(w.dv, s, dout);
    if constexpr (C::DK)
        zt_att_gather<T, C::D, C::MT, C::STEP>(w.dk, dp, q);
}

template <class C, bool DROP>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) zt_att_dkv_kernel(struct zt_attention a)
{
    using T = typename C::T;
    constexpr int STAGE = 2 * C::BM * C::LD;
    ZT_DYN_SHARED(T, smem); /* K, V, two stages of Q and dO, two of lse and delta */
    const struct zt_att_keys b = zt_att_keys_of<C>(a);
    T *stage = smem + 2 * C::BN * C::LD, *k = smem + b.warp_row * C::LD;
    float *stats = (float *)(stage + 2 * STAGE);
    struct zt_att_dropped drop;
    if (DROP) {
        drop.key = zt_drop_key(&a.drop, b.seq);
        drop.threshold = a.drop.threshold;
        drop.scale = a.drop.scale;
    }
    zt_att_load<T, C::D, C::BN, C::THREADS>(smem, (const T *)a.k.ptr + b.at, a.ldkv, b.n_keys,
                                            a.head_dim);
    if (C::DK)
        zt_att_load<T, C::D, C::BN, C::THREADS>(smem + C::BN * C::LD, (const T *)a.v.ptr + b.at,
                                                a.ldkv, b.n_keys, a.head_dim);
    /* Query heads of the group one after the other, tiles [begin, begin + n) of each. */
    const int begin = max(b.k0 - b.offset, 0) / C::BM;
    const int n = zt_att_tiles_seeing<C::BM, C::THREADS>(
        b.seg, b.offset, begin, zt_ceil_div(a.q_len, C::BM), b.k0 + b.n_keys);
    zt_att_dkv_rows<C> w;
    zt_att_clear(w.dk);
    zt_att_clear(w.dv);
    int head = 0, tile = begin;
    if (n > 0)
        zt_att_load_queries<C>(stage, stats, b, a, head, tile);
#pragma unroll 1
    for (int i = 0; i < n * b.group; i++) {
        const int buffer = i % 2, other = buffer ^ 1, pos = b.offset + tile * C::BM;
        zt_cp_async_wait();
        __syncthreads(); /* the tile is there, and nobody reads the other buffer any more */
        if (DROP)
            drop.head = (uint32_t)(b.head * b.group + head);
        if (++tile == begin + n) {
            tile = begin;
            head++;
        }
        if (head < b.group)
            zt_att_load_queries<C>(stage + other * STAGE, stats + other * 2 * C::BM, b, a, head,
                                   tile);
        const int last_first = zt_att_first_key(b.seg, min(pos + C::BM - 1, b.last_pos));
#pragma unroll 1
        for (int j = 0; j < C::BM; j += C::STEP)
            if (b.warp_key <= pos + j + C::STEP - 1)
                zt_att_dkv_step<C, DROP>(w, b, a.scale, drop, k, stage + buffer * STAGE + j * C::LD,
                                         stats + buffer * 2 * C::BM + j, pos + j, last_first);
    }
    zt_cp_async_wait();
    __syncthreads();
    const int64_t at = b.at + b.warp_row * a.ldkv;
    if constexpr (C::DK)
        zt_att_store<T, C::D, C::MT>(w.dk, a.scale, k, (T *)a.dk.ptr + at, a.ldkv,
                                     b.n_keys - b.warp_row, a.head_dim);
    if constexpr (C::DV)
        zt_att_store<T, C::D, C::MT>(w.dv, 1.0f, k, (T *)a.dv.ptr + at, a.ldkv,
                                     b.n_keys - b.warp_row, a.head_dim);
}

/* ---- launches ---- */

template <class C>
static cudaError_t zt_att_dq_launch(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    const int64_t blocks = a->batch * a->n_head * zt_ceil_div(a->q_len, C::BM);
    if (a->drop.threshold)
        ZT_ATT_LAUNCH((zt_att_dq_kernel<C, true>), (unsigned)blocks, C::THREADS, C::SMEM, ctx, *a);
    ZT_ATT_LAUNCH((zt_att_dq_kernel<C, false>), (unsigned)blocks, C::THREADS, C::SMEM, ctx, *a);
}

template <class C>
static cudaError_t zt_att_dkv_launch(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    const int64_t blocks = a->batch * a->n_kv_head * zt_ceil_div(a->k_len, C::BN);
    if (a->drop.threshold)
        ZT_ATT_LAUNCH((zt_att_dkv_kernel<C, true>), (unsigned)blocks, C::THREADS, C::SMEM, ctx, *a);
    ZT_ATT_LAUNCH((zt_att_dkv_kernel<C, false>), (unsigned)blocks, C::THREADS, C::SMEM, ctx, *a);
}

template <class T> using zt_att_dq_32 = zt_att_dq_tiles<T, 32, 2, 4, 64, 32>;
template <class T> using zt_att_dq_64 = zt_att_dq_tiles<T, 64, 2, 4, 64, 32>;
template <class T> using zt_att_dq_96 = zt_att_dq_tiles<T, 96, 2, 4, 32, 32>;
template <class T> using zt_att_dq_128 = zt_att_dq_tiles<T, 128, 2, 4, 32, 32>;
template <class T> using zt_att_dq_256 = zt_att_dq_tiles<T, 256, 1, 4, 32, 32>;
template <class T> using zt_att_dkv_32 = zt_att_dkv_tiles<T, 32, 2, 4, 64, 32, true, true>;
template <class T> using zt_att_dkv_64 = zt_att_dkv_tiles<T, 64, 2, 4, 64, 32, true, true>;
template <class T> using zt_att_dkv_96 = zt_att_dkv_tiles<T, 96, 1, 8, 64, 32, true, true>;
template <class T> using zt_att_dkv_128 = zt_att_dkv_tiles<T, 128, 1, 8, 64, 32, true, true>;
/* Sums of both would be all registers that a thread may have. */
template <class T> using zt_att_dk_256 = zt_att_dkv_tiles<T, 256, 1, 4, 32, 32, true, false>;
template <class T> using zt_att_dv_256 = zt_att_dkv_tiles<T, 256, 1, 4, 32, 32, false, true>;
template <class T> using zt_att_dq_128_small = zt_att_dq_tiles<T, 128, 1, 4, 32, 32>;
template <class T> using zt_att_dq_256_small = zt_att_dq_tiles<T, 256, 1, 2, 16, 16>;
template <class T> using zt_att_dkv_96_small = zt_att_dkv_tiles<T, 96, 1, 8, 32, 32, true, true>;
template <class T> using zt_att_dkv_128_small = zt_att_dkv_tiles<T, 128, 1, 4, 32, 32, true, true>;
template <class T> using zt_att_dk_256_small = zt_att_dkv_tiles<T, 256, 1, 2, 16, 16, true, false>;
template <class T> using zt_att_dv_256_small = zt_att_dkv_tiles<T, 256, 1, 2, 16, 16, false, true>;

#define ZT_ATT_BWD_REGISTER_DQ(C)                                                                  \
    ZT_SIM_REGISTER((zt_att_dq_kernel<C, false>)) ZT_SIM_REGISTER((zt_att_dq_kernel<C, true>))
#define ZT_ATT_BWD_REGISTER_DKV(C)                                                                 \
    ZT_SIM_REGISTER((zt_att_dkv_kernel<C, false>)) ZT_SIM_REGISTER((zt_att_dkv_kernel<C, true>))
#define ZT_ATT_BWD_REGISTER(T)                                                                     \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_32<T>)                                                        \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_64<T>)                                                        \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_96<T>)                                                        \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_128<T>)                                                       \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_256<T>)                                                       \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dkv_32<T>)                                                      \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dkv_64<T>)                                                      \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dkv_96<T>)                                                      \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dkv_128<T>)                                                     \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dk_256<T>)                                                      \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dv_256<T>)                                                      \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_128_small<T>)                                                 \
    ZT_ATT_BWD_REGISTER_DQ(zt_att_dq_256_small<T>)                                                 \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dkv_96_small<T>)                                                \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dkv_128_small<T>)                                               \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dk_256_small<T>)                                                \
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dv_256_small<T>)

/* The tiles C, or the small ones where the device has no room for C. */
template <class C, class SMALL>
static cudaError_t zt_att_dq_fit(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    static_assert(SMALL::SMEM <= ZT_CUDA_MIN_SMEM_BYTES, "every GPU has room");
    if (C::SMEM <= ctx->smem_bytes)
        return zt_att_dq_launch<C>(a, ctx);
    return zt_att_dq_launch<SMALL>(a, ctx);
}

template <class C, class SMALL>
static cudaError_t zt_att_dkv_fit(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    static_assert(SMALL::SMEM <= ZT_CUDA_MIN_SMEM_BYTES, "every GPU has room");
    if (C::SMEM <= ctx->smem_bytes)
        return zt_att_dkv_launch<C>(a, ctx);
    return zt_att_dkv_launch<SMALL>(a, ctx);
}

template <class T>
static cudaError_t zt_att_dq_choose(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (a->head_dim <= 32)
        return zt_att_dq_fit<zt_att_dq_32<T>, zt_att_dq_32<T>>(a, ctx);
    if (a->head_dim <= 64)
        return zt_att_dq_fit<zt_att_dq_64<T>, zt_att_dq_64<T>>(a, ctx);
    if (a->head_dim <= 96)
        return zt_att_dq_fit<zt_att_dq_96<T>, zt_att_dq_96<T>>(a, ctx);
    if (a->head_dim <= 128)
        return zt_att_dq_fit<zt_att_dq_128<T>, zt_att_dq_128_small<T>>(a, ctx);
    return zt_att_dq_fit<zt_att_dq_256<T>, zt_att_dq_256_small<T>>(a, ctx);
}

template <class T>
static cudaError_t zt_att_dkv_choose(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (a->head_dim <= 32)
        return zt_att_dkv_fit<zt_att_dkv_32<T>, zt_att_dkv_32<T>>(a, ctx);
    if (a->head_dim <= 64)
        return zt_att_dkv_fit<zt_att_dkv_64<T>, zt_att_dkv_64<T>>(a, ctx);
    if (a->head_dim <= 96)
        return zt_att_dkv_fit<zt_att_dkv_96<T>, zt_att_dkv_96_small<T>>(a, ctx);
    if (a->head_dim <= 128)
        return zt_att_dkv_fit<zt_att_dkv_128<T>, zt_att_dkv_128_small<T>>(a, ctx);
    const cudaError_t rc = zt_att_dkv_fit<zt_att_dk_256<T>, zt_att_dk_256_small<T>>(a, ctx);
    return rc == cudaSuccess ? zt_att_dkv_fit<zt_att_dv_256<T>, zt_att_dv_256_small<T>>(a, ctx)
                             : rc;
}

template <class T>
static cudaError_t zt_att_bwd_choose(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    const cudaError_t rc = zt_att_dq_choose<T>(a, ctx);
    return rc == cudaSuccess ? zt_att_dkv_choose<T>(a, ctx) : rc;
}

#endif
