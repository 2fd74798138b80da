/*
 * All-reduce and all-gather between nodes:
 *
 *     bench_tcp NODES [NETWORK_NAMESPACE...]
 *
 * One rank on each node: in the network namespaces named, in turn, or all on the loopback interface.
 * Prints one line for each size: what, bytes of the whole buffer, best, median and mean microseconds of rank 0, each
 * call begun together, and the microseconds of processor time that a call cost its process. Small calls are also
 * made in rows, as a training makes them: begun together and waited for as a row; what is named like the call with
 * _row is a row's time by its calls. test/bench/bench_net.sh runs it beside others.
 */
#include "coll/tcp.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/str.h"

enum { MAX_NODES = 16, MAX_ROUNDS = 100, ROW = 100 };

static const struct {
    size_t bytes;
    int rounds, calls; /* that a round makes before it waits */
} sizes[] = {{100 * 1000 * 1000, 6, 1}, {4096, MAX_ROUNDS, 1}, {4096, 10, ROW}};

struct node {
    int rank, n;
    const char *namespace; /* NULL: none */
    int sock;              /* to the parent */
    uint8_t secret[ZT_TCP_SECRET_BYTES];
};

ZT_NORETURN static void die(const char *what, const struct zt_err *err)
{
    fprintf(stderr, "bench_tcp: %s: %s\n", what, err->msg);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of all threads of this process. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void enter(const char *namespace)
{
    char path[256];
    struct zt_err err;
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) {
        zt_err_errno(&err, ZT_ESYS, "%s", path);
        die("network namespace", &err);
    }
    close(fd);
}

static struct zt_coll *join(const struct node *node, struct zt_dev *dev)
{
    struct zt_tcp_address all[MAX_NODES];
    struct zt_shm_job local = {.n_ranks = 1};
    struct zt_mesh mesh = {{1, 1, node->n, 1, 1}};
    struct zt_coll *c;
    struct zt_err err;
    int listen_fd, arena_fd, node_of[MAX_NODES];
    const char *interface = node->namespace ? "eth0" : "lo";
    for (int i = 0; i < MAX_NODES; i++)
        node_of[i] = i;
    if (zt_tcp_listen(interface, NULL, &listen_fd, &all[node->rank], &err) ||
        zt_write_full(node->sock, &all[node->rank], sizeof *all, "parent", &err) ||
        zt_read_full(node->sock, all, (size_t)node->n * sizeof *all, "parent", &err) < 0 ||
        zt_shm_job_create(1, &local.control_fd, &arena_fd, &err))
        die("meeting", &err);
    local.arena_fds = &arena_fd;
    const struct zt_tcp_job job = {
        .n_nodes = node->n, .node_of = node_of, .addresses = all, .secret = node->secret};
    if (zt_tcp_coll_create(&job, &local, listen_fd, dev, &mesh, node->rank, &c, &err))
        die("joining", &err);
    return c;
}

static void measure(const struct node *node, struct zt_dev *dev, struct zt_coll *c, float *buf)
{
    struct zt_stream *s;
    struct zt_err err;
    static double us[MAX_ROUNDS];
    if (dev->ops->stream_create(dev, "comm", 1, &s, &err))
        die("stream", &err);
    for (int k = 0; k < 2 * (int)ZT_ARRAY_LEN(sizes); k++) {
        const int rounds = sizes[k / 2].rounds, calls = sizes[k / 2].calls;
        const bool gathers = k % 2;
        int64_t count = (int64_t)(sizes[k / 2].bytes / sizeof *buf), part = count / node->n;
        const double cpu_begun_s = cpu_s();
        double sum_us = 0;
        for (int i = 0; i < rounds; i++) {
            if (c->ops->barrier(c, &err))
                die("barrier", &err);
            int64_t begun_ns = zt_now_ns();
            for (int j = 0; j < calls; j++)
                if (gathers)
                    zt_all_gather(c, s, ZT_GROUP_SHARD, buf + node->rank * part, buf, part, ZT_F32);
                else
                    zt_all_reduce(c, s, ZT_GROUP_SHARD, buf, buf, count, ZT_F32, ZT_SUM);
            if (dev->ops->sync(dev->ops->record(s), &err))
                die("call", &err);
            us[i] = (double)(zt_now_ns() - begun_ns) * 1e-3 / calls;
            sum_us += us[i];
        }
        const double cpu_us = (cpu_s() - cpu_begun_s) * 1e6 / (rounds * calls);
        qsort(us, (size_t)rounds, sizeof *us, by_value);
        if (node->rank == 0)
            printf("%s%s %zu %.1f %.1f %.1f %.1f\n", gathers ? "all_gather" : "all_reduce",
                   calls > 1 ? "_row" : "", sizes[k / 2].bytes, us[0], us[rounds / 2],
                   sum_us / rounds, cpu_us);
    }
    dev->ops->stream_free(s);
}

static void run(const struct node *node)
{
    struct zt_dev *dev;
    struct zt_err err;
    void *buf;
    if (node->namespace)
        enter(node->namespace);
    if (zt_cpu_dev_create(&dev, NULL, 0, &err))
        die("device", &err);
    struct zt_coll *c = join(node, dev);
    if (c->ops->alloc_shared(c, sizes[0].bytes, &buf, &err))
        die("memory", &err);
    measure(node, dev, c, buf);
    c->ops->free(c);
    zt_cpu_dev_free(dev);
}

int main(int argc, char **argv)
{
    struct zt_tcp_address all[MAX_NODES];
    struct zt_err err;
    int64_t n = 2;
    int socks[MAX_NODES], bad = 0;
    struct node node = {0};
    if ((argc > 1 && !zt_parse_i64(argv[1], &n)) || n < 2 || n > MAX_NODES ||
        (argc > 2 && argc != 2 + n)) {
        fprintf(stderr, "usage: bench_tcp NODES [NETWORK_NAMESPACE...]\n");
        return 2;
    }
    node.n = (int)n;
    if (getrandom(node.secret, sizeof node.secret, 0) != sizeof node.secret)
        return 1;
    for (int i = 0; i < n; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
            return 1;
        socks[i] = pair[0];
        node.rank = i;
        node.sock = pair[1];
        node.namespace = argc > 2 ? argv[2 + i] : NULL;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left to give it addresses */
            run(&node);
            fflush(stdout);
            _exit(0);
        }
        close(pair[1]);
    }
    for (int i = 0; i < n; i++)
        if (zt_read_full(socks[i], &all[i], sizeof *all, "rank", &err) != 1)
            return 1;
    for (int i = 0; i < n; i++)
        if (zt_write_full(socks[i], all, (size_t)n * sizeof *all, "rank", &err))
            return 1;
    for (int status; wait(&status) > 0;)
        bad |= status;
    return bad ? 1 : 0;
}
