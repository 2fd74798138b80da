/*
 * Collectives by NCCL. On the simulator by 2 to 4 ranks, as threads (so that ThreadSanitizer sees all
 * of them) and as processes, with the bits of the CPU, as the simulator adds up as it does; and what goes
 * wrong. On a GPU by as many ranks as there are GPUs, within what NCCL rounds.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../cuda/device.h"
#include "base/clock.h"
#include "dev/sanitize.h"
#include "harness.h"
#include "planted.h"
#include "unit/coll/values.h"

enum { MAX_RANKS = 4, WHY_BYTES = 1024, PATIENCE_MS = 20000 };
#ifdef __SANITIZE_THREAD__
enum { LARGE = 70001 };
#else
enum { LARGE = 300007 }; /* more than the simulator moves at once */
#endif

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

#define RANK_FAIL(r, ...)                                                                          \
    do {                                                                                           \
        int at_ = snprintf((r)->why, WHY_BYTES, "line %d, rank %d: ", __LINE__, (r)->rank);        \
        snprintf((r)->why + at_, (size_t)(WHY_BYTES - at_), __VA_ARGS__);                          \
        return;                                                                                    \
    } while (0)
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
static void on_fatal(void *ctx, const struct zt_err *err)
{
    struct rank *r = ctx;
    snprintf(r->why, WHY_BYTES, "fatal: %d %.900s", err->code, err->msg);
    _exit(7);
}

static int join(struct rank *r)
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

static void *rank_main(void *arg)
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

static void init_ranks(struct rank *ranks, struct zt_mesh mesh, void (*body)(struct rank *))
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

static void run_threads(struct rank *ranks)
{
    pthread_t threads[MAX_RANKS];
    for (int i = 0; i < ranks->n; i++)
        ZT_ASSERT(pthread_create(&threads[i], NULL, rank_main, &ranks[i]) == 0);
    for (int i = 0; i < ranks->n; i++)
        pthread_join(threads[i], NULL);
}

static pid_t start_process(struct rank *r)
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

static void run_processes(struct rank *ranks)
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

static struct zt_mesh mesh_of(int pipeline, int replicate, int shard)
{
    return (struct zt_mesh){{pipeline, replicate, shard, 1, 1}};
}

static int n_gpus(void)
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

static void *device_memory(struct rank *r, size_t bytes)
{
    void *p = NULL;
    return r->dev->ops->alloc(r->dev, bytes, &p, &r->err) ? NULL : p;
}

static int sync_stream(struct rank *r, struct zt_stream *s)
{
    return r->dev->ops->sync(r->dev->ops->record(s), &r->err);
}

static int move(struct rank *r, void *dst, const void *src, size_t bytes)
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

static struct box make_box(struct rank *r, size_t bytes)
{
    return (struct box){malloc(bytes), device_memory(r, bytes), bytes};
}

static void free_box(struct rank *r, struct box *b)
{
    free(b->host);
    if (b->dev)
        r->dev->ops->free(r->dev, b->dev, b->bytes);
}

/* What `rank` would give, on the device. */
static int give(struct rank *r, struct box *b, enum zt_dtype t, int64_t from, int64_t n)
{
    fill(b->host, t, r->rank, from, n);
    return move(r, b->dev, b->host, (size_t)n * zt_dtype_bytes(t));
}

static int fetch(struct rank *r, struct box *b)
{
    return move(r, b->host, b->dev, b->bytes);
}

/* How far a sum may be off: NCCL rounds after each hop, and adds in an order of its own. */
static bool near(const void *p, const void *want, enum zt_dtype t)
{
    if (memcmp(p, want, zt_dtype_bytes(t)) == 0)
        return true;
#ifdef ZT_CUSIM
    return false;
#else
    if (t != ZT_F32 && t != ZT_BF16 && t != ZT_F16)
        return false;
    float a = as_f32(p, t), b = as_f32(want, t);
    return fabsf(a - b) <= (t == ZT_F32 ? 1e-5f : 0.04f) * (1.0f + fabsf(b));
#endif
}

