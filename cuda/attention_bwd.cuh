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
    static constexpr bool HOLD = D <= 32; /* fragments of Q and dO in registers */
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

/*
 * S and dP of STEP keys from k0 on: dS in place of dP. `masked`: some of the keys are not seen. lse
 * and delta are of the lane's rows; lse times log2 e.
 */
template <class C>
static __device__ __forceinline__ void
zt_att_dq_scores(const float (&s)[C::MT][C::STEP / 8][4], float (&dp)[C::MT][C::STEP / 8][4],
                 float c, const float (&lse)[C::MT][2], const float (&delta)[C::MT][2], bool masked,
                 int k0, int pos, int last_pos, const int32_t *seg)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int n = 0; n < C::STEP / 8; n++)
#pragma unroll
                for (int e = h * 2; e < h * 2 + 2; e++)
                    dp[m][n][e] = zt_exp2(s[m][n][e] * c - lse[m][h]) * (dp[m][n][e] - delta[m][h]);
            if (!masked)
                continue;
            const int p = min(pos + m * 16 + h * 8 + lane / 4, last_pos);
            const int first = zt_att_first_key(seg, p);
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

template <class C, bool DROP>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) zt_att_dq_kernel(struct zt_attention a)
{
    using T = typename C::T;
    constexpr int STAGE = 2 * C::BN * C::LD;
    ZT_DYN_SHARED(T, smem); /* Q, dO, two stages of K and V, delta */
    const int n_tiles = zt_ceil_div(a.q_len, C::BM), offset = (int)a.q_offset;
    const struct zt_att_place at = zt_att_place_of(blockIdx.x, n_tiles, a.n_head);
    const int q0 = (n_tiles - 1 - at.tile) * C::BM; /* the longest rows first */
    const int n_rows = min((int)a.q_len - q0, C::BM);
    const int64_t kv_col = (int64_t)(at.head / (a.n_head / a.n_kv_head)) * a.head_dim;
    const int64_t q_col = (int64_t)at.head * a.head_dim, q_row = at.seq * a.q_len + q0;
    const int64_t stat_row = (at.seq * a.n_head + at.head) * a.q_len + q0;
    const T *k = (const T *)a.k.ptr + at.seq * a.k_len * a.ldkv + kv_col;
    const T *v = (const T *)a.v.ptr + at.seq * a.k_len * a.ldkv + kv_col;
    const int32_t *seg = a.seg_start ? a.seg_start + at.seq * a.k_len : NULL;
    T *dout = smem + C::BM * C::LD, *stage = dout + C::BM * C::LD;
    float *delta_of = (float *)(stage + 2 * STAGE);

    const int warp_row = (int)threadIdx.x / 32 * 16 * C::MT;
    const int last_pos = offset + q0 + n_rows - 1;
    const int pos = offset + q0 + warp_row;
    const int warp_last = min(pos + 16 * C::MT - 1, last_pos);
    const int last_first = zt_att_first_key(seg, warp_last);
    const float c = a.scale * ZT_LOG2E;
    struct zt_drop_key drop;
    if (DROP)
        drop = zt_drop_key(&a.drop, at.seq);
    T *q_warp = smem + warp_row * C::LD;
    const T *dout_warp = dout + warp_row * C::LD;
    int k0 = zt_att_first_key(seg, offset + q0) / C::BN * C::BN;

    zt_att_load<T, C::D, C::BM, C::THREADS>(smem, (const T *)a.q.ptr + q_row * a.ldq + q_col, a.ldq,
                                            n_rows, a.head_dim);
    zt_att_load<T, C::D, C::BM, C::THREADS>(dout, (const T *)a.dout.ptr + q_row * a.ldo + q_col,
                                            a.ldo, n_rows, a.head_dim);
    auto load = [&](int buffer, int key) {
        T *to = stage + buffer * STAGE;
        const int n = (int)a.k_len - key;
        zt_att_load<T, C::D, C::BN, C::THREADS>(to, k + key * a.ldkv, a.ldkv, n, a.head_dim);
        zt_att_load<T, C::D, C::BN, C::THREADS>(to + C::BN * C::LD, v + key * a.ldkv, a.ldkv, n,
                                                a.head_dim);
    };
    load(0, k0);
    zt_cp_async_wait();
    __syncthreads();
    zt_att_delta<C>(dout, (const T *)a.out.ptr + q_row * a.ldo + q_col, a.ldo, n_rows, a.head_dim,
                    delta_of, (float *)a.ws + stat_row);
    __syncthreads();

    float lse[C::MT][2], delta[C::MT][2], dq[C::MT][C::D / 8][4];
    uint32_t fq[C::D / 16][C::MT][4], fdout[C::D / 16][C::MT][4];
    if (C::HOLD) {
        zt_att_hold<T, C::D, C::MT>(fq, q_warp);
        zt_att_hold<T, C::D, C::MT>(fdout, dout_warp);
    }
    zt_att_clear(dq);
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = warp_row + m * 16 + h * 8 + (int)threadIdx.x % 32 / 4;
            /* a row that is not there has probabilities 0 */
            lse[m][h] = row < n_rows ? a.lse[stat_row + row] * ZT_LOG2E : INFINITY;
            delta[m][h] = delta_of[row];
        }
