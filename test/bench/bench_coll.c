/*
 * Shared-memory collectives beside a plain copy of the same bytes, in turns within one run:
 *
 *     bench_coll [MB of the whole buffer, default 100] [processes, default 2]
 *
 * Best of the rounds in wall time, and in processor time of the stream's thread, which tells more on a
 * machine that others use (waiting for a peer costs none, but memory that others keep busy does); and
 * the ratios to the better copy: every process copies the whole buffer at the same time, by memcpy or
 * around the cache. Bytes through memory for each byte of the buffer, n
 * processes: copy 2 (read and write), all-reduce 2, reduce-scatter 1 + 1/n, all-gather in place
 * 2 - 2/n. Also the time of the smallest all-reduce, which is two meetings.
 */
#include "coll/shm.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "coll/combine.h"

enum { ROUNDS = 15, SMALL_CALLS = 2000 };

enum work {
    MEMCPY,
    COPY_LARGE,
    ALL_REDUCE_F32,
    ALL_REDUCE_BF16,
    REDUCE_SCATTER_F32,
    REDUCE_SCATTER_BF16,
    REDUCE_SCATTER_BF16_F32,
    ALL_GATHER,
    ALL_GATHER_APART,
    ALL_REDUCE_1,
    N_WORKS,
};

static const char *const names[N_WORKS] = {
    "memcpy",
    "copy around the cache",
    "all-reduce fp32",
    "all-reduce bf16",
    "reduce-scatter fp32",
    "reduce-scatter bf16",
    "reduce-scatter bf16 to fp32",
    "all-gather in place",
    "all-gather apart",
    "all-reduce of 1 element",
};

struct times {
    double wall, cpu; /* seconds */
};

struct bench {
    struct zt_shm_job job;
    struct zt_mesh mesh;
    size_t bytes;
};

ZT_NORETURN static void die(const char *what, const struct zt_err *err)
{
    fprintf(stderr, "bench_coll: %s: %s\n", what, err->msg);
    _exit(1);
}

static int run_memcpy(void *arg, struct zt_err *err)
{
    const struct zt_copy *a = arg;
    (void)err;
    memcpy(a->dst, a->src, a->bytes);
    return ZT_OK;
}

static int run_copy_large(void *arg, struct zt_err *err)
{
    const struct zt_copy *a = arg;
    (void)err;
    zt_copy_large(a->dst, a->src, a->bytes);
    return ZT_OK;
}

/* Processor time of the stream's thread so far. */
static int run_stamp(void *arg, struct zt_err *err)
{
    double *out = *(double **)arg;
    struct timespec t;
    (void)err;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    *out = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    return ZT_OK;
}

static void do_work(struct zt_coll *c, struct zt_stream *s, enum work work, char *a, char *b,
                    size_t bytes)
{
    int n = zt_mesh_world(&c->mesh);
    int64_t n32 = (int64_t)bytes / 4, n16 = (int64_t)bytes / 2;
    char *mine = a + bytes / (size_t)n * (size_t)c->rank;
    struct zt_copy copy = {.dst = b, .src = a, .bytes = bytes};
    switch (work) {
    case MEMCPY:
        c->dev->ops->host_call(s, run_memcpy, &copy, sizeof copy);
        break;
    case COPY_LARGE:
        c->dev->ops->host_call(s, run_copy_large, &copy, sizeof copy);
        break;
    case ALL_REDUCE_F32:
        zt_all_reduce(c, s, ZT_GROUP_WORLD, a, a, n32, ZT_F32, ZT_SUM);
        break;
    case ALL_REDUCE_BF16:
        zt_all_reduce(c, s, ZT_GROUP_WORLD, a, a, n16, ZT_BF16, ZT_SUM);
        break;
    case REDUCE_SCATTER_F32:
        zt_reduce_scatter(c, s, ZT_GROUP_WORLD, a, ZT_F32, b, ZT_F32, n32 / n);
        break;
    case REDUCE_SCATTER_BF16:
        zt_reduce_scatter(c, s, ZT_GROUP_WORLD, a, ZT_BF16, b, ZT_BF16, n16 / n);
        break;
    case REDUCE_SCATTER_BF16_F32:
        zt_reduce_scatter(c, s, ZT_GROUP_WORLD, a, ZT_BF16, b, ZT_F32, n16 / n);
        break;
    case ALL_GATHER:
        zt_all_gather(c, s, ZT_GROUP_WORLD, mine, a, n32 / n, ZT_F32);
        break;
    case ALL_GATHER_APART:
        zt_all_gather(c, s, ZT_GROUP_WORLD, mine, b, n32 / n, ZT_F32);
        break;
    case ALL_REDUCE_1:
        for (int i = 0; i < SMALL_CALLS; i++)
            zt_all_reduce(c, s, ZT_GROUP_WORLD, a, a, 1, ZT_I64, ZT_SUM);
        break;
    case N_WORKS:
        break;
    }
}

