#include "plan/largest.h"

#include <jansson.h>

#include "base/size.h"
#include "plan/fit_internal.h"
#include "plan/print.h"

/* What is offloaded at which stage; the stage's own rules say what goes together. */
static const struct {
    int stage;
    enum zt_offload optimizer, param;
} rows[] = {
    {0, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE}, {1, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE},
    {2, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE}, {3, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE},
    {1, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NONE},  {2, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NONE},
    {3, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NONE},  {3, ZT_OFFLOAD_CPU, ZT_OFFLOAD_CPU},
    {3, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NONE}, {3, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NVME},
};

static const struct family {
    const char *name;
    int head_dim, width_of_depth;
} families[ZT_N_LARGEST_FAMILIES] = {
    [ZT_LARGEST_GPT2] = {"gpt2", 64, 64},
    [ZT_LARGEST_LLAMA] = {"llama", 128, 128},
};

struct zt_model_config zt_largest_shape(enum zt_largest_family f, int depth, int64_t width)
{
    struct zt_model_config c = {.n_layer = depth,
                                .n_embd = width,
                                .n_head = (int)(width / families[f].head_dim),
                                .norm_eps = 1e-5f,
                                .initializer_range = 0.02f};
    if (f == ZT_LARGEST_GPT2) {
        c.type = ZT_MODEL_GPT2;
        c.vocab_size = 50257;
        c.n_positions = 1024;
        c.tie_embeddings = true;
    } else {
        c.type = ZT_MODEL_LLAMA;
        c.vocab_size = 32000;
        c.n_positions = 4096;
        c.n_inner = zt_align_i64(zt_ceil_div_i64(8 * width, 3), 256);
    }
    return c;
}

/* ---- search ---- */

struct search {
    enum zt_largest_family family;
    const struct zt_plan_config *cfg;
    const struct zt_fit_limits *limits;
    struct zt_largest *best; /* the largest that fits so far */
    struct zt_err *err;
};

/* Plan one shape: 1 fits, 0 does not, negative: it cannot be planned. */
static int try_shape(struct search *s, int depth, int64_t width)
{
    struct zt_model_config mc = zt_largest_shape(s->family, depth, width);
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_fit_choice c = {.cfg = *s->cfg};
    int rc = zt_model_build(&mc, &arena, &m, s->err);
    if (!rc)
        rc = zt_fit_size(m, s->limits, &c, s->err);
    if (!rc && c.fits && m->n_elems > s->best->n_params)
        *s->best = (struct zt_largest){mc, m->n_elems, c};
    zt_arena_release(&arena);
    return rc ? rc : c.fits;
}

/* The largest n in [1, max] that fits, by doubling and halving; 0: none, negative: an error. */
static int bisect(struct search *s, int max, int fixed_width_depth)
{
    const int per_depth = families[s->family].width_of_depth;
    int lo = 0, hi = max + 1; /* lo fits (0 stands for nothing), hi does not */
    for (int n = 1; lo + 1 < hi;) {
        int depth = fixed_width_depth ? fixed_width_depth + n : n;
        int rc =
            try_shape(s, depth, (int64_t)per_depth * (fixed_width_depth ? fixed_width_depth : n));
        if (rc < 0)
            return rc;
        if (rc)
            lo = n;
        else
            hi = n;
        n = hi > max ? ZT_MIN(2 * n, max) : lo + (hi - lo) / 2;
    }
    return lo;
}

static int search_row(struct search *s)
{
    const int depth = bisect(s, ZT_LARGEST_LAYERS, 0);
    if (depth <= 0)
        return depth;
    const int deeper = bisect(s, ZT_LARGEST_LAYERS - depth, depth);
    return ZT_MIN(deeper, 0);
}

int zt_largest_search(const struct zt_plan_config *cfg, const struct zt_fit_limits *limits,
                      struct zt_largest_table *out, struct zt_err *err)
{
    *out = (struct zt_largest_table){.cfg = *cfg, .limits = *limits, .n = ZT_ARRAY_LEN(rows)};
    out->rows = zt_xcalloc(ZT_ARRAY_LEN(rows), sizeof *out->rows);
    for (int i = 0; i < out->n; i++) {
        struct zt_largest_row *row = &out->rows[i];
        struct zt_plan_config c = *cfg;
        row->stage = c.stage = rows[i].stage;
        row->offload_optimizer = c.offload_optimizer = rows[i].optimizer;
        row->offload_param = c.offload_param = rows[i].param;
        for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++) {
            struct search s = {(enum zt_largest_family)f, &c, limits, &row->largest[f], err};
            int rc = search_row(&s);
            if (rc) {
                zt_largest_release(out);
                return rc;
            }
        }
    }
    return 0;
}

bool zt_largest_is_empty(const struct zt_largest_table *t)
{
    for (int i = 0; i < t->n; i++)
        for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++)
            if (t->rows[i].largest[f].n_params > 0)
                return false;
    return true;
}

void zt_largest_release(struct zt_largest_table *t)
{
    free(t->rows);
    *t = (struct zt_largest_table){0};
}

/* ---- printing ---- */

