/* Where states live decides rows: copies to and from the host, transfers to and from a drive. */
#include "fixture.h"

TEST(emit_offload_moves_slices)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int stage = 1; stage < 4; stage++) {
        struct zt_plan_config cfg = plan_config(stage, 2, ZT_BF16);
        cfg.offload_optimizer = ZT_OFFLOAD_CPU;
        cfg.accum = 2;
        emit_as(&f, &cfg, 1);
        RETURN_IF_FAILED();
        const int units = f.plan->n_units;
        CHECK_INT(count(f.train, ZT_OP_EVICT), units);
        CHECK_INT(count(f.train, ZT_OP_FETCH), units);
        for (int b = 0; b < f.plan->n_bufs; b++) {
            const enum zt_cat cat = f.plan->bufs[b].cat;
            if (cat == ZT_CAT_MASTER || cat == ZT_CAT_OPT_M || cat == ZT_CAT_OPT_V)
                CHECK_INT(f.plan->bufs[b].arena, ZT_AR_HOST);
        }
        for (int u = 0; u < units; u++) {
            const int i = find(f.train, ZT_OP_UPDATE, u), j = find(f.train, ZT_OP_FETCH, u);
            CHECK_INT(f.train->ops[i].stream, ZT_ST_HOST);
            CHECK(i < j && f.train->ops[j].predicate == ZT_IF_APPLY);
            const struct zt_access *to = operand(&f, j, stage == 3 ? ZT_R_SHARD : ZT_R_PARAM, 0);
            CHECK_INT(to->end - to->begin, (size_t)f.plan->units[u].slice_elems * 2);
        }
    }
    teardown(&f);
}

/* Every gathered copy begins with a FETCH; a new slice goes back, or is made on the host. */
TEST(emit_offload_param_fetches_what_it_gathers)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int v = 0; v < 8; v++) {
        const int ranks = v & 1 ? 2 : 1;
        struct zt_plan_config cfg = plan_config(3, ranks, v & 2 ? ZT_BF16 : ZT_F32);
        cfg.offload_param = ZT_OFFLOAD_CPU;
        cfg.offload_optimizer = v & 4 ? ZT_OFFLOAD_CPU : ZT_OFFLOAD_NONE;
        emit_as(&f, &cfg, ranks - 1);
        RETURN_IF_FAILED();
        const int units = f.plan->n_units, n_releases = count(f.train, ZT_OP_RELEASE);
        CHECK(n_releases >= units);
        CHECK_INT(count(f.train, ZT_OP_FETCH), n_releases);
        CHECK_INT(count(f.train, ZT_OP_GATHER), ranks == 1 ? 0 : n_releases);
        CHECK_INT(count(f.train, ZT_OP_EVICT), units);
        for (int i = 0; i < f.train->n_ops; i++) {
            const struct zt_op *op = &f.train->ops[i];
            if (op->kind == ZT_OP_FETCH) {
                const struct zt_buf *from = &f.plan->bufs[operand(&f, i, ZT_R_HPARAM, 0)->buf];
                CHECK(from->arena == ZT_AR_HOST && from->cat == ZT_CAT_PARAM && from->program < 0);
                CHECK(operand(&f, i, ranks == 1 ? ZT_R_PARAM : ZT_R_SHARD, 0)->mode == ZT_WRITE);
            }
            if (op->kind == ZT_OP_GATHER)
                CHECK_INT(f.train->ops[i - 1].kind, ZT_OP_FETCH);
            if (op->kind == ZT_OP_UPDATE)
                CHECK_INT(f.train->ops[i + 1].kind == ZT_OP_EVICT, !(v & 4));
        }
        for (int b = 0; b < f.plan->n_bufs; b++) /* a master only apart from its fp32 parameters */
            if (f.plan->bufs[b].cat == ZT_CAT_MASTER)
                CHECK((v & 2) || !(v & 4));
    }
    teardown(&f);
}

/* ---- what lives on a drive ---- */

/* Operands of READ and WRITE: pairs of one role and size, the first on the side that the row moves from. */
static void check_disk_row(const struct fixture *f, const struct zt_program *g, int i)
{
    const struct zt_op *op = &g->ops[i];
    const struct zt_access *a = &g->accesses[op->first_access];
    const bool read = op->kind == ZT_OP_READ;
    CHECK_INT(op->stream, read ? ZT_ST_DISK_IN : ZT_ST_DISK_OUT);
    CHECK_INT(op->n_accesses % 2, 0);
    for (int j = 0; j < op->n_accesses; j += 2) {
        const struct zt_buf *from = &f->plan->bufs[a[j].buf], *to = &f->plan->bufs[a[j + 1].buf];
        CHECK_INT(from->arena, read ? ZT_AR_DISK : ZT_AR_HOST);
        CHECK_INT(to->arena, read ? ZT_AR_HOST : ZT_AR_DISK);
        CHECK(a[j].mode == ZT_READ && a[j + 1].mode == ZT_WRITE && a[j].role == a[j + 1].role);
        CHECK_INT(a[j].end - a[j].begin, a[j + 1].end - a[j + 1].begin);
        CHECK_INT(read ? from->used : to->used, a[j].end - a[j].begin); /* all that is there */
        CHECK_INT(read ? from->bytes % ZT_DISK_BUF_ALIGN : to->bytes % ZT_DISK_BUF_ALIGN, 0);
    }
}

