/*
 * model_internal.h: what the model files share. Not for other layers.
 *
 * Two parts. Describing: the functions with which a model type lists its segments and parameters.
 * Running: `struct zt_run`, through which the computations issue kernels. A run either enqueues
 * them on the stream of a call or, dry, only counts; so the sizes and FLOPs of a segment come from
 * the code that runs, and cannot differ from it.
 */
#ifndef ZT_MODEL_INTERNAL_H
#define ZT_MODEL_INTERNAL_H

#include "model/model.h"

/* ---- describing ---- */

int zt_gpt2_describe(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model *m,
                     struct zt_err *err) ZT_MUST_CHECK;
int zt_llama_describe(const struct zt_model_config *cfg, struct zt_arena *arena, struct zt_model *m,
                      struct zt_err *err) ZT_MUST_CHECK;

/* `key` must be in [1, max]. */
int zt_check_size(const char *key, int64_t value, int64_t max, struct zt_err *err) ZT_MUST_CHECK;

/* Room for the given numbers of segments and parameters; both lists empty. */
void zt_model_reserve(struct zt_model *m, struct zt_arena *arena, int n_segments, int n_params);

/* Append a segment; `layer` of a block, else -1. */
struct zt_segment *zt_add_segment(struct zt_model *m, enum zt_segment_kind kind, const char *name,
                                  int layer);

/*
 * Append a parameter of the last segment. dim1 0: it has one dimension. Initially `init` with
 * `std`; the rest follows from these and the segment.
 */
struct zt_param_spec *zt_add_param(struct zt_model *m, const char *name, int64_t dim0, int64_t dim1,
                                   enum zt_tp_split split, enum zt_init_kind init, float std);

/* The head's matrix, as the configuration says: the embedding, parameter 0, or one of its own. */
void zt_add_lm_head(struct zt_model *m);

/* Sum up n_elems after the last parameter; ZT_EINPUT: more than any memory holds. */
int zt_model_finish(struct zt_model *m, struct zt_err *err) ZT_MUST_CHECK;

/* ---- running ---- */

struct zt_run {
    const struct zt_model *m;
    const struct zt_seg_call *c;
    bool dry;        /* count, do not enqueue; the call's pointers are NULL */
    size_t scratch;  /* bytes of c->tmp used by the computation; the kernels' workspace follows */
    size_t ws_bytes; /* dry: the largest workspace that a kernel needs */
    double flops;    /* dry: of matrix products and attention, a multiply-add as two */
};

/* Issue a kernel; ws is filled in. */
void zt_run_matmul(struct zt_run *r, struct zt_matmul a);
void zt_run_embed_bwd(struct zt_run *r, struct zt_embed_bwd a);
void zt_run_attention_fwd(struct zt_run *r, struct zt_attention a);
void zt_run_attention_bwd(struct zt_run *r, struct zt_attention a);

/*
 * The model's dropouts, by the number that goes into their masks (dev/dropout.h): the same number, the
 * same masks, so these never change.
 */
enum zt_drop_site {
    ZT_DROP_EMBED,
    ZT_DROP_ATTENTION, /* of layer 0; layer i: + i * ZT_DROP_PER_LAYER */
    ZT_DROP_PROJECTION,
    ZT_DROP_MLP,
    ZT_DROP_PER_LAYER = 3,
};

/* The dropout of the segment's `site` with probability p; none if p is 0 or outside training. */
struct zt_dropout zt_run_dropout(const struct zt_run *r, double p, enum zt_drop_site site);

/* out = residual (optional) + x dropped; all (rows, cols). */
void zt_run_drop_add(struct zt_run *r, const struct zt_dropout *drop, int64_t cols, struct zt_ref x,
                     struct zt_ref residual, struct zt_ref out);

/* Tensors inside one piece of memory, laid out one after the other. */
struct zt_layout {
    size_t bytes;
    struct zt_gaps gaps;
};

/* What a model type computes its blocks by; the first and last segment are the same in all. */
struct zt_block_fns {
    void (*forward)(struct zt_run *r);
    void (*backward)(struct zt_run *r);
    /* Of act's kept and inner part. */
    void (*act_layout)(const struct zt_model *m, const struct zt_shape *shape,
                       struct zt_layout *kept, struct zt_layout *inner);
};

/* Sizes come from dry runs of a segment's own forward and backward. */
extern const struct zt_model_ops zt_segment_ops;

/*
 * Where the inner part of a call's act begins, behind `kept` bytes unless the call has it apart; NULL in
 * a dry run.
 */
static inline void *zt_act_inner(const struct zt_seg_call *c, size_t kept)
{
    if (c->act_inner || !c->act)
        return c->act_inner;
    return (char *)c->act + kept;
}

/* Room for n elements; returns its offset, a multiple of 256 bytes. */
size_t zt_layout_add(struct zt_layout *l, int64_t n_elems, enum zt_dtype dtype);

/* The tensor at `offset` of `base`; in a dry run base is NULL and stays so. */
static inline struct zt_ref zt_ref_at(const void *base, size_t offset, enum zt_dtype dtype)
{
    return (struct zt_ref){base ? (char *)base + offset : NULL, dtype};
}

/* The same tensor from element `elem` on. */
static inline struct zt_ref zt_ref_from(struct zt_ref t, int64_t elem)
{
    return zt_ref_at(t.ptr, (size_t)elem * zt_dtype_bytes(t.dtype), t.dtype);
}

/*
 * y = x W + b: x (rows, n_in), y (rows, n_out) with leading dimension ldy. `w` and `b` are
 * positions in the segment's parameters, b -1: none.
 */
struct zt_linear {
    int64_t n_in, n_out, ldy;
    bool out_in; /* W is (n_out, n_in), as torch.nn.Linear has it; else (n_in, n_out): Conv1D */
    int w, b;
};

/* Arguments of the product, for the caller to add an epilogue to and to run. */
struct zt_matmul zt_linear_fwd(const struct zt_run *r, const struct zt_linear *l, int64_t rows,
                               struct zt_ref x, struct zt_ref y);
/* dx = dy W^T */
struct zt_matmul zt_linear_bwd(const struct zt_run *r, const struct zt_linear *l, int64_t rows,
                               struct zt_ref dy, struct zt_ref dx);
/* dW (+)= x^T dy and db (+)= column sums of dy. `accumulate` adds to dW whatever the call says. */
void zt_linear_grads(struct zt_run *r, const struct zt_linear *l, int64_t rows, struct zt_ref x,
                     struct zt_ref dy, bool accumulate);

/*
 * LayerNorm of x (rows, cols) with the statistics' memory (rows); `w` and `b` are positions in the
 * segment's parameters. b -1: RMSNorm, which has neither bias nor mean.
 */
struct zt_norm {
    int w, b;
    int64_t cols;
    struct zt_ref x;
    float *mean, *rstd;
};

void zt_norm_forward(struct zt_run *r, const struct zt_norm *n, int64_t rows, struct zt_ref y);
/* dx = dresidual (optional) + gradient of x; dx may be dy's or dresidual's memory. */
void zt_norm_backward(struct zt_run *r, const struct zt_norm *n, int64_t rows, struct zt_ref dy,
                      struct zt_ref dresidual, struct zt_ref dx);

/* The first and last segment; head.c. */
void zt_embed_forward(struct zt_run *r);
void zt_embed_backward(struct zt_run *r);
void zt_head_forward(struct zt_run *r);
void zt_head_backward(struct zt_run *r);

#endif
