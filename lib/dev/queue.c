#include "dev/queue.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/cpu.h"
#include "base/thread.h"
#include "dev/sanitize.h"

enum {
    CACHE_LINE = 64,
    SPINS = 50, /* 1 to 3 us: who spins longer keeps the core from the thread it waits for */
    FAILURE_NONE = 0,
};

/*
 * A position that only grows, with threads that wait for it to reach theirs. `wake_at` is the
 * lowest position that a sleeper wants, so that passing others costs no system call.
 */
struct gate {
    _Alignas(CACHE_LINE) _Atomic uint64_t pos;
    _Atomic uint64_t wake_at;
    _Atomic uint32_t epoch; /* the futex; changes whenever sleepers must look again */
};

struct slot {
    _Alignas(CACHE_LINE) unsigned char arg[ZT_QUEUE_ARG_BYTES];
    zt_task_fn fn; /* NULL: the thread ends */
    /* Only its address: names the edge from this task to those who wait for it. */
    unsigned char done;
};

struct zt_queue {
    struct gate pushed, done;
    uint64_t n_pushed;         /* the producer's */
    _Atomic uint64_t fail_pos; /* position of the task that failed; FAILURE_NONE */
    struct zt_err err;         /* written once, before fail_pos */
    pthread_t thread;
    struct slot ring[ZT_QUEUE_TASKS];
};

static struct slot *slot_of(struct zt_queue *q, uint64_t pos)
{
    return &q->ring[(pos - 1) % ZT_QUEUE_TASKS];
}

/* ---- gates: sequentially consistent throughout, and invisible to ThreadSanitizer ---- */

ZT_NO_TSAN static void gate_init(struct gate *g)
{
    atomic_init(&g->pos, 0);
    atomic_init(&g->wake_at, UINT64_MAX);
    atomic_init(&g->epoch, 0);
}

ZT_NO_TSAN static uint64_t gate_pos(struct gate *g)
{
    return atomic_load(&g->pos);
}

ZT_NO_TSAN static void gate_advance(struct gate *g, uint64_t pos)
{
    atomic_store(&g->pos, pos);
    if (pos < atomic_load(&g->wake_at))
        return;
    atomic_store(&g->wake_at, UINT64_MAX);
    atomic_fetch_add(&g->epoch, 1);
    syscall(SYS_futex, &g->epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/*
 * The epoch is read before wake_at is lowered: if gate_advance() wipes our request out, it changes
 * the epoch afterwards, and the futex call returns at once.
 */
ZT_NO_TSAN static void gate_wait(struct gate *g, uint64_t pos)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&g->pos) >= pos)
            return;
        zt_cpu_relax();
    }
    for (;;) {
        uint32_t epoch = atomic_load(&g->epoch);
        uint64_t lowest = atomic_load(&g->wake_at);
        while (pos < lowest && !atomic_compare_exchange_weak(&g->wake_at, &lowest, pos))
            ;
        if (atomic_load(&g->pos) >= pos)
            return;
        syscall(SYS_futex, &g->epoch, FUTEX_WAIT_PRIVATE, epoch, NULL, NULL, 0);
    }
}

ZT_NO_TSAN static void set_failed(struct zt_queue *q, uint64_t pos)
{
    atomic_store(&q->fail_pos, pos);
}

ZT_NO_TSAN static bool failed_by(struct zt_queue *q, uint64_t pos)
{
    uint64_t at = atomic_load(&q->fail_pos);
    return at != FAILURE_NONE && at <= pos;
}

/* ---- the consumer ---- */

static void *consume(void *arg)
{
    struct zt_stream *s = arg;
    struct zt_queue *q = s->queue;
    bool failed = false, stop = false;
    for (uint64_t pos = 1; !stop; pos++) {
        struct slot *slot = slot_of(q, pos);
        gate_wait(&q->pushed, pos);
        zt_tsan_acquire(&slot->fn);
        stop = !slot->fn;
        if (!stop && !failed) {
            int rc = slot->fn(s, slot->arg, &q->err);
            if (rc) {
                failed = true;
                q->err.code = rc;
                set_failed(q, pos);
            }
        }
        zt_tsan_release(&slot->done);
        gate_advance(&q->done, pos);
    }
    return NULL;
}

