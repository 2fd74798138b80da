/*
 * What goes wrong with collectives by NCCL. Only on the simulator, which can be told to fail.
 */
#include "nccl_ranks.h"

#ifdef ZT_CUSIM

#include <signal.h>

#include "base/clock.h"
#include "dev/sanitize.h"
#include "planted.h"

enum { PATIENCE_MS = 20000 };

/*
 * Run as processes, and leave what each said in why[]; all must end within 5 s of the first death. Not under
 * ThreadSanitizer: it does not see from one process into another.
 */
static void run_to_the_end(struct rank *ranks, int victim)
{
    pid_t pids[MAX_RANKS];
    int n_left = ranks->n;
    for (int i = 0; i < ranks->n; i++)
        pids[i] = start_process(&ranks[i]);
    for (int ms = 0; victim >= 0 && !atomic_load(&ranks->job->reached) && ms < PATIENCE_MS; ms++)
        poll(NULL, 0, 1);
    if (victim >= 0)
        kill(pids[victim], SIGKILL);
    int64_t begun = zt_now_ns();
    while (n_left > 0 && zt_now_ns() - begun < 5 * (int64_t)1000000000) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        for (int i = 0; i < ranks->n; i++) {
            if (pid <= 0 || pids[i] != pid)
                continue;
            pids[i] = 0;
            n_left--;
            if (i != victim && WIFSIGNALED(status))
                snprintf(ranks[i].why, WHY_BYTES, "signal %d", WTERMSIG(status));
        }
        if (pid <= 0)
            poll(NULL, 0, 1);
    }
    for (int i = 0; i < ranks->n; i++) {
        if (!pids[i])
            continue;
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        snprintf(ranks[i].why, WHY_BYTES, "hangs");
    }
}

#define CHECK_WHY(r, text)                                                                         \
    do {                                                                                           \
        if (!strstr((r)->why, text))                                                               \
            FAIL("rank %d says \"%s\", not \"%s\"", (r)->rank, (r)->why, text);                    \
    } while (0)

/* Rank 1 never comes to the second call. */
static void body_wait_for_rank_1(struct rank *r)
{
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && r->rank == 1)
            atomic_store(&r->job->reached, 1);
        while (i == 1 && r->rank == 1)
            pause();
        zt_all_gather(r->coll, r->stream, ZT_GROUP_SHARD, p, (char *)p + 2048, 8, ZT_F32);
        RANK_OK(r, sync_stream(r, r->stream));
    }
}

TEST_IF(!ZT_TSAN, nccl_a_killed_rank_ends_the_others)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 3), body_wait_for_rank_1);
    run_to_the_end(ranks, 1);
    for (int i = 0; i < 3; i += 2) {
        CHECK_WHY(&ranks[i], "fatal: -5 rank");
        CHECK_WHY(&ranks[i],
                  "its last call was all_gather #2 of 8 elements: remote process exited");
        CHECK_WHY(&ranks[i], "rank 1: its process has exited");
    }
    munmap(ranks->job, sizeof *ranks->job);
}

static void body_gathers(struct rank *r)
{
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    for (int i = 0; i < 4; i++) {
        zt_all_gather(r->coll, r->stream, ZT_GROUP_SHARD, p, (char *)p + 2048, 8, ZT_F32);
        RANK_OK(r, sync_stream(r, r->stream));
    }
}

/* With CUSIM_FAIL set as `plan` says, on one of two ranks. */
static void check_failure(const char *plan, int rank, const char *text, const char *others)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_gathers);
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        if (i != rank)
            unsetenv("CUSIM_FAIL");
        else
            setenv("CUSIM_FAIL", plan, 1);
        pids[i] = start_process(&ranks[i]);
    }
    unsetenv("CUSIM_FAIL");
    for (int i = 0; i < 2; i++)
        waitpid(pids[i], NULL, 0);
    CHECK_WHY(&ranks[rank], text);
    CHECK_WHY(&ranks[1 - rank], others);
    munmap(ranks->job, sizeof *ranks->job);
}

TEST_IF(!ZT_TSAN, nccl_failures_name_rank_call_and_group)
{
    check_failure("ncclAllGather:3", 1,
                  "rank 1, GPU 1: all_gather #3 of 8 elements, fp32, over the axes 0x4 by NCCL: "
                  "unhandled system error",
                  "fatal: -5 rank 0, GPU 0: NCCL over the axes");
    RETURN_IF_FAILED();
    check_failure("ncclOp:2", 0,
                  "was all_gather #2 of 8 elements: unhandled system error: the "
                  "network is gone",
                  "rank 0: its process has exited");
}

