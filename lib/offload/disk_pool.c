#include <errno.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/ring.h"
#include "offload/disk_internal.h"

/*
 * Requests are jobs of a ring, whose buffers are what they bounce through. The caller cuts them, as many as there are
 * buffers: twice as many as threads, so that one that takes long does not hold up the others.
 */

struct zt_disk_lane {
    struct zt_ring *ring;
    const struct zt_disk_work *work;  /* of the call */
    struct zt_disk_request *requests; /* (n_slots) */
    int64_t n_slots, end;             /* requests cut so far, of all calls */
};

static int transfer(void *ctx, int64_t i, unsigned char *bounce, struct zt_err *err)
{
    struct zt_disk_lane *l = ctx;
    const struct zt_disk_work *w = l->work;
    struct zt_disk_request *r = &l->requests[i % l->n_slots];
    const int fd = w->disk->file.fd;
    int rc = 0;
    zt_disk_begin(w, r, bounce);
    while (!rc) {
        const size_t n = r->io_bytes - r->done;
        const off_t at = (off_t)(r->at + r->done);
        const ssize_t moved = w->dir == ZT_DISK_READ ? pread(fd, r->io + r->done, n, at)
                                                     : pwrite(fd, r->io + r->done, n, at);
        rc = zt_disk_result(w, r, moved < 0 ? -errno : moved, err);
    }
    if (rc < 0)
        return rc;
    zt_disk_end(w, r);
    return 0;
}

static int lane_run(struct zt_disk_lane *l, struct zt_disk_work *w, struct zt_err *err)
{
    struct zt_err other;
    int failed = 0;
    l->work = w;
    for (int64_t i = l->end;; i++) {
        while (!failed && l->end - i < l->n_slots &&
               zt_disk_cut(w, &l->requests[l->end % l->n_slots]))
            zt_ring_allow(l->ring, ++l->end);
        if (i == l->end)
            return failed;
        const int rc = zt_ring_wait(l->ring, i, failed ? &other : err);
        failed = failed ? failed : rc;
    }
}

static void lane_free(struct zt_disk_lane *l)
{
    zt_ring_free(l->ring);
    free(l->requests);
    free(l);
}

static int lane_create(struct zt_disk *d, struct zt_disk_lane **out, struct zt_err *err)
{
    const int n_slots = 2 * d->o.n_threads;
    struct zt_disk_lane *l = zt_xcalloc(1, sizeof *l);
    const struct zt_ring_opts o = {.name = "disk-pool",
                                   .n_threads = d->o.n_threads,
                                   .n_slots = n_slots,
                                   .slot_bytes = d->o.block_bytes,
                                   .work = transfer,
                                   .ctx = l};
    l->n_slots = n_slots;
    l->requests = zt_xcalloc((size_t)n_slots, sizeof *l->requests);
    const int rc = zt_ring_create(&o, &l->ring, err);
    if (rc) {
        lane_free(l);
        return rc;
    }
    *out = l;
    return 0;
}

const struct zt_disk_way zt_disk_pool = {
    .name = "threads", .create = lane_create, .free = lane_free, .run = lane_run};
