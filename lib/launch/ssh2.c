#include "launch/ssh2.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "launch/ssh2_host.h"

enum {
    FDS_OF_HOST = 3,
    FDS_OF_US = 2,
    START_POLL_MS = 50, /* while hosts wait for a place, a time or an answer */
    /*
     * While bytes wait to go to a host. What they wait for, room in its window or the end of an exchange of keys, may
     * come while libssh2 reads for something else, and then nothing tells of it; nor of half a socket's buffer.
     */
    BLOCKED_POLL_MS = 10,
};

/* ---- the loop ---- */

/* What a host waits for while bytes are moved. */
static void watch_running(const struct ssh2_host *h, short events, struct pollfd q[FDS_OF_HOST])
{
    if (h->up.len && h->err.len) /* nothing more is taken from it */
        events = (short)(events & ~POLLIN);
    short here = h->down.len || h->down_ended ? 0 : POLLIN;
    here = (short)(here | (h->up.len ? POLLOUT : 0));
    q[0] = (struct pollfd){.fd = events ? h->sock : -1, .events = events};
    q[1] = (struct pollfd){.fd = here ? h->fd : -1, .events = here};
    q[2] = (struct pollfd){.fd = h->err.len ? h->err_fd : -1, .events = POLLOUT};
}

/* How long it may be slept on behalf of a host; -1: until one of its descriptors says something. */
static int watch_host(const struct ssh2_host *h, struct pollfd q[FDS_OF_HOST])
{
    short events = h->state == SSH2_CONNECTING ? POLLOUT : POLLIN;
    for (int i = 0; i < FDS_OF_HOST; i++)
        q[i] = (struct pollfd){.fd = -1};
    if (h->state == SSH2_DONE)
        return -1;
    if (h->sock < 0 || h->state == SSH2_LOCKED)
        return START_POLL_MS;
    if (h->session && libssh2_session_block_directions(h->session) & LIBSSH2_SESSION_BLOCK_OUTBOUND)
        events |= POLLOUT;
    if (h->state == SSH2_RUNNING)
        watch_running(h, events, q);
    else
        q[0] = (struct pollfd){.fd = h->sock, .events = events};
    if (h->more)
        return 0;
    return h->state < SSH2_RUNNING ? START_POLL_MS : ssh2_is_blocked(h) ? BLOCKED_POLL_MS : -1;
}

/* Whether something has happened to the host, or its time may have come. */
static bool is_due(const struct ssh2_host *h, const struct pollfd q[FDS_OF_HOST])
{
    return h->state < SSH2_RUNNING || h->more || ssh2_is_blocked(h) || q[0].revents ||
           q[1].revents || q[2].revents || atomic_load(&h->dropped);
}

static void advance(struct ssh2_host *h)
{
    enum { MOST_STEPS = 32 }; /* a megabyte */
    int n = 0;
    while (n < MOST_STEPS && ssh2_step(h, zt_now_ns()))
        n++;
    h->more = n == MOST_STEPS;
}

static void wait_once(struct zt_ssh2 *s, struct pollfd *p)
{
    const int ask_fd = zt_ssh_keys_ask_fd(s->keys);
    int wait_ms = -1;
    p[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = ask_fd, .events = POLLIN};
    atomic_store(&s->asks, ask_fd >= 0);
    for (int i = 0; i < s->n; i++) {
        int ms = watch_host(&s->hosts[i], p + FDS_OF_US + FDS_OF_HOST * i);
        wait_ms = ms < 0 ? wait_ms : wait_ms < 0 ? ms : ZT_MIN(ms, wait_ms);
    }
    if (poll(p, (nfds_t)(FDS_OF_US + FDS_OF_HOST * s->n), wait_ms) < 0)
        return;
    if (p[0].revents) {
        eventfd_t n;
        eventfd_read(s->wake_fd, &n);
    }
    if (p[1].revents)
        zt_ssh_keys_answer(s->keys);
    for (int i = 0; i < s->n; i++)
        if (is_due(&s->hosts[i], p + FDS_OF_US + FDS_OF_HOST * i))
            advance(&s->hosts[i]);
}

