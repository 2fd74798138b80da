/*
 * Where two periods of a long accumulation are not alike, every micro-batch is listed (emit_train.c). No plan
 * is known to do that, so one thing of the second period is made different, each thing in turn, before
 * it is folded.
 */
#include "base/err.h"
#include "harness.h"
#include "models.h"
#include "plan/emit.h"
#include "plan/passes.h"

static bool fold_planted(struct zt_plan *p, const int begin[3], int period, int n_repeats);
void emit_train(struct zt_emit *e);

#define zt_fold fold_planted
#define zt_emit_train emit_train
#include "plan/emit_train.c"
#undef zt_fold
#undef zt_emit_train

/* What may be different. */
enum thing {
    NOTHING,
    OP_KIND,
    OP_STREAM,
    OP_PREDICATE,
    OP_UNIT,
    OP_SEGMENT,
    OP_FIRST_USE,
    OP_LAST_USE,
    OP_GROUP,
    OP_DTYPE,
    OP_COUNT,
    OP_COST_KIND,
    OP_COST,
    OP_SENT,
    OP_ACCESSES,
    MODE,
    ROLE,
    LENGTH,
    BEGIN, /* of an operand that has a buffer of its own in each period */
    BUF_CAT,
    BUF_ARENA,
    BUF_USED,
    BUF_BYTES,
    BUF_PADDING,
    BUF_DTYPE,
    BUF_UNIT,
    BUF_PROGRAM,
    BUF_BEGINS_EARLY,
    ANOTHER_BUF, /* from the second use on: the other of two that are alike */
    SAME_BUF,    /* and what was used before, as if it had not been followed */
    N_ROWS,
    N_THINGS
};

static struct zt_err err;
static enum thing planted;
static bool lists_all; /* without a try */
static int n_folded;   /* tries that have folded the program */
static int n_tries;

/* ---- planting ---- */

static struct zt_access *operand(struct zt_program *t, int op, int i)
{
    return &t->accesses[t->ops[op].first_access + i];
}

/* Operands of the first period whose buffer another takes the place of in the second. */
struct followed {
    int op, i, x, y;
};

enum { MAX_FOLLOWED = 1 << 12 };

static int list_followed(struct zt_program *t, const int begin[3], struct followed *out)
{
    int n = 0;
    for (int op = begin[0]; op < begin[1]; op++)
        for (int i = 0; i < t->ops[op].n_accesses; i++) {
            const int x = operand(t, op, i)->buf;
            const int y = operand(t, op + begin[1] - begin[0], i)->buf;
            ZT_ASSERT_CMP(n, <, MAX_FOLLOWED);
            if (x != y)
                out[n++] = (struct followed){op, i, x, y};
        }
    ZT_ASSERT_CMP(n, >, 0);
    return n;
}

static void plant_in_op(struct zt_op *op)
{
    op->kind ^= planted == OP_KIND;
    op->stream ^= planted == OP_STREAM;
    op->predicate ^= planted == OP_PREDICATE;
    op->unit += planted == OP_UNIT;
    op->segment += planted == OP_SEGMENT;
    op->first_use ^= planted == OP_FIRST_USE;
    op->last_use ^= planted == OP_LAST_USE;
    op->group ^= planted == OP_GROUP;
    op->dtype ^= planted == OP_DTYPE;
    op->count += planted == OP_COUNT;
    op->cost_kind ^= planted == OP_COST_KIND;
    op->cost += planted == OP_COST;
    op->bytes_sent += planted == OP_SENT;
    op->n_accesses -= planted == OP_ACCESSES;
}

static void plant_in_access(struct zt_access *a)
{
    a->mode ^= planted == MODE;
    a->role ^= planted == ROLE;
    a->end -= planted == LENGTH;
    a->begin += planted == BEGIN;
    a->end += planted == BEGIN;
}

static void plant_in_buf(struct zt_buf *b, int before)
{
    b->cat ^= planted == BUF_CAT;
    b->arena ^= planted == BUF_ARENA;
    b->used -= planted == BUF_USED;
    b->bytes += planted == BUF_BYTES ? ZT_BUF_ALIGN : 0;
    b->padding += planted == BUF_PADDING;
    b->dtype ^= planted == BUF_DTYPE;
    b->unit += planted == BUF_UNIT;
    b->program = planted == BUF_PROGRAM ? ZT_PROG_EVAL : b->program;
    b->first = planted == BUF_BEGINS_EARLY ? before : b->first;
}

/* What follows a buffer like x, but for x; -1: none is like it. */
static int follower_of_like(const struct zt_plan *p, const struct followed *f, int n, int x)
{
    const struct zt_buf *b = &p->bufs[x];
    for (int k = 0; k < n; k++) {
        const struct zt_buf *c = &p->bufs[f[k].x];
        if (f[k].x != x && c->cat == b->cat && c->used == b->used && c->unit == b->unit &&
            c->dtype == b->dtype && c->arena == b->arena)
            return f[k].y;
    }
    return -1;
}

/* In the place of y, the second time that it follows x. */
static void plant_in_chain(struct zt_plan *p, int len, const struct followed *f, int n)
{
    int to = -1, k = -1;
    while (to < 0) {
        ZT_ASSERT_CMP(++k, <, n);
        for (int l = 0; l < k && to < 0; l++)
            if (f[l].x == f[k].x)
                to = planted == SAME_BUF ? f[k].x : follower_of_like(p, f, n, f[k].x);
    }
    operand(&p->programs[ZT_PROG_TRAIN], f[k].op + len, f[k].i)->buf = to;
}

