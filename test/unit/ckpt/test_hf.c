/* The folder that transformers loads: names, shapes, types, shards, config.json. */
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/hf.h"
#include "ckpt/safetensors.h"
#include "ckpt/safetensors_write.h"
#include "unit/ckpt/st_find.h"
#include "unit/models.h"

struct bench {
    char dir[64], out[96];
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_hf_opts opts;
    struct zt_hf_result result;
    struct zt_err err;
};

/* Values that tell where they belong, and do not fit into 16 bits. */
static float value_at(int param, int64_t i)
{
    return (float)(param + 1) + (float)i * 0x1p-12f + 0x1p-20f;
}

static int read_values(void *ctx, int param, int64_t begin, int64_t n, float *out,
                       struct zt_err *err)
{
    const struct zt_model *m = ctx;
    (void)err;
    if (begin + n > m->params[param].n_elems)
        abort();
    for (int64_t i = 0; i < n; i++)
        out[i] = value_at(param, begin + i);
    return 0;
}

static int read_large(void *ctx, int param, int64_t begin, int64_t n, float *out,
                      struct zt_err *err)
{
    int rc = read_values(ctx, param, begin, n, out, err);
    if (param == 3)
        out[n - 1] = 65520;
    return rc;
}

static int read_fails(void *ctx, int param, int64_t begin, int64_t n, float *out,
                      struct zt_err *err)
{
    if (param == 5)
        return zt_err_set(err, ZT_EIO, "planted");
    return read_values(ctx, param, begin, n, out, err);
}

static void bench_init(struct bench *b, const struct zt_model_config *cfg, const char *type)
{
    memset(b, 0, sizeof *b);
    CHECK_OK(zt_model_build(cfg, &b->arena, &b->model, &b->err), b->err);
    snprintf(b->dir, sizeof b->dir, "build/test-hf-XXXXXX");
    if ((mkdir("build", 0777) && access("build", W_OK)) || !mkdtemp(b->dir))
        FAIL("no folder under build/");
    snprintf(b->out, sizeof b->out, "%s/out", b->dir);
    b->opts = (struct zt_hf_opts){.dir = b->out,
                                  .model = b->model,
                                  .model_type = type,
                                  .dtype = ZT_F32,
                                  .max_shard_bytes = 1 << 30};
}

static void bench_release(struct bench *b)
{
    char cmd[128];
    zt_arena_release(&b->arena);
    snprintf(cmd, sizeof cmd, "rm -r '%s'", b->dir);
    CHECK_INT(system(cmd), 0);
}

static int write_it(struct bench *b)
{
    struct zt_hf_source source = {b->model, read_values};
    return zt_hf_write(&b->opts, &source, &b->result, &b->err);
}

static const struct zt_model_config llama = {
    .type = ZT_MODEL_LLAMA,
    .n_layer = 2,
    .n_head = 4,
    .n_kv_head = 2,
    .n_embd = 16,
    .n_inner = 24,
    .vocab_size = 13,
    .n_positions = 32,
    .norm_eps = 1e-6f,
    .initializer_range = 0.02f,
};

static const char *path_in(struct bench *b, const char *name)
{
    return zt_arena_printf(&b->arena, "%s/%s", b->out, name);
}

static void check_values(struct bench *b)
{
    struct zt_weights w;
    CHECK_OK(zt_weights_open(b->out, b->model, &w, &b->err), b->err);
    for (int p = 0; p < b->model->n_params; p++) {
        for (int64_t i = 0; i < b->model->params[p].n_elems; i++) {
            float got, want = value_at(p, i);
            if (b->opts.dtype == ZT_BF16)
                want = zt_bf16_to_f32(zt_f32_to_bf16(want));
            if (b->opts.dtype == ZT_F16)
                want = zt_f16_to_f32(zt_f32_to_f16(want));
            zt_weights_read_f32(&w, p, i, 1, &got);
            if (got != want)
                FAIL("%s[%lld] is %a, not %a", b->model->params[p].name, (long long)i, (double)got,
                     (double)want);
        }
    }
    zt_weights_close(&w);
}

