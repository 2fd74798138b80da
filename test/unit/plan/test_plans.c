/*
 * Whole plans of real shapes: GPT-2 124M (tied) and Llama 7B on 8 ranks, all stages, accumulation,
 * recomputation, optimizer offload, on a fast and a slow network. The goals are those of DESIGN 1 and
 * 8: time within 3 % of unlimited memory with the declared windows, peak within 5 % of the widened
 * bound, every mutant rejected, bytes moved as the stage table says.
 */
#include "base/err.h"
#include "harness.h"
#include "models.h"
#include "plan/plan.h"

enum { N_RANKS = 8 };

struct shape {
    const char *name;
    const struct zt_model_config *model;
    int64_t micro_batch, seq_len;
};

static const struct shape gpt2 = {"gpt2 124M", &gpt2_124m, 16, 1024};
static const struct shape llama = {"llama 7B", &llama_7b, 2, 2048};
static const struct shape large = {"llama 70B", &llama_70b, 1, 4096};

static struct zt_err err;

/* One plan under test, and what to call it. */
struct plan_case {
    char name[160];
    const struct shape *shape;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan_config cfg;
};

static void case_init(struct plan_case *c, const struct shape *shape, int stage, int n_ranks)
{
    memset(c, 0, sizeof *c);
    c->shape = shape;
    c->cfg = plan_config(stage, n_ranks, ZT_BF16);
    c->cfg.micro_batch = c->cfg.eval_micro_batch = shape->micro_batch;
    c->cfg.seq_len = shape->seq_len;
    snprintf(c->name, sizeof c->name, "%s stage %d on %d", shape->name, stage, n_ranks);
}

/* The plan of a rank, verified by zt_plan_build, or NULL and the test failed. */
static struct zt_plan *build(struct plan_case *c, int rank)
{
    struct zt_plan *p = NULL;
    if (!c->model && zt_model_build(c->shape->model, &c->arena, &c->model, &err)) {
        printf("not ok %s: %s: %s\n", zt_test_name, c->name, err.msg);
        zt_test_failed = 1;
    } else if (zt_plan_build(c->model, &c->cfg, rank, &p, &err)) {
        printf("not ok %s: %s: %s\n", zt_test_name, c->name, err.msg);
        zt_test_failed = 1;
    }
    return p;
}

static void case_release(struct plan_case *c)
{
    zt_arena_release(&c->arena);
}

/*
 * The matrix: 2 shapes, 4 stages, accumulation, recomputation (its kinds in turn), offload, 2 networks,
 * and transports that read peers' memory (two device arenas) or not (one).
 */
static void each_plan(void (*check)(const struct plan_case *, struct zt_plan *))
{
    size_t n_recomputed = 0;
    for (int i = 0; i < 2 * 4 * 32 && !zt_test_failed; i++) {
        struct plan_case c;
        bool slow = i & 1, offload = i & 2, recompute = i & 4, two = i & 8, shared = i & 16;
        int stage = i >> 5 & 3;
        if (offload && stage == 0)
            continue;
        case_init(&c, i >> 7 ? &llama : &gpt2, stage, N_RANKS);
        c.cfg.accum = two ? 2 : 1;
        c.cfg.shared_arena = shared;
        const size_t kind = n_recomputed % ZT_ARRAY_LEN(recomputations);
        if (recompute) {
            set_recomputation(&c.cfg, kind);
            n_recomputed++;
        }
        const enum zt_offload to = recompute ? ZT_OFFLOAD_NVME : ZT_OFFLOAD_CPU;
        const enum zt_offload params_to = shared ? ZT_OFFLOAD_NVME : ZT_OFFLOAD_CPU;
        c.cfg.offload_optimizer = offload ? to : ZT_OFFLOAD_NONE;
        const bool params = stage == 3 && recompute == two;
        c.cfg.offload_param = params ? params_to : ZT_OFFLOAD_NONE;
        c.cfg.profile = zt_profile_find(slow ? "slow" : "fast");
        c.cfg.saves = c.cfg.snapshot = c.cfg.loads = slow;
        size_t n = strlen(c.name);
        snprintf(c.name + n, sizeof c.name - n, ", accum %d%s%s%s%s%s, %s", c.cfg.accum,
                 recompute ? ", " : "", recompute ? recomputations[kind].name : "",
                 offload ? ", offload" : "", params ? ", parameters too" : "",
                 shared ? ", shared" : "", c.cfg.profile->name);
        struct zt_plan *p = build(&c, 1);
        if (p)
            check(&c, p);
        zt_plan_free(p);
        case_release(&c);
    }
}

