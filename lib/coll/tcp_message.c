/* Messages between two ranks of different nodes: the call and the bytes one way, the other call back. */
#include "coll/tcp_net.h"

/* A call as it travels. */
struct note {
    uint32_t kind, dtype, group, reserved;
    uint64_t seq;
    int64_t count;
};

static struct note note_of(const struct shm_op *op)
{
    const struct zt_call *t = op->call;
    return (struct note){.kind = t->kind,
                         .dtype = t->dtype,
                         .group = t->group,
                         .seq = op->task->seq,
                         .count = t->count};
}

static bool fit(const struct note *a, const struct note *b)
{
    return a->dtype == b->dtype && a->group == b->group && a->seq == b->seq && a->count == b->count;
}

static int mismatch(const struct shm_op *op, const struct note *theirs)
{
    struct shm_call mine;
    const struct shm_call other = {
        .kind = theirs->kind < ZT_N_CALL_KINDS ? (uint8_t)theirs->kind : ZT_NO_CALL,
        .dtype = theirs->dtype < ZT_N_DTYPES ? (uint8_t)theirs->dtype : 0,
        .group = (uint8_t)theirs->group,
        .seq = theirs->seq,
        .count = theirs->count,
    };
    zt_shm_call_of(&mine, op);
    return zt_shm_mismatch(op, op->c->base.rank, &mine, op->peer, &other);
}

static int pump_all(struct shm_op *op, struct tcp_flow flow)
{
    while (flow.done < flow.ready) {
        int rc = zt_tcp_pump(op, &flow, 1);
        if (rc)
            return rc;
    }
    return ZT_OK;
}

/* An answer that comes before all is sent says that the calls do not match. */
static int send_message(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    struct tcp_conn *conn = op->c->net->out[op->peer];
    struct note mine = note_of(op), theirs;
    struct tcp_flow flows[2] = {
        {conn, true, (char *)&mine, 0, sizeof mine},
        {conn, false, (char *)&theirs, 0, sizeof theirs},
    };
    while (flows[1].done < flows[1].ready) {
        int rc = zt_tcp_pump(op, flows, 2);
        if (rc)
            return rc;
        if (flows[0].p == (char *)&mine && flows[0].done == sizeof mine)
            flows[0] = (struct tcp_flow){conn, true, (char *)t->send, 0, op->send_bytes};
    }
    return fit(&mine, &theirs) ? ZT_OK : mismatch(op, &theirs);
}

static int receive_message(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    struct tcp_conn *conn = op->c->net->in[op->peer];
    struct note mine = note_of(op), theirs;
    int rc = pump_all(op, (struct tcp_flow){conn, false, (char *)&theirs, 0, sizeof theirs});
    if (rc)
        return rc;
    bool fits = fit(&mine, &theirs);
    if (fits)
        rc = pump_all(op, (struct tcp_flow){conn, false, t->recv, 0, op->recv_bytes});
    if (!rc)
        rc = pump_all(op, (struct tcp_flow){conn, true, (char *)&mine, 0, sizeof mine});
    return rc || fits ? rc : mismatch(op, &theirs);
}

int zt_tcp_message(struct shm_op *op)
{
    return op->call->kind == ZT_SEND ? send_message(op) : receive_message(op);
}
