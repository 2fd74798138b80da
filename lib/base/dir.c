#include "base/dir.h"

#include <errno.h>

#include "base/arena.h"
#include "base/io.h"

int zt_dir_open(struct zt_dir *d, const char *path, struct zt_err *err)
{
    *d = (struct zt_dir){.stream = opendir(path)};
    if (d->stream) {
        d->path = zt_xstrdup(path);
        return 0;
    }
    d->missing = errno == ENOENT;
    return zt_err_errno(err, zt_open_code(errno), "%s", path);
}

const char *zt_dir_next(struct zt_dir *d)
{
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d->stream);
        if (!e) {
            d->error = errno;
            return NULL;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            return e->d_name;
    }
}

int zt_dir_fd(const struct zt_dir *d)
{
    return dirfd(d->stream);
}

int zt_dir_close(struct zt_dir *d, int rc, struct zt_err *err)
{
    if (d->error && !rc) {
        errno = d->error;
        rc = zt_err_errno(err, ZT_EIO, "%s: its files cannot be listed", d->path);
    }
    closedir(d->stream);
    free(d->path);
    memset(d, 0, sizeof *d);
    return rc;
}
