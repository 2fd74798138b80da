/*
 * fit.h: does a plan fit, and what is the least to give up so that it does.
 *
 * What may be given up is a table of options (fit.c): one row for each ZeRO stage, kind of
 * recomputation, place of optimizer states and of parameters. Rows of one dimension are a ladder, the
 * cheapest first; the micro-batch is one more, whose rungs are its divisors: a smaller one, and as many
 * more of them, make the same step. A *choice* is a rung of every ladder, planned.
 *
 * Sizes are no estimates: each choice goes through the passes of the plan that a run would have
 * (zt_plan_outline, zt_plan_arrange), so they are that run's to the byte. Ranks of a job have equal
 * peaks (zt_verify_ranks), so one of them stands for all.
 *
 * Order of cheapness: planned time of a step. Times within 2 % are equal, and then the order of the
 * ladders decides: stages, micro-batch, recomputation, offload; fewer and lower rungs first.
 */
#ifndef ZT_PLAN_FIT_H
#define ZT_PLAN_FIT_H

#include "plan/plan.h"

/* From cheap to dear: what a choice gives up of a later one weighs more than of all before. */
enum zt_fit_dim {
    ZT_FIT_STAGE,
    ZT_FIT_MICRO_BATCH,
    ZT_FIT_RECOMPUTE,
    ZT_FIT_CPU_CHECKPOINTING,
    ZT_FIT_OFFLOAD_OPTIMIZER,
    ZT_FIT_OFFLOAD_PARAM,
    ZT_N_FIT_DIMS,
};

/* Bytes that one rank may take, and who says so: "--device_memory", "free on this machine". */
struct zt_fit_limit {
    size_t bytes; /* SIZE_MAX: no limit */
    const char *by;
};

struct zt_fit_limits {
    struct zt_fit_limit device; /* its arena and the one that peers read */
    struct zt_fit_limit host;
    struct zt_fit_limit both; /* together: a CPU's are the same memory */
    const char *nvme_path;    /* the folder for offload to NVMe; NULL: nothing may go there */
};

#define ZT_FIT_NO_LIMITS                                                                           \
    ((struct zt_fit_limits){{SIZE_MAX, NULL}, {SIZE_MAX, NULL}, {SIZE_MAX, NULL}, NULL})

#define ZT_FIT_ANY_FOLDER "FOLDER" /* an nvme_path that a person has to fill in */

struct zt_fit_choice {
    struct zt_plan_config cfg;
    int rung[ZT_N_FIT_DIMS]; /* 0: as asked for */
    bool exact; /* false: what lives at one time does not fit, and was all that was counted */
    bool fits;
    size_t device, host; /* bytes */
    double step_s;       /* planned; 0 unless exact */
    const char *nvme_path;
};

struct zt_fit {
    int n;
    struct zt_fit_choice *choices; /* in order */
    size_t cap;
    struct zt_fit_choice least; /* least beyond the limits, or nearly; planned to the byte */
    int n_outlined,
        n_placed; /* the search's work: plans of which rows were made, and of those packed */
};

/* What a search looks at. */
enum zt_fit_search {
    /*
     * All but smaller micro-batches: the cheapest is among them. Where a choice fits, nothing that gives
     * up more at the same stage is looked at.
     */
    ZT_FIT_ALL,
    ZT_FIT_CHANGES /* those that fit and of which no part may be left out, micro-batches too */
};

/*
 * Plan the choices that lie above `cfg` on the ladders (same rung or higher; cfg itself first). What
 * cannot be planned together is left out; an error only when nothing can: that of cfg at the last stage,
 * which goes with every offload. Release `out` in either case.
 */
int zt_fit_search(const struct zt_model *model, const struct zt_plan_config *cfg,
                  const struct zt_fit_limits *limits, enum zt_fit_search what, struct zt_fit *out,
                  struct zt_err *err) ZT_MUST_CHECK;
void zt_fit_release(struct zt_fit *f);

/* The cheapest choice that fits, or NULL. */
const struct zt_fit_choice *zt_fit_cheapest(const struct zt_fit *f);

/* At most `max` choices that fit, cheapest first; returns how many. */
int zt_fit_ranked(const struct zt_fit *f, const struct zt_fit_choice **out, int max);

bool zt_fit_fits(const struct zt_plan *p, const struct zt_fit_limits *limits);

/*
 * What asks for the choice: "zero_optimization.stage=2", as after --set; in `arena`. `all`: the stage
 * even where it is as asked for.
 */
void zt_fit_sets(const struct zt_fit_choice *c, bool all, struct zt_arena *arena, int *n,
                 const char *const **sets);

/* ---- printing (fit_print.c) ---- */

/* Every choice: its size, whether it fits, its planned time; a mark at the cheapest. */
void zt_fit_print_table(const struct zt_fit *f, const struct zt_fit_limits *limits,
                        struct zt_str *out);
void zt_fit_print_json(const struct zt_fit *f, const struct zt_fit_limits *limits,
                       struct zt_str *out);

/*
 * What to say to a plan that does not fit, lines (no newline at the end): what it needs and may take,
 * where most of it goes, and the changes that make it fit.
 */
void zt_fit_print_refusal(const struct zt_plan *p, const struct zt_fit *changes,
                          const struct zt_fit_limits *limits, struct zt_str *out);

/* What to say when nothing of a search for `what` fits: the least that was found. */
void zt_fit_print_least(const struct zt_fit *f, enum zt_fit_search what, struct zt_str *out);

#endif
