/*
 * Llama and the models built like it, as their config.json files say them. The numbers are those of
 * the files on Hugging Face's hub, keys that say nothing about training left out.
 */
#include "recipe_test.h"

#include <unistd.h>

#include "base/io.h"

#define DATA "data: {train: x.bin}\n"

static struct zt_recipe *load_model(const char *model, const char *data)
{
    struct zt_str text = {0};
    zt_str_printf(&text, BATCH "%smodel: %s\n", data, model);
    struct zt_recipe *r = load_text(zt_str_get(&text), 1);
    zt_str_release(&text);
    return r;
}

TEST(recipe_llama_3_2)
{
    struct zt_recipe *r = load_model(
        "{architectures: [LlamaForCausalLM], attention_bias: false, attention_dropout: 0.0, "
        "bos_token_id: 128000, eos_token_id: [128001, 128008], head_dim: 64, hidden_act: silu, "
        "hidden_size: 2048, initializer_range: 0.02, intermediate_size: 8192, "
        "max_position_embeddings: 131072, mlp_bias: false, model_type: llama, "
        "num_attention_heads: 32, num_hidden_layers: 16, num_key_value_heads: 8, "
        "pretraining_tp: 1, rms_norm_eps: 1e-05, rope_scaling: {factor: 32.0, "
        "high_freq_factor: 4.0, low_freq_factor: 1.0, original_max_position_embeddings: 8192, "
        "rope_type: llama3}, rope_theta: 500000.0, tie_word_embeddings: true, "
        "torch_dtype: bfloat16, transformers_version: 4.45.0.dev0, use_cache: true, "
        "vocab_size: 128256}",
        DATA);
    CHECK_LOADED(r);
    const struct zt_recipe_rope *rope = &r->model.rope;
    CHECK_INT(rope->scaling, ZT_ROPE_SCALING_LLAMA3);
    CHECK(rope->theta == 500000 && rope->factor == 32 && rope->original_positions == 8192);
    CHECK(rope->low_freq_factor == 1 && rope->high_freq_factor == 4);
    CHECK_INT(r->model.n_kv_head, 8);
    CHECK_INT(r->data.seq_len, 1024);
    CHECK(r->model.tie_word_embeddings && !r->model.attention_bias && !r->model.mlp_bias);
    zt_recipe_free(r);
}

TEST(recipe_qwen2_5)
{
    struct zt_recipe *r = load_model(
        "{attention_dropout: 0.0, hidden_act: silu, hidden_size: 896, initializer_range: 0.02, "
        "intermediate_size: 4864, max_position_embeddings: 32768, max_window_layers: 24, "
        "model_type: qwen2, num_attention_heads: 14, num_hidden_layers: 24, "
        "num_key_value_heads: 2, rms_norm_eps: 1e-06, rope_theta: 1000000.0, "
        "sliding_window: 32768, tie_word_embeddings: true, use_mrope: false, "
        "use_sliding_window: false, vocab_size: 151936}",
        "data: {train: x.bin, seq_len: 32768}\n");
    CHECK_LOADED(r);
    CHECK_INT(r->model.head_dim, 64);
    CHECK_INT(r->model.rope.scaling, ZT_ROPE_SCALING_NONE);
    CHECK_NEAR(r->model.rope.theta, 1e6, 0);
    zt_recipe_free(r);
}

/* What transformers takes where a config.json says nothing; D10: key/value heads as heads. */
TEST(recipe_defaults_of_each_type)
{
    static const struct {
        const char *type;
        int64_t n_inner, vocab, n_positions, n_kv_head, head_dim;
    } want[] = {{"llama", 11008, 32000, 2048, 32, 128},
                {"mistral", 14336, 32000, 131072, 8, 128},
                {"qwen2", 22016, 151936, 32768, 32, 128},
                {"qwen3", 22016, 151936, 32768, 32, 128}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(want); i++) {
        struct zt_recipe *r = load_model(want[i].type, DATA);
        CHECK(!r); /* a word is not a mapping */
        char model[64];
        snprintf(model, sizeof model, "{model_type: %s}", want[i].type);
        r = load_model(model, DATA);
        CHECK_LOADED(r);
        CHECK_INT(r->model.n_inner, want[i].n_inner);
        CHECK_INT(r->model.vocab_size, want[i].vocab);
        CHECK_INT(r->model.n_positions, want[i].n_positions);
        CHECK_INT(r->model.n_kv_head, want[i].n_kv_head);
        CHECK_INT(r->model.head_dim, want[i].head_dim);
        CHECK_NEAR(r->model.norm_eps, 1e-6, 0);
        CHECK_NEAR(r->model.rope.theta, 10000, 0);
        zt_recipe_free(r);
    }
    struct zt_recipe *r = load_model("{model_type: qwen3, n_embd: 1024, n_head: 16}", DATA);
    CHECK_LOADED(r);
    CHECK_INT(r->model.head_dim, 128);
    CHECK_INT(r->model.n_kv_head, 16);
    zt_recipe_free(r);
    r = load_model("{model_type: mistral, num_key_value_heads: null}", DATA);
    CHECK_LOADED(r);
    CHECK_INT(r->model.n_kv_head, 32);
    zt_recipe_free(r);
    r = load_model("{model_type: mistral, num_key_value_heads: auto}", DATA);
    CHECK_LOADED(r);
    CHECK_INT(r->model.n_kv_head, 8);
    zt_recipe_free(r);
}

