/*
 * coll.h: the collectives seam. A transport is a table of functions: shared memory (one host),
 * NCCL, host-staged, TCP. Every call names a group of the mesh, runs in order on a stream, and is
 * matched with the peers' calls by its position in the group's order (all members must make the
 * same calls, in the same order, with the same counts; a mismatch is found and reported, not waited
 * out).
 *
 * Completion: when the call's task is done on the stream, this rank's output is written and every
 * peer has finished reading this rank's buffers. So local stream order is enough to reuse them.
 *
 * Counts are in elements. Sums are made in the group's rank order, in fp32 for fp32 and 16-bit
 * types, and rounded once to the type of the output; so an all-reduce is exactly a reduce-scatter
 * followed by an all-gather, and results do not depend on transport, chunking or timing.
 *
 * Order: a call's place in its group's order is given when it is enqueued, so a group may be used
 * on several streams (enqueued by one thread at a time); a call waits for its turn. send and recv are
 * matched in order for each pair of ranks and direction, whatever the group.
 *
 * Buffers that peers read (all `send` arguments, and broadcast's on the root) must lie in an arena
 * from alloc_shared(), unless they are empty or the group has one member. Failure never hangs: a call
 * that fails aborts the job's collectives, and so does the launcher for a dead process; every pending
 * and later call of every rank then fails its stream with ZT_EPEER within a second. Calls that do not
 * match fail with ZT_EPROTO on all members, naming two ranks and what they called.
 */
#ifndef ZT_COLL_COLL_H
#define ZT_COLL_COLL_H

#include "base/mesh.h"
#include "dev/dev.h"

enum { ZT_COLL_ABI = 2 };

/* What ranks call together: on a stream; from ZT_BARRIER on host calls, which are named here only. */
enum zt_call_kind {
    ZT_NO_CALL,
    ZT_ALL_REDUCE,
    ZT_REDUCE_SCATTER,
    ZT_ALL_GATHER,
    ZT_BROADCAST,
    ZT_ALL_TO_ALL,
    ZT_SEND,
    ZT_RECV,
    ZT_BARRIER,
    ZT_JOIN,
    ZT_ALLOC_SHARED,
    ZT_N_CALL_KINDS,
};

enum zt_redop { ZT_SUM, ZT_MAX };

/*
 * A call on a stream, in a group of n, as transports get it. What it does stands at the function of its name. In n
 * pieces are send of REDUCE_SCATTER, recv of ALL_GATHER, and both of ALL_TO_ALL.
 */
struct zt_call {
    enum zt_call_kind kind;
    zt_axes group;
    enum zt_dtype dtype, recv_dtype;          /* of send, of recv; equal but for REDUCE_SCATTER */
    enum zt_redop redop;                      /* of ALL_REDUCE; else ZT_SUM */
    int root;                                 /* or peer of a message: a member; of other calls 0 */
    int64_t count;                            /* elements of a buffer, or of each of its n pieces */
    const void *send;                         /* (count), in pieces (n, count); of RECV NULL */
    void *recv;                               /* the same; of SEND NULL */
    const int64_t *send_counts, *recv_counts; /* (n) of ALL_TO_ALL, in device memory */
};

struct zt_coll;

struct zt_coll_ops {
    uint32_t abi, struct_bytes;
    const char *name;
    bool peers_read_memory; /* send buffers must come from alloc_shared (else: any device memory) */

    /*
     * Arenas that peers read; zeroed, 2 MiB aligned, freed with the transport. Blocking and collective
     * over the world: all ranks call it, each with its own size (> 0). At most 16 calls over shared
     * memory. ZT_ENOMEM when all sizes together exceed what the device has free. Fails on all ranks.
     */
    int (*alloc_shared)(struct zt_coll *c, size_t bytes, void **out, struct zt_err *err);

    /* Host barrier over the world; blocking. */
    int (*barrier)(struct zt_coll *c, struct zt_err *err);

    /* A call that zt_coll_enqueue() has checked; the struct is the caller's again after. */
    void (*enqueue)(struct zt_coll *c, struct zt_stream *s, const struct zt_call *call);

    /* Make every pending and later call on all ranks fail with ZT_EPEER. Safe from any thread. */
    void (*abort)(struct zt_coll *c);

