#include "dev_test.h"

/* Errors allowed: fp32 sums of k products of numbers of size 1. */
static const double tolerance = 4e-6;

struct matmul_case {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate;
    enum zt_epilogue epilogue;
    bool bias, residual, aux;
    int pad; /* of the leading dimensions */
};

static const struct matmul_case cases[] = {
    {1, 1, 1, false, false, false, ZT_EPI_NONE, false, false, false, 0},
    {3, 17, 5, false, true, false, ZT_EPI_NONE, true, false, false, 0},
    {17, 3, 65, true, false, true, ZT_EPI_NONE, false, false, false, 3},
    {65, 33, 129, true, true, false, ZT_EPI_NONE, false, true, false, 1},
    {64, 130, 48, false, false, false, ZT_EPI_NONE, true, true, false, 2},
    {33, 65, 31, false, true, false, ZT_EPI_GELU, true, false, true, 0},
    {5, 7, 3, false, true, false, ZT_EPI_GELU, false, true, false, 1},
    {31, 1100, 9, false, false, false, ZT_EPI_DGELU, false, true, true, 0},
    {300, 200, 100, true, false, true, ZT_EPI_NONE, false, false, false, 0},
    {7, 9, 0, false, false, false, ZT_EPI_NONE, true, false, false, 0},
    {7, 9, 0, false, false, true, ZT_EPI_NONE, false, false, false, 0},
    {7, 0, 4, false, false, false, ZT_EPI_NONE, true, false, false, 1},
    {0, 9, 4, false, true, false, ZT_EPI_NONE, true, false, false, 1},
};

