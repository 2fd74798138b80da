#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/ssh2_host.h"

/* What is in the buffer goes to a descriptor; when nobody reads there any more it is thrown away. */
static bool flush(struct ssh2_buf *b, int fd, bool *ended)
{
    if (b->len == 0)
        return false;
    ssize_t n = *ended ? (ssize_t)b->len : write(fd, b->b + b->at, b->len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n < 0) {
        *ended = true;
        n = (ssize_t)b->len;
    }
    b->at += (size_t)n;
    b->len -= (size_t)n;
    return true;
}

static bool broken(struct ssh2_host *h)
{
    return ssh2_end(h, ZT_SSH_BROKEN, "the connection broke: %s", ssh2_error(h));
}

/* One stream of the agent. A failure ends the host. */
static bool carry_up(struct ssh2_host *h, int stream, struct ssh2_buf *b, int fd, bool *ended)
{
    bool moved = flush(b, fd, ended);
    if (b->len)
        return moved;
    ssize_t n = libssh2_channel_read_ex(h->channel, stream, b->b, sizeof b->b);
    if (n == LIBSSH2_ERROR_EAGAIN || n == 0)
        return moved;
    if (n < 0)
        return broken(h);
    b->at = 0;
    b->len = (size_t)n;
    flush(b, fd, ended);
    return true;
}

static bool read_down(struct ssh2_host *h)
{
    struct ssh2_buf *b = &h->down;
    if (b->len || h->down_ended)
        return false;
    ssize_t n = read(h->fd, b->b, sizeof b->b);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    h->down_ended = n <= 0;
    b->at = 0;
    b->len = n > 0 ? (size_t)n : 0;
    return true;
}

/*
 * A packet that the socket took a part of must go out whole before another begins. When the other side asks for new
 * keys meanwhile, libssh2 (1.10 and 1.11) answers that first, which waits for the packet, and the packet for the keys:
 * for ever. So packets are small, and half of the socket's buffer stays free for libssh2's own.
 */
enum { DOWN_BYTES = 4096 };

static bool has_room(int sock)
{
    int size = 0, queued = 0;
    socklen_t len = sizeof size;
    if (getsockopt(sock, SOL_SOCKET, SO_SNDBUF, &size, &len) || ioctl(sock, SIOCOUTQ, &queued))
        return true;
    return queued == 0 || queued + DOWN_BYTES <= size / 2;
}

static bool carry_down(struct ssh2_host *h)
{
    struct ssh2_buf *b = &h->down;
    bool moved = read_down(h);
    if (b->len && !has_room(h->sock)) /* it is looked at again soon: BLOCKED_POLL_MS */
        return moved;
    if (b->len) {
        /* After EAGAIN libssh2 wants the same bytes again: they stay where they are. */
        const size_t most = ZT_MIN(b->len, (size_t)DOWN_BYTES);
        ssize_t n = libssh2_channel_write(h->channel, b->b + b->at, most);
        if (n == LIBSSH2_ERROR_EAGAIN || n == 0)
            return moved;
        if (n == LIBSSH2_ERROR_CHANNEL_CLOSED || n == LIBSSH2_ERROR_CHANNEL_EOF_SENT)
            n = (ssize_t)b->len; /* the agent is gone; how, is told by the other direction */
        if (n < 0)
            return broken(h);
        b->at += (size_t)n;
        b->len -= (size_t)n;
        return true;
    }
    if (!h->down_ended || h->eof_sent)
        return moved;
    int rc = libssh2_channel_send_eof(h->channel);
    h->eof_sent = rc != LIBSSH2_ERROR_EAGAIN;
    return moved || h->eof_sent;
}

bool ssh2_is_blocked(const struct ssh2_host *h)
{
    return h->state == SSH2_RUNNING && (h->down.len || (h->down_ended && !h->eof_sent));
}

/* Down first: libssh2 then takes in what has come, too, and the socket does not tell of that again. */
bool ssh2_pump(struct ssh2_host *h)
{
    bool moved = carry_down(h);
    if (h->state == SSH2_RUNNING)
        moved |= carry_up(h, 0, &h->up, h->fd, &h->up_ended);
    if (h->state == SSH2_RUNNING)
        moved |= carry_up(h, SSH_EXTENDED_DATA_STDERR, &h->err, h->err_fd, &h->err_ended);
    if (h->state != SSH2_RUNNING)
        return false;
    if (libssh2_channel_eof(h->channel) && !h->up.len && !h->err.len) {
        h->state = SSH2_CLOSING;
        return true;
    }
    return moved;
}
