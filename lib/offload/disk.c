#include "offload/disk.h"

#include <errno.h>

#include "base/arena.h"
#include "base/size.h"
#include "dev/queue.h"
#include "offload/disk_internal.h"

/* ---- requests ---- */

/* The last bytes of a range, less than a block, are one of their own, so that only they are copied. */
bool zt_disk_cut(struct zt_disk_work *w, struct zt_disk_request *r)
{
    while (w->range < w->n_ranges && w->done == w->ranges[w->range].bytes) {
        w->range++;
        w->done = 0;
    }
    if (w->range == w->n_ranges)
        return false;
    const struct zt_disk_range *range = &w->ranges[w->range];
    size_t n = ZT_MIN(range->bytes - w->done, w->disk->o.block_bytes);
    if (n > ZT_DISK_ALIGN)
        n -= n % ZT_DISK_ALIGN;
    *r = (struct zt_disk_request){
        .host = (unsigned char *)range->host + w->done, .bytes = n, .at = range->at + w->done};
    w->done += n;
    return true;
}

void zt_disk_begin(const struct zt_disk_work *w, struct zt_disk_request *r, unsigned char *bounce)
{
    const struct zt_disk_file *f = &w->disk->file;
    const size_t whole = zt_align_size(r->bytes, ZT_DISK_ALIGN);
    r->io = r->host;
    r->io_bytes = r->bytes;
    if (!f->direct || (r->bytes == whole && (uintptr_t)r->host % f->host_align == 0))
        return;
    r->io = bounce;
    r->io_bytes = whole;
    if (w->dir == ZT_DISK_READ)
        return;
    memcpy(bounce, r->host, r->bytes);
    memset(bounce + r->bytes, 0, whole - r->bytes);
}

void zt_disk_end(const struct zt_disk_work *w, struct zt_disk_request *r)
{
    if (w->dir == ZT_DISK_READ && r->io != r->host)
        memcpy(r->host, r->io, r->bytes);
}

/*
 * A short transfer goes on where it stopped; with direct I/O at the last whole block, of which the rest
 * is moved again. One that brings nothing forward would never end.
 */
int zt_disk_result(const struct zt_disk_work *w, struct zt_disk_request *r, int64_t result,
                   struct zt_err *err)
{
    const char *verb = w->dir == ZT_DISK_READ ? "reading" : "writing";
    const char *path = zt_str_get(&w->disk->file.path);
    if (result == -EINTR || result == -EAGAIN)
        return 0;
    if (result < 0)
        return zt_err_set(err, ZT_EIO, "%s: %s %zu bytes at %zu: %s", path, verb,
                          r->io_bytes - r->done, r->at + r->done, strerror((int)-result));
    size_t done = r->done + (size_t)result;
    if (w->disk->file.direct && done < r->io_bytes)
        done -= done % ZT_DISK_ALIGN;
    if (done == r->done)
        return zt_err_set(err, ZT_EIO, "%s: %s %zu bytes at %zu: only %lld were moved%s", path,
                          verb, r->io_bytes - r->done, r->at + r->done, (long long)result,
                          w->dir == ZT_DISK_READ ? "; the file was cut off" : "");
    r->done = done;
    return done == r->io_bytes;
}

/* ---- the store ---- */

static void free_lanes(struct zt_disk *d)
{
    for (int i = 0; i < ZT_N_DISK_DIRS; i++)
        if (d->lanes[i])
            d->way->free(d->lanes[i]);
    memset(d->lanes, 0, sizeof d->lanes);
}

static int make_lanes(struct zt_disk *d, const struct zt_disk_way *way, struct zt_err *err)
{
    int rc = 0;
    d->way = way;
    for (int i = 0; i < ZT_N_DISK_DIRS && !rc; i++)
        rc = way->create(d, &d->lanes[i], err);
    if (rc)
        free_lanes(d);
    return rc;
}

/*
 * io_uring, or a reason why not. Through the page cache it would hand its requests to threads of the
 * kernel: then our own do.
 */
static int try_uring(struct zt_disk *d, struct zt_err *why)
{
    if (d->o.backend == ZT_DISK_THREADS)
        return zt_err_set(why, ZT_EUNSUPPORTED, "threads were asked for");
    if (!d->file.direct)
        return zt_err_set(why, ZT_EUNSUPPORTED, "no direct I/O");
    return make_lanes(d, &zt_disk_uring, why);
}

