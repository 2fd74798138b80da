#include "plan/plan.h"

#include "plan/print.h"

/* ---- state table ---- */

void zt_print_state_table(double n_params, int n_ranks, struct zt_str *out)
{
    static const char *const formula[4] = {"16 P", "4 P + 12 P/N", "2 P + 14 P/N", "16 P/N"};
    static const double gib = 1024.0 * 1024.0 * 1024.0;
    zt_str_printf(out, "Model state each rank holds: P = %.0f parameters on N = %d rank%s\n\n",
                  n_params, n_ranks, n_ranks == 1 ? "" : "s");
    zt_str_printf(out, "  %-8s%-16s%12s%12s%22s\n", "stage", "formula", "GB", "GiB", "bytes");
    for (int stage = 0; stage < 4; stage++) {
        const double bytes = zt_state_bytes(n_params, stage, n_ranks);
        zt_str_printf(out, "  %-8d%-16s%12.2f%12.2f%22.0f\n", stage, formula[stage], bytes / 1e9,
                      bytes / gib, bytes);
    }
    zt_str_puts(out,
                "\nRule: 2-byte parameters and gradients; fp32 master, m and v (12 bytes); what "
                "ZeRO shards is\ndivided by N (Rajbhandari et al., ZeRO, SC 2020, section 3). "
                "Tied weights count once. Padding,\nbuffers, activations and workspace come on "
                "top: a recipe with a whole model shows them.\n");
}

/* ---- ledger ---- */

enum { MAX_COLUMNS = 4, LABEL_WIDTH = 28 };

/* All plans of a table, in one unit of bytes. */
struct table {
    struct zt_str *out;
    const struct zt_plan *const *plans;
    int n;
    bool giga; /* GB and GiB, else MB and MiB */
};

static void print_label(struct table *t, const char *label)
{
    zt_str_printf(t->out, "%-*s", LABEL_WIDTH, label);
}

/* A row of byte counts, in powers of 1000 and of 1024. */
static void bytes_row(struct table *t, const char *label, const double bytes[MAX_COLUMNS])
{
    const double kilo = t->giga ? 1e9 : 1e6, kibi = t->giga ? 1 << 30 : 1 << 20;
    print_label(t, label);
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%9.3f%9.3f", bytes[i] / kilo, bytes[i] / kibi);
    zt_str_puts(t->out, "\n");
}

/* A row with one value a plan, already as text. */
static void text_row(struct table *t, const char *label, char text[MAX_COLUMNS][32])
{
    print_label(t, label);
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%18s", text[i]);
    zt_str_puts(t->out, "\n");
}

static void number_row(struct table *t, const char *label, const char *format,
                       const double values[MAX_COLUMNS])
{
    char text[MAX_COLUMNS][32];
    for (int i = 0; i < t->n; i++)
        snprintf(text[i], sizeof text[i], format, values[i]);
    text_row(t, label, text);
}

static double device_peak(const struct zt_ledger *l)
{
    return (double)l->peak[ZT_AR_DEVICE] + (double)l->peak[ZT_AR_SHARED];
}

static void print_heading(struct table *t)
{
    const struct zt_plan *p = t->plans[0];
    const struct zt_plan_config *cfg = &p->cfg;
    zt_str_printf(t->out,
                  "Rank %d of %d, %lld parameters in %s, micro-batch %lld x %lld tokens, %d "
                  "micro-batch%s a step\n",
                  p->rank, p->world, (long long)p->model->n_elems, zt_dtype_name(cfg->dtype),
                  (long long)cfg->micro_batch, (long long)cfg->seq_len, cfg->accum,
                  cfg->accum == 1 ? "" : "es");
    zt_str_printf(t->out, "Recomputation: %s; optimizer on the %s; collectives %s\n\n",
                  cfg->recompute == ZT_RECOMPUTE_BLOCK ? "every block" : "none",
                  cfg->offload_optimizer == ZT_OFFLOAD_CPU ? "host" : "device",
                  cfg->overlap_comm ? "overlap with compute" : "do not overlap");
    print_label(t, "Memory of this rank");
    for (int i = 0; i < t->n; i++) {
        char stage[32];
        snprintf(stage, sizeof stage, "stage %d", t->plans[i]->cfg.stage);
        zt_str_printf(t->out, "%18s", stage);
    }
    zt_str_puts(t->out, "\n");
    print_label(t, "");
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%9s%9s", t->giga ? "GB" : "MB", t->giga ? "GiB" : "MiB");
    zt_str_puts(t->out, "\n");
}

