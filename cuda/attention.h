/*
 * attention.h: what the attention kernels share. FlashAttention-2 (Dao 2023) with mma.sync for 16-bit
 * types, attention_fwd.cuh and attention_bwd.cuh, and in plain fp32 for all else, attention_plain.cu;
 * attention.cu chooses.
 *
 * A block has a tile of queries (or keys) of one head in shared memory and goes through the tiles of
 * keys (or queries) that see each other, two buffers in turn filled by cp.async. A warp owns MT * 16
 * rows of the block's tile, so that a row's softmax stays inside four lanes.
 *
 * seg_start does not fall within a sequence (a document is a run of tokens), so the first query of a
 * tile sees the most keys to the left and the last one the fewest.
 *
 * Rows of a tile in shared memory are D + 8 elements apart: an odd number of 16-byte units, so the 8
 * rows of an ldmatrix lie in different banks. Columns past head_dim and rows past the end are zero.
 *
 * Tiles are for the shared memory of sm_80, sm_90 and sm_100 (163 KiB a block and more). Where they do
 * not fit ZT_CUDA_MIN_SMEM_BYTES, what sm_86, sm_89 and sm_120 have, there are smaller ones beside them,
 * named _small: launchers choose by zt_cuda_ctx.
 */
#ifndef ZT_CUDA_ATTENTION_H
#define ZT_CUDA_ATTENTION_H

#include "port.h"

#include "kernels.h"
#include "mma.h"

/* Launchers of the paths; a->scale > 0 and the sizes are checked. ws holds row sums of dout * out. */
cudaError_t zt_attention_fwd_bf16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx);
cudaError_t zt_attention_fwd_f16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx);
cudaError_t zt_attention_fwd_plain(const struct zt_attention *a, const struct zt_cuda_ctx *ctx);
cudaError_t zt_attention_bwd_bf16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx);
cudaError_t zt_attention_bwd_f16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx);
cudaError_t zt_attention_bwd_plain(const struct zt_attention *a, const struct zt_cuda_ctx *ctx);

#define ZT_LOG2E 1.4426950408889634f

static __host__ __device__ __forceinline__ int zt_ceil_div(int64_t a, int b)
{
    return (int)((a + b - 1) / b);
}

/* Which tile of which head: tiles go fastest, so that neighbours share keys and values in the L2. */
struct zt_att_place {
    int tile, head;
    int64_t seq;
};

static __device__ __forceinline__ struct zt_att_place zt_att_place_of(unsigned block, int n_tiles,
                                                                      int n_heads)
{
    struct zt_att_place p;
    p.tile = (int)(block % (unsigned)n_tiles);
    p.head = (int)(block / (unsigned)n_tiles % (unsigned)n_heads);
    p.seq = block / (unsigned)n_tiles / (unsigned)n_heads;
    return p;
}

/* First key that the query at position `pos` sees. */
static __device__ __forceinline__ int zt_att_first_key(const int32_t *seg, int pos)
{
    return seg ? seg[pos] : 0;
}

/* ---- a tile of queries, of 16-bit elements ---- */

/* A block's tile of queries of one head, where it stands in the tensors, and this warp's rows of it. */
template <class T> struct zt_att_queries {
    const T *k, *v; /* of the sequence and head, key 0 */
    const int32_t *seg;
    int64_t row, col, stat; /* first row in q and out, column of the head; first place in lse */
    int64_t seq;
    int head, n_rows;  /* rows that are there */
    int last_pos;      /* position of the last one */
    int first_key;     /* first key that any of them sees */
    int warp_row, pos; /* first row of the warp in the tile, and its position if it is there */
    int warp_last;     /* position of the last row of the warp that is there */
    int last_first;    /* first key that one sees */
};

template <class T, int BM, int WARP_ROWS>
static __device__ __forceinline__ zt_att_queries<T> zt_att_queries_of(const struct zt_attention &a)
{
    zt_att_queries<T> b;
    const int n_tiles = zt_ceil_div(a.q_len, BM);
    const struct zt_att_place at = zt_att_place_of(blockIdx.x, n_tiles, a.n_head);
    const int q0 = (n_tiles - 1 - at.tile) * BM; /* the longest rows first */
    const int64_t kv_at =
        at.seq * a.k_len * a.ldkv + (int64_t)(at.head / (a.n_head / a.n_kv_head)) * a.head_dim;
    b.k = (const T *)a.k.ptr + kv_at;
    b.v = (const T *)a.v.ptr + kv_at;
    b.seg = a.seg_start ? a.seg_start + at.seq * a.k_len : NULL;
    b.row = at.seq * a.q_len + q0;
    b.col = (int64_t)at.head * a.head_dim;
    b.stat = (at.seq * a.n_head + at.head) * a.q_len + q0;
    b.seq = at.seq;
    b.head = at.head;
    b.n_rows = min((int)a.q_len - q0, BM);
    b.warp_row = (int)threadIdx.x / 32 * WARP_ROWS;
    b.pos = (int)a.q_offset + q0 + b.warp_row;
    b.last_pos = (int)a.q_offset + q0 + b.n_rows - 1;
    b.warp_last = min(b.pos + WARP_ROWS - 1, b.last_pos);
    b.first_key = zt_att_first_key(b.seg, (int)a.q_offset + q0);
    b.last_first = zt_att_first_key(b.seg, b.warp_last);
    return b;
}

