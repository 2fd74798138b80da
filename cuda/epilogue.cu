#include "port.h"

#include "epilogue.h"

/*
 * One thread an element, scalar accesses: it stands in for shapes that are too odd for the fused call.
 * Bytes: 4 n of sums, and once each of what else there is.
 */

/* Not in the anonymous namespace: it is in the name of the kernel (port.h). */
struct zt_epilogue_args {
    int64_t rows, n, ldc, row;
    const float *x;
    zt_ref bias, residual, aux, c;
    int epilogue;
    bool accumulate;
};

namespace
{

constexpr int THREADS = 256;

__device__ float load(zt_ref r, int64_t i)
{
    switch (r.dtype) {
    case ZT_BF16:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(r.ptr)[i]);
    case ZT_F16:
        return __half2float(static_cast<const __half *>(r.ptr)[i]);
    default:
        return static_cast<const float *>(r.ptr)[i];
    }
}

__device__ void store(zt_ref r, int64_t i, float x)
{
    switch (r.dtype) {
    case ZT_BF16:
        static_cast<__nv_bfloat16 *>(r.ptr)[i] = __float2bfloat16_rn(x);
        return;
    case ZT_F16:
        static_cast<__half *>(r.ptr)[i] = __float2half_rn(x);
        return;
    default:
        static_cast<float *>(r.ptr)[i] = x;
    }
}

/* sqrt(2 / pi) and 0.044715 of the tanh form; 1 + tanh(u) = 2 / (1 + e^-2u). */
__device__ float logistic_2u(float x)
{
    const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 1.0f / (1.0f + expf(-2.0f * u));
}

__device__ float gelu(float x)
{
    return x * logistic_2u(x);
}

/* Beyond +-15 it does not change any more, and x^3 stays finite. */
__device__ float gelu_grad(float x)
{
    x = fminf(fmaxf(x, -15.0f), 15.0f);
    const float s = logistic_2u(x);
    const float du2 = 2.0f * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return s + x * du2 * s * (1.0f - s);
}

} // namespace

__global__ void zt_epilogue_kernel(zt_epilogue_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.rows * a.n)
        return;
    const int64_t col = i % a.n, at = (a.row + i / a.n) * a.ldc + col;
    float x = a.x[i];
    if (a.accumulate)
        x += load(a.c, at);
    if (a.bias.ptr)
        x += load(a.bias, col);
    if (a.epilogue == ZT_EPI_GELU) {
        if (a.aux.ptr)
            store(a.aux, at, x);
        x = gelu(x);
    } else if (a.epilogue == ZT_EPI_DGELU) {
        x *= gelu_grad(load(a.aux, at));
    }
    if (a.residual.ptr)
        x += load(a.residual, at);
    store(a.c, at, x);
}
ZT_SIM_REGISTER(zt_epilogue_kernel)

cudaError_t zt_cuda_epilogue(const struct zt_cuda_epilogue *e, const struct zt_cuda_ctx *ctx)
{
    const zt_matmul &m = *e->mm;
    const zt_epilogue_args a = {e->rows,    m.n,   m.ldc, e->row,     e->x,        m.bias,
                                m.residual, m.aux, m.c,   m.epilogue, m.accumulate};
    const int64_t blocks = (e->rows * m.n + THREADS - 1) / THREADS;
    ZT_LAUNCH(zt_epilogue_kernel, dim3(static_cast<unsigned>(blocks)), dim3(THREADS), 0,
              ctx->stream, a);
    return cudaGetLastError();
}
