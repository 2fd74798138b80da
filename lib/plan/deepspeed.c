#include "plan/largest.h"

#include "plan/fit_internal.h"

/* The cases that its printed tables have, in their order. */
static const struct zt_deepspeed_case cases[] = {
    {.stage = 3, .offload_optimizer = true, .offload_param = true, .zero_init = true},
    {.stage = 3, .offload_optimizer = true, .offload_param = true},
    {.stage = 3, .offload_optimizer = true, .zero_init = true},
    {.stage = 3, .offload_optimizer = true},
    {.stage = 3, .zero_init = true},
    {.stage = 3},
    {.stage = 2, .offload_optimizer = true},
    {.stage = 2},
    {.stage = 2, .older = true},
};

/*
 * Stage 3, per GPU: the largest layer in 4 bytes, and of everything 18 bytes (none offloaded) or 2 (the
 * optimizer) over the ranks. On the host 18 bytes (all offloaded) or 16 (the optimizer), but 4 for each
 * rank of the host while it makes the model whole; or nothing but buffers of a layer or a model there.
 * Of several hosts each has its share of what is offloaded.
 * Stage 2: 2 bytes and 18 over the ranks (older releases: 4 and 16), or with the optimizer offloaded 2; on the host 16 bytes but at
 * least 4 for each rank of all hosts, or 4 for each of its own.
 */
struct zt_deepspeed_estimate zt_deepspeed_estimate(const struct zt_deepspeed_case *c, double p,
                                                   double largest_layer, int n_ranks, int on_a_host)
{
    const double buffers = 1.5, n = n_ranks, whole = 4.0 * on_a_host, layer = 4 * largest_layer;
    if (c->stage == 2 && c->offload_optimizer)
        return (struct zt_deepspeed_estimate){p * ZT_MAX(4 * n, 16) * buffers, 2 * p};
    if (c->stage == 2)
        return (struct zt_deepspeed_estimate){p * whole * buffers,
                                              c->older ? 4 * p + 16 * p / n : 2 * p + 18 * p / n};
    if (!c->offload_optimizer)
        return (struct zt_deepspeed_estimate){(c->zero_init ? largest_layer : p) * whole * buffers,
                                              layer + 18 * p / n};
    const double bytes = (c->offload_param ? 18 : 16) * on_a_host / n;
    return (struct zt_deepspeed_estimate){p * (c->zero_init ? bytes : ZT_MAX(whole, bytes)) *
                                              buffers,
                                          layer + (c->offload_param ? 0 : 2 * p / n)};
}

/* "h.0.mlp.c_fc" of "h.0.mlp.c_fc.weight" */
static size_t module_len(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

int64_t zt_deepspeed_largest_layer(const struct zt_model *m)
{
    int64_t largest = 0, layer = 0;
    for (int i = 0; i < m->n_params; i++) { /* parameters of a module stand together */
        const char *name = m->params[i].name, *before = i ? m->params[i - 1].name : "";
        const size_t len = module_len(name);
        bool same = len == module_len(before) && strncmp(name, before, len) == 0;
        layer = m->params[i].n_elems + (same ? layer : 0);
        largest = ZT_MAX(largest, layer);
    }
    return largest;
}

static const char *case_text(const struct zt_deepspeed_case *c)
{
    if (c->stage == 2)
        return c->offload_optimizer ? "2, optimizer on the host"
               : c->older           ? "2, by older releases"
                                    : "2";
    if (!c->offload_optimizer)
        return c->zero_init ? "3" : "3, model made whole";
    if (!c->offload_param)
        return c->zero_init ? "3, optimizer on the host" : "3, the same, model made whole";
    return c->zero_init ? "3, all on the host" : "3, the same, model made whole";
}

/* What a run of the case would take; the model is never made whole here. */
static int plan_case(const struct zt_model *model, const struct zt_plan_config *cfg,
                     const struct zt_deepspeed_case *c, struct zt_fit_choice *out,
                     struct zt_err *err)
{
    *out = (struct zt_fit_choice){.cfg = *cfg};
    out->cfg.stage = c->stage;
    out->cfg.offload_optimizer = c->offload_optimizer ? ZT_OFFLOAD_CPU : ZT_OFFLOAD_NONE;
    out->cfg.offload_param = c->offload_param ? ZT_OFFLOAD_CPU : ZT_OFFLOAD_NONE;
    return zt_fit_size(model, &ZT_FIT_NO_LIMITS, out, err);
}

int zt_deepspeed_print(const struct zt_model *model, const struct zt_plan_config *cfg,
                       double n_params, double largest_layer, int n_ranks, int on_a_host,
                       struct zt_str *out, struct zt_err *err)
{
    static const double gib = 1024.0 * 1024.0 * 1024.0;
    zt_str_printf(out, "Model states of %.0f parameters, the largest layer of %.0f, %d GPU%s",
                  n_params, largest_layer, n_ranks, n_ranks == 1 ? "" : "s");
    if (on_a_host == n_ranks)
        zt_str_puts(out, " on one host;\nGB of 2^30 bytes, the host's for all GPUs together\n\n");
    else
        zt_str_printf(out, ", %d on a host;\nGB of 2^30 bytes, a host's for all of its GPUs\n\n",
                      on_a_host);
    zt_str_printf(out, "%-32s%24s", "", "DeepSpeed's estimate");
    zt_str_puts(out, model ? "        planned here\n" : "\n");
    zt_str_printf(out, "%-32s%12s%12s", "stage", "host", "each GPU");
    zt_str_puts(out, model ? "        host    each GPU\n" : "\n");
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        const struct zt_deepspeed_estimate e =
            zt_deepspeed_estimate(&cases[i], n_params, largest_layer, n_ranks, on_a_host);
        struct zt_fit_choice c;
        zt_str_printf(out, "%-32s%12.2f%12.2f", case_text(&cases[i]), e.host / gib, e.gpu / gib);
        int rc = model ? plan_case(model, cfg, &cases[i], &c, err) : 0;
        if (rc)
            return rc;
        if (model)
            zt_str_printf(out, "%12.2f%12.2f", (double)c.host * on_a_host / gib,
                          (double)c.device / gib);
        zt_str_puts(out, "\n");
    }
    zt_str_puts(
        out, "\nThe rule of DeepSpeed 0.19.8: of stage 3 each GPU holds the largest layer "
             "in 4 bytes, and 18\n"
             "bytes a parameter (2 with the optimizer on the host, 0 with all) over the "
             "GPUs; of stage 2 it\n"
             "holds 2 bytes, and 18 over the GPUs (2 and 0 with the optimizer on the host; older "
             "releases, and its\n"
             "manual: 4 and 16). The host: 18 or 16 bytes offloaded; 4 for each GPU while "
             "every rank makes the\n"
             "model whole; all of it 1.5-fold. Activations are not in it.\n");
    if (model)
        zt_str_puts(out, "Planned here: all of the arenas, to the byte: activations, buffers and "
                         "padding too.\n");
    return 0;
}
