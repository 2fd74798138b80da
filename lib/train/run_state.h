/*
 * run_state.h: one worker's run, as the files that carry it out share it. Internal.
 *
 *   run.c         the loop over steps and what happens between them
 *   run_start.c   before it: plan, data, engine; new values or those of a checkpoint
 *   run_report.c  what is told to the front end
 */
#ifndef ZT_TRAIN_RUN_STATE_H
#define ZT_TRAIN_RUN_STATE_H

#include "ckpt/safetensors.h"
#include "metrics/metrics.h"
#include "train/report.h"
#include "train/run.h"
#include "train/save.h"
#include "train/times.h"

/* Why a run ends before its last step. */
enum zt_run_stop { ZT_GO_ON, ZT_STOP_ASKED, ZT_STOP_AT_LOSS };

/* Everything of one run, so that one release function ends it from any point. */
struct zt_run {
    const struct zt_recipe *r;
    const struct zt_train_env *env;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *plan;
    struct zt_run_data data;
    struct zt_weights weights;
    bool has_weights;
    struct zt_source source;
    struct zt_feed feed_train, feed_eval;
    struct zt_engine engine;
    struct zt_disk *disk;          /* of offload to NVMe */
    int64_t first_step, last_step; /* done before this run; done when it ends */
    int64_t last_done_ns;
    double flops_per_token;
    struct zt_mfu mfu;        /* of all workers */
    enum zt_dtype peak_dtype; /* of the matrix products that its peak was measured with */
    enum zt_run_stop stop;
    int64_t evaluated, sampled; /* after how many steps; -1: not yet */
    bool said_masked;           /* that a step had no target */
    double best_val_loss;       /* NAN: never evaluated */

    /* checkpoints */
    struct zt_load load;    /* while its values are read */
    char *resumed;          /* the checkpoint that this run goes on from; NULL: none */
    int64_t load_ns;        /* how long reading it took */
    struct zt_saver *saver; /* NULL: nothing is saved */
    int64_t saved;          /* after how many steps; the first step's number in the beginning */
    int64_t last_save_ns;
    bool save_due;           /* a VOTE says so */
    struct zt_step_block sb; /* of the step concluded last, as it was in it */

    /* wall_clock_breakdown, flops_profiler. A run is one of TRAIN: the first is number 0. */
    bool timed;              /* every step */
    int64_t profile_run;     /* TRAIN run; -1: none */
    int64_t n_finished;      /* runs that are over on all streams, their times taken in */
    int64_t finished_ns;     /* when the last of them ended; 0: there was a pause since */
    struct zt_breakdown sum; /* of n_timed runs; the first one warms up */
    int64_t n_timed;
    struct zt_metrics held; /* a step's report, until its times are known */
    bool holds;
};

/* ---- run_start.c ---- */

int zt_run_set_up_plan(struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;
int zt_run_set_up_data(struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;

/* Engine, the folder of checkpoints, and the first values: after this the run stands at first_step. */
int zt_run_set_up_engine(struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;
void zt_run_set_up_times(struct zt_run *run);
void zt_run_measure_peak(struct zt_run *run);

/* ---- run_report.c ---- */

int zt_run_report_start(const struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;
int zt_run_report_disk(const struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;
int zt_run_send_step(struct zt_run *run, const struct zt_metrics *m,
                     struct zt_err *err) ZT_MUST_CHECK;
int zt_run_report_step(struct zt_run *run, const struct zt_step_outcome *o,
                       struct zt_err *err) ZT_MUST_CHECK;
int zt_run_report_skipped(struct zt_run *run, const struct zt_step_block *sb,
                          struct zt_err *err) ZT_MUST_CHECK;
int zt_run_report_times(struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;
int zt_run_report_memory(struct zt_run *run, struct zt_err *err) ZT_MUST_CHECK;
int zt_run_report_end(const struct zt_run *run, int64_t steps_done,
                      struct zt_err *err) ZT_MUST_CHECK;

/* TRAIN runs before `n` are over on all streams: report what waited for that. */
int zt_run_finish_runs(struct zt_run *run, int64_t n, struct zt_err *err) ZT_MUST_CHECK;

/* Does training go on after a step that is not finite? */
int zt_run_judge(const struct zt_run *run, const struct zt_step_block *sb,
                 struct zt_err *err) ZT_MUST_CHECK;

#endif
