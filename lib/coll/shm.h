/*
 * shm.h: inside of the shared-memory transport (private to lib/coll).
 *
 * Files: shm_job.c launcher side; shm_sync.c gates and the meeting of a group; shm_coll.c joining
 * and arenas; shm_ops.c calls and tasks; shm_reduce.c and shm_move.c the algorithms.
 *
 * Control block (one memfd, made and sealed by the launcher, zeroed):
 *
 *     header | members (rank) | slots (mask, rank) | pairs (from, to) | counts (mask, rank, j)
 *
 * Each slot has one writer. A rank *arrives* by writing what it calls into its slot and then moving
 * the slot's epoch forward; it waits until every member's epoch is there too. No counter is shared,
 * so groups never disturb one another and a dead rank leaves no lock behind. The release store of
 * the epoch and the acquire load by the waiter order everything written before against everything
 * read after, also in the arenas.
 *
 * A call's description lies at the parity of the arrival's epoch: a rank can overwrite it only two
 * arrivals later, so after all have read it, even where nothing waits at the end (host calls).
 *
 * A job on several nodes has one control block on each; slots, pairs and arenas are those of its own ranks,
 * by their place on the node. A group that spans nodes meets on each of them, and then its first member
 * there goes on over the network (tcp_*.c), while the others wait.
 */
#ifndef ZT_COLL_SHM_H
#define ZT_COLL_SHM_H

#include <stdatomic.h>

#include "coll/coll.h"
#include "coll/combine.h"

enum {
    SHM_LINE_BYTES = 64,
    SHM_N_MASKS = 1 << ZT_N_AXES,
    SHM_HOST_MASK = 0, /* the group without axes never meets: its slots serve blocking calls */
    SHM_MAX_ALLOCS = 16,
    SHM_MAX_SEGMENTS = SHM_MAX_ALLOCS + 1, /* and one of our own, where there are other nodes */
};

/* An epoch that others wait for. `sleepers` saves the system call when nobody sleeps. */
struct shm_gate {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t epoch;
    _Atomic uint32_t sleepers;
};

/* A range that peers read: in segment number `segment - 1` of the caller's arena; 0: in none. */
struct shm_range {
    uint32_t segment;
    uint32_t reserved;
    uint64_t at_bytes;
};

/* What a rank calls, as its peers see it. */
struct shm_call {
    _Alignas(SHM_LINE_BYTES) uint8_t kind; /* enum zt_call_kind */
    uint8_t dtype, recv_dtype, redop;
    uint8_t root, group;
    int16_t status; /* of host calls: 0, or the ZT_E* that was met, */
    int32_t who;    /* by this rank */
    uint64_t seq;   /* position in the order of the group or pair, from 1 */
    int64_t count;
    struct shm_range send, recv;
};

enum shm_found { SHM_NOT_ASKED, SHM_MISMATCH, SHM_NO_MISMATCH };

/* Two calls that do not match, found over the network by who asks it for the others. */
struct shm_verdict {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t found; /* enum shm_found */
    int32_t ranks[2];
    struct shm_call calls[2];
};

struct shm_slot {
    struct shm_gate gate;
    struct shm_call calls[2];
    struct shm_verdict verdict; /* written when a call fails, before the abort */
};

/*
 * Messages of one rank to another: `posted` and `send` are the sender's, the rest the receiver's.
 */
struct shm_pair {
    struct shm_gate posted, taken;
    struct shm_call send, recv;
};

struct shm_member {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t joined;
    int32_t mesh[ZT_N_AXES];
    uint64_t alloc_bytes; /* of the alloc_shared() under way */
};

struct shm_control {
    uint64_t magic;
    uint32_t n_ranks;
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t aborted;
    _Alignas(SHM_LINE_BYTES) struct shm_member members[];
};

#define SHM_MAGIC 0x31306d68732d747aull /* "zt-shm01" */

/* ---- layout (shm_job.c); n_ranks in [1, ZT_SHM_MAX_RANKS] ---- */

