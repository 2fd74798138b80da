/*
 * jobs.h: whole jobs. The program is front end, agent and worker, as zerotrain is, so main() is here: a worker does
 * what TEST_WORKER in its environment says, an agent what TEST_AGENT says, and what they come to is in struct job.
 */
#ifndef ZT_TEST_JOBS_H
#define ZT_TEST_JOBS_H

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

static inline int worker_report(struct zt_worker *w)
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
static inline int worker_share(struct zt_worker *w)
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
static inline int worker_gather(struct zt_worker *w)
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
static inline int worker_gather_twice(struct zt_worker *w)
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
static inline int worker_soft(struct zt_worker *w)
{
    struct zt_err err;
    if (zt_worker_stop_requested(w) || zt_worker_report(w, "ready", 5, &err))
        return 1;
    while (!zt_worker_stop_requested(w))
        poll(NULL, 0, 1);
    return zt_worker_stop_requested(w) && zt_worker_report(w, "bye", 3, &err) == 0 ? 0 : 1;
}

/* Report without end, and when asked to end once more. */
static inline int worker_chatter(struct zt_worker *w)
{
    struct zt_err err;
    char text[1000];
    memset(text, 'x', sizeof text);
    while (!zt_worker_stop_requested(w))
        if (zt_worker_report(w, text, sizeof text, &err))
            return 1;
    return zt_worker_report(w, "the last", 8, &err) ? 1 : 0;
}

/* Rank 0 loses a peer first; rank 1, whose own failure it was, ends only after that. */
static inline int worker_peer_lost(struct zt_worker *w)
{
    const char *fifo = getenv("TEST_FIFO");
    FILE *f = fopen(fifo, w->rank == 0 ? "w" : "r"); /* waits for the other one */
    if (!f)
        return 2;
    if (w->rank == 0)
        return ZT_EXIT_PEER_LOST;
    fprintf(stderr, "disk on fire\n");
    _exit(fgetc(f) == EOF ? 3 : 2); /* at once: what a sanitizer does at the end takes its time */
}

/* Ranks 0 and 2 do not reach each other; rank 1, which reaches both, is the first to end. */
static inline int worker_apart(struct zt_worker *w)
{
    struct zt_err err;
    char mine = 0, all[3];
    if (w->rank == 0 || w->rank == 2)
        zt_worker_apart(w, 2 - w->node);
    if (w->world > 3 || zt_worker_gather(w, &mine, 1, all, &err))
        return 1;
    if (w->rank == 1)
        return ZT_EXIT_PEER_LOST;
    for (;;)
        pause();
}

/* The rank does not reach a node that there is not. */
static inline int worker_apart_from_none(struct zt_worker *w)
{
    zt_worker_apart(w, w->n_nodes);
    return poll(NULL, 0, -1);
}

static inline int worker_garbage(struct zt_worker *w)
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
static inline int worker_flood(struct zt_worker *w)
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

static inline int worker_main(void)
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
    else if (strcmp(what, "apart") == 0)
        rc = worker_apart(&w);
    else if (strcmp(what, "apart_from_none") == 0)
        rc = worker_apart_from_none(&w);
    else if (strcmp(what, "garbage") == 0)
        rc = worker_garbage(&w);
    else if (strcmp(what, "chatter") == 0)
        rc = worker_chatter(&w);
    else if (strcmp(what, "flood") == 0)
        rc = worker_flood(&w);
    zt_worker_release(&w);
    return rc;
}

/* ---- the agent ---- */

static inline void say(const struct zt_str *s)
{
    struct zt_err err;
    if (zt_write_full(STDOUT_FILENO, s->buf, s->len, "stdout", &err))
        _exit(1);
}

static inline int agent_main(void)
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
    int rc = zt_agent_main(false, &err);
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

static inline void on_line(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len)
{
    struct job *j = ctx;
    zt_str_printf(&j->lines, "%d%c %.*s\n", rank, s == ZT_LOG_STDOUT ? 'o' : 'e', (int)len, line);
}

static inline void on_report(void *ctx, int rank, const char *json, size_t len)
{
    struct job *j = ctx;
    zt_str_printf(&j->reports, "%d %.*s\n", rank, (int)len, json);
    if (++j->n_reports == j->raise_at_report)
        raise(j->raise_what);
}

static inline void on_notice(void *ctx, const char *text)
{
    struct job *j = ctx;
    zt_str_printf(&j->notices, "%s\n", text);
    if (j->close_at_notice)
        close(j->close_at_notice);
    j->close_at_notice = 0;
}

static inline void run_job(struct job *j, int n, const char *worker)
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
static inline void run_shell(struct job *j, int n, const char *script)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    j->opts.program = argv;
    run_job(j, n, "");
    j->opts.program = NULL;
}

static inline void release_job(struct job *j)
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

/* ---- the program ---- */

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

#endif
