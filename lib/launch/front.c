/*
 * The front end: starts the agents, passes lines and reports to the sink, decides what a death or a
 * signal means for the others, and turns the whole into one exit code. One thread, one poll loop.
 */
#include "launch/front.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "launch/env.h"
#include "launch/spawn.h"
#include "launch/srun.h"
#include "launch/supervisor.h"

enum {
    PEER_LOST_MS = 1000,  /* how long a lost peer's own report may be behind those that lost it */
    START_MS = 60 * 1000, /* within which ssh must have logged in and started an agent */
};

void zt_front_notice(const struct front *f, const char *fmt, ...)
{
    struct zt_err text;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text.msg, sizeof text.msg, fmt, ap);
    va_end(ap);
    f->opts->sink.notice(f->opts->sink.ctx, text.msg);
}

void zt_front_stop(struct front *f, enum zt_stop level)
{
    if (level <= f->stop)
        return;
    f->stop = level;
    for (int i = 0; i < f->n_nodes; i++) {
        struct zt_str *out = &f->nodes[i].link.out;
        size_t at = zt_frame_begin(out, ZT_FRAME_STOP);
        zt_put_u32(out, level);
        zt_frame_end(out, at);
        if (level >= ZT_STOP_TERM)
            zt_node_give_up(&f->nodes[i]);
    }
}

/* Some host has not answered yet, so no rank has begun: there is no step to finish. */
static bool is_starting(const struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++)
        if (f->nodes[i].ssh && !f->nodes[i].greeted)
            return true;
    return false;
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

static int check_nodes(const struct zt_launch_opts *o, struct zt_err *err)
{
    const struct zt_launch_node all = {.n_workers = o->n_workers};
    const struct zt_launch_node *nodes = o->n_nodes ? o->nodes : &all;
    int sum = 0;
    if (o->n_nodes < 0 || o->n_nodes > ZT_LAUNCH_MAX_NODES)
        return zt_err_set(err, ZT_EINPUT, "%d nodes; up to %d are possible", o->n_nodes,
                          ZT_LAUNCH_MAX_NODES);
    for (int i = 0; i < ZT_MAX(o->n_nodes, 1); i++) {
        if (nodes[i].n_workers < 1 || nodes[i].n_workers > ZT_LAUNCH_MAX_WORKERS)
            return zt_err_set(err, ZT_EINPUT, "%d workers on one host; from 1 to %d are possible",
                              nodes[i].n_workers, ZT_LAUNCH_MAX_WORKERS);
        if (o->n_nodes > 1 && (!nodes[i].address || !nodes[i].address[0]))
            return zt_err_set(err, ZT_EINPUT, "node %d has no address", i);
        sum += nodes[i].n_workers;
    }
    if (sum != o->n_workers)
        return zt_err_set(err, ZT_EINPUT, "%d workers in all, but %d on the nodes", o->n_workers,
                          sum);
    return 0;
}

static int check_opts(const struct zt_launch_opts *o, struct zt_err *err)
{
    enum { ARGS_MAX_BYTES = 8 << 20, SECONDS_MAX = 1000000 };
    int rc = check_nodes(o, err);
    if (rc)
        return rc;
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

/* ---- signals ---- */

static void on_interrupt(struct front *f)
{
    f->user_signal = SIGINT;
    if (f->stop >= ZT_STOP_TERM) {
        zt_front_notice(f, "ending all ranks at once");
        zt_front_stop(f, ZT_STOP_KILL);
    } else if (f->stop == ZT_STOP_SOFT || f->opts->program || is_starting(f)) {
        zt_front_notice(f, "ending all ranks");
        zt_front_stop(f, ZT_STOP_TERM);
    } else {
        zt_front_notice(f, "finishing this step; Ctrl-C again to end now");
        zt_front_stop(f, ZT_STOP_SOFT);
    }
}

/* Told to make room: the workers save what they have and end. Once more ends them at once. */
static bool is_preemption(const struct front *f, int sig)
{
    return (sig == SIGTERM || sig == SIGUSR1) && f->opts->preempted_code &&
           f->stop == ZT_STOP_NONE && !is_starting(f);
}

static void on_preemption(struct front *f, int sig)
{
    zt_front_notice(f, "got signal %d (%s): ending after this step; once more ends now", sig,
                    strsignal(sig));
    f->user_signal = sig;
    f->preempted = true;
    zt_front_stop(f, ZT_STOP_SOFT);
}

void zt_front_agent_signalled(struct front *f, struct front_node *n, int sig)
{
    if (f->stop != ZT_STOP_NONE)
        return; /* ending already: a batch system tells us too */
    zt_front_notice(f, "the agent on %s got signal %d (%s)", n->host, sig, strsignal(sig));
    if (is_preemption(f, sig)) {
        f->told_by_agent = true;
        on_preemption(f, sig);
        return;
    }
    n->end_signal = sig;
    zt_front_stop(f, ZT_STOP_TERM);
}

/* Ctrl-Z: the job sleeps with us. */
static void suspend(struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++) {
        zt_frame_put(&f->nodes[i].link.out, ZT_FRAME_PAUSE, NULL, 0);
        zt_link_flush(&f->nodes[i].link);
    }
    raise(SIGSTOP);
    for (int i = 0; i < f->n_nodes; i++)
        zt_frame_put(&f->nodes[i].link.out, ZT_FRAME_RESUME, NULL, 0);
}

