#include "unit/train/job.h"

/*
 * Optimizer offload as it runs, from recorded times: what test/unit/plan/test_offload.c shows of plans.
 * Ops are short here and two cores serve all threads, so one try may miss an overlap; an op that comes too
 * early would be wrong in any.
 */

enum { TRIES = 100 };

struct seen {
    double evict_s, fetch_s; /* together with BACKWARD; with UPDATE of another unit */
    int too_early;           /* UPDATEs before the end of NORM, VOTE or RESULT */
    int n_updates;
};

static double together(const struct zt_op_time *a, const struct zt_op_time *b)
{
    const int64_t lo = ZT_MAX(a->begin_ns, b->begin_ns), hi = ZT_MIN(a->end_ns, b->end_ns);
    return hi > lo ? (double)(hi - lo) * 1e-9 : 0;
}

static void look(struct rank *r, struct zt_engine *e)
{
    struct seen *seen = (struct seen *)r->job->context + r->rank;
    const struct zt_program *prog = &e->plan->programs[ZT_PROG_TRAIN];
    const struct zt_op_time *t = zt_engine_times(e, STEPS - 1);
    for (int i = 0; i < prog->n_ops; i++) {
        for (int j = 0; j < prog->n_ops; j++) {
            const enum zt_op_kind a = prog->ops[i].kind, b = prog->ops[j].kind;
            const bool decides = b == ZT_OP_NORM || b == ZT_OP_VOTE || b == ZT_OP_RESULT;
            if (a == ZT_OP_EVICT && b == ZT_OP_BACKWARD)
                seen->evict_s += together(&t[i], &t[j]);
            if (a == ZT_OP_FETCH && b == ZT_OP_UPDATE)
                seen->fetch_s += together(&t[i], &t[j]);
            if (a == ZT_OP_UPDATE && decides)
                seen->too_early += t[i].begin_ns < t[j].end_ns;
        }
        seen->n_updates += prog->ops[i].kind == ZT_OP_UPDATE;
    }
}

static void check_stage(int stage)
{
    static const struct zt_model_config wide = {.type = ZT_MODEL_GPT2,
                                                .n_layer = 4,
                                                .n_head = 2,
                                                .n_embd = 128,
                                                .vocab_size = 257,
                                                .n_positions = 24,
                                                .norm_eps = 1e-5f,
                                                .initializer_range = 0.02f,
                                                .tie_embeddings = true};
    double evict_s = 0, fetch_s = 0;
    for (int i = 0; i < TRIES && (evict_s == 0 || fetch_s == 0); i++) {
        struct seen seen[MAX_RANKS] = {{0}};
        struct rank ranks[MAX_RANKS];
        struct job j = job(2, stage, ZT_BF16);
        j.mc = &wide;
        j.cfg.offload_optimizer = ZT_OFFLOAD_CPU;
        j.trace = true;
        j.look = look;
        j.context = seen;
        run_job(&j, ranks);
        RETURN_IF_FAILED();
        for (int r = 0; r < j.n_ranks; r++) {
            CHECK_INT(seen[r].n_updates, wide.n_layer + 2);
            CHECK_INT(seen[r].too_early, 0);
            evict_s += seen[r].evict_s;
            fetch_s += seen[r].fetch_s;
        }
    }
    CHECK(evict_s > 0);
    CHECK(fetch_s > 0);
}

TEST(offload_overlaps_stage_1)
{
    check_stage(1);
}

TEST(offload_overlaps_stage_2)
{
    check_stage(2);
}

TEST(offload_overlaps_stage_3)
{
    check_stage(3);
}

TEST_MAIN()
