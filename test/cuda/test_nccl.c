/*
 * Collectives by NCCL. On the simulator by 2 to 4 ranks, as threads or as processes, with the bits of the
 * CPU, as the simulator adds up as it does. On a GPU by as many ranks as there are GPUs, within what NCCL
 * rounds.
 */
#include "nccl_ranks.h"

#include "unit/coll/values.h"

#ifdef __SANITIZE_THREAD__
enum { LARGE = 70001 };
#else
enum { LARGE = 300007 }; /* more than the simulator moves at once */
#endif

/* What `rank` would give, on the device. */
static int give(struct rank *r, struct box *b, enum zt_dtype t, int64_t from, int64_t n)
{
    fill(b->host, t, r->rank, from, n);
    return move(r, b->dev, b->host, (size_t)n * zt_dtype_bytes(t));
}

static int fetch(struct rank *r, struct box *b)
{
    return move(r, b->host, b->dev, b->bytes);
}

/* How far a sum may be off: NCCL rounds after each hop, and adds in an order of its own. */
static bool near(const void *p, const void *want, enum zt_dtype t)
{
    if (memcmp(p, want, zt_dtype_bytes(t)) == 0)
        return true;
#ifdef ZT_CUSIM
    return false;
#else
    if (t != ZT_F32 && t != ZT_BF16 && t != ZT_F16)
        return false;
    float a = as_f32(p, t), b = as_f32(want, t);
    return fabsf(a - b) <= (t == ZT_F32 ? 1e-5f : 0.04f) * (1.0f + fabsf(b));
#endif
}

static int64_t wrong_sum(struct rank *r, zt_axes group, const char *p, enum zt_dtype t,
                         enum zt_dtype to, enum zt_redop op, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i = next(i, n)) {
        char want[8];
        want_reduced(&r->mesh, r->rank, group, t, to, op, from + i, want);
        if (!near(p + (size_t)i * zt_dtype_bytes(to), want, to))
            return i;
    }
    return -1;
}

#define RANK_RIGHT(r, index)                                                                       \
    do {                                                                                           \
        int64_t i_ = (index);                                                                      \
        if (i_ >= 0)                                                                               \
            RANK_FAIL(r, "element %lld of %lld is wrong (%s)", (long long)i_, (long long)count,    \
                      zt_dtype_name(t));                                                           \
    } while (0)

/* ---- every call ---- */

static const int64_t counts[] = {0, 1, 63, 4098, LARGE};

static bool skipped(int64_t count, enum zt_dtype t)
{
    return count == LARGE && t != ZT_F32 && t != ZT_BF16;
}

static void body_all_reduce(struct rank *r)
{
    struct box a = make_box(r, LARGE * 4 + 64), b = make_box(r, LARGE * 4 + 64);
    RANK_CHECK(r, a.dev && b.dev);
    for (int v = 0; v < 4 * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts); v++) {
        int64_t count = counts[v / 4 / ZT_N_DTYPES];
        enum zt_dtype t = (enum zt_dtype)(v / 4 % ZT_N_DTYPES);
        enum zt_redop op = v % 2 ? ZT_MAX : ZT_SUM;
        struct box *to = v % 4 < 2 ? &a : &b;
        if (skipped(count, t) || (op == ZT_MAX && t != ZT_I32 && t != ZT_I64))
            continue;
        RANK_OK(r, give(r, &a, t, 0, count));
        zt_all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, to->dev, count, t, op);
        RANK_OK(r, fetch(r, to));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, to->host, t, t, op, 0, count));
    }
    free_box(r, &a);
    free_box(r, &b);
}

