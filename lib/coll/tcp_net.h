/*
 * tcp_net.h: inside of the collectives between nodes (private to lib/coll).
 *
 * Files: tcp_addr.c addresses and the port; tcp_auth.c proofs; tcp_join.c makes all connections; tcp_net.c
 * their list and the transport's life; tcp_watch.c the thread that sees other nodes end; tcp_io.c bytes in
 * flight; tcp_call.c what all calls begin with, and small ones; tcp_reduce.c sums; tcp_move.c the rest.
 *
 * Connections. Each serves one channel, and a channel is used by one call at a time, so whose turn it is
 * (shm_ops.c) reads and writes it without a lock and without looking who else may be meant. Groups with the same
 * members have the same channel: their calls have one order.
 */
#ifndef ZT_COLL_TCP_NET_H
#define ZT_COLL_TCP_NET_H

#include <netinet/in.h>
#include <pthread.h>

#include "coll/shm.h"
#include "coll/tcp.h"
#include "coll/tcp_auth.h"

/* Channels of a pair of ranks. */
enum {
    TCP_WATCH, /* first ranks of nodes: 'A' the job is aborted, 'B' this node ends well */
    TCP_HOST,  /* the same: blocking calls */
    TCP_UP,    /* any two ranks: messages of the lower to the higher, and answers */
    TCP_DOWN,  /* and the other way round */
    TCP_GROUP, /* + mask: first members of the group on each node */
};

enum {
    TCP_SMALL_BYTES = 8 * 1024,        /* of a call that goes at once to all */
    TCP_CHUNK_BYTES = 256 * 1024,      /* of sums under way */
    TCP_STAGE_BYTES = TCP_CHUNK_BYTES, /* twice: results for members with private buffers */
    TCP_RING = 4,                      /* chunks of a chain under way in one node */
};

struct tcp_conn {
    int fd; /* -1: not there yet */
    int rank, channel;
};

/* A group's members on one node: group indices [first, first + n). */
struct tcp_part {
    int first, n;
    int rank;              /* of the first of them */
    struct tcp_conn *conn; /* to it, if both of us speak for our nodes; else NULL */
};

/* What this rank knows of one of its groups. */
struct tcp_group {
    int n_parts, me, n; /* parts; ours; members of all */
    bool flat;          /* one member on each node */
    bool speaks;        /* this rank does, for its node */
    struct tcp_part parts[ZT_TCP_MAX_NODES];
    size_t shared_at; /* what the group has of the shared memory of each of its members */
    char *small;      /* (zt_tcp_small_bytes()): messages of all nodes as they come */
    char *chunks;     /* (max(n_parts, TCP_RING) * TCP_CHUNK_BYTES): sums under way */
};

struct tcp_net {
    int n_nodes, node;
    int world;
    int node_of[ZT_TCP_MAX_RANKS];
    struct zt_tcp_address addresses[ZT_TCP_MAX_RANKS];
    uint8_t secret[TCP_SECRET_BYTES]; /* zeroed after joining */
    int n_conns;
    struct tcp_conn *conns;
    struct tcp_conn *out[ZT_TCP_MAX_RANKS], *in[ZT_TCP_MAX_RANKS]; /* messages by peer */
    struct tcp_group host, groups[SHM_N_MASKS];
    uint32_t segment; /* shared memory of our own: for each group a stage and counts */
    size_t shared_bytes;
    int n_spins;
    bool watching;
    pthread_t watcher;
    int wake_fd;
    void (*apart)(void *ctx, int node); /* as zt_tcp_job has it */
    void *ctx;
    pthread_mutex_t lock; /* of `why` */
    char why[256];        /* why the job was aborted from outside; "": not known */
};

/* ---- seen from shm_*.c ---- */

/* Axes of more than one rank: groups with the same members have one name. */
zt_axes zt_tcp_group(const struct zt_mesh *mesh, zt_axes group);

/* A call of a group on several nodes, after its turn has come. */
int zt_tcp_run(struct shm_op *op) ZT_MUST_CHECK;

/* A send or recv with a rank of another node. */
int zt_tcp_message(struct shm_op *op) ZT_MUST_CHECK;

/*
 * Between the first ranks of all nodes, in a host call: *status and *rank become those of the first rank that met an
 * error, of all.
 */
int zt_tcp_agree(struct shm_op *op, int *status, int *rank) ZT_MUST_CHECK;

void zt_tcp_net_free(struct shm_coll *c);

