/*
 * The front end: starts the agent, passes lines and reports to the sink, decides what a death or a
 * signal means for the others, and turns the whole into one exit code. One thread, one poll loop.
 */
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/blame.h"
#include "launch/env.h"
#include "launch/lines.h"
#include "launch/link.h"
#include "launch/ranklog.h"
#include "launch/spawn.h"
#include "launch/supervisor.h"

enum {
    PEER_LOST_MS = 1000, /* how long a lost peer's own report may be behind those that lost it */
};

struct front {
    const struct zt_launch_opts *opts;
    char host[256];
    struct zt_link link;
    int err_fd; /* the agent's stderr */
    struct zt_lines err_lines;
    int sig_fd;  /* of a zt_supervisor */
    pid_t agent; /* 0: not started, or reaped */
    int agent_status;
    bool greeted, ended;
    bool shared;        /* rank 0's SHARE was passed on */
    int end_signal;     /* what the agent said ended it */
    struct zt_err lost; /* code set: the link to the agent failed, and why */
    struct zt_err fail; /* code set: the agent could not start the job */
    struct zt_ranklogs logs;
    bool failed;
    struct zt_death first; /* the first failure, when `failed` */
    int64_t peer_lost_ns;  /* when the first rank lost a peer; 0: none did */
    enum zt_stop stop;
    int user_signal;
    bool preempted; /* that signal told us to make room */
};

static ZT_PRINTF(2, 3) void notice(const struct front *f, const char *fmt, ...)
{
    struct zt_err text;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text.msg, sizeof text.msg, fmt, ap);
    va_end(ap);
    f->opts->sink.notice(f->opts->sink.ctx, text.msg);
}

static void send_stop(struct front *f, enum zt_stop level)
{
    if (level <= f->stop)
        return;
    f->stop = level;
    size_t at = zt_frame_begin(&f->link.out, ZT_FRAME_STOP);
    zt_put_u32(&f->link.out, level);
    zt_frame_end(&f->link.out, at);
}

/* ---- options ---- */

static int check_env(const struct zt_launch_opts *o, struct zt_err *err)
{
    static const char *const ours[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                       "ZT_JOB_FD"};
    for (int i = 0; i < o->n_env; i++) {
        int rc = zt_env_check(o->env[i], strlen(o->env[i]), err);
        if (rc)
            return rc;
        size_t name_len = strcspn(o->env[i], "=");
        for (size_t j = 0; j < ZT_ARRAY_LEN(ours); j++) {
            if (strlen(ours[j]) == name_len && memcmp(ours[j], o->env[i], name_len) == 0)
                return zt_err_set(err, ZT_EINPUT,
                                  "%s cannot be given: zerotrain sets it for each rank", ours[j]);
        }
    }
    return 0;
}

static int check_opts(const struct zt_launch_opts *o, struct zt_err *err)
{
    enum { ARGS_MAX_BYTES = 8 << 20, SECONDS_MAX = 1000000 };
    if (o->n_workers < 1 || o->n_workers > ZT_LAUNCH_MAX_WORKERS)
        return zt_err_set(err, ZT_EINPUT, "%d workers on one host; from 1 to %d are possible",
                          o->n_workers, ZT_LAUNCH_MAX_WORKERS);
    if (o->recipe_len > ZT_RECIPE_MAX_BYTES)
        return zt_err_set(err, ZT_EINPUT, "the recipe has %zu bytes; the limit is %d",
                          o->recipe_len, ZT_RECIPE_MAX_BYTES);
    if (!(o->grace_s >= 0 && o->grace_s <= SECONDS_MAX) ||
        !(o->silence_s >= 0 && o->silence_s <= SECONDS_MAX))
        return zt_err_set(err, ZT_EINPUT, "a grace or silence outside 0 to %d s", SECONDS_MAX);
    if (o->threads < 0 || o->threads > ZT_JOB_THREADS_MAX)
        return zt_err_set(err, ZT_EINPUT, "%d threads for a worker; up to %d are possible",
                          o->threads, ZT_JOB_THREADS_MAX);
    size_t bytes = 0;
    for (int i = 0; o->program && o->program[i]; i++)
        bytes += strlen(o->program[i]) + 4;
    if (o->program && (bytes == 0 || bytes > ARGS_MAX_BYTES))
        return zt_err_set(err, ZT_EINPUT,
                          bytes ? "the program's arguments are too long" : "no program to run");
    return check_env(o, err);
}

