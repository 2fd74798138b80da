#include "train/run.h"

#include <jansson.h>
#include <math.h>

#include "base/clock.h"
#include "data/data.h"
#include "offload/disk.h"
#include "train/run_state.h"

static void release(struct zt_run *run)
{
    zt_saver_free(run->saver); /* its thread reads the engine's arenas */
    zt_engine_release(&run->engine);
    zt_disk_close(run->disk);
    if (run->has_weights)
        zt_weights_close(&run->weights);
    zt_run_data_close(&run->data);
    if (run->plan)
        zt_plan_free(run->plan);
    zt_arena_release(&run->arena);
}

/* A loss may be 0: of what is learnt by heart. */
static bool is_low(const struct zt_run *run, double loss)
{
    const double stop_at = run->r->train.stop_at_loss;
    return stop_at > 0 && loss <= stop_at;
}

static int evaluate(struct zt_run *run, int64_t step, struct zt_err *err)
{
    double loss;
    int64_t tokens;
    int rc = zt_engine_drain(&run->engine, err);
    if (!rc)
        rc = zt_run_eval(&run->engine, run->r->train.eval_batches, &loss, &tokens, err);
    run->last_done_ns = run->finished_ns = 0; /* this pause is not part of a step's time */
    run->evaluated = step;
    if (rc)
        return rc;
    if (isfinite(loss) && !(loss >= run->best_val_loss))
        run->best_val_loss = loss;
    if (is_low(run, loss))
        run->stop = ZT_STOP_AT_LOSS;
    if (run->env->rank != 0)
        return 0;
    json_t *value = isfinite(loss) ? json_real(loss) : json_null();
    return zt_report(run->env,
                     json_pack("{s:s, s:I, s:o, s:I}", "type", "eval", "step", (json_int_t)step,
                               "val_loss", value, "tokens", (json_int_t)tokens),
                     err);
}

static int sample(struct zt_run *run, int64_t step, struct zt_err *err)
{
    const struct zt_recipe_train *t = &run->r->train;
    struct zt_sampling s = {.prompt = t->sample_prompt,
                            .is_text = zt_dataset_is_text(run->data.train),
                            .n_tokens = t->sample_tokens,
                            .temperature = t->sample_temperature,
                            .top_k = t->sample_top_k,
                            .seed = t->seed};
    struct zt_str text = {0};
    int rc = zt_engine_drain(&run->engine, err);
    if (!rc)
        rc = zt_run_sample(&run->engine, &s, step, &text, err);
    run->last_done_ns = run->finished_ns = 0;
    run->sampled = step;
    if (!rc && run->env->rank == 0)
        rc = zt_report(run->env,
                       json_pack("{s:s, s:I, s:s}", "type", "sample", "step", (json_int_t)step,
                                 "text", zt_str_get(&text)),
                       err);
    zt_str_release(&text);
    return rc;
}

/* Between steps: evaluation and text samples that are due after `done` steps. */
static int between_steps(struct zt_run *run, int64_t done, bool last, struct zt_err *err)
{
    const struct zt_recipe_train *t = &run->r->train;
    int rc = 0;
    bool due = t->eval_every > 0 && (done % t->eval_every == 0 || last);
    if (due && run->evaluated < done)
        rc = evaluate(run, done, err);
    due = t->sample_every > 0 && done > 0 && (done % t->sample_every == 0 || last);
    if (!rc && due && run->sampled < done)
        rc = sample(run, done, err);
    return rc;
}