/* Bytes that no packing of the widened lifetimes can do without: the most of any program. */
static size_t widened_bound(const struct zt_plan *p, enum zt_arena_id arena)
{
    struct zt_life *life = zt_xcalloc(p->n_bufs, sizeof *life);
    size_t most = 0;
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        if (!p->programs[k].n_ops)
            continue;
        zt_lifetimes_widened(p, k, p->programs[k].backlog, life);
        size_t bound = zt_live_bound(p, k, life, arena);
        most = ZT_MAX(most, bound);
    }
    free(life);
    return most;
}

static void check_time_and_peak(const struct plan_case *c, struct zt_plan *p)
{
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    if (train->time_s > 1.03 * train->time_unlimited_s)
        FAIL("%s: %.4g s, unlimited memory %.4g s", c->name, train->time_s,
             train->time_unlimited_s);
    if (train->time_s < train->busiest_s * (1 - 1e-9))
        FAIL("%s: faster than its busiest stream", c->name);
    for (int a = 0; a < ZT_N_ARENAS; a++) {
        size_t bound = widened_bound(p, a);
        if (p->ledger.peak[a] < bound || (double)p->ledger.peak[a] > 1.05 * (double)bound)
            FAIL("%s: %s arena %zu bytes, bound %zu", c->name, zt_arena_name(a), p->ledger.peak[a],
                 bound);
    }
}

TEST(plans_keep_time_and_peak)
{
    each_plan(check_time_and_peak);
}

static void check_mutants(const struct plan_case *c, struct zt_plan *p)
{
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        struct zt_verifier *v;
        CHECK_OK(zt_verifier_create(p, k, &v, &err), err);
        CHECK_OK(zt_verifier_check_waits(v, -1, &err), err);
        for (int w = 0; w < p->programs[k].n_waits; w++)
            if (zt_verifier_check_waits(v, w, &err) != ZT_EVERIFY)
                FAIL("%s: %s is accepted without wait %d", c->name, zt_program_name(k), w);
        zt_verifier_free(v);
    }
    CHECK(p->programs[ZT_PROG_TRAIN].n_waits > 0);
}

TEST(plans_reject_every_mutant)
{
    each_plan(check_mutants);
}

/* Is a transient written by its first op alone, and are its first bytes read by its last? */
static bool written_once(const struct zt_plan *p, int buf)
{
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    const struct zt_buf *b = &p->bufs[buf];
    bool reads = false;
    if (b->program != ZT_PROG_TRAIN)
        return false;
    for (int i = b->first; i <= b->last; i++) {
        const struct zt_op *op = &train->ops[i];
        for (int j = op->first_access; j < op->first_access + op->n_accesses; j++) {
            const struct zt_access *a = &train->accesses[j];
            if (a->buf != buf)
                continue;
            if (i > b->first && (a->mode & ZT_WRITE))
                return false;
            reads |= i == b->last && a->begin == 0;
        }
    }
    return reads && b->last > b->first;
}

/*
 * A buffer put where another one still waits to be read, with the waits that this place needs: then
 * no two ops race, and only provenance (or aliasing) can tell.
 */
