/*
 * The node agent: starts this host's workers, passes their output up, and leaves nothing running
 * whatever dies first. One thread, one poll loop.
 */
#include "launch/agent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "launch/rendezvous.h"

enum { KILL_POLL_MS = 20 };

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
        zt_agent_begin(a);
    return 0;
}

static int set_env(struct agent *a, const struct zt_frame *f, struct zt_err *err)
{
    int rc = zt_env_check((const char *)f->data, f->len, err);
    if (!rc)
        zt_env_set(&a->env, (const char *)f->data, f->len);
    return rc;
}

static int take_stop(struct agent *a, struct zt_cursor c, struct zt_err *err)
{
    const uint32_t level = zt_get_u32(&c);
    if (!zt_cursor_done(&c) || level > ZT_STOP_KILL)
        return zt_err_set(err, ZT_EPROTO, "malformed STOP frame");
    zt_agent_stop(a, (enum zt_stop)level);
    return 0;
}

/* What all ranks have given, to the workers here. */
static int give(struct agent *a, const struct zt_frame *f, struct zt_err *err)
{
    if (!a->started || !a->job.own)
        return zt_err_set(err, ZT_EPROTO, "GATHER frame without workers");
    for (int i = 0; i < a->n_procs; i++) {
        a->procs[i].gathers = false;
        if (a->procs[i].link.open)
            zt_frame_put(&a->procs[i].link.out, ZT_FRAME_GATHER, f->data, f->len);
    }
    return 0;
}

static void tell_clock(struct agent *a)
{
    const int64_t wall_ns = zt_wall_ns();
    size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_CLOCK);
    zt_put_u32(&a->front.out, (uint32_t)(wall_ns / 1000000000));
    zt_put_u32(&a->front.out, (uint32_t)(wall_ns % 1000000000));
    zt_frame_end(&a->front.out, at);
}

static int refused(struct zt_cursor c, struct zt_err *err)
{
    const int code = (int)zt_get_u32(&c);
    return zt_err_set(err, code < 0 ? (enum zt_code)code : ZT_EPROTO, "%.*s", (int)c.left,
                      (const char *)c.p);
}

static int take_hold(struct agent *a, struct zt_cursor c, struct zt_err *err)
{
    a->held = zt_get_u32(&c) != 0;
    return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed HOLD frame");
}

static int handle_frame(struct agent *a, const struct zt_frame *f, struct zt_err *err)
{
    const struct zt_cursor c = zt_cursor_of(f);
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
    case ZT_FRAME_ENV:
        return set_env(a, f, err);
    case ZT_FRAME_JOB:
        return take_job(a, f, err);
    case ZT_FRAME_STOP:
        return take_stop(a, c, err);
    case ZT_FRAME_GATHER:
        return give(a, f, err);
    case ZT_FRAME_CLOCK:
        tell_clock(a);
        return 0;
    case ZT_FRAME_FAIL:
        return refused(c, err);
    case ZT_FRAME_HOLD:
        return take_hold(a, c, err);
    case ZT_FRAME_PAUSE:
    case ZT_FRAME_RESUME:
        a->paused = f->type == ZT_FRAME_PAUSE;
        zt_agent_signal(a, a->paused ? SIGSTOP : SIGCONT);
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
    zt_agent_stop(a, ZT_STOP_TERM);
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
        zt_agent_stop(a, ZT_STOP_TERM);
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
                zt_agent_read_log(a, &a->procs[i], (enum zt_log_stream)s);
        }
        if (p[5 + 3 * i].revents & ~POLLOUT)
            zt_agent_read_reports(a, &a->procs[i]);
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
        zt_agent_advance(a, now_ns);
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
    struct agent a = {
        .joins = joins, .shm_control_fd = -1, .silence_ns = ZT_SILENCE_MS * INT64_C(1000000)};
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
