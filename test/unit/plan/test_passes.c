#include "base/rng.h"
#include "harness.h"
#include "tiny.h"

/* ---- hazards by hand ---- */

TEST(read_after_write_waits)
{
    struct tiny t;
    tiny_init(&t, false);
    int x = tiny_buf(&t, "x", 1);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, W);
    tiny_op(&t, COMM, 1);
    tiny_use(&t, x, R);
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    CHECK_INT(t.prog->n_waits, 1);
    CHECK(has_wait(&t, 1, 0, 0));
    check_proven(&t);
    tiny_release(&t);
}

TEST(write_after_read_waits)
{
    struct tiny t;
    tiny_init(&t, false);
    int x = tiny_persistent(&t, "x", 1);
    tiny_op(&t, COMM, 1);
    tiny_use(&t, x, R);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, W);
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    CHECK_INT(t.prog->n_waits, 1);
    CHECK(has_wait(&t, 1, 0, 0));
    check_proven(&t);
    tiny_release(&t);
}

TEST(write_after_write_waits)
{
    struct tiny t;
    tiny_init(&t, false);
    int x = tiny_persistent(&t, "x", 1);
    for (enum zt_stream_id s = COMPUTE; s <= IN; s++) {
        tiny_op(&t, s, 1);
        tiny_use(&t, x, W);
    }
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    CHECK_INT(t.prog->n_waits, 2); /* the third waits for the second only */
    CHECK(has_wait(&t, 1, 0, 0));
    CHECK(has_wait(&t, 2, 0, 1));
    check_proven(&t);
    tiny_release(&t);
}

TEST(reads_do_not_wait)
{
    struct tiny t;
    tiny_init(&t, true);
    int x = tiny_persistent(&t, "x", 1);
    for (enum zt_stream_id s = COMPUTE; s <= OUT; s++) {
        tiny_op(&t, s, 1);
        tiny_use(&t, x, R);
    }
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    CHECK_INT(t.prog->n_waits, 0);
    check_proven(&t);
    tiny_release(&t);
}

TEST(next_run_waits_for_this_one)
{
    struct tiny t;
    tiny_init(&t, true);
    int x = tiny_buf(&t, "x", 1);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, W);
    tiny_op(&t, COMM, 1);
    tiny_use(&t, x, R);
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    CHECK_INT(t.prog->n_waits, 2);
    CHECK(has_wait(&t, 1, 0, 0));
    CHECK(has_wait(&t, 0, 1, 1)); /* may not overwrite what the last run still reads */
    CHECK_INT(t.prog->raw_waits, 2);
    check_proven(&t);
    tiny_release(&t);
}

TEST(disjoint_ranges_do_not_wait)
{
    struct tiny t;
    tiny_init(&t, true);
    int x = tiny_persistent(&t, "x", 4);
    tiny_op(&t, COMPUTE, 1);
    tiny_range(&t, x, W, 0, 2);
    tiny_op(&t, COMM, 1);
    tiny_range(&t, x, W, 2, 4);
    tiny_op(&t, IN, 1);
    tiny_range(&t, x, R, 1, 2); /* only of the first */
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    CHECK_INT(t.prog->n_waits, 2);
    CHECK(has_wait(&t, 2, 0, 0));
    CHECK(has_wait(&t, 0, 1, 2));
    check_proven(&t);
    tiny_release(&t);
}

/*
 * Two buffers that take turns on the same bytes: the second may not begin before the first is read.
 */
TEST(reused_bytes_wait)
{
    struct tiny t;
    tiny_init(&t, false);
    int x = tiny_buf(&t, "x", 2), y = tiny_buf(&t, "y", 2);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, W);
    tiny_op(&t, COMM, 1);
    tiny_use(&t, x, R);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, y, W);
    tiny_place(&t, x, 0);
    tiny_place(&t, y, 1);
    zt_derive_waits(&t.plan, TINY);
    CHECK(has_wait(&t, 2, 0, 1));
    check_proven(&t);
    tiny_place(&t, y, 2);
    zt_derive_waits(&t.plan, TINY);
    CHECK(!has_wait(&t, 2, 0, 1));
    check_proven(&t);
    /* In unlimited memory it never waits, wherever it lies. */
    tiny_place(&t, y, 0);
    struct zt_wait_list l;
    zt_derive_waits_unlimited(&t.plan, TINY, &l);
    CHECK_INT(l.n, 1);
    CHECK_INT(l.first[2], 1);
    CHECK_INT(l.first[3], 1);
    zt_wait_list_release(&l);
    tiny_release(&t);
}

