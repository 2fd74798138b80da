#include "dev_test.h"

/* Errors allowed, fp32: outputs are means of numbers of size 1. */
static const double forward_tolerance = 3e-6, backward_tolerance = 2e-5;

struct attention_case {
    int batch, q_len, k_len, q_offset, n_head, n_kv_head, head_dim;
    bool segments;
};

static const struct attention_case cases[] = {
    {1, 1, 1, 0, 1, 1, 1, false},      {2, 3, 3, 0, 1, 1, 4, false},
    {1, 17, 17, 0, 2, 2, 8, false},    {2, 33, 33, 0, 4, 2, 5, true},
    {1, 3, 70, 60, 3, 1, 16, true},    {1, 65, 65, 0, 1, 1, 33, true},
    {1, 20, 150, 130, 2, 1, 3, false},
};
static const struct attention_case large = {2, 300, 300, 0, 6, 2, 64, true};
static const struct attention_case tiles = {1, 200, 230, 30, 4, 2, 20, true};
static const struct attention_case wide = {1, 130, 140, 5, 1, 1, 256, false};

/* All operands, and the naive formula in float64. */
struct problem {
    struct attention_case t;
    struct tensor q, k, v, dout;
    int32_t *seg_start;
    double *out, *lse, *dq, *dk, *dv, *p;
    struct zt_dropout drop;
};

static struct zt_dropout no_drop(void)
{
    return (struct zt_dropout){0};
}

static struct zt_dropout drop_of(double p)
{
    struct zt_dropout d = {
        .site = 7,
        .first = 20,
        .sb = SHARED(struct zt_step_block, .seed = 3, .first_sample = 1000),
    };
    zt_dropout_set_p(&d, p);
    return d;
}

/* Documents of lengths 1, 2, 3, ... in a row. */
static int32_t segment_of(const struct attention_case *t, int pos)
{
    int start = 0;
    for (int len = 1; t->segments && start + len <= pos; len++)
        start += len;
    return start;
}

static int64_t q_at(const struct attention_case *t, int b, int h, int i)
{
    return ((int64_t)(b * t->q_len + i) * t->n_head + h) * t->head_dim;
}

static int64_t kv_at(const struct attention_case *t, int b, int h, int j)
{
    int kv_head = h / (t->n_head / t->n_kv_head);
    return ((int64_t)(b * t->k_len + j) * t->n_kv_head + kv_head) * t->head_dim;
}

static void naive_row(struct problem *s, int b, int h, int i)
{
    const struct attention_case *t = &s->t;
    int pos = t->q_offset + i, lo = segment_of(t, pos), d = t->head_dim;
    double scale = 1 / sqrt((double)d), sum = 0, max = -INFINITY;
    for (int j = lo; j <= pos; j++) {
        s->p[j] = scale * dot(s->q.val + q_at(t, b, h, i), s->k.val + kv_at(t, b, h, j), d);
        max = ZT_MAX(max, s->p[j]);
    }
    for (int j = lo; j <= pos; j++)
        sum += exp(s->p[j] - max);
    s->lse[(b * t->n_head + h) * t->q_len + i] = max + log(sum);
    for (int j = lo; j <= pos; j++)
        s->p[j] = exp(s->p[j] - max) / sum * drop_factor(&s->drop, b, h, pos, j);
    for (int c = 0; c < d; c++) {
        double x = 0;
        for (int j = lo; j <= pos; j++)
            x += s->p[j] * s->v.val[kv_at(t, b, h, j) + c];
        s->out[q_at(t, b, h, i) + c] = x;
    }
}

/* The function whose gradients backward gives: dout . out. */
static double naive(void *ctx)
{
    struct problem *s = ctx;
    for (int b = 0; b < s->t.batch; b++)
        for (int h = 0; h < s->t.n_head; h++)
            for (int i = 0; i < s->t.q_len; i++)
                naive_row(s, b, h, i);
    return dot(s->dout.val, s->out, s->q.n);
}

