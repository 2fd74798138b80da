/*
 * nccl_ops.c: the calls of coll.h as calls of NCCL's.
 *
 * What differs from the transports of the CPU
 *   - ncclSum adds in the type of the elements, in NCCL's order, and rounds a 16-bit sum at each hop. It is
 *     the same from run to run at the same topology, and not the bits of the CPU.
 *   - reduce_scatter into a wider type is no ncclReduceScatter: members exchange slices in the narrow type,
 *     through a buffer of COLL_EXCHANGE_BYTES, and each adds its own up in the wide one, in rank order. These
 *     are the CPU's bits.
 *   - all_reduce of a floating type is ncclReduceScatter and ncclAllGather for what divides by the
 *     group's size, as coll.h says, and ncclAllReduce for the rest. The maximum of a floating type is
 *     refused, as NCCL's ignores a NaN.
 *   - all_to_all moves n * stride elements, whatever the counts, which stay on the device: what lies behind
 *     a count in recv is overwritten by what lies behind it in the sender's buffer. Counts are not
 *     compared.
 *   - Calls that do not match are not found: NCCL hangs or worse. The plan's verifier proves that they
 *     match.
 *   - NCCL carries out the calls of one communicator one after another, on whatever streams. Messages have
 *     two communicators, to higher and to lower ranks, where the mesh has a pipeline; else they go
 *     through the world's, in turn with its calls.
 */
#include "nccl_coll.h"

static struct nccl_coll *coll_of(struct zt_coll *base)
{
    return (struct nccl_coll *)base;
}

/* ---- issuing; with the lock held ---- */

static ncclDataType_t type_of(enum zt_dtype t)
{
    static const ncclDataType_t types[ZT_N_DTYPES] = {
        [ZT_F32] = ncclFloat32, [ZT_BF16] = ncclBfloat16, [ZT_F16] = ncclFloat16,
        [ZT_I32] = ncclInt32,   [ZT_I64] = ncclInt64,     [ZT_F64] = ncclFloat64,
    };
    return types[t];
}

static bool is_float(enum zt_dtype t)
{
    return t != ZT_I32 && t != ZT_I64;
}

/* Leaves with the failure of a call of NCCL's. */
#define STEP(call)                                                                                 \
    do {                                                                                           \
        ncclResult_t r_ = zt_nccl_settle(t->c, t->comm, call);                                     \
        if (r_ != ncclSuccess)                                                                     \
            return r_;                                                                             \
    } while (0)
#define CUDA_STEP(call)                                                                            \
    do {                                                                                           \
        if ((call) != cudaSuccess)                                                                 \
            return ncclUnhandledCudaError;                                                         \
    } while (0)

static ncclResult_t issue_all_reduce(const struct nccl_task *t, cudaStream_t s)
{
    const struct zt_call *a = &t->call;
    const char *send = a->send;
    char *recv = a->recv;
    const int n = t->comm->n;
    const ncclDataType_t type = type_of(a->dtype);
    const size_t elem = zt_dtype_bytes(a->dtype), count = (size_t)a->count;
    if (n == 1 || !is_float(a->dtype)) {
        STEP(ncclAllReduce(send, recv, count, type, a->redop == ZT_MAX ? ncclMax : ncclSum,
                           t->comm->nccl, s));
        return ncclSuccess;
    }
    size_t part = count / (size_t)n, whole = part * (size_t)n * elem;
    char *mine = recv + (size_t)t->comm->me * part * elem;
    if (part > 0) {
        STEP(ncclReduceScatter(send, mine, part, type, ncclSum, t->comm->nccl, s));
        STEP(ncclAllGather(mine, recv, part, type, t->comm->nccl, s));
    }
    if (count > part * (size_t)n)
        STEP(ncclAllReduce(send + whole, recv + whole, count - part * (size_t)n, type, ncclSum,
                           t->comm->nccl, s));
    return ncclSuccess;
}