/* One round of one work: from a common start to the end of all ranks. */
static struct times time_work(struct zt_coll *c, struct zt_stream *s, enum work work, char *a,
                              char *b, size_t bytes)
{
    const struct zt_dev_ops *dev = c->dev->ops;
    double cpu[2], *from = &cpu[0], *to = &cpu[1];
    struct zt_err err;
    if (c->ops->barrier(c, &err))
        die("barrier", &err);
    double start = zt_now_s();
    dev->host_call(s, run_stamp, &from, sizeof from);
    do_work(c, s, work, a, b, bytes);
    dev->host_call(s, run_stamp, &to, sizeof to);
    if (dev->sync(dev->record(s), &err) || c->ops->barrier(c, &err))
        die(names[work], &err);
    return (struct times){zt_now_s() - start, cpu[1] - cpu[0]};
}

static void run_rank(const struct bench *bench, int rank, struct times best[N_WORKS])
{
    struct zt_err err;
    struct zt_dev *dev;
    struct zt_coll *c;
    struct zt_stream *s;
    void *a, *b;
    if (zt_cpu_dev_create(&dev, NULL, 0, &err) ||
        zt_shm_coll_create(&bench->job, dev, &bench->mesh, rank, &c, &err) ||
        dev->ops->stream_create(dev, "comm", 1, &s, &err) ||
        c->ops->alloc_shared(c, bench->bytes, &a, &err) ||
        dev->ops->alloc(dev, bench->bytes, &b, &err))
        die("start", &err);
    memset(a, 0, bench->bytes);
    for (int w = 0; w < N_WORKS; w++)
        best[w] = (struct times){INFINITY, INFINITY};
    for (int i = 0; i < ROUNDS; i++) {
        for (int w = 0; w < N_WORKS; w++) {
            struct times took = time_work(c, s, (enum work)w, a, b, bench->bytes);
            best[w].wall = ZT_MIN(best[w].wall, took.wall);
            best[w].cpu = ZT_MIN(best[w].cpu, took.cpu);
        }
    }
    dev->ops->stream_free(s);
    dev->ops->free(dev, b, bench->bytes);
    c->ops->free(c);
    zt_cpu_dev_free(dev);
}

static void print_results(const struct times best[N_WORKS])
{
    double wall = ZT_MIN(best[MEMCPY].wall, best[COPY_LARGE].wall);
    double cpu = ZT_MIN(best[MEMCPY].cpu, best[COPY_LARGE].cpu);
    printf("%-28s %9s %8s %11s %8s\n", "", "wall ms", "of copy", "thread ms", "of copy");
    for (int w = 0; w < ALL_REDUCE_1; w++)
        printf("%-28s %9.2f %8.2f %11.2f %8.2f\n", names[w], best[w].wall * 1e3,
               best[w].wall / wall, best[w].cpu * 1e3, best[w].cpu / cpu);
    printf("%-28s %9.2f us\n", names[ALL_REDUCE_1], best[ALL_REDUCE_1].wall / SMALL_CALLS * 1e6);
}

int main(int argc, char **argv)
{
    int64_t mb = 100, n = 2;
    int fds[ZT_SHM_MAX_RANKS], control, failed = 0;
    struct zt_err err;
    if ((argc > 1 && !zt_parse_i64(argv[1], &mb)) || (argc > 2 && !zt_parse_i64(argv[2], &n)) ||
        mb < 1 || mb > 100000 || n < 1 || n > ZT_SHM_MAX_RANKS) {
        fprintf(stderr, "usage: bench_coll [MB] [PROCESSES]\n");
        return 2;
    }
    if (zt_shm_job_create((int)n, &control, fds, &err))
        die("job", &err);
    struct bench bench = {
        .job = {.control_fd = control, .n_ranks = (int)n, .arena_fds = fds},
        .mesh = {{1, 1, (int)n, 1, 1}},
        .bytes = (size_t)mb * 1000000 / (256 * (size_t)n) * (256 * (size_t)n),
    };
    struct times(*best)[N_WORKS] = mmap(NULL, (size_t)n * sizeof *best, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ZT_ASSERT(best != MAP_FAILED);
    for (int r = 0; r < n; r++) {
        if (fork() == 0) {
            run_rank(&bench, r, best[r]);
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;) {
        failed |= status;
        if (status)
            zt_shm_job_abort(control);
    }
    if (failed)
        return 1;
    printf("%lld MB, %lld processes, best of %d\n", (long long)mb, (long long)n, ROUNDS);
    print_results(best[0]);
    return 0;
}
