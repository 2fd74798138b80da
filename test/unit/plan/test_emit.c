#include "fixture.h"

static double sent(const struct zt_program *g, enum zt_op_kind kind)
{
    double bytes = 0;
    for (int i = 0; i < g->n_ops; i++)
        bytes += g->ops[i].kind == kind ? g->ops[i].bytes_sent : 0;
    return bytes;
}

static bool same_row(const struct zt_op *a, const struct zt_op *b)
{
    return a->kind == b->kind && a->stream == b->stream && a->predicate == b->predicate &&
           a->unit == b->unit && a->segment == b->segment && a->mb == b->mb &&
           a->group == b->group && a->dtype == b->dtype && a->count == b->count &&
           a->first_use == b->first_use && a->last_use == b->last_use;
}

/* ---- units: S01 and its properties ---- */

static void check_unit(const struct zt_plan *p, const struct zt_unit *u)
{
    int64_t end = 0;
    CHECK_INT(u->padded_elems % ((int64_t)ZT_ELEM_ALIGN * p->n_shards), 0);
    CHECK_INT(u->slice_elems * p->n_shards, u->padded_elems);
    for (int i = 0; i < u->n_params; i++) {
        CHECK_INT(u->param_off[i] % ZT_ELEM_ALIGN, 0);
        CHECK(u->param_off[i] >= end && u->param_off[i] - end < ZT_ELEM_ALIGN);
        end = u->param_off[i] + p->model->params[u->first_param + i].n_elems;
        CHECK_INT(p->unit_of_param[u->first_param + i], u - p->units);
    }
    /* No more padding than the alignment of the slices asks for. */
    CHECK(u->padded_elems >= end && u->padded_elems - end < (int64_t)ZT_ELEM_ALIGN * p->n_shards);
}

TEST(emit_units_hold_every_element_once)
{
    static const int ranks[] = {1, 2, 3, 4, 6, 7, 8, 12, 64, 4096};
    static const struct zt_model_config *const models[] = {&gpt2_fixture, &gpt2_124m,
                                                           &llama_fixture};
    static const int64_t n_elems[] = {572, 124439808, 4336};
    for (size_t m = 0; m < ZT_ARRAY_LEN(models); m++) {
        struct fixture f;
        setup(&f, models[m]);
        RETURN_IF_FAILED();
        CHECK_INT(f.model->n_elems, n_elems[m]);
        for (size_t n = 0; n < ZT_ARRAY_LEN(ranks); n++) {
            struct zt_plan_config cfg = plan_config(3, ranks[n], ZT_F32);
            emit_as(&f, &cfg, ranks[n] - 1);
            RETURN_IF_FAILED();
            int64_t elems = 0;
            int next = 0;
            for (int u = 0; u < f.plan->n_units; u++) {
                check_unit(f.plan, &f.plan->units[u]);
                RETURN_IF_FAILED();
                CHECK_INT(f.plan->units[u].first_param, next);
                next += f.plan->units[u].n_params;
                elems += f.plan->units[u].n_elems;
            }
            CHECK_INT(elems, f.model->n_elems);
            CHECK_INT(next, f.model->n_params);
        }
        teardown(&f);
    }
}

/* The slices' padding, as the ledger counts it, is what all ranks hold beyond the parameters. */
TEST(emit_slices_add_up_over_ranks)
{
    static const int ranks[] = {2, 3, 7, 8};
    struct fixture f;
    setup(&f, &gpt2_fixture);
    RETURN_IF_FAILED();
    for (size_t n = 0; n < ZT_ARRAY_LEN(ranks); n++) {
        struct zt_plan_config cfg = plan_config(3, ranks[n], ZT_BF16);
        size_t held = 0;
        for (int r = 0; r < ranks[n]; r++) {
            emit_as(&f, &cfg, r);
            RETURN_IF_FAILED();
            for (int b = 0; b < f.plan->n_bufs; b++)
                if (f.plan->bufs[b].cat == ZT_CAT_MASTER)
                    held += f.plan->bufs[b].bytes - f.plan->bufs[b].padding;
        }
        CHECK_INT(held, 572 * sizeof(float));
    }
    teardown(&f);
}

