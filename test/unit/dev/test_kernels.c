#include "dev_test.h"

static const int64_t sizes[][2] = {{1, 1}, {3, 17}, {65, 33}, {40, 1025}}; /* rows, columns */
static const int64_t small[][2] = {{1, 2}, {3, 17}, {35, 9}};              /* for differences */

/* ---- embedding ---- */

static void fill_indices(int32_t *index, int64_t n, int32_t limit, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        index[i] =
            (int32_t)(zt_philox(1, ZT_RNG_SAMPLE, stream, (uint64_t)i).v[0] % (uint32_t)limit);
}

static void check_embed_fwd(int64_t rows, int64_t cols, enum zt_dtype t, bool with_wpe)
{
    enum { VOCAB = 11, POSITIONS = 7 };
    int32_t *tokens = SHARED_ARRAY(int32_t, rows), *positions = SHARED_ARRAY(int32_t, rows);
    struct tensor wte = tensor_random(VOCAB * cols, t, 1, 1, 0);
    struct tensor wpe = tensor_random(POSITIONS * cols, t, 2, 1, 0);
    struct tensor out = tensor_out(rows * cols, t);
    fill_indices(tokens, rows, VOCAB, 3);
    fill_indices(positions, rows, POSITIONS, 4);
    for (int64_t i = 0; i < rows * cols; i++)
        out.val[i] = wte.val[tokens[i / cols] * cols + i % cols] +
                     (with_wpe ? wpe.val[positions[i / cols] * cols + i % cols] : 0);
    FOR_EACH_RIG(r)
    {
        struct zt_embed_fwd a = {rows, cols, tokens, positions, wte.ref, {NULL, t}, out.ref};
        if (with_wpe)
            a.wpe = wpe.ref;
        RUN(r, embed_fwd, &a);
        CHECK_TENSOR(r, "embed_fwd", out.ref, out.val, out.n, 1e-7);
    }
    tensor_free(&wte);
    tensor_free(&wpe);
    tensor_free(&out);
}

static void check_embed_bwd(int64_t rows, int64_t cols, enum zt_dtype t, bool accumulate)
{
    enum { VOCAB = 11, POSITIONS = 128 };
    int32_t *tokens = SHARED_ARRAY(int32_t, rows), *positions = SHARED_ARRAY(int32_t, rows);
    struct tensor dout = tensor_random(rows * cols, t, 1, 1, 0);
    struct tensor dwte = tensor_random(VOCAB * cols, ZT_F32, 2, 1, 0);
    struct tensor dwpe = tensor_random(POSITIONS * cols, ZT_F32, 3, 1, 0);
    struct tensor got_wte = tensor_copy(&dwte), got_wpe = tensor_copy(&dwpe);
    fill_indices(tokens, rows, VOCAB, 3);
    fill_indices(positions, rows, POSITIONS, 4);
    for (int64_t i = 0; !accumulate && i < dwte.n; i++)
        got_wte.val[i] = 0;
    for (int64_t i = 0; !accumulate && i < dwpe.n; i++)
        got_wpe.val[i] = 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        got_wte.val[tokens[i / cols] * cols + i % cols] += dout.val[i];
        got_wpe.val[positions[i / cols] * cols + i % cols] += dout.val[i];
    }
    FOR_EACH_RIG(r)
    {
        memcpy(got_wte.ref.ptr, dwte.ref.ptr, (size_t)dwte.n * sizeof(float));
        memcpy(got_wpe.ref.ptr, dwpe.ref.ptr, (size_t)dwpe.n * sizeof(float));
        struct zt_embed_bwd a = {
            .rows = rows,
            .cols = cols,
            .vocab = VOCAB,
            .max_positions = POSITIONS,
            .tokens = tokens,
            .positions = positions,
            .dout = dout.ref,
            .dwte = got_wte.ref,
            .dwpe = got_wpe.ref,
            .accumulate_wte = accumulate,
            .accumulate_wpe = accumulate,
        };
        a.ws_bytes = zt_ws_embed_bwd(r.dev->ops->kind, rows, VOCAB, POSITIONS);
        a.ws = test_alloc(a.ws_bytes, 1);
        RUN(r, embed_bwd, &a);
        test_free(a.ws);
        CHECK_TENSOR(r, "dwte", got_wte.ref, got_wte.val, dwte.n, 5e-6);
        CHECK_TENSOR(r, "dwpe", got_wpe.ref, got_wpe.val, dwpe.n, 5e-6);
    }
    tensor_free(&dout);
    tensor_free(&dwte);
    tensor_free(&dwpe);
    tensor_free(&got_wte);
    tensor_free(&got_wpe);
}

