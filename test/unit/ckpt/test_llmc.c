/* Model files of llm.c, made of the GPT-2 fixture. */
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/llmc.h"
#include "unit/ckpt/llmc_file.h"

static const struct llmc_sizes fixture_sizes = {3, 8, 11, 2, 2, 4, 16};

static struct zt_model *fixture_model(struct zt_arena *a, bool tied, int64_t vocab)
{
    struct zt_model_config cfg = {.type = ZT_MODEL_GPT2,
                                  .n_layer = 2,
                                  .n_head = 2,
                                  .n_embd = 4,
                                  .vocab_size = vocab,
                                  .n_positions = 8,
                                  .norm_eps = 1e-5f,
                                  .initializer_range = 0.02f,
                                  .tie_embeddings = tied};
    struct zt_model *m = NULL;
    struct zt_err err;
    if (zt_model_build(&cfg, a, &m, &err))
        abort();
    return m;
}

struct bench {
    struct zt_arena arena;
    struct zt_st_file src;
    struct zt_str bytes;
    struct zt_err err;
};

static void bench_init(struct bench *b)
{
    memset(b, 0, sizeof *b);
    CHECK_OK(zt_st_open("test/cases/fixture_gpt2/model.safetensors", &b->src, &b->err), b->err);
}

static void bench_release(struct bench *b)
{
    zt_st_close(&b->src);
    zt_str_release(&b->bytes);
    zt_arena_release(&b->arena);
}

/* Every element is that of the safetensors file, in pieces that begin and end anywhere. */
static void check_equal(struct bench *b, const struct zt_model *m, const struct zt_llmc *f)
{
    for (int p = 0; p < m->n_params; p++) {
        char name[80];
        float got[64], want[64];
        snprintf(name, sizeof name, "transformer.%s", m->params[p].name);
        const struct zt_st_tensor *t = st_find(&b->src, name);
        CHECK(t && t->n_elems <= 64);
        for (int64_t begin = 0; begin < t->n_elems; begin += 7) {
            int64_t n = ZT_MIN((int64_t)7, t->n_elems - begin);
            zt_llmc_read_f32(f, p, begin, n, got);
            zt_st_read_f32(t, begin, n, want);
            for (int64_t i = 0; i < n; i++) {
                if (f->header.dtype == ZT_BF16)
                    want[i] = zt_bf16_to_f32(zt_f32_to_bf16(want[i]));
                if (got[i] != want[i])
                    FAIL("%s[%lld] is %a, not %a", name, (long long)(begin + i), (double)got[i],
                         (double)want[i]);
            }
        }
    }
}

TEST(llmc_reads_both_versions)
{
    for (int version = 3; version <= 5; version += 2) {
        struct bench b;
        struct zt_llmc f;
        struct llmc_sizes s = fixture_sizes;
        bench_init(&b);
        RETURN_IF_FAILED();
        s.version = version;
        llmc_file(&b.bytes, &b.src, &s);
        struct zt_model *m = fixture_model(&b.arena, true, 11);
        CHECK_OK(zt_llmc_parse("x.bin", b.bytes.buf, b.bytes.len, m, &b.arena, &f, &b.err), b.err);
        CHECK_INT(f.header.padded_vocab_size, 16);
        check_equal(&b, m, &f);
        bench_release(&b);
        RETURN_IF_FAILED();
    }
}

