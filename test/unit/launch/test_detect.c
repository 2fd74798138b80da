#include "harness.h"

#include "launch/detect.h"

/* "NAME=value NAME=value" */
static int detect(const char *vars, struct zt_place *p, struct zt_err *err)
{
    struct zt_env env = {0};
    for (const char *s = vars; *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        zt_env_set(&env, s, n);
        s += n;
    }
    int rc = zt_detect_place(&env, p, err);
    zt_env_release(&env);
    return rc;
}

#define SLURM(rank, tasks, local, nodes)                                                           \
    "SLURM_PROCID=" #rank " SLURM_STEP_NUM_TASKS=" #tasks " SLURM_LOCALID=" #local                 \
    " SLURM_STEP_NUM_NODES=" #nodes " "
#define TORCH(rank, world, local, local_world)                                                     \
    "RANK=" #rank " WORLD_SIZE=" #world " LOCAL_RANK=" #local " LOCAL_WORLD_SIZE=" #local_world " "
#define OMPI(rank, world, local, local_world)                                                      \
    "OMPI_COMM_WORLD_RANK=" #rank " OMPI_COMM_WORLD_SIZE=" #world                                  \
    " OMPI_COMM_WORLD_LOCAL_RANK=" #local " OMPI_COMM_WORLD_LOCAL_SIZE=" #local_world " "

#define FLUX(rank, size, local, nodes)                                                             \
    "FLUX_TASK_RANK=" #rank " FLUX_JOB_SIZE=" #size " FLUX_TASK_LOCAL_ID=" #local                  \
    " FLUX_JOB_NNODES=" #nodes " "

TEST(launchers_are_told_apart)
{
    static const struct {
        const char *vars, *by;
        int rank, world, local_rank, local_world;
    } cases[] = {
        {"", NULL, 0, 0, 0, 0},
        {"HOME=/root MASTER_ADDR=x", NULL, 0, 0, 0, 0},
        /* a batch script: not in a step, so alone */
        {"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1", NULL, 0, 0, 0, 0},
        {SLURM(5, 8, 1, 2), "srun", 5, 8, 1, -1},
        {TORCH(3, 4, 1, 2), "torchrun", 3, 4, 1, 2},
        {OMPI(7, 8, 3, 4), "mpirun (Open MPI)", 7, 8, 3, 4},
        {"PMI_RANK=1 PMI_SIZE=2", "mpirun (PMI)", 1, 2, -1, -1},
        {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "mpirun (PMI)", 1, 2, 0, 1},
        /* srun --mpi=pmi2: both speak, and agree; what one does not tell the other does */
        {SLURM(5, 8, 1, 2) "PMI_RANK=5 PMI_SIZE=8", "mpirun (PMI)", 5, 8, 1, -1},
        /* a job script that exports RANK=$SLURM_PROCID */
        {SLURM(5, 8, 1, 2) TORCH(5, 8, 1, 4), "torchrun", 5, 8, 1, 4},
        {FLUX(3, 4, 1, 2), "flux", 3, 4, 1, -1},
        {FLUX(3, 4, 1, 2) "PMI_RANK=3 PMI_SIZE=4 PMI_FD=7", "flux", 3, 4, 1, -1},
        /* Open MPI 5 */
        {OMPI(1, 2, 1, 2) "PMIX_RANK=1 PMIX_NAMESPACE=prterun-n1-7@1", "mpirun (Open MPI)", 1, 2, 1,
         2},
        {SLURM(5, 8, 1, 2) "PMIX_RANK=5", "srun", 5, 8, 1, -1},
        /* Flux, or Slurm that speaks PMI too, started one torchrun on each node */
        {FLUX(1, 2, 0, 2) "PMI_RANK=1 PMI_SIZE=2 " TORCH(6, 8, 2, 4), "torchrun", 6, 8, 2, 4},
        {SLURM(1, 2, 0, 2) "PMI_RANK=1 PMI_SIZE=2 " TORCH(6, 8, 2, 4), "torchrun", 6, 8, 2, 4},
        {SLURM(1, 2, 0, 2) "PMI_RANK=1 PMI_SIZE=2", "mpirun (PMI)", 1, 2, 0, -1},
        /* srun started one torchrun, or one daemon of mpirun, on each node */
        {SLURM(1, 2, 0, 2) TORCH(6, 8, 2, 4), "torchrun", 6, 8, 2, 4},
        {SLURM(1, 2, 0, 2) OMPI(6, 8, 2, 4), "mpirun (Open MPI)", 6, 8, 2, 4},
        {SLURM(0, 1, 0, 1) TORCH(1, 2, 1, 2), "torchrun", 1, 2, 1, 2},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_place p;
        struct zt_err err;
        if (detect(cases[i].vars, &p, &err))
            FAIL("case %zu: %s", i, err.msg);
        if (!cases[i].by) {
            CHECK(!p.by);
            continue;
        }
        CHECK_STR(p.by, cases[i].by);
        CHECK_INT(p.rank, cases[i].rank);
        CHECK_INT(p.world, cases[i].world);
        CHECK_INT(p.local_rank, cases[i].local_rank);
        CHECK_INT(p.local_world, cases[i].local_world);
    }
}