TEST_IF(!ZT_TSAN, nccl_refuses_two_ranks_on_one_gpu)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_gathers);
    ranks[1].device = 0;
    run_to_the_end(ranks, -1);
    for (int i = 0; i < 2; i++)
        CHECK_WHY(&ranks[i], "joining by NCCL: invalid usage: Duplicate GPU detected : rank 1 and "
                             "rank 0 both on CUDA device 0");
    munmap(ranks->job, sizeof *ranks->job);
}

/* Calls that do not match: the simulator says so and ends the process. */
static void body_mismatch(struct rank *r)
{
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    zt_broadcast(r->coll, r->stream, ZT_GROUP_SHARD, p, 7 + r->rank, ZT_F32, 0);
    RANK_OK(r, sync_stream(r, r->stream));
}

TEST_IF(!ZT_TSAN, nccl_simulator_finds_calls_that_do_not_match)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_mismatch);
    run_to_the_end(ranks, -1);
    CHECK(strstr(ranks[0].why, "signal 6") || strstr(ranks[1].why, "signal 6"));
    munmap(ranks->job, sizeof *ranks->job);
}

/* An abort ends what is under way, and all that comes later. */
static void *abort_soon(void *arg)
{
    struct rank *r = arg;
    poll(NULL, 0, 20); /* whether it has begun to wait does not matter */
    r->coll->ops->abort(r->coll);
    return NULL;
}

static void body_abort(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    pthread_t thread;
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    if (r->rank == 1) { /* comes to nothing, until the other has given up */
        while (!atomic_load(&r->job->reached))
            poll(NULL, 0, 1);
    } else {
        zt_all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, p, p, 8, ZT_F32, ZT_SUM);
        RANK_CHECK(r, pthread_create(&thread, NULL, abort_soon, r) == 0);
        RANK_CHECK(r, sync_stream(r, r->stream) == ZT_EPEER);
        pthread_join(thread, NULL);
    }
    if (r->rank == 1)
        ops->abort(r->coll);
    zt_all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, p, p, 8, ZT_F32, ZT_SUM);
    RANK_CHECK(r, sync_stream(r, r->stream) == ZT_EPEER);
    RANK_CHECK(r, ops->barrier(r->coll, &r->err) == ZT_EPEER);
    atomic_store(&r->job->reached, 1);
}

TEST_IF(!ZT_TSAN, nccl_abort_ends_what_is_under_way)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_abort);
    /* Rank 1 may learn of rank 0's abort before it aborts itself: that is fatal to it, and right. */
    run_to_the_end(ranks, -1);
    CHECK_STR(ranks[0].why, "");
    CHECK(!*ranks[1].why || strstr(ranks[1].why, "fatal: -5"));
    munmap(ranks->job, sizeof *ranks->job);
}

/* ---- planted: ThreadSanitizer must see a wait that is not there ---- */

static const char *planted;

static void body_planted(struct rank *r)
{
    enum { COUNT = 40000 };
    const struct zt_dev_ops *dev = r->dev->ops;
    struct box a = make_box(r, COUNT * 4);
    struct zt_stream *producer;
    RANK_CHECK(r, a.dev);
    RANK_OK(r, dev->stream_create(r->dev, "producer", 1, &producer, &r->err));
    const struct zt_zero zero = {a.dev, a.bytes};
    dev->zero(producer, &zero);
    if (strcmp(planted, "before") != 0)
        dev->wait(r->stream, dev->record(producer));
    zt_all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, a.dev, COUNT, ZT_F32, ZT_SUM);
    if (strcmp(planted, "after") != 0)
        dev->wait(producer, dev->record(r->stream));
    dev->zero(producer, &zero);
    RANK_OK(r, sync_stream(r, producer));
    RANK_OK(r, sync_stream(r, r->stream));
    dev->stream_free(producer);
    free_box(r, &a);
}

TEST_IF(ZT_TSAN, nccl_planted_missing_waits_are_races_that_tsan_reports)
{
    planted = planted_fault();
    if (planted) {
        CHECK_RANKS_AS(run_threads, mesh_of(1, 1, 2), body_planted);
        return;
    }
    CHECK_INT(run_planted("none", "planted"), 0);
    CHECK_INT(run_planted("before", "planted"), PLANTED_RACE);
    CHECK_INT(run_planted("after", "planted"), PLANTED_RACE);
}

#endif

TEST_MAIN()
