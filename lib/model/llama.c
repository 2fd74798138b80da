/*
 * Llama (Touvron et al. 2023) and the models built like it, as Hugging Face's LlamaForCausalLM,
 * Qwen2ForCausalLM, Qwen3ForCausalLM and MistralForCausalLM have them: RMSNorm, rotary positions,
 * grouped key/value heads, SwiGLU. The configuration says which projections have biases, and
 * whether the heads of q and k are normed before they are turned (Qwen 3).
 *
 *     x_mid = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n))), n = norm(x)
 *     x_out = x_mid + down_proj(silu(gate_proj(n)) * up_proj(n)),                 n = norm(x_mid)
 *
 * Dropout is in attention only (attn_pdrop), as there.
 */
#include "model/model_internal.h"

#include <math.h>

/* The parameters that a block may have; those it has stand in this order in its segment. */
enum {
    NORM_1,
    Q_WEIGHT,
    K_WEIGHT,
    V_WEIGHT,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    Q_NORM,
    K_NORM,
    O_WEIGHT,
    O_BIAS,
    NORM_2,
    GATE_WEIGHT,
    UP_WEIGHT,
    GATE_BIAS,
    UP_BIAS,
    DOWN_WEIGHT,
    DOWN_BIAS,
    N_BLOCK_PARAMS,
};

static bool has_param(const struct zt_model_config *cfg, int param)
{
    switch (param) {
    case Q_BIAS:
    case K_BIAS:
    case V_BIAS:
        return cfg->qkv_bias;
    case O_BIAS:
        return cfg->o_bias;
    case GATE_BIAS:
    case UP_BIAS:
    case DOWN_BIAS:
        return cfg->mlp_bias;
    case Q_NORM:
    case K_NORM:
        return cfg->qk_norm;
    default:
        return true;
    }
}

/* The position of a parameter in the block's segment; -1: it has none such. */
static int place_of(const struct zt_model_config *cfg, int param)
{
    int place = 0;
    for (int i = 0; i < param; i++)
        place += has_param(cfg, i);
    return has_param(cfg, param) ? place : -1;
}

/* Elements of a row of q and of k and v: heads times their width, which need not be n_embd. */
static int64_t q_width(const struct zt_model_config *cfg)
{
    return (int64_t)cfg->n_head * cfg->head_dim;
}

static int64_t kv_width(const struct zt_model_config *cfg)
{
    return (int64_t)cfg->n_kv_head * cfg->head_dim;
}

/* ---- description ---- */

static int check_rope(const struct zt_rope_rule *r, struct zt_err *err)
{
    if (!(r->theta >= 1) || !isfinite(r->theta))
        return zt_err_set(err, ZT_EINPUT, "model: rope_theta is %g; it must be at least 1",
                          r->theta);
    if (r->kind != ZT_ROPE_PLAIN && (!(r->factor >= 1) || !isfinite(r->factor)))
        return zt_err_set(err, ZT_EINPUT,
                          "model: the factor of rope_scaling is %g; it must be at "
                          "least 1",
                          r->factor);
    if (r->kind == ZT_ROPE_LLAMA3 &&
        (!(r->low_freq_factor > 0) || !(r->high_freq_factor > r->low_freq_factor) ||
         !isfinite(r->high_freq_factor) || !(r->original_positions >= 1) ||
         !isfinite(r->original_positions)))
        return zt_err_set(err, ZT_EINPUT,
                          "model: rope_scaling of the kind llama3 has low_freq_factor %g, "
                          "high_freq_factor %g and original_max_position_embeddings %g; they must "
                          "be above 0, the first below the second",
                          r->low_freq_factor, r->high_freq_factor, r->original_positions);
    return 0;
}

static int check_config(const struct zt_model_config *cfg, struct zt_err *err)
{
    if (cfg->n_kv_head < 1 || cfg->n_head % cfg->n_kv_head)
        return zt_err_set(
            err, ZT_EINPUT,
            "model: num_attention_heads %d is not a multiple of num_key_value_heads %d",
            cfg->n_head, cfg->n_kv_head);
    if (cfg->head_dim % 2)
        return zt_err_set(err, ZT_EINPUT,
                          "model: head_dim is %d; rotary positions turn pairs, so it must be even",
                          cfg->head_dim);
    if (cfg->embd_pdrop != 0 || cfg->resid_pdrop != 0)
        return zt_err_set(
            err, ZT_EINPUT,
            "model: embd_pdrop is %g and resid_pdrop %g; models built like Llama have "
            "dropout in attention only (attention_dropout)",
            cfg->embd_pdrop, cfg->resid_pdrop);
    int rc = zt_check_size("num_attention_heads x head_dim", q_width(cfg), ZT_MAX_WIDTH, err);
    if (!rc)
        rc = zt_check_size("intermediate_size", cfg->n_inner, ZT_MAX_WIDTH, err);
    return rc ? rc : check_rope(&cfg->rope, err);
}