static void check_misplacements(const struct plan_case *c, struct zt_plan *p)
{
    enum { EVERY = 5, PER_PLAN = 6 };
    int planted = 0, candidates = 0;
    for (int x = 0; x < p->n_bufs && planted < PER_PLAN; x++) {
        if (!written_once(p, x))
            continue;
        for (int y = 0; y < p->n_bufs && planted < PER_PLAN; y++) {
            struct zt_buf *a = &p->bufs[x], *b = &p->bufs[y];
            if (b->program != ZT_PROG_TRAIN || b->arena != a->arena || b->first <= a->first ||
                b->first >= a->last || a->offset + b->bytes > p->ledger.peak[a->arena])
                continue;
            if (candidates++ % EVERY)
                continue;
            const size_t was = b->offset;
            b->offset = a->offset;
            zt_derive_waits(p, ZT_PROG_TRAIN);
            if (zt_verify(p, &err) != ZT_EVERIFY)
                FAIL("%s: '%s' on the bytes of '%s' is accepted", c->name, b->name, a->name);
            b->offset = was;
            planted++;
        }
    }
    if (planted < PER_PLAN)
        FAIL("%s: only %d misplacements", c->name, planted);
    zt_derive_waits(p, ZT_PROG_TRAIN);
    CHECK_OK(zt_verify(p, &err), err);
}

TEST(plans_reject_misplacements)
{
    each_plan(check_misplacements);
}

/* A part of the state that INIT forgets: noise at the first step. */
TEST(plans_reject_state_that_nothing_fills)
{
    for (int stage = 0; stage < 4; stage++) {
        struct plan_case c;
        case_init(&c, &gpt2, stage, N_RANKS);
        struct zt_plan *p = build(&c, 1);
        RETURN_IF_FAILED();
        const struct zt_program *init = &p->programs[ZT_PROG_INIT];
        int planted = 0;
        for (int i = 0; i < init->n_accesses; i++) {
            struct zt_access *a = &init->accesses[i];
            if (p->bufs[a->buf].program >= 0 || !(a->mode & ZT_WRITE))
                continue;
            a->begin += 4;
            if (zt_verify(p, &err) != ZT_EVERIFY || !strstr(err.msg, "neither init nor"))
                FAIL("%s: '%s' not filled whole is accepted", c.name, p->bufs[a->buf].name);
            a->begin -= 4;
            planted++;
        }
        CHECK(planted > 4 * p->n_units);
        zt_plan_free(p);
        case_release(&c);
    }
}

/* ---- the stage table, in bytes ---- */

struct totals {
    double padded;  /* elements of all units */
    double reduced; /* bytes of one reduction of all gradients, in the type that travels */
    double gathered_grads;
};

static struct totals totals(const struct zt_plan *p)
{
    struct totals t = {0, 0, 0};
    for (int u = 0; u < p->n_units; u++) {
        const struct zt_unit *unit = &p->units[u];
        double n = (double)unit->padded_elems;
        /* fp32 where contributions add up: embeddings, and full gradients of micro-batches. */
        bool travels_wide = unit->grad_fp32 || (p->cfg.accum > 1 && p->cfg.stage < 2);
        bool reduced_wide = unit->grad_fp32 || p->cfg.accum > 1;
        t.padded += n;
        t.reduced += n * (travels_wide ? 4 : 2);
        t.gathered_grads += n * (reduced_wide ? 4 : 2);
    }
    return t;
}

static double persistent(const struct zt_plan *p, enum zt_cat cat, enum zt_arena_id arena)
{
    double sum = 0;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].program < 0 && p->bufs[b].cat == cat && p->bufs[b].arena == arena)
            sum += (double)p->bufs[b].used;
    return sum;
}

