/*
 * tcp.h: collectives of a job on several nodes: shared memory inside a node, our own TCP between them.
 * The table of coll.h, and its bits: sums run in the group's rank order in fp32 and are rounded once,
 * wherever the ranks are.
 *
 * Who talks: of each group its first member on every node, so a node sends and receives once, and its ranks
 * combine in shared memory; messages go directly between their two ranks. Who waits for the network sleeps in
 * poll(), on its stream's thread, so compute streams go on.
 *
 * How, for H nodes (tcp_reduce.c, tcp_move.c):
 *   small calls     each node sends what its members have to all others, everybody combines: one hop
 *   sums, one rank on each node: each node combines one part of the buffer, then sends it to all (direct)
 *   sums, several ranks on a node: partial sums in fp32 go from node to node in rank order, the result flows
 *                   back the other way: bytes per link do not grow with the ranks of a node
 *   all_gather, all_to_all: each node to each other; broadcast: along the nodes
 *
 * Joining. Each rank listens on a port that the system picks, at one address: of `interface`, or where the
 * route to the other nodes starts. The addresses of all ranks travel over the launcher's control plane, with
 * the job's secret (launch.h). Then each connection is made once, by the higher rank, and both ends prove
 * that they know the secret before anything else is said (tcp_auth.h). When all are there, the
 * port is closed. Strangers, silent or not, hold up nobody and change nothing; their number is bounded.
 * What follows on a connection is neither encrypted nor signed: who can alter packets between the hosts can
 * alter the training.
 *
 * Failure. Between nodes there is a connection that is always watched: a rank that aborts tells all nodes
 * at once, a process that dies is seen at once, a link that is cut within about 6 s (TCP_USER_TIMEOUT; while joining, its limit); every call of
 * every rank then fails with ZT_EPEER. Calls that do not match fail as coll.h says. A peer that is late is
 * waited for without limit, even when it is stopped: that is the launcher's affair.
 *
 * All hosts must have the byte order of little-endian machines, as values travel as they are.
 */
#ifndef ZT_COLL_TCP_H
#define ZT_COLL_TCP_H

#include "coll/coll.h"

enum {
    ZT_TCP_MAX_RANKS = 256, /* of the job; on a node at most ZT_SHM_MAX_RANKS */
    ZT_TCP_MAX_NODES = 64,
    ZT_TCP_SECRET_BYTES = 32,
};

/* Where a rank listens; travels as it is. */
struct zt_tcp_address {
    uint8_t ip[16]; /* network order; IPv4: the first 4 */
    uint16_t port;
    uint8_t version; /* of IP: 4 or 6 */
    uint8_t reserved[5];
};

struct zt_tcp_job {
    int n_nodes;        /* >= 2 */
    const int *node_of; /* (world) node of each rank: 0, ..., n_nodes - 1, not falling */
    const struct zt_tcp_address *addresses; /* (world) */
    const uint8_t *secret;                  /* (ZT_TCP_SECRET_BYTES); not kept */
    double join_s;                          /* how long joining may take; 0: 20 s */
    /*
     * The ranks here reach no rank of that node (any more), on whatever thread finds it; it must not block. Called
     * before the calls of this rank fail, or after; not once the collectives are freed. NULL: nobody asks.
     */
    void (*apart)(void *ctx, int node);
    void *ctx;
};

/*
 * Listen for the other ranks. interface: its first address that is no link-local one, or NULL: the address
 * from which this host reaches `towards`, a name or address of another node. A listener that is not handed
 * to zt_tcp_coll_create() is closed by the caller. Does not block but for the resolution of a name.
 */
int zt_tcp_listen(const char *interface, const char *towards, int *fd,
                  struct zt_tcp_address *address, struct zt_err *err) ZT_MUST_CHECK;

/* "10.0.0.1:4000" or "[fd00::1]:4000"; returns buf. */
const char *zt_tcp_address_text(const struct zt_tcp_address *a, char *buf, size_t buf_bytes);

/*
 * Blocks until all ranks are connected. `local` is the shared memory of this node, its ranks in order
 * (local->n_ranks of them). listen_fd is closed in any case.
 */
int zt_tcp_coll_create(const struct zt_tcp_job *job, const struct zt_shm_job *local, int listen_fd,
                       struct zt_dev *dev, const struct zt_mesh *mesh, int rank,
                       struct zt_coll **out, struct zt_err *err) ZT_MUST_CHECK;

#endif
