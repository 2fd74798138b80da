#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/arena.h"
#include "offload/disk_internal.h"

/*
 * Threads that take the requests of one call after another. The caller waits; the lock is held only to
 * take a request and to say that it is over.
 */

struct zt_disk_lane {
    struct zt_disk *disk;
    pthread_mutex_t lock;
    pthread_cond_t wake, over; /* for the threads; for the caller */
    struct zt_disk_work *work; /* NULL: nothing to do */
    int n_busy;
    int failed; /* code of the first failure */
    struct zt_err err;
    bool stop;
    unsigned char *bounce; /* (n_threads, block_bytes) */
    int n_threads, n_numbered;
    pthread_t *threads;
};

static int transfer(const struct zt_disk_work *w, struct zt_disk_request *r, unsigned char *bounce,
                    struct zt_err *err)
{
    const int fd = w->disk->file.fd;
    int rc = 0;
    zt_disk_begin(w, r, bounce);
    while (!rc) {
        const size_t n = r->io_bytes - r->done;
        const off_t at = (off_t)(r->at + r->done);
        ssize_t moved = w->dir == ZT_DISK_READ ? pread(fd, r->io + r->done, n, at)
                                               : pwrite(fd, r->io + r->done, n, at);
        rc = zt_disk_result(w, r, moved < 0 ? -errno : moved, err);
    }
    if (rc < 0)
        return rc;
    zt_disk_end(w, r);
    return 0;
}

static void *serve(void *arg)
{
    struct zt_disk_lane *l = arg;
    struct zt_disk_request r;
    struct zt_err err;
    pthread_mutex_lock(&l->lock);
    unsigned char *bounce = l->bounce + (size_t)l->n_numbered++ * l->disk->o.block_bytes;
    while (!l->stop) {
        if (!l->work || l->failed || !zt_disk_cut(l->work, &r)) {
            pthread_cond_wait(&l->wake, &l->lock);
            continue;
        }
        l->n_busy++;
        const struct zt_disk_work *w = l->work;
        pthread_mutex_unlock(&l->lock);
        int rc = transfer(w, &r, bounce, &err);
        pthread_mutex_lock(&l->lock);
        if (rc && !l->failed) {
            l->failed = rc;
            memcpy(&l->err, &err, sizeof err);
        }
        l->n_busy--;
        pthread_cond_signal(&l->over);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static bool all_taken(const struct zt_disk_work *w)
{
    return w->range == w->n_ranges ||
           (w->range == w->n_ranges - 1 && w->done == w->ranges[w->range].bytes);
}

static int lane_run(struct zt_disk_lane *l, struct zt_disk_work *w, struct zt_err *err)
{
    pthread_mutex_lock(&l->lock);
    l->work = w;
    l->failed = 0;
    pthread_cond_broadcast(&l->wake);
    while (l->n_busy > 0 || !(l->failed || all_taken(w)))
        pthread_cond_wait(&l->over, &l->lock);
    l->work = NULL;
    const int rc = l->failed;
    if (rc)
        memcpy(err, &l->err, sizeof *err);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

static void lane_free(struct zt_disk_lane *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_threads; i++)
        pthread_join(l->threads[i], NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->wake);
    pthread_cond_destroy(&l->over);
    free(l->bounce);
    free(l->threads);
    free(l);
}

static int start_threads(struct zt_disk_lane *l, int n, struct zt_err *err)
{
    sigset_t all, old;
    int rc = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (!rc && l->n_threads < n) {
        rc = pthread_create(&l->threads[l->n_threads], NULL, serve, l);
        if (!rc)
            pthread_setname_np(l->threads[l->n_threads++], "disk-pool");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? zt_err_set(err, ZT_ESYS, "cannot start a thread for the disk: %s", strerror(rc))
              : 0;
}

static int lane_create(struct zt_disk *d, struct zt_disk_lane **out, struct zt_err *err)
{
    const int n = d->o.n_threads;
    struct zt_disk_lane *l = zt_xcalloc(1, sizeof *l);
    l->disk = d;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    pthread_cond_init(&l->over, NULL);
    l->threads = zt_xcalloc((size_t)n, sizeof *l->threads);
    l->bounce = zt_disk_alloc_bounce(d, n);
    int rc = l->bounce ? start_threads(l, n, err)
                       : zt_err_set(err, ZT_ENOMEM, "no memory for %d requests of %zu bytes", n,
                                    d->o.block_bytes);
    if (rc) {
        lane_free(l);
        return rc;
    }
    *out = l;
    return 0;
}

const struct zt_disk_way zt_disk_pool = {
    .name = "threads", .create = lane_create, .free = lane_free, .run = lane_run};
