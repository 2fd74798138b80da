/*
 * Kernels of the GPU against those of the CPU, the oracle: shapes and types that test/unit/dev leaves out,
 * many at random. Rows of any length, pointers that begin anywhere, types in any mixture, and what
 * stands before and behind each tensor must stay what it was.
 */
#define TEST_LINKED_BACKEND
#include "unit/dev/dev_test.h"

#include "dev/sanitize.h"

struct pair {
    struct rig cpu, gpu;
};

static struct pair pair_open(void)
{
    struct pair p = {0};
    struct zt_err err;
    if (!test_gpu_open() || zt_cpu_dev_create(&p.cpu.dev, NULL, 0, &err) ||
        test_gpu.backend->dev_create(0, &p.gpu.dev, NULL, 0, &err))
        abort();
    rig_start(&p.cpu, "cpu", 2);
    rig_start(&p.gpu, "cuda", 1);
    return p;
}

static void pair_close(struct pair *p)
{
    rig_close(&p->cpu);
    rig_close(&p->gpu);
}

/* ---- a tensor twice ---- */

enum { GUARD = 32 }; /* elements before and behind */

struct twin {
    struct zt_ref cpu, gpu;
    int64_t n;
    int shift;
};

static uint32_t draw(uint64_t seed, uint64_t i, uint32_t limit)
{
    return zt_philox(seed, ZT_RNG_SAMPLE, 77, i).v[0] % limit;
}

static void *base_of(const struct twin *t, struct zt_ref r)
{
    return (char *)r.ptr - (size_t)(GUARD + t->shift) * zt_dtype_bytes(r.dtype);
}

static struct zt_ref noise(int64_t n, enum zt_dtype t, uint64_t stream, double scale, int shift)
{
    const int64_t all = n + 2 * GUARD + shift;
    struct zt_ref r = {test_alloc((size_t)all, zt_dtype_bytes(t)), t};
    float *x = zt_xcalloc((size_t)all, sizeof *x);
    zt_rng_normal(1, ZT_RNG_INIT, stream, 0, all, x);
    for (int64_t i = 0; i < all; i++)
        tensor_set(r, i, (double)x[i] * scale);
    free(x);
    r.ptr = (char *)r.ptr + (size_t)(GUARD + shift) * zt_dtype_bytes(t);
    return r;
}

/* Its first element lies `shift` elements behind a multiple of 64 bytes. */
static struct twin twin_make(int64_t n, enum zt_dtype t, uint64_t stream, double scale, int shift)
{
    struct twin w = {.n = n, .shift = shift};
    w.cpu = noise(n, t, stream, scale, shift);
    w.gpu = noise(n, t, stream, scale, shift);
    return w;
}

static void twin_free(struct twin *w)
{
    test_free(base_of(w, w->cpu));
    test_free(base_of(w, w->gpu));
}

/* Each side of the tensor, 0 the CPU's. */
static struct zt_ref side(const struct twin *w, int k)
{
    return k ? w->gpu : w->cpu;
}

/* Both sides alike, guards and all: to the tolerance, and one rounding to the type; tol 0: the same bits. */
static void check_twin(const char *what, const struct twin *w, double tol, uint64_t seed)
{
    const enum zt_dtype t = w->cpu.dtype;
    const struct zt_ref a = {base_of(w, w->cpu), t}, b = {base_of(w, w->gpu), t};
    for (int64_t i = 0; i < w->n + 2 * GUARD + w->shift; i++) {
        const int64_t at = i - GUARD - w->shift;
        const bool guard = at < 0 || at >= w->n;
        const double x = tensor_get(a, i), y = tensor_get(b, i);
        const double most =
            guard || tol == 0 ? 0 : tol * (1 + fabs(x)) + 2 * dtype_eps(t) * fabs(x);
        if (!(fabs(x - y) <= most))
            FAIL("%s of case %llu, %s, element %lld of %lld: %.9g, the CPU's is %.9g", what,
                 (unsigned long long)seed, zt_dtype_name(t), (long long)at, (long long)w->n, y, x);
    }
}

/* A case drawn from its number: one type or a mixture, aligned or not. */
struct types {
    uint64_t seed;
    bool mixed, shifted;
    enum zt_dtype type;
};

static struct types draw_types(uint64_t seed)
{
    return (struct types){seed, draw(seed, 100, 3) == 0, draw(seed, 101, 3) == 0,
                          (enum zt_dtype)draw(seed, 102, 3)};
}

