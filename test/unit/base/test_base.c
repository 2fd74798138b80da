#include "harness.h"

#include <math.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/mesh.h"
#include "base/normal.h"
#include "base/rng.h"
#include "base/str.h"

TEST(base_parse_numbers)
{
    int64_t i;
    double d;
    CHECK(zt_parse_i64("010", &i));
    CHECK_INT(i, 10);
    CHECK(zt_parse_i64("-9223372036854775808", &i));
    CHECK(!zt_parse_i64("9223372036854775808", &i));
    CHECK(!zt_parse_i64("12:30", &i) && !zt_parse_i64("", &i) && !zt_parse_i64("-", &i));
    CHECK(zt_parse_f64("2e-5", &d) && d == 2e-5);
    CHECK(zt_parse_bytes("4096", &i) && i == 4096);
    CHECK(zt_parse_bytes("80GB", &i) && i == 80000000000);
    CHECK(zt_parse_bytes("1.5GiB", &i) && i == 1610612736);
    CHECK(zt_parse_bytes("300MB", &i) && i == 300000000);
    CHECK(zt_parse_bytes("2TiB", &i) && i == 2199023255552);
    static const char *const no_sizes[] = {"",    "0",     "-1",     "-1GB",   "GB",
                                           "80G", "80 GB", "0.1kBB", "1e30TB", "nanGB"};
    for (size_t k = 0; k < ZT_ARRAY_LEN(no_sizes); k++)
        CHECK(!zt_parse_bytes(no_sizes[k], &i));
    CHECK(zt_parse_f64(".95", &d) && d == .95);
    CHECK(zt_parse_f64("1.e-8", &d) && d == 1e-8);
    CHECK(!zt_parse_f64("nan", &d) && !zt_parse_f64("1e999", &d) && !zt_parse_f64("0x10", &d));
}

TEST(base_utf8_characters)
{
    static const struct {
        const char *text;
        size_t len;
        uint32_t code;
    } c[] = {
        {"a", 1, 'a'},
        {"\x7f", 1, 0x7f},
        {"\xc2\x80", 2, 0x80},
        {"\xc3\xa4z", 2, 0xe4},
        {"\xe2\x82\xac", 3, 0x20ac},
        {"\xef\xbf\xbd", 3, 0xfffd},
        {"\xf0\x9f\x98\x80", 4, 0x1f600},
        {"\xf4\x8f\xbf\xbf", 4, 0x10ffff},
        {"\x80", 0, 0}, /* nothing begins so */
        {"\xff", 0, 0},
        {"\xf8\x88\x80\x80", 0, 0}, /* five bytes */
        {"\xc0\xaf", 0, 0},         /* more bytes than needed */
        {"\xe0\x80\xaf", 0, 0},
        {"\xf0\x8f\xbf\xbf", 0, 0},
        {"\xed\xa0\x80", 0, 0},     /* a surrogate */
        {"\xf4\x90\x80\x80", 0, 0}, /* beyond the last */
        {"\xe2\x82", 0, 0},         /* cut by the NUL */
        {"\xe2\x82z", 0, 0},
    };
    uint32_t code;
    for (size_t i = 0; i < ZT_ARRAY_LEN(c); i++) {
        code = 0;
        CHECK_INT(zt_utf8_char(c[i].text, 4, &code), c[i].len);
        CHECK_INT(code, c[i].code);
    }
    CHECK_INT(zt_utf8_char("\xe2\x82\xac", 2, &code), 0); /* cut by n */
    CHECK_INT(zt_utf8_char("\xe2\x82\xac", 3, &code), 3);
}

TEST(base_nearest_key)
{
    static const char *const keys[] = {"train_batch_size", "gradient_clipping", "optimizer"};
    CHECK_STR(zt_nearest("train_batchsize", keys, 3), "train_batch_size");
    CHECK(!zt_nearest("quux", keys, 3));
    static const char *const options[] = {"step", "force",
                                          "help"}; /* exchanged letters are one error */
    CHECK_STR(zt_nearest("hlep", options, 3), "help");
    CHECK_STR(zt_nearest("FORCE", options, 3), "force");
}

