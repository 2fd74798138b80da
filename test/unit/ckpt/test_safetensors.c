#include "harness.h"

#include "ckpt/safetensors.h"
#include "unit/ckpt/st_find.h"
#include "unit/ckpt/st_writer.h"

TEST(safetensors_fixture)
{
    struct zt_st_file f;
    struct zt_err err;
    CHECK_OK(zt_st_open("test/cases/fixture_gpt2/model.safetensors", &f, &err), err);
    CHECK_INT(f.n_tensors, 28);
    int64_t n = 0;
    for (int i = 0; i < f.n_tensors; i++)
        n += f.tensors[i].n_elems;
    CHECK_INT(n, 572);
    const struct zt_st_tensor *t = st_find(&f, "transformer.h.1.attn.c_attn.weight");
    CHECK(t && t->dtype == ZT_F32 && t->n_dims == 2 && t->dims[0] == 4 && t->dims[1] == 12);
    CHECK(!st_find(&f, "lm_head.weight"));
    zt_st_close(&f);
    CHECK_OK(zt_st_open("test/cases/fixture_llama/model.safetensors", &f, &err), err);
    CHECK_INT(f.n_tensors, 21);
    CHECK(st_find(&f, "lm_head.weight"));
    zt_st_close(&f);
}

/* A header of odd length leaves every tensor unaligned. */
TEST(safetensors_reads_unaligned_types)
{
    static const float f32[] = {1.5f, -2, 3};
    static const uint16_t f16[] = {0x3c00, 0xc000, 0x0001}, bf16[] = {0x3f80, 0xc000, 0x4040};
    struct st_writer w = {0};
    struct zt_str bytes = {0};
    st_put(&w, "u", "U8", "[1]", "x", 1);
    st_put(&w, "a", "F32", "[3]", f32, sizeof f32);
    st_put(&w, "b", "F16", "[3,1]", f16, sizeof f16);
    st_put(&w, "c", "BF16", "[1,3]", bf16, sizeof bf16);
    st_put(&w, "s", "F32", "[]", f32, 4);
    st_put(&w, "e", "F32", "[0,7]", NULL, 0);
    zt_str_puts(&w.header, "\"__metadata__\":{\"format\":\"pt\"},");
    st_finish(&w, &bytes);
    struct zt_st_file f;
    struct zt_err err;
    float got[3];
    CHECK_OK(zt_st_parse("mem", bytes.buf, bytes.len, &f, &err), err);
    CHECK_INT(f.n_tensors, 6);
    zt_st_read_f32(st_find(&f, "a"), 0, 3, got);
    CHECK(memcmp(got, f32, sizeof f32) == 0);
    zt_st_read_f32(st_find(&f, "a"), 1, 2, got);
    CHECK(got[0] == -2 && got[1] == 3);
    zt_st_read_f32(st_find(&f, "b"), 0, 3, got);
    CHECK(got[0] == 1 && got[1] == -2 && got[2] == 0x1p-24f);
    zt_st_read_f32(st_find(&f, "c"), 1, 2, got);
    CHECK(got[0] == -2 && got[1] == 3);
    CHECK_INT(st_find(&f, "s")->n_elems, 1);
    CHECK_INT(st_find(&f, "s")->n_dims, 0);
    CHECK_INT(st_find(&f, "e")->n_elems, 0);
    CHECK_INT(st_find(&f, "u")->dtype, -1);
    CHECK_STR(st_find(&f, "u")->dtype_name, "U8");
    zt_st_close(&f);
    zt_str_release(&bytes);
}

#define T(name, shape, begin, end)                                                                 \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