#pragma unroll 1
    for (int buffer = 0; k0 <= last_pos; k0 += C::BN, buffer ^= 1) {
        const T *tile = stage + buffer * STAGE;
        zt_cp_async_wait();
        __syncthreads(); /* the tile is there, and nobody reads the other buffer any more */
        if (k0 + C::BN <= last_pos)
            load(buffer ^ 1, k0 + C::BN);
#pragma unroll 1
        for (int at_key = 0; at_key < C::BN; at_key += C::STEP) {
            const int key = k0 + at_key;
            if (key > warp_last)
                break;
            const T *kt = tile + at_key * C::LD, *vt = kt + C::BN * C::LD;
            float s[C::MT][C::STEP / 8][4], dp[C::MT][C::STEP / 8][4];
            zt_att_clear(s);
            zt_att_clear(dp);
            if (C::HOLD) {
                zt_att_product<T, C::D, C::MT, C::STEP>(s, fq, kt);
                zt_att_product<T, C::D, C::MT, C::STEP>(dp, fdout, vt);
            } else {
                zt_att_product<T, C::D, C::MT, C::STEP>(s, q_warp, kt);
                zt_att_product<T, C::D, C::MT, C::STEP>(dp, dout_warp, vt);
            }
            if (DROP)
                zt_att_drop<C::MT, C::STEP>(dp, drop, (uint32_t)at.head, pos, key, a.drop.threshold,
                                            a.drop.scale);
            const bool masked = key + C::STEP - 1 > pos || key < last_first;
            zt_att_dq_scores<C>(s, dp, c, lse, delta, masked, key, pos, last_pos, seg);
            zt_att_gather<T, C::D, C::MT, C::STEP>(dq, dp, kt);
        }
    }
    float f[C::MT][2];
#pragma unroll
    for (int m = 0; m < C::MT; m++)
        f[m][0] = f[m][1] = a.scale;
    zt_att_store<T, C::D, C::MT>(dq, f, q_warp, (T *)a.dq.ptr + (q_row + warp_row) * a.ldq + q_col,
                                 a.ldq, n_rows - warp_row, a.head_dim);
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
    if (!seg)
        return n_tiles - tile;
    int n = 0;
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

/*
 * From S^T of STEP queries, the first at position `pos`, and dP^T: P^T in s, dS^T in dp. lse and delta
 * are of these queries.
 */
template <class C, bool DROP>
static __device__ __forceinline__ void
zt_att_dkv_scores(float (&s)[C::MT][C::STEP / 8][4], float (&dp)[C::MT][C::STEP / 8][4], float c,
                  const float *lse, const float *delta, bool masked, int key, int pos, int last_pos,
                  const int32_t *seg, const struct zt_att_dropped &d)
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
                const int first = zt_att_first_key(seg, min(p, last_pos));
#pragma unroll
                for (int i = 0; i < 2 * C::MT; i++) {
                    const int j = key + i * 8 + lane / 4;
                    if (j > p || j < first)
                        s[i / 2][n][i % 2 * 2 + e] = 0;
                }
            }
            zt_att_dkv_column<C, DROP>(s, dp, n, e, ds[e], key, p, d);
        }
    }
}