TEST(dev_embedding)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++)
        for (int k = 0; k < 4; k++) {
            enum zt_dtype t = k & 1 ? ZT_BF16 : ZT_F32;
            check_embed_fwd(sizes[i][0], sizes[i][1], t, k & 2);
            check_embed_bwd(sizes[i][0], sizes[i][1], t, k & 2);
            RETURN_IF_FAILED();
        }
}

/* ---- LayerNorm, RMSNorm ---- */

struct norm {
    int64_t rows, cols;
    bool rms, with_beta;
    const double *x, *gamma, *beta, *dy;
    double *y;
};

static double norm_reference(void *ctx)
{
    struct norm *s = ctx;
    double n = (double)s->cols;
    for (int64_t i = 0; i < s->rows; i++) {
        const double *x = s->x + i * s->cols;
        double mean = 0, var = 0;
        for (int64_t j = 0; j < s->cols; j++)
            mean += s->rms ? 0 : x[j] / n;
        for (int64_t j = 0; j < s->cols; j++)
            var += (x[j] - mean) * (x[j] - mean) / n;
        for (int64_t j = 0; j < s->cols; j++)
            s->y[i * s->cols + j] = (x[j] - mean) / sqrt(var + (double)1e-5f) * s->gamma[j] +
                                    (s->with_beta ? s->beta[j] : 0);
    }
    return dot(s->dy, s->y, s->rows * s->cols);
}

struct norm_tensors {
    struct tensor x, gamma, beta, dy, res, y;
    float *mean, *rstd;
    struct norm ref;
};

static struct norm_tensors make_norm(int64_t rows, int64_t cols, enum zt_dtype t, bool rms)
{
    struct norm_tensors s = {.x = tensor_random(rows * cols, t, 1, 2, 1),
                             .gamma = tensor_random(cols, t, 2, 0.5, 1),
                             .beta = tensor_random(cols, t, 3, 1, 0),
                             .dy = tensor_random(rows * cols, t, 4, 1, 0),
                             .res = tensor_random(rows * cols, t, 5, 1, 0),
                             .y = tensor_out(rows * cols, t),
                             .mean = test_alloc((size_t)rows, sizeof(float)),
                             .rstd = test_alloc((size_t)rows, sizeof(float))};
    s.ref =
        (struct norm){rows, cols, rms, !rms, s.x.val, s.gamma.val, s.beta.val, s.dy.val, s.y.val};
    norm_reference(&s.ref);
    return s;
}

static void free_norm(struct norm_tensors *s)
{
    tensor_free(&s->x);
    tensor_free(&s->gamma);
    tensor_free(&s->beta);
    tensor_free(&s->dy);
    tensor_free(&s->res);
    tensor_free(&s->y);
    test_free(s->mean);
    test_free(s->rstd);
}

static struct zt_norm_fwd norm_args(struct norm_tensors *s, struct zt_ref y)
{
    struct zt_norm_fwd a = {s->ref.rows,  s->ref.cols, 1e-5f, s->ref.rms, s->x.ref,
                            s->gamma.ref, s->beta.ref, y,     s->mean,    s->rstd};
    if (!s->ref.with_beta)
        a.beta.ptr = NULL;
    return a;
}

