#include "recipe_test.h"

/* One thing wrong each (or two that belong together), the whole message for it, and its code. */
static const struct {
    const char *text, *want;
    int code;
} cases[] = {
    {"", "r.yaml: is empty", ZT_EINPUT},
    {"- a\n", "r.yaml:1:1: must be a mapping of keys to values", ZT_EINPUT},
    {"42\n", "r.yaml:1:1: must be a mapping of keys to values", ZT_EINPUT},
    {TINY BATCH "\tsteps: 1\n", "r.yaml:4:1: tab in the indentation; YAML wants spaces", ZT_EINPUT},
    {TINY BATCH "train:\n\tsteps: 1\n", "r.yaml:5:1: tab in the indentation; YAML wants spaces",
     ZT_EINPUT},
    {TINY BATCH "train: {steps: 1\n",
     "r.yaml:5:1: not valid YAML: did not find expected ',' or '}' (while parsing a flow mapping "
     "at line 4)",
     ZT_EINPUT},
    {TINY BATCH "train_batch_size: 9\n",
     "r.yaml:4:1: duplicate key \"train_batch_size\"; first at line 3", ZT_EINPUT},
    {TINY BATCH "train: {steps: 1, seed: 2, steps: 3}\n",
     "r.yaml:4:28: duplicate key \"steps\"; first at line 4", ZT_EINPUT},
    {TINY BATCH "train_batchsize: 8\n",
     "r.yaml:4:1: unknown key \"train_batchsize\"; did you mean \"train_batch_size\"?", ZT_EINPUT},
    {TINY BATCH "zero_optimization: {stge: 1}\n",
     "r.yaml:4:21: unknown key \"zero_optimization.stge\"; did you mean \"stage\"?", ZT_EINPUT},
    {TINY BATCH "lr: 3e-4\n", "r.yaml:4:1: unknown key \"lr\"; it belongs at optimizer.params.lr",
     ZT_EINPUT},
    {TINY BATCH "qqqqqq: 1\n", "r.yaml:4:1: unknown key \"qqqqqq\"", ZT_EINPUT},
    {TINY BATCH "optimizer: AdamW\n",
     "r.yaml:4:12: optimizer: must be a mapping of keys, such as {type: ...}", ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {lr: nan}}\n",
     "r.yaml:4:26: optimizer.params.lr: must be a finite number, not \"nan\"", ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {lr: .inf}}\n",
     "r.yaml:4:26: optimizer.params.lr: must be a finite number, not \".inf\"", ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {lr: -1e-3}}\n",
     "r.yaml:4:26: optimizer.params.lr: -1e-3 is out of range; it must be at least 0", ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {lr: 1e999}}\n",
     "r.yaml:4:26: optimizer.params.lr: must be a finite number, not \"1e999\"", ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {lr: [1]}}\n",
     "r.yaml:4:26: optimizer.params.lr: must be a finite number, not a list", ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {betas: [0.9]}}\n",
     "r.yaml:4:29: optimizer.params.betas: must be two numbers from 0 to below 1, such as [0.9, "
     "0.999]",
     ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {betas: [0.9, 1]}}\n",
     "r.yaml:4:29: optimizer.params.betas: must be two numbers from 0 to below 1, such as [0.9, "
     "0.999]",
     ZT_EINPUT},
    {TINY BATCH "optimizer: {params: {eps: 0}}\n",
     "r.yaml:4:27: optimizer.params.eps: 0 is out of range; it must be above 0", ZT_EINPUT},
    {TINY BATCH "optimizer: {type: SGD}\n",
     "r.yaml:4:19: optimizer.type: SGD is understood, but not carried out yet; use AdamW, Adam or "
     "Lion",
     ZT_EUNSUPPORTED},
    {TINY BATCH "optimizer: {type: Adamm}\n",
     "r.yaml:4:19: optimizer.type: must be AdamW, Adam or Lion, not \"Adamm\"", ZT_EINPUT},
    {TINY BATCH
     "optimizer: {param_groups: [{match: \"*.bias\", weightdecay: 1}, {lr_scale: 2}, x,\n"
     "  {match: a, lr_scale: -1, frozen: maybe}]}\n",
     "r.yaml:4:46: optimizer.param_groups: a group has match (a glob), weight_decay, lr_scale and "
     "frozen, not \"weightdecay\"\n"
     "r.yaml:4:63: optimizer.param_groups: each must be a mapping such as {match: \"*.bias\", "
     "weight_decay: 0}\n"
     "r.yaml:4:78: optimizer.param_groups: each must be a mapping such as {match: \"*.bias\", "
     "weight_decay: 0}\n"
     "r.yaml:5:24: optimizer.param_groups: lr_scale must be a number from 0 to 1e6\n"
     "r.yaml:5:36: optimizer.param_groups: frozen must be true or false",
     ZT_EINPUT},
    {TINY BATCH "optimizer: {param_groups: {match: x}}\n",
     "r.yaml:4:27: optimizer.param_groups: must be a list of at most 256 mappings such as {match: "
     "\"*.bias\", weight_decay: 0}",
     ZT_EINPUT},
    {TINY BATCH "optimizer: {type: Lion, params: {eps: 1e-8, adam_w_mode: true}}\n",
     "r.yaml:4:39: optimizer.params.eps: Lion has none\n"
     "r.yaml:4:58: optimizer.params.adam_w_mode: Lion has none",
     ZT_EINPUT},
    {TINY BATCH "train: {steps: 12:30:45}\n",
     "r.yaml:4:16: train.steps: must be a whole number, not \"12:30:45\"", ZT_EINPUT},
    {TINY BATCH "train: {steps: 0x10}\n",
     "r.yaml:4:16: train.steps: must be a whole number, not \"0x10\"", ZT_EINPUT},
    {TINY BATCH "train: {steps: 1.5}\n",
     "r.yaml:4:16: train.steps: must be a whole number, not \"1.5\"", ZT_EINPUT},
    {TINY BATCH "train: {steps: -1}\n",
     "r.yaml:4:16: train.steps: -1 is out of range; it must be at least 0", ZT_EINPUT},
    {TINY BATCH "train: {seed: 9007199254740993}\n", /* as a double it is the limit */
     "r.yaml:4:15: train.seed: 9007199254740993 is out of range; it must be at most "
     "9007199254740992",
     ZT_EINPUT},
    {TINY BATCH "bf16: {enabled: yes}\n",
     "r.yaml:4:17: bf16.enabled: must be true or false, not \"yes\"", ZT_EINPUT},
    {TINY BATCH "bf16: {enabled: no}\n",
     "r.yaml:4:17: bf16.enabled: must be true or false, not \"no\"", ZT_EINPUT},
    {TINY BATCH "bf16: {enabled: 2}\n",
     "r.yaml:4:17: bf16.enabled: must be true or false, not \"2\"", ZT_EINPUT},
    {TINY BATCH "bf16: {enabled: true}\nfp16: {enabled: true}\n",
     "r.yaml:4:17: bf16.enabled: fp16.enabled is true too; choose one", ZT_EINPUT},
    {TINY BATCH "zero_optimization: {stage: 4}\n",
     "r.yaml:4:28: zero_optimization.stage: 4 is out of range; it must be at most 3", ZT_EINPUT},
    {TINY BATCH
     "zero_optimization: {stage: 2, prefetch_bucket_size: 1, stage3_prefetch_bucket_size: 2}\n",
     "r.yaml:4:56: \"stage3_prefetch_bucket_size\" and \"prefetch_bucket_size\" (line 4) are one "
     "key by two names",
     ZT_EINPUT},
    {TINY BATCH "zero_optimization: {stage: 2, offload_param: {device: nvme}}\n",
     "r.yaml:4:55: zero_optimization.offload_param: needs stage 3, not 2 (r.yaml:4:28)\n"
     "r.yaml:4:55: zero_optimization.offload_param: device: nvme needs nvme_path, a folder on the "
     "drive "
     "to use",
     ZT_EINPUT},
    {TINY BATCH "zero_optimization: {stage: 3, offload_param: {device: nvme, nvme_path: /a},\n"
                "  offload_optimizer: {device: nvme, nvme_path: /b}}\naio: {block_size: 5000}\n",
     "r.yaml:4:72: zero_optimization.offload_param.nvme_path: must be that of offload_optimizer, "
     "/b: one "
     "file holds both\nr.yaml:6:19: aio.block_size: must be a multiple of 4096, not 5000",
     ZT_EINPUT},
    {TINY BATCH "fp16: {enabled: true, initial_scale_power: 3, min_loss_scale: 10}\n",
     "r.yaml:4:63: fp16.min_loss_scale: 10 is above the first scale, 2^3", ZT_EINPUT},
    {TINY BATCH "fp16: {enabled: true, hysteresis: 0, min_loss_scale: 0, loss_scale: -1}\n",
     "r.yaml:4:35: fp16.hysteresis: 0 is out of range; it must be at least 1\n"
     "r.yaml:4:54: fp16.min_loss_scale: 0 is out of range; it must be above 0\n"
     "r.yaml:4:69: fp16.loss_scale: -1 is out of range; it must be at least 0",
     ZT_EINPUT},
    {TINY BATCH "scheduler: {type: Cosine, params: {min_lr: 1}}\n",
     "r.yaml:4:44: scheduler.params.min_lr: 1 is above the learning rate 0.001", ZT_EINPUT},
    {TINY BATCH "scheduler: {type: WarmupLR, params: {min_lr: 1e-5, cycle_max_lr: 1}}\n",
     "r.yaml:4:46: scheduler.params.min_lr: belongs to Cosine, not to WarmupLR\n"
     "r.yaml:4:66: scheduler.params.cycle_max_lr: belongs to OneCycle, not to WarmupLR",
     ZT_EINPUT},
    {TINY BATCH "scheduler: {type: OneCycle, params: {cycle_max_lr: 1}}\n",
     "r.yaml:4:19: scheduler.type: OneCycle needs scheduler.params.cycle_min_lr", ZT_EINPUT},
    {TINY BATCH "scheduler: {type: WarmupLR, params: {warmup_min_lr: 1}}\n",
     "r.yaml:4:53: scheduler.params.warmup_min_lr: 1 is above scheduler.params.warmup_max_lr 0.001",
     ZT_EINPUT},
    {TINY BATCH "train: {steps: 2000}\n"
                "scheduler: {type: OneCycle, params: {cycle_min_lr: 0, cycle_max_lr: 1, "
                "cycle_first_step_size: 5, decay_step_size: 10, decay_mom_rate: 0.001}}\n",
     "r.yaml:5:135: scheduler.params.decay_mom_rate: beta1 would reach 1 in update 1121 of 2000; "
     "lower it, or train.steps",
     ZT_EINPUT},
    {TINY BATCH "scheduler: {type: WarmupLR, params: {last_batch_iteration: 5}}\n",
     "r.yaml:4:60: scheduler.params.last_batch_iteration: 5: a schedule goes on where its "
     "checkpoint "
     "stopped",
     ZT_EUNSUPPORTED},
    {TINY BATCH "a: &x 1\n",
     "r.yaml:4:4: anchors and aliases (&, *) are not supported; write the value out", ZT_EINPUT},
    {TINY BATCH "a: *x\n",
     "r.yaml:4:4: anchors and aliases (&, *) are not supported; write the value out", ZT_EINPUT},
    {TINY BATCH "a: !!int 1\n", "r.yaml:4:4: tags (tag:yaml.org,2002:int) are not supported",
     ZT_EINPUT},
    {TINY BATCH "[a, b]: 1\n", "r.yaml:4:1: a key must be a plain word, not a list or a mapping",
     ZT_EINPUT},
    {TINY BATCH "? {a: b}\n: 1\n",
     "r.yaml:4:3: a key must be a plain word, not a list or a mapping", ZT_EINPUT},
    {TINY BATCH "--- \na: 1\n", "r.yaml:4:1: a second document; one file is one document",
     ZT_EINPUT},
    {TINY BATCH "a: \"\xff\"\n", "r.yaml:4:5: not valid UTF-8 text: invalid leading UTF-8 octet",
     ZT_EINPUT},
    {TINY BATCH "a: \"x\\0y\"\n", "r.yaml:4:4: a NUL character in a value", ZT_EINPUT},
    {TINY BATCH "data: {seq_len: 1}\n", "r.yaml:4:1: duplicate key \"data\"; first at line 2",
     ZT_EINPUT},
    {"model: {model_type: bert}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:21: model.model_type: must be gpt2, llama, mistral, qwen2 or "
     "qwen3, not \"bert\"",
     ZT_EINPUT},
    {"model: {n_embd: 65, n_head: 2}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:29: model: n_embd 65 is not n_head 2 x head_dim 32", ZT_EINPUT},
    {"model: {n_embd: 64, n_head: 2, activation_function: relu}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:53: model.activation_function: relu is not carried out; use gelu_new or "
     "gelu_pytorch_tanh",
     ZT_EUNSUPPORTED},
    {"model: {resid_pdrop: 1}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:22: model.resid_pdrop: 1 is out of range; it must be below 1", ZT_EINPUT},
    {"model: {embd_pdrop: -0.1, attn_pdrop: nan}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:21: model.embd_pdrop: -0.1 is out of range; it must be at least 0\n"
     "r.yaml:1:39: model.attn_pdrop: must be a finite number, not \"nan\"",
     ZT_EINPUT},
    {"model: {params: 7e9, n_layer: 2}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:17: model.params: the model is described by its other keys; leave one of them out",
     ZT_EINPUT},
    {"model: {params: 7e9}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:17: model.params: a number of parameters is enough for zerotrain plan only; "
     "describe the model to train it",
     ZT_EUNSUPPORTED},
    {"model: {from: nowhere}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:15: model.from: nowhere/config.json: No such file or directory; it must be a folder "
     "that is already here",
     ZT_EINPUT},
    {"model: {from: nowhere, config: x.json}\ndata: {train: x}\n" BATCH,
     "r.yaml:1:32: model.config and model.from both given; model.from reads its own config.json",
     ZT_EINPUT},
    {"model: {n_layer: 1, n_positions: 8}\ndata: {train: x, seq_len: 9}\n" BATCH,
     "r.yaml:2:27: data.seq_len: 9 is more than the model's 8 positions", ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: []}\n" BATCH,
     "r.yaml:2:15: data.train: must be a path or a list of paths", ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: x, train_range: [5, 5]}\n" BATCH,
     "r.yaml:2:31: data.train_range: must be a range [BEGIN, END) of tokens such as [0, 1000] or "
     "[1000, -1]",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: x, val: y, val_fraction: 0.1}\n" BATCH,
     "r.yaml:2:40: data.val_fraction: the validation data is already given by data.val", ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: x, format: csv}\n" BATCH,
     "r.yaml:2:26: data.format: must be auto, text, llm.c, raw_u16 or megatron, not \"csv\"",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: x, packing: documents, document_separator: 256}\n" BATCH,
     "r.yaml:2:58: data.document_separator: 256 is no token: model.vocab_size is 256", ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: x, val_mask: y}\n" BATCH,
     "r.yaml:2:28: data.val_mask: there is no data.val; what is held out of data.train has "
     "data.train_mask",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: [a, {path: b, weight: 1}]}\n" BATCH,
     "r.yaml:2:16: data.train: each must be {path: PATH, weight: NUMBER above 0}, or all of them "
     "paths alone",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: [{path: b, weight: 0}]}\n" BATCH,
     "r.yaml:2:16: data.train: each must be {path: PATH, weight: NUMBER above 0}, or all of them "
     "paths alone",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: [{path: b, weight: 1, mask: m}]}\n" BATCH,
     "r.yaml:2:16: data.train: each must be {path: PATH, weight: NUMBER above 0}, or all of them "
     "paths alone",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: [{path: b, weight: 1}], val_fraction: 0.1}\n" BATCH,
     "r.yaml:2:53: data.val_fraction: data.train has weights, which go with data.val and "
     "train.steps only",
     ZT_EINPUT},
    {"model: {n_layer: 1}\ndata: {train: [{path: b, weight: 1}]}\ntrain: {epochs: 2}\n" BATCH,
     "r.yaml:3:17: train.epochs: data.train has weights, which go with data.val and train.steps "
     "only",
     ZT_EINPUT},
    {TINY BATCH "train: {eval_every: 5}\n",
     "r.yaml:4:21: train.eval_every: there is no validation data; give data.val, data.val_range or "
     "data.val_fraction",
     ZT_EINPUT},
    {TINY BATCH "include: nowhere.yaml\n", "r.yaml:4:10: nowhere.yaml: No such file or directory",
     ZT_EINPUT},
    {TINY BATCH "include: {a: b}\n", "r.yaml:4:10: include: must be a path or a list of paths",
     ZT_EINPUT},
    {TINY BATCH "include: test/cases/recipe/cycle_a.yaml\n",
     "test/cases/recipe/cycle_b.yaml:1:11: test/cases/recipe/cycle_a.yaml: includes itself",
     ZT_EINPUT},
    {TINY BATCH "tensorboard: {enabled: true, output_path: x}\n",
     "r.yaml:4:24: tensorboard.enabled: true: TensorBoard is not written; runs write metrics.jsonl",
     ZT_EUNSUPPORTED},
    {TINY BATCH "zero_optimization: {zero_quantized_weights: true}\n",
     "r.yaml:4:45: zero_optimization.zero_quantized_weights: true: quantized weights (ZeRO++) are "
     "not carried out",
     ZT_EUNSUPPORTED},
    {TINY BATCH "activation_checkpointing: {policy: none, cpu_checkpointing: true}\n",
     "r.yaml:4:61: activation_checkpointing.cpu_checkpointing: with policy: none nothing is "
     "computed "
     "again; choose another policy, such as block",
     ZT_EINPUT},
    {TINY BATCH "activation_checkpointing: {policy: every}\n",
     "r.yaml:4:36: activation_checkpointing.policy: every: give activation_checkpointing.every, "
     "the "
     "number of blocks computed again together",
     ZT_EINPUT},
    {TINY BATCH "activation_checkpointing: {policy: block, every: 2}\n",
     "r.yaml:4:50: activation_checkpointing.every: goes with policy: every, not block", ZT_EINPUT},
    {TINY BATCH "activation_checkpointing: {every: 3}\n",
     "r.yaml:4:35: activation_checkpointing.every: 3 is more than the model's 2 blocks", ZT_EINPUT},
    {TINY BATCH "activation_checkpointing: {number_checkpoints: 3}\n",
     "r.yaml:4:48: activation_checkpointing.number_checkpoints: 3 is more than the model's 2 "
     "blocks",
     ZT_EINPUT},
    {TINY BATCH "activation_checkpointing: {every: 2, number_checkpoints: 2}\n",
     "r.yaml:4:58: activation_checkpointing.number_checkpoints: 2 of 2 blocks is every: 1, not 2; "
     "give one of the two",
     ZT_EINPUT},
    {BATCH,
     "r.yaml: model is missing: give model.model_type and its sizes, model.config, or "
     "model.from\nr.yaml: data.train is missing: the files to learn from",
     ZT_EINPUT},
};

