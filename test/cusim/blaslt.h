/*
 * blaslt.h: one product of cuBLASLt: blaslt.cpp checks it, blaslt_run.cpp carries it out.
 */
#ifndef CUSIM_BLASLT_H
#define CUSIM_BLASLT_H

#include <cublasLt.h>
#include <stddef.h>
#include <stdint.h>

namespace cusim
{

struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t batch_stride;
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t pointer_mode, trans_a, trans_b, bias_type, aux_type;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld, bias_stride, aux_stride;
};

/* The whole of one call. */
struct matmul {
    operation op;
    layout a, b, c, d;
    int64_t m, n, k;
};

/* Parts of epilogues (cublasLtEpilogue_t) that have no name: a gradient of D's bias; an auxiliary matrix. */
constexpr uint32_t BGRAD_OF_D = 16, AUX = 128;

inline bool has_bias(uint32_t epilogue)
{
    return epilogue & CUBLASLT_EPILOGUE_BIAS;
}

inline bool has_bias_gradient(uint32_t epilogue)
{
    return epilogue & (BGRAD_OF_D | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
}

inline size_t type_bytes(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : 2;
}

/* Now, in the calling thread: D = epilogue(alpha op(A) op(B) + beta C). */
void carry_out(const matmul &p, float alpha, float beta, const void *a, const void *b,
               const void *c, void *d);

} // namespace cusim

#endif
