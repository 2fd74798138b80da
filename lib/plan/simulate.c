#include "plan/plan.h"

#include <math.h>

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

/* One run of a list under way. */
struct list_run {
    const struct zt_program *prog;
    const struct zt_wait_list *waits;
    const struct zt_fold *fold;
    const double *duration_s, *last_run; /* when ops of the run before ended; NULL: the first run */
    double free_s[ZT_N_STREAMS];
    double *start_s, *finish_s; /* (n_ops) of this run */
    double *before_s; /* folded rows: when they ended the time before; NULL: their first time */
};

/* When what an op waits for has ended. */
static double ended(const struct list_run *r, struct zt_wait w)
{
    const int in_fold = w.op - r->fold->before;
    if (w.delta)
        return r->last_run ? r->last_run[w.op] : 0;
    return r->before_s && in_fold >= 0 && w.op < r->fold->begin ? r->before_s[in_fold]
                                                                : r->finish_s[w.op];
}

/* An op starts when its stream is free and its waits have ended; both lie earlier in the list. */
static void run_ops(struct list_run *r, int from, int to)
{
    for (int i = from; i < to; i++) {
        enum zt_stream_id s = r->prog->ops[i].stream;
        int n;
        const struct zt_wait *w = zt_waits_of(r->prog, r->waits, i, &n);
        double t = r->free_s[s];
        for (int j = 0; j < n; j++)
            t = ZT_MAX(t, ended(r, w[j]));
        r->start_s[i] = t;
        r->finish_s[i] = r->free_s[s] = t + r->duration_s[i];
    }
}

/* By how much later than the time before all folded rows ended; 0: not all by the same. */
static double steady_shift(const struct list_run *r)
{
    static const double SAME = 1e-9;
    const struct zt_fold *f = r->fold;
    const double shift = r->finish_s[f->begin] - r->before_s[0];
    for (int i = f->begin; i < f->end; i++)
        if (fabs(r->finish_s[i] - r->before_s[i - f->begin] - shift) > SAME * shift)
            return 0;
    return shift;
}

static void shift_by(struct list_run *r, double t)
{
    bool used[ZT_N_STREAMS] = {false};
    for (int i = r->fold->begin; i < r->fold->end; i++) {
        r->start_s[i] += t;
        r->finish_s[i] += t;
        r->before_s[i - r->fold->begin] += t;
        used[r->prog->ops[i].stream] = true;
    }
    for (int s = 0; s < ZT_N_STREAMS; s++)
        r->free_s[s] += used[s] ? t : 0;
}

/* The folded rows again, as often as they stand for; as soon as they only move on, all at once. */
static void run_repeats(struct list_run *r, double *before_s)
{
    const struct zt_fold *f = r->fold;
    r->before_s = before_s;
    for (int left = f->n_repeats; left > 0; left--) {
        memcpy(before_s, r->finish_s + f->begin, (size_t)(f->end - f->begin) * sizeof *before_s);
        run_ops(r, f->begin, f->end);
        const double shift = steady_shift(r);
        if (shift > 0) {
            shift_by(r, shift * (left - 1));
            return;
        }
    }
}

void zt_run_list(const struct zt_program *prog, const struct zt_fold *fold,
                 const struct zt_wait_list *waits, const double *duration_s, int n_runs,
                 double *start_s, double *finish_s)
{
    struct list_run r = {.prog = prog, .fold = fold, .waits = waits, .duration_s = duration_s};
    double *before_s = zt_xcalloc((size_t)(fold->end - fold->begin) + 1, sizeof *before_s);
    for (int run = 0; run < n_runs; run++) {
        const size_t base = (size_t)run * (size_t)prog->n_ops;
        r.last_run = run ? finish_s + base - prog->n_ops : NULL;
        r.start_s = start_s + base;
        r.finish_s = finish_s + base;
        r.before_s = NULL;
        run_ops(&r, 0, fold->end);
        if (fold->n_repeats)
            run_repeats(&r, before_s);
        run_ops(&r, fold->end, prog->n_ops);
    }
    free(before_s);
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
    zt_run_list(prog, k == ZT_PROG_TRAIN ? &p->fold : &ZT_NO_FOLD, waits, dur, n_runs, start,
                finish);
    for (int i = 0; i < n; i++)
        out->busy_s[prog->ops[i].stream] += dur[i] * zt_fold_times(p, k, i);

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
