#include "harness.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "data/data.h"

#define MEGATRON "test/cases/D06/good_int32.bin"
#define GPT2 "test/cases/fixture_gpt2/tokens_llmc.bin"

static struct zt_dataset_opts options(const char **paths, int n, int64_t seq_len,
                                      int64_t vocab_size)
{
    struct zt_dataset_opts o = {.paths = {n, paths},
                                .seq_len = seq_len,
                                .vocab_size = vocab_size,
                                .range = {-1, -1},
                                .seed = 42};
    return o;
}

/* Tokens and targets alone; positions and segments of a row that is one document. */
static int get(const struct zt_dataset *d, int64_t n, int64_t pos, int32_t *x, int32_t *y,
               struct zt_err *err)
{
    int32_t positions[1024], seg_start[1024];
    struct zt_sample out = {x, y, positions, seg_start};
    int rc = zt_dataset_get(d, pos, &out, err);
    bool plain = true;
    for (int64_t t = 0; !rc && t < n; t++)
        plain = plain && positions[t] == t && seg_start[t] == 0;
    if (!plain)
        rc = zt_err_set(err, ZT_EINPUT,
                        "position %lld: positions or segments are not of one document",
                        (long long)pos);
    return rc;
}

/* A folder of its own for each test, with files to fill it. */
struct sandbox {
    char dir[64];
};

static void sandbox_init(struct sandbox *s)
{
    snprintf(s->dir, sizeof s->dir, "build/test-data-XXXXXX");
    if (mkdir("build", 0777) && access("build", W_OK))
        FAIL("build/ cannot be written");
    if (!mkdtemp(s->dir))
        FAIL("mkdtemp %s", s->dir);
}

static void put(const struct sandbox *s, const char *name, const void *bytes, size_t n)
{
    struct zt_err err;
    struct zt_str path = {0}, dir = {0};
    zt_str_printf(&path, "%s/%s", s->dir, name);
    zt_str_add(&dir, path.buf, (size_t)(strrchr(path.buf, '/') - path.buf));
    CHECK_OK(zt_make_dirs(dir.buf, &err), err);
    CHECK_OK(zt_write_file_atomic(path.buf, bytes, n, &err), err);
    zt_str_release(&path);
    zt_str_release(&dir);
}

static void sandbox_release(struct sandbox *s)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", s->dir);
    CHECK_INT(system(cmd), 0);
}

static bool begins(const struct zt_dataset *d, const char *want)
{
    struct zt_str text = {0};
    zt_dataset_describe(d, &text);
    bool right = strncmp(zt_str_get(&text), want, strlen(want)) == 0;
    zt_str_release(&text);
    return right;
}

TEST(dataset_fixture_counts)
{
    static const struct {
        int64_t seq_len, samples;
    } cases[] = {{6, 4}, {2, 12}, {3, 8}, {24, 1}, {23, 1}};
    const char *paths[] = {GPT2};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_dataset_opts o = options(paths, 1, cases[i].seq_len, 11);
        struct zt_dataset *d;
        struct zt_err err;
        CHECK_OK(zt_dataset_open(&o, &d, &err), err);
        CHECK_INT(zt_dataset_samples(d), cases[i].samples);
        CHECK_INT(zt_dataset_tokens(d), 25);
        CHECK(begins(d, "1 file, 25 tokens "));
        zt_dataset_free(d);
    }
}

