/*
 * dev_test.h: what the kernel tests share. A test computes its expected values once in float64, then
 * runs the kernel on every instruction set of this CPU, with 1 and with 2 threads, and on the GPU where
 * the CUDA part (ZT_CUDA_LIB, coll/backend.h) gives one: the same assertions everywhere. What kernels
 * read and write lies in memory that all of them reach, so it comes from here.
 *
 * ZT_TEST_RIGS=cpu or cuda: those alone; cuda fails where there is no GPU.
 *
 * Gradients: the expected ones are central differences of the float64 forward function, so that no
 * formula stands in both kernel and test.
 */
#ifndef ZT_TEST_DEV_TEST_H
#define ZT_TEST_DEV_TEST_H

#include "harness.h"

#include "base/arena.h"
#include "base/rng.h"
#include "coll/backend.h"
#include "dev/dev.h"

/* ---- devices ---- */

/* Memory comes from a device of its own, since a rig's device is of no use any more once it failed. */
struct test_gpu {
    const struct zt_backend *backend;
    struct zt_dev *memory; /* NULL: none */
};

static struct test_gpu test_gpu;

static inline bool rigs_wanted(const char *kind)
{
    const char *only = getenv("ZT_TEST_RIGS");
    return !only || !*only || strcmp(only, kind) == 0;
}

static void test_gpu_close(void);

/* Opened once, closed at exit. */
static inline struct zt_dev *test_gpu_open(void)
{
    static bool tried;
    struct zt_err err;
    int n = 0;
    if (tried || !rigs_wanted("cuda"))
        return test_gpu.memory;
    tried = true;
#ifdef TEST_LINKED_BACKEND /* test/cuda: the CUDA part is in the program */
    test_gpu.backend = zt_backend();
    int rc = 0;
#else
    int rc = zt_backend_load(&test_gpu.backend, &err);
#endif
    if (!rc)
        rc = test_gpu.backend->device_count(&n, &err);
    if (!rc)
        rc = test_gpu.backend->dev_create(0, &test_gpu.memory, NULL, 0, &err);
    if (rc && (rc != ZT_EUNSUPPORTED || !rigs_wanted("cpu"))) {
        fprintf(stderr, "dev_test.h: no GPU to test: %s\n", err.msg);
        abort();
    }
    atexit(test_gpu_close);
    return test_gpu.memory;
}

static const char *const test_isas[] = {"v4", "v3", "v2", "base"};

struct rig {
    const char *isa; /* or "cuda" */
    int n_threads;
    struct zt_dev *dev;
    struct zt_stream *stream;
};

static inline void rig_start(struct rig *r, const char *isa, int n_threads)
{
    struct zt_err err;
    r->isa = isa;
    r->n_threads = n_threads;
    if (r->dev->ops->stream_create(r->dev, "test", n_threads, &r->stream, &err))
        abort();
}

/* Rig number i of those that there are; false past the last. Close it after use. */
static inline bool rig_open(struct rig *r, int i)
{
    struct zt_err err;
    for (size_t k = 0; k < ZT_ARRAY_LEN(test_isas) && rigs_wanted("cpu"); k++) {
        setenv("ZT_CPU_ISA", test_isas[k], 1);
        int rc = zt_cpu_dev_create(&r->dev, NULL, 0, &err);
        unsetenv("ZT_CPU_ISA");
        if (rc == ZT_EINPUT || rc == ZT_EUNSUPPORTED)
            continue;
        if (rc)
            abort();
        if (i < 2) {
            rig_start(r, test_isas[k], i + 1);
            return true;
        }
        zt_cpu_dev_free(r->dev);
        i -= 2;
    }
    if (i > 0 || !test_gpu_open())
        return false;
    if (test_gpu.backend->dev_create(0, &r->dev, NULL, 0, &err))
        abort();
    rig_start(r, "cuda", 1);
    return true;
}

static inline int rig_sync(struct rig *r, struct zt_err *err)
{
    return r->dev->ops->sync(r->dev->ops->record(r->stream), err);
}

static inline void rig_close(struct rig *r)
{
    r->dev->ops->stream_free(r->stream);
    if (r->dev->ops->kind == ZT_DEV_CUDA)
        test_gpu.backend->dev_free(r->dev);
    else
        zt_cpu_dev_free(r->dev);
}