/* Case S06: a tied head is not written. */
TEST(hf_s06_gpt2_tied)
{
    struct bench b;
    struct zt_st_file f;
    bench_init(&b, &gpt2_fixture, "gpt2");
    RETURN_IF_FAILED();
    CHECK_OK(write_it(&b), b.err);
    CHECK_INT(b.result.n_tensors, 28);
    CHECK_INT(b.result.n_elems, 572);
    CHECK_INT(b.result.bytes, 572 * 4);
    CHECK_INT(b.result.n_shards, 1);
    CHECK_OK(zt_st_open(path_in(&b, "model.safetensors"), &f, &b.err), b.err);
    CHECK_INT(f.n_tensors, 28);
    CHECK(!st_find(&f, "lm_head.weight"));
    CHECK(st_find(&f, "transformer.wte.weight"));
    const struct zt_st_tensor *t = st_find(&f, "transformer.h.1.attn.c_attn.weight");
    CHECK(t && t->dims[0] == 4 && t->dims[1] == 12);
    CHECK_INT((uintptr_t)t->data % 8, 0);
    zt_st_close(&f);
    CHECK(access(path_in(&b, "model.safetensors.index.json"), F_OK) != 0);
    check_values(&b);
    bench_release(&b);
}

TEST(hf_s06_llama_untied)
{
    struct bench b;
    struct zt_st_file f;
    bench_init(&b, &llama, "llama");
    RETURN_IF_FAILED();
    CHECK_OK(write_it(&b), b.err);
    CHECK_OK(zt_st_open(path_in(&b, "model.safetensors"), &f, &b.err), b.err);
    CHECK_INT(f.n_tensors, 21);
    CHECK(st_find(&f, "lm_head.weight"));
    CHECK(st_find(&f, "model.layers.0.self_attn.q_proj.weight"));
    CHECK(st_find(&f, "model.norm.weight"));
    zt_st_close(&f);
    check_values(&b);
    bench_release(&b);
}

TEST(hf_types)
{
    static const enum zt_dtype types[] = {ZT_BF16, ZT_F16};
    for (size_t i = 0; i < ZT_ARRAY_LEN(types); i++) {
        struct bench b;
        struct zt_st_file f;
        bench_init(&b, &gpt2_fixture, "gpt2");
        RETURN_IF_FAILED();
        b.opts.dtype = types[i];
        CHECK_OK(write_it(&b), b.err);
        CHECK_INT(b.result.bytes, 572 * 2);
        CHECK_OK(zt_st_open(path_in(&b, "model.safetensors"), &f, &b.err), b.err);
        CHECK_STR(f.tensors[0].dtype_name, i == 0 ? "BF16" : "F16");
        zt_st_close(&f);
        check_values(&b);
        bench_release(&b);
        RETURN_IF_FAILED();
    }
}

static bool nothing_left(struct bench *b)
{
    char cmd[160];
    snprintf(cmd, sizeof cmd, "test -z \"$(ls -A '%s')\"", b->dir);
    return system(cmd) == 0;
}

TEST(hf_too_large_for_fp16)
{
    struct bench b;
    bench_init(&b, &gpt2_fixture, "gpt2");
    RETURN_IF_FAILED();
    struct zt_hf_source source = {b.model, read_large};
    b.opts.dtype = ZT_F16;
    CHECK_INT(zt_hf_write(&b.opts, &source, &b.result, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "h.0.ln_1.bias: a value of 65520 is too large for fp16"));
    CHECK(nothing_left(&b));
    b.opts.dtype = ZT_BF16;
    CHECK_OK(zt_hf_write(&b.opts, &source, &b.result, &b.err), b.err);
    bench_release(&b);
}

/* A source that fails leaves neither the folder nor its temporary one. */
TEST(hf_failed_source_leaves_nothing)
{
    struct bench b;
    bench_init(&b, &gpt2_fixture, "gpt2");
    RETURN_IF_FAILED();
    struct zt_hf_source source = {b.model, read_fails};
    CHECK_INT(zt_hf_write(&b.opts, &source, &b.result, &b.err), ZT_EIO);
    CHECK_STR(b.err.msg, "planted");
    CHECK(nothing_left(&b));
    bench_release(&b);
}

TEST(hf_shards)
{
    struct bench b;
    bench_init(&b, &llama, "llama");
    RETURN_IF_FAILED();
    b.opts.max_shard_bytes = 4000;
    CHECK_OK(write_it(&b), b.err);
    CHECK(b.result.n_shards > 3);
    struct zt_str index = {0};
    CHECK_OK(zt_read_file(path_in(&b, "model.safetensors.index.json"), 1 << 20, &index, &b.err),
             b.err);
    CHECK(strstr(index.buf, "\"total_size\": 17344"));
    CHECK(strstr(index.buf, "\"total_parameters\": 4336"));
    CHECK(strstr(index.buf, "\"lm_head.weight\": \"model-000"));
    zt_str_release(&index);
    for (int i = 1; i <= b.result.n_shards; i++) {
        struct zt_st_file f;
        char name[64];
        size_t bytes = 0;
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, b.result.n_shards);
        CHECK_OK(zt_st_open(path_in(&b, name), &f, &b.err), b.err);
        for (int j = 0; j < f.n_tensors; j++)
            bytes += f.tensors[j].bytes;
        CHECK(bytes <= 4000 && f.n_tensors > 0);
        zt_st_close(&f);
    }
    check_values(&b);
    bench_release(&b);
}

