#include "device.h"

#include <sched.h>

#include "base/arena.h"
#include "dev/sanitize.h"

/*
 * Records by position in the queue, modulo EVENTS: a slot is recorded again only when its last record is
 * complete. CALLS: arguments of host calls that are not over.
 */
enum { EVENTS = 1024, CALLS = 256, FAILURE_NONE = 0, FAILURE_BEING_SET, FAILURE_SET };

/*
 * `users` are about to wait for the event, or do. Who records it again first says so in `seq`, then waits
 * for them to be gone; who comes later sees that the record it wants is complete. So nobody waits for
 * a later record than it means.
 */
struct slot {
    _Atomic uint64_t seq; /* position of the last record; 0: none, or being recorded again */
    _Atomic uint32_t users;
    cudaEvent_t event;
};

struct call {
    _Alignas(16) unsigned char arg[ZT_TASK_ARG_BYTES];
    zt_host_fn fn;
    struct zt_cuda_dev *dev;
    _Atomic bool busy; /* submitted and not over */
};

struct cuda_stream {
    struct zt_cuda_ctx ctx;
    uint64_t recorded; /* the producer's: position of its last record */
    uint64_t n_calls;
    struct zt_cuda_products *products;
    struct slot events[EVENTS];
    struct call calls[CALLS];
};

static struct cuda_stream *impl(const struct zt_stream *s)
{
    return s->impl;
}

static struct zt_cuda_dev *dev_of(const struct zt_stream *s)
{
    return (struct zt_cuda_dev *)s->dev;
}

const struct zt_cuda_ctx *zt_cuda_ctx_of(const struct zt_stream *s)
{
    return &impl(s)->ctx;
}

struct zt_cuda_products *zt_cuda_products_of(const struct zt_stream *s)
{
    return impl(s)->products;
}

int zt_cuda_check(const struct zt_stream *s, cudaError_t e, const char *what, struct zt_err *err)
{
    const struct zt_cuda_dev *d = dev_of(s);
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); /* the message is taken; what comes next is judged anew */
    return zt_err_set(err, e == cudaErrorMemoryAllocation ? ZT_ENOMEM : ZT_EDEVICE,
                      "GPU %d (%s), stream %s: %s: %s: %s", d->index, d->name, s->name, what,
                      cudaGetErrorName(e), cudaGetErrorString(e));
}

/* ---- failures ---- */

void zt_cuda_fail(struct zt_cuda_dev *d, int code, const struct zt_err *why)
{
    int none = FAILURE_NONE;
    if (!atomic_compare_exchange_strong(&d->failed, &none, FAILURE_BEING_SET))
        return;
    d->failure = *why;
    d->failure.code = code;
    atomic_store(&d->failed, FAILURE_SET);
}

static int host_failure(const struct zt_cuda_dev *d, struct zt_err *err)
{
    if (atomic_load(&d->failed) != FAILURE_SET)
        return 0;
    *err = d->failure;
    return err->code;
}

/* What kernels have found wrong with their input so far, on any stream. */
static int kernel_fault(const struct zt_cuda_dev *d, struct zt_err *err)
{
    for (int i = 0; i < ZT_CUDA_MAX_STREAMS; i++) {
        const struct zt_cuda_fault *f = &d->faults[i];
        if (__atomic_load_n(&f->kind, __ATOMIC_ACQUIRE) == ZT_FAULT_TARGET)
            return zt_err_set(err, ZT_EINPUT,
                              "cross_entropy: row %lld has target %d, outside the vocabulary",
                              (long long)f->place, (int)f->value);
    }
    return 0;
}

/* ---- tasks ---- */

struct task {
    _Alignas(16) unsigned char arg[ZT_TASK_ARG_BYTES];
    zt_task_fn fn;
};
_Static_assert(sizeof(struct task) <= ZT_QUEUE_ARG_BYTES, "a task fits the ring");

static int run_task(struct zt_stream *s, void *arg, struct zt_err *err)
{
    struct task *t = arg;
    int rc = host_failure(dev_of(s), err);
    return rc ? rc : t->fn(s, t->arg, err);
}

void zt_cuda_push(struct zt_stream *s, zt_task_fn fn, const void *arg, size_t arg_bytes)
{
    struct task t = {.fn = fn};
    ZT_ASSERT_CMP(arg_bytes, <=, ZT_TASK_ARG_BYTES);
    if (arg_bytes)
        memcpy(t.arg, arg, arg_bytes);
    zt_stream_push(s, run_task, &t, sizeof t);
}

/* ---- events ---- */

