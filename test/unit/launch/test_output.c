/* Where the output of ranks goes: to files of their own, and to readers that are slow or gone. */
#include "jobs.h"

/* ---- a file for each rank ---- */

TEST(launch_writes_rank_logs)
{
    char dir[] = "/tmp/zt-test-XXXXXX";
    struct zt_str logs = {0}, path = {0}, text = {0};
    struct job j = {0};
    CHECK(mkdtemp(dir));
    zt_str_printf(&logs, "%s/a/b", dir);
    j.opts.rank_log_dir = logs.buf;
    run_shell(&j, 2, "echo out $RANK; exec 1>&2; echo err $RANK");
    CHECK_OK(j.rc, j.err);
    for (int r = 0; r < 2; r++) {
        char want[2][64];
        zt_str_reset(&path);
        zt_str_reset(&text);
        zt_str_printf(&path, "%s/rank-%d.log", logs.buf, r);
        CHECK_OK(zt_read_file(path.buf, 4096, &text, &j.err), j.err);
        snprintf(want[0], sizeof want[0], "out %d\n", r);
        snprintf(want[1], sizeof want[1], "err %d\n", r);
        CHECK_HAS(text.buf, want[0]);
        CHECK_HAS(text.buf, want[1]);
        unlink(path.buf);
    }
    rmdir(logs.buf);
    zt_str_reset(&path);
    zt_str_printf(&path, "%s/a", dir);
    rmdir(path.buf);
    rmdir(dir);
    zt_str_release(&logs);
    zt_str_release(&path);
    zt_str_release(&text);
    release_job(&j);
}

TEST(launch_full_disk_of_rank_logs_is_said_once)
{
    char dir[] = "/tmp/zt-test-XXXXXX";
    struct zt_str path = {0};
    struct job j = {0};
    CHECK(mkdtemp(dir));
    for (int r = 0; r < 2; r++) {
        zt_str_reset(&path);
        zt_str_printf(&path, "%s/rank-%d.log", dir, r);
        CHECK(symlink("/dev/full", path.buf) == 0);
    }
    j.opts.rank_log_dir = dir;
    run_shell(&j, 2, "echo a; echo b");
    for (int r = 0; r < 2; r++) {
        zt_str_reset(&path);
        zt_str_printf(&path, "%s/rank-%d.log", dir, r);
        unlink(path.buf);
    }
    rmdir(dir);
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    const char *said = strstr(zt_str_get(&j.notices), "No space left");
    CHECK(said && !strstr(said + 1, "No space left"));
    CHECK_HAS(j.lines.buf, "0o b\n");
    CHECK_HAS(j.lines.buf, "1o b\n");
    zt_str_release(&path);
    release_job(&j);
}

/* ---- back-pressure ---- */

/* Blocked from the first line until the worker's count has stood still for a while. */
static int flush_late(void *ctx)
{
    struct job *j = ctx;
    return j->lines.len == 0 || j->blocked_at ? -1 : j->block_fd;
}

static void tick_late(void *ctx)
{
    struct job *j = ctx;
    long long n = __atomic_load_n(j->counter, __ATOMIC_SEQ_CST);
    j->same_count = n > 0 && n == j->last_count ? j->same_count + 1 : 0;
    j->last_count = n;
    if (j->same_count == 4 && !j->blocked_at)
        j->blocked_at = n;
}

TEST(launch_slow_reader_holds_workers_up)
{
    enum { TOTAL = 20000 * 1000, HELD_MAX = 4 << 20 };
    char path[] = "/tmp/zt-test-XXXXXX";
    int fd = mkstemp(path), pipe_fds[2];
    struct job j = {0};
    CHECK(fd >= 0 && ftruncate(fd, sizeof(long long)) == 0 && pipe(pipe_fds) == 0);
    j.counter = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, fd, 0);
    CHECK(j.counter != MAP_FAILED);
    setenv("TEST_COUNTER", path, 1);
    j.block_fd = pipe_fds[0]; /* a read end never becomes writable */
    j.opts.sink.flush = flush_late;
    j.opts.sink.tick = tick_late;
    run_job(&j, 1, "flood");
    unlink(path);
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK(j.blocked_at > 0);
    if (j.blocked_at > HELD_MAX)
        FAIL("%lld bytes were taken while nobody read", j.blocked_at);
    CHECK_INT(*j.counter, TOTAL);
    CHECK_INT(j.lines.len, TOTAL + 3 * 20000);
    close(fd);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    munmap((void *)j.counter, sizeof(long long));
    release_job(&j);
}

