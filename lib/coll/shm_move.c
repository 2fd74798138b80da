#include "coll/shm.h"

#include "coll/combine.h"

/* Each rank begins with its neighbour, so that not all read the same memory at once. */
int zt_shm_all_gather(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    const char *src[ZT_SHM_MAX_RANKS];
    size_t bytes = op->send_bytes;
    for (int i = 0; i < op->n; i++)
        if (!zt_shm_source(op, op->ranks[i], op->calls[i], bytes, (const void **)&src[i]))
            return ZT_EPROTO;
    for (int k = 1; k <= op->n; k++) {
        int i = (op->me + k) % op->n;
        char *dst = (char *)t->recv + (size_t)i * bytes;
        if (i != op->me || dst != t->send)
            zt_copy_large(dst, src[i], bytes);
    }
    return zt_shm_part(op);
}

int zt_shm_broadcast(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    const void *src;
    if (!zt_shm_source(op, op->ranks[t->root], op->calls[t->root], op->send_bytes, &src))
        return ZT_EPROTO;
    if (op->me != t->root)
        zt_copy_large(t->recv, src, op->send_bytes);
    return zt_shm_part(op);
}

void zt_shm_publish_counts(const struct shm_op *op)
{
    const struct zt_call *t = op->call;
    int64_t *mine = zt_shm_counts(op->c->ctl, t->group, op->c->base.rank - op->c->first);
    memcpy(mine, t->send_counts, (size_t)op->n * sizeof *mine);
}

int zt_shm_all_to_all(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    const char *src[ZT_SHM_MAX_RANKS];
    size_t elem_bytes = zt_dtype_bytes(t->dtype), stride = (size_t)t->count * elem_bytes;
    for (int i = 0; i < op->n; i++) {
        int64_t sent = zt_shm_counts(op->c->ctl, t->group, op->ranks[i] - op->c->first)[op->me];
        if (!zt_shm_source(op, op->ranks[i], op->calls[i], op->send_bytes, (const void **)&src[i]))
            return ZT_EPROTO;
        if (sent != t->recv_counts[i] || sent < 0 || sent > t->count)
            return zt_err_set(op->err, ZT_EPROTO,
                              "all_to_all #%u: rank %d sends %lld elements where rank %d expects "
                              "%lld, at most %lld",
                              op->task->seq, op->ranks[i], (long long)sent, op->c->base.rank,
                              (long long)t->recv_counts[i], (long long)t->count);
    }
    for (int k = 1; k <= op->n; k++) {
        int i = (op->me + k) % op->n;
        zt_copy_large((char *)t->recv + (size_t)i * stride, src[i] + (size_t)op->me * stride,
                      (size_t)t->recv_counts[i] * elem_bytes);
    }
    return zt_shm_part(op);
}

/* What both ends of a message must have in common. */
static bool ends_fit(const struct shm_call *a, const struct shm_call *b)
{
    return a->dtype == b->dtype && a->group == b->group && a->seq == b->seq && a->count == b->count;
}

static int wait_for_peer(struct shm_op *op, struct shm_gate *gate)
{
    char where[48];
    if (zt_shm_gate_wait(op->c, gate, op->task->seq))
        return ZT_OK;
    snprintf(where, sizeof where, "while waiting for rank %d", op->peer);
    return zt_shm_aborted(op, where);
}

int zt_shm_send(struct shm_op *op)
{
    int me = op->c->base.rank, peer = op->peer, first = op->c->first;
    struct shm_pair *pair = zt_shm_pair(op->c->ctl, me - first, peer - first);
    zt_shm_call_of(&pair->send, op);
    zt_shm_gate_set(&pair->posted, op->task->seq);
    int rc = wait_for_peer(op, &pair->taken);
    if (!rc && !ends_fit(&pair->send, &pair->recv))
        rc = zt_shm_mismatch(op, me, &pair->send, peer, &pair->recv);
    return rc;
}

int zt_shm_recv(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    int me = op->c->base.rank, peer = op->peer, first = op->c->first;
    struct shm_pair *pair = zt_shm_pair(op->c->ctl, peer - first, me - first);
    const void *src;
    int rc = wait_for_peer(op, &pair->posted);
    if (rc)
        return rc;
    zt_shm_call_of(&pair->recv, op);
    if (!ends_fit(&pair->send, &pair->recv))
        rc = zt_shm_mismatch(op, me, &pair->recv, peer, &pair->send);
    else if (!zt_shm_source(op, peer, &pair->send, op->recv_bytes, &src))
        return ZT_EPROTO;
    else
        zt_copy_large(t->recv, src, op->recv_bytes);
    /* Also after a mismatch, so that the sender finds it too. */
    zt_shm_gate_set(&pair->taken, op->task->seq);
    return rc;
}
