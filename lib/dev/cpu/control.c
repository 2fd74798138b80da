#include "dev/control.h"

#include "dev/cpu/kernels.h"

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
    zt_control_count_finish(a);
    return 0;
}

int zt_cpu_norm_finish(const struct zt_norm_finish *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    zt_control_norm_finish(a, a->records);
    return 0;
}

int zt_cpu_vote_begin(const struct zt_vote_begin *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    zt_control_vote_begin(a);
    return 0;
}

int zt_cpu_vote_finish(const struct zt_vote_finish *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    zt_control_vote_finish(a);
    return 0;
}

int zt_cpu_step_advance(const struct zt_step_advance *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    zt_step_next(a->sb);
    return 0;
}