static void *carry(void *arg)
{
    struct zt_ssh2 *s = arg;
    const size_t n = FDS_OF_US + FDS_OF_HOST * (size_t)s->n;
    struct pollfd *p = zt_xcalloc(n, sizeof *p);
    if (!s->keys)
        s->keys = s->own_keys = zt_ssh_keys_create();
    while (!atomic_load(&s->stop))
        wait_once(s, p);
    for (int i = 0; i < s->n; i++)
        if (s->hosts[i].state != SSH2_DONE)
            ssh2_end(&s->hosts[i], ZT_SSH_BROKEN, "the connection was cut");
    zt_ssh_keys_rest(s->keys);
    zt_ssh_keys_free(s->own_keys);
    free(p);
    return NULL;
}

/* ---- from outside ---- */

static void init_hosts(struct zt_ssh2 *s, const struct zt_ssh2_host *hosts)
{
    for (int i = 0; i < s->n; i++) {
        struct ssh2_host *h = &s->hosts[i];
        *h = (struct ssh2_host){.s = s,
                                .target = hosts[i].target,
                                .config = hosts[i].target->config,
                                .turn = hosts[i].turn,
                                .fd = hosts[i].fd,
                                .err_fd = hosts[i].err_fd,
                                .sock = -1};
        h->self = h;
        fcntl(h->fd, F_SETFL, O_NONBLOCK);
        fcntl(h->err_fd, F_SETFL, O_NONBLOCK);
    }
}

static void release(struct zt_ssh2 *s)
{
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    if (s->event_fd >= 0)
        close(s->event_fd);
    for (size_t i = 0; i < s->n_known; i++)
        zt_str_release(&s->known[i].text);
    free(s->known);
    free(s->hosts);
    zt_arena_release(&s->arena);
    free(s);
    libssh2_exit();
}

int zt_ssh2_start(const struct zt_ssh2_host *hosts, int n, struct zt_ssh2 **out, struct zt_err *err)
{
    if (libssh2_init(0))
        return zt_err_set(err, ZT_ESYS, "libssh2 %s cannot be set up", libssh2_version(0));
    struct zt_ssh2 *s = zt_xcalloc(1, sizeof *s);
    s->n = n;
    s->hosts = zt_xcalloc((size_t)n, sizeof *s->hosts);
    s->rsa = libssh2_version(0x010b00) != NULL;
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->keys = n ? hosts[0].target->keys : NULL;
    init_hosts(s, hosts);
    int rc = s->wake_fd < 0 || s->event_fd < 0 ? zt_err_errno(err, ZT_ESYS, "eventfd")
                                               : zt_thread_start(&s->thread, "ssh", carry, s, err);
    if (rc) {
        release(s);
        return zt_err_wrap(err, "connections by ssh");
    }
    *out = s;
    return 0;
}

int zt_ssh2_fd(const struct zt_ssh2 *s)
{
    return s->event_fd;
}

void zt_ssh2_clear(struct zt_ssh2 *s)
{
    eventfd_t n;
    eventfd_read(s->event_fd, &n);
}

bool zt_ssh2_take(struct zt_ssh2 *s, int i, struct zt_ssh2_outcome *out)
{
    struct ssh2_host *h = &s->hosts[i];
    if (h->taken || !atomic_load(&h->done))
        return false;
    h->taken = true;
    *out = h->outcome;
    return true;
}

void zt_ssh2_drop(struct zt_ssh2 *s, int i)
{
    atomic_store(&s->hosts[i].dropped, true);
    eventfd_write(s->wake_fd, 1);
}

bool zt_ssh2_asks(const struct zt_ssh2 *s)
{
    return atomic_load(&s->asks);
}

void zt_ssh2_stop(struct zt_ssh2 *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    eventfd_write(s->wake_fd, 1);
    pthread_join(s->thread, NULL);
    release(s);
}
