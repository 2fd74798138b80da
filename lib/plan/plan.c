#include "plan/plan.h"

#include "base/size.h"

/* Sizes below stay far from overflow inside these bounds. */
enum { MAX_SEQ_LEN = 1 << 24 };
enum { MAX_DISK_BUFFERS = 1 << 16 };
static const int64_t max_params = INT64_C(1) << 50;

static int check_range(const char *what, int64_t v, int64_t lo, int64_t hi, struct zt_err *err)
{
    if (v >= lo && v <= hi)
        return 0;
    return zt_err_set(err, ZT_EINPUT, "%s is %lld; it must be %lld to %lld", what, (long long)v,
                      (long long)lo, (long long)hi);
}

static int check_shape(const struct zt_model *m, const struct zt_plan_config *cfg,
                       struct zt_err *err)
{
    int rc = check_range("micro-batch size", cfg->micro_batch, 1, ZT_PLAN_MAX_SEQUENCES, err);
    if (!rc)
        rc = check_range("evaluation batch size", cfg->eval_micro_batch, 0, ZT_PLAN_MAX_SEQUENCES,
                         err);
    if (!rc)
        rc = check_range("sequence length", cfg->seq_len, 1, MAX_SEQ_LEN, err);
    if (!rc)
        rc = check_range("gradient_accumulation_steps", cfg->accum, 1, ZT_PLAN_MAX_ACCUM, err);
    if (!rc)
        rc = check_range("number of model parameters", m->n_elems, 1, max_params, err);
    if (rc)
        return rc;
    const int64_t sequences = ZT_MAX(cfg->micro_batch, cfg->eval_micro_batch);
    if (sequences > INT32_MAX / cfg->seq_len)
        return zt_err_set(err, ZT_EINPUT,
                          "a micro-batch of %lld sequences of %lld tokens is more than %d tokens; "
                          "use a smaller micro-batch",
                          (long long)sequences, (long long)cfg->seq_len, INT32_MAX);
    if (m->cfg.type == ZT_MODEL_GPT2 && cfg->seq_len > m->cfg.n_positions)
        return zt_err_set(err, ZT_EINPUT,
                          "sequences of %lld tokens do not fit a model of %lld positions "
                          "(n_positions); shorten data.seq_len",
                          (long long)cfg->seq_len, (long long)m->cfg.n_positions);
    return 0;
}

static int check_recompute(const struct zt_model *m, const struct zt_plan_config *cfg,
                           struct zt_err *err)
{
    if (cfg->cpu_checkpointing && cfg->recompute == ZT_RECOMPUTE_NONE)
        return zt_err_set(err, ZT_EINPUT,
                          "cpu_checkpointing moves what recomputation starts from to the host, and "
                          "nothing is recomputed: set activation_checkpointing.policy");
    if (cfg->recompute != ZT_RECOMPUTE_EVERY)
        return 0;
    return check_range("activation_checkpointing.every", cfg->recompute_every, 1, m->cfg.n_layer,
                       err);
}

static int check_mesh(const struct zt_plan_config *cfg, int rank, struct zt_err *err)
{
    static const char *const names[ZT_N_AXES] = {"pipeline", "replicate", "shard", "context",
                                                 "tensor"};
    for (int i = 0; i < ZT_N_AXES; i++) {
        if (cfg->mesh.size[i] < 1)
            return zt_err_set(err, ZT_EINPUT,
                              "the mesh has %d ranks along %s; at least 1 is needed",
                              cfg->mesh.size[i], names[i]);
        if (cfg->mesh.size[i] > 1 && i != ZT_AXIS_SHARD)
            return zt_err_set(err, ZT_EUNSUPPORTED,
                              "%s parallelism (%d ranks) is not carried out yet; all ranks must be "
                              "in the shard group",
                              names[i], cfg->mesh.size[i]);
    }
    const int world = zt_mesh_world(&cfg->mesh);
    if (rank < 0 || rank >= world)
        return zt_err_set(err, ZT_EINPUT, "rank %d is not one of the %d ranks of the job", rank,
                          world);
    return 0;
}

static int check_features(const struct zt_plan_config *cfg, struct zt_err *err)
{
    int rc = check_range("zero_optimization.stage", cfg->stage, 0, 3, err);
    if (rc)
        return rc;
    if (cfg->dtype != ZT_F32 && cfg->dtype != ZT_BF16 && cfg->dtype != ZT_F16)
        return zt_err_set(err, ZT_EINPUT, "parameters cannot be %s", zt_dtype_name(cfg->dtype));
    if (cfg->comm_dtype >= 0 && cfg->comm_dtype != ZT_F32 && cfg->comm_dtype != ZT_BF16 &&
        cfg->comm_dtype != ZT_F16)
        return zt_err_set(err, ZT_EINPUT, "communication_data_type must be fp32, bf16 or fp16");
    if (cfg->offload_param != ZT_OFFLOAD_NONE && cfg->stage != 3)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "offload_param needs ZeRO stage 3, not %d: only there are parameters "
                          "gathered for each use",
                          cfg->stage);
    rc = check_range("offload_optimizer.buffer_count", cfg->disk_buffers, 0, MAX_DISK_BUFFERS, err);
    if (rc)
        return rc;
    if (cfg->offload_optimizer != ZT_OFFLOAD_NONE && cfg->stage == 0)
        return zt_err_set(
            err, ZT_EUNSUPPORTED,
            "offload_optimizer needs ZeRO stage 1, 2 or 3: at stage 0 every rank would "
            "update all parameters on its host");
    return 0;
}

