/*
 * UPDATE and the sum of squares of the gradient norm (dev/dev.h). Compiled with -fmad=false: an update's
 * bits are those of the CPU (dev/adam.h, dev/lion.h).
 */
#include "reduce.h"
#include "vec.h"

#include "dev/adam.h"
#include "dev/lion.h"

/*
 * ---- update: bytes of an element: grad, param; m, v and master (or fp32 param) read and written ----
 *
 * Ranges are cut into tiles at multiples of TILE_ELEMS of the flat buffers. A launch carries as many
 * ranges as its arguments hold, and the number of tiles up to the end of each.
 */

constexpr int UPDATE_THREADS = 256, TILE_ELEMS = UPDATE_THREADS * VEC, LAUNCH_RANGES = 64;

struct update_ranges {
    int n;
    struct zt_update_range range[LAUNCH_RANGES];
    int64_t tiles_end[LAUNCH_RANGES];
};

/* G: gradient. P: parameter; fp32 ones are their own master where none is given. */
template <class G, class P> struct update_args {
    struct update_ranges ranges;
    const struct zt_step_block *sb;
    enum zt_optimizer optimizer;
    bool vec;   /* groups of eight begin at 16 bytes, in all buffers */
    bool fresh; /* param gets master's values in any case */
    G *grad;
    float *m, *v, *master; /* v may be NULL; master is param where that is fp32 and alone */
    P *param;              /* NULL there */
};

/* w, m and v take the gradient of eight elements in. */
static __device__ __forceinline__ void update8(enum zt_optimizer optimizer,
                                               const struct zt_step_block *sb,
                                               const struct zt_update_range &r,
                                               const float (&g)[VEC], float (&w)[VEC],
                                               float (&m)[VEC], float (&v)[VEC])
{
    if (optimizer == ZT_LION) {
        const struct zt_lion_coef c = zt_lion_coef(sb, r.lr_scale, r.weight_decay);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            zt_lion_element(&c, g[j], &w[j], &m[j]);
        return;
    }
    const struct zt_adam_coef c = zt_adam_coef(sb, r.lr_scale, r.weight_decay);
    if (optimizer == ZT_ADAMW) {
#pragma unroll
        for (int j = 0; j < VEC; j++)
            zt_adamw_element(&c, g[j], &w[j], &m[j], &v[j]);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; j++)
            zt_adam_element(&c, g[j], &w[j], &m[j], &v[j]);
    }
}

/* Elements [at, at + 8) as far as they lie in the range; `at` is a multiple of 8. */
template <class G, class P>
static __device__ __forceinline__ void update_group(const update_args<G, P> &a,
                                                    const struct zt_update_range &r, int64_t at)
{
    float g[VEC], w[VEC], m[VEC], v[VEC];
    if (a.vec && at >= r.begin && at + VEC <= r.end) {
        load8(a.grad + at, g);
        load8(a.master + at, w);
        load8(a.m + at, m);
        if (a.v)
            load8(a.v + at, v);
        if (a.sb->apply)
            update8(a.optimizer, a.sb, r, g, w, m, v);
        store8(a.master + at, w);
        store8(a.m + at, m);
        if (a.v)
            store8(a.v + at, v);
        if (a.param)
            store8(a.param + at, w);
        return;
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const bool in = at + j >= r.begin && at + j < r.end;
        g[j] = in ? to_float(a.grad[at + j]) : 0.0f;
        w[j] = in ? a.master[at + j] : 0.0f;
        m[j] = in ? a.m[at + j] : 0.0f;
        v[j] = in && a.v ? a.v[at + j] : 0.0f;
    }
    if (a.sb->apply)
        update8(a.optimizer, a.sb, r, g, w, m, v);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        if (at + j < r.begin || at + j >= r.end)
            continue;
        a.master[at + j] = w[j];
        a.m[at + j] = m[j];
        if (a.v)
            a.v[at + j] = v[j];
        if (a.param)
            from_float(w[j], a.param + at + j);
    }
}

