#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"

#define TEMP ".tmp." /* before a process number */

enum zt_code zt_open_code(int error)
{
    static const int now[] = {EMFILE, ENFILE, EIO, ESTALE, ETIMEDOUT};
    for (size_t i = 0; i < ZT_ARRAY_LEN(now); i++)
        if (error == now[i])
            return ZT_EIO;
    return error == ENOMEM ? ZT_ENOMEM : ZT_EINPUT;
}

int zt_map_file(const char *path, struct zt_mapped *m, struct zt_err *err)
{
    memset(m, 0, sizeof *m);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe is refused, not waited for */
    if (fd < 0)
        return zt_err_errno(err, zt_open_code(errno), "%s", path);
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st)) {
        rc = zt_err_errno(err, ZT_EIO, "%s", path);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = zt_err_set(err, ZT_EINPUT, "%s: not a regular file", path);
        goto out;
    }
    if (st.st_size == 0)
        goto out;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        rc = zt_err_errno(err, ZT_EIO, "%s: mmap", path);
        goto out;
    }
    m->data = p;
    m->bytes = (size_t)st.st_size;
out:
    close(fd);
    return rc;
}

void zt_unmap_file(struct zt_mapped *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    memset(m, 0, sizeof *m);
}

int zt_read_file(const char *path, size_t max_bytes, struct zt_str *out, struct zt_err *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return zt_err_errno(err, zt_open_code(errno), "%s", path);
    int rc = 0;
    char chunk[65536];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = zt_err_errno(err, errno == EISDIR ? ZT_EINPUT : ZT_EIO, "%s", path);
        if (n <= 0)
            break;
        if ((size_t)n > max_bytes - out->len) {
            rc = zt_err_set(err, ZT_EINPUT, "%s: larger than %zu bytes", path, max_bytes);
            break;
        }
        zt_str_add(out, chunk, (size_t)n);
    }
    if (!is_stdin)
        close(fd);
    return rc;
}

static int write_into(const char *path, const void *bytes, size_t n, struct zt_err *err)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return zt_err_errno(err, ZT_EIO, "%s", path);
    int rc = zt_write_full(fd, bytes, n, path, err);
    if (close(fd) && !rc)
        rc = zt_err_errno(err, ZT_EIO, "%s: close", path);
    return rc;
}

bool zt_is_leftover(const char *pid, time_t written)
{
    enum { HOUR_S = 3600 };
    int64_t n;
    return zt_parse_i64(pid, &n) && n > 0 && n <= INT32_MAX && kill((pid_t)n, 0) &&
           errno == ESRCH && time(NULL) - written > HOUR_S;
}

static void remove_leftover(int dir_fd, const char *name, const char *pid)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        zt_is_leftover(pid, st.st_mtime))
        (void)unlinkat(dir_fd, name, 0);
}

void zt_write_file_clean(const char *path)
{
    struct zt_str dir = {0}, prefix = {0};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    zt_str_add(&dir, slash ? path : "./", slash ? (size_t)(name - path) : 2);
    zt_str_printf(&prefix, "%s" TEMP, name);
    struct zt_dir d;
    struct zt_err ignored;
    if (zt_dir_open(&d, dir.buf, &ignored) == 0) {
        for (const char *entry; (entry = zt_dir_next(&d));)
            if (strncmp(entry, prefix.buf, prefix.len) == 0)
                remove_leftover(zt_dir_fd(&d), entry, entry + prefix.len);
        (void)!zt_dir_close(&d, 0, &ignored);
    }
    zt_str_release(&dir);
    zt_str_release(&prefix);
}

int zt_write_file_atomic(const char *path, const void *bytes, size_t n, struct zt_err *err)
{
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return write_into(path, bytes, n, err);
    return zt_replace_file(path, bytes, n, err);
}

