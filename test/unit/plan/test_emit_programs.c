#include "fixture.h"

TEST(emit_init_loads_every_unit_and_the_first_batch)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 4, ZT_BF16);
        emit_as(&f, &cfg, 0);
        RETURN_IF_FAILED();
        const struct zt_program *g = &f.plan->programs[ZT_PROG_INIT];
        CHECK(!g->repeats && f.train->repeats);
        CHECK_INT(count(g, ZT_OP_LOAD_UNIT), f.plan->n_units);
        CHECK_INT(count(g, ZT_OP_FETCH), f.plan->n_units + 1);
        CHECK_INT(count(g, ZT_OP_LOAD_BATCH) + count(g, ZT_OP_COUNT), 2);
        /* All persistent device state is written. */
        for (int b = 0; b < f.plan->n_bufs && f.plan->bufs[b].program < 0; b++) {
            const enum zt_cat cat = f.plan->bufs[b].cat;
            bool written = false;
            for (int a = 0; a < g->n_accesses; a++)
                written |= g->accesses[a].buf == b && (g->accesses[a].mode & ZT_WRITE);
            if (cat != ZT_CAT_CONTROL)
                CHECK(written);
        }
    }
    teardown(&f);
}

TEST(emit_eval_and_generate_leave_the_step_alone)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    struct zt_plan_config cfg = plan_config(3, 4, ZT_F32);
    cfg.eval_micro_batch = 3;
    cfg.generate = true;
    emit_as(&f, &cfg, 0);
    RETURN_IF_FAILED();
    for (int k = ZT_PROG_EVAL; k <= ZT_PROG_GENERATE; k++) {
        const struct zt_program *g = &f.plan->programs[k];
        CHECK_INT(count(g, ZT_OP_FORWARD), f.model->n_segments);
        CHECK_INT(count(g, ZT_OP_RESULT), 1);
        CHECK_INT(count(g, ZT_OP_NORM), k == ZT_PROG_EVAL);
        for (int a = 0; a < g->n_accesses; a++) {
            const struct zt_access *x = &g->accesses[a];
            const enum zt_cat cat = f.plan->bufs[x->buf].cat;
            if (x->mode & ZT_WRITE)
                CHECK(cat != ZT_CAT_PARAM && cat != ZT_CAT_OPT_M && x->role != ZT_R_STEP);
        }
    }
    const struct zt_program *eval = &f.plan->programs[ZT_PROG_EVAL];
    const int norm = find(eval, ZT_OP_NORM, 0);
    CHECK_INT(eval->ops[norm].count * 8, sizeof(struct zt_eval_record));
    teardown(&f);
}

/* Passes of training that drop read the step block; evaluation and generation drop nothing. */
TEST(emit_dropout_reads_the_step_block)
{
    for (int drops = 0; drops < 2; drops++) {
        struct zt_model_config mc = gpt2_fixture;
        struct fixture f;
        mc.embd_pdrop = mc.attn_pdrop = drops * 0.1;
        setup(&f, &mc);
        struct zt_plan_config cfg = plan_config(3, 4, ZT_F32);
        cfg.eval_micro_batch = 3;
        cfg.generate = true;
        cfg.recompute = ZT_RECOMPUTE_BLOCK;
        emit_as(&f, &cfg, 0);
        RETURN_IF_FAILED();
        for (int k = ZT_PROG_TRAIN; k <= ZT_PROG_GENERATE; k++) {
            const struct zt_program *g = &f.plan->programs[k];
            for (int i = 0; i < g->n_ops; i++) {
                const struct zt_op *op = &g->ops[i];
                if (op->kind != ZT_OP_FORWARD && op->kind != ZT_OP_RECOMPUTE &&
                    op->kind != ZT_OP_BACKWARD)
                    continue;
                const bool head = op->segment == f.model->n_segments - 1;
                const bool reads = head ? k != ZT_PROG_GENERATE : drops && k == ZT_PROG_TRAIN;
                CHECK_INT(zt_op_operand(g, op, ZT_R_STEP, 0) != NULL, reads);
                CHECK(!zt_op_operand(g, op, ZT_R_STEP, 1));
            }
        }
        teardown(&f);
    }
}

static int refused(struct fixture *f, const struct zt_plan_config *cfg, int rank)
{
    struct zt_plan *p = NULL;
    const int rc = zt_plan_create(f->model, cfg, rank, &p, &f->err);
    zt_plan_free(p);
    return rc;
}

TEST(emit_refuses_in_words)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    const struct zt_plan_config good = plan_config(2, 2, ZT_F32);
    CHECK_INT(refused(&f, &good, 0), 0);
    CHECK_INT(refused(&f, &good, 2), ZT_EINPUT);
    CHECK_INT(refused(&f, &good, -1), ZT_EINPUT);
    struct zt_plan_config c = good;
    c.mesh.size[ZT_AXIS_TENSOR] = 2;
    CHECK_INT(refused(&f, &c, 0), ZT_EUNSUPPORTED);
    CHECK(strstr(f.err.msg, "tensor"));
    c = good;
    c.stage = 4;
    CHECK_INT(refused(&f, &c, 0), ZT_EINPUT);
    c = good;
    c.offload_param = ZT_OFFLOAD_CPU;
    CHECK_INT(refused(&f, &c, 0), ZT_EUNSUPPORTED);
    CHECK(strstr(f.err.msg, "stage 3"));
    c.stage = 3;
    CHECK_INT(refused(&f, &c, 0), 0);
    c.offload_param = ZT_OFFLOAD_NVME;
    CHECK_INT(refused(&f, &c, 0), 0);
    c.stage = 2;
    CHECK_INT(refused(&f, &c, 0), ZT_EUNSUPPORTED);
    c = good;
    c.disk_buffers = -1;
    CHECK_INT(refused(&f, &c, 0), ZT_EINPUT);
    c = good;
    c.stage = 0;
    c.offload_optimizer = ZT_OFFLOAD_CPU;
    CHECK_INT(refused(&f, &c, 0), ZT_EUNSUPPORTED);
    c = good;
    c.seq_len = 9; /* the model has 8 positions */
    CHECK_INT(refused(&f, &c, 0), ZT_EINPUT);
    c = good;
    c.micro_batch = INT64_MAX / 4;
    CHECK_INT(refused(&f, &c, 0), ZT_EINPUT);
    c = good;
    c.accum = 0;
    CHECK_INT(refused(&f, &c, 0), ZT_EINPUT);
    c = good;
    c.comm_dtype = ZT_I64;
    CHECK_INT(refused(&f, &c, 0), ZT_EINPUT);
    teardown(&f);
}

TEST_MAIN()
