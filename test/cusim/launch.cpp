/*
 * launch.cpp: launches of kernels: what a launch may ask for, and the two ways in. ZT_LAUNCH calls
 * cusim_launch_kernel(); code that nvcc compiled comes through the entry points that it generates, and
 * finds the simulator's twin of a kernel by its mangled name.
 */
#include <dlfcn.h>
#include <stdio.h>

#include <map>
#include <string>

#include "cusim/device.h"
#include "cusim/sim.h"

using namespace cusim;

namespace
{

constexpr size_t FREE_SHARED_BYTES = 48 << 10; /* above this only after cudaFuncSetAttribute() */

struct twin {
    void (*run)(void *);
    void *(*pack)(void **);
    void (*del)(void *);
};

struct registry {
    std::map<std::pair<int, const void *>, size_t>
        dynamic_limit;                         /* opted in, by device and kernel */
    std::map<std::string, twin> twins;         /* by mangled name */
    std::map<const void *, std::string> stubs; /* nvcc's host functions */
};

registry &all()
{
    static auto *r = new registry();
    return *r;
}

cudaError_t check_launch(const char *name, const void *fn, dim3 grid, dim3 block, size_t smem,
                         cudaStream_t stream)
{
    const size_t threads = (size_t)block.x * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
        return misuse(cudaErrorInvalidConfiguration, name,
                      "a block of 0 or more than 1024 threads");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535)
        return misuse(cudaErrorInvalidConfiguration, name,
                      "a grid of 0 blocks, or y or z above 65535");
    size_t limit = FREE_SHARED_BYTES;
    {
        locked lock;
        auto it = all().dynamic_limit.find({current_device(), fn});
        if (it != all().dynamic_limit.end() && it->second > limit)
            limit = it->second;
    }
    if (smem > limit)
        return misuse(cudaErrorInvalidValue, name,
                      "more dynamic shared memory than 48 KiB and than was asked for with "
                      "cudaFuncSetAttribute");
    int device = stream_device(stream);
    if (device != current_device())
        return misuse(cudaErrorInvalidResourceHandle, name,
                      "not a stream, or one of another device than the current one");
    return cudaSuccess;
}

} // namespace

void cusim_launch_kernel(const char *name, const void *fn, dim3 grid, dim3 block, size_t smem,
                         cudaStream_t stream, void (*run)(void *), void *args, void (*del)(void *))
{
    cudaError_t e = enter("cudaLaunchKernel", cudaErrorLaunchFailure);
    if (!e)
        e = check_launch(name, fn, grid, block, smem, stream);
    if (!e)
        e = enqueue(stream, name, [=] {
            run_kernel(name, grid, block, smem, run, args);
            del(args);
        });
    if (e)
        del(args);
}

void cusim_register_kernel(const void *fn, void (*run)(void *), void *(*pack)(void **),
                           void (*del)(void *))
{
    Dl_info info;
    if (dladdr(fn, &info) && info.dli_sname) /* none: hidden symbols, so nvcc's code is not there */
        all().twins[info.dli_sname] = {run, pack, del};
}

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute attr, int value)
{
    CUSIM_ENTER(cudaFuncSetAttribute, cudaErrorInvalidValue);
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess; /* a hint */
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return refuse("cudaFuncSetAttribute(%d)", (int)attr);
    if (value < 0 || (size_t)value > settings().shared_bytes)
        return misuse(cudaErrorInvalidValue, "cudaFuncSetAttribute",
                      "more dynamic shared memory than a block may have");
    locked lock;
    all().dynamic_limit[{current_device(), fn}] = (size_t)value;
    return cudaSuccess;
}

/* ---- What code compiled by nvcc calls (crt/host_runtime.h) ---- */

void **__cudaRegisterFatBinary(void *)
{
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **)
{
}

void __cudaUnregisterFatBinary(void **)
{
}

char __cudaInitModule(void **)
{
    return 1;
}

void __cudaRegisterFunction(void **, const char *stub, char *, const char *name, int, uint3 *,
                            uint3 *, dim3 *, dim3 *, int *)
{
    all().stubs[stub] = name;
    if (!all().twins.count(name))
        fprintf(stderr,
                "cusim: kernel %s has no twin: no ZT_SIM_REGISTER, or not external (cuda/port.h)\n",
                name);
}

struct call_configuration {
    dim3 grid, block;
    size_t smem;
    void *stream;
};
static thread_local call_configuration pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, struct CUstream_st *stream)
{
    pushed = {grid, block, smem, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *smem = pushed.smem;
    *(void **)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub)
{
    *kernel = (cudaKernel_t)stub;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **args, size_t smem,
                             cudaStream_t stream)
{
    auto name = all().stubs.find(stub);
    if (name == all().stubs.end())
        return misuse(cudaErrorInvalidDeviceFunction, "cudaLaunchKernel", "not a kernel");
    auto it = all().twins.find(name->second);
    if (it == all().twins.end())
        return refuse("kernel %s", name->second.c_str());
    cusim_launch_kernel(it->first.c_str(), stub, grid, block, smem, stream, it->second.run,
                        it->second.pack(args), it->second.del);
    return cudaPeekAtLastError();
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t smem,
                               cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)kernel, grid, block, args, smem, stream);
}

} // extern "C"
