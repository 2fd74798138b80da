/*
 * Whole jobs: this program is front end, agent and worker, as zerotrain is. A worker does what
 * TEST_WORKER in its environment says, an agent what TEST_AGENT says.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build.h"
#include "base/io.h"
#include "base/version.h"
#include "launch/launch.h"
#include "launch/link.h"
#include "launch/spawn.h"

/* ---- the worker ---- */

static int worker_report(struct zt_worker *w)
{
    struct zt_err err;
    struct zt_str s = {0};
    const char *omp = getenv("OMP_NUM_THREADS"), *rank = getenv("RANK"), *note = getenv("NOTE");
    zt_str_printf(&s, "%d/%d local %d threads %d arenas %d recipe %s omp %s RANK %s note <%s> ",
                  w->rank, w->world, w->local_rank, w->threads, w->n_arenas, w->recipe,
                  omp ? omp : "unset", rank ? rank : "unset", note ? note : "unset");
    for (int i = 0; i < 32; i++)
        zt_str_printf(&s, "%02x", w->secret[i]);
    struct stat st;
    for (int i = 0; i < w->n_arenas; i++)
        zt_str_puts(&s, fstat(w->shm_arena_fds[i], &st) ? " no arena" : "");
    zt_str_puts(&s, fstat(w->shm_control_fd, &st) ? " no control" : "");
    int rc = zt_worker_report(w, s.buf, s.len, &err);
    zt_str_release(&s);
    return rc ? 1 : 0;
}

