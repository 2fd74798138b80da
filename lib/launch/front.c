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
#include "launch/rendezvous.h"
#include "launch/srun.h"
#include "launch/supervisor.h"

void zt_front_notice(const struct front *f, const char *fmt, ...)
{
    struct zt_err text;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text.msg, sizeof text.msg, fmt, ap);
    va_end(ap);
    f->opts->sink.notice(f->opts->sink.ctx, text.msg);
}

const struct front_node *zt_front_find(const struct front *f,
                                       bool (*is)(const struct front_node *n))
{
    for (int i = 0; i < f->n_nodes; i++)
        if (is(&f->nodes[i]))
            return &f->nodes[i];
    return NULL;
}

/* ---- what happens ---- */

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
            zt_node_reaped(n);
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

static void read_signals(struct front *f)
{
    struct signalfd_siginfo si;
    while (read(f->sig_fd, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD)
            reap_agents(f);
        else if (si.ssi_signo == SIGTSTP)
            suspend(f);
        else
            zt_front_heed(f, (int)si.ssi_signo, ++f->n_own_signals);
    }
}

/* A rank has lost a peer, whose own report should follow. Where none does, that rank is the first failure. */
static void watch_lost_peer(struct front *f, int64_t now_ns)
{
    enum { REPORT_MS = 1000 };
    if (!f->peer_lost_ns || f->stop >= ZT_STOP_TERM ||
        now_ns - f->peer_lost_ns <= REPORT_MS * (int64_t)1000000)
        return;
    struct zt_str what = {0};
    if (f->apart.cut)
        zt_front_describe_apart(f, &what);
    else
        zt_str_printf(&what, "rank %d on %s lost a peer", f->first.rank, f->first_on->host);
    zt_front_notice(f, "%s; stopping the others", what.buf);
    zt_str_release(&what);
    zt_front_stop(f, ZT_STOP_TERM);
}

double zt_front_start_s(const struct front *f)
{
    enum { START_S = 60 };
    return f->opts->start_s > 0 ? f->opts->start_s : START_S;
}

/* After a twelfth of the time that hosts have to answer, and whenever it has doubled, a person hears which do not. */
static void tell_awaited(struct front *f, int64_t now_ns)
{
    enum { FIRST = 12, SHOWN = 4 };
    struct zt_str hosts = {0};
    int n = 0;
    if (!f->begun_ns)
        f->begun_ns = now_ns;
    const int64_t waited_ns = now_ns - f->begun_ns;
    if (waited_ns < ZT_MAX(f->word_ns, (int64_t)(zt_front_start_s(f) * 1e9 / FIRST)) ||
        f->stop >= ZT_STOP_TERM || (f->ssh2 && zt_ssh2_asks(f->ssh2))) /* a prompt stands there */
        return;
    f->word_ns = 2 * waited_ns;
    for (int i = 0; i < f->n_nodes; i++)
        if (zt_node_is_awaited(&f->nodes[i]) && n++ < SHOWN)
            zt_str_printf(&hosts, "%s%s", n > 1 ? ", " : "", f->nodes[i].host);
    if (n > SHOWN)
        zt_str_printf(&hosts, " and %d more hosts", n - SHOWN);
    if (n)
        zt_front_notice(f, "waiting for %s (%.0f s)", hosts.buf, (double)waited_ns * 1e-9);
    zt_str_release(&hosts);
}

static void watch_time(struct front *f)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    const int64_t now_ns = zt_now_ns();
    for (int i = 0; i < f->n_nodes; i++)
        zt_node_watch(&f->nodes[i], now_ns);
    tell_awaited(f, now_ns);
    watch_lost_peer(f, now_ns);
    if (f->opts->srun)
        zt_srun_read(f->opts->srun);
    if (sink->tick)
        sink->tick(sink->ctx);
}

/* ---- the loop ---- */

/* What is waited for: our own descriptors, then those of each node, then one of each process that has joined. */
enum { FD_SIGNALS, FD_SINK, FD_CARRIER, N_OWN_FDS };
enum { FD_FRAMES, FD_STDERR, N_NODE_FDS };

static int n_parties(const struct front *f)
{
    return f->opts->joined ? f->opts->joined->m.world : 0;
}

static size_t n_fds(const struct front *f)
{
    return N_OWN_FDS + N_NODE_FDS * (size_t)f->n_nodes + (size_t)n_parties(f);
}

static struct pollfd *node_fds(struct pollfd *fds, int node)
{
    return fds + N_OWN_FDS + (size_t)N_NODE_FDS * (size_t)node;
}

/* blocked_fd: what the sink waits for, or -1. */
static void set_fds(const struct front *f, struct pollfd *fds, int blocked_fd)
{
    fds[FD_SIGNALS] = (struct pollfd){.fd = f->sig_fd, .events = POLLIN};
    fds[FD_SINK] = (struct pollfd){.fd = blocked_fd, .events = POLLOUT};
    fds[FD_CARRIER] = (struct pollfd){.fd = f->ssh2 ? zt_ssh2_fd(f->ssh2) : -1, .events = POLLIN};
    for (int i = 0; i < f->n_nodes; i++) {
        const struct front_node *n = &f->nodes[i];
        const int room = zt_link_backlog(&n->link) ? POLLOUT : 0;
        struct pollfd *p = node_fds(fds, i);
        p[FD_FRAMES] = (struct pollfd){.fd = n->link.rfd, .events = (short)(POLLIN | room)};
        p[FD_STDERR] = (struct pollfd){.fd = f->holding ? -1 : n->err_fd, .events = POLLIN};
    }
    for (int i = 0; i < n_parties(f); i++) {
        const struct zt_party *party = &f->opts->joined->v[i];
        const bool there = party->link.open && !party->gone;
        node_fds(fds, f->n_nodes)[i] =
            (struct pollfd){.fd = there ? party->link.rfd : -1, .events = POLLIN};
    }
}

