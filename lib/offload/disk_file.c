#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/dir.h"
#include "base/io.h"
#include "base/size.h"
#include "offload/disk_internal.h"

#define FOLDER "zerotrain-nvme-"
#define SUFFIX "XXXXXX"
#define STORE "store"

enum { MAX_TRIES = 100 };

/* ---- leftovers ---- */

/* Our user's, and of exactly these rights (a folder may inherit the group bit of the one above). */
static bool is_ours(const struct stat *st, mode_t type_and_mode)
{
    return st->st_uid == geteuid() && (st->st_mode & (S_IFMT | 0777)) == type_and_mode;
}

/* What FOLDER SUFFIX can have become. */
static bool is_folder_name(const char *name)
{
    const size_t prefix = sizeof FOLDER - 1;
    return strncmp(name, FOLDER, prefix) == 0 && strlen(name) == prefix + sizeof SUFFIX - 1;
}

/*
 * The file inside, when it is exactly as we make it and nobody holds its lock; then we do. -1: not, or
 * there is none (`missing`). The lock is not taken away from a process that lives, and one that has just
 * made the file and not locked it yet sees that it was removed and makes another.
 */
static int lock_leftover(int folder_fd, struct stat *st, bool *missing)
{
    int fd = openat(folder_fd, STORE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *missing = fd < 0 && errno == ENOENT;
    if (fd < 0)
        return -1;
    if (fstat(fd, st) || !is_ours(st, S_IFREG | 0600) || st->st_nlink != 1 ||
        flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Remove one folder if it is a leftover, or only count its bytes. True: it was one. */
static bool handle_leftover(int dir_fd, const char *name, bool remove, size_t *bytes)
{
    struct stat st;
    bool found = false, missing = false;
    int folder_fd =
        openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (folder_fd < 0)
        return false;
    if (fstat(folder_fd, &st) == 0 && is_ours(&st, S_IFDIR | 0700)) {
        int fd = lock_leftover(folder_fd, &st, &missing);
        if (fd >= 0) {
            *bytes += (size_t)st.st_blocks * 512;
            found = !remove || unlinkat(folder_fd, STORE, 0) == 0;
            close(fd);
        }
        if (remove && (found || missing)) /* fails when there is anything else in it */
            (void)unlinkat(dir_fd, name, AT_REMOVEDIR);
    }
    close(folder_fd);
    return found;
}

/* *n: how many; their bytes are added to *bytes. */
static int handle_leftovers(const char *path, bool remove, int *n, size_t *bytes,
                            struct zt_err *err)
{
    struct zt_dir d;
    int rc = zt_dir_open(&d, path, err);
    *n = 0;
    if (rc)
        return rc;
    for (const char *name; (name = zt_dir_next(&d));)
        *n += is_folder_name(name) && handle_leftover(zt_dir_fd(&d), name, remove, bytes);
    return zt_dir_close(&d, 0, err);
}

/* ---- room ---- */

static int no_room(const char *dir, size_t bytes, size_t free_bytes, struct zt_err *err)
{
    char a[32], b[32];
    return zt_err_set(
        err, ZT_EINPUT,
        "%s: %zu bytes (%s) are needed there, but only %zu (%s) are free; free some, or "
        "name a folder of another drive",
        dir, bytes, zt_fmt_gb(a, sizeof a, (double)bytes), free_bytes,
        zt_fmt_gb(b, sizeof b, (double)free_bytes));
}

static int free_room(const char *dir, size_t *bytes, struct zt_err *err)
{
    struct statvfs fs;
    *bytes = 0;
    if (statvfs(dir, &fs))
        return zt_err_errno(err, ZT_EINPUT, "%s: statvfs", dir);
    if (!zt_mul_size(fs.f_bavail, fs.f_frsize, bytes))
        *bytes = SIZE_MAX;
    return 0;
}

static int check_folder(const char *dir, struct zt_err *err)
{
    struct stat st;
    if (stat(dir, &st))
        return zt_err_errno(err, ZT_EINPUT, "%s: give an existing folder on the drive to use", dir);
    if (!S_ISDIR(st.st_mode))
        return zt_err_set(err, ZT_EINPUT, "%s: is no folder; give one on the drive to use", dir);
    if (access(dir, R_OK | W_OK | X_OK))
        return zt_err_errno(err, ZT_EINPUT, "%s: cannot be read and written", dir);
    return 0;
}

int zt_disk_check_room(const char *dir, size_t bytes, struct zt_err *err)
{
    size_t free_bytes, left = 0;
    int n, rc = check_folder(dir, err);
    if (!rc)
        rc = free_room(dir, &free_bytes, err);
    if (rc || bytes <= free_bytes)
        return rc;
    rc = handle_leftovers(dir, false, &n, &left, err);
    if (rc)
        return rc;
    return bytes - free_bytes <= left ? 0 : no_room(dir, bytes, free_bytes + left, err);
}

/* All blocks now, so that no write meets a full disk later. */
static int allocate(const char *dir, struct zt_disk_file *f, struct zt_err *err)
{
    size_t free_bytes;
    int rc = free_room(dir, &free_bytes, err);
    if (rc)
        return rc;
    if (f->bytes > free_bytes) /* not filled up first: others write there too */
        return no_room(dir, f->bytes, free_bytes, err);
    rc = zt_allocate(f->fd, 0, f->bytes);
    if (rc == ENOSPC)
        return no_room(dir, f->bytes, free_bytes, err);
    if (rc)
        return zt_err_set(err, ZT_EIO, "%s: allocating %zu bytes: %s", zt_str_get(&f->path),
                          f->bytes, strerror(rc));
    return 0;
}

/* ---- the file ---- */

/*
 * The folder and, locked, the file. 1: another process took them for a leftover before they were locked:
 * try again.
 */
static int make_locked(const char *dir, struct zt_disk_file *f, struct zt_err *err)
{
    struct stat st;
    zt_str_reset(&f->folder);
    zt_str_reset(&f->path);
    zt_str_printf(&f->folder, "%s/" FOLDER SUFFIX, dir);
    if (!mkdtemp(f->folder.buf)) {
        int rc = zt_err_errno(err, ZT_EINPUT, "%s: cannot make a folder in it", dir);
        zt_str_reset(&f->folder);
        return rc;
    }
    zt_str_printf(&f->path, "%s/" STORE, f->folder.buf);
    int folder_fd = open(f->folder.buf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder_fd >= 0) {
        f->fd = openat(folder_fd, STORE, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        int saved = errno;
        close(folder_fd);
        errno = saved;
    }
    if (f->fd < 0)
        return errno == ENOENT ? 1 : zt_err_errno(err, ZT_EIO, "%s: cannot be made", f->path.buf);
    while (flock(f->fd, LOCK_EX))
        if (errno != EINTR)
            return zt_err_errno(err, ZT_EIO, "%s: cannot be locked", f->path.buf);
    if (fstat(f->fd, &st))
        return zt_err_errno(err, ZT_EIO, "%s", f->path.buf);
    if (st.st_nlink > 0)
        return 0;
    close(f->fd);
    f->fd = -1;
    return 1;
}

/* With the alignment that the file system asks for; it must be one that we keep. */
static bool try_direct(struct zt_disk_file *f)
{
    enum { USUAL_HOST_ALIGN = 512 };
    struct statx sx = {0};
    f->host_align = USUAL_HOST_ALIGN;
#ifdef STATX_DIOALIGN
    if (statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
        (sx.stx_mask & STATX_DIOALIGN)) {
        if (sx.stx_dio_offset_align == 0 || ZT_DISK_ALIGN % sx.stx_dio_offset_align != 0 ||
            ZT_DISK_ALIGN % sx.stx_dio_mem_align != 0) {
            snprintf(f->not_direct, sizeof f->not_direct,
                     "its blocks of %u bytes are not those of direct I/O here",
                     sx.stx_dio_offset_align);
            return false;
        }
        f->host_align = sx.stx_dio_mem_align;
    }
#endif
    int flags = fcntl(f->fd, F_GETFL);
    if (flags < 0 || fcntl(f->fd, F_SETFL, flags | O_DIRECT)) {
        snprintf(f->not_direct, sizeof f->not_direct, "O_DIRECT: %s", strerror(errno));
        return false;
    }
    /* Some say yes and then refuse the transfer. */
    void *block = aligned_alloc(ZT_DISK_ALIGN, ZT_DISK_ALIGN);
    ssize_t n = block ? pread(f->fd, block, ZT_DISK_ALIGN, 0) : -1;
    if (n == ZT_DISK_ALIGN) {
        free(block);
        return true;
    }
    snprintf(f->not_direct, sizeof f->not_direct, "a direct read of %d bytes: %s", ZT_DISK_ALIGN,
             n < 0 ? strerror(errno) : "short");
    free(block);
    (void)fcntl(f->fd, F_SETFL, flags);
    return false;
}

int zt_disk_file_create(const char *dir, size_t bytes, struct zt_disk_file *f, struct zt_err *err)
{
    size_t freed = 0;
    *f = (struct zt_disk_file){.fd = -1, .bytes = bytes};
    int rc = check_folder(dir, err);
    if (!rc)
        rc = handle_leftovers(dir, true, &f->n_leftovers, &freed, err);
    if (rc)
        return rc;
    rc = 1;
    for (int i = 0; rc == 1 && i < MAX_TRIES; i++)
        rc = make_locked(dir, f, err);
    if (rc == 1)
        rc = zt_err_set(err, ZT_EIO, "%s: a file made in it is removed at once, again and again",
                        dir);
    if (!rc)
        rc = allocate(dir, f, err);
    if (rc) {
        zt_disk_file_remove(f);
        return rc;
    }
    f->direct = try_direct(f);
    return 0;
}

/* What cannot be removed any more is of no use to anybody: nothing to report. */
void zt_disk_file_remove(struct zt_disk_file *f)
{
    if (f->fd >= 0) {
        (void)unlink(f->path.buf);
        close(f->fd);
    }
    if (f->folder.len > 0)
        (void)rmdir(f->folder.buf);
    zt_str_release(&f->folder);
    zt_str_release(&f->path);
    f->fd = -1;
}

int zt_disk_written(struct zt_disk *d, size_t *bytes, struct zt_err *err)
{
    const off_t end = (off_t)d->file.bytes;
    off_t at = 0;
    *bytes = 0;
    while (at < end) {
        off_t data = lseek(d->file.fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* nothing but holes from here on */
        off_t hole = data < 0 ? -1 : lseek(d->file.fd, data, SEEK_HOLE);
        if (hole < 0)
            return zt_err_errno(err, ZT_EIO, "%s: lseek", zt_str_get(&d->file.path));
        *bytes += (size_t)(ZT_MIN(hole, end) - data);
        at = hole;
    }
    return 0;
}
