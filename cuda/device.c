#include "device.h"

#include "base/arena.h"
#include "base/size.h"

/* ---- memory ---- */

enum { PAGE = 2 << 20 }; /* what the driver maps at once */

int zt_cuda_check_dev(const struct zt_cuda_dev *d, cudaError_t e, const char *what,
                      struct zt_err *err)
{
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return zt_err_set(err, e == cudaErrorMemoryAllocation ? ZT_ENOMEM : ZT_EDEVICE,
                      "GPU %d (%s): %s: %s: %s", d->index, d->name, what, cudaGetErrorName(e),
                      cudaGetErrorString(e));
}

static int memory(struct zt_dev *base, size_t *free_bytes, size_t *total_bytes, struct zt_err *err)
{
    const struct zt_cuda_dev *d = (const struct zt_cuda_dev *)base;
    cudaError_t cu = cudaSetDevice(d->index);
    if (cu == cudaSuccess)
        cu = cudaMemGetInfo(free_bytes, total_bytes);
    return zt_cuda_check_dev(d, cu, "cudaMemGetInfo", err);
}

static int out_of_memory(struct zt_cuda_dev *d, size_t bytes, struct zt_err *err)
{
    size_t free_bytes, total_bytes;
    (void)cudaGetLastError(); /* it stands for nothing that was launched */
    int rc = memory(&d->base, &free_bytes, &total_bytes, err);
    if (rc)
        return rc;
    return zt_err_set(err, ZT_ENOMEM,
                      "GPU %d (%s): cannot allocate %zu bytes: %zu bytes are free (of %zu)",
                      d->index, d->name, bytes, free_bytes, total_bytes);
}

static int alloc(struct zt_dev *base, size_t bytes, void **out, struct zt_err *err)
{
    struct zt_cuda_dev *d = (struct zt_cuda_dev *)base;
    void *p = NULL;
    cudaError_t cu = cudaSetDevice(d->index);
    if (bytes > SIZE_MAX - PAGE)
        return out_of_memory(d, bytes, err);
    size_t padded =
        zt_align_size(ZT_MAX(bytes, (size_t)1), PAGE); /* whole pages are aligned to one */
    if (cu == cudaSuccess)
        cu = cudaMalloc(&p, padded);
    if (cu == cudaErrorMemoryAllocation)
        return out_of_memory(d, bytes, err);
    if (cu == cudaSuccess)
        cu = cudaMemset(p, 0, padded);
    if (cu == cudaSuccess)
        cu = cudaDeviceSynchronize(); /* our streams do not wait for the default one */
    if (cu != cudaSuccess && p)
        cudaFree(p);
    *out = p;
    return zt_cuda_check_dev(d, cu, "cudaMalloc", err);
}

static void release(struct zt_dev *base, void *p, size_t bytes)
{
    (void)bytes;
    cudaSetDevice(((struct zt_cuda_dev *)base)->index);
    cudaFree(p);
}

static int alloc_host(struct zt_dev *base, size_t bytes, void **out, struct zt_err *err)
{
    const struct zt_cuda_dev *d = (const struct zt_cuda_dev *)base;
    bytes = ZT_MAX(bytes, (size_t)1);
    cudaError_t cu = cudaSetDevice(d->index);
    if (cu == cudaSuccess)
        cu = cudaHostAlloc(out, bytes, cudaHostAllocDefault);
    if (cu == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return zt_err_set(err, ZT_ENOMEM,
                          "GPU %d (%s): cannot pin %zu bytes of host memory: there is no more, or "
                          "ulimit -l is too low",
                          d->index, d->name, bytes);
    }
    if (cu == cudaSuccess)
        memset(*out, 0, bytes);
    return zt_cuda_check_dev(d, cu, "cudaHostAlloc", err);
}

static void free_host(struct zt_dev *base, void *p, size_t bytes)
{
    (void)base;
    (void)bytes;
    cudaFreeHost(p);
}

static int pin(struct zt_dev *base, void *p, size_t bytes, struct zt_err *err)
{
    const struct zt_cuda_dev *d = (const struct zt_cuda_dev *)base;
    cudaError_t cu = cudaSetDevice(d->index);
    if (cu == cudaSuccess)
        cu = cudaHostRegister(p, bytes, cudaHostRegisterDefault);
    return zt_cuda_check_dev(d, cu, "cudaHostRegister", err);
}

