/*
 * Casts, SwiGLU, rotary positions, and dropout with its sum (dev/dev.h): one pass over memory each.
 */
#include "reduce.h"
#include "vec.h"

constexpr int FLAT_THREADS = 256, FLAT_BLOCKS = 8; /* of each multiprocessor */

/* Calls f(at, n) for the groups of [0, n_elems) that are this thread's. */
template <class F> static __device__ __forceinline__ void for_groups(int64_t n_elems, F f)
{
    const int64_t step = (int64_t)gridDim.x * FLAT_THREADS * VEC;
    for (int64_t at = ((int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VEC; at < n_elems;
         at += step)
        f(at, group_elems(at, n_elems));
}

static inline unsigned flat_grid(int64_t n_elems, const struct zt_cuda_ctx *ctx)
{
    return grid_for(n_elems, FLAT_THREADS * VEC, ctx->n_sms, FLAT_BLOCKS);
}

/* ---- cast: bytes n * (src + dst), and dst again if it accumulates ---- */

template <class S, class D>
__global__ void __launch_bounds__(FLAT_THREADS)
    cast_kernel(int64_t n, S src, D dst, bool accumulate)
{
    for_groups(n, [&](int64_t at, int elems) {
        float x[VEC], sum[VEC];
        src.load(at, elems, x);
        if (accumulate) {
            dst.load(at, elems, sum);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[j] += sum[j];
        }
        dst.store(at, elems, x);
    });
}

#define REGISTER_CAST(S)                                                                           \
    ZT_SIM_REGISTER((cast_kernel<typed<S>, typed<float>>))                                         \
    ZT_SIM_REGISTER((cast_kernel<typed<S>, typed<__nv_bfloat16>>))                                 \
    ZT_SIM_REGISTER((cast_kernel<typed<S>, typed<__half>>))
REGISTER_CAST(float)
REGISTER_CAST(__nv_bfloat16)
REGISTER_CAST(__half)
ZT_SIM_REGISTER((cast_kernel<any_view, any_view>))

extern "C" cudaError_t zt_cuda_cast(const struct zt_cast *a, const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref src[] = {a->src}, dst[] = {a->dst};
    struct common_layout from = common_layout(src, VEC), to = common_layout(dst, VEC);
    if (a->n == 0)
        return cudaSuccess;
    from.vec = to.vec = from.vec && to.vec;
    auto launch = [&](auto s, auto d) {
        ZT_LAUNCH((cast_kernel<decltype(s), decltype(d)>), flat_grid(a->n, ctx), FLAT_THREADS, 0,
                  ctx->stream, a->n, s, d, a->accumulate);
        return cudaGetLastError();
    };
    if (!from.vec)
        return launch(any_view{a->src.ptr, (int)a->src.dtype, false},
                      any_view{a->dst.ptr, (int)a->dst.dtype, false});
    return with_types(
        a->src, [&](auto s) { return with_types(a->dst, [&](auto d) { return launch(s, d); }); });
}

/* ---- SwiGLU: bytes n * (gate + up + out); backward n * (dout + gate + up + dgate + dup) ---- */

/* Below -80 silu and its slope are 0 to fp32; held there, e^-x does not overflow. */
static __device__ __forceinline__ float hold(float x)
{
    return x < -80.0f ? -80.0f : x;
}

template <class A>
__global__ void __launch_bounds__(FLAT_THREADS) swiglu_fwd_kernel(int64_t n, A gate, A up, A out)
{
    for_groups(n, [&](int64_t at, int elems) {
        float g[VEC], u[VEC];
        gate.load(at, elems, g);
        up.load(at, elems, u);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const float x = hold(g[j]);
            u[j] *= __fdividef(x, 1.0f + __expf(-x));
        }
        out.store(at, elems, u);
    });
}
REGISTER_VIEWS(swiglu_fwd_kernel)

extern "C" cudaError_t zt_cuda_swiglu_fwd(const struct zt_swiglu_fwd *a,
                                          const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->gate, a->up, a->out};
    if (a->n == 0)
        return cudaSuccess;
    return with_views(common_layout(refs, VEC), [&](auto kind) {
        ZT_LAUNCH(swiglu_fwd_kernel<typename decltype(kind)::view>, flat_grid(a->n, ctx),
                  FLAT_THREADS, 0, ctx->stream, a->n, make_view(kind, a->gate),
                  make_view(kind, a->up), make_view(kind, a->out));
        return cudaGetLastError();
    });
}

