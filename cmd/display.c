#include "display.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "cmd.h"
#include "display_memory.h"
#include "metrics/record.h"

static char *path_in(const char *dir, const char *name)
{
    struct zt_str path = {0};
    zt_str_printf(&path, "%s/%s", dir, name);
    return path.buf;
}

void display_init(struct display *d, const char *log_dir, FILE *metrics, int world, int64_t steps,
                  int64_t steps_per_print)
{
    memset(d, 0, sizeof *d);
    d->out.fd = STDOUT_FILENO;
    d->err.fd = STDERR_FILENO;
    const char *term = getenv("TERM");
    d->tty = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    d->steps = steps;
    d->steps_per_print = ZT_MAX(steps_per_print, (int64_t)1);
    d->world = world;
    d->metrics_path = path_in(log_dir, "metrics.jsonl");
    d->summary_path = path_in(log_dir, "summary.json");
    d->memory = display_memory_create(world);
    d->metrics = metrics;
}

void display_release(struct display *d)
{
    if (d->metrics)
        fclose(d->metrics);
    free(d->metrics_path);
    free(d->summary_path);
    free(d->memory);
    breakdowns_release(&d->breakdowns);
}

void display_again(struct display *d, int world, int restarts)
{
    free(d->memory);
    d->memory = display_memory_create(world);
    d->n_memory = 0;
    d->world = world;
    breakdowns_release(&d->breakdowns);
    d->breakdowns = (struct breakdowns){0};
    d->started = false;
    d->restarts = restarts;
    d->speed = (struct speed){0};
}

/* Nothing from here on may block: the launcher's loop calls, and writes later (display_flush). */
int display_flush(void *ctx)
{
    struct display *d = ctx;
    return rank_out_flush_both(&d->out, &d->err);
}

/* ---- the live line ---- */

static void draw_live_line(struct display *d)
{
    struct winsize size;
    char line[256];
    size_t width = 80;
    if (ioctl(d->out.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = size.ws_col;
    zt_metrics_line(&d->shown, d->steps, line, ZT_MIN(sizeof line, width));
    zt_str_printf(&d->out.buf, "\r%s\033[K", line);
    d->line_open = true;
    d->stale = false;
    d->drawn_ns = zt_now_ns();
}

/* Other lines take its place; the next step draws it anew below them. */
static void clear_live_line(struct display *d)
{
    if (d->line_open)
        zt_str_puts(&d->out.buf, "\r\033[K");
    d->line_open = false;
}

/* Fast steps must not flood a terminal. */
static void draw_if_due(struct display *d)
{
    enum { REDRAW_NS = 100 * 1000 * 1000 };
    if (d->stale && zt_now_ns() - d->drawn_ns >= REDRAW_NS)
        draw_live_line(d);
}

void display_tick(void *ctx)
{
    draw_if_due(ctx);
}

void display_line(void *ctx, int rank, enum zt_log_stream stream, const char *line, size_t len)
{
    struct display *d = ctx;
    clear_live_line(d);
    rank_out_line(stream == ZT_LOG_STDOUT ? &d->out : &d->err, rank, line, len);
}

void display_notice(void *ctx, const char *text)
{
    struct display *d = ctx;
    clear_live_line(d);
    zt_str_printf(&d->err.buf, "zerotrain: %s\n", text);
}

void display_say(struct display *d, const char *text)
{
    clear_live_line(d);
    rank_out_say(&d->err, text);
}

/* Training goes on, but the run will not have been a success. */
static void notice_unwritten(struct display *d, const char *text)
{
    d->incomplete = true;
    display_notice(d, text);
}

/* ---- metrics.jsonl ---- */

/* A full disk must not end the training; it is said once, and in the exit status. */
static void keep(struct display *d, const struct zt_metrics *m)
{
    struct zt_str line = {0};
    if (!d->metrics)
        return;
    zt_metrics_to_json(m, &line);
    zt_str_puts(&line, "\n");
    if (fwrite(line.buf, 1, line.len, d->metrics) != line.len || fflush(d->metrics)) {
        zt_str_reset(&line);
        zt_str_printf(&line, "%s: %s; training goes on, later steps are not recorded",
                      d->metrics_path, strerror(errno));
        fclose(d->metrics);
        d->metrics = NULL;
        notice_unwritten(d, line.buf);
    }
    zt_str_release(&line);
}

static void keep_pending(struct display *d)
{
    if (d->has_pending)
        keep(d, &d->pending);
    d->has_pending = false;
}

/* ---- reports ---- */

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int64_t integer(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key)); /* 0 when it is none */
}