/* What rank 0 gives comes to all, and with the task came what the launcher was told of devices. */
static int worker_share(struct zt_worker *w)
{
    char bytes[100] = "nothing", text[200];
    struct zt_err err;
    if (w->rank == 0)
        snprintf(bytes, sizeof bytes, "tr0mbone");
    if (zt_worker_share(w, bytes, sizeof bytes, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    snprintf(text, sizeof text, "got %s gpu %d per %d transport %d visible %s", bytes,
             w->device.gpu, w->device.ranks_per_gpu, w->device.transport,
             getenv("CUDA_VISIBLE_DEVICES"));
    return zt_worker_report(w, text, strlen(text), &err) ? 1 : 0;
}

/* What every rank gives comes to all, more than once; and where the ranks are. */
static int worker_gather(struct zt_worker *w)
{
    char mine[32] = "", all[8][32], text[400];
    struct zt_err err;
    for (int round = 0; round < 3; round++) {
        snprintf(mine, sizeof mine, "%d of r%d", round, w->rank);
        if (w->world > 8 || zt_worker_gather(w, mine, sizeof mine, all, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
    }
    int at = snprintf(text, sizeof text, "node %d/%d to %s, %d here, from %d:", w->node, w->n_nodes,
                      w->towards, w->n_arenas, w->node_first[w->node]);
    for (int r = 0; r < w->world; r++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %s", all[r]);
    return zt_worker_report(w, text, strlen(text), &err) ? 1 : 0;
}

/* Rank 1 gives twice before the others have given. */
static int worker_gather_twice(struct zt_worker *w)
{
    struct zt_err err;
    for (int i = 0; i < 2 && w->rank == 1; i++)
        zt_frame_put(&w->link->out, ZT_FRAME_GATHER, "x", 1);
    if (zt_worker_report(w, "", 0, &err))
        return 1;
    for (;;)
        pause();
}

/* End when asked to. */
static int worker_soft(struct zt_worker *w)
{
    struct zt_err err;
    if (zt_worker_stop_requested(w) || zt_worker_report(w, "ready", 5, &err))
        return 1;
    while (!zt_worker_stop_requested(w))
        poll(NULL, 0, 1);
    return zt_worker_stop_requested(w) && zt_worker_report(w, "bye", 3, &err) == 0 ? 0 : 1;
}

/* Rank 0 loses a peer first; rank 1, whose own failure it was, ends only after that. */
static int worker_peer_lost(struct zt_worker *w)
{
    const char *fifo = getenv("TEST_FIFO");
    FILE *f = fopen(fifo, w->rank == 0 ? "w" : "r"); /* waits for the other one */
    if (!f)
        return 2;
    if (w->rank == 0)
        return ZT_EXIT_PEER_LOST;
    fprintf(stderr, "disk on fire\n");
    return fgetc(f) == EOF ? 3 : 2;
}

static int worker_garbage(struct zt_worker *w)
{
    struct zt_err err;
    static const char bytes[] = "0123456789abcdefghij";
    if (zt_worker_report(w, "", 0, &err)) /* puts the marker before it */
        return 1;
    if (w->rank == 1 && zt_write_full(w->link->wfd, bytes, sizeof bytes, "agent", &err))
        return 1;
    for (;;)
        pause();
}

/* Much output; how much of it was taken stands in a shared file. */
static int worker_flood(struct zt_worker *w)
{
    static char line[1000];
    FILE *f = fopen(getenv("TEST_COUNTER"), "r+");
    if (!f)
        return 1;
    long long *n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    if (n == MAP_FAILED)
        return 1;
    memset(line, 'f', sizeof line - 1);
    line[sizeof line - 1] = '\n';
    struct zt_err err;
    for (int i = 0; i < 20000; i++) {
        if (zt_write_full(STDOUT_FILENO, line, sizeof line, "stdout", &err))
            return 1;
        __atomic_store_n(n, (long long)(i + 1) * (long long)sizeof line, __ATOMIC_SEQ_CST);
    }
    (void)w;
    return 0;
}

static int worker_main(void)
{
    struct zt_worker w;
    struct zt_err err;
    const char *what = getenv("TEST_WORKER");
    if (zt_worker_join(&w, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    int rc = 1;
    if (strcmp(what, "report") == 0)
        rc = worker_report(&w);
    else if (strcmp(what, "share") == 0)
        rc = worker_share(&w);
    else if (strcmp(what, "gather") == 0)
        rc = worker_gather(&w);
    else if (strcmp(what, "gather_twice") == 0)
        rc = worker_gather_twice(&w);
    else if (strcmp(what, "soft") == 0)
        rc = worker_soft(&w);
    else if (strcmp(what, "peer_lost") == 0)
        rc = worker_peer_lost(&w);
    else if (strcmp(what, "garbage") == 0)
        rc = worker_garbage(&w);
    else if (strcmp(what, "flood") == 0)
        rc = worker_flood(&w);
    zt_worker_release(&w);
    return rc;
}

/* ---- the agent ---- */

static void say(const struct zt_str *s)
{
    struct zt_err err;
    if (zt_write_full(STDOUT_FILENO, s->buf, s->len, "stdout", &err))
        _exit(1);
}

static int agent_main(void)
{
    struct zt_err err;
    struct zt_str s = {0};
    const char *what = getenv("TEST_AGENT");
    if (what && strcmp(what, "missing") == 0) {
        puts("bash: zerotrain: command not found");
        return 127;
    }
    zt_str_puts(&s, ZT_PROTO_MARKER);
    size_t at = zt_frame_begin(&s, ZT_FRAME_HELLO);
    zt_put_blob(&s, "elsewhere", 9);
    const char *build = what && strcmp(what, "build") == 0 ? "0.0.9, build 00" : zt_build_name();
    zt_put_blob(&s, build, strlen(build));
    zt_frame_end(&s, at);
    if (what && strcmp(what, "build") == 0) {
        say(&s);
        pause();
    }
    if (what && strcmp(what, "version") == 0) {
        s.buf[sizeof ZT_PROTO_MARKER - 1 + 4] = 9;
        say(&s);
        pause();
    }
    if (what && strcmp(what, "silent") == 0) {
        say(&s);
        pause();
    }
    if (what && strcmp(what, "garbage") == 0) {
        zt_str_puts(&s, "what is this, and where does it come from?");
        say(&s);
        pause();
    }
    zt_str_release(&s);
    if (what && strcmp(what, "banner") == 0) {
        puts("Welcome! You have mail.");
        fflush(stdout);
    }
    int rc = zt_agent_main(&err);
    if (err.msg[0])
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}

/* ---- the front end ---- */

struct job {
    struct zt_launch_opts opts;
    struct zt_launch_result result;
    struct zt_err err;
    int rc;
    struct zt_str lines, reports, notices; /* "RANK text\n" */
    int n_reports;
    int raise_at_report, raise_what; /* a signal to ourselves when the n-th report comes */
    int close_at_notice;             /* a descriptor; 0: none */
    int block_fd;                    /* see flood */
    const long long *counter;
    long long blocked_at, last_count;
    int same_count;
};

static void on_line(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len)
{
    struct job *j = ctx;
    zt_str_printf(&j->lines, "%d%c %.*s\n", rank, s == ZT_LOG_STDOUT ? 'o' : 'e', (int)len, line);
}

static void on_report(void *ctx, int rank, const char *json, size_t len)
{
    struct job *j = ctx;
    zt_str_printf(&j->reports, "%d %.*s\n", rank, (int)len, json);
    if (++j->n_reports == j->raise_at_report)
        raise(j->raise_what);
}

static void on_notice(void *ctx, const char *text)
{
    struct job *j = ctx;
    zt_str_printf(&j->notices, "%s\n", text);
    if (j->close_at_notice)
        close(j->close_at_notice);
    j->close_at_notice = 0;
}

static void run_job(struct job *j, int n, const char *worker)
{
    setenv("TEST_WORKER", worker, 1);
    j->opts.n_workers = n;
    j->opts.sink.ctx = j;
    j->opts.sink.line = on_line;
    j->opts.sink.report = on_report;
    j->opts.sink.notice = on_notice;
    j->rc = zt_launch_run(&j->opts, &j->result, &j->err);
}

/* Run any program, as `zerotrain launch` does. */
static void run_shell(struct job *j, int n, const char *script)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    j->opts.program = argv;
    run_job(j, n, "");
    j->opts.program = NULL;
}

static void release_job(struct job *j)
{
    zt_str_release(&j->lines);
    zt_str_release(&j->reports);
    zt_str_release(&j->notices);
}

#define CHECK_HAS(text, words)                                                                     \
    do {                                                                                           \
        if (!strstr(text, words))                                                                  \
            FAIL("\"%s\" does not have \"%s\"", text, words);                                      \
    } while (0)

TEST(launch_workers_get_their_task)
{
    static const char *const env[] = {"NOTE=line 1\nline 2 = x"};
    struct job j = {
        .opts = {.env = env, .n_env = 1, .recipe = "r: 1", .recipe_len = 4, .threads = 3}};
    run_job(&j, 3, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_STR(j.result.summary, "");
    CHECK_INT(j.n_reports, 3);
    const char *secret = NULL;
    for (int r = 0; r < 3; r++) {
        char head[200];
        snprintf(head, sizeof head,
                 "%d %d/3 local %d threads 3 arenas 3 recipe r: 1 omp 3 RANK %d note <line 1\n"
                 "line 2 = x> ",
                 r, r, r, r);
        const char *at = strstr(j.reports.buf, head);
        if (!at)
            FAIL("no \"%s\" in \"%s\"", head, j.reports.buf);
        at += strlen(head);
        CHECK(strspn(at, "0123456789abcdef") == 64 && at[64] == '\n');
        CHECK(strspn(at, "0") < 64 && (!secret || memcmp(at, secret, 64) == 0));
        secret = at;
    }
    release_job(&j);
}

TEST(launch_rank_0_shares_with_all)
{
    static const char *const devices[] = {"GPU-7", "GPU-7", "2"};
    struct job j = {.opts = {.devices = devices, .device = {true, 2, ZT_TRANSPORT_STAGED}}};
    run_job(&j, 3, "share");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 3);
    CHECK_HAS(j.reports.buf, "0 got tr0mbone gpu 1 per 2 transport 2 visible GPU-7\n");
    CHECK_HAS(j.reports.buf, "1 got tr0mbone gpu 1 per 2 transport 2 visible GPU-7\n");
    CHECK_HAS(j.reports.buf, "2 got tr0mbone gpu 1 per 2 transport 2 visible 2\n");
    CHECK(!strstr(zt_str_get(&j.lines), "tr0mbone") && !strstr(zt_str_get(&j.notices), "tr0m"));
    release_job(&j);
}

TEST(launch_nodes_gather)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 2, .address = "10.0.0.1"},
                                           {.n_workers = 1, .address = "fd00::2"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2}};
    run_job(&j, 3, "gather");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_HAS(j.reports.buf, "0 node 0/2 to fd00::2, 2 here, from 0: 2 of r0 2 of r1 2 of r2\n");
    CHECK_HAS(j.reports.buf, "1 node 0/2 to fd00::2, 2 here, from 0: 2 of r0 2 of r1 2 of r2\n");
    CHECK_HAS(j.reports.buf, "2 node 1/2 to 10.0.0.1, 1 here, from 2: 2 of r0 2 of r1 2 of r2\n");
    release_job(&j);
}

/* A failure on one node ends the others, and is told with its rank. */
TEST(launch_a_failure_on_another_node)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 1, .address = "a"},
                                           {.n_workers = 2, .address = "b"},
                                           {.n_workers = 1, .address = "c"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 3}};
    run_shell(&j, 4, "[ $RANK = 2 ] && { echo burnt >&2; exit 7; }; exec sleep 600");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 7);
    CHECK_INT(j.result.first_rank, 2);
    CHECK_HAS(j.result.summary, "failed first: exit code 7");
    CHECK_HAS(j.result.summary, "  | burnt");
    CHECK(j.result.started && !j.result.told);
    CHECK_INT(j.result.node_end[0], ZT_NODE_NOTHING);
    CHECK_INT(j.result.node_end[1], ZT_NODE_RANK);
    CHECK_INT(j.result.node_end[2], ZT_NODE_NOTHING);
    release_job(&j);
}

