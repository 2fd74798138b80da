#include "metrics/report.h"

#include <math.h>

#include "base/arena.h"

enum kind {
    TEXT,
    COUNT,
    BYTES,
    MILLISECONDS,
    RANGE, /* p10-p90: of two numbers, not in CSV */
    RATE,
    FRACTION,
    LOSS,
};

struct column {
    const char *key;   /* of CSV; NULL: not there */
    const char *title; /* of the others; NULL: not there. BYTES: the unit follows */
    enum kind kind;
    bool setting;
    size_t offset;
};

#define AT(field) offsetof(struct zt_report_row, field)

static const struct column columns[] = {
    {"run", "run", TEXT, false, AT(name)},
    {"model", "model", TEXT, true, AT(model)},
    {"parameters", "parameters", COUNT, true, AT(n_params)},
    {"ranks", "ranks", COUNT, true, AT(n_ranks)},
    {"stage", "stage", COUNT, true, AT(stage)},
    {"offload", "offload", TEXT, true, AT(offload)},
    {"precision", "precision", TEXT, true, AT(precision)},
    {"batch", "batch", COUNT, true, AT(batch)},
    {"micro_batch", "micro-batch", COUNT, true, AT(micro)},
    {"accumulation", "accumulation", COUNT, true, AT(accum)},
    {"seq_len", "sequence", COUNT, true, AT(seq_len)},
    {"steps", "steps", COUNT, false, AT(steps)},
    {"timed_steps", NULL, COUNT, false, AT(n_timed)},
    {"step_ms", "step ms", MILLISECONDS, false, AT(step_ms)},
    {"step_ms_p10", NULL, MILLISECONDS, false, AT(step_ms_p10)},
    {"step_ms_p90", NULL, MILLISECONDS, false, AT(step_ms_p90)},
    {NULL, "p10-p90", RANGE, false, AT(step_ms_p10)},
    {"tokens_per_s", "tokens/s", RATE, false, AT(tokens_per_s)},
    {"mfu", "MFU", FRACTION, false, AT(mfu)},
    {"device_peak_bytes", "device", BYTES, false, AT(device_peak_bytes)},
    {"host_peak_bytes", "host", BYTES, false, AT(host_peak_bytes)},
    {"predicted_bytes", "predicted", BYTES, false, AT(predicted_bytes)},
    {"touched_bytes", "touched", BYTES, false, AT(touched_bytes)},
    {"last_loss", "loss", LOSS, false, AT(last_loss)},
    {"best_loss", "best", LOSS, false, AT(best_loss)},
    {"best_val_loss", "best val", LOSS, false, AT(best_val_loss)},
    {"exit_code", NULL, COUNT, false, AT(exit_code)},
    {"result", "result", TEXT, false, AT(result)},
    {"message", NULL, TEXT, false, AT(message)},
};

enum { N_COLUMNS = ZT_ARRAY_LEN(columns) };

struct table {
    const struct zt_report_row *rows;
    size_t n;
    enum zt_report_format format;
    double byte_unit;
    const char *unit_name;
    bool shown[N_COLUMNS];
    bool shared[N_COLUMNS]; /* the same in all rows: in the line above */
    struct zt_str *cells;   /* (n, N_COLUMNS); empty: not known */
};

static const char *text_of(const struct zt_report_row *r, const struct column *c)
{
    return *(const char *const *)(const void *)((const char *)r + c->offset);
}

static int64_t int_of(const struct zt_report_row *r, const struct column *c)
{
    return *(const int64_t *)(const void *)((const char *)r + c->offset);
}

static double number_of(const struct zt_report_row *r, const struct column *c)
{
    return *(const double *)(const void *)((const char *)r + c->offset);
}

static bool is_known(const struct zt_report_row *r, const struct column *c)
{
    switch (c->kind) {
    case TEXT:
        return text_of(r, c) != NULL;
    case COUNT:
    case BYTES:
        return int_of(r, c) >= 0;
    default:
        return isfinite(number_of(r, c));
    }
}

void zt_report_clean(struct zt_str *out, const char *text)
{
    for (const char *s = text; *s;) {
        uint32_t c = 0;
        const size_t len = zt_utf8_char(s, 4, &c);
        const bool shown = c >= 0x20 && (c < 0x7f || c >= 0xa0) && (c & 0xfffe) != 0xfffe;
        if (shown)
            zt_str_add(out, s, len);
        else
            zt_str_puts(out, "?");
        s += shown ? len : 1;
    }
}

double zt_report_byte_unit(int64_t most, const char **name)
{
    bool giga = most >= 1000 * 1000 * 1000;
    *name = giga ? "GB" : "MB";
    return giga ? 1e9 : 1e6;
}

