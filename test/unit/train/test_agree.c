/* Ranks that are threads, each with files of its own: who says what when they are not the same. */
#include "harness.h"

#include <pthread.h>
#include <unistd.h>

#include "train/agree.h"
#include "train/run.h"

enum { N = 5, MARKS = 9 };

static const struct zt_model_config gpt2 = {.type = ZT_MODEL_GPT2,
                                            .n_layer = 1,
                                            .n_head = 1,
                                            .n_embd = 16,
                                            .vocab_size = 16,
                                            .n_positions = 8,
                                            .norm_eps = 1e-5f,
                                            .initializer_range = 0.02f,
                                            .tie_embeddings = true};

struct job {
    struct zt_shm_job shm;
    const struct zt_model *model;
    struct zt_plan_config cfg;
};

struct rank {
    struct job *job;
    struct zt_mark marks[MARKS];
    size_t n_marks;
    struct zt_err err;
    int rank, rc;
};

static void *rank_main(void *p)
{
    struct rank *r = p;
    struct job *j = r->job;
    struct zt_dev *dev = NULL;
    struct zt_coll *coll = NULL;
    struct zt_plan *plan = NULL;
    struct zt_engine e = {0};
    struct zt_marks marks = {0};
    for (size_t i = 0; i < r->n_marks; i++)
        zt_marks_add(&marks, &r->marks[i]);
    r->rc = zt_cpu_dev_create(&dev, NULL, 0, &r->err);
    if (!r->rc)
        r->rc = zt_shm_coll_create(&j->shm, dev, &j->cfg.mesh, r->rank, &coll, &r->err);
    if (!r->rc)
        r->rc = zt_plan_build(j->model, &j->cfg, r->rank, &plan, &r->err);
    if (!r->rc)
        r->rc = zt_engine_init(&e, plan, dev, coll, &r->err);
    if (!r->rc)
        r->rc = zt_run_check_same(&e, "data.train", &marks, &r->err);
    zt_marks_release(&marks);
    zt_engine_release(&e);
    if (plan)
        zt_plan_free(plan);
    if (coll)
        coll->ops->free(coll);
    if (dev)
        zt_cpu_dev_free(dev);
    return NULL;
}

static const char *const names[MARKS] = {"f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8"};
static const char text[MARKS * 2 + 1] = "a0b1c2d3e4f5g6h7i8";

/* All ranks have the same. */
static void same(struct rank ranks[N])
{
    memset(ranks, 0, N * sizeof *ranks);
    for (int r = 0; r < N; r++) {
        ranks[r].rank = r;
        ranks[r].n_marks = MARKS;
        for (int i = 0; i < MARKS; i++)
            ranks[r].marks[i] = (struct zt_mark){.name = names[i],
                                                 .kind = "text",
                                                 .unit = "tokens",
                                                 .n = 2,
                                                 .data = text + (ptrdiff_t)2 * i,
                                                 .bytes = 2};
    }
}

static void run_job(struct rank ranks[N])
{
    struct zt_arena arena = {0};
    struct zt_err err;
    struct zt_model *m = NULL;
    pthread_t threads[N];
    int fds[N];
    CHECK_OK(zt_model_build(&gpt2, &arena, &m, &err), err);
    struct job j = {.model = m,
                    .cfg = {.stage = 3,
                            .mesh = {{1, 1, N, 1, 1}},
                            .dtype = ZT_F32,
                            .micro_batch = 1,
                            .seq_len = 8,
                            .accum = 1,
                            .overlap_comm = true,
                            .comm_dtype = -1,
                            .n_threads = 1,
                            .shared_arena = true,
                            .profile = zt_profile_find("cpu"),
                            .profile_known = true}};
    CHECK_OK(zt_shm_job_create(N, &j.shm.control_fd, fds, &err), err);
    j.shm.n_ranks = N;
    j.shm.arena_fds = fds;
    for (int r = 0; r < N; r++) {
        ranks[r].job = &j;
        CHECK_INT(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < N; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < N; r++)
        close(fds[r]);
    close(j.shm.control_fd);
    zt_arena_release(&arena);
}

/* Rank `who` alone speaks, for itself and its host. */
static void check_said(struct rank ranks[N], int who, const char *what)
{
    char host[256] = {0};
    struct zt_str said = {0};
    gethostname(host, sizeof host - 1);
    zt_str_printf(&said, "rank %d on %s: data.train: %s; copy the same files to all hosts", who,
                  host, what);
    run_job(ranks);
    RETURN_IF_FAILED();
    for (int r = 0; r < N; r++) {
        CHECK_INT(ranks[r].rc, r == who ? ZT_EINPUT : ZT_EPEER);
        CHECK_STR(ranks[r].err.msg, r == who ? said.buf : "");
    }
    zt_str_release(&said);
}

TEST(agree_on_the_same_files)
{
    struct rank ranks[N];
    same(ranks);
    ranks[3].marks[4].name = "elsewhere/f4";
    run_job(ranks);
    RETURN_IF_FAILED();
    for (int r = 0; r < N; r++)
        CHECK_OK(ranks[r].rc, ranks[r].err);
}

/* In each place, the first and the last too. */
TEST(agree_names_the_file)
{
    for (int i = 0; i < MARKS; i++) {
        struct rank ranks[N];
        char said[128];
        same(ranks);
        ranks[3].marks[i].data = "??";
        ranks[3].marks[MARKS - 1].data = "!!"; /* the first one counts */
        snprintf(said, sizeof said, "f%d gives 2 tokens as rank 0's does, but others", i);
        check_said(ranks, 3, said);
        RETURN_IF_FAILED();
    }
}

/* Several ranks differ, each in its way, and the lowest speaks. */
TEST(agree_the_lowest_rank_speaks)
{
    struct rank ranks[N];
    same(ranks);
    ranks[1].n_marks = 1; /* no rank that is asked, nor one that has the same */
    ranks[1].marks[0].kind = "llm.c tokens";
    ranks[2].marks[7].n = 1204224;
    ranks[4].n_marks = 3;
    check_said(ranks, 1, "1 file, and rank 0 has 9");
    RETURN_IF_FAILED();

    ranks[1] = ranks[0]; /* ran before: the same, but for who it is */
    ranks[1].rank = 1;
    check_said(ranks, 2, "f7 gives 1204224 tokens, and rank 0's 2");
}

TEST(agree_tells_another_kind)
{
    struct rank ranks[N];
    same(ranks);
    ranks[4].marks[0].kind = "llm.c GPT-2 tokens";
    check_said(ranks, 4, "f0 is llm.c GPT-2 tokens, and rank 0's is something else");
}

/* It is rank 0 that has others: who speaks is the lowest of those that have not. */
TEST(agree_rank_0_has_others)
{
    struct rank ranks[N];
    same(ranks);
    ranks[0].marks[5].n = 3;
    check_said(ranks, 1, "f5 gives 2 tokens, and rank 0's 3");
}

TEST_MAIN()