/* Bytes that stage 3 gathers: every use once, but for what a window may keep between two uses. */
static void check_gathers(const struct plan_case *c, const struct zt_plan *p)
{
    const double n = N_RANKS, sent = p->ledger.sent[ZT_OP_GATHER];
    double uses = 0, again = 0, window = 200e6, top[3] = {0, 0, 0};
    for (int s = 0; s < p->model->n_segments; s++) {
        const struct zt_segment *seg = &p->model->segments[s];
        bool seen[64] = {false};
        for (int i = 0; i < seg->n_params; i++) {
            int u = p->unit_of_param[seg->params[i]];
            if (seen[u])
                continue;
            seen[u] = true;
            const double bytes = (double)p->units[u].padded_elems * 2;
            uses += bytes * (!seg->fused_backward + seg->weights_in_backward);
            /* Runs of several blocks are made again before the backward of the first of them. */
            if (seg->kind == ZT_SEG_BLOCK && c->cfg.recompute == ZT_RECOMPUTE_EVERY)
                again += bytes;
        }
    }
    for (int u = 0; u < p->n_units; u++) {
        double bytes = (double)p->units[u].padded_elems * 2;
        for (int i = 0; i < 3; i++) {
            double smaller = ZT_MIN(top[i], bytes);
            top[i] = ZT_MAX(top[i], bytes);
            bytes = smaller;
        }
    }
    window = ZT_MAX(window, top[0] + top[1] + top[2]);
    /* At the turn from forward to backward, and from one micro-batch to the next. */
    double kept = window * (2 * p->cfg.accum - 1);
    if (sent > (uses + again) * p->cfg.accum * (n - 1) / n * (1 + 1e-9) ||
        sent < (uses * p->cfg.accum - kept) * (n - 1) / n * (1 - 1e-9))
        FAIL("%s: GATHER sends %.4g bytes of %.4g", c->name, sent, (uses + again) * p->cfg.accum);
}

static void check_stage_table(const struct plan_case *c, struct zt_plan *p)
{
    const int stage = c->cfg.stage, accum = c->cfg.accum;
    const struct totals t = totals(p);
    const double n = N_RANKS, ring = (n - 1) / n;
    const double reduce = t.reduced * (stage < 2 ? 1 : accum) * ring;
    const double gather[4] = {t.gathered_grads * ring, t.padded * 2 * ring, t.padded * 2 * ring, 0};
    CHECK_NEAR(p->ledger.sent[ZT_OP_REDUCE], reduce, 1e-9 * reduce);
    CHECK_NEAR(p->ledger.sent[ZT_OP_ALLGATHER], gather[stage], 1e-9 * reduce);
    if (stage < 3)
        CHECK_NEAR(p->ledger.sent[ZT_OP_GATHER], 0, 0);
    else
        check_gathers(c, p);

    static const enum zt_arena_id homes[] = {[ZT_OFFLOAD_NONE] = ZT_AR_DEVICE,
                                             [ZT_OFFLOAD_CPU] = ZT_AR_HOST,
                                             [ZT_OFFLOAD_NVME] = ZT_AR_DISK};
    const enum zt_arena_id state = homes[c->cfg.offload_optimizer];
    const double states = t.padded * 4 / (stage == 0 ? 1 : n);
    const double on_device =
        persistent(p, ZT_CAT_PARAM, ZT_AR_DEVICE) + persistent(p, ZT_CAT_PARAM, ZT_AR_SHARED);
    const enum zt_arena_id params = homes[c->cfg.offload_param];
    CHECK_NEAR(params != ZT_AR_DEVICE ? persistent(p, ZT_CAT_PARAM, params) : on_device,
               t.padded * 2 / (stage < 3 ? 1 : n), 0);
    CHECK(params == ZT_AR_DEVICE || on_device == 0);
    CHECK_NEAR(persistent(p, ZT_CAT_MASTER, state), states, 0);
    CHECK_NEAR(persistent(p, ZT_CAT_OPT_M, state), states, 0);
    CHECK_NEAR(persistent(p, ZT_CAT_OPT_V, state), states, 0);
}

TEST(plans_follow_the_stage_table)
{
    each_plan(check_stage_table);
}

