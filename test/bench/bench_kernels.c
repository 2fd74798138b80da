/*
 * bench_kernels.c: speed of the CPU kernels, beside what the machine can do, all in one run: matrix
 * products beside a large dnnl_sgemm, kernels that stream memory beside memcpy. The best of several
 * repetitions; judge the ratios, machines are noisy. Times are taken by tasks of the stream itself;
 * with 1 thread they are CPU times of the stream's thread, which other load disturbs less. (The CPU
 * time of the process, read from another thread, lags behind: it made kernels look 5 times faster.)
 * Buffers of row kernels are small enough to stay in a large cache: they may pass memory's copy speed.
 *
 * "Copy" is the fastest of several: a store to a line that is not in a cache first reads it, and then a copy
 * moves three bytes for every two that count here. Streaming stores do not, nor does an update in place.
 *
 *     bench_kernels [threads [filter]]
 */
#include "base/compat.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <oneapi/dnnl/dnnl.h>

#include "base/clock.h"
#include "base/str.h"
#include "dev/dev.h"

enum { BUFFER_BYTES = 256 << 20, N_BUFFERS = 6, MIN_REPEATS = 5, MIN_MS = 300 };

struct bench {
    struct zt_dev *dev;
    struct zt_stream *stream;
    int n_threads;
    const char *filter;
    void *buf[N_BUFFERS];
    void *ws;
    double peak_gflops, peak_gbs;
};

static void die(const struct zt_err *err)
{
    fprintf(stderr, "bench_kernels: %s\n", err->msg);
    exit(1);
}

static void sync(const struct bench *b)
{
    struct zt_err err;
    if (b->dev->ops->sync(b->dev->ops->record(b->stream), &err))
        die(&err);
}

struct stamp {
    clockid_t clock;
    double *out;
};

static int take_time(void *arg, struct zt_err *err)
{
    const struct stamp *stamp = arg;
    struct timespec t;
    if (clock_gettime(stamp->clock, &t))
        return zt_err_errno(err, ZT_ESYS, "clock_gettime");
    *stamp->out = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    return 0;
}

/* *out = the time when the stream gets here. */
static void mark(const struct bench *b, double *out)
{
    struct stamp stamp = {b->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, out};
    b->dev->ops->host_call(b->stream, take_time, &stamp, sizeof stamp);
}

/* s = seconds of the best repetition of a call that enqueues on the stream. */
#define BEST_OF(b, s, call)                                                                        \
    do {                                                                                           \
        double limit_ = zt_now_s() + MIN_MS * 1e-3, t0_, t1_;                                      \
        (s) = 1e30;                                                                                \
        for (int i_ = 0; i_ < MIN_REPEATS || zt_now_s() < limit_; i_++) {                          \
            mark(b, &t0_);                                                                         \
            call;                                                                                  \
            mark(b, &t1_);                                                                         \
            sync(b);                                                                               \
            (s) = ZT_MIN((s), t1_ - t0_);                                                          \
        }                                                                                          \
    } while (0)
#define BEST(b, s, kernel, args) BEST_OF(b, s, (b)->dev->ops->kernel((b)->stream, (args)))

static void report(const struct bench *b, const char *name, double s, double flops, double bytes)
{
    printf("%-34s %8.3f ms", name, s * 1e3);
    if (flops > 0)
        printf(" %8.1f GF/s (%3.0f %% of sgemm)", flops / s * 1e-9,
               100 * flops / s * 1e-9 / b->peak_gflops);
    if (bytes > 0)
        printf(" %8.1f GB/s (%3.0f %% of copy)", bytes / s * 1e-9,
               100 * bytes / s * 1e-9 / b->peak_gbs);
    printf("\n");
}

static bool wanted(const struct bench *b, const char *name)
{
    return !b->filter || strstr(name, b->filter);
}

static struct zt_ref ref(const struct bench *b, int buffer, enum zt_dtype t)
{
    return (struct zt_ref){b->buf[buffer], t};
}

/* ---- what the machine can do ---- */

static int run_sgemm(void *arg, struct zt_err *err)
{
    enum { N = 2048 };
    const struct bench *b = *(const struct bench **)arg;
    (void)err;
    return dnnl_sgemm('N', 'T', N, N, N, 1, b->buf[0], N, b->buf[1], N, 0, b->buf[2], N);
}

