/*
 * The store of offload to NVMe beside dd with direct I/O, on one file system, in turns within one run:
 *
 *     bench_disk [folder, default .] [MB, default 1000]
 *
 * A file that has been written before is written and read as a whole, ours in units of 64 MB as training
 * has them. Median of the rounds, and the ratio to the better of two dd: blocks of 1 MB, and of 16 MB, which
 * the kernel splits and has in flight at once. Both at once: our reads and writes of different halves at
 * the same time, bytes of both together. fio beside them where it is installed.
 */
#include "offload/disk.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "dev/queue.h"

enum { ROUNDS = 7, MB = 1 << 20, UNIT = 64 * MB };

enum way { DD_1M, DD_16M, FIO, URING, THREADS, N_WAYS };
enum what { WRITE, READ, BOTH, N_WHATS };

static const char *const names[N_WAYS] = {"dd bs=1M", "dd bs=16M", "fio, 16 x 1M", "io_uring",
                                          "threads"};

struct bench {
    const char *folder;
    size_t bytes;
    unsigned char *memory; /* (2, UNIT), as the arenas have it: in huge pages */
    struct zt_dev *dev;
    struct zt_stream *streams[ZT_N_DISK_DIRS];
    double times_s[N_WAYS][N_WHATS][ROUNDS];
    int n_times[N_WAYS][N_WHATS];
};

