#include "plan/print.h"

#include "plan/passes.h"

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

enum { MAX_COLUMNS = 4, LABEL_WIDTH = 28, NUMBER_WIDTH = 9 };

/* Plans side by side, in one unit of bytes. */
struct table {
    struct zt_str *out;
    const struct zt_plan *const *plans;
    int n;
    bool giga; /* GB and GiB, else MB and MiB */
};

struct row {
    const char *label;
    double (*value)(const struct zt_plan *p);
};

static void print_label(struct table *t, const char *label)
{
    zt_str_printf(t->out, "%-*s", LABEL_WIDTH, label);
}

/* With as many of 3 decimals as leave a space before it. */
static void print_number(struct table *t, double x)
{
    char number[32];
    int decimals = 3;
    while (snprintf(number, sizeof number, "%.*f", decimals, x) >= NUMBER_WIDTH && decimals > 0)
        decimals--;
    zt_str_printf(t->out, "%*s", NUMBER_WIDTH, number);
}

/* Bytes in powers of 1000 and of 1024. */
static void print_bytes(struct table *t, double bytes)
{
    const double kilo = t->giga ? 1e9 : 1e6, kibi = t->giga ? 1 << 30 : 1 << 20;
    print_number(t, bytes / kilo);
    print_number(t, bytes / kibi);
}

static void bytes_rows(struct table *t, const struct row *rows, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        print_label(t, rows[r].label);
        for (int i = 0; i < t->n; i++)
            print_bytes(t, rows[r].value(t->plans[i]));
        zt_str_puts(t->out, "\n");
    }
}

static double device_peak(const struct zt_plan *p)
{
    return (double)p->ledger.peak[ZT_AR_DEVICE] + (double)p->ledger.peak[ZT_AR_SHARED];
}

static void print_recomputation(const struct zt_plan_config *cfg, struct zt_str *out)
{
    static const char *const kinds[] = {[ZT_RECOMPUTE_NONE] = "none",
                                        [ZT_RECOMPUTE_BLOCK] = "every block",
                                        [ZT_RECOMPUTE_SELECTIVE] = "every block's projections"};
    zt_str_puts(out, "Recomputation: ");
    if (cfg->recompute == ZT_RECOMPUTE_EVERY)
        zt_str_printf(out, "every %d blocks together", cfg->recompute_every);
    else
        zt_str_puts(out, kinds[cfg->recompute]);
    if (cfg->cpu_checkpointing)
        zt_str_puts(out, ", from inputs on the host");
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
    static const char *const homes[] = {
        [ZT_OFFLOAD_NONE] = "device", [ZT_OFFLOAD_CPU] = "host", [ZT_OFFLOAD_NVME] = "NVMe drive"};
    const struct zt_plan_config *last = &t->plans[t->n - 1]->cfg;
    bool not_all = last->offload_optimizer != cfg->offload_optimizer;
    bool params = last->offload_param != ZT_OFFLOAD_NONE;
    print_recomputation(cfg, t->out);
    zt_str_printf(t->out, "; optimizer on the %s%s%s%s; collectives %s\n\n",
                  homes[last->offload_optimizer], not_all ? " (at stage 0 on the device)" : "",
                  params ? "; parameters of stage 3 on the " : "",
                  params ? homes[last->offload_param] : "",
                  cfg->overlap_comm ? "overlap with compute" : "do not overlap");
    print_label(t, "Memory of this rank");
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%17s%d", "stage ", t->plans[i]->cfg.stage);
    zt_str_puts(t->out, "\n");
    print_label(t, "");
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%9s%9s", t->giga ? "GB" : "MB", t->giga ? "GiB" : "MiB");
    zt_str_puts(t->out, "\n");
}

static const struct zt_op *fullest_op(const struct zt_plan *p)
{
    return &p->programs[p->ledger.fullest_program].ops[p->ledger.fullest_op];
}

/* The row of the plan at which the device holds most. */
static void print_fullest(struct table *t)
{
    print_label(t, "fullest at row");
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%11s %6d", zt_program_name(t->plans[i]->ledger.fullest_program),
                      zt_plan_row(t->plans[i], t->plans[i]->ledger.fullest_program,
                                  t->plans[i]->ledger.fullest_op));
    zt_str_puts(t->out, "\n");
    print_label(t, "");
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, "%18s", zt_op_kind_name(fullest_op(t->plans[i])->kind));
    zt_str_puts(t->out, "\n");
    print_label(t, "");
    for (int i = 0; i < t->n; i++)
        zt_str_printf(t->out, " %17.17s", zt_op_subject(t->plans[i], fullest_op(t->plans[i])));
    zt_str_puts(t->out, "\n\n");
}

static double batch_and_control(const struct zt_plan *p)
{
    const size_t *d = p->ledger.device;
    return (double)(d[ZT_CAT_BATCH] + d[ZT_CAT_CONTROL] + d[ZT_CAT_STAGING]);
}

static double padding(const struct zt_plan *p)
{
    return (double)p->ledger.device[ZT_CAT_PADDING] + (double)p->ledger.device[ZT_CAT_ALIGNMENT];
}

