#include "recipe/load.h"

#include <inttypes.h>
#include <math.h>

#include "base/dtype.h"
#include "base/size.h"

static struct zt_pos pos_of(const struct zt_load *ld, const char *path)
{
    return zt_load_pos(ld, path);
}

void zt_load_missing(struct zt_load *ld, const char *text)
{
    if (!ld->incomplete)
        zt_diag_add(&ld->errors, ZT_DIAG_MISSING, (struct zt_pos){ld->main, 0, 0}, "%s", text);
}

/* ---- batch ---- */

static const char *given_or_not(struct zt_arena *a, int64_t v)
{
    return v == ZT_NOT_GIVEN ? "not given" : zt_arena_printf(a, "%" PRId64, v);
}

/* Fill in what is not given; what does not fit together, or NULL. */
static const char *solve_batch(struct zt_recipe_batch *b, int64_t ranks, struct zt_arena *arena)
{
    const int64_t none = ZT_NOT_GIVEN;
    bool has_train = b->train != none, has_micro = b->micro != none, has_accum = b->accum != none;
    if (!has_train && !has_micro)
        return "give train_batch_size or train_micro_batch_size_per_gpu";
    if ((has_train && b->train < 1) || (has_micro && b->micro < 1) || (has_accum && b->accum < 1))
        return "each must be at least 1";

    int64_t per_rank; /* of the factors that are given, and the ranks */
    if (!has_accum && !(has_train && has_micro))
        b->accum = 1, has_accum = true;
    if (!zt_mul_i64(has_micro ? b->micro : 1, has_accum ? b->accum : 1, &per_rank) ||
        !zt_mul_i64(per_rank, ranks, &per_rank))
        return "the product is too large";
    if (!has_train)
        b->train = per_rank;
    if (has_micro && has_accum && b->train != per_rank)
        return zt_arena_printf(arena, "the product is %" PRId64 ", not %" PRId64, per_rank,
                               b->train);
    if (b->train % per_rank != 0)
        return zt_arena_printf(arena, "%" PRId64 " is not a multiple of %" PRId64, b->train,
                               per_rank);
    if (!has_micro)
        b->micro = b->train / per_rank;
    if (!has_accum)
        b->accum = b->train / per_rank;
    if (b->accum > ZT_RECIPE_MAX_ACCUM)
        return zt_arena_printf(arena,
                               "they make %" PRId64
                               " micro-batches a step, of which %d are possible; "
                               "give a larger micro-batch or a smaller batch",
                               b->accum, ZT_RECIPE_MAX_ACCUM);
    return NULL;
}

static void resolve_batch(struct zt_load *ld)
{
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    struct zt_recipe *r = &ld->settings->r;
    int64_t *values[] = {&r->batch.train, &r->batch.micro, &r->batch.accum};
    struct zt_pos at = {ld->main, 0, 0};
    bool any = false;
    for (int i = 0; i < 3; i++) {
        if (zt_load_any_bad(ld, paths[i]))
            return;
    }
    for (int i = 2; i >= 0; i--) {
        if (!zt_load_given(ld, paths[i])) {
            *values[i] = ZT_NOT_GIVEN;
            zt_load_derived(ld, paths[i]);
        } else {
            at = pos_of(ld, paths[i]);
            any = true;
        }
    }
    if (!any && ld->opts->for_plan) {
        r->batch = (struct zt_recipe_batch){ld->opts->n_ranks, 1, 1};
        return;
    }
    struct zt_recipe_batch b = r->batch;
    const char *why = solve_batch(&r->batch, ld->opts->n_ranks, ld->arena);
    if (why && !(ld->incomplete && !any))
        zt_diag_add(&ld->errors, any ? ZT_DIAG_WRONG : ZT_DIAG_MISSING, at,
                    "train_batch_size %s, train_micro_batch_size_per_gpu %s, "
                    "gradient_accumulation_steps %s, %d rank%s: %s",
                    given_or_not(ld->arena, b.train), given_or_not(ld->arena, b.micro),
                    given_or_not(ld->arena, b.accum), ld->opts->n_ranks,
                    ld->opts->n_ranks == 1 ? "" : "s", why);
}

/* ---- optimizer, precision, ZeRO ---- */