/* Each tensor is larger than a shard may be: a file for each, and none is empty. */
TEST(hf_one_tensor_a_shard)
{
    struct bench b;
    bench_init(&b, &gpt2_fixture, "gpt2");
    RETURN_IF_FAILED();
    b.opts.max_shard_bytes = 1;
    CHECK_OK(write_it(&b), b.err);
    CHECK_INT(b.result.n_shards, 28);
    check_values(&b);
    bench_release(&b);
}

static void put_file(struct bench *b, const char *name, const char *text)
{
    CHECK_OK(zt_write_file_atomic(path_in(b, name), text, strlen(text), &b->err), b->err);
}

TEST(hf_folder_that_is_there)
{
    struct bench b;
    bench_init(&b, &gpt2_fixture, "gpt2");
    RETURN_IF_FAILED();
    CHECK(mkdir(b.out, 0777) == 0);
    CHECK_OK(write_it(&b), b.err); /* an empty one is as good as none */
    CHECK_INT(write_it(&b), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "is not empty"));
    b.opts.force = true;
    put_file(&b, "tokenizer.json", "{}");
    b.opts.max_shard_bytes = 500;
    CHECK_OK(write_it(&b), b.err);
    CHECK(access(path_in(&b, "model.safetensors"), F_OK) != 0); /* the old one is gone whole */
    CHECK(access(path_in(&b, "tokenizer.json"), F_OK) != 0);
    check_values(&b);
    put_file(&b, "thesis.tex", "x");
    CHECK_INT(write_it(&b), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "holds thesis.tex, which is no part of a model"));
    CHECK(access(path_in(&b, "thesis.tex"), F_OK) == 0);
    bench_release(&b);
}

TEST(hf_companions)
{
    struct bench b;
    char from[128];
    bench_init(&b, &gpt2_fixture, "gpt2");
    RETURN_IF_FAILED();
    CHECK(mkdir(b.out, 0777) == 0);
    put_file(&b, "tokenizer.json", "{\"a\": 1}");
    put_file(&b, "merges.txt", "");
    put_file(&b, "README.md", "x");
    put_file(&b, "config.json",
             "{\"model_type\": \"gpt2\", \"eos_token_id\": [3, 4], \"n_layer\": 7}");
    snprintf(from, sizeof from, "%s/from", b.dir);
    CHECK(rename(b.out, from) == 0);
    b.opts.from = from;
    CHECK_OK(write_it(&b), b.err);
    CHECK_INT(b.result.n_copied, 2);
    struct zt_str text = {0};
    CHECK_OK(zt_read_file(path_in(&b, "tokenizer.json"), 1 << 20, &text, &b.err), b.err);
    CHECK_STR(text.buf, "{\"a\": 1}");
    CHECK(access(path_in(&b, "README.md"), F_OK) != 0);
    zt_str_reset(&text);
    CHECK_OK(zt_read_file(path_in(&b, "config.json"), 1 << 20, &text, &b.err), b.err);
    CHECK(strstr(text.buf, "\"eos_token_id\": [3,4]"));
    CHECK(strstr(text.buf, "\"bos_token_id\": null"));
    CHECK(strstr(text.buf, "\"n_layer\": 2"));
    zt_str_release(&text);
    bench_release(&b);
}

static void config_has(struct bench *b, const char *line)
{
    struct zt_str text = {0};
    CHECK_OK(zt_hf_config(&b->opts, &text, &b->err), b->err);
    bool found = strstr(text.buf, line);
    if (!found)
        printf("%s", text.buf);
    zt_str_release(&text);
    if (!found)
        FAIL("no %s", line);
}

TEST(hf_config_gpt2)
{
    struct bench b;
    struct zt_model_config cfg = gpt2_fixture;
    cfg.vocab_size = 50257;
    cfg.n_inner = 20;
    cfg.resid_pdrop = 0.1;
    bench_init(&b, &cfg, "gpt2");
    RETURN_IF_FAILED();
    b.opts.dtype = ZT_BF16;
    config_has(&b, "\"layer_norm_epsilon\": 1e-05,");
    config_has(&b, "\"initializer_range\": 0.02,");
    config_has(&b, "\"resid_pdrop\": 0.1,");
    config_has(&b, "\"attn_pdrop\": 0.0,");
    config_has(&b, "\"n_inner\": 20,");
    config_has(&b, "\"eos_token_id\": 50256,");
    config_has(&b, "\"torch_dtype\": \"bfloat16\",");
    config_has(&b, "\"tie_word_embeddings\": true,");
    config_has(&b, "\"GPT2LMHeadModel\"");
    bench_release(&b);
}

