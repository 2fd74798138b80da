/*
 * What goes wrong between nodes: calls that differ, ranks that die, strangers at the port while a job joins,
 * proofs that are none.
 */
#define TEST_RIGS                                                                                  \
    {.on_each = 1, .host = "127.0.0.1"}, {.on_each = 2, .host = "::1"},                            \
    {                                                                                              \
        .on_each = 2, .backwards = true, .host = "127.0.0.1"                                       \
    }
#include "mismatches.h"

#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "coll/tcp_auth.h"
#include "dev/sanitize.h"

/* ---- proofs ---- */

static void fresh_hello(struct tcp_hello *h, uint8_t nonce[TCP_NONCE_BYTES])
{
    struct zt_err err;
    memset(h, 0, sizeof *h);
    memcpy(h->magic, TCP_MAGIC, sizeof h->magic);
    h->from = 1;
    h->channel = TCP_HOST;
    h->n_nodes = 2;
    for (int a = 0; a < ZT_N_AXES; a++)
        h->mesh[a] = a == ZT_AXIS_SHARD ? 2 : 1;
    ZT_ASSERT(zt_tcp_nonce(h->nonce, &err) == 0 && zt_tcp_nonce(nonce, &err) == 0);
}

TEST(a_proof_is_for_one_conversation_only)
{
    struct tcp_hello h, other;
    uint8_t key[TCP_SECRET_BYTES] = {1, 2, 3}, nonce[TCP_NONCE_BYTES], proof[TCP_PROOF_BYTES];
    fresh_hello(&h, nonce);
    zt_tcp_prove(key, TCP_DIALS, &h, nonce, proof);
    CHECK(zt_tcp_proves(key, TCP_DIALS, &h, nonce, proof));
    CHECK(!zt_tcp_proves(key, TCP_LISTENS, &h, nonce, proof)); /* sent back to its maker */
    for (size_t i = 0; i < sizeof h; i++) {                    /* of other ranks, channels, ... */
        other = h;
        ((uint8_t *)&other)[i] ^= 1;
        CHECK(!zt_tcp_proves(key, TCP_DIALS, &other, nonce, proof));
    }
    nonce[7] ^= 1; /* replayed */
    CHECK(!zt_tcp_proves(key, TCP_DIALS, &h, nonce, proof));
    nonce[7] ^= 1;
    key[31] ^= 1;
    CHECK(!zt_tcp_proves(key, TCP_DIALS, &h, nonce, proof));
}

/* ---- strangers ---- */

static int dial(const struct zt_tcp_address *a)
{
    struct sockaddr_storage to;
    socklen_t len = zt_tcp_sockaddr(a, &to);
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ZT_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&to, len) == 0);
    return fd;
}

/* Read until the other end closes; the bytes that came. */
static size_t read_all(int fd, char *buf, size_t bytes)
{
    size_t n = 0;
    ssize_t got;
    while (n < bytes && (got = recv(fd, buf + n, bytes - n, 0)) > 0)
        n += (size_t)got;
    return n;
}

enum { N_SILENT = 150 };

struct siege {
    const struct test_net *net;
    int silent[N_SILENT];
    size_t answered; /* bytes that strangers were told */
};

/* Many who say nothing: more than may be unproven at a time, before any rank comes. */
static void siege_begin(struct siege *s, const struct test_net *net)
{
    s->net = net;
    s->answered = 0;
    for (int i = 0; i < N_SILENT; i++)
        s->silent[i] = dial(&net->addresses[i % 2]);
}