/* Memory to memory by each thread's equal part: memcpy, which may stream, or streaming stores. */
struct copy_task {
    const struct bench *b;
    bool streams;
};

static void stream_copy(char *dst, const char *src, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(dst + i), _mm_load_si128((const __m128i *)(src + i)));
    _mm_sfence();
#else
    memcpy(dst, src, bytes);
#endif
}

static int run_copy(void *arg, struct zt_err *err)
{
    const struct copy_task *t = arg;
    const int n = t->b->n_threads;
    const size_t part = BUFFER_BYTES / (size_t)n / 4096 * 4096;
    (void)err;
#pragma omp parallel for num_threads(n) schedule(static)
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)i * part, bytes = i < n - 1 ? part : BUFFER_BYTES - at;
        char *dst = (char *)t->b->buf[1] + at;
        const char *src = (const char *)t->b->buf[0] + at;
        if (t->streams)
            stream_copy(dst, src, bytes);
        else
            memcpy(dst, src, bytes);
    }
    return 0;
}

static void report_copy(struct bench *b, const char *name, double s)
{
    const double gbs = 2.0 * BUFFER_BYTES / s * 1e-9;
    printf("%-34s %8.3f ms %8.1f GB/s\n", name, s * 1e3, gbs);
    b->peak_gbs = ZT_MAX(b->peak_gbs, gbs);
}

static void measure_copies(struct bench *b)
{
    double s;
    struct zt_copy copy = {b->buf[1], b->buf[0], BUFFER_BYTES};
    struct copy_task whole = {b, false}, streaming = {b, true};
    BEST(b, s, copy, &copy);
    report_copy(b, "copy 256 MiB", s);
    BEST_OF(b, s, b->dev->ops->host_call(b->stream, run_copy, &whole, sizeof whole));
    report_copy(b, "memcpy of a thread's part", s);
    BEST_OF(b, s, b->dev->ops->host_call(b->stream, run_copy, &streaming, sizeof streaming));
    report_copy(b, "streaming stores", s);
    printf("%-34s %20.1f GB/s\n", "copy, the fastest of them", b->peak_gbs);
}

static void measure_peaks(struct bench *b)
{
    double s;
    const struct bench *self = b;
    BEST_OF(b, s, b->dev->ops->host_call(b->stream, run_sgemm, &self, sizeof self));
    b->peak_gflops = 2 * 2048.0 * 2048 * 2048 / s * 1e-9;
    printf("%-34s %8.3f ms %8.1f GF/s\n", "dnnl_sgemm 2048^3", s * 1e3, b->peak_gflops);
    measure_copies(b);
}

/* ---- kernels ---- */

/* The matrix products of GPT-2 124M on 1024 tokens: forward, by data, by weights. */
static void bench_matmul(const struct bench *b, enum zt_dtype t)
{
    static const struct {
        const char *name;
        int m, n, k;
        bool trans_a, trans_b, accumulate;
        enum zt_epilogue epilogue;
        bool bias, residual;
    } cases[] = {
        {"qkv fwd", 1024, 2304, 768, false, true, false, ZT_EPI_NONE, true, false},
        {"proj fwd + residual", 1024, 768, 768, false, true, false, ZT_EPI_NONE, true, true},
        {"fc fwd + gelu", 1024, 3072, 768, false, true, false, ZT_EPI_GELU, true, false},
        {"fc2 bwd data + dgelu", 1024, 3072, 768, false, false, false, ZT_EPI_DGELU, false, false},
        {"fc bwd data", 1024, 768, 3072, false, false, false, ZT_EPI_NONE, false, false},
        {"fc bwd weight", 3072, 768, 1024, true, false, true, ZT_EPI_NONE, false, false},
        {"head fwd", 256, 50304, 768, false, true, false, ZT_EPI_NONE, false, false},
        {"head bwd weight", 50304, 768, 256, true, false, true, ZT_EPI_NONE, false, false},
        {"small 256x384x128", 256, 384, 128, false, true, false, ZT_EPI_NONE, true, false},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        char name[64];
        double s;
        snprintf(name, sizeof name, "matmul %s %s", zt_dtype_name(t), cases[i].name);
        if (!wanted(b, name))
            continue;
        struct zt_matmul m = {.m = cases[i].m,
                              .n = cases[i].n,
                              .k = cases[i].k,
                              .lda = cases[i].trans_a ? cases[i].m : cases[i].k,
                              .ldb = cases[i].trans_b ? cases[i].k : cases[i].n,
                              .ldc = cases[i].n,
                              .trans_a = cases[i].trans_a,
                              .trans_b = cases[i].trans_b,
                              .accumulate = cases[i].accumulate,
                              .epilogue = cases[i].epilogue,
                              .a = ref(b, 0, t),
                              .b = ref(b, 1, t),
                              .c = ref(b, 2, cases[i].accumulate ? ZT_F32 : t),
                              .ws = b->ws};
        if (cases[i].bias)
            m.bias = ref(b, 3, t);
        if (cases[i].residual)
            m.residual = ref(b, 4, t);
        if (cases[i].epilogue != ZT_EPI_NONE)
            m.aux = ref(b, 5, t);
        m.ws_bytes = zt_ws_matmul(ZT_DEV_CPU, &m, b->n_threads);
        BEST(b, s, matmul, &m);
        report(b, name, s, 2.0 * cases[i].m * cases[i].n * cases[i].k, 0);
    }
}