/* Both encodings of the fixture give the same samples, and targets are the tokens one later. */
TEST(dataset_fixture_samples)
{
    const char *llmc[] = {GPT2}, *raw[] = {"test/cases/fixture_gpt2/tokens_raw_u16.bin"};
    struct zt_dataset_opts o = options(llmc, 1, 6, 11), r = options(raw, 1, 6, 11);
    struct zt_dataset *a, *b;
    struct zt_err err;
    r.format = ZT_DATA_RAW_U16;
    CHECK_OK(zt_dataset_open(&o, &a, &err), err);
    CHECK_OK(zt_dataset_open(&r, &b, &err), err);
    int32_t last_target = -1;
    for (int pos = 0; pos < 8; pos++) {
        int32_t x[6], y[6], rx[6], ry[6];
        CHECK_OK(get(a, 6, pos, x, y, &err), err);
        CHECK_OK(get(b, 6, pos, rx, ry, &err), err);
        CHECK(memcmp(x, rx, sizeof x) == 0 && memcmp(y, ry, sizeof y) == 0);
        CHECK(memcmp(x + 1, y, 5 * sizeof y[0]) == 0);
        if (pos % 4)
            CHECK_INT(x[0], last_target);
        last_target = y[5];
    }
    zt_dataset_free(a);
    zt_dataset_free(b);
}

TEST(dataset_epochs_are_permutations)
{
    enum { N = 1000, EPOCHS = 3 };
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    unsigned char raw[2 * N + 2];
    for (int i = 0; i <= N; i++) {
        raw[2 * i] = (unsigned char)i;
        raw[2 * i + 1] = (unsigned char)(i >> 8);
    }
    put(&s, "count.bin", raw, sizeof raw);
    const char *paths[] = {s.dir};
    struct zt_dataset_opts o = options(paths, 1, 1, 2000);
    struct zt_dataset *d, *again;
    struct zt_err err;
    o.format = ZT_DATA_RAW_U16;
    o.shuffle = true;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_OK(zt_dataset_open(&o, &again, &err), err);
    CHECK_INT(zt_dataset_samples(d), N);
    int32_t order[EPOCHS][N];
    for (int e = 0; e < EPOCHS; e++) {
        unsigned char seen[N] = {0};
        for (int i = 0; i < N; i++) {
            int32_t target, token2;
            CHECK_OK(get(d, 1, (int64_t)e * N + i, &order[e][i], &target, &err), err);
            CHECK_INT(target, order[e][i] + 1);
            CHECK(!seen[order[e][i]]);
            seen[order[e][i]] = 1;
            CHECK_OK(get(again, 1, (int64_t)e * N + i, &token2, &target, &err), err);
            CHECK_INT(token2, order[e][i]);
        }
        if (e)
            CHECK(memcmp(order[e], order[e - 1], sizeof order[e]) != 0);
    }
    zt_dataset_free(d);
    zt_dataset_free(again);
    sandbox_release(&s);
}

TEST(dataset_folder_rules)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "b.txt", "BBBBB", 5);
    put(&s, "a/z.c", "ZZZZZ", 5);
    put(&s, "a/short.c", "s", 1);
    put(&s, "c.dat", "\0\1\2", 3);
    put(&s, "raw.bin", "abcdef", 6);
    put(&s, ".hidden", "hhhhh", 5);
    put(&s, ".git/config", "ggggg", 5);
    put(&s, "a/build/out.txt", "ooooo", 5);
    char link[128];
    snprintf(link, sizeof link, "%s/a/up", s.dir);
    CHECK_INT(symlink("..", link), 0);
    const char *paths[] = {s.dir};
    struct zt_dataset_opts o = options(paths, 1, 2, 256);
    struct zt_dataset *d;
    struct zt_err err;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_tokens(d), 11);
    CHECK_INT(zt_dataset_samples(d), 4);
    int32_t x[2], y[2];
    CHECK_OK(get(d, 2, 0, x, y, &err), err);
    CHECK_INT(x[0], 'Z');
    CHECK_OK(get(d, 2, 2, x, y, &err), err);
    CHECK_INT(x[0], 'B');
    struct zt_str text = {0};
    zt_dataset_describe(d, &text);
    CHECK_STR(zt_str_get(&text),
              "3 files, 11 tokens (text as bytes), 4 samples of 2; 1 too short for "
              "a sample; 2 left out: not text");
    zt_str_release(&text);
    zt_dataset_free(d);
    sandbox_release(&s);
}

