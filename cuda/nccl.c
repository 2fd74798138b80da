/*
 * nccl.c: collectives by NCCL: joining, host calls, failures, the end. One communicator for each group of
 * the mesh that differs from the others, split from that of the world, and non-blocking: no call of
 * NCCL's holds a thread, each is polled until it is settled.
 *
 * Threads: communicators are used under `lock`, which is not held while a call is polled. Each
 * communicator's calls are issued in the order in which they were enqueued (`turn`).
 */
#include <sched.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/size.h"
#include "base/thread.h"
#include "nccl_coll.h"

enum {
    WATCH_MS = 100, /* asynchronous errors are looked for this often */
    POLL_US = 50,   /* that long a call is polled without a pause, then that often */
};

static struct nccl_coll *coll_of(struct zt_coll *base)
{
    return (struct nccl_coll *)base;
}

struct nccl_group *zt_nccl_group_of(struct nccl_coll *c, zt_axes group)
{
    struct nccl_group *comm = &c->comms[group & c->wide_axes];
    return comm->n ? comm : NULL;
}

/* ---- results ---- */

static int code_of(ncclResult_t r)
{
    return r == ncclRemoteError ? ZT_EPEER : ZT_EDEVICE;
}

/* What NCCL says of a failure; `comm` may be NULL. */
static void reason(char *out, size_t bytes, ncclResult_t r, ncclComm_t comm)
{
    const char *last = ncclGetLastError(comm);
    bool more = last && *last;
    snprintf(out, bytes, "%s%s%s", ncclGetErrorString(r), more ? ": " : "", more ? last : "");
}

int zt_nccl_lost(const struct nccl_task *t, struct zt_err *err)
{
    return zt_err_set(err, ZT_EPEER, "%s #%u of %lld elements over the axes %#x: aborted",
                      zt_call_name(t->call.kind), t->seq, (long long)t->call.count, t->call.group);
}

/* With the lock held. */
static void wait_a_moment(struct nccl_coll *c, long us)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until); /* as `changed` has it */
    until.tv_nsec += us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

/* With the lock held. */
static void let_others(struct nccl_coll *c)
{
    pthread_mutex_unlock(&c->lock);
    sched_yield();
    pthread_mutex_lock(&c->lock);
}

/* Most calls are taken within microseconds; a sleep is as long as the kernel's timer slack at least. */
ncclResult_t zt_nccl_settle(struct nccl_coll *c, struct nccl_group *comm, ncclResult_t r)
{
    const int64_t until_ns = zt_now_ns() + POLL_US * 1000;
    while (r == ncclInProgress) {
        if (zt_now_ns() < until_ns)
            let_others(c);
        else
            wait_a_moment(c, POLL_US);
        if (c->aborted)
            return ncclRemoteError;
        ncclResult_t state = ncclSuccess;
        r = ncclCommGetAsyncError(comm->nccl, &state);
        if (r == ncclSuccess)
            r = state;
    }
    return r;
}

/* ---- failures ---- */

static void abort_comm(struct nccl_group *comm)
{
    if (comm->nccl)
        ncclCommAbort(comm->nccl);
    comm->nccl = NULL;
}

/* Ends what is on the GPU; with the lock held. Peers find out by themselves, or by our process's end. */
static void abort_comms(struct nccl_coll *c, const struct zt_err *why)
{
    if (c->aborted)
        return;
    c->aborted = true;
    zt_cuda_fail(c->dev, why->code, why); /* what is under way ends without an error of its own */
    for (int i = 0; i < COLL_N_COMMS; i++)
        if (i != (int)c->wide_axes)
            abort_comm(&c->comms[i]);
    abort_comm(&c->comms[c->wide_axes]); /* the parent last */
    pthread_cond_broadcast(&c->changed);
}

static int failed(const struct nccl_task *t, ncclResult_t r, struct zt_err *err)
{
    char why[512];
    cudaError_t cu = r == ncclUnhandledCudaError ? cudaGetLastError() : cudaSuccess;
    if (t->c->aborted)
        return zt_nccl_lost(t, err);
    if (cu != cudaSuccess)
        snprintf(why, sizeof why, "%s: %s", cudaGetErrorName(cu), cudaGetErrorString(cu));
    else
        reason(why, sizeof why, r, t->comm->nccl);
    return zt_err_set(err, code_of(r),
                      "rank %d, GPU %d: %s #%u of %lld elements, %s, over the axes %#x by NCCL: %s",
                      t->c->base.rank, t->c->dev->index, zt_call_name(t->call.kind), t->seq,
                      (long long)t->call.count, zt_dtype_name(t->call.dtype), t->call.group, why);
}