/* poll() of those that are there: of more than may be open it makes none. `there`: (n), what it is asked. */
static int wait_for_some(struct pollfd *fds, size_t n, struct pollfd *there)
{
    size_t n_there = 0;
    for (size_t i = 0; i < n; i++)
        if (fds[i].fd >= 0)
            there[n_there++] = fds[i];
    const int rc = poll(there, (nfds_t)n_there, ZT_POLL_MS);
    for (size_t i = 0, k = 0; i < n && rc >= 0; i++)
        if (fds[i].fd >= 0)
            fds[i].revents = there[k++].revents;
    return rc;
}

static void read_fds(struct front *f, struct pollfd *fds)
{
    read_signals(f);
    if (fds[FD_CARRIER].revents)
        read_carrier(f);
    for (int i = 0; i < f->n_nodes; i++) {
        const struct pollfd *p = node_fds(fds, i);
        if (p[FD_FRAMES].revents)
            zt_node_read(&f->nodes[i]);
        if (p[FD_STDERR].revents)
            zt_node_read_stderr(&f->nodes[i]);
    }
    for (int i = 0; i < n_parties(f); i++)
        if (node_fds(fds, f->n_nodes)[i].revents)
            zt_front_read_party(f, &f->opts->joined->v[i]);
}

/*
 * What is written into a slow reader must not grow without end; what ends a job comes after lines that nobody reads.
 * So agents are listened to all the time, and told when to take no more from workers. Those that save and end do so
 * whoever reads.
 */
static void hold_workers(struct front *f, bool blocked)
{
    if (!blocked)
        f->unread_bytes = 0;
    const bool hold = f->unread_bytes > ZT_UNREAD_MAX && f->stop != ZT_STOP_SOFT;
    if (hold == f->holding)
        return;
    f->holding = hold;
    for (int i = 0; i < f->n_nodes; i++) {
        struct zt_str *out = &f->nodes[i].link.out;
        size_t at = zt_frame_begin(out, ZT_FRAME_HOLD);
        zt_put_u32(out, hold);
        zt_frame_end(out, at);
    }
}

static void run(struct front *f)
{
    const struct zt_launch_sink *sink = &f->opts->sink;
    struct pollfd *fds = zt_xcalloc(2 * n_fds(f), sizeof *fds);
    while (zt_front_find(f, zt_node_alive)) {
        const int blocked_fd = sink->flush ? sink->flush(sink->ctx) : -1;
        hold_workers(f, blocked_fd >= 0);
        for (int i = 0; i < f->n_nodes; i++)
            zt_link_flush(&f->nodes[i].link);
        set_fds(f, fds, blocked_fd);
        if (wait_for_some(fds, n_fds(f), fds + n_fds(f)) < 0)
            continue;
        read_fds(f, fds);
        watch_time(f);
    }
    for (int i = 0; i < f->n_nodes; i++)
        while (zt_node_read_stderr(&f->nodes[i]))
            ;
    read_signals(f); /* who was told to end in the last moment does not begin again */
    if (sink->flush)
        sink->flush(sink->ctx);
    free(fds);
}

/* ---- from its start to its end ---- */

static void init_nodes(struct front *f)
{
    const struct zt_launch_opts *o = f->opts;
    int first = 0;
    f->n_nodes = ZT_MAX(o->n_nodes, 1);
    f->nodes = zt_xcalloc((size_t)f->n_nodes, sizeof *f->nodes);
    f->apart.n = f->n_nodes;
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
        if (n->ssh && !f->turns)
            f->turns = zt_turns_create(f->n_nodes);
        if (n->ssh)
            zt_turn_init(&n->turn, f->turns, n->ssh);
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
    zt_apart_release(&f->apart);
    zt_turns_free(f->turns);
    zt_ranklogs_release(&f->logs);
    explicit_bzero(f->secret, sizeof f->secret);
}

/* Of a job that cannot start: whom it had started. */
static void end_agents(struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++) {
        if (!f->nodes[i].agent)
            continue;
        kill(f->nodes[i].agent, SIGKILL);
        waitpid(f->nodes[i].agent, NULL, 0);
    }
}

static int start_agents(struct front *f, struct zt_err *err)
{
    struct zt_ssh2_host *carry = zt_xcalloc((size_t)f->n_nodes, sizeof *carry);
    int n_carried = 0, rc = 0;
    if (getrandom(f->secret, sizeof f->secret, 0) != sizeof f->secret)
        rc = zt_err_errno(err, ZT_ESYS, "getrandom");
    for (int i = 0; i < f->n_nodes && !rc; i++) {
        rc = zt_node_start(&f->nodes[i], &carry[n_carried], err);
        if (!rc && f->nodes[i].carried)
            f->nodes[i].carried_at = n_carried++;
    }
    if (!rc && n_carried)
        rc = zt_ssh2_start(carry, n_carried, &f->ssh2, err);
    for (int i = 0; rc && i < n_carried; i++) {
        close(carry[i].fd);
        close(carry[i].err_fd);
    }
    if (rc)
        end_agents(f);
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
    int rc = zt_front_check(opts, err);
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
        if (opts->sink.node || zt_front_find(&f, zt_node_was_lost))
            zt_supervisor_sweep(&super);
        rc = zt_front_conclude(&f, result, err);
    }
    zt_supervisor_release(&super);
    release(&f);
    return rc;
}
