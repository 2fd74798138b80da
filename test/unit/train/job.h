/*
 * job.h: a small model trained by ranks that are threads of this process, each with its own device, transport
 * and engine, over shared memory as in a real run.
 */
#ifndef ZT_TEST_TRAIN_JOB_H
#define ZT_TEST_TRAIN_JOB_H

#include "harness.h"

#include <pthread.h>
#include <unistd.h>

#include "data/data.h"
#include "drop_wait.h"
#include "offload/disk.h"
#include "optim/groups.h"
#include "train/run.h"

enum { MAX_RANKS = 4, STEPS = 3 };

struct rank;

struct job {
    int n_ranks;
    struct zt_plan_config cfg;
    const struct zt_model_config *mc;
    struct zt_model *model;
    const struct zt_group *groups;
    int n_groups;
    struct zt_shm_job shm;
    int arena_fds[MAX_RANKS];
    bool trace, serial;
    bool leave_early; /* release the engine with steps still under way */
    int drop_wait;    /* index into TRAIN's waits of rank 0, -1: none */
    int drop_access;  /* index into TRAIN's ops: its last access of rank 0 is not declared */
    enum zt_disk_backend disk; /* where the plan has a DISK arena */
    int fill; /* what every byte of the arenas is before anything runs; -1: the canary */
    void (*look)(struct rank *r, struct zt_engine *e); /* when all is done; NULL: at nothing */
    void *context;                                     /* of look */
};

struct rank {
    struct job *job;
    int rank;
    struct zt_err err;
    int rc;
    double loss[STEPS], norm[STEPS];
    uint64_t digest;
    double overlap_s, comm_s; /* of the last step */
    int n_waits;
};

static double overlap(const struct zt_engine *e, double *comm_s)
{
    const struct zt_program *prog = &e->plan->programs[ZT_PROG_TRAIN];
    const struct zt_op_time *times = zt_engine_times(e, STEPS - 1);
    double both = 0;
    *comm_s = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        if (!prog->ops[i].group)
            continue;
        *comm_s += (double)(times[i].end_ns - times[i].begin_ns) * 1e-9;
        for (int j = 0; j < prog->n_ops; j++) {
            enum zt_op_kind k = prog->ops[j].kind;
            if (k != ZT_OP_FORWARD && k != ZT_OP_BACKWARD)
                continue;
            int64_t lo = ZT_MAX(times[i].begin_ns, times[j].begin_ns);
            int64_t hi = ZT_MIN(times[i].end_ns, times[j].end_ns);
            if (hi > lo)
                both += (double)(hi - lo) * 1e-9;
        }
    }
    return both;
}

static int nap(void *arg, struct zt_err *err)
{
    (void)arg;
    (void)err;
    return usleep(20000) ? ZT_ESYS : 0;
}

/* Leave a stream behind with a wait for another one's event that it comes to only after a while. */
static void leave_a_wait(struct zt_engine *e)
{
    struct zt_stream *late = e->streams[ZT_ST_COPY_OUT];
    e->dev->ops->host_call(late, nap, NULL, 0);
    e->dev->ops->wait(late, e->dev->ops->record(e->streams[ZT_ST_COMPUTE]));
}

static void fill_arenas(const struct rank *r, struct zt_engine *e)
{
    for (int a = 0; a < ZT_AR_DISK; a++)
        if (e->base[a] && r->job->fill >= 0)
            memset(e->base[a], r->job->fill, e->plan->ledger.peak[a]);
}

/* A snapshot, evaluation and a sample, where the plan has them. */
static int run_others(struct rank *r, struct zt_engine *e)
{
    static int32_t prompt[256];
    double loss;
    int64_t tokens;
    int rc = 0;
    if (e->plan->programs[ZT_PROG_SAVE].n_ops > 0) {
        zt_engine_run(e, ZT_PROG_SAVE);
        rc = zt_engine_drain(e, &r->err);
    }
    if (!rc && e->plan->cfg.eval_micro_batch > 0)
        rc = zt_run_eval(e, 1, &loss, &tokens, &r->err);
    if (rc || !e->plan->cfg.generate)
        return rc;
    ZT_ASSERT_CMP(e->plan->cfg.seq_len, <=, (int64_t)ZT_ARRAY_LEN(prompt));
    e->prompt = prompt;
    e->logits_at = 3;
    zt_engine_run(e, ZT_PROG_GENERATE);
    return zt_engine_drain(e, &r->err);
}

