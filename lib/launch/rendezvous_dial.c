/*
 * How a process or an agent finds rank 0, and shows that it belongs to the job.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/rendezvous.h"

enum {
    TAKE_UP_MS = 5000, /* in which a listener must take up a connection, and prove itself */
    REDIAL_MS = 100,
    REFUSALS_MAX = 3, /* bytes may be changed on the way, too */
};

struct dial {
    const struct zt_meeting *m;
    enum zt_party_kind kind;
    struct zt_tls_ctx *tls; /* NULL: no TCP */
    int64_t end_ns;
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

/* False: not before that time. */
static bool wait_for(int fd, short events, int64_t end_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    int64_t left_ms;
    int n = 0;
    while (n <= 0 && (left_ms = (end_ns - zt_now_ns()) / 1000000) > 0)
        n = poll(&p, 1, (int)left_ms);
    return n > 0;
}

/* 1: connected; 0: not yet. */
static int reach(struct dial *d, int fd, const struct sockaddr *to, socklen_t len,
                 const char *where, int64_t end_ns)
{
    int no = connect(fd, to, len) ? errno : 0;
    socklen_t no_len = sizeof no;
    if (no == EINPROGRESS && !wait_for(fd, POLLOUT, end_ns)) {
        note(d, "%s: no answer", where);
        return 0;
    }
    if (no == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &no, &no_len))
        no = errno;
    if (no)
        note(d, "%s: %s", where, strerror(no));
    return no == 0;
}

static ssize_t receive(const struct zt_conn *c, void *buf, size_t n)
{
    return c->tls ? zt_tls_read(c->tls, buf, n) : recv(c->fd, buf, n, 0);
}

/*
 * Our hello comes back when we are let in: rank 0 may have closed the connection before that, as it does when others
 * crowd it, and we cannot tell. Nor can we go: that could cross with the answer, and rank 0 would see one of its
 * processes end. 1: we are in; 0: the connection has ended, or time is up.
 */
static int await_answer(struct dial *d, const struct zt_conn *c, const struct zt_hello *hello,
                        const char *where)
{
    struct zt_hello back;
    size_t got = 0;
    ssize_t n = 1;
    while (got < sizeof back && n != 0) {
        n = receive(c, (char *)&back + got, sizeof back - got);
        got += n > 0 ? (size_t)n : 0;
        if (n < 0 && ((errno != EAGAIN && errno != EINTR) || !wait_for(c->fd, POLLIN, d->end_ns)))
            break;
    }
    if (got == sizeof back && memcmp(hello, &back, sizeof back) == 0)
        return 1;
    note(d, "%s has not let us in: too many others at once, or another program?", where);
    return 0;
}

/* ---- by the Unix socket ---- */

/* A socket of another user in our place can only be meant to deceive. 1: it is not; 0: TCP may do without. */
static int check_user(struct dial *d, int fd, struct zt_err *err)
{
    static const char text[] = "another user, or one whom this user namespace does not map, "
                               "listens where rank 0 of this job should";
    if (zt_is_same_user(fd))
        return 1;
    if (!d->m->host[0])
        return zt_err_set(err, ZT_EPEER, "%s; choose another MASTER_PORT", text);
    note(d, "%s", text);
    return 0;
}

/* Say our hello. 1: said; 0: not yet; negative: never. */
static int greet_user(struct dial *d, const struct zt_conn *c, const struct zt_hello *hello,
                      const char *where, struct zt_err *err)
{
    int rc = check_user(d, c->fd, err);
    if (rc <= 0 || send(c->fd, hello, sizeof *hello, MSG_NOSIGNAL) == sizeof *hello)
        return rc;
    note(d, "%s: %s", where, strerror(errno));
    return 0;
}

/* ---- by TCP ---- */

/* As greet_user(). */
static int greet_tls(struct dial *d, struct zt_conn *c, const struct zt_hello *hello,
                     const char *where, int64_t end_ns, struct zt_err *err)
{
    enum zt_tls_state state;
    zt_meeting_keepalive(c->fd);
    int rc = zt_tls_dial(d->tls, c->fd, hello, sizeof *hello, &c->tls, err);
    if (rc)
        return rc;
    do
        state = zt_tls_handshake(c->tls);
    while (state == ZT_TLS_GOING_ON && wait_for(c->fd, zt_tls_events(c->tls), end_ns));
    if (state == ZT_TLS_PROVEN)
        return 1;
    if (state != ZT_TLS_OTHER_SECRET) {
        note(d,
             state == ZT_TLS_GOING_ON ? "%s does not get round to us: too many others at once?"
                                      : "%s does not take us: another job, or another program?",
             where);
        return 0;
    }
    note(d, "%s has another secret", where);
    return ++d->n_refusals < REFUSALS_MAX
               ? 0
               : zt_err_set(err, ZT_EPEER,
                            "%s has another secret than we have: is ZT_JOB_SECRET_FILE the same "
                            "for all processes?",
                            where);
}

/* Connect, and show who we are. 1: done; 0: not yet; negative: never. */
static int try_address(struct dial *d, const struct sockaddr *to, socklen_t len, const char *where,
                       struct zt_link *out, struct zt_err *err)
{
    const int64_t end_ns = zt_now_ns() + TAKE_UP_MS * (int64_t)1000000;
    struct zt_hello hello;
    struct zt_conn c = {.fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (c.fd < 0)
        return zt_err_errno(err, ZT_ESYS, "socket");
    zt_meeting_hello(d->m, d->m->rank, d->kind, &hello);
    int rc = reach(d, c.fd, to, len, where, end_ns);
    if (rc == 1)
        rc = to->sa_family == AF_UNIX ? greet_user(d, &c, &hello, where, err)
                                      : greet_tls(d, &c, &hello, where, end_ns, err);
    if (rc == 1)
        rc = await_answer(d, &c, &hello, where);
    if (rc != 1) {
        zt_conn_close(&c);
        return rc;
    }
    rc = zt_link_open_conn(out, &c, err);
    return rc ? rc : 1;
}

static int try_tcp(struct dial *d, struct zt_link *out, struct zt_err *err)
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
    return rc;
}

static int dial(struct dial *d, struct zt_link *out, struct zt_err *err)
{
    const struct zt_meeting *m = d->m;
    struct sockaddr_storage at;
    socklen_t len = zt_meeting_unix(m, &at);
    for (;;) {
        int rc = try_address(d, (struct sockaddr *)&at, len, "rank 0 on this host", out, err);
        if (rc == 0 && m->host[0])
            rc = try_tcp(d, out, err);
        if (rc)
            return rc < 0 ? rc : 0;
        if (zt_now_ns() > d->end_ns)
            return zt_err_set(err, ZT_EPEER,
                              "rank 0 did not answer within %g s (ZT_JOIN_SECONDS): %s", m->limit_s,
                              d->last);
        poll(NULL, 0, REDIAL_MS);
    }
}

int zt_meeting_dial(const struct zt_meeting *m, enum zt_party_kind kind, struct zt_link *out,
                    struct zt_err *err)
{
    struct dial d = {.m = m, .kind = kind, .end_ns = zt_now_ns() + (int64_t)(m->limit_s * 1e9)};
    int rc = m->host[0] ? zt_tls_ctx_create(m->secret, NULL, NULL, &d.tls, err) : 0;
    if (!rc)
        rc = dial(&d, out, err);
    zt_tls_ctx_free(d.tls);
    return rc;
}
