#include "train/train.h"

#include "base/size.h"
#include "ckpt/safetensors.h"
#include "data/data.h"
#include "offload/disk.h"
#include "optim/groups.h"
#include "train/run.h"

/* So what is too much is told of its place in the recipe, or of --set. */
_Static_assert((int)ZT_RECIPE_MAX_ACCUM == (int)ZT_PLAN_MAX_ACCUM, "as plans have it");
_Static_assert((int)ZT_RECIPE_MAX_LAYERS == (int)ZT_MAX_LAYERS, "as models have it");
_Static_assert((int)ZT_RECIPE_MAX_WIDTH == (int)ZT_MAX_WIDTH, "as models have it");

static struct zt_rope_rule rope_of(const struct zt_recipe_rope *r)
{
    static const enum zt_rope_kind kinds[] = {[ZT_ROPE_SCALING_NONE] = ZT_ROPE_PLAIN,
                                              [ZT_ROPE_SCALING_LINEAR] = ZT_ROPE_LINEAR,
                                              [ZT_ROPE_SCALING_LLAMA3] = ZT_ROPE_LLAMA3};
    return (struct zt_rope_rule){
        .kind = kinds[r->scaling],
        .theta = r->theta,
        .factor = r->factor,
        .low_freq_factor = r->low_freq_factor,
        .high_freq_factor = r->high_freq_factor,
        .original_positions = (double)r->original_positions,
    };
}

static int assign_groups(const struct zt_recipe_optimizer *o, struct zt_model *m,
                         struct zt_err *err)
{
    struct zt_group *groups = zt_xcalloc((size_t)o->groups.n + 1, sizeof *groups);
    for (int i = 0; i < o->groups.n; i++) {
        const struct zt_recipe_group *g = &o->groups.items[i];
        groups[i] = (struct zt_group){g->match, g->weight_decay, g->lr_scale, g->frozen};
    }
    int rc = zt_groups_assign(m, o->weight_decay, groups, o->groups.n, err);
    free(groups);
    return rc;
}

int zt_train_model(const struct zt_recipe *r, struct zt_arena *arena, struct zt_model **out,
                   struct zt_err *err)
{
    const struct zt_recipe_model *m = &r->model;
    if (!m->model_type)
        return zt_err_set(err, ZT_EINPUT,
                          "model is missing: give model.model_type and its sizes, model.config, or "
                          "model.from");
    bool qwen2 = strcmp(m->model_type, "qwen2") == 0;
    struct zt_model_config cfg = {
        .type = strcmp(m->model_type, "gpt2") == 0 ? ZT_MODEL_GPT2 : ZT_MODEL_LLAMA,
        .n_layer = (int)m->n_layer,
        .n_head = (int)m->n_head,
        .n_kv_head = (int)m->n_kv_head,
        .head_dim = (int)m->head_dim,
        .n_embd = m->n_embd,
        .n_inner = m->n_inner,
        .vocab_size = m->vocab_size,
        .n_positions = m->n_positions,
        .norm_eps = (float)m->norm_eps,
        .initializer_range = (float)m->initializer_range,
        .tie_embeddings = m->tie_word_embeddings,
        .qkv_bias = m->attention_bias || qwen2,
        .o_bias = m->attention_bias,
        .mlp_bias = m->mlp_bias,
        .qk_norm = strcmp(m->model_type, "qwen3") == 0,
        .rope = rope_of(&m->rope),
        .embd_pdrop = m->embd_pdrop,
        .resid_pdrop = m->resid_pdrop,
        .attn_pdrop = m->attn_pdrop,
    };
    int rc = zt_model_build(&cfg, arena, out, err);
    return rc ? rc : assign_groups(&r->optimizer, *out, err);
}

static enum zt_dtype dtype_of(enum zt_precision p)
{
    static const enum zt_dtype types[] = {
        [ZT_PREC_FP32] = ZT_F32, [ZT_PREC_BF16] = ZT_BF16, [ZT_PREC_FP16] = ZT_F16};
    return types[p];
}

