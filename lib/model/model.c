#include "model/model.h"

#include <math.h>

#include "base/size.h"
#include "model/model_internal.h"

int zt_check_size(const char *key, int64_t value, int64_t max, struct zt_err *err)
{
    if (value >= 1 && value <= max)
        return 0;
    return zt_err_set(err, ZT_EINPUT, "model: %s is %lld; it must be from 1 to %lld", key,
                      (long long)value, (long long)max);
}

void zt_model_reserve(struct zt_model *m, struct zt_arena *arena, int n_segments, int n_params)
{
    m->segments = zt_arena_alloc(arena, (size_t)n_segments, sizeof *m->segments);
    m->params = zt_arena_alloc(arena, (size_t)n_params, sizeof *m->params);
    m->n_segments = m->n_params = 0;
}

struct zt_segment *zt_add_segment(struct zt_model *m, enum zt_segment_kind kind, const char *name,
                                  int layer)
{
    const struct zt_model_config *cfg = &m->cfg;
    struct zt_segment *s = &m->segments[m->n_segments++];
    *s = (struct zt_segment){
        .kind = kind,
        .name = name,
        .layer = layer,
        .weights_in_backward = kind != ZT_SEG_EMBED,
        .fused_backward = kind == ZT_SEG_HEAD,
        .drops = (kind == ZT_SEG_EMBED && cfg->embd_pdrop > 0) ||
                 (kind == ZT_SEG_BLOCK && (cfg->resid_pdrop > 0 || cfg->attn_pdrop > 0)),
    };
    return s;
}

/* The last segment uses a parameter: its own, or again one that another segment brought. */
static void use_param(struct zt_model *m, int param)
{
    struct zt_segment *s = &m->segments[m->n_segments - 1];
    ZT_ASSERT_CMP(s->n_params, <, ZT_MAX_SEG_PARAMS);
    s->params[s->n_params++] = param;
}

struct zt_param_spec *zt_add_param(struct zt_model *m, const char *name, int64_t dim0, int64_t dim1,
                                   enum zt_tp_split split, enum zt_init_kind init, float std)
{
    int index = m->n_params++;
    use_param(m, index);
    const enum zt_segment_kind kind = m->segments[m->n_segments - 1].kind;
    struct zt_param_spec *p = &m->params[index];
    *p = (struct zt_param_spec){
        .name = name,
        .n_dims = dim1 ? 2 : 1,
        .dims = {dim0, dim1},
        .n_elems = dim1 ? dim0 * dim1 : dim0,
        .trainable = true,
        .decay = dim1 != 0,
        .lr_scale = 1,
        .scattered = dim1 && kind != ZT_SEG_BLOCK,
        .tp_split = split,
        .init = init,
        .init_std = std,
        .home_segment = m->n_segments - 1,
    };
    return p;
}

void zt_add_lm_head(struct zt_model *m)
{
    const struct zt_model_config *cfg = &m->cfg;
    if (cfg->tie_embeddings)
        use_param(m, 0);
    else
        zt_add_param(m, "lm_head.weight", cfg->vocab_size, cfg->n_embd, ZT_TP_ROWS, ZT_INIT_NORMAL,
                     cfg->initializer_range);
}

int zt_model_finish(struct zt_model *m, struct zt_err *err)
{
    /* 16 bytes of state for each element, and as much again for padding and copies. */
    const int64_t max = INT64_MAX / 64;
    m->n_elems = 0;
    for (int i = 0; i < m->n_params; i++) {
        if (!zt_add_i64(m->n_elems, m->params[i].n_elems, &m->n_elems) || m->n_elems > max)
            return zt_err_set(
                err, ZT_EINPUT,
                "model: more than %lld parameters; check n_layer, n_embd, n_inner and "
                "vocab_size",
                (long long)max);
    }
    return 0;
}

static int check_dropout(const char *key, double p, struct zt_err *err)
{
    if (p >= 0 && p < 1)
        return 0;
    return zt_err_set(err, ZT_EINPUT, "model: %s is %g; it must be at least 0 and below 1", key, p);
}

