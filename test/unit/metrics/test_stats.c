#include "harness.h"

#include "metrics/stats.h"

/* numpy.percentile of the same values. */
TEST(percentiles_are_numpys)
{
    const double v[] = {1, 2, 4, 8, 16};
    CHECK_NEAR(zt_percentile(v, 5, 0), 1, 0);
    CHECK_NEAR(zt_percentile(v, 5, 0.1), 1.4, 1e-12);
    CHECK_NEAR(zt_percentile(v, 5, 0.5), 4, 0);
    CHECK_NEAR(zt_percentile(v, 5, 0.9), 12.8, 1e-12);
    CHECK_NEAR(zt_percentile(v, 5, 1), 16, 0);
    CHECK_NEAR(zt_percentile(v, 1, 0.9), 1, 0);
    CHECK_NEAR(zt_percentile(v, 2, 0.5), 1.5, 0);
}

TEST(spread_sorts_and_knows_nothing_of_nothing)
{
    double v[] = {9, 1, 5, 3, 7, 11, 2, 4, 6, 8, 10};
    struct zt_spread s;
    zt_spread_of(v, ZT_ARRAY_LEN(v), &s);
    CHECK_INT(s.n, 11);
    CHECK_NEAR(s.median, 6, 0);
    CHECK_NEAR(s.p10, 2, 1e-12);
    CHECK_NEAR(s.p90, 10, 1e-12);
    zt_spread_of(v, 0, &s);
    CHECK_INT(s.n, 0);
    CHECK(isnan(s.median) && isnan(s.p10) && isnan(s.p90));
}

TEST(warmup_is_a_fifth_within_bounds)
{
    const size_t n[] = {0, 1, 2, 3, 4, 10, 14, 15, 100, 250, 100000};
    const size_t want[] = {0, 0, 1, 2, 2, 2, 2, 3, 20, 50, 50};
    for (size_t i = 0; i < ZT_ARRAY_LEN(n); i++)
        CHECK_INT(zt_warmup_steps(n[i]), want[i]);
}

TEST_MAIN()
