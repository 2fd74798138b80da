#include "base/rng.h"
#include "harness.h"
#include "tiny.h"

/* ---- rules, one by one ---- */

/* x written by compute, sent by comm; y the same after it. Valid as it stands. */
static void make_pair(struct tiny *t, int *x, int *y)
{
    tiny_init(t, true);
    tiny_persistent(t, "param", 2);
    *x = tiny_buf(t, "x", 2);
    *y = tiny_buf(t, "y", 2);
    for (int i = 0; i < 2; i++) {
        tiny_op(t, COMPUTE, 1);
        tiny_use(t, i ? *y : *x, W);
        tiny_op(t, COMM, 1);
        tiny_use(t, i ? *y : *x, R);
    }
    tiny_place(t, 0, 0);
    tiny_place(t, *x, 2);
    tiny_place(t, *y, 4);
    zt_derive_waits(&t->plan, TINY);
}

TEST(rejects_missing_wait_by_name)
{
    struct tiny t;
    int x, y;
    make_pair(&t, &x, &y);
    check_proven(&t);
    t.prog->ops[1].n_waits = 0;
    check_rejected(&t, "FETCH (op 1 of train, on comm) uses 'x' and may run while FORWARD (op 0 of "
                       "train, on compute) still uses 'x'");
    tiny_release(&t);
}

TEST(rejects_impossible_waits)
{
    struct tiny t;
    int x, y;
    const struct zt_wait bad[] = {{0, 1}, {0, 3}, {0, -1}, {1, 4}, {2, 0}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++) {
        make_pair(&t, &x, &y);
        t.prog->waits[t.prog->ops[1].first_wait] = bad[i];
        check_rejected(&t, "cannot be");
        tiny_release(&t);
    }
    make_pair(&t, &x, &y);
    t.prog->repeats = false; /* then there is no run before */
    check_rejected(&t, "cannot be");
    tiny_release(&t);
}

TEST(rejects_live_transients_on_the_same_bytes)
{
    struct tiny t;
    tiny_init(&t, true);
    int x = tiny_buf(&t, "x", 2), y = tiny_buf(&t, "y", 2);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, W);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, y, W);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, y, R);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, RW);
    tiny_place(&t, x, 0);
    tiny_place(&t, y, 2);
    zt_derive_waits(&t.plan, TINY);
    CHECK_OK(zt_verify(&t.plan, &err), err);
    /* One stream: no happens-before is broken, only provenance. */
    tiny_place(&t, y, 1);
    zt_derive_waits(&t.plan, TINY);
    check_rejected(&t, "accumulates into byte 512 of 'x', overwritten by FORWARD (op 1");
    tiny_release(&t);
}

TEST(rejects_uninitialised_reads)
{
    struct tiny t;
    tiny_init(&t, true);
    int x = tiny_buf(&t, "x", 4);
    tiny_op(&t, COMPUTE, 1);
    tiny_range(&t, x, W, 0, 3);
    tiny_op(&t, COMPUTE, 1);
    tiny_range(&t, x, R, 1, 4);
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    check_rejected(&t, "reads byte 1536 of 'x', which no op of this run wrote");
    tiny_release(&t);

    tiny_init(&t, true); /* written, but only later: the second run would read the first one's */
    x = tiny_buf(&t, "x", 1);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, RW);
    tiny_set_peak(&t);
    zt_derive_waits(&t.plan, TINY);
    check_rejected(&t, "accumulates into byte 0 of 'x', which no op of this run wrote");
    tiny_release(&t);
}

/* UPDATE may be skipped; an op that runs all the same must not read what it would have written. */
TEST(rejects_reads_of_a_skipped_op)
{
    for (int reader = ZT_ALWAYS; reader <= ZT_IF_APPLY; reader++) {
        struct tiny t;
        int x, y;
        make_pair(&t, &x, &y);
        t.prog->ops[0].predicate = ZT_IF_APPLY;
        t.prog->ops[1].predicate = reader;
        if (reader == ZT_IF_APPLY)
            CHECK_OK(zt_verify(&t.plan, &err), err);
        else
            check_rejected(&t, "reads byte 0 of 'x', written by FORWARD (op 0 of train, on "
                               "compute), which may be skipped");
        tiny_release(&t);
    }
}

