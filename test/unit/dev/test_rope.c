#include "dev_test.h"

static const struct zt_rope_rule plain = {.kind = ZT_ROPE_PLAIN, .theta = 10000};
/* Llama 3.1's, but for a short model: pairs of all three bands already at head_dim 16. */
static const struct zt_rope_rule llama3 = {ZT_ROPE_LLAMA3, 1000, 8, 1, 4, 64};

/* ---- frequencies ---- */

/* The bands of Llama 3.1 8B: wavelengths below 8192 / 4 are kept, above 8192 / 1 divided. */
TEST(dev_rope_frequencies)
{
    static const struct zt_rope_rule linear = {.kind = ZT_ROPE_LINEAR, .theta = 1e4, .factor = 4};
    static const struct zt_rope_rule llama31 = {ZT_ROPE_LLAMA3, 5e5, 8, 1, 4, 8192};
    CHECK_NEAR(zt_rope_frequency(&plain, 4, 0), 1, 0);
    CHECK_NEAR(zt_rope_frequency(&plain, 4, 1), 0.01, 1e-17);
    CHECK_NEAR(zt_rope_frequency(&linear, 4, 0), 0.25, 0);
    CHECK_NEAR(zt_rope_frequency(&linear, 4, 1), 0.0025, 1e-17);
    /* head_dim 128: pairs 0 to 28 are kept, 29 to 34 mixed, from 35 on divided. */
    const double f28 = pow(5e5, -56.0 / 128), f29 = pow(5e5, -58.0 / 128);
    const double f34 = pow(5e5, -68.0 / 128), f35 = pow(5e5, -70.0 / 128);
    CHECK_NEAR(zt_rope_frequency(&llama31, 128, 0), 1, 0);
    CHECK_NEAR(zt_rope_frequency(&llama31, 128, 28) / f28, 1, 1e-15);
    CHECK(zt_rope_frequency(&llama31, 128, 29) < f29 * 0.999);
    CHECK(zt_rope_frequency(&llama31, 128, 34) > f34 / 8 * 1.001);
    CHECK_NEAR(zt_rope_frequency(&llama31, 128, 35) / (f35 / 8), 1, 1e-15);
    CHECK_NEAR(zt_rope_frequency(&llama31, 128, 63) / (pow(5e5, -126.0 / 128) / 8), 1, 1e-15);
}

/* ---- the kernel ---- */

struct rope_case {
    int64_t rows;
    int n_head, n_kv_head, head_dim;
    int pad;             /* columns of a row behind its heads */
    int32_t first, step; /* positions */
};

/* Turn x (rows, ld) by long double arithmetic. */
static void rope_reference(const struct rope_case *c, const struct zt_rope_rule *rule,
                           const int32_t *positions, int n_head, int64_t ld, bool inverse,
                           double *x)
{
    const int64_t half = c->head_dim / 2;
    for (int64_t row = 0; row < c->rows; row++)
        for (int h = 0; h < n_head; h++)
            for (int64_t i = 0; i < half; i++) {
                long double angle = (long double)positions[row] *
                                    (long double)zt_rope_frequency(rule, c->head_dim, i);
                double s = (double)sinl(angle) * (inverse ? -1 : 1), co = (double)cosl(angle);
                double *p = x + row * ld + h * c->head_dim + i, a = p[0], b = p[half];
                p[0] = a * co - b * s;
                p[half] = b * co + a * s;
            }
}

static void check_rope(const struct rope_case *c, const struct zt_rope_rule *rule, enum zt_dtype t,
                       bool inverse)
{
    int64_t ldq = c->n_head * c->head_dim + c->pad, ldk = c->n_kv_head * c->head_dim + c->pad;
    int32_t *positions = SHARED_ARRAY(int32_t, c->rows);
    struct tensor q = tensor_random(c->rows * ldq, t, 1, 1, 0),
                  k = tensor_random(c->rows * ldk, t, 2, 1, 0);
    struct tensor got_q = tensor_copy(&q), got_k = tensor_copy(&k);
    for (int64_t i = 0; i < c->rows; i++)
        positions[i] = c->first + (int32_t)i * c->step;
    rope_reference(c, rule, positions, c->n_head, ldq, inverse, got_q.val);
    rope_reference(c, rule, positions, c->n_kv_head, ldk, inverse, got_k.val);
    FOR_EACH_RIG(r)
    {
        memcpy(got_q.ref.ptr, q.ref.ptr, (size_t)q.n * zt_dtype_bytes(t));
        memcpy(got_k.ref.ptr, k.ref.ptr, (size_t)k.n * zt_dtype_bytes(t));
        struct zt_rope a = {c->rows,   ldq,   ldk,     c->n_head, c->n_kv_head, c->head_dim,
                            positions, *rule, inverse, got_q.ref, got_k.ref};
        RUN(r, rope, &a);
        CHECK_TENSOR(r, "rope q", got_q.ref, got_q.val, q.n, 4e-7);
        CHECK_TENSOR(r, "rope k", got_k.ref, got_k.val, k.n, 4e-7);
    }
    tensor_free(&q);
    tensor_free(&k);
    tensor_free(&got_q);
    tensor_free(&got_k);
}

