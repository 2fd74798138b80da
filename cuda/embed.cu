/*
 * Embedding and its gradient (dev/dev.h).
 *
 * The gradient is a scatter-add whose order of additions is given: rows in their order, for each
 * element. So rows are grouped by their index first: `heads` and `next` chain the rows of each index, in
 * whatever order the atomics came, and `counts` counts them. Then a block takes an index, brings its
 * rows into their order, and adds them up in registers. Each element of the result is written once.
 */
#include "reduce.h"
#include "vec.h"

/* ---- forward: bytes rows * cols * (wte + wpe + out) ---- */

template <class A> struct embed_fwd_args {
    int64_t rows, cols;
    const int32_t *tokens, *positions;
    A wte, wpe, out;
    bool wpe_given;
};

/* A warp for each row. */
template <class A> __global__ void __launch_bounds__(256) embed_fwd_kernel(embed_fwd_args<A> a)
{
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int64_t row = (int64_t)blockIdx.x * warps + threadIdx.x / WARP; row < a.rows;
         row += (int64_t)gridDim.x * warps) {
        const int64_t wte_at = a.tokens[row] * a.cols;
        const int64_t wpe_at = a.wpe_given ? a.positions[row] * a.cols : 0;
#pragma unroll 4
        for (int64_t c = lane * VEC; c < a.cols; c += WARP * VEC) {
            const int n = group_elems(c, a.cols);
            float x[VEC], p[VEC];
            a.wte.load(wte_at + c, n, x);
            if (a.wpe_given) {
                a.wpe.load(wpe_at + c, n, p);
#pragma unroll
                for (int j = 0; j < VEC; j++)
                    x[j] += p[j];
            }
            a.out.store(row * a.cols + c, n, x);
        }
    }
}
REGISTER_VIEWS(embed_fwd_kernel)

extern "C" cudaError_t zt_cuda_embed_fwd(const struct zt_embed_fwd *a,
                                         const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->wte, a->wpe, a->out};
    if (a->rows == 0 || a->cols == 0)
        return cudaSuccess;
    return with_views(common_layout(refs, a->cols), [&](auto kind) {
        typedef typename decltype(kind)::view A;
        embed_fwd_args<A> k = {a->rows,
                               a->cols,
                               a->tokens,
                               a->positions,
                               make_view(kind, a->wte),
                               make_view(kind, a->wpe),
                               make_view(kind, a->out),
                               a->wpe.ptr != NULL};
        ZT_LAUNCH(embed_fwd_kernel<A>, grid_for(a->rows, 8, ctx->n_sms, 8), 256, 0, ctx->stream, k);
        return cudaGetLastError();
    });
}

/* ---- backward: bytes rows * cols * dout + limit * cols * 4 for each of dwte and dwpe ---- */

struct chain_args {
    int64_t rows;
    const int32_t *index;
    int32_t *heads,
        *counts;   /* of each index; 0 in the beginning. A row is named by its number + 1 */
    int32_t *next; /* of each row */
};

__global__ void __launch_bounds__(256) embed_chain_kernel(chain_args a)
{
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < a.rows;
         row += (int64_t)gridDim.x * blockDim.x) {
        const int32_t at = a.index[row];
        a.next[row] = atomicExch(&a.heads[at], (int32_t)row + 1);
        atomicAdd(&a.counts[at], 1);
    }
}
ZT_SIM_REGISTER(embed_chain_kernel)

constexpr int SCATTER_THREADS = 128;
constexpr int SCATTER_WARPS = SCATTER_THREADS / WARP;
constexpr int CHAIN_ROWS = WARP; /* more rows than this are looked for in `index` */
constexpr int SCAN_VOTES = 8;    /* of each warp in a window */
constexpr int SCAN_ROWS = SCATTER_WARPS * SCAN_VOTES * WARP; /* rows of a window */

template <class A> struct scatter_args {
    int64_t rows, cols, limit;
    struct chain_args chain;
    A dout;
    any_view dst; /* (limit, cols) fp32 */
    bool accumulate;
};

/* The rows of `index`, in order, to list; their chain has n <= CHAIN_ROWS. All of a warp call it. */
static __device__ void sort_chain(const chain_args &a, int64_t index, int n, int32_t *chained,
                                  int32_t *list)
{
    const int lane = threadIdx.x % WARP;
    if (lane == 0)
        for (int i = 0, row = a.heads[index]; i < n; i++, row = a.next[row - 1])
            chained[i] = row - 1;
    __syncwarp();
    if (lane < n) {
        int rank = 0;
        for (int i = 0; i < n; i++)
            rank += chained[i] < chained[lane];
        list[rank] = chained[lane];
    }
}

/*
 * The rows of `index` among [begin, begin + SCAN_ROWS), in order, to list; returns their number. All of
 * the block call it; `found` has a place for each warp.
 */
static __device__ int scan_window(const chain_args &a, int64_t index, int64_t begin, int32_t *found,
                                  int32_t *list)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned votes[SCAN_VOTES];
    int mine = 0, before = 0, total = 0;
    begin += warp * SCAN_VOTES * WARP;
