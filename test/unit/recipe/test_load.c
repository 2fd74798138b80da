#include "recipe_test.h"

#include <unistd.h>

#include "base/io.h"

/* Case B02: flat keys of the file -> where a recipe says them. */
static const struct {
    const char *flat, *path;
} b02[] = {
    {"lr", "optimizer.params.lr"},
    {"min_lr", "scheduler.params.min_lr"},
    {"weight_decay", "optimizer.params.weight_decay"},
    {"eps", "optimizer.params.eps"},
    {"reduce_bucket_size", "zero_optimization.reduce_bucket_size"},
    {"prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
    {"clip", "gradient_clipping"},
    {"warmup_steps", "scheduler.params.warmup_steps"},
};

/* The value of `flat` in the file's text, as it stands there. */
static void raw_value(const char *text, const char *flat, char *out, size_t out_bytes)
{
    char key[64];
    snprintf(key, sizeof key, "\n%s: ", flat);
    const char *p = strstr(text, key);
    const char *v = p ? p + strlen(key) : "";
    snprintf(out, out_bytes, "%.*s", (int)strcspn(v, "\n"), v);
}

static void load_b02(const struct zt_str *text, struct zt_recipe **r)
{
    char value[64];
    const char *set[ZT_ARRAY_LEN(b02) + 3];
    struct zt_arena a = {0};
    int n = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(b02); i++) {
        raw_value(zt_str_get(text), b02[i].flat, value, sizeof value);
        set[n++] = zt_arena_printf(&a, "%s=%s", b02[i].path, value);
    }
    raw_value(zt_str_get(text), "beta2", value, sizeof value);
    set[n++] = zt_arena_printf(&a, "optimizer.params.betas=[.9, %s]", value);
    set[n++] = "scheduler.type=Cosine";
    set[n++] = "train.steps=100";
    const struct zt_recipe_opts o = {
        .path = "r.yaml", .text = TINY BATCH, .n_ranks = 1, .set = {n, set}};
    *r = load_opts(&o);
    zt_arena_release(&a);
}

TEST(recipe_numbers_b02)
{
    struct zt_str text = {0};
    CHECK_OK(zt_read_file("test/cases/B02/recipe_numbers.yaml", 4096, &text, &err), err);
    struct zt_recipe *r;
    load_b02(&text, &r);
    zt_str_release(&text);
    CHECK_LOADED(r);
    CHECK_NEAR(r->optimizer.lr, 2e-5, 0);
    CHECK_NEAR(r->schedule.lr, 2e-5, 0);
    CHECK_NEAR(r->schedule.min_lr, 2e-6, 0);
    CHECK_NEAR(r->optimizer.weight_decay, 0.1, 0);
    CHECK_NEAR(r->optimizer.eps, 1e-8, 0);
    CHECK_NEAR(r->optimizer.beta2, 0.95, 0);
    CHECK_NEAR(r->gradient_clipping, 1.0, 0);
    CHECK_INT(r->zero.reduce_bucket_size, 500000000);
    CHECK_INT(r->zero.prefetch_bucket_size, 15099494);
    CHECK(has_note(r, "15099494.4 is taken as 15099494"));
    CHECK_INT(r->schedule.warmup_steps, 10);
    zt_recipe_free(r);
}

TEST(recipe_numbers_quoted_and_signed)
{
    static const struct {
        const char *text;
        double want;
    } lr[] = {
        {"\"3e-4\"", 3e-4}, {"'3e-4'", 3e-4}, {"5e8", 5e8},       {"+1", 1},
        {"1e+3", 1e3},      {"1.0e5", 1e5},   {"0.000", 0},       {"1E-3", 1e-3},
        {"1", 1},           {"010", 10},      {"5e-324", 5e-324},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(lr); i++) {
        char set[64];
        snprintf(set, sizeof set, "optimizer.params.lr=%s", lr[i].text);
        struct zt_recipe *r = load_set(TINY BATCH, set);
        CHECK_LOADED(r);
        CHECK_NEAR(r->optimizer.lr, lr[i].want, 0);
        zt_recipe_free(r);
    }
}