/* What a kind of scaling does not read is said. */
TEST(recipe_rope_says_what_it_does_not_use)
{
    struct zt_recipe *r =
        load_model("{model_type: llama, rope_scaling: {rope_type: default, factor: 8}}", DATA);
    CHECK_LOADED(r);
    CHECK(has_note(r, "model.rope_scaling.factor: not used: rope_type is default"));
    CHECK_INT(r->n_notes, 1);
    zt_recipe_free(r);
    r = load_model(
        "{model_type: llama, rope_scaling: {type: linear, factor: 8, low_freq_factor: 1, "
        "original_max_position_embeddings: 64}}",
        DATA);
    CHECK_LOADED(r);
    CHECK(has_note(r, "model.rope_scaling.low_freq_factor: not used: rope_type is linear"));
    CHECK(has_note(r, "original_max_position_embeddings: not used: rope_type is linear"));
    CHECK_INT(r->n_notes, 2);
    zt_recipe_free(r);
}

/* rope_theta in its new place; a key that says nothing beside it is no second name. */
TEST(recipe_rope_parameters)
{
    static const char *const models[] = {
        "{model_type: llama, rope_parameters: {rope_theta: 5e5, rope_type: default}}",
        "{model_type: llama, rope_scaling: null, rope_parameters: {rope_theta: 5e5}}",
        "{model_type: llama, rope_parameters: {rope_theta: 5e5}, rope_scaling: null}",
        "{model_type: llama, rope_theta: 5e5, rope_parameters: {rope_theta: 500000.0}}",
        "{model_type: llama, rope_theta: 5e5, rope_scaling: {}}"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(models); i++) {
        struct zt_recipe *r = load_model(models[i], DATA);
        CHECK_LOADED(r);
        CHECK_NEAR(r->model.rope.theta, 5e5, 0);
        CHECK_INT(r->model.rope.scaling, ZT_ROPE_SCALING_NONE);
        zt_recipe_free(r);
    }
    struct zt_recipe *r = load_model(
        "{model_type: llama, rope_scaling: {type: linear, rope_type: linear, factor: 2.5}}", DATA);
    CHECK_LOADED(r);
    CHECK_INT(r->model.rope.scaling, ZT_ROPE_SCALING_LINEAR);
    CHECK_NEAR(r->model.rope.factor, 2.5, 0);
    zt_recipe_free(r);
}

/* Printed and loaded again, as workers get it, a recipe says the same of positions and windows. */
TEST(recipe_rope_and_window_round_trip)
{
    static const char *const models[] = {
        "{model_type: llama, attention_bias: true, mlp_bias: true, rope_parameters: {rope_theta: "
        "5e5, rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
        "original_max_position_embeddings: 8192}}",
        "{model_type: mistral, sliding_window: null}", "{model_type: mistral}",
        "{model_type: qwen2, use_sliding_window: true}",
        "{model_type: qwen3, attention_bias: true}"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(models); i++) {
        struct zt_str text = {0};
        struct zt_recipe *r = load_model(models[i], DATA);
        CHECK_LOADED(r);
        zt_recipe_print(r, &text);
        struct zt_recipe *again = load_text(zt_str_get(&text), 1);
        zt_str_release(&text);
        CHECK_LOADED(again);
        CHECK(memcmp(&again->model.rope, &r->model.rope, sizeof r->model.rope) == 0);
        CHECK_INT(again->model.attention_bias, r->model.attention_bias);
        CHECK_INT(again->model.mlp_bias, r->model.mlp_bias);
        CHECK_STR(value_of(again, "model.sliding_window", false),
                  value_of(r, "model.sliding_window", false));
        CHECK_INT(again->n_values, r->n_values);
        zt_recipe_free(again);
        zt_recipe_free(r);
    }
}

