/*
 * nccl.cpp: the calls of the fake NCCL (comm.h says how close it is).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cusim/comm.h"

using namespace cusim;

struct ncclComm {
    comm_ptr c;
};

namespace
{

constexpr useconds_t CONNECT_US = 500;

/* Of a unique id: where its shared memory is. */
struct id_text {
    char magic[16];
    int pid, fd;
};

thread_local int group_depth = 0;
thread_local std::vector<comm_call> *grouped = nullptr;

ncclResult_t refuse_nccl(const char *what)
{
    fprintf(stderr, "cusim: %s is not modelled\n", what);
    return ncclInvalidUsage;
}

ncclResult_t invalid(const char *call, const char *why)
{
    fprintf(stderr, "cusim: %s: %s\n", call, why);
    set_last_error("%s: %s", call, why);
    return ncclInvalidArgument;
}

/* The thread of the communicator that does what may be "in progress". */
template <class F> void help(const comm_ptr &c, F f)
{
    if (c->helper.joinable())
        c->helper.join();
    c->state = ncclInProgress;
    release(c.get());
    comm *p = c.get(); /* who ends the communicator joins the thread */
    p->helper = std::thread([p, f] {
        acquire(p);
        f(p);
    });
}

bool is_usable(const ncclConfig_t *config, const char *call)
{
    if (config && config->blocking == 0)
        return true;
    char what[96];
    snprintf(what, sizeof what, "%s of a blocking communicator", call);
    refuse_nccl(what);
    return false;
}

/* One thread at a time, and not while something is in progress. */
struct in_call {
    comm *c;
    explicit in_call(comm *p, const char *call) : c(p)
    {
        if (!c->busy.exchange(true))
            return;
        fprintf(stderr, "cusim: %s: two threads use one communicator at once\n", call);
        abort();
    }
    ~in_call()
    {
        c->busy = false;
    }
};

ncclResult_t check_call(const comm_call &a)
{
    comm *c = a.c.get();
    const char *name = COMM_OP_NAMES[a.what.op];
    const size_t n = (size_t)c->n, one = a.what.count * type_bytes(a.what.type);
    if (int e = planned_failure(name, ncclSystemError))
        return (ncclResult_t)e;
    if (c->state == ncclInProgress)
        return invalid(name, "the communicator's last call is still in progress");
    if (c->state != ncclSuccess)
        return (ncclResult_t)c->state.load();
    if (type_bytes(a.what.type) == 0 || (a.what.redop != ncclSum && a.what.redop != ncclMax)) {
        char what[96];
        snprintf(what, sizeof what, "%s of type %d with operation %d", name, a.what.type,
                 a.what.redop);
        return refuse_nccl(what);
    }
    if (stream_device(a.stream) != c->device)
        return invalid(name, "the stream is not of the communicator's device");
    if (a.what.root < 0 || a.what.root >= c->n)
        return invalid(name, "no such rank");
    size_t in = a.send ? one * (a.what.op == OP_REDUCE_SCATTER ? n : 1) : 0;
    size_t out = a.recv ? one * (a.what.op == OP_ALL_GATHER ? n : 1) : 0;
    if ((in && !device_can_use(c->device, a.send, in, name)) ||
        (out && !device_can_use(c->device, a.recv, out, name)))
        return invalid(name, "a buffer is not the device's");
    return ncclSuccess;
}

/* One operation of the stream: a collective, or the messages of a group. */
void submit(const std::vector<comm_call> &calls)
{
    const comm_call &first = calls[0];
    uint64_t turn = first.c->issued++;
    enqueue(first.stream, COMM_OP_NAMES[first.what.op], [calls, turn] {
        if (calls[0].what.op >= OP_SEND)
            run_messages(calls, turn);
        else
            run_collective(calls[0], turn);
    });
}

/* The first call of a communicator connects, which takes a while. */
ncclResult_t start(const std::vector<comm_call> &calls)
{
    const comm_ptr c = calls[0].c;
    for (const comm_call &a : calls) {
        if (a.c != c || a.stream != calls[0].stream)
            return refuse_nccl("a group over several communicators or streams");
    }
    if (c->connected.exchange(true)) {
        submit(calls);
        return ncclSuccess;
    }
    std::vector<comm_call> copy = calls;
    help(c, [copy](comm *p) {
        usleep(CONNECT_US);
        submit(copy);
        settle(p, ncclSuccess);
    });
    return ncclInProgress;
}

ncclResult_t add(const comm_call &a)
{
    in_call guard(a.c.get(), COMM_OP_NAMES[a.what.op]);
    ncclResult_t r = check_call(a);
    if (r != ncclSuccess)
        return r;
    if (group_depth == 0)
        return start({a});
    if (a.what.op < OP_SEND)
        return refuse_nccl("a collective inside ncclGroupStart()");
    grouped->push_back(a);
    return ncclSuccess;
}

ncclResult_t collective(int op, const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t redop, int root, ncclComm_t handle, cudaStream_t stream)
{
    return add({handle->c, {op, type, redop, root, count}, send, recv, stream});
}

/* Ends the thread and the handle; the rest when the last operation is out of its stream. */
void drop(ncclComm_t handle)
{
    if (handle->c->helper.joinable())
        handle->c->helper.join();
    delete handle;
}

