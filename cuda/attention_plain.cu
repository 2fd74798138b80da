/*
 * attention_plain.cu: attention in plain fp32 arithmetic for whatever the tensor-core kernels do not
 * take: fp32 models, odd head sizes, rows that are not aligned, types that differ. The algorithm and
 * the division of work are those of attention_fwd.cuh and attention_bwd.cuh.
 *
 * A block is 16 x 16 threads with tiles of 16 R rows by 16 R columns: thread (y, x) has rows y R.. and
 * columns x, x + 16, ... of a product, and of a result the rows y R.. and 4 columns of every 64. Tiles
 * in shared memory are fp32, rows D + 4 apart, zero past head_dim and past the end.
 *
 * FLOPs for each (query, key) pair seen and head: 4, 6 and 8 times head_dim (fwd, dq, dk and dv).
 */
#include "attention.h"

enum { SIDE = 16, THREADS = SIDE * SIDE };

/* ---- tiles ---- */

static __device__ __forceinline__ float load_scalar(const struct zt_ref &m, int64_t i)
{
    if (m.dtype == ZT_F32)
        return ((const float *)m.ptr)[i];
    if (m.dtype == ZT_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)m.ptr)[i]);
    return __half2float(((const __half *)m.ptr)[i]);
}

static __device__ __forceinline__ void store_scalar(const struct zt_ref &m, int64_t i, float x)
{
    if (m.dtype == ZT_F32)
        ((float *)m.ptr)[i] = x;
    else if (m.dtype == ZT_BF16)
        ((__nv_bfloat16 *)m.ptr)[i] = __float2bfloat16_rn(x);
    else
        ((__half *)m.ptr)[i] = __float2half_rn(x);
}

/* Rows of fp32 that begin at multiples of 16 bytes are read by fours. */
static __device__ __forceinline__ bool by_fours(const struct zt_ref &m, int64_t ld, int head_dim)
{
    return m.dtype == ZT_F32 && (uintptr_t)m.ptr % 16 == 0 && ld % 4 == 0 && head_dim % 4 == 0;
}

/* Rows of a head, the first one's element 0 at `at`, `n` of them there, to a tile of `rows` rows. */
template <int D>
static __device__ void load_tile(float *dst, const struct zt_ref &m, int64_t at, int64_t ld,
                                 int rows, int n, int head_dim)
{
    const bool fours = by_fours(m, ld, head_dim);
    for (int i = (int)threadIdx.x * 4; i < rows * D; i += THREADS * 4) {
        const int row = i / D, col = i % D;
        float4 x = make_float4(0, 0, 0, 0);
        if (row < n && col < head_dim) {
            const int64_t from = at + row * ld + col;
            if (fours) {
                x = *(const float4 *)((const float *)m.ptr + from);
            } else {
                x.x = load_scalar(m, from);
                x.y = col + 1 < head_dim ? load_scalar(m, from + 1) : 0;
                x.z = col + 2 < head_dim ? load_scalar(m, from + 2) : 0;
                x.w = col + 3 < head_dim ? load_scalar(m, from + 3) : 0;
            }
        }
        *(float4 *)(dst + row * (D + 4) + col) = x;
    }
}