#define FOR_EACH_RIG(r)                                                                            \
    struct rig r;                                                                                  \
    for (int rig_i_ = 0; rig_open(&r, rig_i_); rig_close(&r), rig_i_++)

/* Enqueue a kernel and wait for it; fails the test when the stream does. */
#define RUN(r, kernel, args)                                                                       \
    do {                                                                                           \
        struct zt_err err_;                                                                        \
        (r).dev->ops->kernel((r).stream, (args));                                                  \
        if (rig_sync(&(r), &err_))                                                                 \
            FAIL("%s (%s): %s", #kernel, (r).isa, err_.msg);                                       \
    } while (0)

/* ---- memory that every rig can reach: pinned where there is a GPU ---- */

struct test_block {
    _Alignas(64) struct test_block *next; /* of those that go with their test */
    size_t bytes;
};

static struct test_block *test_blocks;
static const char *test_blocks_of; /* whose they are */

/* Zeroed. (noinline: GCC 12 takes the memory for the variable that its address came in.) */
ZT_UNUSED __attribute__((noinline)) static void *test_alloc(size_t n, size_t each)
{
    struct zt_dev *gpu = test_gpu_open();
    struct zt_err err;
    void *p = NULL;
    size_t bytes = sizeof(struct test_block) + n * each;
    if (!gpu) { /* to the byte: the sanitizers guard the end */
        if (posix_memalign(&p, _Alignof(struct test_block), bytes))
            abort();
        memset(p, 0, bytes);
    } else if (gpu->ops->alloc_host(gpu, bytes, &p, &err)) {
        abort();
    }
    struct test_block *b = p;
    b->bytes = bytes;
    return b + 1;
}

static inline void test_free(void *p)
{
    struct test_block *b = p;
    if (!p)
        return;
    b--;
    if (test_gpu.memory)
        test_gpu.memory->ops->free_host(test_gpu.memory, b, b->bytes);
    else
        free(b);
}

static inline void test_free_blocks(void)
{
    while (test_blocks) {
        struct test_block *next = test_blocks->next;
        test_free(test_blocks + 1);
        test_blocks = next;
    }
}

/* A copy of `bytes` bytes, or zeros where `from` is NULL, until the test ends. */
static inline void *test_share(const void *from, size_t bytes)
{
    if (test_blocks_of != zt_test_name)
        test_free_blocks();
    test_blocks_of = zt_test_name;
    void *p = test_alloc(bytes, 1);
    struct test_block *b = (struct test_block *)p - 1;
    b->next = test_blocks;
    test_blocks = b;
    return from ? memcpy(p, from, bytes) : p;
}

/* SHARED(type, initialisers...): one of them; SHARED_ARRAY(type, n): n zeros; both until the test ends. */
#define SHARED(type, ...) ((type *)test_share(&(type){__VA_ARGS__}, sizeof(type)))
#define SHARED_ARRAY(type, n) ((type *)test_share(NULL, (size_t)(n) * sizeof(type)))

static void test_gpu_close(void)
{
    test_free_blocks();
    if (test_gpu.memory)
        test_gpu.backend->dev_free(test_gpu.memory);
}

/* ---- tensors: values in float64 beside the bytes that the kernel sees ---- */

struct tensor {
    struct zt_ref ref;
    int64_t n;
    double *val; /* exactly what ref holds */
};

static inline double tensor_get(struct zt_ref r, int64_t i)
{
    if (r.dtype == ZT_F32)
        return (double)((const float *)r.ptr)[i];
    uint16_t h = ((const uint16_t *)r.ptr)[i];
    return (double)(r.dtype == ZT_BF16 ? zt_bf16_to_f32(h) : zt_f16_to_f32(h));
}

static inline void tensor_set(struct zt_ref r, int64_t i, double x)
{
    if (r.dtype == ZT_F32)
        ((float *)r.ptr)[i] = (float)x;
    else
        ((uint16_t *)r.ptr)[i] =
            r.dtype == ZT_BF16 ? zt_f32_to_bf16((float)x) : zt_f32_to_f16((float)x);
}

/* Normal numbers times scale plus shift; `stream` makes tensors differ. */
static inline struct tensor tensor_random(int64_t n, enum zt_dtype t, uint64_t stream, double scale,
                                          double shift)
{
    struct tensor x = {{test_alloc((size_t)n, zt_dtype_bytes(t)), t}, n, NULL};
    float *noise = zt_xcalloc((size_t)n, sizeof *noise);
    x.val = zt_xcalloc((size_t)n, sizeof *x.val);
    zt_rng_normal(1, ZT_RNG_INIT, stream, 0, n, noise);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(x.ref, i, (double)noise[i] * scale + shift);
        x.val[i] = tensor_get(x.ref, i);
    }
    free(noise);
    return x;
}