static void describe_block(struct zt_model *m, struct zt_arena *arena, int layer)
{
    const struct zt_model_config *cfg = &m->cfg;
    const int64_t c = cfg->n_embd, inner = cfg->n_inner, q = q_width(cfg), kv = kv_width(cfg);
    const float std = cfg->initializer_range;
    const struct {
        const char *name;
        int64_t dim0, dim1;
        enum zt_tp_split split;
        enum zt_init_kind init;
    } params[N_BLOCK_PARAMS] = {
        [NORM_1] = {"input_layernorm.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES},
        [Q_WEIGHT] = {"self_attn.q_proj.weight", q, c, ZT_TP_ROWS, ZT_INIT_NORMAL},
        [K_WEIGHT] = {"self_attn.k_proj.weight", kv, c, ZT_TP_ROWS, ZT_INIT_NORMAL},
        [V_WEIGHT] = {"self_attn.v_proj.weight", kv, c, ZT_TP_ROWS, ZT_INIT_NORMAL},
        [Q_BIAS] = {"self_attn.q_proj.bias", q, 0, ZT_TP_ROWS, ZT_INIT_ZEROS},
        [K_BIAS] = {"self_attn.k_proj.bias", kv, 0, ZT_TP_ROWS, ZT_INIT_ZEROS},
        [V_BIAS] = {"self_attn.v_proj.bias", kv, 0, ZT_TP_ROWS, ZT_INIT_ZEROS},
        [Q_NORM] = {"self_attn.q_norm.weight", cfg->head_dim, 0, ZT_TP_NONE, ZT_INIT_ONES},
        [K_NORM] = {"self_attn.k_norm.weight", cfg->head_dim, 0, ZT_TP_NONE, ZT_INIT_ONES},
        [O_WEIGHT] = {"self_attn.o_proj.weight", c, q, ZT_TP_COLUMNS, ZT_INIT_NORMAL},
        [O_BIAS] = {"self_attn.o_proj.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS},
        [NORM_2] = {"post_attention_layernorm.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES},
        [GATE_WEIGHT] = {"mlp.gate_proj.weight", inner, c, ZT_TP_ROWS, ZT_INIT_NORMAL},
        [UP_WEIGHT] = {"mlp.up_proj.weight", inner, c, ZT_TP_ROWS, ZT_INIT_NORMAL},
        [GATE_BIAS] = {"mlp.gate_proj.bias", inner, 0, ZT_TP_ROWS, ZT_INIT_ZEROS},
        [UP_BIAS] = {"mlp.up_proj.bias", inner, 0, ZT_TP_ROWS, ZT_INIT_ZEROS},
        [DOWN_WEIGHT] = {"mlp.down_proj.weight", c, inner, ZT_TP_COLUMNS, ZT_INIT_NORMAL},
        [DOWN_BIAS] = {"mlp.down_proj.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS},
    };
    const struct zt_segment *s =
        zt_add_segment(m, ZT_SEG_BLOCK, zt_arena_printf(arena, "layers.%d", layer), layer);
    for (int i = 0; i < N_BLOCK_PARAMS; i++) {
        if (has_param(cfg, i))
            zt_add_param(m, zt_arena_printf(arena, "%s.%s", s->name, params[i].name),
                         params[i].dim0, params[i].dim1, params[i].split, params[i].init, std);
    }
}

static const struct zt_block_fns llama_block;

int zt_llama_describe(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model *m,
                      struct zt_err *err)
{
    m->cfg = *cfg;
    if (m->cfg.rope.theta == 0)
        m->cfg.rope.theta = 10000;
    int rc = check_config(&m->cfg, err);
    if (rc)
        return rc;
    const int64_t c = cfg->n_embd;
    const float std = cfg->initializer_range;
    m->block = &llama_block;
    zt_model_reserve(m, arena, cfg->n_layer + 2, N_BLOCK_PARAMS * cfg->n_layer + 3);

    zt_add_segment(m, ZT_SEG_EMBED, "embed", -1);
    zt_add_param(m, "embed_tokens.weight", cfg->vocab_size, c, ZT_TP_ROWS, ZT_INIT_NORMAL, std);
    for (int i = 0; i < cfg->n_layer; i++)
        describe_block(m, arena, i);
    zt_add_segment(m, ZT_SEG_HEAD, "head", -1);
    zt_add_param(m, "norm.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES, 0);
    zt_add_lm_head(m);
    return zt_model_finish(m, err);
}

/* ---- a block's tensors ---- */

/*
 * What forward keeps for backward, in the training type but for the statistics: q, k, v, attention,
 * x_mid, gate and up. The norms' outputs and silu(gate) * up are computed again, one cheap pass
 * each. q and k are kept as attention reads them, turned; with qk_norm as their products leave
 * them, since the norm's backward needs that, and are normed and turned again. Selective recomputation
 * keeps attention, with its lse, and x_mid; the rest is act's inner part, the statistics of the norms
 * too, which come with their outputs.
 *
 * `wide` is scratch for one thing after the other. Outside training everything is scratch.
 */
struct block {
    int64_t rows, width, inner, q_width, kv_width;
    struct zt_ref q, k, v;    /* (rows, q_width), (rows, kv_width) twice */
    struct zt_ref att;        /* (rows, q_width) */
    struct zt_ref x_mid;      /* (rows, C) */
    struct zt_ref gate, up;   /* (rows, n_inner) */
    struct zt_ref dq, dk, dv; /* backward: memory of gate and up, which are used up by then */
    struct zt_ref wide;
    struct zt_ref dy; /* backward: (rows, C) fp32, gradient of a norm's output; in wide */
    float *rstd1, *rstd2, *rstd_q, *rstd_k;
    float *lse;                /* (batch, n_head, T) */
    struct zt_layout kept, in; /* act's two parts */
    size_t fwd_scratch, bwd_scratch;
};

static float *floats(const void *base, struct zt_layout *l, int64_t n)
{
    return zt_ref_at(base, zt_layout_add(l, n, ZT_F32), ZT_F32).ptr;
}

static struct zt_ref tensor(const void *base, struct zt_layout *l, int64_t n, enum zt_dtype t)
{
    return zt_ref_at(base, zt_layout_add(l, n, t), t);
}

static void lay_out_block(const struct zt_model *m, const struct zt_seg_call *call, struct block *b)
{
    const struct zt_model_config *cfg = &m->cfg;
    const struct zt_shape *s = call->shape;
    const int64_t rows = s->batch * s->seq_len, q = q_width(cfg), kv = kv_width(cfg);
    const int64_t c = cfg->n_embd, inner = cfg->n_inner, turned = cfg->qk_norm ? q + kv : 0;
    struct zt_layout kept = {0}, in = {0}, tmp = {0};
    struct zt_layout *l = s->train ? &kept : &tmp;
    const void *base = s->train ? call->act : call->tmp;

    *b = (struct block){.rows = rows, .width = c, .inner = inner, .q_width = q, .kv_width = kv};
    b->lse = floats(base, l, rows * cfg->n_head);
    b->att = tensor(base, l, rows * q, s->dtype);
    b->x_mid = tensor(base, l, rows * c, s->dtype);
    if (s->train) {
        base = zt_act_inner(call, kept.bytes);
        l = &in;
    }
    b->rstd1 = floats(base, l, rows);
    b->rstd2 = floats(base, l, rows);
    if (cfg->qk_norm) {
        b->rstd_q = floats(base, l, rows * cfg->n_head);
        b->rstd_k = floats(base, l, rows * cfg->n_kv_head);
    }
    b->q = tensor(base, l, rows * q, s->dtype);
    b->k = tensor(base, l, rows * kv, s->dtype);
    b->v = tensor(base, l, rows * kv, s->dtype);
    b->gate = tensor(base, l, rows * ZT_MAX(2 * inner, q + 2 * kv), s->dtype);
    b->up = zt_ref_from(b->gate, rows * inner);
    b->dq = b->gate;
    b->dk = zt_ref_from(b->dq, rows * q);
    b->dv = zt_ref_from(b->dk, rows * kv);
    b->kept = kept;
    b->in = in;

    /*
     * In turn: a norm's output, q and k, silu(gate) * up; in backward the gradients of the first and
     * the last, and that of attention's output, with q and k behind it.
     */
    const int64_t dy = c * (int64_t)(sizeof(float) / zt_dtype_bytes(s->dtype));
    struct zt_layout fwd = tmp, bwd = tmp;
    b->wide = tensor(call->tmp, &fwd, rows * ZT_MAX(ZT_MAX(c, inner), turned), s->dtype);
    zt_layout_add(&bwd, rows * ZT_MAX(ZT_MAX(dy, inner), q + turned), s->dtype);
    b->dy = zt_ref_at(b->wide.ptr, 0, ZT_F32);
    b->fwd_scratch = fwd.bytes;
    b->bwd_scratch = bwd.bytes;
}

/* ---- parts of a block ---- */

/* A projection: y = x W^T + b. */
static struct zt_linear linear(const struct zt_run *r, int weight, int bias, int64_t n_in,
                               int64_t n_out)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    return (struct zt_linear){n_in, n_out, n_out, true, place_of(cfg, weight), place_of(cfg, bias)};
}

/* One of those that start from a norm's output; out and dout are what it makes, and its gradient. */
struct branch {
    struct zt_linear linear;
    struct zt_ref out, dout;
};

static int attention_branches(const struct zt_run *r, const struct block *b, struct branch out[3])
{
    out[0] = (struct branch){linear(r, Q_WEIGHT, Q_BIAS, b->width, b->q_width), b->q, b->dq};
    out[1] = (struct branch){linear(r, K_WEIGHT, K_BIAS, b->width, b->kv_width), b->k, b->dk};
    out[2] = (struct branch){linear(r, V_WEIGHT, V_BIAS, b->width, b->kv_width), b->v, b->dv};
    return 3;
}

/* The gradients of gate and up take their places. */
static int mlp_branches(const struct zt_run *r, const struct block *b, struct branch out[3])
{
    out[0] =
        (struct branch){linear(r, GATE_WEIGHT, GATE_BIAS, b->width, b->inner), b->gate, b->gate};
    out[1] = (struct branch){linear(r, UP_WEIGHT, UP_BIAS, b->width, b->inner), b->up, b->up};
    return 2;
}

static struct zt_norm norm_1(const struct zt_run *r, const struct block *b)
{
    const struct zt_ref x = zt_ref_at(r->c->x_in, 0, r->c->shape->dtype);
    return (struct zt_norm){place_of(&r->m->cfg, NORM_1), -1, b->width, x, NULL, b->rstd1};
}

static struct zt_norm norm_2(const struct zt_run *r, const struct block *b)
{
    return (struct zt_norm){place_of(&r->m->cfg, NORM_2), -1, b->width, b->x_mid, NULL, b->rstd2};
}

/* The norm of each head of q, or of k: rows times heads of head_dim. */
static struct zt_norm head_norm(const struct zt_run *r, int param, struct zt_ref x, float *rstd)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    return (struct zt_norm){place_of(cfg, param), -1, cfg->head_dim, x, NULL, rstd};
}

static void turn(struct zt_run *r, const struct block *b, struct zt_ref q, struct zt_ref k,
                 bool inverse)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    const struct zt_rope a = {
        .rows = b->rows,
        .ldq = b->q_width,
        .ldk = b->kv_width,
        .n_head = cfg->n_head,
        .n_kv_head = cfg->n_kv_head,
        .head_dim = cfg->head_dim,
        .positions = r->c->batch.positions,
        .rule = cfg->rope,
        .inverse = inverse,
        .q = q,
        .k = k,
    };
    if (!r->dry)
        r->c->dev->ops->rope(r->c->stream, &a);
}

/* q and k, as they are or, with qk_norm, of each head normed, to q_to and k_to; then turned. */
static void norm_and_turn(struct zt_run *r, const struct block *b, struct zt_ref q_to,
                          struct zt_ref k_to)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    if (cfg->qk_norm) {
        const struct zt_norm q = head_norm(r, Q_NORM, b->q, b->rstd_q);
        const struct zt_norm k = head_norm(r, K_NORM, b->k, b->rstd_k);
        zt_norm_forward(r, &q, b->rows * cfg->n_head, q_to);
        zt_norm_forward(r, &k, b->rows * cfg->n_kv_head, k_to);
    }
    turn(r, b, q_to, k_to, false);
}

/* From the gradients of what attention read, in place, to those of what the products left. */
static void norm_and_turn_backward(struct zt_run *r, const struct block *b)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    const struct zt_ref none = {0};
    turn(r, b, b->dq, b->dk, true);
    if (!cfg->qk_norm)
        return;
    const struct zt_norm q = head_norm(r, Q_NORM, b->q, b->rstd_q);
    const struct zt_norm k = head_norm(r, K_NORM, b->k, b->rstd_k);
    zt_norm_backward(r, &q, b->rows * cfg->n_head, b->dq, none, b->dq);
    zt_norm_backward(r, &k, b->rows * cfg->n_kv_head, b->dk, none, b->dk);
}

