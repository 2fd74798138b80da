/*
 * calls.h: every collective, by every number of ranks, against a scalar reference. The tests of each
 * transport include it, so that all give the same bits.
 */
#ifndef ZT_TEST_COLL_CALLS_H
#define ZT_TEST_COLL_CALLS_H

#include "ranks.h"
#include "values.h"

#include "coll/stream.h"

#include "harness.h"

#ifdef __SANITIZE_THREAD__
enum { LARGE = 100003 };
#else
enum { LARGE = 1000003 };
#endif

static const int64_t counts[] = {0, 1, 63, 4099, LARGE};

#define RANK_RIGHT(r, index)                                                                       \
    do {                                                                                           \
        int64_t i_ = (index);                                                                      \
        if (i_ >= 0)                                                                               \
            RANK_FAIL(r, "element %lld of %lld is wrong (%s)", (long long)i_, (long long)count,    \
                      zt_dtype_name(t));                                                           \
    } while (0)

static void *shared(struct test_rank *r, size_t bytes)
{
    void *p = NULL;
    if (r->coll->ops->alloc_shared(r->coll, bytes, &p, &r->stream.err))
        return NULL;
    return p;
}

static int wait_for_all(struct test_rank *r)
{
    return r->coll->ops->barrier(r->coll, &r->stream.err) || rank_done(r);
}

/* The large count only for the types that training moves much of. */
static bool skipped(int64_t count, enum zt_dtype t)
{
    return count == LARGE && t != ZT_F32 && t != ZT_BF16;
}

static void body_all_reduce(struct test_rank *r)
{
    char *a = shared(r, (LARGE + 64) * sizeof(float)), *b = shared(r, (LARGE + 64) * sizeof(float));
    char *own = malloc((LARGE + 64) * sizeof(float));
    RANK_CHECK(r, a && b && own);
    for (int v = 0; v < 3 * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts) * 2; v++) {
        int64_t count = counts[v / 3 / ZT_N_DTYPES / 2];
        enum zt_dtype t = (enum zt_dtype)(v / 3 % ZT_N_DTYPES);
        enum zt_redop op = v / 3 / ZT_N_DTYPES % 2 ? ZT_MAX : ZT_SUM;
        char *send = a + zt_dtype_bytes(t); /* not aligned to more than its elements */
        /* in place; to shared memory; rank 0 to its own memory, the others in place */
        char *recv = v % 3 == 0 ? send : v % 3 == 1 ? b : r->rank == 0 ? own : send;
        if (skipped(count, t))
            continue;
        fill(send, t, r->rank, 0, count);
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, send, recv, count, t, op);
        RANK_OK(r, rank_done(r));
        RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, recv, t, t, op, 0, count));
    }
    free(own);
}

static void body_reduce_scatter(struct test_rank *r)
{
    static const enum zt_dtype types[][2] = {{ZT_F32, ZT_F32},  {ZT_BF16, ZT_BF16},
                                             {ZT_BF16, ZT_F32}, {ZT_F16, ZT_F16},
                                             {ZT_F16, ZT_F32},  {ZT_I64, ZT_I64}};
    char *a = shared(r, (size_t)(LARGE + 8 * 4100) * 8);
    char *own = malloc((LARGE + 64) * sizeof(float));
    RANK_CHECK(r, a && own);
    for (int v = 0; v < 2 * (int)ZT_ARRAY_LEN(types) * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = types[v / 2 % ZT_ARRAY_LEN(types)][0];
        enum zt_dtype to = types[v / 2 % ZT_ARRAY_LEN(types)][1];
        int64_t count = counts[v / 2 / (int)ZT_ARRAY_LEN(types)];
        bool in_place = v % 2 && t == to;
        if (skipped(count, t))
            continue;
        if (count == LARGE)
            count /= r->n;
        char *recv = in_place ? a + (size_t)(count * r->rank) * zt_dtype_bytes(t) : own;
        fill(a, t, r->rank, 0, count * r->n);
        zt_reduce_scatter(r->coll, &r->stream, ZT_GROUP_SHARD, a, t, recv, to, count);
        RANK_OK(r, rank_done(r));
        RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, recv, t, to, ZT_SUM,
                                    count * r->rank, count));
    }
    free(own);
}

