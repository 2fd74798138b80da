/*
 * The small decisions of a step, each by one thread from the definitions that the CPU uses, too
 * (dev/control.h, dev/step.h). Compiled with -fmad=false.
 */
#include "reduce.h"
#include "vec.h"

#include "dev/control.h"

/* ---- count_targets: bytes n * 4; whole numbers, so any order will do ---- */

constexpr int COUNT_THREADS = 1024;

__global__ void __launch_bounds__(COUNT_THREADS) count_targets_kernel(struct zt_count_targets a)
{
    ZT_SHARED(int64_t, part, COUNT_THREADS / WARP);
    int64_t tokens = 0;
    for (int64_t i = threadIdx.x; i < a.n; i += COUNT_THREADS)
        tokens += a.targets[i] != ZT_IGNORE_TARGET;
    tokens = warp_sum(tokens);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = tokens;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < COUNT_THREADS / WARP; w++)
        tokens += part[w];
    a.out->tokens = a.accumulate ? a.out->tokens + tokens : tokens;
}
ZT_SIM_REGISTER(count_targets_kernel)

extern "C" cudaError_t zt_cuda_count_targets(const struct zt_count_targets *a,
                                             const struct zt_cuda_ctx *ctx)
{
    ZT_LAUNCH(count_targets_kernel, 1, COUNT_THREADS, 0, ctx->stream, *a);
    return cudaGetLastError();
}

/* ---- norm_finish: bytes n_ranks * record_bytes ---- */

constexpr int FINISH_THREADS = 256,
              FINISH_SHARED = 4096; /* doubles: records that are copied first */

/*
 * One thread adds up, in the one order. What it reads is copied to shared memory first where it fits: one
 * number after the other from memory would be latency alone.
 */
__global__ void __launch_bounds__(FINISH_THREADS) norm_finish_kernel(struct zt_norm_finish a)
{
    ZT_SHARED(double, copy, FINISH_SHARED);
    const double *records = static_cast<const double *>(a.records);
    const size_t n = (size_t)a.n_ranks * (a.record_bytes / sizeof(double));
    for (size_t i = threadIdx.x; n <= FINISH_SHARED && i < n; i += FINISH_THREADS)
        copy[i] = records[i];
    __syncthreads();
    if (threadIdx.x == 0)
        zt_control_norm_finish(&a, n <= FINISH_SHARED ? copy : records);
}
ZT_SIM_REGISTER(norm_finish_kernel)

extern "C" cudaError_t zt_cuda_norm_finish(const struct zt_norm_finish *a,
                                           const struct zt_cuda_ctx *ctx)
{
    ZT_LAUNCH(norm_finish_kernel, 1, FINISH_THREADS, 0, ctx->stream, *a);
    return cudaGetLastError();
}

/* ---- one thread each ---- */

__global__ void count_finish_kernel(struct zt_count_finish a)
{
    zt_control_count_finish(&a);
}
ZT_SIM_REGISTER(count_finish_kernel)

__global__ void vote_begin_kernel(struct zt_vote_begin a)
{
    zt_control_vote_begin(&a);
}
ZT_SIM_REGISTER(vote_begin_kernel)

__global__ void vote_finish_kernel(struct zt_vote_finish a)
{
    zt_control_vote_finish(&a);
}
ZT_SIM_REGISTER(vote_finish_kernel)

__global__ void step_advance_kernel(struct zt_step_advance a)
{
    zt_step_next(a.sb);
}
ZT_SIM_REGISTER(step_advance_kernel)

#define ONE_THREAD(name)                                                                           \
    extern "C" cudaError_t zt_cuda_##name(const struct zt_##name *a,                               \
                                          const struct zt_cuda_ctx *ctx)                           \
    {                                                                                              \
        ZT_LAUNCH(name##_kernel, 1, 1, 0, ctx->stream, *a);                                        \
        return cudaGetLastError();                                                                 \
    }
ONE_THREAD(count_finish)
ONE_THREAD(vote_begin)
ONE_THREAD(vote_finish)
ONE_THREAD(step_advance)