static struct problem make_problem(const struct attention_case *t, enum zt_dtype dtype,
                                   struct zt_dropout drop)
{
    struct problem s = {.t = *t, .drop = drop};
    int64_t n_q = (int64_t)t->batch * t->q_len * t->n_head * t->head_dim;
    int64_t n_kv = (int64_t)t->batch * t->k_len * t->n_kv_head * t->head_dim;
    s.q = tensor_random(n_q, dtype, 1, 1, 0);
    s.k = tensor_random(n_kv, dtype, 2, 1, 0);
    s.v = tensor_random(n_kv, dtype, 3, 1, 0);
    s.dout = tensor_random(n_q, dtype, 4, 1, 0);
    s.seg_start = test_alloc((size_t)(t->batch * t->k_len), sizeof *s.seg_start);
    for (int i = 0; i < t->batch * t->k_len; i++)
        s.seg_start[i] = segment_of(t, i % t->k_len);
    s.out = zt_xcalloc((size_t)n_q, sizeof *s.out);
    s.lse = zt_xcalloc((size_t)(t->batch * t->n_head * t->q_len), sizeof *s.lse);
    s.dq = zt_xcalloc((size_t)n_q, sizeof *s.dq);
    s.dk = zt_xcalloc((size_t)n_kv, sizeof *s.dk);
    s.dv = zt_xcalloc((size_t)n_kv, sizeof *s.dv);
    s.p = zt_xcalloc((size_t)t->k_len, sizeof *s.p);
    return s;
}

static void free_problem(struct problem *s)
{
    tensor_free(&s->q);
    tensor_free(&s->k);
    tensor_free(&s->v);
    tensor_free(&s->dout);
    test_free(s->seg_start);
    free(s->out);
    free(s->lse);
    free(s->dq);
    free(s->dk);
    free(s->dv);
    free(s->p);
}

struct run {
    struct tensor out, lse, dq, dk, dv;
    int rc;
    struct zt_err err;
};

static struct run run_attention(const struct problem *s, struct rig *r, bool backward)
{
    const struct attention_case *t = &s->t;
    enum zt_dtype dtype = s->q.ref.dtype;
    struct run got = {.out = tensor_out(s->q.n, dtype),
                      .lse = tensor_out((int64_t)t->batch * t->n_head * t->q_len, ZT_F32),
                      .dq = tensor_out(s->q.n, dtype),
                      .dk = tensor_out(s->k.n, dtype),
                      .dv = tensor_out(s->k.n, dtype)};
    struct zt_attention a = {.batch = t->batch,
                             .q_len = t->q_len,
                             .k_len = t->k_len,
                             .q_offset = t->q_offset,
                             .n_head = t->n_head,
                             .n_kv_head = t->n_kv_head,
                             .head_dim = t->head_dim,
                             .ldq = t->n_head * t->head_dim,
                             .ldkv = t->n_kv_head * t->head_dim,
                             .ldo = t->n_head * t->head_dim,
                             .scale = (float)(1 / sqrt((double)t->head_dim)),
                             .seg_start = t->segments ? s->seg_start : NULL,
                             .drop = s->drop,
                             .q = s->q.ref,
                             .k = s->k.ref,
                             .v = s->v.ref,
                             .out = got.out.ref,
                             .lse = got.lse.ref.ptr,
                             .dout = s->dout.ref,
                             .dq = got.dq.ref,
                             .dk = got.dk.ref,
                             .dv = got.dv.ref};
    a.ws_bytes = ZT_MAX(zt_ws_attention(r->dev->ops->kind, &a, false, r->n_threads),
                        zt_ws_attention(r->dev->ops->kind, &a, true, r->n_threads));
    a.ws = test_alloc(a.ws_bytes, 1);
    memset(a.ws, 0xff, a.ws_bytes); /* NaN: nothing is read before it is written */
    r->dev->ops->attention_fwd(r->stream, &a);
    if (backward)
        r->dev->ops->attention_bwd(r->stream, &a);
    got.rc = rig_sync(r, &got.err);
    test_free(a.ws);
    return got;
}

