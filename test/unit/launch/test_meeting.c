#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/launch.h"
#include "launch/rendezvous.h"

static char secret_path[64];

static void make_secret(const char *text, mode_t mode)
{
    snprintf(secret_path, sizeof secret_path, "/tmp/zt-secret-%d", (int)getpid());
    unlink(secret_path);
    int fd = open(secret_path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ZT_ASSERT(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    ZT_ASSERT(fchmod(fd, mode) == 0 && close(fd) == 0);
}

/* "NAME=value NAME=value"; "SECRET" stands for the file's. */
static int meet(const char *vars, struct zt_meeting *m, struct zt_err *err)
{
    struct zt_env env = {0};
    struct zt_place p;
    for (const char *s = vars; *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        if (strncmp(s, "SECRET", n) == 0)
            zt_env_setf(&env, "ZT_JOB_SECRET_FILE=%s", secret_path);
        else
            zt_env_set(&env, s, n);
        s += n;
    }
    int rc = zt_detect_place(&env, &p, err);
    if (!rc)
        rc = zt_meeting_of_env(&env, &p, m, err);
    zt_env_release(&env);
    return rc;
}

#define TORCH(rank, local) "RANK=" #rank " WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=" #local " "
#define OMPI(local)                                                                                \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "                  \
    "OMPI_COMM_WORLD_LOCAL_SIZE=" #local " "
#define SRUN(nodes)                                                                                \
    "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=" #nodes           \
    " SLURM_JOB_ID=7001 SLURM_STEP_ID=2 "

TEST(meeting_places)
{
    static const struct {
        const char *vars, *host, *towards;
        int port;
    } cases[] = {
        /* one host: no address and no secret are needed */
        {TORCH(1, 4), "", "", 0},
        {TORCH(1, 4) "MASTER_ADDR=a MASTER_PORT=4000", "", "", 0},
        {OMPI(4), "", "", 0},
        {"PMI_RANK=1 PMI_SIZE=4", "", "", 0},
        {SRUN(1) "SLURM_STEP_NODELIST=n1", "", "", 0},
        /* several */
        {TORCH(1, 2) "SECRET MASTER_ADDR=a", "a", "", 29500},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=4000", "a", "", 4000},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=4000 TORCHELASTIC_USE_AGENT_STORE=True", "a",
         "", 4001},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=4000 TORCHELASTIC_USE_AGENT_STORE=False",
         "a", "", 4000},
        {OMPI(2) "SECRET MASTER_ADDR=fd00::1", "fd00::1", "", 29500},
        {"PMI_RANK=1 PMI_SIZE=4 SECRET MASTER_ADDR=a", "a", "", 29500},
        {SRUN(2) "SECRET SLURM_STEP_NODELIST=n[08-09] SLURM_JOB_NODELIST=n[07-09]", "n08", "n09",
         20000 + (7001 * 16 + 2) % 10000},
        {SRUN(2) "SECRET SLURM_JOB_NODELIST=n[07-09] MASTER_PORT=4000", "n07", "n08", 4000},
        {SRUN(2) "SECRET SLURM_JOB_NODELIST=n[07-09] MASTER_ADDR=ib7", "ib7", "",
         20000 + (7001 * 16 + 2) % 10000},
    };
    make_secret("0123456789abcdef", 0600);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_meeting m;
        struct zt_err err;
        if (meet(cases[i].vars, &m, &err))
            FAIL("case %zu: %s", i, err.msg);
        CHECK_STR(m.host, cases[i].host);
        CHECK_STR(m.towards, cases[i].towards);
        CHECK_INT(m.port, cases[i].port);
        CHECK_INT(m.rank, 1);
        CHECK_INT(m.world, 4);
    }
    unlink(secret_path);
}

TEST(what_is_missing_is_said)
{
    static const struct {
        const char *vars, *secret;
        mode_t mode;
        const char *say;
    } cases[] = {
        {TORCH(1, 2) "MASTER_ADDR=a", "", 0600,
         "torchrun has started us on several hosts, which must know"},
        {TORCH(1, 2) "SECRET", "0123456789abcdef", 0600, "set MASTER_ADDR to its host"},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=http", "0123456789abcdef", 0600,
         "MASTER_PORT=http: a number from 1"},
        {TORCH(1, 4) "SECRET", "0123456789abcdef", 0640,
         "others may read or write it; `chmod 600`"},
        {TORCH(1, 4) "SECRET", "0123456789abcde", 0600, "15 bytes; a secret has from 16"},
        {TORCH(1, 4) "ZT_JOB_SECRET_FILE=/tmp", "", 0600, "not a file"},
        {TORCH(1, 4) "ZT_JOB_SECRET_FILE=/no/such", "", 0600, "/no/such: No such file"},
        {SRUN(2) "SECRET", "0123456789abcdef", 0600, "srun has not set SLURM_STEP_NODELIST"},
        {SRUN(2) "SECRET SLURM_STEP_NODELIST=n[1", "0123456789abcdef", 0600,
         "SLURM_STEP_NODELIST=n[1: a bracket that is not closed"},
        {TORCH(1, 4) "ZT_JOIN_SECONDS=0", "", 0600, "ZT_JOIN_SECONDS=0: a number from 1"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_meeting m;
        struct zt_err err;
        make_secret(cases[i].secret, cases[i].mode);
        CHECK_INT(meet(cases[i].vars, &m, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, err.msg, cases[i].say);
    }
    unlink(secret_path);
}

TEST(a_job_has_an_id_of_its_own)
{
    static const char *const others[] = {
        TORCH(1, 4) "MASTER_PORT=4001 TORCHELASTIC_RUN_ID=a",
        TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=b",
        TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=1",
        OMPI(4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a",
        TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a MASTER_ADDR=b",
    };
    struct zt_meeting a, b;
    struct zt_err err;
    CHECK_OK(meet(TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a", &a, &err), err);
    CHECK_OK(meet(TORCH(2, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a SLURM_JOB_ID=3", &b, &err),
             err);
    CHECK(memcmp(a.id, b.id, sizeof a.id) == 0);
    for (size_t i = 0; i < ZT_ARRAY_LEN(others); i++) {
        CHECK_OK(meet(others[i], &b, &err), err);
        CHECK(memcmp(a.id, b.id, sizeof a.id) != 0);
    }
}

TEST_MAIN()
