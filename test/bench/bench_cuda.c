/*
 * bench_cuda.c: kernels of a GPU at the shapes of real models, beside what this GPU can do, all in one
 * run: bytes beside a copy of 1 GiB, FLOPs beside a bf16 product of 8192^3. Times are elapsed, the best
 * of a few rounds of many launches each; what counts is dev/cost.h. Judge the shares.
 *
 *     bench_cuda [filter]
 *
 * Without a GPU nothing is measured, which is a failure only with ZT_TEST_RIGS=cuda, as for the tests; and so it is
 * where no kernel has the filter in its name.
 */
#include "coll/backend.h"

#include "base/clock.h"
#include "dev/cost.h"

enum { N_BUFFERS = 6, ROUNDS = 4, MIN_ROUND_MS = 20 };
static const size_t buffer_bytes = (size_t)1 << 30;

struct bench {
    struct zt_dev *dev;
    struct zt_stream *stream;
    const char *filter;
    void *buf[N_BUFFERS], *ws;
    struct zt_cost peak; /* a second */
    int n_kernels;       /* measured */
};

static void die(const struct zt_err *err)
{
    fprintf(stderr, "bench_cuda: %s\n", err->msg);
    exit(1);
}

static void sync(const struct bench *b)
{
    struct zt_err err;
    if (b->dev->ops->sync(b->dev->ops->record(b->stream), &err))
        die(&err);
}

static bool wanted(struct bench *b, const char *name)
{
    bool is = !b->filter || strstr(name, b->filter);
    b->n_kernels += is;
    return is;
}

static bool gpu_is_asked_for(void)
{
    const char *rigs = getenv("ZT_TEST_RIGS");
    return rigs && strcmp(rigs, "cuda") == 0;
}

static void report(const struct bench *b, const char *name, double s, struct zt_cost c)
{
    printf("%-44s %9.1f us", name, s * 1e6);
    if (c.bytes > 0)
        printf(" %8.1f GB/s (%3.0f %%)", c.bytes / s * 1e-9,
               b->peak.bytes > 0 ? 100 * c.bytes / s / b->peak.bytes : 100);
    if (c.flops > 1e9)
        printf(" %8.1f TF/s (%3.0f %%)", c.flops / s * 1e-12,
               b->peak.flops > 0 ? 100 * c.flops / s / b->peak.flops : 100);
    printf("\n");
}

/* Seconds of a call that enqueues on the stream. */
#define BEST_OF(b, s, call)                                                                        \
    do {                                                                                           \
        int n_ = 1;                                                                                \
        (s) = 1e30;                                                                                \
        for (int round_ = -1; round_ < ROUNDS;) {                                                  \
            double t_ = zt_now_s();                                                                \
            for (int i_ = 0; i_ < n_; i_++)                                                        \
                call;                                                                              \
            sync(b);                                                                               \
            t_ = zt_now_s() - t_;                                                                  \
            if (round_ < 0 && t_ < MIN_ROUND_MS * 1e-3 && n_ < 4096) {                             \
                n_ *= 2;                                                                           \
                continue;                                                                          \
            }                                                                                      \
            (s) = round_ < 0 ? (s) : ZT_MIN((s), t_ / n_);                                         \
            round_++;                                                                              \
        }                                                                                          \
    } while (0)

