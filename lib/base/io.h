/*
 * io.h: files and descriptors. Short reads and writes and EINTR are handled; every error names the
 * path. All functions block.
 */
#ifndef ZT_BASE_IO_H
#define ZT_BASE_IO_H

#include <time.h>

#include "base/err.h"
#include "base/str.h"

/* A whole file mapped read-only; works for files larger than memory. bytes may be 0 (data NULL). */
struct zt_mapped {
    const unsigned char *data;
    size_t bytes;
};

/*
 * The code of a path that could not be opened, by errno. ZT_EINPUT: it is not there, or not for us. ZT_EIO, ZT_ENOMEM:
 * it cannot be read now, and nothing is known of it: too many files are open, memory or the disk failed.
 */
enum zt_code zt_open_code(int error);

int zt_map_file(const char *path, struct zt_mapped *m, struct zt_err *err) ZT_MUST_CHECK;
void zt_unmap_file(struct zt_mapped *m); /* accepts a zeroed one */

/* Read a text file whole; larger than max_bytes is ZT_EINPUT. `path` "-" is standard input. */
int zt_read_file(const char *path, size_t max_bytes, struct zt_str *out,
                 struct zt_err *err) ZT_MUST_CHECK;

/*
 * Has a killed process left this? `pid`: the number that ends the name of something temporary; `written`: when it last
 * was. There must be no such process, here, and for an hour, since one on another host or in another container has a
 * number as well.
 */
bool zt_is_leftover(const char *pid, time_t written);

/* Remove PATH.tmp.PID that zt_write_file_atomic() left (zt_is_leftover()). What cannot be removed, or listed, stays. */
void zt_write_file_clean(const char *path);

/*
 * Write a file that is either the old one or complete: temporary name, fsync, rename. What is there
 * and no regular file (a device, a pipe, a link) stays what it is: the bytes are written into it.
 */
int zt_write_file_atomic(const char *path, const void *bytes, size_t n,
                         struct zt_err *err) ZT_MUST_CHECK;

/* Could zt_write_file_atomic() begin to write there? Leaves nothing. */
int zt_write_file_check(const char *path, struct zt_err *err) ZT_MUST_CHECK;

/* The same, and the new file takes the place of a link as well. */
int zt_replace_file(const char *path, const void *bytes, size_t n,
                    struct zt_err *err) ZT_MUST_CHECK;

/* Room in the file for bytes [at, at + bytes), bytes > 0: 0, or an errno value. Signals do not end it. */
int zt_allocate(int fd, size_t at, size_t bytes) ZT_MUST_CHECK;

/* The names in a folder are on the disk. */
int zt_fsync_dir(const char *path, struct zt_err *err) ZT_MUST_CHECK;

/* mkdir -p. An existing directory is fine. The names of new ones are on the disk, where that can be asked for. */
int zt_make_dirs(const char *path, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Whole transfers on a descriptor (blocking mode). read returns 1 when all n bytes came, 0 at end of
 * file before the first byte, negative on failure (end of file inside is ZT_EIO). `what` names the
 * other end in messages.
 */
int zt_read_full(int fd, void *buf, size_t n, const char *what, struct zt_err *err) ZT_MUST_CHECK;
int zt_write_full(int fd, const void *buf, size_t n, const char *what,
                  struct zt_err *err) ZT_MUST_CHECK;

#endif