/* Until the test ends; a GPU's, which takes longer to map than a product, is the same for all that want as much. */
static void *workspace(const struct rig *r, size_t bytes)
{
    static void *of_gpu;
    static size_t n_bytes;
    static const char *test;
    if (r->dev->ops->kind != ZT_DEV_CUDA)
        return test_share(NULL, bytes);
    if (test != zt_test_name || n_bytes != bytes)
        of_gpu = test_share(NULL, bytes);
    test = zt_test_name;
    n_bytes = bytes;
    return of_gpu;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_at(void *ctx)
{
    return gelu(*(double *)ctx);
}

static double gelu_grad(double x)
{
    double d;
    differences(gelu_at, &x, &x, 1, &d);
    return d;
}

struct operands {
    struct tensor a, b, bias, residual, aux, c;
    struct zt_matmul args;
};

static struct operands make_operands(const struct matmul_case *t, enum zt_dtype dtype)
{
    struct operands o;
    struct zt_matmul *m = &o.args;
    memset(m, 0, sizeof *m);
    *m = (struct zt_matmul){.m = t->m,
                            .n = t->n,
                            .k = t->k,
                            .lda = (t->trans_a ? t->m : t->k) + t->pad,
                            .ldb = (t->trans_b ? t->k : t->n) + t->pad,
                            .ldc = t->n + t->pad,
                            .trans_a = t->trans_a,
                            .trans_b = t->trans_b,
                            .accumulate = t->accumulate,
                            .epilogue = t->epilogue};
    int64_t n_c = t->m * m->ldc;
    o.a = tensor_random((t->trans_a ? t->k : t->m) * m->lda + 1, dtype, 1, 1, 0);
    o.b = tensor_random((t->trans_b ? t->n : t->k) * m->ldb + 1, dtype, 2, 1, 0);
    o.bias = tensor_random(t->n, dtype, 3, 1, 0);
    o.residual = tensor_random(n_c, dtype, 4, 1, 0);
    o.aux = tensor_random(n_c, dtype, 5, 2, 0);
    o.c = tensor_random(n_c, dtype, 6, 1, 0);
    m->a = o.a.ref;
    m->b = o.b.ref;
    if (t->bias)
        m->bias = o.bias.ref;
    if (t->residual)
        m->residual = o.residual.ref;
    if (t->aux)
        m->aux = o.aux.ref;
    m->c = o.c.ref;
    return o;
}

static void free_operands(struct operands *o)
{
    tensor_free(&o->a);
    tensor_free(&o->b);
    tensor_free(&o->bias);
    tensor_free(&o->residual);
    tensor_free(&o->aux);
    tensor_free(&o->c);
}

/* Expected C and, for GELU, aux. Elements between n and ldc stay as they are. */
static void expect(const struct operands *o, double *c, double *aux)
{
    const struct zt_matmul *m = &o->args;
    memcpy(c, o->c.val, (size_t)o->c.n * sizeof *c);
    memcpy(aux, o->aux.val, (size_t)o->aux.n * sizeof *aux);
    for (int64_t i = 0; i < m->m; i++)
        for (int64_t j = 0; j < m->n; j++) {
            int64_t at = i * m->ldc + j;
            double x = m->accumulate ? o->c.val[at] : 0;
            for (int64_t p = 0; p < m->k; p++)
                x += o->a.val[m->trans_a ? p * m->lda + i : i * m->lda + p] *
                     o->b.val[m->trans_b ? j * m->ldb + p : p * m->ldb + j];
            if (m->bias.ptr)
                x += o->bias.val[j];
            if (m->epilogue == ZT_EPI_GELU) {
                aux[at] = x;
                x = gelu(x);
            } else if (m->epilogue == ZT_EPI_DGELU) {
                x *= gelu_grad(o->aux.val[at]);
            }
            c[at] = x + (m->residual.ptr ? o->residual.val[at] : 0);
        }
}

static void check_case(const struct matmul_case *t, enum zt_dtype dtype)
{
    char what[80];
    struct operands o = make_operands(t, dtype);
    struct zt_matmul *m = &o.args;
    double *c = zt_xcalloc((size_t)o.c.n, sizeof *c), *aux = zt_xcalloc((size_t)o.c.n, sizeof *aux);
    snprintf(what, sizeof what, "matmul %lld %lld %lld", (long long)t->m, (long long)t->n,
             (long long)t->k);
    expect(&o, c, aux);
    FOR_EACH_RIG(r)
    {
        struct tensor got = tensor_copy(&o.c), got_aux = tensor_copy(&o.aux);
        m->c = got.ref;
        if (t->aux)
            m->aux = got_aux.ref;
        m->ws_bytes = zt_ws_matmul(r.dev->ops->kind, m, r.n_threads);
        m->ws = workspace(&r, m->ws_bytes);
        RUN(r, matmul, m);
        CHECK_TENSOR(r, what, got.ref, c, got.n, tolerance * (1 + sqrt((double)t->k)));
        if (t->aux)
            CHECK_TENSOR(r, "aux", got_aux.ref, aux, got.n, tolerance * (1 + sqrt((double)t->k)));
        tensor_free(&got);
        tensor_free(&got_aux);
    }
    free(c);
    free(aux);
    free_operands(&o);
}

TEST(dev_matmul_fp32)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        check_case(&cases[i], ZT_F32);
        RETURN_IF_FAILED();
    }
}

TEST(dev_matmul_bf16)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        check_case(&cases[i], ZT_BF16);
        RETURN_IF_FAILED();
    }
}

/* More than one block of C in both directions: k is long, so that blocks are narrow. */
TEST(dev_matmul_bf16_in_blocks)
{
    enum { M = 130, N = 150, K = 70000 };
    struct tensor a = tensor_random((int64_t)M * K, ZT_BF16, 1, 1, 0);
    struct tensor b = tensor_random((int64_t)N * K, ZT_BF16, 2, 1, 0);
    struct tensor c = tensor_out(M * N, ZT_F32);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++)
            c.val[i * N + j] = dot(a.val + i * K, b.val + j * K, K);
    FOR_EACH_RIG(r)
    {
        struct zt_matmul m = {.m = M,
                              .n = N,
                              .k = K,
                              .lda = K,
                              .ldb = K,
                              .ldc = N,
                              .trans_b = true,
                              .a = a.ref,
                              .b = b.ref,
                              .c = c.ref};
        m.ws_bytes = zt_ws_matmul(r.dev->ops->kind, &m, r.n_threads);
        CHECK(m.ws_bytes < (size_t)M * K * 4);
        m.ws = workspace(&r, m.ws_bytes);
        RUN(r, matmul, &m);
        CHECK_TENSOR(r, "blocks", c.ref, c.val, c.n, 1e-3);
    }
    tensor_free(&a);
    tensor_free(&b);
    tensor_free(&c);
}

