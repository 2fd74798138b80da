#include "coll/combine.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    BLOCK = 2048, /* elements: one block of fp32 and its sources stay in the L1 cache */
    STREAM_BYTES = 256 * 1024, /* from here on stores go around the cache */
};

/* ThreadSanitizer does not see streaming stores. */
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
static void stream(char *dst, const char *src, size_t bytes)
{
    size_t head = -(uintptr_t)dst & 63;
    head = ZT_MIN(head, bytes);
    memcpy(dst, src, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(src + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(src + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(src + i + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(src + i + 48));
        _mm_stream_si128((__m128i *)(dst + i), a);
        _mm_stream_si128((__m128i *)(dst + i + 16), b);
        _mm_stream_si128((__m128i *)(dst + i + 32), c);
        _mm_stream_si128((__m128i *)(dst + i + 48), d);
    }
    memcpy(dst + i, src + i, bytes - i);
}

/* Streaming stores are weakly ordered: without this a release store could overtake them. */
static void stream_end(void)
{
    _mm_sfence();
}
#else
static void stream(char *dst, const char *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

static void stream_end(void)
{
}
#endif

void zt_copy_large(void *dst, const void *src, size_t bytes)
{
    if (bytes < STREAM_BYTES) {
        memcpy(dst, src, bytes);
        return;
    }
    stream(dst, src, bytes);
    stream_end();
}

/* How an element enters the accumulator. */
#define SAME(x) (x)

/* In the order of the sources: `a` holds what came before. A NaN on either side wins. */
#define ADD(a, b) ((a) + (b))
#define ADD_I32(a, b) (int32_t)((uint32_t)(a) + (uint32_t)(b))
#define ADD_I64(a, b) (int64_t)((uint64_t)(a) + (uint64_t)(b))
#define MAX(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* acc[i] = expression of i, vectorised at any optimisation level. */
#define EACH(expression) _Pragma("omp simd") for (int64_t i = 0; i < n; i++) acc[i] = (expression)

/* NAME_first: acc = src; NAME_sum and NAME_max: acc = acc op src. */
#define DEFINE_KERNELS(name, acc_type, elem_type, load, add)                                       \
    static void name##_first(void *restrict acc_, const void *restrict src_, int64_t n)            \
    {                                                                                              \
        acc_type *restrict acc = acc_;                                                             \
        const elem_type *restrict src = src_;                                                      \
        EACH(load(src[i]));                                                                        \
    }                                                                                              \
    static void name##_sum(void *restrict acc_, const void *restrict src_, int64_t n)              \
    {                                                                                              \
        acc_type *restrict acc = acc_;                                                             \
        const elem_type *restrict src = src_;                                                      \
        EACH(add(acc[i], load(src[i])));                                                           \
    }                                                                                              \
    static void name##_max(void *restrict acc_, const void *restrict src_, int64_t n)              \
    {                                                                                              \
        acc_type *restrict acc = acc_;                                                             \
        const elem_type *restrict src = src_;                                                      \
        EACH(MAX(acc[i], load(src[i])));                                                           \
    }

DEFINE_KERNELS(f32, float, float, SAME, ADD)
DEFINE_KERNELS(bf16, float, uint16_t, zt_bf16_to_f32, ADD)
DEFINE_KERNELS(f16, float, uint16_t, zt_f16_to_f32, ADD)
DEFINE_KERNELS(i32, int32_t, int32_t, SAME, ADD_I32)
DEFINE_KERNELS(i64, int64_t, int64_t, SAME, ADD_I64)
DEFINE_KERNELS(f64, double, double, SAME, ADD)

typedef void kernel_fn(void *restrict acc, const void *restrict src, int64_t n);

static const struct {
    kernel_fn *first, *op[2]; /* op by enum zt_redop */
} kernels[ZT_N_DTYPES] = {
    [ZT_F32] = {f32_first, {f32_sum, f32_max}}, [ZT_BF16] = {bf16_first, {bf16_sum, bf16_max}},
    [ZT_F16] = {f16_first, {f16_sum, f16_max}}, [ZT_I32] = {i32_first, {i32_sum, i32_max}},
    [ZT_I64] = {i64_first, {i64_sum, i64_max}}, [ZT_F64] = {f64_first, {f64_sum, f64_max}},
};

static bool sums_in_f32(enum zt_dtype t)
{
    return t == ZT_F32 || t == ZT_BF16 || t == ZT_F16;
}

/* The accumulator as elements of `dtype`: rounded into `room`, or itself. */
static const void *rounded(const void *sums, uint16_t *restrict room, int64_t n,
                           enum zt_dtype dtype)
{
    const float *restrict x = sums;
    if (dtype == ZT_BF16) {
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) room[i] = zt_f32_to_bf16(x[i]);
        return room;
    }
    if (dtype == ZT_F16) {
        for (int64_t i = 0; i < n; i++)
            room[i] = zt_f32_to_f16(x[i]);
        return room;
    }
    return sums;
}

void zt_combine(const struct zt_combine *a)
{
    ZT_ASSERT(a->dst_dtype == a->dtype || (sums_in_f32(a->dtype) && sums_in_f32(a->dst_dtype)));
    union {
        float f32[BLOCK];
        int32_t i32[BLOCK];
        int64_t i64[BLOCK];
        double f64[BLOCK];
    } acc; /* sums, in the type that the kernels of a->dtype have for them */
    _Alignas(64) uint16_t room[BLOCK];
    size_t src_bytes = zt_dtype_bytes(a->dtype), dst_bytes = zt_dtype_bytes(a->dst_dtype);
    bool streams = (size_t)a->count >= STREAM_BYTES / dst_bytes;
    for (int64_t at = 0; at < a->count; at += BLOCK) {
        int64_t n = ZT_MIN(BLOCK, a->count - at);
        size_t src_at = (size_t)at * src_bytes, dst_at = (size_t)at * dst_bytes;
        kernels[a->dtype].first(&acc, (const char *)a->src[0] + src_at, n);
        for (int j = 1; j < a->n_src; j++)
            kernels[a->dtype].op[a->op](&acc, (const char *)a->src[j] + src_at, n);
        const void *out = rounded(&acc, room, n, a->dst_dtype);
        for (int d = 0; d < a->n_dst; d++) {
            if (streams)
                stream((char *)a->dst[d] + dst_at, out, (size_t)n * dst_bytes);
            else
                memcpy((char *)a->dst[d] + dst_at, out, (size_t)n * dst_bytes);
        }
    }
    if (streams)
        stream_end();
}