/* The agent of a node dies: its own ranks with it, and the others are ended. */
TEST(launch_an_agent_of_several_dies)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 1, .address = "a"},
                                           {.n_workers = 1, .address = "b"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2}};
    run_shell(&j, 2, "[ $RANK = 1 ] && kill -9 $PPID; exec sleep 600");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 128 + SIGKILL);
    CHECK_HAS(j.notices.buf, "(node 1) is lost; stopping the others");
    CHECK_HAS(j.result.summary, "was lost: signal 9");
    CHECK(j.result.started);
    CHECK_INT(j.result.node_end[0], ZT_NODE_NOTHING);
    CHECK_INT(j.result.node_end[1], ZT_NODE_LOST);
    release_job(&j);
}

/* Processes of another attempt hold the job's name: workers wait for their end. */
TEST(launch_waits_for_an_earlier_attempt)
{
    static const char name[] = "zt-test-launch-attempts";
    struct job j = {.opts = {.name = name}};
    int ready[2], ends[2];
    char byte;
    CHECK(pipe(ready) == 0 && pipe(ends) == 0);
    pid_t earlier = fork();
    if (earlier == 0) {
        close(ends[1]);
        if (!zt_claim("zt-test-launch-attempts 0") || write(ready[1], "x", 1) != 1)
            _exit(1);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    CHECK(earlier > 0 && read(ready[0], &byte, 1) == 1);
    CHECK(!zt_claim("zt-test-launch-attempts 0"));
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    j.close_at_notice = ends[1];
    run_job(&j, 2, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 2);
    CHECK_HAS(j.notices.buf, "processes of the attempt before this one are still there");
    waitpid(earlier, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    close(ends[0]);
    release_job(&j);
    memset(&j, 0, sizeof j);
    j.opts.name = name; /* ours have let it go */
    run_job(&j, 1, "report");
    CHECK_INT(j.result.exit_code, 0);
    CHECK_STR(zt_str_get(&j.notices), "");
    release_job(&j);
}

/* ---- nodes that are each for themselves ---- */

enum { ALONE_NODES = 3 };

struct alone {
    struct job j;
    const char *go_on; /* a file that is made when two nodes have failed */
    int n_failed;
    struct zt_str failed[ALONE_NODES], build[ALONE_NODES];
    int n_clocks;
    int64_t ahead_ns, round_trip_ns; /* of node 0, the last */
};

static void on_node(void *ctx, int node, const struct zt_node_news *news)
{
    struct alone *a = ctx;
    struct zt_err err;
    if (news->event == ZT_NODE_ANSWERED)
        zt_str_puts(&a->build[node], news->text);
    if (news->event == ZT_NODE_FAILED)
        zt_str_puts(&a->failed[node], news->text);
    if (news->event == ZT_NODE_FAILED && ++a->n_failed == 2 && a->go_on &&
        zt_write_file_atomic(a->go_on, "", 0, &err))
        printf("# %s\n", err.msg);
    if (news->event != ZT_NODE_CLOCK || node)
        return;
    a->n_clocks++;
    a->ahead_ns = news->ahead_ns;
    a->round_trip_ns = news->round_trip_ns;
}

static void release_alone(struct alone *a)
{
    for (int i = 0; i < ALONE_NODES; i++) {
        zt_str_release(&a->failed[i]);
        zt_str_release(&a->build[i]);
    }
    release_job(&a->j);
}

static const struct zt_launch_node alone_nodes[ALONE_NODES] = {{.n_workers = 1, .address = "a"},
                                                               {.n_workers = 1, .address = "b"},
                                                               {.n_workers = 1, .address = "c"}};

/* One node's worker fails, another's agent dies: the third goes on to its end. */
TEST(launch_nodes_for_themselves)
{
    char file[] = "/tmp/zt-alone-XXXXXX", script[400];
    int fd = mkstemp(file);
    CHECK(fd >= 0 && unlink(file) == 0);
    close(fd);
    struct alone a = {
        .j.opts = {.nodes = alone_nodes, .n_nodes = ALONE_NODES, .sink.node = on_node},
        .go_on = file};
    snprintf(script, sizeof script,
             "[ $RANK = 1 ] && { echo burnt >&2; exit 7; }; [ $RANK = 2 ] && kill -9 $PPID && exec "
             "sleep 600; until [ -e %s ]; do sleep 0.02; done; echo went on",
             file);
    run_shell(&a.j, ALONE_NODES, script);
    unlink(file);
    CHECK_OK(a.j.rc, a.j.err);
    CHECK_INT(a.j.result.exit_code, 0);
    CHECK_STR(a.j.result.summary, "");
    CHECK_HAS(a.j.lines.buf, "0o went on\n");
    CHECK_INT(a.n_failed, 2);
    CHECK_INT((int)a.failed[0].len, 0);
    CHECK_STR(zt_str_get(&a.build[0]), zt_build_name());
    CHECK_HAS(zt_str_get(&a.failed[1]), "exit code 7\nburnt\n");
    CHECK_HAS(zt_str_get(&a.failed[2]), "signal 9");
    /* It is our own clock, so the question lies on its way at most as long as the way took. */
    CHECK(a.n_clocks >= 1 && llabs(a.ahead_ns) <= a.round_trip_ns / 2 + 1);
    release_alone(&a);
}

TEST(launch_nodes_for_themselves_of_another_build)
{
    struct alone a = {
        .j.opts = {.nodes = alone_nodes, .n_nodes = ALONE_NODES, .sink.node = on_node}};
    setenv("TEST_AGENT", "build", 1);
    run_job(&a.j, ALONE_NODES, "report");
    unsetenv("TEST_AGENT");
    CHECK_OK(a.j.rc, a.j.err);
    CHECK_INT(a.j.result.exit_code, 0);
    CHECK_INT(a.n_failed, ALONE_NODES);
    CHECK_STR(zt_str_get(&a.build[1]), "0.0.9, build 00");
    CHECK_HAS(zt_str_get(&a.failed[1]), "elsewhere runs zerotrain 0.0.9, build 00, but here is");
    release_alone(&a);
}

TEST(launch_nodes_for_themselves_that_do_not_answer)
{
    struct alone a = {
        .j.opts = {.nodes = alone_nodes, .n_nodes = ALONE_NODES, .sink.node = on_node}};
    setenv("TEST_AGENT", "missing", 1);
    run_job(&a.j, ALONE_NODES, "report");
    unsetenv("TEST_AGENT");
    CHECK_OK(a.j.rc, a.j.err);
    CHECK_INT(a.n_failed, ALONE_NODES);
    CHECK_INT(a.n_clocks, 0);
    CHECK_HAS(zt_str_get(&a.failed[2]),
              "exit code 127; it said: bash: zerotrain: command not found");
    release_alone(&a);
}

/* Workers of ours that are another command of the program. */
TEST(launch_another_command)
{
    struct job j = {.opts = {.own_command = "other"}};
    run_job(&j, 2, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 2);
    CHECK_HAS(j.reports.buf, "note <the other> ");
    release_job(&j);
}

TEST(launch_nodes_that_do_not_add_up)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 2, .address = "a"},
                                           {.n_workers = 1, .address = ""}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2}};
    run_job(&j, 3, "report");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "node 1 has no address");
    j.opts.n_nodes = 1;
    run_job(&j, 3, "report");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "3 workers in all, but 2 on the nodes");
    release_job(&j);
}

