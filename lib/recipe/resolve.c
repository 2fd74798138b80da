#include "recipe/load.h"

#include <inttypes.h>

#include "base/dtype.h"
#include "base/size.h"

static struct zt_pos pos_of(const struct zt_load *ld, const char *path)
{
    return zt_load_pos(ld, path);
}

static void missing(struct zt_load *ld, const char *text)
{
    if (!ld->incomplete)
        zt_diag_add(&ld->errors, ZT_DIAG_MISSING, (struct zt_pos){ld->main, 0, 0}, "%s", text);
}

/* ---- batch ---- */

static const char *given_or_not(struct zt_arena *a, int64_t v)
{
    return v == ZT_NOT_GIVEN ? "not given" : zt_arena_printf(a, "%" PRId64, v);
}

/* Fill in what is not given; what does not fit together, or NULL. */
static const char *solve_batch(struct zt_recipe_batch *b, int64_t ranks, struct zt_arena *arena)
{
    const int64_t none = ZT_NOT_GIVEN;
    bool has_train = b->train != none, has_micro = b->micro != none, has_accum = b->accum != none;
    if (!has_train && !has_micro)
        return "give train_batch_size or train_micro_batch_size_per_gpu";
    if ((has_train && b->train < 1) || (has_micro && b->micro < 1) || (has_accum && b->accum < 1))
        return "each must be at least 1";

    int64_t per_rank; /* of the factors that are given, and the ranks */
    if (!has_accum && !(has_train && has_micro))
        b->accum = 1, has_accum = true;
    if (!zt_mul_i64(has_micro ? b->micro : 1, has_accum ? b->accum : 1, &per_rank) ||
        !zt_mul_i64(per_rank, ranks, &per_rank))
        return "the product is too large";
    if (!has_train)
        b->train = per_rank;
    if (has_micro && has_accum && b->train != per_rank)
        return zt_arena_printf(arena, "the product is %" PRId64 ", not %" PRId64, per_rank,
                               b->train);
    if (b->train % per_rank != 0)
        return zt_arena_printf(arena, "%" PRId64 " is not a multiple of %" PRId64, b->train,
                               per_rank);
    if (!has_micro)
        b->micro = b->train / per_rank;
    if (!has_accum)
        b->accum = b->train / per_rank;
    return NULL;
}

static void resolve_batch(struct zt_load *ld)
{
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    struct zt_recipe *r = &ld->settings->r;
    int64_t *values[] = {&r->batch.train, &r->batch.micro, &r->batch.accum};
    struct zt_pos at = {ld->main, 0, 0};
    bool any = false;
    for (int i = 0; i < 3; i++) {
        if (zt_load_any_bad(ld, paths[i]))
            return;
    }
    for (int i = 2; i >= 0; i--) {
        if (!zt_load_given(ld, paths[i])) {
            *values[i] = ZT_NOT_GIVEN;
            zt_load_derived(ld, paths[i]);
        } else {
            at = pos_of(ld, paths[i]);
            any = true;
        }
    }
    if (!any && ld->opts->for_plan) {
        r->batch = (struct zt_recipe_batch){ld->opts->n_ranks, 1, 1};
        return;
    }
    struct zt_recipe_batch b = r->batch;
    const char *why = solve_batch(&r->batch, ld->opts->n_ranks, ld->arena);
    if (why && !(ld->incomplete && !any))
        zt_diag_add(&ld->errors, any ? ZT_DIAG_WRONG : ZT_DIAG_MISSING, at,
                    "train_batch_size %s, train_micro_batch_size_per_gpu %s, "
                    "gradient_accumulation_steps %s, %d ranks: %s",
                    given_or_not(ld->arena, b.train), given_or_not(ld->arena, b.micro),
                    given_or_not(ld->arena, b.accum), ld->opts->n_ranks, why);
}

/* ---- optimizer, precision, ZeRO ---- */

static void resolve_precision(struct zt_load *ld)
{
    static const enum zt_dtype comm[] = {ZT_F32, ZT_BF16, ZT_BF16, ZT_F16}; /* as in key_table.c */
    const struct zt_settings *s = ld->settings;
    struct zt_recipe *r = &ld->settings->r;
    if (s->fp16 && s->bf16)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "bf16.enabled"),
                    "bf16.enabled: fp16.enabled is true too; choose one");
    r->precision = s->bf16 ? ZT_PREC_BF16 : s->fp16 ? ZT_PREC_FP16 : ZT_PREC_FP32;
    r->comm_dtype = s->comm < 0 ? -1 : (int)comm[s->comm];
}

