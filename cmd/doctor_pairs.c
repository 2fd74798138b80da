/*
 * doctor_pairs.c: round trip and bandwidth between each two hosts, by the messages that CPU workers exchange
 * (coll/tcp.h), and whether they see the same folders. Each host has a partner in each of n - 1 rounds (the
 * circle method of tournaments), so pairs of a round are measured at once.
 */
#include "doctor.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "worker.h"

enum {
    JOIN_S = 8,
    TRIPS = 30,
    FIRST_BYTES = 64 << 10, /* tells how much to send */
    MOST_BYTES = 32 << 20,  /* at once */
};

struct net {
    struct doctor_probe *p;
    struct zt_dev *dev;
    struct zt_coll *coll;
    struct zt_stream *s;
    char *buf;     /* (MOST_BYTES) of memory that peers may read */
    double most_s; /* of a direction of a pair */
};

static int transfer(struct net *n, bool out, int64_t bytes, int peer, struct zt_err *err)
{
    if (out)
        zt_send(n->coll, n->s, ZT_GROUP_WORLD, n->buf, bytes / 2, ZT_BF16, peer);
    else
        zt_recv(n->coll, n->s, ZT_GROUP_WORLD, n->buf, bytes / 2, ZT_BF16, peer);
    return n->dev->ops->sync(n->dev->ops->record(n->s), err);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A send is over when the answer is here: the median of a few that carry next to nothing. */
static int measure_trips(struct net *n, bool out, int peer, double *us, struct zt_err *err)
{
    double each[TRIPS];
    int rc = 0;
    for (int i = 0; i < TRIPS && !rc; i++) {
        const int64_t begun_ns = zt_now_ns();
        rc = transfer(n, out, 64, peer, err);
        each[i] = (double)(zt_now_ns() - begun_ns) * 1e-3;
    }
    if (rc)
        return rc;
    qsort(each, TRIPS, sizeof *each, by_value);
    *us = each[TRIPS / 2];
    return 0;
}

/* One way: a little, which tells how much fits into the time; its number; and so much. */
static int measure_way(struct net *n, bool out, int peer, double *bytes_per_s, struct zt_err *err)
{
    int64_t bytes = FIRST_BYTES, begun_ns = zt_now_ns();
    int rc = transfer(n, out, bytes, peer, err);
    const double first_s = (double)(zt_now_ns() - begun_ns) * 1e-9;
    if (rc)
        return rc;
    bytes = (int64_t)ZT_MIN(n->most_s / first_s * FIRST_BYTES, (double)MOST_BYTES);
    bytes = ZT_MAX(bytes / FIRST_BYTES, (int64_t)1) * FIRST_BYTES;
    memcpy(n->buf, &bytes, sizeof bytes);
    rc = transfer(n, out, sizeof bytes, peer, err);
    if (rc)
        return rc;
    memcpy(&bytes, n->buf, sizeof bytes);
    if (bytes < FIRST_BYTES || bytes > MOST_BYTES)
        return zt_err_set(err, ZT_EPROTO, "rank %d wants to send %lld bytes", peer,
                          (long long)bytes);
    begun_ns = zt_now_ns();
    rc = transfer(n, out, bytes, peer, err);
    *bytes_per_s = (double)bytes / ((double)(zt_now_ns() - begun_ns) * 1e-9);
    return rc;
}

/* The lower rank of a pair sends first, measures the trips and reports its way; so does the other after it. */
static int measure_pair(struct net *n, int peer, struct zt_err *err)
{
    const int me = n->p->w.rank;
    double us = 0, bytes_per_s = 0;
    int rc = measure_trips(n, me < peer, peer, &us, err);
    for (int way = 0; way < 2 && !rc; way++) {
        const bool out = (me < peer) == (way == 0);
        rc = measure_way(n, out, peer, &bytes_per_s, err);
        if (rc || !out)
            continue;
        json_t *pair = json_pack("{s:i, s:i, s:f, s:f}", "from", me, "to", peer, "bytes_per_s",
                                 bytes_per_s, "round_trip_us", way == 0 ? us : 0.0);
        char *line = json_dumps(pair, JSON_COMPACT);
        rc = line ? zt_worker_report(&n->p->w, line, strlen(line), err) : 0;
        free(line);
        json_decref(pair);
    }
    return rc;
}

/* Whom a rank meets in a round; -1: nobody. n_even: ranks, or one more where they are odd. */
static int partner(int rank, int round, int n_even, int n_ranks)
{
    const int turning = n_even - 1; /* all but the last stand on a circle that turns */
    int peer;
    if (rank == turning)
        peer = round;
    else if (rank == round)
        peer = turning;
    else
        peer = (2 * round - rank + 2 * turning) % turning;
    return peer < n_ranks ? peer : -1;
}

static int measure(struct net *n, struct zt_err *err)
{
    const int n_ranks = n->p->w.world, n_even = n_ranks + n_ranks % 2;
    int rc = 0;
    n->most_s = ZT_MIN(0.1, 1.0 / n_even);
    for (int round = 0; round < n_even - 1 && !rc; round++) {
        const int peer = partner(n->p->w.rank, round, n_even, n_ranks);
        if (peer >= 0)
            rc = measure_pair(n, peer, err);
    }
    return rc;
}

static int open_net(struct net *n, struct zt_err *err)
{
    void *buf = NULL;
    int rc = zt_cpu_dev_create(&n->dev, NULL, 0, err);
    if (!rc)
        rc = worker_open_cpu(&n->p->w, n->dev, JOIN_S, &n->coll, err);
    if (!rc)
        rc = n->coll->ops->alloc_shared(n->coll, MOST_BYTES, &buf, err);
    if (!rc)
        rc = n->dev->ops->stream_create(n->dev, "messages", 1, &n->s, err);
    n->buf = buf;
    if (buf)
        memset(buf, 1, MOST_BYTES); /* no page is made while we measure */
    return rc;
}

static void close_net(struct net *n)
{
    if (n->s)
        n->dev->ops->stream_free(n->s);
    if (n->coll)
        n->coll->ops->free(n->coll);
    if (n->dev)
        zt_cpu_dev_free(n->dev);
}

/* ---- do they see the same folder? ---- */

struct sign {
    uint64_t name; /* random, of rank 0 */
    uint64_t seen;
};

/* Rank 0 leaves a file there, and the others look for it; it goes when all have looked. */
static int check_shared(struct doctor_probe *p, const char *dir, struct zt_err *err)
{
    struct sign mine = {0}, *all = zt_xcalloc((size_t)p->w.world, sizeof *all);
    struct zt_str path = {0};
    int fd = -1, rc = 0;
    if (p->w.rank == 0 && getrandom(&mine.name, sizeof mine.name, 0) != sizeof mine.name)
        rc = zt_err_errno(err, ZT_ESYS, "getrandom");
    if (!rc)
        rc = zt_worker_share(&p->w, &mine.name, sizeof mine.name, err);
    zt_str_printf(&path, "%s/.zerotrain-doctor-%016llx", dir, (unsigned long long)mine.name);
    if (!rc && p->w.rank == 0)
        fd = open(path.buf, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (!rc)
        rc = zt_worker_gather(&p->w, &mine, sizeof mine, all, err); /* it is there now */
    mine.seen = access(path.buf, F_OK) == 0;
    if (!rc)
        rc = zt_worker_gather(&p->w, &mine, sizeof mine, all, err);
    if (fd >= 0) {
        unlink(path.buf);
        close(fd);
    }
    if (!rc && all[0].seen && !mine.seen)
        doctor_say(p, "shared folder", DOCTOR_FAIL,
                   "checkpoints need one that all hosts share: mount it on each by the same path",
                   NULL, "%s is another folder than on the first host", dir);
    zt_str_release(&path);
    free(all);
    return rc;
}

int doctor_check_pairs(struct doctor_probe *p, struct zt_err *err)
{
    struct net n = {.p = p};
    const char *shared = json_string_value(json_object_get(p->ask, "shared"));
    int rc = shared ? check_shared(p, shared, err) : 0;
    if (!rc)
        rc = open_net(&n, err);
    if (!rc)
        rc = measure(&n, err);
    close_net(&n);
    return rc;
}
