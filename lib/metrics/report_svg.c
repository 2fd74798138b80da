#include "metrics/report.h"

#include <math.h>

/* Pixels. Bars stand in slots; a gap sets the groups of one kind of offload apart. */
enum {
    LEFT = 78,
    RIGHT = 20,
    TOP = 44,
    SLOT = 64,
    BAR = 38,
    GAP = 28,
    HEIGHT = 190, /* of the plotted area */
    PANEL_GAP = 44,
    MAX_NAME = 28, /* characters */
    N_COLORS = 4,
};

struct chart {
    const struct zt_report_row *rows;
    size_t n;
    bool by_stage; /* rows differ by stage and offload alone */
    int below;     /* height of what stands under an axis */
    int width;
    struct zt_str *out;
};

/* One of the two charts. */
struct panel {
    const char *title, *unit;
    double unit_size; /* of the values below, in which they are shown */
    bool times;       /* else bytes */
    int top;          /* of the plotted area */
    double step, most;
    int decimals; /* of the axis */
};

static double value_of(const struct panel *p, const struct zt_report_row *r)
{
    if (r->failed || (!p->times && r->device_peak_bytes < 0))
        return NAN;
    return (p->times ? r->step_ms : (double)r->device_peak_bytes) / p->unit_size;
}

static const char *offload_of(const struct zt_report_row *r)
{
    return r->offload ? r->offload : "none";
}

/* ---- text ---- */

static void add_text(struct zt_str *out, const char *text)
{
    struct zt_str clean = {0};
    zt_report_clean(&clean, text);
    for (const char *s = zt_str_get(&clean); *s; s++) {
        const char *entity = *s == '&'   ? "&amp;"
                             : *s == '<' ? "&lt;"
                             : *s == '>' ? "&gt;"
                             : *s == '"' ? "&quot;"
                                         : NULL;
        if (entity)
            zt_str_puts(out, entity);
        else
            zt_str_add(out, s, 1);
    }
    zt_str_release(&clean);
}

/* A name, cut at a character. */
static void add_name(struct zt_str *out, const char *name)
{
    struct zt_str clean = {0}, cut = {0};
    int n = 0;
    size_t at = 0;
    zt_report_clean(&clean, name);
    for (; at < clean.len; at++) {
        n += ((unsigned char)clean.buf[at] & 0xc0) != 0x80;
        if (n > MAX_NAME)
            break;
    }
    if (at) /* of nothing there is no buffer */
        zt_str_add(&cut, clean.buf, at);
    add_text(out, zt_str_get(&cut));
    zt_str_puts(out, at < clean.len ? "…" : "");
    zt_str_release(&clean);
    zt_str_release(&cut);
}

static void add_label(const struct chart *c, const struct zt_report_row *r)
{
    if (c->by_stage)
        zt_str_printf(c->out, "stage %lld", (long long)r->stage);
    else
        add_name(c->out, r->name ? r->name : "?");
}

/* Three digits, and whole numbers from 100. */
static void add_value(struct zt_str *out, double x)
{
    zt_str_printf(out, "%.*f", x < 10 ? 2 : x < 100 ? 1 : 0, x);
}

/* ---- places ---- */

static bool begins_group(const struct chart *c, size_t i)
{
    return i == 0 || strcmp(offload_of(&c->rows[i]), offload_of(&c->rows[i - 1])) != 0;
}

/* The middle of a row's slot. */
static int x_of(const struct chart *c, size_t row)
{
    int x = LEFT + SLOT / 2;
    for (size_t i = 1; i <= row; i++)
        x += SLOT + (begins_group(c, i) ? GAP : 0);
    return x;
}

static double y_of(const struct panel *p, double value)
{
    return p->top + HEIGHT * (1 - value / p->most);
}