/* ---- the agent process ---- */

static int start_agent(struct front *f, struct zt_err *err)
{
    int sock[2], errs[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
        return zt_err_errno(err, ZT_ESYS, "socketpair");
    if (pipe2(errs, O_CLOEXEC)) {
        close(sock[0]);
        close(sock[1]);
        return zt_err_errno(err, ZT_ESYS, "pipe");
    }
    int rc = zt_link_open(&f->link, sock[0], sock[0], err);
    errno = rc ? 0 : zt_spawn_agent(&f->agent, sock[1], errs[1]);
    if (errno) {
        f->agent = 0;
        rc = zt_err_errno(err, ZT_ESYS, "cannot start the agent (/proc/self/exe)");
    }
    close(sock[1]);
    close(errs[1]);
    f->err_fd = errs[0];
    fcntl(f->err_fd, F_SETFL, O_NONBLOCK);
    return rc;
}

/* The agent has said HELLO: tell it what to do. */
static int send_job(struct front *f, struct zt_err *err)
{
    const struct zt_launch_opts *o = f->opts;
    struct zt_job job = {
        .n_workers = o->n_workers,
        .world = o->n_workers,
        .threads = o->threads,
        .own = !o->program,
        .device = o->device,
        .grace_ns = (int64_t)((o->grace_s > 0 ? o->grace_s : 3) * 1e9),
        .silence_ns = (int64_t)((o->silence_s > 0 ? o->silence_s : ZT_SILENCE_MS * 1e-3) * 1e9),
        .recipe = (char *)o->recipe,
        .recipe_len = o->recipe_len,
        .argv = (char **)o->program,
        .devices = (char **)o->devices,
    };
    if (getrandom(job.secret, sizeof job.secret, 0) != sizeof job.secret)
        return zt_err_errno(err, ZT_ESYS, "getrandom");
    for (int i = 0; i < o->n_env; i++)
        zt_frame_put(&f->link.out, ZT_FRAME_ENV, o->env[i], strlen(o->env[i]));
    size_t at = zt_frame_begin(&f->link.out, ZT_FRAME_JOB);
    zt_job_put(&job, &f->link.out);
    zt_frame_end(&f->link.out, at);
    explicit_bzero(job.secret, sizeof job.secret);
    return 0;
}

/* ---- what the agent says ---- */

static int on_hello(struct front *f, struct zt_cursor c, struct zt_err *err)
{
    size_t len;
    const unsigned char *host = zt_get_blob(&c, &len);
    if (f->greeted || !zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed HELLO");
    snprintf(f->host, sizeof f->host, "%.*s", (int)len, (const char *)host);
    f->greeted = true;
    return f->stop == ZT_STOP_NONE ? send_job(f, err) : 0;
}

static int on_line(struct front *f, struct zt_cursor c, struct zt_err *err)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    uint32_t rank = zt_get_u32(&c), stream = zt_get_u32(&c);
    if (c.bad || rank >= (uint32_t)f->opts->n_workers || stream > ZT_LOG_STDERR)
        return zt_err_set(err, ZT_EPROTO, "malformed LOG frame");
    const char *line = (const char *)c.p;
    if (zt_ranklogs_add(&f->logs, (int)rank, (enum zt_log_stream)stream, line, c.left, err))
        notice(f, "%s", err->msg);
    sink->line(sink->ctx, (int)rank, (enum zt_log_stream)stream, line, c.left);
    return 0;
}

static int on_report(struct front *f, struct zt_cursor c, struct zt_err *err)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    uint32_t rank = zt_get_u32(&c);
    if (c.bad || rank >= (uint32_t)f->opts->n_workers)
        return zt_err_set(err, ZT_EPROTO, "malformed REPORT frame");
    sink->report(sink->ctx, (int)rank, (const char *)c.p, c.left);
    return 0;
}

static int on_exit_frame(struct front *f, const struct zt_frame *frame, struct zt_err *err)
{
    struct zt_death d;
    if (!zt_death_get(&d, frame) || d.rank >= f->opts->n_workers)
        return zt_err_set(err, ZT_EPROTO, "malformed EXIT frame");
    enum zt_death_kind kind = zt_death_kind(&d);
    if (kind == ZT_DEATH_WELL)
        return 0;
    if (!f->failed || zt_death_before(&d, &f->first))
        f->first = d;
    f->failed = true;
    if (kind == ZT_DEATH_PEER && !f->peer_lost_ns)
        f->peer_lost_ns = zt_now_ns();
    if (kind == ZT_DEATH_OWN && f->stop < ZT_STOP_TERM) {
        struct zt_str how = {0};
        zt_death_describe(&d, &how);
        notice(f, "rank %d on %s ended with %s%s", d.rank, f->host, how.buf,
               f->opts->n_workers > 1 ? "; stopping the others" : "");
        zt_str_release(&how);
        send_stop(f, ZT_STOP_TERM);
    }
    return 0;
}

