/* Case D04: llm.c token files, raw files, and what is neither; case D03: ids that do not fit. */
#include "harness.h"

#include "base/io.h"
#include "data/token_file.h"

struct loaded {
    struct zt_mapped map;
    struct zt_token_file file;
};

static int load(const char *name, enum zt_data_format format, struct loaded *l, struct zt_err *err)
{
    struct zt_str path = {0};
    zt_str_printf(&path, "test/cases/D04/%s", name);
    int rc = zt_map_file(path.buf, &l->map, err);
    if (!rc)
        rc = zt_token_file_parse(name, l->map.data, l->map.bytes, format, &l->file, err);
    if (rc)
        zt_unmap_file(&l->map);
    zt_str_release(&path);
    return rc;
}

TEST(token_file_d04_good_gpt2)
{
    static const int32_t want[] = {50256, 15496, 995, 13, 50256, 464, 2068, 7586, 21831, 13};
    static const enum zt_data_format formats[] = {ZT_DATA_AUTO, ZT_DATA_LLMC};
    struct zt_err err;
    for (size_t i = 0; i < ZT_ARRAY_LEN(formats); i++) {
        struct loaded l;
        int32_t got[10];
        CHECK_OK(load("good_gpt2.bin", formats[i], &l, &err), err);
        CHECK_INT(l.file.kind, ZT_TOKENS_GPT2);
        CHECK_INT(l.file.n_tokens, 10);
        CHECK_OK(zt_token_file_read(&l.file, 0, 10, 50257, got, &err), err);
        CHECK(memcmp(got, want, sizeof want) == 0);
        CHECK_OK(zt_token_file_read(&l.file, 5, 2, 50257, got, &err), err);
        CHECK(got[0] == 464 && got[1] == 2068);
        zt_unmap_file(&l.map);
    }
}

TEST(token_file_d04_good_llama3)
{
    static const int32_t want[] = {128000, 9906, 1917, 128001};
    struct zt_err err;
    struct loaded l;
    int32_t got[4];
    CHECK_OK(load("good_llama3.bin", ZT_DATA_AUTO, &l, &err), err);
    CHECK_INT(l.file.kind, ZT_TOKENS_LLAMA3);
    CHECK_INT(l.file.n_tokens, 4);
    CHECK_OK(zt_token_file_read(&l.file, 0, 4, 128256, got, &err), err);
    CHECK(memcmp(got, want, sizeof want) == 0);
    zt_unmap_file(&l.map);
}

/* Every message holds what was found and what was expected. */
TEST(token_file_d04_rejected)
{
    static const struct {
        const char *name, *found, *expected;
    } cases[] = {
        {"llama3_magic_u16_body.bin", "8 bytes", "expected 16"},
        {"bad_version.bin", "version 2", "expected 1"},
        {"truncated.bin", "17 bytes", "expected 20"},
        {"count_too_big.bin", "20 bytes", "expected 22"},
        {"extra_bytes.bin", "22 bytes", "expected 20"},
        {"negative_count.bin", "-1 tokens, 20 bytes", "expected 1 or more"},
        {"header_only.bin", "0 tokens, 0 bytes", "expected 1 or more"},
        {"short_header.bin", "1000 bytes", "1024"},
    };
    static const enum zt_data_format formats[] = {ZT_DATA_AUTO, ZT_DATA_LLMC};
    for (size_t i = 0; i < 2 * ZT_ARRAY_LEN(cases); i++) {
        struct zt_err err = {0};
        struct loaded l;
        const char *name = cases[i / 2].name;
        if (load(name, formats[i % 2], &l, &err) != ZT_EINPUT)
            FAIL("%s accepted", name);
        if (!strstr(err.msg, name) || !strstr(err.msg, cases[i / 2].found) ||
            !strstr(err.msg, cases[i / 2].expected))
            FAIL("%s", err.msg);
    }
}

TEST(token_file_d04_unknown_magic)
{
    struct zt_err err;
    struct loaded l;
    CHECK_INT(load("bad_magic.bin", ZT_DATA_LLMC, &l, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "20240522") && strstr(err.msg, "20240520"));
    CHECK_INT(load("bad_magic.bin", ZT_DATA_AUTO, &l, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "data.format"));
}

/* A file without a header is raw tokens when told so, and never guessed. */
TEST(token_file_d04_raw)
{
    struct zt_err err;
    struct loaded l;
    int32_t got[10];
    CHECK_OK(load("nanogpt_raw.bin", ZT_DATA_RAW_U16, &l, &err), err);
    CHECK_INT(l.file.n_tokens, 10);
    CHECK_OK(zt_token_file_read(&l.file, 0, 10, 65536, got, &err), err);
    for (int i = 0; i < 10; i++)
        CHECK_INT(got[i], l.map.data[2 * i] | l.map.data[2 * i + 1] << 8);
    zt_unmap_file(&l.map);
    CHECK_INT(load("nanogpt_raw.bin", ZT_DATA_AUTO, &l, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "data.format: raw_u16"));
    CHECK_INT(load("nanogpt_raw.bin", ZT_DATA_LLMC, &l, &err), ZT_EINPUT);
    CHECK_INT(load("nanogpt_odd.bin", ZT_DATA_RAW_U16, &l, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "21 bytes"));
}

TEST(token_file_d03_ids_are_checked)
{
    struct zt_err err;
    struct loaded l;
    int32_t got[4];
    CHECK_OK(load("id_out_of_vocab.bin", ZT_DATA_AUTO, &l, &err), err);
    CHECK_INT(zt_token_file_read(&l.file, 0, 4, 50257, got, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "id_out_of_vocab.bin") && strstr(err.msg, "50257"));
    CHECK_OK(zt_token_file_read(&l.file, 0, 4, 65536, got, &err), err);
    int first_bad = 0;
    while (got[first_bad] < 50257)
        first_bad++;
    char want[64];
    snprintf(want, sizeof want, "token %d is id %d", first_bad, got[first_bad]);
    CHECK_INT(zt_token_file_read(&l.file, 0, 4, 50257, got, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, want));
    zt_unmap_file(&l.map);
}

TEST(token_file_text_is_bytes)
{
    static const unsigned char text[] = {'a', 0xc3, 0xa9, '\n'};
    struct zt_token_file f;
    struct zt_err err;
    int32_t got[4];
    CHECK_OK(zt_token_file_parse("x.txt", text, 4, ZT_DATA_AUTO, &f, &err), err);
    CHECK_OK(zt_token_file_read(&f, 0, 4, 256, got, &err), err);
    CHECK(got[0] == 'a' && got[1] == 0xc3 && got[2] == 0xa9 && got[3] == '\n');
    /* A smaller vocabulary is fine as long as the text fits. */
    CHECK_OK(zt_token_file_read(&f, 0, 1, 128, got, &err), err);
    CHECK_INT(zt_token_file_read(&f, 0, 4, 128, got, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "token 1 is id 195"));
    CHECK_INT(zt_token_file_parse("x.dat", "a\0b", 3, ZT_DATA_AUTO, &f, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "not text"));
    CHECK_OK(zt_token_file_parse("x.dat", "a\0b", 3, ZT_DATA_TEXT, &f, &err), err);
    CHECK_INT(f.n_tokens, 3);
}

TEST_MAIN()
