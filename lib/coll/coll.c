#include "coll/coll.h"

#include "base/size.h"

const char *zt_call_name(int kind)
{
    static const char *const names[ZT_N_CALL_KINDS] = {
        [ZT_NO_CALL] = "nothing",
        [ZT_ALL_REDUCE] = "all_reduce",
        [ZT_REDUCE_SCATTER] = "reduce_scatter",
        [ZT_ALL_GATHER] = "all_gather",
        [ZT_BROADCAST] = "broadcast",
        [ZT_ALL_TO_ALL] = "all_to_all",
        [ZT_SEND] = "send",
        [ZT_RECV] = "recv",
        [ZT_BARRIER] = "barrier",
        [ZT_JOIN] = "joining",
        [ZT_ALLOC_SHARED] = "alloc_shared",
    };
    return kind >= 0 && kind < ZT_N_CALL_KINDS ? names[kind] : "an unknown call";
}

/* Counts come from a verified plan; what does not fit into memory is our mistake. */
static size_t bytes_of(int64_t count, int n_pieces, enum zt_dtype dtype)
{
    size_t bytes;
    ZT_ASSERT_CMP(count, >=, 0);
    ZT_ASSERT(zt_mul_size((size_t)count, (size_t)n_pieces, &bytes) &&
              zt_mul_size(bytes, zt_dtype_bytes(dtype), &bytes));
    return bytes;
}

size_t zt_call_send_bytes(const struct zt_call *call, int n)
{
    bool in_pieces = call->kind == ZT_REDUCE_SCATTER || call->kind == ZT_ALL_TO_ALL;
    return call->kind == ZT_RECV ? 0 : bytes_of(call->count, in_pieces ? n : 1, call->dtype);
}

size_t zt_call_recv_bytes(const struct zt_call *call, int n)
{
    bool in_pieces = call->kind == ZT_ALL_GATHER || call->kind == ZT_ALL_TO_ALL;
    return call->kind == ZT_SEND ? 0 : bytes_of(call->count, in_pieces ? n : 1, call->recv_dtype);
}

void zt_coll_enqueue(struct zt_coll *c, struct zt_stream *s, const struct zt_call *call)
{
    const int n = zt_group_size(&c->mesh, call->group);
    ZT_ASSERT(call->kind > ZT_NO_CALL && call->kind < ZT_BARRIER);
    ZT_ASSERT_CMP(call->group, <=, ZT_GROUP_WORLD);
    ZT_ASSERT(call->root >= 0 && call->root < n);
    if (zt_call_is_message(call))
        ZT_ASSERT_CMP(call->root, !=, zt_group_index(&c->mesh, call->group, c->rank));
    (void)zt_call_send_bytes(call, n); /* both fit */
    (void)zt_call_recv_bytes(call, n);
    c->ops->enqueue(c, s, call);
}

void zt_all_reduce(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                   void *recv, int64_t count, enum zt_dtype dtype, enum zt_redop op)
{
    const struct zt_call call = {
        .kind = ZT_ALL_REDUCE,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .redop = op,
        .count = count,
        .send = send,
        .recv = recv,
    };
    zt_coll_enqueue(c, s, &call);
}

void zt_reduce_scatter(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                       enum zt_dtype dtype, void *recv, enum zt_dtype recv_dtype,
                       int64_t recv_count)
{
    const struct zt_call call = {
        .kind = ZT_REDUCE_SCATTER,
        .group = group,
        .dtype = dtype,
        .recv_dtype = recv_dtype,
        .count = recv_count,
        .send = send,
        .recv = recv,
    };
    zt_coll_enqueue(c, s, &call);
}

void zt_all_gather(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                   void *recv, int64_t send_count, enum zt_dtype dtype)
{
    const struct zt_call call = {
        .kind = ZT_ALL_GATHER,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .count = send_count,
        .send = send,
        .recv = recv,
    };
    zt_coll_enqueue(c, s, &call);
}

void zt_broadcast(struct zt_coll *c, struct zt_stream *s, zt_axes group, void *buf, int64_t count,
                  enum zt_dtype dtype, int root)
{
    const struct zt_call call = {
        .kind = ZT_BROADCAST,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .root = root,
        .count = count,
        .send = buf,
        .recv = buf,
    };
    zt_coll_enqueue(c, s, &call);
}

void zt_all_to_all(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                   const int64_t *send_counts, void *recv, const int64_t *recv_counts,
                   int64_t stride, enum zt_dtype dtype)
{
    const struct zt_call call = {
        .kind = ZT_ALL_TO_ALL,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .count = stride,
        .send = send,
        .recv = recv,
        .send_counts = send_counts,
        .recv_counts = recv_counts,
    };
    zt_coll_enqueue(c, s, &call);
}

void zt_send(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *buf, int64_t count,
             enum zt_dtype dtype, int peer)
{
    const struct zt_call call = {
        .kind = ZT_SEND,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .root = peer,
        .count = count,
        .send = buf,
    };
    zt_coll_enqueue(c, s, &call);
}

void zt_recv(struct zt_coll *c, struct zt_stream *s, zt_axes group, void *buf, int64_t count,
             enum zt_dtype dtype, int peer)
{
    const struct zt_call call = {
        .kind = ZT_RECV,
        .group = group,
        .dtype = dtype,
        .recv_dtype = dtype,
        .root = peer,
        .count = count,
        .recv = buf,
    };
    zt_coll_enqueue(c, s, &call);
}