/* A communicator is in an error that no call gave: tell, and end. */
static bool tell_async_errors(struct nccl_coll *c)
{
    for (int i = 0; i < COLL_N_COMMS; i++) {
        struct nccl_group *comm = &c->comms[i];
        ncclResult_t state = ncclSuccess;
        if (!comm->nccl)
            continue;
        ncclResult_t r = ncclCommGetAsyncError(comm->nccl, &state);
        r = r == ncclSuccess ? state : r;
        if (r == ncclSuccess || r == ncclInProgress)
            continue;
        char why[512];
        struct zt_err err;
        reason(why, sizeof why, r, comm->nccl);
        err.code =
            zt_err_set(&err, code_of(r),
                       "rank %d, GPU %d: NCCL over the axes %#x has failed; its last call "
                       "was %s #%u of %lld elements: %s",
                       c->base.rank, c->dev->index, comm->group, comm->last ? comm->last : "none,",
                       comm->turn, (long long)comm->last_count, why);
        pthread_mutex_unlock(&c->lock);
        c->fatal(c->fatal_ctx, &err);
        pthread_mutex_lock(&c->lock);
        return true;
    }
    return false;
}

static void *watch(void *arg)
{
    struct nccl_coll *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->closing && !c->aborted && !tell_async_errors(c))
        wait_a_moment(c, WATCH_MS * 1000L);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int zt_nccl_run_in_turn(const struct nccl_task *t, const struct zt_cuda_ctx *ctx,
                        struct zt_err *err)
{
    struct nccl_coll *c = t->c;
    struct nccl_group *comm = t->comm;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    while (comm->turn != t->seq - 1 && !c->aborted)
        pthread_cond_wait(&c->changed, &c->lock);
    if (c->aborted) {
        rc = zt_nccl_lost(t, err);
    } else {
        comm->last = zt_call_name(t->call.kind);
        comm->last_count = t->call.count;
        ncclResult_t r = zt_nccl_issue(t, ctx);
        if (r != ncclSuccess)
            rc = failed(t, r, err);
        comm->turn++;
        pthread_cond_broadcast(&c->changed);
        if (rc)
            abort_comms(c, err);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ---- host calls ---- */

/* Everybody learns whether anybody met an error in `status`, and who. */
static int agree(struct nccl_coll *c, const char *what, int status, struct zt_err *err)
{
    const struct zt_cuda_ctx ctx = {.stream = c->stream};
    struct nccl_task t = {
        .c = c,
        .comm = zt_nccl_group_of(c, ZT_GROUP_WORLD),
        .call = {.kind = ZT_BARRIER,
                 .group = ZT_GROUP_WORLD,
                 .dtype = ZT_I32,
                 .recv_dtype = ZT_I32,
                 .redop = ZT_MAX,
                 .count = 1,
                 .send = c->status,
                 .recv = c->status},
    };
    struct zt_err met;
    int32_t word = status ? -status << 16 | c->base.rank : 0;
    t.seq = atomic_fetch_add(&t.comm->enqueued, 1) + 1;
    cudaError_t cu = cudaSetDevice(c->dev->index);
    if (cu == cudaSuccess)
        cu = cudaMemcpyAsync(c->status, &word, sizeof word, cudaMemcpyHostToDevice, c->stream);
    int rc = zt_cuda_check_dev(c->dev, cu, what, &met);
    if (!rc)
        rc = zt_nccl_run_in_turn(&t, &ctx, &met);
    if (!rc) {
        cu = cudaMemcpyAsync(&word, c->status, sizeof word, cudaMemcpyDeviceToHost, c->stream);
        if (cu == cudaSuccess)
            cu = cudaStreamSynchronize(c->stream);
        rc = zt_cuda_check_dev(c->dev, cu, what, &met);
    }
    pthread_mutex_lock(&c->lock);
    if (!rc && c->aborted)
        rc = zt_nccl_lost(&t, &met);
    pthread_mutex_unlock(&c->lock);
    if (status) /* its message stands already */
        return status;
    if (rc)
        *err = met;
    else if (word)
        rc = zt_err_set(err, -(word >> 16), "%s: rank %d failed: %s", what, word & 0xffff,
                        zt_code_name(-(word >> 16)));
    return rc;
}

static int alloc_shared(struct zt_coll *base, size_t bytes, void **out, struct zt_err *err)
{
    struct nccl_coll *c = coll_of(base);
    struct nccl_arena *arena = &c->arenas[c->n_arenas];
    int status = 0;
    if (c->n_arenas == COLL_MAX_ARENAS)
        status =
            zt_err_set(err, ZT_EUNSUPPORTED, "alloc_shared: more than %d calls", COLL_MAX_ARENAS);
    else if (bytes == 0)
        status = zt_err_set(err, ZT_EINPUT, "alloc_shared: cannot be 0 bytes");
    else
        status = base->dev->ops->alloc(base->dev, bytes, &arena->p, err);
    if (!status) {
        arena->bytes = bytes;
        c->n_arenas++;
        *out = arena->p;
    }
    return agree(c, "alloc_shared", status, err);
}

static int barrier(struct zt_coll *base, struct zt_err *err)
{
    return agree(coll_of(base), "barrier", 0, err);
}

static void abort_all(struct zt_coll *base)
{
    struct nccl_coll *c = coll_of(base);
    struct zt_err why;
    why.code = zt_err_set(&why, ZT_EPEER, "NCCL: rank %d: aborted", base->rank);
    pthread_mutex_lock(&c->lock);
    abort_comms(c, &why);
    pthread_mutex_unlock(&c->lock);
}

/* ---- lifetime ---- */

static void close_comm(struct nccl_coll *c, struct nccl_group *comm)
{
    if (!comm->nccl)
        return;
    if (zt_nccl_settle(c, comm, ncclCommFinalize(comm->nccl)) == ncclSuccess)
        ncclCommDestroy(comm->nccl);
    else if (comm->nccl) /* else aborted meanwhile */
        ncclCommAbort(comm->nccl);
    comm->nccl = NULL;
}

/* The world last. All ranks do it, so what they have issued ends. */
static void close_comms(struct nccl_coll *c)
{
    struct nccl_group *world = &c->comms[c->wide_axes];
    for (int i = 0; i < COLL_N_COMMS; i++)
        if (&c->comms[i] != world)
            close_comm(c, &c->comms[i]);
    close_comm(c, world);
}

static void free_coll(struct zt_coll *base)
{
    struct nccl_coll *c = coll_of(base);
    if (!c)
        return;
    cudaSetDevice(c->dev->index);
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->changed);
    if (!c->aborted)
        close_comms(c);
    pthread_mutex_unlock(&c->lock);
    if (c->watched)
        pthread_join(c->watcher, NULL);
    for (int i = 0; i < c->n_arenas; i++)
        base->dev->ops->free(base->dev, c->arenas[i].p, c->arenas[i].bytes);
    if (c->exchanged)
        cudaEventDestroy(c->exchanged);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    cudaFree(c->exchange);
    cudaFree(c->status);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static const struct zt_coll_ops nccl_ops = {
    .abi = ZT_COLL_ABI,
    .struct_bytes = sizeof(struct zt_coll_ops),
    .name = "NCCL",
    .alloc_shared = alloc_shared,
    .barrier = barrier,
    .enqueue = zt_nccl_enqueue,
    .abort = abort_all,
    .free = free_coll,
};

static int made(struct nccl_coll *c, struct nccl_group *comm, const char *what, ncclResult_t r,
                struct zt_err *err)
{
    char why[512];
    r = zt_nccl_settle(c, comm, r);
    if (r == ncclSuccess)
        return 0;
    reason(why, sizeof why, r, comm->nccl);
    return zt_err_set(err, code_of(r), "rank %d, GPU %d: joining by NCCL%s: %s", c->base.rank,
                      c->dev->index, what, why);
}

static ncclConfig_t config_of(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

static int join_world(struct nccl_coll *c, const struct zt_nccl_id *id, struct zt_err *err)
{
    struct nccl_group *world = &c->comms[c->wide_axes];
    ncclConfig_t config = config_of();
    ncclUniqueId unique;
    _Static_assert(sizeof unique == sizeof *id, "an id is NCCL's");
    memcpy(&unique, id, sizeof unique);
    world->n = zt_mesh_world(&c->base.mesh);
    world->me = c->base.rank;
    world->group = ZT_GROUP_WORLD;
    return made(c, world, "",
                ncclCommInitRankConfig(&world->nccl, world->n, unique, world->me, &config), err);
}

/* Of the world, those of one colour; `comm` has all but the communicator. */
static int split(struct nccl_coll *c, struct nccl_group *comm, int color, struct zt_err *err)
{
    struct nccl_group *world = &c->comms[c->wide_axes];
    ncclConfig_t config = config_of();
    int rc = made(c, world, ", splitting the world",
                  ncclCommSplit(world->nccl, color, comm->me, &comm->nccl, &config), err);
    return rc ? rc : made(c, comm, ", a part of the world", ncclInProgress, err);
}

static int split_groups(struct nccl_coll *c, struct zt_err *err)
{
    const struct zt_mesh *mesh = &c->base.mesh;
    int rc = 0;
    for (zt_axes group = 1; group < c->wide_axes && !rc; group++) {
        struct nccl_group *comm = &c->comms[group];
        if (group & ~c->wide_axes)
            continue;
        comm->group = group;
        comm->n = zt_group_size(mesh, group);
        comm->me = zt_group_index(mesh, group, c->base.rank);
        rc = split(c, comm, zt_group_member(mesh, group, c->base.rank, 0), err);
    }
    for (int i = COLL_COMM_UP; i <= COLL_COMM_DOWN && !rc && mesh->size[ZT_AXIS_PIPELINE] > 1;
         i++) {
        struct nccl_group *comm = &c->comms[i];
        comm->group = ZT_AXES(ZT_AXIS_PIPELINE);
        comm->n = zt_mesh_world(mesh);
        comm->me = c->base.rank;
        rc = split(c, comm, 0, err);
    }
    return rc;
}

static int allocate(struct nccl_coll *c, struct zt_err *err)
{
    cudaError_t cu = cudaSetDevice(c->dev->index);
    if (cu == cudaSuccess)
        cu = zt_cuda_make_stream(&c->stream, true);
    if (cu == cudaSuccess)
        cu = cudaEventCreateWithFlags(&c->exchanged, cudaEventDisableTiming);
    if (cu == cudaSuccess)
        cu = cudaMalloc((void **)&c->status, sizeof *c->status);
    if (cu == cudaSuccess && zt_mesh_world(&c->base.mesh) > 1)
        cu = cudaMalloc((void **)&c->exchange, COLL_EXCHANGE_BYTES);
    return zt_cuda_check_dev(c->dev, cu, "memory for NCCL's collectives", err);
}

int zt_cuda_nccl_id(struct zt_nccl_id *out, struct zt_err *err)
{
    char why[512];
    ncclUniqueId id;
    ncclResult_t r = ncclGetUniqueId(&id);
    if (r != ncclSuccess) {
        reason(why, sizeof why, r, NULL);
        return zt_err_set(err, ZT_EDEVICE, "NCCL gives no id to join by: %s", why);
    }
    memcpy(out, &id, sizeof id);
    return 0;
}

int zt_cuda_nccl_create(const struct zt_nccl_id *id, struct zt_dev *dev, const struct zt_mesh *mesh,
                        int rank, zt_fatal_fn fatal, void *fatal_ctx, struct zt_coll **out,
                        struct zt_err *err)
{
    enum { MAX_RANKS = COLL_EXCHANGE_BYTES / COLL_ALIGN_ELEMS / (int)sizeof(int64_t) };
    if (zt_mesh_world(mesh) > MAX_RANKS)
        return zt_err_set(err, ZT_EUNSUPPORTED, "NCCL: %d ranks; at most %d are possible",
                          zt_mesh_world(mesh), MAX_RANKS);
    struct nccl_coll *c = zt_xcalloc(1, sizeof *c);
    c->base = (struct zt_coll){.ops = &nccl_ops, .dev = dev, .mesh = *mesh, .rank = rank};
    c->dev = (struct zt_cuda_dev *)dev;
    c->fatal = fatal;
    c->fatal_ctx = fatal_ctx;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int a = 0; a < ZT_N_AXES; a++)
        c->wide_axes |= mesh->size[a] > 1 ? ZT_AXES(a) : 0;
    int rc = allocate(c, err);
    pthread_mutex_lock(&c->lock);
    if (!rc)
        rc = join_world(c, id, err);
    if (!rc)
        rc = split_groups(c, err);
    if (rc)
        abort_comms(c, err);
    pthread_mutex_unlock(&c->lock);
    if (!rc)
        rc = zt_thread_start(&c->watcher, "nccl-watch", watch, c, err);
    c->watched = !rc;
    if (rc)
        free_coll(&c->base);
    else
        *out = &c->base;
    return rc;
}
