/*
 * The head's chunks: vocabularies and numbers of rows that do not fill them, and case D09.
 */
#include "driver.h"

#include <time.h>

#include "model/model_internal.h"

static struct zt_model_config tiny(int64_t vocab)
{
    return (struct zt_model_config){
        .type = ZT_MODEL_GPT2,
        .n_layer = 1,
        .n_head = 2,
        .n_embd = 8,
        .vocab_size = vocab,
        .n_positions = 64,
        .norm_eps = 1e-5f,
        .initializer_range = 0.02f,
        .tie_embeddings = true,
    };
}

enum { MAX_ROWS = 1024 };

struct rows {
    int32_t tokens[MAX_ROWS], targets[MAX_ROWS], positions[MAX_ROWS], seg_start[MAX_ROWS];
};

static void fill_rows(struct rows *r, int64_t n, int64_t seq_len, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++) {
        struct zt_philox_block x = zt_philox(5, ZT_RNG_SHUFFLE, 0, (uint64_t)i);
        r->tokens[i] = (int32_t)(x.v[0] % (uint64_t)vocab);
        r->targets[i] = x.v[1] % 7 == 0 ? ZT_IGNORE_TARGET : (int32_t)(x.v[2] % (uint64_t)vocab);
        r->positions[i] = (int32_t)(i % seq_len);
        r->seg_start[i] = 0;
    }
    r->targets[n - 1] = (int32_t)vocab - 1; /* the last column of the last row counts */
}

static struct zt_batch rows_from(const struct rows *r, int64_t o)
{
    return (struct zt_batch){r->tokens + o, r->targets + o, r->positions + o, r->seg_start + o};
}

/*
 * One call over all sequences, its chunks ending inside sequences, against a call for each sequence
 * (a single chunk): the same loss and gradients within rounding.
 */
static void chunks_agree(int64_t vocab, int64_t batch, int64_t seq_len, enum zt_dtype dtype,
                         double tol)
{
    static struct rows r;
    const struct zt_model_config cfg = tiny(vocab);
    struct driver whole, one;
    CHECK(batch * seq_len <= MAX_ROWS);
    fill_rows(&r, batch * seq_len, seq_len, vocab);
    driver_init(&whole, &cfg, batch, seq_len, dtype, ZT_F32);
    driver_init(&one, &cfg, 1, seq_len, dtype, ZT_F32);
    driver_init_weights(&whole, 3, 0.3f);
    driver_init_weights(&one, 3, 0.3f);
    const struct zt_batch all = rows_from(&r, 0);
    const int64_t counted = driver_count(&whole, &all);
    const double loss = driver_train(&whole, &all, counted, false);
    double sum = 0;
    for (int64_t seq = 0; seq < batch; seq++) {
        const struct zt_batch b = rows_from(&r, seq * seq_len);
        sum += driver_train(&one, &b, counted, seq > 0);
    }
    CHECK_NEAR(loss, sum, 1e-6 * sum);
    for (int i = 0; i < whole.m->n_params; i++) {
        double diff = 0;
        for (int64_t j = 0; j < whole.m->params[i].n_elems; j++) {
            const double e = (double)driver_get(whole.g[i], j) - (double)driver_get(one.g[i], j);
            diff += e * e;
        }
        if (!(diff <= tol * tol * driver_grad_sq(&one, i)))
            FAIL("gradient of %s differs", whole.m->params[i].name);
    }
    driver_release(&one);
    driver_release(&whole);
}

TEST(head_chunks_of_a_large_vocabulary)
{
    chunks_agree(50257, 5, 50, ZT_F32, 1e-5); /* 250 rows: 2 chunks of 125 */
}

TEST(head_chunks_of_unequal_length)
{
    chunks_agree(50257, 7, 49, ZT_F32, 1e-5); /* 343 rows: 115, 115, 113 */
}

TEST(head_small_vocabularies)
{
    chunks_agree(1, 2, 3, ZT_F32, 1e-5);
    chunks_agree(11, 3, 7, ZT_F32, 1e-5);
    chunks_agree(64, 3, 7, ZT_F32, 1e-5);
    chunks_agree(65, 3, 7, ZT_F32, 1e-5);
}