static void reap_agents(struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++) {
        struct front_node *n = &f->nodes[i];
        if (n->agent && waitpid(n->agent, &n->agent_status, WNOHANG) == n->agent)
            n->agent = 0;
    }
}

static void read_carrier(struct front *f)
{
    struct zt_ssh2_outcome outcome;
    zt_ssh2_clear(f->ssh2);
    for (int i = 0; i < f->n_nodes; i++) {
        struct front_node *n = &f->nodes[i];
        if (n->carried && zt_ssh2_take(f->ssh2, n->carried_at, &outcome))
            zt_node_carried(n, &outcome);
    }
}

/*
 * `count` signals have come to one process of the job, the last of them `sig`. A launcher sends each to all
 * processes, which must not count as many times Ctrl-C.
 */
static void heed(struct front *f, int sig, int count)
{
    if (count <= f->n_heeded)
        return;
    f->n_heeded = count;
    const bool told = f->told_by_agent && (sig == SIGTERM || sig == SIGUSR1);
    if (sig == SIGINT) {
        on_interrupt(f);
    } else if (told && f->stop == ZT_STOP_SOFT) {
        f->told_by_agent = false; /* a batch system tells all processes */
    } else if (is_preemption(f, sig)) {
        on_preemption(f, sig);
    } else { /* SIGTERM, SIGUSR1, SIGHUP, SIGPIPE: there may be nobody left to wait */
        if (f->stop < ZT_STOP_TERM)
            zt_front_notice(f, "ending all ranks: got signal %d (%s)", sig, strsignal(sig));
        f->user_signal = sig;
        zt_front_stop(f, ZT_STOP_TERM);
    }
}

static void read_signals(struct front *f)
{
    struct signalfd_siginfo si;
    while (read(f->sig_fd, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD)
            reap_agents(f);
        else if (si.ssi_signo == SIGTSTP)
            suspend(f);
        else
            heed(f, (int)si.ssi_signo, ++f->n_own_signals);
    }
}

/* A process that has joined, and stands for a rank. */
static void read_party(struct front *f, struct zt_party *p)
{
    int sig;
    while ((sig = zt_party_read(p)) > 0)
        heed(f, sig, p->n_signals);
    if (sig == 0 || f->stop >= ZT_STOP_TERM)
        return;
    char name[ZT_HOST_TEXT + 64];
    f->parted = p;
    zt_front_notice(f, "%s has ended; stopping the others",
                    zt_party_name(f->opts->joined, p, name, sizeof name));
    zt_front_stop(f, ZT_STOP_TERM);
}

/* ---- the loop ---- */

/* How the way to a node's agent ended. */
static void explain_way(const struct front_node *n, struct zt_str *s)
{
    struct zt_ssh_end end = n->way_end;
    if (n->by_client)
        zt_openssh_end(n->agent_status, zt_str_get(&n->said), n->greeted, &end);
    zt_ssh_explain(n->ssh, &end, zt_str_get(&n->said), n->greeted, s);
}

