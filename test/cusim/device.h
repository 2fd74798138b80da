/*
 * device.h: what nvcc gives to a .cu file, for g++ (C++20, ZT_CUSIM): a kernel becomes a function that
 * a fiber runs once per CUDA thread (exec.cpp), block by block.
 *
 * How close it is to the real thing
 *   - Lanes of a warp do not run in lockstep: a lane runs until it meets a barrier or a warp
 *     operation. So what leans on implicit warp synchrony fails here, as it may on sm_70 and later.
 *   - Shared memory is fresh for each block, filled with NaNs, and ends at an ASan redzone. It is
 *     aligned as its type needs and no better, so that UBSan sees a wide access that is only lucky.
 *   - For ThreadSanitizer each CUDA thread is a thread (in some blocks; each of the others is one:
 *     README.md): __syncthreads() orders the block, __syncwarp() its lanes, shuffles and votes order
 *     nothing; blocks are not ordered at all. Fences order what a later atomic publishes, atomics are
 *     relaxed otherwise.
 *   - A barrier or warp operation that not all threads reach ends the process and says where they
 *     wait. A lane that has exited counts as arrived, as on the real thing.
 *   - Not there: registers and their limits, __launch_bounds__, textures, cooperative groups, wmma,
 *     clusters, asynchronous barriers, dynamic parallelism. What is not there does not compile.
 *
 * Host twins of PTX instructions are made of cusim_warp_op().
 */
#ifndef CUSIM_DEVICE_H
#define CUSIM_DEVICE_H

#ifdef __CUDACC__
#error "device.h is for the host's compiler"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <vector_functions.h>

#include <tuple>
#include <type_traits>
#include <utility>

#undef __shared__
#define __shared__ static_assert(false, "use ZT_SHARED or ZT_DYN_SHARED");
#undef __launch_bounds__
#define __launch_bounds__(...)
/* Inlining by force costs only the compiler's time here: with sanitizers four times as much. */
#undef __forceinline__
#define __forceinline__ inline

/* The shim's own loads and stores are not the kernel's: hidden from ThreadSanitizer. */
#if defined(__SANITIZE_THREAD__)
#define CUSIM_QUIET inline __attribute__((noinline, no_sanitize("thread")))
#else
#define CUSIM_QUIET inline
#endif

/* The CUDA thread that runs now. */
struct cusim_thread {
    uint3 tid, bid;
    dim3 bdim, gdim;
    bool fenced; /* has executed a memory fence */
};

/*
 * Called once for a warp operation, by the last lane that arrives: in[l] and out[l] are what lane l
 * gave to cusim_warp_op(), NULL for lanes that take no part.
 */
typedef void (*cusim_warp_fn)(unsigned mask, const void *const in[32], void *const out[32],
                              int arg);

/* Only lanes with equal `op`, `fn` and `mask` meet. MMA, LDMATRIX, USER: for twins of PTX. */
enum cusim_op {
    CUSIM_OP_SYNCWARP, /* the only one that orders memory */
    CUSIM_OP_SHFL,
    CUSIM_OP_BALLOT,
    CUSIM_OP_MATCH,
    CUSIM_OP_REDUCE,
    CUSIM_OP_MMA,
    CUSIM_OP_LDMATRIX,
    CUSIM_OP_USER
};

extern "C" {
extern __thread struct cusim_thread *cusim_cur __attribute__((tls_model("initial-exec")));

/* A barrier of the block; gives the number of threads whose `pred` was not 0. */
int cusim_syncthreads(int pred, const char *file, int line);

/*
 * Blocks the lane until every live lane of `mask` is here with the same `op` and `fn`; then fn, which
 * may be NULL, is called for all of them. `in` and `out` stay valid until then. A lane should load what
 * it contributes itself, before the call: then ThreadSanitizer sees who read what.
 */
void cusim_warp_op(unsigned mask, int op, const void *in, void *out, cusim_warp_fn fn, int arg,
                   const char *file, int line);

/* Shared memory of the running block: a static array, known by `key`; the dynamic one. */
void *cusim_shared(const void *key, size_t bytes, size_t align);
void *cusim_dyn_shared(void);

/* Ends the process with the name of the kernel and the block. */
[[noreturn]] void cusim_trap(const char *why, const char *file, int line);

void cusim_fence(void);
void cusim_atomic_order(const void *p);

/* Checks the launch and puts it into the stream; sets cudaGetLastError(). Owns `args`. */
void cusim_launch_kernel(const char *name, const void *fn, dim3 grid, dim3 block, size_t smem,
                         cudaStream_t stream, void (*run)(void *), void *args, void (*del)(void *));
void cusim_register_kernel(const void *fn, void (*run)(void *), void *(*pack)(void **args),
                           void (*del)(void *));
}

#define threadIdx (cusim_cur->tid)
#define blockIdx (cusim_cur->bid)
#define blockDim (cusim_cur->bdim)
#define gridDim (cusim_cur->gdim)
#define warpSize 32

/* ---- Barriers and fences ---- */

