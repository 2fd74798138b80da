/* Cases D09 (transposed matrices, buffers) and S06 (tied weights), on the GPT-2 fixture. */
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "unit/ckpt/st_find.h"
#include "unit/ckpt/st_writer.h"
#include "unit/models.h"

#define FIXTURE "test/cases/fixture_gpt2"

static struct zt_model *fixture_model(struct zt_arena *a, bool tied)
{
    struct zt_model_config cfg = gpt2_fixture;
    struct zt_model *m = NULL;
    struct zt_err err;
    cfg.tie_embeddings = tied;
    if (zt_model_build(&cfg, a, &m, &err)) {
        printf("%s\n", err.msg);
        abort();
    }
    return m;
}

/* One test's folder, model and the fixture's tensors to change and write. */
struct bench {
    char dir[64];
    struct zt_arena arena;
    struct zt_model *tied, *untied;
    struct zt_st_file src;
    struct st_writer w;
    struct zt_weights weights;
    struct zt_err err;
};

static void bench_init(struct bench *b)
{
    memset(b, 0, sizeof *b);
    b->tied = fixture_model(&b->arena, true);
    b->untied = fixture_model(&b->arena, false);
    snprintf(b->dir, sizeof b->dir, "build/test-weights-XXXXXX");
    if ((mkdir("build", 0777) && access("build", W_OK)) || !mkdtemp(b->dir))
        FAIL("no folder under build/");
    CHECK_OK(zt_st_open(FIXTURE "/model.safetensors", &b->src, &b->err), b->err);
}

static void bench_release(struct bench *b)
{
    char cmd[128];
    zt_st_close(&b->src);
    zt_arena_release(&b->arena);
    snprintf(cmd, sizeof cmd, "rm -r '%s'", b->dir);
    CHECK_INT(system(cmd), 0);
}

static void put_as(struct bench *b, const struct zt_st_tensor *t, const char *name)
{
    char shape[64];
    if (t->n_dims == 2)
        snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)t->dims[0], (long long)t->dims[1]);
    else
        snprintf(shape, sizeof shape, "[%lld]", (long long)t->dims[0]);
    st_put(&b->w, name, "F32", shape, t->data, t->bytes);
}

/* All tensors of the fixture but `except`. */
static void put_all(struct bench *b, const char *except)
{
    for (int i = 0; i < b->src.n_tensors; i++) {
        const struct zt_st_tensor *t = &b->src.tensors[i];
        if (!except || strcmp(t->name, except) != 0)
            put_as(b, t, t->name);
    }
}

static void write_text(struct bench *b, const char *name, const void *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", b->dir, name);
    CHECK_OK(zt_write_file_atomic(path, bytes, n, &b->err), b->err);
}

static void write_tensors(struct bench *b, const char *name)
{
    struct zt_str out = {0};
    st_finish(&b->w, &out);
    write_text(b, name, out.buf, out.len);
    zt_str_release(&out);
}

static int open_as(struct bench *b, const struct zt_model *m)
{
    return zt_weights_open(b->dir, m, &b->weights, &b->err);
}

/* Write model.safetensors and open it; a success is closed again. */
static int try_open(struct bench *b, const struct zt_model *m)
{
    write_tensors(b, "model.safetensors");
    int rc = open_as(b, m);
    if (!rc)
        zt_weights_close(&b->weights);
    return rc;
}

#define CHECK_REFUSED(b, call, text)                                                               \
    do {                                                                                           \
        CHECK_INT(call, ZT_EINPUT);                                                                \
        if (!strstr((b)->err.msg, text))                                                           \
            FAIL("%s", (b)->err.msg);                                                              \
    } while (0)

TEST(weights_fixture)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    CHECK_OK(zt_weights_open(FIXTURE, b.tied, &b.weights, &b.err), b.err);
    CHECK_INT(b.weights.n_files, 1);
    for (int i = 0; i < b.tied->n_params; i++) {
        const struct zt_st_tensor *t = b.weights.tensors[i];
        char name[128];
        snprintf(name, sizeof name, "transformer.%s", b.tied->params[i].name);
        CHECK_STR(t->name, name);
        CHECK_INT(t->n_elems, b.tied->params[i].n_elems);
    }
    zt_weights_close(&b.weights);
    bench_release(&b);
}

