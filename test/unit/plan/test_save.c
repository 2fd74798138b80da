/* SAVE, LOAD and AGREE: what they read and write, at every stage and home of the state. */
#include "harness.h"
#include "models.h"

#include "base/err.h"

struct fixture {
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan_config cfg;
    struct zt_plan *plan;
    struct zt_err err;
    char name[64];
};

static void setup(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    CHECK_OK(zt_model_build(&gpt2_124m, &f->arena, &f->model, &f->err), f->err);
}

static void teardown(struct fixture *f)
{
    zt_plan_free(f->plan);
    zt_arena_release(&f->arena);
}

static void build(struct fixture *f, int rank)
{
    zt_plan_free(f->plan);
    f->plan = NULL;
    CHECK_OK(zt_plan_build(f->model, &f->cfg, rank, &f->plan, &f->err), f->err);
}

/* Stages, ranks, types, offload to the host (1, 2) and to NVMe (3, 4): check() sees the plan of the first and of the last rank. */
static void each(struct fixture *f, void (*check)(struct fixture *))
{
    static const int ranks[] = {1, 2, 3, 7};
    for (int i = 0; i < 4 * 4 * 2 * 5 && !zt_test_failed; i++) {
        const int stage = i & 3, n = ranks[i >> 2 & 3], offload = i / 32;
        const enum zt_dtype dtype = i & 16 ? ZT_BF16 : ZT_F32;
        if ((offload >= 1 && stage == 0) || (offload > 0 && !(offload & 1) && stage != 3))
            continue;
        const enum zt_offload to = offload > 2 ? ZT_OFFLOAD_NVME : ZT_OFFLOAD_CPU;
        f->cfg = plan_config(stage, n, dtype);
        f->cfg.offload_optimizer = offload ? to : ZT_OFFLOAD_NONE;
        f->cfg.offload_param = offload == 2 || offload == 4 ? to : ZT_OFFLOAD_NONE;
        f->cfg.saves = f->cfg.snapshot = f->cfg.loads = true;
        snprintf(f->name, sizeof f->name, "stage %d on %d, %s, offload %d", stage, n,
                 zt_dtype_name(dtype), offload);
        for (int r = 0; r < n && !zt_test_failed; r += ZT_MAX(n - 1, 1)) {
            build(f, r);
            if (!zt_test_failed)
                check(f);
        }
    }
}

/* A mark for each 64th byte of a persistent buffer that the program writes. */
static unsigned char *written(const struct zt_plan *p, enum zt_program_kind k, int buf)
{
    const struct zt_program *g = &p->programs[k];
    unsigned char *map = zt_xcalloc(p->bufs[buf].used / 64 + 1, 1);
    for (int i = 0; i < g->n_accesses; i++) {
        const struct zt_access *a = &g->accesses[i];
        if (a->buf == buf && (a->mode & ZT_WRITE))
            memset(map + a->begin / 64, 1, (a->end + 63) / 64 - a->begin / 64);
    }
    return map;
}

static void load_writes_what_init_writes(struct fixture *f)
{
    const struct zt_plan *p = f->plan;
    for (int b = 0; b < p->n_bufs && !zt_test_failed; b++) {
        if (p->bufs[b].program >= 0)
            continue;
        unsigned char *init = written(p, ZT_PROG_INIT, b), *load = written(p, ZT_PROG_LOAD, b);
        bool same = memcmp(init, load, p->bufs[b].used / 64 + 1) == 0;
        free(init);
        free(load);
        if (!same)
            FAIL("%s: LOAD and INIT differ in %s", f->name, p->bufs[b].name);
    }
}

TEST(save_load_writes_what_init_writes)
{
    struct fixture f;
    setup(&f);
    each(&f, load_writes_what_init_writes);
    teardown(&f);
}

static int part_of(const struct zt_plan *p, const struct zt_access *a)
{
    switch (p->bufs[a->buf].cat) {
    case ZT_CAT_PARAM:
    case ZT_CAT_MASTER:
        return 0;
    case ZT_CAT_OPT_M:
        return 1;
    default:
        return p->bufs[a->buf].cat == ZT_CAT_OPT_V ? 2 : -1;
    }
}

/* The part that a row of LOAD reads, and the operand that its bytes go to. */
static int loaded_part(const struct zt_program *g, const struct zt_op *op,
                       const struct zt_access **to)
{
    static const enum zt_role roles[][2] = {
        {ZT_R_HPARAM, ZT_R_HPARAM}, {ZT_R_HM, ZT_R_M}, {ZT_R_HV, ZT_R_V}};
    for (int part = 0; part < 3; part++)
        for (int i = 0; i < 2; i++)
            if ((*to = zt_op_operand(g, op, roles[part][i], 0)))
                return part;
    return -1;
}

/* Each rank reads its slice of each part once, in the order of the files: values of all units, m, v. */
static void reads_each_slice_once(struct fixture *f)
{
    const struct zt_plan *p = f->plan;
    const struct zt_program *g = &p->programs[ZT_PROG_LOAD];
    const struct zt_access *to;
    int next = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const struct zt_op *op = &g->ops[i];
        if (op->kind != ZT_OP_LOAD_UNIT)
            continue;
        CHECK_INT(loaded_part(g, op, &to) * p->n_units + op->unit, next++);
        RETURN_IF_FAILED();
        CHECK_INT(to->end - to->begin, (size_t)p->units[op->unit].slice_elems * sizeof(float));
    }
    CHECK_INT(next, 3 * p->n_units);
}

TEST(save_load_reads_each_slice_once)
{
    struct fixture f;
    setup(&f);
    each(&f, reads_each_slice_once);
    teardown(&f);
}