TEST(rejects_aliasing_operands)
{
    struct tiny t;
    tiny_init(&t, false);
    int x = tiny_buf(&t, "x", 2), y = tiny_buf(&t, "y", 2);
    tiny_op(&t, COMPUTE, 1);
    tiny_use(&t, x, W);
    tiny_use(&t, y, W);
    tiny_place(&t, x, 0);
    tiny_place(&t, y, 1);
    check_rejected(&t, "operands [0, 1024) of 'x' and [0, 1024) of 'y' share bytes");
    tiny_release(&t);

    for (int mode = R; mode <= RW; mode++) {
        tiny_init(&t, false);
        x = tiny_persistent(&t, "x", 3);
        tiny_op(&t, COMPUTE, 1);
        tiny_range(&t, x, R, 0, 2);
        tiny_range(&t, x, mode, 1, 3);
        tiny_set_peak(&t);
        if (mode == R)
            CHECK_OK(zt_verify(&t.plan, &err), err);
        else
            check_rejected(&t, "[0, 1024) of 'x' and [512, 1536) of 'x' share bytes");
        tiny_release(&t);
    }
}

TEST(rejects_what_lies_outside)
{
    struct tiny t;
    int x, y;
    make_pair(&t, &x, &y);
    t.plan.ledger.peak[ZT_AR_DEVICE] -= ZT_BUF_ALIGN;
    check_rejected(&t, "buffer 'y' at 2048, 1024 bytes, passes the arena's 2560");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.bufs[y].offset = SIZE_MAX - ZT_BUF_ALIGN + 1;
    check_rejected(&t, "passes the arena");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.bufs[y].offset += 64;
    check_rejected(&t, "not aligned");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.prog->accesses[1].end++;
    check_rejected(&t, "range [0, 1025) of 'x', which has 1024 bytes");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.bufs[x].offset = ZT_BUF_ALIGN;
    zt_derive_waits(&t.plan, TINY);
    check_rejected(&t,
                   "'param' [0, 1024) and 'x' [512, 1536) overlap, and the former is persistent");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.bufs[y].program = -1;
    t.bufs[y].offset = ZT_BUF_ALIGN;
    check_rejected(&t, "is persistent");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.bufs[x].program = ZT_PROG_EVAL;
    check_rejected(&t, "'x' belongs to another program");
    tiny_release(&t);
    make_pair(&t, &x, &y);
    t.bufs[x].arena = ZT_AR_DISK;
    t.bufs[x].bytes = t.plan.ledger.peak[ZT_AR_DISK] = ZT_DISK_BUF_ALIGN;
    t.bufs[x].offset = 0;
    check_rejected(&t, "'x' lies on the disk, which only READ and WRITE reach");
    t.prog->ops[0].kind = t.prog->ops[1].kind = ZT_OP_WRITE;
    t.bufs[x].bytes -= ZT_BUF_ALIGN;
    check_rejected(&t, "not aligned");
    tiny_release(&t);
}

TEST(rejects_undeclared_collective_operands)
{
    struct tiny t;
    for (int missing = 0; missing < 3; missing++) {
        tiny_init(&t, false);
        t.plan.cfg.mesh.size[ZT_AXIS_SHARD] = 2;
        int x = tiny_persistent(&t, "x", 1), y = tiny_persistent(&t, "y", 2);
        int i = tiny_op_of(&t, ZT_OP_GATHER, COMM, 1);
        t.prog->ops[i].group = ZT_GROUP_SHARD;
        t.prog->ops[i].count = ZT_BUF_ALIGN / 4;
        if (missing != 1)
            tiny_use(&t, x, R);
        if (missing != 2)
            tiny_use(&t, y, W);
        tiny_set_peak(&t);
        if (missing)
            check_rejected(&t, missing == 1 ? "no operand that it sends, 512 bytes"
                                            : "no operand that it receives, 512 bytes");
        else
            CHECK_OK(zt_verify(&t.plan, &err), err);
        t.prog->ops[i].count++;
        check_rejected(&t, missing == 2 ? "is declared" : "no operand that it sends, 516 bytes");
        tiny_release(&t);
    }
}