/* How a node's agent, which has ended, did so. */
static void explain_end(const struct front_node *n, struct zt_str *s)
{
    if (n->lost.code)
        zt_str_puts(s, n->lost.msg);
    else if (n->ssh)
        explain_way(n, s);
    else if (n->party)
        zt_str_puts(s, "the connection broke, or it was killed");
    else if (WIFSIGNALED(n->agent_status))
        zt_str_printf(s, "signal %d (%s)", WTERMSIG(n->agent_status),
                      strsignal(WTERMSIG(n->agent_status)));
    else
        zt_str_printf(s, "exit code %d", WEXITSTATUS(n->agent_status));
}

/* Why there was never a word of ours from it. */
static void explain_silence(const struct front_node *n, struct zt_str *s)
{
    struct zt_str noise = {0};
    zt_frame_noise(&n->link.in, &noise);
    explain_end(n, s);
    if (noise.len)
        zt_str_printf(s, "; it said: %s", noise.buf);
    zt_str_release(&noise);
}

/* The agent of a node that is for itself did not start, or is lost. */
static void fail_alone(struct front_node *n)
{
    struct zt_str why = {0};
    while (zt_node_read_stderr(n))
        ;
    if (n->greeted)
        explain_end(n, &why);
    else
        explain_silence(n, &why);
    zt_node_fail_alone(n, zt_str_get(&why));
    zt_str_release(&why);
}

static void watch_node(struct front_node *n, int64_t now_ns, bool blocked)
{
    const struct zt_launch_opts *o = n->f->opts;
    zt_link_tick(&n->link, now_ns);
    const bool asks = n->carried && !n->greeted && zt_ssh2_asks(n->f->ssh2);
    if (blocked || asks) /* we are not listening; it cannot speak */
        n->link.silent_ns = 0;
    double silent_s = (double)n->link.silent_ns * 1e-9;
    double limit_s = o->silence_s > 0 ? o->silence_s : ZT_SILENCE_MS * 1e-3;
    if (n->ssh && !n->greeted)
        limit_s = ZT_MAX(limit_s, START_MS * 1e-3);
    if (zt_node_has_agent(n) && silent_s > limit_s) {
        struct zt_err err;
        zt_err_set(&err, ZT_EPEER, "it has been silent for %.0f s", silent_s);
        zt_node_lose(n, &err);
    }
    if (!zt_node_alive(n) && !n->ended && !n->given_up && n->f->stop < ZT_STOP_TERM) {
        if (n->f->opts->sink.node) {
            fail_alone(n);
            return;
        }
        if (n->f->n_nodes > 1)
            zt_front_notice(n->f, "the agent on %s (node %d) %s; stopping the others", n->host,
                            n->index, n->greeted ? "is lost" : "did not start");
        zt_front_stop(n->f, ZT_STOP_TERM);
    }
}

static void watch_time(struct front *f, bool blocked)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    int64_t now_ns = zt_now_ns();
    for (int i = 0; i < f->n_nodes; i++)
        watch_node(&f->nodes[i], now_ns, blocked);
    if (f->peer_lost_ns && f->stop < ZT_STOP_TERM &&
        now_ns - f->peer_lost_ns > PEER_LOST_MS * (int64_t)1000000) {
        zt_front_notice(f, "rank %d on %s lost a peer; stopping the others", f->first.rank,
                        f->first_on->host);
        zt_front_stop(f, ZT_STOP_TERM);
    }
    if (f->opts->srun)
        zt_srun_read(f->opts->srun);
    if (sink->tick)
        sink->tick(sink->ctx);
}

enum { FDS_OF_NODE = 3, FDS_OF_US = 3 };

static int n_parties(const struct front *f)
{
    return f->opts->joined ? f->opts->joined->m.world : 0;
}