/* Take in the result of TRAIN run `i`; every rank comes to the same conclusions. */
static int conclude(struct zt_run *run, int64_t i, struct zt_err *err)
{
    struct zt_step_outcome o;
    int rc = zt_engine_outcome(&run->engine, i, &o, err);
    if (rc)
        return rc;
    rc = zt_run_finish_runs(run, i, err);
    const struct zt_step_block *sb = &o.result.sb;
    run->sb = *sb;
    run->save_due |= run->saver && o.result.vote.save;
    bool low = sb->tokens > 0 && is_low(run, sb->loss);
    if (!rc && run->env->rank == 0)
        rc = zt_run_report_step(run, &o, err);
    if (o.result.vote.stop)
        run->stop = ZT_STOP_ASKED;
    else if (low && run->r->train.eval_every == 0 && run->stop == ZT_GO_ON)
        run->stop = ZT_STOP_AT_LOSS;
    if (!rc)
        rc = zt_run_judge(run, sb, err);
    if (!rc && run->env->rank == 0)
        rc = zt_run_report_skipped(run, sb, err);
    if (!rc && run->saver)
        rc = zt_saver_voted(run->saver, &o.result.vote, err);
    return rc;
}

/* All `n` runs so far are concluded; what their ends tell is reported before anything else is. */
static int settle(struct zt_run *run, int64_t n, struct zt_err *err)
{
    if (!run->timed && run->profile_run < run->n_finished)
        return 0;
    int rc = zt_engine_drain(&run->engine, err);
    return rc ? rc : zt_run_finish_runs(run, n, err);
}

/* ---- checkpoints ---- */

/* Where the run stands behind the step that was concluded last. */
static struct zt_ckpt_progress progress(const struct zt_run *run)
{
    struct zt_step_block sb = run->sb;
    zt_step_next(&sb);
    return (struct zt_ckpt_progress){
        .step = sb.step,
        .updates = sb.adam_t - 1,
        .skipped = sb.skipped,
        .position = sb.first_sample,
        .samples = zt_dataset_samples(run->data.train),
        .seq_len = run->plan->cfg.seq_len,
        .seed = (int64_t)run->r->train.seed,
        .has_loss_scale = sb.scaler.dynamic,
        .loss_scale = (double)sb.loss_scale,
        .scale_patience = sb.scaler.patience,
        .scale_last_overflow = sb.scaler.last_overflow,
        .best_val_loss = run->best_val_loss,
    };
}

/* All steps so far are concluded. */
static int save(struct zt_run *run, struct zt_err *err)
{
    const struct zt_ckpt_progress at = progress(run);
    int rc = zt_engine_drain(&run->engine, err);
    if (!rc)
        rc = zt_saver_start(run->saver, &at, err);
    run->last_done_ns = run->finished_ns = 0;
    run->saved = at.step;
    run->save_due = false;
    run->last_save_ns = zt_now_ns();
    return rc;
}