    /*
     * Optional (NULL: nothing to do). Wait until the transport looks at no event of its caller's streams
     * any more: after they are drained, before they are freed.
     */
    void (*drain)(struct zt_coll *c);
    void (*free)(struct zt_coll *c);
};

struct zt_coll {
    const struct zt_coll_ops *ops;
    struct zt_dev *dev; /* whose streams the calls run on */
    struct zt_mesh mesh;
    int rank;
};

/* ---- calls (coll.c) ---- */

/*
 * recv = sum/max over the group of send; count elements. In place when send == recv. Large ones
 * are fast only where recv too lies in an arena. The maximum of anything and NaN is NaN.
 */
void zt_all_reduce(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                   void *recv, int64_t count, enum zt_dtype dtype, enum zt_redop op);

/*
 * recv_count elements per rank: recv = element range [i * recv_count, (i + 1) * recv_count) of
 * the sum over the group of send (group size * recv_count elements), i this rank's group index.
 * In place when recv == send + i * recv_count (same dtype). recv_dtype may be wider than dtype.
 */
void zt_reduce_scatter(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                       enum zt_dtype dtype, void *recv, enum zt_dtype recv_dtype,
                       int64_t recv_count);

/*
 * send_count elements per rank: recv = concatenation in group order. In place when
 * send == recv + i * send_count. recv need not be shared memory.
 */
void zt_all_gather(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                   void *recv, int64_t send_count, enum zt_dtype dtype);

/* buf of group member `root` to all; count elements. */
void zt_broadcast(struct zt_coll *c, struct zt_stream *s, zt_axes group, void *buf, int64_t count,
                  enum zt_dtype dtype, int root);

/*
 * send_counts/recv_counts: (group size) int64 in device memory, elements; data to member j lies
 * at send + j * stride elements, from member j at recv + j * stride. What lies behind the counts
 * there may be overwritten.
 */
void zt_all_to_all(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *send,
                   const int64_t *send_counts, void *recv, const int64_t *recv_counts,
                   int64_t stride, enum zt_dtype dtype);

/* Point to point inside a group; send completes when the peer has read. */
void zt_send(struct zt_coll *c, struct zt_stream *s, zt_axes group, const void *buf, int64_t count,
             enum zt_dtype dtype, int peer);
void zt_recv(struct zt_coll *c, struct zt_stream *s, zt_axes group, void *buf, int64_t count,
             enum zt_dtype dtype, int peer);

/* Any of them. Our mistake: sizes that do not fit, a root outside the group, a message to oneself. */
void zt_coll_enqueue(struct zt_coll *c, struct zt_stream *s, const struct zt_call *call);

/* Between two ranks: the group does not meet. */
static inline bool zt_call_is_message(const struct zt_call *call)
{
    return call->kind == ZT_SEND || call->kind == ZT_RECV;
}

/* Bytes of send and of recv, in a group of n. */
size_t zt_call_send_bytes(const struct zt_call *call, int n);
size_t zt_call_recv_bytes(const struct zt_call *call, int n);

/* "all_reduce"; also for a number that is no kind. */
const char *zt_call_name(int kind);

/*
 * Shared memory of one host. The launcher makes the descriptors (memfd, sealed against shrinking
 * once sized) and hands them to every worker: one control page set and one arena per rank. Nothing
 * appears in the file system; nothing is left behind.
 */
struct zt_shm_job {
    int control_fd;
    int n_ranks;
    const int *arena_fds; /* (n_ranks), empty memfds; rank r sizes its own */
};

/* Launcher side: create the descriptors (close-on-exec off). n_ranks in [1, ZT_SHM_MAX_RANKS]. */
enum { ZT_SHM_MAX_RANKS = 64 };
int zt_shm_job_create(int n_ranks, int *control_fd, int *arena_fds,
                      struct zt_err *err) ZT_MUST_CHECK;

/* Launcher side: wake and fail everybody who waits (a worker died). Async-signal-safe. */
void zt_shm_job_abort(int control_fd);

/*
 * Worker side. The descriptors stay the caller's, open while the transport lives. Blocks until all
 * ranks are there (ZT_EPEER when the job is aborted meanwhile).
 */
int zt_shm_coll_create(const struct zt_shm_job *job, struct zt_dev *dev, const struct zt_mesh *mesh,
                       int rank, struct zt_coll **out, struct zt_err *err) ZT_MUST_CHECK;

#endif
