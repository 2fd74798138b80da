#include "harness.h"

#include <pthread.h>
#include <unistd.h>

#include "data/data.h"
#include "optim/groups.h"
#include "train/run.h"

/*
 * A small model trained by ranks that are threads of this process, each with its own device, transport
 * and engine, over shared memory as in a real run.
 */

enum { MAX_RANKS = 4, STEPS = 5 };

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
};

struct rank {
    struct job *job;
    int rank;
    struct zt_err err;
    int rc;
    double loss[STEPS], norm[STEPS];
    uint64_t digest;
    double overlap_s, comm_s; /* of the last step */
    size_t touched[ZT_N_ARENAS], peak[ZT_N_ARENAS];
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

static int train(struct rank *r, struct zt_engine *e)
{
    const struct zt_program *prog = &e->plan->programs[ZT_PROG_TRAIN];
    e->trace = r->job->trace;
    if (e->trace)
        zt_engine_trace_init(e);
    e->serial = r->job->serial;
    r->n_waits = prog->n_waits;
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
        rc = zt_run_digest(e, &r->digest, &r->err);
    for (int a = 0; a < ZT_N_ARENAS && !rc; a++) {
        r->peak[a] = e->plan->ledger.peak[a];
        if (e->base[a])
            rc = zt_engine_touched(e, (enum zt_arena_id)a, &r->touched[a], &r->err);
    }
    return rc;
}

/* A planted fault: the op no longer waits. */
static void drop_wait(struct zt_program *prog, int wait)
{
    for (int i = 0; i < prog->n_ops; i++) {
        struct zt_op *op = &prog->ops[i];
        if (wait >= op->first_wait && wait < op->first_wait + op->n_waits) {
            prog->waits[wait] = prog->waits[op->first_wait];
            op->first_wait++;
            op->n_waits--;
        }
    }
}

/* A planted fault: the op touches more of its last operand than it declares. */
static void shrink_access(struct zt_program *prog, int op)
{
    struct zt_access *a =
        &prog->accesses[prog->ops[op].first_access + prog->ops[op].n_accesses - 1];
    a->end = a->begin + (a->end - a->begin) / 2;
}

static void *rank_main(void *p)
{
    struct rank *r = p;
    struct job *j = r->job;
    struct zt_dev *dev = NULL;
    struct zt_coll *coll = NULL;
    struct zt_plan *plan = NULL;
    struct zt_dataset *data = NULL;
    struct zt_engine e = {0};
    struct zt_feed feed;
    struct zt_source source = {j->model, NULL, 5};
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
        rc = zt_engine_init(&e, plan, dev, coll, &r->err);
    if (!rc) {
        feed = (struct zt_feed){
            data, r->rank, j->n_ranks, j->cfg.accum, j->cfg.micro_batch, j->cfg.seq_len, -1};
        e.feed_train = &feed;
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

static const struct zt_model_config gpt2 = {.type = ZT_MODEL_GPT2,
                                            .n_layer = 3,
                                            .n_head = 2,
                                            .n_embd = 40,
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
                        .cfg = {.stage = stage,
                                .dtype = dtype,
                                .micro_batch = 2,
                                .seq_len = 24,
                                .accum = 1,
                                .overlap_comm = true,
                                .comm_dtype = -1,
                                .dev_kind = ZT_DEV_CPU,
                                .n_threads = 1,
                                .shared_arena = true,
                                .profile = zt_profile_find("cpu"),
                                .profile_known = true}};
}

/* Bits of a run: the losses, the norms, and the state of all ranks. */
struct bits {
    double loss[STEPS], norm[STEPS];
    uint64_t digest;
};

static void collect(struct job *j, struct bits *b)
{
    struct rank ranks[MAX_RANKS];
    memset(b, 0, sizeof *b);
    run_job(j, ranks);
    RETURN_IF_FAILED();
    for (int r = 0; r < j->n_ranks; r++) {
        b->digest ^= ranks[r].digest;
        CHECK(memcmp(ranks[r].loss, ranks[0].loss, sizeof b->loss) == 0);
    }
    memcpy(b->loss, ranks[0].loss, sizeof b->loss);
    memcpy(b->norm, ranks[0].norm, sizeof b->norm);
    CHECK(b->loss[STEPS - 1] < b->loss[0]);
}

static void same_bits_in_all_stages(int n_ranks, enum zt_dtype dtype, bool overlap_comm)
{
    struct bits first, b;
    for (int stage = 0; stage < 4; stage++) {
        struct job j = job(n_ranks, stage, dtype);
        j.cfg.overlap_comm = overlap_comm;
        collect(&j, stage ? &b : &first);
        RETURN_IF_FAILED();
        if (stage && memcmp(&first, &b, sizeof b) != 0)
            FAIL("stage %d: losses %.17g .. %.17g, digest %llx; stage 0: %.17g .. %.17g, %llx",
                 stage, b.loss[0], b.loss[STEPS - 1], (unsigned long long)b.digest, first.loss[0],
                 first.loss[STEPS - 1], (unsigned long long)first.digest);
    }
}

TEST(engine_one_rank_learns)
{
    struct bits b;
    struct job j = job(1, 0, ZT_F32);
    collect(&j, &b);
}

TEST(engine_stages_same_bits_fp32)
{
    same_bits_in_all_stages(2, ZT_F32, true);
}

TEST(engine_stages_same_bits_bf16)
{
    same_bits_in_all_stages(3, ZT_BF16, true);
}

TEST(engine_stages_same_bits_without_overlap)
{
    same_bits_in_all_stages(2, ZT_F32, false);
}

/*
 * One op at a time changes nothing but time. In AddressSanitizer builds each op is then alone with the
 * bytes that it declared: touching any other is an error.
 */
TEST(engine_serial_same_bits)
{
    for (int i = 0; i < 8; i++) {
        struct bits a, b;
        struct job j = job(2, i % 4, i & 1 ? ZT_BF16 : ZT_F32);
        j.mc = i < 4 ? &gpt2 : &llama;
        j.cfg.accum = 2;
        collect(&j, &a);
        RETURN_IF_FAILED();
        j.serial = true;
        collect(&j, &b);
        RETURN_IF_FAILED();
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
}

/* Frozen tensors, and a frozen block: the same bits in all stages, one op at a time too. */
TEST(engine_frozen_same_bits)
{
    static const struct zt_group groups[] = {
        {"h.1.*", 0, 1, true}, {"*.c_attn.*", 0, 1, true}, {"*.bias", 0, 0.5, false}};
    for (enum zt_dtype dtype = ZT_F32; dtype <= ZT_BF16; dtype++) {
        struct bits a, b;
        for (int stage = 0; stage < 4; stage++) {
            struct job j = job(3, stage, dtype);
            j.groups = groups;
            j.n_groups = 3;
            j.serial = stage & 1;
            collect(&j, stage ? &b : &a);
            RETURN_IF_FAILED();
            CHECK(!stage || memcmp(&a, &b, sizeof a) == 0);
        }
    }
}

/*
 * Dropout: the same bits in all stages, recomputed or not, one op at a time too, where an op that read
 * the step block without saying so would be caught.
 */
TEST(engine_dropout_same_bits)
{
    struct zt_model_config gpt2_drops = gpt2, llama_drops = llama;
    gpt2_drops.embd_pdrop = gpt2_drops.resid_pdrop = gpt2_drops.attn_pdrop = 0.2;
    llama_drops.attn_pdrop = 0.2;
    for (int m = 0; m < 2; m++) {
        struct bits plain, a, b;
        struct job j = job(2, 2, m ? ZT_BF16 : ZT_F32);
        j.mc = m ? &llama : &gpt2;
        collect(&j, &plain);
        RETURN_IF_FAILED();
        for (int i = 0; i < 8; i++) {
            j.mc = m ? &llama_drops : &gpt2_drops;
            j.cfg.stage = i % 4;
            j.cfg.recompute = i < 4 ? ZT_RECOMPUTE_NONE : ZT_RECOMPUTE_BLOCK;
            j.serial = i & 1;
            collect(&j, i ? &b : &a);
            RETURN_IF_FAILED();
            CHECK(!i || memcmp(&a, &b, sizeof a) == 0);
        }
        CHECK(memcmp(plain.loss, a.loss, sizeof a.loss) != 0);
    }
}

/* The masks are of the samples: the same ones however a batch is cut, so only rounding differs. */
TEST(engine_dropout_by_any_split)
{
    static const struct {
        int n_ranks, accum;
        int64_t micro;
    } splits[] = {{1, 1, 8}, {1, 4, 2}, {2, 2, 2}, {4, 1, 2}, {3, 1, 8}};
    struct zt_model_config cfg = gpt2;
    struct bits first, b;
    cfg.embd_pdrop = cfg.resid_pdrop = cfg.attn_pdrop = 0.2;
    for (size_t i = 0; i < ZT_ARRAY_LEN(splits); i++) {
        struct job j = job(splits[i].n_ranks, 1, ZT_F32);
        j.mc = &cfg;
        j.cfg.accum = splits[i].accum;
        j.cfg.micro_batch = splits[i].micro;
        collect(&j, i ? &b : &first);
        RETURN_IF_FAILED();
        const bool same_batch = splits[i].n_ranks * splits[i].accum * splits[i].micro == 8;
        for (int step = 0; i && same_batch && step < STEPS; step++)
            CHECK_NEAR(b.loss[step], first.loss[step], 1e-5);
        CHECK(same_batch || fabs(b.loss[0] - first.loss[0]) > 1e-4);
    }
}

/* After a failure streams still wait for each other's events: none may be freed before all are done. */
TEST(engine_release_with_steps_under_way)
{
    struct rank ranks[MAX_RANKS];
    struct job j = job(2, 2, ZT_F32);
    j.leave_early = true;
    run_job(&j, ranks);
}

/*
 * The states on the host, updated there: the bits of the device, with frozen tensors, which no UPDATE
 * writes, and one op at a time too.
 */
TEST(engine_offload_optimizer_same_bits)
{
    static const struct zt_group groups[] = {{"h.1.*", 0, 1, true}, {"*.c_attn.*", 0, 1, true}};
    for (int i = 0; i < 12; i++) {
        struct bits a, b;
        struct job j = job(i < 6 ? 2 : 1, i % 3 + 1, i & 1 ? ZT_BF16 : ZT_F32);
        j.groups = groups;
        j.n_groups = i / 3 & 1 ? 2 : 0;
        j.cfg.accum = 1 + (i & 1);
        j.cfg.n_threads = 1 + (i & 1);
        collect(&j, &a);
        RETURN_IF_FAILED();
        j.cfg.offload_optimizer = ZT_OFFLOAD_CPU;
        j.serial = i % 4 == 3;
        collect(&j, &b);
        RETURN_IF_FAILED();
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
}

/* The parameters on the host, their states here or there. */
TEST(engine_offload_param_same_bits)
{
    static const struct zt_group groups[] = {{"h.1.*", 0, 1, true}, {"*.c_attn.*", 0, 1, true}};
    for (int i = 0; i < 12; i++) {
        struct bits a, b;
        struct job j = job(i < 8 ? 2 : 1, 3, i & 1 ? ZT_BF16 : ZT_F32);
        j.groups = groups;
        j.n_groups = i / 4 & 1 ? 2 : 0;
        j.cfg.accum = 1 + (i & 1);
        collect(&j, &a);
        RETURN_IF_FAILED();
        j.cfg.offload_param = ZT_OFFLOAD_CPU;
        j.cfg.offload_optimizer = i & 2 ? ZT_OFFLOAD_CPU : ZT_OFFLOAD_NONE;
        j.cfg.recompute = i % 3 == 1 ? ZT_RECOMPUTE_BLOCK : ZT_RECOMPUTE_NONE;
        j.serial = i % 5 == 3;
        collect(&j, &b);
        RETURN_IF_FAILED();
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
}

TEST(engine_recompute_same_bits)
{
    struct bits a, b;
    struct job j = job(2, 2, ZT_F32);
    collect(&j, &a);
    RETURN_IF_FAILED();
    j.cfg.recompute = ZT_RECOMPUTE_BLOCK;
    collect(&j, &b);
    RETURN_IF_FAILED();
    CHECK(memcmp(&a, &b, sizeof a) == 0);
}

/* DESIGN 8: comm and compute rows ran at the same time; with overlap_comm false they did not. */
TEST(engine_overlap_is_real)
{
    double with = 0;
    struct rank ranks[MAX_RANKS];
    for (int i = 0; i < 10 && with == 0; i++) { /* small ops: one try may miss by chance */
        struct job j = job(2, 3, ZT_F32);
        j.trace = true;
        run_job(&j, ranks);
        RETURN_IF_FAILED();
        with = ranks[0].overlap_s + ranks[1].overlap_s;
    }
    CHECK(with > 0);
    struct job j = job(2, 3, ZT_F32);
    j.trace = true;
    j.cfg.overlap_comm = false;
    run_job(&j, ranks);
    RETURN_IF_FAILED();
    CHECK(ranks[0].comm_s > 0);
    CHECK(ranks[0].overlap_s + ranks[1].overlap_s == 0);
}

/* The plan's bytes are the bytes touched: never more (they are all there is), and nearly all of them. */
TEST(engine_memory_is_as_planned)
{
    for (int i = 0; i < 9; i++) {
        struct rank ranks[MAX_RANKS];
        const int stage = i < 4 ? i : ZT_MIN(i - 3, 3);
        struct job j = job(3, stage, stage & 1 ? ZT_F16 : ZT_BF16);
        j.cfg.offload_optimizer = i < 4 || i == 8 ? ZT_OFFLOAD_NONE : ZT_OFFLOAD_CPU;
        j.cfg.offload_param = i < 7 ? ZT_OFFLOAD_NONE : ZT_OFFLOAD_CPU;
        run_job(&j, ranks);
        RETURN_IF_FAILED();
        for (int r = 0; r < j.n_ranks; r++)
            for (int a = 0; a < ZT_N_ARENAS; a++)
                CHECK((double)ranks[r].touched[a] >= 0.95 * (double)ranks[r].peak[a]);
    }
}

#ifdef __SANITIZE_THREAD__
/*
 * ThreadSanitizer must see every missing wait: this program runs itself with one wait of the plan left
 * out, each in turn, and expects a report.
 */
static int run_with_dropped_wait(int wait)
{
    char cmd[4096], self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n < 0 ? 0 : n] = '\0';
    snprintf(cmd, sizeof cmd,
             "ZT_DROP_WAIT=%d TSAN_OPTIONS=halt_on_error=1:exitcode=66 '%s' dropped_wait "
             ">/dev/null 2>&1",
             wait, self);
    int status = system(cmd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* With parameters and states on the host, so that every stream but DISK takes part. */
TEST(engine_tsan_sees_a_dropped_wait)
{
    const char *drop = getenv("ZT_DROP_WAIT");
    struct job j = job(2, 3, ZT_F32);
    struct rank ranks[MAX_RANKS];
    j.cfg.offload_optimizer = j.cfg.offload_param = ZT_OFFLOAD_CPU;
    if (drop) {
        int64_t wait;
        CHECK(zt_parse_i64(drop, &wait));
        j.drop_wait = (int)wait;
        run_job(&j, ranks);
        return;
    }
    CHECK_INT(run_with_dropped_wait(-1), 0);
    run_job(&j, ranks);
    RETURN_IF_FAILED();
    int n_waits = ranks[0].n_waits;
    CHECK(n_waits > 20);
    for (int w = 0; w < n_waits; w++)
        if (run_with_dropped_wait(w) != 66)
            FAIL("wait %d was left out and nothing was reported", w);
}
#endif

#ifdef __SANITIZE_ADDRESS__
/* An op that touches what it did not declare is caught: the embedding writes its whole x_out. */
TEST(engine_asan_sees_an_undeclared_access)
{
    struct job j = job(2, 2, ZT_F32);
    struct rank ranks[MAX_RANKS];
    j.serial = true;
    if (getenv("ZT_SHRINK_ACCESS")) {
        j.drop_access = 0;
        run_job(&j, ranks);
        return;
    }
    char cmd[4096], self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n < 0 ? 0 : n] = '\0';
    snprintf(cmd, sizeof cmd,
             "ZT_SHRINK_ACCESS=1 '%s' undeclared_access 2>&1 | grep -q use-after-poison", self);
    CHECK(system(cmd) == 0);
}
#endif

TEST_MAIN()