static enum zt_offload offload_of(enum zt_offload_device d)
{
    static const enum zt_offload kinds[] = {[ZT_OFFLOAD_TO_NONE] = ZT_OFFLOAD_NONE,
                                            [ZT_OFFLOAD_TO_CPU] = ZT_OFFLOAD_CPU,
                                            [ZT_OFFLOAD_TO_NVME] = ZT_OFFLOAD_NVME};
    return kinds[d];
}

static enum zt_recompute recompute_of(enum zt_activation_policy p)
{
    static const enum zt_recompute kinds[] = {[ZT_KEEP_ALL] = ZT_RECOMPUTE_NONE,
                                              [ZT_KEEP_BLOCK_INPUTS] = ZT_RECOMPUTE_BLOCK,
                                              [ZT_KEEP_SELECTED] = ZT_RECOMPUTE_SELECTIVE,
                                              [ZT_KEEP_EVERY_NTH] = ZT_RECOMPUTE_EVERY};
    return kinds[p];
}

int zt_train_plan_config(const struct zt_recipe *r, const struct zt_model *m, int n_ranks,
                         int n_threads, enum zt_dev_kind kind, int stage,
                         struct zt_plan_config *cfg, struct zt_err *err)
{
    if (r->data.seq_len > m->cfg.n_positions)
        return zt_err_set(err, ZT_EINPUT,
                          "data.seq_len is %lld, but the model has only %lld positions "
                          "(model.n_positions)",
                          (long long)r->data.seq_len, (long long)m->cfg.n_positions);
    if (kind == ZT_DEV_CUDA && m->cfg.head_dim > ZT_CUDA_MAX_HEAD_DIM)
        return zt_err_set(
            err, ZT_EUNSUPPORTED,
            "model: heads of %d are more than the %d that attention on a GPU takes; use "
            "more heads, or --device=cpu",
            m->cfg.head_dim, ZT_CUDA_MAX_HEAD_DIM);
    *cfg = (struct zt_plan_config){
        .stage = stage < 0 ? r->zero.stage : stage,
        .mesh = {{[ZT_AXIS_PIPELINE] = 1,
                  [ZT_AXIS_REPLICATE] = 1,
                  [ZT_AXIS_SHARD] = n_ranks,
                  [ZT_AXIS_CONTEXT] = 1,
                  [ZT_AXIS_TENSOR] = 1}},
        .dtype = dtype_of(r->precision),
        .micro_batch = r->batch.micro,
        .seq_len = r->data.seq_len,
        .accum = (int)r->batch.accum,
        .eval_micro_batch = r->train.eval_every > 0 ? r->batch.micro : 0,
        .generate = r->train.sample_every > 0,
        .optimizer = r->optimizer.kind,
        .recompute = recompute_of(r->activations.policy),
        .recompute_every = r->activations.every,
        .cpu_checkpointing = r->activations.on_host,
        .offload_optimizer = offload_of(r->zero.offload_optimizer),
        .offload_param = offload_of(r->zero.offload_param),
        .disk_buffers = (int)r->zero.nvme.buffer_count,
        .saves = r->checkpoint.dir != NULL,
        .snapshot = r->checkpoint.dir && r->checkpoint.async,
        .loads = strcmp(r->checkpoint.resume, "never") != 0,
        .overlap_comm = r->zero.overlap_comm,
        .reduce_every_micro_batch = r->train.reduce_every_micro_batch,
        .comm_dtype = r->comm_dtype,
        .prefetch_bytes =
            (size_t)r->zero.prefetch_bucket_size * zt_dtype_bytes(dtype_of(r->precision)),
        .dev_kind = kind,
        .n_threads = n_threads,
        .shared_arena = kind == ZT_DEV_CPU,
        .profile = zt_profile_find(kind == ZT_DEV_CPU ? "cpu" : "fast"),
        .profile_known = true,
    };
    return 0;
}