static int train(struct rank *r, struct zt_engine *e)
{
    const struct zt_program *prog = &e->plan->programs[ZT_PROG_TRAIN];
    e->trace = r->job->trace;
    if (e->trace)
        zt_engine_trace_init(e);
    e->serial = r->job->serial;
    r->n_waits = prog->n_waits;
    fill_arenas(r, e);
    zt_engine_run(e, ZT_PROG_INIT);
    int rc = zt_engine_drain(e, &r->err);
    for (int i = 0; i < STEPS && !rc; i++) {
        struct zt_step_outcome o;
        e->next_batch = i + 1;
        zt_engine_run(e, ZT_PROG_TRAIN);
        if (r->job->leave_early)
            continue;
        rc = zt_engine_outcome(e, i, &o, &r->err);
        if (rc)
            break;
        r->loss[i] = o.result.sb.loss;
        r->norm[i] = o.result.sb.grad_norm;
    }
    if (r->job->leave_early) {
        leave_a_wait(e);
        return rc;
    }
    if (!rc)
        rc = zt_engine_drain(e, &r->err);
    if (!rc && e->trace)
        r->overlap_s = overlap(e, &r->comm_s);
    if (!rc)
        rc = run_others(r, e);
    if (!rc)
        rc = zt_run_digest(e, &r->digest, &r->err);
    if (!rc && r->job->look)
        r->job->look(r, e);
    return rc;
}

/* A planted fault: the op touches more of its last operand than it declares. */
static void shrink_access(struct zt_program *prog, int op)
{
    struct zt_access *a =
        &prog->accesses[prog->ops[op].first_access + prog->ops[op].n_accesses - 1];
    a->end = a->begin + (a->end - a->begin) / 2;
}

/* Small requests, few in flight, so that every transfer has several. */
static int open_disk(const struct job *j, const struct zt_plan *p, struct zt_disk **out,
                     struct zt_err *err)
{
    const struct zt_disk_opts o = {.dir = "/tmp",
                                   .bytes = p->ledger.peak[ZT_AR_DISK],
                                   .backend = j->disk,
                                   .block_bytes = ZT_DISK_ALIGN,
                                   .queue_depth = 3,
                                   .n_threads = 2};
    return o.bytes ? zt_disk_open(&o, out, err) : 0;
}

static void *rank_main(void *p)
{
    struct rank *r = p;
    struct job *j = r->job;
    struct zt_dev *dev = NULL;
    struct zt_coll *coll = NULL;
    struct zt_plan *plan = NULL;
    struct zt_dataset *data = NULL;
    struct zt_disk *disk = NULL;
    struct zt_engine e = {0};
    struct zt_feed feed, feed_eval;
    struct zt_source source = {.model = j->model, .seed = 5};
    char log[256];
    const char *path = "LICENSE";
    struct zt_dataset_opts opts = {.paths = {1, &path},
                                   .seq_len = j->cfg.seq_len,
                                   .vocab_size = j->model->cfg.vocab_size,
                                   .range = {-1, -1},
                                   .seed = 3};
    int rc = zt_cpu_dev_create(&dev, log, sizeof log, &r->err);
    if (!rc)
        rc = zt_shm_coll_create(&j->shm, dev, &j->cfg.mesh, r->rank, &coll, &r->err);
    if (!rc)
        rc = zt_plan_build(j->model, &j->cfg, r->rank, &plan, &r->err);
    if (!rc && j->drop_wait >= 0 && r->rank == 0)
        drop_wait(&plan->programs[ZT_PROG_TRAIN], j->drop_wait);
    if (!rc && j->drop_access >= 0 && r->rank == 0)
        shrink_access(&plan->programs[ZT_PROG_TRAIN], j->drop_access);
    if (!rc)
        rc = zt_dataset_open(&opts, &data, &r->err);
    if (!rc)
        rc = open_disk(j, plan, &disk, &r->err);
    if (!rc)
        rc = zt_engine_init(&e, plan, dev, coll, &r->err);
    if (!rc) {
        e.disk = disk;
        feed = (struct zt_feed){
            data, r->rank, j->n_ranks, j->cfg.accum, j->cfg.micro_batch, j->cfg.seq_len, -1, 0};
        e.feed_train = &feed;
        feed_eval = (struct zt_feed){data,
                                     r->rank,
                                     j->n_ranks,
                                     1,
                                     j->cfg.eval_micro_batch,
                                     j->cfg.seq_len,
                                     zt_dataset_samples(data),
                                     0};
        e.feed_eval = &feed_eval;
        e.source = &source;
        e.initial =
            (struct zt_step_block){.adam_t = 1,
                                   .grad_scale = 1,
                                   .loss_scale = 1,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .max_norm = 1,
                                   .seed = 6,
                                   .step_samples = j->cfg.micro_batch * j->cfg.accum * j->n_ranks,
                                   .schedule = {.lr = 5e-3}};
        zt_step_refresh(&e.initial);
        rc = train(r, &e);
    }
    r->rc = rc;
    if (rc && coll)
        coll->ops->abort(coll);
    zt_engine_release(&e);
    zt_disk_close(disk);
    if (data)
        zt_dataset_free(data);
    if (plan)
        zt_plan_free(plan);
    if (coll)
        coll->ops->free(coll);
    if (dev)
        zt_cpu_dev_free(dev);
    return NULL;
}

