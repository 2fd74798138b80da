/*
 * config.json in the words of transformers 4, which 5 reads as well (rope_theta and rope_scaling,
 * torch_dtype), keys in the order of the alphabet as there.
 */
#include "ckpt/hf.h"

#include <jansson.h>
#include <math.h>

#include "base/io.h"

enum { MAX_FIELDS = 64, MAX_CONFIG_BYTES = 1 << 20, GPT2_VOCAB = 50257, GPT2_END_OF_TEXT = 50256 };

struct field {
    const char *key, *json;
};

struct fields {
    struct field items[MAX_FIELDS];
    int n;
    struct zt_arena arena;
};

static void put(struct fields *f, const char *key, const char *json)
{
    ZT_ASSERT_CMP(f->n, <, MAX_FIELDS);
    f->items[f->n++] = (struct field){key, json};
}

static void put_int(struct fields *f, const char *key, int64_t value)
{
    put(f, key, zt_arena_printf(&f->arena, "%lld", (long long)value));
}

static void put_bool(struct fields *f, const char *key, bool value)
{
    put(f, key, value ? "true" : "false");
}

/* A word of ours: no escapes are needed. */
static void put_word(struct fields *f, const char *key, const char *word)
{
    put(f, key, zt_arena_printf(&f->arena, "\"%s\"", word));
}

/* Shortest text that reads back as the same number, with a point, as Python has it. */
static const char *shortest(struct zt_arena *a, double x, bool is_float)
{
    char buf[40] = "";
    if (fabs(x) < 1e15 && x == floor(x))
        return zt_arena_printf(a, "%.1f", x);
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, x);
        double back = strtod(buf, NULL);
        if (is_float ? (float)back == (float)x : back == x)
            break;
    }
    return zt_arena_strdup(a, buf);
}

static void put_f64(struct fields *f, const char *key, double value)
{
    put(f, key, shortest(&f->arena, value, false));
}

static void put_f32(struct fields *f, const char *key, float value)
{
    put(f, key, shortest(&f->arena, (double)value, true));
}

/* ---- what a folder said that training began with ---- */

/* Its config.json, if it is of the same kind of model; NULL: there is none. */
static json_t *read_base(const struct zt_hf_opts *o)
{
    struct zt_str path = {0}, text = {0};
    struct zt_err err;
    json_t *root = NULL;
    if (!o->from)
        return NULL;
    zt_str_printf(&path, "%s/config.json", o->from);
    if (zt_read_file(path.buf, MAX_CONFIG_BYTES, &text, &err) == 0)
        root = json_loadb(zt_str_get(&text), text.len, 0, NULL);
    zt_str_release(&path);
    zt_str_release(&text);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type || strcmp(type, o->model_type) != 0) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static bool keep(struct fields *f, const json_t *base, const char *key)
{
    const json_t *value = json_object_get(base, key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (text)
        put(f, key, zt_arena_strdup(&f->arena, text));
    free(text);
    return text != NULL;
}

/*
 * Which tokens begin and end a text is the tokenizer's business. Without one: GPT-2's, where the
 * vocabulary is GPT-2's; else none, since transformers' own defaults would end a text at byte 2.
 */
static void put_token_ids(struct fields *f, const struct zt_hf_opts *o, const json_t *base)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    bool gpt2 = strcmp(o->model_type, "gpt2") == 0 && o->model->cfg.vocab_size == GPT2_VOCAB;
    for (size_t i = 0; i < ZT_ARRAY_LEN(keys); i++) {
        if (keep(f, base, keys[i]))
            continue;
        if (gpt2 && i < 2)
            put_int(f, keys[i], GPT2_END_OF_TEXT);
        else
            put(f, keys[i], "null");
    }
}

/* ---- the kinds of models ---- */

static const char *architecture(const char *type)
{
    static const char *const names[][2] = {{"gpt2", "GPT2LMHeadModel"},
                                           {"llama", "LlamaForCausalLM"},
                                           {"mistral", "MistralForCausalLM"},
                                           {"qwen2", "Qwen2ForCausalLM"},
                                           {"qwen3", "Qwen3ForCausalLM"}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(names); i++) {
        if (strcmp(names[i][0], type) == 0)
            return names[i][1];
    }
    return NULL;
}

static void put_common(struct fields *f, const struct zt_hf_opts *o)
{
    static const char *const dtypes[ZT_N_DTYPES] = {
        [ZT_F32] = "float32", [ZT_BF16] = "bfloat16", [ZT_F16] = "float16"};
    const struct zt_model_config *c = &o->model->cfg;
    put(f, "architectures",
        zt_arena_printf(&f->arena, "[\n    \"%s\"\n  ]", architecture(o->model_type)));
    put_word(f, "model_type", o->model_type);
    put_word(f, "torch_dtype", dtypes[o->dtype]);
    put_f32(f, "initializer_range", c->initializer_range);
    put_bool(f, "tie_word_embeddings", c->tie_embeddings);
    put_bool(f, "use_cache", true);
    put_int(f, "vocab_size", c->vocab_size);
}