/* Known answers of Random123's kat_vectors: philox4x32-10, zero and all-ones counter. */
TEST(base_philox_known_answer)
{
    struct zt_philox_block b = zt_philox(0x9E3779B97F4A7C15u * ZT_RNG_INIT, ZT_RNG_INIT, 0, 0);
    CHECK_INT(b.v[0], 0x6627e8d5);
    CHECK_INT(b.v[1], 0xe169c58d);
    CHECK_INT(b.v[2], 0xbc57ac4c);
    CHECK_INT(b.v[3], 0x9b00dbd8);
    uint64_t ones = ~(uint64_t)0;
    b = zt_philox(ones ^ 0x9E3779B97F4A7C15u * ZT_RNG_INIT, ZT_RNG_INIT, ones, ones);
    CHECK_INT(b.v[0], 0x408f276d);
    CHECK_INT(b.v[1], 0x41c83b0e);
    CHECK_INT(b.v[2], 0xa20bc7c6);
    CHECK_INT(b.v[3], 0x6d5451fd);
}

TEST(base_normal_is_addressed_by_element)
{
    float all[1000], part[77];
    double sum = 0, sq = 0;
    zt_rng_normal(7, ZT_RNG_INIT, 3, 0, 1000, all);
    zt_rng_normal(7, ZT_RNG_INIT, 3, 501, 77, part);
    CHECK(memcmp(part, all + 501, sizeof part) == 0);
    for (int i = 0; i < 1000; i++) {
        sum += (double)all[i];
        sq += (double)all[i] * (double)all[i];
    }
    CHECK_NEAR(sum / 1000, 0, 0.1);
    CHECK_NEAR(sq / 1000, 1, 0.15);
}

/* Number i of a tensor, by libm. */
static double normal_by_libm(uint64_t seed, uint64_t tensor, int64_t i)
{
    struct zt_philox_block b = zt_philox(seed, ZT_RNG_INIT, tensor, (uint64_t)(i / 4));
    const uint32_t *v = &b.v[i % 4 / 2 * 2];
    double r = sqrt(-2 * log(zt_uniform(v[0]))), turn = 2 * M_PI * zt_uniform(v[1]);
    return i % 2 ? r * sin(turn) : r * cos(turn);
}

/* Every instruction set gives the same bits, and they are the transform's: off by a rounding at most. */
TEST(base_normal_is_box_muller_in_every_build)
{
    enum { N = 100000, HEAD = 37 };
    const int64_t begin = (INT64_C(1) << 36) - 500; /* the block's number needs more than 32 bits */
    float *first = zt_xcalloc(N, sizeof *first), *other = zt_xcalloc(N, sizeof *other);
    zt_normal_build((enum zt_isa)0)(9, ZT_RNG_INIT, 5, begin, N, first);
    for (int isa = 1; isa < ZT_N_ISAS; isa++) {
        if (!zt_isa_supported((enum zt_isa)isa)) {
            printf("# no %s here: its normal numbers are not looked at\n",
                   zt_isa_what((enum zt_isa)isa));
            continue;
        }
        zt_normal_build((enum zt_isa)isa)(9, ZT_RNG_INIT, 5, begin, HEAD, other);
        zt_normal_build((enum zt_isa)isa)(9, ZT_RNG_INIT, 5, begin + HEAD, N - HEAD, other + HEAD);
        CHECK(memcmp(first, other, N * sizeof *first) == 0);
    }
    int n_rounded_otherwise = 0;
    for (int i = 0; i < N; i++) {
        double want = normal_by_libm(9, 5, begin + i);
        CHECK_NEAR((double)first[i], want, fabs(want) * 0x1p-23 + 1e-15);
        n_rounded_otherwise += first[i] != (float)want;
    }
    CHECK(n_rounded_otherwise < 5);
    free(first);
    free(other);
}

