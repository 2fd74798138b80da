/*
 * test/cases/fixture_*: Hugging Face checkpoints with the answers of a float64 reference
 * (expected.json). Judged as the cases say: 1e-5 on losses, 1e-4 relative on norms.
 */
#include "driver.h"

#include <jansson.h>

#include "ckpt/safetensors.h"
#include "unit/models.h"

enum { B = 4, T = 6, MAX_VOCAB = 13 };

struct fixture_kind {
    const char *dir;
    const struct zt_model_config *cfg;
};

static const struct fixture_kind gpt2 = {"test/cases/fixture_gpt2", &gpt2_fixture};
static const struct fixture_kind llama = {"test/cases/fixture_llama", &llama_fixture};
static const struct fixture_kind *const kinds[] = {&gpt2, &llama};

struct fixture {
    struct driver d;
    json_t *expected;
    int32_t tokens[B * T], targets[B * T], positions[B * T];
};

static void fixture_open(struct fixture *f, const struct fixture_kind *kind)
{
    struct zt_err err;
    struct zt_weights w;
    char path[128];
    driver_init(&f->d, kind->cfg, B, T, ZT_F32, ZT_F32);
    snprintf(path, sizeof path, "%s/expected.json", kind->dir);
    f->expected = json_load_file(path, 0, NULL);
    if (!f->expected || zt_weights_open(kind->dir, f->d.m, &w, &err)) {
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

static float *fixture_weight(struct fixture *f, int layer, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, name, layer);
    const int i = zt_model_find_param(f->d.m, full);
    return i < 0 ? NULL : f->d.w[i].ptr;
}

TEST(fixture_loss_and_gradient_norms)
{
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        struct fixture f;
        fixture_open(&f, kinds[k]);
        const struct zt_batch b = fixture_batch(&f);
        const double loss = driver_train(&f.d, &b, B * T, false) / (B * T);
        CHECK_NEAR(loss, number(f.expected, "loss"), 1e-5);
        CHECK_NEAR(driver_grad_norm(&f.d) / number(f.expected, "grad_norm"), 1, 1e-4);
        json_t *norms = json_object_get(f.expected, "grad_norm_per_tensor"), *value;
        const char *name;
        CHECK_INT(json_object_size(norms), f.d.m->n_params);
        json_object_foreach(norms, name, value)
        {
            const int i = zt_model_find_param(f.d.m, name);
            CHECK(i >= 0);
            const double want = json_number_value(value), got = sqrt(driver_grad_sq(&f.d, i));
            if (!(fabs(got - want) <= 1e-4 * want))
                FAIL("norm of %s is %.9g, not %.9g", name, got, want);
        }
        fixture_close(&f);
    }
}

TEST(fixture_loss_of_each_sequence)
{
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        struct fixture f;
        fixture_open(&f, kinds[k]);
        const json_t *want = json_object_get(f.expected, "loss_per_sequence");
        f.d.shape.batch = 1;
        for (int s = 0; s < B; s++) {
            const struct zt_batch b = {f.tokens + s * T, f.targets + s * T, f.positions, NULL};
            CHECK_NEAR(driver_eval(&f.d, &b, NULL, 0) / T,
                       json_number_value(json_array_get(want, (size_t)s)), 1e-5);
        }
        fixture_close(&f);
    }
}

TEST(fixture_last_logits)
{
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        struct fixture f;
        float logits[B * MAX_VOCAB];
        fixture_open(&f, kinds[k]);
        const struct zt_batch b = fixture_batch(&f);
        driver_eval(&f.d, &b, logits, T - 1);
        const json_t *want = json_object_get(f.expected, "logits_seq0_last");
        CHECK_INT(json_array_size(want), kinds[k]->cfg->vocab_size);
        for (size_t i = 0; i < json_array_size(want); i++)
            CHECK_NEAR(logits[i], json_number_value(json_array_get(want, i)), 1e-5);
        fixture_close(&f);
    }
}

