#include "launch/link.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/io.h"

static int set_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

int zt_link_open(struct zt_link *l, int rfd, int wfd, struct zt_err *err)
{
    memset(l, 0, sizeof *l);
    if (set_nonblock(rfd) || set_nonblock(wfd))
        return zt_err_errno(err, ZT_ESYS, "fcntl(O_NONBLOCK)");
    l->open = true;
    l->rfd = rfd;
    l->wfd = wfd;
    l->ticked_ns = l->beat_ns = zt_now_ns();
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    zt_str_puts(&l->out, ZT_PROTO_MARKER);
    size_t at = zt_frame_begin(&l->out, ZT_FRAME_HELLO);
    zt_put_blob(&l->out, host, strlen(host));
    zt_put_blob(&l->out, zt_build_name(), strlen(zt_build_name()));
    zt_frame_end(&l->out, at);
    return 0;
}

int zt_link_open_conn(struct zt_link *l, struct zt_conn *c, struct zt_err *err)
{
    int rc = zt_link_open(l, c->fd, c->fd, err);
    if (rc) {
        zt_conn_close(c);
        return rc;
    }
    l->tls = c->tls;
    *c = (struct zt_conn){.fd = -1};
    return 0;
}

static void close_read(struct zt_link *l)
{
    if (l->rfd >= 0 && l->rfd != l->wfd)
        close(l->rfd);
    l->rfd = -1;
}

static void close_write(struct zt_link *l)
{
    if (l->wfd >= 0 && l->wfd != l->rfd)
        close(l->wfd);
    l->wfd = -1;
    zt_str_reset(&l->out);
    l->sent = 0;
}

void zt_link_close(struct zt_link *l)
{
    if (l->open) {
        close_read(l);
        close_write(l);
    }
    zt_tls_free(l->tls);
    zt_frame_reader_release(&l->in);
    zt_str_release(&l->out);
    memset(l, 0, sizeof *l);
    l->rfd = l->wfd = -1;
}

int zt_link_read(struct zt_link *l)
{
    char chunk[ZT_LINK_CHUNK];
    if (l->rfd < 0)
        return ZT_EPEER;
    ssize_t n =
        l->tls ? zt_tls_read(l->tls, chunk, sizeof chunk) : read(l->rfd, chunk, sizeof chunk);
    if (n > 0) {
        l->silent_ns = 0;
        zt_frame_feed(&l->in, chunk, (size_t)n);
        return 1;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    l->error = n < 0 ? errno : 0;
    close_read(l);
    return ZT_EPEER;
}

const char *zt_link_end(const struct zt_link *l)
{
    return l->error == EBADMSG ? "; bytes of the connection were changed or put in on the way, by "
                                 "somebody in the network or by faulty hardware"
                               : "";
}

/* SIGPIPE belongs to the program's own output (front_stop.c); a dead peer must not raise it. */
static ssize_t send_some(const struct zt_link *l, const char *p, size_t n)
{
    if (l->tls)
        return zt_tls_write(l->tls, p, n);
    ssize_t k = send(l->wfd, p, n, MSG_NOSIGNAL);
    return k < 0 && errno == ENOTSOCK ? write(l->wfd, p, n) : k;
}

void zt_link_flush(struct zt_link *l)
{
    while (l->wfd >= 0 && zt_link_backlog(l) > 0) {
        ssize_t n = send_some(l, l->out.buf + l->sent, zt_link_backlog(l));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            close_write(l);
            return;
        }
        l->sent += (size_t)n;
    }
    if (l->wfd < 0 || zt_link_backlog(l) == 0) {
        zt_str_reset(&l->out);
        l->sent = 0;
    } else if (l->sent >= ZT_LINK_CHUNK) {
        l->out.len -= l->sent;
        memmove(l->out.buf, l->out.buf + l->sent, l->out.len + 1);
        l->sent = 0;
    }
}

void zt_link_tick(struct zt_link *l, int64_t now_ns)
{
    const int64_t second = 1000000000;
    l->silent_ns += ZT_MIN(now_ns - l->ticked_ns, second);
    l->ticked_ns = now_ns;
    if (now_ns - l->beat_ns >= ZT_BEAT_MS * (int64_t)1000000 && zt_link_backlog(l) == 0 &&
        l->wfd >= 0) {
        zt_frame_put(&l->out, ZT_FRAME_BEAT, NULL, 0);
        l->beat_ns = now_ns;
    }
}

/* The number that stands for all users that have none here. */
static unsigned overflow_uid(void)
{
    enum { USUAL = 65534 };
    struct zt_str text = {0};
    struct zt_err ignored;
    unsigned uid = USUAL;
    if (zt_read_file("/proc/sys/kernel/overflowuid", 64, &text, &ignored) == 0)
        (void)!sscanf(zt_str_get(&text), "%u", &uid);
    zt_str_release(&text);
    return uid;
}

/* Every user has a number here: we are in no user namespace, or in one that maps them all. */
static bool maps_all_users(void)
{
    struct zt_str text = {0};
    struct zt_err ignored;
    unsigned first = 1, n = 0;
    if (zt_read_file("/proc/self/uid_map", 4096, &text, &ignored) == 0)
        (void)!sscanf(zt_str_get(&text), "%u %*u %u", &first, &n);
    zt_str_release(&text);
    return first == 0 && n == UINT32_MAX;
}

bool zt_is_same_user(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid() &&
           (who.uid != overflow_uid() || maps_all_users());
}
