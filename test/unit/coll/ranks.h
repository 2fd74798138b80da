/*
 * ranks.h: several ranks of collectives in one test, as threads or as processes. Shared memory runs
 * over a device whose streams carry host calls out at once, or when the test says so; host-staged
 * collectives (test_staged) over streams of the CPU device, as their copies must run beside the rest; TCP
 * (test_tcp) with the ranks on several "nodes", which share memory inside and talk over the loopback interface.
 */
#ifndef ZT_TEST_COLL_RANKS_H
#define ZT_TEST_COLL_RANKS_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coll/shm.h"
#include "coll/staged.h"
#include "coll/tcp_net.h"

/* ---- a device with nothing but host calls ---- */

enum { FAKE_QUEUE = 4 };

struct zt_stream {
    struct zt_stream *real; /* of the CPU device; NULL: calls run here */
    int rc;                 /* of the first failure; later calls are skipped */
    bool deferred;
    int n_queued;
    struct {
        zt_host_fn fn;
        _Alignas(16) char arg[ZT_TASK_ARG_BYTES];
    } queue[FAKE_QUEUE];
    struct zt_err err;
};

static inline void fake_run(struct zt_stream *s)
{
    for (int i = 0; i < s->n_queued; i++)
        if (!s->rc)
            s->rc = s->queue[i].fn(s->queue[i].arg, &s->err);
    s->n_queued = 0;
}

static inline void fake_host_call(struct zt_stream *s, zt_host_fn fn, const void *arg,
                                  size_t arg_bytes)
{
    ZT_ASSERT(s->n_queued < FAKE_QUEUE && arg_bytes <= ZT_TASK_ARG_BYTES);
    s->queue[s->n_queued].fn = fn;
    memcpy(s->queue[s->n_queued++].arg, arg, arg_bytes);
    if (!s->deferred)
        fake_run(s);
}

enum { FAKE_FREE_BYTES = 1 << 30 };

static inline int fake_memory(struct zt_dev *d, size_t *free_bytes, size_t *total_bytes,
                              struct zt_err *err)
{
    (void)d, (void)err;
    *free_bytes = *total_bytes = FAKE_FREE_BYTES;
    return ZT_OK;
}

/* What staging needs of a device, by the CPU device. */
static struct zt_dev *cpu_dev;

static inline int fake_alloc(struct zt_dev *d, size_t bytes, void **out, struct zt_err *err)
{
    (void)d;
    return cpu_dev->ops->alloc(cpu_dev, bytes, out, err);
}

static inline void fake_free(struct zt_dev *d, void *p, size_t bytes)
{
    (void)d;
    cpu_dev->ops->free(cpu_dev, p, bytes);
}

static inline struct zt_event fake_record(struct zt_stream *s)
{
    return cpu_dev->ops->record(s->real);
}

static inline void fake_wait(struct zt_stream *s, struct zt_event e)
{
    cpu_dev->ops->wait(s->real, e);
}

static inline void fake_copy(struct zt_stream *s, const struct zt_copy *a)
{
    cpu_dev->ops->copy(s->real, a);
}

static inline void fake_cast(struct zt_stream *s, const struct zt_cast *a)
{
    cpu_dev->ops->cast(s->real, a);
}

static const struct zt_dev_ops fake_ops = {
    .alloc = fake_alloc,
    .free = fake_free,
    .memory = fake_memory,
    .record = fake_record,
    .wait = fake_wait,
    .host_call = fake_host_call,
    .copy = fake_copy,
    .cast = fake_cast,
};
static struct zt_dev fake_dev = {&fake_ops};

/* 0: shared memory itself. Else host-staged over it, with slots of so many bytes. */
static size_t staged_slot_bytes;

static inline void fake_stream_init(struct zt_stream *s)
{
    if (staged_slot_bytes)
        ZT_ASSERT(cpu_dev->ops->stream_create(cpu_dev, "fake", 1, &s->real, &s->err) == 0);
}

/* Wait for what was enqueued. */
static inline int fake_sync(struct zt_stream *s)
{
    if (s->real && !s->rc)
        s->rc = cpu_dev->ops->sync(cpu_dev->ops->record(s->real), &s->err);
    return s->rc;
}

