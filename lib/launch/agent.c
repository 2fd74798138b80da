/*
 * The node agent: starts this host's workers, passes their output up, and leaves nothing running
 * whatever dies first. One thread, one poll loop.
 */
#include "launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "coll/coll.h"
#include "launch/blame.h"
#include "launch/proctree.h"
#include "launch/rendezvous.h"
#include "launch/spawn.h"

enum {
    LEFTOVER_MS = 1000,     /* helpers of a worker that ended well may take this long to go */
    KILL_GIVE_UP_MS = 5000, /* a process in an uninterruptible wait cannot be killed: say so */
    KILL_POLL_MS = 20,
    CLAIM_MS = 40 * 1000, /* an earlier attempt ends its processes here in half of that */
};

struct agent {
    struct zt_link front;
    int sig_fd;
    bool greeted;
    struct zt_env env;
    struct zt_job job;
    bool has_job, started;
    int64_t claims_ns;     /* since when an earlier attempt of it is waited for; 0: it is not */
    struct zt_proc *procs; /* (job.n_workers); the first n_procs were started */
    int n_procs, n_alive;
    int shm_control_fd;
    int *arena_fds; /* (job.n_workers); NULL: no shared memory */
    int64_t oom_before;
    int64_t silence_ns;
    bool paused;
    bool held;  /* the front end's reader is slow: the workers wait */
    bool joins; /* it came to the front end by itself, which may need it later, or not at all */
    bool aside; /* we and our workers ignore signals (zt_spawn_agent()) */
    enum zt_stop stop;
    int64_t stop_ns; /* since when `stop` is what it is */
    int64_t idle_ns; /* since when no worker lives */
    int end_signal;
    bool asked; /* the front end was told of a signal */
    bool finished;
    int rc;
};

static int64_t ms_to_ns(int64_t ms)
{
    return ms * 1000000;
}

/* ---- to the front end ---- */

static ZT_PRINTF(2, 3) void notice(struct agent *a, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    zt_frame_put(&a->front.out, ZT_FRAME_NOTICE, text, strlen(text));
}

struct log_target {
    struct agent *a;
    int rank;
    enum zt_log_stream stream;
};

static void send_line(void *ctx, const char *line, size_t len)
{
    const struct log_target *t = ctx;
    struct zt_str *out = &t->a->front.out;
    size_t at = zt_frame_begin(out, ZT_FRAME_LOG);
    zt_put_u32(out, (uint32_t)t->rank);
    zt_put_u32(out, t->stream);
    zt_str_add(out, line, len);
    zt_frame_end(out, at);
}

/* ---- from the workers ---- */

