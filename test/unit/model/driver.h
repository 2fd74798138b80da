/*
 * driver.h: runs a model's segments in order, without a plan or an engine. Buffers are as large as
 * size() says and not a byte more, scratch and outputs hold NaNs before every call.
 */
#ifndef ZT_TEST_MODEL_DRIVER_H
#define ZT_TEST_MODEL_DRIVER_H

#include "base/rng.h"
#include "harness.h"
#include "model/model.h"

/* What forward keeps of a block's act: all, nothing, or the kept part; the rest is made again. */
enum driver_keep { DRIVER_KEEP_ALL, DRIVER_KEEP_NOTHING, DRIVER_KEEP_PART };

struct driver {
    struct zt_arena arena;
    struct zt_model *m;
    struct zt_dev *dev;
    struct zt_stream *stream;
    struct zt_shape shape;    /* as trained */
    enum zt_dtype grad_dtype; /* of gradients that need not be fp32 */
    enum driver_keep keep;
    bool dropout; /* by the model's probabilities, in evaluation too */
    int64_t first_sample;
    struct zt_ref *w, *g; /* (n_params) */
    struct zt_step_block sb;
    struct zt_count count;
    double loss_sum;
};

static inline void *driver_buf(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1))
        abort();
    memset(p, 0xff, bytes ? bytes : 1);
    return p;
}

static inline float driver_get(struct zt_ref t, int64_t i)
{
    if (t.dtype == ZT_F32)
        return ((const float *)t.ptr)[i];
    return zt_bf16_to_f32(((const uint16_t *)t.ptr)[i]);
}

static inline void driver_set(struct zt_ref t, int64_t i, float v)
{
    if (t.dtype == ZT_F32)
        ((float *)t.ptr)[i] = v;
    else
        ((uint16_t *)t.ptr)[i] = zt_f32_to_bf16(v);
}

/* The model at a shape; weights are NaN until set. */
static inline void driver_init(struct driver *d, const struct zt_model_config *cfg, int64_t batch,
                               int64_t seq_len, enum zt_dtype dtype, enum zt_dtype grad_dtype)
{
    struct zt_err err;
    *d = (struct driver){.grad_dtype = grad_dtype};
    if (zt_model_build(cfg, &d->arena, &d->m, &err) || zt_cpu_dev_create(&d->dev, NULL, 0, &err) ||
        d->dev->ops->stream_create(d->dev, "test", 2, &d->stream, &err)) {
        printf("# %s\n", err.msg);
        abort();
    }
    d->shape = (struct zt_shape){batch, seq_len, dtype, ZT_DEV_CPU, 2, true};
    d->w = zt_xcalloc((size_t)d->m->n_params, sizeof *d->w);
    d->g = zt_xcalloc((size_t)d->m->n_params, sizeof *d->g);
    for (int i = 0; i < d->m->n_params; i++) {
        const struct zt_param_spec *p = &d->m->params[i];
        enum zt_dtype g = p->scattered ? ZT_F32 : grad_dtype;
        d->w[i] = (struct zt_ref){driver_buf((size_t)p->n_elems * zt_dtype_bytes(dtype)), dtype};
        d->g[i] = (struct zt_ref){driver_buf((size_t)p->n_elems * zt_dtype_bytes(g)), g};
    }
    d->sb.loss_scale = 1;
}

static inline void driver_release(struct driver *d)
{
    for (int i = 0; i < d->m->n_params; i++) {
        free(d->w[i].ptr);
        free(d->g[i].ptr);
    }
    free(d->w);
    free(d->g);
    d->dev->ops->stream_free(d->stream);
    zt_cpu_dev_free(d->dev);
    zt_arena_release(&d->arena);
}

static inline struct zt_seg_call driver_call(struct driver *d, const struct zt_shape *shape,
                                             int seg, const struct zt_batch *batch)
{
    struct zt_seg_call c = {
        .dev = d->dev,
        .stream = d->stream,
        .shape = shape,
        .segment = seg,
        .batch = *batch,
        .sb = &d->sb,
        .count = &d->count,
        .dropout = d->dropout,
        .first_sample = d->first_sample,
    };
    const struct zt_segment *s = &d->m->segments[seg];
    for (int i = 0; i < s->n_params; i++)
        c.weights[i] = d->w[s->params[i]];
    return c;
}

/* Carry out a call with NaNs in its tmp. */
static inline void driver_do(struct driver *d, struct zt_seg_call *c, bool backward)
{
    struct zt_segment_size size;
    struct zt_err err;
    d->m->ops->size(d->m, c->segment, c->shape, &size);
    c->tmp_bytes = backward ? size.bwd_tmp : size.fwd_tmp;
    c->tmp = driver_buf(c->tmp_bytes);
    (backward ? d->m->ops->backward : d->m->ops->forward)(d->m, c);
    if (d->dev->ops->sync(d->dev->ops->record(d->stream), &err)) {
        printf("# %s\n", err.msg);
        abort();
    }
    free(c->tmp);
}

/* Make again what forward did not keep of a block. */
static inline void driver_again(struct driver *d, struct zt_seg_call *c)
{
    struct zt_segment_size size;
    d->m->ops->size(d->m, c->segment, c->shape, &size);
    if (d->keep == DRIVER_KEEP_ALL)
        return;
    c->part = d->keep == DRIVER_KEEP_PART ? ZT_FWD_INNER : ZT_FWD_ACT;
    if (d->keep == DRIVER_KEEP_PART)
        c->act_inner = driver_buf(size.act - size.act_kept);
    driver_do(d, c, false);
}

