/*
 * disk.h: a private file on an NVMe drive, as one more arena: bytes [0, bytes) that are moved to and
 * from host memory.
 *
 *   disk.c        opening, cutting ranges into requests, the task of a stream
 *   disk_file.c   the file: private folder, lock, room, leftovers of runs that died
 *   disk_uring.c  requests by io_uring (liburing; not in every build)
 *   disk_pool.c   requests by threads with pread and pwrite (base/ring.h)
 *
 * Ranges. A range begins at a multiple of ZT_DISK_ALIGN of the file and has any length; the bytes from
 * its end to the next multiple belong to it and are undefined. Host memory may lie anywhere: what
 * direct I/O refuses (an odd address, the last bytes) goes through a buffer of our own.
 *
 * Requests. A range is cut into requests of block_bytes. Up to queue_depth of one direction are in
 * flight with io_uring, n_threads with the pool. Every result is checked: a short one is continued
 * where it stopped, an error ends the call after all requests in flight are over, and names the path.
 *
 * Threads. Each direction has its own ring or threads, and one caller at a time: reads and writes may
 * run at once, two reads may not. A stream of its own for each direction keeps to that. Ranges under
 * way in both directions must not meet; the plan sees to it.
 *
 * Direct I/O (O_DIRECT) keeps the state out of the page cache. Where the file system refuses it, the
 * pool is used, through the cache. zt_disk_describe() says which way was taken, and why.
 *
 * The file is DIR/zerotrain-nvme-XXXXXX/store: mode 0600, in a folder of mode 0700 of this process
 * alone, never through a link, and locked (flock) while we live. Closing removes both. A process that
 * dies leaves them behind; the next one that opens a store in the same DIR removes what is provably
 * such a leftover: its own user's folder and file of exactly this form, whose lock nobody holds.
 */
#ifndef ZT_OFFLOAD_DISK_H
#define ZT_OFFLOAD_DISK_H

#include "base/err.h"
#include "dev/dev.h"

enum { ZT_DISK_ALIGN = 4096, ZT_DISK_MAX_RANGES = 4 };

enum zt_disk_backend {
    ZT_DISK_AUTO,    /* io_uring where the build and the kernel have it, else threads */
    ZT_DISK_URING,   /* or fail */
    ZT_DISK_THREADS, /* also where io_uring would work */
};

enum zt_disk_dir { ZT_DISK_READ, ZT_DISK_WRITE, ZT_N_DISK_DIRS };

struct zt_disk_opts {
    const char *dir; /* of the file system to use; must exist */
    size_t bytes;    /* > 0; allocated at once */
    enum zt_disk_backend backend;
    size_t block_bytes; /* of one request: a multiple of ZT_DISK_ALIGN */
    int queue_depth;    /* 1 to ZT_DISK_MAX_DEPTH, of each direction */
    int n_threads;      /* 1 to ZT_DISK_MAX_THREADS, of each direction */
};

enum { ZT_DISK_MAX_DEPTH = 1024, ZT_DISK_MAX_THREADS = 256 };
enum { ZT_DISK_MAX_BLOCK = 1 << 30 };

struct zt_disk_range {
    size_t at;    /* in the file; a multiple of ZT_DISK_ALIGN */
    void *host;   /* read into, or written from */
    size_t bytes; /* > 0 */
};

struct zt_disk;

/*
 * Removes leftovers, makes the file and allocates all of its bytes. ZT_EINPUT: `dir` cannot be used,
 * or has no room (the message has the needed and the free bytes); ZT_EUNSUPPORTED: ZT_DISK_URING, and
 * io_uring or direct I/O does not work here.
 */
int zt_disk_open(const struct zt_disk_opts *o, struct zt_disk **out,
                 struct zt_err *err) ZT_MUST_CHECK;

/* Removes the file. Nothing may be under way. Accepts NULL. */
void zt_disk_close(struct zt_disk *d);

/* One line for a person: the way taken and, if it is not the best, why. */
const char *zt_disk_describe(const struct zt_disk *d);

/* How many files of dead processes were removed when it was opened. */
int zt_disk_n_leftovers(const struct zt_disk *d);

/* Of the file. */
const char *zt_disk_path(const struct zt_disk *d);

/* Move up to ZT_DISK_MAX_RANGES ranges. Blocks; on failure some of them may have been moved. */
int zt_disk_move(struct zt_disk *d, enum zt_disk_dir dir, const struct zt_disk_range *ranges, int n,
                 struct zt_err *err) ZT_MUST_CHECK;

/* The same as a task of a stream of a CPU device, whose thread does it; a failure is the stream's. */
void zt_disk_enqueue(struct zt_disk *d, struct zt_stream *s, enum zt_disk_dir dir,
                     const struct zt_disk_range *ranges, int n);

/*
 * Bytes of the file that were ever written, in blocks of the file system, as it tells (SEEK_DATA); all
 * of them where it does not. Nothing may be under way.
 */
int zt_disk_written(struct zt_disk *d, size_t *bytes, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Has the file system of `dir` room for `bytes`? ZT_EINPUT when not, or when there is no such folder or
 * no right to write into it. Leftovers that opening would remove count as free.
 */
int zt_disk_check_room(const char *dir, size_t bytes, struct zt_err *err) ZT_MUST_CHECK;

#endif
