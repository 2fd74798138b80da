#include "dev/sanitize.h"
#include "unit/train/job.h"

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
    CHECK(ZT_TSAN ? b->loss[STEPS - 1] != b->loss[0] /* of few tokens it may rise */
                  : b->loss[STEPS - 1] < b->loss[0]);
}

static const struct zt_group some_frozen[] = {{"h.1.*", 0, 1, true}, {"*.c_attn.*", 0, 1, true}};

/* The same of a job that several others are compared with, run once; n_groups: of some_frozen. */
static void collect_once(struct job *j, struct bits *b)
{
    enum { MAX_KEPT = 32 };
    static struct {
        char name[80];
        struct bits bits;
    } kept[MAX_KEPT];
    static int n_kept;
    char name[80];
    int i = 0;
    snprintf(name, sizeof name, "%d ranks of %d, stage %d, %s, accum %d, %d frozen", j->n_ranks,
             j->cfg.n_threads, j->cfg.stage, zt_dtype_name(j->cfg.dtype), j->cfg.accum,
             j->n_groups);
    while (i < n_kept && strcmp(kept[i].name, name) != 0)
        i++;
    j->groups = some_frozen;
    if (i == n_kept) {
        CHECK(n_kept < MAX_KEPT);
        collect(j, &kept[i].bits);
        RETURN_IF_FAILED();
        memcpy(kept[n_kept++].name, name, sizeof name);
    }
    *b = kept[i].bits;
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
 * ThreadSanitizer has more to see where ops run beside each other.
 */
TEST_IF(!ZT_TSAN, engine_serial_same_bits)
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

/*
 * Micro-batches, and so many of them that the plan was made of a few (lib/plan/fold.c): the same bits at every
 * stage, with what is gathered, offloaded and made again; and the sums of one large micro-batch.
 */
static void same_bits_of_micro_batches(int accum)
{
    static const struct {
        int stage;
        bool tight; /* blocks are made again, and nothing is gathered ahead */
        enum zt_offload optimizer, param;
    } ways[] = {
        {0, false, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE}, {1, false, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE},
        {2, false, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE}, {3, false, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE},
        {0, true, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE},  {1, true, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NONE},
        {2, true, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NONE},   {3, true, ZT_OFFLOAD_CPU, ZT_OFFLOAD_CPU},
        {3, false, ZT_OFFLOAD_NONE, ZT_OFFLOAD_CPU},  {1, false, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NONE},
        {2, true, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NONE},  {3, false, ZT_OFFLOAD_NVME, ZT_OFFLOAD_CPU},
        {3, true, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NVME},  {3, false, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NVME},
    };
    struct bits first, b;
    for (size_t i = 0; i < ZT_ARRAY_LEN(ways); i++) {
        struct job j = job(2, ways[i].stage, ZT_F32);
        j.cfg.accum = accum;
        j.cfg.micro_batch = 1;
        j.cfg.reduce_every_micro_batch = true;
        j.cfg.recompute = ways[i].tight ? ZT_RECOMPUTE_BLOCK : ZT_RECOMPUTE_NONE;
        j.cfg.prefetch_bytes = ways[i].tight;
        j.cfg.offload_optimizer = ways[i].optimizer;
        j.cfg.offload_param = ways[i].param;
        collect(&j, i ? &b : &first);
        RETURN_IF_FAILED();
        if (i && memcmp(&first, &b, sizeof first) != 0)
            FAIL("%d micro-batches, way %zu: losses %.17g .. %.17g, not %.17g .. %.17g", accum, i,
                 b.loss[0], b.loss[STEPS - 1], first.loss[0], first.loss[STEPS - 1]);
    }
    struct job large = job(2, 0, ZT_F32);
    large.cfg.micro_batch = accum;
    collect(&large, &b);
    RETURN_IF_FAILED();
    for (int step = 0; step < STEPS; step++)
        CHECK_NEAR(b.loss[step], first.loss[step], 1e-5);
}

TEST(engine_few_micro_batches)
{
    if (!ZT_TSAN)
        same_bits_of_micro_batches(2);
    same_bits_of_micro_batches(3);
}

TEST(engine_many_micro_batches_even)
{
    if (ZT_TSAN)
        SKIP("an odd number takes the same ways, and takes minutes");
    same_bits_of_micro_batches(12);
}

TEST(engine_many_micro_batches_odd)
{
    same_bits_of_micro_batches(11);
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
    for (int i = 0; i < 12; i++) {
        struct bits a, b;
        struct job j = job(i < 6 ? 2 : 1, i % 3 + 1, i & 1 ? ZT_BF16 : ZT_F32);
        j.n_groups = i / 3 & 1 ? 2 : 0;
        j.cfg.accum = 1 + (i & 1);
        j.cfg.n_threads = 1 + (i & 1);
        collect_once(&j, &a);
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
    for (int i = 0; i < 12; i++) {
        struct bits a, b;
        struct job j = job(i < 8 ? 2 : 1, 3, i & 1 ? ZT_BF16 : ZT_F32);
        j.n_groups = i / 4 & 1 ? 2 : 0;
        j.cfg.accum = 1 + (i & 1);
        collect_once(&j, &a);
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

/* Either or both on a drive, the other anywhere; both ways of moving bytes; one op at a time too. */
TEST(engine_nvme_same_bits)
{
    for (int i = 0; i < 24; i++) {
        struct bits a, b;
        const int stage = i < 12 ? 3 : i % 2 + 1;
        struct job j = job(i % 4 == 3 ? 1 : 2, stage, i & 1 ? ZT_BF16 : ZT_F32);
        j.n_groups = i / 4 & 1 ? 2 : 0;
        j.cfg.accum = 1 + (i & 1);
        collect_once(&j, &a);
        RETURN_IF_FAILED();
        const bool param = stage == 3 && i % 3 < 2;
        j.cfg.offload_param = param                      ? ZT_OFFLOAD_NVME
                              : stage == 3 && i % 2 == 0 ? ZT_OFFLOAD_CPU
                                                         : ZT_OFFLOAD_NONE;
        j.cfg.offload_optimizer =
            !param || i % 4 < 2 ? ZT_OFFLOAD_NVME : (enum zt_offload)(i % 4 - 2);
        j.cfg.recompute = i % 5 == 1 ? ZT_RECOMPUTE_BLOCK : ZT_RECOMPUTE_NONE;
        j.cfg.disk_buffers = i % 4;
        j.disk = i % 2 ? ZT_DISK_AUTO : ZT_DISK_THREADS;
        j.serial = i % 5 == 3;
        collect(&j, &b);
        RETURN_IF_FAILED();
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
}

/*
 * Every kind of recomputation, inputs on the host or not, in both models with dropout, by every stage, with
 * the first block frozen too, and one op at a time, where an op that touched more than it says is caught.
 */
TEST(engine_recompute_same_bits)
{
    static const struct {
        enum zt_recompute kind;
        int every;
    } kinds[] = {{ZT_RECOMPUTE_BLOCK, 0},
                 {ZT_RECOMPUTE_SELECTIVE, 0},
                 {ZT_RECOMPUTE_EVERY, 2},
                 {ZT_RECOMPUTE_EVERY, 3}};
    enum { N_KINDS = ZT_ARRAY_LEN(kinds), N_LAYERS = 3 };
    static const struct zt_group frozen[] = {{"embed*", 0, 1, true}, {"layers.0.*", 0, 1, true}};
    for (int m = 0; m < 8; m++) {
        struct zt_model_config mc = m & 1 ? llama : gpt2;
        struct bits a, b;
        mc.n_layer = N_LAYERS;
        mc.attn_pdrop = 0.1;
        mc.embd_pdrop = mc.resid_pdrop = m & 1 ? 0 : 0.1;
        struct job j = job(m & 4 ? 2 : 1, m / 2, m & 2 ? ZT_BF16 : ZT_F32);
        j.mc = &mc;
        j.cfg.accum = m & 4 ? 1 : 2;
        j.groups = frozen;
        j.n_groups = m == 3 ? ZT_ARRAY_LEN(frozen) : 0;
        collect(&j, &a);
        RETURN_IF_FAILED();
        for (int i = 0; i < 2 * N_KINDS; i++) {
            j.cfg.recompute = kinds[i / 2].kind;
            j.cfg.recompute_every = kinds[i / 2].every;
            j.cfg.cpu_checkpointing = i & 1;
            j.serial = (i + m) % 3 == 0;
            if (ZT_TSAN && j.serial)
                continue;
            collect(&j, &b);
            RETURN_IF_FAILED();
            CHECK(memcmp(&a, &b, sizeof a) == 0);
        }
    }
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
    snprintf(
        cmd, sizeof cmd,
        "ZT_DROP_WAIT=%d TSAN_OPTIONS=halt_on_error=1:symbolize=0:exitcode=66 '%s' dropped_wait "
        ">/dev/null 2>&1",
        wait, self);
    int status = system(cmd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* With parameters and states on a drive, so that every stream takes part; threads, which the sanitizer sees. */
TEST(engine_tsan_sees_a_dropped_wait)
{
    const char *drop = getenv("ZT_DROP_WAIT");
    struct job j = job(2, 3, ZT_F32);
    struct rank ranks[MAX_RANKS];
    j.cfg.offload_optimizer = j.cfg.offload_param = ZT_OFFLOAD_NVME;
    j.disk = ZT_DISK_THREADS;
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
