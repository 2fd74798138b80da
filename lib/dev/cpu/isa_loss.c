#include "dev/cpu/isa.h"

#include "dev/cpu/isa_exp.h"

/* Running maximum, and sum of e^(x - max), of a row of logits. */
struct softmax {
    float max;
    double sum;
};

static struct softmax row_softmax(struct zt_ref logits, int64_t at, int64_t n_cols)
{
    float buf[CHUNK], e_buf[CHUNK];
    struct softmax s = {-INFINITY, 0};
    for (int64_t j = 0; j < n_cols; j += CHUNK) {
        int64_t n = ZT_MIN(n_cols - j, (int64_t)CHUNK);
        const float *x = read_row(logits, at + j, n, buf);
        float max = max_row(x, n, s.max);
        float shift = max > -INFINITY ? max : 0.0f; /* a chunk of -inf only: e^-inf, not e^NaN */
        double sum = (double)exp_row(x, e_buf, n, shift);
        if (max > s.max)
            s.sum *= exp((double)s.max - (double)max);
        s.max = max;
        s.sum += sum;
    }
    return s;
}

/* Row i of grad = (softmax - onehot) * scale; columns vocab..ld-1 = 0. target -1: scale is 0. */
static void write_grad(const struct zt_cross_entropy *a, int64_t i, int64_t target,
                       struct softmax s, float scale)
{
    float x_buf[CHUNK], g_buf[CHUNK];
    float inv = (float)(1 / s.sum) * scale;
    bool in_place = !a->grad.ptr;
    struct zt_ref grad = in_place ? a->logits : a->grad;
    int64_t at = i * a->ld, grad_at = i * (in_place ? a->ld : a->ld_grad);
    for (int64_t j = 0; j < a->ld; j += CHUNK) {
        int64_t n = ZT_MIN(a->ld - j, (int64_t)CHUNK);
        int64_t n_real = target < 0 ? 0 : ZT_MIN(n, ZT_MAX(a->vocab - j, (int64_t)0));
        const float *x = read_row(a->logits, at + j, n, x_buf);
        float *g = row_to_write(grad, grad_at + j, g_buf);
        exp_row(x, g, n_real, s.max);
#pragma omp simd
        for (int64_t c = 0; c < n_real; c++)
            g[c] *= inv;
        for (int64_t c = n_real; c < n; c++)
            g[c] = 0;
        if (target >= j && target < j + n)
            g[target - j] -= scale;
        write_row(grad, grad_at + j, n, g);
    }
}

int ZT_ISA_FN(cross_entropy)(const struct zt_cross_entropy *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    float scale = a->count->inv_tokens * a->sb->loss_scale;
    for (int64_t i = 0; i < a->rows; i++)
        if (a->targets[i] != ZT_IGNORE_TARGET && (a->targets[i] < 0 || a->targets[i] >= a->vocab))
            return zt_err_set(
                err, ZT_EINPUT,
                "cross_entropy: row %lld has target %d, outside the vocabulary of %lld",
                (long long)i, (int)a->targets[i], (long long)a->vocab);
    PARALLEL_FOR(n_threads, a->rows * a->vocab)
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t at = i * a->ld, target = a->targets[i];
        struct softmax s = {0, 1};
        a->losses[i] = 0;
        if (target != ZT_IGNORE_TARGET) {
            float x;
            s = row_softmax(a->logits, at, a->vocab);
            widen(a->logits.dtype, a->logits.ptr, at + target, 1, &x);
            a->losses[i] = (float)((double)s.max - (double)x + log(s.sum));
        }
        if (a->write_grad)
            write_grad(a, i, target != ZT_IGNORE_TARGET ? target : -1, s, scale);
    }
    double sum = 0;
    for (int64_t i = 0; i < a->rows; i++)
        sum += (double)a->losses[i];
    *a->loss_sum = a->first ? sum : *a->loss_sum + sum;
    return 0;
}