static void plant(struct zt_plan *p, int begin[3])
{
    static struct followed f[MAX_FOLLOWED];
    struct zt_program *t = &p->programs[ZT_PROG_TRAIN];
    const int len = begin[1] - begin[0], n = list_followed(t, begin, f);
    struct zt_op *op = &t->ops[f[0].op + len];
    if (planted == NOTHING)
        return;
    if (planted <= OP_ACCESSES)
        plant_in_op(op);
    else if (planted <= BEGIN)
        plant_in_access(operand(t, f[0].op + len, f[0].i));
    else if (planted <= BUF_BEGINS_EARLY)
        plant_in_buf(&p->bufs[f[0].y], p->bufs[f[0].x].last);
    else if (planted <= SAME_BUF)
        plant_in_chain(p, len, f, n);
    else
        begin[2]++;
}

static bool fold_planted(struct zt_plan *p, const int begin[3], int period, int n_repeats)
{
    int b[3] = {begin[0], begin[1], begin[2]};
    n_tries++;
    plant(p, b);
    const bool folded = zt_fold(p, b, period, n_repeats);
    n_folded += folded;
    return folded;
}

/* In the place of the planner's, for emit.c: the same, or what it falls back on at once. */
void zt_emit_train(struct zt_emit *e)
{
    if (lists_all)
        emit_listed(e, e->p->cfg.accum);
    else
        emit_train(e);
}

/* ---- comparing ---- */

static struct zt_plan *build(const struct zt_model *m, const struct zt_plan_config *cfg,
                             enum thing thing, bool all)
{
    struct zt_plan *p = NULL;
    planted = thing;
    lists_all = all;
    n_folded = n_tries = 0;
    if (zt_plan_build(m, cfg, zt_mesh_world(&cfg->mesh) - 1, &p, &err)) {
        printf("not ok %s: thing %d: %s\n", zt_test_name, thing, err.msg);
        zt_test_failed = 1;
    }
    return p;
}

/* Rows with operands, places and waits, bytes and times: all that is printed; and the buffers. */
static void check_same(const struct zt_plan *a, const struct zt_plan *b)
{
    struct zt_str x = {0}, y = {0};
    zt_plan_print_json(&a, 1, true, &x);
    zt_plan_print_json(&b, 1, true, &y);
    const bool same = strcmp(x.buf, y.buf) == 0;
    zt_str_release(&x);
    zt_str_release(&y);
    CHECK(same);
    CHECK_INT(a->n_bufs, b->n_bufs);
    for (int i = 0; i < a->n_bufs; i++) {
        CHECK_STR(a->bufs[i].name, b->bufs[i].name);
        CHECK_INT(a->bufs[i].offset, b->bufs[i].offset);
        CHECK_INT(a->bufs[i].mb, b->bufs[i].mb);
        CHECK_INT(a->bufs[i].first, b->bufs[i].first);
        CHECK_INT(a->bufs[i].last, b->bufs[i].last);
    }
}

static void check_things(const struct zt_model *m, const struct zt_plan_config *cfg)
{
    struct zt_plan *folds = build(m, cfg, NOTHING, false);
    RETURN_IF_FAILED();
    CHECK_INT(n_folded, 1);
    struct zt_plan *listed = build(m, cfg, NOTHING, true);
    RETURN_IF_FAILED();
    CHECK_INT(n_tries, 0);
    CHECK_INT(folds->programs[ZT_PROG_TRAIN].n_ops, listed->programs[ZT_PROG_TRAIN].n_ops);
    for (enum thing t = NOTHING + 1; t < N_THINGS; t++) {
        struct zt_plan *p = build(m, cfg, t, false);
        RETURN_IF_FAILED();
        if (n_tries != 1 || n_folded)
            FAIL("thing %d: folded %d of %d times", t, n_folded, n_tries);
        check_same(p, listed);
        zt_plan_free(p);
        if (zt_test_failed)
            FAIL("thing %d", t);
    }
    zt_plan_free(folds);
    zt_plan_free(listed);
}

TEST(listed_when_not_alike)
{
    static const int accum[] = {9, 10, 13, 16};
    for (int i = 0; i < 8; i++) {
        struct zt_arena arena = {0};
        struct zt_model *m = NULL;
        struct zt_plan_config cfg = plan_config(i % 4, i % 3 + 1, i & 4 ? ZT_BF16 : ZT_F32);
        CHECK_OK(zt_model_build(i & 1 ? &llama_fixture : &gpt2_fixture, &arena, &m, &err), err);
        cfg.accum = accum[i % 3 + i / 4];
        cfg.prefetch_bytes = i & 2 ? 1 : 0;
        cfg.comm_dtype = i % 5 ? -1 : ZT_BF16;
        cfg.offload_optimizer = i % 4 ? (enum zt_offload)(i % 3) : ZT_OFFLOAD_NONE;
        cfg.offload_param = i % 4 == 3 ? (enum zt_offload)((i + 1) % 3) : ZT_OFFLOAD_NONE;
        if (i & 2)
            set_recomputation(&cfg, (size_t)i % 2 * 3);
        cfg.saves = cfg.loads = true;
        cfg.eval_micro_batch = 2;
        check_things(m, &cfg);
        zt_arena_release(&arena);
        if (zt_test_failed)
            FAIL("configuration %d", i);
    }
}

TEST_MAIN()