/* Do all rows of the warp see all of n keys from k0 on? */
template <class T>
static __device__ __forceinline__ bool zt_att_sees_all(const zt_att_queries<T> &b, int k0, int n)
{
    return k0 + n - 1 <= b.pos && k0 >= b.last_first;
}

/* ---- tiles of 16-bit elements ---- */

/* 16-byte units of a row, rounded up to a power of two, so that a thread stays in its column. */
static constexpr __host__ __device__ int zt_att_lanes(int d)
{
    int n = 4;
    while (n < d / 8)
        n *= 2;
    return n;
}

/* Begin to copy rows of a head, `n` of them there, to a tile of ROWS rows. */
template <class T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void zt_att_load(T *dst, const T *src, int64_t ld, int n,
                                                   int head_dim)
{
    constexpr int LANES = zt_att_lanes(D), STEP = THREADS / LANES;
    static_assert(ROWS % STEP == 0, "each thread copies as many");
    const int row = (int)threadIdx.x / LANES, col = (int)threadIdx.x % LANES * 8;
    const T *from = src + row * ld + col;
    T *to = dst + row * (D + 8) + col;
    if (D / 8 < LANES && col >= D)
        return;
    if (col >= head_dim)
        n = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, from += STEP * ld)
        zt_cp_async_16(to + i * (D + 8), from, row + i < n);
}

/* Begin to copy the BN keys from k0 on, and behind them their values. */
template <class T, int D, int BN, int THREADS>
static __device__ __forceinline__ void zt_att_load_keys(T *to, const zt_att_queries<T> &b,
                                                        const struct zt_attention &a, int k0)
{
    const int n = (int)a.k_len - k0;
    zt_att_load<T, D, BN, THREADS>(to, b.k + k0 * a.ldkv, a.ldkv, n, a.head_dim);
    zt_att_load<T, D, BN, THREADS>(to + BN * (D + 8), b.v + k0 * a.ldkv, a.ldkv, n, a.head_dim);
}

/* Where this lane points ldmatrix.x4 to: A fragment of the 16 x 16 at `tile`, or transposed B. */
template <int D, class T> static __device__ __forceinline__ const T *zt_att_a_row(const T *tile)
{
    const int lane = threadIdx.x % 32;
    return tile + lane % 16 * (D + 8) + lane / 16 * 8;
}

/* B fragments of columns 0..7 and 8..15 from 16 rows that are the columns. */
template <int D, class T> static __device__ __forceinline__ const T *zt_att_b_row(const T *tile)
{
    const int lane = threadIdx.x % 32;
    return tile + (lane % 8 + lane / 16 * 8) * (D + 8) + lane / 8 % 2 * 8;
}

