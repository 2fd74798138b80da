/*
 * All connections at once: one poll loop for the port, for those that we dial and for those that come. Nobody
 * is waited for in particular, so whoever is silent, or a stranger, holds up only himself.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "coll/tcp_net.h"

enum {
    STRANGERS_MAX = 64, /* unproven connections at a time; more wait in the system's queue */
    DIALS_MAX = 32,
    PROOF_MS = 5000,  /* how long one may take to prove himself, */
    CROWDED_MS = 250, /* and when others wait for his place */
    REDIAL_MS = 100,
    POLL_MS = 50,
    JOIN_S = 20,
};

enum stage { CONNECTING, HELLO, NONCE, PROOF, ANSWER };

struct handshake {
    int fd;
    enum stage stage; /* what is awaited */
    bool dialled;
    struct tcp_conn *conn; /* NULL: he has not said yet */
    int64_t since_ns;
    size_t got;
    union {
        struct tcp_hello hello;
        uint8_t bytes[sizeof(struct tcp_hello)];
    } in;
    struct tcp_hello hello;
    uint8_t nonce[TCP_NONCE_BYTES];
};

struct join {
    struct shm_coll *c;
    struct tcp_net *net;
    int listen_fd;
    int n, n_dials, n_open;
    struct handshake shakes[STRANGERS_MAX + DIALS_MAX];
    int64_t *redial_ns; /* (n_conns) not before */
    bool *dialling;     /* (n_conns) */
    char last[160];     /* what went wrong last with a rank of ours */
};

static void note(struct join *j, const struct tcp_conn *conn, const char *what)
{
    char text[80];
    ZT_ASSERT(conn);
    zt_tcp_address_text(&j->net->addresses[conn->rank], text, sizeof text);
    snprintf(j->last, sizeof j->last, "; rank %d at %s: %s", conn->rank, text, what);
}

static void forget(struct join *j, int i)
{
    struct handshake *h = &j->shakes[i];
    if (h->dialled) {
        size_t k = (size_t)(h->conn - j->net->conns);
        j->dialling[k] = false;
        j->redial_ns[k] = zt_now_ns() + REDIAL_MS * INT64_C(1000000);
        j->n_dials--;
    }
    if (h->fd >= 0)
        close(h->fd);
    *h = j->shakes[--j->n];
}

static struct handshake *add(struct join *j, int fd)
{
    struct handshake *h = &j->shakes[j->n++];
    memset(h, 0, sizeof *h);
    h->fd = fd;
    h->since_ns = zt_now_ns();
    return h;
}

/* All that is ever said fits the buffers of a new connection. */
static bool say(const struct handshake *h, const void *bytes, size_t n)
{
    return send(h->fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

static void set_option(int fd, int level, int name, int value)
{
    /* Hints for speed, and for how soon a cut link is seen. */
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

/*
 * No TCP_USER_TIMEOUT on data: it also ends a connection whose reader is only busy elsewhere. The watched
 * connection is always read, so there it tells a cut link.
 */
static void set_options(int fd, int channel)
{
    enum { IDLE_S = 30, WATCH_IDLE_S = 1, PROBES = 5, CUT_MS = 5000 };
    bool watch = channel == TCP_WATCH;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, watch ? WATCH_IDLE_S : IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, watch ? WATCH_IDLE_S : IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
    if (watch)
        set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, CUT_MS);
}

/* The connection is proven. A second one replaces the first: its maker has given that up. */
static void take(struct join *j, int i)
{
    struct handshake *h = &j->shakes[i];
    set_options(h->fd, h->conn->channel);
    if (h->conn->fd >= 0)
        close(h->conn->fd);
    else
        j->n_open++;
    h->conn->fd = h->fd;
    h->fd = -1;
    forget(j, i);
}

static void fill_hello(const struct join *j, struct tcp_hello *hello)
{
    memcpy(hello->magic, TCP_MAGIC, sizeof hello->magic);
    hello->n_nodes = j->net->n_nodes;
    for (int a = 0; a < ZT_N_AXES; a++)
        hello->mesh[a] = j->c->base.mesh.size[a];
}

/* ---- dialling ---- */

static int dial(struct join *j, size_t k, struct zt_err *err)
{
    struct tcp_conn *conn = &j->net->conns[k];
    const struct zt_tcp_address *a = &j->net->addresses[conn->rank];
    struct sockaddr_storage to;
    struct zt_tcp_address from = j->net->addresses[j->c->base.rank];
    socklen_t len = zt_tcp_sockaddr(a, &to);
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return zt_err_errno(err, ZT_ESYS, "a socket to rank %d", conn->rank);
    /* From the address that the others know: the interface that was asked for. */
    from.port = 0;
    if (from.version == a->version) {
        struct sockaddr_storage own;
        socklen_t own_len = zt_tcp_sockaddr(&from, &own);
        set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
        (void)bind(fd, (struct sockaddr *)&own, own_len);
    }
    struct handshake *h = add(j, fd);
    h->dialled = true;
    h->conn = conn;
    h->stage = CONNECTING;
    j->dialling[k] = true;
    j->n_dials++;
    if (connect(fd, (struct sockaddr *)&to, len) && errno != EINPROGRESS) {
        note(j, conn, strerror(errno));
        forget(j, j->n - 1);
    }
    return ZT_OK;
}

static int dial_missing(struct join *j, struct zt_err *err)
{
    int64_t now_ns = zt_now_ns();
    for (int k = 0; k < j->net->n_conns && j->n_dials < DIALS_MAX; k++) {
        const struct tcp_conn *conn = &j->net->conns[k];
        if (conn->rank > j->c->base.rank || conn->fd >= 0 || j->dialling[k] ||
            now_ns < j->redial_ns[k])
            continue;
        int rc = dial(j, (size_t)k, err);
        if (rc)
            return rc;
    }
    return ZT_OK;
}

/* Connected: say who we are. */
static bool introduce(struct join *j, struct handshake *h)
{
    struct zt_err err;
    int no = 0;
    socklen_t len = sizeof no;
    if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &no, &len) || no) {
        note(j, h->conn, strerror(no));
        return false;
    }
    ZT_ASSERT(h->conn);
    fill_hello(j, &h->hello);
    h->hello.from = j->c->base.rank;
    h->hello.to = h->conn->rank;
    h->hello.channel = h->conn->channel;
    h->stage = NONCE;
    return zt_tcp_nonce(h->hello.nonce, &err) == ZT_OK && say(h, &h->hello, sizeof h->hello);
}

