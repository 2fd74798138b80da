/*
 * tiny.h: small plans made by hand or at random, to test the passes without a model. One program
 * (ZT_PROG_TRAIN); the profile counts one FLOP as one second and nothing else takes time, so that a
 * cost is a duration.
 */
#ifndef ZT_TEST_PLAN_TINY_H
#define ZT_TEST_PLAN_TINY_H

#include "plan/plan.h"

#include "base/err.h"
#include "harness.h"

enum { R = ZT_READ, W = ZT_WRITE, RW = ZT_READ | ZT_WRITE };
static const enum zt_stream_id COMPUTE = ZT_ST_COMPUTE, COMM = ZT_ST_COMM, IN = ZT_ST_COPY_IN,
                               OUT = ZT_ST_COPY_OUT;
enum { TINY_BUFS = 64 };
static const enum zt_program_kind TINY = ZT_PROG_TRAIN;

static const struct zt_profile tiny_profile = {
    .name = "tiny", .flops = 1, .net = 1, .pcie = 1, .host = 1, .hbm = 1, .disk = 1};

static struct zt_err err;

struct tiny {
    struct zt_plan plan;
    struct zt_program *prog;
    struct zt_buf bufs[TINY_BUFS];
    size_t base[ZT_N_ARENAS];
};

static void tiny_init(struct tiny *t, bool repeats)
{
    memset(t, 0, sizeof *t);
    t->plan.bufs = t->bufs;
    t->plan.world = t->plan.n_shards = 1;
    for (int a = 0; a < ZT_N_AXES; a++)
        t->plan.cfg.mesh.size[a] = 1;
    t->plan.cfg.profile = &tiny_profile;
    t->plan.cfg.profile_known = true;
    t->prog = &t->plan.programs[TINY];
    t->prog->kind = TINY;
    t->prog->repeats = repeats;
}

static void tiny_release(struct tiny *t)
{
    free(t->prog->ops);
    free(t->prog->accesses);
    free(t->prog->waits);
}

/* A transient; n blocks of 512 bytes. */
static int tiny_buf_in(struct tiny *t, const char *name, enum zt_arena_id arena, int n)
{
    ZT_ASSERT_CMP(t->plan.n_bufs, <, TINY_BUFS);
    t->bufs[t->plan.n_bufs] = (struct zt_buf){.name = name,
                                              .cat = ZT_CAT_ACT,
                                              .arena = arena,
                                              .bytes = (size_t)n * ZT_BUF_ALIGN,
                                              .unit = -1,
                                              .mb = -1,
                                              .program = TINY};
    return t->plan.n_bufs++;
}

static inline int tiny_buf(struct tiny *t, const char *name, int n)
{
    return tiny_buf_in(t, name, ZT_AR_DEVICE, n);
}

static inline int tiny_persistent(struct tiny *t, const char *name, int n)
{
    int b = tiny_buf(t, name, n);
    t->bufs[b].program = -1;
    t->bufs[b].offset = t->base[ZT_AR_DEVICE];
    t->base[ZT_AR_DEVICE] += t->bufs[b].bytes;
    return b;
}

static int tiny_op_of(struct tiny *t, enum zt_op_kind kind, enum zt_stream_id s, double seconds)
{
    struct zt_program *g = t->prog;
    ZT_GROW(g->ops, g->n_ops + 1, g->ops_cap);
    g->ops[g->n_ops] = (struct zt_op){.kind = kind,
                                      .stream = s,
                                      .unit = -1,
                                      .segment = -1,
                                      .mb = -1,
                                      .cost_kind = seconds > 0 ? ZT_COST_FLOP : ZT_COST_NONE,
                                      .cost = seconds,
                                      .first_access = g->n_accesses};
    return g->n_ops++;
}

static inline int tiny_op(struct tiny *t, enum zt_stream_id s, double seconds)
{
    return tiny_op_of(t, s == ZT_ST_COMPUTE ? ZT_OP_FORWARD : ZT_OP_FETCH, s, seconds);
}

/* An operand of the op added last: blocks [begin, end) of a buffer. */
static void tiny_range(struct tiny *t, int buf, int mode, size_t begin, size_t end)
{
    struct zt_program *g = t->prog;
    ZT_GROW(g->accesses, g->n_accesses + 1, g->accesses_cap);
    g->accesses[g->n_accesses++] = (struct zt_access){.buf = buf,
                                                      .mode = (uint8_t)mode,
                                                      .role = ZT_R_ACT,
                                                      .begin = begin * ZT_BUF_ALIGN,
                                                      .end = end * ZT_BUF_ALIGN};
    g->ops[g->n_ops - 1].n_accesses++;
}

static inline void tiny_use(struct tiny *t, int buf, int mode)
{
    tiny_range(t, buf, mode, 0, t->bufs[buf].bytes / ZT_BUF_ALIGN);
}

/* Offsets by hand; the arena is what they need. */
static inline void tiny_place(struct tiny *t, int buf, int block)
{
    struct zt_buf *b = &t->bufs[buf];
    b->offset = (size_t)block * ZT_BUF_ALIGN;
    size_t *peak = &t->plan.ledger.peak[b->arena];
    *peak = ZT_MAX(*peak, b->offset + b->bytes);
}

static inline void tiny_set_peak(struct tiny *t)
{
    for (int b = 0; b < t->plan.n_bufs; b++)
        tiny_place(t, b, (int)(t->bufs[b].offset / ZT_BUF_ALIGN));
}

/* Pack by the lifetimes given. */
static inline void tiny_pack(struct tiny *t, const struct zt_life *life)
{
    memset(t->plan.ledger.peak, 0, sizeof t->plan.ledger.peak);
    zt_pack(&t->plan, TINY, life, t->base, t->plan.ledger.peak);
}

static inline bool has_wait(const struct tiny *t, int i, int delta, int op)
{
    const struct zt_op *o = &t->prog->ops[i];
    for (int w = o->first_wait; w < o->first_wait + o->n_waits; w++)
        if (t->prog->waits[w].delta == delta && t->prog->waits[w].op == op)
            return true;
    return false;
}

/* The verifier takes the plan, and rejects it with any one wait left out. */
static inline void check_proven(const struct tiny *t)
{
    struct zt_verifier *v;
    CHECK_OK(zt_verifier_create(&t->plan, TINY, &v, &err), err);
    CHECK_OK(zt_verifier_check_waits(v, -1, &err), err);
    for (int w = 0; w < t->prog->n_waits; w++)
        if (zt_verifier_check_waits(v, w, &err) != ZT_EVERIFY)
            FAIL("the verifier does not miss wait %d", w);
    zt_verifier_free(v);
}

static inline void check_rejected(const struct tiny *t, const char *why)
{
    CHECK_INT(zt_verify(&t->plan, &err), ZT_EVERIFY);
    if (!strstr(err.msg, why))
        FAIL("\"%s\" does not say \"%s\"", err.msg, why);
}

#endif