static void check_norm_fwd(int64_t rows, int64_t cols, enum zt_dtype t, bool rms)
{
    struct norm_tensors s = make_norm(rows, cols, t, rms);
    FOR_EACH_RIG(r)
    {
        struct zt_norm_fwd a = norm_args(&s, s.y.ref);
        RUN(r, norm_fwd, &a);
        CHECK_TENSOR(r, "norm_fwd", s.y.ref, s.y.val, s.y.n, 2e-6);
        struct tensor in_place = tensor_copy(&s.x);
        a.x = a.y = in_place.ref;
        RUN(r, norm_fwd, &a);
        CHECK_TENSOR(r, "norm_fwd in place", in_place.ref, s.y.val, s.y.n, 2e-6);
        tensor_free(&in_place);
    }
    free_norm(&s);
}

static void check_norm_bwd(int64_t rows, int64_t cols, enum zt_dtype t, bool rms, bool more)
{
    struct norm_tensors s = make_norm(rows, cols, t, rms);
    struct tensor dx = tensor_out(rows * cols, t), dgamma = tensor_random(cols, ZT_F32, 6, 1, 0);
    struct tensor dbeta = tensor_random(cols, ZT_F32, 7, 1, 0);
    struct tensor got_gamma = tensor_copy(&dgamma), got_beta = tensor_copy(&dbeta);
    differences(norm_reference, &s.ref, s.x.val, s.x.n, dx.val);
    differences(norm_reference, &s.ref, s.gamma.val, cols, got_gamma.val);
    if (!rms)
        differences(norm_reference, &s.ref, s.beta.val, cols, got_beta.val);
    for (int64_t i = 0; more && i < dx.n; i++)
        dx.val[i] += s.res.val[i];
    for (int64_t i = 0; more && i < cols; i++) {
        got_gamma.val[i] += dgamma.val[i];
        got_beta.val[i] += rms ? 0 : dbeta.val[i];
    }
    FOR_EACH_RIG(r)
    {
        struct zt_norm_fwd fwd = norm_args(&s, s.y.ref);
        RUN(r, norm_fwd, &fwd);
        memcpy(got_gamma.ref.ptr, dgamma.ref.ptr, (size_t)cols * sizeof(float));
        memcpy(got_beta.ref.ptr, dbeta.ref.ptr, (size_t)cols * sizeof(float));
        struct zt_norm_bwd a = {.rows = rows,
                                .cols = cols,
                                .rms = rms,
                                .dy = s.dy.ref,
                                .x = s.x.ref,
                                .mean = s.mean,
                                .rstd = s.rstd,
                                .gamma = s.gamma.ref,
                                .dx = dx.ref,
                                .dgamma = got_gamma.ref,
                                .accumulate = more};
        if (!rms)
            a.dbeta = got_beta.ref;
        if (more) { /* in place of the residual's gradient */
            memcpy(dx.ref.ptr, s.res.ref.ptr, (size_t)dx.n * zt_dtype_bytes(t));
            a.dresidual = dx.ref;
        }
        a.ws_bytes = zt_ws_norm_bwd(r.dev->ops->kind, rows, cols, r.n_threads);
        a.ws = test_alloc(a.ws_bytes, 1);
        RUN(r, norm_bwd, &a);
        CHECK_TENSOR(r, "norm dx", dx.ref, dx.val, dx.n, 1e-5);
        CHECK_TENSOR(r, "dgamma", got_gamma.ref, got_gamma.val, cols, 1e-5);
        CHECK_TENSOR(r, "dbeta", got_beta.ref, got_beta.val, cols, 1e-5);
        test_free(a.ws);
    }
    free_norm(&s);
    tensor_free(&dx);
    tensor_free(&dgamma);
    tensor_free(&dbeta);
    tensor_free(&got_gamma);
    tensor_free(&got_beta);
}