int zt_run_disk_open(const struct zt_recipe *r, const struct zt_plan *p, struct zt_disk **out,
                     struct zt_err *err)
{
    static const enum zt_disk_backend backends[] = {[ZT_RECIPE_AIO_AUTO] = ZT_DISK_AUTO,
                                                    [ZT_RECIPE_AIO_URING] = ZT_DISK_URING,
                                                    [ZT_RECIPE_AIO_THREADS] = ZT_DISK_THREADS};
    const struct zt_recipe_nvme *n = &r->zero.nvme;
    const struct zt_disk_opts o = {.dir = n->path,
                                   .bytes = p->ledger.peak[ZT_AR_DISK],
                                   .backend = backends[n->backend],
                                   .block_bytes = (size_t)n->block_size,
                                   .queue_depth = (int)n->queue_depth,
                                   .n_threads = (int)n->threads};
    *out = NULL;
    if (o.bytes > 0 && zt_disk_open(&o, out, err))
        return zt_err_wrap(err, "rank %d: offload to NVMe", p->rank);
    return 0;
}

int zt_train_check_disk(const struct zt_recipe *r, const struct zt_plan *p, int n,
                        struct zt_err *err)
{
    const bool optimizer = r->zero.offload_optimizer == ZT_OFFLOAD_TO_NVME;
    const char *key = optimizer ? "zero_optimization.offload_optimizer.nvme_path"
                                : "zero_optimization.offload_param.nvme_path";
    const size_t bytes = (size_t)n * p->ledger.peak[ZT_AR_DISK];
    if (bytes > 0 && zt_disk_check_room(r->zero.nvme.path, bytes, err))
        return zt_err_wrap(err, "%s: %s", zt_recipe_origin(r, key), key);
    return 0;
}

/* One of the two sets, and what it is called. */
struct set {
    const char *key;
    const struct zt_str_list *paths, *masks;
    const double *weights;
    int64_t range[2];
    bool shuffle;
};

static int open_dataset(const struct zt_recipe *r, const struct set *set, struct zt_dataset **out,
                        struct zt_err *err)
{
    struct zt_dataset_opts opts = {
        .paths = *set->paths,
        .weights = set->weights,
        .format = r->data.format,
        .seq_len = r->data.seq_len,
        .vocab_size = r->model.vocab_size,
        .range = {set->range[0], set->range[1]},
        .packed = r->data.packing == ZT_PACK_DOCUMENTS,
        .separator = r->data.document_separator,
        .masks = *set->masks,
        .shuffle = set->shuffle,
        .seed = r->train.seed,
    };
    if (zt_dataset_open(&opts, out, err))
        return zt_err_wrap(err, "%s: %s", zt_recipe_origin(r, set->key), set->key);
    return 0;
}

/* data.val_fraction holds out the end of the training tokens. */
static int split_range(const struct zt_recipe *r, struct set *train, struct set *val,
                       struct zt_err *err)
{
    struct zt_dataset *all;
    int rc = open_dataset(r, train, &all, err);
    if (rc)
        return rc;
    int64_t begin = ZT_MAX(train->range[0], (int64_t)0), n = zt_dataset_tokens(all);
    int64_t cut = begin + n - (int64_t)((double)n * r->data.val_fraction);
    zt_dataset_free(all);
    train->range[0] = begin;
    train->range[1] = val->range[0] = cut;
    val->range[1] = begin + n;
    val->key = "data.val_fraction";
    val->paths = train->paths;
    val->masks = train->masks;
    return 0;
}

int zt_run_data_open(const struct zt_recipe *r, struct zt_run_data *d, struct zt_err *err)
{
    const struct zt_recipe_data *rd = &r->data;
    struct set train = {"data.train",
                        &rd->train,
                        &rd->train_mask,
                        rd->train_weights,
                        {rd->range_train[0], rd->range_train[1]},
                        rd->shuffle};
    /* A limited evaluation takes the same shuffled part of the set every time. */
    struct set val = {"data.val",
                      &rd->val,
                      &rd->val_mask,
                      NULL,
                      {rd->range_val[0], rd->range_val[1]},
                      r->train.eval_batches > 0};
    bool held_out = !rd->val.n && rd->val_fraction > 0;
    memset(d, 0, sizeof *d);
    int rc = held_out ? split_range(r, &train, &val, err) : 0;
    if (!rc)
        rc = open_dataset(r, &train, &d->train, err);
    if (!rc && (rd->val.n || held_out))
        rc = open_dataset(r, &val, &d->val, err);
    if (rc)
        zt_run_data_close(d);
    return rc;
}

