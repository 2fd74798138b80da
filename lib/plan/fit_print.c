#include "plan/fit.h"

#include <jansson.h>

#include "plan/fit_internal.h"
#include "plan/print.h"

enum { MAX_SHOWN = 6, MAX_LARGEST = 4 };

static const char *rung_name(const struct zt_fit_choice *c, enum zt_fit_dim dim)
{
    const struct zt_fit_option *o = zt_fit_option_of(&c->cfg, dim);
    return o ? o->name : "as given";
}

static void print_sets(const struct zt_fit_choice *c, struct zt_str *out)
{
    struct zt_arena arena = {0};
    const char *const *sets;
    int n;
    zt_fit_sets(c, false, &arena, &n, &sets);
    for (int i = 0; i < n; i++)
        zt_str_printf(out, " --set %s", sets[i]);
    zt_arena_release(&arena);
}

/* ---- the table of a search ---- */

/* The limits there are, with what they are of. */
static int list_limits(const struct zt_fit_limits *l, const struct zt_fit_limit *limit[3],
                       const char *of[3])
{
    const struct zt_fit_limit *all[3] = {&l->device, &l->host, &l->both};
    static const char *const words[3] = {"its device", "the host", "its device and the host"};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        if (all[i]->bytes == SIZE_MAX)
            continue;
        limit[n] = all[i];
        of[n++] = words[i];
    }
    return n;
}

static void print_limits(const struct zt_fit_limits *l, struct zt_str *out)
{
    const struct zt_fit_limit *limit[3];
    const char *of[3];
    char gb[32];
    int n = list_limits(l, limit, of);
    for (int i = 0; i < n; i++)
        zt_str_printf(out, "Each rank may take %zu bytes (%s) of %s: %s.\n", limit[i]->bytes,
                      zt_fmt_gb(gb, sizeof gb, (double)limit[i]->bytes), of[i], limit[i]->by);
    zt_str_puts(out, "\n");
}

void zt_fit_print_table(const struct zt_fit *f, const struct zt_fit_limits *limits,
                        struct zt_str *out)
{
    const struct zt_fit_choice *best = zt_fit_cheapest(f);
    print_limits(limits, out);
    zt_str_printf(out, "%-7s%-15s%-8s%-11s%-12s%17s%17s%13s\n", "stage", "recomputation", "inputs",
                  "optimizer", "parameters", "device, bytes", "host, bytes", "step, ms");
    for (int i = 0; i < f->n; i++) {
        const struct zt_fit_choice *c = &f->choices[i];
        zt_str_printf(
            out, "%-7s%-15s%-8s%-11s%-12s%2s%15zu%17zu", rung_name(c, ZT_FIT_STAGE),
            rung_name(c, ZT_FIT_RECOMPUTE),
            c->cfg.recompute == ZT_RECOMPUTE_NONE ? "" : rung_name(c, ZT_FIT_CPU_CHECKPOINTING),
            rung_name(c, ZT_FIT_OFFLOAD_OPTIMIZER), rung_name(c, ZT_FIT_OFFLOAD_PARAM),
            c->exact ? "" : ">", c->device, c->host);
        if (c->exact)
            zt_str_printf(out, "%13.5g", c->step_s * 1e3);
        else
            zt_str_printf(out, "%13s", "");
        zt_str_puts(out, c == best ? "  <- chosen\n" : c->fits ? "  fits\n" : "  too large\n");
    }
    zt_str_puts(out,
                "\nWhere something fits, more is not given up at the same stage. The cheapest has "
                "the shortest planned\nstep; of steps within 2 % of it, the first in this "
                "order.\n");
}

static json_t *limit_json(const struct zt_fit_limit *l)
{
    return l->bytes == SIZE_MAX ? json_null() : json_integer((json_int_t)l->bytes);
}

static json_t *choice_json(const struct zt_fit_choice *c)
{
    struct zt_arena arena = {0};
    const char *const *sets;
    int n;
    zt_fit_sets(c, true, &arena, &n, &sets);
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_string(sets[i]));
    zt_arena_release(&arena);
    json_t *time = c->exact ? json_real(c->step_s) : json_null();
    return json_pack("{s:o, s:I, s:I, s:b, s:b, s:o}", "set", list, "device_bytes",
                     (json_int_t)c->device, "host_bytes", (json_int_t)c->host, "exact",
                     (int)c->exact, "fits", (int)c->fits, "step_s", time);
}

