#include "harness.h"

#include "base/err.h"
#include "models.h"
#include "plan/fit.h"
#include "plan/fit_internal.h"
#include "plan/largest.h"

static struct zt_err err;

static struct zt_model *model_of(const struct zt_model_config *cfg, struct zt_arena *arena)
{
    struct zt_model *m = NULL;
    if (zt_model_build(cfg, arena, &m, &err))
        printf("# %s\n", err.msg);
    return m;
}

static struct zt_fit_limits device_limit(size_t bytes)
{
    struct zt_fit_limits l = ZT_FIT_NO_LIMITS;
    l.device.bytes = bytes;
    return l;
}

static struct zt_plan_config tiny_config(int stage, int n_ranks, enum zt_dtype dtype)
{
    struct zt_plan_config cfg = plan_config(stage, n_ranks, dtype);
    cfg.micro_batch = 4;
    cfg.eval_micro_batch = 4;
    return cfg;
}

/* ---- sizes ---- */

/* A choice is what a run's plan is, on any rank. */
static void check_choice(const struct zt_model *m, const struct zt_fit_choice *c,
                         const struct zt_fit_limits *limits)
{
    struct zt_plan *p;
    CHECK_OK(zt_plan_build(m, &c->cfg, zt_mesh_world(&c->cfg.mesh) - 1, &p, &err), err);
    if (c->exact) {
        CHECK_INT(c->device, zt_plan_device_bytes(p));
        CHECK_INT(c->host, p->ledger.peak[ZT_AR_HOST]);
        CHECK(c->step_s == p->programs[ZT_PROG_TRAIN].time_s);
    }
    CHECK(c->device <= zt_plan_device_bytes(p));
    CHECK_INT(c->fits, zt_fit_fits(p, limits));
    zt_plan_free(p);
}

static void check_all(const struct zt_model *m, const struct zt_plan_config *cfg, size_t limit)
{
    const struct zt_fit_limits limits = device_limit(limit);
    struct zt_fit f;
    CHECK_OK(zt_fit_search(m, cfg, &limits, ZT_FIT_ALL, &f, &err), err);
    for (int i = 0; i < f.n; i++)
        check_choice(m, &f.choices[i], &limits);
    zt_fit_release(&f);
}

TEST(fit_sizes_are_those_of_the_run)
{
    static const size_t limits[] = {SIZE_MAX, 300 << 10, 200 << 10, 1};
    static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};
    struct zt_arena arena = {0};
    const struct zt_model *models[] = {model_of(&gpt2_fixture, &arena),
                                       model_of(&llama_fixture, &arena)};
    for (int v = 0; v < 24; v++) {
        struct zt_plan_config cfg = tiny_config(0, 1 + v % 4, types[v % 3]);
        cfg.accum = 1 + v % 2;
        cfg.generate = v % 3 == 0;
        check_all(models[v % 2], &cfg, limits[v / 6]);
        RETURN_IF_FAILED();
    }
    zt_arena_release(&arena);
}

TEST(fit_what_the_recipe_gives_up_stays)
{
    struct zt_arena arena = {0};
    struct zt_plan_config cfg = tiny_config(0, 2, ZT_BF16);
    const struct zt_fit_limits limits = ZT_FIT_NO_LIMITS;
    struct zt_fit f;
    cfg.recompute = ZT_RECOMPUTE_BLOCK;
    cfg.offload_optimizer = ZT_OFFLOAD_CPU; /* which stage 0 has not */
    const struct zt_model *m = model_of(&gpt2_fixture, &arena);
    CHECK_OK(zt_fit_search(m, &cfg, &limits, ZT_FIT_ALL, &f, &err), err);
    CHECK(f.n > 0);
    for (int i = 0; i < f.n; i++) {
        CHECK(f.choices[i].cfg.stage > 0);
        CHECK(f.choices[i].cfg.recompute == ZT_RECOMPUTE_BLOCK ||
              f.choices[i].cfg.recompute == ZT_RECOMPUTE_EVERY);
        CHECK(f.choices[i].cfg.offload_optimizer >= ZT_OFFLOAD_CPU);
        CHECK_INT(f.choices[i].cfg.micro_batch, 4);
    }
    zt_fit_release(&f);
    zt_arena_release(&arena);
}

