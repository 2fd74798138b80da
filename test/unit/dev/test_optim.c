#include "dev_test.h"

/*
 * The optimizers against their papers in float64, and against themselves: every instruction set and
 * thread count gives the same bits, with and without a master copy.
 */

static struct zt_step_block *block(float lr, float grad_scale)
{
    struct zt_step_block *sb = SHARED(struct zt_step_block, .adam_t = 1, .grad_scale = grad_scale,
                                      .loss_scale = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                      .apply = 1, .schedule = {.lr = (double)lr});
    zt_step_refresh(sb);
    return sb;
}

/*
 * Case B08 (gradient 0, p = 1, lr = wd = 0.1): decoupled decay 1 -> 0.99 where decayed, exactly 1 where
 * not; decay in Adam's gradient makes its first step a whole lr, 0.9.
 */
TEST(dev_decay_b08)
{
    static const double want[] = {[ZT_ADAMW] = 0.99, [ZT_ADAM] = 0.9, [ZT_LION] = 0.99};
    struct zt_update_range ranges[] = {{0, 1, 0.1f, 1}, {1, 2, 0, 1}};
    FOR_EACH_RIG(r)
    {
        for (enum zt_optimizer o = ZT_ADAMW; o <= ZT_LION; o++) {
            float *w = SHARED_ARRAY(float, 3), *g = SHARED_ARRAY(float, 3);
            float *m = SHARED_ARRAY(float, 3), *v = SHARED_ARRAY(float, 3);
            struct zt_update a = {o,           ranges, 2, block(0.1f, 0.5f),
                                  {g, ZT_F32}, m,      v, {NULL, ZT_F32},
                                  {w, ZT_F32}, false};
            w[0] = w[1] = w[2] = 1;
            a.v = zt_optimizer_has_v(o) ? v : NULL;
            RUN(r, update, &a);
            CHECK_NEAR(w[0], want[o], 1e-7);
            CHECK(w[1] == 1 && w[2] == 1);
        }
    }
}

/* Case P03: the first real update with gradient 1 moves a parameter by 0.99999999 lr. */
TEST(dev_adam_first_update_p03)
{
    struct zt_update_range range = {0, 1, 0, 1};
    FOR_EACH_RIG(r)
    {
        for (enum zt_optimizer o = ZT_ADAMW; o <= ZT_ADAM; o++) {
            float *w = SHARED(float, 0), *g = SHARED(float, 1);
            float *m = SHARED(float, 0), *v = SHARED(float, 0);
            struct zt_update a = {o, &range,         1,           block(1, 1), {g, ZT_F32}, m,
                                  v, {NULL, ZT_F32}, {w, ZT_F32}, false};
            RUN(r, update, &a);
            CHECK_NEAR(*w, -0.99999999, 3e-7);
        }
    }
}

/* Lion does not move what never had a gradient. */
TEST(dev_lion_leaves_unused_rows)
{
    struct zt_update_range range = {0, 3, 0, 1};
    FOR_EACH_RIG(r)
    {
        static const float start[] = {1, 2, 3}, slope[] = {0, 1e-30f, -1e-30f};
        float *w = test_share(start, sizeof start), *g = test_share(slope, sizeof slope);
        float *m = SHARED_ARRAY(float, 3);
        struct zt_update a = {ZT_LION, &range,         1,           block(0.5f, 1), {g, ZT_F32}, m,
                              NULL,    {NULL, ZT_F32}, {w, ZT_F32}, false};
        RUN(r, update, &a);
        CHECK(w[0] == 1 && w[1] == 1.5f && w[2] == 3.5f);
        CHECK(m[0] == 0 && m[1] > 0 && m[2] < 0);
    }
}

enum { N = 3000, STEPS = 10, N_RANGES = 4 };

static const struct zt_update_range ranges[N_RANGES] = {
    {0, 1, 0.1f, 1}, {1, 2000, 0.1f, 1}, {2000, 2017, 0, 1}, {2017, 2990, 0.1f, 0.5f}};

/* One element of the papers' algorithms; t from 1. */
static void reference_element(enum zt_optimizer o, int t, double g, double lr, double wd, double *w,
                              double *m, double *v)
{
    if (o == ZT_LION) {
        double mean = 0.9 * *m + 0.1 * g;
        *w -= lr * ((mean > 0) - (mean < 0) + wd * *w);
        *m = 0.95 * *m + 0.05 * g;
        return;
    }
    if (o == ZT_ADAM)
        g += wd * *w;
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.95 * *v + 0.05 * g * g;
    if (o == ZT_ADAMW)
        *w -= lr * wd * *w;
    *w -= lr * *m / (1 - pow(0.9, t)) / (sqrt(*v / (1 - pow(0.95, t))) + 1e-8);
}

/* Parameters after STEPS steps of gradients grads[], scaled by 0.5. */
static void reference(enum zt_optimizer o, const struct tensor grads[], double *w)
{
    double m[N] = {0}, v[N] = {0};
    for (int t = 1; t <= STEPS; t++)
        for (int k = 0; k < N_RANGES; k++)
            for (int64_t i = ranges[k].begin; i < ranges[k].end; i++)
                reference_element(o, t, grads[t - 1].val[i] * 0.5,
                                  1e-2 * (double)ranges[k].lr_scale, (double)ranges[k].weight_decay,
                                  &w[i], &m[i], &v[i]);
}