TEST(launch_a_rank_gives_once)
{
    struct job j = {0};
    run_job(&j, 2, "gather_twice");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_HAS(j.notices.buf,
              "rank 1 is ended: its messages make no sense: unexpected frame (type 9");
    release_job(&j);
}

TEST(launch_most_workers)
{
    struct job j = {0};
    run_job(&j, 64, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 64);
    CHECK_HAS(j.reports.buf, "63 63/64 local 63");
    CHECK(!strstr(j.reports.buf, "no arena") && !strstr(j.reports.buf, "no control"));
    release_job(&j);
}

TEST(launch_interrupt_asks_first)
{
    struct job j = {.raise_at_report = 2, .raise_what = SIGINT};
    run_job(&j, 2, "soft");
    CHECK_OK(j.rc, j.err);
    CHECK_HAS(j.reports.buf, "0 bye\n");
    CHECK_HAS(j.reports.buf, "1 bye\n");
    CHECK_HAS(j.notices.buf, "finishing this step; Ctrl-C again to end now");
    CHECK_INT(j.result.exit_code, 128 + SIGINT);
    CHECK_INT(j.result.first_rank, -1);
    CHECK_HAS(j.result.summary, "stopped by signal 2");
    release_job(&j);
}

TEST(launch_term_ends_all)
{
    struct job j = {.raise_at_report = 2, .raise_what = SIGTERM};
    run_job(&j, 2, "soft");
    CHECK_OK(j.rc, j.err);
    CHECK(!strstr(j.reports.buf, "bye"));
    CHECK_INT(j.result.exit_code, 128 + SIGTERM);
    CHECK_INT(j.result.told, SIGTERM);
    release_job(&j);
}