TEST(dataset_patterns)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "b1.txt", "11111", 5);
    put(&s, "b0.txt", "00000", 5);
    put(&s, "[x].txt", "xxxxx", 5);
    put(&s, "n.bin", "nnnnn", 5);
    char pattern[128], literal[128], none[128], bin[128];
    snprintf(pattern, sizeof pattern, "%s/b*.txt", s.dir);
    snprintf(literal, sizeof literal, "%s/[x].txt", s.dir);
    snprintf(none, sizeof none, "%s/q*", s.dir);
    snprintf(bin, sizeof bin, "%s/*.bin", s.dir);
    const char *paths[] = {literal, pattern};
    struct zt_dataset_opts o = options(paths, 2, 4, 256);
    struct zt_dataset *d;
    struct zt_err err;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_samples(d), 3);
    for (int i = 0; i < 3; i++) {
        int32_t x[4], y[4];
        CHECK_OK(get(d, 4, i, x, y, &err), err);
        CHECK_INT(x[0], "x01"[i]);
    }
    zt_dataset_free(d);
    paths[1] = none;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, none) && strstr(err.msg, "matches none"));
    paths[1] = bin;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "n.bin") && strstr(err.msg, "raw_u16"));

    struct rlimit was, none_left = {0, 0}; /* no folder can be opened */
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &was), 0);
    none_left.rlim_max = was.rlim_max;
    paths[1] = pattern;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &none_left), 0);
    const int rc = zt_dataset_open(&o, &d, &err);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &was), 0);
    CHECK_INT(rc, ZT_EIO);
    CHECK(strstr(err.msg, pattern) && strstr(err.msg, "a folder on the way cannot be read"));
    sandbox_release(&s);
}

TEST(dataset_range_cuts_files)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "a.txt", "0123456789", 10);
    put(&s, "b.txt", "abcdefghij", 10);
    const char *paths[] = {s.dir};
    struct zt_dataset_opts o = options(paths, 1, 2, 256);
    struct zt_dataset *d;
    struct zt_err err;
    int32_t x[2], y[2];
    o.range[0] = 5, o.range[1] = 15;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_tokens(d), 10);
    CHECK_INT(zt_dataset_samples(d), 4);
    static const char starts[] = "57ac";
    for (int i = 0; i < 4; i++) {
        CHECK_OK(get(d, 2, i, x, y, &err), err);
        CHECK_INT(x[0], starts[i]);
        CHECK_INT(y[1], starts[i] + 2);
    }
    zt_dataset_free(d);
    o.range[0] = 10, o.range[1] = -1;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK(begins(d, "1 file, "));
    CHECK_OK(get(d, 2, 0, x, y, &err), err);
    CHECK_INT(x[0], 'a');
    zt_dataset_free(d);
    o.range[0] = 0, o.range[1] = 21;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "[0, 21)") && strstr(err.msg, "20 tokens"));
    o.range[0] = 20, o.range[1] = -1;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "[20, 20)"));
    o.range[0] = INT64_MAX;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "reaches past the 20 tokens"));
    o.range[0] = 7, o.range[1] = 7;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "empty"));
    sandbox_release(&s);
}

TEST(dataset_refusals)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "t.txt", "12345", 5);
    put(&s, "none/x.dat", "\0", 1);
    char text[128], folder[128];
    snprintf(text, sizeof text, "%s/t.txt", s.dir);
    snprintf(folder, sizeof folder, "%s/none", s.dir);
    const char *paths[] = {text, GPT2};
    struct zt_dataset_opts o = options(paths, 1, 5, 256);
    struct zt_dataset *d;
    struct zt_err err;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "needs a file with 6 tokens") && strstr(err.msg, "has 5"));
    o.seq_len = 2;
    o.paths.n = 2;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "llm.c GPT-2") && strstr(err.msg, "text as bytes"));
    paths[1] = "/dev/null";
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "/dev/null"));
    paths[1] = "/no/such/file";
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "/no/such/file: No such file"));
    paths[0] = folder;
    o.paths.n = 1;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "1 files left out"));
    CHECK(d == NULL);
    sandbox_release(&s);
}

