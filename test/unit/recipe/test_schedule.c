#include "recipe_test.h"

static struct zt_recipe *load_schedule(const char *more)
{
    struct zt_str text = {0};
    zt_str_printf(&text, "%s%strain: {steps: 500}\n%s", TINY, BATCH, more);
    struct zt_recipe *r = load_text(zt_str_get(&text), 1);
    zt_str_release(&text);
    return r;
}

TEST(recipe_warmup_schedules)
{
    struct zt_recipe *r = load_schedule("optimizer: {params: {lr: 3e-4}}\n"
                                        "scheduler: {type: WarmupLR}\n");
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_WARMUP);
    CHECK_INT(r->schedule.warmup_steps, 1000);
    CHECK_INT(r->schedule.log_warmup, 1);
    CHECK_NEAR(r->schedule.start_lr, 0, 0);
    CHECK_NEAR(r->schedule.lr, 3e-4, 0);
    CHECK_INT(r->n_notes, 0);
    CHECK_STR(value_of(r, "scheduler.params.warmup_max_lr", true), "derived");
    CHECK_STR(value_of(r, "scheduler.params.warmup_steps", false), ""); /* another type's */
    CHECK_STR(value_of(r, "scheduler.params.total_num_steps", false), "");
    zt_recipe_free(r);

    r = load_schedule("optimizer: {params: {lr: 3e-4}}\n"
                      "scheduler: {type: WarmupDecayLR, params: {warmup_type: linear, "
                      "warmup_min_lr: 1e-6, warmup_max_lr: 2e-3, warmup_num_steps: 1}}\n");
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_WARMUP_DECAY);
    CHECK_INT(r->schedule.warmup_steps, 2);
    CHECK_INT(r->schedule.total_steps, 500); /* train.steps */
    CHECK_INT(r->schedule.log_warmup, 0);
    CHECK_NEAR(r->schedule.start_lr, 1e-6, 0);
    CHECK_NEAR(r->schedule.lr, 2e-3, 0);
    CHECK(has_note(r, "optimizer.params.lr: 3e-4 is not used: WarmupDecayLR has rates of its own"));
    zt_recipe_free(r);

    r = load_schedule("optimizer: {params: {lr: 1e-2}}\n"
                      "scheduler: {type: WarmupCosineLR, params: {warmup_num_steps: 600, "
                      "warmup_min_ratio: 0.1, cos_min_ratio: 0.05, total_num_steps: 400}}\n");
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_WARMUP_COSINE);
    CHECK_NEAR(r->schedule.start_lr, 1e-3, 1e-18);
    CHECK_NEAR(r->schedule.min_lr, 5e-4, 1e-18);
    CHECK_NEAR(r->schedule.lr, 1e-2, 0);
    CHECK(has_note(r, "600 is more than the 400 steps of the schedule: it ends in its warm-up"));
    zt_recipe_free(r);
}

TEST(recipe_warmup_decay_says_where_deepspeeds_default_differs)
{
    struct zt_recipe *r = load_schedule("optimizer: {params: {lr: 3e-4}}\n"
                                        "scheduler: {type: WarmupDecayLR}\n");
    CHECK_LOADED(r);
    CHECK_NEAR(r->schedule.lr, 3e-4, 0);
    CHECK(has_note(r, "optimizer.params.lr, 0.0003, is taken, where DeepSpeed takes 0.001"));
    zt_recipe_free(r);
}

TEST(recipe_range_test)
{
    struct zt_recipe *r =
        load_schedule("scheduler: {type: LRRangeTest, params: {lr_range_test_step_rate: 5, "
                      "lr_range_test_min_lr: 1e-4, lr_range_test_staircase: true}}\n");
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_RANGE_TEST);
    CHECK_NEAR(r->schedule.start_lr, 1e-4, 0);
    CHECK_NEAR(r->schedule.range.rate, 5, 0);
    CHECK_INT(r->schedule.range.size, 2000);
    CHECK_INT(r->schedule.range.staircase, 1);
    zt_recipe_free(r);
}

