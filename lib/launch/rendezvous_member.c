/*
 * A process that joins a job and waits for its end. What it does is little, so that a launcher which counts
 * processes finds them: rank 0's front end and the agents do the work.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/io.h"
#include "launch/rendezvous.h"
#include "launch/supervisor.h"

enum { AGENT_MS = 15000 }; /* an agent that has joined ends its workers and itself in less */

/* ---- who we are ---- */

static void describe_host(struct zt_party *p, const char *host)
{
    struct zt_err ignored;
    struct zt_str boot = {0};
    char name[ZT_HOST_TEXT / 2] = "";
    gethostname(name, sizeof name - 1);
    snprintf(p->host, sizeof p->host, "%s", host ? host : name);
    /* A kernel's boot has a name of its own; containers on it differ in their host name. */
    if (host || zt_read_file("/proc/sys/kernel/random/boot_id", sizeof name, &boot, &ignored))
        zt_str_reset(&boot);
    snprintf(p->host_id, sizeof p->host_id, "%s %.64s", p->host, zt_str_get(&boot));
    zt_str_release(&boot);
}

void zt_party_describe(struct zt_party *p, int rank, int local_rank, const char *host)
{
    unsigned long cpus[ZT_CPUS_MAX_BYTES / sizeof(unsigned long)];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    p->rank = rank;
    p->local_rank = local_rank;
    describe_host(p, host);
    memset(cpus, 0, sizeof cpus);
    if (sched_getaffinity(0, sizeof cpus, (cpu_set_t *)cpus) == 0)
        zt_str_add(&p->cpus, cpus, sizeof cpus);
    if (visible) {
        size_t len = strlen(visible) + 1;
        p->visible = zt_xcalloc(len, 1);
        memcpy(p->visible, visible, len);
    }
    p->told = true;
}

static void put_text(struct zt_str *out, const char *text)
{
    zt_put_blob(out, text ? text : "", text ? strlen(text) : 0);
}

static void send_party(struct zt_link *link, const struct zt_meeting *m, const char *host)
{
    struct zt_party me = {0};
    zt_party_describe(&me, m->rank, m->local_rank, host);
    size_t at = zt_frame_begin(&link->out, ZT_FRAME_PARTY);
    zt_put_u32(&link->out, (uint32_t)me.local_rank);
    zt_put_u32(&link->out, me.visible != NULL);
    put_text(&link->out, me.host);
    put_text(&link->out, me.host_id);
    zt_put_blob(&link->out, zt_str_get(&me.cpus), me.cpus.len);
    put_text(&link->out, me.visible);
    zt_frame_end(&link->out, at);
    zt_link_flush(link);
    zt_str_release(&me.cpus);
    free(me.visible);
}

/* ---- waiting ---- */

static void forget_secret(struct zt_meeting *m)
{
    explicit_bzero(m->secret, sizeof m->secret);
}

struct child {
    pid_t pid; /* 0: none */
    int sock;  /* a byte comes when it has joined */
};

struct member {
    struct zt_meeting *meeting;
    struct zt_link link;
    int sig_fd;
    bool started; /* the agents */
    struct child agents[ZT_PARTY_AGENTS];
    bool astray;   /* one of them could not join, and has said why */
    int exit_code; /* -1: not told yet */
};

/* Nothing of it comes by here: it gets a ticket, and joins by itself. */
static int start_agent(struct member *m, struct child *child, struct zt_err *err)
{
    static const char *const argv[] = {"zerotrain", "agent", "joins", NULL};
    struct zt_str ticket = {0};
    int socks[2];
    pid_t pid;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks))
        return zt_err_errno(err, ZT_ESYS, "socketpair");
    zt_ticket_put(m->meeting, &ticket);
    /* A new socket takes as much at once. */
    errno = send(socks[0], ticket.buf, ticket.len, MSG_NOSIGNAL) == (ssize_t)ticket.len
                ? zt_spawn_agent(&pid, argv, socks[1], STDERR_FILENO, true)
                : errno;
    int rc = errno ? zt_err_errno(err, ZT_ESYS, "cannot start the agent (/proc/self/exe)") : 0;
    shutdown(socks[0], SHUT_WR);
    close(socks[1]);
    if (rc)
        close(socks[0]);
    else
        *child = (struct child){pid, socks[0]};
    explicit_bzero(ticket.buf, ticket.cap);
    zt_str_release(&ticket);
    return rc;
}

