/* Collectives over shared memory: the calls of calls.h, and what is of this transport alone. */
#include "calls.h"

/* Two streams of a rank use one group; whichever runs first, calls keep the order of enqueueing. */
static void *run_stream(void *arg)
{
    fake_run(arg);
    return NULL;
}

static void body_two_streams(struct test_rank *r)
{
    struct zt_stream *first = calloc(2, sizeof *first), *second = first + 1;
    const enum zt_dtype t = ZT_F32;
    float *a = shared(r, 3000 * sizeof(float)), *b = shared(r, 3000 * sizeof(float));
    pthread_t thread;
    int64_t count = 100;
    RANK_CHECK(r, a && b && first);
    first->deferred = second->deferred = true;
    fill(a, t, r->rank, 0, count);
    fill(b, t, r->rank, 0, 2 * count);
    zt_all_reduce(r->coll, first, ZT_GROUP_SHARD, a, a, count, t, ZT_SUM);
    zt_all_reduce(r->coll, second, ZT_GROUP_SHARD, b, b, 2 * count, t, ZT_MAX);
    bool swapped = r->rank % 2;
    RANK_CHECK(r, pthread_create(&thread, NULL, run_stream, swapped ? second : first) == 0);
    fake_run(swapped ? first : second);
    pthread_join(thread, NULL);
    RANK_OK(r, first->rc || second->rc);
    RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, a, t, t, ZT_SUM, 0, count));
    RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, b, t, t, ZT_MAX, 0, 2 * count));
    free(first);
}

/* On the CPU device's streams, with an error that comes out of their synchronisation. */
static void body_cpu_device(struct test_rank *r)
{
    struct zt_dev *dev;
    struct zt_stream *comm;
    struct zt_err *err = &r->stream.err;
    const enum zt_dtype t = ZT_F32;
    const int64_t count = 70000;
    RANK_OK(r, zt_cpu_dev_create(&dev, NULL, 0, err));
    RANK_OK(r, dev->ops->stream_create(dev, "comm", 1, &comm, err));
    r->coll->dev = dev;
    float *a = shared(r, (size_t)count * sizeof(float));
    RANK_CHECK(r, a);
    for (int round = 0; round < 10; round++) {
        fill(a, t, r->rank, round, count);
        zt_all_reduce(r->coll, comm, ZT_GROUP_SHARD, a, a, count, t, ZT_SUM);
        RANK_OK(r, dev->ops->sync(dev->ops->record(comm), err));
        RANK_RIGHT(r,
                   wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, a, t, t, ZT_SUM, round, count));
    }
    zt_all_reduce(r->coll, comm, ZT_GROUP_SHARD, a, a, 7 + r->rank, t, ZT_SUM);
    RANK_CHECK(r, dev->ops->sync(dev->ops->record(comm), err) == ZT_EPROTO);
    dev->ops->stream_free(comm);
    zt_cpu_dev_free(dev);
}

TEST(two_streams_on_one_group)
{
    CHECK_RANKS(1, 2, body_two_streams);
}

TEST(streams_of_the_cpu_device)
{
    CHECK_RANKS(1, 3, body_cpu_device);
}

TEST_MAIN()
