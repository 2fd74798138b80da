#include "harness.h"

#include <jansson.h>

#include "base/err.h"
#include "models.h"

static struct zt_model *model_of(const struct zt_model_config *cfg, struct zt_arena *arena)
{
    struct zt_model *m = NULL;
    struct zt_err err;
    if (zt_model_build(cfg, arena, &m, &err))
        printf("# %s\n", err.msg);
    return m;
}

/* ---- whole plans ---- */

/* Categories add up to the arenas; the arenas hold the plan. */
static void check_ledger(const struct zt_plan *p)
{
    const struct zt_ledger *l = &p->ledger;
    size_t device = 0, host = 0, persistent[ZT_N_ARENAS] = {0};
    for (int c = 0; c < ZT_N_CATS; c++) {
        device += l->device[c];
        host += l->host[c];
    }
    CHECK_INT(device, l->peak[ZT_AR_DEVICE] + l->peak[ZT_AR_SHARED]);
    CHECK_INT(host, l->peak[ZT_AR_HOST]);
    for (int b = 0; b < p->n_bufs; b++) {
        const struct zt_buf *x = &p->bufs[b];
        CHECK(x->offset + x->bytes <= l->peak[x->arena]);
        CHECK_INT(x->offset % ZT_BUF_ALIGN, 0);
        persistent[x->arena] += x->program < 0 ? x->bytes : 0;
    }
    for (int a = 0; a < ZT_N_ARENAS; a++)
        CHECK(persistent[a] <= l->peak[a]);
    CHECK(l->flops >= l->model_flops * 0.99);
}

static void build_and_check(const struct zt_model *m, const struct zt_plan_config *cfg)
{
    struct zt_plan *p;
    struct zt_err err;
    CHECK_OK(zt_plan_build(m, cfg, zt_mesh_world(&cfg->mesh) / 2, &p, &err), err);
    check_ledger(p);
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        CHECK(p->programs[k].n_ops > 0);
    zt_plan_free(p);
}

enum { VARIANTS = 96 };

/* Variant v of accumulation, recomputation, overlap, type, profile. */
static void vary(struct zt_plan_config *cfg, int v)
{
    static const int accum[] = {1, 2, 4};
    cfg->dtype = v & 1 ? ZT_BF16 : ZT_F32;
    if (v & 2)
        set_recomputation(cfg, (size_t)(v / 4) % ZT_ARRAY_LEN(recomputations));
    cfg->overlap_comm = !(v & 4);
    cfg->saves = cfg->snapshot = cfg->loads = true;
    cfg->profile_known = !(v & 8);
    cfg->shared_arena = !(v & 16);
    cfg->profile = &zt_profiles[v & 8 ? 2 : v & 1];
    cfg->accum = accum[v / 32];
    cfg->eval_micro_batch = 2;
    cfg->generate = true;
}

static const int rank_counts[] = {1, 2, 3, 8, 4096};

TEST(ledger_every_gpt2_plan_builds)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_124m, &arena);
    CHECK(m);
    CHECK_INT(m->n_elems, 124439808);
    for (int v = 0; v < VARIANTS; v++) {
        for (int stage = 0; stage < 4; stage++) {
            const int n = rank_counts[(v + stage) % (int)ZT_ARRAY_LEN(rank_counts)];
            struct zt_plan_config cfg = plan_config(stage, n, ZT_F32);
            vary(&cfg, v);
            cfg.micro_batch = 4;
            cfg.seq_len = 1024;
            cfg.reduce_every_micro_batch = v % 5 == 0;
            cfg.comm_dtype = v % 7 == 0 ? ZT_BF16 : v % 7 == 1 ? ZT_F32 : -1;
            build_and_check(m, &cfg);
            RETURN_IF_FAILED();
        }
    }
    zt_arena_release(&arena);
}

TEST(ledger_every_llama_plan_builds)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&llama_7b, &arena);
    CHECK(m);
    CHECK_INT(m->n_elems, 6738415616);
    for (int v = 0; v < VARIANTS; v += 5) {
        for (int stage = 0; stage < 4; stage++) {
            const int n = rank_counts[v % (int)ZT_ARRAY_LEN(rank_counts)];
            struct zt_plan_config cfg = plan_config(stage, n, ZT_BF16);
            vary(&cfg, v);
            cfg.micro_batch = 1;
            cfg.seq_len = 2048;
            if (stage > 0 && v % 2)
                cfg.offload_optimizer = ZT_OFFLOAD_CPU;
            build_and_check(m, &cfg);
            RETURN_IF_FAILED();
        }
    }
    zt_arena_release(&arena);
}

