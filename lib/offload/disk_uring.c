#include "offload/disk_internal.h"

#ifdef ZT_HAVE_URING
#include <errno.h>
#include <liburing.h>

#include "base/arena.h"

/*
 * One ring for each direction. A call fills the ring with requests and puts in a new one for each that
 * comes back, so that queue_depth are in flight until the last ones.
 */

struct zt_disk_lane {
    struct zt_disk *disk;
    struct io_uring ring;
    unsigned char *bounce;            /* (queue_depth, block_bytes) */
    struct zt_disk_request *requests; /* (queue_depth) */
    int *idle, n_idle;                /* of them, not in flight */
};

static int has_ops(struct io_uring *ring, struct zt_err *err)
{
    struct io_uring_probe *p = io_uring_get_probe_ring(ring);
    bool ok = p && io_uring_opcode_supported(p, IORING_OP_READ) &&
              io_uring_opcode_supported(p, IORING_OP_WRITE);
    io_uring_free_probe(p);
    return ok ? 0 : zt_err_set(err, ZT_EUNSUPPORTED, "the kernel's io_uring is too old");
}

static void lane_free(struct zt_disk_lane *l)
{
    io_uring_queue_exit(&l->ring);
    free(l->bounce);
    free(l->requests);
    free(l->idle);
    free(l);
}

/* Seccomp filters (containers), kernel.io_uring_disabled, a kernel without it. */
static bool is_not_allowed(int rc)
{
    return rc == -EPERM || rc == -EACCES || rc == -ENOSYS;
}

static int lane_create(struct zt_disk *d, struct zt_disk_lane **out, struct zt_err *err)
{
    const int depth = d->o.queue_depth;
    struct zt_disk_lane *l = zt_xcalloc(1, sizeof *l);
    int rc = io_uring_queue_init((unsigned)depth, &l->ring, 0);
    if (rc < 0) {
        free(l);
        const char *why = is_not_allowed(rc) ? "is not allowed here" : "cannot be set up";
        return zt_err_set(err, is_not_allowed(rc) || rc == -ENOMEM ? ZT_EUNSUPPORTED : ZT_ESYS,
                          "it %s: %s", why, strerror(-rc));
    }
    l->disk = d;
    l->bounce = aligned_alloc(ZT_DISK_ALIGN, (size_t)depth * d->o.block_bytes);
    l->requests = zt_xcalloc((size_t)depth, sizeof *l->requests);
    l->idle = zt_xcalloc((size_t)depth, sizeof *l->idle);
    for (int i = 0; i < depth; i++)
        l->idle[l->n_idle++] = i;
    rc = has_ops(&l->ring, err);
    if (!rc && !l->bounce)
        rc = zt_err_set(err, ZT_ENOMEM, "no memory for %d requests of %zu bytes", depth,
                        d->o.block_bytes);
    if (rc) {
        lane_free(l);
        return rc;
    }
    *out = l;
    return 0;
}

/* The rest of a request. A ring of queue_depth entries has room for all that can be in flight. */
static void put(struct zt_disk_lane *l, const struct zt_disk_work *w, int i)
{
    struct zt_disk_request *r = &l->requests[i];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);
    ZT_ASSERT(sqe);
    unsigned n = (unsigned)(r->io_bytes - r->done);
    if (w->dir == ZT_DISK_READ)
        io_uring_prep_read(sqe, l->disk->file.fd, r->io + r->done, n, r->at + r->done);
    else
        io_uring_prep_write(sqe, l->disk->file.fd, r->io + r->done, n, r->at + r->done);
    io_uring_sqe_set_data(sqe, r);
}

static void put_new(struct zt_disk_lane *l, struct zt_disk_work *w)
{
    struct zt_disk_request r;
    while (l->n_idle > 0 && zt_disk_cut(w, &r)) {
        const int i = l->idle[--l->n_idle];
        l->requests[i] = r;
        zt_disk_begin(w, &l->requests[i], l->bounce + (size_t)i * l->disk->o.block_bytes);
        put(l, w, i);
    }
}

/* Everything that has come back. After the first failure requests are only counted. */
static int take(struct zt_disk_lane *l, const struct zt_disk_work *w, int failed,
                struct zt_err *err)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&l->ring, &cqe) == 0) {
        const struct zt_disk_request *r = io_uring_cqe_get_data(cqe);
        const int i = (int)(r - l->requests), result = cqe->res;
        io_uring_cqe_seen(&l->ring, cqe);
        int rc = failed ? failed : zt_disk_result(w, &l->requests[i], result, err);
        if (rc == 0) {
            put(l, w, i);
            continue;
        }
        if (rc == 1)
            zt_disk_end(w, &l->requests[i]);
        else
            failed = rc;
        l->idle[l->n_idle++] = i;
    }
    return failed;
}

static int lane_run(struct zt_disk_lane *l, struct zt_disk_work *w, struct zt_err *err)
{
    const int depth = l->disk->o.queue_depth;
    int failed = 0;
    for (;;) {
        if (!failed)
            put_new(l, w);
        if (l->n_idle == depth)
            return failed;
        /* EAGAIN, EBUSY: the kernel is short of something; what is in flight will free it. */
        int rc = io_uring_submit_and_wait(&l->ring, 1);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
            /* The ring itself is broken: what it still holds is not known, so neither is the memory. */
            return zt_err_set(err, ZT_ESYS, "%s: io_uring_enter: %s",
                              zt_str_get(&l->disk->file.path), strerror(-rc));
        }
        failed = take(l, w, failed, err);
    }
}

const struct zt_disk_way zt_disk_uring = {
    .name = "io_uring", .create = lane_create, .free = lane_free, .run = lane_run};

#else

static int lane_create(struct zt_disk *d, struct zt_disk_lane **out, struct zt_err *err)
{
    (void)d;
    (void)out;
    return zt_err_set(err, ZT_EUNSUPPORTED, "this build is without liburing");
}

const struct zt_disk_way zt_disk_uring = {.name = "io_uring", .create = lane_create};
#endif