#define BENCH(b, name, kernel, args)                                                               \
    do {                                                                                           \
        double s_;                                                                                 \
        if (!wanted((b), (name)))                                                                  \
            break;                                                                                 \
        BEST_OF((b), s_, (b)->dev->ops->kernel((b)->stream, (args)));                              \
        report((b), (name), s_, zt_cost_##kernel(args));                                           \
    } while (0)

static struct zt_ref ref(const struct bench *b, int buffer, enum zt_dtype t)
{
    return (struct zt_ref){b->buf[buffer], t};
}

static const struct zt_ref none = {NULL, ZT_F32};

/* ---- what the GPU can do ---- */

static struct zt_matmul product(const struct bench *b, int64_t m, int64_t n, int64_t k,
                                enum zt_dtype t)
{
    return (struct zt_matmul){.m = m,
                              .n = n,
                              .k = k,
                              .lda = k,
                              .ldb = k,
                              .ldc = n,
                              .trans_b = true,
                              .a = ref(b, 0, t),
                              .b = ref(b, 1, t),
                              .c = ref(b, 2, t),
                              .ws = b->ws,
                              .ws_bytes = buffer_bytes};
}

static void measure_peaks(struct bench *b)
{
    const struct zt_copy copy = {b->buf[1], b->buf[0], buffer_bytes};
    const struct zt_matmul big = product(b, 8192, 8192, 8192, ZT_BF16);
    double s;
    BEST_OF(b, s, b->dev->ops->copy(b->stream, &copy));
    report(b, "copy 1 GiB", s, zt_cost_copy(&copy));
    b->peak.bytes = zt_cost_copy(&copy).bytes / s;
    BEST_OF(b, s, b->dev->ops->matmul(b->stream, &big));
    report(b, "product bf16 8192^3", s, (struct zt_cost){0, zt_cost_matmul(&big).flops});
    b->peak.flops = zt_cost_matmul(&big).flops / s;
}

/* ---- one model ---- */

struct shape {
    const char *name;
    int64_t rows, seq_len, cols, inner, vocab;
    int n_head, n_kv_head;
};

/* GPT-2 124M, batch 32 x 1024; the 1.5B one, 16 x 1024; Llama 3 8B, 2 x 4096. */
static const struct shape shapes[] = {
    {"gpt2", 32 * 1024, 1024, 768, 3072, 50257, 12, 12},
    {"1.5b", 16 * 1024, 1024, 1600, 6400, 50257, 25, 25},
    {"llama-8b", 2 * 4096, 4096, 4096, 14336, 128256, 32, 8},
};

static void bench_products(struct bench *b, const struct shape *s, enum zt_dtype t)
{
    char name[80];
    struct zt_matmul qkv = product(b, s->rows, 3 * s->cols, s->cols, t);
    struct zt_matmul fc = product(b, s->rows, s->inner, s->cols, t);
    struct zt_matmul proj = product(b, s->rows, s->cols, s->inner, t);
    struct zt_matmul dw = product(b, s->inner, s->cols, s->rows, t);
    qkv.bias = ref(b, 4, t);
    fc.bias = ref(b, 4, t);
    fc.epilogue = ZT_EPI_GELU;
    fc.aux = ref(b, 3, t);
    proj.bias = ref(b, 4, t);
    proj.residual = ref(b, 3, t);
    dw.trans_a = true;
    dw.trans_b = false;
    dw.lda = s->inner;
    dw.ldb = s->cols;
    dw.accumulate = true;
    dw.c = ref(b, 2, ZT_F32);
    snprintf(name, sizeof name, "%s matmul qkv + bias", s->name);
    BENCH(b, name, matmul, &qkv);
    snprintf(name, sizeof name, "%s matmul fc + bias + gelu", s->name);
    BENCH(b, name, matmul, &fc);
    snprintf(name, sizeof name, "%s matmul proj + bias + residual", s->name);
    BENCH(b, name, matmul, &proj);
    snprintf(name, sizeof name, "%s matmul fc weight gradient", s->name);
    BENCH(b, name, matmul, &dw);
}

static void bench_attention(struct bench *b, const struct shape *s, enum zt_dtype t)
{
    const int dim = (int)s->cols / s->n_head;
    char name[80];
    struct zt_attention a = {.batch = s->rows / s->seq_len,
                             .q_len = s->seq_len,
                             .k_len = s->seq_len,
                             .n_head = s->n_head,
                             .n_kv_head = s->n_kv_head,
                             .head_dim = dim,
                             .ldq = s->cols,
                             .ldkv = s->n_kv_head * dim,
                             .ldo = s->cols,
                             .scale = 0.125f,
                             .q = ref(b, 0, t),
                             .k = ref(b, 1, t),
                             .v = ref(b, 2, t),
                             .out = ref(b, 3, t),
                             .lse = b->buf[4],
                             .dout = ref(b, 5, t),
                             .ws = b->ws,
                             .ws_bytes = buffer_bytes};
    const size_t half = buffer_bytes / 2;
    a.dq = (struct zt_ref){(char *)b->buf[0] + half, t};
    a.dk = (struct zt_ref){(char *)b->buf[1] + half, t};
    a.dv = (struct zt_ref){(char *)b->buf[2] + half, t};
    snprintf(name, sizeof name, "%s attention fwd", s->name);
    BENCH(b, name, attention_fwd, &a);
    snprintf(name, sizeof name, "%s attention bwd", s->name);
    BENCH(b, name, attention_bwd, &a);
}

static void bench_rows(struct bench *b, const struct shape *s, enum zt_dtype t)
{
    char name[80];
    float *stats = (float *)((char *)b->buf[5] + (512 << 10)); /* behind the tokens */
    struct zt_norm_fwd fwd = {s->rows,      s->cols,      1e-5f,        false, ref(b, 0, t),
                              ref(b, 4, t), ref(b, 4, t), ref(b, 1, t), stats, stats + s->rows};
    struct zt_norm_bwd bwd = {.rows = s->rows,
                              .cols = s->cols,
                              .dy = ref(b, 1, t),
                              .x = ref(b, 0, t),
                              .mean = stats,
                              .rstd = stats + s->rows,
                              .gamma = ref(b, 4, t),
                              .dresidual = ref(b, 2, t),
                              .dx = ref(b, 3, t),
                              .ws = b->ws,
                              .ws_bytes = zt_ws_norm_bwd(ZT_DEV_CUDA, s->rows, s->cols, 1)};
    struct zt_col_sum sum = {
        s->rows,      s->inner, s->inner, ref(b, 0, t),
        ref(b, 4, t), false,    b->ws,    zt_ws_col_sum(ZT_DEV_CUDA, s->rows, s->inner, 1)};
    struct zt_drop_add drop = {s->rows,      s->cols,      s->seq_len,  {.sb = b->buf[5]},
                               ref(b, 0, t), ref(b, 1, t), ref(b, 2, t)};
    bwd.dgamma = bwd.dbeta = (struct zt_ref){(char *)b->buf[5] + (1 << 20), t};
    zt_dropout_set_p(&drop.drop, 0.1);
    snprintf(name, sizeof name, "%s norm fwd", s->name);
    BENCH(b, name, norm_fwd, &fwd);
    snprintf(name, sizeof name, "%s norm bwd + residual", s->name);
    BENCH(b, name, norm_bwd, &bwd);
    snprintf(name, sizeof name, "%s col_sum of inner", s->name);
    BENCH(b, name, col_sum, &sum);
    snprintf(name, sizeof name, "%s drop_add", s->name);
    BENCH(b, name, drop_add, &drop);
}

static void bench_llama(struct bench *b, const struct shape *s, enum zt_dtype t)
{
    const int dim = (int)s->cols / s->n_head;
    const int64_t n = ZT_MIN(s->rows * s->inner, (int64_t)buffer_bytes / 4);
    char name[80];
    struct zt_rope rope = {.rows = s->rows,
                           .ldq = s->cols,
                           .ldk = s->n_kv_head * dim,
                           .n_head = s->n_head,
                           .n_kv_head = s->n_kv_head,
                           .head_dim = dim,
                           .positions = b->buf[5],
                           .rule = {.kind = ZT_ROPE_PLAIN, .theta = 10000},
                           .q = ref(b, 0, t),
                           .k = ref(b, 1, t)};
    struct zt_swiglu_fwd fwd = {n, ref(b, 0, t), ref(b, 1, t), ref(b, 2, t)};
    struct zt_swiglu_bwd bwd = {n,           ref(b, 2, t), ref(b, 0, t), ref(b, 1, t), ref(b, 3, t),
                                ref(b, 4, t)};
    snprintf(name, sizeof name, "%s rope", s->name);
    BENCH(b, name, rope, &rope);
    snprintf(name, sizeof name, "%s swiglu fwd", s->name);
    BENCH(b, name, swiglu_fwd, &fwd);
    snprintf(name, sizeof name, "%s swiglu bwd", s->name);
    BENCH(b, name, swiglu_bwd, &bwd);
}

/* ---- the ends of the model, and the optimizer ---- */

/* buf[5] holds tokens below every vocabulary; a step block and a count lie behind them. */
enum { N_TOKENS = 32 * 1024 };

struct control {
    struct zt_step_block sb;
    struct zt_count count;
    double sum;
    struct zt_norm_partial partial;
};

static struct control *control_of(const struct bench *b)
{
    return (struct control *)((char *)b->buf[5] + (2 << 20));
}

static void bench_ends(struct bench *b, const struct shape *s, enum zt_dtype t)
{
    const int64_t ld = (s->vocab + 63) / 64 * 64, rows = ZT_MIN(s->rows, (int64_t)4096);
    struct control *c = control_of(b);
    char name[80];
    struct zt_embed_fwd fwd = {s->rows,      s->cols, b->buf[5],   b->buf[5],
                               ref(b, 0, t), none,    ref(b, 1, t)};
    struct zt_embed_bwd bwd = {.rows = s->rows,
                               .cols = s->cols,
                               .vocab = ZT_MIN(s->vocab, (int64_t)buffer_bytes / 4 / s->cols),
                               .tokens = b->buf[5],
                               .dout = ref(b, 1, t),
                               .dwte = ref(b, 2, ZT_F32),
                               .accumulate_wte = true,
                               .ws = b->ws,
                               .ws_bytes = buffer_bytes};
    struct zt_cross_entropy loss = {.rows = rows,
                                    .vocab = s->vocab,
                                    .ld = ld,
                                    .targets = b->buf[5],
                                    .sb = &c->sb,
                                    .count = &c->count,
                                    .logits = ref(b, 0, t),
                                    .losses = b->buf[4],
                                    .loss_sum = &c->sum,
                                    .first = true,
                                    .write_grad = true};
    snprintf(name, sizeof name, "%s embed fwd", s->name);
    BENCH(b, name, embed_fwd, &fwd);
    snprintf(name, sizeof name, "%s embed bwd", s->name);
    BENCH(b, name, embed_bwd, &bwd);
    snprintf(name, sizeof name, "%s cross_entropy of %d rows", s->name, (int)rows);
    BENCH(b, name, cross_entropy, &loss);
}

static void bench_optimizer(struct bench *b)
{
    enum { N = 128 << 20 };
    const struct zt_update_range range = {0, N, 0.1f, 1};
    struct control *c = control_of(b);
    struct zt_update a = {ZT_ADAMW,           &range,    1,         &c->sb,
                          ref(b, 0, ZT_BF16), b->buf[1], b->buf[2], ref(b, 3, ZT_F32),
                          ref(b, 4, ZT_BF16), false};
    const struct zt_sum_sq sq = {N, ref(b, 0, ZT_BF16), &c->partial, false};
    const struct zt_cast cast = {N, ref(b, 0, ZT_F32), ref(b, 1, ZT_BF16), false};
    BENCH(b, "adamw bf16 + master, 128 Mi", update, &a);
    a.master.ptr = NULL;
    a.param = ref(b, 3, ZT_F32);
    BENCH(b, "adamw fp32, 128 Mi", update, &a);
    BENCH(b, "sum_sq bf16, 128 Mi", sum_sq, &sq);
    BENCH(b, "cast fp32 to bf16, 128 Mi", cast, &cast);
}

/* Small numbers in fp32 as in bf16; buf[5] tokens, most of them few, as words are; the step block. */
static void fill(const struct bench *b, struct zt_err *err)
{
    const struct zt_dev_ops *ops = b->dev->ops;
    const size_t piece = 4 << 20;
    uint32_t *host;
    if (ops->alloc_host(b->dev, piece, (void **)&host, err))
        die(err);
    for (size_t j = 0; j < piece / 4; j++)
        host[j] = 0x3c003c00u + (uint32_t)(j * 2654435761u >> 25);
    for (int i = 0; i < N_BUFFERS; i++)
        for (size_t at = 0; at < buffer_bytes; at += piece)
            ops->copy(b->stream, &(struct zt_copy){(char *)b->buf[i] + at, host, piece});
    sync(b);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const uint32_t x = i * 2654435761u >> 8;
        host[i] = i % 20 == 0 ? 7 : x % (i % 3 ? 300 : 50257);
    }
    ops->copy(b->stream, &(struct zt_copy){b->buf[5], host, N_TOKENS * sizeof *host});
    sync(b);
    struct control *c = memset(host, 0, sizeof *c);
    c->sb = (struct zt_step_block){.adam_t = 1,
                                   .grad_scale = 1,
                                   .loss_scale = 1,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .apply = 1};
    c->count = (struct zt_count){.tokens = 1, .inv_tokens = 1};
    zt_step_refresh(&c->sb);
    ops->copy(b->stream, &(struct zt_copy){control_of(b), c, sizeof *c});
    sync(b);
    ops->free_host(b->dev, host, piece);
}