TEST(fit_what_cannot_be_planned_is_an_error)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_fixture, &arena);
    const struct zt_fit_limits limits = ZT_FIT_NO_LIMITS;
    struct zt_plan_config cfg = tiny_config(0, 2, ZT_BF16);
    struct zt_fit f;
    cfg.seq_len = 9; /* of 8 positions */
    CHECK_INT(zt_fit_search(m, &cfg, &limits, ZT_FIT_ALL, &f, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "9 tokens"));
    zt_fit_release(&f);
    zt_arena_release(&arena);
}

/* ---- changes ---- */

static bool equal_steps(const struct zt_plan_config *a, const struct zt_plan_config *b)
{
    return a->micro_batch * a->accum == b->micro_batch * b->accum;
}

/* Every change that gives up less, of all there are. */
static void check_least(const struct zt_fit *changes, const struct zt_fit *all)
{
    for (int i = 0; i < changes->n; i++) {
        const struct zt_fit_choice *c = &changes->choices[i];
        for (int k = 0; k < all->n; k++) {
            const struct zt_fit_choice *a = &all->choices[k];
            bool less = true, same = true;
            for (int d = 0; d < ZT_N_FIT_DIMS; d++) {
                less &= a->rung[d] <= c->rung[d];
                same &= a->rung[d] == c->rung[d];
            }
            if (less && !same && a->fits)
                FAIL("change %d gives up more than choice %d, which fits", i, k);
        }
    }
}

static void check_changes(const struct zt_model *m, const struct zt_plan_config *cfg, size_t limit)
{
    const struct zt_fit_limits limits = device_limit(limit);
    struct zt_fit changes, all;
    bool any = false;
    CHECK_OK(zt_fit_search(m, cfg, &limits, ZT_FIT_CHANGES, &changes, &err), err);
    CHECK_OK(zt_fit_search(m, cfg, &limits, ZT_FIT_ALL, &all, &err), err);
    for (int i = 0; i < changes.n; i++) {
        CHECK(changes.choices[i].fits && changes.choices[i].exact);
        CHECK(changes.choices[i].device <= limit);
        CHECK(equal_steps(&changes.choices[i].cfg, cfg));
        check_choice(m, &changes.choices[i], &limits);
    }
    check_least(&changes, &all);
    check_least(&changes, &changes);
    for (int i = 0; i < all.n; i++)
        any |= all.choices[i].fits;
    CHECK(changes.n > 0 || !any);
    zt_fit_release(&changes);
    zt_fit_release(&all);
}

TEST(fit_changes_fit_and_no_part_of_them_may_be_left_out)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&llama_fixture, &arena);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = tiny_config(stage, 2, stage % 2 ? ZT_BF16 : ZT_F32);
        struct zt_plan *p;
        cfg.micro_batch = cfg.eval_micro_batch = 6;
        CHECK_OK(zt_plan_build(m, &cfg, 0, &p, &err), err);
        const size_t need = zt_plan_device_bytes(p);
        zt_plan_free(p);
        for (int i = 1; i < 10; i++)
            check_changes(m, &cfg, need * (size_t)i / 10);
        RETURN_IF_FAILED();
        check_changes(m, &cfg, need - 4096);
    }
    zt_arena_release(&arena);
}

/*
 * A micro-batch hundreds of times too large: what is suggested is a plan's, to the byte, and of smaller
 * micro-batches it is the largest: the next larger one does not fit.
 */
TEST(fit_micro_batches_far_too_large)
{
    static const int64_t micro[] = {512, 720, 509 /* prime: only 1 is left */};
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&llama_fixture, &arena);
    bool any = false;
    for (int v = 0; v < 24; v++) {
        struct zt_plan_config cfg = tiny_config(v % 4, 2, v % 2 ? ZT_BF16 : ZT_F32);
        const struct zt_fit_limits limits = device_limit((size_t)(v + 4) << 15);
        struct zt_fit f;
        cfg.micro_batch = micro[v % 3];
        cfg.accum = v % 5 ? 1 : 7;
        CHECK_OK(zt_fit_search(m, &cfg, &limits, ZT_FIT_CHANGES, &f, &err), err);
        for (int i = 0; i < f.n; i++) {
            struct zt_fit_choice c = f.choices[i];
            check_choice(m, &c, &limits);
            CHECK(equal_steps(&c.cfg, &cfg));
            if (c.rung[ZT_FIT_MICRO_BATCH] == 0)
                continue;
            any = true;
            int64_t larger = c.cfg.micro_batch + 1;
            while (cfg.micro_batch % larger)
                larger++;
            c.cfg.micro_batch = larger;
            c.cfg.accum = (int)(cfg.micro_batch / larger) * cfg.accum;
            CHECK_OK(zt_fit_size(m, &limits, &c, &err), err);
            CHECK(!c.fits);
        }
        zt_fit_release(&f);
    }
    CHECK(any);
    zt_arena_release(&arena);
}