TEST(ledger_ranks_of_a_job_fit_together)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_fixture, &arena);
    struct zt_plan *p[7];
    struct zt_err err;
    CHECK(m);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 7, ZT_BF16);
        cfg.accum = 2;
        cfg.generate = true;
        for (int r = 0; r < 7; r++)
            CHECK_OK(zt_plan_build(m, &cfg, r, &p[r], &err), err);
        CHECK_OK(zt_verify_ranks((const struct zt_plan *const *)p, 7, &err), err);
        for (int r = 0; r < 7; r++)
            zt_plan_free(p[r]);
    }
    zt_arena_release(&arena);
}

/* What is resident follows the formula to the byte, but for padding: 124M on 4 ranks (M01). */
TEST(ledger_state_is_the_formula)
{
    static const double want[4] = {1991036928, 871078656, 684418944, 497759232};
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_124m, &arena);
    struct zt_err err;
    CHECK(m);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan *p;
        struct zt_plan_config cfg = plan_config(stage, 4, ZT_BF16);
        CHECK_OK(zt_plan_build(m, &cfg, 0, &p, &err), err);
        const struct zt_ledger *l = &p->ledger;
        CHECK_NEAR(l->formula_bytes, want[stage], 0);
        const double full = 124439808, slice = full / 4;
        CHECK_NEAR(l->device[ZT_CAT_PARAM], 2 * (stage < 3 ? full : slice), 1024);
        for (int c = ZT_CAT_MASTER; c <= ZT_CAT_OPT_V; c++)
            CHECK_NEAR(l->device[c], 4 * (stage < 1 ? full : slice), 1024);
        zt_plan_free(p);
    }
    zt_arena_release(&arena);
}

/* Lion has one state: no buffer, operand or byte of a v, in any stage. */
TEST(ledger_lion_has_no_v)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_124m, &arena);
    struct zt_err err;
    CHECK(m);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan *p;
        struct zt_plan_config cfg = plan_config(stage, 4, ZT_BF16);
        cfg.optimizer = ZT_LION;
        CHECK_OK(zt_plan_build(m, &cfg, 0, &p, &err), err);
        const double params = 124439808, state = 8 * params;
        const double want[4] = {4 * params + state, 4 * params + state / 4,
                                2 * params + (2 * params + state) / 4, (4 * params + state) / 4};
        CHECK_NEAR(p->ledger.formula_bytes, want[stage], 0);
        CHECK_NEAR(p->ledger.device[ZT_CAT_OPT_M], 4 * (stage < 1 ? params : params / 4), 1024);
        CHECK_INT(p->ledger.device[ZT_CAT_OPT_V], 0);
        for (int b = 0; b < p->n_bufs; b++)
            CHECK(p->bufs[b].cat != ZT_CAT_OPT_V);
        zt_plan_free(p);
    }
    zt_arena_release(&arena);
}

/* ---- tables ---- */

TEST(ledger_state_table_m01)
{
    static const double seven[4] = {112e9, 49e9, 38.5e9, 28e9};
    static const double paper[4] = {120e9, 31.40625e9, 16.640625e9, 1.875e9};
    static const double gpt2[4] = {1991036928, 871078656, 684418944, 497759232};
    for (int s = 0; s < 4; s++) {
        CHECK_NEAR(zt_state_bytes(7e9, s, 4), seven[s], 0);
        CHECK_NEAR(zt_state_bytes(7.5e9, s, 64), paper[s], 1);
        CHECK_NEAR(zt_state_bytes(124439808, s, 4), gpt2[s], 0);
    }
    struct zt_str text = {0};
    zt_print_state_table(7e9, 4, &text);
    static const char *const want[] = {"112.00", "104.31", "49.00", "45.63",    "38.50",
                                       "35.86",  "28.00",  "26.08", "section 3"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(want); i++)
        CHECK(strstr(zt_str_get(&text), want[i]));
    zt_str_release(&text);
}

/* The four stages of a small model on 4 ranks. */
static void four_stages(const struct zt_model *m, struct zt_plan *p[4])
{
    struct zt_err err;
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 4, ZT_BF16);
        cfg.generate = true;
        cfg.eval_micro_batch = 1;
        CHECK_OK(zt_plan_build(m, &cfg, 1, &p[stage], &err), err);
    }
}

static int lines(const char *text, size_t *longest)
{
    int n = 0;
    *longest = 0;
    for (const char *s = text, *end; (end = strchr(s, '\n')); s = end + 1, n++)
        *longest = ZT_MAX(*longest, (size_t)(end - s));
    return n;
}