size_t zt_shm_control_bytes(int n_ranks);
struct shm_slot *zt_shm_slot(struct shm_control *ctl, zt_axes group, int rank);
struct shm_pair *zt_shm_pair(struct shm_control *ctl, int from, int to);
int64_t *zt_shm_counts(struct shm_control *ctl, zt_axes group, int rank); /* (n_ranks) */

/* Set the abort word and wake all who sleep. Async-signal-safe. */
void zt_shm_abort(struct shm_control *ctl);

/* ---- one rank ---- */

/* How descriptors are mapped; tests of several ranks in one process share one mapping. */
struct zt_shm_vm {
    void *ctx;
    void *(*map)(void *ctx, int fd, size_t at, size_t bytes); /* read-write; NULL: errno */
    void (*unmap)(void *ctx, void *p, size_t bytes);
};

/* The memory of one alloc_shared() of all ranks. */
struct shm_segment {
    size_t bytes[ZT_SHM_MAX_RANKS];
    char *base[ZT_SHM_MAX_RANKS]; /* in this process */
};

/*
 * The order of one group's calls on this rank. A call gets its position when it is enqueued, and
 * waits for its turn when it runs, so that two streams may use one group.
 */
struct shm_channel {
    _Atomic uint32_t enqueued;
    struct shm_gate turn; /* position of the last finished call */
    uint32_t epoch;       /* arrivals so far; of the call whose turn it is */
};

struct shm_coll {
    struct zt_coll base;
    struct zt_shm_vm vm;
    zt_combine_fn *combine;
    struct shm_control *ctl;
    size_t ctl_bytes;
    int n_ranks, n_spins;   /* ranks of this node */
    int first;              /* the first of them */
    struct tcp_net *net;    /* NULL: there are no other nodes */
    struct zt_coll_ops ops; /* the table, by another name, of a job on several nodes */
    int arena_fds[ZT_SHM_MAX_RANKS];
    size_t arena_ends[ZT_SHM_MAX_RANKS]; /* bytes of each arena in use */
    _Atomic uint32_t n_segments;         /* entries below are constant once counted */
    struct shm_segment segments[SHM_MAX_SEGMENTS];
    struct shm_channel host; /* blocking calls */
    struct shm_channel groups[SHM_N_MASKS];
    struct shm_channel sends[ZT_SHM_MAX_RANKS], recvs[ZT_SHM_MAX_RANKS]; /* by peer */
};

/* A call as it travels on a stream. */
struct shm_task {
    struct shm_coll *c;
    struct shm_channel *channel;
    uint32_t seq;
    struct zt_call call;
};

_Static_assert(sizeof(struct shm_task) <= ZT_TASK_ARG_BYTES,
               "a task must fit into a stream's queue");

/*
 * A call under way: its group, and after zt_shm_meet() what the members called. The members are those on
 * this node, which is all of them unless n < group_n; of a host call they are all ranks of this node.
 */
struct shm_op {
    struct shm_coll *c;
    const struct shm_task *task;
    const struct zt_call *call;    /* the task's */
    size_t send_bytes, recv_bytes; /* what peers may touch */
    int group_n;
    int who;  /* in a host call: the rank whose status it is */
    int peer; /* rank of a message's other end */
    int n, me;
    int ranks[ZT_SHM_MAX_RANKS];
    const struct shm_call *calls[ZT_SHM_MAX_RANKS];
    struct zt_err *err;
};

/* zt_shm_coll_create() with its own way of mapping; vm NULL: the usual one. */
int zt_shm_coll_create_vm(const struct zt_shm_job *job, struct zt_dev *dev,
                          const struct zt_mesh *mesh, int rank, const struct zt_shm_vm *vm,
                          struct zt_coll **out, struct zt_err *err) ZT_MUST_CHECK;

/*
 * The ranks of one node of a job on several: job->n_ranks of them from `first` on. Not usable as a
 * transport until zt_tcp_coll_create_vm() gave it the others.
 */
int zt_shm_node_create(const struct zt_shm_job *job, struct zt_dev *dev, const struct zt_mesh *mesh,
                       int rank, int first, const struct zt_shm_vm *vm, struct shm_coll **out,
                       struct zt_err *err) ZT_MUST_CHECK;

