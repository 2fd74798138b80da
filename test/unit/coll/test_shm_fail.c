/* What goes wrong: calls that differ, peers that die, memory that is not what it should be. */
#include "mismatches.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include "harness.h"

static void body_private_buffer(struct test_rank *r)
{
    float *a = shared(r, 4096), own[8] = {0};
    RANK_CHECK(r, a);
    zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, r->rank == 1 ? own : a, a + 100, 8, ZT_F32,
                  ZT_SUM);
    RANK_CHECK(r, r->stream.rc == ZT_EPROTO && says(r, "rank 1 does not lie in memory from"));
}

static void body_past_the_end(struct test_rank *r)
{
    char *a = shared(r, 64 * 1024);
    RANK_CHECK(r, a);
    zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a + 64 * 1024 - 4, a, 2, ZT_F32);
    RANK_CHECK(r, r->stream.rc == ZT_EPROTO && says(r, "rank 0 does not lie in memory from"));
}

TEST(private_send_buffer_is_refused_by_all)
{
    CHECK_RANKS(1, 3, body_private_buffer);
    CHECK_RANKS(1, 2, body_past_the_end);
}

/* ---- memory ---- */

/* Segments of several sizes, different by rank, each usable by peers; zeroed; bounded in number. */
static void body_segments(struct test_rank *r)
{
    struct zt_err err;
    void *last;
    int64_t *seg[SHM_MAX_ALLOCS], got[4];
    for (int k = 0; k < SHM_MAX_ALLOCS; k++) {
        size_t n = (size_t)(1 + k * 3000 + r->rank * 70000);
        seg[k] = shared(r, n * sizeof(int64_t));
        RANK_CHECK(r, seg[k] && (uintptr_t)seg[k] % 4096 == 0);
        RANK_CHECK(r, seg[k][0] == 0 && seg[k][n - 1] == 0);
        seg[k][n - 1] = 100 * k + r->rank;
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_WORLD, &seg[k][n - 1], got, 1, ZT_I64);
        RANK_OK(r, r->stream.rc);
        RANK_CHECK(r, got[0] == 100 * k && got[1] == 100 * k + 1);
    }
    RANK_CHECK(r, r->coll->ops->alloc_shared(r->coll, 1, &last, &err) == ZT_EUNSUPPORTED);
}

/* Every rank refuses what all of them together cannot have, before any takes it. */
static void body_too_much(struct test_rank *r)
{
    void *p;
    struct zt_err err;
    size_t bytes = (size_t)FAKE_FREE_BYTES / 3 * 2;
    RANK_CHECK(r, r->coll->ops->alloc_shared(r->coll, bytes, &p, &err) == ZT_ENOMEM);
    RANK_CHECK(r, strstr(err.msg, "2 ranks need 1.33 GiB (this one 0.67 GiB), but only 1.00 GiB"));
}

static void body_one_wrong(struct test_rank *r)
{
    void *p;
    struct zt_err err;
    size_t bytes = r->rank == 1 ? 0 : 100;
    RANK_CHECK(r, r->coll->ops->alloc_shared(r->coll, bytes, &p, &err) == ZT_EINPUT);
    RANK_CHECK(r, strstr(err.msg, r->rank == 1 ? "cannot be 0 bytes" : "rank 1 failed"));
}

TEST(segments_of_several_sizes)
{
    CHECK_RANKS(1, 2, body_segments);
}

TEST(too_much_memory_is_refused_by_all)
{
    CHECK_RANKS(1, 2, body_too_much);
    CHECK_RANKS(1, 3, body_one_wrong);
}

static void body_seal(struct test_rank *r)
{
    RANK_CHECK(r, shared(r, 100000));
    for (int i = 0; i < r->n; i++) {
        int fd = r->job->arena_fds[i];
        RANK_CHECK(r, (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) && ftruncate(fd, 4096) < 0);
    }
    RANK_CHECK(r, ftruncate(r->job->control_fd, 4096) < 0);
    RANK_CHECK(r, !(fcntl(r->job->control_fd, F_GETFD) & FD_CLOEXEC));
}