static void put_gpt2(struct fields *f, const struct zt_model_config *c)
{
    put_word(f, "activation_function", "gelu_new");
    put_f64(f, "attn_pdrop", c->attn_pdrop);
    put_f64(f, "embd_pdrop", c->embd_pdrop);
    put_f64(f, "resid_pdrop", c->resid_pdrop);
    put_f32(f, "layer_norm_epsilon", c->norm_eps);
    put_int(f, "n_embd", c->n_embd);
    put_int(f, "n_head", c->n_head);
    if (c->n_inner == 4 * c->n_embd)
        put(f, "n_inner", "null");
    else
        put_int(f, "n_inner", c->n_inner);
    put_int(f, "n_layer", c->n_layer);
    put_int(f, "n_positions", c->n_positions);
    put_bool(f, "reorder_and_upcast_attn", false);
    put_bool(f, "scale_attn_by_inverse_layer_idx", false);
    put_bool(f, "scale_attn_weights", true);
}

static const char *rope_scaling(struct fields *f, const struct zt_rope_rule *r)
{
    struct zt_arena *a = &f->arena;
    switch (r->kind) {
    case ZT_ROPE_PLAIN:
        return "null";
    case ZT_ROPE_LINEAR:
        return zt_arena_printf(a, "{\n    \"factor\": %s,\n    \"rope_type\": \"linear\"\n  }",
                               shortest(a, r->factor, false));
    case ZT_ROPE_LLAMA3:
        return zt_arena_printf(a,
                               "{\n    \"factor\": %s,\n    \"high_freq_factor\": %s,\n"
                               "    \"low_freq_factor\": %s,\n"
                               "    \"original_max_position_embeddings\": %.0f,\n"
                               "    \"rope_type\": \"llama3\"\n  }",
                               shortest(a, r->factor, false),
                               shortest(a, r->high_freq_factor, false),
                               shortest(a, r->low_freq_factor, false), r->original_positions);
    }
    return "null";
}

/* Llama's keys, and those that the others have instead or as well. */
static void put_rotary(struct fields *f, const struct zt_hf_opts *o, const json_t *base)
{
    const struct zt_model_config *c = &o->model->cfg;
    bool llama = strcmp(o->model_type, "llama") == 0, qwen = strncmp(o->model_type, "qwen", 4) == 0;
    put_f64(f, "attention_dropout", c->attn_pdrop);
    if (strcmp(o->model_type, "qwen2") != 0 || (int64_t)c->head_dim * c->n_head != c->n_embd)
        put_int(f, "head_dim", c->head_dim); /* Qwen2Config has no such key of its own */
    put_word(f, "hidden_act", "silu");
    put_int(f, "hidden_size", c->n_embd);
    put_int(f, "intermediate_size", c->n_inner);
    put_int(f, "max_position_embeddings", c->n_positions);
    put_int(f, "num_attention_heads", c->n_head);
    put_int(f, "num_hidden_layers", c->n_layer);
    put_int(f, "num_key_value_heads", c->n_kv_head);
    put_f32(f, "rms_norm_eps", c->norm_eps);
    put(f, "rope_scaling", rope_scaling(f, &c->rope));
    put_f64(f, "rope_theta", c->rope.theta);
    if (llama || strcmp(o->model_type, "qwen3") == 0)
        put_bool(f, "attention_bias", c->o_bias);
    if (llama) {
        put_bool(f, "mlp_bias", c->mlp_bias);
        return;
    }
    if (o->sliding_window && (!qwen || o->use_sliding_window))
        put_int(f, "sliding_window", o->sliding_window);
    else
        put(f, "sliding_window", "null");
    if (!qwen)
        return;
    put_bool(f, "use_sliding_window", o->use_sliding_window);
    if (o->use_sliding_window) {
        keep(f, base, "max_window_layers");
        keep(f, base, "layer_types");
    }
}

static int by_key(const void *a, const void *b)
{
    const struct field *x = a, *y = b;
    return strcmp(x->key, y->key);
}

int zt_hf_config(const struct zt_hf_opts *o, struct zt_str *out, struct zt_err *err)
{
    struct fields f = {0};
    if (!architecture(o->model_type))
        return zt_err_set(err, ZT_EUNSUPPORTED, "model_type %s: not one that can be exported",
                          o->model_type);
    json_t *base = read_base(o);
    put_common(&f, o);
    put_token_ids(&f, o, base);
    if (o->model->cfg.type == ZT_MODEL_GPT2)
        put_gpt2(&f, &o->model->cfg);
    else
        put_rotary(&f, o, base);
    json_decref(base);
    qsort(f.items, (size_t)f.n, sizeof f.items[0], by_key);
    for (int i = 0; i < f.n; i++)
        zt_str_printf(out, "%s  \"%s\": %s", i ? ",\n" : "{\n", f.items[i].key, f.items[i].json);
    zt_str_puts(out, "\n}\n");
    zt_arena_release(&f.arena);
    return 0;
}
