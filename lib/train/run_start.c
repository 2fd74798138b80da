#include "train/run_state.h"

#include <math.h>

#include "base/clock.h"
#include "base/size.h"
#include "ckpt/folder.h"
#include "data/data.h"
#include "train/agree.h"

static struct zt_loss_scaler loss_scaler(const struct zt_recipe *r)
{
    const struct zt_recipe_fp16 *f = &r->fp16;
    return (struct zt_loss_scaler){
        .min_scale = (float)f->min_loss_scale,
        .dynamic = r->precision == ZT_PREC_FP16 && f->loss_scale == 0,
        .consecutive = f->consecutive_hysteresis,
        .hysteresis = (int32_t)f->hysteresis,
        .patience = (int32_t)f->hysteresis,
        .window = f->loss_scale_window,
        .last_overflow = -1,
    };
}

static float first_loss_scale(const struct zt_recipe *r)
{
    if (r->precision != ZT_PREC_FP16)
        return 1;
    return r->fp16.loss_scale > 0 ? (float)r->fp16.loss_scale
                                  : ldexpf(1, (int)r->fp16.initial_scale_power);
}

static struct zt_step_block initial_step_block(const struct zt_recipe *r)
{
    struct zt_step_block sb = {
        .adam_t = 1,
        .grad_scale = 1,
        .loss_scale = first_loss_scale(r),
        .scaler = loss_scaler(r),
        .beta1 = (float)r->optimizer.beta1,
        .beta2 = (float)r->optimizer.beta2,
        .eps = (float)r->optimizer.eps,
        .max_norm = (float)r->gradient_clipping,
        .nonfinite_rule = (int32_t)r->train.on_nonfinite,
        .seed = r->train.seed,
        .step_samples = r->batch.train,
        .schedule = r->schedule,
    };
    zt_step_refresh(&sb);
    return sb;
}

int zt_run_set_up_plan(struct zt_run *run, struct zt_err *err)
{
    const struct zt_train_env *env = run->env;
    struct zt_plan_config cfg;
    int rc = zt_train_model(run->r, &run->arena, &run->model, err);
    if (!rc)
        rc = zt_train_plan_config(run->r, run->model, env->world, env->n_threads,
                                  env->dev->ops->kind, -1, &cfg, err);
    if (!rc)
        rc = zt_plan_build(run->model, &cfg, env->rank, &run->plan, err);
    return rc ? rc : zt_run_check_fit(run->r, env, run->plan, err);
}

static struct zt_feed feed_of(const struct zt_run *run, const struct zt_dataset *data, int accum,
                              int64_t micro, int64_t end)
{
    return (struct zt_feed){.data = data,
                            .rank = run->env->rank,
                            .world = run->env->world,
                            .accum = accum,
                            .micro = micro,
                            .seq_len = run->plan->cfg.seq_len,
                            .end = end};
}

int zt_run_set_up_data(struct zt_run *run, struct zt_err *err)
{
    const struct zt_plan_config *cfg = &run->plan->cfg;
    int rc = zt_run_data_open(run->r, &run->data, err);
    if (rc)
        return rc;
    run->feed_train = feed_of(run, run->data.train, cfg->accum, cfg->micro_batch,
                              zt_run_data_end(run->r, &run->data));
    if (run->data.val)
        run->feed_eval = feed_of(run, run->data.val, 1, cfg->eval_micro_batch,
                                 zt_dataset_samples(run->data.val));
    return 0;
}

static int check_dataset(struct zt_run *run, const char *key, const struct zt_dataset *d,
                         struct zt_err *err)
{
    struct zt_marks marks = {0};
    zt_dataset_marks(d, &marks);
    int rc = zt_run_check_same(&run->engine, key, &marks, err);
    zt_marks_release(&marks);
    return rc;
}

/* Every rank takes its samples from files of its host, and ends by their number. */
static int check_data(struct zt_run *run, struct zt_err *err)
{
    const char *val = run->r->data.val.n ? "data.val" : "data.val_fraction";
    int rc = check_dataset(run, "data.train", run->data.train, err);
    return rc || !run->data.val ? rc : check_dataset(run, val, run->data.val, err);
}