void zt_fit_print_json(const struct zt_fit *f, const struct zt_fit_limits *limits,
                       struct zt_str *out)
{
    const struct zt_fit_choice *best = zt_fit_cheapest(f);
    json_t *list = json_array();
    for (int i = 0; i < f->n; i++)
        json_array_append_new(list, choice_json(&f->choices[i]));
    json_t *doc =
        json_pack("{s:i, s:{s:o, s:o, s:o}, s:o, s:o}", "version", 1, "limits", "device_bytes",
                  limit_json(&limits->device), "host_bytes", limit_json(&limits->host),
                  "both_bytes", limit_json(&limits->both), "choices", list, "chosen",
                  best ? json_integer(best - f->choices) : json_null());
    zt_json_print(doc, out);
}

/* ---- a plan that does not fit ---- */

static void print_largest(const size_t bytes[ZT_N_CATS], struct zt_str *out)
{
    bool shown[ZT_N_CATS] = {false};
    for (int i = 0; i < MAX_LARGEST; i++) {
        int most = -1;
        for (int c = 0; c < ZT_N_CATS; c++)
            if (!shown[c] && bytes[c] > 0 && (most < 0 || bytes[c] > bytes[most]))
                most = c;
        if (most < 0)
            break;
        shown[most] = true;
        zt_str_printf(out, "%s %s %zu", i ? "," : "", zt_cat_name((enum zt_cat)most), bytes[most]);
    }
}

static void print_need(const struct zt_plan *p, const struct zt_fit_limits *l, struct zt_str *out)
{
    const size_t device = zt_plan_device_bytes(p), host = p->ledger.peak[ZT_AR_HOST];
    const bool on_host = host > l->host.bytes && device <= l->device.bytes;
    char a[32], b[32];
    const struct {
        size_t need;
        const struct zt_fit_limit *limit;
        const char *of;
    } rows[] = {
        {device, &l->device, "its device"},
        {host, &l->host, "the host"},
        {device + host, &l->both, "its device and the host"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++)
        if (rows[i].need > rows[i].limit->bytes)
            zt_str_printf(out,
                          "each rank needs %zu bytes (%s) of %s, but may take only %zu (%s): %s\n",
                          rows[i].need, zt_fmt_gb(a, sizeof a, (double)rows[i].need), rows[i].of,
                          rows[i].limit->bytes,
                          zt_fmt_gb(b, sizeof b, (double)rows[i].limit->bytes), rows[i].limit->by);
    zt_str_puts(out, "most of it is, in bytes:");
    print_largest(on_host ? p->ledger.host : p->ledger.device, out);
    zt_str_puts(out, "\n");
}

void zt_fit_print_least(const struct zt_fit *f, enum zt_fit_search what, struct zt_str *out)
{
    const bool micro = what == ZT_FIT_CHANGES;
    zt_str_printf(out, "no ZeRO stage, recomputation%s makes it fit",
                  micro ? ", offload or smaller micro-batch" : " or offload");
    zt_str_printf(out, "; the least, %zu bytes of the device and %zu of the host, is had by:",
                  f->least.device, f->least.host);
    print_sets(&f->least, out);
    zt_str_printf(out, "\nuse %smore ranks, shorter sequences or a smaller model",
                  micro ? "" : "smaller micro-batches, ");
}

void zt_fit_print_refusal(const struct zt_plan *p, const struct zt_fit *changes,
                          const struct zt_fit_limits *limits, struct zt_str *out)
{
    const struct zt_fit_choice *ranked[MAX_SHOWN];
    int n = zt_fit_ranked(changes, ranked, MAX_SHOWN);
    print_need(p, limits, out);
    if (n == 0) {
        zt_fit_print_least(changes, ZT_FIT_CHANGES, out);
        return;
    }
    zt_str_printf(out,
                  "what makes it fit, the cheapest first (a step is planned to take %.4g ms now):",
                  p->programs[ZT_PROG_TRAIN].time_s * 1e3);
    for (int i = 0; i < n; i++) {
        const struct zt_fit_choice *c = ranked[i];
        zt_str_printf(out, "\n  %zu bytes of the device, %zu of the host, %.4g ms:", c->device,
                      c->host, c->step_s * 1e3);
        print_sets(c, out);
    }
    if (strstr(zt_str_get(out), "nvme_path=" ZT_FIT_ANY_FOLDER))
        zt_str_puts(out, "\n(" ZT_FIT_ANY_FOLDER ": any on the drive to use)");
}
