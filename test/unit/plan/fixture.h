/* fixture.h: a model and one plan of it, for the tests that look at rows. */
#ifndef ZT_TEST_PLAN_FIXTURE_H
#define ZT_TEST_PLAN_FIXTURE_H

#include "harness.h"
#include "models.h"

#include "base/err.h"

struct fixture {
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *plan;
    const struct zt_program *train;
    struct zt_err err;
};

static void setup(struct fixture *f, const struct zt_model_config *cfg)
{
    memset(f, 0, sizeof *f);
    CHECK_OK(zt_model_build(cfg, &f->arena, &f->model, &f->err), f->err);
}

/* Emitted but not packed. */
static ZT_UNUSED void emit_as(struct fixture *f, const struct zt_plan_config *cfg, int rank)
{
    zt_plan_free(f->plan);
    f->plan = NULL;
    CHECK_OK(zt_plan_create(f->model, cfg, rank, &f->plan, &f->err), f->err);
    CHECK_OK(zt_plan_emit(f->plan, &f->err), f->err);
    f->train = &f->plan->programs[ZT_PROG_TRAIN];
}

static void teardown(struct fixture *f)
{
    zt_plan_free(f->plan);
    zt_arena_release(&f->arena);
}

static ZT_UNUSED int count(const struct zt_program *g, enum zt_op_kind kind)
{
    int n = 0;
    for (int i = 0; i < g->n_ops; i++)
        n += g->ops[i].kind == kind;
    return n;
}

/* Index of the nth row of a kind, or -1. */
static ZT_UNUSED int find(const struct zt_program *g, enum zt_op_kind kind, int nth)
{
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == kind && nth-- == 0)
            return i;
    return -1;
}

static ZT_UNUSED const struct zt_access *operand(const struct fixture *f, int op, enum zt_role role,
                                                 int nth)
{
    return zt_op_operand(f->train, &f->train->ops[op], role, nth);
}

#endif