static void unpin(struct zt_dev *base, void *p)
{
    cudaSetDevice(((struct zt_cuda_dev *)base)->index);
    cudaHostUnregister(p);
}

/* ---- tasks ---- */

static int run_copy(struct zt_stream *s, void *arg, struct zt_err *err)
{
    const struct zt_copy *a = arg;
    cudaStream_t cu = zt_cuda_ctx_of(s)->stream;
    return zt_cuda_check(s, cudaMemcpyAsync(a->dst, a->src, a->bytes, cudaMemcpyDefault, cu),
                         "cudaMemcpyAsync", err);
}

static void enqueue_copy(struct zt_stream *s, const struct zt_copy *a)
{
    if (a->bytes)
        zt_cuda_push(s, run_copy, a, sizeof *a);
}

static int run_zero(struct zt_stream *s, void *arg, struct zt_err *err)
{
    const struct zt_zero *a = arg;
    cudaStream_t cu = zt_cuda_ctx_of(s)->stream;
    return zt_cuda_check(s, cudaMemsetAsync(a->dst, 0, a->bytes, cu), "cudaMemsetAsync", err);
}

static void enqueue_zero(struct zt_stream *s, const struct zt_zero *a)
{
    if (a->bytes)
        zt_cuda_push(s, run_zero, a, sizeof *a);
}

static int run_matmul(struct zt_stream *s, void *arg, struct zt_err *err)
{
    return zt_cuda_matmul(s, arg, err);
}

static void enqueue_matmul(struct zt_stream *s, const struct zt_matmul *a)
{
    zt_cuda_push(s, run_matmul, a, sizeof *a);
}