/* ---- random programs ---- */

static unsigned draw(uint64_t seed, uint64_t *i, unsigned n)
{
    return zt_philox(seed, ZT_RNG_DROPOUT, 1, (*i)++).v[0] % n;
}

/*
 * Random streams, ranges, lifetimes and reuse of bytes, valid in list order: a transient's first op
 * writes all of it. Persistent buffers are read and written anyhow.
 */
static void make_random(struct tiny *t, uint64_t seed)
{
    uint64_t d = 0;
    int begun[TINY_BUFS] = {0}, n_persistent = 1 + draw(seed, &d, 4);
    int n_bufs = n_persistent + 1 + draw(seed, &d, 12), n_ops = 5 + draw(seed, &d, 60);
    tiny_init(t, draw(seed, &d, 4) > 0);
    for (int i = 0; i < n_persistent; i++)
        begun[tiny_persistent(t, "p", 1 + draw(seed, &d, 4))] = 2;
    for (int i = n_persistent; i < n_bufs; i++)
        tiny_buf_in(t, "t", draw(seed, &d, 4) ? ZT_AR_DEVICE : ZT_AR_HOST, 1 + draw(seed, &d, 6));
    for (int i = 0; i < n_ops; i++) {
        int n = 1 + draw(seed, &d, 3), used = -1;
        tiny_op(t, draw(seed, &d, ZT_N_STREAMS), 1 + draw(seed, &d, 5));
        for (int j = 0; j < n; j++) {
            int b = draw(seed, &d, n_bufs), blocks = (int)(t->bufs[b].bytes / ZT_BUF_ALIGN);
            if (b <= used) /* ascending: no buffer twice */
                continue;
            used = b;
            int begin = draw(seed, &d, blocks), end = begin + 1 + draw(seed, &d, blocks - begin);
            if (begun[b])
                tiny_range(t, b, 1 + draw(seed, &d, 3), begin, end);
            else
                tiny_use(t, b, W);
            begun[b] = 1;
        }
    }
}

static bool conflict(const struct tiny *t, const struct zt_op *x, const struct zt_op *y)
{
    for (int i = x->first_access; i < x->first_access + x->n_accesses; i++) {
        for (int j = y->first_access; j < y->first_access + y->n_accesses; j++) {
            const struct zt_access *a = &t->prog->accesses[i], *b = &t->prog->accesses[j];
            const struct zt_buf *p = &t->bufs[a->buf], *q = &t->bufs[b->buf];
            if (((a->mode | b->mode) & W) && p->arena == q->arena &&
                p->offset + a->begin < q->offset + b->end &&
                q->offset + b->begin < p->offset + a->end)
                return true;
        }
    }
    return false;
}

/*
 * All pairs over three runs, by reachability: is every conflicting pair ordered without wait
 * `omit`? Shares nothing with clocks.
 */
static bool brute_force(const struct tiny *t, int omit)
{
    int n = t->prog->n_ops, total = n * (t->prog->repeats ? 3 : 1);
    bool *before = zt_xcalloc((size_t)total * total, sizeof *before), ok = true;
    for (int g = 0; g < total; g++) {
        const struct zt_op *op = &t->prog->ops[g % n];
        bool *mine = before + (size_t)g * total;
        for (int f = g - 1; f >= 0; f--) {
            bool edge = t->prog->ops[f % n].stream == op->stream;
            for (int w = op->first_wait; w < op->first_wait + op->n_waits; w++)
                edge |= w != omit && g / n - t->prog->waits[w].delta == f / n &&
                        t->prog->waits[w].op == f % n;
            if (!edge || mine[f])
                continue;
            mine[f] = true;
            for (int e = 0; e < f; e++)
                mine[e] |= before[(size_t)f * total + e];
        }
        for (int f = 0; f < g; f++)
            ok &= mine[f] || !conflict(t, &t->prog->ops[f % n], op);
    }
    free(before);
    return ok;
}

