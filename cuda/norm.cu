/*
 * LayerNorm, RMSNorm and sums over rows (dev/dev.h). A team of threads works on a row, each thread on
 * eight neighbouring columns, so that a row is read once and kept in registers; rows of more than 8192
 * columns are read again for each pass.
 */
#include "reduce.h"
#include "vec.h"

constexpr int MAX_TEAM = 1024, ONE_GROUP_COLS = MAX_TEAM * VEC;

/* Threads of a row of `cols` elements. */
static inline int team_threads(int64_t cols)
{
    int64_t warps = (cols + WARP * VEC - 1) / (WARP * VEC);
    return (int)(warps < MAX_TEAM / WARP ? warps : MAX_TEAM / WARP) * WARP;
}

/* ---- forward: bytes rows * cols * (x + y) ---- */

template <class A> struct norm_fwd_args {
    int64_t rows, cols;
    int team;
    bool rms, beta_given;
    float eps;
    A x, gamma, beta, y;
    float *mean, *rstd;
};

/* ONE: a thread has one group of columns, which stays in registers. */
template <class A, bool ONE>
__global__ void __launch_bounds__(MAX_TEAM) norm_fwd_kernel(norm_fwd_args<A> a)
{
    ZT_SHARED(float, shared, TEAM_SHARED);
    struct team t(a.team, shared);
    const int64_t row = (int64_t)blockIdx.x * ((int)blockDim.x / t.size) + t.index;
    const int64_t cols = row < a.rows ? a.cols : 0, step = (int64_t)t.size * VEC;
    const int64_t begin = (int64_t)t.lane * VEC;
    float x[VEC] = {0}, sum = 0, sq = 0, none = 0;
    if (ONE)
        a.x.load(row * a.cols + begin, group_elems(begin, cols), x);
    if (!a.rms) {
        for (int64_t c = begin; c < cols; c += step) {
            if (!ONE)
                a.x.load(row * a.cols + c, group_elems(c, cols), x);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum += x[j];
        }
        t.sum2(sum, none);
    }
    const float mean = sum / (float)a.cols;
    for (int64_t c = begin; c < cols; c += step) {
        if (!ONE)
            a.x.load(row * a.cols + c, group_elems(c, cols), x);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            sq += c + j < cols ? (x[j] - mean) * (x[j] - mean) : 0.0f;
    }
    t.sum2(sq, none);
    const float rstd = 1.0f / sqrtf(sq / (float)a.cols + a.eps);
    if (t.lane == 0 && row < a.rows) {
        if (!a.rms)
            a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
    for (int64_t c = begin; c < cols; c += step) {
        float gamma[VEC], beta[VEC] = {0}, y[VEC];
        const int n = group_elems(c, cols);
        if (!ONE)
            a.x.load(row * a.cols + c, n, x);
        a.gamma.load(c, n, gamma);
        if (a.beta_given)
            a.beta.load(c, n, beta);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            y[j] = fmaf((x[j] - mean) * rstd, gamma[j], beta[j]);
        a.y.store(row * a.cols + c, n, y);
    }
}

template <class A, bool ONE>
static cudaError_t launch_norm_fwd(const norm_fwd_args<A> &k, cudaStream_t stream)
{
    const int teams = k.team < 256 ? 256 / k.team : 1;
    ZT_LAUNCH((norm_fwd_kernel<A, ONE>), (unsigned)((k.rows + teams - 1) / teams), k.team * teams,
              0, stream, k);
    return cudaGetLastError();
}

extern "C" cudaError_t zt_cuda_norm_fwd(const struct zt_norm_fwd *a, const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->x, a->gamma, a->beta, a->y};
    if (a->rows == 0 || a->cols == 0)
        return cudaSuccess;
    return with_views(common_layout(refs, a->cols), [&](auto kind) {
        typedef typename decltype(kind)::view A;
        norm_fwd_args<A> k = {a->rows,
                              a->cols,
                              team_threads(a->cols),
                              a->rms,
                              a->beta.ptr != NULL,
                              a->eps,
                              make_view(kind, a->x),
                              make_view(kind, a->gamma),
                              make_view(kind, a->beta),
                              make_view(kind, a->y),
                              a->mean,
                              a->rstd};
        return a->cols <= ONE_GROUP_COLS ? launch_norm_fwd<A, true>(k, ctx->stream)
                                         : launch_norm_fwd<A, false>(k, ctx->stream);
    });
}

/* ---- the last step of sums over rows: bytes n_parts * cols * 4 ---- */

constexpr int SUM_COLS = 32, SUM_ROWS = 32;