TEST(arenas_and_control_block_cannot_shrink)
{
    CHECK_RANKS(1, 2, body_seal);
}

/* A peer that claims more than its arena has, or did not seal it, cannot make us touch it. */
struct liar {
    struct test_job job;
    bool sealed;
    char why[WHY_BYTES];
};

static void *liar_main(void *arg)
{
    struct liar *l = arg;
    struct shm_control *ctl = mmap(NULL, zt_shm_control_bytes(2), PROT_READ | PROT_WRITE,
                                   MAP_SHARED, l->job.job.control_fd, 0);
    if (ctl == MAP_FAILED)
        return NULL;
    struct shm_slot *slot = zt_shm_slot(ctl, SHM_HOST_MASK, 1);
    ctl->members[1].mesh[0] = ctl->members[1].mesh[1] = ctl->members[1].mesh[3] = 1;
    ctl->members[1].mesh[2] = 2;
    ctl->members[1].mesh[4] = 1;
    ctl->members[1].alloc_bytes = 1 << 20;
    if (ftruncate(l->job.arena_fds[1], 4096) == 0 && l->sealed)
        fcntl(l->job.arena_fds[1], F_ADD_SEALS, F_SEAL_SHRINK);
    /* Joining, then three of the four steps of alloc_shared(), in step with rank 0. */
    for (uint32_t epoch = 1; epoch <= 4; epoch++) {
        slot->calls[epoch & 1] = (struct shm_call){.kind = epoch == 1 ? ZT_JOIN : ZT_ALLOC_SHARED,
                                                   .seq = epoch == 1 ? 1 : 2};
        zt_shm_gate_set(&slot->gate, epoch);
        while (atomic_load(&zt_shm_slot(ctl, SHM_HOST_MASK, 0)->gate.epoch) < epoch)
            poll(NULL, 0, 1);
    }
    zt_shm_abort(ctl);
    munmap(ctl, zt_shm_control_bytes(2));
    return NULL;
}

static void check_liar(bool sealed, const char *text)
{
    struct liar l = {.sealed = sealed};
    struct zt_mesh mesh = mesh_of(1, 2);
    struct zt_coll *c;
    struct zt_err err;
    pthread_t thread;
    void *p;
    CHECK(test_job_init(&l.job, 2) == 0);
    CHECK(pthread_create(&thread, NULL, liar_main, &l) == 0);
    CHECK_OK(zt_shm_coll_create(&l.job.job, &fake_dev, &mesh, 0, &c, &err), err);
    CHECK_INT(c->ops->alloc_shared(c, 4096, &p, &err), ZT_EPROTO);
    if (!strstr(err.msg, text))
        FAIL("%s", err.msg);
    pthread_join(thread, NULL);
    c->ops->free(c);
    test_job_release(&l.job);
}

TEST(arenas_of_lying_peers_are_not_touched)
{
    check_liar(true, "has 4096 bytes, not the 1048576");
    RETURN_IF_FAILED();
    check_liar(false, "not sealed against shrinking");
}

/* ---- what is left ---- */

/* Pages of this process's address space, whatever lies there. */
static long n_mapped(void)
{
    long n = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &n) != 1)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

static void join_and_leave(int times)
{
    struct zt_mesh mesh = mesh_of(1, 1);
    struct zt_err err;
    for (int i = 0; i < times; i++) {
        struct test_job job;
        struct zt_coll *c;
        void *p;
        CHECK(test_job_init(&job, 1) == 0);
        CHECK_OK(zt_shm_coll_create(&job.job, &fake_dev, &mesh, 0, &c, &err), err);
        CHECK_OK(c->ops->alloc_shared(c, 4096, &p, &err), err);
        c->ops->free(c);
        test_job_release(&job);
    }
}

TEST(nothing_stays_mapped)
{
    enum { TIMES = 50 };
    join_and_leave(1);
    const long before = n_mapped(), page_bytes = sysconf(_SC_PAGESIZE);
    join_and_leave(TIMES);
    RETURN_IF_FAILED();
    CHECK(before > 0);
    CHECK(n_mapped() - before < TIMES * (1L << 18) / page_bytes); /* not even 256 KiB each time */
}

