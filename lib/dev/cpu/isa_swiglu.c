#include "dev/cpu/isa.h"

#include "base/size.h"
#include "dev/cpu/isa_exp.h"

/* Below -80 silu and its slope are 0 to fp32; held there, e^-x does not overflow. */
static inline float hold(float x)
{
    return x < -80.0f ? -80.0f : x;
}

/* e = e^-x; n <= CHUNK. */
static void exp_minus_row(const float *x, int64_t n, float *restrict e)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        e[i] = -hold(x[i]);
    exp_row(e, e, n, 0);
}

static void swiglu_fwd_chunk(const struct zt_swiglu_fwd *a, int64_t at, int64_t n)
{
    float gate_buf[CHUNK], up_buf[CHUNK], out_buf[CHUNK], e[CHUNK];
    const float *gate = read_row(a->gate, at, n, gate_buf), *up = read_row(a->up, at, n, up_buf);
    float *out = row_to_write(a->out, at, out_buf);
    exp_minus_row(gate, n, e);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = hold(gate[i]) / (1.0f + e[i]) * up[i];
    write_row(a->out, at, n, out);
}

int ZT_ISA_FN(swiglu_fwd)(const struct zt_swiglu_fwd *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t n_chunks = zt_ceil_div_i64(a->n, CHUNK);
    PARALLEL_FOR(n_threads, a->n)
    for (int64_t c = 0; c < n_chunks; c++)
        swiglu_fwd_chunk(a, c * CHUNK, ZT_MIN(a->n - c * CHUNK, (int64_t)CHUNK));
    return 0;
}

/* silu'(x) = s + x s (1 - s), s = 1 / (1 + e^-x), 1 - s = s e^-x. */
static void swiglu_bwd_chunk(const struct zt_swiglu_bwd *a, int64_t at, int64_t n)
{
    float gate_buf[CHUNK], up_buf[CHUNK], dout_buf[CHUNK], e[CHUNK];
    float dgate_buf[CHUNK], dup_buf[CHUNK];
    const float *gate = read_row(a->gate, at, n, gate_buf), *up = read_row(a->up, at, n, up_buf);
    const float *dout = read_row(a->dout, at, n, dout_buf);
    float *dgate = row_to_write(a->dgate, at, dgate_buf);
    float *dup = row_to_write(a->dup, at, dup_buf);
    exp_minus_row(gate, n, e);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = hold(gate[i]), u = up[i], d = dout[i], s = 1.0f / (1.0f + e[i]);
        dgate[i] = d * u * fma_f32(x * s, s * e[i], s);
        dup[i] = d * (x * s);
    }
    write_row(a->dgate, at, n, dgate);
    write_row(a->dup, at, n, dup);
}

int ZT_ISA_FN(swiglu_bwd)(const struct zt_swiglu_bwd *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t n_chunks = zt_ceil_div_i64(a->n, CHUNK);
    PARALLEL_FOR(n_threads, a->n)
    for (int64_t c = 0; c < n_chunks; c++)
        swiglu_bwd_chunk(a, c * CHUNK, ZT_MIN(a->n - c * CHUNK, (int64_t)CHUNK));
    return 0;
}
