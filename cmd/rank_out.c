#include "rank_out.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/supervisor.h"

void rank_out_line(struct rank_out *o, int rank, const char *line, size_t len)
{
    if (rank >= 0)
        zt_str_printf(&o->buf, "[%s%srank %d] ", o->host_of ? o->host_of[rank] : "",
                      o->host_of ? " " : "", rank);
    zt_str_add(&o->buf, line, len);
    zt_str_puts(&o->buf, "\n");
}

void rank_out_say(struct rank_out *o, const char *text)
{
    do {
        const size_t n = strcspn(text, "\n");
        zt_str_puts(&o->buf, "zerotrain: ");
        rank_out_line(o, -1, text, n);
        text += n + (text[n] != '\0');
    } while (*text);
}

/* ---- without blocking ---- */

/*
 * A terminal that poll calls writable may take less than a write has, which then waits in the kernel for whoever looks
 * at it. So pipes and terminals are opened once more, for a description of our own; one of another user's may not be.
 */
static void open_own(struct rank_out *o)
{
    struct stat st;
    char path[32];
    if (o->own_fd)
        return;
    o->own_fd = -1;
    if (fstat(o->fd, &st) || !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) ||
        (fcntl(o->fd, F_GETFL) & O_ACCMODE) == O_RDONLY) /* as main() leaves a closed one */
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", o->fd);
    o->own_fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (o->own_fd == 0) { /* stdin is closed; and 0 means that it was not tried */
        close(0);
        o->own_fd = -1;
    }
}

static ssize_t put_some(const struct rank_out *o, const char *p, size_t n)
{
    if (o->own_fd >= 0)
        return write(o->own_fd, p, n);
    ssize_t k = send(o->fd, p, n, MSG_DONTWAIT);
    return k < 0 && errno == ENOTSOCK ? write(o->fd, p, n) : k;
}

static void note_reader(struct rank_out *o, bool took)
{
    int unread = 0;
    if (ioctl(o->fd, TIOCOUTQ, &unread)) /* a terminal, a socket; else a pipe */
        (void)ioctl(o->fd, FIONREAD, &unread);
    if (took || unread < o->unread || !o->taken_ns)
        o->taken_ns = zt_now_ns();
    o->unread = unread;
}

/* Whole lines, where they fit: lines of stdout and stderr in one pipe are not mixed. */
static size_t next_bytes(const struct rank_out *o)
{
    const char *p = o->buf.buf + o->written;
    const size_t left = o->buf.len - o->written, n = ZT_MIN(left, (size_t)PIPE_BUF);
    const char *end = n < left ? memrchr(p, '\n', n) : NULL;
    return end ? (size_t)(end - p) + 1 : n;
}

/* true: go on. A pipe that poll calls writable takes PIPE_BUF bytes at once. */
static bool write_some(struct rank_out *o)
{
    struct pollfd p = {.fd = o->fd, .events = POLLOUT};
    if (o->written == o->buf.len || poll(&p, 1, 0) == 0)
        return false;
    open_own(o);
    ssize_t n = put_some(o, o->buf.buf + o->written, next_bytes(o));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (n < 0) /* nobody reads it, or the disk is full */
        o->error = errno;
    o->written = n < 0 ? o->buf.len : o->written + (size_t)n;
    note_reader(o, true);
    return true;
}

int rank_out_flush(struct rank_out *o)
{
    while (write_some(o))
        ;
    const bool all = o->written == o->buf.len;
    note_reader(o, all);
    if (!all)
        return o->fd;
    zt_str_reset(&o->buf);
    o->written = 0;
    return -1;
}

static bool is_same_file(int a, int b)
{
    struct stat of_a, of_b;
    return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

int rank_out_flush_both(struct rank_out *first, struct rank_out *second)
{
    const int fd = rank_out_flush(first);
    if (fd >= 0 && is_same_file(first->fd, second->fd))
        return fd;
    const int other_fd = rank_out_flush(second);
    return fd >= 0 ? fd : other_fd;
}

/* ---- the end ---- */

static bool is_waited_for(const struct rank_out *o, bool told)
{
    const bool signalled = zt_ending_signal_came();
    const int64_t silent_ns = zt_now_ns() - o->taken_ns;
    if (told && signalled)
        return false;
    return !(told || signalled) || silent_ns < RANK_OUT_DEAD_MS * (int64_t)1000000;
}

int rank_out_finish(struct rank_out *o, bool told)
{
    enum { LOOK_MS = 100 }; /* for a signal, for what was read */
    while (rank_out_flush(o) >= 0 && is_waited_for(o, told)) {
        struct pollfd p = {.fd = o->fd, .events = POLLOUT};
        poll(&p, 1, LOOK_MS);
    }
    o->dropped_bytes = o->buf.len - o->written;
    if (o->dropped_bytes)
        o->error = EAGAIN;
    if (o->own_fd > 0)
        close(o->own_fd);
    zt_str_release(&o->buf);
    o->written = 0;
    o->own_fd = 0;
    return o->error;
}

int rank_out_finish_both(struct rank_out *out, struct rank_out *err, bool told)
{
    char text[100];
    (void)rank_out_flush_both(out, err); /* what is wrong is said before anybody is waited for */
    const int lost = rank_out_finish(out, told);
    if (out->dropped_bytes) {
        snprintf(text, sizeof text, "standard output: %zu bytes that nobody has read are dropped",
                 out->dropped_bytes);
        rank_out_say(err, text);
    }
    (void)rank_out_finish(err, told);
    return lost;
}
