/*
 * GPT-2 (Radford et al. 2019) as Hugging Face's GPT2LMHeadModel has it: learned positions, pre-norm
 * blocks with biases, GELU in its tanh form, a final LayerNorm, and a head that is the token
 * embedding again when tied.
 *
 *     x_mid = x + c_proj(attention(c_attn(ln_1(x))))
 *     x_out = x_mid + mlp.c_proj(gelu(c_fc(ln_2(x_mid))))
 *
 * In training dropout follows the sum of the embeddings (embd_pdrop), both c_proj (resid_pdrop) and the
 * softmax of attention (attn_pdrop).
 */
#include "model/model_internal.h"

#include <math.h>

/* Positions of a block's parameters in its segment, the order of Hugging Face's file. */
enum {
    LN_1_WEIGHT,
    LN_1_BIAS,
    ATTN_WEIGHT,
    ATTN_BIAS,
    PROJ_WEIGHT,
    PROJ_BIAS,
    LN_2_WEIGHT,
    LN_2_BIAS,
    FC_WEIGHT,
    FC_BIAS,
    MLP_PROJ_WEIGHT,
    MLP_PROJ_BIAS,
    N_BLOCK_PARAMS,
};

/* ---- description ---- */

static int check_config(const struct zt_model_config *cfg, struct zt_err *err)
{
    if (cfg->n_kv_head != cfg->n_head)
        return zt_err_set(err, ZT_EINPUT,
                          "model: n_kv_head is %d, but gpt2 has one for each of its %d heads",
                          cfg->n_kv_head, cfg->n_head);
    if ((int64_t)cfg->head_dim * cfg->n_head != cfg->n_embd)
        return zt_err_set(
            err, ZT_EINPUT,
            "model: n_embd %lld is not n_head %d times a head of %d; change n_embd or n_head",
            (long long)cfg->n_embd, cfg->n_head, cfg->head_dim);
    return zt_check_size("n_inner", cfg->n_inner, ZT_MAX_WIDTH, err);
}