int main(int argc, char **argv)
{
    struct bench b = {.filter = argc > 1 ? argv[1] : NULL};
    const struct zt_backend *backend;
    struct zt_err err;
    char log[400];
    int n = 0;
    int rc = zt_backend_load(&backend, &err);
    if (!rc)
        rc = backend->device_count(&n, &err);
    if (rc == ZT_EUNSUPPORTED) {
        printf("nothing measured: %s\n", err.msg);
        return gpu_is_asked_for();
    }
    if (rc || backend->dev_create(0, &b.dev, log, sizeof log, &err) ||
        b.dev->ops->stream_create(b.dev, "bench", 1, &b.stream, &err))
        die(&err);
    for (int i = 0; i <= N_BUFFERS; i++)
        if (b.dev->ops->alloc(b.dev, buffer_bytes, i < N_BUFFERS ? &b.buf[i] : &b.ws, &err))
            die(&err);
    fill(&b, &err);
    printf("%s\n", log);
    measure_peaks(&b);
    for (size_t i = 0; i < ZT_ARRAY_LEN(shapes); i++) {
        bench_products(&b, &shapes[i], ZT_BF16);
        bench_attention(&b, &shapes[i], ZT_BF16);
        bench_rows(&b, &shapes[i], ZT_BF16);
        bench_llama(&b, &shapes[i], ZT_BF16);
        bench_ends(&b, &shapes[i], ZT_BF16);
    }
    bench_optimizer(&b);
    b.dev->ops->stream_free(b.stream);
    backend->dev_free(b.dev);
    if (b.n_kernels == 0)
        printf("nothing measured: no kernel has \"%s\" in its name\n", b.filter ? b.filter : "");
    return b.n_kernels == 0;
}
