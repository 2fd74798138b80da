/*
 * blaslt.cpp: cuBLASLt with the calls and attributes that a matmul of transformers needs; others are
 * refused by name. Rules are those of the cuBLAS 13.0 manual, section cublasLtMatmul, and of cublasLt.h:
 *   - A and B of one type; (A, D) one of fp32/fp32, bf16/bf16, bf16/fp32, fp16/fp16, fp16/fp32; C as D;
 *     scale and sums in fp32. Column-major, strided batches.
 *   - A bias, a bias gradient and the auxiliary matrix (input of GELU) have D's type; the latter's leading
 *     dimension is a multiple of 8.
 *   - GELU is the tanh approximation.
 *   - An algorithm is good for the problem that it was chosen for, at least as well aligned, with the
 *     workspace that it asked for. (The real library may forgive more.)
 * CUBLAS_STATUS_NOT_SUPPORTED: a combination that the library does not have. CUBLAS_STATUS_INVALID_VALUE: an
 * impossible one; the reason goes to stderr.
 */
#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

#include "cusim/blaslt.h"
#include "cusim/sim.h"

using namespace cusim;

namespace
{

constexpr uint64_t ALGO_MAGIC = 0x6375736d6c74616cull;
/* What an algorithm asks for if it may: enough to notice who gives it less, or to two streams. */
constexpr size_t WORKSPACE_BYTES = 64 << 10;

struct preference {
    uint32_t search_mode, reduction_schemes;
    uint64_t workspace_bytes;
    uint32_t align_a, align_b, align_c, align_d;
};

struct algorithm {
    uint64_t magic, problem, workspace_bytes;
    uint32_t align_a, align_b, align_c, align_d;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t));

