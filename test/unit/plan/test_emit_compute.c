#include "fixture.h"

/* ---- stage 3 ---- */

/* Every use of weights has been gathered, nothing is used after its release. */
static void check_window(const struct fixture *f, size_t budget)
{
    const struct zt_program *g = f->train;
    char *state = zt_xcalloc((size_t)f->plan->n_bufs, 1); /* 1 gathered, 2 released */
    size_t held = 0, most = 0, step_most = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const struct zt_op *op = &g->ops[i];
        const bool compute =
            op->kind == ZT_OP_FORWARD || op->kind == ZT_OP_BACKWARD || op->kind == ZT_OP_RECOMPUTE;
        const struct zt_access *a;
        size_t step = 0;
        for (int n = 0; (a = zt_op_operand(g, op, ZT_R_PARAM, n)); n++) {
            const size_t bytes = f->plan->bufs[a->buf].used;
            CHECK_INT(state[a->buf], op->kind == ZT_OP_GATHER ? 0 : 1);
            if (op->kind == ZT_OP_GATHER) {
                state[a->buf] = 1;
                held += bytes;
            } else if (op->kind == ZT_OP_RELEASE) {
                state[a->buf] = 2;
                held -= bytes;
            } else {
                CHECK(compute);
                step += bytes;
            }
        }
        if (compute && op->kind == ZT_OP_BACKWARD && op->segment == 0)
            CHECK_INT(step, 0); /* the embedding's backward needs no weights */
        most = ZT_MAX(most, held);
        step_most = ZT_MAX(step_most, step);
    }
    CHECK_INT(held, 0);
    CHECK(most <= ZT_MAX(budget, step_most));
    free(state);
}

TEST(emit_gathers_stay_inside_the_window)
{
    static const size_t budgets[] = {1, 20 << 20, 45 << 20, 100 << 20, 250 << 20, 2000u << 20};
    struct fixture f;
    setup(&f, &gpt2_124m);
    int last = INT32_MAX;
    for (size_t i = 0; i < ZT_ARRAY_LEN(budgets); i++) {
        for (int recompute = 0; recompute < 2; recompute++) {
            struct zt_plan_config cfg = plan_config(3, 4, ZT_BF16);
            cfg.accum = 2;
            cfg.prefetch_bytes = budgets[i];
            cfg.recompute = recompute ? ZT_RECOMPUTE_BLOCK : ZT_RECOMPUTE_NONE;
            emit_as(&f, &cfg, 0);
            check_window(&f, budgets[i]);
            RETURN_IF_FAILED();
        }
        CHECK(count(f.train, ZT_OP_GATHER) <= last); /* a larger window keeps more */
        last = count(f.train, ZT_OP_GATHER);
    }
    CHECK_INT(last, f.plan->n_units); /* everything fits: gathered once */
    struct zt_plan_config cfg = plan_config(3, 4, ZT_BF16);
    emit_as(&f, &cfg, 0);
    check_window(&f, 200 * 1000 * 1000); /* the default of a model with small units */
    RETURN_IF_FAILED();
    teardown(&f);
}

/* With the smallest window each pass gathers for itself, but neighbours share. */
TEST(emit_gathers_again_for_backward)
{
    struct fixture f;
    setup(&f, &gpt2_124m);
    struct zt_plan_config cfg = plan_config(3, 4, ZT_BF16);
    cfg.prefetch_bytes = 1;
    emit_as(&f, &cfg, 0);
    RETURN_IF_FAILED();
    /* embed, 12 blocks; head (embed again and ln_f); 12 blocks, of which h.11 comes back. */
    CHECK_INT(count(f.train, ZT_OP_GATHER), 1 + 12 + 2 + 12);
    teardown(&f);
}

/* ---- compute ---- */

