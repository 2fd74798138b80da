/*
 * The front end's side: a listener until all processes are there, and a connection to each of them to the
 * job's end. One poll loop; nobody is waited for in particular, so who is silent holds up only himself.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/build.h"
#include "base/clock.h"
#include "launch/rendezvous.h"

enum {
    PROOF_MS = 5000,  /* how long one may take to prove himself, */
    CROWDED_MS = 500, /* and when others wait for his place */
    SILENT_S = 5,     /* for so long the system keeps those by TCP who have not said anything */
    BACKLOG = 1024,
    STEP_MS = 100,
    LEAVE_MS = 2000,
};

/* Where nobody has proven himself yet. */
struct zt_shake {
    struct zt_conn conn; /* no TLS: by the Unix socket, or he has not said anything yet */
    bool by_tcp;         /* else the kernel has told who it is */
    char from[80];       /* his address; "": by the Unix socket */
    int64_t since_ns;
    size_t got; /* bytes of its hello */
    struct zt_hello hello;
};

/* ---- listening ---- */

/* Somebody else listens by that name. */
static bool is_squatted(const struct sockaddr_storage *at, socklen_t len)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool other = connect(fd, (const struct sockaddr *)at, len) == 0 && !zt_is_same_user(fd);
    close(fd);
    return other;
}

/* Where another user has taken the name, processes of this host come by TCP, if there is any. */
static int listen_unix(struct zt_rendezvous *r, struct zt_err *err)
{
    struct sockaddr_storage at;
    socklen_t len = zt_meeting_unix(&r->m, &at);
    r->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->unix_fd < 0)
        return zt_err_errno(err, ZT_ESYS, "socket");
    if (bind(r->unix_fd, (struct sockaddr *)&at, len) == 0 && listen(r->unix_fd, BACKLOG) == 0)
        return 0;
    if (errno == EADDRINUSE && r->m.host[0] && is_squatted(&at, len)) {
        close(r->unix_fd);
        r->unix_fd = -1;
        return 0;
    }
    if (errno == EADDRINUSE)
        return zt_err_set(err, ZT_EINPUT,
                          "another job that %s has started on this host cannot be told from this "
                          "one; give each of them a MASTER_PORT of its own",
                          r->m.by);
    return zt_err_errno(err, ZT_ESYS, "a socket for the processes of this host");
}

/* Who has no business here is sent away before anything is proven. */
static bool may_come(void *arg, const void *name, size_t bytes)
{
    const struct zt_rendezvous *r = arg;
    struct zt_hello said, ours;
    if (bytes != sizeof said)
        return false;
    memcpy(&said, name, sizeof said);
    if (said.rank < 0 || said.rank >= r->m.world || said.rank == r->m.rank || said.kind < 0 ||
        said.kind >= ZT_N_PARTY_KINDS)
        return false;
    zt_meeting_hello(&r->m, said.rank, (enum zt_party_kind)said.kind, &ours);
    return memcmp(&said, &ours, sizeof ours) == 0;
}

