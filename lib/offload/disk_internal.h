/* disk_internal.h: what the files of lib/offload share. */
#ifndef ZT_OFFLOAD_DISK_INTERNAL_H
#define ZT_OFFLOAD_DISK_INTERNAL_H

#include "base/str.h"
#include "offload/disk.h"

/* ---- the file (disk_file.c) ---- */

struct zt_disk_file {
    int fd;
    struct zt_str folder, path;
    size_t bytes;
    bool direct;
    size_t host_align;    /* of host memory, for direct I/O */
    char not_direct[160]; /* why not */
    int n_leftovers;      /* removed before it was made */
};

/* On failure nothing is left behind. */
int zt_disk_file_create(const char *dir, size_t bytes, struct zt_disk_file *f,
                        struct zt_err *err) ZT_MUST_CHECK;
void zt_disk_file_remove(struct zt_disk_file *f);

/* ---- requests (disk.c) ---- */

/* One request, and what came of it so far. */
struct zt_disk_request {
    unsigned char *host; /* where its bytes come from, or go to in the end */
    size_t bytes;
    unsigned char *io; /* what the kernel is given: host, or the bounce buffer */
    size_t io_bytes;   /* rounded up for direct I/O */
    size_t at;
    size_t done; /* of io_bytes */
};

/* The ranges of one call, cut into requests one after another. */
struct zt_disk_work {
    struct zt_disk *disk;
    enum zt_disk_dir dir;
    const struct zt_disk_range *ranges;
    int n_ranges, range;
    size_t done; /* of that range */
};

/* The next request; false when all are taken. */
bool zt_disk_cut(struct zt_disk_work *w, struct zt_disk_request *r);

/* Before and after the transfer: through `bounce`, of block_bytes, where the host memory does not do. */
void zt_disk_begin(const struct zt_disk_work *w, struct zt_disk_request *r, unsigned char *bounce);
void zt_disk_end(const struct zt_disk_work *w, struct zt_disk_request *r);

/*
 * Take in the result of a transfer of the request's rest: bytes, or a negative errno. Returns 1 when
 * the request is complete, 0 when its rest has to be transferred (again), negative on failure.
 */
int zt_disk_result(const struct zt_disk_work *w, struct zt_disk_request *r, int64_t result,
                   struct zt_err *err) ZT_MUST_CHECK;

/* ---- the two ways (disk_uring.c, disk_pool.c) ---- */

/* What carries out the requests of one direction. */
struct zt_disk_lane;

struct zt_disk_way {
    const char *name;
    /* ZT_EUNSUPPORTED: not in this build, or not allowed by the kernel. */
    int (*create)(struct zt_disk *d, struct zt_disk_lane **out, struct zt_err *err);
    void (*free)(struct zt_disk_lane *l);
    /* Returns when no request is in flight any more. */
    int (*run)(struct zt_disk_lane *l, struct zt_disk_work *w, struct zt_err *err);
};

extern const struct zt_disk_way zt_disk_uring, zt_disk_pool;

struct zt_disk {
    struct zt_disk_opts o;
    struct zt_disk_file file;
    const struct zt_disk_way *way;
    struct zt_disk_lane *lanes[ZT_N_DISK_DIRS];
    struct zt_str about;
};

#endif
