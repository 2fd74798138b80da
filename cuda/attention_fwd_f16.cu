#include "attention_fwd.cuh"

ZT_ATT_FWD_REGISTER(__half)

cudaError_t zt_attention_fwd_f16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    return zt_att_fwd_choose<__half>(a, ctx);
}
