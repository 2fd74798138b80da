#include "coll/tcp_net.h"

#include <poll.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/size.h"

enum {
    SPINS_ALONE = 100, /* tries before sleeping: about 50 us, what falling asleep and waking cost */
    LEAVE_MS = 500,    /* how long a failed rank lets the others read what it said */
};

zt_axes zt_tcp_group(const struct zt_mesh *mesh, zt_axes group)
{
    zt_axes wide = 0;
    for (int a = 0; a < ZT_N_AXES; a++)
        if (mesh->size[a] > 1)
            wide |= ZT_AXES(a);
    return group & wide;
}

/* ---- who talks to whom ---- */

/* The nodes of the group of `mask` that this rank is in. */
static void find_parts(const struct shm_coll *c, zt_axes mask, struct tcp_group *g)
{
    const struct tcp_net *net = c->net;
    g->n = zt_group_size(&c->base.mesh, mask);
    for (int i = 0; i < g->n; i++) {
        int rank = zt_group_member(&c->base.mesh, mask, c->base.rank, i);
        struct tcp_part *last = g->n_parts ? &g->parts[g->n_parts - 1] : NULL;
        if (last && net->node_of[last->rank] == net->node_of[rank]) {
            last->n++;
            continue;
        }
        if (net->node_of[rank] == net->node)
            g->me = g->n_parts;
        g->parts[g->n_parts++] = (struct tcp_part){.first = i, .n = 1, .rank = rank};
    }
    g->speaks = g->parts[g->me].rank == c->base.rank;
    g->flat = g->n == g->n_parts;
}

static bool spans_nodes(const struct tcp_group *g)
{
    return g->n_parts > 1;
}

static struct tcp_conn *add_conn(struct tcp_net *net, int rank, int channel)
{
    struct tcp_conn *conn = &net->conns[net->n_conns++];
    *conn = (struct tcp_conn){.fd = -1, .rank = rank, .channel = channel};
    return conn;
}

static void add_group_conns(struct tcp_net *net, struct tcp_group *g, int channel)
{
    for (int i = 0; g->speaks && i < g->n_parts; i++)
        if (i != g->me)
            g->parts[i].conn = add_conn(net, g->parts[i].rank, channel);
}

static void add_message_conns(struct shm_coll *c)
{
    struct tcp_net *net = c->net;
    int me = c->base.rank;
    for (int r = 0; r < net->world; r++) {
        if (zt_shm_is_here(c, r))
            continue;
        net->out[r] = add_conn(net, r, r > me ? TCP_UP : TCP_DOWN);
        net->in[r] = add_conn(net, r, r > me ? TCP_DOWN : TCP_UP);
    }
}

/* All connections, groups and sizes; nothing is connected yet. */
static void plan_net(struct shm_coll *c)
{
    struct tcp_net *net = c->net;
    const zt_axes world = zt_tcp_group(&c->base.mesh, ZT_GROUP_WORLD);
    size_t counts = zt_align_size(3 * (size_t)net->world * sizeof(int64_t), SHM_LINE_BYTES);
    int n_groups = 0;
    for (zt_axes mask = 1; mask < SHM_N_MASKS; mask++)
        n_groups += zt_tcp_group(&c->base.mesh, mask) == mask;
    size_t most = 2 * (size_t)net->world + (size_t)(n_groups + 2) * (size_t)net->n_nodes;
    net->conns = zt_xcalloc(most, sizeof *net->conns);
    find_parts(c, world, &net->host);
    add_group_conns(net, &net->host, TCP_HOST);
    for (int i = 0; net->host.speaks && i < net->n_nodes; i++)
        if (i != net->host.me)
            add_conn(net, net->host.parts[i].rank, TCP_WATCH);
    add_message_conns(c);
    for (zt_axes mask = 1; mask < SHM_N_MASKS; mask++) {
        struct tcp_group *g = &net->groups[mask];
        if (zt_tcp_group(&c->base.mesh, mask) != mask)
            continue;
        find_parts(c, mask, g);
        g->shared_at = net->shared_bytes;
        net->shared_bytes += 2 * (size_t)TCP_STAGE_BYTES + counts;
        if (spans_nodes(g))
            add_group_conns(net, g, TCP_GROUP + (int)mask);
    }
    ZT_ASSERT_CMP(net->n_conns, <=, most);
}

