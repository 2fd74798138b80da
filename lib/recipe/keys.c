#include "recipe/keys.h"

#include <float.h>
#include <strings.h>

#define AT(field) offsetof(struct zt_settings, field)
#define BIG 9007199254740992.0 /* 2^53: exact as a double */

/* Rows by what they are. `...` adds or overrides fields. */
#define SECTION(p, d)                                                                              \
    {                                                                                              \
        .path = p, .type = ZT_KEY_SECTION, .dest = ZT_NO_DEST, .doc = d                            \
    }
#define KEY(p, ty, to, df, d, ...)                                                                 \
    {                                                                                              \
        .path = p, .type = ZT_KEY_##ty, .dest = AT(to), .dflt = df, .doc = d, ##__VA_ARGS__        \
    }
#define INT(p, to, df, lo, hi, d) KEY(p, INT, to, df, d, .min = lo, .max = hi)
#define FLOAT(p, to, df, lo, hi, d) KEY(p, FLOAT, to, df, d, .min = lo, .max = hi)
#define BOOL(p, to, df, d) KEY(p, BOOL, to, df, d)
#define HARMLESS(p, ty, d, ...)                                                                    \
    {                                                                                              \
        .path = p, .type = ZT_KEY_##ty, .status = ZT_KEY_HARMLESS, .dest = ZT_NO_DEST, .doc = d,   \
        ##__VA_ARGS__                                                                              \
    }
#define REFUSED(p, ty, off, d)                                                                     \
    {                                                                                              \
        .path = p, .type = ZT_KEY_##ty, .status = ZT_KEY_REFUSED, .dest = ZT_NO_DEST, .ok = off,   \
        .doc = d                                                                                   \
    }

/* A DeepSpeed feature with its own section, off unless `enabled`. */
#define FEATURE(p, d)                                                                              \
    SECTION(p, d), REFUSED(p ".enabled", BOOL, "false", d),                                        \
        HARMLESS(p ".*", ANY, "read only when " p " is enabled")

#define BUCKET_WHY "transfers are cut by unit, and the plan bounds what they hold"
#define DROPOUT_WHY "dropout is not carried out yet; set it to 0"
#define HF_WHY "says nothing about training"
#define TOKEN_WHY "token ids are taken from the data as they are"
#define GENERATE_WHY "a setting of other programs' text generation"