static int handle_frame(struct front *f, const struct zt_frame *frame, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(frame);
    if (!f->greeted && frame->type != ZT_FRAME_HELLO)
        return zt_err_set(err, ZT_EPROTO, "frame of type %u before HELLO", frame->type);
    switch (frame->type) {
    case ZT_FRAME_HELLO:
        return on_hello(f, c, err);
    case ZT_FRAME_BEAT:
        return 0;
    case ZT_FRAME_LOG:
        return on_line(f, c, err);
    case ZT_FRAME_REPORT:
        return on_report(f, c, err);
    case ZT_FRAME_SHARE: /* to the agents of all hosts */
        if (f->shared || frame->len > ZT_SHARE_MAX_BYTES)
            return zt_err_set(err, ZT_EPROTO, "malformed or second SHARE frame");
        f->shared = true;
        zt_frame_put(&f->link.out, ZT_FRAME_SHARE, frame->data, frame->len);
        return 0;
    case ZT_FRAME_EXIT:
        return on_exit_frame(f, frame, err);
    case ZT_FRAME_NOTICE:
        notice(f, "%s: %.*s", f->host, (int)c.left, (const char *)c.p);
        return 0;
    case ZT_FRAME_FAIL: {
        int code = (int)zt_get_u32(&c);
        zt_err_set(&f->fail, code < 0 ? (enum zt_code)code : ZT_EPROTO, "%s: %.*s", f->host,
                   (int)c.left, (const char *)c.p);
        return 0;
    }
    case ZT_FRAME_END:
        f->end_signal = (int)zt_get_u32(&c) & 127;
        f->ended = true;
        return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed END frame");
    default:
        return zt_err_set(err, ZT_EPROTO, "frame of unknown type %u", frame->type);
    }
}

/* Give the agent up; it is killed, and its workers with it. */
static void lose_agent(struct front *f, const struct zt_err *why)
{
    if (!f->lost.code)
        f->lost = *why;
    if (f->agent)
        kill(f->agent, SIGKILL);
}

static void read_agent(struct front *f)
{
    struct zt_frame frame;
    struct zt_err err;
    int rc = zt_link_read(&f->link);
    if (rc <= 0)
        return;
    while ((rc = zt_frame_next(&f->link.in, &frame, &err)) > 0) {
        rc = handle_frame(f, &frame, &err);
        if (rc)
            break;
    }
    if (rc < 0) {
        zt_err_wrap(&err, "from the agent");
        lose_agent(f, &err);
        zt_link_close(&f->link);
    }
}

static void agent_said(void *ctx, const char *line, size_t len)
{
    const struct front *f = ctx;
    notice(f, "agent on %s: %.*s", f->host, (int)ZT_MIN(len, 1000), line);
}