/* ---- the first values ---- */

/* With another batch than before, epochs have another number of steps. */
static int64_t last_step(const struct zt_run *run)
{
    const int64_t steps = run->r->train.steps, end = run->feed_train.end;
    const int64_t batch = run->r->batch.train, position = run->engine.initial.first_sample;
    if (end < 0)
        return steps;
    const int64_t whole = zt_ceil_div_i64(end, batch);
    const int64_t left = position < end ? zt_ceil_div_i64(end - position, batch) : 0;
    return steps < whole ? ZT_MIN(steps, run->first_step + left) : run->first_step + left;
}

/* The step block and the data go on where the checkpoint was made. */
static void take_progress(struct zt_run *run, const struct zt_ckpt_progress *at)
{
    struct zt_step_block *sb = &run->engine.initial;
    run->first_step = at->step;
    run->best_val_loss = at->best_val_loss;
    run->feed_train.skew = at->position - at->step * run->r->batch.train;
    sb->step = at->step;
    sb->adam_t = at->updates + 1;
    sb->skipped = at->skipped;
    sb->first_sample = at->position;
    if (sb->schedule.total_steps == run->r->train.steps) /* it ends where the run does */
        sb->schedule.total_steps = ZT_MAX(last_step(run), run->first_step);
    sb->scaler.last_overflow = at->step - 1; /* a scale that begins here has seen no step before */
    if (at->has_loss_scale && sb->scaler.dynamic) {
        sb->loss_scale = (float)at->loss_scale;
        sb->scaler.patience = (int32_t)ZT_MIN(at->scale_patience, sb->scaler.hysteresis);
        sb->scaler.last_overflow = at->scale_last_overflow;
    }
    zt_step_refresh(sb);
}

/* The program that fills what persists, from wherever run->source takes it. */
static int give_values(struct zt_run *run, enum zt_program_kind program, struct zt_err *err)
{
    struct zt_engine *e = &run->engine;
    e->next_batch = run->first_step;
    zt_engine_run(e, program);
    return zt_engine_drain(e, err);
}

/* One rank says what is wrong with a checkpoint; a rank that saw nothing says whose word counts. */
static int refuse(struct zt_run *run, const char *path, bool named, const struct zt_err *why,
                  const struct zt_vote *vote, struct zt_err *err)
{
    struct zt_str text = {0};
    int rc = 0;
    if (why->code == ZT_EIO || why->code == ZT_ENOMEM) { /* it may be whole, and is the newest */
        *err = *why;
        return zt_err_wrap(err, "%s cannot be read now", path);
    }
    if (named && why->code) {
        *err = *why;
        return err->code;
    }
    if (named)
        return zt_err_set(err, ZT_EPEER, "%s: rank %d cannot read it", path,
                          run->env->world - vote->save);
    zt_str_printf(&text, "WARNING: %s is passed over: %s", path, why->msg);
    if (run->env->world - vote->save == run->env->rank)
        rc = zt_report_notice(run->env, text.buf, err);
    zt_str_release(&text);
    return rc;
}

/*
 * All ranks read the checkpoint that rank 0 has opened. Who sees another one there, or none, has found no damage: to
 * pass it over would be to go on from an older one than there is.
 */
static int check_same(struct zt_run *run, struct zt_err *why, struct zt_err *err)
{
    const int64_t mine = run->load.open ? run->load.ckpt.id : 0;
    int64_t first;
    int rc = zt_run_highest(&run->engine, run->env->rank == 0 ? mine : 0, &first, err);
    if (rc || first == 0 || first == mine)
        return rc;
    if (mine)
        (void)!zt_err_set(why, ZT_EIO, "it has another manifest");
    why->code = ZT_EIO;
    (void)!zt_err_wrap(why, "%s does not see what rank 0 sees there",
                       zt_rank_name(run->env->rank).text);
    return 0;
}