TEST(dev_norm_forward)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++)
        for (int k = 0; k < 4; k++) {
            check_norm_fwd(sizes[i][0], sizes[i][1], k & 1 ? ZT_BF16 : ZT_F32, k & 2);
            RETURN_IF_FAILED();
        }
}

TEST(dev_norm_backward)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(small); i++)
        for (int k = 0; k < 8; k++) {
            check_norm_bwd(small[i][0], small[i][1], k & 1 ? ZT_BF16 : ZT_F32, k & 2, k & 4);
            RETURN_IF_FAILED();
        }
}

/* ---- column sums, casts, copies ---- */

TEST(dev_col_sum)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++)
        for (int k = 0; k < 4; k++) {
            int64_t rows = sizes[i][0], cols = sizes[i][1], ld = cols + 3;
            enum zt_dtype t = k & 1 ? ZT_BF16 : ZT_F32;
            struct tensor x = tensor_random(rows * ld, t, 1, 1, 0);
            struct tensor old = tensor_random(cols, t, 2, 1, 0), out = tensor_copy(&old);
            for (int64_t j = 0; j < cols; j++) {
                out.val[j] = k & 2 ? old.val[j] : 0;
                for (int64_t row = 0; row < rows; row++)
                    out.val[j] += x.val[row * ld + j];
            }
            FOR_EACH_RIG(r)
            {
                memcpy(out.ref.ptr, old.ref.ptr, (size_t)cols * zt_dtype_bytes(t));
                struct zt_col_sum a = {rows, cols, ld, x.ref, out.ref, k & 2, NULL, 0};
                a.ws_bytes = zt_ws_col_sum(r.dev->ops->kind, rows, cols, r.n_threads);
                a.ws = test_alloc(a.ws_bytes, 1);
                RUN(r, col_sum, &a);
                CHECK_TENSOR(r, "col_sum", out.ref, out.val, cols, 5e-6);
                test_free(a.ws);
            }
            tensor_free(&x);
            tensor_free(&old);
            tensor_free(&out);
        }
}

TEST(dev_cast)
{
    static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};
    enum { N = 40001 };
    for (int k = 0; k < 18; k++) {
        enum zt_dtype from = types[k % 3], to = types[k / 3 % 3];
        bool accumulate = k >= 9;
        struct tensor src = tensor_random(N, from, 1, 1, 0), old = tensor_random(N, to, 2, 1, 0);
        struct tensor dst = tensor_copy(&old);
        for (int64_t i = 0; i < N; i++)
            dst.val[i] = src.val[i] + (accumulate ? old.val[i] : 0);
        FOR_EACH_RIG(r)
        {
            memcpy(dst.ref.ptr, old.ref.ptr, N * zt_dtype_bytes(to));
            struct zt_cast a = {N, src.ref, dst.ref, accumulate};
            RUN(r, cast, &a);
            CHECK_TENSOR(r, "cast", dst.ref, dst.val, N, 1e-7);
        }
        tensor_free(&src);
        tensor_free(&old);
        tensor_free(&dst);
    }
}

/* Rounding to bf16 is to nearest even, and NaN stays NaN, in vector code as in base/dtype.h. */
TEST(dev_cast_bf16_rounds_like_the_scalar)
{
    enum { N = 1 << 16 };
    float *src = SHARED_ARRAY(float, N);
    uint16_t *dst = SHARED_ARRAY(uint16_t, N);
    for (uint32_t i = 0; i < N; i++)
        src[i] = zt_bits_f32(zt_philox(3, ZT_RNG_SAMPLE, 0, i).v[0] &
                             (i & 1 ? 0xffffffffu : 0xffff8000u));
    FOR_EACH_RIG(r)
    {
        struct zt_cast a = {N, {src, ZT_F32}, {dst, ZT_BF16}, false};
        RUN(r, cast, &a);
        for (int i = 0; i < N; i++)
            if (isnan(src[i]) && r.dev->ops->kind == ZT_DEV_CUDA)
                CHECK(isnan(zt_bf16_to_f32(dst[i]))); /* its instruction makes them all alike */
            else
                CHECK_INT(dst[i], zt_f32_to_bf16(src[i]));
    }
}