TEST(base_permutation_is_a_bijection)
{
    enum { N = 1000 };
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        unsigned char seen[N] = {0};
        int fixed = 0;
        for (int i = 0; i < N; i++) {
            int64_t j = zt_permute(42, epoch, N, i);
            CHECK(j >= 0 && j < N && !seen[j]);
            seen[j] = 1;
            fixed += j == i;
        }
        CHECK(fixed < 20);
    }
    CHECK_INT(zt_permute(1, 0, 1, 0), 0);
}

TEST(base_half_types_round_trip)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = zt_f16_to_f32((uint16_t)h), b = zt_bf16_to_f32((uint16_t)h);
        if (f == f)
            CHECK_INT(zt_f32_to_f16(f), h);
        if (b == b)
            CHECK_INT(zt_f32_to_bf16(b), h);
    }
    CHECK_INT(zt_f16_to_f32(0x0001) == 0x1p-24f, 1);
    CHECK_INT(zt_f16_to_f32(0x83ff) == -0x1.ff8p-15f, 1);
    CHECK_INT(zt_f32_to_f16(0x1p-25f), 0);           /* half of the least: a tie goes to even */
    CHECK_INT(zt_f32_to_f16(0x1.000002p-25f), 1);    /* and beyond it */
    CHECK_INT(zt_f32_to_f16(-0x1.ffcp-15f), 0x8400); /* the largest subnormal's neighbour */
    CHECK_INT(zt_f32_to_f16(NAN) & 0x7e00, 0x7e00);
    CHECK_INT(zt_f32_to_f16(65519.0f), 0x7bff);
    CHECK_INT(zt_f32_to_f16(65520.0f), 0x7c00);
    CHECK_INT(zt_f32_to_bf16(1.00390625f), 0x3f80); /* a tie goes to even */
}

TEST(base_mesh_groups)
{
    struct zt_mesh m = {{2, 3, 4, 1, 2}};
    CHECK_INT(zt_mesh_world(&m), 48);
    for (int r = 0; r < 48; r++) {
        int i = zt_group_index(&m, ZT_GROUP_SHARD, r);
        CHECK_INT(zt_group_member(&m, ZT_GROUP_SHARD, r, i), r);
        CHECK_INT(zt_group_member(&m, ZT_GROUP_WORLD, r, 17), 17);
    }
    CHECK_INT(zt_group_member(&m, ZT_GROUP_SHARD, 1, 3), 7);
}

TEST(base_err_wrap_cuts_long_messages)
{
    struct zt_err err;
    char x[ZT_ERR_MSG_BYTES];
    memset(x, 'x', sizeof x - 1);
    x[sizeof x - 1] = '\0';
    zt_err_set(&err, ZT_EIO, "b");
    CHECK_INT(zt_err_wrap(&err, "a"), ZT_EIO);
    CHECK_STR(err.msg, "a: b");
    zt_err_set(&err, ZT_EIO, "%s", x);
    zt_err_wrap(&err, "a");
    CHECK_INT(strlen(err.msg), sizeof x - 1);
    CHECK(strncmp(err.msg, "a: xxx", 6) == 0);
    zt_err_wrap(&err, "%s", x);
    CHECK_INT(strlen(err.msg), sizeof x - 1);
}

/* Texts of all lengths, across the ends of chunks, stay as they were written; what is allocated behind them is zero. */
TEST(arena_printf_across_chunks)
{
    enum { N = 600 };
    struct zt_arena arena = {0};
    const char *texts[N];
    for (int i = 0; i < N; i++) {
        texts[i] = zt_arena_printf(&arena, "%d %*d", i, i * 7 % 1999, i);
        const unsigned char *zeros = zt_arena_alloc(&arena, 48, 1);
        for (int j = 0; j < 48; j++)
            CHECK_INT(zeros[j], 0);
    }
    texts[0] = zt_arena_printf(&arena, "%*d", 200000, 7); /* longer than a chunk */
    CHECK_INT(strlen(texts[0]), 200000);
    for (int i = 1; i < N; i++) {
        char expected[2100];
        snprintf(expected, sizeof expected, "%d %*d", i, i * 7 % 1999, i);
        CHECK_STR(texts[i], expected);
    }
    zt_arena_release(&arena);
}

TEST_MAIN()
