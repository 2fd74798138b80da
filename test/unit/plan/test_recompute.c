/*
 * Recomputation: which rows it has, what it keeps, and what it costs in bytes and FLOPs. That the plans
 * verify, and reject every mutant, is checked with all others (test_plans.c); that the bits are the same by
 * test/unit/train and test/parity.
 */
#include "fixture.h"

static void build(struct fixture *f, const struct zt_plan_config *cfg)
{
    zt_plan_free(f->plan);
    f->plan = NULL;
    CHECK_OK(zt_plan_build(f->model, cfg, 0, &f->plan, &f->err), f->err);
    f->train = &f->plan->programs[ZT_PROG_TRAIN];
}

/* A small model of as many blocks. */
static struct zt_model_config blocks(int n)
{
    struct zt_model_config mc = gpt2_fixture;
    mc.n_layer = n;
    return mc;
}

static const struct zt_access *access_of(const struct fixture *f, const struct zt_op *op,
                                         enum zt_role role)
{
    return zt_op_operand(f->train, op, role, 0);
}

static int buf_of(const struct fixture *f, const struct zt_op *op, enum zt_role role)
{
    const struct zt_access *a = access_of(f, op, role);
    return a ? a->buf : -1;
}

/* "F0 F1 B1 R0 B0": passes of a micro-batch, E and T copies to the host and back, by segment. */
static void sequence(const struct fixture *f, int mb, struct zt_str *out)
{
    for (int i = 0; i < f->train->n_ops; i++) {
        const struct zt_op *op = &f->train->ops[i];
        const char *mark = op->kind == ZT_OP_FORWARD     ? "F"
                           : op->kind == ZT_OP_RECOMPUTE ? "R"
                           : op->kind == ZT_OP_BACKWARD  ? "B"
                           : op->kind == ZT_OP_EVICT     ? "E"
                           : op->kind == ZT_OP_FETCH     ? "T"
                                                         : NULL;
        if (mark && op->mb == mb)
            zt_str_printf(out, "%s%s%d", out->len ? " " : "", mark, op->segment);
    }
}

static void check_sequence(const struct zt_model_config *mc, enum zt_recompute kind, int every,
                           bool on_host, const char *want)
{
    struct fixture f;
    struct zt_plan_config cfg = plan_config(1, 2, ZT_F32);
    cfg.accum = 2;
    cfg.recompute = kind;
    cfg.recompute_every = every;
    cfg.cpu_checkpointing = on_host;
    setup(&f, mc);
    build(&f, &cfg);
    RETURN_IF_FAILED();
    for (int mb = 0; mb < 2; mb++) {
        struct zt_str got = {0};
        sequence(&f, mb, &got);
        CHECK_STR(zt_str_get(&got), want);
        zt_str_release(&got);
    }
    teardown(&f);
}

/* Segment 0 is the embedding, 1 to 5 are blocks, 6 is the head, whose forward is in its backward. */
TEST(recompute_rows)
{
    const struct zt_model_config mc = blocks(5);
    const char *block = "F0 F1 F2 F3 F4 F5 B6 R5 B5 R4 B4 R3 B3 R2 B2 R1 B1 B0";
    check_sequence(&mc, ZT_RECOMPUTE_NONE, 0, false, "F0 F1 F2 F3 F4 F5 B6 B5 B4 B3 B2 B1 B0");
    check_sequence(&mc, ZT_RECOMPUTE_BLOCK, 0, false, block);
    check_sequence(&mc, ZT_RECOMPUTE_SELECTIVE, 0, false, block);
    check_sequence(&mc, ZT_RECOMPUTE_EVERY, 1, false, block);
    check_sequence(&mc, ZT_RECOMPUTE_EVERY, 2, false,
                   "F0 F1 F2 F3 F4 F5 B6 R5 B5 R3 R4 B4 B3 R1 R2 B2 B1 B0");
    check_sequence(&mc, ZT_RECOMPUTE_EVERY, 5, false,
                   "F0 F1 F2 F3 F4 F5 B6 R1 R2 R3 R4 R5 B5 B4 B3 B2 B1 B0");
}

/* An input leaves behind the forward that reads it, and is back a run before it is needed. */
TEST(recompute_rows_from_the_host)
{
    const struct zt_model_config mc = blocks(5);
    check_sequence(&mc, ZT_RECOMPUTE_BLOCK, 0, true,
                   "F0 F1 E0 F2 E1 F3 E2 F4 E3 F5 B6 T3 R5 B5 T2 R4 B4 T1 R3 B3 T0 R2 B2 R1 B1 B0");
    check_sequence(&mc, ZT_RECOMPUTE_EVERY, 2, true,
                   "F0 F1 E0 F2 F3 E2 F4 F5 B6 T2 R5 B5 T0 R3 R4 B4 B3 R1 R2 B2 B1 B0");
    check_sequence(&mc, ZT_RECOMPUTE_EVERY, 5, true,
                   "F0 F1 F2 F3 F4 F5 B6 R1 R2 R3 R4 R5 B5 B4 B3 B2 B1 B0");
}