TEST(hf_config_rotary)
{
    struct bench b;
    struct zt_model_config cfg = llama;
    cfg.rope = (struct zt_rope_rule){.kind = ZT_ROPE_LLAMA3,
                                     .theta = 5e5,
                                     .factor = 8,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4,
                                     .original_positions = 8192};
    bench_init(&b, &cfg, "llama");
    RETURN_IF_FAILED();
    config_has(&b, "\"rope_theta\": 500000.0,");
    config_has(&b, "\"original_max_position_embeddings\": 8192,");
    config_has(&b, "\"factor\": 8.0,");
    config_has(&b, "\"head_dim\": 4,");
    config_has(&b, "\"num_key_value_heads\": 2,");
    config_has(&b, "\"eos_token_id\": null,");
    config_has(&b, "\"rms_norm_eps\": 1e-06,");
    b.opts.model_type = "mistral";
    config_has(&b, "\"sliding_window\": null,");
    b.opts.sliding_window = 64;
    config_has(&b, "\"sliding_window\": 64,");
    b.opts.model_type = "qwen2";
    config_has(&b, "\"sliding_window\": null,");
    config_has(&b, "\"use_sliding_window\": false,");
    b.opts.model_type = "mamba";
    struct zt_str text = {0};
    CHECK_INT(zt_hf_config(&b.opts, &text, &b.err), ZT_EUNSUPPORTED);
    bench_release(&b);
}

/* The header alone: what the writer makes, the reader takes. */
TEST(st_header)
{
    static const int64_t dims[] = {2, 3};
    static const struct zt_st_entry entries[] = {
        {"a", ZT_F32, 2, dims}, {"b \"x\"", ZT_I64, 1, dims}, {"s", ZT_F16, 0, NULL}};
    static const struct zt_st_meta meta[] = {{"format", "pt"}, {"k", "v"}};
    static const char zeros[42];
    struct zt_str bytes = {0};
    struct zt_st_file f;
    struct zt_err err;
    size_t n;
    CHECK_OK(zt_st_header(entries, 3, meta, 2, &bytes, &n, &err), err);
    CHECK_INT(n, 24 + 16 + 2);
    CHECK_INT(bytes.len % 8, 0);
    zt_str_add(&bytes, zeros, n);
    CHECK_OK(zt_st_parse("x", bytes.buf, bytes.len, &f, &err), err);
    CHECK_INT(f.n_tensors, 3);
    CHECK(st_find(&f, "b \"x\"") && st_find(&f, "s")->n_dims == 0);
    zt_st_close(&f);
    zt_str_release(&bytes);
}

/* Nothing has the file's name before it is whole. */
TEST(st_writer_is_atomic)
{
    static const int64_t dims[] = {2};
    static const struct zt_st_entry entry = {"a", ZT_F32, 1, dims};
    static const float x[2] = {1, 2};
    struct zt_str header = {0};
    struct zt_st_writer w;
    struct zt_err err;
    size_t n;
    char path[64];
    CHECK(mkdir("build", 0777) == 0 || access("build", W_OK) == 0);
    snprintf(path, sizeof path, "build/test-st-%ld", (long)getpid());
    CHECK_OK(zt_st_header(&entry, 1, NULL, 0, &header, &n, &err), err);
    CHECK_OK(zt_st_create(path, &header, n, &w, &err), err);
    CHECK_OK(zt_st_append(&w, x, sizeof x, &err), err);
    CHECK(access(path, F_OK) != 0);
    zt_st_abandon(&w);
    zt_st_abandon(&w);
    CHECK_OK(zt_st_create(path, &header, n, &w, &err), err);
    CHECK_OK(zt_st_append(&w, x, 4, &err), err);
    CHECK_OK(zt_st_append(&w, x + 1, 4, &err), err);
    CHECK_OK(zt_st_commit(&w, &err), err);
    struct zt_st_file f;
    CHECK_OK(zt_st_open(path, &f, &err), err);
    zt_st_close(&f);
    CHECK(unlink(path) == 0);
    CHECK_INT(zt_st_create("/no/such/x", &header, n, &w, &err), ZT_EIO);
    zt_str_release(&header);
}

TEST_MAIN()
