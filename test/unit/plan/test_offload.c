#include "harness.h"

#include "base/err.h"
#include "models.h"

/*
 * Optimizer offload as the issue of DESIGN 1 wants it, by the waits of the plan and by its simulated
 * schedule: gradients leave, and their norm partials are taken, while backward goes on; no UPDATE
 * before NORM and VOTE; the host updates one unit while the last one goes back.
 */

struct offload_case {
    struct zt_arena arena;
    struct zt_plan *plan;
    const struct zt_program *train;
    struct zt_sim sim;
    char name[80];
};

static void open_case(struct offload_case *c, int stage, int n_ranks, const char *profile)
{
    struct zt_model *m;
    struct zt_err err;
    struct zt_plan_config cfg = plan_config(stage, n_ranks, ZT_BF16);
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "stage %d, %d ranks, %s", stage, n_ranks, profile);
    cfg.offload_optimizer = ZT_OFFLOAD_CPU;
    cfg.micro_batch = 8;
    cfg.seq_len = 1024;
    cfg.profile = zt_profile_find(profile);
    CHECK_OK(zt_model_build(&gpt2_124m, &c->arena, &m, &err), err);
    CHECK_OK(zt_plan_build(m, &cfg, n_ranks - 1, &c->plan, &err), err);
    c->train = &c->plan->programs[ZT_PROG_TRAIN];
    zt_simulate(c->plan, ZT_PROG_TRAIN, cfg.profile, NULL, &c->sim);
}

static void close_case(struct offload_case *c)
{
    zt_sim_release(&c->sim);
    zt_plan_free(c->plan);
    zt_arena_release(&c->arena);
}

static void each_case(void (*check)(const struct offload_case *))
{
    static const char *const profiles[] = {"fast", "slow", "cpu"};
    for (size_t p = 0; p < ZT_ARRAY_LEN(profiles); p++) {
        for (int i = 0; i < 9 && !zt_test_failed; i++) {
            struct offload_case c;
            open_case(&c, 1 + i % 3, 1 << i / 3, profiles[p]);
            RETURN_IF_FAILED();
            check(&c);
            close_case(&c);
        }
    }
}

static const struct zt_op *first_op(const struct offload_case *c, enum zt_op_kind kind)
{
    for (int i = 0; i < c->train->n_ops; i++)
        if (c->train->ops[i].kind == kind)
            return &c->train->ops[i];
    return NULL;
}

/* The op of a kind and unit, or -1. */
static int op_of(const struct offload_case *c, enum zt_op_kind kind, int unit)
{
    for (int i = 0; i < c->train->n_ops; i++)
        if (c->train->ops[i].kind == kind && c->train->ops[i].unit == unit)
            return i;
    return -1;
}

/*
 * Marks what must have ended before op `last` may start, within a run: by the order of streams and the
 * waits of the plan, whatever anything costs.
 */
static void mark_before(const struct zt_program *prog, int last, bool *before)
{
    int newest[ZT_N_STREAMS];
    for (int s = 0; s < ZT_N_STREAMS; s++)
        newest[s] = -1; /* highest op of the stream that is known to come before */
    memset(before, 0, (size_t)prog->n_ops);
    before[last] = true;
    for (int i = last; i >= 0; i--) {
        const struct zt_op *op = &prog->ops[i];
        if (!before[i] && i > newest[op->stream])
            continue;
        before[i] = true;
        newest[op->stream] = ZT_MAX(newest[op->stream], i - 1);
        for (int w = 0; w < op->n_waits; w++) {
            const struct zt_wait *wait = &prog->waits[op->first_wait + w];
            if (wait->delta == 0)
                before[wait->op] = true;
        }
    }
}

static void check_order(const struct offload_case *c)
{
    const struct zt_program *prog = c->train;
    bool *before = zt_xcalloc((size_t)prog->n_ops, 1);
    int n = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        if (prog->ops[i].kind != ZT_OP_UPDATE)
            continue;
        n++;
        mark_before(prog, i, before);
        for (int j = 0; j < prog->n_ops; j++) {
            const enum zt_op_kind k = prog->ops[j].kind;
            const bool decides = k == ZT_OP_NORM || k == ZT_OP_VOTE || k == ZT_OP_RESULT;
            if ((decides || k == ZT_OP_REDUCE) && !before[j])
                FAIL("%s: UPDATE of unit %d may start before op %d, %s", c->name, prog->ops[i].unit,
                     j, zt_op_kind_name(k));
        }
    }
    free(before);
    CHECK_INT(n, c->plan->n_partials);
}

TEST(offload_no_update_before_norm_and_vote)
{
    each_case(check_order);
}