/* Case B05 is zt_schedule_lr()'s; here only what it is given. */
TEST(recipe_schedules)
{
    struct zt_recipe *r = load_text(TINY BATCH "train: {steps: 77}\n"
                                               "scheduler: {type: Cosine, params: "
                                               "{warmup_steps: 7, min_lr: 1e-4}}\n",
                                    1);
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_COSINE);
    CHECK_INT(r->schedule.total_steps, 77);
    CHECK_INT(r->schedule.warmup_steps, 7);
    CHECK_NEAR(r->schedule.lr, 1e-3, 0);
    zt_recipe_free(r);

    r = load_text(TINY BATCH, 1);
    CHECK_LOADED(r);
    CHECK_INT(r->schedule.kind, ZT_SCHED_CONSTANT);
    CHECK_INT(r->schedule.warmup_steps, 0);
    zt_recipe_free(r);
}

TEST(recipe_defaults)
{
    struct zt_recipe *r = load_text(TINY BATCH, 2);
    CHECK_LOADED(r);
    CHECK_STR(r->path, "r.yaml");
    CHECK_INT(r->n_ranks, 2);
    CHECK_STR(r->optimizer.type, "AdamW");
    CHECK_INT(r->optimizer.kind, ZT_ADAMW);
    CHECK_NEAR(r->optimizer.beta1, 0.9, 0);
    CHECK_INT(r->precision, ZT_PREC_FP32);
    CHECK_INT(r->comm_dtype, -1);
    CHECK_INT(r->zero.stage, 0);
    CHECK(r->zero.overlap_comm && r->data.shuffle && r->activations.policy == ZT_KEEP_ALL);
    CHECK_INT(r->model.n_kv_head, 2);
    CHECK_INT(r->model.head_dim, 32);
    CHECK_INT(r->model.n_inner, 256);
    CHECK_INT(r->model.vocab_size, 256); /* text */
    CHECK(r->model.tie_word_embeddings);
    CHECK_STR(r->model.activation, "gelu_new");
    CHECK_INT(r->data.seq_len, 32);
    CHECK_INT(r->data.train.n, 1);
    CHECK_INT(r->data.range_train[0], -1);
    CHECK_STR(r->train.sample_prompt, "\n");
    CHECK(!r->log.dir);
    CHECK_STR(value_of(r, "train.seed", true), "default");
    CHECK_STR(value_of(r, "model.head_dim", true), "derived");
    CHECK_STR(value_of(r, "train_batch_size", true), "r.yaml:3:19");
    zt_recipe_free(r);
}

TEST(recipe_vocabulary_follows_the_data)
{
    static const struct {
        const char *set;
        int64_t want;
    } c[] = {
        {"data.train=[a.bin, b.bin]", 50257},
        {"data.train=[a.bin, b.txt]", 256},
        {"data.format=llm.c", 50257},

        {"data.format=raw_u16", 50257},
        {"data.format=text", 256},
        {"model.vocab_size=11", 11},
        {"model.config=test/cases/recipe/gpt2/config.json", 50257},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(c); i++) {
        struct zt_recipe *r = load_set(TINY BATCH, c[i].set);
        CHECK_LOADED(r);
        CHECK_INT(r->model.vocab_size, c[i].want);
        zt_recipe_free(r);
    }
}

TEST(recipe_includes_and_precedence)
{
    static const char *const set[] = {"train.steps=30", "optimizer.params.betas=[0.5, 0.6]"};
    const struct zt_recipe_opts o = {
        .path = "test/cases/recipe/over.yaml", .n_ranks = 1, .set = {2, (const char **)set}};
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->batch.micro, 4);                  /* included */
    CHECK_NEAR(r->optimizer.lr, 2e-3, 0);          /* the recipe over the included file */
    CHECK_NEAR(r->optimizer.weight_decay, 0.1, 0); /* "auto" does not hide what is included */
    CHECK_INT(r->train.steps, 30);                 /* --set over the recipe */
    CHECK_NEAR(r->optimizer.beta1, 0.5, 0);
    CHECK_STR(value_of(r, "optimizer.params.lr", true), "test/cases/recipe/over.yaml:4:16");
    CHECK_STR(value_of(r, "optimizer.params.weight_decay", true),
              "test/cases/recipe/base.yaml:5:36");
    CHECK_STR(value_of(r, "train.steps", true), "--set");
    CHECK_INT(r->data.train.n, 2); /* relative to the file that says it */
    CHECK_STR(r->data.train.items[0], "test/cases/recipe/corpus/*.txt");
    CHECK_STR(r->data.train.items[1], "/abs/b.txt");
    zt_recipe_free(r);
}