/* The micro-batch of the choice that changes nothing else; 0: there is none. */
static int64_t largest_alone(const struct zt_fit *changes)
{
    for (int i = 0; i < changes->n; i++) {
        const int *rung = changes->choices[i].rung;
        bool only = true;
        for (int d = 0; d < ZT_N_FIT_DIMS; d++)
            only &= d == ZT_FIT_MICRO_BATCH || rung[d] == 0;
        if (only)
            return changes->choices[i].cfg.micro_batch;
    }
    return 0;
}

/*
 * The partial norms of a step, of every rank, grow where the micro-batch falls: of many ranks a smaller one
 * needs more. What fits between too large and too small is found.
 */
TEST(fit_micro_batches_too_small)
{
    enum { N = 6 };
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_fixture, &arena);
    struct zt_plan_config cfg = tiny_config(0, 1024, ZT_F32);
    size_t need[N + 1]; /* of micro-batch 64 / 2^i */
    for (int i = 0; i <= N; i++) {
        struct zt_fit_choice c = {.cfg = cfg};
        c.cfg.micro_batch = c.cfg.eval_micro_batch = 64 >> i;
        c.cfg.accum = 8 << i;
        CHECK_OK(zt_fit_size(m, &ZT_FIT_NO_LIMITS, &c, &err), err);
        need[i] = c.device;
    }
    CHECK(need[1] < need[0] && need[N] > need[1]);
    cfg.micro_batch = cfg.eval_micro_batch = 64;
    cfg.accum = 8;
    for (int i = 1; i <= N; i++) {
        const struct zt_fit_limits limits = device_limit(need[i]);
        struct zt_fit f;
        int first = 0;
        while (need[first] > need[i])
            first++;
        CHECK_OK(zt_fit_search(m, &cfg, &limits, ZT_FIT_CHANGES, &f, &err), err);
        CHECK_INT(largest_alone(&f), 64 >> first);
        zt_fit_release(&f);
    }
    zt_arena_release(&arena);
}

/*
 * What a search may cost, in plans: each combination once where there is no smaller micro-batch, three times where
 * none of ten fits, and else as bisection takes; and what cannot fit is not packed.
 */
TEST(fit_work_of_a_search)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&llama_fixture, &arena);
    struct zt_plan_config cfg = tiny_config(0, 2, ZT_BF16);
    const struct zt_fit_limits nothing = device_limit(4096);
    struct zt_fit f;
    cfg.micro_batch = 1;
    CHECK_OK(zt_fit_search(m, &cfg, &nothing, ZT_FIT_CHANGES, &f, &err), err);
    const int combinations = f.n_outlined;
    CHECK(combinations > 20);
    CHECK_INT(f.n_placed, 0);
    zt_fit_release(&f);
    cfg.micro_batch = 512;
    CHECK_OK(zt_fit_search(m, &cfg, &nothing, ZT_FIT_CHANGES, &f, &err), err);
    CHECK(f.n_outlined <= 3 * combinations);
    CHECK_INT(f.n_placed, 0);
    CHECK(f.least.exact);
    zt_fit_release(&f);
    for (int i = 4; i < 40; i++) {
        const struct zt_fit_limits limits = device_limit((size_t)i << 15);
        CHECK_OK(zt_fit_search(m, &cfg, &limits, ZT_FIT_CHANGES, &f, &err), err);
        CHECK(f.n_outlined <= 8 * combinations);
        CHECK(f.n_placed <= 2 * combinations);
        zt_fit_release(&f);
    }
    zt_arena_release(&arena);
}

