/*
 * The thread that keeps an eye on other nodes, in the first rank of a node. It tells them when the
 * collectives of this node are aborted, and aborts them when another node says so, or is gone.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "coll/tcp_net.h"

enum {
    LOOK_MS = 100,    /* how often the abort word is looked at */
    SILENT_MS = 3000, /* since a peer's last word; its system answers a probe every second */
};

void zt_tcp_apart(const struct tcp_net *net, int rank)
{
    if (net->apart)
        net->apart(net->ctx, net->node_of[rank]);
}

void zt_tcp_lost(struct shm_coll *c, const char *why)
{
    pthread_mutex_lock(&c->net->lock);
    if (!c->net->why[0])
        snprintf(c->net->why, sizeof c->net->why, "%s", why);
    pthread_mutex_unlock(&c->net->lock);
    zt_shm_abort(c->ctl);
}

/* The connections of the first rank of a node to those of the others. */
struct watched {
    struct tcp_conn *conn;
    bool over;   /* it has ended well, or the job is aborted */
    bool silent; /* because nothing was heard any more */
};

static void tell(struct watched *w, int n, char what)
{
    for (int i = 0; i < n; i++)
        if (w[i].conn->fd >= 0)
            (void)send(w[i].conn->fd, &what, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * The job is over. Connections that are cut are not all seen so at once, but one: who else has been silent for
 * some time is cut off too.
 */
static void find_silent(const struct tcp_net *net, const struct watched *w, int n)
{
    for (int i = 0; i < n; i++) {
        struct tcp_info info = {0};
        socklen_t len = sizeof info;
        bool silent = w[i].silent;
        if (!w[i].over && getsockopt(w[i].conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
            silent = info.tcpi_last_ack_recv > SILENT_MS;
        if (silent)
            zt_tcp_apart(net, w[i].conn->rank);
    }
}

static bool is_silence(int no)
{
    return no == ETIMEDOUT || no == EHOSTUNREACH || no == ENETUNREACH;
}

static void listen_to(struct shm_coll *c, struct watched *w)
{
    char what, why[256], at[80];
    ssize_t n = recv(w->conn->fd, &what, 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    w->over = true;
    w->silent = n < 0 && is_silence(errno);
    if (n == 1 && what == 'B')
        return;
    if (n == 1)
        snprintf(why, sizeof why, "the node of rank %d ended the job", w->conn->rank);
    else
        snprintf(why, sizeof why, "lost the node of rank %d at %s: %s", w->conn->rank,
                 zt_tcp_address_text(&c->net->addresses[w->conn->rank], at, sizeof at),
                 n ? strerror(errno) : "it has closed the connection");
    zt_tcp_lost(c, why);
}

static int collect(struct tcp_net *net, struct watched *w)
{
    int n = 0;
    for (int k = 0; k < net->n_conns; k++)
        if (net->conns[k].channel == TCP_WATCH)
            w[n++] = (struct watched){.conn = &net->conns[k]};
    return n;
}

static void *watch(void *arg)
{
    struct shm_coll *c = arg;
    struct watched w[ZT_TCP_MAX_NODES];
    struct pollfd p[ZT_TCP_MAX_NODES + 1];
    int n = collect(c->net, w);
    bool told = false;
    for (;;) {
        for (int i = 0; i < n; i++)
            p[i] = (struct pollfd){.fd = w[i].over ? -1 : w[i].conn->fd, .events = POLLIN};
        p[n] = (struct pollfd){.fd = c->net->wake_fd, .events = POLLIN};
        if (poll(p, (nfds_t)n + 1, LOOK_MS) < 0 && errno != EINTR)
            return NULL;
        if (!told && atomic_load(&c->ctl->aborted)) {
            tell(w, n, 'A');
            find_silent(c->net, w, n);
            told = true;
        }
        if (p[n].revents)
            break;
        for (int i = 0; i < n; i++)
            if (p[i].revents)
                listen_to(c, &w[i]);
    }
    if (!told)
        tell(w, n, 'B');
    return NULL;
}

int zt_tcp_watch(struct shm_coll *c, struct zt_err *err)
{
    struct tcp_net *net = c->net;
    net->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (net->wake_fd < 0)
        return zt_err_errno(err, ZT_ESYS, "eventfd");
    int rc = zt_thread_start(&net->watcher, "coll-watch", watch, c, err);
    net->watching = !rc;
    return rc;
}

void zt_tcp_unwatch(struct shm_coll *c)
{
    struct tcp_net *net = c->net;
    if (net->watching) {
        (void)eventfd_write(net->wake_fd, 1);
        pthread_join(net->watcher, NULL);
        net->watching = false;
    }
    if (net->wake_fd >= 0)
        close(net->wake_fd);
    net->wake_fd = -1;
}
