/*
 * Plans of many micro-batches, made of a few of them, beside plans that list each: as many rows a
 * micro-batch, no more memory, the same time; and proven whole by the verifier, as zt_plan_build() does.
 */
#include "base/err.h"
#include "harness.h"
#include "models.h"
#include "plan/passes.h"
#include "plan/plan.h"

enum { LISTED = 8, FOLDED = 21 }; /* micro-batches: the most that are all listed, and more */

static struct zt_err err;
static uint64_t state;

static int pick(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)(state >> 33) % n;
}

static struct zt_plan_config any_config(const struct zt_model_config *mc)
{
    static const int ranks[] = {1, 2, 8, 64};
    static const size_t windows[] = {0, 0, 1, 50 << 20, (size_t)1 << 32};
    struct zt_plan_config cfg = plan_config(pick(4), ranks[pick(4)], pick(3) ? ZT_BF16 : ZT_F32);
    cfg.seq_len = mc->n_layer > 2 ? 1024 : 8;
    cfg.eval_micro_batch = pick(2) ? cfg.micro_batch : 0;
    cfg.prefetch_bytes = windows[pick(5)];
    cfg.shared_arena = pick(2);
    cfg.overlap_comm = pick(6) > 0;
    cfg.profile_known = pick(6) > 0;
    cfg.profile = &zt_profiles[pick(3)];
    cfg.reduce_every_micro_batch = pick(4) == 0;
    cfg.comm_dtype = pick(4) ? -1 : ZT_F32;
    cfg.saves = cfg.loads = pick(4) == 0;
    if (pick(2))
        set_recomputation(&cfg, (size_t)pick(mc->n_layer > 5 ? ZT_ARRAY_LEN(recomputations) : 2));
    cfg.offload_optimizer = cfg.stage ? (enum zt_offload)pick(3) : ZT_OFFLOAD_NONE;
    cfg.offload_param = cfg.stage == 3 ? (enum zt_offload)pick(3) : ZT_OFFLOAD_NONE;
    return cfg;
}

typedef int build_fn(const struct zt_model *, const struct zt_plan_config *, int rank,
                     struct zt_plan **, struct zt_err *);

static struct zt_plan *build_by(build_fn *fn, const struct zt_model *m, struct zt_plan_config cfg,
                                int rank, int accum)
{
    struct zt_plan *p = NULL;
    cfg.accum = accum;
    if (fn(m, &cfg, rank, &p, &err)) {
        printf("not ok %s: %d micro-batches: %s\n", zt_test_name, accum, err.msg);
        zt_test_failed = 1;
    }
    return p;
}

static struct zt_plan *build(const struct zt_model *m, struct zt_plan_config cfg, int accum)
{
    return build_by(zt_plan_build, m, cfg, zt_mesh_world(&cfg.mesh) - 1, accum);
}

static struct zt_plan *build_folded(const struct zt_model *m, struct zt_plan_config cfg, int accum)
{
    return build_by(zt_plan_build_folded, m, cfg, 0, accum);
}

/* Is it planned by a few micro-batches, and what does it say before it is whole? */
static void check_outline(const struct zt_model *m, const struct zt_plan_config *cfg,
                          const struct zt_plan *whole)
{
    struct zt_plan *p;
    CHECK_OK(zt_plan_outline(m, cfg, 0, &p, &err), err);
    CHECK_INT(p->fold.n_repeats > 0, cfg->accum > LISTED);
    zt_plan_arrange(p);
    for (int a = 0; a < ZT_N_ARENAS; a++)
        CHECK_INT(p->ledger.peak[a], whole->ledger.peak[a]);
    CHECK(p->programs[ZT_PROG_TRAIN].time_s == whole->programs[ZT_PROG_TRAIN].time_s);
    zt_plan_free(p);
}

static size_t transient_bytes(const struct zt_plan *p, enum zt_arena_id a)
{
    size_t bytes = p->ledger.peak[a];
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].program < 0 && p->bufs[b].arena == a)
            bytes -= p->bufs[b].bytes;
    return bytes;
}