/* silu'(x) = s + x s (1 - s), s = 1 / (1 + e^-x), 1 - s = s e^-x. */
template <class A>
__global__ void __launch_bounds__(FLAT_THREADS)
    swiglu_bwd_kernel(int64_t n, A dout, A gate, A up, A dgate, A dup)
{
    for_groups(n, [&](int64_t at, int elems) {
        float d[VEC], g[VEC], u[VEC];
        dout.load(at, elems, d);
        gate.load(at, elems, g);
        up.load(at, elems, u);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const float x = hold(g[j]), e = __expf(-x), s = __fdividef(1.0f, 1.0f + e);
            g[j] = d[j] * u[j] * fmaf(x * s, s * e, s);
            u[j] = d[j] * (x * s);
        }
        dgate.store(at, elems, g);
        dup.store(at, elems, u);
    });
}
REGISTER_VIEWS(swiglu_bwd_kernel)

extern "C" cudaError_t zt_cuda_swiglu_bwd(const struct zt_swiglu_bwd *a,
                                          const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->dout, a->gate, a->up, a->dgate, a->dup};
    if (a->n == 0)
        return cudaSuccess;
    return with_views(common_layout(refs, VEC), [&](auto kind) {
        ZT_LAUNCH(swiglu_bwd_kernel<typename decltype(kind)::view>, flat_grid(a->n, ctx),
                  FLAT_THREADS, 0, ctx->stream, a->n, make_view(kind, a->dout),
                  make_view(kind, a->gate), make_view(kind, a->up), make_view(kind, a->dgate),
                  make_view(kind, a->dup));
        return cudaGetLastError();
    });
}

/* ---- rope: bytes 2 * rows * (n_head + n_kv_head) * head_dim elements ---- */

/*
 * The frequencies travel with the launch: they are a few, and made by the host they are the CPU's. More
 * pairs than that take several launches.
 */
constexpr int ROPE_PAIRS = 256, ROPE_THREADS = 256, ROPE_ROWS = 8;

template <class A> struct rope_args {
    int64_t rows, ldq, ldk;
    int n_head, n_kv_head, head_dim;
    int first, pairs; /* pairs [first, first + pairs) of each head */
    int width;        /* pairs that a thread turns at a time: 8, or 1 where rows do not allow it */
    bool inverse;
    const int32_t *positions;
    A q, k;
    double frequency[ROPE_PAIRS];
};

/*
 * sin and cos of position * frequency. The angle is reduced to [-pi/4, pi/4] and a quadrant in double,
 * since positions reach 2^31: half_pi_high has 22 bits, so that its product with the quadrant number is
 * exact.
 */
static __device__ float2 sin_cos(double position, double frequency)
{
    const double two_over_pi = 0.63661977236758138;
    const double half_pi_high = 0x1.921fb0p+0, half_pi_low = 0x1.5110b4611a626p-22;
    const double angle = position * frequency, k = rint(angle * two_over_pi);
    const int quadrant = (int)((long long)k & 3);
    float s, c;
    sincosf((float)((angle - k * half_pi_high) - k * half_pi_low), &s, &c);
    const float sine = quadrant & 1 ? c : s, cosine = quadrant & 1 ? s : c;
    return make_float2(quadrant & 2 ? -sine : sine, (quadrant + 1) & 2 ? -cosine : cosine);
}

