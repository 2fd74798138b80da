#include "dev_test.h"

static struct zt_dropout drop_of(double p)
{
    struct zt_dropout d = {.site = 5,
                           .sb = SHARED(struct zt_step_block, .seed = 42, .first_sample = 7)};
    zt_dropout_set_p(&d, p);
    return d;
}

/* By a program of its own, from the words of dev/dropout.h. */
TEST(dev_dropout_known_answer)
{
    const uint64_t want[] = {0xc40880633a3e8531u, 0xa73ceed044be27ebu};
    const struct zt_dropout d = drop_of(0.5);
    for (int64_t group = 0; group < 2; group++) {
        uint64_t kept = 0;
        for (int64_t i = 0; i < 64; i++)
            kept |= (uint64_t)(drop_factor(&d, 0, 3, 11, 64 * group + i) > 0) << i;
        CHECK(kept == want[group]);
    }
}

TEST(dev_dropout_probability)
{
    CHECK_INT(drop_of(0).threshold, 0);
    CHECK_INT(drop_of(1e-9).threshold, 1);
    CHECK_INT(drop_of(0.1).threshold, 6554);
    CHECK_INT(drop_of(0.5).threshold, 32768);
    CHECK(drop_of(0.5).scale == 2);
    CHECK_INT(drop_of(0.9999999).threshold, 65535);
    const double p[] = {1e-9, 0.1, 0.25, 0.9, 0.9999999};
    for (size_t i = 0; i < ZT_ARRAY_LEN(p); i++) {
        const struct zt_dropout d = drop_of(p[i]);
        CHECK_NEAR((1 - d.threshold / 65536.0) * (double)d.scale, 1, 1e-7);
    }
}

/* ---- statistics ---- */

enum { N_ROWS = 96, N_COLS = 320, N_SEQS = 3, N_MASK = N_SEQS * N_ROWS * N_COLS };

/* The mask of a dropout over N_SEQS sequences: 1 where kept. */
static void fill_mask(struct rig *r, const struct zt_dropout *d, bool *kept)
{
    struct tensor x = tensor_random(N_MASK, ZT_F32, 1, 0, 1), y = tensor_out(N_MASK, ZT_F32);
    const struct zt_drop_add a = {N_SEQS * N_ROWS, N_COLS,         N_ROWS, *d,
                                  x.ref,           {NULL, ZT_F32}, y.ref};
    RUN(*r, drop_add, &a);
    for (int64_t i = 0; i < N_MASK; i++)
        kept[i] = tensor_get(y.ref, i) > 0;
    tensor_free(&x);
    tensor_free(&y);
}

/*
 * How many elements i and i + distance are both kept: p^2 of them where they are independent. Within
 * five standard deviations, which chance leaves once in two million.
 */
static void check_pairs(const char *what, const bool *a, const bool *b, int64_t n, double keep)
{
    const double want = keep * keep, sd = sqrt(want * (1 - want) / (double)n);
    int64_t both = 0;
    for (int64_t i = 0; i < n; i++)
        both += a[i] && b[i];
    if (!(fabs((double)both / (double)n - want) < 5 * sd))
        FAIL("%s: %lld of %lld pairs kept, wanted %g", what, (long long)both, (long long)n, want);
}

static void check_share(const char *what, const bool *kept, int64_t n, int64_t stride, double keep)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += kept[i * stride];
    if (!(fabs((double)sum / (double)n - keep) < 5 * sqrt(keep * (1 - keep) / (double)n)))
        FAIL("%s: %lld of %lld kept, wanted %g", what, (long long)sum, (long long)n, keep);
}

static void check_statistics(struct rig *r, double p)
{
    static bool mask[N_MASK], other[N_MASK];
    const double keep = 1 - p;
    struct zt_dropout d = drop_of(p);
    fill_mask(r, &d, mask);
    check_share("all", mask, N_MASK, 1, keep);
    for (int64_t i = 0; i < N_SEQS * N_ROWS; i++)
        check_share("row", mask + i * N_COLS, N_COLS, 1, keep);
    for (int64_t j = 0; j < N_COLS; j++)
        check_share("column", mask + j, N_SEQS * N_ROWS, N_COLS, keep);

    const int64_t distances[] = {1, 2, 7, 8, 16, 64, 128, N_COLS, N_COLS + 1, N_ROWS * N_COLS};
    for (size_t i = 0; i < ZT_ARRAY_LEN(distances); i++)
        check_pairs("a distance apart", mask, mask + distances[i], N_MASK - distances[i], keep);
    d.site++;
    fill_mask(r, &d, other);
    check_pairs("sites", mask, other, N_MASK, keep);
    d.site--;
    d.first += N_SEQS;
    fill_mask(r, &d, other);
    check_pairs("samples", mask, other, N_MASK, keep);
}