struct state {
    float master[N], m[N], v[N];
    uint16_t param[N];
};

/* STEPS updates on one rig; the parameters are 16-bit with a master, or fp32. */
static void run_steps(struct rig *r, enum zt_optimizer o, const struct tensor grads[],
                      enum zt_dtype param, struct state *s)
{
    struct zt_step_block *sb = block(1e-2f, 0.5f);
    for (int t = 0; t < STEPS; t++) {
        struct zt_update a = {o,
                              ranges,
                              N_RANGES,
                              sb,
                              grads[t].ref,
                              s->m,
                              s->v,
                              {s->master, ZT_F32},
                              {s->param, param},
                              false};
        if (!zt_optimizer_has_v(o))
            a.v = NULL;
        if (param == ZT_F32) {
            a.param = a.master;
            a.master.ptr = NULL;
        }
        struct zt_step_advance next = {sb};
        sb->apply = 0; /* a skipped step in between changes nothing */
        RUN(*r, update, &a);
        sb->apply = 1;
        RUN(*r, update, &a);
        RUN(*r, step_advance, &next);
    }
}

static void check_ten_steps(enum zt_optimizer o)
{
    static const enum zt_dtype params[] = {ZT_F32, ZT_BF16, ZT_F16};
    static struct state first;
    struct state *s = SHARED_ARRAY(struct state, 1);
    struct tensor grads[STEPS], w0 = tensor_random(N, ZT_F32, 100, 1, 0);
    for (int t = 0; t < STEPS; t++)
        grads[t] = tensor_random(N, ZT_BF16, (uint64_t)t, 1, 0);
    struct tensor want = tensor_copy(&w0);
    reference(o, grads, want.val);
    bool have_first = false;
    FOR_EACH_RIG(r)
    {
        for (size_t p = 0; p < ZT_ARRAY_LEN(params); p++) {
            memset(s, 0, sizeof *s);
            memcpy(s->master, w0.ref.ptr, sizeof s->master);
            run_steps(&r, o, grads, params[p], s);
            RETURN_IF_FAILED();
            CHECK_TENSOR(r, "w", ((struct zt_ref){s->master, ZT_F32}), want.val, N, 2e-6);
            for (int i = 0; params[p] == ZT_BF16 && i < 2990; i++)
                CHECK_INT(s->param[i], zt_f32_to_bf16(s->master[i]));
            for (int i = 0; params[p] == ZT_F16 && i < 2990; i++)
                CHECK_INT(s->param[i], zt_f32_to_f16(s->master[i]));
            if (!have_first)
                first = *s;
            have_first = true;
            CHECK(memcmp(first.master, s->master, sizeof s->master) == 0);
            CHECK(memcmp(first.m, s->m, sizeof s->m) == 0);
            CHECK(memcmp(first.v, s->v, sizeof s->v) == 0);
        }
    }
    for (int t = 0; t < STEPS; t++)
        tensor_free(&grads[t]);
    tensor_free(&w0);
    tensor_free(&want);
}

/* A new parameter buffer gets the master's values, rounded, of steps that are applied and of others. */
TEST(dev_update_of_a_fresh_parameter)
{
    struct tensor g = tensor_random(N, ZT_F32, 7, 1, 0), w = tensor_random(N, ZT_F32, 8, 1, 0);
    struct state *s = SHARED_ARRAY(struct state, 1);
    FOR_EACH_RIG(r)
    {
        for (int apply = 0; apply < 2; apply++) {
            memset(s, 0, sizeof *s);
            memcpy(s->master, w.ref.ptr, sizeof s->master);
            struct zt_update a = {.optimizer = ZT_ADAMW,
                                  .ranges = ranges,
                                  .n_ranges = N_RANGES,
                                  .sb = block(1e-2f, 0.5f),
                                  .grad = g.ref,
                                  .m = s->m,
                                  .v = s->v,
                                  .master = {s->master, ZT_F32},
                                  .param = {s->param, ZT_BF16},
                                  .fresh = true};
            ((struct zt_step_block *)a.sb)->apply = apply;
            RUN(r, update, &a);
            CHECK((memcmp(s->master, w.ref.ptr, sizeof s->master) != 0) == apply);
            CHECK((s->m[5] != 0) == apply);
            for (int i = 0; i < 2990; i++)
                CHECK_INT(s->param[i], zt_f32_to_bf16(s->master[i]));
            CHECK_INT(s->param[2990], 0); /* no range has it */
        }
    }
    tensor_free(&g);
    tensor_free(&w);
}

TEST(dev_adamw_ten_steps)
{
    check_ten_steps(ZT_ADAMW);
}

TEST(dev_adam_ten_steps)
{
    check_ten_steps(ZT_ADAM);
}

TEST(dev_lion_ten_steps)
{
    check_ten_steps(ZT_LION);
}

TEST_MAIN()
