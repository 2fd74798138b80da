#include "dev/cpu/isa.h"

#include "dev/cpu/isa_exp.h"
#include "dev/cpu/layout.h"
#include "dev/cpu/onednn.h"

/*
 * The product is oneDNN's dnnl_sgemm (row-major), with 16-bit operands widened into workspace, block by
 * block; or, of two bf16 matrices on a CPU that is faster so (zt_cpu_kernels), oneDNN's bf16 product.
 */

/* A matrix as the product takes it: fp32, or bf16 in a product of two bf16 matrices. */
struct operand {
    const void *p;
    int64_t ld;
};

/*
 * Rows [r0, r0 + rows) x columns [c0, c0 + cols) of a stored matrix: itself, or widened into buf.
 */
static struct operand widen_block(struct zt_ref m, int64_t ld, int64_t r0, int64_t rows, int64_t c0,
                                  int64_t cols, float *buf, int n_threads)
{
    (void)n_threads;
    if (m.dtype == ZT_F32)
        return (struct operand){(const float *)m.ptr + r0 * ld + c0, ld};
    PARALLEL_FOR(n_threads, rows * cols)
    for (int64_t i = 0; i < rows; i++)
        widen(m.dtype, m.ptr, (r0 + i) * ld + c0, cols, buf + i * cols);
    return (struct operand){buf, cols};
}

/* ---- epilogue ---- */

/*
 * GELU, tanh form: gelu(x) = x * s(2u), s the logistic function, u = sqrt(2 / pi) * (x + 0.044715 x^3);
 * gelu'(x) = s + x * s * (1 - s) * 2u', where 1 - s = s * e^-2u. Beyond +-15 gelu' does not change any
 * more; held there, neither x^3 nor e^-2u overflows. n <= CHUNK.
 */
static const float gelu_1 = 1.5957691216f, gelu_3 = 0.0713548163f; /* 2u = gelu_1 x + gelu_3 x^3 */

#if defined(__AVX512F__)

static inline __m512 minus_2u_v16(__m512 x)
{
    __m512 slope =
        _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(gelu_3), _mm512_set1_ps(gelu_1));
    return _mm512_fnmadd_ps(x, slope, _mm512_setzero_ps());
}

static void gelu_row(float *x, int64_t n)
{
    const __m512 least = _mm512_set1_ps(-15.0f); /* gelu(-15) is 0 as well; and x * s stays one */
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        __m512 v = _mm512_max_ps(least, _mm512_maskz_loadu_ps(m, x + i)), e;
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(v, logistic_v16(minus_2u_v16(v), &e)));
    }
}

/* g *= gelu'(x) */
static void gelu_grad_row(const float *x, float *g, int64_t n)
{
    const __m512 most = _mm512_set1_ps(15.0f), least = _mm512_set1_ps(-15.0f);
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        __m512 v = _mm512_min_ps(most, _mm512_maskz_loadu_ps(m, x + i)), e;
        v = _mm512_max_ps(least, v);
        __m512 s = logistic_v16(minus_2u_v16(v), &e);
        __m512 du2 = _mm512_fmadd_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(3 * gelu_3),
                                     _mm512_set1_ps(gelu_1));
        __m512 grad =
            _mm512_fmadd_ps(_mm512_mul_ps(v, du2), _mm512_mul_ps(s, _mm512_mul_ps(s, e)), s);
        _mm512_mask_storeu_ps(g + i, m, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, g + i), grad));
    }
}

#else

static void gelu_row(float *x, int64_t n)
{
    float e[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        e[i] = -x[i] * fma_f32(x[i] * x[i], gelu_3, gelu_1);
    exp_row(e, e, n, 0);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] /= 1.0f + e[i];
}

static inline float hold(float x)
{
    x = x > 15.0f ? 15.0f : x;
    return x < -15.0f ? -15.0f : x;
}

/* g *= gelu'(x) */
static void gelu_grad_row(const float *x_row, float *g, int64_t n)
{
    float e[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = hold(x_row[i]), minus_2u = -x * fma_f32(x * x, gelu_3, gelu_1);
        e[i] = ZT_MIN(minus_2u, 80.0f);
    }
    exp_row(e, e, n, 0);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = hold(x_row[i]), s = 1.0f / (1.0f + e[i]);
        float du2 = fma_f32(x * x, 3 * gelu_3, gelu_1);
        g[i] *= fma_f32(x * du2, s * (s * e[i]), s);
    }
}