TEST(recipe_deepspeed_config_stands_below)
{
    static const char *const ds[] = {"test/cases/recipe/hf_zero2_auto.json"};
    const struct zt_recipe_opts o = {.path = "r.yaml",
                                     .text = TINY BATCH "zero_optimization: {stage: 1}\n",
                                     .n_ranks = 2,
                                     .deepspeed_configs = {1, (const char **)ds}};
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->zero.stage, 1);
    CHECK_INT(r->zero.reduce_bucket_size, 200000000);
    CHECK_INT(r->batch.train, 8);
    CHECK_NEAR(r->optimizer.lr, 1e-3, 0);
    zt_recipe_free(r);
}

TEST(recipe_set_values)
{
    struct zt_recipe *r = load_set(TINY BATCH, "data.train=[a, \"b c\"]");
    CHECK_LOADED(r);
    CHECK_INT(r->data.train.n, 2);
    CHECK_STR(r->data.train.items[1], "b c");
    zt_recipe_free(r);
    r = load_set(TINY BATCH, "train.sample_prompt=Once: upon #1");
    CHECK_LOADED(r);
    CHECK_STR(r->train.sample_prompt, "Once: upon #1");
    zt_recipe_free(r);
    r = load_set(TINY BATCH, "train.sample_prompt=\"a\\nb\"");
    CHECK_LOADED(r);
    CHECK_STR(r->train.sample_prompt, "a\nb");
    zt_recipe_free(r);
    r = load_set(TINY BATCH "gradient_clipping: 2\n", "gradient_clipping=auto");
    CHECK_LOADED(r);
    CHECK_NEAR(r->gradient_clipping, 0, 0); /* back to the default */
    zt_recipe_free(r);
    r = load_set(TINY BATCH, "model.num_hidden_layers=3"); /* another name of n_layer */
    CHECK_LOADED(r);
    CHECK_INT(r->model.n_layer, 3);
    zt_recipe_free(r);
}

TEST(recipe_bf16_and_recomputation)
{
    struct zt_recipe *r = load_text("\xef\xbb\xbf" TINY BATCH
                                    "bfloat16: {enabled: true}\ncommunication_data_type: fp32\n"
                                    "activation_checkpointing: {policy: block}\n"
                                    "train: {on_nonfinite: skip}\n",
                                    1);
    CHECK_LOADED(r);
    CHECK_INT(r->precision, ZT_PREC_BF16);
    CHECK_INT(r->comm_dtype, 0);
    CHECK_INT(r->activations.policy, ZT_KEEP_BLOCK_INPUTS);
    CHECK_INT(r->train.on_nonfinite, ZT_NONFINITE_SKIP);
    zt_recipe_free(r);
}

TEST(recipe_validation_ranges)
{
    struct zt_recipe *r = load_text(
        BATCH "model: {n_layer: 1}\n"
              "data: {train: /d/s.txt, train_range: [0, 1003854], val_range: [1003854, -1]}\n",
        1);
    CHECK_LOADED(r);
    CHECK_INT(r->data.val.n, 1);
    CHECK_STR(r->data.val.items[0], "/d/s.txt");
    CHECK_INT(r->data.range_train[1], 1003854);
    CHECK_INT(r->data.range_val[0], 1003854);
    CHECK_INT(r->data.range_val[1], -1);
    CHECK(!has_note(r, "trained on too"));
    zt_recipe_free(r);
    r = load_text(BATCH "model: {n_layer: 1}\ndata: {train: /d/s.txt, val_range: [100, null]}\n",
                  1);
    CHECK_LOADED(r);
    CHECK(has_note(r, "trained on too"));
    zt_recipe_free(r);
}