template <class G, class P>
__global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(const __grid_constant__ update_args<G, P> a)
{
    if (!a.sb->apply && !a.fresh)
        return;
    int i = 0;
    for (int64_t tile = blockIdx.x; tile < a.ranges.tiles_end[a.ranges.n - 1]; tile += gridDim.x) {
        while (tile >= a.ranges.tiles_end[i])
            i++;
        const struct zt_update_range &r = a.ranges.range[i];
        const int64_t first = r.begin / TILE_ELEMS - (i ? a.ranges.tiles_end[i - 1] : 0);
        update_group(a, r, (first + tile) * TILE_ELEMS + threadIdx.x * VEC);
    }
}

/* Ranges [begin, end) of the update, at most LAUNCH_RANGES; empty ones are left out. */
static struct update_ranges cut_ranges(const struct zt_update *a, int begin, int end)
{
    struct update_ranges out = {};
    int64_t tiles = 0;
    for (int i = begin; i < end; i++) {
        const struct zt_update_range *r = &a->ranges[i];
        if (r->end <= r->begin)
            continue;
        tiles += (r->end + TILE_ELEMS - 1) / TILE_ELEMS - r->begin / TILE_ELEMS;
        out.range[out.n] = *r;
        out.tiles_end[out.n++] = tiles;
    }
    return out;
}

template <class G, class P>
static cudaError_t launch_update(const struct zt_update *a, const struct zt_cuda_ctx *ctx)
{
    const bool own = !a->master.ptr;
    update_args<G, P> k = {};
    k.sb = a->sb;
    k.optimizer = a->optimizer;
    k.fresh = a->fresh;
    k.grad = static_cast<G *>(a->grad.ptr);
    k.m = a->m;
    k.v = a->v;
    k.master = static_cast<float *>(own ? a->param.ptr : a->master.ptr);
    k.param = own ? NULL : static_cast<P *>(a->param.ptr);
    k.vec = is_vec(k.grad) && is_vec(k.m) && is_vec(k.v) && is_vec(k.master) && is_vec(k.param);
    for (int i = 0; i < a->n_ranges; i += LAUNCH_RANGES) {
        const int end = a->n_ranges - i < LAUNCH_RANGES ? a->n_ranges : i + LAUNCH_RANGES;
        k.ranges = cut_ranges(a, i, end);
        if (k.ranges.n == 0)
            continue;
        ZT_LAUNCH((update_kernel<G, P>),
                  grid_for(k.ranges.tiles_end[k.ranges.n - 1], 1, ctx->n_sms, 16), UPDATE_THREADS,
                  0, ctx->stream, k);
        cudaError_t rc = cudaGetLastError();
        if (rc)
            return rc;
    }
    return cudaSuccess;
}