TEST(launch_lost_peer_is_not_the_first_failure)
{
    char dir[] = "/tmp/zt-test-XXXXXX";
    struct zt_str fifo = {0};
    struct job j = {0};
    CHECK(mkdtemp(dir));
    zt_str_printf(&fifo, "%s/fifo", dir);
    CHECK(mkfifo(fifo.buf, 0600) == 0);
    setenv("TEST_FIFO", fifo.buf, 1);
    run_job(&j, 2, "peer_lost");
    unlink(fifo.buf);
    rmdir(dir);
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_INT(j.result.exit_code, 3);
    CHECK_HAS(j.result.summary, "rank 1 on ");
    CHECK_HAS(j.result.summary, "exit code 3");
    CHECK_HAS(j.result.summary, "  | disk on fire");
    release_job(&j);
    zt_str_release(&fifo);
}

TEST(launch_malformed_worker_is_ended)
{
    struct job j = {0};
    run_job(&j, 2, "garbage");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_INT(j.result.exit_code, 128 + SIGKILL);
    CHECK_HAS(j.notices.buf, "rank 1 is ended: its messages make no sense");
    release_job(&j);
}

TEST(launch_own_worker_needs_an_agent)
{
    struct zt_worker w;
    struct zt_err err;
    unsetenv("ZT_JOB_FD");
    CHECK_INT(zt_worker_join(&w, &err), ZT_EINPUT);
    setenv("ZT_JOB_FD", "77", 1);
    CHECK_INT(zt_worker_join(&w, &err), ZT_EINPUT);
    CHECK_HAS(err.msg, "ZT_JOB_FD=77 is not an open descriptor");
    unsetenv("ZT_JOB_FD");
}