static int64_t wrong_sum(struct rank *r, zt_axes group, const char *p, enum zt_dtype t,
                         enum zt_dtype to, enum zt_redop op, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i = next(i, n)) {
        char want[8];
        want_reduced(&r->mesh, r->rank, group, t, to, op, from + i, want);
        if (!near(p + (size_t)i * zt_dtype_bytes(to), want, to))
            return i;
    }
    return -1;
}

#define RANK_RIGHT(r, index)                                                                       \
    do {                                                                                           \
        int64_t i_ = (index);                                                                      \
        if (i_ >= 0)                                                                               \
            RANK_FAIL(r, "element %lld of %lld is wrong (%s)", (long long)i_, (long long)count,    \
                      zt_dtype_name(t));                                                           \
    } while (0)

/* ---- every call ---- */

static const int64_t counts[] = {0, 1, 63, 4098, LARGE};

static bool skipped(int64_t count, enum zt_dtype t)
{
    return count == LARGE && t != ZT_F32 && t != ZT_BF16;
}

static void body_all_reduce(struct rank *r)
{
    struct box a = make_box(r, LARGE * 4 + 64), b = make_box(r, LARGE * 4 + 64);
    RANK_CHECK(r, a.dev && b.dev);
    for (int v = 0; v < 4 * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts); v++) {
        int64_t count = counts[v / 4 / ZT_N_DTYPES];
        enum zt_dtype t = (enum zt_dtype)(v / 4 % ZT_N_DTYPES);
        enum zt_redop op = v % 2 ? ZT_MAX : ZT_SUM;
        struct box *to = v % 4 < 2 ? &a : &b;
        if (skipped(count, t) || (op == ZT_MAX && t != ZT_I32 && t != ZT_I64))
            continue;
        RANK_OK(r, give(r, &a, t, 0, count));
        r->coll->ops->all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, to->dev, count, t, op);
        RANK_OK(r, fetch(r, to));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, to->host, t, t, op, 0, count));
    }
    free_box(r, &a);
    free_box(r, &b);
}

static void body_reduce_scatter(struct rank *r)
{
    static const enum zt_dtype types[][2] = {{ZT_F32, ZT_F32},  {ZT_BF16, ZT_BF16},
                                             {ZT_BF16, ZT_F32}, {ZT_F16, ZT_F16},
                                             {ZT_F16, ZT_F32},  {ZT_I64, ZT_I64}};
    struct box a = make_box(r, (size_t)(LARGE + 4 * 4100) * 8), b = make_box(r, LARGE * 4 + 64);
    RANK_CHECK(r, a.dev && b.dev);
    for (int v = 0; v < 2 * (int)ZT_ARRAY_LEN(types) * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = types[v / 2 % ZT_ARRAY_LEN(types)][0];
        enum zt_dtype to = types[v / 2 % ZT_ARRAY_LEN(types)][1];
        int64_t count = counts[v / 2 / (int)ZT_ARRAY_LEN(types)];
        bool in_place = v % 2 && t == to;
        if (skipped(count, t))
            continue;
        count = count == LARGE ? count / r->n : count;
        size_t at = (size_t)(count * r->rank) * zt_dtype_bytes(t);
        RANK_OK(r, give(r, &a, t, 0, count * r->n));
        r->coll->ops->reduce_scatter(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, t,
                                     in_place ? a.dev + at : b.dev, to, count);
        RANK_OK(r, fetch(r, in_place ? &a : &b));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, in_place ? a.host + at : b.host, t, to, ZT_SUM,
                                count * r->rank, count));
    }
    free_box(r, &a);
    free_box(r, &b);
}

