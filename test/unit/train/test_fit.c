#include "harness.h"

#include <pthread.h>
#include <unistd.h>

#include "train/run.h"

/* A worker's check, by ranks that are threads, each with a device that says what is free. */

enum { N = 3 };

static const struct zt_model_config gpt2 = {.type = ZT_MODEL_GPT2,
                                            .n_layer = 2,
                                            .n_head = 2,
                                            .n_embd = 512,
                                            .vocab_size = 64,
                                            .n_positions = 64,
                                            .norm_eps = 1e-5f,
                                            .initializer_range = 0.02f,
                                            .tie_embeddings = true};

struct job {
    struct zt_shm_job shm;
    const struct zt_model *model;
    struct zt_plan_config cfg;
    struct zt_recipe recipe;
    size_t free_bytes[N];
};

struct rank {
    struct job *job;
    struct zt_dev_ops ops;
    struct zt_err err;
    int rank, rc;
};

static _Thread_local size_t free_here;

static int fake_memory(struct zt_dev *d, size_t *free_bytes, size_t *total_bytes, struct zt_err *e)
{
    (void)d;
    (void)e;
    *free_bytes = *total_bytes = free_here;
    return 0;
}

static void *rank_main(void *p)
{
    struct rank *r = p;
    struct job *j = r->job;
    struct zt_dev *dev = NULL;
    struct zt_coll *coll = NULL;
    struct zt_plan *plan = NULL;
    r->rc = zt_cpu_dev_create(&dev, NULL, 0, &r->err);
    if (!r->rc)
        r->rc = zt_shm_coll_create(&j->shm, dev, &j->cfg.mesh, r->rank, &coll, &r->err);
    if (!r->rc)
        r->rc = zt_plan_build(j->model, &j->cfg, r->rank, &plan, &r->err);
    if (!r->rc) {
        const struct zt_train_env env = {.rank = r->rank,
                                         .world = N,
                                         .host_ranks = N,
                                         .device_ranks = N,
                                         .dev = dev,
                                         .coll = coll};
        r->ops = *dev->ops;
        r->ops.memory = fake_memory;
        dev->ops = &r->ops;
        /* The transport too asks the device: it must find room for what the check needs. */
        free_here = j->free_bytes[r->rank];
        r->rc = zt_run_check_fit(&j->recipe, &env, plan, &r->err);
    }
    if (plan)
        zt_plan_free(plan);
    if (coll)
        coll->ops->free(coll);
    if (dev)
        zt_cpu_dev_free(dev);
    return NULL;
}

static void run_job(struct job *j, struct rank ranks[N])
{
    pthread_t threads[N];
    int fds[N];
    struct zt_err err;
    CHECK_OK(zt_shm_job_create(N, &j->shm.control_fd, fds, &err), err);
    j->shm.n_ranks = N;
    j->shm.arena_fds = fds;
    for (int r = 0; r < N; r++) {
        ranks[r] = (struct rank){.job = j, .rank = r};
        CHECK_INT(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < N; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < N; r++)
        close(fds[r]);
    close(j->shm.control_fd);
}

static size_t need_of(const struct job *j)
{
    struct zt_plan *p;
    struct zt_err err;
    if (zt_plan_build(j->model, &j->cfg, 0, &p, &err))
        return 0;
    size_t need = zt_plan_device_bytes(p) + p->ledger.peak[ZT_AR_HOST];
    zt_plan_free(p);
    return need;
}

static void make_job(struct job *j, struct zt_arena *arena)
{
    struct zt_model *m = NULL;
    struct zt_err err;
    CHECK_OK(zt_model_build(&gpt2, arena, &m, &err), err);
    *j = (struct job){.model = m,
                      .cfg = {.stage = 0,
                              .mesh = {{1, 1, N, 1, 1}},
                              .dtype = ZT_F32,
                              .micro_batch = 2,
                              .seq_len = 64,
                              .accum = 1,
                              .overlap_comm = true,
                              .comm_dtype = -1,
                              .n_threads = 1,
                              .shared_arena = true,
                              .profile = zt_profile_find("cpu"),
                              .profile_known = true}};
}

TEST(fit_worker_takes_what_fits_on_every_rank)
{
    struct zt_arena arena = {0};
    struct rank ranks[N];
    struct job j;
    make_job(&j, &arena);
    RETURN_IF_FAILED();
    for (int r = 0; r < N; r++)
        j.free_bytes[r] = N * need_of(&j) / 9 * 10;
    run_job(&j, ranks);
    for (int r = 0; r < N; r++)
        CHECK_OK(ranks[r].rc, ranks[r].err);
    zt_arena_release(&arena);
}

TEST(fit_worker_refuses_by_the_least_and_one_rank_says_why)
{
    struct zt_arena arena = {0};
    struct rank ranks[N];
    struct job j;
    make_job(&j, &arena);
    RETURN_IF_FAILED();
    for (int r = 0; r < N; r++)
        j.free_bytes[r] = N * need_of(&j) / 10 * (r == 1 ? 9 : 20);
    run_job(&j, ranks);
    CHECK_INT(ranks[0].rc, ZT_ENOMEM);
    CHECK(strstr(ranks[0].err.msg, "it does not fit: each rank needs"));
    CHECK(strstr(ranks[0].err.msg, "--set zero_optimization.stage="));
    for (int r = 1; r < N; r++) {
        CHECK_INT(ranks[r].rc, ZT_EPEER);
        CHECK_STR(ranks[r].err.msg, "");
    }
    zt_arena_release(&arena);
}

TEST(fit_worker_keeps_to_the_recipe)
{
    struct zt_arena arena = {0};
    struct rank ranks[N];
    struct job j;
    make_job(&j, &arena);
    RETURN_IF_FAILED();
    for (int r = 0; r < N; r++)
        j.free_bytes[r] = N * need_of(&j) * 4;
    j.recipe.device_memory = (int64_t)need_of(&j) / 2;
    run_job(&j, ranks);
    CHECK_INT(ranks[0].rc, ZT_ENOMEM);
    CHECK(strstr(ranks[0].err.msg, "--device_memory"));
    zt_arena_release(&arena);
}

TEST_MAIN()