TEST(safetensors_bad_headers)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *message;
    } cases[] = {
        {"", 0, "begin with '{'"},
        {" {}", 0, "begin with '{'"},
        {"[]", 0, "begin with '{'"},
        {"{", 0, "header, byte"},
        {"{}", 4, "4 bytes of data, but the tensors end at byte 0"},
        {"{" T("a", "[1]", "0", "4") "," T("a", "[1]", "4", "8") "}", 8, "duplicate"},
        {"{" T("a", "[1]", "0", "4") "," T("b", "[1]", "2", "6") "}", 6, "inside another tensor"},
        {"{" T("a", "[1]", "0", "4") "," T("b", "[1]", "0", "4") "}", 4, "inside another tensor"},
        {"{" T("a", "[1]", "0", "4") "," T("b", "[1]", "5", "9") "}", 9, "behind a hole"},
        {"{" T("a", "[1]", "1", "5") "}", 5, "behind a hole"},
        {"{" T("a", "[1]", "0", "4") "}", 5, "end at byte 4"},
        {"{" T("a", "[1]", "0", "4") "}", 3, "not inside the 3 bytes"},
        {"{" T("a", "[2]", "0", "4") "}", 4, "2 elements of 4"},
        {"{" T("a", "[1]", "4", "0") "}", 4, "[4, 0]"},
        {"{" T("a", "[1]", "-4", "0") "}", 4, "[-4, 0]"},
        {"{" T("a", "[-1]", "0", "4") "}", 4, "shape[0]"},
        {"{" T("a", "[1.0]", "0", "4") "}", 4, "shape[0]"},
        {"{" T("a", "1", "0", "4") "}", 4, "no shape"},
        {"{" T("a", "[1]", "0", "4.0") "}", 4, "two integers"},
        {"{" T("a", "[1]", "0", "4,8") "}", 4, "two integers"},
        {"{" T("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "9 dimensions"},
        {"{" T("a", "[4294967296,4294967296]", "0", "0") "}", 0, "2^63"},
        {"{" T("a", "[4611686018427387904]", "0", "0") "}", 0, "0 bytes, but"},
        {"{" T("a", "[99999999999999999999]", "0", "0") "}", 0, "too big"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, "dtype \"F33\""},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0, "no dtype"},
        {"{\"a\":3}", 0, "no dtype"},
        {"{\"a\\u0000b\":{}}", 0, "\\u0000"},
        {"{\"__metadata__\":{\"a\":3}}", 0, "\"a\" is no string"},
        {"{\"__metadata__\":\"x\"}", 0, "no object"},
        {"{}}", 0, "header, byte"},
    };
    static const unsigned char zeros[16];
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_str bytes = {0};
        struct zt_st_file f;
        struct zt_err err = {0};
        st_raw(cases[i].header, zeros, cases[i].data_bytes, &bytes);
        int rc = zt_st_parse("x.st", bytes.buf, bytes.len, &f, &err);
        zt_str_release(&bytes);
        if (rc != ZT_EINPUT)
            FAIL("accepted: %s", cases[i].header);
        if (strncmp(err.msg, "x.st: ", 6) != 0 || !strstr(err.msg, cases[i].message))
            FAIL("%s: %s", cases[i].header, err.msg);
    }
}

TEST(safetensors_bad_lengths)
{
    static const struct {
        unsigned char bytes[10];
        size_t n;
        const char *message;
    } cases[] = {
        {{0}, 0, "0 bytes are no safetensors"},
        {{2}, 7, "7 bytes are no safetensors"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "header of 3 bytes in a file of 10"},
        {{255, 255, 255, 255, 255, 255, 255, 255, '{', '}'}, 10, "header of 18446744073709551615"},
        {{0, 225, 245, 6, 0, 0, 0, 0, '{', '}'}, 10, "header of 116777216"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_st_file f;
        struct zt_err err = {0};
        CHECK_INT(zt_st_parse("x", cases[i].bytes, cases[i].n, &f, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].message))
            FAIL("%s", err.msg);
    }
    struct zt_st_file f;
    struct zt_err err;
    CHECK_INT(zt_st_open("/no/such", &f, &err), ZT_EINPUT);
    CHECK_INT(zt_st_open("test/cases/fixture_gpt2/config.json", &f, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "config.json: header of"));
}

/* Padding behind the JSON is blanks, as the reference writes it. */
TEST(safetensors_blank_padding)
{
    struct zt_str bytes = {0};
    struct zt_st_file f;
    struct zt_err err;
    st_raw("{" T("a", "[1]", "0", "4") "}    ", "1234", 4, &bytes);
    CHECK_OK(zt_st_parse("x", bytes.buf, bytes.len, &f, &err), err);
    zt_st_close(&f);
    zt_str_release(&bytes);
}

TEST_MAIN()
