#include "plan/plan.h"

#include "base/size.h"

/* A unit that more than one segment uses is tied: its gradient is held until the last has added. */
static void mark_tied(struct zt_plan *p)
{
    const struct zt_model *m = p->model;
    int *user = zt_xcalloc((size_t)p->n_units, sizeof *user); /* segment + 1 */
    for (int s = 0; s < m->n_segments; s++) {
        const struct zt_segment *seg = &m->segments[s];
        for (int i = 0; i < seg->n_params; i++) {
            int u = p->unit_of_param[seg->params[i]];
            if (user[u] && user[u] != s + 1)
                p->units[u].tied = true;
            user[u] = s + 1;
        }
    }
    free(user);
}

static void layout_unit(struct zt_plan *p, struct zt_unit *u)
{
    const struct zt_param_spec *params = &p->model->params[u->first_param];
    int64_t *off = zt_arena_alloc(&p->arena, (size_t)u->n_params, sizeof *off);
    int64_t end = 0;
    u->frozen = true;
    for (int i = 0; i < u->n_params; i++) {
        u->frozen &= !params[i].trainable;
        off[i] = zt_align_i64(end, ZT_ELEM_ALIGN);
        end = off[i] + params[i].n_elems;
        u->n_elems += params[i].n_elems;
        u->grad_fp32 |= params[i].scattered;
    }
    u->param_off = off;
    u->padded_elems = zt_align_i64(end, (int64_t)ZT_ELEM_ALIGN * p->n_shards);
    u->slice_elems = u->padded_elems / p->n_shards;
    u->shard_group = ZT_GROUP_SHARD;
    u->replica_group = ZT_GROUP_REPLICATE;
}

void zt_plan_units(struct zt_plan *p)
{
    const struct zt_model *m = p->model;
    p->units = zt_arena_alloc(&p->arena, (size_t)m->n_segments, sizeof *p->units);
    p->unit_of_param = zt_arena_alloc(&p->arena, (size_t)m->n_params, sizeof *p->unit_of_param);
    p->n_units = 0;
    int home = -1;
    for (int i = 0; i < m->n_params; i++) {
        ZT_ASSERT_CMP(m->params[i].home_segment, >=, home); /* params are in segment order */
        if (m->params[i].home_segment != home) {
            home = m->params[i].home_segment;
            ZT_ASSERT_CMP(p->n_units, <, m->n_segments);
            p->units[p->n_units++] =
                (struct zt_unit){.name = m->segments[home].name, .first_param = i};
        }
        p->units[p->n_units - 1].n_params++;
        p->unit_of_param[i] = p->n_units - 1;
    }
    p->n_partials = 0;
    for (int u = 0; u < p->n_units; u++) {
        layout_unit(p, &p->units[u]);
        p->units[u].partial = p->units[u].frozen ? -1 : p->n_partials++;
    }
    mark_tied(p);
    for (int u = 0; u < p->n_units; u++)
        p->units[u].grad_fp32 |= p->units[u].tied;
}
