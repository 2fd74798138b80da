/*
 * worker.c: one rank. Started by the agent, never by a person.
 */
#include "worker.h"

#include <unistd.h>

#include "base/arena.h"
#include "cmd.h"
#include "coll/backend.h"
#include "coll/staged.h"
#include "coll/tcp.h"
#include "launch/launch.h"
#include "train/train.h"

static int send_report(void *ctx, const char *json, size_t len, struct zt_err *err)
{
    return zt_worker_report(ctx, json, len, err);
}

static bool stop_requested(void *ctx)
{
    return zt_worker_stop_requested(ctx);
}

/* What this rank computes on and talks to the others by. */
struct machine {
    const struct zt_backend *backend; /* of a GPU */
    struct zt_dev *dev;
    struct zt_dev *cpu; /* of the collectives under host-staged ones */
    struct zt_coll *coll;
    char log[512];
};

/* The only GPU that is visible to us is ours. */
static int open_device(const struct zt_worker *w, struct machine *m, struct zt_err *err)
{
    if (!w->device.gpu)
        return zt_cpu_dev_create(&m->dev, m->log, sizeof m->log, err);
    int rc = zt_backend_load(&m->backend, err);
    if (!rc)
        rc = m->backend->dev_create(0, &m->dev, m->log, sizeof m->log, err);
    const char *ours = getenv("CUDA_VISIBLE_DEVICES");
    return rc && ours ? zt_err_wrap(err, "CUDA_VISIBLE_DEVICES=%s", ours) : rc;
}

/* Something that no call can report: NCCL has failed. Who waits for the GPU would wait for ever. */
static void on_fatal(void *ctx, const struct zt_err *err)
{
    (void)ctx;
    fprintf(stderr, "%s: %s\n", zt_code_name(err->code), err->msg);
    _exit(zt_exit_code(err->code));
}

/* What rank 0 says to all: how they talk, and NCCL's id. */
struct rendezvous {
    uint32_t transport;
    struct zt_nccl_id id;
};

/* Rank 0's choice, for all. */
static int choose(const struct zt_worker *w, const struct machine *m, struct rendezvous *out,
                  struct zt_err *err)
{
    bool can = m->backend->nccl_id, wants = w->device.transport == ZT_TRANSPORT_NCCL;
    if (wants && !can)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "--collectives=nccl: this CUDA part was built without NCCL");
    if (w->device.transport == ZT_TRANSPORT_AUTO)
        wants = can && w->device.ranks_per_gpu <= 1 && w->world > 1;
    out->transport = wants ? ZT_TRANSPORT_NCCL : ZT_TRANSPORT_STAGED;
    return wants ? m->backend->nccl_id(&out->id, err) : 0;
}

static const char *why_staged(const struct zt_worker *w)
{
    if (w->device.transport == ZT_TRANSPORT_STAGED)
        return "as asked for";
    if (w->device.ranks_per_gpu > 1)
        return "workers share a GPU";
    return w->world == 1 ? "one worker has nobody to talk to" : "built without NCCL";
}

static void tell_apart(void *ctx, int node)
{
    zt_worker_apart(ctx, node);
}

/* Between nodes: every rank listens, all learn where, and then they connect. */
static int open_nodes(struct zt_worker *w, struct zt_dev *dev, const struct zt_shm_job *local,
                      const struct zt_mesh *mesh, double join_s, struct zt_coll **out,
                      struct zt_err *err)
{
    const char *interface = getenv("ZT_TCP_INTERFACE");
    struct zt_tcp_address mine, *all = zt_xcalloc((size_t)w->world, sizeof *all);
    int *node_of = zt_xcalloc((size_t)w->world, sizeof *node_of), fd = -1;
    for (int k = 0; k < w->n_nodes; k++)
        for (int r = w->node_first[k]; r < w->node_first[k + 1]; r++)
            node_of[r] = k;
    const struct zt_tcp_job job = {.n_nodes = w->n_nodes,
                                   .node_of = node_of,
                                   .addresses = all,
                                   .secret = w->secret,
                                   .join_s = join_s,
                                   .apart = tell_apart,
                                   .ctx = w};
    int rc = zt_tcp_listen(interface && *interface ? interface : NULL, w->towards, &fd, &mine, err);
    if (!rc) {
        rc = zt_worker_gather(w, &mine, sizeof mine, all, err);
        if (rc)
            close(fd);
        else
            rc = zt_tcp_coll_create(&job, local, fd, dev, mesh, w->rank, out, err);
    }
    free(node_of);
    free(all);
    return rc;
}

