#include "plan/emit.h"

/*
 * Checkpoints: SAVE copies the state aside, AGREE tells every rank what the others have to say between two
 * steps. LOAD, which brings it back, is in emit_load.c.
 */

/* A host buffer for this rank's slice of `of`; -1 where there is no such state. */
static int snapshot_buf(struct zt_emit *e, int u, const char *what, int of)
{
    if (of < 0)
        return -1;
    const struct zt_unit *unit = &e->p->units[u];
    return zt_emit_unit_buf(
        e, u, false,
        (struct zt_buf){.name = zt_arena_printf(&e->p->arena, "snapshot %s %s", what, unit->name),
                        .cat = ZT_CAT_SNAPSHOT,
                        .arena = ZT_AR_HOST,
                        .dtype = e->p->bufs[of].dtype,
                        .mb = -1});
}

void zt_emit_snapshot(struct zt_emit *e)
{
    e->prog = NULL;
    for (int u = 0; u < e->p->n_units; u++) {
        struct zt_unit_state *s = &e->units[u];
        s->snap_param = snapshot_buf(e, u, "param", zt_emit_values(s));
        s->snap_m = snapshot_buf(e, u, "m", s->m);
        s->snap_v = snapshot_buf(e, u, "v", s->v);
    }
}

/* One part of a unit's state, whose home decides how it is read. */
static void save_part(struct zt_emit *e, int u, enum zt_role role, int buf, int snapshot)
{
    if (buf < 0)
        return;
    const struct zt_buf b = e->p->bufs[buf];
    const struct zt_unit *unit = &e->p->units[u];
    const bool on_host = b.arena == ZT_AR_HOST;
    const bool full = b.used == (size_t)unit->padded_elems * zt_dtype_bytes(b.dtype);
    struct zt_op *op =
        zt_emit_op(e, ZT_OP_SAVE_UNIT, on_host ? ZT_ST_HOST : ZT_ST_COPY_OUT, u, -1, -1);
    op->dtype = b.dtype;
    op->cost_kind = on_host ? ZT_COST_HOST : ZT_COST_PCIE;
    op->cost = (double)e->p->bufs[snapshot].used;
    if (full)
        zt_emit_own_slice(e, role, ZT_READ, buf);
    else
        zt_emit_whole(e, role, ZT_READ, buf);
    zt_emit_whole(e, ZT_R_SNAPSHOT, ZT_WRITE, snapshot);
}

void zt_emit_save(struct zt_emit *e)
{
    zt_emit_begin(e, ZT_PROG_SAVE, e->p->cfg.micro_batch, true);
    const enum zt_role param = e->rows.params_full ? ZT_R_PARAM : ZT_R_SHARD;
    for (int u = 0; u < e->p->n_units; u++) {
        const struct zt_unit_state *s = &e->units[u];
        save_part(e, u, s->master >= 0 ? ZT_R_MASTER : param, zt_emit_values(s), s->snap_param);
        save_part(e, u, ZT_R_M, s->m, s->snap_m);
        save_part(e, u, ZT_R_V, s->v, s->snap_v);
    }
}

void zt_emit_agree(struct zt_emit *e)
{
    const size_t vote = offsetof(struct zt_step_result, vote);
    zt_emit_begin(e, ZT_PROG_AGREE, e->p->cfg.micro_batch, true);
    zt_emit_vote(e);
    struct zt_op *op = zt_emit_op(e, ZT_OP_RESULT, ZT_ST_COPY_OUT, -1, -1, -1);
    op->cost_kind = ZT_COST_PCIE;
    op->cost = sizeof(struct zt_vote);
    zt_emit_whole(e, ZT_R_VOTE, ZT_READ, e->vote);
    zt_emit_access(e, ZT_R_RESULT, ZT_WRITE, e->result, vote, vote + sizeof(struct zt_vote));
}