TEST(ledger_prints_stages_side_by_side)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_124m, &arena);
    struct zt_plan *p[4];
    struct zt_str text = {0};
    size_t longest;
    CHECK(m);
    four_stages(m, p);
    RETURN_IF_FAILED();
    zt_plan_print_ledger((const struct zt_plan *const *)p, 4, &text);
    CHECK(lines(zt_str_get(&text), &longest) > 40);
    CHECK(longest <= 100);
    for (int c = ZT_CAT_PARAM; c <= ZT_CAT_WORKSPACE; c++)
        CHECK(strstr(zt_str_get(&text), zt_cat_name((enum zt_cat)c)));
    CHECK(strstr(zt_str_get(&text), "padding") && strstr(zt_str_get(&text), "\"fast\""));
    zt_str_release(&text);
    for (int s = 0; s < 4; s++)
        zt_plan_free(p[s]);
    zt_arena_release(&arena);
}

/* Of a line's numbers no two touch. */
static bool apart(const char *line)
{
    int digits = 0, points = 0;
    for (; *line && *line != '\n'; line++) {
        digits = *line >= '0' && *line <= '9' ? digits + 1 : 0;
        points = *line == ' ' ? 0 : points + (*line == '.');
        if (digits > 8 || points > 1)
            return false;
    }
    return true;
}

TEST(ledger_columns_stay_apart_however_large_the_numbers)
{
    static const double sizes[] = {9.9999e12, 1e13, 9.99999e13, 1e14, 1.2345e15, 9.99999e16};
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&gpt2_124m, &arena);
    struct zt_plan *p[4];
    CHECK(m);
    four_stages(m, p);
    RETURN_IF_FAILED();
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++) {
        struct zt_str text = {0};
        for (int s = 0; s < 4; s++) {
            p[s]->ledger.peak[ZT_AR_DEVICE] = (size_t)sizes[i];
            p[s]->ledger.formula_bytes = 0;
        }
        zt_plan_print_ledger((const struct zt_plan *const *)p, 4, &text);
        const char *peak = strstr(zt_str_get(&text), "= device peak");
        const char *beyond = strstr(zt_str_get(&text), "peak minus formula");
        CHECK(peak && apart(peak));
        CHECK(beyond && apart(beyond));
        zt_str_release(&text);
    }
    for (int s = 0; s < 4; s++)
        zt_plan_free(p[s]);
    zt_arena_release(&arena);
}

TEST(ledger_schedule_lists_every_row)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&llama_fixture, &arena);
    struct zt_plan *p[4];
    CHECK(m);
    four_stages(m, p);
    RETURN_IF_FAILED();
    for (int s = 0; s < 4; s++) {
        struct zt_str text = {0};
        size_t longest;
        int want = -1; /* no blank line before the first program */
        zt_plan_print_schedule(p[s], &text);
        for (int k = 0; k < ZT_N_PROGRAMS; k++)
            want += p[s]->programs[k].n_ops
                        ? 2 + p[s]->programs[k].n_ops + p[s]->programs[k].n_accesses
                        : 0;
        CHECK_INT(lines(zt_str_get(&text), &longest), want);
        CHECK(!strstr(zt_str_get(&text), "(null)"));
        zt_str_release(&text);
        zt_plan_free(p[s]);
    }
    zt_arena_release(&arena);
}

TEST(ledger_json_parses_back)
{
    struct zt_arena arena = {0};
    const struct zt_model *m = model_of(&llama_fixture, &arena);
    struct zt_plan *p[4];
    struct zt_str text = {0};
    CHECK(m);
    CHECK_INT(m->n_elems, 4336);
    four_stages(m, p);
    RETURN_IF_FAILED();
    zt_plan_print_json((const struct zt_plan *const *)p, 4, true, &text);
    json_error_t error;
    json_t *doc = json_loads(zt_str_get(&text), 0, &error);
    if (!doc)
        FAIL("line %d: %s", error.line, error.text);
    json_t *stages = json_object_get(doc, "stages");
    CHECK_INT(json_array_size(stages), 4);
    for (int s = 0; s < 4; s++) {
        const json_t *o = json_array_get(stages, (size_t)s);
        const json_t *ledger = json_object_get(o, "ledger"), *key;
        json_int_t sum = 0;
        const char *name;
        json_object_foreach(json_object_get(ledger, "device_bytes"), name, key) sum +=
            json_integer_value(key);
        const json_t *peak = json_object_get(ledger, "peak_bytes");
        CHECK_INT(sum, json_integer_value(json_object_get(peak, "device")) +
                           json_integer_value(json_object_get(peak, "shared")));
        const json_t *train = json_array_get(json_object_get(o, "programs"), ZT_PROG_TRAIN);
        CHECK_STR(json_string_value(json_object_get(train, "name")), "train");
        CHECK_INT(json_array_size(json_object_get(train, "schedule")),
                  p[s]->programs[ZT_PROG_TRAIN].n_ops);
        zt_plan_free(p[s]);
    }
    json_decref(doc);
    zt_str_release(&text);
    zt_arena_release(&arena);
}

TEST_MAIN()