/* The order of the data is a permutation of all samples. */
static int note_other_data(struct zt_run *run, struct zt_err *err)
{
    const int64_t then = run->load.ckpt.m.at.samples, now = zt_dataset_samples(run->data.train);
    struct zt_str text = {0};
    int rc = 0;
    if (then != now && run->env->rank == 0) {
        zt_str_printf(&text,
                      "note: data.train had %lld samples and has %lld: their order goes on "
                      "differently, at the same number of samples",
                      (long long)then, (long long)now);
        rc = zt_report_notice(run->env, text.buf, err);
    }
    zt_str_release(&text);
    return rc;
}

/* Every rank reads its part; *good when all could. */
static int load_from(struct zt_run *run, const char *path, bool named, bool *good,
                     struct zt_err *err)
{
    struct zt_load *l = &run->load;
    struct zt_err why = {0};
    struct zt_vote vote;
    run->engine.initial = initial_step_block(run->r);
    if (zt_load_open(l, path, run->r, run->model, NULL, &why) == 0) {
        take_progress(run, &l->ckpt.m.at);
        zt_load_read_ahead(l, run->plan);
    }
    run->source.load = l;
    int rc = give_values(run, ZT_PROG_LOAD, err);
    if (!why.code)
        why = l->err;
    if (!rc)
        rc = check_same(run, &why, err);
    if (!rc)
        rc = zt_run_agree(&run->engine, why.code ? ZT_SAVING_FAILED : ZT_SAVING_DONE, &vote, err);
    *good = !rc && vote.saving == ZT_SAVING_DONE;
    if (!rc && !*good)
        rc = refuse(run, path, named, &why, &vote, err);
    if (*good)
        rc = note_other_data(run, err);
    zt_load_close(l);
    run->source.load = NULL;
    return rc;
}

/* What a later checkpoint of this folder holds is no future of this run. */
static int set_aside_later(struct zt_run *run, struct zt_err *err)
{
    struct zt_str where = {0}, text = {0};
    int moved, rc = 0;
    if (!run->saver || run->env->rank != 0)
        return 0;
    rc = zt_saver_check(run->saver, err);
    if (!rc)
        rc = zt_ckpt_set_aside(run->r->checkpoint.dir, run->first_step, &moved, &where, err);
    if (!rc && moved > 0) {
        zt_str_printf(&text, "%d checkpoint%s of later steps moved to %s", moved,
                      moved == 1 ? "" : "s", where.buf);
        rc = zt_report_notice(run->env, text.buf, err);
    }
    zt_str_release(&where);
    zt_str_release(&text);
    return rc;
}

enum { NO_CANDIDATE = ZT_LOAD_NAMED - 1 };

/*
 * The checkpoint to try next: its step, ZT_LOAD_NAMED or NO_CANDIDATE. Rank 0 says so: others may see the folder as it
 * was a moment ago, or will be.
 */
static int next_candidate(struct zt_run *run, const int64_t *steps, int n_left, int64_t *step,
                          struct zt_err *err)
{
    const int64_t mine = n_left > 0 ? steps[n_left - 1] : NO_CANDIDATE;
    int rc = zt_run_highest(&run->engine, mine - NO_CANDIDATE, step, err);
    *step += NO_CANDIDATE;
    return rc;
}

static int try_candidate(struct zt_run *run, int64_t step, bool *good, struct zt_err *err)
{
    struct zt_str path = {0};
    const int64_t begun_ns = zt_now_ns();
    zt_load_path(run->r, step, &path);
    int rc = load_from(run, path.buf, step == ZT_LOAD_NAMED, good, err);
    run->load_ns = zt_now_ns() - begun_ns;
    if (*good)
        run->resumed = zt_arena_strdup(&run->arena, path.buf);
    zt_str_release(&path);
    return rc;
}

