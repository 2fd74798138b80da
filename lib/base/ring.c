#include "base/ring.h"

#include <sys/mman.h>

#include "base/arena.h"
#include "base/size.h"
#include "base/thread.h"

struct result {
    int64_t job; /* the last one that is over; below 0: none */
    struct zt_err err;
};

struct zt_ring {
    struct zt_ring_opts o;
    unsigned char *slots; /* (n_slots, slot_bytes), in the mapping */
    void *mapping;
    size_t mapped;
    pthread_mutex_t lock;
    pthread_cond_t allowed, over;
    int64_t next, end; /* jobs [next, end) may begin */
    bool stop;
    struct result *results; /* (n_slots) */
    pthread_t *threads;     /* (o.n_threads), of which n_threads were started */
    int n_threads;
};

static void *serve(void *arg)
{
    struct zt_ring *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (r->next == r->end) {
            pthread_cond_wait(&r->allowed, &r->lock);
            continue;
        }
        const int64_t i = r->next++;
        struct result *result = &r->results[i % r->o.n_slots];
        pthread_mutex_unlock(&r->lock);
        result->err.code = 0;
        const int rc = r->o.work(r->o.ctx, i, zt_ring_slot(r, i), &result->err);
        pthread_mutex_lock(&r->lock);
        result->err.code = rc;
        result->job = i;
        pthread_cond_signal(&r->over);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/*
 * Mapped, not of malloc: it goes back to the system with the ring. In huge pages where there are some: a
 * direct transfer holds every page that it moves, and with small ones has half the rate. Buffers smaller than such
 * a page are left to small ones, of which they take what they need.
 */
static int map_slots(struct zt_ring *r, struct zt_err *err)
{
    const size_t stride = zt_align_size(r->o.slot_bytes, ZT_RING_ALIGN);
    size_t bytes;
    if (!zt_mul_size((size_t)r->o.n_slots, stride, &bytes) ||
        !zt_add_size(bytes, ZT_HUGE_PAGE_BYTES, &r->mapped))
        return zt_err_set(err, ZT_ENOMEM, "%d buffers of %zu bytes", r->o.n_slots, stride);
    r->o.slot_bytes = stride;
    void *p = mmap(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return zt_err_errno(err, ZT_ENOMEM, "%d buffers of %zu bytes", r->o.n_slots, stride);
    r->mapping = p;
    r->slots = (unsigned char *)p + (ZT_HUGE_PAGE_BYTES - (uintptr_t)p % ZT_HUGE_PAGE_BYTES);
    if (stride >= ZT_HUGE_PAGE_BYTES)
        madvise(r->slots, bytes, MADV_HUGEPAGE); /* advice: small pages work too */
    return 0;
}

int zt_ring_create(const struct zt_ring_opts *o, struct zt_ring **out, struct zt_err *err)
{
    ZT_ASSERT(o->n_slots >= 1 && o->n_threads >= 1);
    struct zt_ring *r = zt_xcalloc(1, sizeof *r);
    r->o = *o;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->allowed, NULL);
    pthread_cond_init(&r->over, NULL);
    r->results = zt_xcalloc((size_t)o->n_slots, sizeof *r->results);
    r->threads = zt_xcalloc((size_t)o->n_threads, sizeof *r->threads);
    for (int i = 0; i < o->n_slots; i++)
        r->results[i].job = -1;
    int rc = map_slots(r, err);
    while (!rc && r->n_threads < o->n_threads) {
        rc = zt_thread_start(&r->threads[r->n_threads], o->name, serve, r, err);
        r->n_threads += !rc;
    }
    if (rc) {
        zt_ring_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void zt_ring_free(struct zt_ring *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->allowed);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->allowed);
    pthread_cond_destroy(&r->over);
    if (r->mapping)
        munmap(r->mapping, r->mapped);
    free(r->results);
    free(r->threads);
    free(r);
}

int zt_ring_n_slots(const struct zt_ring *r)
{
    return r->o.n_slots;
}

unsigned char *zt_ring_slot(struct zt_ring *r, int64_t i)
{
    return r->slots + (size_t)(i % r->o.n_slots) * r->o.slot_bytes;
}

void zt_ring_allow(struct zt_ring *r, int64_t end)
{
    pthread_mutex_lock(&r->lock);
    for (; r->end < end; r->end++)
        pthread_cond_signal(&r->allowed); /* one thread for each */
    pthread_mutex_unlock(&r->lock);
}

int zt_ring_wait(struct zt_ring *r, int64_t i, struct zt_err *err)
{
    const struct result *result = &r->results[i % r->o.n_slots];
    pthread_mutex_lock(&r->lock);
    ZT_ASSERT_CMP(i, <, r->end);
    while (result->job != i)
        pthread_cond_wait(&r->over, &r->lock);
    const int rc = result->err.code;
    if (rc)
        *err = result->err;
    pthread_mutex_unlock(&r->lock);
    return rc;
}
