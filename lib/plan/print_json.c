#include "plan/print.h"

#include <jansson.h>

/*
 * The same content as the tables and the schedule. jansson returns NULL only when memory runs out,
 * and then the whole document fails; so the parts are not checked one by one.
 */

/* "gather_buffers" for "gather buffers" */
static json_t *categories(const size_t bytes[ZT_N_CATS])
{
    json_t *o = json_object();
    for (int c = 0; c < ZT_N_CATS; c++) {
        char key[32];
        snprintf(key, sizeof key, "%s", zt_cat_name((enum zt_cat)c));
        for (char *s = key; *s; s++)
            *s = *s == ' ' ? '_' : *s;
        json_object_set_new(o, key, json_integer((json_int_t)bytes[c]));
    }
    return o;
}

static json_t *ledger_json(const struct zt_plan *p)
{
    const struct zt_ledger *l = &p->ledger;
    json_t *o = json_object(), *peak = json_object(), *sent = json_object();
    for (int a = 0; a < ZT_N_ARENAS; a++)
        json_object_set_new(peak, zt_arena_name((enum zt_arena_id)a),
                            json_integer((json_int_t)l->peak[a]));
    for (int k = 0; k < ZT_N_OP_KINDS; k++)
        if (l->sent[k] > 0)
            json_object_set_new(sent, zt_op_kind_name((enum zt_op_kind)k), json_real(l->sent[k]));
    json_object_set_new(o, "peak_bytes", peak);
    json_object_set_new(o, "device_bytes", categories(l->device));
    json_object_set_new(o, "host_bytes", categories(l->host));
    json_object_set_new(o, "fullest_program", json_string(zt_program_name(l->fullest_program)));
    json_object_set_new(o, "fullest_op",
                        json_integer(zt_plan_row(p, l->fullest_program, l->fullest_op)));
    json_object_set_new(o, "formula_bytes", json_real(l->formula_bytes));
    json_object_set_new(o, "sent_bytes", sent);
    json_object_set_new(o, "flops", json_real(l->flops));
    json_object_set_new(o, "model_flops", json_real(l->model_flops));
    return o;
}

static json_t *waits_json(const struct zt_program *g, const struct zt_op *op)
{
    json_t *list = json_array();
    for (int w = 0; w < op->n_waits; w++) {
        const struct zt_wait *wait = &g->waits[op->first_wait + w];
        json_array_append_new(
            list, json_pack("{s:i, s:i}", "op", wait->op, "runs_before", (int)wait->delta));
    }
    return list;
}

static json_t *accesses_json(const struct zt_plan *p, const struct zt_program *g,
                             const struct zt_op *op)
{
    json_t *list = json_array();
    for (int a = 0; a < op->n_accesses; a++) {
        const struct zt_access *x = &g->accesses[op->first_access + a];
        const struct zt_buf *b = &p->bufs[x->buf];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "mode",
                                              zt_mode_name(x->mode), "role", zt_role_name(x->role),
                                              "buffer", b->name, "arena", zt_arena_name(b->arena),
                                              "begin", (json_int_t)b->offset + (json_int_t)x->begin,
                                              "end", (json_int_t)b->offset + (json_int_t)x->end));
    }
    return list;
}

static json_t *op_json(const struct zt_plan *p, const struct zt_program *g, const struct zt_op *op)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:I, s:s, s:s, s:f, s:f, s:b, s:o, s:o}", "kind",
                     zt_op_kind_name(op->kind), "stream", zt_stream_name(op->stream), "subject",
                     zt_op_subject(p, op), "micro_batch", op->mb, "group", zt_group_name(op->group),
                     "count", (json_int_t)op->count, "dtype", zt_dtype_name(op->dtype), "cost_unit",
                     zt_cost_name(op->cost_kind), "cost", op->cost, "bytes_sent", op->bytes_sent,
                     "if_applied", op->predicate == ZT_IF_APPLY, "operands",
                     accesses_json(p, g, op), "waits", waits_json(g, op));
}

static json_t *program_json(const struct zt_plan *p, const struct zt_program *g, bool schedule)
{
    json_t *o = json_pack(
        "{s:s, s:b, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "name", zt_program_name(g->kind),
        "repeats", (int)g->repeats, "rows", zt_plan_n_rows(p, g->kind), "waits",
        zt_plan_n_waits(p, g->kind), "backlog", g->backlog, "time_s", g->time_s, "time_unlimited_s",
        g->time_unlimited_s, "busiest_s", g->busiest_s, "critical_path_s", g->critical_path_s);
    if (!schedule)
        return o;
    json_t *list = json_array();
    for (int i = 0; i < g->n_ops; i++)
        json_array_append_new(list, op_json(p, g, &g->ops[i]));
    json_object_set_new(o, "schedule", list);
    return o;
}

static json_t *plan_json(const struct zt_plan *p, bool schedule)
{
    static const char *const homes[] = {
        [ZT_OFFLOAD_NONE] = "device", [ZT_OFFLOAD_CPU] = "host", [ZT_OFFLOAD_NVME] = "nvme"};
    const struct zt_plan_config *cfg = &p->cfg;
    json_t *o = json_pack(
        "{s:i, s:i, s:i, s:I, s:s, s:I, s:I, s:i, s:b, s:s, s:i, s:b, s:s, s:s, s:s}", "stage",
        cfg->stage, "rank", p->rank, "ranks", p->world, "parameters", (json_int_t)p->model->n_elems,
        "dtype", zt_dtype_name(cfg->dtype), "micro_batch", (json_int_t)cfg->micro_batch, "seq_len",
        (json_int_t)cfg->seq_len, "accumulation", cfg->accum, "overlap_comm",
        (int)cfg->overlap_comm, "recompute", zt_recompute_name(cfg->recompute), "recompute_every",
        cfg->recompute_every, "activations_on_host", (int)cfg->cpu_checkpointing, "optimizer_on",
        homes[cfg->offload_optimizer], "parameters_on", homes[cfg->offload_param], "profile",
        cfg->profile->name);
    json_object_set_new(o, "ledger", ledger_json(p));
    json_t *programs = json_array();
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        if (p->programs[k].n_ops > 0)
            json_array_append_new(programs, program_json(p, &p->programs[k], schedule));
    json_object_set_new(o, "programs", programs);
    return o;
}

void zt_plan_print_json(const struct zt_plan *const *stages, int n, bool schedule,
                        struct zt_str *out)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, plan_json(stages[i], schedule));
    zt_json_print(json_pack("{s:i, s:o}", "version", 1, "stages", list), out);
}

void zt_json_print(struct json_t *doc, struct zt_str *out)
{
    char *text = doc ? json_dumps(doc, JSON_INDENT(1)) : NULL;
    if (!text) {
        fputs("zerotrain: out of host memory\n", stderr);
        exit(71);
    }
    zt_str_puts(out, text);
    zt_str_puts(out, "\n");
    free(text);
    json_decref(doc);
}