#define __syncthreads() ((void)cusim_syncthreads(0, __FILE__, __LINE__))
#define __syncthreads_count(p) cusim_syncthreads((p) != 0, __FILE__, __LINE__)
#define __syncthreads_or(p) (cusim_syncthreads((p) != 0, __FILE__, __LINE__) != 0)
#define __syncthreads_and(p) (cusim_syncthreads((p) == 0, __FILE__, __LINE__) == 0)
#define __syncwarp(...)                                                                            \
    cusim_warp_op(cusim_mask(__VA_ARGS__), CUSIM_OP_SYNCWARP, NULL, NULL, NULL, 0, __FILE__,       \
                  __LINE__)
#define __trap() cusim_trap("__trap", __FILE__, __LINE__)

static inline unsigned cusim_mask(unsigned mask = 0xffffffffu)
{
    return mask;
}

static inline void __threadfence()
{
    cusim_fence();
}
static inline void __threadfence_block()
{
    cusim_fence();
}
static inline void __threadfence_system()
{
    cusim_fence();
}

/* ---- Shuffles, votes, reductions ---- */

static inline int cusim_lane()
{
    return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31);
}

template <class T> struct cusim_shfl_in {
    T v;
    int src;
};

/* Reading a lane that takes no part is undefined on the GPU: all ones here, a NaN. */
template <class T>
CUSIM_QUIET void cusim_shfl_fn(unsigned, const void *const in[32], void *const out[32], int)
{
    for (int l = 0; l < 32; l++) {
        if (!in[l])
            continue;
        int src = ((const cusim_shfl_in<T> *)in[l])->src;
        if (in[src])
            memcpy(out[l], &((const cusim_shfl_in<T> *)in[src])->v, sizeof(T));
        else
            memset(out[l], 0xff, sizeof(T));
    }
}

template <class T>
static CUSIM_QUIET T cusim_shfl(unsigned mask, T v, int src, const char *file, int line)
{
    cusim_shfl_in<T> in = {v, src};
    T out;
    cusim_warp_op(mask, CUSIM_OP_SHFL, &in, &out, cusim_shfl_fn<T>, 0, file, line);
    return out;
}