/*
 * Sequentially consistent, and invisible to ThreadSanitizer: that a slot is taken for another record
 * orders nothing that the caller asked for.
 */
ZT_NO_TSAN static bool slot_hold(struct slot *slot, uint64_t seq)
{
    atomic_fetch_add(&slot->users, 1);
    if (atomic_load(&slot->seq) == seq)
        return true;
    atomic_fetch_sub(&slot->users, 1);
    return false;
}

ZT_NO_TSAN static void slot_let_go(struct slot *slot)
{
    atomic_fetch_sub(&slot->users, 1);
}

/* The users that there may still be only wait for what is complete, or are in a call that returns. */
ZT_NO_TSAN static void slot_take(struct slot *slot)
{
    atomic_store(&slot->seq, 0);
    while (atomic_load(&slot->users))
        sched_yield();
}

ZT_NO_TSAN static void slot_set(struct slot *slot, uint64_t seq)
{
    atomic_store(&slot->seq, seq);
}

static struct slot *slot_of(struct zt_event e)
{
    return &impl(e.stream)->events[e.seq % EVENTS];
}

static int run_record(struct zt_stream *s, void *arg, struct zt_err *err)
{
    struct zt_event e = {s, *(const uint64_t *)arg};
    struct slot *slot = slot_of(e);
    cudaError_t rc = cudaSuccess;
    if (e.seq > EVENTS) /* its last record, if there was one */
        rc = cudaEventSynchronize(slot->event);
    if (rc == cudaSuccess) {
        slot_take(slot);
        rc = cudaEventRecord(slot->event, impl(s)->ctx.stream);
        slot_set(slot, e.seq);
    }
    return zt_cuda_check(s, rc, "cudaEventRecord", err);
}

/* Nothing enqueued since the last record: its event says it all. */
struct zt_event zt_cuda_record(struct zt_stream *s)
{
    struct cuda_stream *c = impl(s);
    struct zt_event last = zt_stream_record(s);
    if (last.seq == c->recorded)
        return last;
    c->recorded = last.seq + 1;
    zt_stream_push(s, run_record, &c->recorded, sizeof c->recorded);
    return (struct zt_event){s, c->recorded};
}

/*
 * The thread waits until the record is submitted; then the cudaStream, if it is one of this device, or
 * the thread until it is complete.
 */
static int run_wait(struct zt_stream *s, void *arg, struct zt_err *err)
{
    const struct zt_event *e = arg;
    if (e->stream->dev != s->dev)
        return e->stream->dev->ops->sync(*e, err);
    int rc = zt_stream_sync(*e, err);
    if (rc)
        return rc;
    struct slot *slot = slot_of(*e);
    cudaError_t cu = cudaSuccess;
    if (slot_hold(slot, e->seq)) {
        cu = cudaStreamWaitEvent(impl(s)->ctx.stream, slot->event, 0);
        slot_let_go(slot);
    }
    return zt_cuda_check(s, cu, "cudaStreamWaitEvent", err);
}

void zt_cuda_wait(struct zt_stream *s, struct zt_event e)
{
    if (e.stream && e.stream != s && e.seq)
        zt_stream_push(s, run_wait, &e, sizeof e);
}

int zt_cuda_sync(struct zt_event e, struct zt_err *err)
{
    if (!e.stream || !e.seq)
        return 0;
    int rc = zt_stream_sync(e, err);
    if (rc)
        return rc;
    struct slot *slot = slot_of(e);
    cudaError_t cu = cudaSuccess;
    if (slot_hold(slot, e.seq)) {
        cu = cudaEventSynchronize(slot->event);
        slot_let_go(slot);
    }
    rc = zt_cuda_check(e.stream, cu, "while its work was waited for", err);
    if (!rc)
        rc = host_failure(dev_of(e.stream), err);
    return rc ? rc : kernel_fault(dev_of(e.stream), err);
}

/* ---- host calls ---- */

/* On a thread of CUDA's. After a failure of any of them the others are not made. */
static void CUDART_CB make_call(void *arg)
{
    struct call *call = arg;
    struct zt_err err;
    int rc = host_failure(call->dev, &err) ? 0 : call->fn(call->arg, &err);
    if (rc)
        zt_cuda_fail(call->dev, rc, &err);
    atomic_store(&call->busy, false);
}

struct host_task {
    _Alignas(16) unsigned char arg[ZT_TASK_ARG_BYTES];
    zt_host_fn fn;
};
_Static_assert(sizeof(struct host_task) <= ZT_QUEUE_ARG_BYTES, "a host call fits the ring");

