/* Host-staged collectives over shared memory: the calls of calls.h, in chunks of a few kilobytes. */
#include "calls.h"

#include <poll.h>

#include "dev/sanitize.h"
#include "planted.h"

/* Small counts fit a chunk; the large one takes hundreds. */
enum { SLOT_BYTES = 48 * 1024 };

__attribute__((constructor)) static void use_staging(void)
{
    staged_slot_bytes = SLOT_BYTES;
}

/* Holds a stream until `go`. */
static int hold(void *arg, struct zt_err *err)
{
    _Atomic bool *go = *(_Atomic bool **)arg;
    (void)err;
    while (!atomic_load(go))
        poll(NULL, 0, 1);
    return 0;
}

/* Two streams of a rank use one group; whichever runs first, calls keep the order of enqueueing. */
static void body_two_staged_streams(struct test_rank *r)
{
    struct zt_stream *first = &r->stream, *second = calloc(1, sizeof *second);
    const enum zt_dtype t = ZT_F32;
    enum { MAX = 100000 };
    float *a = shared(r, MAX * sizeof(float)), *b = shared(r, MAX * sizeof(float));
    int64_t count = MAX;
    RANK_CHECK(r, a && b && second);
    fake_stream_init(second);
    for (int round = 0; round < 4; round++) {
        _Atomic bool go = false, *arg = &go;
        struct zt_stream *held = (r->rank + round) % 2 ? first : second;
        fill(a, t, r->rank, round, count);
        fill(b, t, r->rank, round, count);
        cpu_dev->ops->host_call(held->real, hold, &arg, sizeof arg);
        zt_all_reduce(r->coll, first, ZT_GROUP_SHARD, a, a, count, t, ZT_SUM);
        zt_all_reduce(r->coll, second, ZT_GROUP_SHARD, b, b, count, t, ZT_MAX);
        atomic_store(&go, true);
        RANK_OK(r, rank_done(r));
        RANK_CHECK(r, fake_sync(second) == 0);
        RANK_RIGHT(r,
                   wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, a, t, t, ZT_SUM, round, count));
        RANK_RIGHT(r,
                   wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, b, t, t, ZT_MAX, round, count));
    }
    rank_drain(r, second);
    free(second);
}

TEST(two_staged_streams_on_one_group)
{
    CHECK_RANKS(1, 2, body_two_staged_streams);
    CHECK_RANKS(1, 3, body_two_staged_streams);
}

/* In chunks: the counts behind the first chunk, and what lies behind the counts. */
static void body_all_to_all_in_chunks(struct test_rank *r)
{
    enum { STRIDE = 20000 };
    const enum zt_dtype t = ZT_F32;
    float *a = calloc((size_t)r->n * STRIDE, sizeof *a), *got = calloc((size_t)r->n * STRIDE, 4);
    int64_t out[8], in[8];
    RANK_CHECK(r, a && got);
    for (int j = 0; j < r->n; j++) {
        in[j] = out[j] = (r->rank + j) * 6007 % (STRIDE + 1);
        fill(a + j * STRIDE, t, r->rank, 1000 * j, STRIDE);
    }
    for (int i = 0; i < r->n * STRIDE; i++)
        got[i] = 7.5f;
    zt_all_to_all(r->coll, &r->stream, ZT_GROUP_SHARD, a, out, got, in, STRIDE, t);
    RANK_OK(r, rank_done(r));
    for (int j = 0; j < r->n; j++) {
        int64_t count = in[j];
        RANK_RIGHT(r, wrong_copied(got + j * STRIDE, t, j, 1000 * r->rank, count));
        for (int64_t i = count; i < STRIDE; i++)
            RANK_CHECK(r, got[j * STRIDE + i] == 7.5f);
    }
    free(a);
    free(got);
}

TEST(all_to_all_in_chunks)
{
    CHECK_RANKS(1, 2, body_all_to_all_in_chunks);
    CHECK_RANKS(1, 4, body_all_to_all_in_chunks);
}

/* While a chunk waits for a peer, the next one has come from the device. */
static _Atomic int n_loaded;

static int count_load(void *arg, struct zt_err *err)
{
    (void)arg, (void)err;
    atomic_fetch_add(&n_loaded, 1);
    return 0;
}

static void counted_copy(struct zt_stream *s, const struct zt_copy *a)
{
    fake_copy(s, a);
    cpu_dev->ops->host_call(s->real, count_load, NULL, 0);
}