static void poll_once(struct front *f, struct pollfd *p, int blocked_fd)
{
    bool blocked = blocked_fd >= 0;
    p[0] = (struct pollfd){.fd = f->sig_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = blocked_fd, .events = POLLOUT};
    p[2] = (struct pollfd){.fd = f->ssh2 ? zt_ssh2_fd(f->ssh2) : -1, .events = POLLIN};
    for (int i = 0; i < f->n_nodes; i++) {
        const struct front_node *n = &f->nodes[i];
        struct pollfd *q = p + FDS_OF_US + FDS_OF_NODE * i;
        q[0] = (struct pollfd){.fd = blocked ? -1 : n->link.rfd, .events = POLLIN};
        q[1] =
            (struct pollfd){.fd = zt_link_backlog(&n->link) ? n->link.wfd : -1, .events = POLLOUT};
        q[2] = (struct pollfd){.fd = blocked ? -1 : n->err_fd, .events = POLLIN};
    }
    struct pollfd *parties = p + FDS_OF_US + FDS_OF_NODE * f->n_nodes;
    for (int i = 0; i < n_parties(f); i++) {
        const struct zt_party *party = &f->opts->joined->v[i];
        parties[i] = (struct pollfd){.fd = party->link.open && !party->gone ? party->link.rfd : -1,
                                     .events = POLLIN};
    }
    if (poll(p, (nfds_t)(FDS_OF_US + FDS_OF_NODE * f->n_nodes + n_parties(f)), ZT_POLL_MS) < 0)
        return;
    read_signals(f);
    if (p[2].revents)
        read_carrier(f);
    for (int i = 0; i < f->n_nodes; i++) {
        const struct pollfd *q = p + FDS_OF_US + FDS_OF_NODE * i;
        if (q[0].revents)
            zt_node_read(&f->nodes[i]);
        if (q[2].revents)
            zt_node_read_stderr(&f->nodes[i]);
    }
    for (int i = 0; i < n_parties(f); i++)
        if (parties[i].revents)
            read_party(f, &f->opts->joined->v[i]);
    watch_time(f, blocked);
}

static bool any_alive(const struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++)
        if (zt_node_alive(&f->nodes[i]))
            return true;
    return false;
}

static void run(struct front *f)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    struct pollfd *p =
        zt_xcalloc(FDS_OF_US + FDS_OF_NODE * (size_t)f->n_nodes + (size_t)n_parties(f), sizeof *p);
    while (any_alive(f)) {
        int blocked_fd = sink->flush ? sink->flush(sink->ctx) : -1;
        /* Who was told to end does not wait for a reader; what the sink holds is its own affair. */
        bool ending = f->user_signal && f->stop >= ZT_STOP_TERM;
        for (int i = 0; i < f->n_nodes; i++)
            zt_link_flush(&f->nodes[i].link);
        poll_once(f, p, ending ? -1 : blocked_fd);
    }
    for (int i = 0; i < f->n_nodes; i++)
        while (zt_node_read_stderr(&f->nodes[i]))
            ;
    read_signals(f); /* who was told to end in the last moment does not begin again */
    if (sink->flush)
        sink->flush(sink->ctx);
    free(p);
}

/* ---- the end ---- */

static void describe_failure(struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    const struct zt_death *d = &f->first;
    res->exit_code = zt_death_exit_code(d);
    res->term_signal = d->signal;
    res->first_rank = d->rank;
    snprintf(res->host, sizeof res->host, "%s", f->first_on->host);
    zt_str_printf(s, "rank %d on %s failed first: ", d->rank, f->first_on->host);
    zt_death_describe(d, s);
    if (f->logs.v[d->rank].n_lines) {
        zt_str_puts(s, "\nits last lines on stderr:\n");
        zt_ranklogs_tail(&f->logs, d->rank, "  | ", s);
    }
}

static void describe_lost_agent(const struct front_node *n, struct zt_launch_result *res,
                                struct zt_str *s)
{
    int sig = WIFSIGNALED(n->agent_status) && !n->ssh ? WTERMSIG(n->agent_status) : 0;
    res->exit_code = sig && !n->lost.code ? 128 + sig : 1;
    snprintf(res->host, sizeof res->host, "%s", n->host);
    zt_str_printf(s, "the agent on %s was lost: ", n->host);
    explain_end(n, s);
    zt_str_puts(s, "; its ranks were ended");
}

static bool was_lost(const struct front_node *n)
{
    return !n->ended && !n->given_up;
}

static bool was_signalled(const struct front_node *n)
{
    return n->end_signal != 0;
}

