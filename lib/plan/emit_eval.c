#include "plan/emit.h"

/*
 * Evaluation and text generation: forward passes alone, on all ranks like everything else. Both
 * load a batch of their own, so that the one that the next train step has counted stays.
 */

static void forward_all(struct zt_emit *e, struct zt_compute *c)
{
    const int n = e->p->model->n_segments;
    struct zt_step *steps = zt_arena_alloc(&e->scratch, (size_t)n, sizeof *steps);
    for (int s = 0; s < n; s++)
        steps[s] = (struct zt_step){.segment = s};
    struct zt_gathers gathers;
    zt_gathers_plan(e, steps, n, &gathers);
    for (int s = 0; s < n; s++) {
        zt_emit_gathers(e, steps, s, &gathers);
        zt_emit_pass(e, c, &steps[s], &gathers);
        zt_emit_releases(e, &steps[s], s, &gathers);
    }
    zt_gathers_release(&gathers);
}

static void emit_result(struct zt_emit *e, enum zt_role role, int from, int to)
{
    struct zt_op *op = zt_emit_op(e, ZT_OP_RESULT, ZT_ST_COPY_OUT, -1, -1, -1);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[to].used;
    zt_emit_whole(e, role, ZT_READ, from);
    zt_emit_whole(e, ZT_R_RESULT, ZT_WRITE, to);
}

void zt_emit_eval(struct zt_emit *e)
{
    const struct zt_plan *p = e->p;
    const size_t count_begin = offsetof(struct zt_eval_record, count);
    const size_t record = sizeof(struct zt_eval_record);
    zt_emit_begin(e, ZT_PROG_EVAL, p->cfg.eval_micro_batch, false);
    zt_emit_load_batch(e, &e->eval_batch);

    zt_emit_op(e, ZT_OP_COUNT, ZT_ST_COMM, -1, -1, -1)->dtype = ZT_I64;
    zt_emit_whole(e, ZT_R_BATCH, ZT_READ, e->eval_batch.dev);
    zt_emit_access(e, ZT_R_COUNT, ZT_WRITE, e->eval_record, count_begin, record);

    struct zt_compute c = zt_compute_new(e, &e->eval_batch, false);
    c.loss = c.count = e->eval_record;
    c.loss_begin = offsetof(struct zt_eval_record, loss_sum);
    c.count_begin = count_begin;
    forward_all(e, &c);

    const size_t ranks = (size_t)zt_group_size(&p->cfg.mesh, ZT_GROUP_DATA);
    const int all = zt_emit_buf(e, (struct zt_buf){.name = "all eval records",
                                                   .cat = ZT_CAT_CONTROL,
                                                   .arena = ZT_AR_DEVICE,
                                                   .used = ranks * record,
                                                   .dtype = ZT_F64,
                                                   .unit = -1,
                                                   .mb = -1});
    struct zt_op *op = zt_emit_op(e, ZT_OP_NORM, ZT_ST_COMM, -1, -1, -1);
    zt_emit_collective(e, op, ZT_GROUP_DATA, ZT_F64, (int64_t)(record / sizeof(double)),
                       (double)(ranks * record));
    zt_emit_whole(e, ZT_R_LOSS, ZT_READ, e->eval_record);
    zt_emit_whole(e, ZT_R_PARTIALS_ALL, ZT_WRITE, all);
    emit_result(e, ZT_R_PARTIALS_ALL, all, e->eval_result);
}

void zt_emit_generate(struct zt_emit *e)
{
    zt_emit_begin(e, ZT_PROG_GENERATE, 1, false);
    zt_emit_load_batch(e, &e->sample_batch);
    struct zt_compute c = zt_compute_new(e, &e->sample_batch, false);
    c.logits = zt_emit_buf(e, (struct zt_buf){.name = "logits",
                                              .cat = ZT_CAT_ACT,
                                              .arena = ZT_AR_DEVICE,
                                              .used = e->p->bufs[e->logits_result].used,
                                              .dtype = ZT_F32,
                                              .unit = -1,
                                              .mb = -1});
    forward_all(e, &c);
    emit_result(e, ZT_R_LOGITS, c.logits, e->logits_result);
}
