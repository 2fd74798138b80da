/*
 * dir.h: the names in a folder, one after the other.
 *
 *     struct zt_dir d;
 *     int rc = zt_dir_open(&d, path, err);
 *     if (rc)
 *         return d.missing ? 0 : rc;
 *     for (const char *name; !rc && (name = zt_dir_next(&d));)
 *         rc = ...
 *     return zt_dir_close(&d, rc, err);
 *
 * A list that breaks off looks like one that has ended until it is closed: what was not listed may be what matters.
 */
#ifndef ZT_BASE_DIR_H
#define ZT_BASE_DIR_H

#include <dirent.h>

#include "base/err.h"

struct zt_dir {
    DIR *stream;
    char *path;
    bool missing; /* there is no such folder: zt_dir_open() has failed for that */
    int error;    /* errno of what broke the list off; 0: nothing has */
};

/* After a failure, whose code is that of zt_open_code(), there is nothing to close. */
int zt_dir_open(struct zt_dir *d, const char *path, struct zt_err *err) ZT_MUST_CHECK;

/* But "." and "..". Valid until the next call. NULL: there are no more, or the list broke off. */
const char *zt_dir_next(struct zt_dir *d);

int zt_dir_fd(const struct zt_dir *d); /* for unlinkat() and its like */

/* Returns rc where something has failed meanwhile; else ZT_EIO when the list broke off: not all names were listed. */
int zt_dir_close(struct zt_dir *d, int rc, struct zt_err *err) ZT_MUST_CHECK;

#endif