static void body_moves(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    size_t bytes = (size_t)(LARGE + 4 * 4100) * 8;
    struct box a = make_box(r, bytes), b = make_box(r, bytes);
    RANK_CHECK(r, a.dev && b.dev);
    for (int v = 0; v < 2 * ZT_N_DTYPES * (int)ZT_ARRAY_LEN(counts); v++) {
        enum zt_dtype t = (enum zt_dtype)(v / 2 % ZT_N_DTYPES);
        int64_t count = counts[v / 2 / ZT_N_DTYPES];
        int root = v % r->n;
        if (skipped(count, t))
            continue;
        count = count == LARGE ? count / r->n : count;
        size_t part = (size_t)count * zt_dtype_bytes(t);
        struct box *to = v % 2 ? &a : &b;
        RANK_OK(r, give(r, &a, t, 0, count));
        if (v % 2)
            RANK_OK(r, move(r, a.dev + part * (size_t)r->rank, a.host, part));
        ops->all_gather(r->coll, r->stream, ZT_GROUP_SHARD,
                        v % 2 ? a.dev + part * (size_t)r->rank : a.dev, to->dev, count, t);
        RANK_OK(r, fetch(r, to));
        for (int j = 0; j < r->n; j++)
            RANK_RIGHT(r, wrong_copied(to->host + part * (size_t)j, t, j, 0, count));
        RANK_OK(r, give(r, &a, t, 5, count));
        ops->broadcast(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, count, t, root);
        RANK_OK(r, fetch(r, &a));
        RANK_RIGHT(r, wrong_copied(a.host, t, root, 5, count));
    }
    free_box(r, &a);
    free_box(r, &b);
}

/* Rank i sends (i + j) * 37 % 101 elements, beginning with its element 1000 * j, to rank j. */
static void body_all_to_all(struct rank *r)
{
    enum { STRIDE = 120 };
    const enum zt_dtype t = ZT_BF16;
    struct box a = make_box(r, (size_t)r->n * STRIDE * 2), b = make_box(r, a.bytes);
    struct box counts_of = make_box(r, (size_t)r->n * sizeof(int64_t));
    int64_t in[MAX_RANKS];
    RANK_CHECK(r, a.dev && b.dev && counts_of.dev);
    memset(a.host, 0, a.bytes);
    for (int j = 0; j < r->n; j++) {
        in[j] = (r->rank + j) * 37 % 101;
        fill(a.host + j * STRIDE * 2, t, r->rank, 1000 * j, in[j]);
    }
    RANK_OK(r, move(r, a.dev, a.host, a.bytes));
    RANK_OK(r, move(r, counts_of.dev, in, counts_of.bytes));
    r->coll->ops->all_to_all(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, (int64_t *)counts_of.dev,
                             b.dev, (int64_t *)counts_of.dev, STRIDE, t);
    RANK_OK(r, fetch(r, &b));
    for (int j = 0; j < r->n; j++) {
        int64_t count = in[j];
        RANK_RIGHT(r, wrong_copied(b.host + j * STRIDE * 2, t, j, 1000 * r->rank, count));
    }
    free_box(r, &a);
    free_box(r, &b);
    free_box(r, &counts_of);
}

/* Down and up a pipeline at once, on streams of their own: neither waits for the other. */
static void body_pipeline(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    const zt_axes group = ZT_AXES(ZT_AXIS_PIPELINE);
    const enum zt_dtype t = ZT_F32;
    const int64_t count = LARGE;
    struct box a = make_box(r, LARGE * 4), up = make_box(r, LARGE * 4),
               down = make_box(r, LARGE * 4);
    struct zt_stream *second;
    RANK_CHECK(r, a.dev && up.dev && down.dev);
    RANK_OK(r, r->dev->ops->stream_create(r->dev, "second", 1, &second, &r->err));
    RANK_OK(r, give(r, &a, t, 0, count));
    if (r->rank > 0) {
        ops->send(r->coll, second, group, a.dev, count, t, r->rank - 1);
        ops->recv(r->coll, r->stream, group, up.dev, count, t, r->rank - 1);
    }
    if (r->rank + 1 < r->n) {
        ops->send(r->coll, r->stream, group, a.dev, count, t, r->rank + 1);
        ops->recv(r->coll, second, group, down.dev, count, t, r->rank + 1);
    }
    RANK_OK(r, sync_stream(r, second));
    if (r->rank > 0) {
        RANK_OK(r, fetch(r, &up));
        RANK_RIGHT(r, wrong_copied(up.host, t, r->rank - 1, 0, count));
    }
    if (r->rank + 1 < r->n) {
        RANK_OK(r, fetch(r, &down));
        RANK_RIGHT(r, wrong_copied(down.host, t, r->rank + 1, 0, count));
    }
    r->dev->ops->stream_free(second);
    free_box(r, &a);
    free_box(r, &up);
    free_box(r, &down);
}

