#include "plan/emit.h"

/*
 * LOAD: what INIT fills, from a checkpoint. Each rank reads its own slice, also of what it holds whole: the
 * others' slices come by an all-gather, as after an UPDATE, while the next unit is read. So the ranks together
 * read a checkpoint once. Values of all units come first, then m, then v: the order in which the files have
 * them (lib/train/layout.c), of which no block is then wanted twice by the ranks that wrote them, and by others soon.
 */

/* One part of a unit's state: its staging on the way to the device, and where it lives. */
struct part {
    const char *name;
    enum zt_role staged, role;
    int home, copy;
};

static bool is_gathered(const struct zt_emit *e, int home)
{
    const struct zt_buf *b = &e->p->bufs[home];
    const int64_t padded = e->p->units[b->unit].padded_elems;
    return e->p->n_shards > 1 && b->used == (size_t)padded * zt_dtype_bytes(b->dtype);
}

static size_t staged_bytes(const struct zt_emit *e, int u)
{
    return (size_t)e->p->units[u].slice_elems * zt_dtype_bytes(ZT_F32);
}

/* LOAD_UNIT on the host, or its FETCH. */
static void begin_row(struct zt_emit *e, enum zt_op_kind kind, int u)
{
    const bool load = kind == ZT_OP_LOAD_UNIT;
    struct zt_op *op = zt_emit_op(e, kind, load ? ZT_ST_HOST : ZT_ST_COPY_IN, u, -1, -1);
    op->dtype = ZT_F32;
    op->cost_kind = load ? ZT_COST_HOST : ZT_COST_PCIE;
    op->cost = (double)staged_bytes(e, u);
}

/*
 * FETCH writes this rank's slice: to where it lives or, of what peers cannot read there, to a buffer for the
 * all-gather. Returns the one written.
 */
static int write_slice(struct zt_emit *e, const struct part *k)
{
    const struct zt_buf b = e->p->bufs[k->home];
    if (!is_gathered(e, k->home)) {
        zt_emit_whole(e, k->role, ZT_WRITE, k->home);
        return k->home;
    }
    if (b.arena == e->peer_arena) {
        zt_emit_own_slice(e, k->role, ZT_WRITE, k->home);
        return k->home;
    }
    const char *unit = e->p->units[b.unit].name;
    const int slice = zt_emit_unit_buf(
        e, b.unit, false,
        (struct zt_buf){.name = zt_arena_printf(&e->p->arena, "slice %s %s", k->name, unit),
                        .cat = ZT_CAT_STAGING,
                        .arena = e->peer_arena,
                        .dtype = b.dtype,
                        .mb = -1});
    zt_emit_whole(e, k->role, ZT_WRITE, slice);
    return slice;
}

/* The other ranks' slices of what is held whole. */
static void gather(struct zt_emit *e, const struct part *k, int slice)
{
    const struct zt_buf *b = &e->p->bufs[k->home];
    const struct zt_unit *unit = &e->p->units[b->unit];
    if (!is_gathered(e, k->home))
        return;
    struct zt_op *op = zt_emit_op(e, ZT_OP_ALLGATHER, ZT_ST_COMM, b->unit, -1, -1);
    zt_emit_collective(e, op, unit->shard_group, b->dtype, unit->slice_elems, (double)b->used);
    if (slice == k->home) {
        zt_emit_own_slice(e, k->role, ZT_READ, k->home);
        zt_emit_other_slices(e, k->role, ZT_WRITE, k->home);
    } else {
        zt_emit_whole(e, k->role, ZT_READ, slice);
        zt_emit_whole(e, k->role, ZT_WRITE, k->home);
    }
}

/* Parameters, and the master where it is not they. */
static void load_values(struct zt_emit *e, int u, const struct zt_first_bufs *f)
{
    const struct zt_unit_state *s = &e->units[u];
    const struct part param = {"param", ZT_R_HPARAM, e->rows.params_full ? ZT_R_PARAM : ZT_R_SHARD,
                               s->param, f->copies.param};
    const struct part master = {"master", ZT_R_HPARAM, ZT_R_MASTER, s->master, f->copies.master};
    const struct zt_host_copy written = {
        .param = f->copies.param, .master = f->copies.master, .m = -1, .v = -1};
    const bool fetch_param = !e->params_on_host,
               fetch_master = s->master >= 0 && !e->update_on_host;
    begin_row(e, ZT_OP_LOAD_UNIT, u);
    zt_emit_access(e, ZT_R_HPARAM, ZT_WRITE, f->staging, 0, staged_bytes(e, u));
    if (!fetch_param)
        zt_emit_first(e, param.role, param.home, param.copy);
    if (!fetch_master)
        zt_emit_first(e, master.role, master.home, master.copy);
    zt_emit_write_first(e, u, &written);
    if (!fetch_param && !fetch_master)
        return;

    begin_row(e, ZT_OP_FETCH, u);
    zt_emit_access(e, ZT_R_HPARAM, ZT_READ, f->staging, 0, staged_bytes(e, u));
    const int p = fetch_param ? write_slice(e, &param) : -1;
    const int m = fetch_master ? write_slice(e, &master) : -1;
    if (fetch_param)
        gather(e, &param, p);
    if (fetch_master)
        gather(e, &master, m);
}

/* A moment: to where the host updates it, or through the staging to the device. */
static void load_moment(struct zt_emit *e, int u, const struct part *k, int staging)
{
    const struct zt_host_copy written = {.param = -1,
                                         .master = -1,
                                         .m = k->role == ZT_R_M ? k->copy : -1,
                                         .v = k->role == ZT_R_V ? k->copy : -1};
    if (k->home < 0)
        return;
    begin_row(e, ZT_OP_LOAD_UNIT, u);
    if (e->update_on_host) {
        zt_emit_first(e, k->role, k->home, k->copy);
        zt_emit_write_first(e, u, &written);
        return;
    }
    zt_emit_access(e, k->staged, ZT_WRITE, staging, 0, staged_bytes(e, u));
    begin_row(e, ZT_OP_FETCH, u);
    zt_emit_access(e, k->staged, ZT_READ, staging, 0, staged_bytes(e, u));
    gather(e, k, write_slice(e, k));
}

void zt_emit_load(struct zt_emit *e)
{
    const struct zt_first_bufs f = zt_emit_first_begin(e, ZT_PROG_LOAD, false);
    for (int u = 0; u < e->p->n_units; u++)
        load_values(e, u, &f);
    for (int u = 0; u < e->p->n_units; u++) {
        const struct part m = {"m", ZT_R_HM, ZT_R_M, e->units[u].m, f.copies.m};
        load_moment(e, u, &m, f.staging);
    }
    for (int u = 0; u < e->p->n_units; u++) {
        const struct part v = {"v", ZT_R_HV, ZT_R_V, e->units[u].v, f.copies.v};
        load_moment(e, u, &v, f.staging);
    }
    zt_emit_first_end(e);
}
