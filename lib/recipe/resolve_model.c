#include "recipe/load.h"

#include <inttypes.h>

/*
 * What a Hugging Face configuration class takes for keys that a config.json leaves out, and which
 * of the choices below it has at all.
 */
struct model_family {
    const char *type;
    int64_t n_layer, n_head, n_kv_head, n_embd, n_inner, vocab_size, n_positions;
    int64_t head_dim; /* 0, as n_kv_head and n_inner: from the others */
    double norm_eps;
    const char *activation;
    bool tied;
    bool learned_positions; /* else rotary ones, and everything else that came with Llama */
    bool attention_bias, mlp_bias, use_sliding_window; /* has the key */
};

static const struct model_family families[] = {
    {.type = "gpt2",
     .n_layer = 12,
     .n_head = 12,
     .n_embd = 768,
     .vocab_size = 50257,
     .n_positions = 1024,
     .norm_eps = 1e-5,
     .activation = "gelu_new",
     .tied = true,
     .learned_positions = true},
    {.type = "llama",
     .n_layer = 32,
     .n_head = 32,
     .n_embd = 4096,
     .n_inner = 11008,
     .vocab_size = 32000,
     .n_positions = 2048,
     .norm_eps = 1e-6,
     .activation = "silu",
     .attention_bias = true,
     .mlp_bias = true},
    {.type = "mistral",
     .n_layer = 32,
     .n_head = 32,
     .n_kv_head = 8,
     .n_embd = 4096,
     .n_inner = 14336,
     .vocab_size = 32000,
     .n_positions = 131072,
     .norm_eps = 1e-6,
     .activation = "silu"},
    {.type = "qwen2",
     .n_layer = 32,
     .n_head = 32,
     .n_embd = 4096,
     .n_inner = 22016,
     .vocab_size = 151936,
     .n_positions = 32768,
     .norm_eps = 1e-6,
     .activation = "silu",
     .use_sliding_window = true},
    {.type = "qwen3",
     .n_layer = 32,
     .n_head = 32,
     .n_embd = 4096,
     .n_inner = 22016,
     .vocab_size = 151936,
     .n_positions = 32768,
     .head_dim = 128,
     .norm_eps = 1e-6,
     .activation = "silu",
     .attention_bias = true,
     .use_sliding_window = true},
};

enum { DEFAULT_WINDOW = 4096 }; /* of Mistral, and of Qwen where it is used */

static const struct model_family *family_of(const char *type)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(families); i++) {
        if (strcmp(families[i].type, type) == 0)
            return &families[i];
    }
    return NULL;
}

/* ---- what is not given ---- */

static void default_i64(struct zt_load *ld, const char *path, int64_t *value, int64_t dflt)
{
    if (zt_load_given(ld, path))
        return;
    *value = dflt;
    zt_load_derived(ld, path);
}

static void default_f64(struct zt_load *ld, const char *path, double *value, double dflt)
{
    if (zt_load_given(ld, path))
        return;
    *value = dflt;
    zt_load_derived(ld, path);
}

static void default_bool(struct zt_load *ld, const char *path, bool *value, bool dflt)
{
    if (zt_load_given(ld, path))
        return;
    *value = dflt;
    zt_load_derived(ld, path);
}

/* Text has 256 tokens. Without a config.json, and unless the files are token files, it is text. */
static bool trains_on_text(const struct zt_load *ld)
{
    const struct zt_recipe_data *d = &ld->settings->r.data;
    if (d->format != ZT_DATA_AUTO || d->train.n == 0)
        return d->format == ZT_DATA_TEXT;
    for (int i = 0; i < d->train.n; i++) {
        const char *dot = strrchr(d->train.items[i], '.');
        if (!dot || (strcmp(dot, ".bin") != 0 && strcmp(dot, ".idx") != 0))
            return true;
    }
    return false;
}

/* The keys that came with Llama. A window that a config.json says is null is none. */
static void default_rotary(struct zt_load *ld, const struct model_family *f)
{
    struct zt_settings *s = ld->settings;
    struct zt_recipe_model *m = &s->r.model;
    bool new_place = zt_load_given(ld, "model.rope_scaling.rope_theta");
    default_f64(ld, "model.rope_theta", &m->rope.theta, new_place ? s->rope_theta_new : 10000);
    if (f->attention_bias)
        default_bool(ld, "model.attention_bias", &m->attention_bias, false);
    if (f->mlp_bias)
        default_bool(ld, "model.mlp_bias", &m->mlp_bias, false);
    if (f->use_sliding_window)
        default_bool(ld, "model.use_sliding_window", &s->use_sliding_window, false);
    bool window = f->use_sliding_window ? s->use_sliding_window : strcmp(f->type, "mistral") == 0;
    bool none = !window || zt_load_null(ld, "model.sliding_window");
    default_i64(ld, "model.sliding_window", &s->sliding_window, none ? 0 : DEFAULT_WINDOW);
}

