/*
 * record.h: what a run folder says about its run: metrics.jsonl, summary.json, and sweep.json of a
 * run that scripts/sweep-stages.sh started.
 *
 * The files may come from strangers, and of a run that is under way: lines, steps and sizes are
 * bounded, nothing is believed, and a last line without its newline that is no object yet is left
 * out. Anything else that is wrong is ZT_EINPUT with "path:line: ".
 */
#ifndef ZT_METRICS_RECORD_H
#define ZT_METRICS_RECORD_H

#include "base/err.h"
#include "base/str.h"
#include "metrics/stats.h"

enum {
    ZT_RECORD_MAX_LINE = 64 << 10,  /* bytes of a line of metrics.jsonl */
    ZT_RECORD_MAX_STEPS = 16 << 20, /* of a run */
    ZT_RECORD_MAX_FILE = 64 << 20,  /* bytes of summary.json and sweep.json */
};

/* What metrics.jsonl says. Unknown numbers are NAN, unknown counts and bytes -1. */
struct zt_record_steps {
    int64_t steps; /* the last one's number; 0: none is there */
    double tokens_per_step;
    double last_loss, best_loss, best_val_loss; /* best: least */
    int64_t device_peak_bytes, host_peak_bytes; /* of rank 0: as planned, and resident */
    struct zt_spread step_ms;                   /* of timed steps, warm-up left out */
    double mfu;                                 /* median of the same steps */
    double *ms, *mfus;                          /* (n_timed), in the order of steps */
    size_t n_timed, cap_ms, cap_mfus;
};

/* Reading metrics.jsonl piece by piece. The path must outlive it. */
struct zt_record_reader {
    const char *path;
    struct zt_record_steps *steps;
    struct zt_str line; /* begun, not ended */
    int64_t line_no;    /* 1-based, of the line begun */
};

void zt_record_begin(struct zt_record_reader *r, const char *path, struct zt_record_steps *steps);
int zt_record_feed(struct zt_record_reader *r, const char *bytes, size_t n,
                   struct zt_err *err) ZT_MUST_CHECK;
/* The end of the file. `warmup`: timed steps to leave out, or -1 for zt_warmup_steps(). */
int zt_record_end(struct zt_record_reader *r, int64_t warmup, struct zt_err *err) ZT_MUST_CHECK;
void zt_record_reader_release(struct zt_record_reader *r);
void zt_record_steps_release(struct zt_record_steps *s);

/* The file at `path`, from its beginning to what is there now. Release in either case. */
int zt_record_read_steps(const char *path, int64_t warmup, struct zt_record_steps *steps,
                         struct zt_err *err) ZT_MUST_CHECK;

/*
 * A run goes on after `step`: cut metrics.jsonl before the first line of a later step, or one that is no
 * step's (the last line of a run that was killed). Nobody else may write it meanwhile. What is no regular
 * file is left as it is. *last: the last step that is left in it; -1: none, or not known.
 */
int zt_record_cut(const char *path, int64_t step, int64_t *last, struct zt_err *err) ZT_MUST_CHECK;

enum zt_record_stop { ZT_RECORD_NOT_STOPPED, ZT_RECORD_STOP_ASKED, ZT_RECORD_STOP_LOSS };

/* What summary.json says; bytes are those of the rank that has most, -1 where no rank said. */
struct zt_record_summary {
    int exit_code;
    enum zt_record_stop stopped; /* before the last step */
    double best_val_loss;        /* NAN: never evaluated */
    int64_t predicted_bytes, touched_bytes;
    int64_t device_touched_bytes; /* of them, on the device */
    int64_t rss_peak_bytes;
};

int zt_record_parse_summary(const char *path, const char *text, size_t n,
                            struct zt_record_summary *out, struct zt_err *err) ZT_MUST_CHECK;

/* What sweep.json says of one combination. */
struct zt_record_sweep {
    int stage;
    const char *offload; /* "none", "cpu", "nvme" */
    int exit_code;       /* -1: it has not ended */
    char *message;       /* why it failed; NULL: nothing was said */
};

int zt_record_parse_sweep(const char *path, const char *text, size_t n, struct zt_record_sweep *out,
                          struct zt_err *err) ZT_MUST_CHECK;
void zt_record_sweep_release(struct zt_record_sweep *s);

#endif