TEST(dataset_d03_bad_id_names_the_file)
{
    const char *paths[] = {"test/cases/D04/id_out_of_vocab.bin"};
    struct zt_dataset_opts o = options(paths, 1, 3, 50257);
    struct zt_dataset *d;
    struct zt_err err;
    int32_t x[3], y[3];
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(get(d, 3, 0, x, y, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, paths[0]) && strstr(err.msg, "vocab_size is 50257"));
    zt_dataset_free(d);
}

/* A sparse file far larger than memory opens at once, and its end can be read. */
TEST(dataset_huge_file)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "huge.bin", "", 0);
    char path[128];
    snprintf(path, sizeof path, "%s/huge.bin", s.dir);
    int64_t bytes = (int64_t)100 << 30;
    if (truncate(path, bytes)) {
        sandbox_release(&s);
        SKIP("the file system holds no sparse file of 100 GiB");
    }
    const char *paths[] = {path};
    struct zt_dataset_opts o = options(paths, 1, 1024, 256);
    struct zt_dataset *d;
    struct zt_err err;
    int32_t x[1024], y[1024];
    o.format = ZT_DATA_RAW_U16;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_samples(d), (bytes / 2 - 1) / 1024);
    CHECK_OK(get(d, 1024, zt_dataset_samples(d) - 1, x, y, &err), err);
    CHECK_INT(y[1023], 0);
    zt_dataset_free(d);
    sandbox_release(&s);
}

/* What a row should be, as text: a digit or letter a token, '.' where there is no target. */
static void check_row(const struct zt_dataset *d, int64_t n, int64_t pos, const char *tokens,
                      const char *targets, const char *positions)
{
    int32_t x[16], y[16], p[16], seg[16];
    struct zt_sample out = {x, y, p, seg};
    struct zt_err err;
    CHECK_OK(zt_dataset_get(d, pos, &out, &err), err);
    for (int64_t t = 0; t < n; t++) {
        if (x[t] != tokens[t] || y[t] != (targets[t] == '.' ? -100 : targets[t]) ||
            p[t] != positions[t] - '0' || seg[t] != t - p[t])
            FAIL("sample %d, token %d: %d -> %d at %d of segment %d", (int)pos, (int)t, x[t], y[t],
                 p[t], seg[t]);
    }
}

TEST(dataset_packs_documents)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "a.txt", "abc|de|", 7);
    put(&s, "b.txt", "f", 1);
    put(&s, "c.txt", "", 0);
    put(&s, "d.txt", "ghijklmn", 8);
    const char *paths[] = {s.dir};
    struct zt_dataset_opts o = options(paths, 1, 5, 256);
    struct zt_dataset *d;
    struct zt_err err;
    o.packed = true;
    o.separator = '|';
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_samples(d), 3); /* of 16 tokens: no file is lost, however short */
    check_row(d, 5, 0, "abc|d", "bc|.e", "01230");
    check_row(d, 5, 1, "e|fgh", "|..hi", "01001");
    check_row(d, 5, 2, "ijklm", "jklmn", "01234");
    struct zt_str text = {0};
    zt_dataset_describe(d, &text);
    CHECK_STR(zt_str_get(&text),
              "3 files, 16 tokens (text as bytes), 3 samples of 5, packed: documents end with "
              "token 124 and with their file");
    zt_str_release(&text);
    zt_dataset_free(d);

    o.separator = -1;
    o.range[0] = 2, o.range[1] = 13;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_samples(d), 2);
    check_row(d, 5, 0, "c|de|", "|de|.", "01234");
    check_row(d, 5, 1, "fghij", ".hijk", "00123");
    zt_dataset_free(d);

    o.separator = 256;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "document_separator is 256") && strstr(err.msg, "256 (ids 0 to 255)"));
    o.separator = -1;
    o.range[0] = 0, o.range[1] = 5;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "needs 6 tokens") && strstr(err.msg, "there are 5"));
    sandbox_release(&s);
}