/* Odd shapes, all bands of the scaled rule, positions up to the end of what int32 holds. */
TEST(dev_rope)
{
    static const struct rope_case cases[] = {
        {1, 1, 1, 2, 0, 1, 1},
        {3, 4, 2, 6, 0, 0, 1},
        {65, 3, 1, 16, 5, 7, 3},
        {33, 14, 2, 64, 0, 0, 4097},
        {2, 1, 1, 2050, 0, 5, 100000},
        {7, 2, 2, 128, 1, 1 << 20, 12345},
        {3, 1, 1, 10, 0, INT32_MAX - 2, 1},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++)
        for (enum zt_dtype t = ZT_F32; t <= ZT_F16; t++) {
            check_rope(&cases[i], &plain, t, false);
            check_rope(&cases[i], &llama3, t, true);
            RETURN_IF_FAILED();
        }
}

/* D10: half-split, as Hugging Face's files want it. */
TEST(dev_rope_d10_half_split)
{
    static const double want[] = {-1.984110648556, 1.959900667497, 2.462377902412, 4.019799668335};
    const int32_t *one = SHARED(int32_t, 1);
    FOR_EACH_RIG(r)
    {
        static const float start[] = {1, 2, 3, 4};
        float *q = test_share(start, sizeof start), *k = test_share(start, sizeof start);
        struct zt_rope a = {1, 4, 4, 1, 1, 4, one, plain, false, {q, ZT_F32}, {k, ZT_F32}};
        RUN(r, rope, &a);
        for (int i = 0; i < 4; i++) {
            CHECK_NEAR(q[i], want[i], 5e-7);
            CHECK(k[i] == q[i]);
        }
    }
}

/*
 * The gradient is the inverse turn: for f = dot(dy, rope(x)), df/dx by central differences of the
 * reference.
 */
struct rope_slope {
    const struct rope_case *c;
    const int32_t *positions;
    const double *x, *dy;
    double *y;
};

static double rope_value(void *ctx)
{
    struct rope_slope *s = ctx;
    int64_t ld = s->c->n_head * s->c->head_dim;
    memcpy(s->y, s->x, (size_t)(s->c->rows * ld) * sizeof *s->y);
    rope_reference(s->c, &llama3, s->positions, s->c->n_head, ld, false, s->y);
    return dot(s->dy, s->y, s->c->rows * ld);
}

TEST(dev_rope_gradient)
{
    static const struct rope_case c = {3, 2, 2, 16, 0, 0, 0};
    static const int32_t three[] = {0, 5, 1000};
    int32_t *positions = test_share(three, sizeof three);
    int64_t ld = c.n_head * c.head_dim, n = c.rows * ld;
    struct tensor x = tensor_random(n, ZT_F32, 1, 1, 0), dy = tensor_random(n, ZT_F32, 2, 1, 0);
    struct tensor dx = tensor_copy(&dy), y = tensor_out(n, ZT_F32);
    struct rope_slope slope = {&c, positions, x.val, dy.val, y.val};
    differences(rope_value, &slope, x.val, n, dx.val);
    FOR_EACH_RIG(r)
    {
        struct tensor k = tensor_copy(&dy);
        memcpy(dx.ref.ptr, dy.ref.ptr, (size_t)n * sizeof(float));
        struct zt_rope a = {c.rows,    ld,     ld,   c.n_head, c.n_kv_head, c.head_dim,
                            positions, llama3, true, dx.ref,   k.ref};
        RUN(r, rope, &a);
        CHECK_TENSOR(r, "dx", dx.ref, dx.val, n, 1e-6);
        tensor_free(&k);
    }
    tensor_free(&x);
    tensor_free(&dy);
    tensor_free(&dx);
    tensor_free(&y);
}

/* ---- SwiGLU ---- */

struct swiglu {
    int64_t n;
    const double *gate, *up, *dout;
    double *out;
};

static double swiglu_reference(void *ctx)
{
    struct swiglu *s = ctx;
    for (int64_t i = 0; i < s->n; i++)
        s->out[i] = s->gate[i] / (1 + exp(-s->gate[i])) * s->up[i];
    return dot(s->dout, s->out, s->n);
}

