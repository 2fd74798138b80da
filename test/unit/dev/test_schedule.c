#include "harness.h"

#include <math.h>

#include "dev/step.h"

#include "schedules.h"

/* ---- ours: case B05 ---- */

TEST(dev_schedule_b05)
{
    static const struct {
        int64_t step;
        double lr;
    } table[] = {
        {0, 2.998500749625e-07},
        {1, 5.997001499250e-07},
        {100, 3.028485757121e-05},
        {1000, 3.001499250375e-04},
        {1999, 5.997001499250e-04},
        {2000, 6.000000000000e-04},
        {150000, 5.224173754616e-04},
        {301000, 3.3e-04},
        {450000, 1.395833231386e-04},
        {600000, 6e-05},
        {700000, 6e-05},
    };
    struct zt_schedule s = {.kind = ZT_SCHED_COSINE,
                            .warmup_steps = 2000,
                            .total_steps = 600000,
                            .lr = 6e-4,
                            .min_lr = 6e-5};
    for (size_t i = 0; i < ZT_ARRAY_LEN(table); i++)
        CHECK_NEAR(zt_schedule_lr(&s, table[i].step), table[i].lr, 1e-12 * table[i].lr + 1e-16);
    /* 95 % of the way down: 2000 + 0.95 * 598000 */
    CHECK_NEAR(zt_schedule_lr(&s, 570100), 6.332414803931e-05, 1e-16);
}

TEST(dev_schedule_b05_warmup_is_all)
{
    struct zt_schedule s = {.kind = ZT_SCHED_COSINE,
                            .warmup_steps = 100,
                            .total_steps = 100,
                            .lr = 1e-3,
                            .min_lr = 1e-4};
    CHECK_NEAR(zt_schedule_lr(&s, 100), 1e-3, 0);
    CHECK_NEAR(zt_schedule_lr(&s, 101), 1e-4, 0);
    s = (struct zt_schedule){.lr = 1e-3};
    CHECK_NEAR(zt_schedule_lr(&s, 0), 1e-3, 0);
    CHECK_NEAR(zt_schedule_lr(&s, 1000000), 1e-3, 0);
}

/* ---- DeepSpeed's, against scripts/make-schedules.py ---- */

/* The schedules of the table, as a recipe would give them. */
static const struct {
    const char *name;
    struct zt_schedule s;
} schedules[] = {
    {"warmup_log", {.kind = ZT_SCHED_WARMUP, .log_warmup = 1, .warmup_steps = 10, .lr = 1e-3}},
    {"warmup_linear", {.kind = ZT_SCHED_WARMUP, .warmup_steps = 10, .start_lr = 1e-4, .lr = 2e-3}},
    {"warmup_one",
     {.kind = ZT_SCHED_WARMUP, .log_warmup = 1, .warmup_steps = 2, .start_lr = 1e-4, .lr = 2e-3}},
    {"decay_log",
     {.kind = ZT_SCHED_WARMUP_DECAY,
      .log_warmup = 1,
      .warmup_steps = 10,
      .total_steps = 110,
      .lr = 1e-3}},
    {"decay_linear",
     {.kind = ZT_SCHED_WARMUP_DECAY,
      .warmup_steps = 10,
      .total_steps = 110,
      .start_lr = 5e-4,
      .lr = 1e-3}},
    {"decay_short",
     {.kind = ZT_SCHED_WARMUP_DECAY, .warmup_steps = 10, .total_steps = 5, .lr = 1e-3}},
    {"cosine_log",
     {.kind = ZT_SCHED_WARMUP_COSINE,
      .log_warmup = 1,
      .warmup_steps = 10,
      .total_steps = 110,
      .lr = 1e-3,
      .min_lr = 1e-7}},
    {"cosine_linear",
     {.kind = ZT_SCHED_WARMUP_COSINE,
      .warmup_steps = 10,
      .total_steps = 110,
      .start_lr = 1e-4,
      .lr = 1e-3,
      .min_lr = 5e-5}},
    {"range", {.kind = ZT_SCHED_RANGE_TEST, .start_lr = 1e-3, .range = {.size = 50, .rate = 0.5}}},
    {"range_stairs",
     {.kind = ZT_SCHED_RANGE_TEST,
      .start_lr = 1e-3,
      .range = {.size = 50, .rate = 0.5, .staircase = 1}}},
    {"cycle",
     {.kind = ZT_SCHED_ONE_CYCLE,
      .lr = 1e-2,
      .min_lr = 1e-3,
      .cycle = {.first_size = 6,
                .second_size = 6,
                .min_mom = 0.8,
                .max_mom = 0.95,
                .cycle_momentum = 1}}},
    {"cycle_uneven",
     {.kind = ZT_SCHED_ONE_CYCLE,
      .lr = 1e-2,
      .min_lr = 1e-3,
      .cycle = {.first_size = 4,
                .second_size = 10,
                .decay_size = 10,
                .decay_lr_rate = 0.5,
                .decay_mom_rate = 0.001,
                .min_mom = 0.8,
                .max_mom = 0.95,
                .cycle_momentum = 1}}},
    {"cycle_stairs",
     {.kind = ZT_SCHED_ONE_CYCLE,
      .lr = 1e-2,
      .min_lr = 1e-3,
      .cycle = {.first_size = 6,
                .second_size = 9,
                .first_stairs = 3,
                .second_stairs = 4,
                .decay_size = 10,
                .decay_lr_rate = 0.5,
                .min_mom = 0.8,
                .max_mom = 0.95,
                .cycle_momentum = 1}}},
};