TEST(recipe_packing_and_masks)
{
    struct zt_recipe *r = load_text(BATCH "model: {n_layer: 1}\n"
                                          "data: {train: a.bin, packing: documents, "
                                          "document_separator: 50256, train_mask: [m1, /m2], "
                                          "val_range: [5, 9]}\n",
                                    1);
    CHECK_LOADED(r);
    CHECK_INT(r->data.packing, ZT_PACK_DOCUMENTS);
    CHECK_INT(r->data.document_separator, 50256);
    CHECK_INT(r->data.train_mask.n, 2);
    CHECK_STR(r->data.train_mask.items[1], "/m2");
    CHECK_INT(r->data.val_mask.n, 2); /* of the same files */
    CHECK_STR(value_of(r, "data.val_mask", true), "derived");
    zt_recipe_free(r);
    r = load_text(TINY BATCH, 1);
    CHECK_LOADED(r);
    CHECK_INT(r->data.packing, ZT_PACK_NONE);
    CHECK_INT(r->data.document_separator, -1);
    CHECK_STR(value_of(r, "data.document_separator", false), "");
    zt_recipe_free(r);
    r = load_text(BATCH "model: {n_layer: 1}\n"
                        "data: {train: a.txt, val: b.txt, document_separator: 10, train_mask: m}\n",
                  1);
    CHECK_LOADED(r);
    CHECK(has_note(r, "data.document_separator: ignored: read only with data.packing: documents"));
    CHECK(has_note(r, "there is no data.val_mask: validation counts every token"));
    zt_recipe_free(r);
}

TEST(recipe_weighted_files)
{
    struct zt_recipe *r = load_text(BATCH "model: {n_layer: 1}\n"
                                          "data: {train: [{path: a.idx, weight: 0.3}, "
                                          "{weight: 7e-1, path: /b.bin}], val: c.bin, "
                                          "val_range: [0, 100]}\n",
                                    1);
    CHECK_LOADED(r);
    CHECK_INT(r->data.train.n, 2);
    CHECK_STR(r->data.train.items[1], "/b.bin");
    CHECK_NEAR(r->data.train_weights[0], 0.3, 0);
    CHECK_NEAR(r->data.train_weights[1], 0.7, 0);
    CHECK_INT(r->model.vocab_size, 50257);
    struct zt_str printed = {0};
    zt_recipe_print(r, &printed);
    CHECK(strstr(zt_str_get(&printed), "a.idx, weight: 0.3}, {path: /b.bin, weight: 0.7}]"));
    zt_recipe_free(r);
    r = load_text(zt_str_get(&printed), 1);
    zt_str_release(&printed);
    CHECK_LOADED(r);
    CHECK_NEAR(r->data.train_weights[1], 0.7, 0);
    zt_recipe_free(r);

    r = load_set(TINY BATCH, "data.train=[{path: a, weight: 1}]");
    CHECK_LOADED(r);
    CHECK_INT(r->data.train.n, 1);
    CHECK(r->data.train_weights != NULL);
    zt_recipe_free(r);
    r = load_set(BATCH "model: {n_layer: 1}\ndata: {train: [{path: a, weight: 1}]}\n",
                 "data.train=b");
    CHECK_LOADED(r);
    CHECK(!r->data.train_weights);
    zt_recipe_free(r);
}

TEST(recipe_breakdown_and_profiler)
{
    struct zt_recipe *r = load_text(TINY BATCH "wall_clock_breakdown: true\n"
                                               "flops_profiler: {enabled: true, profile_step: 5, "
                                               "module_depth: -1, top_modules: 1, detailed: false, "
                                               "output_file: null}\n"
                                               "train: {steps: 4}\n",
                                    1);
    CHECK_LOADED(r);
    CHECK(r->log.wall_clock_breakdown && r->profile.enabled && !r->profile.detailed);
    CHECK_INT(r->profile.step, 5);
    CHECK(!r->profile.output_file);
    CHECK(has_note(r, "profile_step: 5 is behind the last step, 4: there will be no profile"));
    CHECK(has_note(r, "flops_profiler.top_modules: ignored: every segment is shown"));
    zt_recipe_free(r);
}