static void smooth_speed(struct display *d, const struct zt_metrics *m)
{
    struct speed *s = &d->speed;
    d->shown = *m;
    if (m->step_ms > 0 && m->tokens_per_s > 0) {
        s->step_ms = s->step_ms > 0 ? 0.9 * s->step_ms + 0.1 * m->step_ms : m->step_ms;
        s->mfu_per_rate = m->mfu / m->tokens_per_s;
    }
    if (s->step_ms > 0 && m->step > 0) {
        double tokens = (double)m->tokens / (double)m->step;
        d->shown.step_ms = s->step_ms;
        d->shown.tokens_per_s = tokens / (s->step_ms * 1e-3);
        d->shown.mfu = ZT_MIN(d->shown.tokens_per_s * s->mfu_per_rate, 1.0);
    }
}

static void show_step(struct display *d)
{
    int64_t step = d->shown.step;
    char line[256];
    d->stale = d->tty;
    draw_if_due(d);
    bool due = step % d->steps_per_print == 0 || step == 1 || step == d->steps;
    if (!d->tty && due)
        zt_str_printf(&d->out.buf, "%s\n", zt_metrics_line(&d->shown, d->steps, line, sizeof line));
    if (due && d->shown.has_breakdown) {
        clear_live_line(d);
        zt_str_printf(&d->out.buf, "  %s\n",
                      zt_breakdown_line(&d->shown.breakdown, line, sizeof line));
    }
}

static void on_step(struct display *d, const char *json, size_t len)
{
    struct zt_metrics m;
    struct zt_err err;
    if (zt_metrics_from_json(json, len, &m, &err)) {
        display_notice(d, err.msg);
        return;
    }
    keep_pending(d);
    d->pending = m;
    d->has_pending = true;
    if (m.targets > 0) {
        if (!d->have_loss)
            d->first_loss = m.loss;
        d->have_loss = true;
        d->last_loss = m.loss;
    }
    d->done_steps = m.step;
    d->skipped = m.skipped;
    if (m.step_ms > 0) {
        d->timed_s += m.step_ms * 1e-3;
        d->timed_tokens += m.tokens_per_s * m.step_ms * 1e-3;
    }
    smooth_speed(d, &m);
    show_step(d);
}

/* Once the validation loss is not the best that it was. */
static void say_best(struct display *d, double loss)
{
    if (loss > d->best_val)
        zt_str_printf(&d->out.buf, ", best %.4f after step %" PRId64, d->best_val, d->best_step);
}

static void on_eval(struct display *d, const json_t *o)
{
    double loss = number(o, "val_loss");
    int64_t step = integer(o, "step");
    clear_live_line(d);
    if (isnan(loss)) {
        zt_str_printf(&d->out.buf, "eval  step %" PRId64 ": %s\n", step,
                      integer(o, "tokens") ? "the validation loss is not finite"
                                           : "every target of the validation data is masked");
        return;
    }
    zt_str_printf(&d->out.buf,
                  "eval  step %" PRId64 ": validation loss %.4f, perplexity %.2f (%" PRId64
                  " tokens)",
                  step, loss, exp(loss), integer(o, "tokens"));
    if (!d->have_val || loss < d->best_val) {
        d->best_val = loss;
        d->best_step = step;
    }
    say_best(d, loss);
    zt_str_puts(&d->out.buf, "\n");
    if (!d->have_val)
        d->first_val = loss;
    d->have_val = true;
    d->last_val = loss;
    if (d->has_pending && d->pending.step == step) {
        d->pending.has_val = true;
        d->pending.val_loss = loss;
    }
}

static void on_notice(struct display *d, const json_t *o)
{
    const char *text = json_string_value(json_object_get(o, "text"));
    if (text)
        display_notice(d, text);
}

static void on_sample(struct display *d, const json_t *o)
{
    const char *line = json_string_value(json_object_get(o, "text"));
    if (!line)
        return;
    clear_live_line(d);
    zt_str_printf(&d->out.buf, "sample after step %" PRId64 ":\n", integer(o, "step"));
    while (*line) {
        size_t n = strcspn(line, "\n");
        zt_str_puts(&d->out.buf, "  | ");
        zt_str_add(&d->out.buf, line, n);
        zt_str_puts(&d->out.buf, "\n");
        line += n + (line[n] != '\0');
    }
}

