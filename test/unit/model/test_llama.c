#include "harness.h"

#include "base/err.h"
#include "model/model.h"

static const struct zt_model_config fixture = {.type = ZT_MODEL_LLAMA,
                                               .n_layer = 2,
                                               .n_head = 4,
                                               .n_kv_head = 2,
                                               .n_embd = 16,
                                               .n_inner = 24,
                                               .vocab_size = 13,
                                               .n_positions = 16,
                                               .norm_eps = 1e-5f,
                                               .initializer_range = 0.02f};

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
    CHECK_OK(zt_model_build(&fixture, &arena, &m, &err), err);
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
    struct zt_model_config cfg = fixture;
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

/* Known sizes: Llama 2's 7B and 70B; work is 6 FLOPs a weight of a product plus attention. */
TEST(llama_sizes_of_known_models)
{
    struct zt_model_config cfg = {.type = ZT_MODEL_LLAMA,
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
    CHECK_INT(m->n_elems, 6738415616);
    const double weights = (double)m->n_elems - 32000.0 * 4096 - 65.0 * 4096;
    const double attention = 3.0 * 32 * 2 * 4096 * 2049; /* causal pairs: (T + 1) / 2 a token */
    CHECK_NEAR(zt_model_train_flops_per_token(m, &shape) / (6 * weights + attention), 1, 1e-3);

    /* A block keeps q, k, v, attention and x_mid, and three inner ones, 2 bytes each. */
    struct zt_segment_size size;
    m->ops->size(m, 5, &shape, &size);
    CHECK_INT(size.x_out, 2 * 2048 * 4096 * 2);
    CHECK(size.act >= (size_t)2 * 2048 * (5 * 4096 + 3 * 11008) * 2);
    CHECK(size.act < (size_t)2 * 2048 * (6 * 4096 + 3 * 11008) * 2);

    cfg.n_layer = 80;
    cfg.n_head = 64;
    cfg.n_kv_head = 8;
    cfg.n_embd = 8192;
    cfg.n_inner = 28672;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    CHECK_INT(m->n_elems, 68976648192);
    zt_arena_release(&arena);
}

TEST(llama_refuses_heads_that_do_not_divide)
{
    struct zt_model_config cfg = fixture;
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    cfg.n_kv_head = 3;
    CHECK_INT(zt_model_build(&cfg, &arena, &m, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "num_key_value_heads"));
    cfg = fixture;
    cfg.n_inner = 0;
    CHECK_INT(zt_model_build(&cfg, &arena, &m, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "intermediate_size"));
    zt_arena_release(&arena);
}

TEST_MAIN()