#endif

/* Elements [at, at + n) of C, a piece of one row from column j on; x holds their sums. */
static void epilogue_piece(const struct zt_matmul *a, int64_t at, int64_t j, int64_t n, float *x)
{
    float buf[CHUNK];
    if (a->accumulate && a->c.dtype != ZT_F32) {
        const float *old = read_row(a->c, at, n, buf);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] += old[i];
    }
    if (a->bias.ptr) {
        const float *bias = read_row(a->bias, j, n, buf);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] += bias[i];
    }
    if (a->epilogue == ZT_EPI_GELU) {
        if (a->aux.ptr)
            narrow(a->aux.dtype, x, n, a->aux.ptr, at);
        gelu_row(x, n);
    } else if (a->epilogue == ZT_EPI_DGELU) {
        gelu_grad_row(read_row(a->aux, at, n, buf), x, n);
    }
    if (a->residual.ptr && !(a->residual.ptr == a->c.ptr && a->c.dtype == ZT_F32)) {
        const float *residual = read_row(a->residual, at, n, buf);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] += residual[i];
    }
    if (a->c.dtype != ZT_F32)
        narrow(a->c.dtype, x, n, a->c.ptr, at);
}

/* Rows [i0, i0 + rows) x columns [j0, j0 + cols) of C, whose sums are in x. */
static void epilogue_block(const struct zt_matmul *a, int64_t i0, int64_t rows, int64_t j0,
                           int64_t cols, float *x, int64_t ldx, int n_threads)
{
    (void)n_threads;
    bool residual_apart = a->residual.ptr && a->residual.ptr != a->c.ptr;
    if (a->c.dtype == ZT_F32 && !a->bias.ptr && !residual_apart && a->epilogue == ZT_EPI_NONE)
        return;
    PARALLEL_FOR(n_threads, rows * cols)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += CHUNK)
            epilogue_piece(a, (i0 + i) * a->ldc + j0 + j, j0 + j, ZT_MIN(cols - j, (int64_t)CHUNK),
                           x + i * ldx + j);
}

/* ---- product ---- */

/* x = A B (+ x when `add`), (rows, k) by (k, cols). */
static int product(const struct zt_matmul *a, bool bf16, struct operand op_a, struct operand op_b,
                   int64_t rows, int64_t cols, bool add, float *x, int64_t ldx, struct zt_err *err)
{
    if (rows == 0 || cols == 0) /* oneDNN's bf16 product takes it for a mistake */
        return 0;
    if (a->k == 0) {
        for (int64_t i = 0; i < rows && !add; i++)
            memset(x + i * ldx, 0, (size_t)cols * sizeof *x);
        return 0;
    }
    const char trans_a = a->trans_a ? 'T' : 'N', trans_b = a->trans_b ? 'T' : 'N';
    const float beta = add ? 1.0f : 0.0f;
    dnnl_status_t rc = bf16 ? dnnl_gemm_bf16bf16f32(trans_a, trans_b, rows, cols, a->k, 1.0f,
                                                    op_a.p, op_a.ld, op_b.p, op_b.ld, beta, x, ldx)
                            : dnnl_sgemm(trans_a, trans_b, rows, cols, a->k, 1.0f, op_a.p, op_a.ld,
                                         op_b.p, op_b.ld, beta, x, ldx);
    if (rc != dnnl_success)
        return zt_err_set(err, ZT_EDEVICE, "matmul (%lld, %lld, %lld): %s failed with status %d",
                          (long long)a->m, (long long)a->n, (long long)a->k,
                          bf16 ? "dnnl_gemm_bf16bf16f32" : "dnnl_sgemm", (int)rc);
    return 0;
}

/* Adding to C in place is the product's own; GELU needs the product alone. */
static int check_epilogue(const struct zt_matmul *a, struct zt_err *err)
{
    bool in_place = a->residual.ptr && a->residual.ptr == a->c.ptr;
    if ((in_place || a->accumulate) && a->epilogue != ZT_EPI_NONE)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "matmul: adding to C in place goes with no GELU epilogue");
    return 0;
}

static int bias_grad(const struct zt_matmul *a, int n_threads, struct zt_err *err)
{
    if (a->bias_grad_of == ZT_BIAS_GRAD_NONE)
        return 0;
    ZT_ASSERT(a->bias_grad_of == ZT_BIAS_GRAD_A ? a->trans_a : !a->trans_b);
    const struct zt_col_sum sum = zt_bias_grad_sum(a);
    return ZT_ISA_FN(col_sum)(&sum, n_threads, err);
}