static void default_model(struct zt_load *ld, const struct model_family *f)
{
    struct zt_recipe_model *m = &ld->settings->r.model;
    bool is_bytes = !ld->config && trains_on_text(ld);
    default_i64(ld, "model.n_layer", &m->n_layer, f->n_layer);
    default_i64(ld, "model.n_head", &m->n_head, f->n_head);
    bool as_heads = !f->n_kv_head || zt_load_null(ld, "model.num_key_value_heads");
    default_i64(ld, "model.num_key_value_heads", &m->n_kv_head,
                as_heads ? m->n_head : f->n_kv_head);
    default_i64(ld, "model.n_embd", &m->n_embd, f->n_embd);
    default_i64(ld, "model.n_inner", &m->n_inner, f->n_inner ? f->n_inner : 4 * m->n_embd);
    default_i64(ld, "model.head_dim", &m->head_dim,
                f->head_dim ? f->head_dim : m->n_embd / m->n_head);
    default_i64(ld, "model.vocab_size", &m->vocab_size, is_bytes ? 256 : f->vocab_size);
    default_i64(ld, "model.n_positions", &m->n_positions, f->n_positions);
    default_f64(ld, "model.layer_norm_epsilon", &m->norm_eps, f->norm_eps);
    default_f64(ld, "model.initializer_range", &m->initializer_range, 0.02);
    if (!f->learned_positions)
        default_rotary(ld, f);
    if (!zt_load_given(ld, "model.activation_function")) {
        m->activation = f->activation;
        zt_load_derived(ld, "model.activation_function");
    }
    default_bool(ld, "model.tie_word_embeddings", &m->tie_word_embeddings, f->tied);
}

/* ---- rotary positions ---- */

/* A number that the given kind of scaling cannot do without. */
static void need(struct zt_load *ld, const char *path)
{
    const struct zt_node *type = zt_load_given(ld, "model.rope_scaling.rope_type");
    if (!type)
        type = zt_load_given(ld, "model.rope_scaling.type");
    if (!zt_load_given(ld, path))
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, type->at, "model.rope_scaling: %s needs %s",
                    type->text, strrchr(path, '.') + 1);
}

static void check_llama3(struct zt_load *ld)
{
    const struct zt_recipe_rope *rope = &ld->settings->r.model.rope;
    need(ld, "model.rope_scaling.low_freq_factor");
    need(ld, "model.rope_scaling.high_freq_factor");
    need(ld, "model.rope_scaling.original_max_position_embeddings");
    if (zt_load_given(ld, "model.rope_scaling.low_freq_factor") &&
        zt_load_given(ld, "model.rope_scaling.high_freq_factor") &&
        rope->low_freq_factor >= rope->high_freq_factor)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG,
                    zt_load_pos(ld, "model.rope_scaling.high_freq_factor"),
                    "model.rope_scaling.high_freq_factor: %g must be above low_freq_factor, which "
                    "is %g",
                    rope->high_freq_factor, rope->low_freq_factor);
}

/* A config.json is written for others, who pass over it too. */
static void note_unused(struct zt_load *ld, enum zt_rope_scaling scaling, const char *type)
{
    static const struct {
        const char *path;
        enum zt_rope_scaling least;
    } keys[] = {{"model.rope_scaling.factor", ZT_ROPE_SCALING_LINEAR},
                {"model.rope_scaling.low_freq_factor", ZT_ROPE_SCALING_LLAMA3},
                {"model.rope_scaling.high_freq_factor", ZT_ROPE_SCALING_LLAMA3},
                {"model.rope_scaling.original_max_position_embeddings", ZT_ROPE_SCALING_LLAMA3}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(keys); i++) {
        const struct zt_node *n = zt_load_given(ld, keys[i].path);
        if (n && scaling < keys[i].least && n->at.src->kind != ZT_SOURCE_CONFIG)
            zt_diag_add(&ld->notes, ZT_DIAG_WRONG, n->at, "%s: not used: rope_type is %s",
                        keys[i].path, type);
    }
}

