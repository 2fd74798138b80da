#include "unit/train/job.h"

#include "base/size.h"

/*
 * What the plan says of memory, beside what is touched. Each cell runs twice over arenas that hold one
 * byte everywhere, another one in either run: a byte that still holds both was never touched, whatever
 * values a training writes. Measured so without a number of the plan's, then compared with the plan.
 */

/* Of the cells: they take ten times as long. No period of what check_all() varies divides either. */
#if defined(__SANITIZE_THREAD__)
enum { EVERY = 29 };
#elif defined(__SANITIZE_ADDRESS__)
enum { EVERY = 13 };
#else
enum { EVERY = 1 };
#endif

enum { N_FILLS = 2 };
static const int fills[N_FILLS] = {0xff, 0x55}; /* NaN in every floating type; a large number */

struct measured {
    size_t touched, high_water;
    size_t missing; /* written as planned, but not touched */
    size_t stray;   /* touched, but by nothing that was planned */
    size_t written, scratch, peak;
};

enum poke { POKE_NOTHING, POKE_PADDING, POKE_WRITTEN };

struct cell {
    unsigned char *changed[MAX_RANKS][ZT_AR_DISK]; /* (peak): 1 is touched */
    struct measured got[MAX_RANKS][ZT_AR_DISK];
    enum poke poke; /* a planted fault of rank 0 in the host arena */
};

/* Bytes [begin, end) of the map that are `value`. */
static size_t count(const unsigned char *map, size_t begin, size_t end, int value)
{
    size_t n = 0;
    for (size_t i = begin; i < end; i++)
        n += map[i] == value;
    return n;
}

static void compare(const struct zt_plan *p, enum zt_arena_id a, const unsigned char *changed,
                    struct measured *m)
{
    const size_t peak = p->ledger.peak[a];
    struct zt_touched t;
    size_t at = 0;
    zt_plan_touched(p, a, ZT_ALL_PROGRAMS, &t);
    *m = (struct measured){.peak = peak, .written = t.written_bytes, .scratch = t.scratch_bytes};
    m->touched = count(changed, 0, peak, 1);
    for (m->high_water = peak; m->high_water && !changed[m->high_water - 1];)
        m->high_water--;
    for (int i = 0; i < t.n_written; i++)
        m->missing += count(changed, t.written[i].begin, t.written[i].end, 0);
    for (int i = 0; i < t.n_touchable; i++) {
        m->stray += count(changed, at, t.touchable[i].begin, 1);
        at = t.touchable[i].end;
    }
    m->stray += count(changed, at, peak, 1);
    zt_touched_release(&t);
}

/* The last byte of the host arena is alignment; the first one is of the first buffer. */
static void plant(const struct cell *c, const struct zt_engine *e, unsigned char *map)
{
    const size_t peak = e->plan->ledger.peak[ZT_AR_HOST];
    if (c->poke == POKE_PADDING)
        map[peak - 1] = 1;
    else if (c->poke == POKE_WRITTEN)
        map[0] = 0;
}

static void look(struct rank *r, struct zt_engine *e)
{
    struct cell *c = r->job->context;
    for (int a = 0; a < ZT_AR_DISK; a++) {
        const size_t peak = e->plan->ledger.peak[a];
        unsigned char **changed = &c->changed[r->rank][a];
        if (!e->base[a])
            continue;
        if (!*changed)
            *changed = zt_xcalloc(peak, 1);
        for (size_t i = 0; i < peak; i++)
            (*changed)[i] |= e->base[a][i] != r->job->fill;
        if (r->job->fill != fills[N_FILLS - 1])
            continue;
        if (a == ZT_AR_HOST && r->rank == 0)
            plant(c, e, *changed);
        compare(e->plan, (enum zt_arena_id)a, *changed, &c->got[r->rank][a]);
    }
}

static void run_cell(struct job *j, struct cell *c)
{
    struct rank ranks[N_FILLS][MAX_RANKS];
    j->look = look;
    j->context = c;
    for (int i = 0; i < N_FILLS; i++) {
        j->fill = fills[i];
        run_job(j, ranks[i]);
        RETURN_IF_FAILED();
    }
    for (int r = 0; r < j->n_ranks; r++) {
        for (int a = 0; a < ZT_AR_DISK; a++)
            free(c->changed[r][a]);
        /* Else an op read a byte that nothing had written. */
        CHECK(ranks[0][r].digest == ranks[1][r].digest);
        CHECK(memcmp(ranks[0][r].loss, ranks[1][r].loss, sizeof ranks[0][r].loss) == 0);
    }
}

static void check_cell(struct job *j)
{
    struct cell c = {0};
    char name[160];
    run_cell(j, &c);
    RETURN_IF_FAILED();
    snprintf(name, sizeof name,
             "ranks %d, stage %d, %s, recompute %d, optimizer on %d, parameters on %d, accum %d",
             j->n_ranks, j->cfg.stage, zt_dtype_name(j->cfg.dtype), (int)j->cfg.recompute,
             (int)j->cfg.offload_optimizer, (int)j->cfg.offload_param, j->cfg.accum);
    for (int r = 0; r < j->n_ranks; r++) {
        for (int a = 0; a < ZT_AR_DISK; a++) {
            const struct measured *m = &c.got[r][a];
            if (m->missing || m->stray)
                FAIL("%s: rank %d, %s: %zu bytes planned and not touched, %zu touched and not "
                     "planned",
                     name, r, zt_arena_name((enum zt_arena_id)a), m->missing, m->stray);
            if (zt_align_size(m->high_water, ZT_BUF_ALIGN) != m->peak)
                FAIL("%s: rank %d, %s: touched up to %zu, and the peak is %zu", name, r,
                     zt_arena_name((enum zt_arena_id)a), m->high_water, m->peak);
            CHECK(m->touched >= m->written && m->touched <= m->written + m->scratch);
        }
    }
}