static double unused(const struct zt_plan *p)
{
    return (double)p->ledger.device[ZT_CAT_UNUSED];
}

static double shared_peak(const struct zt_plan *p)
{
    return (double)p->ledger.peak[ZT_AR_SHARED];
}

static double host_peak(const struct zt_plan *p)
{
    return (double)p->ledger.peak[ZT_AR_HOST];
}

/* With offload or checkpoints: what the host holds of the state and activations, and copies on their way. */
static void print_host(struct table *t)
{
    for (int c = 0; c < ZT_N_CATS; c++) {
        bool any = false;
        for (int i = 0; i < t->n; i++) {
            const struct zt_plan_config *cfg = &t->plans[i]->cfg;
            any |= (cfg->offload_optimizer != ZT_OFFLOAD_NONE ||
                    cfg->offload_param != ZT_OFFLOAD_NONE || cfg->cpu_checkpointing ||
                    cfg->snapshot) &&
                   t->plans[i]->ledger.host[c] > 0;
        }
        if (!any)
            continue;
        char label[40];
        snprintf(label, sizeof label, "  %s", zt_cat_name((enum zt_cat)c));
        print_label(t, label);
        for (int i = 0; i < t->n; i++)
            print_bytes(t, (double)t->plans[i]->ledger.host[c]);
        zt_str_puts(t->out, "\n");
    }
}

/* What no plan can know; a run measures it. */
static void print_outside(struct table *t)
{
    if (t->plans[0]->cfg.dev_kind == ZT_DEV_CPU)
        zt_str_printf(t->out,
                      "Outside the arenas a worker takes about %d MB of the host: program, "
                      "libraries, heap, stacks.\n",
                      ZT_OUTSIDE_BYTES / 1000000);
    else
        zt_str_puts(t->out, "Outside the arenas come CUDA's context and libraries, and on the host "
                            "what collectives\nstage in where they are not NCCL's: a run shows how "
                            "much.\n");
}

static double disk_peak(const struct zt_plan *p)
{
    return (double)p->ledger.peak[ZT_AR_DISK];
}

static void print_disk(struct table *t)
{
    static const struct row row = {"nvme", disk_peak};
    bool any = false;
    for (int i = 0; i < t->n; i++)
        any |= disk_peak(t->plans[i]) > 0;
    if (any)
        bytes_rows(t, &row, 1);
}

static void print_device(struct table *t)
{
    static const struct row rows[] = {
        {"batch and control", batch_and_control}, {"padding, alignment", padding},
        {"unused at that moment", unused},        {"= device peak", device_peak},
        {"  of it read by peers", shared_peak},   {"host", host_peak},
    };
    for (int c = ZT_CAT_PARAM; c <= ZT_CAT_WORKSPACE; c++) {
        print_label(t, zt_cat_name((enum zt_cat)c));
        for (int i = 0; i < t->n; i++)
            print_bytes(t, (double)t->plans[i]->ledger.device[c]);
        zt_str_puts(t->out, "\n");
    }
    bytes_rows(t, rows, ZT_ARRAY_LEN(rows));
    print_host(t);
    print_disk(t);
    print_outside(t);
    print_fullest(t);
}

static double formula(const struct zt_plan *p)
{
    return p->ledger.formula_bytes;
}

static double beyond_formula(const struct zt_plan *p)
{
    return device_peak(p) - p->ledger.formula_bytes;
}

static double state_beyond(const struct zt_plan *p)
{
    double state = 0;
    for (int c = ZT_CAT_PARAM; c <= ZT_CAT_OPT_V; c++)
        state += (double)p->ledger.device[c];
    return state - p->ledger.formula_bytes;
}

static double comm_buffers(const struct zt_plan *p)
{
    return (double)p->ledger.device[ZT_CAT_GATHER] + (double)p->ledger.device[ZT_CAT_REDUCE];
}

static double compute_buffers(const struct zt_plan *p)
{
    return (double)p->ledger.device[ZT_CAT_ACT] + (double)p->ledger.device[ZT_CAT_WORKSPACE];
}

static double rest(const struct zt_plan *p)
{
    return batch_and_control(p) + padding(p) + unused(p);
}

/* The closed formula, and what the peak has beyond it. */
static void print_formula(struct table *t)
{
    static const struct row rows[] = {
        {"formula (state alone)", formula},
        {"peak minus formula", beyond_formula},
        {"  state held then", state_beyond},
        {"  gather and reduce buffers", comm_buffers},
        {"  activations, workspace", compute_buffers},
        {"  padding, batch, unused", rest},
    };
    bytes_rows(t, rows, ZT_ARRAY_LEN(rows));
    const struct zt_plan_config *cfg = &t->plans[0]->cfg;
    static const char *const held[2][2] = {{", fp32 m", ", fp32 m and v"},
                                           {"; fp32 master and m", "; fp32 master, m and v"}};
    const bool has_v = zt_optimizer_has_v(cfg->optimizer);
    const int e = (int)zt_dtype_bytes(cfg->dtype), state = (has_v ? 8 : 4) + (e == 2 ? 4 : 0);
    zt_str_printf(
        t->out,
        "\nFormula, stages 0 to 3, P parameters on N ranks: %d P, %d P + %d P/N, %d P + %d "
        "P/N, %d P/N\n(%d-byte parameters and gradients%s).\n",
        2 * e + state, 2 * e, state, e, e + state, 2 * e + state, e, held[e == 2][has_v]);
    zt_str_puts(t->out, "State held then: gradients not yet made or already reduced, and state on "
                        "the host, are missing\nin it; gradients that add up in fp32 are more than "
                        "the formula has.\n\n");
}