TEST(recipe_one_cycle)
{
    struct zt_recipe *r =
        load_schedule("optimizer: {params: {betas: [0.9, 0.999]}}\n"
                      "scheduler: {type: OneCycle, params: {cycle_min_lr: 1e-4, cycle_max_lr: "
                      "1e-2, cycle_first_step_size: 7, cycle_first_stair_count: 3}}\n");
    CHECK_LOADED(r);
    const struct zt_schedule *s = &r->schedule;
    CHECK_INT(s->kind, ZT_SCHED_ONE_CYCLE);
    CHECK_NEAR(s->lr, 1e-2, 0);
    CHECK_NEAR(s->min_lr, 1e-4, 0);
    CHECK_INT(s->cycle.second_size, 7);
    CHECK_INT(s->cycle.second_stairs, 3);
    CHECK_INT(s->cycle.cycle_momentum, 1);
    CHECK_NEAR(r->optimizer.beta1, 0.8, 0);
    CHECK_NEAR(r->optimizer.beta2, 0.99, 0);
    CHECK(has_note(r, "optimizer.params.betas: not used: OneCycle moves beta1"));
    zt_recipe_free(r);

    r = load_schedule("optimizer: {params: {betas: [0.9, 0.95]}}\n"
                      "scheduler: {type: OneCycle, params: {cycle_min_lr: 1e-4, cycle_max_lr: "
                      "1e-2, cycle_momentum: false}}\n");
    CHECK_LOADED(r);
    CHECK_NEAR(r->optimizer.beta2, 0.95, 0);
    CHECK(!zt_schedule_moves_beta1(&r->schedule));
    CHECK_INT(r->n_notes, 0);
    zt_recipe_free(r);
}

/* Whoever forgets the type is told that nothing decays. */
TEST(recipe_constant_says_what_it_does_not_use)
{
    struct zt_recipe *r =
        load_schedule("scheduler: {params: {warmup_steps: 5, total_steps: 50, min_lr: 1e-5}}\n");
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_CONSTANT);
    CHECK_INT(r->schedule.warmup_steps, 5);
    CHECK(has_note(r, "scheduler.params.total_steps: not used: belongs to Cosine, and "
                      "scheduler.type is Constant"));
    CHECK(has_note(r, "scheduler.params.min_lr: not used: belongs to Cosine"));
    CHECK_STR(value_of(r, "scheduler.params.min_lr", false), "");
    zt_recipe_free(r);
}

/* What a worker receives: every type's parameters survive being printed. */
TEST(recipe_schedules_round_trip)
{
    static const char *const texts[] = {
        "scheduler: {type: WarmupLR, params: {warmup_max_lr: 5e-4}}\n",
        "scheduler: {type: WarmupDecayLR}\n",
        "scheduler: {type: WarmupCosineLR, params: {cos_min_ratio: 0.3}}\n",
        "scheduler: {type: LRRangeTest}\n",
        "scheduler: {type: OneCycle, params: {cycle_min_lr: 1e-4, cycle_max_lr: 1e-2}}\n",
        "scheduler: {type: Cosine, params: {min_lr: 1e-5}}\n",
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(texts); i++) {
        struct zt_recipe *r = load_schedule(texts[i]);
        CHECK_LOADED(r);
        struct zt_str text = {0};
        zt_recipe_print(r, &text);
        struct zt_recipe *again = load_text(zt_str_get(&text), 1);
        zt_str_release(&text);
        CHECK_LOADED(again);
        CHECK(memcmp(&r->schedule, &again->schedule, sizeof r->schedule) == 0);
        CHECK_NEAR(again->optimizer.beta2, r->optimizer.beta2, 0);
        zt_recipe_free(again);
        zt_recipe_free(r);
    }
}

TEST_MAIN()
