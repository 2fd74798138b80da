/*
 * attention_fwd.cuh: attention forward for 16-bit elements. For each query tile: S = Q K^T, online
 * softmax in base 2 (Milakov and Gimelshein 2018), O = O * correction + P V.
 *
 * FLOPs: 4 * head_dim for each (query, key) pair seen and head. Bytes: q, k, v and out once, lse;
 * k and v again from the L2 for every query tile.
 */
#ifndef ZT_CUDA_ATTENTION_FWD_CUH
#define ZT_CUDA_ATTENTION_FWD_CUH

#include "attention.h"

template <class T_, int D_, int MT_, int WARPS_, int BN_> struct zt_att_fwd_tiles {
    using T = T_;
    static constexpr int D = D_, MT = MT_, WARPS = WARPS_, BN = BN_;
    static constexpr int THREADS = 32 * WARPS, BM = 16 * MT * WARPS, LD = D + 8;
    static constexpr bool HOLD_Q = D <= 64; /* Q's fragments in registers */
    static constexpr int BLOCKS = D <= 128 ? 2 : 1;
    static constexpr size_t SMEM = (size_t)(BM + 4 * BN) * LD * sizeof(T);
};

/* What a lane keeps of its rows: 16 m + g + 8 h of the warp's, h = 0, 1. */
template <class C> struct zt_att_rows {
    float o[C::MT][C::D / 8][4];
    float max[C::MT][2],
        sum[C::MT][2]; /* max of the unscaled scores; sum over this lane's columns */
};

/* Scores of keys that the query does not see become -infinity. */
template <class C>
static __device__ __forceinline__ void zt_att_mask(float (&s)[C::MT][C::BN / 8][4], int k0,
                                                   const zt_att_queries<typename C::T> &b)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int p = min(b.pos + m * 16 + h * 8 + lane / 4, b.last_pos);
            const int first = zt_att_first_key(b.seg, p);
#pragma unroll
            for (int n = 0; n < C::BN / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = k0 + n * 8 + lane % 4 * 2 + e;
                    if (key > p || key < first)
                        s[m][n][h * 2 + e] = -INFINITY;
                }
        }
}

/* Scores of a key tile to 2^(c (s - max)); sums so far are rescaled where the maximum grows. */
template <class C>
static __device__ __forceinline__ void zt_att_softmax(zt_att_rows<C> &w,
                                                      float (&s)[C::MT][C::BN / 8][4], float c)
{
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float max = w.max[m][h];
#pragma unroll
            for (int n = 0; n < C::BN / 8; n++)
                max = fmaxf(max, fmaxf(s[m][n][h * 2], s[m][n][h * 2 + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            /* A row may see nothing of the tiles so far: then all its powers are 2^-infinity. */
            const float base = max == -INFINITY ? 0 : max * c;
            const float keep = zt_exp2(w.max[m][h] * c - base);
            float sum = w.sum[m][h] * keep;
            w.max[m][h] = max;
#pragma unroll
            for (int n = 0; n < C::BN / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    sum += s[m][n][h * 2 + e] = zt_exp2(s[m][n][h * 2 + e] * c - base);
            w.sum[m][h] = sum;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++) {
                w.o[m][n][h * 2] *= keep;
                w.o[m][n][h * 2 + 1] *= keep;
            }
        }
}

/* out and lse of the warp's rows. */
template <class C, bool DROP>
static __device__ __forceinline__ void
zt_att_finish(const zt_att_rows<C> &w, const zt_att_queries<typename C::T> &b,
              const struct zt_attention &a, typename C::T *stage)
{
    using T = typename C::T;
    const int lane = threadIdx.x % 32;
    float f[C::MT][2];
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = w.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            f[m][h] = (DROP ? a.drop.scale : 1.0f) / sum;
            const int row = b.warp_row + m * 16 + h * 8 + lane / 4;
            if (lane % 4 == 0 && row < b.n_rows)
                a.lse[b.stat + row] = w.max[m][h] * a.scale + logf(sum);
        }
    T *out = (T *)a.out.ptr + (b.row + b.warp_row) * a.ldo + b.col;
    zt_att_store<T, C::D, C::MT>(w.o, f, stage, out, a.ldo, b.n_rows - b.warp_row, a.head_dim);
}

template <class C> static __device__ __forceinline__ void zt_att_begin(zt_att_rows<C> &w)
{
    zt_att_clear(w.o);
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            w.max[m][h] = -INFINITY;
            w.sum[m][h] = 0;
        }
}