/* Runs begin where backward ends: at the first block with anything to train. */
TEST(recompute_only_what_is_trained)
{
    struct fixture f;
    const struct zt_model_config mc = blocks(5);
    struct zt_plan_config cfg = plan_config(1, 2, ZT_F32);
    cfg.recompute = ZT_RECOMPUTE_EVERY;
    cfg.recompute_every = 2;
    cfg.cpu_checkpointing = true;
    setup(&f, &mc);
    for (int i = 0; i < f.model->n_params; i++)
        f.model->params[i].trainable = f.model->params[i].home_segment > 1;
    build(&f, &cfg);
    RETURN_IF_FAILED();
    struct zt_str got = {0};
    sequence(&f, 0, &got);
    CHECK_STR(zt_str_get(&got), "F0 F1 F2 E1 F3 F4 F5 B6 T1 R4 R5 B5 B4 R2 R3 B3 B2");
    zt_str_release(&got);
    teardown(&f);
}

/*
 * Inside a run each block reads what the one before it made again, and its backward the same; of the
 * forward pass only the run's input is read later. All of it as declared ranges of the right buffers.
 */
static void check_chain(const struct fixture *f, int every)
{
    const int n = f->model->n_segments, n_blocks = n - 2;
    int x[16] = {0}, act[16], again[16];
    for (int i = 0; i < f->train->n_ops; i++) {
        const struct zt_op *op = &f->train->ops[i];
        const int s = op->segment, in = buf_of(f, op, ZT_R_X_IN);
        if (s < 0 || (op->kind != ZT_OP_FORWARD && op->kind != ZT_OP_RECOMPUTE &&
                      op->kind != ZT_OP_BACKWARD))
            continue;
        const bool first = s >= 1 && (s - 1) % every == 0;
        const bool last = s == n_blocks || (s >= 1 && s % every == 0);
        if (op->kind == ZT_OP_FORWARD) {
            CHECK(s == 0 || in == x[s - 1]);
            x[s] = buf_of(f, op, ZT_R_X_OUT);
            /* What no backward begins with is gone with the next forward. */
            if (s >= 1 && !last)
                CHECK_INT(f->train->ops[f->plan->bufs[x[s]].last].kind, ZT_OP_FORWARD);
        } else if (op->kind == ZT_OP_RECOMPUTE) {
            CHECK_INT(in, first ? x[s - 1] : again[s - 1]);
            again[s] = buf_of(f, op, ZT_R_X_OUT);
            act[s] = buf_of(f, op, ZT_R_ACT);
            CHECK_INT(again[s] >= 0, !last);
            CHECK_INT(access_of(f, op, ZT_R_ACT)->mode, ZT_WRITE);
        } else if (s >= 1 && s <= n_blocks) {
            CHECK_INT(in, first ? x[s - 1] : again[s - 1]);
            CHECK_INT(buf_of(f, op, ZT_R_ACT), act[s]);
        }
    }
}

TEST(recompute_reads_what_it_made_again)
{
    for (int every = 1; every <= 5; every++) {
        struct fixture f;
        const struct zt_model_config mc = blocks(5);
        struct zt_plan_config cfg = plan_config(2, 2, ZT_BF16);
        cfg.recompute = ZT_RECOMPUTE_EVERY;
        cfg.recompute_every = every;
        setup(&f, &mc);
        build(&f, &cfg);
        RETURN_IF_FAILED();
        check_chain(&f, every);
        RETURN_IF_FAILED();
        teardown(&f);
    }
}