static struct zt_attention block_attention(const struct zt_run *r, const struct block *b,
                                           struct zt_ref q, struct zt_ref k)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    return (struct zt_attention){
        .batch = r->c->shape->batch,
        .q_len = r->c->shape->seq_len,
        .k_len = r->c->shape->seq_len,
        .n_head = cfg->n_head,
        .n_kv_head = cfg->n_kv_head,
        .head_dim = cfg->head_dim,
        .ldq = b->q_width,
        .ldkv = b->kv_width,
        .ldo = b->q_width,
        .scale = 1 / sqrtf((float)cfg->head_dim),
        .seg_start = r->c->batch.seg_start,
        .drop = zt_run_dropout(r, cfg->attn_pdrop, ZT_DROP_ATTENTION),
        .q = q,
        .k = k,
        .v = b->v,
        .out = b->att,
        .lse = b->lse,
    };
}

static void swiglu(struct zt_run *r, const struct block *b, struct zt_ref out)
{
    const struct zt_swiglu_fwd a = {b->rows * b->inner, b->gate, b->up, out};
    if (!r->dry)
        r->c->dev->ops->swiglu_fwd(r->c->stream, &a);
}

/* ---- forward ---- */

/* A norm and the projections that start from its output. */
static void branches_forward(struct zt_run *r, const struct block *b, const struct zt_norm *norm,
                             const struct branch *branches, int n)
{
    const struct zt_ref y = b->wide;
    zt_norm_forward(r, norm, b->rows, y);
    for (int i = 0; i < n; i++)
        zt_run_matmul(r, zt_linear_fwd(r, &branches[i].linear, b->rows, y, branches[i].out));
}