const struct zt_key zt_keys[] = {
    /* clang-format off */
    {.path = "include", .type = ZT_KEY_ANY, .dest = ZT_NO_DEST,
     .doc = "Files merged below the recipe: one, or a list, later ones winning."},

    /* batch: DeepSpeed; at least 1 each, checked together in resolve.c */
    INT("train_batch_size", r.batch.train, NULL, -BIG, BIG,
        "Sequences of one step over all ranks: micro x accumulation x ranks."),
    INT("train_micro_batch_size_per_gpu", r.batch.micro, NULL, -BIG, BIG,
        "Sequences that one rank computes at a time."),
    INT("gradient_accumulation_steps", r.batch.accum, NULL, -BIG, 1000000,
        "Micro-batches of one step on each rank."),

    /* optimizer */
    SECTION("optimizer", "The optimizer."),
    KEY("optimizer.type", WORD, r.optimizer.type, "AdamW",
        "The optimizer's name. Adam is AdamW too, as in DeepSpeed.",
        .ok = "AdamW|Adam",
        .known = "FusedAdam|OneBitAdam|ZeroOneAdam|Lamb|OneBitLamb|Lion|Muon|SGD|Adagrad|Adafactor|"
                 "RMSprop|MuAdam|MuAdamW|MuSGD"),
    SECTION("optimizer.params", "What the optimizer takes."),
    FLOAT("optimizer.params.lr", r.optimizer.lr, "1e-3", 0, DBL_MAX, "Learning rate."),
    KEY("optimizer.params.betas", PAIR, betas, "[0.9, 0.999]",
        "Decay of Adam's running means of the gradient and of its square, below 1.",
        .min = 0, .max = 1),
    KEY("optimizer.params.eps", FLOAT, r.optimizer.eps, "1e-8", "Adam's epsilon.",
        .min = 0, .max = DBL_MAX, .above = true),
    FLOAT("optimizer.params.weight_decay", r.optimizer.weight_decay, "0", 0, DBL_MAX,
          "Decoupled weight decay, on tensors of 2 or more dimensions."),
    REFUSED("optimizer.params.adam_w_mode", BOOL, "true",
            "weight decay as part of the gradient (plain Adam) is not carried out yet; leave it "
            "true, or set weight_decay: 0"),
    REFUSED("optimizer.params.amsgrad", BOOL, "false", "AMSGrad is not carried out"),
    REFUSED("optimizer.params.bias_correction", BOOL, "true",
            "Adam without bias correction is not carried out"),
    HARMLESS("optimizer.params.torch_adam", BOOL, "there is one AdamW here"),
    HARMLESS("optimizer.params.fused", BOOL, "there is one AdamW here, and it is fused"),
    REFUSED("optimizer.legacy_fusion", BOOL, "false", "not carried out"),

    /* scheduler */
    SECTION("scheduler", "How the learning rate changes from step to step."),
    KEY("scheduler.type", ENUM, scheduler, "Constant",
        "Constant (with a linear warm-up if warmup_steps is above 0) or Cosine (nanoGPT's rule).",
        .ok = "Constant|Cosine",
        .known = "WarmupLR|WarmupDecayLR|WarmupCosineLR|LRRangeTest|OneCycle"),
    SECTION("scheduler.params", "What the schedule takes."),
    INT("scheduler.params.warmup_steps", r.schedule.warmup_steps, "0", 0, BIG,
        "Steps of linear warm-up: lr (it + 1) / (warmup_steps + 1) in step it."),
    INT("scheduler.params.total_steps", r.schedule.total_steps, NULL, 1, BIG,
        "Cosine: the step that reaches min_lr; train.steps if not given."),
    FLOAT("scheduler.params.min_lr", r.schedule.min_lr, "0", 0, DBL_MAX,
          "Cosine: the learning rate at the end."),
    HARMLESS("scheduler.params.*", ANY, "read only with the schedule it belongs to"),

    FLOAT("gradient_clipping", r.gradient_clipping, "0", 0, DBL_MAX,
          "Largest global L2 norm of the gradient; 0: no clipping."),

    /* precision */
    SECTION("fp16", "Half precision with loss scaling."),
    KEY("fp16.enabled", BOOL, fp16, "false", "training in fp16 is not carried out yet; bf16 is",
        .status = ZT_KEY_REFUSED, .ok = "false"),
    HARMLESS("fp16.loss_scale", FLOAT, "read only with fp16", .ok = "0", .max = DBL_MAX),
    HARMLESS("fp16.initial_scale_power", INT, "read only with fp16", .max = 64),
    HARMLESS("fp16.loss_scale_window", INT, "read only with fp16", .min = 1, .max = BIG),
    HARMLESS("fp16.hysteresis", INT, "read only with fp16", .min = 1, .max = BIG),
    HARMLESS("fp16.consecutive_hysteresis", BOOL, "read only with fp16", .ok = "false"),
    HARMLESS("fp16.min_loss_scale", FLOAT, "read only with fp16", .max = DBL_MAX),
    REFUSED("fp16.auto_cast", BOOL, "false", "casting by operation is not carried out"),
    REFUSED("fp16.fp16_master_weights_and_grads", BOOL, "false",
            "master weights are always kept in fp32"),
    SECTION("bf16", "bfloat16 parameters and activations, fp32 master weights."),
    BOOL("bf16.enabled", bf16, "false",
         "Train in bfloat16 with fp32 master weights, means and variances."),
    REFUSED("bf16.bf16_master_weights_and_grads", BOOL, "false",
            "master weights are always kept in fp32"),
    REFUSED("bf16.bf16_optimizer_states", BOOL, "false", "optimizer states are always kept in fp32"),
    HARMLESS("bf16.immediate_grad_update", BOOL, "gradients are reduced when they are complete"),
    HARMLESS("bf16.check_grad_overflow", BOOL,
             "a gradient that is not finite is always seen; see train.on_nonfinite"),
    FEATURE("amp", "Apex mixed precision is not carried out; use bf16"),
    FEATURE("torch_autocast", "casting by operation is not carried out; use bf16"),

    /* ZeRO */
    SECTION("zero_optimization", "Sharding of the model state over the ranks (ZeRO)."),
    INT("zero_optimization.stage", zero_stage, "0", 0, 3,
        "0: nothing is sharded; 1: optimizer states; 2: and gradients; 3: and parameters."),
    BOOL("zero_optimization.overlap_comm", r.zero.overlap_comm, "true",
         "Communicate while computing. The results are the same bits either way."),
    KEY("zero_optimization.reduce_bucket_size", SIZE, r.zero.reduce_bucket_size, "0", BUCKET_WHY,
        .status = ZT_KEY_HARMLESS, .max = BIG, .ok = "0"),
    KEY("zero_optimization.allgather_bucket_size", SIZE, r.zero.allgather_bucket_size, "0",
        BUCKET_WHY, .status = ZT_KEY_HARMLESS, .max = BIG, .ok = "0"),
    KEY("zero_optimization.prefetch_bucket_size", SIZE, r.zero.prefetch_bucket_size, "0",
        "Stage 3: parameters gathered ahead of their use, in elements; 0: the larger of 200 MB and "
        "the three largest units.",
        .max = BIG),
    SECTION("zero_optimization.offload_optimizer", "Where optimizer states live."),
    KEY("zero_optimization.offload_optimizer.device", ENUM, r.zero.offload_optimizer, "none",
        "offloading the optimizer is not carried out yet", .ok = "none", .known = "cpu|nvme"),
    HARMLESS("zero_optimization.offload_optimizer.*", ANY, "read only with an offload device"),
    SECTION("zero_optimization.offload_param", "Where parameters live."),
    KEY("zero_optimization.offload_param.device", ENUM, r.zero.offload_param, "none",
        "offloading parameters is not carried out yet", .ok = "none", .known = "cpu|nvme"),
    HARMLESS("zero_optimization.offload_param.*", ANY, "read only with an offload device"),
    REFUSED("zero_optimization.cpu_offload", BOOL, "false",
            "deprecated by DeepSpeed; write offload_optimizer: {device: cpu}"),
    REFUSED("zero_optimization.cpu_offload_params", BOOL, "false",
            "deprecated by DeepSpeed; write offload_param: {device: cpu}"),
    HARMLESS("zero_optimization.cpu_offload_use_pin_memory", BOOL, "read only with an offload device"),
    HARMLESS("zero_optimization.allgather_partitions", BOOL, "parameters are always all-gathered"),
    HARMLESS("zero_optimization.reduce_scatter", BOOL, "gradients are always reduce-scattered"),
    HARMLESS("zero_optimization.use_multi_rank_bucket_allreduce", BOOL,
             "gradients are always reduce-scattered"),
    HARMLESS("zero_optimization.contiguous_gradients", BOOL, "gradients are always contiguous"),
    HARMLESS("zero_optimization.grad_hooks", BOOL, "there are no hooks: the order is planned"),
    HARMLESS("zero_optimization.round_robin_gradients", BOOL, "slices are always equal"),
    HARMLESS("zero_optimization.sub_group_size", SIZE, BUCKET_WHY),
    HARMLESS("zero_optimization.max_live_parameters", SIZE,
             "a gathered unit is released after its use; prefetch_bucket_size bounds the rest"),
    HARMLESS("zero_optimization.max_reuse_distance", SIZE,
             "a unit needed again inside the prefetch window is kept"),
    HARMLESS("zero_optimization.param_persistence_threshold", SIZE,
             "small tensors are gathered with their unit, and cost no message of their own"),
    HARMLESS("zero_optimization.model_persistence_threshold", SIZE,
             "small tensors are gathered with their unit, and cost no message of their own"),
    HARMLESS("zero_optimization.module_granularity_threshold", SIZE, "units are planned"),
    HARMLESS("zero_optimization.use_all_reduce_for_fetch_params", BOOL,
             "parameters are always all-gathered"),
    HARMLESS("zero_optimization.gather_16bit_weights_on_model_save", BOOL,
             "checkpoints hold every slice, and can be exported whole"),
    HARMLESS("zero_optimization.load_from_fp32_weights", BOOL,
             "master weights are always read in the precision of the file"),
    HARMLESS("zero_optimization.elastic_checkpoint", BOOL,
             "any checkpoint loads at any stage and rank count"),
    HARMLESS("zero_optimization.ignore_unused_parameters", BOOL, "every parameter is used"),
    REFUSED("zero_optimization.legacy_stage1", BOOL, "false", "there is one stage 1 here"),
    HARMLESS("zero_optimization.memory_efficient_linear", BOOL, "memory is planned"),
    HARMLESS("zero_optimization.override_module_apply", BOOL, "a setting of PyTorch modules"),
    HARMLESS("zero_optimization.pipeline_loading_checkpoint", BOOL, "a setting of PyTorch"),
    HARMLESS("zero_optimization.log_trace_cache_warnings", BOOL, "there is no trace cache"),
    REFUSED("zero_optimization.zero_hpz_partition_size", INT, "0|1",
            "hierarchical partitioning (ZeRO++) is not carried out yet"),
    REFUSED("zero_optimization.zero_quantized_weights", BOOL, "false",
            "quantized weights (ZeRO++) are not carried out"),
    REFUSED("zero_optimization.zero_quantized_nontrainable_weights", BOOL, "false",
            "quantized weights (ZeRO++) are not carried out"),
    REFUSED("zero_optimization.zero_quantized_gradients", BOOL, "false",
            "quantized gradients (ZeRO++) are not carried out"),
    REFUSED("zero_optimization.zeropp_loco_param", ANY, NULL,
            "quantized gradients (ZeRO++) are not carried out"),
    REFUSED("zero_optimization.mics_shard_size", INT, "-1|0",
            "sharding inside groups of ranks (MiCS) is not carried out yet"),
    REFUSED("zero_optimization.mics_hierarchical_params_gather", BOOL, "false",
            "sharding inside groups of ranks (MiCS) is not carried out yet"),
    HARMLESS("zero_allow_untested_optimizer", BOOL, "AdamW is tested with every stage"),
    HARMLESS("zero_force_ds_cpu_optimizer", BOOL, "there is one AdamW here"),

    /* recomputation */
    SECTION("activation_checkpointing", "Recompute activations instead of keeping them."),
    KEY("activation_checkpointing.policy", ENUM, policy, "none",
        "none: keep what backward needs; block: keep each block's input and recompute the rest. "
        "(Ours; DeepSpeed leaves this to the model's code.)",
        .ok = "none|block"),
    REFUSED("activation_checkpointing.partition_activations", BOOL, "false",
            "partitioned activations need tensor parallelism, which is not carried out yet"),
    REFUSED("activation_checkpointing.cpu_checkpointing", BOOL, "false",
            "keeping activations in host memory is not carried out yet"),
    HARMLESS("activation_checkpointing.contiguous_memory_optimization", BOOL, "memory is planned"),
    HARMLESS("activation_checkpointing.number_checkpoints", INT,
             "every block is one; see activation_checkpointing.policy"),
    HARMLESS("activation_checkpointing.synchronize_checkpoint_boundary", BOOL,
             "waits are derived from the plan"),
    HARMLESS("activation_checkpointing.profile", BOOL, "the plan shows what recomputing costs"),

    /* communication */
    KEY("communication_data_type", ENUM, comm, NULL,
        "What gradients travel as; not given: the type they are held in.",
        .ok = "fp32|bf16|bfp16", .known = "fp16"),
    REFUSED("fp32_allreduce", BOOL, "false", "deprecated; write communication_data_type: fp32"),
    REFUSED("prescale_gradients", BOOL, "false",
            "gradients are summed in fp32 and scaled once, afterwards"),
    REFUSED("gradient_predivide_factor", FLOAT, "1", "gradients are summed in fp32 and scaled once"),
    REFUSED("sparse_gradients", BOOL, "false", "sparse gradients are not carried out"),
    REFUSED("seq_parallel_communication_data_type", STR, "fp32",
            "sequence parallelism is not carried out yet"),
    HARMLESS("disable_allgather", BOOL, "the stage decides", .ok = "false"),
    SECTION("data_types", "Element types."),
    REFUSED("data_types.grad_accum_dtype", STR, "fp32",
            "gradients of several micro-batches are always summed in fp32"),
    HARMLESS("communication_backend_name", STR, "the transport is chosen by device"),

    /* what DeepSpeed prints */
    INT("steps_per_print", r.log.steps_per_print, "10", 1, BIG, "Print a line every this many steps."),
    BOOL("wall_clock_breakdown", r.log.wall_clock_breakdown, "false",
         "Record how long each kind of op took in every step."),
    HARMLESS("dump_state", BOOL, "zerotrain plan --print_recipe shows all of it", .ok = "false"),
    HARMLESS("memory_breakdown", BOOL, "the ledger shows it", .ok = "false"),
    FEATURE("flops_profiler", "the plan shows FLOPs; a profiler is not carried out"),
    FEATURE("tensorboard", "TensorBoard is not written; runs write metrics.jsonl"),
    FEATURE("wandb", "Weights & Biases is not spoken; runs write metrics.jsonl"),
    FEATURE("comet", "Comet is not spoken; runs write metrics.jsonl"),
    FEATURE("csv_monitor", "no CSV is written; runs write metrics.jsonl"),
    FEATURE("comms_logger", "the plan shows every transfer; a log of them is not carried out"),
    FEATURE("monitor_config", "not carried out; runs write metrics.jsonl"),

    /* what DeepSpeed has besides */
    FEATURE("autotuning", "autotuning is not carried out; zerotrain plan answers at once"),
    FEATURE("elasticity", "elastic batch sizes are not carried out yet"),
    FEATURE("curriculum_learning", "curriculum learning is not carried out"),
    FEATURE("data_efficiency", "data efficiency is not carried out"),
    FEATURE("progressive_layer_drop", "layer drop is not carried out"),
    FEATURE("eigenvalue", "eigenvalues are not computed"),
    FEATURE("quantize_training", "quantized training is not carried out"),
    FEATURE("hybrid_engine", "the hybrid engine is not carried out"),
    FEATURE("nebula", "Nebula is not spoken"),
    FEATURE("datastates_ckpt", "DataStates is not spoken"),
    REFUSED("compression_training", ANY, NULL, "compression is not carried out"),
    REFUSED("sparse_attention", ANY, NULL, "sparse attention is not carried out"),
    REFUSED("pipeline", ANY, NULL, "pipeline parallelism is not carried out yet"),
    REFUSED("tensor_parallel", ANY, NULL, "tensor parallelism is not carried out yet"),
    REFUSED("sequence_parallel_size", INT, "1", "sequence parallelism is not carried out yet"),
    HARMLESS("aio", ANY, "read only when offloading to NVMe"),
    HARMLESS("compile", ANY, "a setting of PyTorch"),
    HARMLESS("dataloader_drop_last", BOOL, "samples are whole; an epoch ends where its samples end"),
    HARMLESS("use_data_before_expert_parallelism", BOOL, "there are no experts", .ok = "false"),
    HARMLESS("zero_quantized_nontrainable_weights", BOOL, "belongs to zero_optimization",
             .ok = "false"),

    /* checkpoint */
    SECTION("checkpoint", "Checkpoints."),
    HARMLESS("checkpoint.tag_validation", STR, "a checkpoint is valid or absent"),
    HARMLESS("checkpoint.load_universal", BOOL, "any checkpoint loads at any stage and rank count"),
    HARMLESS("checkpoint.use_node_local_storage", BOOL, "the folder is shared", .ok = "false"),
    HARMLESS("checkpoint.parallel_write", ANY, "every rank writes its own slices"),
    HARMLESS("checkpoint.writer", ANY, "a setting of DeepSpeed's writers"),

    /* model: Hugging Face's config.json */
    SECTION("model", "The model, in the words of Hugging Face's config.json."),
    KEY("model.from", PATH, r.model.from, NULL,
        "A folder with config.json and safetensors: start from its weights."),
    KEY("model.config", PATH, model_config, NULL,
        "A config.json; keys of the recipe win over it."),
    KEY("model.params", FLOAT, r.model.params, NULL,
        "A number of parameters, enough for zerotrain plan.", .min = 1, .max = 1e18),
    KEY("model.model_type", WORD, r.model.model_type, NULL,
        "gpt2, or llama (planned; not trained yet).", .ok = "gpt2|llama"),
    INT("model.n_layer", r.model.n_layer, NULL, 1, 100000, "Blocks."),
    INT("model.n_head", r.model.n_head, NULL, 1, 100000, "Attention heads."),
    INT("model.num_key_value_heads", r.model.n_kv_head, NULL, 1, 100000,
        "Key and value heads (llama); n_head if not given."),
    INT("model.head_dim", r.model.head_dim, NULL, 1, 1 << 20,
        "Width of a head; n_embd / n_head if not given."),
    INT("model.n_embd", r.model.n_embd, NULL, 1, 1 << 24, "Width of the residual stream."),
    INT("model.n_inner", r.model.n_inner, NULL, 1, 1 << 28,
        "Width inside the feed-forward layer; 4 n_embd if not given."),
    INT("model.vocab_size", r.model.vocab_size, NULL, 1, 1 << 28,
        "Tokens. Not given: 256 for text, 50257 for token files and with a config.json."),
    INT("model.n_positions", r.model.n_positions, NULL, 1, 1 << 28, "Longest sequence."),
    KEY("model.layer_norm_epsilon", FLOAT, r.model.norm_eps, NULL, "Epsilon of the norms.",
        .min = 0, .max = 1, .above = true),
    FLOAT("model.initializer_range", r.model.initializer_range, NULL, 0, 1e3,
          "Standard deviation of the first weights."),
    KEY("model.rope_theta", FLOAT, r.model.rope_theta, NULL, "Base of the rotary angles (llama).",
        .min = 0, .max = 1e18, .above = true),
    KEY("model.activation_function", STR, r.model.activation, NULL,
        "gelu_new or gelu_pytorch_tanh for gpt2, silu for llama."),
    BOOL("model.tie_word_embeddings", r.model.tie_word_embeddings, NULL,
         "The head uses the embedding's weights."),
    KEY("model.embd_pdrop", FLOAT, r.model.embd_pdrop, "0", DROPOUT_WHY,
        .status = ZT_KEY_REFUSED, .ok = "0", .max = 1),
    KEY("model.resid_pdrop", FLOAT, r.model.resid_pdrop, "0", DROPOUT_WHY,
        .status = ZT_KEY_REFUSED, .ok = "0", .max = 1),
    KEY("model.attn_pdrop", FLOAT, r.model.attn_pdrop, "0", DROPOUT_WHY,
        .status = ZT_KEY_REFUSED, .ok = "0", .max = 1),
    REFUSED("model.scale_attn_weights", BOOL, "true", "attention is always scaled by 1/sqrt(head_dim)"),
    REFUSED("model.scale_attn_by_inverse_layer_idx", BOOL, "false",
            "scaling attention by layer is not carried out"),
    HARMLESS("model.reorder_and_upcast_attn", BOOL, "attention is summed in fp32"),
    REFUSED("model.add_cross_attention", BOOL, "false", "cross attention is not carried out"),
    REFUSED("model.is_encoder_decoder", BOOL, "false", "encoders are not carried out"),
    HARMLESS("model.is_decoder", BOOL, "every model here is a decoder"),
    REFUSED("model.attention_bias", BOOL, "false", "biases of llama's attention are not carried out"),
    REFUSED("model.mlp_bias", BOOL, "false", "biases of llama's feed-forward are not carried out"),
    REFUSED("model.rope_scaling", ANY, NULL, "scaled rotary angles are not carried out"),
    REFUSED("model.rope_parameters", ANY, NULL, "write rope_theta; scaling is not carried out"),
    REFUSED("model.quantization_config", ANY, NULL, "quantized weights are not read"),
    REFUSED("model.pretraining_tp", INT, "1", "a setting of how llama was first trained"),
    REFUSED("model.tie_encoder_decoder", BOOL, "false", "encoders are not carried out"),
    REFUSED("model.chunk_size_feed_forward", INT, "0", "not carried out"),
    REFUSED("model.pruned_heads", ANY, NULL, "pruned heads are not carried out"),
    REFUSED("model.torchscript", BOOL, "false", "a setting of PyTorch"),
    HARMLESS("model.n_ctx", INT, "n_positions says the same"),
    HARMLESS("model.architectures", ANY, "model_type says the same"),
    HARMLESS("model.auto_map", ANY, "no code is loaded"),
    HARMLESS("model.torch_dtype", STR, "bf16.enabled decides the precision"),
    HARMLESS("model.dtype", STR, "bf16.enabled decides the precision"),
    HARMLESS("model.transformers_version", STR, HF_WHY),
    HARMLESS("model._name_or_path", STR, HF_WHY),
    HARMLESS("model._attn_implementation_autoset", BOOL, HF_WHY),
    HARMLESS("model._attn_implementation", STR, HF_WHY),
    HARMLESS("model._num_labels", INT, HF_WHY),
    HARMLESS("model.name_or_path", STR, HF_WHY),
    HARMLESS("model.bos_token_id", ANY, TOKEN_WHY),
    HARMLESS("model.eos_token_id", ANY, TOKEN_WHY),
    HARMLESS("model.pad_token_id", ANY, TOKEN_WHY),
    HARMLESS("model.sep_token_id", ANY, TOKEN_WHY),
    HARMLESS("model.decoder_start_token_id", ANY, TOKEN_WHY),
    HARMLESS("model.tokenizer_class", STR, TOKEN_WHY),
    HARMLESS("model.prefix", STR, TOKEN_WHY),
    HARMLESS("model.use_cache", BOOL, GENERATE_WHY),
    HARMLESS("model.use_return_dict", BOOL, HF_WHY),
    HARMLESS("model.return_dict", BOOL, HF_WHY),
    HARMLESS("model.output_attentions", BOOL, HF_WHY),
    HARMLESS("model.output_hidden_states", BOOL, HF_WHY),
    HARMLESS("model.output_past", BOOL, HF_WHY),
    HARMLESS("model.gradient_checkpointing", BOOL, "see activation_checkpointing.policy"),
    HARMLESS("model.summary_type", STR, "read by classification heads only"),
    HARMLESS("model.summary_use_proj", BOOL, "read by classification heads only"),
    HARMLESS("model.summary_activation", STR, "read by classification heads only"),
    HARMLESS("model.summary_proj_to_labels", BOOL, "read by classification heads only"),
    HARMLESS("model.summary_first_dropout", FLOAT, "read by classification heads only"),
    HARMLESS("model.problem_type", STR, "read by classification heads only"),
    HARMLESS("model.num_labels", INT, "read by classification heads only"),
    HARMLESS("model.id2label", ANY, "read by classification heads only"),
    HARMLESS("model.label2id", ANY, "read by classification heads only"),
    HARMLESS("model.finetuning_task", ANY, "read by classification heads only"),
    HARMLESS("model.cross_attention_hidden_size", INT, "read by encoders only"),
    HARMLESS("model.task_specific_params", ANY, GENERATE_WHY),
    HARMLESS("model.max_length", INT, GENERATE_WHY),
    HARMLESS("model.min_length", INT, GENERATE_WHY),
    HARMLESS("model.do_sample", BOOL, GENERATE_WHY),
    HARMLESS("model.early_stopping", BOOL, GENERATE_WHY),
    HARMLESS("model.num_beams", INT, GENERATE_WHY),
    HARMLESS("model.num_beam_groups", INT, GENERATE_WHY),
    HARMLESS("model.diversity_penalty", FLOAT, GENERATE_WHY),
    HARMLESS("model.temperature", FLOAT, GENERATE_WHY),
    HARMLESS("model.top_k", INT, GENERATE_WHY),
    HARMLESS("model.top_p", FLOAT, GENERATE_WHY),
    HARMLESS("model.typical_p", FLOAT, GENERATE_WHY),
    HARMLESS("model.repetition_penalty", FLOAT, GENERATE_WHY),
    HARMLESS("model.length_penalty", FLOAT, GENERATE_WHY),
    HARMLESS("model.no_repeat_ngram_size", INT, GENERATE_WHY),
    HARMLESS("model.encoder_no_repeat_ngram_size", INT, GENERATE_WHY),
    HARMLESS("model.bad_words_ids", ANY, GENERATE_WHY),
    HARMLESS("model.num_return_sequences", INT, GENERATE_WHY),
    HARMLESS("model.output_scores", BOOL, GENERATE_WHY),
    HARMLESS("model.return_dict_in_generate", BOOL, GENERATE_WHY),
    HARMLESS("model.forced_bos_token_id", ANY, GENERATE_WHY),
    HARMLESS("model.forced_eos_token_id", ANY, GENERATE_WHY),
    HARMLESS("model.remove_invalid_values", BOOL, GENERATE_WHY),
    HARMLESS("model.exponential_decay_length_penalty", ANY, GENERATE_WHY),
    HARMLESS("model.suppress_tokens", ANY, GENERATE_WHY),
    HARMLESS("model.begin_suppress_tokens", ANY, GENERATE_WHY),
    HARMLESS("model.tf_legacy_loss", BOOL, "a setting of TensorFlow"),
    HARMLESS("model.use_bfloat16", BOOL, "a setting of TensorFlow"),

    /* data */
    SECTION("data", "What is learnt from."),
    KEY("data.train", PATHS, r.data.train, NULL,
        "Files, glob patterns, folders (read whole): one, or a list."),
    KEY("data.val", PATHS, r.data.val, NULL, "The same to validate; data.train if val_range is given."),
    KEY("data.format", ENUM, r.data.format, "auto",
        "text (bytes are tokens), llm.c, raw_u16, or auto: by what the file starts with and is "
        "called.",
        .ok = "auto|text|llm.c|raw_u16"),
    INT("data.seq_len", r.data.seq_len, NULL, 1, 1 << 28,
        "Tokens of a sequence; n_positions, at most 1024, if not given."),
    KEY("data.train_range", RANGE, r.data.range_train, NULL,
        "[begin, end) of the tokens of data.train to train on; -1 is open."),
    KEY("data.val_range", RANGE, r.data.range_val, NULL, "The same of data.val, to validate."),
    KEY("data.val_fraction", FLOAT, r.data.val_fraction, "0",
        "Part of the end of data.train held out to validate; below 1.", .max = 1),
    BOOL("data.shuffle", r.data.shuffle, "true", "Another order of the samples in every epoch."),

    /* train */
    SECTION("train", "How long, and what is shown meanwhile."),
    INT("train.steps", r.train.steps, "1000", 0, BIG, "Optimizer steps."),
    INT("train.seed", seed, "1337", 0, BIG, "Seed of the first weights and of the data's order."),
    INT("train.eval_every", r.train.eval_every, "0", 0, BIG,
        "Validate every this many steps; 0: never."),
    INT("train.eval_batches", r.train.eval_batches, "0", 0, BIG,
        "Batches of one validation; 0: all of the data."),
    INT("train.sample_every", r.train.sample_every, "0", 0, BIG,
        "Write a sample every this many steps; 0: never."),
    INT("train.sample_tokens", r.train.sample_tokens, "200", 1, 1 << 20, "Tokens of a sample."),
    KEY("train.sample_prompt", STR, r.train.sample_prompt, "\"\\n\"", "What a sample starts with."),
    KEY("train.sample_temperature", FLOAT, r.train.sample_temperature, "0.8",
        "Above 1: more surprising; 0: the likeliest token always.", .max = 100),
    INT("train.sample_top_k", sample_top_k, "200", 0, 1 << 28,
        "Draw from this many likeliest tokens; 0: from all."),
    BOOL("train.reduce_every_micro_batch", r.train.reduce_every_micro_batch, "false",
         "Stages 0 and 1 reduce after every micro-batch as stages 2 and 3 do: the same bits in all."),
    KEY("train.on_nonfinite", ENUM, r.train.on_nonfinite, "error",
        "When the gradient is not finite: stop with an error, or skip the step on all ranks.",
        .ok = "error|skip"),

    /* the rest of ours */
    SECTION("log", "Where a run is written down."),
    KEY("log.dir", STR, r.log.dir, NULL,
        "Folder of the run, from the folder it is started in; runs/NAME-TIME if not given."),
    KEY("log.name", STR, r.log.name, NULL, "NAME of the run; the recipe's if not given."),
    SECTION("parallel", "Workers."),
    INT("parallel.threads", threads, "0", 0, 4096,
        "Threads of a CPU worker; 0: cores over workers of the machine."),
    /* clang-format on */
};
const int zt_n_keys = ZT_ARRAY_LEN(zt_keys);

