#include "device.h"

#include "base/arena.h"
#include "epilogue.h"

/*
 * Row-major C = A B is column-major C^T = B^T A^T: cuBLASLt's first operand is our B, its second our A,
 * its rows are our columns. So a bias over our rows is a bias along its columns, as it has them.
 *
 * The epilogue runs in the product where cuBLASLt has it for these types and alignments. A bias gradient
 * that it does not have beside the rest, as where C is added to, is a kernel of its own behind the
 * product. Where the rest does not go in one call either, the product is made into fp32 workspace, a block
 * of rows at a time, and a kernel does what is left; both round once.
 */

/* Alignment beyond this changes nothing; so the algorithm does not depend on where a buffer lies. */
enum { ALIGNMENT = 16, ENTRIES = 512, PROBES = 8 };

/* Everything that the choice of an algorithm depends on. Compared as bytes: zero it first. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    size_t ws_bytes;
    int32_t trans_a, trans_b, add;
    int32_t a_type, b_type, c_type, bias_type;
    uint32_t epilogue;
    int32_t align_a, align_b, align_c, align_add, align_bias, align_aux;
};

struct entry {
    bool used, supported;
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct zt_cuda_products {
    const struct zt_cuda_dev *dev;
    struct entry table[ENTRIES];
};

struct zt_cuda_products *zt_cuda_products_create(const struct zt_cuda_dev *d)
{
    struct zt_cuda_products *p = zt_xcalloc(1, sizeof *p);
    p->dev = d;
    return p;
}

/* One call of cuBLASLt, in our terms. */
struct product {
    const struct zt_matmul *mm;
    struct zt_ref a, b, c, add; /* add ptr NULL: nothing is added */
    int64_t m, ldc;
    uint32_t epilogue;  /* cublasLtEpilogue_t */
    struct zt_ref bias; /* in of BIAS, out of BGRAD */
    const void *aux;    /* of C's type, ldc */
    void *ws;
    size_t ws_bytes;
};

static cudaDataType_t cuda_type(enum zt_dtype t)
{
    return t == ZT_BF16 ? CUDA_R_16BF : t == ZT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static int32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return p && low < ALIGNMENT ? (int32_t)low : ALIGNMENT;
}

static void make_key(const struct product *p, struct key *k)
{
    const struct zt_matmul *mm = p->mm;
    memset(k, 0, sizeof *k);
    k->m = p->m;
    k->n = mm->n;
    k->k = mm->k;
    k->lda = mm->lda;
    k->ldb = mm->ldb;
    k->ldc = p->ldc;
    k->ws_bytes = p->ws_bytes;
    k->trans_a = mm->trans_a;
    k->trans_b = mm->trans_b;
    k->add = p->add.ptr != NULL;
    k->a_type = (int32_t)p->a.dtype;
    k->b_type = (int32_t)p->b.dtype;
    k->c_type = (int32_t)p->c.dtype;
    k->bias_type = p->bias.ptr ? (int32_t)p->bias.dtype : -1;
    k->epilogue = p->epilogue;
    k->align_a = alignment(p->a.ptr);
    k->align_b = alignment(p->b.ptr);
    k->align_c = alignment(p->c.ptr);
    k->align_add = alignment(p->add.ptr ? p->add.ptr : p->c.ptr); /* what is given as their C */
    k->align_bias = alignment(p->bias.ptr);
    k->align_aux = alignment(p->aux);
}