/* That the check above can fail: without the waits of the first UPDATE, nothing orders it. */
TEST(offload_order_is_by_waits)
{
    struct offload_case c;
    open_case(&c, 2, 2, "cpu");
    RETURN_IF_FAILED();
    bool *before = zt_xcalloc((size_t)c.train->n_ops, 1);
    const struct zt_op *update = first_op(&c, ZT_OP_UPDATE);
    const int at = (int)(update - c.train->ops), vote = op_of(&c, ZT_OP_VOTE, -1);
    mark_before(c.train, at, before);
    CHECK(before[vote]);
    c.plan->programs[ZT_PROG_TRAIN].ops[at].n_waits = 0;
    mark_before(c.train, at, before);
    CHECK(!before[vote]);
    free(before);
    close_case(&c);
}

static double end_of_backward(const struct offload_case *c)
{
    double end = 0;
    for (int i = 0; i < c->train->n_ops; i++)
        if (c->train->ops[i].kind == ZT_OP_BACKWARD)
            end = ZT_MAX(end, c->sim.finish_s[i]);
    return end;
}

/*
 * A unit's copy begins when it is reduced and the copy before it has ended: nothing else holds it up. So all
 * but the embedding's, whose gradient backward makes last, leave during backward, unless a slow network
 * reduces them only later.
 */
static void check_gradients(const struct offload_case *c)
{
    const double end = end_of_backward(c), eps = 1e-9;
    const bool slow = strcmp(c->plan->cfg.profile->name, "slow") == 0;
    double last = 0;
    int n_early = 0;
    for (int i = 0; i < c->train->n_ops; i++) {
        const struct zt_op *op = &c->train->ops[i];
        if (op->kind == ZT_OP_REDUCE) {
            /* The partial is an epilogue of REDUCE: not on the stream that computes. */
            CHECK(op->stream == ZT_ST_COMM && op->last_use);
            CHECK(zt_op_operand(c->train, op, ZT_R_PARTIAL, 0));
        }
        if (op->kind != ZT_OP_EVICT)
            continue;
        const double reduced = c->sim.finish_s[op_of(c, ZT_OP_REDUCE, op->unit)];
        CHECK(op->stream == ZT_ST_COPY_OUT);
        if (c->sim.start_s[i] > ZT_MAX(reduced, last) + eps)
            FAIL("%s: the gradient of unit %d is reduced at %.6g s, and the last copy ends at %.6g "
                 "s, "
                 "but its own begins at %.6g s",
                 c->name, op->unit, reduced, last, c->sim.start_s[i]);
        last = c->sim.finish_s[i];
        n_early += c->sim.start_s[i] < end;
    }
    const int embedding = op_of(c, ZT_OP_EVICT, c->plan->unit_of_param[0]);
    CHECK(embedding >= 0 && c->sim.start_s[embedding] >= end - eps);
    if (n_early < c->plan->n_units - 2 && !slow)
        FAIL("%s: only %d of %d gradients leave before backward ends", c->name, n_early,
             c->plan->n_units);
}

TEST(offload_gradients_leave_during_backward)
{
    each_case(check_gradients);
}

/* Unit u goes back while u + 1 is updated: the two take about as long as the slower one alone. */
static void check_updates(const struct offload_case *c)
{
    double updates = 0, fetches = 0, begin = 1e30, end = 0, longest = 0;
    int n_overlap = 0, n = 0;
    for (int u = 0; u < c->plan->n_units; u++) {
        const int update = op_of(c, ZT_OP_UPDATE, u), fetch = op_of(c, ZT_OP_FETCH, u);
        CHECK(update >= 0 && fetch > update);
        CHECK(c->train->ops[update].stream == ZT_ST_HOST);
        CHECK(c->train->ops[fetch].stream == ZT_ST_COPY_IN);
        CHECK(c->sim.start_s[fetch] >= c->sim.finish_s[update]);
        const double t_update = c->sim.finish_s[update] - c->sim.start_s[update];
        const double t_fetch = c->sim.finish_s[fetch] - c->sim.start_s[fetch];
        updates += t_update;
        fetches += t_fetch;
        longest = ZT_MAX(longest, ZT_MAX(t_update, t_fetch));
        begin = ZT_MIN(begin, c->sim.start_s[update]);
        end = ZT_MAX(end, c->sim.finish_s[fetch]);
        if (u == 0)
            continue;
        const int before = op_of(c, ZT_OP_FETCH, u - 1);
        n_overlap += c->sim.start_s[before] < c->sim.finish_s[update] &&
                     c->sim.finish_s[before] > c->sim.start_s[update];
        n++;
    }
    if (n_overlap < n - 1)
        FAIL("%s: only %d of %d units go back while the next one is updated", c->name, n_overlap,
             n);
    if (end - begin > 1.02 * ZT_MAX(updates, fetches) + longest)
        FAIL("%s: %.3g s from the first update to the last copy; updates %.3g s, copies %.3g s",
             c->name, end - begin, updates, fetches);
}

TEST(offload_updates_overlap_with_copying_back)
{
    each_case(check_updates);
}

TEST_MAIN()