static struct twin draw_twin(const struct types *d, uint64_t i, int64_t n, double scale)
{
    enum zt_dtype t = d->mixed ? (enum zt_dtype)draw(d->seed, 200 + i, 3) : d->type;
    return twin_make(n, t, 1000 * d->seed + i, scale,
                     d->shifted ? (int)draw(d->seed, 300 + i, 3) : 0);
}

static int64_t draw_cols(uint64_t seed)
{
    static const int64_t cols[] = {1, 7, 8, 64, 100, 256, 768, 1001, 1600, 4096, 8192, 8200, 9001};
    return cols[draw(seed, 103, ZT_ARRAY_LEN(cols))];
}

static int64_t draw_rows(uint64_t seed)
{
    static const int64_t rows[] = {1, 2, 3, 7, 8, 33, 70};
    return rows[draw(seed, 104, ZT_ARRAY_LEN(rows))];
}

static int32_t *draw_indices(uint64_t seed, int64_t n, uint32_t limit)
{
    int32_t *index = SHARED_ARRAY(int32_t, n);
    /* Few of many, as words are. */
    for (int64_t i = 0; i < n; i++)
        index[i] = (int32_t)draw(seed, 1000 + (uint64_t)i,
                                 draw(seed, 1000 + (uint64_t)i, 3) ? limit : 1 + limit / 8);
    return index;
}

#define RUN_BOTH(p, kernel, args, k) RUN(*((k) ? &(p).gpu : &(p).cpu), kernel, args)

enum { CASES = ZT_TSAN ? 10 : 40 }; /* a thread for each CUDA thread takes its time */

/* ---- rows ---- */

static void check_norm(struct pair *p, uint64_t seed)
{
    const int64_t rows = draw_rows(seed), cols = draw_cols(seed), n = rows * cols;
    const struct types d = draw_types(seed);
    const bool rms = draw(seed, 1, 2), residual = draw(seed, 2, 2), add = draw(seed, 3, 2);
    struct twin x = draw_twin(&d, 0, n, 2), gamma = draw_twin(&d, 1, cols, 1);
    struct twin beta = draw_twin(&d, 2, cols, 1), y = draw_twin(&d, 3, n, 1);
    struct twin dy = draw_twin(&d, 4, n, 1), res = draw_twin(&d, 5, n, 1),
                dx = draw_twin(&d, 6, n, 1);
    struct twin dgamma = draw_twin(&d, 7, cols, 1), dbeta = draw_twin(&d, 8, cols, 1);
    struct twin mean = twin_make(rows, ZT_F32, 1, 1, 0), rstd = twin_make(rows, ZT_F32, 2, 1, 0);
    for (int k = 0; k < 2; k++) {
        struct rig *r = k ? &p->gpu : &p->cpu;
        struct zt_norm_fwd f = {rows,
                                cols,
                                1e-5f,
                                rms,
                                side(&x, k),
                                side(&gamma, k),
                                {NULL, ZT_F32},
                                side(&y, k),
                                side(&mean, k).ptr,
                                side(&rstd, k).ptr};
        if (!rms)
            f.beta = side(&beta, k);
        RUN_BOTH(*p, norm_fwd, &f, k);
        struct zt_norm_bwd b = {.rows = rows,
                                .cols = cols,
                                .rms = rms,
                                .dy = side(&dy, k),
                                .x = side(&x, k),
                                .mean = f.mean,
                                .rstd = f.rstd,
                                .gamma = f.gamma,
                                .dx = side(&dx, k),
                                .dgamma = side(&dgamma, k),
                                .accumulate = add};
        if (residual)
            b.dresidual = side(&res, k);
        if (!rms)
            b.dbeta = side(&dbeta, k);
        b.ws_bytes = zt_ws_norm_bwd(r->dev->ops->kind, rows, cols, r->n_threads);
        b.ws = test_alloc(b.ws_bytes, 1);
        RUN_BOTH(*p, norm_bwd, &b, k);
        test_free(b.ws);
    }
    struct twin *all[] = {&x, &gamma, &beta, &y, &dy, &res, &dx, &dgamma, &dbeta, &mean, &rstd};
    for (size_t i = 0; i < ZT_ARRAY_LEN(all); i++) {
        check_twin("norm", all[i], 1e-5, seed);
        twin_free(all[i]);
    }
}

TEST(cuda_kernel_norm)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++)
        check_norm(&p, seed);
    pair_close(&p);
}

