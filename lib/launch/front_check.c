/* What zt_launch_run() is asked for: whether it can be. */
#include <string.h>

#include "launch/env.h"
#include "launch/front.h"
#include "launch/spawn.h"

static int check_env(const struct zt_launch_opts *o, struct zt_err *err)
{
    static const char *const ours[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                       "ZT_JOB_FD"};
    for (int i = 0; i < o->n_env; i++) {
        int rc = zt_env_check(o->env[i], strlen(o->env[i]), err);
        if (rc)
            return rc;
        size_t name_len = strcspn(o->env[i], "=");
        for (size_t j = 0; j < ZT_ARRAY_LEN(ours); j++) {
            if (strlen(ours[j]) == name_len && memcmp(ours[j], o->env[i], name_len) == 0)
                return zt_err_set(err, ZT_EINPUT,
                                  "%s cannot be given: zerotrain sets it for each rank", ours[j]);
        }
    }
    return 0;
}

static int check_nodes(const struct zt_launch_opts *o, struct zt_err *err)
{
    const struct zt_launch_node all = {.n_workers = o->n_workers};
    const struct zt_launch_node *nodes = o->n_nodes ? o->nodes : &all;
    int sum = 0;
    if (o->n_nodes < 0 || o->n_nodes > ZT_LAUNCH_MAX_NODES)
        return zt_err_set(err, ZT_EINPUT, "%d nodes; up to %d are possible", o->n_nodes,
                          ZT_LAUNCH_MAX_NODES);
    for (int i = 0; i < ZT_MAX(o->n_nodes, 1); i++) {
        if (nodes[i].n_workers < 1 || nodes[i].n_workers > ZT_LAUNCH_MAX_WORKERS)
            return zt_err_set(err, ZT_EINPUT, "%d workers on one host; from 1 to %d are possible",
                              nodes[i].n_workers, ZT_LAUNCH_MAX_WORKERS);
        if (o->n_nodes > 1 && (!nodes[i].address || !nodes[i].address[0]))
            return zt_err_set(err, ZT_EINPUT, "node %d has no address", i);
        sum += nodes[i].n_workers;
    }
    if (sum != o->n_workers)
        return zt_err_set(err, ZT_EINPUT, "%d workers in all, but %d on the nodes", o->n_workers,
                          sum);
    return 0;
}

int zt_front_check(const struct zt_launch_opts *o, struct zt_err *err)
{
    enum { ARGS_MAX_BYTES = 8 << 20, SECONDS_MAX = 1000000 };
    int rc = check_nodes(o, err);
    if (rc)
        return rc;
    if (o->recipe_len > ZT_RECIPE_MAX_BYTES)
        return zt_err_set(err, ZT_EINPUT, "the recipe has %zu bytes; the limit is %d",
                          o->recipe_len, ZT_RECIPE_MAX_BYTES);
    if (!(o->grace_s >= 0 && o->grace_s <= SECONDS_MAX) ||
        !(o->silence_s >= 0 && o->silence_s <= SECONDS_MAX) ||
        !(o->start_s >= 0 && o->start_s <= SECONDS_MAX))
        return zt_err_set(err, ZT_EINPUT, "a grace, silence or start outside 0 to %d s",
                          SECONDS_MAX);
    if (o->threads < 0 || o->threads > ZT_JOB_THREADS_MAX)
        return zt_err_set(err, ZT_EINPUT, "%d threads for a worker; up to %d are possible",
                          o->threads, ZT_JOB_THREADS_MAX);
    size_t bytes = 0;
    for (int i = 0; o->program && o->program[i]; i++)
        bytes += strlen(o->program[i]) + 4;
    if (o->program && (bytes == 0 || bytes > ARGS_MAX_BYTES))
        return zt_err_set(err, ZT_EINPUT,
                          bytes ? "the program's arguments are too long" : "no program to run");
    return check_env(o, err);
}
