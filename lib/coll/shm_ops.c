#include "coll/shm.h"

#include "base/size.h"
#include "coll/combine.h"
#include "coll/tcp_net.h"

static const struct {
    int (*run)(struct shm_op *op);
    bool paired; /* between two ranks: the group does not meet */
} kinds[SHM_N_KINDS] = {
    [SHM_ALL_REDUCE] = {zt_shm_all_reduce, false},
    [SHM_REDUCE_SCATTER] = {zt_shm_reduce_scatter, false},
    [SHM_ALL_GATHER] = {zt_shm_all_gather, false},
    [SHM_BROADCAST] = {zt_shm_broadcast, false},
    [SHM_ALL_TO_ALL] = {zt_shm_all_to_all, false},
    [SHM_SEND] = {zt_shm_send, true},
    [SHM_RECV] = {zt_shm_recv, true},
};

/* A group of one: every call is a copy, or nothing. */
static int run_alone(const struct shm_task *t, struct zt_err *err)
{
    const char *send = t->send;
    size_t bytes = t->send_bytes;
    if (t->kind == SHM_ALL_TO_ALL) {
        if (t->send_counts[0] != t->recv_counts[0] || t->send_counts[0] < 0 ||
            t->send_counts[0] > t->count)
            return zt_err_set(err, ZT_EPROTO, "all_to_all: counts do not fit");
        bytes = (size_t)t->send_counts[0] * zt_dtype_bytes(t->dtype);
    }
    if (t->dtype != t->recv_dtype) {
        const struct zt_combine cast = {
            .n_src = 1,
            .n_dst = 1,
            .src = &t->send,
            .dst = &t->recv,
            .dtype = t->dtype,
            .dst_dtype = t->recv_dtype,
            .count = t->count,
        };
        t->c->combine(&cast);
    } else if (send && t->recv && send != t->recv) {
        zt_copy_large(t->recv, send, bytes);
    }
    return ZT_OK;
}

static int run_in_turn(const struct shm_task *t, struct zt_err *err)
{
    struct shm_op op;
    zt_shm_op_init(&op, t, err);
    if (!zt_shm_gate_wait(t->c, &t->channel->turn, t->seq - 1) || atomic_load(&t->c->ctl->aborted))
        return zt_shm_aborted(&op, "before it began");
    if (op.group_n == 1)
        return run_alone(t, err);
    if (kinds[t->kind].paired)
        return zt_shm_is_here(t->c, op.peer) ? kinds[t->kind].run(&op) : zt_tcp_message(&op);
    if (op.n < op.group_n)
        return zt_tcp_run(&op);
    if (t->kind == SHM_ALL_TO_ALL)
        zt_shm_publish_counts(&op);
    int rc = zt_shm_meet(&op, ZT_OK);
    return rc ? rc : kinds[t->kind].run(&op);
}

/* The task on the stream. Who fails takes all others along: they could only wait for it. */
static int run_task(void *arg, struct zt_err *err)
{
    const struct shm_task *t = arg;
    int rc = run_in_turn(t, err);
    if (rc)
        zt_shm_abort(t->c->ctl);
    else
        zt_shm_gate_set(&t->channel->turn, t->seq);
    return rc;
}

/* Counts come from a verified plan; what does not fit into memory is our mistake. */
static size_t bytes_of(int64_t count, int times, enum zt_dtype dtype)
{
    size_t bytes;
    ZT_ASSERT_CMP(count, >=, 0);
    ZT_ASSERT(zt_mul_size((size_t)count, (size_t)times, &bytes) &&
              zt_mul_size(bytes, zt_dtype_bytes(dtype), &bytes));
    return bytes;
}

static void enqueue(struct zt_coll *base, struct zt_stream *s, struct shm_task *t)
{
    struct shm_coll *c = (struct shm_coll *)base;
    ZT_ASSERT_CMP(t->group, <, SHM_N_MASKS);
    t->c = c;
    if (c->net)
        t->group = zt_tcp_group(&base->mesh, t->group);
    if (!t->channel)
        t->channel = &c->groups[t->group];
    t->seq = atomic_fetch_add(&t->channel->enqueued, 1) + 1;
    base->dev->ops->host_call(s, run_task, t, sizeof *t);
}