template <class G>
static cudaError_t update_with_grad(const struct zt_update *a, const struct zt_cuda_ctx *ctx)
{
    switch (a->param.dtype) {
    case ZT_F32:
        return launch_update<G, float>(a, ctx);
    case ZT_BF16:
        return launch_update<G, __nv_bfloat16>(a, ctx);
    case ZT_F16:
        return launch_update<G, __half>(a, ctx);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t zt_cuda_update(const struct zt_update *a, const struct zt_cuda_ctx *ctx)
{
    if ((!a->master.ptr && (a->param.dtype != ZT_F32 || a->fresh)) ||
        (a->v != NULL) != zt_optimizer_has_v(a->optimizer))
        return cudaErrorInvalidValue;
    switch (a->grad.dtype) {
    case ZT_F32:
        return update_with_grad<float>(a, ctx);
    case ZT_BF16:
        return update_with_grad<__nv_bfloat16>(a, ctx);
    case ZT_F16:
        return update_with_grad<__half>(a, ctx);
    default:
        return cudaErrorInvalidValue;
    }
}

#define REGISTER_UPDATE(G)                                                                         \
    ZT_SIM_REGISTER((update_kernel<G, float>))                                                     \
    ZT_SIM_REGISTER((update_kernel<G, __nv_bfloat16>))                                             \
    ZT_SIM_REGISTER((update_kernel<G, __half>))
REGISTER_UPDATE(float)
REGISTER_UPDATE(__nv_bfloat16)
REGISTER_UPDATE(__half)

/*
 * ---- sum_sq: bytes n * x, FLOPs 2 n ----
 *
 * Blocks of SQ_BLOCK elements, fp32 within one and double over them, as on the CPU. A warp sums one;
 * warps, then blocks of threads, are added up in order.
 */

constexpr int SQ_BLOCK = 4096;
constexpr int SQ_WARPS = 8;
constexpr int SQ_PARTS = 2048; /* at most; in the stream's scratch */
constexpr int SQ_FINISH = 256;

template <class A> struct sum_sq_args {
    int64_t n;
    A x;
    double *parts; /* of each block of threads */
};

template <class A> __global__ void __launch_bounds__(SQ_WARPS *WARP) sum_sq_kernel(sum_sq_args<A> a)
{
    ZT_SHARED(double, part, SQ_WARPS);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t step = (int64_t)gridDim.x * SQ_WARPS * SQ_BLOCK;
    double total = 0;
    for (int64_t begin = ((int64_t)blockIdx.x * SQ_WARPS + warp) * SQ_BLOCK; begin < a.n;
         begin += step) {
        const int64_t end = begin + SQ_BLOCK < a.n ? begin + SQ_BLOCK : a.n;
        float sum = 0;
#pragma unroll 4
        for (int64_t i = begin + lane * VEC; i < end; i += WARP * VEC) {
            float x[VEC];
            a.x.load(i, group_elems(i, end), x);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum = fmaf(x[j], x[j], sum);
        }
        total += (double)warp_sum(sum);
    }
    if (lane == 0)
        part[warp] = total;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < SQ_WARPS; w++)
        total += part[w];
    a.parts[blockIdx.x] = total;
}
REGISTER_VIEWS(sum_sq_kernel)

/* One block; neighbouring parts first. */
__global__ void __launch_bounds__(SQ_FINISH)
    sum_sq_finish_kernel(const double *parts, int n, struct zt_norm_partial *out, bool accumulate)
{
    ZT_SHARED(double, part, SQ_FINISH);
    const int each = (n + SQ_FINISH - 1) / SQ_FINISH, first = (int)threadIdx.x * each;
    double total = 0;
    for (int i = first; i < first + each && i < n; i++)
        total += parts[i];
    part[threadIdx.x] = total;
    for (int k = SQ_FINISH / 2; k > 0; k /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < k)
            part[threadIdx.x] += part[threadIdx.x + k];
    }
    if (threadIdx.x == 0)
        out->sum_sq = part[0] + (accumulate ? out->sum_sq : 0.0);
}
ZT_SIM_REGISTER(sum_sq_finish_kernel)

extern "C" cudaError_t zt_cuda_sum_sq(const struct zt_sum_sq *a, const struct zt_cuda_ctx *ctx)
{
    static_assert(SQ_PARTS * sizeof(double) <= ZT_CUDA_SCRATCH_BYTES, "parts fit the scratch");
    const struct zt_ref refs[] = {a->x};
    double *parts = static_cast<double *>(ctx->scratch);
    unsigned blocks = grid_for(a->n, SQ_WARPS * SQ_BLOCK, ctx->n_sms, 8);
    blocks = blocks < SQ_PARTS ? blocks : (unsigned)SQ_PARTS;
    cudaError_t rc = cudaSuccess;
    if (a->n)
        rc = with_views(common_layout(refs, VEC), [&](auto kind) {
            typedef typename decltype(kind)::view A;
            sum_sq_args<A> k = {a->n, make_view(kind, a->x), parts};
            ZT_LAUNCH(sum_sq_kernel<A>, blocks, SQ_WARPS * WARP, 0, ctx->stream, k);
            return cudaGetLastError();
        });
    if (rc)
        return rc;
    ZT_LAUNCH(sum_sq_finish_kernel, 1, SQ_FINISH, 0, ctx->stream, parts, a->n ? (int)blocks : 0,
              a->out, a->accumulate);
    return cudaGetLastError();
}
