/*
 * A process that joins a job and waits for its end. What it does is little, so that a launcher which counts
 * processes finds them: rank 0's front end and the agents do the work.
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/io.h"
#include "launch/rendezvous.h"
#include "launch/supervisor.h"

enum {
    ANSWER_S = 5, /* in which a listener must take up a connection, and answer */
    REDIAL_MS = 100,
    REFUSALS_MAX = 3, /* a crowded listener may drop a connection at any time */
    AGENT_MS = 15000, /* an agent without a front end ends its workers and itself in less */
};

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

/* ---- finding rank 0 ---- */

struct dial {
    const struct zt_meeting *m;
    enum zt_party_kind kind;
    int n_refusals;
    char last[300]; /* why not yet */
};

ZT_PRINTF(2, 3) static void note(struct dial *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->last, sizeof d->last, fmt, ap);
    va_end(ap);
}

static bool read_all(int fd, void *bytes, size_t n)
{
    return recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

static bool say(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Both ends prove themselves. 1: done; 0: not yet; negative: never. */
static int shake_hands(struct dial *d, int fd, const char *where, struct zt_err *err)
{
    struct tcp_hello hello;
    uint8_t nonce[TCP_NONCE_BYTES], proof[TCP_PROOF_BYTES], key[TCP_SECRET_BYTES];
    zt_meeting_hello(d->m, d->m->rank, d->kind, &hello);
    int rc = zt_tcp_nonce(hello.nonce, err);
    if (rc)
        return rc;
    if (!zt_meeting_key(d->m, fd, TCP_DIALS, key)) {
        note(d, "%s: the connection ended", where);
        return 0;
    }
    if (!say(fd, &hello, sizeof hello) || !read_all(fd, nonce, sizeof nonce)) {
        note(d, "%s does not take us: another job, or another program?", where);
        return 0;
    }
    zt_tcp_prove(key, TCP_DIALS, &hello, nonce, proof);
    if (!say(fd, proof, sizeof proof) || !read_all(fd, proof, sizeof proof)) {
        note(d, "%s does not accept our proof", where);
        if (++d->n_refusals < REFUSALS_MAX)
            return 0;
        return zt_err_set(err, ZT_EPEER,
                          "%s does not accept our proof: is ZT_JOB_SECRET_FILE the same for all "
                          "processes, and are addresses not translated on the way (NAT)?",
                          where);
    }
    if (!zt_tcp_proves(key, TCP_LISTENS, &hello, nonce, proof))
        return zt_err_set(err, ZT_EPEER, "%s does not know the secret of this job", where);
    return 1;
}

static void set_limits(int fd)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* of connect() too */
}

/* A socket of another user in our place can only be meant to deceive. 1: it is not; 0: TCP may do without. */
static int check_user(struct dial *d, int fd, struct zt_err *err)
{
    static const char text[] = "another user listens where rank 0 of this job should";
    if (zt_is_same_user(fd))
        return 1;
    if (!d->m->host[0])
        return zt_err_set(err, ZT_EPEER, "%s; choose another MASTER_PORT", text);
    note(d, "%s", text);
    return 0;
}

/* Connect and shake hands. As shake_hands(); *out is the connection when 1. */
static int try_address(struct dial *d, const struct sockaddr *to, socklen_t len, const char *where,
                       int *out, struct zt_err *err)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;
    if (fd < 0)
        return zt_err_errno(err, ZT_ESYS, "socket");
    set_limits(fd);
    if (connect(fd, to, len))
        note(d, "%s: %s", where, errno == EINPROGRESS ? "no answer" : strerror(errno));
    else if (to->sa_family != AF_UNIX || (rc = check_user(d, fd, err)) == 1)
        rc = shake_hands(d, fd, where, err);
    if (rc == 1)
        *out = fd;
    else
        close(fd);
    return rc;
}

static int try_tcp(struct dial *d, int *out, struct zt_err *err)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    char port[16], where[ZT_HOST_TEXT + 32];
    int rc = 0;
    snprintf(port, sizeof port, "%d", d->m->port);
    snprintf(where, sizeof where, "%s, port %s", d->m->host, port);
    int no = getaddrinfo(d->m->host, port, &want, &list);
    if (no) {
        note(d, "%s: %s", d->m->host, gai_strerror(no));
        return 0;
    }
    for (const struct addrinfo *a = list; a && rc == 0; a = a->ai_next)
        rc = try_address(d, a->ai_addr, a->ai_addrlen, where, out, err);
    freeaddrinfo(list);
    if (rc == 1)
        zt_meeting_keepalive(*out);
    return rc;
}