/* ---- agents that misbehave ---- */

static void run_with_agent(struct job *j, const char *agent)
{
    setenv("TEST_AGENT", agent, 1);
    run_shell(j, 1, "echo hi");
    unsetenv("TEST_AGENT");
}

TEST(launch_skips_a_banner)
{
    struct job j = {0};
    run_with_agent(&j, "banner");
    CHECK_OK(j.rc, j.err);
    CHECK_STR(j.lines.buf, "0o hi\n");
    CHECK_INT(j.result.exit_code, 0);
    release_job(&j);
}

TEST(launch_agent_of_another_version)
{
    struct job j = {0};
    run_with_agent(&j, "version");
    CHECK_INT(j.rc, ZT_EPROTO);
    char versions[80];
    snprintf(versions, sizeof versions,
             "the other end speaks protocol version 9, this zerotrain version %d",
             ZT_PROTO_VERSION);
    CHECK_HAS(j.err.msg, versions);
    release_job(&j);
}

TEST(launch_agent_of_another_build)
{
    struct job j = {0};
    run_with_agent(&j, "build");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "runs zerotrain 0.0.9, build 00, but here is zerotrain " ZT_VERSION);
    CHECK_HAS(j.err.msg, zt_build_name());
    release_job(&j);
}

TEST(launch_agent_that_is_not_there)
{
    struct job j = {0};
    run_with_agent(&j, "missing");
    CHECK_INT(j.rc, ZT_EPEER);
    CHECK_HAS(j.err.msg, "it said: bash: zerotrain: command not found");
    CHECK(!j.result.started && j.result.node_end[0] == ZT_NODE_NO_START);
    release_job(&j);
}