/* What was resolved is so on every host: a worker looks into no config.json of its own. */
TEST(recipe_resolved_reads_no_config)
{
    static const char tiny[] = "\"model_type\": \"llama\", \"hidden_size\": 8, "
                               "\"num_attention_heads\": 1, \"num_hidden_layers\": 1";
    char dir[] = "/tmp/zt-test-model-XXXXXX", path[64], model[128];
    struct zt_str config = {0}, text = {0};
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(model, sizeof model, "{from: %s}", dir);
    zt_str_printf(&config, "{%s}", tiny);
    CHECK_OK(zt_write_file_atomic(path, config.buf, config.len, &err), err);
    struct zt_recipe *r = load_model(model, DATA);
    CHECK_LOADED(r);
    zt_recipe_print(r, &text);

    zt_str_reset(&config);
    zt_str_printf(&config, "{%s, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", tiny);
    CHECK_OK(zt_write_file_atomic(path, config.buf, config.len, &err), err);
    const struct zt_recipe_opts o = {
        .path = "recipe", .text = zt_str_get(&text), .n_ranks = 1, .resolved = true};
    for (int gone = 0; gone < 2; gone++) {
        struct zt_recipe *again = load_opts(&o);
        CHECK_LOADED(again);
        CHECK(memcmp(&again->model.rope, &r->model.rope, sizeof r->model.rope) == 0);
        CHECK_STR(again->model.from, dir);
        CHECK_INT(again->model.n_embd, 8);
        CHECK_INT(again->n_values, r->n_values);
        zt_recipe_free(again);
        if (!gone)
            CHECK(unlink(path) == 0 && rmdir(dir) == 0);
    }
    zt_str_release(&config);
    zt_str_release(&text);
    zt_recipe_free(r);
}

/* A window that no sequence reaches changes nothing. */
TEST(recipe_sliding_window)
{
    static const struct {
        const char *model;
        int64_t longest;
    } c[] = {{"{model_type: mistral, sliding_window: 100}", 100},
             {"{model_type: mistral, sliding_window: null}", 131072},
             {"{model_type: mistral}", 4096},
             {"{model_type: mistral, sliding_window: auto}", 4096},
             {"{model_type: qwen2, sliding_window: 100}", 32768},
             {"{model_type: qwen2, use_sliding_window: true, sliding_window: null}", 32768},
             {"{model_type: qwen2, use_sliding_window: true}", 4096},
             {"{model_type: qwen3, sliding_window: 100, use_sliding_window: true}", 100}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(c); i++)
        for (int longer = 0; longer < 2; longer++) {
            char data[64];
            snprintf(data, sizeof data, "data: {train: x.bin, seq_len: %d}\n",
                     (int)c[i].longest + longer);
            struct zt_recipe *r = load_model(c[i].model, data);
            if (!longer)
                CHECK_LOADED(r);
            CHECK(longer == !r);
            CHECK(!longer || strstr(err.msg, "attention in a sliding window is not carried out") ||
                  strstr(err.msg, "more than the model's"));
            zt_recipe_free(r);
        }
}

TEST(recipe_attention_dropout)
{
    struct zt_recipe *r = load_model("{model_type: llama, attention_dropout: 0.1}", DATA);
    CHECK_LOADED(r);
    CHECK_NEAR(r->model.attn_pdrop, 0.1, 0);
    CHECK_NEAR(r->model.resid_pdrop, 0, 0);
    zt_recipe_free(r);
}