/* A separator that ends a chunk, a sample, and follows itself. */
TEST(dataset_packs_at_the_borders)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "a.txt", "||ab|c||", 8);
    put(&s, "b.txt", "|d", 2);
    const char *paths[] = {s.dir};
    struct zt_dataset_opts o = options(paths, 1, 3, 256);
    struct zt_dataset *d;
    struct zt_err err;
    o.packed = true;
    o.separator = '|';
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(zt_dataset_samples(d), 3);
    check_row(d, 3, 0, "||a", "..b", "000");
    check_row(d, 3, 1, "b|c", "|.|", "010");
    check_row(d, 3, 2,
              "||"
              "|",
              "...", "000");
    zt_dataset_free(d);
    sandbox_release(&s);
}

TEST(dataset_masks)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "t/a.txt", "abcdefg", 7);
    put(&s, "t/b.txt", "hijk", 4);
    put(&s, "m/a.mask", "\1\0\1\1\0\0\1", 7);
    put(&s, "m/b.mask", "\1\1\0\1", 4);
    char text[128], masks[128], one[128];
    snprintf(text, sizeof text, "%s/t", s.dir);
    snprintf(masks, sizeof masks, "%s/m", s.dir);
    snprintf(one, sizeof one, "%s/m/a.mask", s.dir);
    const char *paths[] = {text}, *mask_paths[] = {masks};
    struct zt_dataset_opts o = options(paths, 1, 3, 256);
    struct zt_dataset *d;
    struct zt_err err;
    o.masks = (struct zt_str_list){1, mask_paths};
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    check_row(d, 3, 0, "abc", ".cd", "012");
    check_row(d, 3, 1, "def", "..g", "012");
    check_row(d, 3, 2, "hij", "i.k", "012");
    struct zt_str line = {0};
    zt_dataset_describe(d, &line);
    CHECK(strstr(zt_str_get(&line), ", targets masked"));
    zt_str_release(&line);
    zt_dataset_free(d);

    o.packed = true;
    o.separator = -1;
    o.seq_len = 5;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    check_row(d, 5, 0, "abcde", ".cd..", "01234");
    check_row(d, 5, 1, "fghij", "g.i.k", "01012");
    zt_dataset_free(d);

    mask_paths[0] = one;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "b.txt: no mask file"));
    put(&s, "m/b.mask", "\1\1\0", 3);
    mask_paths[0] = masks;
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "b.mask: 3 bytes") && strstr(err.msg, "b.txt has 4 tokens"));
    put(&s, "m/b.mask", "\1\1\0\2", 4);
    put(&s, "m/c.mask", "", 0);
    CHECK_INT(zt_dataset_open(&o, &d, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "c.mask: one mask file too many") && strstr(err.msg, "3 for 2"));
    sandbox_release(&s);
}

TEST(dataset_mask_is_0_or_1)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "a.txt", "abcd", 4);
    put(&s, "a.mask", "\1\0\2\1", 4);
    char text[128], mask[128];
    snprintf(text, sizeof text, "%s/a.txt", s.dir);
    snprintf(mask, sizeof mask, "%s/a.mask", s.dir);
    const char *paths[] = {text}, *masks[] = {mask};
    struct zt_dataset_opts o = options(paths, 1, 3, 256);
    struct zt_dataset *d;
    struct zt_err err;
    int32_t x[3], y[3];
    o.masks = (struct zt_str_list){1, masks};
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    CHECK_INT(get(d, 3, 0, x, y, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "a.mask: byte 2 is 2"));
    zt_dataset_free(d);
    sandbox_release(&s);
}