static void keep(struct bench *b, enum way w, enum what x, double seconds)
{
    b->times_s[w][x][b->n_times[w][x]++] = seconds;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 0: not measured. */
static double median(struct bench *b, enum way w, enum what x)
{
    const int n = b->n_times[w][x];
    qsort(b->times_s[w][x], (size_t)n, sizeof(double), by_value);
    return n ? b->times_s[w][x][n / 2] : 0;
}

/* Drives of virtual machines are slowed down after a burst: every pass begins rested. */
static void rest(void)
{
    usleep(700 * 1000);
}

static double run_command(const char *command)
{
    rest();
    int64_t begin = zt_now_ns();
    if (system(command) != 0) {
        fprintf(stderr, "bench_disk: failed: %s\n", command);
        exit(1);
    }
    return (double)(zt_now_ns() - begin) * 1e-9;
}

static void run_dd(struct bench *b, enum way w)
{
    char command[512];
    const size_t block_mb = w == DD_1M ? 1 : 16, n = b->bytes / MB / block_mb;
    snprintf(command, sizeof command,
             "dd if=/dev/zero of='%s/bench_disk.dd' bs=%zuM count=%zu oflag=direct conv=notrunc "
             "status=none",
             b->folder, block_mb, n);
    keep(b, w, WRITE, run_command(command));
    snprintf(command, sizeof command,
             "dd if='%s/bench_disk.dd' of=/dev/null bs=%zuM count=%zu iflag=direct status=none",
             b->folder, block_mb, n);
    keep(b, w, READ, run_command(command));
}

/* It reports its own time: starting it takes long. */
static void run_fio(struct bench *b)
{
    static const char *const kinds[] = {[WRITE] = "write", [READ] = "read"};
    for (int x = WRITE; x <= READ; x++) {
        char command[512];
        double ms = 0;
        snprintf(
            command, sizeof command,
            "fio --name=x --filename='%s/bench_disk.dd' --size=%zuM --rw=%s --direct=1 --bs=1M "
            "--iodepth=16 --ioengine=io_uring --minimal | cut -d';' -f%d",
            b->folder, b->bytes / MB, kinds[x], x == READ ? 9 : 50);
        FILE *p = popen(command, "r");
        if (p && fscanf(p, "%lf", &ms) == 1 && ms > 0)
            keep(b, FIO, (enum what)x, ms * 1e-3);
        if (p)
            pclose(p);
    }
}

static void finish(struct bench *b)
{
    struct zt_err err;
    for (int d = 0; d < ZT_N_DISK_DIRS; d++) {
        if (b->dev->ops->sync(b->dev->ops->record(b->streams[d]), &err)) {
            fprintf(stderr, "bench_disk: %s\n", err.msg);
            exit(1);
        }
    }
}

/* Units [first, last) in one direction. */
static void enqueue(struct bench *b, struct zt_disk *d, enum zt_disk_dir dir, size_t first,
                    size_t last)
{
    for (size_t u = first; u < last; u++) {
        const struct zt_disk_range r = {u * UNIT, b->memory + (size_t)dir * UNIT, UNIT};
        zt_disk_enqueue(d, b->streams[dir], dir, &r, 1);
    }
}

static void run_ours(struct bench *b, enum way w, struct zt_disk *d)
{
    const size_t n = b->bytes / UNIT;
    rest();
    int64_t begin = zt_now_ns();
    enqueue(b, d, ZT_DISK_WRITE, 0, n);
    finish(b);
    keep(b, w, WRITE, (double)(zt_now_ns() - begin) * 1e-9);
    rest();
    begin = zt_now_ns();
    enqueue(b, d, ZT_DISK_READ, 0, n);
    finish(b);
    keep(b, w, READ, (double)(zt_now_ns() - begin) * 1e-9);
    rest();
    begin = zt_now_ns();
    enqueue(b, d, ZT_DISK_READ, 0, n / 2);
    enqueue(b, d, ZT_DISK_WRITE, n / 2, n / 2 * 2);
    finish(b);
    keep(b, w, BOTH, (double)(zt_now_ns() - begin) * 1e-9);
}

static struct zt_disk *open_store(const struct bench *b, enum zt_disk_backend backend)
{
    const struct zt_disk_opts o = {.dir = b->folder,
                                   .bytes = b->bytes,
                                   .backend = backend,
                                   .block_bytes = MB,
                                   .queue_depth = 16,
                                   .n_threads = 4};
    struct zt_disk *d;
    struct zt_err err;
    if (zt_disk_open(&o, &d, &err)) {
        printf("%s\n", err.msg);
        return NULL;
    }
    printf("%s\n", zt_disk_describe(d));
    return d;
}

static void print(struct bench *b)
{
    printf("%-14s%20s%20s%20s\n", "GB/s (of dd's)", "write", "read", "both at once");
    for (int w = 0; w < N_WAYS; w++) {
        if (b->n_times[w][WRITE] == 0)
            continue;
        printf("%-14s", names[w]);
        for (int x = 0; x < N_WHATS && b->n_times[w][x] > 0; x++) {
            const size_t bytes = x == BOTH ? b->bytes / UNIT / 2 * 2 * UNIT : b->bytes;
            const double seconds = median(b, w, x);
            printf("%12.2f", (double)bytes / seconds * 1e-9);
            if (x != BOTH)
                printf("%8.2f", ZT_MIN(median(b, DD_1M, x), median(b, DD_16M, x)) / seconds);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.folder = argc > 1 ? argv[1] : "."};
    struct zt_err err;
    int64_t mb = 1000;
    if (argc > 2 && (!zt_parse_i64(argv[2], &mb) || mb < 2 * UNIT / MB)) {
        fprintf(stderr, "bench_disk: \"%s\" is not a number of MB of 128 or more\n", argv[2]);
        return 2;
    }
    b.bytes = (size_t)mb * MB / UNIT * UNIT;
    void *memory;
    if (zt_cpu_dev_create(&b.dev, NULL, 0, &err) ||
        b.dev->ops->alloc_host(b.dev, 2 * UNIT, &memory, &err)) {
        fprintf(stderr, "bench_disk: %s\n", err.msg);
        return 1;
    }
    b.memory = memory;
    memset(b.memory, 1, 2 * UNIT);
    for (int d = 0; d < ZT_N_DISK_DIRS; d++)
        if (b.dev->ops->stream_create(b.dev, d == ZT_DISK_READ ? "read" : "write", 1, &b.streams[d],
                                      &err))
            return 1;
    struct zt_disk *uring = open_store(&b, ZT_DISK_URING),
                   *threads = open_store(&b, ZT_DISK_THREADS);
    const bool fio = system("command -v fio >/dev/null") == 0;
    for (int i = 0; i < ROUNDS; i++) {
        run_dd(&b, DD_1M);
        run_dd(&b, DD_16M);
        if (fio)
            run_fio(&b);
        if (uring)
            run_ours(&b, URING, uring);
        if (threads)
            run_ours(&b, THREADS, threads);
    }
    char path[512];
    snprintf(path, sizeof path, "%s/bench_disk.dd", b.folder);
    unlink(path);
    zt_disk_close(uring);
    zt_disk_close(threads);
    print(&b);
    return 0;
}