TEST(weights_names_without_prefix)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    for (int i = 0; i < b.src.n_tensors; i++)
        put_as(&b, &b.src.tensors[i], b.src.tensors[i].name + strlen("transformer."));
    CHECK_OK(try_open(&b, b.tied), b.err);
    put_all(&b, NULL);
    put_as(&b, st_find(&b.src, "transformer.wpe.weight"), "wpe.weight");
    CHECK_REFUSED(&b, try_open(&b, b.tied), "wpe.weight is there twice");
    bench_release(&b);
}

TEST(weights_d09_buffers_are_ignored)
{
    static const float mask[64];
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    put_all(&b, NULL);
    st_put(&b.w, "transformer.h.0.attn.bias", "F32", "[1,1,8,8]", mask, 256);
    st_put(&b.w, "h.1.attn.bias", "U8", "[1,1,8,8]", mask, 64);
    st_put(&b.w, "h.1.attn.masked_bias", "F32", "[]", mask, 4);
    CHECK_OK(try_open(&b, b.tied), b.err);
    put_all(&b, NULL);
    st_put(&b.w, "transformer.h.0.attn.bias", "F32", "[64]", mask, 256);
    CHECK_REFUSED(&b, try_open(&b, b.tied), "transformer.h.0.attn.bias: the model has no such");
    put_all(&b, "transformer.h.0.attn.c_attn.bias");
    CHECK_REFUSED(&b, try_open(&b, b.tied), "h.0.attn.c_attn.bias is missing");
    bench_release(&b);
}

/* Old Llama files hold the frequencies of the rotary angles in every layer. */
TEST(weights_llama_frequencies_are_ignored)
{
    static const float two[2] = {1, 0.01f}, three[3];
    struct bench b;
    struct zt_model *m;
    bench_init(&b);
    RETURN_IF_FAILED();
    zt_st_close(&b.src);
    CHECK_OK(zt_st_open("test/cases/fixture_llama/model.safetensors", &b.src, &b.err), b.err);
    CHECK_OK(zt_model_build(&llama_fixture, &b.arena, &m, &b.err), b.err);
    put_all(&b, NULL);
    CHECK_OK(try_open(&b, m), b.err);
    put_all(&b, NULL);
    st_put(&b.w, "model.layers.1.self_attn.rotary_emb.inv_freq", "F32", "[2]", two, sizeof two);
    CHECK_OK(try_open(&b, m), b.err);
    put_all(&b, NULL);
    st_put(&b.w, "model.layers.1.self_attn.rotary_emb.inv_freq", "F32", "[3]", three, sizeof three);
    CHECK_REFUSED(&b, try_open(&b, m), "inv_freq: the model has no such parameter");
    put_all(&b, "model.layers.0.mlp.up_proj.weight");
    CHECK_REFUSED(&b, try_open(&b, m), "layers.0.mlp.up_proj.weight is missing");
    bench_release(&b);
}

TEST(weights_d09_transposed)
{
    static const char name[] = "transformer.h.0.mlp.c_fc.weight";
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    put_all(&b, name);
    st_put(&b.w, name, "F32", "[16,4]", st_find(&b.src, name)->data, 256);
    CHECK_REFUSED(&b, try_open(&b, b.tied), "shape (16, 4), the model has (4, 16) (transposed?)");
    bench_release(&b);
}

TEST(weights_all_problems_at_once)
{
    static const double ones[4];
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    for (int i = 1; i < b.src.n_tensors; i++) {
        if (strcmp(b.src.tensors[i].name, "transformer.ln_f.bias") != 0)
            put_as(&b, &b.src.tensors[i], b.src.tensors[i].name);
    }
    st_put(&b.w, "surplus", "F32", "[1]", ones, 4);
    st_put(&b.w, "ln_f.bias", "F64", "[4]", ones, 32);
    CHECK_REFUSED(&b, try_open(&b, b.tied), "surplus: the model has no such parameter");
    CHECK(strstr(b.err.msg, "ln_f.bias: type F64"));
    CHECK(strstr(b.err.msg, "wte.weight is missing"));
    for (int i = 0; i < 500; i++) {
        char name[32];
        snprintf(name, sizeof name, "surplus.%d", i);
        st_put(&b.w, name, "F32", "[1]", ones, 4);
    }
    CHECK_REFUSED(&b, try_open(&b, b.tied), "more");
    CHECK(strstr(b.err.msg, "surplus.0:"));
    bench_release(&b);
}