static void check_col_sum(struct pair *p, uint64_t seed)
{
    const int64_t rows = draw_rows(seed) * (1 + draw(seed, 5, 30)), cols = draw_cols(seed) % 3000;
    const int64_t ld = cols + (draw(seed, 1, 2) ? 0 : draw(seed, 2, 9));
    const struct types d = draw_types(seed);
    struct twin x = draw_twin(&d, 0, rows * ld, 1), out = draw_twin(&d, 1, cols, 1);
    for (int k = 0; k < 2; k++) {
        struct rig *r = k ? &p->gpu : &p->cpu;
        struct zt_col_sum a = {rows, cols, ld, side(&x, k), side(&out, k), draw(seed, 3, 2),
                               NULL, 0};
        a.ws_bytes = zt_ws_col_sum(r->dev->ops->kind, rows, cols, r->n_threads);
        a.ws = test_alloc(a.ws_bytes, 1);
        RUN_BOTH(*p, col_sum, &a, k);
        test_free(a.ws);
    }
    check_twin("col_sum", &x, 0, seed);
    check_twin("col_sum", &out, 2e-5, seed);
    twin_free(&x);
    twin_free(&out);
}

TEST(cuda_kernel_col_sum)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++)
        check_col_sum(&p, seed);
    pair_close(&p);
}

/* ---- embedding ---- */

static void check_embed_fwd(struct pair *p, uint64_t seed)
{
    const int64_t rows = draw_rows(seed), cols = draw_cols(seed);
    const uint32_t vocab = 1 + draw(seed, 1, 20);
    const struct types d = draw_types(seed);
    const int32_t *tokens = draw_indices(seed, rows, vocab);
    const int32_t *positions = draw_indices(seed + 1, rows, 9);
    struct twin wte = draw_twin(&d, 0, vocab * cols, 1), wpe = draw_twin(&d, 1, 9 * cols, 1);
    struct twin out = draw_twin(&d, 2, rows * cols, 1);
    for (int k = 0; k < 2; k++) {
        struct zt_embed_fwd a = {rows,          cols,           tokens,       positions,
                                 side(&wte, k), {NULL, ZT_F32}, side(&out, k)};
        if (draw(seed, 2, 2))
            a.wpe = side(&wpe, k);
        RUN_BOTH(*p, embed_fwd, &a, k);
    }
    check_twin("embed_fwd", &out, 0, seed);
    twin_free(&wte);
    twin_free(&wpe);
    twin_free(&out);
}

/* The same additions in the same order: the same bits. */
static void check_embed_bwd(struct pair *p, uint64_t seed, int64_t rows, int64_t cols,
                            uint32_t vocab)
{
    const struct types d = draw_types(seed);
    const int32_t *tokens = draw_indices(seed, rows, vocab);
    const int32_t *positions = draw_indices(seed + 1, rows, 9);
    const int shift = d.shifted ? 1 : 0;
    struct twin dout = draw_twin(&d, 0, rows * cols, 1);
    struct twin dwte = twin_make(vocab * cols, ZT_F32, 1, 1, shift);
    struct twin dwpe = twin_make(9 * cols, ZT_F32, 2, 1, shift);
    for (int k = 0; k < 2; k++) {
        struct zt_embed_bwd a = {
            .rows = rows,
            .cols = cols,
            .vocab = vocab,
            .max_positions = 9,
            .tokens = tokens,
            .positions = positions,
            .dout = side(&dout, k),
            .dwte = side(&dwte, k),
            .dwpe = side(&dwpe, k),
            .accumulate_wte = draw(seed, 2, 2),
            .accumulate_wpe = draw(seed, 3, 2),
        };
        a.ws_bytes = zt_ws_embed_bwd((k ? &p->gpu : &p->cpu)->dev->ops->kind, rows, vocab, 9);
        a.ws = test_alloc(a.ws_bytes, 1);
        memset(a.ws, 0xff, a.ws_bytes);
        RUN_BOTH(*p, embed_bwd, &a, k);
        test_free(a.ws);
    }
    check_twin("dwte", &dwte, 0, seed);
    check_twin("dwpe", &dwpe, 0, seed);
    twin_free(&dout);
    twin_free(&dwte);
    twin_free(&dwpe);
}