/* Seconds of a pass of attention, reported; with dropout, which does no other products, also beside
 * `plain`, those without it. 0: not wanted. */
static double bench_attention_pass(const struct bench *b, struct zt_attention a, bool backward,
                                   double plain)
{
    char name[64];
    double s, flops = 4.0 * a.n_head * a.head_dim * (double)(a.q_len * (a.q_len + 1) / 2);
    snprintf(name, sizeof name, "attention %s %s%s", zt_dtype_name(a.q.dtype),
             backward ? "bwd" : "fwd", a.drop.threshold ? " dropout" : "");
    if (!wanted(b, name))
        return 0;
    a.ws_bytes = zt_ws_attention(ZT_DEV_CPU, &a, backward, b->n_threads);
    if (backward)
        BEST(b, s, attention_bwd, &a);
    else
        BEST(b, s, attention_fwd, &a);
    report(b, name, s, backward ? 2.5 * flops : flops, 0);
    if (plain > 0)
        printf("%-34s %8.2f x without dropout\n", name, s / plain);
    return s;
}

/* One layer of GPT-2 124M: T 1024, 12 heads of 64. FLOPs of the causal half. */
static void bench_attention(const struct bench *b, enum zt_dtype t)
{
    enum { T = 1024, HEADS = 12, DIM = 64, C = HEADS * DIM };
    size_t e = zt_dtype_bytes(t);
    char *qkv = b->buf[0], *dqkv = b->buf[3];
    const struct zt_step_block sb = {.seed = 1};
    struct zt_attention a = {.batch = 1,
                             .q_len = T,
                             .k_len = T,
                             .n_head = HEADS,
                             .n_kv_head = HEADS,
                             .head_dim = DIM,
                             .ldq = 3 * C,
                             .ldkv = 3 * C,
                             .ldo = C,
                             .scale = 0.125f,
                             .q = {qkv, t},
                             .k = {qkv + C * e, t},
                             .v = {qkv + 2 * C * e, t},
                             .out = ref(b, 1, t),
                             .lse = b->buf[2],
                             .dout = ref(b, 4, t),
                             .dq = {dqkv, t},
                             .dk = {dqkv + C * e, t},
                             .dv = {dqkv + 2 * C * e, t},
                             .ws = b->ws};
    double fwd = bench_attention_pass(b, a, false, 0);
    double bwd = bench_attention_pass(b, a, true, 0);
    a.drop.sb = &sb;
    zt_dropout_set_p(&a.drop, 0.1);
    bench_attention_pass(b, a, false, fwd);
    bench_attention_pass(b, a, true, bwd);
}

