/*
 * worker.c: one rank. Started by the agent, never by a person.
 */
#include "cmd.h"

#include <signal.h>

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

static int train(struct zt_worker *w, struct zt_err *err)
{
    struct zt_recipe_opts opts = {.path = "recipe", .text = w->recipe, .n_ranks = w->world};
    struct zt_recipe *r = NULL;
    struct zt_dev *dev = NULL;
    struct zt_coll *coll = NULL;
    char log[512];
    int rc = zt_recipe_load(&opts, &r, err);
    if (!rc)
        rc = zt_cpu_dev_create(&dev, log, sizeof log, err);
    if (!rc) {
        struct zt_shm_job job = {w->shm_control_fd, w->world, w->shm_arena_fds};
        struct zt_mesh mesh = {{1, 1, w->world, 1, 1}};
        rc = zt_shm_coll_create(&job, dev, &mesh, w->rank, &coll, err);
    }
    if (!rc) {
        struct zt_train_env env = {.rank = w->rank,
                                   .world = w->world,
                                   .n_threads = w->threads,
                                   .device = log,
                                   .dev = dev,
                                   .coll = coll,
                                   .ctx = w,
                                   .report = send_report,
                                   .stop_requested = stop_requested};
        rc = zt_train_run(r, &env, err);
    }
    if (coll)
        coll->ops->free(coll);
    if (dev)
        zt_cpu_dev_free(dev);
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
    if (rc)
        fprintf(stderr, "%s: %s\n", zt_code_name(rc), err.msg);
    return zt_exit_code(rc);
}
