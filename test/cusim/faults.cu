/*
 * faults.cu: mistakes made on purpose, for faults.sh: `faults NAME` makes one, `faults NAME repaired` does
 * the same thing right. Whoever makes a mistake that is found ends badly or prints what the script knows.
 */
#include "port.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int broken;

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorName(e));
    exit(3);
}
#define CU(call) check(call, #call)

static cudaStream_t make_stream()
{
    cudaStream_t s;
    CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static float *make_device(int n)
{
    float *p;
    CU(cudaMalloc((void **)&p, sizeof(float) * (size_t)n));
    CU(cudaMemset(p, 0, sizeof(float) * (size_t)n));
    CU(cudaDeviceSynchronize());
    return p;
}

/* ---- In kernels ---- */

/* The first barrier: all has been written before it is read. The second: read before it is written. */
__global__ void turn(float *out, int first, int second)
{
    ZT_SHARED(float, a, 64);
    const int t = (int)threadIdx.x;
    for (int i = 0; i < 2; i++) {
        a[t] = (float)t;
        if (first)
            __syncthreads();
        out[t] = a[63 - t];
        if (second)
            __syncthreads();
    }
}

static void no_first_barrier()
{
    ZT_LAUNCH(turn, 1, 64, 0, make_stream(), make_device(64), !broken, 1);
}

static void no_second_barrier()
{
    ZT_LAUNCH(turn, 1, 64, 0, make_stream(), make_device(64), 1, !broken);
}

__global__ void copy_global(float *out, const float *in, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        out[i] = in[i];
}

static void past_global()
{
    ZT_LAUNCH(copy_global, 4, 32, 0, make_stream(), make_device(128), make_device(100),
              broken ? 101 : 100);
}

__global__ void past_shared_kernel(float *out, int over)
{
    ZT_SHARED(float, a, 33);
    a[threadIdx.x + (unsigned)over] = 1;
    out[threadIdx.x] = a[threadIdx.x + (unsigned)over];
}

static void past_shared()
{
    ZT_LAUNCH(past_shared_kernel, 1, 32, 0, make_stream(), make_device(32), broken ? 2 : 1);
}

__global__ void past_dynamic_kernel(float *out)
{
    ZT_DYN_SHARED(float, a);
    a[threadIdx.x] = 1;
    out[threadIdx.x] = a[threadIdx.x];
}

static void past_dynamic()
{
    ZT_LAUNCH(past_dynamic_kernel, 1, 32, broken ? 124 : 128, make_stream(), make_device(32));
}

__global__ void wide_global(float4 *out, const float *in)
{
    out[threadIdx.x] = *(const float4 *)(in + 4 * threadIdx.x);
}

static void misaligned_global()
{
    ZT_LAUNCH(wide_global, 1, 8, 0, make_stream(), (float4 *)make_device(32),
              make_device(40) + (broken ? 1 : 4));
}

/* Works on many GPUs, by luck. */
__global__ void wide_shared(float4 *out, int lucky)
{
    ZT_SHARED(float, narrow, 32);
    ZT_SHARED(float4, wide, 8);
    float4 *a = lucky ? (float4 *)narrow : wide;
    a[threadIdx.x] = make_float4(1, 2, 3, 4);
    out[threadIdx.x] = a[threadIdx.x];
}

static void misaligned_shared()
{
    ZT_LAUNCH(wide_shared, 1, 8, 0, make_stream(), (float4 *)make_device(32), broken);
}

__global__ void divergent_barrier_kernel(int limit)
{
    if ((int)threadIdx.x < limit)
        __syncthreads();
    __syncwarp();
}

static void divergent_barrier()
{
    ZT_LAUNCH(divergent_barrier_kernel, 1, 64, 0, make_stream(), broken ? 40 : 64);
}

__global__ void divergent_shuffle_kernel(float *out, int apart)
{
    float v = (float)threadIdx.x;
    if (apart && threadIdx.x < 16)
        v = __shfl_xor_sync(0xffffffffu, v, 1);
    else
        v = __shfl_down_sync(0xffffffffu, (double)v, 1) > 0;
    out[threadIdx.x] = v;
}

static void divergent_shuffle()
{
    ZT_LAUNCH(divergent_shuffle_kernel, 1, 32, 0, make_stream(), make_device(32), broken);
}

__global__ void add_blocks(float *sum, int atomic)
{
    if (threadIdx.x != 0)
        return;
    if (atomic)
        atomicAdd(sum, 1.0f);
    else
        *sum += 1.0f;
}

static void update_across_blocks()
{
    ZT_LAUNCH(add_blocks, 8, 32, 0, make_stream(), make_device(1), !broken);
}

__global__ void last_block(float *partial, unsigned *count, float *sum, int fence)
{
    partial[blockIdx.x] = 1.0f;
    if (fence)
        __threadfence();
    if (atomicAdd(count, 1u) != gridDim.x - 1)
        return;
    for (unsigned i = 0; i < gridDim.x; i++)
        *sum += partial[i];
}

static void no_fence()
{
    float *p = make_device(10);
    ZT_LAUNCH(last_block, 8, 1, 0, make_stream(), p, (unsigned *)(p + 8), p + 9, !broken);
}

/* Lanes of a warp do not run in lockstep. */
__global__ void no_syncwarp_kernel(float *out, int sync)
{
    ZT_SHARED(float, a, 32);
    a[threadIdx.x] = 1.0f;
    if (sync)
        __syncwarp();
    out[threadIdx.x] = a[31 - threadIdx.x];
}

static void no_syncwarp()
{
    ZT_LAUNCH(no_syncwarp_kernel, 1, 32, 0, make_stream(), make_device(32), !broken);
}

/* ---- On the host ---- */

__global__ void fill(float *p, float v)
{
    p[threadIdx.x] = v;
}

static void no_wait_between_streams()
{
    cudaStream_t a = make_stream(), b = make_stream();
    cudaEvent_t e;
    float *p = make_device(32), *q = make_device(32);
    CU(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    ZT_LAUNCH(fill, 1, 32, 0, a, p, 1.0f);
    CU(cudaEventRecord(e, a));
    if (!broken)
        CU(cudaStreamWaitEvent(b, e, 0));
    CU(cudaMemcpyAsync(q, p, 128, cudaMemcpyDeviceToDevice, b));
}

/* The event was recorded before the kernel that matters. */
static void wait_for_an_earlier_record()
{
    cudaStream_t a = make_stream(), b = make_stream();
    cudaEvent_t e;
    float *p = make_device(32);
    CU(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    ZT_LAUNCH(fill, 1, 32, 0, a, p, 1.0f);
    CU(cudaEventRecord(e, a));
    if (broken)
        CU(cudaStreamWaitEvent(b, e, 0));
    ZT_LAUNCH(fill, 1, 32, 0, a, p, 2.0f);
    CU(cudaEventRecord(e, a));
    if (!broken)
        CU(cudaStreamWaitEvent(b, e, 0));
    ZT_LAUNCH(fill, 1, 32, 0, b, p, 3.0f);
}

static void pinned_overwritten_early()
{
    cudaStream_t s = make_stream();
    float *p = make_device(32), *pinned;
    CU(cudaMallocHost((void **)&pinned, 128));
    memset(pinned, 0, 128);
    CU(cudaMemcpyAsync(p, pinned, 128, cudaMemcpyHostToDevice, s));
    if (!broken)
        CU(cudaStreamSynchronize(s));
    pinned[5] = 1.0f;
    CU(cudaStreamSynchronize(s));
    CU(cudaFreeHost(pinned));
}

static void result_read_early()
{
    cudaStream_t s = make_stream();
    float *p = make_device(32), *pinned;
    CU(cudaMallocHost((void **)&pinned, 128));
    CU(cudaMemcpyAsync(pinned, p, 128, cudaMemcpyDeviceToHost, s));
    if (!broken)
        CU(cudaStreamSynchronize(s));
    volatile float x = pinned[5];
    (void)x;
    CU(cudaStreamSynchronize(s));
    CU(cudaFreeHost(pinned));
}

static void host_reads_device_memory()
{
    float *p = make_device(32), *pinned;
    CU(cudaMallocHost((void **)&pinned, 128));
    CU(cudaMemcpyAsync(pinned, p, 128, cudaMemcpyDeviceToHost, NULL));
    CU(cudaDeviceSynchronize());
    volatile float x = broken ? p[5] : pinned[5];
    (void)x;
    CU(cudaFreeHost(pinned));
}

/* 32 x 32 matrices, D = A A. */
static void multiply(cublasLtHandle_t lt, const float *a, float *d, void *workspace, cudaStream_t s)
{
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t l;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t r;
    int n;
    const float one = 1, zero = 0;
    const size_t bytes = 64 << 10;
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 32, 32, 32);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof bytes);
    if (cublasLtMatmulAlgoGetHeuristic(lt, op, l, l, l, l, pref, 1, &r, &n) ||
        cublasLtMatmul(lt, op, &one, a, l, a, l, &zero, d, l, d, l, &r.algo, workspace, bytes, s)) {
        printf("multiply: refused\n");
        exit(3);
    }
    cublasLtMatmulDescDestroy(op);
    cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulPreferenceDestroy(pref);
}

static void matmul_without_wait()
{
    cudaStream_t a = make_stream(), b = make_stream();
    float *x = make_device(1024), *d = make_device(1024), *ws = make_device(16 << 10);
    cublasLtHandle_t lt;
    cublasLtCreate(&lt);
    ZT_LAUNCH(fill, 1, 1024, 0, a, x, 1.0f);
    multiply(lt, x, d, ws, broken ? b : a);
    CU(cudaDeviceSynchronize());
    cublasLtDestroy(lt);
}

static void one_workspace_for_two_streams()
{
    cudaStream_t a = make_stream(), b = make_stream();
    float *x = make_device(1024), *d = make_device(1024), *e = make_device(1024);
    float *ws = make_device(16 << 10), *ws2 = make_device(16 << 10);
    cublasLtHandle_t lt;
    cublasLtCreate(&lt);
    multiply(lt, x, d, ws, a);
    multiply(lt, x, e, broken ? ws : ws2, b);
    CU(cudaDeviceSynchronize());
    cublasLtDestroy(lt);
}

static void leak()
{
    float *p = make_device(1024);
    if (!broken)
        CU(cudaFree(p));
}

static void used_after_free()
{
    float *p = make_device(1024);
    if (broken)
        CU(cudaFree(p));
    ZT_LAUNCH(fill, 1, 32, 0, make_stream(), p, 1.0f);
}

static void out_of_memory()
{
    for (int i = 0; i < (broken ? 5 : 4); i++)
        CU(cudaMalloc((void **)&(float *&)*new float *, 256 << 10)); /* of 1 MiB */
}

static void third_allocation()
{
    for (int i = 0; i < (broken ? 3 : 2); i++)
        make_device(16);
}

static void illegal_address()
{
    cudaStream_t s = make_stream();
    float *p = make_device(32); /* operation 1: cudaMemset */
    if (broken)
        ZT_LAUNCH(fill, 1, 32, 0, s, p, 1.0f);
    CU(cudaStreamSynchronize(s));
}

static void copy_in_the_wrong_direction()
{
    static float host[32];
    CU(cudaMemcpyAsync(make_device(32), host, 128,
                       broken ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, make_stream()));
}

static void copy_past_the_end()
{
    static float host[64];
    CU(cudaMemcpyAsync(make_device(32), host, broken ? 132 : 128, cudaMemcpyHostToDevice,
                       make_stream()));
}

static void call_device(void *result)
{
    if (broken)
        *(cudaError_t *)result = cudaDeviceSynchronize();
}

static void call_from_host_function()
{
    cudaStream_t s = make_stream();
    cudaError_t result = cudaSuccess;
    CU(cudaLaunchHostFunc(s, call_device, &result));
    CU(cudaStreamSynchronize(s));
    CU(result);
}

static void unmodelled_call()
{
    cudaGraph_t g;
    if (broken)
        CU(cudaGraphCreate(&g, 0));
}

static void unmodelled_flag()
{
    cudaEvent_t e;
    CU(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | (broken ? cudaEventInterprocess : 0)));
}