static int choose_way(struct zt_disk *d, struct zt_err *err)
{
    struct zt_err why = {0};
    int rc = try_uring(d, &why);
    if (rc && (rc != ZT_EUNSUPPORTED || d->o.backend == ZT_DISK_URING)) {
        memcpy(err, &why, sizeof *err);
        return zt_err_wrap(err, "%s: io_uring", d->o.dir);
    }
    if (rc && make_lanes(d, &zt_disk_pool, err))
        return err->code;
    char size[32];
    zt_str_printf(&d->about, "%s on %s, ", zt_fmt_gb(size, sizeof size, (double)d->o.bytes),
                  d->o.dir);
    if (rc)
        zt_str_printf(&d->about, "pread and pwrite by %d thread%s each way, not io_uring (%s)",
                      d->o.n_threads, d->o.n_threads == 1 ? "" : "s", why.msg);
    else
        zt_str_printf(&d->about, "io_uring, %d requests each way", d->o.queue_depth);
    if (d->file.direct)
        zt_str_puts(&d->about, ", direct I/O");
    else
        zt_str_printf(&d->about, ", through the page cache (%s)", d->file.not_direct);
    return 0;
}

int zt_disk_open(const struct zt_disk_opts *o, struct zt_disk **out, struct zt_err *err)
{
    ZT_ASSERT(o->bytes > 0);
    ZT_ASSERT(o->block_bytes > 0 && o->block_bytes <= ZT_DISK_MAX_BLOCK &&
              o->block_bytes % ZT_DISK_ALIGN == 0);
    ZT_ASSERT(o->queue_depth >= 1 && o->queue_depth <= ZT_DISK_MAX_DEPTH);
    ZT_ASSERT(o->n_threads >= 1 && o->n_threads <= ZT_DISK_MAX_THREADS);
    struct zt_disk *d = zt_xcalloc(1, sizeof *d);
    d->o = *o;
    d->o.bytes = zt_align_size(o->bytes, ZT_DISK_ALIGN);
    d->o.dir = zt_xstrdup(o->dir);
    d->file.fd = -1;
    int rc = zt_disk_file_create(d->o.dir, d->o.bytes, &d->file, err);
    if (!rc)
        rc = choose_way(d, err);
    if (rc) {
        zt_disk_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void zt_disk_close(struct zt_disk *d)
{
    if (!d)
        return;
    free_lanes(d);
    zt_disk_file_remove(&d->file);
    zt_str_release(&d->about);
    free((char *)d->o.dir);
    free(d);
}

const char *zt_disk_describe(const struct zt_disk *d)
{
    return zt_str_get(&d->about);
}

int zt_disk_n_leftovers(const struct zt_disk *d)
{
    return d->file.n_leftovers;
}

const char *zt_disk_path(const struct zt_disk *d)
{
    return zt_str_get(&d->file.path);
}

int zt_disk_move(struct zt_disk *d, enum zt_disk_dir dir, const struct zt_disk_range *ranges, int n,
                 struct zt_err *err)
{
    for (int i = 0; i < n; i++) {
        ZT_ASSERT_CMP(ranges[i].at % ZT_DISK_ALIGN, ==, 0);
        ZT_ASSERT(ranges[i].bytes > 0 && ranges[i].bytes <= d->o.bytes);
        ZT_ASSERT_CMP(ranges[i].at, <=, d->o.bytes - ranges[i].bytes);
    }
    struct zt_disk_work w = {.disk = d, .dir = dir, .ranges = ranges, .n_ranges = n};
    return d->way->run(d->lanes[dir], &w, err);
}

struct move_task {
    struct zt_disk *disk;
    enum zt_disk_dir dir;
    int n;
    struct zt_disk_range ranges[ZT_DISK_MAX_RANGES];
};

static int run_move(void *arg, struct zt_err *err)
{
    const struct move_task *t = arg;
    return zt_disk_move(t->disk, t->dir, t->ranges, t->n, err);
}

void zt_disk_enqueue(struct zt_disk *d, struct zt_stream *s, enum zt_disk_dir dir,
                     const struct zt_disk_range *ranges, int n)
{
    struct move_task t = {.disk = d, .dir = dir, .n = n};
    ZT_ASSERT_CMP(n, <=, ZT_DISK_MAX_RANGES);
    memcpy(t.ranges, ranges, (size_t)n * sizeof *ranges);
    s->dev->ops->host_call(s, run_move, &t, sizeof t);
}