/* An arena for all ranks of this node and their peers here, beyond what alloc_shared() may have. */
int zt_shm_alloc_node(struct shm_coll *c, size_t bytes, void **out,
                      struct zt_err *err) ZT_MUST_CHECK;

/* ---- meeting (shm_sync.c) ---- */

void zt_shm_gate_set(struct shm_gate *g, uint32_t epoch);

/* Wait until the gate has reached `epoch`; false: the job was aborted before it did. */
bool zt_shm_gate_wait(struct shm_coll *c, struct shm_gate *g, uint32_t epoch) ZT_MUST_CHECK;

/* The group of a task; `err` stays the place of its messages. */
void zt_shm_op_init(struct shm_op *op, const struct shm_task *task, struct zt_err *err);

/* Where a rank of this node has its slot. */
struct shm_slot *zt_shm_slot_of(const struct shm_op *op, int rank);

/* Publish the call, wait for all members, and check that all made the same one. */
int zt_shm_meet(struct shm_op *op, int status) ZT_MUST_CHECK;

/* Wait for all members once more. */
int zt_shm_part(struct shm_op *op) ZT_MUST_CHECK;

/* Our own call as its peers see it. */
void zt_shm_call_of(struct shm_call *call, const struct shm_op *op);

/* Equal but for where buffers lie, and what the caller met. */
bool zt_shm_same_call(const struct shm_call *a, const struct shm_call *b);

/* Error texts. */
const char *zt_shm_describe(char *buf, size_t buf_bytes, const struct shm_call *call);
int zt_shm_aborted(const struct shm_op *op, const char *where) ZT_MUST_CHECK;
int zt_shm_mismatch(const struct shm_op *op, int rank, const struct shm_call *call, int other_rank,
                    const struct shm_call *other) ZT_MUST_CHECK;

/* ---- memory (shm_coll.c) ---- */

/* The rank shares this node's memory. */
static inline bool zt_shm_is_here(const struct shm_coll *c, int rank)
{
    return rank >= c->first && rank < c->first + c->n_ranks;
}

/* Where `p` lies in this rank's arena; segment 0 when [p, p + bytes) is in none. */
struct shm_range zt_shm_locate(const struct shm_coll *c, const void *p, size_t bytes);

/* `bytes` at a range of the arena of a rank of this node; NULL when not inside. */
void *zt_shm_at(const struct shm_coll *c, int rank, struct shm_range range, size_t bytes);

/*
 * What a rank of this node offers to read by `call`. False with ZT_EPROTO when it is not shared memory.
 * All members look at all offers, so that they fail alike.
 */
bool zt_shm_source(const struct shm_op *op, int rank, const struct shm_call *call, size_t bytes,
                   const void **out) ZT_MUST_CHECK;

/* ---- algorithms (shm_reduce.c, shm_move.c), for groups of more than one ---- */

/* After the group has met; they end when all have read. */
int zt_shm_all_reduce(struct shm_op *op) ZT_MUST_CHECK;
int zt_shm_reduce_scatter(struct shm_op *op) ZT_MUST_CHECK;
int zt_shm_all_gather(struct shm_op *op) ZT_MUST_CHECK;
int zt_shm_broadcast(struct shm_op *op) ZT_MUST_CHECK;
int zt_shm_all_to_all(struct shm_op *op) ZT_MUST_CHECK;
void zt_shm_publish_counts(const struct shm_op *op); /* of all_to_all, before meeting */

/* Between two ranks; nobody else meets. */
int zt_shm_send(struct shm_op *op) ZT_MUST_CHECK;
int zt_shm_recv(struct shm_op *op) ZT_MUST_CHECK;

extern const struct zt_coll_ops zt_shm_ops; /* shm_ops.c */

/* The rest of the table, from shm_coll.c. */
int zt_shm_alloc_shared(struct zt_coll *base, size_t bytes, void **out,
                        struct zt_err *err) ZT_MUST_CHECK;
int zt_shm_barrier(struct zt_coll *base, struct zt_err *err) ZT_MUST_CHECK;
void zt_shm_coll_abort(struct zt_coll *base);
void zt_shm_coll_free(struct zt_coll *base);

#endif
