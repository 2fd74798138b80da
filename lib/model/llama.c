/*
 * Llama (Touvron et al. 2023) as Hugging Face's LlamaForCausalLM has it: RMSNorm, rotary positions,
 * grouped key/value heads, SwiGLU, no biases. Described and sized here, so that such models can be
 * planned; they cannot be run yet (no forward and backward).
 *
 *     x_mid = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n))), n = norm(x)
 *     x_out = x_mid + down_proj(silu(gate_proj(n)) * up_proj(n)),                 n = norm(x_mid)
 */
#include "model/model_internal.h"

/* Positions of a block's parameters in its segment, the order of Hugging Face's file. */
enum {
    NORM_1_WEIGHT,
    Q_WEIGHT,
    K_WEIGHT,
    V_WEIGHT,
    O_WEIGHT,
    NORM_2_WEIGHT,
    GATE_WEIGHT,
    UP_WEIGHT,
    DOWN_WEIGHT,
    N_BLOCK_PARAMS,
};

/* ---- description ---- */

/* Rows of q and of k and v: heads times their width, which need not be n_embd. */
static int64_t q_width(const struct zt_model_config *cfg)
{
    return (int64_t)cfg->n_head * cfg->head_dim;
}

static int64_t kv_width(const struct zt_model_config *cfg)
{
    return (int64_t)cfg->n_kv_head * cfg->head_dim;
}

static int check_config(const struct zt_model_config *cfg, struct zt_err *err)
{
    if (cfg->n_kv_head < 1 || cfg->n_head % cfg->n_kv_head)
        return zt_err_set(
            err, ZT_EINPUT,
            "model: num_attention_heads %d is not a multiple of num_key_value_heads %d",
            cfg->n_head, cfg->n_kv_head);
    int rc = zt_check_size("head_dim", cfg->head_dim, ZT_MAX_WIDTH, err);
    if (!rc)
        rc = zt_check_size("num_attention_heads x head_dim", q_width(cfg), ZT_MAX_WIDTH, err);
    if (!rc)
        rc = zt_check_size("intermediate_size", cfg->n_inner, ZT_MAX_WIDTH, err);
    return rc;
}

static void describe_block(struct zt_model *m, struct zt_arena *arena, int layer)
{
    const struct zt_model_config *cfg = &m->cfg;
    const int64_t c = cfg->n_embd, inner = cfg->n_inner;
    const struct {
        const char *name;
        int64_t dim0, dim1;
        enum zt_tp_split split;
    } params[N_BLOCK_PARAMS] = {
        [NORM_1_WEIGHT] = {"input_layernorm.weight", c, 0, ZT_TP_NONE},
        [Q_WEIGHT] = {"self_attn.q_proj.weight", q_width(cfg), c, ZT_TP_ROWS},
        [K_WEIGHT] = {"self_attn.k_proj.weight", kv_width(cfg), c, ZT_TP_ROWS},
        [V_WEIGHT] = {"self_attn.v_proj.weight", kv_width(cfg), c, ZT_TP_ROWS},
        [O_WEIGHT] = {"self_attn.o_proj.weight", c, q_width(cfg), ZT_TP_COLUMNS},
        [NORM_2_WEIGHT] = {"post_attention_layernorm.weight", c, 0, ZT_TP_NONE},
        [GATE_WEIGHT] = {"mlp.gate_proj.weight", inner, c, ZT_TP_ROWS},
        [UP_WEIGHT] = {"mlp.up_proj.weight", inner, c, ZT_TP_ROWS},
        [DOWN_WEIGHT] = {"mlp.down_proj.weight", c, inner, ZT_TP_COLUMNS},
    };
    const struct zt_segment *s =
        zt_add_segment(m, ZT_SEG_BLOCK, zt_arena_printf(arena, "layers.%d", layer), layer);
    for (int i = 0; i < N_BLOCK_PARAMS; i++) {
        const char *name = zt_arena_printf(arena, "%s.%s", s->name, params[i].name);
        const bool matrix = params[i].dim1 != 0;
        zt_add_param(m, name, params[i].dim0, params[i].dim1, params[i].split,
                     matrix ? ZT_INIT_NORMAL : ZT_INIT_ONES, matrix ? cfg->initializer_range : 0);
    }
}

static const struct zt_model_ops llama_ops;

int zt_llama_describe(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model *m,
                      struct zt_err *err)
{
    int rc = check_config(cfg, err);
    if (rc)
        return rc;
    const int64_t c = cfg->n_embd;
    const float std = cfg->initializer_range;
    m->cfg = *cfg;
    m->ops = &llama_ops;
    zt_model_reserve(m, arena, cfg->n_layer + 2, N_BLOCK_PARAMS * cfg->n_layer + 3);

