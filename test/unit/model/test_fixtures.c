/*
 * test/cases/fixture_gpt2: a Hugging Face checkpoint with the answers of a float64 reference
 * (expected.json). Judged as the case says: 1e-5 on losses, 1e-4 relative on norms.
 */
#include "driver.h"

#include <jansson.h>

#include "ckpt/safetensors.h"

enum { B = 4, T = 6 };

struct fixture {
    struct driver d;
    json_t *expected;
    int32_t tokens[B * T], targets[B * T], positions[B * T];
};

static void fixture_open(struct fixture *f)
{
    const struct zt_model_config cfg = {
        .type = ZT_MODEL_GPT2,
        .n_layer = 2,
        .n_head = 2,
        .n_embd = 4,
        .vocab_size = 11,
        .n_positions = 8,
        .norm_eps = 1e-5f,
        .initializer_range = 0.02f,
        .tie_embeddings = true,
    };
    struct zt_err err;
    struct zt_weights w;
    driver_init(&f->d, &cfg, B, T, ZT_F32, ZT_F32);
    f->expected = json_load_file("test/cases/fixture_gpt2/expected.json", 0, NULL);
    if (!f->expected || zt_weights_open("test/cases/fixture_gpt2", f->d.m, &w, &err)) {
        printf("# %s\n", f->expected ? err.msg : "no expected.json");
        abort();
    }
    for (int i = 0; i < f->d.m->n_params; i++)
        zt_st_read_f32(w.tensors[i], 0, w.tensors[i]->n_elems, f->d.w[i].ptr);
    zt_weights_close(&w);
    const json_t *tokens = json_object_get(f->expected, "tokens");
    for (int i = 0; i < B * T; i++) {
        f->tokens[i] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)i));
        f->targets[i] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)i + 1));
        f->positions[i] = i % T;
    }
}

static void fixture_close(struct fixture *f)
{
    json_decref(f->expected);
    driver_release(&f->d);
}

static struct zt_batch fixture_batch(const struct fixture *f)
{
    return (struct zt_batch){f->tokens, f->targets, f->positions, NULL};
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

TEST(fixture_gpt2_loss_and_gradient_norms)
{
    struct fixture f;
    fixture_open(&f);
    const struct zt_batch b = fixture_batch(&f);
    CHECK_NEAR(driver_train(&f.d, &b, B * T, false) / (B * T), 2.654794190765, 1e-5);
    CHECK_NEAR(driver_grad_norm(&f.d) / 6.417574958241, 1, 1e-4);
    const json_t *norms = json_object_get(f.expected, "grad_norm_per_tensor");
    CHECK_INT(json_object_size(norms), f.d.m->n_params);
    for (int i = 0; i < f.d.m->n_params; i++) {
        char name[128];
        snprintf(name, sizeof name, "transformer.%s", f.d.m->params[i].name);
        const double want = number(norms, name), got = sqrt(driver_grad_sq(&f.d, i));
        if (!(fabs(got - want) <= 1e-4 * want))
            FAIL("norm of %s is %.9g, not %.9g", name, got, want);
    }
    fixture_close(&f);
}

TEST(fixture_gpt2_loss_of_each_sequence)
{
    struct fixture f;
    fixture_open(&f);
    const json_t *want = json_object_get(f.expected, "loss_per_sequence");
    f.d.shape.batch = 1;
    for (int s = 0; s < B; s++) {
        const struct zt_batch b = {f.tokens + s * T, f.targets + s * T, f.positions, NULL};
        CHECK_NEAR(driver_eval(&f.d, &b, NULL, 0) / T,
                   json_number_value(json_array_get(want, (size_t)s)), 1e-5);
    }
    fixture_close(&f);
}

TEST(fixture_gpt2_last_logits)
{
    struct fixture f;
    float logits[B][11];
    fixture_open(&f);
    const struct zt_batch b = fixture_batch(&f);
    driver_eval(&f.d, &b, logits[0], T - 1);
    const json_t *want = json_object_get(f.expected, "logits_seq0_last");
    for (size_t i = 0; i < 11; i++)
        CHECK_NEAR(logits[0][i], json_number_value(json_array_get(want, i)), 1e-5);
    fixture_close(&f);
}

/* B03 (c): 14 of 24 targets count, none of sequence 2. */
TEST(fixture_gpt2_ignored_targets)
{
    struct fixture f;
    fixture_open(&f);
    const json_t *masked = json_object_get(f.expected, "masked");
    const json_t *mask = json_object_get(masked, "mask");
    for (size_t i = 0; i < B * T; i++) {
        if (!json_integer_value(json_array_get(json_array_get(mask, i / T), i % T)))
            f.targets[i] = ZT_IGNORE_TARGET;
    }
    const struct zt_batch b = fixture_batch(&f);
    CHECK_INT(driver_count(&f.d, &b), 14);
    CHECK_NEAR(driver_train(&f.d, &b, 14, false) / 14, 2.410358708894, 1e-5);
    CHECK_NEAR(driver_grad_norm(&f.d) / 11.241217846826, 1, 1e-4);
    fixture_close(&f);
}

/*
 * D09: what the loss would be with the square c_proj matrices transposed; ours must be sensitive.
 */
TEST(fixture_gpt2_transposed_projection_is_seen)
{
    struct fixture f;
    fixture_open(&f);
    for (int layer = 0; layer < 2; layer++) {
        char name[64];
        snprintf(name, sizeof name, "h.%d.attn.c_proj.weight", layer);
        float *w = f.d.w[zt_model_find_param(f.d.m, name)].ptr;
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < i; j++) {
                const float x = w[i * 4 + j];
                w[i * 4 + j] = w[j * 4 + i];
                w[j * 4 + i] = x;
            }
        }
    }
    const struct zt_batch b = fixture_batch(&f);
    CHECK_NEAR(driver_eval(&f.d, &b, NULL, 0) / (B * T), 2.434529133561, 1e-5);
    fixture_close(&f);
}

TEST_MAIN()