/* c[MT][N / 8] += A[MT * 16 rows][D] . B[N rows][D]^T, both in shared memory. */
template <class T, int D, int MT, int N>
static __device__ __forceinline__ void zt_att_product(float (&c)[MT][N / 8][4], const T *a,
                                                      const T *b)
{
    const T *a_row = zt_att_a_row<D>(a), *b_row = zt_att_b_row<D>(b);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t fa[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            zt_ldmatrix_x4(fa[m], a_row + m * 16 * (D + 8) + k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            uint32_t fb[4];
            zt_ldmatrix_x4(fb, b_row + n * (D + 8) + k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                zt_mma<T>(c[m][n / 8], fa[m], fb[0], fb[1]);
                zt_mma<T>(c[m][n / 8 + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

/* The same with the fragments of A held in registers. */
template <class T, int D, int MT, int N>
static __device__ __forceinline__ void
zt_att_product(float (&c)[MT][N / 8][4], const uint32_t (&fa)[D / 16][MT][4], const T *b)
{
    const T *b_row = zt_att_b_row<D>(b);
#pragma unroll
    for (int k = 0; k < D; k += 16)
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            uint32_t fb[4];
            zt_ldmatrix_x4(fb, b_row + n * (D + 8) + k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                zt_mma<T>(c[m][n / 8], fa[k / 16][m], fb[0], fb[1]);
                zt_mma<T>(c[m][n / 8 + 1], fa[k / 16][m], fb[2], fb[3]);
            }
        }
}

template <class T, int D, int MT>
static __device__ __forceinline__ void zt_att_hold(uint32_t (&fa)[D / 16][MT][4], const T *a)
{
    const T *a_row = zt_att_a_row<D>(a);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int m = 0; m < MT; m++)
            zt_ldmatrix_x4(fa[k][m], a_row + m * 16 * (D + 8) + k * 16);
}

/* o[MT][D / 8] += P[MT * 16 rows][K] . B[K rows][D]; P is C of a product, rounded to T here. */
template <class T, int D, int MT, int K>
static __device__ __forceinline__ void zt_att_gather(float (&o)[MT][D / 8][4],
                                                     const float (&p)[MT][K / 8][4], const T *b)
{
    const T *b_row = zt_att_a_row<D>(b);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                fa[m][r] =
                    zt_pack<T>(p[m][k / 8 + r / 2][r % 2 * 2], p[m][k / 8 + r / 2][r % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            uint32_t fb[4];
            zt_ldmatrix_x4_trans(fb, b_row + k * (D + 8) + n);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                zt_mma<T>(o[m][n / 8], fa[m], fb[0], fb[1]);
                zt_mma<T>(o[m][n / 8 + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

template <int M, int N> static __device__ __forceinline__ void zt_att_clear(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                c[m][n][r] = 0;
}

/*
 * o[m][..][r] times f[m][r / 2], rounded once, to rows of a head, `n` of them there, by way of this
 * warp's own rows of shared memory, which nobody else reads any more: 16-byte stores.
 */
template <class T, int D, int MT>
static __device__ __forceinline__ void zt_att_store(const float (&o)[MT][D / 8][4],
                                                    const float (&f)[MT][2], T *stage, T *dst,
                                                    int64_t ld, int n, int head_dim)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int LANES = zt_att_lanes(D), STEP = 32 / LANES;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int c = 0; c < D / 8; c++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(uint32_t *)(stage + (m * 16 + g + h * 8) * (D + 8) + c * 8 + t * 2) =
                    zt_pack<T>(o[m][c][h * 2] * f[m][h], o[m][c][h * 2 + 1] * f[m][h]);
    __syncwarp();
    const int col = lane % LANES * 8;
    if (col >= head_dim)
        return;
#pragma unroll 4
    for (int row = lane / LANES; row < min(n, MT * 16); row += STEP)
        *(uint4 *)(dst + row * ld + col) = *(const uint4 *)(stage + row * (D + 8) + col);
}

/* The same with one factor for all rows. */
template <class T, int D, int MT>
static __device__ __forceinline__ void zt_att_store(const float (&o)[MT][D / 8][4], float factor,
                                                    T *stage, T *dst, int64_t ld, int n,
                                                    int head_dim)
{
    float f[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
        f[m][0] = f[m][1] = factor;
    zt_att_store<T, D, MT>(o, f, stage, dst, ld, n, head_dim);
}

/* ---- dropout (dev/dropout.h) ---- */

/*
 * The numbers of N columns, 8 apart from the first, which is `first` % 8 in its block of 8: columns
 * first, first + 8, ..., two to a word. The first column's tile begins at a multiple of N.
 */
template <int N>
static __device__ __forceinline__ void zt_att_numbers(uint32_t (&w)[N / 16],
                                                      const struct zt_drop_key &key, uint32_t head,
                                                      uint32_t row, int first)
{
    const uint32_t block = (uint32_t)(first / ZT_DROP_GROUP * ZT_DROP_BLOCKS + first % 8);
    const struct zt_philox_block b = zt_drop_block(&key, head, row, block);
    const bool upper = first & 32, odd = first & 16;
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        if (N == 64)
            w[i] = b.v[i];
        else if (N == 32)
            w[i] = upper ? b.v[i + 2] : b.v[i];
        else
            w[i] = upper ? (odd ? b.v[3] : b.v[2]) : (odd ? b.v[1] : b.v[0]);
    }
}

/* Fragments of rows that are queries, from position `pos` on, and N keys from k0 on: 0, or times f. */
template <int MT, int N>
static __device__ __forceinline__ void zt_att_drop(float (&x)[MT][N / 8][4],
                                                   const struct zt_drop_key &key, uint32_t head,
                                                   int pos, int k0, uint32_t threshold, float f)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t row = (uint32_t)(pos + m * 16 + e / 2 * 8 + lane / 4);
            uint32_t w[N / 16];
            zt_att_numbers<N>(w, key, head, row, k0 + lane % 4 * 2 + e % 2);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                x[m][n][e] = (w[n / 2] >> n % 2 * 16 & 0xffffu) < threshold ? 0 : x[m][n][e] * f;
        }
}

/* ---- launches ---- */

/*
 * Let the kernel have `bytes` of shared memory, always as many, on the current device; it is asked once
 * for each kernel and device, and again after a failure. attention.cu.
 */
cudaError_t zt_att_allow(const struct zt_cuda_ctx *ctx, const void *kernel, size_t bytes);

#define ZT_ATT_LAUNCH(kernel, blocks, threads, smem, ctx, ...)                                     \
    do {                                                                                           \
        const cudaError_t rc_ = zt_att_allow(ctx, (const void *)kernel, smem);                     \
        if (rc_ != cudaSuccess)                                                                    \
            return rc_;                                                                            \
        ZT_LAUNCH(kernel, blocks, threads, smem, (ctx)->stream, __VA_ARGS__);                      \
        return cudaGetLastError();                                                                 \
    } while (0)

#endif
