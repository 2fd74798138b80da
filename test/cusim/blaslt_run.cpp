/*
 * blaslt_run.cpp: products and epilogues of blaslt.h. The product itself is oneDNN's, of operands widened to
 * fp32: the order of the sums is not a GPU's. All that is read and written is announced to
 * ThreadSanitizer, since oneDNN is not instrumented.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include <vector>

#include "cusim/blaslt.h"
#include "cusim/sim.h"

using namespace cusim;

namespace
{

float load(const void *p, cudaDataType t, int64_t i)
{
    if (t == CUDA_R_16BF)
        return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    if (t == CUDA_R_16F)
        return __half2float(((const __half *)p)[i]);
    return ((const float *)p)[i];
}

void store(void *p, cudaDataType t, int64_t i, float x)
{
    if (t == CUDA_R_16BF)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    else if (t == CUDA_R_16F)
        ((__half *)p)[i] = __float2half_rn(x);
    else
        ((float *)p)[i] = x;
}

/* The upper 19 bits, rounded to nearest, ties away. */
float to_tf32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7f800000) != 0x7f800000)
        u = (u + 0x1000) & ~0x1fffu;
    memcpy(&x, &u, 4);
    return x;
}

const void *batch_of(const void *p, const layout &l, int i)
{
    return (const char *)p + (size_t)i * (size_t)l.batch_stride * type_bytes(l.type);
}

/* Columns of `rows` elements: to ThreadSanitizer. */
void announce(const void *p, cudaDataType t, int64_t rows, int64_t cols, int64_t ld, bool write)
{
    const size_t e = type_bytes(t);
    if (ld == rows) {
        rows *= cols;
        cols = 1;
    }
    for (int64_t j = 0; j < cols; j++) {
        char *column = (char *)p + (size_t)(j * ld) * e;
        if (write)
            tsan_writes(column, (size_t)rows * e);
        else
            tsan_reads(column, (size_t)rows * e);
    }
}

/* The matrix in fp32, its columns packed. */
std::vector<float> widen(const void *p, const layout &l, bool tf32)
{
    std::vector<float> x((size_t)(l.rows * l.cols));
    announce(p, l.type, (int64_t)l.rows, (int64_t)l.cols, l.ld, false);
    size_t i = 0;
    for (int64_t c = 0; c < (int64_t)l.cols; c++) {
        for (int64_t r = 0; r < (int64_t)l.rows; r++, i++) {
            float v = load(p, l.type, c * l.ld + r);
            x[i] = tf32 ? to_tf32(v) : v;
        }
    }
    return x;
}

/* GELU(x) ~ x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), and its derivative. */
float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

float gelu_derivative(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    float du = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

/* Sums of op(x) over k: `outer` of them. k is x's columns if `k_is_cols`. */
void write_bias_gradient(const matmul &p, const std::vector<float> &x, const layout &l,
                         bool k_is_cols)
{
    const int64_t outer = (int64_t)(k_is_cols ? l.rows : l.cols);
    tsan_writes(p.op.bias, (size_t)outer * type_bytes(p.d.type));
    for (int64_t i = 0; i < outer; i++) {
        float sum = 0;
        for (int64_t j = 0; j < p.k; j++)
            sum += x[(size_t)(k_is_cols ? j * (int64_t)l.rows + i : i * (int64_t)l.rows + j)];
        store(p.op.bias, p.d.type, i, sum);
    }
}

/* D = epilogue(alpha x + beta C), where x is m by n, packed. */
void finish(const matmul &p, const std::vector<float> &x, float alpha, float beta, const void *c,
            void *d, int batch)
{
    const operation &o = p.op;
    const cudaDataType t = p.d.type;
    const char *bias = (char *)o.bias + (size_t)(batch * o.bias_stride) * type_bytes(t);
    char *aux = (char *)o.aux + (size_t)(batch * o.aux_stride) * type_bytes(t);
    const bool is_gelu = o.epilogue & CUBLASLT_EPILOGUE_GELU;
    const bool is_dgelu = (o.epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU;
    std::vector<float> row_sums((size_t)p.m, 0.0f);
    if (beta != 0)
        announce(c, t, p.m, p.n, p.c.ld, false);
    if (has_bias(o.epilogue))
        tsan_reads(bias, (size_t)p.m * type_bytes(t));
    if (o.epilogue & AUX)
        announce(aux, t, p.m, p.n, o.aux_ld, is_gelu);
    announce(d, t, p.m, p.n, p.d.ld, true);
    for (int64_t j = 0; j < p.n; j++) {
        for (int64_t i = 0; i < p.m; i++) {
            float v = alpha * x[(size_t)(j * p.m + i)];
            if (beta != 0)
                v += beta * load(c, t, j * p.c.ld + i);
            if (has_bias(o.epilogue))
                v += load(bias, t, i);
            if (is_gelu && o.epilogue & AUX)
                store(aux, t, j * o.aux_ld + i, v);
            if (is_gelu)
                v = gelu(v);
            else if (is_dgelu)
                v *= gelu_derivative(load(aux, t, j * o.aux_ld + i));
            row_sums[(size_t)i] += v;
            store(d, t, j * p.d.ld + i, v);
        }
    }
    if (!(o.epilogue & BGRAD_OF_D))
        return;
    tsan_writes(o.bias, (size_t)p.m * type_bytes(t));
    for (int64_t i = 0; i < p.m; i++)
        store(o.bias, t, i, row_sums[(size_t)i]);
}

} // namespace

/* Column-major D = A B is row-major D' = B' A', which is what oneDNN has. */
void cusim::carry_out(const matmul &p, float alpha, float beta, const void *a, const void *b,
                      const void *c, void *d)
{
    omp_set_num_threads(1); /* of the stream's thread: there are many */
    const bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const char ta = p.op.trans_a == CUBLAS_OP_T ? 'T' : 'N';
    const char tb = p.op.trans_b == CUBLAS_OP_T ? 'T' : 'N';
    for (int i = 0; i < p.d.batch; i++) {
        std::vector<float> wa = widen(batch_of(a, p.a, i), p.a, tf32);
        std::vector<float> wb = widen(batch_of(b, p.b, i), p.b, tf32);
        std::vector<float> x((size_t)(p.m * p.n));
        dnnl_sgemm(tb, ta, p.n, p.m, p.k, 1.0f, wb.data(), (int64_t)p.b.rows, wa.data(),
                   (int64_t)p.a.rows, 0.0f, x.data(), p.m);
        finish(p, x, alpha, beta, batch_of(c, p.c, i), (void *)batch_of(d, p.d, i), i);
        if (p.op.epilogue == CUBLASLT_EPILOGUE_BGRADA)
            write_bias_gradient(p, wa, p.a, ta == 'N');
        if (p.op.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            write_bias_gradient(p, wb, p.b, tb == 'T');
    }
}