/* Elements [at, at + n) of every slice to the member whose it is, and theirs of ours. */
static ncclResult_t exchange(const struct nccl_task *t, int64_t at, int64_t n, cudaStream_t s)
{
    const struct zt_call *a = &t->call;
    const char *send = a->send;
    const size_t elem = zt_dtype_bytes(a->dtype);
    const ncclDataType_t type = type_of(a->dtype);
    STEP(ncclGroupStart());
    ncclResult_t r = ncclSuccess;
    for (int j = 0; j < t->comm->n && r == ncclSuccess; j++) {
        if (j == t->comm->me)
            continue;
        r = ncclSend(send + (size_t)(j * a->count + at) * elem, (size_t)n, type, j, t->comm->nccl,
                     s);
        if (r == ncclSuccess || r == ncclInProgress)
            r = ncclRecv(t->c->exchange + (size_t)(j * n) * elem, (size_t)n, type, j, t->comm->nccl,
                         s);
        r = r == ncclInProgress ? ncclSuccess : r;
    }
    ncclResult_t end = ncclGroupEnd();
    if (r != ncclSuccess)
        return r;
    STEP(end);
    return ncclSuccess;
}

static ncclResult_t issue_wide_reduce_scatter(const struct nccl_task *t,
                                              const struct zt_cuda_ctx *ctx)
{
    const struct zt_call *a = &t->call;
    const char *send = a->send;
    char *recv = a->recv;
    const size_t elem = zt_dtype_bytes(a->dtype), wide = zt_dtype_bytes(a->recv_dtype);
    const int n = t->comm->n, me = t->comm->me;
    const int64_t size = COLL_EXCHANGE_BYTES / (int64_t)elem / n / COLL_ALIGN_ELEMS *
                         COLL_ALIGN_ELEMS;                           /* > 0: see create */
    CUDA_STEP(cudaStreamWaitEvent(ctx->stream, t->c->exchanged, 0)); /* of another stream */
    for (int64_t at = 0; at < a->count; at += size) {
        const int64_t k = ZT_MIN(size, a->count - at);
        ncclResult_t r = exchange(t, at, k, ctx->stream);
        if (r != ncclSuccess)
            return r;
        for (int j = 0; j < n; j++) {
            const char *from = j == me ? send + (size_t)(me * a->count + at) * elem
                                       : t->c->exchange + (size_t)(j * k) * elem;
            const struct zt_cast add = {
                .n = k,
                .src = {(void *)from, a->dtype},
                .dst = {recv + (size_t)at * wide, a->recv_dtype},
                .accumulate = j > 0,
            };
            CUDA_STEP(zt_cuda_cast(&add, ctx));
        }
    }
    CUDA_STEP(cudaEventRecord(t->c->exchanged, ctx->stream));
    return ncclSuccess;
}

static ncclResult_t issue_all_to_all(const struct nccl_task *t, cudaStream_t s)
{
    const struct zt_call *a = &t->call;
    const char *send = a->send;
    char *recv = a->recv;
    const ncclDataType_t type = type_of(a->dtype);
    const size_t stride = (size_t)a->count * zt_dtype_bytes(a->dtype);
    STEP(ncclGroupStart());
    ncclResult_t r = ncclSuccess;
    for (int j = 0; j < t->comm->n && r == ncclSuccess; j++) {
        r = ncclSend(send + (size_t)j * stride, (size_t)a->count, type, j, t->comm->nccl, s);
        if (r == ncclSuccess || r == ncclInProgress)
            r = ncclRecv(recv + (size_t)j * stride, (size_t)a->count, type, j, t->comm->nccl, s);
        r = r == ncclInProgress ? ncclSuccess : r;
    }
    ncclResult_t end = ncclGroupEnd();
    if (r != ncclSuccess)
        return r;
    STEP(end);
    return ncclSuccess;
}