/* Source lanes; `w` is the width, a power of two: lanes stay inside their group of w. */
static inline int cusim_src_idx(int i, int w = 32)
{
    return (cusim_lane() & ~(w - 1)) | (i & (w - 1));
}
static inline int cusim_src_xor(int m, int w = 32)
{
    int l = cusim_lane(), s = l ^ m;
    /* Lanes of earlier groups may be read, later ones not (CUDA C++ Programming Guide, 10.22). */
    return s > (l | (w - 1)) ? l : s & 31;
}
static inline int cusim_src_down(unsigned d, int w = 32)
{
    int l = cusim_lane();
    return (l & (w - 1)) + (int)d >= w ? l : l + (int)d;
}
static inline int cusim_src_up(unsigned d, int w = 32)
{
    int l = cusim_lane();
    return (l & (w - 1)) < (int)d ? l : l - (int)d;
}
#define __shfl_sync(m, v, ...) cusim_shfl(m, v, cusim_src_idx(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_xor_sync(m, v, ...) cusim_shfl(m, v, cusim_src_xor(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_down_sync(m, v, ...)                                                                \
    cusim_shfl(m, v, cusim_src_down(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_up_sync(m, v, ...) cusim_shfl(m, v, cusim_src_up(__VA_ARGS__), __FILE__, __LINE__)

CUSIM_QUIET void cusim_ballot_fn(unsigned, const void *const in[32], void *const out[32], int)
{
    unsigned bits = 0;
    for (int l = 0; l < 32; l++) {
        if (in[l] && *(const int *)in[l])
            bits |= 1u << l;
    }
    for (int l = 0; l < 32; l++) {
        if (out[l])
            *(unsigned *)out[l] = bits;
    }
}

static CUSIM_QUIET unsigned cusim_ballot(unsigned mask, int pred, const char *file, int line)
{
    unsigned out;
    cusim_warp_op(mask, CUSIM_OP_BALLOT, &pred, &out, cusim_ballot_fn, 0, file, line);
    return out;
}
#define __ballot_sync(m, p) cusim_ballot(m, (p) != 0, __FILE__, __LINE__)
#define __any_sync(m, p) (cusim_ballot(m, (p) != 0, __FILE__, __LINE__) != 0)
#define __all_sync(m, p) (cusim_ballot(m, (p) == 0, __FILE__, __LINE__) == 0)

template <class T>
CUSIM_QUIET void cusim_match_fn(unsigned, const void *const in[32], void *const out[32], int)
{
    for (int l = 0; l < 32; l++) {
        unsigned same = 0;
        for (int k = 0; in[l] && k < 32; k++) {
            if (in[k] && memcmp(in[k], in[l], sizeof(T)) == 0)
                same |= 1u << k;
        }
        if (in[l])
            *(unsigned *)out[l] = same;
    }
}

template <class T>
static CUSIM_QUIET unsigned cusim_match(unsigned mask, T v, const char *file, int line)
{
    unsigned out;
    cusim_warp_op(mask, CUSIM_OP_MATCH, &v, &out, cusim_match_fn<T>, 0, file, line);
    return out;
}
#define __match_any_sync(m, v) cusim_match(m, v, __FILE__, __LINE__)

enum cusim_reduction { CUSIM_ADD, CUSIM_MIN, CUSIM_MAX, CUSIM_AND, CUSIM_OR, CUSIM_XOR };

template <class T> static inline T cusim_combine(int op, T a, T b)
{
    switch (op) {
    case CUSIM_ADD:
        return (T)((unsigned)a + (unsigned)b);
    case CUSIM_MIN:
        return a < b ? a : b;
    case CUSIM_MAX:
        return a > b ? a : b;
    case CUSIM_AND:
        return a & b;
    case CUSIM_OR:
        return a | b;
    default:
        return a ^ b;
    }
}

template <class T>
CUSIM_QUIET void cusim_reduce_fn(unsigned, const void *const in[32], void *const out[32], int op)
{
    T acc = 0;
    bool first = true;
    for (int l = 0; l < 32; l++) {
        if (!in[l])
            continue;
        acc = first ? *(const T *)in[l] : cusim_combine(op, acc, *(const T *)in[l]);
        first = false;
    }
    for (int l = 0; l < 32; l++) {
        if (out[l])
            *(T *)out[l] = acc;
    }
}

/* Of int and unsigned only, as the instruction (redux.sync, sm_80). */
template <class T>
static CUSIM_QUIET T cusim_reduce(unsigned mask, T v, int op, const char *file, int line)
{
    static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
    T out;
    cusim_warp_op(mask, CUSIM_OP_REDUCE, &v, &out, cusim_reduce_fn<T>, op, file, line);
    return out;
}
#define __reduce_add_sync(m, v) cusim_reduce(m, v, CUSIM_ADD, __FILE__, __LINE__)
#define __reduce_min_sync(m, v) cusim_reduce(m, v, CUSIM_MIN, __FILE__, __LINE__)
#define __reduce_max_sync(m, v) cusim_reduce(m, v, CUSIM_MAX, __FILE__, __LINE__)
#define __reduce_and_sync(m, v) cusim_reduce(m, v, CUSIM_AND, __FILE__, __LINE__)
#define __reduce_or_sync(m, v) cusim_reduce(m, v, CUSIM_OR, __FILE__, __LINE__)
#define __reduce_xor_sync(m, v) cusim_reduce(m, v, CUSIM_XOR, __FILE__, __LINE__)

/* ---- Shared memory and launches ---- */

#define ZT_SHARED(type, name, n)                                                                   \
    static char cusim_key_##name;                                                                  \
    type(&name)[n] = *reinterpret_cast<type(*)[n]>(                                                \
        cusim_shared(&cusim_key_##name, sizeof(type[n]), alignof(type)))
#define ZT_DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(cusim_dyn_shared())

/* A kernel with its arguments, copied when it is launched. */
template <class... P> struct cusim_call {
    void (*kernel)(P...);
    std::tuple<P...> args;

    static void run(void *p)
    {
        auto *c = static_cast<cusim_call *>(p);
        std::apply(c->kernel, c->args);
    }
    static void del(void *p)
    {
        delete static_cast<cusim_call *>(p);
    }
    /* From the array of pointers that cudaLaunchKernel() takes. */
    template <size_t... I>
    static cusim_call *unpack(void (*kernel)(P...), void **a, std::index_sequence<I...>)
    {
        return new cusim_call{kernel, std::tuple<P...>(*(std::remove_reference_t<P> *)a[I]...)};
    }
};

template <class... P, class... A>
static inline void cusim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                size_t smem, cudaStream_t stream, A &&...a)
{
    auto *c = new cusim_call<P...>{kernel, std::tuple<P...>(static_cast<P>(a)...)};
    cusim_launch_kernel(name, (const void *)kernel, grid, block, smem, stream,
                        &cusim_call<P...>::run, c, &cusim_call<P...>::del);
}
#define ZT_LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                    \
    cusim_launch(#kernel, kernel, (grid), (block), (smem_bytes), (stream), __VA_ARGS__)

template <auto K> struct cusim_registration;
template <class... P, void (*K)(P...)> struct cusim_registration<K> {
    static void *pack(void **a)
    {
        return cusim_call<P...>::unpack(K, a, std::index_sequence_for<P...>());
    }
    cusim_registration()
    {
        cusim_register_kernel((const void *)K, &cusim_call<P...>::run, pack,
                              &cusim_call<P...>::del);
    }
};
#define CUSIM_CAT_(a, b) a##b
#define CUSIM_CAT(a, b) CUSIM_CAT_(a, b)
#define ZT_SIM_REGISTER(kernel)                                                                    \
    static cusim_registration<kernel> CUSIM_CAT(cusim_registration_, __COUNTER__);

#include "cusim/intrinsics.h"

#endif
