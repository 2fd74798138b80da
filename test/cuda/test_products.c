/*
 * Products by cuBLASLt against the CPU device's: fused and in steps, of every type, for shapes that are
 * friendly to it and for odd ones.
 */
#include "cuda_test.h"

#include "base/arena.h"
#include "base/half.h"
#include "base/rng.h"

enum { ANY = -1 };

struct product_case {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate;
    enum zt_epilogue epilogue;
    bool bias, residual, aux;
    enum zt_bias_grad bias_grad;
    int pad;      /* of the leading dimensions */
    int c_type;   /* of C, residual and bias gradient; ANY: as the operands */
    int aux_type; /* of aux; ANY: as C */
};

static const struct product_case cases[] = {
    /* What the models do. */
    {48, 96, 32, false, false, false, ZT_EPI_NONE, true, false, false, 0, 0, ANY, ANY},
    {48, 96, 32, false, true, false, ZT_EPI_NONE, true, true, false, 0, 0, ANY, ANY},
    {48, 96, 32, false, false, false, ZT_EPI_GELU, true, false, true, 0, 0, ANY, ANY},
    {48, 96, 32, false, false, false, ZT_EPI_GELU, true, false, false, 0, 0, ANY, ANY},
    {48, 96, 32, false, true, false, ZT_EPI_DGELU, false, false, true, 0, 0, ANY, ANY},
    {32, 96, 48, true, false, false, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_B, 0, ANY, ANY},
    {96, 32, 48, true, false, false, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_A, 0, ANY, ANY},
    {32, 96, 48, true, false, true, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_B, 0, ANY, ANY},
    {32, 96, 48, true, false, true, ZT_EPI_NONE, false, false, false, 0, 0, ZT_F32, ANY},
    {32, 96, 48, true, false, false, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_B, 0, ZT_F32,
     ANY},
    {2, 257, 32, false, true, false, ZT_EPI_NONE, false, false, false, 0, 0, ZT_F32, ANY},
    /* Odd sizes and leading dimensions: no fused GELU, no wide accesses. */
    {1, 1, 1, false, false, false, ZT_EPI_NONE, false, false, false, 0, 0, ANY, ANY},
    {3, 17, 5, false, true, false, ZT_EPI_GELU, true, false, true, 0, 1, ANY, ANY},
    {17, 3, 65, true, false, true, ZT_EPI_NONE, false, false, false, 0, 3, ANY, ANY},
    {33, 65, 31, false, true, false, ZT_EPI_DGELU, false, false, true, 0, 1, ANY, ANY},
    {37, 71, 129, true, false, false, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_A, 1, ANY,
     ANY},
    {65, 33, 129, true, true, false, ZT_EPI_NONE, true, true, false, 0, 1, ANY, ANY},
    /* What cuBLASLt has no epilogue for. */
    {24, 40, 16, false, false, false, ZT_EPI_GELU, true, true, true, 0, 0, ANY, ANY},
    {24, 40, 16, false, false, false, ZT_EPI_DGELU, true, true, true, 0, 0, ANY, ANY},
    {24, 40, 16, false, false, false, ZT_EPI_GELU, true, false, true, 0, 0, ANY, ZT_F32},
    {24, 40, 16, false, false, false, ZT_EPI_DGELU, false, false, true, 0, 0, ZT_F32, ANY},
    /* Products of nothing. */
    {7, 9, 0, false, false, false, ZT_EPI_GELU, true, true, true, 0, 0, ANY, ANY},
    {7, 9, 0, false, false, true, ZT_EPI_NONE, false, false, false, 0, 0, ANY, ANY},
    {7, 9, 0, true, false, false, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_B, 0, ANY, ANY},
    {0, 9, 4, true, false, false, ZT_EPI_NONE, false, false, false, ZT_BIAS_GRAD_B, 0, ANY, ANY},
    {7, 0, 4, false, false, false, ZT_EPI_NONE, true, false, false, 0, 0, ANY, ANY},
};

/* ---- operands: the same bytes on both devices ---- */

enum { A, B, BIAS, RESIDUAL, AUX, C, BIAS_GRAD, N_OPERANDS };

struct operands {
    struct zt_matmul args; /* pointers of the CPU */
    struct zt_ref *refs[N_OPERANDS];
    size_t bytes[N_OPERANDS];
};