static void free_run(struct run *got)
{
    tensor_free(&got->out);
    tensor_free(&got->lse);
    tensor_free(&got->dq);
    tensor_free(&got->dk);
    tensor_free(&got->dv);
}

static void check_rig(const struct problem *s, struct rig *r, bool backward)
{
    struct run got = run_attention(s, r, backward);
    CHECK_INT(got.rc, 0);
    CHECK_TENSOR(*r, "out", got.out.ref, s->out, got.out.n, forward_tolerance);
    CHECK_TENSOR(*r, "lse", got.lse.ref, s->lse, got.lse.n, forward_tolerance);
    if (backward) {
        /*
         * A 16-bit `out` is rounded before backward reads it: the error goes through k and q. What
         * dropout keeps makes it larger by its scale.
         */
        double size = s->drop.threshold ? (double)s->drop.scale : 1;
        double tol = backward_tolerance + 4 * size * dtype_eps(s->q.ref.dtype);
        CHECK_TENSOR(*r, "dq", got.dq.ref, s->dq, got.dq.n, tol);
        CHECK_TENSOR(*r, "dk", got.dk.ref, s->dk, got.dk.n, tol);
        CHECK_TENSOR(*r, "dv", got.dv.ref, s->dv, got.dv.n, tol);
    }
    free_run(&got);
}

static void check_case(const struct attention_case *t, enum zt_dtype dtype, bool backward,
                       struct zt_dropout drop)
{
    struct problem s = make_problem(t, dtype, drop);
    if (backward) {
        differences(naive, &s, s.q.val, s.q.n, s.dq);
        differences(naive, &s, s.k.val, s.k.n, s.dk);
        differences(naive, &s, s.v.val, s.v.n, s.dv);
    }
    naive(&s);
    FOR_EACH_RIG(r)
    {
        check_rig(&s, &r, backward);
        RETURN_IF_FAILED();
    }
    free_problem(&s);
}

TEST(dev_attention_fp32)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        check_case(&cases[i], ZT_F32, true, no_drop());
        RETURN_IF_FAILED();
    }
}

TEST(dev_attention_bf16)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        check_case(&cases[i], ZT_BF16, true, no_drop());
        RETURN_IF_FAILED();
    }
}

TEST(dev_attention_dropout)
{
    const double p[] = {0.1, 0.5, 0.9};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        check_case(&cases[i], ZT_F32, true, drop_of(p[i % 3]));
        RETURN_IF_FAILED();
        check_case(&cases[i], ZT_BF16, true, drop_of(p[i % 3]));
        RETURN_IF_FAILED();
    }
}

TEST(dev_attention_forward_of_many_tiles)
{
    check_case(&large, ZT_F32, false, no_drop());
    RETURN_IF_FAILED();
    check_case(&wide, ZT_F32, false, no_drop());
    RETURN_IF_FAILED();
    check_case(&large, ZT_F32, false, drop_of(0.1));
}

/* grad . direction against a difference along that direction (of length 1). */
static void check_direction(struct problem *s, double *x, const struct tensor *grad, uint64_t seed)
{
    const double h = 1e-3;
    struct tensor d = tensor_random(grad->n, ZT_F32, seed, 1 / sqrt((double)grad->n), 0);
    double *keep = zt_xcalloc((size_t)grad->n, sizeof *keep), got = 0, up, down;
    memcpy(keep, x, (size_t)grad->n * sizeof *keep);
    for (int64_t i = 0; i < grad->n; i++) {
        got += tensor_get(grad->ref, i) * d.val[i];
        x[i] = keep[i] + h * d.val[i];
    }
    up = naive(s);
    for (int64_t i = 0; i < grad->n; i++)
        x[i] = keep[i] - h * d.val[i];
    down = naive(s);
    memcpy(x, keep, (size_t)grad->n * sizeof *keep);
    free(keep);
    tensor_free(&d);
    CHECK_NEAR(got, (up - down) / (2 * h), 5e-5);
}