/* For results: NaN, so that what the kernel leaves out is seen. val is for the expected values. */
static inline struct tensor tensor_out(int64_t n, enum zt_dtype t)
{
    struct tensor x = {{test_alloc((size_t)n, zt_dtype_bytes(t)), t}, n, NULL};
    x.val = zt_xcalloc((size_t)n, sizeof *x.val);
    memset(x.ref.ptr, 0xff, (size_t)n * zt_dtype_bytes(t));
    return x;
}

static inline struct tensor tensor_copy(const struct tensor *x)
{
    struct tensor y = tensor_out(x->n, x->ref.dtype);
    memcpy(y.ref.ptr, x->ref.ptr, (size_t)x->n * zt_dtype_bytes(x->ref.dtype));
    memcpy(y.val, x->val, (size_t)x->n * sizeof *x->val);
    return y;
}

static inline void tensor_free(struct tensor *x)
{
    test_free(x->ref.ptr);
    free(x->val);
    memset(x, 0, sizeof *x);
}

/* One rounding to the result's type, relative. */
static inline double dtype_eps(enum zt_dtype t)
{
    return t == ZT_BF16 ? 1.0 / 256 : t == ZT_F16 ? 1.0 / 2048 : 0;
}

/* Worst |got - want| beyond the rounding to the type, relative to 1 + |want|; -1 for NaN. */
static inline double tensor_error(struct zt_ref got, const double *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(tensor_get(got, i) - want[i]);
        if (!(d < INFINITY))
            return -1;
        d = (d - dtype_eps(got.dtype) * fabs(want[i])) / (1 + fabs(want[i]));
        worst = ZT_MAX(worst, d);
    }
    return worst;
}

#define CHECK_TENSOR(r, what, got, want, n, tol)                                                   \
    do {                                                                                           \
        double error_ = tensor_error((got), (want), (n));                                          \
        if (!(error_ >= 0 && error_ <= (tol)))                                                     \
            FAIL("%s, %s, %s, %d threads: error %g, tolerance %g", (what), (r).isa,                \
                 zt_dtype_name((got).dtype), (r).n_threads, error_, (double)(tol));                \
    } while (0)

/* ---- dropout ---- */

/* What an element of sequence `index` of the micro-batch is multiplied by; dev/dropout.h's words. */
static inline double drop_factor(const struct zt_dropout *d, int64_t index, int64_t head,
                                 int64_t row, int64_t column)
{
    if (!d->threshold)
        return 1;
    const struct zt_drop_key key = zt_drop_key(d, index);
    const int64_t group = column / 64, m = column % 64 / 8, j = column % 8;
    const struct zt_philox_block b =
        zt_drop_block(&key, (uint32_t)head, (uint32_t)row, (uint32_t)(8 * group + j));
    const uint32_t number = m % 2 ? b.v[m / 2] >> 16 : b.v[m / 2] & 0xffff;
    return number < d->threshold ? 0 : 65536.0 / (65536.0 - d->threshold);
}

/* ---- gradients ---- */

/* out[i] = d f / d x[i] by central differences; f reads x through its context. */
static inline void differences(double (*f)(void *ctx), void *ctx, double *x, int64_t n, double *out)
{
    const double h = 1e-4;
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i], up, down;
        x[i] = keep + h;
        up = f(ctx);
        x[i] = keep - h;
        down = f(ctx);
        x[i] = keep;
        out[i] = (up - down) / (2 * h);
    }
}

static inline double dot(const double *a, const double *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

#endif
