#include "harness.h"

#include "train/times.h"

#define MS 1000000LL

/* FORWARD | BACKWARD | UPDATE | STEP on compute; GATHER before, REDUCE beside and behind backward. */
static const struct zt_op ops[] = {
    {.kind = ZT_OP_GATHER, .stream = ZT_ST_COMM},
    {.kind = ZT_OP_FORWARD, .stream = ZT_ST_COMPUTE},
    {.kind = ZT_OP_RECOMPUTE, .stream = ZT_ST_COMPUTE},
    {.kind = ZT_OP_BACKWARD, .stream = ZT_ST_COMPUTE},
    {.kind = ZT_OP_REDUCE, .stream = ZT_ST_COMM},
    {.kind = ZT_OP_VOTE, .stream = ZT_ST_COMM},
    {.kind = ZT_OP_UPDATE, .stream = ZT_ST_COMPUTE},
    {.kind = ZT_OP_STEP, .stream = ZT_ST_COMPUTE},
    {.kind = ZT_OP_ALLGATHER, .stream = ZT_ST_COMM},
};
enum { N_OPS = ZT_ARRAY_LEN(ops) };

static struct zt_program program(void)
{
    static struct zt_op copy[N_OPS];
    memcpy(copy, ops, sizeof ops);
    return (struct zt_program){.kind = ZT_PROG_TRAIN, .repeats = true, .n_ops = N_OPS, .ops = copy};
}

/* In ms; the last ALLGATHER ends behind the step. */
static void fill(struct zt_op_time *t, const double (*ms)[2], double shift)
{
    for (int i = 0; i < N_OPS; i++)
        t[i] = (struct zt_op_time){(int64_t)((ms[i][0] + shift) * MS),
                                   (int64_t)((ms[i][1] + shift) * MS)};
}

static const double one_step[N_OPS][2] = {
    {10, 13}, {12, 20}, {20, 22}, {22, 30}, {25, 33}, {33, 34}, {35, 38}, {38, 39}, {36, 42},
};

TEST(times_breakdown_of_the_first_step)
{
    struct zt_program prog = program();
    struct zt_op_time t[N_OPS];
    struct zt_breakdown b;
    fill(t, one_step, 0);
    CHECK_INT(zt_times_breakdown(&prog, NULL, t, 0, &b), 39 * MS);
    CHECK_NEAR(b.total_ms, 29, 1e-9); /* from 10 to 39 */
    CHECK_NEAR(b.busy_ms[ZT_PART_FORWARD], 8, 1e-9);
    CHECK_NEAR(b.exposed_ms[ZT_PART_FORWARD], 8, 1e-9);
    CHECK_NEAR(b.exposed_ms[ZT_PART_BACKWARD], 10, 1e-9);
    CHECK_NEAR(b.exposed_ms[ZT_PART_UPDATE], 4, 1e-9);
    CHECK_NEAR(b.busy_ms[ZT_PART_REDUCE], 14, 1e-9); /* the gradients' all-gather too */
    CHECK_NEAR(b.exposed_ms[ZT_PART_REDUCE], 3, 1e-9);
    CHECK_NEAR(b.busy_ms[ZT_PART_GATHER], 3, 1e-9);
    CHECK_NEAR(b.exposed_ms[ZT_PART_GATHER], 2, 1e-9);
    CHECK_NEAR(b.exposed_ms[ZT_PART_WAIT], 2, 1e-9); /* the vote, and 34 to 35 */
}

