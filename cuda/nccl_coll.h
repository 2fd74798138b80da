/*
 * nccl_coll.h: inside of the collectives by NCCL. nccl.c joins, ends, and makes host calls; nccl_ops.c
 * issues the calls of coll.h.
 */
#ifndef ZT_CUDA_NCCL_COLL_H
#define ZT_CUDA_NCCL_COLL_H

#include <nccl.h>
#include <pthread.h>

#include "device.h"

enum {
    COLL_N_MASKS = 1 << ZT_N_AXES,
    COLL_COMM_UP = COLL_N_MASKS, /* messages to higher ranks */
    COLL_COMM_DOWN,
    COLL_N_COMMS,
    COLL_EXCHANGE_BYTES = 16 << 20,
    COLL_ALIGN_ELEMS = 64,
    COLL_MAX_ARENAS = 16,
};

struct nccl_group {
    ncclComm_t nccl; /* NULL: not made, or aborted */
    int n, me;
    _Atomic uint32_t enqueued;
    uint32_t turn;    /* calls issued; under the lock */
    const char *last; /* what the last one was, of how many; for messages */
    int64_t last_count;
    zt_axes group;
};

struct nccl_arena {
    void *p;
    size_t bytes;
};

struct nccl_coll {
    struct zt_coll base;
    struct zt_cuda_dev *dev;
    zt_fatal_fn fatal;
    void *fatal_ctx;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a turn, aborted, closing */
    bool aborted, closing;
    struct nccl_group comms[COLL_N_COMMS]; /* by the axes that are larger than 1 */
    zt_axes wide_axes;
    pthread_t watcher;
    bool watched;
    cudaStream_t stream; /* of host calls */
    int32_t *status;     /* of host calls, on the device */
    char *exchange;      /* on the device */
    cudaEvent_t exchanged;
    int n_arenas;
    struct nccl_arena arenas[COLL_MAX_ARENAS];
};

/* A call as it travels on a stream, or ZT_BARRIER: a maximum. */
struct nccl_task {
    struct nccl_coll *c;
    struct nccl_group *comm; /* NULL: the group has one member */
    uint32_t seq;
    struct zt_call call; /* root: of a message the peer's rank */
};
_Static_assert(sizeof(struct nccl_task) <= ZT_TASK_ARG_BYTES, "a task fits a stream's queue");

/* The group's communicator; NULL: it has one member, and the world more. */
struct nccl_group *zt_nccl_group_of(struct nccl_coll *c, zt_axes group);

/* Wait for the call's turn, and issue it. A failure ends the job's collectives. */
int zt_nccl_run_in_turn(const struct nccl_task *t, const struct zt_cuda_ctx *ctx,
                        struct zt_err *err) ZT_MUST_CHECK;

/* ---- with the lock held ---- */

/* Submit the call to the stream. */
ncclResult_t zt_nccl_issue(const struct nccl_task *t, const struct zt_cuda_ctx *ctx);

/*
 * A non-blocking communicator has taken a call when its state is no longer "in progress". The lock is
 * let go meanwhile: ncclRemoteError when the job was aborted then.
 */
ncclResult_t zt_nccl_settle(struct nccl_coll *c, struct nccl_group *comm, ncclResult_t r);

/* Sets ZT_EPEER: the call was aborted. */
int zt_nccl_lost(const struct nccl_task *t, struct zt_err *err) ZT_MUST_CHECK;

/* ---- of the table; nccl_ops.c ---- */

void zt_nccl_enqueue(struct zt_coll *base, struct zt_stream *s, const struct zt_call *call);

#endif