static bool is_multiple(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* What this rank has to say in the next step's vote. By time, rank 0's clock counts. */
static struct zt_vote_request request(const struct zt_run *run)
{
    const double minutes = run->r->checkpoint.every_minutes;
    struct zt_vote_request v = {.stop = run->env->stop_requested(run->env->ctx)};
    if (run->saver) {
        const double passed_s = (double)(zt_now_ns() - run->last_save_ns) * 1e-9;
        v.save = minutes > 0 && run->env->rank == 0 && passed_s >= 60 * minutes;
        v.saving = (int32_t)zt_saver_state(run->saver);
    }
    return v;
}

/* ---- the loop ---- */

/* Known beforehand: something happens between this step and the next, which every step must be over for. */
static bool is_pause(const struct zt_run *run, int64_t done)
{
    const struct zt_recipe_train *t = &run->r->train;
    return is_multiple(done, t->eval_every) || is_multiple(done, t->sample_every) ||
           (run->saver && is_multiple(done, run->r->checkpoint.every_steps)) ||
           done == run->last_step;
}

/* Take in runs [*seen, n). */
static int conclude_until(struct zt_run *run, int64_t *seen, int64_t n, struct zt_err *err)
{
    int rc = 0;
    while (!rc && *seen < n)
        rc = conclude(run, (*seen)++, err);
    return rc;
}

/* All steps are concluded, and another one follows. */
static int pause(struct zt_run *run, int64_t done, struct zt_err *err)
{
    int rc = settle(run, done - run->first_step, err);
    if (!rc && done < run->last_step)
        rc = between_steps(run, done, false, err);
    run->save_due |= run->saver && is_multiple(done, run->r->checkpoint.every_steps);
    if (!rc && run->save_due && done < run->last_step)
        rc = save(run, err);
    return rc;
}

/*
 * The host runs one step ahead: it submits step i + 1, then reads the result of step i. A stop or a save
 * that was decided in step i is therefore carried out after step i + 1, on every rank alike.
 */
static int train_loop(struct zt_run *run, int64_t *steps_done, struct zt_err *err)
{
    struct zt_engine *e = &run->engine;
    const int64_t first = run->first_step, steps = run->last_step;
    int64_t step = first, seen = 0; /* runs, not steps */
    int rc = between_steps(run, first, steps == first, err);
    while (!rc && step < steps && run->stop == ZT_GO_ON) {
        e->next_batch = ZT_MIN(step + 1, steps - 1); /* behind the last step nothing is read */
        e->request = request(run);
        e->trace = run->timed || step - first == run->profile_run;
        zt_engine_run(e, ZT_PROG_TRAIN);
        step++;
        bool stops = is_pause(run, step);
        rc = conclude_until(run, &seen, step - first - (stops ? 0 : 1), err);
        if (!rc && run->save_due) {
            stops = true;
            rc = conclude_until(run, &seen, step - first, err);
        }
        if (!rc && stops)
            rc = pause(run, step, err);
    }
    if (!rc)
        rc = conclude_until(run, &seen, step - first, err);
    if (!rc)
        rc = settle(run, step - first, err);
    if (!rc && step > 0 && run->stop != ZT_STOP_ASKED)
        rc = between_steps(run, step, true, err);
    if (!rc && run->saver && run->saved < step)
        rc = save(run, err);
    *steps_done = step;
    return rc;
}

/* The last save ends before the run does; also after a step that ends it on all ranks alike. */
static int finish_saving(struct zt_run *run, int rc, struct zt_err *err)
{
    struct zt_err why;
    if (!run->saver || (rc && rc != ZT_ENUMERIC) || !zt_saver_finish(run->saver, &why) || rc)
        return rc;
    *err = why;
    return err->code;
}

int zt_train_run(const struct zt_recipe *r, const struct zt_train_env *env, struct zt_err *err)
{
    struct zt_run run = {.r = r,
                         .env = env,
                         .evaluated = -1,
                         .sampled = -1,
                         .best_val_loss = (double)NAN,
                         .last_save_ns = zt_now_ns()};
    int64_t steps_done = 0;
    int rc = zt_run_set_up_plan(&run, err);
    if (!rc)
        rc = zt_run_set_up_data(&run, err);
    if (!rc)
        zt_run_measure_peak(&run);
    if (!rc)
        rc = zt_run_set_up_engine(&run, err);
    if (!rc)
        zt_run_set_up_times(&run);
    if (!rc && env->rank == 0)
        rc = zt_run_report_start(&run, err);
    if (!rc && run.disk)
        rc = zt_run_report_disk(&run, err);
    if (!rc)
        rc = train_loop(&run, &steps_done, err);
    rc = finish_saving(&run, rc, err);
    if (!rc)
        rc = zt_engine_drain(&run.engine, err); /* a step's updates end after its result */
    if (!rc)
        rc = zt_run_report_times(&run, err);
    if (!rc)
        rc = zt_run_report_memory(&run, err);
    if (!rc)
        rc = env->coll->ops->barrier(env->coll, err);
    if (!rc && env->rank == 0)
        rc = zt_run_report_end(&run, steps_done, err);
    if (rc)
        env->coll->ops->abort(env->coll);
    if (rc && run.holds) { /* the last step before the failure */
        struct zt_err ignored;
        (void)!zt_run_send_step(&run, &run.held, &ignored);
    }
    release(&run);
    return rc;
}