int zt_rendezvous_open(const struct zt_meeting *m, const char *host, struct zt_rendezvous *r,
                       struct zt_err *err)
{
    memset(r, 0, sizeof *r);
    r->m = *m;
    r->unix_fd = r->tcp_fd = -1;
    r->v = zt_xcalloc((size_t)m->world, sizeof *r->v);
    r->shakes = zt_xcalloc(ZT_STRANGERS_MAX, sizeof *r->shakes);
    for (int i = 0; i < m->world; i++) {
        r->v[i].rank = i;
        r->v[i].nonce = r->m.nonce;
        for (int k = 0; k < ZT_PARTY_AGENTS; k++)
            r->v[i].agents[k].fd = -1;
    }
    if (m->rank >= 0)
        zt_party_describe(&r->v[m->rank], m->rank, m->local_rank, host);
    int rc = getrandom(r->m.nonce, sizeof r->m.nonce, 0) == sizeof r->m.nonce
                 ? listen_unix(r, err)
                 : zt_err_errno(err, ZT_ESYS, "getrandom");
    if (!rc && m->host[0])
        rc = zt_meeting_listen(m, &r->tcp_fd, r->address, sizeof r->address, &r->port, err);
    if (!rc && m->host[0]) {
        const int silent_s = SILENT_S;
        (void)setsockopt(r->tcp_fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silent_s, sizeof silent_s);
        rc = zt_tls_ctx_create(m->secret, may_come, r, &r->tls, err);
    }
    if (rc)
        zt_rendezvous_leave(r, 0);
    return rc;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void stop_listening(struct zt_rendezvous *r)
{
    while (r->n_shakes)
        zt_conn_close(&r->shakes[--r->n_shakes].conn);
    close_fd(&r->unix_fd);
    close_fd(&r->tcp_fd);
    zt_tls_ctx_free(r->tls);
    r->tls = NULL;
    explicit_bzero(r->m.secret, sizeof r->m.secret); /* nobody comes any more */
}

/* ---- strangers ---- */

/* False: it is gone already. */
static bool peer_text(int fd, char *buf, size_t buf_bytes)
{
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof from;
    int port;
    return getpeername(fd, (struct sockaddr *)&from, &len) == 0 &&
           zt_ip_text(&from, buf, buf_bytes, &port);
}

static int64_t age_ms(const struct zt_shake *s)
{
    return (zt_now_ns() - s->since_ns) / 1000000;
}

static void forget(struct zt_rendezvous *r, int i)
{
    zt_conn_close(&r->shakes[i].conn);
    r->shakes[i] = r->shakes[--r->n_shakes];
}

static int count_from(const struct zt_rendezvous *r, const char *from)
{
    int n = 0;
    for (int i = 0; i < r->n_shakes; i++)
        n += strcmp(r->shakes[i].from, from) == 0;
    return n;
}

/* Of the address that holds most places the oldest goes, so a crowd takes none from other hosts. False: it is new. */
static bool make_room(struct zt_rendezvous *r)
{
    int out = 0, most = 0;
    for (int i = 0; i < r->n_shakes; i++) {
        const struct zt_shake *s = &r->shakes[i];
        int n = count_from(r, s->from);
        if (n > most || (n == most && s->since_ns < r->shakes[out].since_ns)) {
            out = i;
            most = n;
        }
    }
    if (age_ms(&r->shakes[out]) < CROWDED_MS)
        return false;
    forget(r, out);
    return true;
}

static bool is_waited_at(int listen_fd)
{
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0; /* not for -1 */
}

static int accept_all(struct zt_rendezvous *r, int listen_fd, struct zt_err *err)
{
    while (is_waited_at(listen_fd) && (r->n_shakes < ZT_STRANGERS_MAX || make_room(r))) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            if (r->n_shakes == 0)
                return zt_err_errno(err, ZT_ESYS, "%d processes join; see `ulimit -n`", r->m.world);
            (void)make_room(r); /* strangers hold descriptors, too */
            return 0;
        }
        if (fd < 0)
            return 0;
        struct zt_shake s = {
            .conn.fd = fd, .by_tcp = listen_fd == r->tcp_fd, .since_ns = zt_now_ns()};
        if (s.by_tcp ? peer_text(fd, s.from, sizeof s.from) : zt_is_same_user(fd))
            r->shakes[r->n_shakes++] = s;
        else
            zt_conn_close(&s.conn);
    }
    return 0;
}

static void note_refused(struct zt_rendezvous *r, const struct zt_shake *s)
{
    size_t bytes;
    struct zt_hello said;
    const void *name = zt_tls_name(s->conn.tls, &bytes);
    if (bytes != sizeof said) /* not somebody of this job */
        return;
    memcpy(&said, name, sizeof said);
    r->n_refused++;
    snprintf(r->refused, sizeof r->refused, "who said to be rank %d, from %s", said.rank, s->from);
}

/* As far as it goes. ZT_TLS_PROVEN: s->hello comes from our user, or from who has the secret. */
static enum zt_tls_state go_on(struct zt_rendezvous *r, struct zt_shake *s)
{
    struct zt_err ignored;
    size_t bytes;
    if (s->by_tcp) {
        if (!s->conn.tls && zt_tls_accept(r->tls, s->conn.fd, &s->conn.tls, &ignored))
            return ZT_TLS_FAILED;
        enum zt_tls_state state = zt_tls_handshake(s->conn.tls);
        if (state == ZT_TLS_OTHER_SECRET)
            note_refused(r, s);
        if (state == ZT_TLS_PROVEN)
            memcpy(&s->hello, zt_tls_name(s->conn.tls, &bytes), sizeof s->hello);
        return state;
    }
    ssize_t n = recv(s->conn.fd, (char *)&s->hello + s->got, sizeof s->hello - s->got, 0);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? ZT_TLS_GOING_ON : ZT_TLS_FAILED;
    s->got += (size_t)n;
    if (s->got < sizeof s->hello)
        return ZT_TLS_GOING_ON;
    return may_come(r, &s->hello, sizeof s->hello) ? ZT_TLS_PROVEN : ZT_TLS_FAILED;
}

