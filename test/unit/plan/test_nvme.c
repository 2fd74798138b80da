#include "harness.h"

#include "base/err.h"
#include "models.h"

/*
 * What the plan makes of offload to NVMe, by its lifetimes and its simulated schedule: no more copies on the
 * host than there are buffers, and with three of them one unit is read and one written while one is updated.
 */

struct nvme_case {
    struct zt_arena arena;
    struct zt_plan *plan;
    const struct zt_program *train;
    struct zt_sim sim;
};

static void open_case(struct nvme_case *c, int stage, enum zt_offload to, int buffers,
                      const char *profile)
{
    struct zt_model *m;
    struct zt_err err;
    struct zt_plan_config cfg = plan_config(stage, 2, ZT_BF16);
    memset(c, 0, sizeof *c);
    cfg.offload_optimizer = to;
    cfg.offload_param = stage == 3 ? to : ZT_OFFLOAD_NONE;
    cfg.disk_buffers = buffers;
    cfg.micro_batch = 8;
    cfg.seq_len = 1024;
    cfg.profile = zt_profile_find(profile);
    CHECK_OK(zt_model_build(&gpt2_124m, &c->arena, &m, &err), err);
    CHECK_OK(zt_plan_build(m, &cfg, 1, &c->plan, &err), err);
    c->train = &c->plan->programs[ZT_PROG_TRAIN];
    zt_simulate(c->plan, ZT_PROG_TRAIN, cfg.profile, NULL, &c->sim);
}

static void close_case(struct nvme_case *c)
{
    zt_sim_release(&c->sim);
    zt_plan_free(c->plan);
    zt_arena_release(&c->arena);
}

/* The row that moves the unit's first moment, or updates it; -1: none. */
static int row_of(const struct nvme_case *c, enum zt_op_kind kind, int unit)
{
    for (int i = 0; i < c->train->n_ops; i++)
        if (c->train->ops[i].kind == kind && c->train->ops[i].unit == unit &&
            zt_op_operand(c->train, &c->train->ops[i], ZT_R_M, 0))
            return i;
    return -1;
}

/* Units whose copies have bytes on the host, at the op where they are most. */
static int most_copies(const struct nvme_case *c)
{
    const struct zt_plan *p = c->plan;
    struct zt_life *life = zt_xcalloc((size_t)p->n_bufs, sizeof *life);
    int most = 0, n = c->train->n_ops;
    zt_lifetimes_widened(p, ZT_PROG_TRAIN, c->train->backlog, life);
    for (int i = 0; i < n; i++) {
        int live = 0;
        for (int u = 0; u < p->n_units; u++) {
            const struct zt_op *read = &c->train->ops[row_of(c, ZT_OP_READ, u)];
            const struct zt_life l = life[zt_op_operand(c->train, read, ZT_R_M, 1)->buf];
            live += (l.lo <= i && i <= l.hi) || i + n <= l.hi;
        }
        most = ZT_MAX(most, live);
    }
    free(life);
    return most;
}

/* Does any row of the kind, of another unit, run while row i does? */
static bool beside(const struct nvme_case *c, int i, enum zt_op_kind kind)
{
    for (int j = 0; j < c->train->n_ops; j++) {
        const struct zt_op *op = &c->train->ops[j];
        const double begin = ZT_MAX(c->sim.start_s[i], c->sim.start_s[j]);
        const double end = ZT_MIN(c->sim.finish_s[i], c->sim.finish_s[j]);
        if (op->kind == kind && op->unit != c->train->ops[i].unit && begin < end)
            return true;
    }
    return false;
}

/* Units that are read while another is written and, `updates`, updated while another is read or written. */
static int n_beside(const struct nvme_case *c, bool updates)
{
    int n = 0;
    for (int u = 0; u < c->plan->n_units; u++) {
        const int i = row_of(c, updates ? ZT_OP_UPDATE : ZT_OP_READ, u);
        n += beside(c, i, ZT_OP_WRITE) || (updates && beside(c, i, ZT_OP_READ));
    }
    return n;
}

TEST(nvme_copies_are_as_many_as_buffers)
{
    static const char *const profiles[] = {"fast", "slow", "cpu"};
    for (size_t f = 0; f < ZT_ARRAY_LEN(profiles); f++) {
        for (int v = 0; v < 8; v++) {
            struct nvme_case c;
            open_case(&c, v & 4 ? 3 : 1, ZT_OFFLOAD_NVME, v % 4 + 1, profiles[f]);
            RETURN_IF_FAILED();
            CHECK_INT(most_copies(&c), v % 4 + 1);
            close_case(&c);
        }
    }
}

TEST(nvme_reads_updates_and_writes_at_once)
{
    for (int stage = 1; stage <= 3; stage += 2) {
        struct nvme_case one, three;
        open_case(&one, stage, ZT_OFFLOAD_NVME, 1, "cpu");
        open_case(&three, stage, ZT_OFFLOAD_NVME, 3, "cpu");
        RETURN_IF_FAILED();
        CHECK(n_beside(&three, false) >= 9 &&
              n_beside(&three, true) >= 9); /* of 14, one of them tiny */
        CHECK(n_beside(&one, false) <= 1 && n_beside(&one, true) <= 1);
        CHECK(three.sim.step_s < one.sim.step_s);
        close_case(&one);
        close_case(&three);
    }
}

/*
 * The host holds less than with offload to it, and more with buffers, up to those beside the largest unit,
 * which is the first; the drive holds the rest.
 */
TEST(nvme_takes_from_the_host)
{
    struct nvme_case host;
    size_t last = 0;
    open_case(&host, 3, ZT_OFFLOAD_CPU, 0, "cpu");
    RETURN_IF_FAILED();
    const size_t on_host = host.plan->ledger.peak[ZT_AR_HOST];
    CHECK_INT(host.plan->ledger.peak[ZT_AR_DISK], 0);
    for (int buffers = 1; buffers <= 4; buffers++) {
        struct nvme_case c;
        open_case(&c, 3, ZT_OFFLOAD_NVME, buffers, "cpu");
        RETURN_IF_FAILED();
        const size_t peak = c.plan->ledger.peak[ZT_AR_HOST];
        CHECK(peak >= last + (buffers < 4) && peak < on_host);
        CHECK(c.plan->ledger.peak[ZT_AR_DISK] >= 14 * (size_t)c.plan->model->n_elems / 2);
        last = peak;
        close_case(&c);
    }
    close_case(&host);
}

TEST_MAIN()