#define STAGE3(name)                                                                               \
    {                                                                                              \
        "zero_optimization.stage3_" name, "zero_optimization." name                                \
    }

const struct zt_key_alias zt_key_aliases[] = {
    {"bfloat16", "bf16"},
    {"train_micro_batch_size", "train_micro_batch_size_per_gpu"},
    STAGE3("prefetch_bucket_size"),
    STAGE3("max_live_parameters"),
    STAGE3("max_reuse_distance"),
    STAGE3("param_persistence_threshold"),
    STAGE3("model_persistence_threshold"),
    STAGE3("module_granularity_threshold"),
    STAGE3("use_all_reduce_for_fetch_params"),
    STAGE3("gather_16bit_weights_on_model_save"),
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.gather_16bit_weights_on_model_save"},
    {"zero_optimization.allgather_size", "zero_optimization.allgather_bucket_size"},
    {"zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_params"},
    {"model.num_hidden_layers", "model.n_layer"},
    {"model.num_attention_heads", "model.n_head"},
    {"model.n_kv_head", "model.num_key_value_heads"},
    {"model.hidden_size", "model.n_embd"},
    {"model.intermediate_size", "model.n_inner"},
    {"model.max_position_embeddings", "model.n_positions"},
    {"model.rms_norm_eps", "model.layer_norm_epsilon"},
    {"model.hidden_act", "model.activation_function"},
    {"model.attention_dropout", "model.attn_pdrop"},
};
const int zt_n_key_aliases = ZT_ARRAY_LEN(zt_key_aliases);

