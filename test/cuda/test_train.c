/*
 * The engine on the CUDA device: two ranks, a process each, with host-staged collectives between them. On the
 * simulator ThreadSanitizer must see every wait of the plan that is left out, as on the CPU
 * (test/unit/train/test_engine.c).
 */
#include "cuda_test.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/str.h"
#include "coll/staged.h"
#include "data/data.h"
#include "dev/sanitize.h"
#include "drop_wait.h"
#include "optim/groups.h"
#include "train/run.h"

enum { N_RANKS = 2, STEPS = 3, NO_WAIT = -1, RACE_STATUS = 66 }; /* TSan's */

struct job {
    struct zt_plan_config cfg;
    struct zt_model *model;
    struct zt_shm_job shm;
    int drop_wait; /* index into TRAIN's waits of rank 0 */
};

/* What a rank's process leaves for the test's. */
struct result {
    int rc, n_waits;
    struct zt_err err;
    double loss[STEPS];
    uint64_t digest;
    size_t touched, planned;
    int status; /* of the process, as waitpid() has it */
};

struct rank {
    const struct job *job;
    int rank;
    struct result *out;
    struct gpu gpu;
    struct zt_dev *cpu;
    struct zt_coll *coll;
    struct zt_plan *plan;
    struct zt_dataset *data;
    struct zt_engine engine;
};

static const struct zt_model_config tiny = {.type = ZT_MODEL_GPT2,
                                            .n_layer = 2,
                                            .n_head = 1,
                                            .n_embd = 16,
                                            .vocab_size = 128,
                                            .n_positions = 8,
                                            .norm_eps = 1e-5f,
                                            .initializer_range = 0.02f,
                                            .tie_embeddings = true};

static int open_rank(struct rank *r)
{
    static const char *path = "LICENSE";
    const struct job *j = r->job;
    struct zt_dataset_opts opts = {.paths = {1, &path},
                                   .seq_len = j->cfg.seq_len,
                                   .vocab_size = j->model->cfg.vocab_size,
                                   .range = {-1, -1},
                                   .seed = 3};
    bool pinned;
    int rc = gpu_open(&r->gpu);
    r->out->err = r->gpu.err;
    if (!rc)
        rc = zt_cpu_dev_create(&r->cpu, NULL, 0, &r->out->err);
    if (!rc)
        rc = zt_shm_coll_create(&j->shm, r->cpu, &j->cfg.mesh, r->rank, &r->coll, &r->out->err);
    if (!rc)
        rc = zt_staged_coll_create(r->coll, r->gpu.dev, &(struct zt_staged_opts){1 << 16, 1},
                                   &r->coll, &pinned, &r->out->err);
    if (!rc)
        rc = zt_plan_build(j->model, &j->cfg, r->rank, &r->plan, &r->out->err);
    if (!rc)
        rc = zt_dataset_open(&opts, &r->data, &r->out->err);
    if (rc)
        return rc;
    r->out->n_waits = r->plan->programs[ZT_PROG_TRAIN].n_waits;
    if (r->rank == 0 && j->drop_wait != NO_WAIT)
        drop_wait(&r->plan->programs[ZT_PROG_TRAIN], j->drop_wait);
    return zt_engine_init(&r->engine, r->plan, r->gpu.dev, r->coll, &r->out->err);
}

static int train(struct rank *r)
{
    struct zt_engine *e = &r->engine;
    struct zt_step_outcome o;
    zt_engine_run(e, ZT_PROG_INIT);
    int rc = zt_engine_drain(e, &r->out->err);
    for (int i = 0; i < STEPS && !rc; i++) {
        e->next_batch = i + 1;
        zt_engine_run(e, ZT_PROG_TRAIN);
        if (i > 0) /* as the real loop: the host submits a step ahead */
            rc = zt_engine_outcome(e, i - 1, &o, &r->out->err);
        if (i > 0)
            r->out->loss[i - 1] = o.result.sb.loss;
    }
    if (!rc)
        rc = zt_engine_outcome(e, STEPS - 1, &o, &r->out->err);
    r->out->loss[STEPS - 1] = o.result.sb.loss;
    if (!rc)
        rc = zt_engine_drain(e, &r->out->err);
    if (!rc)
        rc = zt_run_digest(e, &r->out->digest, &r->out->err);
    if (!rc)
        rc = zt_engine_touched(e, ZT_AR_DEVICE, &r->out->touched, &r->out->err);
    r->out->planned = r->plan->ledger.peak[ZT_AR_DEVICE];
    return rc;
}

static void run_rank(const struct job *job, int rank, struct result *out)
{
    struct rank r = {.job = job, .rank = rank, .out = out};
    struct zt_source source = {.model = job->model, .seed = 5};
    const struct zt_plan_config *cfg = &job->cfg;
    int rc = open_rank(&r);
    struct zt_feed feed = {.data = r.data,
                           .rank = rank,
                           .world = N_RANKS,
                           .accum = cfg->accum,
                           .micro = cfg->micro_batch,
                           .seq_len = cfg->seq_len,
                           .end = -1};
    if (!rc) {
        r.engine.feed_train = &feed;
        r.engine.source = &source;
        r.engine.initial = (struct zt_step_block){.adam_t = 1,
                                                  .grad_scale = 1,
                                                  .loss_scale = 1,
                                                  .beta1 = 0.9f,
                                                  .beta2 = 0.95f,
                                                  .eps = 1e-8f,
                                                  .max_norm = 1,
                                                  .schedule = {.lr = 5e-3}};
        zt_step_refresh(&r.engine.initial);
        rc = train(&r);
    }
    out->rc = rc;
    if (rc && r.coll)
        r.coll->ops->abort(r.coll);
    zt_engine_release(&r.engine);
    if (r.data)
        zt_dataset_free(r.data);
    if (r.plan)
        zt_plan_free(r.plan);
    if (r.coll)
        r.coll->ops->free(r.coll);
    if (r.cpu)
        zt_cpu_dev_free(r.cpu);
    gpu_close(&r.gpu);
}