/* That he is in: not before this does he take it so. It fits the buffers of a new connection. */
static bool answer(const struct zt_shake *s)
{
    const struct zt_conn *c = &s->conn;
    const size_t bytes = sizeof s->hello;
    ssize_t n = c->tls ? zt_tls_write(c->tls, &s->hello, bytes)
                       : send(c->fd, &s->hello, bytes, MSG_NOSIGNAL);
    return n == (ssize_t)bytes;
}

/* ---- those who have proven themselves ---- */

/* To be let in no more, and told why. */
static void turn_away(struct zt_conn *conn, const char *why)
{
    struct zt_link link = {0};
    struct zt_err ignored;
    if (zt_link_open_conn(&link, conn, &ignored))
        return;
    size_t at = zt_frame_begin(&link.out, ZT_FRAME_FAIL);
    zt_put_u32(&link.out, (uint32_t)ZT_EINPUT);
    zt_str_puts(&link.out, why);
    zt_frame_end(&link.out, at);
    zt_link_flush(&link);
    zt_link_close(&link);
}

/* The connection is ours now; it may have come twice. */
static int let_in(struct zt_rendezvous *r, struct zt_shake *s, struct zt_err *err)
{
    struct zt_party *p = &r->v[s->hello.rank];
    struct zt_conn conn = s->conn;
    s->conn = (struct zt_conn){.fd = -1};
    const bool agent = s->hello.kind == ZT_PARTY_AGENT;
    if (agent ? p->n_agents == ZT_PARTY_AGENTS : p->link.open) {
        char why[160];
        snprintf(
            why, sizeof why,
            "there is a rank %d already: two jobs with the same MASTER_PORT? Give each its own",
            p->rank);
        turn_away(&conn, why);
        return 0;
    }
    if (conn.tls)
        zt_meeting_keepalive(conn.fd);
    if (agent) {
        p->agents[p->n_agents++] = conn;
        return 0;
    }
    /* nodes of Slurm may share a machine */
    snprintf(p->address, sizeof p->address, "%s", s->by_tcp ? s->from : r->address);
    int rc = zt_link_open_conn(&p->link, &conn, err);
    if (!rc)
        zt_link_flush(&p->link);
    return rc;
}

/* False: done with it, one way or the other. */
static bool advance(struct zt_rendezvous *r, struct zt_shake *s, int *rc, struct zt_err *err)
{
    const enum zt_tls_state state = go_on(r, s);
    if (state == ZT_TLS_PROVEN && answer(s))
        *rc = let_in(r, s, err);
    return state == ZT_TLS_GOING_ON;
}

/* ---- frames ---- */

static void get_text(struct zt_cursor *c, char *out, size_t room)
{
    size_t n;
    const unsigned char *p = zt_get_blob(c, &n);
    if (p)
        snprintf(out, room, "%.*s", (int)ZT_MIN(n, room), (const char *)p);
}