int worker_open_cpu(struct zt_worker *w, struct zt_dev *dev, double join_s, struct zt_coll **out,
                    struct zt_err *err)
{
    struct zt_shm_job local = {w->shm_control_fd, w->n_arenas, w->shm_arena_fds};
    struct zt_mesh mesh = {{1, 1, w->world, 1, 1}};
    return w->n_nodes > 1 ? open_nodes(w, dev, &local, &mesh, join_s, out, err)
                          : zt_shm_coll_create(&local, dev, &mesh, w->rank, out, err);
}

/* From device to device by way of the CPU's collectives. */
static int open_staged(struct zt_worker *w, struct machine *m, struct zt_err *err)
{
    struct zt_staged_opts opts = {.slot_bytes = w->world == 1 ? 64 << 10 : 0};
    bool pinned = false;
    int rc = zt_cpu_dev_create(&m->cpu, NULL, 0, err);
    if (!rc)
        rc = worker_open_cpu(w, m->cpu, 0, &m->coll, err);
    if (!rc)
        rc = zt_staged_coll_create(m->coll, m->dev, &opts, &m->coll, &pinned, err);
    if (rc)
        return rc;
    size_t len = strlen(m->log);
    snprintf(m->log + len, sizeof m->log - len, "; collectives: host-staged (%s), %.1f MiB%s",
             why_staged(w), (double)zt_staged_bytes(&opts, w->world) / (1 << 20),
             pinned ? "" : ", not page-locked (slower; see ulimit -l)");
    return 0;
}

static int open_nccl(const struct zt_worker *w, const struct rendezvous *r, struct machine *m,
                     struct zt_err *err)
{
    struct zt_mesh mesh = {{1, 1, w->world, 1, 1}};
    int rc =
        m->backend->nccl_create
            ? m->backend->nccl_create(&r->id, m->dev, &mesh, w->rank, on_fatal, NULL, &m->coll, err)
            : zt_err_set(err, ZT_EUNSUPPORTED,
                         "the CUDA part of this host was built without NCCL, that of rank 0 "
                         "with it");
    size_t len = strlen(m->log);
    if (!rc)
        snprintf(m->log + len, sizeof m->log - len, "; collectives: NCCL (%s)",
                 w->device.transport == ZT_TRANSPORT_NCCL ? "as asked for"
                                                          : "each worker has a GPU of its own");
    return rc;
}

static int open_collectives(struct zt_worker *w, struct machine *m, struct zt_err *err)
{
    struct rendezvous r = {0};
    if (!w->device.gpu)
        return worker_open_cpu(w, m->dev, 0, &m->coll, err);
    int rc = w->rank == 0 ? choose(w, m, &r, err) : 0;
    if (!rc)
        rc = zt_worker_share(w, &r, sizeof r, err);
    if (!rc)
        rc = r.transport == ZT_TRANSPORT_NCCL ? open_nccl(w, &r, m, err) : open_staged(w, m, err);
    explicit_bzero(&r, sizeof r);
    return rc;
}

static void release(struct machine *m)
{
    if (m->coll)
        m->coll->ops->free(m->coll);
    if (m->dev && m->backend)
        m->backend->dev_free(m->dev);
    else if (m->dev)
        zt_cpu_dev_free(m->dev);
    if (m->cpu)
        zt_cpu_dev_free(m->cpu);
}

static int train(struct zt_worker *w, struct zt_err *err)
{
    struct zt_recipe_opts opts = {
        .path = "recipe", .text = w->recipe, .n_ranks = w->world, .resolved = true};
    struct zt_recipe *r = NULL;
    struct machine m = {0};
    int rc = zt_recipe_load(&opts, &r, err);
    if (!rc)
        rc = open_device(w, &m, err);
    if (!rc)
        rc = open_collectives(w, &m, err);
    if (!rc) {
        struct zt_train_env env = {.rank = w->rank,
                                   .world = w->world,
                                   .n_threads = w->threads,
                                   .host_ranks = w->n_arenas,
                                   .device_ranks =
                                       w->device.gpu ? w->device.ranks_per_gpu : w->n_arenas,
                                   .device = m.log,
                                   .dev = m.dev,
                                   .coll = m.coll,
                                   .ctx = w,
                                   .report = send_report,
                                   .stop_requested = stop_requested};
        rc = zt_train_run(r, &env, err);
    }
    release(&m);
    if (r)
        zt_recipe_free(r);
    return rc;
}

int cmd_worker(int argc, char **argv)
{
    struct zt_worker w;
    struct zt_err err = {0};
    (void)argv;
    if (argc != 1) {
        cmd_error("`worker` is started by `zerotrain agent`, not by hand");
        return ZT_EXIT_USAGE;
    }
    int rc = zt_worker_join(&w, &err);
    if (!rc) {
        rc = train(&w, &err);
        zt_worker_release(&w);
    }
    if (rc && err.msg[0]) /* else another rank says it */
        fprintf(stderr, "%s: %s\n", zt_code_name(rc), err.msg);
    return zt_exit_code(rc);
}