TEST(dev_matmul_residual_in_place)
{
    for (enum zt_dtype t = ZT_F32; t <= ZT_BF16; t++) {
        struct matmul_case in_place = {20,          30,   40,   false, true, false,
                                       ZT_EPI_NONE, true, true, false, 0};
        struct operands o = make_operands(&in_place, t);
        double *want = zt_xcalloc((size_t)o.c.n, sizeof *want);
        double *aux = zt_xcalloc((size_t)o.c.n, sizeof *aux);
        expect(&o, want, aux);
        FOR_EACH_RIG(r)
        {
            struct tensor c = tensor_copy(&o.residual);
            o.args.residual = o.args.c = c.ref;
            o.args.ws_bytes = zt_ws_matmul(r.dev->ops->kind, &o.args, r.n_threads);
            o.args.ws = workspace(&r, o.args.ws_bytes);
            RUN(r, matmul, &o.args);
            CHECK_TENSOR(r, "in place", c.ref, want, c.n, tolerance * 8);
            o.args.epilogue = ZT_EPI_GELU;
            struct zt_err err;
            r.dev->ops->matmul(r.stream, &o.args); /* a GPU may be able to */
            int rc = rig_sync(&r, &err);
            CHECK_INT(rc, r.dev->ops->kind == ZT_DEV_CUDA ? 0 : ZT_EUNSUPPORTED);
            o.args.epilogue = ZT_EPI_NONE;
            tensor_free(&c);
        }
        free(want);
        free(aux);
        free_operands(&o);
    }
}

/*
 * The sums over k of either operand, overwritten or added to: on the CPU the very bits of col_sum, a GPU
 * may add up in another order.
 */
TEST(dev_matmul_bias_grad)
{
    for (int i = 0; i < 16; i++) {
        enum { M = 37, N = 70, PAD = 2 };
        const int64_t k = i & 8 ? 0 : 300;
        const bool of_a = i & 1, accumulate = i & 2;
        const enum zt_dtype t = i & 4 ? ZT_BF16 : ZT_F32;
        struct matmul_case dw = {M,           N,     k,     true,  false, accumulate,
                                 ZT_EPI_NONE, false, false, false, PAD};
        struct operands o = make_operands(&dw, t);
        struct tensor start = tensor_random(of_a ? M : N, t, 7, 1, 0);
        double *c = zt_xcalloc((size_t)o.c.n, sizeof *c),
               *aux = zt_xcalloc((size_t)o.c.n, sizeof *aux);
        expect(&o, c, aux);
        FOR_EACH_RIG(r)
        {
            struct tensor got = tensor_copy(&o.c), sum = tensor_copy(&start);
            struct tensor want = tensor_copy(&start);
            o.args.c = got.ref;
            o.args.bias_grad_of = of_a ? ZT_BIAS_GRAD_A : ZT_BIAS_GRAD_B;
            o.args.bias_grad = sum.ref;
            o.args.ws_bytes = zt_ws_matmul(r.dev->ops->kind, &o.args, r.n_threads);
            o.args.ws = workspace(&r, o.args.ws_bytes);
            RUN(r, matmul, &o.args);
            CHECK_TENSOR(r, "beside a bias gradient", got.ref, c, got.n, tolerance * 20);
            struct zt_col_sum s = {.rows = k,
                                   .cols = of_a ? M : N,
                                   .ld = of_a ? o.args.lda : o.args.ldb,
                                   .x = of_a ? o.a.ref : o.b.ref,
                                   .out = want.ref,
                                   .accumulate = accumulate,
                                   .ws = o.args.ws,
                                   .ws_bytes = o.args.ws_bytes};
            RUN(r, col_sum, &s);
            for (int64_t j = 0; j < s.cols; j++)
                want.val[j] = tensor_get(want.ref, j);
            CHECK_TENSOR(r, "bias gradient", sum.ref, want.val, s.cols, 5e-6);
            if (r.dev->ops->kind == ZT_DEV_CPU)
                CHECK(memcmp(sum.ref.ptr, want.ref.ptr, (size_t)s.cols * zt_dtype_bytes(t)) == 0);
            tensor_free(&got);
            tensor_free(&sum);
            tensor_free(&want);
        }
        tensor_free(&start);
        free(c);
        free(aux);
        free_operands(&o);
    }
}

