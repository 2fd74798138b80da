/*
 * nccl_ranks.h: ranks that talk by NCCL, as threads (so that ThreadSanitizer sees all of them) or as processes,
 * each with a device and a stream of its own.
 */
#ifndef ZT_TEST_NCCL_RANKS_H
#define ZT_TEST_NCCL_RANKS_H

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../cuda/device.h"
#include "harness.h"

enum { MAX_RANKS = 4, WHY_BYTES = 1024 };

#ifdef ZT_CUSIM
/* Before the simulator reads it. */
__attribute__((constructor(101))) static void make_devices(void)
{
    setenv("CUSIM_DEVICES", "4", 0);
}
#endif

/* What ranks share, also as processes. */
struct job {
    _Atomic int has_id, reached; /* `reached`: for the tests to use */
    struct zt_nccl_id id;
    char whys[MAX_RANKS][WHY_BYTES];
};

struct rank {
    struct job *job;
    struct zt_mesh mesh;
    int rank, n, device;
    struct zt_dev *dev;
    struct zt_coll *coll;
    struct zt_stream *stream;
    struct zt_err err;
    void (*body)(struct rank *r);
    char *why; /* the first failure; empty: none */
};

#define RANK_CHECK(r, cond)                                                                        \
    do {                                                                                           \
        if (!(cond))                                                                               \
            RANK_FAIL(r, "%s; %.600s", #cond, (r)->err.msg);                                       \
    } while (0)
#define RANK_OK(r, call)                                                                           \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            RANK_FAIL(r, "%.900s", (r)->err.msg);                                                  \
    } while (0)

/* What train does: a message, and the end. */
static inline void on_fatal(void *ctx, const struct zt_err *err)
{
    struct rank *r = ctx;
    snprintf(r->why, WHY_BYTES, "fatal: %d %.900s", err->code, err->msg);
    _exit(7);
}

static inline int join(struct rank *r)
{
    struct job *j = r->job;
    int rc = 0;
    if (r->rank == 0) {
        rc = zt_cuda_nccl_id(&j->id, &r->err);
        atomic_store(&j->has_id, 1);
    }
    while (!atomic_load(&j->has_id))
        poll(NULL, 0, 1);
    if (!rc)
        rc = zt_cuda_dev_create(r->device, &r->dev, NULL, 0, &r->err);
    if (!rc)
        rc = r->dev->ops->stream_create(r->dev, "comm", 1, &r->stream, &r->err);
    return rc ? rc
              : zt_cuda_nccl_create(&j->id, r->dev, &r->mesh, r->rank, on_fatal, r, &r->coll,
                                    &r->err);
}

static inline void *rank_main(void *arg)
{
    struct rank *r = arg;
    if (join(r))
        snprintf(r->why, WHY_BYTES, "rank %d joining: %d %.900s", r->rank, r->err.code, r->err.msg);
    else
        r->body(r);
    if (*r->why && r->coll)
        r->coll->ops->abort(r->coll);
    if (r->stream)
        r->dev->ops->stream_free(r->stream);
    if (r->coll)
        r->coll->ops->free(r->coll);
    zt_cuda_dev_free(r->dev);
    return NULL;
}

static inline void init_ranks(struct rank *ranks, struct zt_mesh mesh, void (*body)(struct rank *))
{
    int n = zt_mesh_world(&mesh);
    struct job *job =
        mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ZT_ASSERT(job != MAP_FAILED && n <= MAX_RANKS);
    for (int i = 0; i < n; i++)
        ranks[i] = (struct rank){.job = job,
                                 .mesh = mesh,
                                 .rank = i,
                                 .n = n,
                                 .device = i,
                                 .body = body,
                                 .why = job->whys[i]};
}

static inline void run_threads(struct rank *ranks)
{
    pthread_t threads[MAX_RANKS];
    for (int i = 0; i < ranks->n; i++)
        ZT_ASSERT(pthread_create(&threads[i], NULL, rank_main, &ranks[i]) == 0);
    for (int i = 0; i < ranks->n; i++)
        pthread_join(threads[i], NULL);
}

static inline pid_t start_process(struct rank *r)
{
    fflush(stdout);
    pid_t pid = fork();
    ZT_ASSERT(pid >= 0);
    if (pid == 0) {
        rank_main(r);
        _exit(*r->why ? 1 : 0);
    }
    return pid;
}

static inline void run_processes(struct rank *ranks)
{
    pid_t pids[MAX_RANKS];
    for (int i = 0; i < ranks->n; i++)
        pids[i] = start_process(&ranks[i]);
    for (int i = 0; i < ranks->n; i++) {
        int status;
        ZT_ASSERT(waitpid(pids[i], &status, 0) == pids[i]);
        if (!WIFEXITED(status) && !*ranks[i].why)
            snprintf(ranks[i].why, WHY_BYTES, "rank %d died with status %#x", i, status);
    }
}

static inline struct zt_mesh mesh_of(int pipeline, int replicate, int shard)
{
    return (struct zt_mesh){{pipeline, replicate, shard, 1, 1}};
}

static inline int n_gpus(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

#define CHECK_RANKS_AS(run, mesh, body)                                                            \
    do {                                                                                           \
        struct rank ranks_[MAX_RANKS];                                                             \
        init_ranks(ranks_, mesh, body);                                                            \
        run(ranks_);                                                                               \
        for (int i_ = 0; i_ < ranks_->n; i_++)                                                     \
            if (*ranks_[i_].why)                                                                   \
                FAIL("%s, " #run ": %s", #body, ranks_[i_].why);                                   \
        munmap(ranks_->job, sizeof *ranks_->job);                                                  \
    } while (0)

/* As processes first: no thread of the simulator's must have run before a fork. */
#if defined(ZT_CUSIM) && !defined(__SANITIZE_THREAD__)
#define CHECK_RANKS(mesh, body) CHECK_RANKS_AS(run_processes, mesh, body)
#else
#define CHECK_RANKS(mesh, body)                                                                    \
    do {                                                                                           \
        struct zt_mesh mesh_ = mesh;                                                               \
        if (n_gpus() < zt_mesh_world(&mesh_))                                                      \
            SKIP("%d GPUs are needed, there are %d", zt_mesh_world(&mesh_), n_gpus());             \
        CHECK_RANKS_AS(run_threads, mesh_, body);                                                  \
    } while (0)
#endif

/* ---- memory ---- */

static inline void *device_memory(struct rank *r, size_t bytes)
{
    void *p = NULL;
    return r->dev->ops->alloc(r->dev, bytes, &p, &r->err) ? NULL : p;
}

static inline int sync_stream(struct rank *r, struct zt_stream *s)
{
    return r->dev->ops->sync(r->dev->ops->record(s), &r->err);
}

static inline int move(struct rank *r, void *dst, const void *src, size_t bytes)
{
    const struct zt_copy c = {dst, src, bytes};
    r->dev->ops->copy(r->stream, &c);
    return sync_stream(r, r->stream);
}

/* Both sides of a buffer. */
struct box {
    char *host, *dev;
    size_t bytes;
};

static inline struct box make_box(struct rank *r, size_t bytes)
{
    return (struct box){malloc(bytes), device_memory(r, bytes), bytes};
}

static inline void free_box(struct rank *r, struct box *b)
{
    free(b->host);
    if (b->dev)
        r->dev->ops->free(r->dev, b->dev, b->bytes);
}

#endif
