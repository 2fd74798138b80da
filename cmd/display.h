/*
 * display.h: what a person sees of a run, and what the run's folder keeps.
 *
 * The front end hands over what workers report (one JSON object each). On a terminal one step
 * line is rewritten in place, cut to the terminal's width; piped, a plain line every
 * steps_per_print steps. Every step goes to metrics.jsonl.
 */
#ifndef ZT_CMD_DISPLAY_H
#define ZT_CMD_DISPLAY_H

#include "base/err.h"
#include "breakdown.h"
#include "launch/launch.h"
#include "metrics/metrics.h"
#include "plan/plan.h"
#include "rank_out.h"

struct rank_memory;

/* Speed as shown: single steps jump, so a running mean over about ten. */
struct speed {
    double step_ms; /* 0: not known yet */
    double mfu_per_rate;
};

struct display {
    struct rank_out out, err;
    bool tty;
    bool line_open; /* the cursor stands behind a live line */
    bool stale;     /* `shown` is newer than the live line */
    int64_t drawn_ns;
    int64_t steps, steps_per_print;
    int world;
    bool started; /* a run, or this attempt of it, had its first values */
    int restarts;
    FILE *metrics;   /* metrics.jsonl; NULL after it failed */
    bool incomplete; /* something that the run was to leave could not be written, which was said */
    char *metrics_path, *summary_path;
    double first_loss, last_loss, first_val, last_val;
    bool have_loss, have_val;
    const char *stopped; /* why, before the last step: "asked", "loss"; NULL: it was not */
    double best_val;
    int64_t best_step;
    int64_t first_step; /* done before this attempt */
    int64_t begun_step; /* done before this run; until it starts, as it is meant to */
    int64_t done_steps, skipped;
    double timed_s, timed_tokens; /* of steps whose time is known: no evaluation in between */
    struct speed speed;
    struct breakdowns breakdowns;
    const char *profile_path; /* the caller's; NULL: a profile is shown */
    int n_memory;
    struct rank_memory *memory; /* (world) */
    struct zt_metrics shown;    /* the last step's, speed smoothed */
    struct zt_metrics pending;  /* the last step's, until an evaluation may have been added */
    bool has_pending;
};

/* Of a run, which may be of several attempts. Takes `metrics`, the folder's metrics.jsonl. */
void display_init(struct display *d, const char *log_dir, FILE *metrics, int world, int64_t steps,
                  int64_t steps_per_print);
void display_release(struct display *d);

/* An attempt has ended. What its reader has not taken yet is kept for later. */
void display_settle(struct display *d);

/* The next attempt, of `world` ranks, after so many restarts, goes on with the same record. */
void display_again(struct display *d, int world, int restarts);

/* Callbacks of struct zt_launch_sink; ctx is the display. */
void display_line(void *ctx, int rank, enum zt_log_stream stream, const char *line, size_t len);
void display_report(void *ctx, int rank, const char *json, size_t len);
void display_notice(void *ctx, const char *text);
void display_tick(void *ctx);
int display_flush(void *ctx);

/* The same as one callback: a text whose lines are all marked as ours. */
void display_say(struct display *d, const char *text);

/* What this rank will hold, by category: before the start. */
void display_ledger(const struct zt_plan *p, struct zt_str *out);

/*
 * After the job, to the person and to summary.json: loss before and after, speed, memory
 * predicted beside measured.
 */
void display_summary(struct display *d, int exit_code);

/*
 * The last: blocks until all is read, or dropped (rank_out_finish()). Returns 0, or the errno that standard output
 * was lost with.
 */
int display_finish(struct display *d, bool told) ZT_MUST_CHECK;

#endif