static bool left_something(const struct front_node *n)
{
    return n->agent_status != 0 && !n->given_up;
}

/* The first node of which that is true, or NULL. */
static const struct front_node *node_that(const struct front *f,
                                          bool (*is)(const struct front_node *n))
{
    for (int i = 0; i < f->n_nodes; i++)
        if (is(&f->nodes[i]))
            return &f->nodes[i];
    return NULL;
}

static void blame_nodes(const struct front *f, struct zt_launch_result *res)
{
    res->told = f->user_signal;
    res->started = true;
    for (int i = 0; i < f->n_nodes; i++) {
        const struct front_node *n = &f->nodes[i];
        enum zt_node_end end = ZT_NODE_NOTHING;
        if (n->fail.code || (!n->greeted && !n->given_up))
            end = ZT_NODE_NO_START;
        else if (was_lost(n) || was_signalled(n))
            end = ZT_NODE_LOST;
        else if (f->failed && f->first_on == n && zt_death_kind(&f->first) == ZT_DEATH_OWN)
            end = f->first.oom ? ZT_NODE_MEMORY : ZT_NODE_RANK;
        res->node_end[i] = (unsigned char)end;
        res->started = res->started && n->greeted && !n->fail.code;
    }
}

static void conclude(struct front *f, struct zt_launch_result *res)
{
    struct zt_str s = {0};
    const struct front_node *lost = node_that(f, was_lost), *told = node_that(f, was_signalled);
    const struct front_node *left = node_that(f, left_something);
    int by_signal = f->user_signal ? f->user_signal : told ? told->end_signal : 0;
    enum zt_death_kind kind = f->failed ? zt_death_kind(&f->first) : ZT_DEATH_WELL;
    snprintf(res->host, sizeof res->host, "%s", f->nodes[0].host);
    if (kind == ZT_DEATH_OWN || (kind == ZT_DEATH_PEER && !lost && !f->parted)) {
        describe_failure(f, res, &s);
    } else if (lost) {
        describe_lost_agent(lost, res, &s);
    } else if (f->preempted && f->stop == ZT_STOP_SOFT) {
        res->exit_code = f->opts->preempted_code;
        zt_str_printf(&s, "the job ended early and well, as signal %d (%s) asked", by_signal,
                      strsignal(by_signal));
    } else if (f->parted) {
        char name[ZT_HOST_TEXT + 64];
        res->exit_code = 1;
        snprintf(res->host, sizeof res->host, "%s", f->parted->host);
        zt_str_printf(
            &s, "%s, which %s had started, has ended before the job; all ranks were ended",
            zt_party_name(f->opts->joined, f->parted, name, sizeof name), f->opts->joined->m.by);
    } else if (by_signal) {
        res->exit_code = 128 + by_signal;
        zt_str_printf(&s, "%s stopped by signal %d (%s)",
                      f->user_signal ? "the job was" : "the agent was", by_signal,
                      strsignal(by_signal));
    } else if (f->failed) {
        describe_failure(f, res, &s);
    } else if (left) {
        res->exit_code = 1;
        zt_str_printf(&s, "the agent on %s could not end every process", left->host);
    }
    while (s.len && s.buf[s.len - 1] == '\n')
        s.buf[--s.len] = '\0';
    snprintf(res->summary, sizeof res->summary, "%s", zt_str_get(&s));
    zt_str_release(&s);
}

/* The job never started on a node: say why. 0 when it did on all. */
static int start_failure(const struct front *f, struct zt_err *err)
{
    const struct front_node *silent = NULL;
    for (int i = 0; i < f->n_nodes; i++) {
        const struct front_node *n = &f->nodes[i];
        if (n->fail.code) {
            *err = n->fail;
            return err->code;
        }
        if (!n->greeted && !n->given_up && !silent)
            silent = n;
    }
    if (!silent || f->user_signal || (f->failed && zt_death_kind(&f->first) == ZT_DEATH_OWN))
        return 0;
    struct zt_str why = {0};
    explain_silence(silent, &why);
    zt_err_set(err,
               silent->lost.code ? (enum zt_code)silent->lost.code
               : silent->ssh     ? ZT_ESYS
                                 : ZT_EPEER,
               "the agent on %s did not answer: %s", silent->host, why.buf);
    zt_str_release(&why);
    return err->code;
}

