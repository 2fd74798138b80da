/*
 * Softmax cross-entropy of a chunk of rows (dev/dev.h): a block reads a row once for its maximum and
 * its sum, online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and once
 * more, from the second-level cache, for its gradient. What might be contracted or not is written out:
 * the bits are those of the row, whatever the types of the tensors make of the code.
 */
#include "reduce.h"
#include "vec.h"

constexpr int LOSS_THREADS = 512, LOSS_WARPS = LOSS_THREADS / WARP;

/* Of the numbers seen: the largest, and the sum of e^(x - max). NaN is passed over in max, not in sum. */
struct softmax {
    float max, sum;
};

/* Where all is -inf: e^-inf, not e^NaN. */
static __device__ __forceinline__ float finite_shift(float max)
{
    return max > -INFINITY ? max : 0.0f;
}

static __device__ __forceinline__ struct softmax merge(struct softmax a, struct softmax b)
{
    const float max = fmaxf(a.max, b.max), shift = finite_shift(max);
    return softmax{max, fmaf(a.sum, __expf(a.max - shift), b.sum * __expf(b.max - shift))};
}

/* Takes in the first n of x. */
static __device__ __forceinline__ void add_group(struct softmax &s, const float (&x)[VEC], int n)
{
    float max = s.max, sum = 0;
#pragma unroll
    for (int j = 0; j < VEC; j++)
        max = j < n ? fmaxf(max, x[j]) : max;
    const float shift = finite_shift(max);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        sum += j < n ? __expf(x[j] - shift) : 0.0f;
    if (max > s.max)
        s.sum = __fmul_rn(s.sum, __expf(s.max - shift));
    s.max = max;
    s.sum = __fadd_rn(s.sum, sum);
}

/* Over the block, the same for every thread; the order depends on nothing but the block's size. */
static __device__ struct softmax block_softmax(struct softmax s, struct softmax *part)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        s = merge(s, softmax{__shfl_xor_sync(0xffffffffu, s.max, d),
                             __shfl_xor_sync(0xffffffffu, s.sum, d)});
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = s;
    __syncthreads();
    s = part[0];
    for (int w = 1; w < LOSS_WARPS; w++)
        s = merge(s, part[w]);
    return s;
}

/*
 * ---- losses and gradient: bytes rows * (vocab * logits + ld * grad), the second read not counted ----
 */

template <class A> struct loss_args {
    int64_t vocab, ld, ld_grad;
    const int32_t *targets;
    const struct zt_step_block *sb;
    const struct zt_count *count;
    A logits, grad;
    float *losses;
    bool write_grad;
    bool overlap; /* the gradient lies over its logits and is narrower */
};

/*
 * Row of the gradient: (softmax - onehot) * scale in [0, vocab), then 0. All columns of a step are read
 * before any is written: a narrower gradient over its logits begins where the row does, so that it
 * reaches only what was read in this step or before.
 */
template <class A>
static __device__ void write_grad(const loss_args<A> &a, int64_t row, int target, struct softmax s,
                                  float scale)
{
    const float inv = scale / s.sum;
    const int64_t vocab = target >= 0 ? a.vocab : 0;
    for (int64_t base = 0; base < a.ld; base += LOSS_THREADS * VEC) {
        const int64_t c = base + (int64_t)threadIdx.x * VEC;
        const int n = group_elems(c, a.ld), n_real = group_elems(c, vocab);
        float g[VEC] = {0};
        if (n_real)
            a.logits.load(row * a.ld + c, n, g);
        if (a.overlap)
            __syncthreads();
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            g[j] = j < n_real ? __fmul_rn(__expf(g[j] - s.max), inv) : 0.0f;
            if (c + j == target)
                g[j] -= scale;
        }
        a.grad.store(row * a.ld_grad + c, n, g);
    }
}

template <class A>
__global__ void __launch_bounds__(LOSS_THREADS) cross_entropy_kernel(loss_args<A> a)
{
    ZT_SHARED(struct softmax, part, LOSS_WARPS);
    const int64_t row = blockIdx.x;
    const int given = a.targets[row];
    /* Those outside the vocabulary are found by loss_sum_kernel(); here they count as ignored. */
    const int target = given >= 0 && given < a.vocab ? given : -1;
    struct softmax s = {-INFINITY, 0};
    float x_target = 0;
    if (target >= 0) {
        x_target = a.logits.get(row * a.ld + target);
        for (int64_t c = (int64_t)threadIdx.x * VEC; c < a.vocab; c += LOSS_THREADS * VEC) {
            float x[VEC];
            const int n = group_elems(c, a.vocab);
            a.logits.load(row * a.ld + c, group_elems(c, a.ld), x);
            add_group(s, x, n);
        }
        s = block_softmax(s, part);
    }
    if (threadIdx.x == 0)
        a.losses[row] =
            target < 0 ? 0.0f : (float)((double)s.max - (double)x_target + log((double)s.sum));
    if (!a.write_grad)
        return;
    __syncthreads(); /* the target's logit is read before it is written over */
    write_grad(a, row, target, s, a.count->inv_tokens * a.sb->loss_scale);
}