static void body_reduce_scatter(struct rank *r)
{
    static const enum zt_dtype types[][2] = {{ZT_F32, ZT_F32},  {ZT_BF16, ZT_BF16},
                                             {ZT_BF16, ZT_F32}, {ZT_F16, ZT_F16},
                                             {ZT_F16, ZT_F32},  {ZT_I64, ZT_I64}};
    struct box a = make_box(r, (size_t)(LARGE + 4 * 4100) * 8), b = make_box(r, LARGE * 4 + 64);
    RANK_CHECK(r, a.dev && b.dev);
    for (int v = 0; v < 2 * (int)ZT_ARRAY_LEN(types) * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = types[v / 2 % ZT_ARRAY_LEN(types)][0];
        enum zt_dtype to = types[v / 2 % ZT_ARRAY_LEN(types)][1];
        int64_t count = counts[v / 2 / (int)ZT_ARRAY_LEN(types)];
        bool in_place = v % 2 && t == to;
        if (skipped(count, t))
            continue;
        count = count == LARGE ? count / r->n : count;
        size_t at = (size_t)(count * r->rank) * zt_dtype_bytes(t);
        RANK_OK(r, give(r, &a, t, 0, count * r->n));
        zt_reduce_scatter(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, t,
                          in_place ? a.dev + at : b.dev, to, count);
        RANK_OK(r, fetch(r, in_place ? &a : &b));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, in_place ? a.host + at : b.host, t, to, ZT_SUM,
                                count * r->rank, count));
    }
    free_box(r, &a);
    free_box(r, &b);
}

static void body_moves(struct rank *r)
{
    size_t bytes = (size_t)(LARGE + 4 * 4100) * 8;
    struct box a = make_box(r, bytes), b = make_box(r, bytes);
    RANK_CHECK(r, a.dev && b.dev);
    for (int v = 0; v < 2 * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = (enum zt_dtype)(v / 2 % ZT_N_DTYPES);
        int64_t count = counts[v / 2 / ZT_N_DTYPES];
        int root = v % r->n;
        if (skipped(count, t))
            continue;
        count = count == LARGE ? count / r->n : count;
        size_t part = (size_t)count * zt_dtype_bytes(t);
        struct box *to = v % 2 ? &a : &b;
        RANK_OK(r, give(r, &a, t, 0, count));
        if (v % 2)
            RANK_OK(r, move(r, a.dev + part * (size_t)r->rank, a.host, part));
        zt_all_gather(r->coll, r->stream, ZT_GROUP_SHARD,
                      v % 2 ? a.dev + part * (size_t)r->rank : a.dev, to->dev, count, t);
        RANK_OK(r, fetch(r, to));
        for (int j = 0; j < r->n; j++)
            RANK_RIGHT(r, wrong_copied(to->host + part * (size_t)j, t, j, 0, count));
        RANK_OK(r, give(r, &a, t, 5, count));
        zt_broadcast(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, count, t, root);
        RANK_OK(r, fetch(r, &a));
        RANK_RIGHT(r, wrong_copied(a.host, t, root, 5, count));
    }
    free_box(r, &a);
    free_box(r, &b);
}

/* Rank i sends (i + j) * 37 % 101 elements, beginning with its element 1000 * j, to rank j. */
static void body_all_to_all(struct rank *r)
{
    enum { STRIDE = 120 };
    const enum zt_dtype t = ZT_BF16;
    struct box a = make_box(r, (size_t)r->n * STRIDE * 2), b = make_box(r, a.bytes);
    struct box counts_of = make_box(r, (size_t)r->n * sizeof(int64_t));
    int64_t in[MAX_RANKS];
    RANK_CHECK(r, a.dev && b.dev && counts_of.dev);
    memset(a.host, 0, a.bytes);
    for (int j = 0; j < r->n; j++) {
        in[j] = (r->rank + j) * 37 % 101;
        fill(a.host + j * STRIDE * 2, t, r->rank, 1000 * j, in[j]);
    }
    RANK_OK(r, move(r, a.dev, a.host, a.bytes));
    RANK_OK(r, move(r, counts_of.dev, in, counts_of.bytes));
    zt_all_to_all(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, (int64_t *)counts_of.dev, b.dev,
                  (int64_t *)counts_of.dev, STRIDE, t);
    RANK_OK(r, fetch(r, &b));
    for (int j = 0; j < r->n; j++) {
        int64_t count = in[j];
        RANK_RIGHT(r, wrong_copied(b.host + j * STRIDE * 2, t, j, 1000 * r->rank, count));
    }
    free_box(r, &a);
    free_box(r, &b);
    free_box(r, &counts_of);
}

