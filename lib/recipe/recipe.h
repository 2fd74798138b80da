/*
 * recipe.h: what a person asks for, resolved and checked.
 *
 * A recipe is YAML (JSON is YAML too). At top level it speaks DeepSpeed's ds_config.json, `model`
 * speaks Hugging Face's config.json, and `data`, `train`, `checkpoint`, `parallel`, `log` are ours.
 * One table (key_table.c) lists every key: carried out, harmless (accepted, with the reason), or
 * refused in words. "auto" counts as not given, but for zero_optimization.stage. All errors are reported at once, each with
 * file:line:column.
 *
 *   load text -> tree (libyaml events, positions kept) -> include: / --deepspeed_config merged
 *             -> --set overrides -> table: types, ranges, unknown keys -> derived values (batch
 *             triangle, once the rank count is known) -> struct zt_recipe, const from here on
 *
 * Precedence: --set > the recipe > files that it includes (later wins) > --deepspeed_config (later
 * wins) > config.json, for `model` > defaults. Maps are merged key by key. "auto" or null leaves
 * what stands below; in --set it goes back to the default.
 *
 * Paths of data, include: and model.* start from the folder of the file that holds them; those of
 * --set, of `text`, of log.dir and of checkpoint from the current folder.
 */
#ifndef ZT_RECIPE_RECIPE_H
#define ZT_RECIPE_RECIPE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "dev/optimizer.h"
#include "dev/step.h"

enum zt_precision { ZT_PREC_FP32, ZT_PREC_BF16, ZT_PREC_FP16 };
enum zt_offload_device { ZT_OFFLOAD_TO_NONE, ZT_OFFLOAD_TO_CPU, ZT_OFFLOAD_TO_NVME };
enum zt_data_format { ZT_DATA_AUTO, ZT_DATA_TEXT, ZT_DATA_LLMC, ZT_DATA_RAW_U16, ZT_DATA_MEGATRON };
enum zt_packing { ZT_PACK_NONE, ZT_PACK_DOCUMENTS };

struct zt_str_list {
    int n;
    const char **items;
};

/* How rotary angles are stretched, by Hugging Face's names of it. */
enum zt_rope_scaling { ZT_ROPE_SCALING_NONE, ZT_ROPE_SCALING_LINEAR, ZT_ROPE_SCALING_LLAMA3 };

struct zt_recipe_rope {
    double theta;
    enum zt_rope_scaling scaling;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_positions;
};

/* Hugging Face's vocabulary; without model_type only `params` means anything (for_plan). */
struct zt_recipe_model {
    const char *model_type; /* "gpt2", "llama"...; NULL with `params` alone, or without a model */
    const char *from; /* folder with config.json and safetensors, or a model file of llm.c; NULL:
                               start from noise */
    double params;    /* model.params: plan only; 0 if not given */
    int64_t n_layer, n_head, n_kv_head, head_dim, n_embd, n_inner, vocab_size, n_positions;
    double norm_eps, initializer_range;
    double embd_pdrop, resid_pdrop, attn_pdrop;
    const char *activation; /* "gelu_new" */
    bool tie_word_embeddings;
    struct zt_recipe_rope rope; /* not gpt2, from here on */
    bool attention_bias, mlp_bias;
};

/* As plans and models have them (lib/train/setup.c makes sure). */
enum {
    ZT_RECIPE_MAX_ACCUM = 1 << 16,
    ZT_RECIPE_MAX_LAYERS = 1 << 16,
    ZT_RECIPE_MAX_WIDTH = 1 << 24
};

struct zt_recipe_batch {
    int64_t train, micro, accum; /* train = micro * accum * ranks; resolved */
};

/* optimizer.param_groups, as given: the first whose glob fits a parameter holds for it. */
struct zt_recipe_group {
    const char *match;
    double weight_decay; /* NAN: not given */
    double lr_scale;
    bool frozen;
};

struct zt_recipe_groups {
    int n;
    const struct zt_recipe_group *items;
};

