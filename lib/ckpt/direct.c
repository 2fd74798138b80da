#include "ckpt/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/io.h"
#include "base/size.h"

int zt_reserve(int fd, size_t bytes, const char *path, struct zt_err *err)
{
    int rc;
    do
        rc = bytes ? fallocate(fd, 0, 0, (off_t)bytes) : 0;
    while (rc && errno == EINTR);
    if (rc && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        return zt_err_errno(err, ZT_EIO, "%s: %zu bytes", path, bytes);
    return 0;
}

static int open_direct(const char *path, int mode)
{
    return open(path, mode | O_DIRECT | O_CLOEXEC);
}

int zt_direct_create(struct zt_direct *f, const char *path, size_t bytes, struct zt_err *err)
{
    *f = (struct zt_direct){.path = path, .direct_fd = -1};
    f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return zt_err_errno(err, ZT_EIO, "%s", path);
    int rc = zt_reserve(f->fd, bytes, path, err);
    if (rc)
        close(f->fd);
    else
        f->direct_fd = open_direct(path, O_WRONLY);
    return rc;
}

int zt_direct_open(struct zt_direct *f, const char *path, bool direct, struct zt_err *err)
{
    *f = (struct zt_direct){.path = path, .direct_fd = -1};
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        return zt_err_errno(err, zt_open_code(errno), "%s", path);
    if (direct)
        f->direct_fd = open_direct(path, O_RDONLY);
    return 0;
}

int zt_direct_close(struct zt_direct *f)
{
    if (f->direct_fd >= 0)
        close(f->direct_fd);
    return close(f->fd);
}

static bool can_be_direct(struct zt_direct *f, const void *p, size_t at)
{
    return f->direct_fd >= 0 && !atomic_load(&f->refused) && at % ZT_DIRECT_ALIGN == 0 &&
           (uintptr_t)p % ZT_DIRECT_ALIGN == 0;
}

/*
 * What a direct transfer, which comes first, has moved; -1: it failed. Where it is refused, or was interrupted, the
 * page cache takes over.
 */
static ssize_t moved(struct zt_direct *f, ssize_t result)
{
    const bool refused = result < 0 && (errno == EINVAL || errno == EOPNOTSUPP);
    if (refused)
        atomic_store(&f->refused, true);
    return result < 0 && (refused || errno == EINTR) ? 0 : result;
}

int zt_direct_read(struct zt_direct *f, bool cached, void *out, size_t n, size_t at,
                   struct zt_err *err)
{
    const size_t whole = zt_align_size(n, ZT_DIRECT_ALIGN);
    ssize_t k = 0;
    if (!cached && can_be_direct(f, out, at))
        k = moved(f, pread(f->direct_fd, out, whole, (off_t)at));
    else
        posix_fadvise(f->fd, (off_t)at, (off_t)n, POSIX_FADV_WILLNEED); /* the block as a whole */
    size_t done = k > 0 ? (size_t)k : 0;
    while (k >= 0 && done < n) {
        k = pread(f->fd, (char *)out + done, n - done, (off_t)(at + done));
        if (k == 0)
            return zt_err_set(err, ZT_EINPUT, "%s: ends at byte %zu, while it is read", f->path,
                              at + done);
        if (k < 0 && errno == EINTR)
            k = 0;
        done += k > 0 ? (size_t)k : 0;
    }
    return k < 0 ? zt_err_errno(err, ZT_EIO, "%s: read", f->path) : 0;
}

int zt_direct_write(struct zt_direct *f, const void *bytes, size_t n, size_t at, struct zt_err *err)
{
    const size_t whole = n - n % ZT_DIRECT_ALIGN;
    ssize_t k = 0;
    if (whole > 0 && can_be_direct(f, bytes, at))
        k = moved(f, pwrite(f->direct_fd, bytes, whole, (off_t)at));
    size_t done = k > 0 ? (size_t)k : 0;
    const size_t rest = done;
    while (k >= 0 && done < n) {
        k = pwrite(f->fd, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            k = 0;
        done += k > 0 ? (size_t)k : 0;
    }
    if (k < 0)
        return zt_err_errno(err, ZT_EIO, "%s: write", f->path);
    if (rest < n) /* the disk begins at once, and not when all are there */
        sync_file_range(f->fd, (off_t)(at + rest), (off_t)(n - rest), SYNC_FILE_RANGE_WRITE);
    return 0;
}