/* A workspace of nothing is NULL, which C lets nobody add to, not even 0. */
static float *ws_at(void *ws, size_t at_bytes)
{
    return at_bytes > 0 ? (float *)((char *)ws + at_bytes) : ws;
}

/* The rows of C are done in blocks where the block's fp32 sums, or a widened operand, need room. */
static int matmul_f32(const struct zt_matmul *a, int n_threads, struct zt_err *err)
{
    struct zt_mm_layout l;
    zt_mm_layout(a, &l);
    ZT_ASSERT_CMP(a->ws_bytes, >=, l.a_bytes + l.b_bytes + l.c_bytes);
    int rc = check_epilogue(a, err);
    if (rc)
        return rc;
    bool f32_out = a->c.dtype == ZT_F32;
    float *buf_a = a->ws, *buf_b = ws_at(a->ws, l.a_bytes);
    float *buf_c = ws_at(a->ws, l.a_bytes + l.b_bytes);
    bool add = f32_out && (a->accumulate || (a->residual.ptr && a->residual.ptr == a->c.ptr));
    struct operand op_a = {0}, op_b;
    for (int64_t j = 0; j < a->n; j += l.block_n) {
        int64_t cols = ZT_MIN(l.block_n, a->n - j);
        op_b = a->trans_b ? widen_block(a->b, a->ldb, j, cols, 0, a->k, buf_b, n_threads)
                          : widen_block(a->b, a->ldb, 0, a->k, j, cols, buf_b, n_threads);
        for (int64_t i = 0; i < a->m; i += l.block_m) {
            int64_t rows = ZT_MIN(l.block_m, a->m - i);
            if (j == 0 || l.block_m < a->m)
                op_a = a->trans_a ? widen_block(a->a, a->lda, 0, a->k, i, rows, buf_a, n_threads)
                                  : widen_block(a->a, a->lda, i, rows, 0, a->k, buf_a, n_threads);
            float *x = f32_out ? (float *)a->c.ptr + i * a->ldc + j : buf_c;
            int64_t ldx = f32_out ? a->ldc : cols;
            rc = product(a, false, op_a, op_b, rows, cols, add, x, ldx, err);
            if (rc)
                return rc;
            epilogue_block(a, i, rows, j, cols, x, ldx, n_threads);
        }
    }
    return 0;
}

static int matmul_bf16(const struct zt_matmul *a, int n_threads, struct zt_err *err)
{
    int rc = check_epilogue(a, err);
    bool f32_out = a->c.dtype == ZT_F32;
    bool add = f32_out && (a->accumulate || (a->residual.ptr && a->residual.ptr == a->c.ptr));
    int64_t block_m = f32_out ? a->m : zt_mm_sum_rows(a);
    struct operand op_b = {a->b.ptr, a->ldb};
    for (int64_t i = 0; i < a->m && !rc; i += block_m) {
        int64_t rows = ZT_MIN(block_m, a->m - i);
        const uint16_t *at = (const uint16_t *)a->a.ptr + (a->trans_a ? i : i * a->lda);
        float *x = f32_out ? (float *)a->c.ptr + i * a->ldc : a->ws;
        int64_t ldx = f32_out ? a->ldc : a->n;
        ZT_ASSERT(f32_out || a->ws_bytes >= (size_t)rows * (size_t)ldx * sizeof *x);
        rc = product(a, true, (struct operand){at, a->lda}, op_b, rows, a->n, add, x, ldx, err);
        if (!rc)
            epilogue_block(a, i, rows, 0, a->n, x, ldx, n_threads);
    }
    return rc;
}

int ZT_ISA_FN(matmul)(const struct zt_matmul *a, int n_threads, struct zt_err *err)
{
    int rc = matmul_f32(a, n_threads, err);
    return rc ? rc : bias_grad(a, n_threads, err);
}

int ZT_ISA_FN(matmul_native)(const struct zt_matmul *a, int n_threads, struct zt_err *err)
{
    if (a->a.dtype != ZT_BF16 || a->b.dtype != ZT_BF16)
        return ZT_ISA_FN(matmul)(a, n_threads, err);
    int rc = matmul_bf16(a, n_threads, err);
    return rc ? rc : bias_grad(a, n_threads, err);
}