TEST(weights_s06_tied_head)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    const struct zt_st_tensor *wte = st_find(&b.src, "transformer.wte.weight");
    float other[44];
    put_all(&b, NULL);
    put_as(&b, wte, "lm_head.weight");
    CHECK_OK(try_open(&b, b.tied), b.err);
    put_all(&b, NULL);
    put_as(&b, wte, "lm_head.weight");
    CHECK_OK(try_open(&b, b.untied), b.err);
    zt_st_read_f32(wte, 0, 44, other);
    other[43] += 1;
    put_all(&b, NULL);
    st_put(&b.w, "lm_head.weight", "F32", "[11,4]", other, sizeof other);
    CHECK_REFUSED(&b, try_open(&b, b.tied), "lm_head.weight differs from transformer.wte.weight");
    put_all(&b, NULL);
    st_put(&b.w, "lm_head.weight", "F32", "[4,11]", wte->data, wte->bytes);
    CHECK_REFUSED(&b, try_open(&b, b.tied), "lm_head.weight differs");
    put_all(&b, NULL);
    CHECK_REFUSED(&b, try_open(&b, b.untied), "lm_head.weight is missing");
    bench_release(&b);
}

/* As safetensors' save_model() stores what is tied: by the name that comes first, once. */
TEST(weights_tied_head_alone)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    const struct zt_st_tensor *wte = st_find(&b.src, "transformer.wte.weight");
    float want[44], got[44] = {0};
    zt_st_read_f32(wte, 0, 44, want);
    put_all(&b, "transformer.wte.weight");
    put_as(&b, wte, "lm_head.weight");
    write_tensors(&b, "model.safetensors");
    CHECK_OK(open_as(&b, b.tied), b.err);
    zt_weights_read_f32(&b.weights, 0, 0, 44, got);
    CHECK(memcmp(got, want, sizeof got) == 0);
    zt_weights_close(&b.weights);
    CHECK_REFUSED(&b, open_as(&b, b.untied), "wte.weight is missing");
    put_all(&b, "transformer.wte.weight");
    st_put(&b.w, "lm_head.weight", "F32", "[4,11]", wte->data, wte->bytes);
    CHECK_REFUSED(&b, try_open(&b, b.tied), "lm_head.weight: shape (4, 11), the model has (11, 4)");
    bench_release(&b);
}

/* Two shards and an index of all names; `break_index` rewrites its text. */
static void write_shards(struct bench *b, const char *find, const char *replace)
{
    struct zt_str index = {0};
    int half = b->src.n_tensors / 2;
    zt_str_puts(&index, "{\"metadata\":{},\"weight_map\":{");
    for (int i = 0; i < b->src.n_tensors; i++) {
        const struct zt_st_tensor *t = &b->src.tensors[i];
        put_as(b, t, t->name);
        zt_str_printf(&index, "%s\"%s\":\"%s.safetensors\"", i ? "," : "", t->name,
                      i < half ? "one" : "two");
        if (i == half - 1)
            write_tensors(b, "one.safetensors");
    }
    write_tensors(b, "two.safetensors");
    zt_str_puts(&index, "}}");
    const char *at = find ? strstr(index.buf, find) : NULL;
    CHECK(!find || at);
    struct zt_str text = {0};
    zt_str_add(&text, index.buf, at ? (size_t)(at - index.buf) : index.len);
    if (at) {
        zt_str_puts(&text, replace);
        zt_str_puts(&text, at + strlen(find));
    }
    write_text(b, "model.safetensors.index.json", text.buf, text.len);
    zt_str_release(&index);
    zt_str_release(&text);
}