static void bench_rows(const struct bench *b, enum zt_dtype t)
{
    enum { ROWS = 4096, COLS = 768 };
    double s, bytes = (double)ROWS * COLS * (double)zt_dtype_bytes(t);
    float *stats = b->buf[5];
    struct zt_norm_fwd fwd = {ROWS,         COLS,         1e-5f,        false, ref(b, 0, t),
                              ref(b, 3, t), ref(b, 3, t), ref(b, 1, t), stats, stats + ROWS};
    struct zt_norm_bwd bwd = {.rows = ROWS,
                              .cols = COLS,
                              .dy = ref(b, 1, t),
                              .x = ref(b, 0, t),
                              .mean = stats,
                              .rstd = stats + ROWS,
                              .gamma = ref(b, 3, t),
                              .dresidual = ref(b, 2, t),
                              .dx = ref(b, 2, t),
                              .dgamma = ref(b, 4, t),
                              .dbeta = ref(b, 4, t),
                              .ws = b->ws,
                              .ws_bytes = zt_ws_norm_bwd(ZT_DEV_CPU, ROWS, COLS, b->n_threads)};
    struct zt_col_sum sum = {
        ROWS,         COLS,  COLS,  ref(b, 0, t),
        ref(b, 4, t), false, b->ws, zt_ws_col_sum(ZT_DEV_CPU, ROWS, COLS, b->n_threads)};
    char name[64];
    snprintf(name, sizeof name, "norm %s fwd 4096x768", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, norm_fwd, &fwd);
        report(b, name, s, 0, 2 * bytes);
    }
    snprintf(name, sizeof name, "norm %s bwd 4096x768", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, norm_bwd, &bwd);
        report(b, name, s, 0, 4 * bytes);
    }
    const struct zt_step_block sb = {.seed = 1};
    struct zt_drop_add drop = {.rows = ROWS,
                               .cols = COLS,
                               .seq_len = ROWS,
                               .drop = {.sb = &sb},
                               .x = ref(b, 0, t),
                               .residual = ref(b, 1, t),
                               .out = ref(b, 2, t)};
    zt_dropout_set_p(&drop.drop, 0.1);
    snprintf(name, sizeof name, "drop_add %s 4096x768", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, drop_add, &drop);
        report(b, name, s, 0, 3 * bytes);
    }
    snprintf(name, sizeof name, "col_sum %s 4096x768", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, col_sum, &sum);
        report(b, name, s, 0, bytes);
    }
}

/* Llama: 4096 rows of 12 + 4 heads of 64; SwiGLU of 4096 x 2048. */
static void bench_llama(const struct bench *b, enum zt_dtype t)
{
    enum { ROWS = 4096, HEADS = 12, KV_HEADS = 4, DIM = 64, INNER = 2048 };
    static int32_t positions[ROWS];
    const double bytes = (double)zt_dtype_bytes(t);
    double s;
    char name[64];
    for (int i = 0; i < ROWS; i++)
        positions[i] = i;
    struct zt_rope rope = {.rows = ROWS,
                           .ldq = HEADS * DIM,
                           .ldk = KV_HEADS * DIM,
                           .n_head = HEADS,
                           .n_kv_head = KV_HEADS,
                           .head_dim = DIM,
                           .positions = positions,
                           .rule = {.kind = ZT_ROPE_PLAIN, .theta = 10000},
                           .q = ref(b, 0, t),
                           .k = ref(b, 1, t)};
    struct zt_swiglu_fwd fwd = {ROWS * INNER, ref(b, 0, t), ref(b, 1, t), ref(b, 2, t)};
    struct zt_swiglu_bwd bwd = {ROWS * INNER, ref(b, 2, t), ref(b, 0, t),
                                ref(b, 1, t), ref(b, 3, t), ref(b, 4, t)};
    snprintf(name, sizeof name, "rope %s 4096 x (12 + 4) x 64", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, rope, &rope);
        report(b, name, s, 0, 2 * bytes * ROWS * (HEADS + KV_HEADS) * DIM);
    }
    snprintf(name, sizeof name, "swiglu %s fwd 4096x2048", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, swiglu_fwd, &fwd);
        report(b, name, s, 0, 3 * bytes * ROWS * INNER);
    }
    snprintf(name, sizeof name, "swiglu %s bwd 4096x2048", zt_dtype_name(t));
    if (wanted(b, name)) {
        BEST(b, s, swiglu_bwd, &bwd);
        report(b, name, s, 0, 5 * bytes * ROWS * INNER);
    }
}

static void bench_loss(const struct bench *b, enum zt_dtype t)
{
    enum { ROWS = 256, VOCAB = 50257, LD = 50304 };
    static int32_t targets[ROWS];
    static float losses[ROWS];
    struct zt_step_block sb = {.loss_scale = 1};
    struct zt_count count = {ROWS, 1.0f / ROWS, 0};
    double s, sum = 0;
    char name[64];
    struct zt_cross_entropy a = {ROWS,   VOCAB, LD,   targets, &sb, &count, ref(b, 0, t),
                                 losses, &sum,  true, true,    {0}, 0};
    snprintf(name, sizeof name, "cross_entropy %s 256x50257", zt_dtype_name(t));
    if (!wanted(b, name))
        return;
    BEST(b, s, cross_entropy, &a);
    report(b, name, s, 0, 3.0 * ROWS * VOCAB * (double)zt_dtype_bytes(t));
}