/* What ends behind the step before belongs to the time of this one. */
TEST(times_breakdown_goes_on_without_a_gap)
{
    struct zt_program prog = program();
    struct zt_op_time before[N_OPS], t[N_OPS];
    struct zt_breakdown b;
    double sum = 0;
    fill(before, one_step, 0);
    fill(t, one_step, 31); /* the gather begins at 41 */
    CHECK_INT(zt_times_breakdown(&prog, before, t, 39 * MS, &b), 70 * MS);
    CHECK_NEAR(b.total_ms, 31, 1e-9);
    CHECK_NEAR(b.exposed_ms[ZT_PART_REDUCE], 3 + 3, 1e-9); /* 39 to 42, not twice with the gather */
    CHECK_NEAR(b.exposed_ms[ZT_PART_GATHER], 1, 1e-9);
    for (int p = 0; p < ZT_N_PARTS; p++)
        sum += b.exposed_ms[p];
    CHECK_NEAR(sum, b.total_ms, 1e-9);

    struct zt_breakdown mean = {0};
    zt_breakdown_add(&mean, &b);
    zt_breakdown_add(&mean, &b);
    zt_breakdown_scale(&mean, 0.5);
    CHECK_NEAR(mean.total_ms, b.total_ms, 1e-12);
    CHECK_NEAR(mean.busy_ms[ZT_PART_REDUCE], b.busy_ms[ZT_PART_REDUCE], 1e-12);
    CHECK_NEAR(mean.exposed_ms[ZT_PART_WAIT], b.exposed_ms[ZT_PART_WAIT], 1e-12);
}

/* A profile's FLOPs are the plan's, and its rates follow from them and the times. */
TEST(times_profile)
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *model;
    struct zt_plan *plan;
    const struct zt_model_config mc = {.type = ZT_MODEL_GPT2,
                                       .n_layer = 2,
                                       .n_head = 2,
                                       .n_embd = 32,
                                       .n_kv_head = 2,
                                       .head_dim = 16,
                                       .n_inner = 128,
                                       .vocab_size = 256,
                                       .n_positions = 16,
                                       .norm_eps = 1e-5f,
                                       .initializer_range = 0.02f,
                                       .tie_embeddings = true};
    struct zt_plan_config cfg = {.stage = 3,
                                 .mesh = {{1, 1, 2, 1, 1}},
                                 .dtype = ZT_F32,
                                 .micro_batch = 2,
                                 .seq_len = 16,
                                 .accum = 2,
                                 .overlap_comm = true,
                                 .comm_dtype = -1,
                                 .dev_kind = ZT_DEV_CPU,
                                 .n_threads = 1,
                                 .shared_arena = true,
                                 .profile = zt_profile_find("cpu"),
                                 .profile_known = true};
    CHECK_OK(zt_model_build(&mc, &arena, &model, &err), err);
    CHECK_OK(zt_plan_build(model, &cfg, 0, &plan, &err), err);
    const struct zt_program *prog = &plan->programs[ZT_PROG_TRAIN];
    struct zt_op_time *times = zt_xcalloc((size_t)prog->n_ops, sizeof *times);
    for (int i = 0; i < prog->n_ops; i++) /* a millisecond each, one after the other */
        times[i] = (struct zt_op_time){i * MS, (i + 1) * MS};
    struct zt_str text = {0}, want = {0};
    struct zt_profile_of of = {plan, times, 7, 1e9, ZT_F32, true};
    zt_times_profile(&of, &text);
    CHECK(strstr(text.buf, "profile of step 7 on rank 0 of 2: 2 micro-batches of 2 x 16 tokens\n"));
    zt_str_printf(&want, "  FLOPs       %.4g G", plan->ledger.flops * 1e-9);
    CHECK(strstr(text.buf, want.buf));
    zt_str_reset(&want);
    zt_str_printf(&want, "  rate        %.2f GFLOP/s, %.1f %% of 1.00 ",
                  plan->ledger.flops / prog->n_ops * 1e-6, plan->ledger.flops / prog->n_ops * 1e-4);
    CHECK(strstr(text.buf, want.buf));
    int64_t params = 0; /* of the segments' rows, tied ones once */
    for (const char *line = strstr(text.buf, "\n  segment"); line; line = strchr(line + 1, '\n')) {
        char name[16], op[16];
        long long n;
        if (sscanf(line + 1, " %15s %lld %15[A-Z]", name, &n, op) == 3)
            params += n;
    }
    CHECK_INT(params, model->n_elems);
    CHECK(strstr(text.buf, "\n  REDUCE "));
    of.detailed = false;
    zt_str_reset(&text);
    zt_times_profile(&of, &text);
    CHECK(!strstr(text.buf, "segment"));
    zt_str_release(&text);
    zt_str_release(&want);
    free(times);
    zt_plan_free(plan);
    zt_arena_release(&arena);
}

TEST_MAIN()
