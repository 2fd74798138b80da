#include "train/run.h"
#include "train/times.h"

/* Ops that have something in common. */
struct group {
    int n;
    double ms, cost;
    enum zt_cost_kind cost_kind;
};

static void add_op(struct group *g, const struct zt_op *op, const struct zt_op_time *t)
{
    g->n++;
    g->ms += (double)(t->end_ns - t->begin_ns) * 1e-6;
    g->cost += op->cost;
    if (op->cost_kind != ZT_COST_NONE)
        g->cost_kind = op->cost_kind;
}

/* Billions a second. */
static double rate(const struct group *g)
{
    return g->ms > 0 ? g->cost / g->ms * 1e-6 : 0;
}

static double step_ms(const struct zt_profile_of *of)
{
    const struct zt_program *prog = &of->plan->programs[ZT_PROG_TRAIN];
    int64_t first = INT64_MAX, last = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        first = ZT_MIN(first, of->times[i].begin_ns);
        last = ZT_MAX(last, of->times[i].end_ns);
    }
    return (double)(last - first) * 1e-6;
}

static void print_head(const struct zt_profile_of *of, double ms, struct zt_str *out)
{
    const struct zt_plan *p = of->plan;
    double flops = p->ledger.flops, gflops = ms > 0 ? flops / ms * 1e-6 : 0;
    zt_str_printf(
        out, "profile of step %lld on rank %d of %d: %d micro-batch%s of %lld x %lld tokens\n",
        (long long)of->step, p->rank, p->world, p->cfg.accum, p->cfg.accum == 1 ? "" : "es",
        (long long)p->cfg.micro_batch, (long long)p->cfg.seq_len);
    zt_str_printf(out, "  parameters  %lld, ZeRO stage %d\n", (long long)p->model->n_elems,
                  p->cfg.stage);
    zt_str_printf(out, "  FLOPs       %.4g G carried out, model FLOPs %.4g G\n", flops * 1e-9,
                  p->ledger.model_flops * 1e-9);
    zt_str_printf(out, "  time        %.3f ms, from the first op's begin to the last one's end\n",
                  ms);
    zt_str_printf(out, "  rate        %.2f GFLOP/s", gflops);
    if (of->peak_flops > 0)
        zt_str_printf(out, ", %.1f %% of %.2f (measured %s matmul rate)",
                      gflops / of->peak_flops * 1e11, of->peak_flops * 1e-9,
                      zt_dtype_name(of->peak_dtype));
    zt_str_puts(out, "\n");
}

static void print_kinds(const struct zt_profile_of *of, double ms, struct zt_str *out)
{
    const struct zt_program *prog = &of->plan->programs[ZT_PROG_TRAIN];
    struct group kinds[ZT_N_OP_KINDS] = {0};
    for (int i = 0; i < prog->n_ops; i++)
        add_op(&kinds[prog->ops[i].kind], &prog->ops[i], &of->times[i]);
    zt_str_printf(out, "\n  %-12s%6s%12s%8s%12s%12s%10s%10s\n", "op", "count", "ms", "step",
                  "GFLOP", "GFLOP/s", "MB", "GB/s");
    for (int k = 0; k < ZT_N_OP_KINDS; k++) {
        const struct group *g = &kinds[k];
        if (g->n == 0)
            continue;
        zt_str_printf(out, "  %-12s%6d%12.3f%6.1f %%", zt_op_kind_name((enum zt_op_kind)k), g->n,
                      g->ms, ms > 0 ? g->ms / ms * 100 : 0);
        if (g->cost_kind == ZT_COST_FLOP)
            zt_str_printf(out, "%12.4f%12.2f", g->cost * 1e-9, rate(g));
        else if (g->cost_kind != ZT_COST_NONE)
            zt_str_printf(out, "%24s%10.2f%10.2f", "", g->cost * 1e-6, rate(g));
        zt_str_puts(out, "\n");
    }
    zt_str_puts(out,
                "  Ops of different streams run at the same time. A collective's time includes "
                "waiting for the\n  ranks that come to it later; its MB are those of the whole "
                "unit.\n");
}

/* A tied parameter counts where it stands first. */
static int64_t new_elems(const struct zt_model *m, int segment)
{
    int64_t n = 0;
    for (int i = 0; i < m->segments[segment].n_params; i++) {
        int param = m->segments[segment].params[i];
        bool seen = false;
        for (int s = 0; s < segment && !seen; s++)
            for (int j = 0; j < m->segments[s].n_params; j++)
                seen |= m->segments[s].params[j] == param;
        n += seen ? 0 : m->params[param].n_elems;
    }
    return n;
}

static void print_segments(const struct zt_profile_of *of, struct zt_str *out)
{
    static const enum zt_op_kind kinds[] = {ZT_OP_FORWARD, ZT_OP_RECOMPUTE, ZT_OP_BACKWARD};
    const struct zt_program *prog = &of->plan->programs[ZT_PROG_TRAIN];
    const struct zt_model *m = of->plan->model;
    zt_str_printf(out, "\n  %-12s%14s  %-10s%12s%12s%12s\n", "segment", "parameters", "op", "ms",
                  "GFLOP", "GFLOP/s");
    for (int s = 0; s < m->n_segments; s++) {
        bool first = true;
        for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
            struct group g = {0};
            for (int i = 0; i < prog->n_ops; i++)
                if (prog->ops[i].kind == kinds[k] && prog->ops[i].segment == s)
                    add_op(&g, &prog->ops[i], &of->times[i]);
            if (g.n == 0)
                continue;
            if (first)
                zt_str_printf(out, "  %-12s%14lld", m->segments[s].name,
                              (long long)new_elems(m, s));
            else
                zt_str_printf(out, "  %26s", "");
            zt_str_printf(out, "  %-10s%12.3f%12.4f%12.2f\n", zt_op_kind_name(kinds[k]), g.ms,
                          g.cost * 1e-9, rate(&g));
            first = false;
        }
    }
}

void zt_times_profile(const struct zt_profile_of *of, struct zt_str *out)
{
    double ms = step_ms(of);
    print_head(of, ms, out);
    print_kinds(of, ms, out);
    if (of->detailed)
        print_segments(of, out);
}
