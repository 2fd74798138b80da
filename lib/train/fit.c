#include "plan/fit.h"

#include <math.h>

#include "train/run.h"

/*
 * The front end has compared the plan with what it could know. A worker knows its device, and the
 * context and the transport that are on it; what is still to come is a 64th: tables of pages, what
 * libraries allocate at their first call.
 */

static const double MIB = 1 << 20;

/* What all ranks agree on, in MiB: an fp32 holds them exactly. */
struct free_mib {
    float device, host;
};

static float whole_mib(size_t bytes, int n_ranks)
{
    const size_t kept = bytes - bytes / 64;
    return floorf((float)((double)kept / MIB / ZT_MAX(n_ranks, 1)));
}

static int measure(const struct zt_train_env *env, struct free_mib *out, struct zt_err *err)
{
    struct zt_dev *cpu = NULL;
    size_t device = 0, host = 0, total;
    int rc = env->dev->ops->memory(env->dev, &device, &total, err);
    if (!rc && env->dev->ops->kind == ZT_DEV_CPU) {
        host = device;
    } else if (!rc) {
        rc = zt_cpu_dev_create(&cpu, NULL, 0, err);
        if (!rc)
            rc = cpu->ops->memory(cpu, &host, &total, err);
    }
    *out =
        (struct free_mib){whole_mib(device, env->device_ranks), whole_mib(host, env->host_ranks)};
    if (cpu)
        zt_cpu_dev_free(cpu);
    return rc;
}

/* The least of all ranks. `shared` is memory that peers read, for the pairs of all ranks. */
static int reduce(const struct zt_train_env *env, struct zt_stream *s, struct free_mib *shared,
                  struct free_mib *m, struct zt_err *err)
{
    const struct zt_dev_ops *ops = env->dev->ops;
    const size_t n = (size_t)env->world;
    struct free_mib *all = zt_xcalloc(n, sizeof *all);
    ops->copy(s, &(struct zt_copy){shared + env->rank, m, sizeof *m});
    zt_all_gather(env->coll, s, ZT_GROUP_WORLD, shared + env->rank, shared, 2, ZT_F32);
    ops->copy(s, &(struct zt_copy){all, shared, n * sizeof *all});
    int rc = ops->sync(ops->record(s), err);
    for (size_t i = 0; i < n; i++) {
        m->device = fminf(m->device, all[i].device);
        m->host = fminf(m->host, all[i].host);
    }
    free(all);
    return rc;
}

/* Measured twice: the first exchange makes the transport take the memory that it needs. */
static int least_free(const struct zt_train_env *env, struct free_mib *m, struct zt_err *err)
{
    const struct zt_coll_ops *coll = env->coll->ops;
    struct zt_stream *s = NULL;
    void *shared;
    int rc = measure(env, m, err);
    if (rc || env->world == 1)
        return rc;
    rc = coll->alloc_shared(env->coll, (size_t)env->world * sizeof *m, &shared, err);
    if (!rc)
        rc = env->dev->ops->stream_create(env->dev, "memory", 1, &s, err);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = measure(env, m, err);
        if (!rc)
            rc = reduce(env, s, shared, m, err);
    }
    if (s && coll->drain)
        coll->drain(env->coll);
    if (s)
        env->dev->ops->stream_free(s);
    return rc;
}

static struct zt_fit_limit limit_of(float mib, const char *by)
{
    return (struct zt_fit_limit){(size_t)((double)mib * MIB), by};
}

static int find_limits(const struct zt_recipe *r, const struct zt_train_env *env,
                       struct zt_fit_limits *out, struct zt_err *err)
{
    const bool gpu = env->dev->ops->kind != ZT_DEV_CPU;
    struct free_mib m;
    *out = ZT_FIT_NO_LIMITS;
    out->nvme_path = r->zero.nvme.given ? r->zero.nvme.given : ZT_FIT_ANY_FOLDER;
    int rc = least_free(env, &m, err);
    if (rc)
        return rc;
    if (r->device_memory > 0)
        out->device = (struct zt_fit_limit){(size_t)r->device_memory, "--device_memory"};
    else if (gpu)
        out->device = limit_of(m.device, "the least that is free on a GPU of the job");
    if (r->host_memory > 0)
        out->host = (struct zt_fit_limit){(size_t)r->host_memory / (size_t)env->world,
                                          "its part of --host_memory"};
    else if (gpu)
        out->host = limit_of(m.host, "its part of what is free on a host of the job");
    if (!gpu)
        out->both = limit_of(m.host, "its part of what is free on a host of the job");
    return 0;
}

static int refuse(const struct zt_plan *p, const struct zt_fit_limits *limits, struct zt_err *err)
{
    struct zt_fit changes;
    struct zt_str text = {0};
    int rc = zt_fit_search(p->model, &p->cfg, limits, ZT_FIT_CHANGES, &changes, err);
    if (rc)
        return rc;
    zt_fit_print_refusal(p, &changes, limits, &text);
    rc = zt_err_set(err, ZT_ENOMEM, "it does not fit: %s", zt_str_get(&text));
    zt_str_release(&text);
    zt_fit_release(&changes);
    return rc;
}

int zt_run_check_fit(const struct zt_recipe *r, const struct zt_train_env *env,
                     const struct zt_plan *p, struct zt_err *err)
{
    struct zt_fit_limits limits;
    struct zt_err ignored;
    int rc = find_limits(r, env, &limits, err);
    if (rc || zt_fit_fits(p, &limits))
        return rc;
    if (env->rank == 0)
        rc = refuse(p, &limits, err);
    /* Whoever ended before rank 0 has said why would be blamed. */
    if (env->coll->ops->barrier(env->coll, env->rank ? err : &ignored))
        return rc ? rc : err->code;
    if (env->rank == 0)
        return rc;
    *err = (struct zt_err){.code = ZT_EPEER};
    return ZT_EPEER;
}
