/*
 * display.h: what a person sees of a run, and what the run's folder keeps.
 *
 * The front end hands over what workers report (one JSON object each). On a terminal the step line is
 * rewritten in place; piped, a plain line every steps_per_print steps. Every step goes to
 * metrics.jsonl.
 */
#ifndef ZT_CMD_DISPLAY_H
#define ZT_CMD_DISPLAY_H

#include "base/err.h"
#include "launch/launch.h"
#include "metrics/metrics.h"
#include "plan/plan.h"
#include "rank_out.h"

struct zt_memory_report; /* one rank's */

struct display {
    struct rank_out out, err;
    bool tty;
    bool line_open; /* the cursor stands behind a live line */
    int64_t steps, steps_per_print;
    int world;
    const struct zt_plan *plan;
    FILE *metrics; /* metrics.jsonl; NULL after it failed */
    char *metrics_path, *summary_path;
    double first_loss, last_loss, first_val, last_val;
    bool have_loss, have_val;
    int64_t done_steps;
    double timed_s, timed_tokens; /* of steps whose time is known: no evaluation in between */
    struct zt_str last_sample;
    int n_memory;
    struct zt_memory_report *memory; /* (world) */
    struct zt_metrics pending;       /* the last step's, until an evaluation may have been added */
    bool has_pending;
};

int display_init(struct display *d, const char *log_dir, int world, int64_t steps,
                 int64_t steps_per_print, const struct zt_plan *plan,
                 struct zt_err *err) ZT_MUST_CHECK;
void display_release(struct display *d);

/* Callbacks of struct zt_launch_sink; ctx is the display. */
void display_line(void *ctx, int rank, enum zt_log_stream stream, const char *line, size_t len);
void display_report(void *ctx, int rank, const char *json, size_t len);
void display_notice(void *ctx, const char *text);
int display_flush(void *ctx);

/* After the job, to the person and to summary.json: loss before and after, speed, memory predicted beside measured. */
void display_summary(struct display *d, int exit_code);

#endif