struct sum_parts_args {
    const float *parts[2]; /* (n_parts, cols), `stride` apart */
    any_view out[2];       /* (cols); block (., y) makes the y-th */
    int n_parts;
    int64_t stride, cols;
    bool accumulate;
};

/* out[c] = sum of parts[b][c] (+ out[c]): neighbouring parts first, then those sums. */
__global__ void __launch_bounds__(SUM_COLS *SUM_ROWS) sum_parts_kernel(sum_parts_args a)
{
    ZT_SHARED(float, part, SUM_ROWS *SUM_COLS);
    const int64_t c = (int64_t)blockIdx.x * SUM_COLS + threadIdx.x;
    const float *p = a.parts[blockIdx.y];
    const int each = (a.n_parts + SUM_ROWS - 1) / SUM_ROWS, first = (int)threadIdx.y * each;
    float sum = 0;
    for (int b = first; b < first + each && b < a.n_parts && c < a.cols; b++)
        sum += p[b * a.stride + c];
    part[threadIdx.y * SUM_COLS + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || c >= a.cols)
        return;
    any_view out = blockIdx.y ? a.out[1] : a.out[0];
    sum = a.accumulate ? out.get(c) : 0.0f;
    for (int r = 0; r < SUM_ROWS; r++)
        sum += part[r * SUM_COLS + threadIdx.x];
    out.set(c, sum);
}
ZT_SIM_REGISTER(sum_parts_kernel)

static cudaError_t launch_sum_parts(const sum_parts_args &a, int n_outs, cudaStream_t stream)
{
    ZT_LAUNCH(sum_parts_kernel, dim3((unsigned)((a.cols + SUM_COLS - 1) / SUM_COLS), n_outs),
              dim3(SUM_COLS, SUM_ROWS), 0, stream, a);
    return cudaGetLastError();
}

/* Blocks whose partial sums the workspace holds (dev/workspace.c), at most two a multiprocessor. */
static inline int part_blocks(int64_t tiles, size_t ws_bytes, int64_t part_floats, int n_sms)
{
    int64_t n = (int64_t)(ws_bytes / sizeof(float)) / part_floats;
    n = n < 2 * n_sms ? n : 2 * n_sms;
    return (int)(n < tiles ? n : tiles);
}

/* ---- backward: bytes rows * cols * (dy + x + dresidual + dx) ---- */

template <class A> struct norm_bwd_args {
    int64_t rows, cols;
    int team;
    bool rms, residual_given, sums_wanted;
    A dy, x, gamma, dresidual, dx;
    const float *mean, *rstd;
    float *parts; /* (blocks, 2, cols): sums of dgamma and dbeta */
};

/* The sums of all teams of the block, in their order, to the block's place in `parts`. */
template <class A>
static __device__ void write_parts(const norm_bwd_args<A> &a, const struct team &t, int64_t begin,
                                   const float (&dgamma)[VEC], const float (&dbeta)[VEC])
{
    ZT_DYN_SHARED(float, sums); /* (2, cols); none where there is one team */
    const int teams = (int)blockDim.x / t.size, n = group_elems(begin, a.cols);
    for (int i = 0; i < teams; i++) {
        float *to = i == teams - 1 ? a.parts + (int64_t)blockIdx.x * 2 * a.cols : sums;
        for (int j = 0; t.index == i && j < n; j++) {
            to[begin + j] = (i ? sums[begin + j] : 0.0f) + dgamma[j];
            to[a.cols + begin + j] = (i ? sums[a.cols + begin + j] : 0.0f) + dbeta[j];
        }
        __syncthreads();
    }
}

/*
 * With h = (x - mean) * rstd, the normalised row, and t = dy * gamma:
 *   dx = rstd * (t - mean(t) - h * mean(t * h)) + dresidual   (RMSNorm: without mean(t))
 */