static double sent_gather(const struct zt_plan *p)
{
    return p->ledger.sent[ZT_OP_GATHER];
}

static double sent_reduce(const struct zt_plan *p)
{
    return p->ledger.sent[ZT_OP_REDUCE];
}

static double sent_allgather(const struct zt_plan *p)
{
    return p->ledger.sent[ZT_OP_ALLGATHER];
}

static double sent_control(const struct zt_plan *p)
{
    const double *s = p->ledger.sent;
    return s[ZT_OP_COUNT] + s[ZT_OP_NORM] + s[ZT_OP_VOTE];
}

static double sent_all(const struct zt_plan *p)
{
    double sum = 0;
    for (int k = 0; k < ZT_N_OP_KINDS; k++)
        sum += p->ledger.sent[k];
    return sum;
}

static double model_tflop(const struct zt_plan *p)
{
    return p->ledger.model_flops / 1e12;
}

static double all_tflop(const struct zt_plan *p)
{
    return p->ledger.flops / 1e12;
}

/* Of recomputation, in percent of all others. */
static double again_percent(const struct zt_plan *p)
{
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    double again = 0;
    for (int i = 0; i < train->n_ops; i++)
        if (train->ops[i].kind == ZT_OP_RECOMPUTE)
            again += train->ops[i].cost * zt_fold_times(p, ZT_PROG_TRAIN, i);
    return 100 * again / (p->ledger.flops - again);
}

static double step_ms(const struct zt_plan *p)
{
    return p->programs[ZT_PROG_TRAIN].time_s * 1e3;
}

static double unlimited_ms(const struct zt_plan *p)
{
    return p->programs[ZT_PROG_TRAIN].time_unlimited_s * 1e3;
}

static double busiest_ms(const struct zt_plan *p)
{
    return p->programs[ZT_PROG_TRAIN].busiest_s * 1e3;
}

static double critical_ms(const struct zt_plan *p)
{
    return p->programs[ZT_PROG_TRAIN].critical_path_s * 1e3;
}

static double backlog(const struct zt_plan *p)
{
    return p->programs[ZT_PROG_TRAIN].backlog;
}

static double n_rows(const struct zt_plan *p)
{
    return zt_plan_n_rows(p, ZT_PROG_TRAIN);
}

static double n_waits(const struct zt_plan *p)
{
    return zt_plan_n_waits(p, ZT_PROG_TRAIN);
}

static void print_work(struct table *t)
{
    static const struct row sent[] = {
        {"GATHER", sent_gather},       {"REDUCE", sent_reduce},
        {"ALLGATHER", sent_allgather}, {"COUNT, NORM, VOTE", sent_control},
        {"= all", sent_all},
    };
    static const struct row numbers[] = {
        {"model TFLOP", model_tflop},
        {"TFLOP carried out", all_tflop},
        {"  recomputation adds, %", again_percent},
        {"step, ms", step_ms},
        {"  with unlimited memory", unlimited_ms},
        {"  busiest stream", busiest_ms},
        {"  critical path", critical_ms},
        {"gradient backlog", backlog},
        {"rows", n_rows},
        {"waits", n_waits},
    };
    zt_str_puts(t->out, "Sent by this rank in a step\n");
    bytes_rows(t, sent, ZT_ARRAY_LEN(sent));
    zt_str_printf(t->out, "\nWork and simulated time of a step (profile \"%s\"%s)\n",
                  t->plans[0]->cfg.profile->name,
                  t->plans[0]->cfg.profile_known ? "" : ", not measured here");
    for (size_t r = 0; r < ZT_ARRAY_LEN(numbers); r++) {
        print_label(t, numbers[r].label);
        for (int i = 0; i < t->n; i++)
            zt_str_printf(t->out, "%18.5g", numbers[r].value(t->plans[i]));
        zt_str_puts(t->out, "\n");
    }
}

void zt_plan_print_ledger(const struct zt_plan *const *stages, int n, struct zt_str *out)
{
    ZT_ASSERT(n >= 1 && n <= MAX_COLUMNS);
    struct table t = {.out = out, .plans = stages, .n = n};
    for (int i = 0; i < n; i++)
        t.giga |= device_peak(stages[i]) >= 1e9;
    print_heading(&t);
    print_device(&t);
    print_formula(&t);
    print_work(&t);
}