/* Full gradients live at once: all at stages 0 and 1, at most D + 1 blocks' and the tied unit at 2. */
static void check_live_gradients(const struct plan_case *c, struct zt_plan *p)
{
    struct zt_life *life = zt_xcalloc(p->n_bufs, sizeof *life);
    zt_lifetimes_plain(p, ZT_PROG_TRAIN, life);
    double most = 0, all = 0, largest = 0, tied = 0;
    for (int u = 0; u < p->n_units; u++) {
        const struct zt_unit *unit = &p->units[u];
        bool wide = unit->grad_fp32 || (c->cfg.accum > 1 && c->cfg.stage < 2);
        double bytes = (double)unit->padded_elems * (wide ? 4 : 2);
        all += bytes;
        tied += unit->tied ? bytes : 0;
        largest = ZT_MAX(largest, unit->tied ? 0 : bytes);
    }
    for (int i = 0; i < p->programs[ZT_PROG_TRAIN].n_ops; i++) {
        double live = 0;
        for (int b = 0; b < p->n_bufs; b++)
            if (p->bufs[b].program == ZT_PROG_TRAIN && p->bufs[b].cat == ZT_CAT_GRAD &&
                life[b].lo <= i && i <= life[b].hi)
                live += (double)p->bufs[b].used;
        most = ZT_MAX(most, live);
    }
    free(life);
    if (c->cfg.stage < 2)
        CHECK(most <= all && (c->cfg.accum == 1 || most == all));
    else
        CHECK(most <= tied + 2 * largest);
}

TEST(plans_hold_the_gradients_of_their_stage)
{
    each_plan(check_live_gradients);
}

/* Bytes gathered and not yet released, at every op. */
static size_t most_gathered(const struct zt_plan *p)
{
    struct zt_life *life = zt_xcalloc(p->n_bufs, sizeof *life);
    size_t most = 0;
    zt_lifetimes_plain(p, ZT_PROG_TRAIN, life);
    for (int i = 0; i < p->programs[ZT_PROG_TRAIN].n_ops; i++) {
        size_t live = 0;
        for (int b = 0; b < p->n_bufs; b++)
            if (p->bufs[b].program == ZT_PROG_TRAIN && p->bufs[b].cat == ZT_CAT_GATHER &&
                life[b].lo <= i && i <= life[b].hi)
                live += p->bufs[b].used;
        most = ZT_MAX(most, live);
    }
    free(life);
    return most;
}

TEST(stage_3_keeps_its_prefetch_window)
{
    const size_t windows[] = {1, 450 * 1000 * 1000, 900 * 1000 * 1000, SIZE_MAX / 2};
    for (int accum = 1; accum <= 2; accum++) {
        size_t last = 0;
        for (size_t w = 0; w < ZT_ARRAY_LEN(windows); w++) {
            struct plan_case c;
            case_init(&c, &llama, 3, N_RANKS);
            c.cfg.accum = accum;
            c.cfg.prefetch_bytes = windows[w];
            struct zt_plan *p = build(&c, 0);
            RETURN_IF_FAILED();
            size_t gathered = most_gathered(p), block = 0, all = 0;
            for (int u = 0; u < p->n_units; u++) {
                size_t bytes = (size_t)p->units[u].padded_elems * 2;
                block = ZT_MAX(block, bytes);
                all += bytes;
            }
            /* What one op needs by itself is gathered whatever the window. */
            CHECK(gathered <= ZT_MAX(windows[w], block) && gathered >= last);
            CHECK(gathered >= ZT_MIN(windows[w], all) / 2);
            last = gathered;
            zt_plan_free(p);
            case_release(&c);
        }
    }
}

/* ---- other configurations ---- */

static void check_ranks(struct plan_case *c, const int *ranks, int n)
{
    struct zt_plan *plans[4] = {NULL};
    for (int i = 0; i < n && !zt_test_failed; i++)
        plans[i] = build(c, ranks[i]);
    if (!zt_test_failed && zt_verify_ranks((const struct zt_plan *const *)plans, n, &err))
        FAIL("%s: %s", c->name, err.msg);
    for (int i = 1; i < n && !zt_test_failed; i++)
        if (zt_verify_like(plans[0], plans[i], &err))
            FAIL("%s: %s", c->name, err.msg);
    for (int i = 0; i < n; i++)
        zt_plan_free(plans[i]);
}