/* The row of the plan at which the device holds most. */
static void print_fullest(struct table *t)
{
    char at[MAX_COLUMNS][32], row[MAX_COLUMNS][32];
    for (int i = 0; i < t->n; i++) {
        const struct zt_ledger *l = &t->plans[i]->ledger;
        const struct zt_op *op = &t->plans[i]->programs[l->fullest_program].ops[l->fullest_op];
        snprintf(at[i], sizeof at[i], "%s %d", zt_program_name(l->fullest_program), l->fullest_op);
        snprintf(row[i], sizeof row[i], "%.9s %.7s", zt_op_kind_name(op->kind),
                 zt_op_subject(t->plans[i], op));
    }
    text_row(t, "fullest at row", at);
    text_row(t, "", row);
    zt_str_puts(t->out, "\n");
}

static void print_device(struct table *t)
{
    static const enum zt_cat order[] = {
        ZT_CAT_PARAM, ZT_CAT_GRAD,   ZT_CAT_GRAD_SHARD, ZT_CAT_MASTER, ZT_CAT_OPT_M,
        ZT_CAT_OPT_V, ZT_CAT_GATHER, ZT_CAT_REDUCE,     ZT_CAT_ACT,    ZT_CAT_WORKSPACE,
    };
    double bytes[MAX_COLUMNS];
    for (size_t c = 0; c < ZT_ARRAY_LEN(order); c++) {
        for (int i = 0; i < t->n; i++)
            bytes[i] = (double)t->plans[i]->ledger.device[order[c]];
        bytes_row(t, zt_cat_name(order[c]), bytes);
    }
    for (int i = 0; i < t->n; i++) {
        const struct zt_ledger *l = &t->plans[i]->ledger;
        bytes[i] = (double)(l->device[ZT_CAT_BATCH] + l->device[ZT_CAT_CONTROL] +
                            l->device[ZT_CAT_STAGING]);
    }
    bytes_row(t, "batch and control", bytes);
    for (int i = 0; i < t->n; i++)
        bytes[i] = (double)t->plans[i]->ledger.padding;
    bytes_row(t, "padding", bytes);
    for (int i = 0; i < t->n; i++)
        bytes[i] = (double)t->plans[i]->ledger.fragmentation;
    bytes_row(t, "unused at that moment", bytes);
    for (int i = 0; i < t->n; i++)
        bytes[i] = device_peak(&t->plans[i]->ledger);
    bytes_row(t, "= device peak", bytes);
    for (int i = 0; i < t->n; i++)
        bytes[i] = (double)t->plans[i]->ledger.peak[ZT_AR_SHARED];
    bytes_row(t, "  of it read by peers", bytes);
    for (int i = 0; i < t->n; i++)
        bytes[i] = (double)t->plans[i]->ledger.peak[ZT_AR_HOST];
    bytes_row(t, "host", bytes);
    print_fullest(t);
}

/* The closed formula, and what the peak has beyond it. */
static void print_formula(struct table *t)
{
    static const enum zt_cat state[] = {ZT_CAT_PARAM,  ZT_CAT_GRAD,  ZT_CAT_GRAD_SHARD,
                                        ZT_CAT_MASTER, ZT_CAT_OPT_M, ZT_CAT_OPT_V};
    double formula[MAX_COLUMNS], states[MAX_COLUMNS], buffers[MAX_COLUMNS], acts[MAX_COLUMNS],
        rest[MAX_COLUMNS], over[MAX_COLUMNS];
    for (int i = 0; i < t->n; i++) {
        const struct zt_ledger *l = &t->plans[i]->ledger;
        formula[i] = l->formula_bytes;
        over[i] = device_peak(l) - formula[i];
        states[i] = -formula[i];
        for (size_t c = 0; c < ZT_ARRAY_LEN(state); c++)
            states[i] += (double)l->device[state[c]];
        buffers[i] = (double)l->device[ZT_CAT_GATHER] + (double)l->device[ZT_CAT_REDUCE];
        acts[i] = (double)l->device[ZT_CAT_ACT] + (double)l->device[ZT_CAT_WORKSPACE];
        rest[i] = over[i] - states[i] - buffers[i] - acts[i];
    }
    const bool wide = t->plans[0]->cfg.dtype == ZT_F32;
    bytes_row(t, "formula (state alone)", formula);
    bytes_row(t, "peak minus formula", over);
    bytes_row(t, "  state held then", states);
    bytes_row(t, "  gather and reduce buffers", buffers);
    bytes_row(t, "  activations, workspace", acts);
    bytes_row(t, "  padding, batch, unused", rest);
    zt_str_puts(t->out, "\nFormula, stages 0 to 3, P parameters on N ranks: ");
    zt_str_puts(t->out, wide ? "16 P, 8 P + 8 P/N, 4 P + 12 P/N, 16 P/N\n(4-byte parameters and "
                               "gradients, fp32 m and v).\n"
                             : "16 P, 4 P + 12 P/N, 2 P + 14 P/N, 16 P/N\n(2-byte parameters and "
                               "gradients; fp32 master, m and v).\n");
    zt_str_puts(t->out,
                "State held then: gradients not yet made or already reduced, and state on the "
                "host, are missing\nin it; gradients that add up in fp32 are more than the "
                "formula has.\n\n");
}

