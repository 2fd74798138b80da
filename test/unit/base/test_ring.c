/* Jobs of a ring, and the threads that it starts. */
#include "harness.h"

#include <semaphore.h>
#include <signal.h>

#include "base/ring.h"
#include "base/thread.h"

static struct zt_err err;

/* ---- threads ---- */

struct seen {
    sem_t named;
    sigset_t blocked;
};

static void *look(void *arg)
{
    struct seen *s = arg;
    pthread_sigmask(SIG_SETMASK, NULL, &s->blocked);
    sem_wait(&s->named);
    return NULL;
}

TEST(thread_has_its_name_and_no_signals)
{
    struct seen s;
    sigset_t before, after;
    pthread_t thread;
    char name[32];
    sem_init(&s.named, 0, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK_OK(zt_thread_start(&thread, "a-name-that-is-too-long", look, &s, &err), err);
    pthread_getname_np(thread, name, sizeof name);
    sem_post(&s.named);
    CHECK_INT(pthread_join(thread, NULL), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK_STR(name, "a-name-that-is-");
    CHECK(sigismember(&s.blocked, SIGTERM) == 1 && sigismember(&s.blocked, SIGCHLD) == 1);
    CHECK(sigismember(&after, SIGTERM) == sigismember(&before, SIGTERM));
    sem_destroy(&s.named);
}

/* ---- jobs ---- */

enum { SLOT = 10000, JOBS = 200 };

struct jobs {
    int64_t seen[JOBS]; /* what stood in the buffer when the job ran */
    int64_t fails;      /* this one does; below 0: none */
};

static int64_t read_slot(const unsigned char *slot)
{
    int64_t i;
    memcpy(&i, slot, sizeof i);
    return i;
}

/* Takes what is there, and leaves the job's number times ten at the end. */
static int work(void *ctx, int64_t i, unsigned char *slot, struct zt_err *e)
{
    struct jobs *j = ctx;
    const int64_t mark = 10 * i;
    if (i == j->fails)
        return zt_err_set(e, ZT_EIO, "job %lld", (long long)i);
    j->seen[i] = read_slot(slot);
    memcpy(slot + SLOT - sizeof mark, &mark, sizeof mark);
    return 0;
}

static struct zt_ring *make_ring(struct jobs *j, int n_threads, int n_slots)
{
    const struct zt_ring_opts o = {.name = "ring",
                                   .n_threads = n_threads,
                                   .n_slots = n_slots,
                                   .slot_bytes = SLOT,
                                   .work = work,
                                   .ctx = j};
    struct zt_ring *r = NULL;
    if (zt_ring_create(&o, &r, &err))
        return NULL;
    return r;
}

/* As a writer: buffers are filled before a job may begin, and again when it is over. */
TEST(ring_hands_over_filled_buffers)
{
    for (int n = 1; n <= 5; n++) {
        struct jobs j = {.fails = -1};
        struct zt_ring *r = make_ring(&j, n, n);
        CHECK(r && zt_ring_n_slots(r) == n);
        for (int64_t i = 0; i < JOBS; i++) {
            if (i >= n)
                CHECK_OK(zt_ring_wait(r, i - n, &err), err);
            memcpy(zt_ring_slot(r, i), &i, sizeof i);
            zt_ring_allow(r, i + 1);
        }
        for (int64_t i = JOBS - n; i < JOBS; i++)
            CHECK_OK(zt_ring_wait(r, i, &err), err);
        for (int64_t i = 0; i < JOBS; i++)
            CHECK_INT(j.seen[i], i);
        zt_ring_free(r);
    }
}

/* As a reader: a buffer holds its job's bytes until the next but n_slots may begin. */
TEST(ring_keeps_buffers_until_they_are_given_back)
{
    enum { SLOTS = 4 };
    struct jobs j = {.fails = -1};
    struct zt_ring *r = make_ring(&j, 3, SLOTS);
    CHECK(r);
    zt_ring_allow(r, SLOTS);
    for (int64_t i = 0; i < JOBS; i++) {
        CHECK_OK(zt_ring_wait(r, i, &err), err);
        CHECK_INT(read_slot(zt_ring_slot(r, i) + SLOT - sizeof i), 10 * i);
        zt_ring_allow(r, ZT_MIN(i + 1 + SLOTS, (int64_t)JOBS));
    }
    zt_ring_free(r);
}

TEST(ring_tells_which_job_failed)
{
    struct jobs j = {.fails = 2};
    struct zt_ring *r = make_ring(&j, 2, 4);
    CHECK(r);
    zt_ring_allow(r, 4);
    CHECK_OK(zt_ring_wait(r, 1, &err), err);
    CHECK_INT(zt_ring_wait(r, 2, &err), ZT_EIO);
    CHECK_STR(err.msg, "job 2");
    CHECK_OK(zt_ring_wait(r, 3, &err), err);
    zt_ring_allow(r, 8);
    zt_ring_free(r); /* what is under way ends, the rest is dropped */
    zt_ring_free(NULL);
}

TEST_MAIN()