/* What is left of the record before the run goes on ends where its checkpoint was made, or before that. */
static void cut_record(struct display *d)
{
    char text[256];
    struct zt_err err;
    int64_t last;
    if (zt_record_cut(d->metrics_path, d->first_step, &last, &err)) {
        notice_unwritten(d, err.msg);
        return;
    }
    if (last < 0)
        last = d->restarts ? d->begun_step : d->first_step;
    if (last < d->first_step) {
        snprintf(text, sizeof text,
                 "metrics.jsonl lacks steps %" PRId64 " to %" PRId64
                 ": they were made, but word of them was lost on its way",
                 last + 1, d->first_step);
        display_notice(d, text);
    }
}

static void on_start(struct display *d, const json_t *o)
{
    const char *data = json_string_value(json_object_get(o, "data"));
    const char *device = json_string_value(json_object_get(o, "device"));
    const char *dtype = json_string_value(json_object_get(o, "peak_dtype"));
    const char *resumed = json_string_value(json_object_get(o, "resumed"));
    double peak = number(o, "peak_flops");
    clear_live_line(d);
    d->first_step = d->done_steps = integer(o, "first_step");
    if (!d->restarts)
        d->begun_step = d->first_step;
    d->started = true;
    d->steps = integer(o, "last_step");
    cut_record(d);
    if (resumed)
        zt_str_printf(&d->out.buf, "going on from %s, after step %" PRId64 "; read in %.2f s\n",
                      resumed, d->first_step, number(o, "load_ms") * 1e-3);
    if (device)
        zt_str_printf(&d->out.buf, "%s\n", device);
    if (data)
        zt_str_printf(&d->out.buf, "data: %s\n", data);
    if (peak > 0)
        zt_str_printf(&d->out.buf,
                      "mfu = %.3g FLOPs a token x tokens/s / %.1f GFLOP/s (measured %s matmul "
                      "rate)\n",
                      number(o, "flops_per_token"), peak * 1e-9, dtype ? dtype : "");
}

static void on_save(struct display *d, const json_t *o)
{
    const char *path = json_string_value(json_object_get(o, "path"));
    char gb[32];
    if (!path)
        return;
    clear_live_line(d);
    zt_str_printf(
        &d->out.buf,
        "saved %s: %s written in %.2f s, complete after %.2f s; training waited %.0f ms\n", path,
        zt_fmt_gb(gb, sizeof gb, number(o, "bytes")), number(o, "write_ms") * 1e-3,
        number(o, "total_ms") * 1e-3, number(o, "stall_ms"));
}

/* To the person, or to the file asked for. */
static void on_profile(struct display *d, const json_t *o)
{
    const char *text = json_string_value(json_object_get(o, "text"));
    struct zt_err err;
    if (!text)
        return;
    clear_live_line(d);
    if (!d->profile_path) {
        zt_str_printf(&d->out.buf, "\n%s\n", text);
    } else if (zt_write_file_atomic(d->profile_path, text, strlen(text), &err)) {
        zt_err_wrap(&err, "flops_profiler.output_file");
        notice_unwritten(d, err.msg);
    } else {
        zt_str_printf(&d->out.buf, "profile written to %s\n", d->profile_path);
    }
}

static void on_end(struct display *d, const json_t *o)
{
    const char *why = json_string_value(json_object_get(o, "stopped"));
    if (why)
        d->stopped = strcmp(why, "loss") == 0 ? "loss" : "asked";
}

void display_report(void *ctx, int rank, const char *json, size_t len)
{
    struct display *d = ctx;
    json_error_t why;
    json_t *o = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why);
    const char *kind = json_string_value(json_object_get(o, "type"));
    if (!kind) {
        char text[JSON_ERROR_TEXT_LENGTH + 64];
        snprintf(text, sizeof text, "rank %d: a report could not be read: %s", rank,
                 o ? "no type" : why.text);
        display_notice(d, text);
    } else if (strcmp(kind, "step") == 0) {
        on_step(d, json, len);
    } else if (strcmp(kind, "eval") == 0) {
        on_eval(d, o);
    } else if (strcmp(kind, "sample") == 0) {
        on_sample(d, o);
    } else if (strcmp(kind, "memory") == 0) {
        display_memory_add(d, rank, o);
    } else if (strcmp(kind, "start") == 0) {
        on_start(d, o);
    } else if (strcmp(kind, "save") == 0) {
        on_save(d, o);
    } else if (strcmp(kind, "notice") == 0) {
        on_notice(d, o);
    } else if (strcmp(kind, "times") == 0) {
        breakdowns_add(&d->breakdowns, rank, o);
    } else if (strcmp(kind, "profile") == 0) {
        on_profile(d, o);
    } else if (strcmp(kind, "end") == 0) {
        on_end(d, o);
    }
    json_decref(o);
}