/* ---- joining ---- */

TEST(wrong_jobs_are_refused)
{
    struct test_job job, other;
    struct zt_coll *c;
    struct zt_err err;
    struct zt_mesh two = mesh_of(1, 2), one = mesh_of(1, 1);
    int fd, fds[ZT_SHM_MAX_RANKS + 1];
    CHECK_INT(zt_shm_job_create(0, &fd, fds, &err), ZT_EUNSUPPORTED);
    CHECK_INT(zt_shm_job_create(ZT_SHM_MAX_RANKS + 1, &fd, fds, &err), ZT_EUNSUPPORTED);
    CHECK(test_job_init(&job, 1) == 0 && test_job_init(&other, 2) == 0);
    CHECK_INT(zt_shm_coll_create(&job.job, &fake_dev, &two, 0, &c, &err), ZT_EINPUT);
    CHECK_INT(zt_shm_coll_create(&job.job, &fake_dev, &one, 1, &c, &err), ZT_EINPUT);
    struct zt_shm_job wrong = job.job;
    wrong.control_fd = other.job.control_fd; /* of another number of ranks */
    CHECK_INT(zt_shm_coll_create(&wrong, &fake_dev, &one, 0, &c, &err), ZT_EPROTO);
    wrong.control_fd = job.arena_fds[0]; /* nothing in it */
    CHECK_INT(zt_shm_coll_create(&wrong, &fake_dev, &one, 0, &c, &err), ZT_EPROTO);
    CHECK_OK(zt_shm_coll_create(&job.job, &fake_dev, &one, 0, &c, &err), err);
    struct zt_coll *twice;
    CHECK_INT(zt_shm_coll_create(&job.job, &fake_dev, &one, 0, &twice, &err), ZT_EPROTO);
    CHECK(strstr(err.msg, "rank 0 has joined already"));
    c->ops->free(c);
    test_job_release(&job);
    test_job_release(&other);
}

/* ---- dying ---- */

/* A process per rank, and a pipe that brings what it met, on one line. */
struct child {
    pid_t pid;
    int out;
};

static struct child spawn(const struct test_job *job, int rank, int n,
                          void (*body)(struct test_rank *))
{
    int fds[2];
    struct child c;
    ZT_ASSERT(pipe(fds) == 0);
    c.pid = fork();
    ZT_ASSERT(c.pid >= 0);
    if (c.pid == 0) {
        char why[WHY_BYTES] = "";
        struct test_rank *r = calloc(1, sizeof *r);
        *r = (struct test_rank){
            .job = &job->job, .mesh = mesh_of(1, n), .rank = rank, .n = n, .why = why};
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        if (zt_shm_coll_create(r->job, &fake_dev, &r->mesh, rank, &r->coll, &r->stream.err) == 0)
            body(r);
        dprintf(STDOUT_FILENO, "%s%s: %s\n", why, zt_code_name(r->stream.err.code),
                r->stream.err.msg);
        _exit(0);
    }
    close(fds[1]);
    c.out = fds[0];
    return c;
}

