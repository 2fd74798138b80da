#include "coll/shm.h"

#include "coll/combine.h"
#include "coll/tcp_net.h"

static int (*const run[ZT_N_CALL_KINDS])(struct shm_op *op) = {
    [ZT_ALL_REDUCE] = zt_shm_all_reduce,
    [ZT_REDUCE_SCATTER] = zt_shm_reduce_scatter,
    [ZT_ALL_GATHER] = zt_shm_all_gather,
    [ZT_BROADCAST] = zt_shm_broadcast,
    [ZT_ALL_TO_ALL] = zt_shm_all_to_all,
    [ZT_SEND] = zt_shm_send,
    [ZT_RECV] = zt_shm_recv,
};

/* A group of one: every call is a copy, or nothing. */
static int run_alone(const struct shm_op *op)
{
    const struct zt_call *t = op->call;
    size_t bytes = op->send_bytes;
    if (t->kind == ZT_ALL_TO_ALL) {
        if (t->send_counts[0] != t->recv_counts[0] || t->send_counts[0] < 0 ||
            t->send_counts[0] > t->count)
            return zt_err_set(op->err, ZT_EPROTO, "all_to_all: counts do not fit");
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
        op->c->combine(&cast);
    } else if (t->send && t->recv && t->send != t->recv) {
        zt_copy_large(t->recv, t->send, bytes);
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
        return run_alone(&op);
    if (zt_call_is_message(op.call))
        return zt_shm_is_here(t->c, op.peer) ? run[op.call->kind](&op) : zt_tcp_message(&op);
    if (op.n < op.group_n)
        return zt_tcp_run(&op);
    if (op.call->kind == ZT_ALL_TO_ALL)
        zt_shm_publish_counts(&op);
    int rc = zt_shm_meet(&op, ZT_OK);
    return rc ? rc : run[op.call->kind](&op);
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

/* The channel of a message is that of the rank at its other end. */
static struct shm_channel *channel_of(struct shm_coll *c, const struct zt_call *call)
{
    if (!zt_call_is_message(call))
        return &c->groups[call->group];
    int peer = zt_group_member(&c->base.mesh, call->group, c->base.rank, call->root);
    return call->kind == ZT_SEND ? &c->sends[peer] : &c->recvs[peer];
}

static void enqueue(struct zt_coll *base, struct zt_stream *s, const struct zt_call *call)
{
    struct shm_coll *c = (struct shm_coll *)base;
    struct shm_task t = {.c = c, .call = *call};
    if (c->net)
        t.call.group = zt_tcp_group(&base->mesh, call->group);
    t.channel = channel_of(c, &t.call);
    t.seq = atomic_fetch_add(&t.channel->enqueued, 1) + 1;
    base->dev->ops->host_call(s, run_task, &t, sizeof t);
}

const struct zt_coll_ops zt_shm_ops = {
    .abi = ZT_COLL_ABI,
    .struct_bytes = sizeof(struct zt_coll_ops),
    .name = "shared memory",
    .peers_read_memory = true,
    .alloc_shared = zt_shm_alloc_shared,
    .barrier = zt_shm_barrier,
    .enqueue = enqueue,
    .abort = zt_shm_coll_abort,
    .free = zt_shm_coll_free,
};