/* ---- marks: by what hosts tell that they have the same ---- */

static int64_t digest_of(const struct zt_dataset_opts *o, size_t *n)
{
    struct zt_marks m = {0};
    struct zt_dataset *d;
    struct zt_err err;
    int64_t digest = -1;
    if (zt_dataset_open(o, &d, &err))
        return digest;
    zt_dataset_marks(d, &m);
    zt_marks_read(&m);
    *n = m.n;
    digest = zt_marks_digest(&m, m.n);
    zt_marks_release(&m);
    zt_dataset_free(d);
    return digest;
}

TEST(dataset_marks_of_what_is_read)
{
    struct sandbox s;
    sandbox_init(&s);
    RETURN_IF_FAILED();
    put(&s, "t/a.txt", "abcdefg", 7);
    put(&s, "t/b.txt", "hijk", 4);
    put(&s, "u/1.txt", "abcdefg", 7);
    put(&s, "u/2.txt", "hijk", 4);
    put(&s, "m/a.mask", "\1\0\1\1\0\0\1", 7);
    put(&s, "m/b.mask", "\1\1\0\1", 4);
    char text[128], other[128], mask[128];
    snprintf(text, sizeof text, "%s/t", s.dir);
    snprintf(other, sizeof other, "%s/u", s.dir);
    snprintf(mask, sizeof mask, "%s/m", s.dir);
    const char *paths[] = {text}, *others[] = {other}, *masks[] = {mask}, *both[] = {text, other};
    const char *turned[] = {other, text};
    struct zt_dataset_opts o = options(paths, 1, 3, 256), u = options(others, 1, 3, 256);
    size_t n = 0;

    const int64_t plain = digest_of(&o, &n);
    CHECK(plain >= 0);
    CHECK_INT(n, 2);
    CHECK(digest_of(&u, &n) == plain); /* whatever they are called */

    put(&s, "u/1.txt", "abcdefG", 7);
    CHECK(digest_of(&u, &n) != plain);
    u.range[1] = 6; /* what lies outside is not read */
    o.range[1] = 6;
    CHECK(digest_of(&u, &n) == digest_of(&o, &n));
    CHECK_INT(n, 1);
    u.range[1] = o.range[1] = -1;

    o.masks = (struct zt_str_list){1, masks};
    const int64_t masked = digest_of(&o, &n);
    CHECK_INT(n, 4);
    CHECK(masked != plain);
    put(&s, "m/b.mask", "\1\1\1\1", 4);
    CHECK(digest_of(&o, &n) != masked && n == 4);
    o.masks.n = 0;

    const double weights[] = {1, 1};
    o.weights = weights;
    o.paths = (struct zt_str_list){2, both};
    const int64_t blend = digest_of(&o, &n);
    CHECK_INT(n, 4);
    o.paths = (struct zt_str_list){2, turned};
    CHECK(digest_of(&o, &n) != blend);
    sandbox_release(&s);
}

/* A Megatron pair is two marks: the same tokens in other documents are other samples. */
TEST(dataset_marks_of_an_index)
{
    const char *paths[] = {MEGATRON};
    struct zt_dataset_opts o = options(paths, 1, 2, 65536);
    struct zt_marks m = {0};
    struct zt_dataset *d;
    struct zt_err err;
    CHECK_OK(zt_dataset_open(&o, &d, &err), err);
    zt_dataset_marks(d, &m);
    CHECK_INT(m.n, 2);
    CHECK_STR(m.items[0].unit, "tokens");
    CHECK_STR(m.items[1].unit, "documents");
    CHECK(m.items[0].n == zt_dataset_tokens(d) && m.items[1].n > 0 && m.items[1].bytes > 34);
    zt_marks_release(&m);
    zt_dataset_free(d);
}

TEST_MAIN()