static const struct {
    const char *model, *want;
    int code;
} refused[] = {
    {"{model_type: gemma}",
     "r.yaml:3:21: model.model_type: must be gpt2, llama, mistral, qwen2 or qwen3, not "
     "\"gemma\"",
     ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {rope_type: yarn, factor: 4, beta_fast: 32}}",
     "r.yaml:3:54: model.rope_scaling.rope_type: yarn is understood, but not carried out yet; "
     "use default, linear or llama3",
     ZT_EUNSUPPORTED},
    {"{model_type: llama, rope_scaling: {type: dynamic, factor: 4}}",
     "r.yaml:3:49: model.rope_scaling.type: dynamic is understood, but not carried out yet; "
     "use default, linear or llama3",
     ZT_EUNSUPPORTED},
    {"{model_type: llama, rope_parameters: {rope_type: bent}}",
     "r.yaml:3:57: model.rope_parameters.rope_type: must be default, linear or llama3, not "
     "\"bent\"",
     ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {factor: 4}}",
     "r.yaml:3:51: model.rope_scaling: rope_type is missing: linear or llama3", ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {rope_type: linear}}",
     "r.yaml:3:54: model.rope_scaling: linear needs factor", ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {type: llama3, factor: 8, low_freq_factor: 4, "
     "high_freq_factor: 1}}",
     "r.yaml:3:49: model.rope_scaling: llama3 needs original_max_position_embeddings\n"
     "r.yaml:3:106: model.rope_scaling.high_freq_factor: 1 must be above low_freq_factor, "
     "which is 4",
     ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {type: linear, rope_type: llama3, factor: 2}}",
     "r.yaml:3:49: model.rope_scaling.type: linear, but rope_type is llama3\n"
     "r.yaml:3:68: model.rope_scaling: llama3 needs low_freq_factor\n"
     "r.yaml:3:68: model.rope_scaling: llama3 needs high_freq_factor\n"
     "r.yaml:3:68: model.rope_scaling: llama3 needs original_max_position_embeddings",
     ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {type: linear, factor: 2}, rope_parameters: {}}",
     "r.yaml:3:69: \"rope_parameters\" and \"rope_scaling\" (line 3) are one key by two names",
     ZT_EINPUT},
    {"{model_type: llama, rope_theta: 1e4, rope_parameters: {rope_theta: 5e5}}",
     "r.yaml:3:75: model.rope_scaling.rope_theta: 500000, but model.rope_theta is 10000",
     ZT_EINPUT},
    {"{model_type: llama, rope_theta: 0}",
     "r.yaml:3:40: model.rope_theta: 0 is out of range; it must be at least 1", ZT_EINPUT},
    {"{model_type: llama, rope_scaling: {facter: 2}}",
     "r.yaml:3:43: unknown key \"model.rope_scaling.facter\"; did you mean \"factor\"?", ZT_EINPUT},
    {"{model_type: llama, partial_rotary_factor: 0.5}",
     "r.yaml:3:51: model.partial_rotary_factor: 0.5: turning a part of each head is not "
     "carried out",
     ZT_EUNSUPPORTED},
    {"{model_type: llama, head_dim: 5}",
     "r.yaml:3:38: model.head_dim: 5 is odd; rotary positions turn pairs", ZT_EINPUT},
    {"{model_type: llama, n_embd: 10, n_head: 2, num_key_value_heads: 2}",
     "r.yaml:3:48: model.head_dim: 5 is odd; rotary positions turn pairs", ZT_EINPUT},
    {"{model_type: llama, n_embd: 10, n_head: 4}",
     "r.yaml:3:48: model: n_embd 10 is not n_head 4 x head_dim 2", ZT_EINPUT},
    {"{model_type: qwen2, n_head: 14, n_embd: 896, num_key_value_heads: 3}",
     "r.yaml:3:74: model: n_head 14 is not a multiple of num_key_value_heads 3", ZT_EINPUT},
    {"{model_type: qwen2, attention_bias: false}",
     "r.yaml:3:44: model.attention_bias: not a choice of qwen2, which has biases of q, k and v "
     "always",
     ZT_EUNSUPPORTED},
    {"{model_type: mistral, attention_bias: true, mlp_bias: true}",
     "r.yaml:3:46: model.attention_bias: not a choice of mistral, which has no biases\n"
     "r.yaml:3:62: model.mlp_bias: not a choice of mistral, which has no biases there",
     ZT_EUNSUPPORTED},
    {"{model_type: gpt2, rope_theta: 1e4}",
     "r.yaml:3:39: model.rope_theta: not a choice of gpt2, which has learned positions",
     ZT_EUNSUPPORTED},
    {"{model_type: llama, hidden_act: gelu}",
     "r.yaml:3:40: model.activation_function: gelu is not carried out; use silu", ZT_EUNSUPPORTED},
    {"{model_type: llama, attention_dropout: 1}",
     "r.yaml:3:47: model.attention_dropout: 1 is out of range; it must be below 1", ZT_EINPUT},
    {"{model_type: qwen2, resid_pdrop: 0.1, embd_pdrop: 0.0}",
     "r.yaml:3:41: model.resid_pdrop: not a choice of qwen2, which has dropout in attention "
     "only; set attention_dropout",
     ZT_EINPUT},
};

TEST(recipe_model_errors_word_for_word)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(refused); i++) {
        struct zt_recipe *r = load_model(refused[i].model, DATA);
        zt_recipe_free(r);
        if (r)
            FAIL("loaded: %s", refused[i].model);
        CHECK_STR(err.msg, refused[i].want);
        CHECK_INT(err.code, refused[i].code);
    }
}

TEST_MAIN()