/* Read a worker's output once. Returns whether there may be more. */
static bool read_log(struct agent *a, struct zt_proc *p, enum zt_log_stream stream)
{
    char chunk[ZT_LINK_CHUNK];
    struct log_target t = {a, p->rank, stream};
    if (p->log_fd[stream] < 0)
        return false;
    ssize_t n = read(p->log_fd[stream], chunk, sizeof chunk);
    if (n > 0) {
        zt_lines_feed(&p->lines[stream], chunk, (size_t)n, send_line, &t);
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    zt_lines_end(&p->lines[stream], send_line, &t);
    close(p->log_fd[stream]);
    p->log_fd[stream] = -1;
    return false;
}

/* With its rank before it. */
static void pass_up(struct agent *a, const struct zt_proc *p, const struct zt_frame *f)
{
    struct zt_str *out = &a->front.out;
    size_t at = zt_frame_begin(out, (enum zt_frame_type)f->type);
    zt_put_u32(out, (uint32_t)p->rank);
    zt_str_add(out, f->data, f->len);
    zt_frame_end(out, at);
}

/* Read a worker's socket once. Returns whether there may be more. */
static bool read_reports(struct agent *a, struct zt_proc *p)
{
    struct zt_frame f;
    struct zt_err err;
    if (!p->link.open || zt_link_read(&p->link) <= 0)
        return false;
    int rc;
    while ((rc = zt_frame_next(&p->link.in, &f, &err)) > 0) {
        if ((f.type == ZT_FRAME_REPORT && f.len <= ZT_REPORT_MAX_BYTES) ||
            (f.type == ZT_FRAME_APART && f.len == 4)) {
            pass_up(a, p, &f);
        } else if (f.type == ZT_FRAME_GATHER && !p->gathers && f.len <= ZT_SHARE_MAX_BYTES) {
            p->gathers = true;
            pass_up(a, p, &f);
        } else if (f.type != ZT_FRAME_HELLO) {
            rc =
                zt_err_set(&err, ZT_EPROTO, "unexpected frame (type %u, %zu bytes)", f.type, f.len);
            break;
        }
    }
    if (rc == 0)
        return true;
    notice(a, "rank %d is ended: its messages make no sense: %s", p->rank, err.msg);
    zt_link_close(&p->link);
    if (p->pid)
        kill(p->pid, SIGKILL);
    return false;
}

/* Everything a dead worker said before it died; a child of it may go on writing, so only so much. */
static void drain(struct agent *a, struct zt_proc *p)
{
    enum { READS_MAX = 64 };
    for (int i = 0; i < READS_MAX && read_reports(a, p); i++)
        ;
    for (int s = 0; s < 2; s++) {
        struct log_target t = {a, p->rank, (enum zt_log_stream)s};
        for (int i = 0; i < READS_MAX && read_log(a, p, t.stream); i++)
            ;
        zt_lines_end(&p->lines[s], send_line, &t);
    }
}

static void bury(struct agent *a, struct zt_proc *p, int status)
{
    struct zt_death d = {
        .rank = p->rank,
        .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
        .code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
        .dumped_core = WIFSIGNALED(status) && WCOREDUMP(status),
        .stop = a->stop,
    };
    bool well = zt_death_kind(&d) == ZT_DEATH_WELL;
    if (!well && a->arena_fds)
        zt_shm_job_abort(a->shm_control_fd); /* first of all: the others wait for it */
    d.oom = d.signal == SIGKILL && a->oom_before >= 0 && zt_oom_kills() > a->oom_before;
    p->pid = 0;
    if (--a->n_alive == 0)
        a->idle_ns = zt_now_ns();
    drain(a, p);
    size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_EXIT);
    zt_death_put(&d, &a->front.out);
    zt_frame_end(&a->front.out, at);
}

/* Returns true when no process is left below us. */
static bool reap(struct agent *a)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return pid < 0 && errno == ECHILD;
        for (int i = 0; i < a->n_procs; i++) {
            if (a->procs[i].pid == pid)
                bury(a, &a->procs[i], status);
        }
    }
}

/* ---- starting ---- */

static void send_task(struct agent *a, struct zt_proc *p, int local)
{
    struct zt_str *out = &p->link.out;
    size_t at = zt_frame_begin(out, ZT_FRAME_TASK);
    zt_put_u32(out, (uint32_t)p->rank);
    zt_put_u32(out, (uint32_t)a->job.world);
    zt_put_u32(out, (uint32_t)local);
    zt_put_u32(out, (uint32_t)a->job.threads);
    zt_put_u32(out, (uint32_t)a->shm_control_fd);
    zt_put_u32(out, (uint32_t)a->job.n_workers);
    for (int i = 0; i < a->job.n_workers; i++)
        zt_put_u32(out, (uint32_t)a->arena_fds[i]);
    zt_device_put(&a->job.device, out);
    zt_nodes_put(&a->job.nodes, a->job.world, out);
    zt_str_add(out, a->job.secret, sizeof a->job.secret);
    zt_put_blob(out, a->job.recipe, a->job.recipe_len);
    zt_frame_end(out, at);
}