static int on_party(struct zt_party *p, struct zt_cursor c, struct zt_err *err)
{
    size_t n;
    uint32_t local = zt_get_u32(&c), has_visible = zt_get_u32(&c);
    get_text(&c, p->host, sizeof p->host);
    get_text(&c, p->host_id, sizeof p->host_id);
    const unsigned char *cpus = zt_get_blob(&c, &n);
    if (p->told || !cpus || n > ZT_CPUS_MAX_BYTES)
        return zt_err_set(err, ZT_EPROTO, "malformed PARTY frame");
    zt_str_add(&p->cpus, cpus, n);
    const unsigned char *visible = zt_get_blob(&c, &n);
    if (!zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed PARTY frame");
    if (has_visible) {
        p->visible = zt_xcalloc(n + 1, 1);
        memcpy(p->visible, visible, n);
    }
    p->local_rank = (int)local;
    p->told = true;
    if (p->local_rank <= 0)
        zt_frame_put(&p->link.out, ZT_FRAME_START, p->nonce, ZT_NONCE_BYTES);
    zt_link_flush(&p->link);
    return 0;
}

static int on_hello(struct zt_cursor c, struct zt_err *err)
{
    size_t len;
    zt_get_blob(&c, &len);
    const unsigned char *build = zt_get_blob(&c, &len);
    if (!zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed HELLO");
    if (len != strlen(zt_build_name()) || memcmp(build, zt_build_name(), len) != 0)
        return zt_err_set(err, ZT_EINPUT,
                          "it runs zerotrain %.*s, but rank 0 zerotrain %s; install the same "
                          "program on every host",
                          (int)ZT_MIN(len, 100), (const char *)build, zt_build_name());
    return 0;
}

/* One frame. A signal, 0, or negative. */
static int take_frame(struct zt_party *p, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    switch (f->type) {
    case ZT_FRAME_HELLO:
        return on_hello(c, err);
    case ZT_FRAME_PARTY:
        return on_party(p, c, err);
    case ZT_FRAME_SIGNAL: {
        uint32_t sig = zt_get_u32(&c);
        if (!zt_cursor_done(&c) || sig < 1 || sig > 64)
            return zt_err_set(err, ZT_EPROTO, "malformed SIGNAL frame");
        p->n_signals++;
        return (int)sig;
    }
    default:
        return zt_err_set(err, ZT_EPROTO, "frame of unexpected type %u", f->type);
    }
}

/* All that has come. A signal, at once; 0; or negative. */
static int read_party(struct zt_party *p, struct zt_err *err)
{
    struct zt_frame f;
    int got, rc;
    do {
        while ((rc = zt_frame_next(&p->link.in, &f, err)) > 0)
            if ((rc = take_frame(p, &f, err)) != 0)
                return rc;
        if (rc)
            return rc;
        got = zt_link_read(&p->link);
    } while (got > 0);
    return got ? zt_err_set(err, ZT_EPEER, "it has ended%s", zt_link_end(&p->link)) : 0;
}

int zt_party_read(struct zt_party *p)
{
    struct zt_err ignored;
    int rc = p->link.open && !p->gone ? read_party(p, &ignored) : 0;
    if (rc >= 0)
        return rc;
    p->gone = true;
    return ZT_EPEER;
}

/* ---- until all are there ---- */

static bool is_there(const struct zt_party *p)
{
    return p->told && (!p->link.open || p->local_rank > 0 || p->n_agents == ZT_PARTY_AGENTS);
}

static int missing(const struct zt_rendezvous *r, struct zt_err *err)
{
    struct zt_str ranks = {0};
    int n = 0;
    enum { SHOWN = 10 };
    for (int i = 0; i < r->m.world; i++)
        if (!is_there(&r->v[i]) && n++ < SHOWN)
            zt_str_printf(&ranks, "%s%d", n > 1 ? ", " : "", i);
    zt_err_set(err, ZT_EPEER,
               "of the %d processes that %s starts, rank%s %s%s did not come within %g s "
               "(ZT_JOIN_SECONDS)",
               r->m.world, r->m.by, n > 1 ? "s" : "", ranks.buf, n > SHOWN ? ", ..." : "",
               r->m.limit_s);
    zt_str_release(&ranks);
    if (r->n_refused)
        zt_str_printf(&ranks, "%s; refused: %s, with another secret (ZT_JOB_SECRET_FILE)", err->msg,
                      r->refused);
    if (ranks.len)
        zt_err_set(err, ZT_EPEER, "%s", ranks.buf);
    zt_str_release(&ranks);
    return ZT_EPEER;
}

/* Strangers first, then what else there is: no more than we may have open, or poll() refuses them. How many. */
static size_t fill_polls(const struct zt_rendezvous *r, struct pollfd *p)
{
    const int listens[] = {r->unix_fd, r->tcp_fd};
    size_t n = 0;
    for (int i = 0; i < r->n_shakes; i++) {
        const struct zt_conn *c = &r->shakes[i].conn;
        p[n++] = (struct pollfd){.fd = c->fd, .events = c->tls ? zt_tls_events(c->tls) : POLLIN};
    }
    for (size_t i = 0; i < ZT_ARRAY_LEN(listens) && r->n_shakes < ZT_STRANGERS_MAX; i++)
        if (listens[i] >= 0)
            p[n++] = (struct pollfd){.fd = listens[i], .events = POLLIN};
    for (int i = 0; i < r->m.world; i++)
        if (r->v[i].link.open)
            p[n++] = (struct pollfd){.fd = r->v[i].link.rfd, .events = POLLIN};
    return n;
}

const char *zt_party_name(const struct zt_rendezvous *r, const struct zt_party *p, char *buf,
                          size_t buf_bytes)
{
    char rank[32] = "";
    if (r->m.rank >= 0 || !p->told)
        snprintf(rank, sizeof rank, " of rank %d", p->rank);
    snprintf(buf, buf_bytes, "the process%s%s%s", rank, p->told ? " on " : "", p->host);
    return buf;
}

static int read_parties(struct zt_rendezvous *r, struct zt_err *err)
{
    for (int i = 0; i < r->m.world; i++) {
        struct zt_party *p = &r->v[i];
        char name[ZT_HOST_TEXT + 64];
        int rc = p->link.open ? read_party(p, err) : 0;
        if (rc > 0) /* where we are one of them, we are told too */
            r->told = rc;
        if (rc < 0) {
            p->gone = true;
            return zt_err_wrap(err, "%s", zt_party_name(r, p, name, sizeof name));
        }
    }
    return 0;
}

int zt_rendezvous_step(struct zt_rendezvous *r, int ms, struct zt_err *err)
{
    struct pollfd *p = zt_xcalloc(2 + ZT_STRANGERS_MAX + (size_t)r->m.world, sizeof *p);
    int rc = 0, n_shakes = r->n_shakes;
    const size_t n = fill_polls(r, p);
    if (poll(p, (nfds_t)n, ms) < 0 && errno != EINTR)
        rc = zt_err_errno(err, ZT_ESYS, "poll");
    /* Backwards: forgetting one moves the last, which has been looked at, into its place. */
    for (int i = n_shakes - 1; i >= 0 && !rc; i--)
        if ((p[i].revents && !advance(r, &r->shakes[i], &rc, err)) ||
            age_ms(&r->shakes[i]) > PROOF_MS)
            forget(r, i);
    if (!rc)
        rc = accept_all(r, r->unix_fd, err);
    if (!rc)
        rc = accept_all(r, r->tcp_fd, err);
    if (!rc)
        rc = read_parties(r, err);
    free(p);
    if (rc)
        return rc;
    for (int i = 0; i < r->m.world; i++)
        if (!is_there(&r->v[i]))
            return 0;
    stop_listening(r);
    return 1;
}

int zt_rendezvous_wait(struct zt_rendezvous *r, struct zt_err *err)
{
    int64_t end_ns = zt_now_ns() + (int64_t)(r->m.limit_s * 1e9);
    int rc;
    while ((rc = zt_rendezvous_step(r, STEP_MS, err)) == 0)
        if (zt_now_ns() > end_ns)
            return missing(r, err);
    return rc < 0 ? rc : 0;
}

/* ---- afterwards ---- */

int zt_party_take_agent(struct zt_party *p, struct zt_link *out, struct zt_err *err)
{
    if (p->n_taken == p->n_agents)
        return zt_err_set(err, ZT_EUNSUPPORTED, "%s has no other agent", p->host);
    zt_meeting_has_beats(p->agents[p->n_taken].fd);
    return zt_link_open_conn(out, &p->agents[p->n_taken++], err);
}

/* Their queues are empty but for what is said here, so it goes out at once; a stopped process may miss it. */
void zt_rendezvous_leave(struct zt_rendezvous *r, int exit_code)
{
    if (!r->v)
        return;
    stop_listening(r);
    for (int i = 0; i < r->m.world; i++) {
        struct zt_party *p = &r->v[i];
        if (p->link.open) {
            size_t at = zt_frame_begin(&p->link.out, ZT_FRAME_LEAVE);
            zt_put_u32(&p->link.out, (uint32_t)exit_code);
            zt_frame_end(&p->link.out, at);
            zt_link_flush(&p->link);
        }
        zt_link_close(&p->link);
        for (int k = 0; k < ZT_PARTY_AGENTS; k++)
            zt_conn_close(&p->agents[k]);
        zt_str_release(&p->cpus);
        free(p->visible);
    }
    free(r->v);
    free(r->shakes);
    explicit_bzero(&r->m, sizeof r->m);
    r->v = NULL;
    r->shakes = NULL;
}
