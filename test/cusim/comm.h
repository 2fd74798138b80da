/*
 * comm.h: the fake NCCL's communicators. nccl.cpp has the calls, comm.cpp what joins processes and what
 * streams carry out.
 *
 * A communicator is a piece of shared memory (a memfd of the process that made its id, opened through
 * /proc: nothing is left behind), with a slot of each rank for collectives and a mailbox for each
 * direction of each pair. Operations run on the stream that they were enqueued on, one after another
 * within a communicator, and wait for their peers there.
 *
 * Like NCCL 2.28: only non-blocking communicators are modelled, and whatever may be in progress is, for a
 * moment: joining, splitting, finalizing, and the first call of a communicator, which connects. Two
 * ranks on one GPU are refused ("Duplicate GPU detected"). A peer that dies or aborts sets ncclRemoteError,
 * and what waits for it goes on waiting until ncclCommAbort().
 *
 * Unlike it: sums of 16-bit and fp32 elements are made in fp32, in the order of the ranks, and rounded once.
 * Calls that do not match, and two threads at once in one communicator, end the process with a line
 * that names both; NCCL hangs, or worse. Collectives inside ncclGroupStart() are refused.
 *
 * Environment: NCCL_HOSTID: the host that the GPUs of this process are of, else that of its name.
 * CUSIM_NCCL=deaf: the death of a peer is not noticed, as NCCL's often is not within a host.
 * CUSIM_FAIL=ncclOp:N: when the Nth operation runs its communicator gets ncclSystemError, and it hangs.
 */
#ifndef CUSIM_COMM_H
#define CUSIM_COMM_H

#include <nccl.h>
#include <stdint.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "cusim/sim.h"

namespace cusim
{

constexpr int COMM_MAX_RANKS = 16;
constexpr size_t SLOT_BYTES = 1 << 20, MAIL_BYTES = 64 << 10;

enum comm_op { OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_BROADCAST, OP_SEND, OP_RECV };

extern const char *const COMM_OP_NAMES[];

/* What a rank calls, as its peers see it. */
struct call_text {
    int op, type, redop, root;
    uint64_t count;
};

struct member {
    std::atomic<int> pid;
    std::atomic<uint32_t> joined, met, finalized, aborted;
    char gpu[160];      /* and its host */
    call_text calls[2]; /* by the parity of `met` */
    /* Splitting: what a rank asks for, and, of the first of a colour, where the new memory is. */
    std::atomic<uint32_t> asked, placed;
    int color, key, fd;
};

struct mailbox {
    std::atomic<uint32_t> written, read;
    call_text what;
    uint64_t bytes;
    char data[MAIL_BYTES];
};

struct region {
    std::atomic<uint32_t> bell; /* a futex: something has changed */
    std::atomic<int> n;         /* of the first that joined; 0: nobody did */
    member members[COMM_MAX_RANKS];
    mailbox boxes[COMM_MAX_RANKS][COMM_MAX_RANKS]; /* [from][to] */
    char slots[COMM_MAX_RANKS][SLOT_BYTES];
};

/* One communicator of one rank; alive while a handle or an operation in a stream needs it. */
struct comm {
    int rank = 0, n = 0, device = 0;
    region *shared = nullptr;
    const comm *parent = nullptr; /* while it is split from it */
    int peer_fds[COMM_MAX_RANKS]; /* pidfds; -1: none */
    std::atomic<int> state{ncclInProgress};
    std::atomic<bool> abort{false}, busy{false}, connected{false}, finalized{false};
    std::atomic<uint64_t> issued{0}, done{0};
    uint32_t met = 0, splits = 0; /* meetings so far */
    std::thread helper;

    comm();
    ~comm();
};

using comm_ptr = std::shared_ptr<comm>;

/* A call on its way to a stream. */
struct comm_call {
    comm_ptr c;
    call_text what;
    const void *send;
    void *recv;
    cudaStream_t stream;
};

size_t type_bytes(int type); /* 0: not modelled */

/* What was in progress has ended so, unless an error came meanwhile. */
void settle(comm *c, ncclResult_t r);

/* New shared memory, as a descriptor of this process; -1: errno. */
int make_region();

/* Map it, say that we are there, wait for all, and look for two ranks on one GPU. */
ncclResult_t join_region(comm *c, int pid, int fd);

/* Wake who waits for something in the region. */
void ring(comm *c);

/* Until `there` is true; false: this rank aborted its communicator. Notices peers that are gone. */
bool wait_until(comm *c, const std::function<bool()> &there);

void set_last_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *last_error_text();

/* Carry a collective out, or a group of messages; on the thread of the stream. turn: before it, so many. */
void run_collective(const comm_call &call, uint64_t turn);
void run_messages(const std::vector<comm_call> &calls, uint64_t turn);

} // namespace cusim

#endif