TEST(contradictions_name_both)
{
    static const struct {
        const char *vars, *say;
    } cases[] = {
        {SLURM(5, 8, 1, 2) TORCH(4, 8, 0, 4), "RANK=4 of WORLD_SIZE=8 (torchrun), but "
                                              "SLURM_PROCID=5 of SLURM_STEP_NUM_TASKS=8 (srun)"},
        {SLURM(5, 8, 1, 2) TORCH(5, 8, 0, 4), "LOCAL_RANK=0 (torchrun), but SLURM_LOCALID=1"},
        {TORCH(1, 4, 1, 4) OMPI(0, 4, 0, 4), "RANK=1 of WORLD_SIZE=4 (torchrun), but "
                                             "OMPI_COMM_WORLD_RANK=0 of OMPI_COMM_WORLD_SIZE=4"},
        {TORCH(1, 4, 1, 4) OMPI(1, 2, 1, 2),
         "but OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2"},
        {FLUX(1, 4, 1, 2) TORCH(0, 4, 0, 2), "but FLUX_TASK_RANK=1 of FLUX_JOB_SIZE=4 (flux)"},
        {"PMIX_RANK=1 PMIX_NAMESPACE=x", "PMIX_RANK=1 is set, but nothing says how many ranks"},
        {"RANK=1", "RANK is set, but WORLD_SIZE is not: started by torchrun both are"},
        {"PMI_SIZE=2", "PMI_SIZE is set, but PMI_RANK is not"},
        {"RANK=4 WORLD_SIZE=4", "RANK=4 and WORLD_SIZE=4: a rank is less"},
        {"RANK=-1 WORLD_SIZE=4", "RANK=-1: a number from 0 is needed"},
        {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0: a number from 1 is needed"},
        {"RANK=x WORLD_SIZE=4", "RANK=x: a number"},
        {"RANK= WORLD_SIZE=4", "RANK=: a number"},
        {"RANK=0 WORLD_SIZE=99999999999", "WORLD_SIZE=99999999999: a number"},
        {TORCH(1, 2, 0, 4), "LOCAL_WORLD_SIZE=4 and WORLD_SIZE=2: more on this host"},
        {TORCH(1, 8, 4, 4), "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4: a rank is less"},
        {SLURM(1, 2, 2, 2), "SLURM_LOCALID=2 and SLURM_STEP_NUM_TASKS=2: a rank is less"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_place p;
        struct zt_err err = {0};
        CHECK_INT(detect(cases[i].vars, &p, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, err.msg, cases[i].say);
    }
}

TEST_MAIN()