TEST(fit_keys_of_a_change)
{
    struct zt_arena arena = {0};
    struct zt_fit_choice c = {.cfg = tiny_config(2, 2, ZT_F32)};
    const char *const *sets;
    int n;
    zt_fit_sets(&c, false, &arena, &n, &sets);
    CHECK_INT(n, 0);
    zt_fit_sets(&c, true, &arena, &n, &sets);
    CHECK_INT(n, 1);
    CHECK_STR(sets[0], "zero_optimization.stage=2");
    c.cfg.recompute = ZT_RECOMPUTE_BLOCK;
    c.cfg.offload_optimizer = ZT_OFFLOAD_CPU;
    c.cfg.micro_batch = 2;
    c.cfg.accum = 6;
    c.rung[ZT_FIT_RECOMPUTE] = c.rung[ZT_FIT_OFFLOAD_OPTIMIZER] = c.rung[ZT_FIT_MICRO_BATCH] = 1;
    zt_fit_sets(&c, false, &arena, &n, &sets);
    CHECK_INT(n, 4);
    CHECK_STR(sets[0], "train_micro_batch_size_per_gpu=2");
    CHECK_STR(sets[1], "gradient_accumulation_steps=6");
    CHECK_STR(sets[2], "activation_checkpointing.policy=block");
    CHECK_STR(sets[3], "zero_optimization.offload_optimizer.device=cpu");
    c = (struct zt_fit_choice){.cfg = tiny_config(3, 2, ZT_F32), .nvme_path = "/disk"};
    c.cfg.recompute = ZT_RECOMPUTE_EVERY;
    c.cfg.recompute_every = 4;
    c.cfg.cpu_checkpointing = true;
    c.cfg.offload_param = ZT_OFFLOAD_NVME;
    c.rung[ZT_FIT_RECOMPUTE] = c.rung[ZT_FIT_CPU_CHECKPOINTING] = c.rung[ZT_FIT_OFFLOAD_PARAM] = 1;
    zt_fit_sets(&c, false, &arena, &n, &sets);
    CHECK_INT(n, 5);
    CHECK_STR(sets[0], "activation_checkpointing.policy=every");
    CHECK_STR(sets[1], "activation_checkpointing.every=4");
    CHECK_STR(sets[2], "activation_checkpointing.cpu_checkpointing=true");
    CHECK_STR(sets[3], "zero_optimization.offload_param.device=nvme");
    CHECK_STR(sets[4], "zero_optimization.offload_param.nvme_path=/disk");
    zt_arena_release(&arena);
}

/* ---- the cheapest ---- */

TEST(fit_cheapest_by_time_then_by_order)
{
    struct zt_fit_choice c[5] = {{.fits = false, .step_s = 1},
                                 {.fits = true, .step_s = 2.03},
                                 {.fits = true, .step_s = 2.01},
                                 {.fits = true, .step_s = 2},
                                 {.fits = true, .step_s = 3}};
    struct zt_fit f = {.n = 5, .choices = c};
    const struct zt_fit_choice *ranked[8];
    CHECK(zt_fit_cheapest(&f) == &c[1]); /* within 2 %: the first */
    CHECK_INT(zt_fit_ranked(&f, ranked, 8), 4);
    CHECK(ranked[0] == &c[1] && ranked[1] == &c[2] && ranked[2] == &c[3] && ranked[3] == &c[4]);
    CHECK_INT(zt_fit_ranked(&f, ranked, 2), 2);
    c[1].step_s = 2.05;
    CHECK(zt_fit_cheapest(&f) == &c[2]);
    f.n = 1;
    CHECK(zt_fit_cheapest(&f) == NULL);
}

/* ---- limits ---- */

TEST(fit_limits_of_device_host_and_both)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_fixture, &arena);
    struct zt_plan_config cfg = tiny_config(1, 2, ZT_F32);
    struct zt_plan *p;
    cfg.offload_optimizer = ZT_OFFLOAD_CPU;
    CHECK_OK(zt_plan_build(m, &cfg, 0, &p, &err), err);
    const size_t device = zt_plan_device_bytes(p), host = p->ledger.peak[ZT_AR_HOST];
    struct zt_fit_limits l = ZT_FIT_NO_LIMITS;
    CHECK(zt_fit_fits(p, &l));
    l.device.bytes = device;
    l.host.bytes = host;
    l.both.bytes = device + host;
    CHECK(zt_fit_fits(p, &l));
    l.both.bytes--;
    CHECK(!zt_fit_fits(p, &l));
    l.both.bytes = SIZE_MAX;
    l.host.bytes--;
    CHECK(!zt_fit_fits(p, &l));
    l.host.bytes = SIZE_MAX;
    l.device.bytes--;
    CHECK(!zt_fit_fits(p, &l));
    l.device.bytes = SIZE_MAX;
    l.both.bytes = device - 1; /* less than one of the two */
    CHECK(!zt_fit_fits(p, &l));
    zt_plan_free(p);
    zt_arena_release(&arena);
}

/* ---- the largest model ---- */