/* Steps follow from the data; whoever counted it loads once more. */
TEST(recipe_epochs)
{
    const char *text = TINY BATCH "scheduler: {type: Cosine, params: {warmup_steps: 7}}\n"
                                  "train: {epochs: 2}\n";
    struct zt_recipe_opts o = {.path = "r.yaml", .text = text, .n_ranks = 2};
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->train.epochs, 2);
    CHECK_INT(r->train.steps, ZT_STEPS_UNKNOWN);
    CHECK_STR(value_of(r, "train.steps", false), "");
    CHECK_STR(value_of(r, "scheduler.params.total_steps", false), "");
    zt_recipe_free(r);

    o.epoch_steps = 20;
    r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->train.steps, 20);
    CHECK_INT(r->schedule.total_steps, 20);
    CHECK_STR(value_of(r, "train.steps", true), "derived");
    struct zt_str printed = {0};
    zt_recipe_print(r, &printed);
    zt_recipe_free(r);
    r = load_text(zt_str_get(&printed), 2); /* as a worker does */
    zt_str_release(&printed);
    CHECK_LOADED(r);
    CHECK_INT(r->train.steps, 20);
    CHECK_INT(r->train.epochs, 2);
    CHECK_INT(r->schedule.total_steps, 20);
    zt_recipe_free(r);

    o.epoch_steps = 5;
    r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK(has_note(r,
                   "scheduler.params.warmup_steps: 7 is more than the 5 steps of the schedule: it "
                   "ends in its warm-up"));
    zt_recipe_free(r);
    o.text = TINY BATCH "train: {epochs: 2, steps: 9}\n";
    o.epoch_steps = 20;
    r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->train.steps, 9); /* the first of the two */
    zt_recipe_free(r);
}

TEST(recipe_hugging_face_zero3_with_auto)
{
    const struct zt_recipe_opts o = {
        .path = "test/cases/recipe/hf_zero3_auto.json", .n_ranks = 8, .for_plan = true};
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->zero.stage, 3);
    CHECK_INT(r->zero.offload_optimizer, ZT_OFFLOAD_TO_CPU);
    CHECK_INT(r->zero.offload_param, ZT_OFFLOAD_TO_CPU);
    CHECK_INT(r->precision, ZT_PREC_FP32);
    CHECK_NEAR(r->optimizer.beta2, 0.999, 0);
    CHECK_INT(r->log.steps_per_print, 2000);
    CHECK_INT(r->schedule.kind, ZT_SCHED_WARMUP);
    CHECK_INT(r->schedule.warmup_steps, 1000);
    CHECK_NEAR(r->schedule.lr, 1e-3, 0); /* optimizer.params.lr's default */
    CHECK(has_note(r, "hf_zero3_auto.json:29:39: zero_optimization.stage3_max_live_parameters: "
                      "ignored: "));
    zt_recipe_free(r);
}

TEST(recipe_optimizers)
{
    static const struct {
        const char *text, *type;
        enum zt_optimizer kind;
        double beta2;
        int notes;
    } cases[] = {
        {"{type: AdamW}", "AdamW", ZT_ADAMW, 0.999, 0},
        {"{type: Adam}", "AdamW", ZT_ADAMW, 0.999, 0},
        {"{type: adam, params: {adam_w_mode: true}}", "AdamW", ZT_ADAMW, 0.999, 0},
        {"{type: Adam, params: {adam_w_mode: false}}", "Adam", ZT_ADAM, 0.999, 0},
        {"{type: AdamW, params: {adam_w_mode: false}}", "AdamW", ZT_ADAMW, 0.999, 1},
        {"{type: Lion}", "Lion", ZT_LION, 0.99, 0},
        {"{type: Lion, params: {betas: [0.95, 0.98]}}", "Lion", ZT_LION, 0.98, 0},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_str text = {0};
        zt_str_printf(&text, "%s%soptimizer: %s\n", TINY, BATCH, cases[i].text);
        struct zt_recipe *r = load_text(zt_str_get(&text), 1);
        zt_str_release(&text);
        CHECK_LOADED(r);
        CHECK_STR(r->optimizer.type, cases[i].type);
        CHECK_INT(r->optimizer.kind, cases[i].kind);
        CHECK_NEAR(r->optimizer.beta2, cases[i].beta2, 0);
        CHECK_INT(r->n_notes, cases[i].notes);
        bool lion = cases[i].kind == ZT_LION;
        CHECK_STR(value_of(r, "optimizer.params.eps", false), lion ? "" : "1e-08");
        zt_recipe_free(r);
    }
}