TEST(launch_agent_falls_silent)
{
    struct job j = {.opts.silence_s = 0.3};
    run_with_agent(&j, "silent");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 1);
    CHECK_HAS(j.result.summary, "the agent on elsewhere was lost: it has been silent for");
    CHECK(j.result.started && j.result.node_end[0] == ZT_NODE_LOST);
    release_job(&j);
}

TEST(launch_agent_talks_nonsense)
{
    struct job j = {0};
    run_with_agent(&j, "garbage");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 1);
    CHECK_HAS(j.result.summary, "not a frame of zerotrain");
    release_job(&j);
}

/* ---- any program ---- */

TEST(launch_many_ranks)
{
    struct job j = {0};
    run_shell(&j, 64, "echo \"$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE\"; echo to err >&2");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    for (int r = 0; r < 64; r++) {
        char want[64];
        snprintf(want, sizeof want, "%do %d %d 64 64\n", r, r, r);
        CHECK_HAS(j.lines.buf, want);
        snprintf(want, sizeof want, "%de to err\n", r);
        CHECK_HAS(j.lines.buf, want);
    }
    release_job(&j);
}

TEST(launch_early_end_of_one_rank_is_fine)
{
    struct job j = {0};
    run_shell(&j, 3, "[ $RANK = 0 ] || sleep 0.2; printf 'end of %s' $RANK");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_HAS(j.lines.buf, "2o end of 2\n");
    release_job(&j);
}

TEST(launch_program_that_cannot_be_run)
{
    const char *argv[] = {"/nonexistent/program", NULL};
    struct job j = {.opts.program = argv};
    run_job(&j, 2, "");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 127);
    CHECK_HAS(j.result.summary, "cannot run /nonexistent/program: No such file or directory");
    release_job(&j);
}

TEST(launch_refuses_bad_options)
{
    static const char *const rank_env[] = {"RANK=3"}, *const bad_env[] = {"A B=3"};
    struct job j = {.opts = {.env = rank_env, .n_env = 1}};
    run_shell(&j, 1, "true");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "RANK cannot be given");
    j.opts.env = bad_env;
    run_shell(&j, 1, "true");
    CHECK_INT(j.rc, ZT_EINPUT);
    j.opts.n_env = 0;
    run_shell(&j, 0, "true");
    CHECK_INT(j.rc, ZT_EINPUT);
    run_job(&j, 65, "report"); /* more than shared memory joins */
    CHECK_INT(j.rc, ZT_EUNSUPPORTED);
    release_job(&j);
}

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