TEST(dev_copy_and_zero)
{
    enum { BYTES = (1 << 20) + 3 };
    unsigned char *src = SHARED_ARRAY(unsigned char, BYTES);
    unsigned char *dst = SHARED_ARRAY(unsigned char, BYTES + 1);
    for (int i = 0; i < BYTES; i++)
        src[i] = (unsigned char)(i * 31 >> 3);
    FOR_EACH_RIG(r)
    {
        struct zt_copy c = {dst, src, BYTES};
        struct zt_zero z = {dst, BYTES};
        memset(dst, 1, BYTES + 1);
        RUN(r, copy, &c);
        CHECK(memcmp(src, dst, BYTES) == 0 && dst[BYTES] == 1);
        RUN(r, zero, &z);
        for (int i = 0; i < BYTES; i++)
            CHECK_INT(dst[i], 0);
        CHECK_INT(dst[BYTES], 1);
    }
}

/* ---- cross-entropy ---- */

struct loss {
    int64_t rows, vocab, ld;
    const double *logits;
    const int32_t *targets;
    double *losses;
};

/* Sum of the losses. */
static double loss_reference(void *ctx)
{
    struct loss *s = ctx;
    double total = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        const double *x = s->logits + i * s->ld;
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < s->vocab; j++)
            max = ZT_MAX(max, x[j]);
        for (int64_t j = 0; j < s->vocab; j++)
            sum += exp(x[j] - max);
        bool ignored = s->targets[i] == ZT_IGNORE_TARGET;
        s->losses[i] = ignored ? 0 : max + log(sum) - x[s->targets[i]];
        total += s->losses[i];
    }
    return total;
}

static void check_loss(int64_t rows, int64_t vocab, int pad, enum zt_dtype t, bool write_grad)
{
    int64_t ld = vocab + pad;
    int32_t *targets = SHARED_ARRAY(int32_t, rows);
    struct tensor logits = tensor_random(rows * ld, t, 1, 3, 0), grad = tensor_copy(&logits);
    struct tensor losses = tensor_out(rows, ZT_F32);
    struct zt_step_block *sb = SHARED(struct zt_step_block, .loss_scale = 4);
    struct zt_count *count = SHARED(struct zt_count, .tokens = 8, .inv_tokens = 0.125f);
    double *sum = SHARED_ARRAY(double, 1);
    fill_indices(targets, rows, (int32_t)vocab, 2);
    if (rows > 2)
        targets[1] = ZT_IGNORE_TARGET;
    struct loss ref = {rows, vocab, ld, logits.val, targets, losses.val};
    double total = loss_reference(&ref);
    if (write_grad) {
        differences(loss_reference, &ref, logits.val, logits.n, grad.val);
        for (int64_t i = 0; i < grad.n; i++)
            grad.val[i] *= 0.5; /* inv_tokens * loss_scale */
        loss_reference(&ref);
    }
    FOR_EACH_RIG(r)
    {
        memcpy(grad.ref.ptr, logits.ref.ptr, (size_t)grad.n * zt_dtype_bytes(t));
        struct zt_cross_entropy a = {rows,           vocab, ld,   targets, sb,  count, grad.ref,
                                     losses.ref.ptr, sum,   true, false,   {0}, 0};
        *sum = 100;
        RUN(r, cross_entropy, &a);
        CHECK_NEAR(*sum, total, 1e-5 * (1 + total));
        a.first = false;
        a.write_grad = write_grad;
        RUN(r, cross_entropy, &a);
        CHECK_NEAR(*sum, 2 * total, 2e-5 * (1 + total));
        CHECK_TENSOR(r, "losses", losses.ref, losses.val, rows, 2e-6);
        CHECK_TENSOR(r, "gradient of logits", grad.ref, grad.val, grad.n, 2e-7 + dtype_eps(t) / 64);
    }
    tensor_free(&logits);
    tensor_free(&grad);
    tensor_free(&losses);
}