TEST(unlimited_memory_keeps_persistent_buffers_only)
{
    struct tiny t;
    struct zt_wait_list l;
    tiny_init(&t, true);
    int param = tiny_persistent(&t, "param", 1), x = tiny_buf(&t, "x", 1);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, param, R);
    tiny_use(&t, x, W);
    tiny_op(&t, COMM, 1);
    tiny_use(&t, x, R);
    tiny_op(&t, IN, 1);
    tiny_use(&t, param, W);
    zt_derive_waits_unlimited(&t.plan, TINY, &l);
    CHECK_INT(l.n, 3); /* x read, param overwritten, param read again; not x overwritten */
    CHECK_INT(l.waits[0].delta, 1);
    CHECK_INT(l.waits[0].op, 2);
    CHECK_INT(l.waits[1].op, 0);
    CHECK_INT(l.waits[2].op, 0);
    zt_wait_list_release(&l);
    tiny_release(&t);
}

/* ---- lifetimes and packing ---- */

static void make_pipeline(struct tiny *t, int bufs[3], bool repeats, double transfer_s)
{
    static const char *const names[] = {"a", "b", "c"};
    tiny_init(t, repeats);
    for (int i = 0; i < 3; i++)
        bufs[i] = tiny_buf(t, names[i], 4);
    for (int i = 0; i < 3; i++) { /* op 2i computes a buffer, op 2i + 1 sends it */
        tiny_op_of(t, ZT_OP_BACKWARD, COMPUTE, 1);
        tiny_use(t, bufs[i], W);
        tiny_op_of(t, ZT_OP_EVICT, OUT, transfer_s);
        tiny_use(t, bufs[i], R);
    }
}

TEST(lifetimes_in_program_order)
{
    struct tiny t;
    int b[3];
    struct zt_life life[3];
    make_pipeline(&t, b, true, 1);
    zt_lifetimes_plain(&t.plan, TINY, life);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(life[i].lo, 2 * i);
        CHECK_INT(life[i].hi, 2 * i + 1);
    }
    CHECK_INT(zt_live_bound(&t.plan, TINY, life, ZT_AR_DEVICE), 4 * ZT_BUF_ALIGN);
    tiny_pack(&t, life);
    CHECK_INT(t.plan.ledger.peak[ZT_AR_DEVICE], 4 * ZT_BUF_ALIGN); /* one after another */
    tiny_release(&t);
}

/*
 * A transfer as long as the compute op beside it: two buffers take turns, across the end of a run.
 */
TEST(lifetimes_widened_by_schedule)
{
    struct tiny t;
    int b[3];
    struct zt_life life[3];
    make_pipeline(&t, b, true, 0.7); /* 0.875 with slack: ends before the second next compute op */
    zt_lifetimes_widened(&t.plan, TINY, 1, life);
    CHECK_INT(life[0].hi, 2);
    CHECK_INT(life[1].hi, 4);
    CHECK_INT(life[2].hi, 6); /* op 0 of the next run */
    CHECK_INT(zt_live_bound(&t.plan, TINY, life, ZT_AR_DEVICE), 8 * ZT_BUF_ALIGN);
    tiny_pack(&t, life);
    /* Three in a ring, each beside both others: two places do not do. */
    CHECK_INT(t.plan.ledger.peak[ZT_AR_DEVICE], 12 * ZT_BUF_ALIGN);
    zt_derive_waits(&t.plan, TINY);
    check_proven(&t);
    struct zt_sim sim;
    zt_simulate(&t.plan, TINY, &tiny_profile, NULL, &sim);
    CHECK_NEAR(sim.step_s, 3, 1e-9); /* compute never waits */
    zt_sim_release(&sim);
    tiny_release(&t);
}

TEST(lifetimes_do_not_wrap_without_repeat)
{
    struct tiny t;
    int b[3];
    struct zt_life life[3];
    make_pipeline(&t, b, false, 0.7);
    zt_lifetimes_widened(&t.plan, TINY, 1, life);
    CHECK_INT(life[0].hi, 2);
    CHECK_INT(life[1].hi, 4);
    CHECK_INT(life[2].hi, 5);
    tiny_pack(&t, life);
    CHECK_INT(t.plan.ledger.peak[ZT_AR_DEVICE], 8 * ZT_BUF_ALIGN);
    tiny_release(&t);
}