static void resolve_rope(struct zt_load *ld)
{
    static const char old_key[] = "model.rope_scaling.type";
    static const char theta_key[] = "model.rope_scaling.rope_theta";
    const struct zt_settings *s = ld->settings;
    struct zt_recipe_rope *rope = &ld->settings->r.model.rope;
    if (s->rope_type && s->rope_type_old && strcmp(s->rope_type, s->rope_type_old) != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, old_key),
                    "model.rope_scaling.type: %s, but rope_type is %s", s->rope_type_old,
                    s->rope_type);
    if (zt_load_given(ld, theta_key) && rope->theta != s->rope_theta_new)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, theta_key),
                    "model.rope_scaling.rope_theta: %g, but model.rope_theta is %g",
                    s->rope_theta_new, rope->theta);
    const char *type = s->rope_type ? s->rope_type : s->rope_type_old;
    if (!type && zt_load_given(ld, "model.rope_scaling.factor"))
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, "model.rope_scaling.factor"),
                    "model.rope_scaling: rope_type is missing: linear or llama3");
    int kind = type ? zt_word_index("default|linear|llama3", type) : 0;
    rope->scaling = (enum zt_rope_scaling)ZT_MAX(kind, 0); /* others are refused already */
    if (kind >= 0)
        note_unused(ld, rope->scaling, type ? type : "default");
    if (rope->scaling != ZT_ROPE_SCALING_NONE)
        need(ld, "model.rope_scaling.factor");
    if (rope->scaling == ZT_ROPE_SCALING_LLAMA3)
        check_llama3(ld);
}

/* ---- checks ---- */

static void check_heads(struct zt_load *ld, const struct model_family *f)
{
    const struct zt_recipe_model *m = &ld->settings->r.model;
    bool head_given = zt_load_given(ld, "model.head_dim") || f->head_dim;
    if ((f->learned_positions || !head_given) && m->head_dim * m->n_head != m->n_embd)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, "model.n_head"),
                    "model: n_embd %" PRId64 " is not n_head %" PRId64 " x head_dim %" PRId64,
                    m->n_embd, m->n_head, m->head_dim);
    else if (!f->learned_positions && m->head_dim % 2 != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG,
                    zt_load_pos(ld, head_given ? "model.head_dim" : "model.n_head"),
                    "model.head_dim: %" PRId64 " is odd; rotary positions turn pairs", m->head_dim);
    if (m->n_head % m->n_kv_head != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, "model.num_key_value_heads"),
                    "model: n_head %" PRId64 " is not a multiple of num_key_value_heads %" PRId64,
                    m->n_head, m->n_kv_head);
    if (f->learned_positions && m->n_kv_head != m->n_head)
        zt_load_refuse(ld, zt_load_pos(ld, "model.num_key_value_heads"),
                       "model.num_key_value_heads: gpt2 has as many as n_head");
}

static void check_activation(struct zt_load *ld, const struct model_family *f)
{
    const char *activation = ld->settings->r.model.activation;
    bool gelu = f->learned_positions;
    if (zt_word_index(gelu ? "gelu_new|gelu_pytorch_tanh" : "silu|swish", activation) < 0)
        zt_load_refuse(ld, zt_load_pos(ld, "model.activation_function"),
                       "model.activation_function: %s is not carried out; use %s", activation,
                       gelu ? "gelu_new or gelu_pytorch_tanh" : "silu");
}

/* A key that models of this type do not have: `off` is what they are without it, if anything. */
static void not_of_this_type(struct zt_load *ld, const struct model_family *f, const char *path,
                             const char *off, const char *instead)
{
    const struct zt_node *n = zt_load_given(ld, path);
    if (!n || (off && n->kind == ZT_NODE_SCALAR && strcmp(n->text, off) == 0))
        return;
    zt_load_refuse(ld, n->at, "%s: not a choice of %s, which has %s", path, f->type, instead);
}

/* Models built like Llama drop nothing but attention's probabilities. */
static void check_dropout(struct zt_load *ld, const struct model_family *f)
{
    const struct zt_recipe_model *m = &ld->settings->r.model;
    const struct {
        const char *path;
        double p;
    } keys[] = {{"model.embd_pdrop", m->embd_pdrop}, {"model.resid_pdrop", m->resid_pdrop}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(keys) && !f->learned_positions; i++)
        if (keys[i].p > 0)
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, keys[i].path),
                        "%s: not a choice of %s, which has dropout in attention only; set "
                        "attention_dropout",
                        keys[i].path, f->type);
}

