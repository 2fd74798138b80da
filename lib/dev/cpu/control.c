#include "dev/cpu/kernels.h"

#include <math.h>

int zt_cpu_count_targets(const struct zt_count_targets *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t tokens = 0;
    for (int64_t i = 0; i < a->n; i++)
        tokens += a->targets[i] != ZT_IGNORE_TARGET;
    a->out->tokens = a->accumulate ? a->out->tokens + tokens : tokens;
    return 0;
}

int zt_cpu_count_finish(const struct zt_count_finish *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t tokens = a->count->tokens;
    a->count->inv_tokens = tokens ? (float)(1.0 / (double)tokens) : 0.0f;
    return 0;
}

/* Backward goes from the last unit to the first. */
static int first_bad_unit(const struct zt_norm_finish *a)
{
    const double *records = a->records;
    size_t stride = a->record_bytes / sizeof(double);
    for (int u = a->n_units - 1; u >= 0; u--)
        for (int r = 0; r < a->n_ranks; r++)
            if (!isfinite(records[(size_t)r * stride + (size_t)u]))
                return u;
    return -1;
}

static int first_bad_rank(const struct zt_norm_finish *a)
{
    const double *records = a->records;
    size_t stride = a->record_bytes / sizeof(double);
    for (int r = 0; r < a->n_ranks; r++)
        for (int i = 0; i < a->n_losses; i++)
            if (!isfinite(records[(size_t)r * stride + (size_t)a->n_units + (size_t)i]))
                return r;
    return -1;
}

int zt_cpu_norm_finish(const struct zt_norm_finish *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    struct zt_step_block *sb = a->sb;
    const double *records = a->records; /* partials are one double each */
    size_t stride = a->record_bytes / sizeof(double);
    double sum_sq = 0, loss = 0;
    for (int u = 0; u < a->n_units; u++)
        for (int r = 0; r < a->n_ranks; r++)
            sum_sq += records[(size_t)r * stride + (size_t)u];
    for (int r = 0; r < a->n_ranks; r++)
        for (int i = 0; i < a->n_losses; i++)
            loss += records[(size_t)r * stride + (size_t)a->n_units + (size_t)i];

    int64_t tokens = a->count->tokens;
    double norm = sqrt(sum_sq) / (double)sb->loss_scale, clip = 1;
    if (sb->max_norm > 0)
        clip = ZT_MIN(1.0, (double)sb->max_norm / (norm + 1e-6));
    bool finite = isfinite(norm);
    sb->loss = tokens ? loss / (double)tokens : 0;
    sb->tokens = tokens;
    sb->grad_norm = norm;
    sb->grad_norm_clipped = finite ? norm * clip : norm;
    sb->bad_unit = first_bad_unit(a);
    sb->bad_rank = first_bad_rank(a);
    sb->grad_scale = finite ? (float)(clip / (double)sb->loss_scale) : 0.0f;
    return 0;
}

int zt_cpu_vote_begin(const struct zt_vote_begin *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    *a->vote = (struct zt_vote){
        .nonfinite = !isfinite(a->sb->grad_norm) || !isfinite(a->sb->loss),
        .stop = a->request->stop,
        .save = a->request->save,
    };
    return 0;
}

int zt_cpu_vote_finish(const struct zt_vote_finish *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    a->sb->overflow = a->vote->nonfinite;
    a->sb->apply = !a->vote->nonfinite && a->sb->tokens > 0;
    return 0;
}

int zt_cpu_step_advance(const struct zt_step_advance *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    zt_step_next(a->sb);
    return 0;
}