static void body_two_slots(struct test_rank *r)
{
    enum { COUNT = 5 * SLOT_BYTES / 4, PATIENCE_MS = 20000 };
    struct zt_dev_ops counted = *r->coll->dev->ops;
    struct zt_dev dev = {&counted};
    float *a = calloc(COUNT, sizeof *a);
    const enum zt_dtype t = ZT_F32;
    const int64_t count = COUNT;
    RANK_CHECK(r, a);
    fill(a, t, r->rank, 0, count);
    counted.copy = counted_copy;
    if (r->rank == 0)
        r->coll->dev = &dev;
    for (int ms = 0; r->rank == 1 && atomic_load(&n_loaded) < 2; ms++) {
        RANK_CHECK(r, ms < PATIENCE_MS);
        poll(NULL, 0, 1);
    }
    zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, count, t, ZT_SUM);
    RANK_OK(r, rank_done(r));
    RANK_RIGHT(r, wrong_reduced(&r->mesh, r->rank, ZT_GROUP_SHARD, a, t, t, ZT_SUM, 0, count));
    r->coll->dev = &fake_dev;
    free(a);
}

TEST(a_chunk_is_loaded_while_one_is_under_way)
{
    CHECK_RANKS_AS(AS_SHARED_THREADS, 1, 2, body_two_slots);
}

static void body_memory(struct test_rank *r)
{
    struct zt_err err;
    void *p;
    char *mine = shared(r, 100000 + 5000 * (size_t)r->rank);
    RANK_CHECK(r, mine && (uintptr_t)mine % (2 << 20) == 0 && !mine[0] && !mine[99999]);
    RANK_CHECK(r, !r->coll->ops->peers_read_memory);
    int rc = r->coll->ops->alloc_shared(r->coll, r->rank == 1 ? 0 : 100, &p, &err);
    RANK_CHECK(r, rc == (r->rank == 1 ? ZT_EINPUT : ZT_EPEER));
}

TEST(memory_fails_on_all_ranks)
{
    CHECK_RANKS(1, 3, body_memory);
}

/* What a rank stages in is what zt_staged_bytes() says, and too small a slot is refused. */
TEST(staging_is_as_large_as_it_says)
{
    struct zt_staged_opts opts = {0};
    size_t lists = 8 * 64;
    CHECK_INT(zt_staged_bytes(&opts, 8), 2 * (16 << 20) + lists);
    opts = (struct zt_staged_opts){.slot_bytes = 1 << 20, .n_streams = 3};
    CHECK_INT(zt_staged_bytes(&opts, 5), 3 * (2 * (1 << 20) + lists));
}

static void body_small_slots(struct test_rank *r)
{
    const struct zt_staged_opts opts = {.slot_bytes = 1024};
    struct zt_coll *c;
    struct zt_err err;
    bool pinned;
    RANK_CHECK(r, zt_staged_coll_create(r->coll, cpu_dev, &opts, &c, &pinned, &err) == ZT_EINPUT);
    RANK_CHECK(r, strstr(err.msg, "slots of 1024 bytes"));
}

TEST(small_slots_are_refused)
{
    CHECK_RANKS(1, 2, body_small_slots);
}

/* ---- planted faults: ThreadSanitizer must see a wait that is not there ---- */

static struct zt_event record_nothing(struct zt_stream *s)
{
    (void)s;
    return (struct zt_event){0};
}

static void wait_for_nothing(struct zt_stream *s, struct zt_event e)
{
    (void)s, (void)e;
}

static const char *planted;

static void body_planted(struct test_rank *r)
{
    enum { COUNT = 5 * SLOT_BYTES / 4 };
    struct zt_dev_ops faulty = *r->coll->dev->ops;
    struct zt_dev dev = {&faulty};
    float *a = calloc(COUNT, sizeof *a);
    RANK_CHECK(r, a);
    if (strcmp(planted, "load") == 0)
        faulty.record = record_nothing;
    else if (strcmp(planted, "store") == 0)
        faulty.wait = wait_for_nothing;
    r->coll->dev = &dev;
    zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, COUNT, ZT_F32, ZT_SUM);
    RANK_OK(r, rank_done(r));
    r->coll->dev = &fake_dev;
    free(a);
}

TEST_IF(ZT_TSAN, planted_missing_waits_are_races_that_tsan_reports)
{
    planted = planted_fault();
    if (planted) {
        CHECK_RANKS_AS(AS_SHARED_THREADS, 1, 2, body_planted);
        return;
    }
    CHECK_INT(run_planted("none", "planted"), 0);
    CHECK_INT(run_planted("load", "planted"), PLANTED_RACE);
    CHECK_INT(run_planted("store", "planted"), PLANTED_RACE);
}

TEST_MAIN()