static int start_agents(struct member *m, struct zt_cursor c, struct zt_err *err)
{
    const unsigned char *nonce = zt_get_bytes(&c, sizeof m->meeting->nonce);
    if (m->started || !zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed or second START frame");
    int rc = 0;
    m->started = true;
    memcpy(m->meeting->nonce, nonce, sizeof m->meeting->nonce);
    for (int i = 0; i < ZT_PARTY_AGENTS && !rc; i++)
        rc = start_agent(m, &m->agents[i], err);
    forget_secret(m->meeting);
    return rc;
}

static int take_frame(struct member *m, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    switch (f->type) {
    case ZT_FRAME_HELLO:
        return 0;
    case ZT_FRAME_START:
        return start_agents(m, c, err);
    case ZT_FRAME_LEAVE:
        m->exit_code = (int)(zt_get_u32(&c) & 255);
        return 0;
    case ZT_FRAME_FAIL: {
        int code = (int)zt_get_u32(&c);
        return zt_err_set(err, code < 0 ? (enum zt_code)code : ZT_EPROTO, "rank 0: %.*s",
                          (int)c.left, (const char *)c.p);
    }
    default:
        return zt_err_set(err, ZT_EPROTO, "frame of unexpected type %u", f->type);
    }
}

static int read_front(struct member *m, struct zt_err *err)
{
    struct zt_frame f;
    int rc = zt_link_read(&m->link);
    if (rc == ZT_EPEER)
        return zt_err_set(err, ZT_EPEER, "the process of rank 0 is gone%s", zt_link_end(&m->link));
    if (rc == 0)
        return 0;
    while ((rc = zt_frame_next(&m->link.in, &f, err)) > 0)
        if ((rc = take_frame(m, &f, err)) != 0)
            return rc;
    return rc;
}

static void reap_agents(struct member *m)
{
    for (int i = 0; i < ZT_PARTY_AGENTS; i++) {
        struct child *a = &m->agents[i];
        int status;
        if (!a->pid || waitpid(a->pid, &status, WNOHANG) != a->pid)
            continue;
        a->pid = 0;
        close(a->sock);
        m->astray |= WIFEXITED(status) && WEXITSTATUS(status) == ZT_AGENT_ASTRAY;
    }
}

static bool has_agents(const struct member *m)
{
    bool any = false;
    for (int i = 0; i < ZT_PARTY_AGENTS; i++)
        any |= m->agents[i].pid != 0;
    return any;
}

static void read_signals(struct member *m)
{
    struct signalfd_siginfo si;
    while (read(m->sig_fd, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD) {
            reap_agents(m);
            continue;
        }
        size_t at = zt_frame_begin(&m->link.out, ZT_FRAME_SIGNAL);
        zt_put_u32(&m->link.out, si.ssi_signo);
        zt_frame_end(&m->link.out, at);
    }
    zt_link_flush(&m->link);
}

static int wait_for_end(struct member *m, struct zt_err *err)
{
    int rc = 0;
    while (!rc && m->exit_code < 0) {
        struct pollfd p[] = {{.fd = m->sig_fd, .events = POLLIN},
                             {.fd = m->link.rfd, .events = POLLIN}};
        if (poll(p, ZT_ARRAY_LEN(p), -1) < 0 && errno != EINTR)
            return zt_err_errno(err, ZT_ESYS, "poll");
        read_signals(m);
        if (p[1].revents)
            rc = read_front(m, err);
        if (!rc && m->astray)
            rc = zt_err_set(err, ZT_EPEER, "an agent of ours could not join");
    }
    return rc;
}

/* Those that still dial have no workers, and would join whoever listens there next. */
static void kill_dialing(struct member *m)
{
    char joined;
    for (int i = 0; i < ZT_PARTY_AGENTS; i++) {
        const struct child *a = &m->agents[i];
        if (a->pid && recv(a->sock, &joined, 1, MSG_DONTWAIT) != 1)
            kill(a->pid, SIGKILL);
    }
}

/* Who is first to see us leave may take it that nothing of us is left. */
static void wait_for_agents(struct member *m)
{
    kill_dialing(m);
    int64_t end_ns = zt_now_ns() + AGENT_MS * (int64_t)1000000;
    while (has_agents(m) && zt_now_ns() < end_ns) {
        struct pollfd p = {.fd = m->sig_fd, .events = POLLIN};
        poll(&p, 1, ZT_POLL_MS);
        read_signals(m);
    }
}

static int block_signals(struct member *m, sigset_t *before, struct zt_err *err)
{
    static const int handled[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < ZT_ARRAY_LEN(handled); i++)
        sigaddset(&mask, handled[i]);
    m->sig_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (m->sig_fd < 0)
        return zt_err_errno(err, ZT_ESYS, "signalfd");
    sigprocmask(SIG_BLOCK, &mask, before);
    return 0;
}

int zt_member_run(struct zt_meeting *meeting, const char *host, int *exit_code, struct zt_err *err)
{
    struct member m = {.meeting = meeting, .exit_code = -1};
    sigset_t before;
    prctl(PR_SET_NAME, "zerotrain-wait");
    int rc = zt_meeting_dial(meeting, ZT_PARTY_PROCESS, &m.link, err);
    if (rc || meeting->local_rank > 0) /* else it is for our agents, too */
        forget_secret(meeting);
    if (!rc)
        rc = block_signals(&m, &before, err);
    if (!rc) {
        send_party(&m.link, meeting, host);
        rc = wait_for_end(&m, err);
        wait_for_agents(&m);
        close(m.sig_fd);
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    zt_link_close(&m.link);
    forget_secret(meeting);
    *exit_code = m.exit_code;
    return rc ? zt_err_wrap(err, "joining the job that %s has started, as rank %d of %d",
                            meeting->by, meeting->rank, meeting->world)
              : 0;
}