/* Where a model's state may live at a stage. */
static const struct {
    int first_stage;
    enum zt_offload optimizer, param;
} places[] = {{0, ZT_OFFLOAD_NONE, ZT_OFFLOAD_NONE}, {1, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NONE},
              {3, ZT_OFFLOAD_NONE, ZT_OFFLOAD_CPU},  {3, ZT_OFFLOAD_CPU, ZT_OFFLOAD_CPU},
              {1, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NONE}, {3, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NVME},
              {3, ZT_OFFLOAD_NVME, ZT_OFFLOAD_NVME}};

static const enum zt_recompute policies[] = {ZT_RECOMPUTE_NONE, ZT_RECOMPUTE_BLOCK,
                                             ZT_RECOMPUTE_SELECTIVE, ZT_RECOMPUTE_EVERY};

/* Every stage, type and place; `n` varies what else there is: every policy at every stage and place. */
static void check_all(const struct zt_model_config *mc, int n_ranks)
{
    int n = n_ranks;
    for (int stage = 0; stage < 4; stage++) {
        for (size_t place = 0; place < ZT_ARRAY_LEN(places); place++) {
            for (int v = 0; v < 6 && stage >= places[place].first_stage; v++, n++) {
                struct job j = job(n_ranks, stage, (enum zt_dtype)(ZT_F32 + v % 3));
                j.mc = mc;
                j.cfg.recompute = policies[n % (int)ZT_ARRAY_LEN(policies)];
                j.cfg.recompute_every = 2;
                j.cfg.cpu_checkpointing = j.cfg.recompute && n % 3 == 0;
                j.cfg.offload_optimizer = places[place].optimizer;
                j.cfg.offload_param = places[place].param;
                j.cfg.micro_batch = 3; /* tensors that do not fill their alignment */
                j.cfg.seq_len = 13;
                j.cfg.accum = 1 + n % 2;
                j.cfg.eval_micro_batch = n % 3 ? 2 : 0;
                j.cfg.generate = n % 4 == 1;
                j.cfg.overlap_comm = n % 5 > 0;
                j.cfg.snapshot = n % 5 < 2;
                if (n % EVERY == 0)
                    check_cell(&j);
                RETURN_IF_FAILED();
            }
        }
    }
}

TEST(memory_one_rank)
{
    check_all(&gpt2, 1);
}

TEST(memory_two_ranks)
{
    check_all(&gpt2, 2);
}

TEST(memory_three_ranks)
{
    check_all(&gpt2, 3);
}

TEST(memory_llama)
{
    check_all(&llama, 2);
}

TEST(memory_blocks_of_extents)
{
    const struct zt_extent x[] = {{0, 1}, {2, 3}, {511, 512}, {513, 1025}, {4096, 4097}};
    CHECK_INT(zt_extent_blocks(x, 0, 512), 0);
    CHECK_INT(zt_extent_blocks(x, 1, 512), 512);
    CHECK_INT(zt_extent_blocks(x, 3, 512), 512);
    CHECK_INT(zt_extent_blocks(x, 4, 512), 3 * 512);
    CHECK_INT(zt_extent_blocks(x, 5, 512), 4 * 512);
    CHECK_INT(zt_extent_blocks(x, 5, 4096), 2 * 4096);
}

/* A mapping that holds an arena and as much behind it, as the kernel joins them, counts half. */
TEST(memory_of_a_process_by_mapping)
{
    char text[] =
        "10000-30000 rw-p 00000000 00:00 0 \nSize: 128 kB\nPss: 100 kB\nPss_Dirty: 7 kB\n"
        "40000-50000 r-xp 00001000 fe:01 77                    /usr/bin/zerotrain\nPss: 8 kB\n"
        "50000-60000 rw-s 00000000 00:01 5  /memfd:zerotrain-arena (deleted)\nPss: 4 kB\n"
        "60000-70000 rw-s 00000000 00:01 6  /memfd:zerotrain-control (deleted)\nPss: 2 kB\n"
        "70000-80000 rw-p 00000000 00:00 0                     [heap]\nPss: 16 kB\n"
        "80000-90000 rw-p 00000000 00:00 0 \nPss: 32 kB\nVmFlags: rd wr\n";
    const struct zt_extent arenas[] = {{0x10000, 0x20000}, {0x80000, 0x90000}};
    struct zt_pss pss;
    FILE *f = fmemopen(text, sizeof text - 1, "r");
    CHECK(f);
    zt_pss_read(f, arenas, 2, &pss);
    fclose(f);
    CHECK_INT(pss.arenas, (50 + 32) * 1024);
    CHECK_INT(pss.shared, 4 * 1024);
    CHECK_INT(pss.files, (8 + 2) * 1024);
    CHECK_INT(pss.rest, (50 + 16) * 1024);
}

/* One byte too many or too few is seen. */
TEST(memory_check_sees_one_byte)
{
    for (enum poke poke = POKE_NOTHING; poke <= POKE_WRITTEN; poke++) {
        struct job j = job(1, 1, ZT_BF16);
        struct cell c = {.poke = poke};
        j.cfg.offload_optimizer = ZT_OFFLOAD_CPU;
        run_cell(&j, &c);
        RETURN_IF_FAILED();
        CHECK_INT(c.got[0][ZT_AR_HOST].stray, poke == POKE_PADDING);
        CHECK_INT(c.got[0][ZT_AR_HOST].missing, poke == POKE_WRITTEN);
    }
}

TEST_MAIN()