TEST(lifetimes_widened_by_beats)
{
    struct tiny t;
    int b[3];
    struct zt_life life[3];
    make_pipeline(&t, b, true, 100);
    t.plan.cfg.profile_known = false;
    zt_lifetimes_widened(&t.plan, TINY, 1, life);
    CHECK_INT(life[0].hi, 3); /* until before the second next compute op */
    CHECK_INT(life[1].hi, 5);
    CHECK_INT(life[2].hi, 7);
    tiny_release(&t);
}

/* D = 1 lets one REDUCE run beside BACKWARD, D = 2 two, ... */
TEST(backlog_limits_gradients_alive)
{
    enum { N = 8 };
    struct tiny t;
    struct zt_life life[N];
    tiny_init(&t, false);
    for (int i = 0; i < N; i++) {
        int g = tiny_buf(&t, "grad", 1);
        t.bufs[g].cat = ZT_CAT_GRAD;
        tiny_op_of(&t, ZT_OP_BACKWARD, COMPUTE, 1);
        tiny_use(&t, g, W);
        tiny_op_of(&t, ZT_OP_REDUCE, COMM, 10);
        tiny_use(&t, g, R);
    }
    for (int d = 1; d <= 4; d *= 2) {
        zt_lifetimes_widened(&t.plan, TINY, d, life);
        CHECK_INT(zt_live_bound(&t.plan, TINY, life, ZT_AR_DEVICE), (d + 1) * ZT_BUF_ALIGN);
        tiny_pack(&t, life);
        CHECK_INT(t.plan.ledger.peak[ZT_AR_DEVICE], (d + 1) * ZT_BUF_ALIGN);
    }
    tiny_release(&t);
}

static bool lives_meet(struct zt_life a, struct zt_life b, int n, bool repeats)
{
    for (int x = a.lo; x <= a.hi; x++)
        for (int y = b.lo; y <= b.hi; y++)
            if (repeats ? x % n == y % n : x == y)
                return true;
    return false;
}

TEST(packing_never_overlaps_live_buffers)
{
    for (unsigned seed = 0; seed < 300; seed++) {
        struct zt_philox_block r;
        struct tiny t;
        struct zt_life life[TINY_BUFS];
        int n_ops = 20, n_bufs = 2 + seed % (TINY_BUFS - 2);
        bool repeats = seed % 2;
        tiny_init(&t, repeats);
        tiny_persistent(&t, "fixed", 3);
        life[0] = (struct zt_life){0, n_ops - 1};
        for (int i = 1; i < n_bufs; i++) {
            r = zt_philox(seed, ZT_RNG_SAMPLE, 0, i);
            int b = tiny_buf_in(&t, "t", r.v[0] % 4 ? ZT_AR_DEVICE : ZT_AR_HOST, 1 + r.v[1] % 9);
            int lo = r.v[2] % n_ops, longest = repeats ? n_ops : n_ops - lo;
            life[b] = (struct zt_life){lo, lo + (int)(r.v[3] % ZT_MIN(longest, 8))};
        }
        for (int i = 0; i < n_ops; i++)
            tiny_op(&t, COMPUTE, 1);
        tiny_pack(&t, life);
        for (int i = 0; i < n_bufs; i++) {
            const struct zt_buf *x = &t.bufs[i];
            CHECK(x->offset + x->bytes <= t.plan.ledger.peak[x->arena]);
            for (int j = 0; j < i; j++) {
                const struct zt_buf *y = &t.bufs[j];
                if (x->arena == y->arena && x->offset < y->offset + y->bytes &&
                    y->offset < x->offset + x->bytes)
                    CHECK(!lives_meet(life[i], life[j], n_ops, repeats));
            }
        }
        for (int a = 0; a < ZT_N_ARENAS; a++)
            CHECK(t.plan.ledger.peak[a] >= zt_live_bound(&t.plan, TINY, life, a));
        tiny_release(&t);
    }
}

/* ---- simulator ---- */