/* Ticks at 1, 2 or 5 times a power of ten, at most five, and room above the largest value. */
static void scale(const struct chart *c, struct panel *p)
{
    double most = 0;
    for (size_t i = 0; i < c->n; i++) {
        most = fmax(most, value_of(p, &c->rows[i])); /* fmax leaves NAN out */
        if (p->times && !c->rows[i].failed)
            most = fmax(most, c->rows[i].step_ms_p90 / p->unit_size);
    }
    most = fmin(fmax(most * 1.1, 1e-9), 1e15); /* what strangers' files say stays drawable */
    double power = pow(10, floor(log10(most / 5)));
    p->step = power;
    for (int i = 1; p->step * 5 < most; i++)
        p->step = power * (i % 3 == 1 ? 2 : i % 3 == 2 ? 5 : 10);
    p->most = p->step * ceil(most / p->step);
    p->decimals = p->step < 1 ? ZT_MIN((int)ceil(-log10(p->step) - 1e-9), 12) : 0;
}

static bool same_place(const struct zt_report_row *a, const struct zt_report_row *b)
{
    return a->stage == b->stage && strcmp(offload_of(a), offload_of(b)) == 0;
}

static bool differ_by_stage(const struct chart *c)
{
    for (size_t i = 0; i < c->n; i++) {
        if (c->rows[i].stage < 0)
            return false;
        for (size_t k = 0; k < i; k++)
            if (same_place(&c->rows[i], &c->rows[k]))
                return false;
    }
    return true;
}

/* ---- drawing ---- */

/* Colors twice, without CSS variables: not every program that shows an SVG knows those, or @media. */
static const char style[] =
    "<style>\n"
    "text { fill: #1f2328; font: 12px sans-serif; }\n"
    ".page { fill: #ffffff; }\n"
    ".grid { stroke: #d5d9de; }\n"
    ".axis, .spread { stroke: #1f2328; fill: none; }\n"
    ".head { font-weight: bold; font-size: 14px; }\n"
    ".middle { text-anchor: middle; }\n"
    ".end { text-anchor: end; }\n"
    ".c0 { fill: #5b95d6; } .c1 { fill: #d98a3d; } .c2 { fill: #6aa653; } .c3 { fill: #a27bc2; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e3e6ea; }\n"
    ".page { fill: #16191d; }\n"
    ".grid { stroke: #3a4048; }\n"
    ".axis, .spread { stroke: #e3e6ea; }\n"
    "}\n"
    "</style>\n";