/* Returns whether there may be more. */
static bool read_agent_stderr(struct front *f)
{
    char chunk[4096];
    if (f->err_fd < 0)
        return false;
    ssize_t n = read(f->err_fd, chunk, sizeof chunk);
    if (n > 0) {
        zt_lines_feed(&f->err_lines, chunk, (size_t)n, agent_said, f);
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    zt_lines_end(&f->err_lines, agent_said, f);
    close(f->err_fd);
    f->err_fd = -1;
    return false;
}

/* ---- signals ---- */

static void on_interrupt(struct front *f)
{
    f->user_signal = SIGINT;
    if (f->stop >= ZT_STOP_TERM) {
        notice(f, "ending all ranks at once");
        send_stop(f, ZT_STOP_KILL);
    } else if (f->stop == ZT_STOP_SOFT || f->opts->program) {
        notice(f, "ending all ranks");
        send_stop(f, ZT_STOP_TERM);
    } else {
        notice(f, "finishing this step; Ctrl-C again to end now");
        send_stop(f, ZT_STOP_SOFT);
    }
}

/* Told to make room: the workers save what they have and end. Once more ends them at once. */
static bool is_preemption(const struct front *f, int sig)
{
    return (sig == SIGTERM || sig == SIGUSR1) && f->opts->preempted_code && f->stop == ZT_STOP_NONE;
}

static void on_preemption(struct front *f, int sig)
{
    notice(f, "got signal %d (%s): ending after this step; once more ends now", sig,
           strsignal(sig));
    f->user_signal = sig;
    f->preempted = true;
    send_stop(f, ZT_STOP_SOFT);
}

/* Ctrl-Z: the job sleeps with us. */
static void suspend(struct front *f)
{
    zt_frame_put(&f->link.out, ZT_FRAME_PAUSE, NULL, 0);
    zt_link_flush(&f->link);
    raise(SIGSTOP);
    zt_frame_put(&f->link.out, ZT_FRAME_RESUME, NULL, 0);
}

static void read_signals(struct front *f)
{
    struct signalfd_siginfo si;
    while (read(f->sig_fd, &si, sizeof si) == sizeof si) {
        switch (si.ssi_signo) {
        case SIGCHLD:
            if (f->agent && waitpid(f->agent, &f->agent_status, WNOHANG) == f->agent)
                f->agent = 0;
            break;
        case SIGINT:
            on_interrupt(f);
            break;
        case SIGTSTP:
            suspend(f);
            break;
        default: /* SIGTERM, SIGUSR1, SIGHUP, SIGPIPE: there may be nobody left to wait */
            if (is_preemption(f, (int)si.ssi_signo)) {
                on_preemption(f, (int)si.ssi_signo);
                break;
            }
            if (f->stop < ZT_STOP_TERM)
                notice(f, "ending all ranks: got signal %d (%s)", (int)si.ssi_signo,
                       strsignal((int)si.ssi_signo));
            f->user_signal = (int)si.ssi_signo;
            send_stop(f, ZT_STOP_TERM);
        }
    }
}

/* ---- the loop ---- */

static void watch_time(struct front *f, bool blocked)
{
    const struct zt_launch_opts *o = f->opts;
    int64_t now_ns = zt_now_ns();
    zt_link_tick(&f->link, now_ns);
    if (blocked) /* we are not listening */
        f->link.silent_ns = 0;
    double silent_s = (double)f->link.silent_ns * 1e-9;
    if (f->agent && silent_s > (o->silence_s > 0 ? o->silence_s : ZT_SILENCE_MS * 1e-3)) {
        struct zt_err err;
        zt_err_set(&err, ZT_EPEER, "it has been silent for %.0f s", silent_s);
        lose_agent(f, &err);
    }
    if (f->peer_lost_ns && f->stop < ZT_STOP_TERM &&
        now_ns - f->peer_lost_ns > PEER_LOST_MS * (int64_t)1000000) {
        notice(f, "rank %d on %s lost a peer; stopping the others", f->first.rank, f->host);
        send_stop(f, ZT_STOP_TERM);
    }
    if (o->sink.tick)
        o->sink.tick(o->sink.ctx);
}

static void run(struct front *f)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    while (f->agent || f->link.rfd >= 0) {
        int blocked_fd = sink->flush ? sink->flush(sink->ctx) : -1;
        /* Who was told to end does not wait for a reader; what the sink holds is its own affair. */
        bool ending = f->user_signal && f->stop >= ZT_STOP_TERM;
        bool blocked = blocked_fd >= 0 && !ending;
        zt_link_flush(&f->link);
        struct pollfd p[] = {
            {.fd = f->sig_fd, .events = POLLIN},
            {.fd = blocked ? -1 : f->link.rfd, .events = POLLIN},
            {.fd = zt_link_backlog(&f->link) ? f->link.wfd : -1, .events = POLLOUT},
            {.fd = blocked ? -1 : f->err_fd, .events = POLLIN},
            {.fd = blocked ? blocked_fd : -1, .events = POLLOUT},
        };
        if (poll(p, ZT_ARRAY_LEN(p), ZT_POLL_MS) < 0)
            continue;
        read_signals(f);
        if (p[1].revents)
            read_agent(f);
        if (p[3].revents)
            read_agent_stderr(f);
        watch_time(f, blocked);
    }
    while (read_agent_stderr(f))
        ;
    if (sink->flush)
        sink->flush(sink->ctx);
}

/* ---- the end ---- */

