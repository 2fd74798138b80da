/* Values that come from the host or go there: LOAD_UNIT, FETCH, EVICT, SAVE_UNIT. */
#include "train/handlers.h"

#include "train/save.h"

struct fill_task {
    const struct zt_source *source;
    const struct zt_plan *plan;
    int unit;
    bool load;
    enum zt_ckpt_part_kind part;
    int64_t begin, n;
    float *out;
};

/* A checkpoint that cannot be read is no failure of the stream: another one may be tried. */
static int fill_unit_task(void *p, struct zt_err *err)
{
    const struct fill_task *t = p;
    (void)err;
    if (t->load)
        zt_load_fill(t->source->load, t->plan, t->unit, t->part, t->begin, t->n, t->out);
    else
        zt_source_fill(t->source, t->plan, t->unit, t->begin, t->n, t->out);
    return 0;
}

/* The staged range: the whole unit where this rank holds it whole, else its slice. */
static void staged_range(const struct zt_plan *p, int unit, const struct zt_access *staging,
                         int64_t *begin, int64_t *n)
{
    const struct zt_unit *u = &p->units[unit];
    *n = (int64_t)((staging->end - staging->begin) / sizeof(float));
    *begin = *n == u->padded_elems ? 0 : p->shard_rank * u->slice_elems;
}

/* Copy the part of the staged values that a destination of `n` elements holds. */
static void fetch_into(const struct zt_op_ctx *c, const struct zt_access *dst, int64_t begin,
                       int64_t n)
{
    const struct zt_buf *b = zt_op_buf(c, dst);
    struct zt_ref to = {zt_engine_at(c->e, dst), b->dtype};
    int64_t elems = (int64_t)((dst->end - dst->begin) / zt_dtype_bytes(b->dtype));
    int64_t first = elems == zt_op_unit(c)->padded_elems
                        ? 0
                        : c->e->plan->shard_rank * zt_op_unit(c)->slice_elems;
    ZT_ASSERT_CMP(first, >=, begin);
    ZT_ASSERT_CMP(first + elems, <=, begin + n);
    struct zt_ref from = {(float *)zt_op_arg(c, ZT_R_HPARAM, 0) + (first - begin), ZT_F32};
    c->dev->cast(c->s, &(struct zt_cast){elems, from, to, false});
}

/* The op's other operands get their first values from the staged ones; moments begin at zero. */
static void place_values(const struct zt_op_ctx *c)
{
    const struct zt_access *staging = zt_op_operand(c->prog, c->op, ZT_R_HPARAM, 0);
    int64_t begin, n;
    staged_range(c->e->plan, c->op->unit, staging, &begin, &n);
    for (int i = 0; i < c->op->n_accesses; i++) {
        const struct zt_access *a = &c->prog->accesses[c->op->first_access + i];
        if (a->role == ZT_R_M || a->role == ZT_R_V)
            c->dev->zero(c->s, &(struct zt_zero){zt_engine_at(c->e, a), a->end - a->begin});
        else if (a->role != ZT_R_HPARAM)
            fetch_into(c, a, begin, n);
    }
}

/* What the row loads: values, or in LOAD a moment, staged or where it lives. */
static const struct zt_access *loaded(const struct zt_program *prog, const struct zt_op *op,
                                      enum zt_ckpt_part_kind *part)
{
    static const struct {
        enum zt_role role;
        enum zt_ckpt_part_kind part;
    } kinds[] = {{ZT_R_HPARAM, ZT_CKPT_PARAM},
                 {ZT_R_HM, ZT_CKPT_M},
                 {ZT_R_HV, ZT_CKPT_V},
                 {ZT_R_M, ZT_CKPT_M},
                 {ZT_R_V, ZT_CKPT_V}};
    const struct zt_access *a = NULL;
    for (size_t i = 0; i < ZT_ARRAY_LEN(kinds) && !a; i++) {
        a = zt_op_operand(prog, op, kinds[i].role, 0);
        *part = kinds[i].part;
    }
    return a;
}

void zt_do_load_unit(const struct zt_op_ctx *c)
{
    struct fill_task t = {.source = c->e->source,
                          .plan = c->e->plan,
                          .unit = c->op->unit,
                          .load = c->prog->kind == ZT_PROG_LOAD};
    const struct zt_access *to = loaded(c->prog, c->op, &t.part);
    staged_range(t.plan, t.unit, to, &t.begin, &t.n);
    t.out = (float *)(void *)zt_engine_at(c->e, to);
    c->dev->host_call(c->s, fill_unit_task, &t, sizeof t);
    if (t.part == ZT_CKPT_PARAM)
        place_values(c);
}

void zt_load_read_ahead(struct zt_load *l, const struct zt_plan *p)
{
    const struct zt_program *prog = &p->programs[ZT_PROG_LOAD];
    for (int i = 0; i < prog->n_ops; i++) {
        enum zt_ckpt_part_kind part;
        int64_t begin, n;
        if (prog->ops[i].kind != ZT_OP_LOAD_UNIT)
            continue;
        const struct zt_access *to = loaded(prog, &prog->ops[i], &part);
        staged_range(p, prog->ops[i].unit, to, &begin, &n);
        zt_load_expect(l, p, prog->ops[i].unit, part, begin, n);
    }
    zt_ckpt_read_ahead(&l->ckpt);
}

/* EVICT, SAVE_UNIT, and FETCH of a step: the same elements in the same type on the other side. */
void zt_do_move(const struct zt_op_ctx *c)
{
    const struct zt_access *a = &c->prog->accesses[c->op->first_access];
    ZT_ASSERT_CMP(c->op->n_accesses, ==, 2);
    ZT_ASSERT_CMP(a[0].end - a[0].begin, ==, a[1].end - a[1].begin);
    struct zt_copy copy = {zt_engine_at(c->e, &a[1]), zt_engine_at(c->e, &a[0]),
                           a[0].end - a[0].begin};
    c->dev->copy(c->s, &copy);
}

void zt_do_fetch(const struct zt_op_ctx *c)
{
    const bool moment = zt_op_arg(c, ZT_R_HM, 0) || zt_op_arg(c, ZT_R_HV, 0);
    if (!zt_gives_values(c->prog) || moment) {
        zt_do_move(c);
    } else if (c->op->unit < 0) {
        struct zt_copy a = {zt_op_arg(c, ZT_R_STEP, 0), &c->e->initial, sizeof c->e->initial};
        c->dev->copy(c->s, &a);
    } else {
        place_values(c);
    }
}