/* DeepSpeed's own example of an fp16 section, and its defaults. */
TEST(recipe_fp16)
{
    struct zt_recipe *r = load_text(TINY BATCH "fp16: {enabled: true, auto_cast: false}\n", 1);
    CHECK_LOADED(r);
    CHECK_INT(r->precision, ZT_PREC_FP16);
    CHECK_NEAR(r->fp16.loss_scale, 0, 0);
    CHECK_NEAR(r->fp16.min_loss_scale, 1, 0);
    CHECK_INT(r->fp16.initial_scale_power, 16);
    CHECK_INT(r->fp16.loss_scale_window, 1000);
    CHECK_INT(r->fp16.hysteresis, 2);
    CHECK(!r->fp16.consecutive_hysteresis);
    CHECK_INT(r->n_notes, 0);
    CHECK_STR(value_of(r, "fp16.hysteresis", false), "2");
    zt_recipe_free(r);

    r = load_text(TINY BATCH "fp16: {enabled: true, loss_scale: 128, loss_scale_window: 500,"
                             " hysteresis: 3, consecutive_hysteresis: true}\n",
                  1);
    CHECK_LOADED(r);
    CHECK_NEAR(r->fp16.loss_scale, 128, 0);
    CHECK_INT(r->fp16.loss_scale_window, 500);
    CHECK_INT(r->fp16.hysteresis, 3);
    CHECK(r->fp16.consecutive_hysteresis);
    zt_recipe_free(r);

    r = load_text(TINY BATCH "fp16: {enabled: false, hysteresis: 3}\n", 1); /* means nothing */
    CHECK_LOADED(r);
    CHECK_STR(value_of(r, "fp16.hysteresis", false), "");
    zt_recipe_free(r);
}

TEST(recipe_offload_to_cpu)
{
    struct zt_recipe_opts o = {
        .path = "test/cases/recipe/ds_fp16_offload.json", .n_ranks = 2, .for_plan = true};
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->precision, ZT_PREC_FP16);
    CHECK_INT(r->zero.offload_optimizer, ZT_OFFLOAD_TO_CPU);
    CHECK_INT(r->batch.micro, 32);
    CHECK_INT(r->n_notes, 0);
    CHECK(!r->zero.nvme.path);
    zt_recipe_free(r);
}

/* Paths start from the folder of the recipe; one of the two keys is enough. */
TEST(recipe_offload_to_nvme)
{
    struct zt_recipe *r = load_text(
        TINY BATCH
        "zero_optimization: {stage: 3, offload_optimizer: {device: nvme, buffer_count: 5, "
        "pipeline_read: true}, offload_param: {device: nvme, nvme_path: /mnt/x}}\n"
        "aio: {block_size: 8192, thread_count: 2, queue_depth: 32, backend: threads}\n",
        1);
    CHECK_LOADED(r);
    CHECK_INT(r->zero.offload_optimizer, ZT_OFFLOAD_TO_NVME);
    CHECK_INT(r->zero.offload_param, ZT_OFFLOAD_TO_NVME);
    CHECK_STR(r->zero.nvme.path, "/mnt/x");
    CHECK_INT(r->zero.nvme.buffer_count, 5);
    CHECK_INT(r->zero.nvme.block_size, 8192);
    CHECK_INT(r->zero.nvme.queue_depth, 32);
    CHECK_INT(r->zero.nvme.threads, 2);
    CHECK_INT(r->zero.nvme.backend, ZT_RECIPE_AIO_THREADS);
    CHECK_INT(r->n_notes, 0);
    zt_recipe_free(r);
}