static void check_many_tiles(struct zt_dropout drop)
{
    struct problem s = make_problem(&tiles, ZT_F32, drop);
    FOR_EACH_RIG(r)
    {
        struct run got = run_attention(&s, &r, true);
        for (uint64_t i = 0; i < 2; i++) {
            check_direction(&s, s.q.val, &got.dq, 10 + i);
            check_direction(&s, s.k.val, &got.dk, 20 + i);
            check_direction(&s, s.v.val, &got.dv, 30 + i);
        }
        free_run(&got);
        RETURN_IF_FAILED();
    }
    free_problem(&s);
}

TEST(dev_attention_backward_of_many_tiles)
{
    check_many_tiles(no_drop());
    RETURN_IF_FAILED();
    check_many_tiles(drop_of(0.2));
}

/*
 * Two sequences at once, or each as a micro-batch of its own: the same bits, since a mask belongs to
 * a sample, not to its place in a batch.
 */
TEST(dev_attention_dropout_is_of_the_sample)
{
    const struct attention_case both = {2, 33, 33, 0, 4, 2, 8, false};
    struct attention_case one = both;
    struct problem s = make_problem(&both, ZT_F32, drop_of(0.3));
    one.batch = 1;
    FOR_EACH_RIG(r)
    {
        struct run got = run_attention(&s, &r, true);
        for (int64_t b = 0; b < 2; b++) {
            struct problem half = s;
            half.t = one;
            half.drop.first += b;
            half.q.n /= 2;
            half.k.n /= 2;
            half.q.ref.ptr = (float *)s.q.ref.ptr + b * half.q.n;
            half.k.ref.ptr = (float *)s.k.ref.ptr + b * half.k.n;
            half.v.ref.ptr = (float *)s.v.ref.ptr + b * half.k.n;
            half.dout.ref.ptr = (float *)s.dout.ref.ptr + b * half.q.n;
            struct run part = run_attention(&half, &r, true);
            const size_t q = (size_t)half.q.n * sizeof(float), k = (size_t)half.k.n * sizeof(float);
            CHECK(!memcmp((char *)got.out.ref.ptr + (size_t)b * q, part.out.ref.ptr, q));
            CHECK(!memcmp((char *)got.dq.ref.ptr + (size_t)b * q, part.dq.ref.ptr, q));
            CHECK(!memcmp((char *)got.dk.ref.ptr + (size_t)b * k, part.dk.ref.ptr, k));
            CHECK(!memcmp((char *)got.dv.ref.ptr + (size_t)b * k, part.dv.ref.ptr, k));
            free_run(&part);
        }
        free_run(&got);
    }
    free_problem(&s);
}

TEST(dev_attention_repeats_bit_for_bit)
{
    struct problem s = make_problem(&tiles, ZT_F32, drop_of(0.1));
    FOR_EACH_RIG(r)
    {
        struct run a = run_attention(&s, &r, true), b = run_attention(&s, &r, true);
        CHECK(!memcmp(a.out.ref.ptr, b.out.ref.ptr, (size_t)a.out.n * sizeof(float)));
        CHECK(!memcmp(a.dq.ref.ptr, b.dq.ref.ptr, (size_t)a.dq.n * sizeof(float)));
        CHECK(!memcmp(a.dk.ref.ptr, b.dk.ref.ptr, (size_t)a.dk.n * sizeof(float)));
        CHECK(!memcmp(a.dv.ref.ptr, b.dv.ref.ptr, (size_t)a.dv.n * sizeof(float)));
        free_run(&a);
        free_run(&b);
    }
    free_problem(&s);
}

TEST_MAIN()