/* q and k as attention reads them: in their places, or with qk_norm in `wide`, used up by then. */
static void attention_forward(struct zt_run *r, const struct block *b)
{
    const bool qk_norm = r->m->cfg.qk_norm;
    const struct zt_norm norm = norm_1(r, b);
    struct branch branches[3];
    const int n = attention_branches(r, b, branches);
    branches_forward(r, b, &norm, branches, n);
    const bool again = r->c->part == ZT_FWD_INNER;
    if (again && qk_norm)
        return; /* backward makes them once more */
    const struct zt_ref q = qk_norm ? b->wide : b->q;
    const struct zt_ref k = qk_norm ? zt_ref_from(q, b->rows * b->q_width) : b->k;
    norm_and_turn(r, b, q, k);
    if (again)
        return;
    zt_run_attention_fwd(r, block_attention(r, b, q, k));
    const struct zt_linear o_proj = linear(r, O_WEIGHT, O_BIAS, b->q_width, b->width);
    struct zt_matmul to_mid = zt_linear_fwd(r, &o_proj, b->rows, b->att, b->x_mid);
    to_mid.residual = norm.x;
    zt_run_matmul(r, to_mid);
}

static void block_forward(struct zt_run *r)
{
    const struct zt_seg_call *c = r->c;
    struct branch branches[3];
    struct block b;
    lay_out_block(r->m, c, &b);
    r->scratch = b.fwd_scratch;
    attention_forward(r, &b);
    const struct zt_norm norm = norm_2(r, &b);
    const int n = mlp_branches(r, &b, branches);
    branches_forward(r, &b, &norm, branches, n);
    if (c->part != ZT_FWD_ALL)
        return; /* x_out exists, or is not needed */
    swiglu(r, &b, b.wide);
    const struct zt_linear down_proj = linear(r, DOWN_WEIGHT, DOWN_BIAS, b.inner, b.width);
    struct zt_matmul to_out =
        zt_linear_fwd(r, &down_proj, b.rows, b.wide, zt_ref_at(c->x_out, 0, c->shape->dtype));
    to_out.residual = b.x_mid;
    zt_run_matmul(r, to_out);
}

