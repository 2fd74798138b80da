/* Batches: LOAD_BATCH, COPY_BATCH, COUNT. */
#include "train/handlers.h"

struct load_task {
    const struct zt_feed *feed;
    int64_t batch;
    int32_t *hbatch;
};

static int load_batch_task(void *p, struct zt_err *err)
{
    const struct load_task *t = p;
    return zt_feed_fill(t->feed, t->batch, t->hbatch, err);
}

struct prompt_task {
    int32_t *hbatch;
    int64_t seq_len;
    const int32_t *tokens;
};

/* A prompt is one row; nothing is learnt from it. */
static int load_prompt_task(void *p, struct zt_err *err)
{
    const struct prompt_task *t = p;
    (void)err;
    for (int64_t i = 0; i < t->seq_len; i++) {
        t->hbatch[i] = t->tokens[i];
        t->hbatch[t->seq_len + i] = ZT_IGNORE_TARGET;
        t->hbatch[2 * t->seq_len + i] = (int32_t)i;
        t->hbatch[3 * t->seq_len + i] = 0;
    }
    return 0;
}

void zt_do_load_batch(const struct zt_op_ctx *c)
{
    struct zt_engine *e = c->e;
    if (c->prog->kind == ZT_PROG_GENERATE) {
        struct prompt_task t = {zt_op_arg(c, ZT_R_HBATCH, 0), e->plan->cfg.seq_len, e->prompt};
        c->dev->host_call(c->s, load_prompt_task, &t, sizeof t);
        return;
    }
    struct load_task t = {c->prog->kind == ZT_PROG_EVAL ? e->feed_eval : e->feed_train,
                          e->next_batch, zt_op_arg(c, ZT_R_HBATCH, 0)};
    c->dev->host_call(c->s, load_batch_task, &t, sizeof t);
}

void zt_do_copy_batch(const struct zt_op_ctx *c)
{
    const struct zt_access *src = zt_op_operand(c->prog, c->op, ZT_R_HBATCH, 0);
    struct zt_copy a = {zt_op_arg(c, ZT_R_BATCH, 0), zt_op_arg(c, ZT_R_HBATCH, 0),
                        src->end - src->begin};
    c->dev->copy(c->s, &a);
}

static int n_micro_batches(const struct zt_op_ctx *c)
{
    bool train = c->prog->kind == ZT_PROG_TRAIN || zt_gives_values(c->prog);
    return train ? c->e->plan->cfg.accum : 1;
}

/* tokens over all micro-batches of this rank, then over all ranks. */
void zt_do_count(const struct zt_op_ctx *c)
{
    struct zt_count *count = zt_op_arg(c, ZT_R_COUNT, 0);
    const int32_t *batch = zt_op_arg(c, ZT_R_BATCH, 0);
    int64_t plane = zt_op_plane_elems(c);
    for (int m = 0; m < n_micro_batches(c); m++) {
        struct zt_count_targets a = {plane, batch + (4 * m + 1) * plane, count, m > 0};
        c->dev->count_targets(c->s, &a);
    }
    if (c->op->group)
        zt_all_reduce(c->e->coll, c->s, c->op->group, &count->tokens, &count->tokens, 1, ZT_I64,
                      ZT_SUM);
    c->dev->count_finish(c->s, &(struct zt_count_finish){count});
}