/* The plan that is not to be run: proven without listing all, and what it says is of the whole. */
static void check_folded(const struct zt_model *m, const struct zt_plan *whole)
{
    struct zt_plan *p;
    CHECK_OK(zt_plan_build_folded(m, &whole->cfg, whole->rank, &p, &err), err);
    CHECK_INT(p->fold.n_repeats > 0, whole->cfg.accum >= FOLDED);
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        CHECK_INT(zt_plan_n_rows(p, (enum zt_program_kind)k), whole->programs[k].n_ops);
        CHECK_INT(zt_plan_n_waits(p, (enum zt_program_kind)k), whole->programs[k].n_waits);
    }
    for (int a = 0; a < ZT_N_ARENAS; a++)
        CHECK_INT(p->ledger.peak[a], whole->ledger.peak[a]);
    CHECK_INT(zt_plan_row(p, p->ledger.fullest_program, p->ledger.fullest_op),
              whole->ledger.fullest_op);
    CHECK(p->ledger.flops == whole->ledger.flops);
    zt_plan_free(p);
}

/* The time planned with a few micro-batches is that of the whole program. */
static void check_time(const struct zt_plan *p)
{
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    struct zt_sim sim;
    zt_simulate(p, ZT_PROG_TRAIN, p->cfg.profile, NULL, &sim);
    CHECK_NEAR(train->time_s, sim.step_s, 1e-6 * sim.step_s);
    CHECK_NEAR(train->critical_path_s, sim.critical_path_s, 1e-6 * sim.critical_path_s);
    for (int s = 0; s < ZT_N_STREAMS; s++)
        CHECK(sim.busy_s[s] <= train->busiest_s * (1 + 1e-9));
    zt_sim_release(&sim);
}

/* p: of LISTED - 1, LISTED and more micro-batches: what one more is, is known from the first two. */
static void check_more(const struct zt_plan *const *p, const struct zt_plan *folded)
{
    const struct zt_program *few = &p[0]->programs[ZT_PROG_TRAIN];
    const struct zt_program *many = &p[1]->programs[ZT_PROG_TRAIN];
    const struct zt_program *t = &folded->programs[ZT_PROG_TRAIN];
    const int more = folded->cfg.accum - LISTED;
    CHECK_INT(t->n_ops, many->n_ops + more * (many->n_ops - few->n_ops));
    CHECK_INT(t->n_accesses, many->n_accesses + more * (many->n_accesses - few->n_accesses));
    CHECK_NEAR(folded->ledger.flops / p[1]->ledger.flops, folded->cfg.accum / (double)LISTED, 1e-9);
    CHECK_NEAR(folded->ledger.sent[ZT_OP_REDUCE] - p[1]->ledger.sent[ZT_OP_REDUCE],
               more * (p[1]->ledger.sent[ZT_OP_REDUCE] - p[0]->ledger.sent[ZT_OP_REDUCE]),
               1e-9 * folded->ledger.sent[ZT_OP_REDUCE]);
    if (t->backlog != many->backlog) /* where it is slow, more may be given for speed */
        return;
    CHECK(t->time_s <= 1.06 * (many->time_s + more * (many->time_s - few->time_s)));
    for (int a = 0; a < ZT_N_ARENAS; a++)
        CHECK((double)transient_bytes(folded, a) <= 1.05 * (double)transient_bytes(p[1], a));
}

static void check_config(const struct zt_model *m, const struct zt_plan_config *cfg)
{
    static const int accum[] = {LISTED - 1, LISTED, LISTED + 1, LISTED + 2, FOLDED};
    enum { N = ZT_ARRAY_LEN(accum) };
    struct zt_plan *p[N];
    for (int i = 0; i < N; i++) {
        p[i] = build(m, *cfg, accum[i]);
        RETURN_IF_FAILED();
        check_outline(m, &p[i]->cfg, p[i]);
        check_folded(m, p[i]);
        check_time(p[i]);
        if (i >= 2)
            check_more((const struct zt_plan *const *)p, p[i]);
    }
    for (int i = 0; i < N; i++)
        zt_plan_free(p[i]);
}