static int run_host_call(struct zt_stream *s, void *arg, struct zt_err *err)
{
    struct cuda_stream *c = impl(s);
    const struct host_task *t = arg;
    struct call *call = &c->calls[c->n_calls++ % CALLS];
    int rc = host_failure(dev_of(s), err);
    if (!rc && atomic_load(&call->busy))
        rc = zt_cuda_check(s, cudaStreamSynchronize(c->ctx.stream), "cudaStreamSynchronize", err);
    if (rc)
        return rc;
    memcpy(call->arg, t->arg, sizeof call->arg);
    call->fn = t->fn;
    call->dev = dev_of(s);
    atomic_store(&call->busy, true);
    return zt_cuda_check(s, cudaLaunchHostFunc(c->ctx.stream, make_call, call),
                         "cudaLaunchHostFunc", err);
}

void zt_cuda_host_call(struct zt_stream *s, zt_host_fn fn, const void *arg, size_t arg_bytes)
{
    struct host_task t = {.fn = fn};
    ZT_ASSERT_CMP(arg_bytes, <=, ZT_TASK_ARG_BYTES);
    if (arg_bytes)
        memcpy(t.arg, arg, arg_bytes);
    zt_stream_push(s, run_host_call, &t, sizeof t);
}

/* ---- lifetime ---- */

/* Each thread that submits says once which device it means. */
static int set_device(struct zt_stream *s, void *arg, struct zt_err *err)
{
    (void)arg;
    return zt_cuda_check(s, cudaSetDevice(dev_of(s)->index), "cudaSetDevice", err);
}

static cudaError_t create_events(struct cuda_stream *c)
{
    const unsigned int flags = cudaEventDisableTiming | cudaEventBlockingSync;
    cudaError_t rc = cudaSuccess;
    for (int i = 0; i < EVENTS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&c->events[i].event, flags);
    return rc;
}

static void release(struct cuda_stream *c)
{
    for (int i = 0; i < EVENTS; i++)
        if (c->events[i].event)
            cudaEventDestroy(c->events[i].event);
    if (c->ctx.stream)
        cudaStreamDestroy(c->ctx.stream);
    if (c->ctx.scratch)
        cudaFree(c->ctx.scratch);
    zt_cuda_products_free(c->products);
    free(c);
}

/* The stream's place among the device's faults, as the device sees it. */
static cudaError_t take_fault(struct zt_cuda_dev *d, struct zt_cuda_fault **out)
{
    int i = atomic_fetch_add(&d->n_streams, 1);
    ZT_ASSERT_CMP(i, <, ZT_CUDA_MAX_STREAMS);
    return cudaHostGetDevicePointer((void **)out, &d->faults[i], 0);
}

cudaError_t zt_cuda_make_stream(cudaStream_t *out, bool urgent)
{
    int least, greatest;
    cudaError_t cu = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (cu == cudaSuccess)
        cu = cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, urgent ? greatest : least);
    return cu;
}

int zt_cuda_stream_create(struct zt_dev *base, const char *name, int n_threads,
                          struct zt_stream **out, struct zt_err *err)
{
    struct zt_cuda_dev *d = (struct zt_cuda_dev *)base;
    struct cuda_stream *c = zt_xcalloc(1, sizeof *c);
    c->products = zt_cuda_products_create(d);
    c->ctx.n_sms = d->n_sms;
    c->ctx.smem_bytes = d->smem_bytes;
    c->ctx.large = &d->large;
    cudaError_t cu = cudaSetDevice(d->index);
    if (cu == cudaSuccess)
        cu = zt_cuda_make_stream(&c->ctx.stream, strcmp(name, "comm") == 0);
    if (cu == cudaSuccess)
        cu = create_events(c);
    if (cu == cudaSuccess)
        cu = cudaMalloc(&c->ctx.scratch, ZT_CUDA_SCRATCH_BYTES);
    if (cu == cudaSuccess)
        cu = take_fault(d, &c->ctx.fault);
    int rc = zt_cuda_check_dev(d, cu, "creating a stream", err);
    if (!rc)
        rc = zt_stream_create(base, name, n_threads, out, err);
    if (rc) {
        release(c);
        return rc;
    }
    (*out)->impl = c;
    zt_stream_push(*out, set_device, NULL, 0);
    return 0;
}

void zt_cuda_stream_free(struct zt_stream *s)
{
    if (!s)
        return;
    struct cuda_stream *c = impl(s);
    zt_stream_free(s);
    cudaStreamSynchronize(c->ctx.stream); /* host calls use c; what failed is known */
    release(c);
}
