#include "harness.h"

#include "dev/step.h"

static struct zt_loss_scaler scaler(int hysteresis, int64_t window, bool consecutive)
{
    return (struct zt_loss_scaler){.min_scale = 1,
                                   .dynamic = 1,
                                   .consecutive = consecutive,
                                   .hysteresis = hysteresis,
                                   .patience = hysteresis,
                                   .window = window,
                                   .last_overflow = -1};
}

/* Case P01: the scale after each update, as DeepSpeed's rules have it. */
static const struct {
    const char *what, *flags; /* 1: overflow */
    float start;
    int hysteresis;
    int64_t window;
    bool consecutive;
    float want[16];
} sequences[] = {
    {"six overflows", "111111", 65536, 2, 1000, false, {65536, 32768, 16384, 8192, 4096, 2048}},
    {"hysteresis 2",
     "110000011000000",
     1024,
     2,
     4,
     false,
     {1024, 512, 512, 512, 512, 512, 1024, 1024, 512, 512, 512, 512, 512, 1024, 1024}},
    {"hysteresis 1",
     "110000011000000",
     1024,
     1,
     4,
     false,
     {512, 256, 256, 256, 256, 256, 512, 256, 128, 128, 128, 128, 128, 256, 256}},
    {"not refilled",
     "1010101010",
     1024,
     2,
     1000,
     false,
     {1024, 1024, 512, 512, 256, 256, 128, 128, 64, 64}},
    {"refilled on every clean step",
     "1010101010",
     1024,
     2,
     1000,
     true,
     {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024}},
    {"no overflow",
     "0000000000",
     1024,
     2,
     4,
     false,
     {1024, 1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096, 4096}},
    {"down to the minimum", "11111", 4, 1, 4, false, {2, 1, 1, 1, 1}},
};

TEST(dev_loss_scale_p01)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(sequences); i++) {
        struct zt_loss_scaler s =
            scaler(sequences[i].hysteresis, sequences[i].window, sequences[i].consecutive);
        float scale = sequences[i].start;
        for (int step = 0; sequences[i].flags[step]; step++) {
            scale = zt_loss_scale_next(&s, scale, step, sequences[i].flags[step] == '1');
            if (scale != sequences[i].want[step])
                FAIL("%s, step %d: scale %g, not %g", sequences[i].what, step, (double)scale,
                     (double)sequences[i].want[step]);
        }
    }
}

/* The same through STEP, which the step block's other values must not disturb. */
TEST(dev_loss_scale_in_the_step_block_p01)
{
    struct zt_step_block sb = {
        .adam_t = 1, .loss_scale = 1024, .beta1 = 0.9f, .scaler = scaler(2, 4, false)};
    for (int i = 0; sequences[1].flags[i]; i++) {
        sb.overflow = sequences[1].flags[i] == '1';
        sb.apply = !sb.overflow;
        zt_step_next(&sb);
        CHECK(sb.loss_scale == sequences[1].want[i]);
    }
    CHECK_INT(sb.skipped, 4);
    CHECK_INT(sb.adam_t, 12);
}

TEST(dev_loss_scale_static)
{
    struct zt_loss_scaler s = {0};
    for (int step = 0; step < 10; step++) {
        CHECK(zt_loss_scale_next(&s, 128, step, step % 2) == 128);
        CHECK(!zt_loss_scale_at_end(&s, 128));
    }
}

/* At the minimum an overflow has to be the last of the hysteresis before training stops. */
TEST(dev_loss_scale_says_when_it_is_at_its_end)
{
    struct zt_loss_scaler s = scaler(2, 4, false);
    float scale = 2;
    CHECK(!zt_loss_scale_at_end(&s, scale));
    scale = zt_loss_scale_next(&s, scale, 0, true); /* patience 2 -> 1 */
    CHECK(scale == 2 && !zt_loss_scale_at_end(&s, scale));
    scale = zt_loss_scale_next(&s, scale, 1, true);
    CHECK(scale == 1 && zt_loss_scale_at_end(&s, scale));
    for (int step = 2; step < 7; step++)
        scale = zt_loss_scale_next(&s, scale, step, false);
    CHECK(scale == 2 && !zt_loss_scale_at_end(&s, scale));
}

/* Gradients that are zero for ever do not take the scale to infinity. */
TEST(dev_loss_scale_stays_finite)
{
    struct zt_loss_scaler s = scaler(2, 1, false);
    float scale = 65536;
    for (int step = 0; step < 1000; step++)
        scale = zt_loss_scale_next(&s, scale, step, false);
    CHECK(scale > 1e37f && scale < 3e38f);
}

TEST_MAIN()