REGISTER_VIEWS(cross_entropy_kernel)

/* ---- their sum ---- */

constexpr int LOSS_SUM_THREADS = 1024;

struct loss_sum_args {
    int64_t rows, vocab;
    const int32_t *targets;
    const float *losses;
    double *loss_sum;
    bool first;
    struct zt_cuda_fault *fault;
};

static __device__ void report_target(const loss_sum_args &a, int64_t row)
{
    volatile struct zt_cuda_fault *fault = a.fault;
    if (fault->kind != ZT_FAULT_NONE)
        return;
    fault->value = a.targets[row];
    fault->place = row;
    __threadfence_system();
    fault->kind = ZT_FAULT_TARGET;
}

/*
 * One block. Each thread sums neighbouring rows, then those sums are added up by halves. The first row
 * with a target outside the vocabulary is the one that is reported.
 */
__global__ void __launch_bounds__(LOSS_SUM_THREADS) loss_sum_kernel(loss_sum_args a)
{
    ZT_SHARED(double, sums, LOSS_SUM_THREADS);
    ZT_SHARED(int64_t, bad, LOSS_SUM_THREADS); /* first row; rows: none */
    const int64_t each = (a.rows + LOSS_SUM_THREADS - 1) / LOSS_SUM_THREADS;
    double sum = 0;
    int64_t first_bad = a.rows;
    for (int64_t i = 0, row = threadIdx.x * each; i < each && row < a.rows; i++, row++) {
        const int32_t t = a.targets[row];
        sum += (double)a.losses[row];
        if (t != ZT_IGNORE_TARGET && (t < 0 || t >= a.vocab) && row < first_bad)
            first_bad = row;
    }
    sums[threadIdx.x] = sum;
    bad[threadIdx.x] = first_bad;
    for (int n = LOSS_SUM_THREADS / 2; n > 0; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n) {
            sums[threadIdx.x] += sums[threadIdx.x + n];
            bad[threadIdx.x] =
                bad[threadIdx.x] < bad[threadIdx.x + n] ? bad[threadIdx.x] : bad[threadIdx.x + n];
        }
    }
    if (threadIdx.x > 0)
        return;
    *a.loss_sum = a.first ? sums[0] : *a.loss_sum + sums[0];
    if (bad[0] < a.rows)
        report_target(a, bad[0]);
}
ZT_SIM_REGISTER(loss_sum_kernel)

extern "C" cudaError_t zt_cuda_cross_entropy(const struct zt_cross_entropy *a,
                                             const struct zt_cuda_ctx *ctx)
{
    const bool in_place = !a->grad.ptr;
    const struct zt_ref grad = in_place ? a->logits : a->grad;
    const int64_t ld_grad = in_place ? a->ld : a->ld_grad;
    const struct zt_ref refs[] = {a->logits, grad};
    struct common_layout layout = common_layout(refs, a->ld);
    layout.vec = layout.vec && ld_grad % VEC == 0;
    cudaError_t rc = cudaSuccess;
    if (a->rows)
        rc = with_views(layout, [&](auto kind) {
            typedef typename decltype(kind)::view A;
            loss_args<A> k = {a->vocab,
                              a->ld,
                              ld_grad,
                              a->targets,
                              a->sb,
                              a->count,
                              make_view(kind, a->logits),
                              make_view(kind, grad),
                              a->losses,
                              a->write_grad,
                              grad.ptr == a->logits.ptr && grad.dtype != a->logits.dtype};
            ZT_LAUNCH(cross_entropy_kernel<A>, (unsigned)a->rows, LOSS_THREADS, 0, ctx->stream, k);
            return cudaGetLastError();
        });
    if (rc)
        return rc;
    loss_sum_args s = {a->rows, a->vocab, a->targets, a->losses, a->loss_sum, a->first, ctx->fault};
    ZT_LAUNCH(loss_sum_kernel, 1, LOSS_SUM_THREADS, 0, ctx->stream, s);
    return cudaGetLastError();
}