/* s[i][j] = row y R + i of a . row x + 16 j of b, over head_dim rounded up to 4. */
template <int R, int D>
static __device__ __forceinline__ void product(float (&s)[R][R], const float *a, const float *b,
                                               int head_dim)
{
    a += (int)threadIdx.x / SIDE * R * (D + 4);
    b += (int)threadIdx.x % SIDE * (D + 4);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            s[i][j] = 0;
#pragma unroll 2
    for (int c = 0; c < head_dim; c += 4) {
        float4 x[R], y[R];
#pragma unroll
        for (int i = 0; i < R; i++) {
            x[i] = *(const float4 *)(a + i * (D + 4) + c);
            y[i] = *(const float4 *)(b + i * SIDE * (D + 4) + c);
        }
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                s[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
    }
}

/* o[i][4 c..] += row y R + i of p . columns 64 c + 4 x.. of b, over all 16 R rows of b. */
template <int R, int D>
static __device__ __forceinline__ void gather(float4 (&o)[R][D / 64], const float *p,
                                              const float *b)
{
    constexpr int LDP = SIDE * R + 4;
    p += (int)threadIdx.x / SIDE * R * LDP;
    b += (int)threadIdx.x % SIDE * 4;
#pragma unroll 2
    for (int k = 0; k < SIDE * R; k++) {
        float w[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            w[i] = p[i * LDP + k];
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            const float4 v = *(const float4 *)(b + k * (D + 4) + c * 64);
#pragma unroll
            for (int i = 0; i < R; i++) {
                o[i][c].x += w[i] * v.x;
                o[i][c].y += w[i] * v.y;
                o[i][c].z += w[i] * v.z;
                o[i][c].w += w[i] * v.w;
            }
        }
    }
}

template <int R, int D> static __device__ __forceinline__ void clear(float4 (&o)[R][D / 64])
{
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < D / 64; c++)
            o[i][c] = make_float4(0, 0, 0, 0);
}

/* This thread's rows y R.. and columns of a result, each times f, `n` rows of the tile there. */
template <int R, int D>
static __device__ void store(const float4 (&o)[R][D / 64], float f, const struct zt_ref &m,
                             int64_t at, int64_t ld, int n, int head_dim)
{
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = (int)threadIdx.x / SIDE * R + i;
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            const float x[4] = {o[i][c].x, o[i][c].y, o[i][c].z, o[i][c].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int col = c * 64 + (int)threadIdx.x % SIDE * 4 + e;
                if (row < n && col < head_dim)
                    store_scalar(m, at + row * ld + col, x[e] * f);
            }
        }
    }
}

/* s to a tile for gather(). */
template <int R> static __device__ __forceinline__ void keep(const float (&s)[R][R], float *p)
{
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            p[((int)threadIdx.x / SIDE * R + i) * (SIDE * R + 4) + (int)threadIdx.x % SIDE +
              j * SIDE] = s[i][j];
}

/* ---- one head ---- */

/* Places of a head in the tensors, elements; keys that a query sees; dropout. */
struct head {
    int64_t q, kv, out, stat; /* row 0 of the sequence: of q and dq, k and v, out and dout, lse */
    const int32_t *seg;
    uint32_t index;
    struct zt_drop_key drop;
};

static __device__ __forceinline__ struct head head_of(const struct zt_attention &a, int64_t seq,
                                                      int q_head)
{
    struct head h;
    h.q = seq * a.q_len * a.ldq + (int64_t)q_head * a.head_dim;
    h.kv = seq * a.k_len * a.ldkv + (int64_t)(q_head / (a.n_head / a.n_kv_head)) * a.head_dim;
    h.out = seq * a.q_len * a.ldo + (int64_t)q_head * a.head_dim;
    h.stat = (seq * a.n_head + q_head) * a.q_len;
    h.seg = a.seg_start ? a.seg_start + seq * a.k_len : NULL;
    h.index = (uint32_t)q_head;
    if (a.drop.threshold)
        h.drop = zt_drop_key(&a.drop, seq);
    return h;
}

static __device__ __forceinline__ bool sees(const struct head &h, int pos, int key)
{
    return key <= pos && key >= zt_att_first_key(h.seg, pos);
}

/* What dropout multiplies the probability of a key by. */
static __device__ __forceinline__ float factor(const struct zt_attention &a, const struct head &h,
                                               int pos, int key)
{
    if (!a.drop.threshold)
        return 1;
    uint32_t w[1];
    zt_att_numbers<16>(w, h.drop, h.index, (uint32_t)pos, key);
    return (w[0] >> key / 8 % 2 * 16 & 0xffffu) < a.drop.threshold ? 0 : a.drop.scale;
}

