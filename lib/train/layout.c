#include "train/save.h"

/*
 * Files hold what the members of the shard group own: file r is the r-th slice of every unit, first the
 * values of all parameters, then m, then v. State that is replicated is written once, by its slices.
 */

/* The persistent buffer with a part of a unit's state; -1: none. */
static int state_buf(const struct zt_plan *p, int unit, enum zt_ckpt_part_kind part)
{
    static const enum zt_cat cats[ZT_CKPT_N_PARTS] = {
        [ZT_CKPT_PARAM] = ZT_CAT_PARAM, [ZT_CKPT_M] = ZT_CAT_OPT_M, [ZT_CKPT_V] = ZT_CAT_OPT_V};
    int found = -1;
    for (int b = 0; b < p->n_bufs; b++) {
        const struct zt_buf *buf = &p->bufs[b];
        if (buf->program >= 0 || buf->unit != unit)
            continue;
        if (part == ZT_CKPT_PARAM && buf->cat == ZT_CAT_MASTER)
            return b;
        if (buf->cat == cats[part])
            found = b;
    }
    return found;
}

/* SAVE's copy of a buffer; -1: the plan has no SAVE. */
static int snapshot_of(const struct zt_plan *p, int state)
{
    const struct zt_program *save = &p->programs[ZT_PROG_SAVE];
    for (int i = 0; i < save->n_ops; i++) {
        const struct zt_access *a = &save->accesses[save->ops[i].first_access];
        if (a[0].buf == state)
            return a[1].buf;
    }
    return -1;
}

/* One part of one unit, while the files are laid out. */
struct part {
    const struct zt_plan *p;
    const struct zt_unit *unit;
    enum zt_ckpt_part_kind kind;
    int state, snapshot;
};

/* Elements of the unit's i-th parameter that lie in slice r; false: none do. */
static bool slice_range(const struct part *k, int i, int r, int64_t *begin, int64_t *end)
{
    const struct zt_unit *u = k->unit;
    const int64_t lo = r * u->slice_elems, off = u->param_off[i];
    const int64_t n = k->p->model->params[u->first_param + i].n_elems;
    *begin = ZT_MAX(lo - off, (int64_t)0);
    *end = ZT_MIN(lo + u->slice_elems - off, n);
    return *begin < *end;
}

static void add_source(struct zt_layout *l, const struct part *k, int i, int64_t begin, int64_t end)
{
    const struct zt_buf *b = &k->p->bufs[k->state];
    const struct zt_unit *u = k->unit;
    const size_t elem = zt_dtype_bytes(b->dtype);
    const int64_t own = k->p->shard_rank * u->slice_elems, at = u->param_off[i] + begin;
    const bool full = b->used == (size_t)u->padded_elems * elem;
    l->sources[l->n] =
        (struct zt_save_source){.state = k->state,
                                .state_offset = (size_t)(full ? at : at - own) * elem,
                                .snapshot = k->snapshot,
                                .slice_offset = (size_t)(at - own) * elem,
                                .bytes = (size_t)(end - begin) * elem};
}

/* The pieces of file r; with `mine`, their sources too. Returns how many. */
static int list_pieces(struct zt_layout *l, const struct zt_plan *p, const int *states,
                       const int *snapshots, int r, struct zt_shard_piece *pieces, bool mine)
{
    int n = 0;
    for (int kind = 0; kind < ZT_CKPT_N_PARTS; kind++) {
        for (int u = 0; u < p->n_units; u++) {
            const int at = u * ZT_CKPT_N_PARTS + kind;
            const struct part k = {p, &p->units[u], (enum zt_ckpt_part_kind)kind, states[at],
                                   snapshots[at]};
            for (int i = 0; i < k.unit->n_params && k.state >= 0; i++) {
                int64_t begin, end;
                if (!slice_range(&k, i, r, &begin, &end))
                    continue;
                if (mine) {
                    l->n = n;
                    add_source(l, &k, i, begin, end);
                }
                pieces[n++] =
                    (struct zt_shard_piece){k.kind, &l->m.tensors[k.unit->first_param + i],
                                            p->bufs[k.state].dtype, begin, end};
            }
        }
    }
    return n;
}