/* As many digits as a person compares; whole numbers from 1000. */
static void add_time(struct zt_str *out, double ms)
{
    zt_str_printf(out, "%.*f", ms < 10 ? 2 : ms < 1000 ? 1 : 0, ms);
}

static void add_number(struct zt_str *out, const struct table *t, const struct zt_report_row *r,
                       const struct column *c)
{
    double x = number_of(r, c);
    if (t->format == ZT_REPORT_CSV) {
        zt_str_printf(out, "%.9g", x);
    } else if (c->kind == RANGE) {
        add_time(out, r->step_ms_p10);
        zt_str_puts(out, "-");
        add_time(out, r->step_ms_p90);
    } else if (c->kind == MILLISECONDS) {
        add_time(out, x);
    } else if (c->kind == FRACTION) {
        zt_str_printf(out, "%.1f%%", x * 100);
    } else {
        zt_str_printf(out, c->kind == RATE ? "%.0f" : "%.4f", x);
    }
}

static void add_cell(struct zt_str *out, const struct table *t, const struct zt_report_row *r,
                     const struct column *c)
{
    if (!is_known(r, c))
        return;
    if (c->kind == TEXT)
        zt_report_clean(out, text_of(r, c));
    else if (c->kind == BYTES && t->format != ZT_REPORT_CSV)
        zt_str_printf(out, "%.2f", (double)int_of(r, c) / t->byte_unit);
    else if (c->kind == COUNT || c->kind == BYTES)
        zt_str_printf(out, "%lld", (long long)int_of(r, c));
    else
        add_number(out, t, r, c);
}

static struct zt_str *cell(const struct table *t, size_t row, size_t col)
{
    return &t->cells[row * N_COLUMNS + col];
}

/* The first row that knows this column; n: nobody does. */
static size_t first_known(const struct table *t, size_t col)
{
    size_t i = 0;
    while (i < t->n && !cell(t, i, col)->len)
        i++;
    return i;
}

static bool same_in_all(const struct table *t, size_t col)
{
    size_t first = first_known(t, col);
    for (size_t i = first; i < t->n; i++)
        if (cell(t, i, col)->len && strcmp(cell(t, i, col)->buf, cell(t, first, col)->buf) != 0)
            return false;
    return first < t->n;
}

/* Stages stand beside what they cost, even in a table of one. */
static void choose_columns(struct table *t)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        bool used = columns[c].title && first_known(t, c) < t->n;
        t->shared[c] =
            used && columns[c].setting && columns[c].offset != AT(stage) && same_in_all(t, c);
        t->shown[c] = used && !t->shared[c];
    }
}

static void fill(struct table *t)
{
    int64_t most = 0;
    for (size_t i = 0; i < t->n; i++)
        for (size_t c = 0; c < N_COLUMNS; c++)
            if (columns[c].kind == BYTES)
                most = ZT_MAX(most, int_of(&t->rows[i], &columns[c]));
    t->byte_unit = zt_report_byte_unit(most, &t->unit_name);
    t->cells = zt_xcalloc(t->n * N_COLUMNS + 1, sizeof *t->cells);
    for (size_t i = 0; i < t->n; i++)
        for (size_t c = 0; c < N_COLUMNS; c++)
            add_cell(cell(t, i, c), t, &t->rows[i], &columns[c]);
}

/* ---- CSV ---- */

static void add_csv(struct zt_str *out, const char *text)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        zt_str_puts(out, text);
        return;
    }
    zt_str_puts(out, "\"");
    for (; *text; text++)
        zt_str_printf(out, *text == '"' ? "\"%c" : "%c", *text);
    zt_str_puts(out, "\"");
}

static void print_csv(const struct table *t, struct zt_str *out)
{
    for (size_t c = 0, n = 0; c < N_COLUMNS; c++)
        if (columns[c].key)
            zt_str_printf(out, "%s%s", n++ ? "," : "", columns[c].key);
    zt_str_puts(out, "\n");
    for (size_t i = 0; i < t->n; i++) {
        for (size_t c = 0, n = 0; c < N_COLUMNS; c++) {
            if (!columns[c].key)
                continue;
            zt_str_puts(out, n++ ? "," : "");
            add_csv(out, zt_str_get(cell(t, i, c)));
        }
        zt_str_puts(out, "\n");
    }
}

/* ---- text and Markdown ---- */