TEST(fold_like_plans_that_list_all)
{
    static const struct zt_model_config *const models[] = {&gpt2_fixture, &llama_fixture,
                                                           &gpt2_124m, &llama_7b};
    for (int i = 0; i < 100 && !zt_test_failed; i++) {
        const struct zt_model_config *mc = models[i % 4];
        struct zt_arena arena = {0};
        struct zt_model *m = NULL;
        state = (uint64_t)i;
        pick(2);
        CHECK_OK(zt_model_build(mc, &arena, &m, &err), err);
        const struct zt_plan_config cfg = any_config(mc);
        check_config(m, &cfg);
        if (zt_test_failed)
            printf("# configuration %d\n", i);
        zt_arena_release(&arena);
    }
}

/* Rows of micro-batches that were left out touch their own part of the batch and their own loss. */
TEST(fold_rows_have_their_own_micro_batch)
{
    struct zt_arena arena = {0};
    struct zt_model *m = NULL;
    struct zt_plan_config cfg = plan_config(3, 2, ZT_BF16);
    CHECK_OK(zt_model_build(&gpt2_fixture, &arena, &m, &err), err);
    struct zt_plan *p = build(m, cfg, FOLDED);
    const struct zt_program *t = &p->programs[ZT_PROG_TRAIN];
    int n[FOLDED] = {0};
    for (int i = 0; i < t->n_ops; i++) {
        const struct zt_op *op = &t->ops[i];
        const struct zt_access *loss = zt_op_operand(t, op, ZT_R_LOSS, 0);
        const struct zt_access *x = zt_op_operand(t, op, ZT_R_X_OUT, 0);
        const struct zt_access *batch = zt_op_operand(t, op, ZT_R_BATCH, 0);
        char mb[16];
        if (op->mb < 0)
            continue;
        CHECK(op->mb < FOLDED);
        n[op->mb]++;
        if (loss)
            CHECK_INT(loss->begin, (size_t)(p->n_partials + op->mb) * sizeof(double));
        if (batch)
            CHECK_INT(batch->begin, (size_t)op->mb * (batch->end - batch->begin));
        snprintf(mb, sizeof mb, " mb%d", op->mb);
        if (x) {
            CHECK_INT(p->bufs[x->buf].mb, op->mb);
            CHECK(strstr(p->bufs[x->buf].name, mb));
        }
    }
    for (int i = 2; i < FOLDED - 1; i++)
        CHECK_INT(n[i], n[1]);
    zt_plan_free(p);
    zt_arena_release(&arena);
}

static void check_mutants(struct zt_plan *make(const struct zt_model *, struct zt_plan_config, int))
{
    struct zt_arena arena = {0};
    struct zt_model *m = NULL;
    CHECK_OK(zt_model_build(&gpt2_fixture, &arena, &m, &err), err);
    for (int stage = 0; stage < 4; stage++) {
        struct zt_verifier *v;
        struct zt_plan *p = make(m, plan_config(stage, 2, ZT_BF16), FOLDED);
        RETURN_IF_FAILED();
        CHECK_OK(zt_verifier_create(p, ZT_PROG_TRAIN, &v, &err), err);
        for (int w = 0; w < p->programs[ZT_PROG_TRAIN].n_waits; w++)
            CHECK(zt_verifier_check_waits(v, w, &err) == ZT_EVERIFY);
        zt_verifier_free(v);
        zt_plan_free(p);
    }
    zt_arena_release(&arena);
}

/* Of a program made whole, too, every wait is needed. */
TEST(fold_every_mutant_is_rejected)
{
    check_mutants(build);
}