/* The loss scale means nothing in another precision: nor does the resolved recipe say it then. */
static void resolve_loss_scale(struct zt_load *ld)
{
    static const char *const keys[] = {"fp16.loss_scale",        "fp16.initial_scale_power",
                                       "fp16.loss_scale_window", "fp16.hysteresis",
                                       "fp16.min_loss_scale",    "fp16.consecutive_hysteresis"};
    const struct zt_recipe *r = &ld->settings->r;
    double first = ldexp(1, (int)r->fp16.initial_scale_power);
    for (size_t i = 0; r->precision != ZT_PREC_FP16 && i < ZT_ARRAY_LEN(keys); i++)
        zt_load_unsaid(ld, keys[i]);
    if (r->precision == ZT_PREC_FP16 && r->fp16.loss_scale == 0 && r->fp16.min_loss_scale > first)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "fp16.min_loss_scale"),
                    "fp16.min_loss_scale: %g is above the first scale, 2^%" PRId64,
                    r->fp16.min_loss_scale, r->fp16.initial_scale_power);
}

static void resolve_precision(struct zt_load *ld)
{
    static const enum zt_dtype comm[] = {ZT_F32, ZT_BF16, ZT_BF16, ZT_F16}; /* as in key_table.c */
    const struct zt_settings *s = ld->settings;
    struct zt_recipe *r = &ld->settings->r;
    if (s->fp16 && s->bf16)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "bf16.enabled"),
                    "bf16.enabled: fp16.enabled is true too; choose one");
    r->precision = s->bf16 ? ZT_PREC_BF16 : s->fp16 ? ZT_PREC_FP16 : ZT_PREC_FP32;
    r->comm_dtype = s->comm < 0 ? -1 : (int)comm[s->comm];
    resolve_loss_scale(ld);
}

/* Whichever comes first, the steps or the end of the epochs. Before the schedule: it takes the steps. */
static void resolve_steps(struct zt_load *ld)
{
    struct zt_recipe_train *t = &ld->settings->r.train;
    int64_t end = ld->opts->epoch_steps;
    if (t->epochs == 0)
        return;
    if (!zt_load_given(ld, "train.steps"))
        t->steps = ZT_STEPS_UNKNOWN;
    if (end > 0 && end < t->steps) {
        t->steps = end;
        zt_load_derived(ld, "train.steps");
    }
}

static void check_profile(struct zt_load *ld)
{
    const struct zt_recipe *r = &ld->settings->r;
    if (r->profile.enabled && r->profile.step > r->train.steps)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, pos_of(ld, "flops_profiler.profile_step"),
                    "flops_profiler.profile_step: %" PRId64 " is behind the last step, %" PRId64
                    ": there will be no profile",
                    r->profile.step, r->train.steps);
}

/* What is not known is not written down either. */
static void leave_unknown_steps_unsaid(struct zt_load *ld)
{
    static const char *const paths[] = {"train.steps", "scheduler.params.total_steps",
                                        "scheduler.params.total_num_steps"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(paths); i++) {
        if (ld->settings->r.train.steps == ZT_STEPS_UNKNOWN && !zt_load_given(ld, paths[i]))
            zt_load_unsaid(ld, paths[i]);
    }
}

/* Lion has betas of its own, and none of Adam's other settings. */
static void resolve_lion(struct zt_load *ld)
{
    static const char *const adams[] = {"optimizer.params.eps", "optimizer.params.adam_w_mode"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(adams); i++) {
        if (zt_load_given(ld, adams[i]))
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, adams[i]), "%s: Lion has none",
                        adams[i]);
        zt_load_unsaid(ld, adams[i]);
    }
    if (!zt_load_given(ld, "optimizer.params.betas")) {
        ld->settings->betas[1] = 0.99;
        zt_load_derived(ld, "optimizer.params.betas");
    }
}

/* DeepSpeed's words: Adam means AdamW unless told, and AdamW means it whatever it is told. */
static void resolve_optimizer(struct zt_load *ld)
{
    const struct zt_settings *s = ld->settings;
    struct zt_recipe_optimizer *o = &ld->settings->r.optimizer;
    bool adamw = strcmp(o->type, "AdamW") == 0, lion = strcmp(o->type, "Lion") == 0;
    if (adamw && !s->adam_w_mode)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, pos_of(ld, "optimizer.params.adam_w_mode"),
                    "optimizer.params.adam_w_mode: not used: AdamW's decay is always decoupled; "
                    "with type: Adam it is read");
    o->kind = lion ? ZT_LION : adamw || s->adam_w_mode ? ZT_ADAMW : ZT_ADAM;
    if (o->kind == ZT_ADAMW)
        o->type = "AdamW";
    if (lion)
        resolve_lion(ld);
}

static void resolve_size(struct zt_load *ld, const char *path, const char *text, int64_t *out)
{
    if (text && !zt_parse_bytes(text, out))
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, path),
                    "%s: must be a size such as 80GB, 1.5GiB or 300MB, not \"%s\"", path, text);
}