/* Down and up a pipeline at once, on streams of their own: neither waits for the other. */
static void body_pipeline(struct rank *r)
{
    const zt_axes group = ZT_AXES(ZT_AXIS_PIPELINE);
    const enum zt_dtype t = ZT_F32;
    const int64_t count = LARGE;
    struct box a = make_box(r, LARGE * 4), up = make_box(r, LARGE * 4),
               down = make_box(r, LARGE * 4);
    struct zt_stream *second;
    RANK_CHECK(r, a.dev && up.dev && down.dev);
    RANK_OK(r, r->dev->ops->stream_create(r->dev, "second", 1, &second, &r->err));
    RANK_OK(r, give(r, &a, t, 0, count));
    if (r->rank > 0) {
        zt_send(r->coll, second, group, a.dev, count, t, r->rank - 1);
        zt_recv(r->coll, r->stream, group, up.dev, count, t, r->rank - 1);
    }
    if (r->rank + 1 < r->n) {
        zt_send(r->coll, r->stream, group, a.dev, count, t, r->rank + 1);
        zt_recv(r->coll, second, group, down.dev, count, t, r->rank + 1);
    }
    RANK_OK(r, sync_stream(r, second));
    if (r->rank > 0) {
        RANK_OK(r, fetch(r, &up));
        RANK_RIGHT(r, wrong_copied(up.host, t, r->rank - 1, 0, count));
    }
    if (r->rank + 1 < r->n) {
        RANK_OK(r, fetch(r, &down));
        RANK_RIGHT(r, wrong_copied(down.host, t, r->rank + 1, 0, count));
    }
    r->dev->ops->stream_free(second);
    free_box(r, &a);
    free_box(r, &up);
    free_box(r, &down);
}

/* Without a pipeline messages go through the world's communicator, in turn with its calls. */
static void body_ring(struct rank *r)
{
    const enum zt_dtype t = ZT_I64;
    const int64_t count = 500;
    struct box a = make_box(r, 500 * 8), b = make_box(r, 500 * 8);
    int after = (r->rank + 1) % r->n, last = (r->rank + r->n - 1) % r->n;
    RANK_CHECK(r, a.dev && b.dev);
    RANK_OK(r, give(r, &a, t, 0, count));
    for (int half = 0; half < 2; half++) {
        if ((r->rank == 0) == (half == 0))
            zt_send(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, count, t, after);
        else
            zt_recv(r->coll, r->stream, ZT_GROUP_SHARD, b.dev, count, t, last);
    }
    zt_all_reduce(r->coll, r->stream, ZT_GROUP_WORLD, a.dev, a.dev, count, t, ZT_SUM);
    RANK_OK(r, fetch(r, &b));
    RANK_RIGHT(r, wrong_copied(b.host, t, last, 0, count));
    RANK_OK(r, fetch(r, &a));
    RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_WORLD, a.host, t, t, ZT_SUM, 0, count));
    free_box(r, &a);
    free_box(r, &b);
}

/* Groups of a 2 x 2 mesh in between each other, and one group on two streams. */
static void body_groups(struct rank *r)
{
    const enum zt_dtype t = ZT_F32;
    const int64_t count = 1000;
    struct box a = make_box(r, 4000), b = make_box(r, 4000), c = make_box(r, 4000);
    struct zt_stream *second;
    RANK_CHECK(r, a.dev && b.dev && c.dev);
    RANK_OK(r, r->dev->ops->stream_create(r->dev, "second", 1, &second, &r->err));
    for (int round = 0; round < 5; round++) {
        RANK_OK(r, give(r, &a, t, round, count));
        RANK_OK(r, give(r, &b, t, round, count));
        RANK_OK(r, give(r, &c, t, round, count));
        zt_all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, a.dev, count, t, ZT_SUM);
        zt_all_reduce(r->coll, second, ZT_GROUP_REPLICATE, b.dev, b.dev, count, t, ZT_SUM);
        zt_all_reduce(r->coll, second, ZT_GROUP_SHARD, c.dev, c.dev, count, t, ZT_SUM);
        RANK_OK(r, sync_stream(r, second));
        RANK_OK(r, fetch(r, &a));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, a.host, t, t, ZT_SUM, round, count));
        RANK_OK(r, fetch(r, &b));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_REPLICATE, b.host, t, t, ZT_SUM, round, count));
        RANK_OK(r, fetch(r, &c));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, c.host, t, t, ZT_SUM, round, count));
    }
    r->dev->ops->stream_free(second);
    free_box(r, &a);
    free_box(r, &b);
    free_box(r, &c);
}