/* What a rank asks a split for stands in the parent's memory; the first of a colour makes the child's. */
void split(comm *parent, comm *child, int color, int key)
{
    region *shared = parent->shared;
    member *me = &shared->members[parent->rank];
    uint32_t round = ++parent->splits;
    auto all = [parent, shared, round](std::atomic<uint32_t> member::*what) {
        return wait_until(parent, [parent, shared, round, what] {
            for (int r = 0; r < parent->n; r++) {
                if ((int32_t)((shared->members[r].*what) - round) < 0)
                    return false;
            }
            return true;
        });
    };
    me->color = color;
    me->key = key;
    me->asked = round;
    ring(parent);
    if (!all(&member::asked))
        return;
    int first = -1;
    child->n = child->rank = 0;
    for (int r = 0; r < parent->n; r++) {
        const member *m = &shared->members[r];
        if (m->color != color)
            continue;
        first = first < 0 ? r : first;
        child->n++;
        child->rank += m->key < key || (m->key == key && r < parent->rank);
    }
    if (first == parent->rank)
        me->fd = make_region();
    me->placed = round;
    ring(parent);
    if (!all(&member::placed))
        return;
    ncclResult_t r = join_region(child, shared->members[first].pid, shared->members[first].fd);
    child->parent = nullptr;
    if (first == parent->rank)
        close(me->fd); /* all have joined */
    settle(child, r);
    settle(parent, ncclSuccess);
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error_text();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    if (int e = planned_failure("ncclGetUniqueId", ncclSystemError))
        return (ncclResult_t)e;
    id_text id = {"cusim-nccl-id", getpid(), make_region()};
    memset(out, 0, sizeof *out);
    memcpy(out->internal, &id, sizeof id);
    return id.fd < 0 ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId unique, int rank,
                                    ncclConfig_t *config)
{
    id_text id;
    memcpy(&id, unique.internal, sizeof id);
    if (int e = planned_failure("ncclCommInitRankConfig", ncclSystemError))
        return (ncclResult_t)e;
    if (!is_usable(config, "ncclCommInitRankConfig"))
        return ncclInvalidUsage;
    if (n < 1 || n > COMM_MAX_RANKS || rank < 0 || rank >= n ||
        strcmp(id.magic, "cusim-nccl-id") != 0)
        return invalid("ncclCommInitRankConfig", "ranks or id");
    auto *handle = new ncclComm{std::make_shared<comm>()};
    comm_ptr c = handle->c;
    c->n = n;
    c->rank = rank;
    c->device = current_device();
    *out = handle;
    help(c, [id](comm *p) {
        ncclResult_t r = join_region(p, id.pid, id.fd);
        if (id.pid == getpid() && p->rank == 0 && r == ncclSuccess)
            close(id.fd); /* all have joined */
        settle(p, r);
    });
    return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    comm_ptr parent = handle->c;
    in_call guard(parent.get(), "ncclCommSplit");
    if (!is_usable(config, "ncclCommSplit"))
        return ncclInvalidUsage;
    if (color == NCCL_SPLIT_NOCOLOR)
        return refuse_nccl("ncclCommSplit(NCCL_SPLIT_NOCOLOR)");
    if (parent->state != ncclSuccess)
        return (ncclResult_t)parent->state.load();
    auto *made = new ncclComm{std::make_shared<comm>()};
    comm_ptr child = made->c;
    child->device = parent->device;
    child->parent = parent.get();
    *out = made;
    help(parent, [child, color, key](comm *p) { split(p, child.get(), color, key); });
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *state)
{
    *state = (ncclResult_t)handle->c->state.load();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle)
{
    comm_ptr c = handle->c;
    in_call guard(c.get(), "ncclCommFinalize");
    if (c->state != ncclSuccess)
        return (ncclResult_t)c->state.load();
    help(c, [](comm *p) {
        if (!wait_until(p, [p] { return p->done == p->issued; }))
            return;
        p->shared->members[p->rank].finalized = 1;
        ring(p);
        bool there = wait_until(p, [p] {
            for (int r = 0; r < p->n; r++) {
                if (!p->shared->members[r].finalized)
                    return false;
            }
            return true;
        });
        p->finalized = there;
        if (there)
            settle(p, ncclSuccess);
    });
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle)
{
    if (!handle->c->finalized)
        return refuse_nccl("ncclCommDestroy before ncclCommFinalize is over");
    drop(handle);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle)
{
    comm_ptr c = handle->c;
    c->abort = true;
    if (c->shared) {
        c->shared->members[c->rank].aborted = 1;
        ring(c.get());
    }
    drop(handle);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int *n)
{
    *n = handle->c->n;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int *rank)
{
    *rank = handle->c->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int *device)
{
    *device = handle->c->device;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    if (!grouped)
        grouped = new std::vector<comm_call>();
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return invalid("ncclGroupEnd", "no group");
    if (--group_depth > 0)
        return ncclSuccess;
    std::vector<comm_call> calls;
    calls.swap(*grouped);
    delete grouped;
    grouped = nullptr;
    return calls.empty() ? ncclSuccess : start(calls);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
    return collective(OP_ALL_REDUCE, send, recv, count, type, op, 0, c, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
    return collective(OP_REDUCE_SCATTER, send, recv, count, type, op, 0, c, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t stream)
{
    return collective(OP_ALL_GATHER, send, recv, count, type, ncclSum, 0, c, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t c, cudaStream_t stream)
{
    return collective(OP_BROADCAST, send, recv, count, type, ncclSum, root, c, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream)
{
    return collective(OP_SEND, send, nullptr, count, type, ncclSum, peer, c, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream)
{
    return collective(OP_RECV, nullptr, recv, count, type, ncclSum, peer, c, stream);
}

} // extern "C"