static uint64_t hash(const struct key *k)
{
    uint64_t words[sizeof *k / 8], h = 0x9E3779B97F4A7C15u;
    _Static_assert(sizeof *k % 8 == 0, "a key is whole words");
    memcpy(words, k, sizeof words);
    for (size_t i = 0; i < sizeof words / 8; i++) {
        h = (h ^ words[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

static void forget(struct entry *e)
{
    if (e->desc)
        cublasLtMatmulDescDestroy(e->desc);
    if (e->a)
        cublasLtMatrixLayoutDestroy(e->a);
    if (e->b)
        cublasLtMatrixLayoutDestroy(e->b);
    if (e->c)
        cublasLtMatrixLayoutDestroy(e->c);
    memset(e, 0, sizeof *e);
}

void zt_cuda_products_free(struct zt_cuda_products *p)
{
    for (int i = 0; p && i < ENTRIES; i++)
        forget(&p->table[i]);
    free(p);
}

/* The entry of a key; a new one takes the place of another when the table is full. */
static struct entry *find(struct zt_cuda_products *p, const struct key *k)
{
    uint64_t h = hash(k);
    struct entry *e;
    for (uint64_t i = 0; i < PROBES; i++) {
        e = &p->table[(h + i) % ENTRIES];
        if (!e->used || memcmp(&e->key, k, sizeof *k) == 0)
            return e;
    }
    e = &p->table[h % ENTRIES];
    forget(e);
    return e;
}

/* ---- descriptions ---- */

#define SET(desc, attribute, value)                                                                \
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value))

/* What changes from call to call. */
static cublasStatus_t set_pointers(const struct entry *e, const struct product *p)
{
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    if (p->bias.ptr)
        rc = SET(e->desc, BIAS_POINTER, p->bias.ptr);
    if (p->aux && rc == CUBLAS_STATUS_SUCCESS)
        rc = SET(e->desc, EPILOGUE_AUX_POINTER, p->aux);
    return rc;
}

static cublasStatus_t describe(struct entry *e, const struct product *p, cublasComputeType_t f32)
{
    const struct zt_matmul *mm = p->mm;
    const int32_t trans_a = mm->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t trans_b = mm->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasComputeType_t compute = p->a.dtype == ZT_F32 ? f32 : CUBLAS_COMPUTE_32F;
    cublasStatus_t rc = cublasLtMatmulDescCreate(&e->desc, compute, CUDA_R_32F);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = SET(e->desc, TRANSA, trans_a);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = SET(e->desc, TRANSB, trans_b);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = SET(e->desc, EPILOGUE, p->epilogue);
    if (rc == CUBLAS_STATUS_SUCCESS && p->bias.ptr) {
        const int32_t type = cuda_type(p->bias.dtype);
        rc = SET(e->desc, BIAS_DATA_TYPE, type);
    }
    if (rc == CUBLAS_STATUS_SUCCESS && p->aux)
        rc = SET(e->desc, EPILOGUE_AUX_LD, p->ldc);
    return rc;
}

/* A stored matrix of ours, (rows, cols) with leading dimension ld, as cuBLASLt sees it. */
static cublasStatus_t lay_out(cublasLtMatrixLayout_t *out, enum zt_dtype t, int64_t rows,
                              int64_t cols, int64_t ld)
{
    return cublasLtMatrixLayoutCreate(out, cuda_type(t), (uint64_t)cols, (uint64_t)rows, ld);
}

static cublasStatus_t lay_out_all(struct entry *e, const struct product *p)
{
    const struct zt_matmul *mm = p->mm;
    cublasStatus_t rc = lay_out(&e->a, p->b.dtype, mm->trans_b ? mm->n : mm->k,
                                mm->trans_b ? mm->k : mm->n, mm->ldb);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lay_out(&e->b, p->a.dtype, mm->trans_a ? mm->k : p->m, mm->trans_a ? p->m : mm->k,
                     mm->lda);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lay_out(&e->c, p->c.dtype, p->m, mm->n, p->ldc);
    return rc;
}

#define PREFER(pref, attribute, value)                                                             \
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_##attribute, &(value),         \
                                         sizeof(value))

/* Parts of k are added up in fp32 or not at all. */
static cublasStatus_t set_preference(cublasLtMatmulPreference_t pref, const struct key *k)
{
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint64_t ws_bytes = k->ws_bytes;
    const uint32_t a = (uint32_t)k->align_b, b = (uint32_t)k->align_a; /* theirs is our B */
    const uint32_t c = (uint32_t)k->align_add, d = (uint32_t)k->align_c;
    cublasStatus_t rc = PREFER(pref, MAX_WORKSPACE_BYTES, ws_bytes);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = PREFER(pref, REDUCTION_SCHEME_MASK, schemes);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = PREFER(pref, MIN_ALIGNMENT_A_BYTES, a);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = PREFER(pref, MIN_ALIGNMENT_B_BYTES, b);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = PREFER(pref, MIN_ALIGNMENT_C_BYTES, c);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = PREFER(pref, MIN_ALIGNMENT_D_BYTES, d);
    return rc;
}

static cublasStatus_t choose(struct zt_cuda_products *ps, struct entry *e)
{
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t best;
    int n = 0;
    cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&pref);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    rc = set_preference(pref, &e->key);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(ps->dev->lt, e->desc, e->a, e->b, e->c, e->c, pref, 1,
                                            &best, &n);
    cublasLtMatmulPreferenceDestroy(pref);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    if (n == 0 || best.state != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    e->algo = best.algo;
    return rc;
}

/* What cuBLASLt says to a combination that it does not have. */
static bool is_refusal(cublasStatus_t rc)
{
    return rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE;
}

static cublasStatus_t prepare(struct zt_cuda_products *ps, struct entry *e, const struct product *p,
                              const struct key *k)
{
    e->used = true;
    e->key = *k;
    cublasStatus_t rc = describe(e, p, ps->dev->f32);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lay_out_all(e, p);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set_pointers(e, p); /* their alignment counts */
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = choose(ps, e);
    e->supported = rc == CUBLAS_STATUS_SUCCESS;
    if (!e->supported && !is_refusal(rc))
        forget(e);
    return rc;
}

/* CUBLAS_STATUS_NOT_SUPPORTED: not in this combination; nothing was done. */
static cublasStatus_t run(struct zt_cuda_products *ps, const struct product *p, cudaStream_t stream)
{
    const float one = 1, beta = p->add.ptr ? 1 : 0;
    struct key k;
    make_key(p, &k);
    struct entry *e = find(ps, &k);
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    if (!e->used)
        rc = prepare(ps, e, p, &k);
    else if (e->supported)
        rc = set_pointers(e, p);
    if (is_refusal(rc) || (e->used && !e->supported))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    const void *c = p->add.ptr ? p->add.ptr : p->c.ptr;
    return cublasLtMatmul(ps->dev->lt, e->desc, &one, p->b.ptr, e->a, p->a.ptr, e->b, &beta, c,
                          e->c, p->c.ptr, e->c, &e->algo, p->ws, p->ws_bytes, stream);
}

/* ---- one call for all, where there is one ---- */

static uint32_t gelu_epilogue(const struct zt_matmul *a)
{
    if (a->aux.ptr)
        return a->bias.ptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return a->bias.ptr ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

/* cuBLASLt adds to the sums, before the epilogue; the bias gradient is written, never added to. */
static bool may_fuse(const struct zt_matmul *a)
{
    const bool aux = a->epilogue != ZT_EPI_NONE && a->aux.ptr;
    if (a->k == 0 || (a->accumulate && a->residual.ptr))
        return false;
    if (a->residual.ptr && (a->epilogue != ZT_EPI_NONE || a->residual.dtype != a->c.dtype))
        return false;
    if (aux && a->aux.dtype != a->c.dtype)
        return false;
    if (a->epilogue == ZT_EPI_DGELU && a->bias.ptr)
        return false;
    return a->bias_grad_of == ZT_BIAS_GRAD_NONE ||
           (!a->accumulate && !a->bias.ptr && a->epilogue == ZT_EPI_NONE);
}

static struct product fused(const struct zt_matmul *a)
{
    struct product p = {.mm = a,
                        .a = a->a,
                        .b = a->b,
                        .c = a->c,
                        .add = a->accumulate ? a->c : a->residual,
                        .m = a->m,
                        .ldc = a->ldc,
                        .epilogue =
                            a->bias.ptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT,
                        .bias = a->bias,
                        .ws = a->ws,
                        .ws_bytes = a->ws_bytes};
    if (a->epilogue == ZT_EPI_GELU)
        p.epilogue = gelu_epilogue(a);
    else if (a->epilogue == ZT_EPI_DGELU)
        p.epilogue = CUBLASLT_EPILOGUE_DGELU;
    if (a->epilogue != ZT_EPI_NONE)
        p.aux = a->aux.ptr;
    if (a->bias_grad_of == ZT_BIAS_GRAD_NONE)
        return p;
    /* Their first operand is our B, and D's rows are our columns. */
    p.epilogue =
        a->bias_grad_of == ZT_BIAS_GRAD_B ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
    p.bias = a->bias_grad;
    return p;
}

/* ---- in steps ---- */

static struct zt_ref from_elem(struct zt_ref r, int64_t i)
{
    r.ptr = (char *)r.ptr + (size_t)i * zt_dtype_bytes(r.dtype);
    return r;
}

/* The sums of rows [row, row + rows) of C into x. */
static int sums(struct zt_stream *s, const struct zt_matmul *a, int64_t row, int64_t rows, float *x,
                void *ws, size_t ws_bytes, struct zt_err *err)
{
    const struct zt_cuda_ctx *ctx = zt_cuda_ctx_of(s);
    const size_t x_bytes = (size_t)rows * (size_t)a->n * sizeof *x;
    if (a->k == 0)
        return zt_cuda_check(s, cudaMemsetAsync(x, 0, x_bytes, ctx->stream), "cudaMemsetAsync",
                             err);
    struct product p = {.mm = a,
                        .a = from_elem(a->a, a->trans_a ? row : row * a->lda),
                        .b = a->b,
                        .c = {x, ZT_F32},
                        .m = rows,
                        .ldc = a->n,
                        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                        .ws = ws,
                        .ws_bytes = ws_bytes};
    cublasStatus_t rc = run(zt_cuda_products_of(s), &p, ctx->stream);
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    return zt_err_set(err, rc == CUBLAS_STATUS_NOT_SUPPORTED ? ZT_EUNSUPPORTED : ZT_EDEVICE,
                      "matmul (%lld, %lld, %lld) of %s and %s: cuBLASLt: %s", (long long)a->m,
                      (long long)a->n, (long long)a->k, zt_dtype_name(a->a.dtype),
                      zt_dtype_name(a->b.dtype), cublasLtGetStatusString(rc));
}

/* Half of the workspace holds sums, the rest is cuBLASLt's. */
static int in_steps(struct zt_stream *s, const struct zt_matmul *a, struct zt_err *err)
{
    const size_t x_bytes = a->ws_bytes / 2 / 256 * 256, row_bytes = (size_t)a->n * sizeof(float);
    const int64_t fit = (int64_t)(x_bytes / row_bytes);
    char *ws = a->ws;
    if (fit == 0)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "matmul (%lld, %lld, %lld): a row is too long for its workspace",
                          (long long)a->m, (long long)a->n, (long long)a->k);
    for (int64_t row = 0; row < a->m; row += fit) {
        const struct zt_cuda_epilogue e = {a, row, ZT_MIN(fit, a->m - row), (const float *)ws};
        int rc = sums(s, a, row, e.rows, (float *)ws, ws + x_bytes, a->ws_bytes - x_bytes, err);
        if (!rc)
            rc = zt_cuda_check(s, zt_cuda_epilogue(&e, zt_cuda_ctx_of(s)), "launch of epilogue",
                               err);
        if (rc)
            return rc;
    }
    return 0;
}

static int bias_grad(struct zt_stream *s, const struct zt_matmul *a, struct zt_err *err)
{
    const struct zt_col_sum sum = zt_bias_grad_sum(a);
    return zt_cuda_check(s, zt_cuda_col_sum(&sum, zt_cuda_ctx_of(s)), "launch of col_sum", err);
}

/* CUBLAS_STATUS_NOT_SUPPORTED: not in one call; nothing was done. */
static cublasStatus_t in_one(struct zt_stream *s, const struct zt_matmul *a)
{
    if (!may_fuse(a))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const struct product p = fused(a);
    return run(zt_cuda_products_of(s), &p, zt_cuda_ctx_of(s)->stream);
}

/* C alone, in one call or in steps. */
static int product_alone(struct zt_stream *s, const struct zt_matmul *a, cublasStatus_t rc,
                         struct zt_err *err)
{
    if (rc == CUBLAS_STATUS_NOT_SUPPORTED && a->bias_grad_of != ZT_BIAS_GRAD_NONE) {
        struct zt_matmul alone = *a;
        alone.bias_grad_of = ZT_BIAS_GRAD_NONE;
        rc = in_one(s, &alone);
    }
    if (rc == CUBLAS_STATUS_NOT_SUPPORTED)
        return in_steps(s, a, err);
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    return zt_err_set(err, ZT_EDEVICE, "matmul (%lld, %lld, %lld): cuBLASLt: %s", (long long)a->m,
                      (long long)a->n, (long long)a->k, cublasLtGetStatusString(rc));
}

int zt_cuda_matmul(struct zt_stream *s, const struct zt_matmul *a, struct zt_err *err)
{
    int failed = 0;
    if (a->m > 0 && a->n > 0) {
        const cublasStatus_t rc = in_one(s, a);
        if (rc == CUBLAS_STATUS_SUCCESS)
            return 0;
        failed = product_alone(s, a, rc, err);
    }
    if (!failed && a->bias_grad_of != ZT_BIAS_GRAD_NONE)
        failed = bias_grad(s, a, err);
    return failed;
}