/* Selective: act's kept part lives from forward to backward, the inner one from its row to backward. */
TEST(recompute_selective_keeps_a_part)
{
    struct fixture f;
    struct zt_plan_config cfg = plan_config(2, 2, ZT_BF16);
    cfg.recompute = ZT_RECOMPUTE_SELECTIVE;
    setup(&f, &gpt2_fixture);
    build(&f, &cfg);
    RETURN_IF_FAILED();
    int kept[4] = {0}, inner[4] = {0}, rows = 0;
    for (int i = 0; i < f.train->n_ops; i++) {
        const struct zt_op *op = &f.train->ops[i];
        const int s = op->segment;
        if (!access_of(&f, op, ZT_R_INNER))
            continue;
        rows++;
        if (op->kind == ZT_OP_FORWARD) {
            kept[s] = buf_of(&f, op, ZT_R_ACT);
            const struct zt_buf *scratch = &f.plan->bufs[buf_of(&f, op, ZT_R_INNER)];
            CHECK(scratch->first == i && scratch->last == i && scratch->cat == ZT_CAT_WORKSPACE);
        } else if (op->kind == ZT_OP_RECOMPUTE) {
            CHECK_INT(buf_of(&f, op, ZT_R_ACT), kept[s]);
            CHECK_INT(access_of(&f, op, ZT_R_ACT)->mode, ZT_READ);
            CHECK(!access_of(&f, op, ZT_R_X_OUT));
            inner[s] = buf_of(&f, op, ZT_R_INNER);
            CHECK_INT(f.plan->bufs[inner[s]].first, i);
        } else {
            CHECK_INT(op->kind, ZT_OP_BACKWARD);
            CHECK(buf_of(&f, op, ZT_R_ACT) == kept[s] && buf_of(&f, op, ZT_R_INNER) == inner[s]);
            CHECK(f.plan->bufs[kept[s]].last == i && f.plan->bufs[inner[s]].last == i);
        }
    }
    CHECK_INT(rows, 3 * 2);
    teardown(&f);
}

/* ---- what it costs ---- */

struct cost {
    size_t device, host, act; /* act: activations where the device is fullest */
    double flops, time_s;
};

static struct cost cost_of(struct fixture *f, const struct zt_plan_config *cfg)
{
    build(f, cfg);
    if (zt_test_failed)
        return (struct cost){0};
    const struct zt_ledger *l = &f->plan->ledger;
    return (struct cost){.device = zt_plan_device_bytes(f->plan),
                         .host = l->host[ZT_CAT_ACT],
                         .act = l->device[ZT_CAT_ACT],
                         .flops = l->flops,
                         .time_s = f->train->time_s};
}

static struct cost cost_with(struct fixture *f, struct zt_plan_config cfg, enum zt_recompute kind,
                             int every)
{
    cfg.recompute = kind;
    cfg.recompute_every = every;
    return cost_of(f, &cfg);
}

/* a takes more bytes and less time than b, both by more than a trifle. */
static void check_trade(const char *what, struct cost a, struct cost b)
{
    if ((double)a.device < 1.01 * (double)b.device)
        FAIL("%s: %zu bytes, then %zu", what, a.device, b.device);
    if (a.flops * 1.01 > b.flops || a.time_s * 1.01 > b.time_s)
        FAIL("%s: %.4g FLOP and %.4g s, then %.4g and %.4g", what, a.flops, a.time_s, b.flops,
             b.time_s);
}

/*
 * From none over selective to block bytes fall and time rises. Runs of blocks hold all activations of one
 * run: with many blocks that is less than an input for each, with few it is more, up to none's.
 */
TEST(recompute_trades_bytes_for_time)
{
    static const struct {
        const struct zt_model_config *model;
        int64_t micro, seq_len;
        int n_ranks;
    } shapes[] = {{&gpt2_124m, 16, 1024, 1}, {&llama_7b, 2, 2048, 64}, {&llama_70b, 1, 4096, 512}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(shapes); i++) {
        struct fixture f;
        struct zt_plan_config cfg = plan_config(3, shapes[i].n_ranks, ZT_BF16);
        cfg.micro_batch = shapes[i].micro;
        cfg.seq_len = shapes[i].seq_len;
        setup(&f, shapes[i].model);
        const int n = f.model->cfg.n_layer;
        const struct cost none = cost_with(&f, cfg, ZT_RECOMPUTE_NONE, 0);
        const struct cost part = cost_with(&f, cfg, ZT_RECOMPUTE_SELECTIVE, 0);
        const struct cost block = cost_with(&f, cfg, ZT_RECOMPUTE_BLOCK, 0);
        const struct cost all = cost_with(&f, cfg, ZT_RECOMPUTE_EVERY, n);
        RETURN_IF_FAILED();
        check_trade("none, selective", none, part);
        check_trade("selective, block", part, block);
        RETURN_IF_FAILED();
        CHECK(all.device > block.device && all.flops > block.flops);
        if (n == 80) { /* 80 inputs and a block's activations; 27 and those of three */
            const struct cost runs = cost_with(&f, cfg, ZT_RECOMPUTE_EVERY, 3);
            RETURN_IF_FAILED();
            CHECK(block.device > runs.device && runs.flops > block.flops);
        }
        teardown(&f);
    }
}