/* ---- the producer ---- */

void zt_stream_push(struct zt_stream *s, zt_task_fn fn, const void *arg, size_t arg_bytes)
{
    struct zt_queue *q = s->queue;
    ZT_ASSERT_CMP(arg_bytes, <=, ZT_QUEUE_ARG_BYTES);
    uint64_t pos = ++q->n_pushed;
    if (pos - gate_pos(&q->done) > ZT_QUEUE_TASKS)
        gate_wait(&q->done, pos - ZT_QUEUE_TASKS / 2); /* half empty: not a switch a task */
    struct slot *slot = slot_of(q, pos);
    zt_tsan_ignore_writes_begin(); /* the consumer has read the slot's last task; no edge says so */
    slot->fn = fn;
    if (arg_bytes)
        memcpy(slot->arg, arg, arg_bytes);
    zt_tsan_ignore_writes_end();
    zt_tsan_release(&slot->fn);
    gate_advance(&q->pushed, pos);
}

struct zt_event zt_stream_record(struct zt_stream *s)
{
    return (struct zt_event){s, s->queue->n_pushed};
}

int zt_stream_sync(struct zt_event e, struct zt_err *err)
{
    if (!e.stream || e.seq == 0)
        return 0;
    struct zt_queue *q = e.stream->queue;
    gate_wait(&q->done, e.seq);
    zt_tsan_acquire(&slot_of(q, e.seq)->done);
    if (!failed_by(q, e.seq))
        return 0;
    memcpy(err, &q->err, sizeof *err);
    return err->code;
}

static int run_wait(struct zt_stream *s, void *arg, struct zt_err *err)
{
    (void)s;
    const struct zt_event *e = arg;
    return e->stream->dev->ops->sync(*e, err);
}

void zt_stream_wait(struct zt_stream *s, struct zt_event e)
{
    if (e.stream && e.stream != s && e.seq)
        zt_stream_push(s, run_wait, &e, sizeof e);
}

struct host_task {
    _Alignas(16) unsigned char arg[ZT_TASK_ARG_BYTES];
    zt_host_fn fn;
};
_Static_assert(sizeof(struct host_task) <= ZT_QUEUE_ARG_BYTES, "a host call fits the ring");

static int run_host(struct zt_stream *s, void *arg, struct zt_err *err)
{
    (void)s;
    struct host_task *t = arg;
    return t->fn(t->arg, err);
}

void zt_stream_host_call(struct zt_stream *s, zt_host_fn fn, const void *arg, size_t arg_bytes)
{
    struct host_task t = {.fn = fn};
    ZT_ASSERT_CMP(arg_bytes, <=, ZT_TASK_ARG_BYTES);
    if (arg_bytes)
        memcpy(t.arg, arg, arg_bytes);
    zt_stream_push(s, run_host, &t, sizeof t);
}

/* ---- lifetime ---- */

int zt_stream_create(struct zt_dev *dev, const char *name, int n_threads, struct zt_stream **out,
                     struct zt_err *err)
{
    ZT_ASSERT_CMP(n_threads, >=, 1);
    struct zt_stream *s = zt_xcalloc(1, sizeof *s);
    s->dev = dev;
    s->n_threads = n_threads;
    snprintf(s->name, sizeof s->name, "%s", name);
    struct zt_queue *q = aligned_alloc(CACHE_LINE, sizeof *q);
    if (!q) {
        free(s);
        return zt_err_set(err, ZT_ENOMEM, "stream %s: no memory for its queue", name);
    }
    memset(q, 0, sizeof *q);
    gate_init(&q->pushed);
    gate_init(&q->done);
    atomic_init(&q->fail_pos, FAILURE_NONE);
    s->queue = q;
    if (zt_thread_start(&q->thread, s->name, consume, s, err)) {
        free(q);
        free(s);
        return zt_err_wrap(err, "stream %s", name);
    }
    *out = s;
    return 0;
}

void zt_stream_free(struct zt_stream *s)
{
    if (!s)
        return;
    zt_stream_push(s, NULL, NULL, 0);
    pthread_join(s->queue->thread, NULL);
    free(s->queue);
    free(s);
}