/* ---- backward ---- */

/*
 * Backward of a norm and of the projections that start from it: dx = dresidual + gradient of the
 * norm's input. The norm's output is computed again, and gives its memory to its gradient, a sum of
 * products that is rounded only once.
 */
static void branches_backward(struct zt_run *r, const struct block *b, const struct zt_norm *norm,
                              const struct branch *branches, int n, struct zt_ref dresidual,
                              struct zt_ref dx)
{
    const struct zt_ref y = b->wide;
    zt_norm_forward(r, norm, b->rows, y);
    for (int i = 0; i < n; i++)
        zt_linear_grads(r, &branches[i].linear, b->rows, y, branches[i].dout, false);
    for (int i = 0; i < n; i++) {
        struct zt_matmul to_dy =
            zt_linear_bwd(r, &branches[i].linear, b->rows, branches[i].dout, b->dy);
        to_dy.accumulate = i > 0;
        zt_run_matmul(r, to_dy);
    }
    zt_norm_backward(r, norm, b->rows, b->dy, dresidual, dx);
}

/* Backward of the MLP half: d(x_mid) into dx_mid from dx_out. */
static void mlp_backward(struct zt_run *r, const struct block *b, struct zt_ref dx_out,
                         struct zt_ref dx_mid)
{
    const struct zt_linear down_proj = linear(r, DOWN_WEIGHT, DOWN_BIAS, b->inner, b->width);
    const struct zt_norm norm = norm_2(r, b);
    const struct zt_ref h = b->wide, dh = b->wide;
    struct branch branches[3];