template <class A, bool ONE>
__global__ void __launch_bounds__(MAX_TEAM) norm_bwd_kernel(norm_bwd_args<A> a)
{
    ZT_SHARED(float, shared, TEAM_SHARED);
    struct team t(a.team, shared);
    const int teams = (int)blockDim.x / t.size;
    const int64_t begin = (int64_t)t.lane * VEC, step = (int64_t)t.size * VEC;
    const int64_t tiles = (a.rows + teams - 1) / teams;
    float *parts = a.parts + (int64_t)blockIdx.x * 2 * a.cols; /* used directly where !ONE */
    float x[VEC] = {0}, dy[VEC] = {0}, gamma[VEC] = {0}, dgamma[VEC] = {0}, dbeta[VEC] = {0};
    if (ONE)
        a.gamma.load(begin, group_elems(begin, a.cols), gamma);
    for (int64_t c = begin; !ONE && a.sums_wanted && c < 2 * a.cols; c += step)
        for (int j = 0; j < VEC && c + j < 2 * a.cols; j++)
            parts[c + j] = 0;
    if (!ONE) /* zeroed and added to by different threads */
        __syncthreads();

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64_t row = tile * teams + t.index, cols = row < a.rows ? a.cols : 0;
        const float mean = cols && !a.rms ? a.mean[row] : 0.0f, rstd = cols ? a.rstd[row] : 0.0f;
        float sum_t = 0, sum_th = 0;
        for (int64_t c = begin; c < cols; c += step) {
            const int n = group_elems(c, cols);
            a.x.load(row * a.cols + c, n, x);
            a.dy.load(row * a.cols + c, n, dy);
            if (!ONE)
                a.gamma.load(c, n, gamma);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float h = (x[j] - mean) * rstd, tj = dy[j] * gamma[j];
                sum_t += tj;
                sum_th += tj * h;
                if (ONE) {
                    dgamma[j] += dy[j] * h;
                    dbeta[j] += dy[j];
                } else if (a.sums_wanted && j < n) {
                    parts[c + j] += dy[j] * h;
                    parts[a.cols + c + j] += dy[j];
                }
            }
        }
        t.sum2(sum_t, sum_th);
        const float mean_t = a.rms ? 0.0f : sum_t / (float)a.cols;
        const float mean_th = sum_th / (float)a.cols;
        for (int64_t c = begin; c < cols; c += step) {
            const int n = group_elems(c, cols);
            float dx[VEC] = {0};
            if (!ONE) {
                a.x.load(row * a.cols + c, n, x);
                a.dy.load(row * a.cols + c, n, dy);
                a.gamma.load(c, n, gamma);
            }
            if (a.residual_given)
                a.dresidual.load(row * a.cols + c, n, dx);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float h = (x[j] - mean) * rstd;
                dx[j] = fmaf(rstd, dy[j] * gamma[j] - mean_t - h * mean_th, dx[j]);
            }
            a.dx.store(row * a.cols + c, n, dx);
        }
    }
    if (ONE && a.sums_wanted)
        write_parts(a, t, begin, dgamma, dbeta);
}

template <class A>
static cudaError_t launch_norm_bwd(const norm_bwd_args<A> &k, int teams, int blocks,
                                   cudaStream_t stream)
{
    if (k.cols <= ONE_GROUP_COLS)
        ZT_LAUNCH((norm_bwd_kernel<A, true>), blocks, k.team * teams,
                  teams > 1 ? 2 * (size_t)k.cols * sizeof(float) : 0, stream, k);
    else
        ZT_LAUNCH((norm_bwd_kernel<A, false>), blocks, k.team, 0, stream, k);
    return cudaGetLastError();
}

/* dgamma and dbeta from the partial sums: both at once, or the one that is wanted. */
static cudaError_t finish_norm_bwd(const struct zt_norm_bwd *a, int blocks, cudaStream_t stream)
{
    const float *parts = static_cast<const float *>(a->ws);
    sum_parts_args s = {};
    int n = 0;
    s.n_parts = blocks;
    s.stride = 2 * a->cols;
    s.cols = a->cols;
    s.accumulate = a->accumulate;
    if (a->dgamma.ptr) {
        s.parts[n] = parts;
        s.out[n++] = any_view{a->dgamma.ptr, (int)a->dgamma.dtype, false};
    }
    if (a->dbeta.ptr) {
        s.parts[n] = parts + a->cols;
        s.out[n++] = any_view{a->dbeta.ptr, (int)a->dbeta.dtype, false};
    }
    return n ? launch_sum_parts(s, n, stream) : cudaSuccess;
}

extern "C" cudaError_t zt_cuda_norm_bwd(const struct zt_norm_bwd *a, const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->dy, a->x, a->gamma, a->dresidual, a->dx};
    const int team = team_threads(a->cols), teams = team < 512 ? 512 / team : 1;
    if (a->cols == 0)
        return cudaSuccess;
    const int blocks =
        a->rows ? part_blocks((a->rows + teams - 1) / teams, a->ws_bytes, 2 * a->cols, ctx->n_sms)
                : 0;
    cudaError_t rc = cudaSuccess;
    if (blocks)
        rc = with_views(common_layout(refs, a->cols), [&](auto kind) {
            typedef typename decltype(kind)::view A;
            norm_bwd_args<A> k = {a->rows,
                                  a->cols,
                                  team,
                                  a->rms,
                                  a->dresidual.ptr != NULL,
                                  a->dgamma.ptr || a->dbeta.ptr,
                                  make_view(kind, a->dy),
                                  make_view(kind, a->x),
                                  make_view(kind, a->gamma),
                                  make_view(kind, a->dresidual),
                                  make_view(kind, a->dx),
                                  a->mean,
                                  a->rstd,
                                  static_cast<float *>(a->ws)};
            return launch_norm_bwd(k, teams, blocks, ctx->stream);
        });
    return rc ? rc : finish_norm_bwd(a, blocks, ctx->stream);
}

