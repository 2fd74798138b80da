#include "doctor.h"

#include <limits.h>
#include <unistd.h>

enum { NAME_COLUMNS = 13, TERMINAL_WIDTH = 100, MATRIX_HOSTS = 12 };

static const char *field(const json_t *check, const char *name)
{
    return json_string_value(json_object_get(check, name));
}

/* Words, at a margin, in lines of `width` columns; the first begins where we are. */
static void put_wrapped(const char *text, int margin, int width, struct zt_str *out)
{
    int column = margin;
    while (*text) {
        const int n = (int)strcspn(text, " \n");
        if (column > margin && column + 1 + n > width) {
            zt_str_printf(out, "\n%*s", margin, "");
            column = margin;
        } else if (column > margin) {
            zt_str_puts(out, " ");
            column++;
        }
        zt_str_add(out, text, (size_t)n);
        column += n;
        text += n;
        const bool line_ends = *text == '\n';
        text += strspn(text, " \n");
        if (line_ends && *text) {
            zt_str_printf(out, "\n%*s", margin, "");
            column = margin;
        }
    }
    zt_str_puts(out, "\n");
}

static void put_checks(const json_t *checks, int width, struct zt_str *out)
{
    const int margin = 2 + 6 + NAME_COLUMNS + 1;
    const json_t *c;
    size_t i;
    json_array_foreach(checks, i, c)
    {
        zt_str_printf(out, "  %-5s %-*s ", doctor_verdict_names[doctor_verdict_of(c)], NAME_COLUMNS,
                      field(c, "check"));
        put_wrapped(field(c, "text"), margin, width, out);
        const char *todo = field(c, "todo");
        if (todo) {
            zt_str_printf(out, "%*s-> ", margin, "");
            put_wrapped(todo, margin + 3, width, out);
        }
    }
}

static void put_count(int n, const char *what, struct zt_str *out)
{
    if (n)
        zt_str_printf(out, "%s%d %s%s", out->len && out->buf[out->len - 1] == ' ' ? "" : ", ", n,
                      what, n == 1 ? "" : "s");
}

static void put_counts(const int *count, struct zt_str *out)
{
    if (!count[DOCTOR_FAIL] && !count[DOCTOR_WARN])
        zt_str_puts(out, "all is well");
    put_count(count[DOCTOR_FAIL], "failure", out);
    put_count(count[DOCTOR_WARN], "warning", out);
    zt_str_puts(out, "\n");
}

static const json_t *pair_of(const struct doctor *d, const char *from, const char *to)
{
    const json_t *pair;
    size_t i;
    json_array_foreach(d->pairs, i, pair) if (strcmp(field(pair, "from"), from) == 0 &&
                                              strcmp(field(pair, "to"), to) == 0) return pair;
    return NULL;
}

/* From the host of the line to that of the column. */
static void put_matrix(const struct doctor *d, struct zt_str *out)
{
    zt_str_printf(out, "\n  %-16s", "MB/s from, to:");
    for (int i = 0; i < d->n_hosts; i++)
        zt_str_printf(out, " %11.11s", d->hosts[i].name);
    zt_str_puts(out, "\n");
    for (int i = 0; i < d->n_hosts; i++) {
        zt_str_printf(out, "  %-16.16s", d->hosts[i].name);
        for (int k = 0; k < d->n_hosts; k++) {
            const json_t *pair = pair_of(d, d->hosts[i].name, d->hosts[k].name);
            if (pair)
                zt_str_printf(out, " %11.0f",
                              json_real_value(json_object_get(pair, "bytes_per_s")) * 1e-6);
            else
                zt_str_printf(out, " %11s", i == k ? "" : "-");
        }
        zt_str_puts(out, "\n");
    }
}

void doctor_print_text(const struct doctor *d, struct zt_str *out)
{
    const int width = isatty(STDOUT_FILENO) ? TERMINAL_WIDTH : INT_MAX; /* for grep */
    for (int i = 0; i < d->n_hosts; i++) {
        const struct doctor_host *h = &d->hosts[i];
        zt_str_printf(out, "%s%s", i ? "\n" : "", h->name);
        if (h->n_slots)
            zt_str_printf(out, ", %d slot%s", h->n_slots, h->n_slots == 1 ? "" : "s");
        zt_str_puts(out, ": ");
        put_counts(h->count, out);
        put_checks(h->checks, width, out);
    }
    if (json_array_size(d->between)) {
        zt_str_puts(out, "\nbetween hosts:\n");
        put_checks(d->between, width, out);
    }
    if (json_array_size(d->pairs) && d->n_hosts <= MATRIX_HOSTS)
        put_matrix(d, out);
    zt_str_printf(out, "\n%s: ", d->count[DOCTOR_FAIL] ? "not ready" : "ready");
    put_counts(d->count, out);
}

void doctor_print_json(const struct doctor *d, struct zt_str *out)
{
    json_t *hosts = json_array();
    for (int i = 0; i < d->n_hosts; i++) {
        const struct doctor_host *h = &d->hosts[i];
        json_array_append_new(
            hosts,
            json_pack("{s:s, s:o, s:o, s:o, s:O}", "host", h->name, "slots",
                      h->n_slots ? json_integer(h->n_slots) : json_null(), "clock_ahead_s",
                      h->round_trip_ns ? json_real((double)h->ahead_ns * 1e-9) : json_null(),
                      "clock_round_trip_s",
                      h->round_trip_ns ? json_real((double)h->round_trip_ns * 1e-9) : json_null(),
                      "checks", h->checks));
    }
    json_t *root = json_pack("{s:i, s:b, s:i, s:i, s:o, s:O, s:O}", "version", 1, "ready",
                             d->count[DOCTOR_FAIL] == 0, "failures", d->count[DOCTOR_FAIL],
                             "warnings", d->count[DOCTOR_WARN], "hosts", hosts, "between_hosts",
                             d->between, "pairs", d->pairs);
    char *text = json_dumps(root, JSON_INDENT(1));
    if (text)
        zt_str_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
}
