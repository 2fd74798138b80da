#include "dev/cpu/isa.h"

#include "base/size.h"

int ZT_ISA_FN(embed_fwd)(const struct zt_embed_fwd *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    PARALLEL_FOR(n_threads, a->rows * a->cols)
    for (int64_t i = 0; i < a->rows; i++) {
        float wte_buf[CHUNK], wpe_buf[CHUNK], out_buf[CHUNK];
        for (int64_t j = 0; j < a->cols; j += CHUNK) {
            int64_t n = ZT_MIN(a->cols - j, (int64_t)CHUNK), at = i * a->cols + j;
            const float *wte = read_row(a->wte, a->tokens[i] * a->cols + j, n, wte_buf);
            if (!a->wpe.ptr) {
                narrow(a->out.dtype, wte, n, a->out.ptr, at);
                continue;
            }
            const float *wpe = read_row(a->wpe, a->positions[i] * a->cols + j, n, wpe_buf);
            float *out = row_to_write(a->out, at, out_buf);
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                out[c] = wte[c] + wpe[c];
            write_row(a->out, at, n, out);
        }
    }
    return 0;
}

/* dst[index[i]] += dout[i] for all rows i in order, columns [begin, begin + n) only. */
static void scatter_columns(const struct zt_embed_bwd *a, const int32_t *index, float *dst,
                            int64_t begin, int64_t n)
{
    float buf[CHUNK];
    for (int64_t i = 0; i < a->rows; i++) {
        const float *src = read_row(a->dout, i * a->cols + begin, n, buf);
        float *to = dst + index[i] * a->cols + begin;
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            to[c] += src[c];
    }
}

/* Threads own columns, so that every element is summed in the order of the rows. */
int ZT_ISA_FN(embed_bwd)(const struct zt_embed_bwd *a, int n_threads, struct zt_err *err)
{
    enum { STRIP = 128 };
    struct zt_zero wte = {a->dwte.ptr, (size_t)a->vocab * (size_t)a->cols * sizeof(float)};
    struct zt_zero wpe = {a->dwpe.ptr, (size_t)a->max_positions * (size_t)a->cols * sizeof(float)};
    if (a->dwte.dtype != ZT_F32 || (a->dwpe.ptr && a->dwpe.dtype != ZT_F32))
        return zt_err_set(err, ZT_EUNSUPPORTED, "embed_bwd: scattered gradients must be fp32");
    if (!a->accumulate_wte)
        ZT_ISA_FN(zero)(&wte, n_threads, err);
    if (!a->accumulate_wpe && a->dwpe.ptr)
        ZT_ISA_FN(zero)(&wpe, n_threads, err);
    int64_t n_strips = zt_ceil_div_i64(a->cols, STRIP);
    PARALLEL_FOR(n_threads, a->rows * a->cols)
    for (int64_t s = 0; s < n_strips; s++) {
        int64_t begin = s * STRIP, n = ZT_MIN(a->cols - begin, (int64_t)STRIP);
        scatter_columns(a, a->tokens, a->dwte.ptr, begin, n);
        if (a->dwpe.ptr)
            scatter_columns(a, a->positions, a->dwpe.ptr, begin, n);
    }
    return 0;
}