TEST(weights_shards)
{
    static const struct {
        const char *find, *replace, *message;
    } cases[] = {
        {"two.safetensors", "gone.safetensors", "shard gone.safetensors: No such file"},
        {"two.safetensors", "../two.safetensors", "\"../two.safetensors\" is no name of a file"},
        {"two.safetensors", "/etc/passwd", "\"/etc/passwd\" is no name of a file"},
        {"two.safetensors", "..", "\"..\" is no name of a file"},
        {"\"transformer.wte.weight\":\"one", "\"transformer.wte.weight\":\"two",
         "transformer.wte.weight is not in its shard two.safetensors"},
        {"\"transformer.wpe.weight\":", "\"nothing\":", "nothing is not in its shard one"},
        {"\"transformer.wpe.weight\":", "\"nothing\":", "wpe.weight is not in the index"},
        {"weight_map", "weight-map", "no weight_map"},
        {"{\"metadata\"", "{metadata", "index.json:1:"},
    };
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    write_shards(&b, NULL, NULL);
    CHECK_OK(open_as(&b, b.tied), b.err);
    CHECK_INT(b.weights.n_files, 2);
    zt_weights_close(&b.weights);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        write_shards(&b, cases[i].find, cases[i].replace);
        CHECK_REFUSED(&b, open_as(&b, b.tied), cases[i].message);
    }
    bench_release(&b);
}

/* S06's index names a tensor that its shard does not hold. */
TEST(weights_s06_index_with_missing_lm_head)
{
    static const float x[16];
    struct bench b;
    struct zt_str index = {0};
    bench_init(&b);
    RETURN_IF_FAILED();
    CHECK_OK(
        zt_read_file("test/cases/S06/index_with_missing_lm_head.json", 1 << 20, &index, &b.err),
        b.err);
    write_text(&b, "model.safetensors.index.json", index.buf, index.len);
    st_put(&b.w, "model.embed_tokens.weight", "F32", "[4,4]", x, sizeof x);
    write_tensors(&b, "model-00001-of-00002.safetensors");
    CHECK_REFUSED(&b, open_as(&b, b.untied),
                  "lm_head.weight: shard model-00002-of-00002.safetensors");
    st_put(&b.w, "other", "F32", "[4,4]", x, sizeof x);
    write_tensors(&b, "model-00002-of-00002.safetensors");
    CHECK_REFUSED(&b, open_as(&b, b.untied), "lm_head.weight is not in its shard");
    zt_str_release(&index);
    bench_release(&b);
}

/* The names of S06's list are those of the model, in any order. */
TEST(weights_s06_names)
{
    struct zt_arena a = {0};
    struct zt_str names = {0};
    struct zt_err err;
    struct zt_model *m = fixture_model(&a, true);
    int n = 0;
    CHECK_OK(zt_read_file("test/cases/S06/gpt2_2layer_tied_names.txt", 1 << 20, &names, &err), err);
    for (char *line = names.buf, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        *end = '\0';
        if (zt_model_find_param(m, line) < 0)
            FAIL("%s is no parameter", line);
    }
    CHECK_INT(n, m->n_params);
    zt_str_release(&names);
    zt_arena_release(&a);
}

TEST(weights_no_folder)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    CHECK_REFUSED(&b, open_as(&b, b.tied), "neither model.safetensors nor");
    bench_release(&b);
}

static int64_t digest_of(const struct zt_weights *w, const struct zt_model *m)
{
    struct zt_marks marks = {0};
    zt_weights_marks(w, m, &marks);
    zt_marks_read(&marks);
    const int64_t digest = zt_marks_digest(&marks, marks.n);
    zt_marks_release(&marks);
    return digest;
}

/* By what hosts tell that they begin with the same: by values, whatever files they lie in. */
TEST(weights_marks)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    CHECK_OK(zt_weights_open(FIXTURE, b.tied, &b.weights, &b.err), b.err);
    const int64_t fixture = digest_of(&b.weights, b.tied);
    zt_weights_close(&b.weights);
    for (int changed = 0; changed < 2; changed++) {
        struct zt_str out = {0};
        for (int i = b.src.n_tensors - 1; i >= 0; i--) /* in another order */
            put_as(&b, &b.src.tensors[i], b.src.tensors[i].name);
        st_finish(&b.w, &out);
        out.buf[out.len - 1] ^= (char)changed;
        write_text(&b, "model.safetensors", out.buf, out.len);
        zt_str_release(&out);
        CHECK_OK(open_as(&b, b.tied), b.err);
        CHECK_INT(digest_of(&b.weights, b.tied) != fixture, changed);
        zt_weights_close(&b.weights);
    }
    bench_release(&b);
}

TEST_MAIN()
