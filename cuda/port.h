/*
 * port.h: the one header of CUDA that every .cu file includes. nvcc compiles the file for a GPU; g++
 * compiles the same file as C++20 for the simulator (ZT_CUSIM, test/cusim/device.h).
 *
 *   ZT_LAUNCH(kernel, grid, block, smem_bytes, stream, args...)
 *       kernel<<<grid, block, smem_bytes, stream>>>(args...). The name of an instance of a template
 *       goes in parentheses: ZT_LAUNCH((flash<64, 128>), ...).
 *   ZT_SHARED(type, name, n)
 *       `type name[n]` in the shared memory of the block, for n constant. Aligned as `type` needs and
 *       no better: take an array of uint4 for 16-byte accesses. Not initialised.
 *   ZT_DYN_SHARED(type, name)
 *       `type *name`: the dynamic shared memory of the launch, aligned to 128 bytes.
 *   ZT_SIM_REGISTER(kernel)
 *       At file scope, once for each kernel and each instance of a template that is launched (in
 *       parentheses): finds the simulator's twin when it runs code that nvcc compiled.
 *
 * Kernels have external linkage, and so have the types of their arguments: `static` or in an anonymous
 * namespace, the kernel has another name in nvcc than in g++.
 */
#ifndef ZT_CUDA_PORT_H
#define ZT_CUDA_PORT_H

#include <stdint.h>

#ifdef ZT_CUSIM
#include "cusim/device.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define ZT_LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                    \
    kernel<<<(grid), (block), (smem_bytes), (stream)>>>(__VA_ARGS__)
#define ZT_SHARED(type, name, n) __shared__ type name[n]
#define ZT_DYN_SHARED(type, name)                                                                  \
    extern __shared__ __align__(128) unsigned char zt_dyn_shared[];                                \
    type *name = reinterpret_cast<type *>(zt_dyn_shared)
#define ZT_SIM_REGISTER(kernel)
#endif

#endif