static void check_choices(struct zt_load *ld, const struct model_family *f)
{
    bool qwen2 = strcmp(f->type, "qwen2") == 0;
    if (f->learned_positions) {
        not_of_this_type(ld, f, "model.rope_theta", NULL, "learned positions");
        not_of_this_type(ld, f, "model.rope_scaling.rope_type", "default", "learned positions");
        not_of_this_type(ld, f, "model.rope_scaling.type", "default", "learned positions");
        not_of_this_type(ld, f, "model.rope_scaling.rope_theta", NULL, "learned positions");
    }
    if (!f->attention_bias)
        not_of_this_type(ld, f, "model.attention_bias", qwen2 ? NULL : "false",
                         qwen2                  ? "biases of q, k and v always"
                         : f->learned_positions ? "biases everywhere"
                                                : "no biases");
    if (!f->mlp_bias)
        not_of_this_type(ld, f, "model.mlp_bias", f->learned_positions ? "true" : "false",
                         f->learned_positions ? "biases everywhere" : "no biases there");
}

/* Is any key of `model` given that describes its shape? */
static bool shape_given(const struct zt_load *ld)
{
    for (int i = 0; i < zt_n_keys; i++) {
        const char *path = zt_keys[i].path;
        if (ld->given[i].node && zt_keys[i].dest != ZT_NO_DEST && strncmp(path, "model.", 6) == 0 &&
            strcmp(path, "model.params") != 0)
            return true;
    }
    return false;
}

static void note_dropout(struct zt_load *ld)
{
    static const char *const keys[] = {"model.embd_pdrop", "model.resid_pdrop", "model.attn_pdrop"};
    const char *left_out = "";
    for (size_t i = 0; i < ZT_ARRAY_LEN(keys); i++)
        if (!zt_load_given(ld, keys[i]))
            left_out = zt_arena_printf(ld->arena, "%s%s%s", left_out, left_out[0] ? ", " : "",
                                       strchr(keys[i], '.') + 1);
    if (ld->config && left_out[0] && strcmp(ld->settings->r.model.model_type, "gpt2") == 0)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, (struct zt_pos){ld->config, 0, 0},
                    "does not say %s: taken as 0, where transformers takes 0.1", left_out);
}

/* No sequence may be so long that a sliding window would cut it. */
void zt_load_check_window(struct zt_load *ld)
{
    const struct zt_settings *s = ld->settings;
    const char *type = s->r.model.model_type;
    const struct model_family *f = type ? family_of(type) : NULL;
    if (f && (!f->use_sliding_window || s->use_sliding_window) && s->sliding_window > 0 &&
        s->r.data.seq_len > s->sliding_window)
        zt_load_refuse(ld, zt_load_pos(ld, "model.sliding_window"),
                       "model.sliding_window: %" PRId64 " is less than data.seq_len %" PRId64
                       "; attention in a sliding window is not carried out",
                       s->sliding_window, s->r.data.seq_len);
}

/* Is the model one to plan by its number of parameters alone, or missing? */
static bool only_params(struct zt_load *ld)
{
    const struct zt_node *params = zt_load_given(ld, "model.params");
    if (shape_given(ld)) {
        if (params)
            zt_diag_add(
                &ld->errors, ZT_DIAG_WRONG, params->at,
                "model.params: the model is described by its other keys; leave one of them out");
        return false;
    }
    if (params && !ld->opts->for_plan)
        zt_load_refuse(ld, params->at,
                       "model.params: a number of parameters is enough for "
                       "zerotrain plan only; describe the model to train it");
    else if (!params && !ld->opts->for_plan && !zt_load_any_bad(ld, "model"))
        zt_load_missing(ld, "model is missing: give model.model_type and its sizes, model.config, "
                            "or model.from");
    return true;
}

void zt_load_resolve_model(struct zt_load *ld)
{
    struct zt_recipe_model *m = &ld->settings->r.model;
    if (only_params(ld) || zt_load_any_bad(ld, "model.model_type"))
        return;
    if (!m->model_type) {
        if (ld->config) {
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, (struct zt_pos){ld->config, 0, 0},
                        "has no model_type; set model.model_type in the recipe: gpt2, llama...");
            return;
        }
        m->model_type = "gpt2";
        zt_load_derived(ld, "model.model_type");
    }
    const struct model_family *f = family_of(m->model_type);
    ZT_ASSERT(f);
    default_model(ld, f);
    note_dropout(ld);
    if (zt_load_any_bad(ld, "model"))
        return;
    check_heads(ld, f);
    check_activation(ld, f);
    check_choices(ld, f);
    check_dropout(ld, f);
    resolve_rope(ld);
}