/* x = 1 * a with a over the whole range: tails, infinities and NaN of GELU and its derivative. */
TEST(dev_matmul_gelu_tails)
{
    static const float xs[] = {-INFINITY, -1e30f, -100, -13, -9,  -3,   -1e-20f,
                               0,         1e-20f, 3,    9,   100, 1e30f};
    enum { N = ZT_ARRAY_LEN(xs) };
    float *one = SHARED(float, 1), *gelu_x = SHARED_ARRAY(float, N);
    float *grad_x = SHARED_ARRAY(float, N), *b = SHARED_ARRAY(float, N),
          *aux = SHARED_ARRAY(float, N);
    FOR_EACH_RIG(r)
    {
        struct zt_matmul m = {.m = 1,
                              .n = N,
                              .k = 1,
                              .lda = 1,
                              .ldb = N,
                              .ldc = N,
                              .epilogue = ZT_EPI_GELU,
                              .a = {one, ZT_F32},
                              .b = {b, ZT_F32},
                              .c = {gelu_x, ZT_F32}};
        m.ws_bytes = zt_ws_matmul(r.dev->ops->kind, &m, r.n_threads);
        m.ws = workspace(&r, m.ws_bytes);
        memcpy(b, xs, sizeof xs);
        RUN(r, matmul, &m);
        memcpy(aux, xs, sizeof xs);
        for (int i = 0; i < N; i++)
            b[i] = 1;
        m.epilogue = ZT_EPI_DGELU;
        m.aux = (struct zt_ref){aux, ZT_F32};
        m.c.ptr = grad_x;
        RUN(r, matmul, &m);
        for (int i = 1; i < N; i++) {
            double x = (double)xs[i], want = x < -50 ? 0 : x > 50 ? x : gelu(x);
            double want_grad = x < -50 ? 0 : x > 50 ? 1 : gelu_grad(x);
            CHECK_NEAR(gelu_x[i], want, 1e-6 * (1 + fabs(want)));
            CHECK_NEAR(grad_x[i], want_grad, 2e-6);
        }
    }
}

TEST(dev_matmul_repeats_bit_for_bit)
{
    static const struct matmul_case big = {300,         200,  500,   false, true, false,
                                           ZT_EPI_GELU, true, false, false, 0};
    struct operands o = make_operands(&big, ZT_F32);
    struct tensor again = tensor_out(o.c.n, ZT_F32);
    FOR_EACH_RIG(r)
    {
        o.args.ws_bytes = zt_ws_matmul(r.dev->ops->kind, &o.args, r.n_threads);
        o.args.ws = workspace(&r, o.args.ws_bytes);
        RUN(r, matmul, &o.args);
        o.args.c = again.ref;
        RUN(r, matmul, &o.args);
        o.args.c = o.c.ref;
        CHECK(memcmp(o.c.ref.ptr, again.ref.ptr, (size_t)again.n * sizeof(float)) == 0);
    }
    tensor_free(&again);
    free_operands(&o);
}

TEST_MAIN()
