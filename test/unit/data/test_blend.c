#include "harness.h"

#include <math.h>

#include "data/blend.h"
#include "data/data.h"

/* After any number of turns, no source is a whole sample off; after a period, none is off at all. */
static void check_shares(const double *weights, int n, int32_t period)
{
    struct zt_blend b;
    struct zt_err err;
    double sum = 0;
    int64_t had[16] = {0};
    CHECK_OK(zt_blend_init(&b, weights, n, &err), err);
    CHECK_INT(b.period, period);
    for (int s = 0; s < n; s++)
        sum += weights[s];
    for (int64_t pos = 0; pos < 3 * (int64_t)period; pos++) {
        int source;
        int64_t nth;
        zt_blend_at(&b, pos, &source, &nth);
        CHECK_INT(nth, had[source]); /* in order, none left out */
        had[source]++;
        for (int s = 0; s < n; s++) {
            double share = (double)b.counts[s] / period * (double)(pos + 1);
            if (fabs(share - (double)had[s]) >= 1)
                FAIL("after %d turns source %d had %d, its share is %g", (int)pos + 1, s,
                     (int)had[s], share);
        }
    }
    for (int s = 0; s < n; s++) {
        CHECK_INT(had[s], 3 * b.counts[s]);
        if (period < ZT_BLEND_PERIOD)
            CHECK_NEAR((double)b.counts[s] / period, weights[s] / sum, 1e-9);
        else
            CHECK_NEAR((double)b.counts[s] / period, weights[s] / sum, 1.0 / ZT_BLEND_PERIOD);
    }
    zt_blend_release(&b);
}

TEST(blend_shares_are_exact_everywhere)
{
    static const double even[] = {1, 1}, tenths[] = {0.3, 0.7}, thirds[] = {1, 2},
                        tokens[] = {1003854, 2500000007.0, 77777777}, one[] = {5},
                        many[] = {0.4321, 0.05, 0.0179, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05},
                        skewed[] = {0.97, 0.01, 0.01, 0.01},
                        irrational[] = {1, 1.41421356237, 1.7320508};
    check_shares(one, 1, 1);
    check_shares(even, 2, 2);
    check_shares(tenths, 2, 10);
    check_shares(thirds, 2, 3);
    check_shares(many, 9, 10000);
    check_shares(skewed, 4, 100);
    check_shares(tokens, 3, ZT_BLEND_PERIOD);
    check_shares(irrational, 3, ZT_BLEND_PERIOD);
}

TEST(blend_refusals)
{
    static const double small[] = {1, 1e-6};
    struct zt_blend b;
    struct zt_err err;
    CHECK_INT(zt_blend_init(&b, small, 2, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "weight 1e-06 is less than 1/65536"));
    CHECK_INT(zt_blend_init(&b, small, 0, &err), ZT_EINPUT);
}

/* 30 % of the samples from one file, each file in its own order, wrapping by itself. */
TEST(blend_of_files)
{
    const char *paths[] = {"LICENSE", "Makefile"};
    static const double weights[] = {3, 7};
    struct zt_dataset_opts o = {.paths = {2, paths},
                                .weights = weights,
                                .seq_len = 64,
                                .vocab_size = 256,
                                .range = {-1, -1},
                                .shuffle = true,
                                .seed = 5};
    struct zt_dataset *d, *one;
    struct zt_err err;
    int32_t a[4][64], b[4][64];
    struct zt_sample x = {a[0], a[1], a[2], a[3]}, y = {b[0], b[1], b[2], b[3]};
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK(zt_dataset_is_text(d));
    struct zt_str text = {0};
    zt_dataset_describe(d, &text);
    CHECK(strstr(zt_str_get(&text), "2 sources in turns; 30 % of the samples from 1 file, "));
    CHECK(strstr(zt_str_get(&text), "; 70 % of the samples from 1 file, "));
    zt_str_release(&text);
    o.weights = NULL;
    o.paths.n = 1;
    CHECK_OK(zt_dataset_open(&o, &one, &err), err);
    int64_t nth = 0;
    for (int64_t pos = 0; pos < 2000; pos++) {
        CHECK_OK(zt_dataset_get(d, pos, &x, &err), err);
        CHECK_OK(zt_dataset_get(one, nth, &y, &err), err);
        nth += memcmp(a, b, sizeof a) == 0;
    }
    CHECK_INT(nth, 600);
    CHECK(nth > zt_dataset_samples(one));
    zt_dataset_free(one);
    zt_dataset_free(d);

    paths[1] = "test/cases/D06/good.bin";
    o.weights = weights;
    o.paths.n = 2;
    o.seq_len = 4;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "good.bin is Megatron tokens, but LICENSE is text as bytes"));
    paths[1] = "nowhere";
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "nowhere: No such file"));
}

TEST_MAIN()
