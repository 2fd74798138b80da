#include "device.h"

static int device_count(int *n, struct zt_err *err)
{
    int driver = 0, runtime = 0;
    cudaError_t cu = cudaGetDeviceCount(n);
    if (cu == cudaSuccess && *n > 0)
        return 0;
    (void)cudaGetLastError();
    if (cu == cudaErrorNoDevice || cu == cudaSuccess)
        return zt_err_set(err, ZT_EUNSUPPORTED, "CUDA finds no GPU that it may use");
    (void)cudaDriverGetVersion(&driver); /* 0: none is installed */
    (void)cudaRuntimeGetVersion(&runtime);
    if (cu == cudaErrorInsufficientDriver && driver == 0)
        return zt_err_set(err, ZT_EUNSUPPORTED, "no NVIDIA driver is installed");
    if (cu == cudaErrorInsufficientDriver)
        return zt_err_set(
            err, ZT_EUNSUPPORTED,
            "the NVIDIA driver is too old: it is for CUDA %d.%d, and this build needs "
            "%d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return zt_err_set(err, ZT_EUNSUPPORTED, "CUDA cannot be used: %s: %s", cudaGetErrorName(cu),
                      cudaGetErrorString(cu));
}

static int device_info(int index, struct zt_gpu_info *out, struct zt_err *err)
{
    struct cudaDeviceProp prop;
    memset(out, 0, sizeof *out);
    cudaError_t cu = cudaGetDeviceProperties(&prop, index);
    if (cu == cudaSuccess) {
        zt_cuda_id(&prop, out->id);
        cu = cudaSetDevice(index);
    }
    if (cu == cudaSuccess)
        cu = cudaMemGetInfo(&out->free_bytes, &out->total_bytes);
    if (cu != cudaSuccess) {
        (void)cudaGetLastError();
        return zt_err_set(err, ZT_EDEVICE, "%s: %s", cudaGetErrorName(cu), cudaGetErrorString(cu));
    }
    snprintf(out->name, sizeof out->name, "%.127s", prop.name);
    out->major = prop.major;
    out->minor = prop.minor;
    return 0;
}

static const struct zt_backend backend = {.abi = ZT_BACKEND_ABI,
                                          .struct_bytes = sizeof(struct zt_backend),
                                          .dev_ops_bytes = sizeof(struct zt_dev_ops),
                                          .coll_ops_bytes = sizeof(struct zt_coll_ops),
                                          .build = ZT_BUILD,
                                          .device_count = device_count,
                                          .device_info = device_info,
                                          .dev_create = zt_cuda_dev_create,
                                          .dev_free = zt_cuda_dev_free,
                                          .nccl_id = zt_cuda_nccl_id,
                                          .nccl_create = zt_cuda_nccl_create};

__attribute__((visibility("default"))) const struct zt_backend *zt_backend(void)
{
    return &backend;
}