TEST(cuda_kernel_embedding)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++) {
        check_embed_fwd(&p, seed);
        check_embed_bwd(&p, seed, draw_rows(seed), draw_cols(seed), 1 + draw(seed, 4, 30));
    }
    /* Many rows of one index, over several windows; large vocabularies. */
    for (uint64_t seed = 100; seed < 106 && !zt_test_failed; seed++)
        check_embed_bwd(&p, seed, 2500, seed & 1 ? 24 : 13, seed & 2 ? 2 : 300);
    check_embed_bwd(&p, 110, 300, 8, 50257);
    check_embed_bwd(&p, 111, 300, 8, 131072);
    check_embed_bwd(&p, 112, 40, 1032, 3); /* more columns than a block holds at once */
    pair_close(&p);
}

/* ---- loss ---- */

static void check_loss(struct pair *p, uint64_t seed, int64_t rows, int64_t vocab, int64_t ld)
{
    const struct types d = draw_types(seed);
    struct twin logits = draw_twin(&d, 0, rows * ld, 3), grad = draw_twin(&d, 1, rows * ld, 1);
    struct twin losses = twin_make(rows, ZT_F32, 5, 1, 0);
    int32_t *targets = SHARED_ARRAY(int32_t, rows);
    struct zt_step_block *sb = SHARED(struct zt_step_block, .loss_scale = 8);
    struct zt_count *count = SHARED(struct zt_count, .tokens = 8, .inv_tokens = 0.125f);
    double *sums = SHARED_ARRAY(double, 2);
    for (int64_t i = 0; i < rows; i++)
        targets[i] = draw(seed, 400 + (uint64_t)i, 5)
                         ? (int32_t)draw(seed, 500 + (uint64_t)i, (uint32_t)vocab)
                         : ZT_IGNORE_TARGET;
    for (int k = 0; k < 2; k++) {
        struct zt_cross_entropy a = {.rows = rows,
                                     .vocab = vocab,
                                     .ld = ld,
                                     .targets = targets,
                                     .sb = sb,
                                     .count = count,
                                     .logits = side(&logits, k),
                                     .losses = side(&losses, k).ptr,
                                     .loss_sum = &sums[k],
                                     .first = draw(seed, 1, 2),
                                     .write_grad = draw(seed, 2, 4) > 0};
        if (draw(seed, 3, 2)) {
            a.grad = side(&grad, k);
            a.ld_grad = ld;
        }
        RUN_BOTH(*p, cross_entropy, &a, k);
    }
    check_twin("logits", &logits, 1e-6, seed);
    check_twin("gradient", &grad, 1e-6, seed);
    check_twin("losses", &losses, 2e-6, seed);
    CHECK_NEAR(sums[1], sums[0], 2e-6 * (double)rows * (1 + fabs(sums[0])));
    twin_free(&logits);
    twin_free(&grad);
    twin_free(&losses);
}

TEST(cuda_kernel_cross_entropy)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++) {
        const int64_t vocab = draw_cols(seed);
        check_loss(&p, seed, draw_rows(seed), vocab,
                   vocab + (draw(seed, 6, 2) ? 0 : draw(seed, 7, 70)));
    }
    check_loss(&p, 200, 3, 50257, 50257);
    check_loss(&p, 201, 3, 50257, 50304);
    pair_close(&p);
}

/* ---- optimizer: the same bits ---- */