static void bench_optimizer(const struct bench *b)
{
    enum { N = 32 << 20 };
    struct zt_update_range range = {0, N, 0.1f, 1};
    struct zt_step_block sb = {.adam_t = 1,
                               .grad_scale = 1,
                               .loss_scale = 1,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .apply = 1};
    struct zt_norm_partial partial;
    struct zt_sum_sq sq = {N, ref(b, 0, ZT_F32), &partial, false};
    struct zt_cast cast = {N, ref(b, 0, ZT_F32), ref(b, 5, ZT_BF16), false};
    double s;
    zt_step_refresh(&sb);
    for (int master = 0; master < 2; master++) {
        enum zt_dtype t = master ? ZT_BF16 : ZT_F32;
        struct zt_update a = {ZT_ADAMW,          &range,    1,         &sb,
                              ref(b, 0, t),      b->buf[1], b->buf[2], {NULL, ZT_F32},
                              ref(b, 3, ZT_F32), false};
        const char *name = master ? "adamw bf16 + master" : "adamw fp32";
        if (master) {
            a.master = ref(b, 3, ZT_F32);
            a.param = ref(b, 5, ZT_BF16);
        }
        if (!wanted(b, name))
            continue;
        BEST(b, s, update, &a);
        /* In: gradient, m, v, weight. Out: m, v, weight, and with a master the 16-bit parameter. */
        report(b, name, s, 0, (double)N * (master ? 2 + 12 + 12 + 2 : 4 + 12 + 12));
    }
    if (wanted(b, "sum_sq fp32")) {
        BEST(b, s, sum_sq, &sq);
        report(b, "sum_sq fp32", s, 0, 4.0 * N);
    }
    if (wanted(b, "cast fp32 to bf16")) {
        BEST(b, s, cast, &cast);
        report(b, "cast fp32 to bf16", s, 0, 6.0 * N);
    }
}

/* What a task costs that does nothing. */
static void bench_queue(const struct bench *b)
{
    enum { N = 20000 };
    double t = zt_now_s();
    for (int i = 0; i < N; i++)
        b->dev->ops->zero(b->stream, &(struct zt_zero){b->buf[0], 0});
    sync(b);
    printf("%-34s %8.3f us (elapsed)\n", "empty task", (zt_now_s() - t) / N * 1e6);
}

static void fill(const struct bench *b)
{
    for (int i = 0; i < N_BUFFERS; i++) /* small numbers, in fp32 as in bf16 */
        for (size_t j = 0; j < BUFFER_BYTES / 4; j++)
            ((uint32_t *)b->buf[i])[j] = 0x3c003c00u + ((uint32_t)j * 2654435761u >> 25);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_threads = 2, .filter = argc > 2 ? argv[2] : NULL};
    struct zt_err err;
    char log[200];
    int64_t n = 2;
    if (argc > 1 && (!zt_parse_i64(argv[1], &n) || n < 1 || n > 256)) {
        fprintf(stderr, "usage: bench_kernels [threads [filter]]\n");
        return 2;
    }
    b.n_threads = (int)n;
    if (zt_cpu_dev_create(&b.dev, log, sizeof log, &err) ||
        b.dev->ops->stream_create(b.dev, "bench", b.n_threads, &b.stream, &err))
        die(&err);
    for (int i = 0; i <= N_BUFFERS; i++)
        if (b.dev->ops->alloc(b.dev, BUFFER_BYTES, i < N_BUFFERS ? &b.buf[i] : &b.ws, &err))
            die(&err);
    fill(&b);
    printf("%s; %d threads\n", log, b.n_threads);
    measure_peaks(&b);
    bench_queue(&b);
    for (enum zt_dtype t = ZT_F32; t <= ZT_BF16; t++) {
        bench_matmul(&b, t);
        bench_attention(&b, t);
        bench_rows(&b, t);
        bench_llama(&b, t);
        bench_loss(&b, t);
    }
    bench_optimizer(&b);
    b.dev->ops->stream_free(b.stream);
    zt_cpu_dev_free(b.dev);
    return 0;
}
