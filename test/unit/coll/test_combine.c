#include "coll/combine.h"

#include "coll/stream.h"

#include "harness.h"

enum { N = 5000 };

/* Every build that this CPU can run must give the same bits. */
static zt_combine_fn *combine;

#define EACH_ISA(check)                                                                            \
    do {                                                                                           \
        for (int isa_ = 0; isa_ < ZT_N_ISAS; isa_++) {                                             \
            combine = zt_combine_build((enum zt_isa)isa_);                                         \
            if (zt_isa_supported((enum zt_isa)isa_))                                               \
                check;                                                                             \
            RETURN_IF_FAILED();                                                                    \
        }                                                                                          \
    } while (0)

static float value(uint32_t seed, int64_t i)
{
    uint32_t h = (seed * 2654435761u + (uint32_t)i) * 2246822519u;
    h = (h ^ h >> 15) * 3266489917u;
    float x = (float)(int32_t)(h ^ h >> 16) * (1.0f / 2147483648.0f);
    return i % 7 ? x : x * 300.0f;
}

static void set16(uint16_t *x, enum zt_dtype t, uint32_t seed)
{
    for (int64_t i = 0; i < N; i++)
        x[i] = t == ZT_BF16 ? zt_f32_to_bf16(value(seed, i)) : zt_f32_to_f16(value(seed, i));
}

static float widen(uint16_t x, enum zt_dtype t)
{
    return t == ZT_BF16 ? zt_bf16_to_f32(x) : zt_f16_to_f32(x);
}

/* Sums of 16-bit elements: in fp32, in order, rounded once; to 16 bits and to fp32. */
static void check_16bit(enum zt_dtype t)
{
    static uint16_t src[3][N], out[N];
    static float wide[N];
    for (uint32_t j = 0; j < 3; j++)
        set16(src[j], t, j + 1);
    const void *srcs[] = {src[0], src[1], src[2]};
    void *dst = out, *wide_dst = wide;
    struct zt_combine a = {3, 1, srcs, &dst, t, t, ZT_SUM, N};
    combine(&a);
    a.dst = &wide_dst;
    a.dst_dtype = ZT_F32;
    combine(&a);
    int rounds_matter = 0;
    for (int i = 0; i < N; i++) {
        float sum = widen(src[0][i], t) + widen(src[1][i], t);
        uint16_t twice = t == ZT_BF16 ? zt_f32_to_bf16(sum) : zt_f32_to_f16(sum);
        sum += widen(src[2][i], t);
        CHECK_INT(out[i], t == ZT_BF16 ? zt_f32_to_bf16(sum) : zt_f32_to_f16(sum));
        CHECK_INT(zt_f32_bits(wide[i]), zt_f32_bits(sum));
        float rounded_twice = widen(twice, t) + widen(src[2][i], t);
        rounds_matter += zt_f32_bits(rounded_twice) != zt_f32_bits(sum);
    }
    CHECK(rounds_matter > N / 10);
}

TEST(sums_of_bf16_round_once)
{
    EACH_ISA(check_16bit(ZT_BF16));
}

TEST(sums_of_fp16_round_once)
{
    EACH_ISA(check_16bit(ZT_F16));
}