cublasStatus_t invalid(const char *call, const char *why)
{
    fprintf(stderr, "cusim: %s: %s\n", call, why);
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t unsupported(const char *format, long what)
{
    char text[128];
    snprintf(text, sizeof text, format, what);
    fprintf(stderr, "cusim: %s is not modelled\n", text);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- Attributes ---- */

struct field {
    void *p;
    size_t bytes;
};

template <class T> field of(T *p)
{
    return {p, sizeof(T)};
}

/* NULL: not modelled. */
field find_field(operation *o, cublasLtMatmulDescAttributes_t attr)
{
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return of(&o->compute);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return of(&o->scale);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return of(&o->pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return of(&o->trans_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return of(&o->trans_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return of(&o->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return of(&o->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return of(&o->bias_type);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
        return of(&o->bias_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return of(&o->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return of(&o->aux_ld);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return of(&o->aux_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        return of(&o->aux_stride);
    default:
        return {nullptr, 0};
    }
}

field find_field(layout *l, cublasLtMatrixLayoutAttribute_t attr)
{
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return of(&l->type);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return of(&l->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return of(&l->cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return of(&l->ld);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return of(&l->batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return of(&l->batch_stride);
    default:
        return {nullptr, 0};
    }
}

field find_field(preference *p, cublasLtMatmulPreferenceAttributes_t attr)
{
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return of(&p->reduction_schemes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return of(&p->workspace_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return of(&p->align_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return of(&p->align_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return of(&p->align_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return of(&p->align_d);
    default:
        return {nullptr, 0};
    }
}

cublasStatus_t set_field(field f, const char *what, int attr, const void *buf, size_t bytes)
{
    if (!f.p)
        return unsupported(what, attr);
    if (!buf || bytes != f.bytes)
        return invalid(what, "no value, or not of the attribute's size");
    memcpy(f.p, buf, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_field(field f, const char *what, int attr, void *buf, size_t bytes,
                         size_t *written)
{
    if (!f.p)
        return unsupported(what, attr);
    if (written)
        *written = f.bytes;
    if (bytes == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (!buf || bytes != f.bytes)
        return invalid(what, "no room, or not of the attribute's size");
    memcpy(buf, f.p, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- Is it a product that cuBLASLt has? ---- */

cublasStatus_t check_types(const matmul &p)
{
    const operation &o = p.op;
    if (o.compute != CUBLAS_COMPUTE_32F && o.compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
        o.compute != CUBLAS_COMPUTE_32F_FAST_TF32)
        return unsupported("cublasLtMatmul(compute type %ld)", o.compute);
    if (o.scale != CUDA_R_32F)
        return unsupported("cublasLtMatmul(scale type %ld)", o.scale);
    for (cudaDataType t : {p.a.type, p.b.type, p.c.type, p.d.type}) {
        if (t != CUDA_R_32F && t != CUDA_R_16BF && t != CUDA_R_16F)
            return unsupported("cublasLtMatmul(data type %ld)", t);
    }
    if (p.a.type != p.b.type || p.c.type != p.d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.d.type != CUDA_R_32F && p.d.type != p.a.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (o.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_shapes(const char *call, matmul *p)
{
    const operation &o = p->op;
    if ((o.trans_a != CUBLAS_OP_N && o.trans_a != CUBLAS_OP_T) ||
        (o.trans_b != CUBLAS_OP_N && o.trans_b != CUBLAS_OP_T))
        return unsupported("cublasLtMatmul(operation %ld)", o.trans_a | o.trans_b);
    p->m = (int64_t)(o.trans_a == CUBLAS_OP_N ? p->a.rows : p->a.cols);
    p->k = (int64_t)(o.trans_a == CUBLAS_OP_N ? p->a.cols : p->a.rows);
    p->n = (int64_t)(o.trans_b == CUBLAS_OP_N ? p->b.cols : p->b.rows);
    const int64_t kb = (int64_t)(o.trans_b == CUBLAS_OP_N ? p->b.rows : p->b.cols);
    if (kb != p->k || (int64_t)p->d.rows != p->m || (int64_t)p->d.cols != p->n ||
        p->c.rows != p->d.rows || p->c.cols != p->d.cols || p->m == 0 || p->n == 0 || p->k == 0)
        return invalid(call, "the matrices' shapes do not fit, or one is empty");
    for (const layout *l : {&p->a, &p->b, &p->c, &p->d}) {
        if (l->ld < (int64_t)l->rows)
            return invalid(call, "a leading dimension is smaller than the number of rows");
        if (l->batch != p->d.batch || l->batch < 1)
            return invalid(call, "the batch counts differ");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const char *call, const matmul &p)
{
    const operation &o = p.op;
    switch (o.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        break;
    default:
        return unsupported("cublasLtMatmul(epilogue %ld)", o.epilogue);
    }
    if (has_bias(o.epilogue) || has_bias_gradient(o.epilogue)) {
        if (!o.bias)
            return invalid(call, "the epilogue needs CUBLASLT_MATMUL_DESC_BIAS_POINTER");
        if (o.bias_type != -1 && o.bias_type != p.d.type)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (has_bias_gradient(o.epilogue) && p.d.batch > 1)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (!(o.epilogue & AUX))
        return CUBLAS_STATUS_SUCCESS;
    if (!o.aux)
        return invalid(call, "the epilogue needs CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER");
    if (o.aux_type != -1 && o.aux_type != p.d.type)
        return invalid(call, "the auxiliary matrix is not of D's type");
    if (o.aux_ld < p.m)
        return invalid(call, "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD is smaller than D's rows");
    if (o.aux_ld % 8 != 0 || (p.d.batch > 1 && o.aux_stride % 8 != 0))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(const char *call, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                     matmul *p)
{
    if (!op || !a || !b || !c || !d)
        return invalid(call, "a descriptor is NULL");
    p->op = *(operation *)op;
    p->a = *(layout *)a;
    p->b = *(layout *)b;
    p->c = *(layout *)c;
    p->d = *(layout *)d;
    cublasStatus_t rc = check_types(*p);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = check_shapes(call, p);
    return rc == CUBLAS_STATUS_SUCCESS ? check_epilogue(call, *p) : rc;
}

/* Of all that an algorithm is chosen for, but for the addresses. */
uint64_t fingerprint(const matmul &p)
{
    const operation &o = p.op;
    uint64_t h = 14695981039346656037ull;
    auto mix = [&h](int64_t v) { h = (h ^ (uint64_t)v) * 1099511628211ull; };
    for (int64_t v : {(int64_t)o.compute, (int64_t)o.trans_a, (int64_t)o.trans_b,
                      (int64_t)o.epilogue, (int64_t)o.pointer_mode, o.aux_ld, p.m, p.n, p.k})
        mix(v);
    for (const layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        mix(l->type);
        mix(l->ld);
        mix(l->batch);
        mix(l->batch_stride);
    }
    return h;
}

/* ---- Checks of one call ---- */

bool is_aligned(const void *p, uint32_t bytes)
{
    return bytes == 0 || (uintptr_t)p % bytes == 0;
}

size_t extent(const layout &l)
{
    int64_t elems = (int64_t)(l.cols - 1) * l.ld + (int64_t)l.rows;
    return (size_t)(elems + (l.batch - 1) * l.batch_stride) * type_bytes(l.type);
}

bool in_memory(const matmul &p, int device, const void *a, const void *b, const void *c, void *d)
{
    const operation &o = p.op;
    const size_t e = type_bytes(p.d.type);
    bool ok = device_can_use(device, a, extent(p.a), "cublasLtMatmul: A") &&
              device_can_use(device, b, extent(p.b), "cublasLtMatmul: B") &&
              device_can_use(device, c, extent(p.c), "cublasLtMatmul: C") &&
              device_can_use(device, d, extent(p.d), "cublasLtMatmul: D");
    if (ok && (has_bias(o.epilogue) || has_bias_gradient(o.epilogue))) {
        int64_t length = o.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
        length += (p.d.batch - 1) * o.bias_stride;
        ok = device_can_use(device, o.bias, (size_t)length * e, "cublasLtMatmul: the bias");
    }
    if (ok && o.epilogue & AUX) {
        int64_t length = (p.n - 1) * o.aux_ld + p.m + (p.d.batch - 1) * o.aux_stride;
        ok = device_can_use(device, o.aux, (size_t)length * e,
                            "cublasLtMatmul: the auxiliary matrix");
    }
    return ok;
}

cublasStatus_t check_algorithm(const matmul &p, const algorithm &algo, const void *a, const void *b,
                               const void *c, const void *d, const void *workspace,
                               size_t workspace_bytes)
{
    const char *call = "cublasLtMatmul";
    if (algo.magic != ALGO_MAGIC || algo.problem != fingerprint(p))
        return invalid(call, "the algorithm was chosen for another problem");
    if (!is_aligned(a, algo.align_a) || !is_aligned(b, algo.align_b) ||
        !is_aligned(c, algo.align_c) || !is_aligned(d, algo.align_d))
        return invalid(call, "an operand is aligned worse than the algorithm was chosen for");
    if (workspace_bytes < algo.workspace_bytes)
        return invalid(call, "less workspace than the algorithm asked for");
    if (algo.workspace_bytes > 0 && (!workspace || !is_aligned(workspace, 16)))
        return invalid(call, "the workspace is NULL or not aligned to 16 bytes");
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    if (cusim::enter("cublasLtCreate", cudaErrorInitializationError) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *h = (cublasLtHandle_t) new int(current_device());
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete (int *)h;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return cublasLtGetStatusName(s);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    auto *o = new operation();
    o->compute = compute;
    o->scale = scale;
    o->bias_type = o->aux_type = -1;
    o->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *out = (cublasLtMatmulDesc_t)o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t o)
{
    delete (operation *)o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t o,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t bytes)
{
    return set_field(find_field((operation *)o, attr), "cublasLtMatmulDescSetAttribute(%ld)", attr,
                     buf, bytes);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t o,
                                              cublasLtMatmulDescAttributes_t attr, void *buf,
                                              size_t bytes, size_t *written)
{
    return get_field(find_field((operation *)o, attr), "cublasLtMatmulDescGetAttribute(%ld)", attr,
                     buf, bytes, written);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *out = (cublasLtMatrixLayout_t) new layout{type, rows, cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete (layout *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t bytes)
{
    return set_field(find_field((layout *)l, attr), "cublasLtMatrixLayoutSetAttribute(%ld)", attr,
                     buf, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    /* The defaults of the manual: no workspace, operands aligned to 256 bytes. */
    *out = (cublasLtMatmulPreference_t) new preference{0, ~0u, 0, 256, 256, 256, 256};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete (preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t bytes)
{
    return set_field(find_field((preference *)p, attr), "cublasLtMatmulPreferenceSetAttribute(%ld)",
                     attr, buf, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preferred, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *returned)
{
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    *returned = 0;
    if (int e = planned_failure(call, CUBLAS_STATUS_NOT_SUPPORTED))
        return (cublasStatus_t)e;
    matmul p;
    if (!h || !preferred || wanted < 1)
        return invalid(call, "no handle, no preference, or no result is asked for");
    cublasStatus_t rc = check(call, op, a, b, c, d, &p);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    const auto *pref = (const preference *)preferred;
    algorithm algo = {ALGO_MAGIC,    fingerprint(p), 0, pref->align_a, pref->align_b,
                      pref->align_c, pref->align_d};
    if (pref->workspace_bytes >= WORKSPACE_BYTES)
        algo.workspace_bytes = WORKSPACE_BYTES;
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &algo, sizeof algo);
    results[0].workspaceSize = algo.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1.0f;
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/*
 * As an algorithm that splits k would write to its workspace. NaN in every type, and not bytes of 0xff: those
 * are what memory holds that nobody has written.
 */
static void spoil(unsigned char *workspace, size_t bytes)
{
    tsan_writes(workspace, bytes);
    for (size_t i = 0; i < bytes; i++)
        workspace[i] = i & 1 ? 0x7f : 0xff;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_desc, const void *b,
                              cublasLtMatrixLayout_t b_desc, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_desc, void *d, cublasLtMatrixLayout_t d_desc,
                              const cublasLtMatmulAlgo_t *chosen, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const char *call = "cublasLtMatmul";
    if (int e = planned_failure(call, CUBLAS_STATUS_EXECUTION_FAILED))
        return (cublasStatus_t)e;
    matmul p;
    if (!h || !alpha || !beta || !a || !b || !c || !d)
        return invalid(call, "an argument is NULL");
    cublasStatus_t rc = check(call, op, a_desc, b_desc, c_desc, d_desc, &p);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    if (!chosen)
        return unsupported("cublasLtMatmul(without an algorithm)%.0ld", 0);
    algorithm algo;
    memcpy(&algo, chosen, sizeof algo);
    rc = check_algorithm(p, algo, a, b, c, d, workspace, workspace_bytes);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    if (c == d && p.c.ld != p.d.ld)
        return invalid(call, "in place, but C and D are laid out differently");
    const int device = *(const int *)h;
    const size_t needs = algo.workspace_bytes;
    if (stream_device(stream) != device || !in_memory(p, device, a, b, c, d) ||
        !device_can_use(device, workspace, needs, "cublasLtMatmul: the workspace"))
        return invalid(call, "memory or stream are not of the handle's device");
    const bool on_device = p.op.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
    if (!on_device && p.op.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        return unsupported("cublasLtMatmul(pointer mode %ld)", p.op.pointer_mode);
    const float host_alpha = on_device ? 0 : *(const float *)alpha;
    const float host_beta = on_device ? 0 : *(const float *)beta;
    cudaError_t e = enqueue(stream, call, [=] {
        spoil((unsigned char *)workspace, needs);
        if (on_device) {
            tsan_reads(alpha, sizeof(float));
            tsan_reads(beta, sizeof(float));
        }
        carry_out(p, on_device ? *(const float *)alpha : host_alpha,
                  on_device ? *(const float *)beta : host_beta, a, b, c, d);
    });
    return e ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
