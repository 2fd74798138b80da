#include "dev_test.h"

/* ---- step block ---- */

/* Case P03: a skipped step advances neither Adam's t nor the schedule. */
TEST(dev_step_skips_are_counted_p03)
{
    struct zt_step_block sb = {
        .adam_t = 1,
        .first_sample = 100,
        .step_samples = 8,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .schedule = {.kind = ZT_SCHED_COSINE, .warmup_steps = 10, .total_steps = 100, .lr = 1e-3}};
    zt_step_refresh(&sb);
    float first = sb.lr;
    FOR_EACH_RIG(r)
    {
        struct zt_step_block *b = test_share(&sb, sizeof sb);
        struct zt_step_advance a = {b};
        for (int i = 0; i < 3; i++)
            RUN(r, step_advance, &a);
        CHECK_INT(b->step, 3);
        CHECK_INT(b->skipped, 3);
        CHECK_INT(b->first_sample, 124); /* their batches were consumed */
        CHECK_INT(b->adam_t, 1);
        CHECK(b->lr == first);
        CHECK_NEAR(b->bias1, 10, 1e-5);
        b->apply = 1;
        RUN(r, step_advance, &a);
        CHECK_INT(b->step, 4);
        CHECK_INT(b->adam_t, 2);
        CHECK_NEAR(b->lr, 2 * (double)first, 1e-9);
        CHECK_NEAR(b->bias1, 1 / (1 - 0.81), 1e-5);
    }
}

struct norm_result {
    struct zt_step_block sb;
    struct zt_vote vote;
};

/* NORM and VOTE over records of n_ranks x (n_units partials, n_losses losses), on one rig. */
static void finish_on(struct rig *r, const double *values, int n_ranks, int n_units, int n_losses,
                      int64_t tokens, float loss_scale, float max_norm, struct norm_result *out)
{
    struct zt_count *count = SHARED(struct zt_count, .tokens = tokens);
    struct zt_vote_request *request = SHARED(struct zt_vote_request, 0, 1, ZT_SAVING_WRITES);
    struct norm_result *got =
        SHARED(struct norm_result, .sb = {.loss_scale = loss_scale, .max_norm = max_norm});
    size_t bytes = zt_norm_record_bytes(n_units, n_losses);
    double *records = test_share(values, bytes * (size_t)n_ranks);
    struct zt_err err;
    const struct zt_dev_ops *ops = r->dev->ops;
    ops->count_finish(r->stream, &(struct zt_count_finish){count});
    ops->norm_finish(r->stream, &(struct zt_norm_finish){n_ranks, n_units, n_losses, bytes, records,
                                                         count, &got->sb});
    ops->vote_begin(r->stream, &(struct zt_vote_begin){&got->sb, request, &got->vote});
    ops->vote_finish(r->stream, &(struct zt_vote_finish){&got->vote, &got->sb});
    if (rig_sync(r, &err))
        abort();
    *out = *got;
}

/* On all rigs, which must agree to the last bit. */
static struct norm_result finish(const double *values, int n_ranks, int n_units, int n_losses,
                                 int64_t tokens, float loss_scale, float max_norm)
{
    struct norm_result first = {0};
    bool have_first = false;
    FOR_EACH_RIG(r)
    {
        struct norm_result out;
        memset(&out, 0, sizeof out);
        finish_on(&r, values, n_ranks, n_units, n_losses, tokens, loss_scale, max_norm, &out);
        if (have_first && memcmp(&first, &out, sizeof out) != 0) {
            fprintf(stderr, "NORM and VOTE: %s gives other bits than the first rig\n", r.isa);
            abort();
        }
        first = out;
        have_first = true;
    }
    return first;
}

/* Case S04: squared sums 20 and 100 on two ranks. */
TEST(dev_norm_s04)
{
    double values[] = {20, 1.5, 100, 0.5};
    struct norm_result n = finish(values, 2, 1, 1, 4, 1, 0);
    CHECK_NEAR(n.sb.grad_norm, 10.954451150103, 1e-12);
    CHECK_NEAR(n.sb.grad_norm_clipped, 10.954451150103, 1e-12);
    CHECK_NEAR(n.sb.loss, 0.5, 0);
    CHECK_INT(n.sb.tokens, 4);
    CHECK_INT(n.sb.apply, 1);
    CHECK_INT(n.vote.save, 1);
    CHECK_INT(n.vote.saving, ZT_SAVING_WRITES);
    CHECK(n.sb.grad_scale == 1);
}

