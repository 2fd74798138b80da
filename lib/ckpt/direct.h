/*
 * direct.h: a file that is read or written in large aligned blocks, past the page cache (O_DIRECT) where the
 * file system can do that, else through it. Internal to lib/ckpt.
 *
 * Several threads may transfer at once. Blocks begin at multiples of ZT_DIRECT_ALIGN in the file and in
 * memory, whose buffer has room up to the next multiple; what does not, and the rest of a short transfer, goes
 * through the page cache.
 */
#ifndef ZT_CKPT_DIRECT_H
#define ZT_CKPT_DIRECT_H

#include <stdatomic.h>

#include "base/err.h"

enum { ZT_DIRECT_ALIGN = 4096 };

struct zt_direct {
    const char *path; /* the caller's; for messages */
    int fd;
    int direct_fd;       /* -1: none */
    atomic_bool refused; /* the file system took the flag, and refuses the transfers */
};

/* A new file of that many bytes, for which room is asked at once (zt_reserve). It must not be there yet. */
int zt_direct_create(struct zt_direct *f, const char *path, size_t bytes,
                     struct zt_err *err) ZT_MUST_CHECK;
/* For reading; `direct` false: all of it goes through the page cache. Fails with zt_open_code(). */
int zt_direct_open(struct zt_direct *f, const char *path, bool direct,
                   struct zt_err *err) ZT_MUST_CHECK;
int zt_direct_close(struct zt_direct *f); /* of close(2) */

/* Bytes [at, at + n), all of them. `cached`: through the page cache, where more of them is wanted. */
int zt_direct_read(struct zt_direct *f, bool cached, void *out, size_t n, size_t at,
                   struct zt_err *err) ZT_MUST_CHECK;
/* Their way to the disk has begun when this returns; fsync tells whether they came there. */
int zt_direct_write(struct zt_direct *f, const void *bytes, size_t n, size_t at,
                    struct zt_err *err) ZT_MUST_CHECK;

/*
 * Room for a file of that many bytes, whose size they become. ZT_EIO: there is none. A file system that cannot
 * promise it finds out while writing.
 */
int zt_reserve(int fd, size_t bytes, const char *path, struct zt_err *err) ZT_MUST_CHECK;

#endif
