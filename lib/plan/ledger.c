#include "plan/plan.h"

#include "plan/passes.h"

/*
 * The ledger counts what the arenas hold at the fullest op of all programs: live buffers by
 * category, then the padding and alignment inside them, then what packing leaves between them.
 */

/* Bytes of arenas [first, last] live at each op of a program; (n_ops). */
static size_t *live_bytes(const struct zt_plan *p, int n_ops, const struct zt_life *life,
                          enum zt_arena_id first, enum zt_arena_id last)
{
    size_t *live = zt_xcalloc((size_t)n_ops + 1, sizeof *live);
    size_t sum = 0;
    for (int b = 0; b < p->n_bufs; b++) {
        const struct zt_buf *buf = &p->bufs[b];
        if (buf->arena < first || buf->arena > last || life[b].hi < life[b].lo)
            continue;
        live[life[b].lo] += buf->bytes;
        if (life[b].hi >= n_ops) { /* wraps: also live up to hi - n_ops of the next run */
            live[0] += buf->bytes;
            live[life[b].hi - n_ops + 1] -= buf->bytes;
        } else {
            live[life[b].hi + 1] -= buf->bytes;
        }
    }
    for (int i = 0; i < n_ops; i++)
        live[i] = sum += live[i]; /* differences modulo 2^64 add up exactly */
    return live;
}

static bool alive_at(const struct zt_life *l, int op, int n_ops)
{
    return (l->lo <= op && op <= l->hi) || op + n_ops <= l->hi;
}

/* The categories of arenas [first, last] at one op, all but what lies between the buffers. */
static void count_categories(const struct zt_plan *p, int op, int n_ops, const struct zt_life *life,
                             enum zt_arena_id first, enum zt_arena_id last, size_t bytes[ZT_N_CATS])
{
    memset(bytes, 0, ZT_N_CATS * sizeof *bytes);
    for (int b = 0; b < p->n_bufs; b++) {
        const struct zt_buf *buf = &p->bufs[b];
        if (buf->arena < first || buf->arena > last || !alive_at(&life[b], op, n_ops))
            continue;
        const size_t behind = buf->bytes - buf->used;
        const size_t zeros = buf->padding ? buf->padding - behind : 0;
        size_t between = 0;
        for (int i = 0; i < buf->n_gaps; i++)
            between += buf->gaps[i].end - buf->gaps[i].begin;
        bytes[buf->cat] += buf->used - zeros - between;
        bytes[ZT_CAT_PADDING] += zeros;
        bytes[ZT_CAT_ALIGNMENT] += behind + between;
    }
}

/* Raise the ledger's fullest ops by one program; *device and *host are the most bytes so far. */
static void count_program(struct zt_plan *p, enum zt_program_kind k, size_t *device, size_t *host)
{
    const struct zt_program *prog = &p->programs[k];
    struct zt_ledger *l = &p->ledger;
    const int n = prog->n_ops;
    struct zt_life *life = zt_xcalloc((size_t)p->n_bufs, sizeof *life);
    zt_lifetimes_widened(p, k, prog->backlog, life);
    size_t *on_device = live_bytes(p, n, life, ZT_AR_DEVICE, ZT_AR_SHARED);
    size_t *on_host = live_bytes(p, n, life, ZT_AR_HOST, ZT_AR_HOST);
    int fullest_host = -1;
    bool fuller = false;
    for (int i = 0; i < n; i++) {
        if (on_device[i] > *device) {
            *device = on_device[i];
            l->fullest_program = k;
            l->fullest_op = i;
            fuller = true;
        }
        if (on_host[i] > *host) {
            *host = on_host[i];
            fullest_host = i;
        }
    }
    if (fuller)
        count_categories(p, l->fullest_op, n, life, ZT_AR_DEVICE, ZT_AR_SHARED, l->device);
    if (fullest_host >= 0)
        count_categories(p, fullest_host, n, life, ZT_AR_HOST, ZT_AR_HOST, l->host);
    free(on_device);
    free(on_host);
    free(life);
}

static double model_flops(const struct zt_plan *p)
{
    const struct zt_plan_config *cfg = &p->cfg;
    const struct zt_shape shape = zt_plan_shape(cfg, cfg->micro_batch, true);
    return zt_model_train_flops_per_token(p->model, &shape) * (double)cfg->micro_batch *
           (double)cfg->seq_len * cfg->accum;
}

static double frozen_elems(const struct zt_plan *p)
{
    double n = 0;
    for (int u = 0; u < p->n_units; u++)
        n += p->units[u].frozen ? (double)p->units[u].n_elems : 0;
    return n;
}

/* Parameters and gradients of e bytes, 4 bytes for each state, and a master where e is 2. */
static double formula_bytes(double n, double e, enum zt_optimizer o, int stage, int n_ranks)
{
    const double state = (zt_optimizer_has_v(o) ? 8 : 4) + (e == 2 ? 4 : 0);
    const double full[4] = {2 * e + state, 2 * e, e, 0};
    const double sharded[4] = {0, state, e + state, 2 * e + state};
    return n * full[stage] + n * sharded[stage] / n_ranks;
}

double zt_state_bytes(double n_params, int stage, int n_ranks)
{
    return formula_bytes(n_params, 2, ZT_ADAMW, stage, n_ranks);
}

void zt_plan_ledger(struct zt_plan *p)
{
    struct zt_ledger *l = &p->ledger;
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    size_t device = 0, host = 0;
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        if (p->programs[k].n_ops > 0)
            count_program(p, (enum zt_program_kind)k, &device, &host);
    l->device[ZT_CAT_UNUSED] = zt_plan_device_bytes(p) - device;
    l->host[ZT_CAT_UNUSED] = l->peak[ZT_AR_HOST] - host;
    memset(l->sent, 0, sizeof l->sent);
    l->flops = 0;
    for (int i = 0; i < train->n_ops; i++) {
        const struct zt_op *op = &train->ops[i];
        const double times = zt_fold_times(p, ZT_PROG_TRAIN, i);
        l->sent[op->kind] += times * op->bytes_sent;
        if (op->cost_kind == ZT_COST_FLOP)
            l->flops += times * op->cost;
    }
    l->model_flops = model_flops(p);
    const double frozen = frozen_elems(p), e = (double)zt_dtype_bytes(p->cfg.dtype);
    l->formula_bytes = formula_bytes((double)p->model->n_elems - frozen, e, p->cfg.optimizer,
                                     p->cfg.stage, p->n_shards) +
                       e * frozen / (p->cfg.stage == 3 ? p->n_shards : 1);
}