/* Without a pipeline messages go through the world's communicator, in turn with its calls. */
static void body_ring(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    const enum zt_dtype t = ZT_I64;
    const int64_t count = 500;
    struct box a = make_box(r, 500 * 8), b = make_box(r, 500 * 8);
    int after = (r->rank + 1) % r->n, last = (r->rank + r->n - 1) % r->n;
    RANK_CHECK(r, a.dev && b.dev);
    RANK_OK(r, give(r, &a, t, 0, count));
    for (int half = 0; half < 2; half++) {
        if ((r->rank == 0) == (half == 0))
            ops->send(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, count, t, after);
        else
            ops->recv(r->coll, r->stream, ZT_GROUP_SHARD, b.dev, count, t, last);
    }
    ops->all_reduce(r->coll, r->stream, ZT_GROUP_WORLD, a.dev, a.dev, count, t, ZT_SUM);
    RANK_OK(r, fetch(r, &b));
    RANK_RIGHT(r, wrong_copied(b.host, t, last, 0, count));
    RANK_OK(r, fetch(r, &a));
    RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_WORLD, a.host, t, t, ZT_SUM, 0, count));
    free_box(r, &a);
    free_box(r, &b);
}

/* Groups of a 2 x 2 mesh in between each other, and one group on two streams. */
static void body_groups(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    const enum zt_dtype t = ZT_F32;
    const int64_t count = 1000;
    struct box a = make_box(r, 4000), b = make_box(r, 4000), c = make_box(r, 4000);
    struct zt_stream *second;
    RANK_CHECK(r, a.dev && b.dev && c.dev);
    RANK_OK(r, r->dev->ops->stream_create(r->dev, "second", 1, &second, &r->err));
    for (int round = 0; round < 5; round++) {
        RANK_OK(r, give(r, &a, t, round, count));
        RANK_OK(r, give(r, &b, t, round, count));
        RANK_OK(r, give(r, &c, t, round, count));
        ops->all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, a.dev, count, t, ZT_SUM);
        ops->all_reduce(r->coll, second, ZT_GROUP_REPLICATE, b.dev, b.dev, count, t, ZT_SUM);
        ops->all_reduce(r->coll, second, ZT_GROUP_SHARD, c.dev, c.dev, count, t, ZT_SUM);
        RANK_OK(r, sync_stream(r, second));
        RANK_OK(r, fetch(r, &a));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, a.host, t, t, ZT_SUM, round, count));
        RANK_OK(r, fetch(r, &b));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_REPLICATE, b.host, t, t, ZT_SUM, round, count));
        RANK_OK(r, fetch(r, &c));
        RANK_RIGHT(r, wrong_sum(r, ZT_GROUP_SHARD, c.host, t, t, ZT_SUM, round, count));
    }
    r->dev->ops->stream_free(second);
    free_box(r, &a);
    free_box(r, &b);
    free_box(r, &c);
}

/* A group of one copies, or casts. The world of one goes through NCCL. */
static void body_alone(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    const enum zt_dtype t = ZT_BF16;
    const int64_t count = 70;
    struct box a = make_box(r, 256), b = make_box(r, 280);
    RANK_CHECK(r, a.dev && b.dev);
    for (int kind = 0; kind < 3; kind++) {
        RANK_OK(r, give(r, &a, t, kind, count));
        if (kind == 0)
            ops->all_reduce(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, b.dev, count, t, ZT_SUM);
        else if (kind == 1)
            ops->all_gather(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, b.dev, count, t);
        else
            ops->reduce_scatter(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, t, b.dev, t, count);
        RANK_OK(r, fetch(r, &b));
        RANK_RIGHT(r, wrong_copied(b.host, t, r->rank, kind, count));
    }
    ops->reduce_scatter(r->coll, r->stream, ZT_GROUP_REPLICATE, a.dev, t, b.dev, ZT_F32, count);
    RANK_OK(r, fetch(r, &b));
    RANK_RIGHT(r, wrong_sum(r, 0, b.host, t, ZT_F32, ZT_SUM, 2, count));
    free_box(r, &a);
    free_box(r, &b);
}

