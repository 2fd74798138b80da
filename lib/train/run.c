#include "train/run.h"

#include <jansson.h>
#include <math.h>

#include "base/clock.h"
#include "ckpt/safetensors.h"
#include "data/data.h"
#include "metrics/metrics.h"
#include "offload/disk.h"
#include "train/times.h"

/* Why a run ends before its last step. */
enum stop { GO_ON, STOP_ASKED, STOP_AT_LOSS };

/* Everything of one run, so that one release function ends it from any point. */
struct run {
    const struct zt_recipe *r;
    const struct zt_train_env *env;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *plan;
    struct zt_run_data data;
    struct zt_weights weights;
    bool has_weights;
    struct zt_source source;
    struct zt_feed feed_train, feed_eval;
    struct zt_engine engine;
    struct zt_disk *disk; /* of offload to NVMe */
    int64_t last_done_ns;
    double flops_per_token, peak_flops;
    enum stop stop;
    int64_t evaluated, sampled; /* after how many steps; -1: not yet */
    bool said_masked;           /* that a step had no target */

    /* wall_clock_breakdown, flops_profiler */
    bool timed;              /* every step */
    int64_t profile_run;     /* TRAIN run; -1: none */
    int64_t n_finished;      /* runs that are over on all streams, their times taken in */
    int64_t finished_ns;     /* when the last of them ended; 0: there was a pause since */
    struct zt_breakdown sum; /* of n_timed runs; the first one warms up */
    int64_t n_timed;
    struct zt_metrics held; /* a step's report, until its times are known */
    bool holds;
};

/* Send a JSON object up; steals it. */
static int report(const struct run *run, json_t *o, struct zt_err *err)
{
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!text)
        return zt_err_set(err, ZT_ENOMEM, "a report could not be written as JSON");
    int rc = run->env->report(run->env->ctx, text, strlen(text), err);
    free(text);
    return rc;
}

static void release(struct run *run)
{
    zt_engine_release(&run->engine);
    zt_disk_close(run->disk);
    if (run->has_weights)
        zt_weights_close(&run->weights);
    zt_run_data_close(&run->data);
    if (run->plan)
        zt_plan_free(run->plan);
    zt_arena_release(&run->arena);
}

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

static int set_up_plan(struct run *run, struct zt_err *err)
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

static int set_up_data(struct run *run, struct zt_err *err)
{
    const struct zt_plan_config *cfg = &run->plan->cfg;
    int rc = zt_run_data_open(run->r, &run->data, err);
    if (!rc && run->r->model.from) {
        rc = zt_weights_open(run->r->model.from, run->model, &run->weights, err);
        run->has_weights = rc == 0;
    }
    if (rc)
        return rc;
    run->source =
        (struct zt_source){run->model, run->has_weights ? &run->weights : NULL, run->r->train.seed};
    run->feed_train = (struct zt_feed){run->data.train,
                                       run->env->rank,
                                       run->env->world,
                                       cfg->accum,
                                       cfg->micro_batch,
                                       cfg->seq_len,
                                       zt_run_data_end(run->r, &run->data)};
    if (run->data.val)
        run->feed_eval = (struct zt_feed){run->data.val,
                                          run->env->rank,
                                          run->env->world,
                                          1,
                                          cfg->eval_micro_batch,
                                          cfg->seq_len,
                                          zt_dataset_samples(run->data.val)};
    return 0;
}

static int set_up_engine(struct run *run, struct zt_err *err)
{
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
    zt_engine_run(e, ZT_PROG_INIT);
    return zt_engine_drain(e, err);
}

static void set_up_times(struct run *run)
{
    const struct zt_recipe_profile *p = &run->r->profile;
    run->timed = run->r->log.wall_clock_breakdown;
    run->profile_run = p->enabled && run->env->rank == 0 ? p->step - 1 : -1;
    if (run->timed || run->profile_run >= 0)
        zt_engine_trace_init(&run->engine);
}