static inline int64_t driver_count(const struct driver *d, const struct zt_batch *batch)
{
    int64_t n = 0;
    for (int64_t i = 0; i < d->shape.batch * d->shape.seq_len; i++)
        n += batch->targets[i] != ZT_IGNORE_TARGET;
    return n;
}

/* Outside training: the loss sum, or with `logits` those of position logits_at instead. */
static inline double driver_eval(struct driver *d, const struct zt_batch *batch, float *logits,
                                 int64_t logits_at)
{
    struct zt_shape shape = d->shape;
    shape.train = false;
    void *x = NULL;
    for (int seg = 0; seg < d->m->n_segments; seg++) {
        struct zt_segment_size size;
        d->m->ops->size(d->m, seg, &shape, &size);
        struct zt_seg_call c = driver_call(d, &shape, seg, batch);
        c.x_in = x;
        c.x_out = size.x_out ? driver_buf(size.x_out) : NULL;
        if (d->m->segments[seg].kind == ZT_SEG_HEAD) {
            c.last_logits = logits;
            c.logits_at = logits_at;
            c.loss_sum = logits ? NULL : &d->loss_sum;
        }
        driver_do(d, &c, false);
        free(x);
        x = c.x_out;
    }
    return d->loss_sum;
}

/*
 * Forward and backward of one micro-batch; gradients are overwritten unless `accumulate`. `counted`
 * is the number of targets of the whole batch. Returns the sum of this micro-batch's losses.
 */
static inline double driver_train(struct driver *d, const struct zt_batch *batch, int64_t counted,
                                  bool accumulate)
{
    const struct zt_model *m = d->m;
    struct zt_shape lean = d->shape;
    lean.train = false;
    void **x = zt_xcalloc((size_t)m->n_segments + 1, sizeof *x); /* x[i]: into segment i */
    void **act = zt_xcalloc((size_t)m->n_segments, sizeof *act);
    bool *touched = zt_xcalloc((size_t)m->n_params, sizeof *touched);
    size_t x_bytes = 0;
    d->count = (struct zt_count){counted, counted ? 1 / (float)counted : 0, 0};

    for (int seg = 0; !m->segments[seg].fused_backward; seg++) {
        struct zt_segment_size size;
        m->ops->size(m, seg, &d->shape, &size);
        x_bytes = size.x_out;
        const bool nothing = d->keep == DRIVER_KEEP_NOTHING, part = d->keep == DRIVER_KEEP_PART;
        struct zt_seg_call c = driver_call(d, nothing ? &lean : &d->shape, seg, batch);
        c.x_in = x[seg];
        c.x_out = x[seg + 1] = driver_buf(size.x_out);
        act[seg] = driver_buf(part ? size.act_kept : size.act);
        c.act = nothing ? NULL : act[seg];
        c.act_inner = part ? driver_buf(size.act - size.act_kept) : NULL;
        driver_do(d, &c, false);
        free(c.act_inner);
    }
    void *dx_out = NULL;
    for (int seg = m->n_segments - 1; seg >= 0; seg--) {
        const struct zt_segment *s = &m->segments[seg];
        struct zt_seg_call c = driver_call(d, &d->shape, seg, batch);
        c.x_in = x[seg];
        c.act = act[seg];
        if (s->kind == ZT_SEG_BLOCK)
            driver_again(d, &c);
        for (int i = 0; i < s->n_params; i++) {
            c.grads[i] = d->g[s->params[i]];
            c.accumulate[i] = accumulate || touched[s->params[i]];
            touched[s->params[i]] = true;
        }
        c.dx_out = dx_out;
        c.dx_in = seg ? driver_buf(x_bytes) : NULL;
        c.loss_sum = &d->loss_sum;
        driver_do(d, &c, true);
        free(c.act_inner);
        free(dx_out);
        dx_out = c.dx_in;
    }
    for (int seg = 0; seg < m->n_segments; seg++) {
        free(x[seg]);
        free(act[seg]);
    }
    free(x);
    free(act);
    free(touched);
    return d->loss_sum;
}

/* Squared L2 norm of a gradient. */
static inline double driver_grad_sq(const struct driver *d, int param)
{
    double sum = 0;
    for (int64_t i = 0; i < d->m->params[param].n_elems; i++)
        sum += (double)driver_get(d->g[param], i) * (double)driver_get(d->g[param], i);
    return sum;
}

static inline double driver_grad_norm(const struct driver *d)
{
    double sum = 0;
    for (int i = 0; i < d->m->n_params; i++)
        sum += driver_grad_sq(d, i);
    return sqrt(sum);
}

/* The initial distribution of the specs, from a seed; LayerNorms and biases a little off theirs. */
static inline void driver_init_weights(struct driver *d, uint64_t seed, float scale)
{
    for (int i = 0; i < d->m->n_params; i++) {
        const struct zt_param_spec *p = &d->m->params[i];
        float *z = zt_xcalloc((size_t)p->n_elems, sizeof *z);
        zt_rng_normal(seed, ZT_RNG_INIT, (uint64_t)i, 0, p->n_elems, z);
        for (int64_t j = 0; j < p->n_elems; j++)
            driver_set(d->w[i], j, z[j] * scale + (p->init == ZT_INIT_ONES ? 1 : 0));
        free(z);
    }
}

#endif
