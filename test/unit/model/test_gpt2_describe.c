#include "harness.h"

#include "model/model.h"
#include "unit/models.h"

static const struct zt_param_spec *spec(const struct zt_model *m, const char *name)
{
    int i = zt_model_find_param(m, name);
    if (i < 0)
        abort();
    return &m->params[i];
}

TEST(gpt2_124m_parameters)
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m;
    CHECK_OK(zt_model_build(&gpt2_124m, &arena, &m, &err), err);
    CHECK_INT(m->n_elems, 124439808); /* as Hugging Face counts gpt2 */
    CHECK_INT(m->n_params, 2 + 12 * 12 + 2);
    CHECK_INT(m->n_segments, 14);
    CHECK_INT(m->cfg.n_inner, 3072);
    CHECK_INT(m->cfg.head_dim, 64);
    CHECK_INT(m->cfg.n_kv_head, 12);

    /* Segment order; Hugging Face's names with and without its prefix. */
    CHECK_STR(m->params[0].name, "wte.weight");
    CHECK_STR(m->params[1].name, "wpe.weight");
    CHECK_STR(m->params[2].name, "h.0.ln_1.weight");
    CHECK_STR(m->params[13].name, "h.0.mlp.c_proj.bias");
    CHECK_STR(m->params[146].name, "ln_f.weight");
    CHECK_INT(zt_model_find_param(m, "transformer.h.11.attn.c_attn.bias"),
              zt_model_find_param(m, "h.11.attn.c_attn.bias"));
    CHECK_INT(zt_model_find_param(m, "lm_head.weight"), -1);
    CHECK_INT(zt_model_find_param(m, "h.12.ln_1.weight"), -1);

    /* Conv1D matrices are (in, out). */
    const struct zt_param_spec *fc = spec(m, "h.3.mlp.c_fc.weight");
    CHECK(fc->n_dims == 2 && fc->dims[0] == 768 && fc->dims[1] == 3072 && fc->decay);
    CHECK(!spec(m, "h.3.mlp.c_fc.bias")->decay && !spec(m, "ln_f.weight")->decay);
    CHECK_NEAR(fc->init_std, 0.02, 1e-9);
    CHECK_NEAR(spec(m, "h.3.mlp.c_proj.weight")->init_std, 0.02 / sqrt(24), 1e-9);
    CHECK_INT(spec(m, "h.3.ln_2.weight")->init, ZT_INIT_ONES);
    CHECK_INT(spec(m, "h.3.ln_2.bias")->init, ZT_INIT_ZEROS);
    CHECK(spec(m, "wte.weight")->scattered && spec(m, "wpe.weight")->scattered);
    CHECK_INT(spec(m, "h.3.ln_2.bias")->home_segment, 4);
    zt_arena_release(&arena);
}

TEST(gpt2_segments_tied_and_untied)
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m;
    struct zt_model_config cfg = gpt2_124m;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    const struct zt_segment *head = &m->segments[13];
    CHECK_STR(m->segments[0].name, "embed");
    CHECK_STR(m->segments[1].name, "h.0");
    CHECK_STR(head->name, "head");
    CHECK(!m->segments[0].weights_in_backward && m->segments[1].weights_in_backward);
    CHECK(head->fused_backward && !m->segments[1].fused_backward);
    CHECK(m->segments[5].layer == 4 && m->segments[5].n_params == 12 && head->layer == -1);
    CHECK(head->n_params == 3 && head->params[0] == 146 && head->params[2] == 0);
    CHECK_INT(m->params[0].home_segment, 0);

    cfg.tie_embeddings = false;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    head = &m->segments[13];
    CHECK(head->n_params == 3 && head->params[2] == 148);
    CHECK_STR(m->params[148].name, "lm_head.weight");
    CHECK(m->params[148].scattered && m->params[148].home_segment == 13);
    CHECK_INT(m->n_elems, 124439808 + 50257 * 768);
    zt_arena_release(&arena);
}