static void all_reduce(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                       void *recv, int64_t count, enum zt_dtype dtype, enum zt_redop op)
{
    size_t bytes = bytes_of(count, 1, dtype);
    struct shm_task t = {
        .kind = SHM_ALL_REDUCE,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .redop = op,
        .count = count,
        .send = send,
        .send_bytes = bytes,
        .recv = recv,
        .recv_bytes = bytes,
    };
    enqueue(c, s, &t);
}

static void reduce_scatter(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                           enum zt_dtype dtype, void *recv, enum zt_dtype recv_dtype,
                           int64_t recv_count)
{
    struct shm_task t = {
        .kind = SHM_REDUCE_SCATTER,
        .group = group,
        .dtype = dtype,
        .recv_dtype = recv_dtype,
        .count = recv_count,
        .send = send,
        .send_bytes = bytes_of(recv_count, zt_group_size(&c->mesh, group), dtype),
        .recv = recv,
        .recv_bytes = bytes_of(recv_count, 1, recv_dtype),
    };
    enqueue(c, s, &t);
}

static void all_gather(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                       void *recv, int64_t send_count, enum zt_dtype dtype)
{
    struct shm_task t = {
        .kind = SHM_ALL_GATHER,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .count = send_count,
        .send = send,
        .send_bytes = bytes_of(send_count, 1, dtype),
        .recv = recv,
        .recv_bytes = bytes_of(send_count, zt_group_size(&c->mesh, group), dtype),
    };
    enqueue(c, s, &t);
}

static void broadcast(struct zt_coll *c, struct zt_stream *s, zt_axes group, void *buf,
                      int64_t count, enum zt_dtype dtype, int root)
{
    size_t bytes = bytes_of(count, 1, dtype);
    ZT_ASSERT(root >= 0 && root < zt_group_size(&c->mesh, group));
    struct shm_task t = {
        .kind = SHM_BROADCAST,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .root = root,
        .count = count,
        .send = buf,
        .send_bytes = bytes,
        .recv = buf,
        .recv_bytes = bytes,
    };
    enqueue(c, s, &t);
}

static void all_to_all(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                       const int64_t *send_counts, void *recv, const int64_t *recv_counts,
                       int64_t stride, enum zt_dtype dtype)
{
    size_t bytes = bytes_of(stride, zt_group_size(&c->mesh, group), dtype);
    struct shm_task t = {
        .kind = SHM_ALL_TO_ALL,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .count = stride,
        .send = send,
        .send_bytes = bytes,
        .recv = recv,
        .recv_bytes = bytes,
        .send_counts = send_counts,
        .recv_counts = recv_counts,
    };
    enqueue(c, s, &t);
}

/* Both ends of a message; `peer` is a group index, its channel that of the rank. */
static void enqueue_paired(struct zt_coll *base, struct zt_stream *s, struct shm_task *t)
{
    struct shm_coll *c = (struct shm_coll *)base;
    ZT_ASSERT(t->root >= 0 && t->root < zt_group_size(&base->mesh, t->group));
    int peer = zt_group_member(&base->mesh, t->group, base->rank, t->root);
    ZT_ASSERT_CMP(peer, !=, base->rank);
    t->channel = t->kind == SHM_SEND ? &c->sends[peer] : &c->recvs[peer];
    enqueue(base, s, t);
}

static void send_to(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *buf,
                    int64_t count, enum zt_dtype dtype, int peer)
{
    struct shm_task t = {
        .kind = SHM_SEND,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .root = peer,
        .count = count,
        .send = buf,
        .send_bytes = bytes_of(count, 1, dtype),
    };
    enqueue_paired(c, s, &t);
}

static void recv_from(struct zt_coll *c, struct zt_stream *s, zt_axes group, void *buf,
                      int64_t count, enum zt_dtype dtype, int peer)
{
    struct shm_task t = {
        .kind = SHM_RECV,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .root = peer,
        .count = count,
        .recv = buf,
        .recv_bytes = bytes_of(count, 1, dtype),
    };
    enqueue_paired(c, s, &t);
}

const struct zt_coll_ops zt_shm_ops = {
    .abi = ZT_COLL_ABI,
    .struct_bytes = sizeof(struct zt_coll_ops),
    .name = "shared memory",
    .peers_read_memory = true,
    .alloc_shared = zt_shm_alloc_shared,
    .barrier = zt_shm_barrier,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .send = send_to,
    .recv = recv_from,
    .abort = zt_shm_coll_abort,
    .free = zt_shm_coll_free,
};
