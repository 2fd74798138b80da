#include "dev/cpu/isa.h"

#include "dev/cpu/layout.h"

/* ---- sums over rows ---- */

struct row_blocks {
    int64_t n, rows_per_block;
};

static struct row_blocks split_rows(int64_t rows)
{
    struct row_blocks b = {0, 0};
    if (rows == 0)
        return b;
    b.rows_per_block = zt_ceil_div_i64(rows, zt_sum_blocks(rows));
    b.n = zt_ceil_div_i64(rows, b.rows_per_block);
    return b;
}

/*
 * out[j] = sum of partial[b][j] in the order of the blocks (+ out[j]); blocks are `stride` apart.
 */
static void sum_blocks(const float *partial, int64_t n_blocks, int64_t stride, int64_t cols,
                       struct zt_ref out, bool accumulate, int n_threads)
{
    (void)n_threads;
    int64_t n_chunks = zt_ceil_div_i64(cols, CHUNK);
    PARALLEL_FOR(n_threads, n_blocks * cols)
    for (int64_t c = 0; c < n_chunks; c++) {
        float sum[CHUNK];
        int64_t at = c * CHUNK, n = ZT_MIN(cols - at, (int64_t)CHUNK);
        if (accumulate)
            widen(out.dtype, out.ptr, at, n, sum);
        else
            memset(sum, 0, sizeof sum);
        for (int64_t b = 0; b < n_blocks; b++) {
            const float *part = partial + b * stride + at;
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                sum[j] += part[j];
        }
        narrow(out.dtype, sum, n, out.ptr, at);
    }
}

int ZT_ISA_FN(col_sum)(const struct zt_col_sum *a, int n_threads, struct zt_err *err)
{
    (void)err;
    struct row_blocks blocks = split_rows(a->rows);
    ZT_ASSERT_CMP(a->ws_bytes, >=, zt_ws_col_sum(ZT_DEV_CPU, a->rows, a->cols, n_threads));
    PARALLEL_FOR(n_threads, a->rows * a->cols)
    for (int64_t b = 0; b < blocks.n; b++) {
        float *sum = (float *)a->ws + b * a->cols, buf[CHUNK];
        int64_t end = ZT_MIN(a->rows, (b + 1) * blocks.rows_per_block);
        memset(sum, 0, (size_t)a->cols * sizeof *sum);
        for (int64_t i = b * blocks.rows_per_block; i < end; i++) {
            for (int64_t j = 0; j < a->cols; j += CHUNK) {
                int64_t n = ZT_MIN(a->cols - j, (int64_t)CHUNK);
                const float *x = read_row(a->x, i * a->ld + j, n, buf);
#pragma omp simd
                for (int64_t c = 0; c < n; c++)
                    sum[j + c] += x[c];
            }
        }
    }
    sum_blocks(a->ws, blocks.n, a->cols, a->cols, a->out, a->accumulate, n_threads);
    return 0;
}

/* ---- LayerNorm and RMSNorm ---- */

/* Sum of (x - shift)^power over a row, power 1 or 2: fp32 within a chunk, double over chunks. */
static double row_moment(struct zt_ref x, int64_t row, int64_t cols, float shift, int power)
{
    float buf[CHUNK];
    double total = 0;
    for (int64_t j = 0; j < cols; j += CHUNK) {
        int64_t n = ZT_MIN(cols - j, (int64_t)CHUNK);
        const float *p = read_row(x, row * cols + j, n, buf);
        float sum = 0;
        if (power == 1) {
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < n; c++)
                sum += p[c] - shift;
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < n; c++)
                sum += (p[c] - shift) * (p[c] - shift);
        }
        total += (double)sum;
    }
    return total;
}

static void norm_fwd_row(const struct zt_norm_fwd *a, int64_t row)
{
    float x_buf[CHUNK], gamma_buf[CHUNK], beta_buf[CHUNK], y_buf[CHUNK];
    double cols = (double)a->cols;
    float mean = a->rms ? 0.0f : (float)(row_moment(a->x, row, a->cols, 0, 1) / cols);
    double var = row_moment(a->x, row, a->cols, mean, 2) / cols;
    float rstd = (float)(1 / sqrt(var + (double)a->eps));
    if (!a->rms)
        a->mean[row] = mean;
    a->rstd[row] = rstd;
    for (int64_t j = 0; j < a->cols; j += CHUNK) {
        int64_t n = ZT_MIN(a->cols - j, (int64_t)CHUNK), at = row * a->cols + j;
        const float *x = read_row(a->x, at, n, x_buf);
        const float *gamma = read_row(a->gamma, j, n, gamma_buf);
        float *y = row_to_write(a->y, at, y_buf);
        if (a->beta.ptr) {
            const float *beta = read_row(a->beta, j, n, beta_buf);
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                y[c] = fma_f32((x[c] - mean) * rstd, gamma[c], beta[c]);
        } else {
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                y[c] = (x[c] - mean) * rstd * gamma[c];
        }
        write_row(a->y, at, n, y);
    }
}