TEST(recipe_errors_word_for_word)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_recipe *r = load_text(cases[i].text, 2);
        zt_recipe_free(r);
        if (r)
            FAIL("loaded: %s", cases[i].text);
        CHECK_STR(err.msg, cases[i].want);
        CHECK_INT(err.code, cases[i].code);
    }
}

/* Everything at once, in the order of the lines; what is missing comes last. */
TEST(recipe_all_errors_at_once)
{
    CHECK(!load_text("gradient_clippin: 1\n"
                     "bf16: {enabled: maybe}\n"
                     "model: {n_layer: x, n_heed: 2}\n"
                     "optimizer: {params: {lr: -1, betas: 3}}\n"
                     "zero_optimization: {offload_optimizer: {device: cpu}}\n",
                     2));
    CHECK_INT(err.code, ZT_EINPUT);
    CHECK_STR(err.msg,
              "r.yaml:1:1: unknown key \"gradient_clippin\"; did you mean \"gradient_clipping\"?\n"
              "r.yaml:2:17: bf16.enabled: must be true or false, not \"maybe\"\n"
              "r.yaml:3:18: model.n_layer: must be a whole number, not \"x\"\n"
              "r.yaml:3:21: unknown key \"model.n_heed\"; did you mean \"n_head\"?\n"
              "r.yaml:4:26: optimizer.params.lr: -1 is out of range; it must be at least 0\n"
              "r.yaml:4:37: optimizer.params.betas: must be two numbers from 0 to below 1, such as "
              "[0.9, 0.999], not \"3\"\n"
              "r.yaml:5:49: zero_optimization.offload_optimizer: needs stage 1, 2 or 3: at stage 0 "
              "every rank would update all parameters on its host");
}