static void refused(void (*change)(struct zt_model_config *), const char *key)
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m;
    struct zt_model_config cfg = gpt2_124m;
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
    TEST(gpt2_refuses_##change_name)                                                               \
    {                                                                                              \
        refused(change_name, key);                                                                 \
    }

REFUSED(no_layers, "n_layer", c->n_layer = 0)
REFUSED(negative_width, "n_embd", c->n_embd = -768)
REFUSED(heads_that_do_not_divide, "n_head", c->n_head = 7)
REFUSED(a_head_dim_that_does_not_fit, "head", c->head_dim = 32)
REFUSED(grouped_heads, "n_kv_head", c->n_kv_head = 4)
REFUSED(no_vocabulary, "vocab_size", c->vocab_size = 0)
REFUSED(no_positions, "n_positions", c->n_positions = 0)
REFUSED(a_wild_inner_width, "n_inner", c->n_inner = INT64_MAX)
REFUSED(more_than_memory_can_hold, "parameters",
        (c->n_layer = 65536, c->n_embd = 1 << 22, c->n_head = 1 << 12))
REFUSED(a_head_wider_than_attention_takes, "head_dim", (c->n_embd = 1026, c->n_head = 1))
REFUSED(an_epsilon_of_nan, "epsilon", c->norm_eps = NAN)
REFUSED(dropping_everything, "resid_pdrop", c->resid_pdrop = 1)
REFUSED(a_negative_probability, "embd_pdrop", c->embd_pdrop = -0.1)
REFUSED(a_probability_of_nan, "attn_pdrop", c->attn_pdrop = NAN)

TEST(gpt2_sizes_and_flops)
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m;
    CHECK_OK(zt_model_build(&gpt2_124m, &arena, &m, &err), err);
    const struct zt_shape shape = {4, 1024, ZT_BF16, ZT_DEV_CPU, 2, true};
    const double rows = 4 * 1024, c = 768, v = 50257;
    struct zt_segment_size s;

    m->ops->size(m, 0, &shape, &s);
    CHECK(s.x_out == 4096 * 768 * 2 && s.act == 0 && s.fwd_flops == 0 && s.bwd_flops == 0);

    /* 12 C^2 weights, and two products over the T (T + 1) / 2 visible pairs. */
    const double attention = 2 * c * 4 * 1024 * 1025;
    m->ops->size(m, 1, &shape, &s);
    CHECK_NEAR(s.fwd_flops, 24 * rows * c * c + attention, 1);
    CHECK_NEAR(s.bwd_flops, 48 * rows * c * c + 2.5 * attention, 1);
    CHECK_INT(s.x_out, 4096 * 768 * 2);
    /* qkv 3, attention 1, x_mid 1, before and after GELU 4 + 4; four statistics and 12 lse a row */
    CHECK_INT(s.act, 4096 * (13 * 768 * 2 + 16 * 4));
    /* attention and x_mid with lse; made again by c_attn and c_fc, or all but mlp.c_proj */
    CHECK_INT(s.act_kept, 4096 * (2 * 768 * 2 + 12 * 4));
    CHECK_NEAR(s.inner_flops, 14 * rows * c * c, 1);
    CHECK_NEAR(s.act_flops, 16 * rows * c * c + attention, 1);
    const size_t train_tmp = s.fwd_tmp;

    struct zt_shape eval = shape;
    eval.train = false;
    m->ops->size(m, 1, &eval, &s);
    CHECK(s.act == 0 && s.act_kept == 0 && s.bwd_tmp == 0 && s.bwd_flops == 0);
    CHECK(s.fwd_tmp > train_tmp);

    /* The head holds a chunk of logits: no more than 32 MiB of 3.3 GB. */
    m->ops->size(m, 13, &shape, &s);
    CHECK_NEAR(s.fwd_flops, 2 * rows * c * v, 1);
    CHECK_NEAR(s.bwd_flops, 6 * rows * c * v, 1);
    CHECK(s.x_out == 0 && s.act == 0);
    CHECK(s.bwd_tmp < 1u << 30);

    const double forward = 12 * (24 * c * c + attention / rows) + 2 * c * v;
    CHECK_NEAR(zt_model_train_flops_per_token(m, &shape), 3 * forward, 1);
    zt_arena_release(&arena);
}

TEST_MAIN()