/* Garbage, another protocol, half a greeting, and one who repeats what he has heard once. */
static void *siege_main(void *arg)
{
    struct siege *s = arg;
    struct tcp_hello h;
    uint8_t nonce[TCP_NONCE_BYTES], proof[TCP_PROOF_BYTES];
    char buf[512];
    int fds[4];
    fresh_hello(&h, nonce);
    zt_tcp_prove(s->net->secret, TCP_DIALS, &h, nonce, proof);
    for (int i = 0; i < 4; i++)
        fds[i] = dial(&s->net->addresses[0]);
    memset(buf, 0xa5, sizeof buf);
    (void)send(fds[0], buf, sizeof buf, MSG_NOSIGNAL);
    (void)send(fds[1], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
    (void)send(fds[2], &h, sizeof h / 2, MSG_NOSIGNAL);
    (void)send(fds[3], &h, sizeof h, MSG_NOSIGNAL);
    (void)send(fds[3], proof, sizeof proof, MSG_NOSIGNAL);
    shutdown(fds[2], SHUT_WR);
    for (int i = 0; i < 4; i++) {
        s->answered += read_all(fds[i], buf, sizeof buf);
        close(fds[i]);
    }
    return NULL;
}

struct joiner {
    struct test_rank r;
    pthread_t thread;
    double joined_s;
    int rc;
};

static void *join_main(void *arg)
{
    struct joiner *j = arg;
    double begun_s = zt_now_s();
    float *a;
    j->rc = rank_join(&j->r);
    j->joined_s = zt_now_s() - begun_s;
    if (j->rc)
        return NULL;
    a = shared(&j->r, 4096);
    a[0] = 1.0f + (float)j->r.rank;
    zt_all_reduce(j->r.coll, &j->r.stream, ZT_GROUP_SHARD, a, a, 1, ZT_F32, ZT_SUM);
    j->rc = rank_done(&j->r) ? j->r.stream.rc : a[0] == 3 ? 0 : -1;
    j->r.coll->ops->free(j->r.coll);
    return NULL;
}

/* Two ranks, each on a node; rank 1 may have another secret. */
static void join_two(struct joiner j[2], struct test_net *net, struct zt_tcp_job jobs[2])
{
    memset(j, 0, 2 * sizeof *j);
    for (int i = 0; i < 2; i++) {
        j[i].r = (struct test_rank){.job = &net->jobs[i].job,
                                    .tcp = &jobs[i],
                                    .listen_fd = net->fds[i],
                                    .mesh = mesh_of(1, 2),
                                    .rank = i,
                                    .n = 2};
        ZT_ASSERT(pthread_create(&j[i].thread, NULL, join_main, &j[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(j[i].thread, NULL);
}

TEST(strangers_hold_up_nobody)
{
    struct test_net *net = malloc(sizeof *net);
    struct siege *s = calloc(1, sizeof *s);
    struct joiner *j = calloc(2, sizeof *j);
    pthread_t thread;
    CHECK(net && s && j);
    test_net_init(net, &test_rigs[0], 2);
    struct zt_tcp_job jobs[2] = {net->tcp, net->tcp};
    siege_begin(s, net);
    CHECK(pthread_create(&thread, NULL, siege_main, s) == 0);
    join_two(j, net, jobs);
    for (int i = 0; i < 2; i++) {
        if (j[i].rc)
            FAIL("rank %d: %s", i, j[i].r.stream.err.msg);
        CHECK(j[i].joined_s < 10);
    }
    pthread_join(thread, NULL);
    CHECK(s->answered <= TCP_NONCE_BYTES); /* to the one who could greet: a nonce, and no proof */
    for (int i = 0; i < N_SILENT; i++)
        close(s->silent[i]);
    test_net_release(net);
    free(net);
    free(s);
    free(j);
}

/* It is not waited for connections that nobody can take up. */
TEST(too_few_files_may_be_open)
{
    struct test_net *net = malloc(sizeof *net);
    struct test_rank r = {.n = 2, .mesh = mesh_of(1, 2)};
    struct rlimit before, few;
    CHECK(net);
    test_net_init(net, &test_rigs[0], 2);
    r.job = &net->jobs[0].job;
    r.tcp = &net->tcp;
    r.listen_fd = net->fds[0];
    const int other = dial(&net->addresses[0]), next = dup(other);
    CHECK(other >= 0 && next >= 0 && close(next) == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = (rlim_t)next;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    const int rc = rank_join(&r);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_INT(rc, ZT_ESYS);
    if (!strstr(r.stream.err.msg, "`ulimit -n`: Too many open files"))
        FAIL("%s", r.stream.err.msg);
    close(other);
    close(net->fds[1]);
    test_net_release(net);
    free(net);
}

TEST(another_secret_joins_nothing)
{
    struct test_net *net = malloc(sizeof *net);
    struct joiner *j = calloc(2, sizeof *j);
    uint8_t other[ZT_TCP_SECRET_BYTES] = {9};
    CHECK(net && j);
    test_net_init(net, &test_rigs[0], 2);
    net->tcp.join_s = 0.5;
    struct zt_tcp_job jobs[2] = {net->tcp, net->tcp};
    jobs[1].secret = other;
    join_two(j, net, jobs);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(j[i].rc, ZT_EPEER);
        if (!strstr(j[i].r.stream.err.msg, "no connection to rank") ||
            !strstr(j[i].r.stream.err.msg, "; workers of different hosts connect to TCP ports"))
            FAIL("%s", j[i].r.stream.err.msg);
    }
    CHECK(strstr(j[1].r.stream.err.msg, "refused us"));
    CHECK_INT(atomic_load(&test_apart), 3); /* each said it of the other */
    test_net_release(net);
    free(net);
    free(j);
}

TEST(ranks_that_are_not_in_order_of_nodes_are_refused)
{
    struct test_net *net = malloc(sizeof *net);
    struct zt_mesh mesh = mesh_of(1, 2);
    struct zt_coll *c;
    struct zt_err err;
    CHECK(net);
    test_net_init(net, &test_rigs[0], 2);
    net->node_of[0] = 1;
    net->node_of[1] = 0;
    CHECK_INT(zt_tcp_coll_create(&net->tcp, &net->jobs[0].job, net->fds[0], &fake_dev, &mesh, 0, &c,
                                 &err),
              ZT_EUNSUPPORTED);
    close(net->fds[1]);
    test_net_release(net);
    free(net);
}

TEST(interfaces_and_routes)
{
    struct zt_tcp_address a;
    struct zt_err err;
    char text[80];
    int fd;
    CHECK_OK(zt_tcp_listen("lo", NULL, &fd, &a, &err), err);
    CHECK(a.version == 4 && a.ip[0] == 127 && a.port > 0);
    CHECK(strncmp(zt_tcp_address_text(&a, text, sizeof text), "127.0.0.1:", 10) == 0);
    close(fd);
    CHECK_INT(zt_tcp_listen("no-such-0", NULL, &fd, &a, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "no network interface no-such-0"));
    CHECK_INT(zt_tcp_listen(NULL, "no such host", &fd, &a, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "ZT_TCP_INTERFACE"));
}

/* ---- dying ---- */

/*
 * Rank 3 dies inside a stream of calls; the others learn of it wherever they are. Where it speaks for its
 * node they see it by themselves, else by what its launcher does there.
 */
static void body_die(struct test_rank *r)
{
    enum { COUNT = 300000 };
    float *a = shared(r, COUNT * sizeof *a);
    RANK_CHECK(r, a);
    double begun_s = zt_now_s();
    for (int i = 0; !r->stream.rc; i++) {
        if (r->rank == 3 && i == 20) {
            if (r->job->n_ranks > 1)
                zt_shm_job_abort(r->job->control_fd);
            _exit(0);
        }
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_WORLD, a, a, i % 2 ? COUNT : 3, ZT_F32, ZT_SUM);
        RANK_CHECK(r, zt_now_s() - begun_s < 60);
    }
    RANK_CHECK(r, rank_done(r) == ZT_EPEER);
}

/* As the last, with all on their way to something else: nobody waits for rank 3. */
static void body_die_idle(struct test_rank *r)
{
    struct zt_err err;
    double begun_s = zt_now_s();
    if (r->rank == 3)
        _exit(0);
    while (!atomic_load(&((struct shm_coll *)r->coll)->ctl->aborted)) {
        RANK_CHECK(r, zt_now_s() - begun_s < 30);
        poll(NULL, 0, 5);
    }
    RANK_CHECK(r, r->coll->ops->barrier(r->coll, &err) == ZT_EPEER);
}

/* Its ranks are processes: nothing for ThreadSanitizer. */
TEST_IF(!ZT_TSAN, a_rank_that_dies_on_another_node_lets_nobody_hang)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(test_rigs); i += 2) {
        test_rig = &test_rigs[i];
        CHECK_RANKS_AS(AS_PROCESSES, 1, 4, body_die);
        test_rig = &test_rigs[0];
        CHECK_RANKS_AS(AS_PROCESSES, 1, 4, body_die_idle);
    }
}

/* An abort on one node ends a wait on another. */
static void body_abort_far(struct test_rank *r)
{
    float *a = shared(r, 4096);
    RANK_CHECK(r, a);
    for (int i = 0; !r->stream.rc; i++) {
        if (r->rank == r->n - 1 &&
            i == 1) { /* all have their memory, since they were in the first call */
            r->coll->ops->abort(r->coll);
            return;
        }
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_WORLD, a, a, 3, ZT_F32, ZT_SUM);
    }
    RANK_CHECK(r, rank_done(r) == ZT_EPEER);
    RANK_CHECK(r, test_apart == 0);
}

TEST(an_abort_reaches_other_nodes)
{
    CHECK_RANKS(1, 2, body_abort_far);
    CHECK_RANKS(1, 4, body_abort_far);
}

/* ---- links and hosts ---- */

/*
 * A peer that stands still for longer than a cut link takes to be seen is no lost one: its kernel answers. The
 * call goes on when it does.
 */
static void body_freeze(struct test_rank *r)
{
    enum { COUNT = 100000, FROZEN_MS = 6500, TIMES = 20 };
    const pid_t self = getpid();
    float *a = shared(r, COUNT * sizeof *a);
    RANK_CHECK(r, a);
    for (int i = 0; i < TIMES && !r->stream.rc; i++) {
        if (r->rank == r->n - 1 && i == TIMES / 2) {
            const pid_t waker = fork();
            if (waker == 0) {
                poll(NULL, 0, FROZEN_MS);
                _exit(kill(self, SIGCONT) != 0);
            }
            raise(SIGSTOP);
            RANK_CHECK(r, waitpid(waker, NULL, 0) == waker);
        }
        for (int k = 0; k < COUNT; k++)
            a[k] = 1;
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_WORLD, a, a, COUNT, ZT_F32, ZT_SUM);
        RANK_OK(r, rank_done(r));
        for (int k = 0; k < COUNT; k++)
            RANK_CHECK(r, a[k] == (float)r->n);
    }
}