static void describe_block(struct zt_model *m, struct zt_arena *arena, int layer)
{
    const int64_t c = m->cfg.n_embd, inner = m->cfg.n_inner;
    const float std = m->cfg.initializer_range;
    /* The residual stream adds up 2 n_layer projections: keep its variance (GPT-2 paper, 2.3). */
    const float proj_std = std / sqrtf(2 * (float)m->cfg.n_layer);
    const struct {
        const char *name;
        int64_t dim0, dim1;
        enum zt_tp_split split;
        enum zt_init_kind init;
        float std;
    } params[N_BLOCK_PARAMS] = {
        [LN_1_WEIGHT] = {"ln_1.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES, 0},
        [LN_1_BIAS] = {"ln_1.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS, 0},
        [ATTN_WEIGHT] = {"attn.c_attn.weight", c, 3 * c, ZT_TP_COLUMNS, ZT_INIT_NORMAL, std},
        [ATTN_BIAS] = {"attn.c_attn.bias", 3 * c, 0, ZT_TP_COLUMNS, ZT_INIT_ZEROS, 0},
        [PROJ_WEIGHT] = {"attn.c_proj.weight", c, c, ZT_TP_ROWS, ZT_INIT_NORMAL, proj_std},
        [PROJ_BIAS] = {"attn.c_proj.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS, 0},
        [LN_2_WEIGHT] = {"ln_2.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES, 0},
        [LN_2_BIAS] = {"ln_2.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS, 0},
        [FC_WEIGHT] = {"mlp.c_fc.weight", c, inner, ZT_TP_COLUMNS, ZT_INIT_NORMAL, std},
        [FC_BIAS] = {"mlp.c_fc.bias", inner, 0, ZT_TP_COLUMNS, ZT_INIT_ZEROS, 0},
        [MLP_PROJ_WEIGHT] = {"mlp.c_proj.weight", inner, c, ZT_TP_ROWS, ZT_INIT_NORMAL, proj_std},
        [MLP_PROJ_BIAS] = {"mlp.c_proj.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS, 0},
    };
    const struct zt_segment *s =
        zt_add_segment(m, ZT_SEG_BLOCK, zt_arena_printf(arena, "h.%d", layer), layer);
    for (int i = 0; i < N_BLOCK_PARAMS; i++) {
        const char *name = zt_arena_printf(arena, "%s.%s", s->name, params[i].name);
        zt_add_param(m, name, params[i].dim0, params[i].dim1, params[i].split, params[i].init,
                     params[i].std);
    }
}

static const struct zt_block_fns gpt2_block;

int zt_gpt2_describe(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model *m,
                     struct zt_err *err)
{
    m->cfg = *cfg;
    if (!m->cfg.n_inner)
        m->cfg.n_inner = 4 * cfg->n_embd;
    int rc = check_config(&m->cfg, err);
    if (rc)
        return rc;
    const int64_t c = cfg->n_embd;
    const float std = cfg->initializer_range;
    m->block = &gpt2_block;
    zt_model_reserve(m, arena, cfg->n_layer + 2, N_BLOCK_PARAMS * cfg->n_layer + 5);

    zt_add_segment(m, ZT_SEG_EMBED, "embed", -1);
    zt_add_param(m, "wte.weight", cfg->vocab_size, c, ZT_TP_ROWS, ZT_INIT_NORMAL, std);
    zt_add_param(m, "wpe.weight", cfg->n_positions, c, ZT_TP_NONE, ZT_INIT_NORMAL, std);
    for (int i = 0; i < cfg->n_layer; i++)
        describe_block(m, arena, i);
    zt_add_segment(m, ZT_SEG_HEAD, "head", -1);
    zt_add_param(m, "ln_f.weight", c, 0, ZT_TP_NONE, ZT_INIT_ONES, 0);
    zt_add_param(m, "ln_f.bias", c, 0, ZT_TP_NONE, ZT_INIT_ZEROS, 0);
    zt_add_lm_head(m);
    return zt_model_finish(m, err);
}

/* ---- blocks ---- */

/*
 * What forward keeps for backward, in the training type but for the statistics: 3 + 1 + 1 (qkv,
 * attention, x_mid) and 2 n_inner / n_embd times the residual stream. The norms' outputs are
 * computed again: one cheap pass each for an eighth of the memory. GELU's output is kept, since no
 * kernel makes it again without its matmul. Selective recomputation keeps attention, with its lse, and
 * x_mid; the rest is act's inner part, the norms' statistics too, which come with their outputs.
 *
 * Outside training qkv and the GELU's output share bytes of tmp, and x_out serves for the norms'
 * outputs and the attention's until it is written itself. No sum is done in place that training does
 * apart: both give the same bits.
 */
struct block_tensors {
    struct zt_ref qkv;      /* (rows, 3 C) */
    struct zt_ref att;      /* (rows, C) */
    struct zt_ref x_mid;    /* (rows, C) */
    struct zt_ref pre_gelu; /* (rows, n_inner), with room for 3 C; absent outside training */
    struct zt_ref gelu;     /* (rows, n_inner) */
    struct zt_ref y;        /* (rows, C): output of either norm; forward only */
    float *mean1, *rstd1, *mean2, *rstd2; /* (rows) */
    float *lse;                           /* (batch, n_head, T) */
    struct zt_layout kept, inner;
    size_t scratch_bytes;
};

static float *floats_at(const void *base, size_t offset)
{
    return zt_ref_at(base, offset, ZT_F32).ptr;
}

static void lay_out_block(const struct zt_model *m, const struct zt_seg_call *call,
                          struct block_tensors *t)
{
    const struct zt_shape *s = call->shape;
    const int64_t rows = s->batch * s->seq_len, c = m->cfg.n_embd, inner = m->cfg.n_inner;
    struct zt_layout kept = {0}, in = {0}, tmp = {0};
    struct zt_layout *l = s->train ? &kept : &tmp;
    const void *base = s->train ? call->act : call->tmp;

    t->lse = floats_at(base, zt_layout_add(l, rows * m->cfg.n_head, ZT_F32));
    if (s->train) {
        t->att = zt_ref_at(base, zt_layout_add(l, rows * c, s->dtype), s->dtype);
        t->x_mid = zt_ref_at(base, zt_layout_add(l, rows * c, s->dtype), s->dtype);
        base = zt_act_inner(call, kept.bytes);
        l = &in;
    }
    t->mean1 = floats_at(base, zt_layout_add(l, rows, ZT_F32));
    t->rstd1 = floats_at(base, zt_layout_add(l, rows, ZT_F32));
    t->mean2 = floats_at(base, zt_layout_add(l, rows, ZT_F32));
    t->rstd2 = floats_at(base, zt_layout_add(l, rows, ZT_F32));
    if (s->train) {
        t->qkv = zt_ref_at(base, zt_layout_add(l, rows * 3 * c, s->dtype), s->dtype);
        t->pre_gelu =
            zt_ref_at(base, zt_layout_add(l, rows * ZT_MAX(inner, 3 * c), s->dtype), s->dtype);
        t->gelu = zt_ref_at(base, zt_layout_add(l, rows * inner, s->dtype), s->dtype);
        t->y = zt_ref_at(call->tmp, zt_layout_add(&tmp, rows * c, s->dtype), s->dtype);
    } else {
        const int64_t wide = ZT_MAX(3 * c, inner);
        t->qkv = t->gelu = zt_ref_at(base, zt_layout_add(l, rows * wide, s->dtype), s->dtype);
        t->pre_gelu = (struct zt_ref){NULL, s->dtype};
        t->x_mid = zt_ref_at(base, zt_layout_add(l, rows * c, s->dtype), s->dtype);
        t->att = t->y = zt_ref_at(call->x_out, 0, s->dtype);
    }
    t->kept = kept;
    t->inner = in;
    t->scratch_bytes = tmp.bytes;
}

/* A Conv1D of a block; its bias follows its weight. */
static struct zt_linear conv1d(int weight, int64_t n_in, int64_t n_out)
{
    return (struct zt_linear){n_in, n_out, n_out, false, weight, weight + 1};
}

static struct zt_attention block_attention(const struct zt_run *r, const struct block_tensors *t)
{
    const struct zt_model_config *cfg = &r->m->cfg;
    const int64_t c = cfg->n_embd;
    return (struct zt_attention){
        .batch = r->c->shape->batch,
        .q_len = r->c->shape->seq_len,
        .k_len = r->c->shape->seq_len,
        .n_head = cfg->n_head,
        .n_kv_head = cfg->n_kv_head,
        .head_dim = cfg->head_dim,
        .ldq = 3 * c,
        .ldkv = 3 * c,
        .ldo = c,
        .scale = 1 / sqrtf((float)cfg->head_dim),
        .seg_start = r->c->batch.seg_start,
        .drop = zt_run_dropout(r, cfg->attn_pdrop, ZT_DROP_ATTENTION),
        .q = t->qkv,
        .k = zt_ref_from(t->qkv, c),
        .v = zt_ref_from(t->qkv, 2 * c),
        .out = t->att,
        .lse = t->lse,
    };
}

/* The product of a branch, with dropout if there is any, onto the residual stream. */
static void add_branch(struct zt_run *r, struct zt_matmul a, enum zt_drop_site site,
                       struct zt_ref residual)
{
    const struct zt_dropout drop = zt_run_dropout(r, r->m->cfg.resid_pdrop, site);
    if (!drop.threshold)
        a.residual = residual;
    zt_run_matmul(r, a);
    if (drop.threshold)
        zt_run_drop_add(r, &drop, a.n, a.c, residual, a.c);
}

/* The gradient of that product: dx, that of the sum, or what dropout leaves of it in `kept`. */
static struct zt_ref branch_gradient(struct zt_run *r, enum zt_drop_site site, struct zt_ref dx,
                                     struct zt_ref kept)
{
    const struct zt_dropout drop = zt_run_dropout(r, r->m->cfg.resid_pdrop, site);
    if (!drop.threshold)
        return dx;
    zt_run_drop_add(r, &drop, r->m->cfg.n_embd, dx, (struct zt_ref){0}, kept);
    return kept;
}

static void make_qkv(struct zt_run *r, const struct block_tensors *t, int64_t rows,
                     struct zt_ref x_in)
{
    const int64_t width = r->m->cfg.n_embd;
    const struct zt_norm ln_1 = {LN_1_WEIGHT, LN_1_BIAS, width, x_in, t->mean1, t->rstd1};
    zt_norm_forward(r, &ln_1, rows, t->y);
    const struct zt_linear c_attn = conv1d(ATTN_WEIGHT, width, 3 * width);
    zt_run_matmul(r, zt_linear_fwd(r, &c_attn, rows, t->y, t->qkv));
}

static void make_gelu(struct zt_run *r, const struct block_tensors *t, int64_t rows)
{
    const int64_t width = r->m->cfg.n_embd, inner = r->m->cfg.n_inner;
    const struct zt_norm ln_2 = {LN_2_WEIGHT, LN_2_BIAS, width, t->x_mid, t->mean2, t->rstd2};
    zt_norm_forward(r, &ln_2, rows, t->y);
    const struct zt_linear c_fc = conv1d(FC_WEIGHT, width, inner);
    struct zt_matmul fc = zt_linear_fwd(r, &c_fc, rows, t->y, t->gelu);
    fc.epilogue = ZT_EPI_GELU;
    fc.aux = t->pre_gelu;
    zt_run_matmul(r, fc);
}

static void block_forward(struct zt_run *r)
{
    const struct zt_seg_call *c = r->c;
    const int64_t rows = c->shape->batch * c->shape->seq_len;
    const int64_t width = r->m->cfg.n_embd, inner = r->m->cfg.n_inner;
    struct block_tensors t;
    lay_out_block(r->m, c, &t);
    r->scratch = t.scratch_bytes;
    const struct zt_ref x_in = zt_ref_at(c->x_in, 0, c->shape->dtype);

    make_qkv(r, &t, rows, x_in);
    if (c->part != ZT_FWD_INNER) {
        zt_run_attention_fwd(r, block_attention(r, &t));
        const struct zt_linear c_proj = conv1d(PROJ_WEIGHT, width, width);
        add_branch(r, zt_linear_fwd(r, &c_proj, rows, t.att, t.x_mid), ZT_DROP_PROJECTION, x_in);
    }
    make_gelu(r, &t, rows);
    if (c->part != ZT_FWD_ALL)
        return; /* x_out exists, or is not needed */
    const struct zt_linear mlp_proj = conv1d(MLP_PROJ_WEIGHT, inner, width);
    const struct zt_ref x_out = zt_ref_at(c->x_out, 0, c->shape->dtype);
    add_branch(r, zt_linear_fwd(r, &mlp_proj, rows, t.gelu, x_out), ZT_DROP_MLP, t.x_mid);
}

/*
 * Backward of the MLP half: d(x_mid) into dx_mid from dx_out. What has been used up gives its
 * memory to what comes next: the GELU's output to the gradient of its input, dx_mid to what dropout
 * leaves of dx_out, then to the norm's output and its gradient on the way.
 */
static void mlp_backward(struct zt_run *r, const struct block_tensors *t, int64_t rows,
                         struct zt_ref dx_out, struct zt_ref dx_mid)
{
    const int64_t width = r->m->cfg.n_embd, inner = r->m->cfg.n_inner;
    const struct zt_linear mlp_proj = conv1d(MLP_PROJ_WEIGHT, inner, width);
    const struct zt_linear c_fc = conv1d(FC_WEIGHT, width, inner);
    const struct zt_norm ln_2 = {LN_2_WEIGHT, LN_2_BIAS, width, t->x_mid, t->mean2, t->rstd2};
    const struct zt_ref dpre = t->gelu, y = dx_mid, dy = dx_mid;

    const struct zt_ref dbranch = branch_gradient(r, ZT_DROP_MLP, dx_out, dx_mid);
    zt_linear_grads(r, &mlp_proj, rows, t->gelu, dbranch, false);
    struct zt_matmul to_dpre = zt_linear_bwd(r, &mlp_proj, rows, dbranch, dpre);
    to_dpre.epilogue = ZT_EPI_DGELU;
    to_dpre.aux = t->pre_gelu;
    zt_run_matmul(r, to_dpre);
    zt_norm_forward(r, &ln_2, rows, y);
    zt_linear_grads(r, &c_fc, rows, y, dpre, false);
    zt_run_matmul(r, zt_linear_bwd(r, &c_fc, rows, dpre, dy));
    zt_norm_backward(r, &ln_2, rows, dy, dx_out, dx_mid);
}

/*
 * Backward of the attention half: dx holds d(x_mid) and becomes d(x_in). x_mid's memory takes the
 * gradient of the attention's output, then the norm's output and its gradient; pre_gelu's takes
 * what dropout leaves of dx, then the gradient of q, k and v.
 */
static void attention_backward(struct zt_run *r, const struct block_tensors *t, int64_t rows,
                               struct zt_ref x_in, struct zt_ref dx)
{
    const int64_t width = r->m->cfg.n_embd;
    const struct zt_linear c_proj = conv1d(PROJ_WEIGHT, width, width);
    const struct zt_linear c_attn = conv1d(ATTN_WEIGHT, width, 3 * width);
    const struct zt_norm ln_1 = {LN_1_WEIGHT, LN_1_BIAS, width, x_in, t->mean1, t->rstd1};
    const struct zt_ref datt = t->x_mid, y = t->x_mid, dy = t->x_mid, dqkv = t->pre_gelu;

    const struct zt_ref dbranch = branch_gradient(r, ZT_DROP_PROJECTION, dx, t->pre_gelu);
    zt_linear_grads(r, &c_proj, rows, t->att, dbranch, false);
    zt_run_matmul(r, zt_linear_bwd(r, &c_proj, rows, dbranch, datt));
    struct zt_attention a = block_attention(r, t);
    a.dout = datt;
    a.dq = dqkv;
    a.dk = zt_ref_from(dqkv, width);
    a.dv = zt_ref_from(dqkv, 2 * width);
    zt_run_attention_bwd(r, a);
    zt_norm_forward(r, &ln_1, rows, y);
    zt_linear_grads(r, &c_attn, rows, y, dqkv, false);
    zt_run_matmul(r, zt_linear_bwd(r, &c_attn, rows, dqkv, dy));
    zt_norm_backward(r, &ln_1, rows, dy, dx, dx);
}

static void block_backward(struct zt_run *r)
{
    const struct zt_seg_call *c = r->c;
    const int64_t rows = c->shape->batch * c->shape->seq_len;
    const enum zt_dtype dtype = c->shape->dtype;
    struct block_tensors t;
    lay_out_block(r->m, c, &t);
    struct zt_ref dx = zt_ref_at(c->dx_in, 0, dtype);
    mlp_backward(r, &t, rows, zt_ref_at(c->dx_out, 0, dtype), dx);
    attention_backward(r, &t, rows, zt_ref_at(c->x_in, 0, dtype), dx);
}

static void block_act_layout(const struct zt_model *m, const struct zt_shape *shape,
                             struct zt_layout *kept, struct zt_layout *inner)
{
    struct block_tensors t;
    lay_out_block(m, &(struct zt_seg_call){.shape = shape}, &t);
    *kept = t.kept;
    *inner = t.inner;
}

static const struct zt_block_fns gpt2_block = {block_forward, block_backward, block_act_layout};