static int start_workers(struct agent *a, struct zt_err *err)
{
    int n = a->job.n_workers;
    a->procs = zt_xcalloc((size_t)n, sizeof *a->procs);
    a->oom_before = zt_oom_kills();
    if (a->job.own) {
        int *fds = zt_xcalloc((size_t)n, sizeof *fds);
        int rc = zt_shm_job_create(n, &a->shm_control_fd, fds, err);
        if (rc) {
            free(fds);
            return rc;
        }
        a->arena_fds = fds; /* inherited by every worker under the same numbers */
    }
    for (int i = 0; i < n; i++) {
        int rc = zt_proc_start(&a->procs[i], &a->job, i, &a->env, err);
        a->n_procs++;
        a->n_alive += a->procs[i].pid > 0;
        if (rc)
            return rc;
        if (a->job.own)
            send_task(a, &a->procs[i], i);
    }
    return 0;
}

/* ---- stopping ---- */

static void signal_workers(struct agent *a, int sig)
{
    int n = sig == SIGKILL ? zt_tree_kill(NULL) : zt_tree_signal(NULL, sig);
    for (int i = 0; n < 0 && i < a->n_procs; i++) {
        if (a->procs[i].pid)
            kill(-a->procs[i].pid, sig);
    }
}

static void raise_stop(struct agent *a, enum zt_stop level)
{
    if (level <= a->stop)
        return;
    if (level == ZT_STOP_TERM && a->aside)
        level = ZT_STOP_KILL; /* workers of ours have nothing to tidy up */
    a->stop = level;
    a->stop_ns = zt_now_ns();
    if (level == ZT_STOP_SOFT) {
        for (int i = 0; i < a->n_procs; i++) {
            if (a->procs[i].link.open)
                zt_frame_put(&a->procs[i].link.out, ZT_FRAME_STOP, NULL, 0);
        }
        return;
    }
    signal_workers(a, level == ZT_STOP_KILL ? SIGKILL : SIGTERM);
    if (level == ZT_STOP_TERM) /* one that is suspended would not see it */
        signal_workers(a, SIGCONT);
}

static void finish(struct agent *a)
{
    for (int i = 0; i < a->n_procs; i++)
        drain(a, &a->procs[i]);
    size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_END);
    zt_put_u32(&a->front.out, (uint32_t)a->end_signal);
    zt_frame_end(&a->front.out, at);
    a->finished = true;
}

/* Start the workers, unless those of an earlier attempt are still there. */
static void begin(struct agent *a)
{
    struct zt_err err;
    int rc = 0;
    if (!zt_claim(a->job.claim)) {
        const int64_t now_ns = zt_now_ns();
        if (!a->claims_ns) {
            notice(
                a,
                "processes of the attempt before this one are still there: waiting for their end");
            a->claims_ns = now_ns;
        }
        if (now_ns - a->claims_ns < ms_to_ns(CLAIM_MS))
            return;
        rc = zt_err_set(&err, ZT_ESYS, "processes of the attempt before this one do not end there");
    }
    a->claims_ns = 0;
    a->started = true;
    if (!rc && a->job.dir[0] && chdir(a->job.dir))
        rc = zt_err_errno(&err, ZT_EIO,
                          "the folder %s, which training was started in and every host needs",
                          a->job.dir);
    if (!rc)
        rc = start_workers(a, &err);
    if (rc) { /* not the link's fault: say it over the link */
        struct zt_str *out = &a->front.out;
        size_t at = zt_frame_begin(out, ZT_FRAME_FAIL);
        zt_put_u32(out, (uint32_t)rc);
        zt_str_puts(out, err.msg);
        zt_frame_end(out, at);
        raise_stop(a, ZT_STOP_KILL);
    }
}

