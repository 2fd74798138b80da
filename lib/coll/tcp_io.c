#include <errno.h>
#include <poll.h>

#include "coll/tcp_net.h"

enum {
    ONCE_BYTES = 1 << 20,    /* moved on one connection before the next is looked at */
    LITTLE_BYTES = 64 << 10, /* for which it is worth to spin */
    LOOK_MS = 100,           /* how often the abort word is looked at */
};

static int lost(struct shm_op *op, const struct tcp_conn *conn, int no)
{
    char at[80], why[256], text[160];
    struct shm_call call;
    snprintf(why, sizeof why, "lost rank %d at %s: %s", conn->rank,
             zt_tcp_address_text(&op->c->net->addresses[conn->rank], at, sizeof at),
             no ? strerror(no) : "it has closed the connection");
    zt_shm_call_of(&call, op);
    zt_err_set(op->err, ZT_EPEER, "%s: %s", zt_shm_describe(text, sizeof text, &call), why);
    zt_tcp_lost(op->c, why);
    return ZT_EPEER;
}

/* 1: moved something; 0: cannot now. */
static int move(struct shm_op *op, struct tcp_flow *f)
{
    size_t left = ZT_MIN(f->ready - f->done, (size_t)ONCE_BYTES);
    ssize_t n = f->out ? send(f->conn->fd, f->p + f->done, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : recv(f->conn->fd, f->p + f->done, left, MSG_DONTWAIT);
    if (n > 0) {
        f->done += (size_t)n;
        return 1;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return lost(op, f->conn, n ? errno : 0);
}

static int try_all(struct shm_op *op, struct tcp_flow *flows, int n)
{
    int moved = 0;
    for (int i = 0; i < n; i++) {
        if (flows[i].done == flows[i].ready)
            continue;
        int rc = move(op, &flows[i]);
        if (rc < 0)
            return rc;
        moved |= rc;
    }
    return moved;
}

/* The calls of a job that is over: why, if it is known. */
static int aborted(struct shm_op *op, const struct tcp_conn *conn)
{
    struct tcp_net *net = op->c->net;
    char where[320];
    int len = snprintf(where, sizeof where, "while waiting for rank %d", conn->rank);
    pthread_mutex_lock(&net->lock);
    if (net->why[0])
        snprintf(where + len, sizeof where - (size_t)len, " (%s)", net->why);
    pthread_mutex_unlock(&net->lock);
    return zt_shm_aborted(op, where);
}

static int sleep_for(struct shm_op *op, struct tcp_flow *flows, int n)
{
    struct pollfd p[2 * ZT_TCP_MAX_NODES];
    const struct tcp_conn *awaited = NULL;
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (flows[i].done == flows[i].ready)
            continue;
        p[k++] =
            (struct pollfd){.fd = flows[i].conn->fd, .events = flows[i].out ? POLLOUT : POLLIN};
        if (!awaited || !flows[i].out)
            awaited = flows[i].conn;
    }
    ZT_ASSERT_CMP(k, >, 0);
    int ready = poll(p, (nfds_t)k, LOOK_MS);
    if (ready < 0 && errno != EINTR)
        return zt_err_errno(op->err, ZT_ESYS, "poll");
    /* What has come is read even so: it may say what was wrong. */
    return ready <= 0 && atomic_load(&op->c->ctl->aborted) ? aborted(op, awaited) : ZT_OK;
}

int zt_tcp_pump(struct shm_op *op, struct tcp_flow *flows, int n)
{
    size_t left = 0;
    for (int i = 0; i < n; i++)
        left += flows[i].ready - flows[i].done;
    const int most_spins = left <= LITTLE_BYTES ? op->c->net->n_spins : 0;
    for (int spins = 0;; spins++) {
        int moved = try_all(op, flows, n);
        if (moved)
            return moved < 0 ? moved : ZT_OK;
        if (spins < most_spins)
            continue;
        int rc = sleep_for(op, flows, n);
        if (rc)
            return rc;
    }
}
