/* mismatches.h: calls that differ, which every member finds, and calls after an abort. */
#ifndef ZT_TEST_COLL_MISMATCHES_H
#define ZT_TEST_COLL_MISMATCHES_H

#include "ranks.h"

#include "harness.h"

static void *shared(struct test_rank *r, size_t bytes)
{
    void *p = NULL;
    if (r->coll->ops->alloc_shared(r->coll, bytes, &p, &r->stream.err))
        return NULL;
    return p;
}

static bool says(const struct test_rank *r, const char *text)
{
    return strstr(r->stream.err.msg, text);
}

static void body_other_kind(struct test_rank *r)
{
    float *a = shared(r, 4096);
    RANK_CHECK(r, a);
    if (r->rank == 1)
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, a + 500, 7, ZT_F32);
    else
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, 7, ZT_F32, ZT_SUM);
    RANK_CHECK(r, rank_done(r) == ZT_EPROTO);
    RANK_CHECK(r, says(r, "rank 1 calls all_gather #1 of 7 elements, fp32"));
    RANK_CHECK(r, says(r, "rank 0 calls all_reduce #1 of 7 elements, fp32"));
}

static void body_other_count(struct test_rank *r)
{
    uint16_t *a = shared(r, 4096);
    int64_t count = r->rank == 2 ? 30 : 31;
    RANK_CHECK(r, a);
    zt_broadcast(r->coll, &r->stream, ZT_GROUP_SHARD, a, 31, ZT_BF16, 1);
    RANK_CHECK(r, rank_done(r) == 0);
    zt_reduce_scatter(r->coll, &r->stream, ZT_GROUP_SHARD, a, ZT_BF16, a + 500, ZT_F32, count);
    RANK_CHECK(r, rank_done(r) == ZT_EPROTO);
    RANK_CHECK(r, says(r, "rank 2 calls reduce_scatter #2 of 30 elements, bf16 to fp32"));
    RANK_CHECK(r, says(r, "rank 0 calls reduce_scatter #2 of 31 elements"));
}

static void body_other_root(struct test_rank *r)
{
    float *a = shared(r, 4096);
    RANK_CHECK(r, a);
    zt_broadcast(r->coll, &r->stream, ZT_GROUP_SHARD, a, 5, ZT_F32, r->rank);
    RANK_CHECK(r, rank_done(r) == ZT_EPROTO && says(r, "from member 1"));
}

static void body_other_message(struct test_rank *r)
{
    float *a = shared(r, 4096);
    RANK_CHECK(r, a);
    if (r->rank == 0)
        zt_send(r->coll, &r->stream, ZT_GROUP_SHARD, a, 5, ZT_F32, 1);
    else
        zt_recv(r->coll, &r->stream, ZT_GROUP_SHARD, a, 6, ZT_F32, 0);
    RANK_CHECK(r, rank_done(r) == ZT_EPROTO);
    RANK_CHECK(r, says(r, "send #1 of 5 elements") && says(r, "recv #1 of 6 elements"));
}

/* Only rank 1 can see that rank 0 has too much for it; the others are told by the abort. */
static void body_other_counts(struct test_rank *r)
{
    float *a = shared(r, 4096), b[30];
    int64_t out[3] = {4, 4, 4}, in[3] = {4, 4, 4};
    RANK_CHECK(r, a);
    if (r->rank == 0)
        out[1] = 5;
    zt_all_to_all(r->coll, &r->stream, ZT_GROUP_SHARD, a, out, b, in, 10, ZT_F32);
    RANK_CHECK(r, rank_done(r) == (r->rank == 1 ? ZT_EPROTO : ZT_EPEER));
    if (r->rank == 1)
        RANK_CHECK(r, says(r, "rank 0 sends 5 elements where rank 1 expects 4"));
}

/* After the first failure every later call fails too, also in other groups. */
static void body_later_calls(struct test_rank *r)
{
    struct zt_stream *later = calloc(1, sizeof *later);
    struct zt_err err;
    float *a = shared(r, 4096);
    RANK_CHECK(r, a && later);
    fake_stream_init(later);
    r->coll->ops->abort(r->coll);
    zt_all_reduce(r->coll, later, ZT_GROUP_WORLD, a, a, 8, ZT_F32, ZT_SUM);
    RANK_CHECK(r, fake_sync(later) == ZT_EPEER);
    zt_all_reduce(r->coll, &r->stream, ZT_GROUP_REPLICATE, a, a, 8, ZT_F32, ZT_SUM);
    RANK_CHECK(r, rank_done(r) == ZT_EPEER);
    int rc = r->coll->ops->barrier(r->coll, &err);
    RANK_CHECK(r, rc == ZT_EPEER || rc == 0); /* 0: all were there before the first abort */
    rank_drain(r, later);
    free(later);
}

TEST(another_call_is_found_by_all)
{
    CHECK_RANKS(1, 3, body_other_kind);
}

TEST(another_count_is_found_by_all)
{
    CHECK_RANKS(1, 3, body_other_count);
}

TEST(another_root_is_found_by_all)
{
    CHECK_RANKS(1, 2, body_other_root);
}

TEST(another_message_is_found_by_both)
{
    CHECK_RANKS(1, 2, body_other_message);
}

TEST(another_count_of_all_to_all_is_found)
{
    CHECK_RANKS(1, 3, body_other_counts);
}

TEST(after_an_abort_nothing_works)
{
    CHECK_RANKS(1, 2, body_later_calls);
}

#endif