/* Pairs [pair, pair + width) of a head that begins at `head` in x. */
template <class A>
static __device__ __forceinline__ void turn_pairs(const A &x, int64_t head, int half, int pair,
                                                  int width, const float *sines,
                                                  const float *cosines)
{
    float lo[VEC], hi[VEC];
    x.load(head + pair, width, lo);
    x.load(head + half + pair, width, hi);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const float s = j < width ? sines[j] : 0.0f, c = j < width ? cosines[j] : 0.0f;
        const float a = lo[j], b = hi[j];
        lo[j] = fmaf(a, c, -(b * s));
        hi[j] = fmaf(b, c, a * s);
    }
    x.store(head + pair, width, lo);
    x.store(head + half + pair, width, hi);
}

/* A block takes ROPE_ROWS rows at a time: their sines first, then all pairs of all heads. */
template <class A>
__global__ void __launch_bounds__(ROPE_THREADS) rope_kernel(const __grid_constant__ rope_args<A> a)
{
    ZT_SHARED(float, sines, ROPE_ROWS *ROPE_PAIRS);
    ZT_SHARED(float, cosines, ROPE_ROWS *ROPE_PAIRS);
    const int heads = a.n_head + a.n_kv_head, half = a.head_dim / 2, groups = a.pairs / a.width;
    for (int64_t base = (int64_t)blockIdx.x * ROPE_ROWS; base < a.rows;
         base += (int64_t)gridDim.x * ROPE_ROWS) {
        const int n_rows = a.rows - base < ROPE_ROWS ? (int)(a.rows - base) : (int)ROPE_ROWS;
        for (int i = (int)threadIdx.x; i < n_rows * a.pairs; i += ROPE_THREADS) {
            const int row = i / a.pairs, pair = i % a.pairs;
            const float2 sc = sin_cos((double)a.positions[base + row], a.frequency[pair]);
            sines[row * ROPE_PAIRS + pair] = a.inverse ? -sc.x : sc.x;
            cosines[row * ROPE_PAIRS + pair] = sc.y;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n_rows * heads * groups; i += ROPE_THREADS) {
            const int group = i % groups, head = i / groups % heads, row = i / groups / heads;
            const int pair = group * a.width, at = row * ROPE_PAIRS + pair;
            const bool is_q = head < a.n_head;
            const int64_t begin = (base + row) * (is_q ? a.ldq : a.ldk) +
                                  (int64_t)(is_q ? head : head - a.n_head) * a.head_dim;
            turn_pairs(is_q ? a.q : a.k, begin, half, a.first + pair, a.width, sines + at,
                       cosines + at);
        }
        __syncthreads();
    }
}
REGISTER_VIEWS(rope_kernel)

extern "C" cudaError_t zt_cuda_rope(const struct zt_rope *a, const struct zt_cuda_ctx *ctx)
{
    const int half = a->head_dim / 2;
    const struct zt_ref refs[] = {a->q, a->k};
    struct common_layout layout = common_layout(refs, half);
    layout.vec = layout.vec && a->ldq % VEC == 0 && a->ldk % VEC == 0;
    if (a->head_dim % 2)
        return cudaErrorInvalidValue;
    for (int first = 0; a->rows && first < half; first += ROPE_PAIRS) {
        cudaError_t rc = with_views(layout, [&](auto kind) {
            typedef typename decltype(kind)::view A;
            rope_args<A> k = {};
            k.rows = a->rows;
            k.ldq = a->ldq;
            k.ldk = a->ldk;
            k.n_head = a->n_head;
            k.n_kv_head = a->n_kv_head;
            k.head_dim = a->head_dim;
            k.first = first;
            k.pairs = half - first < ROPE_PAIRS ? half - first : (int)ROPE_PAIRS;
            k.width = layout.vec ? (int)VEC : 1;
            k.inverse = a->inverse;
            k.positions = a->positions;
            k.q = make_view(kind, a->q);
            k.k = make_view(kind, a->k);
            for (int i = 0; i < k.pairs; i++)
                k.frequency[i] = zt_rope_frequency(&a->rule, a->head_dim, first + i);
            ZT_LAUNCH(rope_kernel<A>, grid_for(a->rows, ROPE_ROWS, ctx->n_sms, 8), ROPE_THREADS, 0,
                      ctx->stream, k);
            return cudaGetLastError();
        });
        if (rc)
            return rc;
    }
    return cudaSuccess;
}