/* By its name in model.from: a file, not a folder. */
TEST(llmc_by_weights)
{
    struct bench b;
    struct zt_weights w;
    char path[64];
    float got, want;
    bench_init(&b);
    RETURN_IF_FAILED();
    llmc_file(&b.bytes, &b.src, &fixture_sizes);
    CHECK(mkdir("build", 0777) == 0 || access("build", W_OK) == 0);
    snprintf(path, sizeof path, "build/test-llmc-%ld.bin", (long)getpid());
    CHECK_OK(zt_write_file_atomic(path, b.bytes.buf, b.bytes.len, &b.err), b.err);
    struct zt_model *m = fixture_model(&b.arena, true, 11);
    int rc = zt_weights_open(path, m, &w, &b.err);
    unlink(path);
    CHECK_OK(rc, b.err);
    int p = zt_model_find_param(m, "h.1.mlp.c_fc.weight");
    zt_weights_read_f32(&w, p, 13, 1, &got);
    zt_st_read_f32(st_find(&b.src, "transformer.h.1.mlp.c_fc.weight"), 13, 1, &want);
    CHECK(got == want);
    zt_weights_close(&w);
    bench_release(&b);
}

TEST(llmc_bad_files)
{
    static const struct {
        int magic;
        struct llmc_sizes sizes;
        const char *message;
    } cases[] = {
        {20240520, {3, 8, 11, 2, 2, 4, 16}, "magic number 20240520; llm.c's model files have"},
        {20240326, {1, 8, 11, 2, 2, 4, 16}, "version 1 of llm.c's model files; 3 (fp32) and 5"},
        {20240326, {3, 8, 11, 2, 2, 4, 10}, "11 tokens are padded to 10"},
        {20240326, {3, 8, 11, 2, 3, 4, 16}, "3 heads do not divide"},
        {20240326, {3, 0, 11, 2, 2, 4, 16}, "longest sequence is 0"},
        {20240326, {3, 8, -1, 2, 2, 4, 16}, "vocabulary is -1"},
        {20240326, {3, 8, 11, 1 << 28, 1, 1 << 28, 16}, "more than 2^63"},
        {20240326, {3, 8, 11, 3, 2, 4, 16}, "bytes, but"},
        {20240326, {5, 8, 11, 2, 2, 4, 16}, "bytes, but"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct bench b;
        struct zt_llmc_header h;
        bench_init(&b);
        RETURN_IF_FAILED();
        llmc_file(&b.bytes, &b.src, &fixture_sizes);
        struct zt_str header = {0};
        llmc_put_header(&header, cases[i].magic, &cases[i].sizes);
        memcpy(b.bytes.buf, header.buf, header.len);
        CHECK_INT(zt_llmc_check("x.bin", b.bytes.buf, b.bytes.len, &h, &b.err), ZT_EINPUT);
        if (strncmp(b.err.msg, "x.bin: ", 7) != 0 || !strstr(b.err.msg, cases[i].message))
            FAIL("%s, not %s", b.err.msg, cases[i].message);
        zt_str_release(&header);
        bench_release(&b);
    }
}

TEST(llmc_cut_files)
{
    static const size_t cuts[] = {0, 4, 1023, 1024, 1025};
    struct bench b;
    struct zt_llmc_header h;
    bench_init(&b);
    RETURN_IF_FAILED();
    llmc_file(&b.bytes, &b.src, &fixture_sizes);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cuts); i++)
        CHECK_INT(zt_llmc_check("x", b.bytes.buf, cuts[i], &h, &b.err), ZT_EINPUT);
    CHECK_INT(zt_llmc_check("x", b.bytes.buf, b.bytes.len - 1, &h, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "damaged or cut"));
    bench_release(&b);
}

TEST(llmc_another_model)
{
    struct bench b;
    struct zt_llmc f;
    bench_init(&b);
    RETURN_IF_FAILED();
    llmc_file(&b.bytes, &b.src, &fixture_sizes);
    struct zt_model *m = fixture_model(&b.arena, true, 12);
    CHECK_INT(zt_llmc_parse("x", b.bytes.buf, b.bytes.len, m, &b.arena, &f, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "vocab_size is 11 in the file and 12 in the recipe"));
    m = fixture_model(&b.arena, false, 11);
    CHECK_INT(zt_llmc_parse("x", b.bytes.buf, b.bytes.len, m, &b.arena, &f, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "GPT-2 with a tied head"));
    bench_release(&b);
}

TEST_MAIN()
