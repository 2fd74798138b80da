#include "harness.h"

#include "base/err.h"
#include "model/model.h"
#include "unit/models.h"

/* Names and shapes of the case fixture_llama (S06: 21 names, 4336 parameters). */
TEST(llama_describes_the_fixture)
{
    static const struct {
        const char *name;
        int64_t dim0, dim1;
        int home;
    } want[] = {
        {"model.embed_tokens.weight", 13, 16, 0},
        {"model.layers.0.input_layernorm.weight", 16, 0, 1},
        {"model.layers.0.self_attn.q_proj.weight", 16, 16, 1},
        {"model.layers.0.self_attn.k_proj.weight", 8, 16, 1},
        {"model.layers.0.self_attn.v_proj.weight", 8, 16, 1},
        {"model.layers.0.self_attn.o_proj.weight", 16, 16, 1},
        {"model.layers.0.post_attention_layernorm.weight", 16, 0, 1},
        {"model.layers.0.mlp.gate_proj.weight", 24, 16, 1},
        {"model.layers.0.mlp.up_proj.weight", 24, 16, 1},
        {"model.layers.1.mlp.down_proj.weight", 16, 24, 2},
        {"model.norm.weight", 16, 0, 3},
        {"lm_head.weight", 13, 16, 3},
    };
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    CHECK_OK(zt_model_build(&llama_fixture, &arena, &m, &err), err);
    CHECK_INT(m->n_params, 21);
    CHECK_INT(m->n_elems, 4336);
    CHECK_INT(m->n_segments, 4);
    for (size_t i = 0; i < ZT_ARRAY_LEN(want); i++) {
        const int p = zt_model_find_param(m, want[i].name);
        if (p < 0)
            FAIL("no parameter %s", want[i].name);
        CHECK_INT(m->params[p].dims[0], want[i].dim0);
        CHECK_INT(m->params[p].dims[1], want[i].dim1);
        CHECK_INT(m->params[p].home_segment, want[i].home);
        CHECK_INT(m->params[p].decay, want[i].dim1 != 0);
    }
    zt_arena_release(&arena);
}

TEST(llama_tied_head_uses_the_embedding)
{
    struct zt_model_config cfg = llama_fixture;
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    cfg.tie_embeddings = true;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    CHECK_INT(m->n_elems, 4336 - 13 * 16);
    const struct zt_segment *head = &m->segments[m->n_segments - 1];
    CHECK_INT(head->n_params, 2);
    CHECK_INT(head->params[1], 0);
    zt_arena_release(&arena);
}

static bool has(const struct zt_model *m, const char *name, int64_t dim0, int64_t dim1)
{
    const int p = zt_model_find_param(m, name);
    return p >= 0 && m->params[p].dims[0] == dim0 && m->params[p].dims[1] == dim1 &&
           m->params[p].decay == (dim1 != 0);
}

/* Biases and head norms are there when the configuration says so, and start at 0 and 1. */
TEST(llama_biases_and_head_norms)
{
    struct zt_model_config cfg = llama_fixture;
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    cfg.head_dim = 6; /* q is 24 wide, the residual stream 16 */
    cfg.qkv_bias = true;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    CHECK_INT(m->n_params, 21 + 2 * 3);
    CHECK(has(m, "model.layers.1.self_attn.q_proj.weight", 24, 16));
    CHECK(has(m, "model.layers.1.self_attn.o_proj.weight", 16, 24));
    CHECK(has(m, "model.layers.1.self_attn.q_proj.bias", 24, 0));
    CHECK(has(m, "model.layers.1.self_attn.v_proj.bias", 12, 0));
    CHECK_INT(zt_model_find_param(m, "model.layers.1.self_attn.o_proj.bias"), -1);
    CHECK_INT(m->params[zt_model_find_param(m, "layers.0.self_attn.k_proj.bias")].init,
              ZT_INIT_ZEROS);

    cfg.o_bias = cfg.mlp_bias = cfg.qk_norm = true;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    CHECK_INT(m->n_params, 21 + 2 * (3 + 1 + 3 + 2));
    CHECK(has(m, "model.layers.0.self_attn.o_proj.bias", 16, 0));
    CHECK(has(m, "model.layers.0.mlp.up_proj.bias", 24, 0));
    CHECK(has(m, "model.layers.0.mlp.down_proj.bias", 16, 0));
    CHECK(has(m, "model.layers.0.self_attn.q_norm.weight", 6, 0));
    CHECK_INT(m->params[zt_model_find_param(m, "layers.0.self_attn.k_norm.weight")].init,
              ZT_INIT_ONES);
    zt_arena_release(&arena);
}

static void known_size(struct zt_model_config cfg, int64_t n_elems)
{
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    cfg.type = ZT_MODEL_LLAMA;
    cfg.n_positions = 4096;
    cfg.norm_eps = 1e-5f;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    CHECK_INT(m->n_elems, n_elems);
    zt_arena_release(&arena);
}

