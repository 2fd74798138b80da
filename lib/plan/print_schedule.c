#include "plan/print.h"

const char *zt_op_subject(const struct zt_plan *p, const struct zt_op *op)
{
    if (op->unit >= 0)
        return p->units[op->unit].name;
    if (op->segment >= 0)
        return p->model->segments[op->segment].name;
    return "";
}

const char *zt_mode_name(int mode)
{
    static const char *const names[] = {"", "r", "w", "rw"};
    return names[mode & (ZT_READ | ZT_WRITE)];
}

const char *zt_role_name(enum zt_role r)
{
    static const char *const names[ZT_N_ROLES] = {
        [ZT_R_PARAM] = "param",   [ZT_R_SHARD] = "shard",
        [ZT_R_GRAD] = "grad",     [ZT_R_GSHARD] = "gshard",
        [ZT_R_CAST] = "cast",     [ZT_R_STAGE] = "stage",
        [ZT_R_MASTER] = "master", [ZT_R_M] = "m",
        [ZT_R_V] = "v",           [ZT_R_X_IN] = "x_in",
        [ZT_R_X_OUT] = "x_out",   [ZT_R_ACT] = "act",
        [ZT_R_INNER] = "inner",   [ZT_R_HX] = "hx",
        [ZT_R_DX_OUT] = "dx_out", [ZT_R_DX_IN] = "dx_in",
        [ZT_R_TMP] = "tmp",       [ZT_R_BATCH] = "batch",
        [ZT_R_HBATCH] = "hbatch", [ZT_R_COUNT] = "count",
        [ZT_R_LOSS] = "loss",     [ZT_R_PARTIAL] = "partial",
        [ZT_R_STEP] = "step",     [ZT_R_PARTIALS_ALL] = "partials_all",
        [ZT_R_VOTE] = "vote",     [ZT_R_REQUEST] = "request",
        [ZT_R_RESULT] = "result", [ZT_R_LOGITS] = "logits",
        [ZT_R_HGRAD] = "hgrad",   [ZT_R_HPARAM] = "hparam",
    };
    return names[r];
}

const char *zt_cost_name(enum zt_cost_kind k)
{
    static const char *const names[ZT_N_COSTS] = {
        "", "FLOP", "net bytes", "bus bytes", "host bytes", "memory bytes", "disk bytes"};
    return names[k];
}

const char *zt_group_name(zt_axes group)
{
    switch (group) {
    case 0:
        return "";
    case ZT_GROUP_SHARD:
        return "shard";
    case ZT_GROUP_REPLICATE:
        return "replicate";
    case ZT_GROUP_DATA:
        return "data";
    case ZT_GROUP_WORLD:
        return "world";
    default:
        return "other";
    }
}

static void print_op(const struct zt_plan *p, const struct zt_program *g, int i, struct zt_str *out)
{
    const struct zt_op *op = &g->ops[i];
    zt_str_printf(out, "%6d  %-9s%-11s%s", i, zt_stream_name(op->stream), zt_op_kind_name(op->kind),
                  zt_op_subject(p, op));
    if (op->mb >= 0)
        zt_str_printf(out, " mb%d", op->mb);
    if (op->group)
        zt_str_printf(out, "; %lld %s over %s", (long long)op->count, zt_dtype_name(op->dtype),
                      zt_group_name(op->group));
    if (op->cost_kind != ZT_COST_NONE)
        zt_str_printf(out, "; %.4g %s", op->cost, zt_cost_name(op->cost_kind));
    if (op->predicate == ZT_IF_APPLY)
        zt_str_puts(out, "; if the step is applied");
    for (int w = 0; w < op->n_waits; w++) {
        const struct zt_wait *wait = &g->waits[op->first_wait + w];
        zt_str_printf(out, "%s %d%s", w ? "," : "; after", wait->op,
                      wait->delta ? " of the run before" : "");
    }
    zt_str_puts(out, "\n");
    for (int a = 0; a < op->n_accesses; a++) {
        const struct zt_access *x = &g->accesses[op->first_access + a];
        const struct zt_buf *b = &p->bufs[x->buf];
        zt_str_printf(out, "%19s %-13s%s [%zu, %zu)  %s\n", zt_mode_name(x->mode),
                      zt_role_name(x->role), zt_arena_name(b->arena), b->offset + x->begin,
                      b->offset + x->end, b->name);
    }
}

void zt_plan_print_schedule(const struct zt_plan *p, struct zt_str *out)
{
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        const struct zt_program *g = &p->programs[k];
        if (g->n_ops == 0)
            continue;
        zt_str_printf(out, "%sprogram %s: %d rows, %d waits, %s; %.4g ms by profile \"%s\"\n",
                      k ? "\n" : "", zt_program_name(g->kind), g->n_ops, g->n_waits,
                      g->repeats ? "repeats" : "runs once", g->time_s * 1e3, p->cfg.profile->name);
        for (int i = 0; i < g->n_ops; i++)
            print_op(p, g, i, out);
    }
}