/* ---- drop_add: bytes rows * cols * (x + residual + out) ---- */

template <class A> struct drop_add_args {
    int64_t rows, cols, seq_len;
    struct zt_dropout drop;
    A x, residual, out;
    bool residual_given;
};

/*
 * Eight lanes hold a group of 64 columns as dev/dropout.h makes them: lane j has number m of column 8 m + j
 * in half m % 2 of word m / 2. Afterwards lane m has those of columns 8 m to 8 m + 7, in the same way: an
 * 8 x 8 matrix of 16-bit numbers is transposed, by blocks of 4, of 2, of 1.
 */
static __device__ __forceinline__ void transpose_numbers(uint32_t (&w)[4])
{
    const int lane = threadIdx.x % WARP;
    const bool up4 = lane & 4, up2 = lane & 2, up1 = lane & 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, up4 ? w[i] : w[i + 2], 4);
        w[i] = up4 ? got : w[i];
        w[i + 2] = up4 ? w[i + 2] : got;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, up2 ? w[i] : w[i + 1], 2);
        w[i] = up2 ? got : w[i];
        w[i + 1] = up2 ? w[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, w[i], 1);
        w[i] = up1 ? __byte_perm(got, w[i], 0x7632) : __byte_perm(w[i], got, 0x5410);
    }
}

/* A warp for each row; a lane makes one block of numbers and writes eight columns. */
template <class A> __global__ void __launch_bounds__(256) drop_add_kernel(drop_add_args<A> a)
{
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int64_t row = (int64_t)blockIdx.x * warps + threadIdx.x / WARP; row < a.rows;
         row += (int64_t)gridDim.x * warps) {
        const struct zt_drop_key key = zt_drop_key(&a.drop, row / a.seq_len);
        const uint32_t token = (uint32_t)(row % a.seq_len);
        for (int64_t base = 0; base < a.cols; base += WARP * VEC) {
            const int64_t c = base + lane * VEC;
            const int n = group_elems(c, a.cols);
            float x[VEC], r[VEC] = {0};
            a.x.load(row * a.cols + c, n, x);
            if (a.residual_given)
                a.residual.load(row * a.cols + c, n, r);
            struct zt_philox_block b = zt_drop_block(
                &key, 0, token, (uint32_t)(base / ZT_DROP_GROUP * ZT_DROP_BLOCKS) + lane);
            transpose_numbers(b.v);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float keep = zt_drop_number(&b, j) < a.drop.threshold ? 0.0f : a.drop.scale;
                x[j] = fmaf(x[j], keep, r[j]);
            }
            a.out.store(row * a.cols + c, n, x);
        }
    }
}
REGISTER_VIEWS(drop_add_kernel)

extern "C" cudaError_t zt_cuda_drop_add(const struct zt_drop_add *a, const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->x, a->residual, a->out};
    if (a->rows == 0 || a->cols == 0)
        return cudaSuccess;
    return with_views(common_layout(refs, a->cols), [&](auto kind) {
        typedef typename decltype(kind)::view A;
        drop_add_args<A> k = {a->rows,
                              a->cols,
                              a->seq_len,
                              a->drop,
                              make_view(kind, a->x),
                              make_view(kind, a->residual),
                              make_view(kind, a->out),
                              a->residual.ptr != NULL};
        ZT_LAUNCH(drop_add_kernel<A>, grid_for(a->rows, 8, ctx->n_sms, 8), 256, 0, ctx->stream, k);
        return cudaGetLastError();
    });
}
