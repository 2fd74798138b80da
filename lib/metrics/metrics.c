#include "metrics/metrics.h"

#include <jansson.h>
#include <math.h>

enum kind { INTEGER, NUMBER };

struct field {
    const char *key;
    enum kind kind;
    size_t offset;
};

#define INT(name)                                                                                  \
    {                                                                                              \
#name, INTEGER, offsetof(struct zt_metrics, name)                                          \
    }
#define NUM(name)                                                                                  \
    {                                                                                              \
#name, NUMBER, offsetof(struct zt_metrics, name)                                           \
    }

static const struct field fields[] = {
    INT(step),
    NUM(loss),
    NUM(lr),
    NUM(grad_norm),
    NUM(grad_norm_clipped),
    NUM(loss_scale),
    INT(skipped),
    INT(tokens),
    INT(targets),
    NUM(tokens_per_s),
    NUM(step_ms),
    NUM(mfu),
    INT(device_peak_bytes),
    INT(host_peak_bytes),
};

static int64_t *int_of(struct zt_metrics *m, const struct field *f)
{
    return (int64_t *)(void *)((char *)m + f->offset);
}

static double *number_of(struct zt_metrics *m, const struct field *f)
{
    return (double *)(void *)((char *)m + f->offset);
}

/* The shortest of the %g forms that reads back as the same number. */
static void add_number(struct zt_str *out, double x)
{
    char text[32];
    if (!isfinite(x)) {
        zt_str_puts(out, "null");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    zt_str_puts(out, text);
}

static const char *const part_names[ZT_N_PARTS] = {"forward", "backward", "update",
                                                   "reduce",  "gather",   "wait"};

const char *zt_part_name(enum zt_part p)
{
    return part_names[p];
}

void zt_breakdown_to_json(const struct zt_breakdown *b, struct zt_str *out)
{
    zt_str_puts(out, "{\"total\": ");
    add_number(out, b->total_ms);
    for (int p = 0; p < ZT_N_PARTS; p++) {
        zt_str_printf(out, ", \"%s\": ", part_names[p]);
        add_number(out, b->busy_ms[p]);
        if (!zt_part_is_beside(p))
            continue;
        zt_str_printf(out, ", \"%s_exposed\": ", part_names[p]);
        add_number(out, b->exposed_ms[p]);
    }
    zt_str_puts(out, "}");
}

void zt_metrics_to_json(const struct zt_metrics *m, struct zt_str *out)
{
    struct zt_metrics copy = *m;
    zt_str_puts(out, "{\"type\": \"step\"");
    for (size_t i = 0; i < ZT_ARRAY_LEN(fields); i++) {
        zt_str_printf(out, ", \"%s\": ", fields[i].key);
        if (fields[i].kind == INTEGER)
            zt_str_printf(out, "%lld", (long long)*int_of(&copy, &fields[i]));
        else
            add_number(out, *number_of(&copy, &fields[i]));
    }
    if (m->has_val) {
        zt_str_puts(out, ", \"val_loss\": ");
        add_number(out, m->val_loss);
    }
    if (m->has_breakdown) {
        zt_str_puts(out, ", \"breakdown_ms\": ");
        zt_breakdown_to_json(&m->breakdown, out);
    }
    zt_str_puts(out, "}");
}

static int read_number(const json_t *v, const char *key, double *out, struct zt_err *err)
{
    *out = json_is_number(v) ? json_number_value(v) : NAN;
    if (v && !json_is_number(v) && !json_is_null(v))
        return zt_err_set(err, ZT_EINPUT, "metrics: %s is neither a number nor null", key);
    return 0;
}

static int read_breakdown(const json_t *o, struct zt_breakdown *b, struct zt_err *err)
{
    int rc = read_number(json_object_get(o, "total"), "breakdown_ms.total", &b->total_ms, err);
    for (int p = 0; !rc && p < ZT_N_PARTS; p++) {
        char exposed[32];
        snprintf(exposed, sizeof exposed, "%s_exposed", part_names[p]);
        rc = read_number(json_object_get(o, part_names[p]), part_names[p], &b->busy_ms[p], err);
        b->exposed_ms[p] = b->busy_ms[p];
        if (!rc && zt_part_is_beside(p))
            rc = read_number(json_object_get(o, exposed), exposed, &b->exposed_ms[p], err);
    }
    return rc;
}

static int read_fields(const json_t *root, struct zt_metrics *m, struct zt_err *err)
{
    int rc = 0;
    if (!json_is_integer(json_object_get(root, "step")))
        return zt_err_set(err, ZT_EINPUT, "metrics: no step");
    for (size_t i = 0; !rc && i < ZT_ARRAY_LEN(fields); i++) {
        const char *key = fields[i].key;
        const json_t *v = json_object_get(root, key);
        if (fields[i].kind == NUMBER)
            rc = read_number(v, key, number_of(m, &fields[i]), err);
        else if (v && !json_is_integer(v))
            rc = zt_err_set(err, ZT_EINPUT, "metrics: %s is no integer", key);
        else
            *int_of(m, &fields[i]) = json_integer_value(v);
    }
    const json_t *val = json_object_get(root, "val_loss");
    const json_t *breakdown = json_object_get(root, "breakdown_ms");
    m->has_val = val != NULL;
    m->has_breakdown = breakdown != NULL;
    if (!rc)
        rc = read_number(val, "val_loss", &m->val_loss, err);
    if (!rc && breakdown)
        rc = read_breakdown(breakdown, &m->breakdown, err);
    return rc;
}

int zt_metrics_from_json(const char *json, size_t n, struct zt_metrics *m, struct zt_err *err)
{
    json_error_t je;
    memset(m, 0, sizeof *m);
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return zt_err_set(err, ZT_EINPUT, "metrics: column %d: %s", je.column, je.text);
    int rc = read_fields(root, m, err);
    json_decref(root);
    return rc;
}

/* "950", "12.3k", "1.25M" */
static const char *fmt_count(char *buf, size_t n, double x)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    size_t u = 0;
    for (; x >= 999.5 && u + 1 < ZT_ARRAY_LEN(units); u++)
        x /= 1000;
    snprintf(buf, n, x < 99.95 && u > 0 ? "%.1f%s" : "%.0f%s", x, units[u]);
    return buf;
}