/* From the newest checkpoint that every rank can read, or from the one named; from none where `newest` finds none. */
static int resume(struct zt_run *run, struct zt_err *err)
{
    const struct zt_recipe_checkpoint *c = &run->r->checkpoint;
    int64_t *steps = NULL, step;
    bool good = false;
    int n = 0, n_tried = 0, rc = 0;
    if (run->env->rank == 0)
        rc = zt_load_candidates(run->r, &steps, &n, err);
    while (!rc && !good) {
        rc = next_candidate(run, steps, n - n_tried, &step, err);
        if (rc || step == NO_CANDIDATE)
            break;
        n_tried++;
        rc = try_candidate(run, step, &good, err);
    }
    free(steps);
    if (rc || good || n_tried == 0)
        return rc;
    return zt_err_set(err, ZT_EINPUT,
                      "%s: none of its %d checkpoints can be read; to begin anew: --resume=never%s",
                      strcmp(c->resume, "newest") ? c->resume : c->dir, n_tried,
                      zt_train_goes_on_here(run->r) ? " --fresh" : "");
}

/* Every rank takes what it holds of them from files of its host. */
static int open_weights(struct zt_run *run, struct zt_err *err)
{
    struct zt_marks marks = {0};
    int rc = zt_weights_open(run->r->model.from, run->model, &run->weights, err);
    if (rc)
        return rc;
    run->has_weights = true;
    run->source.weights = &run->weights;
    zt_weights_marks(&run->weights, run->model, &marks);
    rc = zt_run_check_same(&run->engine, "model.from", &marks, err);
    zt_marks_release(&marks);
    return rc;
}

/* Noise, or the weights of model.from. */
static int begin(struct zt_run *run, struct zt_err *err)
{
    int rc = run->r->model.from ? open_weights(run, err) : 0;
    return rc ? rc : give_values(run, ZT_PROG_INIT, err);
}

static int first_values(struct zt_run *run, struct zt_err *err)
{
    int rc = 0;
    run->source = (struct zt_source){.model = run->model, .seed = run->r->train.seed};
    if (strcmp(run->r->checkpoint.resume, "never") != 0)
        rc = resume(run, err);
    if (!rc)
        rc = run->resumed ? set_aside_later(run, err) : begin(run, err);
    run->last_step = ZT_MAX(last_step(run), run->first_step);
    run->saved = run->first_step;
    if (run->resumed) /* what was due then was done then */
        run->evaluated = run->sampled = run->first_step;
    return rc;
}

int zt_run_set_up_engine(struct zt_run *run, struct zt_err *err)
{
    const struct zt_saver_opts saver = {run->r, run->env, &run->engine};
    int rc = zt_run_disk_open(run->r, run->plan, &run->disk, err);
    if (!rc)
        rc = zt_engine_init(&run->engine, run->plan, run->env->dev, run->env->coll, err);
    if (rc)
        return rc;
    struct zt_engine *e = &run->engine;
    e->disk = run->disk;
    e->feed_train = &run->feed_train;
    e->feed_eval = &run->feed_eval;
    e->source = &run->source;
    e->initial = initial_step_block(run->r);
    rc = check_data(run, err);
    if (!rc && run->r->checkpoint.dir)
        rc = zt_saver_create(&saver, &run->saver, err);
    return rc ? rc : first_values(run, err);
}

void zt_run_set_up_times(struct zt_run *run)
{
    const struct zt_recipe_profile *p = &run->r->profile;
    run->timed = run->r->log.wall_clock_breakdown;
    run->profile_run = p->enabled && run->env->rank == 0 ? p->step - 1 - run->first_step : -1;
    if (run->timed || run->profile_run >= 0)
        zt_engine_trace_init(&run->engine);
}

/* What MFU is made of: FLOPs of a token, and the most that all workers together could do. */
void zt_run_measure_peak(struct zt_run *run)
{
    const struct zt_plan_config *cfg = &run->plan->cfg;
    const struct zt_shape shape = zt_plan_shape(cfg, cfg->micro_batch, true);
    run->flops_per_token = zt_model_train_flops_per_token(run->model, &shape);
    run->peak_dtype = cfg->dtype;
    run->mfu.peak =
        zt_run_peak_flops(run->env->dev, run->env->n_threads, &run->peak_dtype) * run->env->world;
}
