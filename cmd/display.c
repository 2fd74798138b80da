#include "display.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <unistd.h>

#include "base/io.h"
#include "cmd.h"

struct zt_memory_report {
    bool there;
    double predicted, touched, outside, rss_peak, pss;
    uint64_t digest;
};

int display_init(struct display *d, const char *log_dir, int world, int64_t steps,
                 int64_t steps_per_print, const struct zt_plan *plan, struct zt_err *err)
{
    struct zt_str path = {0}, summary = {0};
    memset(d, 0, sizeof *d);
    d->out.fd = STDOUT_FILENO;
    d->err.fd = STDERR_FILENO;
    const char *term = getenv("TERM");
    d->tty = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    d->steps = steps;
    d->steps_per_print = ZT_MAX(steps_per_print, (int64_t)1);
    d->world = world;
    d->plan = plan;
    zt_str_printf(&path, "%s/metrics.jsonl", log_dir);
    zt_str_printf(&summary, "%s/summary.json", log_dir);
    d->metrics_path = path.buf;
    d->summary_path = summary.buf;
    d->metrics = fopen(path.buf, "we");
    if (!d->metrics)
        return zt_err_errno(err, ZT_EIO, "%s", path.buf);
    d->memory = zt_xcalloc((size_t)world, sizeof *d->memory);
    return 0;
}

void display_release(struct display *d)
{
    if (d->metrics)
        fclose(d->metrics);
    free(d->metrics_path);
    free(d->summary_path);
    free(d->memory);
    zt_str_release(&d->last_sample);
}

/* Nothing here may block: the launcher's loop calls, and writes later (display_flush). */
static void say(struct display *d, const char *fmt, ...) ZT_PRINTF(2, 3);

static void say(struct display *d, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    zt_str_add(&d->out.buf, text, ZT_MIN((size_t)ZT_MAX(n, 0), sizeof text - 1));
}

int display_flush(void *ctx)
{
    struct display *d = ctx;
    int fd = rank_out_flush(&d->out);
    return fd >= 0 ? fd : rank_out_flush(&d->err);
}

static void close_live_line(struct display *d)
{
    if (d->line_open)
        say(d, "\r\033[K");
    d->line_open = false;
}

void display_line(void *ctx, int rank, enum zt_log_stream stream, const char *line, size_t len)
{
    struct display *d = ctx;
    close_live_line(d);
    rank_out_line(stream == ZT_LOG_STDOUT ? &d->out : &d->err, rank, line, len);
}

void display_notice(void *ctx, const char *text)
{
    struct display *d = ctx;
    close_live_line(d);
    zt_str_printf(&d->err.buf, "zerotrain: %s\n", text);
}

/* A full disk must not end the training; it is said once. */
static void keep(struct display *d, const struct zt_metrics *m)
{
    struct zt_str line = {0};
    if (!d->metrics)
        return;
    zt_metrics_to_json(m, &line);
    zt_str_puts(&line, "\n");
    if (fwrite(line.buf, 1, line.len, d->metrics) != line.len || fflush(d->metrics)) {
        char why[512];
        snprintf(why, sizeof why, "%s: %s; training goes on, later steps are not recorded",
                 d->metrics_path, strerror(errno));
        fclose(d->metrics);
        d->metrics = NULL;
        display_notice(d, why);
    }
    zt_str_release(&line);
}

static void keep_pending(struct display *d)
{
    if (d->has_pending)
        keep(d, &d->pending);
    d->has_pending = false;
}