TEST(random_programs_are_proven_and_every_mutant_rejected)
{
    int n_waits = 0, n_wrapped = 0;
    for (unsigned seed = 0; seed < 400; seed++) {
        struct tiny t;
        struct zt_life life[TINY_BUFS];
        make_random(&t, seed);
        if (seed % 2)
            zt_lifetimes_plain(&t.plan, TINY, life);
        else
            zt_lifetimes_widened(&t.plan, TINY, 1, life);
        for (int b = 0; b < t.plan.n_bufs; b++)
            n_wrapped += life[b].hi >= t.prog->n_ops;
        tiny_pack(&t, life);
        zt_derive_waits(&t.plan, TINY);
        check_proven(&t);
        RETURN_IF_FAILED();
        if (!brute_force(&t, -1))
            FAIL("seed %u: brute force finds a race", seed);
        n_waits += t.prog->n_waits;
        tiny_release(&t);
    }
    CHECK(n_waits > 5000 && n_wrapped > 100);
}

/*
 * Waits taken away at random, several at a time: verifier and brute force agree on every program.
 */
TEST(verifier_agrees_with_brute_force)
{
    int n_good = 0, n_bad = 0;
    for (unsigned seed = 0; seed < 300; seed++) {
        struct tiny t;
        struct zt_life life[TINY_BUFS];
        struct zt_verifier *v;
        uint64_t d = 0;
        make_random(&t, seed);
        zt_lifetimes_plain(&t.plan, TINY, life);
        tiny_pack(&t, life);
        zt_derive_waits(&t.plan, TINY);
        /* Random waits more, of which some are implied: leaving one out may be harmless. */
        for (int w = 0; w < t.prog->n_waits; w++) {
            int op = 0;
            while (t.prog->ops[op].first_wait + t.prog->ops[op].n_waits <= w)
                op++;
            if (op && !draw(seed + 1000, &d, 40))
                t.prog->waits[w] = (struct zt_wait){0, (int)draw(seed + 1000, &d, op)};
        }
        CHECK_OK(zt_verifier_create(&t.plan, TINY, &v, &err), err);
        for (int w = -1; w < t.prog->n_waits; w++) {
            bool proven = !zt_verifier_check_waits(v, w, &err);
            if (proven != brute_force(&t, w))
                FAIL("seed %u, without wait %d: the verifier says %d", seed, w, proven);
            n_good += proven;
            n_bad += !proven;
        }
        zt_verifier_free(v);
        tiny_release(&t);
    }
    CHECK(n_good > 50 && n_bad > 1000);
}

/*
 * Offsets moved so that two transients share bytes while one waits to be read: the waits derived
 * for that place make it free of races, and only provenance can tell.
 */
TEST(random_misplacements_are_rejected)
{
    int planted = 0;
    for (unsigned seed = 0; seed < 300; seed++) {
        struct tiny t;
        struct zt_life life[TINY_BUFS];
        make_random(&t, seed);
        zt_lifetimes_plain(&t.plan, TINY, life);
        tiny_pack(&t, life);
        for (int x = 0; x < t.plan.n_bufs; x++) {
            for (int y = 0; y < t.plan.n_bufs; y++) {
                struct zt_buf *a = &t.bufs[x], *b = &t.bufs[y];
                /* y begins inside x's life, and the op that ends it reads x's first block */
                if (x == y || a->program < 0 || b->program < 0 || a->arena != b->arena ||
                    life[x].hi < 0 || life[y].lo <= life[x].lo || life[y].lo >= life[x].hi)
                    continue;
                const struct zt_op *end = &t.prog->ops[life[x].hi];
                bool reads_start = false, rewritten = false;
                for (int i = 0; i < t.prog->n_accesses; i++) {
                    const struct zt_access *acc = &t.prog->accesses[i];
                    bool at_start = acc->buf == x && acc->begin == 0;
                    if (i >= end->first_access && i < end->first_access + end->n_accesses)
                        reads_start |= at_start && (acc->mode & R);
                    else if (i >= t.prog->ops[life[y].lo].first_access)
                        rewritten |= at_start && (acc->mode & W);
                }
                if (!reads_start || rewritten)
                    continue;
                size_t was = b->offset;
                b->offset = a->offset;
                tiny_set_peak(&t);
                zt_derive_waits(&t.plan, TINY);
                CHECK_INT(zt_verify(&t.plan, &err), ZT_EVERIFY);
                planted++;
                b->offset = was;
            }
        }
        tiny_release(&t);
    }
    CHECK(planted > 100);
}