TEST(dev_cross_entropy)
{
    static const struct {
        int64_t rows, vocab;
        int pad;
        bool grad;
    } cases[] = {{1, 1, 0, true}, {3, 17, 5, true}, {5, 65, 0, true}, {33, 3001, 7, false}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++)
        for (enum zt_dtype t = ZT_F32; t <= ZT_BF16; t++) {
            check_loss(cases[i].rows, cases[i].vocab, cases[i].pad, t, cases[i].grad);
            RETURN_IF_FAILED();
        }
}

/* A vocabulary of several chunks: each row's gradient sums to 0, and is softmax - onehot. */
TEST(dev_cross_entropy_gradient_over_chunks)
{
    enum { ROWS = 3, VOCAB = 2500 };
    int32_t *targets = test_share((const int32_t[ROWS]){0, 2499, 1024}, ROWS * sizeof *targets);
    struct tensor logits = tensor_random(ROWS * VOCAB, ZT_F32, 1, 3, 0),
                  grad = tensor_copy(&logits);
    struct zt_step_block *sb = SHARED(struct zt_step_block, .loss_scale = 1);
    struct zt_count *count = SHARED(struct zt_count, 1, 1, 0);
    float *losses = SHARED_ARRAY(float, ROWS);
    double *sum = SHARED_ARRAY(double, 1);
    for (int i = 0; i < ROWS; i++) {
        double total = 0;
        for (int j = 0; j < VOCAB; j++)
            total += exp(logits.val[i * VOCAB + j]);
        for (int j = 0; j < VOCAB; j++)
            grad.val[i * VOCAB + j] = exp(logits.val[i * VOCAB + j]) / total - (j == targets[i]);
    }
    FOR_EACH_RIG(r)
    {
        memcpy(grad.ref.ptr, logits.ref.ptr, (size_t)grad.n * sizeof(float));
        struct zt_cross_entropy a = {ROWS,   VOCAB, VOCAB, targets, sb,  count, grad.ref,
                                     losses, sum,   true,  true,    {0}, 0};
        RUN(r, cross_entropy, &a);
        CHECK_TENSOR(r, "gradient", grad.ref, grad.val, grad.n, 1e-7);
    }
    tensor_free(&logits);
    tensor_free(&grad);
}

/* A bf16 gradient over its fp32 logits is the fp32 one rounded, at the beginning of each row. */
TEST(dev_cross_entropy_gradient_narrower_than_its_logits)
{
    enum { ROWS = 3, VOCAB = 2500, LD = 2560 };
    struct tensor logits = tensor_random(ROWS * LD, ZT_F32, 1, 3, 0), same = tensor_copy(&logits),
                  narrow = tensor_copy(&logits);
    struct zt_step_block *sb = SHARED(struct zt_step_block, .loss_scale = 1);
    struct zt_count *count = SHARED(struct zt_count, .tokens = ROWS, .inv_tokens = 1.0f / ROWS);
    int32_t *targets =
        test_share((const int32_t[ROWS]){2499, ZT_IGNORE_TARGET, 1030}, ROWS * sizeof *targets);
    float *losses = SHARED_ARRAY(float, ROWS);
    double *sum = SHARED_ARRAY(double, 1);
    FOR_EACH_RIG(r)
    {
        memcpy(same.ref.ptr, logits.ref.ptr, (size_t)same.n * sizeof(float));
        memcpy(narrow.ref.ptr, logits.ref.ptr, (size_t)narrow.n * sizeof(float));
        struct zt_cross_entropy a = {.rows = ROWS,
                                     .vocab = VOCAB,
                                     .ld = LD,
                                     .targets = targets,
                                     .sb = sb,
                                     .count = count,
                                     .logits = same.ref,
                                     .losses = losses,
                                     .loss_sum = sum,
                                     .first = true,
                                     .write_grad = true};
        RUN(r, cross_entropy, &a);
        a.logits = narrow.ref;
        a.grad = (struct zt_ref){narrow.ref.ptr, ZT_BF16};
        a.ld_grad = 2 * LD;
        RUN(r, cross_entropy, &a);
        const float *want = same.ref.ptr;
        const uint16_t *got = narrow.ref.ptr;
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t j = 0; j < LD; j++)
                CHECK_INT(got[i * 2 * LD + j], zt_f32_to_bf16(want[i * LD + j]));
    }
    tensor_free(&logits);
    tensor_free(&same);
    tensor_free(&narrow);
}