/* ThreadSanitizer asks in what order bytes are touched, not how many there are, and counts every touch. */
#ifdef __SANITIZE_THREAD__
enum { WIDTH = 24, SEQ_LEN = 8 };
#else
enum { WIDTH = 40, SEQ_LEN = 24 };
#endif

static const struct zt_model_config gpt2 = {.type = ZT_MODEL_GPT2,
                                            .n_layer = 3,
                                            .n_head = 2,
                                            .n_embd = WIDTH,
                                            .vocab_size = 257,
                                            .n_positions = 24,
                                            .norm_eps = 1e-5f,
                                            .initializer_range = 0.02f,
                                            .tie_embeddings = true};

/* Everything that a block built like Llama's may have. */
static const struct zt_model_config llama = {.type = ZT_MODEL_LLAMA,
                                             .n_layer = 2,
                                             .n_head = 3,
                                             .n_kv_head = 1,
                                             .head_dim = 14,
                                             .n_embd = 24,
                                             .n_inner = 56,
                                             .vocab_size = 257,
                                             .n_positions = 24,
                                             .norm_eps = 1e-5f,
                                             .initializer_range = 0.02f,
                                             .qkv_bias = true,
                                             .o_bias = true,
                                             .mlp_bias = true,
                                             .qk_norm = true};

static void run_job(struct job *j, struct rank ranks[MAX_RANKS])
{
    struct zt_arena arena = {0};
    struct zt_err err;
    pthread_t threads[MAX_RANKS];
    memset(ranks, 0, MAX_RANKS * sizeof *ranks);
    CHECK_OK(zt_model_build(j->mc, &arena, &j->model, &err), err);
    CHECK_OK(zt_groups_assign(j->model, 0.1, j->groups, j->n_groups, &err), err);
    int control;
    CHECK_OK(zt_shm_job_create(j->n_ranks, &control, j->arena_fds, &err), err);
    j->shm = (struct zt_shm_job){control, j->n_ranks, j->arena_fds};
    j->cfg.mesh = (struct zt_mesh){{1, 1, j->n_ranks, 1, 1}};
    for (int r = 0; r < j->n_ranks; r++) {
        ranks[r].job = j;
        ranks[r].rank = r;
        CHECK(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0);
    }
    for (int r = 0; r < j->n_ranks; r++)
        pthread_join(threads[r], NULL);
    close(control);
    for (int r = 0; r < j->n_ranks; r++)
        close(j->arena_fds[r]);
    zt_arena_release(&arena);
    for (int r = 0; r < j->n_ranks; r++)
        CHECK_OK(ranks[r].rc, ranks[r].err);
}

static struct job job(int n_ranks, int stage, enum zt_dtype dtype)
{
    return (struct job){.n_ranks = n_ranks,
                        .mc = &gpt2,
                        .drop_wait = -1,
                        .drop_access = -1,
                        .fill = -1,
                        .cfg = {.stage = stage,
                                .dtype = dtype,
                                .micro_batch = 2,
                                .seq_len = SEQ_LEN,
                                .accum = 1,
                                .overlap_comm = true,
                                .comm_dtype = -1,
                                .dev_kind = ZT_DEV_CPU,
                                .n_threads = 1,
                                .shared_arena = true,
                                .profile = zt_profile_find("cpu"),
                                .profile_known = true}};
}

#endif