/* A stuck reader does not keep a job from being ended. */
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

/* ---- the agent alone ---- */

struct talk {
    pid_t pid;
    struct zt_link link;
    struct zt_str seen; /* "TYPE " of each frame that came */
    int status;
};

static void start_talk(struct talk *t)
{
    int sock[2];
    struct zt_err err;
    memset(t, 0, sizeof *t);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
    t->pid = fork();
    if (t->pid == 0) {
        static char name[] = "test_launch", cmd[] = "agent";
        char *const argv[] = {name, cmd, NULL};
        dup2(sock[1], 0);
        dup2(sock[1], 1);
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    close(sock[1]);
    CHECK_OK(zt_link_open(&t->link, sock[0], sock[0], &err), err);
}

/* Read until frame `type` comes, or the end; send no heartbeat meanwhile. */
static void hear(struct talk *t, int type)
{
    struct zt_frame f;
    struct zt_err err;
    for (;;) {
        struct pollfd p = {.fd = t->link.rfd, .events = POLLIN};
        poll(&p, 1, -1);
        int rc = zt_link_read(&t->link);
        while (rc > 0 && (rc = zt_frame_next(&t->link.in, &f, &err)) > 0) {
            zt_str_printf(&t->seen, "%d ", f.type);
            if (f.type == type)
                return;
        }
        if (rc < 0)
            return;
    }
}

static void end_talk(struct talk *t)
{
    waitpid(t->pid, &t->status, 0);
    zt_link_close(&t->link);
    zt_str_release(&t->seen);
}

static void put_job(struct zt_str *out, const char *program, int64_t silence_ns)
{
    static char arg[] = "600";
    char *argv[] = {(char *)program, arg, NULL};
    struct zt_job job = {
        .n_workers = 2, .world = 2, .argv = argv, .grace_ns = 1000000000, .silence_ns = silence_ns};
    size_t at = zt_frame_begin(out, ZT_FRAME_JOB);
    zt_job_put(&job, out);
    zt_frame_end(out, at);
}

TEST(agent_ends_its_workers_when_the_front_end_is_silent)
{
    struct talk t;
    start_talk(&t);
    RETURN_IF_FAILED();
    put_job(&t.link.out, "sleep", 300000000);
    zt_link_flush(&t.link);
    hear(&t, -1);
    end_talk(&t);
    CHECK(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 1);
}

TEST(agent_takes_frames_byte_by_byte)
{
    struct talk t;
    start_talk(&t);
    RETURN_IF_FAILED();
    put_job(&t.link.out, "false", (int64_t)15000000000);
    for (size_t i = 0; i < t.link.out.len; i++)
        CHECK(send(t.link.wfd, t.link.out.buf + i, 1, MSG_NOSIGNAL) == 1);
    zt_str_reset(&t.link.out);
    hear(&t, ZT_FRAME_END);
    CHECK_STR(t.seen.buf, "1 19 19 21 ");
    end_talk(&t);
    CHECK(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 0);
}

TEST(agent_refuses_another_version)
{
    struct talk t;
    start_talk(&t);
    RETURN_IF_FAILED();
    t.link.out.buf[sizeof ZT_PROTO_MARKER - 1 + 4] = 9;
    zt_link_flush(&t.link);
    hear(&t, -1);
    CHECK_STR(t.seen.buf, "1 "); /* its HELLO, for our own message */
    end_talk(&t);
    CHECK(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 1);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "agent") == 0)
        return agent_main();
    if (argc == 2 && strcmp(argv[1], "worker") == 0)
        return worker_main();
    if (argc == 2 && strcmp(argv[1], "other") == 0) {
        setenv("NOTE", "the other", 1);
        return worker_main();
    }
    return zt_run_tests(argc, argv);
}