struct zt_recipe_optimizer {
    const char *type; /* "AdamW" (also for "Adam" unless adam_w_mode: false), "Adam", "Lion" */
    enum zt_optimizer kind;
    double lr, beta1, beta2, eps, weight_decay;
    struct zt_recipe_groups groups;
};

/* The loss scale; read only with ZT_PREC_FP16. */
struct zt_recipe_fp16 {
    double loss_scale; /* static; 0: dynamic */
    double min_loss_scale;
    int64_t initial_scale_power, loss_scale_window, hysteresis;
    bool consecutive_hysteresis;
};

#define ZT_STAGE_AUTO (-1) /* not chosen yet: plan/fit.h */

/* How offload to NVMe moves bytes: `aio`, and what offload_optimizer and offload_param say of it. */
enum zt_recipe_aio { ZT_RECIPE_AIO_AUTO, ZT_RECIPE_AIO_URING, ZT_RECIPE_AIO_THREADS };

struct zt_recipe_nvme {
    const char *path;  /* the folder; NULL where nothing goes there */
    const char *given; /* the folder that the recipe names, even where nothing goes there yet */
    int64_t buffer_count;
    int backend;        /* enum zt_recipe_aio */
    int64_t block_size; /* bytes, a multiple of 4096 */
    int64_t queue_depth, threads;
};

struct zt_recipe_zero {
    int stage; /* 0 to 3, or ZT_STAGE_AUTO */
    enum zt_offload_device offload_optimizer, offload_param;
    struct zt_recipe_nvme nvme;
    bool overlap_comm;
    int64_t reduce_bucket_size, allgather_bucket_size, prefetch_bucket_size; /* elements; 0: ours */
};

struct zt_recipe_data {
    struct zt_str_list train, val; /* files, globs, directories; as given */
    const double *train_weights;   /* of each of `train`, above 0; NULL: one set of samples */
    struct zt_str_list train_mask, val_mask; /* one for each token file; n 0: every token counts */
    enum zt_data_format format;
    enum zt_packing packing;
    int64_t document_separator; /* -1: none */
    int64_t seq_len;
    int64_t range_train[2], range_val[2]; /* [begin, end) tokens of the concatenation; -1: open */
    double val_fraction; /* held out of the end of train when val is not given; 0: none */
    bool shuffle;
};

struct zt_recipe_train {
    int64_t steps;
    int64_t epochs; /* of the training data: it ends there; 0: it goes round for ever */
    uint64_t seed;
    double stop_at_loss;              /* 0: never */
    int64_t eval_every, eval_batches; /* 0: never; eval_batches 0: the whole validation set */
    int64_t sample_every, sample_tokens;
    const char *sample_prompt;
    double sample_temperature;
    int sample_top_k;
    bool reduce_every_micro_batch;
    enum zt_nonfinite_rule on_nonfinite;
};

/* activation_checkpointing.policy, in the order of key_table.c. */
enum zt_activation_policy {
    ZT_KEEP_ALL,
    ZT_KEEP_BLOCK_INPUTS,
    ZT_KEEP_SELECTED,
    ZT_KEEP_EVERY_NTH,
};

struct zt_recipe_activations {
    enum zt_activation_policy policy;
    int every;    /* ZT_KEEP_EVERY_NTH: N */
    bool on_host; /* cpu_checkpointing; not with ZT_KEEP_ALL */
};

struct zt_recipe_log {
    const char *dir, *name;
    int64_t steps_per_print;
    bool wall_clock_breakdown;
};

struct zt_recipe_checkpoint {
    const char *dir;      /* absolute; NULL: nothing is saved */
    int64_t every_steps;  /* 0: not by steps */
    double every_minutes; /* 0: not by time */
    int64_t keep;         /* the newest so many; 0: all */
    int64_t keep_every;   /* and for good the multiples of it; 0: none */
    bool async;
    const char *resume; /* "never", "newest", or a path, absolute */
};

/* flops_profiler */
struct zt_recipe_profile {
    bool enabled, detailed;
    int64_t step;            /* 1-based */
    const char *output_file; /* NULL: shown */
};