static void check_swiglu(int64_t n, enum zt_dtype t, double scale)
{
    struct tensor gate = tensor_random(n, t, 1, scale, 0), up = tensor_random(n, t, 2, 1, 0);
    struct tensor dout = tensor_random(n, t, 3, 1, 0), out = tensor_out(n, t);
    struct tensor dgate = tensor_out(n, t), dup = tensor_out(n, t);
    struct swiglu ref = {n, gate.val, up.val, dout.val, out.val};
    if (n <= 200) {
        differences(swiglu_reference, &ref, gate.val, n, dgate.val);
        differences(swiglu_reference, &ref, up.val, n, dup.val);
    }
    swiglu_reference(&ref);
    FOR_EACH_RIG(r)
    {
        struct zt_swiglu_fwd fwd = {n, gate.ref, up.ref, out.ref};
        RUN(r, swiglu_fwd, &fwd);
        CHECK_TENSOR(r, "swiglu", out.ref, out.val, n, 1e-6);
        struct tensor in_place = tensor_copy(&gate);
        fwd.gate = fwd.out = in_place.ref;
        RUN(r, swiglu_fwd, &fwd);
        CHECK(memcmp(in_place.ref.ptr, out.ref.ptr, (size_t)n * zt_dtype_bytes(t)) == 0);

        struct zt_swiglu_bwd bwd = {n, dout.ref, gate.ref, up.ref, dgate.ref, dup.ref};
        RUN(r, swiglu_bwd, &bwd);
        if (n <= 200) {
            CHECK_TENSOR(r, "dgate", dgate.ref, dgate.val, n, 1e-6);
            CHECK_TENSOR(r, "dup", dup.ref, dup.val, n, 1e-6);
        }
        struct tensor g = tensor_copy(&gate), u = tensor_copy(&up);
        bwd = (struct zt_swiglu_bwd){n, dout.ref, g.ref, u.ref, g.ref, u.ref};
        RUN(r, swiglu_bwd, &bwd);
        CHECK(memcmp(g.ref.ptr, dgate.ref.ptr, (size_t)n * zt_dtype_bytes(t)) == 0);
        CHECK(memcmp(u.ref.ptr, dup.ref.ptr, (size_t)n * zt_dtype_bytes(t)) == 0);
        tensor_free(&in_place);
        tensor_free(&g);
        tensor_free(&u);
    }
    tensor_free(&gate);
    tensor_free(&up);
    tensor_free(&dout);
    tensor_free(&out);
    tensor_free(&dgate);
    tensor_free(&dup);
}

TEST(dev_swiglu)
{
    static const int64_t sizes[] = {1, 17, 199, 1025, 40000};
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++)
        for (enum zt_dtype t = ZT_F32; t <= ZT_F16; t++) {
            check_swiglu(sizes[i], t, 3);
            RETURN_IF_FAILED();
        }
}

/* Far out silu is 0 or x and its slope 0 or 1; nothing overflows into NaN. */
TEST(dev_swiglu_at_the_ends)
{
    static const float ends[] = {-INFINITY, -1e30f, -200, -89, -88, 88, 89, 200, 1e30f};
    enum { N = ZT_ARRAY_LEN(ends) };
    float *gate = test_share(ends, sizeof ends), *up = SHARED_ARRAY(float, N);
    float *dout = SHARED_ARRAY(float, N), *out = SHARED_ARRAY(float, N);
    float *dgate = SHARED_ARRAY(float, N), *dup = SHARED_ARRAY(float, N);
    for (int i = 0; i < N; i++)
        up[i] = dout[i] = 1;
    FOR_EACH_RIG(r)
    {
        struct zt_swiglu_fwd fwd = {N, {gate, ZT_F32}, {up, ZT_F32}, {out, ZT_F32}};
        struct zt_swiglu_bwd bwd = {
            N, {dout, ZT_F32}, {gate, ZT_F32}, {up, ZT_F32}, {dgate, ZT_F32}, {dup, ZT_F32}};
        RUN(r, swiglu_fwd, &fwd);
        RUN(r, swiglu_bwd, &bwd);
        for (int i = 0; i < N; i++) {
            const double want = gate[i] > 0 ? (double)gate[i] : 0;
            CHECK_NEAR(out[i], want, 1e-6 * want + 1e-30);
            CHECK_NEAR(dup[i], want, 1e-6 * want + 1e-30);
            CHECK_NEAR(dgate[i], gate[i] > 0 ? 1 : 0, 1e-6);
        }
    }
}

TEST_MAIN()