/* Fill in what the configuration leaves to us, and check what all model types have in common. */
static int resolve_config(struct zt_model_config *cfg, struct zt_err *err)
{
    int rc = zt_check_size("n_layer", cfg->n_layer, ZT_MAX_LAYERS, err);
    if (!rc)
        rc = zt_check_size("n_embd", cfg->n_embd, ZT_MAX_WIDTH, err);
    if (!rc)
        rc = zt_check_size("n_head", cfg->n_head, cfg->n_embd, err);
    if (!rc)
        rc = zt_check_size("vocab_size", cfg->vocab_size, ZT_MAX_VOCAB, err);
    if (!rc)
        rc = zt_check_size("n_positions", cfg->n_positions, INT32_MAX, err);
    if (rc)
        return rc;
    if (!cfg->n_kv_head)
        cfg->n_kv_head = cfg->n_head;
    if (!cfg->head_dim) {
        if (cfg->n_embd % cfg->n_head)
            return zt_err_set(err, ZT_EINPUT,
                              "model: n_embd %lld is not divisible by n_head %d; change either",
                              (long long)cfg->n_embd, cfg->n_head);
        cfg->head_dim = (int)(cfg->n_embd / cfg->n_head);
    }
    rc = zt_check_size("head_dim", cfg->head_dim, ZT_MAX_HEAD_DIM, err);
    if (rc)
        return rc;
    if (!(cfg->norm_eps > 0) || !isfinite(cfg->norm_eps))
        return zt_err_set(err, ZT_EINPUT, "model: the norm's epsilon is %g; it must be above 0",
                          (double)cfg->norm_eps);
    if (!(cfg->initializer_range >= 0) || !isfinite(cfg->initializer_range))
        return zt_err_set(err, ZT_EINPUT, "model: initializer_range is %g; it must be 0 or more",
                          (double)cfg->initializer_range);
    rc = check_dropout("embd_pdrop", cfg->embd_pdrop, err);
    if (!rc)
        rc = check_dropout("resid_pdrop", cfg->resid_pdrop, err);
    return rc ? rc : check_dropout("attn_pdrop", cfg->attn_pdrop, err);
}

int zt_model_build(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model **out,
                   struct zt_err *err)
{
    struct zt_model *m = zt_arena_alloc(arena, 1, sizeof *m);
    m->cfg = *cfg;
    m->ops = &zt_segment_ops;
    int rc = resolve_config(&m->cfg, err);
    if (rc)
        return rc;
    switch (cfg->type) {
    case ZT_MODEL_GPT2:
        rc = zt_gpt2_describe(&m->cfg, arena, m, err);
        break;
    case ZT_MODEL_LLAMA:
        rc = zt_llama_describe(&m->cfg, arena, m, err);
        break;
    }
    *out = m;
    return rc;
}

int zt_model_find_param(const struct zt_model *m, const char *name)
{
    static const char *const prefixes[] = {"transformer.", "model."};
    for (size_t i = 0; i < ZT_ARRAY_LEN(prefixes); i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) == 0) {
            name += n;
            break;
        }
    }
    for (int i = 0; i < m->n_params; i++) {
        if (strcmp(m->params[i].name, name) == 0)
            return i;
    }
    return -1;
}

/* Of one segment, as multiples of its forward FLOPs: forward, gradients of weights, of its input. */
static double passes(const struct zt_model *m, int segment, int lowest)
{
    const struct zt_segment *s = &m->segments[segment];
    bool trained = false;
    for (int i = 0; i < s->n_params; i++)
        trained |= m->params[s->params[i]].trainable;
    return 1 + trained + (segment > lowest);
}

int zt_model_lowest_trained(const struct zt_model *m)
{
    int lowest = m->n_segments - 1;
    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].trainable)
            lowest = ZT_MIN(lowest, m->params[i].home_segment);
    return lowest;
}

double zt_model_train_flops_per_token(const struct zt_model *m, const struct zt_shape *shape)
{
    double flops = 0;
    for (int i = 0; i < m->n_segments; i++) {
        struct zt_segment_size size;
        m->ops->size(m, i, shape, &size);
        flops += passes(m, i, zt_model_lowest_trained(m)) * size.fwd_flops;
    }
    return flops / ((double)shape->batch * (double)shape->seq_len);
}
