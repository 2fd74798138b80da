#include "dev/cpu/isa_dropout.h"

/* Columns [j, j + n) of row i, n <= DROP_COLS. */
static void drop_add_piece(const struct zt_drop_add *a, int64_t i, int64_t j, int64_t n,
                           const float *restrict keep)
{
    float x_buf[DROP_COLS], residual_buf[DROP_COLS], out_buf[DROP_COLS];
    const int64_t at = i * a->cols + j;
    const float *x = read_row(a->x, at, n, x_buf);
    float *out = row_to_write(a->out, at, out_buf);
    if (a->residual.ptr) {
        const float *residual = read_row(a->residual, at, n, residual_buf);
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            out[c] = residual[c] + x[c] * keep[c];
    } else {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            out[c] = x[c] * keep[c];
    }
    write_row(a->out, at, n, out);
}

int ZT_ISA_FN(drop_add)(const struct zt_drop_add *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    PARALLEL_FOR(n_threads, a->rows * a->cols)
    for (int64_t i = 0; i < a->rows; i++) {
        float keep[DROP_COLS];
        const struct zt_drop_key key = zt_drop_key(&a->drop, i / a->seq_len);
        for (int64_t j = 0; j < a->cols; j += DROP_COLS) {
            drop_factors(&key, 0, (uint32_t)(i % a->seq_len), j, &a->drop, keep);
            drop_add_piece(a, i, j, ZT_MIN(a->cols - j, (int64_t)DROP_COLS), keep);
        }
    }
    return 0;
}