/* B03 (c): 14 of 24 targets count, none of sequence 2. */
TEST(fixture_ignored_targets)
{
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        struct fixture f;
        fixture_open(&f, kinds[k]);
        const json_t *masked = json_object_get(f.expected, "masked");
        const json_t *mask = json_object_get(masked, "mask");
        for (size_t i = 0; i < B * T; i++) {
            if (!json_integer_value(json_array_get(json_array_get(mask, i / T), i % T)))
                f.targets[i] = ZT_IGNORE_TARGET;
        }
        const struct zt_batch b = fixture_batch(&f);
        CHECK_INT(driver_count(&f.d, &b), 14);
        CHECK_NEAR(driver_train(&f.d, &b, 14, false) / 14, number(masked, "loss"), 1e-5);
        CHECK_NEAR(driver_grad_norm(&f.d) / number(masked, "grad_norm"), 1, 1e-4);
        fixture_close(&f);
    }
}

/* ---- what would go wrong silently: the loss must tell ---- */

/* D09: what the loss would be with the square c_proj matrices transposed. */
TEST(fixture_gpt2_transposed_projection_is_seen)
{
    struct fixture f;
    fixture_open(&f, &gpt2);
    for (int layer = 0; layer < 2; layer++) {
        float *w = fixture_weight(&f, layer, "h.%d.attn.c_proj.weight");
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

/* Row i of w (n_rows, n_cols) becomes row order[i] of what it was. */
static void permute_rows(float *w, int n_rows, int n_cols, const int *order)
{
    float old[16 * 16];
    memcpy(old, w, (size_t)(n_rows * n_cols) * sizeof *w);
    for (int i = 0; i < n_rows; i++)
        memcpy(w + i * n_cols, old + order[i] * n_cols, (size_t)n_cols * sizeof *w);
}

/*
 * D10: the loss of the interleaved form. It is the half-split form of weights whose rows are
 * (0, 2, 1, 3) of each head of 4.
 */
TEST(fixture_llama_interleaved_rotation_is_seen)
{
    struct fixture f;
    fixture_open(&f, &llama);
    int order[16];
    for (int i = 0; i < 16; i++)
        order[i] = i / 4 * 4 + (i % 2) * 2 + i % 4 / 2;
    for (int layer = 0; layer < 2; layer++) {
        permute_rows(fixture_weight(&f, layer, "layers.%d.self_attn.q_proj.weight"), 16, 16, order);
        permute_rows(fixture_weight(&f, layer, "layers.%d.self_attn.k_proj.weight"), 8, 16, order);
    }
    const struct zt_batch b = fixture_batch(&f);
    CHECK_NEAR(driver_eval(&f.d, &b, NULL, 0) / (B * T), 2.681648905740, 1e-5);
    fixture_close(&f);
}

/*
 * D10: the loss with key/value heads tiled (0, 1, 0, 1) instead of repeated (0, 0, 1, 1). It is that
 * of query heads in the order 0, 2, 1, 3, for q_proj's rows and o_proj's columns.
 */
TEST(fixture_llama_tiled_heads_are_seen)
{
    struct fixture f;
    fixture_open(&f, &llama);
    int order[16];
    for (int i = 0; i < 16; i++)
        order[i] = (i / 4 % 2 * 2 + i / 8) * 4 + i % 4;
    for (int layer = 0; layer < 2; layer++) {
        float *o = fixture_weight(&f, layer, "layers.%d.self_attn.o_proj.weight"), t[16 * 16];
        permute_rows(fixture_weight(&f, layer, "layers.%d.self_attn.q_proj.weight"), 16, 16, order);
        for (int i = 0; i < 256; i++)
            t[i] = o[i % 16 * 16 + i / 16];
        permute_rows(t, 16, 16, order);
        for (int i = 0; i < 256; i++)
            o[i % 16 * 16 + i / 16] = t[i];
    }
    const struct zt_batch b = fixture_batch(&f);
    CHECK_NEAR(driver_eval(&f.d, &b, NULL, 0) / (B * T), 2.647067521155, 1e-5);
    fixture_close(&f);
}

TEST_MAIN()