/* What time and deaths bring about. */
static void advance(struct agent *a, int64_t now_ns)
{
    if (a->claims_ns && a->stop == ZT_STOP_NONE)
        begin(a);
    bool empty = reap(a);
    if (a->finished)
        return;
    if (!a->started ? a->stop != ZT_STOP_NONE : empty) {
        finish(a);
    } else if (a->started && a->n_alive == 0 && a->stop < ZT_STOP_TERM) {
        if (now_ns - a->idle_ns > ms_to_ns(LEFTOVER_MS)) {
            notice(a, "all ranks have ended; ending the processes that they left behind");
            raise_stop(a, ZT_STOP_TERM);
        }
    } else if (a->stop == ZT_STOP_TERM && now_ns - a->stop_ns > a->job.grace_ns) {
        raise_stop(a, ZT_STOP_KILL);
    } else if (a->stop == ZT_STOP_KILL) {
        if (now_ns - a->stop_ns > ms_to_ns(KILL_GIVE_UP_MS)) {
            notice(a,
                   "some processes do not die of SIGKILL (a disk or driver holds them); they are "
                   "left behind");
            a->rc = 1;
            finish(a);
        } else {
            signal_workers(a, SIGKILL);
        }
    }
}

/* ---- from the front end ---- */

static int take_job(struct agent *a, const struct zt_frame *f, struct zt_err *err)
{
    if (a->has_job)
        return zt_err_set(err, ZT_EPROTO, "a second job");
    int rc = zt_job_get(&a->job, f, err);
    if (rc)
        return rc;
    a->has_job = true;
    a->silence_ns = a->job.silence_ns;
    if (a->stop == ZT_STOP_NONE) /* else a signal came before it */
        begin(a);
    return 0;
}

static int handle_frame(struct agent *a, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    if (a->greeted != (f->type != ZT_FRAME_HELLO))
        return zt_err_set(err, ZT_EPROTO, "frame of type %u where HELLO belongs, or a second HELLO",
                          f->type);
    switch (f->type) {
    case ZT_FRAME_HELLO:
        a->greeted = true;
        zt_meeting_has_beats(a->front.wfd);
        return 0;
    case ZT_FRAME_BEAT:
        return 0;
    case ZT_FRAME_ENV: {
        int rc = zt_env_check((const char *)f->data, f->len, err);
        if (!rc)
            zt_env_set(&a->env, (const char *)f->data, f->len);
        return rc;
    }
    case ZT_FRAME_JOB:
        return take_job(a, f, err);
    case ZT_FRAME_STOP: {
        uint32_t level = zt_get_u32(&c);
        if (!zt_cursor_done(&c) || level > ZT_STOP_KILL)
            return zt_err_set(err, ZT_EPROTO, "malformed STOP frame");
        raise_stop(a, (enum zt_stop)level);
        return 0;
    }
    case ZT_FRAME_GATHER:
        if (!a->started || !a->job.own)
            return zt_err_set(err, ZT_EPROTO, "GATHER frame without workers");
        for (int i = 0; i < a->n_procs; i++) {
            a->procs[i].gathers = false;
            if (a->procs[i].link.open)
                zt_frame_put(&a->procs[i].link.out, ZT_FRAME_GATHER, f->data, f->len);
        }
        return 0;
    case ZT_FRAME_CLOCK: {
        const int64_t wall_ns = zt_wall_ns();
        size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_CLOCK);
        zt_put_u32(&a->front.out, (uint32_t)(wall_ns / 1000000000));
        zt_put_u32(&a->front.out, (uint32_t)(wall_ns % 1000000000));
        zt_frame_end(&a->front.out, at);
        return 0;
    }
    case ZT_FRAME_FAIL: {
        const int code = (int)zt_get_u32(&c);
        return zt_err_set(err, code < 0 ? (enum zt_code)code : ZT_EPROTO, "%.*s", (int)c.left,
                          (const char *)c.p);
    }
    case ZT_FRAME_HOLD:
        a->held = zt_get_u32(&c) != 0;
        return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed HOLD frame");
    case ZT_FRAME_PAUSE:
    case ZT_FRAME_RESUME:
        a->paused = f->type == ZT_FRAME_PAUSE;
        signal_workers(a, a->paused ? SIGSTOP : SIGCONT);
        return 0;
    default:
        return zt_err_set(err, ZT_EPROTO, "frame of unknown type %u", f->type);
    }
}