int ZT_ISA_FN(norm_fwd)(const struct zt_norm_fwd *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    PARALLEL_FOR(n_threads, a->rows * a->cols)
    for (int64_t i = 0; i < a->rows; i++)
        norm_fwd_row(a, i);
    return 0;
}

/*
 * One row. With h = (x - mean) * rstd, the normalised row, and t = dy * gamma:
 *   dx = rstd * (t - mean(t) - h * mean(t * h))   (RMSNorm: without mean(t))
 * dgamma += dy * h and dbeta += dy go to the block's partial sums.
 */
static void norm_bwd_row(const struct zt_norm_bwd *a, int64_t row, float *dgamma, float *dbeta)
{
    float x_buf[CHUNK], dy_buf[CHUNK], gamma_buf[CHUNK], res_buf[CHUNK], dx_buf[CHUNK];
    float mean = a->rms ? 0.0f : a->mean[row], rstd = a->rstd[row];
    double sum_t = 0, sum_th = 0;
    for (int64_t j = 0; j < a->cols; j += CHUNK) {
        int64_t n = ZT_MIN(a->cols - j, (int64_t)CHUNK), at = row * a->cols + j;
        const float *x = read_row(a->x, at, n, x_buf), *dy = read_row(a->dy, at, n, dy_buf);
        const float *gamma = read_row(a->gamma, j, n, gamma_buf);
        float t_part = 0, th_part = 0;
#pragma omp simd reduction(+ : t_part, th_part)
        for (int64_t c = 0; c < n; c++) {
            float h = (x[c] - mean) * rstd, t = dy[c] * gamma[c];
            t_part += t;
            th_part += t * h;
            dgamma[j + c] += dy[c] * h;
            dbeta[j + c] += dy[c];
        }
        sum_t += (double)t_part;
        sum_th += (double)th_part;
    }
    float mean_t = a->rms ? 0.0f : (float)(sum_t / (double)a->cols);
    float mean_th = (float)(sum_th / (double)a->cols);
    for (int64_t j = 0; j < a->cols; j += CHUNK) {
        int64_t n = ZT_MIN(a->cols - j, (int64_t)CHUNK), at = row * a->cols + j;
        const float *x = read_row(a->x, at, n, x_buf), *dy = read_row(a->dy, at, n, dy_buf);
        const float *gamma = read_row(a->gamma, j, n, gamma_buf);
        float *dx = row_to_write(a->dx, at, dx_buf);
        const float *res = NULL;
        if (a->dresidual.ptr)
            res = read_row(a->dresidual, at, n, res_buf);
        else
            res = memset(res_buf, 0, (size_t)n * sizeof *res_buf);
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            float h = (x[c] - mean) * rstd;
            dx[c] = fma_f32(rstd, dy[c] * gamma[c] - mean_t - h * mean_th, res[c]);
        }
        write_row(a->dx, at, n, dx);
    }
}

int ZT_ISA_FN(norm_bwd)(const struct zt_norm_bwd *a, int n_threads, struct zt_err *err)
{
    (void)err;
    struct row_blocks blocks = split_rows(a->rows);
    float *partial = a->ws; /* (blocks, 2, cols) */
    ZT_ASSERT_CMP(a->ws_bytes, >=, zt_ws_norm_bwd(ZT_DEV_CPU, a->rows, a->cols, n_threads));
    PARALLEL_FOR(n_threads, a->rows * a->cols)
    for (int64_t b = 0; b < blocks.n; b++) {
        float *dgamma = partial + b * 2 * a->cols, *dbeta = dgamma + a->cols;
        int64_t end = ZT_MIN(a->rows, (b + 1) * blocks.rows_per_block);
        memset(dgamma, 0, 2 * (size_t)a->cols * sizeof *dgamma);
        for (int64_t i = b * blocks.rows_per_block; i < end; i++)
            norm_bwd_row(a, i, dgamma, dbeta);
    }
    if (a->dgamma.ptr)
        sum_blocks(partial, blocks.n, 2 * a->cols, a->cols, a->dgamma, a->accumulate, n_threads);
    if (a->dbeta.ptr)
        sum_blocks(partial + a->cols, blocks.n, 2 * a->cols, a->cols, a->dbeta, a->accumulate,
                   n_threads);
    return 0;
}
