/*
 * detect.h: was this process started as one of many, by srun, flux, mpirun or torchrun, and as which? From its
 * environment alone; nothing is contacted.
 *
 * Launchers nest: srun starts mpirun's daemons or torchrun's agents, one on each node, and they start the
 * processes. So what the inner one says counts where Slurm's step or Flux's job has one task on each node; else both
 * must say the same, or it is an error that names both.
 *
 * Sources: "OUTPUT ENVIRONMENT VARIABLES" in srun(1), flux-environment(7), "Environment variables set for MPI
 * applications" in Open MPI's documentation (4 and 5 set the same), MPICH's Hydra and Intel MPI (PMI_*,
 * MPI_LOCALRANKID), and torchrun's documentation.
 */
#ifndef ZT_LAUNCH_DETECT_H
#define ZT_LAUNCH_DETECT_H

#include "launch/env.h"

struct zt_place {
    /* "srun", "mpirun (Open MPI)", ...; NULL: we were started alone, the rest is 0. */
    const char *by;
    const char *rank_var; /* where the rank stands: "SLURM_PROCID" */
    int rank, world;
    int local_rank, local_world; /* -1: not told (PMI of some versions) */
};

/*
 * A launcher counts as soon as one of its variables for rank or size is set; then both must be, in range.
 * Slurm counts inside a step (srun) only: a batch script has a rank too, but is alone. PMIX_RANK alone, which
 * prterun sets, is an error: it does not say of how many.
 */
int zt_detect_place(const struct zt_env *env, struct zt_place *out,
                    struct zt_err *err) ZT_MUST_CHECK;

#endif