/* The processes; one that ends with a report of ThreadSanitizer's must not leave the other waiting. */
static void run_processes(const struct job *j, int control, struct result *out)
{
    pid_t pids[N_RANKS];
    fflush(stdout);
    for (int r = 0; r < N_RANKS; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            if (j->drop_wait != NO_WAIT && !freopen("/dev/null", "w", stderr))
                exit(1);
            run_rank(j, r, &out[r]);
            exit(0);
        }
    }
    for (int left = N_RANKS; left > 0; left--) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        for (int r = 0; r < N_RANKS; r++)
            if (pid == pids[r])
                out[r].status = status;
        if (status != 0)
            zt_shm_job_abort(control);
    }
}

/* Results of all ranks, to be unmapped; they may have failed. */
static void run_job(int stage, enum zt_dtype dtype, int drop, struct result **out)
{
    struct job j = {.drop_wait = drop,
                    .cfg = {.stage = stage,
                            .mesh = {{1, 1, N_RANKS, 1, 1}},
                            .dtype = dtype,
                            .micro_batch = 1,
                            .seq_len = 8,
                            .accum = 1,
                            .overlap_comm = true,
                            .comm_dtype = -1,
                            .dev_kind = ZT_DEV_CUDA,
                            .n_threads = 1,
                            .profile = zt_profile_find("fast"),
                            .profile_known = true}};
    struct zt_arena arena = {0};
    struct zt_err err;
    int fds[N_RANKS], control;
    *out = mmap(NULL, N_RANKS * sizeof **out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    CHECK(*out != MAP_FAILED);
    CHECK_OK(zt_model_build(&tiny, &arena, &j.model, &err), err);
    CHECK_OK(zt_groups_assign(j.model, 0.1, NULL, 0, &err), err);
    CHECK_OK(zt_shm_job_create(N_RANKS, &control, fds, &err), err);
    j.shm = (struct zt_shm_job){control, N_RANKS, fds};
    run_processes(&j, control, *out);
    close(control);
    for (int r = 0; r < N_RANKS; r++)
        close(fds[r]);
    zt_arena_release(&arena);
}

static void done(struct result *r)
{
    munmap(r, N_RANKS * sizeof *r);
}

/* The same without a fault, which must do well. */
static void run_well(int stage, enum zt_dtype dtype, struct result **out)
{
    run_job(stage, dtype, NO_WAIT, out);
    RETURN_IF_FAILED();
    for (int r = 0; r < N_RANKS; r++) {
        CHECK_OK((*out)[r].rc, (*out)[r].err);
        CHECK_INT((*out)[r].status, 0);
    }
}

TEST(cuda_train_stages_same_bits)
{
    struct result *first, *other;
    run_well(0, ZT_BF16, &first);
    RETURN_IF_FAILED();
    CHECK(first[0].loss[STEPS - 1] != first[0].loss[0]);
    for (int stage = 1; stage < 4; stage += ZT_TSAN ? 2 : 1) {
        run_well(stage, ZT_BF16, &other);
        RETURN_IF_FAILED();
        CHECK(memcmp(other[0].loss, first[0].loss, sizeof first[0].loss) == 0);
        CHECK((other[0].digest ^ other[1].digest) == (first[0].digest ^ first[1].digest));
        done(other);
    }
    done(first);
}

/* Of the arena only cuBLASLt's workspace may stay as it was. */
TEST(cuda_train_touches_what_is_planned)
{
    struct result *ranks;
    run_well(3, ZT_F32, &ranks);
    RETURN_IF_FAILED();
    for (int r = 0; r < N_RANKS; r++) {
        CHECK(ranks[r].touched <= ranks[r].planned);
        CHECK(ranks[r].planned - ranks[r].touched < ((size_t)32 << 20) + ranks[r].planned / 16);
    }
    done(ranks);
}

TEST_IF(ZT_TSAN, cuda_train_tsan_sees_a_dropped_wait)
{
    struct result *ranks;
    run_well(3, ZT_F32, &ranks);
    RETURN_IF_FAILED();
    int n_waits = ranks[0].n_waits;
    CHECK(n_waits > 12);
    done(ranks);
    for (int w = n_waits / 6; w < n_waits; w += n_waits / 3) { /* some: each takes its time */
        run_job(3, ZT_F32, w, &ranks);
        RETURN_IF_FAILED();
        int status = ranks[0].status;
        done(ranks);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != RACE_STATUS)
            FAIL("wait %d was left out and nothing was reported (status %x)", w, (unsigned)status);
    }
}

TEST_MAIN()