/* Whichever comes first, the steps or the end of the epochs. Before the schedule: it takes the steps. */
static void resolve_steps(struct zt_load *ld)
{
    struct zt_recipe_train *t = &ld->settings->r.train;
    int64_t end = ld->opts->epoch_steps;
    if (t->epochs == 0)
        return;
    if (!zt_load_given(ld, "train.steps"))
        t->steps = ZT_STEPS_UNKNOWN;
    if (end > 0 && end < t->steps) {
        t->steps = end;
        zt_load_derived(ld, "train.steps");
    }
}

/* What is not known is not written down either. */
static void leave_unknown_steps_unsaid(struct zt_load *ld)
{
    static const char *const paths[] = {"train.steps", "scheduler.params.total_steps",
                                        "scheduler.params.total_num_steps"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(paths); i++) {
        if (ld->settings->r.train.steps == ZT_STEPS_UNKNOWN && !zt_load_given(ld, paths[i]))
            zt_load_unsaid(ld, paths[i]);
    }
}

static void resolve_training(struct zt_load *ld)
{
    resolve_steps(ld);
    struct zt_settings *s = ld->settings;
    struct zt_recipe *r = &s->r;
    if (strcmp(r->optimizer.type, "Adam") == 0)
        r->optimizer.type = "AdamW";
    r->optimizer.adam_w_mode = true;
    zt_load_schedule(ld); /* may set the betas */
    r->optimizer.beta1 = s->betas[0];
    r->optimizer.beta2 = s->betas[1];

    r->zero.stage = (int)s->zero_stage;
    if (r->zero.offload_param != ZT_OFFLOAD_TO_NONE && r->zero.stage != 3)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG,
                    pos_of(ld, "zero_optimization.offload_param.device"),
                    "zero_optimization.offload_param: needs stage 3, not %d", r->zero.stage);
    r->train.seed = (uint64_t)s->seed;
    r->train.sample_top_k = (int)s->sample_top_k;
    r->train.recompute = s->policy == 1;
    r->threads = (int)s->threads;
}

/* ---- data ---- */

/* Do two ranges of the same tokens have any in common? -1 is open. */
static bool ranges_meet(const int64_t a[2], const int64_t b[2])
{
    int64_t a_end = a[1] < 0 ? INT64_MAX : a[1], b_end = b[1] < 0 ? INT64_MAX : b[1];
    return ZT_MAX(a[0], b[0]) < ZT_MIN(a_end, b_end);
}

static void resolve_validation(struct zt_load *ld)
{
    struct zt_recipe *r = &ld->settings->r;
    struct zt_recipe_data *d = &r->data;
    if (d->val.n == 0 && d->train.n > 0 && zt_load_given(ld, "data.val_range")) {
        d->val = d->train;
        zt_load_derived(ld, "data.val");
        if (d->val_mask.n == 0 && d->train_mask.n > 0) {
            d->val_mask = d->train_mask;
            zt_load_derived(ld, "data.val_mask");
        }
        if (ranges_meet(d->range_train, d->range_val))
            zt_diag_add(&ld->notes, ZT_DIAG_WRONG, pos_of(ld, "data.val_range"),
                        "data.val_range: these tokens are trained on too; see data.train_range");
    }
    if (d->val.n > 0 && d->val_fraction > 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.val_fraction"),
                    "data.val_fraction: the validation data is already given by %s",
                    zt_load_given(ld, "data.val") ? "data.val" : "data.val_range");
    if (d->val_fraction >= 1)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.val_fraction"),
                    "data.val_fraction: nothing is left to train on");
    bool none = d->val.n == 0 && d->val_fraction == 0;
    if (r->train.eval_every > 0 && none && !ld->opts->for_plan && !zt_load_any_bad(ld, "data"))
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "train.eval_every"),
                    "train.eval_every: there is no validation data; give data.val, data.val_range "
                    "or data.val_fraction");
}