/* One file holds all that goes to NVMe. */
static void resolve_nvme(struct zt_load *ld)
{
    struct zt_settings *s = ld->settings;
    struct zt_recipe_nvme *nvme = &s->r.zero.nvme;
    const bool optimizer = s->r.zero.offload_optimizer == ZT_OFFLOAD_TO_NVME;
    const bool param = s->r.zero.offload_param == ZT_OFFLOAD_TO_NVME;
    const char *of_optimizer = optimizer ? s->nvme_path_optimizer : NULL;
    const char *of_param = param ? s->nvme_path_param : NULL;
    nvme->path = of_optimizer ? of_optimizer : of_param;
    nvme->given = s->nvme_path_optimizer ? s->nvme_path_optimizer : s->nvme_path_param;
    if (!nvme->path && (optimizer || param) && !ld->opts->for_plan) {
        const char *section = optimizer ? "offload_optimizer" : "offload_param";
        const char *key = optimizer ? "zero_optimization.offload_optimizer.device"
                                    : "zero_optimization.offload_param.device";
        zt_diag_add(
            &ld->errors, ZT_DIAG_WRONG, pos_of(ld, key),
            "zero_optimization.%s: device: nvme needs nvme_path, a folder on the drive to use",
            section);
    }
    if (of_optimizer && of_param && strcmp(of_optimizer, of_param) != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG,
                    pos_of(ld, "zero_optimization.offload_param.nvme_path"),
                    "zero_optimization.offload_param.nvme_path: must be that of offload_optimizer, "
                    "%s: one file holds both",
                    of_optimizer);
    if (nvme->block_size % 4096 != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "aio.block_size"),
                    "aio.block_size: must be a multiple of 4096, not %lld",
                    (long long)nvme->block_size);
}

static void resolve_training(struct zt_load *ld)
{
    struct zt_settings *s = ld->settings;
    struct zt_recipe *r = &s->r;
    resolve_steps(ld);
    resolve_optimizer(ld);
    zt_load_schedule(ld); /* may set the betas */
    r->optimizer.beta1 = s->betas[0];
    r->optimizer.beta2 = s->betas[1];

    r->zero.stage = (int)s->zero_stage;
    const bool chosen = r->zero.stage != ZT_STAGE_AUTO;
    if (chosen && r->zero.offload_param != ZT_OFFLOAD_TO_NONE && r->zero.stage != 3)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG,
                    pos_of(ld, "zero_optimization.offload_param.device"),
                    "zero_optimization.offload_param: needs stage 3, not %d (%s)", r->zero.stage,
                    zt_load_origin(ld, "zero_optimization.stage"));
    if (r->zero.offload_optimizer != ZT_OFFLOAD_TO_NONE && r->zero.stage == 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG,
                    pos_of(ld, "zero_optimization.offload_optimizer.device"),
                    "zero_optimization.offload_optimizer: needs stage 1, 2 or 3: at stage 0 every "
                    "rank would update all parameters on its host");
    resolve_nvme(ld);
    r->train.seed = (uint64_t)s->seed;
    r->train.sample_top_k = (int)s->sample_top_k;
    r->threads = (int)s->threads;
    resolve_size(ld, "parallel.device_memory", s->device_memory, &r->device_memory);
    resolve_size(ld, "parallel.host_memory", s->host_memory, &r->host_memory);
}

/* ---- data ---- */

/* Do two ranges of the same tokens have any in common? -1 is open. */
static bool ranges_meet(const int64_t a[2], const int64_t b[2])
{
    int64_t a_end = a[1] < 0 ? INT64_MAX : a[1], b_end = b[1] < 0 ? INT64_MAX : b[1];
    return ZT_MAX(a[0], b[0]) < ZT_MIN(a_end, b_end);
}

static void resolve_validation(struct zt_load *ld)
{
    struct zt_recipe *r = &ld->settings->r;
    struct zt_recipe_data *d = &r->data;
    if (d->val.n == 0 && d->train.n > 0 && zt_load_given(ld, "data.val_range")) {
        d->val = d->train;
        zt_load_derived(ld, "data.val");
        if (d->val_mask.n == 0 && d->train_mask.n > 0) {
            d->val_mask = d->train_mask;
            zt_load_derived(ld, "data.val_mask");
        }
        if (ranges_meet(d->range_train, d->range_val))
            zt_diag_add(&ld->notes, ZT_DIAG_WRONG, pos_of(ld, "data.val_range"),
                        "data.val_range: these tokens are trained on too; see data.train_range");
    }
    if (d->val.n > 0 && d->val_fraction > 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.val_fraction"),
                    "data.val_fraction: the validation data is already given by %s",
                    zt_load_given(ld, "data.val") ? "data.val" : "data.val_range");
    if (d->val_fraction >= 1)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.val_fraction"),
                    "data.val_fraction: nothing is left to train on");
    bool none = d->val.n == 0 && d->val_fraction == 0;
    if (r->train.eval_every > 0 && none && !ld->opts->for_plan && !zt_load_any_bad(ld, "data"))
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "train.eval_every"),
                    "train.eval_every: there is no validation data; give data.val, data.val_range "
                    "or data.val_fraction");
}