static char *xbuffer(size_t bytes)
{
    char *p = aligned_alloc(SHM_LINE_BYTES, zt_align_size(bytes, SHM_LINE_BYTES));
    ZT_ASSERT(p);
    return p;
}

/* What a speaker receives into; touched now, so that no call waits for pages. */
static void make_buffers(struct tcp_group *g)
{
    if (!g->speaks || !spans_nodes(g))
        return;
    size_t small = zt_tcp_small_bytes(g);
    size_t chunks = (size_t)ZT_MAX(g->n_parts, (int)TCP_RING) * TCP_CHUNK_BYTES;
    g->small = xbuffer(small);
    g->chunks = xbuffer(chunks);
    memset(g->small, 0, small);
    memset(g->chunks, 0, chunks);
}

char *zt_tcp_shared(const struct shm_coll *c, int rank, const struct tcp_group *g)
{
    return c->segments[c->net->segment].base[rank - c->first] + g->shared_at;
}

/* ---- life ---- */

static int check_job(const struct zt_tcp_job *job, const struct zt_mesh *mesh, int rank,
                     int n_local, struct zt_err *err)
{
    int world = zt_mesh_world(mesh), here = 0;
    bool fits = world >= 2 && world <= ZT_TCP_MAX_RANKS && job->n_nodes >= 2 &&
                job->n_nodes <= ZT_TCP_MAX_NODES && rank >= 0 && rank < world;
    for (int r = 0; fits && r < world; r++) {
        int before = r ? job->node_of[r - 1] : -1;
        fits = job->node_of[r] == before || job->node_of[r] == before + 1;
        fits = fits && (r || job->node_of[r] == 0);
        here += job->node_of[r] == job->node_of[rank];
    }
    if (fits && job->node_of[world - 1] == job->n_nodes - 1 && here == n_local)
        return ZT_OK;
    return zt_err_set(
        err, ZT_EUNSUPPORTED,
        "TCP collectives: rank %d of %d ranks on %d nodes, %d of them on this one; up to "
        "%d ranks on %d nodes are possible, those of a node one after the other",
        rank, world, job->n_nodes, n_local, ZT_TCP_MAX_RANKS, ZT_TCP_MAX_NODES);
}

/* The launcher may have bound each rank to cores of its own, so all of them count. */
static int spins(const struct shm_coll *c)
{
    return c->n_ranks > sysconf(_SC_NPROCESSORS_ONLN) ? 0 : SPINS_ALONE;
}

static struct tcp_net *make_net(const struct zt_tcp_job *job, struct shm_coll *c)
{
    struct tcp_net *net = zt_xcalloc(1, sizeof *net);
    net->n_nodes = job->n_nodes;
    net->node = job->node_of[c->base.rank];
    net->world = zt_mesh_world(&c->base.mesh);
    net->wake_fd = -1;
    net->n_spins = spins(c);
    net->apart = job->apart;
    net->ctx = job->ctx;
    memcpy(net->node_of, job->node_of, (size_t)net->world * sizeof *net->node_of);
    memcpy(net->addresses, job->addresses, (size_t)net->world * sizeof *net->addresses);
    memcpy(net->secret, job->secret, sizeof net->secret);
    pthread_mutex_init(&net->lock, NULL);
    return net;
}

/* The transport as it is known from now on. */
static void become(struct shm_coll *c)
{
    c->ops = zt_shm_ops;
    c->ops.name = "shared memory and TCP";
    c->base.ops = &c->ops;
}

