/*
 * attention.cu: the two kernels of kernels.h, by way of the path that takes the shape.
 */
#include "attention.h"

#include <limits.h>

/* Tensor cores: one 16-bit type, rows of 16-byte units. */
static bool in_units(const struct zt_ref *r, enum zt_dtype type, int64_t ld)
{
    return r->dtype == type && (uintptr_t)r->ptr % 16 == 0 && ld % 8 == 0;
}

static bool takes_units(const struct zt_attention *a, bool backward)
{
    const enum zt_dtype t = a->q.dtype;
    if ((t != ZT_BF16 && t != ZT_F16) || a->head_dim % 8)
        return false;
    if (!in_units(&a->q, t, a->ldq) || !in_units(&a->k, t, a->ldkv) ||
        !in_units(&a->v, t, a->ldkv) || !in_units(&a->out, t, a->ldo))
        return false;
    return !backward || (in_units(&a->dout, t, a->ldo) && in_units(&a->dq, t, a->ldq) &&
                         in_units(&a->dk, t, a->ldkv) && in_units(&a->dv, t, a->ldkv));
}

/* What the kernels count in an int or an unsigned fits; a tile has 16 rows or more. */
static bool fits(const struct zt_attention *a)
{
    const int64_t tiles = (a->k_len + 15) / 16;
    return a->batch > 0 && a->q_len > 0 && a->q_offset >= 0 && a->scale > 0 && a->head_dim > 0 &&
           a->head_dim <= ZT_CUDA_MAX_HEAD_DIM && a->n_kv_head > 0 &&
           a->n_head % a->n_kv_head == 0 && a->k_len < INT_MAX / 2 &&
           a->q_offset + a->q_len <= a->k_len && a->batch <= INT_MAX / tiles / a->n_head;
}

cudaError_t zt_att_allow(const struct zt_cuda_ctx *ctx, const void *kernel, size_t bytes)
{
    const void **set = ctx->large->kernels, *there = NULL;
    unsigned at = (unsigned)((uintptr_t)kernel / 16 % ZT_CUDA_LARGE_KERNELS);
    for (int i = 0; i < ZT_CUDA_LARGE_KERNELS; i++, at = (at + 1) % ZT_CUDA_LARGE_KERNELS) {
        there = __atomic_load_n(&set[at], __ATOMIC_ACQUIRE);
        if (there == kernel)
            return cudaSuccess;
        if (!there)
            break;
    }
    const cudaError_t rc =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    /* Where another thread was faster, or there is no place, it is asked again. */
    if (rc == cudaSuccess && !there)
        __atomic_compare_exchange_n(&set[at], &there, kernel, false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
    return rc;
}

cudaError_t zt_cuda_attention_fwd(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (!fits(a))
        return cudaErrorInvalidValue;
    if (!takes_units(a, false))
        return zt_attention_fwd_plain(a, ctx);
    return a->q.dtype == ZT_BF16 ? zt_attention_fwd_bf16(a, ctx) : zt_attention_fwd_f16(a, ctx);
}

cudaError_t zt_cuda_attention_bwd(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    if (!fits(a) || a->ws_bytes < (size_t)(a->batch * a->n_head * a->q_len) * sizeof(float))
        return cudaErrorInvalidValue;
    if (!takes_units(a, true))
        return zt_attention_bwd_plain(a, ctx);
    return a->q.dtype == ZT_BF16 ? zt_attention_bwd_bf16(a, ctx) : zt_attention_bwd_f16(a, ctx);
}
