#include "metrics/record.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "base/arena.h"
#include "metrics/metrics.h"

/* ---- metrics.jsonl ---- */

void zt_record_begin(struct zt_record_reader *r, const char *path, struct zt_record_steps *steps)
{
    *r = (struct zt_record_reader){.path = path, .steps = steps, .line_no = 1};
    *steps = (struct zt_record_steps){
        .tokens_per_step = NAN,
        .last_loss = NAN,
        .best_loss = NAN,
        .best_val_loss = NAN,
        .mfu = NAN,
        .device_peak_bytes = -1,
        .host_peak_bytes = -1,
        .step_ms = {0, NAN, NAN, NAN},
    };
}

/* fmin, where a loss that is not known is NAN, which fmin leaves out. */
static void add_losses(struct zt_record_steps *s, const struct zt_metrics *m)
{
    if (isfinite(m->loss))
        s->last_loss = m->loss;
    s->best_loss = fmin(s->best_loss, m->loss);
    if (m->has_val)
        s->best_val_loss = fmin(s->best_val_loss, m->val_loss);
}

static int add_step(struct zt_record_steps *s, const struct zt_metrics *m, struct zt_err *err)
{
    if (m->step < 1 || m->tokens < 0)
        return zt_err_set(err, ZT_EINPUT, "step and tokens count what was done, from 1 and from 0");
    s->steps = m->step;
    s->tokens_per_step = (double)m->tokens / (double)m->step;
    add_losses(s, m);
    if (m->device_peak_bytes > 0)
        s->device_peak_bytes = m->device_peak_bytes;
    s->host_peak_bytes =
        ZT_MAX(s->host_peak_bytes, m->host_peak_bytes > 0 ? m->host_peak_bytes : -1);
    if (!isfinite(m->step_ms) || m->step_ms <= 0)
        return 0;
    if (s->n_timed == ZT_RECORD_MAX_STEPS)
        return zt_err_set(err, ZT_EINPUT, "more than %d steps", ZT_RECORD_MAX_STEPS);
    ZT_GROW(s->ms, s->n_timed + 1, s->cap_ms);
    ZT_GROW(s->mfus, s->n_timed + 1, s->cap_mfus);
    s->ms[s->n_timed] = m->step_ms;
    s->mfus[s->n_timed] = m->mfu;
    s->n_timed++;
    return 0;
}

static int add_line(struct zt_record_reader *r, struct zt_err *err)
{
    struct zt_metrics m;
    int rc = zt_metrics_from_json(zt_str_get(&r->line), r->line.len, &m, err);
    if (!rc)
        rc = add_step(r->steps, &m, err);
    zt_str_reset(&r->line);
    return rc ? zt_err_wrap(err, "%s:%lld", r->path, (long long)r->line_no) : 0;
}

int zt_record_feed(struct zt_record_reader *r, const char *bytes, size_t n, struct zt_err *err)
{
    while (n > 0) {
        const char *newline = memchr(bytes, '\n', n);
        size_t len = newline ? (size_t)(newline - bytes) : n;
        if (len > ZT_RECORD_MAX_LINE - r->line.len)
            return zt_err_set(err, ZT_EINPUT,
                              "%s:%lld: longer than %d bytes: not a line of metrics.jsonl", r->path,
                              (long long)r->line_no, ZT_RECORD_MAX_LINE);
        zt_str_add(&r->line, bytes, len);
        if (!newline)
            return 0;
        int rc = add_line(r, err);
        if (rc)
            return rc;
        r->line_no++;
        bytes += len + 1;
        n -= len + 1;
    }
    return 0;
}