TEST(a_peer_that_is_frozen_is_waited_for)
{
    if (ZT_TSAN)
        SKIP("ranks are processes");
    test_rig = &test_rigs[0];
    CHECK_RANKS_AS(AS_PROCESSES, 1, 3, body_freeze);
}

/* The loopback interface of a network of our own: when it is down, the link is cut. */
static int set_loopback(bool up)
{
    struct ifreq interface = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc = -1;
    if (fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &interface) == 0) {
        interface.ifr_flags =
            (short)(up ? interface.ifr_flags | IFF_UP : interface.ifr_flags & ~IFF_UP);
        rc = ioctl(fd, SIOCSIFFLAGS, &interface);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static void body_cut(struct test_rank *r)
{
    enum { COUNT = 100000 };
    float *a = shared(r, COUNT * sizeof *a);
    RANK_CHECK(r, a);
    double begun_s = zt_now_s();
    for (int i = 0; !r->stream.rc; i++) {
        if (r->rank == 0 && i == 20)
            RANK_CHECK(r, set_loopback(false) == 0);
        zt_all_reduce(r->coll, &r->stream, ZT_GROUP_WORLD, a, a, i % 2 ? COUNT : 3, ZT_F32, ZT_SUM);
        RANK_CHECK(r, zt_now_s() - begun_s < 30);
    }
    RANK_CHECK(r, rank_done(r) == ZT_EPEER);
    /* All others, whoever was missed first. */
    const uint64_t others = 7 & ~(UINT64_C(1) << r->rank);
    while (atomic_load(&test_apart) != others && zt_now_s() - begun_s < 30)
        poll(NULL, 0, 1);
    RANK_CHECK(r, atomic_load(&test_apart) == others);
}

/* The last one: this process has no network after it. */
TEST(a_link_that_is_cut_lets_nobody_hang)
{
    if (ZT_TSAN)
        SKIP("ranks are processes");
    if (unshare(CLONE_NEWNET) || set_loopback(true))
        SKIP("no network of our own: %s", strerror(errno));
    test_rig = &test_rigs[0];
    CHECK_RANKS_AS(AS_PROCESSES, 1, 3, body_cut);
}

TEST_MAIN()