/* FLOPs more than without, by the model's own counts. */
TEST(recompute_flops)
{
    struct fixture f;
    struct zt_segment_size size;
    struct zt_plan_config cfg = plan_config(2, 8, ZT_BF16);
    cfg.micro_batch = 4;
    cfg.seq_len = 512;
    cfg.accum = 3;
    const struct zt_shape shape = {4, 512, ZT_BF16, cfg.dev_kind, cfg.n_threads, true};
    setup(&f, &gpt2_124m);
    f.model->ops->size(f.model, 1, &shape, &size);
    const double none = cost_with(&f, cfg, ZT_RECOMPUTE_NONE, 0).flops;
    const struct {
        enum zt_recompute kind;
        int every;
        double more; /* of a micro-batch */
    } cases[] = {{ZT_RECOMPUTE_SELECTIVE, 0, 12 * size.inner_flops},
                 {ZT_RECOMPUTE_BLOCK, 0, 12 * size.act_flops},
                 {ZT_RECOMPUTE_EVERY, 4, 9 * size.fwd_flops + 3 * size.act_flops},
                 {ZT_RECOMPUTE_EVERY, 5, 9 * size.fwd_flops + 3 * size.act_flops}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        const double got = cost_with(&f, cfg, cases[i].kind, cases[i].every).flops;
        CHECK_NEAR(got - none, 3 * cases[i].more, 1e-6 * none);
    }
    teardown(&f);
}

/* Bytes of inputs of runs, "x" and "x back", live by the program's order, and the most of any row. */
static size_t most_inputs(const struct fixture *f)
{
    struct zt_life *life = zt_xcalloc((size_t)f->plan->n_bufs, sizeof *life);
    size_t most = 0;
    zt_lifetimes_widened(f->plan, ZT_PROG_TRAIN, f->train->backlog, life);
    for (int i = 0; i < f->train->n_ops; i++) {
        size_t live = 0;
        for (int b = 0; b < f->plan->n_bufs; b++) {
            const struct zt_buf *x = &f->plan->bufs[b];
            const bool input = strncmp(x->name, "x ", 2) == 0;
            if (x->program == ZT_PROG_TRAIN && input && life[b].lo <= i && i <= life[b].hi)
                live += x->used;
        }
        most = ZT_MAX(most, live);
    }
    free(life);
    return most;
}

/*
 * cpu_checkpointing: two inputs at a time on the device (three where one is on its way), whatever the
 * number of blocks; all but one on the host; and hardly any time on a fast bus.
 */
TEST(recompute_from_the_host_holds_two_inputs)
{
    static const int every[] = {1, 3};
    struct fixture f;
    struct zt_plan_config cfg = plan_config(3, 64, ZT_BF16);
    cfg.micro_batch = 2;
    cfg.seq_len = 2048;
    setup(&f, &llama_7b);
    const size_t x = 2 * 2048 * 4096 * 2;
    for (size_t i = 0; i < ZT_ARRAY_LEN(every); i++) {
        const int runs = (32 + every[i] - 1) / every[i];
        cfg.cpu_checkpointing = false;
        const struct cost here = cost_with(&f, cfg, ZT_RECOMPUTE_EVERY, every[i]);
        const size_t inputs = most_inputs(&f);
        cfg.cpu_checkpointing = true;
        const struct cost there = cost_with(&f, cfg, ZT_RECOMPUTE_EVERY, every[i]);
        RETURN_IF_FAILED();
        CHECK(inputs >= (size_t)runs * x);
        CHECK(most_inputs(&f) <= (3 + (size_t)every[i] - 1) * x);
        CHECK(there.host >= (size_t)(runs - 1) * x && there.host <= (size_t)runs * x);
        if (runs == 32) /* the device is fullest elsewhere then: not all of it counts */
            CHECK(here.device >= there.device + 20 * x);
        CHECK(here.device >= there.device);
        CHECK(there.time_s < 1.03 * here.time_s);
    }
    teardown(&f);
}

TEST(recompute_refusals)
{
    struct fixture f;
    struct zt_plan_config cfg = plan_config(1, 2, ZT_F32);
    setup(&f, &gpt2_fixture);
    cfg.cpu_checkpointing = true;
    CHECK_INT(zt_plan_build(f.model, &cfg, 0, &f.plan, &f.err), ZT_EINPUT);
    CHECK(strstr(f.err.msg, "nothing is recomputed"));
    cfg.recompute = ZT_RECOMPUTE_EVERY;
    static const int wrong[] = {0, -1, 3};
    for (size_t i = 0; i < ZT_ARRAY_LEN(wrong); i++) {
        cfg.recompute_every = wrong[i];
        CHECK_INT(zt_plan_build(f.model, &cfg, 0, &f.plan, &f.err), ZT_EINPUT);
        CHECK(strstr(f.err.msg, "it must be 1 to 2"));
    }
    teardown(&f);
}

TEST_MAIN()
