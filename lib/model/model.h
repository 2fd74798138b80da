/*
 * model.h: what a model is made of, and how its segments are computed.
 *
 * A model is a const description: parameter specs and segments. It needs no device and no weights,
 * so a plan of any size can be made from it. A *segment* is what is computed together: embedding,
 * each block, final norm + head. A *unit* (plan/plan.h) is what is gathered, reduced and updated
 * together.
 *
 * forward() and backward() enqueue device kernels on one stream; every operand is handed to them
 * (struct zt_seg_call), they allocate nothing and keep no state.
 */
#ifndef ZT_MODEL_MODEL_H
#define ZT_MODEL_MODEL_H

#include "base/arena.h"
#include "dev/dev.h"

enum { ZT_MAX_DIMS = 4, ZT_MAX_SEG_PARAMS = 32 };

enum zt_tp_split { ZT_TP_NONE, ZT_TP_ROWS, ZT_TP_COLUMNS }; /* how tensor parallelism cuts it */

enum zt_init_kind { ZT_INIT_ZEROS, ZT_INIT_ONES, ZT_INIT_NORMAL };

struct zt_param_spec {
    const char *name; /* Hugging Face name without the "transformer." or "model." prefix */
    int n_dims;
    int64_t dims[ZT_MAX_DIMS];
    int64_t n_elems;
    bool trainable;
    bool decay; /* weight decay applies: 2 or more dims, unless a group says otherwise */
    float weight_decay, lr_scale; /* optim/groups.h fills them in; before, 0 and 1 */
    bool scattered; /* its gradient is summed piecewise (embedding, chunked head): held in fp32 */
    enum zt_tp_split tp_split;
    enum zt_init_kind init;
    float init_std;   /* NORMAL */
    int home_segment; /* the first segment that uses it; a tied head uses it again */
};

/* LLAMA: everything built like it, Qwen 2 and 3 and Mistral too; the switches below tell them apart. */
/*
 * Bounds of a configuration, so that products of two sizes, or of a size and the tokens of a batch,
 * stay far from overflow. Tokens are int32.
 */
enum { ZT_MAX_HEAD_DIM = 1024 }; /* attention's tiles are whole heads */
enum { ZT_MAX_LAYERS = 1 << 16, ZT_MAX_WIDTH = 1 << 24, ZT_MAX_VOCAB = INT32_MAX };

enum zt_model_type { ZT_MODEL_GPT2, ZT_MODEL_LLAMA };

/*
 * Hugging Face's config.json, by our names. 0 where the file says nothing: n_kv_head is then
 * n_head, head_dim n_embd / n_head, n_inner 4 n_embd (GPT-2), rope.theta 10000; zt_model.cfg has
 * the values filled in.
 */
struct zt_model_config {
    enum zt_model_type type;
    int n_layer, n_head, n_kv_head, head_dim;
    int64_t n_embd, n_inner, vocab_size, n_positions;
    float norm_eps, initializer_range;
    bool tie_embeddings;
    bool qkv_bias, o_bias, mlp_bias; /* LLAMA: which projections have biases */
    bool qk_norm;                    /* LLAMA: RMSNorm of each head of q and k (Qwen 3) */
    struct zt_rope_rule rope;        /* LLAMA */
    double embd_pdrop, resid_pdrop;  /* GPT2: dropout of embeddings, of what is added to them */
    double attn_pdrop;               /* of attention's probabilities; all three in [0, 1) */
};

enum zt_segment_kind { ZT_SEG_EMBED, ZT_SEG_BLOCK, ZT_SEG_HEAD };

struct zt_segment {
    enum zt_segment_kind kind;
    const char *name; /* "embed", "h.0", "head" */
    int layer;        /* of a block, else -1 */
    int n_params;
    int params[ZT_MAX_SEG_PARAMS]; /* indices into zt_model.params, in the model's file's order */
    bool weights_in_backward;      /* BACKWARD reads the weights (not for embeddings) */
    bool fused_backward; /* training has no FORWARD: BACKWARD computes the loss and the gradients */
    bool drops;          /* has dropout: passes of training read the step block */
};

struct zt_model {
    struct zt_model_config cfg;
    int n_params, n_segments;
    struct zt_param_spec *params; /* in segment order; units are runs of it */
    struct zt_segment *segments;  /* [0] embedding, [n-1] head */
    int64_t n_elems;              /* all parameters, tied ones once */
    const struct zt_model_ops *ops;
    const struct zt_block_fns *block; /* of the model's type, for ops */
};

/* The shape that a program is planned and run at. */
struct zt_shape {
    int64_t batch, seq_len; /* of one micro-batch; at most INT32_MAX tokens (the plan checks) */
    enum zt_dtype dtype;    /* parameters and activations */
    enum zt_dev_kind dev_kind;
    int n_threads;
    bool train; /* keep what backward needs; false: forward has no act, its tmp is larger instead */
};

struct zt_extent {
    size_t begin, end; /* bytes */
};

/* What lies between the tensors of a piece of memory, for their alignment: no kernel touches it. */
enum { ZT_MAX_GAPS = 24 };
struct zt_gaps {
    int n;
    struct zt_extent at[ZT_MAX_GAPS];
};

/*
 * Bytes and FLOPs of one segment at a shape. FLOPs are those of matrix products and attention, as
 * carried out, a multiply-add as two; causal attention counts the T (T + 1) / 2 pairs that it
 * needs, its backward five products of them (q k^T once more).
 */