TEST(emit_recomputes_before_each_backward)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    struct zt_plan_config cfg = plan_config(1, 2, ZT_F32);
    cfg.accum = 2;
    cfg.recompute = ZT_RECOMPUTE_BLOCK;
    emit_as(&f, &cfg, 0);
    RETURN_IF_FAILED();
    CHECK_INT(count(f.train, ZT_OP_RECOMPUTE), 2 * f.model->cfg.n_layer);
    for (int i = 0; i < f.train->n_ops; i++) {
        const struct zt_op *op = &f.train->ops[i];
        const struct zt_access *act = operand(&f, i, ZT_R_ACT, 0);
        if (op->kind == ZT_OP_FORWARD && act) {
            CHECK_INT(f.plan->bufs[act->buf].last, i);
            CHECK_INT(f.plan->bufs[act->buf].cat, ZT_CAT_WORKSPACE);
        }
        if (op->kind == ZT_OP_RECOMPUTE) {
            const struct zt_op *next = &f.train->ops[i + 1];
            CHECK(next->kind == ZT_OP_BACKWARD && next->segment == op->segment);
            CHECK_INT(next->mb, op->mb);
            CHECK(!operand(&f, i, ZT_R_X_OUT, 0));
            CHECK_INT(operand(&f, i + 1, ZT_R_ACT, 0)->buf, act->buf);
            CHECK_INT(operand(&f, i + 1, ZT_R_X_IN, 0)->buf, operand(&f, i, ZT_R_X_IN, 0)->buf);
        }
    }
    teardown(&f);
}

/* The residual stream and its gradient are handed from segment to segment. */
TEST(emit_chains_segments)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    struct zt_plan_config cfg = plan_config(2, 2, ZT_BF16);
    cfg.accum = 3;
    emit_as(&f, &cfg, 0);
    RETURN_IF_FAILED();
    int x = -1, dx = -1, losses = 0;
    for (int i = 0; i < f.train->n_ops; i++) {
        const struct zt_op *op = &f.train->ops[i];
        const struct zt_access *batch = operand(&f, i, ZT_R_BATCH, 0);
        if (op->kind == ZT_OP_FORWARD) {
            CHECK(op->segment < f.model->n_segments - 1); /* the head's is inside its backward */
            CHECK_INT(operand(&f, i, ZT_R_X_IN, 0) ? operand(&f, i, ZT_R_X_IN, 0)->buf : -1,
                      op->segment ? x : -1);
            x = operand(&f, i, ZT_R_X_OUT, 0)->buf;
        } else if (op->kind == ZT_OP_BACKWARD) {
            const bool head = op->segment == f.model->n_segments - 1;
            const struct zt_access *in = operand(&f, i, ZT_R_DX_OUT, 0);
            CHECK_INT(in ? in->buf : -1, head ? -1 : dx);
            CHECK_INT(!!operand(&f, i, ZT_R_DX_IN, 0), op->segment > 0);
            dx = op->segment ? operand(&f, i, ZT_R_DX_IN, 0)->buf : -1;
            CHECK_INT(!!operand(&f, i, ZT_R_LOSS, 0), head);
            CHECK_INT(operand(&f, i, ZT_R_COUNT, 0) && operand(&f, i, ZT_R_STEP, 0), head);
            losses += head;
        } else {
            continue;
        }
        CHECK(batch);
        CHECK_INT(batch->begin, (size_t)op->mb * 4 * 2 * 8 * sizeof(int32_t));
        CHECK_INT(batch->end - batch->begin, 4 * 2 * 8 * sizeof(int32_t));
    }
    CHECK_INT(losses, 3);
    teardown(&f);
}

/* ---- gradients' types ---- */

static enum zt_dtype type_of(const struct fixture *f, int op, enum zt_role role)
{
    const struct zt_access *a = operand(f, op, role, 0);
    return a ? f->plan->bufs[a->buf].dtype : ZT_N_DTYPES;
}