static void spread_steps(struct zt_record_steps *s, int64_t warmup)
{
    size_t skip = warmup < 0 ? zt_warmup_steps(s->n_timed) : (size_t)warmup;
    size_t n = skip < s->n_timed ? s->n_timed - skip : 0, n_mfu = 0;
    struct zt_spread mfu;
    double *values = zt_xcalloc(n + 1, sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = s->ms[skip + i];
    zt_spread_of(values, n, &s->step_ms);
    for (size_t i = 0; i < n; i++)
        if (isfinite(s->mfus[skip + i]))
            values[n_mfu++] = s->mfus[skip + i];
    zt_spread_of(values, n_mfu, &mfu);
    s->mfu = mfu.median;
    free(values);
}

int zt_record_end(struct zt_record_reader *r, int64_t warmup, struct zt_err *err)
{
    /* Whoever writes it adds whole lines, but we may look while one is being written. */
    json_error_t why;
    json_t *whole = r->line.len ? json_loadb(r->line.buf, r->line.len, 0, &why) : NULL;
    int rc = whole ? add_line(r, err) : 0;
    json_decref(whole);
    if (!rc)
        spread_steps(r->steps, warmup);
    return rc;
}

void zt_record_reader_release(struct zt_record_reader *r)
{
    zt_str_release(&r->line);
}

void zt_record_steps_release(struct zt_record_steps *s)
{
    free(s->ms);
    free(s->mfus);
    s->ms = s->mfus = NULL;
}

int zt_record_read_steps(const char *path, int64_t warmup, struct zt_record_steps *steps,
                         struct zt_err *err)
{
    struct zt_record_reader r;
    char piece[16 << 10];
    ssize_t got = 0;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    zt_record_begin(&r, path, steps);
    if (fd < 0)
        return zt_err_errno(err, ZT_EINPUT, "%s", path);
    do {
        got = read(fd, piece, sizeof piece);
        if (got > 0)
            rc = zt_record_feed(&r, piece, (size_t)got, err);
        else if (got < 0 && errno != EINTR)
            rc = zt_err_errno(err, ZT_EIO, "%s", path);
    } while (!rc && got != 0);
    if (!rc)
        rc = zt_record_end(&r, warmup, err);
    zt_record_reader_release(&r);
    close(fd);
    return rc;
}

/* ---- summary.json, sweep.json ---- */

/* A JSON object and where it came from. */
struct source {
    const char *path, *text;
    size_t n;
    json_t *root;
};

static int parse_object(struct source *src, struct zt_err *err)
{
    json_error_t why;
    src->root = json_loadb(src->text, src->n, JSON_REJECT_DUPLICATES, &why);
    if (!src->root)
        return zt_err_set(err, ZT_EINPUT, "%s:%d:%d: %s", src->path, why.line, why.column,
                          why.text);
    if (json_is_object(src->root))
        return 0;
    json_decref(src->root);
    return zt_err_set(err, ZT_EINPUT, "%s:1: not an object", src->path);
}

/* jansson keeps no places: the line where the key is written first, or the first. */
static int line_of(const struct source *src, const char *key)
{
    char quoted[64];
    int line = 1, len = snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = memmem(src->text, src->n, quoted, (size_t)len);
    for (const char *c = src->text; at && c < at; c++)
        line += *c == '\n';
    return line;
}

static int bad_value(const struct source *src, const char *key, const char *what,
                     struct zt_err *err)
{
    return zt_err_set(err, ZT_EINPUT, "%s:%d: %s %s", src->path, line_of(src, key), key, what);
}

/* 0 to `most`, or with `may_be_null` -1 for null. */
static int read_int(const struct source *src, const char *key, int most, bool may_be_null, int *out,
                    struct zt_err *err)
{
    const json_t *v = json_object_get(src->root, key);
    char what[64];
    *out = -1;
    if (json_is_null(v) && may_be_null)
        return 0;
    snprintf(what, sizeof what, "is not a whole number from 0 to %d", most);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > most)
        return bad_value(src, key, what, err);
    *out = (int)json_integer_value(v);
    return 0;
}

/* The most of each measure over ranks; one that a rank does not say is left as it is. */
static int read_memory(const struct source *src, struct zt_record_summary *s, struct zt_err *err)
{
    const struct {
        const char *key;
        int64_t *most;
    } measures[] = {{"predicted_bytes", &s->predicted_bytes},
                    {"touched_bytes", &s->touched_bytes},
                    {"device_touched_bytes", &s->device_touched_bytes},
                    {"rss_peak_bytes", &s->rss_peak_bytes}};
    const json_t *rank;
    size_t i;
    json_array_foreach(json_object_get(src->root, "memory"), i, rank)
    {
        for (size_t k = 0; k < ZT_ARRAY_LEN(measures); k++) {
            const json_t *v = json_object_get(rank, measures[k].key);
            if (v && (!json_is_integer(v) || json_integer_value(v) < 0))
                return bad_value(src, measures[k].key, "of a rank is not a number of bytes", err);
            if (v)
                *measures[k].most = ZT_MAX(*measures[k].most, (int64_t)json_integer_value(v));
        }
    }
    return 0;
}

int zt_record_parse_summary(const char *path, const char *text, size_t n,
                            struct zt_record_summary *out, struct zt_err *err)
{
    struct source src = {path, text, n, NULL};
    *out = (struct zt_record_summary){.best_val_loss = NAN,
                                      .predicted_bytes = -1,
                                      .touched_bytes = -1,
                                      .device_touched_bytes = -1,
                                      .rss_peak_bytes = -1};
    int rc = parse_object(&src, err);
    if (rc)
        return rc;
    const char *stopped = json_string_value(json_object_get(src.root, "stopped"));
    const json_t *val = json_object_get(src.root, "best_val_loss");
    if (stopped)
        out->stopped = strcmp(stopped, "loss") == 0 ? ZT_RECORD_STOP_LOSS : ZT_RECORD_STOP_ASKED;
    if (json_is_number(val))
        out->best_val_loss = json_number_value(val);
    rc = read_int(&src, "exit_code", 255, false, &out->exit_code, err);
    if (!rc)
        rc = read_memory(&src, out, err);
    json_decref(src.root);
    return rc;
}

static int read_offload(const struct source *src, struct zt_record_sweep *s, struct zt_err *err)
{
    static const char *const known[] = {"none", "cpu", "nvme"};
    const char *offload = json_string_value(json_object_get(src->root, "offload"));
    for (size_t i = 0; offload && i < ZT_ARRAY_LEN(known); i++)
        if (strcmp(offload, known[i]) == 0)
            s->offload = known[i];
    return s->offload ? 0 : bad_value(src, "offload", "is not none, cpu or nvme", err);
}

int zt_record_parse_sweep(const char *path, const char *text, size_t n, struct zt_record_sweep *out,
                          struct zt_err *err)
{
    struct source src = {path, text, n, NULL};
    memset(out, 0, sizeof *out);
    int rc = parse_object(&src, err);
    if (rc)
        return rc;
    const char *message = json_string_value(json_object_get(src.root, "message"));
    rc = read_int(&src, "stage", 3, false, &out->stage, err);
    if (!rc)
        rc = read_int(&src, "exit_code", 255, true, &out->exit_code, err);
    if (!rc)
        rc = read_offload(&src, out, err);
    if (!rc && message && *message)
        out->message = zt_xstrdup(message);
    json_decref(src.root);
    return rc;
}

void zt_record_sweep_release(struct zt_record_sweep *s)
{
    free(s->message);
    s->message = NULL;
}