static const struct zt_schedule *find(const char *name)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(schedules); i++)
        if (strcmp(schedules[i].name, name) == 0)
            return &schedules[i].s;
    return NULL;
}

TEST(dev_schedules_of_deepspeed)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(schedule_table); i++) {
        const struct zt_schedule *s = find(schedule_table[i].name);
        int64_t it = schedule_table[i].it;
        CHECK(s != NULL);
        if (!(fabs(zt_schedule_lr(s, it) - schedule_table[i].lr) <= 1e-15))
            FAIL("%s, update %lld: rate %.17g, not %.17g", schedule_table[i].name, (long long)it,
                 zt_schedule_lr(s, it), schedule_table[i].lr);
        CHECK_INT(zt_schedule_moves_beta1(s), schedule_table[i].beta1 >= 0);
        if (schedule_table[i].beta1 >= 0)
            CHECK_NEAR(zt_schedule_beta1(s, it), schedule_table[i].beta1, 1e-15);
    }
}

/* Every rate is finite and never negative, and momentum stays a momentum. */
TEST(dev_schedules_stay_in_bounds)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(schedules); i++) {
        const struct zt_schedule *s = &schedules[i].s;
        for (int64_t it = 0; it < (int64_t)1 << 40; it = it < 300 ? it + 1 : it * 2) {
            double lr = zt_schedule_lr(s, it);
            CHECK(lr >= 0 && lr < INFINITY);
            if (zt_schedule_moves_beta1(s))
                CHECK(zt_schedule_beta1(s, it) >= 0 && zt_schedule_beta1(s, it) < 1);
        }
    }
}

TEST(dev_schedule_says_where_its_momentum_ends)
{
    const struct zt_schedule *s = find("cycle_uneven");
    int64_t end = zt_schedule_beta1_end(s);
    CHECK(end > 500 && end < 600); /* 0.95 (1 + 0.001 (it - 14) / 10) is 1 at it = 540 */
    CHECK(zt_schedule_beta1(s, end) < zt_schedule_beta1(s, end + 2));
    CHECK(zt_schedule_beta1(s, end + 2) == zt_schedule_beta1(s, end + 3));
    CHECK(zt_schedule_beta1_end(find("cycle")) == INT64_MAX);
    CHECK(zt_schedule_beta1_end(find("range")) == INT64_MAX);
}

/* OneCycle's momentum goes into the step block; bias correction is with the beta of the update. */
TEST(dev_step_block_takes_the_momentum)
{
    struct zt_step_block sb = {.adam_t = 1, .apply = 1, .beta2 = 0.99f, .schedule = *find("cycle")};
    zt_step_refresh(&sb);
    CHECK(sb.beta1 == 0.8f);
    zt_step_next(&sb);
    CHECK_NEAR(sb.beta1, 0.925, 1e-7);
    CHECK_NEAR(sb.bias1, 1 / (1 - 0.925 * 0.925), 1e-5);
}

TEST_MAIN()