static const char *place(enum zt_offload o)
{
    return o == ZT_OFFLOAD_CPU ? "cpu" : o == ZT_OFFLOAD_NVME ? "nvme" : "device";
}

static void print_heading(const struct zt_largest_table *t, struct zt_str *out)
{
    const struct zt_plan_config *cfg = &t->cfg;
    char gb[32];
    zt_str_printf(out, "Largest models on %d rank%s, each of %zu bytes (%s)",
                  zt_mesh_world(&cfg->mesh), zt_mesh_world(&cfg->mesh) == 1 ? "" : "s",
                  t->limits.device.bytes, zt_fmt_gb(gb, sizeof gb, (double)t->limits.device.bytes));
    if (t->limits.host.bytes < SIZE_MAX)
        zt_str_printf(out, " and %zu bytes (%s) of its host", t->limits.host.bytes,
                      zt_fmt_gb(gb, sizeof gb, (double)t->limits.host.bytes));
    zt_str_printf(out,
                  ":\n%s, AdamW, micro-batches of %lld x %lld tokens, %s. Every size is that of a "
                  "plan.\n\n",
                  zt_dtype_name(cfg->dtype), (long long)cfg->micro_batch, (long long)cfg->seq_len,
                  cfg->recompute == ZT_RECOMPUTE_NONE ? "no recomputation"
                                                      : "every block recomputed");
}

static bool is_bounded(const struct zt_largest *l)
{
    return l->model.n_layer == ZT_LARGEST_LAYERS;
}

static void print_largest(const struct zt_largest *l, struct zt_str *out)
{
    const double n = (double)l->n_params;
    char shape[32], size[32];
    if (l->n_params == 0) {
        zt_str_printf(out, "%10s%14s%10s%10s", "none", "-", "-", "-");
        return;
    }
    snprintf(shape, sizeof shape, "%d x %lld", l->model.n_layer, (long long)l->model.n_embd);
    snprintf(size, sizeof size, n < 1e13 ? "%s%.2fB" : "%s%.2fT", is_bounded(l) ? ">" : "",
             n / (n < 1e13 ? 1e9 : 1e12));
    zt_str_printf(out, " %9s %13s %9.2f %9.2f", size, shape, (double)l->choice.device / 1e9,
                  (double)l->choice.host / 1e9);
}

static void print_bound(const struct zt_largest_table *t, struct zt_str *out)
{
    bool bounded = false;
    for (int i = 0; i < t->n; i++)
        for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++)
            bounded |= is_bounded(&t->rows[i].largest[f]);
    if (bounded)
        zt_str_printf(out, ">: larger ones may fit, too; none of more than %d layers is tried.\n",
                      ZT_LARGEST_LAYERS);
}

void zt_largest_print(const struct zt_largest_table *t, struct zt_str *out)
{
    print_heading(t, out);
    zt_str_printf(out, "%-7s%-11s%-12s%44s%44s\n", "", "", "", "GPT-2", "Llama");
    zt_str_printf(out, "%-7s%-11s%-12s", "stage", "optimizer", "parameters");
    for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++)
        zt_str_printf(out, "%10s%14s%10s%10s", "model", "depth x width", "device GB", "host GB");
    zt_str_puts(out, "\n");
    for (int i = 0; i < t->n; i++) {
        const struct zt_largest_row *r = &t->rows[i];
        zt_str_printf(out, "%-7d%-11s%-12s", r->stage, place(r->offload_optimizer),
                      place(r->offload_param));
        for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++)
            print_largest(&r->largest[f], out);
        zt_str_puts(out, "\n");
    }
    zt_str_puts(out,
                "\nShapes. GPT-2: width 64 x depth, heads of 64, 50257 tokens. Llama: width 128 x "
                "depth, heads "
                "of 128,\n8/3 of the width inside the feed-forward layer, 32000 tokens. The "
                "largest of these, "
                "then as many more\nlayers of its width as fit. Device and host: of each rank.\n");
    print_bound(t, out);
}

static json_t *largest_json(enum zt_largest_family f, const struct zt_largest *l)
{
    return json_pack("{s:s, s:I, s:i, s:I, s:i, s:I, s:I, s:I, s:f}", "family", families[f].name,
                     "parameters", (json_int_t)l->n_params, "n_layer", l->model.n_layer, "n_embd",
                     (json_int_t)l->model.n_embd, "n_head", l->model.n_head, "n_inner",
                     (json_int_t)l->model.n_inner, "device_bytes", (json_int_t)l->choice.device,
                     "host_bytes", (json_int_t)l->choice.host, "step_s", l->choice.step_s);
}

void zt_largest_print_json(const struct zt_largest_table *t, struct zt_str *out)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n; i++) {
        const struct zt_largest_row *r = &t->rows[i];
        json_t *models = json_array();
        for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++)
            json_array_append_new(models, largest_json((enum zt_largest_family)f, &r->largest[f]));
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:s, s:o}", "stage", r->stage, "optimizer_on",
                                        place(r->offload_optimizer), "parameters_on",
                                        place(r->offload_param), "largest", models));
    }
    zt_json_print(json_pack("{s:i, s:i, s:o}", "version", 1, "ranks", zt_mesh_world(&t->cfg.mesh),
                            "rows", list),
                  out);
}
