/*
 * epilogue.h: what follows a product, where cuBLASLt cannot do it along: a kernel over its fp32 sums. It
 * gives what the fused call gives, rounded once.
 */
#ifndef ZT_CUDA_EPILOGUE_H
#define ZT_CUDA_EPILOGUE_H

#include "kernels.h"

/* Rows [row, row + rows) of C in the epilogue of `mm` (dev.h), whose sums are x (rows, mm->n). */
struct zt_cuda_epilogue {
    const struct zt_matmul *mm;
    int64_t row, rows;
    const float *x;
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t zt_cuda_epilogue(const struct zt_cuda_epilogue *a, const struct zt_cuda_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