/* Arenas, barriers, and an error that all learn of. */
static void body_host_calls(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    void *p = NULL, *q = NULL;
    char first = 1;
    RANK_OK(r, ops->alloc_shared(r->coll, 5000 + 100 * (size_t)r->rank, &p, &r->err));
    RANK_CHECK(r, p && !ops->peers_read_memory);
    RANK_OK(r, move(r, &first, p, 1));
    RANK_CHECK(r, first == 0);
    for (int i = 0; i < 3; i++)
        RANK_OK(r, ops->barrier(r->coll, &r->err));
    if (r->n == 1)
        return;
    int rc = ops->alloc_shared(r->coll, r->rank == 1 ? 0 : 100, &q, &r->err);
    RANK_CHECK(r, rc == ZT_EINPUT);
    RANK_CHECK(r, strstr(r->err.msg, r->rank == 1 ? "cannot be 0 bytes" : "rank 1 failed"));
    RANK_OK(r, ops->barrier(r->coll, &r->err));
}

static void body_float_maximum(struct rank *r)
{
    void *p = device_memory(r, 64);
    RANK_CHECK(r, p);
    r->coll->ops->all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, p, p, 4, ZT_BF16, ZT_MAX);
    RANK_CHECK(r, sync_stream(r, r->stream) == ZT_EUNSUPPORTED && strstr(r->err.msg, "NaN"));
    r->dev->ops->free(r->dev, p, 64);
}

