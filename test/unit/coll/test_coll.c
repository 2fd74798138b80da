/* What a transport gets of each call, and which calls it never gets. */
#include "coll/coll.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* A transport that keeps the last call. */
static struct zt_call got;

static void keep(struct zt_coll *c, struct zt_stream *s, const struct zt_call *call)
{
    (void)c;
    (void)s;
    got = *call;
}

static const struct zt_coll_ops ops = {.enqueue = keep};

/* Rank 4, member 1 of 3 in its shard group. */
static struct zt_coll coll = {.ops = &ops, .mesh = {{1, 2, 3, 1, 1}}, .rank = 4};

static void check_got(enum zt_call_kind kind, const void *send, void *recv, enum zt_dtype recv_type,
                      int root)
{
    CHECK_INT(got.kind, kind);
    CHECK_INT(got.group, ZT_GROUP_SHARD);
    CHECK_INT(got.count, 7);
    CHECK_INT(got.dtype, ZT_BF16);
    CHECK_INT(got.recv_dtype, recv_type);
    CHECK_INT(got.root, root);
    CHECK(got.send == send && got.recv == recv);
}

TEST(a_transport_gets_what_was_called)
{
    char a[64] = {0}, b[64] = {0};
    int64_t out[3] = {0}, in[3] = {0};
    zt_all_reduce(&coll, NULL, ZT_GROUP_SHARD, a, b, 7, ZT_BF16, ZT_MAX);
    check_got(ZT_ALL_REDUCE, a, b, ZT_BF16, 0);
    CHECK_INT(got.redop, ZT_MAX);
    zt_reduce_scatter(&coll, NULL, ZT_GROUP_SHARD, a, ZT_BF16, b, ZT_F32, 7);
    check_got(ZT_REDUCE_SCATTER, a, b, ZT_F32, 0);
    CHECK_INT(got.redop, ZT_SUM);
    zt_all_gather(&coll, NULL, ZT_GROUP_SHARD, a, b, 7, ZT_BF16);
    check_got(ZT_ALL_GATHER, a, b, ZT_BF16, 0);
    zt_broadcast(&coll, NULL, ZT_GROUP_SHARD, a, 7, ZT_BF16, 2);
    check_got(ZT_BROADCAST, a, a, ZT_BF16, 2);
    zt_all_to_all(&coll, NULL, ZT_GROUP_SHARD, a, out, b, in, 7, ZT_BF16);
    check_got(ZT_ALL_TO_ALL, a, b, ZT_BF16, 0);
    CHECK(got.send_counts == out && got.recv_counts == in);
    zt_send(&coll, NULL, ZT_GROUP_SHARD, a, 7, ZT_BF16, 2);
    check_got(ZT_SEND, a, NULL, ZT_BF16, 2);
    zt_recv(&coll, NULL, ZT_GROUP_SHARD, b, 7, ZT_BF16, 2);
    check_got(ZT_RECV, NULL, b, ZT_BF16, 2);
}

TEST(bytes_of_what_is_sent_and_received)
{
    static const struct {
        enum zt_call_kind kind;
        size_t send, recv; /* of 7 elements in a group of 3: bf16 to fp32 */
    } of[] = {{ZT_ALL_REDUCE, 14, 28}, {ZT_REDUCE_SCATTER, 42, 28}, {ZT_ALL_GATHER, 14, 84},
              {ZT_BROADCAST, 14, 28},  {ZT_ALL_TO_ALL, 42, 84},     {ZT_SEND, 14, 0},
              {ZT_RECV, 0, 28},        {ZT_BARRIER, 14, 28}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(of); i++) {
        const struct zt_call call = {
            .kind = of[i].kind, .dtype = ZT_BF16, .recv_dtype = ZT_F32, .count = 7};
        CHECK_INT(zt_call_send_bytes(&call, 3), of[i].send);
        CHECK_INT(zt_call_recv_bytes(&call, 3), of[i].recv);
    }
}

TEST(every_kind_has_a_name)
{
    for (int kind = 0; kind < ZT_N_CALL_KINDS; kind++)
        CHECK(zt_call_name(kind) && strcmp(zt_call_name(kind), "an unknown call") != 0);
    CHECK_STR(zt_call_name(ZT_N_CALL_KINDS), "an unknown call");
    CHECK_STR(zt_call_name(-1), "an unknown call");
}

/* A call that is our mistake ends the process before any transport sees it. */
static bool dies(const struct zt_call *call)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        zt_coll_enqueue(&coll, NULL, call);
        _exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status);
}

TEST(calls_that_cannot_be_are_not_enqueued)
{
    const struct zt_call good = {.kind = ZT_SEND, .group = ZT_GROUP_SHARD, .count = 1};
    struct zt_call bad = good;
    CHECK(!dies(&good));
    bad.root = 1; /* itself */
    CHECK(dies(&bad));
    bad.kind = ZT_BROADCAST;
    CHECK(!dies(&bad));
    bad.root = 3;
    CHECK(dies(&bad));
    bad = good;
    bad.count = -1;
    CHECK(dies(&bad));
    bad.count = INT64_MAX;
    CHECK(dies(&bad));
    bad = good;
    bad.kind = ZT_BARRIER;
    CHECK(dies(&bad));
    bad.kind = ZT_NO_CALL;
    CHECK(dies(&bad));
}

TEST_MAIN()