static void check_documents(struct zt_load *ld)
{
    const struct zt_recipe *r = &ld->settings->r;
    const struct zt_recipe_data *d = &r->data;
    struct zt_pos at = pos_of(ld, "data.document_separator");
    if (d->document_separator < 0)
        return;
    if (d->packing != ZT_PACK_DOCUMENTS)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, at,
                    "data.document_separator: ignored: read only with data.packing: documents");
    if (r->model.vocab_size > 0 && d->document_separator >= r->model.vocab_size)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                    "data.document_separator: %" PRId64
                    " is no token: model.vocab_size is %" PRId64,
                    d->document_separator, r->model.vocab_size);
}

/* Sources with weights have no order of all tokens, and no epoch of the whole. */
static void check_weights(struct zt_load *ld)
{
    const struct zt_recipe *r = &ld->settings->r;
    const struct zt_recipe_data *d = &r->data;
    const struct {
        const char *path;
        bool used;
    } keys[] = {
        {"data.train_range", d->range_train[0] >= 0 || d->range_train[1] >= 0},
        {"data.val_range", zt_load_given(ld, "data.val_range") && !zt_load_given(ld, "data.val")},
        {"data.val_fraction", d->val_fraction > 0},
        {"data.train_mask", d->train_mask.n > 0},
        {"train.epochs", r->train.epochs > 0},
    };
    for (size_t i = 0; d->train_weights && i < ZT_ARRAY_LEN(keys); i++) {
        if (keys[i].used)
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, keys[i].path),
                        "%s: data.train has weights, which go with data.val and train.steps only",
                        keys[i].path);
    }
}

static void check_masks(struct zt_load *ld)
{
    const struct zt_recipe_data *d = &ld->settings->r.data;
    if (d->val_mask.n > 0 && d->val.n == 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.val_mask"),
                    "data.val_mask: there is no data.val; what is held out of data.train has "
                    "data.train_mask");
    if (d->train_mask.n > 0 && d->val.n > 0 && d->val_mask.n == 0)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, pos_of(ld, "data.train_mask"),
                    "data.train_mask: there is no data.val_mask: validation counts every token");
}

static void resolve_data(struct zt_load *ld)
{
    struct zt_recipe *r = &ld->settings->r;
    struct zt_recipe_data *d = &r->data;

    if (d->train.n == 0 && !ld->opts->for_plan && !zt_load_any_bad(ld, "data"))
        zt_load_missing(ld, "data.train is missing: the files to learn from");
    resolve_validation(ld);
    check_documents(ld);
    check_masks(ld);
    check_weights(ld);
    int64_t longest = r->model.n_positions;
    if (!zt_load_given(ld, "data.seq_len")) {
        d->seq_len = longest > 0 ? ZT_MIN(longest, 1024) : 1024;
        zt_load_derived(ld, "data.seq_len");
    } else if (longest > 0 && d->seq_len > longest && !zt_load_any_bad(ld, "model")) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "data.seq_len"),
                    "data.seq_len: %" PRId64 " is more than the model's %" PRId64 " positions",
                    d->seq_len, longest);
    }
    zt_load_check_window(ld);
}

/* A run's folder is in runs/, whatever it is called. */
static void check_log(struct zt_load *ld)
{
    const char *name = ld->settings->r.log.name;
    if (name && strchr(name, '/'))
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, pos_of(ld, "log.name"),
                    "log.name: \"%s\" is not a name: it has a slash; log.dir gives a folder", name);
}

void zt_load_resolve(struct zt_load *ld)
{
    ld->settings->r.n_ranks = ld->opts->n_ranks;
    resolve_batch(ld);
    resolve_training(ld);
    leave_unknown_steps_unsaid(ld);
    check_profile(ld);
    check_log(ld);
    resolve_precision(ld);
    zt_load_resolve_model(ld);
    zt_load_activations(ld);
    resolve_data(ld);
    zt_load_resolve_checkpoint(ld);
}