#define TEST_RANKS(name)                                                                           \
    TEST(nccl_##name##_by_1_rank)                                                                  \
    {                                                                                              \
        CHECK_RANKS(mesh_of(1, 1, 1), body_##name);                                                \
    }                                                                                              \
    TEST(nccl_##name##_by_2_ranks)                                                                 \
    {                                                                                              \
        CHECK_RANKS(mesh_of(1, 1, 2), body_##name);                                                \
    }                                                                                              \
    TEST(nccl_##name##_by_3_ranks)                                                                 \
    {                                                                                              \
        CHECK_RANKS(mesh_of(1, 1, 3), body_##name);                                                \
    }
TEST_RANKS(all_reduce)
TEST_RANKS(reduce_scatter)
TEST_RANKS(moves)
TEST_RANKS(all_to_all)
TEST_RANKS(alone)
TEST_RANKS(host_calls)

TEST(nccl_groups_of_a_2_by_2_mesh)
{
    CHECK_RANKS(mesh_of(1, 2, 2), body_groups);
}

TEST(nccl_messages)
{
    CHECK_RANKS(mesh_of(1, 1, 3), body_ring);
    CHECK_RANKS(mesh_of(3, 1, 1), body_pipeline);
}

TEST(nccl_maximum_of_floats_is_refused)
{
    CHECK_RANKS(mesh_of(1, 1, 1), body_float_maximum);
}

/* ---- what goes wrong, on the simulator ---- */

#ifdef ZT_CUSIM

/* Run as processes, and leave what each said in why[]; all must end within 5 s of the first death. */
static void run_to_the_end(struct rank *ranks, int victim)
{
    pid_t pids[MAX_RANKS];
    int n_left = ranks->n;
    for (int i = 0; i < ranks->n; i++)
        pids[i] = start_process(&ranks[i]);
    for (int ms = 0; victim >= 0 && !atomic_load(&ranks->job->reached) && ms < PATIENCE_MS; ms++)
        poll(NULL, 0, 1);
    if (victim >= 0)
        kill(pids[victim], SIGKILL);
    int64_t begun = zt_now_ns();
    while (n_left > 0 && zt_now_ns() - begun < 5 * (int64_t)1000000000) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        for (int i = 0; i < ranks->n; i++) {
            if (pid <= 0 || pids[i] != pid)
                continue;
            pids[i] = 0;
            n_left--;
            if (i != victim && WIFSIGNALED(status))
                snprintf(ranks[i].why, WHY_BYTES, "signal %d", WTERMSIG(status));
        }
        if (pid <= 0)
            poll(NULL, 0, 1);
    }
    for (int i = 0; i < ranks->n; i++) {
        if (!pids[i])
            continue;
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        snprintf(ranks[i].why, WHY_BYTES, "hangs");
    }
}

#define CHECK_WHY(r, text)                                                                         \
    do {                                                                                           \
        if (!strstr((r)->why, text))                                                               \
            FAIL("rank %d says \"%s\", not \"%s\"", (r)->rank, (r)->why, text);                    \
    } while (0)

/* Rank 1 never comes to the second call. */
static void body_wait_for_rank_1(struct rank *r)
{
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && r->rank == 1)
            atomic_store(&r->job->reached, 1);
        while (i == 1 && r->rank == 1)
            pause();
        r->coll->ops->all_gather(r->coll, r->stream, ZT_GROUP_SHARD, p, (char *)p + 2048, 8,
                                 ZT_F32);
        RANK_OK(r, sync_stream(r, r->stream));
    }
}

TEST(nccl_a_killed_rank_ends_the_others)
{
    if (ZT_TSAN)
        SKIP("processes");
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 3), body_wait_for_rank_1);
    run_to_the_end(ranks, 1);
    for (int i = 0; i < 3; i += 2) {
        CHECK_WHY(&ranks[i], "fatal: -5 rank");
        CHECK_WHY(&ranks[i],
                  "its last call was all_gather #2 of 8 elements: remote process exited");
        CHECK_WHY(&ranks[i], "rank 1: its process has exited");
    }
    munmap(ranks->job, sizeof *ranks->job);
}

static void body_gathers(struct rank *r)
{
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    for (int i = 0; i < 4; i++) {
        r->coll->ops->all_gather(r->coll, r->stream, ZT_GROUP_SHARD, p, (char *)p + 2048, 8,
                                 ZT_F32);
        RANK_OK(r, sync_stream(r, r->stream));
    }
}

/* With CUSIM_FAIL set as `plan` says, on one of two ranks. */
static void check_failure(const char *plan, int rank, const char *text, const char *others)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_gathers);
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        if (i != rank)
            unsetenv("CUSIM_FAIL");
        else
            setenv("CUSIM_FAIL", plan, 1);
        pids[i] = start_process(&ranks[i]);
    }
    unsetenv("CUSIM_FAIL");
    for (int i = 0; i < 2; i++)
        waitpid(pids[i], NULL, 0);
    CHECK_WHY(&ranks[rank], text);
    CHECK_WHY(&ranks[1 - rank], others);
    munmap(ranks->job, sizeof *ranks->job);
}

TEST(nccl_failures_name_rank_call_and_group)
{
    if (ZT_TSAN)
        SKIP("processes");
    check_failure("ncclAllGather:3", 1,
                  "rank 1, GPU 1: all_gather #3 of 8 elements, fp32, over the axes 0x4 by NCCL: "
                  "unhandled system error",
                  "fatal: -5 rank 0, GPU 0: NCCL over the axes");
    RETURN_IF_FAILED();
    check_failure("ncclOp:2", 0,
                  "was all_gather #2 of 8 elements: unhandled system error: the "
                  "network is gone",
                  "rank 0: its process has exited");
}

TEST(nccl_refuses_two_ranks_on_one_gpu)
{
    if (ZT_TSAN)
        SKIP("processes");
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_gathers);
    ranks[1].device = 0;
    run_to_the_end(ranks, -1);
    for (int i = 0; i < 2; i++)
        CHECK_WHY(&ranks[i], "joining by NCCL: invalid usage: Duplicate GPU detected : rank 1 and "
                             "rank 0 both on CUDA device 0");
    munmap(ranks->job, sizeof *ranks->job);
}

/* Calls that do not match: the simulator says so and ends the process. */
static void body_mismatch(struct rank *r)
{
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    r->coll->ops->broadcast(r->coll, r->stream, ZT_GROUP_SHARD, p, 7 + r->rank, ZT_F32, 0);
    RANK_OK(r, sync_stream(r, r->stream));
}