TEST(dev_dropout_statistics)
{
    struct rig r;
    if (!rig_open(&r, 0))
        abort();
    check_statistics(&r, 0.1);
    check_statistics(&r, 0.5);
    check_statistics(&r, 0.8);
    rig_close(&r);
}

/* ---- the kernel ---- */

struct case_of {
    int64_t seqs, seq_len, cols;
};

static const struct case_of cases[] = {
    {1, 1, 1}, {2, 3, 5}, {3, 1, 64}, {2, 5, 100}, {1, 7, 128}, {2, 40, 257},
};

enum place { APART, OVER_X, OVER_RESIDUAL, NO_RESIDUAL, N_PLACES };

static void check_drop_add(const struct case_of *t, enum zt_dtype dtype, enum place place)
{
    const int64_t n = t->seqs * t->seq_len * t->cols;
    struct tensor x = tensor_random(n, dtype, 1, 1, 0), res = tensor_random(n, dtype, 2, 1, 0);
    struct zt_dropout d = drop_of(0.3);
    double *want = zt_xcalloc((size_t)n, sizeof *want);
    d.first = 2;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i / t->cols;
        want[i] = x.val[i] * drop_factor(&d, row / t->seq_len, 0, row % t->seq_len, i % t->cols) +
                  (place == NO_RESIDUAL ? 0 : res.val[i]);
    }
    FOR_EACH_RIG(r)
    {
        struct tensor in = tensor_copy(&x), residual = tensor_copy(&res),
                      out = tensor_out(n, dtype);
        struct zt_drop_add a = {t->seqs * t->seq_len, t->cols, t->seq_len, d, in.ref,
                                residual.ref,         out.ref};
        if (place == OVER_X)
            a.out = in.ref;
        if (place == OVER_RESIDUAL)
            a.out = residual.ref;
        if (place == NO_RESIDUAL)
            a.residual.ptr = NULL;
        RUN(r, drop_add, &a);
        CHECK_TENSOR(r, "drop_add", a.out, want, n, 2e-7);
        tensor_free(&in);
        tensor_free(&residual);
        tensor_free(&out);
    }
    tensor_free(&x);
    tensor_free(&res);
    free(want);
}

TEST(dev_drop_add)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++)
        for (int t = ZT_F32; t <= ZT_F16; t++)
            for (int place = 0; place < N_PLACES; place++) {
                check_drop_add(&cases[i], t, place);
                RETURN_IF_FAILED();
            }
}

/* The sequences of a step, cut into micro-batches of one or all at once: the same bits. */
TEST(dev_drop_add_is_of_the_sample)
{
    enum { SEQS = 4, LEN = 3, COLS = 70, ONE = LEN * COLS };
    struct tensor x = tensor_random(SEQS * ONE, ZT_F32, 1, 1, 0), y = tensor_out(x.n, ZT_F32);
    struct zt_drop_add a = {SEQS * LEN, COLS, LEN, drop_of(0.4), x.ref, {NULL, ZT_F32}, y.ref};
    FOR_EACH_RIG(r)
    {
        RUN(r, drop_add, &a);
        for (int s = 0; s < SEQS; s++) {
            struct tensor part = tensor_out(ONE, ZT_F32);
            struct zt_drop_add one = a;
            one.rows = LEN;
            one.drop.first = s;
            one.x.ptr = (float *)x.ref.ptr + s * ONE;
            one.out = part.ref;
            RUN(r, drop_add, &one);
            CHECK(!memcmp(part.ref.ptr, (float *)y.ref.ptr + s * ONE, ONE * sizeof(float)));
            tensor_free(&part);
        }
    }
    tensor_free(&x);
    tensor_free(&y);
}

TEST_MAIN()