static void init_nodes(struct front *f)
{
    const struct zt_launch_opts *o = f->opts;
    int first = 0;
    f->n_nodes = ZT_MAX(o->n_nodes, 1);
    f->nodes = zt_xcalloc((size_t)f->n_nodes, sizeof *f->nodes);
    f->given = zt_xcalloc((size_t)o->n_workers, sizeof *f->given);
    f->has_given = zt_xcalloc((size_t)o->n_workers, sizeof *f->has_given);
    for (int i = 0; i < f->n_nodes; i++) {
        struct front_node *n = &f->nodes[i];
        n->f = f;
        n->index = i;
        n->first_rank = first;
        n->n_workers = o->n_nodes ? o->nodes[i].n_workers : o->n_workers;
        n->err_fd = n->link.rfd = n->link.wfd = -1;
        n->ssh = o->n_nodes ? o->nodes[i].ssh : NULL;
        n->party = o->n_nodes ? o->nodes[i].party : NULL;
        if (n->ssh)
            snprintf(n->host, sizeof n->host, "%s", n->ssh->host);
        else if (n->party)
            snprintf(n->host, sizeof n->host, "%s", n->party->host);
        else
            gethostname(n->host, sizeof n->host - 1);
        first += n->n_workers;
    }
}

static void release(struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++)
        zt_node_release(&f->nodes[i]);
    for (int r = 0; f->given && r < f->opts->n_workers; r++)
        zt_str_release(&f->given[r]);
    free(f->given);
    free(f->has_given);
    free(f->nodes);
    zt_ranklogs_release(&f->logs);
    explicit_bzero(f->secret, sizeof f->secret);
}

/* Those that were started before one that cannot be are ended. */
static int start_agents(struct front *f, struct zt_err *err)
{
    struct zt_ssh2_host *carry = zt_xcalloc((size_t)f->n_nodes, sizeof *carry);
    int n_carried = 0, rc = 0, n = 0;
    if (getrandom(f->secret, sizeof f->secret, 0) != sizeof f->secret)
        rc = zt_err_errno(err, ZT_ESYS, "getrandom");
    for (; n < f->n_nodes && !rc; n++) {
        rc = zt_node_start(&f->nodes[n], &carry[n_carried], err);
        if (!rc && f->nodes[n].carried)
            f->nodes[n].carried_at = n_carried++;
    }
    if (!rc && n_carried)
        rc = zt_ssh2_start(carry, n_carried, &f->ssh2, err);
    for (int k = 0; rc && k < n_carried; k++) {
        close(carry[k].fd);
        close(carry[k].err_fd);
    }
    for (int k = 0; rc && k < n; k++) {
        if (!f->nodes[k].agent)
            continue;
        kill(f->nodes[k].agent, SIGKILL);
        waitpid(f->nodes[k].agent, NULL, 0);
    }
    free(carry);
    return rc;
}

int zt_launch_run(const struct zt_launch_opts *opts, struct zt_launch_result *result,
                  struct zt_err *err)
{
    struct front f = {.opts = opts, .sig_fd = -1};
    struct zt_supervisor super = {.sig_fd = -1};
    memset(result, 0, sizeof *result);
    result->first_rank = -1;
    int rc = check_opts(opts, err);
    if (!rc)
        rc = zt_ranklogs_init(&f.logs, opts->n_workers, opts->rank_log_dir, opts->rank_log_append,
                              err);
    if (!rc)
        rc = zt_supervisor_init(&super, err);
    f.sig_fd = super.sig_fd;
    if (!rc) {
        init_nodes(&f);
        rc = start_agents(&f, err);
    }
    if (!rc) {
        run(&f);
        zt_ssh2_stop(f.ssh2);
        if (opts->sink.node || node_that(&f, was_lost))
            zt_supervisor_sweep(&super);
        blame_nodes(&f, result);
        rc = start_failure(&f, err);
        if (!rc)
            conclude(&f, result);
    }
    zt_supervisor_release(&super);
    release(&f);
    return rc;
}