/* As Accelerate sets it, and as Python's json writes that. Elsewhere infinity is no whole number. */
TEST(recipe_infinitely_many_steps_per_print)
{
    static const char *const words[] = {"inf", ".inf", "Infinity", ".INF"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(words); i++) {
        char text[256];
        snprintf(text, sizeof text, TINY BATCH "steps_per_print: %s\n", words[i]);
        struct zt_recipe *r = load_text(text, 1);
        CHECK_LOADED(r);
        CHECK_INT(r->log.steps_per_print, (int64_t)1 << 53);
        zt_recipe_free(r);
        snprintf(text, sizeof text, TINY BATCH "train: {steps: %s}\n", words[i]);
        CHECK(!load_text(text, 1));
    }
}

TEST(recipe_config_json)
{
    const char *const set[] = {"model.attn_pdrop=0", "model.n_layer=3"};
    struct zt_recipe_opts o = {.path = "r.yaml",
                               .text = BATCH "model: {from: test/cases/recipe/gpt2}\n"
                                             "data: {train: x.txt}\n",
                               .n_ranks = 1};
    o.set.n = ZT_ARRAY_LEN(set);
    o.set.items = (const char **)set;
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_STR(r->model.from, "test/cases/recipe/gpt2");
    CHECK_INT(r->model.n_layer, 3); /* --set over the config.json */
    CHECK_NEAR(r->model.attn_pdrop, 0, 0);
    CHECK_NEAR(r->model.embd_pdrop, 0.1, 0);
    CHECK_NEAR(r->model.resid_pdrop, 0.1, 0);
    CHECK_INT(r->model.n_inner, 4 * 768);
    CHECK_INT(r->model.vocab_size, 50257);
    CHECK(has_note(r, "model.made_by: ignored: not known to zerotrain"));
    CHECK_INT(r->n_notes, 1);
    CHECK_STR(value_of(r, "model.n_embd", true), "test/cases/recipe/gpt2/config.json:12:13");
    zt_recipe_free(r);
}

/* transformers drops a tenth where a config.json of gpt2 says nothing. */
TEST(recipe_config_json_without_dropout)
{
    static const char config[] = "{\"model_type\": \"gpt2\", \"resid_pdrop\": 0.1}";
    char path[] = "/tmp/zt-config-XXXXXX", text[256];
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, config, sizeof config - 1) == sizeof config - 1);
    close(fd);
    snprintf(text, sizeof text, BATCH "model: {config: %s}\ndata: {train: x.txt}\n", path);
    struct zt_recipe *r = load_text(text, 1);
    CHECK_LOADED(r);
    CHECK(has_note(r, "does not say embd_pdrop, attn_pdrop: taken as 0, where transformers takes "
                      "0.1"));
    CHECK_INT(r->n_notes, 1);
    zt_recipe_free(r);
    unlink(path);
}

TEST(recipe_config_json_of_the_fixtures)
{
    struct zt_recipe_opts o = {.path = "r.yaml",
                               .text = BATCH "model: {from: test/cases/fixture_llama}\n"
                                             "data: {train: x.bin}\n",
                               .n_ranks = 4};
    struct zt_recipe *r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_STR(r->model.model_type, "llama");
    CHECK_INT(r->model.n_kv_head, 2);
    CHECK_INT(r->model.head_dim, 4);
    CHECK_INT(r->model.n_inner, 24);
    CHECK_INT(r->model.n_positions, 16);
    CHECK(!r->model.tie_word_embeddings);
    CHECK_NEAR(r->model.rope.theta, 10000, 0);
    CHECK_INT(r->n_notes, 0);
    zt_recipe_free(r);

    o.text = BATCH "model: {from: test/cases/fixture_gpt2}\ndata: {train: x.bin}\n";
    r = load_opts(&o);
    CHECK_LOADED(r);
    CHECK_INT(r->model.n_embd, 4);
    CHECK_INT(r->model.vocab_size, 11);
    CHECK_INT(r->n_notes, 0);
    zt_recipe_free(r);
}