/* ---- one mapping for the ranks of a process, so that TSan sees their accesses meet ---- */

enum { MAX_MAPS = 2048 };

struct mapped {
    ino_t inode;
    size_t at, bytes;
    void *p;
};

struct shared_maps {
    pthread_mutex_t lock;
    int n;
    struct mapped maps[MAX_MAPS];
};

static inline void *shared_map(void *ctx, int fd, size_t at, size_t bytes)
{
    struct shared_maps *m = ctx;
    struct stat st;
    void *p = NULL;
    if (fstat(fd, &st))
        return NULL;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n && !p; i++)
        if (m->maps[i].inode == st.st_ino && m->maps[i].at == at && m->maps[i].bytes == bytes)
            p = m->maps[i].p;
    if (!p && m->n < MAX_MAPS) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
        if (p == MAP_FAILED)
            p = NULL;
        else
            m->maps[m->n++] = (struct mapped){st.st_ino, at, bytes, p};
    }
    pthread_mutex_unlock(&m->lock);
    return p;
}

static inline void shared_unmap(void *ctx, void *p, size_t bytes)
{
    (void)ctx, (void)p, (void)bytes; /* shared_maps_release() does */
}

static inline void shared_maps_release(struct shared_maps *m)
{
    for (int i = 0; i < m->n; i++)
        munmap(m->maps[i].p, m->maps[i].bytes);
    m->n = 0;
}

/* ---- ranks ---- */

/* How ranks are put on nodes; NULL: all on one, without a network. `host` is what nodes call each other. */
struct test_rig {
    int on_each;    /* ranks on each node, the last one having what is left */
    bool backwards; /* the first one has what is left */
    const char *host;
};
static const struct test_rig *test_rig;

struct test_rank {
    const struct zt_shm_job *job; /* of its node */
    const struct zt_tcp_job *tcp; /* NULL: one node */
    int listen_fd;
    const struct zt_shm_vm *vm;
    struct zt_mesh mesh;
    int rank, n;
    struct zt_coll *coll;
    struct zt_stream stream;
    void (*body)(struct test_rank *r);
    char *why; /* the first failure; empty: none */
};

enum { WHY_BYTES = 512 };

#define RANK_CHECK(r, cond)                                                                        \
    do {                                                                                           \
        if (!(cond))                                                                               \
            RANK_FAIL(r, "%s", #cond);                                                             \
    } while (0)

#define RANK_OK(r, call)                                                                           \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            RANK_FAIL(r, "%.300s", (r)->stream.err.msg);                                           \
    } while (0)

/* Wait for what was enqueued on the rank's stream; its failure, in r->stream.err. */
static inline int rank_done(struct test_rank *r)
{
    return fake_sync(&r->stream);
}

/* Done with a stream. */
static inline void rank_drain(struct test_rank *r, struct zt_stream *s)
{
    if (!s->real)
        return;
    fake_sync(s);
    r->coll->ops->drain(r->coll);
    cpu_dev->ops->stream_free(s->real);
}

static inline int rank_join(struct test_rank *r)
{
    const struct zt_staged_opts opts = {.slot_bytes = staged_slot_bytes, .n_streams = 2};
    struct zt_dev *dev = staged_slot_bytes ? cpu_dev : &fake_dev;
    bool pinned;
    fake_stream_init(&r->stream);
    int rc = r->tcp ? zt_tcp_coll_create_vm(r->tcp, r->job, r->listen_fd, dev, &r->mesh, r->rank,
                                            r->vm, &r->coll, &r->stream.err)
                    : zt_shm_coll_create_vm(r->job, dev, &r->mesh, r->rank, r->vm, &r->coll,
                                            &r->stream.err);
    if (rc || !staged_slot_bytes)
        return rc;
    return zt_staged_coll_create(r->coll, &fake_dev, &opts, &r->coll, &pinned, &r->stream.err);
}

static inline void *rank_main(void *arg)
{
    struct test_rank *r = arg;
    if (rank_join(r)) {
        snprintf(r->why, WHY_BYTES, "rank %d joining: %.400s", r->rank, r->stream.err.msg);
        zt_shm_job_abort(r->job->control_fd);
        return NULL;
    }
    r->body(r);
    if (*r->why)
        zt_shm_job_abort(r->job->control_fd);
    rank_drain(r, &r->stream);
    r->coll->ops->free(r->coll);
    return NULL;
}