static void print_shared(const struct table *t, struct zt_str *out)
{
    size_t n = 0;
    for (size_t c = 0; c < N_COLUMNS; c++)
        if (t->shared[c])
            zt_str_printf(out, "%s%s %s", n++ ? ", " : "", columns[c].title,
                          cell(t, first_known(t, c), c)->buf);
    zt_str_puts(out, n ? "\n\n" : "");
}

static void title_of(const struct table *t, size_t col, struct zt_str *out)
{
    zt_str_puts(out, columns[col].title);
    if (columns[col].kind == BYTES)
        zt_str_printf(out, " %s", t->unit_name);
}

static void add_markdown(struct zt_str *out, const char *text)
{
    for (; *text; text++)
        zt_str_printf(out, strchr("|\\`*_<>[]#&~", *text) ? "\\%c" : "%c", *text);
}

static void print_markdown(const struct table *t, struct zt_str *out)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        if (!t->shown[c])
            continue;
        zt_str_puts(out, "| ");
        title_of(t, c, out);
        zt_str_puts(out, " ");
    }
    zt_str_puts(out, "|\n");
    for (size_t c = 0; c < N_COLUMNS; c++)
        if (t->shown[c])
            zt_str_puts(out, columns[c].kind == TEXT ? "|---" : "|---:");
    zt_str_puts(out, "|\n");
    for (size_t i = 0; i < t->n; i++) {
        for (size_t c = 0; c < N_COLUMNS; c++) {
            const struct zt_str *s = cell(t, i, c);
            if (!t->shown[c])
                continue;
            zt_str_puts(out, "| ");
            add_markdown(out, s->len ? s->buf : "-");
            zt_str_puts(out, " ");
        }
        zt_str_puts(out, "|\n");
    }
}

/* Columns on a terminal: bytes that do not continue a character. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void add_padded(struct zt_str *out, const char *text, int width, bool right)
{
    int pad = width - width_of(text);
    zt_str_printf(out, "%*s%s%*s", right ? pad : 0, "", text, right ? 0 : pad, "");
}

static void end_line(struct zt_str *out)
{
    while (out->len && out->buf[out->len - 1] == ' ')
        out->buf[--out->len] = '\0';
    zt_str_puts(out, "\n");
}

static void print_text(const struct table *t, struct zt_str *out)
{
    struct zt_str title[N_COLUMNS] = {{0}};
    int width[N_COLUMNS] = {0};
    for (size_t c = 0; c < N_COLUMNS; c++) {
        if (!t->shown[c])
            continue;
        title_of(t, c, &title[c]);
        width[c] = width_of(title[c].buf);
        for (size_t i = 0; i < t->n; i++)
            width[c] = ZT_MAX(width[c], width_of(zt_str_get(cell(t, i, c))));
        add_padded(out, title[c].buf, width[c], columns[c].kind != TEXT);
        zt_str_puts(out, "  ");
        zt_str_release(&title[c]);
    }
    end_line(out);
    for (size_t i = 0; i < t->n; i++) {
        for (size_t c = 0; c < N_COLUMNS; c++) {
            const struct zt_str *s = cell(t, i, c);
            if (!t->shown[c])
                continue;
            add_padded(out, s->len ? s->buf : "-", width[c], columns[c].kind != TEXT);
            zt_str_puts(out, "  ");
        }
        end_line(out);
    }
}

static void print_messages(const struct table *t, struct zt_str *out)
{
    bool any = false;
    for (size_t i = 0; i < t->n; i++) {
        struct zt_str line = {0};
        if (!t->rows[i].message)
            continue;
        zt_str_puts(out, any ? "" : "\n");
        any = true;
        zt_report_clean(&line, t->rows[i].name);
        zt_str_puts(&line, ": ");
        zt_report_clean(&line, t->rows[i].message);
        if (t->format == ZT_REPORT_MARKDOWN) {
            zt_str_puts(out, "- ");
            add_markdown(out, line.buf);
        } else {
            zt_str_puts(out, line.buf);
        }
        zt_str_puts(out, "\n");
        zt_str_release(&line);
    }
}

void zt_report_table(const struct zt_report_row *rows, size_t n, enum zt_report_format format,
                     struct zt_str *out)
{
    struct table t = {.rows = rows, .n = n, .format = format};
    fill(&t);
    choose_columns(&t);
    if (format == ZT_REPORT_CSV) {
        print_csv(&t, out);
    } else {
        print_shared(&t, out);
        if (format == ZT_REPORT_TEXT)
            print_text(&t, out);
        else
            print_markdown(&t, out);
        print_messages(&t, out);
    }
    for (size_t i = 0; i < n * N_COLUMNS; i++)
        zt_str_release(&t.cells[i]);
    free(t.cells);
}
