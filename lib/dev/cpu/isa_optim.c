#include "dev/cpu/isa.h"

#include "base/size.h"
#include "dev/adam.h"
#include "dev/lion.h"

/* One chunk under way: elements [at, at + n), n <= CHUNK. */
struct chunk {
    const float *restrict g;
    float *restrict w, *restrict m, *restrict v;
    int64_t n;
    float buf[CHUNK]; /* a 16-bit gradient, widened */
};

typedef void update_fn(const struct chunk *k, const struct zt_step_block *sb,
                       const struct zt_update_range *r);

static void adamw_chunk(const struct chunk *k, const struct zt_step_block *sb,
                        const struct zt_update_range *r)
{
    const struct zt_adam_coef c = zt_adam_coef(sb, r->lr_scale, r->weight_decay);
    const float *restrict g = k->g;
    float *restrict w = k->w, *restrict m = k->m, *restrict v = k->v;
#pragma omp simd
    for (int64_t i = 0; i < k->n; i++)
        zt_adamw_element(&c, g[i], &w[i], &m[i], &v[i]);
}

static void adam_chunk(const struct chunk *k, const struct zt_step_block *sb,
                       const struct zt_update_range *r)
{
    const struct zt_adam_coef c = zt_adam_coef(sb, r->lr_scale, r->weight_decay);
    const float *restrict g = k->g;
    float *restrict w = k->w, *restrict m = k->m, *restrict v = k->v;
#pragma omp simd
    for (int64_t i = 0; i < k->n; i++)
        zt_adam_element(&c, g[i], &w[i], &m[i], &v[i]);
}

static void lion_chunk(const struct chunk *k, const struct zt_step_block *sb,
                       const struct zt_update_range *r)
{
    const struct zt_lion_coef c = zt_lion_coef(sb, r->lr_scale, r->weight_decay);
    const float *restrict g = k->g;
    float *restrict w = k->w, *restrict m = k->m;
#pragma omp simd
    for (int64_t i = 0; i < k->n; i++)
        zt_lion_element(&c, g[i], &w[i], &m[i]);
}

static update_fn *const update_fns[] = {
    [ZT_ADAMW] = adamw_chunk, [ZT_ADAM] = adam_chunk, [ZT_LION] = lion_chunk};

static void update_chunk(const struct zt_update *a, const struct zt_update_range *r, int64_t at,
                         int64_t n)
{
    struct chunk k;
    k.g = read_row(a->grad, at, n, k.buf);
    k.w = (float *)(a->master.ptr ? a->master.ptr : a->param.ptr) + at;
    k.m = a->m + at;
    k.v = a->v ? a->v + at : NULL;
    k.n = n;
    if (a->sb->apply)
        update_fns[a->optimizer](&k, a->sb, r);
    if (a->master.ptr)
        narrow(a->param.dtype, k.w, n, a->param.ptr, at);
}

int ZT_ISA_FN(update)(const struct zt_update *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    if (!a->master.ptr && a->param.dtype != ZT_F32)
        return zt_err_set(err, ZT_EUNSUPPORTED, "update: %s parameters need an fp32 master",
                          zt_dtype_name(a->param.dtype));
    ZT_ASSERT_CMP(a->v != NULL, ==, zt_optimizer_has_v(a->optimizer));
    ZT_ASSERT(a->master.ptr || !a->fresh);
    if (!a->sb->apply && !a->fresh)
        return 0;
    for (int i = 0; i < a->n_ranges; i++) {
        const struct zt_update_range *r = &a->ranges[i];
        int64_t n = r->end - r->begin, n_chunks = zt_ceil_div_i64(n, CHUNK);
        PARALLEL_FOR(n_threads, n)
        for (int64_t c = 0; c < n_chunks; c++)
            update_chunk(a, r, r->begin + c * CHUNK, ZT_MIN(n - c * CHUNK, (int64_t)CHUNK));
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
    double total = a->accumulate ? a->out->sum_sq : 0;
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