TEST(emit_tied_unit_adds_up_in_fp32)
{
    struct fixture f;
    setup(&f, &gpt2_124m);
    struct zt_plan_config cfg = plan_config(2, 4, ZT_BF16);
    emit_as(&f, &cfg, 0);
    RETURN_IF_FAILED();
    CHECK(f.plan->units[0].tied && f.plan->units[0].grad_fp32);
    CHECK(!f.plan->units[1].tied && !f.plan->units[1].grad_fp32);
    CHECK_STR(f.plan->units[1].name, "h.0");
    const int head = find(f.train, ZT_OP_BACKWARD, 0);
    const int embed = find(f.train, ZT_OP_BACKWARD, f.model->n_segments - 1);
    CHECK_INT(f.train->ops[head].segment, f.model->n_segments - 1);
    CHECK_INT(f.train->ops[embed].segment, 0);
    /* The head comes first and overwrites, its second unit is the embedding; the embedding adds. */
    const struct zt_access *first = operand(&f, head, ZT_R_GRAD, 1);
    const struct zt_access *second = operand(&f, embed, ZT_R_GRAD, 0);
    CHECK(first && second);
    CHECK_INT(first->buf, second->buf);
    CHECK_INT(first->mode, ZT_WRITE);
    CHECK_INT(second->mode, ZT_READ | ZT_WRITE);
    CHECK_INT(f.plan->bufs[first->buf].dtype, ZT_F32);
    /* It is reduced once, after its last use. */
    for (int i = 0; i < f.train->n_ops; i++)
        if (f.train->ops[i].kind == ZT_OP_REDUCE && f.train->ops[i].unit == 0)
            CHECK(i > embed);
    CHECK(f.train->ops[head].first_use && !f.train->ops[embed].first_use);
    teardown(&f);
}

/* ---- the stage table ---- */

static void check_stage(struct fixture *f, int stage, int accum, bool every)
{
    struct zt_plan_config cfg = plan_config(stage, 4, ZT_F32);
    cfg.accum = accum;
    cfg.reduce_every_micro_batch = every;
    emit_as(f, &cfg, 1);
    RETURN_IF_FAILED();
    const struct zt_plan *p = f->plan;
    const struct zt_program *g = f->train;
    const int units = p->n_units, reductions = stage >= 2 || every ? accum : 1;
    double unit_bytes = 0, state = 0, param = 0;
    for (int u = 0; u < units; u++)
        unit_bytes += (double)p->units[u].padded_elems * sizeof(float);
    for (int b = 0; b < p->n_bufs; b++) {
        param += p->bufs[b].cat == ZT_CAT_PARAM ? (double)p->bufs[b].used : 0;
        state += p->bufs[b].cat == ZT_CAT_OPT_M ? (double)p->bufs[b].used : 0;
    }
    const double moved = unit_bytes * 3 / 4; /* of each reduce-scatter or all-gather, 4 ranks */
    CHECK_INT(count(g, ZT_OP_REDUCE), units * reductions);
    CHECK_NEAR(sent(g, ZT_OP_REDUCE), moved * reductions, 1);
    CHECK_INT(count(g, ZT_OP_ALLGATHER), stage < 3 ? units : 0);
    CHECK_NEAR(sent(g, ZT_OP_ALLGATHER), stage < 3 ? moved : 0, 1);
    CHECK_INT(count(g, ZT_OP_GATHER) > 0, stage == 3);
    CHECK_INT(count(g, ZT_OP_GATHER), count(g, ZT_OP_RELEASE));
    CHECK_INT(count(g, ZT_OP_UPDATE), units);
    CHECK_INT(count(g, ZT_OP_CAST), 0);
    CHECK_NEAR(param, stage < 3 ? unit_bytes : unit_bytes / 4, 0);
    CHECK_NEAR(state, stage < 1 ? unit_bytes : unit_bytes / 4, 0);
    /* What is all-gathered: gradients before the vote, parameters after their UPDATE. */
    for (int i = 0; i < g->n_ops; i++) {
        if (g->ops[i].kind != ZT_OP_ALLGATHER)
            continue;
        CHECK_INT(i > find(g, ZT_OP_VOTE, 0), stage > 0);
        CHECK_INT(g->ops[i].predicate, stage > 0 ? ZT_IF_APPLY : ZT_ALWAYS);
        CHECK(!!operand(f, i, stage > 0 ? ZT_R_PARAM : ZT_R_GRAD, 0));
    }
}

TEST(emit_rows_follow_the_stage_table)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int stage = 0; stage < 4; stage++) {
        for (int accum = 1; accum <= 3; accum++) {
            check_stage(&f, stage, accum, false);
            RETURN_IF_FAILED();
            check_stage(&f, stage, accum, true);
            RETURN_IF_FAILED();
        }
    }
    teardown(&f);
}