struct zt_recipe {
    struct zt_arena arena; /* owns all of this */
    const char *path;      /* of the main file */
    int n_ranks;           /* what the batch was resolved for */
    struct zt_recipe_model model;
    struct zt_recipe_batch batch;
    struct zt_recipe_optimizer optimizer;
    struct zt_schedule schedule;
    double gradient_clipping; /* 0: none */
    enum zt_precision precision;
    struct zt_recipe_fp16 fp16;
    int comm_dtype; /* enum zt_dtype or -1 */
    struct zt_recipe_zero zero;
    struct zt_recipe_data data;
    struct zt_recipe_train train;
    struct zt_recipe_activations activations;
    struct zt_recipe_checkpoint checkpoint;
    struct zt_recipe_log log;
    struct zt_recipe_profile profile;
    int threads; /* parallel.threads: OpenMP threads per worker; 0: cores / local workers */
    int64_t device_memory;        /* bytes that a plan may take of a device; 0: no limit */
    int64_t host_memory;          /* of a host, by all of its ranks together; 0: no limit */
    struct zt_recipe_note *notes; /* what a person should be told: harmless keys, odd choices */
    int n_notes;
    const struct zt_recipe_value *values; /* every key with its value and origin, in table order */
    int n_values;
};

/*
 * For --print_recipe: a key as resolved and where it came from ("default", "recipe.yaml:3:5",
 * "--set", "derived", "config.json:7:3", "stage: auto").
 */
struct zt_recipe_value {
    const char *key;   /* dotted path */
    const char *value; /* as YAML */
    const char *origin;
};

struct zt_recipe_note {
    const char *text; /* "recipe.yaml:4:1: zero_optimization.x: ignored: reason" */
};

#define ZT_STEPS_UNKNOWN ((int64_t)1 << 53) /* train.steps: the data will tell */

struct zt_recipe_opts {
    const char *path;
    const char *text; /* if not NULL, the recipe itself; path is then only its name in messages */
    struct zt_str_list set;               /* "a.b=c" */
    struct zt_str_list deepspeed_configs; /* merged like include: */
    struct zt_str_list chosen;            /* like `set` and above it: what "auto" came to */
    int n_ranks;                          /* for the batch triangle; > 0 */
    /*
     * Steps that train.epochs come to, once the data was counted: train.steps is at most that many.
     * 0 while it is not known; without train.steps it is then ZT_STEPS_UNKNOWN.
     */
    int64_t epoch_steps;
    bool resolved; /* zt_recipe_print() wrote it: what a config.json says is in it, none is read */
    bool for_plan; /* `zerotrain plan`: no data needed, and without any batch size 1 per rank; what
                      running would refuse are notes */
};

/*
 * On failure err->msg holds every error found, a line each ("recipe.yaml:7:3: ..."), and ZT_EINPUT
 * is returned (ZT_EUNSUPPORTED when all that is wrong is a feature not carried out yet).
 */
int zt_recipe_load(const struct zt_recipe_opts *opts, struct zt_recipe **out,
                   struct zt_err *err) ZT_MUST_CHECK;
void zt_recipe_free(struct zt_recipe *r);

/*
 * The resolved recipe as YAML with origins as comments, paths made absolute. Loading it again at
 * the same n_ranks gives the same recipe: it is what workers receive.
 */
void zt_recipe_print(const struct zt_recipe *r, struct zt_str *out);

/* That it can be loaded again: ZT_EINPUT names a path that is not UTF-8. */
int zt_recipe_check_print(const struct zt_recipe *r, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Where the value of a key stands: "recipe.yaml:3:5", "--set"; the recipe's name when it has no place.
 */
const char *zt_recipe_origin(const struct zt_recipe *r, const char *key);

/*
 * The key that a word means: its last part, as "lr" of optimizer.params.lr; what is on, as "bf16" of bf16.enabled; or what
 * others call it, as "learning_rate". NULL: none.
 */
const char *zt_recipe_key_named(const char *word);

#endif
