/*
 * comm.cpp: the fake NCCL between processes: memory, meetings, what a stream carries out.
 */
#include "cusim/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cusim
{

const char *const COMM_OP_NAMES[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                     "ncclBroadcast", "ncclSend",          "ncclRecv"};

namespace
{

constexpr long NAP_NS = 20 * 1000 * 1000;

char last_text[512];

bool reached(uint32_t now, uint32_t wanted)
{
    return (int32_t)(now - wanted) >= 0;
}

/* The GPU itself and its host; CUDA_VISIBLE_DEVICES may give it another number in each process. */
void name_gpu(char *out, size_t bytes, int device)
{
    const char *host = getenv("NCCL_HOSTID");
    char name[64] = "", bus[16] = "";
    if (!host && gethostname(name, sizeof name - 1) == 0)
        host = name;
    if (cudaDeviceGetPCIBusId(bus, (int)sizeof bus, device) != cudaSuccess)
        snprintf(bus, sizeof bus, "%d", device);
    snprintf(out, bytes, "%s of %s", bus, host ? host : "");
}

void notice_the_dead(comm *c)
{
    static const char *const mode = getenv("CUSIM_NCCL");
    if (mode && strcmp(mode, "deaf") == 0)
        return;
    for (int r = 0; r < c->n; r++) {
        pollfd p = {c->peer_fds[r], POLLIN, 0};
        int pid = c->shared->members[r].pid;
        bool dead =
            c->peer_fds[r] >= 0 ? poll(&p, 1, 0) > 0 : pid && kill(pid, 0) && errno == ESRCH;
        if (!dead && !c->shared->members[r].aborted)
            continue;
        if (r != c->rank && c->state != ncclRemoteError) {
            set_last_error("rank %d: %s", r, dead ? "its process has exited" : "it has aborted");
            c->state = ncclRemoteError;
        }
    }
}

} // namespace

comm::comm()
{
    for (int &fd : peer_fds)
        fd = -1;
}

comm::~comm()
{
    quiet q;
    for (int fd : peer_fds) {
        if (fd >= 0)
            close(fd);
    }
    if (shared)
        munmap(shared, sizeof *shared);
}

void set_last_error(const char *format, ...)
{
    locked lock;
    va_list args;
    va_start(args, format);
    vsnprintf(last_text, sizeof last_text, format, args);
    va_end(args);
}

const char *last_error_text()
{
    return last_text;
}

size_t type_bytes(int type)
{
    switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

/* ---- Joining ---- */

int make_region()
{
    int fd = memfd_create("cusim-nccl", MFD_CLOEXEC);
    return fd >= 0 && ftruncate(fd, sizeof(region)) == 0 ? fd : -1;
}

void settle(comm *c, ncclResult_t r)
{
    int was = ncclInProgress;
    c->state.compare_exchange_strong(was, r);
}

static ncclResult_t check_gpus(comm *c)
{
    for (int r = 1; r < c->n; r++) {
        for (int q = 0; q < r; q++) {
            const char *gpu = c->shared->members[r].gpu;
            if (strcmp(gpu, c->shared->members[q].gpu) != 0)
                continue;
            set_last_error("Duplicate GPU detected : rank %d and rank %d both on CUDA device %s", r,
                           q, gpu);
            return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}

ncclResult_t join_region(comm *c, int pid, int fd)
{
    quiet q;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    void *p = own < 0 ? MAP_FAILED
                      : mmap(nullptr, sizeof(region), PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    if (own >= 0)
        close(own);
    if (p == MAP_FAILED) {
        set_last_error("the process that made the id is gone: %s", strerror(errno));
        return ncclSystemError;
    }
    c->shared = (region *)p;
    member *me = &c->shared->members[c->rank];
    int nobody = 0;
    c->shared->n.compare_exchange_strong(nobody, c->n);
    if (c->shared->n != c->n || me->joined) {
        set_last_error("rank %d of %d: taken, or of %d", c->rank, c->n, c->shared->n.load());
        return ncclInvalidUsage;
    }
    name_gpu(me->gpu, sizeof me->gpu, c->device);
    me->pid = getpid();
    me->joined = 1;
    ring(c);
    for (int r = 0; r < c->n; r++) {
        member *peer = &c->shared->members[r];
        if (!wait_until(c, [peer] { return peer->joined != 0; }))
            return ncclInvalidUsage;
        if (peer->pid != getpid())
            c->peer_fds[r] = (int)syscall(SYS_pidfd_open, peer->pid.load(), 0);
    }
    return check_gpus(c);
}

void ring(comm *c)
{
    c->shared->bell++;
    syscall(SYS_futex, &c->shared->bell, FUTEX_WAKE, COMM_MAX_RANKS * 64, nullptr, nullptr, 0);
}

bool wait_until(comm *c, const std::function<bool()> &there)
{
    const timespec nap = {0, NAP_NS};
    for (;;) {
        uint32_t bell = c->shared->bell;
        if (there())
            return true;
        if (c->abort || (c->parent && c->parent->abort))
            return false;
        notice_the_dead(c);
        syscall(SYS_futex, &c->shared->bell, FUTEX_WAIT, bell, &nap, nullptr, 0);
    }
}

/* ---- Collectives ---- */

namespace
{

[[noreturn]] void mismatch(int rank, const call_text &a, int peer, const call_text &b)
{
    fprintf(stderr,
            "cusim: NCCL calls that do not match: rank %d %s(count %llu, type %d, op %d, root %d), "
            "rank %d %s(count %llu, type %d, op %d, root %d)\n",
            rank, COMM_OP_NAMES[a.op], (unsigned long long)a.count, a.type, a.redop, a.root, peer,
            COMM_OP_NAMES[b.op], (unsigned long long)b.count, b.type, b.redop, b.root);
    abort();
}

/* All ranks are here. */
bool meet(comm *c)
{
    uint32_t met = ++c->met;
    c->shared->members[c->rank].met = met;
    ring(c);
    return wait_until(c, [c, met] {
        for (int r = 0; r < c->n; r++) {
            if (!reached(c->shared->members[r].met, met))
                return false;
        }
        return true;
    });
}

bool meet_for(comm *c, const call_text &what)
{
    int parity = (int)(c->met + 1) & 1;
    c->shared->members[c->rank].calls[parity] = what;
    if (!meet(c))
        return false;
    for (int r = 0; r < c->n; r++) {
        const call_text &other = c->shared->members[r].calls[parity];
        if (memcmp(&what, &other, sizeof what) != 0)
            mismatch(c->rank, what, r, other);
    }
    return true;
}

float half_to_float(uint16_t h, int type)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    if (type == ncclBfloat16)
        memcpy(&f, &bits, sizeof f);
    else
        f = (float)*(const _Float16 *)&h;
    return f;
}

uint16_t float_to_half(float f, int type)
{
    uint16_t h;
    if (type == ncclBfloat16) {
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if ((u & 0x7fffffffu) > 0x7f800000u)
            return (uint16_t)(u >> 16 | 0x40);
        return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
    }
    _Float16 x = (_Float16)f;
    memcpy(&h, &x, sizeof h);
    return h;
}

template <class T, class A> A load_as(const char *p, size_t i, int type)
{
    T v;
    memcpy(&v, p + i * sizeof v, sizeof v);
    if constexpr (sizeof(T) == 2)
        return half_to_float(v, type);
    else
        return (A)v;
}

template <class T, class A> void store_as(char *p, size_t i, A a, int type)
{
    T v;
    if constexpr (sizeof(T) == 2)
        v = float_to_half(a, type);
    else
        v = (T)a;
    memcpy(p + i * sizeof v, &v, sizeof v);
}

/* n elements at `at` bytes of every slot, in the order of the ranks; A: what it is added up in. */
template <class T, class A>
void reduce_as(comm *c, const call_text &w, size_t at, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++) {
        A sum = load_as<T, A>(c->shared->slots[0] + at, i, w.type);
        for (int r = 1; r < c->n; r++) {
            A x = load_as<T, A>(c->shared->slots[r] + at, i, w.type);
            bool larger = sizeof(T) == 2 ? x > sum : (T)x > (T)sum;
            sum = w.redop == ncclMax ? (larger ? x : sum) : (A)(sum + x);
        }
        store_as<T, A>(to, i, sum, w.type);
    }
}

void reduce(comm *c, const call_text &w, size_t at, size_t n, char *to)
{
    switch (w.type) {
    case ncclFloat16:
    case ncclBfloat16:
        return reduce_as<uint16_t, float>(c, w, at, n, to);
    case ncclFloat32:
        return reduce_as<float, float>(c, w, at, n, to);
    case ncclFloat64:
        return reduce_as<double, double>(c, w, at, n, to);
    case ncclInt32:
        return reduce_as<int32_t, uint32_t>(c, w, at, n, to);
    default:
        return reduce_as<int64_t, uint64_t>(c, w, at, n, to);
    }
}

/* Elements [at, at + n) of what this rank gives, into its slot. */
void give(const comm_call &a, size_t at, size_t n)
{
    comm *c = a.c.get();
    const size_t es = type_bytes(a.what.type);
    const char *send = (const char *)a.send;
    char *slot = c->shared->slots[c->rank];
    if (a.what.op == OP_REDUCE_SCATTER) {
        for (int r = 0; r < c->n; r++)
            memcpy(slot + (size_t)r * n * es, send + ((size_t)r * a.what.count + at) * es, n * es);
    } else if (a.what.op != OP_BROADCAST || c->rank == a.what.root) {
        memcpy(slot, send + at * es, n * es);
    }
}

void take(const comm_call &a, size_t at, size_t n)
{
    comm *c = a.c.get();
    const size_t es = type_bytes(a.what.type);
    char *recv = (char *)a.recv;
    switch (a.what.op) {
    case OP_ALL_GATHER:
        for (int r = 0; r < c->n; r++)
            memcpy(recv + ((size_t)r * a.what.count + at) * es, c->shared->slots[r], n * es);
        break;
    case OP_BROADCAST:
        memcpy(recv + at * es, c->shared->slots[a.what.root], n * es);
        break;
    case OP_REDUCE_SCATTER:
        reduce(c, a.what, (size_t)c->rank * n * es, n, recv + at * es);
        break;
    default:
        reduce(c, a.what, 0, n, recv + at * es);
    }
}

/* The operations of a communicator run one after another. False: it was aborted. */
bool begin(comm *c, uint64_t turn)
{
    if (!wait_until(c, [c, turn] { return c->done == turn; }))
        return false;
    if (int e = planned_failure("ncclOp", ncclSystemError)) {
        set_last_error("the network is gone");
        c->state = e;
        wait_until(c, [] { return false; });
        return false;
    }
    return true;
}

void end(comm *c)
{
    c->done++;
    ring(c);
}

} // namespace

/* In chunks that fit the slots. */
static bool exchange(const comm_call &a)
{
    comm *c = a.c.get();
    const size_t n = a.what.op == OP_REDUCE_SCATTER ? (size_t)c->n : 1;
    const size_t chunk = SLOT_BYTES / type_bytes(a.what.type) / n;
    for (size_t at = 0; at < a.what.count; at += chunk) {
        size_t k = std::min(chunk, (size_t)a.what.count - at);
        give(a, at, k);
        if (!meet(c))
            return false;
        take(a, at, k);
        if (!meet(c))
            return false;
    }
    return true;
}

/* Only the buffers are ThreadSanitizer's business: all else is quiet. */
void run_collective(const comm_call &a, uint64_t turn)
{
    comm *c = a.c.get();
    const size_t bytes = a.what.count * type_bytes(a.what.type), n = (size_t)c->n;
    {
        quiet q;
        if (!begin(c, turn) || !meet_for(c, a.what))
            return;
    }
    if (a.what.op != OP_BROADCAST || c->rank == a.what.root)
        tsan_reads(a.send, bytes * (a.what.op == OP_REDUCE_SCATTER ? n : 1));
    {
        quiet q;
        if (!exchange(a))
            return;
    }
    tsan_writes(a.recv, bytes * (a.what.op == OP_ALL_GATHER ? n : 1));
    quiet q;
    end(c);
}

/* ---- Messages ---- */

namespace
{

/* A part of a message goes through its mailbox. False: nothing can be done now. */
bool move_part(const comm_call &a, uint64_t *at, bool *over)
{
    comm *c = a.c.get();
    const uint64_t total = a.what.count * type_bytes(a.what.type);
    bool sends = a.what.op == OP_SEND;
    mailbox *m =
        sends ? &c->shared->boxes[c->rank][a.what.root] : &c->shared->boxes[a.what.root][c->rank];
    bool full = m->written != m->read;
    if (sends == full)
        return false;
    if (sends) {
        m->what = a.what;
        m->bytes = std::min<uint64_t>(MAIL_BYTES, total - *at);
        memcpy(m->data, (const char *)a.send + *at, m->bytes);
        m->written++;
    } else {
        if (m->what.count != a.what.count || m->what.type != a.what.type)
            mismatch(c->rank, a.what, a.what.root, m->what);
        memcpy((char *)a.recv + *at, m->data, m->bytes);
    }
    *at += m->bytes;
    if (!sends)
        m->read++;
    *over = *at == total;
    ring(c);
    return true;
}

/* In order within a direction of a pair. */
bool is_next(const std::vector<comm_call> &calls, const std::vector<bool> &over, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (!over[j] && calls[j].what.op == calls[i].what.op &&
            calls[j].what.root == calls[i].what.root)
            return false;
    }
    return !over[i];
}

} // namespace

/* Until all are over. */
static bool move_all(const std::vector<comm_call> &calls)
{
    std::vector<uint64_t> at(calls.size(), 0);
    std::vector<bool> over(calls.size(), false);
    size_t left = calls.size();
    bool there = true;
    while (left > 0 && there) {
        there = wait_until(calls[0].c.get(), [&] {
            bool moved = false;
            for (size_t i = 0; i < calls.size(); i++) {
                bool ended = false;
                while (!ended && is_next(calls, over, i) && move_part(calls[i], &at[i], &ended))
                    moved = true;
                over[i] = over[i] || ended;
                left -= ended;
            }
            return moved;
        });
    }
    return there;
}

void run_messages(const std::vector<comm_call> &calls, uint64_t turn)
{
    comm *c = calls[0].c.get();
    {
        quiet q;
        if (!begin(c, turn))
            return;
    }
    for (const comm_call &a : calls)
        tsan_reads(a.send, a.send ? a.what.count * type_bytes(a.what.type) : 0);
    {
        quiet q;
        if (!move_all(calls))
            return;
    }
    for (const comm_call &a : calls)
        tsan_writes(a.recv, a.recv ? a.what.count * type_bytes(a.what.type) : 0);
    quiet q;
    end(c);
}

} // namespace cusim