/* A stuck reader keeps a job neither from being ended nor from failing. */
static int flush_never(void *ctx)
{
    struct job *j = ctx;
    return j->lines.len ? j->block_fd : -1;
}

static void tick_term(void *ctx)
{
    struct job *j = ctx;
    if (j->lines.len && !j->raise_what)
        raise(j->raise_what = SIGTERM);
}

TEST(launch_ends_though_nobody_reads)
{
    int pipe_fds[2];
    struct job j = {0};
    CHECK(pipe(pipe_fds) == 0);
    j.block_fd = pipe_fds[0];
    j.opts.sink.flush = flush_never;
    j.opts.sink.tick = tick_term;
    run_shell(&j, 2, "while :; do echo line; done");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 128 + SIGTERM);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    release_job(&j);
}

/* Once the workers have been held up for a while, one of them is let go, and fails. */
static void tick_let_go(void *ctx)
{
    struct job *j = ctx;
    const long long n = (long long)j->lines.len;
    j->same_count = n > 0 && n == j->last_count ? j->same_count + 1 : 0;
    j->last_count = n;
    if (j->same_count == 4 && creat(getenv("TEST_GO"), 0600) < 0)
        FAIL("%s: %s", getenv("TEST_GO"), strerror(errno));
}

TEST(launch_failure_ends_the_others_though_nobody_reads)
{
    char dir[] = "/tmp/zt-test-XXXXXX";
    struct zt_str go = {0};
    int pipe_fds[2];
    struct job j = {0};
    CHECK(pipe(pipe_fds) == 0 && mkdtemp(dir));
    zt_str_printf(&go, "%s/go", dir);
    setenv("TEST_GO", go.buf, 1);
    j.block_fd = pipe_fds[0];
    j.opts.sink.flush = flush_never;
    j.opts.sink.tick = tick_let_go;
    run_shell(
        &j, 2,
        "[ $RANK = 0 ] || { until [ -e $TEST_GO ]; do sleep 0.05; done; echo why >&2; exit 3; }\n"
        "while :; do echo line; done");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 3);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_HAS(j.result.summary, "| why");
    unlink(go.buf);
    rmdir(dir);
    zt_str_release(&go);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    release_job(&j);
}

/* At a Ctrl-C workers finish their step, and report it, whoever reads. */
static void tick_interrupt(void *ctx)
{
    struct job *j = ctx;
    const long long n = (long long)j->reports.len;
    j->same_count = n > 0 && n == j->last_count ? j->same_count + 1 : 0;
    j->last_count = n;
    if (j->same_count == 4 && !j->raise_what)
        raise(j->raise_what = SIGINT);
}

static int flush_no_report(void *ctx)
{
    struct job *j = ctx;
    return j->reports.len ? j->block_fd : -1;
}

TEST(launch_workers_finish_their_step_though_nobody_reads)
{
    int pipe_fds[2];
    struct job j = {0};
    CHECK(pipe(pipe_fds) == 0);
    j.block_fd = pipe_fds[0];
    j.opts.sink.flush = flush_no_report;
    j.opts.sink.tick = tick_interrupt;
    run_job(&j, 2, "chatter");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 128 + SIGINT);
    CHECK_INT(j.result.first_rank, -1);
    CHECK_HAS(j.reports.buf, "0 the last\n");
    CHECK_HAS(j.reports.buf, "1 the last\n");
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    release_job(&j);
}