struct test_job {
    struct zt_shm_job job;
    int arena_fds[ZT_SHM_MAX_RANKS];
};

static inline int test_job_init(struct test_job *t, int n)
{
    struct zt_err err;
    int rc = zt_shm_job_create(n, &t->job.control_fd, t->arena_fds, &err);
    t->job.n_ranks = n;
    t->job.arena_fds = t->arena_fds;
    if (rc)
        printf("# %s\n", err.msg);
    return rc;
}

static inline void test_job_release(struct test_job *t)
{
    close(t->job.control_fd);
    for (int i = 0; i < t->job.n_ranks; i++)
        close(t->arena_fds[i]);
}

enum test_as { AS_THREADS, AS_SHARED_THREADS, AS_PROCESSES };

static inline void run_as_threads(struct test_rank *ranks, int n)
{
    pthread_t threads[ZT_SHM_MAX_RANKS];
    for (int i = 0; i < n; i++)
        ZT_ASSERT(pthread_create(&threads[i], NULL, rank_main, &ranks[i]) == 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static inline void run_as_processes(struct test_rank *ranks, int n)
{
    pid_t pids[ZT_SHM_MAX_RANKS];
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        ZT_ASSERT(pids[i] >= 0);
        if (pids[i] == 0) {
            rank_main(&ranks[i]);
            _exit(0);
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        ZT_ASSERT(waitpid(pids[i], &status, 0) == pids[i]);
        if ((!WIFEXITED(status) || WEXITSTATUS(status)) && !*ranks[i].why)
            snprintf(ranks[i].why, WHY_BYTES, "rank %d died with status %#x", i, status);
    }
}

/* Bit k: ranks of this process do not reach node k. */
static _Atomic uint64_t test_apart;

static inline void note_apart(void *ctx, int node)
{
    (void)ctx;
    atomic_fetch_or(&test_apart, UINT64_C(1) << node);
}

/* The nodes of a job by a rig, and a port for each rank. */
struct test_net {
    int n_nodes, first[ZT_TCP_MAX_NODES + 1]; /* rank of each node; behind the last: the world */
    int node_of[ZT_SHM_MAX_RANKS], fds[ZT_SHM_MAX_RANKS];
    struct zt_tcp_address addresses[ZT_SHM_MAX_RANKS];
    uint8_t secret[ZT_TCP_SECRET_BYTES];
    struct zt_tcp_job tcp;
    struct test_job jobs[ZT_TCP_MAX_NODES];
};

static inline void test_net_init(struct test_net *net, const struct test_rig *rig, int n)
{
    struct zt_err err;
    int rest = rig && rig->backwards && n % rig->on_each ? n % rig->on_each : n;
    memset(net, 0, sizeof *net);
    for (int at = 0; at < n; net->n_nodes++) {
        int size = !rig ? n : at == 0 ? ZT_MIN(rest, rig->on_each) : ZT_MIN(n - at, rig->on_each);
        net->first[net->n_nodes] = at;
        for (int k = 0; k < size; k++)
            net->node_of[at++] = net->n_nodes;
        net->first[net->n_nodes + 1] = at;
        ZT_ASSERT(test_job_init(&net->jobs[net->n_nodes], size) == 0);
    }
    memset(net->secret, 0x5a, sizeof net->secret);
    for (int r = 0; net->n_nodes > 1 && r < n; r++)
        ZT_ASSERT(zt_tcp_listen(NULL, rig->host, &net->fds[r], &net->addresses[r], &err) == 0);
    atomic_store(&test_apart, 0);
    net->tcp = (struct zt_tcp_job){.n_nodes = net->n_nodes,
                                   .node_of = net->node_of,
                                   .addresses = net->addresses,
                                   .secret = net->secret,
                                   .join_s = 20,
                                   .apart = note_apart};
}

static inline void test_net_release(struct test_net *net)
{
    for (int k = 0; k < net->n_nodes; k++)
        test_job_release(&net->jobs[k]);
}

/* Run `body` on every rank of the mesh; "" or the first failure, in `why` (WHY_BYTES). */
static inline void run_ranks(enum test_as as, struct zt_mesh mesh, void (*body)(struct test_rank *),
                             char *why)
{
    int n = zt_mesh_world(&mesh);
    struct zt_err err;
    struct test_net *net = malloc(sizeof *net);
    ZT_ASSERT(cpu_dev || zt_cpu_dev_create(&cpu_dev, NULL, 0, &err) == 0);
    struct shared_maps maps = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct zt_shm_vm vm = {&maps, shared_map, shared_unmap};
    size_t whys_bytes = (size_t)n * WHY_BYTES;
    char *whys = mmap(NULL, whys_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct test_rank *ranks = calloc((size_t)n, sizeof *ranks);
    ZT_ASSERT(whys != MAP_FAILED && ranks && net);
    test_net_init(net, test_rig, n);
    for (int i = 0; i < n; i++) {
        ranks[i].job = &net->jobs[net->node_of[i]].job;
        ranks[i].tcp = net->n_nodes > 1 ? &net->tcp : NULL;
        ranks[i].listen_fd = net->fds[i];
        ranks[i].vm = as == AS_SHARED_THREADS ? &vm : NULL;
        ranks[i].mesh = mesh;
        ranks[i].rank = i;
        ranks[i].n = n;
        ranks[i].body = body;
        ranks[i].why = whys + (size_t)i * WHY_BYTES;
    }
    if (as == AS_PROCESSES)
        run_as_processes(ranks, n);
    else
        run_as_threads(ranks, n);
    *why = 0;
    for (int i = 0; i < n; i++)
        if (ranks[i].why[0] && (!*why || strstr(why, "aborted")))
            memcpy(why, ranks[i].why, WHY_BYTES);
    if (as == AS_PROCESSES && net->n_nodes > 1)
        for (int i = 0; i < n; i++)
            close(net->fds[i]); /* threads have closed theirs */
    test_net_release(net);
    free(net);
    shared_maps_release(&maps);
    munmap(whys, whys_bytes);
    free(ranks);
}

static inline const char *rig_name(void)
{
    static char text[64];
    if (test_rig)
        snprintf(text, sizeof text, ", %d on each node, %s", test_rig->on_each, test_rig->host);
    return text;
}

static inline struct zt_mesh mesh_of(int replicate, int shard)
{
    return (struct zt_mesh){{1, replicate, shard, 1, 1}};
}

/*
 * Run on (replicate, shard) meshes in every way that tells something about the build at hand. Tests that
 * put ranks on nodes do so in every way of theirs.
 */
#ifdef TEST_RIGS
static const struct test_rig test_rigs[] = {TEST_RIGS};
#ifdef __SANITIZE_THREAD__
#define RIG_RUNS_AS AS_SHARED_THREADS
#else
#define RIG_RUNS_AS AS_PROCESSES
#endif
#define CHECK_RANKS(replicate, shard, body)                                                        \
    do {                                                                                           \
        for (size_t i_ = 0; i_ < ZT_ARRAY_LEN(test_rigs); i_++) {                                  \
            test_rig = &test_rigs[i_];                                                             \
            CHECK_RANKS_AS(RIG_RUNS_AS, replicate, shard, body);                                   \
        }                                                                                          \
    } while (0)
#elif defined(__SANITIZE_THREAD__)
#define CHECK_RANKS(replicate, shard, body)                                                        \
    CHECK_RANKS_AS(AS_SHARED_THREADS, replicate, shard, body)
#else
#define CHECK_RANKS(replicate, shard, body)                                                        \
    do {                                                                                           \
        CHECK_RANKS_AS(AS_THREADS, replicate, shard, body);                                        \
        CHECK_RANKS_AS(AS_SHARED_THREADS, replicate, shard, body);                                 \
        CHECK_RANKS_AS(AS_PROCESSES, replicate, shard, body);                                      \
    } while (0)
#endif
#define CHECK_RANKS_AS(as, replicate, shard, body)                                                 \
    do {                                                                                           \
        char why_[WHY_BYTES];                                                                      \
        run_ranks(as, mesh_of(replicate, shard), body, why_);                                      \
        if (*why_)                                                                                 \
            FAIL("%s, " #as ", %d x %d%s: %s", #body, replicate, shard, rig_name(), why_);         \
    } while (0)

#endif
