#include "coll/combine.h"

#include "base/half.h"
#include "coll/stream.h"

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)

/*
 * Elements that are summed before they are stored. Few, so that the processor overlaps the arithmetic
 * on one block with fetching the next.
 */
enum { BLOCK = 512 };

/* How an element enters the accumulator. */
#define SAME(x) (x)

/* In the order of the sources: `a` holds what came before. A NaN on either side wins. */
#define ADD(a, b) ((a) + (b))
#define ADD_I32(a, b) (int32_t)((uint32_t)(a) + (uint32_t)(b))
#define ADD_I64(a, b) (int64_t)((uint64_t)(a) + (uint64_t)(b))
#define MAX(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

#define SIMD _Pragma("omp simd")

typedef void kernel1_fn(void *restrict acc, const void *restrict x, int64_t n);
typedef void kernel2_fn(void *restrict acc, const void *restrict x, const void *restrict y,
                        int64_t n);

/* NAME_1: acc = acc op x; NAME_2, which begins: acc = x op y. */
#define DEFINE_OP(name, acc_type, elem_type, load, op)                                             \
    static void name##_1(void *restrict acc_, const void *restrict x_, int64_t n)                  \
    {                                                                                              \
        acc_type *restrict acc = acc_;                                                             \
        const elem_type *restrict x = x_;                                                          \
        SIMD for (int64_t i = 0; i < n; i++) acc[i] = op(acc[i], load(x[i]));                      \
    }                                                                                              \
    static void name##_2(void *restrict acc_, const void *restrict x_, const void *restrict y_,    \
                         int64_t n)                                                                \
    {                                                                                              \
        acc_type *restrict acc = acc_;                                                             \
        const elem_type *restrict x = x_, *restrict y = y_;                                        \
        SIMD for (int64_t i = 0; i < n; i++) acc[i] = op(load(x[i]), load(y[i]));                  \
    }

#define DEFINE_KERNELS(name, acc_type, elem_type, load, add)                                       \
    static void name##_load(void *restrict acc_, const void *restrict x_, int64_t n)               \
    {                                                                                              \
        acc_type *restrict acc = acc_;                                                             \
        const elem_type *restrict x = x_;                                                          \
        SIMD for (int64_t i = 0; i < n; i++) acc[i] = load(x[i]);                                  \
    }                                                                                              \
    DEFINE_OP(name##_sum, acc_type, elem_type, load, add)                                          \
    DEFINE_OP(name##_max, acc_type, elem_type, load, MAX)

DEFINE_KERNELS(f32, float, float, SAME, ADD)
DEFINE_KERNELS(bf16, float, uint16_t, zt_bf16_to_f32, ADD)
DEFINE_KERNELS(i32, int32_t, int32_t, SAME, ADD_I32)
DEFINE_KERNELS(i64, int64_t, int64_t, SAME, ADD_I64)
DEFINE_KERNELS(f64, double, double, SAME, ADD)

/* fp16: a block is converted by its own instructions, then worked on as fp32. */
static void f16_load(void *restrict acc, const void *restrict x, int64_t n)
{
    zt_f16_widen(x, n, acc);
}

#define DEFINE_F16(op)                                                                             \
    static void f16_##op##_1(void *restrict acc, const void *restrict x, int64_t n)                \
    {                                                                                              \
        float wide[BLOCK];                                                                         \
        zt_f16_widen(x, n, wide);                                                                  \
        f32_##op##_1(acc, wide, n);                                                                \
    }                                                                                              \
    static void f16_##op##_2(void *restrict acc, const void *restrict x, const void *restrict y,   \
                             int64_t n)                                                            \
    {                                                                                              \
        zt_f16_widen(x, n, acc);                                                                   \
        f16_##op##_1(acc, y, n);                                                                   \
    }

DEFINE_F16(sum)
DEFINE_F16(max)

#define KERNELS(name)                                                                              \
    {                                                                                              \
        name##_load, {name##_sum_1, name##_max_1},                                                 \
        {                                                                                          \
            name##_sum_2, name##_max_2                                                             \
        }                                                                                          \
    }

static const struct {
    kernel1_fn *load, *one[2]; /* one and two by enum zt_redop */
    kernel2_fn *two[2];
} kernels[ZT_N_DTYPES] = {
    [ZT_F32] = KERNELS(f32), [ZT_BF16] = KERNELS(bf16), [ZT_F16] = KERNELS(f16),
    [ZT_I32] = KERNELS(i32), [ZT_I64] = KERNELS(i64),   [ZT_F64] = KERNELS(f64),
};

static bool sums_in_f32(enum zt_dtype t)
{
    return t == ZT_F32 || t == ZT_BF16 || t == ZT_F16;
}

/* acc = all sources of elements [at, at + n), combined. */
static void gather_sources(const struct zt_combine *a, void *acc, int64_t at, int64_t n)
{
    size_t skip = (size_t)at * zt_dtype_bytes(a->dtype);
    const char *const *src = (const char *const *)a->src;
    if (a->n_src == 1)
        kernels[a->dtype].load(acc, src[0] + skip, n);
    else
        kernels[a->dtype].two[a->op](acc, src[0] + skip, src[1] + skip, n);
    for (int j = 2; j < a->n_src; j++)
        kernels[a->dtype].one[a->op](acc, src[j] + skip, n);
}

/* The sums as elements of `dtype`: rounded into `room`, or themselves. */
static const void *rounded(const void *acc, uint16_t *restrict room, int64_t n, enum zt_dtype dtype)
{
    const float *restrict x = acc;
    if (dtype == ZT_BF16) {
        SIMD for (int64_t i = 0; i < n; i++) room[i] = zt_f32_to_bf16(x[i]);
        return room;
    }
    if (dtype == ZT_F16) {
        zt_f16_narrow(x, n, room);
        return room;
    }
    return acc;
}

zt_combine_fn JOIN(zt_combine, ZT_ISA);

void JOIN(zt_combine, ZT_ISA)(const struct zt_combine *a)
{
    ZT_ASSERT(a->dst_dtype == a->dtype || (sums_in_f32(a->dtype) && sums_in_f32(a->dst_dtype)));
    union {
        float f32[BLOCK];
        int32_t i32[BLOCK];
        int64_t i64[BLOCK];
        double f64[BLOCK];
    } acc; /* in the type that the kernels of a->dtype have for sums */
    _Alignas(64) uint16_t room[BLOCK];
    size_t dst_bytes = zt_dtype_bytes(a->dst_dtype);
    bool streams = (size_t)a->count >= STREAM_MIN_BYTES / dst_bytes;
    for (int64_t at = 0; at < a->count; at += BLOCK) {
        int64_t n = ZT_MIN(BLOCK, a->count - at);
        gather_sources(a, &acc, at, n);
        const void *out = rounded(&acc, room, n, a->dst_dtype);
        for (int d = 0; d < a->n_dst; d++) {
            char *dst = (char *)a->dst[d] + (size_t)at * dst_bytes;
            if (streams)
                stream_copy(dst, out, (size_t)n * dst_bytes);
            else
                memcpy(dst, out, (size_t)n * dst_bytes);
        }
    }
    if (streams)
        stream_end();
}