/* Every fp16 there is, by this build's instructions, is what the portable conversion says. */
static void check_every_fp16(void)
{
    static uint16_t src[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        src[i] = (uint16_t)i;
    const void *one = src;
    void *dsts[] = {wide, back};
    struct zt_combine a = {1, 1, &one, &dsts[0], ZT_F16, ZT_F32, ZT_SUM, 65536};
    combine(&a);
    a.dst = &dsts[1];
    a.dst_dtype = ZT_F16;
    combine(&a);
    for (int i = 0; i < 65536; i++) {
        float f = zt_f16_to_f32((uint16_t)i);
        CHECK_INT(zt_f32_bits(wide[i]), zt_f32_bits(f));
        CHECK_INT(back[i], zt_f32_to_f16(f));
    }
}

TEST(every_fp16_is_converted_alike)
{
    EACH_ISA(check_every_fp16());
}

static void check_sums_of_fp32_keep_the_order(void)
{
    static float src[4][N], out[N];
    const void *srcs[] = {src[0], src[1], src[2], src[3]};
    void *dst = out;
    int order_matters = 0;
    for (uint32_t j = 0; j < 4; j++)
        for (int i = 0; i < N; i++)
            src[j][i] = value(j, i);
    struct zt_combine a = {4, 1, srcs, &dst, ZT_F32, ZT_F32, ZT_SUM, N};
    combine(&a);
    for (int i = 0; i < N; i++) {
        float forth = ((src[0][i] + src[1][i]) + src[2][i]) + src[3][i];
        float back = ((src[3][i] + src[2][i]) + src[1][i]) + src[0][i];
        CHECK_INT(zt_f32_bits(out[i]), zt_f32_bits(forth));
        order_matters += zt_f32_bits(forth) != zt_f32_bits(back);
    }
    CHECK(order_matters > N / 10);
}

TEST(sums_of_fp32_keep_the_order)
{
    EACH_ISA(check_sums_of_fp32_keep_the_order());
}

static void check_sums_in_place_and_to_many(void)
{
    static float src[2][N], out[N], want[N];
    const void *srcs[] = {src[0], src[1]};
    void *dsts[] = {src[0], src[1], out};
    for (int i = 0; i < N; i++) {
        src[0][i] = value(1, i);
        src[1][i] = value(2, i);
        want[i] = src[0][i] + src[1][i];
    }
    struct zt_combine a = {2, 3, srcs, dsts, ZT_F32, ZT_F32, ZT_SUM, N};
    combine(&a);
    CHECK(!memcmp(src[0], want, sizeof want));
    CHECK(!memcmp(src[1], want, sizeof want));
    CHECK(!memcmp(out, want, sizeof want));
}

TEST(sums_in_place_and_to_many)
{
    EACH_ISA(check_sums_in_place_and_to_many());
}

static void check_whole_numbers_and_doubles_have_their_own_type(void)
{
    int64_t a[] = {INT64_C(1) << 53, INT64_MAX, -5}, b[] = {1, 1, 7}, c[3];
    int32_t d[] = {INT32_MAX, -3, 1 << 24}, e[] = {1, -4, 1}, f[3];
    double g[] = {1.0, 1e16, -1.0}, h[] = {1e-15, 1.0, NAN}, k[3];
    void *dst = c;
    struct zt_combine s = {2, 1, (const void *const[]){a, b}, &dst, ZT_I64, ZT_I64, ZT_SUM, 3};
    combine(&s);
    CHECK_INT(c[0], (INT64_C(1) << 53) + 1);
    CHECK_INT(c[1], INT64_MIN);
    s.op = ZT_MAX;
    combine(&s);
    CHECK_INT(c[1], INT64_MAX);
    CHECK_INT(c[2], 7);
    dst = f;
    s = (struct zt_combine){2, 1, (const void *const[]){d, e}, &dst, ZT_I32, ZT_I32, ZT_SUM, 3};
    combine(&s);
    CHECK_INT(f[0], INT32_MIN);
    CHECK_INT(f[2], (1 << 24) + 1);
    s.op = ZT_MAX;
    combine(&s);
    CHECK_INT(f[1], -3);
    dst = k;
    s = (struct zt_combine){2, 1, (const void *const[]){g, h}, &dst, ZT_F64, ZT_F64, ZT_SUM, 3};
    combine(&s);
    CHECK(k[0] == 1.0 + 1e-15 && k[0] != 1.0);
    s.op = ZT_MAX;
    combine(&s);
    CHECK(k[0] == 1.0 && isnan(k[2]));
}

TEST(whole_numbers_and_doubles_have_their_own_type)
{
    EACH_ISA(check_whole_numbers_and_doubles_have_their_own_type());
}

static void check_maximum_keeps_nan_on_either_side(void)
{
    float a[] = {NAN, 1, -INFINITY}, b[] = {1, NAN, -2}, out[3];
    void *dst = out;
    struct zt_combine s = {2, 1, (const void *const[]){a, b}, &dst, ZT_F32, ZT_F32, ZT_MAX, 3};
    combine(&s);
    CHECK(isnan(out[0]) && isnan(out[1]) && out[2] == -2);
}

TEST(maximum_keeps_nan_on_either_side)
{
    EACH_ISA(check_maximum_keeps_nan_on_either_side());
}

/* Streamed, to two places that are not aligned alike, one of them a source. */
static void check_large_sums(void)
{
    enum { LARGE = STREAM_MIN_BYTES / 2 + 1001 }; /* bf16 elements */
    uint16_t *src[2] = {malloc(LARGE * 2), malloc(LARGE * 2)}, *out = malloc(LARGE * 2 + 64);
    uint16_t *want = malloc(LARGE * 2);
    CHECK(src[0] && src[1] && out && want);
    for (int i = 0; i < LARGE; i++) {
        src[0][i] = zt_f32_to_bf16(value(1, i));
        src[1][i] = zt_f32_to_bf16(value(2, i));
        want[i] = zt_f32_to_bf16(zt_bf16_to_f32(src[0][i]) + zt_bf16_to_f32(src[1][i]));
    }
    const void *srcs[] = {src[0], src[1]};
    void *dsts[] = {src[1], out + 3};
    struct zt_combine s = {2, 2, srcs, dsts, ZT_BF16, ZT_BF16, ZT_SUM, LARGE};
    combine(&s);
    CHECK(!memcmp(src[1], want, LARGE * 2));
    CHECK(!memcmp(out + 3, want, LARGE * 2));
    free(src[0]);
    free(src[1]);
    free(out);
    free(want);
}

TEST(large_sums_are_streamed)
{
    EACH_ISA(check_large_sums());
}

/* Heads and tails of every alignment, below and above the size where stores stream. */
TEST(large_copies_copy_every_byte_and_no_other)
{
    enum { MAX = STREAM_MIN_BYTES + 64 * 3 };
    unsigned char *src = malloc(MAX + 256), *dst = malloc(MAX + 256);
    CHECK(src && dst);
    for (int i = 0; i < MAX + 256; i++)
        src[i] = (unsigned char)(i * 31 % 251);
    for (int shift = 0; shift < 66; shift += 11) {
        size_t bytes = (size_t)(MAX - shift * 6), from = (size_t)(66 - shift);
        memset(dst, 255, MAX + 256);
        zt_copy_large(dst + shift, src + from, bytes);
        CHECK(!memcmp(dst + shift, src + from, bytes));
        CHECK(dst[(size_t)shift + bytes] == 255 && (shift == 0 || dst[shift - 1] == 255));
    }
    zt_copy_large(dst, src, 0);
    free(src);
    free(dst);
}

TEST_MAIN()
