#include "attention_bwd.cuh"

ZT_ATT_BWD_REGISTER(__half)

cudaError_t zt_attention_bwd_f16(const struct zt_attention *a, const struct zt_cuda_ctx *ctx)
{
    return zt_att_bwd_choose<__half>(a, ctx);
}
