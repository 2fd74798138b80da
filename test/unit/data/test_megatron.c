/* Case D06: Megatron's pairs. */
#include "harness.h"

#include "base/io.h"
#include "data/data.h"
#include "data/megatron.h"

#define D06 "test/cases/D06/"

struct pair {
    struct zt_mapped bin, index;
    struct zt_token_file file;
};

static int load(const char *name, struct pair *p, struct zt_err *err)
{
    struct zt_str bin = {0}, index = {0};
    zt_str_printf(&bin, D06 "%s.bin", name);
    zt_str_printf(&index, D06 "%s.idx", name);
    memset(p, 0, sizeof *p);
    int rc = zt_map_file(bin.buf, &p->bin, err);
    if (!rc)
        rc = zt_map_file(index.buf, &p->index, err);
    struct zt_bytes b = {"x.bin", p->bin.data, p->bin.bytes};
    struct zt_bytes i = {"x.idx", p->index.data, p->index.bytes};
    if (!rc)
        rc = zt_megatron_parse(&i, &b, &p->file, err);
    zt_str_release(&bin);
    zt_str_release(&index);
    return rc;
}

static void unload(struct pair *p)
{
    zt_unmap_file(&p->bin);
    zt_unmap_file(&p->index);
}

TEST(megatron_d06_good)
{
    static const int32_t want[] = {11, 12, 13, 14, 0, 21, 22, 0, 31, 32, 33, 0};
    static const struct {
        const char *name;
        int token_bytes;
    } cases[] = {{"good", 2}, {"good_int32", 4}, {"sentences", 2}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct pair p;
        struct zt_err err;
        int32_t got[12];
        CHECK_OK(load(cases[i].name, &p, &err), err);
        CHECK_INT(p.file.kind, ZT_TOKENS_MEGATRON);
        CHECK_INT(p.file.token_bytes, cases[i].token_bytes);
        CHECK_INT(p.file.n_tokens, 12);
        CHECK_INT(p.file.n_docs, 3); /* of `sentences`, the first has two sequences */
        CHECK_OK(zt_token_file_read(&p.file, 0, 12, 34, got, &err), err);
        CHECK(memcmp(got, want, sizeof want) == 0);
        CHECK_INT(zt_token_file_read(&p.file, 0, 12, 33, got, &err), ZT_EINPUT);
        CHECK(strstr(err.msg, "token 10 is id 33"));
        for (int64_t pos = 0; pos < 12; pos++)
            CHECK_INT(zt_megatron_next_document(&p.file, pos), pos < 5 ? 5 : pos < 8 ? 8 : 12);
        CHECK_INT(zt_megatron_next_document(&p.file, -1), 0);
        unload(&p);
    }
}

TEST(megatron_d06_rejected)
{
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"doc_tail_wrong", "x.idx: the last document mark is 2, but there are 3 sequences"},
        {"float_dtype", "x.idx: tokens of type float64 (code 6); uint8, uint16 and int32 are read"},
        {"unknown_dtype", "x.idx: tokens of type unknown (code "},
        {"bad_version", "x.idx: version 2 of Megatron's index; expected 1"},
        {"bad_magic", "x.idx: does not begin with"},
        {"pointer_past_end", "x.idx: sequence 2 begins at byte "},
        {"negative_length", "x.idx: sequence 1 has length -"},
        {"huge_count",
         "x.idx: 102 bytes, which 2305843009213693952 sequences and 4 document marks"},
        {"bin_short", "x.bin: 22 bytes, but its index x.idx tells of 24"},
        {"fairseq_layout", "sequences and 12884901893 document marks"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct pair p;
        struct zt_err err = {0};
        int rc = load(cases[i].name, &p, &err);
        unload(&p);
        if (rc != ZT_EINPUT)
            FAIL("%s accepted", cases[i].name);
        if (!strstr(err.msg, cases[i].message))
            FAIL("%s: %s", cases[i].name, err.msg);
    }
}

/* An index by hand: counts and contents as asked. */
static size_t make_index(unsigned char *out, int code, int n_seqs, const int32_t *lengths,
                         int n_marks, const int64_t *marks)
{
    static const int width[] = {[1] = 1, [4] = 4, [8] = 2};
    uint64_t version = 1, seqs = (uint64_t)n_seqs, ms = (uint64_t)n_marks;
    unsigned char *p = out;
    int64_t at = 0;
    memcpy(p, "MMIDIDX\0", 9), p += 9;
    memcpy(p, &version, 8), p += 8;
    *p++ = (unsigned char)code;
    memcpy(p, &seqs, 8), p += 8;
    memcpy(p, &ms, 8), p += 8;
    for (int i = 0; i < n_seqs; i++, p += 4)
        memcpy(p, &lengths[i], 4);
    for (int i = 0; i < n_seqs; i++, p += 8) {
        memcpy(p, &at, 8);
        at += (int64_t)lengths[i] * width[code];
    }
    for (int i = 0; i < n_marks; i++, p += 8)
        memcpy(p, &marks[i], 8);
    return (size_t)(p - out);
}