static void describe_tensors(const struct zt_plan *p, struct zt_manifest *m)
{
    m->n_tensors = p->model->n_params;
    m->tensors = zt_arena_alloc(&m->arena, (size_t)m->n_tensors, sizeof *m->tensors);
    for (int i = 0; i < m->n_tensors; i++) {
        const struct zt_param_spec *s = &p->model->params[i];
        struct zt_ckpt_tensor *t = &m->tensors[i];
        t->name = zt_arena_strdup(&m->arena, s->name);
        t->n_dims = s->n_dims;
        memcpy(t->dims, s->dims, (size_t)s->n_dims * sizeof *s->dims);
        t->n_elems = s->n_elems;
        for (int k = 0; k < ZT_CKPT_N_PARTS; k++)
            t->parts[k].pieces =
                zt_arena_alloc(&m->arena, (size_t)p->n_shards, sizeof *t->parts[k].pieces);
    }
}

static void add_file(struct zt_manifest *m, int file, const struct zt_shard_piece *pieces, int n,
                     struct zt_str *header)
{
    struct zt_ckpt_file *f = &m->files[file];
    size_t *offsets = zt_xcalloc((size_t)n + 1, sizeof *offsets);
    f->name = zt_arena_printf(&m->arena, "rank-%05d.safetensors", file);
    zt_shard_header(pieces, n, header, offsets, &f->bytes);
    f->n_sums = (f->bytes + m->block_bytes - 1) / m->block_bytes;
    f->sums = zt_arena_alloc(&m->arena, f->n_sums, sizeof *f->sums);
    for (int i = 0; i < n; i++) {
        const struct zt_shard_piece *p = &pieces[i];
        struct zt_ckpt_part *part = &m->tensors[p->tensor - m->tensors].parts[p->part];
        part->dtype = p->dtype;
        part->pieces[part->n++] = (struct zt_ckpt_piece){file, p->begin, p->end, offsets[i]};
    }
    free(offsets);
}

void zt_layout_make(const struct zt_plan *p, struct zt_layout *l)
{
    const size_t n_parts = (size_t)p->n_units * ZT_CKPT_N_PARTS;
    const size_t most = (size_t)p->model->n_params * ZT_CKPT_N_PARTS;
    int *states = zt_xcalloc(n_parts, sizeof *states);
    int *snapshots = zt_xcalloc(n_parts, sizeof *snapshots);
    struct zt_shard_piece *pieces = zt_xcalloc(most, sizeof *pieces);
    memset(l, 0, sizeof *l);
    struct zt_manifest *m = &l->m;
    m->mesh = p->cfg.mesh;
    m->stage = p->cfg.stage;
    m->dtype = p->cfg.dtype;
    m->block_bytes = ZT_CKPT_BLOCK_BYTES;
    m->n_files = p->n_shards;
    m->files = zt_arena_alloc(&m->arena, (size_t)m->n_files, sizeof *m->files);
    l->pieces = zt_arena_alloc(&m->arena, most, sizeof *l->pieces);
    l->sources = zt_arena_alloc(&m->arena, most, sizeof *l->sources);
    describe_tensors(p, m);
    for (size_t i = 0; i < n_parts; i++) {
        states[i] =
            state_buf(p, (int)i / ZT_CKPT_N_PARTS, (enum zt_ckpt_part_kind)(i % ZT_CKPT_N_PARTS));
        snapshots[i] = states[i] < 0 ? -1 : snapshot_of(p, states[i]);
    }
    for (int r = 0; r < p->n_shards; r++) {
        const bool mine = r == p->shard_rank;
        struct zt_str header = {0};
        int n = list_pieces(l, p, states, snapshots, r, mine ? l->pieces : pieces, mine);
        if (mine)
            l->n = n;
        add_file(m, r, mine ? l->pieces : pieces, n, mine ? &l->header : &header);
        zt_str_release(&header);
    }
    free(states);
    free(snapshots);
    free(pieces);
}

void zt_layout_release(struct zt_layout *l)
{
    zt_str_release(&l->header);
    zt_manifest_release(&l->m);
    memset(l, 0, sizeof *l);
}