struct zt_segment_size {
    size_t x_out;    /* residual stream leaving the segment (batch, seq_len, n_embd) */
    size_t act;      /* saved by forward for backward, x_in not included */
    size_t act_kept; /* its first part; the inner one follows (enum zt_forward_part) */
    struct zt_gaps kept_gaps, inner_gaps; /* of the two parts, each from its own beginning */
    size_t fwd_tmp;                       /* scratch of forward, kernels' workspace included */
    size_t bwd_tmp;
    double fwd_flops, bwd_flops;
    double act_flops, inner_flops; /* forward of ZT_FWD_ACT, ZT_FWD_INNER */
};

/*
 * What a forward pass at a training shape makes. A block's act has two parts, for selective
 * recomputation: *kept* is what takes few bytes or many FLOPs to make, *inner* is the rest, which the
 * projections behind the two norms make again from x_in and the kept part. Per row (token), in elements of
 * the training type, statistics left out; C is n_embd, I n_inner, T seq_len, Q and K the widths of q and of
 * k:
 *
 *              x_in   kept                     inner
 *     GPT-2    C      attention C, x_mid C     q, k, v 3 C; before and after GELU 2 I
 *     Llama    C      attention Q, x_mid C     q, k, v Q + 2 K; gate and up 2 I
 *
 *              FLOPs of ZT_FWD_INNER           what ZT_FWD_ACT has beyond that
 *     GPT-2    6 C^2 + 2 C I                   attention 2 C (T + 1), c_proj 2 C^2
 *     Llama    2 C (Q + 2 K + 2 I)             attention 2 Q (T + 1), o_proj 2 C Q
 *
 * So of a GPT-2 block with I = 4 C, 14 C elements a row stay to backward without recomputation; 3 C when
 * it is selective, for 14 C^2 FLOPs; C with the block's input alone, for 16 C^2 + 2 C (T + 1). Attention,
 * whose cost a row grows with T, never runs twice in the selective one.
 */
enum zt_forward_part {
    ZT_FWD_ALL,   /* x_out, and act */
    ZT_FWD_ACT,   /* act alone: recomputation of a block whose x_out is not needed */
    ZT_FWD_INNER, /* act's inner part; the kept one is read */
};

/* Device pointers of one micro-batch, at maximum shape; (batch, seq_len) int32 each. */
struct zt_batch {
    const int32_t *tokens;
    const int32_t *targets;   /* -100: ignored */
    const int32_t *positions; /* inside the document */
    const int32_t *seg_start; /* index in the row where the token's document starts */
};

/* Operands of one segment call. Absent ones are NULL. */
struct zt_seg_call {
    struct zt_dev *dev;
    struct zt_stream *stream;
    const struct zt_shape *shape;
    int segment;
    struct zt_batch batch;
    const struct zt_step_block *sb;
    const struct zt_count *count;
    bool dropout;         /* a pass of training; false in evaluation and generation */
    int64_t first_sample; /* dropout: the micro-batch's first sequence, from the step's first */

    struct zt_ref weights[ZT_MAX_SEG_PARAMS]; /* by position in zt_segment.params */
    struct zt_ref grads[ZT_MAX_SEG_PARAMS];   /* backward; absent where a whole unit is frozen */
    bool accumulate[ZT_MAX_SEG_PARAMS];       /* add to grads[i]; false: overwrite it whole */

    enum zt_forward_part part; /* forward of a block at a training shape; else ZT_FWD_ALL */
    const void *x_in;          /* residual stream; NULL for the embedding */
    void *x_out;               /* forward, with ZT_FWD_ALL */
    void *act;       /* forward at a training shape writes, backward reads and uses as scratch */
    void *act_inner; /* where its inner part lies apart; NULL: in act, behind the kept part */
    void *tmp;
    size_t tmp_bytes;

    const void *dx_out; /* backward: gradient of x_out; NULL for the head */
    void *dx_in; /* backward: gradient of x_in, not dx_out's memory; NULL for the embedding */

    /* Head: forward computes whichever of the two is given, backward needs loss_sum. */
    double *loss_sum;  /* sum of the losses of the micro-batch's unmasked tokens; overwritten */
    void *last_logits; /* generation: (batch, vocab) fp32 logits of position logits_at */
    int64_t logits_at;
};

struct zt_model_ops {
    void (*size)(const struct zt_model *m, int segment, const struct zt_shape *shape,
                 struct zt_segment_size *out);
    void (*forward)(const struct zt_model *m, const struct zt_seg_call *c);
    void (*backward)(const struct zt_model *m, const struct zt_seg_call *c);
};

/* Build a model's description in `arena`, which must outlive it. ZT_EINPUT names the key at fault. */
int zt_model_build(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model **out,
                   struct zt_err *err) ZT_MUST_CHECK;

/* The parameter called `name` (with or without Hugging Face's prefix), or -1. */
int zt_model_find_param(const struct zt_model *m, const char *name);

/* The first segment with anything to train: backward ends there. */
int zt_model_lowest_trained(const struct zt_model *m);

/*
 * Training FLOPs per token without recomputation: 3 x the forward FLOPs of all segments at `shape`
 * over its tokens, less where nothing is trained. MFU = this * tokens/s / peak. Flash attention's repeated q k^T is no model FLOP.
 */
double zt_model_train_flops_per_token(const struct zt_model *m, const struct zt_shape *shape);

#endif