/* What MFU is made of: FLOPs of a token, and the most that all workers together could do. */
static void measure_peak(struct run *run)
{
    const struct zt_plan_config *cfg = &run->plan->cfg;
    const struct zt_shape shape = {.batch = cfg->micro_batch,
                                   .seq_len = cfg->seq_len,
                                   .dtype = cfg->dtype,
                                   .dev_kind = cfg->dev_kind,
                                   .n_threads = cfg->n_threads,
                                   .train = true};
    run->flops_per_token = zt_model_train_flops_per_token(run->model, &shape);
    run->peak_flops =
        zt_run_peak_flops(run->env->dev, run->env->n_threads, cfg->dtype) * run->env->world;
}

static int report_start(const struct run *run, struct zt_err *err)
{
    const struct zt_plan *p = run->plan;
    struct zt_str data = {0};
    zt_dataset_describe(run->data.train, &data);
    if (run->feed_train.end >= 0)
        zt_str_printf(&data, "; %lld epoch%s, %lld steps", (long long)run->r->train.epochs,
                      run->r->train.epochs == 1 ? "" : "s", (long long)run->r->train.steps);
    int rc = report(run,
                    json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:s, s:s, s:b}", "type", "start",
                              "device", run->env->device, "params", (json_int_t)p->model->n_elems,
                              "tokens_per_step", (json_int_t)(run->r->batch.train * p->cfg.seq_len),
                              "flops_per_token", run->flops_per_token, "peak_flops",
                              run->peak_flops, "peak_dtype", zt_dtype_name(zt_run_peak_dtype(p)),
                              "data", zt_str_get(&data), "from_weights", run->has_weights),
                    err);
    zt_str_release(&data);
    return rc;
}

static int notice(const struct run *run, const char *text, struct zt_err *err)
{
    return report(run, json_pack("{s:s, s:s}", "type", "notice", "text", text), err);
}

/* How rank 0 moves bytes; and of every rank, which files of workers that died it has removed. */
static int report_disk(const struct run *run, struct zt_err *err)
{
    struct zt_str text = {0};
    int rc = 0, n = zt_disk_n_leftovers(run->disk);
    if (run->env->rank == 0) {
        zt_str_printf(&text, "offload to NVMe, each worker: %s", zt_disk_describe(run->disk));
        rc = notice(run, zt_str_get(&text), err);
    }
    zt_str_reset(&text);
    zt_str_printf(&text, "rank %d removed from %s what %d worker%s that died had left there",
                  run->env->rank, run->r->zero.nvme.path, n, n == 1 ? "" : "s");
    if (!rc && n > 0)
        rc = notice(run, zt_str_get(&text), err);
    zt_str_release(&text);
    return rc;
}

static int evaluate(struct run *run, int64_t step, struct zt_err *err)
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
    if (loss <= run->r->train.stop_at_loss)
        run->stop = STOP_AT_LOSS;
    if (run->env->rank != 0)
        return 0;
    json_t *value = isfinite(loss) ? json_real(loss) : json_null();
    return report(run,
                  json_pack("{s:s, s:I, s:o, s:I}", "type", "eval", "step", (json_int_t)step,
                            "val_loss", value, "tokens", (json_int_t)tokens),
                  err);
}

static int sample(struct run *run, int64_t step, struct zt_err *err)
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
        rc = report(run,
                    json_pack("{s:s, s:I, s:s}", "type", "sample", "step", (json_int_t)step, "text",
                              zt_str_get(&text)),
                    err);
    zt_str_release(&text);
    return rc;
}

/* Between steps: evaluation and text samples that are due after `done` steps. */
static int between_steps(struct run *run, int64_t done, bool last, struct zt_err *err)
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

static int send_step(struct run *run, const struct zt_metrics *m, struct zt_err *err)
{
    struct zt_str line = {0};
    zt_metrics_to_json(m, &line);
    int rc = run->env->report(run->env->ctx, line.buf, line.len, err);
    zt_str_release(&line);
    return rc;
}