/* A stream, on a GPU even its device, does nothing more once it failed: a rig for each. */
TEST(dev_cross_entropy_refuses_a_target_outside_the_vocabulary)
{
    static const int32_t bad[] = {5, 50257, -1, -99};
    float *logits = SHARED_ARRAY(float, 3 * 5), *losses = SHARED_ARRAY(float, 3);
    double *sum = SHARED_ARRAY(double, 1);
    struct zt_step_block *sb = SHARED(struct zt_step_block, .loss_scale = 1);
    struct zt_count *count = SHARED(struct zt_count, 1, 1, 0);
    int32_t *targets = SHARED_ARRAY(int32_t, 3);
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++) {
        FOR_EACH_RIG(r)
        {
            struct zt_err err;
            struct zt_cross_entropy a = {3,      5,   5,    targets, sb,  count, {logits, ZT_F32},
                                         losses, sum, true, true,    {0}, 0};
            char want[100];
            targets[1] = ZT_IGNORE_TARGET;
            targets[2] = bad[i];
            r.dev->ops->cross_entropy(r.stream, &a);
            CHECK_INT(rig_sync(&r, &err), ZT_EINPUT);
            snprintf(want, sizeof want, "row 2 has target %d", (int)bad[i]);
            CHECK(strstr(err.msg, want));
        }
    }
}

/* ---- determinism ---- */

/* Nor, on a GPU, on the time of day: twice the same. */
TEST(dev_reductions_do_not_depend_on_threads)
{
    enum { ROWS = 300, COLS = 200 };
    struct tensor x = tensor_random(ROWS * COLS, ZT_F32, 1, 1, 0);
    float *sums = SHARED_ARRAY(float, 2 * COLS);
    struct zt_norm_partial *norms = SHARED_ARRAY(struct zt_norm_partial, 2);
    FOR_EACH_RIG(r)
    {
        const bool twice = r.dev->ops->kind == ZT_DEV_CUDA;
        for (int i = twice ? 0 : r.n_threads - 1; i < (twice ? 2 : r.n_threads); i++) {
            struct zt_col_sum c = {ROWS,  COLS, COLS, x.ref, {sums + i * COLS, ZT_F32},
                                   false, NULL, 0};
            struct zt_sum_sq q = {.n = ROWS * COLS, .x = x.ref, .out = &norms[i]};
            c.ws_bytes = zt_ws_col_sum(r.dev->ops->kind, ROWS, COLS, r.n_threads);
            c.ws = test_alloc(c.ws_bytes, 1);
            RUN(r, col_sum, &c);
            RUN(r, sum_sq, &q);
            test_free(c.ws);
        }
        if (twice || r.n_threads == 2) {
            CHECK(memcmp(sums, sums + COLS, COLS * sizeof *sums) == 0);
            CHECK(memcmp(&norms[0], &norms[1], sizeof norms[0]) == 0);
        }
    }
    tensor_free(&x);
}

TEST_MAIN()
