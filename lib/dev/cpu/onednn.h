/*
 * onednn.h: the products that oneDNN computes for us, row-major.
 */
#ifndef ZT_DEV_CPU_ONEDNN_H
#define ZT_DEV_CPU_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>

/*
 * As dnnl_sgemm, of two bf16 matrices into fp32. oneDNN exports it since 1.0, for its own tests, and
 * declares it in no public header; hence weak: absent, products widen their operands instead.
 * The public matmul primitive does the same product at two thirds of the speed from plain layouts.
 */
extern dnnl_status_t dnnl_gemm_bf16bf16f32(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n,
                                           dnnl_dim_t k, float alpha, const uint16_t *a,
                                           dnnl_dim_t lda, const uint16_t *b, dnnl_dim_t ldb,
                                           float beta, float *c, dnnl_dim_t ldc)
    __attribute__((weak));

#endif
