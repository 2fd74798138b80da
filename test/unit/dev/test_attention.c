#include "dev_test.h"

#include "dev/sanitize.h"

/* Errors allowed, fp32: outputs are means of numbers of size 1. */
static const double forward_tolerance = 3e-6, backward_tolerance = 2e-5;

struct attention_case {
    int batch, q_len, k_len, q_offset, n_head, n_kv_head, head_dim;
    bool segments;
    int pad; /* elements from the last head of a row to the next row */
};

static const struct attention_case cases[] = {
    {1, 1, 1, 0, 1, 1, 1, false, 0},      {2, 3, 3, 0, 1, 1, 4, false, 0},
    {1, 17, 17, 0, 2, 2, 8, false, 0},    {2, 33, 33, 0, 4, 2, 5, true, 0},
    {1, 3, 70, 60, 3, 1, 16, true, 0},    {1, 65, 65, 0, 1, 1, 33, true, 0},
    {1, 20, 150, 130, 2, 1, 3, false, 0},
};
static const struct attention_case large = {2, 300, 300, 0, 6, 2, 64, true, 0};
static const struct attention_case tiles = {1, 200, 230, 30, 4, 2, 20, true, 0};
static const struct attention_case wide = {1, 130, 140, 5, 1, 1, 256, false, 0};

/* What kernels for tiles of 16-bit elements meet: every head size that has its own, and the paths between. */
static const struct attention_case shapes[] = {
    {2, 300, 300, 0, 2, 1, 64, true, 0},   {1, 600, 600, 0, 1, 1, 64, false, 0},
    {1, 130, 130, 0, 4, 4, 64, true, 8},   {1, 1, 200, 199, 8, 1, 128, false, 0},
    {1, 140, 200, 30, 2, 1, 128, true, 8}, {1, 100, 140, 5, 1, 1, 256, true, 0},
    {1, 70, 70, 0, 8, 1, 96, false, 24},   {1, 129, 129, 0, 4, 1, 32, true, 0},
    {1, 65, 65, 0, 2, 2, 80, false, 0},    {1, 66, 70, 4, 1, 1, 160, false, 0},
    {2, 40, 40, 0, 2, 1, 16, true, 0},     {1, 70, 70, 0, 2, 1, 64, true, 1},
    {1, 50, 80, 30, 2, 1, 90, false, 2},
};

/* Whoever includes this file may leave out what it has no other kernels for. */
#ifndef ATTENTION_WANTED
#define ATTENTION_WANTED(t, dtype) true
#endif

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

static int64_t q_ld(const struct attention_case *t)
{
    return (int64_t)t->n_head * t->head_dim + t->pad;
}

static int64_t kv_ld(const struct attention_case *t)
{
    return (int64_t)t->n_kv_head * t->head_dim + t->pad;
}

static int64_t q_at(const struct attention_case *t, int b, int h, int i)
{
    return (b * t->q_len + i) * q_ld(t) + (int64_t)h * t->head_dim;
}