/* Case P07: gradient (3, 4) times loss scale 1024, clip 1. */
TEST(dev_norm_p07)
{
    double values[] = {25.0 * 1024 * 1024, 0};
    struct norm_result n = finish(values, 1, 1, 1, 1, 1024, 1);
    CHECK_NEAR(n.sb.grad_norm, 5, 1e-12);
    CHECK_NEAR(3 * 1024 * (double)n.sb.grad_scale, 0.6, 1e-6);
    CHECK_NEAR(4 * 1024 * (double)n.sb.grad_scale, 0.8, 1e-6);
    CHECK_NEAR(n.sb.grad_norm_clipped, 1, 1e-6);
    values[0] = 128.0 * 128;
    n = finish(values, 1, 1, 1, 1, 128, 2);
    CHECK_NEAR(n.sb.grad_norm, 1, 0);
    CHECK_NEAR(128 * (double)n.sb.grad_scale, 1, 0);
}

TEST(dev_norm_not_finite_is_skipped_and_no_nan)
{
    static const double bad[] = {INFINITY, NAN};
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++) {
        double norm[] = {bad[i], 1}, loss[] = {1, bad[i]};
        struct norm_result n = finish(norm, 1, 1, 1, 1, 1, 1);
        CHECK(n.sb.grad_scale == 0);
        CHECK_INT(n.sb.apply, 0);
        CHECK_INT(n.vote.nonfinite, 1);
        n = finish(loss, 1, 1, 1, 1, 1, 1);
        CHECK_INT(n.sb.apply, 0);
    }
}

/* Case P03: an overflow in rank 1's slice alone is one; the unit that backward met first is named. */
TEST(dev_norm_overflow_on_one_rank_p03)
{
    double values[] = {1, 2, 3, 0.5, 1, INFINITY, NAN, 0.5}; /* 2 ranks x (3 units, 1 loss) */
    struct norm_result n = finish(values, 2, 3, 1, 4, 1024, 1);
    CHECK_INT(n.sb.bad_unit, 2);
    CHECK_INT(n.sb.overflow, 1);
    CHECK_INT(n.sb.apply, 0);
    CHECK(n.sb.grad_scale == 0);
    values[6] = 4;
    CHECK_INT(finish(values, 2, 3, 1, 4, 1024, 1).sb.bad_unit, 1);
    values[5] = 4;
    n = finish(values, 2, 3, 1, 4, 1024, 1);
    CHECK_INT(n.sb.bad_unit, -1);
    CHECK_INT(n.sb.bad_rank, -1);
    CHECK_INT(n.sb.overflow, 0);
    CHECK_INT(n.sb.apply, 1);
    values[7] = -INFINITY;
    n = finish(values, 2, 3, 1, 4, 1024, 1);
    CHECK_INT(n.sb.bad_rank, 1);
    CHECK_INT(n.sb.overflow, 1);
}

/* Case B03: nothing to learn from: loss 0, and the weights stay. */
TEST(dev_norm_no_tokens_b03)
{
    double values[] = {0, 0};
    struct norm_result n = finish(values, 1, 1, 1, 0, 1, 1);
    CHECK_NEAR(n.sb.loss, 0, 0);
    CHECK_INT(n.sb.apply, 0);
}

TEST(dev_count_targets)
{
    static const int32_t given[] = {1, -100, 0, -100, 7};
    int32_t *targets = test_share(given, sizeof given);
    FOR_EACH_RIG(r)
    {
        struct zt_count *c = SHARED(struct zt_count, .tokens = -1, .inv_tokens = 9);
        struct zt_count_targets a = {5, targets, c, false};
        RUN(r, count_targets, &a);
        CHECK_INT(c->tokens, 3);
        a.accumulate = true;
        RUN(r, count_targets, &a);
        CHECK_INT(c->tokens, 6);
        CHECK(c->inv_tokens == 9);
    }
}

TEST(dev_sum_sq)
{
    static const int64_t n[] = {1, 17, 4096, 4097, 70001};
    for (size_t i = 0; i < ZT_ARRAY_LEN(n); i++)
        for (enum zt_dtype t = ZT_F32; t <= ZT_BF16; t++) {
            struct tensor x = tensor_random(n[i], t, 1, 1, 0);
            double want = dot(x.val, x.val, n[i]);
            FOR_EACH_RIG(r)
            {
                struct zt_norm_partial *got = SHARED_ARRAY(struct zt_norm_partial, 1);
                struct zt_sum_sq a = {n[i], x.ref, got, false};
                RUN(r, sum_sq, &a);
                CHECK_NEAR(got->sum_sq, want, 2e-6 * want);
                double first = got->sum_sq;
                a.accumulate = true;
                RUN(r, sum_sq, &a);
                CHECK(got->sum_sq >= 2 * first * (1 - 1e-15) &&
                      got->sum_sq <= 2 * first * (1 + 1e-15));
                a.n = 0;
                a.accumulate = false;
                RUN(r, sum_sq, &a);
                CHECK(got->sum_sq == 0);
            }
            tensor_free(&x);
        }
}

TEST_MAIN()