int64_t zt_run_data_end(const struct zt_recipe *r, const struct zt_run_data *d)
{
    int64_t end;
    if (r->train.epochs == 0)
        return -1;
    /* More than 2^63 samples are as good as no end. */
    return zt_mul_i64(r->train.epochs, zt_dataset_samples(d->train), &end) ? end : -1;
}

int zt_train_epoch_steps(const struct zt_recipe *r, int64_t *steps, struct zt_err *err)
{
    struct zt_run_data d;
    int rc = zt_run_data_open(r, &d, err);
    if (rc)
        return rc;
    int64_t end = zt_run_data_end(r, &d);
    *steps = end < 0 ? INT64_MAX : (end - 1) / r->batch.train + 1;
    zt_run_data_close(&d);
    return 0;
}

void zt_run_data_close(struct zt_run_data *d)
{
    if (d->train)
        zt_dataset_free(d->train);
    if (d->val)
        zt_dataset_free(d->val);
    memset(d, 0, sizeof *d);
}

/* A prompt is bytes, and they are the tokens. */
static int check_prompt(const struct zt_recipe *r, const struct zt_model *m, struct zt_err *err)
{
    const char *key = "train.sample_prompt";
    if (r->train.sample_every > 0 && !*r->train.sample_prompt)
        return zt_err_set(err, ZT_EINPUT, "%s: %s: a sample needs a byte to start with",
                          zt_recipe_origin(r, key), key);
    for (const char *c = r->train.sample_prompt; *c && r->train.sample_every > 0; c++) {
        int byte = (unsigned char)*c;
        if (byte >= m->cfg.vocab_size)
            return zt_err_set(err, ZT_EINPUT,
                              "%s: %s: byte %d of it is %d, but the model's vocabulary has %lld "
                              "tokens (0 to %lld); give another prompt, or sample_every: 0",
                              zt_recipe_origin(r, key), key, (int)(c - r->train.sample_prompt) + 1,
                              byte, (long long)m->cfg.vocab_size, (long long)m->cfg.vocab_size - 1);
    }
    return 0;
}

/* What works, but perhaps not as meant. */
static void note_odd(const struct zt_recipe *r, const struct zt_run_data *d, struct zt_str *notes)
{
    int64_t samples = zt_dataset_samples(d->train);
    if (samples < r->batch.train)
        zt_str_printf(
            notes,
            "note: %s: data.train: a step takes %lld samples, and there are %lld: each step "
            "sees some of them more than once\n",
            zt_recipe_origin(r, "data.train"), (long long)r->batch.train, (long long)samples);
    if (d->val && r->train.eval_every == 0)
        zt_str_printf(notes,
                      "note: %s: validation data is given, but train.eval_every is 0: it is never "
                      "used\n",
                      zt_recipe_origin(r, r->data.val.n ? "data.val" : "data.val_fraction"));
    if (r->train.sample_every > 0 && !zt_dataset_is_text(d->train))
        zt_str_printf(notes,
                      "note: %s: train.sample_every: the data are token ids, and no tokenizer is "
                      "known: samples are shown as ids, and the prompt's bytes are taken as ids\n",
                      zt_recipe_origin(r, "train.sample_every"));
}

int zt_train_check(const struct zt_recipe *r, const struct zt_model *m, struct zt_str *notes,
                   struct zt_err *err)
{
    struct zt_run_data d;
    struct zt_weights w;
    if (!m->ops->forward || !m->ops->backward)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "%s: model.model_type: %s can be planned, but not trained yet",
                          zt_recipe_origin(r, "model.model_type"), r->model.model_type);
    int rc = zt_recipe_check_print(r, err); /* workers get it as text */
    if (!rc)
        rc = check_prompt(r, m, err);
    if (!rc)
        rc = zt_run_data_open(r, &d, err);
    if (rc)
        return rc;
    note_odd(r, &d, notes);
    zt_run_data_close(&d);
    if (!r->model.from)
        return 0;
    if (zt_weights_open(r->model.from, m, &w, err))
        return zt_err_wrap(err, "%s: model.from", zt_recipe_origin(r, "model.from"));
    zt_weights_close(&w);
    return 0;
}
