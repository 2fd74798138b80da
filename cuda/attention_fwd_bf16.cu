#include "attention_fwd.cuh"

ZT_ATT_FWD_REGISTER(__nv_bfloat16)

cudaError_t zt_attention_fwd_bf16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    return zt_att_fwd_choose<__nv_bfloat16>(a, ctx);
}