/* A plan that is not run costs the same however many micro-batches there are. */
TEST(fold_lists_as_much_of_any_accumulation)
{
    struct zt_arena arena = {0};
    struct zt_model *m = NULL;
    CHECK_OK(zt_model_build(&gpt2_fixture, &arena, &m, &err), err);
    for (int stage = 0; stage < 4; stage++) {
        const struct zt_plan_config cfg = plan_config(stage, 2, ZT_BF16);
        struct zt_plan *few = build_folded(m, cfg, 20);
        struct zt_plan *many = build_folded(m, cfg, zt_plan_max_accum(m) / 2 * 2);
        RETURN_IF_FAILED();
        CHECK(many->fold.n_repeats > 1000 * few->fold.n_repeats);
        for (int k = 0; k < ZT_N_PROGRAMS; k++) {
            CHECK_INT(many->programs[k].n_ops, few->programs[k].n_ops);
            CHECK_INT(many->programs[k].n_accesses, few->programs[k].n_accesses);
            CHECK_INT(many->programs[k].n_waits, few->programs[k].n_waits);
        }
        CHECK_INT(many->n_bufs, few->n_bufs);
        zt_plan_free(few);
        zt_plan_free(many);
    }
    zt_arena_release(&arena);
}

/* Every wait that is listed is needed for what is not, too. */
TEST(fold_every_folded_mutant_is_rejected)
{
    check_mutants(build_folded);
}

/*
 * What is safe as listed, but would not be repeated: each is refused folded, though the same rows with nothing
 * left out are proven.
 */
static void refuse(const char *why, struct zt_plan *p)
{
    const struct zt_fold fold = p->fold;
    CHECK_INT(zt_verify_program(p, ZT_PROG_TRAIN, &err), ZT_EVERIFY);
    CHECK(strstr(err.msg, why));
    p->fold = ZT_NO_FOLD;
    CHECK_OK(zt_verify_program(p, ZT_PROG_TRAIN, &err), err);
    p->fold = fold;
}

TEST(fold_refuses_what_does_not_repeat)
{
    struct zt_arena arena = {0};
    struct zt_model *m = NULL;
    CHECK_OK(zt_model_build(&gpt2_fixture, &arena, &m, &err), err);
    struct zt_plan *p = build_folded(m, plan_config(3, 2, ZT_BF16), FOLDED);
    RETURN_IF_FAILED();
    struct zt_program *t = &p->programs[ZT_PROG_TRAIN];

    int i = p->fold.begin;
    while (t->ops[i].kind != ZT_OP_FORWARD)
        i++;
    t->ops[i].count++;
    refuse("differs", p);
    t->ops[i].count--;

    int *next = (int *)p->fold.next;
    int last = 0;
    while (p->fold.prev[last] < 0 || next[last] >= 0)
        last++;
    next[p->fold.prev[last]] = -1; /* another buffer than the one that follows */
    refuse("does not follow", p);
    next[p->fold.prev[last]] = last;

    p->fold.n_repeats *= 2; /* more losses than the record has room for */
    refuse("does not follow", p);
    p->fold.n_repeats /= 2;

    CHECK_OK(zt_verify_program(p, ZT_PROG_TRAIN, &err), err);
    zt_plan_free(p);
    zt_arena_release(&arena);
}

/* A wait of the rows behind for one that is neither of the last repetitions nor long ago says nothing of the whole. */
TEST(fold_refuses_waits_that_could_be_either)
{
    struct zt_arena arena = {0};
    struct zt_model *m = NULL;
    CHECK_OK(zt_model_build(&gpt2_fixture, &arena, &m, &err), err);
    struct zt_plan *p = build_folded(m, plan_config(3, 2, ZT_BF16), FOLDED);
    RETURN_IF_FAILED();
    struct zt_program *t = &p->programs[ZT_PROG_TRAIN];
    struct zt_wait *waits = zt_xcalloc((size_t)t->n_waits + 1, sizeof *waits);
    memcpy(waits, t->waits, (size_t)t->n_waits * sizeof *waits);
    free(t->waits);
    t->waits = waits;
    waits[t->n_waits] = (struct zt_wait){.op = p->fold.before - 1};
    int i = p->fold.end; /* give one more to a row that has none */
    while (t->ops[i].n_waits > 0)
        i++;
    t->ops[i].first_wait = t->n_waits++;
    t->ops[i].n_waits = 1;
    refuse("neither", p);
    zt_plan_free(p);
    zt_arena_release(&arena);
}

TEST_MAIN()