/* The front end is gone or makes no sense: nobody needs the workers any more. */
static void lose_front(struct agent *a)
{
    zt_link_close(&a->front);
    a->held = false;
    a->rc = 1;
    raise_stop(a, ZT_STOP_TERM);
}

static void read_front(struct agent *a, struct zt_err *err)
{
    struct zt_frame f;
    int rc = zt_link_read(&a->front);
    if (rc == ZT_EPEER) {
        const bool needed = a->greeted || !a->joins;
        if (!a->finished && needed)
            zt_err_set(err, ZT_EPEER, "the front end is gone%s", zt_link_end(&a->front));
        lose_front(a);
        a->rc = needed;
        return;
    }
    while (rc > 0 && (rc = zt_frame_next(&a->front.in, &f, err)) > 0) {
        int bad = handle_frame(a, &f, err);
        if (bad) {
            rc = bad;
            break;
        }
    }
    if (rc < 0) {
        zt_err_wrap(err, "from the front end");
        zt_link_flush(&a->front); /* our HELLO may still tell it what is wrong */
        lose_front(a);
    }
}

/*
 * Told to make room, as batch systems tell every process of a job: whether a training saves first is decided
 * for all hosts, by the front end. Once more ends our workers, and so does anything else.
 */
static bool asks_front(struct agent *a, int sig)
{
    const bool asks = (sig == SIGTERM || sig == SIGUSR1) && a->started && a->job.own &&
                      a->front.open && !a->asked && a->stop < ZT_STOP_TERM;
    if (asks) {
        size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_SIGNAL);
        zt_put_u32(&a->front.out, (uint32_t)sig);
        zt_frame_end(&a->front.out, at);
        a->asked = true;
    }
    return asks;
}

static void read_signals(struct agent *a)
{
    struct signalfd_siginfo si;
    while (read(a->sig_fd, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD || a->end_signal || asks_front(a, (int)si.ssi_signo))
            continue;
        a->end_signal = (int)si.ssi_signo;
        raise_stop(a, ZT_STOP_TERM);
    }
}

/* ---- the loop ---- */

static struct pollfd poll_entry(int fd, int events)
{
    /* poll reports a hang-up even when asked for nothing: leave such descriptors out. */
    return (struct pollfd){.fd = events ? fd : -1, .events = (short)events};
}

static void poll_once(struct agent *a, struct pollfd *p, struct zt_err *err)
{
    bool full = zt_link_backlog(&a->front) >= ZT_LINK_FULL || a->held; /* then the workers wait */
    int in = full ? 0 : POLLIN;
    p[0] = poll_entry(a->sig_fd, POLLIN);
    p[1] = poll_entry(a->front.rfd, POLLIN);
    p[2] = poll_entry(a->front.wfd, zt_link_backlog(&a->front) ? POLLOUT : 0);
    for (int i = 0; i < a->n_procs; i++) {
        const struct zt_link *link = &a->procs[i].link;
        int out = link->wfd >= 0 && zt_link_backlog(link) ? POLLOUT : 0;
        p[3 + 3 * i] = poll_entry(a->procs[i].log_fd[0], in);
        p[4 + 3 * i] = poll_entry(a->procs[i].log_fd[1], in);
        p[5 + 3 * i] = poll_entry(link->open ? link->rfd : -1, in | out);
    }
    if (poll(p, (nfds_t)(3 + 3 * a->n_procs),
             a->stop == ZT_STOP_KILL || a->finished ? KILL_POLL_MS : ZT_POLL_MS) < 0)
        return;
    int n_polled = a->n_procs; /* reading the front end may start more */
    read_signals(a);
    for (int i = 0; i < n_polled; i++) {
        for (int s = 0; s < 2; s++) {
            if (p[3 + 3 * i + s].revents)
                read_log(a, &a->procs[i], (enum zt_log_stream)s);
        }
        if (p[5 + 3 * i].revents & ~POLLOUT)
            read_reports(a, &a->procs[i]);
    }
    if (p[1].revents)
        read_front(a, err);
}