/* ---- those that come ---- */

static struct tcp_conn *find(const struct join *j, int rank, int channel)
{
    for (int k = 0; k < j->net->n_conns; k++)
        if (j->net->conns[k].rank == rank && j->net->conns[k].channel == channel)
            return &j->net->conns[k];
    return NULL;
}

/* What he says fits this job; that he says so proves nothing yet. */
static bool greet(struct join *j, struct handshake *h)
{
    struct zt_err err;
    struct tcp_hello ours = h->in.hello;
    h->hello = h->in.hello;
    fill_hello(j, &ours);
    ours.to = j->c->base.rank;
    if (memcmp(&ours, &h->hello, sizeof ours) != 0 || h->hello.from <= ours.to)
        return false;
    h->conn = find(j, h->hello.from, h->hello.channel);
    h->stage = PROOF;
    return h->conn && zt_tcp_nonce(h->nonce, &err) == ZT_OK && say(h, h->nonce, sizeof h->nonce);
}

static bool check_proof(struct join *j, struct handshake *h)
{
    uint8_t proof[TCP_PROOF_BYTES];
    if (!zt_tcp_proves(j->net->secret, TCP_DIALS, &h->hello, h->nonce, h->in.bytes))
        return false;
    zt_tcp_prove(j->net->secret, TCP_LISTENS, &h->hello, h->nonce, proof);
    return say(h, proof, sizeof proof);
}

static int64_t age_ms(const struct handshake *h)
{
    return (zt_now_ns() - h->since_ns) / 1000000;
}

/* Who of those that come has been silent for longest; -1: nobody is there. */
static int oldest(const struct join *j)
{
    int found = -1;
    for (int i = 0; i < j->n; i++)
        if (!j->shakes[i].dialled &&
            (found < 0 || j->shakes[i].since_ns < j->shakes[found].since_ns))
            found = i;
    return found;
}

/* Room for one more who comes: perhaps the place of the oldest. */
static bool make_room(struct join *j)
{
    if (j->n - j->n_dials < STRANGERS_MAX)
        return true;
    const int out = oldest(j);
    if (age_ms(&j->shakes[out]) < CROWDED_MS)
        return false;
    forget(j, out);
    return true;
}

static int accept_all(struct join *j, struct zt_err *err)
{
    while (make_room(j)) {
        int fd = accept4(j->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            const int out = oldest(j); /* strangers hold descriptors, too */
            if (out < 0)
                return zt_err_errno(err, ZT_ESYS,
                                    "%d connections to other nodes are needed; see `ulimit -n`",
                                    j->net->n_conns);
            forget(j, out);
            return ZT_OK;
        }
        if (fd < 0)
            return ZT_OK;
        add(j, fd)->stage = HELLO;
    }
    return ZT_OK;
}

/* ---- one step ---- */

static size_t wanted(enum stage stage)
{
    return stage == HELLO   ? sizeof(struct tcp_hello)
           : stage == NONCE ? (size_t)TCP_NONCE_BYTES
                            : (size_t)TCP_PROOF_BYTES;
}