static void check_largest(const struct zt_largest *l, enum zt_largest_family f,
                          const struct zt_fit_limits *limits)
{
    struct zt_arena arena = {0};
    struct zt_plan *p;
    const struct zt_model *m = model_of(&l->model, &arena);
    CHECK_INT(m->n_elems, l->n_params);
    check_choice(m, &l->choice, limits);
    CHECK(l->choice.fits);
    const struct zt_model_config more = zt_largest_shape(f, l->model.n_layer + 1, l->model.n_embd);
    m = model_of(&more, &arena);
    CHECK_OK(zt_plan_build(m, &l->choice.cfg, 0, &p, &err), err);
    CHECK(!zt_fit_fits(p, limits)); /* a layer more does not fit */
    zt_plan_free(p);
    zt_arena_release(&arena);
}

TEST(fit_largest_models)
{
    struct zt_plan_config cfg = plan_config(0, 4, ZT_BF16);
    struct zt_fit_limits limits = device_limit((size_t)4 << 30);
    struct zt_largest_table t;
    cfg.micro_batch = 1;
    cfg.seq_len = 1024;
    cfg.recompute = ZT_RECOMPUTE_BLOCK;
    limits.host.bytes = (size_t)16 << 30;
    CHECK_OK(zt_largest_search(&cfg, &limits, &t, &err), err);
    for (int i = 0; i < t.n; i++)
        for (int f = 0; f < ZT_N_LARGEST_FAMILIES; f++) {
            check_largest(&t.rows[i].largest[f], (enum zt_largest_family)f, &limits);
            RETURN_IF_FAILED();
        }
    zt_largest_release(&t);
    limits.device.bytes = 1 << 20;
    CHECK_OK(zt_largest_search(&cfg, &limits, &t, &err), err);
    for (int i = 0; i < t.n; i++)
        CHECK_INT(t.rows[i].largest[0].n_params, 0);
    zt_largest_release(&t);
}

TEST(fit_shapes_of_the_families)
{
    struct zt_model_config g = zt_largest_shape(ZT_LARGEST_GPT2, 12, 768);
    struct zt_model_config l = zt_largest_shape(ZT_LARGEST_LLAMA, 32, 4096);
    struct zt_arena arena = {0};
    CHECK_INT(model_of(&g, &arena)->n_elems, 124439808);  /* GPT-2 */
    CHECK_INT(model_of(&l, &arena)->n_elems, 6738415616); /* Llama 7B */
    CHECK_INT(l.n_inner, 11008);
    CHECK_INT(g.n_head, 12);
    CHECK_INT(l.n_head, 32);
    zt_arena_release(&arena);
}

/* ---- DeepSpeed's estimators ---- */

/* As DeepSpeed 0.19.8 answers: CASES M01: 2,851,598,336 parameters, the largest layer 32,899,072, 8 cards; GB of 2^30. */
TEST(fit_deepspeed_estimates)
{
    static const struct {
        struct zt_deepspeed_case c;
        const char *host, *gpu; /* as printed */
    } want[] = {
        {{.stage = 3, .offload_optimizer = true, .offload_param = true, .zero_init = true},
         "71.71",
         "0.12"},
        {{.stage = 3, .offload_optimizer = true, .offload_param = true}, "127.48", "0.12"},
        {{.stage = 3, .offload_optimizer = true, .zero_init = true}, "63.74", "0.79"},
        {{.stage = 3, .zero_init = true}, "1.47", "6.10"},
        {{.stage = 2, .offload_optimizer = true}, "127.48", "5.31"},
        {{.stage = 2}, "127.48", "11.29"},
        {{.stage = 2, .older = true}, "127.48", "15.93"},
    };
    const double gib = 1 << 30;
    for (size_t i = 0; i < ZT_ARRAY_LEN(want); i++) {
        const struct zt_deepspeed_estimate e =
            zt_deepspeed_estimate(&want[i].c, 2851598336.0, 32899072, 8, 8);
        char host[32], gpu[32];
        snprintf(host, sizeof host, "%.2f", e.host / gib);
        snprintf(gpu, sizeof gpu, "%.2f", e.gpu / gib);
        CHECK_STR(host, want[i].host);
        CHECK_STR(gpu, want[i].gpu);
    }
}

TEST(fit_deepspeed_largest_layer)
{
    struct zt_arena arena = {0};
    CHECK_INT(zt_deepspeed_largest_layer(model_of(&gpt2_124m, &arena)), 50257 * 768);
    CHECK_INT(zt_deepspeed_largest_layer(model_of(&gpt2_fixture, &arena)),
              16 * 4 + 16); /* c_fc and its bias, larger than the embedding of 11 */
    zt_arena_release(&arena);
}

TEST_MAIN()