TEST(nccl_simulator_finds_calls_that_do_not_match)
{
    if (ZT_TSAN)
        SKIP("processes");
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_mismatch);
    run_to_the_end(ranks, -1);
    CHECK(strstr(ranks[0].why, "signal 6") || strstr(ranks[1].why, "signal 6"));
    munmap(ranks->job, sizeof *ranks->job);
}

/* An abort ends what is under way, and all that comes later. */
static void *abort_soon(void *arg)
{
    struct rank *r = arg;
    poll(NULL, 0, 20); /* whether it has begun to wait does not matter */
    r->coll->ops->abort(r->coll);
    return NULL;
}

static void body_abort(struct rank *r)
{
    const struct zt_coll_ops *ops = r->coll->ops;
    pthread_t thread;
    void *p = device_memory(r, 4096);
    RANK_CHECK(r, p);
    if (r->rank == 1) { /* comes to nothing, until the other has given up */
        while (!atomic_load(&r->job->reached))
            poll(NULL, 0, 1);
    } else {
        ops->all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, p, p, 8, ZT_F32, ZT_SUM);
        RANK_CHECK(r, pthread_create(&thread, NULL, abort_soon, r) == 0);
        RANK_CHECK(r, sync_stream(r, r->stream) == ZT_EPEER);
        pthread_join(thread, NULL);
    }
    if (r->rank == 1)
        ops->abort(r->coll);
    ops->all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, p, p, 8, ZT_F32, ZT_SUM);
    RANK_CHECK(r, sync_stream(r, r->stream) == ZT_EPEER);
    RANK_CHECK(r, ops->barrier(r->coll, &r->err) == ZT_EPEER);
    atomic_store(&r->job->reached, 1);
}

TEST(nccl_abort_ends_what_is_under_way)
{
    struct rank ranks[MAX_RANKS];
    init_ranks(ranks, mesh_of(1, 1, 2), body_abort);
    /* Rank 1 may learn of rank 0's abort before it aborts itself: that is fatal to it, and right. */
    if (ZT_TSAN)
        SKIP("what is fatal would end the test");
    run_to_the_end(ranks, -1);
    CHECK_STR(ranks[0].why, "");
    CHECK(!*ranks[1].why || strstr(ranks[1].why, "fatal: -5"));
    munmap(ranks->job, sizeof *ranks->job);
}

/* ---- planted: ThreadSanitizer must see a wait that is not there ---- */

static const char *planted;

static void body_planted(struct rank *r)
{
    enum { COUNT = 40000 };
    const struct zt_dev_ops *dev = r->dev->ops;
    struct box a = make_box(r, COUNT * 4);
    struct zt_stream *producer;
    RANK_CHECK(r, a.dev);
    RANK_OK(r, dev->stream_create(r->dev, "producer", 1, &producer, &r->err));
    const struct zt_zero zero = {a.dev, a.bytes};
    dev->zero(producer, &zero);
    if (strcmp(planted, "before") != 0)
        dev->wait(r->stream, dev->record(producer));
    r->coll->ops->all_reduce(r->coll, r->stream, ZT_GROUP_SHARD, a.dev, a.dev, COUNT, ZT_F32,
                             ZT_SUM);
    if (strcmp(planted, "after") != 0)
        dev->wait(producer, dev->record(r->stream));
    dev->zero(producer, &zero);
    RANK_OK(r, sync_stream(r, producer));
    RANK_OK(r, sync_stream(r, r->stream));
    dev->stream_free(producer);
    free_box(r, &a);
}

TEST(nccl_planted_missing_waits_are_races_that_tsan_reports)
{
    planted = planted_fault();
    if (!ZT_TSAN)
        SKIP("only with SAN=thread");
    if (planted) {
        CHECK_RANKS_AS(run_threads, mesh_of(1, 1, 2), body_planted);
        return;
    }
    CHECK_INT(run_planted("none", "planted"), 0);
    CHECK_INT(run_planted("before", "planted"), PLANTED_RACE);
    CHECK_INT(run_planted("after", "planted"), PLANTED_RACE);
}

#endif

TEST_MAIN()
