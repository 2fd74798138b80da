#include "dev/cpu/isa.h"

#include "base/size.h"
#include "dev/adamw.h"

/* Elements [at, at + n), n <= CHUNK. */
static void adamw_chunk(const struct zt_adamw *a, const struct zt_adamw_coef *coef, int64_t at,
                        int64_t n)
{
    float grad_buf[CHUNK];
    const float *restrict g = read_row(a->grad, at, n, grad_buf);
    float *restrict m = a->m + at, *restrict v = a->v + at;
    float *restrict w = (float *)(a->master.ptr ? a->master.ptr : a->param.ptr) + at;
    struct zt_adamw_coef c = *coef;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        zt_adamw_element(&c, g[i], &w[i], &m[i], &v[i]);
    if (a->master.ptr)
        narrow(a->param.dtype, w, n, a->param.ptr, at);
}

int ZT_ISA_FN(adamw)(const struct zt_adamw *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    if (!a->master.ptr && a->param.dtype != ZT_F32)
        return zt_err_set(err, ZT_EUNSUPPORTED, "adamw: %s parameters need an fp32 master",
                          zt_dtype_name(a->param.dtype));
    if (!a->sb->apply)
        return 0;
    for (int r = 0; r < a->n_ranges; r++) {
        const struct zt_update_range *range = &a->ranges[r];
        struct zt_adamw_coef coef = zt_adamw_coef(a->sb, range->lr_scale, range->weight_decay);
        int64_t n = range->end - range->begin, n_chunks = zt_ceil_div_i64(n, CHUNK);
        PARALLEL_FOR(n_threads, n)
        for (int64_t c = 0; c < n_chunks; c++)
            adamw_chunk(a, &coef, range->begin + c * CHUNK, ZT_MIN(n - c * CHUNK, (int64_t)CHUNK));
    }
    return 0;
}

/* Sum of squares of one block, in fp32. */
static float block_sum_sq(struct zt_ref x, int64_t at, int64_t n)
{
    float buf[CHUNK], sum = 0;
    for (int64_t j = 0; j < n; j += CHUNK) {
        int64_t len = ZT_MIN(n - j, (int64_t)CHUNK);
        const float *p = read_row(x, at + j, len, buf);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < len; i++)
            part += p[i] * p[i];
        sum += part;
    }
    return sum;
}

int ZT_ISA_FN(sum_sq)(const struct zt_sum_sq *a, int n_threads, struct zt_err *err)
{
    enum { BLOCK = 4096, BATCH = 512 }; /* blocks whose sums are held at a time */
    (void)n_threads;
    (void)err;
    double total = 0;
    int64_t n_blocks = zt_ceil_div_i64(a->n, BLOCK);
    for (int64_t first = 0; first < n_blocks; first += BATCH) {
        float sums[BATCH];
        int64_t count = ZT_MIN(n_blocks - first, (int64_t)BATCH);
        PARALLEL_FOR(n_threads, count * BLOCK)
        for (int64_t b = 0; b < count; b++) {
            int64_t at = (first + b) * BLOCK;
            sums[b] = block_sum_sq(a->x, at, ZT_MIN(a->n - at, (int64_t)BLOCK));
        }
        for (int64_t b = 0; b < count; b++)
            total += (double)sums[b];
    }
    a->out->sum_sq = total;
    return 0;
}