TEST(recipe_errors_beyond_the_limit_are_counted)
{
    struct zt_str s = {0};
    for (int i = 0; i < 300; i++)
        zt_str_printf(&s, "%03dq: 1\n", i);
    struct zt_recipe *r = load_text(zt_str_get(&s), 1);
    zt_str_release(&s);
    CHECK(!r);
    CHECK(strstr(err.msg, "\nr.yaml:50:1: unknown key \"049q\"\nand 250 more"));

    /* Long ones: as many as fit, and the rest counted. */
    for (int i = 0; i < 60; i++)
        zt_str_printf(&s, "%02d%0200d: 1\n", i, 0);
    r = load_text(zt_str_get(&s), 1);
    zt_str_release(&s);
    CHECK(!r);
    const char *more = strstr(err.msg, "\nand ");
    CHECK(more && strlen(more) < 20);
    int shown = 0;
    for (const char *p = err.msg; (p = strstr(p, "unknown key")); p++)
        shown++;
    CHECK_INT(shown + (int)strtol(more + 5, NULL, 10), 60);
}

TEST(recipe_set_errors)
{
    static const struct {
        const char *set, *want;
    } c[] = {
        {"train.steps", "--set train.steps: must be KEY=VALUE, such as a.b=c"},
        {"=1", "--set =1: must be KEY=VALUE, such as a.b=c"},
        {"a..b=1", "--set a..b=1: must be KEY=VALUE, such as a.b=c"},
        {"train.steps=", "--set train.steps=: no value; write auto for the default"},
        {"train.steps=x", "--set train.steps=x: train.steps: must be a whole number, not \"x\""},
        {"train.stepz=1",
         "--set train.stepz=1: unknown key \"train.stepz\"; did you mean \"steps\"?"},
        {"include=a", "--set include=a: include cannot be set; use --deepspeed_config"},
        {"train.steps=[1", "--set train.steps=[1: not valid YAML: did not find expected ',' or ']' "
                           "(while parsing a flow sequence at line 1)"},
        {"log.name=\xff", "--set log.name=\xff: not valid UTF-8 text: invalid leading UTF-8 octet"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(c); i++) {
        CHECK(!load_set(TINY BATCH, c[i].set));
        CHECK_STR(err.msg, c[i].want);
        CHECK_INT(err.code, ZT_EINPUT);
    }
}

TEST(recipe_missing_files)
{
    struct zt_recipe_opts o = {.path = "nowhere.yaml", .n_ranks = 1};
    CHECK(!load_opts(&o));
    CHECK_STR(err.msg, "cannot load the recipe: nowhere.yaml: No such file or directory");
    static const char *const ds[] = {"nowhere.json"};
    o = (struct zt_recipe_opts){.path = "r.yaml",
                                .text = TINY BATCH,
                                .n_ranks = 1,
                                .deepspeed_configs = {1, (const char **)ds}};
    CHECK(!load_opts(&o));
    CHECK_STR(err.msg, "--deepspeed_config: nowhere.json: No such file or directory");
}

TEST(recipe_bounded)
{
    struct zt_str s = {0};
    zt_str_puts(&s, "a: ");
    for (int i = 0; i < 100000; i++)
        zt_str_puts(&s, "[");
    struct zt_recipe *r = load_text(zt_str_get(&s), 1);
    CHECK(!r);
    CHECK_STR(err.msg, "r.yaml:1:36: nested deeper than 32 levels");
    zt_str_reset(&s);
    zt_str_puts(&s, "a: [");
    for (int i = 0; i < 30000; i++)
        zt_str_puts(&s, "1,");
    zt_str_puts(&s, "1]\n");
    CHECK(!load_text(zt_str_get(&s), 1));
    CHECK(strstr(err.msg, ": more than 20000 values"));
    zt_str_reset(&s);
    for (int i = 0; i < (1 << 20) / 4; i++)
        zt_str_puts(&s, "#aaaa");
    CHECK(!load_text(zt_str_get(&s), 1));
    CHECK_STR(err.msg, "r.yaml: larger than 1048576 bytes");
    zt_str_release(&s);
}

TEST_MAIN()