    zt_add_segment(m, ZT_SEG_EMBED, "embed", -1);
    zt_add_param(m, "embed_tokens.weight", cfg->vocab_size, c, ZT_TP_ROWS, ZT_INIT_NORMAL, std);
    for (int i = 0; i < cfg->n_layer; i++)
        describe_block(m, arena, i);
    zt_add_segment(m, ZT_SEG_HEAD, "head", -1);
    zt_add_param(m, "norm.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES, 0);
    if (cfg->tie_embeddings)
        zt_use_param(m, 0);
    else
        zt_add_param(m, "lm_head.weight", cfg->vocab_size, c, ZT_TP_ROWS, ZT_INIT_NORMAL, std);
    return zt_model_finish(m, err);
}

/* ---- sizes: the products of a block in dry runs ---- */

/*
 * Kept for backward, as GPT-2's blocks do it: q, k, v, attention, x_mid, gate, up and their
 * product; the norms' outputs are computed again, and gradients take the memory of what is used up.
 * Outside training all of it is scratch, and x_mid is x_out.
 */
static size_t block_act_bytes(const struct zt_model_config *cfg, const struct zt_shape *s)
{
    const int64_t rows = s->batch * s->seq_len;
    struct zt_layout l = {0};
    for (int i = 0; i < 2; i++)
        zt_layout_add(&l, rows, ZT_F32);           /* rstd of either norm */
    zt_layout_add(&l, rows * cfg->n_head, ZT_F32); /* log-sum-exp */
    zt_layout_add(&l, rows * (q_width(cfg) + 2 * kv_width(cfg)), s->dtype);
    zt_layout_add(&l, rows * q_width(cfg), s->dtype);
    if (s->train)
        zt_layout_add(&l, rows * cfg->n_embd, s->dtype);
    for (int i = 0; i < 3; i++)
        zt_layout_add(&l, rows * cfg->n_inner, s->dtype);
    return l.bytes;
}

static void block_linears(const struct zt_model_config *cfg, struct zt_linear linears[7])
{
    const int64_t c = cfg->n_embd, q = q_width(cfg), kv = kv_width(cfg), inner = cfg->n_inner;
    const struct {
        int64_t n_in, n_out;
        int w;
    } shapes[7] = {{c, q, Q_WEIGHT},       {c, kv, K_WEIGHT},       {c, kv, V_WEIGHT},
                   {q, c, O_WEIGHT},       {c, inner, GATE_WEIGHT}, {c, inner, UP_WEIGHT},
                   {inner, c, DOWN_WEIGHT}};
    for (int i = 0; i < 7; i++)
        linears[i] = (struct zt_linear){shapes[i].n_in, shapes[i].n_out, shapes[i].n_out,
                                        true,           shapes[i].w,     -1};
}

static struct zt_attention block_attention(const struct zt_run *r)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    const struct zt_shape *s = r->c->shape;
    const struct zt_ref absent = {NULL, s->dtype};
    return (struct zt_attention){
        .batch = s->batch,
        .q_len = s->seq_len,
        .k_len = s->seq_len,
        .n_head = cfg->n_head,
        .n_kv_head = cfg->n_kv_head,
        .head_dim = cfg->head_dim,
        .ldq = q_width(cfg) + 2 * kv_width(cfg),
        .ldkv = q_width(cfg) + 2 * kv_width(cfg),
        .ldo = q_width(cfg),
        .q = absent,
        .k = absent,
        .v = absent,
        .out = absent,
        .dout = absent,
        .dq = absent,
        .dk = absent,
        .dv = absent,
    };
}

static void block_forward(struct zt_run *r)
{
    const struct zt_shape *s = r->c->shape;
    const int64_t rows = s->batch * s->seq_len;
    const struct zt_ref t = {NULL, s->dtype};
    struct zt_linear linears[7];
    struct zt_layout tmp = {0};
    zt_layout_add(&tmp, rows * r->m->cfg.n_embd, s->dtype); /* a norm's output */
    r->scratch = tmp.bytes + (s->train ? 0 : block_act_bytes(&r->m->cfg, s));
    block_linears(&r->m->cfg, linears);
    for (int i = 0; i < 7; i++)
        zt_run_matmul(r, zt_linear_fwd(r, &linears[i], rows, t, t));
    zt_run_attention_fwd(r, block_attention(r));
}

static void block_backward(struct zt_run *r)
{
    const struct zt_shape *s = r->c->shape;
    const int64_t rows = s->batch * s->seq_len;
    const struct zt_ref t = {NULL, s->dtype};
    struct zt_linear linears[7];
    block_linears(&r->m->cfg, linears);
    for (int i = 0; i < 7; i++) {
        zt_linear_grads(r, &linears[i], rows, t, t, false);
        zt_run_matmul(r, zt_linear_bwd(r, &linears[i], rows, t, t));
    }
    zt_run_attention_bwd(r, block_attention(r));
    const struct zt_norm norm = {.w = NORM_1_WEIGHT, .b = NORM_1_WEIGHT, .x = t};
    zt_norm_backward(r, &norm, rows, t, t, t);
}

static void llama_size(const struct zt_model *m, int segment, const struct zt_shape *shape,
                       struct zt_segment_size *out)
{
    static const struct {
        void (*forward)(struct zt_run *r);
        void (*backward)(struct zt_run *r);
    } fns[] = {
        [ZT_SEG_EMBED] = {zt_embed_forward, zt_embed_backward},
        [ZT_SEG_BLOCK] = {block_forward, block_backward},
        [ZT_SEG_HEAD] = {zt_head_forward, zt_head_backward},
    };
    const enum zt_segment_kind kind = m->segments[segment].kind;
    const int64_t rows = shape->batch * shape->seq_len;
    *out = (struct zt_segment_size){0};
    zt_run_size(m, segment, shape, fns[kind].forward, fns[kind].backward, out);
    if (kind != ZT_SEG_HEAD)
        out->x_out = (size_t)(rows * m->cfg.n_embd) * zt_dtype_bytes(shape->dtype);
    if (kind == ZT_SEG_BLOCK && shape->train)
        out->act = block_act_bytes(&m->cfg, shape);
}

static const struct zt_model_ops llama_ops = {.size = llama_size};
