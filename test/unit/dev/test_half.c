#include "dev_test.h"

/* A GPU makes one NaN of all. */
static bool same_value(const struct rig *r, float got, float want)
{
    return zt_f32_bits(got) == zt_f32_bits(want) ||
           (r->dev->ops->kind == ZT_DEV_CUDA && isnan(got) && isnan(want));
}

/* Every instruction set converts as base/dtype.h does, whose values test_base.c checks. */
TEST(dev_cast_fp16_every_value)
{
    uint16_t *src = SHARED_ARRAY(uint16_t, 65536);
    float *dst = SHARED_ARRAY(float, 65536);
    for (int i = 0; i < 65536; i++)
        src[i] = (uint16_t)i;
    FOR_EACH_RIG(r)
    {
        struct zt_cast a = {65536, {src, ZT_F16}, {dst, ZT_F32}, false};
        RUN(r, cast, &a);
        for (int i = 0; i < 65536; i++)
            if (!same_value(&r, dst[i], zt_f16_to_f32((uint16_t)i)))
                FAIL("%s: %04x becomes %08x", r.isa, i, zt_f32_bits(dst[i]));
    }
}

/* Bit patterns of all kinds: near the ties, in and around the subnormals, infinities, NaNs. */
TEST(dev_cast_to_fp16)
{
    enum { N = 1 << 20 };
    float *src = SHARED_ARRAY(float, N);
    uint16_t *dst = SHARED_ARRAY(uint16_t, N);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t bits = i * 4096 + (uint32_t[]){0, 1, 0xfff, 0x800}[i % 4];
        src[i] = zt_bits_f32(bits);
    }
    FOR_EACH_RIG(r)
    {
        struct zt_cast a = {N - 3, {src, ZT_F32}, {dst, ZT_F16}, false};
        RUN(r, cast, &a);
        for (int i = 0; i < N - 3; i++)
            if (!same_value(&r, zt_f16_to_f32(dst[i]), zt_f16_to_f32(zt_f32_to_f16(src[i]))))
                FAIL("%s: %08x becomes %04x, not %04x", r.isa, zt_f32_bits(src[i]), dst[i],
                     zt_f32_to_f16(src[i]));
    }
}

/* Adding into fp16 rounds once. */
TEST(dev_cast_accumulates_in_fp16)
{
    enum { N = 2000 };
    struct tensor x = tensor_random(N, ZT_F32, 1, 1, 0), y = tensor_random(N, ZT_F16, 2, 1, 0);
    FOR_EACH_RIG(r)
    {
        struct tensor sum = tensor_copy(&y);
        struct zt_cast a = {N, x.ref, sum.ref, true};
        RUN(r, cast, &a);
        for (int i = 0; i < N; i++)
            CHECK_INT(((uint16_t *)sum.ref.ptr)[i],
                      zt_f32_to_f16((float)y.val[i] + (float)x.val[i]));
        tensor_free(&sum);
    }
    tensor_free(&x);
    tensor_free(&y);
}

TEST_MAIN()