/* Empty sequences and documents are allowed; marks that fall, or do not start at 0, are not. */
TEST(megatron_marks)
{
    static const int32_t lengths[] = {0, 3, 0, 2, 0};
    static const struct {
        int64_t marks[5];
        const char *message;
    } cases[] = {
        {{0, 1, 1, 3, 5}, NULL},
        {{0, 0, 5, 5, 5}, NULL},
        {{0, 3, 2, 5, 5}, "mark 2 is 2; expected 3 to 5"},
        {{1, 3, 4, 5, 5}, "mark 0 is 1; expected 0 to 0"},
        {{0, 3, 6, 6, 5}, "mark 2 is 6"},
        {{0, -1, 2, 5, 5}, "mark 1 is -1"},
        {{0, 1, 2, 3, 4}, "last document mark is 4, but there are 5"},
    };
    unsigned char index[256], tokens[] = "abcde";
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_bytes b = {"x.bin", tokens, 5}, x = {"x.idx", index, 0};
        struct zt_token_file f;
        struct zt_err err = {0};
        x.n = make_index(index, 1, 5, lengths, 5, cases[i].marks);
        int rc = zt_megatron_parse(&x, &b, &f, &err);
        const char *want = cases[i].message;
        if (want ? rc != ZT_EINPUT || !strstr(err.msg, want) : rc != 0)
            FAIL("case %d: %s", (int)i, err.msg);
    }
    struct zt_bytes b = {"x.bin", tokens, 5}, x = {"x.idx", index, 0};
    struct zt_token_file f;
    struct zt_err err;
    x.n = make_index(index, 1, 5, lengths, 5, cases[0].marks);
    CHECK_OK(zt_megatron_parse(&x, &b, &f, &err), err);
    CHECK_INT(zt_megatron_next_document(&f, 0), 3);
    CHECK_INT(zt_megatron_next_document(&f, 3), 5);
}

/* Every cut of a good index is rejected, and every byte of it changed is rejected or harmless. */
TEST(megatron_damaged)
{
    struct pair p;
    struct zt_err err;
    CHECK_OK(load("sentences", &p, &err), err);
    unsigned char *copy = zt_xcalloc(p.index.bytes, 1);
    struct zt_bytes b = {"x.bin", p.bin.data, p.bin.bytes}, x = {"x.idx", copy, 0};
    struct zt_token_file f;
    memcpy(copy, p.index.data, p.index.bytes);
    for (x.n = 0; x.n < p.index.bytes; x.n++)
        CHECK_INT(zt_megatron_parse(&x, &b, &f, &err), ZT_EINPUT);
    for (size_t i = 0; i < p.index.bytes; i++) {
        copy[i] ^= 0x80;
        if (zt_megatron_parse(&x, &b, &f, &err) == 0)
            for (int64_t pos = 0; pos < f.n_tokens; pos++)
                CHECK(zt_megatron_next_document(&f, pos) > pos);
        copy[i] ^= 0x80;
    }
    free(copy);
    unload(&p);
}

static void check_samples(const char *path, enum zt_data_format format)
{
    struct zt_dataset_opts o = {.paths = {1, &path},
                                .format = format,
                                .seq_len = 4,
                                .vocab_size = 34,
                                .range = {-1, -1},
                                .packed = true,
                                .separator = -1};
    int32_t x[4], y[4], p[4], s[4];
    struct zt_sample out = {x, y, p, s};
    struct zt_dataset *d;
    struct zt_err err;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_samples(d), 2);
    CHECK_OK(zt_dataset_get(d, 1, &out, &err), err); /* 0 | 21 22 0 | (31) */
    static const int32_t want[4][4] = {
        {0, 21, 22, 0}, {-100, 22, 0, -100}, {0, 0, 1, 2}, {0, 1, 1, 1}};
    CHECK(memcmp(x, want[0], sizeof x) == 0 && memcmp(y, want[1], sizeof y) == 0);
    CHECK(memcmp(p, want[2], sizeof p) == 0 && memcmp(s, want[3], sizeof s) == 0);
    struct zt_str text = {0};
    zt_dataset_describe(d, &text);
    CHECK_STR(zt_str_get(&text), "1 file, 12 tokens (Megatron tokens), 2 samples of 4, packed: "
                                 "documents end with their index");
    zt_str_release(&text);
    zt_dataset_free(d);
}

TEST(megatron_pairs_by_any_name)
{
    static const char *const paths[] = {D06 "good.bin", D06 "good.idx", D06 "good",
                                        D06 "[g]ood.*", D06 "goo?.idx", D06 "goo?.bin"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(paths); i++) {
        check_samples(paths[i], ZT_DATA_MEGATRON);
        check_samples(paths[i], ZT_DATA_AUTO);
    }
}

TEST(megatron_wrong_names)
{
    static const struct {
        const char *path;
        enum zt_data_format format;
        const char *message;
    } cases[] = {
        {"LICENSE", ZT_DATA_MEGATRON, "LICENSE: Megatron's tokens are a pair"},
        {"test/cases/D04/nanogpt_raw.bin", ZT_DATA_MEGATRON, "nanogpt_raw.idx: No such file"},
        {D06 "bad_magic.bin", ZT_DATA_MEGATRON, "bad_magic.idx: does not begin with"},
        {D06 "bad_magic.bin", ZT_DATA_AUTO, "bad_magic.bin: a .bin file without llm.c's"},
        {D06 "bin_short.idx", ZT_DATA_AUTO, "bin_short.bin: 22 bytes"},
        {D06 "none", ZT_DATA_MEGATRON, "none: No such file"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_dataset_opts o = {.paths = {1, (const char **)&cases[i].path},
                                    .format = cases[i].format,
                                    .seq_len = 4,
                                    .vocab_size = 50257,
                                    .range = {-1, -1}};
        struct zt_dataset *d;
        struct zt_err err = {0};
        CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].message))
            FAIL("%s: %s", cases[i].path, err.msg);
    }
}

TEST_MAIN()