/* ---- life (tcp_net.c, tcp_join.c, tcp_watch.c) ---- */

int zt_tcp_coll_create_vm(const struct zt_tcp_job *job, const struct zt_shm_job *local,
                          int listen_fd, struct zt_dev *dev, const struct zt_mesh *mesh, int rank,
                          const struct zt_shm_vm *vm, struct zt_coll **out,
                          struct zt_err *err) ZT_MUST_CHECK;

/* Connect all of net->conns. */
int zt_tcp_join(struct shm_coll *c, int listen_fd, double limit_s,
                struct zt_err *err) ZT_MUST_CHECK;

socklen_t zt_tcp_sockaddr(const struct zt_tcp_address *a, struct sockaddr_storage *out);

int zt_tcp_watch(struct shm_coll *c, struct zt_err *err) ZT_MUST_CHECK;
void zt_tcp_unwatch(struct shm_coll *c);

/* The ranks here do not reach the node of that rank. */
void zt_tcp_apart(const struct tcp_net *net, int rank);

/* Note why the job is over, if nobody has, and abort it on this node. */
void zt_tcp_lost(struct shm_coll *c, const char *why);

/* ---- bytes in flight (tcp_io.c) ---- */

/* One direction of a connection: bytes [done, ready) of p may move. */
struct tcp_flow {
    struct tcp_conn *conn;
    bool out;
    char *p;
    size_t done, ready;
};

/*
 * Move something. Waits until at least one byte has moved, and sleeps meanwhile: for little that is to come after
 * a few looks, since falling asleep and waking cost as much; for much at once, as others may use the processor.
 * Nothing to move is our mistake. ZT_EPEER: a peer is gone, or the job was aborted.
 */
int zt_tcp_pump(struct shm_op *op, struct tcp_flow *flows, int n) ZT_MUST_CHECK;

/* ---- calls (tcp_call.c) ---- */

/* A call while its speaker is at it. */
struct tcp_op {
    struct shm_op *op;
    struct tcp_group *g;
    struct tcp_flow flows[2 * ZT_TCP_MAX_NODES];
    const char *src[ZT_SHM_MAX_RANKS]; /* send buffers of the members here */
    char *dst[ZT_SHM_MAX_RANKS];       /* recv buffers of the members here; [0] ours */
    bool direct;                       /* all of dst can be written by us */
    char *stage;                       /* the speaker's, shared: 2 * TCP_STAGE_BYTES */
    uint32_t n_staged;                 /* blocks that went through it */
};

/*
 * Compare the calls of all nodes, and give every speaker what the others have: `bytes` for each member.
 * mine: (members here), where theirs are; all: (n) set to where those of the whole group are, until the
 * next call. bytes 0: mine and all may be NULL.
 */
int zt_tcp_exchange(struct tcp_op *t, const void *const *mine, const void **all,
                    size_t bytes) ZT_MUST_CHECK;
size_t zt_tcp_small_bytes(const struct tcp_group *g); /* of g->small */

/* A rank's part of the group's shared memory: 2 * TCP_STAGE_BYTES, then counts of all_to_all. */
char *zt_tcp_shared(const struct shm_coll *c, int rank, const struct tcp_group *g);
void zt_tcp_publish_counts(const struct tcp_op *t); /* before meeting */

/*
 * A block of a result for members that cannot be written to: the speaker has put it at zt_tcp_stage(),
 * the others find it there after this. Blocks alternate between two places, so that one can be
 * filled while the last one is read.
 */
char *zt_tcp_stage(const struct tcp_op *t);
int zt_tcp_stage_meet(struct tcp_op *t) ZT_MUST_CHECK;

/* sum or maximum as zt_combine, of an fp32 (or own type) partial before the sources, if not NULL. */
void zt_tcp_combine(const struct shm_op *op, const void *partial, const struct zt_combine *a);

/* The type of partial results. */
enum zt_dtype zt_tcp_partial_dtype(enum zt_dtype t);

/* Large calls; all members of the group here take part. */
int zt_tcp_all_reduce(struct tcp_op *t) ZT_MUST_CHECK;
int zt_tcp_reduce_scatter(struct tcp_op *t) ZT_MUST_CHECK;
int zt_tcp_all_gather(struct tcp_op *t) ZT_MUST_CHECK;
int zt_tcp_broadcast(struct tcp_op *t) ZT_MUST_CHECK;
int zt_tcp_all_to_all(struct tcp_op *t) ZT_MUST_CHECK;

#endif