/* ---- col_sum: bytes rows * cols ---- */

constexpr int STRIP_WARPS = 8, STRIP_COLS = WARP * VEC;

template <class A> struct col_sum_args {
    int64_t rows, cols, ld, rows_per_block;
    A x;
    float *parts; /* (blocks of rows, cols) */
};

/* Block (s, b): strip s of 256 columns, b-th part of the rows; each warp every eighth row of them. */
template <class A>
__global__ void __launch_bounds__(STRIP_WARPS *WARP) col_sum_kernel(col_sum_args<A> a)
{
    ZT_SHARED(float, part, STRIP_WARPS *STRIP_COLS);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t strip = (int64_t)blockIdx.x * STRIP_COLS, c = strip + lane * VEC;
    const int64_t begin = blockIdx.y * a.rows_per_block;
    const int64_t end = begin + a.rows_per_block < a.rows ? begin + a.rows_per_block : a.rows;
    const int n = group_elems(c, a.cols);
    float sum[VEC] = {0};
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += STRIP_WARPS) {
        float x[VEC];
        a.x.load(row * a.ld + c, n, x);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            sum[j] += x[j];
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) /* a lane's groups of eight are spread, for the banks' sake */
        part[warp * STRIP_COLS + j * WARP + lane] = sum[j];
    __syncthreads();
    const int64_t mine = strip + threadIdx.x;
    if (mine >= a.cols)
        return;
    float total = 0;
    for (int w = 0; w < STRIP_WARPS; w++)
        total += part[w * STRIP_COLS + threadIdx.x % VEC * WARP + threadIdx.x / VEC];
    a.parts[blockIdx.y * a.cols + mine] = total;
}
REGISTER_VIEWS(col_sum_kernel)

extern "C" cudaError_t zt_cuda_col_sum(const struct zt_col_sum *a, const struct zt_cuda_ctx *ctx)
{
    const struct zt_ref refs[] = {a->x};
    if (a->cols == 0)
        return cudaSuccess;
    const int64_t strips = (a->cols + STRIP_COLS - 1) / STRIP_COLS;
    const int64_t tiles = (a->rows + STRIP_WARPS - 1) / STRIP_WARPS;
    int64_t want = (8 * ctx->n_sms + strips - 1) / strips; /* fills the device */
    want = want < tiles ? want : tiles;
    int blocks = a->rows ? part_blocks(want, a->ws_bytes, a->cols, ctx->n_sms) : 0;
    cudaError_t rc = cudaSuccess;
    if (blocks)
        rc = with_views(common_layout(refs, a->ld), [&](auto kind) {
            typedef typename decltype(kind)::view A;
            col_sum_args<A> k = {a->rows,
                                 a->cols,
                                 a->ld,
                                 (a->rows + blocks - 1) / blocks,
                                 make_view(kind, a->x),
                                 static_cast<float *>(a->ws)};
            ZT_LAUNCH(col_sum_kernel<A>, dim3((unsigned)strips, blocks), STRIP_WARPS * WARP, 0,
                      ctx->stream, k);
            return cudaGetLastError();
        });
    sum_parts_args s = {};
    s.parts[0] = static_cast<const float *>(a->ws);
    s.out[0] = any_view{a->out.ptr, (int)a->out.dtype, false};
    s.n_parts = blocks;
    s.stride = a->cols;
    s.cols = a->cols;
    s.accumulate = a->accumulate;
    return rc ? rc : launch_sum_parts(s, 1, ctx->stream);
}

#define REGISTER_NORM(kernel)                                                                      \
    ZT_SIM_REGISTER((kernel<typed<float>, true>))                                                  \
    ZT_SIM_REGISTER((kernel<typed<float>, false>))                                                 \
    ZT_SIM_REGISTER((kernel<typed<__nv_bfloat16>, true>))                                          \
    ZT_SIM_REGISTER((kernel<typed<__nv_bfloat16>, false>))                                         \
    ZT_SIM_REGISTER((kernel<typed<__half>, true>))                                                 \
    ZT_SIM_REGISTER((kernel<typed<__half>, false>))                                                \
    ZT_SIM_REGISTER((kernel<any_view, true>))                                                      \
    ZT_SIM_REGISTER((kernel<any_view, false>))
REGISTER_NORM(norm_fwd_kernel)
REGISTER_NORM(norm_bwd_kernel)