/* A group of one copies, or casts. The world of one goes through NCCL. */
static void body_alone(struct rank *r)
{
    const enum zt_dtype t = ZT_BF16;
    const int64_t count = 70;
    struct box a = make_box(r, 256), b = make_box(r, 280);
    RANK_CHECK(r, a.dev && b.dev);
    for (int kind = 0; kind < 3; kind++) {
        RANK_OK(r, give(r, &a, t, kind, count));
        if (kind == 0)
            zt_all_reduce(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, b.dev, count, t, ZT_SUM);
        else if (kind == 1)
            zt_all_gather(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, b.dev, count, t);
        else
            zt_reduce_scatter(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, t, b.dev, t, count);
        RANK_OK(r, fetch(r, &b));
        RANK_RIGHT(r, wrong_copied(b.host, t, r->rank, kind, count));
    }
    zt_reduce_scatter(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, t, b.dev, ZT_F32, count);
    RANK_OK(r, fetch(r, &b));
    RANK_RIGHT(r, wrong_sum(r, 0, b.host, t, ZT_F32, ZT_SUM, 2, count));
    free_box(r, &a);
    free_box(r, &b);
}

/* Arenas, barriers, and an error that all learn of. */
static void body_host_calls(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    void *p = NULL, *q = NULL;
    char first = 1;
    RANK_OK(r, ops->alloc_shared(r->coll, 5000 + 100 * (size_t)r->rank, &p, &r->err));
    RANK_CHECK(r, p && !ops->peers_read_memory);
    RANK_OK(r, move(r, &first, p, 1));
    RANK_CHECK(r, first == 0);
    for (int i = 0; i < 3; i++)
        RANK_OK(r, ops->barrier(r->coll, &r->err));
    if (r->n == 1)
        return;
    int rc = ops->alloc_shared(r->coll, r->rank == 1 ? 0 : 100, &q, &r->err);
    RANK_CHECK(r, rc == ZT_EINPUT);
    RANK_CHECK(r, strstr(r->err.msg, r->rank == 1 ? "cannot be 0 bytes" : "rank 1 failed"));
    RANK_OK(r, ops->barrier(r->coll, &r->err));
}

static void body_float_maximum(struct rank *r)
{
    void *p = device_memory(r, 64);
    RANK_CHECK(r, p);
    zt_all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, p, p, 4, ZT_BF16, ZT_MAX);
    RANK_CHECK(r, sync_stream(r, r->stream) == ZT_EUNSUPPORTED && strstr(r->err.msg, "NaN"));
    r->dev->ops->free(r->dev, p, 64);
}

#define TEST_RANKS(name)                                                                           \
    TEST(nccl_##name##_by_1_rank)                                                                  \
    {                                                                                              \
        CHECK_RANKS(mesh_of(1, 1, 1), body_##name);                                                \
    }                                                                                              \
    TEST(nccl_##name##_by_2_ranks)                                                                 \
    {                                                                                              \
        CHECK_RANKS(mesh_of(1, 1, 2), body_##name);                                                \
    }                                                                                              \
    TEST(nccl_##name##_by_3_ranks)                                                                 \
    {                                                                                              \
        CHECK_RANKS(mesh_of(1, 1, 3), body_##name);                                                \
    }
TEST_RANKS(all_reduce)
TEST_RANKS(reduce_scatter)
TEST_RANKS(moves)
TEST_RANKS(all_to_all)
TEST_RANKS(alone)
TEST_RANKS(host_calls)

TEST(nccl_groups_of_a_2_by_2_mesh)
{
    CHECK_RANKS(mesh_of(1, 2, 2), body_groups);
}

TEST(nccl_messages)
{
    CHECK_RANKS(mesh_of(1, 1, 3), body_ring);
    CHECK_RANKS(mesh_of(3, 1, 1), body_pipeline);
}

TEST(nccl_maximum_of_floats_is_refused)
{
    CHECK_RANKS(mesh_of(1, 1, 1), body_float_maximum);
}

TEST_MAIN()