static int report_step(struct run *run, const struct zt_step_outcome *o, struct zt_err *err)
{
    const struct zt_plan *p = run->plan;
    int64_t tokens = run->r->batch.train * p->cfg.seq_len, end = run->feed_train.end;
    const struct zt_step_block *sb = &o->result.sb;
    int64_t tokens_so_far = (sb->step + 1) * tokens;
    if (end >= 0)
        tokens_so_far = ZT_MIN(tokens_so_far, end * p->cfg.seq_len);
    double dt = run->last_done_ns ? (double)(o->done_ns - run->last_done_ns) * 1e-9 : 0;
    run->last_done_ns = o->done_ns;
    struct zt_metrics m = {
        .step = sb->step + 1,
        .loss = sb->tokens ? sb->loss : (double)NAN,
        .lr = (double)sb->lr,
        .grad_norm = sb->grad_norm,
        .grad_norm_clipped = sb->grad_norm_clipped,
        .loss_scale = (double)sb->loss_scale,
        .skipped = sb->skipped + !sb->apply,
        .tokens = tokens_so_far,
        .targets = sb->tokens,
        .tokens_per_s = dt > 0 ? (double)tokens / dt : NAN,
        .step_ms = dt > 0 ? dt * 1e3 : NAN,
        .mfu = dt > 0 && run->peak_flops > 0
                   ? run->flops_per_token * (double)tokens / dt / run->peak_flops
                   : NAN,
        .device_peak_bytes = (int64_t)(p->ledger.peak[ZT_AR_DEVICE] + p->ledger.peak[ZT_AR_SHARED]),
        .host_peak_bytes = zt_process_rss_peak(),
    };
    if (!run->timed)
        return send_step(run, &m, err);
    run->held = m;
    run->holds = true;
    return 0;
}

static int report_profile(const struct run *run, int64_t i, struct zt_err *err)
{
    struct zt_profile_of of = {run->plan, zt_engine_times(&run->engine, i), i + 1,
                               run->peak_flops / run->env->world, run->r->profile.detailed};
    struct zt_str text = {0};
    zt_times_profile(&of, &text);
    int rc =
        report(run, json_pack("{s:s, s:s}", "type", "profile", "text", zt_str_get(&text)), err);
    zt_str_release(&text);
    return rc;
}

static void take_times(struct run *run, int64_t i)
{
    const struct zt_program *prog = &run->plan->programs[ZT_PROG_TRAIN];
    const struct zt_op_time *times = zt_engine_times(&run->engine, i);
    const struct zt_op_time *before =
        run->finished_ns ? zt_engine_times(&run->engine, i - 1) : NULL;
    struct zt_breakdown *b = &run->held.breakdown;
    run->finished_ns = zt_times_breakdown(prog, before, times, run->finished_ns, b);
    run->held.has_breakdown = true;
    if (i == 0)
        return;
    zt_breakdown_add(&run->sum, b);
    run->n_timed++;
}

/* TRAIN runs before `n` are over on all streams: report what waited for that. */
static int finish_runs(struct run *run, int64_t n, struct zt_err *err)
{
    int rc = 0;
    for (; run->n_finished < n && !rc; run->n_finished++) {
        if (run->timed)
            take_times(run, run->n_finished);
        if (run->holds)
            rc = send_step(run, &run->held, err);
        run->holds = false;
        if (!rc && run->n_finished == run->profile_run)
            rc = report_profile(run, run->n_finished, err);
    }
    return rc;
}

/* The unit that a norm partial is of; frozen ones have none. */
static const struct zt_unit *partial_unit(const struct zt_plan *p, int partial)
{
    const struct zt_unit *u = p->units;
    while (u->partial != partial)
        u++;
    return u;
}

/*
 * Where it began: ", first on rank 1", whose loss is not finite; or ", first in unit h.3", where
 * backward met a gradient that is not.
 */