static void check_documents(struct zt_load *ld)
{
    const struct zt_recipe *r = &ld->settings->r;
    const struct zt_recipe_data *d = &r->data;
    struct zt_pos at = pos_of(ld, "data.document_separator");
    if (d->document_separator < 0)
        return;
    if (d->packing != ZT_PACK_DOCUMENTS)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, at,
                    "data.document_separator: ignored: read only with data.packing: documents");
    if (r->model.vocab_size > 0 && d->document_separator >= r->model.vocab_size)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                    "data.document_separator: %" PRId64
                    " is no token: model.vocab_size is %" PRId64,
                    d->document_separator, r->model.vocab_size);
}

static void check_masks(struct zt_load *ld)
{
    const struct zt_recipe_data *d = &ld->settings->r.data;
    if (d->val_mask.n > 0 && d->val.n == 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.val_mask"),
                    "data.val_mask: there is no data.val; what is held out of data.train has "
                    "data.train_mask");
    if (d->train_mask.n > 0 && d->val.n > 0 && d->val_mask.n == 0)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, pos_of(ld, "data.train_mask"),
                    "data.train_mask: there is no data.val_mask: validation counts every token");
}

static void resolve_data(struct zt_load *ld)
{
    struct zt_recipe *r = &ld->settings->r;
    struct zt_recipe_data *d = &r->data;

    if (d->train.n == 0 && !ld->opts->for_plan && !zt_load_any_bad(ld, "data"))
        missing(ld, "data.train is missing: the files to learn from");
    resolve_validation(ld);
    check_documents(ld);
    check_masks(ld);
    int64_t longest = r->model.n_positions;
    if (!zt_load_given(ld, "data.seq_len")) {
        d->seq_len = longest > 0 ? ZT_MIN(longest, 1024) : 1024;
        zt_load_derived(ld, "data.seq_len");
    } else if (longest > 0 && d->seq_len > longest && !zt_load_any_bad(ld, "model")) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.seq_len"),
                    "data.seq_len: %" PRId64 " is more than the model's %" PRId64 " positions",
                    d->seq_len, longest);
    }
}

/* ---- model ---- */

/* What a Hugging Face configuration class takes for keys that a config.json leaves out. */
struct model_defaults {
    const char *type;
    int64_t n_layer, n_head, n_embd, n_inner, vocab_size, n_positions; /* n_inner 0: 4 n_embd */
    double norm_eps;
    const char *activation;
    bool tied;
};

static const struct model_defaults model_defaults[] = {
    {"gpt2", 12, 12, 768, 0, 50257, 1024, 1e-5, "gelu_new", true},
    {"llama", 32, 32, 4096, 11008, 32000, 2048, 1e-6, "silu", false},
};

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

/* Text has 256 tokens. Without a config.json, and unless the files are token files, it is text. */
static bool trains_on_text(const struct zt_load *ld)
{
    const struct zt_recipe_data *d = &ld->settings->r.data;
    if (d->format != ZT_DATA_AUTO || d->train.n == 0)
        return d->format == ZT_DATA_TEXT;
    for (int i = 0; i < d->train.n; i++) {
        const char *dot = strrchr(d->train.items[i], '.');
        if (!dot || strcmp(dot, ".bin") != 0)
            return true;
    }
    return false;
}

static void default_model(struct zt_load *ld, const struct model_defaults *d)
{
    struct zt_recipe_model *m = &ld->settings->r.model;
    bool is_bytes = !ld->config && trains_on_text(ld);
    default_i64(ld, "model.n_layer", &m->n_layer, d->n_layer);
    default_i64(ld, "model.n_head", &m->n_head, d->n_head);
    default_i64(ld, "model.num_key_value_heads", &m->n_kv_head, m->n_head);
    default_i64(ld, "model.n_embd", &m->n_embd, d->n_embd);
    default_i64(ld, "model.n_inner", &m->n_inner, d->n_inner ? d->n_inner : 4 * m->n_embd);
    default_i64(ld, "model.head_dim", &m->head_dim, m->n_embd / m->n_head);
    default_i64(ld, "model.vocab_size", &m->vocab_size, is_bytes ? 256 : d->vocab_size);
    default_i64(ld, "model.n_positions", &m->n_positions, d->n_positions);
    default_f64(ld, "model.layer_norm_epsilon", &m->norm_eps, d->norm_eps);
    default_f64(ld, "model.initializer_range", &m->initializer_range, 0.02);
    if (strcmp(d->type, "llama") == 0)
        default_f64(ld, "model.rope_theta", &m->rope_theta, 10000);
    if (!zt_load_given(ld, "model.activation_function")) {
        m->activation = d->activation;
        zt_load_derived(ld, "model.activation_function");
    }
    if (!zt_load_given(ld, "model.tie_word_embeddings")) {
        m->tie_word_embeddings = d->tied;
        zt_load_derived(ld, "model.tie_word_embeddings");
    }
}