/* Sum, or largest, of the 16 threads that have the same rows. */
static __device__ __forceinline__ float row_sum(float x)
{
#pragma unroll
    for (int m = 1; m < SIDE; m *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

static __device__ __forceinline__ float row_max(float x)
{
#pragma unroll
    for (int m = 1; m < SIDE; m *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}

/*
 * A row's scores of keys key0 + 16 j to what dropout leaves of exp(score - max), where max, sum and o are those of all
 * keys so far: a larger max scales them down (Milakov and Gimelshein, "Online normalizer calculation for softmax").
 */
template <int R, int D>
static __device__ __forceinline__ void
softmax_row(const struct zt_attention &a, const struct head &h, int pos, int key0, float (&s)[R],
            float *max, float *sum, float4 (&o)[D / 64])
{
    float top = *max, add = 0;
#pragma unroll
    for (int j = 0; j < R; j++) {
        s[j] = sees(h, pos, key0 + j * SIDE) ? s[j] * a.scale : -INFINITY;
        top = fmaxf(top, s[j]);
    }
    top = row_max(top);
    const float base = top == -INFINITY ? 0 : top, less = expf(*max - base);
#pragma unroll
    for (int j = 0; j < R; j++) {
        s[j] = expf(s[j] - base);
        add += s[j];
        s[j] *= factor(a, h, pos, key0 + j * SIDE);
    }
    *max = top;
    *sum = *sum * less + row_sum(add);
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
        o[c].x *= less;
        o[c].y *= less;
        o[c].z *= less;
        o[c].w *= less;
    }
}

/* ---- kernels ---- */

template <int R, int D>
__global__ void __launch_bounds__(THREADS) zt_att_plain_fwd_kernel(struct zt_attention a)
{
    constexpr int TILE = SIDE * R, FLOATS = TILE * (D + 4);
    ZT_DYN_SHARED(float, smem); /* Q, K, V, P */
    float *k = smem + FLOATS, *v = k + FLOATS, *p = v + FLOATS;
    const int n_tiles = zt_ceil_div(a.q_len, TILE), x = threadIdx.x % SIDE;
    const struct zt_att_place at = zt_att_place_of(blockIdx.x, n_tiles, a.n_head);
    const struct head h = head_of(a, at.seq, at.head);
    const int q0 = (n_tiles - 1 - at.tile) * TILE, n_rows = min((int)a.q_len - q0, TILE);
    const int pos0 = (int)a.q_offset + q0, last_pos = pos0 + n_rows - 1;
    const int row0 = (int)threadIdx.x / SIDE * R;
    float max[R], sum[R];
    float4 o[R][D / 64];
    load_tile<D>(smem, a.q, h.q + q0 * a.ldq, a.ldq, TILE, n_rows, a.head_dim);
    clear<R, D>(o);
#pragma unroll
    for (int i = 0; i < R; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    for (int k0 = zt_att_first_key(h.seg, pos0) / TILE * TILE; k0 <= last_pos; k0 += TILE) {
        const int n_keys = (int)a.k_len - k0;
        __syncthreads(); /* the tiles of the last round have been read */
        load_tile<D>(k, a.k, h.kv + k0 * a.ldkv, a.ldkv, TILE, n_keys, a.head_dim);
        load_tile<D>(v, a.v, h.kv + k0 * a.ldkv, a.ldkv, TILE, n_keys, a.head_dim);
        __syncthreads();
        float s[R][R];
        product<R, D>(s, smem, k, a.head_dim);
#pragma unroll
        for (int i = 0; i < R; i++)
            softmax_row<R, D>(a, h, min(pos0 + row0 + i, last_pos), k0 + x, s[i], &max[i], &sum[i],
                              o[i]);
        keep<R>(s, p);
        __syncthreads();
        gather<R, D>(o, p, v);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float f = 1 / sum[i];
#pragma unroll
        for (int c = 0; c < D / 64; c++)
            o[i][c] = make_float4(o[i][c].x * f, o[i][c].y * f, o[i][c].z * f, o[i][c].w * f);
        if (x == 0 && row0 + i < n_rows)
            a.lse[h.stat + q0 + row0 + i] = max[i] + logf(sum[i]);
    }
    store<R, D>(o, 1, a.out, h.out + q0 * a.ldo, a.ldo, n_rows, a.head_dim);
}

template <int R, int D>
__global__ void __launch_bounds__(THREADS) zt_att_plain_dq_kernel(struct zt_attention a)
{
    constexpr int TILE = SIDE * R, FLOATS = TILE * (D + 4);
    ZT_DYN_SHARED(float, smem); /* Q, dO, K, V, dS */
    float *dout = smem + FLOATS, *k = dout + FLOATS, *v = k + FLOATS, *ds = v + FLOATS;
    const int n_tiles = zt_ceil_div(a.q_len, TILE), x = threadIdx.x % SIDE;
    const struct zt_att_place at = zt_att_place_of(blockIdx.x, n_tiles, a.n_head);
    const struct head h = head_of(a, at.seq, at.head);
    const int q0 = (n_tiles - 1 - at.tile) * TILE, n_rows = min((int)a.q_len - q0, TILE);
    const int pos0 = (int)a.q_offset + q0, last_pos = pos0 + n_rows - 1;
    const int row0 = (int)threadIdx.x / SIDE * R;
    float lse[R], delta[R];
    float4 dq[R][D / 64];
    load_tile<D>(smem, a.q, h.q + q0 * a.ldq, a.ldq, TILE, n_rows, a.head_dim);
    load_tile<D>(dout, a.dout, h.out + q0 * a.ldo, a.ldo, TILE, n_rows, a.head_dim);
    __syncthreads();
    clear<R, D>(dq);
#pragma unroll
    for (int i = 0; i < R; i++) {
        const bool there = row0 + i < n_rows;
        const int64_t row = h.out + (q0 + row0 + i) * a.ldo;
        float sum = 0;
        for (int c = x; there && c < a.head_dim; c += SIDE)
            sum += dout[(row0 + i) * (D + 4) + c] * load_scalar(a.out, row + c);
        delta[i] = row_sum(sum);
        /* a row that is not there has probabilities 0 */
        lse[i] = there ? a.lse[h.stat + q0 + row0 + i] : INFINITY;
        if (x == 0 && there)
            ((float *)a.ws)[h.stat + q0 + row0 + i] = delta[i];
    }
    for (int k0 = zt_att_first_key(h.seg, pos0) / TILE * TILE; k0 <= last_pos; k0 += TILE) {
        const int n_keys = (int)a.k_len - k0;
        __syncthreads(); /* the tiles of the last round have been read */
        load_tile<D>(k, a.k, h.kv + k0 * a.ldkv, a.ldkv, TILE, n_keys, a.head_dim);
        load_tile<D>(v, a.v, h.kv + k0 * a.ldkv, a.ldkv, TILE, n_keys, a.head_dim);
        __syncthreads();
        float s[R][R], dp[R][R];
        product<R, D>(s, smem, k, a.head_dim);
        product<R, D>(dp, dout, v, a.head_dim);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int pos = min(pos0 + row0 + i, last_pos);
#pragma unroll
            for (int j = 0; j < R; j++) {
                const int key = k0 + x + j * SIDE;
                const float p = sees(h, pos, key) ? expf(s[i][j] * a.scale - lse[i]) : 0;
                s[i][j] = p * (dp[i][j] * factor(a, h, pos, key) - delta[i]);
            }
        }
        keep<R>(s, ds);
        __syncthreads();
        gather<R, D>(dq, ds, k);
    }
    store<R, D>(dq, a.scale, a.dq, h.q + q0 * a.ldq, a.ldq, n_rows, a.head_dim);
}

template <int R, int D>
__global__ void __launch_bounds__(THREADS) zt_att_plain_dkv_kernel(struct zt_attention a)
{
    constexpr int TILE = SIDE * R, FLOATS = TILE * (D + 4), SQUARE = TILE * (TILE + 4);
    ZT_DYN_SHARED(float, smem); /* K, V, Q, dO, P^T, dS^T, then lse and delta of the queries */
    float *v = smem + FLOATS, *q = v + FLOATS, *dout = q + FLOATS;
    float *p = dout + FLOATS, *ds = p + SQUARE;
    const int n_tiles = zt_ceil_div(a.q_len, TILE), x = threadIdx.x % SIDE;
    const struct zt_att_place at =
        zt_att_place_of(blockIdx.x, zt_ceil_div(a.k_len, TILE), a.n_kv_head);
    const int group = a.n_head / a.n_kv_head, k0 = at.tile * TILE;
    const int n_keys = min((int)a.k_len - k0, TILE), row0 = (int)threadIdx.x / SIDE * R;
    const int64_t kv = head_of(a, at.seq, at.head * group).kv + k0 * a.ldkv;
    float4 dk[R][D / 64], dv[R][D / 64];
    load_tile<D>(smem, a.k, kv, a.ldkv, TILE, n_keys, a.head_dim);
    load_tile<D>(v, a.v, kv, a.ldkv, TILE, n_keys, a.head_dim);
    clear<R, D>(dk);
    clear<R, D>(dv);
    for (int g = 0; g < group; g++) {
        const struct head h = head_of(a, at.seq, at.head * group + g);
        for (int t = max(k0 - (int)a.q_offset, 0) / TILE; t < n_tiles; t++) {
            const int q0 = t * TILE, pos0 = (int)a.q_offset + q0, n_rows = (int)a.q_len - q0;
            if (zt_att_first_key(h.seg, pos0) >= k0 + n_keys)
                break;       /* nor do later ones see a key of the tile */
            __syncthreads(); /* the tiles of the last round have been read */
            load_tile<D>(q, a.q, h.q + q0 * a.ldq, a.ldq, TILE, n_rows, a.head_dim);
            load_tile<D>(dout, a.dout, h.out + q0 * a.ldo, a.ldo, TILE, n_rows, a.head_dim);
            __syncthreads();
            float s[R][R], dp[R][R];
            product<R, D>(s, smem, q, a.head_dim);
            product<R, D>(dp, v, dout, a.head_dim);
#pragma unroll
            for (int j = 0; j < R; j++) {
                const int row = x + j * SIDE, pos = pos0 + row;
                const bool there = row < n_rows;
                const float lse = there ? a.lse[h.stat + q0 + row] : 0;
                const float delta = there ? ((const float *)a.ws)[h.stat + q0 + row] : 0;
#pragma unroll
                for (int i = 0; i < R; i++) {
                    const int key = k0 + row0 + i;
                    const bool seen = there && sees(h, pos, key);
                    const float w = seen ? expf(s[i][j] * a.scale - lse) : 0;
                    const float f = seen ? factor(a, h, pos, key) : 0;
                    s[i][j] = w * f;
                    dp[i][j] = w * (dp[i][j] * f - delta);
                }
            }
            keep<R>(s, p);
            keep<R>(dp, ds);
            __syncthreads();
            gather<R, D>(dv, p, dout);
            gather<R, D>(dk, ds, q);
        }
    }
    store<R, D>(dk, a.scale, a.dk, kv, a.ldkv, n_keys, a.head_dim);
    store<R, D>(dv, 1, a.dv, kv, a.ldkv, n_keys, a.head_dim);
}

/* ---- launches ---- */

template <int R, int D> static constexpr size_t smem_bytes(int tiles, int squares)
{
    return ((size_t)tiles * SIDE * R * (D + 4) + (size_t)squares * SIDE * R * (SIDE * R + 4)) *
           sizeof(float);
}

template <int R, int D>
static cudaError_t launch_fwd(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    constexpr size_t smem = smem_bytes<R, D>(3, 1);
    const int64_t blocks = a->batch * a->n_head * zt_ceil_div(a->q_len, SIDE * R);
    if constexpr (smem > ZT_CUDA_MIN_SMEM_BYTES)
        if (smem > ctx->smem_bytes)
            return launch_fwd<R / 2, D>(a, ctx);
    ZT_ATT_LAUNCH((zt_att_plain_fwd_kernel<R, D>), (unsigned)blocks, THREADS, smem, ctx, *a);
}

template <int R, int D>
static cudaError_t launch_dq(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    constexpr size_t smem = smem_bytes<R, D>(4, 1);
    const int64_t blocks = a->batch * a->n_head * zt_ceil_div(a->q_len, SIDE * R);
    if constexpr (smem > ZT_CUDA_MIN_SMEM_BYTES)
        if (smem > ctx->smem_bytes)
            return launch_dq<R / 2, D>(a, ctx);
    ZT_ATT_LAUNCH((zt_att_plain_dq_kernel<R, D>), (unsigned)blocks, THREADS, smem, ctx, *a);
}

template <int R, int D>
static cudaError_t launch_dkv(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    constexpr size_t smem = smem_bytes<R, D>(4, 2);
    const int64_t blocks = a->batch * a->n_kv_head * zt_ceil_div(a->k_len, SIDE * R);
    if constexpr (smem > ZT_CUDA_MIN_SMEM_BYTES)
        if (smem > ctx->smem_bytes)
            return launch_dkv<R / 2, D>(a, ctx);
    ZT_ATT_LAUNCH((zt_att_plain_dkv_kernel<R, D>), (unsigned)blocks, THREADS, smem, ctx, *a);
}

template <int R, int D>
static cudaError_t launch_bwd(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    const cudaError_t rc = launch_dq<R, D>(a, ctx);
    return rc == cudaSuccess ? launch_dkv<R, D>(a, ctx) : rc;
}

ZT_SIM_REGISTER((zt_att_plain_fwd_kernel<4, 64>))
ZT_SIM_REGISTER((zt_att_plain_fwd_kernel<4, 128>))
ZT_SIM_REGISTER((zt_att_plain_fwd_kernel<2, 128>))
ZT_SIM_REGISTER((zt_att_plain_fwd_kernel<2, 256>))
ZT_SIM_REGISTER((zt_att_plain_fwd_kernel<1, 256>))
ZT_SIM_REGISTER((zt_att_plain_dq_kernel<4, 64>))
ZT_SIM_REGISTER((zt_att_plain_dq_kernel<2, 128>))
ZT_SIM_REGISTER((zt_att_plain_dq_kernel<2, 256>))
ZT_SIM_REGISTER((zt_att_plain_dq_kernel<1, 256>))
ZT_SIM_REGISTER((zt_att_plain_dkv_kernel<4, 64>))
ZT_SIM_REGISTER((zt_att_plain_dkv_kernel<2, 64>))
ZT_SIM_REGISTER((zt_att_plain_dkv_kernel<2, 128>))
ZT_SIM_REGISTER((zt_att_plain_dkv_kernel<2, 256>))
ZT_SIM_REGISTER((zt_att_plain_dkv_kernel<1, 256>))

cudaError_t zt_attention_fwd_plain(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (a->head_dim <= 64)
        return launch_fwd<4, 64>(a, ctx);
    if (a->head_dim <= 128)
        return launch_fwd<4, 128>(a, ctx);
    return launch_fwd<2, 256>(a, ctx);
}

cudaError_t zt_attention_bwd_plain(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (a->head_dim <= 64)
        return launch_bwd<4, 64>(a, ctx);
    if (a->head_dim <= 128)
        return launch_bwd<2, 128>(a, ctx);
    return launch_bwd<2, 256>(a, ctx);
}