static void check_update(struct pair *p, uint64_t seed)
{
    enum { N = 7000, MOST = 150 };
    const struct types d = draw_types(seed);
    const enum zt_optimizer o = (enum zt_optimizer)draw(seed, 1, 3);
    const bool own = draw(seed, 2, 3) == 0; /* no master */
    const int n_ranges = 1 + (int)draw(seed, 3, MOST), shift = d.shifted ? 1 : 0;
    struct zt_update_range ranges[MOST];
    struct zt_step_block *sb = SHARED(struct zt_step_block, .adam_t = 3, .grad_scale = 0.7f,
                                      .loss_scale = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                      .apply = draw(seed, 4, 8) > 0, .schedule = {.lr = 0.01});
    int64_t at = 0;
    zt_step_refresh(sb);
    for (int i = 0; i < n_ranges; i++) {
        const int64_t begin = at + draw(seed, 600 + (uint64_t)i, 3) * 8;
        at = ZT_MIN(begin + draw(seed, 800 + (uint64_t)i, 2 * N / (uint32_t)n_ranges), (int64_t)N);
        ranges[i] =
            (struct zt_update_range){ZT_MIN(begin, at), at, i & 1 ? 0.1f : 0, i & 2 ? 0.5f : 1};
    }
    struct twin grad = twin_make(N, (enum zt_dtype)draw(seed, 5, 3), 1, 1, shift);
    struct twin m = twin_make(N, ZT_F32, 2, 0.1, shift), v = twin_make(N, ZT_F32, 3, 0.1, shift);
    struct twin master = twin_make(N, ZT_F32, 4, 1, shift);
    struct twin param = twin_make(N, own ? ZT_F32 : (enum zt_dtype)draw(seed, 6, 3), 5, 1, shift);
    for (int k = 0; k < 2; k++) {
        float *second = side(&v, k).ptr;
        for (int64_t i = 0; i < N; i++)
            second[i] = fabsf(second[i]);
        struct zt_update a = {o,
                              ranges,
                              n_ranges,
                              sb,
                              side(&grad, k),
                              side(&m, k).ptr,
                              zt_optimizer_has_v(o) ? second : NULL,
                              {own ? NULL : side(&master, k).ptr, ZT_F32},
                              side(&param, k),
                              !own && (seed & 1)};
        RUN_BOTH(*p, update, &a, k);
    }
    struct twin *all[] = {&grad, &m, &v, &master, &param};
    for (size_t i = 0; i < ZT_ARRAY_LEN(all); i++) {
        check_twin("update", all[i], 0, seed);
        twin_free(all[i]);
    }
}

TEST(cuda_kernel_update)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++)
        check_update(&p, seed);
    pair_close(&p);
}

/* ---- element by element ---- */

static int64_t draw_n(uint64_t seed)
{
    static const int64_t n[] = {1, 7, 8, 9, 800, 4096, 4097, 20001, 60000};
    return n[draw(seed, 105, ZT_ARRAY_LEN(n))];
}

static void check_flat(struct pair *p, uint64_t seed)
{
    const int64_t n = draw_n(seed);
    const struct types d = draw_types(seed);
    struct twin gate = draw_twin(&d, 0, n, 4), up = draw_twin(&d, 1, n, 1),
                dout = draw_twin(&d, 2, n, 1);
    struct twin out = draw_twin(&d, 3, n, 1), dgate = draw_twin(&d, 4, n, 1);
    struct twin dup = draw_twin(&d, 5, n, 1), cast = draw_twin(&d, 6, n, 1);
    struct zt_norm_partial *sq = SHARED_ARRAY(struct zt_norm_partial, 2);
    for (int k = 0; k < 2; k++) {
        struct zt_swiglu_fwd f = {n, side(&gate, k), side(&up, k), side(&out, k)};
        struct zt_swiglu_bwd b = {
            n, side(&dout, k), side(&gate, k), side(&up, k), side(&dgate, k), side(&dup, k)};
        struct zt_cast c = {n, side(&dout, k), side(&cast, k), draw(seed, 1, 2)};
        struct zt_sum_sq s = {n, side(&dout, k), &sq[k], false};
        RUN_BOTH(*p, swiglu_fwd, &f, k);
        RUN_BOTH(*p, swiglu_bwd, &b, k);
        RUN_BOTH(*p, cast, &c, k);
        RUN_BOTH(*p, sum_sq, &s, k);
    }
    CHECK_NEAR(sq[1].sum_sq, sq[0].sum_sq, 2e-6 * sq[0].sum_sq);
    check_twin("cast", &cast, 0, seed);
    struct twin *all[] = {&gate, &up, &dout, &out, &dgate, &dup};
    for (size_t i = 0; i < ZT_ARRAY_LEN(all); i++) {
        check_twin("swiglu", all[i], 2e-6, seed);
        twin_free(all[i]);
    }
    twin_free(&cast);
}

TEST(cuda_kernel_flat)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++)
        check_flat(&p, seed);
    pair_close(&p);
}