template <class C, bool DROP>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) zt_att_fwd_kernel(struct zt_attention a)
{
    using T = typename C::T;
    constexpr int STAGE = 2 * C::BN * C::LD;
    ZT_DYN_SHARED(T, smem); /* Q, then two stages of K and V */
    const zt_att_queries<T> b = zt_att_queries_of<T, C::BM, 16 * C::MT>(a);
    T *stage = smem + C::BM * C::LD, *q = smem + b.warp_row * C::LD;
    struct zt_drop_key drop;
    if (DROP)
        drop = zt_drop_key(&a.drop, b.seq);
    int k0 = b.first_key / C::BN * C::BN;
    zt_att_load<T, C::D, C::BM, C::THREADS>(smem, (const T *)a.q.ptr + b.row * a.ldq + b.col, a.ldq,
                                            b.n_rows, a.head_dim);
    zt_att_load_keys<T, C::D, C::BN, C::THREADS>(stage, b, a, k0);

    zt_att_rows<C> w;
    uint32_t fq[C::D / 16][C::MT][4];
    if (C::HOLD_Q) {
        zt_cp_async_wait();
        __syncthreads();
        zt_att_hold<T, C::D, C::MT>(fq, q);
    }
    zt_att_begin(w);
#pragma unroll 1
    for (int buffer = 0; k0 <= b.last_pos; k0 += C::BN, buffer ^= 1) {
        const T *tile = stage + buffer * STAGE;
        zt_cp_async_wait();
        __syncthreads(); /* the tile is there, and nobody reads the other buffer any more */
        if (k0 + C::BN <= b.last_pos)
            zt_att_load_keys<T, C::D, C::BN, C::THREADS>(stage + (buffer ^ 1) * STAGE, b, a,
                                                         k0 + C::BN);
        if (k0 > b.warp_last)
            continue;
        float s[C::MT][C::BN / 8][4];
        zt_att_clear(s);
        if (C::HOLD_Q)
            zt_att_product<T, C::D, C::MT, C::BN>(s, fq, tile);
        else
            zt_att_product<T, C::D, C::MT, C::BN>(s, q, tile);
        if (!zt_att_sees_all(b, k0, C::BN))
            zt_att_mask<C>(s, k0, b);
        zt_att_softmax<C>(w, s, a.scale * ZT_LOG2E);
        if (DROP)
            zt_att_drop<C::MT, C::BN>(s, drop, (uint32_t)b.head, b.pos, k0, a.drop.threshold, 1);
        zt_att_gather<T, C::D, C::MT, C::BN>(w.o, s, tile + C::BN * C::LD);
    }
    zt_att_finish<C, DROP>(w, b, a, q);
}

template <class C>
static cudaError_t zt_att_fwd_launch(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    const int64_t blocks = a->batch * a->n_head * zt_ceil_div(a->q_len, C::BM);
    if (a->drop.threshold)
        ZT_ATT_LAUNCH((zt_att_fwd_kernel<C, true>), (unsigned)blocks, C::THREADS, C::SMEM, ctx, *a);
    ZT_ATT_LAUNCH((zt_att_fwd_kernel<C, false>), (unsigned)blocks, C::THREADS, C::SMEM, ctx, *a);
}

template <class T> using zt_att_fwd_32 = zt_att_fwd_tiles<T, 32, 2, 4, 64>;
template <class T> using zt_att_fwd_64 = zt_att_fwd_tiles<T, 64, 2, 4, 64>;
template <class T> using zt_att_fwd_96 = zt_att_fwd_tiles<T, 96, 2, 4, 64>;
template <class T> using zt_att_fwd_128 = zt_att_fwd_tiles<T, 128, 2, 4, 64>;
template <class T> using zt_att_fwd_256 = zt_att_fwd_tiles<T, 256, 1, 8, 32>;
template <class T> using zt_att_fwd_128_small = zt_att_fwd_tiles<T, 128, 2, 4, 32>;
template <class T> using zt_att_fwd_256_small = zt_att_fwd_tiles<T, 256, 1, 4, 32>;

#define ZT_ATT_FWD_REGISTER(T)                                                                     \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_32<T>, false>))                                  \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_32<T>, true>))                                   \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_64<T>, false>))                                  \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_64<T>, true>))                                   \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_96<T>, false>))                                  \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_96<T>, true>))                                   \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_128_small<T>, false>))                           \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_128_small<T>, true>))                            \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_128<T>, false>))                                 \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_128<T>, true>))                                  \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_256_small<T>, false>))                           \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_256_small<T>, true>))                            \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_256<T>, false>))                                 \
    ZT_SIM_REGISTER((zt_att_fwd_kernel<zt_att_fwd_256<T>, true>))

/* The tiles C, or the small ones where the device has no room for C. */
template <class C, class SMALL>
static cudaError_t zt_att_fwd_fit(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    static_assert(SMALL::SMEM <= ZT_CUDA_MIN_SMEM_BYTES, "every GPU has room");
    if (C::SMEM <= ctx->smem_bytes)
        return zt_att_fwd_launch<C>(a, ctx);
    return zt_att_fwd_launch<SMALL>(a, ctx);
}

template <class T>
static cudaError_t zt_att_fwd_choose(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (a->head_dim <= 32)
        return zt_att_fwd_fit<zt_att_fwd_32<T>, zt_att_fwd_32<T>>(a, ctx);
    if (a->head_dim <= 64)
        return zt_att_fwd_fit<zt_att_fwd_64<T>, zt_att_fwd_64<T>>(a, ctx);
    if (a->head_dim <= 96)
        return zt_att_fwd_fit<zt_att_fwd_96<T>, zt_att_fwd_96<T>>(a, ctx);
    if (a->head_dim <= 128)
        return zt_att_fwd_fit<zt_att_fwd_128<T>, zt_att_fwd_128_small<T>>(a, ctx);
    return zt_att_fwd_fit<zt_att_fwd_256<T>, zt_att_fwd_256_small<T>>(a, ctx);
}

#endif