static const char *origin(const struct run *run, const struct zt_step_block *sb, char *buf,
                          size_t size)
{
    buf[0] = '\0';
    if (sb->bad_rank >= 0)
        snprintf(buf, size, ", first on rank %d", sb->bad_rank);
    else if (sb->bad_unit >= 0)
        snprintf(buf, size, ", first in unit %s", partial_unit(run->plan, sb->bad_unit)->name);
    return buf;
}

/*
 * Every overflow is said. A step without a target changes nothing either; that is said the first time.
 * Both count as skipped.
 */
static int report_skipped(struct run *run, const struct zt_step_block *sb, struct zt_err *err)
{
    char text[320], from[128];
    struct zt_step_block next = *sb;
    zt_step_next(&next);
    if (sb->overflow && sb->scaler.dynamic)
        snprintf(text, sizeof text,
                 "step %lld is skipped: the gradient overflowed at loss scale %.9g%s; next %.9g",
                 (long long)sb->step + 1, (double)sb->loss_scale,
                 origin(run, sb, from, sizeof from), (double)next.loss_scale);
    else if (sb->overflow)
        snprintf(text, sizeof text, "step %lld is skipped: the %s is not finite%s",
                 (long long)sb->step + 1, isfinite(sb->loss) ? "gradient" : "loss",
                 origin(run, sb, from, sizeof from));
    else if (!sb->tokens && !run->said_masked)
        snprintf(text, sizeof text,
                 "step %lld: every target of the batch is masked: nothing is learnt from it, and "
                 "it counts as skipped (said once)",
                 (long long)sb->step + 1);
    else
        return 0;
    run->said_masked |= !sb->tokens;
    return notice(run, text, err);
}

/* Does training go on after a step that is not finite? */
static int judge(const struct run *run, const struct zt_step_block *sb, struct zt_err *err)
{
    char from[128];
    origin(run, sb, from, sizeof from);
    if (!sb->overflow)
        return 0;
    if (zt_loss_scale_at_end(&sb->scaler, sb->loss_scale))
        return zt_err_set(err, ZT_ENUMERIC,
                          "step %lld: the gradient overflowed in fp16%s, and the loss scale, %.9g, "
                          "is the least that fp16.min_loss_scale allows; lower the learning rate, "
                          "clip the gradient, or train in bf16",
                          (long long)sb->step + 1, from, (double)sb->loss_scale);
    if (sb->scaler.dynamic || run->r->train.on_nonfinite == ZT_NONFINITE_SKIP)
        return 0;
    return zt_err_set(err, ZT_ENUMERIC,
                      "step %lld: the %s is not finite%s (loss %g, gradient norm %g); lower the "
                      "learning rate%s, or set train.on_nonfinite: skip to leave out such steps",
                      (long long)sb->step + 1, isfinite(sb->loss) ? "gradient" : "loss", from,
                      fabs(sb->loss), fabs(sb->grad_norm), /* no "-nan" */
                      run->r->precision == ZT_PREC_FP16 ? " or fp16.loss_scale (0: dynamic)" : "");
}

/* Take in the result of TRAIN run `i`; every rank comes to the same conclusions. */
static int conclude(struct run *run, int64_t i, struct zt_err *err)
{
    struct zt_step_outcome o;
    int rc = zt_engine_outcome(&run->engine, i, &o, err);
    if (rc)
        return rc;
    rc = finish_runs(run, i, err);
    const struct zt_step_block *sb = &o.result.sb;
    bool low = sb->tokens > 0 && sb->loss <= run->r->train.stop_at_loss;
    if (!rc && run->env->rank == 0)
        rc = report_step(run, &o, err);
    if (o.result.vote.stop)
        run->stop = STOP_ASKED;
    else if (low && run->r->train.eval_every == 0 && run->stop == GO_ON)
        run->stop = STOP_AT_LOSS;
    if (!rc)
        rc = judge(run, sb, err);
    if (!rc && run->env->rank == 0)
        rc = report_skipped(run, sb, err);
    return rc;
}