static void read_line(const struct child *c, char *line, size_t bytes)
{
    size_t n = 0;
    while (n + 1 < bytes && read(c->out, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
}

static void reap(struct child *c)
{
    close(c->out);
    waitpid(c->pid, NULL, 0);
}

/* 122 all-gathers, then one that rank 2 never comes to. */
static void body_wait_for_rank_2(struct test_rank *r)
{
    float *a = shared(r, 1 << 20), *b = malloc(1 << 20);
    if (!a || !b)
        return;
    for (int i = 0; i < 122; i++)
        zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, b, 1000, ZT_F32);
    while (r->rank == 2)
        pause();
    zt_all_gather(r->coll, &r->stream, ZT_GROUP_SHARD, a, b, 1234, ZT_F32);
}

/* Kill `victim` (or nobody) once the others are all asleep, then abort as the launcher does. */
static void check_wait(int victim)
{
    struct test_job job;
    struct child c[4];
    char line[600];
    CHECK(test_job_init(&job, 4) == 0);
    for (int i = 0; i < 4; i++)
        c[i] = spawn(&job, i, 4, body_wait_for_rank_2);
    size_t bytes = zt_shm_control_bytes(4);
    struct shm_control *ctl =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, job.job.control_fd, 0);
    CHECK(ctl != MAP_FAILED);
    struct shm_gate *gate = &zt_shm_slot(ctl, ZT_GROUP_SHARD, 2)->gate;
    while (atomic_load(&gate->epoch) != 2 * 122 || atomic_load(&gate->sleepers) != 3)
        poll(NULL, 0, 1);
    munmap(ctl, bytes);
    if (victim >= 0)
        kill(c[victim].pid, SIGKILL);
    zt_shm_job_abort(job.job.control_fd);
    for (int i = 0; i < 4; i++) {
        if (i == 2 || i == victim)
            kill(c[i].pid, SIGKILL);
        read_line(&c[i], line, sizeof line);
        if (i != 2 && i != victim)
            CHECK_STR(line, "peer lost: all_gather #123 of 1234 elements, fp32: aborted while "
                            "waiting for rank 2");
        reap(&c[i]);
    }
    test_job_release(&job);
}

TEST(an_abort_wakes_all_and_names_the_missing)
{
    check_wait(-1);
}

TEST(a_killed_missing_process_lets_nobody_hang)
{
    check_wait(2);
}

TEST(a_killed_sleeping_process_lets_nobody_hang)
{
    check_wait(3);
}

static void body_join(struct test_rank *r)
{
    (void)r;
}

TEST(an_abort_ends_joining)
{
    struct test_job job;
    char line[600];
    CHECK(test_job_init(&job, 3) == 0);
    struct child c = spawn(&job, 1, 3, body_join);
    zt_shm_job_abort(job.job.control_fd);
    read_line(&c, line, sizeof line);
    CHECK_STR(line, "peer lost: joining #1: aborted while waiting for rank 0, 2");
    reap(&c);
    test_job_release(&job);
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* Signals that interrupt a wait do not end it; only the peer does. */
static void body_interrupted(struct test_rank *r)
{
    float *a = shared(r, 4096);
    RANK_CHECK(r, a);
    for (int i = 0; i < 50; i++) {
        if (r->rank == 1)
            poll(NULL, 0, 2);
        else
            ualarm(500, 500);
        a[0] = 1;
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_SHARD, a, a, 1, ZT_F32, ZT_SUM);
        RANK_OK(r, r->stream.rc);
        RANK_CHECK(r, a[0] == 2);
    }
    ualarm(0, 0);
}

TEST(signals_do_not_end_a_wait)
{
    struct sigaction sa = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &sa, NULL);
    CHECK_RANKS_AS(AS_PROCESSES, 1, 2, body_interrupted);
}

/* As Linux before 6.17 does when a signal comes, or the process is stopped and goes on. */
static int n_interrupts;

int posix_fallocate(int fd, off_t at, off_t bytes)
{
    if (n_interrupts > 0) {
        n_interrupts--;
        return EINTR;
    }
    return fallocate(fd, 0, at, bytes) ? errno : 0;
}

TEST(signals_do_not_end_an_allocation)
{
    struct zt_mesh mesh = mesh_of(1, 1);
    struct test_job job;
    struct zt_coll *c;
    struct zt_err err;
    void *p;
    n_interrupts = 2;
    CHECK(test_job_init(&job, 1) == 0);
    CHECK_INT(n_interrupts, 0);
    CHECK_OK(zt_shm_coll_create(&job.job, &fake_dev, &mesh, 0, &c, &err), err);
    n_interrupts = 2;
    CHECK_OK(c->ops->alloc_shared(c, 4096, &p, &err), err);
    CHECK_INT(n_interrupts, 0);
    c->ops->free(c);
    test_job_release(&job);
}

TEST_MAIN()