int zt_plan_create(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                   struct zt_plan **out, struct zt_err *err)
{
    *out = NULL;
    int rc = check_features(cfg, err);
    if (!rc)
        rc = check_mesh(cfg, rank, err);
    if (!rc)
        rc = check_shape(model, cfg, err);
    if (!rc)
        rc = check_recompute(model, cfg, err);
    if (rc)
        return rc;
    struct zt_plan *p = zt_xcalloc(1, sizeof *p);
    p->model = model;
    p->cfg = *cfg;
    p->rank = rank;
    p->world = zt_mesh_world(&cfg->mesh);
    p->shard_rank = zt_group_index(&cfg->mesh, ZT_GROUP_SHARD, rank);
    p->n_shards = zt_group_size(&cfg->mesh, ZT_GROUP_SHARD);
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        p->programs[k].kind = (enum zt_program_kind)k;
    zt_plan_units(p);
    *out = p;
    return 0;
}

void zt_plan_free(struct zt_plan *p)
{
    if (!p)
        return;
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        free(p->programs[k].ops);
        free(p->programs[k].accesses);
        free(p->programs[k].waits);
    }
    free(p->bufs);
    zt_arena_release(&p->arena);
    free(p);
}

void zt_plan_layout(struct zt_plan *p, size_t base[ZT_N_ARENAS])
{
    memset(base, 0, ZT_N_ARENAS * sizeof *base);
    for (int i = 0; i < p->n_bufs; i++) {
        struct zt_buf *b = &p->bufs[i];
        if (b->program >= 0)
            continue;
        b->offset = base[b->arena];
        base[b->arena] += b->bytes;
    }
}

const struct zt_access *zt_op_operand(const struct zt_program *prog, const struct zt_op *op,
                                      enum zt_role role, int nth)
{
    const struct zt_access *a = &prog->accesses[op->first_access];
    for (int i = 0; i < op->n_accesses; i++)
        if (a[i].role == role && nth-- == 0)
            return &a[i];
    return NULL;
}

const char *zt_op_kind_name(enum zt_op_kind k)
{
    static const char *const names[ZT_N_OP_KINDS] = {
        [ZT_OP_LOAD_BATCH] = "LOAD_BATCH",
        [ZT_OP_COPY_BATCH] = "COPY_BATCH",
        [ZT_OP_COUNT] = "COUNT",
        [ZT_OP_GATHER] = "GATHER",
        [ZT_OP_RELEASE] = "RELEASE",
        [ZT_OP_FORWARD] = "FORWARD",
        [ZT_OP_RECOMPUTE] = "RECOMPUTE",
        [ZT_OP_BACKWARD] = "BACKWARD",
        [ZT_OP_CAST] = "CAST",
        [ZT_OP_REDUCE] = "REDUCE",
        [ZT_OP_ALLGATHER] = "ALLGATHER",
        [ZT_OP_NORM] = "NORM",
        [ZT_OP_VOTE] = "VOTE",
        [ZT_OP_UPDATE] = "UPDATE",
        [ZT_OP_STEP] = "STEP",
        [ZT_OP_RESULT] = "RESULT",
        [ZT_OP_FETCH] = "FETCH",
        [ZT_OP_EVICT] = "EVICT",
        [ZT_OP_READ] = "READ",
        [ZT_OP_WRITE] = "WRITE",
        [ZT_OP_SEND] = "SEND",
        [ZT_OP_RECV] = "RECV",
        [ZT_OP_LOAD_UNIT] = "LOAD_UNIT",
        [ZT_OP_SAVE_UNIT] = "SAVE_UNIT",
    };
    return names[k];
}

const char *zt_stream_name(enum zt_stream_id s)
{
    static const char *const names[ZT_N_STREAMS] = {"compute", "comm",    "copy-in", "copy-out",
                                                    "host",    "disk-in", "disk-out"};
    return names[s];
}

const char *zt_arena_name(enum zt_arena_id a)
{
    static const char *const names[ZT_N_ARENAS] = {"device", "shared", "host", "disk"};
    return names[a];
}

const char *zt_cat_name(enum zt_cat c)
{
    static const char *const names[ZT_N_CATS] = {
        [ZT_CAT_PARAM] = "parameters",
        [ZT_CAT_GRAD] = "gradients",
        [ZT_CAT_GRAD_SHARD] = "gradient shard",
        [ZT_CAT_MASTER] = "fp32 master",
        [ZT_CAT_OPT_M] = "optimizer m",
        [ZT_CAT_OPT_V] = "optimizer v",
        [ZT_CAT_GATHER] = "gather buffers",
        [ZT_CAT_REDUCE] = "reduce buffers",
        [ZT_CAT_ACT] = "activations",
        [ZT_CAT_WORKSPACE] = "workspace",
        [ZT_CAT_BATCH] = "batch",
        [ZT_CAT_CONTROL] = "control",
        [ZT_CAT_STAGING] = "staging",
        [ZT_CAT_SNAPSHOT] = "snapshot",
        [ZT_CAT_PADDING] = "padding",
        [ZT_CAT_ALIGNMENT] = "alignment",
        [ZT_CAT_UNUSED] = "unused",
    };
    return names[c];
}

const char *zt_recompute_name(enum zt_recompute r)
{
    static const char *const names[] = {[ZT_RECOMPUTE_NONE] = "none",
                                        [ZT_RECOMPUTE_BLOCK] = "block",
                                        [ZT_RECOMPUTE_SELECTIVE] = "selective",
                                        [ZT_RECOMPUTE_EVERY] = "every"};
    return names[r];
}

const char *zt_program_name(enum zt_program_kind k)
{
    static const char *const names[ZT_N_PROGRAMS] = {"init", "train", "eval", "generate",
                                                     "save", "load",  "agree"};
    return names[k];
}