/* All `n` runs so far are concluded; what their ends tell is reported before anything else is. */
static int settle(struct run *run, int64_t n, struct zt_err *err)
{
    if (!run->timed && run->profile_run < run->n_finished)
        return 0;
    int rc = zt_engine_drain(&run->engine, err);
    return rc ? rc : finish_runs(run, n, err);
}

/*
 * The host runs one step ahead: it submits step i + 1, then reads the result of step i. A stop
 * that was decided in step i is therefore carried out after step i + 1, on every rank alike.
 */
static int train_loop(struct run *run, int64_t *steps_done, struct zt_err *err)
{
    struct zt_engine *e = &run->engine;
    int64_t steps = run->r->train.steps, step = 0, seen = 0;
    int rc = between_steps(run, 0, steps == 0, err);
    while (!rc && step < steps && run->stop == GO_ON) {
        e->next_batch = ZT_MIN(step + 1, steps - 1); /* behind the last step nothing is read */
        e->request.stop = run->env->stop_requested(run->env->ctx);
        e->trace = run->timed || step == run->profile_run;
        zt_engine_run(e, ZT_PROG_TRAIN);
        step++;
        bool pause = run->r->train.eval_every > 0 && step % run->r->train.eval_every == 0;
        pause |= run->r->train.sample_every > 0 && step % run->r->train.sample_every == 0;
        pause |= step == steps;
        while (!rc && seen < step - (pause ? 0 : 1))
            rc = conclude(run, seen++, err);
        if (!rc && pause)
            rc = settle(run, step, err);
        if (!rc && pause && step < steps)
            rc = between_steps(run, step, false, err);
    }
    while (!rc && seen < step)
        rc = conclude(run, seen++, err);
    if (!rc)
        rc = settle(run, step, err);
    if (!rc && step > 0 && run->stop != STOP_ASKED)
        rc = between_steps(run, step, true, err);
    *steps_done = step;
    return rc;
}

static json_t *arenas_json(const size_t bytes[ZT_N_ARENAS])
{
    return json_pack("{s:I, s:I, s:I, s:I}", "device", (json_int_t)bytes[ZT_AR_DEVICE], "shared",
                     (json_int_t)bytes[ZT_AR_SHARED], "host", (json_int_t)bytes[ZT_AR_HOST], "disk",
                     (json_int_t)bytes[ZT_AR_DISK]);
}

/* The mean over the steps, of every rank. */
static int report_times(struct run *run, struct zt_err *err)
{
    struct zt_str text = {0};
    if (run->n_timed == 0)
        return 0;
    zt_breakdown_scale(&run->sum, 1.0 / (double)run->n_timed);
    zt_str_printf(&text, "{\"type\": \"times\", \"steps\": %lld, \"breakdown_ms\": ",
                  (long long)run->n_timed);
    zt_breakdown_to_json(&run->sum, &text);
    zt_str_puts(&text, "}");
    int rc = run->env->report(run->env->ctx, text.buf, text.len, err);
    zt_str_release(&text);
    return rc;
}

/*
 * What is in use on a device of its own beside our arena: its context, libraries, and whatever other
 * processes hold there.
 */
static int device_outside(const struct run *run, json_t *o, struct zt_err *err)
{
    struct zt_dev *dev = run->env->dev;
    size_t free_bytes, total_bytes;
    if (dev->ops->kind == ZT_DEV_CPU)
        return 0;
    int rc = dev->ops->memory(dev, &free_bytes, &total_bytes, err);
    if (rc)
        return rc;
    size_t used = total_bytes - free_bytes, ours = run->plan->ledger.peak[ZT_AR_DEVICE];
    json_object_set_new(o, "device_outside_bytes", json_integer((json_int_t)(used - ours)));
    return 0;
}