TEST(ranks_agree)
{
    for (int i = 0; i < 4 * 2 * 2 * 2; i++) {
        struct plan_case c;
        case_init(&c, i & 1 ? &llama : &gpt2, i >> 3, N_RANKS);
        c.cfg.accum = i & 2 ? 2 : 1;
        c.cfg.overlap_comm = i & 4;
        check_ranks(&c, (const int[]){0, 1, 7}, 3);
        case_release(&c);
        RETURN_IF_FAILED();
    }
}

/* A rank planned with another number of micro-batches would hang its group: found beforehand. */
TEST(ranks_disagree_is_found)
{
    struct plan_case c;
    case_init(&c, &gpt2, 2, N_RANKS);
    struct zt_plan *a = build(&c, 0);
    c.cfg.accum = 2;
    struct zt_plan *b = build(&c, 1);
    RETURN_IF_FAILED();
    memcpy(&b->ledger, &a->ledger, sizeof b->ledger); /* not by its peak */
    CHECK_INT(zt_verify_ranks((const struct zt_plan *const[]){a, b}, 2, &err), ZT_EVERIFY);
    CHECK_INT(zt_verify_like(a, b, &err), ZT_EVERIFY);
    zt_plan_free(a);
    zt_plan_free(b);
    case_release(&c);
}

TEST(seven_billion_on_4096_ranks)
{
    for (int stage = 0; stage < 4; stage++) {
        struct plan_case c;
        case_init(&c, &llama, stage, 4096);
        c.cfg.profile = zt_profile_find("slow");
        check_ranks(&c, (const int[]){0, 1, 4095}, 3);
        case_release(&c);
        RETURN_IF_FAILED();
    }
}

TEST(seventy_billion_accumulating)
{
    struct plan_case c;
    case_init(&c, &large, 3, 64);
    c.cfg.accum = 16;
    c.cfg.recompute = ZT_RECOMPUTE_BLOCK;
    struct zt_plan *p = build(&c, 63);
    RETURN_IF_FAILED();
    CHECK(p->programs[ZT_PROG_TRAIN].n_ops > 7000);
    check_time_and_peak(&c, p);
    check_mutants(&c, p);
    zt_plan_free(p);
    case_release(&c);
}

TEST(profile_unknown)
{
    for (int stage = 0; stage < 4; stage++) {
        struct plan_case c;
        case_init(&c, &llama, stage, N_RANKS);
        c.cfg.accum = 2;
        c.cfg.profile_known = false;
        struct zt_plan *p = build(&c, 1);
        RETURN_IF_FAILED();
        CHECK_INT(p->programs[ZT_PROG_TRAIN].backlog, 1);
        check_time_and_peak(&c, p); /* one beat is enough on a fast network */
        check_mutants(&c, p);
        zt_plan_free(p);
        case_release(&c);
        RETURN_IF_FAILED();
    }
}

TEST(without_overlap_collectives_run_on_the_compute_stream)
{
    struct plan_case c;
    case_init(&c, &llama, 3, N_RANKS);
    struct zt_plan *with = build(&c, 1);
    c.cfg.overlap_comm = false;
    struct zt_plan *without = build(&c, 1);
    RETURN_IF_FAILED();
    const struct zt_program *train = &without->programs[ZT_PROG_TRAIN];
    for (int i = 0; i < train->n_ops; i++)
        CHECK(train->ops[i].stream != ZT_ST_COMM);
    CHECK(train->time_s > 1.2 * with->programs[ZT_PROG_TRAIN].time_s);
    check_mutants(&c, without);
    zt_plan_free(with);
    zt_plan_free(without);
    case_release(&c);
}

TEST_MAIN()