static void check_rope(struct pair *p, uint64_t seed)
{
    static const int dims[] = {2, 6, 16, 64, 80, 128, 600};
    const int64_t rows = draw_rows(seed);
    const int dim = dims[draw(seed, 1, ZT_ARRAY_LEN(dims))], heads = 1 + (int)draw(seed, 2, 5);
    const int kv_heads = 1 + (int)draw(seed, 3, 2);
    const int64_t ldq = heads * dim + 8 * draw(seed, 4, 3), ldk = kv_heads * dim + draw(seed, 5, 2);
    const struct types d = draw_types(seed);
    const struct zt_rope_rule rule = {.kind = ZT_ROPE_PLAIN, .theta = 1e4};
    int32_t *positions = SHARED_ARRAY(int32_t, rows);
    struct twin q = draw_twin(&d, 0, rows * ldq, 1), key = draw_twin(&d, 1, rows * ldk, 1);
    for (int64_t i = 0; i < rows; i++)
        positions[i] = (int32_t)draw(seed, 600 + (uint64_t)i, 1u << (8 + draw(seed, 6, 23)));
    for (int k = 0; k < 2; k++) {
        struct zt_rope a = {
            rows,        ldq,          ldk, heads, kv_heads, dim, positions, rule, draw(seed, 7, 2),
            side(&q, k), side(&key, k)};
        RUN_BOTH(*p, rope, &a, k);
    }
    check_twin("rope q", &q, 1e-6, seed);
    check_twin("rope k", &key, 1e-6, seed);
    twin_free(&q);
    twin_free(&key);
}

TEST(cuda_kernel_rope)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++)
        check_rope(&p, seed);
    pair_close(&p);
}

static void check_dropout(struct pair *p, uint64_t seed)
{
    const int64_t seqs = 1 + draw(seed, 1, 3), len = draw_rows(seed), cols = draw_cols(seed);
    const int64_t n = seqs * len * cols;
    const struct types d = draw_types(seed);
    struct twin x = draw_twin(&d, 0, n, 1), res = draw_twin(&d, 1, n, 1),
                out = draw_twin(&d, 2, n, 1);
    struct zt_dropout drop = {.site = 3, .first = 2};
    zt_dropout_set_p(&drop, 0.3);
    drop.sb = SHARED(struct zt_step_block, .seed = seed, .first_sample = 11);
    for (int k = 0; k < 2; k++) {
        struct zt_drop_add a = {seqs * len,  cols,           len,          drop,
                                side(&x, k), {NULL, ZT_F32}, side(&out, k)};
        if (draw(seed, 2, 2))
            a.residual = side(&res, k);
        RUN_BOTH(*p, drop_add, &a, k);
    }
    check_twin("drop_add", &x, 0, seed);
    check_twin("drop_add", &out, 2e-7, seed);
    twin_free(&x);
    twin_free(&res);
    twin_free(&out);
}

TEST(cuda_kernel_dropout)
{
    struct pair p = pair_open();
    for (uint64_t seed = 1; seed <= CASES && !zt_test_failed; seed++)
        check_dropout(&p, seed);
    pair_close(&p);
}

/* ---- nothing to do ---- */

TEST(cuda_kernel_no_rows)
{
    struct pair p = pair_open();
    struct twin w = twin_make(64, ZT_F32, 1, 1, 0);
    double *sum = SHARED(double, 5);
    struct zt_norm_partial *sq = SHARED(struct zt_norm_partial, 5);
    struct zt_count *count = SHARED(struct zt_count, .tokens = 5);
    struct zt_step_block *sb = SHARED(struct zt_step_block, .loss_scale = 1);
    const struct zt_ref x = w.gpu;
    struct zt_embed_fwd e = {0, 8, NULL, NULL, x, x, x};
    struct zt_norm_fwd n = {0, 8, 1e-5f, false, x, x, x, x, x.ptr, x.ptr};
    struct zt_cross_entropy l = {.vocab = 8,
                                 .ld = 8,
                                 .sb = sb,
                                 .count = count,
                                 .logits = x,
                                 .losses = x.ptr,
                                 .loss_sum = sum,
                                 .first = true};
    struct zt_cast c = {0, x, x, true};
    struct zt_sum_sq s = {0, x, sq, false};
    struct zt_count_targets t = {0, NULL, count, false};
    struct zt_drop_add d = {0, 8, 1, {0}, x, x, x};
    struct zt_swiglu_fwd g = {0, x, x, x};
    RUN(p.gpu, embed_fwd, &e);
    RUN(p.gpu, norm_fwd, &n);
    RUN(p.gpu, cross_entropy, &l);
    RUN(p.gpu, cast, &c);
    RUN(p.gpu, sum_sq, &s);
    RUN(p.gpu, count_targets, &t);
    RUN(p.gpu, drop_add, &d);
    RUN(p.gpu, swiglu_fwd, &g);
    CHECK(*sum == 0 && sq->sum_sq == 0 && count->tokens == 0);
    check_twin("nothing", &w, 0, 0);
    twin_free(&w);
    pair_close(&p);
}

TEST_MAIN()
