/*
 * kernels.h: the CUDA kernels as plain functions. Each enqueues its work on one cudaStream and
 * returns at once, with what cudaGetLastError() says of the launch; what goes wrong while a kernel runs
 * comes out of a later synchronisation, or of the fault word. C on both sides: device.c calls them,
 * the .cu files define them.
 *
 * Rules for the sources
 *   - They include port.h and nothing else of CUDA: the same file is compiled by nvcc, and as C++20
 *     by g++ for the simulator (test/cusim). Launches go through ZT_LAUNCH, shared memory through
 *     ZT_SHARED and ZT_DYN_SHARED, PTX through the wrappers of mma.h, which have a twin for the host.
 *     No wmma, no cooperative groups, no `static __global__`.
 *   - Deterministic: no floating-point atomics; sums over blocks go through a workspace, in a fixed
 *     order. Sums are fp32 or better whatever the type of the elements, rounded once on the way out.
 *   - 16-byte accesses where pointers and row lengths allow it, a scalar path where they do not: any
 *     shape that dev.h allows gives the right answer.
 *   - Beside each kernel stand the bytes it moves and the FLOPs it makes, as dev/cost.h counts them.
 *   - optim.cu and control.cu are compiled with -fmad=false (dev/adam.h, dev/control.h); the others may
 *     contract.
 */
#ifndef ZT_CUDA_KERNELS_H
#define ZT_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "dev/dev.h"

/* What a kernel found wrong with its input. In pinned memory that the device writes to. */
enum zt_cuda_fault_kind {
    ZT_FAULT_NONE,
    ZT_FAULT_TARGET, /* cross_entropy: value is a target outside [0, vocab), place its row */
};

struct zt_cuda_fault {
    int32_t kind; /* the first fault wins; written last */
    int32_t value;
    int64_t place;
};

/*
 * Kernels of one device that may have more than 48 KiB of shared memory; a set by address, grown only.
 * Any stream's thread may look and add: elements are read and written as atomics.
 */
enum { ZT_CUDA_LARGE_KERNELS = 256 };

struct zt_cuda_large {
    const void *kernels[ZT_CUDA_LARGE_KERNELS];
};

/* Shared memory a block may ask for on every GPU that the kernels run on: those from sm_80 on. */
enum { ZT_CUDA_MIN_MAJOR = 8, ZT_CUDA_MIN_SMEM_BYTES = 99 << 10 };

enum { ZT_CUDA_SCRATCH_BYTES = 64 << 10 };

/* What a launcher needs beside its arguments. */
struct zt_cuda_ctx {
    cudaStream_t stream;
    int n_sms;                   /* multiprocessors of the device */
    size_t smem_bytes;           /* shared memory a block may ask for (opt-in) */
    struct zt_cuda_large *large; /* of the device */
    struct zt_cuda_fault *fault; /* of this stream, device address */
    void *scratch; /* ZT_CUDA_SCRATCH_BYTES of this stream's own, between kernels of one launcher */
};

/* X(name, struct of the arguments). matmul, copy and zero are calls of cuBLASLt and the runtime. */
#define ZT_CUDA_KERNELS(X)                                                                         \
    X(embed_fwd, zt_embed_fwd)                                                                     \
    X(embed_bwd, zt_embed_bwd)                                                                     \
    X(norm_fwd, zt_norm_fwd)                                                                       \
    X(norm_bwd, zt_norm_bwd)                                                                       \
    X(col_sum, zt_col_sum)                                                                         \
    X(attention_fwd, zt_attention)                                                                 \
    X(attention_bwd, zt_attention)                                                                 \
    X(drop_add, zt_drop_add)                                                                       \
    X(cross_entropy, zt_cross_entropy)                                                             \
    X(update, zt_update)                                                                           \
    X(sum_sq, zt_sum_sq)                                                                           \
    X(cast, zt_cast)                                                                               \
    X(rope, zt_rope)                                                                               \
    X(swiglu_fwd, zt_swiglu_fwd)                                                                   \
    X(swiglu_bwd, zt_swiglu_bwd)                                                                   \
    X(count_targets, zt_count_targets)                                                             \
    X(count_finish, zt_count_finish)                                                               \
    X(norm_finish, zt_norm_finish)                                                                 \
    X(vote_begin, zt_vote_begin)                                                                   \
    X(vote_finish, zt_vote_finish)                                                                 \
    X(step_advance, zt_step_advance)

#ifdef __cplusplus
extern "C" {
#endif

#define ZT_CUDA_PROTO(name, args)                                                                  \
    cudaError_t zt_cuda_##name(const struct args *a, const struct zt_cuda_ctx *ctx);
ZT_CUDA_KERNELS(ZT_CUDA_PROTO)

#ifdef __cplusplus
}
#endif

#endif