template <class C, bool DROP>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) zt_att_dkv_kernel(struct zt_attention a)
{
    using T = typename C::T;
    constexpr int STAGE = 2 * C::BM * C::LD;
    ZT_DYN_SHARED(T, smem); /* K, V, two stages of Q and dO, two of lse and delta */
    const int n_tiles = zt_ceil_div(a.q_len, C::BM), offset = (int)a.q_offset;
    const struct zt_att_place at =
        zt_att_place_of(blockIdx.x, zt_ceil_div(a.k_len, C::BN), a.n_kv_head);
    const int k0 = at.tile * C::BN, n_keys = min((int)a.k_len - k0, C::BN);
    const int group = a.n_head / a.n_kv_head;
    const int64_t kv_at = (at.seq * a.k_len + k0) * a.ldkv + (int64_t)at.head * a.head_dim;
    const int32_t *seg = a.seg_start ? a.seg_start + at.seq * a.k_len : NULL;
    T *v_tile = smem + C::BN * C::LD, *stage = v_tile + C::BN * C::LD;
    float *stats = (float *)(stage + 2 * STAGE);
    const int warp_row = (int)threadIdx.x / 32 * 16 * C::MT, warp_key = k0 + warp_row;
    const int last_pos = offset + (int)a.q_len - 1;
    const float c = a.scale * ZT_LOG2E;
    struct zt_att_dropped drop;
    if (DROP) {
        drop.key = zt_drop_key(&a.drop, at.seq);
        drop.threshold = a.drop.threshold;
        drop.scale = a.drop.scale;
    }
    T *k_warp = smem + warp_row * C::LD;
    const T *v_warp = v_tile + warp_row * C::LD;

    zt_att_load<T, C::D, C::BN, C::THREADS>(smem, (const T *)a.k.ptr + kv_at, a.ldkv, n_keys,
                                            a.head_dim);
    if (C::DK)
        zt_att_load<T, C::D, C::BN, C::THREADS>(v_tile, (const T *)a.v.ptr + kv_at, a.ldkv, n_keys,
                                                a.head_dim);
    /* Query heads of the group one after the other, tiles [begin, begin + n) of each. */
    const int begin = max(k0 - offset, 0) / C::BM;
    const int n = begin >= n_tiles ? 0
                                   : zt_att_tiles_seeing<C::BM, C::THREADS>(seg, offset, begin,
                                                                            n_tiles, k0 + n_keys);
    auto load = [&](int buffer, int head, int tile) {
        const int q0 = tile * C::BM, rows = (int)a.q_len - q0;
        const int64_t q_head = (int64_t)at.head * group + head, row = at.seq * a.q_len + q0;
        const int64_t col = q_head * a.head_dim, stat = (at.seq * a.n_head + q_head) * a.q_len + q0;
        T *q = stage + buffer * STAGE;
        float *lse = stats + buffer * 2 * C::BM;
        zt_att_load<T, C::D, C::BM, C::THREADS>(q, (const T *)a.q.ptr + row * a.ldq + col, a.ldq,
                                                rows, a.head_dim);
        zt_att_load<T, C::D, C::BM, C::THREADS>(
            q + C::BM * C::LD, (const T *)a.dout.ptr + row * a.ldo + col, a.ldo, rows, a.head_dim);
        const int i = threadIdx.x % C::BM;
        if (threadIdx.x < C::BM)
            zt_cp_async_4(lse + i, a.lse + stat + i, i < rows);
        else if (threadIdx.x < 2 * C::BM)
            zt_cp_async_4(lse + C::BM + i, (const float *)a.ws + stat + i, i < rows);
    };
    float dk[C::DK ? C::MT : 1][C::D / 8][4], dv[C::DV ? C::MT : 1][C::D / 8][4];
    zt_att_clear(dk);
    zt_att_clear(dv);
    int head = 0, tile = begin, buffer = 0;
    if (n > 0)
        load(0, head, tile);
#pragma unroll 1
    for (int i = 0; i < n * group; i++, buffer ^= 1) {
        const int pos0 = offset + tile * C::BM;
        const T *q = stage + buffer * STAGE, *dout = q + C::BM * C::LD;
        const float *lse = stats + buffer * 2 * C::BM, *delta = lse + C::BM;
        zt_cp_async_wait();
        __syncthreads(); /* the tile is there, and nobody reads the other buffer any more */
        drop.head = (uint32_t)(at.head * group + head);
        if (++tile == begin + n) {
            tile = begin;
            head++;
        }
        if (head < group)
            load(buffer ^ 1, head, tile);
        const int last_first = zt_att_first_key(seg, min(pos0 + C::BM - 1, last_pos));
#pragma unroll 1
        for (int at_q = 0; at_q < C::BM; at_q += C::STEP) {
            const int pos = pos0 + at_q;
            if (warp_key > pos + C::STEP - 1)
                continue;
            float s[C::MT][C::STEP / 8][4], dp[C::MT][C::STEP / 8][4];
            zt_att_clear(s);
            zt_att_clear(dp);
            zt_att_product<T, C::D, C::MT, C::STEP>(s, k_warp, q + at_q * C::LD);
            if (C::DK)
                zt_att_product<T, C::D, C::MT, C::STEP>(dp, v_warp, dout + at_q * C::LD);
            const bool masked = warp_key + 16 * C::MT - 1 > pos || warp_key < last_first;
            zt_att_dkv_scores<C, DROP>(s, dp, c, lse + at_q, delta + at_q, masked, warp_key, pos,
                                       last_pos, seg, drop);
            if constexpr (C::DV)
                zt_att_gather<T, C::D, C::MT, C::STEP>(dv, s, dout + at_q * C::LD);
            if constexpr (C::DK)
                zt_att_gather<T, C::D, C::MT, C::STEP>(dk, dp, q + at_q * C::LD);
        }
    }
    zt_cp_async_wait();
    __syncthreads();
    float f[C::MT][2];
    const int64_t out_at = kv_at + warp_row * a.ldkv;
#pragma unroll
    for (int m = 0; m < C::MT; m++)
        f[m][0] = f[m][1] = a.scale;
    if constexpr (C::DK)
        zt_att_store<T, C::D, C::MT>(dk, f, k_warp, (T *)a.dk.ptr + out_at, a.ldkv,
                                     n_keys - warp_row, a.head_dim);
#pragma unroll
    for (int m = 0; m < C::MT; m++)
        f[m][0] = f[m][1] = 1;
    if constexpr (C::DV)
        zt_att_store<T, C::D, C::MT>(dv, f, k_warp, (T *)a.dv.ptr + out_at, a.ldkv,
                                     n_keys - warp_row, a.head_dim);
}

