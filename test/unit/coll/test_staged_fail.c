/* Host-staged collectives: calls that differ, aborts, a device that fails. */
#include "mismatches.h"

enum { SLOT_BYTES = 16 * 1024 };

__attribute__((constructor)) static void use_staging(void)
{
    staged_slot_bytes = SLOT_BYTES;
}

/* As many elements in each chunk, and not as many chunks. */
static void body_other_number_of_chunks(struct test_rank *r)
{
    const int64_t chunk = (SLOT_BYTES - 64) / 4 / 64 * 64;
    int64_t count = r->rank == 2 ? 3 * chunk : 2 * chunk;
    float *a = calloc(3 * SLOT_BYTES, 1);
    RANK_CHECK(r, a);
    zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, count, ZT_F32, ZT_SUM);
    RANK_CHECK(r, rank_done(r) == ZT_EPROTO || rank_done(r) == ZT_EPEER);
    if (r->rank == 2)
        RANK_CHECK(r, says(r, "all_reduce") && says(r, "rank 2 has 12096 elements where rank 0"));
    free(a);
}

static void body_other_message_in_chunks(struct test_rank *r)
{
    const int64_t chunk = (SLOT_BYTES - 64) / 4 / 64 * 64;
    float *a = calloc(3 * SLOT_BYTES, 1);
    RANK_CHECK(r, a);
    if (r->rank == 0)
        zt_send(r->coll, &r->stream, ZT_GROUP_SHARD, a, 2 * chunk, ZT_F32, 1);
    else
        zt_recv(r->coll, &r->stream, ZT_GROUP_SHARD, a, 3 * chunk, ZT_F32, 0);
    RANK_CHECK(r, rank_done(r) == (r->rank ? ZT_EPROTO : ZT_EPEER));
    free(a);
}

TEST(another_number_of_chunks_is_found)
{
    CHECK_RANKS(1, 3, body_other_number_of_chunks);
    CHECK_RANKS(1, 2, body_other_message_in_chunks);
}

/* A peer that never comes: an abort ends the wait, in the middle of a call. */
static void body_missing(struct test_rank *r)
{
    float *a = calloc(SLOT_BYTES, 4);
    RANK_CHECK(r, a);
    if (r->rank == 0) {
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, a + 4000, 8, ZT_F32);
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, a + 4000, 4000, ZT_F32);
        RANK_CHECK(r, rank_done(r) == ZT_EPEER && says(r, "aborted"));
    } else {
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, a + 4000, 8, ZT_F32);
        RANK_OK(r, rank_done(r));
        zt_shm_job_abort(r->job->control_fd); /* as the launcher does for a dead process */
    }
    free(a);
}

TEST(an_abort_ends_a_staged_call)
{
    CHECK_RANKS(1, 2, body_missing);
}

/* A counts list that cannot be: before anything is moved. */
static void body_bad_counts(struct test_rank *r)
{
    float a[40] = {0}, b[40];
    int64_t out[2] = {3, 3}, in[2] = {3, 3};
    if (r->rank == 1)
        out[0] = 21;
    zt_all_to_all(r->coll, &r->stream, ZT_GROUP_SHARD, a, out, b, in, 20, ZT_F32);
    RANK_CHECK(r, rank_done(r) == (r->rank == 1 ? ZT_EPROTO : ZT_EPEER));
    if (r->rank == 1)
        RANK_CHECK(r, says(r, "rank 1 sends to member 0 21 elements, at most 20"));
}

TEST(counts_beyond_the_stride_are_refused)
{
    CHECK_RANKS(1, 2, body_bad_counts);
}

/* Whatever fails on the stream before a call fails the call, with its own message. */
static int fail(void *arg, struct zt_err *err)
{
    (void)arg;
    return zt_err_set(err, ZT_EDEVICE, "a copy that failed");
}

static void body_failed_stream(struct test_rank *r)
{
    float *a = calloc(SLOT_BYTES, 4);
    RANK_CHECK(r, a);
    if (r->rank == 1)
        cpu_dev->ops->host_call(r->stream.real, fail, NULL, 0);
    zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, SLOT_BYTES, ZT_F32, ZT_SUM);
    if (r->rank == 1) {
        RANK_CHECK(r, rank_done(r) == ZT_EDEVICE && says(r, "a copy that failed"));
        r->coll->ops->abort(r->coll); /* what train does with an error out of sync */
    } else {
        RANK_CHECK(r, rank_done(r) == ZT_EPEER);
    }
    free(a);
}

TEST(a_failed_stream_keeps_its_error)
{
    CHECK_RANKS(1, 2, body_failed_stream);
}

TEST_MAIN()
