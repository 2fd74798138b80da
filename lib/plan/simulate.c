#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

enum { N_RUNS = 5, FIRST_STEADY = 2 }; /* steady state: the last three runs */

static double duration(const struct zt_plan *p, const struct zt_op *op,
                       const struct zt_profile *prof)
{
    switch (op->cost_kind) {
    case ZT_COST_NONE:
        return 0;
    case ZT_COST_FLOP:
        return op->cost / prof->flops + prof->launch;
    case ZT_COST_NET: { /* a ring sends (n-1)/n of the bytes over every link */
        int n = zt_group_size(&p->cfg.mesh, op->group);
        return op->cost * (n - 1) / n / prof->net + prof->latency;
    }
    case ZT_COST_PCIE:
        return op->cost / prof->pcie + prof->latency;
    case ZT_COST_HOST:
        return op->cost / prof->host + prof->launch;
    case ZT_COST_HBM:
        return op->cost / prof->hbm + prof->launch;
    case ZT_COST_DISK:
        return op->cost / prof->disk + prof->latency;
    case ZT_N_COSTS:
        break;
    }
    ZT_ASSERT_CMP(op->cost_kind, <, ZT_N_COSTS);
    return 0;
}

void zt_durations(const struct zt_plan *p, enum zt_program_kind k, const struct zt_profile *profile,
                  double slack, double *out)
{
    const struct zt_program *prog = &p->programs[k];
    for (int i = 0; i < prog->n_ops; i++) {
        out[i] = duration(p, &prog->ops[i], profile);
        if (prog->ops[i].stream != ZT_ST_COMPUTE)
            out[i] *= slack;
    }
}

/* An op starts when its stream is free and its waits have ended; both lie earlier in the list. */
void zt_run_list(const struct zt_program *prog, const struct zt_wait_list *waits,
                 const double *duration_s, int n_runs, double *start_s, double *finish_s)
{
    double free_s[ZT_N_STREAMS] = {0};
    for (int run = 0; run < n_runs; run++) {
        size_t base = (size_t)run * prog->n_ops;
        for (int i = 0; i < prog->n_ops; i++) {
            enum zt_stream_id s = prog->ops[i].stream;
            int n;
            const struct zt_wait *w = zt_waits_of(prog, waits, i, &n);
            double t = free_s[s];
            for (int j = 0; j < n; j++)
                if (run >= w[j].delta)
                    t = ZT_MAX(t, finish_s[base - (size_t)w[j].delta * prog->n_ops + w[j].op]);
            start_s[base + i] = t;
            finish_s[base + i] = free_s[s] = t + duration_s[i];
        }
    }
}

static double latest(const double *t, int n)
{
    double m = 0;
    for (int i = 0; i < n; i++)
        m = ZT_MAX(m, t[i]);
    return m;
}

void zt_simulate(const struct zt_plan *p, enum zt_program_kind k, const struct zt_profile *profile,
                 const struct zt_wait_list *waits, struct zt_sim *out)
{
    const struct zt_program *prog = &p->programs[k];
    int n = prog->n_ops, n_runs = prog->repeats ? N_RUNS : 1;
    double *dur = zt_xcalloc(n, sizeof *dur);
    double *start = zt_xcalloc((size_t)n * n_runs, sizeof *start);
    double *finish = zt_xcalloc((size_t)n * n_runs, sizeof *finish);
    memset(out, 0, sizeof *out);
    zt_durations(p, k, profile, 1, dur);
    zt_run_list(prog, waits, dur, n_runs, start, finish);
    for (int i = 0; i < n; i++)
        out->busy_s[prog->ops[i].stream] += dur[i];

    /* Alone from idle streams, an op starts as soon as its longest chain allows. */
    out->critical_path_s = latest(finish, n);
    out->step_s = out->critical_path_s;
    if (n_runs > 1) /* the end of a run: the latest op of all runs so far */
        out->step_s = (latest(finish, n * n_runs) - latest(finish, n * FIRST_STEADY)) /
                      (n_runs - FIRST_STEADY);

    size_t last = (size_t)n * (n_runs - 1);
    double t0 = n ? start[last] : 0;
    for (int i = 0; i < n; i++)
        t0 = ZT_MIN(t0, start[last + i]);
    out->start_s = zt_xcalloc(n, sizeof *out->start_s);
    out->finish_s = zt_xcalloc(n, sizeof *out->finish_s);
    for (int i = 0; i < n; i++) {
        out->start_s[i] = start[last + i] - t0;
        out->finish_s[i] = finish[last + i] - t0;
    }
    free(dur);
    free(start);
    free(finish);
}

void zt_sim_release(struct zt_sim *s)
{
    free(s->start_s);
    free(s->finish_s);
    memset(s, 0, sizeof *s);
}