static void print_traffic(struct table *t)
{
    static const enum zt_op_kind kinds[] = {ZT_OP_GATHER, ZT_OP_REDUCE, ZT_OP_ALLGATHER};
    double bytes[MAX_COLUMNS], total[MAX_COLUMNS] = {0}, shown[MAX_COLUMNS] = {0};
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < ZT_N_OP_KINDS; k++)
            total[i] += t->plans[i]->ledger.sent[k];
    print_label(t, "Sent by this rank in a step");
    zt_str_puts(t->out, "\n");
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        for (int i = 0; i < t->n; i++) {
            bytes[i] = t->plans[i]->ledger.sent[kinds[k]];
            shown[i] += bytes[i];
        }
        bytes_row(t, zt_op_kind_name(kinds[k]), bytes);
    }
    for (int i = 0; i < t->n; i++)
        bytes[i] = total[i] - shown[i];
    bytes_row(t, "COUNT, NORM, VOTE", bytes);
    bytes_row(t, "= all", total);
    zt_str_puts(t->out, "\n");
}

static void print_time(struct table *t)
{
    double model[MAX_COLUMNS], all[MAX_COLUMNS], step[MAX_COLUMNS], unlimited[MAX_COLUMNS],
        busiest[MAX_COLUMNS], critical[MAX_COLUMNS], backlog[MAX_COLUMNS], ops[MAX_COLUMNS],
        waits[MAX_COLUMNS];
    for (int i = 0; i < t->n; i++) {
        const struct zt_program *g = &t->plans[i]->programs[ZT_PROG_TRAIN];
        model[i] = t->plans[i]->ledger.model_flops / 1e12;
        all[i] = t->plans[i]->ledger.flops / 1e12;
        step[i] = g->time_s * 1e3;
        unlimited[i] = g->time_unlimited_s * 1e3;
        busiest[i] = g->busiest_s * 1e3;
        critical[i] = g->critical_path_s * 1e3;
        backlog[i] = g->backlog;
        ops[i] = g->n_ops;
        waits[i] = g->n_waits;
    }
    zt_str_printf(t->out, "Work and simulated time of a step (profile \"%s\"%s)\n",
                  t->plans[0]->cfg.profile->name,
                  t->plans[0]->cfg.profile_known ? "" : ", not measured here");
    number_row(t, "model TFLOP", "%.4g", model);
    number_row(t, "TFLOP carried out", "%.4g", all);
    number_row(t, "step, ms", "%.4g", step);
    number_row(t, "  with unlimited memory", "%.4g", unlimited);
    number_row(t, "  busiest stream", "%.4g", busiest);
    number_row(t, "  critical path", "%.4g", critical);
    number_row(t, "gradient backlog", "%.0f", backlog);
    number_row(t, "rows", "%.0f", ops);
    number_row(t, "waits", "%.0f", waits);
}

void zt_plan_print_ledger(const struct zt_plan *const *stages, int n, struct zt_str *out)
{
    ZT_ASSERT(n >= 1 && n <= MAX_COLUMNS);
    struct table t = {.out = out, .plans = stages, .n = n};
    for (int i = 0; i < n; i++)
        t.giga |= device_peak(&stages[i]->ledger) >= 1e9;
    print_heading(&t);
    print_device(&t);
    print_formula(&t);
    print_traffic(&t);
    print_time(&t);
}