/* What the plan promised, what was touched, and how much of the host's memory is not of arenas. */
static json_t *memory_json(const struct run *run, const struct zt_arena_use use[ZT_N_ARENAS],
                           uint64_t digest)
{
    size_t touched[ZT_N_ARENAS], least[ZT_N_ARENAS], most[ZT_N_ARENAS];
    const bool gpu = run->env->dev->ops->kind != ZT_DEV_CPU;
    char hex[20];
    struct zt_pss pss;
    for (int a = 0; a < ZT_N_ARENAS; a++) {
        touched[a] = use[a].touched;
        least[a] = use[a].least;
        most[a] = use[a].most;
    }
    zt_run_pss(&run->engine, &pss);
    int64_t staging = gpu ? pss.shared : 0, outside = pss.files + pss.rest + staging;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)digest);
    return json_pack(
        "{s:s, s:i, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:s}", "type", "memory", "rank",
        run->env->rank, "predicted", arenas_json(run->plan->ledger.peak), "touched",
        arenas_json(touched), "least", arenas_json(least), "most", arenas_json(most),
        "outside_bytes", (json_int_t)outside, "outside_files_bytes", (json_int_t)pss.files,
        "staging_bytes", (json_int_t)staging, "rss_peak_bytes", (json_int_t)zt_process_rss_peak(),
        "pss_bytes", (json_int_t)(pss.arenas + pss.shared + pss.files + pss.rest), "digest", hex);
}

static int report_memory(struct run *run, struct zt_err *err)
{
    struct zt_arena_use use[ZT_N_ARENAS] = {{0}};
    uint64_t state = 0;
    int rc = 0;
    for (int a = 0; a < ZT_N_ARENAS && !rc; a++)
        rc = zt_run_arena_use(&run->engine, (enum zt_arena_id)a, &use[a], err);
    if (!rc)
        rc = zt_run_digest(&run->engine, &state, err);
    if (rc)
        return rc;
    json_t *o = memory_json(run, use, state);
    rc = device_outside(run, o, err);
    if (rc) {
        json_decref(o);
        return rc;
    }
    return report(run, o, err);
}

/* "stopped" says why the run ended before its last step, if it did. */
static int report_end(const struct run *run, int64_t steps_done, struct zt_err *err)
{
    static const char *const reasons[] = {[STOP_ASKED] = "asked", [STOP_AT_LOSS] = "loss"};
    json_t *o = json_pack("{s:s, s:I}", "type", "end", "step", (json_int_t)steps_done);
    if (run->stop != GO_ON && steps_done < run->r->train.steps)
        json_object_set_new(o, "stopped", json_string(reasons[run->stop]));
    return report(run, o, err);
}

int zt_train_run(const struct zt_recipe *r, const struct zt_train_env *env, struct zt_err *err)
{
    struct run run = {.r = r, .env = env, .evaluated = -1, .sampled = -1};
    int64_t steps_done = 0;
    int rc = set_up_plan(&run, err);
    if (!rc)
        rc = set_up_data(&run, err);
    if (!rc)
        measure_peak(&run);
    if (!rc)
        rc = set_up_engine(&run, err);
    if (!rc)
        set_up_times(&run);
    if (!rc && env->rank == 0)
        rc = report_start(&run, err);
    if (!rc && run.disk)
        rc = report_disk(&run, err);
    if (!rc)
        rc = train_loop(&run, &steps_done, err);
    if (!rc)
        rc = zt_engine_drain(&run.engine, err); /* a step's updates end after its result */
    if (!rc)
        rc = report_times(&run, err);
    if (!rc)
        rc = report_memory(&run, err);
    if (!rc)
        rc = env->coll->ops->barrier(env->coll, err);
    if (!rc && env->rank == 0)
        rc = report_end(&run, steps_done, err);
    if (rc)
        env->coll->ops->abort(env->coll);
    if (rc && run.holds) { /* the last step before the failure */
        struct zt_err ignored;
        (void)!send_step(&run, &run.held, &ignored);
    }
    release(&run);
    return rc;
}