/* As their makers count them: Llama 2 7B and 70B, Llama 3.2 1B, Qwen 2.5 0.5B, Qwen 3 0.6B. */
TEST(llama_known_models)
{
    known_size(
        (struct zt_model_config){
            .n_layer = 32, .n_head = 32, .n_embd = 4096, .n_inner = 11008, .vocab_size = 32000},
        6738415616);
    known_size((struct zt_model_config){.n_layer = 80,
                                        .n_head = 64,
                                        .n_kv_head = 8,
                                        .n_embd = 8192,
                                        .n_inner = 28672,
                                        .vocab_size = 32000},
               68976648192);
    known_size((struct zt_model_config){.n_layer = 16,
                                        .n_head = 32,
                                        .n_kv_head = 8,
                                        .n_embd = 2048,
                                        .n_inner = 8192,
                                        .vocab_size = 128256,
                                        .tie_embeddings = true},
               1235814400);
    known_size((struct zt_model_config){.n_layer = 24,
                                        .n_head = 14,
                                        .n_kv_head = 2,
                                        .n_embd = 896,
                                        .n_inner = 4864,
                                        .vocab_size = 151936,
                                        .tie_embeddings = true,
                                        .qkv_bias = true},
               494032768);
    known_size((struct zt_model_config){.n_layer = 28,
                                        .n_head = 16,
                                        .n_kv_head = 8,
                                        .head_dim = 128,
                                        .n_embd = 1024,
                                        .n_inner = 3072,
                                        .vocab_size = 151936,
                                        .tie_embeddings = true,
                                        .qk_norm = true},
               596049920);
}

/* Llama 2 7B: work is 6 FLOPs a weight of a product plus attention. */
TEST(llama_sizes_and_flops)
{
    const struct zt_model_config cfg = {.type = ZT_MODEL_LLAMA,
                                        .n_layer = 32,
                                        .n_head = 32,
                                        .n_embd = 4096,
                                        .n_inner = 11008,
                                        .vocab_size = 32000,
                                        .n_positions = 4096,
                                        .norm_eps = 1e-5f,
                                        .initializer_range = 0.02f};
    const struct zt_shape shape = {.batch = 2,
                                   .seq_len = 2048,
                                   .dtype = ZT_BF16,
                                   .dev_kind = ZT_DEV_CUDA,
                                   .n_threads = 1,
                                   .train = true};
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    const double weights = (double)m->n_elems - 32000.0 * 4096 - 65.0 * 4096;
    const double attention = 3.0 * 32 * 2 * 4096 * 2049; /* causal pairs: (T + 1) / 2 a token */
    CHECK_NEAR(zt_model_train_flops_per_token(m, &shape) / (6 * weights + attention), 1, 1e-9);

    /* A block's backward does twice the products of forward, and 5 of attention for 2. */
    struct zt_segment_size size;
    const double rows = 2 * 2048, att = attention / 3 / 32 * rows;
    m->ops->size(m, 5, &shape, &size);
    CHECK_NEAR(size.bwd_flops / (2 * (size.fwd_flops - att) + 2.5 * att), 1, 1e-9);

    /* It keeps q, k, v, attention and x_mid, gate and up, 2 bytes each, and little else. */
    const size_t kept = (size_t)rows * (5 * 4096 + 2 * 11008) * 2;
    CHECK_INT(size.x_out, 2 * 2048 * 4096 * 2);
    CHECK(size.act >= kept && size.act < kept + kept / 100);

    /* Selective recomputation: attention and x_mid are kept, all but o_proj and down_proj is made again. */
    const size_t part = (size_t)rows * 2 * 4096 * 2;
    CHECK(size.act_kept >= part && size.act_kept < part + part / 100);
    CHECK_NEAR(size.inner_flops, 2 * rows * 4096 * (3 * 4096 + 2 * 11008), 1);
    CHECK_NEAR(size.act_flops, size.inner_flops + att + 2 * rows * 4096 * 4096, 1);
    zt_arena_release(&arena);
}

static void refused(void (*change)(struct zt_model_config *), const char *key)
{
    struct zt_model_config cfg = llama_fixture;
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    change(&cfg);
    CHECK_INT(zt_model_build(&cfg, &arena, &m, &err), ZT_EINPUT);
    if (!strstr(err.msg, key))
        FAIL("\"%s\" does not name %s", err.msg, key);
    zt_arena_release(&arena);
}

#define REFUSED(change_name, key, ...)                                                             \
    static void change_name(struct zt_model_config *c)                                             \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    TEST(llama_refuses_##change_name)                                                              \
    {                                                                                              \
        refused(change_name, key);                                                                 \
    }

REFUSED(heads_that_do_not_divide, "num_key_value_heads", c->n_kv_head = 3)
REFUSED(no_inner_width, "intermediate_size", c->n_inner = 0)
REFUSED(an_odd_head, "head_dim", c->head_dim = 5)
REFUSED(a_head_wider_than_attention_takes, "head_dim", c->head_dim = 1026)
REFUSED(a_theta_below_1, "rope_theta", c->rope.theta = 0.5)
REFUSED(a_theta_of_nan, "rope_theta", c->rope.theta = NAN)
REFUSED(dropout_of_the_residual_stream, "attention_dropout", c->resid_pdrop = 0.1)
REFUSED(scaling_without_a_factor, "factor", c->rope.kind = ZT_ROPE_LINEAR)
REFUSED(bands_in_the_wrong_order, "low_freq_factor",
        c->rope = ((struct zt_rope_rule){ZT_ROPE_LLAMA3, 1e4, 8, 4, 1, 8192}))

TEST_MAIN()