int zt_replace_file(const char *path, const void *bytes, size_t n, struct zt_err *err)
{
    struct zt_str tmp = {0};
    zt_str_printf(&tmp, "%s" TEMP "%ld", path, (long)getpid());
    int fd = open(tmp.buf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc;
    if (fd < 0) {
        rc = zt_err_errno(err, ZT_EIO, "%s", path);
        goto out;
    }
    rc = zt_write_full(fd, bytes, n, path, err);
    if (!rc && fsync(fd))
        rc = zt_err_errno(err, ZT_EIO, "%s: fsync", path);
    if (close(fd) && !rc)
        rc = zt_err_errno(err, ZT_EIO, "%s: close", path);
    if (!rc && rename(tmp.buf, path))
        rc = zt_err_errno(err, ZT_EIO, "%s: rename", path);
    if (rc)
        unlink(tmp.buf);
out:
    zt_str_release(&tmp);
    return rc;
}

int zt_write_file_check(const char *path, struct zt_err *err)
{
    struct zt_str tmp = {0};
    struct stat st;
    const bool into = lstat(path, &st) == 0 && !S_ISREG(st.st_mode);
    int rc = 0;
    zt_str_printf(&tmp, "%s" TEMP "%ld", path, (long)getpid());
    int fd = into ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)
                  : open(tmp.buf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0)
        close(fd);
    else if (!into || errno != ENXIO) /* a pipe's reader may come later */
        rc = zt_err_errno(err, ZT_EIO, "%s", path);
    if (fd >= 0 && !into)
        unlink(tmp.buf);
    zt_str_release(&tmp);
    return rc;
}

int zt_allocate(int fd, size_t at, size_t bytes)
{
    int no;
    do
        no = posix_fallocate(fd, (off_t)at, (off_t)bytes);
    while (no == EINTR);
    return no;
}

int zt_fsync_dir(const char *path, struct zt_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return zt_err_errno(err, ZT_EIO, "%s", path);
    if (fsync(fd))
        rc = zt_err_errno(err, ZT_EIO, "%s: fsync", path);
    close(fd);
    return rc;
}

/* The name of a new folder. Not all file systems can be asked, and it is there meanwhile. */
static void sync_name(const char *dir)
{
    struct zt_str parent = {0};
    struct zt_err ignored;
    zt_str_printf(&parent, "%s/..", dir);
    (void)!zt_fsync_dir(parent.buf, &ignored);
    zt_str_release(&parent);
}

int zt_make_dirs(const char *path, struct zt_err *err)
{
    struct zt_str s = {0};
    int rc = 0;
    for (const char *p = path; !rc; p++) {
        if ((*p == '/' || *p == '\0') && s.len) {
            if (mkdir(s.buf, 0777) == 0)
                sync_name(s.buf);
            else if (errno != EEXIST)
                rc = zt_err_errno(err, ZT_EIO, "%s: mkdir", s.buf);
        }
        if (!*p)
            break;
        zt_str_add(&s, p, 1);
    }
    struct stat st;
    if (!rc && (stat(path, &st) || !S_ISDIR(st.st_mode)))
        rc = zt_err_set(err, ZT_EIO, "%s: not a directory", path);
    zt_str_release(&s);
    return rc;
}

int zt_read_full(int fd, void *buf, size_t n, const char *what, struct zt_err *err)
{
    size_t got = 0;
    while (got < n) {
        ssize_t k = read(fd, (char *)buf + got, n - got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return zt_err_errno(err, ZT_EIO, "%s: read", what);
        if (k == 0) {
            if (got == 0)
                return 0;
            return zt_err_set(err, ZT_EIO, "%s: ended after %zu of %zu bytes", what, got, n);
        }
        got += (size_t)k;
    }
    return 1;
}

int zt_write_full(int fd, const void *buf, size_t n, const char *what, struct zt_err *err)
{
    size_t done = 0;
    while (done < n) {
        ssize_t k = write(fd, (const char *)buf + done, n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return zt_err_errno(err, ZT_EIO, "%s: write", what);
        done += (size_t)k;
    }
    return 0;
}