static void unmodelled_stream()
{
    cudaStream_t s;
    CU(cudaStreamCreateWithFlags(&s, broken ? cudaStreamDefault : cudaStreamNonBlocking));
}

static void stream_of_another_device()
{
    cudaStream_t s = make_stream();
    float *p = make_device(32);
    CU(cudaSetDevice(broken ? 1 : 0));
    ZT_LAUNCH(fill, 1, 32, 0, s, p, 1.0f);
    CU(cudaGetLastError());
}

#define FAULT(name)                                                                                \
    {                                                                                              \
#name, name                                                                                \
    }
static const struct {
    const char *name;
    void (*run)(void);
} FAULTS[] = {
    FAULT(no_first_barrier),
    FAULT(no_second_barrier),
    FAULT(past_global),
    FAULT(past_shared),
    FAULT(past_dynamic),
    FAULT(misaligned_global),
    FAULT(misaligned_shared),
    FAULT(divergent_barrier),
    FAULT(divergent_shuffle),
    FAULT(update_across_blocks),
    FAULT(no_fence),
    FAULT(no_syncwarp),
    FAULT(no_wait_between_streams),
    FAULT(wait_for_an_earlier_record),
    FAULT(pinned_overwritten_early),
    FAULT(result_read_early),
    FAULT(host_reads_device_memory),
    FAULT(matmul_without_wait),
    FAULT(one_workspace_for_two_streams),
    FAULT(leak),
    FAULT(used_after_free),
    FAULT(out_of_memory),
    FAULT(third_allocation),
    FAULT(illegal_address),
    FAULT(copy_in_the_wrong_direction),
    FAULT(copy_past_the_end),
    FAULT(call_from_host_function),
    FAULT(unmodelled_call),
    FAULT(unmodelled_flag),
    FAULT(unmodelled_stream),
    FAULT(stream_of_another_device),
};

int main(int argc, char **argv)
{
    broken = argc < 3;
    for (auto &f : FAULTS) {
        if (argc < 2 || strcmp(f.name, argv[1]) != 0)
            continue;
        f.run();
        CU(cudaGetLastError());
        CU(cudaDeviceSynchronize());
        return 0;
    }
    fprintf(stderr, "faults: no such fault\n");
    return 2;
}