/* ---- the end ---- */

static json_t *real_or_null(bool there, double x)
{
    return there && isfinite(x) ? json_real(x) : json_null();
}

static void write_summary(struct display *d, int exit_code)
{
    struct zt_err err;
    uint64_t digest;
    char hex[20];
    json_t *ranks = display_memory_json(d, &digest);
    snprintf(hex, sizeof hex, "%016" PRIx64, digest);
    json_t *o =
        json_pack("{s:i, s:i, s:s?, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                  "exit_code", exit_code, "restarts", d->restarts, "stopped", d->stopped, "steps",
                  (json_int_t)d->done_steps, "skipped", (json_int_t)d->skipped, "first_loss",
                  real_or_null(d->have_loss, d->first_loss), "last_loss",
                  real_or_null(d->have_loss, d->last_loss), "first_val_loss",
                  real_or_null(d->have_val, d->first_val), "last_val_loss",
                  real_or_null(d->have_val, d->last_val), "best_val_loss",
                  real_or_null(d->have_val, d->best_val), "best_val_step",
                  d->have_val ? json_integer(d->best_step) : json_null(), "tokens_per_s",
                  real_or_null(d->timed_s > 0, d->timed_tokens / d->timed_s), "digest",
                  d->n_memory == d->world ? json_string(hex) : json_null(), "memory", ranks);
    if (d->breakdowns.ranks)
        json_object_set(o, "breakdown_ms", d->breakdowns.ranks);
    char *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    if (!text)
        notice_unwritten(d, "summary.json: out of memory");
    else if (zt_write_file_atomic(d->summary_path, text, strlen(text), &err))
        notice_unwritten(d, err.msg);
    free(text);
}

static void print_outcome(struct display *d)
{
    struct zt_str *out = &d->out.buf;
    zt_str_printf(out, "\n%s%" PRId64 " step%s", d->stopped ? "stopped after " : "", d->done_steps,
                  d->done_steps == 1 ? "" : "s");
    if (d->stopped && strcmp(d->stopped, "loss") == 0)
        zt_str_puts(out, " at train.stop_at_loss");
    if (d->begun_step > 0) /* the numbers that follow are of these */
        zt_str_printf(out, ", %" PRId64 " of them in this run", d->done_steps - d->begun_step);
    if (d->have_loss)
        zt_str_printf(out, ": loss %.4f -> %.4f", d->first_loss, d->last_loss);
    if (d->have_val)
        zt_str_printf(out, "; validation loss %.4f -> %.4f", d->first_val, d->last_val);
    if (d->have_val)
        say_best(d, d->last_val);
    if (d->skipped)
        zt_str_printf(out, "; %" PRId64 " of %" PRId64 " updates applied",
                      d->done_steps - d->skipped, d->done_steps);
    if (d->timed_s > 0)
        zt_str_printf(out, "; %.0f tokens/s", d->timed_tokens / d->timed_s);
    if (d->restarts)
        zt_str_printf(out, "; %d restart%s", d->restarts, d->restarts == 1 ? "" : "s");
    zt_str_puts(out, "\n");
}

/* The last state of an attempt stays on the screen. */
static void end_live_line(struct display *d)
{
    if (d->stale)
        draw_live_line(d);
    if (d->line_open)
        zt_str_puts(&d->out.buf, "\n");
    d->line_open = false;
}

void display_settle(struct display *d)
{
    end_live_line(d);
    keep_pending(d);
    (void)display_flush(d);
}

void display_summary(struct display *d, int exit_code)
{
    end_live_line(d);
    keep_pending(d);
    if (d->have_loss || d->n_memory)
        print_outcome(d);
    breakdowns_print(&d->breakdowns, &d->out.buf);
    if (d->n_memory)
        display_memory_print(d);
    write_summary(d, exit_code ? exit_code : d->incomplete ? ZT_EXIT_FAILURE : ZT_EXIT_OK);
}

int display_finish(struct display *d, bool told)
{
    return rank_out_finish_both(&d->out, &d->err, told);
}