/* READ, UPDATE on the host, WRITE; never more units between the first and the last than there are buffers. */
static void check_disk_order(const struct fixture *f, int buffers)
{
    int live = 0, most = 0;
    for (int i = 0; i < f->train->n_ops; i++) {
        const struct zt_op *op = &f->train->ops[i];
        const bool read = op->kind == ZT_OP_READ && zt_op_operand(f->train, op, ZT_R_M, 0);
        if (op->kind == ZT_OP_READ || op->kind == ZT_OP_WRITE)
            check_disk_row(f, f->train, i);
        RETURN_IF_FAILED();
        live += read ? 1 : op->kind == ZT_OP_WRITE ? -1 : 0;
        most = ZT_MAX(most, live);
        if (!read)
            continue;
        const int u = find(f->train, ZT_OP_UPDATE, op->unit);
        const int w = find(f->train, ZT_OP_WRITE, op->unit);
        CHECK(i < u && u < w && f->train->ops[u].stream == ZT_ST_HOST);
        CHECK(f->train->ops[w].predicate == ZT_IF_APPLY);
    }
    CHECK_INT(live, 0);
    CHECK_INT(most, ZT_MIN(buffers, f->plan->n_units));
}

TEST(emit_nvme_reads_updates_and_writes)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int v = 0; v < 24; v++) {
        const int stage = v % 3 + 1, buffers = v / 6 + 1;
        struct zt_plan_config cfg = plan_config(stage, 2, v & 1 ? ZT_BF16 : ZT_F32);
        cfg.offload_optimizer = ZT_OFFLOAD_NVME;
        cfg.offload_param = stage == 3 && v % 4 < 2 ? ZT_OFFLOAD_NVME : ZT_OFFLOAD_NONE;
        cfg.disk_buffers = buffers;
        emit_as(&f, &cfg, 1);
        RETURN_IF_FAILED();
        check_disk_order(&f, buffers);
        RETURN_IF_FAILED();
        const struct zt_program *init = &f.plan->programs[ZT_PROG_INIT];
        CHECK_INT(count(f.train, ZT_OP_WRITE), f.plan->n_units);
        CHECK_INT(count(init, ZT_OP_WRITE), f.plan->n_units);
        for (int i = 0; i < init->n_ops; i++)
            if (init->ops[i].kind == ZT_OP_WRITE)
                check_disk_row(&f, init, i);
        RETURN_IF_FAILED();
        for (int b = 0; b < f.plan->n_bufs; b++) {
            const struct zt_buf *x = &f.plan->bufs[b];
            const bool state =
                x->cat == ZT_CAT_OPT_M || x->cat == ZT_CAT_OPT_V || x->cat == ZT_CAT_MASTER;
            if (state)
                CHECK_INT(x->arena, ZT_AR_DISK);
            CHECK(x->arena != ZT_AR_DISK || x->program < 0);
        }
    }
    teardown(&f);
}

/* Parameters alone on the drive: read before each FETCH, written after the UPDATE, here or there. */
TEST(emit_nvme_param)
{
    struct fixture f;
    setup(&f, &gpt2_fixture);
    for (int v = 0; v < 8; v++) {
        const int ranks = v & 1 ? 2 : 1;
        struct zt_plan_config cfg = plan_config(3, ranks, v & 2 ? ZT_BF16 : ZT_F32);
        cfg.offload_param = ZT_OFFLOAD_NVME;
        cfg.offload_optimizer = v & 4 ? ZT_OFFLOAD_CPU : ZT_OFFLOAD_NONE;
        emit_as(&f, &cfg, ranks - 1);
        RETURN_IF_FAILED();
        CHECK_INT(count(f.train, ZT_OP_READ), count(f.train, ZT_OP_FETCH));
        CHECK_INT(count(f.train, ZT_OP_WRITE), f.plan->n_units);
        for (int i = 0; i < f.train->n_ops; i++) {
            const struct zt_op *op = &f.train->ops[i];
            if (op->kind == ZT_OP_READ || op->kind == ZT_OP_WRITE)
                check_disk_row(&f, f.train, i);
            RETURN_IF_FAILED();
            if (op->kind == ZT_OP_FETCH) {
                CHECK_INT(f.train->ops[i - 1].kind, ZT_OP_READ);
                CHECK_INT(operand(&f, i - 1, ZT_R_HPARAM, 1)->buf,
                          operand(&f, i, ZT_R_HPARAM, 0)->buf);
            }
            if (op->kind == ZT_OP_WRITE)
                CHECK(find(f.train, v & 4 ? ZT_OP_UPDATE : ZT_OP_EVICT, op->unit) < i);
        }
    }
    teardown(&f);
}

TEST_MAIN()