/* ---- across ranks ---- */

static void add_collective(struct tiny *t, enum zt_stream_id s, int buf, zt_axes group, int count)
{
    int i = tiny_op_of(t, ZT_OP_VOTE, s, 1);
    t->prog->ops[i].group = group;
    t->prog->ops[i].count = count;
    tiny_use(t, buf, RW);
}

/*
 * Two ranks along `shard`; each makes three all-reduces, of different counts unless told otherwise.
 */
static void make_ranks(struct tiny t[2], const int counts[2][3])
{
    for (int r = 0; r < 2; r++) {
        tiny_init(&t[r], true);
        t[r].plan.cfg.mesh.size[ZT_AXIS_SHARD] = 2;
        t[r].plan.rank = r;
        int b = tiny_persistent(&t[r], "b", 1);
        for (int i = 0; i < 3; i++)
            if (counts[r][i])
                add_collective(&t[r], COMM, b, ZT_GROUP_SHARD, counts[r][i]);
        tiny_set_peak(&t[r]);
        zt_derive_waits(&t[r].plan, TINY);
    }
}

/* One by one all are like the first: only where they also agree together. */
static bool are_like_the_first(const struct zt_plan *const *plans, int n)
{
    bool like = zt_verify_ranks(plans, 1, &err) == 0;
    for (int r = 1; r < n && like; r++)
        like = zt_verify_like(plans[0], plans[r], &err) == 0;
    return like;
}

static void check_ranks(struct tiny *t, int n, const char *why)
{
    const struct zt_plan *plans[4];
    for (int r = 0; r < n; r++) {
        CHECK_OK(zt_verify(&t[r].plan, &err), err);
        plans[r] = &t[r].plan;
    }
    CHECK(!why || !are_like_the_first(plans, n));
    int rc = zt_verify_ranks(plans, n, &err);
    if (!why)
        CHECK_OK(rc, err);
    else if (rc != ZT_EVERIFY || !strstr(err.msg, why))
        FAIL("\"%s\" does not say \"%s\"", rc ? err.msg : "accepted", why);
    for (int r = 0; r < n; r++)
        tiny_release(&t[r]);
}

TEST(ranks_make_the_same_calls)
{
    struct tiny t[2];
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    check_ranks(t, 2, NULL);
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 3, 2}});
    check_ranks(t, 2,
                "collective 1 of a group: rank 0 has VOTE (op 1 of train, on comm), 2 x fp32, "
                "rank 1 has VOTE (op 1 of train, on comm), 3 x fp32");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 0}});
    check_ranks(t, 2, "rank 0 has VOTE (op 2 of train, on comm), rank 1 has none");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    t[1].prog->ops[1].dtype = ZT_BF16;
    check_ranks(t, 2, "2 x bf16");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    t[1].prog->ops[2].kind = ZT_OP_NORM;
    check_ranks(t, 2, "collective 2 of a group");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    t[1].prog->ops[2].predicate = ZT_IF_APPLY;
    check_ranks(t, 2, "collective 2 of a group");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    t[1].prog->ops[2].stream = IN;
    zt_derive_waits(&t[1].plan, TINY);
    check_ranks(t, 2, "one group on two streams");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    t[1].plan.rank = 0;
    check_ranks(t, 2, "two plans of rank 0");
    make_ranks(t, (const int[2][3]){{1, 2, 3}, {1, 2, 3}});
    t[1].plan.ledger.peak[ZT_AR_HOST] += ZT_BUF_ALIGN;
    check_ranks(t, 2, "bytes on rank 0");
}