static void run(struct agent *a, struct zt_err *err)
{
    struct pollfd *polls = zt_xcalloc(3 + 3 * ZT_LAUNCH_MAX_WORKERS, sizeof *polls);
    while (!a->finished || zt_link_backlog(&a->front) > 0) {
        poll_once(a, polls, err);
        int64_t now_ns = zt_now_ns();
        advance(a, now_ns);
        /* Not needed yet: what is sent into a cut link hides that from the kernel (zt_meeting_keepalive()). */
        if (a->greeted || !a->joins)
            zt_link_tick(&a->front, now_ns);
        if (a->paused)
            a->front.silent_ns = 0;
        if (a->front.open && a->front.silent_ns > a->silence_ns) {
            zt_err_set(err, ZT_EPEER, "the front end has been silent for %g s",
                       (double)a->silence_ns * 1e-9);
            lose_front(a);
        }
        for (int i = 0; i < a->n_procs; i++) {
            if (a->procs[i].link.open)
                zt_link_flush(&a->procs[i].link);
        }
        zt_link_flush(&a->front);
    }
    free(polls);
}

static void release(struct agent *a)
{
    for (int i = 0; i < a->n_procs; i++)
        zt_proc_release(&a->procs[i]);
    free(a->procs);
    free(a->arena_fds); /* the descriptors end with the process */
    zt_job_release(&a->job);
    zt_env_release(&a->env);
    zt_link_close(&a->front);
    close(a->sig_fd);
}

/*
 * By a ticket. Until it is in, the front end does not know of it, and who has started it is the only one to end it;
 * he is told when it is.
 */
static int join(struct agent *a, struct zt_err *err)
{
    struct zt_meeting m;
    struct pollfd starter = {.fd = STDIN_FILENO};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rc = zt_ticket_read(STDIN_FILENO, &m, err);
    if (!rc && (poll(&starter, 1, 0) < 0 || starter.revents & POLLHUP)) /* dead before prctl() */
        rc = zt_err_set(err, ZT_EPEER, "the process that has started this agent is gone");
    if (!rc)
        rc = zt_meeting_dial(&m, ZT_PARTY_AGENT, &a->front, err);
    explicit_bzero(&m, sizeof m);
    prctl(PR_SET_PDEATHSIG, 0);
    if (!rc)
        (void)!write(STDOUT_FILENO, "", 1);
    return rc;
}

static int open_front(struct agent *a, struct zt_err *err)
{
    return a->joins ? join(a, err) : zt_link_open(&a->front, STDIN_FILENO, STDOUT_FILENO, err);
}

int zt_agent_main(bool joins, struct zt_err *err)
{
    static const int ending[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGQUIT};
    struct agent a = {.joins = joins, .shm_control_fd = -1, .silence_ns = ms_to_ns(ZT_SILENCE_MS)};
    sigset_t mask;
    struct sigaction term;
    a.aside = sigaction(SIGTERM, NULL, &term) == 0 && term.sa_handler == SIG_IGN;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; !a.aside && i < ZT_ARRAY_LEN(ending); i++)
        sigaddset(&mask, ending[i]);
    prctl(PR_SET_NAME, "zerotrain-agent"); /* else "exe", by the link it was started from */
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &mask, NULL) || prctl(PR_SET_CHILD_SUBREAPER, 1)) {
        zt_err_errno(err, ZT_ESYS, "agent");
        return 1;
    }
    a.sig_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (a.sig_fd < 0) {
        zt_err_errno(err, ZT_ESYS, "signalfd");
        return 1;
    }
    zt_env_add_all(&a.env, environ);
    err->msg[0] = '\0';
    if (open_front(&a, err) == 0)
        run(&a, err);
    else
        a.rc = joins ? ZT_AGENT_ASTRAY : 1;
    release(&a);
    return a.rc;
}