/* What was awaited is there. True: go on with it; *done: the connection is proven. */
static bool step(struct join *j, struct handshake *h, bool *done)
{
    uint8_t proof[TCP_PROOF_BYTES];
    switch (h->stage) {
    case HELLO:
        return greet(j, h);
    case NONCE:
        memcpy(h->nonce, h->in.bytes, sizeof h->nonce);
        zt_tcp_prove(j->net->secret, TCP_DIALS, &h->hello, h->nonce, proof);
        h->stage = ANSWER;
        return say(h, proof, sizeof proof);
    case PROOF:
        *done = true;
        return check_proof(j, h);
    case ANSWER:
        *done = zt_tcp_proves(j->net->secret, TCP_LISTENS, &h->hello, h->nonce, h->in.bytes);
        if (!*done)
            note(j, h->conn, "does not know the secret of this job");
        return *done;
    default:
        return false;
    }
}

/* Read what there is, up to what is awaited. False: give it up. */
static bool advance(struct join *j, struct handshake *h, bool *done)
{
    if (h->stage == CONNECTING)
        return introduce(j, h);
    while (!*done) {
        ssize_t n = recv(h->fd, h->in.bytes + h->got, wanted(h->stage) - h->got, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0) {
            if (h->dialled)
                note(j, h->conn, n ? strerror(errno) : "refused us");
            return false;
        }
        h->got += (size_t)n;
        if (h->got < wanted(h->stage))
            continue;
        h->got = 0;
        if (!step(j, h, done))
            return false;
    }
    return true;
}

static int poll_once(struct join *j, struct zt_err *err)
{
    struct pollfd p[STRANGERS_MAX + DIALS_MAX + 1];
    for (int i = 0; i < j->n; i++)
        p[i] = (struct pollfd){
            .fd = j->shakes[i].fd,
            .events = j->shakes[i].stage == CONNECTING ? POLLOUT : POLLIN,
        };
    bool room = j->n - j->n_dials < STRANGERS_MAX;
    p[j->n] = (struct pollfd){.fd = room ? j->listen_fd : -1, .events = POLLIN};
    int n = j->n;
    if (poll(p, (nfds_t)n + 1, POLL_MS) < 0)
        return errno == EINTR ? ZT_OK : zt_err_errno(err, ZT_ESYS, "poll");
    /* Backwards: forgetting one moves the last, which has been looked at, into its place. */
    for (int i = n - 1; i >= 0; i--) {
        bool done = false;
        if (p[i].revents ? !advance(j, &j->shakes[i], &done) : age_ms(&j->shakes[i]) > PROOF_MS)
            forget(j, i);
        else if (done)
            take(j, i);
    }
    return accept_all(j, err);
}

static int missing(const struct join *j, double limit_s, struct zt_err *err)
{
    const struct tcp_net *net = j->net;
    char ranks[200] = "";
    size_t len = 0;
    int last = -1;
    for (int k = 0; k < net->n_conns; k++) {
        if (net->conns[k].fd >= 0 || net->conns[k].rank == last)
            continue;
        last = net->conns[k].rank;
        zt_tcp_apart(net, last);
        if (len < sizeof ranks - 24)
            len += (size_t)snprintf(ranks + len, sizeof ranks - len, "%s%d", len ? ", " : "", last);
        else
            snprintf(ranks + len, sizeof ranks - len, ", ...");
    }
    return zt_err_set(
        err, ZT_EPEER,
        "no connection to rank %s of another node within %g s%s; workers of different hosts "
        "connect to TCP ports that the system picks: no firewall may be between them, and "
        "ZT_TCP_INTERFACE can name the network interface to use",
        ranks, limit_s, j->last);
}

static int connect_all(struct join *j, double limit_s, struct zt_err *err)
{
    int64_t end_ns = zt_now_ns() + (int64_t)(limit_s * 1e9);
    while (j->n_open < j->net->n_conns) {
        int rc = dial_missing(j, err);
        if (rc)
            return rc;
        rc = poll_once(j, err);
        if (rc)
            return rc;
        if (atomic_load(&j->c->ctl->aborted))
            return zt_err_set(err, ZT_EPEER, "aborted while connecting to other nodes");
        if (j->n_open < j->net->n_conns && zt_now_ns() > end_ns)
            return missing(j, limit_s, err);
    }
    return ZT_OK;
}

int zt_tcp_join(struct shm_coll *c, int listen_fd, double limit_s, struct zt_err *err)
{
    struct join *j = zt_xcalloc(1, sizeof *j);
    size_t n = (size_t)c->net->n_conns;
    *j = (struct join){.c = c, .net = c->net, .listen_fd = listen_fd};
    j->redial_ns = zt_xcalloc(n + 1, sizeof *j->redial_ns);
    j->dialling = zt_xcalloc(n + 1, sizeof *j->dialling);
    fcntl(listen_fd, F_SETFL, O_NONBLOCK);
    int rc = connect_all(j, limit_s > 0 ? limit_s : JOIN_S, err);
    while (j->n)
        forget(j, j->n - 1);
    free(j->redial_ns);
    free(j->dialling);
    free(j);
    return rc;
}