static void check_model(struct zt_load *ld)
{
    const struct zt_recipe_model *m = &ld->settings->r.model;
    bool gpt2 = strcmp(m->model_type, "gpt2") == 0;
    if (zt_load_any_bad(ld, "model"))
        return;
    if (m->head_dim * m->n_head != m->n_embd)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "model.n_head"),
                    "model: n_embd %" PRId64 " is not n_head %" PRId64 " x head_dim %" PRId64,
                    m->n_embd, m->n_head, m->head_dim);
    if (m->n_head % m->n_kv_head != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "model.num_key_value_heads"),
                    "model: n_head %" PRId64 " is not a multiple of num_key_value_heads %" PRId64,
                    m->n_head, m->n_kv_head);
    if (gpt2 && m->n_kv_head != m->n_head)
        zt_load_refuse(ld, pos_of(ld, "model.num_key_value_heads"),
                       "model.num_key_value_heads: gpt2 has as many as n_head");
    bool known = gpt2 ? zt_word_index("gelu_new|gelu_pytorch_tanh", m->activation) >= 0
                      : zt_word_index("silu|swish", m->activation) >= 0;
    if (!known)
        zt_load_refuse(ld, pos_of(ld, "model.activation_function"),
                       "model.activation_function: %s is not carried out; use %s", m->activation,
                       gpt2 ? "gelu_new or gelu_pytorch_tanh" : "silu");
    if (!gpt2)
        zt_load_refuse(
            ld, pos_of(ld, "model.model_type"),
            "model.model_type: %s can be planned, but training it is not carried out yet; "
            "use gpt2",
            m->model_type);
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
    if (ld->config && !zt_load_given(ld, "model.resid_pdrop") &&
        strcmp(ld->settings->r.model.model_type, "gpt2") == 0)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, (struct zt_pos){ld->config, 0, 0},
                    "does not say resid_pdrop: taken as 0, where transformers takes 0.1");
}

static void resolve_model(struct zt_load *ld)
{
    struct zt_recipe_model *m = &ld->settings->r.model;
    const struct zt_node *params = zt_load_given(ld, "model.params");
    if (!shape_given(ld)) {
        if (params && !ld->opts->for_plan)
            zt_load_refuse(ld, params->at,
                           "model.params: a number of parameters is enough for "
                           "zerotrain plan only; describe the model to train it");
        else if (!params && !ld->opts->for_plan && !zt_load_any_bad(ld, "model"))
            missing(ld, "model is missing: give model.model_type and its sizes, model.config, or "
                        "model.from");
        return;
    }
    if (params)
        zt_diag_add(
            &ld->errors, ZT_DIAG_WRONG, params->at,
            "model.params: the model is described by its other keys; leave one of them out");
    if (!m->model_type) {
        if (ld->config) {
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, (struct zt_pos){ld->config, 0, 0},
                        "has no model_type; set model.model_type: gpt2 in the recipe if it is one");
            return;
        }
        m->model_type = "gpt2";
        zt_load_derived(ld, "model.model_type");
    }
    for (size_t i = 0; i < ZT_ARRAY_LEN(model_defaults); i++) {
        if (strcmp(model_defaults[i].type, m->model_type) == 0)
            default_model(ld, &model_defaults[i]);
    }
    note_dropout(ld);
    check_model(ld);
}

void zt_load_resolve(struct zt_load *ld)
{
    ld->settings->r.n_ranks = ld->opts->n_ranks;
    resolve_batch(ld);
    resolve_training(ld);
    leave_unknown_steps_unsaid(ld);
    resolve_precision(ld);
    resolve_model(ld);
    resolve_data(ld);
}