static void body_all_gather(struct test_rank *r)
{
    size_t bytes = (size_t)(LARGE + 8 * 4100) * 8;
    char *a = shared(r, bytes), *own = malloc(bytes);
    RANK_CHECK(r, a && own);
    for (int v = 0; v < 2 * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = (enum zt_dtype)(v / 2 % ZT_N_DTYPES);
        int64_t count = counts[v / 2 / ZT_N_DTYPES];
        if (skipped(count, t))
            continue;
        if (count == LARGE)
            count /= r->n;
        size_t part = (size_t)count * zt_dtype_bytes(t);
        char *send = v % 2 ? a + part * (size_t)r->rank : a, *recv = v % 2 ? a : own;
        fill(send, t, r->rank, 0, count);
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, send, recv, count, t);
        RANK_OK(r, rank_done(r));
        for (int j = 0; j < r->n; j++)
            RANK_RIGHT(r, wrong_copied(recv + part * (size_t)j, t, j, 0, count));
    }
    free(own);
}

static void body_broadcast(struct test_rank *r)
{
    char *a = shared(r, LARGE * sizeof(float)), *own = malloc(LARGE * sizeof(float));
    RANK_CHECK(r, a && own);
    for (int v = 0; v < r->n * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = (enum zt_dtype)(v / r->n % ZT_N_DTYPES);
        int64_t count = counts[v / r->n / ZT_N_DTYPES];
        int root = v % r->n;
        if (skipped(count, t))
            continue;
        char *buf = r->rank == root ? a : own;
        fill(buf, t, r->rank, 0, count);
        zt_broadcast(r->coll, &r->stream, ZT_GROUP_SHARD, buf, count, t, root);
        RANK_OK(r, rank_done(r));
        RANK_RIGHT(r, wrong_copied(buf, t, root, 0, count));
    }
    free(own);
}

/* Rank i sends (i + j) * 37 % 101 elements, beginning with its element 1000 * j, to rank j. */
static void body_all_to_all(struct test_rank *r)
{
    enum { STRIDE = 120 };
    const enum zt_dtype t = ZT_BF16;
    uint16_t *a = shared(r, (size_t)r->n * STRIDE * 2), got[8 * STRIDE];
    int64_t out[8], in[8];
    RANK_CHECK(r, a);
    memset(got, 255, sizeof got);
    for (int j = 0; j < r->n; j++) {
        in[j] = out[j] = (r->rank + j) * 37 % 101;
        fill(a + j * STRIDE, t, r->rank, 1000 * j, out[j]);
    }
    for (int again = 0; again < 2; again++) {
        zt_all_to_all(r->coll, &r->stream, ZT_GROUP_SHARD, a, out, got, in, STRIDE, t);
        RANK_OK(r, rank_done(r));
        for (int j = 0; j < r->n; j++) {
            int64_t count = in[j];
            RANK_RIGHT(r, wrong_copied(got + j * STRIDE, t, j, 1000 * r->rank, count));
            RANK_CHECK(r, got[j * STRIDE + count] == 65535);
        }
    }
}