ncclResult_t zt_nccl_issue(const struct nccl_task *t, const struct zt_cuda_ctx *ctx)
{
    const struct zt_call *a = &t->call;
    const ncclComm_t nccl = t->comm->nccl;
    const ncclDataType_t type = type_of(a->dtype);
    const size_t count = (size_t)a->count;
    switch (a->kind) {
    case ZT_ALL_REDUCE:
    case ZT_BARRIER:
        return issue_all_reduce(t, ctx->stream);
    case ZT_REDUCE_SCATTER:
        if (a->dtype != a->recv_dtype)
            return issue_wide_reduce_scatter(t, ctx);
        STEP(ncclReduceScatter(a->send, a->recv, count, type, ncclSum, nccl, ctx->stream));
        return ncclSuccess;
    case ZT_ALL_GATHER:
        STEP(ncclAllGather(a->send, a->recv, count, type, nccl, ctx->stream));
        return ncclSuccess;
    case ZT_BROADCAST:
        STEP(ncclBroadcast(a->send, a->recv, count, type, a->root, nccl, ctx->stream));
        return ncclSuccess;
    case ZT_ALL_TO_ALL:
        return issue_all_to_all(t, ctx->stream);
    case ZT_SEND:
        STEP(ncclSend(a->send, count, type, a->root, nccl, ctx->stream));
        return ncclSuccess;
    default:
        STEP(ncclRecv(a->recv, count, type, a->root, nccl, ctx->stream));
        return ncclSuccess;
    }
}

/* A group of one: a copy, or a cast. */
static int run_alone(struct zt_stream *s, const struct nccl_task *t, struct zt_err *err)
{
    const struct zt_call *a = &t->call;
    const struct zt_cuda_ctx *ctx = zt_cuda_ctx_of(s);
    size_t bytes = (size_t)a->count * zt_dtype_bytes(a->dtype);
    cudaError_t cu = cudaSuccess;
    pthread_mutex_lock(&t->c->lock);
    bool aborted = t->c->aborted;
    pthread_mutex_unlock(&t->c->lock);
    if (aborted)
        return zt_nccl_lost(t, err);
    if (a->dtype != a->recv_dtype) {
        const struct zt_cast cast = {
            .n = a->count,
            .src = {(void *)a->send, a->dtype},
            .dst = {a->recv, a->recv_dtype},
        };
        cu = zt_cuda_cast(&cast, ctx);
    } else if (a->send != a->recv && bytes > 0) {
        cu = cudaMemcpyAsync(a->recv, a->send, bytes, cudaMemcpyDeviceToDevice, ctx->stream);
    }
    return zt_cuda_check(s, cu, zt_call_name(a->kind), err);
}

static int run_task(struct zt_stream *s, void *arg, struct zt_err *err)
{
    const struct nccl_task *t = arg;
    const struct zt_call *a = &t->call;
    if (a->kind == ZT_ALL_REDUCE && a->redop == ZT_MAX && is_float(a->dtype))
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "all_reduce: NCCL's maximum of %s ignores a NaN, so it is not used",
                          zt_dtype_name(a->dtype));
    return t->comm ? zt_nccl_run_in_turn(t, zt_cuda_ctx_of(s), err) : run_alone(s, t, err);
}

/* Of messages between two ranks of the world. */
static struct nccl_group *message_comm(struct nccl_coll *c, int from, int to)
{
    struct nccl_group *comm = &c->comms[from < to ? COLL_COMM_UP : COLL_COMM_DOWN];
    return comm->n ? comm : zt_nccl_group_of(c, ZT_GROUP_WORLD);
}

void zt_nccl_enqueue(struct zt_coll *base, struct zt_stream *s, const struct zt_call *call)
{
    struct nccl_coll *c = coll_of(base);
    struct nccl_task t = {.c = c, .comm = zt_nccl_group_of(c, call->group), .call = *call};
    ZT_ASSERT(s->dev == base->dev);
    if (zt_call_is_message(call)) {
        const int me = base->rank, peer = zt_group_member(&base->mesh, call->group, me, call->root);
        t.call.root = peer;
        t.comm = call->kind == ZT_SEND ? message_comm(c, me, peer) : message_comm(c, peer, me);
    }
    if (t.comm)
        t.seq = atomic_fetch_add(&t.comm->enqueued, 1) + 1;
    zt_cuda_push(s, run_task, &t, sizeof t);
}