/* One partial per unit and step, by the last reduction, in stage 0 too. */
TEST(emit_norm_partials_once_per_unit)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int stage = 0; stage < 4; stage++) {
        for (int n = 1; n <= 3; n += 2) {
            struct zt_plan_config cfg = plan_config(stage, n, ZT_BF16);
            cfg.accum = 2;
            emit_as(&f, &cfg, n - 1);
            RETURN_IF_FAILED();
            int partials = 0;
            for (int i = 0; i < f.train->n_ops; i++) {
                const struct zt_op *op = &f.train->ops[i];
                const struct zt_access *a = operand(&f, i, ZT_R_PARTIAL, 0);
                if (op->kind != ZT_OP_REDUCE)
                    continue;
                CHECK_INT(!!a, op->mb == 1);
                CHECK_INT(op->last_use, op->mb == 1);
                if (!a)
                    continue;
                partials++;
                CHECK_INT(a->begin, (size_t)op->unit * sizeof(struct zt_norm_partial));
            }
            CHECK_INT(partials, f.plan->n_units);
        }
    }
    teardown(&f);
}

/* On one rank nothing is sharded: all stages are the same list. */
TEST(emit_one_rank_ignores_the_stage)
{
    struct fixture f, g;
    setup(&f, &gpt2_fixture);
    setup(&g, &gpt2_fixture);
    RETURN_IF_FAILED();
    struct zt_plan_config cfg = plan_config(0, 1, ZT_BF16);
    cfg.accum = 2;
    emit_as(&f, &cfg, 0);
    RETURN_IF_FAILED();
    CHECK_INT(count(f.train, ZT_OP_GATHER) + count(f.train, ZT_OP_ALLGATHER), 0);
    CHECK_NEAR(sent(f.train, ZT_OP_REDUCE) + sent(f.train, ZT_OP_NORM), 0, 0);
    for (cfg.stage = 1; cfg.stage < 4; cfg.stage++) {
        emit_as(&g, &cfg, 0);
        RETURN_IF_FAILED();
        CHECK_INT(f.train->n_ops, g.train->n_ops);
        CHECK_INT(f.train->n_accesses, g.train->n_accesses);
        for (int i = 0; i < f.train->n_ops; i++)
            CHECK(same_row(&f.train->ops[i], &g.train->ops[i]));
        for (int i = 0; i < f.train->n_accesses; i++) {
            const struct zt_access *a = &f.train->accesses[i], *b = &g.train->accesses[i];
            CHECK(a->buf == b->buf && a->mode == b->mode && a->begin == b->begin &&
                  a->end == b->end);
        }
    }
    teardown(&f);
    teardown(&g);
}

/* ---- order ---- */

TEST(emit_decides_before_it_updates)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 2, ZT_F32);
        cfg.accum = 2;
        emit_as(&f, &cfg, 0);
        RETURN_IF_FAILED();
        const struct zt_program *g = f.train;
        const int norm = find(g, ZT_OP_NORM, 0), vote = find(g, ZT_OP_VOTE, 0);
        const int load = find(g, ZT_OP_LOAD_BATCH, 0), counted = find(g, ZT_OP_COUNT, 0);
        const int update = find(g, ZT_OP_UPDATE, 0);
        CHECK(norm >= 0 && norm < vote && vote < find(g, ZT_OP_RESULT, 0));
        CHECK(vote < load && load < counted && counted < update);
        CHECK_INT(find(g, ZT_OP_STEP, 0), g->n_ops - 1);
        int last_unit = -1;
        for (int i = 0; i < g->n_ops; i++) {
            if (g->ops[i].kind == ZT_OP_UPDATE) {
                CHECK_INT(g->ops[i].predicate, ZT_IF_APPLY);
                CHECK_INT(g->ops[i].unit, ++last_unit); /* forward order */
            }
            if (g->ops[i].kind == ZT_OP_REDUCE)
                CHECK(i < norm);
        }
    }
    teardown(&f);
}

TEST(emit_transients_begin_with_a_write)
{
    struct fixture f;
    setup(&f, &gpt2_124m);
    for (int variant = 0; variant < 64; variant++) {
        struct zt_plan_config cfg = plan_config(variant & 3, variant & 4 ? 4 : 3, ZT_BF16);
        cfg.accum = variant & 8 ? 2 : 1;
        cfg.recompute = variant & 16 ? ZT_RECOMPUTE_BLOCK : ZT_RECOMPUTE_NONE;
        cfg.comm_dtype = variant & 32 ? ZT_F32 : -1;
        cfg.generate = true;
        cfg.eval_micro_batch = 2;
        emit_as(&f, &cfg, 1);
        RETURN_IF_FAILED();
        for (int k = 0; k < ZT_N_PROGRAMS; k++) {
            const struct zt_program *g = &f.plan->programs[k];
            for (int i = 0; i < g->n_ops; i++) {
                for (int a = 0; a < g->ops[i].n_accesses; a++) {
                    const struct zt_access *x = &g->accesses[g->ops[i].first_access + a];
                    const struct zt_buf *b = &f.plan->bufs[x->buf];
                    CHECK(b->program < 0 || b->program == k);
                    if (b->program >= 0 && b->first == i)
                        CHECK_INT(x->mode, ZT_WRITE);
                }
            }
        }
        /* Nothing is made and never used; persistent buffers come first. */
        bool transient = false;
        for (int b = 0; b < f.plan->n_bufs; b++) {
            const struct zt_buf *x = &f.plan->bufs[b];
            CHECK(x->program < 0 || x->first >= 0);
            CHECK(x->program >= 0 || !transient);
            CHECK_INT(x->bytes % ZT_BUF_ALIGN, 0);
            CHECK(x->used > 0 && x->used <= x->bytes && x->padding <= x->bytes);
            transient |= x->program >= 0;
        }
    }
    teardown(&f);
}

