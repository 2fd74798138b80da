#include "rank_out.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

void rank_out_line(struct rank_out *o, int rank, const char *line, size_t len)
{
    if (rank >= 0)
        zt_str_printf(&o->buf, "[%s%srank %d] ", o->host_of ? o->host_of[rank] : "",
                      o->host_of ? " " : "", rank);
    zt_str_add(&o->buf, line, len);
    zt_str_puts(&o->buf, "\n");
}

/* true: go on. A descriptor that poll calls writable takes PIPE_BUF bytes without blocking. */
static bool write_some(struct rank_out *o, int wait_ms)
{
    struct pollfd p = {.fd = o->fd, .events = POLLOUT};
    size_t left = o->buf.len - o->written;
    if (left == 0 || poll(&p, 1, wait_ms) == 0)
        return false;
    ssize_t n = write(o->fd, o->buf.buf + o->written, ZT_MIN(left, (size_t)PIPE_BUF));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n < 0) /* nobody reads it, or the disk is full */
        o->error = errno;
    o->written += n < 0 ? left : (size_t)n;
    return true;
}

int rank_out_flush(struct rank_out *o)
{
    while (write_some(o, 0))
        ;
    if (o->written < o->buf.len)
        return o->fd;
    zt_str_reset(&o->buf);
    o->written = 0;
    return -1;
}

int rank_out_finish(struct rank_out *o)
{
    while (write_some(o, o->no_wait ? 0 : -1))
        ;
    if (o->written < o->buf.len && !o->error)
        o->error = EAGAIN;
    zt_str_release(&o->buf);
    o->written = 0;
    return o->error;
}