/* Around a ring, then a message to everybody from everybody lower. */
static void body_messages(struct test_rank *r)
{
    const enum zt_dtype t = ZT_F32;
    float *a = shared(r, LARGE * sizeof(float)), *got = malloc(LARGE * sizeof(float));
    RANK_CHECK(r, a && got);
    for (int v = 0; v < (int)ZT_ARRAY_LEN(counts); v++) {
        int64_t count = counts[v];
        int after = (r->rank + 1) % r->n, last = (r->rank + r->n - 1) % r->n;
        fill(a, t, r->rank, 0, count);
        for (int half = 0; half < 2; half++) {
            if ((r->rank == 0) == (half == 0))
                zt_send(r->coll, &r->stream, ZT_GROUP_SHARD, a, count, t, after);
            else
                zt_recv(r->coll, &r->stream, ZT_GROUP_SHARD, got, count, t, last);
            RANK_OK(r, rank_done(r));
        }
        RANK_RIGHT(r, wrong_copied(got, t, last, 0, count));
    }
    int64_t count = 10;
    for (int from = 0; from < r->n; from++) {
        for (int to = from + 1; to < r->n; to++) {
            if (r->rank == from)
                zt_send(r->coll, &r->stream, ZT_GROUP_WORLD, a, count, t, to);
            if (r->rank != to)
                continue;
            zt_recv(r->coll, &r->stream, ZT_GROUP_WORLD, got, count, t, from);
            RANK_OK(r, rank_done(r));
            RANK_RIGHT(r, wrong_copied(got, t, from, 0, count));
        }
    }
    free(got);
}

/* An all-reduce is a reduce-scatter and an all-gather, to the bit: small, large, streamed. */
static void body_identity(struct test_rank *r)
{
    static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};
    const int64_t parts[] = {100, 40000, STREAM_MIN_BYTES / 4 + 64};
    int n_parts = r->n == 2 ? 3 : 2;
    size_t bytes = (size_t)(r->n * parts[n_parts - 1]) * sizeof(float);
    char *a = shared(r, bytes), *b = shared(r, bytes);
    RANK_CHECK(r, a && b);
    for (int v = 0; v < (int)ZT_ARRAY_LEN(types) * n_parts; v++) {
        enum zt_dtype t = types[v / n_parts];
        int64_t count = parts[v % n_parts];
        char *part = b + (size_t)(count * r->rank) * zt_dtype_bytes(t);
        fill(a, t, r->rank, 0, count * r->n);
        fill(b, t, r->rank, 0, count * r->n);
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, count * r->n, t, ZT_SUM);
        zt_reduce_scatter(r->coll, &r->stream, ZT_GROUP_SHARD, b, t, part, t, count);
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, part, b, count, t);
        RANK_OK(r, rank_done(r));
        RANK_CHECK(r, !memcmp(a, b, (size_t)(count * r->n) * zt_dtype_bytes(t)));
    }
}

/*
 * On a 2 x 3 mesh: while one shard group reduces and scatters, the other gathers, and the replicate
 * groups do things of their own; with the whole world in between.
 */
static void body_groups(struct test_rank *r)
{
    const enum zt_dtype t = ZT_F32;
    enum { MAX = 30000 };
    float *a = shared(r, MAX * sizeof(float)), *b = shared(r, MAX * sizeof(float));
    int coords[ZT_N_AXES];
    RANK_CHECK(r, a && b);
    zt_mesh_coords(&r->mesh, r->rank, coords);
    int replica = coords[ZT_AXIS_REPLICATE], shard = coords[ZT_AXIS_SHARD];
    for (int round = 0; round < 20; round++) {
        int64_t count = 1 + round * 400;
        fill(a, t, r->rank, 0, 3 * count);
        if (replica == 0) {
            zt_reduce_scatter(r->coll, &r->stream, ZT_GROUP_SHARD, a, t, b, t, count);
            RANK_OK(r, rank_done(r));
            RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, b, t, t, ZT_SUM,
                                        shard * count, count));
        } else {
            for (int again = 0; again < 3; again++)
                zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, b, count + 1, t);
            RANK_OK(r, rank_done(r));
            for (int j = 0; j < 3; j++)
                RANK_RIGHT(r, wrong_copied(b + j * (count + 1), t, 3 + j, 0, count + 1));
        }
        if (shard == 1) {
            zt_broadcast(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, count, t, 1);
            RANK_OK(r, rank_done(r));
            RANK_RIGHT(r, wrong_copied(a, t, 4, 0, count));
        } else {
            zt_all_reduce(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, b, count, t, ZT_MAX);
            RANK_OK(r, rank_done(r));
            RANK_RIGHT(
                r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_REPLICATE, b, t, t, ZT_MAX, 0, count));
        }
        fill(b, t, r->rank, 0, count);
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_WORLD, b, b, count, t, ZT_SUM);
        RANK_OK(r, rank_done(r));
        RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_WORLD, b, t, t, ZT_SUM, 0, count));
    }
}