/* Until rank 0 is there: on this host by the Unix socket, else by TCP. */
static int dial(const struct zt_meeting *m, enum zt_party_kind kind, int *out, struct zt_err *err)
{
    struct dial d = {.m = m, .kind = kind};
    struct sockaddr_storage at;
    socklen_t len = zt_meeting_unix(m, &at);
    int64_t end_ns = zt_now_ns() + (int64_t)(m->limit_s * 1e9);
    for (;;) {
        int rc = try_address(&d, (struct sockaddr *)&at, len, "rank 0 on this host", out, err);
        if (rc == 0 && m->host[0])
            rc = try_tcp(&d, out, err);
        if (rc)
            return rc < 0 ? rc : 0;
        if (zt_now_ns() > end_ns)
            return zt_err_set(err, ZT_EPEER,
                              "rank 0 did not answer within %g s (ZT_JOIN_SECONDS): %s", m->limit_s,
                              d.last);
        poll(NULL, 0, REDIAL_MS);
    }
}

/* ---- waiting ---- */

struct member {
    struct zt_link link;
    int sig_fd;
    int socks[ZT_PARTY_AGENTS]; /* connections for agents */
    int n_socks, n_started;     /* that there are; that agents have */
    int n_alive;                /* agents */
    int exit_code;              /* -1: not told yet */
};

/* Of an agent, nothing is told here: the front end is at its other end. */
static int start_agent(struct member *m, struct zt_err *err)
{
    pid_t pid;
    if (m->n_started == m->n_socks)
        return zt_err_set(err, ZT_EPROTO, "a START frame too many, or one that is not for us");
    int *sock = &m->socks[m->n_started++];
    errno = zt_spawn_agent(&pid, NULL, *sock, STDERR_FILENO, true);
    close(*sock);
    *sock = -1;
    if (errno)
        return zt_err_errno(err, ZT_ESYS, "cannot start the agent (/proc/self/exe)");
    m->n_alive++;
    return 0;
}

static int take_frame(struct member *m, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    switch (f->type) {
    case ZT_FRAME_HELLO:
        return 0;
    case ZT_FRAME_START:
        return start_agent(m, err);
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
        return zt_err_set(err, ZT_EPEER, "the process of rank 0 is gone");
    if (rc == 0)
        return 0;
    while ((rc = zt_frame_next(&m->link.in, &f, err)) > 0)
        if ((rc = take_frame(m, &f, err)) != 0)
            return rc;
    return rc;
}

static void read_signals(struct member *m)
{
    struct signalfd_siginfo si;
    while (read(m->sig_fd, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD) {
            while (waitpid(-1, NULL, WNOHANG) > 0)
                m->n_alive--;
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
    }
    return rc;
}

/* Who is first to see us leave may take it that nothing of us is left. */
static void wait_for_agents(struct member *m)
{
    int64_t end_ns = zt_now_ns() + AGENT_MS * (int64_t)1000000;
    while (m->n_started < m->n_socks)
        close(m->socks[m->n_started++]);
    while (m->n_alive > 0 && zt_now_ns() < end_ns) {
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
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &mask, before);
    return 0;
}

int zt_member_run(const struct zt_meeting *meeting, const char *host, int *exit_code,
                  struct zt_err *err)
{
    struct member m = {.exit_code = -1};
    sigset_t before;
    int fd = -1;
    prctl(PR_SET_NAME, "zerotrain-wait");
    int rc = dial(meeting, ZT_PARTY_PROCESS, &fd, err);
    if (!rc)
        rc = zt_link_open(&m.link, fd, fd, err);
    if (!rc)
        rc = block_signals(&m, &before, err);
    if (!rc) {
        send_party(&m.link, meeting, host);
        while (!rc && meeting->local_rank <= 0 && m.n_socks < ZT_PARTY_AGENTS)
            if ((rc = dial(meeting, ZT_PARTY_AGENT, &m.socks[m.n_socks], err)) == 0)
                m.n_socks++;
        if (!rc)
            rc = wait_for_end(&m, err);
        wait_for_agents(&m);
        close(m.sig_fd);
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    zt_link_close(&m.link);
    *exit_code = m.exit_code;
    return rc ? zt_err_wrap(err, "joining the job that %s has started, as rank %d of %d",
                            meeting->by, meeting->rank, meeting->world)
              : 0;
}