/* ---- launches ---- */

template <class C> static cudaError_t zt_att_dq_launch(const struct zt_attention *a, cudaStream_t s)
{
    const int64_t blocks = a->batch * a->n_head * zt_ceil_div(a->q_len, C::BM);
    if (a->drop.threshold)
        ZT_ATT_LAUNCH((zt_att_dq_kernel<C, true>), (unsigned)blocks, C::THREADS, C::SMEM, s, *a);
    ZT_ATT_LAUNCH((zt_att_dq_kernel<C, false>), (unsigned)blocks, C::THREADS, C::SMEM, s, *a);
}

template <class C>
static cudaError_t zt_att_dkv_launch(const struct zt_attention *a, cudaStream_t s)
{
    const int64_t blocks = a->batch * a->n_kv_head * zt_ceil_div(a->k_len, C::BN);
    if (a->drop.threshold)
        ZT_ATT_LAUNCH((zt_att_dkv_kernel<C, true>), (unsigned)blocks, C::THREADS, C::SMEM, s, *a);
    ZT_ATT_LAUNCH((zt_att_dkv_kernel<C, false>), (unsigned)blocks, C::THREADS, C::SMEM, s, *a);
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
    ZT_ATT_BWD_REGISTER_DKV(zt_att_dv_256<T>)

template <class DQ, class DKV>
static cudaError_t zt_att_bwd_launch(const struct zt_attention *a, cudaStream_t s)
{
    const cudaError_t rc = zt_att_dq_launch<DQ>(a, s);
    return rc == cudaSuccess ? zt_att_dkv_launch<DKV>(a, s) : rc;
}

template <class T>
static cudaError_t zt_att_bwd_choose(const struct zt_attention *a, cudaStream_t s)
{
    if (a->head_dim <= 32)
        return zt_att_bwd_launch<zt_att_dq_32<T>, zt_att_dkv_32<T>>(a, s);
    if (a->head_dim <= 64)
        return zt_att_bwd_launch<zt_att_dq_64<T>, zt_att_dkv_64<T>>(a, s);
    if (a->head_dim <= 96)
        return zt_att_bwd_launch<zt_att_dq_96<T>, zt_att_dkv_96<T>>(a, s);
    if (a->head_dim <= 128)
        return zt_att_bwd_launch<zt_att_dq_128<T>, zt_att_dkv_128<T>>(a, s);
    const cudaError_t rc = zt_att_bwd_launch<zt_att_dq_256<T>, zt_att_dk_256<T>>(a, s);
    return rc == cudaSuccess ? zt_att_dkv_launch<zt_att_dv_256<T>>(a, s) : rc;
}

#endif
