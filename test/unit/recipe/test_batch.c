#include "recipe_test.h"

/* Case B01: the batch triangle. 0: not given; an accumulation of -1 stands for a written 0. */
static const struct row {
    int ranks, train, micro, accum;
    int want_train, want_micro, want_accum; /* 0: rejected */
} rows[] = {
    {2, 32, 16, 1, 32, 16, 1},
    {2, 32, 8, 2, 32, 8, 2},
    {2, 32, 16, 0, 32, 16, 1},
    {2, 32, 0, 2, 32, 8, 2},
    {2, 0, 8, 2, 32, 8, 2},
    {2, 32, 0, 0, 32, 16, 1},
    {2, 0, 16, 0, 32, 16, 1},
    {8, 512, 2, 0, 512, 2, 32},
    {5, 40, 4, 0, 40, 4, 2},
    {2, 0, 0, 4, 0, 0, 0},
    {2, 33, 17, 2, 0, 0, 0},
    {2, 32, 18, 1, 0, 0, 0},
    {1, 64, 4, 8, 0, 0, 0},
    {4, 8, 2, 1, 8, 2, 1},
    {4, 30, 4, 0, 0, 0, 0},
    {8, 7, 0, 0, 0, 0, 0},
    {3, 32, 0, 0, 0, 0, 0},
    {4, 0, 2, -1, 0, 0, 0},
    /* nanoGPT: accumulation 40 over all ranks, 12 x 1024 tokens */
    {1, 480, 12, 0, 480, 12, 40},
    {8, 480, 12, 0, 480, 12, 5},
    {40, 480, 12, 0, 480, 12, 1},
    {16, 480, 12, 0, 0, 0, 0},
};

static void add(struct zt_str *s, const char *key, int v)
{
    if (v)
        zt_str_printf(s, "%s: %d\n", key, v < 0 ? 0 : v);
}

static void check_row(const struct row *w)
{
    struct zt_str s = {0};
    zt_str_puts(&s, TINY);
    add(&s, "train_batch_size", w->train);
    add(&s, "train_micro_batch_size_per_gpu", w->micro);
    add(&s, "gradient_accumulation_steps", w->accum);
    struct zt_recipe *r = load_text(zt_str_get(&s), w->ranks);
    zt_str_release(&s);
    if (w->want_train == 0) {
        zt_recipe_free(r);
        CHECK(!r);
        CHECK_INT(err.code, ZT_EINPUT);
        char ranks[32];
        snprintf(ranks, sizeof ranks, ", %d rank%s: ", w->ranks, w->ranks == 1 ? "" : "s");
        CHECK(strstr(err.msg, "train_batch_size ") && strstr(err.msg, ranks) &&
              strstr(err.msg, "train_micro_batch_size_per_gpu ") &&
              strstr(err.msg, "gradient_accumulation_steps "));
        return;
    }
    CHECK_LOADED(r);
    struct zt_recipe_batch b = r->batch;
    zt_recipe_free(r);
    CHECK_INT(b.train, w->want_train);
    CHECK_INT(b.micro, w->want_micro);
    CHECK_INT(b.accum, w->want_accum);
}

TEST(recipe_batch_triangle)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++) {
        check_row(&rows[i]);
        RETURN_IF_FAILED();
    }
}

TEST(recipe_batch_messages)
{
    CHECK(!load_text(TINY "train_batch_size: 33\ntrain_micro_batch_size_per_gpu: 17\n"
                          "gradient_accumulation_steps: 2\n",
                     2));
    CHECK_STR(err.msg, "r.yaml:3:19: train_batch_size 33, train_micro_batch_size_per_gpu 17, "
                       "gradient_accumulation_steps 2, 2 ranks: the product is 68, not 33");
    CHECK(!load_text(TINY "train_batch_size: 30\ntrain_micro_batch_size_per_gpu: 4\n", 4));
    CHECK(strstr(err.msg, "4 ranks: 30 is not a multiple of 16"));
    CHECK(!load_text(TINY, 2));
    CHECK_STR(err.msg, "r.yaml: train_batch_size not given, train_micro_batch_size_per_gpu not "
                       "given, gradient_accumulation_steps not given, 2 ranks: give "
                       "train_batch_size or train_micro_batch_size_per_gpu");
    CHECK(!load_text(TINY "train_micro_batch_size_per_gpu: 9007199254740992\n"
                          "gradient_accumulation_steps: 65536\n",
                     4096));
    CHECK(strstr(err.msg, "the product is too large"));
}

/* More would not fit an int further on: 2^32 + 1 must not become 1. */
TEST(recipe_batch_accumulation_has_an_end)
{
    static const char *const too_many[] = {"65537", "4294967297", "9007199254740992"};
    struct zt_recipe *r =
        load_text(TINY "train_batch_size: 65536\ntrain_micro_batch_size_per_gpu: 1\n", 1);
    CHECK_LOADED(r);
    CHECK_INT(r->batch.accum, 65536);
    zt_recipe_free(r);
    for (size_t i = 0; i < ZT_ARRAY_LEN(too_many); i++) {
        struct zt_str s = {0};
        char want[64];
        zt_str_printf(&s, TINY "train_batch_size: %s\ntrain_micro_batch_size_per_gpu: 1\n",
                      too_many[i]);
        CHECK(!load_text(zt_str_get(&s), 1));
        CHECK_INT(err.code, ZT_EINPUT);
        snprintf(want, sizeof want, "they make %s micro-batches a step", too_many[i]);
        CHECK(strstr(err.msg, want));
        zt_str_release(&s);
    }
    CHECK(!load_text(TINY "train_micro_batch_size_per_gpu: 1\n"
                          "gradient_accumulation_steps: 65537\n",
                     1));
    CHECK(strstr(err.msg, "it must be at most 65536"));
}

TEST(recipe_batch_of_a_plan)
{
    struct zt_recipe *r = plan_text("model: {params: 7e9}\n", 64);
    CHECK_LOADED(r);
    CHECK_INT(r->batch.train, 64);
    CHECK_INT(r->batch.micro, 1);
    CHECK_NEAR(r->model.params, 7e9, 0);
    CHECK(!r->model.model_type);
    zt_recipe_free(r);
    CHECK(!plan_text("model: {params: 7e9}\ngradient_accumulation_steps: 4\n", 64));
}

TEST_MAIN()
