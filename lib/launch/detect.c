#include "launch/detect.h"

/* One row a launcher, the innermost first. NULL: it does not tell. */
static const struct launcher {
    const char *by;
    const char *rank, *world, *local_rank, *local_world;
    const char *hosts; /* how many: of those that start other launchers, too */
    bool in_batch;     /* a batch script, which is alone, has a rank too, but no world */
} launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, false},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, false},
    {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL, "FLUX_JOB_NNODES",
     false},
    {"mpirun (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, false},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NUM_NODES",
     true},
};

enum { MAX_WORLD = 1 << 20 };

/* A number from `least` to MAX_WORLD; *out stays -1 where the variable is not set. */
static int read_number(const struct zt_env *env, const char *name, int least, int *out,
                       struct zt_err *err)
{
    const char *text = name ? zt_env_get(env, name) : NULL;
    int64_t n;
    *out = -1;
    if (!text)
        return 0;
    if (!zt_parse_i64(text, &n) || n < least || n > MAX_WORLD)
        return zt_err_set(err, ZT_EINPUT, "%s=%.40s: a number from %d is needed", name, text,
                          least);
    *out = (int)n;
    return 0;
}

static int check_range(const struct launcher *l, const struct zt_place *p, struct zt_err *err)
{
    if (p->rank < 0 || p->world < 0)
        return zt_err_set(err, ZT_EINPUT, "%s is set, but %s is not: started by %s both are",
                          p->rank < 0 ? l->world : l->rank, p->rank < 0 ? l->rank : l->world,
                          l->by);
    if (p->rank >= p->world)
        return zt_err_set(err, ZT_EINPUT, "%s=%d and %s=%d: a rank is less than their number",
                          l->rank, p->rank, l->world, p->world);
    if (p->local_world > p->world)
        return zt_err_set(err, ZT_EINPUT, "%s=%d and %s=%d: more on this host than there are",
                          l->local_world, p->local_world, l->world, p->world);
    int most = p->local_world > 0 ? p->local_world : p->world;
    if (p->local_rank >= most)
        return zt_err_set(err, ZT_EINPUT, "%s=%d and %s=%d: a rank is less than their number",
                          l->local_rank, p->local_rank,
                          p->local_world > 0 ? l->local_world : l->world, most);
    return 0;
}

/* What one launcher says; out->by stays NULL where it says nothing. */
static int read_launcher(const struct zt_env *env, const struct launcher *l, struct zt_place *out,
                         struct zt_err *err)
{
    *out = (struct zt_place){0};
    if (!zt_env_get(env, l->world) && (l->in_batch || !zt_env_get(env, l->rank)))
        return 0;
    int rc = read_number(env, l->rank, 0, &out->rank, err);
    if (!rc)
        rc = read_number(env, l->world, 1, &out->world, err);
    if (!rc)
        rc = read_number(env, l->local_rank, 0, &out->local_rank, err);
    if (!rc)
        rc = read_number(env, l->local_world, 1, &out->local_world, err);
    if (!rc)
        rc = check_range(l, out, err);
    out->by = l->by;
    out->rank_var = l->rank;
    return rc;
}

static bool same(int a, int b)
{
    return a == b || a < 0 || b < 0;
}

/* Two launchers that both speak of us must agree. */
static int compare(const struct launcher *l, const struct zt_place *inner, const struct launcher *m,
                   const struct zt_place *outer, struct zt_err *err)
{
    if (inner->rank != outer->rank || inner->world != outer->world)
        return zt_err_set(err, ZT_EINPUT,
                          "%s=%d of %s=%d (%s), but %s=%d of %s=%d (%s): which one is it? Unset "
                          "those of one launcher",
                          l->rank, inner->rank, l->world, inner->world, l->by, m->rank, outer->rank,
                          m->world, outer->world, m->by);
    if (!same(inner->local_rank, outer->local_rank))
        return zt_err_set(
            err, ZT_EINPUT,
            "%s=%d (%s), but %s=%d (%s): which one is it? Unset those of one launcher",
            l->local_rank, inner->local_rank, l->by, m->local_rank, outer->local_rank, m->by);
    return 0;
}

/*
 * Slurm or Flux has started another launcher, or its daemons: a task on each host. What the tasks' own variables
 * say then, and PMI's, which speaks for them, is not about us.
 */
static int find_outer(const struct zt_env *env, const struct zt_place *places,
                      const struct zt_place **outer, struct zt_err *err)
{
    *outer = NULL;
    for (size_t i = 0; i < ZT_ARRAY_LEN(launchers); i++) {
        int hosts, rc = read_number(env, launchers[i].hosts, 1, &hosts, err);
        if (rc)
            return rc;
        if (places[i].by && places[i].world == hosts)
            *outer = &places[i];
    }
    return 0;
}

static bool is_same_place(const struct zt_place *a, const struct zt_place *b)
{
    return a->rank == b->rank && a->world == b->world;
}

/* A rank without a number of ranks: as many trainings would start as there are ranks. */
static int check_pmix(const struct zt_env *env, struct zt_err *err)
{
    const char *rank = zt_env_get(env, "PMIX_RANK");
    if (!rank)
        return 0;
    return zt_err_set(
        err, ZT_EINPUT,
        "PMIX_RANK=%.40s is set, but nothing says how many ranks there are; start zerotrain by "
        "mpirun, srun, flux or torchrun, or unset it to train alone",
        rank);
}

int zt_detect_place(const struct zt_env *env, struct zt_place *out, struct zt_err *err)
{
    struct zt_place places[ZT_ARRAY_LEN(launchers)];
    const struct launcher *found = NULL;
    const struct zt_place *outer;
    int rc = 0;
    *out = (struct zt_place){0};
    for (size_t i = 0; !rc && i < ZT_ARRAY_LEN(launchers); i++)
        rc = read_launcher(env, &launchers[i], &places[i], err);
    if (!rc)
        rc = find_outer(env, places, &outer, err);
    for (size_t i = 0; !rc && i < ZT_ARRAY_LEN(launchers); i++) {
        const struct zt_place *p = &places[i];
        if (!p->by)
            continue;
        if (!found) {
            *out = *p;
            found = &launchers[i];
        } else if (!outer || is_same_place(p, out) || !is_same_place(p, outer)) {
            rc = compare(found, out, &launchers[i], p, err);
            out->local_rank = ZT_MAX(out->local_rank, p->local_rank);
            out->local_world = ZT_MAX(out->local_world, p->local_world);
        }
    }
    return rc || found ? rc : check_pmix(env, err);
}