static void describe_failure(struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    const struct zt_death *d = &f->first;
    res->exit_code = zt_death_exit_code(d);
    res->term_signal = d->signal;
    res->first_rank = d->rank;
    zt_str_printf(s, "rank %d on %s failed first: ", d->rank, f->host);
    zt_death_describe(d, s);
    if (f->logs.v[d->rank].n_lines) {
        zt_str_puts(s, "\nits last lines on stderr:\n");
        zt_ranklogs_tail(&f->logs, d->rank, "  | ", s);
    }
}

static void describe_lost_agent(struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    int sig = WIFSIGNALED(f->agent_status) ? WTERMSIG(f->agent_status) : 0;
    res->exit_code = sig && !f->lost.code ? 128 + sig : 1;
    zt_str_printf(s, "the agent on %s was lost", f->host);
    if (f->lost.code)
        zt_str_printf(s, ": %s", f->lost.msg);
    else if (sig)
        zt_str_printf(s, ": signal %d (%s)", sig, strsignal(sig));
    else
        zt_str_printf(s, ": exit code %d", WEXITSTATUS(f->agent_status));
    zt_str_puts(s, "; its ranks were ended");
}

static void conclude(struct front *f, struct zt_launch_result *res)
{
    struct zt_str s = {0};
    int by_signal = f->user_signal ? f->user_signal : f->end_signal;
    snprintf(res->host, sizeof res->host, "%s", f->host);
    if (f->failed && zt_death_kind(&f->first) <= ZT_DEATH_PEER) {
        describe_failure(f, res, &s);
    } else if (!f->ended) {
        describe_lost_agent(f, res, &s);
    } else if (f->preempted && f->stop == ZT_STOP_SOFT) {
        res->exit_code = f->opts->preempted_code;
        zt_str_printf(&s, "the job ended early and well, as signal %d (%s) asked", by_signal,
                      strsignal(by_signal));
    } else if (by_signal) {
        res->exit_code = 128 + by_signal;
        zt_str_printf(&s, "%s stopped by signal %d (%s)",
                      f->user_signal ? "the job was" : "the agent was", by_signal,
                      strsignal(by_signal));
    } else if (f->failed) {
        describe_failure(f, res, &s);
    } else if (f->agent_status) {
        res->exit_code = 1;
        zt_str_printf(&s, "the agent on %s could not end every process", f->host);
    }
    while (s.len && s.buf[s.len - 1] == '\n')
        s.buf[--s.len] = '\0';
    snprintf(res->summary, sizeof res->summary, "%s", zt_str_get(&s));
    zt_str_release(&s);
}

/* The job never started: say why. 0 when it did. */
static int start_failure(const struct front *f, struct zt_err *err)
{
    if (f->fail.code) {
        *err = f->fail;
        return err->code;
    }
    if (f->greeted || f->user_signal)
        return 0;
    struct zt_str noise = {0};
    zt_frame_noise(&f->link.in, &noise);
    zt_err_set(err, f->lost.code ? (enum zt_code)f->lost.code : ZT_EPEER,
               "the agent on %s did not answer%s%s%s%s", f->host, f->lost.code ? ": " : "",
               f->lost.msg, noise.len ? "; it said: " : "", zt_str_get(&noise));
    zt_str_release(&noise);
    return err->code;
}

int zt_launch_run(const struct zt_launch_opts *opts, struct zt_launch_result *result,
                  struct zt_err *err)
{
    struct front f = {.opts = opts, .err_fd = -1, .sig_fd = -1, .link = {.rfd = -1, .wfd = -1}};
    struct zt_supervisor super = {.sig_fd = -1};
    memset(result, 0, sizeof *result);
    result->first_rank = -1;
    gethostname(f.host, sizeof f.host - 1);
    int rc = check_opts(opts, err);
    if (!rc)
        rc = zt_ranklogs_init(&f.logs, opts->n_workers, opts->rank_log_dir, err);
    if (!rc)
        rc = zt_supervisor_init(&super, err);
    f.sig_fd = super.sig_fd;
    if (!rc)
        rc = start_agent(&f, err);
    if (!rc) {
        run(&f);
        if (!f.ended)
            zt_supervisor_sweep(&super);
        rc = start_failure(&f, err);
        if (!rc)
            conclude(&f, result);
    }
    zt_supervisor_release(&super);
    zt_link_close(&f.link);
    if (f.err_fd >= 0)
        close(f.err_fd);
    zt_lines_release(&f.err_lines);
    zt_ranklogs_release(&f.logs);
    return rc;
}