/* Output complete means that peers have read: the next call may overwrite the input at once. */
static void body_reuse(struct test_rank *r)
{
    const enum zt_dtype t = ZT_I64;
    int64_t *a = shared(r, 3000 * sizeof(int64_t)), b[8 * 300], count = 300;
    RANK_CHECK(r, a);
    for (int round = 0; round < 300; round++) {
        for (int64_t i = 0; i < count; i++)
            a[i] = r->rank * 1000000 + round * 1000 + i;
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, b, count, t);
        RANK_OK(r, rank_done(r));
        for (int j = 0; j < r->n; j++)
            for (int64_t i = 0; i < count; i++)
                RANK_CHECK(r, b[j * count + i] == j * 1000000 + round * 1000 + i);
    }
    RANK_OK(r, wait_for_all(r));
}

/* A group of one copies or does nothing, from any memory, and waits for nobody. */
static void body_alone(struct test_rank *r)
{
    uint16_t a[100], b[100];
    float wide[100];
    int64_t n = 70;
    fill(a, ZT_BF16, 3, 0, 100);
    for (int kind = 0; kind < 4; kind++) {
        memset(b, 0, sizeof b);
        if (kind == 0)
            zt_all_reduce(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, b, n, ZT_BF16, ZT_SUM);
        else if (kind == 1)
            zt_all_gather(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, b, n, ZT_BF16);
        else if (kind == 2)
            zt_reduce_scatter(r->coll, &r->stream, 0, a, ZT_BF16, b, ZT_BF16, n);
        else
            zt_all_to_all(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, &n, b, &n, 100, ZT_BF16);
        RANK_OK(r, rank_done(r));
        RANK_CHECK(r, !memcmp(a, b, (size_t)n * 2) && b[n] == 0);
    }
    zt_broadcast(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, n, ZT_BF16, 0);
    zt_reduce_scatter(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, ZT_BF16, wide, ZT_F32, n);
    RANK_OK(r, rank_done(r));
    for (int i = 0; i < n; i++)
        RANK_CHECK(r, wide[i] == zt_bf16_to_f32(a[i]));
}

#define TEST_RANKS(name)                                                                           \
    TEST(name##_by_2_ranks)                                                                        \
    {                                                                                              \
        CHECK_RANKS(1, 2, body_##name);                                                            \
    }                                                                                              \
    TEST(name##_by_3_ranks)                                                                        \
    {                                                                                              \
        CHECK_RANKS(1, 3, body_##name);                                                            \
    }                                                                                              \
    TEST(name##_by_5_ranks)                                                                        \
    {                                                                                              \
        CHECK_RANKS(1, 5, body_##name);                                                            \
    }                                                                                              \
    TEST(name##_by_8_ranks)                                                                        \
    {                                                                                              \
        CHECK_RANKS(1, 8, body_##name);                                                            \
    }

TEST_RANKS(all_reduce)
TEST_RANKS(reduce_scatter)
TEST_RANKS(all_gather)
TEST_RANKS(broadcast)
TEST_RANKS(all_to_all)
TEST_RANKS(messages)
TEST_RANKS(identity)
TEST_RANKS(reuse)

TEST(groups_of_a_2_by_3_mesh_at_once)
{
    CHECK_RANKS(2, 3, body_groups);
}

TEST(a_group_of_one_copies)
{
    CHECK_RANKS(1, 1, body_alone);
    CHECK_RANKS(1, 2, body_alone);
}

#endif
