#include "coll/shm.h"

#include "base/size.h"
#include "coll/combine.h"

enum {
    ALIGN_ELEMS = 64,       /* ranks that share a sum meet at cache lines */
    SMALL_BYTES = 8 * 1024, /* what the direct all-reduce holds back on the stack */
};

int zt_shm_reduce_scatter(struct shm_op *op)
{
    const struct zt_call *t = op->call;
    const void *src[ZT_SHM_MAX_RANKS];
    size_t at = (size_t)t->count * zt_dtype_bytes(t->dtype) * (size_t)op->me;
    for (int i = 0; i < op->n; i++) {
        if (!zt_shm_source(op, op->ranks[i], op->calls[i], op->send_bytes, &src[i]))
            return ZT_EPROTO;
        src[i] = (const char *)src[i] + at;
    }
    const struct zt_combine sum = {
        .n_src = op->n,
        .n_dst = 1,
        .src = src,
        .dst = &t->recv,
        .dtype = t->dtype,
        .dst_dtype = t->recv_dtype,
        .op = ZT_SUM,
        .count = t->count,
    };
    op->c->combine(&sum);
    return zt_shm_part(op);
}

/*
 * Rank i sums the i-th range of all members and writes it into the output of all: a reduce-scatter
 * and an all-gather in one pass. Only rank i touches that range, so it may be in place.
 */
static int reduce_and_push(struct shm_op *op, const void **src, void **dst)
{
    const struct zt_call *t = op->call;
    int64_t part = zt_align_i64(zt_ceil_div_i64(t->count, op->n), ALIGN_ELEMS);
    int64_t begin = ZT_MIN(part * op->me, t->count), end = ZT_MIN(begin + part, t->count);
    size_t at = (size_t)begin * zt_dtype_bytes(t->dtype);
    for (int i = 0; i < op->n; i++) {
        src[i] = (const char *)src[i] + at;
        dst[i] = (char *)dst[i] + at;
    }
    const struct zt_combine sum = {
        .n_src = op->n,
        .n_dst = op->n,
        .src = src,
        .dst = dst,
        .dtype = t->dtype,
        .dst_dtype = t->dtype,
        .op = t->redop,
        .count = end - begin,
    };
    op->c->combine(&sum);
    return zt_shm_part(op);
}

/*
 * Every rank sums everything: few bytes, or outputs that peers cannot write. Results of a block are
 * held back until all have read it, as it may be in place.
 */
static int reduce_direct(struct shm_op *op, const void **src)
{
    const struct zt_call *t = op->call;
    size_t elem_bytes = zt_dtype_bytes(t->dtype);
    int64_t block = SMALL_BYTES / (int64_t)elem_bytes;
    _Alignas(SHM_LINE_BYTES) char held[SMALL_BYTES];
    void *dst = held;
    if (!t->count)
        return zt_shm_part(op);
    for (int64_t at = 0; at < t->count; at += block) {
        int64_t n = ZT_MIN(block, t->count - at);
        size_t bytes = (size_t)n * elem_bytes;
        const struct zt_combine sum = {
            .n_src = op->n,
            .n_dst = 1,
            .src = src,
            .dst = &dst,
            .dtype = t->dtype,
            .dst_dtype = t->dtype,
            .op = t->redop,
            .count = n,
        };
        op->c->combine(&sum);
        for (int i = 0; i < op->n; i++)
            src[i] = (const char *)src[i] + bytes;
        int rc = zt_shm_part(op);
        if (rc)
            return rc;
        memcpy((char *)t->recv + (size_t)at * elem_bytes, held, bytes);
    }
    return ZT_OK;
}

int zt_shm_all_reduce(struct shm_op *op)
{
    const void *src[ZT_SHM_MAX_RANKS];
    void *dst[ZT_SHM_MAX_RANKS];
    bool push = op->send_bytes > SMALL_BYTES;
    for (int i = 0; i < op->n; i++) {
        if (!zt_shm_source(op, op->ranks[i], op->calls[i], op->send_bytes, &src[i]))
            return ZT_EPROTO;
        dst[i] = zt_shm_at(op->c, op->ranks[i], op->calls[i]->recv, op->recv_bytes);
        push = push && dst[i];
    }
    return push ? reduce_and_push(op, src, dst) : reduce_direct(op, src);
}