static int open_net(struct shm_coll *c, const struct zt_tcp_job *job, int listen_fd,
                    struct zt_err *err)
{
    void *shared;
    struct tcp_net *net = make_net(job, c);
    /* Its segment comes before those that callers ask for. */
    net->segment = atomic_load(&c->n_segments);
    c->net = net;
    plan_net(c);
    c->net = NULL;
    int rc = zt_shm_alloc_node(c, ZT_MAX(net->shared_bytes, (size_t)1), &shared, err);
    c->net = net;
    make_buffers(&net->host);
    for (zt_axes mask = 1; mask < SHM_N_MASKS; mask++)
        make_buffers(&net->groups[mask]);
    if (!rc)
        rc = zt_tcp_join(c, listen_fd, job->join_s, err);
    explicit_bzero(net->secret, sizeof net->secret);
    if (!rc && net->host.speaks)
        rc = zt_tcp_watch(c, err);
    if (!rc)
        become(c);
    return rc;
}

int zt_tcp_coll_create_vm(const struct zt_tcp_job *job, const struct zt_shm_job *local,
                          int listen_fd, struct zt_dev *dev, const struct zt_mesh *mesh, int rank,
                          const struct zt_shm_vm *vm, struct zt_coll **out, struct zt_err *err)
{
    struct shm_coll *c = NULL;
    int first = 0;
    int rc = check_job(job, mesh, rank, local->n_ranks, err);
    if (!rc) {
        while (job->node_of[first] != job->node_of[rank])
            first++;
        rc = zt_shm_node_create(local, dev, mesh, rank, first, vm, &c, err);
    }
    if (!rc)
        rc = open_net(c, job, listen_fd, err);
    close(listen_fd);
    /* All nodes are there before any goes on: so nobody who comes late finds the first gone again. */
    if (!rc)
        rc = zt_shm_barrier(&c->base, err);
    if (rc && c) {
        zt_shm_abort(c->ctl);
        zt_shm_coll_free(&c->base);
    }
    if (!rc)
        *out = &c->base;
    return rc;
}

int zt_tcp_coll_create(const struct zt_tcp_job *job, const struct zt_shm_job *local, int listen_fd,
                       struct zt_dev *dev, const struct zt_mesh *mesh, int rank,
                       struct zt_coll **out, struct zt_err *err)
{
    return zt_tcp_coll_create_vm(job, local, listen_fd, dev, mesh, rank, NULL, out, err);
}

/*
 * A connection that is closed with bytes unread takes back what was sent on it. So after a failure we end
 * our side, and wait a little for the others to end theirs: they may still read what did not match.
 */
static void leave(struct tcp_net *net)
{
    struct pollfd *p = zt_xcalloc((size_t)net->n_conns + 1, sizeof *p);
    char ignored[4096];
    int n_open = 0;
    for (int k = 0; k < net->n_conns; k++) {
        p[k] = (struct pollfd){.fd = net->conns[k].fd, .events = POLLIN};
        if (p[k].fd >= 0 && ++n_open)
            shutdown(p[k].fd, SHUT_WR);
    }
    int64_t end_ns = zt_now_ns() + LEAVE_MS * INT64_C(1000000);
    while (n_open > 0 && zt_now_ns() < end_ns && poll(p, (nfds_t)net->n_conns, LEAVE_MS) > 0) {
        for (int k = 0; k < net->n_conns; k++) {
            if (p[k].fd < 0 || !p[k].revents ||
                recv(p[k].fd, ignored, sizeof ignored, MSG_DONTWAIT) > 0)
                continue;
            p[k].fd = -1;
            n_open--;
        }
    }
    free(p);
}

void zt_tcp_net_free(struct shm_coll *c)
{
    struct tcp_net *net = c->net;
    if (!net)
        return;
    zt_tcp_unwatch(c);
    if (c->ctl && atomic_load(&c->ctl->aborted))
        leave(net);
    for (int k = 0; k < net->n_conns; k++)
        if (net->conns[k].fd >= 0)
            close(net->conns[k].fd);
    for (int i = 0; i < SHM_N_MASKS; i++) {
        free(net->groups[i].small);
        free(net->groups[i].chunks);
    }
    free(net->host.small);
    free(net->host.chunks);
    free(net->conns);
    pthread_mutex_destroy(&net->lock);
    explicit_bzero(net->secret, sizeof net->secret);
    free(net);
    c->net = NULL;
}