int zt_key_find(const char *path)
{
    const char *dot = strrchr(path, '.');
    size_t section_len = dot ? (size_t)(dot - path) + 1 : 0;
    int wildcard = -1;
    for (int i = 0; i < zt_n_keys; i++) {
        const char *p = zt_keys[i].path;
        if (strcmp(p, path) == 0)
            return i;
        if (section_len && strncmp(p, path, section_len) == 0 && strcmp(p + section_len, "*") == 0)
            wildcard = i;
    }
    return wildcard;
}

const char *zt_key_canonical(const char *path)
{
    for (int i = 0; i < zt_n_key_aliases; i++) {
        if (strcmp(zt_key_aliases[i].path, path) == 0)
            return zt_key_aliases[i].canonical;
    }
    return path;
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Does `path` stand directly in the section that the first `len` bytes of `section` name? */
static bool in_section(const char *path, const char *section, size_t len)
{
    return strncmp(path, section, len) == 0 && !strchr(path + len, '.') && path[len] != '*';
}

const char *zt_key_suggest(const char *path, struct zt_arena *arena)
{
    const char *leaf = leaf_of(path);
    size_t section_len = (size_t)(leaf - path);
    size_t max = (size_t)zt_n_keys + (size_t)zt_n_key_aliases, n = 0;
    const char **names = zt_xcalloc(max, sizeof *names);
    const char *elsewhere = NULL;
    for (size_t i = 0; i < max; i++) {
        const char *p =
            i < (size_t)zt_n_keys ? zt_keys[i].path : zt_key_aliases[i - (size_t)zt_n_keys].path;
        if (in_section(p, path, section_len))
            names[n++] = leaf_of(p);
        if (!elsewhere && strcmp(leaf_of(p), leaf) == 0)
            elsewhere = p;
    }
    const char *near = zt_nearest(leaf, names, n);
    free(names);
    if (elsewhere)
        return zt_arena_printf(arena, "; it belongs at %s", elsewhere);
    return near ? zt_arena_printf(arena, "; did you mean \"%s\"?", near) : "";
}

int zt_word_index(const char *list, const char *word)
{
    size_t len = strlen(word);
    int i = 0;
    for (const char *p = list; p && *p; i++) {
        size_t n = strcspn(p, "|");
        if (n == len && strncasecmp(p, word, n) == 0)
            return i;
        p += n + (p[n] == '|');
    }
    return -1;
}

int zt_word_count(const char *list)
{
    int n = list && *list ? 1 : 0;
    for (const char *p = list; p && *p; p++)
        n += *p == '|';
    return n;
}

const char *zt_word_at(const char *list, int i, struct zt_arena *arena)
{
    const char *p = list;
    for (; i > 0; i--)
        p += strcspn(p, "|") + 1;
    return zt_arena_printf(arena, "%.*s", (int)strcspn(p, "|"), p);
}