TEST(emit_without_overlap_has_no_comm_stream)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 4, ZT_BF16);
        cfg.generate = true;
        cfg.eval_micro_batch = 1;
        cfg.overlap_comm = false;
        emit_as(&f, &cfg, 2);
        RETURN_IF_FAILED();
        for (int k = 0; k < ZT_N_PROGRAMS; k++)
            for (int i = 0; i < f.plan->programs[k].n_ops; i++)
                CHECK(f.plan->programs[k].ops[i].stream != ZT_ST_COMM);
        CHECK(count(f.train, ZT_OP_REDUCE) > 0);
    }
    teardown(&f);
}

/* Only the ranges of slices differ between ranks. */
TEST(emit_ranks_differ_only_in_slices)
{
    struct fixture f, g;
    setup(&f, &gpt2_124m);
    setup(&g, &gpt2_124m);
    RETURN_IF_FAILED();
    for (int stage = 0; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 7, ZT_BF16);
        cfg.accum = 2;
        emit_as(&f, &cfg, 0);
        for (int rank = 1; rank < 7; rank += 5) { /* the middle and the end */
            emit_as(&g, &cfg, rank);
            RETURN_IF_FAILED();
            CHECK_INT(f.train->n_ops, g.train->n_ops);
            CHECK_INT(f.plan->n_bufs, g.plan->n_bufs);
            for (int i = 0; i < f.train->n_ops; i++)
                CHECK(same_row(&f.train->ops[i], &g.train->ops[i]));
            for (int b = 0; b < f.plan->n_bufs; b++) {
                CHECK_INT(f.plan->bufs[b].bytes, g.plan->bufs[b].bytes);
                CHECK_INT(f.plan->bufs[b].arena, g.plan->bufs[b].arena);
                CHECK_STR(f.plan->bufs[b].name, g.plan->bufs[b].name);
            }
        }
    }
    teardown(&f);
    teardown(&g);
}

/* ---- frozen units ---- */

/* A frozen unit has no gradient and no state; backward ends above segments that nothing trains. */
TEST(emit_frozen_units)
{
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_err err;
    CHECK_OK(zt_model_build(&gpt2_fixture, &arena, &m, &err), err);
    for (int i = 0; i < m->n_params; i++)
        m->params[i].trainable = m->params[i].home_segment > 1; /* neither embeddings nor h.0 */
    for (int v = 0; v < 8; v++) {
        struct zt_plan *p;
        struct zt_plan_config cfg = plan_config(v % 4, 3, v < 4 ? ZT_F32 : ZT_F16);
        cfg.accum = 1 + v / 4;
        cfg.recompute = v & 1 ? ZT_RECOMPUTE_BLOCK : ZT_RECOMPUTE_NONE;
        CHECK_OK(zt_plan_build(m, &cfg, 1, &p, &err), err);
        CHECK_INT(p->n_partials, p->n_units - 2);
        CHECK_INT(p->units[1].partial, -1);
        CHECK_INT(p->units[2].partial, 0);
        for (int b = 0; b < p->n_bufs; b++)
            if (p->bufs[b].unit == 0 || p->bufs[b].unit == 1)
                CHECK(p->bufs[b].cat == ZT_CAT_PARAM || p->bufs[b].cat == ZT_CAT_GATHER);
        const struct zt_program *g = &p->programs[ZT_PROG_TRAIN];
        int backward = 0;
        for (int i = 0; i < g->n_ops; i++) {
            const struct zt_op *op = &g->ops[i];
            CHECK(op->unit < 0 || op->unit > 1 || op->kind == ZT_OP_GATHER ||
                  op->kind == ZT_OP_RELEASE);
            backward += op->kind == ZT_OP_BACKWARD;
            if (op->kind == ZT_OP_BACKWARD || op->kind == ZT_OP_RECOMPUTE)
                CHECK(op->segment > 1);
        }
        CHECK_INT(backward, cfg.accum * (m->n_segments - 2));
        zt_plan_free(p);
    }
    zt_arena_release(&arena);
}

TEST_MAIN()