/* Printed and loaded again, a recipe is the same; only the origins differ. */
static void check_round_trip(const struct zt_recipe *r, bool for_plan)
{
    struct zt_str text = {0};
    zt_recipe_print(r, &text);
    const struct zt_recipe_opts o = {.path = "resolved.yaml",
                                     .text = zt_str_get(&text),
                                     .n_ranks = r->n_ranks,
                                     .for_plan = for_plan};
    struct zt_recipe *again = load_opts(&o);
    zt_str_release(&text);
    CHECK_LOADED(again);
    int n = again->n_values, same = 0;
    for (int i = 0; i < n && i < r->n_values; i++)
        same += strcmp(r->values[i].key, again->values[i].key) == 0 &&
                strcmp(r->values[i].value, again->values[i].value) == 0;
    bool fields = r->batch.train == again->batch.train && r->precision == again->precision &&
                  memcmp(&r->schedule, &again->schedule, sizeof r->schedule) == 0 &&
                  memcmp(&r->zero, &again->zero, sizeof r->zero) == 0 &&
                  r->model.n_embd == again->model.n_embd && r->threads == again->threads;
    zt_recipe_free(again);
    CHECK_INT(n, r->n_values);
    CHECK_INT(same, n);
    CHECK(fields);
}

TEST(recipe_param_groups)
{
    struct zt_recipe *r =
        load_text(TINY BATCH "optimizer: {param_groups: [{match: \"*.bias\", weight_decay: 0}, "
                             "{match: 'h.1.*', lr_scale: 0.1, frozen: true}]}\n",
                  1);
    CHECK_LOADED(r);
    const struct zt_recipe_groups *g = &r->optimizer.groups;
    CHECK_INT(g->n, 2);
    CHECK_STR(g->items[0].match, "*.bias");
    CHECK(g->items[0].weight_decay == 0 && g->items[0].lr_scale == 1 && !g->items[0].frozen);
    CHECK(g->items[1].weight_decay != g->items[1].weight_decay); /* not given */
    CHECK(g->items[1].lr_scale == 0.1 && g->items[1].frozen);
    CHECK_STR(value_of(r, "optimizer.param_groups", false),
              "[{match: \"*.bias\", weight_decay: 0, lr_scale: 1, frozen: false}, {match: "
              "\"h.1.*\", lr_scale: 0.1, frozen: true}]");
    check_round_trip(r, false);
    zt_recipe_free(r);
}

TEST(recipe_round_trip)
{
    static const char *const files[] = {
        "test/cases/recipe/over.yaml",
        "test/cases/recipe/hf_zero3_auto.json",
        "test/cases/recipe/hf_zero2_auto.json",
        "test/cases/recipe/ds_fp16_offload.json",
        "recipes/quickstart.yaml",
        "recipes/shakespeare-char.yaml",
        "recipes/gpt2-124m.yaml",
        "recipes/gpt2-1.5b.yaml",
        "recipes/llama-1b.yaml",
        "recipes/llama-7b.yaml",
        "recipes/qwen2.5-0.5b.yaml",
    };
    static const char *const set[] = {"train.sample_prompt=a \"b\" \\ # c\t\x7f",
                                      "data.train=['it''s', \"# x\", null]", "log.name=true"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(files); i++) {
        const struct zt_recipe_opts o = {
            .path = files[i], .n_ranks = 4, .for_plan = true, .set = {3, (const char **)set}};
        struct zt_recipe *r = load_opts(&o);
        CHECK_LOADED(r);
        check_round_trip(r, true);
        zt_recipe_free(r);
        RETURN_IF_FAILED();
    }
    struct zt_recipe *r = plan_text("model: {params: 7e9}\n", 4);
    CHECK_LOADED(r);
    check_round_trip(r, true);
    zt_recipe_free(r);
}

/* The recipes run as they are, as far as the recipe goes. */
TEST(recipe_shipped_recipes_load)
{
    static const char *const files[] = {"recipes/quickstart.yaml",  "recipes/shakespeare-char.yaml",
                                        "recipes/gpt2-124m.yaml",   "recipes/gpt2-1.5b.yaml",
                                        "recipes/llama-1b.yaml",    "recipes/llama-7b.yaml",
                                        "recipes/qwen2.5-0.5b.yaml"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(files); i++) {
        const struct zt_recipe_opts o = {.path = files[i], .n_ranks = 2};
        struct zt_recipe *r = load_opts(&o);
        CHECK_LOADED(r);
        CHECK_INT(r->n_notes, 0);
        zt_recipe_free(r);
    }
}

TEST_MAIN()
