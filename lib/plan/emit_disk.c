#include "plan/emit.h"

/*
 * Rows between a disk and host memory. What lives on the disk is read into a copy on the host, and from
 * there on everything is as if it lived there; the copy is written back when it has changed.
 */

static struct zt_op *begin_row(struct zt_emit *e, enum zt_op_kind kind, int u, int mb)
{
    const enum zt_stream_id stream = kind == ZT_OP_READ ? ZT_ST_DISK_IN : ZT_ST_DISK_OUT;
    struct zt_op *op = zt_emit_op(e, kind, stream, u, -1, mb);
    op->cost_kind = ZT_COST_DISK;
    return op;
}

/* One pair of operands: the whole buffer on the disk, and as much of the one on the host. */
static void pair(struct zt_emit *e, struct zt_op *op, enum zt_role role, int from, int to)
{
    const struct zt_buf *bufs = e->p->bufs;
    const size_t bytes = bufs[bufs[from].arena == ZT_AR_DISK ? from : to].used;
    op->cost += (double)bytes;
    zt_emit_access(e, role, ZT_READ, from, 0, bytes);
    zt_emit_access(e, role, ZT_WRITE, to, 0, bytes);
}

/* Room on the host for what lives on the disk in `home`. */
static int new_copy(struct zt_emit *e, int home, const char *name, int mb)
{
    const struct zt_buf *b = &e->p->bufs[home];
    const struct zt_unit *unit = &e->p->units[b->unit];
    const bool full = b->used == (size_t)unit->padded_elems * zt_dtype_bytes(b->dtype);
    return zt_emit_unit_buf(
        e, b->unit, full,
        (struct zt_buf){
            .name = name, .cat = ZT_CAT_STAGING, .arena = ZT_AR_HOST, .dtype = b->dtype, .mb = mb});
}

/* A copy of what lives on the disk; what lives on the host is its own. */
static int copy_of(struct zt_emit *e, int home)
{
    if (home < 0 || e->p->bufs[home].arena != ZT_AR_DISK)
        return home;
    const char *name = zt_arena_printf(&e->p->arena, "host %s", e->p->bufs[home].name);
    return new_copy(e, home, name, -1);
}

void zt_emit_read_state(struct zt_emit *e, int u)
{
    struct zt_unit_state *s = &e->units[u];
    s->copy = (struct zt_host_copy){
        .param = -1, .master = copy_of(e, s->master), .m = copy_of(e, s->m), .v = copy_of(e, s->v)};
    if (e->param_arena == ZT_AR_HOST || (e->param_arena == ZT_AR_DISK && s->master < 0))
        s->copy.param = copy_of(e, s->param); /* is its own master: it is read too */
    if (e->state_arena != ZT_AR_DISK)
        return;
    struct zt_op *op = begin_row(e, ZT_OP_READ, u, -1);
    if (s->master >= 0)
        pair(e, op, ZT_R_MASTER, s->master, s->copy.master);
    pair(e, op, ZT_R_M, s->m, s->copy.m);
    if (s->v >= 0)
        pair(e, op, ZT_R_V, s->v, s->copy.v);
    if (s->copy.param >= 0 && s->copy.param != s->param)
        pair(e, op, ZT_R_HPARAM, s->param, s->copy.param);
}

static bool goes_back(const struct zt_emit *e, int from, int home)
{
    return from >= 0 && home >= 0 && e->p->bufs[home].arena == ZT_AR_DISK;
}

/* States and parameters that live on the disk and have a copy in `from`. */
static void write_row(struct zt_emit *e, int u, const struct zt_host_copy *from,
                      enum zt_predicate predicate)
{
    const struct zt_unit_state *s = &e->units[u];
    const struct {
        enum zt_role role;
        int from, home;
    } parts[] = {{ZT_R_MASTER, from->master, s->master},
                 {ZT_R_M, from->m, s->m},
                 {ZT_R_V, from->v, s->v},
                 {ZT_R_HPARAM, from->param, s->param}};
    struct zt_op *op = NULL;
    for (size_t i = 0; i < ZT_ARRAY_LEN(parts); i++) {
        if (!goes_back(e, parts[i].from, parts[i].home))
            continue;
        if (!op) {
            op = begin_row(e, ZT_OP_WRITE, u, -1);
            op->predicate = predicate;
        }
        pair(e, op, parts[i].role, parts[i].from, parts[i].home);
    }
}

void zt_emit_write_state(struct zt_emit *e, int u)
{
    write_row(e, u, &e->units[u].copy, ZT_IF_APPLY);
}

void zt_emit_write_first(struct zt_emit *e, int u, const struct zt_host_copy *from)
{
    write_row(e, u, from, ZT_ALWAYS);
}

int zt_emit_read_param(struct zt_emit *e, int u, const char *name, int mb)
{
    const int home = e->units[u].param, copy = new_copy(e, home, name, mb);
    struct zt_op *op = begin_row(e, ZT_OP_READ, u, mb);
    pair(e, op, ZT_R_HPARAM, home, copy);
    return copy;
}