    swiglu(r, b, h);
    zt_linear_grads(r, &down_proj, b->rows, h, dx_out, false);
    zt_run_matmul(r, zt_linear_bwd(r, &down_proj, b->rows, dx_out, dh));
    const struct zt_swiglu_bwd a = {b->rows * b->inner, dh, b->gate, b->up, b->gate, b->up};
    if (!r->dry)
        r->c->dev->ops->swiglu_bwd(r->c->stream, &a);
    const int n = mlp_branches(r, b, branches);
    branches_backward(r, b, &norm, branches, n, dx_out, dx_mid);
}

/* Backward of the attention half: dx holds d(x_mid) and becomes d(x_in). */
static void attention_backward(struct zt_run *r, const struct block *b, struct zt_ref dx)
{
    const bool qk_norm = r->m->cfg.qk_norm;
    const struct zt_linear o_proj = linear(r, O_WEIGHT, O_BIAS, b->q_width, b->width);
    const struct zt_norm norm = norm_1(r, b);
    const struct zt_ref datt = b->wide;
    const struct zt_ref q = qk_norm ? zt_ref_from(b->wide, b->rows * b->q_width) : b->q;
    const struct zt_ref k = qk_norm ? zt_ref_from(q, b->rows * b->q_width) : b->k;
    struct branch branches[3];

    zt_linear_grads(r, &o_proj, b->rows, b->att, dx, false);
    zt_run_matmul(r, zt_linear_bwd(r, &o_proj, b->rows, dx, datt));
    if (qk_norm)
        norm_and_turn(r, b, q, k);
    struct zt_attention a = block_attention(r, b, q, k);
    a.dout = datt;
    a.dq = b->dq;
    a.dk = b->dk;
    a.dv = b->dv;
    zt_run_attention_bwd(r, a);
    norm_and_turn_backward(r, b);
    const int n = attention_branches(r, b, branches);
    branches_backward(r, b, &norm, branches, n, dx, dx);
}

static void block_backward(struct zt_run *r)
{
    const struct zt_seg_call *c = r->c;
    const struct zt_ref dx = zt_ref_at(c->dx_in, 0, c->shape->dtype);
    struct block b;
    lay_out_block(r->m, c, &b);
    r->scratch = b.bwd_scratch;
    mlp_backward(r, &b, zt_ref_at(c->dx_out, 0, c->shape->dtype), dx);
    attention_backward(r, &b, dx);
}

static void block_act_layout(const struct zt_model *m, const struct zt_shape *shape,
                             struct zt_layout *kept, struct zt_layout *inner)
{
    struct block b;
    lay_out_block(m, &(struct zt_seg_call){.shape = shape}, &b);
    *kept = b.kept;
    *inner = b.in;
}

static const struct zt_block_fns llama_block = {block_forward, block_backward, block_act_layout};