/* What a rank holds whole it gets from the others, from where they can read it; a slice stays as it is. */
static void gathers_what_is_whole(struct fixture *f)
{
    const struct zt_plan *p = f->plan;
    const struct zt_program *g = &p->programs[ZT_PROG_LOAD];
    int *gathered = zt_xcalloc((size_t)p->n_bufs, sizeof *gathered);
    for (int i = 0; i < g->n_ops; i++) {
        const struct zt_op *op = &g->ops[i];
        const struct zt_access *a = &g->accesses[op->first_access];
        if (op->kind != ZT_OP_ALLGATHER)
            continue;
        const struct zt_access *to = &a[op->n_accesses - 1];
        CHECK(p->bufs[a->buf].arena == ZT_AR_SHARED && p->bufs[to->buf].program < 0);
        CHECK_INT(op->group, p->units[op->unit].shard_group);
        CHECK_INT(op->count, p->units[op->unit].slice_elems);
        CHECK_INT(op->dtype, p->bufs[to->buf].dtype);
        CHECK_INT(a->end - a->begin, (size_t)op->count * zt_dtype_bytes(op->dtype));
        gathered[to->buf]++;
    }
    for (int b = 0; b < p->n_bufs; b++) {
        const struct zt_buf *buf = &p->bufs[b];
        const bool state = buf->program < 0 && buf->cat != ZT_CAT_SNAPSHOT && buf->unit >= 0;
        const bool whole = state && buf->used == (size_t)p->units[buf->unit].padded_elems *
                                                     zt_dtype_bytes(buf->dtype);
        CHECK_INT(gathered[b], whole && p->n_shards > 1);
    }
    free(gathered);
}

TEST(save_load_gathers_what_is_whole)
{
    struct fixture f;
    setup(&f);
    each(&f, gathers_what_is_whole);
    teardown(&f);
}

/* Every row copies this rank's slice of one part, by the stream of its home; each part once. */
static void copies_each_part_once(struct fixture *f)
{
    const struct zt_plan *p = f->plan;
    const struct zt_program *g = &p->programs[ZT_PROG_SAVE];
    int *seen = zt_xcalloc((size_t)p->n_units * 3, sizeof *seen);
    size_t bytes = 0;
    if (f->cfg.offload_optimizer == ZT_OFFLOAD_NVME) { /* it would not fit into the host's memory */
        free(seen);
        CHECK_INT(g->n_ops, 0);
        return;
    }
    CHECK_INT(g->n_ops, 3 * p->n_units);
    for (int i = 0; i < g->n_ops; i++) {
        const struct zt_op *op = &g->ops[i];
        const struct zt_access *a = &g->accesses[op->first_access];
        const struct zt_buf *from = &p->bufs[a[0].buf], *to = &p->bufs[a[1].buf];
        const struct zt_unit *u = &p->units[op->unit];
        const size_t elem = zt_dtype_bytes(from->dtype), slice = (size_t)u->slice_elems * elem;
        const int part = part_of(p, &a[0]);
        CHECK(op->kind == ZT_OP_SAVE_UNIT && op->n_accesses == 2 && part >= 0);
        CHECK(a[0].mode == ZT_READ && a[1].mode == ZT_WRITE && to->cat == ZT_CAT_SNAPSHOT);
        CHECK(to->arena == ZT_AR_HOST && to->program < 0 && to->dtype == from->dtype);
        CHECK(from->dtype == ZT_F32); /* nothing is frozen: values are fp32 */
        CHECK_INT(op->stream, from->arena == ZT_AR_HOST ? ZT_ST_HOST : ZT_ST_COPY_OUT);
        CHECK_INT(a[0].end - a[0].begin, slice);
        CHECK(a[1].begin == 0 && a[1].end == slice);
        const bool full = from->used == (size_t)u->padded_elems * elem;
        CHECK_INT(a[0].begin, full ? (size_t)p->shard_rank * slice : 0);
        seen[3 * op->unit + part]++;
        bytes += to->bytes;
    }
    for (int i = 0; i < 3 * p->n_units; i++)
        CHECK_INT(seen[i], 1);
    free(seen);
    size_t on_host = 0; /* the ledger counts the snapshot, padding and alignment apart */
    for (int b = 0; b < p->n_bufs; b++)
        on_host += p->bufs[b].cat == ZT_CAT_SNAPSHOT ? p->bufs[b].bytes - p->bufs[b].padding : 0;
    CHECK_INT(p->ledger.host[ZT_CAT_SNAPSHOT], on_host);
    CHECK(bytes >= on_host && bytes >= 12 * (size_t)(p->model->n_elems / p->n_shards));
}

TEST(save_copies_each_part_once)
{
    struct fixture f;
    setup(&f);
    each(&f, copies_each_part_once);
    teardown(&f);
}

/* Without a snapshot there is no copy and no memory for one; AGREE is there in any case. */
TEST(save_without_snapshot_takes_no_memory)
{
    struct fixture f;
    setup(&f);
    f.cfg = plan_config(2, 4, ZT_BF16);
    build(&f, 1);
    CHECK_INT(f.plan->programs[ZT_PROG_AGREE].n_ops, 2);
    const size_t host = f.plan->ledger.peak[ZT_AR_HOST];
    f.cfg.saves = f.cfg.loads = true;
    build(&f, 1);
    CHECK_INT(f.plan->ledger.peak[ZT_AR_HOST], host);
    CHECK_INT(f.plan->programs[ZT_PROG_SAVE].n_ops, 0);
    CHECK_INT(f.plan->programs[ZT_PROG_AGREE].n_ops, 2);
    CHECK_INT(f.plan->ledger.host[ZT_CAT_SNAPSHOT], 0);
    teardown(&f);
}

TEST_MAIN()
