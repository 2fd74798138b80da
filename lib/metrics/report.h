/*
 * report.h: runs side by side, as a table and as a chart. Pure functions that append to a string;
 * names and messages may hold any bytes: what is not printable UTF-8 becomes '?'.
 */
#ifndef ZT_METRICS_REPORT_H
#define ZT_METRICS_REPORT_H

#include "base/str.h"

/* One run. What is not known: NULL, -1, or NAN. */
struct zt_report_row {
    const char *name;
    /* settings */
    const char *model, *offload, *precision;
    int64_t n_params, n_ranks, stage, batch, micro, accum, seq_len;
    /* what came of it; times are of steps after warm-up */
    int64_t steps, n_timed;
    double step_ms, step_ms_p10, step_ms_p90;
    double tokens_per_s, mfu; /* at the median step; mfu 0 to 1 */
    int64_t device_peak_bytes, host_peak_bytes, predicted_bytes, touched_bytes;
    double last_loss, best_loss, best_val_loss;
    int64_t exit_code;
    bool failed;         /* its numbers do not compare: no bars */
    const char *result;  /* "ok", "out of memory" */
    const char *message; /* why, if it failed */
};

enum zt_report_format { ZT_REPORT_TEXT, ZT_REPORT_MARKDOWN, ZT_REPORT_CSV };

/*
 * Text and Markdown: settings that all rows share (as far as they know them) are one line above the
 * table, columns that nobody knows are left out, messages follow below. CSV (RFC 4180): every column,
 * in bytes, milliseconds and parts of one; what is not known is empty.
 */
void zt_report_table(const struct zt_report_row *rows, size_t n, enum zt_report_format format,
                     struct zt_str *out);

/*
 * An SVG of two bar charts, peak memory of the fullest device and median step time with p10-p90: a bar
 * for each row, named by stage where rows differ by stage and offload alone, else by the run's name.
 * A row without a number, or that failed, shows its result instead. Needs nothing else and suits light and dark pages.
 */
void zt_report_svg(const struct zt_report_row *rows, size_t n, struct zt_str *out);

/* What both share: the text less what is not printable; and the unit of the largest of some bytes. */
void zt_report_clean(struct zt_str *out, const char *text);
double zt_report_byte_unit(int64_t most, const char **name);

#endif