static size_t fill(struct zt_ref *r, int64_t n, enum zt_dtype t, uint64_t stream)
{
    float *noise = zt_xcalloc((size_t)n, sizeof *noise);
    zt_rng_normal(1, ZT_RNG_INIT, stream, 0, n, noise);
    r->dtype = t;
    r->ptr = zt_xcalloc((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (t == ZT_F32)
            ((float *)r->ptr)[i] = noise[i];
        else
            ((uint16_t *)r->ptr)[i] =
                t == ZT_BF16 ? zt_f32_to_bf16(noise[i]) : zt_f32_to_f16(noise[i]);
    }
    free(noise);
    return (size_t)n * zt_dtype_bytes(t);
}

static void make(const struct product_case *t, enum zt_dtype dtype, struct operands *o)
{
    const enum zt_dtype out = t->c_type == ANY ? dtype : (enum zt_dtype)t->c_type;
    const enum zt_dtype aux = t->aux_type == ANY ? out : (enum zt_dtype)t->aux_type;
    memset(o, 0, sizeof *o);
    struct zt_matmul *m = &o->args;
    *m = (struct zt_matmul){.m = t->m,
                            .n = t->n,
                            .k = t->k,
                            .lda = (t->trans_a ? t->m : t->k) + t->pad,
                            .ldb = (t->trans_b ? t->k : t->n) + t->pad,
                            .ldc = t->n + t->pad,
                            .trans_a = t->trans_a,
                            .trans_b = t->trans_b,
                            .accumulate = t->accumulate,
                            .epilogue = t->epilogue,
                            .bias_grad_of = t->bias_grad};
    struct zt_ref *refs[N_OPERANDS] = {&m->a,   &m->b, &m->bias,     &m->residual,
                                       &m->aux, &m->c, &m->bias_grad};
    memcpy(o->refs, refs, sizeof refs);
    const int64_t n_c = t->m * m->ldc + 1;
    o->bytes[A] = fill(&m->a, (t->trans_a ? t->k : t->m) * m->lda + 1, dtype, 1);
    o->bytes[B] = fill(&m->b, (t->trans_b ? t->n : t->k) * m->ldb + 1, dtype, 2);
    o->bytes[C] = fill(&m->c, n_c, out, 3);
    if (t->bias)
        o->bytes[BIAS] = fill(&m->bias, t->n + 1, dtype, 4);
    if (t->residual)
        o->bytes[RESIDUAL] = fill(&m->residual, n_c, out, 5);
    if (t->aux)
        o->bytes[AUX] = fill(&m->aux, n_c, aux, 6);
    if (t->bias_grad)
        o->bytes[BIAS_GRAD] =
            fill(&m->bias_grad, t->bias_grad == ZT_BIAS_GRAD_A ? t->m + 1 : t->n + 1, out, 7);
}

static void release(struct operands *o)
{
    for (int i = 0; i < N_OPERANDS; i++)
        free(o->refs[i]->ptr);
}

static double value(struct zt_ref r, int64_t i)
{
    if (r.dtype == ZT_F32)
        return (double)((const float *)r.ptr)[i];
    uint16_t h = ((const uint16_t *)r.ptr)[i];
    return (double)(r.dtype == ZT_BF16 ? zt_bf16_to_f32(h) : zt_f16_to_f32(h));
}

/*
 * Worst difference, relative to 1 + |want|, beyond what two roundings of nearly the same number to the
 * type may differ by. Padding must be left as it is, which the same bound shows.
 */
static double worst(struct zt_ref got, struct zt_ref want, size_t bytes)
{
    const double unit = want.dtype == ZT_BF16 ? 1.0 / 128 : want.dtype == ZT_F16 ? 1.0 / 1024 : 0;
    double worst = 0;
    for (int64_t i = 0; i < (int64_t)(bytes / zt_dtype_bytes(want.dtype)); i++) {
        double w = value(want, i), d = fabs(value(got, i) - w);
        if (!(d < INFINITY))
            return INFINITY;
        worst = ZT_MAX(worst, (d - unit * fabs(w)) / (1 + fabs(w)));
    }
    return worst;
}

/* ---- both devices ---- */

static int on_cpu(struct zt_matmul args, struct zt_err *err)
{
    struct zt_dev *cpu;
    struct zt_stream *s;
    int rc = zt_cpu_dev_create(&cpu, NULL, 0, err);
    if (rc)
        return rc;
    rc = cpu->ops->stream_create(cpu, "test", 1, &s, err);
    if (!rc) {
        args.ws_bytes = zt_ws_matmul(ZT_DEV_CPU, &args, 1);
        args.ws = zt_xcalloc(args.ws_bytes + 1, 1);
        cpu->ops->matmul(s, &args);
        rc = cpu->ops->sync(cpu->ops->record(s), err);
        free(args.ws);
        cpu->ops->stream_free(s);
    }
    zt_cpu_dev_free(cpu);
    return rc;
}

/* Of the products here: a large one, so that it is not mapped anew for each. */
static size_t workspace_bytes(void)
{
    return zt_ws_matmul(ZT_DEV_CUDA, &(struct zt_matmul){0}, 1);
}

/*
 * The operands on the GPU, `shift` elements behind an aligned place; outputs come back into `out`. ws: of
 * workspace_bytes().
 */
static int on_gpu(struct gpu *g, struct zt_stream *s, void *ws, const struct operands *o, int shift,
                  struct zt_ref out[N_OPERANDS])
{
    struct operands dev = *o;
    struct zt_ref *refs[N_OPERANDS] = {&dev.args.a,        &dev.args.b,   &dev.args.bias,
                                       &dev.args.residual, &dev.args.aux, &dev.args.c,
                                       &dev.args.bias_grad};
    char *mem[N_OPERANDS] = {NULL};
    dev.args.ws_bytes = zt_ws_matmul(ZT_DEV_CUDA, &dev.args, 1);
    dev.args.ws = ws;
    if (dev.args.ws_bytes > workspace_bytes())
        abort();
    for (int i = 0; i < N_OPERANDS; i++) {
        if (!o->bytes[i])
            continue;
        mem[i] = gpu_alloc(g, o->bytes[i] + 64);
        refs[i]->ptr = mem[i] + (size_t)shift * zt_dtype_bytes(refs[i]->dtype);
        gpu_copy(s, g, refs[i]->ptr, o->refs[i]->ptr, o->bytes[i]);
    }
    g->dev->ops->matmul(s, &dev.args);
    for (int i = AUX; i < N_OPERANDS; i++) {
        out[i] = (struct zt_ref){zt_xcalloc(o->bytes[i] + 1, 1), refs[i]->dtype};
        gpu_copy(s, g, out[i].ptr, refs[i]->ptr, o->bytes[i]);
    }
    int rc = gpu_sync(g, s);
    for (int i = 0; i < N_OPERANDS; i++)
        if (mem[i])
            g->dev->ops->free(g->dev, mem[i], o->bytes[i] + 64);
    return rc;
}

static void check_case(struct gpu *g, struct zt_stream *s, void *ws, const struct product_case *t,
                       enum zt_dtype dtype, int shift)
{
    static const char *const names[N_OPERANDS] = {
        [AUX] = "aux", [C] = "C", [BIAS_GRAD] = "bias_grad"};
    struct operands o;
    struct zt_ref got[N_OPERANDS];
    make(t, dtype, &o);
    CHECK_OK(on_gpu(g, s, ws, &o, shift, got), g->err);
    CHECK_OK(on_cpu(o.args, &g->err), g->err);
    for (int i = AUX; i < N_OPERANDS; i++) {
        double d = o.bytes[i] ? worst(got[i], *o.refs[i], o.bytes[i]) : 0;
        free(got[i].ptr);
        if (d > 1e-5 * (1 + sqrt((double)t->k)))
            FAIL("case %d, %s, shift %d: %s is off by %g", (int)(t - cases), zt_dtype_name(dtype),
                 shift, names[i], d);
    }
    release(&o);
}

static void check_all(enum zt_dtype dtype)
{
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    void *ws = gpu_alloc(&g, workspace_bytes());
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        for (int shift = 0; shift < 2; shift++) {
            check_case(&g, s, ws, &cases[i], dtype, shift);
            RETURN_IF_FAILED();
        }
    }
    g.dev->ops->free(g.dev, ws, workspace_bytes());
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

TEST(cuda_products_fp32)
{
    check_all(ZT_F32);
}

TEST(cuda_products_bf16)
{
    check_all(ZT_BF16);
}

TEST(cuda_products_fp16)
{
    check_all(ZT_F16);
}

/* Operands of two types are refused in words. */
TEST(cuda_products_of_two_types)
{
    struct gpu g;
    struct operands o;
    struct zt_ref got[N_OPERANDS];
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    void *ws = gpu_alloc(&g, workspace_bytes());
    make(&cases[0], ZT_BF16, &o);
    o.args.b.dtype = ZT_F16;
    CHECK_INT(on_gpu(&g, s, ws, &o, 0, got), ZT_EUNSUPPORTED);
    CHECK(strstr(g.err.msg, "matmul (48, 96, 32) of bf16 and fp16"));
    for (int i = AUX; i < N_OPERANDS; i++)
        free(got[i].ptr);
    release(&o);
    g.dev->ops->free(g.dev, ws, workspace_bytes());
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

/*
 * A bias gradient that cannot be made by the product does not cost the product: it goes in one call, and so
 * in a workspace where not a row of it had room.
 */
TEST(cuda_products_beside_a_bias_gradient)
{
    enum { M = 8, N = 4096 };
    struct gpu g;
    static float host[M * N];
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    float *a = gpu_alloc(&g, M * sizeof *a), *b = gpu_alloc(&g, N * sizeof *b);
    float *c = gpu_alloc(&g, sizeof host), *sum = gpu_alloc(&g, N * sizeof *sum);
    struct zt_matmul mm = {.m = M,
                           .n = N,
                           .k = 1,
                           .lda = M,
                           .ldb = N,
                           .ldc = N,
                           .trans_a = true,
                           .accumulate = true,
                           .bias_grad_of = ZT_BIAS_GRAD_B,
                           .ws_bytes = zt_ws_col_sum(ZT_DEV_CUDA, 1, N, 1)};
    mm.a = (struct zt_ref){a, ZT_F32};
    mm.b = (struct zt_ref){b, ZT_F32};
    mm.c = (struct zt_ref){c, ZT_F32};
    mm.bias_grad = (struct zt_ref){sum, ZT_F32};
    mm.ws = gpu_alloc(&g, mm.ws_bytes);
    CHECK(mm.ws_bytes <= N * sizeof(float));
    for (int i = 0; i < N; i++)
        host[i] = (float)(i % 5);
    gpu_copy(s, &g, a, host, M * sizeof *a);
    gpu_copy(s, &g, b, host, N * sizeof *b);
    for (int micro_batch = 0; micro_batch < 2; micro_batch++)
        g.dev->ops->matmul(s, &mm);
    gpu_copy(s, &g, host, c, sizeof host);
    CHECK_OK(gpu_sync(&g, s), g.err);
    for (int i = 0; i < M * N; i++)
        CHECK(host[i] == (float)(2 * (i / N % 5) * (i % N % 5)));
    gpu_copy(s, &g, host, sum, N * sizeof *sum);
    CHECK_OK(gpu_sync(&g, s), g.err);
    for (int i = 0; i < N; i++)
        CHECK(host[i] == (float)(2 * (i % 5)));
    g.dev->ops->free(g.dev, mm.ws, mm.ws_bytes);
    g.dev->ops->free(g.dev, a, M * sizeof *a);
    g.dev->ops->free(g.dev, b, N * sizeof *b);
    g.dev->ops->free(g.dev, c, sizeof host);
    g.dev->ops->free(g.dev, sum, N * sizeof *sum);
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

/* More shapes than the table of algorithms holds: all are still right. */
TEST(cuda_products_of_more_shapes_than_are_kept)
{
    enum { SHAPES = 700 };
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    float ones[SHAPES], got = 0;
    float *x = gpu_alloc(&g, sizeof ones), *y = gpu_alloc(&g, sizeof got);
    struct zt_matmul mm = {.m = 1, .n = 1, .lda = SHAPES, .ldb = 1, .ldc = 1};
    mm.a = mm.b = (struct zt_ref){x, ZT_F32};
    mm.c = (struct zt_ref){y, ZT_F32};
    mm.ws_bytes = zt_ws_matmul(ZT_DEV_CUDA, &mm, 1);
    mm.ws = gpu_alloc(&g, mm.ws_bytes);
    for (int i = 0; i < SHAPES; i++)
        ones[i] = 1;
    gpu_copy(s, &g, x, ones, sizeof ones);
    for (int i = 0; i < SHAPES + 20; i++) {
        mm.k = 1 + i % SHAPES;
        g.dev->ops->matmul(s, &mm);
        gpu_copy(s, &g, &got, y, sizeof got);
        CHECK_OK(gpu_sync(&g, s), g.err);
        CHECK(got == (float)mm.k);
    }
    g.dev->ops->free(g.dev, mm.ws, mm.ws_bytes);
    g.dev->ops->free(g.dev, x, sizeof ones);
    g.dev->ops->free(g.dev, y, sizeof got);
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

TEST_MAIN()