static void draw_head(const struct chart *c, int height)
{
    zt_str_printf(c->out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"%d\" "
                  "height=\"%d\" viewBox=\"0 0 %d %d\">\n"
                  "<title>Peak memory and step time of each run</title>\n",
                  c->width, height, c->width, height);
    zt_str_puts(c->out, style);
    zt_str_printf(c->out, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", c->width, height);
}

static void draw_axis(const struct chart *c, const struct panel *p)
{
    int right = c->width - RIGHT, bottom = p->top + HEIGHT;
    zt_str_printf(c->out, "<text class=\"head\" x=\"%d\" y=\"%d\">%s</text>\n", LEFT, p->top - 18,
                  p->title);
    zt_str_printf(
        c->out,
        "<text class=\"middle\" transform=\"translate(18 %d) rotate(-90)\">%s (%s)</text>\n",
        p->top + HEIGHT / 2, p->times ? "step time" : "memory", p->unit);
    for (int i = 0; i * p->step <= p->most * (1 + 1e-9); i++) {
        double y = y_of(p, i * p->step);
        if (i)
            zt_str_printf(c->out,
                          "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                          LEFT, right, y, y);
        zt_str_printf(c->out, "<text class=\"end\" x=\"%d\" y=\"%.1f\">%.*f</text>\n", LEFT - 8,
                      y + 4, p->decimals, i * p->step);
    }
    zt_str_printf(c->out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, p->top, bottom,
                  right);
}

/* From p10 to p90. */
static void draw_spread(const struct chart *c, const struct panel *p, size_t row)
{
    const struct zt_report_row *r = &c->rows[row];
    int x = x_of(c, row);
    if (!p->times || !isfinite(r->step_ms_p10) || !isfinite(r->step_ms_p90))
        return;
    double low = y_of(p, r->step_ms_p10 / p->unit_size);
    double high = y_of(p, r->step_ms_p90 / p->unit_size);
    zt_str_printf(c->out, "<path class=\"spread\" d=\"M%d %.1fh8M%d %.1fV%.1fM%d %.1fh8\"/>\n",
                  x - 4, low, x, low, high, x - 4, high);
}

static void draw_bar(const struct chart *c, const struct panel *p, size_t row, int color)
{
    const struct zt_report_row *r = &c->rows[row];
    double value = value_of(p, r);
    int x = x_of(c, row), bottom = p->top + HEIGHT;
    if (!isfinite(value)) {
        zt_str_printf(c->out, "<text transform=\"translate(%d %d) rotate(-90)\">", x + 4,
                      bottom - 8);
        add_name(c->out, r->result ? r->result : "not known");
        zt_str_puts(c->out, "</text>\n");
        return;
    }
    double y = y_of(p, value), above = y;
    if (p->times && isfinite(r->step_ms_p90))
        above = fmin(y, y_of(p, r->step_ms_p90 / p->unit_size));
    zt_str_printf(c->out,
                  "<rect class=\"c%d\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"><title>",
                  color, x - BAR / 2, y, BAR, bottom - y);
    add_text(c->out, r->name ? r->name : "?");
    zt_str_puts(c->out, ": ");
    add_value(c->out, value);
    zt_str_printf(c->out, " %s</title></rect>\n<text class=\"middle\" x=\"%d\" y=\"%.1f\">",
                  p->unit, x, above - 5);
    add_value(c->out, value);
    zt_str_puts(c->out, "</text>\n");
    draw_spread(c, p, row);
}

static void draw_label(const struct chart *c, const struct panel *p, size_t row)
{
    int x = x_of(c, row), y = p->top + HEIGHT + 18;
    if (c->by_stage)
        zt_str_printf(c->out, "<text class=\"middle\" x=\"%d\" y=\"%d\">", x, y);
    else
        zt_str_printf(c->out, "<text class=\"end\" transform=\"translate(%d %d) rotate(-35)\">",
                      x + 4, y);
    add_label(c, &c->rows[row]);
    zt_str_puts(c->out, "</text>\n");
}

static void draw_group_label(const struct chart *c, const struct panel *p, size_t first,
                             size_t last)
{
    const char *offload = offload_of(&c->rows[first]);
    zt_str_printf(c->out, "<text class=\"middle\" x=\"%d\" y=\"%d\">",
                  (x_of(c, first) + x_of(c, last)) / 2, p->top + HEIGHT + c->below - 4);
    zt_str_puts(c->out, strcmp(offload, "none") == 0 ? "no offload" : "offload: ");
    if (strcmp(offload, "none") != 0)
        add_name(c->out, offload);
    zt_str_puts(c->out, "</text>\n");
}

static void draw_panel(const struct chart *c, const struct panel *p)
{
    size_t first = 0;
    int color = -1;
    draw_axis(c, p);
    for (size_t i = 0; i < c->n; i++) {
        if (begins_group(c, i)) {
            first = i;
            color = (color + 1) % N_COLORS;
        }
        draw_bar(c, p, i, color);
        draw_label(c, p, i);
        if (i + 1 == c->n || begins_group(c, i + 1))
            draw_group_label(c, p, first, i);
    }
}

void zt_report_svg(const struct zt_report_row *rows, size_t n, struct zt_str *out)
{
    struct chart c = {.rows = rows, .n = n, .out = out};
    struct panel memory = {.title = "Peak memory of the fullest device", .top = TOP};
    struct panel time = {
        .title = "Time of a step: median, p10 to p90", .unit = "ms", .times = true};
    double most_ms = 0;
    int64_t most_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        most_bytes = ZT_MAX(most_bytes, rows[i].device_peak_bytes);
        most_ms = fmax(most_ms, rows[i].step_ms);
    }
    c.by_stage = differ_by_stage(&c);
    c.below = c.by_stage ? 42 : 150;
    c.width = ZT_MAX(x_of(&c, n ? n - 1 : 0) + SLOT / 2 + RIGHT, 400);
    memory.unit_size = zt_report_byte_unit(most_bytes, &memory.unit);
    time.unit_size = 1;
    if (most_ms >= 1e4) {
        time.unit = "s";
        time.unit_size = 1e3;
    }
    time.top = TOP + HEIGHT + c.below + PANEL_GAP;
    scale(&c, &memory);
    scale(&c, &time);
    draw_head(&c, time.top + HEIGHT + c.below + 10);
    draw_panel(&c, &memory);
    draw_panel(&c, &time);
    zt_str_puts(out, "</svg>\n");
}