TEST(simulator_by_hand)
{
    struct tiny t;
    struct zt_sim sim;
    tiny_init(&t, true);
    int param = tiny_persistent(&t, "param", 1), x = tiny_buf(&t, "x", 1);
    tiny_op(&t, COMPUTE, 3);
    tiny_use(&t, x, W);
    tiny_op(&t, COMM, 4);
    tiny_use(&t, x, R);
    tiny_op(&t, COMPUTE, 2);
    tiny_use(&t, param, RW);
    tiny_op_of(&t, ZT_OP_RELEASE, COMPUTE, 0);
    tiny_place(&t, x, 1);
    zt_derive_waits(&t.plan, TINY);
    zt_simulate(&t.plan, TINY, &tiny_profile, NULL, &sim);
    /* Op 0 of the next run overwrites x: after the send. Compute 0-3, 3-5; send 3-7; again at 7. */
    CHECK_NEAR(sim.step_s, 7, 1e-12);
    CHECK_NEAR(sim.critical_path_s, 7, 1e-12);
    CHECK_NEAR(sim.busy_s[COMPUTE], 5, 1e-12);
    CHECK_NEAR(sim.busy_s[COMM], 4, 1e-12);
    const double start[] = {0, 3, 3, 5}, finish[] = {3, 7, 5, 5};
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(sim.start_s[i], start[i], 1e-12);
        CHECK_NEAR(sim.finish_s[i], finish[i], 1e-12);
    }
    zt_sim_release(&sim);

    struct zt_wait_list l;
    zt_derive_waits_unlimited(&t.plan, TINY, &l);
    zt_simulate(&t.plan, TINY, &tiny_profile, &l, &sim);
    CHECK_NEAR(sim.step_s, 5, 1e-12); /* compute alone */
    CHECK_NEAR(sim.critical_path_s, 7, 1e-12);
    zt_sim_release(&sim);
    zt_wait_list_release(&l);
    tiny_release(&t);
}

TEST(simulator_costs)
{
    const struct zt_profile prof = {.flops = 10,
                                    .net = 20,
                                    .pcie = 30,
                                    .host = 40,
                                    .hbm = 50,
                                    .disk = 60,
                                    .latency = 0.5,
                                    .launch = 0.25};
    const double want[ZT_N_COSTS] = {0,
                                     1200. / 10 + .25,
                                     1200. * 3 / 4 / 20 + .5,
                                     1200. / 30 + .5,
                                     1200. / 40 + .25,
                                     1200. / 50 + .25,
                                     1200. / 60 + .5};
    for (int c = 0; c < ZT_N_COSTS; c++) {
        struct tiny t;
        struct zt_sim sim;
        tiny_init(&t, true);
        t.plan.cfg.mesh.size[ZT_AXIS_SHARD] = 4;
        int i = tiny_op(&t, COMM, 1200);
        t.prog->ops[i].cost_kind = c;
        t.prog->ops[i].group = ZT_GROUP_SHARD;
        zt_derive_waits(&t.plan, TINY);
        zt_simulate(&t.plan, TINY, &prof, NULL, &sim);
        CHECK_NEAR(sim.step_s, want[c], 1e-12);
        zt_sim_release(&sim);
        tiny_release(&t);
    }
}

TEST(profiles_have_names_and_rates)
{
    for (const struct zt_profile *p = zt_profiles; p->name; p++) {
        CHECK(zt_profile_find(p->name) == p);
        CHECK(p->flops > 0 && p->net > 0 && p->pcie > 0 && p->host > 0 && p->hbm > 0 &&
              p->disk > 0 && p->latency > 0 && p->launch > 0);
    }
    CHECK(zt_profile_find("fast") && zt_profile_find("slow") && zt_profile_find("cpu"));
    CHECK(!zt_profile_find("warp"));
}

/* ---- the passes together ---- */

/* Slow REDUCEs: with D = 1 compute waits, and the planner takes the smallest D that is enough. */
TEST(schedule_chooses_the_backlog)
{
    enum { N = 12 };
    for (int forced = 0; forced <= 1; forced++) {
        struct tiny t;
        tiny_init(&t, false);
        int param = tiny_persistent(&t, "param", 1);
        for (int i = 0; i < N; i++) {
            int g = tiny_buf(&t, "grad", 8);
            t.bufs[g].cat = ZT_CAT_GRAD;
            tiny_op_of(&t, ZT_OP_BACKWARD, COMPUTE, 1);
            tiny_use(&t, param, R);
            tiny_use(&t, g, W);
            tiny_op_of(&t, ZT_OP_REDUCE, COMM, i < 2 ? 2.5 : 0.1);
            tiny_use(&t, g, R);
        }
        zt_schedule_program(&t.plan, TINY, forced, t.base, t.plan.ledger.peak);
        CHECK_OK(zt_verify(&t.plan, &err), err);
        CHECK_NEAR(t.prog->time_unlimited_s, N + 0.1, 1e-9);
        CHECK_NEAR(t.prog->busiest_s, N, 1e-9);
        CHECK_INT(t.prog->backlog, forced ? 1 : 4);
        if (forced)
            CHECK(t.prog->time_s > 1.03 * t.prog->time_unlimited_s);
        else
            CHECK_NEAR(t.prog->time_s, t.prog->time_unlimited_s, 1e-9);
        tiny_release(&t);
    }
}

TEST_MAIN()