TEST(head_logits_are_bounded)
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m;
    struct zt_segment_size small, large;
    const struct zt_model_config cfg = tiny(50257);
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    struct zt_shape shape = {1, 64, ZT_F32, ZT_DEV_CPU, 2, true};
    m->ops->size(m, 2, &shape, &small);
    shape.batch = 4096;
    m->ops->size(m, 2, &shape, &large);
    /* 4,096 times the rows: 64 MiB of logits, and a few numbers a row. */
    CHECK(large.bwd_tmp < small.bwd_tmp + (64u << 20) + 64 * 4096 * 16);
    zt_arena_release(&arena);
}

/* A dry run looks at three chunks; what it counts is exact for any number of rows, and at once. */
TEST(head_counts_chunks_it_does_not_visit)
{
    enum { CHUNK = (64 << 20) / (50304 * 4) };
    static const int64_t n_rows[] = {1,         CHUNK,         CHUNK + 1,     2 * CHUNK,
                                     3 * CHUNK, 4 * CHUNK - 1, 4 * CHUNK + 5, 1001 * CHUNK + 7};
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m;
    struct zt_segment_size s;
    struct zt_model_config cfg = tiny(50257);
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    for (size_t i = 0; i < ZT_ARRAY_LEN(n_rows); i++) {
        const struct zt_shape shape = {n_rows[i], 1, ZT_F32, ZT_DEV_CPU, 2, true};
        m->ops->size(m, 2, &shape, &s);
        CHECK_NEAR(s.fwd_flops, 2. * 8 * 50257 * (double)n_rows[i], 0);
        CHECK_NEAR(s.bwd_flops, 6. * 8 * 50257 * (double)n_rows[i], 0);
    }
    cfg.vocab_size = INT32_MAX;
    CHECK_OK(zt_model_build(&cfg, &arena, &m, &err), err);
    const struct zt_shape most = {1, INT32_MAX, ZT_F32, ZT_DEV_CPU, 2, true};
    const clock_t began = clock();
    m->ops->size(m, 2, &most, &s);
    CHECK(clock() - began < 5 * CLOCKS_PER_SEC);
    CHECK_NEAR(s.fwd_flops / (2. * 8 * INT32_MAX * INT32_MAX), 1, 1e-12);
    zt_arena_release(&arena);
}

/* The losses by the definition, from logits of every position. */
TEST(head_last_logits_give_the_loss)
{
    enum { VOCAB = 67, BATCH = 3, T = 5 };
    static struct rows r;
    const struct zt_model_config cfg = tiny(VOCAB);
    struct driver d;
    fill_rows(&r, BATCH * T, T, VOCAB);
    driver_init(&d, &cfg, BATCH, T, ZT_F32, ZT_F32);
    driver_init_weights(&d, 4, 0.5f);
    const struct zt_batch b = rows_from(&r, 0);
    double sum = 0;
    for (int64_t at = 0; at < T; at++) {
        float logits[BATCH][VOCAB];
        driver_eval(&d, &b, logits[0], at);
        for (int64_t s = 0; s < BATCH; s++) {
            const int32_t target = r.targets[s * T + at];
            double z = 0;
            for (int v = 0; v < VOCAB; v++)
                z += exp((double)logits[s][v]);
            sum += target == ZT_IGNORE_TARGET ? 0 : log(z) - (double)logits[s][target];
        }
    }
    CHECK_NEAR(driver_eval(&d, &b, NULL, 0) / sum, 1, 1e-6);
    driver_release(&d);
}

/* D09: Conv1D weights are (in, out); a square one must not be transposed. */
TEST(conv1d_is_not_transposed)
{
    const struct zt_model_config cfg = tiny(11);
    struct driver d;
    float w[2][2] = {{1, 2}, {3, 4}}, x[2] = {1, 10}, y[2], ws[4096];
    driver_init(&d, &cfg, 1, 1, ZT_F32, ZT_F32);
    struct zt_seg_call c = {.dev = d.dev, .stream = d.stream, .shape = &d.shape};
    c.weights[0] = (struct zt_ref){w, ZT_F32};
    c.tmp = ws;
    c.tmp_bytes = sizeof ws;
    struct zt_run run = {.m = d.m, .c = &c};
    const struct zt_linear l = {2, 2, 2, false, 0, -1};
    zt_run_matmul(
        &run, zt_linear_fwd(&run, &l, 1, (struct zt_ref){x, ZT_F32}, (struct zt_ref){y, ZT_F32}));
    struct zt_err err;
    CHECK_OK(d.dev->ops->sync(d.dev->ops->record(d.stream), &err), err);
    CHECK_NEAR(y[0], 31, 0);
    CHECK_NEAR(y[1], 42, 0);
    driver_release(&d);
}

TEST_MAIN()