/* "0:12", "1:02:03", "3d 04:05" */
static const char *fmt_time(char *buf, size_t n, double seconds)
{
    long long s = (long long)(seconds + 0.5);
    if (seconds >= 1000 * 86400.0)
        snprintf(buf, n, "%.0fd", seconds / 86400);
    else if (s >= 86400)
        snprintf(buf, n, "%lldd %02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60);
    else if (s >= 3600)
        snprintf(buf, n, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, n, "%lld:%02lld", s / 60, s % 60);
    return buf;
}

const char *zt_metrics_line(const struct zt_metrics *m, int64_t total_steps, char *buf,
                            size_t buf_bytes)
{
    struct zt_str s = {0};
    char part[32];
    double eta = (double)(total_steps - m->step) * m->step_ms * 1e-3;
    zt_str_printf(&s, "step %lld/%lld", (long long)m->step, (long long)total_steps);
    if (m->targets == 0 && isnan(m->loss))
        zt_str_puts(&s, " no targets");
    else
        zt_str_printf(&s, " loss %.4f", m->loss);
    if (m->has_val)
        zt_str_printf(&s, " val %.4f", m->val_loss);
    zt_str_printf(&s, " lr %.1e norm %.2f", m->lr, m->grad_norm);
    if (m->tokens_per_s > 0)
        zt_str_printf(&s, " %s tok/s", fmt_count(part, sizeof part, m->tokens_per_s));
    if (m->mfu > 0)
        zt_str_printf(&s, " mfu %.0f%%", m->mfu * 100);
    if (m->device_peak_bytes > 0)
        zt_str_printf(&s, " %s", zt_fmt_gb(part, sizeof part, (double)m->device_peak_bytes));
    if (m->loss_scale > 0 && m->loss_scale != 1)
        zt_str_printf(&s, " scale %.0f", m->loss_scale);
    if (m->skipped > 0)
        zt_str_printf(&s, " skipped %lld", (long long)m->skipped);
    if (m->step_ms > 0 && isfinite(eta) && eta >= 0)
        zt_str_printf(&s, " eta %s", fmt_time(part, sizeof part, eta));
    snprintf(buf, buf_bytes, "%s", zt_str_get(&s));
    zt_str_release(&s);
    return buf;
}

const char *zt_breakdown_line(const struct zt_breakdown *b, char *buf, size_t buf_bytes)
{
    struct zt_str s = {0};
    for (int p = 0; p < ZT_N_PARTS; p++) {
        zt_str_printf(&s, "%s%s %.1f", p ? ", " : "", part_names[p], b->exposed_ms[p]);
        if (zt_part_is_beside(p))
            zt_str_printf(&s, " of %.1f", b->busy_ms[p]);
    }
    snprintf(buf, buf_bytes, "%s ms", zt_str_get(&s));
    zt_str_release(&s);
    return buf;
}

double zt_mfu_step(struct zt_mfu *m, double flops, double s, bool *raised)
{
    const double enough_s = 1;
    *raised = false;
    if (m->peak <= 0)
        return NAN;
    m->flops += flops;
    m->s += s;
    if (m->s >= enough_s) {
        *raised = m->flops / m->s > m->peak;
        m->peak = ZT_MAX(m->peak, m->flops / m->s);
        m->flops = m->s = 0;
    }
    return ZT_MIN(flops / s / m->peak, 1.0);
}