#pragma unroll
    for (int i = 0; i < SCAN_VOTES; i++) {
        const int64_t row = begin + i * WARP + lane;
        votes[i] = __ballot_sync(0xffffffffu, row < a.rows && a.index[row] == index);
        mine += __popc(votes[i]);
    }
    if (lane == 0)
        found[warp] = mine;
    __syncthreads();
    for (int w = 0; w < SCATTER_WARPS; w++) {
        before += w < warp ? found[w] : 0;
        total += found[w];
    }
#pragma unroll
    for (int i = 0; i < SCAN_VOTES; i++) {
        if (votes[i] >> lane & 1)
            list[before + __popc(votes[i] & ((1u << lane) - 1))] =
                (int32_t)(begin + i * WARP + lane);
        before += __popc(votes[i]);
    }
    __syncthreads();
    return total;
}

/* dst[index] = (fresh ? 0 : dst[index]) + dout[list[0]] + ... + dout[list[n - 1]], in this order. */
template <class A>
static __device__ void add_rows(const scatter_args<A> &a, int64_t index, const int32_t *list, int n,
                                bool fresh)
{
    for (int64_t c = threadIdx.x * VEC; c < a.cols; c += SCATTER_THREADS * VEC) {
        const int elems = group_elems(c, a.cols);
        float sum[VEC] = {0};
        if (!fresh)
            a.dst.load(index * a.cols + c, elems, sum);
#pragma unroll 8
        for (int i = 0; i < n; i++) {
            float x[VEC];
            a.dout.load(list[i] * a.cols + c, elems, x);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[j] += x[j];
        }
        a.dst.store(index * a.cols + c, elems, sum);
    }
}

template <class A>
__global__ void __launch_bounds__(SCATTER_THREADS) embed_scatter_kernel(scatter_args<A> a)
{
    ZT_SHARED(int32_t, chained, CHAIN_ROWS);
    ZT_SHARED(int32_t, found, SCATTER_WARPS);
    ZT_SHARED(int32_t, list, SCAN_ROWS);
    for (int64_t index = blockIdx.x; index < a.limit; index += gridDim.x) {
        const int n = a.chain.counts[index];
        if (n == 0 && a.accumulate)
            continue;
        if (n <= CHAIN_ROWS) {
            if (threadIdx.x < WARP)
                sort_chain(a.chain, index, n, chained, list);
            __syncthreads();
            add_rows(a, index, list, n, !a.accumulate);
            __syncthreads();
            continue;
        }
        bool fresh = !a.accumulate;
        for (int64_t begin = 0, left = n; left > 0; begin += SCAN_ROWS) {
            const int m = scan_window(a.chain, index, begin, found, list);
            if (m)
                add_rows(a, index, list, m, fresh);
            fresh = fresh && m == 0;
            left -= m;
            __syncthreads();
        }
    }
}
REGISTER_VIEWS(embed_scatter_kernel)

/* One of the two gradients. */
static cudaError_t scatter(const struct zt_embed_bwd *a, const struct zt_cuda_ctx *ctx,
                           const int32_t *index, int64_t limit, struct zt_ref dst, bool accumulate)
{
    int32_t *ws = static_cast<int32_t *>(a->ws);
    const struct zt_ref refs[] = {a->dout};
    struct common_layout layout = common_layout(refs, a->cols);
    chain_args chain = {a->rows, index, ws, ws + limit, ws + 2 * limit};
    if (limit == 0)
        return cudaSuccess;
    cudaError_t rc = cudaMemsetAsync(ws, 0, 2 * (size_t)limit * sizeof *ws, ctx->stream);
    if (rc)
        return rc;
    if (a->rows) {
        ZT_LAUNCH(embed_chain_kernel, grid_for(a->rows, 256, ctx->n_sms, 8), 256, 0, ctx->stream,
                  chain);
        rc = cudaGetLastError();
    }
    layout.vec = layout.vec && is_vec(dst.ptr);
    return rc ? rc : with_views(layout, [&](auto kind) {
        typedef typename decltype(kind)::view A;
        scatter_args<A> k = {a->rows,
                             a->cols,
                             limit,
                             chain,
                             make_view(kind, a->dout),
                             any_view{dst.ptr, ZT_F32, layout.vec},
                             accumulate};
        ZT_LAUNCH(embed_scatter_kernel<A>, grid_for(limit, 1, ctx->n_sms, 12), SCATTER_THREADS, 0,
                  ctx->stream, k);
        return cudaGetLastError();
    });
}

extern "C" cudaError_t zt_cuda_embed_bwd(const struct zt_embed_bwd *a,
                                         const struct zt_cuda_ctx *ctx)
{
    if (a->dwte.dtype != ZT_F32 || (a->dwpe.ptr && a->dwpe.dtype != ZT_F32))
        return cudaErrorInvalidValue; /* scattered gradients are fp32: a rule of the plan */
    cudaError_t rc = scatter(a, ctx, a->tokens, a->vocab, a->dwte, a->accumulate_wte);
    if (rc || !a->dwpe.ptr)
        return rc;
    return scatter(a, ctx, a->positions, a->max_positions, a->dwpe, a->accumulate_wpe);
}