TEST(emit_gradient_types)
{
    /* stage, accum, comm: of h.11's first REDUCE: what it sends, in which role, and the result. */
    static const struct {
        int stage, accum, comm;
        enum zt_role sent_role, result_role;
        enum zt_dtype sent, result;
    } cases[] = {
        {1, 1, -1, ZT_R_GRAD, ZT_R_GRAD, ZT_BF16, ZT_BF16},
        {1, 2, -1, ZT_R_GRAD, ZT_R_GRAD, ZT_F32, ZT_F32},
        {1, 2, ZT_BF16, ZT_R_CAST, ZT_R_GRAD, ZT_BF16, ZT_F32},
        {1, 1, ZT_F32, ZT_R_CAST, ZT_R_GSHARD, ZT_F32, ZT_F32},
        {2, 1, -1, ZT_R_GRAD, ZT_R_GSHARD, ZT_BF16, ZT_BF16},
        {2, 2, -1, ZT_R_GRAD, ZT_R_GSHARD, ZT_BF16, ZT_F32},
        {3, 2, ZT_F32, ZT_R_CAST, ZT_R_GSHARD, ZT_F32, ZT_F32},
        {0, 1, ZT_F16, ZT_R_CAST, ZT_R_GSHARD, ZT_F16, ZT_F32},
    };
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (size_t c = 0; c < ZT_ARRAY_LEN(cases); c++) {
        struct zt_plan_config cfg = plan_config(cases[c].stage, 4, ZT_BF16);
        cfg.accum = cases[c].accum;
        cfg.comm_dtype = cases[c].comm;
        emit_as(&f, &cfg, 3);
        RETURN_IF_FAILED();
        int i = 0;
        while (f.train->ops[i].kind != ZT_OP_REDUCE || f.train->ops[i].unit != 2)
            i++;
        CHECK_INT(type_of(&f, i, cases[c].sent_role), cases[c].sent);
        CHECK_INT(type_of(&f, i, cases[c].result_role), cases[c].result);
        CHECK_INT(f.train->ops[i].dtype, cases[c].sent);
        CHECK_INT(!!operand(&f, i, ZT_R_CAST, 0), cases[c].sent_role == ZT_R_CAST);
        CHECK_INT(!!operand(&f, i, ZT_R_GSHARD, 0), cases[c].result_role == ZT_R_GSHARD);
        /* The sent buffer is one that peers can read. */
        CHECK_INT(f.plan->bufs[operand(&f, i, cases[c].sent_role, 0)->buf].arena, ZT_AR_SHARED);
        CHECK_INT(f.train->ops[i].count, f.plan->units[2].slice_elems);
    }
    teardown(&f);
}

/* Own slice and the rest of an in-place collective tile the buffer, own first. */
TEST(emit_in_place_ranges_tile_the_unit)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int rank = 0; rank < 3; rank++) {
        struct zt_plan_config cfg = plan_config(0, 3, ZT_F32);
        emit_as(&f, &cfg, rank);
        RETURN_IF_FAILED();
        for (int i = 0; i < f.train->n_ops; i++) {
            const struct zt_op *op = &f.train->ops[i];
            if (op->kind != ZT_OP_REDUCE && op->kind != ZT_OP_ALLGATHER)
                continue;
            const struct zt_unit *u = &f.plan->units[op->unit];
            const size_t slice = (size_t)u->slice_elems * sizeof(float);
            const struct zt_access *own = operand(&f, i, ZT_R_GRAD, 0), *a;
            size_t bytes = 0;
            CHECK_INT(own->begin, (size_t)rank * slice);
            CHECK_INT(own->end - own->begin, slice);
            for (int n = 0; (a = operand(&f, i, ZT_R_GRAD, n)); n++) {
                bytes += a->end - a->begin;
                CHECK(n == 0 || a->end <= own->begin || a->begin >= own->end);
            }
            CHECK_INT(bytes, (size_t)u->padded_elems * sizeof(float));
        }
    }
    teardown(&f);
}

TEST_MAIN()