#define KERNEL(name, args)                                                                         \
    _Static_assert(sizeof(struct args) <= ZT_TASK_ARG_BYTES, #args " fits a task");                \
    static int run_##name(struct zt_stream *s, void *arg, struct zt_err *err)                      \
    {                                                                                              \
        return zt_cuda_check(s, zt_cuda_##name(arg, zt_cuda_ctx_of(s)), "launch of " #name, err);  \
    }                                                                                              \
    static void enqueue_##name(struct zt_stream *s, const struct args *a)                          \
    {                                                                                              \
        zt_cuda_push(s, run_##name, a, sizeof *a);                                                 \
    }
ZT_CUDA_KERNELS(KERNEL)

#define ENTRY(name, args) .name = enqueue_##name,

static const struct zt_dev_ops cuda_ops = {.abi = ZT_DEV_ABI,
                                           .struct_bytes = sizeof(struct zt_dev_ops),
                                           .kind = ZT_DEV_CUDA,
                                           .alloc = alloc,
                                           .free = release,
                                           .alloc_host = alloc_host,
                                           .free_host = free_host,
                                           .memory = memory,
                                           .pin = pin,
                                           .unpin = unpin,
                                           .stream_create = zt_cuda_stream_create,
                                           .stream_free = zt_cuda_stream_free,
                                           .record = zt_cuda_record,
                                           .wait = zt_cuda_wait,
                                           .sync = zt_cuda_sync,
                                           .copy = enqueue_copy,
                                           .zero = enqueue_zero,
                                           .host_call = zt_cuda_host_call,
                                           .matmul = enqueue_matmul,
                                           ZT_CUDA_KERNELS(ENTRY)};

/* ---- lifetime ---- */

static cudaError_t describe(struct zt_cuda_dev *d, struct cudaDeviceProp *prop)
{
    cudaError_t cu = cudaSetDevice(d->index);
    if (cu == cudaSuccess)
        cu = cudaGetDeviceProperties(prop, d->index);
    if (cu != cudaSuccess)
        return cu;
    snprintf(d->name, sizeof d->name, "%.127s", prop->name);
    d->n_sms = prop->multiProcessorCount;
    d->smem_bytes = prop->sharedMemPerBlockOptin;
    return cudaSuccess;
}

void zt_cuda_id(const struct cudaDeviceProp *prop, char out[ZT_GPU_ID_BYTES])
{
    /* CUDA tells a MIG instance by its name alone: "NVIDIA A100-SXM4-40GB MIG 1g.5gb" */
    int n = snprintf(out, ZT_GPU_ID_BYTES, "%s", strstr(prop->name, " MIG ") ? "MIG" : "GPU");
    for (int i = 0; i < (int)sizeof prop->uuid.bytes; i++)
        n += snprintf(out + n, (size_t)(ZT_GPU_ID_BYTES - n), "%s%02x",
                      i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                      (unsigned char)prop->uuid.bytes[i]);
}

static int check_kind(const struct zt_cuda_dev *d, const struct cudaDeviceProp *prop,
                      struct zt_err *err)
{
    if (prop->major < ZT_CUDA_MIN_MAJOR)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "GPU %d (%s): its compute capability is %d.%d; the kernels need %d.0 "
                          "(Ampere) or later",
                          d->index, d->name, prop->major, prop->minor, ZT_CUDA_MIN_MAJOR);
    if (d->smem_bytes < ZT_CUDA_MIN_SMEM_BYTES)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "GPU %d (%s): a block may have %zu bytes of shared memory; attention "
                          "needs %d",
                          d->index, d->name, d->smem_bytes, ZT_CUDA_MIN_SMEM_BYTES);
    return 0;
}

static void write_log(const struct zt_cuda_dev *d, const struct cudaDeviceProp *prop, char *log,
                      size_t log_bytes)
{
    int driver = 0, runtime = 0;
    size_t lt = cublasLtGetVersion();
    char id[ZT_GPU_ID_BYTES];
    zt_cuda_id(prop, id);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    snprintf(
        log, log_bytes,
        "cuda: %s (%s), compute capability %d.%d, %d multiprocessors, %.1f GiB; driver for CUDA "
        "%d.%d, runtime %d.%d, cuBLASLt %zu.%zu.%zu%s",
        prop->name, id, prop->major, prop->minor, prop->multiProcessorCount,
        (double)prop->totalGlobalMem / (1024.0 * 1024 * 1024), driver / 1000, driver % 1000 / 10,
        runtime / 1000, runtime % 1000 / 10, lt / 10000, lt / 100 % 100, lt % 100,
        d->f32 == CUBLAS_COMPUTE_32F ? "" : "; fp32 products in TF32");
}

/* ZT_TF32=1: products of fp32 round their operands to 11 bits, on the tensor cores. */
static int open_products(struct zt_cuda_dev *d, struct zt_err *err)
{
    const char *tf32 = getenv("ZT_TF32");
    d->f32 = tf32 && strcmp(tf32, "1") == 0 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasStatus_t rc = cublasLtCreate(&d->lt);
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    return zt_err_set(err, ZT_EDEVICE, "GPU %d (%s): cublasLtCreate: %s", d->index, d->name,
                      cublasLtGetStatusString(rc));
}

int zt_cuda_dev_create(int index, struct zt_dev **out, char *log, size_t log_bytes,
                       struct zt_err *err)
{
    struct zt_cuda_dev *d = zt_xcalloc(1, sizeof *d);
    struct cudaDeviceProp prop;
    const size_t fault_bytes = ZT_CUDA_MAX_STREAMS * sizeof *d->faults;
    d->base.ops = &cuda_ops;
    d->index = index;
    snprintf(d->name, sizeof d->name, "unknown");
    int rc = zt_cuda_check_dev(d, describe(d, &prop), "the device cannot be used", err);
    if (!rc)
        rc = check_kind(d, &prop, err);
    if (!rc)
        rc = zt_cuda_check_dev(d,
                               cudaHostAlloc((void **)&d->faults, fault_bytes, cudaHostAllocMapped),
                               "the device cannot be used", err);
    if (!rc) {
        memset(d->faults, 0, fault_bytes);
        rc = open_products(d, err);
    }
    if (rc) {
        zt_cuda_dev_free(&d->base);
        return rc;
    }
    if (log && log_bytes)
        write_log(d, &prop, log, log_bytes);
    *out = &d->base;
    return 0;
}

void zt_cuda_dev_free(struct zt_dev *base)
{
    struct zt_cuda_dev *d = (struct zt_cuda_dev *)base;
    if (!d)
        return;
    cudaSetDevice(d->index);
    if (d->lt)
        cublasLtDestroy(d->lt);
    if (d->faults)
        cudaFreeHost(d->faults);
    free(d);
}
