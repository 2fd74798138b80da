/*
 * metrics.h: the numbers of one training step as a JSON line (metrics.jsonl, and a worker's report
 * to the front end) and as the line that a person reads. Pure functions; nothing is printed here.
 *
 * A number that is not known or not finite is NAN here and null there, so that the line is JSON
 * whatever training did. Numbers are written with as many digits as give the same double again.
 */
#ifndef ZT_METRICS_METRICS_H
#define ZT_METRICS_METRICS_H

#include "base/err.h"
#include "base/str.h"

/* What a step's time went into (DeepSpeed's wall_clock_breakdown). */
enum zt_part {
    ZT_PART_FORWARD,
    ZT_PART_BACKWARD, /* with recomputation */
    ZT_PART_UPDATE,
    ZT_PART_REDUCE, /* gradients between ranks */
    ZT_PART_GATHER, /* parameters between ranks */
    ZT_PART_WAIT,   /* none of these ran: waiting for data, for other ranks, for the vote */
    ZT_N_PARTS,
};

/*
 * Parts may run at the same time. `exposed` counts each moment once, for the first part in this order
 * that runs: their sum is the step's time, and what communication costs beside computing is what is
 * exposed of it. A collective's time includes waiting for the ranks that come to it later.
 */
struct zt_breakdown {
    double busy_ms[ZT_N_PARTS];
    double exposed_ms[ZT_N_PARTS];
    double total_ms;
};

const char *zt_part_name(enum zt_part p);

/* Communication runs beside computing: all of it and what is exposed of it are two numbers. */
static inline bool zt_part_is_beside(int p)
{
    return p == ZT_PART_REDUCE || p == ZT_PART_GATHER;
}

/* Append {"total": 8.1, "forward": 2.1, ..., "reduce": 1.1, "reduce_exposed": 0.2, ...}. */
void zt_breakdown_to_json(const struct zt_breakdown *b, struct zt_str *out);

/*
 * "forward 2.1, backward 4.3, update 0.9, reduce 0.2 of 1.1, gather 0.0 of 0.7, wait 0.1 ms": what is
 * exposed, of communication beside all of it. Returns buf.
 */
const char *zt_breakdown_line(const struct zt_breakdown *b, char *buf, size_t buf_bytes);

struct zt_metrics {
    int64_t step;             /* 1-based: steps done */
    double loss;              /* mean over the step's targets, all ranks; NAN if there are none */
    double lr;                /* of this step */
    double grad_norm;         /* global, unscaled, before clipping */
    double grad_norm_clipped; /* and after */
    double loss_scale;        /* 1 unless fp16 */
    int64_t skipped;          /* steps so far whose update was not applied */
    int64_t tokens;           /* so far, all ranks */
    int64_t targets;          /* of this step, all ranks: those that are not masked */
    double tokens_per_s;      /* all ranks */
    double step_ms;
    double mfu; /* model FLOPs a second over the peak, 0 to 1 */
    int64_t device_peak_bytes, host_peak_bytes;
    bool has_val;
    double val_loss; /* after this step, where evaluated */
    bool has_breakdown;
    struct zt_breakdown breakdown; /* of rank 0, where asked for */
};

/*
 * Model FLOPs utilisation: of `peak` FLOP/s, the most that was seen. That is what matrix products reached at the start, or what
 * a second of steps reached since: a single step may be reported late, and the next one seem to have taken no time.
 */
struct zt_mfu {
    double peak;     /* 0: not known */
    double flops, s; /* of the steps since it was last compared */
};

/* 0 to 1, of a step of so many FLOPs in s > 0 seconds; NAN: not known. *raised: the peak has become another. */
double zt_mfu_step(struct zt_mfu *m, double flops, double s, bool *raised);

/* Append one JSON object, without a newline: {"type": "step", "step": 100, "loss": 2.345, ...}. */
void zt_metrics_to_json(const struct zt_metrics *m, struct zt_str *out);

/*
 * The other way. Keys that are not known are left alone; `step` must be there, others may be
 * absent.
 */
int zt_metrics_from_json(const char *json, size_t n, struct zt_metrics *m,
                         struct zt_err *err) ZT_MUST_CHECK;

/*
 * "step 100/2000 loss 2.3456 lr 1.0e-03 norm 0.53 12.3k tok/s mfu 41% 1.20 GB eta 0:12", without a
 * newline. What is not known is left out; "no targets" stands for the loss of a step that was masked
 * whole; "val 2.41" and "skipped 3" follow where they apply. Cut
 * when it does not fit buf. Returns buf.
 */
const char *zt_metrics_line(const struct zt_metrics *m, int64_t total_steps, char *buf,
                            size_t buf_bytes);

#endif