/* The same calls in the same order are needed of each rank, and said. */
TEST(ranks_are_like_the_first)
{
    static const int counts[][3] = {{1, 2, 3}, {1, 3, 2}, {1, 2, 0}};
    static const char *const why[] = {
        NULL,
        "collective 1 of train: rank 0 has VOTE (op 1 of train, on comm), rank 1 has VOTE (op 1 of "
        "train, on comm), which differ",
        "collective 2 of train: rank 0 has VOTE (op 2 of train, on comm), rank 1 has no more"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(counts); i++) {
        struct tiny t[2];
        make_ranks(t, (const int[2][3]){{1, 2, 3}, {counts[i][0], counts[i][1], counts[i][2]}});
        const int rc = zt_verify_like(&t[0].plan, &t[1].plan, &err);
        CHECK_INT(rc, why[i] ? ZT_EVERIFY : 0);
        CHECK(!why[i] || strcmp(err.msg, why[i]) == 0);
        tiny_release(&t[0]);
        tiny_release(&t[1]);
    }
}

/*
 * Four ranks, replicate x shard. Every group sees one call, so all orders inside groups agree; but
 * rank 0 shards first and rank 1 replicates first, and so on round: nobody can start.
 */
TEST(ranks_have_no_cycle_among_groups)
{
    for (int crossed = 0; crossed < 3; crossed++) {
        struct tiny t[4];
        for (int r = 0; r < 4; r++) {
            tiny_init(&t[r], true);
            t[r].plan.cfg.mesh.size[ZT_AXIS_REPLICATE] = 2;
            t[r].plan.cfg.mesh.size[ZT_AXIS_SHARD] = 2;
            t[r].plan.rank = r;
            int a = tiny_persistent(&t[r], "a", 1), b = tiny_persistent(&t[r], "b", 1);
            /* Two streams and no common bytes: then either order does. */
            enum zt_stream_id other = crossed == 2 ? IN : COMM;
            bool shard_first = crossed == 0 || r == 0 || r == 3;
            add_collective(&t[r], shard_first ? COMM : other, shard_first ? a : b,
                           shard_first ? ZT_GROUP_SHARD : ZT_GROUP_REPLICATE, 1);
            add_collective(&t[r], shard_first ? other : COMM, shard_first ? b : a,
                           shard_first ? ZT_GROUP_REPLICATE : ZT_GROUP_SHARD, 1);
            tiny_set_peak(&t[r]);
            zt_derive_waits(&t[r].plan, TINY);
        }
        check_ranks(t, 4, crossed == 1 ? "wait for each other for ever" : NULL);
    }
}

/* The same through a wait: the calls are on two streams, which an op between them ties together. */
TEST(ranks_have_no_cycle_through_waits)
{
    struct tiny t[4];
    for (int r = 0; r < 4; r++) {
        tiny_init(&t[r], true);
        t[r].plan.cfg.mesh.size[ZT_AXIS_REPLICATE] = 2;
        t[r].plan.cfg.mesh.size[ZT_AXIS_SHARD] = 2;
        t[r].plan.rank = r;
        int b = tiny_persistent(&t[r], "b", 1);
        bool shard_first = r == 0 || r == 3;
        add_collective(&t[r], shard_first ? COMM : IN, b,
                       shard_first ? ZT_GROUP_SHARD : ZT_GROUP_REPLICATE, 1);
        tiny_op(&t[r], COMPUTE, 1);
        tiny_use(&t[r], b, RW);
        add_collective(&t[r], shard_first ? IN : COMM, b,
                       shard_first ? ZT_GROUP_REPLICATE : ZT_GROUP_SHARD, 1);
        tiny_set_peak(&t[r]);
        zt_derive_waits(&t[r].plan, TINY);
    }
    check_ranks(t, 4, "wait for each other for ever");
}

TEST_MAIN()