static int64_t kv_at(const struct attention_case *t, int b, int h, int j)
{
    int kv_head = h / (t->n_head / t->n_kv_head);
    return (b * t->k_len + j) * kv_ld(t) + (int64_t)kv_head * t->head_dim;
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

/* Rows [first, first + n) of some heads of one sequence. */
struct rows {
    struct problem *s;
    int b, head, n_heads, first, n;
};

/* The function whose gradients backward gives: dout . out; of these rows. */
static double naive_rows(void *ctx)
{
    const struct rows *r = ctx;
    double sum = 0;
    for (int h = r->head; h < r->head + r->n_heads; h++)
        for (int i = r->first; i < r->first + r->n; i++) {
            const int64_t at = q_at(&r->s->t, r->b, h, i);
            naive_row(r->s, r->b, h, i);
            sum += dot(r->s->dout.val + at, r->s->out + at, r->s->t.head_dim);
        }
    return sum;
}

static double naive(struct problem *s)
{
    double sum = 0;
    for (int b = 0; b < s->t.batch; b++) {
        struct rows all = {s, b, 0, s->t.n_head, 0, s->t.q_len};
        sum += naive_rows(&all);
    }
    return sum;
}

/* The rows of some heads that see key j: from its own on, to the end of its document. */
static struct rows rows_of_key(struct problem *s, int b, int head, int n_heads, int j)
{
    struct rows r = {s, b, head, n_heads, ZT_MAX(0, j - s->t.q_offset), 0};
    while (r.first + r.n < s->t.q_len && segment_of(&s->t, s->t.q_offset + r.first + r.n) <= j)
        r.n++;
    return r;
}

/* Rows that do not depend on an element are not computed anew for its difference. */
static void naive_gradients(struct problem *s)
{
    const struct attention_case *t = &s->t;
    const int group = t->n_head / t->n_kv_head;
    for (int b = 0; b < t->batch; b++) {
        for (int h = 0; h < t->n_head; h++)
            for (int i = 0; i < t->q_len; i++) {
                struct rows r = {s, b, h, 1, i, 1};
                const int64_t at = q_at(t, b, h, i);
                differences(naive_rows, &r, s->q.val + at, t->head_dim, s->dq + at);
            }
        for (int h = 0; h < t->n_head; h += group)
            for (int j = 0; j < t->k_len; j++) {
                struct rows r = rows_of_key(s, b, h, group, j);
                const int64_t at = kv_at(t, b, h, j);
                differences(naive_rows, &r, s->k.val + at, t->head_dim, s->dk + at);
                differences(naive_rows, &r, s->v.val + at, t->head_dim, s->dv + at);
            }
    }
}

static struct problem make_problem(const struct attention_case *t, enum zt_dtype dtype,
                                   struct zt_dropout drop)
{
    struct problem s = {.t = *t, .drop = drop};
    int64_t n_q = t->batch * t->q_len * q_ld(t), n_kv = t->batch * t->k_len * kv_ld(t);
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

/* A result: NaN, but zeros between the rows, which have to stay. */
static struct tensor rows_out(int64_t n, int64_t ld, int pad, enum zt_dtype dtype)
{
    struct tensor x = tensor_out(n, dtype);
    for (int64_t i = 0; i < n; i++)
        if (i % ld >= ld - pad)
            tensor_set(x.ref, i, 0);
    return x;
}

static struct run run_attention(const struct problem *s, struct rig *r, bool backward)
{
    const struct attention_case *t = &s->t;
    enum zt_dtype dtype = s->q.ref.dtype;
    struct run got = {.out = rows_out(s->q.n, q_ld(t), t->pad, dtype),
                      .lse = tensor_out((int64_t)t->batch * t->n_head * t->q_len, ZT_F32),
                      .dq = rows_out(s->q.n, q_ld(t), t->pad, dtype),
                      .dk = rows_out(s->k.n, kv_ld(t), t->pad, dtype),
                      .dv = rows_out(s->k.n, kv_ld(t), t->pad, dtype)};
    struct zt_attention a = {.batch = t->batch,
                             .q_len = t->q_len,
                             .k_len = t->k_len,
                             .q_offset = t->q_offset,
                             .n_head = t->n_head,
                             .n_kv_head = t->n_kv_head,
                             .head_dim = t->head_dim,
                             .ldq = q_ld(t),
                             .ldkv = kv_ld(t),
                             .ldo = q_ld(t),
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
    /* What dropout keeps makes what is rounded on the way larger by its scale. */
    double eps = dtype_eps(s->q.ref.dtype) * (s->drop.threshold ? (double)s->drop.scale : 1);
    /* A GPU's tensor cores take probabilities that are rounded to the type. */
    double rounded = r->dev->ops->kind == ZT_DEV_CUDA ? eps : 0;
    CHECK_INT(got.rc, 0);
    CHECK_TENSOR(*r, "out", got.out.ref, s->out, got.out.n, forward_tolerance + rounded);
    CHECK_TENSOR(*r, "lse", got.lse.ref, s->lse, got.lse.n, forward_tolerance);
    if (backward) {
        /* A 16-bit `out` is rounded before backward reads it: the error goes through k and q. */
        double tol = backward_tolerance + 6 * eps;
        CHECK_TENSOR(*r, "dq", got.dq.ref, s->dq, got.dq.n, tol);
        CHECK_TENSOR(*r, "dk", got.dk.ref, s->dk, got.dk.n, tol);
        CHECK_TENSOR(*r, "dv", got.dv.ref, s->dv, got.dv.n, tol);
    }
    free_run(&got);
}

static void check_case(const struct attention_case *t, enum zt_dtype dtype, bool backward,
                       struct zt_dropout drop)
{
    if (!ATTENTION_WANTED(t, dtype))
        return;
    struct problem s = make_problem(t, dtype, drop);
    if (backward)
        naive_gradients(&s);
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

TEST(dev_attention_16_bit)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        check_case(&cases[i], ZT_BF16, true, no_drop());
        RETURN_IF_FAILED();
        check_case(&cases[i], ZT_F16, true, no_drop());
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

/* ---- shapes that are too large for differences: gradients against the CPU's in fp32 ---- */

static void widen(struct tensor *x)
{
    struct tensor in_fp32 = tensor_out(x->n, ZT_F32);
    for (int64_t i = 0; i < x->n; i++)
        tensor_set(in_fp32.ref, i, x->val[i]);
    memcpy(in_fp32.val, x->val, (size_t)x->n * sizeof *x->val);
    *x = in_fp32;
}

static void take(double *to, const struct tensor *from)
{
    for (int64_t i = 0; i < from->n; i++)
        to[i] = tensor_get(from->ref, i);
}

static void gradients_of_cpu(struct problem *s)
{
    struct problem in_fp32 = *s;
    struct rig cpu;
    struct zt_err err;
    widen(&in_fp32.q);
    widen(&in_fp32.k);
    widen(&in_fp32.v);
    widen(&in_fp32.dout);
    if (zt_cpu_dev_create(&cpu.dev, NULL, 0, &err))
        abort();
    rig_start(&cpu, "reference", 1);
    struct run got = run_attention(&in_fp32, &cpu, true);
    take(s->dq, &got.dq);
    take(s->dk, &got.dk);
    take(s->dv, &got.dv);
    free_run(&got);
    rig_close(&cpu);
    tensor_free(&in_fp32.q);
    tensor_free(&in_fp32.k);
    tensor_free(&in_fp32.v);
    tensor_free(&in_fp32.dout);
}

static void check_shapes(enum zt_dtype dtype, struct zt_dropout drop)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(shapes); i++) {
        if (!ATTENTION_WANTED(&shapes[i], dtype))
            continue;
        struct problem s = make_problem(&shapes[i], dtype, drop);
        naive(&s);
        gradients_of_cpu(&s);
        FOR_EACH_RIG(r)
        {
            check_rig(&s, &r, true);
            if (zt_test_failed) {
                printf("# head_dim %d, q_len %d\n", shapes[i].head_dim, shapes[i].q_len);
                return;
            }
        }
        free_problem(&s);
    }
}

TEST(dev_attention_shapes_fp32)
{
    check_shapes(ZT_F32, no_drop());
}

/* ThreadSanitizer has these kernels in the other three; a thread for each CUDA thread takes its time. */
TEST_IF(!ZT_TSAN, dev_attention_shapes_bf16)
{
    check_shapes(ZT_BF16, no_drop());
}

TEST(dev_attention_shapes_f16)
{
    check_shapes(ZT_F16, no_drop());
}

TEST(dev_attention_shapes_with_dropout)
{
    check_shapes(ZT_BF16, drop_of(0.2));
}

/*
 * Two sequences at once, or each as a micro-batch of its own: the same bits, since a mask belongs to
 * a sample, not to its place in a batch.
 */
TEST(dev_attention_dropout_is_of_the_sample)
{
    const struct attention_case both = {2, 33, 33, 0, 4, 2, 8, false, 0};
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

static bool same_bits(const struct tensor *a, const struct tensor *b)
{
    return !memcmp(a->ref.ptr, b->ref.ptr, (size_t)a->n * zt_dtype_bytes(a->ref.dtype));
}

static void check_repeats(const struct attention_case *t, enum zt_dtype dtype)
{
    struct problem s = make_problem(t, dtype, drop_of(0.1));
    FOR_EACH_RIG(r)
    {
        struct run a = run_attention(&s, &r, true), b = run_attention(&s, &r, true);
        CHECK(same_bits(&a.out, &b.out));
        CHECK(same_bits(&a.lse, &b.lse));
        CHECK(same_bits(&a.dq, &b.dq));
        CHECK(same_bits(&a.dk, &b.dk));
        CHECK(same_bits(&a.dv, &b.dv));
        free_run(&a);
        free_run(&b);
    }
    free_problem(&s);
}

TEST(dev_attention_repeats_bit_for_bit)
{
    check_repeats(&tiles, ZT_F32);
    RETURN_IF_FAILED();
    check_repeats(&shapes[0], ZT_BF16);
}

TEST_MAIN()