static void on_step(struct display *d, const char *json, size_t len)
{
    struct zt_metrics m;
    struct zt_err err;
    char line[256];
    if (zt_metrics_from_json(json, len, &m, &err)) {
        display_notice(d, err.msg);
        return;
    }
    keep_pending(d);
    d->pending = m;
    d->has_pending = true;
    if (!d->have_loss)
        d->first_loss = m.loss;
    d->have_loss = true;
    d->last_loss = m.loss;
    d->done_steps = m.step;
    if (m.step_ms > 0) {
        d->timed_s += m.step_ms * 1e-3;
        d->timed_tokens += m.tokens_per_s * m.step_ms * 1e-3;
    }
    zt_metrics_line(&m, d->steps, line, sizeof line);
    if (d->tty) {
        say(d, "\r\033[K%s", line);
        d->line_open = true;
    } else if (m.step % d->steps_per_print == 0 || m.step == 1 || m.step == d->steps) {
        say(d, "%s\n", line);
    }
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void on_eval(struct display *d, const json_t *o)
{
    double loss = number(o, "val_loss");
    int64_t step = (int64_t)number(o, "step");
    close_live_line(d);
    say(d, "eval  step %lld: validation loss %.4f, perplexity %.2f (%lld tokens)\n",
        (long long)step, loss, exp(loss), (long long)number(o, "tokens"));
    if (!d->have_val)
        d->first_val = loss;
    d->have_val = true;
    d->last_val = loss;
    if (d->has_pending && d->pending.step == step) {
        d->pending.has_val = true;
        d->pending.val_loss = loss;
    }
}

static void on_sample(struct display *d, const json_t *o)
{
    const json_t *text = json_object_get(o, "text");
    if (!json_is_string(text))
        return;
    close_live_line(d);
    zt_str_reset(&d->last_sample);
    zt_str_add(&d->last_sample, json_string_value(text), json_string_length(text));
    say(d, "sample after step %lld:\n", (long long)number(o, "step"));
    const char *line = zt_str_get(&d->last_sample);
    while (*line) {
        size_t n = strcspn(line, "\n");
        say(d, "  | %.*s\n", (int)n, line);
        line += n + (line[n] != '\0');
    }
}

static double sum_arenas(const json_t *o, bool device)
{
    if (!device)
        return number(o, "host");
    return number(o, "device") + number(o, "shared");
}

static void on_memory(struct display *d, int rank, const json_t *o)
{
    if (rank < 0 || rank >= d->world)
        return;
    const json_t *predicted = json_object_get(o, "predicted");
    const json_t *touched = json_object_get(o, "touched");
    const char *digest = json_string_value(json_object_get(o, "digest"));
    d->memory[rank] = (struct zt_memory_report){
        .there = true,
        .predicted = sum_arenas(predicted, true) + sum_arenas(predicted, false),
        .touched = sum_arenas(touched, true) + sum_arenas(touched, false),
        .outside = number(o, "outside_bytes"),
        .rss_peak = number(o, "rss_peak_bytes"),
        .pss = number(o, "pss_bytes"),
        .digest = digest ? strtoull(digest, NULL, 16) : 0,
    };
    d->n_memory++;
}

static void on_start(struct display *d, const json_t *o)
{
    const json_t *data = json_object_get(o, "data"), *device = json_object_get(o, "device");
    close_live_line(d);
    if (json_is_string(device))
        say(d, "%s\n", json_string_value(device));
    if (json_is_string(data))
        say(d, "data: %s\n", json_string_value(data));
    double peak = number(o, "peak_flops");
    if (peak > 0)
        say(d, "mfu = %.3g FLOPs a token x tokens/s / %.1f GFLOP/s (measured fp32 matmul rate)\n",
            number(o, "flops_per_token"), peak * 1e-9);
}

void display_report(void *ctx, int rank, const char *json, size_t len)
{
    struct display *d = ctx;
    json_t *o = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *type = json_object_get(o, "type");
    const char *kind = json_is_string(type) ? json_string_value(type) : "";
    if (strcmp(kind, "step") == 0)
        on_step(d, json, len);
    else if (strcmp(kind, "eval") == 0)
        on_eval(d, o);
    else if (strcmp(kind, "sample") == 0)
        on_sample(d, o);
    else if (strcmp(kind, "memory") == 0)
        on_memory(d, rank, o);
    else if (strcmp(kind, "start") == 0)
        on_start(d, o);
    json_decref(o);
}

static void print_memory(struct display *d)
{
    say(d, "\nmemory, MB per rank: predicted by the plan beside measured"
           "\n");
    say(d, "  rank   predicted     touched   outside our arenas   process peak (RSS)"
           "\n");
    for (int r = 0; r < d->world; r++) {
        const struct zt_memory_report *m = &d->memory[r];
        if (m->there)
            say(d, "  %4d  %10.1f  %10.1f  %19.1f  %19.1f\n", r, m->predicted / 1e6,
                m->touched / 1e6, m->outside / 1e6, m->rss_peak / 1e6);
    }
    say(d, "  touched: bytes of the arenas that hold anything but the canary; outside: program,\n"
           "  libraries and mapped data before the arenas; RSS counts peers' arenas that are "
           "mapped.\n");
}

static json_t *real_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* summary.json: how the run ended, for programs. */
static void write_summary(struct display *d, int exit_code)
{
    struct zt_err err;
    uint64_t digest = 0;
    char hex[20];
    json_t *ranks = json_array();
    for (int r = 0; r < d->world; r++) {
        const struct zt_memory_report *m = &d->memory[r];
        digest ^= m->digest;
        if (m->there)
            json_array_append_new(
                ranks, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "rank", r, "predicted_bytes",
                                 m->predicted, "touched_bytes", m->touched, "outside_bytes",
                                 m->outside, "rss_peak_bytes", m->rss_peak, "pss_bytes", m->pss));
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)digest);
    json_t *o = json_pack("{s:i, s:I, s:o, s:o, s:o, s:o, s:s, s:o}", "exit_code", exit_code,
                          "steps", (json_int_t)d->done_steps, "first_loss",
                          d->have_loss ? real_or_null(d->first_loss) : json_null(), "last_loss",
                          d->have_loss ? real_or_null(d->last_loss) : json_null(), "first_val_loss",
                          d->have_val ? real_or_null(d->first_val) : json_null(), "last_val_loss",
                          d->have_val ? real_or_null(d->last_val) : json_null(), "digest", hex,
                          "memory", ranks);
    char *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    if (!text || zt_write_file_atomic(d->summary_path, text, strlen(text), &err))
        zt_str_printf(&d->err.buf, "zerotrain: %s\n",
                      text ? err.msg : "summary.json: out of memory");
    free(text);
}

void display_summary(struct display *d, int exit_code)
{
    close_live_line(d);
    keep_pending(d);
    if (d->have_loss)
        say(d, "\n%lld steps: loss %.4f -> %.4f", (long long)d->done_steps, d->first_loss,
            d->last_loss);
    if (d->have_val)
        say(d, "; validation loss %.4f -> %.4f", d->first_val, d->last_val);
    if (d->timed_s > 0)
        say(d, "; %.0f tokens/s", d->timed_tokens / d->timed_s);
    if (d->have_loss)
        say(d, ""
               "\n");
    if (d->n_memory)
        print_memory(d);
    write_summary(d, exit_code);
    rank_out_finish(&d->out);
    rank_out_finish(&d->err);
}
