#include "train/run_state.h"

#include <jansson.h>
#include <math.h>

#include "data/data.h"
#include "offload/disk.h"

/* Send a JSON object up; steals it. */
int zt_report(const struct zt_train_env *env, json_t *o, struct zt_err *err)
{
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!text)
        return zt_err_set(err, ZT_ENOMEM, "a report could not be written as JSON");
    int rc = env->report(env->ctx, text, strlen(text), err);
    free(text);
    return rc;
}

int zt_report_notice(const struct zt_train_env *env, const char *text, struct zt_err *err)
{
    return zt_report(env, json_pack("{s:s, s:s}", "type", "notice", "text", text), err);
}

int zt_run_report_start(const struct zt_run *run, struct zt_err *err)
{
    const struct zt_plan *p = run->plan;
    struct zt_str data = {0};
    zt_dataset_describe(run->data.train, &data);
    if (run->feed_train.end >= 0)
        zt_str_printf(&data, "; %lld epoch%s, %lld steps", (long long)run->r->train.epochs,
                      run->r->train.epochs == 1 ? "" : "s", (long long)run->last_step);
    int rc = zt_report(
        run->env,
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:s, s:s, s:b, s:I, s:I, s:s?, s:f}", "type",
                  "start", "device", run->env->device, "params", (json_int_t)p->model->n_elems,
                  "tokens_per_step", (json_int_t)(run->r->batch.train * p->cfg.seq_len),
                  "flops_per_token", run->flops_per_token, "peak_flops", run->mfu.peak,
                  "peak_dtype", zt_dtype_name(run->peak_dtype), "data", zt_str_get(&data),
                  "from_weights", run->has_weights, "first_step", (json_int_t)run->first_step,
                  "last_step", (json_int_t)run->last_step, "resumed", run->resumed, "load_ms",
                  (double)run->load_ns * 1e-6),
        err);
    zt_str_release(&data);
    return rc;
}

/* How rank 0 moves bytes; and of every rank, which files of workers that died it has removed. */
int zt_run_report_disk(const struct zt_run *run, struct zt_err *err)
{
    struct zt_str text = {0};
    int rc = 0, n = zt_disk_n_leftovers(run->disk);
    if (run->env->rank == 0) {
        zt_str_printf(&text, "offload to NVMe, each worker: %s", zt_disk_describe(run->disk));
        rc = zt_report_notice(run->env, zt_str_get(&text), err);
    }
    zt_str_reset(&text);
    zt_str_printf(&text, "rank %d removed from %s what %d worker%s that died had left there",
                  run->env->rank, run->r->zero.nvme.path, n, n == 1 ? "" : "s");
    if (!rc && n > 0)
        rc = zt_report_notice(run->env, zt_str_get(&text), err);
    zt_str_release(&text);
    return rc;
}

int zt_run_send_step(struct zt_run *run, const struct zt_metrics *m, struct zt_err *err)
{
    struct zt_str line = {0};
    zt_metrics_to_json(m, &line);
    int rc = run->env->report(run->env->ctx, line.buf, line.len, err);
    zt_str_release(&line);
    return rc;
}

static int report_peak(const struct zt_run *run, struct zt_err *err)
{
    char text[160];
    snprintf(text, sizeof text,
             "mfu is of %.1f GFLOP/s from here on: a second of training reached more than the "
             "matmul rate "
             "that was measured",
             run->mfu.peak * 1e-9);
    return zt_report_notice(run->env, text, err);
}

int zt_run_report_step(struct zt_run *run, const struct zt_step_outcome *o, struct zt_err *err)
{
    const struct zt_plan *p = run->plan;
    int64_t tokens = run->r->batch.train * p->cfg.seq_len, end = run->feed_train.end;
    const struct zt_step_block *sb = &o->result.sb;
    int64_t tokens_so_far = (sb->first_sample + sb->step_samples) * p->cfg.seq_len;
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
        .mfu = NAN,
        .device_peak_bytes = (int64_t)(p->ledger.peak[ZT_AR_DEVICE] + p->ledger.peak[ZT_AR_SHARED]),
        .host_peak_bytes = zt_process_rss_peak(),
    };
    bool raised = false;
    if (dt > 0)
        m.mfu = zt_mfu_step(&run->mfu, run->flops_per_token * (double)tokens, dt, &raised);
    int rc = raised ? report_peak(run, err) : 0;
    if (rc || !run->timed)
        return rc ? rc : zt_run_send_step(run, &m, err);
    run->held = m;
    run->holds = true;
    return 0;
}

static int report_profile(const struct zt_run *run, int64_t i, struct zt_err *err)
{
    struct zt_profile_of of = {.plan = run->plan,
                               .times = zt_engine_times(&run->engine, i),
                               .step = run->first_step + i + 1,
                               .peak_flops = run->mfu.peak / run->env->world,
                               .peak_dtype = run->peak_dtype,
                               .detailed = run->r->profile.detailed};
    struct zt_str text = {0};
    zt_times_profile(&of, &text);
    int rc = zt_report(run->env,
                       json_pack("{s:s, s:s}", "type", "profile", "text", zt_str_get(&text)), err);
    zt_str_release(&text);
    return rc;
}

static void take_times(struct zt_run *run, int64_t i)
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

int zt_run_finish_runs(struct zt_run *run, int64_t n, struct zt_err *err)
{
    int rc = 0;
    for (; run->n_finished < n && !rc; run->n_finished++) {
        if (run->timed)
            take_times(run, run->n_finished);
        if (run->holds)
            rc = zt_run_send_step(run, &run->held, err);
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
static const char *origin(const struct zt_run *run, const struct zt_step_block *sb, char *buf,
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
int zt_run_report_skipped(struct zt_run *run, const struct zt_step_block *sb, struct zt_err *err)
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
    return zt_report_notice(run->env, text, err);
}

int zt_run_judge(const struct zt_run *run, const struct zt_step_block *sb, struct zt_err *err)
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

static json_t *arenas_json(const size_t bytes[ZT_N_ARENAS])
{
    return json_pack("{s:I, s:I, s:I, s:I}", "device", (json_int_t)bytes[ZT_AR_DEVICE], "shared",
                     (json_int_t)bytes[ZT_AR_SHARED], "host", (json_int_t)bytes[ZT_AR_HOST], "disk",
                     (json_int_t)bytes[ZT_AR_DISK]);
}

/* The mean over the steps, of every rank. */
int zt_run_report_times(struct zt_run *run, struct zt_err *err)
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
static int device_outside(const struct zt_run *run, json_t *o, struct zt_err *err)
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
static json_t *memory_json(const struct zt_run *run, const struct zt_arena_use use[ZT_N_ARENAS],
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

int zt_run_report_memory(struct zt_run *run, struct zt_err *err)
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
    return zt_report(run->env, o, err);
}

/* "stopped" says why the run ended before its last step, if it did. */
int zt_run_report_end(const struct zt_run *run, int64_t steps_done, struct zt_err *err)
{
    static const char *const reasons[] = {[ZT_STOP_ASKED] = "asked", [ZT_STOP_AT_LOSS] = "loss"};
    json_t *o = json_pack("{s:s, s:I}", "type", "end", "step", (json_int_t)steps_done);
    if (run->stop != ZT_GO_ON && steps_done < run->last_step)
        json_object_set_new(o, "stopped", json_string(reasons[run->stop]));
    return zt_report(run->env, o, err);
}
